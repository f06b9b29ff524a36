/* SPDX-License-Identifier: MIT */
/*
 * More peers at once than a listener lets into their start-up: honest ones are all served, silent
 * ones keep nobody out, and one address does not push out another (RD-8).
 *
 * The peers are plain TCP sockets of this process; the program under test answers each request
 * with a reject, which is an answer.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "conf/pair.h"
#include "wire/mpa.h"

#define BURST      5000
#define HALF_OPEN  1024 /* the listener's default */
#define HANG_MS    120000
#define FIRST_HOST "127.0.0.1"
#define OTHER_HOST "127.0.0.2"

static struct pair_side side;
static struct flue_listener *listener;
static int peers[BURST];

static int open_listener(int max_half_open, int request_timeout_ms)
{
	struct pair_options o = PAIR_DEFAULTS;
	struct flue_listen_attr attr = FLUE_ATTR(struct flue_listen_attr);
	struct sockaddr_in at = { .sin_family = AF_INET };

	at.sin_addr.s_addr = htonl(INADDR_ANY);
	attr.local = (struct sockaddr *)&at;
	attr.local_len = sizeof(at);
	attr.backlog = BURST;
	attr.max_half_open = max_half_open;
	attr.request_timeout_ms = request_timeout_ms;
	if (!pair_side_open(&side, &o, 0))
		return -1;
	listener = side.adapter->ops->listen(side.adapter, &attr);
	return listener ? 0 : -1;
}

static void close_listener(void)
{
	assert_true(listener->ops->destroy(listener));
	assert_true(pair_side_close(&side));
}

static int dial_from(const char *host)
{
	struct sockaddr_in to = *(struct sockaddr_in *)&listener->local;
	struct sockaddr_in from = { .sin_family = AF_INET };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	assert_int_equal(inet_pton(AF_INET, host, &from.sin_addr), 1);
	assert_int_equal(bind(fd, (struct sockaddr *)&from, sizeof(from)), 0);
	if (connect(fd, (struct sockaddr *)&to, sizeof(to)) < 0)
		fail_msg("connect: %s", strerror(errno));
	return fd;
}

static void ask(int fd)
{
	struct mpa_frame req = { .rev = 1, .flags = MPA_FLAG_CRC };
	uint8_t buf[MPA_FRAME_LEN];
	int n = mpa_frame_encode(&req, buf, sizeof(buf));

	assert_true(n > 0);
	assert_int_equal(send(fd, buf, (size_t)n, MSG_NOSIGNAL), n);
}

/* Rejects what has come; true if there was something. */
static bool answer_one(int timeout_ms)
{
	struct flue_conn_request *req = listener->ops->get_request(listener, timeout_ms);

	if (!req)
		assert_true(errno == EAGAIN || errno == ETIMEDOUT);
	else
		assert_true(req->ops->reject(req, NULL, 0));
	return req;
}

static bool is_closed(int fd)
{
	char octet;

	return recv(fd, &octet, 1, MSG_DONTWAIT | MSG_PEEK) == 0 ||
	       (errno != EAGAIN && errno != EINTR);
}

static bool is_answered(int fd)
{
	struct pollfd ready = { .fd = fd, .events = POLLIN };
	uint8_t buf[MPA_FRAME_LEN];

	return poll(&ready, 1, 0) == 1 &&
	       recv(fd, buf, sizeof(buf), MSG_DONTWAIT) == (ssize_t)sizeof(buf);
}

static void expect_answer(int fd)
{
	uint64_t end = pair_now_ms() + HANG_MS;

	while (!is_answered(fd)) {
		assert_true(pair_now_ms() < end);
		assert_false(is_closed(fd));
		answer_one(10);
	}
}

static bool enough_files(unsigned n)
{
	struct rlimit most;

	if (getrlimit(RLIMIT_NOFILE, &most))
		return false;
	most.rlim_cur = most.rlim_max;
	return setrlimit(RLIMIT_NOFILE, &most) == 0 && most.rlim_cur >= n;
}

static long kernel_queue(void)
{
	FILE *file = fopen("/proc/sys/net/core/somaxconn", "re");
	long n = 0;

	if (file && fscanf(file, "%ld", &n) != 1)
		n = 0;
	if (file)
		fclose(file);
	return n;
}

/* All are connected before the first one says a word. */
static void honest_burst_is_served_to_the_last(void **state)
{
	unsigned served = 0;

	if (!enough_files(2 * BURST + 200) || kernel_queue() < BURST - HALF_OPEN) {
		print_message("skipped: too few files, or net.core.somaxconn is too small\n");
		skip();
	}
	/* So long a time that a slow machine does not make them silent strangers. */
	assert_int_equal(open_listener(0, 5 * HANG_MS), 0);
	for (unsigned i = 0; i < BURST; i++)
		peers[i] = dial_from(FIRST_HOST);
	for (unsigned i = 0; i < BURST; i++)
		ask(peers[i]);
	while (served < BURST && answer_one(HANG_MS))
		served++;
	assert_int_equal(served, BURST);
	for (unsigned i = 0; i < BURST; i++) {
		assert_true(is_answered(peers[i]));
		close(peers[i]);
	}
	close_listener();
}

static void silent_strangers_delay_others_but_do_not_keep_them_out(void **state)
{
	enum { STRANGERS = 150, LIMIT = 100, TIME_MS = 20000 };
	uint64_t begun = pair_now_ms();
	unsigned closed = 0;
	int honest;

	assert_int_equal(open_listener(LIMIT, TIME_MS), 0);
	for (unsigned i = 0; i < STRANGERS; i++)
		peers[i] = dial_from(FIRST_HOST);
	honest = dial_from(FIRST_HOST);
	ask(honest);
	expect_answer(honest);
	/* Before anybody's time was over. */
	assert_true(pair_now_ms() - begun < TIME_MS);
	for (unsigned i = 0; i < STRANGERS; i++) {
		closed += is_closed(peers[i]);
		close(peers[i]);
	}
	/* As few as were needed; the last to come were spared. */
	assert_in_range(closed, STRANGERS + 1 - LIMIT, STRANGERS - 1);
	close(honest);
	close_listener();
}

static void crowd_of_one_address_does_not_push_out_another(void **state)
{
	enum { CROWD = 100, LIMIT = 60, TIME_MS = 20000 };
	uint64_t end = pair_now_ms() + HANG_MS;
	unsigned closed = 0;
	int slow;

	assert_int_equal(open_listener(LIMIT, TIME_MS), 0);
	slow = dial_from(FIRST_HOST); /* the oldest of all */
	for (unsigned i = 0; i < CROWD; i++)
		peers[i] = dial_from(OTHER_HOST);
	while (closed < CROWD + 1 - LIMIT) {
		assert_true(pair_now_ms() < end);
		usleep(1000);
		closed = 0;
		for (unsigned i = 0; i < CROWD; i++)
			closed += is_closed(peers[i]);
	}
	assert_false(is_closed(slow));
	ask(slow);
	expect_answer(slow);
	for (unsigned i = 0; i < CROWD; i++)
		close(peers[i]);
	close(slow);
	close_listener();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(honest_burst_is_served_to_the_last),
		cmocka_unit_test(silent_strangers_delay_others_but_do_not_keep_them_out),
		cmocka_unit_test(crowd_of_one_address_does_not_push_out_another),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
