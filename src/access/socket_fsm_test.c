/* SPDX-License-Identifier: MIT */
/* The machines and the table of calls of an RDMA socket, against their source's words (CH-9). */
#include "access/socket_fsm.h"
#include "base/fsm_test.h"

static const uint32_t socket_state_of[FLUE_OFFLOAD_NSTATES] = {
	[FLUE_OFFLOAD_NOT_READY] = FLUE_SOCKET_STREAMING,
	[FLUE_OFFLOAD_RESERVING] = FLUE_SOCKET_STREAMING,
	[FLUE_OFFLOAD_READY] = FLUE_SOCKET_STREAMING,
	[FLUE_OFFLOAD_WAIT_FIRST_RECV] = FLUE_SOCKET_TRANSITION,
	[FLUE_OFFLOAD_IN_PROGRESS] = FLUE_SOCKET_TRANSITION,
	[FLUE_OFFLOAD_DONE] = FLUE_SOCKET_RDMA,
};

static void rows_are_sane_and_all_of_use(void **state)
{
	fsm_check(&socket_fsm, FLUE_SOCKET_STREAMING, SOCKET_FLUSH_RECVS | SOCKET_TEAR_DOWN);
	fsm_check(&offload_fsm, FLUE_OFFLOAD_NOT_READY,
		  SOCKET_TRANSFER | SOCKET_TELL | SOCKET_TEAR_DOWN);
}

/* ---- the edges that are meant, stated a second time; all others are illegal ---- */

struct meant {
	unsigned state, event, next, actions;
};

static const struct meant socket_meant[] = {
	{ FLUE_SOCKET_STREAMING, SOCKET_EV_SWITCH, FLUE_SOCKET_TRANSITION, SOCKET_FLUSH_RECVS },
	{ FLUE_SOCKET_TRANSITION, SOCKET_EV_SWITCHED, FLUE_SOCKET_RDMA, 0 },
	{ FLUE_SOCKET_TRANSITION, SOCKET_EV_FAILED, FLUE_SOCKET_TRANSITION, SOCKET_TEAR_DOWN },
	{ FLUE_SOCKET_RDMA, SOCKET_EV_FAILED, FLUE_SOCKET_RDMA, SOCKET_TEAR_DOWN },
};

static const struct meant offload_meant[] = {
	{ FLUE_OFFLOAD_NOT_READY, OFFLOAD_EV_RESERVE, FLUE_OFFLOAD_RESERVING, 0 },
	{ FLUE_OFFLOAD_RESERVING, OFFLOAD_EV_RESERVED, FLUE_OFFLOAD_READY, 0 },
	{ FLUE_OFFLOAD_RESERVING, OFFLOAD_EV_RESERVE_FAILED, FLUE_OFFLOAD_NOT_READY, 0 },
	{ FLUE_OFFLOAD_READY, OFFLOAD_EV_RESERVE, FLUE_OFFLOAD_RESERVING, 0 },
	{ FLUE_OFFLOAD_READY, OFFLOAD_EV_SWITCH, FLUE_OFFLOAD_WAIT_FIRST_RECV, 0 },
	{ FLUE_OFFLOAD_WAIT_FIRST_RECV, OFFLOAD_EV_FIRST_RECV, FLUE_OFFLOAD_IN_PROGRESS,
	  SOCKET_TRANSFER },
	{ FLUE_OFFLOAD_WAIT_FIRST_RECV, OFFLOAD_EV_FAILED, FLUE_OFFLOAD_WAIT_FIRST_RECV,
	  SOCKET_TELL | SOCKET_TEAR_DOWN },
	{ FLUE_OFFLOAD_IN_PROGRESS, OFFLOAD_EV_OFFLOADED, FLUE_OFFLOAD_DONE, SOCKET_TELL },
	{ FLUE_OFFLOAD_IN_PROGRESS, OFFLOAD_EV_FAILED, FLUE_OFFLOAD_IN_PROGRESS,
	  SOCKET_TELL | SOCKET_TEAR_DOWN },
	{ FLUE_OFFLOAD_DONE, OFFLOAD_EV_FAILED, FLUE_OFFLOAD_DONE, SOCKET_TEAR_DOWN },
};

/* Expected answer: the meant edge, or ILLEGAL without actions. */
static void check_edge(const struct meant *list, size_t n, unsigned state, unsigned event,
		       struct fsm_edge edge)
{
	for (size_t i = 0; i < n; i++) {
		if (list[i].state != state || list[i].event != event)
			continue;
		assert_int_equal(edge.next, list[i].next);
		assert_int_equal(edge.actions, list[i].actions);
		return;
	}
	if (edge.next != FSM_ILLEGAL || edge.actions)
		fail_msg("state %u, event %u: next %u, actions %u", state, event, edge.next,
			 edge.actions);
}

