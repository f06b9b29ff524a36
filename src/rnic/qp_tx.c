/* SPDX-License-Identifier: MIT */
/*
 * The transmitter. It works in whole messages: a message is cut into FPDUs, several FPDUs leave
 * in one system call, and another message starts only when the last one is out, because Linux
 * siw and others do not accept interleaved messages.
 *
 * Looking ahead. The cursor says what comes next. A batch of FPDUs is built from a copy of it;
 * after the system call the real cursor moves to where the last whole FPDU ended. The one FPDU
 * that TCP took in part is kept in tx.part and finished first. Nothing else is ever undone.
 *
 * Where the bytes come from. Requests are gathered straight from registered memory, which the
 * program must leave alone until the completion. Staged copies are used where the bytes may
 * change under the CRC (the source of a Read Response is anyone's to write), where markers are
 * inserted, and for CRCs on the library's own threads (see umem.h).
 */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/tsan.h"
#include "base/util.h"
#include "rnic/qp.h"
#include "rnic/umem.h"

#define BATCH_FPDUS 32
#define BATCH_IOVS  256
#define BATCH_BYTES (1024 * 1024)

struct tx_batch {
	struct tx_fpdu fpdu[BATCH_FPDUS];
	uint32_t n;
	struct iovec iov[BATCH_IOVS];
	uint32_t n_iov;
	struct mem *ref[BATCH_IOVS];
	uint32_t n_ref;
	size_t bytes;
	struct engine_buf *stage; /* shared by the staged FPDUs of the batch */
	size_t stage_used;
};

_Static_assert(sizeof(struct tx_batch) <= ENGINE_SCRATCH, "a batch stands in the engine's scratch");

/* Why no further FPDU was built. */
enum tx_stop {
	TX_BUILT = 0,
	TX_NOTHING,     /* no message can start now */
	TX_FULL,        /* the batch is */
	TX_NO_MEMORY,   /* no staging buffer */
	TX_BAD_REQUEST, /* the request at the cursor cannot be sent: see *status */
	TX_BAD_SOURCE,  /* the Read Response at the cursor lost its source */
};

static struct wqe *current_wqe(struct qp *q, const struct tx_cursor *c)
{
	return wq_at(&q->sq, c->next_wqe);
}

static bool is_read(const struct wqe *w)
{
	return w->op == FLUE_WR_READ || w->op == FLUE_WR_READ_INV;
}

static bool is_local(const struct wqe *w)
{
	return w->op == FLUE_WR_LOCAL_INV || w->op == FLUE_WR_FAST_REG || w->op == FLUE_WR_BIND;
}

/* May the next request start now? */
static enum tx_stop request_may_start(struct qp *q, const struct tx_cursor *c, uint32_t *status)
{
	const struct wqe *w;

	if (c->next_wqe == atomic_load_explicit(&q->sq.tail, memory_order_acquire))
		return TX_NOTHING;
	w = current_wqe(q, c);
	if (w->flags & FLUE_FENCE && q->orq_head != c->orq_tail)
		return TX_NOTHING;
	if (w->flags & FLUE_LOCAL_FENCE && atomic_load(&q->sq.head) != c->next_wqe)
		return TX_NOTHING;
	if (is_read(w)) {
		*status = FLUE_WC_LOCAL_OPERATION;
		if (q->ord == 0)
			return TX_BAD_REQUEST;
		if (c->orq_tail - q->orq_head >= q->ord)
			return TX_NOTHING;
	}
	return TX_BUILT;
}

/* Chooses the next message when none is under way. */
static enum tx_stop pick(struct qp *q, struct tx_cursor *c, uint32_t *status)
{
	bool response = c->irq_next != q->irq_tail;
	enum tx_stop request;

