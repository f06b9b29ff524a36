/* SPDX-License-Identifier: MIT */
/*
 * The transfer state of the two half-connections, as an end needs it that moves octets through
 * private buffers only (Bcopy). Such an end must still understand adverts: it answers a SrcAvail
 * with SendSm, so that the source sends the octets instead, and lets a SinkAvail pass by sending
 * Data, which spends the advert at both ends (annex and draft: data transfer mechanisms).
 *
 *   in   the peer is the source, we are the sink
 *   out  we are the source, the peer is the sink
 *
 * Pure decisions: a message and this state give a verdict. Sequence numbers and credits are
 * counted in sdp_credit.h, before; the connection's states are in sdp_fsm.h.
 */
#ifndef FLUE_WIRE_SDP_HALF_H
#define FLUE_WIRE_SDP_HALF_H

#include <stdbool.h>
#include <stdint.h>

#include "wire/sdp.h"

/* Most adverts that we hold; the MaxAdverts of our Hello is at most this. */
#define SDP_ADVERTS_MAX 16

struct sdp_advert {
	uint32_t mseq;
	uint32_t len, key;
	uint64_t va;
	uint32_t done; /* octets that came as payload */
};

/* A ring, oldest first. */
struct sdp_adverts {
	struct sdp_advert at[SDP_ADVERTS_MAX];
	uint8_t head, count;
};

struct sdp_half_in {
	uint8_t mode; /* enum sdp_mode */
	uint32_t non_discards;
	struct sdp_adverts src; /* SrcAvails that are not yet answered */
	uint64_t owed;          /* octets the source must send because of our SendSms */
	bool cancelled;         /* adverts were dropped by a SrcAvailCancel: one SendSm is due */
	uint32_t oob_pending;   /* urgent octets announced and not yet here */
};

struct sdp_half_out {
	uint8_t mode;
	uint32_t pnd;            /* PotentialNonDiscards */
	struct sdp_adverts sink; /* fresh SinkAvails */
	bool cancelled;          /* dropped by a SinkAvailCancel: one SinkCancelAck is due */
	bool leaving;            /* Pipelined was left and the sink may not know it yet */
	uint32_t left_mseq;      /* of that ModeChange */
};

struct sdp_halves {
	struct sdp_half_in in;
	struct sdp_half_out out;
	uint8_t max_adverts; /* what our Hello said */
	bool resize_due;     /* a ChRcvBuf is unanswered */
	uint32_t resize_size;
	bool suspend_due; /* a SuspComm is unanswered */
	bool suspended;   /* the peer has promised to send nothing more */
};

enum sdp_verdict {
	SDP_OK,
	SDP_IGNORE,    /* nothing follows from it */
	SDP_ANSWER,    /* sdp_half_due() has something to send, maybe not for the first time */
	SDP_VIOLATION, /* abort the connection; the state is of no use any more */
};

/* Both halves begin in Combined. max_adverts is cut to SDP_ADVERTS_MAX. */
void sdp_half_init(struct sdp_halves *h, uint16_t max_adverts);

/*
 * A message arrived, in order. Except after VIOLATION its payload, if any, belongs to the stream
 * now, even if the rest of it is ignored. `why` (may be NULL) receives a word on a violation.
 */
enum sdp_verdict sdp_half_received(struct sdp_halves *h, const struct sdp_msg *m, const char **why);

/*
 * Which answer is due now: its MID, or SDP_DATA for none. The caller sends it as soon as there are
 * credits and before any payload, then calls sdp_half_sent(). Answers need fewer credits than
 * payload, and a payload that overtook SinkCancelAck would be put into a buffer that we have
 * dropped already. ChRcvBufAck says the size now in force.
 */
uint8_t sdp_half_due(const struct sdp_halves *h);

/* A message was stamped and goes out: Data, an answer, or a ModeChange that was allowed. */
void sdp_half_sent(struct sdp_halves *h, const struct sdp_msg *m);

/*
 * Whether we may send a ModeChange to `mode` for our send half (to_source false) or, leaving
 * Buffered, for our receive half (to_source true).
 */
bool sdp_half_may_change(const struct sdp_halves *h, uint8_t mode, bool to_source);

/* The peer has promised octets or may still do so: the receive half is not at rest. */
bool sdp_half_unfinished(const struct sdp_halves *h);

#endif
