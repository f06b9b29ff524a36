/* SPDX-License-Identifier: MIT */
#include "wire/fsm.h"

/* clang-format off */
#define NONE 0
#define ARM_TIMER MPA_ACT_ARM_TIMER
#define STOP_TIMER MPA_ACT_STOP_TIMER
#define TX_REQUEST MPA_ACT_TX_REQUEST
#define TX_REPLY MPA_ACT_TX_REPLY
#define TX_REJECT MPA_ACT_TX_REJECT
#define ENTER_RDMA MPA_ACT_ENTER_RDMA
#define TELL_REQUEST MPA_ACT_TELL_REQUEST
#define TELL_ACCEPTED MPA_ACT_TELL_ACCEPTED
#define TELL_CONNECTED MPA_ACT_TELL_CONNECTED
#define TELL_FAILED MPA_ACT_TELL_FAILED
#define REDIAL MPA_ACT_REDIAL
#define AWAIT_END MPA_ACT_AWAIT_END
#define CLOSE MPA_ACT_CLOSE

static const struct fsm_edge mpa_table[MPA_NSTATES][MPA_NEVENTS] = {
#define ROW(s, e, n, a) [MPA_##s][MPA_EV_##e] = { .next = MPA_##n, .actions = (a) },
#include "wire/mpa_fsm.def"
#undef ROW
};
enum {
	MPA_NROWS = 0
#define ROW(s, e, n, a) + 1
#include "wire/mpa_fsm.def"
#undef ROW
};
_Static_assert(MPA_NROWS == MPA_NSTATES * MPA_NEVENTS, "list every (state, event)");
_Static_assert(MPA_NACTIONS <= 16, "actions fit their word");

#undef CLOSE
#define FIN QPA_FIN
#define RESET QPA_RESET
#define CLOSE QPA_CLOSE
#define TERM QPA_TERM
#define TIMER QPA_TIMER
#define STOP QPA_STOP
#define FLUSH QPA_FLUSH
#define FLUSH_RQ QPA_FLUSH_RQ
#define TELL QPA_TELL

static const struct fsm_edge qp_table[QPS_NSTATES][QPE_NEVENTS] = {
#define ROW(s, e, n, a) [QPS_##s][QPE_##e] = { .next = QPS_##n, .actions = (a) },
#include "wire/qp_fsm.def"
#undef ROW
};
enum {
	QP_NROWS = 0
#define ROW(s, e, n, a) + 1
#include "wire/qp_fsm.def"
#undef ROW
};
_Static_assert(QP_NROWS == QPS_NSTATES * QPE_NEVENTS, "list every (state, event)");
_Static_assert(QPA_NACTIONS <= 16, "actions fit their word");
/* clang-format on */

struct fsm_edge mpa_fsm_step(enum mpa_state s, enum mpa_event e)
{
	return mpa_table[s][e];
}

struct fsm_edge qp_fsm_step(enum qp_fsm_state s, enum qp_fsm_event e)
{
	return qp_table[s][e];
}

#define X(n) #n,
static const char *const mpa_state_names[] = { MPA_STATES(X) };
static const char *const mpa_event_names[] = { MPA_EVENTS(X) };
static const char *const qp_state_names[] = { QP_STATES(X) };
static const char *const qp_event_names[] = { QP_EVENTS(X) };
#undef X

const char *mpa_state_name(unsigned s)
{
	return s < MPA_NSTATES ? mpa_state_names[s] : "ILLEGAL";
}

const char *mpa_event_name(unsigned e)
{
	return e < MPA_NEVENTS ? mpa_event_names[e] : "?";
}

const char *qp_fsm_state_name(unsigned s)
{
	return s < QPS_NSTATES ? qp_state_names[s] : "ILLEGAL";
}

const char *qp_fsm_event_name(unsigned e)
{
	return e < QPE_NEVENTS ? qp_event_names[e] : "?";
}
