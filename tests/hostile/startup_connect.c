/* SPDX-License-Identifier: MIT */
/* Start-up against connect(): the raw peer is the responder. */
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

static const struct scene_mode as_initiator = { .name = "as initiator",
						.initiator = true,
						.crc = true };

/* The victim calls; its request is read and a fine reply made, but not sent. */
static struct mpa_frame called(struct scene *s, struct mpa_frame *req)
{
	scene_use(s, &as_initiator);
	close(scene_call(s));
	raw_expect_frame(&s->peer, false, req);
	return raw_reply(&s->peer, req);
}

static void close_in_order(struct scene *s)
{
	raw_fin(&s->peer);
	raw_expect_end(&s->peer);
	scene_expect_down(s, FLUE_CLOSE_GRACEFUL, 0);
	scene_expect_flushed(s);
}

/* ---- what is not a reply ---- */

struct bad_reply {
	const char *name;
	void (*spoil)(uint8_t *frame, size_t *len);
};

static void garbage(uint8_t *frame, size_t *len)
{
	pair_fill(frame, *len, 1);
}

static void request_instead_of_reply(uint8_t *frame, size_t *len)
{
	(void)len;
	memcpy(frame, "MPA ID Req Frame", 16);
}

static void wrong_last_octet_of_the_key(uint8_t *frame, size_t *len)
{
	(void)len;
	frame[FLAGS_AT - 1] ^= 1;
}

static void private_data_of_513(uint8_t *frame, size_t *len)
{
	(void)len;
	put_be16(frame + PDLEN_AT, 513);
}

static void no_room_for_the_enhanced_word(uint8_t *frame, size_t *len)
{
	put_be16(frame + PDLEN_AT, 2);
	*len = MPA_FRAME_LEN + 2;
}

static void not_enhanced(uint8_t *frame, size_t *len)
{
	(void)len;
	frame[FLAGS_AT] &= (uint8_t)~MPA_FLAG_ENHANCED;
}

static void revision_1(uint8_t *frame, size_t *len)
{
	(void)len;
	frame[REV_AT] = 1;
}

static void revision_0(uint8_t *frame, size_t *len)
{
	(void)len;
	frame[REV_AT] = 0;
}

static void revision_3(uint8_t *frame, size_t *len)
{
	(void)len;
	frame[REV_AT] = 3;
}

static const struct bad_reply bad_replies[] = {
	{ "garbage", garbage },
	{ "a request instead of a reply", request_instead_of_reply },
	{ "a wrong last octet of the key", wrong_last_octet_of_the_key },
	{ "private data of 513 octets", private_data_of_513 },
	{ "no room for the enhanced word", no_room_for_the_enhanced_word },
	{ "a reply that is not enhanced", not_enhanced },
	{ "a reply of revision 1", revision_1 },
	{ "a reply of revision 0", revision_0 },
	{ "a reply of revision 3", revision_3 },
};

static void connect_fails(void **state)
{
	struct scene *s = scene_here();
	const struct bad_reply *b = *state;
	uint8_t frame[MPA_FRAME_LEN + MPA_PD_MAX];
	struct mpa_frame req, rep = called(s, &req);
	size_t len = (size_t)mpa_frame_encode(&rep, frame, sizeof(frame));

	b->spoil(frame, &len);
	raw_send(&s->peer, frame, len);
	raw_expect_end(&s->peer);
	raw_close(&s->peer);
	assert_int_equal(scene_await_failed(s), EPROTO);
	assert_int_equal(flue_qp_state(s->qp), FLUE_QP_IDLE);
}

/* ---- cut, slow, silent ---- */

static void expect_cut_reply(struct scene *s, bool reset)
{
	uint8_t frame[MPA_FRAME_LEN + MPA_PD_MAX];
	struct mpa_frame req, rep = called(s, &req);

	mpa_frame_encode(&rep, frame, sizeof(frame));
	raw_send(&s->peer, frame, 21);
	usleep(5000);
	if (reset)
		raw_reset(&s->peer);
	else
		raw_close(&s->peer);
	assert_int_equal(scene_await_failed(s), ECONNRESET);
}

static void connect_fails_when_the_reply_is_cut(void **state)
{
	expect_cut_reply(*state, false);
}

