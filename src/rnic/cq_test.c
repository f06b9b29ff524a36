/* SPDX-License-Identifier: MIT */
/* Completion queues: order, overflow, resize, arming (RD-2, CH-4). */
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/clock.h"
#include "rnic/cq.h"
#include "rnic/rnic.h"

static struct rnic *r;
static struct cq *cq;
static int owner, arg;
static atomic_int fired, errors;
static atomic_bool on_engine;

static atomic_int teller; /* the engine whose thread it was; -1: none's */

static void on_fired(void *cq_owner, void *handler_arg)
{
	struct flue_wc wc;

	assert(cq_owner == &owner && handler_arg == &arg);
	atomic_store(&on_engine, engine_is_self(cq->engine));
	atomic_store(&teller, -1);
	for (uint32_t i = 0; i < r->n_engines; i++)
		if (engine_is_self(&r->engines[i]))
			atomic_store(&teller, (int)i);
	while (cq->tellers && cq_poll(cq, &wc, 1) > 0)
		;
	atomic_fetch_add(&fired, 1);
}

static void on_error(void *ctx, void *cq_owner)
{
	assert(cq_owner == &owner);
	atomic_fetch_add(&errors, 1);
}

static const struct rnic_upcalls up = { .cq_error = on_error };

static int make(void **state)
{
	int cpu = sched_getcpu();

	atomic_store(&fired, 0);
	atomic_store(&errors, 0);
	if (rnic_open(&cpu, 1, &up, NULL, &r))
		return -1;
	return cq_create(r, &r->engines[0], 4, on_fired, &arg, &owner, &cq);
}

static int drop(void **state)
{
	cq_destroy(cq);
	rnic_close(r);
	return 0;
}

static bool push(uint64_t id, bool solicited)
{
	struct cqe e = { .wc = { .id = id, .qp = (struct flue_qp *)(uintptr_t)(id % 2 + 1) } };

	return cq_push(cq, &e, solicited);
}

static void expect_ids(uint64_t first, int n, int step)
{
	struct flue_wc wc;

	for (int i = 0; i < n; i++) {
		assert_int_equal(cq_poll(cq, &wc, 1), 1);
		assert_int_equal(wc.id, first + (uint64_t)(i * step));
	}
	assert_int_equal(cq_poll(cq, &wc, 1), 0);
}

/* Handlers run on the engine's thread. */
static int count_after(atomic_int *count, int ms)
{
	for (int i = 0; i < ms && !atomic_load(count); i++)
		usleep(1000);
	return atomic_load(count);
}

static int stays(atomic_int *count)
{
	usleep(20000);
	return atomic_load(count);
}

static void cq_gives_completions_in_order_over_many_rounds(void **state)
{
	struct flue_wc wc[8];
	uint64_t in = 0, out = 0;

	for (int round = 0; round < 50; round++) {
		int n = 1 + round % 4;

		for (int i = 0; i < n; i++)
			assert_true(push(in++, false));
		assert_int_equal(cq_poll(cq, wc, 8), n);
		for (int i = 0; i < n; i++)
			assert_int_equal(wc[i].id, out++);
	}
	assert_int_equal(cq_poll(cq, wc, 8), 0);
}

/* Programs that were built against a later header, or an earlier one (the last field it has is not ours
 * to touch). */
static void cq_writes_completions_as_far_apart_as_its_caller_has_them(void **state)
{
	struct {
		struct flue_wc wc;
		uint64_t later[2];
	} wide[2];
	const size_t small = offsetof(struct flue_wc, cpu) + sizeof(uint16_t);
	uint8_t raw[3 * sizeof(struct flue_wc)];
	uint64_t id;

	for (uint64_t i = 0; i < 4; i++)
		assert_true(push(i, false));
	memset(wide, 0x5a, sizeof(wide));
	assert_int_equal(cq_poll_sized(cq, &wide[0].wc, sizeof(wide[0]), 2), 2);
	for (uint64_t i = 0; i < 2; i++) {
		assert_int_equal(wide[i].wc.id, i);
		assert_true(!wide[i].later[0] && !wide[i].later[1]);
	}
	memset(raw, 0x5a, sizeof(raw));
	assert_int_equal(cq_poll_sized(cq, (struct flue_wc *)raw, small - 1, 2), -EINVAL);
	assert_int_equal(cq_poll_sized(cq, (struct flue_wc *)raw, small, 2), 2);
	for (uint64_t i = 0; i < 2; i++) {
		memcpy(&id, raw + i * small, sizeof(id));
		assert_int_equal(id, 2 + i);
	}
	for (size_t i = 2 * small; i < sizeof(raw); i++)
		assert_int_equal(raw[i], 0x5a);
	/* Also when there is nothing to write. */
	assert_int_equal(cq_poll_sized(cq, (struct flue_wc *)raw, small - 1, 2), -EINVAL);
	assert_int_equal(cq_poll_sized(cq, (struct flue_wc *)raw, 0, 2), -EINVAL);
	assert_int_equal(cq_poll_sized(cq, (struct flue_wc *)raw, small, 2), 0);
}

