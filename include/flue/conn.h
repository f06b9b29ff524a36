/* SPDX-License-Identifier: MIT */
/*
 * Flue: connections. A queue pair is connected in one of two roles.
 *
 * Initiator: qp->ops->connect(). Responder: adapter->ops->listen(), then for each request
 * accept() with an Idle queue pair, or reject(). Both sides may carry private data.
 *
 * Two-way and three-way. With the peer-to-peer model (the default of the initiator) the
 * initiator sends a ready-to-receive message after the reply, and the responder is CONNECTED
 * when it arrives: three-way. With FLUE_CONN_TWO_WAY the responder is CONNECTED when its reply
 * is out, and may not send until the initiator's first message arrived (requests wait); peers
 * that expect the responder to speak first need FLUE_CONN_LENIENT at the responder.
 *
 * Immediate and deferred. Normally the queue pair moves to RTS as part of the exchange. With
 * FLUE_CONN_DEFER it stays Idle after the exchange of frames, so that the program can look at
 * the peer's private data and post receives; start() moves on, disconnect() refuses.
 *
 * Blocking. connect(), accept(), start() and disconnect() wait until done, and take the event they
 * waited for; only DISCONNECTED always comes as an event. With FLUE_CONN_ASYNC the first three
 * return at once and the event tells how it ended. Called from a callback the blocking forms fail
 * with EDEADLK.
 */
#ifndef FLUE_CONN_H
#define FLUE_CONN_H

#include <flue/queue.h>
#include <flue/types.h>

