/* SPDX-License-Identifier: MIT */
/*
 * Connections of the local transport: how they begin and end. A connection has a circuit of the trunk until it is over, and is
 * itself there until it is released.
 *
 *   beginner    ASKING ─► ACCEPTED ─► CONFIRMED ─► UP ─► (CLOSING) ─► OVER ─► FREE
 *   other side  NEW ─► ASKED ─► ACCEPTING ──────►  UP ─► (CLOSING) ─► OVER ─► FREE
 *
 * Locks: the transport's before the connection's, both before the trunk's own.
 */
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include "sockets/ot/oti_local_priv.h"

#define FIRST_PORT 32768

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

/* Locks held. What it is needed for is over, or never was. */
static void set_free(struct local_conn *c)
{
	c->state = CONN_FREE;
	c->circuit = LOCAL_NOWHERE;
	c->listener = NULL;
}

/* The transport's lock is held: requests that the consumer has not seen. */
static void refuse_unseen(struct local_listener *n)
{
	struct local *l = n->l;
	const struct local_greeting none = { 0 };

	for (uint32_t slot = 0; slot < l->geo.slots; slot++) {
		struct local_conn *c = &l->conns[slot];

		lock_take(&c->lock);
		if (c->state == CONN_NEW && c->listener == n) {
			(void)trunk_refuse(l->trunk, c->circuit, 0, &none,
					   offsetof(struct local_greeting, private_data));
			n->waiting--;
			set_free(c);
		}
		lock_give(&c->lock);
	}
}

int local_unlisten(struct oti_listener *base)
{
	struct local_listener *n = (struct local_listener *)base;
	struct local *l = n->l;
	bool busy;

	lock_take(&l->lock);
	refuse_unseen(n);
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

/* ---- greetings ---- */

#define GREETING_LEN(private_len) (offsetof(struct local_greeting, private_data) + (private_len))

/* What we receive with, and the consumer's data. Returns how long it is. */
static size_t fill(struct local_greeting *g, const struct oti_conn_attr *attr)
{
	memset(g, 0, sizeof(*g));
	g->bufs = attr->bufs;
	g->buf_size = attr->buf_size;
	g->private_len = (uint32_t)attr->private_len;
	if (attr->private_len)
		memcpy(g->private_data, attr->private_data, attr->private_len);
	return GREETING_LEN(attr->private_len);
}

bool local_setup_greeting(struct local_conn *c)
{
	struct local_greeting *g = &c->greeting;
	ssize_t len;

	/* A copy, which the peer cannot change any more. */
	memset(g, 0, sizeof(*g));
	len = trunk_greeting(trunk_of(c), c->circuit, g, sizeof(*g));
	if (len >= (ssize_t)GREETING_LEN(0) && g->private_len <= LOCAL_PRIVATE_MAX &&
	    len == (ssize_t)GREETING_LEN(g->private_len))
		return true;
	memset(g, 0, sizeof(*g));
	return false;
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
}

/* The transport's lock is held. */
static struct local_conn *find_slot(struct local *l)
{
	for (uint32_t slot = 0; slot < l->geo.slots; slot++)
		if (l->conns[slot].state == CONN_FREE)
			return &l->conns[slot];
	return NULL;
}

static void begin(struct local_conn *c, enum local_state state)
{
	c->state = state;
	c->circuit = LOCAL_NOWHERE;
	c->heard = c->code = 0;
	c->broken = false;
	c->owes = OWES_NOTHING;
}

int local_setup_pay(struct local_conn *c)
{
	int rc = 0;

	if (c->owes == OWES_ANSWER)
		rc = trunk_accept(trunk_of(c), c->circuit, &c->greeting, c->answer_len, c);
	else if (c->owes == OWES_CONFIRM)
		rc = (int)trunk_send(trunk_of(c), c->circuit, NULL, 0, KIND_CONFIRM, 0);
	if (rc != -EAGAIN)
		c->owes = OWES_NOTHING;
	return rc;
}

/* ---- connecting ---- */

/* Both locks held. */
static int ask(struct local_conn *c, const struct oti_conn_attr *attr)
{
	struct local_greeting g;
	size_t len = fill(&g, attr);
	int rc;

	addr_put(&g.from, &c->local);
	addr_put(&g.to, &c->remote);
	begin(c, CONN_ASKING);
	rc = trunk_open(trunk_of(c), &g, len, c);
	if (rc >= 0) {
		c->circuit = (uint32_t)rc;
		return 0;
	}
	set_free(c);
	return rc == -ENOSPC ? rc : -ECONNREFUSED;
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
	c = find_slot(l);
	rc = c ? local_buf_alloc(c, attr->bufs, attr->buf_size) : -ENOSPC;
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
		rc = ask(c, attr);
		if (rc)
			local_buf_fini(c);
		lock_give(&c->lock);
	}
	lock_give(&l->lock);
	return rc;
}

