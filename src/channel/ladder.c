/* SPDX-License-Identifier: MIT */
#include <sched.h>
#include <stdatomic.h>
#include <sys/single_threaded.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/robust.h"
#include "base/util.h"
#include "channel/ladder.h"
#include "channel/times.h"

/* A socket whose spins never paid tries again after this many sleeps. */
#define SPIN_AGAIN 64

/* So many quick yields halve the next ban: beside a busy process most are quick, and one costs a slice. */
#define YIELD_GOOD 1024

struct ladder_profile ladder_profile;

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

/* The caller's lock is not held meanwhile. */
static void yield_without(struct robust_lock *l)
{
	if (l)
		robust_give(l);
	ROBUST_NONE();
	sched_yield();
	if (l)
		robust_take_of(l, "s->lock");
}

/* How long a yield took; UINT64_MAX: none, they have cost too much lately. One that took long gave a whole slice to a
 * third party: not again for a while. Also if something was found then, sleeping would have found it sooner. */
static uint64_t yield_once(struct robust_lock *l)
{
	uint64_t before = clock_now(), ban, took;

	if (before < atomic_load_explicit(&ban_until, memory_order_relaxed))
		return UINT64_MAX;
	yield_without(l);
	took = clock_now() - before;
	ban = atomic_load_explicit(&ban_length, memory_order_relaxed);
	if (took >= YIELD_SLOW) {
		ban = ban ? min_u64(2 * ban, YIELD_BAN_MOST) : YIELD_BAN;
		atomic_store_explicit(&ban_length, ban, memory_order_relaxed);
		atomic_store_explicit(&good, 0, memory_order_relaxed);
		atomic_store_explicit(&ban_until, before + took + ban, memory_order_relaxed);
	} else if (atomic_fetch_add_explicit(&good, 1, memory_order_relaxed) % YIELD_GOOD ==
		   YIELD_GOOD - 1) {
		atomic_store_explicit(&ban_length, ban / 2, memory_order_relaxed);
	}
	return took;
}

static bool yield_some(bool (*ready)(void *arg), void *arg, struct robust_lock *l)
{
	bool found = false;

	for (uint32_t i = 0; i < ladder_profile.yields && !found; i++) {
		uint64_t took = yield_once(l);

		if (took == UINT64_MAX)
			return false;
		found = ready(arg);
		if (took >= YIELD_SLOW)
			break;
	}
	return found;
}

bool ladder_spin(bool (*ready)(void *arg), void *arg, uint32_t peer_cpu, uint32_t ns)
{
	uint64_t end;

	if (ready(arg))
		return true;
	ns = min_u32(ns, ladder_profile.spin_ns);
	if (ns == 0 || processors() == 1 || peer_cpu == ladder_cpu())
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

bool ladder_climb_locked(bool (*ready)(void *arg), void *arg, uint32_t peer_cpu, uint32_t *budget,
			 uint32_t most, struct robust_lock *l)
{
	uint32_t ns = get(budget);
	uint64_t end, polite, now;

	if (ready(arg))
		return true;
	if (processors() == 1 || peer_cpu == ladder_cpu())
		return yield_some(ready, arg, l);
	if (ns < SPIN_LEAST || most == 0)
		return false;
	now = clock_now();
	end = now + min_u32(ns, most);
	/* Other threads of the program may need the processor for what we wait for. */
	polite = __libc_single_threaded ? UINT64_MAX : now + SPIN_ALONE;
	do {
		for (int i = 0; i < 16; i++) {
			__builtin_ia32_pause();
			if (ready(arg)) {
				set(budget, min_u32(most, ns * 2));
				return true;
			}
		}
		now = clock_now();
		if (now >= polite) {
			if (yield_once(l) > YIELD_ALONE)
				break;
			polite = now + SPIN_ALONE;
		}
	} while (now < end);
	set(budget, ns / 2);
	return ready(arg);
}

bool ladder_climb(bool (*ready)(void *arg), void *arg, uint32_t peer_cpu, uint32_t *budget,
		  uint32_t most)
{
	return ladder_climb_locked(ready, arg, peer_cpu, budget, most, NULL);
}

void ladder_slept(uint32_t *budget, uint64_t ns)
{
	if (ns < ladder_profile.spin_ns)
		set(budget, ladder_profile.spin_ns);
	else if (get(budget) < SPIN_LEAST && (ns & (SPIN_AGAIN - 1)) == 0)
		set(budget, ladder_profile.spin_ns / 4);
}
