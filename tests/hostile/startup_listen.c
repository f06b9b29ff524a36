/* SPDX-License-Identifier: MIT */
/*
 * Start-up against a listener. A request that is none is answered by closing; what is well formed
 * but cannot be accepted is answered by a rejection; whoever is silent or slow runs out of time
 * (300 ms in this scene).
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/bytes.h"
#include "conf/pair.h"
#include "hostile/scene.h"

#define FLAGS_AT 16
#define REV_AT   17
#define PDLEN_AT 18

/* A good request of revision 2 with 8 octets of private data, 32 octets in all. */
static size_t good_request(const struct scene *s, uint8_t *buf)
{
	struct mpa_frame f = raw_request(&s->peer);

	f.data = (const uint8_t *)"8 octets";
	f.data_len = 8;
	return (size_t)mpa_frame_encode(&f, buf, MPA_FRAME_LEN + MPA_PD_MAX);
}

static void close_in_order(struct scene *s)
{
	raw_fin(&s->peer);
	raw_expect_end(&s->peer);
	scene_expect_down(s, FLUE_CLOSE_GRACEFUL, 0);
	scene_expect_flushed(s);
}

static void expect_no_request(struct scene *s)
{
	assert_null(s->listener->ops->get_request(s->listener, 0));
	assert_int_equal(errno, EAGAIN);
}

/* The listener is as good as new. */
static void expect_service(struct scene *s)
{
	raw_close(&s->peer);
	scene_connect(s, &scene_default);
	scene_prove(s);
	close_in_order(s);
}

/* ---- what is not a request ---- */

struct bad_request {
	const char *name;
	void (*spoil)(uint8_t *frame, size_t *len);
};

static void garbage(uint8_t *frame, size_t *len)
{
	pair_fill(frame, *len, 1);
}

static void another_protocol(uint8_t *frame, size_t *len)
{
	*len = (size_t)sprintf((char *)frame, "GET / HTTP/1.1\r\n\r\n");
}

static void wrong_first_octet(uint8_t *frame, size_t *len)
{
	(void)len;
	frame[0] = 'm';
}

static void wrong_last_octet_of_the_key(uint8_t *frame, size_t *len)
{
	(void)len;
	frame[FLAGS_AT - 1] = 'E';
}

static void reply_instead_of_request(uint8_t *frame, size_t *len)
{
	(void)len;
	memcpy(frame, "MPA ID Rep Frame", 16);
}

static void rejection_set(uint8_t *frame, size_t *len)
{
	(void)len;
	frame[FLAGS_AT] |= MPA_FLAG_REJECT;
}

static void private_data_of_513(uint8_t *frame, size_t *len)
{
	(void)len;
	put_be16(frame + PDLEN_AT, 513);
}

static void private_data_of_65535(uint8_t *frame, size_t *len)
{
	(void)len;
	put_be16(frame + PDLEN_AT, 65535);
}

static void no_room_for_the_enhanced_word(uint8_t *frame, size_t *len)
{
	put_be16(frame + PDLEN_AT, 3);
	*len = MPA_FRAME_LEN + 3;
}

static void no_enhanced_word_at_all(uint8_t *frame, size_t *len)
{
	put_be16(frame + PDLEN_AT, 0);
	*len = MPA_FRAME_LEN;
}

static const struct bad_request bad_requests[] = {
	{ "garbage", garbage },
	{ "another protocol", another_protocol },
	{ "a wrong first octet", wrong_first_octet },
	{ "a wrong last octet of the key", wrong_last_octet_of_the_key },
	{ "a reply instead of a request", reply_instead_of_request },
	{ "a request with R", rejection_set },
	{ "private data of 513 octets", private_data_of_513 },
	{ "private data of 65535 octets", private_data_of_65535 },
	{ "no room for the enhanced word", no_room_for_the_enhanced_word },
	{ "no enhanced word at all", no_enhanced_word_at_all },
};

static void listener_closes(struct scene *s, const struct bad_request *b, bool trickle)
{
	uint8_t frame[MPA_FRAME_LEN + MPA_PD_MAX];
	size_t len;

	s->peer.trickle = trickle;
	scene_dial(s);
	len = good_request(s, frame);
	b->spoil(frame, &len);
	raw_send(&s->peer, frame, len);
	raw_expect_end(&s->peer);
	expect_no_request(s);
	expect_service(s);
}

