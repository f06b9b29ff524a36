/* SPDX-License-Identifier: MIT */
/* Reads and atomics: requests of the peer that are answered, answers to ours, and which of ours a
 * Terminate blames. */
#include <errno.h>

#include "base/bytes.h"
#include "rnic/full.h"
#include "rnic/qp_priv.h"
#include "rnic/rx_priv.h"
#include "rnic/umem.h"

/* By what is wrong with an STag (docs/design/wire.md). */
static const uint32_t read_faults[] = {
	[MEM_BAD_STAG] = FAULT_RDMAP_STAG,     [MEM_BAD_STREAM] = FAULT_RDMAP_STREAM,
	[MEM_BAD_ACCESS] = FAULT_RDMAP_ACCESS, [MEM_BAD_BOUNDS] = FAULT_RDMAP_BOUNDS,
	[MEM_BAD_WRAP] = FAULT_RDMAP_WRAP,
};

static struct orq_entry *orq_first(struct qp *q)
{
	return qp_orq(q, q->orq_head);
}

/* There is no memory to remember the peer's request. */
static uint32_t starved(struct qp *q)
{
	qp_link_starved(q, ENOMEM);
	return RX_DROPPED;
}

uint32_t rx_check_read_request(struct qp *q, const struct ddp_segment *s, const uint8_t *payload)
{
	struct rdmap_read_request r;
	enum mem_verdict v;
	struct mem *ref;
	char *p;

	if (s->msn != q->rx.msn_read)
		return FAULT_DDP_MSN;
	if (q->irq_tail - q->irq_head >= q->ird)
		return FAULT_RDMAP_STREAM_CATASTROPHIC;
	if (!qp_irq_room(q))
		return starved(q);
	rdmap_read_request_decode(&r, payload);
	if (r.size == 0)
		return WIRE_OK;
	v = rx_get_memory(q, r.src_stag, FLUE_REMOTE_READ, r.src_to, r.size, &p, &ref);
	if (v != MEM_OK)
		return read_faults[v];
	mem_put(ref);
	return WIRE_OK;
}

uint32_t rx_deliver_read_request(struct qp *q, const struct ddp_segment *s, const uint8_t *payload)
{
	(void)s;
	struct irq_entry *i = qp_irq(q, q->irq_tail);

	(void)s;
	i->atomic = false;
	i->number = q->rx.number;
	rdmap_read_request_decode(&i->req, payload);
	q->irq_tail++;
	q->rx.msn_read++;
	return WIRE_OK;
}

/* A response is judged by the Read it answers, never by its STag alone. */
uint32_t rx_check_read_response(struct qp *q, const struct ddp_segment *s, const uint8_t *payload)
{
	const struct orq_entry *o = orq_first(q);
	uint32_t left;

	(void)payload;
	if (q->orq_head == q->tx.cur.orq_tail || o->atomic || !full_expects(q, o))
		return FAULT_RDMAP_OPCODE;
	left = o->size - q->rx.read_got;
	if (s->stag != o->stag)
		return FAULT_DDP_STAG;
	if (s->to != o->to + q->rx.read_got || s->payload_len > left)
		return FAULT_DDP_BOUNDS;
	if (s->last != (s->payload_len == left))
		return FAULT_DDP_CATASTROPHIC;
	return WIRE_OK;
}

uint32_t rx_target_read_response(struct qp *q, const struct ddp_segment *s, size_t off, size_t len,
				 struct rx_target *t)
{
	struct wqe *w = wq_at(&q->sq, orq_first(q)->wqe);

	(void)s;
	if (rx_hold_list(q, w->sg, q->rx.read_got + off, len, t))
		return WIRE_OK;
	w->status = FLUE_WC_LOCAL_PROTECTION;
	return FAULT_RDMAP_CATASTROPHIC;
}

uint32_t rx_deliver_read_response(struct qp *q, const struct ddp_segment *s, const uint8_t *payload)
{
	struct orq_entry o = *orq_first(q);
	uint32_t status = FLUE_WC_SUCCESS;
	struct wqe *w;

	(void)payload;
	q->rx.read_got += (uint32_t)s->payload_len;
	if (!s->last)
		return WIRE_OK;
	q->rx.read_got = 0;
	q->orq_head++;
	if (qp_is_full(q)) /* it was done, and so was all before it */
		full_acked(q, o.number + 1);
	if (o.rtr)
		return WIRE_OK;
	w = wq_at(&q->sq, o.wqe);
	if (w->op == FLUE_WR_READ_INV &&
	    mem_invalidate(&q->rnic->mem, w->sg[0].lkey, q->pd, q->qpn, false) != MEM_OK)
		status = FLUE_WC_BIND;
	if (status != FLUE_WC_SUCCESS)
		qp_fail_request(q, o.wqe, status);
	else
		qp_finish(q, o.wqe, status);
	return WIRE_OK;
}

/* ---- atomics ---- */

/* Requests stand in the queue of Read Requests, with its numbers and its limit (RFC 7306 section 5). */
uint32_t rx_check_atomic_request(struct qp *q, const struct ddp_segment *s, const uint8_t *payload)
{
	struct rdmap_atomic_request r;

	if (s->msn != q->rx.msn_read)
		return FAULT_DDP_MSN;
	if (q->irq_tail - q->irq_head >= q->ird)
		return FAULT_RDMAP_STREAM_CATASTROPHIC;
	if (!qp_irq_room(q))
		return starved(q);
	return rdmap_atomic_request_decode(&r, payload);
}

/*
 * With an instruction of the processor: atomic towards every program that sees the memory, too. A page
 * that is gone is noticed before, on our own threads, but not one that goes in this very moment.
 */
