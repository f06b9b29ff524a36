/* SPDX-License-Identifier: MIT */
/*
 * Connections of a QP (RD-8, CH-18). The provider runs the protocol and its timers; this file
 * keeps what the user was told, so that each outcome is told exactly once whatever the provider
 * repeats, and lets callers block.
 *
 * Blocking forms take the outcome they wait for: connect(), accept() and start() that waited raise
 * no ACCEPTED, CONNECTED or CONNECT_FAILED. DISCONNECTED always comes as an event, also when
 * disconnect() waited for it, because others may wait for it too.
 *
 * A provider that never answers cannot hang a caller: its own timers are given a margin, then the
 * connection is aborted and forgotten (ACC_ADRIFT), and what is said later is not heard.
 */
#include <stdlib.h>

#include "access/access_priv.h"
#include "base/probe.h"

#define DEFAULT_CONNECT_MS    10000
#define DEFAULT_DISCONNECT_MS 5000
#define DEFAULT_READS         16
#define RFC7306               (uint32_t)(FLUE_FEATURE_ATOMICS | FLUE_FEATURE_IMM)
#define ALL_FLAGS             (2 * (uint32_t)FLUE_CONN_FULL - 1)

/* ---- what an up-call means in each phase ---- */

enum news { ACCEPTED, CONNECTED, FAILED, DISCONNECTED, NNEWS };

struct step {
	uint8_t next;
	bool tell;  /* the user hears of it */
	bool ended; /* the set-up or connection is over */
};

#define STAY(phase)             \
	{                       \
		.next = (phase) \
	}

static const struct step steps[ACC_NPHASES][NNEWS] = {
	[ACC_NONE] = {
		[ACCEPTED] = STAY(ACC_NONE),
		[CONNECTED] = STAY(ACC_NONE),
		[FAILED] = STAY(ACC_NONE),
		[DISCONNECTED] = STAY(ACC_NONE),
	},
	[ACC_SETUP] = {
		[ACCEPTED] = { .next = ACC_HELD, .tell = true },
		[CONNECTED] = { .next = ACC_UP, .tell = true },
		[FAILED] = { .next = ACC_NONE, .tell = true, .ended = true },
		[DISCONNECTED] = STAY(ACC_SETUP),
	},
	[ACC_HELD] = {
		[ACCEPTED] = STAY(ACC_HELD),
		[CONNECTED] = STAY(ACC_HELD),
		[FAILED] = { .next = ACC_NONE, .tell = true, .ended = true },
		[DISCONNECTED] = STAY(ACC_HELD),
	},
	[ACC_UP] = {
		[ACCEPTED] = STAY(ACC_UP),
		[CONNECTED] = STAY(ACC_UP),
		[FAILED] = STAY(ACC_UP),
		[DISCONNECTED] = { .next = ACC_NONE, .tell = true, .ended = true },
	},
	[ACC_ADRIFT] = {
		[ACCEPTED] = STAY(ACC_ADRIFT),
		[CONNECTED] = STAY(ACC_ADRIFT),
		[FAILED] = { .next = ACC_NONE, .ended = true },
		[DISCONNECTED] = { .next = ACC_NONE, .ended = true },
	},
};

static enum news news_of(uint32_t type)
{
	switch (type) {
	case FLUE_EVENT_ACCEPTED: return ACCEPTED;
	case FLUE_EVENT_CONNECTED: return CONNECTED;
	case FLUE_EVENT_CONNECT_FAILED: return FAILED;
	case FLUE_EVENT_DISCONNECTED: return DISCONNECTED;
	default: return NNEWS;
	}
}

/* Lock held, no set-up under way: room for so much. */
static int reserve_private(struct acc_qp *qp, size_t length)
{
	uint8_t *room;

	if (length <= qp->private_room)
		return 0;
	room = malloc(length);
	if (!room)
		return -ENOMEM;
	free(qp->private_data);
	qp->private_data = room;
	qp->private_room = length;
	return 0;
}

