/* SPDX-License-Identifier: MIT */
/* Who we are: threads, forks of every kind. */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/self.h"
#include "base/tsan.h"

static int status_of(pid_t pid)
{
	int status = -1;

	assert_true(pid > 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return status;
}

static void process_is_nobody_before_it_begins(void **st)
{
	assert_false(self_has_begun());
	assert_int_equal(self_pid(), 0);
	assert_true(self_begin());
	assert_true(self_has_begun());
	assert_int_equal(self_pid(), getpid());
}

static void *tid_of_thread(void *arg)
{
	uint32_t *tid = arg;

	tid[0] = self_tid();
	tid[1] = (uint32_t)gettid();
	tid[2] = self_tid();
	return NULL;
}

static void every_thread_has_its_own_number(void **st)
{
	enum { THREADS = 8 };
	uint32_t tid[THREADS][3];
	pthread_t thread[THREADS];

	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, tid_of_thread, tid[i]), 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	assert_int_equal(self_tid(), gettid());
	for (int i = 0; i < THREADS; i++) {
		assert_int_equal(tid[i][0], tid[i][1]);
		assert_int_equal(tid[i][2], tid[i][1]);
		assert_int_not_equal(tid[i][0], self_tid());
	}
}

/* 0 when all is as it should be. */
static int be_child(int32_t parent)
{
	if (self_pid() != 0 || !self_has_begun())
		return 1;
	self_forked();
	if (self_tid() != (uint32_t)gettid() || self_pid() != 0)
		return 2;
	self_begins_anew();
	return self_pid() == getpid() && self_pid() != parent ? 0 : 3;
}

static void child_is_nobody_until_it_says_so(void **st)
{
	int32_t parent = self_pid();
	pid_t pid = fork();

	if (pid == 0)
		_exit(be_child(parent));
	assert_int_equal(status_of(pid), 0);
	assert_int_equal(self_pid(), getpid());
	assert_int_equal(self_tid(), gettid());
}

/* Past the C library, which would run handlers. */
static void child_is_nobody_when_nobody_saw_the_fork(void **st)
{
	int32_t parent = self_pid();
	pid_t pid = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);

	if (pid == 0)
		_exit(be_child(parent));
	assert_int_equal(status_of(pid), 0);
	assert_int_equal(self_pid(), getpid());
}

static void grandchild_is_nobody_either(void **st)
{
	pid_t pid = fork(), again;
	int status = -1;

	if (pid == 0) {
		if (be_child(0) != 0)
			_exit(10);
		again = fork();
		if (again == 0)
			_exit(be_child(0));
		if (waitpid(again, &status, 0) != again || status != 0)
			_exit(11);
		_exit(self_pid() == getpid() ? 0 : 12);
	}
	assert_int_equal(status_of(pid), 0);
}

/* It has the parent's memory, and must not be taken for anybody else: it must touch nothing of ours. */
static void child_of_vfork_is_taken_for_its_parent(void **st)
{
	volatile int32_t parent = self_pid();
	pid_t pid;

#ifdef TSAN
	skip(); /* there it is fork() */
#endif
	pid = vfork();
	if (pid == 0)
		_exit(self_pid() == parent && self_pid() != getpid() ? 0 : 1);
	assert_int_equal(status_of(pid), 0);
	assert_int_equal(self_pid(), getpid());
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(process_is_nobody_before_it_begins),
		cmocka_unit_test(every_thread_has_its_own_number),
		cmocka_unit_test(child_is_nobody_until_it_says_so),
		cmocka_unit_test(child_is_nobody_when_nobody_saw_the_fork),
		cmocka_unit_test(grandchild_is_nobody_either),
		cmocka_unit_test(child_of_vfork_is_taken_for_its_parent),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
