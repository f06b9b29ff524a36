/* SPDX-License-Identifier: MIT */
/*
 * A side of a trunk beside another process that writes anything anywhere in the memory, at the same time. It may end or garble
 * its own circuits; nothing else may happen: no crash, no endless loop, no wrong octet on the trunk beside it.
 *
 *   hostile [--calls N] [--seed N]
 */
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(cond)                                                                \
	do {                                                                       \
		if (!(cond)) {                                                     \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #cond); \
			abort();                                                   \
		}                                                                  \
	} while (0)

#include "base/own.h"
#include "base/util.h"
#include "channel/sound.h"
#include "channel/trunk_priv.h"

static const struct trunk_shape shape = { .blocks = 64,
					  .block_size = 128,
					  .circuits = 8,
					  .guarantee = 2 };

static uint64_t dice_state = 1, calls = 20000;

static uint32_t dice(uint32_t sides)
{
	dice_state = dice_state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(dice_state >> 33) % sides;
}

/* --- the trunk beside it, whose octets are right to the last one */

static struct trunk *good[2];
static uint32_t circuit;
static uint64_t sent, got;

static void open_good(void)
{
	struct trunk_event ev;
	int fd = trunk_memory(&shape), c;

	for (unsigned i = 0; i < 2; i++)
		CHECK(trunk_attach(fd, i, -1, 0, &good[i]) == 0);
	own_close(fd);
	c = trunk_open(good[0], NULL, 0, NULL);
	CHECK(c >= 0 && trunk_poll(good[1], &ev, 1) == 1);
	circuit = (uint32_t)c;
	CHECK(trunk_accept(good[1], circuit, NULL, 0, NULL) == 0);
	CHECK(trunk_poll(good[0], &ev, 1) == 1);
}

static void use_good(void)
{
	uint8_t data[300];
	size_t n = 1 + dice(sizeof(data));
	struct iovec iov = { data, n };
	ssize_t rc;

	for (size_t i = 0; i < n; i++)
		data[i] = (uint8_t)(sent + i);
	rc = trunk_send(good[0], circuit, &iov, 1, 0, 0);
	CHECK(rc > 0);
	sent += (uint64_t)rc;
	while (got < sent) {
		rc = trunk_recv(good[1], circuit, &iov, 1, 0, NULL);
		CHECK(rc > 0);
		for (ssize_t i = 0; i < rc; i++)
			CHECK(data[i] == (uint8_t)(got + (uint64_t)i));
		got += (uint64_t)rc;
	}
}

/* --- the hostile process: mostly the rules, so that it gets somewhere; sometimes not */

static uint32_t nasty(void)
{
	static const uint32_t values[] = { 0,   1,          2,          7,         8,   63,
					   64,  65,         66,         127,       128, 129,
					   130, 0x7fffffff, 0x80000000, 0xffffffff };

	return values[dice(ARRAY_SIZE(values))];
}

static void attack_entry(struct trunk *t)
{
	struct trunk_entry e = { .circuit = dice(dice(20) ? 8 : 65536),
				 .block = dice(dice(20) ? 64 : 65536),
				 .len = dice(20) ? dice(129) : nasty() & 0xfffff,
				 .kind = (uint8_t)dice(256),
				 .type = (uint8_t)dice(dice(20) ? 8 : 16) };
	uint32_t tail = atomic_load(&t->own->tail);

	atomic_store(&t->out_ring[tail & (ring_size(t) - 1)], entry_word(e));
	atomic_store(&t->own->tail, tail + 1 + (dice(500) == 0 ? nasty() : 0));
}

static void attack_back(struct trunk *t)
{
	uint32_t given = atomic_load(&t->own->given);

	atomic_store(&t->give_ring[given % shape.blocks], dice(50) ? dice(64) : nasty());
	atomic_store(&t->own->given, given + 1);
}

