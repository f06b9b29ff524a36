/* SPDX-License-Identifier: MIT */
/*
 * parallel [--seed N] [--lives N] [--threads | --processes]
 *
 * The two ends of course.h in two threads or in two processes, with a socket pair as the carrier:
 * now the processors interleave them. A receiver that nobody wakes fails after a minute.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/util.h"
#include "lane/course.h"

static struct memory {
	struct area area;
	struct lane_dir dir;
	uint8_t ring[LANE_RING];
} * memory; /* shared by both */
static struct area *area;
static struct sender sender;
static struct receiver receiver;
static struct carrier carrier;
static uint8_t buffer[STREAM_PIECE];
static struct dice dice;
static uint64_t seed;

static void tell(void)
{
	fprintf(stderr, "seed %" PRIu64 " word %016" PRIx64 "\n", seed,
		atomic_load(&area->dir->word));
}

/* Nothing to do now. A nap, not a yield: that gives a whole slice to whoever else is there. */
static void rest(void)
{
	const struct timespec nap = { .tv_nsec = 20000 };

	nanosleep(&nap, NULL);
}

/* Until the receiver has it all: it may still want something back. */
static void *send_all(void *arg)
{
	while (!atomic_load(&area->done))
		if (!sender_step(&sender))
			rest();
	return arg;
}

static void receive_all(void)
{
	while (!receiver_is_done(&receiver))
		if (!receiver_step(&receiver))
			rest();
	atomic_store(&area->done, 1);
}

static void begin(uint64_t pos)
{
	struct manners m = {
		.large = dice_roll(&dice, 2) ? 20 : 0,
		.pin = dice_roll(&dice, 8) ? 0 : 1,
		.step_down = dice_roll(&dice, 2) ? 0 : 2,
		.peek = dice_roll(&dice, 2) ? 0 : 200,
		.edge = dice_roll(&dice, 3) ? 0 : 10,
		.fright = dice_roll(&dice, 2) ? 0 : 20,
		.nap = dice_roll(&dice, 2) ? 0 : 700,
		.bell = dice_roll(&dice, 2) ? 0 : 100 + dice_roll(&dice, 900),
	};

	course_begin(area, &sender, &receiver, pos, 0u - dice_roll(&dice, 1 << 20),
		     (uint16_t)(2 * (32768 - dice_roll(&dice, 200))));
	sender.manners = receiver.manners = m;
	sender.carrier = receiver.carrier = &carrier;
	receiver.buffer = buffer;
	sender.dice.state = dice.state + 2;
	receiver.dice.state = dice.state + 4;
	sender.end = receiver.end = pos + 1 + dice_roll(&dice, 1 << 20);
}

static bool in_threads(void)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, send_all, NULL) != 0)
		return false;
	receive_all();
	return pthread_join(thread, NULL) == 0;
}

static bool in_processes(void)
{
	int status = 0;
	pid_t pid = fork();

	if (pid == 0) {
		send_all(NULL);
		_exit(EXIT_SUCCESS);
	}
	if (pid < 0)
		return false;
	receive_all();
	return waitpid(pid, &status, 0) == pid && status == 0;
}

int main(int argc, char **argv)
{
	uint64_t lives = 100;
	bool (*run)(void) = in_threads;
	uint64_t pos = 0;

	seed = (uint64_t)time(NULL);
	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
			seed = strtoull(argv[++i], NULL, 0);
		else if (strcmp(argv[i], "--lives") == 0 && i + 1 < argc)
			lives = strtoull(argv[++i], NULL, 0);
		else if (strcmp(argv[i], "--processes") == 0)
			run = in_processes;
	}
	printf("seed %" PRIu64 "\n", seed);
	course_on_fail = tell;
	stream_fill(seed);
	dice.state = seed * 0x9e3779b97f4a7c15ull | 1;
	memory = mmap(NULL, sizeof(*memory), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	COURSE_CHECK(memory != MAP_FAILED);
	area = &memory->area;
	area->dir = &memory->dir;
	area->ring = memory->ring;
	for (uint64_t i = 0; i < lives; i++) {
		COURSE_CHECK(carrier_init_socket(&carrier));
		begin(pos);
		COURSE_CHECK(run());
		pos = receiver.end;
		carrier_fini_socket(&carrier);
	}
	printf("%" PRIu64 " lives, %" PRIu64 " octets; ring %" PRIu64 ", slept %" PRIu64
	       ", napped %" PRIu64 ", heard the bell %" PRIu64 ", stepped down %" PRIu64 "\n",
	       lives, pos, receiver.count[COUNT_TAKEN], receiver.count[COUNT_SLEPT],
	       receiver.count[COUNT_NAPPED], receiver.count[COUNT_HEARD],
	       receiver.count[COUNT_DOWN]);
	/* What comes out of the ring at all shows that there was a lane to try. */
	COURSE_CHECK(lives < 20 || receiver.count[COUNT_TAKEN] > 0);
	return EXIT_SUCCESS;
}