static uint32_t run_atomic(const struct rdmap_atomic_request *r, uint64_t *p, uint64_t *was)
{
	if (umem_probe(p, sizeof(*p)))
		return FAULT_RDMAP_CATASTROPHIC;
	*was = __atomic_load_n(p, __ATOMIC_RELAXED);
	while (!__atomic_compare_exchange_n(p, was, rdmap_atomic_apply(r, *was), false,
					    __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
		;
	return WIRE_OK;
}

uint32_t rx_deliver_atomic_request(struct qp *q, const struct ddp_segment *s,
				   const uint8_t *payload)
{
	struct irq_entry *i = qp_irq(q, q->irq_tail);
	struct rdmap_atomic_request r;
	enum mem_verdict v;
	struct mem *ref;
	uint32_t fault;
	char *p;

	(void)s;
	rdmap_atomic_request_decode(&r, payload);
	v = rx_get_memory(q, r.stag, FLUE_REMOTE_ATOMIC, r.to, sizeof(uint64_t), &p, &ref);
	if (v != MEM_OK)
		return read_faults[v];
	if ((uintptr_t)p % sizeof(uint64_t))
		fault = FAULT_RDMAP_STREAM_CATASTROPHIC;
	else
		fault = run_atomic(&r, (uint64_t *)(void *)p, &i->done.value);
	mem_put(ref);
	if (fault)
		return fault;
	i->atomic = true;
	i->number = q->rx.number;
	i->done.id = r.id;
	q->irq_tail++;
	q->rx.msn_read++;
	return WIRE_OK;
}

uint32_t rx_check_atomic_response(struct qp *q, const struct ddp_segment *s, const uint8_t *payload)
{
	const struct orq_entry *o = orq_first(q);
	struct rdmap_atomic_response r;

	if (s->msn != q->rx.msn_atomic)
		return FAULT_DDP_MSN;
	rdmap_atomic_response_decode(&r, payload);
	if (q->orq_head == q->tx.cur.orq_tail || !o->atomic || r.id != o->msn ||
	    !full_expects(q, o))
		return FAULT_RDMAP_OPCODE;
	return WIRE_OK;
}

uint32_t rx_deliver_atomic_response(struct qp *q, const struct ddp_segment *s,
				    const uint8_t *payload)
{
	struct orq_entry o = *orq_first(q);
	struct rdmap_atomic_response r;
	struct rx_target t = { .n = 0, .n_ref = 0 };
	enum mem_verdict v;
	int rc;

	(void)s;
	rdmap_atomic_response_decode(&r, payload);
	rc = rx_hold(q, o.stag, FLUE_LOCAL_WRITE, o.to, sizeof(r.value), &t, &v)
		     ? umem_write(t.iov[0].iov_base, &r.value, sizeof(r.value))
		     : -EFAULT;
	rx_target_put(&t);
	if (rc) {
		wq_at(&q->sq, o.wqe)->status = FLUE_WC_LOCAL_PROTECTION;
		return FAULT_RDMAP_CATASTROPHIC;
	}
	q->orq_head++;
	q->rx.msn_atomic++;
	if (qp_is_full(q))
		full_acked(q, o.number + 1);
	qp_finish(q, o.wqe, FLUE_WC_SUCCESS);
	return WIRE_OK;
}

/* ---- blame ---- */

/* Our Read that came back with a Terminate, or NULL. By its places: not every peer repeats the rest. */
static struct wqe *find_read(struct qp *q, const struct rdmap_terminate *t)
{
	struct rdmap_read_request r;

	rdmap_read_request_decode(&r, t->rdmap);
	for (uint32_t n = q->orq_head; n != q->tx.cur.orq_tail; n++) {
		const struct orq_entry *o = qp_orq(q, n);
		struct wqe *w = wq_at(&q->sq, o->wqe);

		if (!o->rtr && !o->atomic && r.src_stag == w->rkey && r.src_to == w->remote_addr &&
		    r.sink_stag == o->stag && r.sink_to == o->to)
			return w;
	}
	return NULL;
}

/* An Atomic Request never comes back, but its number does, with the DDP header. */
static struct wqe *find_atomic(struct qp *q, const struct rdmap_terminate *t)
{
	for (uint32_t n = q->orq_head; n != q->tx.cur.orq_tail; n++) {
		const struct orq_entry *o = qp_orq(q, n);

		if (o->atomic && o->msn == get_be32(t->ddp + DDP_UNTAGGED_MSN))
			return wq_at(&q->sq, o->wqe);
	}
	return NULL;
}

/* Which Read is to blame? A peer may judge requests when they come, so not only the oldest can be. */
static struct wqe *blamed_read(struct qp *q, const struct rdmap_terminate *t)
{
	const struct orq_entry *o = orq_first(q);

	if (q->orq_head == q->tx.cur.orq_tail || wire_fault_layer(t->fault) != WIRE_LAYER_RDMAP)
		return NULL;
	if (t->rdmap_len)
		return find_read(q, t);
	if (t->ddp_len == DDP_UNTAGGED_LEN && (t->ddp[1] & 0xf) == RDMAP_ATOMIC_REQUEST)
		return find_atomic(q, t);
	/* It says that it was another message. Without a word it failed to answer the oldest. */
	if (o->rtr || (t->ddp_len && (t->ddp[1] & 0xf) != RDMAP_READ_REQUEST))
		return NULL;
	return wq_at(&q->sq, o->wqe);
}

void rx_blame_read(struct qp *q, const struct rdmap_terminate *t)
{
	struct wqe *w = blamed_read(q, t);

	if (w)
		w->status = wire_fault_type(t->fault) == 1 ? FLUE_WC_REMOTE_ACCESS
							   : FLUE_WC_REMOTE_OPERATION;
}
