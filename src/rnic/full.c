/* SPDX-License-Identifier: MIT */
#include "rnic/full.h"

#include <errno.h>

#include "base/clock.h"
#include "base/util.h"
#include "rnic/bringup.h"
#include "rnic/link.h"
#include "rnic/qp_priv.h"
#include "wire/control.h"

/* So many requests are not told of for want of company, at most. */
#define ACK_AT_LEAST 16

/* ---- requester: done ---- */

void full_look_closed(struct qp *q)
{
	if (!q->tx.full.close_wanted || !qp_is_idle(q))
		return;
	q->tx.full.close_wanted = false;
	qp_apply(q, QPE_CLOSE_IDLE, FLUE_CLOSE_GRACEFUL, 0);
}

uint32_t full_acked(struct qp *q, uint32_t number)
{
	struct full_tx *f = &q->tx.full;
	/* Who dropped a message has not done those behind it. */
	uint32_t most = f->go_back ? f->back_to : q->tx.cur.number;

	if (full_distance(number, f->acked) < 0 || full_distance(most, number) < 0)
		return FAULT_RDMAP_OTHER;
	if (number == f->acked)
		return WIRE_OK;
	f->acked = number;
	f->rnr_tries = 0;
	for (; f->ack_wqe != q->tx.cur.next_wqe; f->ack_wqe++) {
		struct wqe *w = wq_at(&q->sq, f->ack_wqe);

		if (qp_wqe_is_local(w))
			continue;
		if (full_distance(w->number, number) >= 0)
			break;
		if (!qp_wqe_is_answered(w))
			w->state = WQE_DONE;
	}
	qp_complete_ready(q);
	full_look_closed(q);
	return WIRE_OK;
}

void full_ask(struct qp *q, uint32_t number)
{
	if (q->tx.full.asked == number)
		return;
	q->tx.full.asked = number;
	q->tx.full.asks++;
}

bool full_closes(struct qp *q)
{
	const struct tx_cursor *c = &q->tx.cur;
	struct full_tx *f = &q->tx.full;
	bool out = c->next_wqe == atomic_load_explicit(&q->sq.tail, memory_order_acquire) &&
		   c->kind == TX_NONE && !c->imm_owed;

	/* Out, or out once already: the peer was not ready. */
	if (!qp_is_full(q) || (!out && !f->paused) || q->orq_head != c->orq_tail ||
	    q->irq_head != q->irq_tail)
		return false;
	f->close_wanted = true;
	full_ask(q, c->number);
	if (!f->paused) /* else it runs for that, and then for this */
		engine_timer_arm(q->engine, &q->timer, (uint64_t)q->close_timeout_ms);
	link_kick(q->link);
	return true;
}

/* There is no such request: the peer speaks of what never was. */
static bool is_nothing(struct qp *q, uint32_t wqe)
{
	return wqe == atomic_load_explicit(&q->sq.tail, memory_order_acquire);
}

/* ---- requester: is anybody there? ---- */

uint64_t full_patience_ns(const struct qp *q)
{
	/* 4.096 us, doubled as often as the code says. */
	return (4096ull << q->timeout) * (q->retries + 1u);
}

uint64_t full_patience_ms(const struct qp *q)
{
	return (full_patience_ns(q) + NSEC_PER_MSEC - 1) / NSEC_PER_MSEC;
}

/* The peer's process may be slow, or stopped: then its host answers for it. */
void full_fire_watch(struct engine_timer *t)
{
	struct qp *q = container_of(t, struct qp, watch);
	bool waits = wq_fill(&q->sq) && q->timeout;

	if (!link_is_open(q->link) || q->state != QPS_RTS)
		return;
	if (q->link->ops->silence(q->link, waits) < full_patience_ms(q)) {
		if (waits)
			engine_timer_arm(q->engine, &q->watch, full_patience_ms(q));
		return;
	}
	wq_at(&q->sq, atomic_load(&q->sq.head))->status = FLUE_WC_RETRY_EXCEEDED;
	qp_link_failed(q, ETIMEDOUT);
	if (q->bringup && q->state == QPS_IDLE)
		bringup_give_up(q);
}

/* ---- requester: going back ---- */

/* Messages of a request. */
static uint32_t messages(const struct wqe *w)
{
	if (qp_wqe_is_local(w))
		return 0;
	return w->op == FLUE_WR_WRITE_IMM ? 2 : 1;
}

/* *c before a request that it is behind. */
static void step_back(struct qp *q, struct tx_cursor *c)
{
	struct wqe *w = wq_at(&q->sq, --c->next_wqe);

	c->number -= messages(w);
	if (qp_wqe_is_answered(w)) {
		c->msn_read--;
		c->orq_tail--;
	} else if (!qp_wqe_is_local(w) && w->op != FLUE_WR_WRITE) {
		c->msn_send--;
	}
	if (!qp_wqe_is_local(w))
		w->state = WQE_POSTED;
}

