/* SPDX-License-Identifier: MIT */
/* Flue: completion queues, queue pairs, shared receive queues. */
#ifndef FLUE_QUEUE_H
#define FLUE_QUEUE_H

#include <flue/adapter.h>
#include <flue/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct flue_conn_attr;

enum flue_notify {
	FLUE_NOTIFY_NEXT = 0,      /* the next completion of any kind */
	FLUE_NOTIFY_SOLICITED = 1, /* the next solicited receive or failed request */
};

/* Called once for a notify request, on the thread of the CQ's processor (but see FLUE_CQ_ANY_THREAD). It
 * may poll, post and ask for the next notice; it must not block or destroy the CQ. */
typedef void (*flue_notify_fn)(struct flue_cq *cq, void *arg);

/* Called for each completion, on the thread of the CQ's processor, in order; same rules. */
typedef void (*flue_completion_fn)(struct flue_cq *cq, const struct flue_wc *wc, void *arg);

enum flue_cq_flags {
	/*
	 * Functions run on the thread of the library that made the completion, whatever its processor,
	 * which spares the way to the CQ's own. flue_completion_fn is still called for one completion
	 * after the other; flue_notify_fn may run on another thread before it has returned here, once it
	 * has asked for the next notice.
	 */
	FLUE_CQ_ANY_THREAD = 1 << 0,
};

struct flue_cq_attr {
	size_t size;
	uint32_t depth;
	/* Wanted processor + 1; 0: the adapter's balancing policy chooses. */
	int cpu_plus_1;
	/* Non-NULL: the library polls, on the CQ's processor, and hands over each completion. Such
	 * a CQ must not be polled, armed or waited on by the program (EBUSY). */
	flue_completion_fn on_completion;
	void *arg;
	uint32_t flags; /* enum flue_cq_flags */
};

struct flue_cq_ops {
	size_t size;
	/* EBUSY: queue pairs use it. EDEADLK: from its callback. */
	bool (*destroy)(struct flue_cq *cq);
	/*
	 * Take up to n completions. Returns false and sets errno on failure (EBUSY: the CQ has an
	 * on_completion handler; EOVERFLOW: the CQ overflowed and is now drained). *got is 0 when
	 * there are none. An empty CQ makes the calling thread drive the connections of the CQ's
	 * processor for a moment, so a polling program needs no other thread to run. `size` is the
	 * program's sizeof(*wc); EINVAL: smaller than that of version 0.2.
	 */
	bool (*poll)(struct flue_cq *cq, struct flue_wc *wc, size_t size, uint32_t n,
		     uint32_t *got);
	/*
	 * Ask for one notice of a completion added after this call (then poll once more, to catch
	 * one that came before). `fn` may be NULL: then only fd() and wait() tell. A later request
	 * replaces one still pending; NEXT is not weakened by SOLICITED. EBUSY as for poll.
	 */
	bool (*notify)(struct flue_cq *cq, uint32_t kind, flue_notify_fn fn, void *arg);
	/*
	 * Wait until a completion is there, without consuming it. Needs no notify(). timeout_ms < 0:
	 * for ever. ETIMEDOUT, EOVERFLOW, EBUSY, EINTR (a signal handler ran while it slept;
	 * not promised while another thread does the driving). The thread drives the processor's
	 * connections while it waits: it polls for up to 50 us if that paid of late, then sleeps.
	 */
	bool (*wait)(struct flue_cq *cq, int timeout_ms);
	/*
	 * The CQ's completion file, made on the first call; readable after a notice until
	 * clear_fd(). Owned by the CQ: never read or close it. -1 + errno (EMFILE, ENOMEM).
	 */
	int (*fd)(struct flue_cq *cq);
	bool (*clear_fd)(struct flue_cq *cq); /* true: a notice had been there */
	/* New depth. EINVAL 0 or above the cap, EBUSY: more completions wait than would fit, ENOMEM;
	 * the old queue stays as it was on failure. */
	bool (*resize)(struct flue_cq *cq, uint32_t depth);
};

struct flue_cq {
	const struct flue_cq_ops *ops;
	void *user;
	struct flue_adapter *adapter;
	uint32_t depth;
	int cpu; /* processor it is bound to */
};

struct flue_srq_attr {
	size_t size;
	uint32_t depth;
	uint32_t max_sge;
};

/* Bits for flue_srq_ops.modify and query: which fields of struct flue_srq_values. */
enum flue_srq_value {
	FLUE_SRQV_DEPTH = 1 << 0,
	FLUE_SRQV_LIMIT = 1 << 1,
	FLUE_SRQV_WORK = 1 << 2, /* query() only: receives */
};

