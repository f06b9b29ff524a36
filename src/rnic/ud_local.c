/* SPDX-License-Identifier: MIT */
/*
 * Datagrams through memory. A queue pair that has a UDP port of this host is looked for under that number: if there is a door, it is called, and
 * from then on all datagrams of our engine to it go into the duct that came of it. Nobody has to answer for that, and there is
 * nothing to wait for: whoever is called takes what is there as soon as it runs, and drops only what finds no receive.
 *
 * Whether an address is of this host the kernel's routes say, of both ends: who is called does not believe the caller. What they said is
 * good for a second.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/util.h"
#include "channel/door.h"
#include "channel/duct.h"
#include "rnic/qp.h"
#include "rnic/qp_sched.h"
#include "rnic/route.h"
#include "rnic/address.h"
#include "rnic/ud_priv.h"
#include "rnic/umem.h"

#define RECORDS      64   /* before others get their turn */
#define RECORDS_MOST 8192 /* more than a ring holds */
#define PLACES       16
#define PORTS        64
#define CALLERS      16 /* of a queue pair, who have not said what they want; the oldest goes then */
#define ACCEPTS      256 /* at a time: more than can wait */
#define DOOR_MS      100 /* no descriptor for a caller: so long nobody looks */
#define PLACE_NS     NSEC_PER_SEC
#define SHUT_NS      (100 * NSEC_PER_MSEC) /* nobody was there: UDP for a while */
/* Somebody waits for room: so often it is asked whether the peer lives, and so long a group waits for one member. */
#define LOOK_MS     20
#define PATIENCE_MS 1000

/* What the routes said of an address. */
struct place {
	bool ipv6, local, has_source;
	uint32_t scope;
	uint8_t octets[16], source[16];
	uint64_t until; /* 0: nothing is known */
};

/* What an engine has of all that. */
struct ud_roads {
	LIST_HEAD(, ud_road) all;
	LIST_HEAD(, ud_road) to[PORTS]; /* away from us, by port */
	struct {
		uint16_t port;
		uint64_t until;
	} shut[PORTS];
	struct place places[PLACES];
	uint32_t n_qps;
};

struct ud_caller {
	struct engine_io io;
	struct qp *qp;
	TAILQ_ENTRY(ud_caller) order;
};

/* ---- addresses ---- */

static void ask_routes(struct place *p)
{
	struct sockaddr_storage to = { .ss_family = p->ipv6 ? AF_INET6 : AF_INET };
	struct route route;

	address_set_octets(&to, p->octets, p->scope);
	route_look(&to, &route);
	p->local = route.local;
	p->has_source = route.source.ss_family;
	memset(p->source, 0, sizeof(p->source));
	if (p->has_source)
		memcpy(p->source, address_octets(&route.source), p->ipv6 ? 16 : 4);
}

/* Until the next look. */
static const struct place *look(struct ud_roads *all, bool ipv6, const uint8_t octets[16],
				uint32_t scope)
{
	struct place *p = &all->places[(octets[3] + octets[15] + scope) % PLACES];
	uint64_t now = clock_coarse();

	if (now < p->until && p->ipv6 == ipv6 && p->scope == scope &&
	    !memcmp(p->octets, octets, sizeof(p->octets)))
		return p;
	p->ipv6 = ipv6;
	p->scope = scope;
	memcpy(p->octets, octets, sizeof(p->octets));
	ask_routes(p);
	p->until = now + PLACE_NS;
	return p;
}

bool ud_local_is_here(struct qp *q, bool ipv6, const uint8_t octets[16])
{
	return q->engine->roads && look(q->engine->roads, ipv6, octets, 0)->local;
}

bool ud_local_way(struct qp *q, const struct ud_ah *ah, struct datagram_way *way)
{
	struct ud_roads *all = q->engine->roads;
	const struct place *p;

	if (!all)
		return false;
	*way = ah->way;
	p = look(all, way->ipv6, way->to, ah->scope);
	if (!ah->group && !p->local)
		return false;
	if (!ah->local.ss_family) {
		if (!p->has_source)
			return false;
		memcpy(way->from, p->source, sizeof(way->from));
	} else if (!look(all, way->ipv6, way->from, ah->scope)->local) {
		return false;
	}
	if (!way->hops)
		way->hops = ah->group ? 1 : q->ud->hops[way->ipv6];
	return true;
}

