/* SPDX-License-Identifier: MIT */
/* Shared by the qp_*.c files. Under the engine's lock. */
#ifndef FLUE_RNIC_QP_PRIV_H
#define FLUE_RNIC_QP_PRIV_H

#include "rnic/link.h"
#include "rnic/qp.h"

/* What may be posted, and as what it completes. */
struct op_rule {
	uint32_t flags; /* allowed beside SIGNALED and the fences */
	uint32_t min_sge, max_sge;
	uint8_t wc_op;
	uint8_t service; /* enum qp_service: at least */
};
/* A bind of a window of type 1, which programs ask for by a call of its own. */
#define QP_WR_BIND_SHARED FLUE_WR_NOPS
extern const struct op_rule qp_op_rules[FLUE_WR_NOPS + 1];

/* qp_complete.c */
/* In the new state: queued receives, and with `sends` requests too, complete as flushed. */
void qp_flush(struct qp *q, bool sends);
/* The same for what was posted just before the state changed, or after an error. */
void qp_flush_late(struct qp *q);
/* Idle: what was posted is gone, as if it had not been. */
void qp_discard(struct qp *q);
/* The same, and completions that nobody has taken. */
void qp_forget(struct qp *q);

/* qp_post.c */
/* Somebody posted. */
void qp_run_kick(struct engine_kick *k);

/* qp_modify.c */
/* A request has ended: is the queue drained? */
void qp_look_drained(struct qp *q);

/* qp_state.c */
void qp_fire_timer(struct engine_timer *t);
void qp_set_state(struct qp *q, uint8_t state);
/* Closes the link, if it is open. */
void qp_drop_link(struct qp *q, enum link_end how);

/* qp_rings.c: most connections never have more than a few Reads outstanding, so the rings grow as they need. */
/* How many there may be. There is room for one each, so who waits for room waits for an answer. -ENOMEM. */
int qp_limit_reads(struct qp *q, uint32_t ird, uint32_t ord);
/* Is there room at irq_tail, or at `tail`, behind what is outstanding? The limit was looked at. */
bool qp_irq_room(struct qp *q);
bool qp_orq_room(struct qp *q, uint32_t tail);

/* Does it complete with the peer's answer? */
static inline bool qp_wqe_is_answered(const struct wqe *w)
{
	return w->op == FLUE_WR_READ || w->op == FLUE_WR_READ_INV || w->op == FLUE_WR_CMP_SWAP ||
	       w->op == FLUE_WR_FETCH_ADD;
}

/* Does it send nothing? */
static inline bool qp_wqe_is_local(const struct wqe *w)
{
	return w->op == FLUE_WR_LOCAL_INV || w->op == FLUE_WR_FAST_REG || w->op == FLUE_WR_BIND ||
	       w->op == QP_WR_BIND_SHARED;
}

/* qp_sched.c */
/* Behind the last Read of ours, counting one whose request is half out. */
uint32_t qp_reads_out(const struct qp *q);

#endif
