/* SPDX-License-Identifier: MIT */
#include "rnic/rx_segment.h"

#include <string.h>

#include "base/bytes.h"
#include "base/util.h"
#include "rnic/cep.h"
#include "rnic/full.h"
#include "rnic/rx_priv.h"
#include "rnic/umem.h"

/* ---- memory ---- */

/* Before the key is looked at: a peer without the right learns nothing of our keys. */
enum mem_verdict rx_get_memory(struct qp *q, uint32_t key, uint32_t access, uint64_t to,
			       uint64_t len, char **p, struct mem **ref)
{
	if (access & q->deny)
		return MEM_BAD_ACCESS;
	return mem_get(&q->rnic->mem, &q->rx.cache, key, q->pd, q->qpn, access, to, len, p, ref);
}

bool rx_hold(struct qp *q, uint32_t key, uint32_t access, uint64_t to, size_t len,
	     struct rx_target *t, enum mem_verdict *v)
{
	char *p;

	*v = rx_get_memory(q, key, access, to, len, &p, &t->ref[t->n_ref]);
	if (*v != MEM_OK)
		return false;
	t->n_ref++;
	t->iov[t->n++] = (struct iovec) { p, len };
	return true;
}

void rx_target_put(struct rx_target *t)
{
	while (t->n_ref)
		mem_put(t->ref[--t->n_ref]);
	t->n = 0;
}

bool rx_hold_list(struct qp *q, const struct flue_sge *sg, size_t skip, size_t len,
		  struct rx_target *t)
{
	enum mem_verdict v;

	for (; len; sg++) {
		size_t n;

		if (skip >= sg->length) {
			skip -= sg->length;
			continue;
		}
		n = min_size(sg->length - skip, len);
		if (!rx_hold(q, sg->lkey, FLUE_LOCAL_WRITE, sg->addr + skip, n, t, &v)) {
			rx_target_put(t);
			return false;
		}
		skip = 0;
		len -= n;
	}
	return true;
}

/* ---- Send ---- */

static const uint32_t invalidate_faults[] = {
	[MEM_BAD_STAG] = FAULT_RDMAP_NO_INVALIDATE,
	[MEM_BAD_STREAM] = FAULT_RDMAP_PROT_NO_INVALIDATE,
	[MEM_BAD_ACCESS] = FAULT_RDMAP_NO_INVALIDATE,
};

static bool is_rtr(const struct qp *q, const struct ddp_segment *s)
{
	return q->rx.rtr_send && !q->rx.any && s->payload_len == 0 && s->last && s->mo == 0;
}

bool rx_take_receive(struct qp *q)
{
	if (q->srq) {
		if (!srq_take(q->srq, q->srq_wqe))
			return false;
		q->rx.wqe = q->srq_wqe;
	} else {
		if (!wq_fill(&q->rq))
			return false;
		q->rx.wqe = wq_at(&q->rq, atomic_load(&q->rq.head));
	}
	q->rx.have_wqe = true;
	q->rx.filled = 0;
	return true;
}

static uint32_t no_receive(struct qp *q)
{
	if (!qp_is_full(q))
		return FAULT_DDP_NO_BUFFER;
	full_not_ready(q);
	return RX_SKIPPED;
}

static uint32_t check_send(struct qp *q, const struct ddp_segment *s, const uint8_t *payload)
{
	struct qp_rx *rx = &q->rx;

	(void)payload;
	if (s->msn != rx->msn_send)
		return FAULT_DDP_MSN;
	if (is_rtr(q, s))
		return WIRE_OK;
	if (!rx->have_wqe) {
		if (s->mo != 0)
			return FAULT_DDP_MO;
		if (!rx_take_receive(q))
			return no_receive(q);
		rx->send_op = s->opcode;
	} else if (s->opcode != rx->send_op) {
		return FAULT_RDMAP_OPCODE;
	}
	if (s->mo != rx->filled)
		return FAULT_DDP_MO;
	if (s->payload_len > rx->wqe->total - rx->filled) {
		qp_fail_recv(q, rx->wqe, FLUE_WC_LOCAL_LENGTH);
		return FAULT_DDP_TOO_LONG;
	}
	return WIRE_OK;
}

