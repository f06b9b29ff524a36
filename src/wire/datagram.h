/* SPDX-License-Identifier: MIT */
/*
 * Datagrams of unreliable queue pairs (UD), over UDP: a header, then the payload. And the 40 octets that a receive finds before it, as
 * RoCE v2 has them: an IPv6 header, or 20 octets of nothing and an IPv4 header.
 *
 *   0 "FLDG"  4 version  5 flags  6 number (2)  8 destination QPN  12 source QPN  16 Q_Key  20 immediate data
 *
 * The number is 0, but for what goes to a group: by it a member of the sender's own host knows what has come to it through memory.
 */
#ifndef FLUE_WIRE_DATAGRAM_H
#define FLUE_WIRE_DATAGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DATAGRAM_HEAD    24
#define DATAGRAM_MAX     4096 /* octets of a message */
#define DATAGRAM_GRH     40
#define DATAGRAM_VERSION 1
#define DATAGRAM_ALL     0xffffffu /* as destination: all members of the group it was sent to */
/* Who is a member of a group listens here. */
#define DATAGRAM_GROUP_PORT 47910

struct datagram {
	bool imm, solicited;
	uint32_t to, from; /* queue pair numbers, 24 bits */
	uint32_t qkey;
	uint8_t imm_data[4];
	uint16_t number; /* to a group; else 0 */
};

/* How it came, or goes: what the IP header says. Addresses of 4 octets, or with ipv6 of 16; the rest is 0. */
struct datagram_way {
	bool ipv6;
	uint8_t hops, tclass;
	uint8_t from[16], to[16];
};

void datagram_encode(const struct datagram *d, uint8_t buf[DATAGRAM_HEAD]);
/* The header of `len` octets that came. false: it is none of this version. */
bool datagram_decode(struct datagram *d, const uint8_t *buf, size_t len);

/* What a receive finds in front of a payload of `len` octets. */
void datagram_grh(uint8_t grh[DATAGRAM_GRH], const struct datagram_way *way, size_t len);

#endif
