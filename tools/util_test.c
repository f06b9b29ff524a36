/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "util.h"

static void util_parses_sizes_as_people_write_them(void **state)
{
	static const struct {
		const char *text;
		uint64_t value;
	} good[] = {
		{ "0", 0 },         { "64", 64 },      { "4k", 4096 },
		{ "4K", 4096 },     { "1M", 1 << 20 }, { "1MiB", 1 << 20 },
		{ "2MB", 2 << 20 }, { "64B", 64 },     { "3Gi", UINT64_C(3) << 30 },
	};
	uint64_t value;

	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		assert_true(util_parse_size(good[i].text, 0, UINT64_MAX, &value));
		assert_int_equal(value, good[i].value);
	}
}

static void util_refuses_what_is_no_size(void **state)
{
	static const char *const bad[] = { "",
					   "-1",
					   "+1",
					   " 1",
					   "1x",
					   "k",
					   "1 k",
					   "1kk",
					   "0x10",
					   "1.5M",
					   "99999999999999999999",
					   "99999999999T" };
	uint64_t value = 7;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_false(util_parse_size(bad[i], 0, UINT64_MAX, &value));
	assert_false(util_parse_size("9", 10, 20, &value));
	assert_false(util_parse_size("21", 10, 20, &value));
	assert_int_equal(value, 7);
}

static void util_parses_numbers_within_limits(void **state)
{
	uint64_t value;

	assert_true(util_parse_number("20", 10, 20, &value));
	assert_int_equal(value, 20);
	assert_false(util_parse_number("21", 10, 20, &value));
	assert_false(util_parse_number("1k", 0, 2000, &value));
	assert_false(util_parse_number("-5", 0, UINT64_MAX, &value));
	assert_false(util_parse_number("", 0, 5, &value));
}

static void util_parses_durations(void **state)
{
	double value;

	assert_true(util_parse_seconds("2", 0, 10, &value));
	assert_true(value == 2);
	assert_true(util_parse_seconds("500ms", 0, 10, &value));
	assert_true(value == 0.5);
	assert_true(util_parse_seconds(".5s", 0, 10, &value));
	assert_true(value == 0.5);
	assert_true(util_parse_seconds("1m", 0, 100, &value));
	assert_true(value == 60);
	assert_false(util_parse_seconds("11", 0, 10, &value));
	assert_false(util_parse_seconds("nan", 0, 10, &value));
	assert_false(util_parse_seconds("1h", 0, 1e9, &value));
	assert_false(util_parse_seconds("-1", -5, 10, &value));
}

static void util_writes_sizes_times_and_counts(void **state)
{
	char text[UTIL_TEXT_MAX];

	assert_string_equal(util_size_text(text, 0), "0 B");
	assert_string_equal(util_size_text(text, 1023), "1023 B");
	assert_string_equal(util_size_text(text, 1536), "1.5 KiB");
	assert_string_equal(util_size_text(text, 1 << 20), "1 MiB");
	assert_string_equal(util_time_text(text, 999), "999 ns");
	assert_string_equal(util_time_text(text, 12345), "12.3 µs");
	assert_string_equal(util_time_text(text, 2.5e9), "2.50 s");
	assert_string_equal(util_count_text(text, 7), "7");
	assert_string_equal(util_count_text(text, 1234567), "1,234,567");
	assert_string_equal(util_count_text(text, UINT64_MAX), "18,446,744,073,709,551,615");
}

static void util_resolves_and_writes_addresses(void **state)
{
	struct sockaddr_storage address;
	char text[UTIL_TEXT_MAX];
	socklen_t length;

	assert_true(util_resolve("127.0.0.1", "3583", &address, &length));
	assert_string_equal(util_address_text(text, &address), "127.0.0.1:3583");
	assert_true(util_resolve("::1", "1", &address, &length));
	assert_string_equal(util_address_text(text, &address), "[::1]:1");
	address.ss_family = AF_UNIX;
	assert_string_equal(util_address_text(text, &address), "unknown address");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(util_parses_sizes_as_people_write_them),
		cmocka_unit_test(util_refuses_what_is_no_size),
		cmocka_unit_test(util_parses_numbers_within_limits),
		cmocka_unit_test(util_parses_durations),
		cmocka_unit_test(util_writes_sizes_times_and_counts),
		cmocka_unit_test(util_resolves_and_writes_addresses),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
