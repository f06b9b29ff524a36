/* SPDX-License-Identifier: MIT */
/* Records as memory: taken, made clean, given back. Who they belong to is family.h's, which number they have sock.h's. */
#ifndef FLUE_SOCKETS_RECORD_RECORD_H
#define FLUE_SOCKETS_RECORD_RECORD_H

#include "base/fsm.h"
#include "sockets/record/home.h"

/* clang-format off */
#define REC_EVENTS(X, p)                                                                          \
	X(p, ADD) X(p, CONNECT) X(p, OFFER) X(p, NO_PEER) X(p, AGREE) X(p, BEGIN) X(p, NOT_YET)   \
	X(p, ATTACHED) X(p, REFUSE) X(p, TCP) X(p, LEAVE) X(p, CLOSE)
#define REC_ACTIONS(X, p)
/* clang-format on */
FSM_EVENTS(rec_event, REC_EVENTS, REC_EV_);

extern const struct fsm record_fsm;

/* The one place where a record changes its state. What it was before, or REC_ILLEGAL: nothing has changed, somebody
 * else was faster. */
uint32_t record_step(struct rec *r, enum rec_event e);
/* Counts lanes that came to this process, and that it has left. */
extern _Atomic uint32_t record_lanes;

/* All but the state, by which others know it, the locks, and what never changes. */
void record_wipe(struct home *h, struct rec *r, struct keep *keep);
/* Nobody has it any more. */
void record_free(struct rec *r);
/* The same for one whose last holder was killed, or has become another program. */
void record_abandon(struct rec *r);

#endif