static void connect_fails_when_the_peer_resets_in_its_reply(void **state)
{
	expect_cut_reply(*state, true);
}

static void expect_silent_peer(struct scene *s, size_t octets)
{
	uint8_t frame[MPA_FRAME_LEN + MPA_PD_MAX];
	struct flue_conn_attr attr;
	struct sockaddr_storage at;
	struct mpa_frame req, rep;
	uint64_t start = pair_now_ms();
	int fd;

	scene_use(s, &as_initiator);
	attr = scene_attr(s);
	attr.timeout_ms = 200;
	fd = raw_listen(&at, &attr.remote_len);
	attr.remote = (struct sockaddr *)&at;
	assert_true(s->qp->ops->connect(s->qp, &attr));
	raw_accept(&s->peer, fd);
	close(fd);
	raw_expect_frame(&s->peer, false, &req);
	rep = raw_reply(&s->peer, &req);
	mpa_frame_encode(&rep, frame, sizeof(frame));
	raw_send(&s->peer, frame, octets);
	assert_int_equal(scene_await_failed(s), ETIMEDOUT);
	assert_in_range(pair_now_ms() - start, 190, RAW_PATIENCE_MS / 2);
	raw_expect_end(&s->peer);
}

static void connect_times_out_on_a_silent_peer(void **state)
{
	expect_silent_peer(*state, 0);
}

static void connect_times_out_on_half_a_reply(void **state)
{
	expect_silent_peer(*state, 22);
}

static void connect_can_be_aborted_while_it_waits(void **state)
{
	struct scene *s = *state;
	struct mpa_frame req;

	called(s, &req);
	flue_abort(s->qp);
	raw_expect_end(&s->peer);
	assert_int_equal(scene_await_failed(s), ECONNABORTED);
}

static void reply_in_single_octets_is_fine(void **state)
{
	struct scene *s = *state;
	struct mpa_frame req, rep = called(s, &req);
	struct raw_fpdu f;

	s->peer.trickle = true;
	raw_send_frame(&s->peer, &rep);
	raw_expect_fpdu(&s->peer, RDMAP_WRITE, &f);
	scene_await_connected(s);
	scene_prove(s);
	close_in_order(s);
}

/* ---- refusals ---- */

static void rejection_brings_its_private_data(void **state)
{
	struct scene *s = *state;
	struct mpa_frame req, rep = called(s, &req);

	rep.flags |= MPA_FLAG_REJECT;
	rep.data = (const uint8_t *)"not you";
	rep.data_len = 7;
	raw_send_frame(&s->peer, &rep);
	raw_expect_end(&s->peer);
	assert_int_equal(scene_await_failed(s), ECONNREFUSED);
	assert_int_equal(s->qp->private_len, 7);
	assert_memory_equal(s->qp->private_data, "not you", 7);
}

/* A peer that knows revision 1 only refuses in its own form. */
static void rejection_of_another_revision_is_one(void **state)
{
	struct scene *s = *state;
	struct mpa_frame req, rep = called(s, &req);

	rep.rev = 1;
	rep.flags = MPA_FLAG_REJECT;
	raw_send_frame(&s->peer, &rep);
	raw_expect_end(&s->peer);
	assert_int_equal(scene_await_failed(s), ECONNREFUSED);
	assert_int_equal(s->qp->private_len, 0);
}

static void connect_fails_where_nobody_listens(void **state)
{
	struct scene *s = *state;
	struct flue_conn_attr attr;
	struct sockaddr_storage at;

	scene_use(s, &as_initiator);
	attr = scene_attr(s);
	close(raw_listen(&at, &attr.remote_len));
	attr.remote = (struct sockaddr *)&at;
	if (s->qp->ops->connect(s->qp, &attr))
		assert_int_equal(scene_await_failed(s), ECONNREFUSED);
	else
		assert_int_equal(errno, ECONNREFUSED);
}

/* RFC 6581 section 9: what the responder wants is more than we have. */
static void insufficient_ird_is_terminated(void **state)
{
	struct scene *s = *state;
	struct mpa_frame req, rep = called(s, &req);

	rep.ord = (uint16_t)(s->adapter->caps->max_ird + 1);
	raw_send_frame(&s->peer, &rep);
	raw_expect_terminate(&s->peer, FAULT_MPA_IRD);
	raw_close(&s->peer);
	assert_int_equal(scene_await_failed(s), ENOBUFS);
}

