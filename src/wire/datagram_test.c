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
	/* One octet of the fixed ones is wrong: magic, version, flags, the high octets of the numbers. */
	for (int i = 0; i < 13; i++) {
		if (i == 6 || i == 7 || (i > 8 && i < 12))
			continue;
		buf[i] ^= 0x80;
		assert_false(datagram_decode(&d, buf, DATAGRAM_HEAD));
		buf[i] ^= 0x80;
	}
}

/* Only what goes to a group has a number of its own. */
static void number_is_for_groups(void **state)
{
	struct datagram d = { .to = DATAGRAM_ALL, .number = 0x1234 };
	uint8_t buf[DATAGRAM_HEAD];

	datagram_encode(&d, buf);
	assert_int_equal(buf[6], 0x12);
	assert_int_equal(buf[7], 0x34);
	d.number = 0;
	assert_true(datagram_decode(&d, buf, sizeof(buf)));
	assert_int_equal(d.number, 0x1234);
	buf[9] ^= 1;
	assert_false(datagram_decode(&d, buf, sizeof(buf)));
}

static void grh_is_that_of_roce(void **state)
{
	struct datagram_way way = { .hops = 64,
				    .from = { 10, 0, 0, 1, 5 },
				    .to = { 10, 0, 0, 2, 6 } };
	static const uint8_t v4[20] = {
		0x45, 0, 0, 20 + 8 + 24 + 100, 0, 0, 0x40, 0, 64, 17, 0x26, 0x53, 10, 0, 0, 1, 10,
		0,    0, 2
	};
	uint8_t grh[DATAGRAM_GRH];

	datagram_grh(grh, &way, 100);
	for (int i = 0; i < 20; i++)
		assert_int_equal(grh[i], 0);
	assert_memory_equal(grh + 20, v4, sizeof(v4));
	way.tclass = 0xb8;
	way.hops = 3;
	datagram_grh(grh, &way, 100);
	assert_int_equal(grh[21], 0xb8);
	assert_int_equal(grh[28], 3);
	way.ipv6 = true;
	datagram_grh(grh, &way, 100);
	assert_int_equal(grh[0], 0x6b);
	assert_int_equal(grh[1], 0x80);
	assert_int_equal(grh[7], 3);
	assert_int_equal(grh[4] << 8 | grh[5], 8 + 24 + 100);
	assert_int_equal(grh[6], 17);
	assert_memory_equal(grh + 8, way.from, 16);
	assert_memory_equal(grh + 24, way.to, 16);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(datagram_is_laid_out_as_documented),
		cmocka_unit_test(datagram_of_another_form_is_none),
		cmocka_unit_test(number_is_for_groups),
		cmocka_unit_test(grh_is_that_of_roce),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
