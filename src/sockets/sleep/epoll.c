/* SPDX-License-Identifier: MIT */
/* What a program does to its epoll sets, and what happens to them besides. */
#include <errno.h>
#include <string.h>

#include "base/own.h"
#include "base/robust.h"
#include "base/sys.h"
#include "base/util.h"
#include "channel/bell.h"
#include "channel/ladder.h"
#include "sockets/sleep/epoll.h"
#include "sockets/sleep/epoll_priv.h"
#include "sockets/record/process.h"
#include "sockets/record/settings.h"
#include "sockets/record/real.h"
#include "sockets/record/sock.h"
#include "sockets/stream/stream.h"
#include "sockets/record/user.h"

/* Events that a call can tell of, however few descriptors are known. */
#define EVENTS_LEAST 512

uint32_t epoll_most(int ep)
{
	struct epoll_set *s = epoll_of(ep);
	uint32_t used = s ? LANE_LOAD(s->used) : 0;

	/* Others may come while it sleeps, or are there without our knowledge. */
	return used < EVENTS_LEAST ? EVENTS_LEAST : used;
}

void epoll_created(int fd)
{
	struct sock_entry *e;
	struct epoll_set *s;

	process_init();
	e = settings.off || !process_is_self() ? NULL : sock_entry_make(fd);
	s = e ? epoll_set_new() : NULL;
	if (!s)
		return;
	if (robust_take(&s->lock)) {
		s->refs = 1;
		s->ep = fd;
		s->spin = ladder_profile.spin_ns;
		atomic_store(&s->live, 1);
		atomic_store(&e->set, s);
		robust_give(&s->lock);
	}
}

/* --- the program's changes */

static void wish(struct epoll_set *s, struct member *m, const struct epoll_event *event)
{
	m->wish = *event;
	m->changed = ++s->changes;
	m->gone = false;
	m->disarmed = false;
	m->fresh = true;
	m->rearm = true;
	m->told_out = false;
	/* Edges are told anew after any change: the kernel's too. */
	epoll_set_dirty(s, m,
			m->kernel.events != event->events ||
				m->kernel.data.u64 != event->data.u64 ||
				(event->events & (EPOLLET | EPOLLONESHOT)));
	if (m->laned)
		epoll_heat(s, m);
}

/* The kernel need not know at once. An event whose datum is not this one's alone could not be told apart. */
static bool is_lazy(struct epoll_set *s, const struct member *m, const struct epoll_event *event)
{
	struct member *other = event ? epoll_by_data(s, event->data.u64) : NULL;

	return m && m->laned && !s->exact && atomic_load(&s->sleepers) == 0 &&
	       !(m->wish.events & EPOLLEXCLUSIVE) && (!other || other == m) &&
	       !epoll_is_ambiguous(s, m);
}

static int control_member(struct epoll_set *s, int ep, int op, struct member *m,
			  struct epoll_event *event)
{
	if (op == EPOLL_CTL_DEL) {
		if (m->gone) {
			errno = ENOENT;
			return -1;
		}
		m->gone = true;
		epoll_set_dirty(s, m, true);
		return 0;
	}
	if ((op == EPOLL_CTL_ADD) != m->gone) {
		errno = op == EPOLL_CTL_ADD ? EEXIST : ENOENT;
		return -1;
	}
	if (event->events & EPOLLEXCLUSIVE)
		return real(epoll_ctl)(ep, op, m->fd, event);
	wish(s, m, event);
	return 0;
}

/* The kernel has taken the change: remember it. */
static void note_change(struct epoll_set *s, int ep, int op, int fd, struct member *m,
			const struct epoll_event *event)
{
	struct rec *r = sock_of(fd);

	if (op == EPOLL_CTL_DEL) {
		if (m)
			epoll_drop(s, m);
		return;
	}
	if (r && sock_flag(r, REC_LISTEN))
		r = NULL;
	if (!m) {
		m = epoll_add(s, fd, r, event);
		/* No memory, or it is being closed: then it must be right without us. */
		if (!m && r)
			sock_pin(r, fd, WHY_LIMIT);
		if (!m)
			return;
		if (m->rec)
			epoll_find_lane(s, ep, m);
	}
	if (m->rec)
		wish(s, m, event);
	epoll_told_kernel(s, m, event);
	/* What the kernel was not told of others with this datum could not be told apart any more. */
	if (s->dirty > 0 && epoll_is_ambiguous(s, m))
		epoll_reconcile(s, ep);
	if (m->rec && atomic_load(&s->sleepers) > 0)
		epoll_wake_sleepers(s, ep, m);
}

