/* SPDX-License-Identifier: MIT */
/* The queue pair's machine: entering RTS, the steps and their actions, the end of the stream. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/probe.h"
#include "base/util.h"
#include "rnic/bringup.h"
#include "rnic/cep.h"
#include "rnic/full.h"
#include "rnic/link.h"
#include "rnic/qp.h"
#include "rnic/qp_priv.h"
#include "rnic/qp_sched.h"
#include "rnic/ud.h"

_Static_assert((int)QPS_IDLE == (int)FLUE_QP_IDLE && (int)QPS_ERROR == (int)FLUE_QP_ERROR,
	       "the machine's states are the public ones");

/* ---- patience ---- */

/*
 * Two courtesies to peers that are not quite ready when they say so, both seen with Linux siw.
 *
 * Lenient responder: siw's initiator reports an error when octets follow its reply before it has
 * moved its queue pair, so what we send first waits a moment.
 *
 * Initiator: siw's responder installs its receive callback after it has sent the reply, and what
 * arrives in between lies unseen until more comes. A zero-length Write moves nothing and may be
 * sent at any time; a few of them, while the peer is silent, wake it.
 */
#define CLOSE_TIMEOUT_MS 2000 /* where no disconnect() gave another */
#define LENIENT_DELAY_MS 200
#define NUDGE_DELAY_MS   250
#define NUDGES           3

static void be_patient(struct qp *q)
{
	if (q->tx.held && q->tx.lenient) {
		q->tx.held = false;
	} else if (q->tx.full.paused) {
		full_resume(q);
	} else if (q->tx.full.close_wanted) {
		qp_apply(q, QPE_CLOSE_BUSY, FLUE_CLOSE_LOST, ETIMEDOUT);
		return;
	} else if (!q->rx.any && q->tx.nudges) {
		q->tx.nudges--;
		q->tx.cur.rtr_owed = true;
		engine_timer_arm(q->engine, &q->timer, NUDGE_DELAY_MS);
	}
	link_kick(q->link);
}

void qp_fire_timer(struct engine_timer *t)
{
	struct qp *q = container_of(t, struct qp, timer);

	if (q->state == QPS_RTS)
		be_patient(q);
	else if (q->state == QPS_IDLE)
		bringup_give_up(q);
	else
		qp_apply(q, QPE_TIMEOUT, FLUE_CLOSE_LOST, ETIMEDOUT);
}

/* ---- steps ---- */

void qp_drop_link(struct qp *q, enum link_end how)
{
	engine_timer_stop(q->engine, &q->timer);
	engine_timer_stop(q->engine, &q->watch);
	if (!link_is_open(q->link))
		return;
	if (q->link->ops->poll)
		engine_remove_link(q->engine, q->link);
	q->link->ops->close(q->link, how);
	qp_sched_reset(q);
}

bool qp_is_idle(const struct qp *q)
{
	const struct tx_cursor *c = &q->tx.cur;

	return wq_fill((struct wq *)&q->sq) == 0 && q->orq_head == c->orq_tail &&
	       q->irq_head == q->irq_tail && c->kind == TX_NONE && !c->rtr_owed;
}

static void tell_last(struct qp *q)
{
	q->last_owed = true;
	engine_tell(q->engine, &q->note_down);
}

static void tell_end(struct qp *q)
{
	if (q->doomed)
		return;
	if (q->srq && q->state == QPS_ERROR)
		tell_last(q);
	if (q->connected) {
		q->connected = false;
		q->down_owed = true;
		q->down_reason = q->reason;
		q->down_detail = q->detail;
		q->ev_fault = q->fault;
		engine_tell(q->engine, &q->note_down);
	} else if (q->cep) {
		/* The responder's set-up was not finished: this is a failed connection. */
		cep_stream_lost(q->cep, q->reason == FLUE_CLOSE_LOST ? (int)q->detail : ECONNRESET);
	}
}

/* What the program sees, where it has a say in it. */
static uint8_t shown_state(const struct qp *q)
{
	bool up = q->state == QPS_RTS || (q->bringup && q->state == QPS_IDLE);

	if (q->ud)
		return q->ud->state;
	if (up && q->sqd)
		return FLUE_QP_SQD;
	if (!q->bringup)
		return q->state;
	return up ? q->bringup->state : FLUE_QP_ERROR;
}

void qp_set_state(struct qp *q, uint8_t state)
{
	q->state = state;
	if (q->bringup || q->sqd || q->ud)
		state = shown_state(q);
	/* In total order with the queues' counters: either a receive posted just now is seen by the
	 * flush that follows, or its poster sees this and asks for another. */
	__atomic_store_n(q->state_word, state, __ATOMIC_SEQ_CST);
}

