/* SPDX-License-Identifier: MIT */
/* Flue: providers, adapters, protection domains, memory, and the adapter's event file. */
#ifndef FLUE_ADAPTER_H
#define FLUE_ADAPTER_H

#include <errno.h>
#include <flue/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct flue_cq_attr;
struct flue_qp_attr;
struct flue_srq_attr;
struct flue_listen_attr;
struct flue_ah_attr;
struct flue_cpu_load;
struct flue_bind_attr;

/* Every limit and feature the verbs name. Read-only. */
struct flue_caps {
	size_t size;
	char provider[32];
	char adapter[32];
	uint32_t max_qp, max_cq, max_mr, max_mw, max_pd, max_srq;
	uint32_t max_sq_depth, max_rq_depth, max_srq_depth, max_cq_depth;
	uint32_t max_sge, max_read_sge, max_inline;
	uint32_t max_ird, max_ord;
	uint64_t max_mr_length, max_message;
	uint32_t max_private_data; /* octets: the most that a peer can send */
	/* What can be sent with connect(), accept() and reject(); a request says it for its own answers. */
	uint32_t max_private_request, max_private_reply, max_private_reject;
	uint32_t max_private_rev1;  /* instead of these: with FLUE_CONN_REV1 */
	uint32_t features;          /* FLUE_FEATURE_* */
	uint32_t max_private_full;  /* with FLUE_CONN_FULL, in each direction */
	uint32_t max_read_sge_full; /* full service, instead of max_read_sge */
};

enum flue_feature {
	FLUE_FEATURE_SRQ = 1 << 0,
	FLUE_FEATURE_ZERO_BASED = 1 << 1,
	FLUE_FEATURE_FAST_REG = 1 << 2,
	FLUE_FEATURE_WINDOWS = 1 << 3, /* of type 2B */
	FLUE_FEATURE_REMOTE_INVALIDATE = 1 << 4,
	FLUE_FEATURE_CQ_RESIZE = 1 << 5,
	FLUE_FEATURE_MARKERS = 1 << 6,
	FLUE_FEATURE_ADOPT_STREAM = 1 << 7,
	FLUE_FEATURE_GANG = 1 << 8, /* many streams are adopted in one call */
	FLUE_FEATURE_IOVA = 1 << 9,
	FLUE_FEATURE_ATOMICS = 1 << 10,
	FLUE_FEATURE_IMM = 1 << 11, /* immediate data */
	FLUE_FEATURE_UC = 1 << 12,
	FLUE_FEATURE_UD = 1 << 13,         /* datagrams, address handles */
	FLUE_FEATURE_MODIFY = 1 << 14,     /* queue pairs are brought up by modify() */
	FLUE_FEATURE_POST_EARLY = 1 << 15, /* FLUE_QP_POST_EARLY */
	FLUE_FEATURE_FULL = 1 << 16,       /* full service */
	FLUE_FEATURE_LOCAL = 1 << 17,      /* ... through memory on one host: FLUE_LINK_LOCAL */
	FLUE_FEATURE_WINDOWS_1 = 1 << 18,
	FLUE_FEATURE_WINDOWS_2A = 1 << 19,
	FLUE_FEATURE_KEEP_KEYS = 1 << 20,  /* FLUE_MR_KEEP_KEYS */
	FLUE_FEATURE_SRQ_RESIZE = 1 << 21, /* FLUE_SRQV_DEPTH can be changed */
};

/* How a CQ that names no processor gets one (CH-3). */
enum flue_balance {
	FLUE_BALANCE_FEWEST_QPS = 0,
	FLUE_BALANCE_ROUND_ROBIN,
	FLUE_BALANCE_LEAST_EVENTS,
	FLUE_BALANCE_NPOLICIES,
};

enum flue_link {
	FLUE_LINK_TCP = 1 << 0, /* always among them: connections begin there; and UDP */
	/* Full service and datagrams within a host: memory that both processes have. */
	FLUE_LINK_LOCAL = 1 << 1,
	FLUE_LINK_ALL = FLUE_LINK_TCP | FLUE_LINK_LOCAL,
};

