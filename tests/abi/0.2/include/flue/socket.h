/* SPDX-License-Identifier: MIT */
/*
 * Flue: live TCP streams that become RDMA connections.
 *
 * Many protocols begin with words over plain TCP and then want the same connection in RDMA mode
 * (iSER, SDP). Two forms are offered.
 *
 * flue_socket_convert(): one blocking call for a program that has its own queue pair.
 *
 * struct flue_socket: an object around a connected TCP descriptor. It moves data in streaming
 * mode, reserves what RDMA will need, switches, and then moves data in RDMA mode; nothing blocks,
 * and every request is answered by exactly one event. A socket is in one of three states, the
 * connection below it in one of six; which call is allowed in which is a table in the manual
 * (flue_socket(3)). A call that is not allowed fails at once with EBADFD and changes nothing; after the
 * end of the connection all but destroy(), free_stag(), get_event() and those of control clients fail
 * with ENOTCONN, and in a child of fork() all but destroy() with ENODEV.
 *
 *   Streaming    NotReadyToOffload, ResourceReservationInProgress, ReadyToOffload
 *   Transition   WaitForFirstRecvBuffer, OffloadInProgress
 *   Rdma         Offloaded
 *
 * The switch. Both sides agree, in their own protocol, on the last octet of streaming data in each
 * direction. A program calls switch_mode() after it has received the last streaming octet of the
 * peer: receives that still wait are answered with 0 octets, and no more are taken. It may send
 * its own last streaming octets even now. Its first rdma_recv() starts the transfer: Flue waits
 * until the peer's TCP has acknowledged everything (without blocking anybody), hands the stream to
 * the provider, and raises SWITCHED. What the peer sent in RDMA mode before that is waiting in the
 * socket, or is given as `early`, and is lost in no case. A transfer that fails ends the
 * connection; it never falls back to streaming.
 *
 * The descriptor. It belongs to the program until switch_mode(); from then on it is Flue's, which
 * closes it. Before that Flue never closes it and never changes its options or flags.
 *
 * Keys. Buffers of rdma_send(), rdma_recv(), put() and get() are plain memory: Flue registers them
 * unseen and takes the registration back when the request is done. Memory that the peer shall
 * reach is registered with alloc_stag() and map(): those keys are the program's to advertise,
 * track and invalidate. A program that uses the same buffers again and again may keep keys for them,
 * too, and name the region in the pieces of its requests (struct flue_piece).
 */
#ifndef FLUE_SOCKET_H
#define FLUE_SOCKET_H

#include <flue/conn.h>
#include <flue/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct flue_socket;

enum flue_socket_state {
	FLUE_SOCKET_STREAMING = 0,
	FLUE_SOCKET_TRANSITION,
	FLUE_SOCKET_RDMA,
	FLUE_SOCKET_NSTATES,
};

enum flue_offload_state {
	FLUE_OFFLOAD_NOT_READY = 0,
	FLUE_OFFLOAD_RESERVING,
	FLUE_OFFLOAD_READY,
	FLUE_OFFLOAD_WAIT_FIRST_RECV,
	FLUE_OFFLOAD_IN_PROGRESS,
	FLUE_OFFLOAD_DONE,
	FLUE_OFFLOAD_NSTATES,
};

enum flue_socket_event_type {
	FLUE_SOCKET_SENT = 1,      /* send(): handed to TCP */
	FLUE_SOCKET_RECEIVED,      /* recv(): 0 octets at the end of the stream and at the switch */
	FLUE_SOCKET_SWITCHED,      /* switch_mode(): in RDMA mode, or [error] */
	FLUE_SOCKET_RDMA_SENT,     /* rdma_send() */
	FLUE_SOCKET_RDMA_RECEIVED, /* rdma_recv() */
	FLUE_SOCKET_PUT,           /* put() */
	FLUE_SOCKET_GOT,           /* get() */
	/* Once for each socket that left streaming mode, after everything else [reason, detail]. */
	FLUE_SOCKET_ENDED,
};

struct flue_socket_event {
	uint32_t type; /* enum flue_socket_event_type */
	int error;     /* 0, or an errno; ECANCELED: flushed, because the connection ended */
	uint64_t id;   /* of the request */
	size_t length; /* octets moved */
	uint32_t reason, detail; /* ENDED: as in struct flue_event */
	uint32_t inv_key;        /* RDMA_RECEIVED: the peer invalidated this key (0: none) */
	struct flue_socket *socket;
};

