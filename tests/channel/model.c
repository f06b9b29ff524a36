/* SPDX-License-Identifier: MIT */
/*
 * Random calls on both sides of a trunk against a model of what each circuit holds, in one process, so that a seed says it all.
 * The model: for each direction of a circuit the messages that were sent and not read, without any limit. Checked:
 *
 * - what is read is what was sent, with its kinds and ends; nothing is there when the model has nothing;
 * - a circuit with less than its guarantee with the peer can always send;
 * - who was refused for want of credit is told when there is some; what comes is told;
 * - both sides are sound (sound.h) after each step, and quiet sides are at home.
 *
 *   model [--steps N] [--seed N]
 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned long long seed = 1, step_number;

#define CHECK(cond)                                                                             \
	do {                                                                                    \
		if (!(cond)) {                                                                  \
			fprintf(stderr, "seed %llu, step %llu: %s:%d: %s\n", seed, step_number, \
				__FILE__, __LINE__, #cond);                                     \
			abort();                                                                \
		}                                                                               \
	} while (0)

#include "base/own.h"
#include "base/util.h"
#include "channel/sound.h"
#include "channel/trunk_priv.h"

#define CIRCUITS 8
#define PENDING  4096 /* octets that the model can hold: more than all blocks */

static const struct trunk_shape shape = { .blocks = 32,
					  .block_size = 64,
					  .circuits = CIRCUITS,
					  .guarantee = 2 };
static struct trunk *side[2];

static uint64_t dice_state;

static uint32_t dice(uint32_t sides)
{
	dice_state = dice_state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(dice_state >> 33) % sides;
}

/* --- the model */

struct half {
	uint8_t octet[PENDING];
	uint8_t kind[PENDING];
	bool end[PENDING];  /* behind this octet */
	uint32_t n;         /* sent and not read */
	bool shut, dropped; /* by the sender of this direction */
	bool hungry;        /* the sender was refused the last time */
	bool wanted;        /* and some time since it was last told */
	uint8_t code;
};

enum phase { FREE, ASKED, TOLD, OPEN };

static struct model {
	enum phase phase; /* TOLD: the other side knows of the opening */
	bool accepted;    /* the opener knows of the answer */
	unsigned opener;
	bool here[2];        /* has not dropped it */
	struct half half[2]; /* by who sends */
	unsigned seen[2];    /* events told since */
} model[CIRCUITS];

static uint8_t next_octet;

static void remember(struct half *h, const uint8_t *data, size_t n, uint8_t kind, bool end)
{
	for (size_t i = 0; i < n; i++) {
		CHECK(h->n < PENDING);
		h->octet[h->n] = data[i];
		h->kind[h->n] = kind;
		h->end[h->n] = false;
		h->n++;
	}
	if (end && n)
		h->end[h->n - 1] = true;
}

static void read_off(struct half *h, const uint8_t *data, size_t n)
{
	CHECK(n <= h->n && memcmp(data, h->octet, n) == 0);
	h->n -= (uint32_t)n;
	memmove(h->octet, h->octet + n, h->n);
	memmove(h->kind, h->kind + n, h->n);
	memmove(h->end, h->end + n, h->n * sizeof(bool));
}

/* Octets up to the first end, or 0. */
static uint32_t first_message(const struct half *h)
{
	for (uint32_t i = 0; i < h->n; i++)
		if (h->end[i])
			return i + 1;
	return 0;
}

/* Both have left it. */
static void maybe_forget(struct model *m)
{
	if (!m->here[0] && !m->here[1])
		memset(m, 0, sizeof(*m));
}

/* --- calls */

static void do_open(unsigned s)
{
	uint8_t text[1] = { 'o' };
	int c = trunk_open(side[s], text, 1, NULL);
	struct model *m;

	if (c < 0) {
		CHECK(c == -ENOSPC);
		return;
	}
	CHECK((unsigned)c % 2 == s && c < CIRCUITS);
	m = &model[c];
	CHECK(m->phase == FREE);
	m->phase = ASKED;
	m->opener = s;
	m->here[0] = m->here[1] = true;
	m->seen[0] = m->seen[1] = 0;
}

