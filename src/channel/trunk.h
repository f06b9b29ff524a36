/* SPDX-License-Identifier: MIT */
/*
 * A trunk: memory that two processes share and that carries many logical connections between them, *circuits*. Each
 * circuit carries octets or messages both ways, and has credit of its own: a circuit whose receiver does not
 * take what came cannot stop another one. docs/design/channel.md has the picture.
 *
 * The peer is not trusted. It can write anything anywhere in the memory at any time; by that it ends or garbles its own
 * circuits, and nothing else. What cannot be is answered by the end of the whole trunk.
 *
 * No threads, no signal handlers, no malloc(); two mappings and up to two descriptors for each trunk. Any thread may call;
 * nothing waits but trunk_wait(), and that without a lock. A signal handler that comes into a call of its own
 * thread gets -EDEADLK. The child of a fork has nothing of it: every call but trunk_close() says -ENOTCONN there.
 */
#ifndef FLUE_CHANNEL_TRUNK_H
#define FLUE_CHANNEL_TRUNK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "channel/mailbox.h"

#define TRUNK_BLOCKS_MAX   65536
#define TRUNK_BLOCK_MAX    ((1u << 20) - 64) /* octets of a block */
#define TRUNK_CIRCUITS_MAX 65536

/* For each direction. */
struct trunk_shape {
	uint32_t blocks;     /* a power of two, circuits * guarantee or more */
	uint32_t block_size; /* octets; a multiple of 64 */
	uint32_t circuits;   /* at a time, an even number; half for each side to open */
	uint32_t guarantee;  /* blocks that are each circuit's own, 1 or more */
};

/* Ten thousand circuits: 4.3 MiB for each direction, of which only pages in use take memory. */
#define TRUNK_SHAPE                                                                   \
	{                                                                             \
		.blocks = 16384, .block_size = 256, .circuits = 10240, .guarantee = 1 \
	}

struct trunk;

/* --- a trunk */

/* New memory: a sealed file, to be given to both sides. A negative errno: none. Close it with own_close(). */
int trunk_memory(const struct trunk_shape *shape);
/*
 * Side 0 or 1 of it; each once only. `sock` is one end of a pair of unix stream sockets, whose other end the other side has:
 * by it each rings the other and learns of its end. It is taken, also if this fails; -1: there is none. `peer` is the
 * process at the other side, 0 if it is not known. The memory's descriptor stays the caller's. -EINVAL: not
 * such memory; -ENOMEM.
 */
int trunk_attach(int memory, unsigned side, int sock, pid_t peer, struct trunk **out);
/* All circuits end. Blocks that were taken are gone. No other call may run. */
void trunk_close(struct trunk *t);
void trunk_shape(const struct trunk *t, struct trunk_shape *shape);
/* 0, or why all is over: -EPIPE the peer has closed the trunk or is dead, -EPROTO it broke a rule. */
int trunk_status(struct trunk *t);
/* For who counts: system calls that woke the other side. */
uint64_t trunk_rings(const struct trunk *t);

/* A trunk to the process with this mailbox; it gets side 1. -ECONNREFUSED: nobody is there, or somebody else. */
int trunk_call(const uint8_t mailbox[MAILBOX_NAME], pid_t pid, const struct trunk_shape *shape,
	       struct trunk **out);
/* From now on others can call us, by our mailbox. False: none to be had. */
bool trunk_reachable(void);
/* The next trunk that somebody made to us, and who. -EAGAIN: none; others: one that was nothing. */
int trunk_answer(struct trunk **out, pid_t *pid);
/* In the child of a fork: what has come and was not answered is the parent's. */
void trunk_forked(void);

/* --- circuits; numbers below shape.circuits */

/* Greetings: what goes with open, accept and refuse; at most one block. */

/* A new circuit, or a negative errno: -ENOSPC, -EMSGSIZE. TRUNK_ACCEPTED or TRUNK_ENDED follows. */
int trunk_open(struct trunk *t, const void *data, size_t size, void *user);
/*
 * After TRUNK_OPENED. -ECONNRESET: it is not wanted any more; trunk_drop() it. -EAGAIN: the peer still has all blocks of
 * circuits that had this number before; TRUNK_WRITABLE follows, then call again.
 */
int trunk_accept(struct trunk *t, uint32_t c, const void *data, size_t size, void *user);
/* Uses it up. `code` tells the other side why. */
int trunk_refuse(struct trunk *t, uint32_t c, uint8_t code, const void *data, size_t size);
/* What came with TRUNK_OPENED, TRUNK_ACCEPTED or a refusal: its size; -ENOENT: nothing, or read before. */
ssize_t trunk_greeting(struct trunk *t, uint32_t c, void *data, size_t size);
void *trunk_user(const struct trunk *t, uint32_t c);
void trunk_set_user(struct trunk *t, uint32_t c, void *user);

/* A block in the shared memory, for who need not copy: the peer may change its octets at any time. */
struct trunk_block {
	uint8_t *data;
	uint32_t size;
	uint32_t index;
	uint8_t kind;
	bool end; /* of a message */
};

enum trunk_send_flag {
	TRUNK_MORE = 1 << 0, /* the message goes on with the next call */
	TRUNK_WHOLE = 1
		      << 1, /* all of it or nothing: at most `guarantee` blocks can be relied on */
};

