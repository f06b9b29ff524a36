/* SPDX-License-Identifier: MIT */
/*
 * Waiting on an epoll set: lanes first, then the kernel. Any number of threads may wait for one set. Who looks at
 * lanes has the set's lock; who sleeps in the kernel has not. While some sleep, others that go away with events leave
 * nothing unarmed behind: what comes next must wake a sleeper.
 */
#include <errno.h>
#include <linux/sockios.h>
#include <poll.h>
#include <signal.h>
#include <string.h>

#include "base/clock.h"
#include "base/robust.h"
#include "base/sys.h"
#include "base/util.h"
#include "channel/bell.h"
#include "channel/ladder.h"
#include "channel/times.h"
#include "sockets/sleep/epoll_priv.h"
#include "sockets/record/order.h"
#include "sockets/record/process.h"
#include "sockets/record/real.h"
#include "sockets/record/sock.h"
#include "sockets/stream/stream.h"

#define IN  (EPOLLIN | EPOLLRDNORM)
#define OUT (EPOLLOUT | EPOLLWRNORM)
/* Events that the kernel is asked for at a time. */
#define BATCH 128
/* Lanes are looked at again until none has news, but not for ever. */
#define PASSES 16
/* So many calls in a row the kernel may fill alone because of what may have been sent before. */
#define CROWDED 8

/* A call. */
struct wait {
	struct epoll_set *s;
	int ep;
	struct epoll_event *events;
	int max;
	int n;            /* events found */
	uint64_t call;    /* which call this is */
	uint64_t changes; /* of the set, when the kernel was last asked */
	bool asked;       /* the kernel was asked in this call */
	bool ask; /* something was found that may have been sent behind what the kernel has */
	int64_t timeout;
	uint64_t start;
	const sigset_t *mask;
};

/* The program was refused for lack of room, and has not been told of any since. */
static bool was_refused(const struct member *m)
{
	return atomic_load_explicit(&m->rec->tx_refused, memory_order_relaxed) != m->told_refused;
}

/* A refusal makes room an edge again, also for members that are not looked at otherwise. */
static void find_refused(struct epoll_set *s)
{
	uint32_t now = atomic_load_explicit(&stream_refusals, memory_order_relaxed);

	if (now == s->seen_refusals)
		return;
	s->seen_refusals = now;
	for (uint32_t i = 0; i < s->used; i++) {
		struct member *m = &s->member[i];

		if (m->rec && m->laned && was_refused(m))
			epoll_heat(s, m);
	}
}

static uint32_t lane_events(const struct epoll_set *s, struct member *m)
{
	uint32_t ready = 0;

	if ((m->wish.events & IN) && stream_readable(m->rec))
		ready |= m->wish.events & IN;
	if ((m->wish.events & OUT) && (stream_writable(m->rec) || (s->no_room && was_refused(m)))) {
		ready |= m->wish.events & OUT;
		stream_told_writable(m->rec);
	}
	return ready;
}

/* For edges: something is new since it was last told. Then all there is to tell is told. */
static bool is_edge(const struct member *m, uint32_t ready, uint64_t seen)
{
	if (m->fresh)
		return ready != 0;
	return ((ready & IN) && seen != m->told) ||
	       ((ready & OUT) && (!m->told_out || was_refused(m)));
}

/* It is going to be told of: so much the program knows then. */
static void note_told(struct wait *w, struct member *m, uint32_t ready, uint64_t seen)
{
	m->call = w->call;
	m->event = (uint32_t)w->n;
	m->fresh = false;
	if (ready & IN)
		m->told = seen;
	if (!(ready & OUT))
		return;
	m->told_out = true;
	m->told_refused = atomic_load_explicit(&m->rec->tx_refused, memory_order_relaxed);
}

/* Octets that were sent behind something that went through the kernel, or over a lane that is only looked at when our
 * bell rings: that must be told of as well. */
static void note_order(struct wait *w, struct member *m)
{
	uint32_t stamp = order_of(m->rec->rx.dir);

	if (w->s->colds > 0 && atomic_load_explicit(m->rec->rx_rung, memory_order_relaxed)) {
		atomic_store(m->rec->rx_rung, 0);
		w->s->rang = true;
	}
	if (stamp == m->stamp)
		return;
	m->stamp = stamp;
	w->ask = true;
}

