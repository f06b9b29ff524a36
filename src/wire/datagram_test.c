/* SPDX-License-Identifier: MIT */
#include "wire/datagram.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

static const struct datagram sample = { .imm = true,
					.to = 0x123456,
					.from = 0xabcdef,
					.qkey = 0x80000001,
					.imm_data = { 1, 2, 3, 4 } };

/* Octet for octet: peers of other versions must see the same. */
static void datagram_is_laid_out_as_documented(void **state)
{
	static const uint8_t want[DATAGRAM_HEAD] = { 'F',  'L',  'D',  'G',  1, 1,    0,    0,
						     0,    0x12, 0x34, 0x56, 0, 0xab, 0xcd, 0xef,
						     0x80, 0,    0,    1,    1, 2,    3,    4 };
	uint8_t buf[DATAGRAM_HEAD];
	struct datagram d;

	datagram_encode(&sample, buf);
	assert_memory_equal(buf, want, sizeof(want));
	assert_true(datagram_decode(&d, buf, sizeof(buf)));
	assert_true(d.imm && !d.solicited);
	assert_int_equal(d.to, sample.to);
	assert_int_equal(d.from, sample.from);
	assert_int_equal(d.qkey, sample.qkey);
	assert_memory_equal(d.imm_data, sample.imm_data, 4);
}

static void datagram_of_another_form_is_none(void **state)
{
	uint8_t buf[DATAGRAM_HEAD + DATAGRAM_MAX + 1] = { 0 };
	struct datagram d = { .solicited = true, .to = DATAGRAM_ALL };

	datagram_encode(&d, buf);
	assert_true(datagram_decode(&d, buf, DATAGRAM_HEAD));
	assert_true(d.solicited && !d.imm);
	assert_true(datagram_decode(&d, buf, DATAGRAM_HEAD + DATAGRAM_MAX));
	assert_false(datagram_decode(&d, buf, DATAGRAM_HEAD - 1));
	assert_false(datagram_decode(&d, buf, 0));
	assert_false(datagram_decode(&d, buf, sizeof(buf)));
	/* One octet of the fixed ones is wrong: magic, version, flags, zeros, the high octets of the numbers. */
	for (int i = 0; i < 13; i++) {
		if (i > 8 && i < 12)
			continue;
		buf[i] ^= 0x80;
		assert_false(datagram_decode(&d, buf, DATAGRAM_HEAD));
		buf[i] ^= 0x80;
	}
}

static void grh_is_that_of_roce(void **state)
{
	static const uint8_t from[16] = { 10, 0, 0, 1, 5 }, to[16] = { 10, 0, 0, 2, 6 };
	static const uint8_t v4[20] = {
		0x45, 0, 0, 20 + 8 + 24 + 100, 0, 0, 0x40, 0, 64, 17, 0x26, 0x53, 10, 0, 0, 1, 10,
		0,    0, 2
	};
	uint8_t grh[DATAGRAM_GRH];

	datagram_grh(grh, false, from, to, 100);
	for (int i = 0; i < 20; i++)
		assert_int_equal(grh[i], 0);
	assert_memory_equal(grh + 20, v4, sizeof(v4));
	datagram_grh(grh, true, from, to, 100);
	assert_int_equal(grh[0], 0x60);
	assert_int_equal(grh[4] << 8 | grh[5], 8 + 24 + 100);
	assert_int_equal(grh[6], 17);
	assert_memory_equal(grh + 8, from, 16);
	assert_memory_equal(grh + 24, to, 16);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(datagram_is_laid_out_as_documented),
		cmocka_unit_test(datagram_of_another_form_is_none),
		cmocka_unit_test(grh_is_that_of_roce),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
