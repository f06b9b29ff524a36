/* SPDX-License-Identifier: MIT */
/* Rings of outstanding Reads: they grow with what is in them (RD-2). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>

#include "rnic/qp.h"
#include "rnic/qp_priv.h"

#define LIMIT 16

static struct qp q;

static int setup(void **state)
{
	(void)state;
	q = (struct qp) { .irq_head = UINT32_MAX - 4, .irq_tail = UINT32_MAX - 4 };
	q.orq_head = UINT32_MAX - 2; /* numbers wrap */
	return qp_limit_reads(&q, LIMIT, LIMIT);
}

static int teardown(void **state)
{
	(void)state;
	free(q.irq);
	free(q.orq);
	return 0;
}

/* An idle connection has one of each. */
static void rings_begin_small(void **state)
{
	assert_int_equal(q.irq_mask, 0);
	assert_int_equal(q.orq_mask, 0);
	assert_true(qp_irq_room(&q));
	assert_true(qp_orq_room(&q, q.orq_head));
	assert_int_equal(q.irq_mask, 0);
	assert_int_equal(q.orq_mask, 0);
}

static void rings_keep_what_is_in_them_when_they_grow(void **state)
{
	uint32_t in = 0, out = 0;

	for (uint32_t most = 1; most <= LIMIT; most++) {
		while (in - out < most) {
			assert_true(qp_irq_room(&q));
			qp_irq(&q, q.irq_tail++)->number = in;
			assert_true(qp_orq_room(&q, q.orq_head + in - out));
			qp_orq(&q, q.orq_head + in - out)->number = in;
			in++;
		}
		for (uint32_t i = 0; i < most; i++) {
			assert_int_equal(qp_irq(&q, q.irq_head + i)->number, out + i);
			assert_int_equal(qp_orq(&q, q.orq_head + i)->number, out + i);
		}
		q.irq_head++;
		q.orq_head++;
		out++;
	}
	assert_int_equal(q.irq_mask + 1, LIMIT);
	assert_int_equal(q.orq_mask + 1, LIMIT);
}

/* Another limit moves nothing. */
static void rings_keep_what_is_in_them_when_the_limit_changes(void **state)
{
	assert_true(qp_irq_room(&q));
	qp_irq(&q, q.irq_tail++)->number = 7;
	assert_int_equal(qp_limit_reads(&q, 2, 0), 0);
	assert_int_equal(q.ird, 2);
	assert_int_equal(q.ord, 0);
	assert_true(qp_irq_room(&q));
	qp_irq(&q, q.irq_tail++)->number = 8;
	assert_int_equal(qp_irq(&q, q.irq_head)->number, 7);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(rings_begin_small, setup, teardown),
		cmocka_unit_test_setup_teardown(rings_keep_what_is_in_them_when_they_grow, setup,
						teardown),
		cmocka_unit_test_setup_teardown(rings_keep_what_is_in_them_when_the_limit_changes,
						setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
