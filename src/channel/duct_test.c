/* SPDX-License-Identifier: MIT */
#include "channel/duct.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "channel/mailbox.h"

static struct duct *a, *b; /* two sides, both ours */

static int open_both(void **state)
{
	static uint64_t name;

	assert_true(duct_reachable());
	assert_int_equal(duct_call(mailbox_name(), getpid(), ++name, &a), 0);
	assert_int_equal(duct_answer(getpid(), name, &b), 0);
	return 0;
}

static int close_both(void **state)
{
	if (a)
		duct_close(a);
	if (b)
		duct_close(b);
	a = b = NULL;
	return 0;
}

static bool put(struct duct *d, size_t size, uint32_t seed)
{
	uint8_t *to = duct_begin(d, size);

	if (!to)
		return false;
	for (size_t i = 0; i < size; i++)
		to[i] = (uint8_t)(seed + i * 7);
	duct_post(d, size);
	return true;
}

static bool get(struct duct *d, size_t size, uint32_t seed)
{
	size_t n;
	const uint8_t *at = duct_next(d, &n);

	if (!at)
		return false;
	assert_int_equal(n, size);
	for (size_t i = 0; i < n; i++)
		assert_int_equal(at[i], (uint8_t)(seed + i * 7));
	duct_done(d);
	return true;
}

static bool is_rung(struct duct *d)
{
	struct pollfd p = { .fd = duct_fd(d), .events = POLLIN };

	return poll(&p, 1, 0) == 1;
}

static unsigned count_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned n = 0;

	assert_non_null(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

static void records_come_as_they_were_sent(void **state)
{
	size_t n;

	assert_null(duct_next(b, &n));
	for (uint32_t i = 0; i < 20000; i++) {
		size_t size = i * 97 % (i % 10 ? 300 : DUCT_RECORD_MAX + 1);

		assert_true(put(a, size, i));
		assert_true(put(b, size / 2, i + 1));
		assert_true(get(b, size, i));
		assert_true(get(a, size / 2, i + 1));
	}
	assert_null(duct_next(b, &n));
	assert_null(duct_next(a, &n));
	assert_int_equal(duct_status(a), 0);
	assert_null(duct_begin(a, DUCT_RECORD_MAX + 1));
}

/* As many as fit, again and again, of sizes that meet the end of the ring everywhere. */
static void full_ring_loses_nothing(void **state)
{
	uint32_t out = 0, in = 0;

	for (int turn = 0; turn < 300; turn++) {
		while (put(a, out * 331 % 5000, out))
			out++;
		assert_true(out - in > 40);
		for (uint32_t n = (out - in) / (1 + (uint32_t)turn % 3); n; n--, in++)
			assert_true(get(b, in * 331 % 5000, in));
	}
	while (in != out) {
		assert_true(get(b, in * 331 % 5000, in));
		in++;
	}
}

static void sleeper_is_rung_once(void **state)
{
	assert_true(put(a, 8, 1));
	duct_flush(a);
	assert_false(is_rung(b));  /* nobody sleeps */
	assert_false(duct_arm(b)); /* something has come */
	assert_true(get(b, 8, 1));
	assert_true(duct_arm(b));
	assert_true(put(a, 8, 2));
	assert_false(is_rung(b));
	duct_flush(a);
	assert_true(is_rung(b));
	duct_heard(b);
	assert_false(is_rung(b));
	assert_true(put(a, 8, 3));
	duct_flush(a);
	assert_false(is_rung(b));
	assert_true(get(b, 8, 2));
	assert_true(get(b, 8, 3));
}

static void who_wants_room_is_told(void **state)
{
	uint32_t out = 0, in = 0;
	size_t n;

	assert_false(duct_want_room(a)); /* there is enough */
	while (put(a, 4000, out))
		out++;
	assert_true(duct_want_room(a));
	for (; in < out; in++)
		assert_true(get(b, 4000, in));
	assert_null(duct_next(b, &n));
	assert_true(is_rung(a));
	duct_heard(a);
	assert_true(put(a, 4000, out));
}

static void end_of_the_peer_is_seen_behind_what_it_sent(void **state)
{
	size_t n;

	assert_true(put(a, 8, 1));
	duct_flush(a);
	duct_close(a);
	a = NULL;
	assert_true(is_rung(b));
	duct_heard(b);
	assert_int_equal(duct_status(b), -EPIPE);
	assert_false(duct_arm(b)); /* who looks whether it is over takes that first */
	assert_true(get(b, 8, 1));
	assert_null(duct_next(b, &n));
	assert_true(duct_arm(b));
	assert_null(duct_begin(b, 8));
	assert_true(duct_want_room(b)); /* for ever */
}

/* What stands in the ring is the peer's to write. */
static void record_that_cannot_be_ends_it(void **state)
{
	static const uint64_t bad[] = { 1ull << 63 | (DUCT_RECORD_MAX + 1), 1ull << 63 | 1ull << 40,
					UINT64_MAX, 1, 1ull << 63 | 1u << 31 | 1 };

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		uint8_t *at = duct_begin(a, 8);
		size_t n;

		memcpy(at - 8, &bad[i], 8);
		if (bad[i] == 1) { /* a length is enough */
			assert_non_null(duct_next(b, &n));
			assert_int_equal(n, 1);
		} else {
			assert_null(duct_next(b, &n));
			assert_int_equal(duct_status(b), -EPROTO);
			assert_null(duct_next(b, &n));
		}
		close_both(NULL);
		open_both(NULL);
	}
}

