/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "wire/mpa.h"

#define UNSPECIFIED MPA_DEPTH_UNSPECIFIED

/* What Flue wants by default: see the interoperability notes in docs/design/wire.md. */
static const struct mpa_policy usual = {
	.rev = 2,
	.crc = true,
	.p2p = true,
	.rtr = MPA_RTR_WRITE | MPA_RTR_READ,
	.own_peer = true,
	.ird = 16,
	.ord = 16,
	.ird_max = 128,
};

static const struct mpa_policy rdmac = { .rev = 0, .markers_ok = true, .ird = 4, .ord = 4 };

/* Frames as they come from the other side: through the codec. */
static void over_the_wire(struct mpa_frame *f)
{
	static uint8_t buf[2][MPA_FRAME_LEN + MPA_PD_MAX];
	static unsigned which;
	uint8_t *b = buf[which++ % 2];
	int len = mpa_frame_encode(f, b, sizeof(buf[0]));

	assert_true(len > 0);
	assert_int_equal(mpa_frame_decode(f, b, (size_t)len, f->reply), len);
}

struct both {
	struct mpa_frame req, rep;
	struct mpa_terms initiator, responder;
	int answer, take;
};

static struct both negotiate(const struct mpa_policy *i, const struct mpa_policy *r)
{
	struct both b;

	mpa_make_request(i, NULL, 0, &b.req);
	over_the_wire(&b.req);
	b.answer = mpa_answer_request(r, &b.req, &b.rep, &b.responder);
	over_the_wire(&b.rep);
	b.take = mpa_take_reply(i, &b.req, &b.rep, &b.initiator);
	return b;
}

static void request_says_what_the_policy_wants(void **st)
{
	struct mpa_frame f;

	mpa_make_request(&usual, "abc", 3, &f);
	assert_false(f.reply);
	assert_int_equal(f.rev, 2);
	assert_int_equal(f.flags, MPA_FLAG_CRC | MPA_FLAG_ENHANCED | MPA_FLAG_OWN_OFFER);
	assert_true(f.p2p);
	assert_int_equal(f.rtr, MPA_RTR_WRITE | MPA_RTR_READ);
	assert_int_equal(f.ird, 16);
	assert_int_equal(f.ord, 16);
	assert_int_equal(f.data_len, 3);

	struct mpa_policy p = { .rev = 1, .markers = true, .rtr = 7, .ird = 5 };

	mpa_make_request(&p, NULL, 0, &f);
	assert_int_equal(f.flags, MPA_FLAG_MARKERS);
	assert_int_equal(f.rev, 1);
	assert_int_equal(f.rtr, 0);
	/* Without the peer-to-peer model there is nothing to say about RTRs. */
	p.rev = 2;
	mpa_make_request(&p, NULL, 0, &f);
	assert_false(f.p2p);
	assert_int_equal(f.rtr, 0);

	mpa_make_request(&rdmac, NULL, 0, &f);
	assert_int_equal(f.rev, 0);
	assert_int_equal(f.flags, MPA_FLAG_MARKERS | MPA_FLAG_CRC);
}

static void request_with_too_much_data_is_refused_by_the_codec(void **st)
{
	static uint8_t data[0x10001], buf[600];
	struct mpa_frame f;

	mpa_make_request(&usual, data, sizeof(data), &f);
	assert_int_equal(mpa_frame_encode(&f, buf, sizeof(buf)), -EMSGSIZE);
}

static void own_peers_agree_when_both_want_the_usual(void **st)
{
	struct both b = negotiate(&usual, &usual);
	const struct mpa_terms *t[] = { &b.initiator, &b.responder };

	assert_int_equal(b.answer, 0);
	assert_int_equal(b.take, 0);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(t[i]->rev, 2);
		assert_true(t[i]->crc);
		assert_false(t[i]->tx_markers);
		assert_false(t[i]->rx_markers);
		assert_true(t[i]->p2p);
		assert_int_equal(t[i]->rtr, MPA_RTR_WRITE);
		assert_true(t[i]->own_peer);
		assert_int_equal(t[i]->ird, 16);
		assert_int_equal(t[i]->ord, 16);
		assert_int_equal(t[i]->peer_ird, 16);
		assert_int_equal(t[i]->peer_ord, 16);
	}
	assert_int_equal(b.rep.rtr, MPA_RTR_WRITE);
	assert_int_equal(b.rep.data_len, 0);
}