	if (q->state == QPS_TERMINATE) {
		if (!q->tx.term_owed || c->over)
			return TX_NOTHING;
		c->kind = TX_TERMINATE; /* cuts off the message under way */
		c->off = 0;
		return TX_BUILT;
	}
	if (q->state != QPS_RTS || q->tx.held)
		return TX_NOTHING;
	if (c->rtr_owed) {
		c->kind = TX_RTR;
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

static const uint8_t send_ops[2][2] = { /* [invalidate][solicited] */
					{ RDMAP_SEND, RDMAP_SEND_SE },
					{ RDMAP_SEND_INV, RDMAP_SEND_SE_INV }
};

static void describe_request(struct qp *q, const struct tx_cursor *c, struct ddp_segment *s,
			     uint32_t *total)
{
	const struct wqe *w = current_wqe(q, c);

	*total = w->total;
	if (w->op == FLUE_WR_WRITE) {
		s->opcode = RDMAP_WRITE;
		s->tagged = true;
		s->stag = w->rkey;
		s->to = w->remote_addr + c->off;
	} else if (is_read(w)) {
		s->opcode = RDMAP_READ_REQUEST;
		s->qn = DDP_QN_READ;
		s->msn = c->msn_read;
		*total = 0;
	} else {
		bool inv = w->op == FLUE_WR_SEND_INV;

		s->opcode = send_ops[inv][!!(w->flags & FLUE_SOLICITED)];
		s->inv_stag = inv ? w->rkey : 0;
		s->msn = c->msn_send;
		s->mo = c->off;
	}
}

/* A zero-length message of the agreed kind; the STag of one that moves no byte is not looked at. */
static void describe_rtr(const struct qp *q, const struct tx_cursor *c, struct ddp_segment *s)
{
	if (q->terms.rtr == MPA_RTR_WRITE) {
		s->opcode = RDMAP_WRITE;
		s->tagged = true;
		s->stag = 1;
	} else if (q->terms.rtr == MPA_RTR_READ) {
		s->opcode = RDMAP_READ_REQUEST;
		s->qn = DDP_QN_READ;
		s->msn = c->msn_read;
	} else {
		s->opcode = RDMAP_SEND;
		s->msn = c->msn_send;
	}
}

/* The segment at the cursor, without its payload; *total is the message's length. */
static void describe(struct qp *q, const struct tx_cursor *c, struct ddp_segment *s,
		     uint32_t *total)
{
	memset(s, 0, sizeof(*s));
	*total = 0;
	switch (c->kind) {
	case TX_REQUEST: describe_request(q, c, s, total); break;
	case TX_RESPONSE: {
		const struct rdmap_read_request *r = &qp_irq(q, c->irq_next)->req;

		s->opcode = RDMAP_READ_RESPONSE;
		s->tagged = true;
		s->stag = r->sink_stag;
		s->to = r->sink_to + c->off;
		*total = r->size;
		break;
	}
	case TX_TERMINATE:
		s->opcode = RDMAP_TERMINATE;
		s->qn = DDP_QN_TERMINATE;
		s->msn = 1;
		break;
	default: describe_rtr(q, c, s);
	}
}

/* The fixed header behind the DDP header, if the message has one. Fills the ORQ for Reads. */
static size_t put_fixed(struct qp *q, const struct tx_cursor *c, const struct ddp_segment *s,
			uint8_t *buf)
{
	struct rdmap_read_request r = { .src_stag = 1 };
	struct orq_entry *o;

	if (s->opcode == RDMAP_TERMINATE)
		return rdmap_terminate_encode(&q->tx.term, buf);
	if (s->opcode != RDMAP_READ_REQUEST)
		return 0;
	o = qp_orq(q, c->orq_tail);
	*o = (struct orq_entry) { .wqe = c->next_wqe, .rtr = c->kind == TX_RTR };
	if (!o->rtr) {
		const struct wqe *w = current_wqe(q, c);

		if (w->n_sg) {
			r.sink_stag = w->sg[0].lkey;
			r.sink_to = w->sg[0].addr;
		}
		r.size = w->total;
		r.src_stag = w->rkey;
		r.src_to = w->remote_addr;
	}
	o->stag = r.sink_stag;
	o->to = r.sink_to;
	o->size = r.size;
	rdmap_read_request_encode(&r, buf);
	return RDMAP_READ_REQUEST_LEN;
}

/* The cursor behind the segment that was just described. */
static void step_cursor(struct tx_cursor *c, const struct ddp_segment *s, uint32_t n, size_t wire)
{
	c->off += n;
	c->pos += wire;
	if (!s->last)
		return;
	c->off = 0;
	if (s->opcode == RDMAP_READ_REQUEST) {
		c->msn_read++;
		c->orq_tail++;
	} else if (!s->tagged && s->qn == DDP_QN_SEND) {
		c->msn_send++;
	}
	if (c->kind == TX_REQUEST)
		c->next_wqe++;
	else if (c->kind == TX_RESPONSE)
		c->irq_next++;
	else if (c->kind == TX_RTR)
		c->rtr_owed = false;
	c->turn = c->kind != TX_RESPONSE;
	/* Nothing may follow a Terminate. */
	if (c->kind == TX_TERMINATE)
		c->over = true;
	c->kind = TX_NONE;
}

static bool add_piece(struct tx_batch *b, void *base, size_t len, struct mem *ref)
{
	if (b->n_iov == BATCH_IOVS) {
		if (ref)
			mem_put(ref);
		return false;
	}
	b->iov[b->n_iov++] = (struct iovec) { base, len };
	if (ref)
		b->ref[b->n_ref++] = ref;
	return true;
}

static enum tx_stop gather_sges(struct qp *q, const struct wqe *w, uint32_t off, uint32_t len,
				struct tx_batch *b)
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
		if (mem_get(&q->rnic->mem, &q->tx.cache, sg->lkey, q->pd, q->qpn, 0, sg->addr + off,
			    n, &p, &ref) != MEM_OK)
			return TX_BAD_REQUEST;
		if (!add_piece(b, p, n, ref))
			return TX_FULL;
		len -= n;
		off = 0;
	}
	return TX_BUILT;
}

