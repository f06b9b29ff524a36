/* SPDX-License-Identifier: MIT */
/*
 * Conformance of the engine: each message, and each way to break its rules (OS-17, OS-18, OS-20;
 * README.md, chapters 1, 4 and 5).
 */
#include "sdp/raw.h"

#include "base/bytes.h"
#include "base/util.h"

static struct raw_pair p;

/* A test that runs once for each role. */
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

/* ---- the base header ---- */

BOTH_ROLES(data_has_the_documented_octets)
{
	static const uint8_t want[] = { 0xff, 0, 0, 16, 0, 0,   0,   0x15, 0,   0,  0,
					1,    0, 0, 0,  0, 'h', 'e', 'l',  'l', 'o' };

	assert_int_equal(bed_send(p.c, "hello", 5), 5);
	bed_until(raw_waiting(&p.raw));
	assert_int_equal(p.raw.queue[p.raw.head].len, sizeof(want));
	assert_memory_equal(p.raw.queue[p.raw.head].octets, want, sizeof(want));
}

BOTH_ROLES(message_with_a_wrong_length_ends_the_connection)
{
	uint8_t octets[64] = { 0 };
	struct sdp_msg m = { .mid = SDP_DATA, .payload_len = 5 };
	size_t len = raw_encode(&p.raw, &m, octets);

	raw_octets(&p.raw, octets, len + 4);
	raw_expect_violation(&p);
}

static void message_shorter_than_its_header_ends_the_connection(void **state)
{
	for (size_t len = 0; len < 36; len += 5) {
		uint8_t octets[64] = { SDP_SINK_AVAIL };

		raw_open(&p, RAW_LISTENS);
		put_be32(octets + 4, (uint32_t)len);
		put_be32(octets + 8, 1);
		raw_octets(&p.raw, octets, len);
		raw_expect_violation(&p);
		raw_close(&p);
	}
}

static void unknown_messages_end_the_connection(void **state)
{
	unsigned tried = 0;

	for (unsigned mid = 0; mid < 256; mid++) {
		uint8_t octets[SDP_BSDH_LEN] = { (uint8_t)mid };

		/* All of them where that is cheap; also those that a mask would take for others. */
		if (sdp_mid_info((uint8_t)mid)->name && mid != SDP_HELLO && mid != SDP_HELLO_ACK)
			continue;
		if (bed.layout == SDP_IWARP && mid % 16 != 15 && mid % 32 != 2)
			continue;
		raw_open(&p, mid & 1);
		put_be16(octets + 2, 64);
		put_be32(octets + 4, SDP_BSDH_LEN);
		put_be32(octets + 8, 1);
		raw_octets(&p.raw, octets, sizeof(octets));
		raw_expect_violation(&p);
		raw_close(&p);
		tried++;
	}
	assert_true(tried >= 20);
}

BOTH_ROLES(reserved_flags_are_not_looked_at)
{
	uint8_t octets[64] = { 0 };
	struct sdp_msg m = { .mid = SDP_DATA, .payload_len = 3 };
	size_t len = raw_encode(&p.raw, &m, octets);
	char got[3];

	octets[1] = 0xf8;
	memcpy(octets + len, "abc", 3);
	raw_octets(&p.raw, octets, len + 3);
	bed_recv_all(p.c, got, 3);
	assert_memory_equal(got, "abc", 3);
}

static void payload_where_none_may_be_ends_the_connection(void **state)
{
	for (unsigned mid = 0; mid < 256; mid++) {
		const struct sdp_mid_info *info = sdp_mid_info((uint8_t)mid);
		uint8_t octets[64] = { (uint8_t)mid };
		size_t len = SDP_BSDH_LEN + info->ext_len + 1u;

		if (!info->name || info->payload || mid <= SDP_HELLO_ACK)
			continue;
		raw_open(&p, RAW_LISTENS);
		put_be16(octets + 2, 64);
		put_be32(octets + 4, (uint32_t)len);
		put_be32(octets + 8, 1);
		raw_octets(&p.raw, octets, len);
		raw_expect_violation(&p);
		raw_close(&p);
	}
}

