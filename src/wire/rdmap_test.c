/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "wire/rdmap.h"

static void rdmap_knows_the_facts_of_each_opcode(void **st)
{
	/* RFC 5040 figure 3, RFC 7306 figure 2; letters: Tagged, One segment, Solicited, Inv,
	 * iMmediate in its field, Full service. */
	static const struct {
		const char *facts;
		uint8_t qn, fixed_len;
	} want[RDMAP_NOPS] = {
		{ "T", 0, 0 },
		{ "O", 1, 28 },
		{ "T", 0, 0 },
		{ "", 0, 0 },
		{ "I", 0, 0 },
		{ "S", 0, 0 },
		{ "SI", 0, 0 },
		{ "O", 2, 0 },
		{ "O", 0, 8 },
		{ "OS", 0, 8 },
		{ "O", 1, 52 },
		{ "O", 3, 12 },
		/* ours, of full service */
		{ "MF", 0, 0 },
		{ "SMF", 0, 0 },
		{ NULL, 0, 0 },
		{ "OF", 4, 8 },
	};

	for (int i = 0; i < RDMAP_NOPS; i++) {
		const struct rdmap_op_info *op = &rdmap_ops[i];

		if (!want[i].facts) {
			assert_null(op->name);
			continue;
		}
		assert_non_null(op->name);
		assert_int_equal(op->tagged, !!strchr(want[i].facts, 'T'));
		assert_int_equal(op->one_segment, !!strchr(want[i].facts, 'O'));
		assert_int_equal(op->solicited, !!strchr(want[i].facts, 'S'));
		assert_int_equal(op->invalidate, !!strchr(want[i].facts, 'I'));
		assert_int_equal(op->imm, !!strchr(want[i].facts, 'M'));
		assert_int_equal(op->full, !!strchr(want[i].facts, 'F'));
		assert_int_equal(op->qn, want[i].qn);
		assert_int_equal(op->fixed_len, want[i].fixed_len);
	}
}

/* Octets 1, 2, 3, ... show where each field lies and in which order. */
static void count_up(uint8_t *buf, size_t len)
{
	for (size_t i = 0; i < len; i++)
		buf[i] = (uint8_t)(i + 1);
}

static void rdmap_read_request_is_laid_out_as_in_the_rfc(void **st)
{
	uint8_t wire[RDMAP_READ_REQUEST_LEN], back[RDMAP_READ_REQUEST_LEN];
	struct rdmap_read_request r;

	count_up(wire, sizeof(wire));
	rdmap_read_request_decode(&r, wire);
	assert_int_equal(r.sink_stag, 0x01020304);
	assert_true(r.sink_to == 0x05060708090a0b0c);
	assert_int_equal(r.size, 0x0d0e0f10);
	assert_int_equal(r.src_stag, 0x11121314);
	assert_true(r.src_to == 0x15161718191a1b1c);
	rdmap_read_request_encode(&r, back);
	assert_memory_equal(wire, back, sizeof(wire));
}

static void rdmap_immediate_is_big_endian(void **st)
{
	uint8_t wire[RDMAP_IMMEDIATE_LEN];

	rdmap_immediate_encode(0x0102030405060708, wire);
	assert_memory_equal(wire, "\1\2\3\4\5\6\7\10", 8);
	assert_true(rdmap_immediate_decode(wire) == 0x0102030405060708);
}

static void rdmap_atomic_request_is_laid_out_as_in_the_rfc(void **st)
{
	uint8_t wire[RDMAP_ATOMIC_REQUEST_LEN], back[RDMAP_ATOMIC_REQUEST_LEN];
	struct rdmap_atomic_request r;

	count_up(wire, sizeof(wire));
	memset(wire, 0, 4);
	wire[3] = RDMAP_CMP_SWAP;
	assert_int_equal(rdmap_atomic_request_decode(&r, wire), WIRE_OK);
	assert_int_equal(r.op, RDMAP_CMP_SWAP);
	assert_int_equal(r.id, 0x05060708);
	assert_int_equal(r.stag, 0x090a0b0c);
	assert_true(r.to == 0x0d0e0f1011121314);
	assert_true(r.data == 0x15161718191a1b1c);
	assert_true(r.mask == 0x1d1e1f2021222324);
	assert_true(r.compare == 0x25262728292a2b2c);
	assert_true(r.compare_mask == 0x2d2e2f3031323334);
	rdmap_atomic_request_encode(&r, back);
	assert_memory_equal(wire, back, sizeof(wire));
}

