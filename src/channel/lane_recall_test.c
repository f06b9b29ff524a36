/* SPDX-License-Identifier: MIT */
/* What can be seen of a lane, how octets are taken back, and what is refused. */
#include "channel/lane_test.h"

/* --- seeing without taking */

static void lane_sees_behind_carrier_when_ring_goes_on(void **st)
{
	uint64_t w;

	assert_int_equal(lane_rx_look(&rx, &w, &limit), LANE_FROM_OPEN);
	assert_int_equal(lane_rx_behind(&rx, w), 0);
	put_carrier(4);
	put(10, false);
	assert_int_equal(lane_rx_look(&rx, &w, &limit), LANE_FROM_CARRIER);
	assert_int_equal(lane_rx_behind(&rx, w), 10);
	leave();
	put_carrier(1);
	put(20, false);
	assert_int_equal(lane_rx_behind(&rx, w), 10);
	assert_int_equal(lane_rx_look(&rx, &w, &limit), LANE_FROM_CARRIER);
	assert_int_equal(limit, 4);
	assert_int_equal(lane_rx_behind(&rx, w), 10); /* up to the turn, not 30 */
	lane_rx_taken(&rx, 2, false);
	assert_int_equal(lane_rx_behind(&rx, w), 10);
}

static void lane_hints_what_is_ready_when_nobody_took_a_turn(void **st)
{
	assert_int_equal(lane_rx_ready(&rx), 0);
	assert_false(lane_rx_stirs(&rx));
	put(10, false);
	assert_true(lane_rx_stirs(&rx));
	assert_int_equal(lane_rx_ready(&rx), 10);
	take(4, 10);
	assert_int_equal(lane_rx_ready(&rx), 6);
	leave();
	put_carrier(3);
	put(20, false);
	assert_int_equal(lane_rx_ready(&rx), 6);
	take(6, 6);
	assert_int_equal(lane_rx_ready(&rx), 0); /* the kernel knows of those */
	assert_true(lane_rx_stirs(&rx));
	take_carrier(2, 3);
	assert_int_equal(lane_rx_ready(&rx), 0);
	take_carrier(1, 1);
	assert_int_equal(lane_rx_ready(&rx), 20);
	take(20, 20);
	assert_int_equal(lane_rx_ready(&rx), 0);
	assert_false(lane_rx_stirs(&rx));
}

/* A sender that left a full ring and found room at once makes two turns at one place. */
static void lane_hints_what_is_ready_when_nothing_went_by_carrier(void **st)
{
	put(10, false);
	take(10, 10);
	leave();
	put(20, false);
	assert_int_equal(turns_now(), 3);
	assert_int_equal(lane_rx_ready(&rx), 20);
	take(20, 20);
}

/* --- taking back */

static void lane_gives_back_what_is_unread_when_recalled(void **st)
{
	struct iovec piece[2];

	put_carrier(4);
	put(100, false);
	take_carrier(4, 4);
	take(30, 100);
	set_flag(LANE_GONE | LANE_RECALL);
	assert_int_equal(look(1), LANE_LEAVE);
	assert_int_equal(lane_tx_recall(&tx, piece), 1);
	assert_int_equal(piece[0].iov_len, 70);
	assert_ptr_equal(piece[0].iov_base, ring + 30);
	for (int i = 0; i < 70; i++)
		assert_int_equal(ring[30 + i], octet_at(1034u + (unsigned)i));
	assert_int_equal(tx.pos, 1034);
	assert_false(atomic_load(&dir.word) & LANE_RECALL);
	assert_true(atomic_load(&dir.word) & LANE_GONE);
	assert_int_equal((uint32_t)atomic_load(&dir.word), 30);
	assert_int_equal(look(1), LANE_CARRIER);
	assert_int_equal(see(), LANE_FROM_OPEN);
	assert_int_equal(rx.pos, tx.pos);
	assert_int_equal(lane_rx_ready(&rx), 0);
}

