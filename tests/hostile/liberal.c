/* SPDX-License-Identifier: MIT */
/*
 * What a peer may do, however odd it looks: all of it must work. Each test ends with a graceful
 * close by the peer.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/bytes.h"
#include "conf/pair.h"
#include "hostile/scene.h"

static const struct scene_mode no_crc = { .name = "no CRC" };

static void close_in_order(struct scene *s)
{
	raw_fin(&s->peer);
	raw_expect_end(&s->peer);
	scene_expect_down(s, FLUE_CLOSE_GRACEFUL, 0);
	scene_expect_flushed(s);
}

/* ---- every mode ---- */

static const struct scene_mode modes[] = {
	{ .name = "CRC", .crc = true },
	{ .name = "no CRC" },
	{ .name = "markers", .crc = true, .markers = true },
	{ .name = "markers, no CRC", .markers = true },
	{ .name = "as initiator", .crc = true, .initiator = true },
	{ .name = "as initiator, no CRC", .initiator = true },
	{ .name = "in single octets", .crc = true, .trickle = true },
	{ .name = "in single octets, no CRC", .trickle = true },
	{ .name = "in single octets with markers", .crc = true, .markers = true, .trickle = true },
	{ .name = "in single octets as initiator", .initiator = true, .trickle = true },
};

static void connection_works(void **state)
{
	struct scene *s = scene_here();

	scene_connect(s, *state);
	scene_prove(s);
	close_in_order(s);
}

/* ---- single oddities ---- */

static void zero_length_write_needs_no_stag(void **state)
{
	struct scene *s = *state;

	scene_connect(s, &scene_default);
	raw_write(&s->peer, 0xdeadbeef, 0, NULL, 0);
	raw_write(&s->peer, 0, UINT64_MAX, NULL, 0);
	raw_write(&s->peer, scene_key(s, AREA_OTHER), 5, NULL, 0);
	raw_write(&s->peer, scene_key(s, AREA_RW), scene_to(s, AREA_RW, AREA_SIZE + 5), NULL, 0);
	scene_prove(s);
	close_in_order(s);
}

static void zero_length_read_needs_no_stag(void **state)
{
	struct scene *s = *state;
	struct rdmap_read_request r = {
		.sink_stag = 77, .sink_to = 88, .src_stag = 0xdeadbeef, .src_to = UINT64_MAX
	};
	struct raw_fpdu f;

	scene_connect(s, &scene_default);
	raw_read_request(&s->peer, &r);
	raw_expect_fpdu(&s->peer, RDMAP_READ_RESPONSE, &f);
	assert_int_equal(f.seg.payload_len, 0);
	assert_int_equal(f.seg.stag, 77);
	assert_int_equal(f.seg.to, 88);
	scene_prove(s);
	close_in_order(s);
}

static void write_reaches_the_last_octet_of_its_region(void **state)
{
	struct scene *s = *state;
	uint8_t data[100];

	scene_connect(s, &scene_default);
	memset(data, 0xa5, sizeof(data));
	raw_write(&s->peer, scene_key(s, AREA_RW), scene_to(s, AREA_RW, AREA_SIZE - 100), data,
		  100);
	scene_prove(s);
	scene_expect(s, AREA_RW, AREA_SIZE - 100, data, 100);
	close_in_order(s);
}

static void largest_fpdu_is_taken(void **state)
{
	struct scene *s = scene_here();
	uint32_t n = MPA_ULPDU_MAX - DDP_TAGGED_LEN;
	uint8_t *data = malloc(n);

	scene_connect(s, *state);
	pair_fill(data, n, 9);
	raw_write(&s->peer, scene_key(s, AREA_RW), scene_to(s, AREA_RW, 3), data, n);
	raw_write(&s->peer, scene_key(s, AREA_RW), scene_to(s, AREA_RW, 70000), data, n);
	scene_post_recv(s, 0, 4);
	raw_send_message(&s->peer, data, 4);
	scene_expect_wc(s, 1, FLUE_WC_SUCCESS, NULL);
	scene_expect(s, AREA_LOCAL, 0, data, 4);
	scene_expect(s, AREA_RW, 3, data, n);
	scene_expect(s, AREA_RW, 70000, data, n);
	free(data);
	close_in_order(s);
}

/* A peer that shows that it takes more is sent more, but never more than `most`. */
static void expect_largest_fpdu(struct scene *s, uint32_t fpdu_max, size_t most)
{
	static uint8_t data[MPA_ULPDU_MAX - DDP_TAGGED_LEN];
	uint32_t total = 2 * MPA_ULPDU_MAX;
	size_t got = 0, largest = 0;
	struct raw_fpdu f;

	s->fpdu_max = fpdu_max;
	scene_connect(s, &scene_default);
	raw_write(&s->peer, scene_key(s, AREA_RW), scene_to(s, AREA_RW, 0), data, sizeof(data));
	scene_post_recv(s, 0, 4);
	raw_send_message(&s->peer, data, 4);
	scene_expect_wc(s, 1, FLUE_WC_SUCCESS, NULL);
	scene_expect(s, AREA_RW, 0, data, sizeof(data));
	scene_expect(s, AREA_LOCAL, 0, data, 4);
	scene_post_send(s, 0, total);
	for (f.seg.last = false; !f.seg.last; got += f.seg.payload_len) {
		raw_expect_fpdu(&s->peer, RDMAP_SEND, &f);
		if (largest < DDP_UNTAGGED_LEN + f.seg.payload_len)
			largest = DDP_UNTAGGED_LEN + f.seg.payload_len;
	}
	assert_int_equal(got, total);
	assert_int_equal(largest, most);
	scene_expect_wc(s, 2, FLUE_WC_SUCCESS, NULL);
	close_in_order(s);
}

