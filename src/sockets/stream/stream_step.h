/* SPDX-License-Identifier: MIT */
/* Steps of sending and receiving that can be made now: what a call (sleep/call.h) is made of. With the lock of the
 * direction, on a connection that has a lane; nothing here waits. */
#ifndef FLUE_SOCKETS_STREAM_STEP_H
#define FLUE_SOCKETS_STREAM_STEP_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "channel/ladder.h"
#include "channel/lane.h"
#include "sockets/record/home.h"

/* So much goes over the carrier before the ring is tried again. */
#define STREAM_SHARE (64u << 10)

/* --- sending */

/* Why a step cannot be made now; -1 and errno is an error. */
enum {
	PUT_FULL = -2,    /* no room in the ring */
	PUT_CARRIER = -3, /* none on the carrier */
	PUT_HELD = -4,    /* the receiver takes octets back, or wants them and they do not fit */
	PUT_TURN = -5,    /* the receiver may let us into the ring in a moment */
	PUT_LEAVE = -6,   /* the ring is not to be used */
	PUT_OWN = -7,     /* a signal handler, within a send of this very thread */
};

/* One step, or a reason. `turn`: wait for the ring rather than take the carrier. */
ssize_t stream_put(struct rec *r, int fd, struct lane_iov *from, size_t want, int flags, bool turn);
/* Off the ring, and then by the carrier. */
ssize_t stream_put_left(struct rec *r, int fd, struct lane_iov *from, size_t want, int flags);
/* First thing with the lock. */
void stream_look_around(struct rec *r, int fd);
/* So many octets went by the carrier: those that count. The end that left the offer looks at it at the next turn, or
 * within so many octets: until then it cannot know of the lane, and the carrier is all there is. */
uint64_t stream_not_before(struct rec *r, uint64_t n);
/* The receiver is taking octets back, and not for longer than that can take. */
bool stream_is_held(struct rec *r);
/* There is room for a good part, or another way; for the ladder. */
bool stream_has_room(void *rec);
/* The ring is not to be used any more. */
bool stream_leaves_anyway(struct rec *r);
/* Is it worth waiting for the reader any longer? */
bool stream_reader_moves(struct rec *r);
/* The program must wait, perhaps for an edge: only we know when there is room. */
void stream_note_refusal(struct rec *r);
/* Where the reader runs. */
uint32_t stream_reader_cpu(const struct rec *r);

/* --- receiving */

/* What ended a round of taking. */
enum end {
	END_FULL,    /* as much as asked for */
	END_EMPTY,   /* the ring has no more */
	END_CARRIER, /* the carrier has no more for now */
	END_EOF,
	END_ERROR, /* errno */
	END_AGAIN, /* something came meanwhile: look again */
};

/* Everything that is there now, in order, from wherever it stands. `ask`: also whether the carrier has something. */
enum end stream_round(struct rec *r, int fd, struct lane_iov *to, size_t want, int flags, bool ask,
		      size_t *got);
/* Up to `n` octets off the carrier into the list. */
ssize_t stream_take_carrier(int fd, struct lane_iov *to, size_t n, int flags);
/* A step down that had to leave octets in the ring ends when they are read. */
bool stream_comes_down(struct rec *r, int fd);

static inline bool stream_is_down(struct rec *r, int fd)
{
	return (atomic_load_explicit(&r->flags, memory_order_relaxed) & REC_PINNED) &&
	       stream_comes_down(r, fd);
}

/* --- both */

/* The peer may need to borrow a descriptor of it: this process has one. */
void stream_hint(struct rec *r, int fd);

/* One writer at a time: no need for a locked addition. */
static inline void stream_count(_Atomic uint64_t *what, uint64_t n)
{
	atomic_store_explicit(what, atomic_load_explicit(what, memory_order_relaxed) + n,
			      memory_order_relaxed);
}

/* Where this end runs, for the other. */
static inline void stream_note_cpu(_Atomic uint32_t *where)
{
	uint32_t cpu = ladder_cpu();

	if (atomic_load_explicit(where, memory_order_relaxed) != cpu)
		atomic_store_explicit(where, cpu, memory_order_relaxed);
}

#endif
