/* SPDX-License-Identifier: MIT */
/* Between local.c and link_local.c. */
#ifndef FLUE_RNIC_LOCAL_PRIV_H
#define FLUE_RNIC_LOCAL_PRIV_H

#include "rnic/local.h"
#include "rnic/qp.h"
#include "rnic/qp_sched.h"
#include "wire/ddp.h"

enum record_kind {
	RECORD_DATA = 0,
	RECORD_FIN,
	RECORD_TAKEN,
	RECORD_CLOSE,
	RECORD_GATE,
	RECORD_NKINDS
};

struct record_head {
	uint32_t circuit;
	uint8_t kind, code;
	uint16_t gate;
};

enum record_code {
	CODE_RESET = 1,     /* CLOSE: not an orderly end */
	CODE_REFERENCE = 1, /* DATA: the octets are where the record says, in the sender's memory */
	CODE_READS = 1,     /* GATE: who says it can read the other's memory */
};

/* What stands in place of octets: n_refs and their sum, then as many of the latter. */
struct reference_head {
	uint32_t n_refs, total;
};

struct reference {
	uint32_t key, length;
	uint64_t to;
};

struct link_local {
	struct link link;
	struct circuit *circuit;
	bool busy;          /* in its kick() */
	bool blocked;       /* no room: in the duct's list */
	bool fin_sent;      /* our direction is ended ... */
	bool fin_taken;     /* ... which the peer has seen */
	bool fin_got;       /* so is the peer's */
	bool awaits_end;    /* see link_ops.await_end */
	bool peer_reads;    /* the peer can read our memory: long parts go by reference */
	bool cannot_read;   /* ... and we could not read the peer's */
	uint32_t gate;      /* through which the peer comes into our memory; 0: none */
	uint32_t peer_gate; /* ... and we into the peer's */
	TAILQ_ENTRY(link_local) of_blocked;
};

/* local.c */
/* A record without a segment, now or when there is room. */
void circuit_owe(struct circuit *k, enum record_kind kind);
/* Both ends may be done with it. */
void circuit_settle(struct circuit *k);

/* link_local.c: what has come for a link that is open. */
void link_local_segment(struct link_local *l, const uint8_t *ulpdu, size_t len);
/* ... and it says where its octets are. false: it cannot be. */
bool link_local_reference(struct link_local *l, const uint8_t *record, size_t len);
void link_local_fin(struct link_local *l);
/* The peer's gate, and whether it can read our memory. */
void link_local_gate(struct link_local *l, uint32_t gate, bool reads);
void link_local_taken(struct link_local *l);
/* link_direct.c */
#define REFERENCE_MIN (16 * 1024u)
/* Does the next request by ourselves, if that is possible now. */
bool link_direct_run(struct link_local *l);
/* Where the next n octets of the message at *c are, for the peer to read. Returns how many pieces that are, 0: they cannot be named. */
uint32_t link_direct_name(struct link_local *l, const struct tx_cursor *c, uint32_t n,
			  struct reference *refs);
/* Places the octets of a segment from the peer's memory. RX_AGAIN: they are not to be had there. */
uint32_t link_direct_place(struct link_local *l, const struct ddp_segment *s,
			   const struct reference *refs, uint32_t n_refs);

/* There may be room for it. */
void link_local_unblock(struct link_local *l);
/* The peer is done with it, or the duct is over. */
void link_local_gone(struct link_local *l);

#endif