/* More lanes than this are looked at by what stirs; fewer by what they hold, which is a line less to fetch. */
#define FEW 4

static bool is_quiet(const struct epoll_set *s, uint32_t i)
{
	return s->hots > FEW && !s->hot[i].always &&
	       atomic_load_explicit(s->hot[i].stir, memory_order_acquire) == s->hot[i].seen;
}

/* What the carrier has, of what the program wishes by now. */
static uint32_t ask_carrier(struct member *m)
{
	struct pollfd p = { .fd = m->fd, .events = (short)(m->wish.events & 0x7fff) };

	sys_poll(&p, 1);
	return (uint32_t)p.revents & (m->wish.events | EPOLLERR | EPOLLHUP);
}

/* A one-shot that the kernel did not report itself is still armed there. */
static void shoot(struct epoll_set *s, int ep, struct member *m, bool by_kernel)
{
	if (!(m->wish.events & EPOLLONESHOT))
		return;
	m->disarmed = true;
	if (by_kernel && !m->dirty)
		return;
	m->rearm = true;
	epoll_set_dirty(s, m, true);
	if (epoll_is_ambiguous(s, m))
		epoll_reconcile(s, ep);
}

static void add_event(struct wait *w, struct member *m, uint32_t ready)
{
	w->events[w->n].events = ready;
	w->events[w->n++].data = m->wish.data;
}

/* Events of one lane, reported as the program asked for them. */
static void report(struct wait *w, struct watch *lane)
{
	struct epoll_set *s = w->s;
	struct member *m = &s->member[lane->member];
	uint32_t ready, stir;
	uint64_t seen;

	if (m->gone || m->disarmed || m->call == w->call || !sock_has_lane(m->rec))
		return;
	stir = atomic_load_explicit(lane->stir, memory_order_acquire);
	seen = lane_rx_seen(&m->rec->rx);
	ready = lane_events(s, m);
	if (!(ready & OUT))
		m->told_out = false;
	if ((m->wish.events & EPOLLET) && !is_edge(m, ready, seen))
		ready = 0;
	m->fresh = false;
	/* What was told before it was looked at is looked at. Octets that stay, and room that goes, tell nothing. */
	lane->always = (ready & IN) || (m->wish.events & OUT);
	lane->seen = stir;
	if (!ready)
		return;
	if (ready & IN)
		note_order(w, m);
	/* What the carrier has is not ours to see. */
	if ((m->wish.events & EPOLLONESHOT) || stream_ask_kernel(m->rec))
		ready |= ask_carrier(m);
	note_told(w, m, ready, seen);
	add_event(w, m, ready);
	shoot(s, w->ep, m, false);
}

/* The first `count` of them. Returns how many came before the last that had news. */
static uint32_t look_at_lanes(struct wait *w, uint32_t count)
{
	struct epoll_set *s = w->s;
	uint32_t before = 0;

	for (uint32_t i = 0; i < count && w->n < w->max; i++) {
		uint32_t at = s->first + i < s->hots ? s->first + i : (s->first + i) % s->hots;
		int n = w->n;

		if (is_quiet(s, at))
			continue;
		report(w, &s->hot[at]);
		if (w->n == n)
			continue;
		before = i;
		if (w->n == w->max)
			s->first = (s->first + i + 1) % s->hots;
	}
	return before;
}

/* --- what the kernel says */

/* The carrier is writable. For a full ring that is the last resort. */
static void judge_room(struct member *m, struct epoll_event *event)
{
	if (m->laned && !(event->events & (EPOLLERR | EPOLLHUP)) && stream_wants_room(m->rec))
		event->events &= ~(uint32_t)OUT;
	else
		stream_told_writable(m->rec);
}

/* Has the carrier something that was not told of? The octet that wakes a sleeper belongs to what is in the ring. */
static bool carrier_is_edge(struct member *m, uint64_t seen)
{
	int unread = 0;

	if (m->fresh || seen != m->told || !lane_rx_in_ring(&m->rec->rx))
		return true;
	real(ioctl)(m->fd, SIOCINQ, &unread);
	if (unread > 0 && (uint32_t)unread == m->told_unread)
		return false;
	m->told_unread = (uint32_t)unread;
	return true; /* without octets: the end */
}

