/* SPDX-License-Identifier: MIT */
/*
 * The software RNIC: one `struct rnic` is one open adapter. It holds the engines, the STag table
 * and the lists that fork handling walks. The provider "soft" is a thin face over this layer.
 */
#ifndef FLUE_RNIC_RNIC_H
#define FLUE_RNIC_RNIC_H

#include <bsd/sys/queue.h>
#include <flue/flue.h>
#include <pthread.h>

#include "rnic/engine.h"
#include "rnic/mem.h"
#include "rnic/rendezvous.h"

struct cq;
struct qp;
struct srq;
struct cep;
struct listener;
struct inbox;

#define RNIC_MAX_ENGINES  64
#define RNIC_MAX_SGE      32
#define RNIC_MAX_READ_SGE 1 /* strict service: iWARP names one place */
#define RNIC_MAX_INLINE   1024
#define RNIC_MAX_DEPTH    32768
#define RNIC_MAX_CQ_DEPTH (1u << 20)
#define RNIC_MAX_ORD      128
#define RNIC_MAX_MR       (1u << 20)
#define RNIC_MAX_MESSAGE  0xffffffffu

struct rnic_request_info {
	struct sockaddr_storage local, peer;
	const void *private_data;
	size_t private_len;
	uint32_t peer_ird, peer_ord;
	uint32_t revision;
	bool peer_to_peer, full;
};

struct rnic_conn_info {
	struct sockaddr_storage local, peer;
	const void *private_data;
	size_t private_len;
	uint32_t ird, ord;
};

/* Told on an engine's thread, no lock held. Same meaning as struct prov_upcalls. */
struct rnic_upcalls {
	void (*qp_event)(void *ctx, void *qp_owner, const struct flue_event *ev,
			 const struct rnic_conn_info *conn);
	void (*cq_error)(void *ctx, void *cq_owner);
	void (*srq_limit)(void *ctx, void *srq_owner);
	int (*request)(void *ctx, void *listener_owner, struct cep *req,
		       const struct rnic_request_info *info);
};

struct rnic_pd {
	struct rnic *rnic;
};

struct rnic {
	const struct rnic_upcalls *up;
	void *up_ctx;
	struct mem_table mem;
	struct rendezvous_table numbers; /* of queue pairs */
	_Atomic uint64_t n_illegal; /* events that the tables call impossible; see rnic_illegal() */
	_Atomic uint32_t n_armed;   /* completion queues that owe a notice */
	_Atomic uint32_t n_refused; /* rejected connections whose peer has not closed yet */
	uint32_t n_engines;
	bool local; /* links through memory may be used */
	struct engine *engines;
	/* Lists for fork, and to spread listeners; leaf lock. */
	pthread_mutex_t lists;
	LIST_HEAD(, qp) qps;
	LIST_HEAD(, cq) cqs;
	LIST_HEAD(, srq) srqs;
	LIST_HEAD(, cep) ceps;
	LIST_HEAD(, listener) listeners;
	LIST_ENTRY(rnic) all;
};

int rnic_open(const int *cpus, uint32_t n, const struct rnic_upcalls *up, void *ctx,
	      struct rnic **out);
void rnic_close(struct rnic *r);
struct engine *rnic_engine(struct rnic *r, int cpu); /* NULL: not one of ours */

/* A caller that drove `e` for a while goes away. Who is owed a notice must not wait for its lease to lapse. */
static inline void rnic_stop_driving(struct rnic *r, struct engine *e)
{
	if (atomic_load(&r->n_armed))
		engine_end_lease(e);
}

/*
 * A machine of this adapter met an event that its table calls illegal, which no peer and no program
 * can bring about: our mistake. The step has said so (base/fsm.h), and has ended the program in builds
 * that check; here it is counted for the adapter.
 */
void rnic_illegal(struct rnic *r);
/* The same for an inbox that was too small, if it was. */
void rnic_lost_event(struct rnic *r, struct inbox *b);

#endif
