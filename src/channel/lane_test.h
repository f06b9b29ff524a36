/* SPDX-License-Identifier: MIT */
/* One direction of a lane with both ends in one thread, for the tests of lanes. */
#ifndef FLUE_SOCKETS_LANE_TEST_H
#define FLUE_SOCKETS_LANE_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/util.h"
#include "channel/lane.h"

#define HALF (LANE_RING / 2)

/* One direction of a lane. */
static struct lane_dir dir;
static uint8_t ring[LANE_RING];
static struct lane_tx tx;
static struct lane_rx rx;
static uint64_t word;
static size_t room, limit;
static uint8_t out[LANE_RING + 64], in[LANE_RING + 64];

/* The octet at a position of the stream; no period that divides the ring's size. */
static inline uint8_t octet_at(uint64_t pos)
{
	return (uint8_t)(pos % 251 ^ pos / 251);
}

/* A lane in the middle of its life: `tail` octets and `turns` turns have gone through it. */
static inline void begin_at(uint64_t pos, uint32_t tail, uint16_t turns)
{
	memset(&dir, 0, sizeof(dir));
	memset(ring, 0xee, sizeof(ring));
	lane_tx_init(&tx, &dir, ring, pos);
	lane_rx_init(&rx, &dir, ring, pos);
	tx.tail = tx.head = tx.base = rx.head = tail;
	tx.turns = rx.turns = turns;
	atomic_store(&dir.word, tail | (uint64_t)turns << LANE_TURN_SHIFT);
	atomic_store(&dir.base, tail);
	atomic_store(&dir.head, tail);
	atomic_store(&dir.seen, turns);
	lane_rx_attach(&rx);
}

static inline int begin(void **st)
{
	(void)st;
	begin_at(1000, 0, 0);
	return 0;
}

static inline enum lane_way look(size_t want)
{
	room = 0;
	return lane_tx_look(&tx, want, &word, &room);
}

static inline enum lane_from see(void)
{
	uint64_t w;

	limit = 0;
	return lane_rx_look(&rx, &w, &limit);
}

static inline void set_flag(uint64_t flag)
{
	atomic_fetch_or(&dir.word, flag);
}

static inline uint16_t turns_now(void)
{
	return lane_word_turns(atomic_load(&dir.word));
}

/* `n` octets into the ring, the first of them by the carrier if `bell`. */
static inline void put(size_t n, bool bell)
{
	struct iovec iov = { out, n - bell };
	struct lane_iov from = { .iov = &iov, .count = 1 };

	assert_int_equal(look(n), bell ? LANE_OCTET : LANE_RING_OK);
	assert_true(room >= n - bell);
	for (size_t i = 0; i < n - bell; i++)
		out[i] = octet_at(tx.pos + bell + i);
	assert_int_equal(lane_tx_copy(&tx, &from, n - bell), n - bell);
	assert_true(lane_tx_publish(&tx, word, n - bell, bell));
}

/* `n` octets by the carrier. */
static inline void put_carrier(size_t n)
{
	tx.pos += n;
}

static inline bool arm(void)
{
	return lane_rx_arm(&rx, lane_rx_here(&rx), false);
}

static inline void leave(void)
{
	assert_true(lane_tx_leave(&tx, atomic_load(&dir.word)));
}

/* Take `n` octets from the ring, as part of `there`. */
static inline void take(size_t n, size_t there)
{
	struct iovec iov = { in, n };
	struct lane_iov to = { .iov = &iov, .count = 1 };

	assert_int_equal(see(), LANE_FROM_RING);
	assert_int_equal(limit, there);
	assert_int_equal(lane_rx_copy(&rx, &to, 0, n), n);
	for (size_t i = 0; i < n; i++)
		assert_int_equal(in[i], octet_at(rx.pos + i));
	lane_rx_taken(&rx, n, true);
}

static inline void take_carrier(size_t n, size_t there)
{
	assert_int_equal(see(), LANE_FROM_CARRIER);
	assert_int_equal(limit, there);
	lane_rx_taken(&rx, n, false);
}

#endif
