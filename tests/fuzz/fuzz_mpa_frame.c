/* SPDX-License-Identifier: MIT */
/*
 * Start-up frames and their negotiation.
 *
 * Input: 18 octets for two policies, then a stream that claims to begin with a frame. The
 * stream is read in both roles; what can be read is written again and must be the same; it is
 * judged as a request and as a reply by hostile-proof code. Finally the two policies talk to
 * each other and must come to the same conclusions.
 */
#include "fuzz.h"

#include <errno.h>

#include "wire/mpa.h"

#define FRAME_MAX (MPA_FRAME_LEN + MPA_PD_MAX)

static void take_policy(struct source *in, struct mpa_policy *p)
{
	uint8_t bits = (uint8_t)take(in, 1);

	memset(p, 0, sizeof(*p));
	p->rev = (uint8_t)(take(in, 1) % 3);
	p->crc = bits & 1;
	p->markers = bits & 2;
	p->markers_ok = bits & 4;
	p->p2p = bits & 8;
	p->own_peer = bits & 16;
	p->rtr = (uint8_t)take(in, 1) & 7;
	/* Small numbers meet more often than numbers of 14 bits. */
	p->ird = (uint16_t)(take(in, 2) & (bits & 32 ? 0x3fff : 0xf));
	p->ord = (uint16_t)(take(in, 2) & (bits & 64 ? 0x3fff : 0xf));
	p->ird_max = (uint16_t)(take(in, 2) & (bits & 128 ? 0x3fff : 0xf));
}

static void check_same(const struct mpa_frame *a, const struct mpa_frame *b)
{
	CHECK(a->reply == b->reply && a->flags == b->flags && a->rev == b->rev);
	CHECK(a->p2p == b->p2p && a->rtr == b->rtr);
	CHECK(a->ird == b->ird && a->ord == b->ord);
	CHECK(a->data_len == b->data_len);
	CHECK(a->data_len == 0 || memcmp(a->data, b->data, a->data_len) == 0);
}

/* Write a frame that must be writable and read it back into *back, which points into buf. */
static void round_trip(const struct mpa_frame *f, uint8_t *buf, struct mpa_frame *back)
{
	int len = mpa_frame_encode(f, buf, FRAME_MAX);

	CHECK(len >= MPA_FRAME_LEN && len <= FRAME_MAX);
	CHECK(mpa_frame_decode(back, buf, (size_t)len, f->reply) == len);
	check_same(f, back);
}

/* Whatever a decoder takes it can write, in exactly as many octets, and read again. */
static void check_rewrite(const struct mpa_frame *f, int len)
{
	uint8_t *out = malloc((size_t)len);
	struct mpa_frame back;

	CHECK(mpa_frame_encode(f, out, (size_t)len - 1) == -EMSGSIZE);
	CHECK(mpa_frame_encode(f, out, (size_t)len) == len);
	CHECK(mpa_frame_decode(&back, out, (size_t)len, f->reply) == len);
	check_same(f, &back);
	free(out);
}

/* A shorter beginning may ask for more, never see a frame or an error that is not there. */
static void check_prefixes(const uint8_t *data, size_t len, bool reply, int verdict)
{
	for (size_t cut = 0; cut < len; cut += cut < 26 ? 1 : 61) {
		uint8_t *copy = exact_copy(data, cut);
		struct mpa_frame f;
		int rc = mpa_frame_decode(&f, copy, cut, reply);

		if (verdict > 0)
			CHECK(rc == (cut < (size_t)verdict ? -EAGAIN : verdict));
		else
			CHECK(rc == -EAGAIN || rc == verdict);
		free(copy);
	}
}

