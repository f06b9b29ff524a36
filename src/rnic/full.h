/* SPDX-License-Identifier: MIT */
/*
 * Full service: what two Flue ends add to iWARP so that programs written for InfiniBand's reliable
 * connections find what they rely on.
 *
 * Done means done there. A Send or Write completes when the peer's side has it. The peer tells so when it is asked, by
 * requests that are signaled or that find the queue half full: in the header of the next message that has room
 * for a number, or, when there is none for a moment, in a control message (wire/control.h). An answer to a Read or
 * an atomic tells the same of everything before it.
 *
 * Not ready. Who has no receive for a message says so, drops it and all requests behind it, and never stops reading. The
 * requester waits as long as it was told, goes back to that message and says that it does. What was dropped was
 * not looked at, so nothing is done twice.
 *
 * Errors are of one request: those before it complete, the peer's last word names it, and both queue pairs are in error.
 *
 * All under the engine's lock.
 */
#ifndef FLUE_RNIC_FULL_H
#define FLUE_RNIC_FULL_H

#include "rnic/qp.h"

#define FULL_RNR_FOR_EVER 7  /* the verbs' rnr_retry */
#define FULL_RNR_TIMER    12 /* code of 0.64 ms: what most programs choose */
#define FULL_TIMEOUT_MAX  31 /* the verbs' timeout, 0: for ever */
#define FULL_RETRIES_MAX  7  /* ... and retry_cnt */

/* a - b, for numbers that wrap. */
static inline int32_t full_distance(uint32_t a, uint32_t b)
{
	return (int32_t)(a - b);
}

/* ---- requester ---- */

/* Our messages before `number` are done. FAULT_RDMAP_OTHER: it can not be. */
uint32_t full_acked(struct qp *q, uint32_t number);
/* Can an answer to this request come? Not if the peer has dropped it. */
static inline bool full_expects(const struct qp *q, const struct orq_entry *o)
{
	return !q->tx.full.go_back || full_distance(o->number, q->tx.full.back_to) < 0;
}

void full_go_back(struct qp *q);
/* Our requests before this one have begun, perhaps to begin again. */
uint32_t full_begun(const struct qp *q);
/* Nothing of ours is half out. Goes back, if that was asked for. */
static inline void full_settle(struct qp *q)
{
	if (q->tx.full.go_back)
		full_go_back(q);
}

/* The peer has had the time it wanted. */
void full_resume(struct qp *q);
/* Something waits for our requests before `number` to be done: the peer shall tell. */
void full_ask(struct qp *q, uint32_t number);
/* A request is done: is it time to close? */
void full_look_closed(struct qp *q);
/* The program wants to close. true: everything is out, and it will be closed when the peer has it. */
bool full_closes(struct qp *q);

/* Time-out times retries: so long nobody need be there. Never 0. */
uint64_t full_patience_ns(const struct qp *q);
uint64_t full_patience_ms(const struct qp *q);
/* A request waits for its answer: somebody looks after the peer's host. What a link knows of that is in milliseconds. */
static inline void full_waits(struct qp *q)
{
	if (q->timeout && !q->watch.at)
		engine_timer_arm(q->engine, &q->watch, full_patience_ms(q));
}
void full_fire_watch(struct engine_timer *t);

/* ---- responder ---- */

/* Is a segment of a request dropped, because one before it was? */
static inline bool full_skips(const struct qp *q, const struct ddp_segment *s)
{
	return q->rx.skipping && rdmap_ops[s->opcode].request;
}

/* There is no receive for the message that begins: dropped. */
void full_not_ready(struct qp *q);
/* The octets of the message that is coming could not be fetched: it shall come again from its beginning. */
void full_again(struct qp *q);
/* A request of the peer is done. */
void full_done(struct qp *q, const struct ddp_segment *s);
/* A fault in what came: is that for the peer's request to hear? false: a Terminate is owed. */
bool full_refuse(struct qp *q, uint32_t fault, const struct ddp_segment *s);
/* The answer at the cursor cannot be given any more, nor are those behind it: that request hears of it. */
void full_lost_source(struct qp *q, uint32_t fault);
/* Nothing went out with which the peer could have been told: it is told. */
void full_run_ack(struct engine_kick *k);

/* ---- control messages ---- */

/* Is one to be sent? */
bool full_has_word(const struct qp *q, const struct tx_cursor *c);
static inline bool full_owes(const struct qp *q, const struct tx_cursor *c)
{
	return qp_is_full(q) && full_has_word(q, c);
}

/* The one that goes first. */
struct control full_word(const struct qp *q, const struct tx_cursor *c);
/* *c behind that. */
void full_said(struct tx_cursor *c, const struct control *w);
/* Rows of the table of opcodes. */
uint32_t full_check_control(struct qp *q, const struct ddp_segment *s, const uint8_t *payload);
uint32_t full_deliver_control(struct qp *q, const struct ddp_segment *s, const uint8_t *payload);

#endif