static void listener_closes_at_once(void **state)
{
	listener_closes(scene_here(), *state, false);
}

static void listener_closes_in_single_octets(void **state)
{
	listener_closes(scene_here(), *state, true);
}

/* ---- revisions ---- */

static void expect_refused_revision(struct scene *s, uint8_t rev)
{
	uint8_t frame[MPA_FRAME_LEN + MPA_PD_MAX];
	size_t len = good_request(s, frame);
	struct mpa_frame rep;

	scene_dial(s);
	frame[REV_AT] = rev;
	raw_send(&s->peer, frame, len);
	raw_expect_frame(&s->peer, true, &rep);
	assert_true(rep.flags & MPA_FLAG_REJECT);
	assert_int_equal(rep.rev, 2);
	raw_expect_end(&s->peer);
	expect_no_request(s);
	expect_service(s);
}

static void listener_refuses_revision_0(void **state)
{
	expect_refused_revision(*state, 0);
}

static void listener_refuses_revision_3(void **state)
{
	expect_refused_revision(*state, 3);
}

static void listener_refuses_revision_255(void **state)
{
	expect_refused_revision(*state, 255);
}

static void listener_accepts_revision_1_with_512_octets(void **state)
{
	struct scene *s = *state;
	uint8_t data[512];
	struct mpa_frame req = {
		.rev = 1, .flags = MPA_FLAG_CRC, .data = data, .data_len = sizeof(data)
	};
	struct flue_conn_attr attr = scene_attr(s);
	struct flue_conn_request *r;
	struct mpa_frame rep;

	pair_fill(data, sizeof(data), 6);
	scene_dial(s);
	raw_send_frame(&s->peer, &req);
	r = scene_request(s);
	assert_int_equal(r->revision, 1);
	assert_int_equal(r->private_len, 512);
	assert_int_equal(pair_check(r->private_data, 512, 6), 512);
	assert_int_equal(r->peer_ird, UINT32_MAX);
	assert_true(r->ops->accept(r, s->qp, &attr));
	raw_expect_frame(&s->peer, true, &rep);
	assert_int_equal(rep.rev, 1);
	assert_int_equal(rep.flags, MPA_FLAG_CRC);
	scene_await_connected(s);
	scene_prove(s);
	close_in_order(s);
}

/* S was not a flag yet in revision 1, and no other bit is one in revision 2. */
static void listener_ignores_reserved_flags(void **state)
{
	struct scene *s = *state;
	uint8_t frame[MPA_FRAME_LEN + MPA_PD_MAX];
	size_t len = good_request(s, frame);
	struct mpa_frame rep;

	frame[FLAGS_AT] |= 0x0c;
	scene_dial(s);
	raw_send(&s->peer, frame, len);
	scene_accept(s);
	raw_expect_frame(&s->peer, true, &rep);
	assert_int_equal(rep.flags & 0x0f, 0);
	raw_write(&s->peer, 1, 0, NULL, 0);
	scene_await_connected(s);
	scene_prove(s);
	close_in_order(s);
}

/* ---- silence ---- */

static void expect_timeout(struct scene *s, size_t octets)
{
	uint8_t frame[MPA_FRAME_LEN + MPA_PD_MAX];
	uint64_t start = pair_now_ms();

	scene_dial(s);
	good_request(s, frame);
	raw_send(&s->peer, frame, octets);
	raw_expect_end(&s->peer);
	assert_in_range(pair_now_ms() - start, 250, RAW_PATIENCE_MS / 2);
	expect_no_request(s);
	expect_service(s);
}

static void listener_times_out_a_silent_peer(void **state)
{
	expect_timeout(*state, 0);
}

static void listener_times_out_half_a_key(void **state)
{
	expect_timeout(*state, 7);
}

static void listener_times_out_a_header_without_its_end(void **state)
{
	expect_timeout(*state, MPA_FRAME_LEN - 1);
}

static void listener_times_out_missing_private_data(void **state)
{
	expect_timeout(*state, MPA_FRAME_LEN + 11);
}

