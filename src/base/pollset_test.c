/* SPDX-License-Identifier: MIT */
/* Sets are rung and flags shown without a word to files of the program, whatever took their numbers. */
#include "base/pollset.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/clock.h"

#define BELL 77

static struct pollset set;

static int open_set(void **state)
{
	pollset_init(&set, BELL);
	return pollset_open(&set);
}

static int close_set(void **state)
{
	pollset_close(&set);
	return 0;
}

/* Events that wait in the set, taken: how many, and whether the bell was among them. */
static int taken(bool *bell)
{
	struct epoll_event evs[4];
	int n = pollset_wait(&set, evs, 4, 0);

	*bell = false;
	for (int i = 0; i < n; i++)
		*bell |= evs[i].data.u64 == BELL;
	return n;
}

static void ring_is_heard_once_however_often_it_rang(void **state)
{
	bool bell;

	assert_int_equal(taken(&bell), 0);
	assert_int_equal(pollset_ring(&set), 0);
	assert_int_equal(pollset_ring(&set), 0);
	assert_int_equal(taken(&bell), 1);
	assert_true(bell);
	assert_int_equal(taken(&bell), 0);
	assert_int_equal(pollset_ring(&set), 0);
	assert_int_equal(taken(&bell), 1);
}

static void *ring_later(void *arg)
{
	usleep(50000);
	return pollset_ring(&set) ? arg : NULL;
}

static void ring_wakes_a_sleeper(void **state)
{
	struct epoll_event ev;
	void *failed = NULL;
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, ring_later, &ev), 0);
	assert_int_equal(pollset_wait(&set, &ev, 1, -1), 1);
	assert_int_equal(ev.data.u64, BELL);
	pthread_join(thread, &failed);
	assert_null(failed);
}

/* A number of ours now stands for this. */
static void take_number(int number, int file)
{
	assert_true(file >= 0);
	assert_int_equal(dup2(file, number), number);
	close(file);
}

static void lost_set_says_so_and_hurts_nobody(void **state)
{
	int fd = set.fd, lamp = set.lamp, file = memfd_create("file", 0);
	uint64_t count;
	struct stat st;

	/* A file instead of the set. */
	take_number(fd, file);
	assert_int_equal(pollset_ring(&set), -EINVAL);
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(st.st_size, 0);
	/* A set of the program's. */
	take_number(fd, epoll_create1(0));
	assert_int_equal(pollset_ring(&set), -ENOENT);
	/* A counter of the program's instead of the lamp. */
	take_number(lamp, eventfd(0, EFD_NONBLOCK));
	assert_int_equal(pollset_ring(&set), -ENOENT);
	assert_int_equal(read(lamp, &count, sizeof(count)), -1);
	/* Nobody there. */
	close(fd);
	assert_int_equal(pollset_ring(&set), -EBADF);
	pollset_close(&set);
	assert_true(fcntl(lamp, F_GETFD) >= 0);
	close(lamp);
}

static void lost_set_is_replaced(void **state)
{
	struct epoll_event ev;
	struct pollset fresh;

	close(set.fd);
	assert_true(pollset_failed(pollset_wait(&set, &ev, 1, 0)));
	close(set.lamp);
	pollset_init(&fresh, BELL);
	assert_int_equal(pollset_open(&fresh), 0);
	pollset_replace(&set, &fresh);
	assert_int_equal(pollset_ring(&set), 0);
	assert_int_equal(pollset_wait(&set, &ev, 1, 0), 1);
}

/* The set may be the program's by now, and nobody would ever ring it again. */
static void sleep_without_a_limit_ends(void **state)
{
	struct epoll_event ev;

	assert_int_equal(pollset_wait(&set, &ev, 1, -1), 0);
}

/* ---- short sleeps ---- */

int __real_epoll_pwait2(int set, struct epoll_event *evs, int n, const struct timespec *timeout,
			const sigset_t *mask);
int __wrap_epoll_pwait2(int set, struct epoll_event *evs, int n, const struct timespec *timeout,
			const sigset_t *mask);
static unsigned exact; /* calls of it */
static int refuse;     /* what it says then */

int __wrap_epoll_pwait2(int fd, struct epoll_event *evs, int n, const struct timespec *timeout,
			const sigset_t *mask)
{
	exact++;
	errno = refuse;
	return refuse ? -1 : __real_epoll_pwait2(fd, evs, n, timeout, mask);
}

/* How long it slept, in the best of some tries. */
static uint64_t sleep_for(int64_t ns)
{
	uint64_t best = UINT64_MAX;
	struct epoll_event ev;

	for (int i = 0; i < 20; i++) {
		uint64_t since = clock_now(), took;

		assert_int_equal(pollset_wait_ns(&set, &ev, 1, ns), 0);
		took = clock_now() - since;
		assert_true(took >= (uint64_t)ns);
		best = took < best ? took : best;
	}
	return best;
}

