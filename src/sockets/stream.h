/* SPDX-License-Identifier: MIT */
/*
 * The octets of a connection: over the carrier while there is no lane, over both when there is one. These are what
 * the hooked calls do; they behave like the kernel's, results and errno included.
 */
#ifndef FLUE_SOCKETS_STREAM_H
#define FLUE_SOCKETS_STREAM_H

#include <stdbool.h>
#include <sys/types.h>

#include "sockets/home.h"
#include "sockets/raw.h"

/* Who moves the octets: we; the kernel alone; or look again, the number means something else by now. */
enum stream_kind { STREAM_OURS, STREAM_PLAIN, STREAM_OTHER };

/*
 * Before a call that moves octets, on a number that stands for `r`; NULL: for nothing of ours. PLAIN: make the real call, then
 * stream_after_...(). OURS: a lane is there, call stream_send() or stream_receive() instead. raw_ends() in any case,
 * also when the thread is cancelled.
 */
enum stream_kind stream_before_send(struct raw_call *c, struct rec *r, int fd, size_t size);
enum stream_kind stream_before_receive(struct raw_call *c, struct rec *r, int fd);
void stream_after_send(struct raw_call *c, int fd, ssize_t n, int flags);
void stream_after_receive(struct raw_call *c, int fd, ssize_t n, int flags);
/* The same for a call that waits. PLAIN: sock_call_ends() when it is over. */
enum stream_kind stream_enter(struct rec *r);

/* The lane went away meanwhile: begin again with stream_before_...(). */
#define STREAM_AGAIN (-2)

ssize_t stream_send(struct rec *r, int fd, const struct iovec *iov, size_t count, int flags);
/* Also without a lane: much at once, in steps between which one may come. */
ssize_t stream_send_young(struct rec *r, int fd, const struct iovec *iov, size_t count, int flags);
ssize_t stream_receive(struct rec *r, int fd, const struct iovec *iov, size_t count, int flags);

/*
 * The same for one of several parts of a call, which has kept the record (sock_keep()): whatever becomes of the lane and of
 * the number meanwhile. Never STREAM_AGAIN. After the first part any signal handler ends the call.
 */
ssize_t stream_send_part(struct rec *r, int fd, const struct iovec *iov, size_t count, int flags,
			 bool first);
ssize_t stream_receive_part(struct rec *r, int fd, const struct iovec *iov, size_t count,
			    int flags);
/* Octets that are there go to `taker`, by way of a buffer, and it says how many it takes; nobody gets between. It must
 * not wait. -1 and its errno: it takes none. STREAM_AGAIN: the lane is gone, go on with *number. */
typedef ssize_t stream_taker(void *arg, const void *octets, size_t n);
ssize_t stream_take_by(struct rec *r, int *number, const struct iovec *buffer, int flags,
		       stream_taker *taker, void *arg);

/* STREAM_AGAIN: not its number any more. */
int stream_shutdown(struct rec *r, int fd, int how);
/* An error for the next call; whoever waits must see it. */
void stream_keep_error(struct rec *r, int error);
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
/* A short sleep that ends when there is room; at most `ns` (< 0: no limit). -1 and EINTR after a signal. */
int stream_await_room(struct rec *r, int64_t ns);
/* Is that still the thing to do? Afterwards the writer sleeps in the kernel, which must not know that it wants to write,
 * and looks around after so many nanoseconds. */
bool stream_may_nap(const struct rec *r);
int64_t stream_glance(const struct rec *r);
/* A peer that was killed has told nobody but the kernel: ask it, if that was not done just now. */
void stream_look_for_end(struct rec *r, int fd);
/* The peer has our bell, and can ring it when there is room. */
bool stream_can_be_rung(const struct rec *r);
/* Let it. False: there is room now. */
bool stream_ask_room(struct rec *r);
/* The kernel tells of the end of what the peer sends. */
void stream_peer_ended(struct rec *r, int fd);
/* The program is told that it is writable because the kernel says so. */
void stream_told_writable(struct rec *r);
/* May a sleeper rely on the kernel for this one? False: it is readable now. Undo with disarm. For edges: `told` is
 * what lane_rx_seen() gave when it was reported; only what came after it counts. `belled`: our bell wakes it, too. */
bool stream_arm(struct rec *r, const uint64_t *told, bool belled);
void stream_disarm(struct rec *r, bool belled);
/* The same for a call that sleeps until the carrier has something, and on nothing else. */
bool stream_sleep(struct rec *r);
void stream_wake(struct rec *r);
/* About to sleep: give memory back that bulk traffic has used. */
void stream_trim_all(void);
/* It is closed, or others go on with it: not ours to trim any more. */
void stream_forget_large(struct rec *r);
/* In the child of a fork. */
void stream_forked(void);
/* Serve what the peer asks for between calls (recall). */
void stream_serve(struct rec *r, int fd);
/* Children under way of which is not known yet what they inherit: no lane may begin. */
extern _Atomic uint32_t stream_spawns;
/* Back to TCP, both directions; what was not read comes again on the carrier. `patient`: wait for the peer a little if it
 * alone can see to that. Otherwise what is left in the ring is read from there. */
void stream_step_down(struct rec *r, int fd, enum why why, bool patient);
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
