/* SPDX-License-Identifier: MIT */
/* The two machines of an RDMA socket and its table of calls, as data; see the .def files. */
#ifndef FLUE_ACCESS_SOCKET_FSM_H
#define FLUE_ACCESS_SOCKET_FSM_H

#include <flue/socket.h>
#include <stdbool.h>
#include <stdint.h>

/* clang-format off */
/* In the order of enum flue_socket_state and enum flue_offload_state. */
#define SOCKET_STATES(X)  X(STREAMING) X(TRANSITION) X(RDMA)
#define SOCKET_EVENTS(X)  X(SWITCH) X(SWITCHED) X(FAILED)
#define OFFLOAD_STATES(X) X(NOT_READY) X(RESERVING) X(READY) X(WAIT_FIRST_RECV) X(IN_PROGRESS) X(DONE)
#define OFFLOAD_EVENTS(X) X(RESERVE) X(RESERVED) X(RESERVE_FAILED) X(SWITCH) X(FIRST_RECV)         \
			  X(OFFLOADED) X(FAILED)

enum socket_event {
#define X(n) SOCKET_EV_##n,
	SOCKET_EVENTS(X)
#undef X
	SOCKET_NEVENTS
};
enum offload_event {
#define X(n) OFFLOAD_EV_##n,
	OFFLOAD_EVENTS(X)
#undef X
	OFFLOAD_NEVENTS
};
enum socket_action { SOCKET_FLUSH_RECVS = 1, SOCKET_TRANSFER = 2, SOCKET_TELL = 4, SOCKET_TEAR_DOWN = 8 };
#define SOCKET_ILLEGAL 0xff

enum socket_call {
#define CALL(name, ...) SOCKET_CALL_##name,
#include "access/socket_calls.def"
#undef CALL
	SOCKET_NCALLS
};
/* clang-format on */

struct socket_edge {
	uint8_t next; /* a state, or SOCKET_ILLEGAL */
	uint8_t actions;
};

struct socket_edge socket_fsm_step(uint32_t state, enum socket_event e);
struct socket_edge offload_fsm_step(uint32_t state, enum offload_event e);
bool socket_call_allowed(enum socket_call call, uint32_t offload_state);
const char *socket_call_name(unsigned call);

#endif