#ifdef __cplusplus
extern "C" {
#endif

enum flue_conn_flags {
	FLUE_CONN_ASYNC = 1 << 0,
	FLUE_CONN_DEFER = 1 << 1,
	FLUE_CONN_TWO_WAY = 1 << 2, /* initiator: no ready-to-receive message */
	FLUE_CONN_NO_CRC = 1 << 3,  /* do not insist on CRC; off only if both sides say so */
	FLUE_CONN_MARKERS = 1 << 4, /* ask the peer to insert markers */
	FLUE_CONN_LENIENT = 1 << 5, /* responder: may send before the first inbound message */
	FLUE_CONN_REV1 = 1 << 6,    /* initiator: MPA revision 1 (no IRD/ORD exchange, two-way) */
	FLUE_CONN_NO_FALLBACK = 1 << 7, /* initiator: do not retry with revision 1 */
	FLUE_CONN_RTR_SEND = 1 << 8, /* ready-to-receive kinds to offer; none set: Write and Read */
	FLUE_CONN_RTR_WRITE = 1 << 9,
	FLUE_CONN_RTR_READ = 1 << 10,
	FLUE_CONN_STRICT_PEER = 1 << 11, /* never use own-peer extensions, even with another Flue */
	/* RFC 7306: atomics and Write with immediate data. No word on the wire tells whether the peer knows
	 * them: both programs must say so. Without it such a request is refused (EOPNOTSUPP), and one of
	 * the peer's ends the connection. */
	FLUE_CONN_RFC7306 = 1 << 12,
	/*
	 * connect(): full service, which two Flue ends speak with one another: what InfiniBand's reliable
	 * connections have (flue-service(7)). The peer's listener must have FLUE_LISTEN_FULL. accept() goes
	 * by its listener.
	 */
	FLUE_CONN_FULL = 1 << 13,
};

enum flue_listen_flags {
	FLUE_LISTEN_FULL = 1 << 0, /* for full service, and nothing else */
};

/* Used by connect() and accept(); accept() ignores the addresses. */
struct flue_conn_attr {
	size_t size;
	const struct sockaddr *remote; /* connect: needed */
	socklen_t remote_len;
	const struct sockaddr *local; /* connect: NULL: the kernel chooses */
	socklen_t local_len;
	const void *private_data; /* copied */
	size_t private_len;       /* up to caps->max_private_*, or as the request says */
	uint32_t ird, ord;        /* inbound and outbound Reads; 0: 16 each (use flags for none) */
	uint32_t flags;           /* enum flue_conn_flags */
	int timeout_ms;           /* for the whole exchange; 0: 10 s */
	uint32_t fpdu_max;        /* largest FPDU to send; 0: follows the path and the peer */
};

struct flue_listen_attr {
	size_t size;
	const struct sockaddr *local; /* port 0: the kernel chooses, see listener->local */
	socklen_t local_len;
	int backlog; /* requests waiting for accept or reject; 0: 128 */
	/* Connections still in start-up; 0: 1024. More wait in the kernel's queue, until one of these
	 * has sent its request or has been silent for a fifth of its time: then it is dropped. */
	int max_half_open;
	int request_timeout_ms; /* for a silent or slow peer; 0: 5 s */
	flue_event_fn on_event; /* FLUE_EVENT_REQUEST; NULL: the adapter's event queue */
	void *event_arg;
	uint32_t flags; /* enum flue_listen_flags */
};

struct flue_listener_ops {
	size_t size;
	/* Requests not yet accepted are rejected. EBUSY: accepted requests still hold it. */
	bool (*destroy)(struct flue_listener *listener);
	/* Next request. timeout as in get_event. EAGAIN, ETIMEDOUT. */
	struct flue_conn_request *(*get_request)(struct flue_listener *listener, int timeout_ms);
};

struct flue_listener {
	const struct flue_listener_ops *ops;
	void *user;
	struct flue_adapter *adapter;
	struct sockaddr_storage local;
};

struct flue_request_ops {
	size_t size;
	/*
	 * Accept with an Idle queue pair. The request is used up whether or not this succeeds.
	 * EINVAL: private data too long or a bad attribute; EISCONN: QP not Idle; EXDEV: another
	 * adapter's QP; ENOBUFS: the peer's ORD is more Reads than can be held here (it was
	 * rejected); ECONNRESET, ETIMEDOUT: the peer went away.
	 */
	bool (*accept)(struct flue_conn_request *req, struct flue_qp *qp,
		       const struct flue_conn_attr *attr);
	/* Reject with private data; uses up the request. EINVAL: too long (then it is rejected
	 * without data). */
	bool (*reject)(struct flue_conn_request *req, const void *data, size_t length);
};

struct flue_conn_request {
	const struct flue_request_ops *ops;
	void *user;
	struct flue_listener *listener;
	struct sockaddr_storage local, peer;
	const void *private_data;
	size_t private_len;
	uint32_t peer_ird, peer_ord; /* UINT32_MAX: not said (revision 1) */
	uint32_t revision;
	bool peer_to_peer;
	/* Octets of private data that can go back with accept() and reject(). */
	uint32_t max_reply, max_reject;
	bool full; /* of full service */
};

/*
 * qp->ops->connect: EINVAL, EISCONN (not Idle), ECONNREFUSED (nobody listens, or rejected: then
 * qp->private_data is the peer's), ETIMEDOUT, ECONNRESET, EPROTO (not an MPA peer), ENOBUFS (the
 * ORD in its reply is more Reads than can be held here), EPROTONOSUPPORT (with FLUE_CONN_FULL: the
 * peer speaks something else), EHOSTUNREACH and the other errors of
 * connect(2), ENOMEM, EMFILE.
 * qp->ops->start: EINVAL when nothing is deferred.
 * qp->ops->disconnect: success means that both sides closed in order. As the verbs ask, a graceful
 * close needs an empty send queue; with requests outstanding it becomes abortive: EBUSY. Other
 * failures: ETIMEDOUT (the peer did not close; the connection was reset), ECONNRESET (the peer
 * did), EPROTO (a Terminate ended it), ECONNABORTED. true on a QP that is not connected.
 * timeout_ms: 0: 5 s; < 0 returns at once and lets events tell.
 * qp->ops->abort: resets the connection and flushes all requests; true if nothing was connected.
 */
static inline bool flue_disconnect(struct flue_qp *qp)
{
	return qp->ops->disconnect(qp, 0);
}

static inline bool flue_abort(struct flue_qp *qp)
{
	return qp->ops->abort(qp);
}

#ifdef __cplusplus
}
#endif
#endif
