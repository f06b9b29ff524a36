/* SPDX-License-Identifier: MIT */
/* Values of a queue pair: changing them, all or nothing, and telling. What brings one up is in bringup.c. */
#include <errno.h>

#include "base/util.h"
#include "rnic/bringup.h"
#include "rnic/cep.h"
#include "rnic/full.h"
#include "rnic/qp.h"
#include "rnic/qp_priv.h"
#include "rnic/rendezvous.h"
#include "rnic/ud.h"
#include "wire/control.h"

#define REMOTE_RIGHTS ((uint32_t)(FLUE_REMOTE_READ | FLUE_REMOTE_WRITE | FLUE_REMOTE_ATOMIC))

/* What every queue pair has; those of full service mean nothing in strict service. */
#define EVERY                                                                             \
	(uint32_t)(FLUE_QPV_STATE | FLUE_QPV_ACCESS | FLUE_QPV_READS | FLUE_QPV_TIMEOUT | \
		   FLUE_QPV_RETRIES | FLUE_QPV_RNR_RETRIES | FLUE_QPV_MIN_RNR_TIMER)
#define CHANGED (EVERY | (uint32_t)FLUE_QPV_TELL_DRAINED)
#define TOLD    (EVERY | (uint32_t)(FLUE_QPV_WORK | FLUE_QPV_LINK))
/* ... and what one has that modify() brings up. */
#define BRINGUP                                                                               \
	(uint32_t)(FLUE_QPV_PORT | FLUE_QPV_PKEY | FLUE_QPV_QKEY | FLUE_QPV_PATH |            \
		   FLUE_QPV_ALT_PATH | FLUE_QPV_MTU | FLUE_QPV_REMOTE_QPN | FLUE_QPV_RQ_PSN | \
		   FLUE_QPV_SQ_PSN)

/* ---- asking ---- */

int qp_query(struct qp *q, struct flue_qp_values *v, uint32_t mask)
{
	/* iWARP alone has no atomics to allow. */
	uint32_t unknown = q->service == SERVICE_STRICT ? (uint32_t)FLUE_REMOTE_ATOMIC : 0;
	struct flue_ah_attr *path = v->path, *alt_path = v->alt_path;

	if (q->ud)
		return ud_query(q, v, mask);
	if (mask & ~(TOLD | (q->bringup ? BRINGUP : 0)) || (mask & FLUE_QPV_ALT_PATH && alt_path))
		return -EOPNOTSUPP;
	engine_lock(q->engine);
	*v = (struct flue_qp_values) { .state = *q->state_word,
				       .access = REMOTE_RIGHTS & ~q->deny_always & ~unknown,
				       .ird = q->ird,
				       .ord = q->ord,
				       .timeout = q->timeout,
				       .retries = q->retries,
				       .rnr_retries = q->rnr_retries,
				       .min_rnr_timer = q->min_rnr_timer,
				       .path = path,
				       .alt_path = alt_path,
				       .llp_open = link_is_open(q->link) || q->cep,
				       .sends = wq_fill(&q->sq),
				       .receives = q->srq ? 0 : wq_fill(&q->rq),
				       .reads_out = qp_reads_out(q) - q->orq_head,
				       .reads_in = q->irq_tail - q->irq_head,
				       .link = link_is_open(q->link) ? q->link->kind : 0 };
	if (q->bringup)
		bringup_query(q, v, mask);
	engine_unlock(q->engine);
	return 0;
}

/* ---- draining ---- */

/* Of what had begun nothing is left to do. */
static bool is_drained(struct qp *q)
{
	return !link_is_open(q->link) || full_distance(atomic_load(&q->sq.head), q->drain_to) >= 0;
}

void qp_look_drained(struct qp *q)
{
	if (!q->tell_drained || !is_drained(q))
		return;
	q->tell_drained = false;
	qp_tell(q, FLUE_EVENT_SQ_DRAINED);
}

static void drain(struct qp *q, bool tell)
{
	q->sqd = true;
	q->drain_to = full_begun(q);
	q->tell_drained = tell;
	qp_set_state(q, q->state);
	if (qp_is_full(q) && link_is_open(q->link))
		full_ask(q, q->tx.cur.number); /* somebody waits for it */
	link_kick(q->link);
	qp_look_drained(q);
}

static void undrain(struct qp *q)
{
	q->sqd = q->tell_drained = false;
	qp_set_state(q, q->state);
	qp_run_kick(&q->kick);
}

/* ---- changing ---- */

/* Is one of our Reads or atomics on the wire, or posted? */
static bool is_reading(struct qp *q)
{
	uint32_t tail = atomic_load_explicit(&q->sq.tail, memory_order_acquire);

	for (uint32_t n = atomic_load(&q->sq.head); n != tail; n++) {
		if (qp_wqe_is_answered(wq_at(&q->sq, n)))
			return true;
	}
	return qp_reads_out(q) != q->orq_head;
}

