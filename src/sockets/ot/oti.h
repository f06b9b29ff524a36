/* SPDX-License-Identifier: MIT */
/*
 * The offload transport interface (OTI): what a protocol such as SDP needs from whatever carries
 * its messages. One table per transport; oti_local.h (shared memory of one host) and oti_rnic.h
 * (the software RNIC) make one each.
 *
 *   struct oti           a transport, opened: the manager that its connections are polled with
 *   struct oti_listener  waits for requests on an address and a port
 *   struct oti_request   one that waits for accept() or reject()
 *   struct oti_conn      a connection, from connect() or accept() until release()
 *
 * Whole messages travel, in order, each at most as long as the receiver's buffers. A message needs
 * a posted buffer at the receiver; one that finds none ends the connection, so the consumer keeps
 * credits. The transport has no threads of its own. Its up-calls come in one of two ways:
 *
 *   polled  inside poll() or poll_conn(), on the caller's thread,
 *   direct  whenever something happens, on a thread of the provider below (OTI_DIRECT).
 *
 * Rules for up-calls. None is made from inside another slot, so the consumer may hold its locks
 * while it calls down. Those of one connection never overlap. All slots but close() may be called
 * from inside an up-call. None begins after release() has returned; after abort() at most one that
 * was already on its way on another thread.
 *
 * Rules for slots. Any thread, unless the slot says otherwise; two calls for the same connection
 * must not overlap, except that up-calls may run meanwhile. They never block. They return 0 or a
 * negative errno, unless they say otherwise. Slots may be NULL only where a capability says so.
 */
#ifndef FLUE_SOCKETS_OTI_H
#define FLUE_SOCKETS_OTI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/uio.h>

struct oti_ops;
struct oti_conn;

#define OTI_PRIVATE_MIN 76 /* octets of private data each way that every transport carries */
#define OTI_HEAD_LEN    64 /* octets at the start of a message that are handed up as a copy */

enum oti_cap {
	OTI_RDMA = 1 << 0,     /* rdma_read, rdma_write, reg, unreg are there */
	OTI_STREAM = 1 << 1,   /* carries octets without message boundaries as well */
	OTI_POLLED = 1 << 2,   /* up-calls come from poll(), poll_conn(); wait() is there */
	OTI_DIRECT = 1 << 3,   /* up-calls come by themselves; poll() only tidies up */
	OTI_SHARED = 1 << 4,   /* the peer can change a received message: see struct oti_rx */
	OTI_DATAGRAM = 1 << 5, /* the datagram slots are there */
};

struct oti_caps {
	const char *name;
	uint32_t flags;        /* enum oti_cap, as opened */
	uint32_t max_private;  /* octets of private data each way, OTI_PRIVATE_MIN or more */
	uint32_t max_message;  /* octets of one message */
	uint32_t max_bufs;     /* receive buffers of one connection */
	uint32_t max_reads;    /* RDMA Reads outstanding, each way; 0 without OTI_RDMA */
	uint32_t time_wait_ms; /* how long an end stays in time wait; 0: not at all */
};

/* An address and port, in the form a socket has it. */
struct oti_addr {
	struct sockaddr_storage sa;
	socklen_t len;
};

/* A way to a peer, from resolve(). */
struct oti_endpoint {
	struct oti_addr remote;
	struct oti_addr local; /* len 0: the transport chooses */
};

/* A message buffer for sending, out of the pool of one connection. */
struct oti_buf {
	uint8_t *data;
	uint32_t cap;
	uint32_t index; /* the transport's */
};

/*
 * A message that arrived, in one of the connection's receive buffers; the consumer's until
 * repost(). With OTI_SHARED the peer may write to `data` at any time: what is decided upon must be
 * read from `head`, and payload must be copied out exactly once.
 */
struct oti_rx {
	struct oti_conn *conn;
	uint8_t *data;
	uint32_t len, cap; /* of the message, of the buffer; the consumer may write to all of it */
	uint32_t index;    /* the transport's */
	uint8_t head[OTI_HEAD_LEN]; /* the first octets, min(len, OTI_HEAD_LEN) of them */
	/* The consumer's while it holds the buffer. */
	struct oti_rx *next;
	uint32_t from, to;
	bool mark;
};

