/* SPDX-License-Identifier: MIT */
/*
 * The access layer (RD-7): what all providers share. It turns the public API into provider slots
 * and provider up-calls into events and results; nothing in it knows which provider is below.
 *
 * Every public object is the first member of an access object. Functions inside the layer return
 * 0 or a negative errno; the functions in the public ops tables convert once, with acc_ok() or
 * acc_null(), and hold cancellation (base/cancel.h). Names that cross a file begin with acc_, because the layers share one library.
 *
 * Locks, outermost first; none is held while a provider slot or a user's function is called,
 * except the balancing function, which runs under acc_adapter.lock.
 *   acc_listener.lock   queue of requests
 *   acc_qp.lock         phase of the connection
 *   acc_cq.lock         pending notice
 *   acc_adapter.lock    load of the processors, what was never answered
 *   acc_events.lock     event queue
 */
#ifndef FLUE_ACCESS_PRIV_H
#define FLUE_ACCESS_PRIV_H

#include <errno.h>
#include <flue/flue.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/queue.h>
#include <time.h>

#include "access/task.h"
#include "base/cancel.h"
#include "base/log.h"
#include "base/pollset.h"
#include "provider/provider.h"

#define ACC_MARGIN_MS 1000 /* patience beyond a provider's own timers */
#define ACC_GRACE_MS  100  /* for the up-call that an abort promises */
/* ACCEPTED or ESTABLISHED, CONNECTED or SQ_DRAINED, one of QP_ERROR, _REQUEST, _ACCESS, DISCONNECTED; with an SRQ
 * LAST_RECEIVE as well, of which the last connection's may still be due. */
#define ACC_EVENTS_PER_CONN 4
#define ACC_EVENTS_OF_SRQ   2

/* Octets of `type` up to and including `last`: the size a first-version program passes. */
#define ACC_ATTR_SIZE(type, last) (offsetof(type, last) + sizeof(((type *)0)->last))

struct acc_adapter;
struct acc_source;
struct sock_cq;

TAILQ_HEAD(acc_shared_cqs, sock_cq);

/* ---- results ---- */

static inline bool acc_ok(int rc)
{
	if (rc >= 0)
		return true;
	errno = -rc;
	return false;
}

static inline void *acc_null(int rc)
{
	errno = -rc;
	return NULL;
}

/* ---- attr.c ---- */

/*
 * Copy a caller's attribute structure into `to` (of `to_size` octets), whatever header the caller
 * was built with: fields it does not know become zero; fields that we do not know must be zero.
 * -EINVAL: NULL, smaller than `first` (the first version), or an unknown field set.
 */
int acc_attr_copy(void *to, size_t to_size, const void *from, size_t first);
/* The other way: `from`, of `size` octets, into a structure of the caller's of `to_size`. What it has
 * beyond ours becomes zero. */
void acc_copy_out(void *to, size_t to_size, const void *from, size_t size);
/* -EINVAL unless `addr` is a whole IPv4 or IPv6 address, and no longer than there is room for. */
int acc_check_address(const struct sockaddr *addr, socklen_t len);

/* A path with all that it points to. */
struct acc_path {
	struct flue_ah_attr attr;
	struct sockaddr_storage remote, local;
};

/* -EINVAL: no addresses, or of two families. */
int acc_check_path(const struct flue_ah_attr *attr);
/* -EINVAL: as above, or as acc_attr_copy(). */
int acc_path_copy(struct acc_path *to, const struct flue_ah_attr *from);

/* ---- op.c: a provider's later answer, waited for ---- */

/*
 * A control call. What its slot is given stands here or in the object, because a provider that
 * does not answer in time keeps it all the same. Such a call fails with -ETIMEDOUT; op and object
 * are then the adapter's (`lost`) and freed when it is closed, after which no answer comes.
 */