/* Answers to what was never asked: late ones are forgiven, claims on memory are not. */
static void answers_without_a_question(void **state)
{
	static const struct {
		uint8_t mid;
		bool forgiven;
	} cases[] = {
		{ SDP_SEND_SM, true },        { SDP_SINK_CANCEL_ACK, true },
		{ SDP_CH_RCV_BUF_ACK, true }, { SDP_RDMA_RD_COMPL, false },
		{ SDP_RDMA_WR_COMPL, false }, { SDP_SUSP_COMM_ACK, false },
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		raw_open(&p, i & 1);
		raw_say(&p.raw, cases[i].mid);
		if (cases[i].forgiven) {
			char c;

			raw_data(&p.raw, "x", 1);
			bed_recv_all(p.c, &c, 1);
			raw_expect_no_more_than_credits(&p.raw);
		} else {
			raw_expect_violation(&p);
		}
		raw_close(&p);
	}
}

/* ---- SrcAvail ---- */

static uint32_t say_src_avail(uint32_t len, const char *payload)
{
	struct sdp_msg m = { .mid = SDP_SRC_AVAIL,
			     .advert_len = len,
			     .key = 0x1234abcd,
			     .va = 0x7f0000001000,
			     .payload_len = (uint32_t)strlen(payload) };

	return raw_say_msg(&p.raw, &m, payload);
}

BOTH_ROLES(src_avail_is_answered_with_send_sm)
{
	char got[10];
	struct sdp_msg m;
	uint32_t mseq = say_src_avail(10, "abc");

	m = raw_expect(&p.raw, SDP_SEND_SM);
	assert_int_equal(m.mseq_ack, mseq);
	/* The payload belongs to the stream, the rest comes as Data, then anything. */
	raw_data(&p.raw, "defg", 4);
	raw_data(&p.raw, "hij", 3);
	bed_recv_all(p.c, got, 10);
	assert_memory_equal(got, "abcdefghij", 10);
	say_src_avail(5, "a");
	raw_expect(&p.raw, SDP_SEND_SM);
	raw_data(&p.raw, "bcdefghij", 9);
	bed_recv_all(p.c, got, 10);
	assert_memory_equal(got, "abcdefghij", 10);
}

static void change_mode(uint8_t mode)
{
	struct sdp_msg m = { .mid = SDP_MODE_CHANGE, .mode = mode };

	raw_say_msg(&p.raw, &m, NULL);
}

BOTH_ROLES(src_avails_in_pipelined_mode_get_one_send_sm_each)
{
	char got[24];

	change_mode(SDP_PIPELINED);
	say_src_avail(8, "");
	say_src_avail(8, "");
	say_src_avail(8, "");
	for (int i = 0; i < 3; i++)
		raw_expect(&p.raw, SDP_SEND_SM);
	raw_data(&p.raw, "0123456789", 10);
	raw_data(&p.raw, "0123456789abcd", 14);
	bed_recv_all(p.c, got, 24);
	assert_memory_equal(got, "01234567890123456789abcd", 24);
	raw_expect_no_more_than_credits(&p.raw);
}

static void violations_of_src_avail(void **state)
{
	for (int i = 0; i < 4; i++) {
		raw_open(&p, i & 1);
		switch (i) {
		case 0: say_src_avail(10, ""); break;   /* Combined, without payload */
		case 1: say_src_avail(3, "abc"); break; /* payload is all of it */
		case 2:                                 /* Pipelined, with payload */
			change_mode(SDP_PIPELINED);
			say_src_avail(10, "a");
			break;
		default: /* Buffered */
			change_mode(SDP_BUFFERED);
			say_src_avail(10, "a");
			break;
		}
		raw_expect_violation(&p);
		raw_close(&p);
	}
}

/* The engine has no credit, so its answers wait and the next message finds them unsent. */
static void say_no_credits(void)
{
	p.raw.say_bufs = 0;
	raw_data(&p.raw, NULL, 0);
}

static void give_credits(uint16_t bufs)
{
	p.raw.say_bufs = bufs;
	raw_data(&p.raw, NULL, 0);
}

