/* SPDX-License-Identifier: MIT */
/*
 * Robust locks, also in memory that relatives by fork() share: for a few instructions and system calls that do not wait.
 * They know their owner: a signal handler that comes between finds out that its own thread has the lock, and what
 * a process held that was killed can be taken over. Nobody sleeps with one; debug builds check that.
 */
#ifndef FLUE_BASE_ROBUST_H
#define FLUE_BASE_ROBUST_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/self.h"

/* Owner's thread id, or 0; bit 31: somebody sleeps for it. */
struct robust_lock {
	_Atomic uint32_t word;
};

/* Of the next ones: when it is taken, and when somebody sleeps for it. */
bool robust_take_slowly(struct robust_lock *l);
void robust_wake(struct robust_lock *l);
#ifdef FLUE_LOCK_CHECK
void robust_checks_give(struct robust_lock *l);
#else
static inline void robust_checks_give(struct robust_lock *l)
{
	(void)l;
}
#endif

/* False: somebody has it. */
static inline bool robust_try(struct robust_lock *l)
{
	uint32_t none = 0;

	return atomic_compare_exchange_strong_explicit(&l->word, &none, self_tid(),
						       memory_order_seq_cst, memory_order_relaxed);
}

/* False: this thread has it already (a signal handler came between). */
static inline bool robust_take(struct robust_lock *l)
{
	return robust_try(l) || robust_take_slowly(l);
}

static inline void robust_give(struct robust_lock *l)
{
	robust_checks_give(l);
	if (atomic_exchange_explicit(&l->word, 0, memory_order_release) >> 31)
		robust_wake(l);
}

/* Give it back, and let somebody who waits for it have it before it is taken again. */
void robust_pass(struct robust_lock *l);

static inline bool robust_is_taken(struct robust_lock *l)
{
	return atomic_load(&l->word) != 0;
}

/* Somebody waits for it. */
static inline bool robust_is_wanted(struct robust_lock *l)
{
	return atomic_load_explicit(&l->word, memory_order_relaxed) >> 31;
}

/*
 * Checks of debug builds. Locks that stand for the same thing are a class, which is known by its name where it is taken:
 * "r->tx_lock", "arena.c: lock". A thread that takes one class while it has another sets their order for this process;
 * taking them the other way round, over however many others, ends it (docs/design/locks.md).
 */
#ifdef FLUE_LOCK_CHECK
bool robust_take_as(struct robust_lock *l, const char *name, const char *file);
bool robust_try_as(struct robust_lock *l, const char *name, const char *file);
#define robust_take(l) robust_take_as(l, #l, __FILE__)
#define robust_try(l)  robust_try_as(l, #l, __FILE__)
/* For who has a lock by a pointer: of which class it is. */
#define robust_take_of(l, c) robust_take_as(l, c, __FILE__)
/* About to sleep, or to call something that does: no lock of ours may be held. */
void robust_none(const char *where);
#define ROBUST_NONE() robust_none(__func__)
#else
#define robust_take_of(l, c) robust_take(l)
#define ROBUST_NONE()        ((void)0)
#endif
/* Has this thread of a relative been killed? Also one whose status nobody has asked for yet. */
bool robust_is_dead(pid_t tid);
/* The program forbids itself system calls: none that it may not know of is made from now on. */
void robust_seal(void);
/* In the child of a fork: those that were taken for it are set free one by one. */
void robust_forked(void);

#endif
