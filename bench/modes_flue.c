/* SPDX-License-Identifier: MIT */
/* Flue, measured through the same client and server as flue(1)'s perf. */
#include "bench.h"

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "crowd.h"
#include "hist.h"
#include "serve.h"
#include "session.h"
#include "util.h"

static void tell_port(const struct sockaddr_storage *local, void *arg)
{
	bench_tell_port(*(const int *)arg, ((const struct sockaddr_in *)local)->sin_port);
}

static int session_serve(const struct bench_args *args, int port_fd)
{
	struct serve_attr attr = {
		.wait = args->wait, .clients = 1, .at_once = 1, .full = args->full
	};
	struct sockaddr_in local = bench_loopback(0);

	attr.adapter = bench_open_adapter(args);
	if (!attr.adapter)
		return bench_fail("flue_open");
	attr.local = (const struct sockaddr *)&local;
	attr.local_len = sizeof(local);
	attr.memory_max = SERVE_MEMORY_MAX;
	attr.listening = tell_port;
	attr.arg = &port_fd;
	return serve(&attr) ? 0 : 1;
}

/* One test, after a short one of the same kind. */
static int session_measure(const struct bench_args *args, uint16_t port, struct session_test *test,
			   struct session_result *result)
{
	struct sockaddr_in to = bench_loopback(port);
	struct session_attr attr = { .remote = (struct sockaddr *)&to, .remote_len = sizeof(to) };
	struct session_test warm = *test;
	struct session_result ignored = { 0 };
	struct session s;
	bool good;

	attr.adapter = bench_open_adapter(args);
	if (!attr.adapter)
		return bench_fail("flue_open");
	attr.wait = args->wait;
	attr.no_crc = args->no_crc;
	attr.full = args->full;
	attr.link = args->link;
	attr.slots = test->window;
	attr.slot_size = args->size;
	attr.send_size = test->op == PROTO_SEND ? args->size : 0;
	attr.timeout_ms = 10000;
	warm.count = test->what == PROTO_LATENCY ? 100 : 4;
	test->duration_ns = (uint64_t)(args->seconds * 1e9);
	good = session_open(&s, &attr) && session_run(&s, &warm, &ignored) &&
	       session_run(&s, test, result);
	if (!good)
		fprintf(stderr, "flue_bench: %s: %s\n", args->mode, s.error);
	session_close(&s);
	flue_close(attr.adapter);
	return good ? 0 : 1;
}

static int bandwidth_run(const struct bench_args *args, uint16_t port, struct bench_result *result,
			 uint32_t op)
{
	struct session_test test = { .op = op, .what = PROTO_BANDWIDTH, .size = args->size };
	struct session_result got = { 0 };

	test.window = args->window ? (uint32_t)args->window : session_default_window(args->size);
	test.slots = 1; /* one buffer on each side, as the raw stream has */
	test.list = (uint32_t)args->list;
	if (session_measure(args, port, &test, &got))
		return 1;
	result->messages = got.messages;
	result->calls = got.calls;
	result->mib_per_s = (double)got.bytes / (1 << 20) / ((double)got.elapsed_ns / 1e9);
	result->per_second = (double)got.messages / ((double)got.elapsed_ns / 1e9);
	return 0;
}

static int write_run(const struct bench_args *args, uint16_t port, struct bench_result *result)
{
	return bandwidth_run(args, port, result, PROTO_WRITE);
}

static int read_run(const struct bench_args *args, uint16_t port, struct bench_result *result)
{
	return bandwidth_run(args, port, result, PROTO_READ);
}

static int send_run(const struct bench_args *args, uint16_t port, struct bench_result *result)
{
	return bandwidth_run(args, port, result, PROTO_SEND);
}

static int pingpong_run(const struct bench_args *args, uint16_t port, struct bench_result *result)
{
	struct session_test test = { .op = PROTO_SEND, .what = PROTO_LATENCY, .size = args->size };
	static struct hist hist;
	struct session_result got = { .hist = &hist };

	hist_init(&hist);
	test.window = 1;
	test.batch = (uint32_t)args->batch;
	if (session_measure(args, port, &test, &got))
		return 1;
	bench_take_hist(result, &hist);
	return 0;
}

static bool crowd_accept(struct crowd *c, struct flue_listener *listener, uint64_t n)
{
	struct flue_conn_attr conn = FLUE_ATTR(struct flue_conn_attr);

	for (uint64_t i = 0; i < n; i++) {
		struct flue_conn_request *request = listener->ops->get_request(listener, -1);
		struct flue_qp *qp = request ? crowd_add(c) : NULL;

		if (!qp || !request->ops->accept(request, qp, &conn))
			return false;
	}
	return true;
}

