/* SPDX-License-Identifier: MIT */
/* Sequence numbers and credits of the Sockets Direct Protocol (OS-17). */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "wire/sdp_credit.h"

static struct sdp_msg stamp(struct sdp_credit *c, uint8_t mid, uint32_t payload_len)
{
	struct sdp_msg m = { .mid = mid, .payload_len = payload_len };

	assert_int_equal(sdp_credit_stamp(c, &m), 0);
	return m;
}

/* A message of the peer's, with the next number and this acknowledgement. */
static int receive(struct sdp_credit *c, uint32_t ack, uint16_t bufs)
{
	struct sdp_msg m = { .mid = SDP_DATA, .mseq = c->rx_next, .mseq_ack = ack, .bufs = bufs };

	return sdp_credit_received(c, &m);
}

static void credit_numbers_messages_from_the_first_one_on(void **state)
{
	for (uint32_t first = 0; first < 2; first++) {
		struct sdp_credit c;
		struct sdp_msg m;

		sdp_credit_init(&c, first, true, 8, 8);
		m = stamp(&c, SDP_DATA, 1);
		assert_int_equal(m.mseq, first);
		assert_int_equal(m.mseq_ack, 0);
		m = stamp(&c, SDP_DATA, 1);
		assert_int_equal(m.mseq, first + 1);
		assert_int_equal(receive(&c, first + 1, 8), 0);
		assert_int_equal(receive(&c, first + 1, 8), 0);
		m = stamp(&c, SDP_DATA, 1);
		assert_int_equal(m.mseq_ack, first + 1);
		assert_int_equal(m.bufs, first == 0 ? 7 : 6);
	}
}

static void credit_is_what_the_peer_posted_less_what_is_under_way(void **state)
{
	struct sdp_credit c;

	sdp_credit_init(&c, 1, true, 8, 5);
	assert_int_equal(sdp_credit_left(&c), 5);
	stamp(&c, SDP_DATA, 1);
	stamp(&c, SDP_DATA, 1);
	assert_int_equal(sdp_credit_left(&c), 3);
	/* It has received one of the two, and has posted one again. */
	assert_int_equal(receive(&c, 1, 5), 0);
	assert_int_equal(sdp_credit_left(&c), 4);
	assert_int_equal(receive(&c, 2, 3), 0);
	assert_int_equal(sdp_credit_left(&c), 3);
}

static void credit_refuses_a_message_out_of_order(void **state)
{
	struct sdp_msg m = { .mid = SDP_DATA, .bufs = 3 };
	struct sdp_credit c;

	sdp_credit_init(&c, 1, true, 8, 8);
	assert_int_equal(sdp_credit_received(&c, &m), -EPROTO);
	m.mseq = 2;
	assert_int_equal(sdp_credit_received(&c, &m), -EPROTO);
}

static void credit_refuses_an_acknowledgement_of_the_future_or_the_past(void **state)
{
	struct sdp_credit c, again;

	sdp_credit_init(&c, 1, true, 8, 8);
	stamp(&c, SDP_DATA, 1);
	stamp(&c, SDP_DATA, 1);
	again = c;
	assert_int_equal(receive(&again, 3, 8), -EPROTO);
	assert_int_equal(receive(&c, 2, 8), 0);
	again = c;
	assert_int_equal(receive(&again, 1, 8), -EPROTO);
	assert_int_equal(receive(&again, 0x80000000, 8), -EPROTO);
	assert_int_equal(receive(&c, 2, 8), 0);
}

static void credit_refuses_a_message_without_a_buffer(void **state)
{
	struct sdp_credit c;

	sdp_credit_init(&c, 1, true, 3, 3);
	for (int i = 0; i < 3; i++)
		assert_int_equal(receive(&c, 0, 3), 0);
	assert_int_equal(receive(&c, 0, 3), -EPROTO);
	sdp_credit_posted(&c, 1);
	assert_int_equal(receive(&c, 0, 3), 0);
}