/* Memory for RDMA. `key` is the real one, as it travels in messages of the consumer. */
struct oti_mem {
	uint32_t key;
	uint64_t remote_addr; /* how the peer names the first octet */
	void *addr;
	size_t len;
};

enum oti_access { OTI_LOCAL_WRITE = 1, OTI_REMOTE_READ = 2, OTI_REMOTE_WRITE = 4 };

/* How a connection ended. */
enum oti_down {
	OTI_DOWN_OWN,  /* our disconnect() is complete: both sides have ended it in order */
	OTI_DOWN_PEER, /* the peer ended it in order */
	OTI_DOWN_LOST, /* anything else */
};

enum oti_send_flag { OTI_SOLICITED = 1 << 0 };

struct oti_upcalls {
	/*
	 * Connecting side: the peer accepted. confirm() or abort() must follow, now or later. The
	 * data is valid during the call.
	 */
	void (*accepted)(struct oti_conn *conn, const void *data, size_t len);
	/*
	 * Connecting side, instead of `accepted`: no connection. ECONNREFUSED: rejected by a
	 * consumer (code and data are its), or nobody listens (code 0, no data).
	 */
	void (*failed)(struct oti_conn *conn, int error, uint32_t code, const void *data,
		       size_t len);
	/* Both sides: messages can be sent now, if not before. One may have been received before. */
	void (*up)(struct oti_conn *conn);
	/* A message. The consumer has the buffer now. */
	void (*received)(struct oti_conn *conn, struct oti_rx *rx);
	/* There are send buffers again, after buf_get() had none. */
	void (*room)(struct oti_conn *conn);
	/* An RDMA request is complete; status 0 or a negative errno. */
	void (*rdma_done)(struct oti_conn *conn, uint64_t id, int status);
	/* The end, exactly once for each connection that was not `failed`; after all messages. */
	void (*down)(struct oti_conn *conn, enum oti_down how);
};

/* Attributes of a connection that is to be made. */
struct oti_conn_attr {
	const struct oti_upcalls *upcalls;
	void *user;
	const void *private_data; /* copied */
	size_t private_len;
	uint32_t bufs;     /* receive buffers, posted before the peer can send */
	uint32_t buf_size; /* octets of each */
	uint32_t reads;    /* RDMA Reads each way; 0: none are wanted */
	uint32_t timeout_ms;
};

struct oti_request {
	const struct oti_ops *ops;
	struct oti_addr local, peer;
	const void *private_data; /* valid until accept() or reject() */
	size_t private_len;
};

struct oti_listener {
	const struct oti_ops *ops;
	struct oti_addr local; /* with the port that was chosen */
	/* `req` must be answered by accept() or reject(), now or later, by any thread. */
	void (*on_request)(struct oti_listener *l, struct oti_request *req, void *user);
	void *user;
};

struct oti_conn {
	const struct oti_ops *ops;
	struct oti *oti;
	const struct oti_upcalls *upcalls;
	void *user;
};

struct oti_ops {
	/* What this transport can do. Any time. */
	void (*caps)(const struct oti *o, struct oti_caps *caps);
	/* -EBUSY: connections, requests or listeners are left. Not from an up-call (-EDEADLK). */
	int (*close)(struct oti *o);

	/* ---- connections ---- */

