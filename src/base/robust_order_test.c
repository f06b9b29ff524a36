/* SPDX-License-Identifier: MIT */
/* The order of locks: a child that takes them in two orders is ended, whether or not a deadlock would have come of it. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/robust.h"
#include "base/robust_order.h"

static struct robust_lock first, second, third;

/* How a child that does this ends: 0, or the signal. */
static int end_of(void (*act)(void))
{
	const struct rlimit none = { 0 };
	int status = 0;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0) {
		robust_forked();
		setrlimit(RLIMIT_CORE, &none);
		fclose(stderr);
		act();
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
}

static void nest(struct robust_lock *a, const char *outer, struct robust_lock *b, const char *inner)
{
	robust_take_of(a, outer);
	robust_take_of(b, inner);
	robust_give(b);
	robust_give(a);
}

static void same_order(void)
{
	for (int i = 0; i < 3; i++) {
		nest(&first, "r->first", &second, "r->second");
		nest(&second, "r->second", &third, "r->third");
		nest(&first, "r->first", &third, "r->third");
	}
}

static void reversed(void)
{
	nest(&first, "r->first", &second, "r->second");
	nest(&second, "r->second", &first, "r->first");
}

static void reversed_over_a_third(void)
{
	nest(&first, "r->first", &second, "r->second");
	nest(&second, "r->second", &third, "r->third");
	nest(&third, "r->third", &first, "r->first");
}

/* Two records: which of them comes first is not a question of class. */
static void of_one_class(void)
{
	nest(&first, "r->lock", &second, "r->lock");
	nest(&second, "r->lock", &first, "r->lock");
}

static void tried(void)
{
	nest(&first, "r->first", &second, "r->second");
	robust_take(&second);
	if (!robust_try(&first))
		_exit(9);
	robust_give(&second); /* not in the order in which they were taken */
	robust_give(&first);
}

static void asleep(void)
{
	robust_take(&first);
	ROBUST_NONE();
}

static void order_is_kept_when_all_take_locks_alike(void **st)
{
	assert_int_equal(end_of(same_order), 0);
	assert_int_equal(end_of(of_one_class), 0);
	assert_int_equal(end_of(tried), 0);
}

static void process_ends_when_locks_are_taken_the_other_way_round(void **st)
{
	assert_int_equal(end_of(reversed), SIGABRT);
	assert_int_equal(end_of(reversed_over_a_third), SIGABRT);
}

static void process_ends_when_it_sleeps_with_a_lock(void **st)
{
	assert_int_equal(end_of(asleep), SIGABRT);
}

static void held_locks_are_counted_until_they_are_given(void **st)
{
	assert_int_equal(robust_order_held(), 0);
	robust_take(&first);
	robust_take(&second);
	robust_give(&first);
	assert_int_equal(robust_order_held(), 1);
	robust_give(&second);
	assert_int_equal(robust_order_held(), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(order_is_kept_when_all_take_locks_alike),
		cmocka_unit_test(process_ends_when_locks_are_taken_the_other_way_round),
		cmocka_unit_test(process_ends_when_it_sleeps_with_a_lock),
		cmocka_unit_test(held_locks_are_counted_until_they_are_given),
	};

#ifdef FLUE_LOCK_CHECK
	return cmocka_run_group_tests(tests, NULL, NULL);
#else
	(void)tests;
	printf("1..0 # SKIP this build does not check the order of locks\n");
	return 77;
#endif
}
