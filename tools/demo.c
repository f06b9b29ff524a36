/* SPDX-License-Identifier: MIT */
/* flue demo: two processes, each step explained in a line, then a short measurement. */
#include <argp.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cmd.h"
#include "pattern.h"
#include "perf.h"
#include "picture.h"
#include "serve.h"
#include "util.h"

#define BLOCK (1u << 20)

struct demo {
	const char *picture;
	double seconds; /* per bandwidth test */
};

static const uint64_t sizes[] = { 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20 };

#define N_SIZES (sizeof(sizes) / sizeof(sizes[0]))

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct demo *d = state->input;

	switch (key) {
	case 'o': d->picture = arg; break;
	case 'd':
		if (!util_parse_seconds(arg, 0.01, 5, &d->seconds))
			argp_error(state, "-d takes 0.01 to 5 seconds, not '%s'", arg);
		break;
	default: return ARGP_ERR_UNKNOWN;
	}
	return 0;
}

static const struct argp_option options[] = {
	{ "output", 'o', "FILE", 0, "Where to put the picture (flue-demo.svg)", 0 },
	{ "duration", 'd', "SECONDS", 0, "Time for each bandwidth figure (0.25)", 0 },
	{ 0 },
};

static const struct argp argp = {
	.options = options,
	.parser = parse,
	.doc = "A guided tour: a server and a client on this machine, one line for each step, then latency "
	       "and bandwidth as a table and as a picture. Takes about ten seconds.\v"
	       "Examples:\n"
	       "  flue demo\n"
	       "  flue demo -o /tmp/demo.svg\n",
};

static void tell_port(const struct sockaddr_storage *local, void *arg)
{
	const int *fd = arg;
	uint16_t port = ((const struct sockaddr_in *)local)->sin_port;

	if (write(*fd, &port, sizeof(port)) != sizeof(port))
		_exit(1);
	close(*fd);
}

static int run_server(int fd)
{
	struct sockaddr_in local = { .sin_family = AF_INET };
	struct serve_attr attr = { .wait = EP_WAIT, .at_once = SERVE_AT_ONCE };

	/* However the client ends, we do too. */
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	local.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	attr.adapter = cmd_open_adapter(0);
	if (!attr.adapter)
		return 1;
	attr.local = (const struct sockaddr *)&local;
	attr.local_len = sizeof(local);
	attr.memory_max = SERVE_MEMORY_MAX;
	attr.listening = tell_port;
	attr.arg = &fd;
	return serve(&attr) ? 0 : 1;
}

/* Its address goes to *to. -1 after a message. */
static pid_t start_server(struct sockaddr_storage *to)
{
	struct sockaddr_in *in = (struct sockaddr_in *)to;
	int fds[2];
	pid_t pid;

	if (pipe(fds)) {
		util_error("cannot make a pipe: %s", strerror(errno));
		return -1;
	}
	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		close(fds[0]);
		_exit(run_server(fds[1]));
	}
	close(fds[1]);
	memset(to, 0, sizeof(*to));
	in->sin_family = AF_INET;
	in->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (pid < 0 || read(fds[0], &in->sin_port, sizeof(in->sin_port)) != sizeof(in->sin_port)) {
		util_error("the server process did not start");
		pid = -1;
	}
	close(fds[0]);
	return pid;
}

static void step(const char *name, const char *call)
{
	static int number;

	printf(" %d  %-10s %-26s ", ++number, name, call);
	fflush(stdout);
}

static bool show_send(struct session *s)
{
	struct session_test test = { .op = PROTO_SEND, .size = 64, .window = 1, .verify = true };
	char text[UTIL_TEXT_MAX];
	struct proto_msg report;
	uint64_t ns = 0;
	bool good = true;

	step("send", "qp->ops->post_send()");
	if (!session_begin(s, &test))
		return false;
	for (uint64_t k = 0; k < 20; k++) { /* the first ones are cold */
		if (!session_round_trip(s, &test, k, &ns, &good))
			return false;
	}
	if (!session_end(s, &report))
		return false;
	printf("64 bytes into a receive the server had posted, and its answer: %s%s\n",
	       util_time_text(text, (double)ns), good ? "" : " WRONG CONTENTS");
	return good;
}

/* Slot 0 goes out, slot 1 takes what comes back. */
static bool show_write_and_read(struct session *s)
{
	struct ep_remote there = { s->remote.addr, s->remote.rkey };
	char text[UTIL_TEXT_MAX];
	uint64_t start;
	bool same;

	pattern_fill(s->data.data, BLOCK, 1);
	step("write", "FLUE_WR_WRITE");
	start = util_now_ns();
	if (!ep_post(&s->ep, FLUE_WR_WRITE, &s->data, 0, BLOCK, &there, true) ||
	    !ep_wait_sent(&s->ep, s->ep.posted, s->timeout_ms))
		return session_fail(s, "writing");
	printf("1 MiB into the server's memory at %#llx, its program asleep: %s\n",
	       (unsigned long long)there.addr,
	       util_time_text(text, (double)(util_now_ns() - start)));
	step("read", "FLUE_WR_READ");
	start = util_now_ns();
	if (!ep_post(&s->ep, FLUE_WR_READ, &s->data, s->slot_size, BLOCK, &there, true) ||
	    !ep_wait_sent(&s->ep, s->ep.posted, s->timeout_ms))
		return session_fail(s, "reading");
	util_time_text(text, (double)(util_now_ns() - start));
	same = pattern_check(s->data.data + s->slot_size, BLOCK, 1);
	printf("the same 1 MiB back, %s: %s\n", same ? "every byte equal" : "BUT IT DIFFERS", text);
	if (!same)
		snprintf(s->error, sizeof(s->error), "the memory read is not what was written");
	return same;
}

