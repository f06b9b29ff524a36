/* SPDX-License-Identifier: MIT */
/*
 * Listening sockets. Connections in start-up are bounded in number and time.
 *
 * Who comes when the bound is reached stays in the kernel's queue, which costs us nothing. Peers
 * that mean it send their request at once, and make room. Peers that are silent make room too, when
 * they have been for a while: of those from the address that has most of them, the oldest goes.
 * So strangers delay others by that while and no longer, one address cannot push out another, and
 * a burst of honest peers is served to the last.
 */
#ifndef FLUE_RNIC_LISTENER_H
#define FLUE_RNIC_LISTENER_H

#include "rnic/cep.h"
#include "rnic/engine.h"
#include "rnic/rnic.h"

#define LISTENER_CROWDS 256

struct listener {
	struct rnic *rnic;
	struct engine
		*engine; /* one that had few of them; what is accepted moves on with its request */
	void *owner;
	struct engine_io io;
	struct engine_timer retry; /* out of descriptors, or full: look again then */
	int request_timeout_ms;
	uint32_t half_open, max_half_open;
	bool crowded;    /* not watched until somebody goes, or may be made to */
	bool full;       /* for full service */
	bool rendezvous; /* of queue pairs that call each other by number (rendezvous.h) */
	/* How many wait whose addresses fall together; few do. */
	uint32_t crowd[LISTENER_CROWDS];
	TAILQ_HEAD(, cep) waiting;   /* the request did not come yet */
	TAILQ_HEAD(, cep) requested; /* it did, and is to be handed up */
	struct engine_note note;
	LIST_ENTRY(listener) all;
};

struct listen_attr {
	const struct sockaddr *local;
	socklen_t local_len;
	int max_half_open, request_timeout_ms;
	bool full;       /* for full service, and nothing else */
	bool rendezvous; /* there is no owner; with IPv6, IPv4 as well */
	void *owner;
};

int listener_create(struct rnic *r, const struct listen_attr *attr, struct sockaddr_storage *bound,
		    struct listener **out);
void listener_destroy(struct listener *l);
/* Until a request was handed up: engine_await(). */
int listener_await(struct listener *l, const struct engine_await *w);
/* ---- for endpoints, under the engine's lock ---- */
void listener_add(struct listener *l, struct cep *c, const struct sockaddr_storage *peer);
void listener_remove(struct listener *l, struct cep *c);
void listener_requested(struct listener *l, struct cep *c);

void listener_fork_child(struct listener *l);

#endif