static void keep_private_data(struct acc_qp *qp, const void *data, size_t length)
{
	if (length > qp->private_room)
		length = qp->private_room;
	if (length)
		memcpy(qp->private_data, data, length);
	qp->pub.private_data = length ? qp->private_data : NULL;
	qp->pub.private_len = length;
}

/* Lock held: nothing more comes, and nobody knows yet where it is. */
static void trim_private(struct acc_qp *qp)
{
	uint8_t *less = qp->pub.private_len ? realloc(qp->private_data, qp->pub.private_len) : NULL;

	if (qp->pub.private_len && !less)
		return;
	if (!less)
		free(qp->private_data);
	qp->private_data = less;
	qp->private_room = qp->pub.private_len;
	qp->pub.private_data = less;
}

void acc_conn_forget_private(struct acc_qp *qp)
{
	bool ours = !acc_inherited(
		qp->source.adapter); /* else nobody is left who could give the lock */

	if (ours)
		pthread_mutex_lock(&qp->lock);
	free(qp->private_data);
	qp->private_data = NULL;
	qp->private_room = 0;
	if (ours)
		pthread_mutex_unlock(&qp->lock);
}

static void keep_info(struct acc_qp *qp, const struct prov_conn_info *conn)
{
	if (!conn)
		return;
	qp->pub.local = conn->local;
	qp->pub.peer = conn->peer;
	qp->pub.ird = conn->ird;
	qp->pub.ord = conn->ord;
	/* A responder knows it since the request; an initiator may have it from ACCEPTED. */
	if (conn->private_data && conn->private_len)
		keep_private_data(qp, conn->private_data, conn->private_len);
}

/* Events of a queue pair that are nobody's connection's. */
static bool is_qps_own(uint32_t type)
{
	return type >= FLUE_EVENT_ESTABLISHED && type <= FLUE_EVENT_PATH_FAILED;
}

/* Takes one step. True: to be told as an event. Lock held. */
static bool step_locked(struct acc_qp *qp, const struct flue_event *ev,
			const struct prov_conn_info *conn)
{
	enum news news = news_of(ev->type);
	const struct step *step;
	enum acc_phase before;
	bool tell;

	if (ev->type == FLUE_EVENT_LAST_RECEIVE) {
		tell = qp->last_due;
		qp->last_due = false;
		return tell;
	}
	if (news == NNEWS)
		return is_qps_own(ev->type);
	if (news == ACCEPTED && !qp->defer)
		return false;
	step = &steps[qp->phase][news];
	tell = step->tell;
	PROBE(conn_state, &qp->pub, (uint32_t)qp->phase, (uint32_t)step->next, ev->type);
	before = qp->phase;
	qp->phase = step->next;
	if (tell)
		keep_info(qp, conn);
	if (tell && before == ACC_SETUP)
		trim_private(qp);
	if (step->ended) {
		qp->ends++;
		qp->end = *ev;
	}
	if (tell && news != DISCONNECTED && qp->waited) {
		qp->waited = false;
		qp->outcome = news == FAILED ? -(int)ev->detail : 0;
		tell = false;
	}
	pthread_cond_broadcast(&qp->changed);
	return tell;
}

/* The socket of a control client hears it last: the program's own function may have destroyed it.
 * Others who do wait for us, see sock_unreserve(). `turn`: as it was when the event was decided; a
 * socket that came later is told nothing of what was before it. */
static void let_hear(struct acc_qp *qp, const struct flue_event *ev, uint32_t turn)
{
	flue_event_fn hear;
	void *arg;

	pthread_mutex_lock(&qp->lock);
	hear = qp->hear_turn == turn ? qp->hear : NULL;
	arg = qp->hear_arg;
	qp->hearing += hear != NULL;
	pthread_mutex_unlock(&qp->lock);
	if (!hear)
		return;
	hear(ev, arg);
	pthread_mutex_lock(&qp->lock);
	qp->hearing--;
	pthread_cond_broadcast(&qp->changed);
	pthread_mutex_unlock(&qp->lock);
}