static void socket_machine_has_the_meant_edges_and_no_other(void **state)
{
	for (unsigned s = 0; s < FLUE_SOCKET_NSTATES; s++)
		for (unsigned e = 0; e < SOCKET_EV_NEVENTS; e++)
			check_edge(socket_meant, sizeof(socket_meant) / sizeof(socket_meant[0]), s,
				   e, fsm_look(&socket_fsm, s, e));
}

static void offload_machine_has_the_meant_edges_and_no_other(void **state)
{
	for (unsigned s = 0; s < FLUE_OFFLOAD_NSTATES; s++)
		for (unsigned e = 0; e < OFFLOAD_EV_NEVENTS; e++)
			check_edge(offload_meant, sizeof(offload_meant) / sizeof(offload_meant[0]),
				   s, e, fsm_look(&offload_fsm, s, e));
}

/* ---- what follows for every way through them ---- */

/* CH-14: streaming mode is left for good. */
static void no_event_leads_back_to_streaming(void **state)
{
	for (unsigned s = FLUE_SOCKET_TRANSITION; s < FLUE_SOCKET_NSTATES; s++)
		for (unsigned e = 0; e < SOCKET_EV_NEVENTS; e++)
			assert_int_not_equal(fsm_look(&socket_fsm, s, e).next,
					     FLUE_SOCKET_STREAMING);
	for (unsigned s = FLUE_OFFLOAD_WAIT_FIRST_RECV; s < FLUE_OFFLOAD_NSTATES; s++) {
		for (unsigned e = 0; e < OFFLOAD_EV_NEVENTS; e++) {
			unsigned next = fsm_look(&offload_fsm, s, e).next;

			assert_true(next == FSM_ILLEGAL || next >= s);
		}
	}
}

/* The socket's machine takes part in three events of the connection's; see sock_step(). */
static int socket_event_for(unsigned e)
{
	switch (e) {
	case OFFLOAD_EV_SWITCH: return SOCKET_EV_SWITCH;
	case OFFLOAD_EV_OFFLOADED: return SOCKET_EV_SWITCHED;
	case OFFLOAD_EV_FAILED: return SOCKET_EV_FAILED;
	default: return -1;
	}
}

static void both_machines_stay_in_step_on_every_edge(void **state)
{
	for (unsigned s = 0; s < FLUE_OFFLOAD_NSTATES; s++) {
		for (unsigned e = 0; e < OFFLOAD_EV_NEVENTS; e++) {
			struct fsm_edge below = fsm_look(&offload_fsm, s, e), above;
			int event = socket_event_for(e);

			if (below.next == FSM_ILLEGAL)
				continue;
			if (event < 0) {
				assert_int_equal(socket_state_of[below.next], socket_state_of[s]);
				continue;
			}
			above = fsm_look(&socket_fsm, socket_state_of[s], (enum socket_event)event);
			assert_int_equal(above.next, socket_state_of[below.next]);
			/* What tears down below does so above. */
			assert_int_equal(above.actions & SOCKET_TEAR_DOWN,
					 below.actions & SOCKET_TEAR_DOWN);
		}
	}
}

/* Follows every way from `s` until FAILED has come; `told` counts answers to the switch request. */
static unsigned follow(unsigned s, unsigned told, bool recvs_flushed, unsigned depth)
{
	unsigned ends = 0;

	assert_true(depth < 20);
	for (unsigned e = 0; e < OFFLOAD_EV_NEVENTS; e++) {
		struct fsm_edge edge = fsm_look(&offload_fsm, s, e);
		unsigned now = told + !!(edge.actions & SOCKET_TELL);

		if (edge.next == FSM_ILLEGAL)
			continue;
		if (edge.actions & SOCKET_TRANSFER)
			assert_true(recvs_flushed);
		if (e == OFFLOAD_EV_FAILED) {
			assert_int_equal(now, 1);
			assert_true(edge.actions & SOCKET_TEAR_DOWN);
			ends++;
		} else {
			assert_true(now <= 1);
			assert_int_equal(now, edge.next == FLUE_OFFLOAD_DONE);
			ends += follow(edge.next, now, recvs_flushed, depth + 1);
		}
	}
	return ends;
}

static void switch_request_is_answered_once_on_each_way_to_an_end(void **state)
{
	struct fsm_edge edge = fsm_look(&offload_fsm, FLUE_OFFLOAD_READY, OFFLOAD_EV_SWITCH);
	struct fsm_edge above = fsm_look(&socket_fsm, FLUE_SOCKET_STREAMING, SOCKET_EV_SWITCH);

	assert_int_equal(edge.actions & SOCKET_TELL, 0);
	/* It can end before the first receive, in the transfer and after it. */
	assert_int_equal(follow(edge.next, 0, above.actions & SOCKET_FLUSH_RECVS, 0), 3);
}