/* Is what the kernel reports of a lane's carrier news for the program? */
static bool kernel_is_edge(struct member *m, uint32_t events, uint64_t seen)
{
	if (events & ~(uint32_t)(IN | OUT))
		return true;
	/* The carrier's room counts when the ring is not to be used. */
	if ((events & OUT) && (!m->told_out || was_refused(m) || !lane_tx_in_ring(&m->rec->tx)))
		return true;
	return (events & IN) && carrier_is_edge(m, seen);
}

/* What is told of a member at one time is all there is to tell of it; and edges only once. */
static void add_lane(struct wait *w, struct member *m, struct epoll_event *event)
{
	uint64_t seen = lane_rx_seen(&m->rec->rx);
	uint32_t ready = lane_events(w->s, m);

	if ((m->wish.events & EPOLLET) && !is_edge(m, ready, seen) &&
	    !kernel_is_edge(m, event->events, seen))
		event->events = 0;
	else
		event->events |= ready;
	if (!event->events)
		return;
	if (ready & IN)
		note_order(w, m);
	note_told(w, m, event->events, seen);
}

/* The kernel did not know what the program wishes; or said so before that, and another thread has taken what there was. */
static bool is_stale(const struct wait *w, const struct member *m)
{
	return m->dirty || m->changed > w->changes;
}

/* An event of a member, as the program is to see it. */
static bool translate(struct wait *w, struct member *m, struct epoll_event *event)
{
	struct epoll_set *s = w->s;
	bool by_kernel = true;

	if (m->full && (event->events & EPOLLRDHUP))
		stream_peer_ended(m->rec, m->fd);
	if (m->laned)
		epoll_heat(s, m);
	if (m->gone || (m->disarmed && m->call != w->call))
		return false;
	if (m->call == w->call) {
		/* Told of in this call already: all at one time, and no edge may be lost. */
		w->events[m->event].events |= event->events &
					      (m->wish.events | EPOLLERR | EPOLLHUP);
		return false;
	}
	if (is_stale(w, m)) {
		event->events = ask_carrier(m);
		event->data = m->wish.data;
		by_kernel = false;
	}
	if (event->events & OUT)
		judge_room(m, event);
	if (m->laned && sock_has_lane(m->rec)) {
		add_lane(w, m, event);
	} else if (event->events) {
		m->call = w->call;
		m->event = (uint32_t)w->n;
		m->told_out = m->told_out || (event->events & OUT);
		m->fresh = false;
	}
	if (event->events)
		shoot(s, w->ep, m, by_kernel);
	return event->events != 0;
}

/* An event of something that is no socket of ours. False: the kernel was asked before in this call, and says it again. */
static bool is_new(struct wait *w, struct member *m, const struct epoll_event *event)
{
	if (w->asked && m->call == w->call) {
		w->events[m->event].events |= event->events;
		return false;
	}
	m->call = w->call;
	m->event = (uint32_t)w->n;
	return true;
}

/* The same of something that we do not know. */
static bool is_told(struct wait *w, const struct epoll_event *event)
{
	for (int i = 0; i < w->n && w->asked; i++) {
		if (w->events[i].data.u64 != event->data.u64)
			continue;
		w->events[i].events |= event->events;
		return true;
	}
	return false;
}

/* An event of one of several members with the same datum. Of the lanes among them it is that of the one whose carrier has
 * something, and was not told of; if there is none it is that of another. */
static bool filter_one_of(struct wait *w, struct member *m, struct epoll_event *event)
{
	const struct epoll_event copy = *event;

	for (; m; m = epoll_next_by_data(w->s, m)) {
		if (!m->rec || !m->laned)
			continue;
		epoll_heat(w->s, m);
		*event = copy;
		if (m->call != w->call && ask_carrier(m) && translate(w, m, event))
			return true;
		*event = copy;
		if (m->call == w->call)
			return false;
	}
	return !is_told(w, event);
}

