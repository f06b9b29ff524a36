/* SPDX-License-Identifier: MIT */
/*
 * A protocol fault is what a Terminate message says: layer, error type, error code
 * (RFC 5040 section 4.8, RFC 5041 section 8, RFC 5044 section 8, RFC 6581 section 10).
 *
 * Faults travel through the receive path as one integer. Zero means "no fault"; because
 * 0/0/00 (local catastrophic) is a legal triple, real faults carry WIRE_FAULT_BIT.
 */
#ifndef FLUE_WIRE_FAULT_H
#define FLUE_WIRE_FAULT_H

#include <stdbool.h>
#include <stdint.h>

#define WIRE_FAULT_BIT 0x10000u
#define WIRE_FAULT(layer, type, code) \
	(WIRE_FAULT_BIT | (uint32_t)(layer) << 12 | (uint32_t)(type) << 8 | (uint32_t)(code))

enum wire_layer { WIRE_LAYER_RDMAP = 0, WIRE_LAYER_DDP = 1, WIRE_LAYER_MPA = 2 };

enum wire_fault {
	WIRE_OK = 0,
	/* RDMAP, local catastrophic */
	FAULT_RDMAP_CATASTROPHIC = WIRE_FAULT(0, 0, 0x00),
	/* RDMAP, remote protection */
	FAULT_RDMAP_STAG = WIRE_FAULT(0, 1, 0x00),
	FAULT_RDMAP_BOUNDS = WIRE_FAULT(0, 1, 0x01),
	FAULT_RDMAP_ACCESS = WIRE_FAULT(0, 1, 0x02),
	FAULT_RDMAP_STREAM = WIRE_FAULT(0, 1, 0x03),
	FAULT_RDMAP_WRAP = WIRE_FAULT(0, 1, 0x04),
	FAULT_RDMAP_PROT_NO_INVALIDATE = WIRE_FAULT(0, 1, 0x09),
	FAULT_RDMAP_PROT_OTHER = WIRE_FAULT(0, 1, 0xff),
	/* RDMAP, remote operation */
	FAULT_RDMAP_VERSION = WIRE_FAULT(0, 2, 0x05),
	FAULT_RDMAP_OPCODE = WIRE_FAULT(0, 2, 0x06),
	FAULT_RDMAP_STREAM_CATASTROPHIC = WIRE_FAULT(0, 2, 0x07),
	FAULT_RDMAP_GLOBAL_CATASTROPHIC = WIRE_FAULT(0, 2, 0x08),
	FAULT_RDMAP_NO_INVALIDATE = WIRE_FAULT(0, 2, 0x09),
	FAULT_RDMAP_OTHER = WIRE_FAULT(0, 2, 0xff),
	/* DDP, local catastrophic */
	FAULT_DDP_CATASTROPHIC = WIRE_FAULT(1, 0, 0x00),
	/* DDP, tagged buffer */
	FAULT_DDP_STAG = WIRE_FAULT(1, 1, 0x00),
	FAULT_DDP_BOUNDS = WIRE_FAULT(1, 1, 0x01),
	FAULT_DDP_STREAM = WIRE_FAULT(1, 1, 0x02),
	FAULT_DDP_WRAP = WIRE_FAULT(1, 1, 0x03),
	FAULT_DDP_TAGGED_VERSION = WIRE_FAULT(1, 1, 0x04),
	/* DDP, untagged buffer */
	FAULT_DDP_QN = WIRE_FAULT(1, 2, 0x01),
	FAULT_DDP_NO_BUFFER = WIRE_FAULT(1, 2, 0x02),
	FAULT_DDP_MSN = WIRE_FAULT(1, 2, 0x03),
	FAULT_DDP_MO = WIRE_FAULT(1, 2, 0x04),
	FAULT_DDP_TOO_LONG = WIRE_FAULT(1, 2, 0x05),
	FAULT_DDP_UNTAGGED_VERSION = WIRE_FAULT(1, 2, 0x06),
	/* MPA */
	FAULT_MPA_CLOSED = WIRE_FAULT(2, 0, 0x01),
	FAULT_MPA_CRC = WIRE_FAULT(2, 0, 0x02),
	FAULT_MPA_MARKER = WIRE_FAULT(2, 0, 0x03),
	FAULT_MPA_FRAME = WIRE_FAULT(2, 0, 0x04),
	FAULT_MPA_CATASTROPHIC = WIRE_FAULT(2, 0, 0x05),
	FAULT_MPA_IRD = WIRE_FAULT(2, 0, 0x06),
	FAULT_MPA_RTR = WIRE_FAULT(2, 0, 0x07),
};

static inline unsigned wire_fault_layer(uint32_t f)
{
	return f >> 12 & 0xf;
}

static inline unsigned wire_fault_type(uint32_t f)
{
	return f >> 8 & 0xf;
}

static inline unsigned wire_fault_code(uint32_t f)
{
	return f & 0xff;
}

/* Short English text for a fault, or for any legal or illegal triple; never NULL. */
const char *wire_fault_name(uint32_t fault);

/* True when the triple stands in the RFC tables (type 0 of RDMAP allows any code). */
bool wire_fault_is_legal(uint32_t fault);

#endif
