/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "hist.h"

#define VALUES 20000

static struct hist h;
static uint64_t values[VALUES];

static uint64_t next_random(uint64_t *state)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return *state ^ *state >> 29;
}

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static void hist_buckets_touch_and_cover_everything(void **state)
{
	assert_int_equal(hist_bucket_low(0), 0);
	for (size_t i = 0; i + 1 < HIST_BUCKETS; i++)
		assert_int_equal(hist_bucket_high(i) + 1, hist_bucket_low(i + 1));
	assert_int_equal(hist_bucket_high(HIST_BUCKETS - 1), UINT64_MAX);
}

static void hist_puts_each_value_inside_its_bucket(void **state)
{
	uint64_t seed = 7;

	for (int i = 0; i < 5000; i++) {
		uint64_t value = next_random(&seed) >> (next_random(&seed) >> 58);
		size_t b = 0;

		hist_init(&h);
		hist_add(&h, value);
		while (h.bucket[b] == 0)
			b++;
		assert_in_range(value, hist_bucket_low(b), hist_bucket_high(b));
	}
}

/* Against the definition, on sorted values: rank ceil(n * p / 100), counted from 1. */
static void check_against_sort(void)
{
	static const double percents[] = { 0.001, 1, 10, 25, 50, 75, 90, 99, 99.9, 99.99, 100 };

	hist_init(&h);
	for (size_t i = 0; i < VALUES; i++)
		hist_add(&h, values[i]);
	qsort(values, VALUES, sizeof(values[0]), compare);
	assert_int_equal(h.min, values[0]);
	assert_int_equal(h.max, values[VALUES - 1]);
	for (size_t i = 0; i < sizeof(percents) / sizeof(percents[0]); i++) {
		double exact_rank = VALUES * percents[i] / 100;
		size_t rank = (size_t)exact_rank + (exact_rank > (double)(size_t)exact_rank);
		uint64_t exact = values[rank - 1], got = hist_percentile(&h, percents[i]);

		assert_true(got >= exact);
		assert_true(got - exact <= exact / HIST_SUB);
	}
}

static void hist_percentiles_match_exact_sort_when_values_are_uniform(void **state)
{
	uint64_t seed = 1;

	for (size_t i = 0; i < VALUES; i++)
		values[i] = next_random(&seed) % 1000000;
	check_against_sort();
}

static void hist_percentiles_match_exact_sort_when_values_have_a_long_tail(void **state)
{
	uint64_t seed = 2;

	for (size_t i = 0; i < VALUES; i++)
		values[i] = 5000 + (next_random(&seed) >> (24 + (next_random(&seed) >> 59)));
	check_against_sort();
}

static void hist_percentiles_are_exact_when_values_are_small(void **state)
{
	uint64_t seed = 3;

	hist_init(&h);
	for (size_t i = 0; i < VALUES; i++)
		values[i] = next_random(&seed) % (2 * HIST_SUB);
	check_against_sort();
	assert_int_equal(hist_percentile(&h, 50), values[VALUES / 2 - 1]);
}

static void hist_answers_zero_when_empty(void **state)
{
	struct hist_bar bars[4];

	hist_init(&h);
	assert_int_equal(hist_percentile(&h, 50), 0);
	assert_true(hist_mean(&h) == 0);
	assert_true(hist_stddev(&h) == 0);
	assert_int_equal(hist_bars(&h, 100, bars, 4), 0);
}

static void hist_mean_and_deviation_are_exact(void **state)
{
	hist_init(&h);
	hist_add(&h, 1000000);
	hist_add(&h, 3000000);
	assert_true(hist_mean(&h) == 2000000);
	assert_true(hist_stddev(&h) == 1000000);
}

static void hist_bars_count_every_value_once(void **state)
{
	struct hist_bar bars[16];
	uint64_t seed = 4;

	for (int round = 0; round < 200; round++) {
		uint64_t total = 0;
		size_t n = 1 + round % 16, used;

		hist_init(&h);
		for (int i = 0; i < 500; i++)
			hist_add(&h, 9000 + (next_random(&seed) >> (20 + round % 40)));
		used = hist_bars(&h, hist_percentile(&h, 99), bars, n);
		assert_in_range(used, 1, n);
		for (size_t i = 0; i < used; i++)
			total += bars[i].count;
		assert_int_equal(total, 500);
		assert_true(bars[0].low <= h.min);
		assert_true(bars[used - 1].high >= h.max);
	}
}

static void hist_bars_work_when_all_values_are_equal(void **state)
{
	struct hist_bar bars[8];

	hist_init(&h);
	for (int i = 0; i < 10; i++)
		hist_add(&h, 4242);
	assert_int_equal(hist_bars(&h, 4242, bars, 8), 1);
	assert_int_equal(bars[0].count, 10);
}

static void hist_takes_extreme_values(void **state)
{
	struct hist_bar bars[8];

	hist_init(&h);
	hist_add(&h, 0);
	hist_add(&h, UINT64_MAX);
	assert_int_equal(hist_percentile(&h, 50), 0);
	assert_int_equal(hist_percentile(&h, 100), UINT64_MAX);
	assert_int_equal(hist_bars(&h, 0, bars, 8), 1);
	assert_int_equal(bars[0].count, 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(hist_buckets_touch_and_cover_everything),
		cmocka_unit_test(hist_puts_each_value_inside_its_bucket),
		cmocka_unit_test(hist_percentiles_match_exact_sort_when_values_are_uniform),
		cmocka_unit_test(hist_percentiles_match_exact_sort_when_values_have_a_long_tail),
		cmocka_unit_test(hist_percentiles_are_exact_when_values_are_small),
		cmocka_unit_test(hist_answers_zero_when_empty),
		cmocka_unit_test(hist_mean_and_deviation_are_exact),
		cmocka_unit_test(hist_bars_count_every_value_once),
		cmocka_unit_test(hist_bars_work_when_all_values_are_equal),
		cmocka_unit_test(hist_takes_extreme_values),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
