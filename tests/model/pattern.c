/* SPDX-License-Identifier: MIT */
/* Where things are in a side's memory, and what must be there. */
#include <stdlib.h>
#include <string.h>

#include "model/model.h"

/* A prime, so that patterns of different seeds do not fall together. */
#define TABLE 65521

/* Twice as long, so that any run of TABLE octets is one piece. */
static uint8_t table[2 * TABLE];

void pattern_init(void)
{
	uint32_t x = 2463534242u;

	for (uint32_t i = 0; i < TABLE; i++) {
		x ^= x << 13;
		x ^= x >> 17;
		x ^= x << 5;
		table[i] = table[i + TABLE] = (uint8_t)(x >> 9);
	}
}

static uint32_t phase(uint32_t seed, uint64_t at)
{
	return (uint32_t)(((uint64_t)seed * 40503u + at) % TABLE);
}

static uint32_t run_of(uint32_t length)
{
	return length < TABLE ? length : TABLE;
}

void pattern_fill(uint8_t *at, uint64_t start, uint32_t length, uint32_t seed)
{
	for (uint32_t n; length; length -= n, at += n, start += n) {
		n = run_of(length);
		memcpy(at, table + phase(seed, start), n);
	}
}

/* Index of the first octet that is not the pattern's, or `length`. */
static uint32_t differs(const uint8_t *at, uint64_t start, uint32_t length, uint32_t seed)
{
	uint32_t done = 0, n, i;

	for (; done < length; done += n, start += n) {
		const uint8_t *want = table + phase(seed, start);

		n = run_of(length - done);
		if (!memcmp(at + done, want, n))
			continue;
		for (i = 0; at[done + i] == want[i]; i++)
			;
		return done + i;
	}
	return length;
}

static uint32_t not_background(const uint8_t *at, uint32_t length)
{
	uint32_t i = 0;

	while (i < length && at[i] == BACKGROUND)
		i++;
	return i;
}

/* Octets of the pattern or background, in any mixture. */
static uint32_t foreign(const uint8_t *at, uint64_t start, uint32_t length, uint32_t seed)
{
	for (uint32_t i = 0; i < length; i++)
		if (at[i] != BACKGROUND && at[i] != table[phase(seed, start + i)])
			return i;
	return length;
}

/* ---- layouts ---- */

uint64_t layout_size(const struct layout *l)
{
	uint64_t size = GAP;

	for (uint32_t i = 0; i < l->n; i++)
		size += l->length[i] + GAP;
	return size;
}

uint32_t layout_length(const struct layout *l)
{
	uint32_t length = 0;

	for (uint32_t i = 0; i < l->n; i++)
		length += l->length[i];
	return length;
}

uint64_t layout_piece(const struct layout *l, uint32_t i)
{
	uint64_t at = l->offset + GAP;

	for (uint32_t k = 0; k < i; k++)
		at += l->length[k] + GAP;
	return at;
}

void layout_fill(uint8_t *memory, const struct layout *l, uint32_t seed)
{
	uint64_t start = 0;

	for (uint32_t i = 0; i < l->n; i++) {
		pattern_fill(memory + layout_piece(l, i), start, l->length[i], seed);
		start += l->length[i];
	}
}

struct checker {
	uint32_t left; /* octets of the message still to come */
	uint32_t seed;
	uint64_t start;
	enum check_mode mode;
};

/* One piece: octets of the message, then background. Index of the first wrong one. */
static uint32_t check_piece(struct checker *c, const uint8_t *at, uint32_t length)
{
	uint32_t n = c->left < length ? c->left : length, good;

	if (c->mode == CHECK_NOTHING)
		return length;
	if (c->mode == CHECK_VALUE)
		return memcmp(at, &c->start, sizeof(c->start)) == 0 ? length : 0;
	if (c->mode == CHECK_MAYBE)
		good = foreign(at, c->start, n, c->seed);
	else
		good = differs(at, c->start, n, c->seed);
	c->left -= n;
	c->start += n;
	return good < n ? good : n + not_background(at + n, length - n);
}

int64_t layout_check(uint8_t *memory, const struct layout *l, uint32_t length, uint32_t seed,
		     uint64_t start, enum check_mode mode)
{
	struct checker c = { .left = length, .seed = seed, .start = start, .mode = mode };
	uint8_t *at = memory + l->offset;
	int64_t wrong = -1;

	for (uint32_t i = 0; i <= l->n && wrong < 0; i++) {
		uint32_t good = not_background(at, GAP);

		if (good < GAP) {
			wrong = at + good - (memory + l->offset);
			break;
		}
		at += GAP;
		if (i == l->n)
			break;
		good = check_piece(&c, at, l->length[i]);
		if (good < l->length[i])
			wrong = at + good - (memory + l->offset);
		at += l->length[i];
	}
	if (wrong < 0)
		memset(memory + l->offset, BACKGROUND, layout_size(l));
	return wrong;
}

/* ---- places ---- */

uint64_t area_offset(uint32_t q, enum area_kind kind)
{
	uint64_t at = 0;

	for (uint32_t i = 0; i < q; i++)
		at += (uint64_t)area_size(i) * N_AREAS;
	return at + (uint64_t)area_size(q) * kind;
}

uint64_t library_offset(void)
{
	return area_offset(N_QPS, AREA_SOURCE);
}

uint64_t srq_offset(uint32_t srq, uint32_t slot)
{
	return library_offset() + LIBRARY + ((uint64_t)srq * SRQ_DEPTH + slot) * SRQ_SLOT;
}

uint64_t word_offset(uint32_t q)
{
	return srq_offset(N_SRQS, 0) + q * sizeof(uint64_t);
}

uint64_t memory_size(void)
{
	return word_offset(COMMON_WORD + 1);
}
