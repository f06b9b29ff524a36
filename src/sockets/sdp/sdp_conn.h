/* SPDX-License-Identifier: MIT */
/*
 * The SDP engine: byte streams over any transport (sockets/oti.h), by copying through private
 * buffers. The rules of the protocol are the pure functions of wire/sdp*; here they are tied to a
 * connection of a transport and to a caller.
 *
 * There are no threads: everything happens inside calls of the program and up-calls of the
 * transport. Calls never block; what cannot be done now returns -EAGAIN, and notify() tells when
 * trying again is worth it. A polled transport must be polled by somebody, and sdp_conn_tick()
 * called for the timers. Memory belongs to the caller; nothing is allocated while octets move.
 *
 * Locks: one per connection, taken inside; then the listener's, then those of the transport.
 * notify() is called without locks, as the last thing of an up-call (there the connection may be
 * ended and its memory freed) or of a call of the program.
 */
#ifndef FLUE_SOCKETS_SDP_CONN_H
#define FLUE_SOCKETS_SDP_CONN_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/lock.h"
#include "sockets/ot/oti.h"
#include "wire/sdp.h"
#include "wire/sdp_credit.h"
#include "wire/sdp_fsm.h"
#include "wire/sdp_half.h"

/* Octets that are taken from the program while there are no credits for them. */
#define SDP_STASH 4096

struct sdp_conn;
struct sdp_listener;

typedef void (*sdp_notify_fn)(struct sdp_conn *c, void *arg);

/* Zero means the default in brackets; numbers are cut to what the transport can do. */
struct sdp_attr {
	struct oti *oti;
	enum sdp_layout layout; /* of the Hellos; both ends of a transport must agree */
	uint16_t bufs;          /* receive private buffers [64], at least SDP_BUFS_MIN */
	uint32_t buf_size;      /* octets of each, headers included [8192] */
	uint16_t max_adverts;   /* [SDP_ADVERTS_MAX] */
	uint16_t reads;         /* IRD and ORD [16]; nothing uses them yet */
	uint8_t version;        /* of our Hello, major << 4 | minor [0x11] */
	uint32_t connect_ms;    /* [10000] for a connection to come up */
	uint32_t close_ms;      /* [60000] for the peer's part of a close */
	uint32_t linger_ms;     /* [1000] until we tear down what the peer should */
	sdp_notify_fn notify;   /* may be NULL */
	void *arg;
};

/* Why a connection request was refused; the consumer's code of oti.h. */
enum sdp_reject { SDP_REJECT_HELLO = 28, SDP_REJECT_BUSY = 29 };

enum sdp_status {
	SDP_IS_OPEN = 1 << 0,     /* it is or was connected */
	SDP_IS_READABLE = 1 << 1, /* recv would return something: octets, end or error */
	SDP_IS_WRITABLE = 1 << 2, /* send would take an octet, or fail */
	SDP_IS_EOF = 1 << 3,      /* the peer's DisConn has come */
	SDP_IS_RESET = 1 << 4,    /* ended by anything but DisConns */
	SDP_IS_FAILED = 1 << 5,   /* could not be connected */
	SDP_IS_CLOSED = 1 << 6,   /* both DisConns have passed and the transport is gone */
	SDP_IS_URGENT = 1 << 7,   /* an urgent octet is announced or here */
	SDP_IS_MOVING = 1 << 8,   /* the peer changes its owner (SuspComm) */
};

/* Read-only for the caller, except `user`. */
struct sdp_conn {
	void *user;
	struct lock lock;
	struct sdp_attr attr;
	enum sdp_state state;
	struct sdp_credit credit;
	struct sdp_halves halves;
	struct oti_conn *llp;     /* NULL: none, or let go of */
	struct oti_conn *shell;   /* an ended one, kept for the octets in its buffers */
	struct oti_conn *rubbish; /* one to be released when the lock is free */
	bool cut;                 /* llp has ended for us */
	uint32_t status;          /* bits that stay: OPEN, EOF, RESET, FAILED, CLOSED */
	int error;                /* errno of the end, 0: none yet */
	const char *why;          /* a word on a violation by the peer, or NULL */
	struct oti_addr local, peer;
	uint32_t peer_size; /* octets of one message the peer can take */
	/* What the program has asked for. */
	bool closed;    /* sdp_conn_close() */
	bool shut_read; /* octets are thrown away */
	bool shut;      /* no more octets to send */
	bool blocked;   /* it was told that no octets can be taken */
	bool disconn_due, abort_sent;
	/* To be sent. */
	uint8_t stash[SDP_STASH];
	uint32_t stash_from, stash_to;
	bool stash_urgent; /* the last one is */
	/* Received, oldest first. */
	struct oti_rx *first, *last;
	uint64_t unread;
	/* SuspComm. */
	uint8_t move;
	uint16_t move_port;
	/* Timers, by clock_now(); 0: not armed. */
	uint64_t deadline, tear_down_at;
	/* A child that was not accepted yet. */
	struct sdp_listener *listener;
	struct sdp_conn *sibling;
	struct oti_request *request;
	struct sdp_hello hello; /* the peer's */
	bool queued, orphan;
	bool news;            /* notify() is due */
	enum sdp_event event; /* the one that is being acted upon */
	unsigned illegal;     /* events that no row allows; always 0 */
};