/* ---- what has come ---- */

static bool is_zero(const uint8_t *octets, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		if (octets[i])
			return false;
	}
	return true;
}

/* Can it be? Of datagrams only what is around them is looked at. */
static bool is_sound(const struct road_head *h, size_t size)
{
	if (h->kind >= ROAD_NKINDS || h->ipv6 > 1)
		return false;
	if (!h->ipv6 && (!is_zero(h->from + 4, 12) || !is_zero(h->to + 4, 12)))
		return false;
	if (h->kind == ROAD_JOIN || h->kind == ROAD_LEAVE)
		return size == sizeof(*h) && ud_is_number(h->qpn);
	return !h->qpn && (h->kind == ROAD_GROUP || !h->token);
}

static bool take(struct ud_road *r, const uint8_t *record, size_t size)
{
	uint8_t head[DATAGRAM_HEAD] = { 0 };
	struct datagram_way way;
	struct qp *q = r->qp;
	struct road_head h;
	struct datagram d;
	size_t len;

	if (!q || size < sizeof(h))
		return false;
	memcpy(&h, record, sizeof(h)); /* once: the peer may change it */
	if (!is_sound(&h, size))
		return false;
	if (h.kind == ROAD_JOIN || h.kind == ROAD_LEAVE) {
		ud_cast_asked(q, &h);
		return true;
	}
	len = size - sizeof(h);
	memcpy(head, record + sizeof(h), min_size(len, sizeof(head)));
	way = (struct datagram_way) { .ipv6 = h.ipv6, .hops = h.hops, .tclass = h.tclass };
	memcpy(way.from, h.from, sizeof(way.from));
	memcpy(way.to, h.to, sizeof(way.to));
	if (h.kind == ROAD_GROUP) {
		if (datagram_decode(&d, head, len) && !ud_cast_came(q, r, &h, &d))
			return true;
	} else if (!ud_local_is_here(q, way.ipv6, way.to)) {
		q->ud->drops[UD_DROP_NUMBER]++;
		return true;
	}
	if (!ud_local_is_here(q, way.ipv6, way.from)) {
		q->ud->drops[UD_DROP_NUMBER]++;
		return true;
	}
	ud_take(q, h.kind == ROAD_GROUP, head, record + sizeof(h) + DATAGRAM_HEAD, len, &way, true);
	return true;
}

static void take_records(struct ud_road *r, int most)
{
	const uint8_t *record;
	size_t size;

	for (int i = 0; i < most && !r->over && (record = duct_next(r->duct, &size)); i++) {
		if (!take(r, record, size))
			r->over = true;
		duct_done(r->duct);
		r->engine->idle_polls = 0;
	}
}

/* ---- roads ---- */

static void shut(struct ud_roads *all, uint16_t port)
{
	all->shut[port % PORTS].port = port;
	all->shut[port % PORTS].until = clock_coarse() + SHUT_NS;
}

static void free_duct(struct ud_road *r)
{
	int fd = duct_fd(r->duct);

	duct_close(r->duct);
	if (r->io.fd == fd)
		fd_release(fd);
	else /* the program had closed it, and the engine put something there */
		engine_io_close(&r->io);
}

/* There may be room for them, or there is no road any more. */
static void wake(struct ud_road *r)
{
	struct ud *last = TAILQ_LAST(&r->waiting, ud_waiters), *u;

	while ((u = TAILQ_FIRST(&r->waiting))) {
		ud_local_unwait(u);
		ud_run(u->qp);
		if (u == last)
			break;
	}
}

static void end_road(struct ud_road *r)
{
	struct ud *u;

	r->over = true;
	LIST_REMOVE(r, all);
	engine_timer_stop(r->engine, &r->look);
	engine_remove_link(r->engine, &r->poller);
	engine_forget(r->engine, &r->io);
	if (r->qp) {
		LIST_REMOVE(r, of_qp);
		ud_cast_lost(r->qp, r);
	} else {
		LIST_REMOVE(r, of_port);
		ud_cast_forget(r);
	}
	free_duct(r);
	while ((u = TAILQ_FIRST(&r->waiting))) {
		ud_local_unwait(u);
		ud_run(u->qp);
	}
	free(r);
}

