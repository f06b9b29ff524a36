/* SPDX-License-Identifier: MIT */
/*
 * Measures Flue and raw TCP in the same frame: this process is the client, a forked child the server,
 * each pinned to a processor or neither. One run is one measurement and prints one line of JSON;
 * bench/run repeats, interleaves and compares.
 */
#include "bench.h"

#include <argp.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hist.h"
#include "util.h"

#define PAGE 4096u

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

static size_t area_size(const struct bench_args *args)
{
	return (args->size + PAGE - 1) & ~(size_t)(PAGE - 1);
}

uint8_t *bench_area(const struct bench_args *args, int which)
{
	return (uint8_t *)args->shared + PAGE + (size_t)which * area_size(args);
}

static bool open_shared(struct bench_args *args)
{
	size_t length = PAGE + 2 * area_size(args);

	_Static_assert(sizeof(struct bench_shared) <= PAGE, "the areas begin with the second page");
	args->shared = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
			    0);
	return args->shared != MAP_FAILED;
}

void bench_take_hist(struct bench_result *result, const struct hist *hist)
{
	result->messages = hist->count;
	result->p50_us = (double)hist_percentile(hist, 50) / 1e3;
	result->p99_us = (double)hist_percentile(hist, 99) / 1e3;
	result->mean_us = hist_mean(hist) / 1e3;
	result->min_us = (double)hist->min / 1e3;
}

/* As containers do that forbid it: both calls fail, here and in all that is started from here. */
static bool deny_process_vm(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 1, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_writev, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { .len = sizeof(code) / sizeof(code[0]), .filter = code };

	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
	       prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static const struct argp_option options[] = {
	{ "pin", 'p', "A,B", 0, "Processors of client and server", 0 },
	{ "size", 'S', "SIZE", 0, "Message size", 0 },
	{ "seconds", 'd', "SECONDS", 0, "Duration (0.5)", 0 },
	{ "count", 'n', "N", 0, "Connections", 0 },
	{ "window", 'w', "N", 0, "Requests under way", 0 },
	{ "no-crc", 'c', NULL, 0, "Without CRC", 0 },
	{ "full", 'F', NULL, 0, "Full service", 0 },
	{ "link", 'l', "LINK", 0, "tcp or local; fails if it is another", 0 },
	{ "list", 'L', "N", 0, "Requests posted in one call", 0 },
	{ "batch", 'b', "N", 0, "Round trips between two looks at the clock (1)", 0 },
	{ "no-process-vm", 'V', NULL, 0, "The kernel refuses process_vm_readv and _writev", 0 },
	{ "self", 'Z', NULL, 0, "Both sides in one process", 0 },
	{ "idle", 'i', "SECONDS", 0, "flue-connect: then do nothing for so long", 0 },
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

static bool parse_link(struct bench_args *a, const char *arg)
{
	a->link = strcmp(arg, "tcp") == 0 ? FLUE_LINK_TCP : FLUE_LINK_LOCAL;
	return a->link == FLUE_LINK_TCP || strcmp(arg, "local") == 0;
}

static error_t parse_more(int key, char *arg, struct argp_state *state)
{
	struct bench_args *a = state->input;

	switch (key) {
	case 's': a->spin = true; break;
	case 'a': a->waitall = true; break;
	case 'E': a->epoll = true; break;
	case 'P': a->patient = true; break;
	case 'e': a->exchange = true; break;
	case 'V': a->no_process_vm = true; break;
	case 'Z': a->self = true; break;
	case ARGP_KEY_ARG: a->mode = arg; break;
	case ARGP_KEY_END:
		if (!a->mode)
			argp_error(state, "which mode?");
		break;
	default: return ARGP_ERR_UNKNOWN;
	}
	return 0;
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
	case 'l': good = parse_link(a, arg); break;
	case 'L': good = util_parse_number(arg, 1, EP_LIST_MAX, &a->list); break;
	case 'b': good = util_parse_number(arg, 1, 1000, &a->batch); break;
	case 'i': good = util_parse_seconds(arg, 0.001, 60, &a->idle); break;
	default: return parse_more(key, arg, state);
	}
	if (!good)
		argp_error(state, "what is '%s'?", arg);
	return 0;
}

static const struct argp argp = { .options = options, .parser = parse, .args_doc = "MODE" };

static const struct bench_mode *find_mode(const char *name)
{
	const struct bench_mode *const lists[] = { bench_tcp_modes, bench_flue_modes,
						   bench_convert_modes, bench_memory_modes,
						   bench_pair_modes };

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
	if (r->idle)
		printf(", \"idle_us\": %.3f", r->idle_us);
	print_field("messages", (double)r->messages);
	print_field("calls", (double)r->calls);
	printf("}\n");
}

static int be_server(const struct bench_mode *mode, const struct bench_args *args, int port_fd)
{
	return pin(args->pin[1]) ? mode->serve(args, port_fd) : bench_fail("pinning");
}

struct thread_args {
	const struct bench_mode *mode;
	const struct bench_args *args;
	int port_fd;
};

static void *server_main(void *arg)
{
	const struct thread_args *t = arg;

	if (be_server(t->mode, t->args, t->port_fd))
		_exit(1); /* or the client would wait for ever */
	return NULL;
}

/* The server, as a child or as a thread; it writes its port to port_fd. */
static bool start_server(const struct bench_mode *mode, struct bench_args *args, const int fds[2])
{
	static struct thread_args thread;
	pthread_t id;

	args->server = getpid();
	if (args->self) {
		thread = (struct thread_args) { .mode = mode, .args = args, .port_fd = fds[1] };
		return pthread_create(&id, NULL, server_main, &thread) == 0;
	}
	args->server = fork();
	if (args->server == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(fds[0]);
		_exit(be_server(mode, args, fds[1]));
	}
	close(fds[1]);
	return args->server > 0;
}

static int run(const struct bench_mode *mode, struct bench_args *args)
{
	struct bench_result result = { 0 };
	int fds[2], status = 1;
	uint16_t port;

	if (pipe(fds))
		return bench_fail("pipe");
	if (!start_server(mode, args, fds))
		return bench_fail("starting a server");
	if (!pin(args->pin[0]))
		status = bench_fail("pinning");
	else if (read(fds[0], &port, sizeof(port)) == sizeof(port))
		status = mode->run(args, port, &result);
	close(fds[0]);
	if (!args->self) {
		/* Modes whose server ends by itself have ended by now. */
		kill(args->server, SIGTERM);
		waitpid(args->server, NULL, 0);
	}
	if (status == 0)
		print(args->mode, &result);
	return status;
}

int main(int argc, char **argv)
{
	struct bench_args args = {
		.pin = { -1, -1 }, .size = 64, .seconds = 0.5, .count = 1000, .batch = 1
	};
	const struct bench_mode *mode;

	if (argp_parse(&argp, argc, argv, 0, NULL, &args))
		return 2;
	mode = find_mode(args.mode);
	if (!mode) {
		fprintf(stderr, "flue_bench: there is no mode '%s'\n", args.mode);
		return 2;
	}
	raise_limit();
	if (!open_shared(&args))
		return bench_fail("memory");
	if (args.no_process_vm && !deny_process_vm())
		return bench_fail("seccomp");
	return run(mode, &args);
}
