/* SPDX-License-Identifier: MIT */
/*
 * From TCP onto a lane, with both ends of a real connection in this process and without the hooks. As a
 * user that does not exist (see board_test.c), so it needs root.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

#include <flue/offload.h>

#include "sockets/arena.h"
#include "sockets/hello.h"
#include "sockets/ops_lane.h"
#include "sockets/process.h"
#include "sockets/sock.h"
#include "sockets/stream.h"

static uid_t user;
static struct rec *near, *far; /* far makes the lane */
static int near_fd, far_fd;

static void connect_both(void)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	socklen_t size = sizeof(a);
	struct ops_want want = ops_want(AF_INET, SOCK_STREAM, 0);
	struct ops_socket listener;
	int l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_int_equal(bind(l, (struct sockaddr *)&a, sizeof(a)), 0);
	assert_int_equal(listen(l, 1), 0);
	assert_int_equal(getsockname(l, (struct sockaddr *)&a, &size), 0);
	near_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(connect(near_fd, (struct sockaddr *)&a, sizeof(a)), 0);
	far_fd = accept4(l, NULL, NULL, SOCK_CLOEXEC);
	assert_true(far_fd >= 0);
	close(l);
	near = sock_add(near_fd, REC_OPEN, ROLE_ACTIVE, REC_ASKED);
	far = sock_add(far_fd, REC_OPEN, ROLE_PASSIVE, REC_ASKED);
	assert_true(near && far);
	ops_create(&near->ops, &want, near);
	ops_create(&listener, &want, near);
	ops_accept(&far->ops, &listener, false, far);
	ops_close(&listener);
	sock_connected(near);
	sock_connected(far);
	assert_true(sock_identify(near, near_fd) && sock_identify(far, far_fd));
}

static int begin(void **st)
{
	if (geteuid() != 0)
		return 0;
	process_init();
	user = 3200000000u + (uid_t)getpid() % 100000000u;
	if (seteuid(user) != 0)
		return -1;
	connect_both();
	return 0;
}

static int end(void **st)
{
	char path[64];

	if (geteuid() != user)
		return 0;
	sock_closing(near_fd);
	sock_closing(far_fd);
	close(near_fd);
	close(far_fd);
	process_drop(OUR_BOARD);
	if (seteuid(0) != 0)
		return -1;
	snprintf(path, sizeof(path), "/dev/shm/flue.%u", user);
	unlink(path);
	return 0;
}

#define NEED_ROOT()                    \
	do {                           \
		if (geteuid() != user) \
			skip();        \
	} while (0)

/* As the hooks do it. */
static void put(struct rec *r, int fd, uint8_t first, size_t n)
{
	uint8_t octets[4096];
	struct iovec iov = { octets, n };
	ssize_t done;

	for (size_t i = 0; i < n; i++)
		octets[i] = (uint8_t)(first + i);
	do {
		if (stream_before_send(r, fd, n) == STREAM_OURS) {
			done = stream_send(r, fd, &iov, 1, 0);
		} else {
			done = send(fd, octets, n, 0);
			stream_after_send(r, fd, done);
		}
	} while (done == STREAM_AGAIN);
	assert_int_equal(done, n);
}

static void take(struct rec *r, int fd, uint8_t first, size_t n)
{
	uint8_t octets[4096] = { 0 };
	struct iovec iov = { octets, n };
	ssize_t done;

	do {
		if (stream_before_receive(r, fd) == STREAM_OURS) {
			done = stream_receive(r, fd, &iov, 1, MSG_WAITALL);
		} else {
			done = recv(fd, octets, n, MSG_WAITALL);
			stream_after_receive(r, fd, done, 0);
		}
	} while (done == STREAM_AGAIN);
	assert_int_equal(done, n);
	for (size_t i = 0; i < n; i++)
		assert_int_equal(octets[i], (uint8_t)(first + i));
}

static void exchange(int rounds)
{
	for (int i = 0; i < rounds; i++) {
		put(near, near_fd, (uint8_t)i, 1000);
		take(far, far_fd, (uint8_t)i, 1000);
		put(far, far_fd, (uint8_t)(i + 7), 1000);
		take(near, near_fd, (uint8_t)(i + 7), 1000);
	}
}

static struct lane_shared *shared(void)
{
	return &arena_memory(far->arena)->lane[far->lane];
}

/* far has made a lane and near knows nothing of it yet. */
static void make_lane(void)
{
	put(near, near_fd, 1, 10);
	assert_int_equal(atomic_load(&near->state), REC_POSTED);
	take(far, far_fd, 1, 10);
	assert_int_equal(atomic_load(&far->state), REC_LANE);
	assert_int_equal(far->side, 0);
	assert_true(sock_flag(far, REC_UNANSWERED));
	assert_int_equal(atomic_load(&shared()->private_size[1]), 0);
	/* As long as the other end is not there everything goes by the carrier. */
	put(far, far_fd, 2, 10);
	assert_int_equal(far->sent.lane_bytes, 0);
	assert_true(sock_flag(far, REC_UNANSWERED));
}

static void attach_near(void)
{
	take(near, near_fd, 2, 10);
	assert_int_equal(atomic_load(&near->state), REC_LANE);
	assert_int_equal(near->side, 1);
	assert_true(atomic_load(&shared()->dir[0].word) & LANE_ATTACHED);
	assert_true(hello_is_answered(shared()));
}

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
	assert_null(near->arena);
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
	far->peer.sin6_addr.s6_addr[12] = 10;
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
	assert_int_equal(far->why, WHY_POLICY);
	assert_int_equal(near->ops.bound, OPS_UNDECIDED);
	assert_int_equal(atomic_load(&near->state), REC_POSTED);
	settings.bad_rules = true;
	exchange(2);
	end(st);
	begin(st);
	put(near, near_fd, 1, 10);
	assert_int_equal(near->why, WHY_RULES);
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
	assert_int_equal(process_kept(OUR_MAILBOX), -1); /* stopped */
	begin(st);
	assert_int_equal(near->ops.bound, OPS_NATIVE);
	exchange(100);
	assert_int_equal(through_lane(), 0);
	assert_int_equal(near->why, WHY_NATIVE);
	assert_int_equal(far->why, WHY_NATIVE);
	ops_lane_start();
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
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