struct acc_op {
	struct prov_op base;
	_Atomic uint32_t state; /* enum in op.c; also the futex */
	int result;
	bool on_stack; /* there was no memory for one: waits for ever */
	void *object;
	SLIST_ENTRY(acc_op) link; /* in acc_adapter.lost */
	union {
		struct prov_mr_attr mr;
		struct prov_cq_attr cq;
		struct prov_qp_attr qp;
		struct flue_qp_values values;
		struct flue_srq_values srq;
	} attr;
	struct prov_keys keys;
	struct acc_path path, alt_path; /* of attr.values */
};

#define ACC_ANSWER_MS 10000
extern int acc_answer_ms; /* that, but for tests */

/* NULL: no memory. */
struct acc_op *acc_op_new(void);
/* For changing and destroying, which must not fail for want of memory: `own` is used then. */
struct acc_op *acc_op_begin(struct acc_op *own);
/* rc = acc_op_wait(a, op, ops->slot(..., &op->base), object): the answer, now or later. -ETIMEDOUT:
 * neither op nor object (NULL: there is none to keep) may be freed. */
int acc_op_wait(struct acc_adapter *a, struct acc_op *op, int rc, void *object);
/* After that: frees op, unless it was lost. */
void acc_op_end(struct acc_op *op);
/* Both. */
int acc_op_result(struct acc_adapter *a, struct acc_op *op, int rc, void *object);
void acc_lost_free(struct acc_adapter *a);

/* Deadlines are on CLOCK_MONOTONIC. ms < 0: none, acc_wait_until() gets NULL. */
const struct timespec *acc_deadline(struct timespec *at, int ms);
/* Wait for `cond`. False when the deadline has passed. */
bool acc_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, const struct timespec *at);
/* The same for who holds nothing but the lock: the thread may be cancelled here if the program allows
 * that, which is what `cancel_was` says. */
bool acc_sleep_until(pthread_cond_t *cond, pthread_mutex_t *lock, const struct timespec *at,
		     int cancel_was);

/* ---- log ---- */

/* Ends that somebody asked for are news, the others are errors (CH-29). */
static inline int acc_end_level(uint32_t reason)
{
	bool asked = reason == FLUE_CLOSE_GRACEFUL || reason == FLUE_CLOSE_ABORTED;

	return asked ? LOG_LEVEL_info : LOG_LEVEL_error;
}

/* ---- callback.c: which user's functions are running on this thread ---- */

struct acc_frame {
	const void *object, *other;
	struct acc_frame *outer;
};

/* `other`: a second object the call is for, or NULL. */
void acc_frame_enter(struct acc_frame *frame, const void *object, const void *other);
void acc_frame_leave(struct acc_frame *frame);
/* Is a callback for `object` (NULL: any) running on this thread? */
bool acc_in_callback(const void *object);

/* ---- event.c ---- */

/*
 * An event that waits to be taken. Slots belong to their object and are reserved before anything
 * can raise the event, so raising one needs no memory and can not fail.
 */
struct acc_slot {
	TAILQ_ENTRY(acc_slot) link; /* in acc_events.queue or acc_source.idle */
	struct acc_source *source;
	/* The event, as small as can be: every queue pair has some of these. */
	uint32_t reason, detail;
	uint32_t count; /* times to hand it out; > 1 only for counted sources */
	uint16_t port;
	uint8_t type;
	bool on_heap;
};
TAILQ_HEAD(acc_slots, acc_slot);

/* The adapter's event queue. */
struct acc_events {
	pthread_mutex_t lock;
	pthread_cond_t filled;
	struct acc_slots queue;
	struct flag flag; /* none until somebody asks */
};

/* What an object that has events embeds. */
struct acc_source {
	bool mute; /* events.lock: the object was given up, and its provider may still speak */
	struct acc_adapter *adapter;
	void *object; /* public pointer, for ev.u */
	flue_event_fn fn;
	void *arg;
	struct acc_slot *counted; /* non-NULL: the one slot, for any number of equal events */
	struct acc_slots idle;
};

