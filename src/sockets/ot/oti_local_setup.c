/* SPDX-License-Identifier: MIT */
/*
 * Connections of the local transport: how they begin and end. Each side says in its phase word how
 * it stands to the slot (oti_local_priv.h):
 *
 *   beginner   ASK ──────────────────────────► LIVE ─► DOWN or CUT ─► GONE or DEAD
 *   other side      ─► ACCEPT (or REJECT) ─────────────► DOWN or CUT ─► GONE or DEAD
 *
 * The beginner may use the slot again, with the next generation, when both have left it. Locks: the
 * transport's before the connection's.
 */
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include "sockets/ot/oti_local_priv.h"

#define FIRST_PORT       32768
#define GENERATION_LIMIT (1u << 24)

/* ---- addresses ---- */

static void addr_put(struct local_addr *to, const struct oti_addr *from)
{
	const struct sockaddr_in *in = (const void *)&from->sa;
	const struct sockaddr_in6 *in6 = (const void *)&from->sa;

	memset(to, 0, sizeof(*to));
	to->family = from->sa.ss_family;
	to->port = in->sin_port;
	if (to->family == AF_INET) {
		memcpy(to->ip, &in->sin_addr, sizeof(in->sin_addr));
	} else {
		memcpy(to->ip, &in6->sin6_addr, sizeof(in6->sin6_addr));
		to->scope = in6->sin6_scope_id;
	}
}

/* `from` is a private copy. Any family but IPv4 is taken for IPv6: it only has to match. */
static void addr_get(struct oti_addr *to, const struct local_addr *from)
{
	struct sockaddr_in *in = (void *)&to->sa;
	struct sockaddr_in6 *in6 = (void *)&to->sa;

	memset(to, 0, sizeof(*to));
	if (from->family == AF_INET) {
		in->sin_family = AF_INET;
		in->sin_port = from->port;
		memcpy(&in->sin_addr, from->ip, sizeof(in->sin_addr));
		to->len = sizeof(*in);
	} else {
		in6->sin6_family = AF_INET6;
		in6->sin6_port = from->port;
		in6->sin6_scope_id = from->scope;
		memcpy(&in6->sin6_addr, from->ip, sizeof(in6->sin6_addr));
		to->len = sizeof(*in6);
	}
}

static void set_port(struct oti_addr *a, uint16_t port)
{
	((struct sockaddr_in *)&a->sa)->sin_port = htons(port);
}

/* 2: the very address, 1: the any-address, 0: another one. */
static int match(const struct oti_addr *listening, const struct oti_addr *asked)
{
	struct local_addr l, a;
	static const uint8_t any[16];

	addr_put(&l, listening);
	addr_put(&a, asked);
	if (l.family != a.family || l.port != a.port)
		return 0;
	if (memcmp(l.ip, a.ip, sizeof(l.ip)) == 0)
		return 2;
	return memcmp(l.ip, any, sizeof(l.ip)) == 0;
}

/* ---- listeners ---- */

static struct local_listener *find(struct local *l, const struct oti_addr *asked)
{
	struct local_listener *best = NULL;
	int best_match = 0;

	for (struct local_listener *p = l->listeners; p; p = p->next) {
		int m = match(&p->base.local, asked);

		if (m > best_match) {
			best = p;
			best_match = m;
		}
	}
	return best;
}

static uint16_t next_port(struct local *l)
{
	l->next_port = l->next_port < FIRST_PORT ? FIRST_PORT : l->next_port + 1;
	return l->next_port < FIRST_PORT ? FIRST_PORT : l->next_port;
}

/* The any-address and others may share a port; the same address may not. */
static bool is_taken(const struct local *l, const struct oti_addr *addr)
{
	for (struct local_listener *p = l->listeners; p; p = p->next)
		if (match(&p->base.local, addr) == 2)
			return true;
	return false;
}

static int choose_port(struct local *l, struct oti_addr *addr)
{
	if (((struct sockaddr_in *)&addr->sa)->sin_port)
		return is_taken(l, addr) ? -EADDRINUSE : 0;
	for (int i = 0; i < FIRST_PORT; i++) {
		set_port(addr, next_port(l));
		if (!is_taken(l, addr))
			return 0;
	}
	return -EADDRINUSE;
}

