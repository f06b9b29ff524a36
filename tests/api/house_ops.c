/* SPDX-License-Identifier: MIT */
/* Operations on adapters and completion queues. See api.h. */
#include "api.h"

#include <poll.h>

static void unlock(void *lock)
{
	pthread_rwlock_unlock(lock);
}

/* ---- completions ---- */

void cq_poll(struct cqx *x)
{
	struct flue_wc wc[4];
	uint32_t got = 0;

	pthread_rwlock_rdlock(&x->round);
	undo_push(unlock, &x->round);
	if (!CALL(flue_poll(x->cq, wc, 1 + draw(4), &got))) {
		may_fail_with("poll", x->kind == CQ_HANDLER ? EBUSY : 0, 0);
		got = 0;
	}
	for (uint32_t i = 0; i < got; i++)
		book_completion(x, &wc[i]);
	undo_run();
}

void house_poll(struct house *h)
{
	for (int i = 0; i < CQS; i++)
		if (slot_hold(&h->cqs[i].slot)) {
			cq_poll(&h->cqs[i]);
			undo_run();
		}
}

/* Whoever has taken something has booked it when this returns. */
void cq_pass(struct cqx *x)
{
	pthread_rwlock_wrlock(&x->round);
	pthread_rwlock_unlock(&x->round);
}

/* A queue that is there; undo: put, and the house. */
static struct cqx *cq_hold(void)
{
	struct house *h = house_hold();
	struct cqx *x;

	if (!h)
		return NULL;
	x = &h->cqs[draw(CQS)];
	if (slot_hold(&x->slot))
		return x;
	undo_run();
	return NULL;
}

static void cq_drop(void)
{
	undo_run();
	undo_run();
}

void op_poll(void)
{
	struct cqx *x = cq_hold();

	if (!x)
		return;
	for (uint32_t n = 1 + draw(4); n; n--)
		cq_poll(x);
	cq_drop();
}

void op_wait(void)
{
	struct cqx *x = cq_hold();
	int timeout;

	if (!x)
		return;
	timeout = me->for_ever && me->mortal && draw(2) ? -1 : (int)draw(8);
	if (!CALL(flue_wait(x->cq, timeout)))
		may_fail_with("wait", ETIMEDOUT, EINTR, x->kind == CQ_HANDLER ? EBUSY : ETIMEDOUT,
			      0);
	else
		cq_poll(x);
	cq_drop();
}

static void on_notice(struct flue_cq *cq, void *arg)
{
	struct cqx *x = arg;
	struct flue_wc wc[2];
	uint32_t got;

	if (atomic_fetch_add(&x->told, 1) >= atomic_load(&x->asked))
		fail("more notices than were asked for");
	/* It may poll, and ask again. */
	pthread_rwlock_rdlock(&x->round);
	if (flue_poll(cq, wc, 2, &got))
		for (uint32_t i = 0; i < got; i++)
			book_completion(x, &wc[i]);
	pthread_rwlock_unlock(&x->round);
}

static void ask(struct cqx *x)
{
	bool by_function = draw(2);
	uint32_t kind = draw(2);

	atomic_fetch_add(&x->asked, by_function);
	if (!CALL(x->cq->ops->notify(x->cq, kind, by_function ? on_notice : NULL, x)))
		may_fail_with("notify", x->kind == CQ_HANDLER ? EBUSY : 0, 0);
}

void op_notify(void)
{
	struct cqx *x = cq_hold();
	struct pollfd file = { .fd = -1, .events = POLLIN };

	if (!x)
		return;
	if (x->kind != CQ_POLLED) {
		file.fd = CALL(x->cq->ops->fd(x->cq) + 1) - 1;
		if (file.fd < 0)
			may_fail_with("fd", x->kind == CQ_HANDLER ? EBUSY : 0, 0);
	}
	ask(x);
	if (draw(2) && x->kind != CQ_HANDLER)
		cq_poll(x);
	if (file.fd >= 0) {
		poll(&file, 1, (int)draw(5));
		errno = 0;
		if (!CALL(x->cq->ops->clear_fd(x->cq)))
			must(!errno || disturbed());
	}
	cq_drop();
}

void op_resize(void)
{
	struct cqx *x = cq_hold();
	uint32_t room;

	if (!x)
		return;
	/* Not below what was promised: who promises more meanwhile sees to it. */
	pthread_mutex_lock(&x->slot.lock);
	room = x->room;
	if (!x->cq->ops->resize(x->cq, (room ? room : 1) + draw(60)))
		may_fail_with("resize", EBUSY, 0);
	pthread_mutex_unlock(&x->slot.lock);
	cq_drop();
}

/* ---- events ---- */

