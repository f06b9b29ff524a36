/* SPDX-License-Identifier: MIT */
/*
 * Terminate messages, RFC 5040 section 4.8:
 *
 *   octet 0      1         2               3
 *   layer|type   code      M D R 00000     0
 *   then  DDP segment length (2)  if M or D
 *         copied DDP header       if D: 14 octets when its T bit is set, else 18
 *         copied Read Request     if R: 28 octets
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/bytes.h"
#include "wire/rdmap.h"

#define CONTROL_LEN 4
#define FLAG_M      0x80 /* the segment length is valid */
#define FLAG_D      0x40
#define FLAG_R      0x20
#define FLAGS_ALL   (FLAG_M | FLAG_D | FLAG_R)

/* siw's bit fields start at the other end of the octet on little-endian hosts. */
#define SIW_M   0x01
#define SIW_D   0x02
#define SIW_R   0x04
#define SIW_ALL (SIW_M | SIW_D | SIW_R)

/*
 * RFC 5040 figure 10, and the text before it for type 0: a local catastrophic error, of RDMAP
 * or of DDP, brings no headers, because they need not be to blame. MPA's never do.
 */
static bool wants_headers(uint32_t fault)
{
	return wire_fault_layer(fault) <= WIRE_LAYER_DDP && wire_fault_type(fault) != 0;
}

void rdmap_terminate_for(struct rdmap_terminate *t, uint32_t fault, const uint8_t *ulpdu,
			 size_t have, size_t ulpdu_len, const struct ddp_segment *seg)
{
	size_t hdr_len = seg ? seg->hdr_len : 0;

	memset(t, 0, sizeof(*t));
	t->fault = fault;
	if (!ulpdu || !hdr_len || hdr_len > have || !wants_headers(fault))
		return;
	t->has_seg_len = true;
	t->seg_len = (uint16_t)ulpdu_len;
	t->ddp_len = (uint8_t)hdr_len;
	memcpy(t->ddp, ulpdu, hdr_len);
	/* Only what RDMAP found wrong with a Read Request brings that request back. */
	if (wire_fault_layer(fault) != WIRE_LAYER_RDMAP || wire_fault_type(fault) != 1 ||
	    seg->opcode != RDMAP_READ_REQUEST || have < hdr_len + RDMAP_READ_REQUEST_LEN)
		return;
	t->rdmap_len = RDMAP_READ_REQUEST_LEN;
	memcpy(t->rdmap, ulpdu + hdr_len, RDMAP_READ_REQUEST_LEN);
}

size_t rdmap_terminate_encode(const struct rdmap_terminate *t, uint8_t *buf)
{
	size_t n = CONTROL_LEN;

	assert(t->ddp_len <= sizeof(t->ddp) && t->rdmap_len <= sizeof(t->rdmap));
	buf[0] = (uint8_t)(wire_fault_layer(t->fault) << 4 | wire_fault_type(t->fault));
	buf[1] = (uint8_t)wire_fault_code(t->fault);
	buf[2] = (uint8_t)((t->has_seg_len ? FLAG_M : 0) | (t->ddp_len ? FLAG_D : 0) |
			   (t->rdmap_len ? FLAG_R : 0));
	buf[3] = 0;
	if (t->has_seg_len || t->ddp_len) {
		put_be16(buf + n, t->has_seg_len ? t->seg_len : 0);
		n += 2;
	}
	memcpy(buf + n, t->ddp, t->ddp_len);
	n += t->ddp_len;
	memcpy(buf + n, t->rdmap, t->rdmap_len);
	return n + t->rdmap_len;
}

/*
 * Flags decide when there are any. Without flags both readings are possible; the one that
 * stands in the RFC tables wins, and the RFC's order when both do.
 */
static bool is_swapped(const uint8_t *buf)
{
	uint32_t rfc = WIRE_FAULT(buf[0] >> 4, buf[0] & 0xf, buf[1]);
	uint32_t siw = WIRE_FAULT(buf[0] & 0xf, buf[0] >> 4, buf[1]);

	if (buf[2] & FLAGS_ALL)
		return false;
	if (buf[2] & SIW_ALL)
		return true;
	return !wire_fault_is_legal(rfc) && wire_fault_is_legal(siw);
}

static unsigned read_control(struct rdmap_terminate *t, const uint8_t *buf)
{
	t->swapped = is_swapped(buf);
	if (!t->swapped) {
		t->fault = WIRE_FAULT(buf[0] >> 4, buf[0] & 0xf, buf[1]);
		return buf[2] & FLAGS_ALL;
	}
	t->fault = WIRE_FAULT(buf[0] & 0xf, buf[0] >> 4, buf[1]);
	return (buf[2] & SIW_M ? FLAG_M : 0u) | (buf[2] & SIW_D ? FLAG_D : 0u) |
	       (buf[2] & SIW_R ? FLAG_R : 0u);
}

/* Octets of the copied DDP header at buf; 0 when they are not all there. */
static size_t copied_header_len(const uint8_t *buf, size_t len)
{
	size_t want = len && buf[0] & 0x80 ? DDP_TAGGED_LEN : DDP_UNTAGGED_LEN;

	return want <= len ? want : 0;
}

int rdmap_terminate_decode(struct rdmap_terminate *t, const uint8_t *buf, size_t len)
{
	size_t pos = CONTROL_LEN;
	unsigned flags;

	memset(t, 0, sizeof(*t));
	if (len < CONTROL_LEN)
		return -EPROTO;
	flags = read_control(t, buf);
	if (flags & (FLAG_M | FLAG_D)) {
		if (len - pos < 2)
			return -EPROTO;
		t->has_seg_len = flags & FLAG_M;
		t->seg_len = t->has_seg_len ? get_be16(buf + pos) : 0;
		pos += 2;
	}
	if (flags & FLAG_D) {
		size_t n = copied_header_len(buf + pos, len - pos);

		if (!n)
			return -EPROTO;
		memcpy(t->ddp, buf + pos, n);
		t->ddp_len = (uint8_t)n;
		pos += n;
	}
	if (flags & FLAG_R) {
		if (len - pos < RDMAP_READ_REQUEST_LEN)
			return -EPROTO;
		memcpy(t->rdmap, buf + pos, RDMAP_READ_REQUEST_LEN);
		t->rdmap_len = RDMAP_READ_REQUEST_LEN;
	}
	return 0;
}