struct flue_open_attr {
	size_t size;
	const char *provider; /* NULL: "soft" */
	/* Participating processors; NULL: all the calling thread may run on. Copied. */
	const int *cpus;
	uint32_t n_cpus;
	uint32_t balance; /* enum flue_balance */
	/* Non-NULL: replaces `balance`. Called with the adapter's lock held; must not call Flue.
	 * `load[i]` describes cpus[i]; returns an index into it. */
	uint32_t (*choose_cpu)(const struct flue_cpu_load *load, uint32_t n, void *arg);
	void *choose_arg;
	/* Which adapter (struct flue_adapter_info); NULL: the provider's first. With a name and no
	 * provider the first adapter of that name, whoever has it. */
	const char *name;
	uint32_t links; /* enum flue_link: what connections may go over; 0: all that there is */
};

struct flue_cpu_load {
	int cpu;
	uint32_t cqs, qps;
	uint64_t events; /* completion events handled so far */
};

struct flue_mr_attr {
	size_t size;
	void *addr;
	size_t length;
	uint32_t access; /* enum flue_access */
	/* Start in the revoked state, to be made valid by FLUE_WR_FAST_REG. */
	bool revoked;
	/* With FLUE_IOVA: how requests, here and on the wire, name the first byte. */
	uint64_t iova;
};

/* Bits for flue_mr_ops.modify: which of addr+length+iova, access+iova, pd to take from the arguments. */
enum flue_mr_modify {
	FLUE_MR_RANGE = 1,
	FLUE_MR_ACCESS = 2,
	FLUE_MR_PD = 4,
	/* Beside others: who has the keys goes on to use them. FLUE_FEATURE_KEEP_KEYS. */
	FLUE_MR_KEEP_KEYS = 8,
};

/* For whom a window is, and how it is bound. */
enum flue_mw_type {
	/* For the queue pair through which it was bound, by FLUE_WR_BIND, whose `key` becomes the last octet of its key. Either side of
	 * the connection may revoke it. */
	FLUE_MW_2B = 0,
	/* For every queue pair of its PD: bound, bound again and unbound by bind(), which chooses the key. No request revokes it. */
	FLUE_MW_1,
	/* As 2B. The verbs tell them apart by what is compared with each access: the number of the queue pair, or its PD, too. */
	FLUE_MW_2A,
	FLUE_MW_NTYPES,
};

/* A bind of a window of type 1. */
struct flue_bind_attr {
	size_t size;
	uint64_t id;        /* comes back in the completion */
	uint32_t flags;     /* FLUE_SIGNALED, FLUE_FENCE, FLUE_LOCAL_FENCE */
	uint32_t access;    /* FLUE_REMOTE_* */
	struct flue_mr *mr; /* of the window's PD; NULL: unbind */
	uint64_t addr;      /* inside the region, as it counts them */
	uint64_t length;    /* 0: unbind */
};

/* All that create, change or destroy: ETIMEDOUT: the device did not answer (flue(7)). An object that
 * was being destroyed is gone then, but its memory may still be in use. */
struct flue_adapter_ops {
	size_t size;
	/* Destroy the adapter. EBUSY while it has children. Waits for its engines to stop; must not
	 * be called from a callback (EDEADLK). */
	bool (*close)(struct flue_adapter *adapter);
	/* ENOMEM. */
	struct flue_pd *(*create_pd)(struct flue_adapter *adapter);
	/* EINVAL depth 0 or above the cap, unknown cpu or flag; ENOMEM. */
	struct flue_cq *(*create_cq)(struct flue_adapter *adapter, const struct flue_cq_attr *attr);
	/* EINVAL no or bad address, EADDRINUSE, EADDRNOTAVAIL, EACCES, EMFILE, ENOMEM. */
	struct flue_listener *(*listen)(struct flue_adapter *adapter,
					const struct flue_listen_attr *attr);
	/*
	 * Take the next event. timeout_ms 0: do not wait (EAGAIN when none), < 0: wait for ever;
	 * ETIMEDOUT. Events of objects with their own handler never come here. `size` is the program's
	 * sizeof(*ev); EINVAL: smaller than that of version 0.2.
	 */
	bool (*get_event)(struct flue_adapter *adapter, struct flue_event *ev, size_t size,
			  int timeout_ms);
	/* The adapter's event file: a descriptor that is readable while get_event(.., 0) would
	 * succeed. Made on the first call; owned by the adapter; never read or close it. -1 + errno. */
	int (*event_fd)(struct flue_adapter *adapter);
};

