/* SPDX-License-Identifier: MIT */
#include "rnic/cq.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/cancel.h"
#include "base/util.h"
#include "rnic/rnic.h"

/* A completion as version 0.2 has it. */
#define WC_FIRST (offsetof(struct flue_wc, cpu) + sizeof(uint16_t))

static void run_fired(struct engine_note *n)
{
	struct cq *cq = container_of(n, struct cq, fired);

	cq->handler(cq->owner, cq->handler_arg);
}

static void run_teller(struct engine_note *n)
{
	struct cq *cq = container_of(n, struct cq_teller, note)->cq;

	cq->handler(cq->owner, cq->handler_arg);
}

static void run_error(struct engine_note *n)
{
	struct cq *cq = container_of(n, struct cq, error);

	cq->rnic->up->cq_error(cq->rnic->up_ctx, cq->owner);
}

int cq_create(struct rnic *r, struct engine *e, uint32_t depth, cq_handler_fn handler,
	      void *handler_arg, void *owner, struct cq **out)
{
	struct cq *cq = calloc(1, sizeof(*cq));

	if (!cq)
		return -ENOMEM;
	cq->ring = calloc(depth, sizeof(*cq->ring));
	if (!cq->ring) {
		free(cq);
		return -ENOMEM;
	}
	cq->rnic = r;
	cq->engine = e;
	cq->owner = owner;
	cq->handler = handler;
	cq->handler_arg = handler_arg;
	cq->depth = depth;
	cq->fired.run = run_fired;
	cq->error.run = run_error;
	lock_init(&cq->lock);
	pthread_mutex_lock(&r->lists);
	LIST_INSERT_HEAD(&r->cqs, cq, all);
	pthread_mutex_unlock(&r->lists);
	*out = cq;
	return 0;
}

int cq_roam(struct cq *cq)
{
	uint32_t n = cq->rnic->n_engines;

	cq->tellers = calloc(n, sizeof(*cq->tellers));
	if (!cq->tellers)
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i++)
		cq->tellers[i] = (struct cq_teller) { .note.run = run_teller, .cq = cq };
	return 0;
}

/* Under lock, or known to nobody else. */
static void disarm(struct cq *cq)
{
	if (cq->armed == CQ_NOT_ARMED)
		return;
	cq->armed = CQ_NOT_ARMED;
	atomic_fetch_sub(&cq->rnic->n_armed, 1);
}

void cq_destroy(struct cq *cq)
{
	pthread_mutex_lock(&cq->rnic->lists);
	LIST_REMOVE(cq, all);
	pthread_mutex_unlock(&cq->rnic->lists);
	engine_untell(cq->engine, &cq->fired);
	engine_untell(cq->engine, &cq->error);
	for (uint32_t i = 0; cq->tellers && i < cq->rnic->n_engines; i++)
		engine_untell(&cq->rnic->engines[i], &cq->tellers[i].note);
	disarm(cq);
	free(cq->tellers);
	free(cq->ring);
	free(cq);
}

int cq_resize(struct cq *cq, uint32_t depth)
{
	struct cqe *ring = calloc(depth, sizeof(*ring)), *old = ring;
	uint32_t count;
	int rc = ring ? 0 : -ENOMEM;

	if (rc)
		return rc;
	lock_take(&cq->lock);
	count = atomic_load(&cq->count);
	if (count > depth) {
		rc = -EBUSY;
	} else {
		for (uint32_t i = 0; i < count; i++)
			ring[i] = cq->ring[(cq->head + i) % cq->depth];
		old = cq->ring;
		cq->ring = ring;
		cq->depth = depth;
		cq->head = 0;
	}
	lock_give(&cq->lock);
	free(old);
	return rc;
}

