/* SPDX-License-Identifier: MIT */
/*
 * Conformance of the engine: sequence numbers, credits, buffering (OS-17, OS-19; README.md,
 * chapters 2 and 3).
 */
#include "sdp/raw.h"

#include <stdatomic.h>

#include "base/util.h"
#include "sockets/sdp/sdp_priv.h"

static struct raw_pair p;

static const uint8_t octets[10000];

/* ---- numbers ---- */

static void first_message_has_number_one_and_each_the_next(void **state)
{
	for (int role = RAW_LISTENS; role <= RAW_CONNECTS; role++) {
		raw_open(&p, role);
		for (uint32_t i = 1; i <= 20; i++) {
			struct sdp_msg m;

			bed_until(bed_send(p.c, "x", 1) == 1);
			m = raw_next(&p.raw, NULL);
			assert_int_equal(m.mseq, i);
			/* Of the last message received, 0 before any. */
			assert_int_equal(m.mseq_ack, i - 1);
			raw_data(&p.raw, NULL, 0);
			bed_until(AT(p.c, credit.rx_next) == i + 1);
		}
		raw_close(&p);
	}
}

static void number_that_is_not_the_next_ends_the_connection(void **state)
{
	static const uint32_t bad[] = { 0, 2, 0xffffffff };

	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		raw_open(&p, i & 1);
		p.raw.mseq = bad[i];
		raw_data(&p.raw, "x", 1);
		raw_expect_violation(&p);
		raw_close(&p);
	}
	/* The same twice. */
	raw_open(&p, RAW_LISTENS);
	raw_data(&p.raw, "x", 1);
	p.raw.mseq = 1;
	raw_data(&p.raw, "x", 1);
	raw_expect_violation(&p);
	raw_close(&p);
}

static void acknowledgement_of_what_was_not_sent_ends_the_connection(void **state)
{
	for (int i = 0; i < 3; i++) {
		raw_open(&p, i & 1);
		assert_int_equal(bed_send(p.c, "x", 1), 1);
		raw_expect(&p.raw, SDP_DATA);
		raw_data(&p.raw, NULL, 0);
		bed_until(AT(p.c, credit.rx_next) == 2);
		/* The future; the past; far away. */
		p.raw.ack = i == 0 ? 2 : i == 1 ? 0 : 0x80000000;
		raw_data(&p.raw, NULL, 0);
		raw_expect_violation(&p);
		raw_close(&p);
	}
}

static void bufs_says_what_is_posted(void **state)
{
	struct sdp_msg m;
	char got[8];

	raw_open(&p, RAW_LISTENS);
	assert_int_equal(bed_send(p.c, "x", 1), 1);
	assert_int_equal(raw_expect(&p.raw, SDP_DATA).bufs, 16);
	/* Three large messages are held, so three buffers fewer are posted. */
	for (int i = 0; i < 3; i++)
		raw_data(&p.raw, octets, 1000);
	bed_until(AT(p.c, unread) == 3000);
	assert_int_equal(bed_send(p.c, "x", 1), 1);
	assert_int_equal(raw_expect(&p.raw, SDP_DATA).bufs, 13);
	for (int i = 0; i < 2; i++)
		assert_int_equal(bed_recv(p.c, got, sizeof(got)), sizeof(got));
	assert_int_equal(bed_send(p.c, "x", 1), 1);
	m = raw_expect(&p.raw, SDP_DATA);
	assert_int_equal(m.bufs, 13);
	assert_int_equal(m.mseq_ack, 3);
	raw_close(&p);
}

/* ---- what may be sent ---- */

/* The engine is told that it has so many credits; what is under way is nothing. */
static void set_credits(uint16_t n)
{
	p.raw.say_bufs = n;
	raw_data(&p.raw, NULL, 0);
	bed_until(AT(p.c, credit.rx_next) == p.raw.mseq);
	assert_int_equal(bed_credits(p.c), n);
}

