/* SPDX-License-Identifier: MIT */
/* The two machines of an RDMA socket and its table of calls, as data; see the .def files. */
#ifndef FLUE_ACCESS_SOCKET_FSM_H
#define FLUE_ACCESS_SOCKET_FSM_H

#include <flue/socket.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/fsm.h"

/* clang-format off */
/* In the order of enum flue_socket_state and enum flue_offload_state. */
#define SOCKET_STATES(X, p) X(p, STREAMING) X(p, TRANSITION) X(p, RDMA)
#define SOCKET_EVENTS(X, p) X(p, SWITCH) X(p, SWITCHED) X(p, FAILED)
#define OFFLOAD_STATES(X, p)                                                                      \
	X(p, NOT_READY) X(p, RESERVING) X(p, READY) X(p, WAIT_FIRST_RECV) X(p, IN_PROGRESS)       \
	X(p, DONE)
#define OFFLOAD_EVENTS(X, p)                                                                      \
	X(p, RESERVE) X(p, RESERVED) X(p, RESERVE_FAILED) X(p, SWITCH) X(p, FIRST_RECV)           \
	X(p, OFFLOADED) X(p, FAILED)
/* Of both: they step together. */
#define SOCKET_ACTIONS(X, p) X(p, FLUSH_RECVS) X(p, TRANSFER) X(p, TELL) X(p, TEAR_DOWN)

FSM_STATES(socket_fsm_state, SOCKET_STATES, SOCKET_ST_);
FSM_EVENTS(socket_event, SOCKET_EVENTS, SOCKET_EV_);
FSM_STATES(offload_fsm_state, OFFLOAD_STATES, OFFLOAD_ST_);
FSM_EVENTS(offload_event, OFFLOAD_EVENTS, OFFLOAD_EV_);
FSM_ACTIONS(socket_action, SOCKET_ACTIONS, SOCKET_);

enum socket_call {
#define CALL(name, ...) SOCKET_CALL_##name,
#include "access/socket_calls.def"
#undef CALL
	SOCKET_NCALLS
};
/* clang-format on */

extern const struct fsm socket_fsm, offload_fsm;

bool socket_call_allowed(enum socket_call call, uint32_t offload_state);
const char *socket_call_name(unsigned call);

#endif