/* The table of the rule, with and without something to give. */
static void credit_rule_keeps_two_back(void **state)
{
	for (uint16_t left = 0; left < 6; left++)
		for (int gives = 0; gives < 2; gives++) {
			struct sdp_credit c;
			struct sdp_msg m = { .mid = SDP_DATA };

			sdp_credit_init(&c, 1, true, 8, left);
			sdp_credit_posted(&c, (uint32_t)gives);
			assert_int_equal(sdp_credit_may_send(&c, SDP_DATA, 1), left >= 3);
			assert_int_equal(sdp_credit_may_send(&c, SDP_SINK_AVAIL, 1), left >= 3);
			assert_int_equal(sdp_credit_may_send(&c, SDP_SRC_AVAIL, 0), left >= 3);
			assert_int_equal(sdp_credit_may_send(&c, SDP_DISCONN, 0),
					 left >= 2 || (left == 1 && gives));
			assert_int_equal(sdp_credit_may_send(&c, SDP_DATA, 0),
					 left >= 2 || (left == 1 && gives));
			assert_int_equal(sdp_credit_stamp(&c, &m),
					 left >= 2 || (left == 1 && gives) ? 0 : -EAGAIN);
		}
}

static void credit_bufs_stop_at_what_16_bits_can_say(void **state)
{
	struct sdp_credit c;

	sdp_credit_init(&c, 1, true, 65535, 8);
	sdp_credit_posted(&c, 65535);
	assert_int_equal(stamp(&c, SDP_DATA, 0).bufs, 65535);
	/* Nothing new could be said now. */
	assert_false(sdp_credit_must_update(&c, true));
}

static void receive_data(struct sdp_credit *c)
{
	struct sdp_msg m = { .mid = SDP_DATA, .payload_len = 1, .mseq = c->rx_next, .bufs = 64 };

	assert_int_equal(sdp_credit_received(c, &m), 0);
}

static void credit_update_is_due_when_the_peer_can_send_no_payload(void **state)
{
	struct sdp_credit c;

	sdp_credit_init(&c, 1, true, 4, 64);
	receive_data(&c);
	receive_data(&c);
	/* Low, but there is nothing to give. */
	assert_false(sdp_credit_must_update(&c, false));
	sdp_credit_posted(&c, 1);
	assert_true(sdp_credit_must_update(&c, false));
	assert_int_equal(stamp(&c, SDP_DATA, 0).bufs, 3);
	assert_false(sdp_credit_must_update(&c, false));
	/* Three are enough to go on with. */
	sdp_credit_posted(&c, 1);
	assert_false(sdp_credit_must_update(&c, false));
	receive_data(&c);
	assert_true(sdp_credit_must_update(&c, false));
}

static void credit_update_is_due_when_a_third_came_free(void **state)
{
	struct sdp_credit c;
	unsigned n = 0;

	sdp_credit_init(&c, 1, true, 60, 64);
	while (!sdp_credit_must_update(&c, false)) {
		receive_data(&c);
		sdp_credit_posted(&c, 1);
		n++;
	}
	assert_int_equal(n, 21);
}

static void credit_update_is_due_later_if_the_buffer_came_free_behind_another_message(void **state)
{
	struct sdp_credit c;

	sdp_credit_init(&c, 1, false, 4, 64);
	receive_data(&c);
	receive_data(&c);
	stamp(&c, SDP_DATA, 5);
	sdp_credit_posted(&c, 1);
	assert_true(sdp_credit_must_update(&c, false));
}

static void credit_update_is_not_answered_for_ever_with_three_buffers(void **state)
{
	struct sdp_credit c;

	sdp_credit_init(&c, 1, false, 3, 3);
	assert_int_equal(receive(&c, 0, 3), 0);
	sdp_credit_posted(&c, 1);
	assert_false(sdp_credit_must_update(&c, false));
	/* At one credit it is. */
	assert_int_equal(receive(&c, 0, 3), 0);
	sdp_credit_posted(&c, 1);
	assert_true(sdp_credit_must_update(&c, false));
	/* The connecting peer does answer. */
	sdp_credit_init(&c, 1, true, 3, 3);
	assert_int_equal(receive(&c, 0, 3), 0);
	sdp_credit_posted(&c, 1);
	assert_true(sdp_credit_must_update(&c, false));
}

