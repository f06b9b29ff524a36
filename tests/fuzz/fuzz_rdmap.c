/* SPDX-License-Identifier: MIT */
/*
 * The fixed headers behind the DDP header: each is read, written and read again; the atomic
 * arithmetic is compared with the RFC's bit-by-bit definition.
 *
 * Input: which header (1 octet), then the header, zero-filled, then a value in memory (8).
 */
#include "fuzz.h"

#include "wire/rdmap.h"

/* RFC 7306 section 5.1 as it is written there: one bit after the other. */
static uint64_t add_bitwise(uint64_t a, uint64_t b, uint64_t mask)
{
	uint64_t sum = 0;
	unsigned carry = 0;

	for (unsigned bit = 0; bit < 64; bit++) {
		unsigned s = carry + (a >> bit & 1) + (b >> bit & 1);

		sum |= (uint64_t)(s & 1) << bit;
		carry = mask >> bit & 1 ? 0 : s >> 1;
	}
	return sum;
}

static void check_apply(const struct rdmap_atomic_request *r, uint64_t old, uint32_t fault)
{
	uint64_t now = rdmap_atomic_apply(r, old);
	bool equal = !((old ^ r->compare) & r->compare_mask);

	if (fault) {
		CHECK(now == old);
	} else if (r->op == RDMAP_FETCH_ADD) {
		CHECK(now == add_bitwise(old, r->data, r->mask));
	} else {
		CHECK(((now ^ old) & ~r->mask) == 0);
		CHECK(equal ? ((now ^ r->data) & r->mask) == 0 : now == old);
	}
}

static void check_atomic_request(const uint8_t *wire, uint64_t old)
{
	uint8_t out[RDMAP_ATOMIC_REQUEST_LEN];
	struct rdmap_atomic_request r, back;
	uint32_t fault = rdmap_atomic_request_decode(&r, wire);

	CHECK(r.op == (wire[3] & 15));
	CHECK(fault == (r.op == 0 || r.op == 2 ? WIRE_OK : FAULT_RDMAP_OPCODE));
	rdmap_atomic_request_encode(&r, out);
	/* The 28 reserved bits are sent as zero. */
	CHECK(out[0] == 0 && out[1] == 0 && out[2] == 0 && out[3] == r.op);
	CHECK(memcmp(out + 4, wire + 4, sizeof(out) - 4) == 0);
	CHECK(rdmap_atomic_request_decode(&back, out) == fault);
	CHECK(back.op == r.op && back.id == r.id && back.stag == r.stag && back.to == r.to);
	CHECK(back.data == r.data && back.mask == r.mask);
	CHECK(back.compare == r.compare && back.compare_mask == r.compare_mask);
	check_apply(&r, old, fault);
}

static void check_others(unsigned which, const uint8_t *wire)
{
	uint8_t out[RDMAP_READ_REQUEST_LEN];
	struct rdmap_read_request read;
	struct rdmap_atomic_response response;

	switch (which) {
	case 0:
		rdmap_read_request_decode(&read, wire);
		rdmap_read_request_encode(&read, out);
		CHECK(memcmp(out, wire, RDMAP_READ_REQUEST_LEN) == 0);
		break;
	case 1:
		rdmap_immediate_encode(rdmap_immediate_decode(wire), out);
		CHECK(memcmp(out, wire, RDMAP_IMMEDIATE_LEN) == 0);
		break;
	default:
		rdmap_atomic_response_decode(&response, wire);
		rdmap_atomic_response_encode(&response, out);
		CHECK(memcmp(out, wire, RDMAP_ATOMIC_RESPONSE_LEN) == 0);
		break;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const size_t lengths[4] = { RDMAP_READ_REQUEST_LEN, RDMAP_IMMEDIATE_LEN,
					   RDMAP_ATOMIC_RESPONSE_LEN, RDMAP_ATOMIC_REQUEST_LEN };
	struct source in = { data, size };
	unsigned which = (unsigned)take(&in, 1) % 4;
	uint8_t *wire = malloc(lengths[which]);

	CHECK(wire);
	for (size_t i = 0; i < lengths[which]; i++)
		wire[i] = (uint8_t)take(&in, 1);
	if (which == 3)
		check_atomic_request(wire, take(&in, 8));
	else
		check_others(which, wire);
	free(wire);
	return 0;
}
