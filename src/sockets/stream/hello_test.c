/* SPDX-License-Identifier: MIT */
/* Hello and HelloAck in a lane's header, between ends that agree and with one that writes what it likes. */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/util.h"
#include "sockets/stream/hello.h"
#include "wire/sdp.h"

static struct lane_shared lane;

static int begin(void **st)
{
	memset((void *)&lane, 0, sizeof(lane));
	return 0;
}

static void put_octets(int side, const uint8_t *octets, uint32_t n)
{
	memcpy(lane.private_data[side], octets, n);
	atomic_store(&lane.private_size[side], n);
}

/* One that a lane takes; tests change it. */
static struct sdp_hello good(bool ack)
{
	return (struct sdp_hello) { .layout = SDP_IWARP,
				    .ack = ack,
				    .major = 1,
				    .minor = 1,
				    .bufs = LANE_TURNS,
				    .max_adverts = 1,
				    .rcv_size = LANE_RING,
				    .want_size = LANE_RING,
				    .ord = 1,
				    .ird = 1 };
}

static void put_hello(const struct sdp_hello *h)
{
	uint8_t octets[SDP_HELLO_MAX];
	int n = sdp_hello_encode(h, octets, sizeof(octets));

	assert_true(n > 0 && n <= ARENA_PRIVATE_DATA);
	put_octets(h->ack, octets, (uint32_t)n);
}

/* The one check for both messages: false, and the other message is not touched. */
static bool is_taken(bool ack)
{
	bool taken;

	if (ack)
		return hello_is_answered(&lane);
	taken = hello_answer(&lane);
	assert_int_equal(atomic_load(&lane.private_size[1]), taken ? SDP_HELLO_ACK_IWARP_LEN : 0);
	return taken;
}

static void ends_agree_when_both_are_ours(void **st)
{
	struct sdp_hello h;

	assert_false(hello_is_answered(&lane));
	assert_false(hello_answer(&lane));
	hello_offer(&lane);
	assert_false(hello_is_answered(&lane));
	assert_int_equal(atomic_load(&lane.private_size[0]), SDP_HELLO_IWARP_LEN);
	assert_int_equal(sdp_hello_decode(&h, lane.private_data[0], SDP_HELLO_IWARP_LEN, SDP_IWARP,
					  false),
			 0);
	assert_int_equal(h.rcv_size, LANE_RING);
	assert_int_equal(h.want_size, LANE_RING);
	assert_int_equal(h.bufs, LANE_TURNS);
	assert_true(hello_answer(&lane));
	assert_int_equal(sdp_hello_decode(&h, lane.private_data[1], SDP_HELLO_ACK_IWARP_LEN,
					  SDP_IWARP, true),
			 0);
	assert_int_equal(h.rcv_size, LANE_RING);
	assert_true(hello_is_answered(&lane));
}

static void answer_has_the_version_of_the_question(void **st)
{
	static const uint8_t versions[][3] = { { 1, 0, 0 }, { 1, 1, 1 }, { 1, 9, 1 }, { 2, 2, 2 } };
	struct sdp_hello h, ack;

	for (size_t i = 0; i < ARRAY_SIZE(versions); i++) {
		h = good(false);
		h.major = versions[i][0];
		h.minor = versions[i][1];
		put_hello(&h);
		assert_true(hello_answer(&lane));
		assert_int_equal(sdp_hello_decode(&ack, lane.private_data[1],
						  SDP_HELLO_ACK_IWARP_LEN, SDP_IWARP, true),
				 0);
		assert_int_equal(ack.major, versions[i][0]);
		assert_int_equal(ack.minor, versions[i][2]);
	}
	/* Nor do we take an answer in a version that we did not speak. */
	h = good(true);
	h.minor = 0;
	put_hello(&h);
	assert_true(hello_is_answered(&lane));
	h.minor = 2;
	put_hello(&h);
	assert_false(hello_is_answered(&lane));
	h.major = 2;
	put_hello(&h);
	assert_false(hello_is_answered(&lane));
}

