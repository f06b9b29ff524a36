/* SPDX-License-Identifier: MIT */
/*
 * Measures Flue and raw TCP in the same frame: this process is the client, a forked child the server,
 * each pinned to a processor or neither. One run is one measurement and prints one line of JSON;
 * bench/run repeats, interleaves and compares.
 */
#include "bench.h"

#include <argp.h>
#include <errno.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "util.h"

int bench_fail(const char *what)
{
	fprintf(stderr, "flue_bench: %s: %s\n", what, strerror(errno));
	return 1;
}

bool bench_tell_port(int fd, uint16_t port)
{
	bool good = write(fd, &port, sizeof(port)) == sizeof(port);

	close(fd);
	return good;
}

uint64_t bench_resident(void)
{
	unsigned long long pages = 0;
	FILE *f = fopen("/proc/self/statm", "r");

	if (f) {
		if (fscanf(f, "%*u %llu", &pages) != 1)
			pages = 0;
		fclose(f);
	}
	return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static const struct argp_option options[] = {
	{ "pin", 'p', "A,B", 0, "Processors of client and server", 0 },
	{ "size", 'S', "SIZE", 0, "Message size", 0 },
	{ "seconds", 'd', "SECONDS", 0, "Duration (0.5)", 0 },
	{ "count", 'n', "N", 0, "Connections", 0 },
	{ "window", 'w', "N", 0, "Requests under way", 0 },
	{ "no-crc", 'c', NULL, 0, "Without CRC", 0 },
	{ "full", 'F', NULL, 0, "Full service", 0 },
	{ "wait", 'W', "HOW", 0, "wait, poll or fd", 0 },
	{ "spin", 's', NULL, 0, "TCP: spin instead of sleeping", 0 },
	{ "waitall", 'a', NULL, 0, "TCP: receive with MSG_WAITALL", 0 },
	{ "epoll", 'E', NULL, 0, "TCP ping-pong: epoll_wait before each receive", 0 },
	{ "patient", 'P', NULL, 0, "TCP ping-pong: spin for 50 us, then block", 0 },
	{ "exchange", 'e', NULL, 0, "TCP, conversion: a request and a reply on each connection",
	  0 },
	{ 0 },
};

static bool parse_wait(struct bench_args *a, const char *arg)
{
	for (int i = 0; i < EP_NWAITS; i++) {
		if (strcmp(arg, ep_wait_name((enum ep_wait)i)) == 0) {
			a->wait = (enum ep_wait)i;
			return true;
		}
	}
	return false;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct bench_args *a = state->input;
	bool good = true;

	switch (key) {
	case 'p': good = sscanf(arg, "%d,%d", &a->pin[0], &a->pin[1]) == 2; break;
	case 'S': good = util_parse_size(arg, 1, 1 << 26, &a->size); break;
	case 'd': good = util_parse_seconds(arg, 0.001, 60, &a->seconds); break;
	case 'n': good = util_parse_number(arg, 1, 100000, &a->count); break;
	case 'w': good = util_parse_number(arg, 1, 1024, &a->window); break;
	case 'c': a->no_crc = true; break;
	case 'F': a->full = true; break;
	case 'W': good = parse_wait(a, arg); break;
	case 's': a->spin = true; break;
	case 'a': a->waitall = true; break;
	case 'E': a->epoll = true; break;
	case 'P': a->patient = true; break;
	case 'e': a->exchange = true; break;
	case ARGP_KEY_ARG: a->mode = arg; break;
	case ARGP_KEY_END:
		if (!a->mode)
			argp_error(state, "which mode?");
		break;
	default: return ARGP_ERR_UNKNOWN;
	}
	if (!good)
		argp_error(state, "what is '%s'?", arg);
	return 0;
}

static const struct argp argp = { .options = options, .parser = parse, .args_doc = "MODE" };

static const struct bench_mode *find_mode(const char *name)
{
	const struct bench_mode *const lists[] = { bench_tcp_modes, bench_flue_modes,
						   bench_convert_modes };

	for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
		for (const struct bench_mode *m = lists[i]; m->name; m++) {
			if (strcmp(m->name, name) == 0)
				return m;
		}
	}
	return NULL;
}

static bool pin(int cpu)
{
	cpu_set_t set;

	if (cpu < 0)
		return true;
	CPU_ZERO(&set);
	CPU_SET((size_t)cpu, &set);
	return sched_setaffinity(0, sizeof(set), &set) == 0;
}

static void raise_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
}

static void print_field(const char *name, double value)
{
	if (value != 0)
		printf(", \"%s\": %.3f", name, value);
}

static void print(const char *mode, const struct bench_result *r)
{
	printf("{\"mode\": \"%s\"", mode);
	print_field("mib_per_s", r->mib_per_s);
	print_field("p50_us", r->p50_us);
	print_field("p99_us", r->p99_us);
	print_field("mean_us", r->mean_us);
	print_field("min_us", r->min_us);
	print_field("per_second", r->per_second);
	print_field("client_bytes", r->client_bytes);
	print_field("server_bytes", r->server_bytes);
	print_field("messages", (double)r->messages);
	printf("}\n");
}

static int run(const struct bench_mode *mode, const struct bench_args *args)
{
	struct bench_result result = { 0 };
	int fds[2], status = 1;
	uint16_t port;
	pid_t child;

	if (pipe(fds))
		return bench_fail("pipe");
	child = fork();
	if (child < 0)
		return bench_fail("fork");
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(fds[0]);
		_exit(pin(args->pin[1]) ? mode->serve(args, fds[1]) : bench_fail("pinning"));
	}
	close(fds[1]);
	if (!pin(args->pin[0]))
		status = bench_fail("pinning");
	else if (read(fds[0], &port, sizeof(port)) == sizeof(port))
		status = mode->run(args, port, &result);
	close(fds[0]);
	/* Modes whose server ends by itself have ended by now. */
	kill(child, SIGTERM);
	waitpid(child, NULL, 0);
	if (status == 0)
		print(args->mode, &result);
	return status;
}

int main(int argc, char **argv)
{
	struct bench_args args = { .pin = { -1, -1 }, .size = 64, .seconds = 0.5, .count = 1000 };
	const struct bench_mode *mode;

	if (argp_parse(&argp, argc, argv, 0, NULL, &args))
		return 2;
	mode = find_mode(args.mode);
	if (!mode) {
		fprintf(stderr, "flue_bench: there is no mode '%s'\n", args.mode);
		return 2;
	}
	raise_limit();
	return run(mode, &args);
}
