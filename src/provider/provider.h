/* SPDX-License-Identifier: MIT */
/*
 * The provider interface (RD-6): what the access layer needs of something that can do RDMA.
 *
 * A provider is one const table. Every slot is filled; a provider that cannot do a thing answers
 * -EOPNOTSUPP (prov_* stubs in provider.c) and says so in its capabilities. Handles are opaque to
 * the access layer; each is made and freed by the provider that gave it.
 *
 * Results are 0 or a negative errno. Slots that take a `struct prov_op *` may answer later: they
 * then return -EINPROGRESS and call op->done(op, result) exactly once, from any thread, with no
 * provider lock held. When they return anything else, op->done is never called. The access layer
 * keeps op (and what the slot's arguments point to) alive until the answer. A create slot stores
 * the handle through its out pointer before it answers with 0. A caller does not wait for ever: after
 * ten seconds the call fails and the object counts as gone, children and all. The answer may still
 * come, until close() has returned, which also ends such objects; nobody hears of it any more.
 *
 * Up-calls (struct prov_upcalls) may come from any thread with no provider lock held. They must
 * not block. `owner` pointers are what the access layer gave when it made the object; the
 * provider never looks behind them. After a destroy slot has answered, no up-call for that object
 * is running or will come.
 *
 * Completion handlers (CH-1, CH-2). set_completion_handler() binds a function to a processor and
 * returns an id; a CQ is created with such an id. The function is called on a thread that runs on
 * that processor when an armed CQ gets a completion.
 *
 * Slots may be called from any thread. The access layer guarantees: parents outlive children;
 * destroy slots are called once, and no other slot of the object is entered after it.
 */
#ifndef FLUE_PROVIDER_PROVIDER_H
#define FLUE_PROVIDER_PROVIDER_H

#include <flue/flue.h>

struct prov_adapter;
struct prov_pd;
struct prov_mr;
struct prov_mw;
struct prov_cq;
struct prov_srq;
struct prov_qp;
struct prov_ah;
struct prov_listener;
struct prov_request;

struct prov_op {
	void (*done)(struct prov_op *op, int result);
};

/* Runs on the processor it was registered for. cq_owner: from prov_cq_attr. */
typedef void (*prov_completion_fn)(void *cq_owner, void *arg);

/* What the provider tells about a new connection request; copied by the callee. */
struct prov_request_info {
	struct sockaddr_storage local, peer;
	const void *private_data;
	size_t private_len;
	uint32_t peer_ird, peer_ord; /* UINT32_MAX: not said */
	uint32_t revision;
	bool peer_to_peer, full;
	uint32_t max_reply, max_reject; /* octets of private data that can go back */
};

/* Facts about a connection, with ACCEPTED, CONNECTED and CONNECT_FAILED. */
struct prov_conn_info {
	struct sockaddr_storage local, peer;
	const void *private_data; /* the peer's; valid during the call */
	size_t private_len;
	uint32_t ird, ord;
};

struct prov_upcalls {
	/*
	 * ACCEPTED, CONNECTED, CONNECT_FAILED (conn may be NULL), DISCONNECTED, LAST_RECEIVE. For one
	 * connection: either CONNECT_FAILED, or CONNECTED and later exactly one DISCONNECTED.
	 * ev->u is not set.
	 */
	void (*qp_event)(void *qp_owner, const struct flue_event *ev,
			 const struct prov_conn_info *conn);
	void (*cq_error)(void *cq_owner);
	void (*srq_limit)(void *srq_owner);
	/* A request arrived. 0: taken, the access layer will accept or reject it once; else the
	 * provider rejects it itself. */
	int (*request)(void *listener_owner, struct prov_request *req,
		       const struct prov_request_info *info);
};

struct prov_cq_attr {
	uint32_t depth;
	int handler; /* id from set_completion_handler() */
	/* The completion handler must run on the handler's processor; otherwise it may run on a thread of
	 * the provider that made the completion, and on several at once. */
	bool affine;
	void *owner;
};

/* lkey: in SGEs. rkey: for the peer, and in requests that invalidate, fast register or bind. */
struct prov_keys {
	uint32_t lkey, rkey;
};

struct prov_mr_attr {
	struct prov_pd *pd;
	void *addr;
	uint64_t start; /* how requests name `addr`, whatever `access` says */
	size_t length;
	uint32_t access;
	bool revoked;
	/* Registering: the provider stores there what a fast register makes of the region, before its
	 * completion: range, access and, last and atomically, the keys. Until deregister has answered. */
	struct flue_mr *owner;
};

