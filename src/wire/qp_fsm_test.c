/* SPDX-License-Identifier: MIT */
/* The queue pair's table as a whole (CH-18): what holds for every row, not what each row says. */
#include "base/fsm_test.h"
#include "wire/qp_fsm.h"

static void qp_rows_are_sane_and_all_of_use(void **state)
{
	fsm_check(&qp_fsm, QPS_IDLE, (1u << QPA_NACTIONS) - 1);
	assert_string_equal(fsm_state_name(&qp_fsm, QPS_CLOSING), "CLOSING");
	assert_string_equal(fsm_event_name(&qp_fsm, QPE_RX_TERM), "RX_TERM");
}

static void qp_can_fail_and_be_used_again_in_every_state(void **state)
{
	for (unsigned s = 0; s < QPS_NSTATES; s++) {
		if (!(fsm_reach(&qp_fsm, s) & 1u << QPS_ERROR))
			fail_msg("%s cannot fail", fsm_state_name(&qp_fsm, s));
		if (!(fsm_reach(&qp_fsm, s) & 1u << QPS_IDLE))
			fail_msg("%s cannot be used again", fsm_state_name(&qp_fsm, s));
	}
}

static bool is_connected(unsigned s)
{
	return s == QPS_RTS || s == QPS_CLOSING || s == QPS_TERMINATE;
}

static void qp_row_ends_properly(const struct fsm *m, unsigned s, unsigned e, struct fsm_edge edge)
{
	/* That of a link below a queue pair which goes on is none. */
	bool goes_on = e == QPE_LINK_GONE && s == QPS_RTS;
	bool ends = is_connected(s) && !goes_on &&
		    (edge.next == QPS_IDLE || edge.next == QPS_ERROR);
	bool tells = edge.actions & QPA_TELL;

	if (tells != ends)
		fsm_fail(m, s, e, "the end of a connection is told exactly there");
	if (ends && !(edge.actions & (QPA_RESET | QPA_CLOSE)))
		fsm_fail(m, s, e, "the stream stays open");
	if (ends && !(edge.actions & (edge.next == QPS_IDLE ? QPA_FLUSH_RQ : QPA_FLUSH)))
		fsm_fail(m, s, e, "requests stay behind");
}

static void qp_tells_closes_and_flushes_when_a_connection_ends(void **state)
{
	fsm_for_rows(&qp_fsm, qp_row_ends_properly);
}

/* CH-25: every wait has a timer. Only Closing and Terminate wait for the peer. */
static void qp_has_a_timer_exactly_while_it_waits_for_the_peer(void **state)
{
	for (unsigned s = 0; s < QPS_NSTATES; s++)
		for (unsigned e = 0; e < QPE_NEVENTS; e++) {
			struct fsm_edge edge = fsm_look(&qp_fsm, s, e);
			bool waits = s == QPS_CLOSING || s == QPS_TERMINATE;
			bool will = edge.next == QPS_CLOSING || edge.next == QPS_TERMINATE;

			if (edge.next == QPS_ILLEGAL)
				continue;
			assert_int_equal(!!(edge.actions & QPA_TIMER), !waits && will);
			assert_int_equal(!!(edge.actions & QPA_STOP),
					 waits && !will && e != QPE_TIMEOUT);
		}
	assert_int_equal(fsm_look(&qp_fsm, QPS_CLOSING, QPE_TIMEOUT).next, QPS_ERROR);
	assert_int_equal(fsm_look(&qp_fsm, QPS_TERMINATE, QPE_TIMEOUT).next, QPS_ERROR);
	assert_int_equal(fsm_look(&qp_fsm, QPS_RTS, QPE_TIMEOUT).next, QPS_ILLEGAL);
}

/* Whoever waited too long resets, so that the peer's TCP knows, too (CH-23, CH-24). */
static void qp_resets_a_connection_whose_time_is_over(void **state)
{
	for (unsigned s = 0; s < QPS_NSTATES; s++) {
		struct fsm_edge edge = fsm_look(&qp_fsm, s, QPE_TIMEOUT);

		if (edge.next != QPS_ILLEGAL)
			assert_int_equal(edge.actions & (QPA_RESET | QPA_CLOSE), QPA_RESET);
	}
}

static void qp_sends_a_terminate_only_for_its_own_first_fault(void **state)
{
	for (unsigned s = 0; s < QPS_NSTATES; s++)
		for (unsigned e = 0; e < QPE_NEVENTS; e++)
			assert_int_equal(!!(fsm_look(&qp_fsm, s, e).actions & QPA_TERM),
					 s == QPS_RTS && (e == QPE_FAULT || e == QPE_TERM_ASK));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(qp_rows_are_sane_and_all_of_use),
		cmocka_unit_test(qp_can_fail_and_be_used_again_in_every_state),
		cmocka_unit_test(qp_tells_closes_and_flushes_when_a_connection_ends),
		cmocka_unit_test(qp_has_a_timer_exactly_while_it_waits_for_the_peer),
		cmocka_unit_test(qp_resets_a_connection_whose_time_is_over),
		cmocka_unit_test(qp_sends_a_terminate_only_for_its_own_first_fault),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
