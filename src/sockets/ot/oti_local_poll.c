/* SPDX-License-Identifier: MIT */
/*
 * Looking at slots that have news, and telling. What follows from the peer's phase word is a
 * table; a word that cannot be there, or of another generation, breaks the connection.
 */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/util.h"
#include "sockets/ot/oti_local_priv.h"

enum reaction {
	BAD = 0,
	STAY,
	ACCEPTED, /* the answer is there */
	REFUSED,
	UP,
	DATA,
	LAST, /* data, then the orderly end */
	LOST, /* data, then the other */
};

/* clang-format off */
static const uint8_t reactions[CONN_NSTATES][PHASE_N] = {
	[CONN_ASKING] = {
		[PHASE_NONE] = STAY, [PHASE_ACCEPT] = ACCEPTED, [PHASE_DOWN] = ACCEPTED,
		[PHASE_REJECT] = REFUSED, [PHASE_CUT] = LOST, [PHASE_DEAD] = LOST,
		[PHASE_GONE] = LOST,
	},
	/* Whether it is still wanted is looked at when it is accepted. */
	[CONN_ASKED] = {
		[PHASE_ASK] = STAY, [PHASE_CUT] = STAY, [PHASE_DEAD] = STAY, [PHASE_NONE] = STAY,
		[PHASE_ACCEPT] = STAY, [PHASE_REJECT] = STAY, [PHASE_LIVE] = STAY,
		[PHASE_DOWN] = STAY, [PHASE_GONE] = STAY,
	},
	/* Messages wait until it is confirmed. */
	[CONN_ACCEPTED] = {
		[PHASE_ACCEPT] = STAY, [PHASE_DOWN] = STAY, [PHASE_GONE] = STAY,
		[PHASE_CUT] = LOST, [PHASE_DEAD] = LOST,
	},
	[CONN_CONFIRMED] = {
		[PHASE_ACCEPT] = UP, [PHASE_DOWN] = UP, [PHASE_GONE] = UP,
		[PHASE_CUT] = LOST, [PHASE_DEAD] = LOST,
	},
	[CONN_ACCEPTING] = {
		[PHASE_ASK] = STAY, [PHASE_LIVE] = UP, [PHASE_DOWN] = UP, [PHASE_GONE] = UP,
		[PHASE_CUT] = LOST, [PHASE_DEAD] = LOST,
	},
	[CONN_UP] = {
		[PHASE_ACCEPT] = DATA, [PHASE_LIVE] = DATA, [PHASE_DOWN] = LAST,
		[PHASE_GONE] = LAST, [PHASE_CUT] = LOST, [PHASE_DEAD] = LOST,
	},
	/* Closed before it was confirmed: ASK. */
	[CONN_CLOSING] = {
		[PHASE_ACCEPT] = DATA, [PHASE_LIVE] = DATA, [PHASE_ASK] = STAY,
		[PHASE_DOWN] = LAST, [PHASE_GONE] = LAST, [PHASE_CUT] = LOST,
		[PHASE_DEAD] = LOST,
	},
};
/* clang-format on */

static enum reaction react(const struct local_conn *c)
{
	uint32_t word = atomic_load_explicit(&c->peer->phase, memory_order_acquire);
	uint32_t phase = word & 0xff;

	if (c->broken)
		return BAD;
	if (word >> 8 != c->generation)
		return c->state == CONN_ASKING || c->state == CONN_ASKED ? STAY : BAD;
	return phase < PHASE_N ? reactions[c->state][phase] : BAD;
}

/* ---- one thing to tell; the connection's lock is held ---- */

static void tell_down(struct local_conn *c, struct local_event *ev, enum oti_down how)
{
	ev->news = NEWS_DOWN;
	ev->how = how;
	if (how == OTI_DOWN_LOST) {
		c->in_order = false;
		local_setup_say(c, PHASE_CUT);
	} else if (!c->in_order) {
		c->in_order = true;
		local_setup_say(c, PHASE_DOWN);
	}
	c->state = CONN_OVER;
}

static void tell_failed(struct local_conn *c, struct local_event *ev, int error)
{
	ev->news = NEWS_FAILED;
	ev->error = error;
	if (error == ECONNREFUSED) {
		ev->code = atomic_load_explicit(&c->peer->reject_code, memory_order_relaxed);
		ev->len = local_setup_private(c, ev->data);
	}
	local_setup_say(c, PHASE_CUT);
	c->state = CONN_OVER;
}