static uint32_t deliver_send(struct qp *q, const struct ddp_segment *s, const uint8_t *payload)
{
	struct flue_wc wc = { .op = FLUE_WC_RECV };
	struct qp_rx *rx = &q->rx;
	enum mem_verdict v;

	(void)payload;
	if (!rx->have_wqe) { /* ready-to-receive: takes a number but no receive */
		rx->msn_send++;
		return WIRE_OK;
	}
	rx->filled += (uint32_t)s->payload_len;
	if (!s->last)
		return WIRE_OK;
	if (rdmap_ops[s->opcode].solicited)
		wc.flags |= FLUE_WC_SOLICITED;
	if (rdmap_ops[s->opcode].imm) {
		wc.flags |= FLUE_WC_IMM;
		put_be32((uint8_t *)&wc.imm, s->inv_stag);
	}
	if (rdmap_ops[s->opcode].invalidate) {
		v = mem_invalidate(&q->rnic->mem, s->inv_stag, q->pd, q->qpn, true);
		if (v != MEM_OK)
			return invalidate_faults[v];
		wc.flags |= FLUE_WC_INVALIDATED;
		wc.inv_key = s->inv_stag;
	}
	rx->msn_send++;
	wc.byte_len = rx->filled;
	qp_push_recv(q, rx->wqe, &wc);
	return WIRE_OK;
}

static uint32_t target_send(struct qp *q, const struct ddp_segment *s, size_t off, size_t len,
			    struct rx_target *t)
{
	const struct wqe *w = q->rx.wqe;

	(void)s;
	if (rx_hold_list(q, wqe_places(w), q->rx.filled + off, len, t))
		return WIRE_OK;
	qp_fail_recv(q, w, FLUE_WC_LOCAL_PROTECTION);
	return FAULT_DDP_CATASTROPHIC;
}

/* ---- immediate data ---- */

static uint32_t check_immediate(struct qp *q, const struct ddp_segment *s, const uint8_t *payload)
{
	(void)payload;
	if (q->rx.have_wqe) /* inside a Send */
		return FAULT_RDMAP_OPCODE;
	if (s->msn != q->rx.msn_send)
		return FAULT_DDP_MSN;
	return rx_take_receive(q) ? WIRE_OK : no_receive(q);
}

static uint32_t deliver_immediate(struct qp *q, const struct ddp_segment *s, const uint8_t *payload)
{
	struct qp_rx *rx = &q->rx;
	struct flue_wc wc = { .op = FLUE_WC_RECV_WRITE,
			      .byte_len = rx->after_write ? rx->write_got : 0,
			      .flags = FLUE_WC_IMM };

	if (rdmap_ops[s->opcode].solicited)
		wc.flags |= FLUE_WC_SOLICITED;
	/* The program's four octets are the first, or with some adapters perhaps the last. */
	memcpy(&wc.imm, payload, sizeof(wc.imm));
	if (!wc.imm)
		memcpy(&wc.imm, payload + sizeof(wc.imm), sizeof(wc.imm));
	rx->msn_send++;
	qp_push_recv(q, rx->wqe, &wc);
	return WIRE_OK;
}

/* ---- Write ---- */

/* By what is wrong with an STag (docs/design/wire.md). */
static const uint32_t tagged_faults[] = {
	[MEM_BAD_STAG] = FAULT_DDP_STAG,       [MEM_BAD_STREAM] = FAULT_DDP_STREAM,
	[MEM_BAD_ACCESS] = FAULT_RDMAP_ACCESS, [MEM_BAD_BOUNDS] = FAULT_DDP_BOUNDS,
	[MEM_BAD_WRAP] = FAULT_DDP_WRAP,
};

/* The target is looked up when it is placed. */
static uint32_t check_write(struct qp *q, const struct ddp_segment *s, const uint8_t *payload)
{
	(void)q;
	(void)s;
	(void)payload;
	return WIRE_OK;
}

/* Programs spin on the last octet of a Write, and take the rest for there. Neither memcpy() nor the kernel promises an
 * order within a piece. */
static void set_last_apart(struct rx_target *t)
{
	struct iovec *all = &t->iov[t->n - 1];

	all->iov_len--;
	t->iov[t->n++] = (struct iovec) { (char *)all->iov_base + all->iov_len, 1 };
}

static uint32_t target_write(struct qp *q, const struct ddp_segment *s, size_t off, size_t len,
			     struct rx_target *t)
{
	enum mem_verdict v;

