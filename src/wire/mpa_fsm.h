/* SPDX-License-Identifier: MIT */
/* The machine of MPA start-up; its rows, and what the names mean, are in mpa_fsm.def. */
#ifndef FLUE_WIRE_MPA_FSM_H
#define FLUE_WIRE_MPA_FSM_H

#include "base/fsm.h"

/* clang-format off */
#define MPA_STATES(X, p)                                                                          \
	X(p, NEW) X(p, DIALING) X(p, WAIT_REPLY) X(p, HELD) X(p, WAIT_REQUEST) X(p, REQUESTED)    \
	X(p, PARKED) X(p, WAIT_RTR) X(p, REFUSED) X(p, OPEN) X(p, CLOSED)
#define MPA_EVENTS(X, p)                                                                          \
	X(p, DIAL) X(p, ADOPT) X(p, ADOPT_RAW) X(p, TCP_IN) X(p, TCP_UP) X(p, RX_REQUEST)         \
	X(p, RX_REPLY) X(p, RX_REPLY_DEFER) X(p, RX_REJECT) X(p, RX_BAD) X(p, ACCEPT)             \
	X(p, ACCEPT_P2P) X(p, ACCEPT_DEFER) X(p, REJECT) X(p, START) X(p, START_P2P)              \
	X(p, RX_FPDU) X(p, TIMEOUT) X(p, LOST) X(p, LOST_RETRY) X(p, ABORT)
#define MPA_ACTIONS(X, p)                                                                         \
	X(p, ARM_TIMER) X(p, STOP_TIMER) X(p, TX_REQUEST) X(p, TX_REPLY) X(p, TX_REJECT)          \
	X(p, ENTER_RDMA) X(p, TELL_REQUEST) X(p, TELL_ACCEPTED) X(p, TELL_CONNECTED)              \
	X(p, TELL_FAILED) X(p, REDIAL) X(p, AWAIT_END) X(p, CLOSE)
/* clang-format on */

FSM_STATES(mpa_state, MPA_STATES, MPA_);
FSM_EVENTS(mpa_event, MPA_EVENTS, MPA_EV_);
FSM_ACTIONS(mpa_action, MPA_ACTIONS, MPA_ACT_);

extern const struct fsm mpa_fsm;

static inline struct fsm_edge mpa_fsm_step(enum mpa_state s, enum mpa_event e)
{
	return fsm_step(&mpa_fsm, s, e);
}

#endif
