/* SPDX-License-Identifier: MIT */
/*
 * Waiting on an epoll set: lanes first, then the kernel. Any number of threads may wait for one set. Who looks at
 * lanes has the set's lock; who sleeps in the kernel has not. While some sleep, others that go away with events leave
 * nothing unarmed behind: what comes next must wake a sleeper.
 */
#include <errno.h>
#include <signal.h>

#include "base/clock.h"
#include "base/robust.h"
#include "base/util.h"
#include "channel/bell.h"
#include "channel/ladder.h"
#include "channel/times.h"
#include "sockets/record/order.h"
#include "sockets/record/sock.h"
#include "sockets/sleep/epoll_priv.h"
#include "sockets/sleep/epoll_wait_priv.h"
#include "sockets/stream/stream.h"

/* Lanes are looked at again until none has news, but not for ever. */
#define PASSES 16
/* So many calls in a row the kernel may fill alone because of what may have been sent before. */
#define CROWDED 8

/* Is there anything to report? In a hurry: the report itself looks closely. */
static bool is_ready(const struct member *m)
{
	bool edge = m->wish.events & EPOLLET;
	uint64_t word;

	if (m->gone || m->disarmed || !sock_has_lane(m->rec))
		return false;
	word = atomic_load_explicit(&m->rec->rx.dir->word, memory_order_acquire);
	if ((m->wish.events & IN) && (uint32_t)word != LANE_LOAD(m->rec->rx.head) &&
	    (!edge || m->fresh || (word & LANE_PLACE) != m->told))
		return true;
	return (m->wish.events & OUT) && (!edge || !m->told_out || epoll_was_refused(m)) &&
	       stream_writable(m->rec);
}

static bool any_ready(void *arg)
{
	struct epoll_set *s = arg;

	for (uint32_t i = 0; i < s->hots; i++)
		if (!epoll_is_quiet(s, i) && is_ready(&s->member[s->hot[i].member]))
			return true;
	/* Another thread wants the set. */
	return robust_is_wanted(&s->lock);
}

/* Where the peers run. One that needs this processor cannot come while we spin on it. */
static uint32_t peers_cpu(struct epoll_set *s)
{
	uint32_t me = ladder_cpu();
	uint32_t other = me;

	for (uint32_t i = 0; i < s->hots && i < 8; i++) {
		struct rec *r = s->member[s->hot[i].member].rec;

		if (!sock_has_lane(r))
			continue;
		other = stream_peer_cpu(r);
		if (other == me)
			break;
	}
	return other;
}

/* Can we sleep as far as its room is concerned? */
static bool arm_for_room(struct epoll_set *s, struct member *m)
{
	if (!(m->wish.events & OUT))
		return true;
	if (stream_wants_room(m->rec) && !(m->wish.events & EPOLLEXCLUSIVE))
		return epoll_await_room(s, m);
	/* No edge will come of a carrier that has had room all the time. One that is full gives one. */
	s->no_room = (m->wish.events & EPOLLET) && epoll_was_refused(m) &&
		     (epoll_ask_carrier(m) & OUT);
	return !s->no_room;
}

/* Can we sleep as far as this member is concerned? Its peer then rings. */
static bool arm_one(struct epoll_set *s, struct member *m)
{
	bool edge = m->wish.events & EPOLLET;

	if (m->gone || m->disarmed)
		return true;
	if (!arm_for_room(s, m))
		return false;
	if (!(m->wish.events & IN))
		return true;
	if (edge && m->fresh && stream_readable(m->rec))
		return false;
	return epoll_arm(s, m, edge ? &m->told : NULL);
}

/* How long one can sleep over this member. */
static int64_t patience(const struct epoll_set *s, const struct member *m, bool full)
{
	return waiter_patience(m->rec, full, full && epoll_is_belled(s, m));
}

/* Let the peers ring. False: one is readable already. *most is how long one can sleep. */
static bool arm_all(struct epoll_set *s, int64_t *most)
{
	*most = INT64_MAX;
	while (s->hots > 0) {
		struct member *m = &s->member[s->hot[s->hots - 1].member];

		if (sock_has_lane(m->rec)) {
			stream_serve(m->rec, m->fd);
			if (!arm_one(s, m))
				return false;
			*most = min_i64(*most, patience(s, m, m->full));
		}
		epoll_lose_lane(s, m);
		epoll_cool(s, m);
	}
	return true;
}

