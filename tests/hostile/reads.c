/* SPDX-License-Identifier: MIT */
/*
 * Reads in both directions: answers that are not what was asked for, more questions than agreed,
 * peers that ask and do not listen, messages of several segments that go wrong in the middle.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "conf/pair.h"
#include "hostile/scene.h"

static const struct scene_mode modes[] = {
	{ .name = "CRC", .crc = true },
	{ .name = "no CRC" },
	{ .name = "markers", .crc = true, .markers = true },
	{ .name = "as initiator", .crc = true, .initiator = true },
	{ .name = "in single octets, no CRC", .trickle = true },
};
#define MODES (sizeof(modes) / sizeof(modes[0]))

/* ---- bad answers ---- */

#define READ_LEN 9000u

/* Two segments that answer a Read of READ_LEN octets; `good` octets in the first are fine. */
struct bad_answer {
	const char *name;
	uint32_t fault;
	uint32_t first; /* octets of the segment before the bad one; 0: none */
	uint32_t len;   /* of the bad one */
	bool last;
	uint32_t add_stag;
	uint64_t add_to;
};

static const struct bad_answer answers[] = {
	{ "to another STag", FAULT_DDP_STAG, .len = READ_LEN, .last = true, .add_stag = 1 },
	{ "one octet late", FAULT_DDP_BOUNDS, .len = READ_LEN, .last = true, .add_to = 1 },
	{ "one octet early", FAULT_DDP_BOUNDS, .len = READ_LEN, .last = true, .add_to = -1ull },
	{ "elsewhere", FAULT_DDP_BOUNDS, .len = READ_LEN, .last = true, .add_to = 1ull << 63 },
	{ "one octet too long", FAULT_DDP_BOUNDS, .len = READ_LEN + 1, .last = true },
	{ "much too long", FAULT_DDP_BOUNDS, .len = 65000, .last = true },
	{ "too long and without L", FAULT_DDP_BOUNDS, .len = READ_LEN + 1 },
	{ "one octet too short", FAULT_DDP_CATASTROPHIC, .len = READ_LEN - 1, .last = true },
	{ "empty", FAULT_DDP_CATASTROPHIC, .len = 0, .last = true },
	{ "whole but without L", FAULT_DDP_CATASTROPHIC, .len = READ_LEN },
	{ "in two parts, the second to another STag", FAULT_DDP_STAG, .first = 5000, .len = 4000,
	  .last = true, .add_stag = 0x100 },
	{ "in two parts with a gap", FAULT_DDP_BOUNDS, .first = 5000, .len = 3999, .last = true,
	  .add_to = 1 },
	{ "in two parts that overlap", FAULT_DDP_BOUNDS, .first = 5000, .len = 4001, .last = true,
	  .add_to = -1ull },
	{ "in two parts, the second too long", FAULT_DDP_BOUNDS, .first = 5000, .len = 4001,
	  .last = true },
	{ "in two parts, L too early", FAULT_DDP_CATASTROPHIC, .first = 5000, .len = 3999,
	  .last = true },
	{ "in two parts, L missing", FAULT_DDP_CATASTROPHIC, .first = 5000, .len = 4000 },
};
#define ANSWERS (sizeof(answers) / sizeof(answers[0]))

struct run {
	const struct bad_answer *answer;
	const struct scene_mode *mode;
	char name[120];
};

static void victim_terminates_an_answer(void **state)
{
	const struct run *run = *state;
	const struct bad_answer *b = run->answer;
	struct scene *s = scene_here();
	struct ddp_segment seg = { .opcode = RDMAP_READ_RESPONSE, .tagged = true };
	struct rdmap_read_request r;
	static uint8_t data[65000];

	scene_connect(s, run->mode);
	scene_post_read(s, 1000, READ_LEN);
	scene_post_read(s, 20000, 16);
	scene_post_recv(s, 0, 10);
	raw_expect_read_request(&s->peer, &r);
	assert_int_equal(r.size, READ_LEN);
	memset(data, 0x77, sizeof(data));
	seg.stag = r.sink_stag;
	seg.to = r.sink_to;
	if (b->first)
		raw_send_segment(&s->peer, &seg, data, b->first);
	seg.stag += b->add_stag;
	seg.to += b->first + b->add_to;
	seg.last = b->last;
	raw_send_segment(&s->peer, &seg, data, b->len);
	scene_expect_fault(s, b->fault);
	/* What was right was placed, of the rest nothing. */
	scene_expect(s, AREA_LOCAL, 1000, data, b->first);
}

