/* SPDX-License-Identifier: MIT */
#include "rnic/quick.h"

#include <string.h>

#include "rnic/full.h"
#include "rnic/qp_sched.h"
#include "rnic/umem.h"

/* ---- sending ---- */

/* Does nothing else go first, and does nothing hold requests back? */
static bool is_clear(const struct qp *q)
{
	const struct tx_cursor *c = &q->tx.cur;
	const struct full_tx *f = &q->tx.full;

	return q->state == QPS_RTS && c->kind == TX_NONE && c->irq_next == q->irq_tail &&
	       !(q->tx.held | c->rtr_owed | c->imm_owed | f->go_back | f->paused | q->sqd) &&
	       qp_is_full(q) && !full_has_word(q, c);
}

/* A Send as it comes, of what one copy brings. */
static bool is_plain(const struct wqe *w)
{
	const uint32_t others = FLUE_FENCE | FLUE_LOCAL_FENCE;

	return w->op == FLUE_WR_SEND && !(w->flags & others) && w->total <= QUICK_MAX &&
	       (w->n_sg <= 1 || w->flags & FLUE_INLINE);
}

struct wqe *quick_next(struct qp *q, struct ddp_segment *s)
{
	const struct tx_cursor *c = &q->tx.cur;
	struct wqe *w = wq_at(&q->sq, c->next_wqe);

	if (c->next_wqe == atomic_load_explicit(&q->sq.tail, memory_order_acquire) ||
	    !is_clear(q) || !is_plain(w))
		return NULL;
	*s = (struct ddp_segment) {
		.opcode = w->flags & FLUE_SOLICITED ? RDMAP_SEND_SE : RDMAP_SEND,
		.last = true,
		.inv_stag = q->rx.number,
		.ack = qp_sched_wants_ack(q, c, w),
		.qn = DDP_QN_SEND,
		.msn = c->msn_send,
	};
	return w;
}

bool quick_copy(struct qp *q, const struct wqe *w, uint8_t *to)
{
	struct mem *ref;
	bool good;
	char *p;

	if (!w->total)
		return true;
	if (w->flags & FLUE_INLINE) {
		memcpy(to, w->sg, w->total);
		return true;
	}
	if (mem_get(&q->rnic->mem, &q->tx.cache, w->sg[0].lkey, q->pd, q->qpn, MEM_LOCAL,
		    w->sg[0].addr, w->total, &p, &ref) != MEM_OK)
		return false;
	good = umem_read(to, p, w->total) == 0;
	mem_put(ref);
	return good;
}

void quick_out(struct qp *q, struct wqe *w)
{
	struct tx_cursor *c = &q->tx.cur;

	w->number = c->number++;
	w->state = WQE_WAITING;
	c->next_wqe++;
	c->msn_send++;
	c->told = q->rx.number;
	c->turn = true;
	if (c->told == q->rx.wanted)
		q->tx.full.ack_now = false;
	full_waits(q);
}

/* ---- receiving ---- */

/* The receive that it fills, if that has one place for all of it. */
static const struct wqe *receive_for(struct qp *q, size_t len)
{
	const struct qp_rx *rx = &q->rx;
	const struct wqe *w;

	if (q->state != QPS_RTS || !rx->any || rx->skipping || rx->have_wqe || q->srq ||
	    !wq_fill(&q->rq))
		return NULL;
	w = wq_at(&q->rq, atomic_load_explicit(&q->rq.head, memory_order_relaxed));
	return !len || (w->n_sg && len <= wqe_places(w)->length) ? w : NULL;
}

static bool place(struct qp *q, const struct wqe *w, const uint8_t *payload, size_t len)
{
	const struct flue_sge *sg = wqe_places(w);
	struct mem *ref;
	bool good;
	char *p;

	if (!len)
		return true;
	if (mem_get(&q->rnic->mem, &q->rx.cache, sg->lkey, q->pd, q->qpn, FLUE_LOCAL_WRITE,
		    sg->addr, len, &p, &ref) != MEM_OK)
		return false;
	good = umem_write(p, payload, len) == 0;
	mem_put(ref);
	return good;
}

bool quick_receive(struct qp *q, const struct ddp_segment *s, const uint8_t *payload)
{
	struct flue_wc wc = { .op = FLUE_WC_RECV, .byte_len = (uint32_t)s->payload_len };
	const struct wqe *w;

	if ((s->opcode != RDMAP_SEND && s->opcode != RDMAP_SEND_SE) || !s->last || s->mo ||
	    s->msn != q->rx.msn_send || q->tx.full.close_wanted)
		return false;
	w = receive_for(q, s->payload_len);
	if (!w || (s->inv_stag != q->tx.full.acked && full_acked(q, s->inv_stag)) ||
	    q->state != QPS_RTS || !place(q, w, payload, s->payload_len))
		return false;
	q->rx.msn_send++;
	q->rx.after_write = false;
	if (s->opcode == RDMAP_SEND_SE)
		wc.flags = FLUE_WC_SOLICITED;
	qp_push_recv(q, w, &wc);
	full_done(q, s);
	return true;
}
