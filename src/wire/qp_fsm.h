/* SPDX-License-Identifier: MIT */
/* The machine of a queue pair; its rows, and what the names mean, are in qp_fsm.def. */
#ifndef FLUE_WIRE_QP_FSM_H
#define FLUE_WIRE_QP_FSM_H

#include "base/fsm.h"

/* clang-format off */
/* The order is that of enum flue_qp_state. */
#define QP_STATES(X, p) X(p, IDLE) X(p, RTS) X(p, CLOSING) X(p, TERMINATE) X(p, ERROR)
#define QP_EVENTS(X, p)                                                                           \
	X(p, ESTABLISH) X(p, CLOSE_IDLE) X(p, CLOSE_BUSY) X(p, FIN_IDLE) X(p, FIN_BUSY)           \
	X(p, FAULT) X(p, RX_TERM) X(p, RX_DATA) X(p, LLP_CLOSED) X(p, LLP_RESET) X(p, LLP_LOST)   \
	X(p, LOCAL_FAIL) X(p, POSTED) X(p, TERM_ASK) X(p, ABORT) X(p, TIMEOUT) X(p, REINIT)      \
	X(p, LINK_GONE)
#define QP_ACTIONS(X, p)                                                                          \
	X(p, FIN) X(p, RESET) X(p, CLOSE) X(p, TERM) X(p, TIMER) X(p, STOP) X(p, FLUSH)           \
	X(p, FLUSH_RQ) X(p, TELL)
/* clang-format on */

FSM_STATES(qp_fsm_state, QP_STATES, QPS_);
FSM_EVENTS(qp_fsm_event, QP_EVENTS, QPE_);
FSM_ACTIONS(qp_fsm_action, QP_ACTIONS, QPA_);

extern const struct fsm qp_fsm;

static inline struct fsm_edge qp_fsm_step(enum qp_fsm_state s, enum qp_fsm_event e)
{
	return fsm_step(&qp_fsm, s, e);
}

#endif
