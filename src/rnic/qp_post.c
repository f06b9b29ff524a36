/* SPDX-License-Identifier: MIT */
/* Posting: requests are checked and copied into their queue by the caller's thread, then whoever has
 * the engine's lock hands them to the link. */
#include <errno.h>
#include <string.h>

#include "base/probe.h"
#include "base/util.h"
#include "rnic/bringup.h"
#include "rnic/link.h"
#include "rnic/qp.h"
#include "rnic/qp_priv.h"
#include "rnic/ud.h"

const struct op_rule qp_op_rules[FLUE_WR_NOPS + 1] = {
	[FLUE_WR_SEND] = { FLUE_SOLICITED | FLUE_INLINE, 0, RNIC_MAX_SGE, FLUE_WC_SEND,
			   SERVICE_STRICT },
	[FLUE_WR_SEND_INV] = { FLUE_SOLICITED | FLUE_INLINE, 0, RNIC_MAX_SGE, FLUE_WC_SEND,
			       SERVICE_STRICT },
	[FLUE_WR_WRITE] = { FLUE_INLINE, 0, RNIC_MAX_SGE, FLUE_WC_WRITE, SERVICE_STRICT },
	[FLUE_WR_READ] = { 0, 0, RNIC_MAX_READ_SGE, FLUE_WC_READ, SERVICE_STRICT },
	[FLUE_WR_READ_INV] = { 0, 1, RNIC_MAX_READ_SGE, FLUE_WC_READ, SERVICE_STRICT },
	[FLUE_WR_LOCAL_INV] = { 0, 0, 0, FLUE_WC_LOCAL_INV, SERVICE_STRICT },
	[FLUE_WR_FAST_REG] = { 0, 0, 0, FLUE_WC_FAST_REG, SERVICE_STRICT },
	[FLUE_WR_BIND] = { 0, 0, 0, FLUE_WC_BIND_MW, SERVICE_STRICT },
	[FLUE_WR_SEND_IMM] = { FLUE_SOLICITED | FLUE_INLINE, 0, RNIC_MAX_SGE, FLUE_WC_SEND,
			       SERVICE_FULL },
	[FLUE_WR_WRITE_IMM] = { FLUE_SOLICITED | FLUE_INLINE, 0, RNIC_MAX_SGE, FLUE_WC_WRITE,
				SERVICE_RFC7306 },
	[FLUE_WR_CMP_SWAP] = { 0, 1, 1, FLUE_WC_CMP_SWAP, SERVICE_RFC7306 },
	[FLUE_WR_FETCH_ADD] = { 0, 1, 1, FLUE_WC_FETCH_ADD, SERVICE_RFC7306 },
	[QP_WR_BIND_SHARED] = { 0, 0, 0, FLUE_WC_BIND_MW, SERVICE_STRICT },
};

static bool is_atomic(uint32_t op)
{
	return op == FLUE_WR_CMP_SWAP || op == FLUE_WR_FETCH_ADD;
}

/* Before the connection is there nobody knows; the scheduler looks again. */
static bool is_known(struct qp *q, const struct op_rule *r)
{
	return r->service <= atomic_load_explicit(&q->service, memory_order_relaxed) ||
	       __atomic_load_n(q->state_word, __ATOMIC_ACQUIRE) == FLUE_QP_IDLE;
}

/* Or not known yet. */
static bool is_strict(const struct qp *q)
{
	return !qp_is_full(q) && __atomic_load_n(q->state_word, __ATOMIC_ACQUIRE) != FLUE_QP_IDLE;
}

static int check_pieces(const struct qp *q, const struct op_rule *r, const struct flue_send_wr *wr,
			uint32_t *total)
{
	uint32_t most = wr->op == FLUE_WR_READ && !is_strict(q) ? RNIC_MAX_SGE : r->max_sge;

	if (wr->n_sg < r->min_sge || wr->n_sg > most || (wr->n_sg && !wr->sg))
		return -EINVAL;
	if (!(wr->flags & FLUE_INLINE) && wr->n_sg > q->sq.max_sge)
		return -EINVAL;
	if (wq_total(wr->sg, wr->n_sg, total))
		return -EINVAL;
	if (wr->flags & FLUE_INLINE && *total > q->sq.max_inline)
		return -EINVAL;
	return is_atomic(wr->op) && *total != sizeof(uint64_t) ? -EINVAL : 0;
}

static int check_request(struct qp *q, const struct flue_send_wr *wr, uint32_t *total)
{
	const struct op_rule *r = &qp_op_rules[wr->op < FLUE_WR_NOPS ? wr->op : 0];
	int rc;

	if (wr->op >= FLUE_WR_NOPS)
		return -EINVAL;
	if (!is_known(q, r))
		return -EOPNOTSUPP;
	if (wr->flags & ~(r->flags | FLUE_SIGNALED | FLUE_FENCE | FLUE_LOCAL_FENCE))
		return -EINVAL;
	rc = check_pieces(q, r, wr, total);
	return rc || !q->ud ? rc : ud_check_request(q, wr, *total);
}

static void copy_inline(struct wqe *w, const struct flue_send_wr *wr)
{
	char *to = (char *)w->sg;

	for (uint32_t i = 0; i < wr->n_sg; i++) {
		if (wr->sg[i].length)
			memcpy(to, (const void *)(uintptr_t)wr->sg[i].addr, wr->sg[i].length);
		to += wr->sg[i].length;
	}
	w->n_sg = 0;
}

