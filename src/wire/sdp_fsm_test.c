/* SPDX-License-Identifier: MIT */
/*
 * The table of an SDP connection as a whole, and the ways through it that the protocol names
 * (OS-17, OS-20).
 */
#include "base/fsm_test.h"
#include "wire/sdp_fsm.h"

#define TELLS (SDPA_TELL_FAILED | SDPA_TELL_RESET | SDPA_TELL_CLOSED)

static struct fsm_edge step(unsigned s, unsigned e)
{
	return fsm_look(&sdp_fsm, s, e);
}

static void for_legal_rows(void (*fn)(unsigned s, unsigned e, struct fsm_edge edge))
{
	for (unsigned s = 0; s < SDPS_NSTATES; s++)
		for (unsigned e = 0; e < SDPE_NEVENTS; e++)
			if (step(s, e).next != SDPS_ILLEGAL)
				fn(s, e, step(s, e));
}

/* The program was told that the connection is open, and not yet how it ended. */
static bool is_live(unsigned s)
{
	return (s >= SDPS_ESTABLISHED && s <= SDPS_DIS_SEND_2) || s == SDPS_TIME_WAIT_1;
}

static void fsm_rows_are_sane_and_all_of_use(void **state)
{
	fsm_check(&sdp_fsm, SDPS_CLOSED, (1u << SDPA_NACTIONS) - 1);
	assert_string_equal(fsm_state_name(&sdp_fsm, SDPS_DIS_RECV_R), "DIS_RECV_R");
	assert_string_equal(fsm_event_name(&sdp_fsm, SDPE_RX_DISCONN), "RX_DISCONN");
}

static void fsm_states_all_lead_to_the_end(void **state)
{
	for (unsigned s = 0; s < SDPS_NSTATES; s++)
		if (!(fsm_reach(&sdp_fsm, s) & 1u << SDPS_CLOSED))
			fail_msg("%s never ends", fsm_state_name(&sdp_fsm, s));
}

static void row_tells_once(unsigned s, unsigned e, struct fsm_edge edge)
{
	uint32_t tells = edge.actions & TELLS;
	bool connecting = s == SDPS_REQ_PATH || s == SDPS_REQ_SENT;

	if (tells & (tells - 1))
		fail_msg("%s, %s: two ends", fsm_state_name(&sdp_fsm, s),
			 fsm_event_name(&sdp_fsm, e));
	/* ABORTING is behind the end for the program: it was told when it began. */
	if (!!(tells & (SDPA_TELL_RESET | SDPA_TELL_CLOSED)) != (is_live(s) && !is_live(edge.next)))
		fail_msg("%s, %s: the end is told exactly there", fsm_state_name(&sdp_fsm, s),
			 fsm_event_name(&sdp_fsm, e));
	if (!!(tells & SDPA_TELL_CLOSED) != (edge.next == SDPS_TIME_WAIT_2 && s != edge.next))
		fail_msg("%s, %s: graceful or not?", fsm_state_name(&sdp_fsm, s),
			 fsm_event_name(&sdp_fsm, e));
	if (!!(tells & SDPA_TELL_FAILED) != (connecting && edge.next == SDPS_CLOSED))
		fail_msg("%s, %s: a failed connect", fsm_state_name(&sdp_fsm, s),
			 fsm_event_name(&sdp_fsm, e));
	if (!!(edge.actions & SDPA_TELL_OPEN) != (!is_live(s) && is_live(edge.next)))
		fail_msg("%s, %s: open is told exactly there", fsm_state_name(&sdp_fsm, s),
			 fsm_event_name(&sdp_fsm, e));
}

static void fsm_tells_each_beginning_and_each_end_once(void **state)
{
	for_legal_rows(row_tells_once);
}