/* Inline, so that it is quick for the one size that nearly all have. */
static inline __attribute__((always_inline)) int take_completions(struct cq *cq, char *to,
								  size_t size, uint32_t n)
{
	uint32_t count, i;
	int rc;

	lock_take(&cq->lock);
	count = atomic_load_explicit(&cq->count, memory_order_relaxed);
	n = min_u32(n, count);
	for (i = 0; i < n; i++, to += size) {
		const struct cqe *e = &cq->ring[cq->head];

		if (size > sizeof(e->wc))
			memset(to + sizeof(e->wc), 0, size - sizeof(e->wc));
		memcpy(to, &e->wc, min_size(size, sizeof(e->wc)));
		if (e->wq)
			wq_free(e->wq, e->free_to);
		cq->head = cq->head + 1 == cq->depth ? 0 : cq->head + 1;
	}
	atomic_store_explicit(&cq->count, count - n, memory_order_release);
	rc = (int)n;
	if (count == 0 && cq->lost) {
		cq->lost = false;
		atomic_store(&cq->overflowed, false);
		rc = -EOVERFLOW;
	}
	lock_give(&cq->lock);
	return rc;
}

/* The program was built against another header. */
static __attribute__((noinline)) int take_sized(struct cq *cq, char *to, size_t size, uint32_t n)
{
	return take_completions(cq, to, size, n);
}

/* Is this the thread of an engine that may be inside the handler? */
static bool is_telling(struct cq *cq)
{
	if (engine_is_self(cq->engine))
		return true;
	for (uint64_t mask = cq->tellers ? atomic_load(&cq->engines) : 0; mask; mask &= mask - 1)
		if (engine_is_self(&cq->rnic->engines[__builtin_ctzll(mask)]))
			return true;
	return false;
}

static void drive_engines(struct cq *cq)
{
	uint64_t mask = atomic_load_explicit(&cq->engines, memory_order_relaxed);

	while (mask) {
		unsigned i = (unsigned)__builtin_ctzll(mask);

		mask &= mask - 1;
		engine_poll(&cq->rnic->engines[i]);
	}
}

int cq_poll_sized(struct cq *cq, struct flue_wc *wc, size_t size, uint32_t n)
{
	if (size < WC_FIRST)
		return -EINVAL;
	/*
	 * The handler's thread drives by itself; driving from inside it would starve others. Who
	 * asked for a notice is about to sleep: a lease taken now would delay that notice.
	 */
	if (!cq_has_news(cq)) {
		if (n && !is_telling(cq) &&
		    atomic_load_explicit(&cq->armed, memory_order_relaxed) == CQ_NOT_ARMED)
			drive_engines(cq);
		if (!cq_has_news(cq))
			return 0;
	}
	if (size != sizeof(*wc))
		return take_sized(cq, (char *)wc, size, n);
	return take_completions(cq, (char *)wc, sizeof(*wc), n);
}

int cq_arm(struct cq *cq, uint32_t kind)
{
	int want = kind == FLUE_NOTIFY_SOLICITED ? CQ_ARMED_SOLICITED : CQ_ARMED_NEXT;
	int waiting, rc;

	engine_lock(cq->engine);
	if (!cq->tellers)
		engine_bind(cq->engine);
	rc = engine_start(cq->engine);
	engine_unlock(cq->engine);
	if (rc)
		return rc;
	lock_take(&cq->lock);
	if (cq->armed == CQ_NOT_ARMED)
		atomic_fetch_add(&cq->rnic->n_armed, 1);
	if (cq->armed < want)
		cq->armed = want;
	waiting = atomic_load(&cq->count) != 0;
	lock_give(&cq->lock);
	for (uint64_t mask = atomic_load(&cq->engines); mask; mask &= mask - 1)
		engine_end_lease(&cq->rnic->engines[__builtin_ctzll(mask)]);
	return waiting;
}

static void stop_waiting(void *cq)
{
	atomic_fetch_sub(&((struct cq *)cq)->waiters, 1);
}

int cq_wait(struct cq *cq, int timeout_ms)
{
	CANCEL_HELD;
	uint64_t mask = atomic_load(&cq->engines);
	struct engine *e = cq->engine;
	int rc;

	/* With all its queue pairs on one other engine, that is the one to drive. Where there are
	 * several, we can sleep in one only: the others' threads must not wait for us. */
	if (mask && (mask & (mask - 1)) == 0)
		e = &cq->rnic->engines[__builtin_ctzll(mask)];
	for (mask &= ~(1ull << e->index); mask; mask &= mask - 1)
		engine_end_lease(&cq->rnic->engines[__builtin_ctzll(mask)]);
	lock_take(&cq->lock);
	atomic_fetch_add(&cq->waiters, 1);
	lock_give(&cq->lock);
	pthread_cleanup_push(stop_waiting, cq);
	rc = engine_wait(e, cq, timeout_ms, cancel_was);
	pthread_cleanup_pop(1);
	if (!rc && !atomic_load(&cq->count) && atomic_load(&cq->overflowed))
		rc = -EOVERFLOW;
	return rc;
}