static void no_matching_rtr_is_terminated(void **state)
{
	struct scene *s = *state;
	struct mpa_frame req, rep = called(s, &req);

	assert_int_equal(req.rtr & MPA_RTR_SEND, 0);
	rep.rtr = MPA_RTR_SEND;
	raw_send_frame(&s->peer, &rep);
	raw_expect_terminate(&s->peer, FAULT_MPA_RTR);
	raw_close(&s->peer);
	assert_int_equal(scene_await_failed(s), EPROTO);
}

static void terminate_before_rdma_mode_has_markers_when_asked_for(void **state)
{
	struct scene *s = *state;
	struct mpa_frame req, rep;

	called(s, &req);
	s->peer.rx.markers = true;
	rep = raw_reply(&s->peer, &req);
	rep.rtr = 0;
	raw_send_frame(&s->peer, &rep);
	raw_expect_terminate(&s->peer, FAULT_MPA_RTR);
	raw_close(&s->peer);
	assert_int_equal(scene_await_failed(s), EPROTO);
}

/* ---- revision 1 ---- */

/* A responder that knows nothing else takes the request for garbage and closes. */
static void expect_fallback(struct scene *s, bool reset)
{
	struct mpa_frame req, rep;
	int fd;

	scene_use(s, &as_initiator);
	fd = scene_call(s);
	raw_expect_frame(&s->peer, false, &req);
	assert_int_equal(req.rev, 2);
	if (reset)
		raw_reset(&s->peer);
	else
		raw_close(&s->peer);
	raw_accept(&s->peer, fd);
	close(fd);
	raw_expect_frame(&s->peer, false, &req);
	assert_int_equal(req.rev, 1);
	assert_int_equal(req.flags & MPA_FLAG_ENHANCED, 0);
	rep = raw_reply(&s->peer, &req);
	raw_send_frame(&s->peer, &rep);
	scene_await_connected(s);
	scene_prove(s);
	close_in_order(s);
}

static void connect_falls_back_to_revision_1(void **state)
{
	expect_fallback(*state, false);
}

static void connect_falls_back_after_a_reset(void **state)
{
	expect_fallback(*state, true);
}

static void connect_falls_back_once_only(void **state)
{
	struct scene *s = *state;
	struct mpa_frame req;
	int fd;

	scene_use(s, &as_initiator);
	fd = scene_call(s);
	raw_expect_frame(&s->peer, false, &req);
	raw_close(&s->peer);
	raw_accept(&s->peer, fd);
	raw_expect_frame(&s->peer, false, &req);
	raw_close(&s->peer);
	assert_int_equal(scene_await_failed(s), ECONNRESET);
	close(fd);
}

static void connect_does_not_fall_back_when_told_not_to(void **state)
{
	struct scene *s = *state;
	struct mpa_frame req;

	s->conn_flags = FLUE_CONN_NO_FALLBACK;
	called(s, &req);
	raw_close(&s->peer);
	assert_int_equal(scene_await_failed(s), ECONNRESET);
}

/* ---- what goes with the reply ---- */

static void fpdus_behind_the_reply_are_not_lost(void **state)
{
	struct scene *s = *state;
	struct mpa_frame req, rep = called(s, &req);
	struct raw_fpdu f;

	scene_post_recv(s, 0, 8);
	raw_cork(&s->peer);
	raw_send_frame(&s->peer, &rep);
	/* Against the rules, but siw's programs do it. */
	raw_send_message(&s->peer, "too soon", 8);
	raw_uncork(&s->peer);
	raw_expect_fpdu(&s->peer, RDMAP_WRITE, &f);
	scene_await_connected(s);
	scene_expect_wc(s, 1, FLUE_WC_SUCCESS, NULL);
	scene_expect(s, AREA_LOCAL, 0, "too soon", 8);
	scene_prove(s);
	close_in_order(s);
}

static void garbage_behind_the_reply_is_terminated(void **state)
{
	struct scene *s = *state;
	struct mpa_frame req, rep = called(s, &req);

	raw_cork(&s->peer);
	raw_send_frame(&s->peer, &rep);
	raw_send_ulpdu(&s->peer, (const uint8_t *)"nonsense", 8, RAW_BAD_CRC);
	raw_uncork(&s->peer);
	scene_await_connected(s);
	scene_expect_fault(s, FAULT_MPA_CRC);
}

