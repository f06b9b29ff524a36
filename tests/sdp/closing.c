/* SPDX-License-Identifier: MIT */
/* Conformance of the engine: half close, close, abort, timers (OS-17, OS-20; README.md, chapter 5). */
#include "sdp/raw.h"

#include "base/util.h"

static struct raw_pair p;

#define BOTH_ROLES(name)                    \
	static void in_##name(void);        \
	static void name(void **state)      \
	{                                   \
		raw_open(&p, RAW_LISTENS);  \
		in_##name();                \
		raw_close(&p);              \
		raw_open(&p, RAW_CONNECTS); \
		in_##name();                \
		raw_close(&p);              \
	}                                   \
	static void in_##name(void)

static void await_state(enum sdp_state s)
{
	bed_until(AT(p.c, state) == s);
}

/* ---- in order ---- */

BOTH_ROLES(shut_sends_disconn_and_goes_on_receiving)
{
	char got[5];

	assert_int_equal(sdp_conn_shut(p.c), 0);
	raw_expect(&p.raw, SDP_DISCONN);
	assert_int_equal(AT(p.c, state), SDPS_DIS_SENT_1);
	assert_int_equal(bed_send(p.c, "x", 1), -EPIPE);
	raw_data(&p.raw, "hello", 5);
	bed_recv_all(p.c, got, 5);
	assert_memory_equal(got, "hello", 5);
	/* Once only. */
	assert_int_equal(sdp_conn_shut(p.c), 0);
	raw_expect_no_more_than_credits(&p.raw);
	assert_int_equal(bed_recv(p.c, got, 5), -EAGAIN);
}

BOTH_ROLES(disconn_comes_behind_all_octets)
{
	uint8_t octets[5000] = { 0 };
	struct sdp_msg m;
	uint32_t sum = 0;

	assert_int_equal(bed_send(p.c, octets, sizeof(octets)), sizeof(octets));
	assert_int_equal(sdp_conn_shut(p.c), 0);
	while ((m = raw_next(&p.raw, NULL)).mid == SDP_DATA)
		sum += m.payload_len;
	assert_int_equal(m.mid, SDP_DISCONN);
	assert_int_equal(sum, sizeof(octets));
}

BOTH_ROLES(disconn_of_the_peer_is_the_end_of_the_stream)
{
	char got[8];

	raw_data(&p.raw, "bye", 3);
	raw_say(&p.raw, SDP_DISCONN);
	bed_until(bed_has(p.c, SDP_IS_EOF | SDP_IS_READABLE));
	assert_int_equal(AT(p.c, state), SDPS_DIS_RECV_1);
	/* Octets first; the end as often as it is asked for. */
	assert_int_equal(bed_recv(p.c, got, 8), 3);
	assert_int_equal(bed_recv(p.c, got, 8), 0);
	assert_int_equal(bed_recv(p.c, got, 8), 0);
	/* Sending goes on. */
	assert_int_equal(bed_send(p.c, "more", 4), 4);
	assert_int_equal(raw_expect(&p.raw, SDP_DATA).payload_len, 4);
}

BOTH_ROLES(peer_that_closed_still_gives_credits)
{
	raw_say(&p.raw, SDP_DISCONN);
	bed_until(bed_has(p.c, SDP_IS_EOF));
	p.raw.say_bufs = 0;
	raw_data(&p.raw, NULL, 0);
	await_state(SDPS_DIS_RECV_1);
	bed_until(bed_credits(p.c) == 0);
	assert_int_equal(bed_send(p.c, "x", 1), 1);
	raw_expect_quiet(&p.raw);
	p.raw.say_bufs = 8;
	raw_data(&p.raw, NULL, 0);
	assert_int_equal(raw_expect(&p.raw, SDP_DATA).payload_len, 1);
}

/* The peer's DisConn came last, so nothing is under way to us: we tear down. */
BOTH_ROLES(first_to_close_tears_down)
{
	sdp_conn_close(p.c);
	raw_expect(&p.raw, SDP_DISCONN);
	raw_say(&p.raw, SDP_DISCONN);
	raw_expect_down(&p.raw);
	assert_int_equal(LOCKED(&p.raw, p.raw.how), OTI_DOWN_PEER);
	bed_until(sdp_conn_is_done(p.c));
	assert_true(bed_has(p.c, SDP_IS_CLOSED | SDP_IS_EOF));
	assert_false(bed_has(p.c, SDP_IS_RESET));
	assert_int_equal(AT(p.c, error), 0);
	assert_int_equal(raw_waiting(&p.raw), 0);
}