static void second_answer_to_a_read_is_terminated(void **state)
{
	struct scene *s = *state;
	struct ddp_segment seg = { .opcode = RDMAP_READ_RESPONSE, .tagged = true, .last = true };
	struct rdmap_read_request r;

	scene_connect(s, &scene_default);
	scene_post_read(s, 0, 4);
	raw_expect_read_request(&s->peer, &r);
	seg.stag = r.sink_stag;
	seg.to = r.sink_to;
	raw_send_segment(&s->peer, &seg, "once", 4);
	scene_expect_wc(s, 1, FLUE_WC_SUCCESS, NULL);
	scene_expect(s, AREA_LOCAL, 0, "once", 4);
	raw_send_segment(&s->peer, &seg, "more", 4);
	scene_expect_fault(s, FAULT_RDMAP_OPCODE);
}

static void answers_in_another_order_are_terminated(void **state)
{
	struct scene *s = *state;
	struct ddp_segment seg = { .opcode = RDMAP_READ_RESPONSE, .tagged = true, .last = true };
	struct rdmap_read_request first, second;

	scene_connect(s, &scene_default);
	scene_post_read(s, 0, 4);
	scene_post_read(s, 100, 4);
	raw_expect_read_request(&s->peer, &first);
	raw_expect_read_request(&s->peer, &second);
	seg.stag = second.sink_stag;
	seg.to = second.sink_to;
	raw_send_segment(&s->peer, &seg, "2nd ", 4);
	scene_expect_fault(s, FAULT_DDP_BOUNDS);
}

/* ---- Sends of several segments ---- */

struct bad_send {
	const char *name;
	uint32_t fault;
	uint32_t add_msn, add_mo;
	uint32_t len;
	uint8_t opcode;
	uint32_t status; /* of the receive; 0: flushed */
};

/* The first segment brings 30 octets to a receive of 64. */
static const struct bad_send sends[] = {
	{ "with a gap", FAULT_DDP_MO, .add_mo = 1, .len = 10, .opcode = RDMAP_SEND },
	{ "with an overlap", FAULT_DDP_MO, .add_mo = UINT32_MAX, .len = 10, .opcode = RDMAP_SEND },
	{ "from the beginning again", FAULT_DDP_MO, .add_mo = -30u, .len = 10,
	  .opcode = RDMAP_SEND },
	{ "with the next message number", FAULT_DDP_MSN, .add_msn = 1, .len = 10,
	  .opcode = RDMAP_SEND },
	{ "as another message", FAULT_RDMAP_OPCODE, .len = 10, .opcode = RDMAP_SEND_SE },
	{ "with invalidate", FAULT_RDMAP_OPCODE, .len = 10, .opcode = RDMAP_SEND_INV },
	{ "too long by one", FAULT_DDP_TOO_LONG, .len = 35, .opcode = RDMAP_SEND,
	  .status = FLUE_WC_LOCAL_LENGTH },
	{ "too long by 60000", FAULT_DDP_TOO_LONG, .len = 60034, .opcode = RDMAP_SEND,
	  .status = FLUE_WC_LOCAL_LENGTH },
};
#define SENDS (sizeof(sends) / sizeof(sends[0]))

static void victim_terminates_a_send_that_goes_on(void **state)
{
	struct scene *s = scene_here();
	const struct bad_send *b = *state;
	struct ddp_segment seg = { .opcode = RDMAP_SEND, .msn = 1 };
	static uint8_t data[60034];

	scene_connect(s, &scene_default);
	scene_post_recv(s, 0, 64);
	scene_post_recv(s, 100, 64);
	raw_send_segment(&s->peer, &seg, data, 30);
	seg.opcode = b->opcode;
	seg.last = true;
	seg.msn += b->add_msn;
	seg.mo = 30 + b->add_mo;
	raw_send_segment(&s->peer, &seg, data, b->len);
	raw_await_terminate(&s->peer, b->fault);
	raw_close(&s->peer);
	if (b->status)
		scene_expect_wc(s, 1, b->status, NULL);
	scene_expect_down(s, FLUE_CLOSE_FAULT, b->fault & ~WIRE_FAULT_BIT);
	scene_expect_flushed(s);
	scene_expect(s, AREA_LOCAL, 0, data, 30);
}

