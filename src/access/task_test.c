/* SPDX-License-Identifier: MIT */
/* Background tasks: each asking is one run, and after stop() there is none (CH-25). */
#include "access/task.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/util.h"

struct job {
	struct acc_task task;
	atomic_uint runs, running;
	atomic_bool hold, stop_self;
	atomic_ullong at;
};

static struct acc_tasks ts;
static struct job job;

static void run(struct acc_task *t)
{
	struct job *j = container_of(t, struct job, task);

	/* One at a time. */
	if (atomic_fetch_add(&j->running, 1))
		atomic_fetch_add(&j->runs, 1000);
	atomic_store(&j->at, clock_now());
	while (atomic_load(&j->hold))
		usleep(500);
	if (atomic_load(&j->stop_self))
		acc_task_stop(t, false);
	atomic_fetch_sub(&j->running, 1);
	atomic_fetch_add(&j->runs, 1);
}

static void reset(struct job *j)
{
	atomic_store(&j->runs, 0);
	atomic_store(&j->running, 0);
	atomic_store(&j->hold, false);
	atomic_store(&j->stop_self, false);
}

static int begin(void **state)
{
	acc_tasks_init(&ts);
	reset(&job);
	return acc_task_start(&job.task, &ts, run);
}

static int end(void **state)
{
	acc_task_stop(&job.task, false);
	acc_tasks_fini(&ts, false);
	return 0;
}

static void await_runs(struct job *j, unsigned n)
{
	for (unsigned i = 0; i < 10000 && atomic_load(&j->runs) < n; i++)
		usleep(500);
	assert_int_equal(atomic_load(&j->runs), n);
}

/* Long enough for a run that should not be. */
static void expect_no_more(struct job *j, unsigned n)
{
	usleep(30000);
	assert_int_equal(atomic_load(&j->runs), n);
}

static void soon_is_one_run(void **state)
{
	expect_no_more(&job, 0);
	acc_task_soon(&job.task);
	await_runs(&job, 1);
	expect_no_more(&job, 1);
	acc_task_soon(&job.task);
	await_runs(&job, 2);
}

static void asking_during_a_run_is_another_run(void **state)
{
	atomic_store(&job.hold, true);
	acc_task_soon(&job.task);
	while (!atomic_load(&job.running))
		usleep(500);
	acc_task_soon(&job.task);
	acc_task_soon(&job.task);
	atomic_store(&job.hold, false);
	await_runs(&job, 2);
	expect_no_more(&job, 2);
}

static void timer_runs_once_and_not_early(void **state)
{
	uint64_t due = clock_now() + 40 * NSEC_PER_MSEC;

	acc_task_at(&job.task, due);
	await_runs(&job, 1);
	assert_true(atomic_load(&job.at) >= due);
	expect_no_more(&job, 1);
}

static void timer_is_replaced_and_taken_back(void **state)
{
	uint64_t now = clock_now();

	acc_task_at(&job.task, now + 3600 * NSEC_PER_SEC);
	acc_task_at(&job.task, now + 10 * NSEC_PER_MSEC); /* sooner: the thread must wake */
	await_runs(&job, 1);
	assert_true(atomic_load(&job.at) - now < 5 * NSEC_PER_SEC);
	acc_task_at(&job.task, clock_now() + 20 * NSEC_PER_MSEC);
	acc_task_at(&job.task, 0);
	expect_no_more(&job, 1);
	acc_task_at(&job.task, 1); /* long past */
	await_runs(&job, 2);
}

/*
 * The thread looks around every POLLSET_LOOK_MS anyway, which must not be what finds the timer. The best of a few
 * tries, because the machine may have something else to do.
 */
