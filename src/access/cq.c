/* SPDX-License-Identifier: MIT */
/*
 * Completion queues. Taking completions goes straight to the provider. What is added here: one
 * notice per request (to a function, a descriptor, or both), and the mode in which the library
 * polls by itself and hands each completion to the program (CH-4).
 */
#include <stdlib.h>

#include "access/access_priv.h"
#include "base/probe.h"

static bool acc_cq_destroy(struct flue_cq *pub)
{
	CANCEL_HELD;
	struct acc_cq *cq = to_cq(pub);
	struct acc_adapter *a = to_adapter(pub->adapter);
	struct acc_op own, *op;
	int rc;

	if (acc_in_callback(cq))
		return acc_ok(-EDEADLK);
	if (atomic_load(&cq->children))
		return acc_ok(-EBUSY);
	op = acc_op_begin(&own);
	rc = acc_op_result(a, op, cq->ops->destroy_cq(cq->prov, &op->base), cq);
	if (rc && rc != -ETIMEDOUT)
		return acc_ok(rc);
	if (rc)
		acc_source_mute(&cq->source);
	acc_source_fini(&cq->source);
	acc_completion_unbind(a, cq->cpu);
	flag_close(&cq->flag, acc_inherited(a));
	atomic_fetch_sub(&a->children, 1);
	if (!rc)
		free(cq);
	return acc_ok(rc);
}

/* May the program take completions, or ask for notices of them? */
static int usable(const struct acc_cq *cq)
{
	int rc = acc_usable(cq->source.adapter);

	return !rc && cq->on_completion ? -EBUSY : rc;
}

/* After an overflow was told to the end, the CQ is as new: the next one is told again. */
static int poll_failed(struct acc_cq *cq, int rc)
{
	if (rc == -EOVERFLOW)
		atomic_store(&cq->failed, false);
	return rc;
}

static bool cq_poll(struct flue_cq *pub, struct flue_wc *wc, size_t size, uint32_t n, uint32_t *got)
{
	CANCEL_HELD;
	struct acc_cq *cq = to_cq(pub);
	int rc = usable(cq);

	*got = 0;
	if (rc)
		return acc_ok(rc);
	rc = cq->ops->poll(cq->prov, wc, size, n);
	if (rc < 0)
		return acc_ok(poll_failed(cq, rc));
	*got = (uint32_t)rc;
	return true;
}

static bool acc_cq_wait(struct flue_cq *pub, int timeout_ms)
{
	struct acc_cq *cq = to_cq(pub);
	int rc = usable(cq);

	/* The one slot that may be cancelled: it knows what to give back, we hold nothing. */
	return acc_ok(rc ? rc : cq->ops->wait(cq->prov, timeout_ms));
}

static bool cq_notify(struct flue_cq *pub, uint32_t kind, flue_notify_fn fn, void *arg)
{
	CANCEL_HELD;
	struct acc_cq *cq = to_cq(pub);
	int rc = usable(cq);
	bool had;

	if (rc != -ENODEV && kind > FLUE_NOTIFY_SOLICITED)
		rc = -EINVAL;
	if (rc)
		return acc_ok(rc);
	pthread_mutex_lock(&cq->lock);
	had = cq->pending;
	if (had && cq->kind == FLUE_NOTIFY_NEXT)
		kind = FLUE_NOTIFY_NEXT;
	cq->pending = true;
	cq->kind = kind;
	cq->fn = fn;
	cq->fn_arg = arg;
	pthread_mutex_unlock(&cq->lock);

	rc = cq->ops->arm(cq->prov, kind);
	if (rc >= 0)
		return true;
	if (!had) {
		pthread_mutex_lock(&cq->lock);
		cq->pending = false;
		pthread_mutex_unlock(&cq->lock);
	}
	return acc_ok(rc);
}

static int cq_fd(struct flue_cq *pub)
{
	CANCEL_HELD;
	struct acc_cq *cq = to_cq(pub);
	int rc = usable(cq), lamp;

	if (!rc) {
		lamp = acc_tasks_lamp(&cq->source.adapter->tasks);
		pthread_mutex_lock(&cq->lock);
		if (cq->flag.fd < 0)
			rc = lamp < 0 ? lamp : flag_open(&cq->flag, lamp, cq->noticed);
		if (!rc)
			rc = cq->flag.fd;
		pthread_mutex_unlock(&cq->lock);
	}
	return acc_ok(rc) ? rc : -1;
}