static void row_lets_go(unsigned s, unsigned e, struct fsm_edge edge)
{
	static const uint8_t with_llp[] = {
		[SDPS_REQ_PATH] = 1,   [SDPS_REQ_SENT] = 1,    [SDPS_REQ_RECV] = 1,
		[SDPS_DIS_HOLD] = 1,   [SDPS_ESTABLISHED] = 1, [SDPS_DIS_SEND_1] = 1,
		[SDPS_DIS_SENT_1] = 1, [SDPS_DIS_RECV_1] = 1,  [SDPS_DIS_RECV_R] = 1,
		[SDPS_DIS_SEND_2] = 1, [SDPS_ABORTING] = 1,    [SDPS_TIME_WAIT_1] = 1,
		[SDPS_ERROR] = 0
	};

	if (with_llp[s] && !with_llp[edge.next] && !(edge.actions & SDPA_CUT))
		fail_msg("%s, %s: the LLP connection stays", fsm_state_name(&sdp_fsm, s),
			 fsm_event_name(&sdp_fsm, e));
	if (edge.actions & SDPA_CUT && with_llp[edge.next])
		fail_msg("%s, %s: cut, yet it goes on", fsm_state_name(&sdp_fsm, s),
			 fsm_event_name(&sdp_fsm, e));
	if (!!(edge.actions & SDPA_TEAR_DOWN) != (edge.next == SDPS_TIME_WAIT_1 && s != edge.next))
		fail_msg("%s, %s: tear down", fsm_state_name(&sdp_fsm, s),
			 fsm_event_name(&sdp_fsm, e));
}

static void fsm_lets_go_of_the_transport_at_every_end(void **state)
{
	for_legal_rows(row_lets_go);
}

/* Whoever waits for the peer has a timer, except one who only shut his sending side. */
static bool is_timed(unsigned s)
{
	return s == SDPS_REQ_PATH || s == SDPS_REQ_SENT || s == SDPS_REQ_RECV ||
	       s == SDPS_DIS_HOLD || s == SDPS_ABORTING || s == SDPS_TIME_WAIT_1 ||
	       s == SDPS_TIME_WAIT_2;
}

static void row_is_timed(unsigned s, unsigned e, struct fsm_edge edge)
{
	bool may_run = is_timed(s) || s == SDPS_DIS_SENT_1;
	bool will = is_timed(edge.next) || edge.next == SDPS_DIS_SENT_1;
	bool same_wait = is_timed(s) &&
			 (s == edge.next || (s == SDPS_REQ_RECV && edge.next == SDPS_DIS_HOLD));

	if (!!(edge.actions & SDPA_ARM) != (is_timed(edge.next) && !same_wait))
		fail_msg("%s, %s: arm", fsm_state_name(&sdp_fsm, s), fsm_event_name(&sdp_fsm, e));
	if (!!(edge.actions & SDPA_STOP) != (may_run && !will && e != SDPE_TIMEOUT))
		fail_msg("%s, %s: stop", fsm_state_name(&sdp_fsm, s), fsm_event_name(&sdp_fsm, e));
}

static void fsm_has_a_timer_wherever_it_waits(void **state)
{
	for_legal_rows(row_is_timed);
	for (unsigned s = 0; s < SDPS_NSTATES; s++)
		assert_int_equal(step(s, SDPE_TIMEOUT).next != SDPS_ILLEGAL,
				 is_timed(s) || s == SDPS_DIS_SENT_1);
}

