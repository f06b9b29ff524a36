/* SPDX-License-Identifier: MIT */
/* Shared by the files of the stream. */
#ifndef FLUE_SOCKETS_STREAM_PRIV_H
#define FLUE_SOCKETS_STREAM_PRIV_H

#include "sockets/record/home.h"
#include "sockets/stream/stream_step.h"

/* A peer that keeps changing the word cannot hold us longer than this. */
#define STREAM_TRIES 10000
/* What keeps a sender off the ring, whatever the receiver does. */
#define STREAM_NO_RING (REC_PEERGONE | REC_SHUT_WR | REC_PINNED | REC_UNANSWERED)

/* --- stream_peer.c */
/* The peer wrote nonsense: reset the connection. */
void stream_break(struct rec *r, int fd);
void stream_reset_on_close(int fd);
/* The bell of the process at the other end, or -1. */
int stream_bell(struct rec *r);

/* --- stream_leave.c */
/* What the kernel takes at once, or PUT_CARRIER. */
ssize_t stream_put_carrier(struct rec *r, int fd, struct lane_iov *from, size_t n, int flags);
/* How leaving the lane ended. */
enum stream_left {
	STREAM_LEFT,
	STREAM_LATER, /* octets must go back to the carrier first, and cannot now */
	STREAM_BROKEN,
};
/* Leave the lane with what is sent. With the lock of sending; waits for nobody. `for_good`: what does not fit onto the
 * carrier stays in the ring, rather than that something else is sent before it. */
enum stream_left stream_leave(struct rec *r, int fd, bool for_good);

/* --- stream_answer.c */
/* May the ring be used at last? For the maker of a lane, once the peer has attached; with the lock of sending. */
bool stream_is_answered(struct rec *r, int fd);

/* --- stream_trim.c */
/* Its ring has grown. */
void stream_note_large(struct rec *r);

#endif