static int check_reads(struct qp *q, const struct flue_qp_values *v)
{
	if (v->ird > RNIC_MAX_ORD || v->ord > RNIC_MAX_ORD)
		return -EINVAL;
	if (q->state != QPS_RTS)
		return q->bringup ? 0 : -ENOTCONN;
	return q->irq_tail - q->irq_head > v->ird || is_reading(q) ? -EBUSY : 0;
}

static int change_reads(struct qp *q, const struct flue_qp_values *v)
{
	return q->bringup ? bringup_reads(q, v->ird, v->ord) : qp_limit_reads(q, v->ird, v->ord);
}

static bool is_out_of_range(const struct flue_qp_values *v, uint32_t mask)
{
	return (mask & FLUE_QPV_RNR_RETRIES && v->rnr_retries > FULL_RNR_FOR_EVER) ||
	       (mask & FLUE_QPV_MIN_RNR_TIMER && v->min_rnr_timer > CONTROL_TIMER_MAX) ||
	       (mask & FLUE_QPV_TIMEOUT && v->timeout > FULL_TIMEOUT_MAX) ||
	       (mask & FLUE_QPV_RETRIES && v->retries > FULL_RETRIES_MAX) ||
	       (mask & FLUE_QPV_ACCESS && v->access & ~REMOTE_RIGHTS);
}

/* Of one that modify() does not bring up: RTS and SQD. */
static int check_state(const struct qp *q, uint32_t state, uint32_t mask)
{
	bool sends = *q->state_word == FLUE_QP_RTS || *q->state_word == FLUE_QP_SQD;

	if (state == FLUE_QP_SQD)
		return sends ? 0 : -EINVAL;
	if (mask & FLUE_QPV_TELL_DRAINED)
		return -EINVAL;
	if (state == FLUE_QP_RTS && q->sqd)
		return 0;
	return q->bringup ? 0 : -EOPNOTSUPP;
}

static int check(struct qp *q, const struct flue_qp_values *v, uint32_t mask)
{
	int rc = 0;

	if (mask & ~(CHANGED | (q->bringup ? BRINGUP : 0)))
		return -EOPNOTSUPP;
	if (is_out_of_range(v, mask))
		return -EINVAL;
	if (mask & FLUE_QPV_STATE)
		rc = check_state(q, v->state, mask);
	if (!rc && q->bringup)
		rc = bringup_check(q, v, mask);
	if (!rc && mask & FLUE_QPV_READS)
		rc = check_reads(q, v);
	return rc;
}

static void change(struct qp *q, const struct flue_qp_values *v, uint32_t mask,
		   struct rendezvous_calls *refused)
{
	if (mask & FLUE_QPV_ACCESS) {
		q->deny_always = REMOTE_RIGHTS & ~v->access;
		q->deny = q->deny_always | q->deny_stream;
		link_rights(q->link);
	}
	if (mask & FLUE_QPV_TIMEOUT)
		q->timeout = (uint8_t)v->timeout;
	if (mask & FLUE_QPV_RETRIES)
		q->retries = (uint8_t)v->retries;
	if (mask & FLUE_QPV_RNR_RETRIES)
		q->rnr_retries = (uint8_t)v->rnr_retries;
	if (mask & FLUE_QPV_MIN_RNR_TIMER)
		q->min_rnr_timer = (uint8_t)v->min_rnr_timer;
	if (q->bringup)
		bringup_change(q, v, mask, refused);
	if (!(mask & FLUE_QPV_STATE))
		return;
	if (v->state == FLUE_QP_SQD)
		drain(q, mask & FLUE_QPV_TELL_DRAINED && v->tell_drained);
	else if (q->sqd)
		undrain(q);
}

int qp_modify(struct qp *q, const struct flue_qp_values *v, uint32_t mask)
{
	struct rendezvous_calls refused = TAILQ_HEAD_INITIALIZER(refused);
	struct cep *c;
	int rc = 0;

	if (q->ud)
		return ud_modify(q, v, mask);
	/* From then on it may be called. */
	if (mask & FLUE_QPV_STATE && v->state == FLUE_QP_RTR)
		rc = cep_start_engines(q);
	if (rc)
		return rc;
	engine_lock(q->engine);
	rc = check(q, v, mask);
	if (!rc && mask & FLUE_QPV_READS)
		rc = change_reads(q, v);
	if (!rc)
		change(q, v, mask, &refused);
	engine_unlock(q->engine);
	while ((c = TAILQ_FIRST(&refused))) {
		TAILQ_REMOVE(&refused, c, of_listener);
		bringup_refuse(c, BRINGUP_NOBODY);
	}
	return rc;
}
