/* SPDX-License-Identifier: MIT */
/* From TCP onto a lane. */
#include <errno.h>
#include <netinet/tcp.h>

#include "base/util.h"
#include "channel/mailbox.h"
#include "sockets/record/settings.h"
#include "sockets/attach/lane_test.h"
#include "sockets/record/why.h"

static uint64_t through_lane(void)
{
	return near->sent.lane_bytes + far->sent.lane_bytes;
}

static void octets_ride_the_lane_when_hello_is_answered(void **st)
{
	NEED_ROOT();
	make_lane();
	attach_near();
	put(far, far_fd, 3, 100);
	assert_false(sock_flag(far, REC_UNANSWERED));
	assert_int_equal(far->sent.lane_bytes, 100);
	take(near, near_fd, 3, 100);
	exchange(100);
	assert_int_equal(through_lane(), 100 + 100 * 2000);
}

static void octets_stay_on_tcp_when_hello_is_refused(void **st)
{
	NEED_ROOT();
	make_lane();
	shared()->private_data[0][3]++;
	take(near, near_fd, 2, 10);
	assert_int_equal(atomic_load(&near->state), REC_PLAIN);
	assert_int_equal(near->why, WHY_HELLO);
	assert_null(near->end.arena);
	assert_int_equal(atomic_load(&shared()->done[1]), 1);
	exchange(100);
	assert_int_equal(through_lane(), 0);
}

static void octets_stay_on_tcp_when_answer_is_bad(void **st)
{
	NEED_ROOT();
	make_lane();
	attach_near();
	shared()->private_data[1][16] = 0x21;
	put(far, far_fd, 3, 100);
	assert_int_equal(atomic_load(&far->state), REC_PLAIN);
	assert_int_equal(far->why, WHY_HELLO);
	take(near, near_fd, 3, 100);
	exchange(100);
	assert_int_equal(through_lane(), 0);
}

/* The peer may write a good one behind that: too late. */
static void octets_stay_on_tcp_when_answer_comes_late(void **st)
{
	NEED_ROOT();
	make_lane();
	atomic_fetch_or(&shared()->dir[0].word, LANE_ATTACHED);
	put(far, far_fd, 12, 100);
	assert_int_equal(far->why, WHY_HELLO);
	take(near, near_fd, 2, 10);
	assert_int_equal(atomic_load(&near->state), REC_LANE);
	take(near, near_fd, 12, 100);
	exchange(100);
	assert_int_equal(through_lane(), 0);
}

static void nothing_is_lost_when_answer_is_bad_and_ring_is_used(void **st)
{
	NEED_ROOT();
	make_lane();
	attach_near();
	put(near, near_fd, 5, 1000);
	assert_int_equal(near->sent.lane_bytes, 1000);
	atomic_store(&shared()->private_size[1], 0);
	put(far, far_fd, 3, 100);
	assert_int_equal(far->why, WHY_HELLO);
	put(near, near_fd, 6, 1000);
	take(far, far_fd, 5, 1000);
	take(far, far_fd, 6, 1000);
	take(near, near_fd, 3, 100);
	exchange(100);
	assert_int_equal(near->sent.lane_bytes, 1000);
	assert_int_equal(far->sent.lane_bytes, 0);
}

/* --- the switch */

static void switch_has_the_lane_when_ends_have_met(void **st)
{
	const struct ops_protocol *p;

	NEED_ROOT();
	assert_int_equal(near->ops.bound, OPS_UNDECIDED);
	/* The end that connected is asked about when it is old enough for a lane. */
	assert_true(!near->ops.connected && far->ops.connected && far->ops.accepted);
	make_lane();
	assert_int_equal(near->ops.bound, OPS_UNDECIDED);
	attach_near();
	assert_true(near->ops.connected);
	assert_int_equal(near->ops.bound, far->ops.bound);
	p = ops_protocol(near->ops.bound);
	assert_non_null(p);
	assert_string_equal(p->name, "lane");
	assert_int_equal(p->id, IPPROTO_SDP);
}

static void switch_loses_the_lane_when_it_never_will_be(void **st)
{
	NEED_ROOT();
	atomic_fetch_or(&near->flags, REC_SHUT_RD);
	put(near, near_fd, 1, 10);
	assert_int_equal(near->ops.bound, OPS_NATIVE);
	assert_int_equal(near->ops.list, 0);
	assert_int_equal(atomic_load(&near->state), REC_PLAIN);
	assert_int_equal(near->why, WHY_SHUT);
	/* What another says of itself does not matter. */
	far->end.peer.sin6_addr.s6_addr[12] = 10;
	take(far, far_fd, 1, 10);
	assert_int_equal(far->ops.bound, OPS_NATIVE);
	assert_int_equal(far->why, WHY_REMOTE);
}

