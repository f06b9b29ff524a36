/* SPDX-License-Identifier: MIT */
/* Bells: ours is made once, and what others send is kept only if it is one. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/own.h"
#include "base/own_test.h"
#include "channel/bell.h"

#define HIGH 900

/* What rings it; *look is where it is heard. */
static int make_bell(int *look)
{
	int ends[2];

	assert_int_equal(pipe2(ends, O_NONBLOCK | O_CLOEXEC), 0);
	*look = ends[0];
	return ends[1];
}

/* How often it was rung since the last look. */
static ssize_t count(int fd)
{
	char octets[64];
	ssize_t n = read(fd, octets, sizeof(octets));

	return n > 0 ? n : 0;
}

static void own_bell_is_made_once_and_stands_high(void **st)
{
	int before = open_fds();
	int fd = bell_own();

	assert_true(fd >= HIGH);
	assert_int_equal(bell_own(), fd);
	assert_int_equal(open_fds(), before + 2);
	assert_true(own_has(fd) && own_has(bell_rope()));
	assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	assert_true(fcntl(fd, F_GETFL) & O_NONBLOCK);
	/* A program that closes it gets another. */
	close(fd);
	assert_false(own_has(fd));
	assert_true(bell_own() >= HIGH);
	assert_true(bell_ring_own());
	assert_int_equal(count(bell_own()), 1);
	assert_int_equal(open_fds(), before + 2);
	bell_drop();
	assert_int_equal(open_fds(), before);
}

static void own_bell_is_one_that_peers_accept(void **st)
{
	int ours = bell_own();
	int bell = bell_take(1, 1, own_new(dup(bell_rope())));

	assert_true(bell >= 0);
	bell_ring(bell);
	assert_int_equal(count(ours), 1);
	bell_give(bell);
	bell_drop();
}

static void bell_is_kept_until_it_is_given_back(void **st)
{
	int before = open_fds();
	int look, fd = make_bell(&look);
	int bell = bell_take(11, 1, own_new(fd));

	assert_true(bell >= 0 && bell < BELL_PEERS);
	assert_false(is_open(fd)); /* moved away */
	assert_true(bell_of(bell) >= HIGH);
	assert_int_equal(open_fds(), before + 2);
	errno = EDOM;
	bell_ring(bell);
	bell_ring(bell);
	assert_int_equal(count(look), 2);
	bell_give(bell);
	assert_int_equal(bell_of(bell), -1);
	assert_int_equal(open_fds(), before + 1);
	assert_int_equal(errno, EDOM);
	bell_give(-1);
	close(look);
}

/* A peer can do to what it shares with us whatever it likes; what we ring with is our own. */
static void ringing_never_waits_when_the_peer_is_hostile(void **st)
{
	static char much[4096];
	int look, fd = make_bell(&look), theirs = dup(fd);
	int bell = bell_take(12, 1, own_new(fd));

	while (write(theirs, much, sizeof(much)) > 0)
		;
	assert_int_equal(fcntl(theirs, F_SETFL, 0), 0); /* would block */
	errno = EDOM;
	assert_false(bell_ring(bell));
	assert_int_equal(errno, EDOM);
	close(look); /* nobody hears it: no signal either */
	assert_false(bell_ring(bell));
	bell_give(bell);
	close(theirs);
}

static void ringing_the_dead_ends_nobody(void **st)
{
	int look, bell = bell_take(13, 1, own_new(make_bell(&look)));

	assert_true(bell_ring(bell));
	close(look); /* as when it was killed in its sleep */
	errno = EDOM;
	bell_ring(bell);
	assert_int_equal(errno, EDOM);
	bell_give(bell);
}

static void own_bell_rings_when_a_peer_has_filled_it(void **st)
{
	static char much[4096];

	while (write(bell_rope(), much, sizeof(much)) > 0)
		;
	assert_true(bell_ring_own());
	assert_int_equal(count(bell_own()), 1);
	bell_drop();
}

static void every_set_hears_it_when_another_has_heard_it_before(void **st)
{
	struct epoll_event ev = { .events = EPOLLIN | EPOLLET };
	int set[2];

	for (int i = 0; i < 2; i++) {
		set[i] = epoll_create1(EPOLL_CLOEXEC);
		assert_int_equal(epoll_ctl(set[i], EPOLL_CTL_ADD, bell_own(), &ev), 0);
	}
	for (int i = 0; i < 5000; i++) {
		assert_true(bell_ring_own());
		for (int k = 0; k < 2; k++) {
			assert_int_equal(epoll_wait(set[(i + k) % 2], &ev, 1, 0), 1);
			bell_heard();
		}
	}
	close(set[0]);
	close(set[1]);
	bell_drop();
}

static void other_things_are_refused_and_closed(void **st)
{
	int ends[2], fds[8], n = 0;
	int before = open_fds();
	const uint64_t zero = 0;

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends),
			 0);
	fds[n++] = ends[0];
	fds[n++] = ends[1];
	fds[n++] = eventfd(0, EFD_CLOEXEC); /* would block us */
	fds[n++] = open("/dev/null", O_RDWR | O_NONBLOCK | O_CLOEXEC);
	fds[n++] = memfd_create("pipe:[1]", MFD_CLOEXEC);
	fds[n++] = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
	fds[n++] = open("/proc/self/fd", O_PATH | O_NONBLOCK | O_CLOEXEC);
	fds[n++] = open("/dev/shm", O_TMPFILE | O_RDWR | O_NONBLOCK | O_CLOEXEC, 0600);
	assert_int_equal(fcntl(fds[4], F_SETFL, O_NONBLOCK), 0);
	assert_int_equal(write(fds[4], &zero, sizeof(zero)), sizeof(zero));
	for (int i = 0; i < n; i++) {
		assert_true(fds[i] >= 0);
		assert_int_equal(bell_take(20 + (uint64_t)i, 1, own_new(fds[i])), -1);
		assert_false(is_open(fds[i]));
	}
	assert_int_equal(bell_take(20, 1, own_new(-1)), -1);
	assert_int_equal(bell_take(20, 1, own_new(12345)), -1);
	assert_int_equal(open_fds(), before);
}

