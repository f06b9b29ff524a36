/* SPDX-License-Identifier: MIT */
#include "sockets/record/record.h"

#include <stddef.h>

#include "base/probe.h"
#include "sockets/record/above.h"

#define FSM             record_fsm
#define FSM_NAME        "record"
#define FSM_ROWS        "sockets/record/record_fsm.def"
#define FSM_STRICT      false
#define FSM_STATE_LIST  REC_STATES
#define FSM_EVENT_LIST  REC_EVENTS
#define FSM_ACTION_LIST REC_ACTIONS
#define FSM_STATE(n)    REC_##n
#define FSM_EVENT(n)    REC_EV_##n
#define FSM_ACTION(n)   REC_ACT_##n
enum { REC_ACT_NACTIONS = 0 };
#include "base/fsm_table.def"

_Atomic uint32_t record_lanes;

uint32_t record_step(struct rec *r, enum rec_event e)
{
	uint32_t state = atomic_load(&r->state);
	struct fsm_edge edge;

	do
		edge = fsm_look(&record_fsm, state, e);
	while (edge.next != REC_ILLEGAL &&
	       !atomic_compare_exchange_weak(&r->state, &state, edge.next));
	if (edge.next == REC_ILLEGAL)
		return REC_ILLEGAL;
	if (e == REC_EV_ATTACHED || e == REC_EV_LEAVE)
		atomic_fetch_add(&record_lanes, 1);
	PROBE(lane_state, r, state, (uint32_t)edge.next, (uint32_t)e);
	return state;
}

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

	record_step(r, REC_EV_CLOSE);
	if (h)
		atomic_fetch_sub(&h->used, 1);
}

void record_abandon(struct rec *r)
{
	record_above.abandoned(r);
	record_free(r);
}
