/* SPDX-License-Identifier: MIT */
/*
 * The link through memory: segments go into a duct as they would into FPDUs, and come out of it whole. A message is cut only where it is
 * longer than a record; then the peer copies one part while we copy the next.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "channel/duct.h"
#include "rnic/bringup.h"
#include "rnic/full.h"
#include "rnic/local_priv.h"
#include "rnic/qp_sched.h"
#include "rnic/quick.h"
#include "rnic/rx_segment.h"
#include "rnic/shown.h"
#include "rnic/umem.h"
#include "rnic/view.h"

#define PART (16 * 1024u) /* octets of a message in one record */

_Static_assert(sizeof(struct record_head) + DDP_HDR_MAX + RDMAP_TERMINATE_MAX + PART <=
		       DUCT_RECORD_MAX,
	       "a part is one record");
_Static_assert(sizeof(struct tx_pieces) <= ENGINE_SCRATCH, "they stand in the engine's scratch");

static const struct ddp_params ddp = { .dv = 1, .rv = 1, .full = true };

static struct link_local *local_of(struct link *link)
{
	return container_of(link, struct link_local, link);
}

static struct local_duct *duct_of(const struct link_local *l)
{
	return l->circuit->duct;
}

/* ---- sending ---- */

static void block(struct link_local *l)
{
	struct local_duct *d = duct_of(l);

	l->blocked = true;
	TAILQ_INSERT_TAIL(&d->blocked, l, of_blocked);
	d->n_blocked++;
}

void link_local_unblock(struct link_local *l)
{
	struct local_duct *d = duct_of(l);

	if (!l->blocked)
		return;
	l->blocked = false;
	TAILQ_REMOVE(&d->blocked, l, of_blocked);
	d->n_blocked--;
}

/* Octets off..off+len of the message at *c, to `to`. */
static enum tx_stop copy(struct link_local *l, const struct tx_cursor *c, uint32_t len, uint8_t *to)
{
	struct qp *q = l->link.qp;
	struct tx_pieces *p = q->engine->scratch;
	enum tx_stop stop;

	if (!len)
		return TX_BUILT;
	p->n = p->n_ref = 0;
	stop = qp_sched_gather(q, c, c->off, len, p);
	for (uint32_t i = 0; stop == TX_BUILT && i < p->n; to += p->iov[i++].iov_len) {
		if (umem_read(to, p->iov[i].iov_base, p->iov[i].iov_len))
			stop = c->kind == TX_RESPONSE ? TX_BAD_SOURCE : TX_BAD_REQUEST;
	}
	tx_pieces_put(p, 0);
	return stop;
}

/* The next part goes into the duct, at *c, as places in our memory that the peer reads. TX_NOTHING: it cannot. */
static enum tx_stop build_reference(struct link_local *l, struct tx_cursor *c, struct tx_message *m,
				    uint32_t *n, size_t *size)
{
	size_t hdr = m->seg.tagged ? DDP_TAGGED_LEN : DDP_UNTAGGED_LEN;
	struct reference refs[RNIC_MAX_SGE];
	struct reference_head rh;
	struct record_head *h;
	uint8_t *at;

	*n = min_u32(VIEW_STEP, m->total - c->off);
	rh = (struct reference_head) { .n_refs = link_direct_name(l, c, *n, refs), .total = *n };
	if (!rh.n_refs)
		return TX_NOTHING;
	*size = sizeof(*h) + hdr + sizeof(rh) + rh.n_refs * sizeof(refs[0]);
	h = duct_begin(duct_of(l)->duct, *size);
	if (!h)
		return TX_FULL;
	*h = (struct record_head) { .circuit = l->circuit->peer,
				    .kind = RECORD_DATA,
				    .code = CODE_REFERENCE };
	at = (uint8_t *)(h + 1);
	m->seg.last = c->off + *n == m->total;
	ddp_encode(&ddp, &m->seg, at);
	memcpy(at + hdr, &rh, sizeof(rh));
	memcpy(at + hdr + sizeof(rh), refs, rh.n_refs * sizeof(refs[0]));
	return TX_BUILT;
}