static void earlier_timer_wakes_the_thread(void **state)
{
	uint64_t best = UINT64_MAX;

	for (unsigned i = 1; i <= 3 && best >= POLLSET_LOOK_MS * NSEC_PER_MSEC / 2; i++) {
		uint64_t now;

		acc_task_at(&job.task, clock_now() + 3600 * NSEC_PER_SEC);
		usleep(20000); /* it sleeps */
		now = clock_now();
		acc_task_at(&job.task, now + NSEC_PER_MSEC);
		await_runs(&job, i);
		best = min_u64(best, atomic_load(&job.at) - now);
	}
	assert_true(best < POLLSET_LOOK_MS * NSEC_PER_MSEC / 2);
}

static void soon_does_not_use_up_the_timer(void **state)
{
	uint64_t due = clock_now() + 60 * NSEC_PER_MSEC;

	acc_task_at(&job.task, due);
	acc_task_soon(&job.task);
	await_runs(&job, 1);
	await_runs(&job, 2);
	assert_true(atomic_load(&job.at) >= due);
}

static void watch_is_for_one_run_until_it_is_asked_for_again(void **state)
{
	int fd[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
	assert_int_equal(acc_task_watch(&job.task, fd[0], EPOLLIN), 0);
	expect_no_more(&job, 0);
	assert_int_equal(write(fd[1], "x", 1), 1);
	await_runs(&job, 1);
	/* It is readable still, and more comes. */
	assert_int_equal(write(fd[1], "x", 1), 1);
	expect_no_more(&job, 1);
	assert_int_equal(acc_task_watch(&job.task, fd[0], EPOLLIN), 0);
	await_runs(&job, 2);
	assert_int_equal(acc_task_watch(&job.task, fd[0], EPOLLOUT), 0);
	await_runs(&job, 3);
	/* Given away: somebody else may watch it in the same set. */
	acc_task_unwatch(&job.task);
	assert_int_equal(job.task.fd, -1);
	assert_int_equal(acc_task_watch(&job.task, fd[0], EPOLLIN), 0);
	await_runs(&job, 4);
	acc_task_unwatch(&job.task);
	acc_task_unwatch(&job.task);
	close(fd[0]);
	close(fd[1]);
}

static void watch_says_what_epoll_says(void **state)
{
	assert_int_equal(acc_task_watch(&job.task, -1, EPOLLIN), -EBADF);
	assert_int_equal(job.task.fd, -1);
}

static void *release(void *arg)
{
	usleep(30000);
	atomic_store(&job.hold, false);
	return NULL;
}

static void stop_waits_for_a_run_under_way(void **state)
{
	pthread_t thread;

	atomic_store(&job.hold, true);
	acc_task_soon(&job.task);
	while (!atomic_load(&job.running))
		usleep(500);
	assert_int_equal(pthread_create(&thread, NULL, release, NULL), 0);
	acc_task_stop(&job.task, false);
	assert_int_equal(atomic_load(&job.running), 0);
	assert_int_equal(atomic_load(&job.runs), 1);
	pthread_join(thread, NULL);
	acc_task_stop(&job.task, false); /* no harm */
}

static void stop_forgets_what_was_asked_for(void **state)
{
	int fd[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
	assert_int_equal(acc_task_watch(&job.task, fd[0], EPOLLIN), 0);
	acc_task_at(&job.task, clock_now() + 5 * NSEC_PER_MSEC);
	acc_task_stop(&job.task, false);
	assert_int_equal(write(fd[1], "x", 1), 1);
	expect_no_more(&job, 0);
	close(fd[0]);
	close(fd[1]);
}

static void task_may_stop_itself(void **state)
{
	atomic_store(&job.stop_self, true);
	acc_task_soon(&job.task);
	await_runs(&job, 1);
	expect_no_more(&job, 1);
}

static void tasks_take_turns(void **state)
{
	struct job others[8];

	for (unsigned i = 0; i < 8; i++) {
		reset(&others[i]);
		assert_int_equal(acc_task_start(&others[i].task, &ts, run), 0);
		assert_int_not_equal(others[i].task.name, job.task.name);
	}
	for (unsigned n = 1; n <= 20; n++) {
		for (unsigned i = 0; i < 8; i++)
			acc_task_soon(&others[i].task);
		for (unsigned i = 0; i < 8; i++)
			await_runs(&others[i], n);
	}
	/* One that never rests does not starve the others. */
	atomic_store(&job.hold, false);
	for (unsigned i = 0; i < 8; i++)
		acc_task_stop(&others[i].task, false);
	assert_int_equal(atomic_load(&job.runs), 0);
}

/* Names come round; 0 means "not started" and is left out. */
static void names_skip_zero_when_they_come_round(void **state)
{
	struct job other;

	reset(&other);
	pthread_mutex_lock(&ts.lock);
	ts.next_name = UINT32_MAX;
	pthread_mutex_unlock(&ts.lock);
	assert_int_equal(acc_task_start(&other.task, &ts, run), 0);
	assert_int_equal(other.task.name, 1);
	acc_task_stop(&other.task, false);
}

/* No descriptor is left for the thread: told, nothing kept, and it works when there is again. */
static void start_fails_without_descriptors_and_can_be_tried_again(void **state)
{
	struct rlimit old, none;
	struct acc_tasks own;
	struct job mine;

	reset(&mine);
	acc_tasks_init(&own);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
	for (unsigned spare = 0; spare < 2; spare++) {
		int lowest = dup(0);

		close(lowest);
		none = old;
		none.rlim_cur = (rlim_t)lowest + spare;
		assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
		assert_int_equal(acc_task_start(&mine.task, &own, run), -EMFILE);
		assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
		assert_false(own.started);
		assert_false(pollset_is_open(&own.set));
	}
	assert_int_equal(acc_task_start(&mine.task, &own, run), 0);
	acc_task_soon(&mine.task);
	await_runs(&mine, 1);
	acc_task_stop(&mine.task, false);
	acc_tasks_fini(&own, false);
}

static void tasks_that_never_started_can_end(void **state)
{
	struct acc_task never = { 0 };
	struct acc_tasks own;

	acc_tasks_init(&own);
	acc_task_stop(&never, false);
	acc_tasks_fini(&own, false);
}

/* In a child there is no thread, and the lock may be anybody's. */
static void child_of_fork_ends_its_copy_without_a_lock(void **state)
{
	int status = -1;
	pid_t pid;

	pthread_mutex_lock(&ts.lock);
	pid = fork();
	if (pid == 0) {
		alarm(10);
		acc_task_stop(&job.task, true);
		acc_tasks_fini(&ts, true);
		_exit(0);
	}
	pthread_mutex_unlock(&ts.lock);
	assert_true(pid > 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	/* The parent's goes on. */
	acc_task_soon(&job.task);
	await_runs(&job, 1);
}

#define WITH_TASK(test) cmocka_unit_test_setup_teardown(test, begin, end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH_TASK(soon_is_one_run),
		WITH_TASK(asking_during_a_run_is_another_run),
		WITH_TASK(timer_runs_once_and_not_early), /* CH-25 */
		WITH_TASK(timer_is_replaced_and_taken_back),
		WITH_TASK(earlier_timer_wakes_the_thread),
		WITH_TASK(soon_does_not_use_up_the_timer),
		WITH_TASK(watch_is_for_one_run_until_it_is_asked_for_again),
		WITH_TASK(watch_says_what_epoll_says),
		WITH_TASK(stop_waits_for_a_run_under_way),
		WITH_TASK(stop_forgets_what_was_asked_for),
		WITH_TASK(task_may_stop_itself),
		WITH_TASK(tasks_take_turns),
		WITH_TASK(names_skip_zero_when_they_come_round),
		cmocka_unit_test(start_fails_without_descriptors_and_can_be_tried_again),
		cmocka_unit_test(tasks_that_never_started_can_end),
		WITH_TASK(child_of_fork_ends_its_copy_without_a_lock),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
