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

_Static_assert(RNIC_MAX_SGE + 1 <= VIEW_PIECES, "a list of pieces, and a last octet");

static bool take(struct link_local *l, uint32_t stag, uint32_t access, uint64_t to, uint32_t length,
		 uint64_t *at)
{
	const struct view_range r = { .gate = l->peer_gate,
				      .circuit = l->circuit->peer,
				      .stag = stag,
				      .access = access,
				      .to = to,
				      .length = length };

	return l->peer_gate && view_take(l->circuit->duct->view, &r, at);
}

/* ---- requests ---- */

static bool write_step(struct link_local *l, const struct wqe *w, uint32_t off, uint32_t n)
{
	struct view *v = l->circuit->duct->view;
	struct qp *q = l->link.qp;
	struct tx_cursor c = q->tx.cur;
	struct tx_pieces *p = q->engine->scratch;
	bool good = false;
	uint64_t at;

	c.kind = TX_REQUEST;
	p->n = p->n_ref = 0;
	if (qp_sched_gather(q, &c, off, n, p) == TX_BUILT && p->n < VIEW_PIECES &&
	    take(l, w->rkey, FLUE_REMOTE_WRITE, w->remote_addr + off, n, &at)) {
		good = view_write(v, p->iov, p->n, at, n, off + n == w->total);
		view_give(v);
	}
	tx_pieces_put(p, 0);
	return good;
}

static bool read_step(struct link_local *l, const struct wqe *w, uint32_t off, uint32_t n)
{
	struct view *v = l->circuit->duct->view;
	struct rx_target t = { .n = 0, .n_ref = 0 };
	bool good = false;
	uint64_t at;

	if (!rx_hold_list(l->link.qp, w, off, n, &t))
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

	if (!l->peer_gate || !l->circuit->duct->view)
		return false;
	w = qp_sched_alone(q);
	if (!w || !w->total)
		return false;
	switch (w->op) {
	case FLUE_WR_WRITE: step = write_step; break;
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
		return FAULT_DDP_CATASTROPHIC;
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
			fault = FAULT_DDP_CATASTROPHIC;
	}
	rx_target_put(&t);
	return fault;
}
