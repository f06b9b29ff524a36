/* SPDX-License-Identifier: MIT */
/* Work queues: order, limits, wrapping (RD-2). */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "rnic/wq.h"

static struct flue_sge sges[4] = { { 0x1000, 10, 1 }, { 0x2000, 20, 2 }, { 0x3000, 30, 3 } };

static int post(struct wq *q, uint64_t id, uint32_t n_sg)
{
	struct flue_recv_wr wr = { .id = id, .sg = sges, .n_sg = n_sg };

	return wq_post_recv(q, &wr);
}

/* What the consumer does. */
static uint64_t take(struct wq *q)
{
	uint64_t id = wq_at(q, atomic_load(&q->head))->id;

	wq_free(q, wq_retire(q));
	return id;
}

static void wq_keeps_posting_order_over_many_rounds(void **state)
{
	struct wq q;
	uint64_t in = 0, out = 0;

	assert_int_equal(wq_init_recv(&q, 5, 2), 0);
	for (int round = 0; round < 100; round++) {
		for (int i = 0; i < 1 + round % 5; i++)
			assert_int_equal(post(&q, in++, 2), 0);
		while (wq_fill(&q))
			assert_int_equal(take(&q), out++);
	}
	assert_int_equal(in, out);
	wq_fini(&q);
}

/* The ring has a power of two of slots; the depth is what was asked for. */
static void wq_refuses_more_than_its_depth(void **state)
{
	struct wq q;

	assert_int_equal(wq_init_recv(&q, 5, 1), 0);
	for (int i = 0; i < 5; i++)
		assert_int_equal(post(&q, (uint64_t)i, 1), 0);
	assert_int_equal(post(&q, 5, 1), -ENOMEM);
	assert_int_equal(wq_fill(&q), 5);
	assert_int_equal(take(&q), 0);
	assert_int_equal(post(&q, 6, 1), 0);
	assert_int_equal(post(&q, 7, 1), -ENOMEM);
	wq_fini(&q);
}

/* A request that is done holds its slot until the program has its completion. */
static void wq_is_full_until_completions_are_taken(void **state)
{
	struct wq q;

	assert_int_equal(wq_init_recv(&q, 3, 1), 0);
	for (int i = 0; i < 3; i++)
		assert_int_equal(post(&q, (uint64_t)i, 1), 0);
	for (uint32_t i = 1; i <= 3; i++)
		assert_int_equal(wq_retire(&q), i);
	assert_int_equal(wq_fill(&q), 0);
	assert_int_equal(post(&q, 3, 1), -ENOMEM);
	wq_free(&q, 2); /* the second one's: it vouches for the first */
	assert_int_equal(post(&q, 3, 1), 0);
	assert_int_equal(post(&q, 4, 1), 0);
	assert_int_equal(post(&q, 5, 1), -ENOMEM);
	wq_fini(&q);
}

static void wq_that_is_shared_counts_each_completion(void **state)
{
	struct wq q;

	assert_int_equal(wq_init_recv(&q, 3, 1), 0);
	q.shared = true;
	for (int i = 0; i < 3; i++)
		assert_int_equal(post(&q, (uint64_t)i, 1), 0);
	for (int i = 0; i < 3; i++)
		wq_retire(&q);
	wq_free(&q, 0);
	wq_free(&q, 0);
	assert_int_equal(post(&q, 3, 1), 0);
	assert_int_equal(post(&q, 4, 1), 0);
	assert_int_equal(post(&q, 5, 1), -ENOMEM);
	wq_fini(&q);
}

static void wq_works_across_the_wrap_of_its_counters(void **state)
{
	struct wq q;

	assert_int_equal(wq_init_recv(&q, 3, 1), 0);
	atomic_store(&q.head, UINT32_MAX - 1);
	atomic_store(&q.tail, UINT32_MAX - 1);
	atomic_store(&q.freed, UINT32_MAX - 1);
	for (uint64_t i = 0; i < 3; i++)
		assert_int_equal(post(&q, i, 1), 0);
	assert_int_equal(post(&q, 3, 1), -ENOMEM);
	assert_int_equal(wq_fill(&q), 3);
	for (uint64_t i = 0; i < 3; i++)
		assert_int_equal(take(&q), i);
	assert_int_equal(wq_fill(&q), 0);
	wq_fini(&q);
}

static void wq_of_depth_0_is_always_full(void **state)
{
	struct wq q;

	assert_int_equal(wq_init_recv(&q, 0, 1), 0);
	assert_int_equal(post(&q, 1, 1), -ENOMEM);
	wq_fini(&q);
	wq_fini(&q); /* twice is fine: a queue pair with an SRQ never made its own */
}

