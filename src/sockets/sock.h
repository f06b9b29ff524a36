/* SPDX-License-Identifier: MIT */
/*
 * Which descriptors are TCP sockets: a table from numbers to records. It is a cache; the kernel
 * is the truth. Numbers we have never seen (inherited ones) are asked about when first used;
 * after a close that we saw, a number is not a socket until we see it become one.
 */
#ifndef FLUE_SOCKETS_SOCK_H
#define FLUE_SOCKETS_SOCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "sockets/home.h"

#define SOCK_FDS   (1 << 20)
#define SOCK_OTHER ((struct rec *)1) /* something else */

extern _Atomic(struct rec *) sock_table[SOCK_FDS];

struct rec *sock_probe(int fd);

/* The record of a TCP socket, or NULL. */
static inline struct rec *sock_of(int fd)
{
	struct rec *r;

	if ((unsigned)fd >= SOCK_FDS)
		return NULL;
	r = atomic_load_explicit(&sock_table[fd], memory_order_acquire);
	if ((uintptr_t)r > (uintptr_t)SOCK_OTHER)
		return r;
	return r == SOCK_OTHER ? NULL : sock_probe(fd);
}

/* The same, if it may have a lane and is not plain for good. */
static inline struct rec *sock_live(int fd)
{
	struct rec *r = sock_of(fd);

	if (!r || atomic_load_explicit(&r->state, memory_order_relaxed) == REC_PLAIN)
		return NULL;
	return r;
}

static inline bool sock_has_lane(const struct rec *r)
{
	return atomic_load_explicit(&r->state, memory_order_acquire) == REC_LANE;
}

static inline uint32_t sock_flag(const struct rec *r, uint32_t flag)
{
	return atomic_load_explicit(&r->flags, memory_order_relaxed) & flag;
}

/* A new TCP socket stands at `fd`. It is the native stack's until ops_create() or ops_accept(). */
struct rec *sock_add(int fd, uint32_t state, uint32_t role, uint32_t flags);
/* `fd` is no socket, or none of ours. */
void sock_forget(int fd);
/* Before close(fd), or before something else takes its place. In this process, see process_is_self(). */
void sock_closing(int fd);
/* `to` is another number for the socket `from`, or not one any more. */
void sock_duplicated(int from, int to);
/* It connected, or was accepted. */
void sock_connected(struct rec *r);
/* Did it? A connect() may have been under way. */
void sock_look_connected(struct rec *r, int fd);
/* Who is at the other end, and what does the kernel call it? Not before somebody needs to know: most connections are
 * short. False: it cannot have a lane. */
bool sock_identify(struct rec *r, int fd);
/* Never a lane again; steps down first if it has one. */
void sock_pin(struct rec *r, int fd, enum why why);
/* For every record that this process holds. */
void sock_each(void (*call)(int fd, struct rec *r, void *arg), void *arg);
/* Has this process ever had a TCP socket? */
bool sock_in_use(void);
/* The highest number that may be in the table. */
int sock_highest(void);
/* Before a fork that runs handlers. */
void sock_fork_prepare(void);
/* Keep the record while a call is going to touch it again. */
void sock_keep(struct rec *r);
void sock_release(struct rec *r);
/* Its last holder was killed. */
void sock_abandoned(struct rec *r);

/* Locks of a direction. False: this thread has it already (a signal handler came between). */
bool rec_lock_take(struct rec_lock *l);
/* False: somebody has it. */
bool rec_lock_try(struct rec_lock *l);
void rec_lock_give(struct rec_lock *l);

#endif
