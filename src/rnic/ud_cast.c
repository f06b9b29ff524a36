/* SPDX-License-Identifier: MIT */
/*
 * Groups on one host. A Send to a group goes out by UDP, once, for members everywhere; the kernel gives it to those of this host as well. A
 * member that gets one of a sender on its own host asks that sender (JOIN) to send it the following ones through memory, too, and
 * then lets go of what comes by UDP and has come that way.
 *
 * How it knows: datagrams of one queue pair from one address to one group have numbers, from 1 to 65535 and around. What is sent
 * through memory is in the ring before it goes to UDP, so who gets a number by UDP and has emptied the ring has had it by then, or will never.
 * Of the numbers that came that way the last one is kept, and how many before it came in a row; what has gone by UDP alone before
 * that is not among them, and is delivered however late it comes.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/util.h"
#include "rnic/address.h"
#include "rnic/qp.h"
#include "rnic/ud_priv.h"

#define NUMBERS      65535u
#define ROW_MOST     (NUMBERS / 2)
#define MEMBERS_MOST 256 /* of a group, through memory; others have UDP */
#define SUBS_MOST    256 /* senders of a group that are asked */
#define ASK_NS       (10 * NSEC_PER_MSEC)

/* A group that we send to, from one address. */
struct ud_cast {
	struct datagram_way way; /* of which the addresses count */
	uint16_t number;         /* of the next one */
	bool begun;              /* some members have it */
	bool fresh;              /* nothing was sent yet */
	LIST_HEAD(, ud_member) members;
	uint32_t n_members;
	LIST_ENTRY(ud_cast) all;
};

/* Who has asked us. */
struct ud_member {
	struct ud_cast *cast;
	uint32_t qpn;
	uint64_t token;
	struct ud_road *road; /* NULL: not yet */
	uint16_t done;        /* the last number it was given */
	LIST_ENTRY(ud_member) of_cast, of_road;
};

/* Whom we have asked. */
struct ud_sub {
	uint32_t qpn;
	bool ipv6;
	uint8_t from[16];
	uint64_t token;
	uint64_t asked;             /* when */
	const struct ud_road *road; /* by which it comes; NULL: it has not */
	uint16_t last;
	uint32_t row; /* so many up to the last one came in a row */
	LIST_ENTRY(ud_sub) all;
};

static uint16_t next_number(uint16_t n)
{
	return n == NUMBERS ? 1 : (uint16_t)(n + 1);
}

static uint64_t new_token(void)
{
	static _Atomic uint64_t count;
	uint64_t token;

	/* Others shall not guess it; where there is no chance, they are of our user, and could do worse. */
	if (getrandom(&token, sizeof(token), GRND_NONBLOCK) != (ssize_t)sizeof(token))
		token = clock_now();
	return token + ++count;
}

/* ---- who sends ---- */

static struct ud_cast *find_cast(struct ud *u, bool ipv6, const uint8_t *from, const uint8_t *to)
{
	struct ud_cast *c;

	LIST_FOREACH(c, &u->casts, all) {
		if (c->way.ipv6 == ipv6 && !memcmp(c->way.from, from, sizeof(c->way.from)) &&
		    !memcmp(c->way.to, to, sizeof(c->way.to)))
			return c;
	}
	return NULL;
}

struct ud_cast *ud_cast_of(struct qp *q, const struct ud_ah *ah)
{
	struct datagram_way way;
	struct ud_cast *c;

	if (!ah->group || !ud_local_way(q, ah, &way))
		return NULL;
	c = find_cast(q->ud, way.ipv6, way.from, way.to);
	if (c)
		return c;
	c = calloc(1, sizeof(*c));
	if (!c)
		return NULL;
	c->way = way;
	c->fresh = true;
	/* One that had our number before us may have sent to the same group. */
	c->number = (uint16_t)(new_token() % NUMBERS + 1);
	LIST_INIT(&c->members);
	LIST_INSERT_HEAD(&q->ud->casts, c, all);
	return c;
}

uint16_t ud_cast_number(const struct ud_cast *c)
{
	return c->number;
}

static void drop_member(struct ud_member *m)
{
	if (m->road)
		LIST_REMOVE(m, of_road);
	LIST_REMOVE(m, of_cast);
	m->cast->n_members--;
	free(m);
}

