/* SPDX-License-Identifier: MIT */
/*
 * A lock for a few instructions at a time, on the data path. Without contention taking it is one
 * atomic operation, giving it back a plain store; who finds it taken sleeps in a futex.
 * Not for the outermost locks: those want the checks of pthread_mutex_t.
 *
 * That the store is plain has a price: who goes to sleep at that very moment may not be seen. So nobody sleeps longer than
 * LOCK_NAP_NS before it looks again.
 */
#ifndef FLUE_BASE_LOCK_H
#define FLUE_BASE_LOCK_H

#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LOCK_NAP_NS 1000000

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
	const struct timespec nap = { .tv_nsec = LOCK_NAP_NS };

	while (atomic_exchange_explicit(&l->word, 2, memory_order_acquire) != 0)
		syscall(SYS_futex, &l->word, FUTEX_WAIT_PRIVATE, 2, &nap, NULL, 0);
}

static inline void lock_take(struct lock *l)
{
	uint32_t free = 0;

	if (__builtin_expect(!atomic_compare_exchange_strong_explicit(&l->word, &free, 1,
								      memory_order_acquire,
								      memory_order_relaxed),
			     0))
		lock_sleep(l);
}

static inline void lock_give(struct lock *l)
{
	if (__builtin_expect(atomic_load_explicit(&l->word, memory_order_relaxed) == 1, 1)) {
		atomic_store_explicit(&l->word, 0, memory_order_release);
		return;
	}
	atomic_store_explicit(&l->word, 0, memory_order_release);
	syscall(SYS_futex, &l->word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

#endif