void local_setup_port(struct local *l, struct oti_addr *addr)
{
	lock_take(&l->lock);
	set_port(addr, next_port(l));
	lock_give(&l->lock);
}

int local_listen(struct oti *o, const struct oti_addr *addr, int backlog,
		 void (*on_request)(struct oti_listener *, struct oti_request *, void *),
		 void *user, struct oti_listener **out)
{
	struct local *l = to_local(o);
	struct local_listener *n;
	int rc;

	if (addr->sa.ss_family != AF_INET && addr->sa.ss_family != AF_INET6)
		return -EINVAL;
	n = calloc(1, sizeof(*n));
	if (!n)
		return -ENOMEM;
	n->base.ops = o->ops;
	n->base.local = *addr;
	n->base.on_request = on_request;
	n->base.user = user;
	n->l = l;
	n->backlog = backlog > 0 ? backlog : 128;
	lock_take(&l->lock);
	rc = choose_port(l, &n->base.local);
	if (!rc) {
		n->next = l->listeners;
		l->listeners = n;
	}
	lock_give(&l->lock);
	if (rc) {
		free(n);
		return rc;
	}
	*out = &n->base;
	return 0;
}

int local_unlisten(struct oti_listener *base)
{
	struct local_listener *n = (struct local_listener *)base;
	struct local *l = n->l;
	bool busy;

	lock_take(&l->lock);
	busy = n->waiting;
	for (struct local_listener **p = &l->listeners; *p && !busy; p = &(*p)->next) {
		if (*p == n) {
			*p = n->next;
			break;
		}
	}
	lock_give(&l->lock);
	if (busy)
		return -EBUSY;
	free(n);
	return 0;
}

/* ---- words and data in the slot ---- */

void local_setup_say(struct local_conn *c, enum local_phase phase)
{
	atomic_store_explicit(&c->own->phase, phase_word(c->generation, phase),
			      memory_order_release);
	local_region_ring_bell(to_local(c->base.oti), c->slot);
}

static void put_private(struct local_conn *c, const void *data, size_t len)
{
	if (len)
		memcpy(c->own->private_data, data, len);
	atomic_store_explicit(&c->own->private_len, (uint32_t)len, memory_order_relaxed);
}

size_t local_setup_private(const struct local_conn *c, uint8_t *to)
{
	uint32_t len = atomic_load_explicit(&c->peer->private_len, memory_order_relaxed);

	if (len > LOCAL_PRIVATE_MAX)
		len = 0;
	memcpy(to, c->peer->private_data, len);
	return len;
}

/* What we receive with, and rings that begin anew. */
static void put_terms(struct local_conn *c)
{
	atomic_store_explicit(&c->own->bufs, c->n_rx, memory_order_relaxed);
	atomic_store_explicit(&c->own->buf_size, c->rx_size, memory_order_relaxed);
	atomic_store_explicit(&c->own->sent, 0, memory_order_relaxed);
	atomic_store_explicit(&c->own->given, 0, memory_order_relaxed);
}

static int take_terms(struct local_conn *c)
{
	return local_ring_init(c, atomic_load_explicit(&c->peer->bufs, memory_order_relaxed),
			       atomic_load_explicit(&c->peer->buf_size, memory_order_relaxed));
}

int local_setup_accepted(struct local_conn *c)
{
	return take_terms(c);
}

static int check_attr(const struct local *l, const struct oti_conn_attr *attr)
{
	if (attr->private_len > LOCAL_PRIVATE_MAX || attr->bufs == 0)
		return -EINVAL;
	return attr->bufs > l->geo.bufs || attr->buf_size > l->geo.buf_size ? -EINVAL : 0;
}

static void adopt(struct local_conn *c, const struct oti_conn_attr *attr)
{
	c->base.upcalls = attr->upcalls;
	c->base.user = attr->user;
	c->broken = c->in_order = false;
}

/* ---- connecting ---- */