static void keep_reason(struct qp *q, uint32_t reason, uint32_t detail)
{
	bool answering = q->state == QPS_CLOSING && atomic_load(&q->peer_closed);

	/* What goes wrong while we answer the peer's close makes it a bad one. */
	if (answering && (reason == FLUE_CLOSE_RESET || reason == FLUE_CLOSE_LOST))
		reason = FLUE_CLOSE_BAD;
	q->reason = reason;
	q->detail = detail;
}

/* One step: the state and what belongs to it. What may raise events is left to qp_apply(). */
static uint16_t step(struct qp *q, const struct inbox_event *ev)
{
	struct fsm_edge edge = qp_fsm_step(q->state, ev->event);
	uint8_t before = q->state;

	if (edge.next == QPS_ILLEGAL) {
		rnic_illegal(q->rnic);
		return QPA_NONE;
	}
	/* The first cause counts: what follows a Terminate is its consequence. */
	if (before != QPS_TERMINATE && edge.next != before)
		keep_reason(q, ev->reason, ev->detail);
	PROBE(qp_state, q->owner, (uint32_t)before, (uint32_t)edge.next, (uint32_t)ev->event);
	if (edge.next != before)
		log_debug(rnic, "queue pair %u: %s in %s: now %s", qp_number(q),
			  fsm_event_name(&qp_fsm, ev->event), fsm_state_name(&qp_fsm, before),
			  fsm_state_name(&qp_fsm, edge.next));
	qp_set_state(q, edge.next);
	if (edge.actions & QPA_STOP)
		engine_timer_stop(q->engine, &q->timer);
	if (edge.actions & QPA_TERM)
		q->tx.term_owed = true;
	if (edge.actions & QPA_FIN)
		q->tx.fin_wanted = q->tx.full.ack_now =
			true; /* the last chance to tell what is done */
	if (edge.actions & QPA_TIMER)
		engine_timer_arm(q->engine, &q->timer, (uint64_t)q->close_timeout_ms);
	if (edge.actions & (QPA_RESET | QPA_CLOSE))
		qp_drop_link(q, edge.actions & QPA_RESET ? LINK_RESET : LINK_CLOSE);
	if (edge.actions & (QPA_FLUSH | QPA_FLUSH_RQ))
		qp_flush(q, edge.actions & QPA_FLUSH);
	return (uint16_t)edge.actions;
}

void qp_apply(struct qp *q, enum qp_fsm_event e, uint32_t reason, uint32_t detail)
{
	struct inbox_event ev = { .event = (uint8_t)e, .reason = reason, .detail = detail };
	uint16_t actions = 0;

	if (!inbox_post(&q->inbox, &ev)) {
		rnic_lost_event(q->rnic, &q->inbox);
		return;
	}
	while (inbox_take(&q->inbox, &ev))
		actions |= step(q, &ev);
	/* From here on events are steps of their own. */
	if (actions & QPA_FIN)
		link_kick(q->link);
	/* Behind everything that came with the end, so that the last word is told. */
	if (actions & QPA_TELL)
		tell_end(q);
	else if (q->bringup && q->srq && actions & QPA_FLUSH) /* in error, without a link */
		tell_last(q);
}

void qp_fault(struct qp *q, uint32_t fault, const uint8_t *ulpdu, size_t have, size_t ulpdu_len,
	      const struct ddp_segment *seg)
{
	/* A peer can bring this about as often as it likes, and the engine's lock is held: it is logged
	 * with the end of the connection. */
	if (!q->fault)
		q->fault = fault;
	if (q->state == QPS_RTS && !full_refuse(q, fault, seg))
		rdmap_terminate_for(&q->tx.term, fault, ulpdu, have, ulpdu_len, seg);
	qp_apply(q, QPE_FAULT, FLUE_CLOSE_FAULT, fault & 0xffff);
}

void qp_fail_request(struct qp *q, uint32_t n, uint32_t status)
{
	qp_finish(q, n, status);
	qp_fault(q, FAULT_RDMAP_CATASTROPHIC, NULL, 0, 0, NULL);
}

/* A queue pair that modify() has brought up stays as it is. */
static bool outlives_link(struct qp *q, int err)
{
	if (!q->bringup || q->state != QPS_RTS)
		return false;
	qp_apply(q, QPE_LINK_GONE, 0, 0);
	if (q->cep) /* it had hardly begun */
		cep_stream_lost(q->cep, err);
	else
		bringup_link_gone(q);
	return true;
}

void qp_link_failed(struct qp *q, int err)
{
	if (outlives_link(q, err))
		return;
	/* EPIPE is how Linux words a reset that came after the peer's FIN. */
	if (err == ECONNRESET || err == EPIPE)
		qp_apply(q, QPE_LLP_RESET, FLUE_CLOSE_RESET, ECONNRESET);
	else
		qp_apply(q, QPE_LLP_LOST, FLUE_CLOSE_LOST, (uint32_t)err);
}

