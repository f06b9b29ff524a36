/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "wire/mpa.h"

#define BODY_MAX (2 + 65535 + 3)

static uint8_t body[BODY_MAX];

/* Length field, octets that tell their place, pad. Returns the length of the body. */
static size_t make_body(size_t ulpdu_len)
{
	put_be16(body, (uint16_t)ulpdu_len);
	for (size_t i = 0; i < ulpdu_len; i++)
		body[2 + i] = (uint8_t)(i * 7 + (i >> 8));
	memset(body + 2 + ulpdu_len, 0, mpa_pad(ulpdu_len));
	return 2 + ulpdu_len + mpa_pad(ulpdu_len);
}

/* An independent idea of the wire: octet by octet, asking at each whether a marker is due. */
static size_t slow_build(uint64_t pos, bool markers, const uint8_t *data, size_t len, uint8_t *out)
{
	size_t n = 0, start = 0;

	for (size_t i = 0; i < len + 4; i++) {
		if (markers && (pos + n) % 512 == 0) {
			uint16_t pointer = i ? (uint16_t)(n - start) : 0;

			memset(out + n, 0, 2);
			put_be16(out + n + 2, pointer);
			n += 4;
		}
		if (i == 0)
			start = n;
		if (i == len)
			put_le32(out + n, crc32c_table(0, out, n));
		if (i < len)
			out[n] = data[i];
		n++;
	}
	return n;
}

static void fpdu_pads_to_four_with_the_length_field(void **st)
{
	assert_int_equal(mpa_pad(0), 2);
	assert_int_equal(mpa_pad(1), 1);
	assert_int_equal(mpa_pad(2), 0);
	assert_int_equal(mpa_pad(3), 3);
	assert_int_equal(mpa_pad(46), 0); /* a Read Request */
}

static void mulpdu_follows_the_rfcs_formula(void **st)
{
	assert_int_equal(mpa_mulpdu(1460, false), 1454);
	assert_int_equal(mpa_mulpdu(1448, false), 1442);
	assert_int_equal(mpa_mulpdu(1447, false), 1447 - 9);
	assert_int_equal(mpa_mulpdu(1460, true), 1460 - 6 - 12);
	assert_int_equal(mpa_mulpdu(1024, true), 1024 - 6 - 8);
	assert_int_equal(mpa_mulpdu(0, false), MPA_MULPDU_MIN);
	assert_int_equal(mpa_mulpdu(100, true), MPA_MULPDU_MIN);
	assert_int_equal(mpa_mulpdu(133, false), MPA_MULPDU_MIN);
	assert_int_equal(mpa_mulpdu(136, false), 130);
	assert_int_equal(mpa_mulpdu(65535, false), MPA_MULPDU_MAX);
	assert_int_equal(mpa_mulpdu(65535, true), MPA_MULPDU_MAX);
	assert_int_equal(mpa_mulpdu((size_t)1 << 20, true), MPA_MULPDU_MAX);
	/* What it promises: such an FPDU fits the segment wherever the markers fall. */
	for (size_t emss = 150; emss < 3000; emss++) {
		for (uint64_t pos = 0; pos < 512; pos += 4) {
			struct mpa_stream s = { .markers = true, .pos = pos };

			assert_in_range(mpa_fpdu_size(&s, mpa_mulpdu(emss, true)), 0, emss);
		}
	}
}

/* RFC 5044 appendix A: two Sends of 24 zero octets, the first behind the first marker. */
static const uint8_t vector_a[] = {
	0x00, 0x00, 0x00, 0x00, 0x00, 0x2a, 0x41, 0x43, 0x00, 0x00, 0x00, 0x00, 0x00,
	0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
	0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
	0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x52, 0x23, 0x99, 0x83,
};
static const uint8_t vector_b[] = {
	0x00, 0x2a, 0x41, 0x43, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
	0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x14, 0x00, 0x00,
	0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
	0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x84, 0x92, 0x58, 0x98,
};

