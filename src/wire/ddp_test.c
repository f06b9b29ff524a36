/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "wire/ddp.h"
#include "wire/control.h"
#include "wire/rdmap.h"

static const struct ddp_params ietf = { .dv = 1, .rv = 1 };
static const struct ddp_params rdmac = { .dv = 0, .rv = 0 };

/* The octets of a ULPDU in a heap block of exactly that size, so that overreads are seen. */
static uint32_t decode(const struct ddp_params *p, const uint8_t *buf, size_t len,
		       struct ddp_segment *s)
{
	uint8_t *copy = malloc(len ? len : 1);
	uint32_t fault;

	memcpy(copy, buf, len);
	fault = ddp_decode(p, copy, len, len, s);
	free(copy);
	return fault;
}

/* A segment that ddp_decode() accepts, and its payload length. */
static struct ddp_segment good_segment(uint8_t opcode, size_t *payload_len)
{
	const struct rdmap_op_info *op = &rdmap_ops[opcode];
	struct ddp_segment s = { .opcode = opcode, .tagged = op->tagged, .last = true };

	if (op->tagged) {
		s.stag = 0x11223344;
		s.to = 0x8899aabbccddeeff;
	} else {
		s.inv_stag = 0x55667788;
		s.qn = op->qn;
		s.msn = 7;
	}
	*payload_len = op->fixed_len ? op->fixed_len : 24;
	return s;
}

/* Encode a segment, add payload, decode. */
static uint32_t through(const struct ddp_params *p, const struct ddp_segment *in,
			size_t payload_len, struct ddp_segment *out)
{
	uint8_t buf[256] = { 0 };
	size_t len = ddp_encode(p, in, buf) + payload_len;

	assert_in_range(len, 0, sizeof(buf));
	return decode(p, buf, len, out);
}

static void ddp_writes_the_control_octets_of_each_opcode(void **st)
{
	static const struct {
		uint8_t last[2], more[2];
		size_t hdr_len;
	} want[] = {
		[RDMAP_WRITE] = { { 0xc1, 0x40 }, { 0x81, 0x40 }, 14 },
		[RDMAP_READ_REQUEST] = { { 0x41, 0x41 }, { 0x01, 0x41 }, 18 },
		[RDMAP_READ_RESPONSE] = { { 0xc1, 0x42 }, { 0x81, 0x42 }, 14 },
		[RDMAP_SEND] = { { 0x41, 0x43 }, { 0x01, 0x43 }, 18 },
		[RDMAP_SEND_INV] = { { 0x41, 0x44 }, { 0x01, 0x44 }, 18 },
		[RDMAP_SEND_SE] = { { 0x41, 0x45 }, { 0x01, 0x45 }, 18 },
		[RDMAP_SEND_SE_INV] = { { 0x41, 0x46 }, { 0x01, 0x46 }, 18 },
		[RDMAP_TERMINATE] = { { 0x41, 0x47 }, { 0x01, 0x47 }, 18 },
		[RDMAP_IMMEDIATE] = { { 0x41, 0x48 }, { 0x01, 0x48 }, 18 },
		[RDMAP_IMMEDIATE_SE] = { { 0x41, 0x49 }, { 0x01, 0x49 }, 18 },
		[RDMAP_ATOMIC_REQUEST] = { { 0x41, 0x4a }, { 0x01, 0x4a }, 18 },
		[RDMAP_ATOMIC_RESPONSE] = { { 0x41, 0x4b }, { 0x01, 0x4b }, 18 },
	};

	for (uint8_t op = 0; op < sizeof(want) / sizeof(want[0]); op++) {
		size_t payload;
		struct ddp_segment s = good_segment(op, &payload);
		uint8_t buf[DDP_HDR_MAX];

		assert_int_equal(ddp_encode(&ietf, &s, buf), want[op].hdr_len);
		assert_memory_equal(buf, want[op].last, 2);
		s.last = false;
		assert_int_equal(ddp_encode(&ietf, &s, buf), want[op].hdr_len);
		assert_memory_equal(buf, want[op].more, 2);
	}
}

