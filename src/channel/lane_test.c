/* SPDX-License-Identifier: MIT */
/* Which way octets go through a lane, and where they stand. */
#include "channel/lane_test.h"

/* --- the ways out */

static void lane_stays_on_carrier_when_nobody_is_attached(void **st)
{
	atomic_store(&dir.word, 0);
	assert_int_equal(look(10), LANE_CARRIER);
	lane_rx_attach(&rx);
	assert_int_equal(look(10), LANE_RING_OK);
	assert_int_equal(room, LANE_RING);
}

static void lane_stays_on_carrier_when_receiver_is_inside(void **st)
{
	uint64_t w;

	assert_int_equal(lane_rx_look(&rx, &w, &limit), LANE_FROM_OPEN);
	assert_true(lane_rx_enter(&rx, w));
	assert_int_equal(look(10), LANE_CARRIER);
	lane_rx_exit(&rx);
	assert_int_equal(look(10), LANE_RING_OK);
}

static void lane_refuses_to_publish_when_receiver_came_inside(void **st)
{
	uint64_t w;

	assert_int_equal(look(10), LANE_RING_OK);
	assert_int_equal(lane_rx_look(&rx, &w, &limit), LANE_FROM_OPEN);
	assert_true(lane_rx_enter(&rx, w));
	assert_false(lane_tx_publish(&tx, word, 10, false));
	assert_int_equal(tx.pos, 1000);
	assert_int_equal(tx.turns, 0);
	assert_int_equal(turns_now(), 0);
}

static void lane_refuses_to_enter_when_something_was_published(void **st)
{
	uint64_t w;

	assert_int_equal(lane_rx_look(&rx, &w, &limit), LANE_FROM_OPEN);
	put(10, false);
	assert_false(lane_rx_enter(&rx, w));
	assert_false(atomic_load(&dir.word) & LANE_INSIDE);
	take(10, 10);
}

static void lane_turns_once_when_ring_takes_over(void **st)
{
	put(10, false);
	assert_true(lane_tx_in_ring(&tx));
	assert_int_equal(turns_now(), 1);
	assert_int_equal(atomic_load(&dir.turn[0]), 1000);
	put(20, false);
	assert_int_equal(turns_now(), 1);
	assert_int_equal(tx.pos, 1030);
	take(30, 30);
	assert_int_equal(atomic_load(&dir.seen), 1);
	assert_int_equal(atomic_load(&dir.head), 30);
	assert_int_equal(rx.pos, 1030);
	assert_int_equal(see(), LANE_FROM_NOTHING);
}

static void lane_holds_receiver_at_turn_when_carrier_goes_on(void **st)
{
	put_carrier(7);
	put(10, false);
	take_carrier(3, 7);
	take_carrier(4, 4);
	take(10, 10);
	leave();
	put_carrier(5);
	assert_int_equal(see(), LANE_FROM_OPEN);
	lane_rx_taken(&rx, 5, false);
	assert_int_equal(rx.pos, tx.pos);
}

static void lane_holds_receiver_at_turn_when_ring_goes_on(void **st)
{
	put(10, false);
	leave();
	put_carrier(2);
	put(30, false);
	take(4, 10); /* not the 30 behind the carrier's */
	take(6, 6);
	take_carrier(2, 2);
	take(30, 30);
}

static void lane_rings_when_receiver_waits_on_carrier(void **st)
{
	assert_true(arm());
	put(10, true);
	assert_false(atomic_load(&dir.word) & LANE_WAITING);
	assert_int_equal(turns_now(), 1);
	assert_int_equal(tx.pos, 1010);
	assert_int_equal((uint32_t)atomic_load(&dir.word), 9);
	take_carrier(1, 1);
	take(9, 9);
}

static void lane_rings_with_two_turns_when_receiver_waits_on_ring(void **st)
{
	put(10, false);
	take(10, 10);
	assert_true(arm());
	put(10, true);
	assert_int_equal(turns_now(), 3);
	assert_int_equal(atomic_load(&dir.turn[1]), 1010);
	assert_int_equal(atomic_load(&dir.turn[2]), 1011);
	take_carrier(1, 1);
	take(9, 9);
	put(10, false); /* once is enough */
}

static void lane_leaves_ring_when_bell_has_nothing_behind_it(void **st)
{
	put(10, false);
	take(10, 10);
	assert_true(arm());
	put(1, true);
	assert_int_equal(turns_now(), 2);
	assert_false(lane_tx_in_ring(&tx));
	assert_int_equal(tx.pos, 1011);
	assert_int_equal(see(), LANE_FROM_OPEN);
	lane_rx_taken(&rx, 1, false);
	put(5, false);
	take(5, 5);
}