static bool show_steps(struct session *s, struct flue_adapter *adapter,
		       const struct sockaddr_storage *to)
{
	struct session_attr attr = { .adapter = adapter, .slots = 2, .slot_size = BLOCK };
	char text[UTIL_TEXT_MAX];

	attr.remote = (const struct sockaddr *)to;
	attr.remote_len = sizeof(struct sockaddr_in);
	attr.send_size = 64;
	attr.timeout_ms = 10000;
	step("open", "flue_open()");
	printf("adapter %s of provider %s, %u processor%s\n", adapter->caps->adapter,
	       adapter->caps->provider, adapter->n_cpus, adapter->n_cpus == 1 ? "" : "s");
	if (!session_open(s, &attr))
		return false;
	step("register", "pd->ops->register_mr()");
	printf("2 MiB at %p under the key %#x\n", (void *)s->data.data, s->data.mr->lkey);
	step("connect", "qp->ops->connect()");
	printf("to %s over TCP; now both speak iWARP\n", util_address_text(text, &s->ep.qp->peer));
	return show_send(s) && show_write_and_read(s);
}

static bool measure(const struct demo *d, struct flue_adapter *adapter,
		    const struct sockaddr_storage *to, struct perf_rows *latency,
		    struct perf_rows *bandwidth)
{
	struct perf perf = { .common = OPTIONS_DEFAULTS, .ops = { true, true, true } };
	socklen_t length = sizeof(struct sockaddr_in);

	perf.tests[PROTO_LATENCY] = true;
	perf.seconds = 4 * d->seconds;
	if (!perf_run(&perf, adapter, to, length, latency))
		return false;
	perf.tests[PROTO_LATENCY] = false;
	perf.tests[PROTO_BANDWIDTH] = true;
	perf.seconds = d->seconds;
	for (size_t i = 0; i < N_SIZES && !cmd_interrupted; i++) {
		perf.size = sizes[i];
		if (!perf_run(&perf, adapter, to, length, bandwidth))
			return false;
	}
	return !cmd_interrupted;
}

/* Operations as columns, sizes as rows. */
static void print_bandwidth(const struct perf_rows *rows)
{
	char text[UTIL_TEXT_MAX];

	printf("\nMiB/s     %10s %10s %10s\n", "send", "write", "read");
	for (size_t i = 0; i + PROTO_NOPS <= rows->n; i += PROTO_NOPS) {
		printf("%9s", util_size_text(text, rows->row[i].size));
		for (size_t op = 0; op < PROTO_NOPS; op++)
			printf(" %10.0f", perf_mib_per_s(&rows->row[i + op]));
		putchar('\n');
	}
}

static bool show_results(const struct demo *d, const struct perf_rows *latency,
			 const struct perf_rows *bandwidth)
{
	struct picture picture = { .title = "Flue: two processes on this machine",
				   .bandwidth = bandwidth };
	struct perf quiet = { .sweep = true }; /* the table without a picture for each line */

	perf_print_text(&quiet, latency);
	printf("\nsend of 64 bytes: round trips by %s\n", util_utf8() ? "µs" : "us");
	perf_draw(latency->row[0].result.hist, "");
	print_bandwidth(bandwidth);
	picture.subtitle =
		"software RNIC, iWARP over loopback TCP, CRC on, both sides sleep while they wait";
	picture.hist_title = "64-byte Send and its answer";
	picture.hist = latency->row[0].result.hist;
	if (!picture_write(d->picture, &picture)) {
		util_error("cannot write %s: %s; choose another place with -o", d->picture,
			   strerror(errno));
		return false;
	}
	printf("\nPicture: %s\nNext: 'flue perf --server' here and 'flue perf HOST' elsewhere; "
	       "README.md has a program of 30 lines.\n",
	       d->picture);
	return true;
}

static bool run_client(const struct demo *d, const struct sockaddr_storage *to)
{
	struct flue_adapter *adapter = cmd_open_adapter(0);
	struct perf_rows latency = { 0 }, bandwidth = { 0 };
	struct session s = { .ep.epoll = -1 };
	bool good;

	if (!adapter)
		return false;
	good = show_steps(&s, adapter, to);
	if (!good)
		util_error("%s", s.error);
	session_close(&s);
	if (good) {
		printf("\nMeasuring, a few seconds ...\n");
		fflush(stdout);
		good = measure(d, adapter, to, &latency, &bandwidth) &&
		       show_results(d, &latency, &bandwidth);
	}
	perf_free(&latency);
	perf_free(&bandwidth);
	flue_close(adapter);
	return good;
}

int cmd_demo(int argc, char **argv)
{
	struct demo demo = { .picture = "flue-demo.svg", .seconds = 0.25 };
	struct sockaddr_storage to;
	pid_t server;
	bool good;

	if (argp_parse(&argp, argc, argv, 0, NULL, &demo))
		return 2;
	/* Before any thread: the child opens an adapter of its own. */
	server = start_server(&to);
	if (server < 0)
		return 1;
	cmd_catch_interrupt();
	printf("Flue %s: RDMA in user space between two processes, %d (server) and %d (client)\n\n",
	       flue_version(), (int)server, (int)getpid());
	good = run_client(&demo, &to);
	kill(server, SIGTERM);
	waitpid(server, NULL, 0);
	return good ? 0 : 1;
}