struct prov_qp_attr {
	struct prov_pd *pd;
	struct prov_cq *send_cq, *recv_cq;
	struct prov_srq *srq;
	uint32_t sq_depth, rq_depth, sq_sge, rq_sge, max_inline;
	uint32_t type; /* enum flue_qp_type */
	bool signal_all, post_early;
	bool bringup;          /* FLUE_QP_BRINGUP: modify_qp() connects it; it is in RESET */
	uint32_t *state;       /* the provider stores enum flue_qp_state here, atomically */
	struct flue_qp *owner; /* also wc.qp of its completions */
};

struct prov_listen_attr {
	const struct sockaddr *local;
	socklen_t local_len;
	/* Already defaulted. `backlog` is kept by the access layer, too: request() says when it is full. */
	int backlog, max_half_open, request_timeout_ms;
	bool full; /* FLUE_LISTEN_FULL */
	void *owner;
};

/* A live TCP stream that shall become a connection. */
struct prov_stream {
	int fd;
	bool initiator;
	bool raw;          /* no MPA request and reply (RDMAC style): attr holds the terms */
	const void *early; /* octets that were read from fd and belong to the connection */
	size_t early_len;  /* up to FLUE_SWITCH_EARLY_MAX */
	/* FLUE_REMOTE_READ, FLUE_REMOTE_WRITE: what the peer may not do over this connection, to any
	 * memory and whatever its key would allow (CH-7). It is told of an access violation. */
	uint32_t deny;
};

/* One of many streams that are adopted in one call. */
struct prov_adoption {
	struct prov_qp *qp;
	const struct prov_stream *stream;
	const struct flue_conn_attr *attr;
	int result; /* out: what adopt_stream() would have returned */
};

struct prov_open_attr {
	const char *name; /* as adapter() told it */
	const int *cpus;  /* the participating processors */
	uint32_t n_cpus;
	const struct prov_upcalls *up;
	uint32_t links; /* enum flue_link, never 0 */
};

/* See prov_ops.await_qp. */
struct prov_await {
	const _Atomic uint32_t *word;
	uint32_t value;
	int timeout_ms; /* < 0: no limit */
	int cancel_was; /* base/cancel.h */
};

struct prov_ops {
	size_t size;
	const char *name, *description;

	/*
	 * Describe adapter number `index` without opening it: -ENOENT past the last. Both are zeroed but
	 * for the fields that ask for addresses; caps->adapter and provider are not the provider's to fill.
	 * Any of them may be gone the next moment.
	 */
	int (*adapter)(uint32_t index, struct flue_adapter_info *info, struct flue_caps *caps);

	/* One logical RNIC. -ENODEV: none of that name, -ENOMEM, -EMFILE. */
	int (*open)(const struct prov_open_attr *attr, struct prov_adapter **out);
	/* No children are left. Returns when no thread of the adapter runs any more. */
	void (*close)(struct prov_adapter *a);

	/* Returns an id >= 0 (may be called again for a processor; each call makes an id), -EINVAL:
	 * cpu is not one of the adapter's, -ENOMEM. */
	int (*set_completion_handler)(struct prov_adapter *a, int cpu, prov_completion_fn fn,
				      void *arg);

	int (*create_pd)(struct prov_adapter *a, struct prov_pd **out, struct prov_op *op);
	int (*destroy_pd)(struct prov_pd *pd, struct prov_op *op);

	/* -ENOSPC: table full. */
	int (*register_mr)(const struct prov_mr_attr *attr, struct prov_mr **out,
			   struct prov_keys *keys, struct prov_op *op);
	/* `attr` is the region as it shall be, `what` (FLUE_MR_*) which parts of that are new; a region that is revoked
	 * stays so without a new range. *keys are the new ones, or with FLUE_MR_KEEP_KEYS (FLUE_FEATURE_KEEP_KEYS) those that it has. On failure nothing changed. */
	int (*modify_mr)(struct prov_mr *mr, uint32_t what, const struct prov_mr_attr *attr,
			 struct prov_keys *keys, struct prov_op *op);
	/* Answers when no byte moves through the region. -EBUSY: windows are bound to it. */
	int (*deregister_mr)(struct prov_mr *mr, struct prov_op *op);