/* Whether the other side has left what was in the slot before. */
static bool is_left(const struct local_conn *c)
{
	uint32_t word = atomic_load_explicit(&c->peer->phase, memory_order_acquire);

	if (c->generation == 0)
		return true;
	return word == phase_word(c->generation, PHASE_GONE) ||
	       word == phase_word(c->generation, PHASE_DEAD) ||
	       word == phase_word(c->generation, PHASE_REJECT);
}

static struct local_conn *take_slot(struct local *l)
{
	for (uint32_t slot = l->side; slot < l->geo.slots; slot += 2) {
		struct local_conn *c = &l->conns[slot];

		if (c->state == CONN_FREE && is_left(c))
			return c;
	}
	return NULL;
}

static void ask(struct local_conn *c, const struct oti_conn_attr *attr)
{
	struct local_addr from, to;

	c->generation = (c->generation + 1) % GENERATION_LIMIT;
	/* 0 is what a slot says that was never used. */
	c->generation += c->generation == 0;
	addr_put(&from, &c->local);
	addr_put(&to, &c->remote);
	memcpy(&c->own->from, &from, sizeof(from));
	memcpy(&c->own->to, &to, sizeof(to));
	put_private(c, attr->private_data, attr->private_len);
	put_terms(c);
	c->state = CONN_ASKING;
	local_setup_say(c, PHASE_ASK);
}

int local_connect(struct oti *o, const struct oti_endpoint *to, const struct oti_conn_attr *attr,
		  struct oti_conn **out)
{
	struct local *l = to_local(o);
	struct local_conn *c;
	int rc = check_attr(l, attr);

	if (rc)
		return rc;
	lock_take(&l->lock);
	c = take_slot(l);
	rc = c ? local_ring_alloc(c, attr->bufs, attr->buf_size) : -ENOSPC;
	if (!rc) {
		adopt(c, attr);
		c->remote = to->remote;
		c->local = to->local;
		if (!to->local.len) {
			c->local = to->remote;
			set_port(&c->local, next_port(l));
		}
		*out = &c->base;
		lock_take(&c->lock);
		ask(c, attr);
		lock_give(&c->lock);
	}
	lock_give(&l->lock);
	return rc;
}

int local_confirm(struct oti_conn *conn)
{
	struct local_conn *c = to_conn(conn);
	int rc = 0;

	lock_take(&c->lock);
	if (c->state == CONN_ACCEPTED) {
		c->state = CONN_CONFIRMED;
		local_setup_say(c, PHASE_LIVE);
		/* There is `up` to tell, and what the peer said meanwhile. */
		local_region_note(to_local(conn->oti), c->slot);
	} else {
		rc = -ENOTCONN;
	}
	lock_give(&c->lock);
	return rc;
}

/* ---- being asked ---- */

/* Lock held. The request as it was when it was read; whatever changes later does not matter. */
static void take_request(struct local_conn *c)
{
	struct local_addr from, to;

	memcpy(&from, &c->peer->from, sizeof(from));
	memcpy(&to, &c->peer->to, sizeof(to));
	addr_get(&c->remote, &from);
	addr_get(&c->local, &to);
	c->req.ops = c->base.ops;
	c->req.local = c->local;
	c->req.peer = c->remote;
	c->req.private_data = c->req_data;
	c->req.private_len = local_setup_private(c, c->req_data);
}

static void refuse(struct local_conn *c, uint32_t code)
{
	atomic_store_explicit(&c->own->reject_code, code, memory_order_relaxed);
	local_setup_say(c, PHASE_REJECT);
}

void local_setup_answer(struct local_conn *c, struct local_event *ev)
{
	struct local *l = to_local(c->base.oti);
	uint32_t word = atomic_load_explicit(&c->peer->phase, memory_order_acquire);
	struct local_listener *n;

	/* Our own slots say nothing here; nor does a generation that we have done with. */
	if (c->slot % 2 == l->side || word >> 8 == c->generation || word >> 8 == 0)
		return;
	lock_take(&l->lock);
	lock_take(&c->lock);
	c->generation = word >> 8;
	if (word != phase_word(c->generation, PHASE_ASK)) {
		/* It has given up before we looked. */
		local_setup_say(c, PHASE_DEAD);
	} else {
		take_request(c);
		n = find(l, &c->local);
		if (!n || n->waiting >= n->backlog) {
			put_private(c, NULL, 0);
			refuse(c, 0);
		} else {
			c->state = CONN_ASKED;
			c->listener = n;
			n->waiting++;
			ev->news = NEWS_REQUEST;
			ev->listener = n;
		}
	}
	lock_give(&c->lock);
	lock_give(&l->lock);
}