void acc_events_init(struct acc_events *events);
void acc_events_fini(struct acc_events *events, bool inherited);
int acc_events_take(struct acc_adapter *a, struct flue_event *ev, int timeout_ms, int cancel_was);
int acc_events_fd(struct acc_adapter *a);

void acc_source_init(struct acc_source *source, struct acc_adapter *a, void *object,
		     flue_event_fn fn, void *arg);
/* Gives the source a slot that lives in its object. */
void acc_source_add(struct acc_source *source, struct acc_slot *slot);
/* Makes sure that n slots are idle, so that n events can be raised. -ENOMEM. */
int acc_source_reserve(struct acc_source *source, uint32_t n);
/* Forgets queued events. Nothing raises events of this source any more. */
void acc_source_fini(struct acc_source *source);
/* Whatever is raised from now on is ignored: a destroyed object whose provider did not say so. */
void acc_source_mute(struct acc_source *source);
bool acc_source_is_mute(struct acc_source *source);
/* Calls the object's handler (then no lock may be held), or queues (then the object's lock may
 * be, so that events are queued in the order in which they were decided). */
void acc_event_raise(struct acc_source *source, const struct flue_event *ev);
/* Counted sources: at most `left` of the queued notices are still true. */
void acc_event_limit(struct acc_source *source, uint32_t left);

/* ---- completion.c ---- */

/* One participating processor (CH-2). */
struct acc_cpu {
	int cpu;
	int handler;       /* the provider's id */
	uint32_t cqs, qps; /* acc_adapter.lock */
	_Atomic uint64_t events;
	uint64_t seen, recent; /* for FLUE_BALANCE_LEAST_EVENTS; acc_adapter.lock */
};

/* Fills a->cpus[].handler. */
int acc_completion_init(struct acc_adapter *a);
/* Picks a processor for a CQ (wanted: cpu + 1 or 0) and counts the CQ there. -EINVAL. */
int acc_completion_bind(struct acc_adapter *a, int cpu_plus_1, struct acc_cpu **out);
void acc_completion_unbind(struct acc_adapter *a, struct acc_cpu *cpu);
/* Counts a QP (delta 1 or -1) on the processor of its receive CQ. */
void acc_completion_count_qp(struct acc_adapter *a, struct acc_cpu *cpu, int delta);

/* ---- adapter.c ---- */

struct acc_adapter {
	struct flue_adapter pub;
	const struct prov_ops *ops;
	struct prov_adapter *prov;
	struct flue_caps caps;
	atomic_uint children;
	unsigned fork_gen;
	struct acc_events events;
	struct acc_tasks tasks;

	pthread_mutex_t lock;
	struct acc_cpu *cpus; /* pub.n_cpus of them, in the order of pub.cpus */
	int *cpu_numbers;     /* pub.cpus */
	uint32_t next_cpu, balance;
	uint32_t (*choose_cpu)(const struct flue_cpu_load *load, uint32_t n, void *arg);
	void *choose_arg;
	struct flue_cpu_load *load; /* scratch for choose_cpu */

	/* Completion queues that RDMA sockets share. Outside the locks of CQs and QPs. */
	pthread_mutex_t share_lock;
	struct acc_shared_cqs shared_cqs;

	SLIST_HEAD(, acc_op) lost; /* never answered; `lock` */
};

static inline struct acc_adapter *to_adapter(struct flue_adapter *a)
{
	return (struct acc_adapter *)a;
}

/*
 * After fork(), the child may only destroy what it inherited: other threads of the parent may have
 * been anywhere, so the locks and lists of such an adapter are not to be trusted.
 */
bool acc_inherited(const struct acc_adapter *a);
/* 0, or -ENODEV for an inherited adapter. */
int acc_usable(const struct acc_adapter *a);

/* ---- pd.c, mr.c, ah.c ---- */

struct acc_pd {
	struct flue_pd pub;
	struct prov_pd *prov;
	atomic_uint children;
};

static inline struct acc_pd *to_pd(struct flue_pd *pd)
{
	return (struct acc_pd *)pd;
}