static void cq_poll_takes_no_more_than_asked(void **state)
{
	struct flue_wc wc[4];

	for (uint64_t i = 0; i < 4; i++)
		assert_true(push(i, false));
	assert_int_equal(cq_poll(cq, wc, 0), 0);
	assert_int_equal(cq_poll(cq, wc, 3), 3);
	assert_int_equal(wc[2].id, 2);
	expect_ids(3, 1, 1);
}

static void cq_keeps_what_fitted_and_reports_the_overflow_behind_it(void **state)
{
	struct flue_wc wc;

	for (uint64_t i = 0; i < 4; i++)
		assert_true(push(i, false));
	assert_false(push(4, false));
	assert_false(push(5, false));
	assert_int_equal(cq_poll(cq, &wc, 0), 0); /* who takes nothing has not come to the gap */
	assert_int_equal(cq_poll(cq, &wc, 1), 1);
	/* A gap must not close: what comes behind a lost completion is lost, too. */
	assert_false(push(6, false));
	for (uint64_t i = 1; i < 4; i++) {
		assert_int_equal(cq_poll(cq, &wc, 1), 1);
		assert_int_equal(wc.id, i);
	}
	assert_int_equal(cq_wait(cq, 0), -EOVERFLOW);
	assert_int_equal(cq_poll(cq, &wc, 1), -EOVERFLOW);
	assert_int_equal(cq_poll(cq, &wc, 1), 0);
	assert_true(push(7, false));
	expect_ids(7, 1, 1);
}

static void cq_tells_of_an_overflow_once(void **state)
{
	/* The engine must run, as it does when something completes. */
	assert_int_equal(cq_arm(cq, FLUE_NOTIFY_SOLICITED), 0);
	for (uint64_t i = 0; i < 4; i++)
		assert_true(push(i, false));
	assert_int_equal(stays(&fired), 0);
	assert_false(push(4, false));
	assert_false(push(5, false));
	assert_int_equal(count_after(&errors, 2000), 1);
	assert_int_equal(count_after(&fired, 2000), 1); /* whoever waits for a notice gets one */
	assert_int_equal(stays(&errors), 1);
}

static void cq_resize_keeps_order_when_the_ring_had_wrapped(void **state)
{
	struct flue_wc wc[3];

	for (uint64_t i = 0; i < 3; i++)
		assert_true(push(i, false));
	assert_int_equal(cq_poll(cq, wc, 3), 3);
	for (uint64_t i = 3; i < 7; i++) /* from the last place around to the third */
		assert_true(push(i, false));
	assert_int_equal(cq_resize(cq, 6), 0);
	assert_true(push(7, false));
	assert_true(push(8, false));
	assert_false(push(9, false));
	for (uint64_t i = 3; i < 9; i++) {
		assert_int_equal(cq_poll(cq, wc, 1), 1);
		assert_int_equal(wc[0].id, i);
	}
}

static void cq_resize_refuses_to_lose_completions(void **state)
{
	for (uint64_t i = 0; i < 3; i++)
		assert_true(push(i, false));
	assert_int_equal(cq_resize(cq, 2), -EBUSY);
	assert_int_equal(cq->depth, 4);
	assert_int_equal(cq_resize(cq, 3), 0);
	assert_false(push(3, false));
}

static void cq_purge_removes_one_queue_pairs_completions_only(void **state)
{
	struct flue_wc wc[2];

	assert_true(push(0, false));
	assert_true(push(0, false));
	assert_int_equal(cq_poll(cq, wc, 2), 2); /* so that the ring wraps */
	for (uint64_t i = 10; i < 14; i++)
		assert_true(push(i, false));
	cq_purge(cq, (struct flue_qp *)(uintptr_t)1); /* the even ones */
	expect_ids(11, 2, 2);
	assert_true(push(20, false));
	cq_purge(cq, (struct flue_qp *)(uintptr_t)1);
	assert_false(cq_has_news(cq));
}

/* ---- slots of the work queues ---- */

static uint32_t freed(struct wq *wq)
{
	return atomic_load(&wq->freed);
}

static bool push_for(struct wq *wq, uint32_t free_to)
{
	struct cqe e = { .wq = wq, .free_to = free_to };

	return cq_push(cq, &e, false);
}

