/* SPDX-License-Identifier: MIT */
/* Robust locks: threads, signal handlers, and relatives that are killed. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/robust.h"
#include "base/self.h"
#include "base/tsan.h"

/* What relatives share. */
static struct shared {
	struct robust_lock lock;
	_Atomic uint32_t stage;
	uint64_t count;
} * shared;

static int set_up(void **st)
{
	shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	return shared == MAP_FAILED ? -1 : 0;
}

static int tear_down(void **st)
{
	return munmap(shared, 4096);
}

static void wait_for(uint32_t stage)
{
	while (atomic_load(&shared->stage) < stage)
		usleep(200);
}

static int status_of(pid_t pid)
{
	int status = -1;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	return status;
}

/* A relative that runs `fn`. */
static pid_t relative(void (*fn)(void))
{
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0) {
		self_forked();
		robust_forked();
		fn();
		_exit(0);
	}
	return pid;
}

static void lock_is_taken_and_given(void **st)
{
	struct robust_lock l = { 0 };

	assert_false(robust_is_taken(&l));
	assert_true(robust_take(&l));
	assert_true(robust_is_taken(&l));
	assert_false(robust_is_wanted(&l));
	assert_int_equal(l.word, gettid());
	assert_false(robust_try(&l));
	robust_give(&l);
	assert_true(robust_try(&l));
	robust_pass(&l);
	assert_false(robust_is_taken(&l));
}

/* --- signal handlers */

static struct robust_lock handled;
static volatile sig_atomic_t handler_took, handler_tried;

static void handler(int sig)
{
	(void)sig;
	handler_took = robust_take(&handled);
	if (handler_took)
		robust_give(&handled);
	handler_tried = robust_try(&handled);
	if (handler_tried)
		robust_give(&handled);
}

static void handler_finds_the_lock_of_its_own_thread(void **st)
{
	signal(SIGUSR1, handler);
	assert_true(robust_take(&handled));
	raise(SIGUSR1);
	assert_false(handler_took);
	assert_false(handler_tried);
	/* It is still ours, also when somebody has begun to wait for it. */
	atomic_fetch_or(&handled.word, 0x80000000u);
	raise(SIGUSR1);
	assert_false(handler_took);
	robust_give(&handled);
	raise(SIGUSR1);
	assert_true(handler_took);
	assert_true(handler_tried);
	signal(SIGUSR1, SIG_DFL);
}

/* --- threads */

static struct robust_lock counting;
static uint64_t count;

static void *add(void *arg)
{
	for (int i = 0; i < 20000; i++) {
		errno = EDOM;
		if (!robust_take(&counting))
			return (void *)"take";
		count++;
		if (i % 16 == 0)
			robust_pass(&counting);
		else
			robust_give(&counting);
		if (errno != EDOM)
			return (void *)"errno";
		if (i % 8 == 0 && robust_try(&counting)) {
			count++;
			robust_give(&counting);
			__atomic_fetch_add((uint64_t *)arg, 1, __ATOMIC_RELAXED);
		}
	}
	return NULL;
}

static void one_thread_at_a_time_has_it(void **st)
{
	enum { THREADS = 6 };
	pthread_t thread[THREADS];
	uint64_t tried = 0;
	void *said;

	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, add, &tried), 0);
	for (int i = 0; i < THREADS; i++) {
		assert_int_equal(pthread_join(thread[i], &said), 0);
		assert_null(said);
	}
	assert_int_equal(count, THREADS * 20000 + tried);
	assert_int_equal(counting.word, 0);
}

static void *take_once(void *arg)
{
	struct robust_lock *l = arg;

	if (!robust_take(l))
		return (void *)"take";
	atomic_store(&shared->stage, 2);
	robust_give(l);
	return NULL;
}

static void waiter_is_seen_and_gets_it(void **st)
{
	pthread_t thread;
	void *said;

	atomic_store(&shared->stage, 0);
	assert_true(robust_take(&shared->lock));
	assert_int_equal(pthread_create(&thread, NULL, take_once, &shared->lock), 0);
	while (!robust_is_wanted(&shared->lock))
		usleep(200);
	usleep(120000); /* two time-outs of the waiter, who must not take it from us */
	assert_int_equal(shared->stage, 0);
	robust_pass(&shared->lock);
	wait_for(2);
	assert_int_equal(pthread_join(thread, &said), 0);
	assert_null(said);
	assert_false(robust_is_taken(&shared->lock));
}

/* Kept by somebody who is no process: only the number of a thread. */
static void *hold_a_while(void *arg)
{
	(void)arg;
	robust_take(&shared->lock);
	atomic_store(&shared->stage, 1);
	usleep(300000);
	shared->count = 1;
	robust_give(&shared->lock);
	return NULL;
}

static void thread_that_lives_keeps_it(void **st)
{
	pthread_t thread;

	atomic_store(&shared->stage, 0);
	shared->count = 0;
	assert_int_equal(pthread_create(&thread, NULL, hold_a_while, NULL), 0);
	wait_for(1);
	assert_true(robust_take(&shared->lock));
	assert_int_equal(shared->count, 1);
	robust_give(&shared->lock);
	pthread_join(thread, NULL);
}

