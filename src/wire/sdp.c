/* SPDX-License-Identifier: MIT */
/*
 * The BSDH, first in every message, and what follows it:
 *
 *   0    1      2     4    8     12       16
 *   MID  flags  Bufs  Len  MSeq  MSeqAck  extended header, payload
 *
 *   SrcAH   0 Len  4 key  8 VA (8)                   RWCH, RRCH    0 Len
 *   SinkAH  as SrcAH, 16 NonDiscards                 CRBH, CRBAH   0 size
 *   MCH     0 S(1) mode(3) reserved(28)              SuspCH        0 zero (4)  4 one (2)  6 port
 *
 * The figures of the iWARP draft count bits from the left but weigh them from the right: what it
 * draws last in a word is first on the wire.
 */
#include <errno.h>
#include <string.h>

#include "base/bytes.h"
#include "wire/sdp.h"

#define OFF_FLAGS    1
#define OFF_BUFS     2
#define OFF_LEN      4
#define OFF_MSEQ     8
#define OFF_MSEQ_ACK 12

#define MCH_TO_SOURCE  0x80
#define MCH_MODE_SHIFT 4

/* The first half of SuspCH, on purpose the same as in a Service ID of InfiniBand. */
#define SUSP_PREFIX_LEN 6
static const uint8_t susp_prefix[SUSP_PREFIX_LEN] = { 0, 0, 0, 0, 0, 1 };