/* Our DisConn is queued once, and AbortConn only goes behind it. */
static void fsm_sends_disconn_once_and_abort_conn_behind_it_only(void **state)
{
	for (unsigned s = 0; s < SDPS_NSTATES; s++)
		for (unsigned e = 0; e < SDPE_NEVENTS; e++) {
			struct fsm_edge edge = step(s, e);
			bool open = s == SDPS_ESTABLISHED || s == SDPS_DIS_RECV_1;

			assert_int_equal(!!(edge.actions & SDPA_TX_DISCONN),
					 (open && (e == SDPE_SHUT || e == SDPE_CLOSE)) ||
						 (s == SDPS_DIS_HOLD && e == SDPE_UP));
			assert_int_equal(!!(edge.actions & SDPA_TX_ABORT),
					 edge.next == SDPS_ABORTING && s != SDPS_ABORTING);
			if (edge.actions & SDPA_TX_ABORT)
				assert_int_equal(s, SDPS_DIS_SENT_1);
			assert_int_equal(!!(edge.actions & SDPA_TELL_EOF),
					 e == SDPE_RX_DISCONN &&
						 (s == SDPS_ESTABLISHED || s == SDPS_DIS_SEND_1 ||
						  s == SDPS_DIS_SENT_1));
		}
}

/* Whatever happens to a live connection ends it or is legal. */
static void fsm_expects_every_loss_and_every_abort_while_it_lives(void **state)
{
	static const uint8_t always[] = { SDPE_RX_BAD, SDPE_RX_ABORT, SDPE_RX_DISCONN,
					  SDPE_ABORT,  SDPE_LLP_LOST, SDPE_LLP_CLOSED,
					  SDPE_CLOSE,  SDPE_UP };

	for (unsigned s = 0; s < SDPS_NSTATES; s++)
		for (unsigned i = 0; is_live(s) && i < sizeof(always); i++)
			assert_int_not_equal(step(s, always[i]).next, SDPS_ILLEGAL);
	for (unsigned s = 0; s < SDPS_NSTATES; s++) {
		assert_int_not_equal(step(s, SDPE_ABORT).next, SDPS_ILLEGAL);
		assert_int_not_equal(step(s, SDPE_CLOSE).next, SDPS_ILLEGAL);
	}
}

static void fsm_receives_payload_until_the_peers_disconn_and_sends_until_its_own(void **state)
{
	for (unsigned s = 0; s < SDPS_NSTATES; s++) {
		bool open = is_live(s);
		bool eof = s == SDPS_DIS_RECV_1 || s == SDPS_DIS_RECV_R || s == SDPS_DIS_SEND_2 ||
			   s == SDPS_TIME_WAIT_1;
		bool shut = s == SDPS_DIS_SENT_1 || s == SDPS_TIME_WAIT_1;

		assert_int_equal(sdp_fsm_may_receive(s, true), open && !eof);
		assert_int_equal(sdp_fsm_may_receive(s, false), open);
		assert_int_equal(sdp_fsm_may_send(s, true), open && !shut);
		assert_int_equal(sdp_fsm_may_send(s, false),
				 (open && s != SDPS_TIME_WAIT_1) || s == SDPS_ABORTING);
	}
}

/* ---- ways through the table ---- */

struct hop {
	uint8_t event, next;
	uint32_t actions;
};

static void walk(unsigned from, const struct hop *hops, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		struct fsm_edge edge = step(from, hops[i].event);

		if (edge.next != hops[i].next || edge.actions != hops[i].actions)
			fail_msg("%s, %s: goes to %s with %x", fsm_state_name(&sdp_fsm, from),
				 fsm_event_name(&sdp_fsm, hops[i].event),
				 fsm_state_name(&sdp_fsm, edge.next), edge.actions);
		from = edge.next;
	}
}
#define WALK(from, ...)                                           \
	do {                                                      \
		static const struct hop hops[] = { __VA_ARGS__ }; \
		walk(from, hops, sizeof(hops) / sizeof(hops[0])); \
	} while (0)

