/* SPDX-License-Identifier: MIT */
#include "wire/mpa_fsm.h"

/* clang-format off */
#define FSM mpa_fsm
#define FSM_NAME "mpa"
#define FSM_ROWS "wire/mpa_fsm.def"
#define FSM_STRICT true
#define FSM_STATE_LIST MPA_STATES
#define FSM_EVENT_LIST MPA_EVENTS
#define FSM_ACTION_LIST MPA_ACTIONS
#define FSM_STATE(n) MPA_##n
#define FSM_EVENT(n) MPA_EV_##n
#define FSM_ACTION(n) MPA_ACT_##n
#include "base/fsm_table.def"
/* clang-format on */