/* Ours went last: the peer tears down, and what it had sent before does no harm. */
BOTH_ROLES(second_to_close_waits_for_the_peer)
{
	raw_say(&p.raw, SDP_DISCONN);
	bed_until(bed_has(p.c, SDP_IS_EOF));
	sdp_conn_close(p.c);
	raw_expect(&p.raw, SDP_DISCONN);
	assert_int_equal(AT(p.c, state), SDPS_TIME_WAIT_1);
	/* An update that crossed our DisConn. */
	raw_data(&p.raw, NULL, 0);
	bed_step_for(10);
	assert_int_equal(AT(p.c, state), SDPS_TIME_WAIT_1);
	assert_int_equal(p.raw.conn->ops->disconnect(p.raw.conn), 0);
	bed_until(sdp_conn_is_done(p.c));
	assert_true(bed_has(p.c, SDP_IS_CLOSED));
	raw_expect_down(&p.raw);
	assert_int_equal(LOCKED(&p.raw, p.raw.how), OTI_DOWN_OWN);
}

/* A peer that leaves the tearing down to us. */
BOTH_ROLES(second_to_close_tears_down_after_a_while)
{
	uint64_t at;

	raw_say(&p.raw, SDP_DISCONN);
	bed_until(bed_has(p.c, SDP_IS_EOF));
	sdp_conn_close(p.c);
	raw_expect(&p.raw, SDP_DISCONN);
	at = sdp_conn_deadline(p.c);
	assert_int_not_equal(at, 0);
	sdp_conn_tick(p.c, at - 1);
	bed_step_for(10);
	assert_false(LOCKED(&p.raw, p.raw.down));
	sdp_conn_tick(p.c, at);
	raw_expect_down(&p.raw);
	assert_int_equal(LOCKED(&p.raw, p.raw.how), OTI_DOWN_PEER);
	bed_until(sdp_conn_is_done(p.c));
	assert_true(bed_has(p.c, SDP_IS_CLOSED));
}

BOTH_ROLES(crossing_disconns_are_a_graceful_end)
{
	/* Ours is held back until theirs has come. */
	p.raw.say_bufs = 0;
	raw_data(&p.raw, NULL, 0);
	bed_until(bed_credits(p.c) == 0);
	sdp_conn_close(p.c);
	assert_int_equal(AT(p.c, state), SDPS_DIS_SEND_1);
	raw_say(&p.raw, SDP_DISCONN);
	await_state(SDPS_DIS_RECV_R);
	p.raw.say_bufs = 8;
	raw_data(&p.raw, NULL, 0);
	raw_expect(&p.raw, SDP_DISCONN);
	p.raw.conn->ops->disconnect(p.raw.conn);
	bed_until(sdp_conn_is_done(p.c));
	assert_true(bed_has(p.c, SDP_IS_CLOSED));
}

BOTH_ROLES(whatever_ends_the_transport_after_both_disconns_is_graceful)
{
	raw_say(&p.raw, SDP_DISCONN);
	bed_until(bed_has(p.c, SDP_IS_EOF));
	sdp_conn_close(p.c);
	raw_expect(&p.raw, SDP_DISCONN);
	p.raw.conn->ops->abort(p.raw.conn);
	bed_until(sdp_conn_is_done(p.c));
	assert_true(bed_has(p.c, SDP_IS_CLOSED));
	assert_false(bed_has(p.c, SDP_IS_RESET));
}

BOTH_ROLES(octets_can_be_read_after_the_transport_is_gone)
{
	char got[8];

	assert_int_equal(sdp_conn_shut(p.c), 0);
	raw_expect(&p.raw, SDP_DISCONN);
	raw_data(&p.raw, "late", 4);
	raw_say(&p.raw, SDP_DISCONN);
	bed_until(bed_has(p.c, SDP_IS_CLOSED));
	assert_int_equal(bed_recv(p.c, got, 8), 4);
	assert_memory_equal(got, "late", 4);
	assert_int_equal(bed_recv(p.c, got, 8), 0);
}

/* ---- resets ---- */

BOTH_ROLES(loss_without_disconn_is_a_reset)
{
	char got[8];

	raw_data(&p.raw, "abc", 3);
	bed_until(AT(p.c, unread) == 3);
	p.raw.conn->ops->abort(p.raw.conn);
	bed_until(bed_has(p.c, SDP_IS_RESET));
	assert_int_equal(AT(p.c, error), ECONNRESET);
	assert_int_equal(bed_recv(p.c, got, 8), 3);
	assert_int_equal(bed_recv(p.c, got, 8), -ECONNRESET);
	assert_int_equal(bed_send(p.c, "x", 1), -ECONNRESET);
	sdp_conn_close(p.c);
	assert_true(sdp_conn_is_done(p.c));
}

BOTH_ROLES(orderly_end_of_the_transport_without_disconn_is_a_reset)
{
	assert_int_equal(p.raw.conn->ops->disconnect(p.raw.conn), 0);
	bed_until(bed_has(p.c, SDP_IS_RESET));
	assert_int_equal(AT(p.c, error), ECONNRESET);
}