	/* `type`: enum flue_mw_type, of which the features name all but 2B. Of type 2 `rkey` stays the provider's to write until
	 * destroy_mw has answered: each bind stores the new key there, atomically, before its completion. Windows of type 2
	 * that are bound through a queue pair are unbound when that is destroyed. */
	int (*create_mw)(struct prov_pd *pd, uint32_t type, struct prov_mw **out, uint32_t *rkey,
			 struct prov_op *op);
	int (*destroy_mw)(struct prov_mw *mw, struct prov_op *op);
	/* FLUE_FEATURE_WINDOWS_1: posts a bind of a window of type 1, of which id, flags and reg (but not its key) are set; length
	 * 0: it is unbound. *rkey: the new key. As post_send; nobody but the access layer has looked at reg. */
	int (*bind_mw)(struct prov_mw *mw, struct prov_qp *qp, const struct flue_send_wr *wr,
		       uint32_t *rkey);

	int (*create_cq)(struct prov_adapter *a, const struct prov_cq_attr *attr,
			 struct prov_cq **out, struct prov_op *op);
	int (*resize_cq)(struct prov_cq *cq, uint32_t depth, struct prov_op *op);
	int (*destroy_cq)(struct prov_cq *cq, struct prov_op *op);
	/* Number taken (0..n), or -EOVERFLOW once drained after an overflow. Progresses the
	 * connections when empty. Never blocks. Taking a completion, and nothing before that, frees the
	 * slot of its request and those of unsignaled ones in front of it. `size` is that of the caller's
	 * structure, which may be older or newer: what it has beyond ours becomes zero; -EINVAL: smaller
	 * than that of version 0.2. */
	int (*poll)(struct prov_cq *cq, struct flue_wc *wc, size_t size, uint32_t n);
	/* One-shot arming. Returns 1 when completions are already waiting (no event promised for
	 * those), else 0. */
	int (*arm)(struct prov_cq *cq, uint32_t kind);
	/* 0: a completion waits. -ETIMEDOUT, -EINTR, -EOVERFLOW. timeout_ms < 0: no limit. The one slot
	 * in which a thread of the program may be cancelled, while it sleeps; it then keeps nothing. */
	int (*wait)(struct prov_cq *cq, int timeout_ms);

	int (*create_srq)(struct prov_pd *pd, uint32_t depth, uint32_t max_sge, void *owner,
			  struct prov_srq **out, struct prov_op *op);
	int (*destroy_srq)(struct prov_srq *srq, struct prov_op *op);
	int (*arm_srq)(struct prov_srq *srq, uint32_t limit);
	/* What `mask` names, all or nothing. DEPTH only with FLUE_FEATURE_SRQ_RESIZE. -EBUSY: does not fit; -EINVAL: the limit is
	 * above the depth; -ENOMEM. */
	int (*modify_srq)(struct prov_srq *srq, const struct flue_srq_values *values, uint32_t mask,
			  struct prov_op *op);
	/* Everything. */
	int (*query_srq)(struct prov_srq *srq, struct flue_srq_values *values, struct prov_op *op);
	int (*post_srq)(struct prov_srq *srq, const struct flue_recv_wr *wr,
			const struct flue_recv_wr **bad);

	/* *number: unique in the adapter. */
	int (*create_qp)(const struct prov_qp_attr *attr, struct prov_qp **out, uint32_t *number,
			 struct prov_op *op);
	/* Any state; aborts. Unpolled completions of the QP are removed. */
	int (*destroy_qp)(struct prov_qp *qp, struct prov_op *op);
	/* Error or Idle → Idle. -EBUSY. */
	int (*reset_qp)(struct prov_qp *qp, struct prov_op *op);
	/* Any state. When DISCONNECTED was told there is no TCP connection any more, and the state says how
	 * it ended: Idle or Error, or still Closing or Terminate where requests are being flushed.
	 * values->path and alt_path are NULL or to be filled; what they point to then lives as long as
	 * the queue pair. */
	int (*query_qp)(struct prov_qp *qp, struct flue_qp_values *values, uint32_t mask,
			struct prov_op *op);
	/*
	 * Change what `mask` (FLUE_QPV_*) names, all or nothing. States come here only where
	 * access/qp_states.def says ASK. op NULL, for READS alone: no later answer. -EBUSY: one of our
	 * Reads is posted or outstanding, or more of the peer's than would fit. -ENOTCONN, -EINVAL,
	 * -ENOMEM, -EOPNOTSUPP.
	 */
	int (*modify_qp)(struct prov_qp *qp, const struct flue_qp_values *values, uint32_t mask,
			 struct prov_op *op);
	/* -ENOMEM, -EINVAL, -ENOTCONN as in flue_qp_ops; *bad is set on failure (bad is not NULL). */
	int (*post_send)(struct prov_qp *qp, const struct flue_send_wr *wr,
			 const struct flue_send_wr **bad);
	int (*post_recv)(struct prov_qp *qp, const struct flue_recv_wr *wr,
			 const struct flue_recv_wr **bad);