static bool cq_clear_fd(struct flue_cq *pub)
{
	CANCEL_HELD;
	struct acc_cq *cq = to_cq(pub);
	bool noticed;
	int rc = acc_usable(cq->source.adapter);

	if (rc)
		return acc_ok(rc);
	pthread_mutex_lock(&cq->lock);
	noticed = cq->noticed;
	cq->noticed = false;
	if (noticed)
		flag_show(&cq->flag, false);
	pthread_mutex_unlock(&cq->lock);
	return noticed;
}

static bool acc_cq_resize(struct flue_cq *pub, uint32_t depth)
{
	CANCEL_HELD;
	struct acc_cq *cq = to_cq(pub);
	struct acc_adapter *a = to_adapter(pub->adapter);
	struct acc_op own, *op;
	int rc = acc_usable(a);

	if (!rc && (!depth || depth > a->caps.max_cq_depth))
		rc = -EINVAL;
	if (!rc) {
		op = acc_op_begin(&own);
		rc = acc_op_result(a, op, cq->ops->resize_cq(cq->prov, depth, &op->base), NULL);
	}
	if (!rc)
		pub->depth = depth;
	return acc_ok(rc);
}

static const struct flue_cq_ops cq_ops = {
	.size = sizeof(cq_ops),
	.destroy = acc_cq_destroy,
	.poll = cq_poll,
	.notify = cq_notify,
	.wait = acc_cq_wait,
	.fd = cq_fd,
	.clear_fd = cq_clear_fd,
	.resize = acc_cq_resize,
};

/* One at a time: a completion that was taken but not yet handed over could name a QP that the
 * program destroys meanwhile. 1, 0: there was none, or the error of poll. */
static int hand_over_one(struct acc_cq *cq)
{
	struct acc_frame frame;
	struct flue_wc wc;
	int rc;

	atomic_fetch_add(&cq->turn, 1);
	rc = cq->ops->poll(cq->prov, &wc, sizeof(wc), 1);
	if (rc > 0) {
		acc_frame_enter(&frame, cq, wc.qp);
		cq->on_completion(&cq->pub, &wc, cq->arg);
		acc_frame_leave(&frame);
	}
	atomic_fetch_add(&cq->turn, 1);
	return rc;
}

/* Poll until empty, arm, and look again: a completion that came before the arming has no event.
 * CQ_ERROR has told of an overflow; the handler goes on with what comes after. */
static void drain(struct acc_cq *cq)
{
	int rc;

	do {
		do {
			rc = hand_over_one(cq);
		} while (rc > 0);
		if (rc && poll_failed(cq, rc) != -EOVERFLOW)
			return;
	} while (cq->ops->arm(cq->prov, FLUE_NOTIFY_NEXT) > 0);
}

static void give_notice(struct acc_cq *cq)
{
	struct acc_frame frame;
	flue_notify_fn fn = NULL;
	void *arg = NULL;

	pthread_mutex_lock(&cq->lock);
	if (cq->pending) {
		cq->pending = false;
		fn = cq->fn;
		arg = cq->fn_arg;
		if (!cq->noticed)
			flag_show(&cq->flag, true);
		cq->noticed = true;
	}
	pthread_mutex_unlock(&cq->lock);
	if (!fn)
		return;
	acc_frame_enter(&frame, cq, NULL);
	fn(&cq->pub, arg);
	acc_frame_leave(&frame);
}

void acc_cq_fired(struct acc_cq *cq)
{
	unsigned calls;

	PROBE(notice, &cq->pub, cq->pub.cpu);
	if (acc_source_is_mute(&cq->source))
		return;
	if (!cq->on_completion) {
		give_notice(cq);
		return;
	}
	/* A second call while the first one drains (poll() inside may make completions): the first
	 * one goes round once more, which keeps the order within the CQ. */
	calls = atomic_fetch_add(&cq->calls, 1) + 1;
	if (calls > 1)
		return;
	do {
		drain(cq);
	} while (!atomic_compare_exchange_strong(&cq->calls, &calls, 0));
}

