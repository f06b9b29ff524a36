/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "pattern.h"
#include "proto.h"

static struct proto_msg sample(uint32_t kind)
{
	struct proto_msg m = { .kind = kind };

	switch (kind) {
	case PROTO_HELLO:
		m.u.hello.flags = PROTO_HELLO_NO_CRC;
		m.u.hello.slots = 16;
		m.u.hello.slot_size = 1 << 20;
		m.u.hello.send_size = 4096;
		break;
	case PROTO_WELCOME:
		m.u.welcome = (struct proto_memory) { 0x7f0012345000, 1 << 24, 77 };
		break;
	case PROTO_REFUSAL: strcpy(m.u.refusal, "no room"); break;
	case PROTO_TEST:
		m.u.test.op = PROTO_WRITE;
		m.u.test.what = PROTO_BANDWIDTH;
		m.u.test.verify = true;
		m.u.test.window = 64;
		m.u.test.slots = 16;
		m.u.test.size = 65536;
		m.u.test.back = (struct proto_memory) { 4096, 4096, 0xdeadbeef };
		break;
	case PROTO_CHECK:
		m.u.check.first = UINT64_MAX;
		m.u.check.count = 16;
		break;
	case PROTO_REPORT:
		m.u.report.messages = 1;
		m.u.report.bytes = 2;
		m.u.report.bad = 3;
		break;
	case PROTO_CREDIT: m.u.credit = 99; break;
	}
	return m;
}

static void proto_decodes_what_it_encodes(void **state)
{
	for (uint32_t kind = PROTO_HELLO; kind < PROTO_NKINDS; kind++) {
		struct proto_msg in = sample(kind), out;
		uint8_t octets[PROTO_MAX];
		size_t length = proto_encode(&in, octets);

		assert_true(proto_decode(octets, length, &out));
		assert_memory_equal(&in, &out, sizeof(in));
	}
}

static void proto_has_the_layout_of_version_1(void **state)
{
	static const uint8_t credit[] = { 'F', 'L', 'U', 'E', 0, 1, 0, 8, 0, 0, 0, 0, 0, 0, 0, 99 };
	struct proto_msg m = sample(PROTO_CREDIT);
	uint8_t octets[PROTO_MAX];

	assert_int_equal(proto_encode(&m, octets), sizeof(credit));
	assert_memory_equal(octets, credit, sizeof(credit));
}

static void proto_refuses_every_other_length(void **state)
{
	for (uint32_t kind = PROTO_HELLO; kind < PROTO_NKINDS; kind++) {
		struct proto_msg in = sample(kind), out;
		uint8_t octets[PROTO_MAX + 1] = { 0 };
		size_t length = proto_encode(&in, octets);

		if (kind == PROTO_REFUSAL) /* free text */
			continue;
		for (size_t n = 0; n <= PROTO_MAX; n++)
			assert_int_equal(proto_decode(octets, n, &out), n == length);
	}
}

static void proto_refuses_other_magic_version_and_kind(void **state)
{
	struct proto_msg in = sample(PROTO_READY), out;
	uint8_t octets[PROTO_MAX];
	size_t length = proto_encode(&in, octets);

	for (size_t i = 0; i < length; i++) {
		octets[i] ^= 0x40;
		assert_false(proto_decode(octets, length, &out));
		octets[i] ^= 0x40;
	}
}

static void proto_refuses_impossible_fields(void **state)
{
	struct proto_msg bad[11], out;
	uint8_t octets[PROTO_MAX];
	size_t n = 0;

	bad[n] = sample(PROTO_HELLO), bad[n++].u.hello.flags = 4;
	bad[n] = sample(PROTO_HELLO), bad[n++].u.hello.slots = 0;
	bad[n] = sample(PROTO_HELLO), bad[n++].u.hello.slots = PROTO_SLOTS_MAX + 1;
	bad[n] = sample(PROTO_HELLO), bad[n++].u.hello.slot_size = PROTO_SLOT_MAX + 1;
	bad[n] = sample(PROTO_TEST), bad[n++].u.test.op = PROTO_NOPS;
	bad[n] = sample(PROTO_TEST), bad[n++].u.test.what = PROTO_NWHATS;
	bad[n] = sample(PROTO_TEST), bad[n++].u.test.window = 0;
	bad[n] = sample(PROTO_TEST), bad[n++].u.test.slots = 0;
	bad[n] = sample(PROTO_TEST), bad[n++].u.test.size = 0;
	bad[n] = sample(PROTO_TEST), bad[n++].u.test.back.addr = UINT64_MAX;
	bad[n] = sample(PROTO_CHECK), bad[n++].u.check.count = 0;
	for (size_t i = 0; i < n; i++)
		assert_false(proto_decode(octets, proto_encode(&bad[i], octets), &out));
}

static void proto_makes_text_of_the_peer_printable(void **state)
{
	struct proto_msg in = sample(PROTO_REFUSAL), out;
	uint8_t octets[PROTO_MAX];
	size_t length;

	strcpy(in.u.refusal, "a\033[2Jb\377");
	length = proto_encode(&in, octets);
	assert_true(proto_decode(octets, length, &out));
	assert_string_equal(out.u.refusal, "a?[2Jb?");
}

static void pattern_differs_between_messages_and_finds_any_change(void **state)
{
	uint8_t a[67], b[67];

	for (size_t length = 1; length <= sizeof(a); length++) {
		pattern_fill(a, length, 5);
		assert_true(pattern_check(a, length, 5));
		pattern_fill(b, length, 6);
		assert_memory_not_equal(a, b, length);
		for (size_t i = 0; i < length; i++) {
			a[i] ^= 1;
			assert_false(pattern_check(a, length, 5));
			a[i] ^= 1;
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(proto_decodes_what_it_encodes),
		cmocka_unit_test(proto_has_the_layout_of_version_1),
		cmocka_unit_test(proto_refuses_every_other_length),
		cmocka_unit_test(proto_refuses_other_magic_version_and_kind),
		cmocka_unit_test(proto_refuses_impossible_fields),
		cmocka_unit_test(proto_makes_text_of_the_peer_printable),
		cmocka_unit_test(pattern_differs_between_messages_and_finds_any_change),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
