/* SPDX-License-Identifier: MIT */
/*
 * Choosing and describing messages. Requests are gathered straight from registered memory, which the
 * program must leave alone until the completion.
 */
#include "rnic/qp_sched.h"

#include <errno.h>
#include <string.h>

#include "base/bytes.h"
#include "base/util.h"
#include "rnic/qp_priv.h"

/* ---- choosing ---- */

static struct wqe *current_wqe(struct qp *q, const struct tx_cursor *c)
{
	return wq_at(&q->sq, c->next_wqe);
}

/* Posted before there was a connection. */
static bool is_beyond_service(const struct qp *q, const struct wqe *w)
{
	return qp_op_rules[w->op].service > q->service ||
	       (w->op == FLUE_WR_READ && w->n_sg > RNIC_MAX_READ_SGE && !qp_is_full(q));
}

/* In full service what is out may have to be sent again, from memory that is as it was: so who changes what keys
 * mean waits. */
static bool is_behind_all(const struct qp *q, const struct wqe *w)
{
	return w->flags & FLUE_LOCAL_FENCE || (qp_wqe_is_local(w) && qp_is_full(q));
}

/* May the next request start now? */
static enum tx_stop request_may_start(struct qp *q, const struct tx_cursor *c, uint32_t *status)
{
	const struct wqe *w;

	if (c->next_wqe == atomic_load_explicit(&q->sq.tail, memory_order_acquire) ||
	    q->tx.full.paused || (q->sqd && full_distance(c->next_wqe, q->drain_to) >= 0))
		return TX_NOTHING;
	w = current_wqe(q, c);
	*status = FLUE_WC_LOCAL_OPERATION;
	if (is_beyond_service(q, w))
		return TX_BAD_REQUEST;
	if (w->flags & FLUE_FENCE && q->orq_head != c->orq_tail)
		return TX_NOTHING;
	if (is_behind_all(q, w) && atomic_load(&q->sq.head) != c->next_wqe) {
		full_ask(q, c->number);
		return TX_NOTHING;
	}
	if (qp_wqe_is_answered(w)) {
		if (q->ord == 0)
			return TX_BAD_REQUEST;
		if (c->orq_tail - q->orq_head >= q->ord)
			return TX_NOTHING;
		if (!qp_orq_room(q, c->orq_tail)) /* there will be, when one is answered */
			return TX_NOTHING;
	}
	return TX_BUILT;
}

/* The last word. In full service it comes behind the answers to what was asked before. */
static enum tx_stop pick_last(struct qp *q, struct tx_cursor *c)
{
	if (!q->tx.term_owed || c->over)
		return TX_NOTHING;
	c->off = 0;
	c->kind = q->tx.full.refused && c->irq_next != q->irq_tail ? TX_RESPONSE : TX_TERMINATE;
	return TX_BUILT;
}

/* Is the message under way cut off? */
static bool is_cut(const struct qp *q, const struct tx_cursor *c)
{
	return q->state == QPS_TERMINATE && c->kind != TX_TERMINATE &&
	       !(q->tx.full.refused && c->kind == TX_RESPONSE);
}

/* Control messages ask for nothing, so they go while we close, too. */
static bool may_tell(const struct qp *q)
{
	return (q->state == QPS_RTS && !q->tx.held) || q->state == QPS_CLOSING;
}

/* Chooses the next message when none is under way. */
static enum tx_stop pick(struct qp *q, struct tx_cursor *c, uint32_t *status)
{
	bool response = c->irq_next != q->irq_tail;
	enum tx_stop request;

