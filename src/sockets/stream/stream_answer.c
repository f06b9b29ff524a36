/* SPDX-License-Identifier: MIT */
/* SDP's set-up on a lane, the maker's last look: the other end's HelloAck. */
#include "base/robust.h"
#include "channel/arena.h"
#include "sockets/record/record.h"
#include "sockets/record/sock.h"
#include "sockets/stream/hello.h"
#include "sockets/stream/stream.h"
#include "sockets/stream/stream_priv.h"

bool stream_is_answered(struct rec *r, int fd)
{
	bool ok = hello_is_answered(&arena_memory(r->end.arena)->lane[r->end.lane]);
	uint64_t word;

	if (!ok)
		atomic_fetch_or(&r->flags, REC_PINNED);
	atomic_fetch_and(&r->flags, ~(uint32_t)REC_UNANSWERED);
	if (ok)
		return true;
	/* Our octets stay where they are, on the carrier, and the peer is told to come there as well. */
	atomic_store_explicit(&r->why, WHY_HELLO, memory_order_relaxed);
	word = lane_rx_forsake(&r->rx);
	atomic_fetch_add(&r->home->stepdowns, 1);
	if (!robust_try(&r->rx_lock))
		return false; /* what it sent into the ring meanwhile is read from there */
	if ((word & LANE_PLACE) == lane_rx_here(&r->rx) && !lane_rx_in_ring(&r->rx)) {
		stream_restore_options(r, fd);
		record_step(r, REC_EV_LEAVE);
	}
	robust_give(&r->rx_lock);
	return false;
}