static void switch_asks_nobody_when_a_rule_denies(void **st)
{
	struct policy_error error;

	NEED_ROOT();
	assert_int_equal(policy_load(&settings.policy, NULL, "use tcp listen * *", &error), 0);
	put(near, near_fd, 1, 10);
	take(far, far_fd, 1, 10);
	assert_int_equal(far->ops.bound, OPS_NATIVE);
	assert_int_equal(atomic_load(&far->state), REC_PLAIN);
	assert_int_equal(why_number(far->why), WHY_POLICY);
	assert_int_equal(near->ops.bound, OPS_UNDECIDED);
	assert_int_equal(atomic_load(&near->state), REC_POSTED);
	settings.bad_rules = true;
	exchange(2);
	end(st);
	begin(st);
	put(near, near_fd, 1, 10);
	assert_int_equal(why_number(near->why), WHY_RULES);
	memset(&settings.policy, 0, sizeof(settings.policy));
	settings.bad_rules = false;
}

static void offer_is_withdrawn_when_the_lane_leaves_the_list(void **st)
{
	NEED_ROOT();
	put(near, near_fd, 1, 10);
	assert_int_equal(atomic_load(&near->state), REC_POSTED);
	ops_option(&near->ops, SOL_SOCKET, SO_RCVLOWAT, NULL, 0);
	assert_int_equal(near->ops.bound, OPS_NATIVE);
	take(far, far_fd, 1, 10);
	assert_int_equal(atomic_load(&far->state), REC_POSTED);
	put(far, far_fd, 2, 10);
	take(near, near_fd, 2, 10);
	assert_int_equal(atomic_load(&near->state), REC_PLAIN);
	assert_int_equal(near->why, WHY_NATIVE);
}

static void octets_stay_on_tcp_when_the_lane_is_unregistered(void **st)
{
	NEED_ROOT();
	/* One that is there lives on; and those that look for one do not find it. */
	make_lane();
	attach_near();
	ops_lane_stop();
	put(near, near_fd, 3, 100);
	take(far, far_fd, 3, 100);
	assert_int_equal(through_lane(), 100);
	end(st);
	assert_false(mailbox_is_open()); /* stopped */
	begin(st);
	assert_int_equal(near->ops.bound, OPS_NATIVE);
	exchange(100);
	assert_int_equal(through_lane(), 0);
	assert_int_equal(near->why, WHY_NATIVE);
	assert_int_equal(far->why, WHY_NATIVE);
	ops_lane_start();
}

static ssize_t receive_one(struct rec *r, int fd)
{
	uint8_t octet;
	struct iovec iov = { &octet, 1 };

	return call_receive(r, fd, &iov, 1, 0);
}

/* The kernel would have reset the connection, but it does not know what was in the ring. */
static void end_is_a_reset_when_peer_died_with_octets_unread(void **st)
{
	for (int unread = 0; unread < 2; unread++) {
		NEED_ROOT();
		make_lane();
		attach_near();
		exchange(3);
		if (unread)
			put(near, near_fd, 3, 100);
		/* As the end of a process does: without a word. */
		close(far_fd);
		errno = 0;
		assert_int_equal(receive_one(near, near_fd), unread ? -1 : 0);
		assert_int_equal(errno, unread ? ECONNRESET : 0);
		/* Once only. */
		assert_int_equal(receive_one(near, near_fd), 0);
		if (!unread) {
			end(st);
			begin(st);
		}
	}
}

/* The lane turns both on and off for its own octets. */
static void options_are_the_programs_again_when_lane_is_left(void **st)
{
	const uint32_t flags[] = { 0, REC_NODELAY, REC_CORK, REC_NODELAY | REC_CORK };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	for (size_t i = 0; i < ARRAY_SIZE(flags); i++) {
		struct rec r = { .flags = flags[i] };
		int one = 1, zero = 0, nodelay = -1, cork = -1;
		socklen_t size = sizeof(int);

		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
		setsockopt(fd, IPPROTO_TCP, TCP_CORK, &zero, sizeof(zero));
		stream_restore_options(&r, fd);
		getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &nodelay, &size);
		getsockopt(fd, IPPROTO_TCP, TCP_CORK, &cork, &size);
		assert_int_equal(nodelay != 0, (flags[i] & REC_NODELAY) != 0);
		assert_int_equal(cork != 0, (flags[i] & REC_CORK) != 0);
	}
	close(fd);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(octets_ride_the_lane_when_hello_is_answered),
		TEST(octets_stay_on_tcp_when_hello_is_refused),
		TEST(octets_stay_on_tcp_when_answer_is_bad),
		TEST(octets_stay_on_tcp_when_answer_comes_late),
		TEST(nothing_is_lost_when_answer_is_bad_and_ring_is_used),
		TEST(switch_has_the_lane_when_ends_have_met),
		TEST(switch_loses_the_lane_when_it_never_will_be),
		TEST(switch_asks_nobody_when_a_rule_denies),
		TEST(offer_is_withdrawn_when_the_lane_leaves_the_list),
		TEST(octets_stay_on_tcp_when_the_lane_is_unregistered),
		TEST(end_is_a_reset_when_peer_died_with_octets_unread),
		cmocka_unit_test(options_are_the_programs_again_when_lane_is_left),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
