/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/util.h"
#include "sockets/process.h"
#include "sockets/real.h"
#include "sockets/rec_lock.h"
#include "sockets/report.h"

#define SLEEPS 0x80000000u
/* So long a woken thread may take to run. */
#define PASS_NS 200000

#ifdef FLUE_LOCK_CHECK
_Thread_local int rec_locks_held THREAD_LOCAL_FAST;

static void note(int change)
{
	rec_locks_held += change;
}

void rec_lock_forked(void)
{
	rec_locks_held = 0;
}

void rec_lock_none(const char *where)
{
	if (rec_locks_held <= 0)
		return;
	report_line("flue: ", where, " sleeps with a lock held");
	abort();
}
#else
static void note(int change)
{
	(void)change;
}

void rec_lock_forked(void)
{
}
#endif

/* Whoever held it may have been killed, in a relative of this process. */
static void lock_steal(struct rec_lock *l, uint32_t seen)
{
	if ((seen & ~SLEEPS) != 0 && kill((pid_t)(seen & ~SLEEPS), 0) != 0 && errno == ESRCH)
		atomic_compare_exchange_strong(&l->word, &seen, 0);
}

static bool lock_slow(struct rec_lock *l, uint32_t me)
{
	const struct timespec limit = { .tv_nsec = 50 * 1000 * 1000 };
	int saved = errno;

	for (;;) {
		uint32_t seen = atomic_load(&l->word);

		if ((seen & ~SLEEPS) == me)
			return false;
		/* Having slept once, take it as one that others may sleep for. */
		if (seen == 0) {
			if (atomic_compare_exchange_strong(&l->word, &seen, me | SLEEPS))
				break;
			continue;
		}
		if (!(seen & SLEEPS) &&
		    !atomic_compare_exchange_strong(&l->word, &seen, seen | SLEEPS))
			continue;
		if (real(syscall)(SYS_futex, &l->word, FUTEX_WAIT, seen | SLEEPS, &limit, NULL,
				  0) != 0 &&
		    errno == ETIMEDOUT)
			lock_steal(l, atomic_load(&l->word));
	}
	errno = saved;
	return true;
}

bool rec_lock_try(struct rec_lock *l)
{
	uint32_t none = 0;

	if (!atomic_compare_exchange_strong_explicit(&l->word, &none, process_tid(),
						     memory_order_seq_cst, memory_order_relaxed))
		return false;
	note(1);
	return true;
}

bool rec_lock_take(struct rec_lock *l)
{
	uint32_t none = 0;
	uint32_t me = process_tid();

	if (!atomic_compare_exchange_strong_explicit(&l->word, &none, me, memory_order_seq_cst,
						     memory_order_relaxed) &&
	    !lock_slow(l, me))
		return false;
	note(1);
	return true;
}

void rec_lock_give(struct rec_lock *l)
{
	note(-1);
	if (atomic_exchange_explicit(&l->word, 0, memory_order_release) & SLEEPS) {
		int saved = errno;

		real(syscall)(SYS_futex, &l->word, FUTEX_WAKE, 1, NULL, NULL, 0);
		errno = saved;
	}
}

/* Others would find it taken again before they have woken up. */
void rec_lock_pass(struct rec_lock *l)
{
	uint64_t end;

	if (!(atomic_load_explicit(&l->word, memory_order_relaxed) & SLEEPS)) {
		rec_lock_give(l);
		return;
	}
	rec_lock_give(l);
	end = clock_now() + PASS_NS;
	while (atomic_load_explicit(&l->word, memory_order_relaxed) == 0 && clock_now() < end)
		sched_yield();
}