struct flue_pd *acc_pd_create(struct flue_adapter *adapter);
struct flue_mr *acc_mr_register(struct flue_pd *pd, const struct flue_mr_attr *attr);
struct flue_mw *acc_mw_create(struct flue_pd *pd);
struct flue_mw *acc_mw_create_typed(struct flue_pd *pd, uint32_t type);
struct flue_ah *acc_ah_create(struct flue_pd *pd, const struct flue_ah_attr *attr);

/* ---- cq.c ---- */

struct acc_cq {
	struct flue_cq pub;
	const struct prov_ops *ops;
	struct prov_cq *prov;
	flue_completion_fn on_completion;
	void *arg;
	struct acc_cpu *cpu;
	atomic_uint children;
	/*
	 * on_completion only. `calls` counts calls of the provider's handler that are not worked off,
	 * so that two threads never drain at once. `turn` is odd from before a completion is taken
	 * until the user's function has returned from it.
	 */
	atomic_uint calls;
	atomic_uint turn;

	pthread_mutex_t lock;
	bool pending;      /* a notify request waits for its completion */
	uint32_t kind;     /* of the pending request */
	flue_notify_fn fn; /* of the pending request */
	void *fn_arg;
	bool noticed;     /* since the last clear_fd() */
	struct flag flag; /* shows `noticed`, once somebody asked */

	atomic_bool failed;
	struct acc_source source;
	struct acc_slot slot;
};

static inline struct acc_cq *to_cq(struct flue_cq *cq)
{
	return (struct acc_cq *)cq;
}

struct flue_cq *acc_cq_create(struct flue_adapter *adapter, const struct flue_cq_attr *attr);
/* From completion.c: the provider says that an armed CQ got a completion. */
void acc_cq_fired(struct acc_cq *cq);
/* Up-call. */
void acc_cq_error(void *cq_owner);
/* Returns when no on_completion call that may name a QP destroyed just now is running. */
void acc_cq_pass(struct acc_cq *cq);

/* ---- srq.c ---- */

struct acc_srq {
	struct flue_srq pub;
	const struct prov_ops *ops;
	struct prov_srq *prov;
	atomic_uint children;
	atomic_bool armed;
	struct acc_source source;
	struct acc_slot slot;
};

static inline struct acc_srq *to_srq(struct flue_srq *srq)
{
	return (struct acc_srq *)srq;
}

struct flue_srq *acc_srq_create(struct flue_pd *pd, const struct flue_srq_attr *attr);
/* Up-call. */
void acc_srq_limit(void *srq_owner);

/* ---- qp.c ---- */

/* Where a QP's connection is, as its user was told. */
enum acc_phase {
	ACC_NONE = 0, /* no connection; its end, if there was one, has been told */
	ACC_SETUP,    /* connect(), accept() or start() under way */
	ACC_HELD,     /* deferred: the peer accepted, start() is awaited */
	ACC_UP,
	ACC_ADRIFT, /* the provider did not answer in time; its late news are of no interest */
	ACC_NPHASES,
};

struct acc_qp {
	struct flue_qp pub;
	const struct prov_ops *ops;
	struct prov_qp *prov;
	struct acc_source source;
	/* A control client's queue pair: its RDMA socket hears the events, too. */
	flue_event_fn hear;
	void *hear_arg;
	uint32_t hearing;   /* calls of hear() that have not returned */
	uint32_t hear_turn; /* who hears has changed so often */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	enum acc_phase phase;
	bool defer, async;
	_Atomic uint32_t waited; /* a blocked caller takes the outcome of the set-up */
	bool last_due;           /* LAST_RECEIVE may come */
	int outcome;             /* for the blocked caller */
	uint32_t ends;           /* set-ups and connections that ended, and how the last one did: */
	struct flue_event end;
	/* The peer's, which nearly always is none: room for the most there can be during a set-up, then for what came. */
	uint8_t *private_data;
	size_t private_room;
	struct acc_slot slots[]; /* acc_qp_events() of them */
};