/* An event from the kernel: whose is it, and does the program still want it? */
static bool filter(struct wait *w, struct epoll_event *event)
{
	struct epoll_set *s = w->s;
	struct member *m;

	if (event->data.u64 == BELL_DATA) {
		s->rang = true;
		bell_heard();
		return false;
	}
	m = epoll_by_data(s, event->data.u64);
	if (!m)
		return !is_told(w, event);
	if (!epoll_next_by_data(s, m))
		return m->rec ? translate(w, m, event) : is_new(w, m, event);
	return filter_one_of(w, m, event);
}

static int ask_for(int ep, struct epoll_event *events, int max, int64_t ns, const sigset_t *mask)
{
	if (ns == 0)
		return sys_epoll(ep, events, max, mask);
	if (ns > 0 && ns % (int64_t)NSEC_PER_MSEC) {
		struct timespec t = { ns / (int64_t)NSEC_PER_SEC, ns % (int64_t)NSEC_PER_SEC };
		int n = real(epoll_pwait2)(ep, events, max, &t, mask);

		if (n >= 0 || errno != ENOSYS)
			return n;
	}
	if (mask)
		return real(epoll_pwait)(ep, events, max,
					 ns < 0 ? -1 : (int)((ns + 999999) / 1000000), mask);
	return real(epoll_wait)(ep, events, max, ns < 0 ? -1 : (int)((ns + 999999) / 1000000));
}

/* What one asks the kernel for, asleep. */
struct question {
	const struct wait *w;
	struct epoll_event *events;
	int max;
	int64_t ns;
};

static int ask_asleep(void *arg)
{
	const struct question *q = arg;

	return ask_for(q->w->ep, q->events, q->max, q->ns, q->w->mask);
}

static int sleep_for(struct wait *w, struct epoll_event *events, int max, int64_t ns)
{
	struct question q = { .w = w, .events = events, .max = max, .ns = ns };

	return waiter_sleep(&w->s->waiter, ask_asleep, &q);
}

/* Ask the kernel once. -1 and errno, or how many more events there are. `full`: it may have more. */
static int ask_once(struct wait *w, int64_t ns, bool *full)
{
	struct epoll_event found[BATCH];
	struct epoll_set *s = w->s;
	int max = (int)min_u32((uint32_t)(w->max - w->n), BATCH);
	int n, saved, kept = 0;

	s->looked = clock_now();
	s->clock = order_now();
	w->changes = s->changes;
	n = ns == 0 ? ask_for(w->ep, found, max, 0, w->mask) : sleep_for(w, found, max, ns);
	saved = errno;
	for (int i = 0; i < n; i++) {
		if (!filter(w, &found[i]))
			continue;
		w->events[w->n++] = found[i];
		kept++;
	}
	if (kept > 0)
		order_tick(); /* what the program does next follows from that */
	w->ask = false;
	w->asked = true;
	if (s->rang)
		epoll_answer(s);
	/* Nothing but stale events, and as many as fit: others may wait behind them. */
	if (n == max && kept == 0)
		epoll_reconcile(s, w->ep);
	*full = n == max;
	errno = saved;
	return n < 0 ? n : kept;
}

/* Ask the kernel; with the lock, which is given up while it sleeps. -1 and errno, or how many more events there are. */
static int ask_kernel(struct wait *w, int64_t ns)
{
	bool full;
	int all = ask_once(w, ns, &full), n = all;

	/* More were ready than it is asked for at a time, and the program wants them. Those that it has told of come last. */
	while (n > 0 && full && w->n < w->max) {
		n = ask_once(w, 0, &full);
		all += n > 0 ? n : 0;
	}
	w->s->kernel_had = all > 0;
	return all;
}

/* --- waiting */

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
	return (m->wish.events & OUT) && (!edge || !m->told_out || was_refused(m)) &&
	       stream_writable(m->rec);
}

static bool any_ready(void *arg)
{
	struct epoll_set *s = arg;

	for (uint32_t i = 0; i < s->hots; i++)
		if (!is_quiet(s, i) && is_ready(&s->member[s->hot[i].member]))
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
	s->no_room = (m->wish.events & EPOLLET) && was_refused(m) && (ask_carrier(m) & OUT);
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
		epoll_cool(s, m);
	}
	return true;
}