static bool find_road(struct ud_member *m, struct qp *q)
{
	if (m->road)
		return !m->road->over;
	m->road = ud_local_road(q->engine, ud_port(m->qpn));
	if (m->road)
		LIST_INSERT_HEAD(&m->road->members, m, of_road);
	return m->road;
}

int ud_cast_put(struct ud_cast *c, struct qp *q, const struct ud_ah *ah, const struct tx_pieces *p)
{
	struct ud_member *m, *next;
	struct datagram_way way = c->way;
	struct road_head h;
	int rc;

	way.hops = ah->way.hops ? ah->way.hops : c->way.hops;
	way.tclass = ah->way.tclass;
	h = ud_local_head(ROAD_GROUP, &way);
	LIST_FOREACH_SAFE(m, &c->members, of_cast, next) {
		if (m->done == c->number)
			continue;
		h.token = m->token;
		rc = find_road(m, q) ? ud_local_put(m->road, q, &h, p) : -ENOENT;
		if (rc == -ENOENT) {
			drop_member(m); /* what comes to it by UDP makes it ask again */
			continue;
		}
		if (rc)
			return rc;
		ud_local_flush(m->road);
		m->done = c->number;
		c->begun = true;
	}
	return 0;
}

bool ud_cast_step(struct ud_cast *c)
{
	bool fresh = c->fresh;

	c->number = next_number(c->number);
	c->begun = c->fresh = false;
	return fresh;
}

void ud_cast_reset(struct ud *u)
{
	struct ud_cast *c;

	LIST_FOREACH(c, &u->casts, all) {
		if (c->begun)
			ud_cast_step(c);
	}
}

void ud_cast_close(struct ud *u)
{
	struct ud_cast *c;

	while ((c = LIST_FIRST(&u->casts))) {
		while (!LIST_EMPTY(&c->members))
			drop_member(LIST_FIRST(&c->members));
		LIST_REMOVE(c, all);
		free(c);
	}
}

void ud_cast_forget(struct ud_road *road)
{
	while (!LIST_EMPTY(&road->members))
		drop_member(LIST_FIRST(&road->members));
}

static void add_member(struct ud_cast *c, uint32_t qpn, uint64_t token)
{
	struct ud_member *m = c->n_members < MEMBERS_MOST ? calloc(1, sizeof(*m)) : NULL;

	if (!m)
		return;
	m->cast = c;
	m->qpn = qpn;
	m->token = token;
	/* One that is half out is still to come to it by UDP. */
	m->done = c->begun ? c->number : 0;
	LIST_INSERT_HEAD(&c->members, m, of_cast);
	c->n_members++;
}

void ud_cast_asked(struct qp *q, const struct road_head *h)
{
	struct ud_cast *c = find_cast(q->ud, h->ipv6, h->from, h->to);
	struct ud_member *m = NULL;

	if (!c)
		return;
	LIST_FOREACH(m, &c->members, of_cast) {
		if (m->qpn == h->qpn)
			break;
	}
	if (h->kind == ROAD_LEAVE) {
		if (m && m->token == h->token)
			drop_member(m);
	} else if (m) {
		m->token = h->token; /* it, or another one that has its number now */
	} else {
		add_member(c, h->qpn, h->token);
	}
}

/* ---- who receives ---- */

static struct ud_sub *find_sub(const struct ud_socket *s, uint32_t qpn,
			       const struct datagram_way *way)
{
	struct ud_sub *sub;

	LIST_FOREACH(sub, &s->subs, all) {
		if (sub->qpn == qpn && sub->ipv6 == way->ipv6 &&
		    !memcmp(sub->from, way->from, sizeof(sub->from)))
			return sub;
	}
	return NULL;
}

static struct ud_sub *add_sub(struct ud_socket *s, uint32_t qpn, const struct datagram_way *way)
{
	struct ud_sub *sub = s->n_subs < SUBS_MOST ? calloc(1, sizeof(*sub)) : NULL;

	if (!sub)
		return NULL;
	sub->qpn = qpn;
	sub->ipv6 = way->ipv6;
	memcpy(sub->from, way->from, sizeof(sub->from));
	sub->token = new_token();
	LIST_INSERT_HEAD(&s->subs, sub, all);
	s->n_subs++;
	return sub;
}

static struct road_head head_for(const struct ud_socket *s, const struct ud_sub *sub,
				 enum road_kind kind)
{
	struct datagram_way way = { .ipv6 = sub->ipv6 };
	struct road_head h;

