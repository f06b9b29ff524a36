/* SPDX-License-Identifier: MIT */
/*
 * Numbers of queue pairs, and how those that have no connection manager find each other by them.
 *
 * A number has 24 bits. That of a queue pair which connect() or a listener connects says nothing. That of one which modify()
 * brings up can be dialled: it is a port, which is ours while one of its numbers is in use and a while longer, and a
 * place among 255. A *rendezvous* is such a port with its listener. Whoever calls names both queue
 * pairs; if the one that is called does not know yet whom to expect, the call is kept until it does.
 *
 * A number that was given back is given out again as late as can be.
 */
#ifndef FLUE_RNIC_RENDEZVOUS_H
#define FLUE_RNIC_RENDEZVOUS_H

#include <bsd/sys/queue.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct cep;
struct listener;
struct qp;
struct rnic;

#define RENDEZVOUS_PLACES 255 /* the last number of a port is a datagram queue pair's (ud.h) */
#define RENDEZVOUS_PLAIN  (1u << 18) /* numbers below are no port's that a program can have */

struct rendezvous_place {
	struct qp *qp; /* NULL: free */
	uint32_t pins; /* who looked it up and has it still */
	uint32_t number;
	TAILQ_ENTRY(rendezvous_place) free;
};

struct rendezvous {
	uint16_t port;
	uint32_t used;
	struct listener *listener;
	struct rendezvous_place place[RENDEZVOUS_PLACES];
	LIST_ENTRY(rendezvous) all;
};

TAILQ_HEAD(rendezvous_calls, cep);

struct rendezvous_table {
	pthread_mutex_t lock; /* leaf */
	pthread_cond_t unpinned;
	LIST_HEAD(, rendezvous) all;
	TAILQ_HEAD(, rendezvous_place) free; /* the longest first */
	uint32_t n_free;
	struct rendezvous_calls calls; /* that are kept, the oldest first */
	uint32_t n_calls;
	uint32_t *plain; /* a bit for each, once there is one */
	uint32_t last_plain, n_plain;
};

void rendezvous_init(struct rendezvous_table *t);
/* No queue pair is left. */
void rendezvous_fini(struct rendezvous_table *t);

/* A number that nobody can dial. -ENOMEM, -ENOSPC. */
int rendezvous_plain(struct rnic *r, uint32_t *number);
/* One that can be. No lock held. -ENOMEM, -EMFILE and others of socket(2) and bind(2), -ENOSPC. */
int rendezvous_join(struct rnic *r, struct qp *q, uint32_t *number);
/* Gives back either kind. When it returns nobody who looked a number up has q any more. No lock held. */
void rendezvous_leave(struct rnic *r, uint32_t number);

/* A call has come to a rendezvous. Takes it. Any thread of an engine; no lock held. */
void rendezvous_call(struct cep *c);
/* Under the lock of q's engine: a kept call to q, NULL: there is none (any more). It is the caller's then. */
struct cep *rendezvous_take(struct rnic *r, uint32_t number);

void rendezvous_fork_child(struct rendezvous_table *t);

#endif