/* What only some requests have; older programs have not even room for it in the others. */
static void copy_arguments(struct wqe *w, const struct flue_send_wr *wr)
{
	switch (wr->op) {
	case FLUE_WR_FAST_REG:
	case FLUE_WR_BIND: *wqe_reg(w) = wr->reg; break;
	case FLUE_WR_CMP_SWAP:
	case FLUE_WR_FETCH_ADD: w->atomic = wr->atomic; break;
	case FLUE_WR_SEND_IMM:
	case FLUE_WR_WRITE_IMM: w->imm = wr->imm; break;
	default: break;
	}
}

static int enqueue(struct qp *q, const struct flue_send_wr *wr)
{
	uint32_t total = 0;
	struct wqe *w;
	int rc = check_request(q, wr, &total);

	if (rc)
		return rc;
	w = wq_next(&q->sq);
	if (!w)
		return -ENOMEM;
	w->id = wr->id;
	w->op = (uint8_t)wr->op;
	w->flags = (uint8_t)(wr->flags | (q->signal_all ? FLUE_SIGNALED : 0));
	w->n_sg = wr->n_sg;
	w->total = total;
	w->rkey = wr->rkey;
	w->remote_addr = wr->remote_addr;
	copy_arguments(w, wr);
	if (q->ud)
		w->to = wr->to;
	if (wr->flags & FLUE_INLINE)
		copy_inline(w, wr);
	else if (wr->n_sg)
		memcpy(w->sg, wr->sg, wr->n_sg * sizeof(*wr->sg));
	PROBE(post_send, q->owner, wr->id, wr->op, total);
	wq_advance(&q->sq);
	return 0;
}

static bool takes_posts(struct qp *q, bool receive)
{
	switch (__atomic_load_n(q->state_word, __ATOMIC_ACQUIRE)) {
	case FLUE_QP_IDLE: return receive || q->post_early;
	case FLUE_QP_RESET: return false;
	case FLUE_QP_INIT:
	case FLUE_QP_RTR: return receive;
	case FLUE_QP_CLOSING:
		/* The close was to be graceful, and now there is work: it ends badly. A program that
		 * gives a receive back while the peer closes could not know, and loses nothing. */
		if (!receive || !atomic_load(&q->peer_closed)) {
			atomic_store(&q->late, true);
			engine_kick(q->engine, &q->kick);
		}
		return false;
	default: return true;
	}
}

int qp_post_send(struct qp *q, const struct flue_send_wr *wr, const struct flue_send_wr **bad)
{
	int rc = 0;

	*bad = wr;
	if (!takes_posts(q, false))
		return -ENOTCONN;
	lock_take(&q->sq.lock);
	for (; wr; wr = wr->next) {
		*bad = wr;
		rc = enqueue(q, wr);
		if (rc)
			break;
	}
	lock_give(&q->sq.lock);
	engine_kick(q->engine, &q->kick);
	return rc;
}

int qp_post_bind(struct qp *q, struct mem *window, const struct flue_send_wr *wr, uint32_t *rkey)
{
	struct wqe *w;

	if (q->ud || wr->flags & ~(uint32_t)(FLUE_SIGNALED | FLUE_FENCE | FLUE_LOCAL_FENCE))
		return -EINVAL;
	if (!takes_posts(q, false))
		return -ENOTCONN;
	lock_take(&q->sq.lock);
	w = wq_next(&q->sq);
	if (w) {
		*rkey = mem_promise_key(&q->rnic->mem, window);
		w->id = wr->id;
		w->op = QP_WR_BIND_SHARED;
		w->flags = (uint8_t)(wr->flags | (q->signal_all ? FLUE_SIGNALED : 0));
		w->n_sg = w->total = 0;
		w->rkey = *rkey;
		*wqe_reg(w) = wr->reg;
		wqe_reg(w)->key = (uint8_t)*rkey;
		PROBE(post_send, q->owner, wr->id, (uint32_t)FLUE_WR_BIND, w->total);
		wq_advance(&q->sq);
	}
	lock_give(&q->sq.lock);
	engine_kick(q->engine, &q->kick);
	return w ? 0 : -ENOMEM;
}

int qp_post_recv(struct qp *q, const struct flue_recv_wr *wr, const struct flue_recv_wr **bad)
{
	int rc = 0;

	*bad = wr;
	if (q->srq)
		return -EINVAL;
	if (!takes_posts(q, true))
		return -ENOTCONN;
	for (; wr && rc == 0; wr = wr->next) {
		*bad = wr;
		rc = wq_post_recv(&q->rq, wr);
		PROBE(post_recv, q->owner, wr->id, wr->n_sg, rc);
	}
	/* Only a queue pair that ended has something to do for a receive: to flush it. */
	if (__atomic_load_n(q->state_word, __ATOMIC_ACQUIRE) == FLUE_QP_ERROR)
		engine_kick(q->engine, &q->kick);
	return rc;
}

void qp_run_kick(struct engine_kick *k)
{
	struct qp *q = container_of(k, struct qp, kick);

	if (q->ud) {
		ud_run(q);
		return;
	}
	if (q->state == QPS_CLOSING && atomic_exchange(&q->late, false))
		qp_apply(q, QPE_POSTED, FLUE_CLOSE_BAD, ENOTCONN);
	if (q->state == QPS_RTS)
		link_kick(q->link);
	else if (q->state == QPS_IDLE && q->bringup)
		bringup_posted(q);
	else if (q->state != QPS_TERMINATE && !(q->state == QPS_IDLE && q->post_early))
		qp_flush_late(q);
}
