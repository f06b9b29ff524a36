/* SPDX-License-Identifier: MIT */
/* Timers of an engine that are shorter than a millisecond, and who fires them. */
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/util.h"
#include "rnic/cq.h"
#include "rnic/engine.h"
#include "rnic/engine_priv.h"
#include "rnic/rnic.h"

static struct rnic *r;
static struct engine *e;
static struct cq *cq;
static const struct rnic_upcalls up;

static void never(void *owner, void *arg)
{
}

static int make(void **state)
{
	int cpu = sched_getcpu();

	if (rnic_open(&cpu, 1, &up, NULL, &r))
		return -1;
	e = &r->engines[0];
	if (cq_create(r, e, 4, never, NULL, NULL, &cq))
		return -1;
	cq_attach(cq, e);
	engine_lock(e);
	assert_int_equal(engine_start(e), 0);
	engine_unlock(e);
	return 0;
}

static int drop(void **state)
{
	cq_destroy(cq);
	rnic_close(r);
	return 0;
}

/* ---- timers that arm themselves again ---- */

static struct engine_timer timer;
static uint64_t delay;
static atomic_int left;    /* so often */
static atomic_int by_self; /* fired by the engine's thread */
static _Atomic uint64_t last_at;

static void fire(struct engine_timer *t)
{
	engine_assert_locked(e);
	if (engine_is_self(e))
		atomic_fetch_add(&by_self, 1);
	atomic_store(&last_at, clock_now());
	if (atomic_fetch_sub(&left, 1) > 1)
		engine_timer_arm_ns(e, t, delay);
}

static void begin(int n, uint64_t ns)
{
	engine_lock(e);
	timer = (struct engine_timer) { .fire = fire };
	delay = ns;
	atomic_store(&left, n);
	atomic_store(&by_self, 0);
	engine_timer_arm_ns(e, &timer, ns);
	engine_unlock(e);
}

/* No test says how quick: only that it is not a matter of milliseconds, in the best of some tries. */
#define TRIES  20
#define CHAIN  50
#define COARSE (CHAIN * NSEC_PER_MSEC) /* what they would take if each were rounded up */

static void engine_thread_fires_timers_of_microseconds(void **state)
{
	uint64_t best = UINT64_MAX;

	for (int i = 0; i < TRIES && best > COARSE / 2; i++) {
		uint64_t since = clock_now();

		begin(CHAIN, 10 * NSEC_PER_USEC);
		while (atomic_load(&left) > 0)
			usleep(100);
		assert_int_equal(atomic_load(&by_self), CHAIN);
		best = min_u64(best, clock_now() - since);
		assert_true(clock_now() - since >= CHAIN * 10 * NSEC_PER_USEC);
	}
	assert_true(best <= COARSE / 2);
}

/* ---- the thread has something else to do ---- */

static atomic_bool held, released;

static void hold_thread(struct engine_note *n)
{
	atomic_store(&held, true);
	while (!atomic_load(&released))
		usleep(100);
}

static struct engine_note holder = { .run = hold_thread };

static void hold(void)
{
	atomic_store(&held, false);
	atomic_store(&released, false);
	engine_tell(e, &holder);
	while (!atomic_load(&held))
		usleep(100);
}

static void release(void)
{
	atomic_store(&released, true);
	engine_untell(e, &holder);
}

static void poll_until_fired(void)
{
	uint64_t end = clock_now() + 10 * NSEC_PER_SEC;
	struct flue_wc wc;

	while (atomic_load(&left) > 0 && clock_now() < end)
		assert_int_equal(cq_poll(cq, &wc, 1), 0);
	assert_int_equal(atomic_load(&left), 0);
	assert_int_equal(atomic_load(&by_self), 0);
}

static void engine_timer_that_is_near_is_fired_by_who_polls(void **state)
{
	hold();
	begin(10, 50 * NSEC_PER_USEC);
	poll_until_fired();
	release();
}

/* Polls look at the clock for one that was far when it was armed, too, but seldom. */
static void engine_timer_that_was_far_is_fired_by_who_polls(void **state)
{
	hold();
	begin(2, 30 * NSEC_PER_MSEC);
	assert_int_equal(atomic_load(&e->near_at), 0);
	poll_until_fired();
	release();
}

/* It ends its sleep for that alone: nothing else wakes it before its time is over. */
static void engine_timer_that_is_near_is_fired_by_who_waits(void **state)
{
	uint64_t best = UINT64_MAX;

	hold();
	for (int i = 0; i < TRIES && best > COARSE / 2; i++) {
		uint64_t since = clock_now();

		begin(CHAIN, 10 * NSEC_PER_USEC);
		assert_int_equal(cq_wait(cq, 100), -ETIMEDOUT);
		while (atomic_load(&left) > 0) /* a slow machine */
			assert_int_equal(cq_wait(cq, 100), -ETIMEDOUT);
		assert_int_equal(atomic_load(&by_self), 0);
		best = min_u64(best, atomic_load(&last_at) - since);
	}
	release();
	assert_true(best <= COARSE / 2);
}

/* ---- nobody looks at the clock for nothing ---- */

static struct engine_timer far, near, nearer;

static void nothing(struct engine_timer *t)
{
}

static void engine_knows_whether_a_timer_is_near(void **state)
{
	far = near = nearer = (struct engine_timer) { .fire = nothing };
	engine_lock(e);
	assert_int_equal(e->near_at, 0);
	engine_timer_arm(e, &far, 10000);
	assert_int_equal(e->near_at, 0);
	engine_timer_arm_ns(e, &near, 1000 * NSEC_PER_USEC);
	assert_int_equal(e->near_at, near.at);
	engine_timer_arm_ns(e, &nearer, 500 * NSEC_PER_USEC);
	assert_int_equal(e->near_at, nearer.at);
	engine_timer_stop(e, &nearer);
	assert_int_equal(e->near_at, near.at);
	engine_timer_arm_ns(e, &nearer, 1500 * NSEC_PER_USEC); /* behind the other */
	assert_int_equal(e->near_at, near.at);
	engine_timer_stop(e, &near);
	assert_int_equal(e->near_at, nearer.at);
	engine_timer_stop(e, &nearer);
	assert_int_equal(e->near_at, 0);
	engine_timer_arm_ns(e, &near, 100 * NSEC_PER_USEC);
	while (near.at) {
		engine_unlock(e);
		usleep(100);
		engine_lock(e);
	}
	assert_int_equal(e->near_at, 0);
	engine_timer_stop(e, &far);
	engine_unlock(e);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make, drop)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(engine_thread_fires_timers_of_microseconds),
		TEST(engine_timer_that_is_near_is_fired_by_who_polls),
		TEST(engine_timer_that_was_far_is_fired_by_who_polls),
		TEST(engine_timer_that_is_near_is_fired_by_who_waits),
		TEST(engine_knows_whether_a_timer_is_near),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
