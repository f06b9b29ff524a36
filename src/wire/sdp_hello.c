/* SPDX-License-Identifier: MIT */
/*
 * The two messages that open a connection. Behind the BSDH:
 *
 *          0        1        2           4            8           12    14
 *   iWARP  version  -        MaxAdverts  DesRemRcvSz  LocalRcvSz  ORD   IRD        Hello
 *          version  -        MaxAdverts  ActRcvSz     ORD   IRD                    HelloAck
 *   IB     version  IPV|caps - MaxAdv.   DesRemRcvSz  LocalRcvSz  port  -          Hello
 *          16 source (16)  32 destination (16)  48 -  50 ExtMaxAdverts  52 - (24)
 *          version  -        MaxAdverts  ActRcvSz     - (172)                      HelloAck
 *
 * One family of InfiniBand stacks sends only what it has names for, and says the full length all
 * the same because the CM fills up with zeros. A transport that does not fill up delivers the
 * short form; everything behind it is zero.
 */
#include <errno.h>
#include <string.h>

#include "base/bytes.h"
#include "wire/sdp.h"

#define OFF_BUFS 2
#define OFF_LEN  4
/* From here on counted with the BSDH. */
#define OFF_VERSION     16
#define OFF_IPV         17
#define OFF_ADVERTS     18
#define OFF_ADVERTS_LOW 19
#define OFF_SIZE        20 /* DesRemRcvSz or ActRcvSz */
#define OFF_LOCAL_SIZE  24
#define OFF_DEPTHS      28 /* Hello, iWARP */
#define OFF_ACK_DEPTHS  24 /* HelloAck, iWARP */
#define OFF_PORT        28
#define OFF_SOURCE      32
#define OFF_DEST        48
#define OFF_EXT_ADVERTS 66

/* BSDH and the fields that have names, in the short form. */
#define SHORT_HELLO_LEN 64
#define SHORT_ACK_LEN   24

static const size_t full_len[2][2] = {
	[SDP_IWARP] = { SDP_HELLO_IWARP_LEN, SDP_HELLO_ACK_IWARP_LEN },
	[SDP_IB] = { SDP_HELLO_IB_LEN, SDP_HELLO_ACK_IB_LEN },
};

/* 1 is the annex's and the draft's, 2 that of a family of InfiniBand stacks. */
static bool is_version(uint8_t major)
{
	return major == 1 || major == 2;
}

/* What both ends check (annex and draft: connection setup). */
static bool is_sound(const struct sdp_hello *h)
{
	if (h->max_adverts == 0 || h->bufs < SDP_BUFS_MIN || h->rcv_size < SDP_RCV_MIN)
		return false;
	if (h->layout == SDP_IWARP)
		return h->ord != 0 && h->ird != 0;
	return h->ack || h->ip_version == 0 || h->ip_version == 4 || h->ip_version == 6;
}

static bool is_extended(const struct sdp_hello *h)
{
	return h->caps & SDP_CAP_EXT_MAX_ADVERTS;
}

static void encode_ib_hello(const struct sdp_hello *h, uint8_t *buf)
{
	buf[OFF_IPV] = (uint8_t)(h->ip_version << 4 | h->caps);
	buf[OFF_ADVERTS] = 0;
	buf[OFF_ADVERTS_LOW] = h->max_adverts < 255 ? (uint8_t)h->max_adverts : 255;
	put_be16(buf + OFF_PORT, h->port);
	memcpy(buf + OFF_SOURCE, h->source, sizeof(h->source));
	memcpy(buf + OFF_DEST, h->dest, sizeof(h->dest));
	if (is_extended(h))
		put_be16(buf + OFF_EXT_ADVERTS, h->max_adverts);
}

static bool is_encodable(const struct sdp_hello *h)
{
	if (!is_sound(h) || !is_version(h->major) || h->minor > 15 || h->caps > 15)
		return false;
	return h->layout == SDP_IWARP || h->ack || h->max_adverts <= 255 || is_extended(h);
}

static void encode_depths(const struct sdp_hello *h, uint8_t *buf)
{
	uint8_t *depths = buf + (h->ack ? OFF_ACK_DEPTHS : OFF_DEPTHS);

	put_be16(depths, h->ord);
	put_be16(depths + 2, h->ird);
}

