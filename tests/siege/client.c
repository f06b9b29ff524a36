/* SPDX-License-Identifier: MIT */
/*
 * An honest client of the besieged server, which wants its answers whole and soon. With and without the library.
 *
 *   client PORT SEED    Reads lines: "go", "pause", "mark"; a mark is answered with rounds, the longest of them in
 *                       microseconds, and the number of those that went wrong, since the last one. Ends with the input.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/util.h"
#include "siege/siege.h"
#include "sockets/stage.h"

#define LINES    3
#define ECHO     20000
#define BULK     100000
#define VISIT    4
#define LIMIT_MS 5000 /* then the answer does not come */

static struct sockaddr_in server = { .sin_family = AF_INET };
static struct random r;
static int line[LINES];
static uint64_t rounds, slowest, bads;
static uint8_t out[sizeof(struct request) + ECHO], in[BULK];

static int dial(void)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int one = 1;

	if (fd < 0 || connect(fd, (struct sockaddr *)&server, sizeof(server)) != 0) {
		perror("connect");
		exit(2);
	}
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	return fd;
}

/* What is to be sent, and to come back. */
static size_t make_request(size_t *answer, struct flow *expected)
{
	struct request request = { REQUEST_ECHO, random_size(&r, 1, ECHO) };
	size_t size = sizeof(request);

	*expected = (struct flow) { .key = random_next(&r) };
	if (random_below(&r, 8) == 0) {
		request = (struct request) { REQUEST_BULK, random_size(&r, 1, BULK) };
		expected->key = BULK_KEY;
	} else {
		flow_fill(expected, out + sizeof(request), request.size);
		size += request.size;
	}
	memcpy(out, &request, sizeof(request));
	*answer = request.size;
	return size;
}

static bool ask(int fd)
{
	struct flow expected;
	size_t answer, got = 0, sent = 0;
	size_t size = make_request(&answer, &expected);

	while (got < answer) {
		struct pollfd p = { .fd = fd, .events = sent < size ? POLLIN | POLLOUT : POLLIN };
		ssize_t n;

		if (poll(&p, 1, LIMIT_MS) <= 0)
			return false;
		if (sent < size) {
			n = send(fd, out + sent, size - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
			if (n < 0 && errno != EAGAIN)
				return false;
			sent += n > 0 ? (size_t)n : 0;
		}
		n = recv(fd, in + got, answer - got, MSG_DONTWAIT);
		if (n == 0 || (n < 0 && errno != EAGAIN))
			return false;
		got += n > 0 ? (size_t)n : 0;
	}
	return flow_match(&expected, in, answer) == answer;
}

static bool ask_and_count(int fd)
{
	uint64_t start = stage_now(), took;
	bool good = ask(fd);

	took = stage_now() - start;
	rounds++;
	bads += !good;
	if (took > slowest)
		slowest = took;
	return good;
}

/* On a line that stays, or on one that comes for a few questions. */
static void do_round(void)
{
	uint32_t which = random_below(&r, LINES + 1);
	int fd = which < LINES ? line[which] : dial();
	bool good = ask_and_count(fd);

	if (which < LINES && good)
		return;
	for (int i = 0; i < VISIT && good; i++)
		good = ask_and_count(fd);
	close(fd);
	if (which < LINES)
		line[which] = dial();
}

static bool obey(bool *going)
{
	char text[32];

	if (!fgets(text, sizeof(text), stdin))
		return false;
	if (strncmp(text, "mark", 4) == 0) {
		printf("%llu %llu %llu\n", (unsigned long long)rounds, (unsigned long long)slowest,
		       (unsigned long long)bads);
		rounds = slowest = bads = 0;
	} else {
		*going = strncmp(text, "go", 2) == 0;
		printf("ok\n");
	}
	fflush(stdout);
	return true;
}

int main(int argc, char **argv)
{
	bool going = false;

	if (argc != 3)
		return 2;
	server.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	server.sin_port = htons((uint16_t)atoi(argv[1]));
	r.state = strtoull(argv[2], NULL, 0);
	setvbuf(stdin, NULL, _IONBF, 0);
	for (int i = 0; i < LINES; i++)
		line[i] = dial();
	for (;;) {
		struct pollfd p = { .fd = STDIN_FILENO, .events = POLLIN };

		if (poll(&p, 1, going ? (int)random_below(&r, 3) : -1) > 0) {
			if (!obey(&going))
				break;
		} else if (going) {
			do_round();
		}
	}
	return 0;
}
