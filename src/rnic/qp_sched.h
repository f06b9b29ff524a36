/* SPDX-License-Identifier: MIT */
/*
 * The scheduler: which message of a queue pair is next, whether it may start, and what it looks like.
 * It knows turns between requests and responses, fences, ORD, the ready-to-receive message and the
 * Terminate; it knows nothing of how a link moves a message.
 *
 * Looking ahead. A link may prepare several messages, or parts of one, before any of them is out: it
 * works on a copy of the cursor, and says behind each part that it is out. Nothing else is ever
 * undone, so a copy that is thrown away costs nothing. A message starts only when the one before is
 * with the link as a whole, because Linux siw and others do not accept interleaved messages.
 *
 * Under the engine's lock.
 */
#ifndef FLUE_RNIC_QP_SCHED_H
#define FLUE_RNIC_QP_SCHED_H

#include <sys/uio.h>

#include "rnic/full.h"
#include "rnic/qp.h"

/* Why there is no (further) message. */
enum tx_stop {
	TX_BUILT = 0,
	TX_NOTHING,     /* no message can start now */
	TX_FULL,        /* send what there is, then ask again */
	TX_NO_MEMORY,   /* the link's: no buffer */
	TX_BAD_REQUEST, /* the request at the cursor cannot be sent: see *status */
	TX_BAD_SOURCE,  /* the Read Response at the cursor lost its source */
};

/* A message as its link sees it. */
struct tx_message {
	struct ddp_segment seg; /* of what begins at the cursor; `last` is the link's to set */
	uint32_t total;         /* bytes of payload, all of the message */
	bool imm;               /* its request has another message, the immediate data */
	bool acks;              /* full service: its header tells what is done */
	struct control word;    /* a control message: what it says */
	uint32_t fixed_len;     /* a header behind the DDP header, part of no payload */
	uint8_t fixed[RDMAP_TERMINATE_MAX];
};

_Static_assert(RDMAP_ATOMIC_REQUEST_LEN <= RDMAP_TERMINATE_MAX, "any fixed header fits");

/* Memory to send from, held against revocation. */
#define TX_PIECES 256
struct tx_pieces {
	struct iovec iov[TX_PIECES];
	uint32_t n;
	struct mem *ref[TX_PIECES];
	uint32_t n_ref;
};

/* The message at *c, which may have begun; else the next one, if it may start. */
enum tx_stop qp_sched_next(struct qp *q, struct tx_cursor *c, struct tx_message *m,
			   uint32_t *status);
/* *c behind n more bytes of the message; m->seg.last: that was all of it. */
void qp_sched_step(struct tx_cursor *c, const struct tx_message *m, uint32_t n);
/* Adds bytes off..off+len of the message at *c. On failure some pieces may have been added. */
enum tx_stop qp_sched_gather(struct qp *q, const struct tx_cursor *c, uint32_t off, uint32_t len,
			     struct tx_pieces *p);
bool tx_pieces_add(struct tx_pieces *p, void *base, size_t len, struct mem *ref);
/* Gives back all references but the first `keep`. */
void tx_pieces_put(struct tx_pieces *p, uint32_t keep);

/* The next request, if it may start and everything before it is done; NULL. It is done with qp_sched_finish() then. */
struct wqe *qp_sched_alone(struct qp *q);
void qp_sched_finish(struct qp *q, uint32_t status);

/* A part is half out: the message has begun, and cannot be taken back. */
void qp_sched_begun(struct qp *q, const struct tx_cursor *at);
/* What was between two cursors is out; completes the message if it was the end of it. */
void qp_sched_out(struct qp *q, const struct tx_cursor *at, const struct tx_cursor *after);
/* What is first in line cannot be sent. `torn`: a part of it is out, and its rest will never be. false: nothing more
 * can be done now. */
bool qp_sched_refuse(struct qp *q, enum tx_stop why, uint32_t status, bool torn);

/* Does the request that is first in line, if it sends nothing. */
bool qp_sched_run_local(struct qp *q);
/* Nothing goes out any more; forgets what was under way. */
void qp_sched_reset(struct qp *q);

/* Full service. Who asks for a completion wants to know; and somebody must, in the end, and before the queue is full. */
static inline bool qp_sched_wants_ack(struct qp *q, const struct tx_cursor *c, const struct wqe *w)
{
	return w->flags & FLUE_SIGNALED || wq_fill(&q->sq) > q->sq.depth / 2 ||
	       c->next_wqe + 1 == atomic_load_explicit(&q->sq.tail, memory_order_relaxed);
}

/* Is there anything that might be sent? Looked at first: there is most often nothing. */
static inline bool qp_sched_has_work(const struct qp *q)
{
	const struct tx_cursor *c = &q->tx.cur;

	return c->next_wqe != atomic_load_explicit(&q->sq.tail, memory_order_acquire) ||
	       c->irq_next != q->irq_tail || c->rtr_owed || (q->tx.term_owed && !c->over) ||
	       q->tx.full.go_back || full_owes(q, c);
}

/* Shall our direction end now, as far as the scheduler is concerned? */
static inline bool qp_sched_wants_fin(const struct qp *q)
{
	if (q->state == QPS_CLOSING && full_owes(q, &q->tx.cur))
		return false;
	return q->tx.fin_wanted && (!q->tx.term_owed || q->tx.cur.over);
}

#endif