/* The next part goes into the duct, at *c. TX_FULL: there is no room. */
static enum tx_stop build(struct link_local *l, struct tx_cursor *c, struct tx_message *m,
			  uint32_t *n, size_t *size)
{
	size_t hdr = m->seg.tagged ? DDP_TAGGED_LEN : DDP_UNTAGGED_LEN;
	struct record_head *h;
	uint8_t *at;

	/* Behind the word that says how to get at them. */
	if (l->peer_reads && !(l->circuit->owed & 1u << RECORD_GATE) &&
	    m->total - c->off >= REFERENCE_MIN) {
		enum tx_stop stop = build_reference(l, c, m, n, size);

		if (stop != TX_NOTHING)
			return stop;
	}
	*n = min_u32(PART, m->total - c->off);
	*size = sizeof(*h) + hdr + m->fixed_len + *n;
	h = duct_begin(duct_of(l)->duct, *size);
	if (!h)
		return TX_FULL;
	*h = (struct record_head) { .circuit = l->circuit->peer, .kind = RECORD_DATA };
	at = (uint8_t *)(h + 1);
	m->seg.last = c->off + *n == m->total;
	ddp_encode(&ddp, &m->seg, at);
	at += hdr;
	if (m->fixed_len)
		memcpy(at, m->fixed, m->fixed_len);
	return copy(l, c, *n, at + m->fixed_len);
}

/* The short way, for what is small. false: nothing was done. */
static bool send_quick(struct link_local *l)
{
	struct duct *duct = duct_of(l)->duct;
	struct qp *q = l->link.qp;
	struct record_head *h;
	struct ddp_segment s;
	struct wqe *w = quick_next(q, &s);
	size_t size;
	uint8_t *at;

	if (!w)
		return false;
	size = sizeof(*h) + DDP_UNTAGGED_LEN + w->total;
	h = duct_begin(duct, size);
	if (!h)
		return false;
	*h = (struct record_head) { .circuit = l->circuit->peer, .kind = RECORD_DATA };
	at = (uint8_t *)(h + 1);
	ddp_encode(&ddp, &s, at);
	if (!quick_copy(q, w, at + DDP_UNTAGGED_LEN))
		return false;
	duct_post(duct, size);
	quick_out(q, w);
	return true;
}

/* true: something was done, and there may be more. */
static bool send_part(struct link_local *l)
{
	struct qp *q = l->link.qp;
	uint32_t status = 0, n;
	struct tx_cursor at, after;
	struct tx_message m;
	enum tx_stop stop;
	size_t size;

	full_settle(q);
	at = q->tx.cur;
	stop = qp_sched_next(q, &at, &m, &status);
	if (stop == TX_BUILT) {
		status = FLUE_WC_LOCAL_PROTECTION;
		stop = build(l, &at, &m, &n, &size);
		if (stop == TX_FULL) {
			block(l);
			/* It may have come meanwhile; else the peer rings. */
			return !duct_want_room(duct_of(l)->duct) && (link_local_unblock(l), true);
		}
	}
	if (stop == TX_BAD_REQUEST || stop == TX_BAD_SOURCE)
		return qp_sched_refuse(q, stop, status, false);
	if (stop != TX_BUILT)
		return false;
	duct_post(duct_of(l)->duct, size);
	after = at;
	qp_sched_step(&after, &m, n);
	qp_sched_out(q, &at, &after);
	return true;
}

static bool may_send(const struct link_local *l)
{
	return l->link.open && !l->blocked && qp_sched_has_work(l->link.qp);
}

static void kick(struct link *link)
{
	struct link_local *l = local_of(link);

	if (l->busy || duct_of(l)->over)
		return;
	l->busy = true;
	while (may_send(l) && (send_quick(l) || qp_sched_run_local(link->qp) ||
			       link_direct_run(l) || send_part(l)))
		;
	l->busy = false;
	if (link->open && !l->fin_sent && !l->blocked && qp_sched_wants_fin(link->qp)) {
		l->fin_sent = true;
		circuit_owe(l->circuit, RECORD_FIN);
	}
	if (link->open && !duct_of(l)->polling)
		duct_flush(duct_of(l)->duct);
}

/* ---- receiving ---- */