	if (q->state == QPS_TERMINATE)
		return pick_last(q, c);
	if (full_owes(q, c) && may_tell(q)) {
		c->kind = TX_CONTROL;
		return TX_BUILT;
	}
	if (q->state != QPS_RTS || q->tx.held)
		return TX_NOTHING;
	if (c->rtr_owed || (c->imm_owed && !q->tx.full.paused)) {
		c->kind = c->rtr_owed ? TX_RTR : TX_REQUEST;
		return TX_BUILT;
	}
	if (response && c->turn) {
		c->kind = TX_RESPONSE;
		return TX_BUILT;
	}
	request = request_may_start(q, c, status);
	if (request == TX_BUILT)
		c->kind = TX_REQUEST;
	else if (request == TX_NOTHING && response)
		c->kind = TX_RESPONSE;
	else
		return request;
	return TX_BUILT;
}

/* ---- describing ---- */

static void describe_send(const struct tx_cursor *c, const struct wqe *w, struct tx_message *m)
{
	static const uint8_t ops[FLUE_WR_NOPS][2] = {
		/* [][solicited] */
		[FLUE_WR_SEND] = { RDMAP_SEND, RDMAP_SEND_SE },
		[FLUE_WR_SEND_INV] = { RDMAP_SEND_INV, RDMAP_SEND_SE_INV },
		[FLUE_WR_SEND_IMM] = { RDMAP_SEND_IMM, RDMAP_SEND_SE_IMM },
	};
	struct ddp_segment *s = &m->seg;

	s->opcode = ops[w->op][!!(w->flags & FLUE_SOLICITED)];
	if (w->op == FLUE_WR_SEND_INV)
		s->inv_stag = w->rkey;
	else if (w->op == FLUE_WR_SEND_IMM) /* four octets, in their order */
		s->inv_stag = get_be32((const uint8_t *)&w->imm);
	s->msn = c->msn_send;
	s->mo = c->off;
	m->total = w->total;
}

static void describe_immediate(const struct tx_cursor *c, const struct wqe *w, struct tx_message *m)
{
	m->seg.opcode = w->flags & FLUE_SOLICITED ? RDMAP_IMMEDIATE_SE : RDMAP_IMMEDIATE;
	m->seg.msn = c->msn_send;
}

static void describe_write(const struct tx_cursor *c, const struct wqe *w, struct tx_message *m)
{
	m->seg.opcode = RDMAP_WRITE;
	m->seg.tagged = true;
	m->seg.stag = w->rkey;
	m->seg.to = w->remote_addr + c->off;
	m->total = w->total;
	m->imm = w->op == FLUE_WR_WRITE_IMM;
}

static void describe_request(struct qp *q, const struct tx_cursor *c, struct tx_message *m)
{
	const struct wqe *w = current_wqe(q, c);
	struct ddp_segment *s = &m->seg;

	if (c->imm_owed) {
		describe_immediate(c, w, m);
	} else if (w->op == FLUE_WR_WRITE || w->op == FLUE_WR_WRITE_IMM) {
		describe_write(c, w, m);
	} else if (qp_wqe_is_answered(w)) {
		bool atomic = w->op >= FLUE_WR_CMP_SWAP;

		s->opcode = atomic ? RDMAP_ATOMIC_REQUEST : RDMAP_READ_REQUEST;
		s->qn = DDP_QN_READ;
		s->msn = c->msn_read;
	} else {
		describe_send(c, w, m);
	}
	s->ack = qp_is_full(q) && qp_sched_wants_ack(q, c, w);
}

static void describe_response(struct qp *q, const struct tx_cursor *c, struct tx_message *m)
{
	const struct irq_entry *i = qp_irq(q, c->irq_next);
	struct ddp_segment *s = &m->seg;

	if (i->atomic) {
		s->opcode = RDMAP_ATOMIC_RESPONSE;
		s->qn = DDP_QN_ATOMIC;
		s->msn = c->msn_atomic;
		return;
	}
	s->opcode = RDMAP_READ_RESPONSE;
	s->tagged = true;
	s->stag = i->req.sink_stag;
	s->to = i->req.sink_to + c->off;
	m->total = i->req.size;
}