/* The clock is not set back by every octet. */
static void listener_times_out_a_peer_that_trickles(void **state)
{
	struct scene *s = *state;
	uint8_t frame[MPA_FRAME_LEN + MPA_PD_MAX];
	uint64_t start = pair_now_ms();
	size_t len = good_request(s, frame), sent = 0;

	scene_dial(s);
	for (; sent < len && raw_send_some(&s->peer, frame + sent, 1); sent++)
		usleep(100000);
	assert_true(sent < len);
	assert_true(pair_now_ms() - start < RAW_PATIENCE_MS);
	raw_expect_end(&s->peer);
	expect_no_request(s);
	expect_service(s);
}

static void listener_forgets_a_peer_that_leaves_early(void **state)
{
	struct scene *s = *state;
	uint8_t frame[MPA_FRAME_LEN + MPA_PD_MAX];

	good_request(s, frame);
	scene_dial(s);
	raw_send(&s->peer, frame, 21);
	raw_fin(&s->peer);
	raw_expect_end(&s->peer);
	raw_close(&s->peer);
	scene_dial(s);
	raw_send(&s->peer, frame, 21);
	raw_reset(&s->peer);
	expect_no_request(s);
	expect_service(s);
}

static void accept_fails_when_the_peer_is_gone(void **state)
{
	struct scene *s = *state;
	struct mpa_frame req = raw_request(&s->peer);
	struct flue_conn_request *r;
	struct flue_conn_attr attr = scene_attr(s);
	int err;

	scene_dial(s);
	raw_send_frame(&s->peer, &req);
	r = scene_request(s);
	raw_reset(&s->peer);
	usleep(20000);
	assert_true(r->ops->accept(r, s->qp, &attr));
	err = scene_await_failed(s);
	assert_true(err == ECONNRESET || err == EPIPE);
}

/* ---- what goes with the request ---- */

static void markers_are_inserted_when_asked_for(void **state)
{
	struct scene *s = *state;
	struct mpa_frame req, rep;

	/* To us with markers, from us without. */
	s->peer.rx.markers = true;
	scene_dial(s);
	req = raw_request(&s->peer);
	assert_true(req.flags & MPA_FLAG_MARKERS);
	raw_send_frame(&s->peer, &req);
	scene_accept(s);
	raw_expect_frame(&s->peer, true, &rep);
	assert_false(rep.flags & MPA_FLAG_MARKERS);
	raw_write(&s->peer, 1, 0, NULL, 0);
	scene_await_connected(s);
	scene_prove(s);
	close_in_order(s);
}

static void fpdus_behind_the_request_are_not_lost(void **state)
{
	struct scene *s = *state;
	struct mpa_frame req = raw_request(&s->peer), rep;

	scene_post_recv(s, 0, 8);
	scene_dial(s);
	raw_cork(&s->peer);
	raw_send_frame(&s->peer, &req);
	raw_write(&s->peer, 1, 0, NULL, 0);
	raw_send_message(&s->peer, "too soon", 8);
	raw_uncork(&s->peer);
	scene_accept(s);
	raw_expect_frame(&s->peer, true, &rep);
	scene_await_connected(s);
	scene_expect_wc(s, 1, FLUE_WC_SUCCESS, NULL);
	scene_expect(s, AREA_LOCAL, 0, "too soon", 8);
	scene_prove(s);
	close_in_order(s);
}

static void garbage_behind_the_request_ends_the_connection(void **state)
{
	struct scene *s = *state;
	struct mpa_frame req = raw_request(&s->peer), rep;

	scene_dial(s);
	raw_cork(&s->peer);
	raw_send_frame(&s->peer, &req);
	raw_send_ulpdu(&s->peer, (const uint8_t *)"nonsense", 8, RAW_BAD_CRC);
	raw_uncork(&s->peer);
	scene_accept(s);
	raw_expect_frame(&s->peer, true, &rep);
	raw_expect_terminate(&s->peer, FAULT_MPA_CRC);
	raw_close(&s->peer);
	assert_int_equal(scene_await_failed(s), ECONNRESET);
}

