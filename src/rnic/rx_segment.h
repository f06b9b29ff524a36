/* SPDX-License-Identifier: MIT */
/*
 * What an inbound DDP segment means: the order checks, the place of its bytes, the delivery of
 * its message. Every segment is checked by itself, in 64-bit arithmetic, before a byte of it is
 * placed; state changes only in deliver (and when a receive is taken for a message's first
 * segment). Under the engine's lock.
 */
#ifndef FLUE_RNIC_RX_SEGMENT_H
#define FLUE_RNIC_RX_SEGMENT_H

#include <sys/uio.h>

#include "rnic/qp.h"

#define RX_TARGET_MAX RNIC_MAX_SGE

/* Local memory for a part of a segment's payload, held against revocation. */
struct rx_target {
	struct iovec iov[RX_TARGET_MAX + 1]; /* to be filled one after the other */
	struct mem *ref[RX_TARGET_MAX];
	uint32_t n, n_ref;
};

/* Does the queue pair still want segments? */
static inline bool rx_segment_listens(const struct qp *q)
{
	return q->state == QPS_RTS || q->state == QPS_CLOSING;
}

/* Has it bytes to place (by the first two octets of a ULPDU)? */
bool rx_segment_is_bulk(const uint8_t *ulpdu);

/* Not a fault: the segment came when none should, and the connection ends for that. */
#define RX_DROPPED UINT32_MAX
/* Nor is this: full service drops it, and it will come again. */
#define RX_SKIPPED (UINT32_MAX - 1)
/* Nor this: its octets could not be fetched, and are to be sent. */
#define RX_AGAIN (UINT32_MAX - 2)

/* Order and consistency. May take a receive from the queue. Behind it rx_segment_listens() and the
 * link's `open` must be looked at. */
uint32_t rx_segment_accept(struct qp *q, const struct ddp_segment *s, const uint8_t *payload);

/* Where bytes off..off+len of the payload go. On WIRE_OK rx_target_put() is owed. */
uint32_t rx_segment_target(struct qp *q, const struct ddp_segment *s, size_t off, size_t len,
			   struct rx_target *t);
void rx_target_put(struct rx_target *t);

/* Copies a part, or all, of the payload to its place. */
uint32_t rx_segment_place_part(struct qp *q, const struct ddp_segment *s, size_t off,
			       const uint8_t *bytes, size_t len);
uint32_t rx_segment_place(struct qp *q, const struct ddp_segment *s, const uint8_t *payload);

/* All bytes are in place. payload is NULL after direct placement. */
uint32_t rx_segment_deliver(struct qp *q, const struct ddp_segment *s, const uint8_t *payload);

/* All of the above for a message that comes as a whole: s->payload_len octets, in one segment. */
void rx_message(struct qp *q, const struct ddp_segment *s, const uint8_t *payload);

#endif
