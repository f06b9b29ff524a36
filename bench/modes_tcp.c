/* SPDX-License-Identifier: MIT */
/*
 * The rival: what a careful program does with plain sockets. TCP_NODELAY, buffers left to the kernel's
 * autotuning (a fixed SO_RCVBUF would only be smaller), one buffer of the message's size on each side.
 * Whether MSG_WAITALL helps a stream depends on where the two processes run (it saves wake-ups on one
 * processor and costs overlap on two), so bench/run measures both and takes the faster one.
 */
#include "bench.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "hist.h"
#include "util.h"

/* Octets exchanged on a new connection, as large as MPA's request and reply. */
#define EXCHANGE 24

static int open_listener(int port_fd)
{
	struct sockaddr_in local = { .sin_family = AF_INET };
	socklen_t length = sizeof(local);
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	local.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (fd < 0 || bind(fd, (struct sockaddr *)&local, sizeof(local)) || listen(fd, 4096) ||
	    getsockname(fd, (struct sockaddr *)&local, &length) ||
	    !bench_tell_port(port_fd, local.sin_port))
		return -1;
	return fd;
}

static int dial(uint16_t port)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = port };
	int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;

	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (fd < 0 || setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) ||
	    connect(fd, (struct sockaddr *)&to, sizeof(to)))
		return -1;
	return fd;
}

static int answer(int listener)
{
	int fd = accept(listener, NULL, NULL), on = 1;

	if (fd >= 0 && setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)))
		return -1;
	return fd;
}

static bool send_all(int fd, const uint8_t *data, size_t length)
{
	while (length > 0) {
		ssize_t n = send(fd, data, length, MSG_NOSIGNAL);

		if (n < 0)
			return false;
		data += n;
		length -= (size_t)n;
	}
	return true;
}

/* False at the end of the stream (errno 0) or after an error. */
static bool recv_all(int fd, uint8_t *data, size_t length, int flags)
{
	while (length > 0) {
		ssize_t n = recv(fd, data, length, flags);

		if (n < 0 && (flags & MSG_DONTWAIT) && errno == EAGAIN)
			continue;
		if (n <= 0) {
			errno = n == 0 ? 0 : errno;
			return false;
		}
		data += n;
		length -= (size_t)n;
	}
	return true;
}

static int flags_of(const struct bench_args *args)
{
	return args->spin ? MSG_DONTWAIT : args->waitall ? MSG_WAITALL : 0;
}

static uint8_t *make_buffer(size_t size)
{
	uint8_t *buffer = aligned_alloc(4096, (size + 4095) & ~(size_t)4095);

	if (buffer)
		memset(buffer, 0x5a, size);
	return buffer;
}

static int stream_serve(const struct bench_args *args, int port_fd)
{
	uint8_t *buffer = make_buffer(args->size);
	int listener = open_listener(port_fd), fd = listener < 0 ? -1 : answer(listener);

	if (fd < 0 || !buffer)
		return bench_fail("tcp-stream server");
	while (recv_all(fd, buffer, args->size, flags_of(args)))
		;
	/* The confirmation that Flue's measurement waits for as well. */
	if (errno || !send_all(fd, buffer, 1))
		return bench_fail("tcp-stream server");
	return 0;
}

static int stream_run(const struct bench_args *args, uint16_t port, struct bench_result *result)
{
	uint64_t start, end, chunks = 0, duration = (uint64_t)(args->seconds * 1e9);
	uint8_t *buffer = make_buffer(args->size), byte;
	int fd = dial(port);

	if (fd < 0 || !buffer)
		return bench_fail("tcp-stream");
	/* As Flue's run: a few chunks before the clock starts. */
	for (int i = 0; i < 4; i++) {
		if (!send_all(fd, buffer, args->size))
			return bench_fail("tcp-stream");
	}
	start = util_now_ns();
	do {
		if (!send_all(fd, buffer, args->size))
			return bench_fail("tcp-stream");
		chunks++;
	} while (util_now_ns() - start < duration);
	shutdown(fd, SHUT_WR);
	if (!recv_all(fd, &byte, 1, flags_of(args)))
		return bench_fail("tcp-stream");
	end = util_now_ns();
	result->messages = chunks;
	result->mib_per_s = (double)(chunks * args->size) / (1 << 20) /
			    ((double)(end - start) / 1e9);
	result->per_second = (double)chunks / ((double)(end - start) / 1e9);
	free(buffer);
	return 0;
}

/* What a program with more than one socket does: -1 unless asked for. */
static int open_epoll(const struct bench_args *args, int fd)
{
	struct epoll_event event = { .events = EPOLLIN };
	int epoll = args->epoll ? epoll_create1(EPOLL_CLOEXEC) : -1;

	if (epoll >= 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event))
		return -1;
	return epoll;
}