static void markers_are_inserted_when_the_reply_asks(void **state)
{
	struct scene *s = *state;
	struct mpa_frame req, rep;
	struct raw_fpdu f;

	called(s, &req);
	s->peer.rx.markers = true;
	rep = raw_reply(&s->peer, &req);
	raw_send_frame(&s->peer, &rep);
	raw_expect_fpdu(&s->peer, RDMAP_WRITE, &f);
	scene_await_connected(s);
	scene_prove(s);
	close_in_order(s);
}

/* An own peer answers TAKEN and clears OFFER; an echo of our octet is no such answer. */
static void echo_of_our_flags_makes_no_own_peer(void **state)
{
	struct scene *s = *state;
	struct mpa_frame req, rep = called(s, &req);
	struct raw_fpdu f;

	assert_true(req.flags & MPA_FLAG_OWN_OFFER);
	rep.flags |= MPA_FLAG_OWN_OFFER;
	raw_send_frame(&s->peer, &rep);
	raw_expect_fpdu(&s->peer, RDMAP_WRITE, &f);
	scene_await_connected(s);
	scene_prove(s);
	close_in_order(s);
}

/* ---- deferred ---- */

/* The victim looks at the reply before it goes on; the peer does not wait for that. */
static void hold(struct scene *s)
{
	struct mpa_frame req, rep;

	s->conn_flags = FLUE_CONN_DEFER;
	rep = called(s, &req);
	raw_send_frame(&s->peer, &rep);
	scene_await_accepted(s);
	assert_int_equal(flue_qp_state(s->qp), FLUE_QP_IDLE);
}

static void fpdus_wait_while_the_initiator_does(void **state)
{
	struct scene *s = *state;
	struct raw_fpdu f;

	hold(s);
	raw_send_message(&s->peer, "too soon", 8);
	raw_expect_silence(&s->peer, 50);
	scene_post_recv(s, 0, 8);
	assert_true(s->qp->ops->start(s->qp));
	raw_expect_fpdu(&s->peer, RDMAP_WRITE, &f);
	scene_await_connected(s);
	scene_expect_wc(s, 1, FLUE_WC_SUCCESS, NULL);
	scene_expect(s, AREA_LOCAL, 0, "too soon", 8);
	scene_prove(s);
	close_in_order(s);
}

static void peer_that_leaves_a_waiting_initiator_is_noticed(void **state)
{
	struct scene *s = *state;

	hold(s);
	scene_post_recv(s, 0, 8);
	raw_reset(&s->peer);
	usleep(20000);
	/* Whichever way it is told, it is told. */
	s->qp->ops->start(s->qp);
	scene_await_end(s);
	if (flue_qp_state(s->qp) == FLUE_QP_IDLE)
		flue_abort(s->qp);
	scene_expect_flushed(s);
}

/* ---- ready to receive ---- */

/* A peer that misses what comes before it is ready gets its chance, but is not pestered. */
static void silent_responder_is_nudged_three_times(void **state)
{
	struct scene *s = *state;
	struct mpa_frame req, rep = called(s, &req);
	struct raw_fpdu f;

	raw_send_frame(&s->peer, &rep);
	for (unsigned i = 0; i < 1 + 3; i++) {
		raw_expect_fpdu(&s->peer, RDMAP_WRITE, &f);
		assert_int_equal(f.seg.payload_len, 0);
	}
	raw_expect_silence(&s->peer, 1000);
	scene_await_connected(s);
	scene_prove(s);
	close_in_order(s);
}

static void start_with_rtr(struct scene *s, uint32_t flag, uint8_t kind)
{
	struct mpa_frame req, rep;

	s->conn_flags = flag;
	rep = called(s, &req);
	assert_int_equal(req.rtr, kind);
	rep.rtr = kind;
	raw_send_frame(&s->peer, &rep);
}

static void initiator_says_rtr_by_send(void **state)
{
	struct scene *s = *state;
	struct raw_fpdu f;

	start_with_rtr(s, FLUE_CONN_RTR_SEND, MPA_RTR_SEND);
	raw_expect_fpdu(&s->peer, RDMAP_SEND, &f);
	assert_int_equal(f.seg.payload_len, 0);
	assert_int_equal(f.seg.msn, 1);
	scene_await_connected(s);
	scene_prove(s);
	close_in_order(s);
}

