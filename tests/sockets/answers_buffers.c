/* SPDX-License-Identifier: MIT */
/*
 * SO_SNDBUF and SO_RCVBUF bound what is under way, whenever they are set. How much that is exactly differs from kernel to
 * kernel, with the sizes of the writes, and with a lane; but it is of the order of both together, and getsockopt() says
 * the same.
 */
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "answers.h"
#include "stage.h"

#define MOST  (64u << 20)  /* no limit at all */
#define LEAST 8            /* the kernel takes at least this part of its buffers */
#define OVER  (128u << 10) /* ... and this more: whole segments, and what was promised before */
#define IDLE  25           /* times 2 ms: longer than an acknowledgement is delayed */

static const int sizes[] = { 10000, 60000 };

static void set(int fd, int name, int size)
{
	if (setsockopt(fd, SOL_SOCKET, name, &size, sizeof(size)) != 0)
		answer_broken("setsockopt");
}

static int get(int fd, int name)
{
	int size = 0;
	socklen_t n = sizeof(size);

	if (getsockopt(fd, SOL_SOCKET, name, &size, &n) != 0)
		answer_broken("getsockopt");
	return size;
}

static bool can_write(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLOUT };

	return poll(&p, 1, 0) == 1 && (p.revents & POLLOUT);
}

/* All that goes without waiting. What is taken may move on to the other end a moment later, and make room. */
static size_t fill(int fd, size_t step)
{
	static char octets[65536];
	size_t all = 0;

	for (int idle = 0; idle < IDLE && all < MOST;) {
		ssize_t n = send(fd, octets, step, MSG_DONTWAIT);

		if (n < 0 && errno != EAGAIN)
			answer_broken("send");
		if (n > 0)
			all += (size_t)n;
		else
			stage_nap(2000);
		idle = n > 0 ? 0 : idle + 1;
	}
	return all;
}

static bool empty(int fd, size_t all)
{
	static char octets[65536];

	while (all > 0) {
		ssize_t n = recv(fd, octets, sizeof(octets), 0);

		if (n <= 0)
			return false;
		all -= (size_t)n;
	}
	return recv(fd, octets, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN;
}

/* One direction, filled and emptied twice. */
static void use(const char *what, int from, int to)
{
	static const size_t steps[] = { 700, 65536 };
	size_t sum = (size_t)get(from, SO_SNDBUF) + (size_t)get(to, SO_RCVBUF);

	answer("%s: %d %d, %d %d", what, get(from, SO_SNDBUF), get(from, SO_RCVBUF),
	       get(to, SO_SNDBUF), get(to, SO_RCVBUF));
	for (int i = 0; i < 2; i++) {
		size_t n = fill(from, steps[i]);

		answer("%s: enough %d, not too much %d, can write %d", what, n >= sum / LEAST,
		       n <= sum + OVER, can_write(from));
		answer("%s: all comes %d", what, empty(to, n));
		for (int wait = 0; wait < 500 && !can_write(from); wait++)
			stage_nap(2000);
		answer("%s: can write %d", what, can_write(from));
	}
}

static void use_both(const char *what, int ends[2])
{
	use(what, ends[0], ends[1]);
	use(what, ends[1], ends[0]);
}

static void set_both(int ends[2], int size)
{
	for (int i = 0; i < 2; i++) {
		set(ends[i], SO_SNDBUF, size);
		set(ends[i], SO_RCVBUF, size);
	}
}

static void before_connect(void)
{
	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		struct sockaddr_in at;
		socklen_t size = sizeof(at);
		int listener = stage_listen(AF_INET, 1);
		int ends[2] = { socket(AF_INET, SOCK_STREAM, 0), listener };

		/* The listener's are inherited. */
		set_both(ends, sizes[i]);
		if (getsockname(listener, (struct sockaddr *)&at, &size) != 0 ||
		    connect(ends[0], (struct sockaddr *)&at, size) != 0)
			answer_broken("connect");
		ends[1] = accept(listener, NULL, NULL);
		answer_warm(ends[0], ends[1]);
		use_both("before connect", ends);
	}
}

static void behind_accept(void)
{
	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		int ends[2];

		answer_pair(ends);
		set_both(ends, sizes[i]);
		answer_warm(ends[0], ends[1]);
		use("behind accept", ends[1], ends[0]);
	}
}

static void in_the_middle(void)
{
	int ends[2];

	answer_warm_pair(ends);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		set_both(ends, sizes[i]);
		use("larger", ends[0], ends[1]);
	}
	for (size_t i = sizeof(sizes) / sizeof(*sizes); i-- > 0;) {
		set_both(ends, sizes[i]);
		use("smaller", ends[1], ends[0]);
	}
}

/* What is there already is not lost, and not added to. */
static void while_it_is_full(void)
{
	int ends[2];
	size_t n;

	answer_pair(ends);
	set_both(ends, 60000);
	answer_warm(ends[0], ends[1]);
	n = fill(ends[0], 1000);
	set(ends[0], SO_SNDBUF, 10000);
	set(ends[1], SO_RCVBUF, 10000);
	answer("can write %d", can_write(ends[0]));
	answer("send %s", answer_of(send(ends[0], "x", 1, MSG_DONTWAIT)));
	answer("all comes %d", empty(ends[1], n));
	answer_warm(ends[0], ends[1]);
	use("smaller", ends[0], ends[1]);
}

/* The other end has the kernel's own size, within which much is under way, but not without limit. */
static void of_the_sender_only(void)
{
	for (int i = 0; i < 2; i++) {
		int ends[2];
		size_t n;

		answer_pair(ends);
		set(ends[i], SO_SNDBUF, 5000);
		answer_warm(ends[0], ends[1]);
		n = fill(ends[i], 5000);
		answer("%d: limited %d", get(ends[i], SO_SNDBUF), n < 16 * OVER);
		answer("all comes %d", empty(ends[1 - i], n));
	}
}

static void by_force(void)
{
	int ends[2], size = 10000;

	answer_warm_pair(ends);
	set_both(ends, 60000);
	answer("send %s",
	       answer_of(setsockopt(ends[0], SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof(size))));
	answer("receive %s",
	       answer_of(setsockopt(ends[1], SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof(size))));
	use("by force", ends[0], ends[1]);
}

int main(int argc, char **argv)
{
	static const struct question questions[] = {
		{ "before connect", before_connect },
		{ "behind accept", behind_accept },
		{ "in the middle", in_the_middle },
		{ "while it is full", while_it_is_full },
		{ "of the sender only", of_the_sender_only },
		{ "by force", by_force },
	};

	(void)argc;
	return answers_main(questions, sizeof(questions) / sizeof(*questions), argv + 1);
}
