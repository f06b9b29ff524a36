/* SPDX-License-Identifier: MIT */
#include "rnic/bringup.h"

#include <errno.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/util.h"
#include "rnic/address.h"
#include "rnic/cep.h"
#include "rnic/full.h"
#include "rnic/qp.h"
#include "rnic/qp_priv.h"
#include "rnic/rendezvous.h"

#define CALL_MS      10000 /* how long a call may go unanswered before there is another */
#define WAIT_MS_MAX  10    /* as a power of two: between calls */
#define DIAL_BITS    8
#define NUMBER_MAX   0xffffffu
#define DEFAULT_READ 1

/* ---- life ---- */

static void fire_redial(struct engine_timer *t);

int bringup_create(struct qp *q)
{
	struct bringup *b = calloc(1, sizeof(*b));
	int rc;

	if (!b)
		return -ENOMEM;
	b->state = FLUE_QP_RESET;
	b->redial.fire = fire_redial;
	b->ird = b->ord = DEFAULT_READ;
	q->bringup = b;
	b->qp = q;
	atomic_store(&q->service, SERVICE_FULL);
	rc = rendezvous_join(q->rnic, q, &q->qpn);
	if (rc) {
		free(b);
		q->bringup = NULL;
	}
	return rc;
}

void bringup_destroy(struct qp *q)
{
	engine_timer_stop(q->engine, &q->bringup->redial);
}

/* ---- calling ---- */

static bool is_waiting(const struct qp *q)
{
	const struct bringup *b = q->bringup;

	return q->state == QPS_IDLE && !b->met &&
	       (b->state == FLUE_QP_RTR || b->state == FLUE_QP_RTS);
}

void bringup_identify(const struct qp *q, struct mpa_identity *id)
{
	id->qpn = q->qpn;
	if (!q->bringup)
		return;
	id->peer_qpn = q->bringup->remote_qpn;
	id->psn = q->bringup->rq_psn;
}

static struct flue_conn_attr terms(const struct bringup *b)
{
	struct flue_conn_attr a = FLUE_ATTR(struct flue_conn_attr);

	a.flags = FLUE_CONN_FULL;
	a.ird = b->ird;
	a.timeout_ms = CALL_MS;
	return a;
}

static void call_later(struct qp *q)
{
	struct bringup *b = q->bringup;

	engine_timer_arm(q->engine, &b->redial, 1ull << b->wait_ms);
	if (b->wait_ms < WAIT_MS_MAX)
		b->wait_ms++;
}

static bool is_unreachable(int err)
{
	return err == ENETUNREACH || err == EHOSTUNREACH || err == ENETDOWN || err == EHOSTDOWN;
}

static void call(struct qp *q)
{
	struct bringup *b = q->bringup;
	struct flue_conn_attr a = terms(b);
	struct sockaddr_storage to = b->remote;
	int rc;

	address_set_port(&to, (uint16_t)(b->remote_qpn >> DIAL_BITS));
	a.remote = (const struct sockaddr *)&to;
	a.remote_len = address_len(&to);
	if (b->path.local) {
		a.local = (const struct sockaddr *)&b->local;
		a.local_len = address_len(&b->local);
	}
	rc = cep_dial(q, &a);
	if (!rc)
		return;
	log_info(rnic, "queue pair %u: cannot call %u at %s: %s", q->qpn, b->remote_qpn,
		 LOG_ADDR(&b->remote), log_errno(-rc));
	b->gone = b->gone || is_unreachable(-rc);
	call_later(q);
	bringup_posted(q);
}

static void fire_redial(struct engine_timer *t)
{
	struct bringup *b = container_of(t, struct bringup, redial);

	if (is_waiting(b->qp) && !b->qp->cep)
		call(b->qp);
}

