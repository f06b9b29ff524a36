/* SPDX-License-Identifier: MIT */
/*
 * DDP headers: the verdict must be that of a second, plainer statement of the rules; what is
 * read must be what is written; and a Terminate must be possible for every fault.
 *
 * Input: versions (1 octet), octets that have not come yet (2), then the ULPDU.
 */
#include "fuzz.h"

#include "base/bytes.h"
#include "wire/ddp.h"
#include "wire/rdmap.h"

/* The rules once more, from the tables in docs/design/wire.md, in the order of checking. */
static uint32_t judge_untagged(const uint8_t *u, size_t len, unsigned op, bool full)
{
	static const int queue[16] = { -1, 1, -1, 0, 0, 0, 0, 2, 0, 0, 1, 3, 0, 0, -1, 4 };
	static const size_t shortest[16] = { 0, 28, 0, 0, 0, 0, 0, 4, 8, 8, 52, 12, 0, 0, 0, 8 };
	static const size_t longest[16] = { 0, 28, 0, 0, 0, 0, 0, 52, 8, 8, 52, 12, 0, 0, 0, 8 };
	size_t payload = len - 18;

	if ((op > 11 && !full) || queue[op] < 0)
		return WIRE_FAULT(0, 2, 0x06);
	if (get_be32(u + 6) != (uint32_t)queue[op])
		return WIRE_FAULT(1, 2, 0x01);
	if (longest[op] == 0)
		return 0;
	if (get_be32(u + 14) != 0)
		return WIRE_FAULT(1, 2, 0x04);
	if (!(u[0] & 0x40) || payload < shortest[op] || payload > longest[op])
		return WIRE_FAULT(1, 0, 0x00);
	return 0;
}

static uint32_t judge(const struct ddp_params *p, const uint8_t *u, size_t len)
{
	bool tagged = len > 0 && u[0] & 0x80;

	if (len < 2)
		return WIRE_FAULT(1, 0, 0x00);
	if ((u[0] & 3) != p->dv)
		return tagged ? WIRE_FAULT(1, 1, 0x04) : WIRE_FAULT(1, 2, 0x06);
	if (len < (tagged ? 14 : 18))
		return WIRE_FAULT(1, 0, 0x00);
	if (u[1] >> 6 != p->rv)
		return WIRE_FAULT(0, 2, 0x05);
	if (!tagged)
		return judge_untagged(u, len, u[1] & 15, p->full);
	return (u[1] & 15) == 0 || (u[1] & 15) == 2 ? 0 : WIRE_FAULT(0, 2, 0x06);
}

/* A whole header was read: writing it again must give the same octets, reserved bits aside. */
static void check_rewrite(const uint8_t *u, const struct ddp_segment *s, bool full)
{
	const struct ddp_params as_read = { .dv = u[0] & 3, .rv = u[1] >> 6, .full = full };
	uint8_t *out = malloc(s->hdr_len);
	struct ddp_segment back;

	CHECK(ddp_encode(&as_read, s, out) == s->hdr_len);
	CHECK(out[0] == (u[0] & 0xc3) && out[1] == (u[1] & (s->ack ? 0xef : 0xcf)));
	CHECK(!s->ack || (full && u[1] & 0x20));
	CHECK(memcmp(out + 2, u + 2, s->hdr_len - 2u) == 0);
	ddp_decode(&as_read, out, s->hdr_len, s->hdr_len, &back);
	CHECK(back.opcode == s->opcode && back.tagged == s->tagged && back.last == s->last);
	CHECK(back.stag == s->stag && back.to == s->to && back.inv_stag == s->inv_stag);
	CHECK(back.qn == s->qn && back.msn == s->msn && back.mo == s->mo);
	free(out);
}

static void check_terminate(uint32_t fault, const uint8_t *u, size_t have, size_t ulpdu_len,
			    const struct ddp_segment *s)
{
	struct rdmap_terminate t, back;
	uint8_t buf[RDMAP_TERMINATE_MAX];
	size_t len;

	rdmap_terminate_for(&t, fault, u, have, ulpdu_len, s);
	CHECK(t.fault == fault && t.ddp_len <= s->hdr_len);
	CHECK(t.ddp_len == 0 || (t.has_seg_len && t.seg_len == (uint16_t)ulpdu_len));
	len = rdmap_terminate_encode(&t, buf);
	CHECK(len >= 4 && len <= sizeof(buf));
	CHECK(rdmap_terminate_decode(&back, buf, len) == 0);
	CHECK(back.fault == fault && back.ddp_len == t.ddp_len && back.seg_len == t.seg_len);
	CHECK(memcmp(back.ddp, u, t.ddp_len) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct source in = { data, size };
	uint8_t mode = (uint8_t)take(&in, 1);
	struct ddp_params p = { .dv = 1, .rv = 1 };
	size_t missing = take(&in, 2), ulpdu_len;
	struct ddp_segment s;
	uint32_t fault;
	uint8_t *u;

	if (mode & 1)
		p = (struct ddp_params) { .dv = mode >> 1 & 3, .rv = mode >> 3 & 3 };
	p.full = mode & 0x40;
	/* Direct placement decodes before the payload is there. */
	ulpdu_len = in.left + (mode & 0x80 && in.left >= DDP_HDR_MAX ? missing : 0);
	u = exact_copy(in.data, in.left);
	fault = ddp_decode(&p, u, in.left, ulpdu_len, &s);
	CHECK(fault == judge(&p, u, ulpdu_len));
	CHECK(s.hdr_len == 0 || s.hdr_len == (s.tagged ? DDP_TAGGED_LEN : DDP_UNTAGGED_LEN));
	CHECK(s.hdr_len <= in.left && s.hdr_len + s.payload_len <= ulpdu_len);
	CHECK(fault || s.hdr_len + s.payload_len == ulpdu_len);
	CHECK(s.opcode < RDMAP_NOPS);
	if (s.hdr_len)
		check_rewrite(u, &s, p.full);
	if (fault)
		CHECK(wire_fault_is_legal(fault) && wire_fault_name(fault));
	else
		CHECK(rdmap_ops[s.opcode].name);
	check_terminate(fault ? fault : FAULT_RDMAP_BOUNDS, u, in.left, ulpdu_len, &s);
	free(u);
	return 0;
}
