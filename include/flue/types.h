/* SPDX-License-Identifier: MIT */
/*
 * Flue: values and plain structures shared by all objects.
 *
 * Conventions of the whole API
 *  - Functions return a pointer or a bool. NULL or false means failure and errno says why.
 *  - Public structures are read-only for the program, except `user`, which belongs to it.
 *  - Unless a function says otherwise it may be called from any thread, but an object must not
 *    be destroyed while another thread still uses it.
 *
 * How structures grow, so that a program built against an older header keeps working. A field never
 * moves and never changes its meaning; new ones come behind the last.
 *  - Attributes (flue_*_attr, flue_*_info, flue_caps, flue_*_values) and tables of operations
 *    (flue_*_ops) start with `size`. The program sets it to its sizeof (the FLUE_ATTR macro does) in
 *    what it passes; fields that it does not know read as zero, which is the default. In what the
 *    library fills or hands out `size` says how much of it there is: FLUE_HAS().
 *  - Requests (flue_send_wr, flue_recv_wr) have no size. A field behind those of version 0.2 is read
 *    only if `op` or `flags` says so in a way that only a program knowing the field can.
 *  - Completions and events are copied into memory of the program, whose sizeof goes with the call
 *    (the inline functions pass it): so much is written and no more. Those that a function of the
 *    program gets by pointer only grow.
 *  - Objects (flue_qp, flue_cq, ...) and other structures that the library hands out by pointer only
 *    grow. Programs never make or copy one.
 *  - Elements of arrays and parts of other structures are as they are for ever: flue_sge, flue_reg,
 *    flue_atomic, flue_datagram, flue_piece, flue_gang, flue_cpu_load.
 *  - Numbers of enumerations stay. The last one of some (FLUE_*_N...) counts the others and is that of
 *    the header, not of the library: who meets a larger one does not know it.
 */
#ifndef FLUE_TYPES_H
#define FLUE_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FLUE_API        __attribute__((visibility("default")))
#define FLUE_MUST_CHECK __attribute__((warn_unused_result))

/* struct flue_qp_attr a = FLUE_ATTR(struct flue_qp_attr); a.sq_depth = 64; ... */
#ifdef __cplusplus
#define FLUE_ATTR(type) flue_attr_init<type>()
#else
#define FLUE_ATTR(type) ((type) { .size = sizeof(type) })
#endif

/* Is `field` there in *s, a structure with a size that the library filled or handed out? */
#define FLUE_HAS(s, field) \
	((s)->size >= (size_t)((const char *)(&(s)->field + 1) - (const char *)(s)))

struct flue_provider;
struct flue_adapter;
struct flue_pd;
struct flue_mr;
struct flue_mw;
struct flue_cq;
struct flue_srq;
struct flue_qp;
struct flue_ah;
struct flue_listener;
struct flue_conn_request;

/* What a memory region or window may be used for. Local reading is always allowed. */
enum flue_access {
	FLUE_LOCAL_WRITE = 1 << 0,
	FLUE_REMOTE_WRITE = 1 << 1, /* needs LOCAL_WRITE */
	FLUE_REMOTE_READ = 1 << 2,
	/* The peer may revoke the region with a Send with invalidate. Off by default because the
	 * region serves every queue pair of its PD and one peer could hurt another. */
	FLUE_REMOTE_INVALIDATE = 1 << 3,
	/* Addresses (local and on the wire) count from 0 at the region's first byte. */
	FLUE_ZERO_BASED = 1 << 4,
	FLUE_BIND_WINDOW = 1 << 5, /* windows may be bound to the region */
	/* Addresses count from `iova` of its attributes, which may be any number; not with ZERO_BASED. */
	FLUE_IOVA = 1 << 6,
	FLUE_REMOTE_ATOMIC = 1 << 7, /* needs LOCAL_WRITE */
};

/* One piece of local memory. `addr` is an address inside the region named by lkey, as the region
 * counts them (flue_mr_sge() knows). With FLUE_INLINE lkey is ignored and addr is a plain pointer. */
struct flue_sge {
	uint64_t addr;
	uint32_t length;
	uint32_t lkey;
};

