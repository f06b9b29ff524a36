/* SPDX-License-Identifier: MIT */
/* Events of the kernel's set: whose they are, and what the program is to see of them. */
#include <errno.h>
#include <linux/sockios.h>
#include <poll.h>

#include "base/clock.h"
#include "base/sys.h"
#include "base/util.h"
#include "channel/bell.h"
#include "sockets/record/order.h"
#include "sockets/record/real.h"
#include "sockets/record/sock.h"
#include "sockets/sleep/epoll_priv.h"
#include "sockets/sleep/epoll_wait_priv.h"
#include "sockets/stream/stream.h"

/* Events that the kernel is asked for at a time. */
#define BATCH 128

/* Room that the kernel has told of, with its edge or its one shot, and the program does not hear of: when the ring is left
 * it is still due. Not so what a peer can have told again and again. */
static void judge_room(struct epoll_set *s, struct member *m, struct epoll_event *event,
		       uint32_t by_kernel)
{
	event->events = epoll_judge_room(m, event->events);
	if ((by_kernel & ~event->events & OUT) && (m->wish.events & (EPOLLET | EPOLLONESHOT)))
		epoll_rearm(s, m);
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
	if ((events & OUT) &&
	    (!m->told_out || epoll_was_refused(m) || !lane_tx_in_ring(&m->rec->tx)))
		return true;
	return (events & IN) && carrier_is_edge(m, seen);
}

/* What is told of a member at one time is all there is to tell of it; and edges only once. */
static void add_lane(struct epoll_call *w, struct member *m, struct epoll_event *event)
{
	uint64_t seen = lane_rx_seen(&m->rec->rx);
	uint32_t ready = epoll_lane_events(w->s, m);

	if ((m->wish.events & EPOLLET) && !epoll_is_edge(m, ready, seen) &&
	    !kernel_is_edge(m, event->events, seen))
		event->events = 0;
	else
		event->events |= ready;
	if (!event->events)
		return;
	if (ready & IN)
		epoll_note_order(w, m);
	epoll_note_told(w, m, event->events, seen);
}

/* The kernel did not know what the program wishes; or said so before that, and another thread has taken what there was. */
static bool is_stale(const struct epoll_call *w, const struct member *m)
{
	return m->dirty || m->changed > w->changes;
}

/* An event of a member, as the program is to see it. */
static bool translate(struct epoll_call *w, struct member *m, struct epoll_event *event)
{
	struct epoll_set *s = w->s;
	const uint32_t told = event->events;
	bool by_kernel = true;

	if (m->full && (event->events & EPOLLRDHUP))
		stream_ask_for_end(m->rec, m->fd);
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
		event->events = epoll_ask_carrier(m);
		event->data = m->wish.data;
		by_kernel = false;
	}
	judge_room(s, m, event, told);
	if (m->laned && sock_has_lane(m->rec)) {
		add_lane(w, m, event);
	} else if (event->events) {
		m->call = w->call;
		m->event = (uint32_t)w->n;
		m->fresh = false;
		if (event->events & OUT)
			epoll_note_room(m);
	}
	if (event->events)
		epoll_shoot(s, w->ep, m, by_kernel);
	return event->events != 0;
}

/* An event of something that is no socket of ours. False: the kernel was asked before in this call, and says it again. */
static bool is_new(struct epoll_call *w, struct member *m, const struct epoll_event *event)
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
static bool is_told(struct epoll_call *w, const struct epoll_event *event)
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
static bool filter_one_of(struct epoll_call *w, struct member *m, struct epoll_event *event)
{
	const struct epoll_event copy = *event;

	for (; m; m = epoll_next_by_data(w->s, m)) {
		if (!m->rec || !m->laned)
			continue;
		epoll_heat(w->s, m);
		*event = copy;
		if (m->call != w->call && epoll_ask_carrier(m) && translate(w, m, event))
			return true;
		*event = copy;
		if (m->call == w->call)
			return false;
	}
	return !is_told(w, event);
}

/* An event from the kernel: whose is it, and does the program still want it? */
static bool filter(struct epoll_call *w, struct epoll_event *event)
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
	const struct epoll_call *w;
	struct epoll_event *events;
	int max;
	int64_t ns;
};

static int ask_asleep(void *arg)
{
	const struct question *q = arg;

	return ask_for(q->w->ep, q->events, q->max, q->ns, q->w->mask);
}

static int sleep_for(struct epoll_call *w, struct epoll_event *events, int max, int64_t ns)
{
	struct question q = { .w = w, .events = events, .max = max, .ns = ns };

	return waiter_sleep(&w->s->waiter, ask_asleep, &q);
}

/* Ask the kernel once. -1 and errno, or how many more events there are. `full`: it may have more. */
static int ask_once(struct epoll_call *w, int64_t ns, bool *full)
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
int epoll_ask_kernel(struct epoll_call *w, int64_t ns)
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