/* clang-format off */
static const struct sdp_mid_info mids[256] = {
#define ROW(nm, mid, text, ext, pay, from, ev)                                                    \
	[(mid)] = { .name = text, .ext_len = ext, .payload = pay, .sender = SDP_FROM_##from,      \
		    .event = SDP_EVENT_##ev },
#include "wire/sdp_mid.def"
#undef ROW
};
/* clang-format on */

const struct sdp_mid_info *sdp_mid_info(uint8_t mid)
{
	return &mids[mid];
}

/* The four changes that exist; each belongs to one pair of modes (annex: mode transitions). */
static bool is_mode_octet(uint8_t octet)
{
	return octet == 0x00 || octet == 0x10 || octet == 0x20 || octet == 0x90;
}

static uint8_t mode_octet(const struct sdp_msg *m)
{
	return (uint8_t)((m->to_source ? MCH_TO_SOURCE : 0) | m->mode << MCH_MODE_SHIFT);
}

/* The rules that one message can break alone. Both directions of the codec ask. */
static bool is_sound(const struct sdp_msg *m)
{
	const struct sdp_mid_info *info = &mids[m->mid];

	if (!info->name || m->mid == SDP_HELLO || m->mid == SDP_HELLO_ACK)
		return false;
	if (m->payload_len && !info->payload)
		return false;
	/* The urgent octet travels in a Data message only, and it must be there. */
	if (m->flags & SDP_FLAG_OOB_PRES && (m->mid != SDP_DATA || m->payload_len == 0))
		return false;
	switch (m->mid) {
	case SDP_SRC_AVAIL:
	case SDP_SINK_AVAIL: return m->advert_len - 1 < SDP_ADVERT_MAX;
	case SDP_MODE_CHANGE: return m->mode <= SDP_PIPELINED && is_mode_octet(mode_octet(m));
	case SDP_SUSP_COMM: return m->port != 0;
	default: return true;
	}
}

static void encode_ext(const struct sdp_msg *m, uint8_t *ext)
{
	switch (m->mid) {
	case SDP_SINK_AVAIL:
	case SDP_SRC_AVAIL:
		put_be32(ext, m->advert_len);
		put_be32(ext + 4, m->key);
		put_be64(ext + 8, m->va);
		if (m->mid == SDP_SINK_AVAIL)
			put_be32(ext + 16, m->non_discards);
		break;
	case SDP_MODE_CHANGE: put_be32(ext, (uint32_t)mode_octet(m) << 24); break;
	case SDP_SUSP_COMM:
		memcpy(ext, susp_prefix, SUSP_PREFIX_LEN);
		put_be16(ext + SUSP_PREFIX_LEN, m->port);
		break;
	default:
		if (mids[m->mid].ext_len)
			put_be32(ext, m->size);
		break;
	}
}

int sdp_encode(const struct sdp_msg *m, uint8_t *buf)
{
	size_t hdr_len = SDP_BSDH_LEN + mids[m->mid].ext_len;
	uint64_t len = (uint64_t)hdr_len + m->payload_len;

	if (!is_sound(m) || m->flags & ~SDP_FLAGS || len > UINT32_MAX)
		return -EINVAL;
	buf[0] = m->mid;
	buf[OFF_FLAGS] = m->flags;
	put_be16(buf + OFF_BUFS, m->bufs);
	put_be32(buf + OFF_LEN, (uint32_t)len);
	put_be32(buf + OFF_MSEQ, m->mseq);
	put_be32(buf + OFF_MSEQ_ACK, m->mseq_ack);
	encode_ext(m, buf + SDP_BSDH_LEN);
	return (int)hdr_len;
}

static int decode_ext(struct sdp_msg *m, const uint8_t *ext)
{
	switch (m->mid) {
	case SDP_SINK_AVAIL:
	case SDP_SRC_AVAIL:
		m->advert_len = get_be32(ext);
		m->key = get_be32(ext + 4);
		m->va = get_be64(ext + 8);
		if (m->mid == SDP_SINK_AVAIL)
			m->non_discards = get_be32(ext + 16);
		return 0;
	case SDP_MODE_CHANGE:
		/* The whole octet: its four low bits are reserved, yet legal octets are four. */
		if (!is_mode_octet(ext[0]))
			return -EPROTO;
		m->to_source = ext[0] & MCH_TO_SOURCE;
		m->mode = (ext[0] & ~MCH_TO_SOURCE) >> MCH_MODE_SHIFT;
		return 0;
	case SDP_SUSP_COMM:
		m->port = get_be16(ext + SUSP_PREFIX_LEN);
		return memcmp(ext, susp_prefix, SUSP_PREFIX_LEN) == 0 ? 0 : -EPROTO;
	default:
		if (mids[m->mid].ext_len)
			m->size = get_be32(ext);
		return 0;
	}
}

int sdp_decode(struct sdp_msg *m, const uint8_t *buf, size_t len)
{
	const struct sdp_mid_info *info;
	size_t hdr_len;

	if (len < SDP_BSDH_LEN || get_be32(buf + OFF_LEN) != len)
		return -EMSGSIZE;
	/* Not a part of the octet: masked, a bogus MID would be taken for a real one. */
	info = &mids[buf[0]];
	if (!info->name)
		return -EOPNOTSUPP;
	hdr_len = SDP_BSDH_LEN + info->ext_len;
	if (len < hdr_len || (len > hdr_len && !info->payload))
		return -EMSGSIZE;
	memset(m, 0, sizeof(*m));
	m->mid = buf[0];
	m->flags = buf[OFF_FLAGS] & SDP_FLAGS;
	m->bufs = get_be16(buf + OFF_BUFS);
	m->mseq = get_be32(buf + OFF_MSEQ);
	m->mseq_ack = get_be32(buf + OFF_MSEQ_ACK);
	m->payload = buf + hdr_len;
	m->payload_len = (uint32_t)(len - hdr_len);
	if (decode_ext(m, buf + SDP_BSDH_LEN) || !is_sound(m))
		return -EPROTO;
	return 0;
}

bool sdp_is_solicited(const struct sdp_msg *m)
{
	uint8_t event = mids[m->mid].event;

	if (event == SDP_EVENT_URGENT)
		return m->flags & (SDP_FLAG_OOB_PRES | SDP_FLAG_OOB_PEND);
	return event == SDP_EVENT_ALWAYS;
}
