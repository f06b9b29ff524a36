/* SPDX-License-Identifier: MIT */
/*
 * The notice board. Tests take the place of a user that does not exist, so that no board in use is
 * touched; that needs root.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "channel/board.h"

#define NAMES 4

static uid_t user;
static char names[NAMES][64];

static int begin(void **st)
{
	if (geteuid() != 0)
		return 0;
	user = 3000000000u + (uid_t)getpid() % 100000000u;
	for (int i = 0; i < NAMES; i++) {
		if (i == 0)
			snprintf(names[i], sizeof(names[i]), "/dev/shm/flue.%u", user);
		else
			snprintf(names[i], sizeof(names[i]), "/dev/shm/flue.%u.%d", user, i);
	}
	return seteuid(user);
}

static int end(void **st)
{
	if (geteuid() != user)
		return 0;
	board_drop();
	if (seteuid(0) != 0)
		return -1;
	for (int i = 0; i < NAMES; i++) {
		unlink(names[i]);
		rmdir(names[i]);
	}
	return 0;
}

#define NEED_ROOT()                    \
	do {                           \
		if (geteuid() != user) \
			skip();        \
	} while (0)

static bool is_at(int fd, const char *name)
{
	struct stat a, b;

	return fd >= 0 && fstat(fd, &a) == 0 && stat(name, &b) == 0 && a.st_ino == b.st_ino &&
	       a.st_dev == b.st_dev;
}

static void board_is_for_its_user_alone(void **st)
{
	struct stat s;
	int fd;

	NEED_ROOT();
	fd = board_fd();
	assert_true(is_at(fd, names[0]));
	assert_int_equal(board_fd(), fd);
	assert_int_equal(fstat(fd, &s), 0);
	assert_int_equal(s.st_mode & 07777, 0600);
	assert_int_equal(s.st_uid, user);
	assert_int_equal(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
	assert_int_equal(seteuid(0), 0);
	assert_int_equal(seteuid(user + 1), 0);
	assert_int_equal(open(names[0], O_RDWR), -1);
	assert_int_equal(errno, EACCES);
	assert_int_equal(open(names[0], O_RDONLY), -1);
	assert_int_equal(seteuid(0), 0);
	assert_int_equal(seteuid(user), 0);
}

static void board_is_opened_again_when_it_was_removed_or_closed(void **st)
{
	int fd;

	NEED_ROOT();
	fd = board_fd();
	assert_true(is_at(fd, names[0]));
	assert_int_equal(unlink(names[0]), 0);
	fd = board_fd();
	assert_true(is_at(fd, names[0])); /* where others will look */
	close(fd);
	assert_true(is_at(board_fd(), names[0]));
}

/* As root: something stands where the board should be. */
static void squat(int i, const char *how)
{
	int fd = -1;

	assert_int_equal(seteuid(0), 0);
	if (strcmp(how, "file") == 0)
		fd = open(names[i], O_CREAT | O_EXCL | O_RDWR, 0666);
	else if (strcmp(how, "open") == 0 || strcmp(how, "large") == 0 ||
		 strcmp(how, "linked") == 0)
		fd = open(names[i], O_CREAT | O_EXCL | O_RDWR, 0600);
	else if (strcmp(how, "link") == 0) {
		/* To what would do as a board. */
		fd = open(names[3], O_CREAT | O_EXCL | O_RDWR, 0600);
		assert_int_equal(fchown(fd, user, (gid_t)-1), 0);
		assert_int_equal(symlink(names[3], names[i]), 0);
	} else if (strcmp(how, "fifo") == 0)
		assert_int_equal(mkfifo(names[i], 0600), 0);
	else
		assert_int_equal(mkdir(names[i], 0700), 0);
	if (strcmp(how, "file") == 0)
		assert_int_equal(fchmod(fd, 0666), 0);
	if (strcmp(how, "open") == 0)
		assert_int_equal(fchmod(fd, 0660), 0);
	if (strcmp(how, "large") == 0)
		assert_int_equal(ftruncate(fd, 1 << 30), 0);
	if (strcmp(how, "linked") == 0)
		assert_int_equal(link(names[i], names[3]), 0);
	if (strcmp(how, "file") != 0)
		assert_int_equal(lchown(names[i], user, (gid_t)-1), 0);
	if (fd >= 0)
		close(fd);
	assert_int_equal(seteuid(user), 0);
}

static void board_takes_next_name_when_one_is_squatted(void **st)
{
	static const char *const ways[] = { "file", "open", "large", "linked",
					    "link", "fifo", "folder" };

	NEED_ROOT();
	for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
		squat(0, ways[i]);
		if (!is_at(board_fd(), names[1]))
			fail_msg("a board stands on a %s", ways[i]);
		end(st);
		begin(st);
	}
}

static void board_is_not_had_when_all_names_are_squatted(void **st)
{
	struct board_slot bucket[BOARD_BUCKET], slot = { 0 };

	NEED_ROOT();
	for (int i = 0; i < NAMES; i++)
		squat(i, "file");
	assert_int_equal(board_fd(), -1);
	assert_false(board_lock(0, bucket));
	assert_false(board_read(0, &slot));
	assert_false(board_write(0, &slot));
}