static void *take_and_end(void *arg)
{
	robust_take(arg);
	return NULL;
}

static void lock_of_a_thread_that_ended_is_taken_over(void **st)
{
	struct robust_lock l = { 0 };
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, take_and_end, &l), 0);
	pthread_join(thread, NULL);
	assert_true(robust_is_taken(&l));
	assert_true(robust_take(&l));
	robust_give(&l);
}

/* --- relatives */

static void take_and_wait(void)
{
	robust_take(&shared->lock);
	atomic_store(&shared->stage, 1);
	for (;;)
		pause();
}

static void kill_owner(bool reap)
{
	pid_t pid;

	atomic_store(&shared->stage, 0);
	pid = relative(take_and_wait);
	wait_for(1);
	assert_int_equal(kill(pid, SIGKILL), 0);
	if (reap)
		status_of(pid);
	errno = EDOM;
	assert_true(robust_take(&shared->lock));
	assert_int_equal(errno, EDOM);
	robust_give(&shared->lock);
	assert_false(robust_is_taken(&shared->lock));
	if (!reap)
		status_of(pid);
}

static void lock_of_a_killed_relative_is_taken_over(void **st)
{
	kill_owner(true);
}

/* Its parent, who may be the one that waits, has not asked for its status yet. */
static void lock_of_a_zombie_is_taken_over(void **st)
{
	kill_owner(false);
}

static void hold_and_give(void)
{
	robust_take(&shared->lock);
	atomic_store(&shared->stage, 1);
	usleep(300000);
	shared->count = 1;
	robust_give(&shared->lock);
}

static void relative_that_lives_keeps_it(void **st)
{
	pid_t pid;

	atomic_store(&shared->stage, 0);
	shared->count = 0;
	pid = relative(hold_and_give);
	wait_for(1);
	assert_true(robust_take(&shared->lock));
	assert_int_equal(shared->count, 1);
	robust_give(&shared->lock);
	assert_int_equal(status_of(pid), 0);
}

/* Takes it, counts, gives it back, until it is killed. */
static void count_for_ever(void)
{
	for (;;) {
		robust_take(&shared->lock);
		shared->count++;
		robust_give(&shared->lock);
	}
}

static void relatives_go_on_when_some_are_killed(void **st)
{
	enum { RELATIVES = 4, KILLS = 12 };
	pid_t pid[RELATIVES];
	uint64_t seen;

	shared->count = 0;
	for (int i = 0; i < RELATIVES; i++)
		pid[i] = relative(count_for_ever);
	for (int i = 0; i < KILLS; i++) {
		usleep(3000);
		assert_int_equal(kill(pid[i % RELATIVES], SIGKILL), 0);
		status_of(pid[i % RELATIVES]);
		pid[i % RELATIVES] = relative(count_for_ever);
		assert_true(robust_take(&shared->lock));
		seen = shared->count;
		robust_give(&shared->lock);
		while (__atomic_load_n(&shared->count, __ATOMIC_RELAXED) == seen)
			usleep(200);
	}
	for (int i = 0; i < RELATIVES; i++) {
		kill(pid[i], SIGKILL);
		status_of(pid[i]);
	}
	assert_true(robust_take(&shared->lock));
	robust_give(&shared->lock);
}

/* --- debug builds */

#ifdef FLUE_LOCK_CHECK
static void sleep_with_lock(void)
{
	const struct rlimit none = { 0, 0 };
	struct robust_lock l = { 0 };

	setrlimit(RLIMIT_CORE, &none);
	fclose(stderr);
	ROBUST_NONE();
	robust_take(&l);
	robust_give(&l);
	ROBUST_NONE();
	robust_take(&l);
	ROBUST_NONE();
}

static void fork_with_lock(void)
{
	ROBUST_NONE(); /* robust_forked() has been called */
}

static void sleeping_with_a_lock_ends_the_program(void **st)
{
	struct robust_lock l = { 0 };
	int status = status_of(relative(sleep_with_lock));

	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
	robust_take(&l);
	assert_int_equal(status_of(relative(fork_with_lock)), 0);
	robust_give(&l);
}
#else
static void sleeping_with_a_lock_ends_the_program(void **st)
{
	skip();
}
#endif

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lock_is_taken_and_given),
		cmocka_unit_test(handler_finds_the_lock_of_its_own_thread),
		cmocka_unit_test(one_thread_at_a_time_has_it),
		cmocka_unit_test(waiter_is_seen_and_gets_it),
		cmocka_unit_test(thread_that_lives_keeps_it),
		cmocka_unit_test(lock_of_a_thread_that_ended_is_taken_over),
		cmocka_unit_test(lock_of_a_killed_relative_is_taken_over),
		cmocka_unit_test(lock_of_a_zombie_is_taken_over),
		cmocka_unit_test(relative_that_lives_keeps_it),
		cmocka_unit_test(relatives_go_on_when_some_are_killed),
		cmocka_unit_test(sleeping_with_a_lock_ends_the_program),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