/* Without a hand-over to the CQ's own engine where that is allowed, and where the other has a thread. */
static void tell(struct cq *cq, struct engine *by)
{
	if (cq->tellers && atomic_load(&by->has_thread))
		engine_tell(by, &cq->tellers[by->index].note);
	else
		engine_tell(cq->engine, &cq->fired);
}

/* Called without the lock: somebody waits for a completion, and there is one. */
static void announce(struct cq *cq)
{
	uint64_t mask = atomic_load(&cq->engines) | 1ull << cq->engine->index;

	/* Partner: the driver, who says that it sleeps and then looks for completions. */
	atomic_thread_fence(memory_order_seq_cst);
	for (; mask; mask &= mask - 1)
		engine_news(&cq->rnic->engines[__builtin_ctzll(mask)]);
}

bool cq_push_by(struct cq *cq, struct engine *by, const struct cqe *e, bool solicited)
{
	bool fire, room, awaited;
	uint32_t count, at;

	lock_take(&cq->lock);
	count = atomic_load_explicit(&cq->count, memory_order_relaxed);
	room = count < cq->depth && !cq->lost;
	if (room) {
		at = cq->head + count;
		at = at >= cq->depth ? at - cq->depth : at;
		cq->ring[at] = *e;
		cq->ring[at].wc.cpu = (uint16_t)sched_getcpu();
		atomic_store_explicit(&cq->count, count + 1, memory_order_release);
	} else if (e->wq && e->wq->shared) {
		wq_free(e->wq, e->free_to); /* the queue has other users, who go on */
	}
	fire = cq->armed == CQ_ARMED_NEXT || (cq->armed == CQ_ARMED_SOLICITED && solicited) ||
	       (!room && cq->armed);
	if (fire)
		disarm(cq);
	if (!room && !cq->lost) {
		cq->lost = true;
		atomic_store(&cq->overflowed, true);
		engine_tell(cq->engine, &cq->error);
	}
	/* Who begins to wait does it under the lock, and then looks at `count`. */
	awaited = atomic_load_explicit(&cq->waiters, memory_order_relaxed);
	lock_give(&cq->lock);
	if (fire)
		tell(cq, by);
	if (awaited)
		announce(cq);
	return room;
}

void cq_purge(struct cq *cq, const struct flue_qp *qp)
{
	uint32_t kept = 0, count;

	lock_take(&cq->lock);
	count = atomic_load(&cq->count);
	for (uint32_t i = 0; i < count; i++) {
		struct cqe *e = &cq->ring[(cq->head + i) % cq->depth];

		if (e->wc.qp != qp)
			cq->ring[(cq->head + kept++) % cq->depth] = *e;
		else if (e->wq)
			wq_free(e->wq, e->free_to);
	}
	atomic_store(&cq->count, kept);
	lock_give(&cq->lock);
}

void cq_settle(struct cq *cq, struct wq *wq)
{
	uint32_t head, i;

	lock_take(&cq->lock);
	head = atomic_load(&wq->head);
	for (i = atomic_load(&cq->count); i; i--) {
		struct cqe *e = &cq->ring[(cq->head + i - 1) % cq->depth];

		if (e->wq == wq) {
			e->free_to = head;
			break;
		}
	}
	if (!i)
		wq_free(wq, head);
	lock_give(&cq->lock);
}

void cq_attach(struct cq *cq, const struct engine *e)
{
	atomic_fetch_or(&cq->engines, 1ull << e->index);
}

void cq_fork_child(struct cq *cq)
{
	lock_init(&cq->lock);
	atomic_store(&cq->waiters, 0);
	disarm(cq);
}
