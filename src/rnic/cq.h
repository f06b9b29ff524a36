/* SPDX-License-Identifier: MIT */
/*
 * Completion queues. A ring of completions under a leaf lock; producers are the engines of the
 * queue pairs that use it, consumers are callers. Bound to one engine, whose thread runs its
 * completion handler, unless cq_roam() allows any.
 */
#ifndef FLUE_RNIC_CQ_H
#define FLUE_RNIC_CQ_H

#include <flue/flue.h>
#include <stdatomic.h>

#include "base/lock.h"
#include "rnic/engine.h"
#include "rnic/wq.h"

struct rnic;

typedef void (*cq_handler_fn)(void *cq_owner, void *arg);

/* A completion and, for whoever takes it, what to free in its work queue (NULL: nothing). */
struct cqe {
	struct flue_wc wc;
	struct wq *wq;
	uint32_t free_to;
};

enum cq_armed { CQ_NOT_ARMED = 0, CQ_ARMED_SOLICITED, CQ_ARMED_NEXT };

/* Notices of a CQ that any engine may tell: one note for each. */
struct cq_teller {
	struct engine_note note;
	struct cq *cq;
};

struct cq {
	struct rnic *rnic;
	struct engine *engine;
	void *owner;
	cq_handler_fn handler;
	void *handler_arg;
	struct engine_note fired, error;
	struct cq_teller *tellers; /* NULL: its own engine tells, by `fired` */
	/* Bit i: queue pairs on engine i complete here, so polling drives that engine too. */
	_Atomic uint64_t engines;
	atomic_int waiters;
	_Atomic uint32_t count; /* written under lock, read anywhere */
	atomic_bool overflowed;
	atomic_int armed;   /* enum cq_armed; written under lock */
	LIST_ENTRY(cq) all; /* rnic's list */

	struct lock lock;
	struct cqe *ring;
	uint32_t depth, head;
	bool lost; /* an overflow not yet reported by poll */
};

int cq_create(struct rnic *r, struct engine *e, uint32_t depth, cq_handler_fn handler,
	      void *handler_arg, void *owner, struct cq **out);
/* Before anybody else knows it: notices are told by the engine that made the completion. -ENOMEM. */
int cq_roam(struct cq *cq);
void cq_destroy(struct cq *cq);
int cq_resize(struct cq *cq, uint32_t depth);

/* 0..n taken, -EOVERFLOW once all completions before an overflow were taken. `size`: of one in the
 * caller's array; -EINVAL: less than there ever was. */
int cq_poll_sized(struct cq *cq, struct flue_wc *wc, size_t size, uint32_t n);

static inline int cq_poll(struct cq *cq, struct flue_wc *wc, uint32_t n)
{
	return cq_poll_sized(cq, wc, sizeof(*wc), n);
}

/* kind: enum flue_notify. 1: completions are waiting already. */
int cq_arm(struct cq *cq, uint32_t kind);
int cq_wait(struct cq *cq, int timeout_ms);

/* Producer, engine `by`, any lock but a leaf held. `solicited` as the arming rules mean it (errors too).
 * false: the CQ is full; the completion is lost and the queue pair must die. */
bool cq_push_by(struct cq *cq, struct engine *by, const struct cqe *e, bool solicited);

static inline bool cq_push(struct cq *cq, const struct cqe *e, bool solicited)
{
	return cq_push_by(cq, cq->engine, e, solicited);
}

/* Removes what queue pair `qp` left; used when it is destroyed. */
void cq_purge(struct cq *cq, const struct flue_qp *qp);
/* For a queue pair's own queue, when its connection is over: the slots of finished requests whose
 * completion never comes (unsignaled, or lost in an overflow) go with the last one that does. */
void cq_settle(struct cq *cq, struct wq *wq);

/* A queue pair on engine e uses the CQ. */
void cq_attach(struct cq *cq, const struct engine *e);

static inline bool cq_has_news(struct cq *cq)
{
	return atomic_load(&cq->count) || atomic_load(&cq->overflowed);
}

void cq_fork_child(struct cq *cq);

#endif