struct flue_srq_values {
	size_t size;
	uint32_t depth;
	uint32_t limit;    /* as for arm_limit(); 0: not armed, or told since */
	uint32_t receives; /* posted, and no queue pair has taken them */
};

struct flue_srq_ops {
	size_t size;
	bool (*destroy)(struct flue_srq *srq); /* EBUSY: queue pairs use it */
	/* As flue_qp_ops.post_recv. */
	bool (*post_recv)(struct flue_srq *srq, const struct flue_recv_wr *wr,
			  const struct flue_recv_wr **bad);
	/* Raise FLUE_EVENT_SRQ_LIMIT once, when fewer than `limit` receives remain (at once if that
	 * is so now); 0 disarms. EINVAL: above the depth. */
	bool (*arm_limit)(struct flue_srq *srq, uint32_t limit);
	/*
	 * Change what `mask` (enum flue_srq_value) names, all or nothing. EINVAL: a depth of 0 or above the cap, a limit above the depth,
	 * one that is armed and stays included; EBUSY: more receives are there than would fit, counting those whose
	 * completion nobody has taken; EOPNOTSUPP: FLUE_FEATURE_SRQ_RESIZE is missing; ENOMEM.
	 */
	bool (*modify)(struct flue_srq *srq, const struct flue_srq_values *values, uint32_t mask);
	/* Tell what `mask` names; values->size must be set. EINVAL. */
	bool (*query)(struct flue_srq *srq, struct flue_srq_values *values, uint32_t mask);
};

struct flue_srq {
	const struct flue_srq_ops *ops;
	void *user;
	struct flue_pd *pd;
	uint32_t depth, max_sge; /* depth: changes with modify() */
};

enum flue_qp_flags {
	FLUE_QP_SIGNAL_ALL = 1 << 0, /* every send request is signaled */
	/* Send requests are taken in Idle, too, and go out when the connection is there. reset() in Idle
	 * then discards all requests, without completions: needed before a connection to another peer, as
	 * one that is posted while a connection ends may wait for the next. */
	FLUE_QP_POST_EARLY = 1 << 1,
	/* modify() brings it up, from RESET over INIT and RTR to RTS, as programs do that have no connection
	 * manager; connect() and accept() cannot be used then. Full service. FLUE_FEATURE_MODIFY. */
	FLUE_QP_BRINGUP = 1 << 2,
};

/* Called on a thread of the library (or of a caller that drives it) for the object's events; it
 * must not block, nor destroy the object. */
typedef void (*flue_event_fn)(const struct flue_event *ev, void *arg);

struct flue_qp_attr {
	size_t size;
	struct flue_cq *send_cq, *recv_cq; /* needed; may be the same */
	struct flue_srq *srq;              /* NULL: own receive queue */
	uint32_t sq_depth, rq_depth;       /* rq_depth is ignored with an srq */
	uint32_t sq_sge, rq_sge;           /* 0: 1 */
	uint32_t max_inline;
	uint32_t flags;         /* enum flue_qp_flags */
	flue_event_fn on_event; /* NULL: events go to the adapter's event queue */
	void *event_arg;
	uint32_t type; /* enum flue_qp_type */
};

/* Where a datagram goes, or the path of a queue pair that is brought up by modify(). */
struct flue_ah_attr {
	size_t size;
	const struct sockaddr *remote; /* needed; its port is not looked at. All are copied */
	socklen_t remote_len;
	const struct sockaddr *local; /* NULL: the adapter chooses one of its addresses */
	socklen_t local_len;
	uint32_t port; /* of the adapter, from 1; 0: 1 */
	uint32_t flow_label;
	uint8_t traffic_class, hop_limit, sl;
};

struct flue_ah_ops {
	size_t size;
	/* No request that names it may be under way. */
	bool (*destroy)(struct flue_ah *ah);
};

struct flue_ah {
	const struct flue_ah_ops *ops;
	void *user;
	struct flue_pd *pd;
	const void *handle; /* the provider's */
	struct sockaddr_storage remote;
};

