/* SPDX-License-Identifier: MIT */
/* Monotonic time in nanoseconds. */
#ifndef FLUE_BASE_CLOCK_H
#define FLUE_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

#define NSEC_PER_MSEC 1000000ull
#define NSEC_PER_SEC  1000000000ull

static inline uint64_t clock_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * NSEC_PER_SEC + (uint64_t)ts.tv_nsec;
}

#endif
