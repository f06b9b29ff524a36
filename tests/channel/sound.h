/* SPDX-License-Identifier: MIT */
/* What must be true of one side of a trunk at any time, whatever the other side does. Calls CHECK(). */
#ifndef FLUE_TESTS_CHANNEL_SOUND_H
#define FLUE_TESTS_CHANNEL_SOUND_H

#include <stdlib.h>

#include "channel/trunk_priv.h"

/* All who are starved are in the list, and who could be fed will be looked at. */
static inline void check_starved(const struct trunk *t, uint32_t starved)
{
	uint32_t listed = 0, prev = TRUNK_NONE;

	CHECK(t->n_starved == starved && t->to_feed <= starved);
	for (uint32_t c = t->starved.first; c != TRUNK_NONE; c = t->circuit[c].next_starved) {
		const struct circuit *k = &t->circuit[c];

		CHECK(k->flags & CIRCUIT_STARVED && k->prev_starved == prev);
		CHECK(listed < t->to_feed || trunk_credit(t, k) < k->need);
		CHECK(++listed <= starved);
		prev = c;
	}
	CHECK(listed == starved && t->starved.last == prev);
}

/* Every block is free, or one circuit has it; and the counts agree. */
static inline void check_sending(const struct trunk *t)
{
	uint32_t *out = calloc(t->shape.circuits, sizeof(*out));
	uint32_t away = 0, over = 0, starved = 0, g = t->shape.guarantee;

	CHECK(out);
	for (uint32_t i = 0; i < t->shape.blocks; i++) {
		if (t->owner[i] == TRUNK_NONE)
			continue;
		CHECK((t->owner[i] & ~CLAIMED) < t->shape.circuits);
		out[t->owner[i] & ~CLAIMED]++;
		away++;
	}
	CHECK(t->n_free + away == t->shape.blocks);
	for (uint32_t i = 0; i < t->n_free; i++)
		CHECK(t->free[i] < t->shape.blocks && t->owner[t->free[i]] == TRUNK_NONE);
	for (uint32_t c = 0; c < t->shape.circuits; c++) {
		CHECK(t->circuit[c].out == out[c]);
		over += out[c] > g ? out[c] - g : 0;
		starved += t->circuit[c].flags & CIRCUIT_STARVED ? 1 : 0;
	}
	CHECK(t->surplus_used == over && over <= t->surplus);
	check_starved(t, starved);
	free(out);
}

static inline uint32_t check_queue(const struct trunk *t, const struct circuit *k)
{
	uint32_t n = 0, ends = 0;

	for (uint32_t b = k->first; b != TRUNK_NONE; b = t->rx[b].next) {
		CHECK(b < t->shape.blocks && t->rx[b].where == BLOCK_QUEUED);
		CHECK(t->rx[b].len <= t->shape.block_size);
		ends += t->rx[b].end;
		CHECK(++n <= t->shape.blocks);
	}
	CHECK(ends == k->ends);
	CHECK(k->first == TRUNK_NONE || k->offset <= t->rx[k->first].len);
	if (k->greeting != TRUNK_NONE) {
		CHECK(k->greeting < t->shape.blocks && t->rx[k->greeting].where == BLOCK_QUEUED);
		n++;
	}
	return n;
}

static inline void check_receiving(const struct trunk *t)
{
	uint32_t queued = 0, found = 0, told = 0, listed = 0;

	for (uint32_t i = 0; i < t->shape.blocks; i++)
		queued += t->rx[i].where == BLOCK_QUEUED;
	for (uint32_t c = 0; c < t->top; c++) {
		const struct circuit *k = &t->circuit[c];

		told += k->flags & CIRCUIT_TOLD ? 1 : 0;
		CHECK(k->state != CIRCUIT_FREE || !(k->flags & CIRCUIT_OWES));
		if (k->state != CIRCUIT_FREE && k->state != CIRCUIT_LEFT)
			found += check_queue(t, k);
	}
	CHECK(queued == found);
	for (uint32_t c = t->told.first; c != TRUNK_NONE; c = t->circuit[c].next_told)
		CHECK(++listed <= t->shape.circuits);
	CHECK(listed == told);
}

static inline void check_sound(const struct trunk *t)
{
	check_sending(t);
	check_receiving(t);
}

#endif
