/* SPDX-License-Identifier: MIT */
/* Queue pairs: life, what is told of them, and the calls that end a connection. */
#include "rnic/qp.h"

#include <errno.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/util.h"
#include "rnic/bringup.h"
#include "rnic/cep.h"
#include "rnic/full.h"
#include "rnic/qp_priv.h"
#include "rnic/rendezvous.h"
#include "rnic/ud.h"

/* ---- telling ---- */

static void tell_down(struct qp *q, const struct flue_event *ev, uint32_t fault)
{
	if (fault)
		log_error(rnic, "queue pair %u: fault %#x (layer, type, code)", qp_number(q),
			  fault & 0xffff);
	q->rnic->up->qp_event(q->rnic->up_ctx, q->owner, ev, NULL);
}

static void run_down(struct engine_note *n)
{
	struct qp *q = container_of(n, struct qp, note_down);
	struct flue_event last = { .type = FLUE_EVENT_LAST_RECEIVE };
	struct flue_event down = { .type = FLUE_EVENT_DISCONNECTED };
	bool tell_last, tell_end;
	uint32_t fault;

	engine_lock(q->engine);
	tell_last = q->last_owed;
	tell_end = q->down_owed;
	down.reason = q->down_reason;
	down.detail = q->down_detail;
	fault = q->ev_fault;
	q->last_owed = q->down_owed = false;
	engine_unlock(q->engine);
	if (tell_last)
		q->rnic->up->qp_event(q->rnic->up_ctx, q->owner, &last, NULL);
	if (tell_end)
		tell_down(q, &down, fault);
}

static void run_up(struct engine_note *n)
{
	struct qp *q = container_of(n, struct qp, note_up);
	struct qp_news *news;
	bool over;

	/* Who hears of it may begin another set-up at once, but for ACCEPTED, behind which more is to come. */
	engine_lock(q->engine);
	news = q->news;
	over = news->ev.type != FLUE_EVENT_ACCEPTED;
	if (over)
		q->news = NULL;
	engine_unlock(q->engine);
	q->rnic->up->qp_event(q->rnic->up_ctx, q->owner, &news->ev, &news->info);
	if (over)
		free(news);
}

int qp_await_news(struct qp *q, const struct engine_await *w)
{
	int rc = engine_await(q->engine, &q->note_up, w);

	rnic_stop_driving(q->rnic, q->engine);
	return rc;
}

int qp_expect_news(struct qp *q)
{
	if (!q->news)
		q->news = calloc(1, sizeof(*q->news));
	return q->news ? 0 : -ENOMEM;
}

static void run_async(struct engine_note *n)
{
	struct qp *q = container_of(n, struct qp, note_async);
	uint32_t bits = atomic_exchange(&q->async, 0);

	for (uint32_t type = 0; bits; type++, bits >>= 1) {
		struct flue_event ev = { .type = type };

		if (bits & 1)
			q->rnic->up->qp_event(q->rnic->up_ctx, q->owner, &ev, NULL);
	}
}

_Static_assert(FLUE_EVENT_NTYPES <= 32, "a bit for each");

void qp_tell(struct qp *q, uint32_t type)
{
	if (q->doomed)
		return;
	atomic_fetch_or(&q->async, 1u << type);
	engine_tell(q->engine, &q->note_async);
}

/* ---- life ---- */

static int init_queues(struct qp *q, const struct qp_attr *a)
{
	int rc = wq_init(&q->sq, a->sq_depth, a->sq_sge, a->max_inline);

	if (rc)
		return rc;
	if (a->srq) {
		q->srq_wqe = calloc(1, a->srq->wq.stride);
		rc = q->srq_wqe ? 0 : -ENOMEM;
	} else {
		rc = wq_init_recv(&q->rq, a->rq_depth, a->rq_sge);
	}
	if (rc)
		wq_fini(&q->sq);
	return rc;
}

static void free_queues(struct qp *q)
{
	wq_fini(&q->sq);
	wq_fini(&q->rq);
	free(q->srq_wqe);
}

static void init(struct qp *q, const struct qp_attr *a)
{
	q->rnic = a->pd->rnic;
	q->engine = a->recv_cq->engine;
	q->pd = a->pd;
	q->send_cq = a->send_cq;
	q->recv_cq = a->recv_cq;
	q->srq = a->srq;
	q->owner = a->owner;
	q->state_word = a->state;
	q->signal_all = a->signal_all;
	q->post_early = a->post_early;
	q->kick.run = qp_run_kick;
	q->ack_later.run = full_run_ack;
	q->rnr_retries = FULL_RNR_FOR_EVER;
	q->min_rnr_timer = FULL_RNR_TIMER;
	q->timer.fire = qp_fire_timer;
	q->watch.fire = full_fire_watch;
	q->retries = FULL_RETRIES_MAX;
	q->note_up.run = run_up;
	q->note_down.run = run_down;
	q->note_async.run = run_async;
}

static int give_number(struct qp *q, const struct qp_attr *a)
{
	if (a->ud)
		return ud_create(q);
	return a->bringup ? bringup_create(q) : rendezvous_plain(q->rnic, &q->qpn);
}

int qp_create(const struct qp_attr *a, struct qp **out)
{
	struct qp *q = calloc(1, sizeof(*q));
	int rc;

	if (!q)
		return -ENOMEM;
	rc = init_queues(q, a);
	if (rc) {
		free(q);
		return rc;
	}
	init(q, a);
	rc = give_number(q, a);
	if (rc) {
		free_queues(q);
		free(q);
		return rc;
	}
	qp_set_state(q, QPS_IDLE);
	cq_attach(q->send_cq, q->engine);
	cq_attach(q->recv_cq, q->engine);
	pthread_mutex_lock(&q->rnic->lists);
	LIST_INSERT_HEAD(&q->rnic->qps, q, all);
	pthread_mutex_unlock(&q->rnic->lists);
	*out = q;
	return 0;
}

