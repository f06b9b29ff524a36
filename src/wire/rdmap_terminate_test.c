/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "wire/rdmap.h"

static const struct ddp_params ietf = { .dv = 1, .rv = 1 };

/* In a heap block of exactly that size, so that overreads are seen. */
static int decode(struct rdmap_terminate *t, const void *buf, size_t len)
{
	uint8_t *copy = malloc(len ? len : 1);
	int rc;

	memcpy(copy, buf, len);
	rc = rdmap_terminate_decode(t, copy, len);
	free(copy);
	return rc;
}

/* A received segment for a Terminate to speak of. */
struct received {
	uint8_t ulpdu[128];
	size_t len;
	struct ddp_segment seg;
};

static void receive(struct received *r, uint8_t opcode, size_t payload_len)
{
	const struct rdmap_op_info *op = &rdmap_ops[opcode];
	struct ddp_segment s = { .opcode = opcode, .tagged = op->tagged, .last = true };

	s.qn = op->qn;
	memset(r->ulpdu, 0x5a, sizeof(r->ulpdu));
	r->len = ddp_encode(&ietf, &s, r->ulpdu) + payload_len;
	assert_int_equal(ddp_decode(&ietf, r->ulpdu, r->len, r->len, &r->seg), WIRE_OK);
}

static struct rdmap_terminate terminate_for(uint32_t fault, const struct received *r)
{
	struct rdmap_terminate t;

	rdmap_terminate_for(&t, fault, r->ulpdu, r->len, r->len, &r->seg);
	return t;
}

static void terminate_brings_no_headers_when_error_is_local_or_mpas(void **st)
{
	static const uint32_t faults[] = { FAULT_RDMAP_CATASTROPHIC, FAULT_DDP_CATASTROPHIC,
					   FAULT_MPA_CRC, FAULT_MPA_IRD };
	struct received r;

	receive(&r, RDMAP_READ_REQUEST, RDMAP_READ_REQUEST_LEN);
	for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
		struct rdmap_terminate t = terminate_for(faults[i], &r);
		uint8_t buf[RDMAP_TERMINATE_MAX];

		assert_int_equal(t.fault, faults[i]);
		assert_int_equal(rdmap_terminate_encode(&t, buf), 4);
		assert_int_equal(buf[2], 0);
	}
}

static void terminate_brings_the_ddp_header_when_a_segment_is_to_blame(void **st)
{
	static const struct {
		uint8_t opcode;
		uint32_t fault;
		uint8_t hdr_len;
	} cases[] = {
		{ RDMAP_WRITE, FAULT_DDP_STAG, 14 },
		{ RDMAP_SEND, FAULT_DDP_TOO_LONG, 18 },
		{ RDMAP_SEND_INV, FAULT_RDMAP_PROT_NO_INVALIDATE, 18 },
		{ RDMAP_SEND_INV, FAULT_RDMAP_NO_INVALIDATE, 18 },
		{ RDMAP_WRITE, FAULT_RDMAP_ACCESS, 14 },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct received r;
		struct rdmap_terminate t;

		receive(&r, cases[i].opcode, 40);
		t = terminate_for(cases[i].fault, &r);
		assert_true(t.has_seg_len);
		assert_int_equal(t.seg_len, cases[i].hdr_len + 40);
		assert_int_equal(t.ddp_len, cases[i].hdr_len);
		assert_memory_equal(t.ddp, r.ulpdu, cases[i].hdr_len);
		assert_int_equal(t.rdmap_len, 0);
	}
}

static void terminate_brings_the_read_request_when_its_access_is_refused(void **st)
{
	uint8_t buf[RDMAP_TERMINATE_MAX];
	struct rdmap_terminate t;
	struct received r;

	receive(&r, RDMAP_READ_REQUEST, RDMAP_READ_REQUEST_LEN);
	t = terminate_for(FAULT_RDMAP_BOUNDS, &r);
	assert_int_equal(t.rdmap_len, RDMAP_READ_REQUEST_LEN);
	assert_memory_equal(t.rdmap, r.ulpdu + 18, RDMAP_READ_REQUEST_LEN);
	assert_int_equal(rdmap_terminate_encode(&t, buf), RDMAP_TERMINATE_MAX);
	/* An operation error and one of DDP's do not. */
	t = terminate_for(FAULT_RDMAP_OPCODE, &r);
	assert_int_equal(t.ddp_len, 18);
	assert_int_equal(t.rdmap_len, 0);
	t = terminate_for(FAULT_DDP_MSN, &r);
	assert_int_equal(t.ddp_len, 18);
	assert_int_equal(t.rdmap_len, 0);
}