static void replayed_send_is_terminated(void **state)
{
	struct scene *s = *state;
	struct ddp_segment seg = { .opcode = RDMAP_SEND, .last = true, .msn = 1 };

	scene_connect(s, &scene_default);
	scene_post_recv(s, 0, 4);
	scene_post_recv(s, 10, 4);
	raw_send_segment(&s->peer, &seg, "once", 4);
	scene_expect_wc(s, 1, FLUE_WC_SUCCESS, NULL);
	scene_expect(s, AREA_LOCAL, 0, "once", 4);
	raw_send_segment(&s->peer, &seg, "once", 4);
	scene_expect_fault(s, FAULT_DDP_MSN);
}

static void send_without_a_receive_is_terminated(void **state)
{
	struct scene *s = *state;

	scene_connect(s, &scene_default);
	scene_post_recv(s, 0, 4);
	raw_send_message(&s->peer, "fits", 4);
	raw_send_message(&s->peer, "does", 4);
	raw_await_terminate(&s->peer, FAULT_DDP_NO_BUFFER);
	raw_close(&s->peer);
	scene_expect_wc(s, 1, FLUE_WC_SUCCESS, NULL);
	scene_expect(s, AREA_LOCAL, 0, "fits", 4);
	scene_expect_down(s, FLUE_CLOSE_FAULT, FAULT_DDP_NO_BUFFER & ~WIRE_FAULT_BIT);
}

static void replayed_read_request_is_terminated(void **state)
{
	struct scene *s = *state;
	struct rdmap_read_request r = { .size = 4,
					.src_stag = scene_key(s, AREA_READ),
					.src_to = scene_to(s, AREA_READ, 0) };
	struct raw_fpdu f;

	scene_connect(s, &scene_default);
	raw_read_request(&s->peer, &r);
	raw_expect_fpdu(&s->peer, RDMAP_READ_RESPONSE, &f);
	s->peer.msn[DDP_QN_READ] = 1;
	raw_read_request(&s->peer, &r);
	scene_expect_fault(s, FAULT_DDP_MSN);
}

/* ---- too many questions ---- */

static struct rdmap_read_request all_of_it(const struct scene *s)
{
	return (struct rdmap_read_request) { .sink_stag = 1,
					     .size = AREA_SIZE,
					     .src_stag = scene_key(s, AREA_READ),
					     .src_to = scene_to(s, AREA_READ, 0) };
}

static void as_many_reads_as_agreed_are_answered(void **state)
{
	struct scene *s = *state;
	struct rdmap_read_request r = all_of_it(s);
	struct raw_fpdu f;

	scene_connect(s, &scene_default);
	raw_cork(&s->peer);
	for (int i = 0; i < 4; i++) {
		r.sink_stag = 100 + (uint32_t)i;
		raw_read_request(&s->peer, &r);
	}
	raw_uncork(&s->peer);
	for (uint32_t i = 0; i < 4; i++) {
		uint32_t got = 0;

		do {
			raw_expect_fpdu(&s->peer, RDMAP_READ_RESPONSE, &f);
			assert_int_equal(f.seg.stag, 100 + i);
			assert_memory_equal(f.payload, scene_at(s, AREA_READ, got),
					    f.seg.payload_len);
			got += (uint32_t)f.seg.payload_len;
		} while (!f.seg.last);
		assert_int_equal(got, AREA_SIZE);
	}
	raw_fin(&s->peer);
	raw_expect_end(&s->peer);
	scene_expect_down(s, FLUE_CLOSE_GRACEFUL, 0);
}

static void one_read_more_than_agreed_is_terminated(void **state)
{
	struct scene *s = *state;
	struct rdmap_read_request r = all_of_it(s);

	scene_connect(s, &scene_default);
	scene_post_recv(s, 0, 10);
	raw_cork(&s->peer);
	for (int i = 0; i < 5; i++)
		raw_read_request(&s->peer, &r);
	raw_uncork(&s->peer);
	scene_expect_fault(s, FAULT_RDMAP_STREAM_CATASTROPHIC);
}

/* ---- a peer that does not listen ---- */

/* Asks for 16 MB, more than the sockets hold while nobody reads, and reads nothing of it. */
static void ask_and_be_deaf(struct scene *s)
{
	struct rdmap_read_request r = all_of_it(s);

	s->peer.depth = 100;
	scene_connect(s, &scene_default);
	for (int i = 0; i < 100; i++)
		raw_read_request(&s->peer, &r);
	scene_expect_health(s);
}

static void deaf_peer_does_not_hold_up_others(void **state)
{
	struct scene *s = *state;

	ask_and_be_deaf(s);
	scene_post_send(s, 0, 100);
	scene_expect_health(s);
	assert_true(flue_abort(s->qp));
	scene_expect_down(s, FLUE_CLOSE_ABORTED, ECONNABORTED);
	scene_expect_flushed(s);
	raw_drain(&s->peer);
}