static void initiator_says_rtr_by_read(void **state)
{
	struct scene *s = *state;
	struct ddp_segment answer = { .opcode = RDMAP_READ_RESPONSE, .tagged = true, .last = true };
	struct rdmap_read_request r;

	start_with_rtr(s, FLUE_CONN_RTR_READ, MPA_RTR_READ);
	raw_expect_read_request(&s->peer, &r);
	assert_int_equal(r.size, 0);
	answer.stag = r.sink_stag;
	answer.to = r.sink_to;
	raw_send_segment(&s->peer, &answer, NULL, 0);
	scene_await_connected(s);
	scene_prove(s);
	close_in_order(s);
}

static void answer_to_an_rtr_by_read_must_be_empty(void **state)
{
	struct scene *s = *state;
	struct ddp_segment answer = { .opcode = RDMAP_READ_RESPONSE, .tagged = true, .last = true };
	struct rdmap_read_request r;

	start_with_rtr(s, FLUE_CONN_RTR_READ, MPA_RTR_READ);
	raw_expect_read_request(&s->peer, &r);
	scene_await_connected(s);
	answer.stag = r.sink_stag;
	answer.to = r.sink_to;
	raw_send_segment(&s->peer, &answer, "much", 4);
	scene_expect_fault(s, FAULT_DDP_BOUNDS);
}

#define BAD (sizeof(bad_replies) / sizeof(bad_replies[0]))

static const struct CMUnitTest others[] = {
	WITH_SCENE(connect_fails_when_the_reply_is_cut),
	WITH_SCENE(connect_fails_when_the_peer_resets_in_its_reply),
	WITH_SCENE(connect_times_out_on_a_silent_peer),
	WITH_SCENE(connect_times_out_on_half_a_reply),
	WITH_SCENE(connect_can_be_aborted_while_it_waits),
	WITH_SCENE(reply_in_single_octets_is_fine),
	WITH_SCENE(rejection_brings_its_private_data),
	WITH_SCENE(rejection_of_another_revision_is_one),
	WITH_SCENE(connect_fails_where_nobody_listens),
	WITH_SCENE(insufficient_ird_is_terminated),
	WITH_SCENE(no_matching_rtr_is_terminated),
	WITH_SCENE(terminate_before_rdma_mode_has_markers_when_asked_for),
	WITH_SCENE(connect_falls_back_to_revision_1),
	WITH_SCENE(connect_falls_back_after_a_reset),
	WITH_SCENE(connect_falls_back_once_only),
	WITH_SCENE(connect_does_not_fall_back_when_told_not_to),
	WITH_SCENE(fpdus_behind_the_reply_are_not_lost),
	WITH_SCENE(garbage_behind_the_reply_is_terminated),
	WITH_SCENE(markers_are_inserted_when_the_reply_asks),
	WITH_SCENE(echo_of_our_flags_makes_no_own_peer),
	WITH_SCENE(fpdus_wait_while_the_initiator_does),
	WITH_SCENE(peer_that_leaves_a_waiting_initiator_is_noticed),
	WITH_SCENE(silent_responder_is_nudged_three_times),
	WITH_SCENE(initiator_says_rtr_by_send),
	WITH_SCENE(initiator_says_rtr_by_read),
	WITH_SCENE(answer_to_an_rtr_by_read_must_be_empty),
};
#define OTHERS (sizeof(others) / sizeof(others[0]))

int main(void)
{
	static struct CMUnitTest tests[BAD + OTHERS];
	static char names[BAD][100];
	size_t n;

	for (n = 0; n < BAD; n++) {
		snprintf(names[n], sizeof(names[n]), "connect_fails: %s", bad_replies[n].name);
		tests[n] = (struct CMUnitTest) { .name = names[n],
						 .test_func = connect_fails,
						 .setup_func = scene_enter,
						 .teardown_func = scene_leave,
						 .initial_state = (void *)&bad_replies[n] };
	}
	memcpy(tests + n, others, sizeof(others));
	return _cmocka_run_group_tests("startup_connect", tests, n + OTHERS, scene_open,
				       scene_close);
}