static void depth_that_cannot_be_held_is_refused(void **state)
{
	struct scene *s = *state;
	struct mpa_frame req = raw_request(&s->peer), rep;
	struct flue_conn_attr attr = scene_attr(s);
	struct flue_conn_request *r;

	req.ord = 5000;
	scene_dial(s);
	raw_send_frame(&s->peer, &req);
	r = scene_request(s);
	assert_int_equal(r->peer_ord, 5000);
	assert_false(r->ops->accept(r, s->qp, &attr));
	raw_expect_frame(&s->peer, true, &rep);
	assert_true(rep.flags & MPA_FLAG_REJECT);
	assert_int_equal(rep.ird, s->adapter->caps->max_ird);
	raw_expect_end(&s->peer);
	expect_service(s);
}

static void rejection_carries_private_data(void **state)
{
	struct scene *s = *state;
	struct mpa_frame req = raw_request(&s->peer), rep;
	struct flue_conn_request *r;

	scene_dial(s);
	raw_send_frame(&s->peer, &req);
	r = scene_request(s);
	assert_true(r->ops->reject(r, "go away", 7));
	raw_expect_frame(&s->peer, true, &rep);
	assert_true(rep.flags & MPA_FLAG_REJECT);
	assert_int_equal(rep.data_len, 7);
	assert_memory_equal(rep.data, "go away", 7);
	raw_expect_end(&s->peer);
	expect_service(s);
}

/* ---- who speaks first ---- */

/* Its end, once it has read that it was rejected. */
static void be_rejected(struct scene *s)
{
	struct flue_conn_request *req;
	struct mpa_frame f;

	scene_dial(s);
	f = raw_request(&s->peer);
	raw_send_frame(&s->peer, &f);
	req = scene_request(s);
	assert_true(req->ops->reject(req, NULL, 0));
	raw_expect_frame(&s->peer, true, &f);
	assert_int_equal(f.flags & MPA_FLAG_REJECT, MPA_FLAG_REJECT);
}

/* A rejected peer has a second to close first. There is a limit for such peers at one time (64), and those who
 * closed count no more. */
static void rejected_peers_are_forgotten_when_they_close(void **state)
{
	struct scene *s = *state;
	uint64_t begun;

	for (unsigned i = 0; i < 80; i++) {
		be_rejected(s);
		raw_close(&s->peer);
	}
	begun = pair_now_ms();
	be_rejected(s);
	raw_expect_end(&s->peer);
	assert_true(pair_now_ms() - begun >= 900);
}

static void start_two_way(struct scene *s)
{
	struct mpa_frame req = raw_request(&s->peer), rep;

	req.p2p = false;
	req.rtr = 0;
	scene_dial(s);
	raw_send_frame(&s->peer, &req);
	scene_accept(s);
	raw_expect_frame(&s->peer, true, &rep);
	assert_false(rep.p2p);
	scene_await_connected(s);
}

static void responder_is_silent_before_the_first_fpdu(void **state)
{
	struct scene *s = *state;
	struct raw_fpdu f;
	uint64_t id;

	start_two_way(s);
	id = scene_post_send(s, 0, 100);
	raw_expect_silence(&s->peer, 150);
	raw_write(&s->peer, 1, 0, NULL, 0);
	raw_expect_fpdu(&s->peer, RDMAP_SEND, &f);
	assert_memory_equal(f.payload, scene_at(s, AREA_LOCAL, 0), 100);
	scene_expect_wc(s, id, FLUE_WC_SUCCESS, NULL);
	close_in_order(s);
}

static void responder_stays_silent_after_half_an_fpdu(void **state)
{
	struct scene *s = *state;
	uint8_t start[10] = { 0, 14, 0xc1, 0x40 };

	start_two_way(s);
	scene_post_send(s, 0, 100);
	raw_send(&s->peer, start, sizeof(start));
	raw_expect_silence(&s->peer, 150);
	raw_close(&s->peer);
	scene_expect_down(s, FLUE_CLOSE_LOST, ECONNRESET);
	scene_expect_flushed(s);
}

