/* SPDX-License-Identifier: MIT */
/*
 * How long it takes until a target that spins on its memory has seen a write, whichever way it was made. The
 * target looks at the last octet and says what it has seen in memory that both have, which costs a line's way back, for
 * all contenders the same.
 */
#ifndef FLUE_BENCH_SEEN_H
#define FLUE_BENCH_SEEN_H

#include "bench.h"

#define SEEN_WARM 100 /* first ones that are not counted */

static inline void seen_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#endif
}

/* Until the octet is that of message n. */
static inline void seen_spin(const uint8_t *last, uint64_t n)
{
	while (__atomic_load_n(last, __ATOMIC_ACQUIRE) != (uint8_t)n)
		seen_pause();
}

/* The target: calls nothing, until somebody ends it. */
void seen_watch(const struct bench_args *args, const uint8_t *target) __attribute__((noreturn));

/* Write message n, whose last octet is in its place in `source` already. */
typedef bool (*seen_write_fn)(void *arg, uint8_t *source, uint64_t n);
/* What there is to do between two, not counted; may be NULL. */
typedef bool (*seen_after_fn)(void *arg);

/* The client. NULL as a source is a failed allocation. 0 or, after a message, 1. */
int seen_measure(const struct bench_args *args, uint8_t *source, seen_write_fn write,
		 seen_after_fn after, void *arg, struct bench_result *result);

#endif
