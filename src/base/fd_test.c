/* SPDX-License-Identifier: MIT */
/* Descriptors stand out of the way, and what is not ours any more is not closed. */
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

static bool is_open(int fd)
{
	return fcntl(fd, F_GETFD) >= 0;
}

static int new_socket(void)
{
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);

	assert_true(fd >= 0);
	return fd;
}

static void kept_descriptor_is_far_from_those_of_the_program(void **state)
{
	int low = new_socket(), kept;
	uint64_t which = fd_socket(low);

	kept = fd_keep(low);
	assert_true(kept >= 256);
	assert_false(is_open(low));
	assert_int_equal(fd_socket(kept), which);
	assert_true(fcntl(kept, F_GETFD) & FD_CLOEXEC);
	close(kept);
}

static void descriptor_stays_where_it_is_when_there_is_no_room(void **state)
{
	struct rlimit old, tight;
	int low = new_socket();

	assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
	tight = old;
	tight.rlim_cur = (rlim_t)low + 1;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &tight), 0);
	assert_int_equal(fd_keep(low), low);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
	close(low);
}

static void failure_stays_a_failure(void **state)
{
	errno = ENFILE;
	assert_int_equal(fd_keep(-1), -1);
	assert_int_equal(errno, ENFILE);
}

static void only_the_very_socket_is_closed(void **state)
{
	int first = new_socket(), second;
	uint64_t which = fd_socket(first);

	close(first);
	second = new_socket();
	assert_int_equal(second, first); /* the lowest number again */
	assert_int_not_equal(fd_socket(second), which);
	fd_close_socket(second, which);
	assert_true(is_open(second));
	fd_close_socket(second, fd_socket(second));
	assert_false(is_open(second));
	fd_close_socket(-1, 0);
}

/* As after closefrom(3) when somebody does not know of it. */
static void number_that_is_held_is_given_to_nobody(void **state)
{
	int lost = fd_keep(new_socket()), next, again;

	fd_hold(lost);
	close(lost);
	next = fd_keep(new_socket());
	assert_true(next > lost);
	fd_release(lost);
	again = fd_keep(new_socket());
	assert_int_equal(again, lost);
	close(next);
	close(again);
	fd_hold(-1);
	fd_release(-1);
	fd_hold(1 << 30);
	fd_release(1 << 30);
}

static void files_are_not_taken_for_epoll_sets(void **state)
{
	int set = epoll_create1(0), file = open("/dev/null", O_RDONLY);

	fd_close_anonymous(file);
	assert_true(is_open(file));
	fd_close_anonymous(set);
	assert_false(is_open(set));
	assert_int_equal(fd_socket(file), 0);
	fd_close_anonymous(-1);
	close(file);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(kept_descriptor_is_far_from_those_of_the_program),
		cmocka_unit_test(descriptor_stays_where_it_is_when_there_is_no_room),
		cmocka_unit_test(failure_stays_a_failure),
		cmocka_unit_test(only_the_very_socket_is_closed),
		cmocka_unit_test(number_that_is_held_is_given_to_nobody),
		cmocka_unit_test(files_are_not_taken_for_epoll_sets),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
