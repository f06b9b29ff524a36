/* SPDX-License-Identifier: MIT */
/* Conformance of the engine: Hello, HelloAck, set-up (OS-17, OS-24; README.md, chapter 2). */
#include "sdp/raw.h"

#include <netinet/in.h>

#include "base/bytes.h"
#include "base/clock.h"

static struct raw raw;
static struct sdp_conn conn;
static struct bed_listener listener;

/* The engine connects to a raw peer; the request is there. */
static void begin_connect(const struct sdp_attr *attr)
{
	raw_init(&raw);
	raw_listen(&raw);
	assert_int_equal(sdp_conn_init(&conn, attr), 0);
	assert_int_equal(sdp_conn_connect(&conn, &raw.listener->local), 0);
	raw_await_request(&raw);
}

static void end_connect(void)
{
	assert_int_equal(AT(&conn, illegal), 0);
	sdp_conn_fini(&conn);
	raw_fini(&raw);
}

static void hello_says_what_it_must(void **state)
{
	struct sdp_attr attr = bed_attr();
	size_t want = bed.layout == SDP_IB ? SDP_HELLO_IB_LEN : SDP_HELLO_IWARP_LEN;

	begin_connect(&attr);
	assert_int_equal(raw.data_len, want);
	assert_int_equal(get_be32(raw.data + 4), want);
	assert_int_equal(get_be32(raw.data + 8), 0);
	assert_int_equal(get_be32(raw.data + 12), 0);
	assert_int_equal(raw.data[0], SDP_HELLO);
	assert_int_equal(raw.data[16], 0x11);
	assert_int_equal(raw.theirs.bufs, 16);
	assert_int_equal(raw.theirs.rcv_size, 1024);
	assert_int_equal(raw.theirs.max_adverts, SDP_ADVERTS_MAX);
	if (bed.layout == SDP_IB) {
		static const uint8_t loopback[16] = { [12] = 127, [15] = 1 };

		assert_int_equal(raw.theirs.ip_version, 4);
		assert_memory_equal(raw.theirs.dest, loopback, 16);
		assert_memory_equal(raw.theirs.source, loopback, 16);
		assert_int_not_equal(raw.theirs.port, 0);
	} else {
		/* The same number in both, because their order is not known for sure. */
		assert_int_equal(raw.theirs.ord, raw.theirs.ird);
		assert_int_not_equal(raw.theirs.ord, 0);
	}
	assert_int_equal(raw.request->ops->reject(raw.request, 5, NULL, 0), 0);
	bed_until(bed_has(&conn, SDP_IS_FAILED));
	end_connect();
}

static void connection_opens_with_both_halves_combined(void **state)
{
	for (int role = RAW_LISTENS; role <= RAW_CONNECTS; role++) {
		struct raw_pair p;

		raw_open(&p, role);
		assert_int_equal(AT(p.c, state), SDPS_ESTABLISHED);
		assert_int_equal(AT(p.c, halves.in.mode), SDP_COMBINED);
		assert_int_equal(AT(p.c, halves.out.mode), SDP_COMBINED);
		assert_int_equal(AT(p.c, halves.in.non_discards), 0);
		assert_int_equal(AT(p.c, halves.out.pnd), 0);
		assert_int_equal(bed_credits(p.c), 64);
		/* Nothing is said before there is something to say. */
		raw_expect_quiet(&p.raw);
		raw_close(&p);
	}
}

static void names_are_those_of_the_peer(void **state)
{
	for (int role = RAW_LISTENS; role <= RAW_CONNECTS; role++) {
		struct raw_pair p;
		const struct sockaddr_in *local, *peer;
		const struct oti_addr *listening;

		raw_open(&p, role);
		local = (const struct sockaddr_in *)&p.c->local.sa;
		peer = (const struct sockaddr_in *)&p.c->peer.sa;
		assert_int_equal(ntohl(peer->sin_addr.s_addr), INADDR_LOOPBACK);
		assert_int_equal(ntohl(local->sin_addr.s_addr), INADDR_LOOPBACK);
		listening = role == RAW_LISTENS ? &p.raw.listener->local : &p.listener.l.llp->local;
		if (role == RAW_CONNECTS)
			peer = local;
		assert_int_equal(peer->sin_port,
				 ((const struct sockaddr_in *)&listening->sa)->sin_port);
		raw_close(&p);
	}
}