static void cq_frees_slots_as_completions_are_taken(void **state)
{
	struct wq one = { .depth = 8 }, two = { .depth = 8 }, many = { .shared = true };
	struct flue_wc wc[4];

	assert_true(push_for(&one, 3) && push_for(&two, 1) && push_for(&many, 0));
	assert_int_equal(freed(&one) + freed(&two) + freed(&many), 0);
	assert_int_equal(cq_poll(cq, wc, 1), 1);
	assert_int_equal(freed(&one), 3);
	assert_int_equal(freed(&two) + freed(&many), 0);
	assert_true(push_for(&one, 5) && push_for(&many, 0));
	assert_int_equal(cq_resize(cq, 6), 0);
	assert_int_equal(cq_poll(cq, wc, 4), 4);
	assert_int_equal(freed(&one), 5);
	assert_int_equal(freed(&two), 1);
	assert_int_equal(freed(&many), 2);
}

static void cq_gives_an_srq_back_what_it_removes_or_loses(void **state)
{
	struct wq many = { .shared = true };

	for (int i = 0; i < 4; i++)
		assert_true(push_for(&many, 0));
	assert_false(push_for(&many, 0));
	assert_int_equal(freed(&many), 1);
	cq_purge(cq, NULL);
	assert_int_equal(freed(&many), 5);
}

static void cq_settles_slots_without_a_completion(void **state)
{
	struct wq one = { .head = 7 }, two = { .head = 9 };
	struct flue_wc wc[2];

	/* Requests 3 to 6 ended without a word: they go with the second one's completion. */
	assert_true(push_for(&one, 1) && push_for(&one, 3));
	cq_settle(cq, &one);
	assert_int_equal(freed(&one), 0);
	assert_int_equal(cq_poll(cq, wc, 1), 1);
	assert_int_equal(freed(&one), 1);
	/* Nothing of the other waits: at once. */
	cq_settle(cq, &two);
	assert_int_equal(freed(&two), 9);
	assert_int_equal(cq_poll(cq, wc, 1), 1);
	assert_int_equal(freed(&one), 7);
}

static void cq_notice_comes_once_on_the_engines_thread(void **state)
{
	assert_int_equal(cq_arm(cq, FLUE_NOTIFY_NEXT), 0);
	assert_true(push(1, false));
	assert_int_equal(count_after(&fired, 2000), 1);
	assert_true(atomic_load(&on_engine));
	assert_true(push(2, false));
	assert_int_equal(stays(&fired), 1);
	/* One is waiting already: no notice is owed for it, and arm says so. */
	assert_int_equal(cq_arm(cq, FLUE_NOTIFY_NEXT), 1);
	assert_int_equal(stays(&fired), 1);
	assert_true(push(3, false));
	for (int i = 0; i < 2000 && atomic_load(&fired) < 2; i++)
		usleep(1000);
	assert_int_equal(atomic_load(&fired), 2);
}

static void cq_notice_is_told_by_who_made_the_completion_when_any_may(void **state)
{
	struct cqe e = { .wc.id = 1 };
	int cpus[3];

	drop(NULL);
	atomic_store(&fired, 0);
	cpus[0] = cpus[1] = cpus[2] = sched_getcpu();
	assert_int_equal(rnic_open(cpus, 3, &up, NULL, &r), 0);
	assert_int_equal(cq_create(r, &r->engines[0], 4, on_fired, &arg, &owner, &cq), 0);
	assert_int_equal(cq_roam(cq), 0);
	engine_lock(&r->engines[1]);
	assert_int_equal(engine_start(&r->engines[1]), 0);
	engine_unlock(&r->engines[1]);
	for (int i = 0; i < 3; i++) {
		cq_attach(cq, &r->engines[i]);
		assert_int_equal(cq_arm(cq, FLUE_NOTIFY_NEXT), 0);
		assert_true(cq_push_by(cq, &r->engines[i], &e, false));
		assert_int_equal(count_after(&fired, 5000), 1);
		/* The last one has no thread: its own engine helps. */
		assert_int_equal(atomic_load(&teller), i % 2);
		for (int wait = 0; wait < 5000 && cq_has_news(cq); wait++)
			usleep(1000);
		assert_false(cq_has_news(cq));
		atomic_store(&fired, 0);
	}
}

static void cq_solicited_notice_ignores_other_completions(void **state)
{
	assert_int_equal(cq_arm(cq, FLUE_NOTIFY_SOLICITED), 0);
	assert_true(push(1, false));
	assert_int_equal(stays(&fired), 0);
	assert_true(push(2, true));
	assert_int_equal(count_after(&fired, 2000), 1);
}

static void cq_next_is_not_weakened_by_solicited(void **state)
{
	assert_int_equal(cq_arm(cq, FLUE_NOTIFY_NEXT), 0);
	assert_int_equal(cq_arm(cq, FLUE_NOTIFY_SOLICITED), 0);
	assert_true(push(1, false));
	assert_int_equal(count_after(&fired, 2000), 1);
}