uint32_t full_begun(const struct qp *q)
{
	const struct tx_cursor *c = &q->tx.cur;
	uint32_t now = c->next_wqe + (c->kind == TX_REQUEST || c->imm_owed);

	return full_distance(q->tx.full.farthest, now) > 0 ? q->tx.full.farthest : now;
}

/*
 * The cursor to the message back_to, which begins again. A response that is under way goes on; a request that is gets
 * cut off, which the peer does not see, as it drops it.
 */
void full_go_back(struct qp *q)
{
	struct tx_cursor *c = &q->tx.cur;
	struct full_tx *f = &q->tx.full;

	f->go_back = false;
	f->asked =
		f->back_to; /* what was asked while the peer dropped everything was for nothing */
	f->farthest = full_begun(q);
	if (c->kind == TX_REQUEST) {
		c->kind = TX_NONE;
		c->off = 0;
	}
	if (c->imm_owed) { /* the Write before it is out */
		c->imm_owed = false;
		c->number--;
	}
	while (full_distance(c->number, f->back_to) > 0 && c->next_wqe != f->ack_wqe)
		step_back(q, c);
	/* Of a Write with immediate data only those are to come again. */
	if (c->number != f->back_to) {
		c->number = f->back_to;
		c->imm_owed = true;
	}
}

static uint32_t hold_back(struct qp *q, const struct control *w)
{
	struct full_tx *f = &q->tx.full;
	uint32_t fault = full_acked(q, w->number);
	bool again = w->code == CONTROL_AGAIN;

	/* It drops what we send: there can be no other word of this kind. */
	if (fault || f->paused || is_nothing(q, f->ack_wqe))
		return FAULT_RDMAP_OTHER;
	if (!again && q->rnr_retries != FULL_RNR_FOR_EVER && f->rnr_tries >= q->rnr_retries) {
		wq_at(&q->sq, f->ack_wqe)->status = FLUE_WC_RECEIVER_NOT_READY;
		qp_apply(q, QPE_LOCAL_FAIL, FLUE_CLOSE_LOCAL, ENOBUFS);
		return WIRE_OK;
	}
	f->rnr_tries += !again;
	f->paused = f->go_back = true;
	f->back_to = w->number;
	engine_timer_arm_ns(q->engine, &q->timer,
			    again ? 0 : control_timer_us(w->code) * NSEC_PER_USEC);
	return WIRE_OK;
}

void full_resume(struct qp *q)
{
	q->tx.full.paused = false;
	q->tx.full.resumes++;
	if (q->tx.full.close_wanted) /* the timer was lent */
		engine_timer_arm(q->engine, &q->timer, (uint64_t)q->close_timeout_ms);
}

/* ---- requester: refused ---- */

/* One of our Reads that waits for its answer: it may be refused after others behind it are done. */
static struct wqe *find_read(struct qp *q, uint32_t number)
{
	for (uint32_t n = q->orq_head; n != q->tx.cur.orq_tail; n++) {
		const struct orq_entry *o = qp_orq(q, n);

		if (!o->rtr && o->number == number)
			return wq_at(&q->sq, o->wqe);
	}
	return NULL;
}

static uint32_t fail(struct qp *q, const struct control *w)
{
	static const uint8_t status[] = { [CONTROL_ACCESS] = FLUE_WC_REMOTE_ACCESS,
					  [CONTROL_REQUEST] = FLUE_WC_REMOTE_REQUEST,
					  [CONTROL_OPERATION] = FLUE_WC_REMOTE_OPERATION };
	struct wqe *blamed = find_read(q, w->number);
	uint32_t fault = full_acked(q, w->number); /* those before it are done */

	if (!blamed && (fault || is_nothing(q, q->tx.full.ack_wqe)))
		return FAULT_RDMAP_OTHER;
	if (!blamed)
		blamed = wq_at(&q->sq, q->tx.full.ack_wqe);
	blamed->status = status[w->code];
	qp_apply(q, QPE_RX_TERM, FLUE_CLOSE_TERMINATED, w->detail);
	return WIRE_OK;
}

/* ---- responder ---- */

static void drop(struct qp *q, uint8_t code)
{
	q->rx.skipping = true;
	q->tx.full.nak = (struct control) { .kind = CONTROL_NOT_READY,
					    .code = code,
					    .number = q->rx.number };
	q->tx.full.naks++;
}

void full_not_ready(struct qp *q)
{
	drop(q, q->min_rnr_timer);
}

void full_again(struct qp *q)
{
	q->rx.filled = 0; /* its receive stays */
	q->rx.in_write = false;
	drop(q, CONTROL_AGAIN);
}