/* ---- accepting ---- */

static void begin_listen(unsigned backlog)
{
	struct sdp_attr attr = bed_attr();

	bed_listen(&listener, &attr, backlog);
	raw_init(&raw);
}

static void end_listen(void)
{
	raw_fini(&raw);
	bed_unlisten(&listener);
}

/* The Hello that `raw` would send, changed at one place, is refused. */
static void expect_refusal(const uint8_t *hello, size_t len)
{
	raw_init(&raw);
	raw_connect_octets(&raw, &listener.l.llp->local, hello, len);
	bed_until(LOCKED(&raw, raw.failed) || LOCKED(&raw, raw.accepted));
	assert_true(LOCKED(&raw, raw.failed));
	assert_int_equal(LOCKED(&raw, raw.error), ECONNREFUSED);
	assert_int_equal(LOCKED(&raw, raw.code), SDP_REJECT_HELLO);
	/* No SDP message goes with it. */
	assert_int_equal(raw.data_len, 0);
	raw_fini(&raw);
}

static size_t good_hello(uint8_t *to)
{
	int len;

	raw_init(&raw);
	len = sdp_hello_encode(&raw.ours, to, SDP_HELLO_MAX);
	raw_fini(&raw);
	assert_true(len > 0);
	return (size_t)len;
}

/* One thing at a time; then a good one is still accepted. */
static void listener_refuses_a_bad_hello(void **state)
{
	static const struct {
		size_t at;
		uint8_t octets[4];
		unsigned n;
	} bad[] = {
		{ 0, { SDP_DATA }, 1 },     /* MID */
		{ 4, { 0, 0, 1, 0 }, 4 },   /* Len */
		{ 16, { 0x31 }, 1 },        /* major version */
		{ 16, { 0x01 }, 1 },        /* major version */
		{ 18, { 0, 0 }, 2 },        /* MaxAdverts */
		{ 2, { 0, 2 }, 2 },         /* fewer than three buffers */
		{ 24, { 0, 0, 0, 36 }, 4 }, /* buffers that hold no octet */
	};
	uint8_t hello[SDP_HELLO_MAX];
	size_t len;

	begin_listen(8);
	raw_fini(&raw);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		len = good_hello(hello);
		memcpy(hello + bad[i].at, bad[i].octets, bad[i].n);
		expect_refusal(hello, len);
	}
	len = good_hello(hello);
	expect_refusal(hello, bed.layout == SDP_IB ? 63 : len - 1);
	expect_refusal(hello, 0);
	expect_refusal(hello, len + 1);
	if (bed.layout == SDP_IWARP) {
		len = good_hello(hello);
		put_be16(hello + 28, 0);
		expect_refusal(hello, len); /* LocORD */
		len = good_hello(hello);
		put_be16(hello + 30, 0);
		expect_refusal(hello, len); /* LocIRD */
	} else {
		len = good_hello(hello);
		hello[17] = 0x50;
		expect_refusal(hello, len); /* IP version */
	}
	raw_init(&raw);
	raw_connect(&raw, &listener.l.llp->local);
	raw_confirm(&raw);
	end_listen();
}

static void hello_ack_has_the_version_both_know(void **state)
{
	/* Received, answered. */
	static const uint8_t versions[][2] = {
		{ 0x11, 0x11 }, { 0x10, 0x10 }, { 0x1f, 0x11 }, { 0x22, 0x22 }, { 0x20, 0x20 },
	};

	begin_listen(8);
	raw_fini(&raw);
	for (size_t i = 0; i < sizeof(versions) / sizeof(versions[0]); i++) {
		raw_init(&raw);
		raw.ours.major = versions[i][0] >> 4;
		raw.ours.minor = versions[i][0] & 15;
		raw_connect(&raw, &listener.l.llp->local);
		raw_confirm(&raw);
		assert_int_equal(raw.theirs.major << 4 | raw.theirs.minor, versions[i][1]);
		raw_fini(&raw);
	}
	raw_init(&raw);
	end_listen();
}

