/* SPDX-License-Identifier: MIT */
/* Room in the ring, and what is still unread there: how it stands, and whether it is worth waiting. Nothing here sleeps. */
#include "base/clock.h"
#include "base/util.h"
#include "channel/times.h"
#include "sockets/record/sock.h"
#include "sockets/stream/stream.h"
#include "sockets/stream/stream_priv.h"

_Atomic uint32_t stream_refusals;

bool stream_has_room(void *arg)
{
	struct rec *r = arg;
	uint32_t head = atomic_load_explicit(&r->tx.dir->head, memory_order_acquire);
	uint64_t word = atomic_load_explicit(&r->tx.dir->word, memory_order_relaxed);

	return LANE_LOAD(r->tx.tail) - head <= lane_tx_limit(&r->tx) / 2 ||
	       (word & (LANE_GONE | LANE_RECALL)) || lane_tx_needs_octet(&r->tx, word);
}

size_t stream_unsent(struct rec *r)
{
	uint32_t unread = lane_tx_unread(&r->tx);

	return unread == UINT32_MAX ? 0 : unread;
}

bool stream_is_held(struct rec *r)
{
	uint64_t now = clock_now();

	if (LANE_LOAD(r->held_since) == 0)
		LANE_STORE(r->held_since, now);
	return now - LANE_LOAD(r->held_since) < TAKING_NS;
}

bool stream_leaves_anyway(struct rec *r)
{
	uint64_t word = atomic_load(&r->tx.dir->word);

	return sock_flag(r, STREAM_NO_RING) || (word & (LANE_GONE | LANE_RECALL)) ||
	       lane_tx_needs_octet(&r->tx, word);
}

/* Is it worth waiting for the reader any longer? */
bool stream_reader_moves(struct rec *r)
{
	uint32_t head = atomic_load_explicit(&r->tx.dir->head, memory_order_relaxed);
	uint64_t most = lane_rx_unread(&r->rx) > LANE_RING / 2 ? ROOM_DEADLOCK : ROOM_PATIENCE;
	uint64_t now = clock_now();

	if (LANE_LOAD(r->full_since) == 0)
		LANE_STORE(r->full_since, now);
	if (LANE_LOAD(r->moved_at) < LANE_LOAD(r->full_since) || LANE_LOAD(r->moved_head) != head) {
		LANE_STORE(r->moved_at, now);
		LANE_STORE(r->moved_head, head);
	}
	return now - LANE_LOAD(r->moved_at) < most;
}

/* The program must wait, perhaps for an edge: only we know when there is room. */
void stream_note_refusal(struct rec *r)
{
	atomic_fetch_add_explicit(&r->tx_refused, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&stream_refusals, 1, memory_order_relaxed);
}

bool stream_is_full(const struct rec *r)
{
	if (!sock_has_lane(r) || !lane_tx_in_ring(&r->tx))
		return false;
	/* Octets are on their way back to the carrier, and must be there before others. */
	if (atomic_load_explicit(&r->tx.dir->word, memory_order_relaxed) &
	    (LANE_TAKING | LANE_RECALL))
		return true;
	return !stream_has_room((void *)r) && !sock_flag(r, STREAM_NO_RING);
}

bool stream_wants_room(struct rec *r)
{
	if (stream_is_full(r)) {
		uint64_t word = atomic_load_explicit(&r->tx.dir->word, memory_order_relaxed);

		if (word & LANE_TAKING)
			return stream_is_held(r);
		return (word & LANE_RECALL) || stream_reader_moves(r);
	}
	LANE_STORE(r->full_since, 0);
	return false;
}

bool stream_can_be_rung(const struct rec *r)
{
	/* Nobody would tell of a peer that said it sends no more, and then died. */
	return atomic_load_explicit(r->tx_holds, memory_order_relaxed) &&
	       !(atomic_load_explicit(&r->rx.dir->word, memory_order_relaxed) & LANE_FIN);
}

bool stream_ask_room(struct rec *r)
{
	atomic_fetch_or(&r->tx.dir->tx_sleeps, LANE_ROOM_BELL);
	return stream_is_full(r);
}

bool stream_may_nap(const struct rec *r)
{
	return clock_now() - LANE_LOAD(r->full_since) < ROOM_NAP;
}

int64_t stream_glance(const struct rec *r)
{
	uint64_t ns = (clock_now() - LANE_LOAD(r->full_since)) / 4;

	return (int64_t)min_u64(ns + ROOM_GLANCE_LEAST, ROOM_GLANCE_MOST);
}

bool stream_writable(struct rec *r)
{
	uint32_t head = atomic_load_explicit(&r->tx.dir->head, memory_order_acquire);

	return lane_tx_in_ring(&r->tx) &&
	       LANE_LOAD(r->tx.tail) - head <= lane_tx_limit(&r->tx) / 2 &&
	       !(atomic_load_explicit(&r->tx.dir->word, memory_order_relaxed) &
		 (LANE_GONE | LANE_RECALL | LANE_TAKING)) &&
	       !sock_flag(r, STREAM_NO_RING);
}

void stream_told_writable(struct rec *r)
{
	atomic_store_explicit(&r->tx_told, 1, memory_order_relaxed);
}