static void ddp_writes_fields_in_their_places(void **st)
{
	static const uint8_t tagged[14] = { 0xc1, 0x40, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 };
	static const uint8_t untagged[18] = { 0x41, 0x44, 1, 2, 3, 4, 0,  0,  0,
					      0,    5,    6, 7, 8, 9, 10, 11, 12 };
	struct ddp_segment t = { .opcode = RDMAP_WRITE, .tagged = true, .last = true };
	struct ddp_segment u = { .opcode = RDMAP_SEND_INV, .last = true };
	uint8_t buf[DDP_HDR_MAX];

	t.stag = 0x01020304;
	t.to = 0x05060708090a0b0c;
	assert_int_equal(ddp_encode(&ietf, &t, buf), sizeof(tagged));
	assert_memory_equal(buf, tagged, sizeof(tagged));
	u.inv_stag = 0x01020304;
	u.msn = 0x05060708;
	u.mo = 0x090a0b0c;
	assert_int_equal(ddp_encode(&ietf, &u, buf), sizeof(untagged));
	assert_memory_equal(buf, untagged, sizeof(untagged));
}

static void assert_same(const struct ddp_segment *a, const struct ddp_segment *b)
{
	assert_int_equal(a->opcode, b->opcode);
	assert_int_equal(a->tagged, b->tagged);
	assert_int_equal(a->last, b->last);
	assert_int_equal(a->stag, b->stag);
	assert_true(a->to == b->to);
	assert_int_equal(a->inv_stag, b->inv_stag);
	assert_int_equal(a->qn, b->qn);
	assert_int_equal(a->msn, b->msn);
	assert_int_equal(a->mo, b->mo);
}

static void ddp_reads_back_what_it_wrote(void **st)
{
	static const struct ddp_params *const params[] = { &ietf, &rdmac };

	for (int i = 0; i < 2; i++) {
		for (uint8_t op = 0; op <= RDMAP_ATOMIC_RESPONSE; op++) {
			size_t payload;
			struct ddp_segment in = good_segment(op, &payload), out;

			assert_int_equal(through(params[i], &in, payload, &out), WIRE_OK);
			assert_same(&in, &out);
			assert_int_equal(out.hdr_len, in.tagged ? 14 : 18);
			assert_int_equal(out.payload_len, payload);
		}
	}
}

static void ddp_needs_no_payload_to_read_a_header(void **st)
{
	size_t payload;
	struct ddp_segment in = good_segment(RDMAP_SEND, &payload), out;
	uint8_t *buf = malloc(DDP_HDR_MAX);

	assert_int_equal(ddp_encode(&ietf, &in, buf), DDP_HDR_MAX);
	assert_int_equal(ddp_decode(&ietf, buf, DDP_HDR_MAX, 60000, &out), WIRE_OK);
	assert_int_equal(out.payload_len, 60000 - 18);
	free(buf);
}

static void ddp_refuses_other_versions(void **st)
{
	struct ddp_segment s, out;
	uint8_t buf[64] = { 0 };
	size_t payload;

	for (uint8_t v = 0; v < 4; v++) {
		struct ddp_params p = { .dv = v, .rv = 1 };

		if (v == 1)
			continue;
		s = good_segment(RDMAP_WRITE, &payload);
		ddp_encode(&p, &s, buf);
		assert_int_equal(decode(&ietf, buf, 20, &out), FAULT_DDP_TAGGED_VERSION);
		s = good_segment(RDMAP_SEND, &payload);
		ddp_encode(&p, &s, buf);
		assert_int_equal(decode(&ietf, buf, 20, &out), FAULT_DDP_UNTAGGED_VERSION);
		/* The rest is still read, for the Terminate. */
		assert_int_equal(out.hdr_len, 18);
		assert_int_equal(out.msn, 7);
		p.dv = 1;
		p.rv = v;
		ddp_encode(&p, &s, buf);
		assert_int_equal(decode(&ietf, buf, 20, &out), FAULT_RDMAP_VERSION);
	}
	/* The RDMAC style is as strict about its own numbers. */
	s = good_segment(RDMAP_SEND, &payload);
	ddp_encode(&ietf, &s, buf);
	assert_int_equal(decode(&rdmac, buf, 18, &out), FAULT_DDP_UNTAGGED_VERSION);
}

