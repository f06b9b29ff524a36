/* SPDX-License-Identifier: MIT */
/* Shared receive queues: order, many takers, the watermark. */
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#include "rnic/rnic.h"
#include "rnic/srq.h"

static struct rnic *r;
static struct rnic_pd pd;
static struct srq *s;
static atomic_int limits; /* SRQ_LIMIT told */
static int owner;

static void on_limit(void *ctx, void *srq_owner)
{
	assert(srq_owner == &owner);
	atomic_fetch_add(&limits, 1);
}

static const struct rnic_upcalls up = { .srq_limit = on_limit };

static int make(void **state)
{
	int cpu = sched_getcpu();

	atomic_store(&limits, 0);
	if (rnic_open(&cpu, 1, &up, NULL, &r))
		return -1;
	pd.rnic = r;
	return srq_create(&pd, 8, 2, &owner, &s);
}

static int drop(void **state)
{
	srq_destroy(s);
	rnic_close(r);
	return 0;
}

static void post(uint64_t first, unsigned n)
{
	struct flue_sge sge = { 0x1000, 16, 3 };
	const struct flue_recv_wr *bad;

	for (unsigned i = 0; i < n; i++) {
		struct flue_recv_wr wr = { .id = first + i, .sg = &sge, .n_sg = 1 };

		assert_int_equal(srq_post(s, &wr, &bad), 0);
	}
}

static struct wqe *room(void)
{
	struct wqe *w = calloc(1, sizeof(*w) + 2 * sizeof(struct flue_sge));

	assert_non_null(w);
	return w;
}

/* A queue pair takes one, and the program its completion. */
static bool take(struct wqe *w)
{
	bool got = srq_take(s, w);

	if (got)
		wq_free(&s->wq, 0);
	return got;
}

/* Events come from the engine's thread. */
static int limits_after(int ms)
{
	for (int i = 0; i < ms && !atomic_load(&limits); i++)
		usleep(1000);
	return atomic_load(&limits);
}

static void srq_gives_receives_in_posting_order(void **state)
{
	struct wqe *w = room();

	assert_false(take(w));
	for (uint64_t round = 0; round < 5; round++) {
		post(10 * round, 8);
		for (uint64_t i = 0; i < 8; i++) {
			assert_true(take(w));
			assert_int_equal(w->id, 10 * round + i);
			assert_int_equal(w->n_sg, 1);
			assert_int_equal(w->total, 16);
			assert_int_equal(wqe_places(w)[0].lkey, 3);
		}
		assert_false(srq_take(s, w));
	}
	free(w);
}

static int resize(uint32_t depth)
{
	struct flue_srq_values v = { .depth = depth };

	return srq_modify(s, &v, FLUE_SRQV_DEPTH);
}

static void srq_keeps_its_receives_when_it_is_resized(void **state)
{
	struct flue_srq_values v;
	struct wqe *w = room();
	uint64_t next = 0, posted = 0;

	/* From everywhere in the old ring to everywhere in the new one. */
	for (uint32_t round = 0; round < 40; round++) {
		uint32_t depth = round % 2 ? 7 : 19;

		assert_int_equal(resize(depth), 0);
		srq_query(s, &v);
		assert_int_equal(v.depth, depth);
		assert_int_equal(v.receives, posted - next);
		post(posted, depth - (uint32_t)(posted - next));
		posted = next + depth;
		while (posted - next > 5) {
			assert_true(take(w));
			assert_int_equal(w->id, next++);
			assert_int_equal(wqe_places(w)->addr, 0x1000);
		}
	}
	free(w);
}

/* What the program has not taken from its CQ counts. */
static void srq_does_not_shrink_below_what_is_used(void **state)
{
	struct flue_srq_values v = { .depth = 4, .limit = 5 };
	const struct flue_recv_wr *bad;
	struct flue_recv_wr wr = { .id = 9 };
	struct wqe *w = room();

	post(0, 5);
	assert_int_equal(resize(4), -EBUSY);
	assert_true(srq_take(s, w));
	assert_int_equal(resize(4), -EBUSY);
	wq_free(&s->wq, 0);
	assert_int_equal(srq_modify(s, &v, FLUE_SRQV_DEPTH | FLUE_SRQV_LIMIT), -EINVAL);
	assert_int_equal(resize(4), 0);
	assert_int_equal(srq_post(s, &wr, &bad), -ENOMEM);
	/* Nor below a limit that stays armed. */
	assert_int_equal(srq_arm(s, 3), 0);
	assert_int_equal(resize(2), -EINVAL);
	assert_true(take(w) && take(w));
	assert_int_equal(limits_after(1000), 1);
	assert_int_equal(resize(2), 0);
	srq_query(s, &v);
	assert_true(v.depth == 2 && v.limit == 0 && v.receives == 2);
	/* Both in one: told at once, if it is so already. */
	v = (struct flue_srq_values) { .depth = 6, .limit = 3 };
	atomic_store(&limits, 0);
	assert_int_equal(srq_modify(s, &v, FLUE_SRQV_DEPTH | FLUE_SRQV_LIMIT), 0);
	assert_int_equal(limits_after(1000), 1);
	free(w);
}

