/*
 * Lets kernel siw speak behind words of plain TCP. siw's own sockets begin with MPA at the first
 * octet; this program takes the words on its side of a connection with Flue, and then connects
 * that stream with one of siw's and carries octets both ways, unseen.
 *
 *   relay accept PORT ADDR SIWPORT   Flue connects to PORT; then on to siw's listener at SIWPORT
 *   relay connect PORT ADDR SIWPORT  siw connects to SIWPORT here; then on to Flue's at ADDR PORT
 *   --eager                          connect: RDMA and siw's request leave together, GO comes later
 *
 * The words, a line each, from who connected: "LOGIN name", answered "HELLO name"; "RDMA", answered
 * "GO". The octet behind these two is the first one of RDMA mode in its direction.
 *
 * A FIN is passed on as a FIN, a reset as a reset. It runs on CPU 0, where siw's rdma_accept() keeps
 * it out of the gap that calm_accept.c tells about.
 */
#define _GNU_SOURCE /* CPU_SET */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void die(const char *what)
{
	printf("relay: %s: %s\n", what, strerror(errno));
	exit(1);
}

static struct sockaddr_in address(const char *addr, const char *port)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(atoi(port)) };

	inet_pton(AF_INET, addr, &at.sin_addr);
	return at;
}

static int tuned(int fd)
{
	int one = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	return fd;
}

static int take_one(const char *port)
{
	struct sockaddr_in at = address("0.0.0.0", port);
	int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1, fd;

	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(listener, (struct sockaddr *)&at, sizeof(at)) || listen(listener, 1))
		die("listen");
	fd = accept(listener, NULL, NULL);
	if (fd < 0)
		die("accept");
	close(listener);
	return tuned(fd);
}

/* Whoever listens there may be starting still. */
static int reach(const char *addr, const char *port)
{
	struct sockaddr_in at = address(addr, port);

	for (int i = 0; i < 100; i++) {
		int fd = socket(AF_INET, SOCK_STREAM, 0);

		if (!connect(fd, (struct sockaddr *)&at, sizeof(at)))
			return tuned(fd);
		close(fd);
		usleep(50000);
	}
	die("connect");
	return -1;
}

static void say(int fd, const char *line)
{
	if (send(fd, line, strlen(line), MSG_NOSIGNAL) != (ssize_t)strlen(line))
		die("say");
}

/* Octet by octet: what follows the line is not ours. */
static void hear(int fd, const char *start)
{
	char line[80] = "";
	size_t len = 0;

	while (!len || line[len - 1] != '\n') {
		if (len == sizeof(line) - 1 || read(fd, line + len, 1) != 1)
			die("no line");
		len++;
	}
	line[len - 1] = 0;
	printf("LINE %s\n", line);
	if (strncmp(line, start, strlen(start)))
		die("unexpected line");
}

static void log_in(int fd, int siw, bool eager)
{
	static const char rdma[] = "RDMA\n";
	char both[600];
	ssize_t n;

	say(fd, "LOGIN siw\n");
	hear(fd, "HELLO");
	if (eager) {
		memcpy(both, rdma, strlen(rdma));
		n = read(siw, both + strlen(rdma), sizeof(both) - strlen(rdma));
		if (n <= 0 || send(fd, both, strlen(rdma) + n, MSG_NOSIGNAL) < 0)
			die("eager");
	} else {
		say(fd, rdma);
	}
	hear(fd, "GO");
}

static void reset(int fd)
{
	struct linger none = { 1, 0 };

	setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
	close(fd);
}

/* One direction's next octets. False at its end, which has been passed on. */
static bool carry(int from, int to, unsigned long *count)
{
	static char buf[1 << 18];
	ssize_t n = read(from, buf, sizeof(buf));

	if (n < 0) {
		printf("RELAYED reset\n");
		reset(to);
		exit(0);
	}
	if (!n) {
		shutdown(to, SHUT_WR);
		return false;
	}
	*count += n;
	for (ssize_t at = 0, m; at < n; at += m) {
		m = send(to, buf + at, n - at, MSG_NOSIGNAL);
		if (m < 0) { /* the other direction's read tells what happened */
			shutdown(from, SHUT_RD);
			return false;
		}
	}
	return true;
}

static void carry_all(int flue, int siw)
{
	struct pollfd fds[] = { { flue, POLLIN, 0 }, { siw, POLLIN, 0 } };
	unsigned long count[2] = { 0, 0 };

	while (fds[0].fd >= 0 || fds[1].fd >= 0) {
		if (poll(fds, 2, -1) < 0)
			die("poll");
		if (fds[0].fd >= 0 && fds[0].revents && !carry(flue, siw, &count[0]))
			fds[0].fd = -1;
		if (fds[1].fd >= 0 && fds[1].revents && !carry(siw, flue, &count[1]))
			fds[1].fd = -1;
	}
	printf("RELAYED %lu %lu\n", count[0], count[1]);
}

int main(int argc, char **argv)
{
	bool eager = argc > 5 && !strcmp(argv[5], "--eager");
	cpu_set_t first;
	int flue, siw;

	if (argc < 5) {
		fprintf(stderr, "usage: relay accept|connect PORT ADDR SIWPORT [--eager]\n");
		return 2;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	CPU_ZERO(&first);
	CPU_SET(0, &first);
	sched_setaffinity(0, sizeof(first), &first);
	if (!strcmp(argv[1], "accept")) {
		flue = take_one(argv[2]);
		hear(flue, "LOGIN");
		say(flue, "HELLO siw\n");
		hear(flue, "RDMA");
		siw = reach(argv[3], argv[4]);
		say(flue, "GO\n");
	} else {
		siw = take_one(argv[4]);
		flue = reach(argv[3], argv[2]);
		log_in(flue, siw, eager);
	}
	carry_all(flue, siw);
	return 0;
}