/* The engine looks at each message before it can answer the last one. */
static void violations_before_the_answer(void **state)
{
	struct sdp_attr attr = bed_attr();

	attr.max_adverts = 4;
	for (int i = 0; i < 7; i++) {
		raw_open_with(&p, i & 1, &attr);
		say_no_credits();
		switch (i) {
		case 0:
			say_src_avail(10, "a");
			say_src_avail(10, "a");
			break;
		case 1:
			say_src_avail(10, "a");
			raw_data(&p.raw, "bc", 2);
			break;
		case 2:
			change_mode(SDP_PIPELINED);
			for (int n = 0; n < 4; n++)
				say_src_avail(10, "");
			raw_expect_quiet(&p.raw);
			assert_false(bed_has(p.c, SDP_IS_RESET));
			say_src_avail(10, "");
			break;
		case 3:
			say_src_avail(10, "a");
			raw_say(&p.raw, SDP_DISCONN);
			break;
		case 4:
			say_src_avail(10, "a");
			raw_say(&p.raw, SDP_SRC_AVAIL_CANCEL);
			raw_say(&p.raw, SDP_SRC_AVAIL_CANCEL);
			break;
		case 5:
			say_src_avail(10, "a");
			raw_say(&p.raw, SDP_SRC_AVAIL_CANCEL);
			say_src_avail(10, "a");
			break;
		default:
			raw_say(&p.raw, SDP_CH_RCV_BUF);
			raw_say(&p.raw, SDP_CH_RCV_BUF);
			break;
		}
		raw_expect_violation(&p);
		assert_int_equal(raw_waiting(&p.raw), 0);
		raw_close(&p);
	}
}

BOTH_ROLES(src_avail_cancel_drops_all_with_one_send_sm)
{
	char got[4];

	say_no_credits();
	change_mode(SDP_PIPELINED);
	say_src_avail(10, "");
	say_src_avail(10, "");
	raw_say(&p.raw, SDP_SRC_AVAIL_CANCEL);
	raw_expect_quiet(&p.raw);
	give_credits(64);
	raw_expect(&p.raw, SDP_SEND_SM);
	raw_expect_no_more_than_credits(&p.raw);
	/* The source has its octets back and sends what it likes. */
	raw_data(&p.raw, "wxyz", 4);
	bed_recv_all(p.c, got, 4);
	assert_memory_equal(got, "wxyz", 4);
}

BOTH_ROLES(src_avail_cancel_without_adverts_is_ignored)
{
	raw_say(&p.raw, SDP_SRC_AVAIL_CANCEL);
	raw_expect_no_more_than_credits(&p.raw);
	/* Answered before it came: nothing was outstanding either. */
	say_src_avail(10, "a");
	raw_expect(&p.raw, SDP_SEND_SM);
	raw_say(&p.raw, SDP_SRC_AVAIL_CANCEL);
	raw_expect_no_more_than_credits(&p.raw);
	assert_true(bed_has(p.c, SDP_IS_OPEN) && !bed_has(p.c, SDP_IS_RESET));
}

BOTH_ROLES(answers_go_before_octets)
{
	uint8_t payload[16];
	struct sdp_msg m;

	say_no_credits();
	say_src_avail(10, "a");
	bed_until(bed_has(p.c, SDP_IS_READABLE));
	assert_int_equal(bed_send(p.c, "octets", 6), 6);
	raw_expect_quiet(&p.raw);
	p.raw.say_bufs = 5;
	raw_data(&p.raw, NULL, 0);
	raw_expect(&p.raw, SDP_SEND_SM);
	do {
		m = raw_next(&p.raw, payload);
	} while (!m.payload_len);
	assert_memory_equal(payload, "octets", 6);
}

/* ---- SinkAvail ---- */

static uint32_t say_sink_avail(uint32_t non_discards, const char *payload)
{
	struct sdp_msg m = { .mid = SDP_SINK_AVAIL,
			     .advert_len = 0x20000,
			     .key = 0x55667788,
			     .va = 0x7f0000002000,
			     .non_discards = non_discards,
			     .payload_len = (uint32_t)strlen(payload) };

	return raw_say_msg(&p.raw, &m, payload);
}

/* Our send half is Pipelined; both know. */
static void go_pipelined(void)
{
	struct sdp_msg m;

	bed_until(sdp_conn_change_mode(p.c, SDP_PIPELINED, false) == 0);
	m = raw_expect(&p.raw, SDP_MODE_CHANGE);
	assert_int_equal(m.mode, SDP_PIPELINED);
	assert_false(m.to_source);
}

