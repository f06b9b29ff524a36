/* SPDX-License-Identifier: MIT */
/*
 * A lock for a few instructions at a time, on the data path. Without contention taking it and
 * giving it back are one atomic operation each and no call; who finds it taken sleeps in a futex.
 * Not for the outermost locks: those want the checks of pthread_mutex_t.
 */
#ifndef FLUE_BASE_LOCK_H
#define FLUE_BASE_LOCK_H

#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

struct lock {
	_Atomic uint32_t word; /* 0: free, 1: taken, 2: taken and somebody may sleep */
};

/* Also makes a lock usable in a child of fork() that somebody held in the parent. */
static inline void lock_init(struct lock *l)
{
	atomic_store_explicit(&l->word, 0, memory_order_relaxed);
}

static inline void lock_sleep(struct lock *l)
{
	while (atomic_exchange_explicit(&l->word, 2, memory_order_acquire) != 0)
		syscall(SYS_futex, &l->word, FUTEX_WAIT_PRIVATE, 2, NULL, NULL, 0);
}

static inline void lock_take(struct lock *l)
{
	uint32_t free = 0;

	if (!atomic_compare_exchange_strong_explicit(&l->word, &free, 1, memory_order_acquire,
						     memory_order_relaxed))
		lock_sleep(l);
}

static inline void lock_give(struct lock *l)
{
	if (atomic_exchange_explicit(&l->word, 0, memory_order_release) == 2)
		syscall(SYS_futex, &l->word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

#endif