/* A zero-length message of the agreed kind; the STag of one that moves no byte is not looked at. */
static void describe_rtr(const struct qp *q, const struct tx_cursor *c, struct ddp_segment *s)
{
	if (q->tx.rtr == MPA_RTR_WRITE) {
		s->opcode = RDMAP_WRITE;
		s->tagged = true;
		s->stag = 1;
	} else if (q->tx.rtr == MPA_RTR_READ) {
		s->opcode = RDMAP_READ_REQUEST;
		s->qn = DDP_QN_READ;
		s->msn = c->msn_read;
	} else {
		s->opcode = RDMAP_SEND;
		s->msn = c->msn_send;
	}
}

static void describe_control(const struct tx_cursor *c, struct tx_message *m, struct control word)
{
	m->seg.opcode = RDMAP_CONTROL;
	m->seg.qn = DDP_QN_CONTROL;
	m->seg.msn = c->msn_control;
	m->word = word;
}

/* What is done of the peer's requests rides on every header that has a field for it. */
static void add_ack(const struct qp *q, struct tx_message *m)
{
	const struct rdmap_op_info *op = &rdmap_ops[m->seg.opcode];

	m->acks = !op->tagged && !op->invalidate && !op->imm;
	if (m->acks)
		m->seg.inv_stag = q->rx.number;
}

/* What begins at the cursor; its length is the whole message's. */
static void describe(struct qp *q, const struct tx_cursor *c, struct tx_message *m)
{
	struct ddp_segment *s = &m->seg;

	memset(s, 0, sizeof(*s));
	m->total = 0;
	m->imm = m->acks = false;
	switch (c->kind) {
	case TX_REQUEST: describe_request(q, c, m); break;
	case TX_RESPONSE: describe_response(q, c, m); break;
	case TX_CONTROL: describe_control(c, m, full_word(q, c)); break;
	case TX_TERMINATE:
		if (q->tx.full.refused) {
			describe_control(c, m, q->tx.full.nak);
			break;
		}
		s->opcode = RDMAP_TERMINATE;
		s->qn = DDP_QN_TERMINATE;
		s->msn = 1;
		break;
	default: describe_rtr(q, c, s);
	}
	if (qp_is_full(q))
		add_ack(q, m);
}

/* Fills the ORQ, too. */
static void put_read_request(struct qp *q, const struct tx_cursor *c, struct tx_message *m)
{
	struct orq_entry *o = qp_orq(q, c->orq_tail);
	struct rdmap_read_request r = { .src_stag = 1 };

	*o = (struct orq_entry) { .wqe = c->next_wqe,
				  .rtr = c->kind == TX_RTR,
				  .msn = c->msn_read,
				  .number = c->number };
	if (!o->rtr) {
		const struct wqe *w = current_wqe(q, c);

		/* A list has no place of its own: its octets are counted. */
		if (w->n_sg) {
			r.sink_stag = w->sg[0].lkey;
			r.sink_to = w->n_sg == 1 ? w->sg[0].addr : 0;
		}
		r.size = w->total;
		r.src_stag = w->rkey;
		r.src_to = w->remote_addr;
	}
	o->stag = r.sink_stag;
	o->to = r.sink_to;
	o->size = r.size;
	rdmap_read_request_encode(&r, m->fixed);
}

/* The same. The masks that make RFC 7306's operations those of the verbs. */
static void put_atomic_request(struct qp *q, const struct tx_cursor *c, struct tx_message *m)
{
	const struct wqe *w = current_wqe(q, c);
	bool swap = w->op == FLUE_WR_CMP_SWAP;
	struct rdmap_atomic_request r = { .op = swap ? RDMAP_CMP_SWAP : RDMAP_FETCH_ADD,
					  .id = c->msn_read,
					  .stag = w->rkey,
					  .to = w->remote_addr,
					  .data = swap ? w->atomic.swap : w->atomic.compare_add,
					  .mask = swap ? UINT64_MAX : 0,
					  .compare = swap ? w->atomic.compare_add : 0,
					  .compare_mask = UINT64_MAX };

	*qp_orq(q, c->orq_tail) = (struct orq_entry) { .wqe = c->next_wqe,
						       .atomic = true,
						       .msn = c->msn_read,
						       .number = c->number,
						       .stag = w->sg[0].lkey,
						       .to = w->sg[0].addr,
						       .size = sizeof(uint64_t) };
	rdmap_atomic_request_encode(&r, m->fixed);
}