/* Whoever answers may well forget the bit; that the request had it is enough (RFC 5044 section 7.1). */
static void crc_is_on_when_the_reply_does_not_repeat_it(void **st)
{
	struct both b = negotiate(&usual, &usual);
	struct mpa_terms t;

	b.rep.flags &= (uint8_t)~MPA_FLAG_CRC;
	assert_int_equal(mpa_take_reply(&usual, &b.req, &b.rep, &t), 0);
	assert_true(t.crc);
}

static void crc_is_on_when_either_side_wants_it(void **st)
{
	for (int i = 0; i < 4; i++) {
		struct mpa_policy a = usual, z = usual;

		a.crc = i & 1;
		z.crc = i & 2;
		struct both b = negotiate(&a, &z);

		assert_int_equal(b.take, 0);
		assert_int_equal(b.initiator.crc, i != 0);
		assert_int_equal(b.responder.crc, i != 0);
		assert_int_equal(!!(b.rep.flags & MPA_FLAG_CRC), i != 0);
	}
}

static void markers_are_sent_where_the_receiver_wants_them(void **st)
{
	for (int i = 0; i < 4; i++) {
		struct mpa_policy a = usual, z = usual;

		a.markers_ok = z.markers_ok = true;
		a.markers = i & 1;
		z.markers = i & 2;
		struct both b = negotiate(&a, &z);

		assert_int_equal(b.take, 0);
		assert_int_equal(b.initiator.rx_markers, a.markers);
		assert_int_equal(b.responder.tx_markers, a.markers);
		assert_int_equal(b.initiator.tx_markers, z.markers);
		assert_int_equal(b.responder.rx_markers, z.markers);
	}
}

static void markers_are_refused_when_we_will_not_send_them(void **st)
{
	struct mpa_policy with = usual;
	struct both b;

	with.markers = true;
	b = negotiate(&with, &usual);
	assert_int_equal(b.answer, -EOPNOTSUPP);
	assert_true(b.rep.flags & MPA_FLAG_REJECT);
	assert_true(b.rep.flags & MPA_FLAG_ENHANCED);
	assert_false(b.rep.flags & MPA_FLAG_OWN_TAKEN);
	assert_int_equal(b.take, -ECONNREFUSED);
	b = negotiate(&usual, &with);
	assert_int_equal(b.answer, 0);
	assert_int_equal(b.take, -EOPNOTSUPP);
}

static void revision_1_is_answered_in_kind(void **st)
{
	struct mpa_policy old = usual;
	struct both b;

	old.rev = 1;
	b = negotiate(&old, &usual);
	assert_int_equal(b.answer, 0);
	assert_int_equal(b.take, 0);
	assert_int_equal(b.rep.rev, 1);
	assert_false(b.rep.flags & MPA_FLAG_ENHANCED);
	assert_int_equal(b.responder.rev, 1);
	assert_false(b.responder.p2p);
	assert_int_equal(b.responder.rtr, MPA_RTR_NONE);
	assert_int_equal(b.responder.peer_ird, UNSPECIFIED);
	assert_int_equal(b.initiator.peer_ord, UNSPECIFIED);
	/* Depths are as each side set them: the ULP has to know. */
	assert_int_equal(b.responder.ird, 16);
	assert_int_equal(b.initiator.ord, 16);
}