static void tell_end(struct local_conn *c, struct local_event *ev)
{
	if (c->state == CONN_ASKING)
		tell_failed(c, ev, c->broken ? EPROTO : ECONNRESET);
	else
		tell_down(c, ev, OTI_DOWN_LOST);
}

static void tell_accepted(struct local_conn *c, struct local_event *ev)
{
	if (local_setup_accepted(c)) {
		tell_failed(c, ev, EPROTO);
		return;
	}
	ev->news = NEWS_ACCEPTED;
	ev->len = local_setup_private(c, ev->data);
	c->state = CONN_ACCEPTED;
}

static void look_data(struct local_conn *c, struct local_event *ev, enum reaction r)
{
	ev->rx = local_ring_next(c);
	if (ev->rx)
		ev->news = NEWS_MESSAGE;
	else if (c->broken || r == LOST)
		tell_end(c, ev);
	else if (r == LAST)
		tell_down(c, ev, c->state == CONN_CLOSING ? OTI_DOWN_OWN : OTI_DOWN_PEER);
	if (ev->news || !c->starved)
		return;
	local_ring_reclaim(c);
	if (c->broken) {
		tell_end(c, ev);
	} else if (c->n_free) {
		c->starved = false;
		ev->news = NEWS_ROOM;
	}
}

static void look(struct local_conn *c, struct local_event *ev)
{
	enum reaction r = react(c);

	switch (r) {
	case STAY: break;
	case ACCEPTED: tell_accepted(c, ev); break;
	case REFUSED: tell_failed(c, ev, ECONNREFUSED); break;
	case UP:
		c->state = CONN_UP;
		ev->news = NEWS_UP;
		break;
	case LOST:
		/* Before it is confirmed there are no messages. */
		if (c->state != CONN_UP && c->state != CONN_CLOSING) {
			tell_end(c, ev);
			break;
		}
		look_data(c, ev, r);
		break;
	case DATA:
	case LAST: look_data(c, ev, r); break;
	default:
		c->broken = true;
		tell_end(c, ev);
		break;
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
		struct local_event ev;

		ev.news = NEWS_NONE;
		ev.code = 0;
		ev.len = 0;
		lock_take(&c->lock);
		if (c->state != CONN_FREE && c->state != CONN_OVER) {
			look(c, &ev);
			lock_give(&c->lock);
		} else {
			bool is_free = c->state == CONN_FREE;

			lock_give(&c->lock);
			if (is_free)
				local_setup_answer(c, &ev);
		}
		if (!ev.news) {
			*more = false;
			return n;
		}
		tell(c, &ev);
	}
	*more = true;
	return n;
}

static void collect(struct local *l)
{
	struct local_bell *bell = &l->header->bells[l->side];

	for (uint32_t w = 0; w * 64 < l->geo.slots; w++)
		if (atomic_load_explicit(&bell->news[w], memory_order_relaxed))
			l->pending[w] |= atomic_exchange(&bell->news[w], 0);
}

static bool is_pending(const struct local *l)
{
	const struct local_bell *bell = &l->header->bells[l->side];

	for (uint32_t w = 0; w * 64 < l->geo.slots; w++)
		if (l->pending[w] || atomic_load(&bell->news[w]))
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
			/* To the last slot of this word, or of the region. */
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

	return (int)drive(to_conn(conn), budget, &more);
}

int local_wait(struct oti *o, int timeout_ms)
{
	struct local *l = to_local(o);
	struct local_bell *bell = &l->header->bells[l->side];
	struct timespec limit = { .tv_sec = timeout_ms / 1000,
				  .tv_nsec = timeout_ms % 1000 * 1000000l };
	uint32_t rung = atomic_load(&bell->rung);
	long rc = 0;

	atomic_store(&bell->asleep, 1);
	if (!is_pending(l))
		rc = syscall(SYS_futex, &bell->rung, FUTEX_WAIT, rung,
			     timeout_ms < 0 ? NULL : &limit, NULL, 0);
	if (rc && errno != EAGAIN)
		rc = -errno;
	else
		rc = 0;
	atomic_store(&bell->asleep, 0);
	return rc == -ETIMEDOUT && is_pending(l) ? 0 : (int)rc;
}
