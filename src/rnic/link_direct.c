/* SPDX-License-Identifier: MIT */
/*
 * What a link through memory can do without the peer's engine: one-sided requests, done by who asks, and long parts of messages, which
 * the receiver copies out of the sender's memory.
 *
 * A request is done by ourselves only if everything before it is done, so that nothing overtakes anything: a peer that is not ready, or that
 * invalidates a key, is heard of first. The peer never hears of such a request; it has no number. If it cannot be done here, for whatever reason,
 * it takes the ordinary way, and the peer judges it.
 */
#include "base/util.h"
#include "rnic/local_priv.h"
#include "rnic/mem.h"
#include "rnic/rx_priv.h"
#include "rnic/view.h"

#define SHORT 4096u /* a call of the kernel costs more than the octets of a Write */

_Static_assert(RNIC_MAX_SGE + 1 <= VIEW_PIECES, "a list of pieces, and a last octet");

static struct view_range range_of(const struct link_local *l, uint32_t stag, uint32_t access,
				  uint64_t to, uint32_t length)
{
	return (struct view_range) { .gate = l->peer_gate,
				     .circuit = l->circuit->peer,
				     .stag = stag,
				     .access = access,
				     .to = to,
				     .length = length };
}

static bool take(struct link_local *l, uint32_t stag, uint32_t access, uint64_t to, uint32_t length,
		 uint64_t *at)
{
	const struct view_range r = range_of(l, stag, access, to, length);

	return l->peer_gate && view_take(l->circuit->duct->view, &r, at);
}

/* ---- requests ---- */

/* Octets off..off+n of the request at number `wqe` join the batch. false: they cannot. */
static bool add_piece(struct link_local *l, struct view_batch *b, uint32_t wqe, uint32_t off,
		      uint32_t n, uint64_t at, struct tx_pieces *p)
{
	struct qp *q = l->link.qp;
	struct tx_cursor c = q->tx.cur;
	uint32_t first = p->n;

	c.kind = TX_REQUEST;
	c.next_wqe = wqe;
	return qp_sched_gather(q, &c, off, n, p) == TX_BUILT && p->n - first < VIEW_PIECES &&
	       view_add(l->circuit->duct->view, b, p->iov + first, p->n - first, at, n,
			off + n == wq_at(&q->sq, wqe)->total);
}

static bool write_step(struct link_local *l, const struct wqe *w, uint32_t off, uint32_t n)
{
	struct view *v = l->circuit->duct->view;
	struct qp *q = l->link.qp;
	struct tx_pieces *p = q->engine->scratch;
	struct view_batch b;
	bool good = false;
	uint64_t at;

	p->n = p->n_ref = 0;
	if (take(l, w->rkey, FLUE_REMOTE_WRITE, w->remote_addr + off, n, &at)) {
		view_begin(v, &b);
		good = add_piece(l, &b, q->tx.cur.next_wqe, off, n, at, p) && view_write(v, &b);
		view_give(v);
	}
	tx_pieces_put(p, 0);
	return good;
}

/* Can the request at number n go with that before it? */
static bool goes_along(struct qp *q, const struct wqe *first, uint32_t n)
{
	const struct wqe *w = wq_at(&q->sq, n);

	return n != atomic_load_explicit(&q->sq.tail, memory_order_acquire) && !q->sqd &&
	       w->op == FLUE_WR_WRITE && w->rkey == first->rkey && !(w->flags & FLUE_LOCAL_FENCE) &&
	       w->total && w->total <= SHORT;
}

/* Short Writes that were posted together: one call for all. Returns how many were done; 0: none. */
static uint32_t write_list(struct link_local *l, const struct wqe *w)
{
	struct view *v = l->circuit->duct->view;
	struct qp *q = l->link.qp;
	struct tx_pieces *p = q->engine->scratch;
	uint32_t first = q->tx.cur.next_wqe, n = 1;
	struct view_batch b;
	uint64_t at;

	if (w->total > SHORT || !goes_along(q, w, first + 1) ||
	    !take(l, w->rkey, FLUE_REMOTE_WRITE, w->remote_addr, w->total, &at))
		return 0;
	view_begin(v, &b);
	p->n = p->n_ref = 0;
	if (!add_piece(l, &b, first, 0, w->total, at, p))
		n = 0;
	for (; n && n < VIEW_BATCH && goes_along(q, w, first + n); n++) {
		const struct wqe *next = wq_at(&q->sq, first + n);
		struct view_range r = range_of(l, next->rkey, FLUE_REMOTE_WRITE, next->remote_addr,
					       next->total);

		if (!view_also(v, &r, &at) || !add_piece(l, &b, first + n, 0, next->total, at, p))
			break;
	}
	if (n && !view_write(v, &b))
		n = 0;
	view_give(v);
	tx_pieces_put(p, 0);
	return n;
}

