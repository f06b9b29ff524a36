/* SPDX-License-Identifier: MIT */
/* Conformance of the engine: the peer changes its owner (OS-20; README.md, chapter 5). */
#include "sdp/raw.h"

#include <netinet/in.h>

static struct raw_pair p;
static struct raw heir; /* the new owner */

static uint16_t port_of(const struct raw *r)
{
	return ntohs(((const struct sockaddr_in *)&r->listener->local.sa)->sin_port);
}

static void say_susp_comm(uint16_t port)
{
	struct sdp_msg m = { .mid = SDP_SUSP_COMM, .port = port };

	raw_say_msg(&p.raw, &m, NULL);
}

static void begin(enum raw_role role)
{
	raw_open(&p, role);
	raw_init(&heir);
	raw_listen(&heir);
}

static void end(void)
{
	raw_fini(&heir);
	raw_close(&p);
}

/* The engine has let go of the old owner and asks the new one. */
static void follow(void)
{
	raw_expect(&p.raw, SDP_SUSP_COMM_ACK);
	raw_expect_down(&p.raw);
	assert_int_equal(LOCKED(&p.raw, p.raw.how), OTI_DOWN_PEER);
	assert_true(bed_has(p.c, SDP_IS_MOVING));
	raw_await_request(&heir);
}

static void stream_goes_on_at_the_new_owner(void **state)
{
	for (int role = RAW_LISTENS; role <= RAW_CONNECTS; role++) {
		char got[8];

		begin(role);
		raw_data(&p.raw, "abc", 3);
		bed_until(AT(p.c, unread) == 3);
		say_susp_comm(port_of(&heir));
		follow();
		/* What was received before can be read while nobody is connected. */
		assert_int_equal(bed_recv(p.c, got, 2), 2);
		assert_int_equal(bed_send(p.c, "sent", 4), 4);
		raw_accept(&heir);
		bed_until(!bed_has(p.c, SDP_IS_MOVING));
		/* Numbers begin anew, in Combined. */
		assert_int_equal(raw_expect(&heir, SDP_DATA).payload_len, 4);
		raw_data(&heir, "def", 3);
		bed_until(AT(p.c, unread) == 4);
		bed_recv_all(p.c, got, 4);
		assert_memory_equal(got, "cdef", 4);
		assert_int_equal(AT(p.c, halves.in.mode), SDP_COMBINED);
		assert_null(AT(p.c, shell));
		/* And it ends like any other. */
		sdp_conn_close(p.c);
		raw_expect(&heir, SDP_DISCONN);
		raw_say(&heir, SDP_DISCONN);
		bed_until(sdp_conn_is_done(p.c));
		assert_true(bed_has(p.c, SDP_IS_CLOSED));
		end();
	}
}

static void octets_that_wait_go_to_the_new_owner(void **state)
{
	uint8_t payload[8];

	begin(RAW_LISTENS);
	p.raw.say_bufs = 2;
	raw_data(&p.raw, NULL, 0);
	bed_until(bed_credits(p.c) == 2);
	assert_int_equal(bed_send(p.c, "wait", 4), 4);
	raw_expect_quiet(&p.raw);
	say_susp_comm(port_of(&heir));
	follow();
	raw_accept(&heir);
	assert_int_equal(raw_next(&heir, payload).payload_len, 4);
	assert_memory_equal(payload, "wait", 4);
	end();
}

static void answer_waits_for_a_credit(void **state)
{
	begin(RAW_LISTENS);
	p.raw.say_bufs = 0;
	raw_data(&p.raw, NULL, 0);
	say_susp_comm(port_of(&heir));
	raw_expect_quiet(&p.raw);
	assert_false(bed_has(p.c, SDP_IS_MOVING));
	/* The peer has promised to say nothing more. */
	raw_data(&p.raw, NULL, 0);
	raw_expect_violation(&p);
	end();
}

static void shut_while_moving_reaches_the_new_owner(void **state)
{
	begin(RAW_LISTENS);
	say_susp_comm(port_of(&heir));
	follow();
	assert_int_equal(sdp_conn_shut(p.c), 0);
	raw_accept(&heir);
	raw_expect(&heir, SDP_DISCONN);
	end();
}

static void abort_while_moving_gives_up(void **state)
{
	begin(RAW_LISTENS);
	say_susp_comm(port_of(&heir));
	follow();
	sdp_conn_abort(p.c);
	assert_true(bed_has(p.c, SDP_IS_RESET));
	assert_int_equal(heir.request->ops->reject(heir.request, 1, NULL, 0), 0);
	heir.request = NULL;
	end();
}

static void new_owner_that_refuses_is_a_reset(void **state)
{
	begin(RAW_LISTENS);
	say_susp_comm(port_of(&heir));
	follow();
	assert_int_equal(heir.request->ops->reject(heir.request, 1, NULL, 0), 0);
	heir.request = NULL;
	bed_until(bed_has(p.c, SDP_IS_RESET));
	assert_int_equal(AT(p.c, error), ECONNRESET);
	end();
}

static void new_owner_with_a_bad_hello_ack_is_a_reset(void **state)
{
	begin(RAW_LISTENS);
	say_susp_comm(port_of(&heir));
	follow();
	raw_accept_octets(&heir, "what", 4);
	bed_until(bed_has(p.c, SDP_IS_RESET));
	raw_expect_down(&heir);
	end();
}

static void nobody_at_the_port_is_a_reset(void **state)
{
	uint16_t port;

	begin(RAW_LISTENS);
	port = port_of(&heir);
	raw_fini(&heir);
	say_susp_comm(port);
	raw_expect(&p.raw, SDP_SUSP_COMM_ACK);
	bed_until(bed_has(p.c, SDP_IS_RESET));
	raw_init(&heir);
	end();
}

static void new_owner_that_does_not_answer_is_a_reset_after_a_while(void **state)
{
	begin(RAW_LISTENS);
	say_susp_comm(port_of(&heir));
	follow();
	sdp_conn_tick(p.c, sdp_conn_deadline(p.c));
	assert_true(bed_has(p.c, SDP_IS_RESET));
	assert_int_equal(AT(p.c, error), ETIMEDOUT);
	assert_int_equal(heir.request->ops->reject(heir.request, 1, NULL, 0), 0);
	heir.request = NULL;
	end();
}

/* Unfinished adverts forbid it. */
static void violations_of_susp_comm(void **state)
{
	struct sdp_msg m = { .mid = SDP_SRC_AVAIL, .advert_len = 10, .payload_len = 1 };

	begin(RAW_LISTENS);
	raw_say_msg(&p.raw, &m, "x");
	raw_expect(&p.raw, SDP_SEND_SM);
	say_susp_comm(port_of(&heir));
	raw_expect_violation(&p);
	end();
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		WITH_BED(stream_goes_on_at_the_new_owner),
		WITH_BED(octets_that_wait_go_to_the_new_owner),
		WITH_BED(answer_waits_for_a_credit),
		WITH_BED(shut_while_moving_reaches_the_new_owner),
		WITH_BED(abort_while_moving_gives_up),
		WITH_BED(new_owner_that_refuses_is_a_reset),
		WITH_BED(new_owner_with_a_bad_hello_ack_is_a_reset),
		WITH_BED(nobody_at_the_port_is_a_reset),
		WITH_BED(new_owner_that_does_not_answer_is_a_reset_after_a_while),
		WITH_BED(violations_of_susp_comm),
	};

	bed_init(argc, argv);
	return cmocka_run_group_tests_name("moving", tests, NULL, NULL);
}