	memcpy(way.from, sub->from, sizeof(way.from));
	memcpy(way.to, address_octets(&s->group), way.ipv6 ? 16 : 4);
	h = ud_local_head(kind, &way);
	h.qpn = s->qp->qpn;
	h.token = sub->token;
	return h;
}

static void ask(struct ud_socket *s, struct ud_sub *sub)
{
	struct road_head h = head_for(s, sub, ROAD_JOIN);
	uint64_t now = clock_coarse();
	struct ud_road *r;

	if (sub->asked && now - sub->asked < ASK_NS)
		return;
	sub->asked = now;
	r = ud_local_road(s->qp->engine, ud_port(sub->qpn));
	/* If there is no room it is asked at the next one. */
	if (r && ud_local_put(r, s->qp, &h, NULL) == 0)
		ud_local_flush(r);
}

static bool had(const struct ud_sub *sub, uint16_t number)
{
	return sub->row && (sub->last + NUMBERS - number) % NUMBERS < sub->row;
}

bool ud_cast_has(struct ud_socket *s, const struct datagram *d, const struct datagram_way *way)
{
	struct qp *q = s->qp;
	struct ud_sub *sub;

	/* Without a door we cannot be answered. */
	if (!d->number || !ud_is_number(d->from) || q->ud->door.fd < 0 || !q->engine->roads ||
	    !ud_local_is_here(q, way->ipv6, way->from))
		return false;
	sub = find_sub(s, d->from, way);
	if (!sub) {
		sub = add_sub(s, d->from, way);
		if (sub)
			ask(s, sub);
		return false;
	}
	if (!had(sub, d->number))
		ud_local_drain(q, (struct ud_road *)sub->road);
	if (had(sub, d->number))
		return true;
	ask(s, sub);
	return false;
}

static struct ud_sub *sub_with(struct qp *q, const struct road_head *h, struct ud_socket **of)
{
	struct ud_sub *sub;

	LIST_FOREACH(*of, &q->ud->groups, all) {
		LIST_FOREACH(sub, &(*of)->subs, all) {
			if (sub->token == h->token)
				return sub;
		}
	}
	return NULL;
}

/* We have not asked for it, or not any more. */
static void refuse(struct qp *q, const struct road_head *h, uint32_t qpn)
{
	struct ud_road *r = ud_is_number(qpn) ? ud_local_find(q->engine, ud_port(qpn)) : NULL;
	struct road_head answer = *h;

	answer.kind = ROAD_LEAVE;
	answer.hops = answer.tclass = 0;
	answer.qpn = q->qpn;
	if (r && ud_local_put(r, q, &answer, NULL) == 0)
		ud_local_flush(r);
}

bool ud_cast_came(struct qp *q, struct ud_road *road, const struct road_head *h,
		  const struct datagram *d)
{
	struct ud_socket *s;
	struct ud_sub *sub = sub_with(q, h, &s);

	if (!sub || !d->number || d->from != sub->qpn || h->ipv6 != sub->ipv6 ||
	    memcmp(h->from, sub->from, sizeof(sub->from)) ||
	    memcmp(h->to, address_octets(&s->group), h->ipv6 ? 16 : 4)) {
		refuse(q, h, d->from);
		return false;
	}
	/* Who sends a number twice deceives itself alone. */
	if (sub->row && d->number == next_number(sub->last))
		sub->row = min_u32(sub->row + 1, ROW_MOST);
	else
		sub->row = 1;
	sub->last = d->number;
	sub->road = road;
	return true;
}

void ud_cast_lost(struct qp *q, const struct ud_road *road)
{
	struct ud_socket *s;
	struct ud_sub *sub;

	LIST_FOREACH(s, &q->ud->groups, all) {
		LIST_FOREACH(sub, &s->subs, all) {
			if (sub->road == road)
				sub->road = NULL;
		}
	}
}

void ud_cast_left(struct qp *q, struct ud_socket *s)
{
	struct ud_road *r;
	struct ud_sub *sub;

	while ((sub = LIST_FIRST(&s->subs))) {
		struct road_head h = head_for(s, sub, ROAD_LEAVE);

		r = q->engine->roads ? ud_local_find(q->engine, ud_port(sub->qpn)) : NULL;
		/* Else it is told when something comes. */
		if (r && ud_local_put(r, q, &h, NULL) == 0)
			ud_local_flush(r);
		LIST_REMOVE(sub, all);
		s->n_subs--;
		free(sub);
	}
}