static void hello_ack_has_the_sizes_and_limits(void **state)
{
	size_t want = bed.layout == SDP_IB ? SDP_HELLO_ACK_IB_LEN : SDP_HELLO_ACK_IWARP_LEN;

	begin_listen(8);
	raw.ours.ird = 3;
	raw_connect(&raw, &listener.l.llp->local);
	raw_confirm(&raw);
	assert_int_equal(raw.data_len, want);
	assert_int_equal(raw.theirs.bufs, 16);
	assert_int_equal(raw.theirs.rcv_size, 1024);
	assert_int_not_equal(raw.theirs.max_adverts, 0);
	/* ORD is cut to the peer's IRD. */
	if (bed.layout == SDP_IWARP)
		assert_true(raw.theirs.ord <= 3);
	end_listen();
}

static void hello_ack_does_not_wait_for_the_program(void **state)
{
	char octets[5];
	struct sdp_conn *c;

	begin_listen(8);
	raw_connect(&raw, &listener.l.llp->local);
	raw_confirm(&raw);
	/* Nobody has accepted, yet the stream moves. */
	raw_data(&raw, "hello", 5);
	bed_until(listener.notified);
	c = sdp_listener_accept(&listener.l);
	assert_non_null(c);
	bed_recv_all(c, octets, 5);
	assert_memory_equal(octets, "hello", 5);
	sdp_conn_fini(c);
	bed_free(&listener, c);
	end_listen();
}

static void short_hellos_of_one_family_are_accepted(void **state)
{
	uint8_t hello[SDP_HELLO_MAX];

	if (bed.layout != SDP_IB)
		skip();
	begin_listen(8);
	good_hello(hello);
	raw_init(&raw);
	raw_connect_octets(&raw, &listener.l.llp->local, hello, 64);
	raw_confirm(&raw);
	end_listen();
}

static void backlog_limits_the_children(void **state)
{
	struct raw peers[6];
	unsigned refused = 0;

	begin_listen(4);
	for (int i = 0; i < 6; i++) {
		raw_init(&peers[i]);
		raw_connect(&peers[i], &listener.l.llp->local);
		bed_until(LOCKED(&peers[i], peers[i].failed) ||
			  LOCKED(&peers[i], peers[i].accepted));
		if (LOCKED(&peers[i], peers[i].failed)) {
			assert_int_equal(LOCKED(&peers[i], peers[i].code), SDP_REJECT_BUSY);
			refused++;
		} else {
			raw_confirm(&peers[i]);
		}
	}
	assert_int_equal(refused, 2);
	/* First in, first out. */
	for (int i = 0; i < 4; i++) {
		struct sdp_conn *c = NULL;
		uint8_t octet = (uint8_t)i, got;

		raw_data(&peers[i], &octet, 1);
		bed_until((c = sdp_listener_accept(&listener.l)) != NULL);
		bed_recv_all(c, &got, 1);
		assert_int_equal(got, i);
		sdp_conn_fini(c);
		bed_free(&listener, c);
	}
	for (int i = 0; i < 6; i++)
		raw_fini(&peers[i]);
	end_listen();
}

static void closing_a_listener_resets_its_children(void **state)
{
	begin_listen(8);
	raw_connect(&raw, &listener.l.llp->local);
	raw_confirm(&raw);
	bed_until(listener.notified);
	sdp_listener_close(&listener.l);
	assert_int_equal(listener.dropped, 1);
	raw_expect_down(&raw);
	assert_int_equal(raw.how, OTI_DOWN_LOST);
	end_listen();
}

static void child_is_dropped_when_the_peer_does_not_confirm(void **state)
{
	begin_listen(8);
	raw_connect(&raw, &listener.l.llp->local);
	bed_until(LOCKED(&raw, raw.accepted));
	raw.conn->ops->abort(raw.conn);
	bed_until(listener.dropped == 1);
	assert_null(sdp_listener_accept(&listener.l));
	end_listen();
}