static int64_t time_left(const struct epoll_call *w)
{
	int64_t left;

	if (w->timeout < 0)
		return -1;
	left = w->timeout - (int64_t)(clock_now() - w->start);
	return left > 0 ? left : 0;
}

/* Nothing came for a while. Peers may want octets of ours back; writers may have waited long enough. */
static int64_t look_around(struct epoll_set *s)
{
	int64_t most = INT64_MAX;

	for (uint32_t i = 0; i < s->used; i++) {
		struct member *m = &s->member[i];

		epoll_lose_lane(s, m);
		if (!m->rec || !m->laned)
			continue;
		stream_serve(m->rec, m->fd);
		if (m->full && !stream_wants_room(m->rec))
			epoll_heat(s, m);
		most = min_i64(most, patience(s, m, m->full));
	}
	return most;
}

/* The number may have been closed while nobody had the lock: then there is another, or one was left for us. */
static bool is_closed(struct epoll_call *w)
{
	if (epoll_of(w->ep) != w->s)
		w->ep = w->s->ep;
	if (w->ep >= 0)
		return false;
	errno = EBADF;
	return true;
}

/* Lanes are to be looked at, or the kernel told of something, before one sleeps on. */
static bool is_stirred(const struct epoll_set *s)
{
	return s->hots > 0 || s->dirty > 0;
}

/* 0: look again, or the time is over. */
static int sleep_in_kernel(struct epoll_call *w)
{
	struct epoll_set *s = w->s;
	int64_t most;

	if (w->timeout == 0) {
		epoll_reconcile(s, w->ep);
		return epoll_ask_kernel(w, 0);
	}
	if (!arm_all(s, &most))
		return 0;
	epoll_answer(s);
	if (s->fulls > 0)
		most = min_i64(most, look_around(s));
	if (s->hots > 0)
		return 0;
	epoll_reconcile(s, w->ep);
	stream_trim_all();
	for (;;) {
		int64_t left = time_left(w);
		int64_t slice = left < 0 || left > most ? most : left;
		int n = epoll_ask_kernel(w, slice == INT64_MAX ? -1 : slice);

		if (n != 0 || slice == left || is_stirred(s))
			return n;
		if (is_closed(w))
			return -1;
		most = look_around(s);
		if (is_stirred(s))
			return 0;
	}
}

/* What nobody can tell us of by a stamp in a lane: what this process did itself, and what others did to it. */
static bool kernel_is_due(const struct epoll_set *s)
{
	return s->kernel_had || s->clock != order_now() || clock_now() - s->looked > LOOK_KERNEL;
}

/*
 * What is in lanes now. Something that was sent before what is found must be found as well: lanes that were looked at
 * before are looked at again, and the kernel is asked if what is found may have been sent behind something it has.
 */
static int look_closely(struct epoll_call *w)
{
	struct epoll_set *s = w->s;
	uint32_t count = s->hots;

	for (int pass = 0; count > 0 && pass < PASSES; pass++) {
		count = epoll_look_at_lanes(w, count);
		if (s->rang) {
			epoll_answer(s);
			count = s->hots;
		}
		if (w->n == w->max)
			break;
		if (!w->ask)
			continue;
		if (epoll_ask_kernel(w, 0) < 0)
			return -1;
		count = s->hots;
	}
	return w->n;
}

/* Has some lane octets that may have been sent behind something in the kernel? That is going to be asked then. */
static bool any_moved(struct epoll_set *s)
{
	bool moved = false;

	for (uint32_t i = 0; i < s->hots; i++) {
		struct member *m = &s->member[s->hot[i].member];

		if (!sock_has_lane(m->rec) || order_of(m->rec->rx.dir) == m->stamp)
			continue;
		m->stamp = order_of(m->rec->rx.dir);
		moved = true;
	}
	return moved;
}

/* Some other thread wants the set: before this one goes on. False: it has been closed. */
static bool let_others(struct epoll_call *w)
{
	struct epoll_set *s = w->s;

	if (robust_is_wanted(&s->lock)) {
		robust_pass(&s->lock);
		robust_take(&s->lock);
	}
	return !is_closed(w);
}

