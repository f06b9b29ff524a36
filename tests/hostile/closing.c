/* SPDX-License-Identifier: MIT */
/*
 * How a peer can end a connection: Terminates of every form, FIN and RST at every place, data
 * where none may come any more. Each says which reason and detail the one DISCONNECTED event has.
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

static const struct scene_mode no_crc = { .name = "no CRC" };

/* Two receives and a Read that is never answered. */
static void connect_busy(struct scene *s, const struct scene_mode *mode)
{
	struct rdmap_read_request r;

	scene_connect(s, mode);
	scene_post_recv(s, 0, 64);
	scene_post_recv(s, 100, 64);
	scene_post_read(s, 200, 64);
	raw_expect_read_request(&s->peer, &r);
}

/* ---- Terminates ---- */

struct terminate {
	const char *name;
	uint32_t detail;
	uint8_t len;
	uint8_t octets[RDMAP_TERMINATE_MAX];
};

static const struct terminate terminates[] = {
	{ "a CRC error", 0x2002, 4, { 0x20, 0x02 } },
	{ "a local catastrophe", 0x0000, 4, { 0 } },
	{ "an error with a header", 0x1100, 20, { 0x11, 0, 0xc0, 0, 0, 30, 0xc1, 0x40 } },
	{ "siw's bit order with a header", 0x1205, 24, { 0x21, 5, 3, 0, 0, 30, 0x41, 0x43 } },
	{ "siw's bit order without", 0x2002, 4, { 0x02, 0x02 } },
	{ "a triple of no table", 0xf3ab, 4, { 0xf3, 0xab } },
	{ "a header that is not there", 0x1100, 4, { 0x11, 0, 0xc0 } },
	{ "a length that is not there", 0x1100, 5, { 0x11, 0, 0x80 } },
	{ "half a header", 0x1201, 20, { 0x12, 1, 0xc0, 0, 0, 30, 0x41, 0x43 } },
	{ "a Read Request that is not there", 0x0101, 24, { 1, 1, 0xe0, 0, 0, 46, 0x41, 0x41 } },
	{ "all headers it can have", 0x0201, 52, { 2, 1, 0xe0, 0, 0, 46, 0x41, 0x41 } },
	{ "reserved bits", 0x2002, 4, { 0x20, 0x02, 0x18, 0xff } },
};
#define TERMINATES (sizeof(terminates) / sizeof(terminates[0]))

static void victim_is_told(void **state)
{
	struct scene *s = scene_here();
	const struct terminate *t = *state;

	scene_connect(s, &scene_default);
	scene_post_recv(s, 0, 64);
	raw_terminate(&s->peer, t->octets, t->len);
	/* No Terminate answers a Terminate. */
	raw_expect_end(&s->peer);
	raw_close(&s->peer);
	scene_expect_down(s, FLUE_CLOSE_TERMINATED, t->detail);
	scene_expect_flushed(s);
}

static void terminate_names_the_read_that_failed(void **state)
{
	struct scene *s = *state;
	struct rdmap_read_request r;
	uint8_t payload[52] = { 1, 0, 0xe0, 0, 0, 46, 0x41, 0x41 };

	scene_connect(s, &scene_default);
	scene_post_read(s, 200, 64);
	scene_post_read(s, 300, 64);
	scene_post_send(s, 0, 10);
	raw_expect_read_request(&s->peer, &r);
	rdmap_read_request_encode(&r, payload + 24);
	raw_terminate(&s->peer, payload, sizeof(payload));
	raw_drain(&s->peer);
	raw_close(&s->peer);
	scene_expect_wc(s, 1, FLUE_WC_REMOTE_ACCESS, NULL);
	scene_expect_down(s, FLUE_CLOSE_TERMINATED, 0x0100);
	scene_expect_flushed(s);
}

/* Three Reads, and a Terminate that brings one of them back: 1, 2, 3, or another one. */
static void expect_blame(struct scene *s, unsigned which)
{
	uint8_t payload[52] = { 1, 1, 0xe0, 0, 0, 46, 0x41, 0x41 };
	struct rdmap_read_request r[3], back;

	scene_connect(s, &scene_default);
	for (unsigned i = 0; i < 3; i++)
		scene_post_read(s, 200 + 100 * i, 64);
	for (unsigned i = 0; i < 3; i++)
		raw_expect_read_request(&s->peer, &r[i]);
	back = r[which ? which - 1 : 0];
	if (!which)
		back.src_to++;
	rdmap_read_request_encode(&back, payload + 24);
	raw_terminate(&s->peer, payload, sizeof(payload));
	raw_drain(&s->peer);
	raw_close(&s->peer);
	for (unsigned i = 1; i <= 3; i++)
		scene_expect_wc(s, i, i == which ? FLUE_WC_REMOTE_ACCESS : FLUE_WC_FLUSHED, NULL);
	scene_expect_down(s, FLUE_CLOSE_TERMINATED, 0x0101);
}

