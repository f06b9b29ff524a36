/* SPDX-License-Identifier: MIT */
/* Modes, adverts and the answers of an end that only copies (OS-18, OS-20). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "wire/sdp_half.h"

static struct sdp_halves h;
static uint32_t mseq;

static int fresh(void **state)
{
	sdp_half_init(&h, 4);
	mseq = 1;
	return 0;
}

static enum sdp_verdict get(struct sdp_msg m)
{
	const char *why = NULL;
	enum sdp_verdict v;

	m.mseq = mseq++;
	v = sdp_half_received(&h, &m, &why);
	assert_int_equal(v == SDP_VIOLATION, why != NULL);
	return v;
}

/* What comes of it, on a copy of the state. */
static enum sdp_verdict would(struct sdp_msg m)
{
	struct sdp_halves copy = h;

	return sdp_half_received(&copy, &m, NULL);
}

static void sent(struct sdp_msg m)
{
	sdp_half_sent(&h, &m);
}

#define DATA(n)     ((struct sdp_msg) { .mid = SDP_DATA, .payload_len = (n) })
#define PLAIN(what) ((struct sdp_msg) { .mid = (what) })
#define SRC(len, n) \
	((struct sdp_msg) { .mid = SDP_SRC_AVAIL, .advert_len = (len), .payload_len = (n) })
#define SINK(seen, n)                               \
	((struct sdp_msg) { .mid = SDP_SINK_AVAIL,  \
			    .advert_len = 9999,     \
			    .non_discards = (seen), \
			    .payload_len = (n) })
#define MODE(to, to_src) \
	((struct sdp_msg) { .mid = SDP_MODE_CHANGE, .mode = (to), .to_source = (to_src) })

/* The send half into Pipelined, as its master may. */
static void go_pipelined(void)
{
	assert_true(sdp_half_may_change(&h, SDP_PIPELINED, false));
	sent(MODE(SDP_PIPELINED, false));
}

static void half_begins_in_combined_with_nothing_due(void **state)
{
	assert_int_equal(h.in.mode, SDP_COMBINED);
	assert_int_equal(h.out.mode, SDP_COMBINED);
	assert_int_equal(sdp_half_due(&h), SDP_DATA);
	assert_false(sdp_half_unfinished(&h));
	sdp_half_init(&h, 65535);
	assert_int_equal(h.max_adverts, SDP_ADVERTS_MAX);
}

static void half_counts_payload_but_not_credit_updates(void **state)
{
	assert_int_equal(get(DATA(5)), SDP_OK);
	assert_int_equal(get(DATA(0)), SDP_OK);
	assert_int_equal(get(SRC(10, 1)), SDP_ANSWER);
	assert_int_equal(h.in.non_discards, 2);
	sent(DATA(5));
	sent(DATA(0));
	sent(DATA(1));
	assert_int_equal(h.out.pnd, 2);
}

static void half_answers_src_avail_with_send_sm_and_gets_the_rest_as_data(void **state)
{
	assert_int_equal(get(SRC(100, 10)), SDP_ANSWER);
	assert_int_equal(sdp_half_due(&h), SDP_SEND_SM);
	/* Until then the source sends nothing more. */
	assert_int_equal(would(DATA(1)), SDP_VIOLATION);
	assert_int_equal(would(DATA(0)), SDP_OK);
	sent(PLAIN(SDP_SEND_SM));
	assert_int_equal(sdp_half_due(&h), SDP_DATA);
	assert_int_equal(h.in.owed, 90);
	assert_true(sdp_half_unfinished(&h));
	assert_int_equal(get(DATA(60)), SDP_OK);
	/* Not another advert before all of it is here. */
	assert_int_equal(would(SRC(100, 1)), SDP_VIOLATION);
	/* The rest may share its message with what follows. */
	assert_int_equal(get(DATA(50)), SDP_OK);
	assert_false(sdp_half_unfinished(&h));
	assert_int_equal(get(SRC(100, 1)), SDP_ANSWER);
}

static void half_refuses_src_avail_against_the_rules_of_combined(void **state)
{
	assert_int_equal(would(SRC(100, 0)), SDP_VIOLATION);
	assert_int_equal(would(SRC(100, 100)), SDP_VIOLATION);
	assert_int_equal(would(SRC(100, 101)), SDP_VIOLATION);
	assert_int_equal(get(SRC(100, 99)), SDP_ANSWER);
	assert_int_equal(get(SRC(100, 99)), SDP_VIOLATION);
}

