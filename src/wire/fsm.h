/* SPDX-License-Identifier: MIT */
/*
 * The two machines of the software RNIC, as data: MPA start-up and the queue pair. A step is a
 * table look-up and changes nothing; whoever owns the object writes its state and performs the
 * actions. The rows are in mpa_fsm.def and qp_fsm.def.
 */
#ifndef FLUE_WIRE_FSM_H
#define FLUE_WIRE_FSM_H

#include <stdbool.h>
#include <stdint.h>

/* clang-format off */
#define MPA_STATES(X)                                                                             \
	X(NEW) X(DIALING) X(WAIT_REPLY) X(HELD) X(WAIT_REQUEST) X(REQUESTED) X(PARKED)            \
	X(WAIT_RTR) X(REFUSED) X(OPEN) X(CLOSED)
#define MPA_EVENTS(X)                                                                             \
	X(DIAL) X(ADOPT) X(ADOPT_RAW) X(TCP_IN) X(TCP_UP) X(RX_REQUEST) X(RX_REPLY) X(RX_REPLY_DEFER) X(RX_REJECT)      \
	X(RX_BAD) X(ACCEPT) X(ACCEPT_P2P) X(ACCEPT_DEFER) X(REJECT) X(START) X(START_P2P)         \
	X(RX_FPDU) X(TIMEOUT) X(LOST) X(LOST_RETRY) X(ABORT)
#define MPA_ACTIONS(X)                                                                            \
	X(ARM_TIMER) X(STOP_TIMER) X(TX_REQUEST) X(TX_REPLY) X(TX_REJECT) X(ENTER_RDMA)           \
	X(TELL_REQUEST) X(TELL_ACCEPTED) X(TELL_CONNECTED) X(TELL_FAILED) X(REDIAL)               \
	X(AWAIT_END) X(CLOSE)

/* The order is that of enum flue_qp_state. */
#define QP_STATES(X) X(IDLE) X(RTS) X(CLOSING) X(TERMINATE) X(ERROR)
#define QP_EVENTS(X)                                                                              \
	X(ESTABLISH) X(CLOSE_IDLE) X(CLOSE_BUSY) X(FIN_IDLE) X(FIN_BUSY) X(FAULT) X(RX_TERM)      \
	X(RX_DATA) X(LLP_CLOSED) X(LLP_RESET) X(LLP_LOST) X(LOCAL_FAIL) X(POSTED) X(TERM_ASK)     \
	X(ABORT) X(TIMEOUT) X(REINIT)
#define QP_ACTIONS(X)                                                                             \
	X(FIN) X(RESET) X(CLOSE) X(TERM) X(TIMER) X(STOP) X(FLUSH) X(FLUSH_RQ) X(TELL)

enum mpa_state {
#define X(n) MPA_##n,
	MPA_STATES(X)
#undef X
	MPA_NSTATES, MPA_ILLEGAL = 0xff
};
enum mpa_event {
#define X(n) MPA_EV_##n,
	MPA_EVENTS(X)
#undef X
	MPA_NEVENTS
};
enum mpa_action_bit {
#define X(n) MPA_ACT_BIT_##n,
	MPA_ACTIONS(X)
#undef X
	MPA_NACTIONS
};
enum mpa_action {
	MPA_ACT_NONE = 0,
#define X(n) MPA_ACT_##n = 1 << MPA_ACT_BIT_##n,
	MPA_ACTIONS(X)
#undef X
};
enum qp_fsm_state {
#define X(n) QPS_##n,
	QP_STATES(X)
#undef X
	QPS_NSTATES, QPS_ILLEGAL = 0xff
};
enum qp_fsm_event {
#define X(n) QPE_##n,
	QP_EVENTS(X)
#undef X
	QPE_NEVENTS
};
enum qp_fsm_action_bit {
#define X(n) QPA_BIT_##n,
	QP_ACTIONS(X)
#undef X
	QPA_NACTIONS
};
enum qp_fsm_action {
	QPA_NONE = 0,
#define X(n) QPA_##n = 1 << QPA_BIT_##n,
	QP_ACTIONS(X)
#undef X
};
/* clang-format on */

struct fsm_edge {
	uint8_t next; /* a state, or MPA_ILLEGAL / QPS_ILLEGAL */
	uint16_t actions;
};

/* Never fails: an illegal pair gives next == *_ILLEGAL and no actions. */
struct fsm_edge mpa_fsm_step(enum mpa_state s, enum mpa_event e);
struct fsm_edge qp_fsm_step(enum qp_fsm_state s, enum qp_fsm_event e);

const char *mpa_state_name(unsigned s);
const char *mpa_event_name(unsigned e);
const char *qp_fsm_state_name(unsigned s);
const char *qp_fsm_event_name(unsigned e);

#endif