static void octets_need_three_credits(void **state)
{
	for (int role = RAW_LISTENS; role <= RAW_CONNECTS; role++) {
		raw_open(&p, role);
		for (uint16_t n = 0; n < 3; n++) {
			set_credits(n);
			assert_int_equal(bed_send(p.c, "x", 1), 1);
			raw_expect_quiet(&p.raw);
		}
		/* Three octets wait; they go in one message, and no second one does. */
		p.raw.say_bufs = 3;
		raw_data(&p.raw, NULL, 0);
		assert_int_equal(raw_expect(&p.raw, SDP_DATA).payload_len, 3);
		assert_int_equal(bed_send(p.c, "x", 1), 1);
		raw_expect_quiet(&p.raw);
		raw_close(&p);
	}
}

static void count_notice(struct sdp_conn *c, void *arg)
{
	(void)c;
	atomic_fetch_add((atomic_int *)arg, 1);
}

static void send_takes_what_there_are_credits_for(void **state)
{
	static atomic_int notices;

	raw_open(&p, RAW_LISTENS);
	set_credits(7);
	/* Five messages of 1008 octets, then two credits are left; the rest is kept. */
	assert_int_equal(bed_send(p.c, octets, 1), 1);
	bed_until(raw_waiting(&p.raw));
	assert_int_equal(bed_send(p.c, octets, sizeof(octets)), 4 * 1008 + SDP_STASH);
	assert_int_equal(bed_credits(p.c), 2);
	assert_false(bed_has(p.c, SDP_IS_WRITABLE));
	assert_int_equal(bed_send(p.c, "x", 1), -EAGAIN);
	for (int i = 0; i < 5; i++)
		raw_expect(&p.raw, SDP_DATA);
	raw_expect_quiet(&p.raw);
	/* One more credit, one more message, one more piece; and who waits is told. */
	sdp_conn_enter(p.c);
	p.c->attr.arg = &notices;
	p.c->attr.notify = count_notice;
	sdp_conn_leave(p.c);
	atomic_store(&notices, 0);
	p.raw.say_bufs = 3;
	raw_data(&p.raw, NULL, 0);
	assert_int_equal(raw_expect(&p.raw, SDP_DATA).payload_len, 1008);
	raw_expect_quiet(&p.raw);
	assert_true(bed_has(p.c, SDP_IS_WRITABLE));
	bed_until(atomic_load(&notices) > 0);
	assert_int_equal(bed_send(p.c, octets, 4096), 1008);
	raw_close(&p);
}

static void two_credits_let_answers_pass(void **state)
{
	struct sdp_msg m = { .mid = SDP_CH_RCV_BUF, .size = 100 };

	raw_open(&p, RAW_LISTENS);
	set_credits(2);
	raw_say_msg(&p.raw, &m, NULL);
	raw_expect(&p.raw, SDP_CH_RCV_BUF_ACK);
	raw_close(&p);
}

/* With one credit only what gives credits may go. */
static void last_credit_is_for_credits(void **state)
{
	struct sdp_msg m = { .mid = SDP_CH_RCV_BUF, .size = 100 };

	raw_open(&p, RAW_LISTENS);
	set_credits(1);
	/* The engine has posted again what this took, so its answer gives a credit. */
	raw_say_msg(&p.raw, &m, NULL);
	raw_expect(&p.raw, SDP_CH_RCV_BUF_ACK);
	raw_close(&p);

	/* Held octets: nothing more is posted than the peer knows of. */
	raw_open(&p, RAW_LISTENS);
	assert_int_equal(bed_send(p.c, "x", 1), 1);
	raw_expect(&p.raw, SDP_DATA);
	p.raw.say_bufs = 1;
	raw_data(&p.raw, octets, 1000);
	bed_until(AT(p.c, credit.rx_next) == p.raw.mseq);
	assert_int_equal(sdp_conn_change_mode(p.c, SDP_PIPELINED, false), -EAGAIN);
	raw_expect_quiet(&p.raw);
	raw_close(&p);
}

static void without_credit_nothing_is_sent(void **state)
{
	raw_open(&p, RAW_LISTENS);
	set_credits(0);
	assert_int_equal(sdp_conn_shut(p.c), 0);
	raw_say(&p.raw, SDP_SRC_AVAIL_CANCEL);
	raw_expect_quiet(&p.raw);
	/* It all comes when there are credits. */
	p.raw.say_bufs = 8;
	raw_data(&p.raw, NULL, 0);
	raw_expect(&p.raw, SDP_DISCONN);
	raw_close(&p);
}

