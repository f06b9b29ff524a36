/* SPDX-License-Identifier: MIT */
#include "wire/datagram.h"

#include <string.h>

#include "base/bytes.h"

#define FLAG_IMM       0x01
#define FLAG_SOLICITED 0x02
#define NUMBER_MAX     0xffffffu

#define IPV4_LEN     20
#define UDP_LEN      8
#define PROTOCOL_UDP 17

static const uint8_t magic[4] = { 'F', 'L', 'D', 'G' };

void datagram_encode(const struct datagram *d, uint8_t buf[DATAGRAM_HEAD])
{
	memcpy(buf, magic, sizeof(magic));
	buf[4] = DATAGRAM_VERSION;
	buf[5] = (uint8_t)((d->imm ? FLAG_IMM : 0) | (d->solicited ? FLAG_SOLICITED : 0));
	put_be16(buf + 6, d->number);
	put_be32(buf + 8, d->to);
	put_be32(buf + 12, d->from);
	put_be32(buf + 16, d->qkey);
	memcpy(buf + 20, d->imm_data, sizeof(d->imm_data));
}

bool datagram_decode(struct datagram *d, const uint8_t *buf, size_t len)
{
	if (len < DATAGRAM_HEAD || len > DATAGRAM_HEAD + DATAGRAM_MAX ||
	    memcmp(buf, magic, sizeof(magic)) || buf[4] != DATAGRAM_VERSION ||
	    buf[5] & ~(FLAG_IMM | FLAG_SOLICITED))
		return false;
	*d = (struct datagram) { .imm = buf[5] & FLAG_IMM,
				 .solicited = buf[5] & FLAG_SOLICITED,
				 .to = get_be32(buf + 8),
				 .from = get_be32(buf + 12),
				 .qkey = get_be32(buf + 16),
				 .number = get_be16(buf + 6) };
	memcpy(d->imm_data, buf + 20, sizeof(d->imm_data));
	return d->to <= NUMBER_MAX && d->from <= NUMBER_MAX &&
	       (!d->number || d->to == DATAGRAM_ALL);
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

static void put_ipv4(uint8_t *h, const struct datagram_way *way, uint16_t len)
{
	h[0] = 0x45;
	h[1] = way->tclass;
	put_be16(h + 2, len);
	h[6] = 0x40; /* not to be cut */
	h[8] = way->hops;
	h[9] = PROTOCOL_UDP;
	memcpy(h + 12, way->from, 4);
	memcpy(h + 16, way->to, 4);
	/* Programs tell the two forms apart by it. */
	put_be16(h + 10, ipv4_checksum(h));
}

void datagram_grh(uint8_t grh[DATAGRAM_GRH], const struct datagram_way *way, size_t len)
{
	uint16_t whole = (uint16_t)(UDP_LEN + DATAGRAM_HEAD + len);

	memset(grh, 0, DATAGRAM_GRH);
	if (!way->ipv6) {
		put_ipv4(grh + DATAGRAM_GRH - IPV4_LEN, way, (uint16_t)(IPV4_LEN + whole));
		return;
	}
	grh[0] = (uint8_t)(0x60 | way->tclass >> 4);
	grh[1] = (uint8_t)(way->tclass << 4);
	put_be16(grh + 4, whole);
	grh[6] = PROTOCOL_UDP;
	grh[7] = way->hops;
	memcpy(grh + 8, way->from, 16);
	memcpy(grh + 24, way->to, 16);
}