int sdp_hello_encode(const struct sdp_hello *h, uint8_t *buf, size_t cap)
{
	size_t len = full_len[h->layout][h->ack];

	if (!is_encodable(h))
		return -EINVAL;
	if (cap < len)
		return -EMSGSIZE;
	memset(buf, 0, len);
	buf[0] = h->ack ? SDP_HELLO_ACK : SDP_HELLO;
	put_be16(buf + OFF_BUFS, h->bufs);
	put_be32(buf + OFF_LEN, (uint32_t)len);
	buf[OFF_VERSION] = (uint8_t)(h->major << 4 | h->minor);
	/* One 16-bit number fits every reading of these two octets as long as it is small. */
	put_be16(buf + OFF_ADVERTS, h->max_adverts);
	put_be32(buf + OFF_SIZE, h->ack ? h->rcv_size : h->want_size);
	if (!h->ack)
		put_be32(buf + OFF_LOCAL_SIZE, h->rcv_size);
	if (h->layout == SDP_IWARP)
		encode_depths(h, buf);
	else if (!h->ack)
		encode_ib_hello(h, buf);
	return (int)len;
}

/* Whether `len` octets may be such a message that calls itself `said` octets long. */
static bool is_length(size_t len, uint32_t said, enum sdp_layout layout, bool ack)
{
	size_t full = full_len[layout][ack];
	size_t least = layout == SDP_IWARP ? full : ack ? SHORT_ACK_LEN : SHORT_HELLO_LEN;

	return len >= least && len <= full && said == full;
}

static void decode_ib_hello(struct sdp_hello *h, const uint8_t *buf, size_t len)
{
	h->ip_version = buf[OFF_IPV] >> 4;
	h->caps = buf[OFF_IPV] & 15;
	h->max_adverts = buf[OFF_ADVERTS_LOW];
	h->port = get_be16(buf + OFF_PORT);
	memcpy(h->source, buf + OFF_SOURCE, sizeof(h->source));
	memcpy(h->dest, buf + OFF_DEST, sizeof(h->dest));
	if (is_extended(h))
		h->max_adverts = len >= OFF_EXT_ADVERTS + 2 ? get_be16(buf + OFF_EXT_ADVERTS) : 0;
}

int sdp_hello_decode(struct sdp_hello *h, const uint8_t *buf, size_t len, enum sdp_layout layout,
		     bool ack)
{
	if (len < SDP_BSDH_LEN || !is_length(len, get_be32(buf + OFF_LEN), layout, ack))
		return -EMSGSIZE;
	if (buf[0] != (ack ? SDP_HELLO_ACK : SDP_HELLO))
		return -EPROTO;
	memset(h, 0, sizeof(*h));
	h->layout = layout;
	h->ack = ack;
	h->bufs = get_be16(buf + OFF_BUFS);
	h->major = buf[OFF_VERSION] >> 4;
	h->minor = buf[OFF_VERSION] & 15;
	h->max_adverts = get_be16(buf + OFF_ADVERTS);
	h->rcv_size = get_be32(buf + (ack ? OFF_SIZE : OFF_LOCAL_SIZE));
	h->want_size = ack ? 0 : get_be32(buf + OFF_SIZE);
	if (layout == SDP_IWARP) {
		const uint8_t *depths = buf + (ack ? OFF_ACK_DEPTHS : OFF_DEPTHS);

		h->ord = get_be16(depths);
		h->ird = get_be16(depths + 2);
	} else if (!ack) {
		decode_ib_hello(h, buf, len);
	}
	if (!is_version(h->major))
		return -EPROTONOSUPPORT;
	return is_sound(h) ? 0 : -EPROTO;
}

void sdp_hello_fit(struct sdp_hello *ours, const struct sdp_hello *peer)
{
	/* The layouts of 1 and 2 are compatible: speak the major that the peer spoke. */
	if (ours->major == peer->major)
		ours->minor = ours->minor < peer->minor ? ours->minor : peer->minor;
	else
		ours->minor = peer->minor;
	ours->major = peer->major;
	if (ours->layout == SDP_IWARP && ours->ord > peer->ird)
		ours->ord = peer->ird;
}