/* Is there room for any datagram? If not, we are told when there is. */
static bool has_room(struct ud_road *r)
{
	size_t most = sizeof(struct road_head) + DATAGRAM_HEAD + DATAGRAM_MAX;

	return duct_begin(r->duct, most) || duct_status(r->duct) || !duct_want_room(r->duct);
}

static void take_in(struct ud_road *r)
{
	int status = duct_status(r->duct);

	/* Of who has gone there is no more than this. */
	take_records(r, status ? RECORDS_MOST : RECORDS);
	if (status || duct_status(r->duct) == -EPROTO)
		r->over = true;
	if (!r->over) {
		if (!TAILQ_EMPTY(&r->waiting) && has_room(r))
			wake(r);
		return;
	}
	log_info(rnic, "datagrams %s process %d through memory: %s", r->qp ? "from" : "to",
		 (int)r->pid, status == -EPIPE ? "it has gone" : "it broke a rule");
	if (!r->qp)
		shut(r->engine->roads, r->port);
	end_road(r);
}

static struct ud_road *road_of(struct link *poller)
{
	return container_of(poller, struct ud_road, poller);
}

static void poll_road(struct link *poller)
{
	take_in(road_of(poller));
}

static bool arm_road(struct link *poller)
{
	struct ud_road *r = road_of(poller);

	return !r->over && duct_arm(r->duct);
}

/* Only these two are asked for. */
static const struct link_ops road_ops = { .poll = poll_road, .arm = arm_road };

static void road_ready(struct engine_io *io, uint32_t events)
{
	struct ud_road *r = container_of(io, struct ud_road, io);

	(void)events;
	duct_heard(r->duct);
	take_in(r);
}

/* While somebody waits: the end of the peer may show nowhere, if a child of its has the socket. */
static void fire_look(struct engine_timer *t)
{
	struct ud_road *r = container_of(t, struct ud_road, look);

	if (TAILQ_EMPTY(&r->waiting))
		return;
	if (r->over || (r->pid > 0 && door_is_dead(r->pid))) {
		shut(r->engine->roads, r->port);
		end_road(r);
		return;
	}
	r->waited += LOOK_MS;
	engine_timer_arm(r->engine, &r->look, LOOK_MS);
	/* Who sends to a group does not wait for ever for somebody it has not chosen. */
	if (r->waited >= PATIENCE_MS && !LIST_EMPTY(&r->members)) {
		ud_cast_forget(r);
		wake(r);
	}
}

/* Takes `duct`. NULL: no memory, or epoll has none. */
static struct ud_road *add_road(struct engine *e, struct duct *duct, struct qp *q, uint16_t port,
				pid_t pid)
{
	struct ud_roads *all = e->roads;
	struct ud_road *r = calloc(1, sizeof(*r));

	if (!r) {
		duct_close(duct);
		return NULL;
	}
	*r = (struct ud_road) { .engine = e, .duct = duct, .qp = q, .port = port, .pid = pid };
	r->poller.ops = &road_ops;
	r->look.fire = fire_look;
	TAILQ_INIT(&r->waiting);
	LIST_INIT(&r->members);
	engine_io_take(&r->io, duct_fd(duct));
	r->io.ready = road_ready;
	if (engine_watch(e, &r->io, EPOLLIN)) {
		free_duct(r);
		free(r);
		return NULL;
	}
	LIST_INSERT_HEAD(&all->all, r, all);
	if (q)
		LIST_INSERT_HEAD(&q->ud->roads, r, of_qp);
	else
		LIST_INSERT_HEAD(&all->to[port % PORTS], r, of_port);
	engine_add_link(e, &r->poller);
	return r;
}

struct ud_road *ud_local_find(struct engine *e, uint16_t port)
{
	struct ud_road *r;

	LIST_FOREACH(r, &e->roads->to[port % PORTS], of_port) {
		if (r->port == port && !r->over)
			return r;
	}
	return NULL;
}

struct ud_road *ud_local_road(struct engine *e, uint16_t port)
{
	struct ud_road *r = ud_local_find(e, port);
	struct ud_roads *all = e->roads;
	struct duct *duct;
	pid_t pid = 0;

	if (r || (all->shut[port % PORTS].port == port &&
		  clock_coarse() < all->shut[port % PORTS].until))
		return r;
	if (door_call(port, &pid, &duct) == 0)
		r = add_road(e, duct, NULL, port, pid);
	if (!r)
		shut(all, port);
	return r;
}

