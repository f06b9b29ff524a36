/* SPDX-License-Identifier: MIT */
/*
 * Queue pairs of the software RNIC: queues, states, scheduling, completions. What carries their
 * messages is a link (link.h).
 *
 * A queue pair lives on the engine of its receive CQ. Everything in struct qp that is not a work
 * queue is touched under that engine's lock only. Posting takes the work queue's leaf lock, then
 * kicks the engine; whoever gets its lock transmits.
 *
 * The stream belongs to the connection endpoint (cep.h) until the start-up frames are exchanged,
 * then to the queue pair's link. `state` is written by qp_apply() alone, from the table in
 * wire/qp_fsm.def.
 */
#ifndef FLUE_RNIC_QP_H
#define FLUE_RNIC_QP_H

#include <bsd/sys/queue.h>
#include <flue/flue.h>

#include "rnic/cq.h"
#include "rnic/engine.h"
#include "rnic/inbox.h"
#include "rnic/rnic.h"
#include "rnic/srq.h"
#include "rnic/wq.h"
#include "wire/control.h"
#include "wire/ddp.h"
#include "wire/qp_fsm.h"
#include "wire/mpa.h"
#include "wire/rdmap.h"

struct bringup;
struct cep;
struct qp_news;
struct ud;
struct link;

/* What may be sent over a connection; each can do more than the one before. */
enum qp_service {
	SERVICE_STRICT = 0, /* iWARP */
	SERVICE_RFC7306,    /* both programs asked for its messages */
	SERVICE_FULL,       /* two Flue ends: full.h */
};

/* An inbound Read Request being answered, or an atomic operation that is done. */
struct irq_entry {
	bool atomic;
	uint32_t number; /* in full service */
	union {
		struct rdmap_read_request req;
		struct rdmap_atomic_response done;
	};
};

/* One of our Reads or atomics on the wire: what the response must look like. */
struct orq_entry {
	uint32_t wqe; /* number in the SQ; ignored for the RTR */
	bool rtr, atomic;
	uint32_t msn;    /* of the request */
	uint32_t number; /* its own, in full service */
	uint32_t stag;
	uint64_t to;
	uint32_t size;
};

enum tx_kind { TX_NONE = 0, TX_REQUEST, TX_RESPONSE, TX_TERMINATE, TX_RTR, TX_CONTROL };

/* Which message goes next, and how much of it the link has. Copied to look ahead (qp_sched.h). */
struct tx_cursor {
	uint8_t kind;      /* enum tx_kind */
	uint32_t off;      /* bytes of the message already with the link */
	uint32_t next_wqe; /* next request to start */
	uint32_t irq_next; /* next inbound Read to answer */
	uint32_t orq_tail;
	uint32_t msn_send, msn_read, msn_atomic, msn_control;
	/* Full service: the next request's number; what was told of the peer's; what was said of `tx`. */
	uint32_t number, told;
	uint8_t naks, resumes, asks;
	bool rtr_owed;
	bool imm_owed; /* of the request at next_wqe: its Write is with the link */
	bool turn;     /* whose turn after this message: a response's */
	bool over;     /* the Terminate is with the link: nothing may follow it */
};

/* Full service, transmission: our requests, and what is to be told of the peer's. See full.h. */
struct full_tx {
	uint32_t acked;    /* our messages before this number are done */
	uint32_t ack_wqe;  /* our first request of which that is not known */
	uint32_t farthest; /* our requests before this one had begun when we went back */
	uint32_t back_to;  /* where to go back to, ... */
	bool go_back;      /* ... as soon as nothing is half out */
	bool paused;       /* the peer is not ready: the timer runs */
	bool ack_now;      /* what is owed goes out although there is nothing to go with it */
	bool refused;      /* the last word is `nak`, not a Terminate */
	uint8_t rnr_tries; /* how often the message at `acked` was not taken */
	uint8_t naks;      /* counts `nak`, of which one at a time is to be sent */
	uint8_t resumes;   /* counts words that we go on, ... */
	uint8_t asks;      /* ... and that we want to know what is done */
	uint32_t asked;    /* number of our next request, when we did */
	bool close_wanted; /* by the program, when everything is done */
	struct control nak;
};

/* Transmission, as far as no link is asked. */
struct qp_tx {
	struct tx_cursor cur; /* behind what the link has sent */
	struct mem_cache cache;
	bool held;      /* responder: nothing goes out before the first message came in */
	bool lenient;   /* ... or only for a moment */
	uint8_t nudges; /* ready-to-receive messages to repeat while the peer is silent */
	uint8_t rtr;    /* enum mpa_rtr: which message that is */
	bool fin_wanted;
	bool term_owed;
	struct rdmap_terminate term;
	struct full_tx full;
};

