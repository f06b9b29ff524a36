/* SPDX-License-Identifier: MIT */
/*
 * The machine of an SDP connection; its rows, and what the names mean, are in sdp_fsm.def.
 */
#ifndef FLUE_WIRE_SDP_FSM_H
#define FLUE_WIRE_SDP_FSM_H

#include <stdbool.h>

#include "base/fsm.h"

/* clang-format off */
#define SDP_STATES(X, p)                                                                          \
	X(p, CLOSED) X(p, LISTEN) X(p, REQ_PATH) X(p, REQ_SENT) X(p, REQ_RECV) X(p, DIS_HOLD)     \
	X(p, ESTABLISHED) X(p, DIS_SEND_1) X(p, DIS_SENT_1) X(p, DIS_RECV_1) X(p, DIS_RECV_R)     \
	X(p, DIS_SEND_2) X(p, ABORTING) X(p, TIME_WAIT_1) X(p, TIME_WAIT_2) X(p, ERROR)
#define SDP_EVENTS(X, p)                                                                          \
	X(p, CONNECT) X(p, LISTEN) X(p, RX_HELLO) X(p, PATH_OK) X(p, RX_HELLO_ACK) X(p, RX_BAD)   \
	X(p, REFUSED) X(p, UP) X(p, SHUT) X(p, CLOSE) X(p, DISCONN_SENT) X(p, RX_DISCONN)         \
	X(p, RX_ABORT) X(p, ABORT) X(p, ABORT_SENT) X(p, LLP_CLOSED) X(p, LLP_LOST) X(p, DOWN)    \
	X(p, TIMEOUT)
#define SDP_ACTIONS(X, p)                                                                         \
	X(p, RESOLVE) X(p, SPAWN) X(p, REFUSE) X(p, DROP_CHILDREN) X(p, TX_HELLO)                 \
	X(p, TX_HELLO_ACK) X(p, TX_READY) X(p, TX_DISCONN) X(p, TX_ABORT) X(p, TEAR_DOWN)         \
	X(p, CUT) X(p, ARM) X(p, ARM_IF_CLOSED) X(p, STOP) X(p, TELL_OPEN) X(p, TELL_EOF)         \
	X(p, TELL_FAILED) X(p, TELL_RESET) X(p, TELL_CLOSED)
/* clang-format on */

FSM_STATES(sdp_state, SDP_STATES, SDPS_);
FSM_EVENTS(sdp_event, SDP_EVENTS, SDPE_);
FSM_ACTIONS(sdp_action, SDP_ACTIONS, SDPA_);

extern const struct fsm sdp_fsm;

static inline struct fsm_edge sdp_fsm_step(enum sdp_state s, enum sdp_event e)
{
	return fsm_step(&sdp_fsm, s, e);
}

/* Whether messages may go out: those with payload, and the others (answers, credits). */
bool sdp_fsm_may_send(enum sdp_state s, bool payload);

/*
 * Whether the peer may send messages: payload until its DisConn. A child in REQ_RECV or DIS_HOLD
 * first steps UP. A message that may not come is RX_BAD.
 */
bool sdp_fsm_may_receive(enum sdp_state s, bool payload);

static inline const char *sdp_state_name(unsigned s)
{
	return fsm_state_name(&sdp_fsm, s);
}

#endif
