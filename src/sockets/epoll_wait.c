/* SPDX-License-Identifier: MIT */
/* Waiting on an epoll set: lanes first, then the kernel. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>

#include "base/clock.h"
#include "base/util.h"
#include "sockets/bell.h"
#include "sockets/epoll_priv.h"
#include "sockets/process.h"
#include "sockets/quick.h"
#include "sockets/real.h"
#include "sockets/sock.h"
#include "sockets/stream.h"
#include "sockets/wait.h"

#define IN  (EPOLLIN | EPOLLRDNORM)
#define OUT (EPOLLOUT | EPOLLWRNORM)
/* While lanes keep us busy the kernel's set is still asked this often. */
#define LOOK_NS 100000
/* With octets of ours unread, sleep no longer: the peer may ask for them again. */
#define SLICE_NS (20 * (int64_t)NSEC_PER_MSEC)
/* With a writer that waits for its bell: the reader may never read. */
#define HELD_NS (50 * (int64_t)NSEC_PER_MSEC)

/* Lanes came up since the last call: which of the members have one? */
static void find_lanes(struct epoll_set *s, int ep)
{
	uint32_t now = atomic_load_explicit(&epoll_lanes, memory_order_acquire);

	if (now == s->seen_lanes)
		return;
	s->seen_lanes = now;
	for (uint32_t i = 0; i < s->used; i++) {
		struct member *m = &s->member[i];

		if (m->rec && !m->laned && sock_has_lane(m->rec)) {
			m->laned = true;
			m->fresh = true;
			epoll_heat(s, m);
			epoll_hang_bell(s, ep);
		}
	}
}

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
		if (!(m->wish.events & EPOLLET))
			m->told_refused = atomic_load_explicit(&m->rec->tx_refused,
							       memory_order_relaxed);
	}
	return ready;
}

/* For edges: only what is new since it was last told. */
static uint32_t edges(struct member *m, uint32_t ready)
{
	uint64_t seen = lane_rx_seen(&m->rec->rx);
	bool out = ready & OUT;

	if (!m->fresh) {
		if (seen == m->told)
			ready &= ~(uint32_t)IN;
		if (m->told_out && !was_refused(m))
			ready &= ~(uint32_t)OUT;
	}
	if (ready & IN)
		m->told = seen;
	if (m->wish.events & OUT)
		m->told_out = out;
	if (ready & OUT)
		m->told_refused = atomic_load_explicit(&m->rec->tx_refused, memory_order_relaxed);
	return ready;
}

/* More lanes than this are looked at by what stirs; fewer by what they hold, which is a line less to fetch. */
#define FEW 4

static bool is_quiet(const struct epoll_set *s, uint32_t i)
{
	return s->hots > FEW && !s->hot[i].always &&
	       atomic_load_explicit(s->hot[i].stir, memory_order_acquire) == s->hot[i].seen;
}

/* The kernel was asked for other events than the program wishes by now: ask for those. */
static uint32_t ask_again(struct member *m)
{
	struct pollfd p = { .fd = m->fd, .events = (short)(m->wish.events & 0x7fff) };

	quick_poll(&p, 1);
	return (uint32_t)p.revents & (m->wish.events | EPOLLERR | EPOLLHUP);
}

static void shoot(struct epoll_set *s, struct member *m)
{
	if (!(m->wish.events & EPOLLONESHOT))
		return;
	m->disarmed = true;
	s->dirty += !m->dirty;
	m->dirty = true;
}

/* Events of one lane, reported as the program asked for them. */
static uint32_t report(struct epoll_set *s, struct watch *w)
{
	struct member *m = &s->member[w->member];
	uint32_t ready, stir;

	if (m->gone || m->disarmed || m->call == s->call || !sock_has_lane(m->rec))
		return 0;
	stir = atomic_load_explicit(w->stir, memory_order_acquire);
	ready = lane_events(s, m);
	if (m->wish.events & EPOLLET)
		ready = edges(m, ready);
	m->fresh = false;
	/* What was told before it was looked at is looked at. Octets that stay, and room that goes, tell nothing. */
	w->always = (ready & IN) || (m->wish.events & OUT);
	w->seen = stir;
	/* What the carrier has is not ours to see. */
	if (ready && ((m->wish.events & EPOLLONESHOT) || stream_ask_kernel(m->rec)))
		ready |= ask_again(m);
	if (ready)
		m->call = s->call;
	if (ready)
		shoot(s, m);
	return ready;
}