static void check_vector(const uint8_t *vector, uint64_t pos, uint8_t msn)
{
	struct mpa_stream tx = { .crc = true, .markers = true, .pos = pos }, rx = tx;
	uint8_t send[44] = { 0x00, 0x2a, 0x41, 0x43, [15] = msn };
	uint8_t out[52], *ulpdu;
	size_t size, ulpdu_len;

	assert_int_equal(mpa_fpdu_size(&tx, 42), 52);
	assert_int_equal(mpa_fpdu_build(&tx, send, sizeof(send), out), 52);
	assert_memory_equal(out, vector, 52);
	assert_true(tx.pos == pos + 52);
	assert_int_equal(mpa_fpdu_find(&rx, out, sizeof(out), &size, &ulpdu_len), 0);
	assert_int_equal(size, 52);
	assert_int_equal(ulpdu_len, 42);
	assert_int_equal(mpa_fpdu_open(&rx, out, size, ulpdu_len, &ulpdu), WIRE_OK);
	assert_memory_equal(ulpdu, send + 2, 42);
	assert_true(rx.pos == tx.pos);
}

static void fpdu_agrees_with_the_rfcs_examples(void **st)
{
	check_vector(vector_a, 0, 1);
	check_vector(vector_b, 512 - 20, 2);
	/* Stream positions have no end: 2^32 and more is nothing special. */
	check_vector(vector_a, 1ull << 33, 1);
}

static void fpdu_has_no_markers_when_not_asked_for(void **st)
{
	struct mpa_stream s = { .crc = true };
	uint8_t out[64];
	size_t len = make_body(3);

	assert_int_equal(mpa_fpdu_size(&s, 3), 12);
	assert_int_equal(mpa_fpdu_build(&s, body, len, out), 12);
	assert_memory_equal(out, "\0\3", 2);
	assert_memory_equal(out, body, len);
	assert_int_equal(get_le32(out + 8), crc32c_table(0, out, 8));
	assert_int_equal(s.pos, 12);
}

static void fpdu_has_zero_crc_when_crc_is_off(void **st)
{
	struct mpa_stream tx = { .markers = true }, rx = tx;
	size_t len = make_body(600), size, ulpdu_len;
	uint8_t out[700], *ulpdu;

	size = mpa_fpdu_build(&tx, body, len, out);
	assert_int_equal(get_le32(out + size - 4), 0);
	/* The value is not looked at either. */
	memset(out + size - 4, 0xee, 4);
	assert_int_equal(mpa_fpdu_find(&rx, out, size, &size, &ulpdu_len), 0);
	assert_int_equal(mpa_fpdu_open(&rx, out, size, ulpdu_len, &ulpdu), WIRE_OK);
	assert_memory_equal(ulpdu, body + 2, 600);
}

/* Every phase against the marker grid, lengths around every multiple of the gap. */
static void fpdu_survives_the_trip_at_every_phase(void **st)
{
	static const size_t lengths[] = { 0,    1,    2,    3,    42,    495,  496,  497,  498,
					  499,  500,  501,  502,  503,   504,  505,  506,  507,
					  508,  509,  510,  511,  512,   999,  1010, 1014, 1015,
					  1018, 1442, 1454, 4096, 16384, 64768 };
	static uint8_t want[MPA_FPDU_MAX];

	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
		size_t len = make_body(lengths[i]);
		uint64_t step = lengths[i] > 5000 ? 36 : 4;

		for (uint64_t phase = 0; phase < 1024; phase += step) {
			/* The second half of the phases is without markers. */
			struct mpa_stream tx = { .crc = true,
						 .markers = phase < 512,
						 .pos = phase };
			struct mpa_stream rx = tx;
			size_t size = mpa_fpdu_size(&tx, lengths[i]), found, ulpdu_len;
			uint8_t *out = malloc(size), *ulpdu;

			assert_int_equal(slow_build(phase, tx.markers, body, len, want), size);
			assert_int_equal(mpa_fpdu_build(&tx, body, len, out), size);
			assert_memory_equal(out, want, size);
			assert_int_equal(mpa_fpdu_find(&rx, out, size, &found, &ulpdu_len), 0);
			assert_int_equal(found, size);
			assert_int_equal(ulpdu_len, lengths[i]);
			assert_int_equal(mpa_fpdu_open(&rx, out, size, ulpdu_len, &ulpdu), WIRE_OK);
			assert_true(ulpdu >= out && ulpdu + ulpdu_len <= out + size);
			assert_memory_equal(ulpdu, body + 2, lengths[i]);
			assert_true(rx.pos == tx.pos && rx.pos == phase + size);
			free(out);
		}
	}
}

