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

_Atomic uint32_t epoll_lanes; /* counts lanes that appeared */

struct epoll_set *epoll_of(int fd)
{
	struct sock_entry *e = sock_entry(fd);

	return e ? atomic_load_explicit(&e->set, memory_order_acquire) : NULL;
}

uint32_t epoll_most(int ep)
{
	struct epoll_set *s = epoll_of(ep);
	uint32_t used = s ? LANE_LOAD(s->used) : 0;

	/* Others may come while it sleeps, or are there without our knowledge. */
	return used < EVENTS_LEAST ? EVENTS_LEAST : used;
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
static void take_bell_down(struct epoll_set *s)
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

static void tell_kernel(struct epoll_set *s, int ep, struct member *m)
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
	tell_kernel(s, ep, m);
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

/* --- the program's changes */

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
static void find_lane(struct epoll_set *s, int ep, struct member *m)
{
	if (!m->rec || m->laned || !sock_has_lane(m->rec))
		return;
	m->laned = true;
	m->told = 0;
	m->told_refused = atomic_load_explicit(&m->rec->tx_refused, memory_order_relaxed);
	epoll_heat(s, m);
	epoll_hang_bell(s, ep);
}

void epoll_find_lanes(struct epoll_set *s, int ep)
{
	uint32_t now = atomic_load_explicit(&epoll_lanes, memory_order_acquire);

	if (now == s->seen_lanes)
		return;
	s->seen_lanes = now;
	for (uint32_t i = 0; i < s->used; i++)
		find_lane(s, ep, &s->member[i]);
}

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
			find_lane(s, ep, m);
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

static struct rec *subject; /* of the walk, with `walk` held */
static struct robust_lock walk;
static bool walk_failed;

static void lane_appeared(struct epoll_set *s)
{
	if (!atomic_load(&s->live) || !robust_take(&s->lock))
		return;
	for (uint32_t i = 0; atomic_load(&s->live) && atomic_load(&s->sleepers) > 0 && i < s->used;
	     i++) {
		struct member *m = &s->member[i];

		if (m->rec != subject || m->gone)
			continue;
		find_lane(s, s->ep, m);
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

		if (m->rec != subject || !m->by || m->gone)
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

	if (!robust_take(&walk))
		return false;
	subject = r;
	walk_failed = false;
	if (atomic_load(&sock_keeping(r)->sets) > 0)
		epoll_set_each(call);
	ok = !walk_failed;
	robust_give(&walk);
	return ok;
}

void epoll_lane_appeared(struct rec *r)
{
	atomic_fetch_add(&epoll_lanes, 1);
	/* A thread that sleeps already does not know of it. */
	walk_sets(r, lane_appeared);
}

bool epoll_left_over(struct rec *r)
{
	return walk_sets(r, left_over);
}

/* --- descriptors that come and go */

static void forget_members(struct epoll_set *s)
{
	for (uint32_t i = 0; i < s->used; i++)
		if (s->member[i].fd >= 0)
			epoll_drop(s, &s->member[i]);
}

void epoll_leave(struct epoll_set *s)
{
	bool last = --s->users == 0 && s->refs == 0;

	/* Others slept in it when it was closed: until now it was theirs. */
	if (last) {
		forget_members(s);
		atomic_store(&s->live, 0);
		if (s->ep >= 0)
			sys_close(s->ep);
	}
	robust_give(&s->lock);
	if (last)
		epoll_set_free(s);
}

/* Another number of the set. */
static int other_number(const struct epoll_set *s)
{
	for (int fd = 0; fd < SOCK_FDS; fd++) {
		if (epoll_of(fd) == s)
			return fd;
		if (!sock_entry(fd))
			fd |= SOCK_CHUNK - 1;
	}
	return -1;
}

static void close_set(int fd)
{
	bool own;
	struct epoll_set *s = epoll_take(fd, &own);

	if (!s)
		return;
	s->users++;
	atomic_store(&sock_entry(fd)->set, NULL);
	/* Who sleeps in it goes on, as natively: with a number that is left, or one of its own. */
	s->refs--;
	if (s->ep == fd && s->refs > 0)
		s->ep = other_number(s);
	else if (s->ep == fd)
		s->ep = s->users > 1 ? own_copy(fd) : -1; /* theirs, see epoll_leave() */
	epoll_leave(s);
}

static int closing_fd;
static bool kernel_keeps;

/* The kernel forgets it with the last number; while others are open it must be told of what the program took out. */
static void close_member(struct epoll_set *s)
{
	struct member *m;

	if (!atomic_load(&s->live) || !robust_take(&s->lock))
		return;
	m = atomic_load(&s->live) ? epoll_find(s, closing_fd) : NULL;
	if (m && m->rec == subject) {
		bool shared = atomic_load(&m->rec->refs) > 1;

		if (shared) {
			/* From here on the kernel is alone with it. */
			if (!m->gone && m->full)
				epoll_heat(s, m);
			if (m->gone || m->dirty)
				tell_kernel(s, s->ep, m);
		}
		kernel_keeps = kernel_keeps || (shared && !m->gone && !s->guest);
		epoll_drop(s, m);
	}
	robust_give(&s->lock);
}

void epoll_closing(int fd)
{
	struct rec *r = sock_at(fd);
	struct epoll_set *only;
	struct keep *k;
	bool keeps;

	if (epoll_of(fd))
		close_set(fd);
	if (!sock_is_rec(r))
		return;
	k = sock_keeping(r);
	if (atomic_load(&k->sets) == 0 || !robust_take(&walk))
		return;
	subject = r;
	closing_fd = fd;
	kernel_keeps = false;
	only = atomic_load(&k->set);
	if (only && atomic_load(&k->sets) == 1)
		close_member(only);
	else
		epoll_set_each(close_member);
	keeps = kernel_keeps;
	robust_give(&walk);
	/* The kernel keeps it in the set while another number is open: then it must be right alone. */
	if (keeps)
		sock_pin(r, fd, WHY_NESTED);
}

void epoll_duplicated(int from, int to)
{
	struct sock_entry *e;
	struct epoll_set *s;
	bool own;

	if (!epoll_of(from) || !process_is_self())
		return;
	e = sock_entry_make(to);
	s = epoll_take(from, &own);
	if (!s)
		return;
	if (e) {
		s->refs++;
		atomic_store(&e->set, s);
	}
	robust_give(&s->lock);
}

/* Kept, as stepping down may close what others have left. */
static void pin_members(struct epoll_set *s, int ep)
{
	for (uint32_t i = 0;; i++) {
		struct rec *r = NULL;
		bool own;
		int fd = -1;

		if (epoll_take(ep, &own) != s)
			return;
		for (; i < s->used && !r; i++) {
			fd = s->member[i].fd;
			r = s->member[i].rec;
		}
		if (r)
			sock_keep_locked(r);
		robust_give(&s->lock);
		if (!r)
			return;
		i--;
		sock_pin(r, fd, WHY_NESTED);
		sock_release(r);
	}
}

void epoll_passing(int fd)
{
	bool own;
	struct epoll_set *s = epoll_take(fd, &own);

	if (!s)
		return;
	if (s->exact) {
		robust_give(&s->lock);
		return;
	}
	s->exact = true;
	take_bell_down(s);
	epoll_reconcile(s, fd);
	robust_give(&s->lock);
	pin_members(s, fd);
}

/* --- fork and exec */

/* The kernel's sets are shared with a child: what they hold must be the program's wish. */
static void make_exact(struct epoll_set *s)
{
	if (!atomic_load(&s->live))
		return;
	for (uint32_t i = 0; i < s->used && s->fulls > 0; i++)
		if (s->member[i].rec && s->member[i].full)
			epoll_heat(s, &s->member[i]);
	epoll_reconcile(s, s->ep);
}

void epoll_fork_prepare(void)
{
	epoll_set_lock_all();
	epoll_set_each(make_exact);
}

void epoll_fork_parent(void)
{
	epoll_set_unlock_all(false);
}

/* The child's sets are the parent's: it changes nothing behind its back, and rings nobody's bell. */
static void become_guest(struct epoll_set *s)
{
	s->exact = true;
	s->guest = true;
	s->bell_pid = 0; /* the one in there is the parent's */
	s->colds = s->fulls = 0;
	for (uint32_t i = 0; i < s->used; i++) {
		s->member[i].by = WAITER_NOT;
		s->member[i].cold = s->member[i].full = false;
	}
}

static void keep_again(struct epoll_set *s)
{
	for (uint32_t i = 0; atomic_load(&s->live) && i < s->used; i++)
		if (s->member[i].rec)
			sock_keep_locked(s->member[i].rec);
}

void epoll_forked(void)
{
	atomic_store(&walk.word, 0);
	epoll_set_unlock_all(true);
	epoll_set_each(become_guest);
}

void epoll_forked_keeps(void)
{
	epoll_set_each(keep_again);
}

static void exec_one(struct epoll_set *s)
{
	if (!atomic_load(&s->live) || !robust_take(&s->lock))
		return;
	take_bell_down(s);
	make_exact(s);
	robust_give(&s->lock);
}

/* Members keep what would otherwise be closed with the process. The kernel's sets are left as they are: relatives may
 * have them too. */
static void end_one(struct epoll_set *s)
{
	if (!atomic_load(&s->live) || !robust_take(&s->lock))
		return;
	if (atomic_load(&s->live))
		forget_members(s);
	robust_give(&s->lock);
}

void epoll_ending(void)
{
	epoll_set_each(end_one);
}

void epoll_exec(void)
{
	epoll_set_each(exec_one);
}

static void hang_again(struct epoll_set *s)
{
	if (!atomic_load(&s->live) || !robust_take(&s->lock))
		return;
	if (s->hots + s->colds > 0)
		epoll_hang_bell(s, s->ep);
	robust_give(&s->lock);
}

void epoll_exec_failed(void)
{
	epoll_set_each(hang_again);
}