BOTH_ROLES(sink_avail_is_spent_by_octets)
{
	uint8_t payload[16];
	struct sdp_msg m;

	go_pipelined();
	say_sink_avail(0, "");
	say_sink_avail(0, "");
	bed_until(AT(p.c, halves.out.sink.count) == 2);
	assert_int_equal(bed_send(p.c, "one", 3), 3);
	m = raw_next(&p.raw, payload);
	assert_int_equal(m.mid, SDP_DATA);
	assert_int_equal(AT(p.c, halves.out.sink.count), 1);
	assert_int_equal(AT(p.c, halves.out.pnd), 0);
	assert_int_equal(bed_send(p.c, "two", 3), 3);
	assert_int_equal(bed_send(p.c, "three", 5), 5);
	assert_int_equal(AT(p.c, halves.out.sink.count), 0);
	assert_int_equal(AT(p.c, halves.out.pnd), 1);
}

BOTH_ROLES(stale_sink_avails_are_discarded)
{
	go_pipelined();
	/* The draft's example: two payload messages, three adverts that know of none. */
	assert_int_equal(bed_send(p.c, "one", 3), 3);
	assert_int_equal(bed_send(p.c, "two", 3), 3);
	raw_expect(&p.raw, SDP_DATA);
	raw_expect(&p.raw, SDP_DATA);
	for (int i = 0; i < 3; i++)
		say_sink_avail(0, "");
	bed_until(AT(p.c, halves.out.pnd) == 0 && AT(p.c, halves.out.sink.count) == 1);
}

BOTH_ROLES(payload_of_a_sink_avail_is_taken)
{
	char got[6];

	go_pipelined();
	/* Transaction: also when the advert is stale. */
	assert_int_equal(bed_send(p.c, "x", 1), 1);
	say_sink_avail(0, "abc");
	say_sink_avail(0, "def");
	bed_recv_all(p.c, got, 6);
	assert_memory_equal(got, "abcdef", 6);
	/* It counts, as all payload does. */
	assert_int_equal(AT(p.c, halves.in.non_discards), 2);
}

BOTH_ROLES(sink_avail_cancel_is_acknowledged_once)
{
	go_pipelined();
	say_no_credits();
	say_sink_avail(0, "");
	say_sink_avail(0, "");
	raw_say(&p.raw, SDP_SINK_AVAIL_CANCEL);
	raw_expect_quiet(&p.raw);
	give_credits(64);
	raw_expect(&p.raw, SDP_SINK_CANCEL_ACK);
	raw_expect_no_more_than_credits(&p.raw);
	/* Nothing outstanding: ignored. */
	raw_say(&p.raw, SDP_SINK_AVAIL_CANCEL);
	raw_expect_no_more_than_credits(&p.raw);
}

static void violations_of_sink_avail(void **state)
{
	for (int i = 0; i < 4; i++) {
		raw_open(&p, i & 1);
		if (i)
			go_pipelined();
		switch (i) {
		case 0: say_sink_avail(0, ""); break; /* not Pipelined */
		case 1:                               /* more than MaxAdverts */
			for (int n = 0; n <= SDP_ADVERTS_MAX; n++)
				say_sink_avail(0, "");
			break;
		case 2: /* before the answer to a cancel */
			say_no_credits();
			say_sink_avail(0, "");
			raw_say(&p.raw, SDP_SINK_AVAIL_CANCEL);
			say_sink_avail(0, "");
			break;
		default:
			say_no_credits();
			say_sink_avail(0, "");
			raw_say(&p.raw, SDP_SINK_AVAIL_CANCEL);
			raw_say(&p.raw, SDP_SINK_AVAIL_CANCEL);
			break;
		}
		raw_expect_violation(&p);
		raw_close(&p);
	}
}

