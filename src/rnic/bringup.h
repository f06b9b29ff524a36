/* SPDX-License-Identifier: MIT */
/*
 * Queue pairs without a connection manager: modify() brings them up, from RESET over INIT and RTR to RTS, with what the
 * programs told each other by other means: address and number of the peer. The service is full service.
 *
 * From RTR on each of the two calls the other (rendezvous.h), until there is a link. If both calls cross, that of the lower number
 * counts. Who is called before it is in RTR keeps the call. modify() itself waits for nothing; what is posted
 * goes out when the link is there.
 *
 * The program sees nothing of the link: when it ends, because the peer's process has ended or has destroyed or reset its queue
 * pair, this one stays in its state and keeps its receives, and another link never comes. Requests then wait for time-out
 * times retries, and the first fails with FLUE_WC_RETRY_EXCEEDED. A peer that is only slow is waited for.
 *
 * All under the engine's lock, unless it says otherwise.
 */
#ifndef FLUE_RNIC_BRINGUP_H
#define FLUE_RNIC_BRINGUP_H

#include <flue/flue.h>

#include "rnic/engine.h"

struct cep;
struct qp;
struct mpa_identity;
struct mpa_terms;
struct rendezvous_calls;

/* How a call is answered; the last three go back as private data of a reject. */
enum bringup_answer {
	BRINGUP_TAKEN = 0,
	BRINGUP_LATER,  /* not now; call again */
	BRINGUP_BUSY,   /* our own call to you is under way */
	BRINGUP_NOBODY, /* there is no such queue pair, or it is somebody else's */
};

struct bringup {
	struct qp *qp;
	uint8_t state;   /* enum flue_qp_state, as modify() left it: RESET, INIT, RTR, RTS */
	uint8_t wait_ms; /* until the next call, in powers of two */
	bool met;        /* there is a link, or was */
	bool gone;       /* nobody is there (any more) */
	bool told;       /* ESTABLISHED */
	uint32_t first;  /* messages of the peer's that are none of its program's */
	uint32_t peer_ird;
	uint32_t ird, ord; /* as the program wants them */
	uint32_t port, qkey, mtu, remote_qpn, rq_psn, sq_psn;
	struct flue_ah_attr path;
	struct sockaddr_storage remote, local;
	struct engine_timer redial;
};

/* For a new queue pair. Gives it its number. No lock held. */
int bringup_create(struct qp *q);
void bringup_destroy(struct qp *q);

/* May that be changed? -EINVAL, -EOPNOTSUPP. */
int bringup_check(struct qp *q, const struct flue_qp_values *v, uint32_t mask);
/* What was checked. Calls to be refused, with no lock held, are put into `refused`. */
void bringup_change(struct qp *q, const struct flue_qp_values *v, uint32_t mask,
		    struct rendezvous_calls *refused);
/* How many Reads at once. -ENOMEM. */
int bringup_reads(struct qp *q, uint32_t ird, uint32_t ord);
void bringup_query(const struct qp *q, struct flue_qp_values *v, uint32_t mask);
/* To RESET, from any state: nothing is left of what was. */
void bringup_reset(struct qp *q);

/* ---- for endpoints ---- */

/* Who we are, and whom we want. */
void bringup_identify(const struct qp *q, struct mpa_identity *id);
/* Somebody calls q. */
enum bringup_answer bringup_called(struct qp *q, struct cep *c);
/* No lock held, or that of the call's engine: uses it up. */
void bringup_refuse(struct cep *c, enum bringup_answer why);
/* What became of a set-up: CONNECTED or CONNECT_FAILED; `reached`: somebody was there. */
void bringup_outcome(struct qp *q, uint32_t type, int err, bool reached);

/* ---- for the queue pair ---- */

/* Rings for a link with these terms. -ENOMEM. */
int bringup_read_rings(struct qp *q, const struct mpa_terms *t, bool initiator);
/* Something was posted, and there is no link. */
void bringup_posted(struct qp *q);
/* The link has ended. */
void bringup_link_gone(struct qp *q);
/* Time-out times retries are over. */
void bringup_give_up(struct qp *q);
/* A message of the peer's was done. */
void bringup_heard(struct qp *q);
/* Must the first message be seen by us, to be told of? */
bool bringup_listens(const struct qp *q);

#endif