/* Adds the payload of an FPDU to the batch's iovec, holding references. */
static enum tx_stop gather(struct qp *q, const struct tx_cursor *c, uint32_t off, uint32_t len,
			   struct tx_batch *b)
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
			return add_piece(b, (char *)w->sg + off, len, NULL) ? TX_BUILT : TX_FULL;
		return gather_sges(q, w, off, len, b);
	}
	r = &qp_irq(q, c->irq_next)->req;
	if (mem_get(&q->rnic->mem, &q->tx.cache, r->src_stag, q->pd, q->qpn, FLUE_REMOTE_READ,
		    r->src_to + off, len, &p, &ref) != MEM_OK)
		return TX_BAD_SOURCE;
	return add_piece(b, p, len, ref) ? TX_BUILT : TX_FULL;
}

/* Copies a small payload, gathered in iov[from..], behind its header and seals the FPDU there. */
static enum tx_stop join_small(struct qp *q, struct tx_batch *b, struct tx_fpdu *f, uint32_t from)
{
	unsigned pad = f->tail_len - MPA_CRC_LEN;
	uint8_t *at = f->head + f->head_len;

	for (uint32_t i = from; i < b->n_iov; at += b->iov[i++].iov_len) {
		if (umem_read(at, b->iov[i].iov_base, b->iov[i].iov_len))
			return f->at.kind == TX_RESPONSE ? TX_BAD_SOURCE : TX_BAD_REQUEST;
	}
	memset(at, 0, pad);
	at += pad;
	put_le32(at, q->terms.crc ? crc32c(0, f->head, (size_t)(at - f->head)) : 0);
	f->small = true;
	return TX_BUILT;
}

static bool must_stage(const struct qp *q, const struct tx_fpdu *f)
{
	if (q->tx.marked)
		return true;
	return q->terms.crc && f->payload > TX_SMALL && (f->at.kind == TX_RESPONSE || umem_guarded);
}

/* Puts the FPDU whose payload is in iov[from..] into the staging buffer as one piece. */
static enum tx_stop stage(struct qp *q, struct tx_batch *b, struct tx_fpdu *f, uint32_t from)
{
	size_t body = f->head_len + f->payload + (f->tail_len - MPA_CRC_LEN);
	struct mpa_stream out = { .crc = q->terms.crc, .markers = q->tx.marked, .pos = f->at.pos };
	size_t wire = mpa_fpdu_size(&out, f->head_len - MPA_LEN_LEN + f->payload);
	/* With markers the plain body is put together behind the room for the result. */
	size_t room = q->tx.marked ? wire + body : wire;
	uint8_t *to, *at;