static void fpdu_of_the_largest_length_fits_the_limit(void **st)
{
	size_t len = make_body(65535);

	for (uint64_t phase = 0; phase < 512; phase += 4) {
		struct mpa_stream tx = { .crc = true, .markers = true, .pos = phase }, rx = tx;
		size_t size = mpa_fpdu_size(&tx, 65535);
		uint8_t *out, *ulpdu;

		assert_in_range(size, BODY_MAX + 4, MPA_FPDU_MAX);
		out = malloc(size);
		assert_int_equal(mpa_fpdu_build(&tx, body, len, out), size);
		assert_int_equal(mpa_fpdu_open(&rx, out, size, 65535, &ulpdu), WIRE_OK);
		assert_memory_equal(ulpdu, body + 2, 65535);
		free(out);
	}
}

static void fpdu_is_found_when_its_length_field_is_there(void **st)
{
	struct mpa_stream s = { .markers = true };
	size_t size = 0, ulpdu_len = 0;

	for (size_t avail = 0; avail < 6; avail++)
		assert_int_equal(mpa_fpdu_find(&s, vector_a, avail, &size, &ulpdu_len), -EAGAIN);
	assert_int_equal(mpa_fpdu_find(&s, vector_a, 6, &size, &ulpdu_len), 0);
	assert_int_equal(size, 52);
	assert_int_equal(ulpdu_len, 42);
	s.pos = 492;
	assert_int_equal(mpa_fpdu_find(&s, vector_b, 1, &size, &ulpdu_len), -EAGAIN);
	assert_int_equal(mpa_fpdu_find(&s, vector_b, 2, &size, &ulpdu_len), 0);
	assert_int_equal(size, 52);
	s.markers = false;
	assert_int_equal(mpa_fpdu_find(&s, vector_b, 2, &size, &ulpdu_len), 0);
	assert_int_equal(size, 48);
}

static void fpdu_is_refused_when_any_bit_flips(void **st)
{
	for (size_t bit = 0; bit < sizeof(vector_b) * 8; bit++) {
		struct mpa_stream s = { .crc = true, .markers = true, .pos = 492 };
		uint8_t buf[sizeof(vector_b)], *ulpdu = NULL;
		/* The two low bits of the pointer are reserved: only the CRC guards them. */
		bool pointer = bit / 8 == 22 || (bit / 8 == 23 && bit % 8 >= 2);

		memcpy(buf, vector_b, sizeof(buf));
		buf[bit / 8] ^= (uint8_t)(1 << bit % 8);
		assert_int_equal(mpa_fpdu_open(&s, buf, 52, 42, &ulpdu),
				 pointer ? FAULT_MPA_MARKER : FAULT_MPA_CRC);
		assert_true(s.pos == 492);
		assert_null(ulpdu);
	}
}

static void fpdu_markers_are_checked_when_crc_is_off(void **st)
{
	struct mpa_stream tx = { .markers = true, .pos = 8 }, rx;
	uint8_t out[1400], buf[1400], *ulpdu;
	size_t size = mpa_fpdu_build(&tx, body, make_body(1300), out);

	/* Markers stand at 504 and 1016 of this FPDU. */
	for (size_t at = 504; at < size; at += 512) {
		rx = (struct mpa_stream) { .markers = true, .pos = 8 };
		memcpy(buf, out, size);
		assert_int_equal(get_be32(buf + at), at);
		buf[at + 3] ^= 4;
		assert_int_equal(mpa_fpdu_open(&rx, buf, size, 1300, &ulpdu), FAULT_MPA_MARKER);
		/* The reserved half and the two low bits do not count. */
		memcpy(buf, out, size);
		buf[at] = buf[at + 1] = 0xff;
		buf[at + 3] |= 3;
		assert_int_equal(mpa_fpdu_open(&rx, buf, size, 1300, &ulpdu), WIRE_OK);
		assert_memory_equal(ulpdu, body + 2, 1300);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(fpdu_pads_to_four_with_the_length_field),
		cmocka_unit_test(mulpdu_follows_the_rfcs_formula),
		cmocka_unit_test(fpdu_agrees_with_the_rfcs_examples),
		cmocka_unit_test(fpdu_has_no_markers_when_not_asked_for),
		cmocka_unit_test(fpdu_has_zero_crc_when_crc_is_off),
		cmocka_unit_test(fpdu_survives_the_trip_at_every_phase),
		cmocka_unit_test(fpdu_of_the_largest_length_fits_the_limit),
		cmocka_unit_test(fpdu_is_found_when_its_length_field_is_there),
		cmocka_unit_test(fpdu_is_refused_when_any_bit_flips),
		cmocka_unit_test(fpdu_markers_are_checked_when_crc_is_off),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