static void half_refuses_src_avail_in_buffered(void **state)
{
	assert_int_equal(get(MODE(SDP_BUFFERED, false)), SDP_OK);
	assert_int_equal(get(SRC(100, 1)), SDP_VIOLATION);
}

static void half_answers_pipelined_src_avails_oldest_first(void **state)
{
	assert_int_equal(get(MODE(SDP_PIPELINED, false)), SDP_OK);
	assert_int_equal(would(SRC(100, 1)), SDP_VIOLATION);
	for (uint32_t len = 10; len <= 40; len += 10)
		assert_int_equal(get(SRC(len, 0)), SDP_ANSWER);
	/* Four was what our Hello allowed. */
	assert_int_equal(would(SRC(50, 0)), SDP_VIOLATION);
	sent(PLAIN(SDP_SEND_SM));
	assert_int_equal(h.in.owed, 10);
	/* Later adverts stay valid: no octet but those asked for. */
	assert_int_equal(would(DATA(11)), SDP_VIOLATION);
	assert_int_equal(get(DATA(10)), SDP_OK);
	assert_int_equal(get(SRC(50, 0)), SDP_ANSWER);
	for (int i = 0; i < 4; i++) {
		assert_int_equal(sdp_half_due(&h), SDP_SEND_SM);
		sent(PLAIN(SDP_SEND_SM));
	}
	assert_int_equal(sdp_half_due(&h), SDP_DATA);
	assert_int_equal(h.in.owed, 20 + 30 + 40 + 50);
	/* One more than is due changes nothing. */
	sent(PLAIN(SDP_SEND_SM));
	assert_int_equal(h.in.owed, 140);
}

static void half_answers_a_src_avail_cancel_with_one_send_sm(void **state)
{
	assert_int_equal(get(PLAIN(SDP_SRC_AVAIL_CANCEL)), SDP_IGNORE);
	get(MODE(SDP_PIPELINED, false));
	get(SRC(10, 0));
	get(SRC(20, 0));
	get(SRC(30, 0));
	sent(PLAIN(SDP_SEND_SM));
	assert_int_equal(get(PLAIN(SDP_SRC_AVAIL_CANCEL)), SDP_ANSWER);
	assert_int_equal(would(PLAIN(SDP_SRC_AVAIL_CANCEL)), SDP_VIOLATION);
	assert_int_equal(would(SRC(10, 0)), SDP_VIOLATION);
	/* What the first SendSm asked for still comes; no more. */
	assert_int_equal(would(DATA(11)), SDP_VIOLATION);
	assert_int_equal(get(DATA(10)), SDP_OK);
	assert_int_equal(sdp_half_due(&h), SDP_SEND_SM);
	sent(PLAIN(SDP_SEND_SM));
	assert_int_equal(sdp_half_due(&h), SDP_DATA);
	/* The dropped octets come as the source likes. */
	assert_int_equal(h.in.owed, 0);
	assert_int_equal(get(DATA(1000)), SDP_OK);
}

static void half_ignores_a_cancel_that_crossed_its_send_sm(void **state)
{
	get(SRC(10, 1));
	sent(PLAIN(SDP_SEND_SM));
	assert_int_equal(get(PLAIN(SDP_SRC_AVAIL_CANCEL)), SDP_IGNORE);
	assert_int_equal(h.in.owed, 9);
}

static void half_refuses_sink_avail_outside_pipelined(void **state)
{
	assert_int_equal(get(SINK(0, 0)), SDP_VIOLATION);
}

/* The example of the draft: two payloads on their way, three adverts that did not see them. */
static void half_discards_stale_sink_avails(void **state)
{
	go_pipelined();
	sent(DATA(1));
	sent(DATA(1));
	assert_int_equal(get(SINK(0, 0)), SDP_IGNORE);
	assert_int_equal(get(SINK(0, 0)), SDP_IGNORE);
	assert_int_equal(h.out.pnd, 0);
	assert_int_equal(get(SINK(0, 0)), SDP_OK);
	assert_int_equal(h.out.sink.count, 1);
}