static int look_at_lanes(struct epoll_set *s, struct epoll_event *events, int n, int max)
{
	uint32_t count = s->hots;

	for (uint32_t i = 0; i < count && n < max; i++) {
		uint32_t at = s->turn + i < count ? s->turn + i : (s->turn + i) % count;
		struct member *m = &s->member[s->hot[at].member];
		uint32_t ready = is_quiet(s, at) ? 0 : report(s, &s->hot[at]);

		if (ready) {
			events[n].events = ready;
			events[n++].data = m->wish.data;
		}
		if (n == max)
			s->turn = (s->turn + i + 1) % count;
	}
	return n;
}

/* What is told of a member at one time is all there is to tell of it. */
static void add_lane(struct epoll_set *s, struct member *m, struct epoll_event *event)
{
	uint64_t seen = lane_rx_seen(&m->rec->rx);

	event->events |= lane_events(s, m);
	if (event->events)
		m->call = s->call;
	if (!(event->events & IN))
		return;
	m->told = seen;
	m->told_out = event->events & OUT;
	m->fresh = false;
}

/* The member that the kernel knows by this datum. Programs have thousands; a table remembers where they are. */
static struct member *by_data(struct epoll_set *s, uint64_t data)
{
	uint32_t *hint = &s->by_data[(data ^ data >> 12 ^ data >> 28) % EPOLL_HINTS];

	if (*hint && *hint <= s->used) {
		struct member *m = &s->member[*hint - 1];

		if (m->rec && m->kernel.data.u64 == data)
			return m;
	}
	for (uint32_t i = 0; i < s->used; i++) {
		if (s->member[i].rec && s->member[i].kernel.data.u64 == data) {
			*hint = i + 1;
			return &s->member[i];
		}
	}
	return NULL;
}

/* The carrier is writable. For a full ring that is the last resort. */
static void judge_room(struct member *m, struct epoll_event *event)
{
	if (m->laned && stream_wants_room(m->rec))
		event->events &= ~(uint32_t)OUT;
	else
		stream_told_writable(m->rec);
}

/* An event from the kernel: whose is it, and does the program still want it? */
static bool filter(struct epoll_set *s, struct epoll_event *event)
{
	struct member *m;

	if (event->data.u64 == BELL_DATA) {
		s->rang = true;
		return false;
	}
	m = by_data(s, event->data.u64);
	if (!m)
		return true;
	if (m->held && (event->events & EPOLLRDHUP))
		stream_peer_ended(m->rec, m->fd);
	if (m->laned)
		epoll_heat(s, m);
	if (m->gone || m->disarmed)
		return false;
	if (m->dirty) {
		event->events = ask_again(m);
		event->data = m->wish.data;
	}
	if (event->events & OUT)
		judge_room(m, event);
	if (m->laned && sock_has_lane(m->rec))
		add_lane(s, m, event);
	if (event->events)
		shoot(s, m);
	return event->events != 0;
}