struct flue_adapter {
	const struct flue_adapter_ops *ops;
	void *user;
	const struct flue_caps *caps;
	const int *cpus; /* participating processors */
	uint32_t n_cpus;
};

struct flue_pd_ops {
	size_t size;
	bool (*destroy)(struct flue_pd *pd); /* EBUSY: it has children */
	/* EINVAL length 0, wrapping range, REMOTE_WRITE or REMOTE_ATOMIC without LOCAL_WRITE, unknown
	 * bits; EOPNOTSUPP: a feature that the adapter has not; ENOMEM; ENOSPC: max_mr reached. The memory stays the caller's and must stay mapped; see
	 * flue-memory(7) for what happens if it does not. */
	struct flue_mr *(*register_mr)(struct flue_pd *pd, const struct flue_mr_attr *attr);
	/* An unbound window, of type 2B. ENOMEM, ENOSPC. */
	struct flue_mw *(*create_mw)(struct flue_pd *pd);
	/* EINVAL, ENOMEM. */
	struct flue_srq *(*create_srq)(struct flue_pd *pd, const struct flue_srq_attr *attr);
	/* EINVAL (a limit, no CQ, objects of another adapter), EOPNOTSUPP: a type or flag that the
	 * adapter has not, ENOMEM, ENOSPC. */
	struct flue_qp *(*create_qp)(struct flue_pd *pd, const struct flue_qp_attr *attr);
	/* EINVAL: addresses; EOPNOTSUPP: no datagrams; ENOMEM, EHOSTUNREACH. */
	struct flue_ah *(*create_ah)(struct flue_pd *pd, const struct flue_ah_attr *attr);
	/* As create_mw(), of any type (enum flue_mw_type). EINVAL; EOPNOTSUPP: the adapter has none of it. */
	struct flue_mw *(*create_typed_mw)(struct flue_pd *pd, uint32_t type);
};

struct flue_pd {
	const struct flue_pd_ops *ops;
	void *user;
	struct flue_adapter *adapter;
};

struct flue_mr_ops {
	size_t size;
	/* Revokes the keys, waits until no byte moves through the region, frees. Not from a
	 * callback that runs for a completion of the same region. EBUSY: windows are bound to it. */
	bool (*deregister)(struct flue_mr *mr);
	/*
	 * Change what `what` (FLUE_MR_*) names; the rest stays. A region that is revoked becomes valid with a new range, and stays
	 * revoked without one. The keys change, unless `what` says otherwise: the old ones are dead when this returns. Either way no byte moves
	 * by the old terms any more.
	 * EINVAL, EOPNOTSUPP, EBUSY (windows bound), EXDEV pd of another adapter, ENOMEM: nothing has changed.
	 */
	bool (*modify)(struct flue_mr *mr, uint32_t what, const struct flue_mr_attr *attr,
		       struct flue_pd *pd);
};

struct flue_mr {
	const struct flue_mr_ops *ops;
	void *user;
	struct flue_pd *pd;
	void *addr; /* local start */
	size_t length;
	uint64_t remote_start, remote_end; /* as the peer must name it; end is one past the last */
	uint32_t access;
	/*
	 * Current. lkey is for SGEs, rkey for the peer and for requests that change the region; they are
	 * two fields, which may hold the same number. The rkey of a region without a remote right opens nothing to the peer. All but pd
	 * and user change with modify() and by FLUE_WR_FAST_REG, before it completes; do not read them
	 * while one is under way.
	 */
	uint32_t lkey, rkey;
};