static void credit_reminds_a_peer_of_three_buffers(void **state)
{
	struct sdp_credit c;

	sdp_credit_init(&c, 1, true, 8, 3);
	stamp(&c, SDP_DATA, 1);
	assert_int_equal(sdp_credit_left(&c), 2);
	assert_false(sdp_credit_must_update(&c, false));
	assert_true(sdp_credit_must_update(&c, true));
	stamp(&c, SDP_DATA, 0);
	assert_false(sdp_credit_must_update(&c, true));
	/* The accepting peer does it once. */
	sdp_credit_init(&c, 1, false, 8, 3);
	stamp(&c, SDP_DATA, 1);
	assert_true(sdp_credit_must_update(&c, true));
	stamp(&c, SDP_DATA, 0);
	assert_int_equal(receive(&c, 1, 3), 0);
	assert_int_equal(sdp_credit_left(&c), 2);
	assert_false(sdp_credit_must_update(&c, true));
	assert_int_equal(receive(&c, 2, 3), 0);
	stamp(&c, SDP_DATA, 1);
	assert_true(sdp_credit_must_update(&c, true));
	/* One with more buffers speaks by itself, and credits are left for DisConn. */
	sdp_credit_init(&c, 1, true, 8, 4);
	stamp(&c, SDP_DATA, 1);
	stamp(&c, SDP_DATA, 1);
	assert_int_equal(sdp_credit_left(&c), 2);
	assert_false(sdp_credit_must_update(&c, true));
}

static void credit_holds_its_acknowledgement_below_a_cancel(void **state)
{
	struct sdp_credit c;
	struct sdp_msg m;

	sdp_credit_init(&c, 1, true, 8, 64);
	assert_int_equal(receive(&c, 0, 64), 0); /* SrcAvail, number 1 */
	assert_int_equal(receive(&c, 0, 64), 0); /* SrcAvailCancel, number 2 */
	sdp_credit_freeze(&c, 2);
	sdp_credit_freeze(&c, 3); /* the first one counts */
	assert_int_equal(receive(&c, 0, 64), 0);
	m = stamp(&c, SDP_RDMA_RD_COMPL, 0);
	assert_int_equal(m.mseq_ack, 1);
	assert_int_equal(m.bufs, 5);
	sdp_credit_thaw(&c);
	assert_true(sdp_credit_must_update(&c, false));
	m = stamp(&c, SDP_SEND_SM, 0);
	assert_int_equal(m.mseq_ack, 3);
	assert_false(sdp_credit_must_update(&c, false));
	sdp_credit_thaw(&c);
	assert_false(sdp_credit_must_update(&c, false));
}

/* While it holds, the peer may come to think that it has less than nothing. */
static void credit_bears_a_peer_that_holds_its_acknowledgement(void **state)
{
	struct sdp_credit c;

	sdp_credit_init(&c, 1, true, 8, 4);
	for (int i = 0; i < 2; i++)
		stamp(&c, SDP_DATA, 1);
	assert_int_equal(receive(&c, 0, 1), 0);
	assert_int_equal(sdp_credit_left(&c), 0);
	assert_int_equal(receive(&c, 2, 4), 0);
	assert_int_equal(sdp_credit_left(&c), 4);
	/* And so for ours: what was told sinks, and comes up again. */
	sdp_credit_init(&c, 1, true, 4, 64);
	for (int i = 0; i < 3; i++)
		receive_data(&c);
	sdp_credit_freeze(&c, 1);
	stamp(&c, SDP_DATA, 0);
	sdp_credit_posted(&c, 1);
	assert_true(sdp_credit_must_update(&c, false));
}

/* By the letter of the draft, 0 is both the first number and "nothing yet". */
static void credit_takes_an_ambiguous_0_for_nothing(void **state)
{
	struct sdp_credit c;

	sdp_credit_init(&c, 0, true, 8, 5);
	stamp(&c, SDP_DATA, 1);
	stamp(&c, SDP_DATA, 1);
	assert_int_equal(receive(&c, 0, 5), 0);
	assert_int_equal(sdp_credit_left(&c), 3);
	assert_int_equal(receive(&c, 1, 5), 0);
	assert_int_equal(sdp_credit_left(&c), 5);
	/* A peer that takes it for the first does not hear of one buffer. */
	sdp_credit_init(&c, 0, true, 8, 5);
	assert_int_equal(stamp(&c, SDP_DATA, 0).bufs, 8);
	assert_int_equal(receive(&c, 0, 5), 0);
	assert_int_equal(stamp(&c, SDP_DATA, 0).bufs, 8);
}

