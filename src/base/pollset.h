/* SPDX-License-Identifier: MIT */
/*
 * Epoll sets that other threads can ring, and flags that programs can wait for, in a process that may
 * close any of our descriptors and have files of its own under their numbers at once.
 *
 * Nothing is ever written to a descriptor. There is a lamp, a file that is always readable, and every set
 * has it as a member that is asked about only sometimes. Ringing is a change of what the set asks about:
 * EPOLL_CTL_MOD. Whatever stands behind the two numbers by then, that hurts no file of the program's, and
 * it tells when they are not ours any more: EBADF, EINVAL (no set), ENOENT (a set that does not know the lamp).
 * A ring is heard once (EPOLLONESHOT), so nobody has to take it back.
 *
 * A thread that sleeps in a set hears nothing when the set is closed, nor can it be rung any more. So a sleep
 * lasts POLLSET_LOOK_MS at most; then the sleeper looks whether the set is still there.
 */
#ifndef FLUE_BASE_POLLSET_H
#define FLUE_BASE_POLLSET_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>

#define POLLSET_LOOK_MS 3000

struct pollset {
	atomic_int fd, lamp; /* -1: not open */
	uint64_t bell;       /* what epoll_wait() says when it was rung */
};

void pollset_init(struct pollset *s, uint64_t bell);
/* -EMFILE, -ENFILE, -ENOMEM, -ENOSPC. */
int pollset_open(struct pollset *s);
static inline bool pollset_is_open(struct pollset *s)
{
	return atomic_load_explicit(&s->fd, memory_order_relaxed) >= 0;
}
/* Wakes who sleeps in the set, now or when somebody does. Any thread. An errno: it is lost. */
int pollset_ring(struct pollset *s);
/* -errno, as epoll_ctl(2). */
int pollset_ctl(struct pollset *s, int op, int fd, uint32_t events, uint64_t name);
/* As epoll_wait(2), but a long sleep ends early: 0 although the time is not over. */
int pollset_wait(struct pollset *s, struct epoll_event *evs, int n, int timeout_ms);
/* The same, for so many nanoseconds: a short sleep ends within microseconds of that where the kernel can do it, and is else rounded
 * up to milliseconds. < 0: no limit. */
int pollset_wait_ns(struct pollset *s, struct epoll_event *evs, int n, int64_t timeout_ns);
/* Did a wait fail because the set is lost? errno says so. */
bool pollset_failed(int n);
/* `s` becomes what `fresh` is; the old one was lost. */
void pollset_replace(struct pollset *s, struct pollset *fresh);
/* Numbers that are not ours any more are left alone. */
void pollset_close(struct pollset *s);
/* In a child of fork(), where the set is the parent's. */
void pollset_abandon(struct pollset *s);

/* A descriptor to be waited for that is readable while the flag is up. */
struct flag {
	int fd; /* -1: not open */
	int lamp;
};

#define FLAG_NONE        \
	{                \
		.fd = -1 \
	}

/* `lamp`: of a set that is open. -errno. */
int flag_open(struct flag *f, int lamp, bool up);
void flag_show(struct flag *f, bool up);
/* `inherited`: in a child of fork(). */
void flag_close(struct flag *f, bool inherited);

#endif
