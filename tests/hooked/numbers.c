/* SPDX-License-Identifier: MIT */
/*
 * A descriptor number that is closed, given to another connection and used, all at the same time by different
 * threads. Whatever a send() finds there, all its octets belong to that one connection: what arrives at the far ends
 * is whole letters, each once, with numbers that rise.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/util.h"
#include "hooked/scenes.h"

#define NUMBER 700 /* above what the other threads are given, below what the library keeps */
#define FAR    4   /* far ends that are read at a time */
#define BODY   (200 << 10)
#define MAGIC  0x72657474656c2021ull

struct letter {
	uint64_t magic;
	uint64_t serial;
	uint64_t size; /* of the body, whose flow has the serial number as its key */
};

static _Atomic bool done;
static _Atomic int far[FAR]; /* descriptor + 1, for a reader to take; 0: free */

static void *send_letters(void *arg)
{
	struct random r = crowd_random();
	uint8_t *buffer = malloc(sizeof(struct letter) + BODY);
	uint64_t serial = 0;

	(void)arg;
	while (!atomic_load(&done)) {
		struct letter l = { MAGIC, ++serial, random_size(&r, 0, BODY) };
		struct flow flow = { .key = serial };

		memcpy(buffer, &l, sizeof(l));
		flow_fill(&flow, buffer + sizeof(l), l.size);
		/* On a closed number, or after a reset: the next one. */
		if (crowd_put(&r, NUMBER, buffer, sizeof(l) + l.size, 0) < 0)
			crowd_nap(&r, 100);
	}
	crowd_did("letters sent", serial);
	free(buffer);
	return NULL;
}

/* A call that does not block leaves parts of letters, so it gets a direction that nobody checks. */
static void *receive_anything(void *arg)
{
	struct random r = crowd_random();
	uint8_t buffer[4096];
	uint64_t got = 0;

	(void)arg;
	while (!atomic_load(&done)) {
		ssize_t n;

		if (random_below(&r, 2))
			crowd_wait(&r, NUMBER, POLLIN);
		n = crowd_take(&r, NUMBER, buffer, sizeof(buffer), MSG_DONTWAIT);
		got += n > 0 ? (size_t)n : 0;
		if (n < 0)
			crowd_nap(&r, 100);
	}
	crowd_did("octets received by number", got);
	return NULL;
}

struct reader {
	struct letter letter;
	size_t have; /* octets of letter */
	struct flow body;
	uint64_t last;
};

/* False: this is not how letters look. */
static bool read_letters(struct reader *s, const uint8_t *from, size_t n)
{
	while (n > 0) {
		size_t part;

		if (s->have < sizeof(s->letter)) {
			part = min_size(n, sizeof(s->letter) - s->have);
			memcpy((uint8_t *)&s->letter + s->have, from, part);
			s->have += part;
			s->body = (struct flow) { .key = s->letter.serial };
			if (s->have == sizeof(s->letter) &&
			    (s->letter.magic != MAGIC || s->letter.serial <= s->last ||
			     s->letter.size > BODY))
				return false;
		} else {
			part = min_size(n, s->letter.size - s->body.at);
			if (flow_match(&s->body, from, part) != part)
				return false;
			s->body.at += part;
		}
		from += part;
		n -= part;
		if (s->have == sizeof(s->letter) && s->body.at == s->letter.size) {
			s->last = s->letter.serial;
			s->have = 0;
		}
	}
	return true;
}

static void read_far(struct random *r, int fd)
{
	struct reader s = { 0 };
	uint8_t buffer[16384];
	uint8_t word[300] = { 0 };
	bool reset = false;
	ssize_t n;

	for (;;) {
		n = crowd_take(r, fd, buffer, sizeof(buffer), 0);
		if (n <= 0)
			break;
		if (!read_letters(&s, buffer, (size_t)n)) {
			crowd_bad(
				"what arrived is no letter: serial %llu after %llu, %zu/%llu octets",
				(unsigned long long)s.letter.serial, (unsigned long long)s.last,
				s.have, (unsigned long long)s.body.at);
			break;
		}
		if (random_below(r, 4) == 0)
			reset |= crowd_put(r, fd, word, sizeof(word), MSG_DONTWAIT) < 0 &&
				 errno != EAGAIN;
	}
	/* A reset, as what went back was not read, may cut the last one. The end may not. */
	if (n == 0 && s.have > 0 && !reset)
		crowd_bad("letter %llu was cut off", (unsigned long long)s.letter.serial);
	close(fd);
}

static void *read_far_ends(void *arg)
{
	struct random r = crowd_random();
	uint64_t ends = 0;

	(void)arg;
	while (!atomic_load(&done)) {
		int fd = 0;

		for (int i = 0; i < FAR && !fd; i++)
			fd = atomic_exchange(&far[i], 0);
		if (!fd) {
			stage_nap(100);
			continue;
		}
		read_far(&r, fd - 1);
		ends++;
	}
	crowd_did("far ends", ends);
	return NULL;
}

static void hand_over(int fd)
{
	for (int i = 0; !crowd_over(); i = (i + 1) % FAR) {
		int none = 0;

		if (atomic_compare_exchange_strong(&far[i], &none, fd + 1))
			return;
		if (i == 0)
			stage_nap(100);
	}
	close(fd);
}

/* The connection gets the number; what was there is closed before or by it. */
static void move_in(struct random *r, int fd)
{
	switch (random_below(r, 3)) {
	case 0: dup2(fd, NUMBER); break;
	case 1:
		close(NUMBER);
		crowd_nap(r, 50);
		if (fcntl(fd, F_DUPFD_CLOEXEC, NUMBER) != NUMBER)
			crowd_bad("the number is taken");
		break;
	default: dup3(fd, NUMBER, O_CLOEXEC);
	}
	close(fd);
}

void scene_numbers(void)
{
	struct random r = crowd_random();
	int listener = stage_listen(AF_INET, 16);
	pthread_t thread[2 + FAR];
	uint64_t moves = 0;
	int n = 0;

	thread[n++] = crowd_start(send_letters, NULL);
	thread[n++] = crowd_start(receive_anything, NULL);
	for (int i = 0; i < FAR; i++)
		thread[n++] = crowd_start(read_far_ends, NULL);
	while (!crowd_over()) {
		int fd[2];

		crowd_pair(listener, fd);
		hand_over(fd[1]);
		move_in(&r, fd[0]);
		moves++;
		crowd_nap(&r, 5000);
	}
	/* First the senders and readers of the number come to an end, then the far ends. */
	atomic_store(&done, true);
	close(NUMBER);
	while (n > 0)
		crowd_join(thread[--n]);
	for (int i = 0; i < FAR; i++)
		if (atomic_load(&far[i]))
			close(atomic_load(&far[i]) - 1);
	close(listener);
	crowd_did("moves", moves);
}