BOTH_ROLES(late_sink_avails_are_ignored_after_pipelined_was_left)
{
	char got[3];
	uint32_t known;

	go_pipelined();
	say_sink_avail(0, "");
	bed_until(AT(p.c, halves.out.sink.count) == 1);
	assert_int_equal(sdp_conn_change_mode(p.c, SDP_COMBINED, false), 0);
	assert_int_equal(AT(p.c, halves.out.sink.count), 0);
	known = p.raw.ack;
	raw_expect(&p.raw, SDP_MODE_CHANGE);
	/* Sent before the peer had read the ModeChange. */
	p.raw.ack = known;
	say_sink_avail(0, "abc");
	bed_recv_all(p.c, got, 3);
	assert_int_equal(AT(p.c, halves.out.sink.count), 0);
	/* No other change before the acknowledgement. */
	assert_int_equal(sdp_conn_change_mode(p.c, SDP_PIPELINED, false), -EINVAL);
	p.raw.ack = known + 1;
	raw_data(&p.raw, NULL, 0);
	bed_until(!AT(p.c, halves.out.leaving));
	assert_int_equal(sdp_conn_change_mode(p.c, SDP_PIPELINED, false), 0);
}

/* ---- modes ---- */

BOTH_ROLES(mode_changes_of_the_peer_are_followed)
{
	struct sdp_msg m;

	change_mode(SDP_PIPELINED);
	bed_until(AT(p.c, halves.in.mode) == SDP_PIPELINED);
	change_mode(SDP_COMBINED);
	bed_until(AT(p.c, halves.in.mode) == SDP_COMBINED);
	change_mode(SDP_BUFFERED);
	bed_until(AT(p.c, halves.in.mode) == SDP_BUFFERED);
	/* Out of Buffered the sink is the master: that is us. */
	bed_until(sdp_conn_change_mode(p.c, SDP_COMBINED, true) == 0);
	do {
		m = raw_next(&p.raw, NULL);
	} while (m.mid == SDP_DATA);
	assert_int_equal(m.mid, SDP_MODE_CHANGE);
	assert_true(m.to_source && m.mode == SDP_COMBINED);
	/* And the other half. */
	assert_int_equal(sdp_conn_change_mode(p.c, SDP_BUFFERED, false), 0);
	m.to_source = true;
	m.mode = SDP_COMBINED;
	raw_say_msg(&p.raw, &m, NULL);
	bed_until(AT(p.c, halves.out.mode) == SDP_COMBINED);
}

static void violations_of_mode_change(void **state)
{
	static const struct {
		uint8_t mode;
		bool to_source;
	} bad[] = {
		{ SDP_COMBINED, false }, /* the mode that is in force */
		{ SDP_COMBINED, true },
	};

	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		struct sdp_msg m = { .mid = SDP_MODE_CHANGE,
				     .mode = bad[i].mode,
				     .to_source = bad[i].to_source };

		raw_open(&p, i & 1);
		raw_say_msg(&p.raw, &m, NULL);
		raw_expect_violation(&p);
		raw_close(&p);
	}
	/* Octets that stand for no change at all. */
	for (unsigned octet = 0x30; octet < 0x100; octet += 0x2f) {
		uint8_t octets[20] = { SDP_MODE_CHANGE };

		raw_open(&p, RAW_LISTENS);
		put_be16(octets + 2, 64);
		put_be32(octets + 4, 20);
		put_be32(octets + 8, 1);
		octets[16] = (uint8_t)octet;
		raw_octets(&p.raw, octets, 20);
		raw_expect_violation(&p);
		raw_close(&p);
	}
	/* Buffered to Pipelined does not exist. */
	raw_open(&p, RAW_LISTENS);
	change_mode(SDP_BUFFERED);
	change_mode(SDP_PIPELINED);
	raw_expect_violation(&p);
	raw_close(&p);
}

/* ---- resizing ---- */

BOTH_ROLES(resize_is_answered_with_the_size_in_force)
{
	struct sdp_msg m = { .mid = SDP_CH_RCV_BUF, .size = 4096 };

	raw_say_msg(&p.raw, &m, NULL);
	assert_int_equal(raw_expect(&p.raw, SDP_CH_RCV_BUF_ACK).size, 1024);
	m.size = 64;
	raw_say_msg(&p.raw, &m, NULL);
	assert_int_equal(raw_expect(&p.raw, SDP_CH_RCV_BUF_ACK).size, 1024);
}

/* ---- urgent octets ---- */

