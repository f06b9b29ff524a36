/* SPDX-License-Identifier: MIT */
/*
 * A plain sockets program that knows nothing of Flue: bench/sockets.py runs it over TCP, over Unix-domain
 * sockets, and over TCP with the preload library. It forks a server, pins both if told to, and prints
 * one line of JSON. With --role the two ends are separate programs, so that only one has the library.
 *
 *   pingpong  one blocking connection, a message and its answer
 *   stream    one blocking connection, messages one way; the receiver reads as much as a message has
 *   churn     a new connection for every request
 *   hold      many connections, a few round trips on each; what they take of both processes' memory
 */
#include <errno.h>
#include <getopt.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "sockets_link.h"

#define REQUEST      64        /* octets of a request where the size is not the subject */
#define BULK         (1 << 20) /* each way and connection, with --bulk */
#define MOST_SAMPLES 4000000
#define HANG         100 /* seconds until the kernel ends a process that does not come to its end */
#define HOLD_ROUNDS  6   /* round trips on each held connection: enough for a lane to come up */
#define WARM_NS      30000000

enum { ECHO = 'e', MOVE_BULK = 'b', END = 'x' };

static int64_t cpu_ns(void)
{
	struct timespec at;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &at);
	return at.tv_sec * 1000000000LL + at.tv_nsec;
}

static void pin(int cpu)
{
	cpu_set_t set;

	if (cpu < 0)
		return;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		link_fail("sched_setaffinity");
}

/* ---- servers ---- */

static void serve_pingpong(const struct job *job, int listener)
{
	int fd = link_accept(job, listener);

	while (link_recv(fd, link_buffer, job->size))
		link_send(fd, link_buffer, job->size);
	close(fd);
}

/* The receiver's clock counts; its word is the answer. */
static void serve_stream(const struct job *job, int listener)
{
	int fd = link_accept(job, listener);
	int64_t start = 0;
	uint64_t octets = 0, figures[2];

	for (;;) {
		ssize_t n = recv(fd, link_buffer, job->size, 0);

		if (n < 0)
			link_fail("recv");
		if (n == 0)
			break;
		if (start == 0)
			start = link_now();
		octets += (uint64_t)n;
	}
	figures[0] = octets;
	figures[1] = (uint64_t)(link_now() - start);
	link_send(fd, (uint8_t *)figures, sizeof(figures));
	close(fd);
}

/* Serves one request; false if there will be no more on this connection. */
static bool serve_request(int fd, bool *end)
{
	if (!link_recv(fd, link_buffer, REQUEST))
		return false;
	*end = link_buffer[0] == END;
	if (link_buffer[0] == MOVE_BULK) {
		if (!link_recv(fd, link_buffer, BULK))
			return false;
		link_send(fd, link_buffer, BULK);
	}
	link_send(fd, link_buffer, REQUEST);
	return true;
}

static void serve_churn(const struct job *job, int listener)
{
	bool end = false;

	while (!end) {
		int fd = link_accept(job, listener);

		while (serve_request(fd, &end))
			;
		close(fd);
	}
}

static void serve_hold(const struct job *job, int listener)
{
	int poll = epoll_create1(0);
	struct epoll_event event = { .events = EPOLLIN, .data.fd = listener };
	bool end = false;

	if (poll < 0 || epoll_ctl(poll, EPOLL_CTL_ADD, listener, &event))
		link_fail("epoll");
	while (!end) {
		if (epoll_wait(poll, &event, 1, -1) != 1)
			continue;
		if (event.data.fd == listener) {
			event.events = EPOLLIN;
			event.data.fd = link_accept(job, listener);
			if (epoll_ctl(poll, EPOLL_CTL_ADD, event.data.fd, &event))
				link_fail("epoll_ctl");
		} else if (!serve_request(event.data.fd, &end)) {
			close(event.data.fd);
		}
	}
}

/* ---- clients ---- */

