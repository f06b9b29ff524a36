/* SPDX-License-Identifier: MIT */
#include "wire/rdmap.h"

#include "base/bytes.h"
#include "wire/control.h"

/* clang-format off */
const struct rdmap_op_info rdmap_ops[RDMAP_NOPS] = {
	[RDMAP_WRITE] = { .name = "Write", .tagged = true, .request = true },
	[RDMAP_READ_REQUEST] = { .name = "Read Request", .qn = DDP_QN_READ, .one_segment = true,
				 .fixed_len = RDMAP_READ_REQUEST_LEN, .request = true },
	[RDMAP_READ_RESPONSE] = { .name = "Read Response", .tagged = true },
	[RDMAP_SEND] = { .name = "Send", .qn = DDP_QN_SEND, .request = true },
	[RDMAP_SEND_INV] = { .name = "Send with Invalidate", .qn = DDP_QN_SEND,
			     .invalidate = true, .request = true },
	[RDMAP_SEND_SE] = { .name = "Send with Solicited Event", .qn = DDP_QN_SEND,
			    .solicited = true, .request = true },
	[RDMAP_SEND_SE_INV] = { .name = "Send with Solicited Event and Invalidate",
				.qn = DDP_QN_SEND, .solicited = true, .invalidate = true,
				.request = true },
	[RDMAP_TERMINATE] = { .name = "Terminate", .qn = DDP_QN_TERMINATE, .one_segment = true },
	[RDMAP_IMMEDIATE] = { .name = "Immediate Data", .qn = DDP_QN_SEND, .one_segment = true,
			      .fixed_len = RDMAP_IMMEDIATE_LEN, .request = true },
	[RDMAP_IMMEDIATE_SE] = { .name = "Immediate Data with Solicited Event",
				 .qn = DDP_QN_SEND, .one_segment = true, .solicited = true,
				 .fixed_len = RDMAP_IMMEDIATE_LEN, .request = true },
	[RDMAP_ATOMIC_REQUEST] = { .name = "Atomic Request", .qn = DDP_QN_READ,
				   .one_segment = true, .fixed_len = RDMAP_ATOMIC_REQUEST_LEN,
				   .request = true },
	[RDMAP_ATOMIC_RESPONSE] = { .name = "Atomic Response", .qn = DDP_QN_ATOMIC,
				    .one_segment = true,
				    .fixed_len = RDMAP_ATOMIC_RESPONSE_LEN },
	[RDMAP_SEND_IMM] = { .name = "Send with Immediate Data", .qn = DDP_QN_SEND, .imm = true,
			     .full = true, .request = true },
	[RDMAP_SEND_SE_IMM] = { .name = "Send with Solicited Event and Immediate Data",
				.qn = DDP_QN_SEND, .solicited = true, .imm = true,
				.full = true, .request = true },
	[RDMAP_CONTROL] = { .name = "Control", .qn = DDP_QN_CONTROL, .one_segment = true,
			    .fixed_len = CONTROL_LEN, .full = true },
};
/* clang-format on */

void rdmap_read_request_encode(const struct rdmap_read_request *r,
			       uint8_t buf[RDMAP_READ_REQUEST_LEN])
{
	put_be32(buf, r->sink_stag);
	put_be64(buf + 4, r->sink_to);
	put_be32(buf + 12, r->size);
	put_be32(buf + 16, r->src_stag);
	put_be64(buf + 20, r->src_to);
}

void rdmap_read_request_decode(struct rdmap_read_request *r,
			       const uint8_t buf[RDMAP_READ_REQUEST_LEN])
{
	r->sink_stag = get_be32(buf);
	r->sink_to = get_be64(buf + 4);
	r->size = get_be32(buf + 12);
	r->src_stag = get_be32(buf + 16);
	r->src_to = get_be64(buf + 20);
}

void rdmap_immediate_encode(uint64_t value, uint8_t buf[RDMAP_IMMEDIATE_LEN])
{
	put_be64(buf, value);
}

uint64_t rdmap_immediate_decode(const uint8_t buf[RDMAP_IMMEDIATE_LEN])
{
	return get_be64(buf);
}

void rdmap_atomic_request_encode(const struct rdmap_atomic_request *r,
				 uint8_t buf[RDMAP_ATOMIC_REQUEST_LEN])
{
	put_be32(buf, r->op & 0x0f);
	put_be32(buf + 4, r->id);
	put_be32(buf + 8, r->stag);
	put_be64(buf + 12, r->to);
	put_be64(buf + 20, r->data);
	put_be64(buf + 28, r->mask);
	put_be64(buf + 36, r->compare);
	put_be64(buf + 44, r->compare_mask);
}

uint32_t rdmap_atomic_request_decode(struct rdmap_atomic_request *r,
				     const uint8_t buf[RDMAP_ATOMIC_REQUEST_LEN])
{
	/* The 28 bits before the opcode are reserved and not checked. */
	r->op = buf[3] & 0x0f;
	r->id = get_be32(buf + 4);
	r->stag = get_be32(buf + 8);
	r->to = get_be64(buf + 12);
	r->data = get_be64(buf + 20);
	r->mask = get_be64(buf + 28);
	r->compare = get_be64(buf + 36);
	r->compare_mask = get_be64(buf + 44);
	return r->op == RDMAP_FETCH_ADD || r->op == RDMAP_CMP_SWAP ? WIRE_OK : FAULT_RDMAP_OPCODE;
}

/*
 * Fields add independently. With the top bits out of the way no field can carry into its
 * neighbour; the sum at a top bit is then that of three bits whose carry is dropped: an XOR.
 */
static uint64_t masked_add(uint64_t a, uint64_t b, uint64_t tops)
{
	return ((a & ~tops) + (b & ~tops)) ^ ((a ^ b) & tops);
}

uint64_t rdmap_atomic_apply(const struct rdmap_atomic_request *r, uint64_t old)
{
	switch (r->op) {
	case RDMAP_FETCH_ADD: return masked_add(old, r->data, r->mask);
	case RDMAP_CMP_SWAP:
		if ((old ^ r->compare) & r->compare_mask)
			return old;
		return (old & ~r->mask) | (r->data & r->mask);
	default: return old;
	}
}

void rdmap_atomic_response_encode(const struct rdmap_atomic_response *r,
				  uint8_t buf[RDMAP_ATOMIC_RESPONSE_LEN])
{
	put_be32(buf, r->id);
	put_be64(buf + 4, r->value);
}

void rdmap_atomic_response_decode(struct rdmap_atomic_response *r,
				  const uint8_t buf[RDMAP_ATOMIC_RESPONSE_LEN])
{
	r->id = get_be32(buf);
	r->value = get_be64(buf + 4);
}
