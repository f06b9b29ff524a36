/* SPDX-License-Identifier: MIT */
/*
 * The machine of an SDP connection, as data. A step is a table look-up and changes nothing;
 * whoever owns the connection writes its state and performs the actions. The rows, and what the
 * names mean, are in sdp_fsm.def.
 */
#ifndef FLUE_WIRE_SDP_FSM_H
#define FLUE_WIRE_SDP_FSM_H

#include <stdbool.h>
#include <stdint.h>

/* clang-format off */
#define SDP_STATES(X)                                                                             \
	X(CLOSED) X(LISTEN) X(REQ_PATH) X(REQ_SENT) X(REQ_RECV) X(DIS_HOLD) X(ESTABLISHED)        \
	X(DIS_SEND_1) X(DIS_SENT_1) X(DIS_RECV_1) X(DIS_RECV_R) X(DIS_SEND_2) X(ABORTING)         \
	X(TIME_WAIT_1) X(TIME_WAIT_2) X(ERROR)
#define SDP_EVENTS(X)                                                                             \
	X(CONNECT) X(LISTEN) X(RX_HELLO) X(PATH_OK) X(RX_HELLO_ACK) X(RX_BAD) X(REFUSED) X(UP)    \
	X(SHUT) X(CLOSE) X(DISCONN_SENT) X(RX_DISCONN) X(RX_ABORT) X(ABORT) X(ABORT_SENT)         \
	X(LLP_CLOSED) X(LLP_LOST) X(DOWN) X(TIMEOUT)
#define SDP_ACTIONS(X)                                                                            \
	X(RESOLVE) X(SPAWN) X(REFUSE) X(DROP_CHILDREN) X(TX_HELLO) X(TX_HELLO_ACK) X(TX_READY)    \
	X(TX_DISCONN) X(TX_ABORT) X(TEAR_DOWN) X(CUT) X(ARM) X(ARM_IF_CLOSED) X(STOP)             \
	X(TELL_OPEN) X(TELL_EOF) X(TELL_FAILED) X(TELL_RESET) X(TELL_CLOSED)

enum sdp_state {
#define X(n) SDPS_##n,
	SDP_STATES(X)
#undef X
	SDPS_NSTATES, SDPS_ILLEGAL = 0xff
};
enum sdp_event {
#define X(n) SDPE_##n,
	SDP_EVENTS(X)
#undef X
	SDPE_NEVENTS
};
enum sdp_action_bit {
#define X(n) SDPA_BIT_##n,
	SDP_ACTIONS(X)
#undef X
	SDPA_NACTIONS
};
enum sdp_action {
	SDPA_NONE = 0,
#define X(n) SDPA_##n = 1 << SDPA_BIT_##n,
	SDP_ACTIONS(X)
#undef X
};
/* clang-format on */

struct sdp_edge {
	uint8_t next; /* a state, or SDPS_ILLEGAL */
	uint32_t actions;
};

/* Never fails: an illegal pair gives next == SDPS_ILLEGAL and no actions. */
struct sdp_edge sdp_fsm_step(enum sdp_state s, enum sdp_event e);

/* Whether messages may go out: those with payload, and the others (answers, credits). */
bool sdp_fsm_may_send(enum sdp_state s, bool payload);

/*
 * Whether the peer may send messages: payload until its DisConn. A child in REQ_RECV or DIS_HOLD
 * first steps UP. A message that may not come is RX_BAD.
 */
bool sdp_fsm_may_receive(enum sdp_state s, bool payload);

const char *sdp_state_name(unsigned s);
const char *sdp_event_name(unsigned e);

#endif