static int by_value(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

static void think(long us)
{
	int64_t end = link_now() + us * 1000;

	while (us > 0 && link_now() < end)
		;
}

static void tell_times(uint32_t *samples, size_t count, uint64_t sum, uint64_t trips, int64_t cpu)
{
	qsort(samples, count, sizeof(*samples), by_value);
	printf("\"p50_us\": %.3f, \"p99_us\": %.3f, \"mean_us\": %.3f, \"trips\": %lu, "
	       "\"per_second\": %.1f, \"client_cpu_us\": %.4f, ",
	       samples[count / 2] / 1e3, samples[count * 99 / 100] / 1e3,
	       (double)sum / 1e3 / (double)trips, trips, (double)trips * 1e9 / (double)sum,
	       (double)cpu / 1e3 / (double)trips);
}

static void call_pingpong(const struct job *job, const struct address *to)
{
	uint32_t *samples = calloc(MOST_SAMPLES, sizeof(*samples));
	int fd = link_dial(job, to);
	int64_t start = link_now(), end, cpu, before, after;
	uint64_t sum = 0, trips = 0;
	size_t count = 0;

	if (!samples)
		link_fail("calloc");
	while (job->count == 0 && link_now() < start + WARM_NS) {
		link_round_trip(fd, job->size);
		think(job->think_us);
	}
	cpu = cpu_ns();
	end = link_now() + (int64_t)(job->seconds * 1e9);
	do {
		before = link_now();
		link_round_trip(fd, job->size);
		after = link_now();
		sum += (uint64_t)(after - before);
		trips++;
		if (count < MOST_SAMPLES)
			samples[count++] = (uint32_t)(after - before);
		think(job->think_us);
	} while (job->count ? trips < (uint64_t)job->count : after < end);
	cpu = cpu_ns() - cpu;
	close(fd);
	tell_times(samples, count, sum, trips, cpu);
	free(samples);
}

static void call_stream(const struct job *job, const struct address *to)
{
	int fd = link_dial(job, to);
	int64_t start = link_now(), end = start + (int64_t)(job->seconds * 1e9), cpu = cpu_ns();
	uint64_t figures[2] = { 0, 0 }, messages = 0;

	do {
		/* The clock is not asked for every small message. */
		for (size_t sent = 0; sent < 65536; sent += job->size, messages++)
			link_send(fd, link_buffer, job->size);
	} while (link_now() < end);
	cpu = cpu_ns() - cpu;
	if (shutdown(fd, SHUT_WR) || !link_recv(fd, (uint8_t *)figures, sizeof(figures)))
		link_fail("the receiver's figures");
	close(fd);
	if (figures[0] != messages * job->size) {
		fprintf(stderr, "sockets_bench: %lu octets were sent, %lu received\n",
			messages * job->size, figures[0]);
		exit(1);
	}
	printf("\"mib_per_s\": %.2f, \"messages_per_second\": %.1f, \"client_cpu_us\": %.4f, ",
	       (double)figures[0] / (1 << 20) / ((double)figures[1] / 1e9),
	       (double)messages * 1e9 / (double)figures[1], (double)cpu / 1e3 / (double)messages);
}

static void end_server(const struct job *job, const struct address *to)
{
	int fd = link_dial(job, to);

	link_buffer[0] = END;
	link_round_trip(fd, REQUEST);
	close(fd);
}

static void call_churn(const struct job *job, const struct address *to)
{
	int64_t start = link_now(), took;

	for (long i = 0; i < job->count; i++) {
		int fd = link_dial(job, to);

		link_buffer[0] = ECHO;
		link_round_trip(fd, REQUEST);
		close(fd);
	}
	took = link_now() - start;
	end_server(job, to);
	printf("\"per_second\": %.1f, \"mean_us\": %.3f, ", (double)job->count * 1e9 / (double)took,
	       (double)took / 1e3 / (double)job->count);
}

/* What a process takes of the machine, shared pages divided among those that share them. */
static long pss_kib(pid_t pid)
{
	char path[64], line[256];
	FILE *file;
	long kib = -1;

	snprintf(path, sizeof(path), "/proc/%d/smaps_rollup", pid);
	file = fopen(path, "r");
	while (file && kib < 0 && fgets(line, sizeof(line), file))
		if (sscanf(line, "Pss: %ld kB", &kib) != 1)
			kib = -1;
	if (file)
		fclose(file);
	return kib;
}

static void call_hold(const struct job *job, const struct address *to, pid_t server)
{
	int *held = calloc((size_t)job->count, sizeof(*held));
	int first = link_dial(job, to);
	long before, idle, after, later;
	int64_t start = link_now();

	if (!held)
		link_fail("calloc");
	/* One more connection brings up what is there once per process, not per connection. */
	link_buffer[0] = ECHO;
	for (int turn = 0; turn < HOLD_ROUNDS; turn++)
		link_round_trip(first, REQUEST);
	before = pss_kib(getpid()) + pss_kib(server);
	for (long i = 0; i < job->count; i++) {
		held[i] = link_dial(job, to);
		for (int turn = 0; turn < HOLD_ROUNDS; turn++)
			link_round_trip(held[i], REQUEST);
	}
	idle = pss_kib(getpid()) + pss_kib(server);
	for (long i = 0; job->bulk && i < job->count; i++) {
		link_buffer[0] = MOVE_BULK;
		link_send(held[i], link_buffer, REQUEST);
		link_round_trip(held[i], BULK);
		if (!link_recv(held[i], link_buffer, REQUEST))
			link_fail("a held connection");
	}
	after = pss_kib(getpid()) + pss_kib(server);
	link_buffer[0] = ECHO;
	for (long i = 0; i < job->count; i++)
		link_round_trip(held[i], REQUEST);
	later = pss_kib(getpid()) + pss_kib(server);
	end_server(job, to);
	printf("\"held\": %ld, \"idle_kib\": %.2f, \"bulk_kib\": %.2f, \"later_kib\": %.2f, \"mean_us\": %.2f, ",
	       job->count, (double)(idle - before) / (double)job->count,
	       (double)(after - before) / (double)job->count,
	       (double)(later - before) / (double)job->count,
	       (double)(link_now() - start) / 1e3 / (double)job->count);
	free(held);
}

/* ---- the two ends ---- */

static void serve(const struct job *job, int listener)
{
	pin(job->cpus[1]);
	alarm(HANG);
	if (!strcmp(job->mode, "pingpong"))
		serve_pingpong(job, listener);
	else if (!strcmp(job->mode, "stream"))
		serve_stream(job, listener);
	else if (!strcmp(job->mode, "churn"))
		serve_churn(job, listener);
	else
		serve_hold(job, listener);
}

static void call(const struct job *job, const struct address *to, pid_t server)
{
	pin(job->cpus[0]);
	alarm(HANG);
	if (!strcmp(job->mode, "pingpong"))
		call_pingpong(job, to);
	else if (!strcmp(job->mode, "stream"))
		call_stream(job, to);
	else if (!strcmp(job->mode, "churn"))
		call_churn(job, to);
	else
		call_hold(job, to, server);
}

static pid_t fork_hog(int cpu)
{
	pid_t pid = fork();

	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		pin(cpu);
		alarm(HANG);
		for (;;)
			__asm__ volatile("");
	}
	return pid;
}

