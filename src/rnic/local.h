/* SPDX-License-Identifier: MIT */
/*
 * Links through memory, between engines of two processes of one host or of one process. Two engines that have connections with each other
 * share a duct (channel/duct.h); each connection is a *circuit* of it. A circuit has a number at each end, which that end has chosen, among all
 * circuits of its engine. A record of the duct is
 *
 *   0 circuit, the receiver's number (4)  4 kind  5 code  6 gate (2)  8 a DDP segment, as over TCP but for framing, marker and CRC
 *
 * FIN ends a direction, TAKEN says that it was seen, CLOSE is the last word of an end: when both have said it the numbers are free. GATE tells
 * how the other may get at our memory without us (shown.h). A long part of a message may say where its octets are, in place of them.
 *
 * How two ends agree on it is in wire.md: the one that answers a request makes the duct, if there is none, and names it in its
 * reply. Everything is under the lock of the engine.
 */
#ifndef FLUE_RNIC_LOCAL_H
#define FLUE_RNIC_LOCAL_H

#include <bsd/sys/queue.h>
#include <stdbool.h>
#include <stdint.h>

#include "rnic/engine.h"
#include "rnic/link.h"
#include "wire/mpa.h"

struct claimant;
struct duct;
struct link_local;
struct qp;
struct view;

/* A circuit, from the offer to the last word of both ends. */
struct circuit {
	uint32_t number, peer;   /* ours and the peer's */
	struct local_duct *duct; /* NULL: only offered */
	struct link_local *link; /* NULL: our end is closed */
	uint8_t owed;            /* records to be put when there is room: bits by kind */
	bool reset;              /* ... of CLOSE: not an orderly end */
	bool peer_closed;
	const struct local_duct *early; /* only offered: its last word came from there */
	LIST_ENTRY(circuit) of_duct;
	TAILQ_ENTRY(circuit) owing;
};

/* Our side of a duct. The engine asks it as it would a link. */
struct local_duct {
	struct link poller;
	struct engine *engine;
	struct duct *duct;
	struct engine_io io;
	pid_t pid;
	uint8_t box[8]; /* of the peer: its mailbox */
	uint64_t name;
	uint32_t peer_engine;
	bool made; /* by us: the other side answered it */
	bool polling, over;
	struct claimant *claimant; /* the peer, in our memory; NULL: we show it nothing */
	struct view *view;         /* the peer's memory; NULL: out of our reach */
	LIST_HEAD(, circuit) circuits;
	TAILQ_HEAD(, circuit) owing;
	TAILQ_HEAD(, link_local) blocked;
	uint32_t n_blocked;
	LIST_ENTRY(local_duct) all;
};

/* What an engine has of all that; made on first need. */
struct local {
	LIST_HEAD(, local_duct) ducts;
	struct circuit **circuits; /* by number */
	uint32_t n_circuits, next, generation;
};

/* ---- for endpoints ---- */

/* A request: where we can be found, and a circuit. *id says that it is no offer where that cannot be. */
struct circuit *local_offer(struct engine *e, struct mpa_local *id);
/* An answer to one: is the caller within reach? Then there is a duct, a circuit of ours, and *id is what to reply. NULL: no. */
struct circuit *local_answer(struct engine *e, const struct mpa_local *request,
			     struct mpa_local *id);
/* The reply to ours: joins the circuit to it. -ENOENT, -ENOMEM, -EPROTO. */
int local_join(struct engine *e, struct circuit *k, const struct mpa_local *reply);
/* It was not used. */
void local_withdraw(struct engine *e, struct circuit *k);

/* The link of a circuit that is joined. -ENOMEM. */
int link_local_create(struct qp *q, struct circuit *k, struct link **out);
/* Of a link that no queue pair took. */
void link_local_return(struct link *l);

/* Brings in what has come. */
void local_take_in(struct local_duct *d);

/* ---- for the engine's owner; no lock needed any more ---- */
void local_fini(struct engine *e);
void local_fork_child(struct engine *e);

#endif