static void lane_gives_back_two_pieces_when_they_wrap(void **st)
{
	struct iovec piece[2];

	put(LANE_RING - 10, false);
	take(LANE_RING - 20, LANE_RING - 10);
	put(15, false);
	set_flag(LANE_RECALL | LANE_GONE);
	assert_int_equal(lane_tx_recall(&tx, piece), 2);
	assert_ptr_equal(piece[0].iov_base, ring + LANE_RING - 20);
	assert_int_equal(piece[0].iov_len, 20);
	assert_ptr_equal(piece[1].iov_base, ring);
	assert_int_equal(piece[1].iov_len, 5);
	assert_int_equal(see(), LANE_FROM_OPEN);
}

static void lane_gives_back_nothing_when_all_is_read(void **st)
{
	struct iovec piece[2];

	set_flag(LANE_RECALL | LANE_GONE);
	assert_int_equal(lane_tx_recall(&tx, piece), 0); /* on the carrier already */
	assert_int_equal(turns_now(), 0);
	begin(st);
	put(10, false);
	take(10, 10);
	set_flag(LANE_RECALL | LANE_GONE);
	assert_int_equal(lane_tx_recall(&tx, piece), 0);
	assert_int_equal(turns_now(), 2);
	assert_int_equal(tx.pos, 1010);
	assert_int_equal(see(), LANE_FROM_OPEN);
}

static void lane_gives_back_octets_when_their_bell_is_not_heard(void **st)
{
	struct iovec piece[2];

	put(10, false);
	take(10, 10);
	assert_true(arm());
	put(10, true);
	set_flag(LANE_RECALL | LANE_GONE);
	assert_int_equal(lane_tx_recall(&tx, piece), 1);
	assert_int_equal(piece[0].iov_len, 9);
	assert_int_equal(tx.pos, 1011);
	/* The bell stands on the carrier, and behind it now the nine. */
	take_carrier(1, 1);
	assert_int_equal(see(), LANE_FROM_OPEN);
}

static void lane_keeps_octets_when_later_ones_are_on_carrier(void **st)
{
	struct iovec piece[2];

	put(100, false);
	take(40, 100);
	leave();
	put_carrier(5);
	set_flag(LANE_RECALL | LANE_GONE);
	assert_int_equal(lane_tx_recall(&tx, piece), -2); /* out of the ring */
	assert_int_equal(tx.pos, 1105);
	begin(st);
	put(100, false);
	leave();
	put_carrier(5);
	put(50, false);
	set_flag(LANE_RECALL | LANE_GONE);
	assert_int_equal(lane_tx_recall(&tx, piece), -2); /* in it again */
	assert_int_equal(tx.pos, 1155);
	take(100, 100);
	take_carrier(5, 5);
	take(20, 50);
	/* Now those that are left stand together. */
	assert_int_equal(lane_tx_recall(&tx, piece), 1);
	assert_int_equal(piece[0].iov_len, 30);
	assert_int_equal(see(), LANE_FROM_OPEN);
	assert_int_equal(rx.pos, tx.pos);
}

static void lane_keeps_still_when_receiver_takes_octets_back(void **st)
{
	struct iovec piece[2];

	put(100, false);
	take(30, 100);
	assert_int_equal(look(5), LANE_RING_OK);
	set_flag(LANE_GONE | LANE_RECALL);
	assert_int_equal(lane_rx_take_back(&rx, piece), 1);
	assert_ptr_equal(piece[0].iov_base, ring + 30);
	assert_int_equal(piece[0].iov_len, 70);
	assert_false(lane_tx_publish(&tx, word, 5, false));
	assert_false(lane_tx_leave(&tx, word));
	assert_int_equal(look(5), LANE_HELD);
	lane_rx_taken_back(&rx, true);
	assert_int_equal(look(5), LANE_CARRIER);
	assert_int_equal(tx.pos, 1100); /* they went by the carrier */
	assert_int_equal(turns_now(), 2);
	assert_int_equal(see(), LANE_FROM_OPEN);
	lane_rx_taken(&rx, 70, false);
	assert_int_equal(rx.pos, tx.pos);
	assert_int_equal(look(5), LANE_CARRIER);
}

