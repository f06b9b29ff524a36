/* SPDX-License-Identifier: MIT */
/*
 * Locks in memory that relatives by fork() share: for a few instructions and system calls that do not wait.
 * They know their owner: a signal handler that comes between finds out that its own thread has the lock, and what
 * a process held that was killed can be taken over. Nobody sleeps with one; debug builds check that.
 */
#ifndef FLUE_SOCKETS_REC_LOCK_H
#define FLUE_SOCKETS_REC_LOCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Owner's thread id, or 0; bit 31: somebody sleeps for it. */
struct rec_lock {
	_Atomic uint32_t word;
};

/* False: this thread has it already (a signal handler came between). */
bool rec_lock_take(struct rec_lock *l);
/* False: somebody has it. */
bool rec_lock_try(struct rec_lock *l);
void rec_lock_give(struct rec_lock *l);
/* Give it back, and let somebody who waits for it have it before it is taken again. */
void rec_lock_pass(struct rec_lock *l);

static inline bool rec_lock_is_taken(struct rec_lock *l)
{
	return atomic_load(&l->word) != 0;
}

/* Somebody waits for it. */
static inline bool rec_lock_is_wanted(struct rec_lock *l)
{
	return atomic_load_explicit(&l->word, memory_order_relaxed) >> 31;
}

/* About to sleep, or to call something that does: no lock of ours may be held. */
#ifdef FLUE_LOCK_CHECK
void rec_lock_none(const char *where);
#define REC_LOCK_NONE() rec_lock_none(__func__)
#else
#define REC_LOCK_NONE() ((void)0)
#endif
/* In the child of a fork: those that were taken for it are set free one by one. */
void rec_lock_forked(void);

#endif