void bringup_outcome(struct qp *q, uint32_t type, int err, bool reached)
{
	struct bringup *b = q->bringup;
	enum bringup_answer answer = BRINGUP_NOBODY;

	if (type == FLUE_EVENT_CONNECTED) {
		b->met = true;
		b->gone = false;
		free(q->news);
		q->news = NULL;
		return;
	}
	if (!is_waiting(q))
		return;
	if (err == ECONNREFUSED && q->news->info.private_len)
		answer = q->news->private_data[0];
	if (err == ECONNREFUSED && answer == BRINGUP_NOBODY) {
		b->gone = true; /* and nobody else will have that number soon */
	} else {
		b->gone = !reached;
		/* The peer's own call is on its way; should it be lost we call again. */
		if (answer == BRINGUP_BUSY && err == ECONNREFUSED)
			b->wait_ms = WAIT_MS_MAX;
		call_later(q);
	}
	log_debug(rnic, "queue pair %u: the call of %u failed: %s", q->qpn, b->remote_qpn,
		  log_errno(err));
	bringup_posted(q);
}

/* ---- being called ---- */

/* c is whom the program named. Its port says nothing. */
static bool is_expected(const struct qp *q, struct cep *c)
{
	const struct bringup *b = q->bringup;
	struct rnic_request_info info;

	cep_describe(c, &info);
	return c->req.identity.qpn == b->remote_qpn && address_is_same_host(&info.peer, &b->remote);
}

/* Of two calls that cross, that of the lower number counts; of equal numbers, nobody's: they are one. */
static bool goes_first(const struct qp *q)
{
	return q->qpn <= q->bringup->remote_qpn;
}

static enum bringup_answer take_call(struct qp *q, struct cep *c)
{
	struct flue_conn_attr a = terms(q->bringup);

	if (q->cep) {
		if (goes_first(q))
			return q->qpn == q->bringup->remote_qpn ? BRINGUP_NOBODY : BRINGUP_BUSY;
		cep_abandon(q->cep);
	}
	engine_timer_stop(q->engine, &q->bringup->redial);
	if (cep_answer(c, q, &a) == 0)
		return BRINGUP_TAKEN;
	call_later(q);
	return BRINGUP_LATER;
}

enum bringup_answer bringup_called(struct qp *q, struct cep *c)
{
	const struct bringup *b = q->bringup;

	if (q->state == QPS_IDLE && (b->state == FLUE_QP_RESET || b->state == FLUE_QP_INIT))
		return BRINGUP_LATER;
	if (!is_waiting(q) || !is_expected(q, c))
		return BRINGUP_NOBODY;
	return take_call(q, c);
}

void bringup_refuse(struct cep *c, enum bringup_answer why)
{
	uint8_t code = (uint8_t)why;

	cep_reject(c, &code, sizeof(code));
}

/* In RTR. Calls that came before we knew whom to expect; those of others go to `refused`. */
static void look_for_calls(struct qp *q, struct rendezvous_calls *refused)
{
	enum bringup_answer answer = BRINGUP_NOBODY;
	struct cep *c;

	while (answer != BRINGUP_TAKEN && (c = rendezvous_take(q->rnic, q->qpn))) {
		if (is_expected(q, c))
			answer = take_call(q, c);
		if (answer != BRINGUP_TAKEN)
			TAILQ_INSERT_TAIL(refused, c, of_listener);
	}
	if (answer != BRINGUP_TAKEN)
		call(q);
}

/* ---- states ---- */

static int check_path(const struct flue_ah_attr *path)
{
	struct sockaddr_storage unused;

	if (!path || address_keep(&unused, path->remote, path->remote_len) ||
	    (path->local && address_keep(&unused, path->local, path->local_len)))
		return -EINVAL;
	return path->local && path->local->sa_family != path->remote->sa_family ? -EINVAL : 0;
}

static bool is_mtu(uint32_t n)
{
	return n >= 256 && n <= 4096 && (n & (n - 1)) == 0;
}

static bool has_bad_number(const struct flue_qp_values *v, uint32_t mask)
{
	if (mask & FLUE_QPV_REMOTE_QPN &&
	    (v->remote_qpn > NUMBER_MAX || v->remote_qpn < RENDEZVOUS_PLAIN))
		return true;
	return (mask & FLUE_QPV_RQ_PSN && v->rq_psn > NUMBER_MAX) ||
	       (mask & FLUE_QPV_SQ_PSN && v->sq_psn > NUMBER_MAX);
}

