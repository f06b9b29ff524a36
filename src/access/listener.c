/* SPDX-License-Identifier: MIT */
/*
 * Listeners and connection requests. Requests wait in a bounded queue until the program takes
 * them; one that finds the queue full is rejected by the provider. A request handed out is used up
 * by accept() or reject(), and until then the listener cannot be destroyed.
 */
#include <stdlib.h>

#include "access/access_priv.h"

#define DEFAULT_BACKLOG    128
#define DEFAULT_HALF_OPEN  1024
#define DEFAULT_REQUEST_MS 5000

static struct acc_listener *to_listener(struct flue_listener *l)
{
	return (struct acc_listener *)l;
}

static struct acc_adapter *adapter_of(struct acc_listener *l)
{
	return to_adapter(l->pub.adapter);
}

/* ---- requests ---- */

static void use_up(struct acc_request *req)
{
	atomic_fetch_sub(&to_listener(req->pub.listener)->held, 1);
	free(req);
}

static int try_accept(struct acc_request *req, struct flue_qp *qp,
		      const struct flue_conn_attr *from)
{
	struct flue_conn_attr none = FLUE_ATTR(struct flue_conn_attr), attr;
	struct acc_listener *l = to_listener(req->pub.listener);
	int rc;

	rc = acc_conn_attr(adapter_of(l), &attr, from ? from : &none, req->pub.max_reply);
	if (!rc && !qp)
		rc = -EINVAL;
	if (!rc && qp->pd->adapter != l->pub.adapter)
		rc = -EXDEV;
	if (!rc)
		rc = acc_conn_begin(to_qp(qp), &attr, req->pub.private_data, req->pub.private_len);
	if (rc) {
		l->ops->reject(req->prov, NULL, 0);
		return rc;
	}
	rc = l->ops->accept(req->prov, to_qp(qp)->prov, &attr);
	return acc_conn_finish(to_qp(qp), &attr, rc);
}

static bool request_accept(struct flue_conn_request *pub, struct flue_qp *qp,
			   const struct flue_conn_attr *attr)
{
	CANCEL_HELD;
	struct acc_request *req = (struct acc_request *)pub;
	int rc = acc_usable(to_adapter(pub->listener->adapter));

	/* In a child of fork() the peer is the parent's to answer. */
	if (!rc)
		rc = try_accept(req, qp, attr);
	use_up(req);
	return acc_ok(rc);
}

static bool request_reject(struct flue_conn_request *pub, const void *data, size_t length)
{
	CANCEL_HELD;
	struct acc_request *req = (struct acc_request *)pub;
	struct acc_listener *l = to_listener(pub->listener);
	bool fits = length <= pub->max_reject && (data || !length);
	int rc = acc_usable(adapter_of(l));

	if (!rc) {
		rc = l->ops->reject(req->prov, fits ? data : NULL, fits ? length : 0);
		rc = fits ? rc : -EINVAL;
	}
	use_up(req);
	return acc_ok(rc);
}

static const struct flue_request_ops request_ops = {
	.size = sizeof(request_ops),
	.accept = request_accept,
	.reject = request_reject,
};

static struct acc_request *new_request(struct acc_listener *l, struct prov_request *prov,
				       const struct prov_request_info *info)
{
	struct acc_request *req;
	size_t length = info->private_len;

	if (length > adapter_of(l)->caps.max_private_data)
		length = adapter_of(l)->caps.max_private_data;
	req = calloc(1, sizeof(*req) + length);
	if (!req)
		return NULL;
	if (length) {
		memcpy(req->private_data, info->private_data, length);
		req->pub.private_data = req->private_data;
	}
	req->prov = prov;
	req->pub.ops = &request_ops;
	req->pub.listener = &l->pub;
	req->pub.local = info->local;
	req->pub.peer = info->peer;
	req->pub.private_len = length;
	req->pub.peer_ird = info->peer_ird;
	req->pub.peer_ord = info->peer_ord;
	req->pub.revision = info->revision;
	req->pub.peer_to_peer = info->peer_to_peer;
	req->pub.max_reply = info->max_reply;
	req->pub.full = info->full;
	req->pub.max_reject = info->max_reject;
	return req;
}

int acc_listener_request(void *listener_owner, struct prov_request *prov,
			 const struct prov_request_info *info)
{
	struct acc_listener *l = listener_owner;
	struct flue_event ev = { .type = FLUE_EVENT_REQUEST };
	struct acc_request *req;
	bool full;

	if (acc_source_is_mute(&l->source))
		return -ENODEV;
	req = new_request(l, prov, info);
	if (!req)
		return -ENOMEM;
	pthread_mutex_lock(&l->lock);
	full = l->queued >= l->backlog;
	if (!full) {
		TAILQ_INSERT_TAIL(&l->queue, req, link);
		l->queued++;
		pthread_cond_signal(&l->arrived);
		/* Under the lock, so that there are never more notices than requests. */
		if (!l->source.fn)
			acc_event_raise(&l->source, &ev);
	}
	pthread_mutex_unlock(&l->lock);
	if (full) {
		free(req);
		return -ENOBUFS;
	}
	if (l->source.fn)
		acc_event_raise(&l->source, &ev);
	return 0;
}

/* ---- listeners ---- */