	if (!b->stage)
		b->stage = engine_buf_get(q->engine);
	if (!b->stage)
		return TX_NO_MEMORY;
	if (b->stage_used + room > ENGINE_BUF_SIZE)
		return TX_FULL;
	to = b->stage->data + b->stage_used;
	at = q->tx.marked ? to + wire : to;
	memcpy(at, f->head, f->head_len);
	for (size_t i = from, off = f->head_len; i < b->n_iov; off += b->iov[i++].iov_len) {
		if (umem_read(at + off, b->iov[i].iov_base, b->iov[i].iov_len))
			return f->at.kind == TX_RESPONSE ? TX_BAD_SOURCE : TX_BAD_REQUEST;
	}
	memset(at + f->head_len + f->payload, 0, f->tail_len - MPA_CRC_LEN);
	if (q->tx.marked)
		mpa_fpdu_build(&out, at, body, to);
	else
		put_le32(to + body, q->terms.crc ? crc32c(0, to, body) : 0);
	f->stage = b->stage;
	f->stage_off = b->stage_used;
	f->stage_len = wire;
	b->stage_used += wire;
	return TX_BUILT;
}

static void seal(const struct qp *q, struct tx_fpdu *f, const struct iovec *iov, uint32_t n)
{
	unsigned pad = f->tail_len - MPA_CRC_LEN;
	uint32_t crc = 0;

	memset(f->tail, 0, sizeof(f->tail));
	if (q->terms.crc) {
		crc = crc32c(0, f->head, f->head_len);
		for (uint32_t i = 0; i < n; i++)
			crc = crc32c(crc, iov[i].iov_base, iov[i].iov_len);
		crc = crc32c(crc, f->tail, pad);
	}
	put_le32(f->tail + pad, crc);
}

static size_t fpdu_size(const struct tx_fpdu *f)
{
	return f->stage ? f->stage_len : (size_t)f->head_len + f->payload + f->tail_len;
}

/* Fills head and sizes of *f for the segment at the cursor, and moves the cursor. */
static void frame(struct qp *q, struct tx_cursor *c, struct tx_fpdu *f)
{
	struct mpa_stream out = { .markers = q->tx.marked, .pos = c->pos };
	struct ddp_segment s;
	uint32_t total;
	size_t hdr, room, ulpdu;

	describe(q, c, &s, &total);
	hdr = s.tagged ? DDP_TAGGED_LEN : DDP_UNTAGGED_LEN;
	room = q->tx.mulpdu - hdr;
	f->at = *c;
	f->payload_off = c->off;
	f->payload = (uint32_t)min_size(room, total - c->off);
	f->sent = 0;
	f->stage = NULL;
	f->small = false;
	s.last = c->off + f->payload == total;
	ddp_encode(&q->ddp, &s, f->head + MPA_LEN_LEN);
	hdr += put_fixed(q, c, &s, f->head + MPA_LEN_LEN + hdr);
	ulpdu = hdr + f->payload;
	put_be16(f->head, (uint16_t)ulpdu);
	f->head_len = (uint16_t)(MPA_LEN_LEN + hdr);
	f->tail_len = (uint16_t)(mpa_pad(ulpdu) + MPA_CRC_LEN);
	step_cursor(c, &s, f->payload, mpa_fpdu_size(&out, ulpdu));
	f->after = *c;
}

/* Turns the framed FPDU whose payload is in iov[first + 1..] into the pieces that go out. */
static enum tx_stop finish_fpdu(struct qp *q, struct tx_batch *b, struct tx_fpdu *f, uint32_t first)
{
	enum tx_stop stop = TX_BUILT;

	if (must_stage(q, f)) {
		stop = stage(q, b, f, first + 1);
		b->n_iov = first;
		if (stop == TX_BUILT)
			add_piece(b, f->stage->data + f->stage_off, f->stage_len, NULL);
	} else if (f->payload <= TX_SMALL) {
		stop = join_small(q, b, f, first + 1);
		b->n_iov = first;
		add_piece(b, f->head, f->head_len + f->payload + f->tail_len, NULL);
	} else {
		seal(q, f, &b->iov[first + 1], b->n_iov - first - 1);
		add_piece(b, f->tail, f->tail_len, NULL);
	}
	return stop;
}