/* Called on a thread of the library, one call at a time for a socket; must not block. */
typedef void (*flue_socket_event_fn)(const struct flue_socket_event *ev, void *arg);

enum flue_switch_flags {
	FLUE_SWITCH_RESPONDER = 1 << 0, /* else initiator. Linux cannot tell from a descriptor */
	/* No MPA request and reply (RDMAC style): both sides agreed on everything beforehand. */
	FLUE_SWITCH_NO_REQ_REP = 1 << 1,
};

/* For switch_mode() and flue_socket_convert(). */
struct flue_switch_attr {
	size_t size;
	uint32_t flags;      /* enum flue_switch_flags */
	uint32_t conn_flags; /* enum flue_conn_flags: NO_CRC, MARKERS, LENIENT, REV1, RTR_*, ... */
	int timeout_ms;      /* for the whole switch; 0: 10 s */
	const void *private_data; /* with request and reply only; copied */
	size_t private_len;
	/* Octets of RDMA mode that the program has read from the descriptor already; copied. */
	const void *early;
	size_t early_len;  /* up to FLUE_SWITCH_EARLY_MAX */
	uint32_t ird, ord; /* convert(): Reads; 0: 16. A socket has its own, see reserve() */
	uint32_t fpdu_max; /* largest FPDU to send; 0: follows the path and the peer */
};

#define FLUE_SWITCH_EARLY_MAX 65536

/* Why reserve() failed. */
enum flue_reserve_reason {
	FLUE_RESERVE_OK = 0,
	/* Recoverable: ask for less. */
	FLUE_RESERVE_QUEUE_TOO_LONG, /* sq_depth, rq_depth, pieces: a smaller queue pair can be made */
	FLUE_RESERVE_READS_TOO_MANY, /* ird or ord */
	FLUE_RESERVE_CQ_FULL,        /* no completion queue could be made or grown */
	/* Not recoverable. */
	FLUE_RESERVE_NO_ADOPT, /* not an RNIC: the provider cannot take over a stream */
	FLUE_RESERVE_NO_PD,
	FLUE_RESERVE_NO_QP, /* even of the smallest size */
	FLUE_RESERVE_LOST,  /* the connection is gone */
	FLUE_RESERVE_NREASONS,
};

/* In: wishes, 0 for a default. Out: what was granted, or the reason. */
struct flue_reserve_attr {
	size_t size;
	uint32_t ird, ord; /* 0: as read_resources() said, also if that was 0; else 16 */
	/* The peer may not read / write any memory over this connection, whatever key it names: that
	 * ends the connection with an access violation. map() refuses to let it (EACCES). */
	bool no_read, no_write;
	uint32_t sq_depth, rq_depth;
	struct flue_socket *related; /* share its protection domain; NULL: an own one */
	/* A control client's own queue pair, Idle: Flue then makes none, and after the switch the
	 * program uses the queue pair directly; rdma_* calls fail with EOPNOTSUPP. */
	struct flue_qp *qp;
	uint32_t reason;  /* out: enum flue_reserve_reason */
	bool recoverable; /* out */
	uint32_t pieces;  /* of memory in one request, see rdma_recv_list(); 0: 1 */
};

/* What query_offload() tells. */
struct flue_offload_info {
	size_t size;
	uint32_t qp_state;        /* enum flue_qp_state */
	bool open;                /* TCP is not closed yet */
	bool ended;               /* ENDED was told, or will be when all is answered: */
	uint32_t reason, detail;  /* as there */
	uint32_t sends, receives; /* requests of its queues that are not done */
	uint32_t reads_out;       /* Reads of ours under way */
	uint32_t reads_in;        /* ... and of the peer */
};

struct flue_socket_attr {
	size_t size;
	flue_socket_event_fn on_event; /* NULL: a queue, see get_event() */
	void *event_arg;
};

/* One of several pieces of memory of a request. */
struct flue_piece {
	void *data;
	size_t length; /* 0: as if it were not there */
	/*
	 * NULL: plain memory. Else a region that holds the piece, of the socket's protection domain (of
	 * alloc_stag() and map(), for one): Flue uses its key and registers nothing. It must stay mapped
	 * as it is until the request is answered.
	 */
	const struct flue_mr *mr;
};

/* flags of rdma_send(), put(), get() */
enum flue_socket_flags {
	FLUE_SOCKET_FENCE = 1 << 0,      /* start after all earlier get() are done */
	FLUE_SOCKET_SOLICITED = 1 << 1,  /* rdma_send(): raise the peer's solicited event */
	FLUE_SOCKET_INVALIDATE = 1 << 2, /* rdma_send(): the peer's `inv_key` is invalidated */
};

