/* SPDX-License-Identifier: MIT */
/*
 * The two tables as a whole (CH-18): what holds for every row, not what each row says.
 * A duplicate row fails the compiler, a missing one an assertion in fsm.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "wire/fsm.h"

/* Both tables in one shape. */
struct machine {
	struct fsm_edge (*step)(unsigned s, unsigned e);
	const char *(*state)(unsigned s);
	const char *(*event)(unsigned e);
	unsigned n_states, n_events, n_actions, start;
};

static struct fsm_edge step_mpa(unsigned s, unsigned e)
{
	return mpa_fsm_step((enum mpa_state)s, (enum mpa_event)e);
}

static struct fsm_edge step_qp(unsigned s, unsigned e)
{
	return qp_fsm_step((enum qp_fsm_state)s, (enum qp_fsm_event)e);
}

static const struct machine machines[] = {
	{ step_mpa, mpa_state_name, mpa_event_name, MPA_NSTATES, MPA_NEVENTS, MPA_NACTIONS,
	  MPA_NEW },
	{ step_qp, qp_fsm_state_name, qp_fsm_event_name, QPS_NSTATES, QPE_NEVENTS, QPA_NACTIONS,
	  QPS_IDLE },
};
static const struct machine *const mpa = &machines[0], *const qp = &machines[1];

/* Calls fn for every row of both machines. */
static void for_rows(void (*fn)(const struct machine *m, unsigned s, unsigned e,
				struct fsm_edge edge))
{
	for (const struct machine *m = mpa; m <= qp; m++)
		for (unsigned s = 0; s < m->n_states; s++)
			for (unsigned e = 0; e < m->n_events; e++)
				fn(m, s, e, m->step(s, e));
}

/* Bit set of the states that can be reached from `from`. */
static unsigned reach(const struct machine *m, unsigned from)
{
	unsigned seen = 1u << from, before;

	do {
		before = seen;
		for (unsigned s = 0; s < m->n_states; s++)
			for (unsigned e = 0; seen & 1u << s && e < m->n_events; e++)
				if (m->step(s, e).next != MPA_ILLEGAL)
					seen |= 1u << m->step(s, e).next;
	} while (seen != before);
	return seen;
}

static void row_is_sane(const struct machine *m, unsigned s, unsigned e, struct fsm_edge edge)
{
	if (edge.next >= m->n_states && edge.next != MPA_ILLEGAL)
		fail_msg("%s, %s: no such state", m->state(s), m->event(e));
	if (edge.actions >> m->n_actions)
		fail_msg("%s, %s: no such action", m->state(s), m->event(e));
	if (edge.next == MPA_ILLEGAL && edge.actions)
		fail_msg("%s, %s: an illegal pair has actions", m->state(s), m->event(e));
}

static void fsm_rows_are_sane_and_illegal_pairs_do_nothing(void **state)
{
	assert_int_equal(MPA_ILLEGAL, QPS_ILLEGAL);
	for_rows(row_is_sane);
}

static void fsm_states_are_all_reachable(void **state)
{
	for (const struct machine *m = mpa; m <= qp; m++)
		for (unsigned s = 0; s < m->n_states; s++)
			if (!(reach(m, m->start) & 1u << s))
				fail_msg("nothing leads to %s", m->state(s));
}

static void fsm_every_state_has_a_way_to_the_end(void **state)
{
	for (unsigned s = 0; s < MPA_NSTATES; s++)
		if (!(reach(mpa, s) & 1u << MPA_CLOSED))
			fail_msg("%s never closes", mpa_state_name(s));
	for (unsigned s = 0; s < QPS_NSTATES; s++) {
		if (!(reach(qp, s) & 1u << QPS_ERROR))
			fail_msg("%s cannot fail", qp_fsm_state_name(s));
		if (!(reach(qp, s) & 1u << QPS_IDLE))
			fail_msg("%s cannot be used again", qp_fsm_state_name(s));
	}
	assert_int_equal(reach(mpa, MPA_CLOSED), 1u << MPA_CLOSED);
}

/* Every event is of use somewhere, and every action is taken somewhere. */
static void fsm_has_no_dead_event_and_no_dead_action(void **state)
{
	for (const struct machine *m = mpa; m <= qp; m++) {
		unsigned actions = 0;

		for (unsigned e = 0; e < m->n_events; e++) {
			unsigned legal = 0;

			for (unsigned s = 0; s < m->n_states; s++) {
				legal += m->step(s, e).next != MPA_ILLEGAL;
				actions |= m->step(s, e).actions;
			}
			if (!legal)
				fail_msg("%s is legal nowhere", m->event(e));
		}
		assert_int_equal(actions, (1u << m->n_actions) - 1);
	}
}

static bool is_connected(unsigned s)
{
	return s == QPS_RTS || s == QPS_CLOSING || s == QPS_TERMINATE;
}