/* How many events of a connection there can be before the program takes the first. */
static inline uint32_t acc_qp_events(bool srq)
{
	return ACC_EVENTS_PER_CONN + (srq ? ACC_EVENTS_OF_SRQ : 0);
}

static inline struct acc_qp *to_qp(struct flue_qp *qp)
{
	return (struct acc_qp *)qp;
}

struct flue_qp *acc_qp_create(struct flue_pd *pd, const struct flue_qp_attr *attr);

/* ---- qp_state.c ---- */

bool acc_qp_modify(struct flue_qp *qp, const struct flue_qp_values *values, uint32_t mask);
bool acc_qp_query(struct flue_qp *qp, struct flue_qp_values *values, uint32_t mask);
/* What the provider says of it. Paths are filled where `mask` asks for them and the pointer is not NULL; their
 * sizes were checked. 0 or a negative errno. */
int acc_qp_ask(struct acc_qp *qp, struct flue_qp_values *values, uint32_t mask);

/* ---- conn.c ---- */

bool acc_conn_connect(struct flue_qp *qp, const struct flue_conn_attr *attr);
bool acc_conn_start(struct flue_qp *qp);
bool acc_conn_disconnect(struct flue_qp *qp, int timeout_ms);
bool acc_conn_abort(struct flue_qp *qp);
bool acc_conn_reset(struct flue_qp *qp);
bool acc_conn_terminate(struct flue_qp *qp);
/* Up-call. */
void acc_conn_event(void *qp_owner, const struct flue_event *ev, const struct prov_conn_info *conn);
/* Copies, checks and defaults. -EINVAL. */
int acc_conn_attr(const struct acc_adapter *a, struct flue_conn_attr *to,
		  const struct flue_conn_attr *from, size_t private_max);
/* Octets of private data that can go with these flags where they are `normal` else. */
size_t acc_private_max(const struct acc_adapter *a, uint32_t conn_flags, uint32_t normal);
/* The steps of connect() that accept() shares. -EISCONN, -EDEADLK, -ENOMEM. */
int acc_conn_begin(struct acc_qp *qp, const struct flue_conn_attr *attr, const void *private_data,
		   size_t private_len);
/* Being destroyed. A provider that did not say so may still speak. */
void acc_conn_forget_private(struct acc_qp *qp);
/* `rc`: the slot's answer; then waits unless asynchronous. */
int acc_conn_finish(struct acc_qp *qp, const struct flue_conn_attr *attr, int rc);

/* ---- convert.c ---- */

/* The connection attributes that a switch amounts to. -EINVAL. */
int acc_switch_attr(const struct acc_adapter *a, const struct flue_switch_attr *from,
		    struct flue_conn_attr *to);
/* As connect(), for a live stream. On failure the descriptor is still the caller's, unless it was a
 * blocking call that waited: then it is gone. */
int acc_conn_adopt(struct acc_qp *qp, const struct prov_stream *stream,
		   const struct flue_conn_attr *attr);

/* ---- listener.c ---- */

struct acc_request {
	struct flue_conn_request pub;
	struct prov_request *prov;
	TAILQ_ENTRY(acc_request) link;
	uint8_t private_data[];
};
TAILQ_HEAD(acc_requests, acc_request);

struct acc_listener {
	struct flue_listener pub;
	const struct prov_ops *ops;
	struct prov_listener *prov;
	uint32_t backlog;
	atomic_uint held; /* requests handed out and neither accepted nor rejected */
	pthread_mutex_t lock;
	pthread_cond_t arrived;
	struct acc_requests queue;
	_Atomic uint32_t queued;
	struct acc_source source;
	struct acc_slot slot;
};

struct flue_listener *acc_listener_create(struct flue_adapter *adapter,
					  const struct flue_listen_attr *attr);
/* Up-call. */
int acc_listener_request(void *listener_owner, struct prov_request *req,
			 const struct prov_request_info *info);

#endif