/* Bits for modify() and query(): which fields of struct flue_qp_values. */
enum flue_qp_value {
	FLUE_QPV_STATE = 1 << 0,
	FLUE_QPV_ACCESS = 1 << 1,
	FLUE_QPV_READS = 1 << 2, /* ird and ord */
	FLUE_QPV_PORT = 1 << 3,
	FLUE_QPV_PKEY = 1 << 4,
	FLUE_QPV_QKEY = 1 << 5,
	FLUE_QPV_PATH = 1 << 6,
	FLUE_QPV_ALT_PATH = 1 << 7,
	FLUE_QPV_MTU = 1 << 8,
	FLUE_QPV_REMOTE_QPN = 1 << 9,
	FLUE_QPV_RQ_PSN = 1 << 10,
	FLUE_QPV_SQ_PSN = 1 << 11,
	FLUE_QPV_TIMEOUT = 1 << 12,
	FLUE_QPV_RETRIES = 1 << 13,
	FLUE_QPV_RNR_RETRIES = 1 << 14,
	FLUE_QPV_MIN_RNR_TIMER = 1 << 15,
	FLUE_QPV_TELL_DRAINED = 1 << 16,
	FLUE_QPV_WORK = 1 << 17,   /* query() only: sends to llp_open */
	FLUE_QPV_QUEUES = 1 << 18, /* query() only: sq_depth to max_inline */
	FLUE_QPV_DROPS = 1 << 19,  /* query() only, datagrams: drops */
	FLUE_QPV_LINK = 1 << 20,   /* query() only: link */
	/* query() only, datagrams: udp_sent to local_received */
	FLUE_QPV_DATAGRAMS = 1 << 21,
};

/* Why a datagram that came was dropped: indices of flue_qp_values.drops. */
enum flue_drop {
	FLUE_DROP_FORM = 0,   /* version, length or something else of its form */
	FLUE_DROP_NUMBER,     /* for another queue pair */
	FLUE_DROP_QKEY,       /* wrong Q_Key */
	FLUE_DROP_STATE,      /* the queue pair does not receive in its state */
	FLUE_DROP_NO_RECEIVE, /* none was posted */
	FLUE_DROP_TOO_LONG,   /* for the receive */
	FLUE_NDROPS,
};

struct flue_qp_values {
	size_t size;
	uint32_t state; /* enum flue_qp_state */
	/* FLUE_REMOTE_*: what the peer may do at all, whatever its keys allow. A change is for requests
	 * that come later: Reads that were taken are answered to their end. */
	uint32_t access;
	uint32_t ird, ord; /* inbound and outbound Reads at once */
	/* As the verbs have them, for queue pairs that are brought up by modify(). */
	uint32_t port, pkey_index, qkey;
	uint32_t mtu;                         /* octets */
	struct flue_ah_attr *path, *alt_path; /* query(): filled if not NULL; size must be set */
	uint32_t remote_qpn, rq_psn, sq_psn;
	uint32_t timeout, retries, rnr_retries, min_rnr_timer; /* in the verbs' codes */
	bool tell_drained; /* to SQD: FLUE_EVENT_SQ_DRAINED is wanted */
	/* What it is doing at this moment. */
	bool llp_open;            /* it has a connection below, also one in set-up */
	uint32_t sends, receives; /* posted and not done; receives of an SRQ do not count */
	uint32_t reads_out, reads_in;
	/* How it was made. */
	uint32_t sq_depth, rq_depth, sq_sge, rq_sge, max_inline;
	uint64_t drops[FLUE_NDROPS];
	uint32_t link; /* enum flue_link: what its connection goes over; 0: it has none */
	/* Datagrams that went out and that found a receive, over UDP and through memory. What goes to a group goes both ways. */
	uint64_t udp_sent, udp_received, local_sent, local_received;
};

