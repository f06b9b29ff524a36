/* SPDX-License-Identifier: MIT */
/* Shared by the files of the stream. */
#ifndef FLUE_SOCKETS_STREAM_PRIV_H
#define FLUE_SOCKETS_STREAM_PRIV_H

#include "base/util.h"
#include "channel/ladder.h"
#include "sockets/home.h"
#include "sockets/order.h"

#define STREAM_IOV 64
/* A peer that keeps changing the word cannot hold us longer than this. */
#define STREAM_TRIES 10000

/* Buffers for the next `n` octets of the list; returns how many. */
size_t stream_cut(const struct lane_iov *list, size_t n, struct iovec out[STREAM_IOV]);
void stream_skip(struct lane_iov *list, size_t n);
/* The peer wrote nonsense: reset the connection. */
void stream_break(struct rec *r, int fd);
/* So much is about to be sent without a lane: is it time for one? */
void stream_grow(struct rec *r, int fd, size_t size);
/* So much was, by a call that may block: give the peer time to take our offer. */
void stream_pace(struct rec *r, int fd, size_t sent);

/* The peer may need to borrow a descriptor of it: this process has one. With a lock. */
void stream_hint(struct rec *r, int fd);
/* The bell of the process at the other end, or -1. */
int stream_bell(struct rec *r);

/* How leaving the lane ended. */
enum stream_left {
	STREAM_LEFT,
	STREAM_LATER, /* octets must go back to the carrier first, and cannot now */
	STREAM_BROKEN,
};
/* Leave the lane with what is sent. With the lock of sending; waits for nobody. `for_good`: what does not fit onto the
 * carrier stays in the ring, rather than that something else is sent before it. */
enum stream_left stream_leave(struct rec *r, int fd, bool for_good);

/* A step down that had to leave octets in the ring ends when they are read. With the lock of receiving. */
bool stream_is_down(struct rec *r, int fd);

/* May the ring be used at last? For the maker of a lane, once the peer has attached; with the lock of sending. */
bool stream_is_answered(struct rec *r, int fd);

/* What keeps a sender off the ring, whatever the receiver does. */
#define STREAM_NO_RING (REC_PEERGONE | REC_SHUT_WR | REC_PINNED | REC_UNANSWERED)
/* A call that must not block may still look so long whether the receiver makes room. */
#define STREAM_ROOM_NS 20000
bool stream_has_room(void *rec);
/* The receiver is taking octets back, and not for longer than that can take. */
bool stream_is_held(struct rec *r);
/* Where the reader runs. */
uint32_t stream_reader_cpu(const struct rec *r);

/* SO_SNDTIMEO of one call. */
struct stream_limit {
	uint64_t start; /* 0: not asked for yet */
	uint64_t most;  /* 0: none */
	bool some;      /* octets have gone out: any handler ends the call, with their number */
};
/* Sleep for room in the ring (*leave: there is none to be had) or on the carrier. Without a lock. 0: look again; -1 and
 * errno: not for this call. */
int stream_outwait_full(struct rec *r, int fd, struct stream_limit *l, bool *leave);
int stream_outwait_carrier(int fd, struct stream_limit *l);
/* The program must wait, perhaps for an edge: only we know when there is room. */
void stream_note_refusal(struct rec *r);

/* Its ring has grown. */
void stream_note_large(struct rec *r);

static inline size_t stream_size(const struct iovec *iov, size_t count)
{
	size_t n = 0;

	for (size_t i = 0; i < count; i++)
		n += iov[i].iov_len;
	return n;
}

/* One writer at a time: no need for a locked addition. */
static inline void stream_count(_Atomic uint64_t *what, uint64_t n)
{
	atomic_store_explicit(what, atomic_load_explicit(what, memory_order_relaxed) + n,
			      memory_order_relaxed);
}

/* Octets off the carrier. Those that were on their way when the connection became eligible do not count. */
static inline void stream_count_carrier(struct rec *r, uint64_t n)
{
	uint64_t before = atomic_load_explicit(&r->rx_before, memory_order_relaxed);
	uint64_t part;

	do {
		part = min_u64(before, n);
	} while (part > 0 && !atomic_compare_exchange_weak(&r->rx_before, &before, before - part));
	atomic_fetch_add_explicit(&r->received.tcp_bytes, n - part, memory_order_relaxed);
}

static inline void stream_note_cpu(_Atomic uint32_t *where)
{
	uint32_t cpu = ladder_cpu();

	if (atomic_load_explicit(where, memory_order_relaxed) != cpu)
		atomic_store_explicit(where, cpu, memory_order_relaxed);
}

#endif