static void short_sleep_is_not_rounded_to_milliseconds(void **state)
{
	struct epoll_event ev;

	exact = 0;
	assert_true(sleep_for(20000) < NSEC_PER_MSEC);
	assert_int_equal(exact, 20);
	sleep_for(1500000);
	/* What is there is there, and long times and none need no such call. */
	assert_int_equal(pollset_ring(&set), 0);
	assert_int_equal(pollset_wait_ns(&set, &ev, 1, 1000000), 1);
	assert_int_equal(pollset_ring(&set), 0);
	exact = 0;
	assert_int_equal(pollset_wait_ns(&set, &ev, 1, -1), 1);
	assert_int_equal(pollset_wait_ns(&set, &ev, 1, 0), 0);
	assert_int_equal(pollset_wait_ns(&set, &ev, 1, 10 * (int64_t)NSEC_PER_MSEC), 0);
	assert_int_equal(exact, 0);
}

/* In a child, because it is remembered. */
static void child_without_exact_sleep(int error)
{
	struct epoll_event ev;

	exact = 0;
	refuse = error;
	sleep_for(20000);
	if (exact != 1)
		_exit(2); /* once refused is for ever refused */
	if (pollset_ring(&set) || pollset_wait_ns(&set, &ev, 1, 100) != 1)
		_exit(3);
	_exit(0);
}

static void short_sleep_is_rounded_up_where_the_kernel_refuses(void **state)
{
	static const int errors[] = { ENOSYS, EPERM };
	int status;

	for (int i = 0; i < 2; i++) {
		pid_t pid = fork();

		if (pid == 0)
			child_without_exact_sleep(errors[i]);
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_true(WIFEXITED(status));
		assert_int_equal(WEXITSTATUS(status), 0);
	}
}

static void members_are_told_by_name(void **state)
{
	struct epoll_event ev;
	int fd = eventfd(1, 0);

	assert_int_equal(pollset_ctl(&set, EPOLL_CTL_ADD, fd, EPOLLIN, 5), 0);
	assert_int_equal(pollset_wait(&set, &ev, 1, -1), 1);
	assert_int_equal(ev.data.u64, 5);
	assert_int_equal(pollset_ctl(&set, EPOLL_CTL_DEL, fd, 0, 0), 0);
	assert_int_equal(pollset_wait(&set, &ev, 1, 0), 0);
	close(fd);
}

static bool readable(int fd)
{
	struct pollfd q = { .fd = fd, .events = POLLIN };

	return poll(&q, 1, 0) == 1;
}

static void flag_is_readable_while_it_is_up(void **state)
{
	struct epoll_event ev = { .events = EPOLLIN | EPOLLET };
	struct flag f = FLAG_NONE;
	int edges = epoll_create1(0);

	assert_int_equal(flag_open(&f, set.lamp, true), 0);
	assert_true(readable(f.fd));
	flag_show(&f, false);
	assert_false(readable(f.fd));
	/* Programs may wait for edges, too. */
	assert_int_equal(epoll_ctl(edges, EPOLL_CTL_ADD, f.fd, &ev), 0);
	for (int i = 0; i < 3; i++) {
		flag_show(&f, true);
		assert_true(readable(f.fd));
		assert_int_equal(epoll_wait(edges, &ev, 1, 0), 1);
		assert_int_equal(epoll_wait(edges, &ev, 1, 0), 0);
		flag_show(&f, false);
		assert_false(readable(f.fd));
	}
	flag_close(&f, false);
	assert_int_equal(f.fd, -1);
	flag_show(&f, true);
	close(edges);
}

static void flag_that_was_closed_is_left_alone(void **state)
{
	struct flag f = FLAG_NONE;
	struct stat st;
	int fd;

	assert_int_equal(flag_open(&f, set.lamp, false), 0);
	fd = f.fd;
	take_number(fd, memfd_create("file", 0));
	flag_show(&f, true);
	flag_show(&f, false);
	flag_close(&f, false);
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(st.st_size, 0);
	close(fd);
}

/* What the child closes is its own copy; the flag stays up, the set is not rung. */
static void child_changes_nothing_for_its_parent(void **state)
{
	struct flag f = FLAG_NONE;
	int status = 0, fd;
	bool bell;
	pid_t pid;

	assert_int_equal(flag_open(&f, set.lamp, true), 0);
	fd = f.fd;
	pid = fork();
	if (pid == 0) {
		flag_close(&f, true);
		pollset_abandon(&set);
		_exit(fcntl(fd, F_GETFD) >= 0 || pollset_is_open(&set));
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_true(readable(f.fd));
	assert_int_equal(taken(&bell), 0);
	flag_close(&f, false);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_set, close_set)
	const struct CMUnitTest tests[] = {
		TEST(ring_is_heard_once_however_often_it_rang),
		TEST(ring_wakes_a_sleeper),
		TEST(lost_set_says_so_and_hurts_nobody),
		TEST(lost_set_is_replaced),
		TEST(sleep_without_a_limit_ends),
		TEST(short_sleep_is_not_rounded_to_milliseconds),
		TEST(short_sleep_is_rounded_up_where_the_kernel_refuses),
		TEST(members_are_told_by_name),
		TEST(flag_is_readable_while_it_is_up),
		TEST(flag_that_was_closed_is_left_alone),
		TEST(child_changes_nothing_for_its_parent),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