void full_done(struct qp *q, const struct ddp_segment *s)
{
	q->rx.number++;
	if (q->bringup)
		bringup_heard(q);
	if (!s->ack)
		return;
	q->rx.wanted = q->rx.number;
	if (full_distance(q->rx.wanted, q->tx.cur.told) >= ACK_AT_LEAST)
		q->tx.full.ack_now = true; /* with the run that follows what came in */
	else
		engine_later(q->engine, &q->ack_later);
}

/* The last word that this connection hears from us. */
static void refuse(struct qp *q, uint32_t fault, uint32_t number)
{
	static const uint8_t events[] = { [CONTROL_ACCESS] = FLUE_EVENT_QP_ACCESS,
					  [CONTROL_REQUEST] = FLUE_EVENT_QP_REQUEST,
					  [CONTROL_OPERATION] = FLUE_EVENT_QP_ERROR };

	q->tx.full.nak = (struct control) { .kind = CONTROL_ERROR,
					    .code = (uint8_t)control_error_of(fault),
					    .detail = (uint16_t)fault,
					    .number = number };
	q->tx.full.refused = true;
	qp_tell(q, events[q->tx.full.nak.code]);
}

bool full_refuse(struct qp *q, uint32_t fault, const struct ddp_segment *s)
{
	if (!qp_is_full(q) || !s || !s->hdr_len || !rdmap_ops[s->opcode].request)
		return false;
	refuse(q, fault, q->rx.number);
	return true;
}

void full_lost_source(struct qp *q, uint32_t fault)
{
	struct tx_cursor *c = &q->tx.cur;

	if (!qp_is_full(q))
		return;
	refuse(q, fault, qp_irq(q, c->irq_next)->number);
	c->kind = TX_NONE;
	c->off = 0;
	q->irq_head = q->irq_tail = c->irq_next;
}

static bool owes_ack(const struct qp *q, const struct tx_cursor *c)
{
	return full_distance(q->rx.wanted, c->told) > 0;
}

void full_run_ack(struct engine_kick *k)
{
	struct qp *q = container_of(k, struct qp, ack_later);

	q->tx.full.ack_now = owes_ack(q, &q->tx.cur); /* or it has found company */
	if (q->tx.full.ack_now)
		link_kick(q->link);
}

/* While requests are dropped there is nothing to tell: what is asked for comes again, and asks again. */
static uint32_t answer(struct qp *q)
{
	q->rx.wanted = q->rx.number;
	q->tx.full.ack_now = true;
	return WIRE_OK;
}

static uint32_t resume(struct qp *q, const struct control *w)
{
	if (!q->rx.skipping || w->number != q->rx.number)
		return FAULT_RDMAP_OTHER;
	q->rx.skipping = false;
	return WIRE_OK;
}

/* ---- control messages ---- */

bool full_has_word(const struct qp *q, const struct tx_cursor *c)
{
	const struct full_tx *f = &q->tx.full;

	return (c->resumes != f->resumes && !f->go_back) || c->naks != f->naks ||
	       c->asks != f->asks || (f->ack_now && owes_ack(q, c));
}

struct control full_word(const struct qp *q, const struct tx_cursor *c)
{
	const struct full_tx *f = &q->tx.full;

	if (c->resumes != f->resumes && !f->go_back)
		return (struct control) { .kind = CONTROL_RESUME, .number = c->number };
	if (c->naks != f->naks)
		return f->nak;
	if (c->asks != f->asks)
		return (struct control) { .kind = CONTROL_ASK };
	return (struct control) { .kind = CONTROL_ACK, .number = q->rx.number };
}

void full_said(struct tx_cursor *c, const struct control *w)
{
	switch (w->kind) {
	case CONTROL_RESUME: c->resumes++; break;
	case CONTROL_NOT_READY: c->naks++; break;
	case CONTROL_ASK: c->asks++; break;
	case CONTROL_ACK: c->told = w->number; break;
	default: break;
	}
}

uint32_t full_check_control(struct qp *q, const struct ddp_segment *s, const uint8_t *payload)
{
	struct control w;

	if (s->msn != q->rx.msn_control)
		return FAULT_DDP_MSN;
	return control_decode(&w, payload);
}

uint32_t full_deliver_control(struct qp *q, const struct ddp_segment *s, const uint8_t *payload)
{
	struct control w;

	(void)s;
	control_decode(&w, payload);
	q->rx.msn_control++;
	switch (w.kind) {
	case CONTROL_ACK: return full_acked(q, w.number);
	case CONTROL_NOT_READY: return hold_back(q, &w);
	case CONTROL_ERROR: return fail(q, &w);
	case CONTROL_ASK: return answer(q);
	default: return resume(q, &w);
	}
}
