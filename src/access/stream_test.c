/* SPDX-License-Identifier: MIT */
/* Facts about TCP descriptors: what is one, and what the peer has not acknowledged (CH-11). */
#include "access/stream.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#include "access/fake_priv.h"

static int fd[2];

static int open_streams(void **state)
{
	fake_streams(fd);
	return 0;
}

static int close_streams(void **state)
{
	for (unsigned i = 0; i < 2; i++)
		if (fd[i] >= 0)
			close(fd[i]);
	return 0;
}

static void check_takes_connected_tcp_only(void **state)
{
	int pair[2], idle = socket(AF_INET, SOCK_STREAM, 0), udp = socket(AF_INET, SOCK_DGRAM, 0);

	assert_int_equal(pipe(pair), 0);
	assert_int_equal(acc_stream_check(-1), -EBADF);
	assert_int_equal(acc_stream_check(pair[0]), -ENOTSOCK);
	assert_int_equal(acc_stream_check(udp), -EPROTOTYPE);
	assert_int_equal(acc_stream_check(idle), -ENOTCONN);
	assert_int_equal(acc_stream_check(fd[0]), 0);
	assert_int_equal(acc_stream_check(fd[1]), 0);
	close(pair[0]);
	close(pair[1]);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	assert_int_equal(acc_stream_check(pair[0]), -EPROTOTYPE);
	close(pair[0]);
	close(pair[1]);
	close(idle);
	close(udp);
}

/* Everything that fits; the peer does not read. */
static size_t fill(int from)
{
	static char block[65536];
	size_t sum = 0;
	ssize_t n;
	int small = 4096;

	setsockopt(from, SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
	while ((n = send(from, block, sizeof(block), MSG_DONTWAIT)) > 0)
		sum += (size_t)n;
	return sum;
}

static void unacked_octets_are_counted_until_the_peer_has_them(void **state)
{
	char block[65536];
	size_t sum;

	assert_int_equal(acc_stream_unacked(fd[0]), 0);
	sum = fill(fd[0]);
	assert_true(acc_stream_unacked(fd[0]) > 0);
	while (sum) {
		ssize_t n = recv(fd[1], block, sizeof(block), 0);

		assert_true(n > 0);
		sum -= (size_t)n;
	}
	for (unsigned i = 0; i < 2000 && acc_stream_unacked(fd[0]); i++)
		usleep(1000);
	assert_int_equal(acc_stream_unacked(fd[0]), 0);
}

/* The count of a connection that was reset stays; it is no reason to wait. */
static void unacked_octets_of_a_reset_connection_are_an_error(void **state)
{
	int n;

	fill(fd[0]);
	close(fd[1]); /* with unread octets: a reset */
	fd[1] = -1;
	for (unsigned i = 0; i < 2000 && (n = acc_stream_unacked(fd[0])) >= 0; i++)
		usleep(1000);
	assert_int_equal(n, -ECONNRESET);
	/* The error was taken; it is the same the second time. */
	assert_int_equal(acc_stream_unacked(fd[0]), -ECONNRESET);
	assert_int_equal(acc_stream_check(fd[0]), -ENOTCONN);
}

static void unacked_refuses_what_is_no_stream(void **state)
{
	assert_true(acc_stream_unacked(-1) < 0);
}

#define WITH_STREAMS(test) cmocka_unit_test_setup_teardown(test, open_streams, close_streams)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH_STREAMS(check_takes_connected_tcp_only),
		WITH_STREAMS(unacked_octets_are_counted_until_the_peer_has_them), /* CH-11 */
		WITH_STREAMS(unacked_octets_of_a_reset_connection_are_an_error),  /* CH-11, CH-25 */
		cmocka_unit_test(unacked_refuses_what_is_no_stream),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