static void rdmap_atomic_request_is_refused_when_operation_is_unknown(void **st)
{
	uint8_t wire[RDMAP_ATOMIC_REQUEST_LEN] = { 0 };
	struct rdmap_atomic_request r;

	for (uint8_t op = 0; op < 16; op++) {
		bool known = op == RDMAP_FETCH_ADD || op == RDMAP_CMP_SWAP;

		wire[3] = op;
		assert_int_equal(rdmap_atomic_request_decode(&r, wire),
				 known ? WIRE_OK : FAULT_RDMAP_OPCODE);
		if (!known)
			assert_true(rdmap_atomic_apply(&r, 42) == 42);
	}
	/* The 28 bits in front are reserved. */
	memset(wire, 0xff, 3);
	wire[3] = 0xf0 | RDMAP_CMP_SWAP;
	assert_int_equal(rdmap_atomic_request_decode(&r, wire), WIRE_OK);
	assert_int_equal(r.op, RDMAP_CMP_SWAP);
}

static uint64_t add(uint64_t old, uint64_t data, uint64_t mask)
{
	struct rdmap_atomic_request r = { .op = RDMAP_FETCH_ADD, .data = data, .mask = mask };

	return rdmap_atomic_apply(&r, old);
}

/* The RFC defines the masked sum bit by bit. */
static uint64_t add_bitwise(uint64_t old, uint64_t data, uint64_t mask)
{
	uint64_t sum = 0;
	unsigned carry = 0;

	for (int bit = 0; bit < 64; bit++) {
		unsigned s = carry + (old >> bit & 1) + (data >> bit & 1);

		sum |= (uint64_t)(s & 1) << bit;
		carry = mask >> bit & 1 ? 0 : s >> 1;
	}
	return sum;
}

static void rdmap_fetch_add_drops_carries_at_mask_bits(void **st)
{
	uint64_t x = 88172645463325252;

	assert_true(add(40, 2, 0) == 42);
	assert_true(add(UINT64_MAX, 1, 0) == 0);
	assert_true(add(UINT64_MAX, 1, 1ull << 63) == 0);
	/* Two counters of 32 bits, and eight of one octet. */
	assert_true(add(0x00000001ffffffff, 0x0000000100000001, 0x8000000080000000) ==
		    0x0000000200000000);
	assert_true(add(0xff01ff01ff01ff01, 0x0101010101010101, 0x8080808080808080) ==
		    0x0002000200020002);
	for (int i = 0; i < 2000; i++) {
		uint64_t v[3];

		for (int k = 0; k < 3; k++) {
			x ^= x << 13;
			x ^= x >> 7;
			x ^= x << 17;
			v[k] = x;
		}
		/* Sparse masks give long fields. */
		v[2] &= v[2] >> 9 & v[0] >> 5;
		assert_true(add(v[0], v[1], v[2]) == add_bitwise(v[0], v[1], v[2]));
	}
}

static void rdmap_cmp_swap_swaps_when_masked_values_agree(void **st)
{
	struct rdmap_atomic_request r = {
		.op = RDMAP_CMP_SWAP,
		.data = 0x1111222233334444,
		.mask = UINT64_MAX,
		.compare = 0xaaaabbbbccccdddd,
		.compare_mask = UINT64_MAX,
	};

	assert_true(rdmap_atomic_apply(&r, 0xaaaabbbbccccdddd) == 0x1111222233334444);
	assert_true(rdmap_atomic_apply(&r, 0xaaaabbbbccccdddc) == 0xaaaabbbbccccdddc);
	r.compare_mask = 0xffff000000000000;
	r.mask = 0x000000000000ffff;
	assert_true(rdmap_atomic_apply(&r, 0xaaaa000000000000) == 0xaaaa000000004444);
	assert_true(rdmap_atomic_apply(&r, 0xaaab000000000000) == 0xaaab000000000000);
	r.compare_mask = 0;
	assert_true(rdmap_atomic_apply(&r, 7) == 0x4444);
}

static void rdmap_atomic_response_is_laid_out_as_in_the_rfc(void **st)
{
	uint8_t wire[RDMAP_ATOMIC_RESPONSE_LEN], back[RDMAP_ATOMIC_RESPONSE_LEN];
	struct rdmap_atomic_response r;

	count_up(wire, sizeof(wire));
	rdmap_atomic_response_decode(&r, wire);
	assert_int_equal(r.id, 0x01020304);
	assert_true(r.value == 0x05060708090a0b0c);
	rdmap_atomic_response_encode(&r, back);
	assert_memory_equal(wire, back, sizeof(wire));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(rdmap_knows_the_facts_of_each_opcode),
		cmocka_unit_test(rdmap_read_request_is_laid_out_as_in_the_rfc),
		cmocka_unit_test(rdmap_immediate_is_big_endian),
		cmocka_unit_test(rdmap_atomic_request_is_laid_out_as_in_the_rfc),
		cmocka_unit_test(rdmap_atomic_request_is_refused_when_operation_is_unknown),
		cmocka_unit_test(rdmap_fetch_add_drops_carries_at_mask_bits),
		cmocka_unit_test(rdmap_cmp_swap_swaps_when_masked_values_agree),
		cmocka_unit_test(rdmap_atomic_response_is_laid_out_as_in_the_rfc),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
