/* SPDX-License-Identifier: MIT */
#include "rnic/wq.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"

static uint32_t slots_for(uint32_t depth)
{
	uint32_t n = 1;

	while (n < depth)
		n *= 2;
	return n;
}

static int init(struct wq *q, uint32_t depth, size_t slot)
{
	memset(q, 0, sizeof(*q));
	q->stride = (uint32_t)((slot + 7) & ~(size_t)7);
	q->depth = depth;
	q->mask = slots_for(depth) - 1;
	q->mem = calloc(q->mask + 1, q->stride);
	if (!q->mem)
		return -ENOMEM;
	lock_init(&q->lock);
	return 0;
}

int wq_init(struct wq *q, uint32_t depth, uint32_t max_sge, uint32_t max_inline)
{
	size_t slot = sizeof(struct wqe) + max_size(max_sge * sizeof(struct flue_sge), max_inline);
	size_t least = offsetof(struct wqe, remote_addr) + sizeof(struct flue_reg);
	int rc = init(q, depth, max_size(slot, least));

	q->max_sge = max_sge;
	q->max_inline = max_inline;
	return rc;
}

int wq_init_recv(struct wq *q, uint32_t depth, uint32_t max_sge)
{
	int rc = init(q, depth, WQE_RECV_LEN + max_sge * sizeof(struct flue_sge));

	q->max_sge = max_sge;
	return rc;
}

void wq_fini(struct wq *q)
{
	if (!q->mem)
		return;
	free(q->mem);
	q->mem = NULL;
}

void wq_swap(struct wq *q, struct wq *room)
{
	uint32_t tail = atomic_load(&q->tail), depth = q->depth, mask = q->mask;
	char *mem = q->mem;

	for (uint32_t n = atomic_load(&q->head); n != tail; n++)
		memcpy(wq_at(room, n), wq_at(q, n), q->stride);
	q->mem = room->mem;
	q->depth = room->depth;
	q->mask = room->mask;
	room->mem = mem;
	room->depth = depth;
	room->mask = mask;
}

int wq_post_recv(struct wq *q, const struct flue_recv_wr *wr)
{
	/* One comparison for two things: there are no flags yet, and one makes it too many. */
	uint64_t n_sg = wr->n_sg | (uint64_t)wr->flags << 32;
	struct wqe *w;
	uint32_t total;
	int rc = 0;

	if (n_sg > q->max_sge || (wr->n_sg && !wr->sg) || wq_total(wr->sg, wr->n_sg, &total))
		return -EINVAL;
	lock_take(&q->lock);
	w = wq_next(q);
	if (w) {
		w->id = wr->id;
		w->n_sg = wr->n_sg;
		w->total = total;
		if (wr->n_sg)
			memcpy(wqe_places(w), wr->sg, wr->n_sg * sizeof(*wr->sg));
		wq_advance(q);
	} else {
		rc = -ENOMEM;
	}
	lock_give(&q->lock);
	return rc;
}