/* Reception, from the first checked segment on. */
struct qp_rx {
	struct mem_cache cache;
	/* untagged queue 0 */
	uint32_t msn_send;
	bool have_wqe; /* a receive is being filled */
	uint32_t filled;
	uint32_t send_op; /* opcode of the message being received */
	struct wqe *wqe;  /* own RQ: in place; SRQ: the copy */
	/* other queues */
	uint32_t msn_read, msn_term, msn_atomic;
	uint32_t read_got;  /* bytes of the response at the head of the ORQ */
	uint32_t write_got; /* bytes of the last Write, of which nothing else was behind */
	bool any;           /* a segment was received */
	bool rtr_send;      /* a zero-length Send as ready-to-receive is expected */
	bool in_write;      /* a Write has begun, and its last segment is still to come */
	bool after_write;   /* the last message was a Write */
	/* full service */
	uint32_t number; /* of the next request of the peer */
	uint32_t wanted; /* the peer asked to be told when those before this number are done */
	uint32_t msn_control;
	bool skipping; /* until the peer comes back to `number` */
};

struct qp {
	struct rnic *rnic;
	struct engine *engine;
	struct rnic_pd *pd;
	struct cq *send_cq, *recv_cq;
	struct srq *srq;
	struct flue_qp *owner;
	uint32_t *state_word; /* public copy of state */
	uint32_t qpn;
	bool signal_all, post_early;
	LIST_ENTRY(qp) all;
	struct engine_kick kick;

	struct wq sq, rq;
	struct wqe *srq_wqe; /* with an SRQ: the receive being filled */

	/* under the engine's lock from here on */
	uint8_t state; /* enum qp_fsm_state */
	struct inbox inbox;
	struct link *link; /* the last one; NULL: there was none */
	struct engine_timer timer;
	struct cep *cep;           /* connection being set up; NULL once it is up or gone */
	struct bringup *bringup;   /* NULL: a connection manager of ours connects it */
	struct ud *ud;             /* not NULL: for datagrams */
	struct engine_timer watch; /* requests wait for the peer: is it still there? */
	bool sqd,
		tell_drained; /* no new request begins; to be told when those that had are done: */
	uint32_t drain_to;    /* those before this one */
	bool connected;       /* CONNECTED was told, so DISCONNECTED is owed */
	uint32_t deny;        /* FLUE_REMOTE_*: not over this connection; the sum of: */
	uint32_t deny_always, deny_stream; /* the queue pair's, and what came with the stream */
	struct qp_tx tx;
	struct qp_rx rx;
	uint32_t ird, ord;
	_Atomic uint8_t service;            /* enum qp_service; posting looks, too */
	uint8_t rnr_retries, min_rnr_timer; /* full service, in the verbs' codes */
	uint8_t timeout, retries;           /* the same */
	struct engine_kick ack_later;
	struct irq_entry *irq; /* ring of ird entries, see qp_irq() */
	uint32_t irq_head, irq_tail;
	struct orq_entry *orq; /* ring of ord entries, see qp_orq() */
	uint32_t irq_mask, orq_mask;
	uint32_t orq_head;
	int close_timeout_ms;
	atomic_bool peer_closed; /* Closing because the peer began to */
	atomic_bool late;        /* somebody posted while Closing */
	uint32_t reason, detail; /* for the DISCONNECTED event */
	uint32_t fault; /* the first that we found in this connection, for the log; 0: none */
	bool doomed;    /* being destroyed: no more notes */
	bool lost;      /* a completion did not fit into its CQ */

	/* Notes: what is told, with the facts as they were. */
	struct engine_note note_up, note_down, note_async;
	_Atomic uint32_t async;    /* events for note_async, a bit for each type */
	struct qp_news *news;      /* of note_up: what became of a set-up, until it was told */
	bool last_owed, down_owed; /* of note_down: LAST_RECEIVE, and DISCONNECTED with: */
	uint32_t down_reason, down_detail, ev_fault; /* ... 0: we found no fault */
};

/* What became of a set-up. */
struct qp_news {
	struct flue_event ev;
	struct rnic_conn_info info;
	uint8_t private_data[MPA_PD_MAX];
};

/* Entries by number. The numbers wrap, so the rings are as large as the next power of two. */
static inline struct irq_entry *qp_irq(struct qp *q, uint32_t n)
{
	return &q->irq[n & q->irq_mask];
}