static ssize_t recv_urgent(uint8_t *octet)
{
	struct iovec iov = { .iov_base = octet, .iov_len = 1 };

	return sdp_conn_recv(p.c, &iov, 1, SDP_URGENT);
}

BOTH_ROLES(urgent_octet_is_sent_as_the_last_of_a_data_message)
{
	uint8_t payload[16];
	struct sdp_msg m;

	assert_int_equal(bed_send(p.c, "abc", 3), 3);
	assert_int_equal(sdp_conn_send_urgent(p.c, '!'), 1);
	raw_expect(&p.raw, SDP_DATA);
	m = raw_next(&p.raw, payload);
	assert_int_equal(m.flags, SDP_FLAG_OOB_PRES | SDP_FLAG_OOB_PEND);
	assert_int_equal(m.payload_len, 1);
	assert_int_equal(payload[0], '!');
}

BOTH_ROLES(reading_stops_in_front_of_an_urgent_octet)
{
	struct sdp_msg m = { .mid = SDP_DATA, .flags = SDP_FLAG_OOB_PEND };
	char got[16];
	uint8_t octet = 0;

	assert_int_equal(recv_urgent(&octet), -EINVAL);
	raw_data(&p.raw, "abc", 3);
	raw_say_msg(&p.raw, &m, NULL);
	bed_until(bed_has(p.c, SDP_IS_URGENT));
	assert_int_equal(recv_urgent(&octet), -EAGAIN);
	m.flags = SDP_FLAG_OOB_PRES;
	m.payload_len = 3;
	raw_say_msg(&p.raw, &m, "de!");
	raw_data(&p.raw, "fgh", 3);
	bed_until(AT(p.c, unread) == 9);
	assert_int_equal(bed_recv(p.c, got, 16), 5);
	assert_memory_equal(got, "abcde", 5);
	assert_int_equal(recv_urgent(&octet), 1);
	assert_int_equal(octet, '!');
	assert_int_equal(bed_recv(p.c, got, 16), 3);
	assert_memory_equal(got, "fgh", 3);
	assert_false(bed_has(p.c, SDP_IS_URGENT));
}

BOTH_ROLES(reading_goes_past_an_urgent_octet_that_nobody_wants)
{
	struct sdp_msg m = { .mid = SDP_DATA,
			     .flags = SDP_FLAG_OOB_PRES | SDP_FLAG_OOB_PEND,
			     .payload_len = 3 };
	char got[16];

	raw_say_msg(&p.raw, &m, "ab!");
	raw_data(&p.raw, "cd", 2);
	bed_until(AT(p.c, unread) == 5);
	assert_int_equal(bed_recv(p.c, got, 16), 2);
	assert_int_equal(bed_recv(p.c, got, 16), 2);
	assert_memory_equal(got, "cd", 2);
	/* Nothing but the urgent octet. */
	m.payload_len = 1;
	raw_say_msg(&p.raw, &m, "!");
	bed_until(AT(p.c, unread) == 1);
	assert_int_equal(bed_recv(p.c, got, 16), -EAGAIN);
	assert_int_equal(AT(p.c, unread), 0);
	/* Two of them, then an ordinary one: no call returns 0, which would be the end. */
	raw_say_msg(&p.raw, &m, "!");
	raw_say_msg(&p.raw, &m, "!");
	raw_data(&p.raw, "e", 1);
	bed_until(AT(p.c, unread) == 3);
	assert_int_equal(bed_recv(p.c, got, 16), 1);
	assert_int_equal(got[0], 'e');
}

static void violations_of_urgency(void **state)
{
	for (int i = 0; i < 2; i++) {
		uint8_t octets[SDP_HDR_MAX + 1] = { i ? SDP_SRC_AVAIL : SDP_DATA };
		size_t len = i ? 33 : SDP_BSDH_LEN;

		/* Without an octet; in another message. */
		raw_open(&p, i);
		octets[1] = SDP_FLAG_OOB_PRES;
		put_be16(octets + 2, 64);
		put_be32(octets + 4, (uint32_t)len);
		put_be32(octets + 8, 1);
		put_be32(octets + 16, 100);
		raw_octets(&p.raw, octets, len);
		raw_expect_violation(&p);
		raw_close(&p);
	}
}

/* ---- fields ---- */

