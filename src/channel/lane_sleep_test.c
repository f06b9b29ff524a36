/* SPDX-License-Identifier: MIT */
/* Receivers that nap, that sleep with a bell, and senders that wait for room: who must wake whom. */
#include "channel/nap.h"
#include "channel/lane_test.h"

/* The stream runs in the ring, and the receiver has all of it. */
static void ride(void)
{
	put(10, false);
	take(10, 10);
}

static bool has(uint64_t flag)
{
	return atomic_load(&dir.word) & flag;
}

static bool arm_belled(void)
{
	return lane_rx_arm(&rx, lane_rx_here(&rx), true);
}

/* --- naps */

static void nap_is_told_of_when_something_is_published(void **st)
{
	uint32_t value = 0;

	ride();
	assert_false(tx.wake);
	assert_true(lane_rx_nap(&rx, &value));
	assert_true(has(LANE_NAPPING));
	assert_int_equal(value, atomic_load(lane_nap_word(&dir)));
	put(5, false);
	assert_true(tx.wake);
	assert_false(tx.belled);
	assert_false(has(LANE_NAPPING));
	assert_int_not_equal(value,
			     atomic_load(lane_nap_word(&dir))); /* so it cannot fall asleep */
	take(5, 5);
	/* Once is enough. */
	put(5, false);
	assert_false(tx.wake);
	take(5, 5);
}

/* The octet on the carrier is told of by the same word. */
static void nap_is_told_of_when_the_octet_goes_as_well(void **st)
{
	uint32_t value;

	ride();
	assert_true(arm());
	assert_true(lane_rx_nap(&rx, &value));
	assert_true(has(LANE_WAITING));
	put(5, true);
	assert_true(tx.wake);
	assert_false(has(LANE_NAPPING | LANE_WAITING));
	take_carrier(1, 1);
	take(4, 4);
}

static void nap_is_refused_when_something_is_there(void **st)
{
	uint32_t value = 77;

	ride();
	put(5, false);
	assert_false(lane_rx_nap(&rx, &value));
	assert_false(has(LANE_NAPPING));
	take(5, 5);
	leave();
	assert_false(lane_rx_nap(&rx, &value)); /* a turn that was not made yet */
	assert_false(has(LANE_NAPPING));
	assert_int_equal(value, 77);
	assert_int_equal(see(), LANE_FROM_OPEN);
	assert_true(lane_rx_nap(&rx, &value));
}

static void nap_is_refused_when_nobody_would_end_it(void **st)
{
	const uint64_t flags[] = { LANE_GONE, LANE_FIN };
	uint32_t value;

	for (size_t i = 0; i < ARRAY_SIZE(flags); i++) {
		begin(st);
		ride();
		set_flag(flags[i]);
		assert_false(lane_rx_nap(&rx, &value));
		assert_false(has(LANE_NAPPING));
	}
}

static void nap_ends_when_sender_leaves_or_goes(void **st)
{
	uint32_t value;

	ride();
	assert_false(lane_tx_rouse(&tx));
	assert_true(lane_rx_nap(&rx, &value));
	leave();
	assert_int_not_equal(value, atomic_load(lane_nap_word(&dir)));
	assert_true(lane_tx_rouse(&tx));
	assert_false(has(LANE_NAPPING));
	assert_false(lane_tx_rouse(&tx)); /* once */
	assert_int_equal(see(), LANE_FROM_OPEN);
	assert_true(has(LANE_ATTACHED));
}

static void nap_is_over_when_a_sleep_begins(void **st)
{
	uint32_t value;

	ride();
	assert_true(lane_rx_nap(&rx, &value));
	assert_true(arm());
	assert_false(has(LANE_NAPPING));
	put(5, true);
	assert_false(tx.wake);
	take_carrier(1, 1);
	take(4, 4);
	assert_true(lane_rx_nap(&rx, &value));
	assert_true(arm_belled());
	assert_false(has(LANE_NAPPING));
}