static int control_kernel(struct epoll_set *s, int ep, int op, int fd, struct epoll_event *event)
{
	struct member *m = epoll_find(s, fd);
	int result;

	if (m && m->gone && op == EPOLL_CTL_ADD) {
		real(epoll_ctl)(ep, EPOLL_CTL_DEL, fd, NULL);
		epoll_drop(s, m);
		m = NULL;
	} else if (m && m->gone) {
		errno = ENOENT;
		return -1;
	}
	/* Something else stood there that was closed past us. */
	if (m && op == EPOLL_CTL_ADD && m->rec != sock_live(fd)) {
		epoll_drop(s, m);
		m = NULL;
	}
	result = real(epoll_ctl)(ep, op, fd, event);
	if (result == 0)
		note_change(s, ep, op, fd, m, event);
	return result;
}

/* What a set of ours does not see must be right without us. */
static int control_unseen(int ep, int op, int fd, struct epoll_event *event)
{
	struct rec *r = op == EPOLL_CTL_DEL ? NULL : sock_live(fd);
	int result = real(epoll_ctl)(ep, op, fd, event);

	if (r && result == 0 && !sock_flag(r, REC_LISTEN))
		sock_pin(r, fd, WHY_NESTED);
	return result;
}

int epoll_control(int ep, int op, int fd, struct epoll_event *event)
{
	struct epoll_set *s;
	struct member *m;
	bool own;
	int result;

	if (epoll_of(fd))
		epoll_passing(fd); /* a set inside a set */
	if (op != EPOLL_CTL_DEL && !user_readable(event, sizeof(*event)))
		return real(epoll_ctl)(ep, op, fd, event);
	s = epoll_take(ep, &own);
	if (!s)
		return control_unseen(ep, op, fd, event);
	m = epoll_find(s, fd);
	/* What others hold open would stay in the kernel's set when we close it. */
	if (m && m->rec && is_lazy(s, m, op == EPOLL_CTL_DEL ? NULL : event) &&
	    (op != EPOLL_CTL_DEL || atomic_load(&m->rec->refs) == 1))
		result = control_member(s, ep, op, m, event);
	else
		result = control_kernel(s, ep, op, fd, event);
	robust_give(&s->lock);
	return result;
}

/* --- lanes that come, and octets that are left */

static bool walk_failed; /* with the lock of the walk */

static void lane_appeared(struct epoll_set *s)
{
	if (!epoll_set_take(s))
		return;
	for (uint32_t i = 0; atomic_load(&s->sleepers) > 0 && i < s->used; i++) {
		struct member *m = &s->member[i];

		if (m->rec != epoll_subject || m->gone)
			continue;
		epoll_find_lane(s, s->ep, m);
		epoll_wake_sleepers(s, s->ep, m);
	}
	robust_give(&s->lock);
}

/* A member relies on the kernel, which knows nothing of what is in the ring. */
static void left_over(struct epoll_set *s)
{
	if (!atomic_load(&s->live))
		return;
	if (!robust_take(&s->lock)) {
		walk_failed = true;
		return;
	}
	for (uint32_t i = 0; atomic_load(&s->live) && i < s->used; i++) {
		struct member *m = &s->member[i];

		if (m->rec != epoll_subject || !m->by || m->gone)
			continue;
		epoll_heat(s, m);
		if (atomic_load(&s->sleepers) > 0)
			epoll_wake_sleepers(s, s->ep, m);
	}
	robust_give(&s->lock);
}

/* All sets that may have it, one record at a time. False: not all could be told. */
static bool walk_sets(struct rec *r, void (*call)(struct epoll_set *s))
{
	bool ok;

	if (!robust_take_of(&epoll_walk, "epoll_walk"))
		return false;
	epoll_subject = r;
	walk_failed = false;
	if (atomic_load(&sock_keeping(r)->sets) > 0)
		epoll_set_each(call);
	ok = !walk_failed;
	robust_give(&epoll_walk);
	return ok;
}

void epoll_lane_appeared(struct rec *r)
{
	/* A thread that sleeps already does not know of it. */
	walk_sets(r, lane_appeared);
}

bool epoll_left_over(struct rec *r)
{
	return walk_sets(r, left_over);
}