static void bell_is_shared_when_the_mailbox_is_the_same(void **st)
{
	int before = open_fds();
	int look[3];
	int fd[3] = { make_bell(&look[0]), make_bell(&look[1]), make_bell(&look[2]) };
	int more = dup(fd[1]);
	int bell = bell_take(31, 1, own_new(fd[0]));
	int other = bell_take(32, 1, own_new(fd[2])), third;

	assert_true(bell >= 0 && other >= 0 && bell != other);
	assert_int_equal(bell_take(31, 1, own_new(fd[1])), bell);
	assert_int_equal(open_fds(), before + 4 + 2);
	bell_ring(bell);
	assert_int_equal(count(look[0]), 1);
	assert_int_equal(count(look[1]), 0);
	bell_ring(other);
	assert_int_equal(count(look[2]), 1);
	/* Mailboxes have the same key by chance, or one process was followed by another. */
	third = bell_take(31, 2, own_new(dup(look[0])));
	assert_true(third >= 0 && third != bell);
	bell_give(third);
	/* Two users: it stays for the second. */
	bell_give(bell);
	bell_ring(bell);
	assert_int_equal(count(look[0]), 1);
	bell_give(bell);
	bell_give(other);
	assert_int_equal(open_fds(), before + 4);
	/* Nothing of it is known any more. */
	bell = bell_take(31, 1, own_new(more));
	bell_ring(bell);
	assert_int_equal(count(look[0]), 0);
	assert_int_equal(count(look[1]), 1);
	bell_give(bell);
	for (int i = 0; i < 3; i++)
		close(look[i]);
	assert_int_equal(open_fds(), before);
}

static void bells_are_refused_when_there_are_too_many(void **st)
{
	int look, rope = make_bell(&look);
	int before = open_fds();
	int bell[BELL_PEERS];
	bool seen[BELL_PEERS] = { false };

	for (int i = 0; i < BELL_PEERS; i++) {
		bell[i] = bell_take(100 + (uint64_t)i, 1, own_new(dup(rope)));
		assert_true(bell[i] >= 0 && bell[i] < BELL_PEERS && !seen[bell[i]]);
		seen[bell[i]] = true;
	}
	assert_int_equal(open_fds(), before + BELL_PEERS);
	assert_int_equal(bell_take(99, 1, own_new(dup(rope))), -1);
	assert_int_equal(open_fds(), before + BELL_PEERS);
	/* Those that are there can be shared, and one that goes makes room. */
	assert_int_equal(bell_take(100, 1, own_new(dup(rope))), bell[0]);
	bell_give(bell[0]);
	bell_give(bell[7]);
	assert_int_equal(bell_take(99, 1, own_new(dup(rope))), bell[7]);
	for (int i = 0; i < BELL_PEERS; i++)
		bell_give(bell[i]);
	assert_int_equal(open_fds(), before);
	close(look);
	close(rope);
}

/* 0 when all is as it should be; in a process whose descriptors from `HIGH` on are taken. */
static int take_without_room(void)
{
	const struct rlimit limit = { 1024, 1024 };
	int look, fd = make_bell(&look), again = dup(fd), last = -1, bell;

	if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
		return 77;
	while ((bell = fcntl(fd, F_DUPFD_CLOEXEC, HIGH)) >= 0)
		last = bell;
	if (last != 1023)
		return 1;
	if (bell_own() != -1 || bell_take(40, 1, own_new(fd)) != -1 || is_open(fd))
		return 2;
	for (int i = HIGH; i < 1024; i++)
		close(i);
	bell = bell_take(40, 1, own_new(again));
	return bell >= 0 && bell_of(bell) >= HIGH && bell_own() >= HIGH ? 0 : 3;
}

static void bell_is_refused_when_no_descriptor_is_free(void **st)
{
	int status = -1;
	pid_t pid = fork();

	if (pid == 0)
		_exit(take_without_room());
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
		skip();
	assert_int_equal(status, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(own_bell_is_made_once_and_stands_high),
		cmocka_unit_test(own_bell_is_one_that_peers_accept),
		cmocka_unit_test(bell_is_kept_until_it_is_given_back),
		cmocka_unit_test(ringing_never_waits_when_the_peer_is_hostile),
		cmocka_unit_test(ringing_the_dead_ends_nobody),
		cmocka_unit_test(own_bell_rings_when_a_peer_has_filled_it),
		cmocka_unit_test(every_set_hears_it_when_another_has_heard_it_before),
		cmocka_unit_test(other_things_are_refused_and_closed),
		cmocka_unit_test(bell_is_shared_when_the_mailbox_is_the_same),
		cmocka_unit_test(bells_are_refused_when_there_are_too_many),
		cmocka_unit_test(bell_is_refused_when_no_descriptor_is_free),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
