/* SPDX-License-Identifier: MIT */
/*
 * The ladder before a sleep: look, spin while the peer runs on another processor, yield when it runs on
 * this one, then give up. How long a socket spins follows from what spinning brought it lately.
 */
#ifndef FLUE_SOCKETS_WAIT_H
#define FLUE_SOCKETS_WAIT_H

#include <stdbool.h>
#include <stdint.h>

#include "sockets/rec_lock.h"

/* One processor's number, cheaply. */
uint32_t wait_cpu(void);
/*
 * Climb the ladder until ready(arg) holds. `peer_cpu` is where the peer ran last; `budget` the nanoseconds to
 * spend at most, changed by the outcome; `most` the limit it may grow to. True: it holds.
 */
bool wait_ladder(bool (*ready)(void *arg), void *arg, uint32_t peer_cpu, uint32_t *budget,
		 uint32_t most);
/* The same for who has a lock: it is held while ready() looks, and not when the processor is given away. */
bool wait_ladder_locked(bool (*ready)(void *arg), void *arg, uint32_t peer_cpu, uint32_t *budget,
			uint32_t most, struct rec_lock *l);
/* Only spin, if that makes sense; for who must not give the processor away. */
bool wait_spin(bool (*ready)(void *arg), void *arg, uint32_t peer_cpu, uint32_t ns);
/* A sleep took `ns`: if that was short, spinning will pay next time. */
void wait_slept(uint32_t *budget, uint64_t ns);

#endif
