/* SPDX-License-Identifier: MIT */
/* Between local.c and link_local.c. */
#ifndef FLUE_RNIC_LOCAL_PRIV_H
#define FLUE_RNIC_LOCAL_PRIV_H

#include "rnic/local.h"
#include "rnic/qp.h"
#include "wire/ddp.h"

enum record_kind { RECORD_DATA = 0, RECORD_FIN, RECORD_TAKEN, RECORD_CLOSE, RECORD_NKINDS };

struct record_head {
	uint32_t circuit;
	uint8_t kind, code;
	uint16_t zero;
};

struct link_local {
	struct link link;
	struct circuit *circuit;
	bool busy;       /* in its kick() */
	bool blocked;    /* no room: in the duct's list */
	bool fin_sent;   /* our direction is ended ... */
	bool fin_taken;  /* ... which the peer has seen */
	bool fin_got;    /* so is the peer's */
	bool awaits_end; /* see link_ops.await_end */
	TAILQ_ENTRY(link_local) of_blocked;
};

/* local.c */
/* A record without a segment, now or when there is room. */
void circuit_owe(struct circuit *k, enum record_kind kind);
/* Both ends may be done with it. */
void circuit_settle(struct circuit *k);

/* link_local.c: what has come for a link that is open. */
void link_local_segment(struct link_local *l, const uint8_t *ulpdu, size_t len);
void link_local_fin(struct link_local *l);
void link_local_taken(struct link_local *l);
/* There may be room for it. */
void link_local_unblock(struct link_local *l);
/* The peer is done with it, or the duct is over. */
void link_local_gone(struct link_local *l);

#endif
