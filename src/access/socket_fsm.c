/* SPDX-License-Identifier: MIT */
#include "access/socket_fsm.h"

/* clang-format off */
#define FSM socket_fsm
#define FSM_NAME "socket"
#define FSM_ROWS "access/socket_fsm.def"
#define FSM_STRICT true
#define FSM_STATE_LIST SOCKET_STATES
#define FSM_EVENT_LIST SOCKET_EVENTS
#define FSM_ACTION_LIST SOCKET_ACTIONS
#define FSM_STATE(n) SOCKET_ST_##n
#define FSM_EVENT(n) SOCKET_EV_##n
#define FSM_ACTION(n) SOCKET_##n
#include "base/fsm_table.def"

_Static_assert((int)SOCKET_ST_NSTATES == (int)FLUE_SOCKET_NSTATES &&
	       (int)SOCKET_ST_RDMA == (int)FLUE_SOCKET_RDMA &&
	       (int)OFFLOAD_ST_NSTATES == (int)FLUE_OFFLOAD_NSTATES &&
	       (int)OFFLOAD_ST_DONE == (int)FLUE_OFFLOAD_DONE,
	       "the machines' states are the public ones");

#define Y true
#define N false
static const bool calls[SOCKET_NCALLS][FLUE_OFFLOAD_NSTATES] = {
#define CALL(name, ...) [SOCKET_CALL_##name] = { __VA_ARGS__ },
#include "access/socket_calls.def"
#undef CALL
};
#undef Y
#undef N

static const char *const call_names[SOCKET_NCALLS] = {
#define CALL(name, ...) [SOCKET_CALL_##name] = #name,
#include "access/socket_calls.def"
#undef CALL
};
/* clang-format on */

bool socket_call_allowed(enum socket_call call, uint32_t offload_state)
{
	return calls[call][offload_state];
}

const char *socket_call_name(unsigned call)
{
	return call < SOCKET_NCALLS ? call_names[call] : "?";
}
