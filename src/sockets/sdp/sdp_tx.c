/* SPDX-License-Identifier: MIT */
/*
 * Messages out. Every one goes through open_message() and send_message(): whether it may go now,
 * and its numbers, are decided nowhere else. Answers come before octets, for payload that overtook
 * one could be put into memory which was given up (wire/sdp_half.h).
 */
#include <errno.h>
#include <string.h>

#include "base/util.h"
#include "sockets/sdp/sdp_priv.h"

#define PIECES 16 /* of the program's memory in one message */

/* ---- one message ---- */

/* A buffer for a message that may go now, or NULL. */
static struct oti_buf *open_message(struct sdp_conn *c, uint8_t mid, bool payload)
{
	struct oti_buf *buf;

	if (!sdp_conn_is_live(c) || c->move || !sdp_fsm_may_send(c->state, payload))
		return NULL;
	if (!sdp_credit_may_send(&c->credit, mid, payload))
		return NULL;
	buf = c->llp->ops->buf_get(c->llp);
	if (buf && buf->cap < SDP_RCV_MIN) {
		/* The transport's peer promised less than SDP's did. */
		c->llp->ops->buf_put(c->llp, buf);
		sdp_conn_step(c, SDPE_LLP_LOST);
		return NULL;
	}
	return buf;
}

/* Numbers it, writes it, and hands it to the transport. False: the connection is over. */
static bool send_message(struct sdp_conn *c, struct oti_buf *buf, struct sdp_msg *m,
			 const struct iovec *payload, int n)
{
	uint8_t head[SDP_HDR_MAX];
	struct iovec iov[1 + PIECES];
	int len = -EINVAL;

	if (!sdp_credit_stamp(&c->credit, m))
		len = sdp_encode(m, head);
	if (len < 0) {
		/* Cannot be: open_message() asked, and what we say is sound. */
		c->illegal++;
		c->llp->ops->buf_put(c->llp, buf);
		return false;
	}
	iov[0] = (struct iovec) { .iov_base = head, .iov_len = (size_t)len };
	if (n)
		memcpy(iov + 1, payload, (size_t)n * sizeof(*payload));
	if (c->llp->ops->send(c->llp, buf, iov, 1 + n, sdp_is_solicited(m) ? OTI_SOLICITED : 0)) {
		sdp_conn_step(c, SDPE_LLP_LOST);
		return false;
	}
	sdp_half_sent(&c->halves, m);
	return true;
}

/* A message without octets. */
static bool say(struct sdp_conn *c, struct sdp_msg *m)
{
	struct oti_buf *buf = open_message(c, m->mid, false);

	return buf && send_message(c, buf, m, NULL, 0);
}

/* ---- octets ---- */

/* Where the octets of a caller go on. */
struct cursor {
	const struct iovec *iov;
	int n;
	size_t skip; /* octets of the first piece that have gone */
};

/* The next `most` octets as pieces; returns how many octets they are. */
static size_t cut_piece(const struct cursor *at, size_t most, struct iovec *out, int *n_out)
{
	size_t len = 0, skip = at->skip;

	*n_out = 0;
	for (int i = 0; i < at->n && len < most && *n_out < PIECES; i++) {
		size_t part = min_size(at->iov[i].iov_len - skip, most - len);

		if (part)
			out[(*n_out)++] = (struct iovec) {
				.iov_base = (char *)at->iov[i].iov_base + skip,
				.iov_len = part,
			};
		len += part;
		skip = 0;
	}
	return len;
}

static void advance(struct cursor *at, size_t len)
{
	while (at->n && len >= at->iov->iov_len - at->skip) {
		len -= at->iov->iov_len - at->skip;
		at->iov++;
		at->n--;
		at->skip = 0;
	}
	at->skip += len;
}

/* One Data message; returns the octets in it, 0: none can go now. */
static size_t send_octets(struct sdp_conn *c, const struct cursor *at, bool urgent)
{
	struct sdp_msg m = { .mid = SDP_DATA };
	struct iovec pieces[PIECES];
	struct oti_buf *buf = open_message(c, SDP_DATA, true);
	struct cursor after = *at;
	int n, rest;

	if (!buf)
		return 0;
	m.payload_len = (uint32_t)cut_piece(at, min_u32(buf->cap, c->peer_size) - SDP_BSDH_LEN,
					    pieces, &n);
	if (!m.payload_len) {
		c->llp->ops->buf_put(c->llp, buf);
		return 0;
	}
	/* The urgent octet is the last one, announced and delivered by the same message. */
	if (urgent) {
		struct iovec unused[PIECES];

		advance(&after, m.payload_len);
		if (!cut_piece(&after, 1, unused, &rest))
			m.flags = SDP_FLAG_OOB_PRES | SDP_FLAG_OOB_PEND;
	}
	return send_message(c, buf, &m, pieces, n) ? m.payload_len : 0;
}

static uint32_t stashed(const struct sdp_conn *c)
{
	return c->stash_to - c->stash_from;
}

/* Sends a message out of the stash. */
static bool send_stash(struct sdp_conn *c)
{
	struct iovec iov = { .iov_base = c->stash + c->stash_from, .iov_len = stashed(c) };
	struct cursor at = { .iov = &iov, .n = 1 };
	size_t len = iov.iov_len ? send_octets(c, &at, c->stash_urgent) : 0;

	if (!len)
		return false;
	c->stash_from += (uint32_t)len;
	if (c->stash_from == c->stash_to) {
		c->stash_from = c->stash_to = 0;
		c->stash_urgent = false;
	}
	/* There is room in it again. */
	c->news |= c->blocked;
	c->blocked = false;
	return true;
}

