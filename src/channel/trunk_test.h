/* SPDX-License-Identifier: MIT */
/* Two sides of a trunk in one process, and short ways to use them. */
#ifndef FLUE_CHANNEL_TRUNK_TEST_H
#define FLUE_CHANNEL_TRUNK_TEST_H

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/own.h"
#include "base/own_test.h"
#include "channel/trunk_priv.h"

static struct trunk *side[2];

static const struct trunk_shape small_shape = { .blocks = 16,
						.block_size = 64,
						.circuits = 4,
						.guarantee = 2 };

static inline void attach_pair(const struct trunk_shape *shape, bool socks)
{
	int fd = trunk_memory(shape), pair[2] = { -1, -1 };

	assert_true(fd >= 0);
	if (socks)
		assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(trunk_attach(fd, i, pair[i], 0, &side[i]), 0);
	own_close(fd);
}

static inline void close_pair(void)
{
	for (int i = 0; i < 2; i++)
		trunk_close(side[i]);
}

/* The bits of one circuit, all else being quiet. */
static inline unsigned poll_one(struct trunk *t, uint32_t c)
{
	struct trunk_event ev[8];
	unsigned bits = 0;
	int n;

	while ((n = trunk_poll(t, ev, 8)) > 0) {
		for (int i = 0; i < n; i++) {
			assert_int_equal(ev[i].circuit, c);
			bits |= ev[i].bits;
		}
	}
	assert_int_equal(n, 0);
	return bits;
}

static inline ssize_t send_text(struct trunk *t, uint32_t c, const char *text, unsigned flags)
{
	struct iovec iov = { (void *)(uintptr_t)text, strlen(text) };

	return trunk_send(t, c, &iov, 1, 'k', flags);
}

static inline ssize_t recv_some(struct trunk *t, uint32_t c, void *to, size_t size, unsigned flags)
{
	struct iovec iov = { to, size };

	return trunk_recv(t, c, &iov, 1, flags, NULL);
}

/* A circuit from side `from`, live at both ends. */
static inline uint32_t connect_pair(int from)
{
	struct trunk *a = side[from], *b = side[!from];
	int c = trunk_open(a, "hello", 5, NULL);
	char text[8] = { 0 };

	assert_true(c >= 0);
	assert_int_equal(poll_one(b, (uint32_t)c), TRUNK_OPENED);
	assert_int_equal(trunk_greeting(b, (uint32_t)c, text, sizeof(text)), 5);
	assert_string_equal(text, "hello");
	assert_int_equal(trunk_accept(b, (uint32_t)c, "you", 3, NULL), 0);
	assert_int_equal(poll_one(a, (uint32_t)c), TRUNK_ACCEPTED);
	assert_int_equal(trunk_greeting(a, (uint32_t)c, text, sizeof(text)), 3);
	return (uint32_t)c;
}

#endif
