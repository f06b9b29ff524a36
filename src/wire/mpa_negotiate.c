/* SPDX-License-Identifier: MIT */
/*
 * What two start-up frames agree on: RFC 5044 section 7.1 (markers, CRC, revision) and RFC 6581
 * section 9 (read depths, peer-to-peer model).
 *
 * Revision 0 is the RDMA Consortium's: markers and CRC are always on, in both directions.
 */
#include <errno.h>
#include <string.h>

#include "wire/mpa.h"

#define REV_RDMAC    0
#define REV_IETF     1
#define REV_ENHANCED 2

static uint16_t larger(uint16_t a, uint16_t b)
{
	return a > b ? a : b;
}

/* Our ORD under the peer's IRD. UNSPECIFIED from the peer leaves ours alone (RFC 6581, 9.1). */
static uint16_t limit_ord(uint16_t ord, uint16_t peer_ird)
{
	return peer_ird != MPA_DEPTH_UNSPECIFIED && ord > peer_ird ? peer_ird : ord;
}

/*
 * Our IRD for a peer that wants `peer_ord` reads in flight: as it is when that suffices, raised
 * as far as the limit allows when not. False when even the limit is too low. Whoever takes no
 * Reads at all says so, and the peer has to live with it.
 */
static bool raise_ird(const struct mpa_policy *p, uint16_t peer_ord, uint16_t *ird)
{
	uint16_t most = larger(p->ird, p->ird_max);

	*ird = p->no_reads ? 0 : p->ird;
	if (p->no_reads || peer_ord == MPA_DEPTH_UNSPECIFIED || peer_ord <= p->ird)
		return true;
	*ird = most < peer_ord ? most : peer_ord;
	return most >= peer_ord;
}

/* Write first: it needs neither a read slot nor, as a Send does, a message number. */
static enum mpa_rtr choose_rtr(uint8_t mask)
{
	if (mask & MPA_RTR_WRITE)
		return MPA_RTR_WRITE;
	if (mask & MPA_RTR_READ)
		return MPA_RTR_READ;
	return mask & MPA_RTR_SEND ? MPA_RTR_SEND : MPA_RTR_NONE;
}

void mpa_make_request(const struct mpa_policy *p, const void *data, size_t len,
		      struct mpa_frame *req)
{
	bool rdmac = p->rev == REV_RDMAC;

	memset(req, 0, sizeof(*req));
	req->rev = p->full ? MPA_REV_FULL : p->rev;
	req->identity = p->identity;
	req->data = data;
	/* What does not fit the field does not fit a frame either; encoding will say so. */
	req->data_len = (uint16_t)(len > UINT16_MAX ? UINT16_MAX : len);
	if (p->markers || rdmac)
		req->flags |= MPA_FLAG_MARKERS;
	if (p->crc || rdmac)
		req->flags |= MPA_FLAG_CRC;
	if (p->own_peer && !rdmac)
		req->flags |= MPA_FLAG_OWN_OFFER;
	if (req->rev < REV_ENHANCED)
		return;
	req->flags |= MPA_FLAG_ENHANCED;
	req->ird = p->ird;
	req->ord = p->ord;
	req->p2p = p->p2p;
	req->rtr = p->p2p ? p->rtr : 0;
}

static bool knows_revision(const struct mpa_policy *p, const struct mpa_frame *req)
{
	uint8_t rev = req->rev;

	if (p->full)
		return rev == MPA_REV_FULL && req->flags & MPA_FLAG_ENHANCED &&
		       req->identity.version == MPA_FULL_VERSION;
	if (p->rev == REV_RDMAC || rev == REV_RDMAC)
		return p->rev == rev;
	return rev <= p->rev;
}

/* Markers, CRC and the own-peer bits; the same for every revision but RDMAC's. */
static void answer_flags(const struct mpa_policy *p, const struct mpa_frame *req,
			 struct mpa_frame *rep, struct mpa_terms *t)
{
	bool rdmac = req->rev == REV_RDMAC;

	t->crc = rdmac || p->crc || req->flags & MPA_FLAG_CRC;
	t->tx_markers = rdmac || req->flags & MPA_FLAG_MARKERS;
	t->rx_markers = rdmac || p->markers;
	t->own_peer = !rdmac && p->own_peer && req->flags & MPA_FLAG_OWN_OFFER;
	rep->flags |= t->crc ? MPA_FLAG_CRC : 0;
	rep->flags |= t->rx_markers ? MPA_FLAG_MARKERS : 0;
	rep->flags |= t->own_peer ? MPA_FLAG_OWN_TAKEN : 0;
}

static bool answer_depths(const struct mpa_policy *p, const struct mpa_frame *req,
			  struct mpa_frame *rep, struct mpa_terms *t)
{
	bool enough = raise_ird(p, req->ord, &t->ird);

	t->peer_ird = req->ird;
	t->peer_ord = req->ord;
	t->ord = limit_ord(p->ord, req->ird);
	/* A depth the initiator leaves to the ULP is answered in kind. */
	rep->ord = req->ird == MPA_DEPTH_UNSPECIFIED ? MPA_DEPTH_UNSPECIFIED : t->ord;
	rep->ird = req->ord == MPA_DEPTH_UNSPECIFIED ? MPA_DEPTH_UNSPECIFIED : t->ird;
	return enough;
}

static void answer_rtr(const struct mpa_policy *p, const struct mpa_frame *req,
		       struct mpa_frame *rep, struct mpa_terms *t)
{
	uint8_t ours = p->rtr;

