/* SPDX-License-Identifier: MIT */
#include "wire/sdp_fsm.h"

/* clang-format off */
#define FSM sdp_fsm
#define FSM_NAME "sdp"
#define FSM_ROWS "wire/sdp_fsm.def"
#define FSM_STRICT true
#define FSM_STATE_LIST SDP_STATES
#define FSM_EVENT_LIST SDP_EVENTS
#define FSM_ACTION_LIST SDP_ACTIONS
#define FSM_STATE(n) SDPS_##n
#define FSM_EVENT(n) SDPE_##n
#define FSM_ACTION(n) SDPA_##n
#include "base/fsm_table.def"
/* clang-format on */

bool sdp_fsm_may_send(enum sdp_state s, bool payload)
{
	switch (s) {
	case SDPS_ESTABLISHED:
	case SDPS_DIS_SEND_1:
	case SDPS_DIS_RECV_1:
	case SDPS_DIS_RECV_R:
	case SDPS_DIS_SEND_2: return true;
	/* The peer goes on and needs our answers and credits; and AbortConn. */
	case SDPS_DIS_SENT_1:
	case SDPS_ABORTING: return !payload;
	default: return false;
	}
}

bool sdp_fsm_may_receive(enum sdp_state s, bool payload)
{
	switch (s) {
	case SDPS_ESTABLISHED:
	case SDPS_DIS_SEND_1:
	case SDPS_DIS_SENT_1: return true;
	/* Behind its DisConn the peer still takes what we send. */
	case SDPS_DIS_RECV_1:
	case SDPS_DIS_RECV_R:
	case SDPS_DIS_SEND_2:
	case SDPS_TIME_WAIT_1: return !payload;
	default: return false;
	}
}