static void fsm_connects_and_accepts(void **state)
{
	WALK(SDPS_CLOSED, { SDPE_CONNECT, SDPS_REQ_PATH, SDPA_RESOLVE | SDPA_ARM },
	     { SDPE_PATH_OK, SDPS_REQ_SENT, SDPA_TX_HELLO | SDPA_ARM },
	     { SDPE_RX_HELLO_ACK, SDPS_ESTABLISHED, SDPA_STOP | SDPA_TX_READY | SDPA_TELL_OPEN });
	WALK(SDPS_CLOSED, { SDPE_LISTEN, SDPS_LISTEN, 0 },
	     { SDPE_RX_HELLO, SDPS_LISTEN, SDPA_SPAWN }, { SDPE_RX_BAD, SDPS_LISTEN, SDPA_REFUSE },
	     { SDPE_CLOSE, SDPS_CLOSED, SDPA_DROP_CHILDREN });
	WALK(SDPS_CLOSED, { SDPE_RX_HELLO, SDPS_REQ_RECV, SDPA_TX_HELLO_ACK | SDPA_ARM },
	     { SDPE_UP, SDPS_ESTABLISHED, SDPA_STOP | SDPA_TELL_OPEN },
	     { SDPE_UP, SDPS_ESTABLISHED, 0 });
	/* Refused, and tried again. */
	WALK(SDPS_REQ_SENT, { SDPE_REFUSED, SDPS_CLOSED, SDPA_STOP | SDPA_CUT | SDPA_TELL_FAILED },
	     { SDPE_CONNECT, SDPS_REQ_PATH, SDPA_RESOLVE | SDPA_ARM });
	WALK(SDPS_REQ_SENT,
	     { SDPE_RX_BAD, SDPS_CLOSED, SDPA_STOP | SDPA_REFUSE | SDPA_CUT | SDPA_TELL_FAILED });
}

static void fsm_closes_first_second_and_together(void **state)
{
	WALK(SDPS_ESTABLISHED, { SDPE_SHUT, SDPS_DIS_SEND_1, SDPA_TX_DISCONN },
	     { SDPE_DISCONN_SENT, SDPS_DIS_SENT_1, SDPA_ARM_IF_CLOSED },
	     { SDPE_CLOSE, SDPS_DIS_SENT_1, SDPA_ARM_IF_CLOSED },
	     { SDPE_RX_DISCONN, SDPS_TIME_WAIT_1, SDPA_TEAR_DOWN | SDPA_ARM | SDPA_TELL_EOF },
	     { SDPE_DOWN, SDPS_TIME_WAIT_2, SDPA_CUT | SDPA_TELL_CLOSED | SDPA_ARM },
	     { SDPE_TIMEOUT, SDPS_CLOSED, 0 });
	WALK(SDPS_ESTABLISHED, { SDPE_RX_DISCONN, SDPS_DIS_RECV_1, SDPA_TELL_EOF },
	     { SDPE_CLOSE, SDPS_DIS_SEND_2, SDPA_TX_DISCONN },
	     { SDPE_DISCONN_SENT, SDPS_TIME_WAIT_1, SDPA_TEAR_DOWN | SDPA_ARM },
	     { SDPE_LLP_CLOSED, SDPS_TIME_WAIT_2, SDPA_CUT | SDPA_TELL_CLOSED | SDPA_ARM },
	     { SDPE_DOWN, SDPS_TIME_WAIT_2, 0 });
	WALK(SDPS_ESTABLISHED, { SDPE_CLOSE, SDPS_DIS_SEND_1, SDPA_TX_DISCONN },
	     { SDPE_RX_DISCONN, SDPS_DIS_RECV_R, SDPA_TELL_EOF },
	     { SDPE_DISCONN_SENT, SDPS_TIME_WAIT_1, SDPA_TEAR_DOWN | SDPA_ARM },
	     { SDPE_LLP_LOST, SDPS_TIME_WAIT_2, SDPA_CUT | SDPA_TELL_CLOSED | SDPA_ARM });
	WALK(SDPS_REQ_RECV, { SDPE_CLOSE, SDPS_DIS_HOLD, 0 },
	     { SDPE_UP, SDPS_DIS_SEND_1, SDPA_STOP | SDPA_TELL_OPEN | SDPA_TX_DISCONN });
}

