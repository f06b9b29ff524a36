/* SPDX-License-Identifier: MIT */
/*
 * MPA, RFC 5044 and RFC 6581: start-up frames and their negotiation, FPDU framing with CRC32C
 * and markers. Pure functions over caller's memory: no I/O, no allocation, no clock.
 *
 * Start-up frames. A frame is 20 octets and up to 512 octets of private data. With revision 2
 * and the S flag the first four octets of the private data are the "enhanced" word (IRD, ORD
 * and the peer-to-peer flags); struct mpa_frame shows it decoded and `data` behind it.
 *
 * FPDU framing. One struct mpa_stream per direction. `pos` counts the octets of full operation
 * in that direction, because markers stand at fixed stream positions (0, 512, 1024, ...).
 */
#ifndef FLUE_WIRE_MPA_H
#define FLUE_WIRE_MPA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire/fault.h"

#define MPA_FRAME_LEN         20
#define MPA_PD_MAX            512 /* private data with the enhanced word */
#define MPA_ENHANCED_LEN      4
#define MPA_DEPTH_MAX         0x3ffe /* largest IRD/ORD that can be said */
#define MPA_DEPTH_UNSPECIFIED 0x3fff /* "the ULP negotiates this one" */

/* Flag octet of a start-up frame. */
#define MPA_FLAG_MARKERS  0x80
#define MPA_FLAG_CRC      0x40
#define MPA_FLAG_REJECT   0x20
#define MPA_FLAG_ENHANCED 0x10
/*
 * Own-peer handshake in the reserved bits. The request carries OFFER; only a Flue responder
 * answers with TAKEN and OFFER clear. Linux siw echoes the request's bits (OFFER set, TAKEN
 * clear) and other RNICs answer zeros, so neither can be mistaken for one of us. Bit 0x08 is
 * left alone: siw uses it as a private hint.
 */
#define MPA_FLAG_OWN_OFFER 0x01
#define MPA_FLAG_OWN_TAKEN 0x02

/*
 * Full service (docs/design/wire.md) begins with the same frames, under a revision of its own, so that
 * everybody else refuses it by itself. Behind the enhanced word stands who is at both ends.
 */
#define MPA_REV_FULL     0xf1
#define MPA_IDENTITY_LEN 52
#define MPA_FULL_VERSION 1

/* Where an end can be found on its own host (rnic/local.h). Other hosts make nothing of it. */
struct mpa_local {
	bool offered;   /* reply: taken */
	uint8_t box[8]; /* a mailbox */
	uint64_t name;  /* reply: of the duct */
	uint32_t pid, engine, circuit;
};

struct mpa_identity {
	uint8_t version;
	uint32_t qpn, peer_qpn; /* peer_qpn 0: whom the listener chooses */
	uint32_t psn;
	struct mpa_local local;
};

enum mpa_rtr { MPA_RTR_NONE = 0, MPA_RTR_SEND = 1, MPA_RTR_WRITE = 2, MPA_RTR_READ = 4 };

struct mpa_frame {
	bool reply;
	uint8_t flags; /* MPA_FLAG_*; ENHANCED says that the fields below are meant */
	uint8_t rev;
	bool p2p;    /* A: the initiator sends an RTR first */
	uint8_t rtr; /* mask of enum mpa_rtr */
	uint16_t ird, ord;
	struct mpa_identity identity; /* with MPA_REV_FULL */
	const uint8_t *data; /* ULP private data, without the enhanced word and the identity */
	uint16_t data_len;
};

/*
 * Write frame `f` to buf. Returns the number of octets, -EMSGSIZE when the private data with
 * the enhanced word exceeds 512 octets or `cap`, -EINVAL when a depth exceeds 14 bits or
 * ENHANCED is set with rev < 2.
 */
int mpa_frame_encode(const struct mpa_frame *f, uint8_t *buf, size_t cap);

/*
 * Read a frame from the first `len` octets of a stream. Returns
 *   > 0      octets used; *f points into buf,
 *   -EAGAIN  more octets are needed (everything so far is a legal beginning),
 *   -EPROTO  not a frame: wrong key for the role (`reply` says which is expected), private
 *            data too long, R set in a request, S set but too short for the enhanced word or the
 *            identity of full service, or none there.
 * Never looks at octets behind the frame. A wrong key is seen as early as its first octet.
 * Unknown revisions and reserved bits are not errors here; that is policy.
 */
int mpa_frame_decode(struct mpa_frame *f, const uint8_t *buf, size_t len, bool reply);

/* What one side wants of a connection. */
struct mpa_policy {
	uint8_t rev;       /* 1 or 2: the highest revision used; 0 selects the RDMAC style */
	bool crc;          /* insist on CRC */
	bool markers;      /* ask the peer to put markers into what it sends us */
	bool markers_ok;   /* we are willing to send markers when asked */
	bool p2p;          /* initiator: ask for the peer-to-peer model (rev 2) */
	uint8_t rtr;       /* mask: RTR kinds we can send (initiator) or take (responder) */
	bool own_peer;     /* offer/accept the own-peer handshake */
	uint16_t ird, ord; /* what we want; capped by the caller to its limits */
	uint16_t ird_max;  /* responder: may raise ird up to here to satisfy the peer */
	bool no_reads;     /* ird is 0 and stays so, whatever the peer wants */
	bool full;         /* full service and nothing else */
	struct mpa_identity identity;
};