struct flue_qp_ops {
	size_t size;
	/* Aborts a live connection without waiting for its peer, then frees. Requests that were not
	 * completed yield no completions; those already in a CQ are removed from it. EDEADLK: from
	 * a callback of this QP. EBUSY: an RDMA socket uses it. */
	bool (*destroy)(struct flue_qp *qp);
	/*
	 * Post a list of requests, all or as many as fit. On failure *bad (if bad is not NULL) is the
	 * first one not taken; those before it were. Never blocks. ENOMEM: the queue is full (a place
	 * is free again when the completion of its request, or of a later one, was taken),
	 * EINVAL: opcode, SGE count, inline length or flag not possible, EOPNOTSUPP: an opcode that the
	 * adapter has not, ENOTCONN: QP is Idle (without FLUE_QP_POST_EARLY) or Closing (then the close,
	 * which was to be graceful, ends as a bad one). In Terminate and Error requests are taken and
	 * complete as flushed. Until its completion a request's memory belongs to the queue.
	 */
	bool (*post_send)(struct flue_qp *qp, const struct flue_send_wr *wr,
			  const struct flue_send_wr **bad);
	/* Same rules; also allowed while Idle. While the peer's close is answered ENOTCONN does no
	 * harm. EINVAL: the QP has an srq. */
	bool (*post_recv)(struct flue_qp *qp, const struct flue_recv_wr *wr,
			  const struct flue_recv_wr **bad);
	/* Connect: see <flue/conn.h>. */
	bool (*connect)(struct flue_qp *qp, const struct flue_conn_attr *attr);
	bool (*start)(struct flue_qp *qp);
	bool (*disconnect)(struct flue_qp *qp, int timeout_ms);
	bool (*abort)(struct flue_qp *qp);
	/* Error → Idle, for another connection. EBUSY: not in Error or Idle, or requests are still
	 * queued. */
	bool (*reset)(struct flue_qp *qp);
	/* End the connection with a Terminate message (a local error of the program), then close. While
	 * Closing it resets. Never blocks; DISCONNECTED follows. ENOTCONN, EOPNOTSUPP. */
	bool (*terminate)(struct flue_qp *qp);
	/*
	 * Change what `mask` (enum flue_qp_value) names, all or nothing. A state is gone to as by the
	 * call that does that: RESET and IDLE as reset(), ERROR as abort(), CLOSING as disconnect()
	 * without waiting, TERMINATE as terminate(), with the failures of these, and no other value may
	 * be changed with it. EINVAL: a value, or a state that cannot follow the present one (flue_qp(3)
	 * has the table); EOPNOTSUPP: the adapter cannot; EBUSY: not now. READS: in RTS (ENOTCONN), and
	 * EBUSY while one of ours is posted or outstanding, or more of the peer's than would fit.
	 */
	bool (*modify)(struct flue_qp *qp, const struct flue_qp_values *values, uint32_t mask);
	/* Tell what `mask` names; values->size must be set. The rest has no meaning. EINVAL, EOPNOTSUPP. */
	bool (*query)(struct flue_qp *qp, struct flue_qp_values *values, uint32_t mask);
	/*
	 * A datagram queue pair becomes a member of a multicast group, or ceases to be: group->remote, reached from group->local if
	 * that is set. What is sent there, to number FLUE_GROUP_QPN, comes to all members. EINVAL: no group or no
	 * datagram queue pair; EADDRINUSE: it is a member; EADDRNOTAVAIL: it is none; EOPNOTSUPP, and errors of setsockopt(2).
	 */
	bool (*join_group)(struct flue_qp *qp, const struct flue_ah_attr *group);
	bool (*leave_group)(struct flue_qp *qp, const struct flue_ah_attr *group);
};

#define FLUE_GROUP_QPN 0xffffffu

struct flue_qp {
	const struct flue_qp_ops *ops;
	void *user;
	struct flue_pd *pd;
	struct flue_cq *send_cq, *recv_cq;
	struct flue_srq *srq;
	uint32_t state;  /* enum flue_qp_state; changes at any time: read with flue_qp_state() */
	uint32_t number; /* unique in the adapter */
	uint32_t type;   /* enum flue_qp_type */
	uint32_t sq_depth, rq_depth, sq_sge, rq_sge, max_inline;
	/* Valid from CONNECTED on: */
	uint32_t ird, ord;
	struct sockaddr_storage local, peer;
	const void *private_data; /* the peer's, from its request or reply */
	size_t private_len;
};

static inline uint32_t flue_qp_state(const struct flue_qp *qp)
{
	return __atomic_load_n(&qp->state, __ATOMIC_ACQUIRE);
}

static inline bool flue_post_send(struct flue_qp *qp, const struct flue_send_wr *wr)
{
	return qp->ops->post_send(qp, wr, NULL);
}

static inline bool flue_post_recv(struct flue_qp *qp, const struct flue_recv_wr *wr)
{
	return qp->ops->post_recv(qp, wr, NULL);
}

static inline bool flue_poll(struct flue_cq *cq, struct flue_wc *wc, uint32_t n, uint32_t *got)
{
	return cq->ops->poll(cq, wc, sizeof(*wc), n, got);
}

static inline bool flue_wait(struct flue_cq *cq, int timeout_ms)
{
	return cq->ops->wait(cq, timeout_ms);
}

static inline struct flue_cq *flue_create_cq(struct flue_adapter *a, uint32_t depth)
{
	struct flue_cq_attr attr = FLUE_ATTR(struct flue_cq_attr);

	attr.depth = depth;
	return a->ops->create_cq(a, &attr);
}

static inline bool flue_destroy_cq(struct flue_cq *cq)
{
	return cq->ops->destroy(cq);
}

static inline bool flue_destroy_qp(struct flue_qp *qp)
{
	return qp->ops->destroy(qp);
}

#ifdef __cplusplus
}
#endif
#endif