static void nobody_there(void **state)
{
	uint8_t other[MAILBOX_NAME] = { 1, 2, 3 };
	struct duct *d;

	assert_int_equal(duct_call(other, getpid(), 77, &d), -ECONNREFUSED);
	assert_int_equal(duct_call(mailbox_name(), getppid(), 77, &d), -ECONNREFUSED);
	assert_int_equal(duct_answer(getpid(), 78, &d), -ENOENT);
}

static void child_has_nothing_of_it(void **state)
{
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		size_t n;

		mailbox_forked();
		duct_forked_all();
		duct_forked(a);
		duct_forked(b);
		if (duct_next(a, &n) || duct_begin(b, 8))
			_exit(1);
		duct_close(a);
		duct_close(b);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_true(put(a, 100, 5));
	assert_true(get(b, 100, 5));
	duct_heard(b);
	assert_int_equal(duct_status(b), 0);
}

/* Letters of processes that ended before they were answered. */
static void ducts_of_the_dead_are_not_kept(void **state)
{
	unsigned before = count_fds();
	struct duct *d;

	for (uint64_t name = 1000; name < 1010; name++) {
		assert_int_equal(duct_call(mailbox_name(), getpid(), name, &d), 0);
		mailbox_empty();
		duct_close(d);
	}
	assert_true(count_fds() <= before + 2); /* of the last one */
	assert_int_equal(duct_call(mailbox_name(), getpid(), 1010, &d), 0);
	duct_close(a);
	duct_close(b);
	a = d;
	assert_int_equal(duct_answer(getpid(), 1010, &b), 0);
	assert_int_equal(count_fds(), before);
}

/* ---- beside the records ---- */

static void words_are_seen_by_the_other_side(void **state)
{
	assert_int_equal(*duct_own_word(a), 0);
	*duct_own_word(a) = 0x1122334455667788;
	*duct_own_word(b) = 5;
	assert_true(*duct_peer_word(b) == 0x1122334455667788);
	assert_int_equal(*duct_peer_word(a), 5);
	assert_int_equal(*duct_own_word(b), 5);
}

static void descriptor_is_passed_once(void **state)
{
	unsigned before = count_fds();
	struct stat st, st2;
	int fds[2], fd;

	assert_int_equal(duct_passed(b), -1);
	assert_int_equal(pipe(fds), 0);
	duct_pass(a, fds[0]);
	assert_int_equal(duct_passed(b), -1); /* not heard of yet */
	assert_true(is_rung(b));
	duct_heard(b);
	assert_int_equal(duct_status(b), 0);
	fd = duct_passed(b);
	assert_true(fd >= 0 && fd != fds[0]);
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(fstat(fds[0], &st2), 0);
	assert_true(st.st_ino == st2.st_ino);
	assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	assert_int_equal(duct_passed(b), -1);
	close(fd);
	close(fds[0]);
	close(fds[1]);
	assert_int_equal(count_fds(), before);
}

static void descriptor_that_nobody_asked_for_is_closed_with_the_duct(void **state)
{
	unsigned before;

	close_both(NULL);
	before = count_fds();
	open_both(NULL);
	duct_pass(a, 0);
	duct_heard(b);
	close_both(NULL);
	assert_int_equal(count_fds(), before);
}

/* By hand: as many in one message as a peer likes. */
static void pass_many(struct duct *d, size_t n)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))] = { 0 };
	char octet = 0;
	struct iovec iov = { &octet, 1 };
	struct msghdr msg = { .msg_iov = &iov,
			      .msg_iovlen = 1,
			      .msg_control = control,
			      .msg_controllen = CMSG_SPACE(n * sizeof(int)) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(n * sizeof(int));
	assert_int_equal(sendmsg(duct_fd(d), &msg, MSG_DONTWAIT), 1);
}

static void peer_that_passes_many_costs_one_descriptor(void **state)
{
	unsigned before = count_fds();

	for (size_t n = 1; n <= 8; n++) {
		for (int i = 0; i < 5; i++)
			pass_many(a, n);
		duct_heard(b);
		assert_int_equal(duct_status(b), 0);
		assert_int_equal(count_fds(), before + 1);
	}
	assert_true(put(a, 100, 5));
	assert_true(get(b, 100, 5));
}

static void peer_that_floods_the_socket_is_heard_for_a_while(void **state)
{
	static char octets[60000];
	ssize_t n = send(duct_fd(a), octets, sizeof(octets), MSG_DONTWAIT);

	assert_true(n > 10000);
	duct_heard(b);
	assert_true(is_rung(b)); /* there is more */
	assert_int_equal(duct_status(b), 0);
	assert_true(put(a, 100, 5));
	assert_true(get(b, 100, 5));
	for (int i = 0; i < 100 && is_rung(b); i++)
		duct_heard(b);
	assert_false(is_rung(b));
}

#define TEST(t) cmocka_unit_test_setup_teardown(t, open_both, close_both)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(records_come_as_they_were_sent),
		TEST(full_ring_loses_nothing),
		TEST(sleeper_is_rung_once),
		TEST(who_wants_room_is_told),
		TEST(end_of_the_peer_is_seen_behind_what_it_sent),
		TEST(record_that_cannot_be_ends_it),
		TEST(nobody_there),
		TEST(child_has_nothing_of_it),
		TEST(ducts_of_the_dead_are_not_kept),
		TEST(words_are_seen_by_the_other_side),
		TEST(descriptor_is_passed_once),
		TEST(descriptor_that_nobody_asked_for_is_closed_with_the_duct),
		TEST(peer_that_passes_many_costs_one_descriptor),
		TEST(peer_that_floods_the_socket_is_heard_for_a_while),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