/* What became of it. No lock held: whoever reads the log may be slow. */
static void log_news(const struct acc_qp *qp, const struct flue_event *ev, uint32_t before,
		     uint32_t after)
{
	if (before == after)
		return;
	switch (news_of(ev->type)) {
	case ACCEPTED:
	case CONNECTED:
		log_info(access, "queue pair %u: %s, %s to %s", qp->pub.number,
			 flue_event_name(ev->type), LOG_ADDR(&qp->pub.local),
			 LOG_ADDR(&qp->pub.peer));
		break;
	case FAILED:
		log_error(access, "queue pair %u: the set-up failed: %s", qp->pub.number,
			  log_errno((int)ev->detail));
		break;
	case DISCONNECTED:
		log_if(acc_end_level(ev->reason), LOG_PART_access,
		       "queue pair %u: the connection to %s ended: %s, detail %#x", qp->pub.number,
		       LOG_ADDR(&qp->pub.peer), flue_close_reason_name(ev->reason), ev->detail);
		break;
	default: break;
	}
}

void acc_conn_event(void *qp_owner, const struct flue_event *ev, const struct prov_conn_info *conn)
{
	struct acc_qp *qp = qp_owner;
	/* The provider's is the next connection's as soon as somebody knows of this one. */
	const struct flue_event news = *ev;
	uint32_t turn, before, after;
	bool tell;

	pthread_mutex_lock(&qp->lock);
	turn = qp->hear_turn;
	before = qp->phase;
	tell = step_locked(qp, &news, conn);
	after = qp->phase;
	if (tell && !qp->source.fn)
		acc_event_raise(&qp->source, &news);
	pthread_mutex_unlock(&qp->lock);
	log_news(qp, &news, before, after);
	if (tell && qp->source.fn)
		acc_event_raise(&qp->source, &news);
	if (tell)
		let_hear(qp, &news, turn);
}

/* ---- set-up ---- */

/* What not every adapter can do. */
static int check_features(const struct acc_adapter *a, uint32_t flags)
{
	uint32_t need = flags & FLUE_CONN_RFC7306 ? RFC7306 : 0;

	if (flags & FLUE_CONN_FULL)
		need |= FLUE_FEATURE_FULL;
	return need & ~a->caps.features ? -EOPNOTSUPP : 0;
}

size_t acc_private_max(const struct acc_adapter *a, uint32_t conn_flags, uint32_t normal)
{
	if (conn_flags & FLUE_CONN_FULL)
		return a->caps.max_private_full;
	return conn_flags & FLUE_CONN_REV1 ? a->caps.max_private_rev1 : normal;
}

int acc_conn_attr(const struct acc_adapter *a, struct flue_conn_attr *to,
		  const struct flue_conn_attr *from, size_t private_max)
{
	if (acc_attr_copy(to, sizeof(*to), from, ACC_ATTR_SIZE(struct flue_conn_attr, fpdu_max)))
		return -EINVAL;
	if (to->private_len > private_max || (to->private_len && !to->private_data))
		return -EINVAL;
	if (to->flags & ~ALL_FLAGS || to->timeout_ms < 0)
		return -EINVAL;
	if (!to->ird)
		to->ird = a->caps.max_ird < DEFAULT_READS ? a->caps.max_ird : DEFAULT_READS;
	if (!to->ord)
		to->ord = a->caps.max_ord < DEFAULT_READS ? a->caps.max_ord : DEFAULT_READS;
	if (to->ird > a->caps.max_ird || to->ord > a->caps.max_ord)
		return -EINVAL;
	if (!to->timeout_ms)
		to->timeout_ms = DEFAULT_CONNECT_MS;
	return check_features(a, to->flags);
}