	/* Connections. Start only; the outcome is an up-call. attr is validated and defaulted (ird,
	 * ord, timeout_ms) by the access layer. -EISCONN, -EINVAL, -ENOMEM, -EMFILE: nothing
	 * started, no up-call. */
	int (*connect)(struct prov_qp *qp, const struct flue_conn_attr *attr);
	/* Continue a deferred connection. -EINVAL: nothing deferred. */
	int (*start)(struct prov_qp *qp);
	/*
	 * Graceful close. 0: begun, DISCONNECTED follows. -EBUSY: work outstanding, an abortive
	 * close was begun, DISCONNECTED follows. -ENOTCONN: nothing to close. Before CONNECTED it
	 * abandons the set-up (CONNECT_FAILED, ECONNABORTED follows).
	 */
	int (*disconnect)(struct prov_qp *qp, int timeout_ms);
	/* Reset. 0: DISCONNECTED or CONNECT_FAILED follows. -ENOTCONN. */
	int (*abort)(struct prov_qp *qp);

	int (*listen)(struct prov_adapter *a, const struct prov_listen_attr *attr,
		      struct sockaddr_storage *bound, struct prov_listener **out);
	/* Stops new requests; those handed up before stay valid. */
	int (*destroy_listener)(struct prov_listener *l, struct prov_op *op);
	/*
	 * A thread that waits for the outcome of a set-up, or for a request, may make the progress it waits for: until
	 * *w->word is not w->value any more, which the up-call for it changes. That up-call may come on this
	 * very thread, so it must call no function of the program's. 0, -ETIMEDOUT; -EOPNOTSUPP: wait otherwise.
	 * The thread may be cancelled while it sleeps, if w->cancel_was allows it; it then keeps nothing.
	 */
	int (*await_qp)(struct prov_qp *qp, const struct prov_await *w);
	int (*await_listener)(struct prov_listener *l, const struct prov_await *w);
	/* Uses up the request, also on failure. The outcome is an up-call on the QP if 0. */
	int (*accept)(struct prov_request *req, struct prov_qp *qp,
		      const struct flue_conn_attr *attr);
	/* Uses up the request. */
	int (*reject)(struct prov_request *req, const void *data, size_t length);

	/*
	 * Optional (FLUE_FEATURE_ADOPT_STREAM): take over a connected TCP descriptor as the QP's
	 * stream. 0: the descriptor is the provider's; the outcome is an up-call, as for connect().
	 * Else nothing happened and it is still the caller's: -EOPNOTSUPP, -EISCONN, -EINVAL,
	 * -ENOMEM, -errno. attr as for connect(), its addresses are not looked at.
	 */
	int (*adopt_stream)(struct prov_qp *qp, const struct prov_stream *stream,
			    const struct flue_conn_attr *attr);
	/*
	 * Optional (FLUE_FEATURE_GANG): adopt_stream() for `n` queue pairs at once (CH-15), each of which
	 * has its own result; one that fails does no harm to the others, and up-calls of some may come
	 * before this returns. Not 0: nothing has happened to any (-EOPNOTSUPP, -ENOMEM), and the access
	 * layer tries them one by one.
	 */
	int (*adopt_gang)(struct prov_adoption *gang, uint32_t n);
	/* Ends a connection with a Terminate. 0: DISCONNECTED follows. -ENOTCONN, -EOPNOTSUPP. */
	int (*terminate)(struct prov_qp *qp);

	/* FLUE_FEATURE_UD. `attr` lasts as long as the handle, which requests find in flue_ah.handle. */
	int (*create_ah)(struct prov_pd *pd, const struct flue_ah_attr *attr, struct prov_ah **out,
			 struct prov_op *op);
	int (*destroy_ah)(struct prov_ah *ah, struct prov_op *op);
	/* A datagram queue pair becomes a member of a group, group->remote, as seen from group->local if that is there; or is none any
	 * more. -EINVAL: not a group, -EADDRINUSE: it is a member, -EADDRNOTAVAIL: it is none, -errno. */
	int (*join_group)(struct prov_qp *qp, const struct flue_ah_attr *group);
	int (*leave_group)(struct prov_qp *qp, const struct flue_ah_attr *group);
};

/* The built-in providers, in order; NULL past the last. */
const struct prov_ops *provider_at(uint32_t index);
const struct prov_ops *provider_find(const char *name);

/* The software RNIC. */
extern const struct prov_ops soft_provider;

/* Checks that every slot is filled; returns the name of the first empty one or NULL. */
const char *provider_empty_slot(const struct prov_ops *ops);

#endif