static void half_spends_a_sink_avail_with_each_payload(void **state)
{
	go_pipelined();
	get(SINK(0, 0));
	get(SINK(0, 0));
	sent(DATA(100));
	sent(DATA(0));
	assert_int_equal(h.out.sink.count, 1);
	assert_int_equal(h.out.pnd, 0);
	sent(DATA(1));
	assert_int_equal(h.out.sink.count, 0);
	sent(DATA(1));
	assert_int_equal(h.out.pnd, 1);
	/* The counter wraps. */
	h.out.pnd = 0;
	assert_int_equal(get(SINK(7, 0)), SDP_IGNORE);
	assert_int_equal(h.out.pnd, 0xffffffff);
}

/* Source and sink by the letter of the rules, a wire between them: adverts never disagree. */
static void half_and_a_sink_agree_on_every_advert(void **state)
{
	uint64_t seed = 1;
	/* The sink's side: its counter, its adverts, and payloads not yet arrived. */
	uint32_t non_discards = 0, adverts = 0, coming = 0;
	struct sdp_msg going[8]; /* SinkAvails not yet arrived */
	unsigned n_going = 0;

	sdp_half_init(&h, SDP_ADVERTS_MAX);
	go_pipelined();
	for (int step = 0; step < 20000; step++) {
		seed = seed * 6364136223846793005u + 1442695040888963407u;
		switch (seed >> 60 & 3) {
		case 0:
			if (n_going < 8 && adverts < SDP_ADVERTS_MAX) {
				going[n_going++] = SINK(non_discards, 0);
				adverts++;
			}
			break;
		case 1:
			if (n_going) {
				assert_int_not_equal(get(going[0]), SDP_VIOLATION);
				memmove(going, going + 1, --n_going * sizeof(going[0]));
			}
			break;
		case 2:
			if (coming < 4) {
				sent(DATA(1));
				coming++;
			}
			break;
		default:
			if (!coming)
				break;
			coming--;
			if (adverts)
				adverts--;
			else
				non_discards++;
			break;
		}
		if (!coming && !n_going)
			assert_int_equal(h.out.sink.count, adverts);
	}
	assert_int_not_equal(non_discards, 0);
}

static void half_takes_the_payload_of_a_transaction(void **state)
{
	go_pipelined();
	assert_int_equal(get(SINK(0, 7)), SDP_OK);
	assert_int_equal(h.in.non_discards, 1);
	sent(DATA(1));
	sent(DATA(1));
	/* Stale: the advert is of no use, the payload is. */
	assert_int_equal(get(SINK(0, 7)), SDP_IGNORE);
	assert_int_equal(h.in.non_discards, 2);
	get(SRC(100, 1));
	assert_int_equal(get(SINK(0, 7)), SDP_VIOLATION);
}

static void half_counts_both_kinds_of_adverts_together(void **state)
{
	go_pipelined();
	get(MODE(SDP_PIPELINED, false));
	for (int i = 0; i < 2; i++) {
		assert_int_equal(get(SRC(10, 0)), SDP_ANSWER);
		assert_int_equal(get(SINK(0, 0)), SDP_OK);
	}
	assert_int_equal(would(SRC(10, 0)), SDP_VIOLATION);
	assert_int_equal(would(SINK(0, 0)), SDP_VIOLATION);
}

static void half_answers_a_sink_avail_cancel_once(void **state)
{
	assert_int_equal(get(PLAIN(SDP_SINK_AVAIL_CANCEL)), SDP_IGNORE);
	go_pipelined();
	get(SINK(0, 0));
	get(SINK(0, 0));
	assert_int_equal(get(PLAIN(SDP_SINK_AVAIL_CANCEL)), SDP_ANSWER);
	assert_int_equal(sdp_half_due(&h), SDP_SINK_CANCEL_ACK);
	assert_int_equal(would(PLAIN(SDP_SINK_AVAIL_CANCEL)), SDP_VIOLATION);
	assert_int_equal(would(SINK(0, 0)), SDP_VIOLATION);
	sent(PLAIN(SDP_SINK_CANCEL_ACK));
	assert_int_equal(sdp_half_due(&h), SDP_DATA);
	assert_int_equal(get(SINK(0, 0)), SDP_OK);
	/* All spent when the cancel comes: nothing to say. */
	sent(DATA(1));
	assert_int_equal(get(PLAIN(SDP_SINK_AVAIL_CANCEL)), SDP_IGNORE);
}