static void nap_is_not_told_of_when_publishing_failed(void **st)
{
	uint32_t value;

	ride();
	assert_int_equal(look(5), LANE_RING_OK);
	assert_true(lane_rx_nap(&rx, &value));
	assert_false(lane_tx_publish(&tx, word, 5, false));
	assert_false(tx.wake);
	assert_true(has(LANE_NAPPING));
	put(5, false);
	assert_true(tx.wake);
}

/* --- sleeps with a bell */

static void bell_is_rung_without_an_octet_when_sender_has_it(void **st)
{
	ride();
	tx.can_ring = true;
	assert_true(arm_belled());
	assert_true(has(LANE_WAITING));
	assert_true(has(LANE_BELLED));
	assert_false(lane_tx_needs_octet(&tx, atomic_load(&dir.word)));
	put(5, false);
	assert_true(tx.belled);
	assert_false(tx.wake);
	assert_int_equal(turns_now(), 1);
	/* It sleeps until it has said that it does not: every octet tells of that. */
	assert_true(has(LANE_WAITING));
	put(5, false);
	assert_true(tx.belled);
	lane_rx_disarm(&rx);
	assert_false(has(LANE_WAITING | LANE_BELLED));
	put(5, false);
	assert_false(tx.belled);
	take(15, 15);
}

static void octet_is_sent_when_sender_has_no_bell(void **st)
{
	ride();
	assert_true(arm_belled());
	assert_true(lane_tx_needs_octet(&tx, atomic_load(&dir.word)));
	put(5, true);
	assert_false(tx.belled);
	assert_false(has(LANE_WAITING | LANE_BELLED));
	take_carrier(1, 1);
	take(4, 4);
}

static void octet_is_sent_when_receiver_sleeps_without_bell(void **st)
{
	ride();
	tx.can_ring = true;
	assert_false(lane_tx_needs_octet(&tx, atomic_load(&dir.word)));
	assert_true(arm());
	assert_false(has(LANE_BELLED));
	assert_true(lane_tx_needs_octet(&tx, atomic_load(&dir.word)));
	put(5, true);
	assert_false(tx.belled);
	take_carrier(1, 1);
	take(4, 4);
}

/* Of two sleepers the one that the bell does not wake decides; and the other way round. */
static void bell_is_taken_back_when_receiver_sleeps_without_it(void **st)
{
	ride();
	tx.can_ring = true;
	assert_true(arm_belled());
	assert_true(arm());
	assert_false(has(LANE_BELLED));
	assert_true(has(LANE_WAITING));
	assert_int_equal(look(5), LANE_OCTET);
	assert_true(arm_belled());
	assert_true(has(LANE_BELLED));
	assert_true(arm_belled());
	assert_int_equal(look(5), LANE_RING_OK);
}

static void bell_is_refused_when_something_is_there(void **st)
{
	ride();
	put(5, false);
	assert_false(arm_belled());
	assert_false(has(LANE_WAITING | LANE_BELLED));
	assert_false(lane_rx_arm(&rx, 14 | LANE_TURN_ONE, true));
	assert_true(lane_rx_arm(&rx, 15 | LANE_TURN_ONE, true));
}

static void publishing_fails_when_receiver_fell_asleep_with_bell(void **st)
{
	ride();
	tx.can_ring = true;
	assert_int_equal(look(5), LANE_RING_OK);
	assert_true(arm_belled());
	assert_false(lane_tx_publish(&tx, word, 5, false));
	assert_false(tx.belled);
	put(5, false);
	assert_true(tx.belled);
}

/* No octet may go round what is in the ring: who has the bell sleeps on a full one. */
static void lane_is_full_when_sleeper_has_a_bell(void **st)
{
	tx.can_ring = true;
	put(LANE_RING, false);
	assert_int_equal(see(), LANE_FROM_RING);
	assert_true(lane_rx_arm(&rx, lane_rx_seen(&rx), true));
	assert_int_equal(look(10), LANE_FULL);
	assert_int_equal(room, 0);
	tx.can_ring = false;
	assert_int_equal(look(10), LANE_OCTET);
	tx.can_ring = true;
	assert_true(lane_rx_arm(&rx, lane_rx_seen(&rx), false));
	assert_int_equal(look(10), LANE_OCTET);
}