void qp_destroy(struct qp *q)
{
	bool plain = !q->ud && !q->bringup;

	/* Nobody calls it from here on. */
	if (q->ud)
		ud_destroy(q);
	else if (q->bringup)
		rendezvous_leave(q->rnic, q->qpn);
	engine_lock(q->engine);
	q->doomed = true;
	if (q->cep)
		cep_abandon(q->cep);
	if (q->bringup)
		bringup_destroy(q);
	engine_timer_stop(q->engine, &q->watch);
	qp_drop_link(q, q->state != QPS_IDLE ? LINK_RESET : LINK_CLOSE);
	engine_unkick(q->engine, &q->kick);
	engine_not_later(q->engine, &q->ack_later);
	engine_unlock(q->engine);
	engine_untell(q->engine, &q->note_up);
	engine_untell(q->engine, &q->note_down);
	engine_untell(q->engine, &q->note_async);
	/* It does nothing any more. Its number is another's only when no window knows it. */
	mem_unbind_qp(&q->rnic->mem, q->qpn);
	if (plain)
		rendezvous_leave(q->rnic, q->qpn);
	cq_purge(q->send_cq, q->owner);
	cq_purge(q->recv_cq, q->owner);
	if (q->srq && q->rx.have_wqe)
		wq_free(&q->srq->wq, 0);
	pthread_mutex_lock(&q->rnic->lists);
	LIST_REMOVE(q, all);
	pthread_mutex_unlock(&q->rnic->lists);
	free_queues(q);
	free(q->bringup);
	free(q->news);
	free(q->irq);
	free(q->orq);
	if (q->link)
		q->link->ops->destroy(q->link);
	free(q);
}

/* ---- closing calls ---- */

int qp_disconnect(struct qp *q, int timeout_ms)
{
	int rc = 0;

	engine_lock(q->engine);
	if (q->bringup || q->ud) {
		rc = -ENOTCONN; /* there is nobody to tell */
	} else if (q->cep) {
		cep_abort(q->cep, ECONNABORTED);
	} else if (q->state == QPS_RTS) {
		if (timeout_ms > 0)
			q->close_timeout_ms = timeout_ms;
		if (qp_is_idle(q)) {
			qp_apply(q, QPE_CLOSE_IDLE, FLUE_CLOSE_GRACEFUL, 0);
		} else if (!full_closes(q)) {
			qp_apply(q, QPE_CLOSE_BUSY, FLUE_CLOSE_BAD, EBUSY);
			rc = -EBUSY;
		}
	} else if (!q->connected) {
		rc = -ENOTCONN;
	}
	engine_unlock(q->engine);
	return rc;
}

int qp_terminate(struct qp *q)
{
	int rc = 0;

	engine_lock(q->engine);
	if (q->cep || !q->connected) {
		rc = -ENOTCONN;
	} else {
		if (q->state == QPS_RTS)
			rdmap_terminate_for(&q->tx.term, FAULT_RDMAP_CATASTROPHIC, NULL, 0, 0,
					    NULL);
		qp_apply(q, QPE_TERM_ASK,
			 q->state == QPS_RTS ? FLUE_CLOSE_FAULT : FLUE_CLOSE_ABORTED,
			 q->state == QPS_RTS ? FAULT_RDMAP_CATASTROPHIC & 0xffff : ECONNABORTED);
	}
	engine_unlock(q->engine);
	return rc;
}

int qp_abort(struct qp *q)
{
	int rc = 0;

	engine_lock(q->engine);
	if (q->ud) {
		ud_fail(q);
		engine_unlock(q->engine);
		return 0;
	}
	if (q->cep && q->bringup)
		cep_abandon(q->cep);
	else if (q->cep)
		cep_abort(q->cep, ECONNABORTED);
	else if (!q->connected)
		rc = -ENOTCONN;
	qp_apply(q, QPE_ABORT, FLUE_CLOSE_ABORTED, ECONNABORTED);
	engine_unlock(q->engine);
	return rc;
}

static bool may_reset(struct qp *q)
{
	if (q->state != QPS_ERROR)
		return q->state == QPS_IDLE;
	return wq_fill(&q->sq) == 0 && (q->srq || wq_fill(&q->rq) == 0);
}

int qp_reset(struct qp *q)
{
	int rc = -EBUSY;

	engine_lock(q->engine);
	if (q->ud || q->bringup) {
		if (q->ud)
			ud_reset(q);
		else
			bringup_reset(q);
		rc = 0;
	} else if (!q->cep && may_reset(q)) {
		if (q->state == QPS_IDLE && q->post_early)
			qp_discard(q);
		qp_apply(q, QPE_REINIT, 0, 0);
		rc = 0;
	}
	engine_unlock(q->engine);
	return rc;
}

void qp_fork_child(struct qp *q)
{
	if (link_is_open(q->link))
		q->link->ops->close(q->link, LINK_ABANDON);
	q->connected = false;
	q->timer.at = q->watch.at = 0;
	if (q->bringup)
		q->bringup->redial.at = 0;
	if (q->ud)
		ud_fork_child(q);
	lock_init(&q->sq.lock);
	lock_init(&q->rq.lock);
	qp_set_state(q, QPS_ERROR);
}