enum flue_wr_op {
	FLUE_WR_SEND = 0,
	FLUE_WR_SEND_INV, /* Send; the peer's region `rkey` is revoked before its receive completes */
	FLUE_WR_WRITE,    /* RDMA Write to remote_addr/rkey */
	FLUE_WR_READ,     /* RDMA Read from remote_addr/rkey; n_sg up to caps->max_read_sge */
	FLUE_WR_READ_INV,  /* Read; the local sink region is revoked before it completes */
	FLUE_WR_LOCAL_INV, /* revoke the local region or window whose rkey is `rkey` */
	FLUE_WR_FAST_REG,  /* make the revoked region `rkey` valid again: see `reg` */
	FLUE_WR_BIND,      /* bind window `rkey` to a part of region `reg.lkey`: see `reg` */
	FLUE_WR_SEND_IMM,  /* Send with `imm` */
	FLUE_WR_WRITE_IMM, /* Write; then a receive of the peer completes, with `imm` */
	FLUE_WR_CMP_SWAP,  /* 8 octets at remote_addr/rkey, old value into sg[0]: see `atomic` */
	FLUE_WR_FETCH_ADD, /* the same */
	FLUE_WR_NOPS,
};

enum flue_wr_flags {
	FLUE_SIGNALED = 1 << 0,  /* always set when the QP was made with FLUE_QP_SIGNAL_ALL */
	FLUE_SOLICITED = 1 << 1, /* Sends: raise the peer's solicited event */
	FLUE_FENCE = 1 << 2,     /* start after all earlier Reads completed */
	FLUE_INLINE = 1 << 3,    /* Sends and Writes: data is taken at post time, no lkey needed */
	FLUE_LOCAL_FENCE = 1 << 4, /* start after all earlier requests of this queue completed */
};

/*
 * Arguments of FLUE_WR_FAST_REG and FLUE_WR_BIND. `rkey` of the request names the region or window.
 * Each of its keys, lkey and rkey, becomes (old & ~0xff) | key. From the completion on the object shows
 * them: the region its new range and access, too.
 */
struct flue_reg {
	uint64_t addr; /* FAST_REG: new start; BIND: start inside the region */
	uint64_t length;
	uint64_t iova;   /* FAST_REG with FLUE_IOVA: address of the first byte */
	uint32_t access; /* enum flue_access */
	uint32_t lkey;   /* BIND: the region */
	uint8_t key;     /* low octet of the new key */
};

/* Arguments of FLUE_WR_CMP_SWAP (swap if equal to compare_add) and FLUE_WR_FETCH_ADD. */
struct flue_atomic {
	uint64_t compare_add, swap;
};

/* Where a datagram queue pair sends to. */
struct flue_datagram {
	struct flue_ah *ah;
	uint32_t remote_qpn, qkey;
};

struct flue_send_wr {
	const struct flue_send_wr *next; /* a list is posted in one call */
	uint64_t id;                     /* comes back in the completion */
	uint32_t op;                     /* enum flue_wr_op */
	uint32_t flags;                  /* enum flue_wr_flags */
	const struct flue_sge *sg;
	uint32_t n_sg;
	uint32_t rkey;
	uint64_t remote_addr;
	/* `op`, or the type of the queue pair, says which is read. */
	union {
		struct flue_reg reg;
		struct flue_atomic atomic;
		struct flue_datagram to;
	};
	uint32_t imm; /* the _IMM opcodes: four octets for the peer, in the order of memory */
};

struct flue_recv_wr {
	const struct flue_recv_wr *next;
	uint64_t id;
	const struct flue_sge *sg;
	uint32_t n_sg;
	uint32_t flags; /* none yet: 0 */
};