static void lane_makes_no_turn_when_bell_alone_rings_on_carrier(void **st)
{
	assert_true(arm());
	put(1, true);
	assert_int_equal(turns_now(), 0);
	assert_false(atomic_load(&dir.word) & LANE_WAITING);
	assert_int_equal(see(), LANE_FROM_OPEN);
}

static void lane_refuses_to_publish_when_receiver_fell_asleep(void **st)
{
	put(10, false);
	take(10, 10);
	assert_int_equal(look(10), LANE_RING_OK);
	assert_true(arm());
	assert_false(lane_tx_publish(&tx, word, 10, false));
	assert_int_equal(tx.pos, 1010);
	put(10, true);
}

static void lane_refuses_sleep_when_something_is_there(void **st)
{
	put(10, false);
	assert_false(arm());
	take(9, 10);
	assert_false(arm());
	take(1, 1);
	leave();
	assert_false(arm()); /* a turn that was not made yet */
	assert_int_equal(see(), LANE_FROM_OPEN);
	assert_true(arm());
	assert_true(arm());
	lane_rx_disarm(&rx);
	assert_false(atomic_load(&dir.word) & LANE_WAITING);
	lane_rx_disarm(&rx);
	put(10, false);
}

/* Who waits for news only sleeps on octets that it knows. */
static void lane_rings_when_receiver_waits_for_more_than_it_knows(void **st)
{
	put(10, false);
	assert_int_equal(see(), LANE_FROM_RING);
	assert_int_equal(lane_rx_seen(&rx), 10 | LANE_TURN_ONE);
	assert_false(lane_rx_arm(&rx, 9 | LANE_TURN_ONE, false));
	assert_false(lane_rx_arm(&rx, 10, false));
	assert_true(lane_rx_arm(&rx, 10 | LANE_TURN_ONE, false));
	put(5, true);
	assert_false(lane_rx_arm(&rx, 10 | LANE_TURN_ONE, false));
	take(10, 10);
	take_carrier(1, 1);
	take(4, 4);
}

static void lane_rings_alone_when_ring_is_full(void **st)
{
	put(LANE_RING, false);
	assert_int_equal(see(), LANE_FROM_RING);
	assert_true(lane_rx_arm(&rx, lane_rx_seen(&rx), false));
	assert_int_equal(look(10), LANE_OCTET);
	assert_int_equal(room, 0);
	assert_true(lane_tx_publish(&tx, word, 0, true));
	assert_false(lane_tx_in_ring(&tx));
	assert_int_equal(tx.pos, 1000 + LANE_RING + 1);
	take(LANE_RING, LANE_RING);
	assert_int_equal(see(), LANE_FROM_OPEN);
}

static void lane_is_full_when_ring_is(void **st)
{
	put(LANE_RING, false);
	assert_int_equal(look(1), LANE_FULL);
	take(1, LANE_RING);
	assert_int_equal(look(1), LANE_RING_OK);
	assert_int_equal(room, 1);
	put(1, false);
	assert_int_equal(look(1), LANE_FULL);
	take(LANE_RING, LANE_RING);
}

static void lane_shows_room_that_is_less_than_wanted(void **st)
{
	put(LANE_RING - 5, false);
	assert_int_equal(look(100), LANE_RING_OK);
	assert_int_equal(room, 5);
}

static void lane_comes_back_when_half_the_ring_is_free(void **st)
{
	put(LANE_RING, false);
	leave();
	put_carrier(3);
	take(HALF - 1, LANE_RING);
	assert_int_equal(look(1), LANE_CARRIER);
	take(1, HALF + 1);
	put(HALF, false);
	take(HALF, HALF);
	take_carrier(3, 3);
	take(HALF, HALF);
}

static void lane_leaves_when_receiver_is_gone(void **st)
{
	put(10, false);
	set_flag(LANE_GONE);
	assert_int_equal(look(1), LANE_LEAVE);
	leave();
	assert_int_equal(look(1), LANE_CARRIER);
	take(10, 10); /* what was published is there */
	assert_int_equal(see(), LANE_FROM_OPEN);
}

static void lane_refuses_to_publish_and_leave_when_receiver_went(void **st)
{
	uint64_t w = atomic_load(&dir.word);

	assert_int_equal(look(10), LANE_RING_OK);
	set_flag(LANE_GONE | LANE_RECALL);
	assert_false(lane_tx_publish(&tx, word, 10, false));
	assert_false(lane_tx_leave(&tx, w));
	assert_int_equal(tx.turns, 0);
	assert_int_equal(look(10), LANE_CARRIER);
}

