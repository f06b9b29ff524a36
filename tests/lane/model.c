/* SPDX-License-Identifier: MIT */
/*
 * model [--seed N] [--steps N]
 *
 * Two directions, so two senders and two receivers, in one thread; chance decides after every step
 * who makes the next. The seed is printed first; the same seed gives the same steps.
 *
 * Beside what the ends check themselves (course.h): a receiver that sleeps while octets are
 * published, with none on the carrier and none promised, would sleep for ever; and nobody may get
 * stuck.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/util.h"
#include "lane/course.h"

#define CARRIER_MOST (96u << 10)

static struct way {
	struct area area;
	struct lane_dir dir;
	uint8_t ring[LANE_RING];
	struct sender sender;
	struct receiver receiver;
	struct carrier carrier;
	uint8_t queue[CARRIER_MOST];
	uint8_t buffer[STREAM_PIECE];
	uint64_t idle; /* steps in a row that moved no octet */
} ways[2];

static struct dice dice;
static uint64_t seed, step, lives;

static void tell(void)
{
	fprintf(stderr, "seed %" PRIu64 ", step %" PRIu64 "\n", seed, step);
	for (int i = 0; i < 2; i++) {
		struct way *w = &ways[i];

		fprintf(stderr,
			"way %d: word %016" PRIx64 " sender %d pos %" PRIu64 " tail %" PRIu32
			" turns %u; receiver %d pos %" PRIu64 " head %" PRIu32
			" turns %u; carrier %zu\n",
			i, atomic_load(&w->area.dir->word), w->sender.state, w->sender.tx.pos,
			w->sender.tx.tail, w->sender.tx.turns, w->receiver.state,
			w->receiver.rx.pos, w->receiver.rx.head, w->receiver.rx.turns,
			w->carrier.count);
	}
}

/* A new life of a lane, often one where counters are about to wrap. */
static void begin(struct way *w)
{
	static const uint32_t tails[] = { 0, 0u - 1, 0u - LANE_REWIND, 0u - LANE_RING, 1u << 31 };
	static const uint32_t sizes[] = {
		10, 4096, 16384, CARRIER_MOST, CARRIER_MOST, CARRIER_MOST
	};
	static const uint32_t downs[] = { 0, 0, 2, 20 };
	uint64_t pos = w->sender.sent;
	struct manners m = {
		.large = dice_roll(&dice, 2) ? dice_roll(&dice, 300) : 5,
		.pin = dice_roll(&dice, 8) ? 0 : 10,
		.step_down = downs[dice_roll(&dice, ARRAY_SIZE(downs))],
		.peek = dice_roll(&dice, 2) ? 0 : 200,
		.edge = dice_roll(&dice, 3) ? 0 : 100,
		.fright = dice_roll(&dice, 2) ? 0 : 20,
		.nap = dice_roll(&dice, 2) ? 0 : 700,
		.bell = dice_roll(&dice, 2) ? 0 : 100 + dice_roll(&dice, 900),
	};

	carrier_init_queue(&w->carrier, w->queue,
			   1 + dice_roll(&dice, sizes[dice_roll(&dice, ARRAY_SIZE(sizes))]));
	course_begin(&w->area, &w->sender, &w->receiver, pos,
		     tails[dice_roll(&dice, ARRAY_SIZE(tails))],
		     (uint16_t)(2 * (32768 - dice_roll(&dice, 200))));
	w->sender.manners = w->receiver.manners = m;
	w->sender.carrier = w->receiver.carrier = &w->carrier;
	w->receiver.buffer = w->buffer;
	w->sender.end = w->receiver.end = pos + 1 + dice_roll(&dice, 1 + dice_roll(&dice, 4 << 20));
	lives++;
}

static void check(struct way *w)
{
	bool quiet = receiver_sleeps(&w->receiver) && w->carrier.count == 0;

	if (quiet && !sender_owes(&w->sender) &&
	    (receiver_misses(&w->receiver) ||
	     (!w->receiver.edge && w->sender.tx.pos > w->receiver.rx.pos)))
		course_fail("the receiver sleeps on octets that were published");
	if (receiver_oversleeps(&w->receiver) && !sender_owes(&w->sender))
		course_fail("a nap goes on though octets were published");
	if (w->idle > 100000)
		course_fail("nothing moves");
}

