/* SPDX-License-Identifier: MIT */
/*
 * hostile [--seed N] [--calls N] [--process]
 *
 * A victim sends and receives through a lane while somebody writes into it whatever may hurt
 * (attacker.h). The lane's memory stands between pages that nobody may touch, and so do the
 * victim's own buffers: an octet beside them ends the program. A call that goes on for ever is
 * counted out. Then the same in an arena, whose other lanes must stay as they are and work.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/util.h"
#include "lane/attacker.h"
#include "lane/course.h"
#include "channel/arena.h"

#define PAGE  4096u
#define TRIES 10000 /* as stream_priv.h */
#define WANT  (LANE_RING + 3 * PAGE)

static uint64_t seed;
static struct dice dice;

static struct {
	struct lane_tx tx;
	struct lane_rx rx;
	struct lane_dir *dir[2];
	uint8_t *ring[2];
	uint8_t *out, *in; /* WANT octets, then a page that nobody may touch */
	uint64_t calls, breaks, ring_octets, bells, recalls, wakes, rings;
} victim;

/* What all processes share. */
static struct {
	_Atomic uint32_t stop;
	_Atomic uint64_t pos, writes;
} * shared;

static void tell(void)
{
	fprintf(stderr, "seed %" PRIu64 ", call %" PRIu64 "\n", seed, victim.calls);
}

/* `size` octets, a multiple of 128, right before a page that must not be touched; also one at the
 * other end when it is a multiple of a page. */
