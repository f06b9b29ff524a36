/* SPDX-License-Identifier: MIT */
/*
 * Sums are kept as numbers of messages since the beginning, not as MSeq: "received" is rx_next -
 * first, and so on. The peer's credits are then a difference of two sums and the formula of the
 * draft, Bufs - (LSSeq - MSeqAck), becomes Bufs - (sent - acknowledged).
 */
#include <errno.h>
#include <string.h>

#include "wire/sdp_credit.h"

#define BUFS_MAX 0xffffu

void sdp_credit_init(struct sdp_credit *c, uint32_t first, bool connecting, uint16_t announced,
		     uint16_t peer_bufs)
{
	memset(c, 0, sizeof(*c));
	c->leads = connecting;
	c->first = c->tx_next = c->rx_next = first;
	c->told = announced;
	c->posted = announced + (first == 0);
	c->peer_bufs = c->peer_most = peer_bufs;
}

/*
 * Messages that an MSeqAck stands for. If numbers begin with 0, then 0 means both "nothing yet"
 * and "the first"; it is taken for nothing until it has moved, because the other reading would
 * count a buffer that may not be there.
 */
static uint32_t acked(const struct sdp_credit *c, uint32_t ack, bool moved)
{
	return c->first == 0 && ack == 0 && !moved ? 0 : ack - c->first + 1;
}

static uint32_t sent(const struct sdp_credit *c)
{
	return c->tx_next - c->first;
}

static uint32_t received(const struct sdp_credit *c)
{
	return c->rx_next - c->first;
}

uint32_t sdp_credit_left(const struct sdp_credit *c)
{
	uint32_t in_flight = sent(c) - acked(c, c->peer_ack, c->peer_acked);

	/* Less than nothing is possible while the peer holds its MSeqAck. */
	return c->peer_bufs > in_flight ? c->peer_bufs - in_flight : 0;
}

/* The MSeqAck and Bufs of a message sent now. */
static uint32_t ack_now(const struct sdp_credit *c)
{
	if (c->frozen)
		return c->frozen_ack;
	return c->rx_any ? c->rx_next - 1 : 0;
}

static uint16_t bufs_now(const struct sdp_credit *c)
{
	uint32_t bufs = c->posted;

	/*
	 * A peer that follows the draft to the letter takes our 0 for "received the first", and
	 * so counts one buffer too many. We keep silent about one from the beginning.
	 */
	if (c->first == 0 && !c->rx_any)
		bufs--;
	return (uint16_t)(bufs < BUFS_MAX ? bufs : BUFS_MAX);
}

/* How many messages the peer may send in all, were we to tell it now. */
static uint32_t tellable(const struct sdp_credit *c)
{
	uint32_t ack = ack_now(c);

	return acked(c, ack, c->told_acked || ack != 0) + bufs_now(c);
}

static bool gives(const struct sdp_credit *c)
{
	return sdp_seq_before(c->told, tellable(c));
}

int sdp_credit_received(struct sdp_credit *c, const struct sdp_msg *m)
{
	bool moved = c->peer_acked || m->mseq_ack != 0;
	uint32_t before = acked(c, c->peer_ack, c->peer_acked);

	if (c->posted == 0 || m->mseq != c->rx_next)
		return -EPROTO;
	if (acked(c, m->mseq_ack, moved) - before > sent(c) - before)
		return -EPROTO;
	c->posted--;
	c->rx_next++;
	c->rx_any = true;
	c->peer_ack = m->mseq_ack;
	c->peer_acked = moved;
	c->peer_bufs = m->bufs;
	if (c->peer_most < m->bufs)
		c->peer_most = m->bufs;
	if (m->mid != SDP_DATA || m->payload_len)
		c->heard = true;
	return 0;
}

void sdp_credit_posted(struct sdp_credit *c, uint32_t n)
{
	c->posted += n;
}

bool sdp_credit_may_send(const struct sdp_credit *c, uint8_t mid, uint32_t payload_len)
{
	bool full = payload_len || mid == SDP_SRC_AVAIL;

	switch (sdp_credit_left(c)) {
	case 0: return false;
	case 1: return !full && gives(c);
	case 2: return !full;
	default: return true;
	}
}

/* Messages that the peer may still send, as far as it was told. */
static uint32_t peer_left(const struct sdp_credit *c)
{
	uint32_t left = c->told - received(c);

	/* Less than nothing, if what was told sank while MSeqAck was held. */
	return (int32_t)left < 0 ? 0 : left;
}

/*
 * The draft wants an update when the peer is down to one credit. At two it can send no payload any
 * more, and if it has nothing else to send it waits for ever; so two is the limit here. There is
 * one exception: if credit updates alone brought it down and we have just three buffers, the
 * accepting peer says nothing, for two such ends would answer each other's updates without end.
 */
static bool is_low(const struct sdp_credit *c)
{
	uint32_t left = peer_left(c);

	return left <= 1 ||
	       (left == 2 && (c->heard || c->leads || tellable(c) - received(c) > SDP_BUFS_MIN));
}

/*
 * A peer with three buffers may see no reason to speak while we have two. One of the two reminds
 * it. If both ends did so at the same time, again and again, each would find the other's reminder
 * older than its own and neither would get further: the accepting peer reminds once and waits.
 */
static bool must_remind(const struct sdp_credit *c)
{
	return sdp_credit_left(c) == 2 && c->peer_most <= SDP_BUFS_MIN &&
	       (c->leads || !c->reminded);
}

bool sdp_credit_must_update(const struct sdp_credit *c, bool wants)
{
	if (!sdp_credit_may_send(c, SDP_DATA, 0))
		return false;
	/* Before it runs low: when half as many as it has left have come up. */
	if (gives(c) &&
	    (c->thawed || is_low(c) || (c->heard && tellable(c) - c->told > peer_left(c) / 2)))
		return true;
	return wants && must_remind(c);
}

int sdp_credit_stamp(struct sdp_credit *c, struct sdp_msg *m)
{
	if (!sdp_credit_may_send(c, m->mid, m->payload_len))
		return -EAGAIN;
	c->reminded = sdp_credit_left(c) == 2;
	m->bufs = bufs_now(c);
	m->mseq_ack = ack_now(c);
	m->mseq = c->tx_next;
	c->told = tellable(c);
	c->told_acked |= m->mseq_ack != 0;
	c->tx_next++;
	c->thawed = false;
	/* A peer that is still low must hear again when more buffers are posted. */
	if (peer_left(c) >= SDP_BUFS_MIN)
		c->heard = false;
	return 0;
}

void sdp_credit_freeze(struct sdp_credit *c, uint32_t cancel_mseq)
{
	if (!c->frozen)
		c->frozen_ack = cancel_mseq - 1;
	c->frozen = true;
}

void sdp_credit_thaw(struct sdp_credit *c)
{
	c->thawed = c->frozen;
	c->frozen = false;
}