static struct local_conn *conn_of(struct oti_request *req)
{
	return (struct local_conn *)((char *)req - offsetof(struct local_conn, req));
}

/* Both locks held: the request is answered. */
static void answered(struct local_conn *c)
{
	c->listener->waiting--;
	c->listener = NULL;
}

int local_accept(struct oti_request *req, const struct oti_conn_attr *attr, struct oti_conn **out)
{
	struct local_conn *c = conn_of(req);
	struct local *l = to_local(c->base.oti);
	int rc = check_attr(l, attr);

	lock_take(&l->lock);
	lock_take(&c->lock);
	answered(c);
	if (!rc && atomic_load_explicit(&c->peer->phase, memory_order_acquire) !=
			   phase_word(c->generation, PHASE_ASK))
		rc = -ECONNRESET;
	if (!rc)
		rc = local_ring_alloc(c, attr->bufs, attr->buf_size);
	if (!rc) {
		rc = take_terms(c);
		if (rc)
			local_ring_fini(c);
	}
	if (!rc) {
		adopt(c, attr);
		put_private(c, attr->private_data, attr->private_len);
		put_terms(c);
		c->state = CONN_ACCEPTING;
		*out = &c->base;
		local_setup_say(c, PHASE_ACCEPT);
	} else {
		c->state = CONN_FREE;
		local_setup_say(c, PHASE_DEAD);
	}
	lock_give(&c->lock);
	lock_give(&l->lock);
	return rc;
}

int local_reject(struct oti_request *req, uint32_t code, const void *data, size_t len)
{
	struct local_conn *c = conn_of(req);
	struct local *l = to_local(c->base.oti);
	bool fits = len <= LOCAL_PRIVATE_MAX;

	lock_take(&l->lock);
	lock_take(&c->lock);
	answered(c);
	put_private(c, data, fits ? len : 0);
	c->state = CONN_FREE;
	refuse(c, code);
	lock_give(&c->lock);
	lock_give(&l->lock);
	return fits ? 0 : -EINVAL;
}

/* ---- the end ---- */

int local_disconnect(struct oti_conn *conn)
{
	struct local_conn *c = to_conn(conn);
	int rc = 0;

	lock_take(&c->lock);
	if (local_is_open(c)) {
		c->state = CONN_CLOSING;
		c->in_order = true;
		local_setup_say(c, PHASE_DOWN);
		local_region_note(to_local(conn->oti), c->slot);
	} else if (c->state != CONN_CLOSING && c->state != CONN_OVER) {
		rc = -ENOTCONN;
	}
	lock_give(&c->lock);
	return rc;
}

static void cut(struct local_conn *c)
{
	if (c->state == CONN_CLOSING)
		c->in_order = false;
	if (!c->in_order)
		local_setup_say(c, PHASE_CUT);
	c->state = CONN_OVER;
}

void local_abort(struct oti_conn *conn)
{
	struct local_conn *c = to_conn(conn);

	lock_take(&c->lock);
	if (c->state != CONN_OVER && c->state != CONN_FREE)
		cut(c);
	lock_give(&c->lock);
}

void local_release(struct oti_conn *conn)
{
	struct local_conn *c = to_conn(conn);
	struct local *l = to_local(conn->oti);

	lock_take(&l->lock);
	lock_take(&c->lock);
	if (c->state != CONN_FREE) {
		if (c->state != CONN_OVER)
			cut(c);
		c->state = CONN_FREE;
		local_ring_fini(c);
		local_setup_say(c, c->in_order ? PHASE_GONE : PHASE_DEAD);
	}
	lock_give(&c->lock);
	lock_give(&l->lock);
}