static void disconn_passes_with_two_credits(void **state)
{
	raw_open(&p, RAW_LISTENS);
	set_credits(2);
	assert_int_equal(sdp_conn_shut(p.c), 0);
	raw_expect(&p.raw, SDP_DISCONN);
	raw_close(&p);
}

static void disconn_waits_for_octets_that_need_a_third(void **state)
{
	raw_open(&p, RAW_LISTENS);
	set_credits(2);
	assert_int_equal(bed_send(p.c, "x", 1), 1);
	assert_int_equal(sdp_conn_shut(p.c), 0);
	raw_expect_quiet(&p.raw);
	p.raw.say_bufs = 4;
	raw_data(&p.raw, NULL, 0);
	assert_int_equal(raw_expect(&p.raw, SDP_DATA).payload_len, 1);
	raw_expect(&p.raw, SDP_DISCONN);
	raw_close(&p);
}

/* ---- what the peer is told ---- */

/* A peer that may send until nothing is posted, while the program does not read. */
static void engine_never_lets_the_peer_starve(void **state)
{
	uint32_t left = 16, sent = 0;

	for (int role = RAW_LISTENS; role <= RAW_CONNECTS; role++) {
		uint8_t got[1000];

		raw_open(&p, role);
		left = 16;
		sent = 0;
		/* Octets that are read at once: the peer must never be down to one credit for long. */
		for (int i = 0; i < 200; i++) {
			bed_until(raw_waiting(&p.raw) || left >= 3);
			while (raw_waiting(&p.raw)) {
				struct sdp_msg m = raw_next(&p.raw, NULL);

				assert_int_equal(m.payload_len, 0);
				left = m.bufs - (sent - m.mseq_ack);
			}
			if (left < 3)
				continue;
			raw_data(&p.raw, octets, 1000);
			sent++;
			left--;
			bed_recv_all(p.c, got, 1000);
		}
		assert_true(sent >= 100);
		raw_close(&p);
	}
}

static void update_is_an_empty_data_message(void **state)
{
	uint8_t got[1000];
	struct sdp_msg m;

	raw_open(&p, RAW_LISTENS);
	for (int i = 0; i < 14; i++)
		raw_data(&p.raw, octets, 1000);
	bed_until(AT(p.c, unread) == 14000);
	/* Down to two, but there is nothing to give: the program has not read. */
	raw_expect_quiet(&p.raw);
	bed_recv_all(p.c, got, 1000);
	m = raw_expect(&p.raw, SDP_DATA);
	assert_int_equal(m.payload_len, 0);
	assert_int_equal(m.mseq_ack, 14);
	assert_true(m.bufs >= 3);
	raw_close(&p);
}

/* Otherwise two ends would answer each other's updates for ever. */
static void updates_alone_call_for_no_update(void **state)
{
	raw_open(&p, RAW_CONNECTS);
	for (int i = 0; i < 5; i++)
		raw_data(&p.raw, NULL, 0);
	raw_expect_quiet(&p.raw);
	raw_close(&p);
}

static void buffer_without_octets_is_posted_at_once(void **state)
{
	raw_open(&p, RAW_LISTENS);
	for (int i = 0; i < 100; i++) {
		raw_say(&p.raw, SDP_SEND_SM);
		bed_until(AT(p.c, credit.rx_next) == p.raw.mseq);
		bed_until(AT(p.c, credit.posted) == 16);
	}
	raw_close(&p);
}

/* ---- buffers ---- */