static void terminate_blames_the_first_read_if_it_says_so(void **state)
{
	expect_blame(*state, 1);
}

/* All name the same key, as a program's often do. */
static void terminate_blames_a_later_read_if_it_says_so(void **state)
{
	expect_blame(*state, 3);
}

static void terminate_of_a_read_that_is_not_ours_blames_nobody(void **state)
{
	expect_blame(*state, 0);
}

/* The peer did not like a Send; a Read that waits for its answer is innocent. */
static void terminate_of_another_message_blames_no_read(void **state)
{
	static const uint8_t payload[24] = { 1, 9, 0xc0, 0, 0, 30, 0x41, 0x44 };
	struct scene *s = *state;

	connect_busy(s, &scene_default);
	raw_terminate(&s->peer, payload, sizeof(payload));
	raw_drain(&s->peer);
	raw_close(&s->peer);
	scene_expect_down(s, FLUE_CLOSE_TERMINATED, 0x0109);
	scene_expect_flushed(s);
}

static void second_terminate_changes_nothing(void **state)
{
	struct scene *s = *state;

	connect_busy(s, &scene_default);
	raw_cork(&s->peer);
	raw_terminate(&s->peer, "\x20\x02\0", 4);
	raw_terminate(&s->peer, "\x12\x05\0", 4);
	raw_send_message(&s->peer, "and a message", 13);
	raw_uncork(&s->peer);
	raw_expect_end(&s->peer);
	raw_close(&s->peer);
	scene_expect_down(s, FLUE_CLOSE_TERMINATED, 0x2002);
	scene_expect_flushed(s);
}

static void nothing_counts_behind_a_fault(void **state)
{
	struct scene *s = *state;
	struct ddp_segment bad = { .opcode = RDMAP_SEND, .last = true, .msn = 9 };

	connect_busy(s, &scene_default);
	raw_cork(&s->peer);
	raw_send_segment(&s->peer, &bad, "bad", 3);
	raw_send_message(&s->peer, "good", 4);
	raw_write(&s->peer, scene_key(s, AREA_RW), scene_to(s, AREA_RW, 0), "good", 4);
	raw_terminate(&s->peer, "\x20\x02\0", 4);
	raw_uncork(&s->peer);
	scene_expect_fault(s, FAULT_DDP_MSN);
}

static void terminate_in_single_octets_is_one(void **state)
{
	struct scene *s = *state;
	static const struct scene_mode slow = { .name = "slow", .crc = true, .trickle = true };

	connect_busy(s, &slow);
	raw_terminate(&s->peer, "\x20\x02\0", 4);
	raw_expect_end(&s->peer);
	raw_close(&s->peer);
	scene_expect_down(s, FLUE_CLOSE_TERMINATED, 0x2002);
	scene_expect_flushed(s);
}

/* The peer says why, and its TCP resets the connection at once. */
static void reset_behind_a_terminate_is_its_consequence(void **state)
{
	struct scene *s = *state;

	connect_busy(s, &scene_default);
	raw_terminate(&s->peer, "\x20\x02\0", 4);
	raw_expect_end(&s->peer);
	raw_reset(&s->peer);
	scene_expect_down(s, FLUE_CLOSE_TERMINATED, 0x2002);
	scene_expect_flushed(s);
}

/* A peer that terminates and then neither closes nor goes away. */
static void peer_that_does_not_close_is_dropped(void **state)
{
	struct scene *s = *state;
	uint64_t start = pair_now_ms();

	connect_busy(s, &scene_default);
	raw_terminate(&s->peer, "\x20\x02\0", 4);
	scene_expect_down(s, FLUE_CLOSE_TERMINATED, 0x2002);
	assert_true(pair_now_ms() - start < 10000);
	scene_expect_flushed(s);
}

/* ---- FIN and RST ---- */

/* The beginning of an FPDU whose ULPDU would be `ulpdu_len` long: a Write to the granted area. */
static void send_half_an_fpdu(struct scene *s, uint16_t ulpdu_len, size_t octets)
{
	static const struct ddp_params version = { .dv = 1, .rv = 1 };
	struct ddp_segment seg = { .opcode = RDMAP_WRITE,
				   .tagged = true,
				   .last = true,
				   .stag = scene_key(s, AREA_RW),
				   .to = scene_to(s, AREA_RW, 0) };
	static uint8_t fpdu[65536];

	put_be16(fpdu, ulpdu_len);
	ddp_encode(&version, &seg, fpdu + MPA_LEN_LEN);
	memset(fpdu + 16, 0x66, sizeof(fpdu) - 16);
	raw_send(&s->peer, fpdu, octets);
}