static int64_t time_left(const struct wait *w)
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

		if (!m->rec || !m->laned || !sock_has_lane(m->rec))
			continue;
		stream_serve(m->rec, m->fd);
		if (m->full && !stream_wants_room(m->rec))
			epoll_heat(s, m);
		most = min_i64(most, patience(s, m, m->full));
	}
	return most;
}

/* The number may have been closed while nobody had the lock: then there is another, or one was left for us. */
static bool is_closed(struct wait *w)
{
	if (epoll_of(w->ep) != w->s)
		w->ep = w->s->ep;
	if (w->ep >= 0)
		return false;
	errno = EBADF;
	return true;
}

/* 0: look again, or the time is over. */
static int sleep_in_kernel(struct wait *w)
{
	struct epoll_set *s = w->s;
	int64_t most;

	if (w->timeout == 0) {
		epoll_reconcile(s, w->ep);
		return ask_kernel(w, 0);
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
		int n = ask_kernel(w, slice == INT64_MAX ? -1 : slice);

		if (n != 0 || slice == left || s->hots > 0 || s->dirty > 0)
			return n;
		if (is_closed(w))
			return -1;
		most = look_around(s);
		if (s->hots > 0)
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
static int look_closely(struct wait *w)
{
	struct epoll_set *s = w->s;
	uint32_t count = s->hots;

	for (int pass = 0; count > 0 && pass < PASSES; pass++) {
		count = look_at_lanes(w, count);
		if (s->rang) {
			epoll_answer(s);
			count = s->hots;
		}
		if (w->n == w->max)
			break;
		if (!w->ask)
			continue;
		if (ask_kernel(w, 0) < 0)
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
static bool let_others(struct wait *w)
{
	struct epoll_set *s = w->s;

	if (robust_is_wanted(&s->lock)) {
		robust_pass(&s->lock);
		robust_take(&s->lock);
	}
	return !is_closed(w);
}

/* Would they find no room behind what the kernel has? Then before, unless that may have been sent before. */
static bool lanes_come_first(struct wait *w)
{
	struct epoll_set *s = w->s;

	if (w->max > (int)s->hots && s->crowded == 0)
		return false;
	return !any_moved(s) || s->crowded > CROWDED;
}

/* Lanes, and the kernel if it is due. Where not all find room each side comes first in turn; but not what may have been
 * sent behind the other's. */
static int look_around_once(struct wait *w)
{
	struct epoll_set *s = w->s;
	bool due = kernel_is_due(s);

	s->kernel_last = due && !s->kernel_last && lanes_come_first(w);
	if (due && !s->kernel_last && ask_kernel(w, 0) < 0)
		return -1;
	s->crowded = !s->kernel_last && w->n == w->max ? s->crowded + 1 : 0;
	if (look_closely(w) < 0)
		return -1;
	if (!s->kernel_last || w->n == w->max || w->asked)
		return w->n;
	return ask_kernel(w, 0) < 0 ? -1 : look_closely(w);
}

/* Lanes, and the kernel if it is due; then the ladder. Sleeps nowhere. */
static int look_awake(struct wait *w)
{
	struct epoll_set *s = w->s;

	epoll_find_lanes(s, w->ep);
	find_refused(s);
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
static void pass_on(struct wait *w)
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

static void leave(struct wait *w)
{
	int saved = errno;

	if (!w->s)
		return;
	if (atomic_load(&w->s->live))
		pass_on(w);
	epoll_leave(w->s);
	errno = saved;
}

bool epoll_wait_for(int ep, struct epoll_event *events, int max, int64_t timeout,
		    const sigset_t *mask, int *result)
{
	bool own;
	struct wait w __attribute__((cleanup(leave))) = {
		.ep = ep, .events = events, .max = max, .timeout = timeout, .mask = mask
	};
	int n;

	w.start = timeout > 0 ? clock_now() : 0;
	w.s = epoll_take(ep, &own);
	if (!w.s)
		return false;
	w.s->users++;
	w.s->waiter = (struct waiter) { .ready = any_ready,
					.arg = w.s,
					.spin = &w.s->spin,
					.lock = &w.s->lock,
					.sleepers = &w.s->sleepers };
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
