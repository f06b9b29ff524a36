/* SPDX-License-Identifier: MIT */
/*
 * Work queues: rings of requests with room for their SGEs or inline data behind each.
 *
 * Many producers under `lock`; one consumer, the holder of the queue pair's engine lock (for an
 * SRQ: the holder of `lock` itself). `tail` is where the next request goes, `head` the oldest one
 * not completed (SRQ: not taken); both count without wrapping, so tail - head is the fill.
 *
 * A slot is free for another request when the program has taken its completion from the CQ, not
 * when the request is done: so a CQ as deep as all its queues together never overflows. `freed`
 * counts those slots. Completions come in order, and one gives back the slots of the unsignaled
 * requests before it, too; those of an SRQ come through any CQ, so they are counted one by one.
 */
#ifndef FLUE_RNIC_WQ_H
#define FLUE_RNIC_WQ_H

#include <errno.h>
#include <flue/types.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/lock.h"

enum wqe_state { WQE_POSTED = 0, WQE_WAITING, WQE_DONE };

/* Slots of idle connections are most of what those cost: a receive has only the first part of this. */
struct wqe {
	uint64_t id;
	uint8_t op; /* enum flue_wr_op; receives do not use it */
	uint8_t flags;
	uint8_t state;  /* enum wqe_state */
	uint8_t status; /* enum flue_wc_status */
	uint32_t n_sg;
	uint32_t total; /* bytes of the message, sum of the SGEs */
	uint32_t rkey;
	/* Not of a receive: its SGEs stand here, see wqe_places(). */
	uint32_t imm;
	uint32_t number; /* full service: of its last message, once that is out */
	/* A request that changes what keys mean has its arguments from here on, see wqe_reg(). */
	uint64_t remote_addr;
	union {
		struct flue_atomic atomic;
		struct flue_datagram to;
	};
	struct flue_sge sg[]; /* or inline data */
};

#define WQE_RECV_LEN offsetof(struct wqe, imm)

/* The SGEs of a receive. */
static inline struct flue_sge *wqe_places(const struct wqe *w)
{
	return (struct flue_sge *)((uintptr_t)w + WQE_RECV_LEN);
}

/* Of FAST_REG and BIND. Every slot has room for it. */
static inline struct flue_reg *wqe_reg(const struct wqe *w)
{
	return (struct flue_reg *)((uintptr_t)w + offsetof(struct wqe, remote_addr));
}

struct wq {
	struct lock lock;
	char *mem;
	uint32_t stride;
	uint32_t depth; /* as asked for */
	uint32_t mask;  /* slots - 1; slots is a power of two */
	uint32_t max_sge, max_inline;
	bool shared; /* an SRQ */
	_Atomic uint32_t head, tail, freed;
};

/* -ENOMEM. depth 0 is a queue that is always full. */
int wq_init(struct wq *q, uint32_t depth, uint32_t max_sge, uint32_t max_inline);
/* The same, for receives. */
int wq_init_recv(struct wq *q, uint32_t depth, uint32_t max_sge);
void wq_fini(struct wq *q);

static inline struct wqe *wq_at(struct wq *q, uint32_t n)
{
	return (struct wqe *)(q->mem + (n & q->mask) * q->stride);
}

static inline uint32_t wq_fill(struct wq *q)
{
	return atomic_load_explicit(&q->tail, memory_order_acquire) -
	       atomic_load_explicit(&q->head, memory_order_acquire);
}

/* Slots that are not free for another request. */
static inline uint32_t wq_used(struct wq *q)
{
	return atomic_load_explicit(&q->tail, memory_order_acquire) -
	       atomic_load_explicit(&q->freed, memory_order_acquire);
}

/* The program has the completion of the request before number `free_to`. Own queues: under the lock
 * of their CQ. */
static inline void wq_free(struct wq *q, uint32_t free_to)
{
	if (q->shared)
		atomic_fetch_add_explicit(&q->freed, 1, memory_order_release);
	else
		atomic_store_explicit(&q->freed, free_to, memory_order_release);
}

/* Caller holds lock. The slot for the next request, or NULL when the queue is full. */
static inline struct wqe *wq_next(struct wq *q)
{
	uint32_t tail = atomic_load_explicit(&q->tail, memory_order_relaxed);
	struct wqe *w = wq_at(q, tail);

	if (tail - atomic_load_explicit(&q->freed, memory_order_acquire) >= q->depth)
		return NULL;
	w->state = WQE_POSTED;
	w->status = FLUE_WC_SUCCESS;
	return w;
}

/* Caller holds lock: the request filled in wq_next() is posted. */
static inline void wq_advance(struct wq *q)
{
	uint32_t tail = atomic_load_explicit(&q->tail, memory_order_relaxed);

	atomic_store_explicit(&q->tail, tail + 1, memory_order_release);
}

/* Consumer: the oldest request is finished. Returns the number behind it. */
static inline uint32_t wq_retire(struct wq *q)
{
	uint32_t head = atomic_load_explicit(&q->head, memory_order_relaxed) + 1;

	atomic_store_explicit(&q->head, head, memory_order_release);
	return head;
}

/* Caller holds the lock of an SRQ: its receives move to the slots of `room`, which are more or fewer of the same size, and
 * must be enough; `room` has the old ones then. */
void wq_swap(struct wq *q, struct wq *room);

/* Sum of SGE lengths; -EINVAL above 2^32-1. */
static inline int wq_total(const struct flue_sge *sg, uint32_t n, uint32_t *total)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < n; i++)
		sum += sg[i].length;
	if (sum > UINT32_MAX)
		return -EINVAL;
	*total = (uint32_t)sum;
	return 0;
}

/* Checks and copies a receive into the queue. Takes the lock. -ENOMEM, -EINVAL. */
int wq_post_recv(struct wq *q, const struct flue_recv_wr *wr);

#endif