static void terminate_brings_what_is_at_hand(void **st)
{
	struct rdmap_terminate t;
	struct received r;

	receive(&r, RDMAP_READ_REQUEST, RDMAP_READ_REQUEST_LEN);
	/* Only part of the segment has come. */
	rdmap_terminate_for(&t, FAULT_RDMAP_STAG, r.ulpdu, 45, r.len, &r.seg);
	assert_int_equal(t.ddp_len, 18);
	assert_int_equal(t.rdmap_len, 0);
	rdmap_terminate_for(&t, FAULT_RDMAP_STAG, r.ulpdu, 17, r.len, &r.seg);
	assert_false(t.has_seg_len);
	assert_int_equal(t.ddp_len, 0);
	/* There is no segment, or its header could not be read. */
	rdmap_terminate_for(&t, FAULT_RDMAP_STAG, NULL, 0, 0, NULL);
	assert_int_equal(t.ddp_len, 0);
	rdmap_terminate_for(&t, FAULT_RDMAP_STAG, r.ulpdu, r.len, r.len, NULL);
	assert_int_equal(t.ddp_len, 0);
	r.seg.hdr_len = 0;
	rdmap_terminate_for(&t, FAULT_RDMAP_STAG, r.ulpdu, r.len, r.len, &r.seg);
	assert_int_equal(t.ddp_len, 0);
	assert_int_equal(t.fault, FAULT_RDMAP_STAG);
}

static void terminate_is_written_in_the_rfcs_bit_order(void **st)
{
	struct rdmap_terminate t = { .fault = FAULT_DDP_TOO_LONG, .has_seg_len = true };
	uint8_t buf[RDMAP_TERMINATE_MAX];

	t.seg_len = 0x0102;
	t.ddp_len = 18;
	assert_int_equal(rdmap_terminate_encode(&t, buf), 4 + 2 + 18);
	assert_memory_equal(buf, "\x12\x05\xc0\x00\x01\x02", 6);
	t = (struct rdmap_terminate) { .fault = FAULT_MPA_CRC };
	assert_int_equal(rdmap_terminate_encode(&t, buf), 4);
	assert_memory_equal(buf, "\x20\x02\x00\x00", 4);
	/* The length field is there whenever the header is, valid or not. */
	t = (struct rdmap_terminate) { .fault = FAULT_DDP_STAG, .ddp_len = 14, .seg_len = 9 };
	assert_int_equal(rdmap_terminate_encode(&t, buf), 4 + 2 + 14);
	assert_memory_equal(buf, "\x11\x00\x40\x00\x00\x00", 6);
}

static void assert_same(const struct rdmap_terminate *a, const struct rdmap_terminate *b)
{
	assert_int_equal(a->fault, b->fault);
	assert_int_equal(a->has_seg_len, b->has_seg_len);
	assert_int_equal(a->seg_len, b->seg_len);
	assert_int_equal(a->ddp_len, b->ddp_len);
	assert_int_equal(a->rdmap_len, b->rdmap_len);
	assert_memory_equal(a->ddp, b->ddp, sizeof(a->ddp));
	assert_memory_equal(a->rdmap, b->rdmap, sizeof(a->rdmap));
	assert_int_equal(a->swapped, b->swapped);
}

static void terminate_reads_back_what_it_wrote(void **st)
{
	static const struct {
		uint8_t opcode;
		uint32_t fault;
	} cases[] = {
		{ RDMAP_WRITE, FAULT_DDP_STAG },
		{ RDMAP_READ_REQUEST, FAULT_RDMAP_ACCESS },
		{ RDMAP_SEND, FAULT_DDP_NO_BUFFER },
		{ RDMAP_SEND, FAULT_MPA_MARKER },
		{ RDMAP_SEND, FAULT_RDMAP_CATASTROPHIC },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		uint8_t buf[RDMAP_TERMINATE_MAX];
		struct rdmap_terminate t, back;
		struct received r;
		size_t len;

		receive(&r, cases[i].opcode, 28);
		t = terminate_for(cases[i].fault, &r);
		len = rdmap_terminate_encode(&t, buf);
		assert_int_equal(decode(&back, buf, len), 0);
		assert_same(&t, &back);
		/* Any shorter and it contradicts its flags, but the fault can be told. */
		for (size_t cut = 0; cut < len; cut++) {
			assert_int_equal(decode(&back, buf, cut), -EPROTO);
			assert_int_equal(back.fault, cut < 4 ? WIRE_OK : cases[i].fault);
		}
	}
}