/* ---- sending ---- */

struct road_head ud_local_head(enum road_kind kind, const struct datagram_way *way)
{
	struct road_head h = {
		.kind = (uint8_t)kind, .ipv6 = way->ipv6, .hops = way->hops, .tclass = way->tclass
	};

	memcpy(h.from, way->from, sizeof(h.from));
	memcpy(h.to, way->to, sizeof(h.to));
	return h;
}

void ud_local_unwait(struct ud *u)
{
	if (!u->waits)
		return;
	TAILQ_REMOVE(&u->waits->waiting, u, of_road);
	u->waits = NULL;
}

static void wait_for_room(struct ud_road *r, struct ud *u)
{
	if (TAILQ_EMPTY(&r->waiting)) {
		r->waited = 0;
		engine_timer_arm(r->engine, &r->look, LOOK_MS);
	}
	TAILQ_INSERT_TAIL(&r->waiting, u, of_road);
	u->waits = r;
}

static size_t size_of(const struct tx_pieces *p)
{
	size_t size = sizeof(struct road_head);

	for (uint32_t i = 0; p && i < p->n; i++)
		size += p->iov[i].iov_len;
	return size;
}

/* NULL: *rc says why. */
static uint8_t *find_room(struct ud_road *r, struct ud *u, size_t size, int *rc)
{
	uint8_t *at = r->over ? NULL : duct_begin(r->duct, size);

	if (!at && !r->over && !duct_status(r->duct)) {
		duct_flush(r->duct);
		if (!duct_want_room(r->duct))
			at = duct_begin(r->duct, size);
	}
	if (at)
		return at;
	r->over = r->over || duct_status(r->duct);
	*rc = r->over ? -ENOENT : -EBUSY;
	if (!r->over && u)
		wait_for_room(r, u);
	return NULL;
}

int ud_local_put(struct ud_road *r, struct qp *q, const struct road_head *h,
		 const struct tx_pieces *p)
{
	size_t size = size_of(p);
	int rc = 0;
	uint8_t *at = find_room(r, p ? q->ud : NULL, size, &rc);

	if (!at)
		return rc;
	memcpy(at, h, sizeof(*h));
	at += sizeof(*h);
	for (uint32_t i = 0; p && i < p->n; at += p->iov[i++].iov_len) {
		if (i == 0) /* the header, which is ours */
			memcpy(at, p->iov[0].iov_base, p->iov[0].iov_len);
		else if (umem_read(at, p->iov[i].iov_base, p->iov[i].iov_len))
			return -EFAULT;
	}
	duct_post(r->duct, size);
	if (p)
		q->ud->local_sent++;
	return 0;
}

void ud_local_flush(struct ud_road *r)
{
	duct_flush(r->duct);
}

/* ---- the door ---- */

static void free_caller(struct ud *u, struct ud_caller *c)
{
	engine_forget(u->qp->engine, &c->io);
	TAILQ_REMOVE(&u->callers, c, order);
	u->n_callers--;
	free(c);
}

/* Has it said what it wants? */
static void answer(struct ud_caller *c)
{
	struct qp *q = c->qp;
	struct duct *duct = NULL;
	int fd = c->io.fd, rc;

	if (!engine_io_is_ours(&c->io)) { /* the program has closed it */
		fd_release(fd);
		free_caller(q->ud, c);
		return;
	}
	rc = door_answer(fd, &duct);
	if (rc == -EAGAIN)
		return;
	fd_release(fd);
	free_caller(q->ud, c);
	if (rc == 0)
		add_road(q->engine, duct, q, 0, 0);
}

static void caller_ready(struct engine_io *io, uint32_t events)
{
	(void)events;
	answer(container_of(io, struct ud_caller, io));
}

static void drop_caller(struct ud *u, struct ud_caller *c)
{
	engine_forget(u->qp->engine, &c->io);
	engine_io_close(&c->io);
	free_caller(u, c);
}

