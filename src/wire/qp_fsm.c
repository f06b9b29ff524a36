/* SPDX-License-Identifier: MIT */
#include "wire/qp_fsm.h"

/* clang-format off */
#define FSM qp_fsm
#define FSM_NAME "qp"
#define FSM_ROWS "wire/qp_fsm.def"
#define FSM_STRICT true
#define FSM_STATE_LIST QP_STATES
#define FSM_EVENT_LIST QP_EVENTS
#define FSM_ACTION_LIST QP_ACTIONS
#define FSM_STATE(n) QPS_##n
#define FSM_EVENT(n) QPE_##n
#define FSM_ACTION(n) QPA_##n
#include "base/fsm_table.def"
/* clang-format on */