/* A copy of what a record with references says: what is judged is not the peer's to change. false: it cannot be. */
static bool read_references(const uint8_t *record, size_t len, uint8_t head[DDP_HDR_MAX],
			    struct reference_head *rh, struct reference *refs)
{
	uint64_t sum = 0;
	size_t hdr;

	if (len < DDP_TAGGED_LEN)
		return false;
	memset(head, 0, DDP_HDR_MAX);
	memcpy(head, record, min_size(len, DDP_HDR_MAX));
	hdr = ddp_is_tagged(head) ? DDP_TAGGED_LEN : DDP_UNTAGGED_LEN;
	if (!rx_segment_is_bulk(head) || len < hdr + sizeof(*rh))
		return false;
	memcpy(rh, record + hdr, sizeof(*rh));
	if (!rh->n_refs || rh->n_refs > RNIC_MAX_SGE || !rh->total || rh->total > VIEW_STEP ||
	    len != hdr + sizeof(*rh) + rh->n_refs * sizeof(refs[0]))
		return false;
	memcpy(refs, record + hdr + sizeof(*rh), rh->n_refs * sizeof(refs[0]));
	for (uint32_t i = 0; i < rh->n_refs; i++)
		sum += refs[i].length;
	return sum == rh->total;
}

bool link_local_reference(struct link_local *l, const uint8_t *record, size_t len)
{
	struct reference refs[RNIC_MAX_SGE];
	struct qp *q = l->link.qp;
	struct reference_head rh;
	uint8_t head[DDP_HDR_MAX];
	struct ddp_segment s;
	uint32_t fault;
	size_t ulpdu;

	if (!rx_segment_listens(q))
		return true;
	if (!read_references(record, len, head, &rh, refs))
		return false;
	ulpdu = rh.total + (ddp_is_tagged(head) ? DDP_TAGGED_LEN : DDP_UNTAGGED_LEN);
	fault = ddp_decode(&ddp, head, min_size(sizeof(head), ulpdu), ulpdu, &s);
	if (!fault)
		fault = rx_segment_accept(q, &s, NULL);
	if (fault == RX_DROPPED || fault == RX_SKIPPED || (!fault && !rx_segment_listens(q)))
		return true;
	if (!fault)
		fault = link_direct_place(l, &s, refs, rh.n_refs);
	if (fault == RX_AGAIN) {
		l->cannot_read = true;
		circuit_owe(l->circuit, RECORD_GATE);
		full_again(q);
		return true;
	}
	if (!fault)
		fault = rx_segment_deliver(q, &s, NULL);
	if (fault)
		qp_fault(q, fault, head, min_size(sizeof(head), ulpdu), ulpdu, &s);
	return true;
}

/* What is judged, `have` octets at `head`, is not the peer's to change any more. */
static void take_segment(struct qp *q, const struct ddp_segment *s, uint32_t fault,
			 const uint8_t *head, size_t have, const uint8_t *ulpdu, size_t len)
{
	const uint8_t *payload;

	/* Of messages with bytes to place only the header is judged; others are all in the copy. */
	payload = fault || !rx_segment_is_bulk(head) ? head + s->hdr_len : ulpdu + s->hdr_len;
	if (!fault && !rx_segment_is_bulk(head) && have < len)
		fault = FAULT_DDP_TOO_LONG;
	if (!fault)
		fault = rx_segment_accept(q, s, payload);
	if (fault == RX_DROPPED || fault == RX_SKIPPED || (!fault && !rx_segment_listens(q)))
		return;
	if (!fault)
		fault = rx_segment_place(q, s, payload);
	if (!fault)
		fault = rx_segment_deliver(q, s, payload);
	if (fault)
		qp_fault(q, fault, head, have, len, s);
}

void link_local_segment(struct link_local *l, const uint8_t *ulpdu, size_t len)
{
	uint8_t head[DDP_HDR_MAX + RDMAP_TERMINATE_MAX];
	size_t have = min_size(len, sizeof(head));
	struct qp *q = l->link.qp;
	struct ddp_segment s;
	uint32_t fault;

	if (!rx_segment_listens(q))
		return;
	memcpy(head, ulpdu, have);
	fault = ddp_decode(&ddp, head, have, len, &s);
	if (fault || !quick_receive(q, &s, ulpdu + s.hdr_len))
		take_segment(q, &s, fault, head, have, ulpdu, len);
}