/* On the carrier for good there is little left to learn: let the life end soon. */
static void shorten(struct way *w)
{
	uint64_t end = w->sender.sent + w->sender.left + 2000;

	if ((w->receiver.stepped || w->sender.pinned) && !lane_tx_in_ring(&w->sender.tx) &&
	    !sender_owes(&w->sender) && w->sender.end > end)
		w->sender.end = w->receiver.end = end;
}

/* Whose turn is it? One end may be left where it stands for a while: the other fills rings and
 * carriers meanwhile, or goes far ahead in the middle of what the first one does. */
static bool is_senders_turn(void)
{
	static uint32_t bias = 50, left;

	if (left-- == 0) {
		uint32_t phase = dice_roll(&dice, 6);

		bias = phase == 0 ? 0 : phase == 1 ? 100 : 20 + dice_roll(&dice, 60);
		left = dice_roll(&dice, 300);
	}
	return dice_roll(&dice, 100) < bias;
}

static void run(uint64_t steps)
{
	for (; step < steps; step++) {
		struct way *w = &ways[dice_roll(&dice, 2)];
		uint64_t before = w->sender.tx.pos + w->receiver.rx.pos;

		if (is_senders_turn())
			(void)(sender_step(&w->sender) || receiver_step(&w->receiver));
		else
			(void)(receiver_step(&w->receiver) || sender_step(&w->sender));
		w->idle = w->sender.tx.pos + w->receiver.rx.pos != before ? 0 : w->idle + 1;
		check(w);
		shorten(w);
		if (sender_is_done(&w->sender) && receiver_is_done(&w->receiver))
			begin(w);
	}
}

/* What a run has not done it has not tried. */
static void summary(bool enough)
{
	static const char *const out[] = { "ring",   "carrier", "bell", "full", "leave",
					   "recall", "wake",    "rang", "kept" };
	static const char *const in[] = { "taken", "limited", "open",   "slept", "behind",
					  "down",  "back",    "napped", "heard" };

	printf("%" PRIu64 " steps, %" PRIu64 " lives\n", step, lives);
	for (size_t i = 0; i < ARRAY_SIZE(out); i++) {
		uint64_t n = ways[0].sender.count[i] + ways[1].sender.count[i];

		printf("%s %" PRIu64 "%s", out[i], n, i + 1 < ARRAY_SIZE(out) ? ", " : "\n");
		if (enough && n == 0 && i != COUNT_KEPT)
			course_fail("a way that was never taken");
	}
	for (size_t i = 0; i < ARRAY_SIZE(in); i++) {
		uint64_t n = ways[0].receiver.count[i] + ways[1].receiver.count[i];

		printf("%s %" PRIu64 "%s", in[i], n, i + 1 < ARRAY_SIZE(in) ? ", " : "\n");
		if (enough && n == 0)
			course_fail("a way that was never taken");
	}
}

int main(int argc, char **argv)
{
	uint64_t steps = 200000;

	seed = (uint64_t)time(NULL);
	for (int i = 1; i + 1 < argc; i += 2) {
		if (strcmp(argv[i], "--seed") == 0)
			seed = strtoull(argv[i + 1], NULL, 0);
		else if (strcmp(argv[i], "--steps") == 0)
			steps = strtoull(argv[i + 1], NULL, 0);
	}
	printf("seed %" PRIu64 "\n", seed);
	course_on_fail = tell;
	stream_fill(seed);
	dice.state = seed * 0x9e3779b97f4a7c15ull | 1;
	for (int i = 0; i < 2; i++) {
		struct way *w = &ways[i];

		w->area = (struct area) { .dir = &w->dir, .ring = w->ring };
		w->sender.dice.state = dice.state + 2 + 4 * (uint64_t)i;
		w->receiver.dice.state = dice.state + 4 + 4 * (uint64_t)i;
		w->sender.sent = dice_roll(&dice, 2) ? 0 : (1ull << 32) - 1000000;
		begin(w);
	}
	run(steps);
	summary(steps >= 1000000);
	return EXIT_SUCCESS;
}