static void qp_row_ends_properly(const struct machine *m, unsigned s, unsigned e,
				 struct fsm_edge edge)
{
	bool ends = m == qp && is_connected(s) && (edge.next == QPS_IDLE || edge.next == QPS_ERROR);
	bool tells = m == qp && edge.actions & QPA_TELL;

	if (tells != ends)
		fail_msg("%s, %s: the end of a connection is told exactly there",
			 qp_fsm_state_name(s), qp_fsm_event_name(e));
	if (ends && !(edge.actions & (QPA_RESET | QPA_CLOSE)))
		fail_msg("%s, %s: the stream stays open", qp_fsm_state_name(s),
			 qp_fsm_event_name(e));
	if (ends && !(edge.actions & (edge.next == QPS_IDLE ? QPA_FLUSH_RQ : QPA_FLUSH)))
		fail_msg("%s, %s: requests stay behind", qp_fsm_state_name(s),
			 qp_fsm_event_name(e));
}

static void qp_tells_closes_and_flushes_when_a_connection_ends(void **state)
{
	for_rows(qp_row_ends_properly);
}

/* CH-25: every wait has a timer. Only Closing and Terminate wait for the peer. */
static void qp_has_a_timer_exactly_while_it_waits_for_the_peer(void **state)
{
	for (unsigned s = 0; s < QPS_NSTATES; s++)
		for (unsigned e = 0; e < QPE_NEVENTS; e++) {
			struct fsm_edge edge = step_qp(s, e);
			bool waits = s == QPS_CLOSING || s == QPS_TERMINATE;
			bool will = edge.next == QPS_CLOSING || edge.next == QPS_TERMINATE;

			if (edge.next == QPS_ILLEGAL)
				continue;
			assert_int_equal(!!(edge.actions & QPA_TIMER), !waits && will);
			assert_int_equal(!!(edge.actions & QPA_STOP),
					 waits && !will && e != QPE_TIMEOUT);
		}
	assert_int_equal(step_qp(QPS_CLOSING, QPE_TIMEOUT).next, QPS_ERROR);
	assert_int_equal(step_qp(QPS_TERMINATE, QPE_TIMEOUT).next, QPS_ERROR);
	assert_int_equal(step_qp(QPS_RTS, QPE_TIMEOUT).next, QPS_ILLEGAL);
}

/* Whoever waited too long resets, so that the peer's TCP knows, too (CH-23, CH-24). */
static void qp_resets_a_connection_whose_time_is_over(void **state)
{
	for (unsigned s = 0; s < QPS_NSTATES; s++) {
		struct fsm_edge edge = step_qp(s, QPE_TIMEOUT);

		if (edge.next != QPS_ILLEGAL)
			assert_int_equal(edge.actions & (QPA_RESET | QPA_CLOSE), QPA_RESET);
	}
}

static void qp_sends_a_terminate_only_for_its_own_first_fault(void **state)
{
	for (unsigned s = 0; s < QPS_NSTATES; s++)
		for (unsigned e = 0; e < QPE_NEVENTS; e++)
			assert_int_equal(!!(step_qp(s, e).actions & QPA_TERM),
					 s == QPS_RTS && (e == QPE_FAULT || e == QPE_TERM_ASK));
}

/* Whoever is told of a connection hears how it ended: not twice, and not of what he never knew. */
static void mpa_row_tells_once(const struct machine *m, unsigned s, unsigned e,
			       struct fsm_edge edge)
{
	uint16_t tells = edge.actions & (MPA_ACT_TELL_REQUEST | MPA_ACT_TELL_ACCEPTED |
					 MPA_ACT_TELL_CONNECTED | MPA_ACT_TELL_FAILED);

	if (m != mpa || edge.next == MPA_ILLEGAL)
		return;
	if (tells & (tells - 1))
		fail_msg("%s, %s: two outcomes", mpa_state_name(s), mpa_event_name(e));
	if (!!(edge.actions & MPA_ACT_TELL_CONNECTED) != (edge.next == MPA_OPEN && s != MPA_OPEN))
		fail_msg("%s, %s: CONNECTED is told exactly when OPEN is entered",
			 mpa_state_name(s), mpa_event_name(e));
	if (edge.actions & MPA_ACT_TELL_FAILED && edge.next != MPA_CLOSED)
		fail_msg("%s, %s: failed, yet it goes on", mpa_state_name(s), mpa_event_name(e));
	/* Past OPEN the queue pair's machine speaks. */
	if (s >= MPA_OPEN && edge.actions)
		fail_msg("%s, %s: acts behind the end", mpa_state_name(s), mpa_event_name(e));
	if (s < MPA_OPEN && edge.next == MPA_CLOSED && !(edge.actions & MPA_ACT_CLOSE))
		fail_msg("%s, %s: the stream stays open", mpa_state_name(s), mpa_event_name(e));
}