static int ask_kernel(int ep, struct epoll_event *events, int max, int64_t ns, const sigset_t *mask)
{
	if (ns == 0)
		return quick_epoll(ep, events, max, mask);
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

/* So many of the program's entries are put back as they were, if they are not used in the end: programs may use
 * what stands behind the last event again. */
#define PUT_BACK 64

/* With the lock; gives it up while it sleeps. */
static int from_kernel(struct epoll_set *s, int ep, struct epoll_event *events, int max, int64_t ns,
		       const sigset_t *mask)
{
	struct epoll_event before[PUT_BACK];
	int n, kept = 0, saved;

	memcpy(before, events, (size_t)min_u32((uint32_t)max, PUT_BACK) * sizeof(*before));
	s->looked = clock_now();
	if (ns != 0) {
		s->sleepers++;
		lock_give(&s->lock);
	}
	n = ask_kernel(ep, events, max, ns, mask);
	saved = errno;
	if (ns != 0) {
		lock_take(&s->lock);
		s->sleepers--;
	}
	for (int i = 0; i < n; i++)
		if (filter(s, &events[i]))
			events[kept++] = events[i];
	for (int i = kept; i < n && i < PUT_BACK; i++)
		events[i] = before[i];
	if (s->rang)
		epoll_answer(s);
	/* Nothing but stale events, and as many as fit: others may wait behind them. */
	if (n == max && kept == 0)
		epoll_reconcile(s, ep);
	errno = saved;
	return n < 0 ? n : kept;
}

/* Is there anything to report? In a hurry: the report itself looks closely. */
static bool is_ready(const struct member *m)
{
	bool edge = m->wish.events & EPOLLET;
	uint64_t word;

	if (m->gone || m->disarmed || !sock_has_lane(m->rec))
		return false;
	word = atomic_load_explicit(&m->rec->rx.dir->word, memory_order_acquire);
	if ((m->wish.events & IN) && (uint32_t)word != m->rec->rx.head &&
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
	return false;
}

/* Where the peers run. One that needs this processor cannot come while we spin on it. */
static uint32_t peers_cpu(struct epoll_set *s)
{
	uint32_t me = wait_cpu();
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
		return epoll_hold(s, m);
	/* No edge will come of a carrier that has had room all the time. One that is full gives one. */
	s->no_room = (m->wish.events & EPOLLET) && was_refused(m) && (ask_again(m) & OUT);
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

/* How long one can sleep over a writer that waits for room. */
static int64_t patience(const struct epoll_set *s, const struct member *m)
{
	return epoll_is_belled(s, m) && stream_can_be_rung(m->rec) ? HELD_NS
								   : stream_glance(m->rec);
}

/* Let the peers ring. False: one is readable already. *most is how long one can sleep. */
static bool arm_all(struct epoll_set *s, int64_t *most)
{
	*most = INT64_MAX;
	while (s->hots > 0) {
		struct member *m = &s->member[s->hot[s->hots - 1].member];

		if (sock_has_lane(m->rec)) {
			stream_serve(m->rec, m->fd);
			if (stream_unsent(m->rec) > 0)
				*most = min_i64(*most, SLICE_NS);
			if (!arm_one(s, m))
				return false;
			if (m->held)
				*most = min_i64(*most, patience(s, m));
		}
		epoll_cool(s, m);
	}
	return true;
}

static int64_t time_left(int64_t timeout, uint64_t start)
{
	int64_t left;

	if (timeout < 0)
		return -1;
	left = timeout - (int64_t)(clock_now() - start);
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
		if (stream_unsent(m->rec) > 0)
			most = min_i64(most, SLICE_NS);
		if (m->held && stream_wants_room(m->rec))
			most = min_i64(most, patience(s, m));
		else if (m->held)
			epoll_heat(s, m);
	}
	return most;
}

static int sleep_in_kernel(struct epoll_set *s, int ep, struct epoll_event *events, int max,
			   int64_t timeout, uint64_t start, const sigset_t *mask)
{
	int64_t most;
	int n;

	if (timeout == 0) {
		epoll_reconcile(s, ep);
		return from_kernel(s, ep, events, max, 0, mask);
	}
	if (!arm_all(s, &most))
		return 0;
	epoll_answer(s);
	if (s->helds > 0)
		most = min_i64(most, look_around(s));
	if (s->hots > 0)
		return 0;
	epoll_reconcile(s, ep);
	stream_trim_all();
	for (;;) {
		int64_t left = time_left(timeout, start);
		int64_t slice = left < 0 || left > most ? most : left;
		uint64_t before = clock_now();

		n = from_kernel(s, ep, events, max, slice == INT64_MAX ? -1 : slice, mask);
		wait_slept(&s->spin, clock_now() - before);
		if (n != 0 || slice == left || s->hots > 0 || s->dirty > 0)
			return n;
		most = look_around(s);
		if (s->hots > 0)
			return 0;
	}
}

static bool kernel_is_due(const struct epoll_set *s)
{
	return clock_now() - s->looked > LOOK_NS;
}

bool epoll_lanes_ready(struct epoll_set *s)
{
	bool ready = false;

	lock_take(&s->lock);
	for (uint32_t i = 0; i < s->used && !ready; i++) {
		struct member *m = &s->member[i];

		ready = m->rec && !m->gone && !m->disarmed && (m->wish.events & IN) &&
			sock_has_lane(m->rec) && stream_readable(m->rec);
	}
	lock_give(&s->lock);
	return ready;
}

/* Lanes, and the kernel if it is due; then the ladder. Sleeps nowhere. */
static int look_awake(struct epoll_set *s, int ep, struct epoll_event *events, int max, bool wait,
		      const sigset_t *mask)
{
	int n = 0;

	find_lanes(s, ep);
	find_refused(s);
	if (s->hots == 0)
		return 0;
	if (kernel_is_due(s))
		n = from_kernel(s, ep, events, max, 0, mask);
	if (n >= 0)
		n = look_at_lanes(s, events, n, max);
	if (n == 0 && wait && wait_ladder(any_ready, s, peers_cpu(s), &s->spin, settings.spin_ns))
		n = look_at_lanes(s, events, 0, max);
	return n;
}

int epoll_wait_for(struct epoll_set *s, int ep, struct epoll_event *events, int max,
		   int64_t timeout, const sigset_t *mask)
{
	uint64_t start = timeout > 0 ? clock_now() : 0;
	int n;

	lock_take(&s->lock);
	s->call++;
	s->no_room = false;
	do {
		n = look_awake(s, ep, events, max, timeout != 0, mask);
		if (n != 0)
			break;
		n = sleep_in_kernel(s, ep, events, max, timeout, start, mask);
		if (n >= 0)
			n = look_at_lanes(s, events, n, max);
	} while (n == 0 && (timeout < 0 || time_left(timeout, start) > 0));
	lock_give(&s->lock);
	return n;
}