/* ---- two parties and a wire between them ---- */

static uint64_t seed;

static uint32_t dice(uint32_t sides)
{
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(seed >> 33) % sides;
}

#define WIRE 256
struct party {
	struct sdp_credit c;
	uint32_t to_send;  /* messages with payload that the program has written */
	uint32_t unread;   /* buffers that hold payload */
	uint32_t controls; /* messages without payload that must go */
	uint32_t got;
	struct sdp_msg wire[WIRE]; /* under way to the other party */
	uint32_t head, tail;
};

static void put(struct party *p, uint8_t mid, uint32_t payload_len)
{
	struct sdp_msg m = { .mid = mid, .payload_len = payload_len };

	assert_int_equal(sdp_credit_stamp(&p->c, &m), 0);
	p->wire[p->tail++ % WIRE] = m;
	assert_in_range(p->tail - p->head, 0, WIRE);
}

static unsigned send_one(struct party *p)
{
	if (p->controls && sdp_credit_may_send(&p->c, SDP_SEND_SM, 0)) {
		put(p, SDP_SEND_SM, 0);
		p->controls--;
	} else if (p->to_send && sdp_credit_may_send(&p->c, SDP_DATA, 1)) {
		put(p, SDP_DATA, 1);
		p->to_send--;
	} else if (sdp_credit_must_update(&p->c, p->to_send != 0)) {
		put(p, SDP_DATA, 0);
	} else {
		return 0;
	}
	return 1;
}

/* The first message under way arrives. Over iWARP this must find a buffer, or all is lost. */
static unsigned deliver_one(struct party *from, struct party *to)
{
	const struct sdp_msg *m = &from->wire[from->head % WIRE];

	if (from->head == from->tail)
		return 0;
	assert_true(from->tail - from->head <= to->c.posted);
	assert_int_equal(sdp_credit_received(&to->c, m), 0);
	from->head++;
	if (m->payload_len)
		to->unread++;
	else
		sdp_credit_posted(&to->c, 1);
	to->got += m->payload_len;
	return 1;
}

static unsigned read_one(struct party *p)
{
	if (!p->unread)
		return 0;
	p->unread--;
	sdp_credit_posted(&p->c, 1);
	return 1;
}

/* Nobody writes any more and both read: everything must arrive, and then there must be rest. */
static void run_to_the_end(struct party *a, struct party *b)
{
	unsigned steps = 0;

	while (send_one(a) | send_one(b) | deliver_one(a, b) | deliver_one(b, a) | read_one(a) |
	       read_one(b))
		assert_true(++steps < 100000);
	assert_int_equal(a->to_send | b->to_send, 0);
	assert_int_equal(a->controls | b->controls, 0);
}

static void play(uint32_t first, uint16_t bufs_a, uint16_t bufs_b, uint32_t start)
{
	static struct party p[2];
	uint32_t wrote[2] = { 0, 0 };

	memset(p, 0, sizeof(p));
	sdp_credit_init(&p[0].c, first, true, bufs_a, bufs_b);
	sdp_credit_init(&p[1].c, first, false, bufs_b, bufs_a);
	for (int i = 0; start && i < 2; i++) {
		/* As if so many messages had gone both ways already. */
		p[i].c.tx_next = p[i].c.rx_next = start;
		p[i].c.peer_ack = start - 1;
		p[i].c.told += start - first;
		p[i].c.peer_acked = p[i].c.told_acked = p[i].c.rx_any = true;
	}
	for (int step = 0; step < 400; step++) {
		unsigned who = dice(2);
		uint32_t n;

		switch (dice(6)) {
		case 0:
			n = dice(4);
			p[who].to_send += n;
			wrote[who] += n;
			break;
		case 1: p[who].controls += dice(8) == 0; break;
		case 2: read_one(&p[who]); break;
		case 3: deliver_one(&p[who], &p[!who]); break;
		default: send_one(&p[who]); break;
		}
	}
	run_to_the_end(&p[0], &p[1]);
	assert_int_equal(p[1].got, wrote[0]);
	assert_int_equal(p[0].got, wrote[1]);
}