	/* The way to an address and port: -EINVAL no such address, -EAFNOSUPPORT, -ENETUNREACH. */
	int (*resolve)(struct oti *o, const struct oti_addr *remote, struct oti_endpoint *to);
	/*
	 * Requests for the address and port (0: one is chosen) come to on_request from now on. The
	 * same port may have listeners with other addresses; the any-address takes what is left.
	 * -EADDRINUSE, -EADDRNOTAVAIL, -EINVAL, -ENOMEM.
	 */
	int (*listen)(struct oti *o, const struct oti_addr *local, int backlog,
		      void (*on_request)(struct oti_listener *, struct oti_request *, void *),
		      void *user, struct oti_listener **out);
	/* Requests that nobody has seen are rejected. -EBUSY: one that was handed up waits. No
	 * on_request runs afterwards; one that runs now is waited for, so not from inside one. */
	int (*unlisten)(struct oti_listener *l);
	/*
	 * Begins a connection; `accepted` or `failed` tell how it goes on. *out is set before the
	 * first up-call. -EINVAL: a limit of caps; -ENOSPC, -ENOMEM.
	 */
	int (*connect)(struct oti *o, const struct oti_endpoint *to,
		       const struct oti_conn_attr *attr, struct oti_conn **out);
	/* Uses up the request, also if it fails; then the peer sees a rejection or a loss. `up` or
	 * `down` follow. *out is set before the first up-call. */
	int (*accept)(struct oti_request *req, const struct oti_conn_attr *attr,
		      struct oti_conn **out);
	/* Uses up the request. `code` is the consumer's, not 0. -EINVAL: too long; no data went. */
	int (*reject)(struct oti_request *req, uint32_t code, const void *data, size_t len);
	/* Connecting side, after `accepted`: go. `up` or `down` follow. */
	int (*confirm)(struct oti_conn *conn);
	/* Both addresses, from `accepted` or accept() on. */
	void (*names)(const struct oti_conn *conn, struct oti_addr *local, struct oti_addr *peer);

	/* ---- messages ---- */

	/* A free send buffer of the connection, or NULL: then `room` tells when there is one. */
	struct oti_buf *(*buf_get)(struct oti_conn *conn);
	/* Gives back one that was not sent. */
	void (*buf_put)(struct oti_conn *conn, struct oti_buf *buf);
	/*
	 * Gathers the pieces into the buffer and sends them as one message. The buffer is the
	 * transport's again, whatever is returned. -EMSGSIZE: longer than the buffer; -ENOTCONN.
	 */
	int (*send)(struct oti_conn *conn, struct oti_buf *buf, const struct iovec *iov, int n,
		    uint32_t flags);
	/* Posts a receive buffer again. Without effect once the connection has ended. */
	void (*repost)(struct oti_conn *conn, struct oti_rx *rx);

	/* ---- RDMA: NULL without OTI_RDMA ---- */

	/* -EINVAL, -ENOMEM. The memory stays the caller's. */
	int (*reg)(struct oti *o, void *addr, size_t len, uint32_t access, struct oti_mem **out);
	/* Returns when no octet moves through it any more. Not from an up-call. */
	void (*unreg)(struct oti *o, struct oti_mem *mem);
	/* From the peer's memory / to it. rdma_done(id) follows. -EAGAIN: too many under way. */
	int (*rdma_read)(struct oti_conn *conn, struct oti_mem *mem, size_t offset, uint32_t len,
			 uint64_t remote_addr, uint32_t key, uint64_t id);
	int (*rdma_write)(struct oti_conn *conn, struct oti_mem *mem, size_t offset, uint32_t len,
			  uint64_t remote_addr, uint32_t key, uint64_t id);

	/* ---- completions ---- */

	/* Makes up to `budget` up-calls, of all connections and listeners. Returns how many. One
	 * thread at a time; release() must not run on another thread meanwhile. */
	int (*poll)(struct oti *o, unsigned budget);
	/* The same for one connection; one that shares its queues with others may do theirs too. */
	int (*poll_conn)(struct oti_conn *conn, unsigned budget);
	/* Sleeps until poll() may find something; by the thread that polls. -ETIMEDOUT, -EINTR. */
	int (*wait)(struct oti *o, int timeout_ms);

	/* ---- the end ---- */

	/* In order, behind all that was sent. Nothing may be sent afterwards. `down` follows. */
	int (*disconnect)(struct oti_conn *conn);
	/* At once, in any state; what is under way may be lost. No up-call follows. */
	void (*abort)(struct oti_conn *conn);
	/* abort(), then everything of the connection goes, receive buffers included. */
	void (*release)(struct oti_conn *conn);

	/* ---- datagrams: reserved, NULL without OTI_DATAGRAM, which no transport has yet ---- */

	int (*dgram_open)(struct oti *o, const struct oti_addr *local, void *user);
	int (*dgram_send)(struct oti *o, const struct oti_addr *to, const struct iovec *iov, int n);
	int (*dgram_close)(struct oti *o);
};

/* The base of a transport. */
struct oti {
	const struct oti_ops *ops;
};

#endif
