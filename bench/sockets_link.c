/* SPDX-License-Identifier: MIT */
#include "sockets_link.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

uint8_t *link_buffer;

void link_fail(const char *what)
{
	fprintf(stderr, "sockets_bench: %s: %s\n", what, strerror(errno));
	exit(1);
}

int64_t link_now(void)
{
	struct timespec at;

	clock_gettime(CLOCK_MONOTONIC, &at);
	return at.tv_sec * 1000000000LL + at.tv_nsec;
}

int link_listen(const struct job *job, struct address *at)
{
	int fd = socket(job->local ? AF_UNIX : AF_INET, SOCK_STREAM, 0);

	memset(at, 0, sizeof(*at));
	if (job->local) {
		/* A name that needs no file. */
		at->un.sun_family = AF_UNIX;
		snprintf(at->un.sun_path + 1, sizeof(at->un.sun_path) - 1, "flue-bench-%d",
			 getpid());
		at->length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
					 strlen(at->un.sun_path + 1));
	} else {
		at->in.sin_family = AF_INET;
		at->in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		at->length = sizeof(at->in);
	}
	if (fd < 0 || bind(fd, &at->any, at->length) || listen(fd, 4096) ||
	    (!job->local && getsockname(fd, &at->any, &at->length)))
		link_fail("listen");
	return fd;
}

static void no_delay(const struct job *job, int fd)
{
	int on = 1;

	/* Round trips only: a stream of small messages is faster when the kernel may join them. */
	if (!job->local && strcmp(job->mode, "stream") &&
	    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)))
		link_fail("TCP_NODELAY");
}

int link_dial(const struct job *job, const struct address *to)
{
	int fd = socket(to->any.sa_family, SOCK_STREAM, 0);

	if (fd < 0 || connect(fd, &to->any, to->length))
		link_fail("connect");
	no_delay(job, fd);
	return fd;
}

int link_accept(const struct job *job, int listener)
{
	int fd = accept(listener, NULL, NULL);

	if (fd < 0)
		link_fail("accept");
	no_delay(job, fd);
	return fd;
}

void link_send(int fd, const uint8_t *data, size_t length)
{
	while (length > 0) {
		ssize_t n = send(fd, data, length, MSG_NOSIGNAL);

		if (n < 0)
			link_fail("send");
		data += n;
		length -= (size_t)n;
	}
}

/* False at the end of the stream. */
bool link_recv(int fd, uint8_t *data, size_t length)
{
	while (length > 0) {
		ssize_t n = recv(fd, data, length, 0);

		if (n < 0)
			link_fail("recv");
		if (n == 0)
			return false;
		data += n;
		length -= (size_t)n;
	}
	return true;
}

void link_round_trip(int fd, size_t size)
{
	link_send(fd, link_buffer, size);
	if (!link_recv(fd, link_buffer, size)) {
		errno = EPIPE;
		link_fail("the server has gone");
	}
}
