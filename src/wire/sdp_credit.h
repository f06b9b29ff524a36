/* SPDX-License-Identifier: MIT */
/*
 * Sequence numbers and credits of one SDP connection, all of it. A credit is a receive private
 * buffer at the peer; over iWARP a message without one ends the connection, so the count must
 * never be too high. Everything is modulo 2^32.
 *
 * The caller's duties, in this order: sdp_credit_received() for each message that arrived, before
 * it is acted on; sdp_credit_posted() for each buffer given back to the transport;
 * sdp_credit_stamp() for each message right before it goes to the send queue. A buffer that holds
 * no octets of the stream must be posted again at once, whatever the program does: the other end
 * spends its last credits on such messages only.
 */
#ifndef FLUE_WIRE_SDP_CREDIT_H
#define FLUE_WIRE_SDP_CREDIT_H

#include <stdbool.h>
#include <stdint.h>

#include "wire/sdp.h"

struct sdp_credit {
	uint32_t first;   /* MSeq of the first message: 1, or 0 by the letter of the draft */
	uint32_t tx_next; /* MSeq of the next message we send */
	uint32_t rx_next; /* MSeq of the next message we receive */
	uint32_t posted;  /* receive private buffers posted now */
	/* What the peer said last, and the most buffers it ever announced. */
	uint32_t peer_bufs, peer_ack, peer_most;
	/* How many messages the peer may send in all, as far as we told. */
	uint32_t told;
	uint32_t frozen_ack;
	bool frozen, thawed;
	bool rx_any;
	/* An MSeqAck other than 0 was received or sent: from then on 0 is a number like others. */
	bool peer_acked, told_acked;
	bool leads;    /* we connected; breaks the tie between ends with three buffers */
	bool reminded; /* our last message was sent with two credits */
	bool heard;    /* more came than credit updates since the peer had enough credits */
};

/*
 * `announced` is the Bufs of our Hello or HelloAck. As many buffers are posted, and one more if
 * `first` is 0: then MSeqAck 0 can mean "nothing yet" or "the first", and a peer may count one too
 * many. `peer_bufs` is the peer's; an accepting peer that sends HelloAck as an ordinary Send passes
 * one less, for HelloAck took a buffer of the peer's.
 */
void sdp_credit_init(struct sdp_credit *c, uint32_t first, bool connecting, uint16_t announced,
		     uint16_t peer_bufs);

/* Number of messages that the peer has buffers for. */
uint32_t sdp_credit_left(const struct sdp_credit *c);

/*
 * A message arrived and took one of our buffers. -EPROTO: its number is not the next one, it
 * acknowledges what was never sent or takes an acknowledgement back, or nothing was posted.
 */
int sdp_credit_received(struct sdp_credit *c, const struct sdp_msg *m);

/* Buffers were posted. */
void sdp_credit_posted(struct sdp_credit *c, uint32_t n);

/*
 * The rule (annex CA4-82, draft: flow control). With no credit nothing may be sent; with one, only
 * what gives the peer credits and carries no payload; with two, whatever carries none; with three
 * or more, everything. SrcAvail counts as payload even without: both known stacks treat it so.
 */
bool sdp_credit_may_send(const struct sdp_credit *c, uint8_t mid, uint32_t payload_len);

/*
 * Whether an empty Data message must go out now, if no other message does. `wants` says that
 * payload waits for credits here. It returns false when the message may not be sent; ask again
 * after each message received and each buffer posted.
 */
bool sdp_credit_must_update(const struct sdp_credit *c, bool wants);

/* Fill Bufs, MSeq and MSeqAck of a message that goes out now. -EAGAIN: it may not be sent. */
int sdp_credit_stamp(struct sdp_credit *c, struct sdp_msg *m);

/*
 * Hold MSeqAck below the number of a SrcAvailCancel whose running reads are not yet reported; let
 * it go afterwards. The peer counts too few credits meanwhile, so an update follows the thaw.
 */
void sdp_credit_freeze(struct sdp_credit *c, uint32_t cancel_mseq);
void sdp_credit_thaw(struct sdp_credit *c);

/* a < b for sequence numbers less than 2^31 apart. */
static inline bool sdp_seq_before(uint32_t a, uint32_t b)
{
	return (int32_t)(a - b) < 0;
}

#endif
