/* SPDX-License-Identifier: MIT */
#include <sched.h>
#include <stdatomic.h>
#include <sys/rseq.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/util.h"
#include "sockets/process.h"
#include "sockets/wait.h"

#define SPIN_LEAST     1000 /* below this a spin is not tried */
#define YIELD_SLOW     100000
#define YIELD_BAN      (10 * NSEC_PER_MSEC)
#define YIELD_BAN_MOST NSEC_PER_SEC
/* A socket whose spins never paid tries again after this many sleeps. */
#define SPIN_AGAIN 64

/* So many quick yields halve the next ban: beside a busy process most are quick, and one costs a slice. */
#define YIELD_GOOD 1024

static _Atomic uint64_t ban_until;
static _Atomic uint64_t ban_length;
static _Atomic uint32_t good; /* yields since the last slow one */

/* Of the machine, not of this process: one that is bound to a processor can well spin for a peer on another. */
static uint32_t processors(void)
{
	static _Atomic uint32_t known;
	uint32_t n = atomic_load_explicit(&known, memory_order_relaxed);

	if (n == 0) {
		long online = sysconf(_SC_NPROCESSORS_ONLN);

		n = online > 0 ? (uint32_t)online : 1;
		atomic_store_explicit(&known, n, memory_order_relaxed);
	}
	return n;
}

uint32_t wait_cpu(void)
{
	if (__rseq_size > 0) {
		struct rseq *r = (struct rseq *)((char *)__builtin_thread_pointer() +
						 __rseq_offset);
		int cpu = (int)*(volatile uint32_t *)&r->cpu_id;

		if (cpu >= 0)
			return (uint32_t)cpu;
	}
	return (uint32_t)sched_getcpu();
}

/* The caller's lock is not held meanwhile. */
static void yield_without(struct rec_lock *l)
{
	if (l)
		rec_lock_give(l);
	REC_LOCK_NONE();
	sched_yield();
	if (l)
		rec_lock_take(l);
}

/* A yield that took long gave a whole slice to a third party: not again for a while. */
static bool yield_some(bool (*ready)(void *arg), void *arg, struct rec_lock *l)
{
	for (uint32_t i = 0; i < settings.yields; i++) {
		uint64_t before = clock_now();
		uint64_t took;
		bool found;

		if (before < atomic_load_explicit(&ban_until, memory_order_relaxed))
			return false;
		yield_without(l);
		took = clock_now() - before;
		found = ready(arg);
		/* Also if something was found: it would have been found sooner by sleeping. */
		if (took >= YIELD_SLOW) {
			uint64_t ban = atomic_load_explicit(&ban_length, memory_order_relaxed);

			ban = ban ? min_u64(2 * ban, YIELD_BAN_MOST) : YIELD_BAN;
			atomic_store_explicit(&ban_length, ban, memory_order_relaxed);
			atomic_store_explicit(&good, 0, memory_order_relaxed);
			atomic_store_explicit(&ban_until, before + took + ban,
					      memory_order_relaxed);
			return found;
		}
		if (atomic_fetch_add_explicit(&good, 1, memory_order_relaxed) % YIELD_GOOD ==
		    YIELD_GOOD - 1)
			atomic_store_explicit(
				&ban_length,
				atomic_load_explicit(&ban_length, memory_order_relaxed) / 2,
				memory_order_relaxed);
		if (found)
			return true;
	}
	return false;
}

bool wait_spin(bool (*ready)(void *arg), void *arg, uint32_t peer_cpu, uint32_t ns)
{
	uint64_t end;

	if (ready(arg))
		return true;
	ns = min_u32(ns, settings.spin_ns);
	if (ns == 0 || processors() == 1 || peer_cpu == wait_cpu())
		return false;
	end = clock_now() + ns;
	do {
		for (int i = 0; i < 16; i++) {
			__builtin_ia32_pause();
			if (ready(arg))
				return true;
		}
	} while (clock_now() < end);
	return false;
}

/* Budgets are a socket's, or a set's: several threads may wait with one. */
static uint32_t get(const uint32_t *budget)
{
	return __atomic_load_n(budget, __ATOMIC_RELAXED);
}

static void set(uint32_t *budget, uint32_t ns)
{
	__atomic_store_n(budget, ns, __ATOMIC_RELAXED);
}

bool wait_ladder_locked(bool (*ready)(void *arg), void *arg, uint32_t peer_cpu, uint32_t *budget,
			uint32_t most, struct rec_lock *l)
{
	uint32_t ns = get(budget);
	uint64_t end;

	if (ready(arg))
		return true;
	if (processors() == 1 || peer_cpu == wait_cpu())
		return yield_some(ready, arg, l);
	if (ns < SPIN_LEAST || most == 0)
		return false;
	end = clock_now() + min_u32(ns, most);
	do {
		for (int i = 0; i < 16; i++) {
			__builtin_ia32_pause();
			if (ready(arg)) {
				set(budget, min_u32(most, ns * 2));
				return true;
			}
		}
	} while (clock_now() < end);
	set(budget, ns / 2);
	return false;
}

bool wait_ladder(bool (*ready)(void *arg), void *arg, uint32_t peer_cpu, uint32_t *budget,
		 uint32_t most)
{
	return wait_ladder_locked(ready, arg, peer_cpu, budget, most, NULL);
}

void wait_slept(uint32_t *budget, uint64_t ns)
{
	if (ns < settings.spin_ns)
		set(budget, settings.spin_ns);
	else if (get(budget) < SPIN_LEAST && (ns & (SPIN_AGAIN - 1)) == 0)
		set(budget, settings.spin_ns / 4);
}