static struct flue_conn_request *listener_get_request(struct flue_listener *pub, int timeout_ms)
{
	CANCEL_HELD;
	struct acc_listener *l = to_listener(pub);
	struct acc_request *req = NULL;
	struct prov_await drive = { .word = &l->queued,
				    .timeout_ms = timeout_ms,
				    .cancel_was = cancel_was };
	struct timespec store;
	const struct timespec *at;
	int rc = acc_usable(adapter_of(l));

	if (rc)
		return acc_null(rc);
	at = acc_deadline(&store, timeout_ms);
	if (timeout_ms && !l->source.fn)
		l->ops->await_listener(l->prov, &drive);
	pthread_mutex_lock(&l->lock);
	while (!rc && !l->queued) {
		if (!timeout_ms)
			rc = -EAGAIN;
		else if (!acc_sleep_until(&l->arrived, &l->lock, at, cancel_was))
			rc = l->queued ? 0 : -ETIMEDOUT;
	}
	if (!rc) {
		req = TAILQ_FIRST(&l->queue);
		TAILQ_REMOVE(&l->queue, req, link);
		l->queued--;
		atomic_fetch_add(&l->held, 1);
		acc_event_limit(&l->source, l->queued);
	}
	pthread_mutex_unlock(&l->lock);
	return rc ? acc_null(rc) : &req->pub;
}

static void reject_queued(struct acc_listener *l)
{
	struct acc_request *req;

	while ((req = TAILQ_FIRST(&l->queue))) {
		TAILQ_REMOVE(&l->queue, req, link);
		l->ops->reject(req->prov, NULL, 0);
		free(req);
	}
}

static bool acc_listener_destroy(struct flue_listener *pub)
{
	CANCEL_HELD;
	struct acc_listener *l = to_listener(pub);
	struct acc_adapter *a = adapter_of(l);
	struct acc_op own, *op;
	int rc;

	if (acc_in_callback(l))
		return acc_ok(-EDEADLK);
	if (atomic_load(&l->held))
		return acc_ok(-EBUSY);
	op = acc_op_begin(&own);
	rc = acc_op_result(a, op, l->ops->destroy_listener(l->prov, &op->base), l);
	if (rc && rc != -ETIMEDOUT)
		return acc_ok(rc);
	if (rc)
		acc_source_mute(&l->source);
	/* In a child of fork() the requests are the parent's to answer. */
	if (!acc_inherited(a))
		reject_queued(l);
	acc_source_fini(&l->source);
	atomic_fetch_sub(&a->children, 1);
	if (!rc)
		free(l);
	return acc_ok(rc);
}

static const struct flue_listener_ops listener_ops = {
	.size = sizeof(listener_ops),
	.destroy = acc_listener_destroy,
	.get_request = listener_get_request,
};

static int fill_attr(const struct acc_adapter *a, struct prov_listen_attr *to,
		     const struct flue_listen_attr *from)
{
	if (acc_check_address(from->local, from->local_len))
		return -EINVAL;
	if (from->backlog < 0 || from->max_half_open < 0 || from->request_timeout_ms < 0)
		return -EINVAL;
	if (from->flags & ~(uint32_t)FLUE_LISTEN_FULL)
		return -EINVAL;
	to->full = from->flags & FLUE_LISTEN_FULL;
	if (to->full && !(a->caps.features & FLUE_FEATURE_FULL))
		return -EOPNOTSUPP;
	to->local = from->local;
	to->local_len = from->local_len;
	to->backlog = from->backlog ? from->backlog : DEFAULT_BACKLOG;
	to->max_half_open = from->max_half_open ? from->max_half_open : DEFAULT_HALF_OPEN;
	to->request_timeout_ms = from->request_timeout_ms ? from->request_timeout_ms
							  : DEFAULT_REQUEST_MS;
	return 0;
}

struct flue_listener *acc_listener_create(struct flue_adapter *adapter,
					  const struct flue_listen_attr *from)
{
	CANCEL_HELD;
	struct acc_adapter *a = to_adapter(adapter);
	struct prov_listen_attr attr;
	struct flue_listen_attr copy;
	struct acc_listener *l;
	int rc = acc_usable(a);

	if (!rc)
		rc = acc_attr_copy(&copy, sizeof(copy), from,
				   ACC_ATTR_SIZE(struct flue_listen_attr, event_arg));
	if (!rc)
		rc = fill_attr(a, &attr, &copy);
	if (rc)
		return acc_null(rc);
	l = calloc(1, sizeof(*l));
	if (!l)
		return acc_null(-ENOMEM);
	l->pub.ops = &listener_ops;
	l->pub.adapter = adapter;
	l->ops = a->ops;
	l->backlog = (uint32_t)attr.backlog;
	l->lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	l->arrived = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
	TAILQ_INIT(&l->queue);
	acc_source_init(&l->source, a, &l->pub, copy.on_event, copy.event_arg);
	l->source.counted = &l->slot;
	acc_source_add(&l->source, &l->slot);
	attr.owner = l;
	rc = a->ops->listen(a->prov, &attr, &l->pub.local, &l->prov);
	if (rc) {
		free(l);
		return acc_null(rc);
	}
	atomic_fetch_add(&a->children, 1);
	return &l->pub;
}
