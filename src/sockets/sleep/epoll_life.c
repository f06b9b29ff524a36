/* SPDX-License-Identifier: MIT */
/* Sets whose descriptors come and go, that are passed on, and what becomes of them in other processes. */
#include <errno.h>
#include <unistd.h>

#include "base/own.h"
#include "base/robust.h"
#include "base/sys.h"
#include "sockets/record/process.h"
#include "sockets/record/real.h"
#include "sockets/record/sock.h"
#include "sockets/sleep/epoll.h"
#include "sockets/sleep/epoll_priv.h"

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

/* What the kernel does not know yet of a member that is being closed: it forgets it with the last number, but not before. */
static void tell_of_closing(struct epoll_set *s, struct member *m, bool shared)
{
	/* From here on the kernel is alone with it. */
	if (shared && !m->gone && m->full)
		epoll_heat(s, m);
	if (!m->gone && !m->dirty)
		return;
	if (shared)
		epoll_tell_kernel(s, s->ep, m);
	else if (!s->guest)
		/* Until then it would tell of what the program took out, by a datum that is used again. */
		real(epoll_ctl)(s->ep, EPOLL_CTL_DEL, closing_fd, NULL);
}

static void close_member(struct epoll_set *s)
{
	struct member *m;

	if (!epoll_set_take(s))
		return;
	m = epoll_find(s, closing_fd);
	if (m && m->rec == epoll_subject) {
		bool shared = atomic_load(&m->rec->refs) > 1;

		tell_of_closing(s, m, shared);
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
	if (atomic_load(&k->sets) == 0 || !robust_take_of(&epoll_walk, "epoll_walk"))
		return;
	epoll_subject = r;
	closing_fd = fd;
	kernel_keeps = false;
	only = atomic_load(&k->set);
	if (only && atomic_load(&k->sets) == 1)
		close_member(only);
	else
		epoll_set_each(close_member);
	keeps = kernel_keeps;
	robust_give(&epoll_walk);
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
	epoll_take_bell_down(s);
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
	if (!atomic_load(&s->live))
		return; /* the next one there is the child's own */
	s->exact = true;
	s->guest = true;
	s->bell_pid = 0; /* the one in there is the parent's */
	s->fulls = 0;
	for (uint32_t i = 0; i < s->used; i++) {
		struct member *m = &s->member[i];

		m->by = WAITER_NOT;
		m->full = false;
		/* Who sleeps for it is the parent; this process looks for itself. */
		if (m->cold)
			epoll_heat(s, m);
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
	atomic_store(&epoll_walk.word, 0);
	epoll_set_unlock_all(true);
	epoll_set_each(become_guest);
}

void epoll_forked_keeps(void)
{
	epoll_set_each(keep_again);
}

static void exec_one(struct epoll_set *s)
{
	if (!epoll_set_take(s))
		return;
	epoll_take_bell_down(s);
	make_exact(s);
	robust_give(&s->lock);
}

/* Members keep what would otherwise be closed with the process. The kernel's sets are left as they are: relatives may
 * have them too. */
static void end_one(struct epoll_set *s)
{
	if (!epoll_set_take(s))
		return;
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
	if (!epoll_set_take(s))
		return;
	if (s->hots + s->colds > 0)
		epoll_hang_bell(s, s->ep);
	robust_give(&s->lock);
}

void epoll_exec_failed(void)
{
	epoll_set_each(hang_again);
}