/* Four octets of the program's; the RFC has eight and does not say which. Chelsio's first four. */
static void put_immediate(struct qp *q, const struct tx_cursor *c, struct tx_message *m)
{
	memset(m->fixed, 0, RDMAP_IMMEDIATE_LEN);
	memcpy(m->fixed, &current_wqe(q, c)->imm, sizeof(uint32_t));
}

/* The fixed header behind the DDP header, if the message has one. */
static void put_fixed(struct qp *q, const struct tx_cursor *c, struct tx_message *m)
{
	m->fixed_len = rdmap_ops[m->seg.opcode].fixed_len;
	switch (m->seg.opcode) {
	case RDMAP_READ_REQUEST: put_read_request(q, c, m); break;
	case RDMAP_ATOMIC_REQUEST: put_atomic_request(q, c, m); break;
	case RDMAP_ATOMIC_RESPONSE:
		rdmap_atomic_response_encode(&qp_irq(q, c->irq_next)->done, m->fixed);
		break;
	case RDMAP_IMMEDIATE:
	case RDMAP_IMMEDIATE_SE: put_immediate(q, c, m); break;
	case RDMAP_CONTROL: control_encode(&m->word, m->fixed); break;
	case RDMAP_TERMINATE:
		m->fixed_len = (uint32_t)rdmap_terminate_encode(&q->tx.term, m->fixed);
		break;
	default: break;
	}
}

enum tx_stop qp_sched_next(struct qp *q, struct tx_cursor *c, struct tx_message *m,
			   uint32_t *status)
{
	enum tx_stop stop = TX_BUILT;

	if (c->kind == TX_NONE || is_cut(q, c))
		stop = pick(q, c, status);
	if (stop != TX_BUILT)
		return stop;
	if (c->kind == TX_REQUEST && qp_wqe_is_local(current_wqe(q, c)))
		return TX_FULL; /* qp_sched_run_local() does it when everything before is out */
	describe(q, c, m);
	put_fixed(q, c, m);
	return TX_BUILT;
}

/* Numbers, of the queue that it went to. */
static void count_message(struct tx_cursor *c, const struct tx_message *m)
{
	if (m->acks)
		c->told = m->seg.inv_stag;
	if (m->seg.tagged)
		return;
	switch (m->seg.qn) {
	case DDP_QN_SEND: c->msn_send++; break;
	case DDP_QN_READ:
		c->msn_read++;
		c->orq_tail++;
		break;
	case DDP_QN_ATOMIC: c->msn_atomic++; break;
	case DDP_QN_CONTROL:
		c->msn_control++;
		full_said(c, &m->word);
		break;
	default: break;
	}
}

/* What it was for is done, as far as sending goes. */
static void leave_message(struct tx_cursor *c, const struct tx_message *m)
{
	switch (c->kind) {
	case TX_REQUEST:
		c->number++;
		c->imm_owed = m->imm;
		c->next_wqe += !m->imm;
		break;
	case TX_RTR:
		c->number++;
		c->rtr_owed = false;
		break;
	case TX_RESPONSE: c->irq_next++; break;
	case TX_TERMINATE: c->over = true; break; /* nothing may follow it */
	default: break;
	}
	if (c->kind != TX_CONTROL)
		c->turn = c->kind != TX_RESPONSE;
	c->kind = TX_NONE;
}