enum flue_wc_status {
	FLUE_WC_SUCCESS = 0,
	FLUE_WC_FLUSHED,          /* the queue pair left RTS before this was done */
	FLUE_WC_LOCAL_PROTECTION, /* an SGE: bad key, other PD, outside its region, no right */
	FLUE_WC_LOCAL_LENGTH,     /* a message did not fit the receive */
	FLUE_WC_LOCAL_OPERATION,  /* request cannot be done (for one, a Read with ORD 0) */
	FLUE_WC_BIND,             /* invalidate, fast register or bind was refused */
	FLUE_WC_REMOTE_ACCESS,    /* the peer's Terminate named this request: protection */
	FLUE_WC_REMOTE_OPERATION, /* the peer's Terminate named this request: operation */
	FLUE_WC_FATAL,            /* internal */
	FLUE_WC_BAD_RESPONSE,     /* the peer's answer fits no request */
	FLUE_WC_LOCAL_ACCESS,   /* receive: the peer's Write with immediate data was not allowed */
	FLUE_WC_REMOTE_REQUEST, /* the peer cannot understand the request, or it was too long */
	FLUE_WC_RETRY_EXCEEDED, /* the peer does not answer */
	FLUE_WC_RECEIVER_NOT_READY, /* the peer had no receive for it, again and again */
	FLUE_WC_REMOTE_ABORTED,
	FLUE_WC_TIMEOUT,
	FLUE_WC_GENERAL, /* something else: `vendor` */
	FLUE_WC_NSTATUS,
};

enum flue_wc_op {
	FLUE_WC_SEND = 0,
	FLUE_WC_WRITE,
	FLUE_WC_READ,
	FLUE_WC_LOCAL_INV,
	FLUE_WC_FAST_REG,
	FLUE_WC_BIND_MW,
	FLUE_WC_RECV,
	FLUE_WC_RECV_WRITE, /* receive: of a Write with immediate data; byte_len is of the Write */
	FLUE_WC_CMP_SWAP,
	FLUE_WC_FETCH_ADD,
	FLUE_WC_NOPS,
};

enum flue_wc_flags {
	FLUE_WC_SOLICITED = 1 << 0,   /* receive: the message asked for an event */
	FLUE_WC_INVALIDATED = 1 << 1, /* receive: the peer revoked the region with rkey `inv_key` */
	FLUE_WC_IMM = 1 << 2,         /* receive: `imm` is there */
	FLUE_WC_GRH = 1 << 3,         /* datagram: the first 40 octets of the receive are its GRH */
};

struct flue_wc {
	uint64_t id;
	uint16_t status;   /* enum flue_wc_status */
	uint16_t op;       /* enum flue_wc_op */
	uint32_t byte_len; /* receives and Reads */
	uint32_t flags;    /* enum flue_wc_flags */
	union {
		uint32_t inv_key; /* FLUE_WC_INVALIDATED */
		uint32_t imm;     /* FLUE_WC_IMM: as the peer gave it */
	};
	struct flue_qp *qp;
	uint32_t vendor; /* of one that failed: what the adapter can say; 0: nothing */
	/* Receives of a datagram queue pair: who sent it. */
	uint32_t src_qpn;
	uint16_t pkey_index, slid;
	uint8_t sl, path_bits;
	uint16_t cpu; /* processor on which the completion was made */
};

/*
 * States of a queue pair, those of iWARP and of the verbs in one list. A queue pair that is connected
 * with connect(), accept() or a stream shows the first five: it is Idle where the verbs have RESET, INIT
 * and RTR. One that is brought up by modify() shows RESET, INIT, RTR, RTS, SQD, SQE and ERROR.
 */
enum flue_qp_state {
	FLUE_QP_IDLE = 0,
	FLUE_QP_RTS,
	FLUE_QP_CLOSING,
	FLUE_QP_TERMINATE,
	FLUE_QP_ERROR,
	FLUE_QP_RESET, /* as a target of modify() the same as Idle */
	FLUE_QP_INIT,
	FLUE_QP_RTR,
	FLUE_QP_SQD, /* send requests wait */
	FLUE_QP_SQE, /* send requests failed and are flushed; receives go on */
	FLUE_QP_NSTATES,
};

enum flue_qp_type {
	FLUE_QP_RC = 0, /* reliable connection */
	FLUE_QP_UC,     /* unreliable connection: FLUE_FEATURE_UC */
	FLUE_QP_UD,     /* datagrams: FLUE_FEATURE_UD */
	FLUE_QP_NTYPES,
};

