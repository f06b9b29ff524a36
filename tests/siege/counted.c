/* SPDX-License-Identifier: MIT */
/* Weapons that are counted: every bit, every word, and storms over kinds of words. */
#include <string.h>

#include "base/util.h"
#include "siege/attacker.h"

static _Atomic uint32_t *word_at(void *memory, long index)
{
	return (_Atomic uint32_t *)memory + index;
}

/* Values at which comparisons go wrong. */
static uint32_t value(uint32_t old, long kind)
{
	switch (kind) {
	case 0: return 0;
	case 1: return 1;
	case 2: return ~0u;
	case 3: return old + 1;
	case 4: return old - 1;
	case 5: return old ^ 1u << 31;
	case 6: return old + LANE_RING + 1;
	default: return (uint32_t)random_next(&dice);
	}
}

static void change(void *memory, long index, long kind)
{
	_Atomic uint32_t *at = word_at(memory, index);

	atomic_store(at, value(atomic_load(at), kind));
}

static void strike_bit(struct lane *l)
{
	struct lane_dir *d = l->a == 0 ? lane_out(l) : lane_in(l);

	atomic_fetch_xor(&d->word, 1ull << l->b);
}

static void strike_lane(struct lane *l)
{
	change(l->shared, l->a, l->b);
}

static void strike_arena(struct lane *l)
{
	change(l->arena, l->a, l->b);
}

/* --- storms */

static void storm_word(struct lane_dir *d, uint64_t mask)
{
	uint64_t w = atomic_load(&d->word);

	switch (random_below(&dice, 3)) {
	case 0: atomic_fetch_xor(&d->word, 1ull << random_below(&dice, 64) & mask); break;
	case 1: atomic_store(&d->word, (w & ~mask) | (random_next(&dice) & mask)); break;
	/* A small step, which may well be believed. */
	default: atomic_fetch_add(&d->word, mask & -mask);
	}
}

static void storm_number(_Atomic uint32_t *at, bool steps)
{
	if (steps)
		atomic_fetch_add(at, random_below(&dice, 7) - 3);
	else
		atomic_store(at, value(atomic_load(at), random_below(&dice, VALUES)));
}

static void storm_turns(struct lane_dir *d)
{
	_Atomic uint64_t *at = &d->turn[random_below(&dice, LANE_TURNS)];

	if (random_below(&dice, 2))
		atomic_fetch_add(at, random_below(&dice, 7) - 3ull);
	else
		atomic_store(at, random_next(&dice) >> random_below(&dice, 64));
}

static void storm_hints(struct lane *l)
{
	struct lane_shared *s = l->shared;
	uint32_t side = random_below(&dice, 2);

	switch (random_below(&dice, 6)) {
	case 0: atomic_store(&s->done[side], random_below(&dice, 2)); break;
	case 1: atomic_store(&s->pid[side], (int32_t)random_next(&dice)); break;
	case 2: atomic_store(&s->fd[side], (int32_t)random_below(&dice, 1024)); break;
	case 3: atomic_store(&s->cookie[side], random_next(&dice)); break;
	case 4: atomic_store(&s->private_size[side], (uint32_t)random_next(&dice)); break;
	default:
		s->private_data[side][random_below(&dice, ARENA_PRIVATE_DATA)] ^=
			(uint8_t)random_next(&dice);
	}
}

const char *const storm_names[STORMS + 1] = {
	"word-out", "word-in", "flags-out", "flags-in", "place-out", "place-in",
	"head",     "seen",    "base",      "turns",    "sleeps",    "stir",
	"rung",     "hints",   "lane",      "arena",    NULL,
};

static void storm_once(struct lane *l)
{
	struct lane_dir *any = &l->shared->dir[random_below(&dice, 2)];
	bool steps = random_below(&dice, 2);

	switch (l->a) {
	case 0: storm_word(lane_out(l), ~0ull); break;
	case 1: storm_word(lane_in(l), ~0ull); break;
	case 2: storm_word(lane_out(l), ~LANE_PLACE); break;
	case 3: storm_word(lane_in(l), ~LANE_PLACE); break;
	case 4: storm_word(lane_out(l), LANE_PLACE); break;
	case 5: storm_word(lane_in(l), LANE_PLACE); break;
	case 6: storm_number(&any->head, steps); break;
	case 7: storm_number(&any->seen, steps); break;
	case 8: storm_number(&any->base, steps); break;
	case 9: storm_turns(any); break;
	case 10: storm_number(&any->tx_sleeps, false); break;
	case 11:
		storm_number(&l->arena->stir[random_below(&dice, 2)].lane[l->number], steps);
		break;
	case 12:
		storm_number(&l->arena->rung[random_below(&dice, 2)], false);
		storm_number(&l->arena->holds[random_below(&dice, 2)], false);
		break;
	case 13: storm_hints(l); break;
	case 14:
		change(l->shared, random_below(&dice, LANE_WORDS), random_below(&dice, VALUES));
		break;
	default: change(l->arena, random_below(&dice, ARENA_WORDS), random_below(&dice, VALUES));
	}
}

static void storm(struct lane *l)
{
	for (uint32_t i = random_below(&dice, 64); i > 0; i--)
		storm_once(l);
	if (random_below(&dice, 64) == 0)
		lane_octet(l);
	if (random_below(&dice, 64) == 0)
		lane_stir(l);
}

const struct weapon counted[] = {
	{ "bit", strike_bit, NULL },
	{ "lane", strike_lane, NULL },
	{ "arena", strike_arena, NULL },
	{ "storm", NULL, storm },
	{ 0 },
};