/* ---- calls ---- */

/* The source's lists, by the socket's state (CH-9, CH-10), and what only control clients may. */
static bool listed(unsigned call, unsigned offload)
{
	if (call == SOCKET_CALL_QUERY_OFFLOAD)
		return offload >= FLUE_OFFLOAD_READY;
	if (call == SOCKET_CALL_END_OFFLOAD)
		return offload >= FLUE_OFFLOAD_WAIT_FIRST_RECV;
	switch (socket_state_of[offload]) {
	case FLUE_SOCKET_STREAMING:
		switch (call) {
		case SOCKET_CALL_RDMA_SEND:
		case SOCKET_CALL_RDMA_RECV:
		case SOCKET_CALL_PUT:
		case SOCKET_CALL_GET: return false;
		case SOCKET_CALL_SWITCH_MODE: return offload == FLUE_OFFLOAD_READY;
		/* One reservation at a time. */
		case SOCKET_CALL_RESERVE: return offload != FLUE_OFFLOAD_RESERVING;
		default: return true;
		}
	case FLUE_SOCKET_TRANSITION:
		switch (call) {
		case SOCKET_CALL_SEND: return offload == FLUE_OFFLOAD_WAIT_FIRST_RECV;
		case SOCKET_CALL_RDMA_RECV:
		case SOCKET_CALL_ALLOC_STAG:
		case SOCKET_CALL_FREE_STAG:
		case SOCKET_CALL_MAP:
		case SOCKET_CALL_READ_RESOURCES: return true;
		default: return false;
		}
	default:
		switch (call) {
		case SOCKET_CALL_READ_RESOURCES:
		case SOCKET_CALL_RDMA_SEND:
		case SOCKET_CALL_RDMA_RECV:
		case SOCKET_CALL_PUT:
		case SOCKET_CALL_GET:
		case SOCKET_CALL_ALLOC_STAG:
		case SOCKET_CALL_FREE_STAG:
		case SOCKET_CALL_MAP:
		case SOCKET_CALL_DISCONNECT: return true;
		default: return false;
		}
	}
}

static void calls_are_allowed_exactly_where_the_source_lists_them(void **state)
{
	assert_int_equal(SOCKET_NCALLS, 15);
	for (unsigned c = 0; c < SOCKET_NCALLS; c++)
		for (unsigned o = 0; o < FLUE_OFFLOAD_NSTATES; o++)
			if (socket_call_allowed(c, o) != listed(c, o))
				fail_msg("%s in %s is %s", socket_call_name(c),
					 flue_offload_state_name(o),
					 listed(c, o) ? "refused" : "allowed");
}

static void names_are_different_and_never_missing(void **state)
{
	for (unsigned i = 0; i < SOCKET_NCALLS; i++)
		for (unsigned j = 0; j < i; j++)
			assert_string_not_equal(socket_call_name(i), socket_call_name(j));
	assert_string_equal(socket_call_name(SOCKET_NCALLS), "?");
	for (unsigned i = 0; i < FLUE_SOCKET_NSTATES; i++)
		for (unsigned j = 0; j <= FLUE_SOCKET_NSTATES; j++)
			assert_true(i == j ||
				    strcmp(flue_socket_state_name(i), flue_socket_state_name(j)));
	for (unsigned i = 0; i < FLUE_OFFLOAD_NSTATES; i++)
		for (unsigned j = 0; j <= FLUE_OFFLOAD_NSTATES; j++)
			assert_true(i == j ||
				    strcmp(flue_offload_state_name(i), flue_offload_state_name(j)));
	for (unsigned i = 0; i < FLUE_RESERVE_NREASONS; i++)
		for (unsigned j = 0; j <= FLUE_RESERVE_NREASONS; j++)
			assert_true(i == j || strcmp(flue_reserve_reason_name(i),
						     flue_reserve_reason_name(j)));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(rows_are_sane_and_all_of_use),
		cmocka_unit_test(socket_machine_has_the_meant_edges_and_no_other),  /* CH-9 */
		cmocka_unit_test(offload_machine_has_the_meant_edges_and_no_other), /* CH-9 */
		cmocka_unit_test(no_event_leads_back_to_streaming),                 /* CH-14 */
		cmocka_unit_test(both_machines_stay_in_step_on_every_edge),
		cmocka_unit_test(switch_request_is_answered_once_on_each_way_to_an_end), /* CH-13 */
		cmocka_unit_test(
			calls_are_allowed_exactly_where_the_source_lists_them), /* CH-9, CH-10 */
		cmocka_unit_test(names_are_different_and_never_missing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
