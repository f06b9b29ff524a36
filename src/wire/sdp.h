/* SPDX-License-Identifier: MIT */
/*
 * Messages of the Sockets Direct Protocol, the same octets over InfiniBand (annex A4) and iWARP
 * (draft-pinkerton-iwarp-sdp): base header (BSDH), extended header, payload, no padding. Pure
 * codecs over the caller's memory. Only the two Hellos differ between the transports.
 *
 * What a message may mean now is decided elsewhere: sdp_credit.h (sequence and credits),
 * sdp_half.h (modes and adverts), sdp_fsm.h (connection).
 */
#ifndef FLUE_WIRE_SDP_H
#define FLUE_WIRE_SDP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SDP_BSDH_LEN   16
#define SDP_HDR_MAX    36 /* BSDH and the largest extended header, SinkAH; not the Hellos */
#define SDP_RCV_MIN    37 /* smallest receive private buffer: headers and one octet */
#define SDP_BUFS_MIN   3  /* receive private buffers that a Hello must announce */
#define SDP_ADVERT_MAX 0x80000000u /* octets of one advertised buffer */

/* Flag octet of the BSDH; the five upper bits are sent as zero and not looked at. */
#define SDP_FLAG_OOB_PRES 0x01 /* the last octet of the payload is urgent */
#define SDP_FLAG_OOB_PEND 0x02 /* an urgent octet comes within 65535 octets */
#define SDP_FLAG_REQ_PIPE 0x04 /* in completions: the sender would prefer Pipelined mode */
#define SDP_FLAGS         0x07

/* clang-format off */
enum sdp_mid {
#define ROW(name, mid, text, ext, payload, sender, event) SDP_##name = (mid),
#include "wire/sdp_mid.def"
#undef ROW
};
/* clang-format on */

enum sdp_sender {
	SDP_FROM_EITHER,
	SDP_FROM_CONNECTING,
	SDP_FROM_ACCEPTING,
	SDP_FROM_SOURCE,
	SDP_FROM_SINK,
	SDP_FROM_MASTER, /* of the mode: source, in Buffered the sink */
};

/* When the transport's solicited event is asked for. URGENT: with either OOB flag. */
enum sdp_event_class { SDP_EVENT_NEVER, SDP_EVENT_ALWAYS, SDP_EVENT_URGENT };

struct sdp_mid_info {
	const char *name; /* NULL: reserved or experimental */
	uint8_t ext_len;
	bool payload; /* may carry octets of the stream */
	uint8_t sender, event;
};
/* By the whole MID octet; never NULL. */
const struct sdp_mid_info *sdp_mid_info(uint8_t mid);

enum sdp_mode { SDP_BUFFERED = 0, SDP_COMBINED = 1, SDP_PIPELINED = 2 };

/* One message. Which of the fields behind `payload` count depends on the MID. */
struct sdp_msg {
	uint8_t mid, flags;
	uint16_t bufs;
	uint32_t mseq, mseq_ack;
	const uint8_t *payload; /* decode: points into the buffer */
	uint32_t payload_len;
	uint32_t size;         /* completions: octets moved; ChRcvBuf and its ack: octets */
	uint32_t advert_len;   /* adverts: 1 to SDP_ADVERT_MAX */
	uint32_t key;          /* adverts: R_Key or STag */
	uint64_t va;           /* adverts: address or tagged offset */
	uint32_t non_discards; /* SinkAvail */
	uint8_t mode;          /* ModeChange: enum sdp_mode */
	bool to_source;        /* ModeChange: its receiver changes its send half */
	uint16_t port;         /* SuspComm: where the new owner listens, not 0 */
};

/*
 * Writes the headers of `m` to buf (SDP_HDR_MAX octets); the payload, of which only the length is
 * looked at, follows them on the wire. Returns the length of the headers, or -EINVAL for a message
 * that sdp_decode() would refuse.
 */
int sdp_encode(const struct sdp_msg *m, uint8_t *buf);

/*
 * Reads the message that the transport delivered in `len` octets. Returns
 *   0            *m is filled,
 *   -EMSGSIZE    len is not what the header says, or not possible for this MID,
 *   -EOPNOTSUPP  reserved or experimental MID,
 *   -EPROTO      a field has a value that it must not have; a Hello.
 * All three end the connection.
 */
int sdp_decode(struct sdp_msg *m, const uint8_t *buf, size_t len);

/* Whether the message must be sent with the solicited event; otherwise it must not be. */
bool sdp_is_solicited(const struct sdp_msg *m);

/* ---- Hello and HelloAck ---- */

enum sdp_layout { SDP_IWARP, SDP_IB };

#define SDP_HELLO_IWARP_LEN     32
#define SDP_HELLO_ACK_IWARP_LEN 28
#define SDP_HELLO_IB_LEN        92  /* all private data of a CM request */
#define SDP_HELLO_ACK_IB_LEN    196 /* all private data of a CM reply */
#define SDP_HELLO_MAX           196

/* Capabilities in a Hello over InfiniBand. */
#define SDP_CAP_INVALIDATE      0x1 /* Send with Invalidate may be used towards its sender */
#define SDP_CAP_EXT_MAX_ADVERTS 0x2 /* max_adverts has 16 bits */

struct sdp_hello {
	enum sdp_layout layout;
	bool ack;
	uint8_t major, minor; /* 1.1; 2.2 in one family of InfiniBand stacks */
	uint16_t bufs;        /* at least SDP_BUFS_MIN */
	uint16_t max_adverts; /* not 0; more than 255 needs iWARP, an ack, or the capability */
	uint32_t rcv_size;    /* of the sender's receive private buffers, headers included */
	uint32_t want_size;   /* Hello only: a hint for the size of the peer's */
	uint16_t ord, ird;    /* iWARP: not 0 */
	/* Hello over InfiniBand only: */
	uint8_t ip_version; /* 4 or 6; 0: the transport knows the addresses */
	uint8_t caps;
	uint16_t port;                /* of the connecting peer */
	uint8_t source[16], dest[16]; /* an IPv4 address is in the last four octets */
};

/*
 * Writes a Hello of the full length. Returns the length, -EMSGSIZE when `cap` is too small, or
 * -EINVAL for one that sdp_hello_decode() would refuse. MSeq and MSeqAck are zero.
 */
int sdp_hello_encode(const struct sdp_hello *h, uint8_t *buf, size_t cap);

/*
 * Reads a Hello (`ack` false) or HelloAck of `len` octets. Returns
 *   0                 *h is filled,
 *   -EMSGSIZE         not a length that this layout has,
 *   -EPROTONOSUPPORT  major version neither 1 nor 2,
 *   -EPROTO           wrong MID; adverts, depths or buffers below the minimum; IP version.
 * A minor version is never a reason to refuse. MSeq, MSeqAck and flags are not looked at.
 */
int sdp_hello_decode(struct sdp_hello *h, const uint8_t *buf, size_t len, enum sdp_layout layout,
		     bool ack);

/*
 * Fit our own Hello or HelloAck to the peer's: the version both know, and our ORD at most the
 * peer's IRD. The peer may read ORD and IRD in the other order; announce the same number in both.
 */
void sdp_hello_fit(struct sdp_hello *ours, const struct sdp_hello *peer);

#endif