static void lane_goes_on_when_receiver_could_not_take_back(void **st)
{
	struct iovec piece[2];

	put(100, false);
	take(30, 100);
	set_flag(LANE_GONE | LANE_RECALL);
	assert_int_equal(lane_rx_take_back(&rx, piece), 1);
	lane_rx_taken_back(&rx, false);
	assert_int_equal(look(5), LANE_LEAVE);
	leave();
	put_carrier(5);
	take(70, 70);
	assert_int_equal(see(), LANE_FROM_OPEN);
}

static void lane_refuses_to_take_back_when_order_would_be_lost(void **st)
{
	struct iovec piece[2];

	set_flag(LANE_GONE | LANE_RECALL);
	assert_int_equal(lane_rx_take_back(&rx, piece), -1); /* on the carrier */
	begin(st);
	put(100, false);
	assert_int_equal(see(), LANE_FROM_RING);
	assert_int_equal(lane_rx_take_back(&rx, piece), -1); /* not asked for */
	leave();
	put_carrier(3);
	set_flag(LANE_GONE | LANE_RECALL);
	assert_int_equal(lane_rx_take_back(&rx, piece), -1); /* more is on the carrier */
	begin(st);
	put(10, false);
	take(10, 10);
	set_flag(LANE_GONE | LANE_RECALL);
	assert_int_equal(lane_rx_take_back(&rx, piece), -1); /* nothing there */
	begin(st);
	put(10, false);
	assert_int_equal(see(), LANE_FROM_RING);
	set_flag(LANE_RECALL);
	atomic_fetch_add(&dir.word, LANE_RING);
	assert_int_equal(lane_rx_take_back(&rx, piece), -1); /* nonsense */
}

static void sender_is_told_broken_when_more_was_taken_back_than_was_there(void **st)
{
	put(100, false);
	take(30, 100);
	/* Tail, turns: as if 71 octets had been sent again. */
	atomic_store(&dir.word, LANE_ATTACHED | LANE_TAKEN | 2 * LANE_TURN_ONE | 29);
	assert_int_equal(look(5), LANE_BROKEN);
	atomic_store(&dir.word, LANE_ATTACHED | LANE_TAKEN | 2 * LANE_TURN_ONE | 101);
	assert_int_equal(look(5), LANE_BROKEN);
	atomic_store(&dir.word, LANE_ATTACHED | LANE_TAKEN | 1 * LANE_TURN_ONE | 30);
	assert_int_equal(look(5), LANE_BROKEN);
	atomic_store(&dir.word, LANE_ATTACHED | LANE_TAKEN | LANE_GONE | 2 * LANE_TURN_ONE | 30);
	assert_int_equal(look(5), LANE_CARRIER);
}

static void lane_wakes_sender_when_it_sleeps_and_half_is_free(void **st)
{
	put(LANE_RING, false);
	assert_false(lane_rx_must_wake(&rx));
	atomic_store(&dir.tx_sleeps, 1);
	take(HALF - 1, LANE_RING);
	assert_false(lane_rx_must_wake(&rx));
	take(1, HALF + 1);
	assert_true(lane_rx_must_wake(&rx));
	assert_false(lane_rx_must_wake(&rx)); /* once */
	assert_int_equal(atomic_load(&dir.tx_sleeps), 0);
}

/* --- nonsense */

static void sender_is_told_broken_when_word_is_not_its_own(void **st)
{
	put(10, false);
	atomic_fetch_add(&dir.word, 1);
	assert_int_equal(look(1), LANE_BROKEN);
	atomic_fetch_sub(&dir.word, 1);
	assert_int_equal(look(1), LANE_RING_OK);
	atomic_fetch_add(&dir.word, LANE_TURN_ONE);
	assert_int_equal(look(1), LANE_BROKEN);
	atomic_store(&dir.word, 0);
	assert_int_equal(look(1), LANE_BROKEN);
}

