/* SPDX-License-Identifier: MIT */
/* See faulty.h. */
#include "doubles/faulty.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <unistd.h>

#include "doubles/faulty_keys.h"
#include "provider/registry.h"

/* Everything below is under `lock`. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

struct slot_plan {
	unsigned calls, nth;
	int error;
	bool fails, delayed;
	int delay_ms;
};

struct upcall_plan {
	enum faulty_action action;
	int ms;
};

static struct {
	struct slot_plan slots[FAULTY_NSLOTS];
	struct upcall_plan upcalls[FLUE_EVENT_NTYPES + 1];
	bool never_flush;
} plan;

static const struct prov_ops *inner;
static const struct prov_upcalls *outer_up;

#define NAME(slot) #slot,
static const char *const names[] = { FAULTY_CONTROL_SLOTS(NAME) FAULTY_OTHER_SLOTS(NAME) };
#undef NAME

/* ---- things that happen later, each on a thread of its own ---- */

struct task {
	TAILQ_ENTRY(task) link;
	void *owner; /* of the up-call; NULL: an answer */
	bool running, cancelled;
	int ms;
	void (*run)(struct task *task, bool cancelled);
	/* an answer */
	struct prov_op op, *outer;
	int rc;
	/* an up-call */
	struct flue_event ev;
	struct prov_conn_info conn;
	bool has_conn;
	struct prov_request *request;
	struct prov_request_info info;
	uint8_t private_data[512];
};

static TAILQ_HEAD(, task) tasks = TAILQ_HEAD_INITIALIZER(tasks);

/* Owners being destroyed: nothing late may reach them any more. */
struct dying {
	void *owner;
	TAILQ_ENTRY(dying) link;
};
static TAILQ_HEAD(, dying) dying_owners = TAILQ_HEAD_INITIALIZER(dying_owners);

static void *task_main(void *arg)
{
	struct task *task = arg;
	bool cancelled;

	usleep((useconds_t)task->ms * 1000);
	pthread_mutex_lock(&lock);
	task->running = true;
	cancelled = task->cancelled;
	pthread_mutex_unlock(&lock);
	task->run(task, cancelled);
	pthread_mutex_lock(&lock);
	TAILQ_REMOVE(&tasks, task, link);
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
	free(task);
	return NULL;
}

static void schedule(struct task *task)
{
	pthread_attr_t attr;
	pthread_t thread;
	struct dying *d;

	pthread_mutex_lock(&lock);
	TAILQ_INSERT_TAIL(&tasks, task, link);
	TAILQ_FOREACH(d, &dying_owners, link)
		if (task->owner && d->owner == task->owner)
			task->cancelled = true;
	pthread_mutex_unlock(&lock);
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	if (pthread_create(&thread, &attr, task_main, task))
		abort();
	pthread_attr_destroy(&attr);
}

static struct task *new_task(void (*run)(struct task *task, bool cancelled), int ms)
{
	struct task *task = calloc(1, sizeof(*task));

	assert(task);
	task->run = run;
	task->ms = ms;
	return task;
}

/* ---- plans of slots ---- */

static int planned_failure(enum faulty_slot slot)
{
	struct slot_plan *p = &plan.slots[slot];
	int rc = 0;

	pthread_mutex_lock(&lock);
	p->calls++;
	if (p->fails && (!p->nth || p->calls == p->nth))
		rc = -p->error;
	pthread_mutex_unlock(&lock);
	return rc;
}

static void give_answer(struct task *task, bool cancelled)
{
	(void)cancelled;
	task->outer->done(task->outer, task->rc);
}

/* The inner provider answered later by itself. */
static void inner_answered(struct prov_op *op, int rc)
{
	struct task *task = (struct task *)((char *)op - offsetof(struct task, op));

	task->rc = rc;
	schedule(task);
}

/* The op to give the inner provider. */
static struct prov_op *interpose(enum faulty_slot slot, struct prov_op *outer)
{
	struct task *task;
	bool delayed;
	int ms;

	pthread_mutex_lock(&lock);
	delayed = plan.slots[slot].delayed;
	ms = plan.slots[slot].delay_ms;
	pthread_mutex_unlock(&lock);
	if (!delayed)
		return outer;
	task = new_task(give_answer, ms);
	task->op.done = inner_answered;
	task->outer = outer;
	return &task->op;
}