int local_confirm(struct oti_conn *conn)
{
	struct local_conn *c = to_conn(conn);
	int rc = -ENOTCONN;

	lock_take(&c->lock);
	if (c->state == CONN_ACCEPTED) {
		c->state = CONN_CONFIRMED;
		/* Without credit it goes later; if the peer has left `down` tells of it. */
		c->owes = OWES_CONFIRM;
		(void)local_setup_pay(c);
		/* There is `up` to tell, and what the peer said meanwhile. */
		local_note(to_local(conn->oti), c->slot);
		rc = 0;
	}
	lock_give(&c->lock);
	return rc;
}

/* ---- being asked ---- */

/* Both locks held. */
static void take_request(struct local_conn *c, uint32_t circuit, struct local_listener *n)
{
	begin(c, CONN_NEW);
	c->circuit = circuit;
	c->listener = n;
	n->waiting++;
	trunk_set_user(trunk_of(c), circuit, c);
	c->req.ops = c->base.ops;
	c->req.local = c->local;
	c->req.peer = c->remote;
	c->req.private_data = c->greeting.private_data;
	c->req.private_len = c->greeting.private_len;
}

void local_setup_asked(struct local *l, uint32_t circuit)
{
	const struct local_greeting none = { 0 };
	struct local_listener *n = NULL;
	struct local_conn *c;

	lock_take(&l->lock);
	c = find_slot(l);
	if (c) {
		lock_take(&c->lock);
		c->circuit = circuit;
		if (local_setup_greeting(c)) {
			addr_get(&c->remote, &c->greeting.from);
			addr_get(&c->local, &c->greeting.to);
			n = find(l, &c->local);
		}
		if (n && n->waiting < n->backlog)
			take_request(c, circuit, n);
		else
			c->circuit = LOCAL_NOWHERE;
		lock_give(&c->lock);
	}
	if (!c || c->state == CONN_FREE)
		(void)trunk_refuse(l->trunk, circuit, 0, &none, GREETING_LEN(0));
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

/* Both locks held. */
static int answer_yes(struct local_conn *c, const struct oti_conn_attr *attr)
{
	struct local_greeting g;
	size_t len = fill(&g, attr);
	int rc = local_buf_alloc(c, attr->bufs, attr->buf_size);

	if (rc)
		return rc;
	rc = local_buf_terms(c);
	if (!rc) {
		/* The peer's has been read, and the request is used up. */
		memcpy(&c->greeting, &g, len);
		c->answer_len = len;
		c->owes = OWES_ANSWER;
		rc = local_setup_pay(c);
	}
	if (rc == -EAGAIN)
		return 0; /* it goes when there is credit; the peer waits as for any answer */
	if (rc)
		local_buf_fini(c);
	return rc;
}

int local_accept(struct oti_request *req, const struct oti_conn_attr *attr, struct oti_conn **out)
{
	struct local_conn *c = conn_of(req);
	struct local *l = to_local(c->base.oti);
	int rc = check_attr(l, attr);

	lock_take(&l->lock);
	lock_take(&c->lock);
	answered(c);
	if (!rc)
		rc = c->broken ? -ECONNRESET : answer_yes(c, attr);
	if (!rc) {
		adopt(c, attr);
		c->state = CONN_ACCEPTING;
		*out = &c->base;
	} else {
		trunk_drop(l->trunk, c->circuit, CODE_CUT);
		set_free(c);
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
	struct oti_conn_attr attr = { .private_data = data, .private_len = fits ? len : 0 };
	struct local_greeting g;
	size_t size = fill(&g, &attr);

	g.code = code;
	lock_take(&l->lock);
	lock_take(&c->lock);
	answered(c);
	(void)trunk_refuse(l->trunk, c->circuit, 0, &g, size);
	set_free(c);
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
		(void)trunk_shut(trunk_of(c), c->circuit);
		local_note(to_local(conn->oti), c->slot);
	} else if (c->state != CONN_CLOSING && c->state != CONN_OVER) {
		rc = -ENOTCONN;
	}
	lock_give(&c->lock);
	return rc;
}

void local_setup_over(struct local_conn *c, enum local_code code)
{
	trunk_drop(trunk_of(c), c->circuit, (uint8_t)code);
	c->circuit = LOCAL_NOWHERE;
	c->state = CONN_OVER;
}

void local_abort(struct oti_conn *conn)
{
	struct local_conn *c = to_conn(conn);

	lock_take(&c->lock);
	if (c->state != CONN_OVER && c->state != CONN_FREE)
		local_setup_over(c, CODE_CUT);
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
			local_setup_over(c, CODE_CUT);
		local_buf_fini(c);
		set_free(c);
	}
	lock_give(&c->lock);
	lock_give(&l->lock);
}