static void revision_2_without_s_is_answered_in_kind(void **st)
{
	struct mpa_frame req = { .rev = 2, .flags = MPA_FLAG_CRC }, rep;
	struct mpa_terms t;

	assert_int_equal(mpa_answer_request(&usual, &req, &rep, &t), 0);
	assert_int_equal(rep.rev, 2);
	assert_int_equal(rep.flags, MPA_FLAG_CRC);
	assert_false(t.p2p);
	assert_int_equal(t.peer_ord, UNSPECIFIED);
	assert_int_equal(mpa_take_reply(&usual, &req, &rep, &t), 0);
	assert_int_equal(t.peer_ord, UNSPECIFIED);
}

static void unknown_revision_is_refused_with_ours(void **st)
{
	static const struct {
		uint8_t ours, theirs;
		bool known;
	} cases[] = {
		{ 2, 3, false }, { 2, 129, false }, { 2, 0, false }, { 2, 1, true },
		{ 1, 2, false }, { 1, 1, true },    { 1, 0, false }, { 0, 0, true },
		{ 0, 1, false }, { 0, 2, false },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct mpa_policy p = usual;
		struct mpa_frame req = { .rev = cases[i].theirs }, rep;
		struct mpa_terms t;

		p.rev = cases[i].ours;
		p.markers_ok = true;
		assert_int_equal(mpa_answer_request(&p, &req, &rep, &t),
				 cases[i].known ? 0 : -EPROTONOSUPPORT);
		assert_true(rep.reply);
		if (cases[i].known)
			continue;
		assert_int_equal(rep.rev, cases[i].ours);
		assert_int_equal(rep.flags, MPA_FLAG_REJECT);
	}
}

static void rdmac_style_has_markers_and_crc_always(void **st)
{
	struct mpa_policy deaf = rdmac;
	struct both b = negotiate(&rdmac, &rdmac);
	const struct mpa_terms *t[] = { &b.initiator, &b.responder };

	assert_int_equal(b.answer, 0);
	assert_int_equal(b.take, 0);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(t[i]->rev, 0);
		assert_true(t[i]->crc && t[i]->tx_markers && t[i]->rx_markers);
		assert_false(t[i]->own_peer || t[i]->p2p);
	}
	assert_int_equal(b.rep.flags, MPA_FLAG_MARKERS | MPA_FLAG_CRC);
	deaf.markers_ok = false;
	assert_int_equal(negotiate(&rdmac, &deaf).answer, -EOPNOTSUPP);
}

static void own_peer_is_taken_only_when_offered_and_wanted(void **st)
{
	for (int i = 0; i < 4; i++) {
		struct mpa_policy a = usual, z = usual;

		a.own_peer = i & 1;
		z.own_peer = i & 2;
		struct both b = negotiate(&a, &z);

		assert_int_equal(b.initiator.own_peer, i == 3);
		assert_int_equal(b.responder.own_peer, i == 3);
		assert_int_equal(b.rep.flags & 0x0f, i == 3 ? MPA_FLAG_OWN_TAKEN : 0);
	}
}

static void own_peer_is_not_seen_in_an_echo(void **st)
{
	static const uint8_t bits[] = { 0, MPA_FLAG_OWN_OFFER,
					MPA_FLAG_OWN_OFFER | MPA_FLAG_OWN_TAKEN, 0x08 };
	struct both b = negotiate(&usual, &usual);
	struct mpa_terms t;

	/* siw sends back the request's bits; others send zeros; nobody sends both. */
	for (size_t i = 0; i < sizeof(bits); i++) {
		b.rep.flags = (uint8_t)((b.rep.flags & 0xf0) | bits[i]);
		assert_int_equal(mpa_take_reply(&usual, &b.req, &b.rep, &t), 0);
		assert_false(t.own_peer);
	}
	/* TAKEN without an offer means something we do not know. */
	b.rep.flags = (uint8_t)((b.rep.flags & 0xf0) | MPA_FLAG_OWN_TAKEN);
	b.req.flags &= (uint8_t)~MPA_FLAG_OWN_OFFER;
	assert_int_equal(mpa_take_reply(&usual, &b.req, &b.rep, &t), 0);
	assert_false(t.own_peer);
}

