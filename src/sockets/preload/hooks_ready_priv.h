/* SPDX-License-Identifier: MIT */
/* Shared by poll() and by what is served by way of it. */
#ifndef FLUE_SOCKETS_HOOKS_READY_PRIV_H
#define FLUE_SOCKETS_HOOKS_READY_PRIV_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "base/clock.h"
#include "sockets/sleep/poll_lanes.h"
#include "sockets/record/user.h"

/* A time limit in nanoseconds; none, or one beyond all time: -1. */
static inline int64_t poll_limit(const struct timespec *t)
{
	if (!t)
		return -1;
	if (t->tv_sec > INT64_MAX / (int64_t)NSEC_PER_SEC - 1)
		return -1;
	return t->tv_sec * (int64_t)NSEC_PER_SEC + t->tv_nsec;
}

/* Can the kernel make something of it? */
static inline bool poll_good_limit(const struct timespec *t)
{
	return !t || (user_readable(t, sizeof(*t)) && t->tv_sec >= 0 && t->tv_nsec >= 0 &&
		      t->tv_nsec < (long)NSEC_PER_SEC);
}

static inline bool poll_good_mask(const sigset_t *mask)
{
	return !mask || user_readable(mask, _NSIG / 8);
}

#endif