static void ddp_ignores_reserved_bits(void **st)
{
	size_t payload;
	struct ddp_segment s = good_segment(RDMAP_SEND, &payload), out;
	uint8_t buf[DDP_HDR_MAX];

	ddp_encode(&ietf, &s, buf);
	buf[0] |= 0x3c;
	buf[1] |= 0x30;
	assert_int_equal(decode(&ietf, buf, sizeof(buf), &out), WIRE_OK);
	assert_int_equal(out.opcode, RDMAP_SEND);
}

static void ddp_refuses_opcode_when_unassigned(void **st)
{
	for (uint8_t op = 12; op < RDMAP_NOPS; op++) {
		struct ddp_segment s = { .opcode = op, .last = true }, out;

		assert_true(!rdmap_ops[op].name || rdmap_ops[op].full);
		assert_int_equal(through(&ietf, &s, 8, &out), FAULT_RDMAP_OPCODE);
		s.tagged = true;
		assert_int_equal(through(&ietf, &s, 8, &out), FAULT_RDMAP_OPCODE);
	}
}

static void ddp_knows_messages_of_full_service_only_there(void **st)
{
	static const struct ddp_params full = { .dv = 1, .rv = 1, .full = true };
	struct ddp_segment s = { .opcode = RDMAP_SEND_IMM, .last = true, .inv_stag = 7 }, out;
	uint8_t buf[DDP_HDR_MAX];

	assert_int_equal(through(&full, &s, 100, &out), WIRE_OK);
	assert_int_equal(out.inv_stag, 7);
	assert_false(out.ack);
	s = (struct ddp_segment) { .opcode = RDMAP_CONTROL, .last = true, .qn = DDP_QN_CONTROL };
	assert_int_equal(through(&full, &s, CONTROL_LEN, &out), WIRE_OK);
	assert_int_equal(through(&full, &s, CONTROL_LEN + 1, &out), FAULT_DDP_CATASTROPHIC);
	s.qn = DDP_QN_ATOMIC;
	assert_int_equal(through(&full, &s, CONTROL_LEN, &out), FAULT_DDP_QN);
	s = (struct ddp_segment) { .opcode = 14, .last = true };
	assert_int_equal(through(&full, &s, 8, &out), FAULT_RDMAP_OPCODE);
	/* A reserved bit to everybody else, who neither sets it nor looks at it. */
	s = (struct ddp_segment) { .opcode = RDMAP_SEND, .last = true, .ack = true };
	ddp_encode(&full, &s, buf);
	assert_int_equal(buf[1], 0x63);
	assert_int_equal(decode(&full, buf, sizeof(buf), &out), WIRE_OK);
	assert_true(out.ack);
	assert_int_equal(decode(&ietf, buf, sizeof(buf), &out), WIRE_OK);
	assert_false(out.ack);
	ddp_encode(&ietf, &s, buf);
	assert_int_equal(buf[1], 0x43);
}

static void ddp_refuses_opcode_when_t_bit_is_wrong(void **st)
{
	for (uint8_t op = 0; op <= RDMAP_ATOMIC_RESPONSE; op++) {
		size_t payload;
		struct ddp_segment s = good_segment(op, &payload), out;

		s.tagged = !s.tagged;
		assert_int_equal(through(&ietf, &s, payload, &out), FAULT_RDMAP_OPCODE);
		assert_int_equal(out.opcode, op);
	}
}

static void ddp_refuses_queue_that_is_not_the_opcodes(void **st)
{
	static const uint32_t queues[] = { 0, 1, 2, 3, 4, 0x80000000, 0xffffffff };

	for (uint8_t op = 0; op <= RDMAP_ATOMIC_RESPONSE; op++) {
		if (rdmap_ops[op].tagged)
			continue;
		for (size_t i = 0; i < sizeof(queues) / sizeof(queues[0]); i++) {
			size_t payload;
			struct ddp_segment s = good_segment(op, &payload), out;

			s.qn = queues[i];
			assert_int_equal(through(&ietf, &s, payload, &out),
					 s.qn == rdmap_ops[op].qn ? WIRE_OK : FAULT_DDP_QN);
		}
	}
}

