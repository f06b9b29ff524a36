/* SPDX-License-Identifier: MIT */
#include "channel/duct.h"

#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
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
	assert_true(get(b, 8, 1));
	assert_null(duct_next(b, &n));
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
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
