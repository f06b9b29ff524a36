/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "base/crc32c.h"

typedef uint32_t crc_fn(uint32_t crc, const void *buf, size_t len);
static crc_fn *const functions[] = { crc32c, crc32c_table };
#define FOR_EACH_FUNCTION(f) for (int f = 0; f < 2; f++)

/* One bit at a time, straight from the definition. */
static uint32_t slow(uint32_t crc, const uint8_t *p, size_t len)
{
	crc = ~crc;
	while (len--) {
		crc ^= *p++;
		for (int i = 0; i < 8; i++)
			crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
	}
	return ~crc;
}

static void fill(uint8_t *buf, size_t len)
{
	uint32_t x = 1;

	for (size_t i = 0; i < len; i++) {
		x = x * 1103515245 + 12345;
		buf[i] = (uint8_t)(x >> 16);
	}
}

static void crc32c_gives_the_check_value(void **st)
{
	FOR_EACH_FUNCTION(f) {
		assert_int_equal(functions[f](0, "123456789", 9), 0xe3069283);
	}
}

/* RFC 3720 appendix B.4 lists these. */
static void crc32c_agrees_with_iscsi_examples(void **st)
{
	uint8_t zeros[32] = { 0 }, ones[32], up[32], down[32];

	memset(ones, 0xff, sizeof(ones));
	for (int i = 0; i < 32; i++) {
		up[i] = (uint8_t)i;
		down[i] = (uint8_t)(31 - i);
	}
	FOR_EACH_FUNCTION(f) {
		assert_int_equal(functions[f](0, zeros, 32), 0x8a9136aa);
		assert_int_equal(functions[f](0, ones, 32), 0x62a8ab43);
		assert_int_equal(functions[f](0, up, 32), 0x46dd794e);
		assert_int_equal(functions[f](0, down, 32), 0x113fdb5c);
	}
}

static void crc32c_changes_nothing_when_buffer_is_empty(void **st)
{
	FOR_EACH_FUNCTION(f) {
		assert_int_equal(functions[f](0, "", 0), 0);
		assert_int_equal(functions[f](0xe3069283, "", 0), 0xe3069283);
	}
}

static void crc32c_agrees_with_definition_for_all_lengths_and_alignments(void **st)
{
	static uint8_t buf[2100];

	fill(buf, sizeof(buf));
	for (size_t len = 0; len <= 2048; len += len < 300 ? 1 : 97) {
		for (size_t at = 0; at < 16; at += len < 300 ? 1 : 5) {
			uint32_t want = slow(0, buf + at, len);

			FOR_EACH_FUNCTION(f) {
				assert_int_equal(functions[f](0, buf + at, len), want);
			}
		}
	}
}

static void crc32c_continues_when_buffer_comes_in_pieces(void **st)
{
	static uint8_t buf[1000];
	uint32_t want;

	fill(buf, sizeof(buf));
	want = slow(0, buf, sizeof(buf));
	FOR_EACH_FUNCTION(f) {
		for (size_t cut = 0; cut <= sizeof(buf); cut++) {
			uint32_t crc = functions[f](0, buf, cut);

			crc = functions[!f](crc, buf + cut, sizeof(buf) - cut);
			assert_int_equal(crc, want);
		}
	}
}

static void bytes_are_in_network_order(void **st)
{
	uint8_t buf[9];

	put_be16(buf + 1, 0x0102);
	assert_memory_equal(buf + 1, "\1\2", 2);
	assert_int_equal(get_be16(buf + 1), 0x0102);
	put_be32(buf + 1, 0xf1020304);
	assert_memory_equal(buf + 1, "\xf1\2\3\4", 4);
	assert_int_equal(get_be32(buf + 1), 0xf1020304);
	put_be64(buf + 1, 0xf102030405060708);
	assert_memory_equal(buf + 1, "\xf1\2\3\4\5\6\7\10", 8);
	assert_true(get_be64(buf + 1) == 0xf102030405060708);
	put_le32(buf + 1, 0xf1020304);
	assert_memory_equal(buf + 1, "\4\3\2\xf1", 4);
	assert_int_equal(get_le32(buf + 1), 0xf1020304);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(crc32c_gives_the_check_value),
		cmocka_unit_test(crc32c_agrees_with_iscsi_examples),
		cmocka_unit_test(crc32c_changes_nothing_when_buffer_is_empty),
		cmocka_unit_test(crc32c_agrees_with_definition_for_all_lengths_and_alignments),
		cmocka_unit_test(crc32c_continues_when_buffer_comes_in_pieces),
		cmocka_unit_test(bytes_are_in_network_order),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