BOTH_ROLES(loss_after_the_peers_disconn_is_a_broken_pipe)
{
	raw_say(&p.raw, SDP_DISCONN);
	bed_until(bed_has(p.c, SDP_IS_EOF));
	p.raw.conn->ops->abort(p.raw.conn);
	bed_until(bed_has(p.c, SDP_IS_RESET));
	assert_int_equal(AT(p.c, error), EPIPE);
}

/* Before our DisConn there is no message for it. */
BOTH_ROLES(abort_before_disconn_cuts_the_transport)
{
	sdp_conn_abort(p.c);
	assert_int_equal(AT(p.c, state), SDPS_ERROR);
	raw_expect_down(&p.raw);
	assert_int_equal(LOCKED(&p.raw, p.raw.how), OTI_DOWN_LOST);
	assert_int_equal(raw_waiting(&p.raw), 0);
	assert_int_equal(bed_send(p.c, "x", 1), -ECONNABORTED);
}

BOTH_ROLES(abort_after_disconn_sends_abort_conn)
{
	assert_int_equal(sdp_conn_shut(p.c), 0);
	raw_expect(&p.raw, SDP_DISCONN);
	sdp_conn_abort(p.c);
	raw_expect(&p.raw, SDP_ABORT_CONN);
	raw_expect_down(&p.raw);
	assert_int_equal(AT(p.c, state), SDPS_ERROR);
	assert_true(bed_has(p.c, SDP_IS_RESET));
}

BOTH_ROLES(abort_conn_without_a_credit_cuts_the_transport)
{
	assert_int_equal(sdp_conn_shut(p.c), 0);
	raw_expect(&p.raw, SDP_DISCONN);
	p.raw.say_bufs = 0;
	raw_data(&p.raw, NULL, 0);
	bed_until(bed_credits(p.c) == 0);
	sdp_conn_abort(p.c);
	assert_int_equal(AT(p.c, state), SDPS_ERROR);
	raw_expect_down(&p.raw);
	assert_int_equal(raw_waiting(&p.raw), 0);
}

static void abort_conn_is_a_reset_in_every_state(void **state)
{
	for (int i = 0; i < 6; i++) {
		raw_open(&p, i & 1);
		if (i == 1 || i == 3) {
			assert_int_equal(sdp_conn_shut(p.c), 0);
			raw_expect(&p.raw, SDP_DISCONN);
		}
		if (i >= 2) {
			raw_say(&p.raw, SDP_DISCONN);
			bed_until(bed_has(p.c, SDP_IS_EOF));
		}
		if (i == 4) {
			sdp_conn_close(p.c);
			raw_expect(&p.raw, SDP_DISCONN);
			await_state(SDPS_TIME_WAIT_1);
		}
		/* In TIME_WAIT_1 by our own tear down nothing comes any more. */
		if (i != 3) {
			raw_say(&p.raw, SDP_ABORT_CONN);
			bed_until(bed_has(p.c, SDP_IS_RESET));
			raw_expect_down(&p.raw);
		}
		raw_close(&p);
	}
}

static void violations_behind_disconn(void **state)
{
	static const uint8_t mids[] = { SDP_DISCONN, SDP_DATA, SDP_SRC_AVAIL };

	for (size_t i = 0; i < 2 * ARRAY_SIZE(mids); i++) {
		struct sdp_msg m = { .mid = mids[i / 2], .payload_len = 1, .advert_len = 10 };

		raw_open(&p, i & 1);
		raw_say(&p.raw, SDP_DISCONN);
		if (m.mid == SDP_DISCONN)
			m.payload_len = 0;
		raw_say_msg(&p.raw, &m, "x");
		bed_until(bed_has(p.c, SDP_IS_RESET));
		raw_expect_down(&p.raw);
		raw_close(&p);
	}
}

/* After our DisConn a violation is answered by AbortConn. */
BOTH_ROLES(violation_after_our_disconn_sends_abort_conn)
{
	assert_int_equal(sdp_conn_shut(p.c), 0);
	raw_expect(&p.raw, SDP_DISCONN);
	p.raw.mseq = 77;
	raw_data(&p.raw, "x", 1);
	raw_expect(&p.raw, SDP_ABORT_CONN);
	bed_until(bed_has(p.c, SDP_IS_RESET));
	raw_expect_down(&p.raw);
}

/* ---- the program goes away ---- */

BOTH_ROLES(close_with_unread_octets_is_an_abort)
{
	raw_data(&p.raw, "x", 1);
	bed_until(AT(p.c, unread) == 1);
	sdp_conn_close(p.c);
	assert_true(sdp_conn_is_done(p.c));
	raw_expect_down(&p.raw);
	assert_int_equal(LOCKED(&p.raw, p.raw.how), OTI_DOWN_LOST);
	raw_expect_no_more_than_credits(&p.raw);
}

