/* SPDX-License-Identifier: MIT */
#include "rnic/srq.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/probe.h"
#include "base/util.h"
#include "rnic/rnic.h"

static void run_limit(struct engine_note *n)
{
	struct srq *s = container_of(n, struct srq, note);

	s->rnic->up->srq_limit(s->rnic->up_ctx, s->owner);
}

int srq_create(struct rnic_pd *pd, uint32_t depth, uint32_t max_sge, void *owner, struct srq **out)
{
	struct srq *s = calloc(1, sizeof(*s));
	int rc;

	if (!s)
		return -ENOMEM;
	rc = wq_init_recv(&s->wq, depth, max_sge);
	if (rc) {
		free(s);
		return rc;
	}
	s->wq.shared = true;
	s->rnic = pd->rnic;
	s->pd = pd;
	s->owner = owner;
	s->note.run = run_limit;
	pthread_mutex_lock(&s->rnic->lists);
	LIST_INSERT_HEAD(&s->rnic->srqs, s, all);
	pthread_mutex_unlock(&s->rnic->lists);
	*out = s;
	return 0;
}

void srq_destroy(struct srq *s)
{
	pthread_mutex_lock(&s->rnic->lists);
	LIST_REMOVE(s, all);
	pthread_mutex_unlock(&s->rnic->lists);
	engine_untell(&s->rnic->engines[0], &s->note);
	wq_fini(&s->wq);
	free(s);
}

/* Under wq.lock. */
static bool below_limit(struct srq *s)
{
	bool low = s->limit && wq_fill(&s->wq) < s->limit;

	if (low)
		s->limit = 0;
	return low;
}

/* Under wq.lock. What must fit is what is not free, as a CQ may hold a completion for each of them. */
static int check_values(struct srq *s, const struct flue_srq_values *v, uint32_t mask)
{
	uint32_t depth = mask & FLUE_SRQV_DEPTH ? v->depth : s->wq.depth;
	uint32_t limit = mask & FLUE_SRQV_LIMIT ? v->limit : s->limit;

	if (limit > depth)
		return -EINVAL;
	return wq_used(&s->wq) > depth ? -EBUSY : 0;
}

int srq_modify(struct srq *s, const struct flue_srq_values *v, uint32_t mask)
{
	struct engine *e = &s->rnic->engines[0];
	struct wq room = { 0 };
	bool low = false;
	int rc;

	/* Who is to tell of the limit must be there. */
	engine_lock(e);
	rc = engine_start(e);
	engine_unlock(e);
	if (!rc && mask & FLUE_SRQV_DEPTH)
		rc = wq_init_recv(&room, v->depth, s->wq.max_sge);
	if (rc)
		return rc;
	lock_take(&s->wq.lock);
	rc = check_values(s, v, mask);
	if (!rc) {
		if (mask & FLUE_SRQV_DEPTH)
			wq_swap(&s->wq, &room);
		if (mask & FLUE_SRQV_LIMIT)
			s->limit = v->limit;
		low = below_limit(s);
	}
	lock_give(&s->wq.lock);
	wq_fini(&room);
	if (low)
		engine_tell(e, &s->note);
	return rc;
}

int srq_arm(struct srq *s, uint32_t limit)
{
	struct flue_srq_values v = { .limit = limit };

	return srq_modify(s, &v, FLUE_SRQV_LIMIT);
}

void srq_query(struct srq *s, struct flue_srq_values *v)
{
	lock_take(&s->wq.lock);
	v->depth = s->wq.depth;
	v->limit = s->limit;
	v->receives = wq_fill(&s->wq);
	lock_give(&s->wq.lock);
}

int srq_post(struct srq *s, const struct flue_recv_wr *wr, const struct flue_recv_wr **bad)
{
	int rc = 0;

	for (; wr && rc == 0; wr = wr->next) {
		rc = wq_post_recv(&s->wq, wr);
		PROBE(post_srq, s->owner, wr->id, wr->n_sg, rc);
		if (rc)
			*bad = wr;
	}
	return rc;
}

bool srq_take(struct srq *s, struct wqe *w)
{
	struct wqe *from;
	bool got, low = false;

	lock_take(&s->wq.lock);
	got = wq_fill(&s->wq) != 0;
	if (got) {
		from = wq_at(&s->wq, atomic_load(&s->wq.head));
		memcpy(w, from, WQE_RECV_LEN + from->n_sg * sizeof(struct flue_sge));
		wq_retire(&s->wq);
		low = below_limit(s);
	}
	lock_give(&s->wq.lock);
	if (low)
		engine_tell(&s->rnic->engines[0], &s->note);
	return got;
}