static void attack(struct trunk *t)
{
	volatile uint32_t *words = (volatile uint32_t *)t->map;
	uint32_t control = TRUNK_HEAD / 4;

	switch (dice(8)) {
	case 0: words[16 + dice(control - 16)] = nasty(); break;
	case 1: words[16 + dice(control - 16)] += dice(5) - 2; break;
	case 2: words[dice((uint32_t)(t->map_size / 4))] = nasty(); break;
	case 3: atomic_store(&t->own->head, atomic_load(&t->peer->tail)); break;
	case 4: attack_back(t); break;
	default: attack_entry(t); break;
	}
}

/* Answers like an honest side between the blows, so that circuits come to life. */
static void be_hostile(int memory, int sock, unsigned side)
{
	struct trunk_event ev[8];
	struct trunk *t;
	char data[300] = { 0 };
	struct iovec iov = { data, sizeof(data) };

	if (trunk_attach(memory, side, sock, 0, &t) != 0)
		_exit(1);
	for (int i = 0;; i++) {
		int n = trunk_poll(t, ev, 8);

		for (int k = 0; k < n; k++) {
			trunk_accept(t, ev[k].circuit, data, 10, NULL);
			trunk_recv(t, ev[k].circuit, &iov, 1, 0, NULL);
			iov.iov_len = dice(300);
			trunk_send(t, ev[k].circuit, &iov, 1, 0, 0);
		}
		if (i % 64 == 0)
			trunk_open(t, data, 20, NULL);
		if (dice(8) == 0)
			attack(t);
	}
}

/* --- the victim */

static void use(struct trunk *t)
{
	uint32_t c = dice(shape.circuits);
	uint8_t *data = malloc(300);
	struct iovec iov = { data, 1 + dice(299) };
	struct trunk_event ev[8];
	struct trunk_block b;

	memset(data, 7, 300);
	switch (dice(12)) {
	case 0: trunk_open(t, data, dice(100), NULL); break;
	case 1: trunk_accept(t, c, data, dice(100), NULL); break;
	case 2: trunk_refuse(t, c, 1, data, dice(100)); break;
	case 3: trunk_drop(t, c, (uint8_t)dice(2)); break;
	case 4: trunk_shut(t, c); break;
	case 5:
		if (trunk_take(t, c, &b) == 1) {
			CHECK(b.size <= shape.block_size);
			memset(b.data, 9, b.size);
			trunk_give(t, b.index);
		}
		break;
	case 6: trunk_wait(t, 1); break;
	case 7:
	case 8: trunk_send(t, c, &iov, 1, 1, dice(4)); break;
	case 9: trunk_recv(t, c, &iov, 1, dice(4), NULL); break;
	default: trunk_poll(t, ev, 8); break;
	}
	free(data);
	check_sound(t);
}

static uint64_t scene(unsigned side)
{
	int memory = trunk_memory(&shape), pair[2], status;
	uint64_t n = 0;
	struct trunk *t;
	pid_t pid;

	CHECK(memory >= 0 && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
	dice_state += 12345;
	/* Before there is anybody who could spoil it. */
	CHECK(trunk_attach(memory, side, pair[0], 0, &t) == 0);
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0)
		be_hostile(memory, pair[1], !side);
	close(pair[1]);
	own_close(memory);
	/* A while longer when it is over, too. */
	for (int after = 0; after < 50 && n < 2000; n++) {
		use(t);
		use_good();
		after += trunk_status(t) != 0;
	}
	kill(pid, SIGKILL);
	CHECK(waitpid(pid, &status, 0) == pid);
	trunk_close(t);
	return n;
}

int main(int argc, char **argv)
{
	uint64_t done = 0;
	unsigned scenes = 0;

	for (int i = 1; i + 1 < argc; i += 2) {
		if (!strcmp(argv[i], "--calls"))
			calls = strtoull(argv[i + 1], NULL, 0);
		else if (!strcmp(argv[i], "--seed"))
			dice_state = strtoull(argv[i + 1], NULL, 0);
	}
	open_good();
	while (done < calls)
		done += scene(scenes++ % 2);
	printf("%u scenes, %llu calls\n", scenes, (unsigned long long)done);
	return 0;
}