struct flue_mw_ops {
	size_t size;
	bool (*destroy)(struct flue_mw *mw); /* never EBUSY; revokes first */
	/*
	 * Type 1: post a request to qp that binds the window, or unbinds it. It completes with FLUE_WC_BIND_MW; mw->rkey is the new key
	 * when this returns, and good from the completion on. The old one is dead then. Not taken: EINVAL (another type, qp or mr of
	 * another PD, a right that the region has not, FLUE_ZERO_BASED, outside of the region, a datagram queue pair, flags), and
	 * as for post_send ENOMEM, ENOTCONN. One that was taken may still fail, as FLUE_WR_BIND does.
	 */
	bool (*bind)(struct flue_mw *mw, struct flue_qp *qp, const struct flue_bind_attr *attr);
};

struct flue_mw {
	const struct flue_mw_ops *ops;
	void *user;
	struct flue_pd *pd;
	/* Current key: what to give FLUE_WR_BIND (any low octet), and from the completion of a bind on
	 * what the peer needs. */
	uint32_t rkey;
	uint64_t type; /* enum flue_mw_type */
};

struct flue_provider_info {
	size_t size;
	const char *name, *description;
	uint32_t n_adapters; /* now; they may come and go */
};

/* An adapter that can be opened. */
struct flue_adapter_info {
	size_t size;
	char provider[32], name[32];
	char interface[16]; /* the network interface that it is of; "": none, or all of them */
	uint32_t ports;
	/* In: room for addresses that connections may use; NULL: they are not asked for. Out: how many
	 * there are, of which so many as fit were stored. Port 0. */
	uint32_t max_addresses;
	struct sockaddr_storage *addresses;
	uint32_t n_addresses;
};

/* ENOENT: no such provider, ENODEV: no such adapter, EINVAL: bad cpu list or policy, ENOMEM, EMFILE. */
FLUE_API struct flue_adapter *flue_open(const struct flue_open_attr *attr);
/* Describe provider number `index`; false + ENOENT past the last. info->size must be set. */
FLUE_API bool flue_provider_info(uint32_t index, struct flue_provider_info *info);
/* Describe adapter number `index` of all that the providers have; false + ENOENT past the last.
 * info->size must be set, and caps->size unless caps is NULL. */
FLUE_API bool flue_adapter_info(uint32_t index, struct flue_adapter_info *info,
				struct flue_caps *caps);
FLUE_API const char *flue_version(void);

static inline bool flue_close(struct flue_adapter *a)
{
	return a->ops->close(a);
}

static inline struct flue_pd *flue_create_pd(struct flue_adapter *a)
{
	return a->ops->create_pd(a);
}

static inline bool flue_destroy_pd(struct flue_pd *pd)
{
	return pd->ops->destroy(pd);
}

static inline bool flue_get_event(struct flue_adapter *a, struct flue_event *ev, int timeout_ms)
{
	return a->ops->get_event(a, ev, sizeof(*ev), timeout_ms);
}

static inline struct flue_mr *flue_register(struct flue_pd *pd, void *addr, size_t length,
					    uint32_t access)
{
	struct flue_mr_attr attr = FLUE_ATTR(struct flue_mr_attr);

	attr.addr = addr;
	attr.length = length;
	attr.access = access;
	return pd->ops->register_mr(pd, &attr);
}

static inline bool flue_deregister(struct flue_mr *mr)
{
	return mr->ops->deregister(mr);
}

/* An SGE for `length` bytes at offset `offset` of a region, whatever its addressing. */
static inline struct flue_sge flue_mr_sge(const struct flue_mr *mr, size_t offset, uint32_t length)
{
	struct flue_sge sge;

	sge.addr = mr->remote_start + offset;
	sge.length = length;
	sge.lkey = mr->lkey;
	return sge;
}

#ifdef __cplusplus
}
#endif
#endif