void house_events(struct house *h, int timeout_ms)
{
	struct flue_event ev;

	pthread_rwlock_rdlock(&h->round);
	undo_push(unlock, &h->round);
	if (CALL(flue_get_event(h->adapter, &ev, timeout_ms)))
		book_event(&ev);
	else
		may_fail_with("get_event", timeout_ms ? ETIMEDOUT : EAGAIN, EINTR, 0);
	undo_run();
}

void op_events(void)
{
	struct house *h = house_hold();
	struct pollfd file = { .events = POLLIN };

	if (!h)
		return;
	if (one_in(4)) {
		file.fd = CALL(h->adapter->ops->event_fd(h->adapter) + 1) - 1;
		if (file.fd < 0)
			may_fail_with("event_fd", 0);
		else
			poll(&file, 1, (int)draw(4));
	}
	house_events(h, me->for_ever && me->mortal && draw(2) ? -1 : (int)draw(6));
	undo_run();
}

/* ---- shared receive queues ---- */

static void post_to_srq(struct srqx *x)
{
	struct rec *r = book_reserve(x->recs, NRECV);
	struct flue_sge sge;
	struct flue_recv_wr wr = { .sg = &sge, .n_sg = 1 };

	if (!r)
		return;
	undo_push(book_unreserve, r);
	r->kind = REC_RECV;
	r->at = x->memory + (size_t)r->index * MESSAGE;
	sge = flue_mr_sge(x->mr, (size_t)r->index * MESSAGE, MESSAGE);
	wr.id = book_id(r);
	/* Nobody may count on it before it is there, but it may be used before the call returns. */
	pthread_mutex_lock(&x->lock);
	book_post(r);
	if (x->srq->ops->post_recv(x->srq, &wr, NULL)) {
		x->posted++;
	} else {
		may_fail_with("srq post_recv", ENOMEM, 0);
		book_refuse(r);
	}
	pthread_mutex_unlock(&x->lock);
	undo_pop();
}

void srq_post(struct srqx *x)
{
	for (uint32_t n = 1 + draw(4); n; n--)
		post_to_srq(x);
}

void op_srq(void)
{
	struct house *h = house_hold();
	struct srqx *x;

	if (!h)
		return;
	x = &h->srqs[draw(SRQS)];
	if (slot_hold(&x->slot)) {
		srq_post(x);
		if (one_in(4) && !CALL(x->srq->ops->arm_limit(x->srq, draw(x->depth + 1))))
			may_fail_with("arm_limit", 0);
		undo_run();
	}
	undo_run();
}

/* So many messages did not arrive, their connection having ended. */
void srq_forget(struct srqx *x, uint32_t messages)
{
	pthread_mutex_lock(&x->lock);
	if (!x->tainted) {
		must(x->in_flight >= messages);
		x->in_flight -= messages;
	}
	pthread_mutex_unlock(&x->lock);
}

/* ---- what belongs to nobody ---- */

void op_names(void)
{
	struct flue_provider_info info = FLUE_ATTR(struct flue_provider_info);
	struct flue_adapter_info adapter = FLUE_ATTR(struct flue_adapter_info);
	struct flue_caps caps = FLUE_ATTR(struct flue_caps);

	must(*flue_wc_status_name(draw(20)) && *flue_qp_state_name(draw(20)));
	must(*flue_event_name(draw(20)) && *flue_close_reason_name(draw(20)));
	must(*flue_fault_name(draw(65536)) && *flue_socket_state_name(draw(9)));
	must(*flue_offload_state_name(draw(9)) && *flue_reserve_reason_name(draw(12)));
	must(*flue_version());
	must(flue_provider_info(0, &info) && info.n_adapters);
	must(flue_adapter_info(0, &adapter, &caps) && caps.max_qp);
	must(!flue_adapter_info(1000, &adapter, NULL) && errno == ENOENT);
	must(!flue_provider_info(1000, &info) && errno == ENOENT);
}

static void unwatch(void *watch)
{
	must(flue_unwatch_interfaces(watch));
}

void op_watch(void)
{
	struct flue_interface_watch *w = CALL(flue_watch_interfaces(NULL));
	const struct flue_interface *iface;
	uint32_t notice;

	if (!w) {
		may_fail_with("watch", EACCES, EPERM, EAFNOSUPPORT, EPROTONOSUPPORT, 0);
		return;
	}
	undo_push(unwatch, w);
	for (uint32_t n = draw(4); n; n--)
		if (!CALL(flue_next_interface(w, &notice, &iface, (int)draw(3))))
			may_fail_with("next", EAGAIN, ETIMEDOUT, EINTR, 0);
	undo_run();
}
