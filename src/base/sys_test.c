/* SPDX-License-Identifier: MIT */
/* System calls past whatever stands in front of the C library. Here that is this program itself, as with hooks. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/un.h>
#include <cmocka.h>

#include "base/sys.h"

/* --- what a program, or another preloaded library, puts before the C library's */

static int hooked;

long syscall(long number, ...)
{
	(void)number;
	hooked++;
	errno = ENOTSUP;
	return -1;
}

static sys_function *first;

static void first_call_finds_the_function_behind_us(void **st)
{
	first = sys_found;
	assert_int_equal(sys_call(SYS_getpid), getpid());
	assert_ptr_not_equal(sys_found, first);
	assert_ptr_not_equal(sys_found, syscall);
	assert_int_equal(sys_call(SYS_getpid), getpid());
	assert_int_equal(hooked, 0);
}

static void result_is_as_the_c_library_has_it(void **st)
{
	errno = 0;
	assert_int_equal(sys_close(-1), -1);
	assert_int_equal(errno, EBADF);
	assert_int_equal(sys_read(-1, NULL, 0), -1);
	assert_int_equal(errno, EBADF);
	assert_int_equal(sys_open("/nowhere/at/all", O_RDONLY, 0), -1);
	assert_int_equal(errno, ENOENT);
	assert_int_equal(sys_fcntl(0, 12345, 0), -1);
	assert_int_equal(errno, EINVAL);
}

static void file_is_opened_written_and_read(void **st)
{
	char octets[8] = { 0 };
	int fd = sys_open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(sys_write(fd, "flue", 4), 4);
	assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
	assert_int_equal(sys_read(fd, octets, sizeof(octets)), 4);
	assert_string_equal(octets, "flue");
	assert_true(sys_fcntl(fd, F_GETFD, 0) & FD_CLOEXEC);
	assert_int_equal(sys_fcntl(fd, F_SETFD, 0), 0);
	assert_int_equal(sys_fcntl(fd, F_GETFD, 0), 0);
	assert_int_equal(sys_close(fd), 0);
	assert_int_equal(sys_close(fd), -1);
}

/* A connected pair of unix sockets, by all the calls there are. */
static void connect_pair(int pair[2])
{
	struct sockaddr_un name = { .sun_family = AF_UNIX };
	socklen_t size = sizeof(name), n = sizeof(struct ucred);
	int box = sys_socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	struct ucred cred;

	assert_true(box >= 0);
	assert_int_equal(sys_bind(box, (struct sockaddr *)&name, sizeof(sa_family_t)), 0);
	assert_int_equal(sys_listen(box, 4), 0);
	assert_int_equal(sys_getsockname(box, (struct sockaddr *)&name, &size), 0);
	errno = 0;
	assert_int_equal(sys_accept(box, SOCK_CLOEXEC), -1);
	assert_int_equal(errno, EAGAIN);
	pair[0] = sys_socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	assert_int_equal(sys_connect(pair[0], (struct sockaddr *)&name, size), 0);
	pair[1] = sys_accept(box, SOCK_CLOEXEC);
	assert_true(pair[1] >= 0);
	assert_true(sys_fcntl(pair[1], F_GETFD, 0) & FD_CLOEXEC);
	assert_int_equal(sys_getsockopt(pair[1], SOL_SOCKET, SO_PEERCRED, &cred, &n), 0);
	assert_int_equal(cred.pid, getpid());
	sys_close(box);
}

/* The sockets would block; these calls do not. */
static void moving_octets_never_waits(void **st)
{
	static char much[1000];
	char octets[8] = { 0 };
	struct iovec iov = { octets, sizeof(octets) };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
	int pair[2];

	connect_pair(pair);
	assert_int_equal(sys_recv(pair[1], octets, sizeof(octets), 0), -1);
	assert_int_equal(errno, EAGAIN);
	assert_int_equal(sys_recvmsg(pair[1], &msg, 0), -1);
	assert_int_equal(errno, EAGAIN);
	assert_int_equal(sys_send(pair[0], "one", 4, 0), 4);
	assert_int_equal(sys_recv(pair[1], octets, sizeof(octets), MSG_PEEK), 4);
	assert_int_equal(sys_recvmsg(pair[1], &msg, 0), 4);
	assert_string_equal(octets, "one");
	assert_int_equal(sys_sendmsg(pair[0], &msg, 0), sizeof(octets));
	while (sys_send(pair[0], much, sizeof(much), MSG_NOSIGNAL) > 0)
		;
	assert_int_equal(errno, EAGAIN);
	iov = (struct iovec) { much, sizeof(much) };
	assert_int_equal(sys_sendmsg(pair[0], &msg, MSG_NOSIGNAL), -1);
	assert_int_equal(errno, EAGAIN);
	sys_close(pair[0]);
	sys_close(pair[1]);
}

static void asking_for_readiness_never_waits(void **st)
{
	struct epoll_event ev = { .events = EPOLLIN };
	int set = epoll_create1(EPOLL_CLOEXEC);
	int pair[2];
	struct pollfd p;

	connect_pair(pair);
	p = (struct pollfd) { .fd = pair[1], .events = POLLIN };
	assert_int_equal(epoll_ctl(set, EPOLL_CTL_ADD, pair[1], &ev), 0);
	assert_int_equal(sys_poll(&p, 1), 0);
	assert_int_equal(sys_epoll(set, &ev, 1, NULL), 0);
	assert_int_equal(sys_send(pair[0], "x", 1, 0), 1);
	assert_int_equal(sys_poll(&p, 1), 1);
	assert_int_equal(p.revents, POLLIN);
	assert_int_equal(sys_epoll(set, &ev, 1, NULL), 1);
	sys_close(set);
	sys_close(pair[0]);
	sys_close(pair[1]);
}

static void no_call_went_through_the_hook(void **st)
{
	assert_int_equal(hooked, 0);
	assert_int_equal(syscall(SYS_getpid), -1);
	assert_int_equal(hooked, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(first_call_finds_the_function_behind_us),
		cmocka_unit_test(result_is_as_the_c_library_has_it),
		cmocka_unit_test(file_is_opened_written_and_read),
		cmocka_unit_test(moving_octets_never_waits),
		cmocka_unit_test(asking_for_readiness_never_waits),
		cmocka_unit_test(no_call_went_through_the_hook),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