/* Keeps as many octets as there is room for; returns how many. */
static size_t stash(struct sdp_conn *c, const struct cursor *at, bool urgent)
{
	struct iovec pieces[PIECES];
	size_t len;
	int n;

	if (c->stash_urgent)
		return 0;
	if (c->stash_from) {
		memmove(c->stash, c->stash + c->stash_from, stashed(c));
		c->stash_to = stashed(c);
		c->stash_from = 0;
	}
	len = cut_piece(at, SDP_STASH - c->stash_to, pieces, &n);
	for (int i = 0; i < n; i++) {
		memcpy(c->stash + c->stash_to, pieces[i].iov_base, pieces[i].iov_len);
		c->stash_to += (uint32_t)pieces[i].iov_len;
	}
	c->stash_urgent = urgent && len;
	return len;
}

/* ---- what is due ---- */

/* The next message that must go out and has no octets; SDP_HELLO stands for none. */
static uint8_t due(const struct sdp_conn *c)
{
	uint8_t mid = sdp_half_due(&c->halves);

	if (mid != SDP_DATA)
		return mid;
	if (c->disconn_due && !stashed(c))
		return SDP_DISCONN;
	return sdp_credit_must_update(&c->credit, stashed(c)) ? SDP_DATA : SDP_HELLO;
}

/*
 * One message. Octets bring credits along, so they go before a mere update; with few buffers two
 * ends that preferred the update would never come to their octets. SuspCommAck is the last word
 * and goes behind octets, if they can go.
 */
static bool pump_one(struct sdp_conn *c)
{
	uint8_t answer = sdp_half_due(&c->halves);
	struct sdp_msg m = { .size = c->attr.buf_size };

	if ((answer == SDP_DATA || answer == SDP_SUSP_COMM_ACK) && send_stash(c))
		return true;
	if (!sdp_conn_is_live(c))
		return false;
	m.mid = due(c);
	if (m.mid == SDP_HELLO || !say(c, &m))
		return false;
	if (m.mid == SDP_DISCONN) {
		c->disconn_due = false;
		sdp_conn_step(c, SDPE_DISCONN_SENT);
	} else if (m.mid == SDP_SUSP_COMM_ACK) {
		sdp_move_begin(c);
	}
	return true;
}

void sdp_tx_pump(struct sdp_conn *c)
{
	while (sdp_conn_is_live(c) && !c->move && sdp_fsm_may_send(c->state, false) &&
	       c->state != SDPS_ABORTING && pump_one(c))
		;
	/* Credits may have come for somebody who waits. */
	if (c->blocked && sdp_tx_is_writable(c)) {
		c->blocked = false;
		c->news = true;
	}
}

/* It goes now or, for want of a credit, never. */
void sdp_tx_abort(struct sdp_conn *c)
{
	struct sdp_msg m = { .mid = SDP_ABORT_CONN };

	c->disconn_due = false;
	c->abort_sent = say(c, &m);
	if (c->state == SDPS_ABORTING)
		sdp_conn_step(c, SDPE_ABORT_SENT);
}

int sdp_conn_change_mode(struct sdp_conn *c, enum sdp_mode mode, bool to_source)
{
	struct sdp_msg m = { .mid = SDP_MODE_CHANGE, .mode = mode, .to_source = to_source };
	int rc;

	sdp_conn_enter(c);
	sdp_tx_pump(c);
	if (!sdp_half_may_change(&c->halves, mode, to_source))
		rc = -EINVAL;
	else
		rc = say(c, &m) ? 0 : -EAGAIN;
	sdp_conn_leave(c);
	return rc;
}

/* ---- the program ---- */

/* Why nothing can be sent any more, or 0. */
static int send_error(const struct sdp_conn *c)
{
	if (c->status & (SDP_IS_RESET | SDP_IS_FAILED))
		return -(c->error ? c->error : EPIPE);
	if (!(c->status & SDP_IS_OPEN))
		return -ENOTCONN;
	return c->shut ? -EPIPE : 0;
}

bool sdp_tx_is_writable(const struct sdp_conn *c)
{
	if (!(c->status & SDP_IS_OPEN))
		return false;
	/* It would fail, which is an answer as well. */
	return c->shut || (stashed(c) < SDP_STASH && !c->stash_urgent);
}

static ssize_t send_stream(struct sdp_conn *c, const struct iovec *iov, int n, bool urgent)
{
	struct cursor at = { .iov = iov, .n = n };
	struct iovec unused[PIECES];
	size_t len, done = 0;
	ssize_t rc;
	int left;

	sdp_conn_enter(c);
	sdp_tx_pump(c);
	rc = send_error(c);
	while (!rc && !stashed(c) && sdp_half_due(&c->halves) == SDP_DATA &&
	       (len = send_octets(c, &at, urgent))) {
		advance(&at, len);
		done += len;
	}
	if (!rc && !done)
		rc = send_error(c);
	while (!rc && (len = stash(c, &at, urgent))) {
		advance(&at, len);
		done += len;
	}
	if (!rc && cut_piece(&at, 1, unused, &left)) {
		c->blocked = true;
		rc = -EAGAIN;
	}
	sdp_conn_leave(c);
	return done ? (ssize_t)done : rc;
}

ssize_t sdp_conn_send(struct sdp_conn *c, const struct iovec *iov, int n)
{
	return send_stream(c, iov, n, false);
}

ssize_t sdp_conn_send_urgent(struct sdp_conn *c, uint8_t octet)
{
	struct iovec iov = { .iov_base = &octet, .iov_len = 1 };

	return send_stream(c, &iov, 1, true);
}
