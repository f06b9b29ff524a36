/* SPDX-License-Identifier: MIT */
/*
 * DDP segment headers. The checks here are those that need nothing but the segment: no STag,
 * no queue, no message in progress. They run on every segment before anything is placed.
 */
#include "wire/ddp.h"

#include <assert.h>
#include <string.h>

#include "base/bytes.h"
#include "wire/rdmap.h"

#define DDP_T         0x80
#define DDP_L         0x40
#define DDP_DV_MASK   0x03
#define RDMAP_RV(o)   ((o) >> 6)
#define RDMAP_OP(o)   ((o)&0x0f)
#define RDMAP_ACK     0x20 /* a reserved bit; full service only */
#define CTRL_LEN      2    /* the DDP and the RDMAP control octet */
#define TERMINATE_MIN 4

size_t ddp_encode(const struct ddp_params *p, const struct ddp_segment *s, uint8_t *buf)
{
	buf[0] = (uint8_t)((s->tagged ? DDP_T : 0) | (s->last ? DDP_L : 0) | (p->dv & DDP_DV_MASK));
	buf[1] = (uint8_t)(p->rv << 6 | (p->full && s->ack ? RDMAP_ACK : 0) | RDMAP_OP(s->opcode));
	if (s->tagged) {
		put_be32(buf + 2, s->stag);
		put_be64(buf + 6, s->to);
		return DDP_TAGGED_LEN;
	}
	put_be32(buf + 2, s->inv_stag);
	put_be32(buf + 6, s->qn);
	put_be32(buf + 10, s->msn);
	put_be32(buf + 14, s->mo);
	return DDP_UNTAGGED_LEN;
}

/* Reads what there is; false when the ULPDU ends before its header does. */
static bool read_header(struct ddp_segment *s, const uint8_t *buf, size_t ulpdu_len)
{
	size_t hdr_len = buf[0] & DDP_T ? DDP_TAGGED_LEN : DDP_UNTAGGED_LEN;
	bool complete = ulpdu_len >= hdr_len;

	s->tagged = buf[0] & DDP_T;
	s->last = buf[0] & DDP_L;
	s->opcode = RDMAP_OP(buf[1]);
	if (!complete)
		return false;
	if (s->tagged) {
		s->stag = get_be32(buf + 2);
		s->to = get_be64(buf + 6);
	} else {
		s->inv_stag = get_be32(buf + 2);
		s->qn = get_be32(buf + 6);
		s->msn = get_be32(buf + 10);
		s->mo = get_be32(buf + 14);
	}
	s->hdr_len = (uint8_t)hdr_len;
	s->payload_len = ulpdu_len - hdr_len;
	return true;
}

/* What RDMAP adds: the rules that the opcode brings along. */
static uint32_t check_message(const struct ddp_params *p, const struct ddp_segment *s)
{
	const struct rdmap_op_info *op = &rdmap_ops[s->opcode];

	if (!op->name || op->tagged != s->tagged || (op->full && !p->full))
		return FAULT_RDMAP_OPCODE;
	if (s->tagged)
		return WIRE_OK;
	if (s->qn != op->qn)
		return FAULT_DDP_QN;
	if (!op->one_segment)
		return WIRE_OK;
	if (s->mo != 0)
		return FAULT_DDP_MO;
	if (!s->last)
		return FAULT_DDP_CATASTROPHIC;
	if (op->fixed_len && s->payload_len != op->fixed_len)
		return FAULT_DDP_CATASTROPHIC;
	if (s->opcode == RDMAP_TERMINATE &&
	    (s->payload_len < TERMINATE_MIN || s->payload_len > RDMAP_TERMINATE_MAX))
		return FAULT_DDP_CATASTROPHIC;
	return WIRE_OK;
}

uint32_t ddp_decode(const struct ddp_params *p, const uint8_t *buf, size_t have, size_t ulpdu_len,
		    struct ddp_segment *s)
{
	bool complete;

	assert(have <= ulpdu_len && (have == ulpdu_len || have >= DDP_HDR_MAX));
	memset(s, 0, sizeof(*s));
	if (ulpdu_len < CTRL_LEN)
		return FAULT_DDP_CATASTROPHIC;
	complete = read_header(s, buf, ulpdu_len);
	/* The version first: with another one nothing that follows can be trusted. */
	if ((buf[0] & DDP_DV_MASK) != p->dv)
		return s->tagged ? FAULT_DDP_TAGGED_VERSION : FAULT_DDP_UNTAGGED_VERSION;
	if (!complete)
		return FAULT_DDP_CATASTROPHIC;
	if (RDMAP_RV(buf[1]) != p->rv)
		return FAULT_RDMAP_VERSION;
	s->ack = p->full && buf[1] & RDMAP_ACK;
	return check_message(p, s);
}