static void region_can_be_withdrawn_from_a_deaf_peer(void **state)
{
	struct scene *s = *state;
	uint64_t start;

	ask_and_be_deaf(s);
	start = pair_now_ms();
	assert_true(flue_deregister(s->mr[AREA_READ]));
	assert_true(pair_now_ms() - start < 1000);
	s->mr[AREA_READ] = flue_register(s->pd, scene_at(s, AREA_READ, 0), AREA_SIZE,
					 FLUE_REMOTE_READ);
	assert_non_null(s->mr[AREA_READ]);
	/* What is not in the socket yet cannot be sent any more. */
	raw_await_terminate(&s->peer, FAULT_RDMAP_STAG);
	raw_close(&s->peer);
	scene_expect_down(s, FLUE_CLOSE_FAULT, FAULT_RDMAP_STAG & ~WIRE_FAULT_BIT);
}

/* The Terminate cannot be sent; the connection ends nevertheless, after the time for closing. */
static void deaf_peer_that_breaks_rules_is_dropped(void **state)
{
	struct scene *s = *state;
	uint64_t start = pair_now_ms();

	ask_and_be_deaf(s);
	raw_send_message(&s->peer, "no receive for this", 19);
	scene_expect_down(s, FLUE_CLOSE_FAULT, FAULT_DDP_NO_BUFFER & ~WIRE_FAULT_BIT);
	assert_true(pair_now_ms() - start < 10000);
}

/* A peer that goes on sending after its fault is not listened to for ever. */
static void chattering_peer_is_dropped(void **state)
{
	struct scene *s = *state;
	static uint8_t noise[65536];
	uint64_t start = pair_now_ms();

	scene_connect(s, &scene_default);
	raw_send_message(&s->peer, "no receive for this", 19);
	while (raw_send_some(&s->peer, noise, sizeof(noise)) || errno == EAGAIN) {
		assert_true(pair_now_ms() - start < 10000);
		scene_expect_health(s);
	}
	scene_expect_down(s, FLUE_CLOSE_FAULT, FAULT_DDP_NO_BUFFER & ~WIRE_FAULT_BIT);
}

static const struct CMUnitTest others[] = {
	WITH_SCENE(second_answer_to_a_read_is_terminated),
	WITH_SCENE(answers_in_another_order_are_terminated),
	WITH_SCENE(replayed_send_is_terminated),
	WITH_SCENE(send_without_a_receive_is_terminated),
	WITH_SCENE(replayed_read_request_is_terminated),
	WITH_SCENE(as_many_reads_as_agreed_are_answered),
	WITH_SCENE(one_read_more_than_agreed_is_terminated),
	WITH_SCENE(deaf_peer_does_not_hold_up_others),
	WITH_SCENE(region_can_be_withdrawn_from_a_deaf_peer),
	WITH_SCENE(deaf_peer_that_breaks_rules_is_dropped),
	WITH_SCENE(chattering_peer_is_dropped),
};
#define OTHERS (sizeof(others) / sizeof(others[0]))

static struct run runs[ANSWERS * MODES];
static char send_names[SENDS][100];
static struct CMUnitTest tests[ANSWERS * MODES + SENDS + OTHERS];

static void add(size_t n, const char *name, CMUnitTestFunction f, const void *state)
{
	tests[n] = (struct CMUnitTest) { .name = name,
					 .test_func = f,
					 .setup_func = scene_enter,
					 .teardown_func = scene_leave,
					 .initial_state = (void *)state };
}

int main(void)
{
	size_t n = 0;

	for (size_t m = 0; m < MODES; m++) {
		for (size_t i = 0; i < ANSWERS; i++, n++) {
			runs[n] = (struct run) { .answer = &answers[i], .mode = &modes[m] };
			snprintf(runs[n].name, sizeof(runs[n].name),
				 "victim_terminates_an_answer: %s (%s)", answers[i].name,
				 modes[m].name);
			add(n, runs[n].name, victim_terminates_an_answer, &runs[n]);
		}
	}
	for (size_t i = 0; i < SENDS; i++, n++) {
		snprintf(send_names[i], sizeof(send_names[i]),
			 "victim_terminates_a_send_that_goes_on: %s", sends[i].name);
		add(n, send_names[i], victim_terminates_a_send_that_goes_on, &sends[i]);
	}
	memcpy(tests + n, others, sizeof(others));
	return _cmocka_run_group_tests("reads", tests, n + OTHERS, scene_open, scene_close);
}