/* Returns true and a frame that points into copy when the octets hold one. */
static bool read_frame(const uint8_t *copy, size_t len, bool reply, struct mpa_frame *f)
{
	int rc = mpa_frame_decode(f, copy, len, reply);

	CHECK(rc > 0 || rc == -EAGAIN || rc == -EPROTO);
	check_prefixes(copy, len, reply, rc);
	if (rc <= 0)
		return false;
	CHECK((size_t)rc <= len && rc >= MPA_FRAME_LEN && rc <= FRAME_MAX);
	CHECK(f->reply == reply);
	CHECK(reply || !(f->flags & MPA_FLAG_REJECT));
	CHECK(f->rev >= 2 || !(f->flags & MPA_FLAG_ENHANCED));
	CHECK(f->p2p || f->rtr == 0);
	CHECK(f->ird <= MPA_DEPTH_UNSPECIFIED && f->ord <= MPA_DEPTH_UNSPECIFIED);
	touch(f->data, f->data_len);
	CHECK(f->data + f->data_len == copy + rc);
	check_rewrite(f, rc);
	return true;
}

static bool one_bit(unsigned mask)
{
	return mask && !(mask & (mask - 1));
}

static void check_depths(const struct mpa_policy *p, const struct mpa_frame *req,
			 const struct mpa_frame *rep, const struct mpa_terms *t)
{
	uint16_t most = p->ird > p->ird_max ? p->ird : p->ird_max;

	CHECK(t->ord <= p->ord && t->ird <= most);
	CHECK(t->peer_ird == req->ird && t->peer_ord == req->ord);
	if (req->ird == MPA_DEPTH_UNSPECIFIED)
		CHECK(rep->ord == MPA_DEPTH_UNSPECIFIED && t->ord == p->ord);
	else
		CHECK(rep->ord <= req->ird && rep->ord == t->ord);
	if (req->ord == MPA_DEPTH_UNSPECIFIED)
		CHECK(rep->ird == MPA_DEPTH_UNSPECIFIED);
	else
		CHECK(rep->ird >= req->ord && rep->ird == t->ird);
	if (t->rtr == MPA_RTR_READ)
		CHECK(t->ird > 0 && rep->ird > 0);
}

static void check_form(const struct mpa_policy *p, const struct mpa_frame *req,
		       const struct mpa_frame *rep, const struct mpa_terms *t)
{
	CHECK(rep->rev == req->rev && !((rep->flags ^ req->flags) & MPA_FLAG_ENHANCED));
	CHECK(t->crc || !((req->flags & MPA_FLAG_CRC) || p->crc));
	CHECK(t->crc == !!(rep->flags & MPA_FLAG_CRC));
	CHECK(t->rx_markers == !!(rep->flags & MPA_FLAG_MARKERS));
	CHECK(!t->own_peer || (p->own_peer && req->flags & MPA_FLAG_OWN_OFFER));
}

static void check_accepted(const struct mpa_policy *p, const struct mpa_frame *req,
			   const struct mpa_frame *rep, const struct mpa_terms *t)
{
	bool enhanced = req->flags & MPA_FLAG_ENHANCED;

	CHECK(!t->tx_markers || p->markers_ok);
	CHECK(t->own_peer == !!(rep->flags & MPA_FLAG_OWN_TAKEN));
	CHECK(rep->p2p == (enhanced && req->p2p) && t->p2p == rep->p2p);
	if (t->rtr)
		CHECK(one_bit(t->rtr) && t->rtr & req->rtr & p->rtr && rep->rtr == t->rtr);
	else
		CHECK(!(rep->rtr & req->rtr) && !(rep->rtr & ~p->rtr));
	if (enhanced)
		check_depths(p, req, rep, t);
}

static void check_answer(const struct mpa_policy *p, const struct mpa_frame *req)
{
	uint8_t buf[FRAME_MAX];
	struct mpa_frame rep, back;
	struct mpa_terms t;
	int rc = mpa_answer_request(p, req, &rep, &t);

	CHECK(rc == 0 || rc == -EPROTONOSUPPORT || rc == -EOPNOTSUPP || rc == -ENOBUFS);
	CHECK(rep.reply && rep.data_len == 0);
	CHECK(!(rep.flags & MPA_FLAG_OWN_OFFER));
	CHECK(!!(rep.flags & MPA_FLAG_REJECT) == (rc != 0));
	round_trip(&rep, buf, &back);
	if (rc == -EPROTONOSUPPORT)
		CHECK(rep.rev == p->rev && rep.rev != req->rev);
	else
		check_form(p, req, &rep, &t);
	if (rc == 0)
		check_accepted(p, req, &rep, &t);
}

