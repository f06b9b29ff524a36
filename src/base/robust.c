/* SPDX-License-Identifier: MIT */
#include "base/robust.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>

#include "base/clock.h"
#include "base/robust_order.h"
#include "base/self.h"
#include "base/sys.h"
#include "base/util.h"

#define SLEEPS 0x80000000u
/* So long a woken thread may take to run. */
#define PASS_NS 200000

void robust_forked(void)
{
#ifdef FLUE_LOCK_CHECK
	robust_order_forked();
#endif
}

static _Atomic bool sealed;

void robust_seal(void)
{
	atomic_store(&sealed, true);
}

/* A killed process keeps its number until its parent has asked for its status, and that may be the one who waits here. But
 * it has no memory any more, which the kernel says before it looks at anything else. */
bool robust_is_dead(pid_t tid)
{
	char octet;
	const struct iovec to = { &octet, 1 }, from = { NULL, 1 };

	if (kill(tid, 0) != 0 && errno == ESRCH)
		return true;
	if (atomic_load(&sealed))
		return false;
	return sys_call(SYS_process_vm_readv, tid, &to, 1l, &from, 1l, 0l) < 0 && errno == ESRCH;
}

/* Whoever held it may have been killed, in a relative of this process. */
static void lock_steal(struct robust_lock *l, uint32_t seen)
{
	if ((seen & ~SLEEPS) != 0 && robust_is_dead((pid_t)(seen & ~SLEEPS)))
		atomic_compare_exchange_strong(&l->word, &seen, 0);
}

bool robust_take_slowly(struct robust_lock *l)
{
	uint32_t me = self_tid();
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
		if (sys_call(SYS_futex, &l->word, FUTEX_WAIT, seen | SLEEPS, &limit, NULL, 0) !=
			    0 &&
		    errno == ETIMEDOUT)
			lock_steal(l, atomic_load(&l->word));
	}
	errno = saved;
	return true;
}

#ifdef FLUE_LOCK_CHECK
bool robust_try_as(struct robust_lock *l, const char *name, const char *file)
{
	bool ok = (robust_try)(l);

	if (ok)
		robust_order_has(l, name, file);
	return ok;
}

bool robust_take_as(struct robust_lock *l, const char *name, const char *file)
{
	bool ok;

	/* Its own is no question of order: a signal handler came between. */
	if ((atomic_load_explicit(&l->word, memory_order_relaxed) & ~SLEEPS) != self_tid())
		robust_order_take(name, file);
	ok = (robust_take)(l);
	if (ok)
		robust_order_has(l, name, file);
	return ok;
}

void robust_checks_give(struct robust_lock *l)
{
	robust_order_gives(l);
}

void robust_none(const char *where)
{
	if (robust_order_held() <= 0)
		return;
	fprintf(stderr, "flue: %s sleeps with a lock held\n", where);
	abort();
}
#endif

void robust_wake(struct robust_lock *l)
{
	int saved = errno;

	sys_call(SYS_futex, &l->word, FUTEX_WAKE, 1, NULL, NULL, 0);
	errno = saved;
}

/* Others would find it taken again before they have woken up. */
void robust_pass(struct robust_lock *l)
{
	uint64_t end;

	if (!(atomic_load_explicit(&l->word, memory_order_relaxed) & SLEEPS)) {
		robust_give(l);
		return;
	}
	robust_give(l);
	end = clock_now() + PASS_NS;
	while (atomic_load_explicit(&l->word, memory_order_relaxed) == 0 && clock_now() < end)
		sched_yield();
}
