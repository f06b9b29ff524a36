/* SPDX-License-Identifier: MIT */
/*
 * RDMAP messages: opcodes and the fixed headers behind the DDP header (RFC 5040 section 4,
 * RFC 7306). Pure codecs.
 */
#ifndef FLUE_WIRE_RDMAP_H
#define FLUE_WIRE_RDMAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire/ddp.h"
#include "wire/fault.h"

enum rdmap_op {
	RDMAP_WRITE = 0,
	RDMAP_READ_REQUEST = 1,
	RDMAP_READ_RESPONSE = 2,
	RDMAP_SEND = 3,
	RDMAP_SEND_INV = 4,
	RDMAP_SEND_SE = 5,
	RDMAP_SEND_SE_INV = 6,
	RDMAP_TERMINATE = 7,
	RDMAP_IMMEDIATE = 8,
	RDMAP_IMMEDIATE_SE = 9,
	RDMAP_ATOMIC_REQUEST = 10,
	RDMAP_ATOMIC_RESPONSE = 11,
	/* 12..14 are unassigned, 15 is RFC 6580's experimental value. Full service, which is spoken by two
	 * Flue ends only, has messages of its own there (docs/design/wire.md). */
	RDMAP_SEND_IMM = 12,
	RDMAP_SEND_SE_IMM = 13,
	RDMAP_CONTROL = 15,
	RDMAP_NOPS = 16,
};

/* Facts about each opcode, as in RFC 5040 figure 3 and RFC 7306 figure 2. */
struct rdmap_op_info {
	const char *name; /* NULL: unassigned */
	bool tagged;
	uint8_t qn;        /* untagged only */
	uint8_t fixed_len; /* 0: any payload; else the exact payload length (one segment) */
	bool one_segment;  /* L must be set and MO must be 0 */
	bool solicited, invalidate;
	bool imm;     /* the field of the key to invalidate has immediate data */
	bool full;    /* in full service only */
	bool request; /* has a number in full service, see control.h */
};
extern const struct rdmap_op_info rdmap_ops[RDMAP_NOPS];

#define RDMAP_READ_REQUEST_LEN 28
struct rdmap_read_request {
	uint32_t sink_stag;
	uint64_t sink_to;
	uint32_t size;
	uint32_t src_stag;
	uint64_t src_to;
};
void rdmap_read_request_encode(const struct rdmap_read_request *r, uint8_t buf[28]);
void rdmap_read_request_decode(struct rdmap_read_request *r, const uint8_t buf[28]);

#define RDMAP_IMMEDIATE_LEN 8
void rdmap_immediate_encode(uint64_t value, uint8_t buf[8]);
uint64_t rdmap_immediate_decode(const uint8_t buf[8]);

enum rdmap_atomic_op { RDMAP_FETCH_ADD = 0, RDMAP_CMP_SWAP = 2 };
#define RDMAP_ATOMIC_REQUEST_LEN 52
struct rdmap_atomic_request {
	uint8_t op;
	uint32_t id;
	uint32_t stag;
	uint64_t to;
	uint64_t data, mask;
	uint64_t compare, compare_mask;
};
void rdmap_atomic_request_encode(const struct rdmap_atomic_request *r, uint8_t buf[52]);
/* FAULT_RDMAP_OPCODE for an unknown atomic opcode, else WIRE_OK. */
uint32_t rdmap_atomic_request_decode(struct rdmap_atomic_request *r, const uint8_t buf[52]);
/* What the operation leaves in memory that held `old` (RFC 7306 section 5.1). */
uint64_t rdmap_atomic_apply(const struct rdmap_atomic_request *r, uint64_t old);

#define RDMAP_ATOMIC_RESPONSE_LEN 12
struct rdmap_atomic_response {
	uint32_t id;
	uint64_t value;
};
void rdmap_atomic_response_encode(const struct rdmap_atomic_response *r, uint8_t buf[12]);
void rdmap_atomic_response_decode(struct rdmap_atomic_response *r, const uint8_t buf[12]);

/*
 * Terminate. `fault` is the triple. The copied headers are optional: ddp_len is 0, 14 or 18;
 * rdmap_len is 0 or 28 (a Read Request).
 */
#define RDMAP_TERMINATE_MAX (4 + 2 + DDP_UNTAGGED_LEN + RDMAP_READ_REQUEST_LEN)
struct rdmap_terminate {
	uint32_t fault;
	bool has_seg_len;
	uint16_t seg_len;
	uint8_t ddp_len, rdmap_len;
	uint8_t ddp[DDP_UNTAGGED_LEN];
	uint8_t rdmap[RDMAP_READ_REQUEST_LEN];
	bool swapped; /* decode only: the octets were in siw's little-endian bit order */
};

/*
 * Prepare a Terminate for a fault in a received segment: decides which headers the RFC asks for
 * (RFC 5040 figure 10). `ulpdu` may be NULL (fault in our own message or no segment at hand).
 */
void rdmap_terminate_for(struct rdmap_terminate *t, uint32_t fault, const uint8_t *ulpdu,
			 size_t have, size_t ulpdu_len, const struct ddp_segment *seg);

/* Returns the payload length (4..52). Always the RFC's bit order. */
size_t rdmap_terminate_encode(const struct rdmap_terminate *t, uint8_t *buf);

/*
 * Reads a Terminate payload of `len` octets, in the RFC's order or in the swapped order that
 * Linux siw sends from little-endian hosts. Returns 0, or -EPROTO when it is shorter than its
 * own flags say (the fault is still filled when 4 octets were there).
 */
int rdmap_terminate_decode(struct rdmap_terminate *t, const uint8_t *buf, size_t len);

#endif
