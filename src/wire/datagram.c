/* SPDX-License-Identifier: MIT */
#include "wire/datagram.h"

#include <string.h>

#include "base/bytes.h"

#define FLAG_IMM       0x01
#define FLAG_SOLICITED 0x02
#define NUMBER_MAX     0xffffffu

#define IPV4_LEN     20
#define UDP_LEN      8
#define HOP_LIMIT    64
#define PROTOCOL_UDP 17

static const uint8_t magic[4] = { 'F', 'L', 'D', 'G' };

void datagram_encode(const struct datagram *d, uint8_t buf[DATAGRAM_HEAD])
{
	memcpy(buf, magic, sizeof(magic));
	buf[4] = DATAGRAM_VERSION;
	buf[5] = (uint8_t)((d->imm ? FLAG_IMM : 0) | (d->solicited ? FLAG_SOLICITED : 0));
	buf[6] = buf[7] = 0;
	put_be32(buf + 8, d->to);
	put_be32(buf + 12, d->from);
	put_be32(buf + 16, d->qkey);
	memcpy(buf + 20, d->imm_data, sizeof(d->imm_data));
}

bool datagram_decode(struct datagram *d, const uint8_t *buf, size_t len)
{
	if (len < DATAGRAM_HEAD || len > DATAGRAM_HEAD + DATAGRAM_MAX ||
	    memcmp(buf, magic, sizeof(magic)) || buf[4] != DATAGRAM_VERSION ||
	    buf[5] & ~(FLAG_IMM | FLAG_SOLICITED) || buf[6] || buf[7])
		return false;
	*d = (struct datagram) { .imm = buf[5] & FLAG_IMM,
				 .solicited = buf[5] & FLAG_SOLICITED,
				 .to = get_be32(buf + 8),
				 .from = get_be32(buf + 12),
				 .qkey = get_be32(buf + 16) };
	memcpy(d->imm_data, buf + 20, sizeof(d->imm_data));
	return d->to <= NUMBER_MAX && d->from <= NUMBER_MAX;
}

/* ---- the space in front ---- */

static uint16_t ipv4_checksum(const uint8_t *h)
{
	uint32_t sum = 0;

	for (int i = 0; i < IPV4_LEN; i += 2)
		sum += get_be16(h + i);
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return (uint16_t)~sum;
}

static void put_ipv4(uint8_t *h, const uint8_t *from, const uint8_t *to, uint16_t len)
{
	h[0] = 0x45;
	put_be16(h + 2, len);
	h[6] = 0x40; /* not to be cut */
	h[8] = HOP_LIMIT;
	h[9] = PROTOCOL_UDP;
	memcpy(h + 12, from, 4);
	memcpy(h + 16, to, 4);
	/* Programs tell the two forms apart by it. */
	put_be16(h + 10, ipv4_checksum(h));
}

void datagram_grh(uint8_t grh[DATAGRAM_GRH], bool ipv6, const uint8_t *from, const uint8_t *to,
		  size_t len)
{
	uint16_t whole = (uint16_t)(UDP_LEN + DATAGRAM_HEAD + len);

	memset(grh, 0, DATAGRAM_GRH);
	if (!ipv6) {
		put_ipv4(grh + DATAGRAM_GRH - IPV4_LEN, from, to, (uint16_t)(IPV4_LEN + whole));
		return;
	}
	grh[0] = 0x60;
	put_be16(grh + 4, whole);
	grh[6] = PROTOCOL_UDP;
	grh[7] = HOP_LIMIT;
	memcpy(grh + 8, from, 16);
	memcpy(grh + 24, to, 16);
}