static void sender_is_told_broken_when_head_is_beyond_tail(void **st)
{
	put(100, false);
	atomic_store(&dir.head, 101);
	assert_int_equal(look(LANE_RING), LANE_BROKEN);
	assert_int_equal(lane_tx_unread(&tx), UINT32_MAX);
	atomic_store(&dir.head, 100);
	assert_int_equal(look(LANE_RING), LANE_RING_OK);
}

static void sender_is_told_broken_when_head_goes_back(void **st)
{
	put(100, false);
	take(60, 100);
	assert_int_equal(lane_tx_unread(&tx), 40);
	assert_int_equal(look(LANE_RING), LANE_RING_OK);
	assert_int_equal(room, LANE_RING - 40);
	atomic_store(&dir.head, 59);
	assert_int_equal(look(LANE_RING), LANE_BROKEN);
	atomic_store(&dir.head, 0u - LANE_RING);
	assert_int_equal(look(LANE_RING), LANE_BROKEN);
}

static void recall_is_refused_when_shared_state_is_nonsense(void **st)
{
	struct iovec piece[2];

	put(100, false);
	set_flag(LANE_RECALL);
	atomic_store(&dir.head, 101);
	assert_int_equal(lane_tx_recall(&tx, piece), -1);
	atomic_store(&dir.head, 50);
	atomic_fetch_add(&dir.word, 1);
	assert_int_equal(lane_tx_recall(&tx, piece), -1);
	atomic_fetch_add(&dir.word, LANE_TURN_ONE - 1);
	assert_int_equal(lane_tx_recall(&tx, piece), -1);
	assert_int_equal(tx.pos, 1100);
}

static void octets_are_given_back_once_when_both_ends_try(void **st)
{
	struct iovec piece[2];

	put(100, false);
	set_flag(LANE_GONE | LANE_RECALL);
	assert_int_equal(lane_rx_take_back(&rx, piece), 1);
	/* It asks again before it is done. */
	set_flag(LANE_RECALL);
	assert_int_equal(lane_tx_recall(&tx, piece), -3);
	assert_int_equal(tx.pos, 1100);
}

static void lane_is_not_left_when_octets_are_wanted_back(void **st)
{
	const uint64_t flags[] = { LANE_RECALL, LANE_TAKING };

	put(100, false);
	for (size_t i = 0; i < ARRAY_SIZE(flags); i++) {
		atomic_fetch_or(&dir.word, flags[i]);
		assert_false(lane_tx_leave(&tx, atomic_load(&dir.word)));
		assert_int_equal(turns_now(), 1);
		atomic_fetch_and(&dir.word, ~flags[i]);
	}
	leave();
	assert_int_equal(turns_now(), 2);
}

static void receiver_is_told_broken_when_tail_is_too_far(void **st)
{
	put(10, false);
	atomic_store(&dir.word, (atomic_load(&dir.word) & ~0xffffffffull) | (LANE_RING + 1));
	assert_int_equal(see(), LANE_FROM_BROKEN);
	assert_int_equal(lane_rx_behind(&rx, atomic_load(&dir.word)), 0);
	assert_int_equal(lane_rx_ready(&rx), 1); /* a call will find out */
	atomic_fetch_sub(&dir.word, 1);
	assert_int_equal(see(), LANE_FROM_RING);
	lane_rx_taken(&rx, 5, true);
	atomic_store(&dir.word, (atomic_load(&dir.word) & ~0xffffffffull) | 4);
	assert_int_equal(see(), LANE_FROM_BROKEN); /* behind what was taken */
}

static void receiver_is_told_broken_when_turns_are_too_many(void **st)
{
	atomic_fetch_add(&dir.word, LANE_TURN_ONE * (LANE_TURNS + 1));
	assert_int_equal(see(), LANE_FROM_BROKEN);
	begin(st);
	put(3, false);
	take(3, 3);
	atomic_fetch_sub(&dir.word, LANE_TURN_ONE);
	assert_int_equal(see(), LANE_FROM_BROKEN);
}

