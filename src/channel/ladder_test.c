/* SPDX-License-Identifier: MIT */
/* The ladder before a sleep. No limits on time here: only what is tried, and what is learned. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>
#include <cmocka.h>

#include "channel/ladder.h"

static uint32_t asked, ready_at;

/* Ready from the nth question on; 0: never. */
static bool ready(void *arg)
{
	assert_ptr_equal(arg, &asked);
	return ++asked >= ready_at && ready_at;
}

static bool climb(uint32_t peer, uint32_t at, uint32_t *budget, uint32_t most)
{
	asked = 0;
	ready_at = at;
	return ladder_climb(ready, &asked, peer, budget, most);
}

static int begin(void **st)
{
	ladder_profile.spin_ns = 50000;
	ladder_profile.yields = 8;
	return 0;
}

/* Nowhere: so it is never the processor that asks. */
#define ELSEWHERE UINT32_MAX

/* Spinning is for machines with several processors. */
static void need_two(void)
{
	cpu_set_t set;

	if (sched_getaffinity(0, sizeof(set), &set) != 0 || CPU_COUNT(&set) < 2)
		skip();
}

/* Stay on one processor while the test names it. */
static void stay(void)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(ladder_cpu(), &set);
	if (sched_setaffinity(0, sizeof(set), &set) != 0)
		skip();
}

static void wait_knows_the_processor(void **st)
{
	cpu_set_t set, old;

	assert_int_equal(sched_getaffinity(0, sizeof(old), &old), 0);
	for (int i = 0; i < CPU_SETSIZE; i++) {
		if (!CPU_ISSET(i, &old))
			continue;
		CPU_ZERO(&set);
		CPU_SET(i, &set);
		assert_int_equal(sched_setaffinity(0, sizeof(set), &set), 0);
		assert_int_equal(ladder_cpu(), i);
	}
	assert_int_equal(sched_setaffinity(0, sizeof(old), &old), 0);
}

static void wait_asks_once_when_ready_at_once(void **st)
{
	uint32_t budget = 777;

	assert_true(climb(ELSEWHERE, 1, &budget, 50000));
	assert_int_equal(asked, 1);
	assert_int_equal(budget, 777);
}

static void wait_spins_and_learns_when_peer_is_elsewhere(void **st)
{
	uint32_t budget = 20000;

	need_two();
	assert_true(climb(ELSEWHERE, 10, &budget, 50000));
	assert_int_equal(asked, 10);
	assert_int_equal(budget, 40000);
	assert_true(climb(ELSEWHERE, 10, &budget, 50000));
	assert_int_equal(budget, 50000); /* and no further */
	assert_false(climb(ELSEWHERE, 0, &budget, 50000));
	assert_true(asked > 1);
	assert_int_equal(budget, 25000);
}

static void wait_does_not_spin_when_it_never_paid(void **st)
{
	uint32_t budget = 50000;

	need_two();
	for (int i = 0; i < 20; i++)
		assert_false(climb(ELSEWHERE, 0, &budget, 50000));
	assert_int_equal(asked, 1);
	budget = 50000;
	assert_false(climb(ELSEWHERE, 0, &budget, 0));
	assert_int_equal(asked, 1);
}

static void wait_spins_again_when_a_sleep_was_short(void **st)
{
	uint32_t budget = 0;

	ladder_slept(&budget, 49999);
	assert_int_equal(budget, 50000);
	budget = 0;
	ladder_slept(&budget, 64 * 100000 + 1);
	assert_int_equal(budget, 0);
	ladder_slept(&budget, 64 * 100000);
	assert_int_equal(budget, 12500); /* now and then for luck */
	budget = 30000;
	ladder_slept(&budget, 64 * 100000);
	assert_int_equal(budget, 30000);
}

static void wait_yields_so_often_when_peer_is_on_this_processor(void **st)
{
	uint32_t budget = 50000;

	stay();
	assert_false(climb(ladder_cpu(), 0, &budget, 50000));
	/* A yield that takes long may end it sooner. */
	assert_true(asked >= 1 && asked <= 1 + ladder_profile.yields);
	assert_int_equal(budget, 50000);
	ladder_profile.yields = 0;
	assert_false(climb(ladder_cpu(), 0, &budget, 50000));
	assert_int_equal(asked, 1);
	/* A spin would only keep it from what is waited for. */
	asked = 0;
	assert_false(ladder_spin(ready, &asked, ladder_cpu(), 50000));
	assert_int_equal(asked, 1);
}

#define TEST(name) cmocka_unit_test_setup(name, begin)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(wait_knows_the_processor),
		TEST(wait_asks_once_when_ready_at_once),
		TEST(wait_spins_and_learns_when_peer_is_elsewhere),
		TEST(wait_does_not_spin_when_it_never_paid),
		TEST(wait_spins_again_when_a_sleep_was_short),
		/* Last: it stays on one processor. */
		TEST(wait_yields_so_often_when_peer_is_on_this_processor),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