/* By whom, from where, to where. All other pairs are violations. */
static void half_takes_four_mode_changes(void **state)
{
	for (uint8_t in = 0; in < 3; in++)
		for (uint8_t out = 0; out < 3; out++)
			for (uint8_t to = 0; to < 3; to++) {
				bool good = (in == SDP_COMBINED && to != SDP_COMBINED) ||
					    (in == SDP_PIPELINED && to == SDP_COMBINED);

				fresh(NULL);
				h.in.mode = in;
				h.out.mode = out;
				assert_int_equal(would(MODE(to, false)),
						 good ? SDP_OK : SDP_VIOLATION);
				assert_int_equal(would(MODE(to, true)),
						 out == SDP_BUFFERED && to == SDP_COMBINED
							 ? SDP_OK
							 : SDP_VIOLATION);
				/* And the same seen from the other side. */
				assert_int_equal(sdp_half_may_change(&h, to, true),
						 in == SDP_BUFFERED && to == SDP_COMBINED);
				good = (out == SDP_COMBINED && to != SDP_COMBINED) ||
				       (out == SDP_PIPELINED && to == SDP_COMBINED);
				assert_int_equal(sdp_half_may_change(&h, to, false), good);
			}
}

static void half_refuses_buffered_before_all_adverts_are_processed(void **state)
{
	get(SRC(10, 1));
	assert_int_equal(would(MODE(SDP_BUFFERED, false)), SDP_VIOLATION);
	/* An open advert may stay when going to Pipelined. */
	assert_int_equal(would(MODE(SDP_PIPELINED, false)), SDP_OK);
	get(PLAIN(SDP_SRC_AVAIL_CANCEL));
	assert_int_equal(would(MODE(SDP_BUFFERED, false)), SDP_VIOLATION);
	sent(PLAIN(SDP_SEND_SM));
	assert_int_equal(get(MODE(SDP_BUFFERED, false)), SDP_OK);
	assert_int_equal(h.in.mode, SDP_BUFFERED);
	assert_true(sdp_half_may_change(&h, SDP_COMBINED, true));
	sent(MODE(SDP_COMBINED, true));
	assert_int_equal(h.in.mode, SDP_COMBINED);
	sent(MODE(SDP_BUFFERED, false));
	assert_int_equal(get(MODE(SDP_COMBINED, true)), SDP_OK);
	assert_int_equal(h.out.mode, SDP_COMBINED);
}

static void half_ignores_late_sink_avails_until_the_sink_knows(void **state)
{
	struct sdp_msg m = MODE(SDP_COMBINED, false), late = SINK(0, 3);

	go_pipelined();
	get(SINK(0, 0));
	m.mseq = 0xffffffff;
	sent(m);
	assert_int_equal(h.out.sink.count, 0);
	late.mseq_ack = 0xfffffffe;
	assert_int_equal(get(late), SDP_IGNORE);
	assert_int_equal(h.in.non_discards, 1);
	assert_false(sdp_half_may_change(&h, SDP_PIPELINED, false));
	/* The comparison is modular. */
	late.mseq_ack = 0;
	assert_int_equal(get(late), SDP_VIOLATION);
	assert_true(sdp_half_may_change(&h, SDP_PIPELINED, false));
}

static void half_refuses_answers_without_a_question(void **state)
{
	static const uint8_t wrong[] = { SDP_RDMA_RD_COMPL, SDP_RDMA_WR_COMPL, SDP_SUSP_COMM_ACK };
	static const uint8_t harmless[] = { SDP_SEND_SM, SDP_SINK_CANCEL_ACK, SDP_CH_RCV_BUF_ACK };

	for (unsigned i = 0; i < sizeof(wrong); i++)
		assert_int_equal(would(PLAIN(wrong[i])), SDP_VIOLATION);
	for (unsigned i = 0; i < sizeof(harmless); i++)
		assert_int_equal(would(PLAIN(harmless[i])), SDP_IGNORE);
	assert_int_equal(would(PLAIN(SDP_ABORT_CONN)), SDP_OK);
}