static int check_values(const struct flue_qp_values *v, uint32_t mask)
{
	if (mask & FLUE_QPV_PATH && check_path(v->path))
		return -EINVAL;
	if ((mask & FLUE_QPV_PORT && v->port > 1) || (mask & FLUE_QPV_PKEY && v->pkey_index))
		return -EINVAL;
	if (mask & FLUE_QPV_MTU && !is_mtu(v->mtu))
		return -EINVAL;
	if (has_bad_number(v, mask))
		return -EINVAL;
	return mask & FLUE_QPV_ALT_PATH ? -EOPNOTSUPP : 0;
}

/* May it be taken from where it is to `state`, with what is in `mask`? */
static bool may_go(const struct bringup *b, uint32_t state, uint32_t mask)
{
	switch (state) {
	case FLUE_QP_INIT: return b->state == FLUE_QP_RESET || b->state == FLUE_QP_INIT;
	case FLUE_QP_RTR:
		return b->state == FLUE_QP_INIT && mask & FLUE_QPV_PATH &&
		       mask & FLUE_QPV_REMOTE_QPN;
	case FLUE_QP_RTS: return b->state == FLUE_QP_RTR || b->state == FLUE_QP_RTS;
	default: return false;
	}
}

/* Whom to call can not be changed any more when it has been. */
#define PEER (FLUE_QPV_PATH | FLUE_QPV_REMOTE_QPN | FLUE_QPV_RQ_PSN)

int bringup_check(struct qp *q, const struct flue_qp_values *v, uint32_t mask)
{
	const struct bringup *b = q->bringup;
	int rc = check_values(v, mask);

	if (rc)
		return rc;
	if (q->state != QPS_IDLE && q->state != QPS_RTS)
		return -EINVAL;
	if (mask & FLUE_QPV_STATE && v->state != FLUE_QP_SQD && !may_go(b, v->state, mask))
		return -EINVAL;
	return mask & PEER && b->state != FLUE_QP_INIT && b->state != FLUE_QP_RESET ? -EINVAL : 0;
}

static void keep_path(struct bringup *b, const struct flue_ah_attr *path)
{
	b->path = *path;
	b->path.size = sizeof(b->path);
	address_keep(&b->remote, path->remote, path->remote_len);
	b->path.remote = (const struct sockaddr *)&b->remote;
	b->path.remote_len = address_len(&b->remote);
	b->path.local = NULL;
	b->path.local_len = 0;
	if (!path->local)
		return;
	address_keep(&b->local, path->local, path->local_len);
	b->path.local = (const struct sockaddr *)&b->local;
	b->path.local_len = address_len(&b->local);
}

static void keep_values(struct bringup *b, const struct flue_qp_values *v, uint32_t mask)
{
	if (mask & FLUE_QPV_PATH)
		keep_path(b, v->path);
	if (mask & FLUE_QPV_REMOTE_QPN)
		b->remote_qpn = v->remote_qpn;
	if (mask & FLUE_QPV_PORT)
		b->port = v->port;
	if (mask & FLUE_QPV_QKEY)
		b->qkey = v->qkey;
	if (mask & FLUE_QPV_MTU)
		b->mtu = v->mtu;
	if (mask & FLUE_QPV_RQ_PSN)
		b->rq_psn = v->rq_psn;
	if (mask & FLUE_QPV_SQ_PSN)
		b->sq_psn = v->sq_psn;
}

void bringup_change(struct qp *q, const struct flue_qp_values *v, uint32_t mask,
		    struct rendezvous_calls *refused)
{
	struct bringup *b = q->bringup;

	keep_values(b, v, mask);
	if (!(mask & FLUE_QPV_STATE) || v->state == FLUE_QP_SQD)
		return;
	b->state = (uint8_t)v->state;
	qp_set_state(q, q->state);
	link_rights(q->link);
	if (v->state == FLUE_QP_RTR)
		look_for_calls(q, refused);
}

