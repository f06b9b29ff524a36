/* SPDX-License-Identifier: MIT */
/*
 * Conversions: TCP connect, a few words in streaming mode if asked for, flue_socket_convert() with a
 * fresh queue pair. One after another, as flue-connect makes its connections.
 */
#include "bench.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "crowd.h"
#include "util.h"

#define TEXT "convert this connection, please\n"

/* What a program does that wants its words sent at once. */
static void prepare(int fd)
{
	int one = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

static bool say(int fd)
{
	return send(fd, TEXT, sizeof(TEXT), MSG_NOSIGNAL) == sizeof(TEXT);
}

static bool hear(int fd)
{
	char text[sizeof(TEXT)];

	return recv(fd, text, sizeof(text), MSG_WAITALL) == sizeof(text);
}

static bool convert(struct crowd *c, int fd, uint32_t flags)
{
	struct flue_switch_attr attr = FLUE_ATTR(struct flue_switch_attr);
	struct flue_qp *qp = crowd_add(c);

	attr.flags = flags;
	return qp && flue_socket_convert(qp, fd, &attr);
}

static bool answer_some(const struct bench_args *args, struct crowd *c, int listener, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++) {
		int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

		if (fd < 0)
			return false;
		prepare(fd);
		if (args->exchange && (!hear(fd) || !say(fd)))
			return false;
		if (!convert(c, fd, FLUE_SWITCH_RESPONDER))
			return false;
	}
	return true;
}

static bool dial_some(const struct bench_args *args, struct crowd *c, uint16_t port, uint64_t n)
{
	struct sockaddr_in to = bench_loopback(port);

	for (uint64_t i = 0; i < n; i++) {
		int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

		if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof(to)))
			return false;
		prepare(fd);
		if (args->exchange && (!say(fd) || !hear(fd)))
			return false;
		if (!convert(c, fd, 0))
			return false;
	}
	return true;
}

static int convert_serve(const struct bench_args *args, int port_fd)
{
	struct sockaddr_in local = bench_loopback(0);
	socklen_t len = sizeof(local);
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct crowd crowd;

	if (!crowd_open(&crowd, args, args->count + CROWD_FIRST))
		return bench_fail("flue-convert server");
	if (listener < 0 || bind(listener, (struct sockaddr *)&local, len) ||
	    listen(listener, 128) || getsockname(listener, (struct sockaddr *)&local, &len))
		return bench_fail("listen");
	bench_tell_port(port_fd, local.sin_port);
	if (!answer_some(args, &crowd, listener, args->count + CROWD_FIRST))
		return bench_fail("flue-convert server");
	pause(); /* until the client is done and ends us */
	return 0;
}

static int convert_run(const struct bench_args *args, uint16_t port, struct bench_result *result)
{
	struct crowd crowd;
	uint64_t start, end;

	if (!crowd_open(&crowd, args, args->count + CROWD_FIRST) ||
	    !dial_some(args, &crowd, port, CROWD_FIRST))
		return bench_fail("flue-convert");
	start = util_now_ns();
	if (!dial_some(args, &crowd, port, args->count))
		return bench_fail("flue-convert");
	end = util_now_ns();
	result->messages = args->count;
	result->per_second = (double)args->count / ((double)(end - start) / 1e9);
	crowd_close(&crowd);
	return 0;
}

const struct bench_mode bench_convert_modes[] = {
	{ "flue-convert", convert_serve, convert_run },
	{ 0 },
};