void acc_cq_pass(struct acc_cq *cq)
{
	const struct timespec pause = { .tv_nsec = 20000 };
	unsigned turn = atomic_load(&cq->turn);

	/* On the draining thread itself the current completion is another QP's: see acc_qp_destroy(). */
	if (!cq->on_completion || !(turn & 1) || acc_in_callback(cq))
		return;
	while (atomic_load(&cq->turn) == turn)
		nanosleep(&pause, NULL);
}

void acc_cq_error(void *cq_owner)
{
	struct acc_cq *cq = cq_owner;
	struct flue_event ev = { .type = FLUE_EVENT_CQ_ERROR };

	if (atomic_exchange(&cq->failed, true))
		return;
	log_error(access, "a completion queue of %u overflowed", cq->pub.depth);
	acc_event_raise(&cq->source, &ev);
}

static struct acc_cq *new_cq(struct acc_adapter *a, const struct flue_cq_attr *attr)
{
	struct acc_cq *cq = calloc(1, sizeof(*cq));

	if (!cq)
		return NULL;
	cq->pub.ops = &cq_ops;
	cq->pub.adapter = &a->pub;
	cq->pub.depth = attr->depth;
	cq->ops = a->ops;
	cq->on_completion = attr->on_completion;
	cq->arg = attr->arg;
	cq->lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	cq->flag = (struct flag)FLAG_NONE;
	acc_source_init(&cq->source, a, &cq->pub, NULL, NULL);
	acc_source_add(&cq->source, &cq->slot);
	return cq;
}

struct flue_cq *acc_cq_create(struct flue_adapter *adapter, const struct flue_cq_attr *from)
{
	CANCEL_HELD;
	struct acc_adapter *a = to_adapter(adapter);
	struct prov_cq_attr attr = { 0 };
	struct acc_op own, *op;
	struct flue_cq_attr copy;
	struct acc_cq *cq;
	int rc = acc_usable(a);

	if (!rc)
		rc = acc_attr_copy(&copy, sizeof(copy), from,
				   ACC_ATTR_SIZE(struct flue_cq_attr, flags));
	if (!rc && (!copy.depth || copy.depth > a->caps.max_cq_depth ||
		    copy.flags & ~(uint32_t)FLUE_CQ_ANY_THREAD))
		rc = -EINVAL;
	if (rc)
		return acc_null(rc);
	cq = new_cq(a, &copy);
	if (!cq)
		return acc_null(-ENOMEM);
	rc = acc_completion_bind(a, copy.cpu_plus_1, &cq->cpu);
	if (rc)
		goto free_cq;
	cq->pub.cpu = cq->cpu->cpu;
	attr.depth = copy.depth;
	/* A notice may come with a function at any time (CH-4). */
	attr.affine = !(copy.flags & FLUE_CQ_ANY_THREAD);
	attr.handler = cq->cpu->handler;
	attr.owner = cq;
	op = acc_op_new();
	rc = -ENOMEM;
	if (!op)
		goto unbind;
	op->attr.cq = attr;
	rc = acc_op_result(a, op, a->ops->create_cq(a->prov, &op->attr.cq, &cq->prov, &op->base),
			   cq);
	if (rc)
		goto unbind;
	if (cq->on_completion) {
		rc = cq->ops->arm(cq->prov, FLUE_NOTIFY_NEXT);
		if (rc < 0)
			goto destroy;
	}
	atomic_fetch_add(&a->children, 1);
	return &cq->pub;
destroy:
	op = acc_op_begin(&own);
	if (acc_op_result(a, op, a->ops->destroy_cq(cq->prov, &op->base), cq) == -ETIMEDOUT)
		rc = -ETIMEDOUT;
unbind:
	acc_completion_unbind(a, cq->cpu);
free_cq:
	/* Given up, it is the adapter's. */
	if (rc != -ETIMEDOUT)
		free(cq);
	return acc_null(rc);
}