/* What both sides agreed on, seen from here. */
struct mpa_terms {
	uint8_t rev;
	bool crc;
	bool tx_markers, rx_markers;
	bool p2p;
	enum mpa_rtr rtr; /* the one kind the initiator must send first; NONE without p2p */
	bool own_peer, full;
	uint16_t ird, ord;
	uint16_t peer_ird, peer_ord; /* as the peer said them; UNSPECIFIED without rev 2 */
};

/* Fill the request frame for a policy. `data` may be NULL with length 0. */
void mpa_make_request(const struct mpa_policy *p, const void *data, size_t len,
		      struct mpa_frame *req);

/*
 * Responder: judge a request against our policy and fill the reply (accepting form, without
 * private data) and the terms. Returns
 *   0            acceptable,
 *   -EPROTONOSUPPORT  revision unknown (or 0 without an RDMAC policy): close, or answer with our
 *                     revision and close; *rep is filled with R set,
 *   -EOPNOTSUPP  markers asked for and markers_ok is false: *rep is filled with R set,
 *   -ENOBUFS     peer's ORD exceeds what we can hold (ird_max): *rep has R set and says our IRD.
 */
int mpa_answer_request(const struct mpa_policy *p, const struct mpa_frame *req,
		       struct mpa_frame *rep, struct mpa_terms *t);

/* Turn a reply made by mpa_answer_request() into a rejection that keeps revision and form. */
void mpa_make_reject(struct mpa_frame *rep);

/*
 * Initiator: judge a reply to our request. Returns
 *   0              terms filled,
 *   -ECONNREFUSED  R was set,
 *   -EPROTONOSUPPORT  full service was asked for, and the peer speaks something else,
 *   -EPROTO        reply does not fit the request (form, revision),
 *   -EOPNOTSUPP    peer wants markers and markers_ok is false,
 *   -ENOBUFS       our IRD cannot hold the peer's ORD: Terminate FAULT_MPA_IRD is owed (terms
 *                  are filled so that it can be framed),
 *   -ENOMSG        no RTR kind in common: Terminate FAULT_MPA_RTR is owed, terms likewise.
 */
int mpa_take_reply(const struct mpa_policy *p, const struct mpa_frame *req,
		   const struct mpa_frame *rep, struct mpa_terms *t);

/* ---- FPDUs ---- */

#define MPA_LEN_LEN        2 /* the ULPDU_Length field */
#define MPA_CRC_LEN        4
#define MPA_PAD_MAX        3
#define MPA_MARKER_LEN     4
#define MPA_MARKER_SPACING 512
#define MPA_ULPDU_MAX      0xffff /* what the length field can say: receivers take all of it */
#define MPA_MULPDU_MIN     128
#define MPA_MULPDU_MAX     64768 /* what a sender may use */
/* Largest FPDU on the wire: length, ULPDU, pad, CRC and the markers inside and before it. */
#define MPA_FPDU_MAX (2 + 65535 + 3 + 4 + ((2 + 65535 + 3 + 4) / (MPA_MARKER_SPACING - 4) + 2) * 4)

struct mpa_stream {
	bool crc;
	bool markers;
	uint64_t pos; /* octets of full operation that went before in this direction */
};

static inline unsigned mpa_pad(size_t ulpdu_len)
{
	return (4 - ((MPA_LEN_LEN + ulpdu_len) & 3)) & 3;
}

/* Largest ULPDU for an effective maximum segment size, RFC 5044 section 5.1. */
size_t mpa_mulpdu(size_t emss, bool markers);

/* Octets on the wire of an FPDU with this ULPDU length that starts at s->pos. */
size_t mpa_fpdu_size(const struct mpa_stream *s, size_t ulpdu_len);

/*
 * Marker path of the sender: `body` is length field, ULPDU and pad in one piece (body_len is a
 * multiple of 4). Writes the FPDU with markers and CRC to out, which has room for
 * mpa_fpdu_size() octets, advances s->pos and returns the octets written. Works for streams
 * without markers too. With CRC off the CRC field is zero.
 */
size_t mpa_fpdu_build(struct mpa_stream *s, const uint8_t *body, size_t body_len, uint8_t *out);

/*
 * Receiver, step 1: find the FPDU at the beginning of buf. Returns 0 and sets *size (octets on
 * the wire) and *ulpdu_len when the length field is there, whether or not the FPDU is complete;
 * -EAGAIN when it is not.
 */
int mpa_fpdu_find(const struct mpa_stream *s, const uint8_t *buf, size_t avail, size_t *size,
		  size_t *ulpdu_len);

/*
 * Receiver, step 2: the FPDU found above is complete in buf. Checks every marker and the CRC
 * (as far as the stream has them), squeezes the markers out in place and sets *ulpdu to the
 * contiguous ULPDU inside buf. Returns WIRE_OK, FAULT_MPA_MARKER or FAULT_MPA_CRC. On WIRE_OK
 * s->pos is advanced; on a fault nothing changes in s and buf is undefined.
 */
uint32_t mpa_fpdu_open(struct mpa_stream *s, uint8_t *buf, size_t size, size_t ulpdu_len,
		       uint8_t **ulpdu);

#endif