static void carrier_is_empty_when_receiver_has_made_all_turns(void **st)
{
	assert_false(lane_tx_carrier_is_empty(&tx)); /* the stream stands on it */
	put_carrier(3);
	put(5, false);
	assert_false(lane_tx_carrier_is_empty(&tx));
	take_carrier(3, 3);
	assert_false(lane_tx_carrier_is_empty(&tx));
	take(5, 5);
	assert_true(lane_tx_carrier_is_empty(&tx));
	leave();
	assert_false(lane_tx_carrier_is_empty(&tx));
	assert_int_equal(see(), LANE_FROM_OPEN);
	assert_false(lane_tx_carrier_is_empty(&tx));
	/* What a peer writes into the upper half does not matter; a number of ours that is old does. */
	put(5, false);
	take(5, 5);
	atomic_fetch_or(&dir.seen, 0xffff0000u);
	assert_true(lane_tx_carrier_is_empty(&tx));
	atomic_store(&dir.seen, (uint16_t)(tx.turns + 1));
	assert_false(lane_tx_carrier_is_empty(&tx));
}

/* --- room */

static void sender_is_woken_once_and_as_it_sleeps(void **st)
{
	const uint32_t hows[] = { LANE_ROOM_FUTEX, LANE_ROOM_BELL,
				  LANE_ROOM_FUTEX | LANE_ROOM_BELL };

	put(LANE_RING, false);
	for (size_t i = 0; i < ARRAY_SIZE(hows); i++) {
		assert_int_equal(lane_rx_must_wake(&rx), 0);
		atomic_store(&dir.tx_sleeps, hows[i]);
		assert_int_equal(lane_rx_must_wake(&rx), 0); /* no room */
		take(HALF - 1, LANE_RING);
		assert_int_equal(lane_rx_must_wake(&rx), 0); /* not enough */
		assert_int_equal(atomic_load(&dir.tx_sleeps), hows[i]);
		take(1, HALF + 1);
		assert_int_equal(lane_rx_must_wake(&rx), hows[i]);
		assert_int_equal(atomic_load(&dir.tx_sleeps), 0);
		assert_int_equal(lane_rx_must_wake(&rx), 0);
		put(HALF, false);
	}
}

/* Half of what the sender uses, not of the ring. */
static void sender_is_woken_when_half_of_its_limit_is_free(void **st)
{
	lane_tx_set_limit(&tx, 1000);
	assert_int_equal(lane_rx_limit(&rx), 1000);
	put(1000, false);
	atomic_store(&dir.tx_sleeps, LANE_ROOM_FUTEX);
	take(499, 1000);
	assert_int_equal(lane_rx_must_wake(&rx), 0);
	take(1, 501);
	assert_int_equal(lane_rx_must_wake(&rx), LANE_ROOM_FUTEX);
	lane_tx_set_limit(&tx, 2 * (uint64_t)LANE_RING);
	assert_int_equal(lane_rx_limit(&rx), LANE_RING);
}

#define TEST(name) cmocka_unit_test_setup(name, begin)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(nap_is_told_of_when_something_is_published),
		TEST(nap_is_told_of_when_the_octet_goes_as_well),
		TEST(nap_is_refused_when_something_is_there),
		TEST(nap_is_refused_when_nobody_would_end_it),
		TEST(nap_ends_when_sender_leaves_or_goes),
		TEST(nap_is_over_when_a_sleep_begins),
		TEST(nap_is_not_told_of_when_publishing_failed),
		TEST(bell_is_rung_without_an_octet_when_sender_has_it),
		TEST(octet_is_sent_when_sender_has_no_bell),
		TEST(octet_is_sent_when_receiver_sleeps_without_bell),
		TEST(bell_is_taken_back_when_receiver_sleeps_without_it),
		TEST(bell_is_refused_when_something_is_there),
		TEST(publishing_fails_when_receiver_fell_asleep_with_bell),
		TEST(lane_is_full_when_sleeper_has_a_bell),
		TEST(carrier_is_empty_when_receiver_has_made_all_turns),
		TEST(sender_is_woken_once_and_as_it_sleeps),
		TEST(sender_is_woken_when_half_of_its_limit_is_free),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