static void srq_post_says_which_request_was_not_taken(void **state)
{
	struct flue_recv_wr wr[3] = { { .next = &wr[1], .id = 1 }, { .next = &wr[2], .id = 2 } };
	const struct flue_recv_wr *bad = NULL;
	struct wqe *w = room();

	post(0, 7);
	assert_int_equal(srq_post(s, wr, &bad), -ENOMEM);
	assert_ptr_equal(bad, &wr[1]);
	for (int i = 0; i < 8; i++)
		assert_true(take(w));
	assert_int_equal(w->id, 1); /* the one before it was taken */
	wr[0].n_sg = 3;
	assert_int_equal(srq_post(s, wr, &bad), -EINVAL);
	assert_ptr_equal(bad, &wr[0]);
	free(w);
}

/* Taken, but the program does not know yet: the slot is not free. */
static void srq_is_full_until_completions_are_taken(void **state)
{
	struct flue_recv_wr wr = { .id = 9 };
	const struct flue_recv_wr *bad;
	struct wqe *w = room();

	post(0, 8);
	assert_true(srq_take(s, w));
	assert_true(srq_take(s, w));
	assert_int_equal(srq_post(s, &wr, &bad), -ENOMEM);
	wq_free(&s->wq, 0);
	assert_int_equal(srq_post(s, &wr, &bad), 0);
	assert_int_equal(srq_post(s, &wr, &bad), -ENOMEM);
	free(w);
}

static void srq_tells_once_when_it_falls_below_the_watermark(void **state)
{
	struct wqe *w = room();

	post(0, 4);
	assert_int_equal(srq_arm(s, 3), 0);
	assert_true(srq_take(s, w)); /* three are left: not below */
	assert_int_equal(limits_after(20), 0);
	assert_true(srq_take(s, w));
	assert_int_equal(limits_after(2000), 1);
	assert_true(srq_take(s, w));
	assert_true(srq_take(s, w));
	usleep(20000);
	assert_int_equal(atomic_load(&limits), 1);
	free(w);
}

static void srq_tells_at_once_when_it_is_below_already(void **state)
{
	post(0, 2);
	assert_int_equal(srq_arm(s, 3), 0);
	assert_int_equal(limits_after(2000), 1);
	assert_int_equal(s->limit, 0); /* one shot */
}

static void srq_arm_checks_and_disarms(void **state)
{
	struct wqe *w = room();

	post(0, 4);
	assert_int_equal(srq_arm(s, 9), -EINVAL);
	assert_int_equal(srq_arm(s, 8), 0); /* the depth is allowed */
	assert_int_equal(limits_after(2000), 1);
	assert_int_equal(srq_arm(s, 2), 0);
	assert_int_equal(srq_arm(s, 0), 0);
	while (srq_take(s, w))
		;
	usleep(20000);
	assert_int_equal(atomic_load(&limits), 1);
	free(w);
}

/* Queue pairs of several engines take; programs post; none is taken twice, none is lost. */
enum { TAKERS = 3, TOTAL = 3000 };
static _Atomic uint64_t id_sum;
static atomic_int taken;

static void *keep_taking(void *arg)
{
	struct wqe *w = room();

	while (atomic_load(&taken) < TOTAL)
		if (take(w)) {
			atomic_fetch_add(&id_sum, w->id);
			atomic_fetch_add(&taken, 1);
		}
	free(w);
	return NULL;
}

static void srq_gives_each_receive_to_one_taker(void **state)
{
	struct flue_recv_wr wr = { 0 };
	const struct flue_recv_wr *bad;
	pthread_t thread[TAKERS];

	for (int i = 0; i < TAKERS; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, keep_taking, NULL), 0);
	for (wr.id = 1; wr.id <= TOTAL;)
		if (srq_post(s, &wr, &bad) == 0)
			wr.id++;
	for (int i = 0; i < TAKERS; i++)
		pthread_join(thread[i], NULL);
	assert_int_equal(atomic_load(&taken), TOTAL);
	assert_int_equal(atomic_load(&id_sum), (uint64_t)TOTAL * (TOTAL + 1) / 2);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make, drop)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(srq_gives_receives_in_posting_order),
		TEST(srq_keeps_its_receives_when_it_is_resized),
		TEST(srq_does_not_shrink_below_what_is_used),
		TEST(srq_post_says_which_request_was_not_taken),
		TEST(srq_is_full_until_completions_are_taken),
		TEST(srq_tells_once_when_it_falls_below_the_watermark),
		TEST(srq_tells_at_once_when_it_is_below_already),
		TEST(srq_arm_checks_and_disarms),
		TEST(srq_gives_each_receive_to_one_taker),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