static void credit_never_overruns_and_never_deadlocks(void **state)
{
	for (unsigned round = 0; round < 4000; round++) {
		seed = round;
		play(round % 2, (uint16_t)(SDP_BUFS_MIN + dice(round % 3 ? 4 : 60)),
		     (uint16_t)(SDP_BUFS_MIN + dice(round % 5 ? 4 : 60)), 0);
	}
}

static void credit_numbers_may_wrap_around(void **state)
{
	for (unsigned round = 0; round < 2000; round++) {
		seed = round;
		play(round % 2, (uint16_t)(SDP_BUFS_MIN + dice(6)),
		     (uint16_t)(SDP_BUFS_MIN + dice(6)), 0u - dice(40) - 1);
	}
	assert_true(sdp_seq_before(0xffffffff, 0));
	assert_false(sdp_seq_before(0, 0xffffffff));
	assert_false(sdp_seq_before(5, 5));
}

/* The formula as the draft writes it, beside ours. A peer of that kind must not overrun us. */
static void credit_survives_a_peer_that_counts_by_the_letter(void **state)
{
	for (unsigned round = 0; round < 2000; round++) {
		struct sdp_credit us;
		uint32_t bufs, peer_last = 0xffffffff, peer_credits, in_flight = 0;

		seed = round;
		bufs = SDP_BUFS_MIN + dice(5);
		sdp_credit_init(&us, 0, true, (uint16_t)bufs, 60000);
		peer_credits = bufs;
		for (int step = 0; step < 60; step++) {
			struct sdp_msg m = { .mid = SDP_DATA, .payload_len = 1, .bufs = 60000 };

			if (dice(3) && peer_credits) {
				peer_last++;
				peer_credits--;
				in_flight++;
			} else if (dice(2)) {
				m = stamp(&us, SDP_DATA, 0);
				peer_credits = m.bufs - (peer_last - m.mseq_ack);
				if (peer_last == 0xffffffff)
					peer_credits = bufs;
				assert_true(peer_credits + in_flight <= us.posted);
			} else if (in_flight) {
				m.mseq = us.rx_next;
				m.mseq_ack = us.tx_next ? us.tx_next - 1 : 0;
				assert_int_equal(sdp_credit_received(&us, &m), 0);
				in_flight--;
				sdp_credit_posted(&us, dice(2));
			}
		}
	}
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(credit_numbers_messages_from_the_first_one_on),
		cmocka_unit_test(credit_is_what_the_peer_posted_less_what_is_under_way),
		cmocka_unit_test(credit_refuses_a_message_out_of_order),
		cmocka_unit_test(credit_refuses_an_acknowledgement_of_the_future_or_the_past),
		cmocka_unit_test(credit_refuses_a_message_without_a_buffer),
		cmocka_unit_test(credit_rule_keeps_two_back),
		cmocka_unit_test(credit_bufs_stop_at_what_16_bits_can_say),
		cmocka_unit_test(credit_update_is_due_when_the_peer_can_send_no_payload),
		cmocka_unit_test(credit_update_is_due_when_a_third_came_free),
		cmocka_unit_test(
			credit_update_is_due_later_if_the_buffer_came_free_behind_another_message),
		cmocka_unit_test(credit_update_is_not_answered_for_ever_with_three_buffers),
		cmocka_unit_test(credit_reminds_a_peer_of_three_buffers),
		cmocka_unit_test(credit_holds_its_acknowledgement_below_a_cancel),
		cmocka_unit_test(credit_bears_a_peer_that_holds_its_acknowledgement),
		cmocka_unit_test(credit_takes_an_ambiguous_0_for_nothing),
		cmocka_unit_test(credit_never_overruns_and_never_deadlocks),
		cmocka_unit_test(credit_numbers_may_wrap_around),
		cmocka_unit_test(credit_survives_a_peer_that_counts_by_the_letter),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