static int answer(struct prov_op *used, struct prov_op *outer, int rc)
{
	if (used == outer || rc == -EINPROGRESS)
		return rc;
	inner_answered(used, rc);
	return -EINPROGRESS;
}

/* The body of a control slot: `call` uses `use` as its op. */
#define CONTROL(slot, call)                                         \
	do {                                                        \
		struct prov_op *use = interpose(FAULTY_##slot, op); \
		int rc = planned_failure(FAULTY_##slot);            \
                                                                    \
		if (!rc)                                            \
			rc = inner->slot call;                      \
		return answer(use, op, rc);                         \
	} while (0)
/* Of the others. */
#define DIRECT(slot, call)                               \
	do {                                             \
		int rc = planned_failure(FAULTY_##slot); \
                                                         \
		return rc ? rc : inner->slot call;       \
	} while (0)

/* ---- up-calls ---- */

static enum faulty_action action_for(uint32_t type, int *ms)
{
	enum faulty_action action;

	pthread_mutex_lock(&lock);
	action = plan.upcalls[type].action;
	*ms = plan.upcalls[type].ms;
	pthread_mutex_unlock(&lock);
	return action;
}

static void run_upcall(struct task *task, bool cancelled)
{
	if (cancelled && !task->request)
		return;
	switch (task->ev.type) {
	case FLUE_EVENT_REQUEST:
		if (cancelled || outer_up->request(task->owner, task->request, &task->info))
			inner->reject(task->request, NULL, 0);
		break;
	case FLUE_EVENT_CQ_ERROR: outer_up->cq_error(task->owner); break;
	case FLUE_EVENT_SRQ_LIMIT: outer_up->srq_limit(task->owner); break;
	default: outer_up->qp_event(task->owner, &task->ev, task->has_conn ? &task->conn : NULL);
	}
}

static struct task *late_upcall(void *owner, uint32_t type, int ms)
{
	struct task *task = new_task(run_upcall, ms);

	task->owner = owner;
	task->ev.type = type;
	return task;
}

static const void *keep_data(struct task *task, const void *data, size_t length)
{
	if (!data)
		return NULL;
	assert(length <= sizeof(task->private_data));
	return memcpy(task->private_data, data, length);
}

static void up_qp_event(void *owner, const struct flue_event *ev, const struct prov_conn_info *conn)
{
	struct task *task;
	int ms, times = 0;

	switch (action_for(ev->type, &ms)) {
	case FAULTY_DROP: break;
	case FAULTY_PASS: times = 1; break;
	case FAULTY_TWICE: times = 2; break;
	case FAULTY_LATE:
		task = late_upcall(owner, ev->type, ms);
		task->ev = *ev;
		if (conn) {
			task->has_conn = true;
			task->conn = *conn;
			task->conn.private_data = keep_data(task, conn->private_data,
							    conn->private_len);
		}
		schedule(task);
		break;
	}
	while (times--)
		outer_up->qp_event(owner, ev, conn);
}

static void up_simple(void *owner, uint32_t type, void (*call)(void *owner))
{
	int ms, times = 0;

	switch (action_for(type, &ms)) {
	case FAULTY_DROP: break;
	case FAULTY_PASS: times = 1; break;
	case FAULTY_TWICE: times = 2; break;
	case FAULTY_LATE: schedule(late_upcall(owner, type, ms)); break;
	}
	while (times--)
		call(owner);
}

static void up_cq_error(void *owner)
{
	up_simple(owner, FLUE_EVENT_CQ_ERROR, outer_up->cq_error);
}

static void up_srq_limit(void *owner)
{
	up_simple(owner, FLUE_EVENT_SRQ_LIMIT, outer_up->srq_limit);
}

static int up_request(void *owner, struct prov_request *req, const struct prov_request_info *info)
{
	struct task *task;
	int ms;

	switch (action_for(FLUE_EVENT_REQUEST, &ms)) {
	case FAULTY_DROP: return -ENOBUFS;
	case FAULTY_LATE:
		task = late_upcall(owner, FLUE_EVENT_REQUEST, ms);
		task->request = req;
		task->info = *info;
		task->info.private_data = keep_data(task, info->private_data, info->private_len);
		schedule(task);
		return 0;
	default: return outer_up->request(owner, req, info);
	}
}

static const struct prov_upcalls upcalls = {
	.qp_event = up_qp_event,
	.cq_error = up_cq_error,
	.srq_limit = up_srq_limit,
	.request = up_request,
};

/* ---- handles and their owners: a destroyed object gets no late up-call ---- */

struct known {
	const void *handle;
	struct dying dying;
	TAILQ_ENTRY(known) link;
};
static TAILQ_HEAD(, known) objects = TAILQ_HEAD_INITIALIZER(objects);

static struct known *know(void *owner)
{
	struct known *k = calloc(1, sizeof(*k));

	assert(k);
	k->dying.owner = owner;
	return k;
}

static void know_handle(struct known *k, const void *handle)
{
	pthread_mutex_lock(&lock);
	k->handle = handle;
	TAILQ_INSERT_TAIL(&objects, k, link);
	pthread_mutex_unlock(&lock);
}

static bool busy_with(const void *owner)
{
	struct task *task;
	bool busy = false;

	TAILQ_FOREACH(task, &tasks, link) {
		if (task->owner == owner) {
			task->cancelled = true;
			busy = true;
		}
	}
	return busy;
}

/* Before an object is destroyed. */
static struct known *silence(const void *handle)
{
	struct known *k;

	pthread_mutex_lock(&lock);
	TAILQ_FOREACH(k, &objects, link)
		if (k->handle == handle)
			break;
	assert(k);
	TAILQ_INSERT_TAIL(&dying_owners, &k->dying, link);
	while (busy_with(k->dying.owner))
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
	return k;
}

/* After; rc: did it work? */
static void forget(struct known *k, bool gone)
{
	pthread_mutex_lock(&lock);
	while (busy_with(k->dying.owner))
		pthread_cond_wait(&changed, &lock);
	TAILQ_REMOVE(&dying_owners, &k->dying, link);
	if (gone)
		TAILQ_REMOVE(&objects, k, link);
	pthread_mutex_unlock(&lock);
	if (gone)
		free(k);
}

/* The inner provider may answer a create or destroy later. To keep the books simple, wait here:
 * the answer to the caller can still be late. */
struct patience {
	struct prov_op op;
	bool answered;
	int rc;
};

static void patience_done(struct prov_op *op, int rc)
{
	struct patience *p = (struct patience *)op;

	pthread_mutex_lock(&lock);
	p->rc = rc;
	p->answered = true;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}

static int patience_result(struct patience *p, int rc)
{
	if (rc != -EINPROGRESS)
		return rc;
	pthread_mutex_lock(&lock);
	while (!p->answered)
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
	return p->rc;
}

/* A create slot of an object that has up-calls; `call` uses &p.op as its op. */
#define CREATE_KNOWN(slot, owner, call)                             \
	do {                                                        \
		struct patience p = { .op.done = patience_done };   \
		struct prov_op *use = interpose(FAULTY_##slot, op); \
		int rc = planned_failure(FAULTY_##slot);            \
		struct known *k;                                    \
                                                                    \
		if (rc)                                             \
			return answer(use, op, rc);                 \
		k = know(owner);                                    \
		rc = patience_result(&p, inner->slot call);         \
		if (rc)                                             \
			free(k);                                    \
		else                                                \
			know_handle(k, *out);                       \
		return answer(use, op, rc);                         \
	} while (0)

#define DESTROY_KNOWN(slot, handle)                                   \
	do {                                                          \
		struct patience p = { .op.done = patience_done };     \
		struct prov_op *use = interpose(FAULTY_##slot, op);   \
		int rc = planned_failure(FAULTY_##slot);              \
		struct known *k;                                      \
                                                                      \
		if (rc)                                               \
			return answer(use, op, rc);                   \
		k = silence(handle);                                  \
		rc = patience_result(&p, inner->slot(handle, &p.op)); \
		forget(k, !rc);                                       \
		return answer(use, op, rc);                           \
	} while (0)

/* ---- slots ---- */

static int f_adapter(uint32_t index, struct flue_adapter_info *info, struct flue_caps *caps)
{
	return inner->adapter(index, info, caps);
}

static int f_open(const struct prov_open_attr *attr, struct prov_adapter **out)
{
	struct prov_open_attr mine = *attr;

	/* The access layer has one table for all adapters. */
	outer_up = attr->up;
	mine.up = &upcalls;
	DIRECT(open, (&mine, out));
}

static void f_close(struct prov_adapter *a)
{
	inner->close(a);
}

struct handler {
	prov_completion_fn fn;
	void *arg;
};

/* Never freed before the process ends; there are few. */
static struct handler handlers[4096];
static unsigned n_handlers;

static void on_completion(void *cq_owner, void *arg)
{
	struct handler *h = arg;
	int ms, times = 1;

	switch (action_for(FAULTY_COMPLETION, &ms)) {
	case FAULTY_DROP: times = 0; break;
	case FAULTY_TWICE: times = 2; break;
	default: break;
	}
	while (times--)
		h->fn(cq_owner, h->arg);
}

static int f_set_completion_handler(struct prov_adapter *a, int cpu, prov_completion_fn fn,
				    void *arg)
{
	struct handler *h;

	pthread_mutex_lock(&lock);
	assert(n_handlers < sizeof(handlers) / sizeof(handlers[0]));
	h = &handlers[n_handlers++];
	pthread_mutex_unlock(&lock);
	h->fn = fn;
	h->arg = arg;
	DIRECT(set_completion_handler, (a, cpu, on_completion, h));
}

static int f_create_pd(struct prov_adapter *a, struct prov_pd **out, struct prov_op *op)
{
	CONTROL(create_pd, (a, out, use));
}

static int f_destroy_pd(struct prov_pd *pd, struct prov_op *op)
{
	CONTROL(destroy_pd, (pd, use));
}

/* Regions go through faulty_keys.c, whose calls wait for the inner provider. */
#define KEYED(slot, call)                                           \
	do {                                                        \
		struct patience p = { .op.done = patience_done };   \
		struct prov_op *use = interpose(FAULTY_##slot, op); \
		int rc = planned_failure(FAULTY_##slot);            \
                                                                    \
		if (!rc)                                            \
			rc = patience_result(&p, call);             \
		return answer(use, op, rc);                         \
	} while (0)

static int f_register_mr(const struct prov_mr_attr *attr, struct prov_mr **out,
			 struct prov_keys *keys, struct prov_op *op)
{
	KEYED(register_mr, keyed_register(inner, attr, out, keys, &p.op));
}

static int f_modify_mr(struct prov_mr *mr, uint32_t what, const struct prov_mr_attr *attr,
		       struct prov_keys *keys, struct prov_op *op)
{
	KEYED(modify_mr, keyed_modify(inner, mr, what, attr, keys, &p.op));
}

static int f_deregister_mr(struct prov_mr *mr, struct prov_op *op)
{
	KEYED(deregister_mr, keyed_deregister(inner, mr, &p.op));
}

static int f_create_mw(struct prov_pd *pd, uint32_t type, struct prov_mw **out, uint32_t *rkey,
		       struct prov_op *op)
{
	CONTROL(create_mw, (pd, type, out, rkey, use));
}

static int f_destroy_mw(struct prov_mw *mw, struct prov_op *op)
{
	CONTROL(destroy_mw, (mw, use));
}

static int f_bind_mw(struct prov_mw *mw, struct prov_qp *qp, const struct flue_send_wr *wr,
		     uint32_t *rkey)
{
	int rc = planned_failure(FAULTY_bind_mw);

	return rc ? rc : keyed_bind(inner, mw, qp, wr, rkey);
}

static int f_create_cq(struct prov_adapter *a, const struct prov_cq_attr *attr,
		       struct prov_cq **out, struct prov_op *op)
{
	CREATE_KNOWN(create_cq, attr->owner, (a, attr, out, &p.op));
}

static int f_resize_cq(struct prov_cq *cq, uint32_t depth, struct prov_op *op)
{
	CONTROL(resize_cq, (cq, depth, use));
}

static int f_destroy_cq(struct prov_cq *cq, struct prov_op *op)
{
	DESTROY_KNOWN(destroy_cq, cq);
}

static int f_poll(struct prov_cq *cq, struct flue_wc *wc, size_t size, uint32_t n)
{
	char *from = (char *)wc, *to = from;
	int got, rc = planned_failure(FAULTY_poll);
	bool swallow;

	if (rc)
		return rc;
	pthread_mutex_lock(&lock);
	swallow = plan.never_flush;
	pthread_mutex_unlock(&lock);
	got = inner->poll(cq, wc, size, n);
	if (got > 0)
		keyed_show();
	for (int i = 0; i < got; i++, from += size) {
		if (swallow && ((struct flue_wc *)from)->status == FLUE_WC_FLUSHED)
			continue;
		memmove(to, from, size);
		to += size;
	}
	return got < 0 ? got : (int)((size_t)(to - (char *)wc) / size);
}

static int f_arm(struct prov_cq *cq, uint32_t kind)
{
	DIRECT(arm, (cq, kind));
}

static int f_wait(struct prov_cq *cq, int timeout_ms)
{
	DIRECT(wait, (cq, timeout_ms));
}

static int f_create_srq(struct prov_pd *pd, uint32_t depth, uint32_t max_sge, void *owner,
			struct prov_srq **out, struct prov_op *op)
{
	CREATE_KNOWN(create_srq, owner, (pd, depth, max_sge, owner, out, &p.op));
}

static int f_destroy_srq(struct prov_srq *srq, struct prov_op *op)
{
	DESTROY_KNOWN(destroy_srq, srq);
}

static int f_arm_srq(struct prov_srq *srq, uint32_t limit)
{
	DIRECT(arm_srq, (srq, limit));
}

static int f_modify_srq(struct prov_srq *srq, const struct flue_srq_values *values, uint32_t mask,
			struct prov_op *op)
{
	CONTROL(modify_srq, (srq, values, mask, use));
}

static int f_query_srq(struct prov_srq *srq, struct flue_srq_values *values, struct prov_op *op)
{
	CONTROL(query_srq, (srq, values, use));
}

static int f_post_srq(struct prov_srq *srq, const struct flue_recv_wr *wr,
		      const struct flue_recv_wr **bad)
{
	int rc;

	*bad = wr;
	rc = planned_failure(FAULTY_post_srq);
	return rc ? rc : keyed_post_srq(inner, srq, wr, bad);
}

static int f_create_qp(const struct prov_qp_attr *attr, struct prov_qp **out, uint32_t *number,
		       struct prov_op *op)
{
	CREATE_KNOWN(create_qp, attr->owner, (attr, out, number, &p.op));
}

static int f_destroy_qp(struct prov_qp *qp, struct prov_op *op)
{
	DESTROY_KNOWN(destroy_qp, qp);
}

static int f_reset_qp(struct prov_qp *qp, struct prov_op *op)
{
	CONTROL(reset_qp, (qp, use));
}

static int f_query_qp(struct prov_qp *qp, struct flue_qp_values *values, uint32_t mask,
		      struct prov_op *op)
{
	CONTROL(query_qp, (qp, values, mask, use));
}

static int f_modify_qp(struct prov_qp *qp, const struct flue_qp_values *values, uint32_t mask,
		       struct prov_op *op)
{
	if (op)
		CONTROL(modify_qp, (qp, values, mask, use));
	DIRECT(modify_qp, (qp, values, mask, NULL));
}

static int f_create_ah(struct prov_pd *pd, const struct flue_ah_attr *attr, struct prov_ah **out,
		       struct prov_op *op)
{
	CONTROL(create_ah, (pd, attr, out, use));
}

static int f_destroy_ah(struct prov_ah *ah, struct prov_op *op)
{
	CONTROL(destroy_ah, (ah, use));
}

static int f_post_send(struct prov_qp *qp, const struct flue_send_wr *wr,
		       const struct flue_send_wr **bad)
{
	int rc;

	*bad = wr;
	rc = planned_failure(FAULTY_post_send);
	return rc ? rc : keyed_post_send(inner, qp, wr, bad);
}

static int f_post_recv(struct prov_qp *qp, const struct flue_recv_wr *wr,
		       const struct flue_recv_wr **bad)
{
	int rc;

	*bad = wr;
	rc = planned_failure(FAULTY_post_recv);
	return rc ? rc : keyed_post_recv(inner, qp, wr, bad);
}

static int f_connect(struct prov_qp *qp, const struct flue_conn_attr *attr)
{
	DIRECT(connect, (qp, attr));
}

static int f_start(struct prov_qp *qp)
{
	DIRECT(start, (qp));
}

static int f_disconnect(struct prov_qp *qp, int timeout_ms)
{
	DIRECT(disconnect, (qp, timeout_ms));
}

static int f_abort(struct prov_qp *qp)
{
	DIRECT(abort, (qp));
}

static int f_listen(struct prov_adapter *a, const struct prov_listen_attr *attr,
		    struct sockaddr_storage *bound, struct prov_listener **out)
{
	int rc = planned_failure(FAULTY_listen);
	struct known *k;

	if (rc)
		return rc;
	k = know(attr->owner);
	rc = inner->listen(a, attr, bound, out);
	if (rc)
		free(k);
	else
		know_handle(k, *out);
	return rc;
}

static int f_destroy_listener(struct prov_listener *l, struct prov_op *op)
{
	DESTROY_KNOWN(destroy_listener, l);
}

static int f_accept(struct prov_request *req, struct prov_qp *qp, const struct flue_conn_attr *attr)
{
	int rc = planned_failure(FAULTY_accept);

	if (!rc)
		return inner->accept(req, qp, attr);
	/* The request is used up all the same. */
	inner->reject(req, NULL, 0);
	return rc;
}

static int f_reject(struct prov_request *req, const void *data, size_t length)
{
	int rc = planned_failure(FAULTY_reject), real = inner->reject(req, data, length);

	return rc ? rc : real;
}

static int f_adopt_stream(struct prov_qp *qp, const struct prov_stream *stream,
			  const struct flue_conn_attr *attr)
{
	DIRECT(adopt_stream, (qp, stream, attr));
}

static int f_adopt_gang(struct prov_adoption *gang, uint32_t n)
{
	DIRECT(adopt_gang, (gang, n));
}

static int f_terminate(struct prov_qp *qp)
{
	DIRECT(terminate, (qp));
}

static int f_join_group(struct prov_qp *qp, const struct flue_ah_attr *group)
{
	DIRECT(join_group, (qp, group));
}

static int f_leave_group(struct prov_qp *qp, const struct flue_ah_attr *group)
{
	DIRECT(leave_group, (qp, group));
}

/* What is told may be told late, by a thread of ours: nobody can wait for it inside. */
static int f_await_qp(struct prov_qp *qp, const struct prov_await *w)
{
	(void)qp;
	(void)w;
	return -EOPNOTSUPP;
}

static int f_await_listener(struct prov_listener *l, const struct prov_await *w)
{
	(void)l;
	(void)w;
	return -EOPNOTSUPP;
}

#define SLOT(slot) .slot = f_##slot,
static const struct prov_ops faulty_provider = {
	.size = sizeof(faulty_provider),
	.name = "faulty",
	.description = "another provider with planned faults",
	.adapter = f_adapter,
	.close = f_close,
	.await_qp = f_await_qp,
	.await_listener = f_await_listener,
	FAULTY_CONTROL_SLOTS(SLOT) FAULTY_OTHER_SLOTS(SLOT)
};
#undef SLOT

/* ---- plans ---- */

void faulty_wrap(const struct prov_ops *ops)
{
	inner = ops;
	if (provider_register(&faulty_provider))
		abort();
	faulty_reset();
}

void faulty_reset(void)
{
	pthread_mutex_lock(&lock);
	while (!TAILQ_EMPTY(&tasks))
		pthread_cond_wait(&changed, &lock);
	memset(&plan, 0, sizeof(plan));
	pthread_mutex_unlock(&lock);
}

void faulty_fail(enum faulty_slot slot, unsigned nth, int error)
{
	struct slot_plan *p = &plan.slots[slot];

	pthread_mutex_lock(&lock);
	p->fails = true;
	p->nth = nth ? p->calls + nth : 0;
	p->error = error;
	pthread_mutex_unlock(&lock);
}

void faulty_delay(enum faulty_slot slot, int ms)
{
	assert(slot < FAULTY_NCONTROL);
	pthread_mutex_lock(&lock);
	plan.slots[slot].delayed = ms >= 0;
	plan.slots[slot].delay_ms = ms;
	pthread_mutex_unlock(&lock);
}

void faulty_delay_all(int ms)
{
	for (enum faulty_slot slot = 0; slot < FAULTY_NCONTROL; slot++)
		faulty_delay(slot, ms);
}

void faulty_upcall(uint32_t type, enum faulty_action action, int ms)
{
	assert(type <= FAULTY_COMPLETION);
	pthread_mutex_lock(&lock);
	plan.upcalls[type].action = action;
	plan.upcalls[type].ms = ms;
	pthread_mutex_unlock(&lock);
}

void faulty_never_flush(bool on)
{
	pthread_mutex_lock(&lock);
	plan.never_flush = on;
	pthread_mutex_unlock(&lock);
}

unsigned faulty_calls(enum faulty_slot slot)
{
	unsigned calls;

	pthread_mutex_lock(&lock);
	calls = plan.slots[slot].calls;
	pthread_mutex_unlock(&lock);
	return calls;
}

const char *faulty_slot_name(enum faulty_slot slot)
{
	return names[slot];
}