struct depth_case {
	uint16_t i_ird, i_ord;        /* initiator's policy, with ird_max == ird */
	uint16_t r_ird, r_ord, r_max; /* responder's policy */
	int answer;
	uint16_t rep_ird, rep_ord;       /* on the wire */
	uint16_t want_r_ird, want_r_ord; /* responder's terms */
	uint16_t want_i_ird, want_i_ord; /* initiator's terms */
};

/* clang-format off */
static const struct depth_case depth_cases[] = {
	/* initiator  responder        reply              terms of both */
	{ 16, 16,     16, 16,  16,  0, 16, 16,            16, 16,  16, 16 },
	{  4,  4,     16, 16,  16,  0, 16,  4,            16,  4,   4,  4 },
	{ 16, 32,     16, 16, 128,  0, 32, 16,            32, 16,  16, 32 },
	{ 16, 129,    16, 16, 128,  -ENOBUFS, 128, 16,   128, 16,  16, 128 },
	{ 16, 17,     16, 16,   0,  -ENOBUFS, 16, 16,     16, 16,  16, 16 },
	{  0,  0,     16, 16,  16,  0, 16,  0,            16,  0,   0,  0 },
	{ 16, 16,     16,  0,  16,  0, 16,  0,            16,  0,  16, 16 },
	{ UNSPECIFIED, UNSPECIFIED, 16, 8, 16, 0, UNSPECIFIED, UNSPECIFIED, 16, 8,
	  UNSPECIFIED, UNSPECIFIED },
	{ 16, UNSPECIFIED, 16, 8, 16, 0, UNSPECIFIED, 8,  16,  8,  16, UNSPECIFIED },
	{ UNSPECIFIED, 4,  16, 8, 16, 0, 16, UNSPECIFIED, 16,  8,  UNSPECIFIED, 4 },
	{ 16, 16,     UNSPECIFIED, UNSPECIFIED, 0, 0, UNSPECIFIED, 16, UNSPECIFIED, 16,  16, 16 },
};
/* clang-format on */

static void depths_follow_the_rules_of_rfc_6581(void **st)
{
	for (size_t i = 0; i < sizeof(depth_cases) / sizeof(depth_cases[0]); i++) {
		const struct depth_case *c = &depth_cases[i];
		struct mpa_policy a = usual, z = usual;
		struct both b;

		a.ird = a.ird_max = c->i_ird;
		a.ord = c->i_ord;
		z.ird = c->r_ird;
		z.ord = c->r_ord;
		z.ird_max = c->r_max;
		b = negotiate(&a, &z);
		assert_int_equal(b.answer, c->answer);
		assert_int_equal(b.take, c->answer ? -ECONNREFUSED : 0);
		assert_int_equal(b.rep.ird, c->rep_ird);
		assert_int_equal(b.rep.ord, c->rep_ord);
		assert_int_equal(b.responder.ird, c->want_r_ird);
		assert_int_equal(b.responder.ord, c->want_r_ord);
		assert_int_equal(b.responder.peer_ird, c->i_ird);
		assert_int_equal(b.responder.peer_ord, c->i_ord);
		/* The responder's values go up to the ULP with a rejection, too. */
		assert_int_equal(b.initiator.peer_ird, c->rep_ird);
		assert_int_equal(b.initiator.peer_ord, c->rep_ord);
		if (c->answer)
			continue;
		assert_int_equal(b.initiator.ird, c->want_i_ird);
		assert_int_equal(b.initiator.ord, c->want_i_ord);
	}
}

static void initiator_owes_a_terminate_when_its_ird_is_too_low(void **st)
{
	struct both b = negotiate(&usual, &usual);
	struct mpa_policy strict = usual;
	struct mpa_terms t;

	strict.ird_max = 16;
	b.rep.ord = 17; /* against the rules, but siw and others may */
	assert_int_equal(mpa_take_reply(&strict, &b.req, &b.rep, &t), -ENOBUFS);
	assert_true(t.crc);
	assert_int_equal(t.rev, 2);
	/* With room to spare it is not worth a quarrel. */
	assert_int_equal(mpa_take_reply(&usual, &b.req, &b.rep, &t), 0);
	assert_int_equal(t.ird, 17);
}