struct flue_socket_ops {
	size_t size;
	/*
	 * Any state. Ends the connection if it is in or past the switch (abortively unless it has
	 * ended); the descriptor of a socket in streaming mode is left as it is. No event comes after
	 * this returns. Not from its own on_event: EDEADLK.
	 */
	bool (*destroy)(struct flue_socket *s);

	/* Streaming mode. The buffer belongs to Flue until the event. EBADFD, EINVAL: empty, ENOMEM: too
	 * many are under way. */
	bool (*send)(struct flue_socket *s, const void *data, size_t length, uint64_t id);
	bool (*recv)(struct flue_socket *s, void *data, size_t length, uint64_t id);

	/*
	 * Reserve what RDMA mode needs. Again to change it. EINVAL; ENOBUFS (ask for less) and EIO:
	 * attr->reason tells more.
	 * read_resources(): both values every time. EBUSY: one of our get() is under way, and nothing has
	 * changed; a smaller ird in RDMA mode is the program's promise that no Read of the peer is under
	 * way, or EBUSY. While the transfer goes on it counts from SWITCHED on, with no more Reads of
	 * ours than the peer has agreed to.
	 */
	bool (*reserve)(struct flue_socket *s, struct flue_reserve_attr *attr);
	bool (*read_resources)(struct flue_socket *s, uint32_t ird, uint32_t ord);

	/* See above. EINVAL, EBADFD, ENOMEM: nothing has happened then. */
	bool (*switch_mode)(struct flue_socket *s, const struct flue_switch_attr *attr,
			    uint64_t id);

	/* RDMA mode. EBADFD; ENOMEM: the queue is full; EINVAL; EOPNOTSUPP: control client (whose first
	 * rdma_recv(), of 0 octets, only starts the transfer); ENOTCONN: it is closing. */
	bool (*rdma_recv)(struct flue_socket *s, void *data, size_t length, uint64_t id);
	bool (*rdma_send)(struct flue_socket *s, const void *data, size_t length, uint32_t flags,
			  uint32_t inv_key, uint64_t id);
	bool (*put)(struct flue_socket *s, const void *data, size_t length, uint64_t remote_addr,
		    uint32_t rkey, uint32_t flags, uint64_t id);
	bool (*get)(struct flue_socket *s, void *data, size_t length, uint64_t remote_addr,
		    uint32_t rkey, uint32_t flags, uint64_t id);

	/*
	 * Keys for the peer. alloc_stag() gives a region that is not valid yet; map() makes it valid
	 * for a buffer (and gives it a new rkey), again and again; free_stag() takes it back.
	 */
	struct flue_mr *(*alloc_stag)(struct flue_socket *s);
	bool (*map)(struct flue_socket *s, struct flue_mr *mr, void *data, size_t length,
		    uint32_t access);
	bool (*free_stag)(struct flue_socket *s, struct flue_mr *mr);

	/*
	 * Streaming: shutdown of the sending half (EBUSY: sends are under way). RDMA: graceful close (abortive, EBUSY, with work
	 * outstanding); ENDED tells how it went. timeout_ms: 0: 5 s. Never blocks.
	 */
	bool (*disconnect)(struct flue_socket *s, int timeout_ms);

	/* Next event. `size` is the program's sizeof(*ev); timeout as in flue_get_event. EAGAIN,
	 * ETIMEDOUT; EINVAL with on_event. */
	bool (*get_event)(struct flue_socket *s, struct flue_socket_event *ev, size_t size,
			  int timeout_ms);
	/* Readable while events wait; made on demand, closed with the socket. -1: errno. */
	int (*event_fd)(struct flue_socket *s);

	/*
	 * The calls of RDMA mode without `_list`, for several pieces of memory: a message is scattered
	 * over them in their order, or gathered. The list itself is copied. Also EINVAL: more pieces than
	 * were reserved (get_list(): or than caps->max_read_sge), a piece that is not in its region, a
	 * region of another protection domain; EACCES: the region may not be written to.
	 */
	bool (*rdma_recv_list)(struct flue_socket *s, const struct flue_piece *list, uint32_t n,
			       uint64_t id);
	bool (*rdma_send_list)(struct flue_socket *s, const struct flue_piece *list, uint32_t n,
			       uint32_t flags, uint32_t inv_key, uint64_t id);
	bool (*put_list)(struct flue_socket *s, const struct flue_piece *list, uint32_t n,
			 uint64_t remote_addr, uint32_t rkey, uint32_t flags, uint64_t id);
	bool (*get_list)(struct flue_socket *s, const struct flue_piece *list, uint32_t n,
			 uint64_t remote_addr, uint32_t rkey, uint32_t flags, uint64_t id);

