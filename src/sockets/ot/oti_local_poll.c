/* SPDX-License-Identifier: MIT */
/* Looking at connections that have news, and telling. */
#include <errno.h>
#include <time.h>

#include "base/clock.h"
#include "base/util.h"
#include "sockets/ot/oti_local_priv.h"

/* Circuits that are told of at a time. */
#define EVENTS 64

/* The peer has left without an orderly end. */
static bool is_cut(const struct local_conn *c)
{
	return c->broken ||
	       (c->heard & TRUNK_ENDED && (c->code != CODE_DONE || !(c->heard & TRUNK_SHUT)));
}

/* ---- one thing to tell; the connection's lock is held ---- */

static void tell_down(struct local_conn *c, struct local_event *ev, enum oti_down how)
{
	ev->news = NEWS_DOWN;
	ev->how = how;
	if (how != OTI_DOWN_LOST && c->state != CONN_CLOSING)
		(void)trunk_shut(trunk_of(c), c->circuit);
	local_setup_over(c, how == OTI_DOWN_LOST ? CODE_CUT : CODE_DONE);
}

static void tell_failed(struct local_conn *c, struct local_event *ev, int error)
{
	ev->news = NEWS_FAILED;
	ev->error = error;
	local_setup_over(c, CODE_CUT);
}

static void tell_answer(struct local_conn *c, struct local_event *ev)
{
	bool sound = local_setup_greeting(c);

	ev->data = c->greeting.private_data;
	ev->len = c->greeting.private_len;
	if (c->heard & TRUNK_REFUSED) {
		ev->code = sound ? c->greeting.code : 0;
		tell_failed(c, ev, ECONNREFUSED);
	} else if (!sound || local_buf_terms(c)) {
		ev->len = 0;
		tell_failed(c, ev, EPROTO);
	} else {
		ev->news = NEWS_ACCEPTED;
		c->state = CONN_ACCEPTED;
	}
}

static void look_asking(struct local_conn *c, struct local_event *ev)
{
	bool bad = c->broken || trunk_status(trunk_of(c)) == -EPROTO;

	if (!bad && c->heard & (TRUNK_ACCEPTED | TRUNK_REFUSED))
		tell_answer(c, ev);
	else if (bad || c->heard & TRUNK_ENDED)
		tell_failed(c, ev, bad ? EPROTO : ECONNRESET);
}

/* The other side, until it is confirmed: that comes before all messages. */
static void look_accepting(struct local_conn *c, struct local_event *ev)
{
	struct trunk_block b;
	int rc = c->broken ? -EPROTO : local_setup_pay(c);

	if (rc == 0)
		rc = trunk_take(trunk_of(c), c->circuit, &b);
	if (rc == -EAGAIN)
		return;
	if (rc == 1)
		trunk_give(trunk_of(c), b.index);
	if (rc != 1 || b.kind != KIND_CONFIRM) {
		tell_down(c, ev, OTI_DOWN_LOST);
		return;
	}
	c->state = CONN_UP;
	ev->news = NEWS_UP;
}

static void take_message(struct local_conn *c, struct local_event *ev, const struct trunk_block *b)
{
	ev->rx = local_buf_received(c, b);
	if (ev->rx) {
		ev->news = NEWS_MESSAGE;
		return;
	}
	trunk_give(trunk_of(c), b->index);
	/* Closed by us before it was confirmed. */
	if (c->state == CONN_CLOSING && b->kind == KIND_CONFIRM)
		local_note(to_local(c->base.oti), c->slot);
	else
		tell_down(c, ev, OTI_DOWN_LOST);
}

static void look_data(struct local_conn *c, struct local_event *ev)
{
	struct trunk_block b;
	int rc = c->broken ? -EPROTO : trunk_take(trunk_of(c), c->circuit, &b);

	if (rc == 1) {
		take_message(c, ev, &b);
	} else if (rc == 0) {
		tell_down(c, ev, c->state == CONN_CLOSING ? OTI_DOWN_OWN : OTI_DOWN_PEER);
	} else if (rc != -EAGAIN) {
		tell_down(c, ev, OTI_DOWN_LOST);
	} else if (c->starved && local_buf_room(c)) {
		c->starved = false;
		ev->news = NEWS_ROOM;
	}
}

/* The beginner: messages can go behind the confirmation. */
static void look_confirmed(struct local_conn *c, struct local_event *ev)
{
	if (is_cut(c)) {
		tell_down(c, ev, OTI_DOWN_LOST);
		return;
	}
	/* If the peer has left `down` tells of it. */
	if (local_setup_pay(c) == -EAGAIN)
		return;
	c->state = CONN_UP;
	ev->news = NEWS_UP;
}

static void look(struct local_conn *c, struct local_event *ev)
{
	switch (c->state) {
	case CONN_NEW:
		c->state = CONN_ASKED;
		ev->news = NEWS_REQUEST;
		ev->listener = c->listener;
		break;
	case CONN_ASKING: look_asking(c, ev); break;
	case CONN_ACCEPTED:
		if (is_cut(c))
			tell_down(c, ev, OTI_DOWN_LOST);
		break;
	case CONN_CONFIRMED: look_confirmed(c, ev); break;
	case CONN_ACCEPTING: look_accepting(c, ev); break;
	case CONN_UP:
	case CONN_CLOSING: look_data(c, ev); break;
	/* Whether a request is still wanted is looked at when it is accepted. */
	default: break;
	}
}