static void half_answers_a_resize_once(void **state)
{
	struct sdp_msg ask = { .mid = SDP_CH_RCV_BUF, .size = 32784 };

	assert_int_equal(get(ask), SDP_ANSWER);
	assert_int_equal(h.resize_size, 32784);
	assert_int_equal(would(ask), SDP_VIOLATION);
	assert_int_equal(sdp_half_due(&h), SDP_CH_RCV_BUF_ACK);
	sent(PLAIN(SDP_CH_RCV_BUF_ACK));
	assert_int_equal(get(ask), SDP_ANSWER);
}

static void half_answers_a_suspend_last_and_hears_nothing_after_it(void **state)
{
	struct sdp_msg m = { .mid = SDP_SUSP_COMM, .port = 8080 };

	get(PLAIN(SDP_CH_RCV_BUF));
	assert_int_equal(get(m), SDP_ANSWER);
	assert_int_equal(sdp_half_due(&h), SDP_CH_RCV_BUF_ACK);
	sent(PLAIN(SDP_CH_RCV_BUF_ACK));
	assert_int_equal(sdp_half_due(&h), SDP_SUSP_COMM_ACK);
	sent(PLAIN(SDP_SUSP_COMM_ACK));
	assert_int_equal(sdp_half_due(&h), SDP_DATA);
	assert_int_equal(get(DATA(0)), SDP_VIOLATION);
}

static void half_refuses_an_end_before_all_octets(void **state)
{
	assert_int_equal(would(PLAIN(SDP_DISCONN)), SDP_OK);
	get(SRC(10, 1));
	assert_int_equal(would(PLAIN(SDP_DISCONN)), SDP_VIOLATION);
	assert_int_equal(would(PLAIN(SDP_SUSP_COMM)), SDP_VIOLATION);
	sent(PLAIN(SDP_SEND_SM));
	assert_int_equal(would(PLAIN(SDP_DISCONN)), SDP_VIOLATION);
	get(DATA(9));
	assert_int_equal(get(PLAIN(SDP_DISCONN)), SDP_OK);
}

static void half_counts_urgent_octets_announced_and_come(void **state)
{
	struct sdp_msg m = DATA(0);

	m.flags = SDP_FLAG_OOB_PEND;
	get(m);
	assert_int_equal(h.in.oob_pending, 1);
	m = DATA(3);
	m.flags = SDP_FLAG_OOB_PRES;
	get(m);
	assert_int_equal(h.in.oob_pending, 0);
	/* Never announced: still an urgent octet. */
	assert_int_equal(get(m), SDP_OK);
	assert_int_equal(h.in.oob_pending, 0);
	m.flags |= SDP_FLAG_OOB_PEND;
	get(m);
	assert_int_equal(h.in.oob_pending, 0);
}

#define T(f) cmocka_unit_test_setup(f, fresh)

int main(void)
{
	static const struct CMUnitTest tests[] = {
		T(half_begins_in_combined_with_nothing_due),
		T(half_counts_payload_but_not_credit_updates),
		T(half_answers_src_avail_with_send_sm_and_gets_the_rest_as_data),
		T(half_refuses_src_avail_against_the_rules_of_combined),
		T(half_refuses_src_avail_in_buffered),
		T(half_answers_pipelined_src_avails_oldest_first),
		T(half_answers_a_src_avail_cancel_with_one_send_sm),
		T(half_ignores_a_cancel_that_crossed_its_send_sm),
		T(half_refuses_sink_avail_outside_pipelined),
		T(half_discards_stale_sink_avails),
		T(half_spends_a_sink_avail_with_each_payload),
		T(half_and_a_sink_agree_on_every_advert),
		T(half_takes_the_payload_of_a_transaction),
		T(half_counts_both_kinds_of_adverts_together),
		T(half_answers_a_sink_avail_cancel_once),
		T(half_takes_four_mode_changes),
		T(half_refuses_buffered_before_all_adverts_are_processed),
		T(half_ignores_late_sink_avails_until_the_sink_knows),
		T(half_refuses_answers_without_a_question),
		T(half_answers_a_resize_once),
		T(half_answers_a_suspend_last_and_hears_nothing_after_it),
		T(half_refuses_an_end_before_all_octets),
		T(half_counts_urgent_octets_announced_and_come),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
