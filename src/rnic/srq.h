/* SPDX-License-Identifier: MIT */
/* Shared receive queues: receives are taken by queue pairs of any engine, in posting order. */
#ifndef FLUE_RNIC_SRQ_H
#define FLUE_RNIC_SRQ_H

#include <bsd/sys/queue.h>
#include <flue/queue.h>

#include "rnic/engine.h"
#include "rnic/wq.h"

struct rnic;

struct srq {
	struct rnic *rnic;
	struct rnic_pd *pd;
	void *owner;
	struct wq wq;
	uint32_t limit; /* under wq.lock; 0: not armed */
	struct engine_note note;
	LIST_ENTRY(srq) all;
};

int srq_create(struct rnic_pd *pd, uint32_t depth, uint32_t max_sge, void *owner, struct srq **out);
void srq_destroy(struct srq *s);
int srq_arm(struct srq *s, uint32_t limit);
/* Depth and limit, all or nothing: see prov_ops.modify_srq. */
int srq_modify(struct srq *s, const struct flue_srq_values *v, uint32_t mask);
void srq_query(struct srq *s, struct flue_srq_values *v);
int srq_post(struct srq *s, const struct flue_recv_wr *wr, const struct flue_recv_wr **bad);
/* Moves the oldest receive into *w, which has room for the SRQ's SGEs. false: none there. Its slot
 * comes back with wq_free(). */
bool srq_take(struct srq *s, struct wqe *w);

#endif
