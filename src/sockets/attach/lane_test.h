/* SPDX-License-Identifier: MIT */
/*
 * Both ends of a real connection in this process and without the hooks, for the tests of streams. As a
 * user that does not exist (see board_test.c), so it needs root.
 */
#ifndef FLUE_SOCKETS_ATTACH_LANE_TEST_H
#define FLUE_SOCKETS_ATTACH_LANE_TEST_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

#include <flue/offload.h>

#include "channel/arena.h"
#include "channel/board.h"
#include "sockets/stream/hello.h"
#include "sockets/attach/ops_lane.h"
#include "sockets/attach/young.h"
#include "sockets/record/process.h"
#include "sockets/record/sock.h"
#include "sockets/sleep/call.h"
#include "sockets/stream/stream.h"

static uid_t user;
static struct rec *near, *far; /* far makes the lane */
static int near_fd, far_fd;

static inline void connect_both(void)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	socklen_t size = sizeof(a);
	struct ops_want want = ops_want(AF_INET, SOCK_STREAM, 0);
	struct ops_socket listener;
	int l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_int_equal(bind(l, (struct sockaddr *)&a, sizeof(a)), 0);
	assert_int_equal(listen(l, 1), 0);
	assert_int_equal(getsockname(l, (struct sockaddr *)&a, &size), 0);
	near_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(connect(near_fd, (struct sockaddr *)&a, sizeof(a)), 0);
	far_fd = accept4(l, NULL, NULL, SOCK_CLOEXEC);
	assert_true(far_fd >= 0);
	close(l);
	near = sock_add(near_fd, MEET_ACTIVE, REC_ASKED);
	far = sock_add(far_fd, MEET_PASSIVE, REC_ASKED);
	assert_true(near && far);
	ops_create(&near->ops, &want, near);
	ops_create(&listener, &want, near);
	ops_accept(&far->ops, &listener, false, far);
	ops_close(&listener);
	sock_connected(near);
	sock_connected(far);
	assert_true(sock_identify(near, near_fd) && sock_identify(far, far_fd));
}

static inline int begin(void **st)
{
	(void)st;
	if (geteuid() != 0)
		return 0;
	process_init();
	user = 3200000000u + (uid_t)getpid() % 100000000u;
	if (seteuid(user) != 0)
		return -1;
	connect_both();
	return 0;
}

static inline int end(void **st)
{
	char path[64];

	(void)st;
	if (geteuid() != user)
		return 0;
	sock_closing(near_fd);
	sock_closing(far_fd);
	close(near_fd);
	close(far_fd);
	board_drop();
	if (seteuid(0) != 0)
		return -1;
	snprintf(path, sizeof(path), "/dev/shm/flue.%u", user);
	unlink(path);
	return 0;
}

#define NEED_ROOT()                    \
	do {                           \
		if (geteuid() != user) \
			skip();        \
	} while (0)

/* As the hooks do it. */
static inline void put(struct rec *r, int fd, uint8_t first, size_t n)
{
	uint8_t octets[4096];
	struct iovec iov = { octets, n };
	ssize_t done;

	for (size_t i = 0; i < n; i++)
		octets[i] = (uint8_t)(first + i);
	do {
		struct raw_call c = { 0 };

		if (young_before_send(&c, r, fd, n) == YOUNG_OURS) {
			done = call_send(r, fd, &iov, 1, 0);
		} else {
			done = send(fd, octets, n, 0);
			young_after_send(&c, fd, done, 0);
		}
		sock_raw_ends(&c);
	} while (done == STREAM_AGAIN);
	assert_int_equal(done, n);
}

static inline void take(struct rec *r, int fd, uint8_t first, size_t n)
{
	uint8_t octets[4096] = { 0 };
	struct iovec iov = { octets, n };
	ssize_t done;

	do {
		struct raw_call c = { 0 };

		if (young_before_receive(&c, r, fd) == YOUNG_OURS) {
			done = call_receive(r, fd, &iov, 1, MSG_WAITALL);
		} else {
			done = recv(fd, octets, n, MSG_WAITALL);
			young_after_receive(&c, fd, done, 0);
		}
		sock_raw_ends(&c);
	} while (done == STREAM_AGAIN);
	assert_int_equal(done, n);
	for (size_t i = 0; i < n; i++)
		assert_int_equal(octets[i], (uint8_t)(first + i));
}

static inline void exchange(int rounds)
{
	for (int i = 0; i < rounds; i++) {
		put(near, near_fd, (uint8_t)i, 1000);
		take(far, far_fd, (uint8_t)i, 1000);
		put(far, far_fd, (uint8_t)(i + 7), 1000);
		take(near, near_fd, (uint8_t)(i + 7), 1000);
	}
}

static inline struct lane_shared *shared(void)
{
	return &arena_memory(far->end.arena)->lane[far->end.lane];
}

/* far has made a lane and near knows nothing of it yet. */
static inline void make_lane(void)
{
	put(near, near_fd, 1, 10);
	assert_int_equal(atomic_load(&near->state), REC_POSTED);
	take(far, far_fd, 1, 10);
	assert_int_equal(atomic_load(&far->state), REC_LANE);
	assert_int_equal(far->end.side, 0);
	assert_true(sock_flag(far, REC_UNANSWERED));
	assert_int_equal(atomic_load(&shared()->private_size[1]), 0);
	/* As long as the other end is not there everything goes by the carrier. */
	put(far, far_fd, 2, 10);
	assert_int_equal(far->sent.lane_bytes, 0);
	assert_true(sock_flag(far, REC_UNANSWERED));
}

static inline void attach_near(void)
{
	take(near, near_fd, 2, 10);
	assert_int_equal(atomic_load(&near->state), REC_LANE);
	assert_int_equal(near->end.side, 1);
	assert_true(atomic_load(&shared()->dir[0].word) & LANE_ATTACHED);
	assert_true(hello_is_answered(shared()));
}

#endif