static void wq_copies_the_sges_and_sums_their_lengths(void **state)
{
	struct wq q;
	const struct wqe *w;

	assert_int_equal(wq_init_recv(&q, 2, 3), 0);
	assert_int_equal(post(&q, 42, 3), 0);
	w = wq_at(&q, 0);
	assert_int_equal(w->id, 42);
	assert_int_equal(w->n_sg, 3);
	assert_int_equal(w->total, 60);
	assert_int_equal(w->status, FLUE_WC_SUCCESS);
	assert_int_equal(w->state, WQE_POSTED);
	assert_ptr_not_equal(wqe_places(w), sges);
	assert_memory_equal(wqe_places(w), sges, 3 * sizeof(sges[0]));
	/* Neighbours do not overlap. */
	assert_int_equal(post(&q, 43, 3), 0);
	assert_memory_equal(wqe_places(w), sges, 3 * sizeof(sges[0]));
	wq_fini(&q);
}

static void wq_takes_a_receive_without_memory(void **state)
{
	struct flue_recv_wr wr = { .id = 9 };
	struct wq q;

	assert_int_equal(wq_init_recv(&q, 2, 1), 0);
	assert_int_equal(wq_post_recv(&q, &wr), 0);
	assert_int_equal(wq_at(&q, 0)->total, 0);
	wq_fini(&q);
}

static void wq_refuses_what_it_has_no_room_for(void **state)
{
	struct flue_recv_wr none = { .n_sg = 1 };
	struct flue_sge huge[2] = { { 0, UINT32_MAX, 1 }, { 0, 1, 1 } };
	struct flue_recv_wr too_long = { .sg = huge, .n_sg = 2 };
	struct wq q;
	uint32_t total;

	assert_int_equal(wq_init_recv(&q, 2, 2), 0);
	assert_int_equal(post(&q, 1, 3), -EINVAL);
	assert_int_equal(wq_post_recv(&q, &none), -EINVAL);
	assert_int_equal(wq_post_recv(&q, &too_long), -EINVAL);
	assert_int_equal(wq_fill(&q), 0);
	assert_int_equal(wq_total(huge, 1, &total), 0);
	assert_int_equal(total, UINT32_MAX);
	wq_fini(&q);
}

/* Inline data use the room of the SGEs; the larger of the two decides. */
static void wq_has_room_for_sges_or_inline_data(void **state)
{
	struct wq q;
	size_t plain;

	assert_int_equal(wq_init(&q, 2, 1, 0), 0);
	plain = q.stride;
	assert_true(plain >= sizeof(struct wqe) + sizeof(struct flue_sge));
	wq_fini(&q);
	assert_int_equal(wq_init(&q, 2, 1, 200), 0);
	assert_true(q.stride >= sizeof(struct wqe) + 200);
	assert_int_equal(q.stride % sizeof(uint64_t), 0);
	wq_fini(&q);
	assert_int_equal(wq_init(&q, 2, 1, 3), 0);
	assert_int_equal(q.stride, plain);
	wq_fini(&q);
}

/* A request without SGEs has room for what FAST_REG and BIND say, which ends where the slot does. */
static void wq_has_room_for_the_arguments_of_every_request(void **state)
{
	struct flue_reg reg;
	struct wqe *w;
	struct wq q;

	memset(&reg, 0x5a, sizeof(reg));
	assert_int_equal(wq_init(&q, 2, 0, 0), 0);
	w = wq_at(&q, 1);
	w->id = 7;
	w->rkey = 9;
	*wqe_reg(wq_at(&q, 0)) = reg;
	*wqe_reg(w) = reg;
	assert_int_equal(w->id, 7);
	assert_int_equal(w->rkey, 9);
	assert_int_equal(w->total, 0);
	assert_memory_equal(wqe_reg(w), &reg, sizeof(reg));
	wq_fini(&q);
}

/* What an idle connection costs: docs/performance.md. */
static void wq_slots_are_small(void **state)
{
	struct wq q;

	assert_int_equal(wq_init(&q, 16, 1, 0), 0);
	assert_in_range((q.mask + 1) * q.stride, 1, 16 * 72);
	wq_fini(&q);
	assert_int_equal(wq_init_recv(&q, 16, 1), 0);
	assert_in_range((q.mask + 1) * q.stride, 1, 16 * 40);
	wq_fini(&q);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(wq_keeps_posting_order_over_many_rounds),
		cmocka_unit_test(wq_refuses_more_than_its_depth),
		cmocka_unit_test(wq_is_full_until_completions_are_taken),
		cmocka_unit_test(wq_that_is_shared_counts_each_completion),
		cmocka_unit_test(wq_works_across_the_wrap_of_its_counters),
		cmocka_unit_test(wq_of_depth_0_is_always_full),
		cmocka_unit_test(wq_copies_the_sges_and_sums_their_lengths),
		cmocka_unit_test(wq_takes_a_receive_without_memory),
		cmocka_unit_test(wq_refuses_what_it_has_no_room_for),
		cmocka_unit_test(wq_has_room_for_sges_or_inline_data),
		cmocka_unit_test(wq_has_room_for_the_arguments_of_every_request),
		cmocka_unit_test(wq_slots_are_small),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