static void drop(unsigned s, uint32_t c, uint8_t code)
{
	struct model *m = &model[c];

	trunk_drop(side[s], c, code);
	m->here[s] = false;
	m->half[s].dropped = true;
	m->half[s].code = code;
	m->half[!s].n = 0;
}

static bool knows(const struct model *m, unsigned s)
{
	return m->phase != FREE && m->here[s] &&
	       (m->opener == s || (m->phase != ASKED && m->phase != FREE));
}

/* Can it move octets? The answer may have been taken in by another call, and not be told yet. */
static bool is_live(const struct model *m, unsigned s)
{
	return m->phase == OPEN && m->here[s] &&
	       (m->opener != s || side[s]->circuit[m - model].state == CIRCUIT_LIVE);
}

static void do_answer(unsigned s, uint32_t c)
{
	struct model *m = &model[c];
	uint8_t text[4];
	int rc;

	if (m->phase != TOLD || m->opener == s || !m->here[s])
		return;
	CHECK(trunk_greeting(side[s], c, text, 4) == 1);
	if (dice(6) == 0) {
		rc = trunk_refuse(side[s], c, 5, "n", 1);
		CHECK(rc == (m->here[!s] ? 0 : -ECONNRESET));
		m->here[s] = false;
		m->half[s].dropped = true;
		maybe_forget(m);
		return;
	}
	rc = trunk_accept(side[s], c, "y", 1, NULL);
	CHECK(rc == (m->here[!s] ? 0 : -ECONNRESET));
	if (rc == 0) {
		m->phase = OPEN;
	} else {
		drop(s, c, 0);
		maybe_forget(m);
	}
}

/* A refusal for want of credit. */
static void refused(struct half *h, uint32_t out, size_t blocks, ssize_t rc)
{
	/* The guarantee. */
	CHECK(out + blocks > shape.guarantee);
	h->hungry = rc == -EAGAIN;
	h->wanted |= h->hungry;
}

static void sent(unsigned s, uint32_t c, struct iovec iov, uint8_t kind, unsigned flags, ssize_t rc)
{
	struct half *h = &model[c].half[s];
	size_t n = iov.iov_len;

	CHECK(rc > 0 && (size_t)rc <= n && (!(flags & TRUNK_WHOLE) || (size_t)rc == n));
	h->hungry = (size_t)rc < n;
	h->wanted |= h->hungry;
	if (model[c].here[!s])
		remember(h, iov.iov_base, (size_t)rc, kind,
			 (size_t)rc == n && !(flags & TRUNK_MORE));
}

static void do_send(unsigned s, uint32_t c)
{
	struct model *m = &model[c];
	size_t n = 1 + dice(dice(3) ? 100 : 600);
	unsigned flags = dice(3) == 0 ? TRUNK_WHOLE : dice(3) == 0 ? TRUNK_MORE : 0;
	uint8_t data[600], kind = (uint8_t)dice(256);
	struct iovec iov[2] = { { data, n / 2 }, { data + n / 2, n - n / 2 } };
	uint32_t out = side[s]->circuit[c].out;
	ssize_t rc;

	for (size_t i = 0; i < n; i++)
		data[i] = next_octet++;
	rc = trunk_send(side[s], c, iov, 2, kind, flags);
	if (!is_live(m, s))
		CHECK(rc == -ENOTCONN || rc == -EPIPE);
	else if (m->half[s].shut)
		CHECK(rc == -EPIPE);
	else if (rc == -EPIPE)
		CHECK(!m->here[!s]);
	else if (rc == -EAGAIN || rc == -EMSGSIZE)
		refused(&m->half[s], out, flags & TRUNK_WHOLE ? (n + 63) / 64 : 1, rc);
	else
		sent(s, c, (struct iovec) { data, n }, kind, flags, rc);
}