static void mpa_tells_each_outcome_once_and_closes_what_failed(void **state)
{
	static const uint8_t of_a_queue_pair[] = { MPA_DIALING, MPA_WAIT_REPLY, MPA_HELD,
						   MPA_PARKED, MPA_WAIT_RTR };

	for_rows(mpa_row_tells_once);
	for (unsigned i = 0; i < sizeof(of_a_queue_pair); i++)
		for (unsigned e = 0; e < MPA_NEVENTS; e++) {
			struct fsm_edge edge = step_mpa(of_a_queue_pair[i], e);

			if (edge.next == MPA_CLOSED && !(edge.actions & MPA_ACT_TELL_FAILED))
				fail_msg("%s, %s: nobody hears of it",
					 mpa_state_name(of_a_queue_pair[i]), mpa_event_name(e));
		}
}

static bool mpa_is_timed(unsigned s)
{
	return s == MPA_DIALING || s == MPA_WAIT_REPLY || s == MPA_WAIT_REQUEST ||
	       s == MPA_WAIT_RTR || s == MPA_REFUSED;
}

/* In the other states the consumer has the word, or nothing is left to wait for. */
static void mpa_has_a_timer_exactly_while_it_waits_for_the_peer(void **state)
{
	for (unsigned s = 0; s < MPA_OPEN; s++)
		for (unsigned e = 0; e < MPA_NEVENTS; e++) {
			struct fsm_edge edge = step_mpa(s, e);

			if (edge.next == MPA_ILLEGAL)
				continue;
			/* REFUSED has a time of its own, whatever timer ran before. */
			assert_int_equal(!!(edge.actions & MPA_ACT_AWAIT_END),
					 edge.next == MPA_REFUSED);
			assert_int_equal(!!(edge.actions & MPA_ACT_ARM_TIMER),
					 !mpa_is_timed(s) && mpa_is_timed(edge.next) &&
						 edge.next != MPA_REFUSED);
			assert_int_equal(!!(edge.actions & MPA_ACT_STOP_TIMER),
					 mpa_is_timed(s) && !mpa_is_timed(edge.next) &&
						 e != MPA_EV_TIMEOUT);
		}
	for (unsigned s = 0; s < MPA_OPEN; s++)
		assert_int_equal(step_mpa(s, MPA_EV_TIMEOUT).next,
				 mpa_is_timed(s) ? MPA_CLOSED : MPA_ILLEGAL);
}

/* RDMA mode is entered once on every way to OPEN. */
static void mpa_row_enters_once(const struct machine *m, unsigned s, unsigned e,
				struct fsm_edge edge)
{
	bool before = s == MPA_WAIT_RTR || s == MPA_OPEN;
	bool after = edge.next == MPA_WAIT_RTR || edge.next == MPA_OPEN;

	if (m == mpa && edge.next != MPA_ILLEGAL &&
	    !!(edge.actions & MPA_ACT_ENTER_RDMA) != (!before && after))
		fail_msg("%s, %s: RDMA mode", mpa_state_name(s), mpa_event_name(e));
}

static void mpa_enters_rdma_mode_once(void **state)
{
	for_rows(mpa_row_enters_once);
}

static void fsm_names_are_those_of_the_table_and_never_null(void **state)
{
	for (const struct machine *m = mpa; m <= qp; m++) {
		for (unsigned s = 0; s < m->n_states; s++)
			for (unsigned o = 0; o < s; o++)
				assert_string_not_equal(m->state(s), m->state(o));
		for (unsigned e = 0; e < m->n_events; e++)
			for (unsigned o = 0; o < e; o++)
				assert_string_not_equal(m->event(e), m->event(o));
		assert_string_equal(m->state(m->n_states), "ILLEGAL");
		assert_string_equal(m->state(MPA_ILLEGAL), "ILLEGAL");
		assert_string_equal(m->event(m->n_events), "?");
	}
	assert_string_equal(mpa_state_name(MPA_WAIT_RTR), "WAIT_RTR");
	assert_string_equal(mpa_event_name(MPA_EV_LOST_RETRY), "LOST_RETRY");
	assert_string_equal(qp_fsm_state_name(QPS_CLOSING), "CLOSING");
	assert_string_equal(qp_fsm_event_name(QPE_RX_TERM), "RX_TERM");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(fsm_rows_are_sane_and_illegal_pairs_do_nothing),
		cmocka_unit_test(fsm_states_are_all_reachable),
		cmocka_unit_test(fsm_every_state_has_a_way_to_the_end),
		cmocka_unit_test(fsm_has_no_dead_event_and_no_dead_action),
		cmocka_unit_test(qp_tells_closes_and_flushes_when_a_connection_ends),
		cmocka_unit_test(qp_has_a_timer_exactly_while_it_waits_for_the_peer),
		cmocka_unit_test(qp_resets_a_connection_whose_time_is_over),
		cmocka_unit_test(qp_sends_a_terminate_only_for_its_own_first_fault),
		cmocka_unit_test(mpa_tells_each_outcome_once_and_closes_what_failed),
		cmocka_unit_test(mpa_has_a_timer_exactly_while_it_waits_for_the_peer),
		cmocka_unit_test(mpa_enters_rdma_mode_once),
		cmocka_unit_test(fsm_names_are_those_of_the_table_and_never_null),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