static void cq_solicited_is_upgraded_by_next(void **state)
{
	assert_int_equal(cq_arm(cq, FLUE_NOTIFY_SOLICITED), 0);
	assert_int_equal(cq_arm(cq, FLUE_NOTIFY_NEXT), 0);
	assert_true(push(1, false));
	assert_int_equal(count_after(&fired, 2000), 1);
}

static void cq_without_arming_tells_nobody(void **state)
{
	assert_int_equal(cq_arm(cq, FLUE_NOTIFY_NEXT), 0);
	assert_true(push(1, true));
	assert_int_equal(count_after(&fired, 2000), 1);
	assert_true(push(2, true));
	assert_int_equal(stays(&fired), 1);
}

static void *push_later(void *unused)
{
	usleep(20000);
	assert(push(5, false));
	return NULL;
}

static void cq_wait_wakes_when_a_completion_comes(void **state)
{
	uint64_t start = clock_now();
	pthread_t thread;

	assert_int_equal(cq_wait(cq, 30), -ETIMEDOUT);
	assert_true(clock_now() - start >= 30 * NSEC_PER_MSEC);
	assert_int_equal(cq_wait(cq, 0), -ETIMEDOUT);
	assert_int_equal(pthread_create(&thread, NULL, push_later, NULL), 0);
	assert_int_equal(cq_wait(cq, -1), 0);
	assert_int_equal(cq_wait(cq, -1), 0); /* it does not consume */
	pthread_join(thread, NULL);
	expect_ids(5, 1, 1);
}

static void nothing(int sig)
{
}

static void *interrupt(void *thread)
{
	usleep(20000);
	pthread_kill(*(pthread_t *)thread, SIGUSR1);
	return NULL;
}

static void cq_wait_says_eintr_when_a_signal_came(void **state)
{
	struct sigaction sa = { .sa_handler = nothing }, old;
	pthread_t me = pthread_self(), thread;

	sigaction(SIGUSR1, &sa, &old);
	assert_int_equal(pthread_create(&thread, NULL, interrupt, &me), 0);
	assert_int_equal(cq_wait(cq, 5000), -EINTR);
	pthread_join(thread, NULL);
	sigaction(SIGUSR1, &old, NULL);
}

/* Queue pairs of several engines complete into one CQ. */
enum { PUSHERS = 3, EACH = 20000 };

static void *keep_pushing(void *from)
{
	for (uint32_t i = 0; i < EACH;) {
		struct cqe e = { .wc = { .id = (uintptr_t)from << 32 | i } };

		/* Room is left by the test, so that nothing overflows. */
		if (atomic_load(&cq->count) > 1000)
			sched_yield();
		else if (cq_push(cq, &e, false))
			i++;
	}
	return NULL;
}

static void cq_keeps_each_producers_order(void **state)
{
	uint32_t next[PUSHERS] = { 0 };
	pthread_t thread[PUSHERS];
	struct flue_wc wc[16];
	int total = 0, n;

	assert_int_equal(cq_resize(cq, 1100), 0);
	for (uintptr_t i = 0; i < PUSHERS; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, keep_pushing, (void *)i), 0);
	while (total < PUSHERS * EACH) {
		n = cq_poll(cq, wc, 16);
		assert_true(n >= 0);
		for (int i = 0; i < n; i++)
			assert_int_equal((uint32_t)wc[i].id, next[wc[i].id >> 32]++);
		total += n;
	}
	for (int i = 0; i < PUSHERS; i++)
		pthread_join(thread[i], NULL);
	assert_false(cq_has_news(cq));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make, drop)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(cq_gives_completions_in_order_over_many_rounds),
		TEST(cq_poll_takes_no_more_than_asked),
		TEST(cq_keeps_what_fitted_and_reports_the_overflow_behind_it),
		TEST(cq_tells_of_an_overflow_once),
		TEST(cq_resize_keeps_order_when_the_ring_had_wrapped),
		TEST(cq_resize_refuses_to_lose_completions),
		TEST(cq_purge_removes_one_queue_pairs_completions_only),
		TEST(cq_frees_slots_as_completions_are_taken),
		TEST(cq_gives_an_srq_back_what_it_removes_or_loses),
		TEST(cq_settles_slots_without_a_completion),
		TEST(cq_writes_completions_as_far_apart_as_its_caller_has_them),
		TEST(cq_notice_comes_once_on_the_engines_thread),
		TEST(cq_notice_is_told_by_who_made_the_completion_when_any_may),
		TEST(cq_solicited_notice_ignores_other_completions),
		TEST(cq_next_is_not_weakened_by_solicited),
		TEST(cq_solicited_is_upgraded_by_next),
		TEST(cq_without_arming_tells_nobody),
		TEST(cq_wait_wakes_when_a_completion_comes),
		TEST(cq_wait_says_eintr_when_a_signal_came),
		TEST(cq_keeps_each_producers_order),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