static void larger_fpdus_of_the_peer_do_not_lift_the_programs_limit(void **state)
{
	expect_largest_fpdu(*state, 1000, mpa_mulpdu(1000, false));
}

static void larger_fpdus_of_the_peer_do_not_lift_our_own_limit(void **state)
{
	expect_largest_fpdu(*state, 0, MPA_MULPDU_MAX);
}

static void wrong_crc_is_not_looked_at_when_crc_is_off(void **state)
{
	struct scene *s = *state;
	uint8_t ulpdu[DDP_UNTAGGED_LEN + 4];
	struct ddp_segment seg = { .opcode = RDMAP_SEND, .last = true, .msn = 1 };
	struct ddp_params version = { .dv = 1, .rv = 1 };

	scene_connect(s, &no_crc);
	scene_post_recv(s, 0, 4);
	ddp_encode(&version, &seg, ulpdu);
	memset(ulpdu + DDP_UNTAGGED_LEN, 7, 4);
	raw_send_ulpdu(&s->peer, ulpdu, sizeof(ulpdu), RAW_BAD_CRC);
	scene_expect_wc(s, 1, FLUE_WC_SUCCESS, NULL);
	scene_expect(s, AREA_LOCAL, 0, ulpdu + DDP_UNTAGGED_LEN, 4);
	close_in_order(s);
}

static void reserved_bits_are_not_looked_at(void **state)
{
	struct scene *s = *state;
	uint8_t ulpdu[DDP_UNTAGGED_LEN] = { 0 };
	struct ddp_segment seg = { .opcode = RDMAP_SEND, .last = true, .msn = 1, .inv_stag = 5 };
	struct ddp_params version = { .dv = 1, .rv = 1 };

	scene_connect(s, &scene_default);
	scene_post_recv(s, 0, 4);
	ddp_encode(&version, &seg, ulpdu);
	ulpdu[0] |= 0x3c;
	ulpdu[1] |= 0x30;
	raw_send_ulpdu(&s->peer, ulpdu, sizeof(ulpdu), RAW_NO_DAMAGE);
	scene_expect_wc(s, 1, FLUE_WC_SUCCESS, NULL);
	close_in_order(s);
}

static void message_of_many_segments_arrives(void **state)
{
	struct scene *s = scene_here();
	struct ddp_segment seg = { .opcode = RDMAP_SEND_SE, .msn = 1 };
	uint8_t data[3000];
	struct flue_wc wc;

	scene_connect(s, *state);
	scene_post_recv(s, 50, sizeof(data));
	pair_fill(data, sizeof(data), 5);
	/* Empty segments and single octets among them; Writes of the same stream in between. */
	while (seg.mo < sizeof(data)) {
		uint32_t n = seg.mo % 7 == 0 ? 1 : 299;

		raw_send_segment(&s->peer, &seg, NULL, 0);
		n = n < sizeof(data) - seg.mo ? n : (uint32_t)sizeof(data) - seg.mo;
		seg.last = seg.mo + n == sizeof(data);
		raw_send_segment(&s->peer, &seg, data + seg.mo, n);
		if (!seg.last)
			raw_write(&s->peer, scene_key(s, AREA_RW), scene_to(s, AREA_RW, seg.mo),
				  data + seg.mo, n);
		else
			n = sizeof(data) - seg.mo;
		seg.mo += n;
	}
	scene_expect_wc(s, 1, FLUE_WC_SUCCESS, &wc);
	assert_int_equal(wc.byte_len, sizeof(data));
	assert_int_equal(wc.flags, FLUE_WC_SOLICITED);
	scene_expect(s, AREA_LOCAL, 50, data, sizeof(data));
	scene_allow(s, AREA_RW, 0, sizeof(data));
	close_in_order(s);
}

static void granted_region_can_be_revoked_once(void **state)
{
	struct scene *s = *state;
	struct ddp_segment seg = {
		.opcode = RDMAP_SEND_INV, .last = true, .msn = 1, .inv_stag = scene_key(s, AREA_INV)
	};
	struct flue_wc wc;

	scene_connect(s, &scene_default);
	scene_post_recv(s, 0, 4);
	scene_post_recv(s, 10, 4);
	raw_send_segment(&s->peer, &seg, NULL, 0);
	scene_expect_wc(s, 1, FLUE_WC_SUCCESS, &wc);
	assert_int_equal(wc.flags, FLUE_WC_INVALIDATED);
	assert_int_equal(wc.inv_key, seg.inv_stag);
	/* Now it is as good as unknown. */
	raw_write(&s->peer, seg.inv_stag, scene_to(s, AREA_INV, 0), "gone", 4);
	scene_expect_fault(s, FAULT_DDP_STAG);
}