/* Is there a message at the cursor, or can one start? */
static enum tx_stop choose(struct qp *q, struct tx_cursor *c, uint32_t *status)
{
	enum tx_stop stop = TX_BUILT;

	if (c->kind == TX_NONE || (q->state == QPS_TERMINATE && c->kind != TX_TERMINATE))
		stop = pick(q, c, status);
	if (stop == TX_BUILT && c->kind == TX_REQUEST && is_local(current_wqe(q, c)))
		return TX_FULL; /* run_local() does it when everything before is out */
	return stop;
}

/* Adds the next FPDU to the batch; on failure batch and cursor are as before. */
static enum tx_stop build(struct qp *q, struct tx_cursor *c, struct tx_batch *b, uint32_t *status)
{
	struct tx_fpdu *f = &b->fpdu[b->n];
	uint32_t n_iov = b->n_iov, n_ref = b->n_ref;
	struct tx_cursor was = *c;
	enum tx_stop stop = choose(q, c, status);

	if (stop == TX_BUILT) {
		frame(q, c, f);
		*status = FLUE_WC_LOCAL_PROTECTION;
		stop = add_piece(b, f->head, f->head_len, NULL) ? TX_BUILT : TX_FULL;
	}
	if (stop == TX_BUILT)
		stop = gather(q, &f->at, f->payload_off, f->payload, b);
	if (stop == TX_BUILT)
		stop = b->n_iov < BATCH_IOVS ? finish_fpdu(q, b, f, n_iov) : TX_FULL;
	if (stop == TX_BUILT) {
		b->n++;
		b->bytes += fpdu_size(f);
		return TX_BUILT;
	}
	while (b->n_ref > n_ref)
		mem_put(b->ref[--b->n_ref]);
	b->n_iov = n_iov;
	*c = was;
	return stop;
}

/* The FPDU that TCP took in part goes first: add what is left of it. */
static enum tx_stop resume_part(struct qp *q, struct tx_batch *b, uint32_t *status)
{
	struct tx_fpdu *f = &b->fpdu[0];
	size_t skip = q->tx.part.sent;
	enum tx_stop stop = TX_BUILT;
	uint32_t i = 0;

	*f = q->tx.part;
	*status = FLUE_WC_LOCAL_PROTECTION;
	if (f->stage) {
		add_piece(b, f->stage->data + f->stage_off, f->stage_len, NULL);
	} else if (f->small) {
		add_piece(b, f->head, f->head_len + f->payload + f->tail_len, NULL);
	} else {
		add_piece(b, f->head, f->head_len, NULL);
		stop = gather(q, &f->at, f->payload_off, f->payload, b);
		if (stop != TX_BUILT)
			return stop;
		add_piece(b, f->tail, f->tail_len, NULL);
	}
	for (; skip >= b->iov[i].iov_len; i++)
		skip -= b->iov[i].iov_len;
	b->iov[i].iov_base = (char *)b->iov[i].iov_base + skip;
	b->iov[i].iov_len -= skip;
	memmove(b->iov, b->iov + i, (b->n_iov - i) * sizeof(b->iov[0]));
	b->n_iov -= i;
	b->n = 1;
	b->bytes = fpdu_size(f) - f->sent;
	return TX_BUILT;
}

/* An FPDU is out as a whole: move on, and complete its message if it was the last of it. */
static void fpdu_out(struct qp *q, const struct tx_fpdu *f)
{
	uint8_t kind = f->at.kind;
	bool last = f->after.off == 0;

	q->tx.cur = f->after;
	if (!last)
		return;
	if (kind == TX_REQUEST) {
		struct wqe *w = wq_at(&q->sq, f->at.next_wqe);

		if (is_read(w))
			w->state = WQE_WAITING;
		else
			qp_finish(q, f->at.next_wqe, FLUE_WC_SUCCESS);
	} else if (kind == TX_RESPONSE) {
		q->irq_head++;
	}
}

