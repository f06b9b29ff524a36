/* SPDX-License-Identifier: MIT */
#include "access/socket_fsm.h"

/* clang-format off */
#define FSM offload_fsm
#define FSM_NAME "offload"
#define FSM_ROWS "access/offload_fsm.def"
#define FSM_STRICT true
#define FSM_STATE_LIST OFFLOAD_STATES
#define FSM_EVENT_LIST OFFLOAD_EVENTS
#define FSM_ACTION_LIST SOCKET_ACTIONS
#define FSM_STATE(n) OFFLOAD_ST_##n
#define FSM_EVENT(n) OFFLOAD_EV_##n
#define FSM_ACTION(n) SOCKET_##n
#include "base/fsm_table.def"
/* clang-format on */