static void rtr_is_the_best_that_both_can(void **st)
{
	for (uint8_t ours = 0; ours < 8; ours++) {
		for (uint8_t theirs = 0; theirs < 8; theirs++) {
			struct mpa_policy a = usual, z = usual;
			uint8_t common = ours & theirs;
			uint8_t want = common & MPA_RTR_WRITE  ? MPA_RTR_WRITE
				       : common & MPA_RTR_READ ? MPA_RTR_READ
							       : common;

			a.rtr = theirs;
			z.rtr = ours;
			struct both b = negotiate(&a, &z);

			assert_int_equal(b.answer, 0);
			assert_true(b.rep.p2p && b.responder.p2p && b.initiator.p2p);
			assert_int_equal(b.responder.rtr, want);
			assert_int_equal(b.initiator.rtr, want);
			assert_int_equal(b.rep.rtr, want ? want : ours);
			assert_int_equal(b.take, want ? 0 : -ENOMSG);
			/* A Terminate can be framed. */
			assert_true(b.initiator.crc);
		}
	}
}

static void rtr_is_none_without_peer_to_peer(void **st)
{
	struct mpa_policy client = usual;
	struct both b;
	struct mpa_terms t;

	client.p2p = false;
	b = negotiate(&client, &usual);
	assert_int_equal(b.take, 0);
	assert_false(b.rep.p2p || b.initiator.p2p || b.responder.p2p);
	assert_int_equal(b.rep.rtr, 0);
	assert_int_equal(b.initiator.rtr, MPA_RTR_NONE);
	/* A reply that disagrees changes nothing: we send first either way. */
	b.rep.p2p = true;
	b.rep.rtr = MPA_RTR_READ;
	assert_int_equal(mpa_take_reply(&client, &b.req, &b.rep, &t), 0);
	assert_false(t.p2p);
	b = negotiate(&usual, &usual);
	b.rep.p2p = false;
	assert_int_equal(mpa_take_reply(&usual, &b.req, &b.rep, &t), 0);
	assert_false(t.p2p);
	assert_int_equal(t.rtr, MPA_RTR_NONE);
}

static void read_rtr_gets_its_slot(void **st)
{
	struct mpa_policy a = usual, z = usual;
	struct both b;

	a.rtr = MPA_RTR_READ;
	a.ord = 0;
	z.ird = 0;
	b = negotiate(&a, &z);
	assert_int_equal(b.take, 0);
	assert_int_equal(b.rep.ird, 1);
	assert_int_equal(b.responder.ird, 1);
	assert_int_equal(b.initiator.ord, 1);
	/* The ULP sets the depths: the slot is there, the field stays as it must be. */
	a.ord = UNSPECIFIED;
	b = negotiate(&a, &z);
	assert_int_equal(b.take, 0);
	assert_int_equal(b.rep.ird, UNSPECIFIED);
	assert_int_equal(b.responder.ird, 1);
	/* No slot at all: a Read cannot be taken. */
	a.ord = 0;
	z.ird_max = 0;
	b = negotiate(&a, &z);
	assert_int_equal(b.answer, 0);
	assert_int_equal(b.responder.rtr, MPA_RTR_NONE);
	assert_int_equal(b.rep.rtr, MPA_RTR_WRITE);
	assert_int_equal(b.take, -ENOMSG);
}

