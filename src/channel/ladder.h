/* SPDX-License-Identifier: MIT */
/*
 * The ladder before a sleep: look, spin while the peer runs on another processor, yield when it runs on
 * this one, then give up. How long a socket spins follows from what spinning brought it lately.
 */
#ifndef FLUE_CHANNEL_LADDER_H
#define FLUE_CHANNEL_LADDER_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/rseq.h>

#include "base/robust.h"

/* How much a process spends on waiting without sleep, see flue-run(1). Set once, before the first wait. */
struct ladder_profile {
	uint32_t spin_ns; /* the longest spin of a wait; 0: no spins and no naps */
	uint32_t yields;  /* the most yields of a wait */
};

extern struct ladder_profile ladder_profile;

/* One processor's number, cheaply. */
static inline uint32_t ladder_cpu(void)
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

/*
 * Climb the ladder until ready(arg) holds. `peer_cpu` is where the peer ran last; `budget` the nanoseconds to
 * spend at most, changed by the outcome; `most` the limit it may grow to. True: it holds.
 */
bool ladder_climb(bool (*ready)(void *arg), void *arg, uint32_t peer_cpu, uint32_t *budget,
		  uint32_t most);
/* The same for who has a lock: it is held while ready() looks, and not when the processor is given away. */
bool ladder_climb_locked(bool (*ready)(void *arg), void *arg, uint32_t peer_cpu, uint32_t *budget,
			 uint32_t most, struct robust_lock *l);
/* Only spin, if that makes sense; for who must not give the processor away. */
bool ladder_spin(bool (*ready)(void *arg), void *arg, uint32_t peer_cpu, uint32_t ns);
/* A sleep took `ns`: if that was short, spinning will pay next time. */
void ladder_slept(uint32_t *budget, uint64_t ns);

#endif