static bool read_step(struct link_local *l, const struct wqe *w, uint32_t off, uint32_t n)
{
	struct view *v = l->circuit->duct->view;
	struct rx_target t = { .n = 0, .n_ref = 0 };
	bool good = false;
	uint64_t at;

	if (!rx_hold_list(l->link.qp, w->sg, off, n, &t))
		return false;
	if (take(l, w->rkey, FLUE_REMOTE_READ, w->remote_addr + off, n, &at)) {
		good = view_read(v, t.iov, t.n, at, n);
		view_give(v);
	}
	rx_target_put(&t);
	return good;
}

static uint32_t finish_read(struct qp *q, const struct wqe *w)
{
	if (w->op == FLUE_WR_READ_INV &&
	    mem_invalidate(&q->rnic->mem, w->sg[0].lkey, q->pd, q->qpn, false) != MEM_OK)
		return FLUE_WC_BIND;
	return FLUE_WC_SUCCESS;
}

bool link_direct_run(struct link_local *l)
{
	struct qp *q = l->link.qp;
	bool (*step)(struct link_local * l, const struct wqe *w, uint32_t off, uint32_t n);
	const struct wqe *w;
	uint32_t done;

	if (!l->peer_gate || !l->circuit->duct->view)
		return false;
	w = qp_sched_alone(q);
	if (!w || !w->total)
		return false;
	switch (w->op) {
	case FLUE_WR_WRITE:
		step = write_step;
		done = write_list(l, w);
		for (uint32_t i = 0; i < done && q->state == QPS_RTS; i++)
			qp_sched_finish(q, FLUE_WC_SUCCESS);
		if (done)
			return true;
		break;
	case FLUE_WR_READ:
	case FLUE_WR_READ_INV: step = read_step; break;
	default: return false;
	}
	for (uint32_t off = 0, n; off < w->total; off += n) {
		n = min_u32(VIEW_STEP, w->total - off);
		if (!step(l, w, off, n))
			return false;
	}
	qp_sched_finish(q, w->op == FLUE_WR_WRITE ? FLUE_WC_SUCCESS : finish_read(q, w));
	return true;
}

/* ---- parts by reference ---- */

uint32_t link_direct_name(struct link_local *l, const struct tx_cursor *c, uint32_t n,
			  struct reference *refs)
{
	struct qp *q = l->link.qp;
	const struct wqe *w = wq_at(&q->sq, c->next_wqe);
	struct tx_pieces *p = q->engine->scratch;
	uint32_t off = c->off, count = 0;
	enum tx_stop stop;

	if (c->kind != TX_REQUEST || w->flags & FLUE_INLINE)
		return 0;
	/* Its keys must be good when it goes out, as if the octets went. */
	p->n = p->n_ref = 0;
	stop = qp_sched_gather(q, c, off, n, p);
	tx_pieces_put(p, 0);
	if (stop != TX_BUILT)
		return 0;
	for (uint32_t i = 0; n; i++) {
		const struct flue_sge *sg = &w->sg[i];
		uint32_t part;

		if (off >= sg->length) {
			off -= sg->length;
			continue;
		}
		part = min_u32(sg->length - off, n);
		refs[count++] = (struct reference) { .key = sg->lkey,
						     .length = part,
						     .to = sg->addr + off };
		n -= part;
		off = 0;
	}
	return count;
}

/* The next `n` octets of a target, from octet `skip` on, as pieces. */
static uint32_t slice(const struct rx_target *t, size_t skip, size_t n, struct iovec *to)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < t->n && n; i++) {
		size_t part;

		if (skip >= t->iov[i].iov_len) {
			skip -= t->iov[i].iov_len;
			continue;
		}
		part = min_size(t->iov[i].iov_len - skip, n);
		to[count++] = (struct iovec) { (char *)t->iov[i].iov_base + skip, part };
		n -= part;
		skip = 0;
	}
	return count;
}

uint32_t link_direct_place(struct link_local *l, const struct ddp_segment *s,
			   const struct reference *refs, uint32_t n_refs)
{
	struct view *v = l->circuit->duct->view;
	struct iovec into[VIEW_PIECES];
	struct rx_target t;
	uint32_t fault;
	size_t done = 0;

	if (!v) /* nobody told it that we can */
		return RX_AGAIN;
	fault = rx_segment_target(l->link.qp, s, 0, s->payload_len, &t);
	if (fault)
		return fault;
	for (uint32_t i = 0; i < n_refs && !fault; done += refs[i++].length) {
		bool good = false;
		uint64_t at;

		if (take(l, refs[i].key, 0, refs[i].to, refs[i].length, &at)) {
			uint32_t n = slice(&t, done, refs[i].length, into);

			good = view_read(v, into, n, at, refs[i].length);
			view_give(v);
		}
		if (!good)
			fault = RX_AGAIN;
	}
	rx_target_put(&t);
	return fault;
}