static void lenient_responder_speaks_first(void **state)
{
	struct scene *s = *state;
	struct raw_fpdu f;
	uint64_t id;

	s->conn_flags = FLUE_CONN_LENIENT;
	start_two_way(s);
	id = scene_post_send(s, 0, 100);
	raw_expect_fpdu(&s->peer, RDMAP_SEND, &f);
	scene_expect_wc(s, id, FLUE_WC_SUCCESS, NULL);
	scene_prove(s);
	close_in_order(s);
}

/* ---- ready to receive ---- */

static void offer_rtr(struct scene *s, uint8_t kinds, struct mpa_frame *rep)
{
	struct mpa_frame req = raw_request(&s->peer);

	req.rtr = kinds;
	scene_dial(s);
	raw_send_frame(&s->peer, &req);
	scene_accept(s);
	raw_expect_frame(&s->peer, true, rep);
	assert_true(rep->p2p);
}

static void rtr_by_send_takes_no_receive(void **state)
{
	struct scene *s = *state;
	struct mpa_frame rep;

	scene_post_recv(s, 0, 8);
	offer_rtr(s, MPA_RTR_SEND, &rep);
	assert_int_equal(rep.rtr, MPA_RTR_SEND);
	raw_send_message(&s->peer, NULL, 0);
	scene_await_connected(s);
	raw_send_message(&s->peer, "ready", 5);
	scene_expect_wc(s, 1, FLUE_WC_SUCCESS, NULL);
	scene_expect(s, AREA_LOCAL, 0, "ready", 5);
	scene_prove(s);
	close_in_order(s);
}

static void rtr_by_read_is_answered(void **state)
{
	struct scene *s = *state;
	struct rdmap_read_request r = { .sink_stag = 3, .sink_to = 4 };
	struct mpa_frame rep;
	struct raw_fpdu f;

	offer_rtr(s, MPA_RTR_READ, &rep);
	assert_int_equal(rep.rtr, MPA_RTR_READ);
	raw_read_request(&s->peer, &r);
	raw_expect_fpdu(&s->peer, RDMAP_READ_RESPONSE, &f);
	assert_int_equal(f.seg.stag, 3);
	assert_int_equal(f.seg.to, 4);
	assert_int_equal(f.seg.payload_len, 0);
	scene_await_connected(s);
	scene_prove(s);
	close_in_order(s);
}

static void write_is_the_first_choice_of_rtr(void **state)
{
	struct scene *s = *state;
	struct mpa_frame rep;

	offer_rtr(s, MPA_RTR_SEND | MPA_RTR_READ | MPA_RTR_WRITE, &rep);
	assert_int_equal(rep.rtr, MPA_RTR_WRITE);
	raw_write(&s->peer, 1, 0, NULL, 0);
	scene_await_connected(s);
	scene_prove(s);
	close_in_order(s);
}

/* Without a kind in common the initiator terminates (RFC 6581 section 9.2). */
static void no_common_rtr_fails_the_connection(void **state)
{
	struct scene *s = *state;
	static const uint8_t no_match[4] = { 0x20, 0x07 };
	struct mpa_frame rep;

	s->conn_flags = FLUE_CONN_RTR_READ;
	offer_rtr(s, MPA_RTR_SEND, &rep);
	assert_int_equal(rep.rtr, MPA_RTR_READ);
	raw_terminate(&s->peer, no_match, sizeof(no_match));
	raw_expect_end(&s->peer);
	raw_close(&s->peer);
	assert_int_equal(scene_await_failed(s), ECONNRESET);
}

static void rtr_that_never_comes_times_out(void **state)
{
	struct scene *s = *state;
	struct mpa_frame req = raw_request(&s->peer), rep;
	struct flue_conn_attr attr = scene_attr(s);
	struct flue_conn_request *r;

	attr.timeout_ms = 200;
	scene_dial(s);
	raw_send_frame(&s->peer, &req);
	r = scene_request(s);
	assert_true(r->ops->accept(r, s->qp, &attr));
	raw_expect_frame(&s->peer, true, &rep);
	raw_expect_end(&s->peer);
	assert_int_equal(scene_await_failed(s), ETIMEDOUT);
}

/* ---- deferred ---- */