static void read_response_may_come_in_pieces(void **state)
{
	struct scene *s = scene_here();
	struct ddp_segment seg = { .opcode = RDMAP_READ_RESPONSE, .tagged = true };
	struct rdmap_read_request r;
	uint8_t data[20000];

	scene_connect(s, *state);
	pair_fill(data, sizeof(data), 3);
	scene_post_read(s, 0, sizeof(data));
	raw_expect_read_request(&s->peer, &r);
	seg.stag = r.sink_stag;
	for (uint32_t at = 0; at < sizeof(data); at += 5000) {
		seg.to = r.sink_to + at;
		raw_send_segment(&s->peer, &seg, NULL, 0);
		/* A Write of the peer between two segments of its answer. */
		raw_write(&s->peer, scene_key(s, AREA_RW), scene_to(s, AREA_RW, 0), data, 8);
		seg.last = at + 5000 == sizeof(data);
		raw_send_segment(&s->peer, &seg, data + at, 5000);
	}
	scene_expect_wc(s, 1, FLUE_WC_SUCCESS, NULL);
	scene_expect(s, AREA_LOCAL, 0, data, sizeof(data));
	scene_expect(s, AREA_RW, 0, data, 8);
	close_in_order(s);
}

/* Where the second TCP segment begins: in the headers, the payload, the pad, the CRC. */
static void fpdu_may_be_cut_anywhere(void **state)
{
	struct scene *s = scene_here();
	static uint8_t data[5003];
	uint32_t id = 0;

	scene_connect(s, *state);
	for (unsigned pad = 0; pad < 4; pad++) {
		size_t len = sizeof(data) - pad;
		size_t size = MPA_LEN_LEN + DDP_TAGGED_LEN + len + mpa_pad(DDP_TAGGED_LEN + len) +
			      MPA_CRC_LEN;

		for (size_t cut = 1; cut < size; cut = cut == 24 ? size - 12 : cut + 1) {
			pair_fill(data, len, ++id);
			s->peer.split = cut;
			raw_write(&s->peer, scene_key(s, AREA_RW), scene_to(s, AREA_RW, pad), data,
				  len);
			scene_post_recv(s, 0, 4);
			raw_send_message(&s->peer, data, 4);
			scene_expect_wc(s, id, FLUE_WC_SUCCESS, NULL);
			scene_expect(s, AREA_RW, pad, data, len);
			scene_expect(s, AREA_LOCAL, 0, data, 4);
		}
	}
	close_in_order(s);
}

#define MODES (sizeof(modes) / sizeof(modes[0]))

struct each_mode {
	const char *name;
	CMUnitTestFunction test;
};

static const struct each_mode in_each_mode[] = {
	{ "connection_works", connection_works },
	{ "largest_fpdu_is_taken", largest_fpdu_is_taken },
	{ "message_of_many_segments_arrives", message_of_many_segments_arrives },
	{ "read_response_may_come_in_pieces", read_response_may_come_in_pieces },
	{ "fpdu_may_be_cut_anywhere", fpdu_may_be_cut_anywhere },
};
#define EACH (sizeof(in_each_mode) / sizeof(in_each_mode[0]))

static const struct CMUnitTest once[] = {
	WITH_SCENE(zero_length_write_needs_no_stag),
	WITH_SCENE(zero_length_read_needs_no_stag),
	WITH_SCENE(write_reaches_the_last_octet_of_its_region),
	WITH_SCENE(larger_fpdus_of_the_peer_do_not_lift_the_programs_limit),
	WITH_SCENE(larger_fpdus_of_the_peer_do_not_lift_our_own_limit),
	WITH_SCENE(wrong_crc_is_not_looked_at_when_crc_is_off),
	WITH_SCENE(reserved_bits_are_not_looked_at),
	WITH_SCENE(granted_region_can_be_revoked_once),
};
#define ONCE (sizeof(once) / sizeof(once[0]))

int main(void)
{
	static struct CMUnitTest tests[EACH * MODES + ONCE];
	static char names[EACH * MODES][100];
	size_t n = 0;

	for (size_t i = 0; i < EACH; i++) {
		for (size_t m = 0; m < MODES; m++, n++) {
			snprintf(names[n], sizeof(names[n]), "%s (%s)", in_each_mode[i].name,
				 modes[m].name);
			tests[n] = (struct CMUnitTest) { .name = names[n],
							 .test_func = in_each_mode[i].test,
							 .setup_func = scene_enter,
							 .teardown_func = scene_leave,
							 .initial_state = (void *)&modes[m] };
		}
	}
	memcpy(tests + n, once, sizeof(once));
	return _cmocka_run_group_tests("liberal", tests, n + ONCE, scene_open, scene_close);
}