void bringup_query(const struct qp *q, struct flue_qp_values *v, uint32_t mask)
{
	const struct bringup *b = q->bringup;

	v->port = b->port;
	v->qkey = b->qkey;
	v->mtu = b->mtu;
	v->remote_qpn = b->remote_qpn;
	v->rq_psn = b->rq_psn;
	v->sq_psn = b->sq_psn;
	if (mask & FLUE_QPV_PATH && v->path)
		*v->path = b->path;
}

void bringup_reset(struct qp *q)
{
	struct bringup *b = q->bringup;

	if (q->cep)
		cep_abandon(q->cep);
	engine_timer_stop(q->engine, &b->redial);
	engine_timer_stop(q->engine, &q->timer);
	qp_drop_link(q, LINK_RESET);
	if (q->state == QPS_RTS)
		qp_apply(q, QPE_LINK_GONE, 0, 0);
	else if (q->state == QPS_TERMINATE)
		qp_apply(q, QPE_ABORT, FLUE_CLOSE_ABORTED, ECONNABORTED);
	qp_apply(q, QPE_REINIT, 0, 0);
	qp_forget(q);
	b->state = FLUE_QP_RESET;
	b->met = b->gone = b->told = false;
	q->sqd = q->tell_drained = false;
	b->wait_ms = 0;
	b->ird = b->ord = DEFAULT_READ;
	qp_set_state(q, q->state);
}

/* ---- the link, and its end ---- */

int bringup_read_rings(struct qp *q, const struct mpa_terms *t, bool initiator)
{
	struct bringup *b = q->bringup;

	b->first = initiator ? 0 : 1;
	b->peer_ird = t->peer_ird;
	return qp_limit_reads(q, b->ird, min_u32(b->ord, b->peer_ird));
}

int bringup_reads(struct qp *q, uint32_t ird, uint32_t ord)
{
	struct bringup *b = q->bringup;
	int rc = 0;

	if (link_is_open(q->link))
		rc = qp_limit_reads(q, ird, min_u32(ord, b->peer_ird));
	if (!rc) {
		b->ird = ird;
		b->ord = ord;
	}
	return rc;
}

/* Requests wait that can not be done. In SQD only those that had begun do. */
static bool has_victims(struct qp *q)
{
	uint32_t head = atomic_load(&q->sq.head);

	return q->sqd ? full_distance(head, q->drain_to) < 0 : wq_fill(&q->sq) != 0;
}

void bringup_posted(struct qp *q)
{
	if (!q->bringup->gone || q->state != QPS_IDLE || q->timer.at || !q->timeout ||
	    !has_victims(q))
		return;
	engine_timer_arm_ns(q->engine, &q->timer, full_patience_ns(q));
}

void bringup_link_gone(struct qp *q)
{
	q->bringup->gone = true;
	log_info(rnic, "queue pair %u: %u at %s has gone", q->qpn, q->bringup->remote_qpn,
		 LOG_ADDR(&q->bringup->remote));
	bringup_posted(q);
}

void bringup_give_up(struct qp *q)
{
	if (!has_victims(q))
		return;
	wq_at(&q->sq, atomic_load(&q->sq.head))->status = FLUE_WC_RETRY_EXCEEDED;
	engine_timer_stop(q->engine, &q->bringup->redial);
	qp_apply(q, QPE_LOCAL_FAIL, FLUE_CLOSE_LOST, ETIMEDOUT);
}

bool bringup_listens(const struct qp *q)
{
	return q->bringup && q->bringup->state == FLUE_QP_RTR && !q->bringup->told;
}

void bringup_heard(struct qp *q)
{
	struct bringup *b = q->bringup;

	if (b->told || b->state != FLUE_QP_RTR || q->rx.number <= b->first)
		return;
	b->told = true;
	qp_tell(q, FLUE_EVENT_ESTABLISHED);
	link_rights(q->link);
}