struct cut {
	const char *name;
	uint16_t ulpdu_len;
	size_t octets;
	bool crc;
	size_t placed; /* octets that may be in the area then */
};

static const struct cut cuts[] = {
	{ "after one octet", 100, 1, true, 0 },
	{ "after the length", 100, 2, true, 0 },
	{ "in the header", 100, 10, true, 0 },
	{ "in the payload", 100, 50, true, 0 },
	{ "in the CRC", 100, 107, true, 0 },
	{ "in the largest FPDU", 65535, 60000, true, 0 },
	{ "in the header, no CRC", 60000, 10, false, 0 },
	{ "in the payload, no CRC", 60000, 30000, false, 30000 },
	{ "in the CRC, no CRC", 60000, 60003, false, 60000 },
};
#define CUTS (sizeof(cuts) / sizeof(cuts[0]))

static void cut_off(struct scene *s, const struct cut *c, bool reset)
{
	scene_connect(s, c->crc ? &scene_default : &no_crc);
	scene_post_recv(s, 0, 64);
	send_half_an_fpdu(s, c->ulpdu_len, c->octets);
	scene_expect_health(s);
	if (reset)
		raw_reset(&s->peer);
	else
		raw_fin(&s->peer);
	scene_expect_down(s, reset ? FLUE_CLOSE_RESET : FLUE_CLOSE_LOST, ECONNRESET);
	scene_expect_flushed(s);
	scene_allow(s, AREA_RW, 0, c->placed);
}

static void fin_inside_an_fpdu_is_a_loss(void **state)
{
	cut_off(scene_here(), *state, false);
}

static void reset_inside_an_fpdu_is_a_reset(void **state)
{
	cut_off(scene_here(), *state, true);
}

static void fin_between_fpdus_is_graceful(void **state)
{
	struct scene *s = *state;

	scene_connect(s, &scene_default);
	scene_post_recv(s, 0, 64);
	raw_fin(&s->peer);
	raw_expect_end(&s->peer);
	scene_expect_down(s, FLUE_CLOSE_GRACEFUL, 0);
	scene_expect_flushed(s);
	/* Both halves are closed and the queue pair is as new. */
	raw_close(&s->peer);
	assert_true(s->qp->ops->reset(s->qp));
}

static void fin_while_a_read_is_out_is_bad(void **state)
{
	struct scene *s = *state;

	connect_busy(s, &scene_default);
	raw_fin(&s->peer);
	scene_expect_down(s, FLUE_CLOSE_BAD, 0);
	scene_expect_flushed(s);
	raw_drain(&s->peer);
}

static void fin_inside_a_message_is_bad(void **state)
{
	struct scene *s = *state;
	struct ddp_segment seg = { .opcode = RDMAP_SEND, .msn = 1 };

	scene_connect(s, &scene_default);
	scene_post_recv(s, 0, 64);
	raw_send_segment(&s->peer, &seg, "more to come", 12);
	raw_fin(&s->peer);
	scene_expect_down(s, FLUE_CLOSE_BAD, 0);
	scene_expect_flushed(s);
	scene_expect(s, AREA_LOCAL, 0, "more to come", 12);
}

static void data_before_a_fin_are_delivered(void **state)
{
	struct scene *s = *state;

	scene_connect(s, &scene_default);
	scene_post_recv(s, 0, 64);
	raw_send_message(&s->peer, "last words", 10);
	raw_close(&s->peer);
	scene_expect_wc(s, 1, FLUE_WC_SUCCESS, NULL);
	scene_expect(s, AREA_LOCAL, 0, "last words", 10);
	scene_expect_down(s, FLUE_CLOSE_GRACEFUL, 0);
}

static void reset_between_fpdus_is_a_reset(void **state)
{
	struct scene *s = *state;

	connect_busy(s, &scene_default);
	raw_reset(&s->peer);
	scene_expect_down(s, FLUE_CLOSE_RESET, ECONNRESET);
	scene_expect_flushed(s);
}

/* ---- after our own close began ---- */

static void begin_closing(struct scene *s, int timeout_ms)
{
	scene_connect(s, &scene_default);
	scene_post_recv(s, 0, 64);
	assert_true(s->qp->ops->disconnect(s->qp, timeout_ms));
	raw_expect_end(&s->peer);
}

static void data_after_our_close_are_bad(void **state)
{
	struct scene *s = *state;

	begin_closing(s, -1);
	raw_send_message(&s->peer, "but", 3);
	scene_expect_down(s, FLUE_CLOSE_BAD, 0);
	scene_expect_flushed(s);
}

