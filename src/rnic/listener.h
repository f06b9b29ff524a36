/* SPDX-License-Identifier: MIT */
/* Listening sockets. Connections in start-up are bounded in number and time. */
#ifndef FLUE_RNIC_LISTENER_H
#define FLUE_RNIC_LISTENER_H

#include "rnic/cep.h"
#include "rnic/engine.h"
#include "rnic/rnic.h"

struct listener {
	struct rnic *rnic;
	struct engine *engine;
	void *owner;
	struct engine_io io;
	struct engine_timer retry; /* out of descriptors: try again later */
	int request_timeout_ms;
	uint32_t half_open, max_half_open;
	TAILQ_HEAD(, cep) waiting;   /* the request did not come yet */
	TAILQ_HEAD(, cep) requested; /* it did, and is to be handed up */
	struct engine_note note;
	LIST_ENTRY(listener) all;
};

struct listen_attr {
	const struct sockaddr *local;
	socklen_t local_len;
	int backlog, max_half_open, request_timeout_ms;
	void *owner;
};

int listener_create(struct rnic *r, const struct listen_attr *attr, struct sockaddr_storage *bound,
		    struct listener **out);
void listener_destroy(struct listener *l);
/* ---- for endpoints, under the engine's lock ---- */
void listener_add(struct listener *l, struct cep *c);
void listener_remove(struct listener *l, struct cep *c);
void listener_requested(struct listener *l, struct cep *c);

void listener_fork_child(struct listener *l);

#endif
