/* SPDX-License-Identifier: MIT */
#include "wire/sdp_fsm.h"

/* clang-format off */
#define NONE SDPA_NONE
#define RESOLVE SDPA_RESOLVE
#define SPAWN SDPA_SPAWN
#define REFUSE SDPA_REFUSE
#define DROP_CHILDREN SDPA_DROP_CHILDREN
#define TX_HELLO SDPA_TX_HELLO
#define TX_HELLO_ACK SDPA_TX_HELLO_ACK
#define TX_READY SDPA_TX_READY
#define TX_DISCONN SDPA_TX_DISCONN
#define TX_ABORT SDPA_TX_ABORT
#define TEAR_DOWN SDPA_TEAR_DOWN
#define CUT SDPA_CUT
#define ARM SDPA_ARM
#define ARM_IF_CLOSED SDPA_ARM_IF_CLOSED
#define STOP SDPA_STOP
#define TELL_OPEN SDPA_TELL_OPEN
#define TELL_EOF SDPA_TELL_EOF
#define TELL_FAILED SDPA_TELL_FAILED
#define TELL_RESET SDPA_TELL_RESET
#define TELL_CLOSED SDPA_TELL_CLOSED

static const struct sdp_edge table[SDPS_NSTATES][SDPE_NEVENTS] = {
#define ROW(s, e, n, a) [SDPS_##s][SDPE_##e] = { .next = SDPS_##n, .actions = (a) },
#include "wire/sdp_fsm.def"
#undef ROW
};
enum {
	SDP_NROWS = 0
#define ROW(s, e, n, a) + 1
#include "wire/sdp_fsm.def"
#undef ROW
};
_Static_assert(SDP_NROWS == SDPS_NSTATES * SDPE_NEVENTS, "list every (state, event)");
_Static_assert(SDPA_NACTIONS <= 31, "actions fit their word");
/* clang-format on */

struct sdp_edge sdp_fsm_step(enum sdp_state s, enum sdp_event e)
{
	return table[s][e];
}

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

#define X(n) #n,
static const char *const state_names[] = { SDP_STATES(X) };
static const char *const event_names[] = { SDP_EVENTS(X) };
#undef X

const char *sdp_state_name(unsigned s)
{
	return s < SDPS_NSTATES ? state_names[s] : "ILLEGAL";
}

const char *sdp_event_name(unsigned e)
{
	return e < SDPE_NEVENTS ? event_names[e] : "?";
}