static void fpdus_wait_while_the_responder_does(void **state)
{
	struct scene *s = *state;
	struct mpa_frame rep;

	s->conn_flags = FLUE_CONN_DEFER;
	offer_rtr(s, MPA_RTR_WRITE, &rep);
	scene_await_accepted(s);
	raw_write(&s->peer, 1, 0, NULL, 0);
	raw_send_message(&s->peer, "too soon", 8);
	raw_expect_silence(&s->peer, 50);
	assert_int_equal(flue_qp_state(s->qp), FLUE_QP_IDLE);
	scene_post_recv(s, 0, 8);
	assert_true(s->qp->ops->start(s->qp));
	scene_await_connected(s);
	scene_expect_wc(s, 1, FLUE_WC_SUCCESS, NULL);
	scene_expect(s, AREA_LOCAL, 0, "too soon", 8);
	scene_prove(s);
	close_in_order(s);
}

static void peer_that_leaves_a_waiting_responder_is_noticed(void **state)
{
	struct scene *s = *state;
	struct mpa_frame rep;

	s->conn_flags = FLUE_CONN_DEFER;
	offer_rtr(s, MPA_RTR_WRITE, &rep);
	scene_await_accepted(s);
	raw_reset(&s->peer);
	usleep(20000);
	s->qp->ops->start(s->qp);
	scene_await_end(s);
}

#define BAD (sizeof(bad_requests) / sizeof(bad_requests[0]))

static const struct CMUnitTest others[] = {
	WITH_SCENE(listener_refuses_revision_0),
	WITH_SCENE(listener_refuses_revision_3),
	WITH_SCENE(listener_refuses_revision_255),
	WITH_SCENE(listener_accepts_revision_1_with_512_octets),
	WITH_SCENE(listener_ignores_reserved_flags),
	WITH_SCENE(listener_times_out_a_silent_peer),
	WITH_SCENE(listener_times_out_half_a_key),
	WITH_SCENE(listener_times_out_a_header_without_its_end),
	WITH_SCENE(listener_times_out_missing_private_data),
	WITH_SCENE(listener_times_out_a_peer_that_trickles),
	WITH_SCENE(listener_forgets_a_peer_that_leaves_early),
	WITH_SCENE(accept_fails_when_the_peer_is_gone),
	WITH_SCENE(markers_are_inserted_when_asked_for),
	WITH_SCENE(fpdus_behind_the_request_are_not_lost),
	WITH_SCENE(garbage_behind_the_request_ends_the_connection),
	WITH_SCENE(depth_that_cannot_be_held_is_refused),
	WITH_SCENE(rejection_carries_private_data),
	WITH_SCENE(rejected_peers_are_forgotten_when_they_close),
	WITH_SCENE(responder_is_silent_before_the_first_fpdu),
	WITH_SCENE(responder_stays_silent_after_half_an_fpdu),
	WITH_SCENE(lenient_responder_speaks_first),
	WITH_SCENE(rtr_by_send_takes_no_receive),
	WITH_SCENE(rtr_by_read_is_answered),
	WITH_SCENE(write_is_the_first_choice_of_rtr),
	WITH_SCENE(no_common_rtr_fails_the_connection),
	WITH_SCENE(rtr_that_never_comes_times_out),
	WITH_SCENE(fpdus_wait_while_the_responder_does),
	WITH_SCENE(peer_that_leaves_a_waiting_responder_is_noticed),
};
#define OTHERS (sizeof(others) / sizeof(others[0]))

int main(void)
{
	static struct CMUnitTest tests[2 * BAD + OTHERS];
	static char names[2 * BAD][100];
	size_t n = 0;

	for (int trickle = 0; trickle < 2; trickle++) {
		for (size_t i = 0; i < BAD; i++, n++) {
			snprintf(names[n], sizeof(names[n]), "listener_closes: %s%s",
				 bad_requests[i].name, trickle ? " (in single octets)" : "");
			tests[n] = (struct CMUnitTest) {
				.name = names[n],
				.test_func = trickle ? listener_closes_in_single_octets
						     : listener_closes_at_once,
				.setup_func = scene_enter,
				.teardown_func = scene_leave,
				.initial_state = (void *)&bad_requests[i],
			};
		}
	}
	memcpy(tests + n, others, sizeof(others));
	return _cmocka_run_group_tests("startup_listen", tests, n + OTHERS, scene_open,
				       scene_close);
}
