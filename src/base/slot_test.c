/* SPDX-License-Identifier: MIT */
/* Slot tables: entries that stay where they are, names that say nothing about the index. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/slot.h"
#include "base/util.h"

static struct slot_table t;

static int make(void **state)
{
	return slot_init(&t, 24, UINT32_MAX);
}

static int drop(void **state)
{
	slot_fini(&t);
	return 0;
}

static void slot_names_are_a_permutation_of_24_bits(void **state)
{
	uint8_t *seen = calloc(SLOT_NAMES / 8, 1);

	assert_non_null(seen);
	for (uint32_t i = 0; i < SLOT_NAMES; i++) {
		uint32_t name = slot_name(&t, i);

		if (name >= SLOT_NAMES || seen[name / 8] & 1 << name % 8)
			fail_msg("index %u has the name %u, which is taken or too large", i, name);
		seen[name / 8] |= (uint8_t)(1 << name % 8);
		if (slot_index(&t, name) != i)
			fail_msg("name %u of index %u leads elsewhere", name, i);
	}
	free(seen);
}

/* A peer that knows some names must not find others beside them. */
static void slot_names_of_neighbours_are_far_apart(void **state)
{
	uint32_t near = 0, quarters[4] = { 0 };

	for (uint32_t i = 0; i < 4096; i++) {
		uint32_t a = slot_name(&t, i), b = slot_name(&t, i + 1);

		near += (a > b ? a - b : b - a) < SLOT_NAMES / 4096;
		quarters[a / (SLOT_NAMES / 4)]++;
	}
	/* By chance 2 are expected; a counter or a mere xor would make it thousands. */
	assert_in_range(near, 0, 40);
	for (unsigned i = 0; i < ARRAY_SIZE(quarters); i++)
		assert_in_range(quarters[i], 512, 1536);
}

static void slot_names_differ_between_tables(void **state)
{
	struct slot_table other;
	uint32_t same = 0;

	assert_int_equal(slot_init(&other, 8, 16), 0);
	for (uint32_t i = 0; i < 256; i++)
		same += slot_name(&t, i) == slot_name(&other, i);
	assert_in_range(same, 0, 2);
	slot_fini(&other);
}

static void slot_entries_stay_in_place_when_the_table_grows(void **state)
{
	enum { N = 5 * SLOT_CHUNK + 7 };
	void **at = calloc(N, sizeof(*at));

	assert_non_null(at);
	for (uint32_t i = 0; i < N; i++) {
		int index = slot_alloc(&t);

		assert_int_equal(index, i); /* dense, so that memory follows the number in use */
		at[i] = slot_at(&t, i);
		assert_non_null(at[i]);
		assert_memory_equal(at[i], ((char[24]) { 0 }), 24);
		memset(at[i], 0xff, 24);
	}
	for (uint32_t i = 0; i < N; i++)
		assert_ptr_equal(slot_at(&t, i), at[i]);
	free(at);
}

static void slot_at_knows_what_was_never_made(void **state)
{
	assert_null(slot_at(&t, 0));
	assert_int_equal(slot_alloc(&t), 0);
	assert_non_null(slot_at(&t, SLOT_CHUNK - 1));
	assert_null(slot_at(&t, SLOT_CHUNK));
	assert_null(slot_at(&t, SLOT_CHUNK * SLOT_CHUNKS));
	assert_null(slot_at(&t, UINT32_MAX));
}

static void slot_free_keeps_the_content_for_the_next_user(void **state)
{
	int index = slot_alloc(&t);

	strcpy(slot_at(&t, (uint32_t)index), "generation 7");
	slot_free(&t, (uint32_t)index);
	assert_string_equal(slot_at(&t, (uint32_t)index), "generation 7");
	assert_int_equal(slot_alloc(&t), index);
	assert_string_equal(slot_at(&t, (uint32_t)index), "generation 7");
}

static void slot_alloc_refuses_more_than_the_limit(void **state)
{
	struct slot_table small;

	/* Not a multiple of the chunk: the rest of the last chunk must not be given out. */
	assert_int_equal(slot_init(&small, 8, SLOT_CHUNK + 3), 0);
	for (uint32_t i = 0; i < SLOT_CHUNK + 3; i++)
		assert_true(slot_alloc(&small) >= 0);
	assert_int_equal(slot_alloc(&small), -ENOSPC);
	slot_free(&small, 5);
	assert_int_equal(slot_alloc(&small), 5);
	assert_int_equal(slot_alloc(&small), -ENOSPC);
	slot_fini(&small);
}

static void slot_init_caps_the_limit_to_the_capacity(void **state)
{
	assert_int_equal(t.max, SLOT_CHUNK * SLOT_CHUNKS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(slot_names_are_a_permutation_of_24_bits, make,
						drop),
		cmocka_unit_test_setup_teardown(slot_names_of_neighbours_are_far_apart, make, drop),
		cmocka_unit_test_setup_teardown(slot_names_differ_between_tables, make, drop),
		cmocka_unit_test_setup_teardown(slot_entries_stay_in_place_when_the_table_grows,
						make, drop),
		cmocka_unit_test_setup_teardown(slot_at_knows_what_was_never_made, make, drop),
		cmocka_unit_test_setup_teardown(slot_free_keeps_the_content_for_the_next_user, make,
						drop),
		cmocka_unit_test(slot_alloc_refuses_more_than_the_limit),
		cmocka_unit_test_setup_teardown(slot_init_caps_the_limit_to_the_capacity, make,
						drop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
