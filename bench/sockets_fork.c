/* SPDX-License-Identifier: MIT */
/*
 * What calls cost that do not move octets, in a plain program with many TCP sockets; bench/sockets.py runs it with the
 * preload library and without it. Prints one line of JSON:
 *
 *   sockets_fork COUNT   fork_us: a call of fork(); life_us: until the child has ended, which does nothing;
 *                        set_us: an epoll set made and closed
 *
 * The lowest tenth of many is told: a child that has to wait for a processor is no matter of ours.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FORKS 100
#define SETS  2000
#define SPARE 2048 /* descriptors beside the sockets, and those of a library */
#define HANG  100

static double now_us(void)
{
	struct timespec at;

	clock_gettime(CLOCK_MONOTONIC, &at);
	return (double)at.tv_sec * 1e6 + (double)at.tv_nsec / 1e3;
}

static _Noreturn void fail(const char *what)
{
	perror(what);
	exit(1);
}

static int order(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double lowest_tenth(double *values, size_t n)
{
	qsort(values, n, sizeof(*values), order);
	return values[n / 10];
}

static void time_forks(void)
{
	static double called[FORKS], lived[FORKS];

	for (int i = 0; i < FORKS; i++) {
		double start = now_us();
		pid_t child = fork();

		if (child == 0)
			_exit(0);
		called[i] = now_us() - start;
		if (child < 0 || waitpid(child, NULL, 0) != child)
			fail("fork");
		lived[i] = now_us() - start;
	}
	printf("\"fork_us\": %.1f, \"life_us\": %.1f, ", lowest_tenth(called, FORKS),
	       lowest_tenth(lived, FORKS));
}

static void time_sets(void)
{
	static double made[SETS];

	for (int i = 0; i < SETS; i++) {
		double start = now_us();
		int set = epoll_create1(0);

		if (set < 0 || close(set) != 0)
			fail("epoll_create1");
		made[i] = now_us() - start;
	}
	printf("\"set_us\": %.3f", lowest_tenth(made, SETS));
}

int main(int argc, char **argv)
{
	rlim_t count = argc > 1 ? (rlim_t)strtoul(argv[1], NULL, 10) : 0;
	struct rlimit files = { count + SPARE, count + SPARE };

	if (count == 0) {
		fprintf(stderr, "usage: sockets_fork COUNT\n");
		return 2;
	}
	if (setrlimit(RLIMIT_NOFILE, &files) != 0)
		fail("setrlimit");
	alarm(HANG);
	for (rlim_t i = 0; i < count; i++)
		if (socket(AF_INET, SOCK_STREAM, 0) < 0)
			fail("socket");
	printf("{");
	time_forks();
	time_sets();
	printf("}\n");
	return 0;
}