/* Would they find no room behind what the kernel has? Then before, unless that may have been sent before. */
static bool lanes_come_first(struct epoll_call *w)
{
	struct epoll_set *s = w->s;

	if (w->max > (int)s->hots && s->crowded == 0)
		return false;
	return !any_moved(s) || s->crowded > CROWDED;
}

/* Lanes, and the kernel if it is due. Where not all find room each side comes first in turn; but not what may have been
 * sent behind the other's. */
static int look_around_once(struct epoll_call *w)
{
	struct epoll_set *s = w->s;
	bool due = kernel_is_due(s);

	s->kernel_last = due && !s->kernel_last && lanes_come_first(w);
	if (due && !s->kernel_last && epoll_ask_kernel(w, 0) < 0)
		return -1;
	s->crowded = !s->kernel_last && w->n == w->max ? s->crowded + 1 : 0;
	if (look_closely(w) < 0)
		return -1;
	if (!s->kernel_last || w->n == w->max || w->asked)
		return w->n;
	return epoll_ask_kernel(w, 0) < 0 ? -1 : look_closely(w);
}

/* Lanes, and the kernel if it is due; then the ladder. Sleeps nowhere. */
static int look_awake(struct epoll_call *w)
{
	struct epoll_set *s = w->s;

	epoll_find_lanes(s, w->ep);
	epoll_find_refused(s);
	if (s->hots == 0)
		return 0;
	if (look_around_once(w) < 0)
		return -1;
	if (w->n != 0 || w->timeout == 0)
		return w->n;
	if (!waiter_climb(&s->waiter, peers_cpu(s)))
		return is_closed(w) ? -1 : 0;
	return let_others(w) ? look_closely(w) : -1;
}

/* Others sleep for what this thread looked at alone so far. */
static void pass_on(struct epoll_call *w)
{
	struct epoll_set *s = w->s;
	int64_t most;

	if (atomic_load(&s->sleepers) == 0)
		return;
	if (!arm_all(s, &most) && !(s->bell_pid && bell_ring_own()))
		for (uint32_t i = s->hots; i-- > 0;)
			epoll_wake_sleepers(s, s->ep, &s->member[s->hot[i].member]);
	epoll_reconcile(s, s->ep);
}

static void leave(struct epoll_call *w)
{
	int saved = errno;

	if (!w->s)
		return;
	if (atomic_load(&w->s->live))
		pass_on(w);
	epoll_leave(w->s);
	errno = saved;
}

/* The first call of a set. */
static void begin_waiting(struct epoll_set *s)
{
	s->waiter = (struct waiter) { .ready = any_ready,
				      .arg = s,
				      .spin = &s->spin,
				      .lock = &s->lock,
				      .sleepers = &s->sleepers };
}

bool epoll_wait_for(int ep, struct epoll_event *events, int max, int64_t timeout,
		    const sigset_t *mask, int *result)
{
	bool own;
	struct epoll_call w __attribute__((cleanup(leave))) = {
		.ep = ep, .events = events, .max = max, .timeout = timeout, .mask = mask
	};
	int n;

	w.start = timeout > 0 ? clock_now() : 0;
	w.s = epoll_take(ep, &own);
	if (!w.s)
		return false;
	w.s->users++;
	if (!w.s->waiter.ready)
		begin_waiting(w.s);
	w.call = ++w.s->calls;
	w.s->no_room = false;
	do {
		n = look_awake(&w);
		if (n == 0) {
			n = sleep_in_kernel(&w);
			n = n < 0 ? n : look_closely(&w);
		}
	} while (n >= 0 && w.n == 0 && (timeout < 0 || time_left(&w) > 0) && timeout != 0);
	*result = n < 0 && w.n == 0 ? n : w.n;
	return true;
}

bool epoll_lanes_ready(int ep)
{
	bool own, ready = false;
	struct epoll_set *s = epoll_take(ep, &own);

	for (uint32_t i = 0; s && i < s->used && !ready; i++) {
		struct member *m = &s->member[i];

		ready = m->rec && !m->gone && !m->disarmed && (m->wish.events & IN) &&
			sock_has_lane(m->rec) && stream_readable(m->rec);
	}
	if (s)
		robust_give(&s->lock);
	return ready;
}