void qp_link_starved(struct qp *q, int err)
{
	if (q->bringup)
		qp_tell(q, FLUE_EVENT_QP_ERROR);
	qp_apply(q, QPE_LOCAL_FAIL, FLUE_CLOSE_LOCAL, (uint32_t)err);
}

void qp_link_over(struct qp *q)
{
	qp_apply(q, QPE_LLP_CLOSED, FLUE_CLOSE_GRACEFUL, 0);
}

/* The peer has closed its direction, in order and with nothing outstanding. */
static void peer_closed(struct qp *q)
{
	if (q->state == QPS_RTS)
		atomic_store(&q->peer_closed, true);
	qp_apply(q, QPE_FIN_IDLE, FLUE_CLOSE_GRACEFUL, 0);
	if (q->state == QPS_CLOSING && link_is_open(q->link))
		q->link->ops->await_end(q->link);
}

void qp_link_ended(struct qp *q, bool whole)
{
	if (outlives_link(q, ECONNRESET))
		return;
	if (!whole)
		qp_apply(q, QPE_LLP_LOST, FLUE_CLOSE_LOST, ECONNRESET);
	else if (qp_is_idle(q) && !q->rx.have_wqe && !q->rx.in_write) /* nor inside a message */
		peer_closed(q);
	else
		qp_apply(q, QPE_FIN_BUSY, FLUE_CLOSE_BAD, 0);
}

/* ---- entering RTS ---- */

static int make_rings(struct qp *q, const struct mpa_terms *t, bool initiator)
{
	q->tx.cur.kind = TX_NONE;
	q->irq_head = q->irq_tail = q->orq_head = q->tx.cur.orq_tail = 0;
	if (q->bringup)
		return bringup_read_rings(q, t, initiator);
	return qp_limit_reads(q, t->ird, t->ord);
}

/* Where both directions begin. */
static void begin(struct qp *q, const struct qp_start *start)
{
	const struct mpa_terms *t = start->terms;

	atomic_store(&q->service, t->full          ? SERVICE_FULL
				  : start->rfc7306 ? SERVICE_RFC7306
						   : SERVICE_STRICT);
	q->deny_stream = start->deny;
	if (start->deny) /* an atomic reads and writes */
		q->deny_stream |= FLUE_REMOTE_ATOMIC;
	q->deny = q->deny_always | q->deny_stream;
	memset(&q->tx, 0, sizeof(q->tx));
	q->tx.cur.msn_send = q->tx.cur.msn_read = q->tx.cur.msn_atomic = 1;
	q->tx.cur.msn_control = 1;
	q->tx.cur.next_wqe = q->tx.full.ack_wqe = q->tx.full.farthest = atomic_load(&q->sq.head);
	q->tx.cur.rtr_owed = start->initiator && t->p2p;
	q->tx.rtr = t->rtr;
	q->tx.held = !start->initiator;
	q->tx.lenient = start->lenient;
	memset(&q->rx, 0, sizeof(q->rx));
	q->rx.msn_send = q->rx.msn_read = q->rx.msn_term = q->rx.msn_atomic = 1;
	q->rx.msn_control = 1;
	q->rx.rtr_send = !start->initiator && t->rtr == MPA_RTR_SEND;
	q->close_timeout_ms = CLOSE_TIMEOUT_MS;
	q->reason = q->detail = q->fault = 0;
	if (!q->bringup)
		q->sqd = q->tell_drained = false;
	atomic_store(&q->peer_closed, false);
	atomic_store(&q->late, false);
}

static void take_link(struct qp *q, struct link *link)
{
	if (q->link)
		q->link->ops->destroy(q->link); /* of the connection before */
	q->link = link;
	link->open = true;
	if (link->ops->poll)
		engine_add_link(q->engine, link);
}

int qp_establish(struct qp *q, const struct qp_start *start, struct link *link)
{
	const struct mpa_terms *t = start->terms;
	int rc = make_rings(q, t, start->initiator);

	if (rc)
		return rc;
	engine_timer_stop(q->engine, &q->timer);
	take_link(q, link);
	begin(q, start);
	qp_apply(q, QPE_ESTABLISH, 0, 0);
	if (q->tx.held && start->lenient) {
		engine_timer_arm(q->engine, &q->timer, LENIENT_DELAY_MS);
	} else if (start->initiator && t->rtr == MPA_RTR_WRITE && !t->own_peer) {
		q->tx.nudges = NUDGES;
		engine_timer_arm(q->engine, &q->timer, NUDGE_DELAY_MS);
	}
	link->ops->start(link);
	return 0;
}
