/* SPDX-License-Identifier: MIT */
/* What the kernel's set is told, and when: before somebody sleeps in it. And which members have lanes by now. */
#include <errno.h>
#include <unistd.h>

#include "base/robust.h"
#include "channel/bell.h"
#include "sockets/record/real.h"
#include "sockets/record/record.h"
#include "sockets/record/sock.h"
#include "sockets/sleep/epoll.h"
#include "sockets/sleep/epoll_priv.h"
#include "sockets/stream/stream.h"

struct rec *epoll_subject;
struct robust_lock epoll_walk;

struct epoll_set *epoll_of(int fd)
{
	struct sock_entry *e = sock_entry(fd);

	return e ? atomic_load_explicit(&e->set, memory_order_acquire) : NULL;
}

struct epoll_set *epoll_take(int ep, bool *own)
{
	for (;;) {
		struct epoll_set *s = epoll_of(ep);

		*own = false;
		if (!s)
			return NULL;
		if (!robust_take(&s->lock)) {
			*own = true; /* a signal handler came between */
			return NULL;
		}
		if (epoll_of(ep) == s)
			return s;
		robust_give(&s->lock); /* closed meanwhile, and perhaps opened again */
	}
}

void epoll_hang_bell(struct epoll_set *s, int ep)
{
	struct epoll_event event = { .events = EPOLLIN | EPOLLET, .data.u64 = BELL_DATA };
	int saved = errno;

	if (!s->bell_pid && !s->exact && bell_own() >= 0 &&
	    real(epoll_ctl)(ep, EPOLL_CTL_ADD, bell_own(), &event) == 0)
		s->bell_pid = getpid();
	errno = saved;
}

/* The kernel's set is going to be used by others, who know nothing of bells. */
void epoll_take_bell_down(struct epoll_set *s)
{
	if (s->bell_pid && s->bell_pid == getpid())
		real(epoll_ctl)(s->ep, EPOLL_CTL_DEL, bell_own(), NULL);
	s->bell_pid = 0;
}

/* What the kernel is to look for: what the program wishes, but not room on the carrier for a full ring. Then a peer that
 * was killed must be told of, which for the program would show in its next write. */
static struct epoll_event wanted(const struct member *m)
{
	struct epoll_event event = m->wish;

	if (m->disarmed)
		event.events = EPOLLONESHOT; /* errors are told once, as the kernel would */
	else if (m->full)
		event.events &= ~(uint32_t)(EPOLLOUT | EPOLLWRNORM);
	if (m->full && stream_can_be_rung(m->rec))
		event.events |= EPOLLRDHUP;
	return event;
}

void epoll_tell_kernel(struct epoll_set *s, int ep, struct member *m)
{
	struct epoll_event event = wanted(m);

	if (m->gone) {
		real(epoll_ctl)(ep, EPOLL_CTL_DEL, m->fd, NULL);
		return;
	}
	/* Each change makes the kernel tell edges anew: only those that the program has made. */
	if (m->rearm || m->kernel.events != event.events || m->kernel.data.u64 != event.data.u64)
		real(epoll_ctl)(ep, EPOLL_CTL_MOD, m->fd, &event);
	m->rearm = false;
	epoll_told_kernel(s, m, &event);
}

static void reconcile_one(struct epoll_set *s, int ep, struct member *m)
{
	epoll_tell_kernel(s, ep, m);
	if (m->gone)
		epoll_drop(s, m);
}

void epoll_reconcile(struct epoll_set *s, int ep)
{
	int saved = errno;

	for (uint32_t i = 0; i < s->used && s->dirty > 0; i++)
		if (s->member[i].rec && s->member[i].dirty)
			reconcile_one(s, ep, &s->member[i]);
	errno = saved;
}

void epoll_wake_sleepers(struct epoll_set *s, int ep, struct member *m)
{
	struct epoll_event event = m->wish;

	if (m->by || m->gone || m->disarmed || !m->laned || !sock_has_lane(m->rec))
		return;
	if (epoll_arm(s, m, NULL))
		return;
	if (s->bell_pid && bell_ring_own())
		return;
	event.events |= EPOLLOUT;
	real(epoll_ctl)(ep, EPOLL_CTL_MOD, m->fd, &event);
	epoll_told_kernel(s, m, &event);
	epoll_set_dirty(s, m, true);
}

/* A lane is looked at from now on. What the carrier had was the kernel's to report. */
void epoll_find_lane(struct epoll_set *s, int ep, struct member *m)
{
	if (!m->rec || m->laned || !sock_has_lane(m->rec))
		return;
	m->laned = true;
	/* What was refused since room was last told of stays so: the lane may have been filled already. */
	m->told = 0;
	epoll_heat(s, m);
	epoll_hang_bell(s, ep);
}

void epoll_lose_lane(struct epoll_set *s, struct member *m)
{
	if (!m->rec || !m->laned || sock_has_lane(m->rec))
		return;
	epoll_put_down(s, m);
	m->laned = false;
	/* The program waits for room; the carrier has some, and may have given its edge long ago. */
	if (!m->gone && (m->wish.events & EPOLLET) && epoll_was_refused(m))
		epoll_rearm(s, m);
}

void epoll_find_lanes(struct epoll_set *s, int ep)
{
	uint32_t now = atomic_load_explicit(&record_lanes, memory_order_acquire);

	if (now == s->seen_lanes)
		return;
	s->seen_lanes = now;
	for (uint32_t i = 0; i < s->used; i++) {
		epoll_lose_lane(s, &s->member[i]);
		epoll_find_lane(s, ep, &s->member[i]);
	}
}