static void terminate_after_our_close_counts(void **state)
{
	struct scene *s = *state;

	begin_closing(s, -1);
	raw_terminate(&s->peer, "\x20\x02\0", 4);
	scene_expect_down(s, FLUE_CLOSE_TERMINATED, 0x2002);
	scene_expect_flushed(s);
}

static void garbage_after_our_close_is_a_fault(void **state)
{
	struct scene *s = *state;

	begin_closing(s, -1);
	raw_send_ulpdu(&s->peer, (const uint8_t *)"nonsense", 8, RAW_BAD_CRC);
	scene_expect_down(s, FLUE_CLOSE_FAULT, FAULT_MPA_CRC & ~WIRE_FAULT_BIT);
	scene_expect_flushed(s);
}

static void half_an_fpdu_after_our_close_is_no_graceful_end(void **state)
{
	struct scene *s = *state;

	begin_closing(s, -1);
	send_half_an_fpdu(s, 100, 50);
	raw_fin(&s->peer);
	scene_expect_down(s, FLUE_CLOSE_LOST, ECONNRESET);
	scene_expect_flushed(s);
}

static void peer_that_never_closes_runs_out_of_time(void **state)
{
	struct scene *s = *state;

	scene_connect(s, &scene_default);
	scene_post_recv(s, 0, 64);
	assert_false(s->qp->ops->disconnect(s->qp, 200));
	assert_int_equal(errno, ETIMEDOUT);
	scene_expect_down(s, FLUE_CLOSE_LOST, ETIMEDOUT);
	scene_expect_flushed(s);
	raw_drain(&s->peer);
}

static void reset_after_our_close_is_a_reset(void **state)
{
	struct scene *s = *state;

	begin_closing(s, -1);
	raw_reset(&s->peer);
	scene_expect_down(s, FLUE_CLOSE_RESET, ECONNRESET);
	scene_expect_flushed(s);
}

static const struct CMUnitTest others[] = {
	WITH_SCENE(terminate_names_the_read_that_failed),
	WITH_SCENE(terminate_blames_the_first_read_if_it_says_so),
	WITH_SCENE(terminate_blames_a_later_read_if_it_says_so),
	WITH_SCENE(terminate_of_a_read_that_is_not_ours_blames_nobody),
	WITH_SCENE(terminate_of_another_message_blames_no_read),
	WITH_SCENE(second_terminate_changes_nothing),
	WITH_SCENE(nothing_counts_behind_a_fault),
	WITH_SCENE(terminate_in_single_octets_is_one),
	WITH_SCENE(reset_behind_a_terminate_is_its_consequence),
	WITH_SCENE(peer_that_does_not_close_is_dropped),
	WITH_SCENE(fin_between_fpdus_is_graceful),
	WITH_SCENE(fin_while_a_read_is_out_is_bad),
	WITH_SCENE(fin_inside_a_message_is_bad),
	WITH_SCENE(data_before_a_fin_are_delivered),
	WITH_SCENE(reset_between_fpdus_is_a_reset),
	WITH_SCENE(data_after_our_close_are_bad),
	WITH_SCENE(terminate_after_our_close_counts),
	WITH_SCENE(garbage_after_our_close_is_a_fault),
	WITH_SCENE(half_an_fpdu_after_our_close_is_no_graceful_end),
	WITH_SCENE(peer_that_never_closes_runs_out_of_time),
	WITH_SCENE(reset_after_our_close_is_a_reset),
};
#define OTHERS (sizeof(others) / sizeof(others[0]))

static char names[TERMINATES + 2 * CUTS][120];
static struct CMUnitTest tests[TERMINATES + 2 * CUTS + OTHERS];
static size_t n_tests;

static void add(const char *title, const char *what, CMUnitTestFunction f, const void *state)
{
	snprintf(names[n_tests], sizeof(names[n_tests]), "%s: %s", title, what);
	tests[n_tests] = (struct CMUnitTest) { .name = names[n_tests],
					       .test_func = f,
					       .setup_func = scene_enter,
					       .teardown_func = scene_leave,
					       .initial_state = (void *)state };
	n_tests++;
}

int main(void)
{
	for (size_t i = 0; i < TERMINATES; i++)
		add("victim_is_told", terminates[i].name, victim_is_told, &terminates[i]);
	for (size_t i = 0; i < CUTS; i++) {
		add("fin_inside_an_fpdu_is_a_loss", cuts[i].name, fin_inside_an_fpdu_is_a_loss,
		    &cuts[i]);
		add("reset_inside_an_fpdu_is_a_reset", cuts[i].name,
		    reset_inside_an_fpdu_is_a_reset, &cuts[i]);
	}
	memcpy(tests + n_tests, others, sizeof(others));
	return _cmocka_run_group_tests("closing", tests, n_tests + OTHERS, scene_open, scene_close);
}