static inline struct orq_entry *qp_orq(struct qp *q, uint32_t n)
{
	return &q->orq[n & q->orq_mask];
}

struct qp_attr {
	struct rnic_pd *pd;
	struct cq *send_cq, *recv_cq;
	struct srq *srq;
	uint32_t sq_depth, rq_depth, sq_sge, rq_sge, max_inline;
	bool signal_all, post_early;
	bool bringup; /* modify() does it */
	bool ud;
	uint32_t *state;
	struct flue_qp *owner;
};

int qp_create(const struct qp_attr *attr, struct qp **out);
void qp_destroy(struct qp *q);
/* Until the outcome of a set-up was told: engine_await(). */
int qp_await_news(struct qp *q, const struct engine_await *w);
int qp_reset(struct qp *q);
/* v->path as prov_ops.query_qp has it. -EOPNOTSUPP. */
int qp_query(struct qp *q, struct flue_qp_values *v, uint32_t mask);
/* What `mask` names, all or nothing: see prov_ops.modify_qp. */
int qp_modify(struct qp *q, const struct flue_qp_values *v, uint32_t mask);
int qp_post_send(struct qp *q, const struct flue_send_wr *wr, const struct flue_send_wr **bad);
/* Binds a window of type 1: id, flags and reg of *wr count. *rkey: what it will be. Errors as qp_post_send(). */
int qp_post_bind(struct qp *q, struct mem *window, const struct flue_send_wr *wr, uint32_t *rkey);
int qp_post_recv(struct qp *q, const struct flue_recv_wr *wr, const struct flue_recv_wr **bad);
int qp_disconnect(struct qp *q, int timeout_ms);
int qp_abort(struct qp *q);
/* Ends with a Terminate if TCP still works. -ENOTCONN. */
int qp_terminate(struct qp *q);

/* ---- inside the RNIC, under the engine's lock ---- */

struct qp_start {
	const struct mpa_terms *terms;
	bool initiator, lenient, rfc7306;
	uint32_t deny; /* rights that the peer has not, whatever its key says */
};

/* Room to tell what becomes of a set-up that begins now. -ENOMEM. */
int qp_expect_news(struct qp *q);
/* The start-up is done: q owns the link and enters RTS. -ENOMEM: nothing taken. */
int qp_establish(struct qp *q, const struct qp_start *start, struct link *link);
/* Step the machine and perform the actions; inside a step: as soon as that is done. reason/detail
 * count for the first end only. */
void qp_apply(struct qp *q, enum qp_fsm_event e, uint32_t reason, uint32_t detail);
/* The program hears of an event that says nothing but its type. */
void qp_tell(struct qp *q, uint32_t type);
/* Nothing queued, nothing outstanding in either direction. */
bool qp_is_idle(const struct qp *q);
static inline bool qp_is_full(const struct qp *q)
{
	return atomic_load_explicit(&q->service, memory_order_relaxed) == SERVICE_FULL;
}

/* For people; 0 in tests without an access layer. */
static inline uint32_t qp_number(const struct qp *q)
{
	return q->owner ? q->owner->number : 0;
}

/* A request at number n is finished; completes in order as far as possible. */
void qp_finish(struct qp *q, uint32_t n, uint32_t status);
void qp_complete_ready(struct qp *q);
/* Completes a receive with what `wc` says of it: status, op, byte_len, flags, inv_key or imm. */
bool qp_push_recv(struct qp *q, const struct wqe *w, const struct flue_wc *wc);
/* ... that failed. */
bool qp_fail_recv(struct qp *q, const struct wqe *w, uint32_t status);
/* Our own request cannot go on: it completes with `status`, the connection ends. */
void qp_fail_request(struct qp *q, uint32_t n, uint32_t status);
void qp_fork_child(struct qp *q);

/* ---- what a link says, under the engine's lock; it may be closed behind each of these ---- */

/* We found a fault in what came in: Terminate. `seg`/`ulpdu` may be NULL. */
void qp_fault(struct qp *q, uint32_t fault, const uint8_t *ulpdu, size_t have, size_t ulpdu_len,
	      const struct ddp_segment *seg);
/* The link failed with an errno of the stream. */
void qp_link_failed(struct qp *q, int err);
/* It lacks something here: memory, a descriptor, the program's own pages. */
void qp_link_starved(struct qp *q, int err);
/* The peer has closed its direction; `whole`: not inside a unit of the link. */
void qp_link_ended(struct qp *q, bool whole);
/* As asked for by await_end(): both directions are closed and the peer has everything. */
void qp_link_over(struct qp *q);

#endif
