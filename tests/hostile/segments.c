/* SPDX-License-Identifier: MIT */
/*
 * Bad segments: each row of the table is one segment that a peer must not send, and what the
 * victim says about it. Every row runs in every mode: CRC on and off (then large segments go
 * straight to memory), markers, the victim as initiator, and each octet in a TCP segment of its
 * own. Before the attack two receives of 64 octets are posted and the peer has sent nothing but
 * its ready-to-receive message.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/bytes.h"
#include "hostile/scene.h"

#define RECEIVE_LEN 64

struct bad_segment {
	const char *name;
	uint32_t fault;
	uint8_t opcode;
	bool other_t;         /* T bit as the opcode must not have it */
	bool no_last, is_cut; /* no L; the ULPDU ends after `cut` octets */
	bool absolute;        /* offset is the TO itself */
	uint8_t xor0, xor1;   /* spoil the control octets */
	uint32_t add_qn, add_msn, mo;
	uint32_t len;    /* of the payload */
	uint32_t read;   /* Read Request: how much */
	int key;         /* STag to write to, read from or revoke */
	uint64_t offset; /* from the beginning of its area */
	uint32_t cut;
	uint32_t receive_end; /* status of the first receive, when it is not flushed */
	enum raw_damage damage;
};

static const struct bad_segment rows[] = {
#define ROW(what, code, op, ...) \
	{ .name = (what), .fault = FAULT_##code, .opcode = RDMAP_##op, ##__VA_ARGS__ },
#include "hostile/segments.def"
#undef ROW
};

#define ROWS (sizeof(rows) / sizeof(rows[0]))

static const struct scene_mode modes[] = {
	{ .name = "CRC", .crc = true },
	{ .name = "no CRC" },
	{ .name = "markers", .crc = true, .markers = true },
	{ .name = "markers, no CRC", .markers = true },
	{ .name = "as initiator", .crc = true, .initiator = true },
	{ .name = "in single octets", .crc = true, .trickle = true },
	{ .name = "in single octets, no CRC", .trickle = true },
};
#define MODES (sizeof(modes) / sizeof(modes[0]))

struct run {
	const struct bad_segment *row;
	const struct scene_mode *mode;
	char name[120];
};

static struct run runs[ROWS * MODES];
static struct CMUnitTest tests[ROWS * MODES];

/* The ULPDU of a row; caller frees. */
static uint8_t *make_ulpdu(struct scene *s, const struct bad_segment *b, size_t *len)
{
	static const struct ddp_params version = { .dv = 1, .rv = 1 };
	const struct rdmap_op_info *op = &rdmap_ops[b->opcode];
	uint64_t to = b->offset + (b->absolute ? 0 : scene_to(s, b->key, 0));
	uint32_t stag = scene_key(s, b->key);
	struct ddp_segment seg = { .opcode = b->opcode,
				   .tagged = op->tagged != b->other_t,
				   .last = !b->no_last,
				   .stag = stag,
				   .to = to,
				   .inv_stag = op->invalidate ? stag : 0,
				   .qn = op->qn + b->add_qn,
				   .msn = 1 + b->add_msn,
				   .mo = b->mo };
	struct rdmap_read_request r = {
		.sink_stag = 7, .size = b->read, .src_stag = stag, .src_to = to
	};
	size_t payload = b->read ? RDMAP_READ_REQUEST_LEN : b->len;
	uint8_t *ulpdu = malloc(DDP_HDR_MAX + payload);
	size_t hdr;

	assert_non_null(ulpdu);
	hdr = ddp_encode(&version, &seg, ulpdu);
	memset(ulpdu + hdr, 0x5a, payload);
	if (b->read)
		rdmap_read_request_encode(&r, ulpdu + hdr);
	ulpdu[0] ^= b->xor0;
	ulpdu[1] ^= b->xor1;
	*len = b->is_cut ? b->cut : hdr + payload;
	return ulpdu;
}

static void victim_terminates(void **state)
{
	const struct run *run = *state;
	const struct bad_segment *b = run->row;
	struct scene *s = scene_here();
	uint8_t *ulpdu;
	uint64_t first;
	size_t len;

	scene_connect(s, run->mode);
	first = scene_post_recv(s, 0, RECEIVE_LEN);
	scene_post_recv(s, 1000, RECEIVE_LEN);
	ulpdu = make_ulpdu(s, b, &len);
	raw_send_ulpdu(&s->peer, ulpdu, len, b->damage);
	free(ulpdu);
	raw_await_terminate(&s->peer, b->fault);
	raw_close(&s->peer);
	if (b->receive_end)
		scene_expect_wc(s, first, b->receive_end, NULL);
	scene_expect_down(s, FLUE_CLOSE_FAULT, b->fault & ~WIRE_FAULT_BIT);
	/* Such a Send is placed before its STag is looked at. */
	if (rdmap_ops[b->opcode].invalidate && !b->other_t)
		scene_allow(s, AREA_LOCAL, 0, RECEIVE_LEN);
	scene_expect_flushed(s);
}

/* Damage can be done only to what is there. */
static bool fits(const struct bad_segment *b, const struct scene_mode *m)
{
	return !(b->damage == RAW_BAD_CRC && !m->crc) &&
	       !(b->damage == RAW_BAD_MARKER && !m->markers);
}

int main(void)
{
	size_t n = 0;

	for (size_t m = 0; m < MODES; m++) {
		for (size_t r = 0; r < ROWS; r++) {
			if (!fits(&rows[r], &modes[m]))
				continue;
			runs[n] = (struct run) { .row = &rows[r], .mode = &modes[m] };
			snprintf(runs[n].name, sizeof(runs[n].name), "victim_terminates: %s (%s)",
				 rows[r].name, modes[m].name);
			tests[n] = (struct CMUnitTest) { .name = runs[n].name,
							 .test_func = victim_terminates,
							 .setup_func = scene_enter,
							 .teardown_func = scene_leave,
							 .initial_state = &runs[n] };
			n++;
		}
	}
	return _cmocka_run_group_tests("segments", tests, n, scene_open, scene_close);
}