/*
 * Send octets, the end of a message behind them unless TRUNK_MORE is given or not all were taken. `kind` is the
 * client's. Returns how many were taken; if those are not all, TRUNK_WRITABLE follows. No octets are a message as well, and
 * need a block for its end; with TRUNK_MORE they are nothing. -EAGAIN: no credit, or not enough for all of it with TRUNK_WHOLE;
 * TRUNK_WRITABLE follows when there is, and is no promise: another circuit may be faster, then it follows again. -EPIPE:
 * after trunk_shut(), or the other side has left, or the trunk is over; -ENOTCONN: not accepted; -EMSGSIZE: can never be
 * sent whole.
 */
ssize_t trunk_send(struct trunk *t, uint32_t c, const struct iovec *iov, int n, uint8_t kind,
		   unsigned flags);
/*
 * To make a message of one block in place: it is the caller's until it is posted, unclaimed, or the trunk is closed, also after
 * trunk_drop(). 1, or as trunk_send().
 */
int trunk_claim(struct trunk *t, uint32_t c, struct trunk_block *block);
/* As one message, its first `size` octets. It is gone, whatever is returned. */
int trunk_post(struct trunk *t, uint32_t c, uint32_t index, uint32_t size, uint8_t kind);
void trunk_unclaim(struct trunk *t, uint32_t index);
/* Blocks of the circuit that are claimed or with the peer. */
uint32_t trunk_out(struct trunk *t, uint32_t c);
/* Blocks that could be sent at once. */
uint32_t trunk_room(struct trunk *t, uint32_t c);
/* So many blocks are with the peer at most; no limit of its own at first. */
void trunk_set_limit(struct trunk *t, uint32_t c, uint32_t blocks);
/* Nothing more will be sent; receiving goes on. */
int trunk_shut(struct trunk *t, uint32_t c);
/* This end is done with it, in any state: what came is thrown away, the number may be used again. After trunk_shut(), and with
 * `code` 0, the other side sees an orderly end, else a reset. It learns of `code`. */
void trunk_drop(struct trunk *t, uint32_t c, uint8_t code);

struct trunk_message {
	size_t size; /* octets that are here */
	uint8_t kind;
	bool end; /* and they are all of it */
};

enum trunk_recv_flag {
	TRUNK_MESSAGE =
		1
		<< 0, /* stop at the end of a message; and nothing before that is here, or what does not fit */
	TRUNK_PEEK = 1 << 1,
};

/*
 * Octets that have come, over the ends of messages unless TRUNK_MESSAGE is given. 0: the peer has shut it (or, with
 * `msg`, a message of no octets: its end is set). -EAGAIN: nothing yet; -ECONNRESET: the peer has left; -EMSGSIZE:
 * the message is longer (see msg->size). `msg`, if given, says what was read.
 */
ssize_t trunk_recv(struct trunk *t, uint32_t c, const struct iovec *iov, int n, unsigned flags,
		   struct trunk_message *msg);
/* The next message, as far as it has come. 1: there is one; else as trunk_recv(). */
int trunk_next(struct trunk *t, uint32_t c, struct trunk_message *msg);

/* As it came. 1: there is one, else as trunk_recv(). It is the caller's, to write to as well, until trunk_give(), which may come after
 * trunk_drop(). */
int trunk_take(struct trunk *t, uint32_t c, struct trunk_block *block);
void trunk_give(struct trunk *t, uint32_t index);

/* --- what happens */

enum trunk_event_bit {
	TRUNK_OPENED = 1 << 0,   /* by the peer: accept or refuse it */
	TRUNK_ACCEPTED = 1 << 1, /* by the peer */
	TRUNK_REFUSED = 1 << 2,  /* drop it; `code` says why */
	TRUNK_READABLE = 1 << 3, /* something has come */
	TRUNK_WRITABLE = 1 << 4, /* there is credit again, after a call that found none */
	TRUNK_SHUT = 1 << 5,     /* the peer sends nothing more, behind what has come */
	TRUNK_ENDED = 1 << 6, /* the peer has left it, and `code` says why, or the trunk is over */
};

struct trunk_event {
	uint32_t circuit;
	uint8_t bits; /* enum trunk_event_bit: all that is new since the last time */
	uint8_t code;
	void *user;
};

/* Takes in what has come, and tells of up to `max` circuits with something new; the rest next time. */
int trunk_poll(struct trunk *t, struct trunk_event *events, int max);

/* --- sleeping */

/* What epoll can watch for reading: a ring, or the end of the peer; -1: there is none. Call trunk_heard() then. */
int trunk_fd(const struct trunk *t);
void trunk_heard(struct trunk *t);
/* Before a sleep on trunk_fd(). False: there is something to poll for. The peer rings once. */
bool trunk_arm(struct trunk *t);
/*
 * Sleeps until trunk_poll() may have something to tell, or for `timeout_ms`; -1: for ever. For who has no engine. 0,
 * -ETIMEDOUT, -EINTR.
 */
int trunk_wait(struct trunk *t, int timeout_ms);
/*
 * The same until one circuit is readable or ended (TRUNK_READABLE), or can be written to or ended (TRUNK_WRITABLE). Threads may
 * each wait for their own; events are left for trunk_poll().
 */
int trunk_wait_for(struct trunk *t, uint32_t c, unsigned what, int timeout_ms);

#endif
