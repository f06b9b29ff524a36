/* SPDX-License-Identifier: MIT */
/*
 * race [--rounds N]
 *
 * The sender takes octets back because it was asked to, while the receiver loses its patience and
 * does so itself, or takes its wish back and reads on. In every round both begin at the same moment;
 * exactly one may have its way, and a sound lane is never called broken.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lane/course.h"

#define UNREAD 10u

static struct lane_dir dir;
static uint8_t ring[LANE_RING];
static struct lane_tx tx;
static struct lane_rx rx;
static uint64_t rounds = 30000, now, seen[4];
/* Each end counts the moments it has reached: two in a round. */
static _Atomic uint64_t moment[2];
static int recalled;

static void tell(void)
{
	fprintf(stderr, "round %" PRIu64 ", sender %d, word %016" PRIx64 "\n", now, recalled,
		atomic_load(&dir.word));
}

static void meet(int me)
{
	const struct timespec nap = { .tv_nsec = 10000 };
	uint64_t mine = atomic_fetch_add(&moment[me], 1) + 1;

	for (unsigned i = 1; atomic_load(&moment[1 - me]) < mine; i++)
		if (i % 4096 == 0)
			nanosleep(&nap, NULL);
}

static void begin(void)
{
	uint64_t word;
	size_t room = 0, limit = 0;

	memset((void *)&dir, 0, sizeof(dir));
	lane_tx_init(&tx, &dir, ring, 1000);
	lane_rx_init(&rx, &dir, ring, 1000);
	lane_rx_attach(&rx);
	COURSE_CHECK(lane_tx_look(&tx, UNREAD, &word, &room) == LANE_RING_OK);
	COURSE_CHECK(lane_tx_publish(&tx, word, UNREAD, false));
	COURSE_CHECK(lane_rx_look(&rx, &word, &limit) == LANE_FROM_RING);
	atomic_fetch_or(&dir.word, LANE_GONE | LANE_RECALL);
}

static void *send_back(void *arg)
{
	struct iovec piece[2];

	for (uint64_t i = 0; i < rounds; i++) {
		meet(1);
		recalled = lane_tx_recall(&tx, piece);
		meet(1);
	}
	return arg;
}

/* Whoever had its way, both must agree on what is where. */
static void check(bool mine, bool withdrawn)
{
	uint64_t word;
	size_t room = 0, limit = 0;
	enum lane_from from;

	COURSE_CHECK(recalled != -1);
	COURSE_CHECK(recalled < 0 || !mine); /* not twice */
	COURSE_CHECK(recalled > 0 || mine || withdrawn);
	COURSE_CHECK(lane_tx_look(&tx, 1, &word, &room) != LANE_BROKEN);
	from = lane_rx_look(&rx, &word, &limit);
	COURSE_CHECK(from == (recalled > 0 || mine ? LANE_FROM_OPEN : LANE_FROM_RING));
	COURSE_CHECK(rx.pos == 1000);
	seen[(recalled > 0) + 2 * withdrawn]++;
}

int main(int argc, char **argv)
{
	struct iovec piece[2];
	struct dice dice = { 12345 };
	pthread_t thread;

	if (argc == 3 && strcmp(argv[1], "--rounds") == 0)
		rounds = strtoull(argv[2], NULL, 0);
	course_on_fail = tell;
	begin();
	COURSE_CHECK(pthread_create(&thread, NULL, send_back, NULL) == 0);
	for (now = 0; now < rounds; now++) {
		bool withdraw = now & 1, mine = false;

		meet(0);
		for (uint32_t i = dice_roll(&dice, 40); i > 0; i--)
			__atomic_signal_fence(__ATOMIC_SEQ_CST);
		if (withdraw) {
			withdraw = atomic_fetch_and(&dir.word, ~LANE_RECALL) & LANE_RECALL;
		} else if (lane_rx_take_back(&rx, piece) > 0) {
			mine = true;
			lane_rx_taken_back(&rx, true);
		}
		meet(0);
		check(mine, withdraw);
		begin();
	}
	pthread_join(thread, NULL);
	printf("%" PRIu64 " rounds: taken back by the receiver %" PRIu64 ", by the sender %" PRIu64
	       ", wish withdrawn %" PRIu64 "\n",
	       rounds, seen[0], seen[1], seen[2]);
	COURSE_CHECK(seen[3] == 0);
	return EXIT_SUCCESS;
}