	if (!rx_hold(q, s->stag, FLUE_REMOTE_WRITE, s->to + off, len, t, &v))
		return tagged_faults[v];
	if (s->last && len > 1 && off + len == s->payload_len)
		set_last_apart(t);
	return WIRE_OK;
}

static uint32_t deliver_write(struct qp *q, const struct ddp_segment *s, const uint8_t *payload)
{
	(void)payload;
	q->rx.write_got = (q->rx.in_write ? q->rx.write_got : 0) + (uint32_t)s->payload_len;
	q->rx.in_write = !s->last;
	return WIRE_OK;
}

/* ---- Terminate ---- */

static uint32_t check_terminate(struct qp *q, const struct ddp_segment *s, const uint8_t *payload)
{
	(void)payload;
	return s->msn == q->rx.msn_term ? WIRE_OK : FAULT_DDP_MSN;
}

static uint32_t deliver_terminate(struct qp *q, const struct ddp_segment *s, const uint8_t *payload)
{
	struct rdmap_terminate t;
	uint32_t fault = FAULT_RDMAP_OTHER;

	if (s->payload_len >= 4) {
		/* A Terminate cut short still says what went wrong. */
		if (rdmap_terminate_decode(&t, payload, s->payload_len) == 0)
			rx_blame_read(q, &t);
		fault = t.fault;
	}
	qp_apply(q, QPE_RX_TERM, FLUE_CLOSE_TERMINATED, fault & 0xffff);
	return WIRE_OK;
}

/* ---- all ---- */

/*
 * What to do with each opcode; queue, fixed length and flags of it are in wire/rdmap.c. `target` is
 * for opcodes that have bytes to place. An opcode without a row is refused.
 */
struct rx_op {
	/* Order and consistency, of a segment by itself. */
	uint32_t (*check)(struct qp *q, const struct ddp_segment *s, const uint8_t *payload);
	/* Where bytes off..off+len of the payload go. */
	uint32_t (*target)(struct qp *q, const struct ddp_segment *s, size_t off, size_t len,
			   struct rx_target *t);
	/* The payload is in place. */
	uint32_t (*deliver)(struct qp *q, const struct ddp_segment *s, const uint8_t *payload);
	uint8_t service; /* enum qp_service: at least */
};

static const struct rx_op rx_ops[RDMAP_NOPS] = {
	[RDMAP_WRITE] = { check_write, target_write, deliver_write, SERVICE_STRICT },
	[RDMAP_READ_REQUEST] = { rx_check_read_request, NULL, rx_deliver_read_request,
				 SERVICE_STRICT },
	[RDMAP_READ_RESPONSE] = { rx_check_read_response, rx_target_read_response,
				  rx_deliver_read_response, SERVICE_STRICT },
	[RDMAP_SEND] = { check_send, target_send, deliver_send, SERVICE_STRICT },
	[RDMAP_SEND_INV] = { check_send, target_send, deliver_send, SERVICE_STRICT },
	[RDMAP_SEND_SE] = { check_send, target_send, deliver_send, SERVICE_STRICT },
	[RDMAP_SEND_SE_INV] = { check_send, target_send, deliver_send, SERVICE_STRICT },
	[RDMAP_TERMINATE] = { check_terminate, NULL, deliver_terminate, SERVICE_STRICT },
	[RDMAP_IMMEDIATE] = { check_immediate, NULL, deliver_immediate, SERVICE_RFC7306 },
	[RDMAP_IMMEDIATE_SE] = { check_immediate, NULL, deliver_immediate, SERVICE_RFC7306 },
	[RDMAP_SEND_IMM] = { check_send, target_send, deliver_send, SERVICE_FULL },
	[RDMAP_SEND_SE_IMM] = { check_send, target_send, deliver_send, SERVICE_FULL },
	[RDMAP_CONTROL] = { full_check_control, NULL, full_deliver_control, SERVICE_FULL },
	[RDMAP_ATOMIC_REQUEST] = { rx_check_atomic_request, NULL, rx_deliver_atomic_request,
				   SERVICE_RFC7306 },
	[RDMAP_ATOMIC_RESPONSE] = { rx_check_atomic_response, NULL, rx_deliver_atomic_response,
				    SERVICE_RFC7306 },
};

bool rx_segment_is_bulk(const uint8_t *ulpdu)
{
	return rx_ops[ulpdu[1] & 0xf].target;
}