/* The last connection is over for the provider, but its DISCONNECTED may still be on the way. */
static void settle(struct acc_qp *qp)
{
	struct timespec store;
	const struct timespec *at = acc_deadline(&store, ACC_MARGIN_MS);

	while (qp->phase == ACC_UP && !acc_in_callback(NULL)) {
		uint32_t state = flue_qp_state(&qp->pub);

		if (state != FLUE_QP_IDLE && state != FLUE_QP_ERROR)
			return;
		if (!acc_wait_until(&qp->changed, &qp->lock, at))
			return;
	}
}

int acc_conn_begin(struct acc_qp *qp, const struct flue_conn_attr *attr, const void *private_data,
		   size_t private_len)
{
	bool async = attr->flags & FLUE_CONN_ASYNC;
	size_t most = qp->source.adapter->caps.max_private_data;
	int rc = acc_usable(to_adapter(qp->pub.pd->adapter));

	if (!rc && !async && acc_in_callback(NULL))
		rc = -EDEADLK;
	if (!rc)
		rc = acc_source_reserve(&qp->source, acc_qp_events(qp->pub.srq));
	if (rc)
		return rc;
	pthread_mutex_lock(&qp->lock);
	settle(qp);
	rc = qp->phase == ACC_NONE ? 0 : -EISCONN;
	/* Who calls does not know yet what the peer will say. */
	if (!rc)
		rc = reserve_private(qp, private_data ? private_len : most);
	if (!rc) {
		qp->phase = ACC_SETUP;
		qp->defer = attr->flags & FLUE_CONN_DEFER;
		qp->async = async;
		qp->waited = !async;
		qp->last_due = qp->pub.srq;
		keep_private_data(qp, private_data, private_len);
	}
	pthread_mutex_unlock(&qp->lock);
	return rc;
}

/* The blocked caller's part: the outcome, or -ETIMEDOUT when the provider is late. */
static int await_outcome(struct acc_qp *qp, int timeout_ms)
{
	struct prov_await drive = { .word = &qp->waited,
				    .value = true,
				    .timeout_ms = timeout_ms,
				    .cancel_was = PTHREAD_CANCEL_DISABLE };
	struct timespec store;
	const struct timespec *at = acc_deadline(&store, timeout_ms);
	bool late;
	int rc;

	/* Nobody else need be woken for it. What a provider does not do itself is waited for below. */
	qp->ops->await_qp(qp->prov, &drive);
	pthread_mutex_lock(&qp->lock);
	while (qp->waited && acc_wait_until(&qp->changed, &qp->lock, at))
		;
	late = qp->waited;
	rc = qp->outcome;
	pthread_mutex_unlock(&qp->lock);
	if (!late)
		return rc;

	log_error(access, "queue pair %u: the provider tells no outcome; the set-up is given up",
		  qp->pub.number);
	qp->ops->abort(qp->prov);
	pthread_mutex_lock(&qp->lock);
	at = acc_deadline(&store, ACC_GRACE_MS);
	while (qp->waited && acc_wait_until(&qp->changed, &qp->lock, at))
		;
	/* Connected in the last moment: the caller will not know, so the end is not told either. */
	if (qp->waited || qp->phase == ACC_UP)
		qp->phase = ACC_ADRIFT;
	qp->waited = false;
	pthread_mutex_unlock(&qp->lock);
	return -ETIMEDOUT;
}

int acc_conn_finish(struct acc_qp *qp, const struct flue_conn_attr *attr, int rc)
{
	if (rc) {
		pthread_mutex_lock(&qp->lock);
		qp->phase = ACC_NONE;
		qp->waited = false;
		pthread_mutex_unlock(&qp->lock);
		log_error(access, "queue pair %u: the provider does not begin: %s", qp->pub.number,
			  log_errno(rc));
		return rc;
	}
	if (attr->flags & FLUE_CONN_ASYNC)
		return 0;
	return await_outcome(qp, attr->timeout_ms + ACC_MARGIN_MS);
}