/* Every octet that has a meaning, with a value that it must not have. */
static void message_is_refused_when_a_field_is_wrong(void **st)
{
	static const struct {
		const char *what;
		int at[2]; /* in Hello and HelloAck; -1: not there */
		uint8_t value;
	} bad[] = {
		{ "MID", { 0, 0 }, SDP_DATA },
		{ "each other's MID: Hello", { 0, -1 }, SDP_HELLO_ACK },
		{ "each other's MID: HelloAck", { -1, 0 }, SDP_HELLO },
		{ "Bufs, high", { 2, 2 }, 1 },
		{ "Bufs, fewer", { 3, 3 }, LANE_TURNS - 1 },
		{ "Bufs, none", { 3, 3 }, 0 },
		{ "Len, high", { 4, 4 }, 1 },
		{ "Len", { 7, 7 }, 33 },
		{ "version 0", { 16, 16 }, 0x01 },
		{ "version 3", { 16, 16 }, 0x31 },
		{ "MaxAdverts", { 19, 19 }, 0 },
		{ "DesRemRcvSz", { 20, -1 }, 1 },
		{ "DesRemRcvSz, less", { 21, -1 }, 2 },
		{ "LocalRcvSz, ActRcvSz", { 24, 20 }, 1 },
		{ "LocalRcvSz, ActRcvSz, less", { 25, 21 }, 2 },
		{ "LocalRcvSz, ActRcvSz, one more", { 27, 23 }, 1 },
		{ "ORD", { 29, 25 }, 0 },
		{ "IRD", { 31, 27 }, 0 },
	};

	for (int ack = 0; ack < 2; ack++) {
		for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
			struct sdp_hello h = good(ack);

			if (bad[i].at[ack] < 0)
				continue;
			begin(st);
			put_hello(&h);
			assert_int_not_equal(lane.private_data[ack][bad[i].at[ack]], bad[i].value);
			lane.private_data[ack][bad[i].at[ack]] = bad[i].value;
			if (is_taken(ack))
				fail_msg("%s was taken", bad[i].what);
			begin(st);
			put_hello(&h);
			assert_true(is_taken(ack));
		}
	}
}

static void message_is_refused_when_its_size_is_another(void **st)
{
	static const uint32_t hostile[] = { ARENA_PRIVATE_DATA,     ARENA_PRIVATE_DATA + 1,
					    2 * ARENA_PRIVATE_DATA, 4096,
					    UINT32_MAX / 2 + 1,     UINT32_MAX };

	for (int ack = 0; ack < 2; ack++) {
		struct sdp_hello h = good(ack);
		uint32_t right = ack ? SDP_HELLO_ACK_IWARP_LEN : SDP_HELLO_IWARP_LEN;

		for (uint32_t n = 0; n < ARENA_PRIVATE_DATA; n++) {
			begin(st);
			put_hello(&h);
			atomic_store(&lane.private_size[ack], n);
			assert_int_equal(is_taken(ack), n == right);
		}
		for (size_t i = 0; i < ARRAY_SIZE(hostile); i++) {
			begin(st);
			put_hello(&h);
			atomic_store(&lane.private_size[ack], hostile[i]);
			assert_false(is_taken(ack));
		}
	}
}

/* --- a peer that changes its mind while we look */

static _Atomic bool stop;

static void *flip(void *arg)
{
	uint8_t *octets = lane.private_data[0];

	/* Between one that is good and one that is bad in its last octet; and two versions. */
	while (!atomic_load(&stop)) {
		__atomic_store_n(&octets[31], 0, __ATOMIC_RELAXED);
		atomic_store(&lane.private_size[0], UINT32_MAX);
		__atomic_store_n(&octets[16], 0x22, __ATOMIC_RELAXED);
		__atomic_store_n(&octets[31], 1, __ATOMIC_RELAXED);
		atomic_store(&lane.private_size[0], SDP_HELLO_IWARP_LEN);
		__atomic_store_n(&octets[16], 0x11, __ATOMIC_RELAXED);
	}
	return NULL;
}

static void answer_is_whole_when_peer_changes_its_hello_meanwhile(void **st)
{
	struct sdp_hello h = good(false), ack;
	uint64_t end = clock_now() + 30 * NSEC_PER_SEC;
	int taken = 0, refused = 0;
	pthread_t thread;

	put_hello(&h);
	assert_int_equal(pthread_create(&thread, NULL, flip, NULL), 0);
	for (int i = 1; (taken < 1000 || refused < 1000) && clock_now() < end; i++) {
		if (i % 1000 == 0)
			sched_yield(); /* the other may have no processor */
		if (!hello_answer(&lane)) {
			refused++;
			continue;
		}
		taken++;
		assert_int_equal(sdp_hello_decode(&ack, lane.private_data[1],
						  SDP_HELLO_ACK_IWARP_LEN, SDP_IWARP, true),
				 0);
		assert_true((ack.major == 1 && ack.minor == 1) ||
			    (ack.major == 2 && ack.minor == 2));
		assert_int_equal(ack.rcv_size, LANE_RING);
	}
	atomic_store(&stop, true);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_true(taken > 0 && refused > 0);
}

#define TEST(name) cmocka_unit_test_setup(name, begin)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(ends_agree_when_both_are_ours),
		TEST(answer_has_the_version_of_the_question),
		TEST(message_is_refused_when_a_field_is_wrong),
		TEST(message_is_refused_when_its_size_is_another),
		TEST(answer_is_whole_when_peer_changes_its_hello_meanwhile),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