static void message_is_never_longer_than_the_peers_buffers(void **state)
{
	static const uint32_t sizes[] = { 37, 38, 100, 1000 };

	for (size_t n = 0; n < 2 * ARRAY_SIZE(sizes); n++) {
		struct sdp_attr attr = bed_attr();
		size_t i = n / 2;
		uint32_t sum = 0;

		memset(&p, 0, sizeof(p));
		p.role = RAW_LISTENS;
		p.c = &p.own;
		raw_init(&p.raw);
		p.raw.ours.rcv_size = sizes[i];
		/* The Hello counts, also where the transport would take more. */
		if (n % 2 == 0)
			p.raw.buf_size = sizes[i];
		raw_listen(&p.raw);
		assert_int_equal(sdp_conn_init(p.c, &attr), 0);
		assert_int_equal(sdp_conn_connect(p.c, &p.raw.listener->local), 0);
		raw_await_request(&p.raw);
		raw_accept(&p.raw);
		bed_until(bed_has(p.c, SDP_IS_OPEN));
		assert_true(bed_send(p.c, octets, 500) > 0);
		while (sum < 200) {
			struct sdp_msg m = raw_expect(&p.raw, SDP_DATA);

			assert_true(m.payload_len <= sizes[i] - SDP_BSDH_LEN);
			/* And no shorter than need be. */
			assert_true(m.payload_len == sizes[i] - SDP_BSDH_LEN ||
				    sum + m.payload_len == 500);
			sum += m.payload_len;
		}
		raw_close(&p);
	}
}

/* Single octets take as much room as they need, not a buffer each. */
static void small_messages_share_buffers(void **state)
{
	static uint8_t got[16 * 1024];
	uint32_t left = 16, sent = 0;

	raw_open(&p, RAW_LISTENS);
	while (sent < 7000) {
		uint8_t octet = bed_octet(sent, 1);

		raw_data(&p.raw, &octet, 1);
		sent++;
		left--;
		bed_until(AT(p.c, unread) == sent);
		/* Credits come, although nobody reads. */
		while (left <= 2 || raw_waiting(&p.raw)) {
			struct sdp_msg m = raw_expect(&p.raw, SDP_DATA);

			left = m.bufs - (sent - m.mseq_ack);
		}
	}
	bed_recv_all(p.c, got, sent);
	assert_true(bed_check(got, sent, 0, 1));
	raw_close(&p);
}

static void message_without_a_posted_buffer_ends_the_connection(void **state)
{
	raw_open(&p, RAW_LISTENS);
	/* Credits are not looked at here, and the program does not read. */
	for (int i = 0; i < 17; i++) {
		struct oti_buf *buf = p.raw.conn->ops->buf_get(p.raw.conn);
		uint8_t message[1024] = { 0 };
		struct sdp_msg m = { .mid = SDP_DATA, .payload_len = 1008 };
		struct iovec iov = { .iov_base = message, .iov_len = sizeof(message) };

		/* The local transport has no buffer to send it with. */
		if (!buf) {
			assert_int_equal(i, 16);
			assert_int_equal(bed.layout, SDP_IB);
			raw_close(&p);
			return;
		}
		raw_encode(&p.raw, &m, message);
		p.raw.mseq++;
		if (p.raw.conn->ops->send(p.raw.conn, buf, &iov, 1, 0))
			break;
		bed_step();
	}
	bed_until(bed_has(p.c, SDP_IS_RESET));
	raw_close(&p);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		WITH_BED(first_message_has_number_one_and_each_the_next),
		WITH_BED(number_that_is_not_the_next_ends_the_connection),
		WITH_BED(acknowledgement_of_what_was_not_sent_ends_the_connection),
		WITH_BED(bufs_says_what_is_posted),
		WITH_BED(octets_need_three_credits),
		WITH_BED(send_takes_what_there_are_credits_for),
		WITH_BED(two_credits_let_answers_pass),
		WITH_BED(last_credit_is_for_credits),
		WITH_BED(without_credit_nothing_is_sent),
		WITH_BED(disconn_passes_with_two_credits),
		WITH_BED(disconn_waits_for_octets_that_need_a_third),
		WITH_BED(engine_never_lets_the_peer_starve),
		WITH_BED(update_is_an_empty_data_message),
		WITH_BED(updates_alone_call_for_no_update),
		WITH_BED(buffer_without_octets_is_posted_at_once),
		WITH_BED(message_is_never_longer_than_the_peers_buffers),
		WITH_BED(small_messages_share_buffers),
		WITH_BED(message_without_a_posted_buffer_ends_the_connection),
	};

	bed_init(argc, argv);
	return cmocka_run_group_tests_name("credits", tests, NULL, NULL);
}