/* ---- connecting ---- */

static void expect_failure(int error)
{
	char c;

	bed_until(bed_has(&conn, SDP_IS_FAILED));
	assert_int_equal(AT(&conn, state), SDPS_CLOSED);
	assert_int_equal(AT(&conn, error), error);
	assert_int_equal(bed_recv(&conn, &c, 1), -error);
	assert_int_equal(bed_send(&conn, "x", 1), -error);
}

/* The engine has given up before the request is accepted: an error now, or the end later. */
static void accept_too_late(void)
{
	struct oti_conn_attr attr = raw_attr(&raw, NULL, 0);
	struct oti_request *req = raw.request;

	raw.request = NULL;
	if (req->ops->accept(req, &attr, &raw.conn))
		raw.conn = NULL;
	else
		raw_expect_down(&raw);
	assert_false(LOCKED(&raw, raw.up));
}

static void connecting_end_refuses_a_bad_hello_ack(void **state)
{
	static const struct {
		size_t at;
		uint8_t octets[4];
		unsigned n;
	} bad[] = {
		{ 0, { SDP_HELLO }, 1 }, { 4, { 0, 0, 1, 0 }, 4 }, { 16, { 0x31 }, 1 },
		{ 18, { 0, 0 }, 2 },     { 2, { 0, 2 }, 2 },       { 20, { 0, 0, 0, 36 }, 4 },
	};
	struct sdp_attr attr = bed_attr();

	for (size_t i = 0; i <= sizeof(bad) / sizeof(bad[0]); i++) {
		uint8_t ack[SDP_HELLO_MAX];
		int len;

		begin_connect(&attr);
		raw.ours.ack = true;
		len = sdp_hello_encode(&raw.ours, ack, sizeof(ack));
		if (i < sizeof(bad) / sizeof(bad[0]))
			memcpy(ack + bad[i].at, bad[i].octets, bad[i].n);
		else
			len = 0;
		raw_accept_octets(&raw, ack, (size_t)len);
		expect_failure(EPROTO);
		raw_expect_down(&raw);
		assert_false(LOCKED(&raw, raw.up));
		assert_int_equal(raw_waiting(&raw), 0);
		end_connect();
	}
}

static void connecting_end_takes_either_version(void **state)
{
	struct sdp_attr attr = bed_attr();

	attr.version = 0x22;
	begin_connect(&attr);
	assert_int_equal(raw.data[16], 0x22);
	raw.ours.minor = 0;
	raw_accept(&raw);
	bed_until(bed_has(&conn, SDP_IS_OPEN));
	end_connect();
}

static void rejection_is_connection_refused(void **state)
{
	struct sdp_attr attr = bed_attr();

	begin_connect(&attr);
	assert_int_equal(raw.request->ops->reject(raw.request, SDP_REJECT_HELLO, NULL, 0), 0);
	expect_failure(ECONNREFUSED);
	end_connect();
}

static void nobody_listening_is_connection_refused(void **state)
{
	struct sdp_attr attr = bed_attr();
	struct oti_addr to;

	raw_init(&raw);
	raw_listen(&raw);
	to = raw.listener->local;
	raw_fini(&raw);
	assert_int_equal(sdp_conn_init(&conn, &attr), 0);
	assert_int_equal(sdp_conn_connect(&conn, &to), 0);
	expect_failure(ECONNREFUSED);
	sdp_conn_fini(&conn);
}

static void connect_fails_at_once_without_an_address(void **state)
{
	struct sdp_attr attr = bed_attr();
	struct oti_addr to = bed.addr;

	assert_int_equal(sdp_conn_init(&conn, &attr), 0);
	assert_int_equal(sdp_conn_connect(&conn, &to), -EINVAL); /* port 0 */
	assert_int_equal(AT(&conn, state), SDPS_CLOSED);
	sdp_conn_fini(&conn);
	assert_int_equal(sdp_conn_init(&conn, &attr), 0);
	to.sa.ss_family = AF_UNIX;
	assert_int_equal(sdp_conn_connect(&conn, &to), -EAFNOSUPPORT);
	sdp_conn_fini(&conn);
}