static void ddp_refuses_segment_when_shorter_than_its_header(void **st)
{
	static const uint8_t ops[] = { RDMAP_WRITE, RDMAP_SEND };

	for (int i = 0; i < 2; i++) {
		size_t payload, hdr_len;
		struct ddp_segment s = good_segment(ops[i], &payload), out;
		uint8_t buf[DDP_HDR_MAX];

		hdr_len = ddp_encode(&ietf, &s, buf);
		for (size_t len = 0; len < hdr_len; len++) {
			assert_int_equal(decode(&ietf, buf, len, &out), FAULT_DDP_CATASTROPHIC);
			assert_int_equal(out.hdr_len, 0);
			assert_int_equal(out.payload_len, 0);
			assert_int_equal(out.opcode, len >= 2 ? ops[i] : 0);
		}
		assert_int_equal(decode(&ietf, buf, hdr_len, &out), WIRE_OK);
		assert_int_equal(out.payload_len, 0);
	}
}

static void ddp_refuses_one_segment_message_when_it_is_not_one(void **st)
{
	for (uint8_t op = 0; op <= RDMAP_ATOMIC_RESPONSE; op++) {
		bool one = rdmap_ops[op].one_segment;
		size_t payload;
		struct ddp_segment s = good_segment(op, &payload), out;

		s.last = false;
		assert_int_equal(through(&ietf, &s, payload, &out),
				 one ? FAULT_DDP_CATASTROPHIC : WIRE_OK);
		s.last = true;
		s.mo = 4;
		if (!s.tagged)
			assert_int_equal(through(&ietf, &s, payload, &out),
					 one ? FAULT_DDP_MO : WIRE_OK);
	}
}

static void ddp_refuses_fixed_message_when_length_is_wrong(void **st)
{
	for (uint8_t op = 0; op <= RDMAP_ATOMIC_RESPONSE; op++) {
		uint8_t fixed = rdmap_ops[op].fixed_len;
		size_t payload;
		struct ddp_segment s = good_segment(op, &payload), out;

		for (size_t len = 0; fixed && len < 80; len++)
			assert_int_equal(through(&ietf, &s, len, &out),
					 len == fixed ? WIRE_OK : FAULT_DDP_CATASTROPHIC);
	}
}

static void ddp_takes_terminate_of_4_to_52_octets(void **st)
{
	for (size_t len = 0; len < 80; len++) {
		size_t payload;
		struct ddp_segment s = good_segment(RDMAP_TERMINATE, &payload), out;

		assert_int_equal(through(&ietf, &s, len, &out),
				 len >= 4 && len <= 52 ? WIRE_OK : FAULT_DDP_CATASTROPHIC);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ddp_writes_the_control_octets_of_each_opcode),
		cmocka_unit_test(ddp_writes_fields_in_their_places),
		cmocka_unit_test(ddp_reads_back_what_it_wrote),
		cmocka_unit_test(ddp_needs_no_payload_to_read_a_header),
		cmocka_unit_test(ddp_refuses_other_versions),
		cmocka_unit_test(ddp_ignores_reserved_bits),
		cmocka_unit_test(ddp_refuses_opcode_when_unassigned),
		cmocka_unit_test(ddp_knows_messages_of_full_service_only_there),
		cmocka_unit_test(ddp_refuses_opcode_when_t_bit_is_wrong),
		cmocka_unit_test(ddp_refuses_queue_that_is_not_the_opcodes),
		cmocka_unit_test(ddp_refuses_segment_when_shorter_than_its_header),
		cmocka_unit_test(ddp_refuses_one_segment_message_when_it_is_not_one),
		cmocka_unit_test(ddp_refuses_fixed_message_when_length_is_wrong),
		cmocka_unit_test(ddp_takes_terminate_of_4_to_52_octets),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