/* TCP took n octets of the batch. */
static void account(struct qp *q, struct tx_batch *b, size_t n)
{
	q->tx.has_part = false;
	for (uint32_t i = 0; i < b->n && q->io.fd >= 0; i++) {
		struct tx_fpdu *f = &b->fpdu[i];
		size_t left = fpdu_size(f) - f->sent;

		if (n < left) {
			if (n || f->sent) {
				f->sent += n;
				q->tx.part = *f;
				q->tx.has_part = true;
			}
			return;
		}
		n -= left;
		fpdu_out(q, f);
	}
}

static ssize_t transmit(struct qp *q, struct tx_batch *b)
{
	struct msghdr msg = { .msg_iov = b->iov, .msg_iovlen = b->n_iov };
	ssize_t n;

	tsan_sends(q->io.fd);
	do {
		if (b->n_iov == 1)
			n = send(q->io.fd, b->iov->iov_base, b->iov->iov_len,
				 MSG_DONTWAIT | MSG_NOSIGNAL);
		else
			n = sendmsg(q->io.fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
	} while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : n;
}

static void release(struct qp *q, struct tx_batch *b, struct engine_buf *old)
{
	struct engine_buf *kept = q->tx.has_part ? q->tx.part.stage : NULL;

	while (b->n_ref)
		mem_put(b->ref[--b->n_ref]);
	if (b->stage && b->stage != kept)
		engine_buf_put(q->engine, b->stage);
	if (old && old != kept)
		engine_buf_put(q->engine, old);
}

/* Requests that send nothing, done when everything before them is out. */
static bool run_local(struct qp *q)
{
	struct tx_cursor *c = &q->tx.cur;
	struct mem_table *t = &q->rnic->mem;
	uint32_t status = 0, n = c->next_wqe;
	struct wqe *w;
	bool bad;

	if (q->state != QPS_RTS || q->tx.held || q->tx.has_part || c->kind != TX_NONE ||
	    c->rtr_owed || request_may_start(q, c, &status) != TX_BUILT)
		return false;
	w = current_wqe(q, c);
	if (!is_local(w))
		return false;
	if (w->op == FLUE_WR_LOCAL_INV)
		bad = mem_invalidate(t, w->rkey, q->pd, q->qpn, false) != MEM_OK;
	else if (w->op == FLUE_WR_FAST_REG)
		bad = mem_fast_register(t, w->rkey, q->pd, &w->reg) != 0;
	else
		bad = mem_bind(t, w->rkey, q->pd, q->qpn, &w->reg) != 0;
	c->next_wqe++;
	if (bad)
		qp_fail_request(q, n, FLUE_WC_BIND);
	else
		qp_finish(q, n, FLUE_WC_SUCCESS);
	return true;
}

/* The first thing in the queue cannot be sent. */
static void refuse(struct qp *q, enum tx_stop stop, uint32_t status)
{
	uint32_t n = q->tx.has_part ? q->tx.part.at.next_wqe : q->tx.cur.next_wqe;
	bool torn = q->tx.has_part;

	if (stop == TX_BAD_SOURCE) {
		if (!torn) {
			qp_fault(q, FAULT_RDMAP_STAG, NULL, 0, 0, NULL);
			return;
		}
	} else if (!torn) {
		q->tx.cur.kind = TX_NONE;
		q->tx.cur.off = 0;
		q->tx.cur.next_wqe = n + 1;
		qp_fail_request(q, n, status);
		return;
	} else {
		qp_finish(q, n, status);
	}
	/* An FPDU is half out and its rest is gone: no Terminate can be framed any more. */
	qp_apply(q, QPE_LOCAL_FAIL, FLUE_CLOSE_LOCAL, EFAULT);
}

static void block(struct qp *q)
{
	int rc;

	q->tx.blocked = true;
	rc = engine_watch(q->engine, &q->io, EPOLLIN | EPOLLOUT);
	if (rc)
		qp_apply(q, QPE_LOCAL_FAIL, FLUE_CLOSE_LOCAL, (uint32_t)-rc);
}

/* Fills a batch: first what is left of a torn FPDU, then as much as may go. */
static enum tx_stop fill(struct qp *q, struct tx_batch *b, uint32_t *status)
{
	struct tx_cursor c = q->tx.has_part ? q->tx.part.after : q->tx.cur;
	enum tx_stop stop = TX_BUILT;

	b->n = b->n_iov = b->n_ref = 0;
	b->bytes = b->stage_used = 0;
	b->stage = NULL;
	if (q->tx.has_part)
		stop = resume_part(q, b, status);
	while (stop == TX_BUILT && b->n < BATCH_FPDUS && b->bytes < BATCH_BYTES)
		stop = build(q, &c, b, status);
	return stop;
}

/* Nothing could be built: is that a failure? true: something changed, try again. */
static bool handle_empty(struct qp *q, enum tx_stop stop, uint32_t status)
{
	switch (stop) {
	case TX_NO_MEMORY: qp_apply(q, QPE_LOCAL_FAIL, FLUE_CLOSE_LOCAL, ENOMEM); return false;
	case TX_BAD_REQUEST:
	case TX_BAD_SOURCE: refuse(q, stop, status); return true;
	default: return false;
	}
}

/* Sends one batch. false: nothing more can be done now. */
static bool send_batch(struct qp *q)
{
	struct engine_buf *old = q->tx.has_part ? q->tx.part.stage : NULL;
	enum tx_stop stop;
	uint32_t status = 0;
	/* Nothing below sends for another queue pair of the engine before this is done with. */
	struct tx_batch *b = q->engine->scratch;
	ssize_t n;

	stop = fill(q, b, &status);
	if (b->n == 0) {
		release(q, b, NULL);
		return handle_empty(q, stop, status);
	}
	n = transmit(q, b);
	if (n > 0)
		account(q, b, (size_t)n);
	release(q, b, old);
	if (n >= 0 && (size_t)n == b->bytes)
		return true;
	if (n == -EFAULT) {
		stop = b->fpdu[0].at.kind == TX_RESPONSE ? TX_BAD_SOURCE : TX_BAD_REQUEST;
		refuse(q, stop, FLUE_WC_LOCAL_PROTECTION);
		return true;
	}
	if (n < 0 && n != -EAGAIN)
		qp_llp_error(q, (int)-n);
	else if (q->io.fd >= 0)
		block(q);
	return false;
}

/* Looked at before anything else: this is most often called when there is nothing to do. */
static bool may_send(const struct qp *q)
{
	const struct tx_cursor *c = &q->tx.cur;

	if (q->io.fd < 0 || q->tx.blocked)
		return false;
	return c->next_wqe != atomic_load_explicit(&q->sq.tail, memory_order_acquire) ||
	       c->irq_next != q->irq_tail || q->tx.has_part || c->rtr_owed ||
	       (q->tx.term_owed && !c->over);
}

void qp_tx_run(struct qp *q)
{
	if (q->tx.busy)
		return;
	q->tx.busy = true;
	while (may_send(q) && (run_local(q) || send_batch(q)))
		;
	q->tx.busy = false;
	if (q->io.fd < 0 || !q->tx.fin_wanted || q->tx.fin_sent || q->tx.blocked)
		return;
	if (!q->tx.has_part && (!q->tx.term_owed || q->tx.cur.over)) {
		q->tx.fin_sent = true;
		/* Without a FIN the peer would wait for us, and we for it. ENOTCONN: it was reset. */
		if (shutdown(q->io.fd, SHUT_WR) < 0)
			qp_llp_error(q, errno == ENOTCONN ? ECONNRESET : errno);
	}
}

void qp_tx_reset(struct qp *q)
{
	if (q->tx.has_part && q->tx.part.stage)
		engine_buf_put(q->engine, q->tx.part.stage);
	q->tx.has_part = false;
	q->tx.blocked = false;
	q->tx.term_owed = false;
	q->tx.fin_wanted = false;
	q->tx.cur.kind = TX_NONE;
	q->tx.cur.rtr_owed = false;
	q->irq_head = q->irq_tail = q->tx.cur.irq_next;
	q->orq_head = q->tx.cur.orq_tail;
}
