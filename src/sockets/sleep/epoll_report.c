/* SPDX-License-Identifier: MIT */
/* Events of lanes, as the program asked for them: level, edge, one-shot; each told once in a call. */
#include <poll.h>

#include "base/sys.h"
#include "sockets/record/order.h"
#include "sockets/record/sock.h"
#include "sockets/sleep/epoll_priv.h"
#include "sockets/sleep/epoll_wait_priv.h"
#include "sockets/stream/stream.h"

/* A refusal makes room an edge again, also for members that are not looked at otherwise. */
void epoll_find_refused(struct epoll_set *s)
{
	uint32_t now = atomic_load_explicit(&stream_refusals, memory_order_relaxed);

	if (now == s->seen_refusals)
		return;
	s->seen_refusals = now;
	for (uint32_t i = 0; i < s->used; i++) {
		struct member *m = &s->member[i];

		if (m->rec && m->laned && epoll_was_refused(m))
			epoll_heat(s, m);
	}
}

uint32_t epoll_lane_events(const struct epoll_set *s, struct member *m)
{
	uint32_t ready = 0;

	if ((m->wish.events & IN) && stream_readable(m->rec))
		ready |= m->wish.events & IN;
	if ((m->wish.events & OUT) &&
	    (stream_writable(m->rec) || (s->no_room && epoll_was_refused(m)))) {
		ready |= m->wish.events & OUT;
		stream_told_writable(m->rec);
	}
	return ready;
}

/* For edges: something is new since it was last told. Then all there is to tell is told. */
bool epoll_is_edge(const struct member *m, uint32_t ready, uint64_t seen)
{
	if (m->fresh)
		return ready != 0;
	return ((ready & IN) && seen != m->told) ||
	       ((ready & OUT) && (!m->told_out || epoll_was_refused(m)));
}

/* It is going to be told of: so much the program knows then. */
void epoll_note_told(struct epoll_call *w, struct member *m, uint32_t ready, uint64_t seen)
{
	m->call = w->call;
	m->event = (uint32_t)w->n;
	m->fresh = false;
	if (ready & IN)
		m->told = seen;
	if (ready & OUT)
		epoll_note_room(m);
}

/* Octets that were sent behind something that went through the kernel, or over a lane that is only looked at when our
 * bell rings: that must be told of as well. */
void epoll_note_order(struct epoll_call *w, struct member *m)
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

bool epoll_is_quiet(const struct epoll_set *s, uint32_t i)
{
	return s->hots > FEW && !s->hot[i].always &&
	       atomic_load_explicit(s->hot[i].stir, memory_order_acquire) == s->hot[i].seen;
}

/* What the carrier has, of what the program wishes by now. */
uint32_t epoll_ask_carrier(struct member *m)
{
	struct pollfd p = { .fd = m->fd, .events = (short)(m->wish.events & 0x7fff) };

	sys_poll(&p, 1);
	return (uint32_t)p.revents & (m->wish.events | EPOLLERR | EPOLLHUP);
}

uint32_t epoll_judge_room(struct member *m, uint32_t events)
{
	if (!(events & OUT))
		return events;
	if (m->laned && !(events & (EPOLLERR | EPOLLHUP)) && stream_bars_carrier(m->rec, m->fd))
		return events & ~(uint32_t)OUT;
	stream_told_writable(m->rec);
	return events;
}

/* A one-shot that the kernel did not report itself is still armed there. */
void epoll_shoot(struct epoll_set *s, int ep, struct member *m, bool by_kernel)
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

static void add_event(struct epoll_call *w, struct member *m, uint32_t ready)
{
	w->events[w->n].events = ready;
	w->events[w->n++].data = m->wish.data;
}

/* Events of one lane, reported as the program asked for them. */
static void report(struct epoll_call *w, struct watch *lane)
{
	struct epoll_set *s = w->s;
	struct member *m = &s->member[lane->member];
	uint32_t ready, stir;
	uint64_t seen;

	if (m->gone || m->disarmed || m->call == w->call || !sock_has_lane(m->rec))
		return;
	stir = atomic_load_explicit(lane->stir, memory_order_acquire);
	seen = lane_rx_seen(&m->rec->rx);
	ready = epoll_lane_events(s, m);
	if (!(ready & OUT))
		m->told_out = false;
	if ((m->wish.events & EPOLLET) && !epoll_is_edge(m, ready, seen))
		ready = 0;
	m->fresh = false;
	/* What was told before it was looked at is looked at. Octets that stay, and room that goes, tell nothing. */
	lane->always = (ready & IN) || (m->wish.events & OUT);
	lane->seen = stir;
	if (!ready)
		return;
	if (ready & IN)
		epoll_note_order(w, m);
	/* What the carrier has is not ours to see. */
	if ((m->wish.events & EPOLLONESHOT) || stream_ask_kernel(m->rec))
		ready |= epoll_judge_room(m, epoll_ask_carrier(m));
	epoll_note_told(w, m, ready, seen);
	add_event(w, m, ready);
	epoll_shoot(s, w->ep, m, false);
}

/* The first `count` of them. Returns how many came before the last that had news. */
uint32_t epoll_look_at_lanes(struct epoll_call *w, uint32_t count)
{
	struct epoll_set *s = w->s;
	uint32_t before = 0;

	for (uint32_t i = 0; i < count && w->n < w->max; i++) {
		uint32_t at = s->first + i < s->hots ? s->first + i : (s->first + i) % s->hots;
		int n = w->n;

		if (epoll_is_quiet(s, at))
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