static void check_taken(const struct mpa_policy *p, const struct mpa_frame *req,
			const struct mpa_frame *rep, const struct mpa_terms *t)
{
	CHECK(rep->rev == req->rev && t->rev == rep->rev);
	CHECK(!((req->flags ^ rep->flags) & MPA_FLAG_ENHANCED));
	CHECK(!t->tx_markers || p->markers_ok);
	CHECK(t->p2p || t->rtr == MPA_RTR_NONE);
	CHECK(t->rtr == MPA_RTR_NONE || (one_bit(t->rtr) && t->rtr & p->rtr & rep->rtr));
	CHECK(t->ord <= p->ord || (t->ord == 1 && t->rtr == MPA_RTR_READ));
}

static void check_take(const struct mpa_policy *p, const struct mpa_frame *rep)
{
	struct mpa_frame req;
	struct mpa_terms t;
	int rc;

	mpa_make_request(p, NULL, 0, &req);
	rc = mpa_take_reply(p, &req, rep, &t);
	CHECK((rc == -ECONNREFUSED) == !!(rep->flags & MPA_FLAG_REJECT));
	switch (rc) {
	case 0:
		CHECK(!t.p2p || t.rtr);
		/* fall through */
	case -ENOBUFS:
	case -ENOMSG: check_taken(p, &req, rep, &t); break;
	default: CHECK(rc == -ECONNREFUSED || rc == -EPROTO || rc == -EOPNOTSUPP);
	}
}

/* Two of us: both sides must believe the same. */
static void check_pair(const struct mpa_policy *a, const struct mpa_policy *z)
{
	uint8_t buf[2][FRAME_MAX];
	struct mpa_frame req, req_in, rep, rep_in;
	struct mpa_terms i, r;
	int answer, rc;

	mpa_make_request(a, "data", 4, &req);
	round_trip(&req, buf[0], &req_in);
	answer = mpa_answer_request(z, &req_in, &rep, &r);
	round_trip(&rep, buf[1], &rep_in);
	rc = mpa_take_reply(a, &req, &rep_in, &i);
	CHECK((rc == -ECONNREFUSED) == (answer != 0));
	if (answer)
		return;
	/* A responder of ours never makes the initiator's IRD overflow nor bends the form. */
	CHECK(rc == 0 || rc == -EOPNOTSUPP || rc == -ENOMSG);
	CHECK(i.rev == r.rev && i.crc == r.crc && i.own_peer == r.own_peer);
	CHECK(i.tx_markers == r.rx_markers && i.rx_markers == r.tx_markers);
	CHECK(i.p2p == r.p2p && i.rtr == r.rtr);
	CHECK((rc == -ENOMSG) == (i.p2p && !i.rtr) || rc == -EOPNOTSUPP);
	if (i.rev < 2)
		return;
	if (a->ord != MPA_DEPTH_UNSPECIFIED && rep.ird != MPA_DEPTH_UNSPECIFIED)
		CHECK(i.ord <= r.ird);
	if (a->ird != MPA_DEPTH_UNSPECIFIED)
		CHECK(r.ord <= i.ird);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct source in = { data, size };
	struct mpa_policy a, z;
	struct mpa_frame f;
	uint8_t *copy;

	take_policy(&in, &a);
	take_policy(&in, &z);
	check_pair(&a, &z);
	copy = exact_copy(in.data, in.left);
	if (read_frame(copy, in.left, false, &f))
		check_answer(&a, &f);
	if (read_frame(copy, in.left, true, &f))
		check_take(&z, &f);
	free(copy);
	return 0;
}