static void adverts_of_nothing_or_too_much_end_the_connection(void **state)
{
	static const uint32_t lens[] = { 0, SDP_ADVERT_MAX + 1, 0xffffffff };

	for (size_t i = 0; i < ARRAY_SIZE(lens); i++) {
		uint8_t octets[33] = { SDP_SRC_AVAIL };

		raw_open(&p, i & 1);
		put_be16(octets + 2, 64);
		put_be32(octets + 4, 33);
		put_be32(octets + 8, 1);
		put_be32(octets + 16, lens[i]);
		raw_octets(&p.raw, octets, 33);
		raw_expect_violation(&p);
		raw_close(&p);
	}
}

static void susp_comm_with_other_constants_ends_the_connection(void **state)
{
	for (int i = 0; i < 2; i++) {
		uint8_t octets[24] = { SDP_SUSP_COMM };

		raw_open(&p, i & 1);
		put_be16(octets + 2, 64);
		put_be32(octets + 4, 24);
		put_be32(octets + 8, 1);
		octets[21] = i ? 1 : 2;
		octets[23] = i ? 0 : 80;
		raw_octets(&p.raw, octets, 24);
		raw_expect_violation(&p);
		raw_close(&p);
	}
}

static void message_longer_than_the_buffers_ends_the_connection(void **state)
{
	for (int role = RAW_LISTENS; role <= RAW_CONNECTS; role++) {
		uint8_t octets[1025] = { 0 };
		struct sdp_msg m = { .mid = SDP_DATA, .payload_len = 1025 - SDP_BSDH_LEN };
		struct iovec iov = { .iov_base = octets, .iov_len = sizeof(octets) };
		struct oti_buf *buf;

		raw_open(&p, role);
		raw_encode(&p.raw, &m, octets);
		buf = p.raw.conn->ops->buf_get(p.raw.conn);
		/* The transport may refuse to send it, or end the connection. */
		if (p.raw.conn->ops->send(p.raw.conn, buf, &iov, 1, 0) == 0) {
			bed_until(bed_has(p.c, SDP_IS_RESET));
			raw_expect_down(&p.raw);
		}
		raw_close(&p);
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		WITH_BED(data_has_the_documented_octets),
		WITH_BED(message_with_a_wrong_length_ends_the_connection),
		WITH_BED(message_shorter_than_its_header_ends_the_connection),
		WITH_BED(unknown_messages_end_the_connection),
		WITH_BED(reserved_flags_are_not_looked_at),
		WITH_BED(payload_where_none_may_be_ends_the_connection),
		WITH_BED(answers_without_a_question),
		WITH_BED(src_avail_is_answered_with_send_sm),
		WITH_BED(src_avails_in_pipelined_mode_get_one_send_sm_each),
		WITH_BED(violations_of_src_avail),
		WITH_BED(violations_before_the_answer),
		WITH_BED(src_avail_cancel_drops_all_with_one_send_sm),
		WITH_BED(src_avail_cancel_without_adverts_is_ignored),
		WITH_BED(answers_go_before_octets),
		WITH_BED(sink_avail_is_spent_by_octets),
		WITH_BED(stale_sink_avails_are_discarded),
		WITH_BED(payload_of_a_sink_avail_is_taken),
		WITH_BED(sink_avail_cancel_is_acknowledged_once),
		WITH_BED(violations_of_sink_avail),
		WITH_BED(late_sink_avails_are_ignored_after_pipelined_was_left),
		WITH_BED(mode_changes_of_the_peer_are_followed),
		WITH_BED(violations_of_mode_change),
		WITH_BED(resize_is_answered_with_the_size_in_force),
		WITH_BED(urgent_octet_is_sent_as_the_last_of_a_data_message),
		WITH_BED(reading_stops_in_front_of_an_urgent_octet),
		WITH_BED(reading_goes_past_an_urgent_octet_that_nobody_wants),
		WITH_BED(violations_of_urgency),
		WITH_BED(adverts_of_nothing_or_too_much_end_the_connection),
		WITH_BED(susp_comm_with_other_constants_ends_the_connection),
		WITH_BED(message_longer_than_the_buffers_ends_the_connection),
	};

	bed_init(argc, argv);
	return cmocka_run_group_tests_name("messages", tests, NULL, NULL);
}