static void board_sends_both_ends_to_one_bucket(void **st)
{
	struct board_slot a = { .netns = 7, .self_port = 1, .peer_port = 2 };
	struct board_slot b = a;
	unsigned used = 0;
	bool seen[BOARD_BUCKETS] = { false };

	for (uint16_t i = 0; i < 4096; i++) {
		uint32_t n;

		memset(&a.self, i & 0xff, sizeof(a.self));
		a.self_port = i;
		a.peer_port = (uint16_t)(i * 77);
		b = a;
		b.self = a.peer;
		b.peer = a.self;
		b.self_port = a.peer_port;
		b.peer_port = a.self_port;
		n = board_bucket(&a);
		assert_int_equal(n, board_bucket(&b));
		assert_int_equal(n % BOARD_BUCKET, 0);
		assert_true(n / BOARD_BUCKET < BOARD_BUCKETS);
		used += !seen[n / BOARD_BUCKET];
		seen[n / BOARD_BUCKET] = true;
	}
	assert_true(used > BOARD_BUCKETS / 2); /* and not all to the same */
}

static void board_keeps_what_was_written(void **st)
{
	struct board_slot bucket[BOARD_BUCKET], slot = { .state = BOARD_POSTED, .pid = 77 };

	NEED_ROOT();
	assert_true(board_lock(32, bucket));
	for (int i = 0; i < BOARD_BUCKET; i++)
		assert_int_equal(bucket[i].state, BOARD_EMPTY); /* beyond the end of the file */
	slot.cookie = 0x1122334455667788;
	assert_true(board_write(33, &slot));
	board_unlock(32);
	memset(&slot, 0, sizeof(slot));
	assert_true(board_read(33, &slot));
	assert_int_equal(slot.cookie, 0x1122334455667788);
	assert_true(board_lock(32, bucket));
	assert_int_equal(bucket[1].pid, 77);
	assert_int_equal(bucket[2].pid, 0);
	board_unlock(32);
	assert_false(board_read(5000, &slot));
}

static int status_of(pid_t pid)
{
	int status = -1;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	return status;
}

/* In a process of its own, with its own descriptor: 0 when the lock could be had. */
static int lock_elsewhere(uint32_t first)
{
	pid_t pid = fork();

	if (pid == 0) {
		struct board_slot bucket[BOARD_BUCKET];

		board_drop();
		board_forked();
		_exit(board_lock(first, bucket) ? 0 : 1); /* and dies with it */
	}
	return status_of(pid);
}

static void board_lock_keeps_other_processes_out_and_dies_with_its_holder(void **st)
{
	struct board_slot bucket[BOARD_BUCKET];

	NEED_ROOT();
	assert_true(board_lock(16, bucket));
	assert_int_not_equal(lock_elsewhere(16), 0);
	assert_int_equal(lock_elsewhere(48), 0);
	board_unlock(16);
	assert_int_equal(lock_elsewhere(16), 0);
	assert_true(board_lock(16, bucket));
	board_unlock(16);
}

static _Atomic int inside, most;

static void *fight(void *arg)
{
	struct board_slot bucket[BOARD_BUCKET];

	for (int i = 0; i < 500; i++) {
		int now;

		if (!board_lock(16, bucket))
			continue;
		now = atomic_fetch_add(&inside, 1) + 1;
		if (now > atomic_load(&most))
			atomic_store(&most, now);
		/* What one reads and writes nobody else does meanwhile. */
		bucket[0].cookie++;
		board_write(16, &bucket[0]);
		atomic_fetch_sub(&inside, 1);
		board_unlock(16);
		atomic_fetch_add((_Atomic int *)arg, 1);
	}
	return NULL;
}

static void board_lock_keeps_other_threads_out(void **st)
{
	struct board_slot slot;
	pthread_t t[4];
	_Atomic int n = 0;

	NEED_ROOT();
	assert_true(board_fd() >= 0);
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&t[i], NULL, fight, &n), 0);
	for (int i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
	assert_int_equal(most, 1);
	assert_true(n > 0);
	assert_true(board_read(16, &slot));
	assert_int_equal(slot.cookie, n);
}

static void board_slot_is_stale_when_nobody_can_own_it(void **st)
{
	struct board_slot s = { .state = BOARD_POSTED, .pid = (uint32_t)getpid() };
	pid_t pid = fork();

	if (pid == 0)
		_exit(0);
	assert_int_equal(status_of(pid), 0);
	assert_false(board_is_stale(&s));
	s.state = BOARD_CLAIMED;
	assert_false(board_is_stale(&s));
	s.state = BOARD_EMPTY;
	assert_true(board_is_stale(&s));
	s.state = 0xdeadbeef;
	assert_true(board_is_stale(&s));
	s.state = BOARD_POSTED;
	s.pid = (uint32_t)pid;
	assert_true(board_is_stale(&s));
	s.pid = 0;
	assert_true(board_is_stale(&s));
	s.pid = (uint32_t)-1;
	assert_true(board_is_stale(&s));
	s.pid = 0x80000001;
	assert_true(board_is_stale(&s));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(board_is_for_its_user_alone),
		TEST(board_is_opened_again_when_it_was_removed_or_closed),
		TEST(board_takes_next_name_when_one_is_squatted),
		TEST(board_is_not_had_when_all_names_are_squatted),
		TEST(board_sends_both_ends_to_one_bucket),
		TEST(board_keeps_what_was_written),
		TEST(board_lock_keeps_other_processes_out_and_dies_with_its_holder),
		TEST(board_lock_keeps_other_threads_out),
		TEST(board_slot_is_stale_when_nobody_can_own_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
