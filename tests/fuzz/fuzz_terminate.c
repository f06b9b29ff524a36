/* SPDX-License-Identifier: MIT */
/*
 * Terminate messages from strangers, in both bit orders. What can be read is written in the
 * RFC's order and must read the same; one octet less must not be enough.
 *
 * Input: the payload of a Terminate. Its first octets also serve as fault and segment for
 * rdmap_terminate_for().
 */
#include "fuzz.h"

#include <errno.h>

#include "wire/rdmap.h"

static void check_same(const struct rdmap_terminate *a, const struct rdmap_terminate *b)
{
	CHECK(a->fault == b->fault);
	CHECK(a->has_seg_len == b->has_seg_len && a->seg_len == b->seg_len);
	CHECK(a->ddp_len == b->ddp_len && a->rdmap_len == b->rdmap_len);
	CHECK(memcmp(a->ddp, b->ddp, sizeof(a->ddp)) == 0);
	CHECK(memcmp(a->rdmap, b->rdmap, sizeof(a->rdmap)) == 0);
}

static int decode_exact(struct rdmap_terminate *t, const uint8_t *data, size_t len)
{
	uint8_t *copy = exact_copy(data, len);
	int rc = rdmap_terminate_decode(t, copy, len);

	CHECK(rc == 0 || rc == -EPROTO);
	CHECK(!t->fault == (len < 4));
	CHECK(t->ddp_len == 0 || t->ddp_len == (t->ddp[0] & 0x80 ? 14 : 18));
	CHECK(t->rdmap_len == 0 || t->rdmap_len == RDMAP_READ_REQUEST_LEN);
	/* Nothing is claimed that was not there. */
	CHECK(t->ddp_len + (size_t)t->rdmap_len + (t->has_seg_len ? 2 : 0) <=
	      (len < 4 ? 0 : len - 4));
	free(copy);
	return rc;
}

/* Which order was taken, from the octets alone: section 5.6 of the fact sheet. */
static void check_order(const struct rdmap_terminate *t, const uint8_t *data)
{
	unsigned hi = data[0] >> 4, lo = data[0] & 15;
	uint32_t rfc = WIRE_FAULT(hi, lo, data[1]), siw = WIRE_FAULT(lo, hi, data[1]);

	CHECK(t->fault == (t->swapped ? siw : rfc));
	CHECK(strlen(wire_fault_name(t->fault)) > 4);
	if (data[2] & 0xe0)
		CHECK(!t->swapped);
	else if (data[2] & 0x07)
		CHECK(t->swapped);
	else if (wire_fault_is_legal(rfc))
		CHECK(!t->swapped);
	else
		CHECK(t->swapped == wire_fault_is_legal(siw));
}

static void check_rewrite(const struct rdmap_terminate *t, size_t len)
{
	uint8_t buf[RDMAP_TERMINATE_MAX];
	struct rdmap_terminate back;
	size_t n = rdmap_terminate_encode(t, buf);

	CHECK(n >= 4 && n <= len && n <= sizeof(buf));
	CHECK(decode_exact(&back, buf, n) == 0);
	check_same(t, &back);
	CHECK(!back.swapped);
	CHECK(decode_exact(&back, buf, n - 1) == -EPROTO);
	CHECK(n == 4 || back.fault == t->fault);
}

static void check_for_segment(const uint8_t *data, size_t size)
{
	const struct ddp_params ietf = { .dv = 1, .rv = 1 };
	struct source in = { data, size };
	uint32_t fault = WIRE_FAULT(take(&in, 1) % 3, take(&in, 1) % 4, take(&in, 1));
	bool whole = take(&in, 1) & 1;
	uint8_t *u = exact_copy(in.data, in.left), buf[RDMAP_TERMINATE_MAX];
	struct rdmap_terminate t, back;
	struct ddp_segment s;
	size_t have = in.left;

	ddp_decode(&ietf, u, in.left, in.left, &s);
	if (!whole && have) {
		have = take(&in, 1) % have;
		u = realloc(u, have ? have : 1);
	}
	rdmap_terminate_for(&t, fault, u, have, size, &s);
	CHECK(t.fault == fault && !t.swapped);
	/* Local catastrophic errors and MPA's bring nothing along. */
	if (wire_fault_layer(fault) == WIRE_LAYER_MPA || wire_fault_type(fault) == 0)
		CHECK(!t.has_seg_len && !t.ddp_len && !t.rdmap_len);
	CHECK(!t.rdmap_len || (s.opcode == RDMAP_READ_REQUEST && wire_fault_layer(fault) == 0 &&
			       wire_fault_type(fault) == 1));
	CHECK(t.ddp_len == 0 || (t.ddp_len == s.hdr_len && memcmp(t.ddp, u, t.ddp_len) == 0));
	CHECK(rdmap_terminate_decode(&back, buf, rdmap_terminate_encode(&t, buf)) == 0);
	if (!back.swapped)
		check_same(&t, &back);
	free(u);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct rdmap_terminate t;
	int rc = decode_exact(&t, data, size);

	if (size >= 4)
		check_order(&t, data);
	if (rc == 0)
		check_rewrite(&t, size);
	check_for_segment(data, size);
	return 0;
}
