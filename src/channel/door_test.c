/* SPDX-License-Identifier: MIT */
#include "channel/door.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "channel/duct.h"

static uint16_t number;
static int door = -1;

/* One that no other test of this host has. */
static int open_door(void **state)
{
	number = (uint16_t)getpid();
	do {
		door = door_open(++number);
	} while (door == -EADDRINUSE);
	assert_true(door >= 0);
	return 0;
}

static int close_door(void **state)
{
	if (door >= 0)
		close(door);
	return 0;
}

static int answer(int sock, struct duct **out)
{
	int rc = -EAGAIN;

	for (int i = 0; i < 1000 && rc == -EAGAIN; i++)
		rc = door_answer(sock, out);
	return rc;
}

static void caller_and_called_share_a_duct(void **state)
{
	struct duct *a, *b;
	const char *got;
	pid_t pid = 0;
	size_t size;
	int sock;

	assert_int_equal(door_accept(door), -EAGAIN);
	assert_int_equal(door_call(number, &pid, &a), 0);
	assert_int_equal(pid, getpid());
	/* Before anybody has answered. */
	memcpy(duct_begin(a, 6), "early", 6);
	duct_post(a, 6);
	sock = door_accept(door);
	assert_true(sock >= 0);
	assert_int_equal(answer(sock, &b), 0);
	got = duct_next(b, &size);
	assert_non_null(got);
	assert_int_equal(size, 6);
	assert_string_equal(got, "early");
	duct_done(b);
	/* And the ring wakes. */
	assert_true(duct_arm(b));
	memcpy(duct_begin(a, 6), "later", 6);
	duct_post(a, 6);
	duct_flush(a);
	duct_heard(b);
	assert_int_equal(duct_status(b), 0);
	assert_string_equal((const char *)duct_next(b, &size), "later");
	duct_close(a);
	duct_heard(b);
	assert_int_equal(duct_status(b), -EPIPE);
	duct_close(b);
}

static void closed_door_refuses(void **state)
{
	struct duct *a = NULL;
	pid_t pid;

	assert_int_equal(door_open(number), -EADDRINUSE);
	close(door);
	door = -1;
	assert_int_equal(door_call(number, &pid, &a), -ECONNREFUSED);
	door = door_open(number);
	assert_true(door >= 0);
}

static int connect_by_hand(void)
{
	struct sockaddr_un name = { .sun_family = AF_UNIX };
	int n = snprintf(name.sun_path + 1, sizeof(name.sun_path) - 1, "flue-door-%04x", number);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	assert_int_equal(
		connect(fd, (struct sockaddr *)&name,
			(socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1) + (socklen_t)n),
		0);
	return fd;
}

/* A letter with this file, or none. */
static void send_letter(int fd, const char *octets, size_t n, int file)
{
	union {
		struct cmsghdr align;
		char room[CMSG_SPACE(2 * sizeof(int))];
	} control = { 0 };
	int files[2] = { file, file };
	struct iovec iov = { (char *)octets, n };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
	struct cmsghdr *c;

	if (file >= 0) {
		msg.msg_control = &control;
		msg.msg_controllen = CMSG_SPACE(sizeof(files));
		c = CMSG_FIRSTHDR(&msg);
		*c = (struct cmsghdr) { CMSG_LEN(sizeof(files)), SOL_SOCKET, SCM_RIGHTS };
		memcpy(CMSG_DATA(c), files, sizeof(files));
	}
	assert_int_equal(sendmsg(fd, &msg, 0), n);
}

static int lowest_free(void)
{
	int fd = dup(0);

	close(fd);
	return fd;
}

static void caller_with_nothing_of_use_is_turned_away(void **state)
{
	static const char letters[][9] = { "roodeulf", "12345678", "" };
	struct duct *b = NULL;

	for (int i = 0; i < 6; i++) {
		int fd = connect_by_hand(), sock = door_accept(door), before;

		assert_true(sock >= 0);
		assert_int_equal(door_answer(sock, &b), -EAGAIN);
		before = lowest_free();
		send_letter(fd, letters[i / 2], strlen(letters[i / 2]), i % 2 ? 0 : -1);
		assert_int_equal(door_answer(sock, &b), -EINVAL);
		/* Neither the socket nor what came with it is left. */
		assert_int_equal(lowest_free(), before);
		assert_int_equal(fcntl(sock, F_GETFD), -1);
		close(fd);
	}
}

static void caller_who_goes_away_is_nobody(void **state)
{
	struct duct *b = NULL;
	int fd = connect_by_hand(), sock = door_accept(door);

	close(fd);
	assert_int_equal(door_answer(sock, &b), -EINVAL);
}

/* Another user finds nobody, and is nobody. */
static void strangers_do_not_meet(void **state)
{
	struct duct *a = NULL;
	int status = 0;
	pid_t child, pid;

	if (geteuid() != 0)
		skip();
	child = fork();
	if (child == 0) {
		if (setuid(65534) != 0)
			_exit(2);
		_exit(door_call(number, &pid, &a) == -ECONNREFUSED ? 0 : 1);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	assert_int_equal(door_accept(door), -EAGAIN);
}

static void dead_is_who_has_ended(void **state)
{
	pid_t child = fork();

	if (child == 0) {
		pause();
		_exit(0);
	}
	assert_false(door_is_dead(getpid()));
	assert_false(door_is_dead(child));
	kill(child, SIGKILL);
	for (int i = 0; i < 1000 && !door_is_dead(child); i++)
		usleep(1000);
	/* Nobody has asked for its status yet. */
	assert_true(door_is_dead(child));
	waitpid(child, NULL, 0);
	assert_true(door_is_dead(child));
}

#define TEST(t) cmocka_unit_test_setup_teardown(t, open_door, close_door)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(caller_and_called_share_a_duct),
		TEST(closed_door_refuses),
		TEST(caller_with_nothing_of_use_is_turned_away),
		TEST(caller_who_goes_away_is_nobody),
		TEST(strangers_do_not_meet),
		TEST(dead_is_who_has_ended),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
