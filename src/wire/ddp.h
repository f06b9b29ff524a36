/* SPDX-License-Identifier: MIT */
/*
 * DDP segments (RFC 5041) with the RDMAP control octet that sits inside their header
 * (RFC 5040, RFC 7306). One struct for both because neither makes sense alone: the opcode
 * decides whether the segment may be tagged and which queue it may name.
 */
#ifndef FLUE_WIRE_DDP_H
#define FLUE_WIRE_DDP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire/fault.h"

#define DDP_TAGGED_LEN   14
#define DDP_UNTAGGED_LEN 18
#define DDP_HDR_MAX      18
#define DDP_UNTAGGED_MSN 10 /* where it stands there */

/* Versions are parameters: 1/1 for the IETF protocols, 0/0 for the RDMAC style. */
struct ddp_params {
	uint8_t dv; /* DDP version, 2 bits */
	uint8_t rv; /* RDMAP version, 2 bits */
	bool full;  /* messages and bits of full service are known */
};

enum ddp_queue {
	DDP_QN_SEND = 0,
	DDP_QN_READ = 1,
	DDP_QN_TERMINATE = 2,
	DDP_QN_ATOMIC = 3,
	DDP_QN_CONTROL = 4
};

struct ddp_segment {
	uint8_t opcode; /* enum rdmap_op */
	bool tagged;
	bool last;
	uint32_t stag; /* tagged */
	uint64_t to;   /* tagged */
	/* Untagged: the key to invalidate, or immediate data, where the opcode has such; else in full
	 * service how many messages of the peer were done. */
	uint32_t inv_stag;
	bool ack;             /* full service: tell us when all up to this message is done */
	uint32_t qn, msn, mo; /* untagged */
	/* decode only: */
	uint8_t hdr_len;
	size_t payload_len; /* octets behind the DDP header */
};

/* By the first octet of a ULPDU: is it tagged? Its header has DDP_TAGGED_LEN octets then. */
static inline bool ddp_is_tagged(const uint8_t *ulpdu)
{
	return ulpdu[0] & 0x80;
}

/* Writes the DDP header with its RDMAP octets; returns 14 or 18. */
size_t ddp_encode(const struct ddp_params *p, const struct ddp_segment *s, uint8_t *buf);

/*
 * Reads and checks the header of a ULPDU of ulpdu_len octets of which the first `have` are in
 * buf (have <= ulpdu_len; direct placement decodes before the payload is there). Returns
 *   WIRE_OK   *s is filled,
 *   a fault   versions, opcode unknown or not allowed with this T bit, unknown QN, ULPDU shorter
 *             than its header, wrong payload length of a fixed-size message (Read Request,
 *             Atomic, Immediate Data), missing L on a message that must be one segment, MO not 0
 *             there. *s is filled as far as it could be read (hdr_len 0: not at all), for the
 *             Terminate that follows.
 * Codes are those of the table in docs/design/wire.md. `have` must be at least
 * min(ulpdu_len, DDP_HDR_MAX).
 */
uint32_t ddp_decode(const struct ddp_params *p, const uint8_t *buf, size_t have, size_t ulpdu_len,
		    struct ddp_segment *s);

#endif
