/* SPDX-License-Identifier: MIT */
/* Completing: in order, once, and flushing what will never be done. */
#include "base/probe.h"
#include "base/util.h"
#include "rnic/qp.h"
#include "rnic/qp_priv.h"

static bool push(struct qp *q, struct cq *cq, struct cqe *e, bool solicited)
{
	e->wc.qp = q->owner;
	PROBE(completion, q->owner, e->wc.id, e->wc.status, e->wc.op, e->wc.byte_len);
	if (cq_push_by(cq, q->engine, e, solicited || e->wc.status != FLUE_WC_SUCCESS))
		return true;
	q->lost = true;
	qp_apply(q, QPE_LOCAL_FAIL, FLUE_CLOSE_LOCAL, EOVERFLOW);
	return false;
}

/* Everything is flushed: no slot waits for a completion that nobody will see. */
static void settle(struct qp *q)
{
	q->lost = false;
	cq_settle(q->send_cq, &q->sq);
	if (!q->srq)
		cq_settle(q->recv_cq, &q->rq);
}

void qp_complete_ready(struct qp *q)
{
	while (wq_fill(&q->sq)) {
		struct wqe *w = wq_at(&q->sq, atomic_load(&q->sq.head));
		struct cqe e = { .wc = { .id = w->id,
					 .status = w->status,
					 .op = qp_op_rules[w->op].wc_op,
					 .byte_len = w->total },
				 .wq = &q->sq };
		bool say = w->flags & FLUE_SIGNALED || w->status != FLUE_WC_SUCCESS;

		if (w->state != WQE_DONE)
			break;
		/* Retired first: a program that polls this completion may close at once. */
		e.free_to = wq_retire(&q->sq);
		if (say)
			push(q, q->send_cq, &e, false);
	}
	if (q->sqd)
		qp_look_drained(q);
}

void qp_finish(struct qp *q, uint32_t n, uint32_t status)
{
	struct wqe *w = wq_at(&q->sq, n);

	w->state = WQE_DONE;
	if (w->status == FLUE_WC_SUCCESS)
		w->status = (uint8_t)status;
	qp_complete_ready(q);
}

bool qp_push_recv(struct qp *q, const struct wqe *w, const struct flue_wc *wc)
{
	struct cqe e = { .wc = *wc, .wq = q->srq ? &q->srq->wq : &q->rq };

	e.wc.id = w->id;
	if (!q->srq)
		e.free_to = wq_retire(&q->rq);
	q->rx.have_wqe = false;
	return push(q, q->recv_cq, &e, wc->flags & FLUE_WC_SOLICITED);
}

bool qp_fail_recv(struct qp *q, const struct wqe *w, uint32_t status)
{
	return qp_push_recv(q, w,
			    &(struct flue_wc) { .status = (uint16_t)status, .op = FLUE_WC_RECV });
}

static void flush_sq(struct qp *q)
{
	uint32_t tail = atomic_load_explicit(&q->sq.tail, memory_order_acquire);

	/* Later requests may be done already, behind a Read that never was: they are flushed too,
	 * because nothing may succeed after a failure. */
	for (uint32_t n = atomic_load(&q->sq.head); n != tail; n++) {
		struct wqe *w = wq_at(&q->sq, n);

		w->state = WQE_DONE;
		if (w->status == FLUE_WC_SUCCESS)
			w->status = FLUE_WC_FLUSHED;
	}
	q->tx.cur.next_wqe = tail;
	qp_complete_ready(q);
}

static void flush_rq(struct qp *q)
{
	if (q->srq) {
		if (q->rx.have_wqe)
			qp_fail_recv(q, q->srq_wqe, FLUE_WC_FLUSHED);
		return;
	}
	while (wq_fill(&q->rq)) {
		struct wqe *w = wq_at(&q->rq, atomic_load(&q->rq.head));

		qp_fail_recv(q, w, FLUE_WC_FLUSHED);
	}
}

/* In the new state. */
void qp_flush(struct qp *q, bool sends)
{
	if (sends)
		flush_sq(q);
	flush_rq(q);
	if (q->state != QPS_CLOSING)
		settle(q);
}

void qp_discard(struct qp *q)
{
	if (q->srq && q->rx.have_wqe)
		wq_free(&q->srq->wq, 0);
	q->rx.have_wqe = false;
	while (wq_fill(&q->sq))
		wq_retire(&q->sq);
	while (!q->srq && wq_fill(&q->rq))
		wq_retire(&q->rq);
	settle(q);
}

void qp_forget(struct qp *q)
{
	cq_purge(q->send_cq, q->owner);
	cq_purge(q->recv_cq, q->owner);
	qp_discard(q);
}

void qp_flush_late(struct qp *q)
{
	flush_sq(q);
	if (q->state == QPS_ERROR)
		flush_rq(q);
	if (q->lost)
		settle(q);
}