/* A side that takes no Reads is not talked into some (CH-7). */
static void no_reads_are_taken_by_who_wants_none(void **st)
{
	struct mpa_policy none = usual;
	struct both b;

	none.ird = 0;
	none.no_reads = true;
	b = negotiate(&usual, &none);
	assert_true(b.answer == 0 && b.take == 0);
	assert_true(b.rep.ird == 0 && b.responder.ird == 0 && b.initiator.ord == 0);
	assert_int_equal(b.responder.ord, 16); /* the other direction */
	assert_int_equal(b.initiator.rtr, MPA_RTR_WRITE);
	b = negotiate(&none, &usual);
	assert_true(b.answer == 0 && b.take == 0);
	assert_true(b.req.ird == 0 && b.initiator.ird == 0 && b.responder.ord == 0);
	/* A peer that does not care for our IRD is not helped to break it. */
	b.rep.ord = 5;
	assert_int_equal(mpa_take_reply(&none, &b.req, &b.rep, &b.initiator), 0);
	assert_int_equal(b.initiator.ird, 0);
	/* An empty Read, to say that it is ready, would need a place too. */
	none.rtr = MPA_RTR_READ | MPA_RTR_SEND;
	b = negotiate(&(struct mpa_policy) { .rev = 2, .p2p = true, .rtr = 7 }, &none);
	assert_int_equal(b.responder.rtr, MPA_RTR_SEND);
}

static void initiator_chooses_when_the_reply_has_several_rtrs(void **st)
{
	struct both b = negotiate(&usual, &usual);
	struct mpa_terms t;

	b.rep.rtr = MPA_RTR_SEND | MPA_RTR_READ | MPA_RTR_WRITE;
	assert_int_equal(mpa_take_reply(&usual, &b.req, &b.rep, &t), 0);
	assert_int_equal(t.rtr, MPA_RTR_WRITE);
	b.rep.rtr = MPA_RTR_SEND | MPA_RTR_READ;
	assert_int_equal(mpa_take_reply(&usual, &b.req, &b.rep, &t), 0);
	assert_int_equal(t.rtr, MPA_RTR_READ);
	b.rep.rtr = MPA_RTR_SEND;
	assert_int_equal(mpa_take_reply(&usual, &b.req, &b.rep, &t), -ENOMSG);
}

static void reply_is_refused_when_its_form_is_not_the_requests(void **st)
{
	static const struct {
		uint8_t req_rev, req_flags, rep_rev, rep_flags;
		int rc;
	} cases[] = {
		{ 2, MPA_FLAG_ENHANCED, 2, MPA_FLAG_ENHANCED, 0 },
		{ 2, MPA_FLAG_ENHANCED, 2, 0, -EPROTO },
		{ 2, MPA_FLAG_ENHANCED, 1, 0, -EPROTO },
		{ 2, MPA_FLAG_ENHANCED, 3, MPA_FLAG_ENHANCED, -EPROTO },
		{ 1, 0, 1, 0, 0 },
		{ 1, 0, 0, 0, -EPROTO },
		{ 1, 0, 2, 0, -EPROTO },
		{ 1, 0, 2, MPA_FLAG_ENHANCED, -EPROTO },
		{ 2, 0, 2, 0, 0 },
		{ 2, 0, 2, MPA_FLAG_ENHANCED, -EPROTO },
		{ 0, 0, 1, 0, -EPROTO },
		/* whoever refuses may do so in the only form it knows */
		{ 2, MPA_FLAG_ENHANCED, 1, MPA_FLAG_REJECT, -ECONNREFUSED },
		{ 2, MPA_FLAG_ENHANCED, 2, MPA_FLAG_ENHANCED | MPA_FLAG_REJECT, -ECONNREFUSED },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct mpa_frame req = { .rev = cases[i].req_rev, .flags = cases[i].req_flags };
		struct mpa_frame rep = { .rev = cases[i].rep_rev, .flags = cases[i].rep_flags };
		struct mpa_policy p = usual;
		struct mpa_terms t;

		p.rev = cases[i].req_rev ? cases[i].req_rev : 0;
		assert_int_equal(mpa_take_reply(&p, &req, &rep, &t), cases[i].rc);
	}
}