/* Why a connection ended; `detail` in struct flue_event is given in brackets. */
enum flue_close_reason {
	FLUE_CLOSE_GRACEFUL = 0, /* both sides finished in order */
	FLUE_CLOSE_BAD,          /* closed while work was outstanding, or data after the close */
	FLUE_CLOSE_RESET,        /* the peer's TCP reset the connection */
	FLUE_CLOSE_LOST,         /* TCP gave up [errno] */
	FLUE_CLOSE_ABORTED,      /* we aborted */
	FLUE_CLOSE_TERMINATED,   /* the peer sent a Terminate [fault] */
	FLUE_CLOSE_FAULT,        /* we found a fault and sent a Terminate [fault] */
	FLUE_CLOSE_LOCAL,        /* local failure: memory, system call, CQ overflow [errno] */
	FLUE_CLOSE_NREASONS,
};

enum flue_event_type {
	FLUE_EVENT_NONE = 0,
	FLUE_EVENT_REQUEST,   /* listener: a connection request waits */
	FLUE_EVENT_ACCEPTED,  /* deferred connect: the peer accepted; start() or disconnect() */
	FLUE_EVENT_CONNECTED, /* qp: in RTS */
	FLUE_EVENT_CONNECT_FAILED, /* qp: [errno]; ECONNREFUSED with private data = rejected */
	FLUE_EVENT_DISCONNECTED,   /* qp: once for each connection that was CONNECTED [reason] */
	FLUE_EVENT_CQ_ERROR,       /* cq: overflow; completions were lost */
	FLUE_EVENT_SRQ_LIMIT,      /* srq: fewer receives than the watermark; one shot */
	FLUE_EVENT_LAST_RECEIVE,   /* qp with srq: no more receives will complete on it */
	FLUE_EVENT_ESTABLISHED,    /* qp in RTR that modify() brings up: the first message came */
	FLUE_EVENT_SQ_DRAINED,     /* qp in SQD: all that had begun is done */
	/* Full service: why it refused what the peer asked for; it is in Error. DISCONNECTED follows if it was connected. */
	FLUE_EVENT_QP_ERROR,      /* qp: cannot complete its requests, in Error */
	FLUE_EVENT_QP_REQUEST,    /* qp: the peer asked for something impossible, in Error */
	FLUE_EVENT_QP_ACCESS,     /* qp: the peer touched what it may not, in Error */
	FLUE_EVENT_PATH_MIGRATED, /* qp: goes another way now */
	FLUE_EVENT_PATH_FAILED,   /* qp: the other way cannot be gone */
	FLUE_EVENT_SRQ_ERROR,     /* srq: unusable */
	/* Of the adapter; `port` says which: */
	FLUE_EVENT_PORT_UP,
	FLUE_EVENT_PORT_DOWN,
	FLUE_EVENT_ADDRESSES,     /* the addresses of a port have changed */
	FLUE_EVENT_PKEYS,         /* its partition keys have */
	FLUE_EVENT_PORT_CHANGED,  /* its local identifier, or who manages it */
	FLUE_EVENT_ADAPTER_ERROR, /* unusable; destroy everything */
	FLUE_EVENT_NTYPES,
};

struct flue_event {
	uint32_t type;   /* enum flue_event_type */
	uint32_t reason; /* enum flue_close_reason, for DISCONNECTED */
	/* errno, or a Terminate triple: layer << 12 | type << 8 | code (FLUE_FAULT_*) */
	uint32_t detail;
	uint32_t port; /* from 1; of events of a port */
	union {
		struct flue_qp *qp;
		struct flue_cq *cq;
		struct flue_srq *srq;
		struct flue_listener *listener;
		struct flue_adapter *adapter;
		void *object;
	} u;
};

#define FLUE_FAULT_LAYER(detail) ((detail) >> 12 & 0xf) /* 0 RDMAP, 1 DDP, 2 MPA */
#define FLUE_FAULT_TYPE(detail)  ((detail) >> 8 & 0xf)
#define FLUE_FAULT_CODE(detail)  ((detail)&0xff)

/* Names for people; never NULL. */
FLUE_API const char *flue_wc_status_name(uint32_t status);
FLUE_API const char *flue_qp_state_name(uint32_t state);
FLUE_API const char *flue_qp_type_name(uint32_t type);
FLUE_API const char *flue_event_name(uint32_t type);
FLUE_API const char *flue_close_reason_name(uint32_t reason);
FLUE_API const char *flue_fault_name(uint32_t detail);

#ifdef __cplusplus
}
template <typename T> static inline T flue_attr_init()
{
	T t = T();
	t.size = sizeof(T);
	return t;
}
#endif
#endif
