/* SPDX-License-Identifier: MIT */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <setjmp.h>
/* cmocka wants the above first */
#include <cmocka.h>

#include "base/util.h"
#include "channel/copy.h"

#define GUARD 128
#define MOST  (3 * COPY_LARGE + 200)

static uint8_t from[MOST + 2 * GUARD];
static uint8_t to[MOST + 2 * GUARD];

typedef void (*copy_fn)(void *to, const void *from, size_t n);

/* Exactly n octets, wherever both begin. */
static void check(copy_fn copy, size_t at, size_t source, size_t n)
{
	memset(to, 0xa5, sizeof(to));
	copy(to + GUARD + at, from + source, n);
	assert_memory_equal(to + GUARD + at, from + source, n);
	for (size_t i = 0; i < GUARD + at; i++)
		assert_int_equal(to[i], 0xa5);
	for (size_t i = GUARD + at + n; i < sizeof(to); i++)
		assert_int_equal(to[i], 0xa5);
}

static void copies_exactly(copy_fn copy)
{
	static const size_t sizes[] = { 0,
					1,
					15,
					16,
					63,
					64,
					65,
					127,
					128,
					129,
					COPY_LARGE - 1,
					COPY_LARGE,
					COPY_LARGE + 1,
					2 * COPY_LARGE + 77,
					MOST - 100 };

	for (size_t i = 0; i < sizeof(from); i++)
		from[i] = (uint8_t)(i * 31 + i / 251);
	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++)
		for (size_t at = 0; at < 66; at += 5)
			for (size_t source = 0; source < 20; source += 3)
				check(copy, at, source, sizes[i]);
}

static void test_from_peer(void **state)
{
	copies_exactly(copy_from_peer);
}

/* Often enough that both ways have been tried. */
static void test_to_peer(void **state)
{
	copies_exactly(copy_to_peer);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_from_peer),
		cmocka_unit_test(test_to_peer),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
