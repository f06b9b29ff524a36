/* SPDX-License-Identifier: MIT */
/* The carrier, the stream and chance. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/util.h"
#include "lane/course.h"

/* Nobody sleeps so long in a test that goes on. */
#define LONG_MS 60000

/* --- in memory */

static size_t queue_put(struct carrier *c, const uint8_t *from, size_t n)
{
	n = min_size(n, c->size - c->count);
	for (size_t i = 0; i < n; i++)
		c->queue[(c->first + c->count + i) % c->size] = from[i];
	c->count += n;
	return n;
}

static size_t queue_get(struct carrier *c, uint8_t *to, size_t n, bool peek)
{
	n = min_size(n, c->count);
	for (size_t i = 0; i < n; i++)
		to[i] = c->queue[(c->first + i) % c->size];
	if (!peek) {
		c->first = (c->first + n) % c->size;
		c->count -= n;
	}
	return n;
}

static bool queue_await(struct carrier *c)
{
	(void)c;
	return true;
}

void carrier_init_queue(struct carrier *c, uint8_t *memory, size_t size)
{
	*c = (struct carrier) { .put = queue_put,
				.get = queue_get,
				.await = queue_await,
				.queue = memory,
				.size = size,
				.fits = size };
}

/* --- in the kernel */

static size_t socket_put(struct carrier *c, const uint8_t *from, size_t n)
{
	ssize_t sent = send(c->fd[0], from, n, MSG_DONTWAIT | MSG_NOSIGNAL);

	return sent > 0 ? (size_t)sent : 0;
}

static size_t socket_get(struct carrier *c, uint8_t *to, size_t n, bool peek)
{
	ssize_t got = recv(c->fd[1], to, n, MSG_DONTWAIT | (peek ? MSG_PEEK : 0));

	return got > 0 ? (size_t)got : 0;
}

static bool socket_await(struct carrier *c)
{
	struct pollfd p = { .fd = c->fd[1], .events = POLLIN };

	return poll(&p, 1, LONG_MS) == 1;
}

bool carrier_init_socket(struct carrier *c)
{
	*c = (struct carrier) {
		.put = socket_put, .get = socket_get, .await = socket_await, .fits = 16384
	};
	return socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, c->fd) == 0;
}

void carrier_fini_socket(struct carrier *c)
{
	close(c->fd[0]);
	close(c->fd[1]);
}

/* --- chance */

uint32_t dice_roll(struct dice *d, uint32_t sides)
{
	d->state ^= d->state << 13;
	d->state ^= d->state >> 7;
	d->state ^= d->state << 17;
	return (uint32_t)((d->state >> 16) % sides);
}

size_t dice_size(struct dice *d, bool large)
{
	static const uint32_t most[] = { 1, 2, 16, 300, 5000 };

	if (large)
		return 1 + dice_roll(d, STREAM_PIECE - 1);
	return 1 + dice_roll(d, most[dice_roll(d, ARRAY_SIZE(most))]);
}

/* --- the stream */

/* Longer than the ring, and no multiple of it or of a page. */
#define PERIOD ((1u << 20) + 7)

static uint8_t stream[PERIOD + STREAM_PIECE];

void stream_fill(uint64_t seed)
{
	struct dice d = { seed * 2 + 1 };

	for (uint32_t i = 0; i < PERIOD; i++)
		stream[i] = (uint8_t)dice_roll(&d, 256);
	memcpy(stream + PERIOD, stream, STREAM_PIECE);
}

const uint8_t *stream_at(uint64_t pos)
{
	return &stream[pos % PERIOD];
}

/* --- faults */

void (*course_on_fail)(void);

void course_fail(const char *what)
{
	fprintf(stderr, "violated: %s\n", what);
	if (course_on_fail)
		course_on_fail();
	exit(EXIT_FAILURE);
}