void qp_sched_step(struct tx_cursor *c, const struct tx_message *m, uint32_t n)
{
	c->off += n;
	if (!m->seg.last)
		return;
	c->off = 0;
	count_message(c, m);
	leave_message(c, m);
}

/* ---- gathering ---- */

bool tx_pieces_add(struct tx_pieces *p, void *base, size_t len, struct mem *ref)
{
	if (p->n == TX_PIECES) {
		if (ref)
			mem_put(ref);
		return false;
	}
	p->iov[p->n++] = (struct iovec) { base, len };
	if (ref)
		p->ref[p->n_ref++] = ref;
	return true;
}

void tx_pieces_put(struct tx_pieces *p, uint32_t keep)
{
	while (p->n_ref > keep)
		mem_put(p->ref[--p->n_ref]);
}

static enum tx_stop gather_sges(struct qp *q, const struct wqe *w, uint32_t off, uint32_t len,
				struct tx_pieces *pieces)
{
	for (uint32_t i = 0; len; i++) {
		const struct flue_sge *sg = &w->sg[i];
		uint32_t n;
		struct mem *ref;
		char *p;

		if (off >= sg->length) {
			off -= sg->length;
			continue;
		}
		n = min_u32(sg->length - off, len);
		if (mem_get(&q->rnic->mem, &q->tx.cache, sg->lkey, q->pd, q->qpn, MEM_LOCAL,
			    sg->addr + off, n, &p, &ref) != MEM_OK)
			return TX_BAD_REQUEST;
		if (!tx_pieces_add(pieces, p, n, ref))
			return TX_FULL;
		len -= n;
		off = 0;
	}
	return TX_BUILT;
}

enum tx_stop qp_sched_gather(struct qp *q, const struct tx_cursor *c, uint32_t off, uint32_t len,
			     struct tx_pieces *pieces)
{
	const struct rdmap_read_request *r;
	struct wqe *w;
	struct mem *ref;
	char *p;

	if (len == 0)
		return TX_BUILT;
	if (c->kind == TX_REQUEST) {
		w = current_wqe(q, c);
		if (w->flags & FLUE_INLINE)
			return tx_pieces_add(pieces, (char *)w->sg + off, len, NULL) ? TX_BUILT
										     : TX_FULL;
		return gather_sges(q, w, off, len, pieces);
	}
	r = &qp_irq(q, c->irq_next)->req;
	if (mem_get(&q->rnic->mem, &q->tx.cache, r->src_stag, q->pd, q->qpn, FLUE_REMOTE_READ,
		    r->src_to + off, len, &p, &ref) != MEM_OK)
		return TX_BAD_SOURCE;
	return tx_pieces_add(pieces, p, len, ref) ? TX_BUILT : TX_FULL;
}

/* ---- out ---- */

void qp_sched_begun(struct qp *q, const struct tx_cursor *at)
{
	q->tx.cur = *at;
}

void qp_sched_out(struct qp *q, const struct tx_cursor *at, const struct tx_cursor *after)
{
	q->tx.cur = *after;
	if (after->told == q->rx.wanted)
		q->tx.full.ack_now = false;
	if (after->next_wqe != at->next_wqe) {
		struct wqe *w = wq_at(&q->sq, at->next_wqe);

		w->number = after->number - 1;
		if (qp_wqe_is_answered(w) || qp_is_full(q)) {
			w->state = WQE_WAITING;
			full_waits(q);
		} else {
			qp_finish(q, at->next_wqe, FLUE_WC_SUCCESS);
		}
	} else if (after->irq_next != at->irq_next) {
		q->irq_head++;
	} else if (at->kind == TX_RTR) {
		q->tx.full.acked = after->number; /* it asks for nothing that could be refused */
	}
}

struct wqe *qp_sched_alone(struct qp *q)
{
	const struct tx_cursor *c = &q->tx.cur;
	uint32_t status = 0;