static void terminate_ignores_octets_behind_its_end(void **st)
{
	struct rdmap_terminate t;

	assert_int_equal(decode(&t, "\x20\x02\x00\x00garbage", 11), 0);
	assert_int_equal(t.fault, FAULT_MPA_CRC);
	assert_int_equal(t.ddp_len, 0);
}

/* What siw sends from a little-endian host for 1/2/05 with M and D, and for 2/0/02. */
static void terminate_reads_the_swapped_order_of_siw(void **st)
{
	uint8_t buf[4 + 2 + 18 + 28] = { 0x21, 0x05, 0x03, 0x00, 0x00, 0x2a, 0x41, 0x43 };
	struct rdmap_terminate t;

	assert_int_equal(decode(&t, buf, 24), 0);
	assert_true(t.swapped);
	assert_int_equal(t.fault, FAULT_DDP_TOO_LONG);
	assert_true(t.has_seg_len);
	assert_int_equal(t.seg_len, 42);
	assert_int_equal(t.ddp_len, 18);
	assert_int_equal(t.rdmap_len, 0);
	assert_int_equal(decode(&t, buf, 23), -EPROTO);

	assert_int_equal(decode(&t, "\x02\x02\x00\x00", 4), 0);
	assert_true(t.swapped);
	assert_int_equal(t.fault, FAULT_MPA_CRC);

	memcpy(buf, "\x10\x01\x07\x00", 4);
	assert_int_equal(decode(&t, buf, sizeof(buf)), 0);
	assert_int_equal(t.fault, FAULT_RDMAP_BOUNDS);
	assert_int_equal(t.rdmap_len, 28);
	/* The same either way: only the flags tell. */
	memcpy(buf, "\x11\x01\x03\x00", 4);
	assert_int_equal(decode(&t, buf, 24), 0);
	assert_true(t.swapped);
	assert_int_equal(t.ddp_len, 18);
	memcpy(buf, "\x21\x05\x01\x00", 4);
	assert_int_equal(decode(&t, buf, 6), 0);
	assert_true(t.has_seg_len);
	assert_int_equal(t.ddp_len, 0);
}

static void terminate_prefers_the_rfc_when_order_is_ambiguous(void **st)
{
	static const struct {
		const char *octets;
		uint32_t fault;
		bool swapped;
	} cases[] = {
		/* legal both ways */
		{ "\x02\x05", WIRE_FAULT(0, 2, 5), false },
		{ "\x20\x05", WIRE_FAULT(2, 0, 5), false },
		{ "\x01\x00", WIRE_FAULT(0, 1, 0), false },
		{ "\x10\x00", WIRE_FAULT(1, 0, 0), false },
		/* legal one way */
		{ "\x21\x06", WIRE_FAULT(1, 2, 6), true },
		{ "\x10\x04", WIRE_FAULT(0, 1, 4), true },
		/* not legal at all */
		{ "\x34\x56", WIRE_FAULT(3, 4, 0x56), false },
	};

	/* Flags of the RFC win over low bits, which are reserved there. */
	uint8_t both[4 + 2] = { 0x12, 0x05, 0x80 | 0x03 };
	struct rdmap_terminate t;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		uint8_t buf[4] = { 0 };

		memcpy(buf, cases[i].octets, 2);
		assert_int_equal(decode(&t, buf, 4), 0);
		assert_int_equal(t.fault, cases[i].fault);
		assert_int_equal(t.swapped, cases[i].swapped);
	}
	assert_int_equal(decode(&t, both, sizeof(both)), 0);
	assert_false(t.swapped);
	assert_int_equal(t.fault, FAULT_DDP_TOO_LONG);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(terminate_brings_no_headers_when_error_is_local_or_mpas),
		cmocka_unit_test(terminate_brings_the_ddp_header_when_a_segment_is_to_blame),
		cmocka_unit_test(terminate_brings_the_read_request_when_its_access_is_refused),
		cmocka_unit_test(terminate_brings_what_is_at_hand),
		cmocka_unit_test(terminate_is_written_in_the_rfcs_bit_order),
		cmocka_unit_test(terminate_reads_back_what_it_wrote),
		cmocka_unit_test(terminate_ignores_octets_behind_its_end),
		cmocka_unit_test(terminate_reads_the_swapped_order_of_siw),
		cmocka_unit_test(terminate_prefers_the_rfc_when_order_is_ambiguous),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
