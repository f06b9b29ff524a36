/* SPDX-License-Identifier: MIT */
/* Monotonic time in nanoseconds. */
#ifndef FLUE_BASE_CLOCK_H
#define FLUE_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

#define NSEC_PER_USEC 1000ull
#define NSEC_PER_MSEC 1000000ull
#define NSEC_PER_SEC  1000000000ull

/* How far clock_coarse() may lag behind clock_now(): one tick of the slowest kernel. */
#define CLOCK_COARSE_LAG (10 * NSEC_PER_MSEC)

static inline uint64_t clock_read(clockid_t id)
{
	struct timespec ts;

	clock_gettime(id, &ts);
	return (uint64_t)ts.tv_sec * NSEC_PER_SEC + (uint64_t)ts.tv_nsec;
}

static inline uint64_t clock_now(void)
{
	return clock_read(CLOCK_MONOTONIC);
}

/* The same time, up to CLOCK_COARSE_LAG late, for a fifth of the cost. */
static inline uint64_t clock_coarse(void)
{
	return clock_read(CLOCK_MONOTONIC_COARSE);
}

#endif