/* What is said when nothing is there. */
static int nothing(const struct half *h)
{
	if (h->dropped && (h->code || !h->shut))
		return -ECONNRESET;
	return h->shut ? 0 : -EAGAIN;
}

/* `n` octets were wanted, and something is there. */
static void got(struct half *h, size_t n, unsigned flags, ssize_t rc, const uint8_t *data,
		const struct trunk_message *msg)
{
	size_t whole = first_message(h);

	if (flags & TRUNK_MESSAGE && whole > n) {
		CHECK(rc == -EMSGSIZE && msg->size == whole && msg->end);
		return;
	}
	/* Of a stream as much as has been taken in. */
	CHECK(flags & TRUNK_MESSAGE ? rc == (ssize_t)whole
				    : rc > 0 && rc <= (ssize_t)min_size(n, h->n));
	CHECK(msg->kind == h->kind[0] && msg->size == (size_t)rc && msg->end == h->end[rc - 1]);
	if (flags & TRUNK_PEEK)
		CHECK(memcmp(data, h->octet, (size_t)rc) == 0);
	else
		read_off(h, data, (size_t)rc);
}

static void do_recv(unsigned s, uint32_t c)
{
	struct half *h = &model[c].half[!s];
	unsigned flags = (dice(2) ? TRUNK_MESSAGE : 0) | (dice(5) == 0 ? TRUNK_PEEK : 0);
	size_t n = 1 + dice(dice(2) ? 60 : 700);
	uint8_t data[700];
	struct iovec iov[2] = { { data, n / 3 }, { data + n / 3, n - n / 3 } };
	struct trunk_message msg;
	ssize_t rc = trunk_recv(side[s], c, iov, 2, flags, &msg);

	if (!is_live(&model[c], s))
		CHECK(rc < 0);
	else if (flags & TRUNK_MESSAGE ? first_message(h) == 0 : h->n == 0)
		CHECK(rc == nothing(h));
	else
		got(h, n, flags, rc, data, &msg);
}

static uint32_t held[2][32], n_held[2];

static void do_take(unsigned s, uint32_t c)
{
	struct model *m = &model[c];
	struct half *h = &m->half[!s];
	struct trunk_block b;
	int rc;

	if (n_held[s] == 4 || !is_live(m, s)) {
		if (n_held[s])
			trunk_give(side[s], held[s][--n_held[s]]);
		return;
	}
	rc = trunk_take(side[s], c, &b);
	if (rc != 1) {
		CHECK(h->n == 0 && rc == nothing(h));
		return;
	}
	CHECK(b.size > 0 && b.size <= h->n && b.kind == h->kind[0] && b.end == h->end[b.size - 1]);
	read_off(h, b.data, b.size);
	held[s][n_held[s]++] = b.index;
}

static void do_shut(unsigned s, uint32_t c)
{
	struct model *m = &model[c];
	int rc = trunk_shut(side[s], c);

	if (is_live(m, s) && !m->half[s].shut) {
		CHECK(rc == 0 || (rc == -EPIPE && !m->here[!s]));
		m->half[s].shut |= rc == 0;
	} else {
		CHECK(rc < 0);
	}
}

static void do_drop(unsigned s, uint32_t c)
{
	if (!knows(&model[c], s))
		return;
	drop(s, c, (uint8_t)dice(3));
	maybe_forget(&model[c]);
}

static void told(unsigned s, const struct trunk_event *ev)
{
	struct model *m = &model[ev->circuit];
	struct half *in = &m->half[!s];

	if (ev->bits & TRUNK_OPENED) {
		CHECK(m->phase == ASKED && m->opener != s);
		m->phase = TOLD;
	}
	if (ev->bits & TRUNK_ACCEPTED) {
		CHECK(m->opener == s && m->phase == OPEN && !m->accepted);
		m->accepted = true;
	}
	if (ev->bits & TRUNK_REFUSED)
		CHECK(m->opener == s && ev->code == 5 && !m->here[!s]);
	if (ev->bits & TRUNK_SHUT)
		CHECK(in->shut);
	if (ev->bits & TRUNK_ENDED)
		CHECK(!m->here[!s] && ev->code == in->code);
	if (ev->bits & TRUNK_WRITABLE) {
		CHECK(m->half[s].wanted);
		/* It may have been refused again since that happened. */
		m->half[s].hungry = m->half[s].wanted = side[s]->circuit[ev->circuit].flags &
							CIRCUIT_STARVED;
	}
	CHECK(m->here[s]);
	m->seen[s] |= ev->bits;
}

