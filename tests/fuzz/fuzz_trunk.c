/* SPDX-License-Identifier: MIT */
/*
 * One side of a trunk whose other side writes what it likes: entries that look well and others, numbers of blocks, any word.
 *
 * Input: an octet that says what is done (see step()), and its arguments.
 *
 * Invariants: all that tests/channel/sound.h knows; octets are read into buffers of their exact size; what is taken lies in
 * the blocks of the other side. Whatever happens, each call returns, and after the first thing that cannot be all
 * circuits have ended.
 */
#include "fuzz.h"

#include <errno.h>
#include <stdbool.h>

#include "../channel/sound.h"
#include "base/own.h"
#include "channel/trunk_priv.h"

static struct trunk *t;
static uint32_t held[64], n_held;
static uint32_t claimed[8], n_claimed;

/* --- ours */

static void send_some(uint32_t c, size_t n, unsigned flags)
{
	uint8_t *data = malloc(n ? n : 1);
	struct iovec iov[2] = { { data, n / 2 }, { data + n / 2, n - n / 2 } };
	ssize_t rc;

	memset(data, 0x55, n ? n : 1);
	rc = trunk_send(t, c, iov, 2, (uint8_t)n, flags & 3);
	CHECK(rc <= (ssize_t)n);
	CHECK(rc < 0 || !(flags & TRUNK_WHOLE) || rc == (ssize_t)n);
	free(data);
}

static void receive_some(uint32_t c, size_t n, unsigned flags)
{
	uint8_t *data = malloc(n ? n : 1);
	struct iovec iov[2] = { { data, n / 3 }, { data + n / 3, n - n / 3 } };
	struct trunk_message m;
	ssize_t rc = trunk_recv(t, c, iov, 2, flags & 3, &m);

	CHECK(rc <= (ssize_t)n);
	CHECK(rc < 0 || m.size == (size_t)rc);
	CHECK(rc != -EMSGSIZE || m.size > n);
	free(data);
}

static void take_block(uint32_t c)
{
	struct trunk_block b;

	if (n_held == 64 || trunk_take(t, c, &b) != 1)
		return;
	CHECK(b.data >= t->in_blocks && b.index < t->shape.blocks &&
	      b.data + b.size <= t->in_blocks + (size_t)(b.index + 1) * t->shape.block_size);
	memset(b.data, 1, b.size);
	held[n_held++] = b.index;
}

static void claim(uint32_t c, unsigned arg)
{
	struct trunk_block b;

	if (arg & 1 && n_claimed) {
		if (arg & 2)
			trunk_unclaim(t, claimed[--n_claimed]);
		else
			(void)trunk_post(t, c, claimed[--n_claimed], arg >> 1, (uint8_t)arg);
		return;
	}
	if (n_claimed == 8 || trunk_claim(t, c, &b) != 1)
		return;
	CHECK(b.data == t->out_blocks + (size_t)b.index * t->shape.block_size);
	for (uint32_t i = 0; i < n_claimed; i++)
		CHECK(claimed[i] != b.index);
	memset(b.data, 2, b.size);
	claimed[n_claimed++] = b.index;
}

static void poll_events(int max)
{
	struct trunk_event ev[4];
	int n = trunk_poll(t, ev, max % 5);

	CHECK(n >= 0 && n <= max % 5);
	for (int i = 0; i < n; i++)
		CHECK(ev[i].circuit < t->shape.circuits && ev[i].bits);
}

static void answer(uint32_t c, unsigned how)
{
	uint8_t data[80];

	(void)trunk_greeting(t, c, data, how % 80);
	if (how & 0x80)
		(void)trunk_accept(t, c, data, how % 70, NULL);
	else
		(void)trunk_refuse(t, c, (uint8_t)how, data, how % 70);
}

