/* SPDX-License-Identifier: MIT */
#include "sockets/record/record.h"

#include <stddef.h>

#include "sockets/record/above.h"

/* In words: somebody may still look. */
static void clear(void *from, size_t size)
{
	uint32_t *p = from;

	for (size_t i = 0; i < size / sizeof(*p); i++)
		__atomic_store_n(&p[i], 0, __ATOMIC_RELAXED);
}

void record_wipe(struct home *h, struct rec *r, struct keep *keep)
{
	const size_t from = offsetof(struct rec, refs);

	/* Nor the locks: a thread may have looked the record up before it was freed, and give one back. */
	clear((char *)r + from, offsetof(struct rec, tx_lock) - from);
	clear(&r->tx_refused, offsetof(struct rec, rx_lock) - offsetof(struct rec, tx_refused));
	clear(&r->rx_before, sizeof(*r) - offsetof(struct rec, rx_before));
	atomic_store_explicit(&r->why, WHY_NONE, memory_order_relaxed);
	r->home = h;
	LANE_STORE(r->keep, keep);
}

void record_free(struct rec *r)
{
	struct home *h = r->home;

	atomic_store_explicit(&r->state, REC_FREE, memory_order_release);
	if (h)
		atomic_fetch_sub(&h->used, 1);
}

void record_abandon(struct rec *r)
{
	record_above.abandoned(r);
	record_free(r);
}
