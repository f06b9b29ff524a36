/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "wire/fault.h"

/* The codes of each (layer, type) in the RFC tables; the first number is how many. */
static const uint8_t prot[] = { 7, 0x00, 0x01, 0x02, 0x03, 0x04, 0x09, 0xff };
static const uint8_t oper[] = { 6, 0x05, 0x06, 0x07, 0x08, 0x09, 0xff };
static const uint8_t ddp_local[] = { 1, 0x00 };
static const uint8_t tagged[] = { 5, 0x00, 0x01, 0x02, 0x03, 0x04 };
static const uint8_t untagged[] = { 6, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06 };
static const uint8_t mpa[] = { 7, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07 };

static const uint8_t *const tables[16][16] = {
	[0] = { [1] = prot, [2] = oper },
	[1] = { [0] = ddp_local, [1] = tagged, [2] = untagged },
	[2] = { [0] = mpa },
};

static bool in_table(unsigned layer, unsigned type, unsigned code)
{
	const uint8_t *codes = tables[layer][type];

	if (layer == 0 && type == 0)
		return true;
	return codes && memchr(codes + 1, (int)code, codes[0]);
}

static void fault_is_legal_exactly_when_it_stands_in_the_rfc_tables(void **st)
{
	for (unsigned triple = 0; triple < 0x10000; triple++) {
		unsigned layer = triple >> 12, type = triple >> 8 & 0xf, code = triple & 0xff;
		uint32_t fault = WIRE_FAULT(layer, type, code);

		assert_int_equal(wire_fault_layer(fault), layer);
		assert_int_equal(wire_fault_type(fault), type);
		assert_int_equal(wire_fault_code(fault), code);
		assert_int_equal(wire_fault_is_legal(fault), in_table(layer, type, code));
	}
}

static void fault_is_not_legal_without_its_bit(void **st)
{
	assert_false(wire_fault_is_legal(WIRE_OK));
	assert_false(wire_fault_is_legal(FAULT_MPA_CRC & ~WIRE_FAULT_BIT));
}

static void fault_has_a_name_always(void **st)
{
	for (uint32_t fault = 0; fault < 2 * WIRE_FAULT_BIT; fault++) {
		assert_non_null(wire_fault_name(fault));
		assert_true(strlen(wire_fault_name(fault)) > 4);
	}
	assert_string_equal(wire_fault_name(WIRE_OK), "no fault");
	assert_string_equal(wire_fault_name(FAULT_MPA_CRC), "MPA: CRC check failed");
	assert_string_equal(wire_fault_name(FAULT_RDMAP_CATASTROPHIC),
			    wire_fault_name(WIRE_FAULT(0, 0, 0x77)));
	assert_string_equal(wire_fault_name(WIRE_FAULT(0, 1, 0x77)), "RDMAP: unknown error");
	assert_string_equal(wire_fault_name(WIRE_FAULT(1, 3, 0)), "DDP: unknown error");
	assert_string_equal(wire_fault_name(WIRE_FAULT(2, 0, 8)), "MPA: unknown error");
	assert_string_equal(wire_fault_name(WIRE_FAULT(3, 0, 0)), "unknown layer");
}

static void fault_names_differ_when_faults_do(void **st)
{
	const char *seen[64];
	size_t n = 0;

	for (uint32_t fault = WIRE_FAULT(0, 1, 0); fault < 2 * WIRE_FAULT_BIT; fault++) {
		if (!wire_fault_is_legal(fault))
			continue;
		for (size_t i = 0; i < n; i++)
			assert_string_not_equal(seen[i], wire_fault_name(fault));
		seen[n++] = wire_fault_name(fault);
	}
	assert_int_equal(n, 7 + 6 + 1 + 5 + 6 + 7);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(fault_is_legal_exactly_when_it_stands_in_the_rfc_tables),
		cmocka_unit_test(fault_is_not_legal_without_its_bit),
		cmocka_unit_test(fault_has_a_name_always),
		cmocka_unit_test(fault_names_differ_when_faults_do),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