/* ---- telling ---- */

static void tell(struct local_conn *c, struct local_event *ev)
{
	const struct oti_upcalls *up = c->base.upcalls;
	struct oti_conn *conn = &c->base;

	switch (ev->news) {
	case NEWS_REQUEST:
		ev->listener->base.on_request(&ev->listener->base, &c->req,
					      ev->listener->base.user);
		break;
	case NEWS_ACCEPTED: up->accepted(conn, ev->data, ev->len); break;
	case NEWS_FAILED: up->failed(conn, ev->error, ev->code, ev->data, ev->len); break;
	case NEWS_UP: up->up(conn); break;
	case NEWS_MESSAGE: up->received(conn, ev->rx); break;
	case NEWS_ROOM: up->room(conn); break;
	default: up->down(conn, ev->how); break;
	}
}

/* Returns the number of up-calls; *more when the budget was used up. */
static unsigned drive(struct local_conn *c, unsigned budget, bool *more)
{
	unsigned n;

	for (n = 0; n < budget; n++) {
		struct local_event ev = { .news = NEWS_NONE };

		lock_take(&c->lock);
		look(c, &ev);
		lock_give(&c->lock);
		if (!ev.news) {
			*more = false;
			return n;
		}
		tell(c, &ev);
	}
	*more = true;
	return n;
}

/* ---- what the trunk tells ---- */

static void hear(struct local *l, const struct trunk_event *ev)
{
	struct local_conn *c = ev->user;

	if (ev->bits & TRUNK_OPENED) {
		local_setup_asked(l, ev->circuit);
		c = trunk_user(l->trunk, ev->circuit);
	}
	if (!c)
		return;
	lock_take(&c->lock);
	if (c->circuit == ev->circuit) {
		c->heard |= ev->bits;
		if (ev->bits & TRUNK_ENDED)
			c->code = ev->code;
	}
	lock_give(&c->lock);
	local_note(l, c->slot);
}

/* Any thread. */
static void hear_all(struct local *l)
{
	struct trunk_event events[EVENTS];
	int n;

	do {
		n = trunk_poll(l->trunk, events, EVENTS);
		for (int i = 0; i < n; i++)
			hear(l, &events[i]);
	} while (n == EVENTS);
}

static void collect(struct local *l)
{
	hear_all(l);
	for (uint32_t w = 0; w * 64 < l->geo.slots; w++)
		if (atomic_load_explicit(&l->notes[w], memory_order_relaxed))
			l->pending[w] |= atomic_exchange(&l->notes[w], 0);
}

static bool is_pending(const struct local *l)
{
	for (uint32_t w = 0; w * 64 < l->geo.slots; w++)
		if (l->pending[w] || atomic_load(&l->notes[w]))
			return true;
	return false;
}

int local_poll(struct oti *o, unsigned budget)
{
	struct local *l = to_local(o);
	uint32_t first = l->next_slot;
	unsigned n = 0;

	collect(l);
	for (uint32_t i = 0; i < l->geo.slots && n < budget; i++) {
		uint32_t slot = (first + i) % l->geo.slots;
		uint64_t bit = 1ull << slot % 64;
		bool more;

		if (l->pending[slot / 64] == 0) {
			/* To the last slot of this word, or of all. */
			i += min_u32(63 - slot % 64, l->geo.slots - 1 - slot);
			continue;
		}
		if (!(l->pending[slot / 64] & bit))
			continue;
		l->pending[slot / 64] &= ~bit;
		n += drive(&l->conns[slot], budget - n, &more);
		if (more)
			l->pending[slot / 64] |= bit;
		/* Another one comes first next time. */
		l->next_slot = (slot + 1) % l->geo.slots;
	}
	return (int)n;
}

int local_poll_conn(struct oti_conn *conn, unsigned budget)
{
	bool more;

	/* Its news may stand behind that of others. */
	hear_all(to_local(conn->oti));
	return (int)drive(to_conn(conn), budget, &more);
}

/* The trunk is over, and nothing more will come. */
static int sleep_for(int timeout_ms)
{
	const struct timespec limit = { .tv_sec = timeout_ms < 0 ? 1 : timeout_ms / 1000,
					.tv_nsec = timeout_ms < 0 ? 0
								  : timeout_ms % 1000 * 1000000l };

	return nanosleep(&limit, NULL) ? -errno : -ETIMEDOUT;
}

int local_wait(struct oti *o, int timeout_ms)
{
	struct local *l = to_local(o);
	uint64_t end = clock_now() + (uint64_t)(timeout_ms > 0 ? timeout_ms : 0) * NSEC_PER_MSEC;
	int rc;

	for (;;) {
		if (is_pending(l))
			return 0;
		if (trunk_status(l->trunk))
			return sleep_for(timeout_ms);
		rc = trunk_wait(l->trunk, timeout_ms);
		if (rc)
			return rc;
		/* What came may be blocks that nobody waits for. */
		collect(l);
		if (timeout_ms >= 0) {
			uint64_t now = clock_now();

			timeout_ms = now < end ? (int)((end - now) / NSEC_PER_MSEC) : 0;
		}
	}
}