static void call(unsigned what, struct source *in)
{
	uint32_t c = (uint32_t)take(in, 1) % 5;
	unsigned arg = (unsigned)take(in, 1);
	struct trunk_message m;

	switch (what % 13) {
	case 0: (void)trunk_open(t, &arg, arg % 5, &m); break;
	case 1: answer(c, arg); break;
	case 2:
	case 3: send_some(c, arg * (what & 0x80 ? 5 : 1), what >> 4); break;
	case 12: claim(c, arg); break;
	case 4:
	case 5: receive_some(c, arg, what >> 4); break;
	case 6: take_block(c); break;
	case 7: trunk_give(t, n_held ? held[--n_held] : arg); break;
	case 8: (void)trunk_shut(t, c); break;
	case 9: trunk_drop(t, c, (uint8_t)(arg >> 4)); break;
	case 10: poll_events((int)arg); break;
	case 11:
		(void)trunk_arm(t);
		(void)trunk_room(t, c);
		(void)trunk_next(t, c, &m);
		trunk_set_limit(t, c, arg & 1 ? arg : UINT32_MAX);
		break;
	}
}

/* --- the other side's */

/* An entry where the next one is expected, most of the time one that could be. */
static void put_entry(unsigned what, struct source *in)
{
	uint64_t v = take(in, 3);
	struct trunk_entry e = { .circuit = v & 7,
				 .block = v >> 3 & 31,
				 .len = v >> 8 & 127,
				 .kind = v >> 15 & 0xff,
				 .type = what >> 4 & 0xf };
	uint32_t tail = atomic_load(&t->peer->tail);

	atomic_store((_Atomic uint64_t *)(uintptr_t)&t->in_ring[tail & (ring_size(t) - 1)],
		     entry_word(e));
	atomic_store(&t->peer->tail, tail + 1);
}

static void give_back(struct source *in)
{
	uint32_t given = atomic_load(&t->peer->given);

	atomic_store((_Atomic uint32_t *)(uintptr_t)&t->back[given & (t->shape.blocks - 1)],
		     (uint32_t)take(in, 1) & 31);
	atomic_store(&t->peer->given, given + 1);
}

static void scribble(unsigned what, struct source *in)
{
	uint64_t value = take(in, 8);
	size_t words = t->map_size / 8;

	switch (what >> 4 & 7) {
	case 0: atomic_store(&t->peer->tail, (uint32_t)value); break;
	case 1: atomic_store(&t->peer->head, (uint32_t)value); break;
	case 2: atomic_store(&t->peer->given, (uint32_t)value); break;
	case 3: atomic_store(&t->peer->closed, (uint32_t)value & 1); break;
	case 4: atomic_store(&t->own->armed, (uint32_t)value); break;
	case 5: atomic_store(&t->peer->armed, (uint32_t)value & ~(uint32_t)ARMED_SOCK); break;
	default: atomic_store((_Atomic uint64_t *)t->map + (value >> 40) % words, value); break;
	}
}

static void step(struct source *in)
{
	unsigned what = (unsigned)take(in, 1);

	switch (what & 3) {
	case 0:
	case 1: call(what >> 2, in); break;
	case 2: put_entry(what, in); break;
	default:
		if (what & 4)
			scribble(what, in);
		else
			give_back(in);
		break;
	}
	check_sound(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const struct trunk_shape shape = {
		.blocks = 16, .block_size = 64, .circuits = 4, .guarantee = 2
	};
	struct source in = { data, size };
	int fd = trunk_memory(&shape);

	CHECK(fd >= 0);
	CHECK(trunk_attach(fd, size & 1, -1, 0, &t) == 0);
	own_close(fd);
	n_held = n_claimed = 0;
	for (int i = 0; i < 500 && in.left; i++)
		step(&in);
	if (trunk_status(t) != 0)
		for (uint32_t c = 0; c < shape.circuits; c++)
			CHECK(t->circuit[c].state == CIRCUIT_FREE ||
			      t->circuit[c].flags & CIRCUIT_ENDED);
	trunk_close(t);
	return 0;
}