static void lane_keeps_flags_when_word_is_published(void **st)
{
	set_flag(LANE_FIN);
	put(10, false);
	assert_true(atomic_load(&dir.word) & LANE_FIN);
	assert_true(atomic_load(&dir.word) & LANE_ATTACHED);
	leave();
	assert_true(atomic_load(&dir.word) & LANE_FIN);
	assert_int_equal((uint32_t)atomic_load(&dir.word), 10);
}

/* --- the ring */

static void lane_starts_over_when_ring_is_empty(void **st)
{
	put(LANE_REWIND - 1, false);
	take(LANE_REWIND - 1, LANE_REWIND - 1);
	put(1, false);
	take(1, 1);
	assert_int_equal(atomic_load(&dir.base), 0);
	put(5, false);
	assert_int_equal(atomic_load(&dir.base), LANE_REWIND);
	assert_int_equal(ring[0], octet_at(1000 + LANE_REWIND));
	take(5, 5);
}

static void lane_does_not_start_over_when_octets_are_unread(void **st)
{
	put(LANE_REWIND + 7, false);
	take(LANE_REWIND, LANE_REWIND + 7);
	put(5, false);
	assert_int_equal(atomic_load(&dir.base), 0);
	take(12, 12);
}

static void lane_wraps_octets_when_ring_ends(void **st)
{
	struct iovec piece[2];

	put(LANE_RING - 10, false);
	take(LANE_RING - 20, LANE_RING - 10);
	put(25, false);
	assert_int_equal(lane_tx_space(&tx, 40, piece), 1);
	assert_ptr_equal(piece[0].iov_base, ring + 15);
	assert_int_equal(lane_rx_pieces(&rx, 35, piece), 2);
	assert_ptr_equal(piece[0].iov_base, ring + LANE_RING - 20);
	assert_int_equal(piece[0].iov_len, 20);
	assert_ptr_equal(piece[1].iov_base, ring);
	assert_int_equal(piece[1].iov_len, 15);
	take(35, 35);
}

static void lane_gives_two_pieces_when_space_wraps(void **st)
{
	struct iovec piece[2];

	put(LANE_RING - 10, false);
	take(100, LANE_RING - 10);
	assert_int_equal(look(30), LANE_RING_OK);
	assert_int_equal(lane_tx_space(&tx, 30, piece), 2);
	assert_ptr_equal(piece[0].iov_base, ring + LANE_RING - 10);
	assert_int_equal(piece[0].iov_len, 10);
	assert_ptr_equal(piece[1].iov_base, ring);
	assert_int_equal(piece[1].iov_len, 20);
}

static void lane_carries_on_when_tail_wraps(void **st)
{
	begin_at(5ull << 40, 0u - LANE_REWIND, 0);
	put(LANE_REWIND + 500, false);
	assert_int_equal(tx.tail, 500);
	assert_int_equal(turns_now(), 1);
	assert_int_equal(lane_tx_unread(&tx), LANE_REWIND + 500);
	take(LANE_REWIND + 400, LANE_REWIND + 500);
	assert_int_equal(lane_tx_unread(&tx), 100);
	put(50, false);
	take(150, 150);
	put(10, false);
	assert_int_equal(atomic_load(&dir.base), 550);
	take(10, 10);
}

static void lane_carries_on_when_turns_wrap(void **st)
{
	begin_at(1000, 0, 65534);
	for (int i = 0; i < 4; i++) {
		put(3, false);
		leave();
		put_carrier(2);
	}
	assert_int_equal(turns_now(), (uint16_t)(65534 + 8));
	for (int i = 0; i < 4; i++) {
		take(3, 3);
		if (i < 3)
			take_carrier(2, 2);
	}
	assert_int_equal(see(), LANE_FROM_OPEN);
	assert_int_equal(rx.turns, 6);
}