static void add_caller(struct qp *q, int fd)
{
	struct ud_caller *c = calloc(1, sizeof(*c));
	struct ud *u = q->ud;

	if (!c) {
		close(fd);
		return;
	}
	if (u->n_callers == CALLERS)
		drop_caller(u, TAILQ_FIRST(&u->callers));
	c->qp = q;
	c->io.ready = caller_ready;
	engine_io_take(&c->io, fd);
	TAILQ_INSERT_TAIL(&u->callers, c, order);
	u->n_callers++;
	if (engine_watch(q->engine, &c->io, EPOLLIN))
		drop_caller(u, c);
	else
		answer(c);
}

static void accept_all(struct qp *q)
{
	struct ud *u = q->ud;

	for (int i = 0; i < ACCEPTS && engine_io_is_ours(&u->door); i++) {
		int fd = door_accept(u->door.fd);

		if (fd == -EAGAIN)
			return;
		if (fd >= 0) {
			add_caller(q, fd);
			continue;
		}
		/* There is no room for it: it waits outside. Or the program has closed the door. */
		engine_watch(q->engine, &u->door, 0);
		if (fd != -EINVAL)
			engine_timer_arm(q->engine, &u->door_again, DOOR_MS);
		return;
	}
}

static void door_ready(struct engine_io *io, uint32_t events)
{
	(void)events;
	accept_all(container_of(io, struct ud, door)->qp);
}

static void fire_door(struct engine_timer *t)
{
	struct ud *u = container_of(t, struct ud, door_again);

	if (engine_watch(u->qp->engine, &u->door, EPOLLIN))
		engine_timer_arm(u->qp->engine, t, DOOR_MS);
}

void ud_local_drain(struct qp *q, struct ud_road *r)
{
	struct ud_caller *c, *next;

	if (r) {
		take_records(r, RECORDS_MOST);
		return;
	}
	accept_all(q);
	TAILQ_FOREACH_SAFE(c, &q->ud->callers, order, next)
		answer(c);
	LIST_FOREACH(r, &q->ud->roads, of_qp)
		take_records(r, RECORDS_MOST);
}

/* ---- life ---- */

void ud_local_open(struct qp *q, int door)
{
	struct ud *u = q->ud;
	struct engine *e = q->engine;

	if (!e->roads)
		e->roads = calloc(1, sizeof(*e->roads));
	if (!e->roads) {
		if (door >= 0)
			close(door);
		return;
	}
	e->roads->n_qps++;
	u->door_again.fire = fire_door;
	if (door < 0)
		return;
	engine_io_take(&u->door, door);
	u->door.ready = door_ready;
	if (engine_watch(e, &u->door, EPOLLIN))
		engine_io_close(&u->door);
}

void ud_local_close(struct qp *q)
{
	struct ud_roads *all = q->engine->roads;
	struct ud *u = q->ud;
	struct ud_road *r;

	ud_local_unwait(u);
	ud_cast_close(u);
	engine_timer_stop(q->engine, &u->door_again);
	if (u->door.fd >= 0) {
		engine_forget(q->engine, &u->door);
		engine_io_close(&u->door);
	}
	while (!TAILQ_EMPTY(&u->callers))
		drop_caller(u, TAILQ_FIRST(&u->callers));
	while ((r = LIST_FIRST(&u->roads)))
		end_road(r);
	if (!all || --all->n_qps)
		return;
	while ((r = LIST_FIRST(&all->all)))
		end_road(r);
}

/* The engine still knows their descriptors. */
void ud_local_abandon(struct ud *u)
{
	struct ud_caller *c;

	u->door_again.at = 0;
	if (u->door.fd >= 0)
		engine_io_close(&u->door);
	TAILQ_FOREACH(c, &u->callers, order)
		engine_io_close(&c->io);
}

void ud_local_fini(struct engine *e)
{
	free(e->roads);
	e->roads = NULL;
}

void ud_local_fork_child(struct engine *e)
{
	struct ud_roads *all = e->roads;
	struct ud_road *r;
	struct ud *u;

	if (!all)
		return;
	while ((r = LIST_FIRST(&all->all))) {
		LIST_REMOVE(r, all);
		if (r->qp) {
			LIST_REMOVE(r, of_qp);
			ud_cast_lost(r->qp, r);
		} else {
			ud_cast_forget(r);
		}
		while ((u = TAILQ_FIRST(&r->waiting)))
			ud_local_unwait(u);
		duct_forked(r->duct);
		free_duct(r);
		free(r);
	}
	free(all);
	e->roads = NULL;
}