bool acc_conn_connect(struct flue_qp *pub, const struct flue_conn_attr *from)
{
	CANCEL_HELD;
	struct acc_qp *qp = to_qp(pub);
	struct flue_conn_attr attr;
	struct acc_adapter *a = qp->source.adapter;
	int rc = acc_usable(a);

	if (!rc)
		rc = acc_conn_attr(a, &attr, from, SIZE_MAX);
	if (!rc && attr.private_len > acc_private_max(a, attr.flags, a->caps.max_private_request))
		rc = -EINVAL;
	if (!rc)
		rc = acc_check_address(attr.remote, attr.remote_len);
	if (!rc && attr.local)
		rc = acc_check_address(attr.local, attr.local_len);
	if (!rc && attr.local && attr.local->sa_family != attr.remote->sa_family)
		rc = -EINVAL;
	if (!rc)
		rc = acc_conn_begin(qp, &attr, NULL, 0);
	if (!rc)
		rc = acc_conn_finish(qp, &attr, qp->ops->connect(qp->prov, &attr));
	return acc_ok(rc);
}

bool acc_conn_start(struct flue_qp *pub)
{
	CANCEL_HELD;
	struct acc_qp *qp = to_qp(pub);
	int rc = acc_usable(to_adapter(pub->pd->adapter));
	bool async;

	if (rc)
		return acc_ok(rc);
	pthread_mutex_lock(&qp->lock);
	async = qp->async;
	if (qp->phase != ACC_HELD) {
		rc = -EINVAL;
	} else if (!async && acc_in_callback(NULL)) {
		rc = -EDEADLK;
	} else {
		qp->phase = ACC_SETUP;
		qp->defer = false;
		qp->waited = !async;
	}
	pthread_mutex_unlock(&qp->lock);
	if (rc)
		return acc_ok(rc);
	rc = qp->ops->start(qp->prov);
	if (rc) {
		pthread_mutex_lock(&qp->lock);
		if (qp->phase == ACC_SETUP)
			qp->phase = ACC_HELD;
		qp->waited = false;
		pthread_mutex_unlock(&qp->lock);
		return acc_ok(rc);
	}
	return async ? true : acc_ok(await_outcome(qp, DEFAULT_CONNECT_MS + ACC_MARGIN_MS));
}

/* ---- the end ---- */

/* What a blocking disconnect() says when the connection ended. */
static int end_result(const struct flue_event *end)
{
	/* The set-up was abandoned: nothing is connected, as asked. */
	if (end->type == FLUE_EVENT_CONNECT_FAILED)
		return 0;
	switch (end->reason) {
	case FLUE_CLOSE_GRACEFUL: return 0;
	case FLUE_CLOSE_RESET: return -ECONNRESET;
	case FLUE_CLOSE_TERMINATED:
	case FLUE_CLOSE_FAULT: return -EPROTO;
	case FLUE_CLOSE_LOST:
	case FLUE_CLOSE_LOCAL: return end->detail ? -(int)end->detail : -ECONNRESET;
	default: return end->detail == ETIMEDOUT ? -ETIMEDOUT : -ECONNABORTED;
	}
}

/* Waits until the connection that was there at `ends` is over. Lock held. False: too late. */
static bool await_end(struct acc_qp *qp, uint32_t ends, int timeout_ms)
{
	struct timespec store;
	const struct timespec *at = acc_deadline(&store, timeout_ms);

	while (qp->ends == ends)
		if (!acc_wait_until(&qp->changed, &qp->lock, at))
			return qp->ends != ends;
	return true;
}

