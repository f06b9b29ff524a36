/* SPDX-License-Identifier: MIT */
#include "rnic/rnic.h"

#include <errno.h>
#include <stdlib.h>

#include "base/log.h"
#include "channel/duct.h"
#include "rnic/cep.h"
#include "rnic/cq.h"
#include "rnic/inbox.h"
#include "rnic/listener.h"
#include "rnic/local.h"
#include "rnic/qp.h"
#include "rnic/srq.h"
#include "rnic/ud.h"

/*
 * fork(). All open adapters, so that the handlers can hold still what the child will inherit. The
 * parent goes on as if nothing had happened; in the child every connection is gone (its copies of
 * the sockets are closed, which the peer does not see) and engines start again on first use.
 */
static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;
static LIST_HEAD(, rnic) open_rnics = LIST_HEAD_INITIALIZER(open_rnics);
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

static void before_fork(void)
{
	struct rnic *r;

	pthread_mutex_lock(&open_lock);
	LIST_FOREACH(r, &open_rnics, all) {
		for (uint32_t i = 0; i < r->n_engines; i++)
			engine_lock(&r->engines[i]);
		for (uint32_t i = 0; i < r->n_engines; i++)
			engine_fork_prepare(&r->engines[i]);
		pthread_mutex_lock(&r->mem.change);
		pthread_mutex_lock(&r->mem.slots.lock);
		pthread_mutex_lock(&r->lists);
		pthread_mutex_lock(&r->numbers.lock);
	}
}

static void in_parent(void)
{
	struct rnic *r;

	LIST_FOREACH(r, &open_rnics, all) {
		pthread_mutex_unlock(&r->numbers.lock);
		pthread_mutex_unlock(&r->lists);
		pthread_mutex_unlock(&r->mem.slots.lock);
		pthread_mutex_unlock(&r->mem.change);
		for (uint32_t i = 0; i < r->n_engines; i++)
			engine_fork_parent(&r->engines[i]);
		for (uint32_t i = 0; i < r->n_engines; i++)
			pthread_mutex_unlock(&r->engines[i].lock);
	}
	/* Runs the kicks that came meanwhile; only now, when no lock of another adapter is held:
	 * before_fork() took those in the opposite order. */
	LIST_FOREACH(r, &open_rnics, all) {
		for (uint32_t i = 0; i < r->n_engines; i++) {
			engine_lock(&r->engines[i]);
			engine_unlock(&r->engines[i]);
		}
	}
	pthread_mutex_unlock(&open_lock);
}

static void orphan(struct rnic *r)
{
	struct listener *l;
	struct cep *c;
	struct qp *q;
	struct cq *cq;
	struct srq *s;

	LIST_FOREACH(l, &r->listeners, all)
		listener_fork_child(l);
	LIST_FOREACH(c, &r->ceps, all)
		cep_fork_child(c);
	LIST_FOREACH(q, &r->qps, all)
		qp_fork_child(q);
	LIST_FOREACH(cq, &r->cqs, all)
		cq_fork_child(cq);
	LIST_FOREACH(s, &r->srqs, all)
		lock_init(&s->wq.lock);
	for (uint32_t i = 0; i < r->n_engines; i++) {
		engine_fork_child(&r->engines[i]);
		local_fork_child(&r->engines[i]); /* last: the engine knew its descriptors */
		ud_local_fork_child(&r->engines[i]);
	}
}

static void in_child(void)
{
	struct rnic *r;

	mailbox_forked();
	duct_forked_all();
	LIST_FOREACH(r, &open_rnics, all) {
		orphan(r);
		mem_fork_child(&r->mem);
		rendezvous_fork_child(&r->numbers);
		pthread_mutex_unlock(&r->lists);
		pthread_mutex_unlock(&r->mem.slots.lock);
		pthread_mutex_unlock(&r->mem.change);
	}
	pthread_mutex_unlock(&open_lock);
}

static void watch_forks(void)
{
	pthread_atfork(before_fork, in_parent, in_child);
}

static int init_engines(struct rnic *r, const int *cpus, uint32_t n)
{
	cpu_set_t all;
	int rc = 0;

	CPU_ZERO(&all);
	for (uint32_t i = 0; i < n; i++)
		CPU_SET((unsigned)cpus[i], &all);
	for (; r->n_engines < n; r->n_engines++) {
		rc = engine_init(&r->engines[r->n_engines], cpus[r->n_engines], r->n_engines);
		if (rc)
			break;
		r->engines[r->n_engines].may_run = all;
		r->engines[r->n_engines].mem = &r->mem;
	}
	return rc;
}

static void fini_engines(struct rnic *r)
{
	for (uint32_t i = 0; i < r->n_engines; i++) {
		local_fini(&r->engines[i]);
		ud_local_fini(&r->engines[i]);
		engine_fini(&r->engines[i]);
	}
	free(r->engines);
}

int rnic_open(const int *cpus, uint32_t n, const struct rnic_upcalls *up, void *ctx,
	      struct rnic **out)
{
	struct rnic *r;
	int rc;

	if (n == 0 || n > RNIC_MAX_ENGINES)
		return -EINVAL;
	r = calloc(1, sizeof(*r));
	if (!r)
		return -ENOMEM;
	r->engines = calloc(n, sizeof(*r->engines));
	if (!r->engines) {
		free(r);
		return -ENOMEM;
	}
	rc = init_engines(r, cpus, n);
	if (rc == 0)
		rc = mem_table_init(&r->mem, RNIC_MAX_MR);
	if (rc) {
		fini_engines(r);
		free(r);
		return rc;
	}
	r->up = up;
	r->up_ctx = ctx;
	pthread_mutex_init(&r->lists, NULL);
	rendezvous_init(&r->numbers);
	pthread_once(&fork_once, watch_forks);
	pthread_mutex_lock(&open_lock);
	LIST_INSERT_HEAD(&open_rnics, r, all);
	pthread_mutex_unlock(&open_lock);
	*out = r;
	return 0;
}

void rnic_close(struct rnic *r)
{
	struct cep *c;

	pthread_mutex_lock(&open_lock);
	LIST_REMOVE(r, all);
	pthread_mutex_unlock(&open_lock);
	rendezvous_fini(&r->numbers);
	for (uint32_t i = 0; i < r->n_engines; i++)
		engine_stop(&r->engines[i]);
	if (atomic_load(&r->n_illegal))
		log_warn(rnic, "events that the tables call impossible: %llu",
			 (unsigned long long)atomic_load(&r->n_illegal));
	/* Only rejected connections are left, whose peers did not close yet. */
	while ((c = LIST_FIRST(&r->ceps)))
		cep_abandon(c);
	fini_engines(r);
	mem_table_fini(&r->mem);
	pthread_mutex_destroy(&r->lists);
	free(r);
}

void rnic_illegal(struct rnic *r)
{
	atomic_fetch_add(&r->n_illegal, 1);
}

void rnic_lost_event(struct rnic *r, struct inbox *b)
{
	if (!b->overflowed)
		return;
	b->overflowed = false;
	rnic_illegal(r);
	log_warn(rnic, "more events inside a step than anybody thought of");
#ifdef FLUE_FSM_CHECK
	abort();
#endif
}

struct engine *rnic_engine(struct rnic *r, int cpu)
{
	for (uint32_t i = 0; i < r->n_engines; i++) {
		if (r->engines[i].cpu == cpu)
			return &r->engines[i];
	}
	return NULL;
}