/* Fills in `c` and checks the attributes. -EINVAL. */
int sdp_conn_init(struct sdp_conn *c, const struct sdp_attr *attr);
/* Lets go of the transport, abortively if need be; the octets not read are gone. Not with
 * another call running. On a polled transport by the thread that polls. */
void sdp_conn_fini(struct sdp_conn *c);

/* Begins to connect. -EINVAL, -EISCONN, or why it failed at once. */
int sdp_conn_connect(struct sdp_conn *c, const struct oti_addr *remote);

/*
 * Takes octets: as many as there are credits for, and SDP_STASH more. Returns how many. -EAGAIN: none
 * now; -ENOTCONN; -EPIPE: shut down; or the error of the end. What was taken goes out by itself.
 */
ssize_t sdp_conn_send(struct sdp_conn *c, const struct iovec *iov, int n);
/* The same for one urgent octet. Returns 1. */
ssize_t sdp_conn_send_urgent(struct sdp_conn *c, uint8_t octet);

enum sdp_recv_flag { SDP_PEEK = 1 << 0, SDP_URGENT = 1 << 1 };
/*
 * Copies out octets. Returns how many, 0 for the end of the stream, -EAGAIN, -ENOTCONN, or the
 * error of the end, which comes behind the octets. Stops in front of an urgent octet; a call that
 * begins at one goes past it, and it is lost. SDP_URGENT takes the urgent octet, if it is next
 * (-EAGAIN: announced, -EINVAL: there is none).
 */
ssize_t sdp_conn_recv(struct sdp_conn *c, const struct iovec *iov, int n, unsigned flags);

/* No more octets from us: DisConn. -ENOTCONN. */
int sdp_conn_shut(struct sdp_conn *c);
/* Octets that come from now on, and those not read yet, are thrown away. Sends nothing. */
void sdp_conn_shut_read(struct sdp_conn *c);
/* The program is done. Octets not read, or that come later, make it an abort. */
void sdp_conn_close(struct sdp_conn *c);
/* Reset, by AbortConn where the protocol has it. */
void sdp_conn_abort(struct sdp_conn *c);

/* Announces another mode for our send half (to_source false) or, out of Buffered, for our receive
 * half. -EINVAL: not allowed now; -EAGAIN: no credit. */
int sdp_conn_change_mode(struct sdp_conn *c, enum sdp_mode mode, bool to_source);

uint32_t sdp_conn_status(struct sdp_conn *c);
/* After close(): nothing is under way any more. */
bool sdp_conn_is_done(struct sdp_conn *c);

/* Timers. The next time when tick() has something to do, by clock_now(); 0: none. */
uint64_t sdp_conn_deadline(struct sdp_conn *c);
void sdp_conn_tick(struct sdp_conn *c, uint64_t now);

/* ---- listeners ---- */

struct sdp_listener {
	void *user;
	struct sdp_attr attr; /* of the children */
	enum sdp_state state;
	struct oti_listener *llp;
	/* Memory for a child; NULL: refuse. Called from an up-call. */
	struct sdp_conn *(*spawn)(struct sdp_listener *l);
	/* A child that was never accepted is over: sdp_conn_fini() was called. */
	void (*drop)(struct sdp_listener *l, struct sdp_conn *c);
	/* A connection waits for sdp_listener_accept(). May be NULL. */
	void (*notify)(struct sdp_listener *l);
	struct lock lock;
	struct sdp_conn *children; /* not accepted; oldest first */
	unsigned n_children, backlog;
};

/*
 * Listens; spawn and drop must be set. HelloAck is sent before anybody calls accept. Errors of
 * oti listen.
 */
int sdp_listener_open(struct sdp_listener *l, const struct oti_addr *local, unsigned backlog);
/* The oldest connection that is open, or NULL. It is the caller's then, who looks at its status
 * first: notify() was not called for what happened before. */
struct sdp_conn *sdp_listener_accept(struct sdp_listener *l);
/* Children that were not accepted are reset and dropped. Not from an up-call. */
void sdp_listener_close(struct sdp_listener *l);

#endif