static void rdmac_policy_takes_a_revision_0_reply(void **st)
{
	struct mpa_frame req = { .rev = 1 }, rep = { .rev = 0 };
	struct mpa_terms t;

	assert_int_equal(mpa_take_reply(&rdmac, &req, &rep, &t), 0);
	assert_int_equal(t.rev, 0);
	assert_true(t.crc && t.tx_markers && t.rx_markers);
}

static void reject_keeps_revision_and_form(void **st)
{
	struct both b = negotiate(&usual, &usual);

	assert_true(b.rep.flags & MPA_FLAG_OWN_TAKEN);
	mpa_make_reject(&b.rep);
	over_the_wire(&b.rep);
	assert_int_equal(b.rep.rev, 2);
	assert_int_equal(b.rep.flags, MPA_FLAG_REJECT | MPA_FLAG_ENHANCED | MPA_FLAG_CRC);
	assert_int_equal(mpa_take_reply(&usual, &b.req, &b.rep, &b.initiator), -ECONNREFUSED);
}

/* A default siw: rev 2, S, no CRC, client and server; as responder it echoes. */
static void siw_is_understood_in_both_roles(void **st)
{
	struct mpa_frame req = { .rev = 2, .flags = MPA_FLAG_ENHANCED, .ird = 128, .ord = 128 };
	struct mpa_frame rep;
	struct mpa_terms t;

	assert_int_equal(mpa_answer_request(&usual, &req, &rep, &t), 0);
	assert_true(t.crc);
	assert_false(t.p2p || t.own_peer);
	assert_int_equal(rep.flags, MPA_FLAG_CRC | MPA_FLAG_ENHANCED);
	assert_int_equal(t.ird, 128);
	assert_int_equal(t.ord, 16);

	mpa_make_request(&usual, NULL, 0, &req);
	rep = req;
	rep.reply = true;
	rep.rtr = MPA_RTR_WRITE;
	assert_int_equal(mpa_take_reply(&usual, &req, &rep, &t), 0);
	assert_int_equal(t.rtr, MPA_RTR_WRITE);
	assert_false(t.own_peer);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(request_says_what_the_policy_wants),
		cmocka_unit_test(request_with_too_much_data_is_refused_by_the_codec),
		cmocka_unit_test(own_peers_agree_when_both_want_the_usual),
		cmocka_unit_test(crc_is_on_when_the_reply_does_not_repeat_it),
		cmocka_unit_test(crc_is_on_when_either_side_wants_it),
		cmocka_unit_test(markers_are_sent_where_the_receiver_wants_them),
		cmocka_unit_test(markers_are_refused_when_we_will_not_send_them),
		cmocka_unit_test(revision_1_is_answered_in_kind),
		cmocka_unit_test(revision_2_without_s_is_answered_in_kind),
		cmocka_unit_test(unknown_revision_is_refused_with_ours),
		cmocka_unit_test(rdmac_style_has_markers_and_crc_always),
		cmocka_unit_test(own_peer_is_taken_only_when_offered_and_wanted),
		cmocka_unit_test(own_peer_is_not_seen_in_an_echo),
		cmocka_unit_test(depths_follow_the_rules_of_rfc_6581),
		cmocka_unit_test(initiator_owes_a_terminate_when_its_ird_is_too_low),
		cmocka_unit_test(rtr_is_the_best_that_both_can),
		cmocka_unit_test(rtr_is_none_without_peer_to_peer),
		cmocka_unit_test(read_rtr_gets_its_slot),
		cmocka_unit_test(no_reads_are_taken_by_who_wants_none),
		cmocka_unit_test(initiator_chooses_when_the_reply_has_several_rtrs),
		cmocka_unit_test(reply_is_refused_when_its_form_is_not_the_requests),
		cmocka_unit_test(rdmac_policy_takes_a_revision_0_reply),
		cmocka_unit_test(reject_keeps_revision_and_form),
		cmocka_unit_test(siw_is_understood_in_both_roles),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