static bool crowd_connect(struct crowd *c, const struct bench_args *args, uint16_t port, uint64_t n)
{
	struct flue_conn_attr conn = FLUE_ATTR(struct flue_conn_attr);
	struct sockaddr_in to = bench_loopback(port);

	conn.remote = (struct sockaddr *)&to;
	conn.remote_len = sizeof(to);
	conn.flags = args->full ? FLUE_CONN_FULL : 0;
	for (uint64_t i = 0; i < n; i++) {
		struct flue_qp *qp = crowd_add(c);

		if (!qp || !qp->ops->connect(qp, &conn) || !bench_check_link(args, qp))
			return false;
	}
	return true;
}

/* The last connection carries the server's own figure, as private data of its reply. */
static bool accept_last(struct crowd *c, struct flue_listener *listener, uint64_t grown)
{
	struct flue_conn_attr conn = FLUE_ATTR(struct flue_conn_attr);
	struct flue_conn_request *request = listener->ops->get_request(listener, -1);
	struct flue_qp *qp = request ? crowd_add(c) : NULL;

	conn.private_data = &grown;
	conn.private_len = sizeof(grown);
	return qp && request->ops->accept(request, qp, &conn);
}

static int connect_serve(const struct bench_args *args, int port_fd)
{
	struct flue_listen_attr attr = FLUE_ATTR(struct flue_listen_attr);
	struct sockaddr_in local = bench_loopback(0);
	struct flue_listener *listener;
	struct crowd crowd;
	uint64_t before;

	if (!crowd_open(&crowd, args, args->count + CROWD_FIRST + 1))
		return bench_fail("flue-connect server");
	attr.local = (struct sockaddr *)&local;
	attr.local_len = sizeof(local);
	attr.flags = args->full ? FLUE_LISTEN_FULL : 0;
	listener = crowd.adapter->ops->listen(crowd.adapter, &attr);
	if (!listener)
		return bench_fail("listen");
	tell_port(&listener->local, &port_fd);
	if (!crowd_accept(&crowd, listener, CROWD_FIRST))
		return bench_fail("accept");
	before = bench_resident();
	if (!crowd_accept(&crowd, listener, args->count) ||
	    !accept_last(&crowd, listener, bench_resident() - before))
		return bench_fail("accept");
	pause(); /* until the client is done and ends us */
	return 0;
}

static uint64_t clock_ns(clockid_t clock)
{
	struct timespec now = { 0 };

	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* What the server and all threads of ours but this one have used. The thread's clock comes first, as it runs on: what it
 * uses between the two looks is less than a microsecond. */
static uint64_t used_ns(clockid_t server)
{
	uint64_t own = clock_ns(CLOCK_THREAD_CPUTIME_ID);

	return clock_ns(server) + clock_ns(CLOCK_PROCESS_CPUTIME_ID) - own;
}

static void sleep_for(double seconds)
{
	struct timespec time = { .tv_sec = (time_t)seconds };

	time.tv_nsec = (long)((seconds - (double)time.tv_sec) * 1e9);
	nanosleep(&time, NULL);
}

/* Processor time while all connections are idle. */
static bool measure_idle(const struct bench_args *args, struct bench_result *result)
{
	clockid_t server;
	uint64_t before, after;

	if (args->idle == 0)
		return true;
	if (clock_getcpuclockid(args->server, &server))
		return false;
	sleep_for(0.3); /* what the last connections have left to do */
	before = used_ns(server);
	sleep_for(args->idle);
	after = used_ns(server);
	result->idle_us = after > before ? (double)(after - before) / 1e3 / args->idle : 0;
	result->idle = true;
	return true;
}

static int connect_run(const struct bench_args *args, uint16_t port, struct bench_result *result)
{
	struct crowd crowd;
	uint64_t before, grown, start, end;
	const struct flue_qp *last;

	if (!crowd_open(&crowd, args, args->count + CROWD_FIRST + 1) ||
	    !crowd_connect(&crowd, args, port, CROWD_FIRST))
		return bench_fail("flue-connect");
	before = bench_resident();
	start = util_now_ns();
	if (!crowd_connect(&crowd, args, port, args->count))
		return bench_fail("flue-connect");
	end = util_now_ns();
	result->client_bytes = (double)(bench_resident() - before) / (double)args->count;
	if (!crowd_connect(&crowd, args, port, 1))
		return bench_fail("flue-connect");
	last = crowd.qp[crowd.n - 1];
	if (last->private_len == sizeof(grown)) {
		memcpy(&grown, last->private_data, sizeof(grown));
		result->server_bytes = (double)grown / (double)args->count;
	}
	if (!measure_idle(args, result))
		return bench_fail("flue-connect");
	result->messages = args->count;
	result->per_second = (double)args->count / ((double)(end - start) / 1e9);
	crowd_close(&crowd);
	return 0;
}

const struct bench_mode bench_flue_modes[] = {
	{ "flue-write", session_serve, write_run },
	{ "flue-read", session_serve, read_run },
	{ "flue-send", session_serve, send_run },
	{ "flue-pingpong", session_serve, pingpong_run },
	{ "flue-connect", connect_serve, connect_run },
	{ 0 },
};