static void *guarded(size_t size)
{
	size_t whole = (size + PAGE - 1) / PAGE * PAGE;
	uint8_t *m = mmap(NULL, whole + 2 * PAGE, PROT_NONE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	COURSE_CHECK(m != MAP_FAILED);
	COURSE_CHECK(mprotect(m + PAGE, whole, PROT_READ | PROT_WRITE) == 0);
	return m + PAGE + whole - size;
}

/* --- the victim */

/* A new connection on the same memory. */
static void connect_again(void)
{
	uint64_t pos = (uint64_t)dice_roll(&dice, 1 << 20) << 20;

	for (int i = 0; i < 2; i++) {
		atomic_store(&victim.dir[i]->word, 0);
		atomic_store(&victim.dir[i]->base, 0);
		atomic_store(&victim.dir[i]->head, 0);
		atomic_store(&victim.dir[i]->seen, 0);
	}
	lane_tx_init(&victim.tx, victim.dir[0], victim.ring[0], pos);
	lane_rx_init(&victim.rx, victim.dir[1], victim.ring[1], pos);
	lane_rx_attach(&victim.rx);
	/* The peer plays along at first, so that the attack meets a lane in use. */
	atomic_fetch_or(&victim.dir[0]->word, LANE_ATTACHED);
	atomic_store(&shared->pos, pos);
}

/* What a peer that plays along does: it takes what is there, and sends. */
static void play_along(void)
{
	uint32_t tail = (uint32_t)atomic_load(&victim.dir[0]->word);
	uint64_t w = atomic_load(&victim.dir[1]->word);
	uint16_t turns = lane_word_turns(w);
	uint32_t n = dice_roll(&dice, 2) ? 100 : LANE_RING;

	atomic_store(&victim.dir[0]->head, tail);
	atomic_store(&victim.dir[0]->seen, victim.tx.turns);
	if ((uint32_t)w != victim.rx.head)
		return;
	if (!(turns & 1))
		atomic_store(&victim.dir[1]->turn[turns++ % LANE_TURNS], victim.rx.pos);
	w = (w & ~0xffffffffffffull) | (uint64_t)turns << LANE_TURN_SHIFT | (victim.rx.head + n);
	atomic_store(&victim.dir[1]->word, w);
}

static bool put_ring(size_t want, size_t room, uint64_t word, bool bell)
{
	size_t n = min_size(room + bell, want);
	struct iovec iov[2] = { { victim.out + WANT - want + bell, (n - bell) / 2 },
				{ victim.out + WANT - want + bell + (n - bell) / 2,
				  n - bell - (n - bell) / 2 } };
	struct lane_iov from = { .iov = iov, .count = 2 };
	uint64_t before = victim.tx.pos;

	COURSE_CHECK(room <= LANE_RING);
	COURSE_CHECK(lane_tx_copy(&victim.tx, &from, n - bell) == n - bell);
	if (!lane_tx_publish(&victim.tx, word, n - bell, bell))
		return false;
	COURSE_CHECK(victim.tx.pos == before + n);
	victim.ring_octets += n - bell;
	victim.bells += bell;
	/* Who cannot ring must not be asked to. */
	COURSE_CHECK(!victim.tx.belled || victim.tx.can_ring);
	victim.wakes += victim.tx.wake;
	victim.rings += victim.tx.belled;
	return true;
}

/* As stream_leave(). */
static bool leave(void)
{
	struct iovec piece[2];
	uint64_t before = victim.tx.pos;

	if (atomic_load(&victim.dir[0]->word) & LANE_RECALL) {
		int n = lane_tx_recall(&victim.tx, piece);

		if (n == -1)
			return false;
		for (int i = 0; i < n; i++) {
			uint8_t *p = piece[i].iov_base;

			COURSE_CHECK(p >= victim.ring[0] &&
				     p + piece[i].iov_len <= victim.ring[0] + LANE_RING);
			victim.tx.pos += piece[i].iov_len;
		}
		victim.recalls += n > 0;
		COURSE_CHECK(victim.tx.pos == before);
		if (n >= 0)
			return true;
	}
	for (int tries = 0; tries < TRIES && lane_tx_in_ring(&victim.tx); tries++) {
		uint64_t word = atomic_load(&victim.dir[0]->word);

		if ((uint32_t)word != victim.tx.tail || lane_word_turns(word) != victim.tx.turns)
			return false;
		lane_tx_leave(&victim.tx, word);
	}
	return !lane_tx_in_ring(&victim.tx);
}

/* As put() of stream_tx.c. False: the connection is broken. */
static bool send_some(size_t want)
{
	for (int tries = 0; tries < TRIES; tries++) {
		uint64_t word;
		size_t room = 0;

		switch (lane_tx_look(&victim.tx, want, &word, &room)) {
		case LANE_CARRIER: victim.tx.pos += want; return true;
		case LANE_LEAVE:
			if (!leave())
				return false;
			break;
		case LANE_RING_OK:
			if (put_ring(want, room, word, false))
				return true;
			break;
		case LANE_OCTET:
			if (put_ring(want, room, word, true))
				return true;
			break;
		case LANE_FULL: return leave();
		case LANE_HELD: break;
		case LANE_BROKEN: return false;
		default: course_fail("a way that does not exist");
		}
	}
	return false;
}

static size_t copy_ring(size_t want, size_t n)
{
	struct iovec iov[2] = { { victim.in + WANT - want, want / 3 },
				{ victim.in + WANT - want + want / 3, want - want / 3 } };
	struct lane_iov to = { .iov = iov, .count = 2 };

	COURSE_CHECK(n <= LANE_RING);
	return lane_rx_copy(&victim.rx, &to, 0, min_size(n, want));
}

/* Nobody wakes us but an end of patience. */
static void fall_asleep(void)
{
	uint32_t value = 0;

	if (dice_roll(&dice, 2) && lane_rx_nap(&victim.rx, &value))
		COURSE_CHECK(value & LANE_NAPPING >> 32);
	if (lane_rx_arm(&victim.rx, lane_rx_here(&victim.rx), dice_roll(&dice, 2)))
		lane_rx_disarm(&victim.rx);
}

/* As gather() and peek() of stream_rx.c. */
static bool receive_some(size_t want, bool peek)
{
	size_t got = 0;

	for (int tries = 0; tries < TRIES && got < want; tries++) {
		uint64_t word;
		size_t limit = 0, n;

		switch (lane_rx_look(&victim.rx, &word, &limit)) {
		case LANE_FROM_RING:
			n = copy_ring(want - got, limit);
			COURSE_CHECK(n == min_size(limit, want - got) && n > 0);
			if (peek)
				return true;
			lane_rx_taken(&victim.rx, n, true);
			got += n;
			victim.ring_octets += n;
			break;
		case LANE_FROM_CARRIER:
			COURSE_CHECK(limit > 0);
			if (peek) {
				n = lane_rx_behind(&victim.rx, word);
				COURSE_CHECK(copy_ring(want, n) == min_size(n, want));
				return true;
			}
			n = 1 + dice_roll(&dice, (uint32_t)min_size(limit, want - got));
			lane_rx_taken(&victim.rx, n, false);
			got += n;
			break;
		case LANE_FROM_OPEN:
			if (!lane_rx_enter(&victim.rx, word))
				break;
			lane_rx_taken(&victim.rx, 1, false);
			lane_rx_exit(&victim.rx);
			return true;
		case LANE_FROM_NOTHING: fall_asleep(); return true;
		case LANE_FROM_BROKEN: return false;
		default: course_fail("a place that does not exist");
		}
	}
	COURSE_CHECK(got <= want);
	return got == want;
}

static bool one_call(void)
{
	size_t want = dice_roll(&dice, 4) ? 1 + dice_roll(&dice, 2000)
					  : 1 + dice_roll(&dice, WANT - 1);

	victim.calls++;
	(void)lane_rx_stirs(&victim.rx);
	(void)lane_tx_unread(&victim.tx);
	(void)lane_tx_carrier_is_empty(&victim.tx);
	(void)lane_rx_must_wake(&victim.rx);
	victim.wakes += lane_tx_rouse(&victim.tx);
	victim.tx.can_ring = dice_roll(&dice, 2);
	COURSE_CHECK(lane_rx_ready(&victim.rx) <= LANE_RING);
	atomic_store_explicit(&shared->pos, dice_roll(&dice, 2) ? victim.tx.pos : victim.rx.pos,
			      memory_order_relaxed);
	if (dice_roll(&dice, 8) == 0)
		play_along();
	if (dice_roll(&dice, 2))
		return send_some(want);
	return receive_some(want, dice_roll(&dice, 4) == 0);
}

/* --- beside it */

static struct area area;
static struct sender sender;
static struct receiver receiver;
static struct carrier carrier;
static uint8_t queue[PAGE], buffer[STREAM_PIECE];

static void begin_healthy(struct lane_shared *lane, uint8_t *ring)
{
	static const struct manners m = {
		.large = 20, .peek = 100, .edge = 50, .fright = 10, .nap = 300, .bell = 500
	};

	area = (struct area) { .dir = &lane->dir[0], .ring = ring };
	carrier_init_queue(&carrier, queue, sizeof(queue));
	course_begin(&area, &sender, &receiver, 0, 0, 0);
	sender.manners = receiver.manners = m;
	sender.carrier = receiver.carrier = &carrier;
	receiver.buffer = buffer;
	sender.dice.state = seed * 2 + 1;
	receiver.dice.state = seed * 4 + 3;
	sender.end = receiver.end = UINT64_MAX;
}

static void step_healthy(void)
{
	for (int i = 0; i < 20; i++) {
		if (dice_roll(&dice, 2))
			sender_step(&sender);
		else
			receiver_step(&receiver);
	}
}

/* --- scenes */

static const struct {
	const char *name;
	bool gentle;
	uint32_t pause;
} moods[] = {
	{ "wild", false, 0 },
	{ "wild, with pauses", false, 100 },
	{ "gentle", true, 0 },
	{ "gentle, with pauses", true, 100 },
};

static void run(size_t mood, uint64_t calls, bool process, bool healthy)
{
	struct attacker a = { .dir = { victim.dir[0], victim.dir[1] },
			      .pos = &shared->pos,
			      .stop = &shared->stop,
			      .writes = &shared->writes,
			      .gentle = moods[mood].gentle,
			      .pause = moods[mood].pause,
			      .dice = { seed * 8 + 5 } };

	victim.calls = victim.breaks = victim.ring_octets = victim.bells = victim.recalls = 0;
	victim.wakes = victim.rings = 0;
	atomic_store(&shared->stop, 0);
	atomic_store(&shared->writes, 0);
	connect_again();
	COURSE_CHECK(attacker_start(&a, process));
	/* On a busy machine the victim could be through before the attack begins. */
	while (atomic_load(&shared->writes) == 0)
		usleep(100);
	for (uint64_t i = 0; i < calls; i++) {
		if (!one_call()) {
			victim.breaks++;
			connect_again();
		}
		if (healthy)
			step_healthy();
	}
	COURSE_CHECK(attacker_stop(&a));
	printf("%s: %" PRIu64 " calls, %" PRIu64 " writes, broken %" PRIu64
	       " times; ring octets %" PRIu64 ", bells %" PRIu64 ", recalls %" PRIu64
	       ", wakes %" PRIu64 ", rings %" PRIu64 "\n",
	       moods[mood].name, victim.calls, atomic_load(&shared->writes), victim.breaks,
	       victim.ring_octets, victim.bells, victim.recalls, victim.wakes, victim.rings);
	fflush(stdout);
}

static void between_guards(uint64_t calls, bool process)
{
	for (int i = 0; i < 2; i++) {
		victim.dir[i] = guarded(sizeof(struct lane_dir));
		victim.ring[i] = guarded(LANE_RING);
	}
	for (size_t i = 0; i < ARRAY_SIZE(moods); i++)
		run(i, calls, process, false);
}

#define ATTACKED 5
#define HEALTHY  6

/* Where the canaries are: all lanes but those two. */
static bool is_canary(uint32_t lane)
{
	return lane != ATTACKED && lane != HEALTHY;
}

static void in_an_arena(uint64_t calls, bool process)
{
	struct arena_shared *m = mmap(NULL, sizeof(*m), PROT_READ | PROT_WRITE,
				      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	uint8_t *canary = buffer;

	COURSE_CHECK(m != MAP_FAILED);
	for (uint32_t i = 0; i < ARENA_LANES; i++) {
		if (!is_canary(i))
			continue;
		memset(&m->lane[i], 0x5a, sizeof(m->lane[i]));
		memset(m->ring[i], 0x5a, sizeof(m->ring[i]));
	}
	for (int i = 0; i < 2; i++) {
		victim.dir[i] = &m->lane[ATTACKED].dir[i];
		victim.ring[i] = m->ring[ATTACKED][i];
	}
	begin_healthy(&m->lane[HEALTHY], m->ring[HEALTHY][0]);
	for (size_t i = 0; i < ARRAY_SIZE(moods); i++)
		run(i, calls, process, true);
	COURSE_CHECK(receiver.count[COUNT_TAKEN] > 0);
	memset(canary, 0x5a, sizeof(m->ring[0]));
	for (uint32_t i = 0; i < ARENA_LANES; i++) {
		if (!is_canary(i))
			continue;
		COURSE_CHECK(memcmp(&m->lane[i], canary, sizeof(m->lane[i])) == 0);
		COURSE_CHECK(memcmp(m->ring[i], canary, sizeof(m->ring[i])) == 0);
	}
	munmap(m, sizeof(*m));
}

int main(int argc, char **argv)
{
	uint64_t calls = 200000;
	bool process = false;

	seed = (uint64_t)time(NULL);
	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
			seed = strtoull(argv[++i], NULL, 0);
		else if (strcmp(argv[i], "--calls") == 0 && i + 1 < argc)
			calls = strtoull(argv[++i], NULL, 0);
		else if (strcmp(argv[i], "--process") == 0)
			process = true;
	}
	printf("seed %" PRIu64 "\n", seed);
	course_on_fail = tell;
	stream_fill(seed);
	dice.state = seed * 0x9e3779b97f4a7c15ull | 1;
	shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	COURSE_CHECK(shared != MAP_FAILED);
	victim.out = guarded(WANT);
	victim.in = guarded(WANT);
	between_guards(calls, process);
	in_an_arena(calls, process);
	return EXIT_SUCCESS;
}