/* The peer keeps its promises: anything valid ends the responder's silence. */
static void first_segment(struct qp *q)
{
	q->rx.any = true;
	q->tx.held = false;
	if (q->cep)
		cep_first_fpdu(q->cep);
}

static bool carries_ack(uint8_t opcode)
{
	const struct rdmap_op_info *op = &rdmap_ops[opcode];

	return !op->tagged && !op->invalidate && !op->imm;
}

uint32_t rx_segment_accept(struct qp *q, const struct ddp_segment *s, const uint8_t *payload)
{
	const struct rx_op *op = &rx_ops[s->opcode];
	uint32_t fault;

	/* What the peer tells of our requests asks for nothing. */
	if (q->state == QPS_CLOSING && s->opcode != RDMAP_TERMINATE &&
	    !(s->opcode == RDMAP_CONTROL && qp_is_full(q))) {
		qp_apply(q, QPE_RX_DATA, FLUE_CLOSE_BAD, 0);
		return RX_DROPPED;
	}
	if (full_skips(q, s))
		return RX_SKIPPED;
	fault = op->check && op->service <= q->service ? op->check(q, s, payload)
						       : FAULT_RDMAP_OPCODE;
	if (!fault && qp_is_full(q) && carries_ack(s->opcode))
		fault = full_acked(q, s->inv_stag);
	/* A Terminate says that the peer is not ready to receive, and never will be. */
	if (!fault && !q->rx.any && s->opcode != RDMAP_TERMINATE)
		first_segment(q);
	return fault;
}

uint32_t rx_segment_target(struct qp *q, const struct ddp_segment *s, size_t off, size_t len,
			   struct rx_target *t)
{
	t->n = t->n_ref = 0;
	return rx_ops[s->opcode].target(q, s, off, len, t);
}

uint32_t rx_segment_place_part(struct qp *q, const struct ddp_segment *s, size_t off,
			       const uint8_t *bytes, size_t len)
{
	struct rx_target t;
	uint32_t fault;

	if (len == 0)
		return WIRE_OK;
	fault = rx_segment_target(q, s, off, len, &t);
	if (fault)
		return fault;
	for (uint32_t i = 0; i < t.n && !fault; i++) {
		if (umem_write(t.iov[i].iov_base, bytes, t.iov[i].iov_len))
			fault = FAULT_DDP_CATASTROPHIC;
		__atomic_thread_fence(__ATOMIC_RELEASE); /* see set_last_apart() */
		bytes += t.iov[i].iov_len;
	}
	rx_target_put(&t);
	return fault;
}

uint32_t rx_segment_place(struct qp *q, const struct ddp_segment *s, const uint8_t *payload)
{
	/* A Write is checked as a whole even where it would be placed in parts. */
	if (!rx_ops[s->opcode].target)
		return WIRE_OK;
	return rx_segment_place_part(q, s, 0, payload, s->payload_len);
}

uint32_t rx_segment_deliver(struct qp *q, const struct ddp_segment *s, const uint8_t *payload)
{
	uint32_t fault = rx_ops[s->opcode].deliver(q, s, payload);

	if (!rdmap_ops[s->opcode].request)
		return fault;
	q->rx.after_write = s->opcode == RDMAP_WRITE;
	if (!fault && s->last && qp_is_full(q))
		full_done(q, s);
	return fault;
}

void rx_message(struct qp *q, const struct ddp_segment *s, const uint8_t *payload)
{
	static const struct ddp_params version = { .dv = 1, .rv = 1 };
	uint8_t ulpdu[DDP_HDR_MAX + RDMAP_READ_REQUEST_LEN];
	uint32_t fault = rx_segment_accept(q, s, payload);
	size_t hdr, have;

	if (fault == RX_DROPPED || fault == RX_SKIPPED || (!fault && !rx_segment_listens(q)))
		return;
	if (!fault)
		fault = rx_segment_place(q, s, payload);
	if (!fault)
		fault = rx_segment_deliver(q, s, payload);
	if (!fault)
		return;
	/* A Terminate shows the header that the message would have had. */
	hdr = ddp_encode(&version, s, ulpdu);
	have = min_size(s->payload_len, RDMAP_READ_REQUEST_LEN);
	if (have)
		memcpy(ulpdu + hdr, payload, have);
	qp_fault(q, fault, ulpdu, hdr + have, hdr + s->payload_len, s);
}
