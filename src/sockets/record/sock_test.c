/* SPDX-License-Identifier: MIT */
/* Descriptors of ours among the program's numbers: its calls do not meet them, and ours not its own. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/own.h"
#include "sockets/record/process.h"
#include "sockets/record/sock.h"
#include "sockets/record/sock_priv.h"

static int make(void)
{
	int fd = open("/dev/null", O_RDWR | O_CLOEXEC);

	assert_true(fd >= 0);
	return fd;
}

static bool is_open(int fd)
{
	return fcntl(fd, F_GETFD) >= 0;
}

static void number_is_ours_until_it_is_closed(void **state)
{
	int fd = own_new(make());

	(void)state;
	assert_ptr_equal(sock_at(fd), SOCK_OURS);
	assert_false(sock_is_rec(sock_at(fd)));
	errno = EDOM;
	own_close(fd);
	assert_int_equal(errno, EDOM);
	assert_false(is_open(fd));
	assert_ptr_equal(sock_at(fd), SOCK_OTHER);
}

static void failure_stays_one(void **state)
{
	(void)state;
	assert_int_equal(own_new(-1), -1);
	assert_int_equal(own_move(-1), -1);
}

static void what_the_program_put_there_stays_open(void **state)
{
	int fd = own_new(make());

	(void)state;
	sock_forget(fd); /* as dup2() onto it does, in the moment before it was known to be ours */
	own_close(fd);
	assert_true(is_open(fd));
	close(fd);
}

static void end_of_an_old_close_leaves_it_ours(void **state)
{
	int fd = own_new(make());

	(void)state;
	sock_closed(fd); /* of another thread, which had closed the number before we got it */
	assert_ptr_equal(sock_at(fd), SOCK_OURS);
	own_close(fd);
}

static void *close_it_later(void *fd)
{
	static const struct timespec moment = { .tv_nsec = 2000000 };

	nanosleep(&moment, NULL);
	own_close((int)(intptr_t)fd);
	return NULL;
}

static void use_of_the_number_waits(void **state)
{
	int fd = own_new(make());
	pthread_t owner;
	uint64_t before;

	(void)state;
	assert_int_equal(pthread_create(&owner, NULL, close_it_later, (void *)(intptr_t)fd), 0);
	before = clock_now();
	assert_null(sock_of(fd));
	/* Not for ever: on a busy machine the other thread may take longer. */
	assert_true(!is_open(fd) || clock_now() - before > GATE_NS);
	pthread_join(owner, NULL);
}

static void moved_one_is_out_of_the_way(void **state)
{
	int fd = make(), copy = own_move(own_new(fd));

	(void)state;
	assert_true(copy > fd);
	assert_false(is_open(fd));
	assert_true(is_open(copy));
	assert_ptr_not_equal(sock_at(copy), SOCK_OURS);
	close(copy);
}

static void child_does_not_inherit_it(void **state)
{
	int fd = own_new(make()), status = -1;
	pid_t pid = fork();

	(void)state;
	if (pid == 0) {
		sock_forked(false);
		_exit(is_open(fd) || sock_at(fd) != SOCK_OTHER);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_true(is_open(fd));
	own_close(fd);
	assert_false(is_open(fd));
}

/* What it sends comes back to itself: a lane would have both ends in one record. */
static void socket_that_is_its_own_peer_stays_plain(void **state)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	socklen_t size = sizeof(a);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct rec *r;

	(void)state;
	assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &size), 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof(a)), 0);
	r = sock_add(fd, MEET_ACTIVE, REC_ASKED);
	assert_non_null(r);
	sock_connected(r);
	assert_int_equal(atomic_load(&r->state), REC_YOUNG);
	assert_false(sock_identify(r, fd));
	assert_int_equal(atomic_load(&r->state), REC_PLAIN);
	sock_closing(fd);
	close(fd);
	sock_closed(fd);
}

/* Programs that are started with it as their input may use it past the library. */
static void standard_input_stays_plain(void **state)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct rec *low = sock_add(STDIN_FILENO, MEET_ACTIVE, REC_ASKED);
	struct rec *high = sock_add(fd, MEET_ACTIVE, REC_ASKED);

	(void)state;
	assert_true(low && high);
	assert_int_equal(atomic_load(&low->state), REC_PLAIN);
	assert_int_equal(atomic_load(&high->state), REC_OPEN);
	sock_closing(STDIN_FILENO);
	sock_closed(STDIN_FILENO);
	sock_closing(fd);
	close(fd);
	sock_closed(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(number_is_ours_until_it_is_closed),
		cmocka_unit_test(failure_stays_one),
		cmocka_unit_test(what_the_program_put_there_stays_open),
		cmocka_unit_test(end_of_an_old_close_leaves_it_ours),
		cmocka_unit_test(use_of_the_number_waits),
		cmocka_unit_test(moved_one_is_out_of_the_way),
		cmocka_unit_test(child_does_not_inherit_it),
		cmocka_unit_test(socket_that_is_its_own_peer_stays_plain),
		cmocka_unit_test(standard_input_stays_plain),
	};

	process_init();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
