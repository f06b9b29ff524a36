/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>

#include "base/clock.h"
#include "base/sys.h"
#include "base/util.h"
#include "channel/ladder.h"
#include "channel/lane.h"
#include "channel/nap.h"
#include "channel/times.h"

/* After a nap in vain so many waits do without, then twice as many. */
#define SKIP_MOST 64
#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif

/* The kernel's struct futex_waitv, which older headers lack. */
struct futex_word {
	uint64_t val;
	uint64_t uaddr;
	uint32_t flags;
	uint32_t reserved;
};

#define FUTEX_WORD_U32 2 /* FUTEX_32 */

/* What kinds of handlers there are. */
#define SOME_END     1u
#define SOME_RESTART 2u

static uint32_t handlers(bool afresh)
{
	static _Atomic uint64_t looked;
	static _Atomic uint32_t known;
	uint64_t now = clock_coarse();
	uint32_t found = 0;
	int saved = errno;
	struct sigaction a;

	if (!afresh && now - atomic_load_explicit(&looked, memory_order_relaxed) < NAP_HANDLERS)
		return atomic_load_explicit(&known, memory_order_relaxed);
	for (int i = 1; i < NSIG; i++) {
		if (sigaction(i, NULL, &a) != 0 || a.sa_handler == SIG_DFL ||
		    a.sa_handler == SIG_IGN)
			continue;
		found |= a.sa_flags & SA_RESTART ? SOME_RESTART : SOME_END;
	}
	atomic_store_explicit(&known, found, memory_order_relaxed);
	atomic_store_explicit(&looked, now, memory_order_relaxed);
	errno = saved; /* some numbers are the C library's own */
	return found;
}

enum nap_signals nap_signals(bool afresh)
{
	uint32_t found = handlers(afresh);

	if (!(found & SOME_END))
		return NAP_RESTARTS;
	return found & SOME_RESTART ? NAP_UNSURE : NAP_ENDS;
}

bool nap_hears(size_t count)
{
	/* futex_waitv(2) is restarted like a read, the wait on one word never is. */
	return count == 1 || !(handlers(false) & SOME_RESTART);
}

bool nap_goes_on(void)
{
	/* One that was there before may be gone after (SA_RESETHAND), one that is there now may not have been then. */
	return nap_signals(false) == NAP_RESTARTS && nap_signals(true) == NAP_RESTARTS;
}

static _Atomic bool forbidden;

void nap_forbid(bool forbid)
{
	atomic_store(&forbidden, forbid);
}

/* Upper half: how long to skip after the next failure; lower half: how often still. */
bool nap_pays(uint32_t *skip)
{
	uint32_t now;

	if (ladder_profile.spin_ns == 0 || atomic_load_explicit(&forbidden, memory_order_relaxed))
		return false;
	now = __atomic_load_n(skip, __ATOMIC_RELAXED);
	if ((now & 0xffff) == 0)
		return true;
	__atomic_store_n(skip, now - 1, __ATOMIC_RELAXED);
	return false;
}

void nap_noted(uint32_t *skip, bool paid)
{
	uint32_t next = __atomic_load_n(skip, __ATOMIC_RELAXED) >> 16;

	if (paid)
		next = 0;
	else
		next = next ? min_u32(2 * next, SKIP_MOST) : 1;
	__atomic_store_n(skip, next << 16 | next, __ATOMIC_RELAXED);
}

void nap_slept(uint32_t *skip, uint64_t ns)
{
	if (ns < NAP_NS)
		__atomic_store_n(skip, 0, __ATOMIC_RELAXED);
}

/* What a futex call says. Only a signal leaves its mark on errno. */
static int outcome(long result, int saved)
{
	int error = result < 0 ? errno : 0;

	errno = error == EINTR ? EINTR : saved;
	return error == EINTR ? -1 : error == 0 || error == EAGAIN;
}

static int nap_on_one(struct lane_rx *rx, int64_t ns)
{
	const struct timespec limit = { .tv_nsec = (long)ns };
	int saved = errno;
	uint32_t value;

	if (!lane_rx_nap(rx, &value))
		return 1;
	return outcome(sys_call(SYS_futex, lane_nap_word(rx->dir), FUTEX_WAIT, value, &limit, NULL,
				0),
		       saved);
}

/* It has an absolute end, so it can be restarted. */
static long wait_for_any(struct futex_word *waiter, size_t count, int64_t ns)
{
	uint64_t at = clock_now() + (uint64_t)ns;
	struct timespec end = { (time_t)(at / NSEC_PER_SEC), (long)(at % NSEC_PER_SEC) };

	return sys_call(SYS_futex_waitv, waiter, (unsigned)count, 0, &end, CLOCK_MONOTONIC);
}

int nap_as_read(_Atomic uint32_t *word, uint32_t value, int64_t ns)
{
	struct futex_word one = { .val = value, .uaddr = (uintptr_t)word, .flags = FUTEX_WORD_U32 };
	int saved = errno;
	long result = wait_for_any(&one, 1, ns);

	if (result < 0 && errno == ENOSYS) {
		const struct timespec limit = { .tv_nsec = (long)ns };

		result = sys_call(SYS_futex, word, FUTEX_WAIT, value, &limit, NULL, 0);
	}
	return outcome(result, saved);
}

int nap_on(struct lane_rx *const *lane, size_t count, int64_t ns)
{
	struct futex_word waiter[NAP_LANES];
	int saved = errno;

	if (count == 1)
		return nap_on_one(lane[0], ns);
	for (size_t i = 0; i < count; i++) {
		uint32_t value;

		if (!lane_rx_nap(lane[i], &value))
			return 1; /* the others may stay marked: that costs their peers one call */
		waiter[i] = (struct futex_word) { .val = value,
						  .uaddr = (uintptr_t)lane_nap_word(lane[i]->dir),
						  .flags = FUTEX_WORD_U32 };
	}
	return outcome(wait_for_any(waiter, count, ns), saved);
}

void nap_end(struct lane_dir *dir)
{
	int saved = errno;

	sys_call(SYS_futex, lane_nap_word(dir), FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
	errno = saved;
}
