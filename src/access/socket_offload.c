/* SPDX-License-Identifier: MIT */
/*
 * What the client may ask that brought its own queue pair (CH-26, CH-27): how the offload is doing, and
 * its end. The source ends an offload only when TCP is closed, then looks at the queue pair to tell
 * the cases apart: Idle is a graceful close, Error is anything else and becomes Idle when everything
 * is flushed, and what is neither is still at it. A device that never gets there is waited for no
 * longer than FLUSH_MS.
 */
#include <time.h>

#include "access/socket_priv.h"
#include "base/clock.h"
#include "base/util.h"

#define FLUSH_MS 2000

/* Lock held: 0, or why this client may not ask. The end of the connection is no obstacle here. */
static int check_control(struct acc_socket *s, enum socket_call call)
{
	int rc = sock_check(s, call);

	if (rc == -ENOTCONN && !s->own_qp && s->pub.qp && !s->ending)
		rc = 0;
	return !rc && s->own_qp ? -EOPNOTSUPP : rc;
}

bool sock_query_offload(struct flue_socket *pub, struct flue_offload_info *info)
{
	CANCEL_HELD;
	struct acc_socket *s = to_socket(pub);
	struct flue_offload_info full = FLUE_ATTR(struct flue_offload_info);
	struct flue_qp_values now = { 0 };
	struct flue_qp *qp = NULL;
	int rc = acc_usable(s->a);

	if (!rc && (!info || info->size < ACC_ATTR_SIZE(struct flue_offload_info, reads_in)))
		rc = -EINVAL;
	if (rc)
		return acc_ok(rc);
	pthread_mutex_lock(&s->lock);
	rc = check_control(s, SOCKET_CALL_QUERY_OFFLOAD);
	qp = pub->qp;
	pthread_mutex_unlock(&s->lock);
	if (!rc)
		rc = acc_qp_ask(to_qp(qp), &now, FLUE_QPV_STATE | FLUE_QPV_WORK);
	if (rc)
		return acc_ok(rc);
	full.qp_state = now.state;
	full.sends = now.sends;
	full.receives = now.receives;
	full.reads_out = now.reads_out;
	full.reads_in = now.reads_in;
	pthread_mutex_lock(&s->lock);
	/* Before the provider has the stream it is ours, or still the program's. */
	full.open = !s->over && (!s->adopted || now.llp_open);
	full.ended = s->over;
	full.reason = s->over ? s->end.ev.reason : 0;
	full.detail = s->over ? s->end.ev.detail : 0;
	pthread_mutex_unlock(&s->lock);
	full.size = min_size(info->size, sizeof(full));
	memcpy(info, &full, full.size);
	return true;
}

/* Lock held: the connection is reset, and that is how it ended. */
static void end_early(struct acc_socket *s)
{
	s->given_up = true;
	if (sock_step(s, OFFLOAD_EV_FAILED) & SOCKET_TELL)
		sock_answer_switch(s, ECONNABORTED);
	sock_over(s, FLUE_CLOSE_ABORTED, ECONNABORTED);
	sock_abort(s);
}

/* The provider may still have to tell of the end: a new connection would meet the old one's news. */
static bool await_news(struct acc_qp *qp)
{
	struct timespec store;
	const struct timespec *at = acc_deadline(&store, FLUSH_MS);
	bool told;

	pthread_mutex_lock(&qp->lock);
	while (qp->phase != ACC_NONE && qp->phase != ACC_ADRIFT)
		if (!acc_wait_until(&qp->changed, &qp->lock, at))
			break;
	told = qp->phase == ACC_NONE || qp->phase == ACC_ADRIFT;
	pthread_mutex_unlock(&qp->lock);
	return told;
}

/* Idle, as soon as everything is flushed. */
static int make_idle(struct flue_qp *qp)
{
	const struct timespec pause = { .tv_nsec = 1000000 };
	uint64_t late = clock_now() + FLUSH_MS * NSEC_PER_MSEC;

	if (!await_news(to_qp(qp)))
		return -ETIMEDOUT;
	while (!qp->ops->reset(qp)) {
		if (errno != EBUSY)
			return -errno;
		if (clock_now() >= late)
			return -ETIMEDOUT;
		nanosleep(&pause, NULL);
	}
	return 0;
}

bool sock_end_offload(struct flue_socket *pub, bool early)
{
	CANCEL_HELD;
	struct acc_socket *s = to_socket(pub);
	struct flue_qp *qp = NULL;
	int rc = acc_usable(s->a);

	if (!rc && acc_in_callback(NULL))
		rc = -EDEADLK;
	if (rc)
		return acc_ok(rc);
	pthread_mutex_lock(&s->lock);
	rc = check_control(s, SOCKET_CALL_END_OFFLOAD);
	if (!rc && !s->over && !early)
		rc = -EBUSY;
	if (!rc) {
		s->ending = true;
		qp = pub->qp;
		if (!s->over)
			end_early(s);
	}
	pthread_mutex_unlock(&s->lock);
	if (rc)
		return acc_ok(rc);
	rc = make_idle(qp);
	if (rc)
		log_error(chimney, "queue pair %u: the offload ended, but not all is flushed: %s",
			  qp->number, log_errno(rc));
	sock_leave_qp(s, qp);
	pthread_mutex_lock(&s->lock);
	pub->qp = NULL;
	pthread_mutex_unlock(&s->lock);
	sock_deliver(s, false);
	return acc_ok(rc);
}