static void receiver_is_told_broken_when_turn_is_in_the_past(void **st)
{
	put_carrier(5);
	put(10, false);
	take_carrier(3, 5);
	atomic_store(&dir.turn[0], 1002);
	assert_int_equal(see(), LANE_FROM_BROKEN);
}

static void receiver_is_told_broken_when_ring_lacks_what_turn_promises(void **st)
{
	put(10, false);
	leave();
	atomic_store(&dir.turn[1], 1011);
	assert_int_equal(see(), LANE_FROM_BROKEN);
	atomic_store(&dir.turn[1], UINT64_MAX);
	assert_int_equal(see(), LANE_FROM_BROKEN);
}

static void receiver_is_told_broken_when_ring_holds_octets_off_the_stream(void **st)
{
	atomic_fetch_add(&dir.word, 1);
	assert_int_equal(see(), LANE_FROM_BROKEN);
	begin(st);
	put(10, false);
	leave();
	atomic_store(&dir.turn[1], 1009);
	take(9, 9);
	assert_int_equal(see(), LANE_FROM_BROKEN);
}

static void receiver_stays_in_ring_when_base_is_nonsense(void **st)
{
	struct iovec piece[2];

	put(1000, false);
	assert_int_equal(see(), LANE_FROM_RING);
	for (uint32_t base = 1; base; base <<= 1) {
		int n;

		atomic_store(&dir.base, base * 0x9e3779b1u);
		n = lane_rx_pieces(&rx, LANE_RING, piece);
		assert_int_equal(piece[0].iov_len + (n == 2 ? piece[1].iov_len : 0), LANE_RING);
		for (int i = 0; i < n; i++)
			assert_true((uint8_t *)piece[i].iov_base >= ring &&
				    (uint8_t *)piece[i].iov_base + piece[i].iov_len <=
					    ring + LANE_RING);
	}
}

#define TEST(name) cmocka_unit_test_setup(name, begin)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(lane_sees_behind_carrier_when_ring_goes_on),
		TEST(lane_hints_what_is_ready_when_nobody_took_a_turn),
		TEST(lane_hints_what_is_ready_when_nothing_went_by_carrier),
		TEST(lane_gives_back_what_is_unread_when_recalled),
		TEST(lane_gives_back_two_pieces_when_they_wrap),
		TEST(lane_gives_back_nothing_when_all_is_read),
		TEST(lane_gives_back_octets_when_their_bell_is_not_heard),
		TEST(lane_keeps_octets_when_later_ones_are_on_carrier),
		TEST(lane_keeps_still_when_receiver_takes_octets_back),
		TEST(lane_goes_on_when_receiver_could_not_take_back),
		TEST(lane_refuses_to_take_back_when_order_would_be_lost),
		TEST(sender_is_told_broken_when_more_was_taken_back_than_was_there),
		TEST(lane_wakes_sender_when_it_sleeps_and_half_is_free),
		TEST(sender_is_told_broken_when_word_is_not_its_own),
		TEST(sender_is_told_broken_when_head_is_beyond_tail),
		TEST(sender_is_told_broken_when_head_goes_back),
		TEST(recall_is_refused_when_shared_state_is_nonsense),
		TEST(octets_are_given_back_once_when_both_ends_try),
		TEST(lane_is_not_left_when_octets_are_wanted_back),
		TEST(receiver_is_told_broken_when_tail_is_too_far),
		TEST(receiver_is_told_broken_when_turns_are_too_many),
		TEST(receiver_is_told_broken_when_turn_is_in_the_past),
		TEST(receiver_is_told_broken_when_ring_lacks_what_turn_promises),
		TEST(receiver_is_told_broken_when_ring_holds_octets_off_the_stream),
		TEST(receiver_stays_in_ring_when_base_is_nonsense),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