static void lane_copies_lists_when_buffers_are_many(void **st)
{
	uint8_t a[3] = { 1, 2, 3 }, b[5] = { 4, 5, 6, 7, 8 }, c[4], d[9];
	struct iovec source[3] = { { a, 3 }, { NULL, 0 }, { b, 5 } };
	struct iovec sink[3] = { { c, 4 }, { NULL, 0 }, { d, 9 } };
	struct lane_iov from = { source, 3, 1 }, to = { sink, 3, 0 };

	assert_int_equal(look(7), LANE_RING_OK);
	assert_int_equal(lane_tx_copy(&tx, &from, 6), 6);
	assert_int_equal(from.count, 1);
	assert_int_equal(from.skip, 4);
	assert_true(lane_tx_publish(&tx, word, 6, false));
	assert_int_equal(see(), LANE_FROM_RING);
	assert_int_equal(lane_rx_copy(&rx, &to, 1, 5), 5);
	assert_memory_equal(c, ((uint8_t[]) { 3, 4, 5, 6 }), 4);
	assert_int_equal(d[0], 7);
	assert_int_equal(to.count, 1);
	assert_int_equal(to.skip, 1);
	/* The list ends first. */
	assert_int_equal(lane_tx_copy(&tx, &from, 100), 1);
	assert_int_equal(from.count, 0);
}

/* --- turns under way */

static void lane_keeps_entries_when_receiver_makes_no_turns(void **st)
{
	int n = 0;

	while (look(1) == LANE_RING_OK) {
		put(1, false);
		leave();
		put_carrier(1);
		assert_true(++n < 100);
	}
	/* Three were free no more: one for the way back, one that is kept, and one for luck. */
	assert_int_equal(look(1), LANE_CARRIER);
	assert_int_equal(turns_now(), 62);
	for (int i = 0; i < n; i++) {
		take(1, 1);
		if (i < n - 1)
			take_carrier(1, 1);
	}
	assert_int_equal(see(), LANE_FROM_OPEN);
	assert_int_equal(look(1), LANE_RING_OK);
}

/* The receiver sleeps again and again without making its turns known: bells must end. */
static void lane_leaves_when_bells_have_used_all_turns(void **st)
{
	int n = 0;

	put(1, false);
	for (;; n++) {
		set_flag(LANE_WAITING);
		if (look(2) != LANE_OCTET)
			break;
		put(2, true);
		assert_true(n < 100);
	}
	assert_int_equal(look(2), LANE_LEAVE);
	assert_true((uint16_t)(tx.turns + 1) <= LANE_TURNS);
	leave();
	assert_int_equal(look(2), LANE_CARRIER);
	take(1, 1);
	for (int i = 0; i < n; i++) {
		take_carrier(1, 1);
		take(1, 1);
	}
	assert_int_equal(see(), LANE_FROM_OPEN);
	assert_int_equal(look(2), LANE_OCTET);
}

#define TEST(name) cmocka_unit_test_setup(name, begin)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(lane_stays_on_carrier_when_nobody_is_attached),
		TEST(lane_stays_on_carrier_when_receiver_is_inside),
		TEST(lane_refuses_to_publish_when_receiver_came_inside),
		TEST(lane_refuses_to_enter_when_something_was_published),
		TEST(lane_turns_once_when_ring_takes_over),
		TEST(lane_holds_receiver_at_turn_when_carrier_goes_on),
		TEST(lane_holds_receiver_at_turn_when_ring_goes_on),
		TEST(lane_rings_when_receiver_waits_on_carrier),
		TEST(lane_rings_with_two_turns_when_receiver_waits_on_ring),
		TEST(lane_leaves_ring_when_bell_has_nothing_behind_it),
		TEST(lane_makes_no_turn_when_bell_alone_rings_on_carrier),
		TEST(lane_refuses_to_publish_when_receiver_fell_asleep),
		TEST(lane_refuses_sleep_when_something_is_there),
		TEST(lane_rings_when_receiver_waits_for_more_than_it_knows),
		TEST(lane_rings_alone_when_ring_is_full),
		TEST(lane_is_full_when_ring_is),
		TEST(lane_shows_room_that_is_less_than_wanted),
		TEST(lane_comes_back_when_half_the_ring_is_free),
		TEST(lane_leaves_when_receiver_is_gone),
		TEST(lane_refuses_to_publish_and_leave_when_receiver_went),
		TEST(lane_keeps_flags_when_word_is_published),
		TEST(lane_starts_over_when_ring_is_empty),
		TEST(lane_does_not_start_over_when_octets_are_unread),
		TEST(lane_wraps_octets_when_ring_ends),
		TEST(lane_gives_two_pieces_when_space_wraps),
		TEST(lane_carries_on_when_tail_wraps),
		TEST(lane_carries_on_when_turns_wrap),
		TEST(lane_copies_lists_when_buffers_are_many),
		TEST(lane_keeps_entries_when_receiver_makes_no_turns),
		TEST(lane_leaves_when_bells_have_used_all_turns),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