void link_local_fin(struct link_local *l)
{
	if (l->fin_got)
		return;
	l->fin_got = true;
	circuit_owe(l->circuit, RECORD_TAKEN);
	if (l->link.open)
		qp_link_ended(l->link.qp, true);
}

static void look_for_end(struct link_local *l)
{
	if (l->link.open && l->awaits_end && l->fin_taken)
		qp_link_over(l->link.qp);
}

void link_local_taken(struct link_local *l)
{
	l->fin_taken = l->fin_sent;
	look_for_end(l);
}

void link_local_gone(struct link_local *l)
{
	if (l->link.open)
		qp_link_failed(l->link.qp, ECONNRESET);
}

/* ---- gates ---- */

static struct shown *shown_of(const struct link_local *l)
{
	return duct_of(l)->claimant ? duct_of(l)->engine->mem->shown : NULL;
}

/* The first word of the peer may have come when ours was lost, as there was nobody yet to hear it: it is said again. */
void link_local_gate(struct link_local *l, uint32_t gate, bool reads)
{
	bool first = !l->peer_gate;

	l->peer_gate = gate;
	l->peer_reads = reads && l->gate;
	if (first && l->gate)
		circuit_owe(l->circuit, RECORD_GATE);
}

/* What the peer may not do without us. */
static uint32_t denied(const struct qp *q)
{
	return bringup_listens(q) ? UINT32_MAX : q->deny;
}

static void open_gate(struct link_local *l)
{
	const struct qp *q = l->link.qp;

	if (!shown_of(l))
		return;
	l->gate = shown_open_gate(shown_of(l), l->circuit->number, q->pd, q->qpn, denied(q));
	if (l->gate)
		circuit_owe(l->circuit, RECORD_GATE);
}

static void shut_gate(struct link_local *l)
{
	if (!l->gate)
		return;
	shown_shut_gate(shown_of(l), l->gate);
	shown_give_gate(shown_of(l), l->gate);
	l->gate = 0;
}

static void rights(struct link *link)
{
	struct link_local *l = local_of(link);

	if (!l->gate)
		return;
	shown_shut_gate(shown_of(l), l->gate);
	shown_reopen_gate(shown_of(l), l->gate, l->circuit->number, denied(link->qp));
}

/* ---- the rest ---- */

static void start(struct link *link)
{
	struct local_duct *d = duct_of(local_of(link));

	open_gate(local_of(link));

	/* The peer may have begun before we could know. */
	local_take_in(d);
	if (link->open && local_of(link)->circuit->peer_closed)
		link_local_gone(local_of(link));
	link_kick(link);
}

static void await_end(struct link *link)
{
	struct link_local *l = local_of(link);

	l->awaits_end = true;
	look_for_end(l);
}

/* The end of its process is seen by the duct; the host is ours. */
static uint64_t silence(struct link *link, bool watch)
{
	(void)link;
	(void)watch;
	return 0;
}

static void close_link(struct link *link, enum link_end how)
{
	struct link_local *l = local_of(link);
	struct circuit *k = l->circuit;

	if (!link->open)
		return;
	link->open = false;
	if (how == LINK_ABANDON)
		return;
	link_local_unblock(l);
	shut_gate(l);
	l->circuit = NULL;
	k->link = NULL;
	k->reset = how == LINK_RESET;
	circuit_owe(k, RECORD_CLOSE);
}

static void destroy(struct link *link)
{
	free(local_of(link));
}

static const struct link_ops local_ops = {
	.start = start,
	.kick = kick,
	.await_end = await_end,
	.silence = silence,
	.rights = rights,
	.close = close_link,
	.destroy = destroy,
};

int link_local_create(struct qp *q, struct circuit *k, struct link **out)
{
	struct link_local *l = calloc(1, sizeof(*l));

	if (!l)
		return -ENOMEM;
	l->link.ops = &local_ops;
	l->link.kind = FLUE_LINK_LOCAL;
	l->link.qp = q;
	l->circuit = k;
	k->link = l;
	*out = &l->link;
	return 0;
}

void link_local_return(struct link *link)
{
	struct link_local *l = local_of(link);

	l->circuit->link = NULL;
	free(l);
}