/* The provider does not say how it ended. Tell it in its place, once. */
static void declare_lost(struct acc_qp *qp, uint32_t ends)
{
	struct flue_event ev = { .type = FLUE_EVENT_DISCONNECTED,
				 .reason = FLUE_CLOSE_LOCAL,
				 .detail = ETIMEDOUT };
	bool tell = false, lost = false;
	uint32_t turn = 0;

	pthread_mutex_lock(&qp->lock);
	if (!await_end(qp, ends, ACC_GRACE_MS) && qp->phase != ACC_NONE) {
		if (qp->phase != ACC_UP)
			ev = (struct flue_event) { .type = FLUE_EVENT_CONNECT_FAILED,
						   .detail = ETIMEDOUT };
		turn = qp->hear_turn;
		tell = step_locked(qp, &ev, NULL);
		qp->phase = ACC_ADRIFT;
		lost = true;
		if (tell && !qp->source.fn)
			acc_event_raise(&qp->source, &ev);
	}
	pthread_mutex_unlock(&qp->lock);
	if (lost)
		log_error(access,
			  "queue pair %u: the provider tells no end; the connection counts as lost",
			  qp->pub.number);
	if (tell && qp->source.fn)
		acc_event_raise(&qp->source, &ev);
	if (tell)
		let_hear(qp, &ev, turn);
}

bool acc_conn_disconnect(struct flue_qp *pub, int timeout_ms)
{
	CANCEL_HELD;
	struct acc_qp *qp = to_qp(pub);
	bool async = timeout_ms < 0, over;
	uint32_t ends;
	int rc = acc_usable(qp->source.adapter), begun;

	if (!rc && !async && acc_in_callback(NULL))
		rc = -EDEADLK;
	if (rc)
		return acc_ok(rc);
	if (timeout_ms <= 0)
		timeout_ms = DEFAULT_DISCONNECT_MS;
	pthread_mutex_lock(&qp->lock);
	ends = qp->ends;
	pthread_mutex_unlock(&qp->lock);
	begun = qp->ops->disconnect(qp->prov, timeout_ms);
	if (begun == -ENOTCONN)
		return true;
	if (begun)
		log_error(access, "queue pair %u: disconnect is refused: %s", qp->pub.number,
			  log_errno(begun));
	if (async || (begun && begun != -EBUSY))
		return acc_ok(begun);

	pthread_mutex_lock(&qp->lock);
	over = await_end(qp, ends, timeout_ms + ACC_MARGIN_MS);
	rc = over ? end_result(&qp->end) : -ETIMEDOUT;
	pthread_mutex_unlock(&qp->lock);
	if (!over) {
		qp->ops->abort(qp->prov);
		declare_lost(qp, ends);
	}
	return acc_ok(begun ? begun : rc);
}

bool acc_conn_abort(struct flue_qp *pub)
{
	CANCEL_HELD;
	struct acc_qp *qp = to_qp(pub);
	int rc = acc_usable(qp->source.adapter);

	if (!rc)
		rc = qp->ops->abort(qp->prov);
	return acc_ok(rc == -ENOTCONN ? 0 : rc);
}

bool acc_conn_terminate(struct flue_qp *pub)
{
	CANCEL_HELD;
	struct acc_qp *qp = to_qp(pub);
	int rc = acc_usable(to_adapter(pub->pd->adapter));

	return acc_ok(rc ? rc : qp->ops->terminate(qp->prov));
}

bool acc_conn_reset(struct flue_qp *pub)
{
	CANCEL_HELD;
	struct acc_qp *qp = to_qp(pub);
	struct acc_adapter *a = to_adapter(pub->pd->adapter);
	struct acc_op own, *op;
	int rc = acc_usable(a);

	if (rc)
		return acc_ok(rc);
	pthread_mutex_lock(&qp->lock);
	settle(qp);
	/* It may have failed for the provider, and who set it up has not come back yet. */
	rc = qp->phase == ACC_SETUP && qp->waited ? -EBUSY : 0;
	pthread_mutex_unlock(&qp->lock);
	if (rc)
		return acc_ok(rc);
	op = acc_op_begin(&own);
	rc = acc_op_result(a, op, qp->ops->reset_qp(qp->prov, &op->base), NULL);
	if (rc)
		return acc_ok(rc);
	pthread_mutex_lock(&qp->lock);
	if (qp->phase == ACC_ADRIFT)
		qp->phase = ACC_NONE;
	pthread_mutex_unlock(&qp->lock);
	return true;
}
