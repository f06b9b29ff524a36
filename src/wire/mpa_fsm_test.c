/* SPDX-License-Identifier: MIT */
/* The table of MPA start-up as a whole (CH-18): what holds for every row, not what each row says. */
#include "base/fsm_test.h"
#include "wire/mpa_fsm.h"

static void mpa_rows_are_sane_and_all_of_use(void **state)
{
	fsm_check(&mpa_fsm, MPA_NEW, (1u << MPA_ACT_NACTIONS) - 1);
	assert_string_equal(fsm_state_name(&mpa_fsm, MPA_WAIT_RTR), "WAIT_RTR");
	assert_string_equal(fsm_event_name(&mpa_fsm, MPA_EV_LOST_RETRY), "LOST_RETRY");
}

static void mpa_closes_from_every_state_and_for_good(void **state)
{
	for (unsigned s = 0; s < MPA_NSTATES; s++)
		if (!(fsm_reach(&mpa_fsm, s) & 1u << MPA_CLOSED))
			fail_msg("%s never closes", fsm_state_name(&mpa_fsm, s));
	assert_int_equal(fsm_reach(&mpa_fsm, MPA_CLOSED), 1u << MPA_CLOSED);
}

/* Whoever is told of a connection hears how it ended: not twice, and not of what he never knew. */
static void mpa_row_tells_once(const struct fsm *m, unsigned s, unsigned e, struct fsm_edge edge)
{
	uint16_t tells = edge.actions & (MPA_ACT_TELL_REQUEST | MPA_ACT_TELL_ACCEPTED |
					 MPA_ACT_TELL_CONNECTED | MPA_ACT_TELL_FAILED);

	if (edge.next == MPA_ILLEGAL)
		return;
	if (tells & (tells - 1))
		fsm_fail(m, s, e, "two outcomes");
	if (!!(edge.actions & MPA_ACT_TELL_CONNECTED) != (edge.next == MPA_OPEN && s != MPA_OPEN))
		fsm_fail(m, s, e, "CONNECTED is told exactly when OPEN is entered");
	if (edge.actions & MPA_ACT_TELL_FAILED && edge.next != MPA_CLOSED)
		fsm_fail(m, s, e, "failed, yet it goes on");
	/* Past OPEN the queue pair's machine speaks. */
	if (s >= MPA_OPEN && edge.actions)
		fsm_fail(m, s, e, "acts behind the end");
	if (s < MPA_OPEN && edge.next == MPA_CLOSED && !(edge.actions & MPA_ACT_CLOSE))
		fsm_fail(m, s, e, "the stream stays open");
}

static void mpa_tells_each_outcome_once_and_closes_what_failed(void **state)
{
	static const uint8_t of_a_queue_pair[] = { MPA_DIALING, MPA_WAIT_REPLY, MPA_HELD,
						   MPA_PARKED, MPA_WAIT_RTR };

	fsm_for_rows(&mpa_fsm, mpa_row_tells_once);
	for (unsigned i = 0; i < sizeof(of_a_queue_pair); i++)
		for (unsigned e = 0; e < MPA_EV_NEVENTS; e++) {
			struct fsm_edge edge = fsm_look(&mpa_fsm, of_a_queue_pair[i], e);

			if (edge.next == MPA_CLOSED && !(edge.actions & MPA_ACT_TELL_FAILED))
				fail_msg("%s, %s: nobody hears of it",
					 fsm_state_name(&mpa_fsm, of_a_queue_pair[i]),
					 fsm_event_name(&mpa_fsm, e));
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
		for (unsigned e = 0; e < MPA_EV_NEVENTS; e++) {
			struct fsm_edge edge = fsm_look(&mpa_fsm, s, e);

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
		assert_int_equal(fsm_look(&mpa_fsm, s, MPA_EV_TIMEOUT).next,
				 mpa_is_timed(s) ? MPA_CLOSED : MPA_ILLEGAL);
}

/* RDMA mode is entered once on every way to OPEN. */
static void mpa_row_enters_once(const struct fsm *m, unsigned s, unsigned e, struct fsm_edge edge)
{
	bool before = s == MPA_WAIT_RTR || s == MPA_OPEN;
	bool after = edge.next == MPA_WAIT_RTR || edge.next == MPA_OPEN;

	if (edge.next != MPA_ILLEGAL && !!(edge.actions & MPA_ACT_ENTER_RDMA) != (!before && after))
		fsm_fail(m, s, e, "RDMA mode");
}

static void mpa_enters_rdma_mode_once(void **state)
{
	fsm_for_rows(&mpa_fsm, mpa_row_enters_once);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(mpa_rows_are_sane_and_all_of_use),
		cmocka_unit_test(mpa_closes_from_every_state_and_for_good),
		cmocka_unit_test(mpa_tells_each_outcome_once_and_closes_what_failed),
		cmocka_unit_test(mpa_has_a_timer_exactly_while_it_waits_for_the_peer),
		cmocka_unit_test(mpa_enters_rdma_mode_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
