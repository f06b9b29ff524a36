/* SPDX-License-Identifier: MIT */
/*
 * Memory that bulk traffic has used goes back to the system. A few rings that have grown are remembered; they
 * are trimmed when the process is about to sleep, and when others take their place. So what a process
 * holds in large rings is bounded, however many connections it has.
 */
#include <sys/mman.h>

#include "base/clock.h"
#include "base/robust.h"
#include "base/self.h"
#include "channel/times.h"
#include "sockets/record/process.h"
#include "sockets/record/sock.h"
#include "sockets/stream/stream.h"
#include "sockets/stream/stream_priv.h"

#define LARGE 16

static _Atomic(struct rec *) large[LARGE];
static _Atomic uint32_t next;

static void trim(struct rec *r)
{
	uint64_t now = clock_coarse();
	uint8_t *from;
	size_t n;

	if (LANE_LOAD(r->tx.high) <= LANE_TRIM || now - LANE_LOAD(r->trimmed) < TRIM_NS ||
	    !robust_try(&r->tx_lock))
		return;
	/* The record may be a relative's by now, with a lane that is not mapped here. */
	n = sock_has_lane(r) && r->lane_pid == self_pid() ? lane_tx_trim(&r->tx, &from) : 0;
	if (n > 0) {
		LANE_STORE(r->trimmed, now);
		madvise(from, n, MADV_REMOVE);
	}
	robust_give(&r->tx_lock);
}

void stream_note_large(struct rec *r)
{
	uint32_t i = atomic_fetch_add_explicit(&next, 1, memory_order_relaxed) % LARGE;
	struct rec *old;

	LANE_STORE(r->listed, 1);
	old = atomic_exchange(&large[i], r);
	if (old) {
		LANE_STORE(old->listed, 0);
		trim(old);
	}
}

void stream_trim_all(void)
{
	for (int i = 0; i < LARGE; i++) {
		struct rec *r = atomic_load_explicit(&large[i], memory_order_relaxed);

		if (r)
			trim(r);
	}
}

void stream_forget_large(struct rec *r)
{
	for (int i = 0; i < LARGE; i++) {
		struct rec *is = r;

		if (atomic_load(&large[i]) == r &&
		    atomic_compare_exchange_strong(&large[i], &is, NULL))
			LANE_STORE(r->listed, 0);
	}
}

void stream_forked(void)
{
	/* Those were the parent's, which may use their records again for lanes that we do not have. */
	for (int i = 0; i < LARGE; i++)
		atomic_store_explicit(&large[i], NULL, memory_order_relaxed);
}
