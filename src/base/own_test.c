/* SPDX-License-Identifier: MIT */
/* Descriptors of ours in a program that closes what it likes. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/own.h"
#include "base/own_test.h"
#include "base/self.h"

#define FIRST 960

/* Something with an inode of its own. */
static int make_file(void)
{
	int ends[2];

	if (pipe2(ends, O_CLOEXEC) != 0)
		return -1;
	close(ends[1]);
	return ends[0];
}

static bool limit(rlim_t value)
{
	struct rlimit l;

	if (getrlimit(RLIMIT_NOFILE, &l) != 0)
		return false;
	l.rlim_cur = value;
	return setrlimit(RLIMIT_NOFILE, &l) == 0;
}

/* In a process of its own, where limits and locks harm nobody. */
static void assert_child(int (*fn)(void))
{
	int status = -1;
	pid_t pid = fork();

	if (pid == 0) {
		self_forked();
		own_forked();
		_exit(fn());
	}
	assert_true(pid > 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

/* --- a watch, or none */

static int made, closed;

static void note_made(int fd)
{
	made = fd;
	errno = EPERM;
}

static void note_close(int fd)
{
	closed = fd;
	errno = EPERM;
	close(fd);
}

static void descriptor_is_nobodys_business_when_nobody_watches(void **st)
{
	int fd = make_file();

	errno = EDOM;
	assert_int_equal(own_new(fd), fd);
	assert_int_equal(own_new(-1), -1);
	own_close(fd);
	assert_false(is_open(fd));
	errno = EDOM;
	own_close(fd); /* the program was faster */
	assert_int_equal(errno, EDOM);
}

static void watch_is_told_of_what_is_made_and_closed(void **st)
{
	static const struct own_watch watch = { note_made, note_close };
	int fd = make_file(), copy;

	own_set_watch(&watch);
	made = closed = -1;
	errno = EDOM;
	assert_int_equal(own_new(-1), -1);
	assert_int_equal(made, -1);
	assert_int_equal(own_new(fd), fd);
	assert_int_equal(made, fd);
	copy = own_move(fd);
	assert_true(copy >= FIRST);
	assert_int_equal(closed, fd);
	assert_int_equal(errno, EDOM);
	own_close(copy);
	assert_int_equal(closed, copy);
	assert_int_equal(errno, EDOM);
	own_set_watch(NULL);
}

/* --- numbers */

static void copy_stands_high_and_is_not_inherited(void **st)
{
	int fd = make_file(), copy = own_copy(fd), other = own_copy(fd);

	assert_true(copy >= FIRST && other > copy);
	assert_true(fcntl(copy, F_GETFD) & FD_CLOEXEC);
	assert_true(is_open(fd));
	close(copy);
	close(other);
	close(fd);
	errno = 0;
	assert_int_equal(own_copy(fd), -1);
	assert_int_equal(errno, EBADF);
	assert_int_equal(own_move(-1), -1);
}

static int copy_below_low_limit(void)
{
	int fd = make_file(), copy;

	if (!limit(200))
		return 1;
	copy = own_copy(fd);
	if (copy != 199 || own_copy(fd) != 198)
		return 2;
	close(199);
	if (own_copy(fd) != 199)
		return 3;
	/* All are taken. */
	while (dup(fd) >= 0)
		;
	if (own_copy(fd) != -1 || errno != EMFILE)
		return 4;
	if (own_move(fd) != -1 || is_open(fd))
		return 5;
	return own_copy(fd) == -1 ? 0 : 6;
}

static void copy_is_as_high_as_can_be_when_the_limit_is_low(void **st)
{
	assert_child(copy_below_low_limit);
}

static struct own_fd kept;

static int keep_with_few(void)
{
	int fd = make_file();

	if (!limit(128) || own_keep(&kept, fd) != -1 || is_open(fd) || own_kept(&kept) != -1)
		return 1;
	fd = make_file();
	if (!limit(129) || own_keep(&kept, fd) != 128 || own_kept(&kept) != 128 || is_open(fd))
		return 2;
	own_drop(&kept);
	fd = make_file();
	while (dup(fd) >= 0)
		;
	return own_keep(&kept, fd) == -1 && !is_open(fd) && own_kept(&kept) == -1 ? 0 : 3;
}

static void program_with_few_descriptors_keeps_them(void **st)
{
	assert_child(keep_with_few);
}

/* --- those that stay */

static void kept_descriptor_is_there_until_it_is_dropped(void **st)
{
	int before = open_fds(), fd = make_file(), high;

	assert_int_equal(own_kept(&kept), -1);
	assert_int_equal(own_kept_lately(&kept), -1);
	high = own_keep(&kept, fd);
	assert_true(high >= FIRST);
	assert_false(is_open(fd));
	assert_int_equal(own_kept(&kept), high);
	assert_int_equal(own_kept_lately(&kept), high);
	assert_true(own_has(high));
	assert_false(own_has(fd));
	own_drop(&kept);
	assert_false(own_has(high));
	assert_int_equal(own_kept(&kept), -1);
	assert_int_equal(open_fds(), before);
	own_drop(&kept);
}

static void descriptor_is_gone_when_the_program_closed_it(void **st)
{
	int before = open_fds(), high = own_keep(&kept, make_file());

	close(high);
	assert_int_equal(own_kept(&kept), -1);
	assert_false(own_has(high));
	own_drop(&kept);
	assert_int_equal(open_fds(), before);
}

static void what_the_program_put_there_is_left_alone(void **st)
{
	int high = own_keep(&kept, make_file()), theirs = make_file();

	assert_int_equal(dup2(theirs, high), high);
	assert_false(own_has(high));
	assert_int_equal(own_kept(&kept), -1);
	own_drop(&kept);
	assert_true(is_open(high));
	close(high);
	/* Nor is it closed when nobody has looked since. */
	high = own_keep(&kept, make_file());
	assert_int_equal(dup2(theirs, high), high);
	own_drop(&kept);
	assert_true(is_open(high));
	close(high);
	close(theirs);
}

static void look_is_spared_for_a_moment_only(void **st)
{
	int high = own_keep(&kept, make_file());

	assert_int_equal(own_kept_lately(&kept), high);
	close(high);
	usleep(60000); /* the coarse clock may lag */
	assert_int_equal(own_kept_lately(&kept), -1);
	own_drop(&kept);
}

static void program_gets_the_number_that_it_wants(void **st)
{
	int before = open_fds(), high = own_keep(&kept, make_file()), other;

	own_make_way(high);
	other = own_kept(&kept);
	assert_true(other > high);
	assert_true(fcntl(other, F_GETFD) & FD_CLOEXEC);
	assert_false(own_has(high));
	assert_true(own_has(other));
	/* What we left there is the program's to replace. */
	close(high);
	own_make_way(high);
	assert_int_equal(own_kept(&kept), other);
	own_drop(&kept);
	assert_int_equal(open_fds(), before);
}

static int make_way_without_room(void)
{
	int high = own_keep(&kept, make_file()), fd = make_file();

	if (high < 0 || !limit((rlim_t)high + 1))
		return 1;
	own_make_way(high);
	close(fd);
	return own_kept(&kept) == -1 && !own_has(high) ? 0 : 2;
}

static void descriptor_is_given_up_when_there_is_nowhere_to_go(void **st)
{
	assert_child(make_way_without_room);
}

static void lowest_of_ours_is_found(void **st)
{
	static struct own_fd second;
	int a = own_keep(&kept, make_file()), b = own_keep(&second, make_file());

	assert_true(b > a);
	assert_int_equal(own_lowest_from(0), a);
	assert_int_equal(own_lowest_from(a), a);
	assert_int_equal(own_lowest_from(a + 1), b);
	assert_int_equal(own_lowest_from(b + 1), -1);
	close(a);
	assert_int_equal(own_lowest_from(0), b);
	own_drop(&kept);
	own_drop(&second);
	assert_int_equal(own_lowest_from(0), -1);
}

/* --- made when needed */

static _Atomic int makes;

static int make_counted(void)
{
	makes++;
	return make_file();
}

static int make_nothing(void)
{
	return -1;
}

static void *ask_for_it(void *arg)
{
	struct own_fd *o = arg;
	int fd = -1;

	for (int i = 0; i < 2000; i++) {
		fd = own_kept_or(o, make_counted);
		if (fd < 0)
			return (void *)"none";
	}
	return NULL;
}

static void one_is_made_when_many_threads_ask(void **st)
{
	int before = open_fds();
	pthread_t thread[6];
	void *said;

	makes = 0;
	assert_int_equal(own_kept_or(&kept, make_nothing), -1);
	for (int i = 0; i < 6; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, ask_for_it, &kept), 0);
	for (int i = 0; i < 6; i++) {
		assert_int_equal(pthread_join(thread[i], &said), 0);
		assert_null(said);
	}
	assert_int_equal(makes, 1);
	/* Another one when the program has closed it. */
	close(own_kept(&kept));
	assert_true(own_kept_or(&kept, make_counted) >= FIRST);
	assert_int_equal(makes, 2);
	own_drop(&kept);
	assert_int_equal(open_fds(), before);
}

static int inside;

static void ask_in_handler(int sig)
{
	(void)sig;
	inside = own_kept_or(&kept, make_counted);
}

static int make_interrupted(void)
{
	raise(SIGUSR1);
	return make_file();
}

static void handler_gets_none_when_its_thread_is_just_making_one(void **st)
{
	signal(SIGUSR1, ask_in_handler);
	makes = inside = 0;
	assert_true(own_kept_or(&kept, make_interrupted) >= FIRST);
	assert_int_equal(inside, -1);
	assert_int_equal(makes, 0);
	own_drop(&kept);
	signal(SIGUSR1, SIG_DFL);
}

/* --- forks */

static int make_in_child(void)
{
	/* It forks while its parent is just making one: the lock is not the child's. */
	int status = -1;
	pid_t pid = fork();

	if (pid == 0) {
		self_forked();
		own_forked();
		_exit(own_kept_or(&kept, make_counted) >= FIRST && makes == 1 ? 0 : 1);
	}
	if (waitpid(pid, &status, 0) != pid || status != 0)
		return -1;
	return make_file();
}

static void child_makes_its_own_when_the_parent_was_making_one(void **st)
{
	makes = 0;
	assert_true(own_kept_or(&kept, make_in_child) >= FIRST);
	own_drop(&kept);
}

static int use_in_child(void)
{
	int fd = own_kept(&kept);

	own_drop(&kept);
	return fd >= FIRST && !is_open(fd) ? 0 : 1;
}

static void parent_keeps_its_own_when_a_child_drops_it(void **st)
{
	int high = own_keep(&kept, make_file());

	assert_child(use_in_child);
	assert_int_equal(own_kept(&kept), high);
	own_drop(&kept);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(descriptor_is_nobodys_business_when_nobody_watches),
		cmocka_unit_test(watch_is_told_of_what_is_made_and_closed),
		cmocka_unit_test(copy_stands_high_and_is_not_inherited),
		cmocka_unit_test(copy_is_as_high_as_can_be_when_the_limit_is_low),
		cmocka_unit_test(program_with_few_descriptors_keeps_them),
		cmocka_unit_test(kept_descriptor_is_there_until_it_is_dropped),
		cmocka_unit_test(descriptor_is_gone_when_the_program_closed_it),
		cmocka_unit_test(what_the_program_put_there_is_left_alone),
		cmocka_unit_test(look_is_spared_for_a_moment_only),
		cmocka_unit_test(program_gets_the_number_that_it_wants),
		cmocka_unit_test(descriptor_is_given_up_when_there_is_nowhere_to_go),
		cmocka_unit_test(lowest_of_ours_is_found),
		cmocka_unit_test(one_is_made_when_many_threads_ask),
		cmocka_unit_test(handler_gets_none_when_its_thread_is_just_making_one),
		cmocka_unit_test(child_makes_its_own_when_the_parent_was_making_one),
		cmocka_unit_test(parent_keeps_its_own_when_a_child_drops_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