	/*
	 * Control clients only (EOPNOTSUPP), also after the end of the connection. They wait for the
	 * device, ETIMEDOUT.
	 *
	 * query_offload(): what queue pair and connection are doing now. info->size must be set. EINVAL,
	 * EBADFD, ENOTCONN: the offload was ended.
	 *
	 * end_offload(): the queue pair is the program's alone again, Idle, for another socket or
	 * connection; of this socket destroy(), free_stag() and get_event() are left. EBUSY: TCP is not
	 * closed yet (after disconnect(), ENDED tells), and nothing has changed; with `early` it is reset
	 * then: ENDED says aborted. ETIMEDOUT and other errors of reset(): it has ended all the same, but
	 * the queue pair is not Idle and can only be destroyed. EDEADLK: from a callback.
	 */
	bool (*query_offload)(struct flue_socket *s, struct flue_offload_info *info);
	bool (*end_offload)(struct flue_socket *s, bool early);
};

struct flue_socket {
	const struct flue_socket_ops *ops;
	void *user;
	struct flue_adapter *adapter;
	struct flue_pd *pd;     /* once there is one */
	struct flue_qp *qp;     /* from reserve() on */
	int fd;                 /* -1 once it was handed over or closed */
	uint32_t state;         /* enum flue_socket_state; read with flue_socket_state() */
	uint32_t offload_state; /* enum flue_offload_state */
	uint32_t ird, ord, sq_depth, rq_depth; /* granted */
	uint32_t pieces;                       /* granted */
};

/* A connected TCP descriptor. EBADF, ENOTSOCK, EPROTOTYPE: not TCP, ENOTCONN, EINVAL, ENOMEM, EMFILE,
 * EAGAIN: no thread can be made. Whether the adapter can take over streams is said by reserve(). */
FLUE_API struct flue_socket *flue_socket_open(struct flue_adapter *adapter, int fd,
					      const struct flue_socket_attr *attr);

/* One connection of a gang: switch_mode() and the first rdma_recv() together. */
struct flue_gang {
	struct flue_socket *socket;
	const struct flue_switch_attr *attr;
	uint64_t switch_id;
	void *data; /* first receive */
	size_t length;
	uint64_t recv_id;
	int error; /* out: 0, or why this one was not begun */
};

/* Begins the switch of many connections in one call; each is answered by its own SWITCHED. Returns
 * how many were begun; `error` says why the others were not. One whose receive was refused has been
 * switched all the same, and waits for another rdma_recv() or for destroy(). */
FLUE_API size_t flue_socket_switch_gang(struct flue_gang *gang, size_t n);

/*
 * The plain form. `qp`: Idle, of the program. Blocks until the connection is in RDMA mode, with
 * receives that were posted before. Raises no CONNECTED; DISCONNECTED comes as for any connection.
 * EINVAL, EISCONN, EBADF, ENOTSOCK, EPROTOTYPE, ENOTCONN, EOPNOTSUPP, EDEADLK, ENODEV and whatever
 * else getpeername(2) says: nothing happened, the descriptor is the program's. Any other failure (ETIMEDOUT, ECONNRESET, EPROTO, ECONNREFUSED: the
 * peer's reply was a reject) has ended the connection and closed the descriptor.
 */
FLUE_API bool flue_socket_convert(struct flue_qp *qp, int fd, const struct flue_switch_attr *attr);

static inline uint32_t flue_socket_state(const struct flue_socket *s)
{
	return __atomic_load_n(&s->state, __ATOMIC_ACQUIRE);
}

static inline bool flue_socket_get_event(struct flue_socket *s, struct flue_socket_event *ev,
					 int timeout_ms)
{
	return s->ops->get_event(s, ev, sizeof(*ev), timeout_ms);
}

FLUE_API const char *flue_socket_state_name(uint32_t state);
FLUE_API const char *flue_offload_state_name(uint32_t state);
FLUE_API const char *flue_reserve_reason_name(uint32_t reason);

#ifdef __cplusplus
}
#endif
#endif
