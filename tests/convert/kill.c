/* SPDX-License-Identifier: MIT */
/*
 * The peer is killed at a random moment of conversion or closing (CH-14, CH-25, CH-26). What is left
 * is told exactly one end (a failed conversion, DISCONNECTED or ENDED), and gives everything back:
 * descriptors, threads and memory are counted before and after.
 *
 *	convert_kill [kills [seed]]
 *
 * A process without threads forks the victims, because no sanitizer allows threads in a child of a
 * process that has some.
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <malloc.h>
#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "conf/pair.h"
#include "killed.h"
#include "plan.h"
#include "sanitized.h"

#define WARM_UP 40
#define SLACK   32768 /* octets that caches of the allocator may take over the whole run */

static uint32_t kills = 500;
static uint64_t seed;
static int listener, orders[2];
static struct sockaddr_in here;

static void draw(struct kill_plan *p, uint32_t index)
{
	uint64_t r = seed + index * 7919ull;

	plan_random(&r);
	*p = (struct kill_plan) { .index = index };
	p->raw = plan_below(&r, 3) == 0;
	p->initiator = (int)plan_below(&r, 2);
	for (int i = 0; i < 2; i++) {
		p->socket[i] = plan_below(&r, 2);
		p->closes[i] = plan_below(&r, 2);
	}
	p->callback = plan_below(&r, 2);
	/* Most conversions are over after a fraction of a millisecond. */
	p->delay_us = plan_below(&r, plan_below(&r, 3) ? 400 : 5000);
}

/* ---- the process that forks victims ---- */

static int be_victim(const struct kill_plan *p, int tell)
{
	struct killed k = { .plan = p, .which = 1 };
	int fd;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (!killed_open(&k))
		return 1;
	fd = socket(AF_INET, SOCK_STREAM, 0);
	if (fd < 0 || connect(fd, (struct sockaddr *)&here, sizeof(here)) ||
	    write(tell, "", 1) != 1)
		return 2;
	killed_run(&k, fd);
	pause();
	return 3;
}

static bool kill_one(uint32_t index)
{
	struct kill_plan p;
	int ready[2], status = 0;
	char byte;
	pid_t pid;

	draw(&p, index);
	if (pipe(ready))
		return false;
	pid = fork();
	if (pid == 0)
		_exit(be_victim(&p, ready[1]));
	close(ready[1]);
	if (read(ready[0], &byte, 1) != 1)
		return false;
	close(ready[0]);
	usleep(p.delay_us);
	kill(pid, SIGKILL);
	return waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) &&
	       WTERMSIG(status) == SIGKILL;
}

static int fork_victims(void)
{
	uint32_t index;
	char good;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	close(orders[0]);
	while (read(orders[1], &index, sizeof(index)) == sizeof(index)) {
		good = kill_one(index);
		if (write(orders[1], &good, 1) != 1)
			return 1;
	}
	return 0;
}

/* ---- the survivor ---- */

struct count {
	int descriptors, threads;
	size_t memory;
};

static int entries(const char *folder)
{
	DIR *d = opendir(folder);
	int n = 0;

	while (d && readdir(d))
		n++;
	if (d)
		closedir(d);
	return n;
}

static struct count count(void)
{
	struct count c = { .descriptors = entries("/proc/self/fd"),
			   .threads = entries("/proc/self/task") };

	if (!SANITIZED)
		c.memory = mallinfo2().uordblks;
	return c;
}

static void survive(struct killed *k, uint32_t index)
{
	struct kill_plan p;
	char good = 0;
	int fd;

	draw(&p, index);
	k->plan = &p;
	assert_int_equal(write(orders[0], &index, sizeof(index)), sizeof(index));
	fd = accept(listener, NULL, NULL);
	assert_true(fd >= 0);
	alarm(60);
	killed_run(k, fd);
	if (k->wrong)
		print_message("# kill %u (%s, survivor is %s %s, victim %s, after %u us): %s\n",
			      index, p.raw ? "raw" : "request/reply",
			      p.socket[0] ? "socket" : "convert",
			      p.initiator == 0 ? "initiator" : "responder",
			      p.socket[1] ? "socket" : "convert", p.delay_us, k->wrong);
	assert_null(k->wrong);
	assert_int_equal(read(orders[0], &good, 1), 1);
	assert_true(good);
}

static void say_phases(const struct killed *k)
{
	static const char *const names[KILLED_NPHASES] = {
		"in streaming mode",
		"during the conversion",
		"in RDMA mode",
		"while closing or later",
	};

	for (int i = 0; i < KILLED_NPHASES; i++)
		print_message("# %u were killed %s\n", k->phases[i], names[i]);
}

static void *nothing(void *arg)
{
	return arg;
}

/* ThreadSanitizer has a thread of its own, from the first one on. */
static void have_had_a_thread(void)
{
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, nothing, NULL), 0);
	pthread_join(thread, NULL);
}

static void survivor_of_a_kill_is_told_once_and_keeps_nothing(void **state)
{
	struct killed k = { .which = 0 };
	struct count before, warm = { 0 }, after;

	have_had_a_thread();
	before = count();
	assert_true(killed_open(&k));
	for (uint32_t i = 0; i < kills; i++) {
		survive(&k, i);
		if (i == WARM_UP)
			warm = count();
	}
	after = count();
	say_phases(&k);
	print_message("# descriptors %d -> %d, threads %d -> %d, memory %zu -> %zu\n",
		      warm.descriptors, after.descriptors, warm.threads, after.threads, warm.memory,
		      after.memory);
	assert_int_equal(after.descriptors, warm.descriptors);
	assert_int_equal(after.threads, warm.threads);
	assert_true(after.memory <= warm.memory + SLACK);
	assert_true(killed_close(&k));
	after = count();
	assert_int_equal(after.descriptors, before.descriptors);
	assert_int_equal(after.threads, before.threads);
}

static void start(pid_t *pid)
{
	socklen_t len = sizeof(here);

	here = (struct sockaddr_in) { .sin_family = AF_INET };
	here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (bind(listener, (struct sockaddr *)&here, len) || listen(listener, 8) ||
	    getsockname(listener, (struct sockaddr *)&here, &len) ||
	    socketpair(AF_UNIX, SOCK_STREAM, 0, orders))
		abort();
	*pid = fork();
	if (*pid == 0)
		_exit(fork_victims());
	close(orders[1]);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(survivor_of_a_kill_is_told_once_and_keeps_nothing),
	};
	pid_t pid;
	int rc;

	kills = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 0) : 500;
	if (SANITIZED)
		kills = kills / 5 + WARM_UP;
	seed = argc > 2 ? strtoull(argv[2], NULL, 0)
			: (uint64_t)time(NULL) * 1000 + (uint64_t)getpid();
	print_message("# %u kills, seed %llu\n", kills, (unsigned long long)seed);
	start(&pid);
	rc = cmocka_run_group_tests(tests, NULL, NULL);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	return rc;
}