/* What a program would do that copies the way Flue waits. */
#define PATIENCE_NS 50000

static void spin_for_a_while(int fd)
{
	uint64_t until = util_now_ns() + PATIENCE_NS;
	uint8_t first;

	while (recv(fd, &first, 1, MSG_DONTWAIT | MSG_PEEK) < 0 && util_now_ns() < until)
		;
}

static bool recv_message(const struct bench_args *args, int epoll, int fd, uint8_t *buffer)
{
	struct epoll_event event;

	if (epoll >= 0 && epoll_wait(epoll, &event, 1, -1) < 0)
		return false;
	if (args->patient)
		spin_for_a_while(fd);
	return recv_all(fd, buffer, args->size, flags_of(args));
}

static int pingpong_serve(const struct bench_args *args, int port_fd)
{
	uint8_t *buffer = make_buffer(args->size);
	int listener = open_listener(port_fd), fd = listener < 0 ? -1 : answer(listener);
	int epoll = open_epoll(args, fd);

	if (fd < 0 || !buffer || (args->epoll && epoll < 0))
		return bench_fail("tcp-pingpong server");
	while (recv_message(args, epoll, fd, buffer)) {
		if (!send_all(fd, buffer, args->size))
			return bench_fail("tcp-pingpong server");
	}
	return errno ? bench_fail("tcp-pingpong server") : 0;
}

static int pingpong_run(const struct bench_args *args, uint16_t port, struct bench_result *result)
{
	uint64_t begin, start, end, duration = (uint64_t)(args->seconds * 1e9);
	uint8_t *buffer = make_buffer(args->size);
	static struct hist hist;
	int fd = dial(port), epoll = open_epoll(args, fd);

	if (fd < 0 || !buffer || (args->epoll && epoll < 0))
		return bench_fail("tcp-pingpong");
	hist_init(&hist);
	begin = util_now_ns();
	for (int i = 0;; i++) {
		start = util_now_ns();
		if (!send_all(fd, buffer, args->size) || !recv_message(args, epoll, fd, buffer))
			return bench_fail("tcp-pingpong");
		end = util_now_ns();
		/* Flue's run leaves out as many; but where each takes a time slice something must be left. */
		if (i >= 100 || start - begin > duration)
			hist_add(&hist, end - start);
		/* Where both spin on one processor a round trip takes a time slice. */
		if (end - begin > duration && hist.count &&
		    (hist.count >= 100 || end - begin > 20 * duration))
			break;
	}
	bench_take_hist(result, &hist);
	close(fd);
	free(buffer);
	return 0;
}

static int connect_serve(const struct bench_args *args, int port_fd)
{
	int listener = open_listener(port_fd), fd;
	uint8_t frame[EXCHANGE];

	if (listener < 0)
		return bench_fail("tcp-connect server");
	for (uint64_t i = 0; i < args->count; i++) {
		fd = answer(listener); /* stays open: closing is not what is measured */
		if (fd < 0)
			return bench_fail("tcp-connect server");
		if (args->exchange &&
		    (!recv_all(fd, frame, sizeof(frame), 0) || !send_all(fd, frame, sizeof(frame))))
			return bench_fail("tcp-connect server");
	}
	pause(); /* until the client is done and ends us */
	return 0;
}

static int connect_run(const struct bench_args *args, uint16_t port, struct bench_result *result)
{
	int *fd = calloc(args->count, sizeof(*fd));
	struct linger reset = { .l_onoff = 1 };
	uint8_t frame[EXCHANGE] = { 0 };
	uint64_t start, end;

	if (!fd)
		return bench_fail("tcp-connect");
	start = util_now_ns();
	for (uint64_t i = 0; i < args->count; i++) {
		fd[i] = dial(port);
		if (fd[i] < 0)
			return bench_fail("tcp-connect");
		if (args->exchange && (!send_all(fd[i], frame, sizeof(frame)) ||
				       !recv_all(fd[i], frame, sizeof(frame), 0)))
			return bench_fail("tcp-connect");
	}
	end = util_now_ns();
	/* By reset, so that thousands of ports do not wait for minutes. */
	for (uint64_t i = 0; i < args->count; i++) {
		setsockopt(fd[i], SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
		close(fd[i]);
	}
	result->messages = args->count;
	result->per_second = (double)args->count / ((double)(end - start) / 1e9);
	free(fd);
	return 0;
}

const struct bench_mode bench_tcp_modes[] = {
	{ "tcp-stream", stream_serve, stream_run },
	{ "tcp-pingpong", pingpong_serve, pingpong_run },
	{ "tcp-connect", connect_serve, connect_run },
	{ 0 },
};