	/* A read cannot be taken without a slot for it. */
	if (p->no_reads || larger(p->ird, p->ird_max) == 0)
		ours &= (uint8_t)~MPA_RTR_READ;
	t->p2p = rep->p2p = true;
	t->rtr = choose_rtr(req->rtr & ours);
	/* One kind and no more: then both sides know which. Without overlap, what we could take. */
	rep->rtr = t->rtr ? (uint8_t)t->rtr : ours;
	if (t->rtr != MPA_RTR_READ || t->ird != 0)
		return;
	t->ird = 1;
	if (rep->ird != MPA_DEPTH_UNSPECIFIED)
		rep->ird = 1;
}

int mpa_answer_request(const struct mpa_policy *p, const struct mpa_frame *req,
		       struct mpa_frame *rep, struct mpa_terms *t)
{
	memset(rep, 0, sizeof(*rep));
	memset(t, 0, sizeof(*t));
	rep->reply = true;
	t->peer_ird = t->peer_ord = MPA_DEPTH_UNSPECIFIED;
	if (!knows_revision(p, req)) {
		rep->rev = t->rev = p->rev;
		rep->flags = MPA_FLAG_REJECT;
		return -EPROTONOSUPPORT;
	}
	rep->rev = t->rev = req->rev;
	rep->identity = p->identity;
	t->full = p->full;
	t->ird = p->ird;
	t->ord = p->ord;
	answer_flags(p, req, rep, t);
	if (req->flags & MPA_FLAG_ENHANCED) {
		rep->flags |= MPA_FLAG_ENHANCED;
		if (!answer_depths(p, req, rep, t)) {
			mpa_make_reject(rep);
			return -ENOBUFS;
		}
		if (req->p2p)
			answer_rtr(p, req, rep, t);
	}
	if (t->tx_markers && !p->markers_ok) {
		mpa_make_reject(rep);
		return -EOPNOTSUPP;
	}
	return 0;
}

void mpa_make_reject(struct mpa_frame *rep)
{
	rep->flags |= MPA_FLAG_REJECT;
	rep->flags &= (uint8_t)~MPA_FLAG_OWN_TAKEN;
}

/* The form of the reply follows that of the request (RFC 6581 section 10). */
static bool reply_fits(const struct mpa_policy *p, const struct mpa_frame *req,
		       const struct mpa_frame *rep)
{
	if ((req->flags ^ rep->flags) & MPA_FLAG_ENHANCED)
		return false;
	return rep->rev == req->rev || (rep->rev == REV_RDMAC && p->rev == REV_RDMAC);
}

static void take_flags(const struct mpa_frame *req, const struct mpa_frame *rep,
		       struct mpa_terms *t)
{
	bool rdmac = rep->rev == REV_RDMAC;

	t->crc = rdmac || (req->flags | rep->flags) & MPA_FLAG_CRC;
	t->tx_markers = rdmac || rep->flags & MPA_FLAG_MARKERS;
	t->rx_markers = rdmac || req->flags & MPA_FLAG_MARKERS;
	/* OFFER in a reply is an echo: somebody else who copies bits it does not know. */
	t->own_peer = req->flags & MPA_FLAG_OWN_OFFER && rep->flags & MPA_FLAG_OWN_TAKEN &&
		      !(rep->flags & MPA_FLAG_OWN_OFFER);
}

/*
 * A reply with A to a request without is not our business: we send first anyway, which is all
 * such a responder can wait for. A reply without A to a request with it: client and server, and
 * the same holds.
 */
static int take_rtr(const struct mpa_frame *req, const struct mpa_frame *rep, struct mpa_terms *t)
{
	t->p2p = req->p2p && rep->p2p;
	if (!t->p2p)
		return 0;
	t->rtr = choose_rtr(req->rtr & rep->rtr);
	if (!t->rtr)
		return -ENOMSG;
	/* The RTR itself needs a slot even when the ULP wants no reads. */
	if (t->rtr == MPA_RTR_READ && t->ord == 0)
		t->ord = 1;
	return 0;
}

int mpa_take_reply(const struct mpa_policy *p, const struct mpa_frame *req,
		   const struct mpa_frame *rep, struct mpa_terms *t)
{
	bool enhanced = rep->flags & MPA_FLAG_ENHANCED;
	bool enough = true;
	int rc = 0;

	memset(t, 0, sizeof(*t));
	t->rev = rep->rev;
	t->ird = p->ird;
	t->ord = p->ord;
	/* These go up to the ULP with a rejection, too. */
	t->peer_ird = enhanced ? rep->ird : MPA_DEPTH_UNSPECIFIED;
	t->peer_ord = enhanced ? rep->ord : MPA_DEPTH_UNSPECIFIED;
	if (p->full && (rep->rev != MPA_REV_FULL || rep->identity.version != MPA_FULL_VERSION))
		return -EPROTONOSUPPORT;
	/* A peer of another revision refuses in its own form. */
	if (rep->flags & MPA_FLAG_REJECT)
		return -ECONNREFUSED;
	if (!reply_fits(p, req, rep))
		return -EPROTO;
	t->full = p->full;
	take_flags(req, rep, t);
	if (enhanced) {
		enough = raise_ird(p, rep->ord, &t->ird);
		t->ord = limit_ord(p->ord, rep->ird);
		rc = take_rtr(req, rep, t);
	}
	if (t->tx_markers && !p->markers_ok)
		return -EOPNOTSUPP;
	return enough ? rc : -ENOBUFS;
}