static void do_poll(unsigned s)
{
	struct trunk_event ev[4];
	int n = trunk_poll(side[s], ev, 1 + (int)dice(4));

	CHECK(n >= 0);
	for (int i = 0; i < n; i++)
		told(s, &ev[i]);
}

/* --- quiet: everything is read and dropped, and nothing is missing */

static void poll_all(void)
{
	struct trunk_event ev[CIRCUITS];
	int n;

	for (int round = 0; round < 4; round++)
		for (unsigned s = 0; s < 2; s++)
			while ((n = trunk_poll(side[s], ev, CIRCUITS)) > 0)
				for (int i = 0; i < n; i++)
					told(s, &ev[i]);
}

static void go_quiet(void)
{
	for (unsigned s = 0; s < 2; s++)
		while (n_held[s])
			trunk_give(side[s], held[s][--n_held[s]]);
	poll_all();
	for (uint32_t c = 0; c < CIRCUITS; c++) {
		for (unsigned s = 0; s < 2; s++) {
			/* Somebody who waits for credit and got some has been told. */
			if (is_live(&model[c], s) && model[c].half[s].hungry &&
			    !model[c].half[s].shut)
				CHECK(side[s]->circuit[c].flags & CIRCUIT_STARVED ||
				      !model[c].here[!s]);
			if (knows(&model[c], s))
				drop(s, c, 0);
			model[c].here[s] = false;
		}
		maybe_forget(&model[c]);
	}
	poll_all();
	for (unsigned s = 0; s < 2; s++) {
		CHECK(trunk_status(side[s]) == 0);
		CHECK(side[s]->n_free == shape.blocks && side[s]->surplus_used == 0);
		for (uint32_t c = 0; c < CIRCUITS; c++)
			CHECK(side[s]->circuit[c].state == CIRCUIT_FREE);
	}
}

static void step(void)
{
	unsigned s = dice(2);
	uint32_t c = dice(CIRCUITS);

	switch (dice(16)) {
	case 0: do_open(s); break;
	case 1: do_answer(s, c); break;
	case 2: dice(8) == 0 ? do_shut(s, c) : do_poll(s); break;
	case 3: dice(12) == 0 ? do_drop(s, c) : do_poll(s); break;
	case 4:
	case 5: do_take(s, c); break;
	case 6:
	case 7:
	case 8:
	case 9: do_send(s, c); break;
	case 10:
	case 11:
	case 12: do_recv(s, c); break;
	default: do_poll(s); break;
	}
	check_sound(side[s]);
}

static void run(unsigned long long steps)
{
	int fd = trunk_memory(&shape);

	CHECK(fd >= 0);
	for (unsigned s = 0; s < 2; s++)
		CHECK(trunk_attach(fd, s, -1, 0, &side[s]) == 0);
	own_close(fd);
	for (step_number = 0; step_number < steps; step_number++) {
		step();
		if (step_number % 5000 == 4999)
			go_quiet();
	}
	go_quiet();
	for (unsigned s = 0; s < 2; s++)
		trunk_close(side[s]);
}

int main(int argc, char **argv)
{
	unsigned long long steps = 300000;

	for (int i = 1; i + 1 < argc; i += 2) {
		if (!strcmp(argv[i], "--steps"))
			steps = strtoull(argv[i + 1], NULL, 0);
		else if (!strcmp(argv[i], "--seed"))
			seed = strtoull(argv[i + 1], NULL, 0);
	}
	dice_state = seed;
	run(steps);
	printf("seed %llu: %llu steps\n", seed, steps);
	return 0;
}