static void connect_times_out(void **state)
{
	struct sdp_attr attr = bed_attr();
	uint64_t at;

	begin_connect(&attr);
	at = sdp_conn_deadline(&conn);
	assert_int_not_equal(at, 0);
	sdp_conn_tick(&conn, at - 1);
	assert_int_equal(AT(&conn, state), SDPS_REQ_SENT);
	sdp_conn_tick(&conn, at);
	expect_failure(ETIMEDOUT);
	accept_too_late();
	end_connect();
}

static void close_before_the_answer_gives_up(void **state)
{
	struct sdp_attr attr = bed_attr();

	begin_connect(&attr);
	assert_int_equal(sdp_conn_shut(&conn), -ENOTCONN);
	assert_int_equal(bed_send(&conn, "x", 1), -ENOTCONN);
	sdp_conn_close(&conn);
	assert_true(sdp_conn_is_done(&conn));
	accept_too_late();
	end_connect();
}

static void child_that_is_closed_early_holds_its_disconn(void **state)
{
	struct sdp_conn *child = &listener.children[0], *c = NULL;

	begin_listen(8);
	raw_connect(&raw, &listener.l.llp->local);
	bed_until(LOCKED(&raw, raw.accepted));
	assert_int_equal(AT(child, state), SDPS_REQ_RECV);
	sdp_conn_close(child);
	assert_int_equal(AT(child, state), SDPS_DIS_HOLD);
	raw_confirm(&raw);
	raw_expect(&raw, SDP_DISCONN);
	raw_say(&raw, SDP_DISCONN);
	bed_until((c = sdp_listener_accept(&listener.l)) != NULL);
	assert_ptr_equal(c, child);
	bed_until(sdp_conn_is_done(c));
	assert_true(bed_has(c, SDP_IS_CLOSED));
	sdp_conn_fini(c);
	bed_free(&listener, c);
	end_listen();
}

static void connect_twice_is_refused(void **state)
{
	struct raw_pair p;

	raw_open(&p, RAW_LISTENS);
	assert_int_equal(sdp_conn_connect(p.c, &p.raw.listener->local), -EISCONN);
	raw_close(&p);
}

static void attributes_below_the_minimum_are_refused(void **state)
{
	struct sdp_attr attr = bed_attr();

	attr.bufs = 2;
	assert_int_equal(sdp_conn_init(&conn, &attr), -EINVAL);
	attr = bed_attr();
	attr.buf_size = 36;
	assert_int_equal(sdp_conn_init(&conn, &attr), -EINVAL);
	attr.buf_size = 37;
	assert_int_equal(sdp_conn_init(&conn, &attr), 0);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		WITH_BED(hello_says_what_it_must),
		WITH_BED(connection_opens_with_both_halves_combined),
		WITH_BED(names_are_those_of_the_peer),
		WITH_BED(listener_refuses_a_bad_hello),
		WITH_BED(hello_ack_has_the_version_both_know),
		WITH_BED(hello_ack_has_the_sizes_and_limits),
		WITH_BED(hello_ack_does_not_wait_for_the_program),
		WITH_BED(short_hellos_of_one_family_are_accepted),
		WITH_BED(backlog_limits_the_children),
		WITH_BED(closing_a_listener_resets_its_children),
		WITH_BED(child_is_dropped_when_the_peer_does_not_confirm),
		WITH_BED(connecting_end_refuses_a_bad_hello_ack),
		WITH_BED(connecting_end_takes_either_version),
		WITH_BED(rejection_is_connection_refused),
		WITH_BED(nobody_listening_is_connection_refused),
		WITH_BED(connect_fails_at_once_without_an_address),
		WITH_BED(connect_times_out),
		WITH_BED(close_before_the_answer_gives_up),
		WITH_BED(child_that_is_closed_early_holds_its_disconn),
		WITH_BED(connect_twice_is_refused),
		WITH_BED(attributes_below_the_minimum_are_refused),
	};

	bed_init(argc, argv);
	return cmocka_run_group_tests_name("setup", tests, NULL, NULL);
}