	if (q->state != QPS_RTS || q->tx.held || c->kind != TX_NONE || c->rtr_owed || c->imm_owed ||
	    q->tx.full.go_back || atomic_load(&q->sq.head) != c->next_wqe ||
	    request_may_start(q, c, &status) != TX_BUILT)
		return NULL;
	return current_wqe(q, c);
}

void qp_sched_finish(struct qp *q, uint32_t status)
{
	uint32_t n = q->tx.cur.next_wqe++;

	q->tx.full.ack_wqe = n + 1; /* the peer never hears of it */
	if (status != FLUE_WC_SUCCESS) {
		qp_fail_request(q, n, status);
		return;
	}
	qp_finish(q, n, status);
	full_look_closed(q);
}

/* false: it was refused. */
static bool change_keys(struct qp *q, const struct wqe *w)
{
	struct mem_table *t = &q->rnic->mem;

	switch (w->op) {
	case FLUE_WR_LOCAL_INV: return mem_invalidate(t, w->rkey, q->pd, q->qpn, false) == MEM_OK;
	case FLUE_WR_FAST_REG: return mem_fast_register(t, w->rkey, q->pd, wqe_reg(w)) == 0;
	case FLUE_WR_BIND: return mem_bind(t, w->rkey, q->pd, q->qpn, wqe_reg(w)) == 0;
	default: return mem_bind_shared(t, w->rkey, q->pd, wqe_reg(w)) == 0;
	}
}

bool qp_sched_run_local(struct qp *q)
{
	struct tx_cursor *c = &q->tx.cur;
	uint32_t status = 0, n = c->next_wqe;
	struct wqe *w;
	bool good;

	if (q->state != QPS_RTS || q->tx.held || c->kind != TX_NONE || c->rtr_owed ||
	    request_may_start(q, c, &status) != TX_BUILT)
		return false;
	w = current_wqe(q, c);
	if (!qp_wqe_is_local(w))
		return false;
	good = change_keys(q, w);
	c->next_wqe++;
	if (good)
		qp_finish(q, n, FLUE_WC_SUCCESS);
	else
		qp_fail_request(q, n, FLUE_WC_BIND);
	return true;
}

bool qp_sched_refuse(struct qp *q, enum tx_stop why, uint32_t status, bool torn)
{
	uint32_t n = q->tx.cur.next_wqe;

	if (why == TX_BAD_SOURCE) {
		if (!torn) {
			full_lost_source(q, FAULT_RDMAP_STAG);
			qp_fault(q, FAULT_RDMAP_STAG, NULL, 0, 0, NULL);
			return true;
		}
	} else if (!torn) {
		/* In full service those before it end well first. */
		if (qp_is_full(q) && atomic_load(&q->sq.head) != n) {
			full_ask(q, q->tx.cur.number);
			return full_owes(q, &q->tx.cur);
		}
		q->tx.cur.kind = TX_NONE;
		q->tx.cur.off = 0;
		q->tx.cur.next_wqe = n + 1;
		qp_fail_request(q, n, status);
		return true;
	} else {
		qp_finish(q, n, status);
	}
	/* It is half out and its rest is gone: no Terminate can follow any more. */
	qp_link_starved(q, EFAULT);
	return true;
}

uint32_t qp_reads_out(const struct qp *q)
{
	const struct tx_cursor *c = &q->tx.cur;
	bool begun = c->kind == TX_REQUEST
			     ? qp_wqe_is_answered(wq_at((struct wq *)&q->sq, c->next_wqe))
			     : c->kind == TX_RTR && q->tx.rtr == MPA_RTR_READ;

	return c->orq_tail + begun;
}

void qp_sched_reset(struct qp *q)
{
	q->tx.term_owed = false;
	q->tx.fin_wanted = false;
	q->tx.cur.kind = TX_NONE;
	q->tx.cur.rtr_owed = q->tx.cur.imm_owed = false;
	q->irq_head = q->irq_tail = q->tx.cur.irq_next;
	q->orq_head = q->tx.cur.orq_tail;
}
