/* SPDX-License-Identifier: MIT */
/*
 * The octets of a connection that has a lane: over the carrier and over the ring. What can be asked and done at any time,
 * without waiting; stream_step.h has the steps of calls.
 */
#ifndef FLUE_SOCKETS_STREAM_H
#define FLUE_SOCKETS_STREAM_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/clock.h"
#include "channel/times.h"
#include "sockets/record/home.h"

/* The lane went away meanwhile: begin again, see attach/young.h. */
#define STREAM_AGAIN (-2)

/* STREAM_AGAIN: not its number any more. */
int stream_shutdown(struct rec *r, int fd, int how);
/* An error for the next call; whoever waits must see it. */
void stream_keep_error(struct rec *r, int error);
/* Octets off the carrier. Those that were on their way when the connection became eligible do not count. */
void stream_count_carrier(struct rec *r, uint64_t n);
/* Octets that the kernel does not count: unread here, unread by the peer. */
size_t stream_unread(struct rec *r);
/* The same with what is on the carrier, and the end as one more, as TCP_INQ tells it. */
int stream_left(struct rec *r, int fd);
size_t stream_unsent(struct rec *r);
/* Lane readiness: what the kernel cannot know. */
bool stream_readable(struct rec *r);
bool stream_writable(struct rec *r);
/* The carrier may have something to tell: octets, room, or the end of the stream. */
bool stream_ask_kernel(const struct rec *r);
/* Counts sends that were refused for a full ring, in this process. */
extern _Atomic uint32_t stream_refusals;
/* The ring is full, though the carrier may have room. */
bool stream_is_full(const struct rec *r);
/* ... and it is worth waiting for the reader. */
bool stream_wants_room(struct rec *r);
/* Is that still the thing to do? Afterwards the writer sleeps in the kernel, which must not know that it wants to write,
 * and looks around after so many nanoseconds. */
bool stream_may_nap(const struct rec *r);
int64_t stream_glance(const struct rec *r);
/* A peer that was killed has told nobody but the kernel: ask it; or only if that was not done just now. */
void stream_ask_for_end(struct rec *r, int fd);

static inline void stream_look_for_end(struct rec *r, int fd)
{
	if (clock_coarse() - LANE_LOAD(r->looked_at) >= PEER_LOOK)
		stream_ask_for_end(r, fd);
}

/* The peer has our bell, and can ring it when there is room. */
bool stream_can_be_rung(const struct rec *r);
/* Let it. False: there is room now. */
bool stream_ask_room(struct rec *r);
/* The program is told that it is writable because the kernel says so. */
void stream_told_writable(struct rec *r);
/* About to sleep: give memory back that bulk traffic has used. */
void stream_trim_all(void);
/* It is closed, or others go on with it: not ours to trim any more. */
void stream_forget_large(struct rec *r);
/* In the child of a fork. */
void stream_forked(void);
/* Serve what the peer asks for between calls (recall). */
void stream_serve(struct rec *r, int fd);
/* The carrier has room. Is that nothing to tell of? What the peer wants back goes first: then it may be. */
bool stream_bars_carrier(struct rec *r, int fd);
/* Back to TCP, both directions; what was not read comes again on the carrier. `patient`: wait for the peer a little if it
 * alone can see to that. Otherwise what is left in the ring is read from there. */
void stream_step_down(struct rec *r, int fd, enum why why, bool patient);
/* A lane begins: the carrier must not hold octets back, and the program still sees what it asked for. */
void stream_prepare_carrier(struct rec *r, int fd);
/* What the program asked for, and a lane did not let the carrier have. */
void stream_restore_options(struct rec *r, int fd);
/* The program has set the size of a buffer: both together bound what is under way. With a lane. */
void stream_note_buffers(struct rec *r, int fd);
/* Does the peer know it by this number? It may need to borrow it. */
bool stream_is_known_as(struct rec *r, int fd);
/* The number `from` goes, and this process still has the socket as `to`. */
void stream_moved(struct rec *r, int from, int to);
/* What the peer is told when the last descriptor goes. */
void stream_say_end(struct rec *r, int fd);
/* The last descriptor goes. `fd` is still open. */
void stream_close(struct rec *r, int fd);
/* The same when the descriptors have gone already, with a process that was killed. */
void stream_abandon(struct rec *r);
uint32_t stream_peer_cpu(const struct rec *r);

#endif