BOTH_ROLES(close_with_an_unfinished_src_avail_is_an_abort)
{
	struct sdp_msg m = { .mid = SDP_SRC_AVAIL, .advert_len = 10, .payload_len = 1 };
	char got;

	raw_say_msg(&p.raw, &m, "x");
	bed_recv_all(p.c, &got, 1);
	raw_expect(&p.raw, SDP_SEND_SM);
	sdp_conn_close(p.c);
	assert_true(sdp_conn_is_done(p.c));
	raw_expect_down(&p.raw);
	assert_int_equal(LOCKED(&p.raw, p.raw.how), OTI_DOWN_LOST);
}

BOTH_ROLES(octets_after_close_are_an_abort)
{
	sdp_conn_close(p.c);
	raw_expect(&p.raw, SDP_DISCONN);
	raw_data(&p.raw, "x", 1);
	raw_expect(&p.raw, SDP_ABORT_CONN);
	bed_until(sdp_conn_is_done(p.c));
	raw_expect_down(&p.raw);
}

BOTH_ROLES(shut_read_alone_sends_nothing)
{
	sdp_conn_shut_read(p.c);
	raw_expect_quiet(&p.raw);
	/* What comes is thrown away, and the peer gets its credits back. */
	for (int i = 0; i < 100; i++) {
		raw_data(&p.raw, "x", 1);
		bed_until(AT(p.c, credit.rx_next) == p.raw.mseq);
	}
	assert_int_equal(AT(p.c, unread), 0);
	assert_int_equal(AT(p.c, credit.posted), 16);
	assert_false(bed_has(p.c, SDP_IS_RESET));
}

/* ---- timers ---- */

BOTH_ROLES(peer_that_never_closes_is_aborted_after_a_while)
{
	uint64_t at;

	sdp_conn_close(p.c);
	raw_expect(&p.raw, SDP_DISCONN);
	at = sdp_conn_deadline(p.c);
	assert_int_not_equal(at, 0);
	sdp_conn_tick(p.c, at - 1);
	assert_int_equal(AT(p.c, state), SDPS_DIS_SENT_1);
	sdp_conn_tick(p.c, at);
	raw_expect(&p.raw, SDP_ABORT_CONN);
	raw_expect_down(&p.raw);
	assert_true(sdp_conn_is_done(p.c));
	assert_int_equal(AT(p.c, error), ETIMEDOUT);
}

/* Who only shut its sending side may wait for the peer for ever. */
BOTH_ROLES(half_closed_connection_has_no_timer)
{
	assert_int_equal(sdp_conn_shut(p.c), 0);
	raw_expect(&p.raw, SDP_DISCONN);
	assert_int_equal(sdp_conn_deadline(p.c), 0);
	sdp_conn_close(p.c);
	assert_int_not_equal(sdp_conn_deadline(p.c), 0);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		WITH_BED(shut_sends_disconn_and_goes_on_receiving),
		WITH_BED(disconn_comes_behind_all_octets),
		WITH_BED(disconn_of_the_peer_is_the_end_of_the_stream),
		WITH_BED(peer_that_closed_still_gives_credits),
		WITH_BED(first_to_close_tears_down),
		WITH_BED(second_to_close_waits_for_the_peer),
		WITH_BED(second_to_close_tears_down_after_a_while),
		WITH_BED(crossing_disconns_are_a_graceful_end),
		WITH_BED(whatever_ends_the_transport_after_both_disconns_is_graceful),
		WITH_BED(octets_can_be_read_after_the_transport_is_gone),
		WITH_BED(loss_without_disconn_is_a_reset),
		WITH_BED(orderly_end_of_the_transport_without_disconn_is_a_reset),
		WITH_BED(loss_after_the_peers_disconn_is_a_broken_pipe),
		WITH_BED(abort_before_disconn_cuts_the_transport),
		WITH_BED(abort_after_disconn_sends_abort_conn),
		WITH_BED(abort_conn_without_a_credit_cuts_the_transport),
		WITH_BED(abort_conn_is_a_reset_in_every_state),
		WITH_BED(violations_behind_disconn),
		WITH_BED(violation_after_our_disconn_sends_abort_conn),
		WITH_BED(close_with_unread_octets_is_an_abort),
		WITH_BED(close_with_an_unfinished_src_avail_is_an_abort),
		WITH_BED(octets_after_close_are_an_abort),
		WITH_BED(shut_read_alone_sends_nothing),
		WITH_BED(peer_that_never_closes_is_aborted_after_a_while),
		WITH_BED(half_closed_connection_has_no_timer),
	};

	bed_init(argc, argv);
	return cmocka_run_group_tests_name("closing", tests, NULL, NULL);
}