static void play(const struct job *job)
{
	struct address at;
	int listener = link_listen(job, &at), status = 1;
	pid_t hogs[2] = { -1, -1 }, server;
	struct rusage use;

	server = fork();
	if (server == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		serve(job, listener);
		exit(0);
	}
	close(listener);
	for (int i = 0; job->hogs && i < 2; i++)
		hogs[i] = fork_hog(job->cpus[i]);
	printf("{");
	call(job, &at, server);
	/* The server first: the hogs' processor time is nobody's business. */
	if (waitpid(server, &status, 0) != server || status != 0)
		link_fail("the server failed");
	getrusage(RUSAGE_CHILDREN, &use);
	for (int i = 0; i < 2; i++)
		if (hogs[i] > 0 && kill(hogs[i], SIGKILL) == 0)
			waitpid(hogs[i], NULL, 0);
	printf("\"server_cpu_s\": %.4f, \"client_cpu_s\": %.4f}\n",
	       (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
		       (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1e6,
	       (double)cpu_ns() / 1e9);
}

static void play_role(const struct job *job)
{
	struct address at = { .in = { .sin_family = AF_INET,
				      .sin_port = htons((uint16_t)job->port) },
			      .length = sizeof(at.in) };
	int listener;

	if (!strcmp(job->role, "server")) {
		listener = link_listen(job, &at);
		printf("%d\n", ntohs(at.in.sin_port));
		fflush(stdout);
		serve(job, listener);
		return;
	}
	at.in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	printf("{");
	call(job, &at, getpid());
	printf("\"client_cpu_s\": %.4f}\n", (double)cpu_ns() / 1e9);
}

static const struct option options[] = {
	{ "unix", no_argument, NULL, 'u' },
	{ "size", required_argument, NULL, 's' },
	{ "think", required_argument, NULL, 't' },
	{ "seconds", required_argument, NULL, 'd' },
	{ "count", required_argument, NULL, 'n' },
	{ "pin", required_argument, NULL, 'p' },
	{ "hogs", no_argument, NULL, 'h' },
	{ "bulk", no_argument, NULL, 'b' },
	{ "role", required_argument, NULL, 'r' },
	{ "port", required_argument, NULL, 'P' },
	{ NULL, 0, NULL, 0 },
};

static bool parse(struct job *job, int argc, char **argv)
{
	for (int letter; (letter = getopt_long(argc, argv, "", options, NULL)) != -1;) {
		switch (letter) {
		case 'u': job->local = true; break;
		case 's': job->size = strtoul(optarg, NULL, 10); break;
		case 't': job->think_us = strtol(optarg, NULL, 10); break;
		case 'd': job->seconds = strtod(optarg, NULL); break;
		case 'n': job->count = strtol(optarg, NULL, 10); break;
		case 'p':
			if (sscanf(optarg, "%d,%d", &job->cpus[0], &job->cpus[1]) != 2)
				return false;
			break;
		case 'h': job->hogs = true; break;
		case 'b': job->bulk = true; break;
		case 'r': job->role = optarg; break;
		case 'P': job->port = atoi(optarg); break;
		default: return false;
		}
	}
	job->mode = optind < argc ? argv[optind] : "";
	return job->size > 0 && (!strcmp(job->mode, "pingpong") || !strcmp(job->mode, "stream") ||
				 ((!strcmp(job->mode, "churn") || !strcmp(job->mode, "hold")) &&
				  (job->count > 0 || job->role)));
}

int main(int argc, char **argv)
{
	struct job job = { .size = REQUEST, .seconds = 0.5, .cpus = { -1, -1 } };
	struct rlimit files = { 32768, 32768 };

	if (!parse(&job, argc, argv)) {
		fprintf(stderr,
			"usage: sockets_bench pingpong|stream|churn|hold [--unix] [--size N] [--think US]\n"
			"  [--seconds S] [--count N] [--pin A,B] [--hogs] [--bulk] [--role server|client "
			"[--port N]]\n");
		return 2;
	}
	if (!strcmp(job.mode, "hold"))
		setrlimit(RLIMIT_NOFILE, &files); /* if it fails, a connection will say so */
	link_buffer = calloc(1, job.size > BULK ? job.size : BULK);
	if (!link_buffer)
		link_fail("calloc");
	/* Its pages must be there before memory is measured. */
	memset(link_buffer, 1, job.size > BULK ? job.size : BULK);
	if (job.role)
		play_role(&job);
	else
		play(&job);
	return 0;
}