static void fsm_aborts_with_a_message_only_behind_its_disconn(void **state)
{
	WALK(SDPS_ESTABLISHED, { SDPE_ABORT, SDPS_ERROR, SDPA_CUT | SDPA_TELL_RESET },
	     { SDPE_LLP_LOST, SDPS_ERROR, 0 }, { SDPE_CLOSE, SDPS_CLOSED, 0 },
	     { SDPE_DOWN, SDPS_CLOSED, 0 });
	WALK(SDPS_DIS_SENT_1,
	     { SDPE_ABORT, SDPS_ABORTING, SDPA_TX_ABORT | SDPA_ARM | SDPA_TELL_RESET },
	     { SDPE_RX_DISCONN, SDPS_ABORTING, 0 }, { SDPE_ABORT, SDPS_ABORTING, 0 },
	     { SDPE_ABORT_SENT, SDPS_ERROR, SDPA_STOP | SDPA_CUT });
	WALK(SDPS_DIS_SENT_1,
	     { SDPE_TIMEOUT, SDPS_ABORTING, SDPA_TX_ABORT | SDPA_ARM | SDPA_TELL_RESET },
	     { SDPE_TIMEOUT, SDPS_ERROR, SDPA_CUT });
	WALK(SDPS_TIME_WAIT_1,
	     { SDPE_RX_ABORT, SDPS_ERROR, SDPA_STOP | SDPA_CUT | SDPA_TELL_RESET });
	WALK(SDPS_DIS_RECV_1, { SDPE_RX_ABORT, SDPS_ERROR, SDPA_CUT | SDPA_TELL_RESET });
	WALK(SDPS_DIS_RECV_1, { SDPE_LLP_CLOSED, SDPS_ERROR, SDPA_CUT | SDPA_TELL_RESET });
}

/* Random events: the program hears open, end of file and the end in this order, each once. */
static void fsm_tells_a_straight_story_whatever_happens(void **state)
{
	uint64_t seed = 7;
	unsigned s = SDPS_CLOSED, opens = 0, eofs = 0, ends = 0;

	for (int i = 0; i < 300000; i++) {
		struct fsm_edge edge;

		seed = seed * 6364136223846793005u + 1442695040888963407u;
		edge = step(s, (unsigned)(seed >> 33) % SDPE_NEVENTS);
		if (edge.next == SDPS_ILLEGAL)
			continue;
		opens += !!(edge.actions & SDPA_TELL_OPEN);
		eofs += !!(edge.actions & SDPA_TELL_EOF);
		ends += !!(edge.actions & (SDPA_TELL_RESET | SDPA_TELL_CLOSED));
		assert_true(opens <= 1 && eofs <= opens && ends <= opens);
		assert_true(!(edge.actions & SDPA_TELL_CLOSED) || eofs == 1);
		s = edge.next;
		if (s == SDPS_CLOSED) {
			assert_int_equal(opens, ends);
			opens = eofs = ends = 0;
		}
	}
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(fsm_rows_are_sane_and_all_of_use),
		cmocka_unit_test(fsm_states_all_lead_to_the_end),
		cmocka_unit_test(fsm_tells_each_beginning_and_each_end_once),
		cmocka_unit_test(fsm_lets_go_of_the_transport_at_every_end),
		cmocka_unit_test(fsm_has_a_timer_wherever_it_waits),
		cmocka_unit_test(fsm_sends_disconn_once_and_abort_conn_behind_it_only),
		cmocka_unit_test(fsm_expects_every_loss_and_every_abort_while_it_lives),
		cmocka_unit_test(
			fsm_receives_payload_until_the_peers_disconn_and_sends_until_its_own),
		cmocka_unit_test(fsm_connects_and_accepts),
		cmocka_unit_test(fsm_closes_first_second_and_together),
		cmocka_unit_test(fsm_aborts_with_a_message_only_behind_its_disconn),
		cmocka_unit_test(fsm_tells_a_straight_story_whatever_happens),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
