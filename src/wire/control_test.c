/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "wire/control.h"

static void control_is_laid_out_as_written_down(void **st)
{
	static const uint8_t wire[CONTROL_LEN] = { 2, 1, 0x12, 0x05, 0xfe, 0xdc, 0xba, 0x98 };
	struct control c = { 0 };
	uint8_t back[CONTROL_LEN];

	assert_int_equal(control_decode(&c, wire), WIRE_OK);
	assert_int_equal(c.kind, CONTROL_ERROR);
	assert_int_equal(c.code, CONTROL_ACCESS);
	assert_int_equal(c.detail, 0x1205);
	assert_int_equal(c.number, 0xfedcba98);
	control_encode(&c, back);
	assert_memory_equal(back, wire, sizeof(wire));
}

static void control_refuses_what_it_does_not_know(void **st)
{
	for (unsigned kind = 0; kind < 256; kind++) {
		for (unsigned code = 0; code < 256; code++) {
			uint8_t wire[CONTROL_LEN] = { (uint8_t)kind, (uint8_t)code };
			struct control c;
			bool good = kind < CONTROL_NKINDS && code == 0;

			if (kind == CONTROL_NOT_READY)
				good = code <= CONTROL_AGAIN;
			if (kind == CONTROL_ERROR)
				good = code >= 1 && code <= 3;
			assert_int_equal(control_decode(&c, wire),
					 good ? WIRE_OK : FAULT_RDMAP_OTHER);
		}
	}
}

static void control_times_are_those_of_infiniband(void **st)
{
	assert_int_equal(control_timer_us(0), 655360);
	assert_int_equal(control_timer_us(1), 10);
	assert_int_equal(control_timer_us(12), 640);
	assert_int_equal(control_timer_us(14), 1280);
	assert_int_equal(control_timer_us(31), 491520);
	assert_int_equal(control_timer_us(200), 655360);
	for (uint8_t code = 2; code <= CONTROL_TIMER_MAX; code++)
		assert_true(control_timer_us(code) > control_timer_us((uint8_t)(code - 1)));
}

static void control_tells_whose_fault_it_was(void **st)
{
	assert_int_equal(control_error_of(FAULT_DDP_STAG), CONTROL_ACCESS);
	assert_int_equal(control_error_of(FAULT_RDMAP_ACCESS), CONTROL_ACCESS);
	assert_int_equal(control_error_of(FAULT_DDP_TOO_LONG), CONTROL_REQUEST);
	assert_int_equal(control_error_of(FAULT_RDMAP_OPCODE), CONTROL_REQUEST);
	assert_int_equal(control_error_of(FAULT_DDP_CATASTROPHIC), CONTROL_OPERATION);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(control_is_laid_out_as_written_down),
		cmocka_unit_test(control_refuses_what_it_does_not_know),
		cmocka_unit_test(control_times_are_those_of_infiniband),
		cmocka_unit_test(control_tells_whose_fault_it_was),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
