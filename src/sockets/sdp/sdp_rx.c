/* SPDX-License-Identifier: MIT */
/*
 * Messages in. What is decided upon is read from the copy of the message's head, because the rest
 * may be in memory that the peer can change. Octets stay in the receive buffers until the program
 * takes them; small messages are moved together, so that the buffers hold octets and not air: a
 * peer that sends single octets must find as much room as any other (draft: buffering).
 */
#include <errno.h>
#include <string.h>

#include "base/util.h"
#include "sockets/sdp/sdp_priv.h"

#define SMALL 1024 /* octets that are cheaper to move than a buffer is to keep */

/* A buffer is of no more use: back to the transport, or to the shell it came from. */
static void give_back(struct sdp_conn *c, struct oti_rx *rx)
{
	if (rx->conn == c->llp) {
		if (!c->cut) {
			c->llp->ops->repost(c->llp, rx);
			sdp_credit_posted(&c->credit, 1);
		}
	} else if (c->shell && (!c->first || c->first->conn != c->shell)) {
		c->rubbish = c->shell;
		c->shell = NULL;
	}
}

static void drop_first(struct sdp_conn *c)
{
	struct oti_rx *rx = c->first;

	c->first = rx->next;
	if (!c->first)
		c->last = NULL;
	c->unread -= rx->to - rx->from;
	give_back(c, rx);
}

void sdp_rx_discard(struct sdp_conn *c)
{
	while (c->first)
		drop_first(c);
}

/* ---- from the transport ---- */

/* Whether the octets can be put behind the last ones, in their buffer. */
static bool can_be_joined(const struct sdp_conn *c, const struct oti_rx *rx)
{
	const struct oti_rx *last = c->last;
	uint32_t n = rx->to - rx->from;

	if (!last || last->mark || last->conn != rx->conn || n > last->cap - last->to)
		return false;
	return n <= SMALL || c->credit.posted * 2 < c->attr.bufs;
}

static void keep(struct sdp_conn *c, struct oti_rx *rx)
{
	uint32_t n = rx->to - rx->from;

	c->unread += n;
	if (can_be_joined(c, rx)) {
		memcpy(c->last->data + c->last->to, rx->data + rx->from, n);
		c->last->to += n;
		c->last->mark = rx->mark;
		give_back(c, rx);
		return;
	}
	rx->next = NULL;
	if (c->last)
		c->last->next = rx;
	else
		c->first = rx;
	c->last = rx;
}

static void take_octets(struct sdp_conn *c, struct oti_rx *rx, const struct sdp_msg *m)
{
	rx->to = rx->len;
	rx->from = rx->len - m->payload_len;
	rx->mark = m->flags & SDP_FLAG_OOB_PRES;
	if (!m->payload_len || c->shut_read) {
		give_back(c, rx);
	} else if (c->closed) {
		/* Nobody will ever read them, and the peer must not believe so. */
		give_back(c, rx);
		sdp_conn_step(c, SDPE_ABORT);
	} else {
		keep(c, rx);
		c->news = true;
	}
}

/* The checks, in the order of wire/sdp*.h. NULL: it is all right. */
static const char *judge(struct sdp_conn *c, const struct oti_rx *rx, struct sdp_msg *m)
{
	const char *why = "violation";
	int rc = sdp_decode(m, rx->head, rx->len);

	if (rc)
		return rc == -EOPNOTSUPP ? "unknown message"
		       : rc == -EMSGSIZE ? "length of a message"
					 : "field of a message";
	if (!sdp_fsm_may_receive(c->state, m->payload_len))
		return "message in this state";
	if (sdp_credit_received(&c->credit, m))
		return "number or acknowledgement";
	if (sdp_half_received(&c->halves, m, &why) == SDP_VIOLATION)
		return why;
	return NULL;
}

static void act_upon(struct sdp_conn *c, struct oti_rx *rx, const struct sdp_msg *m)
{
	if (m->flags & SDP_FLAG_OOB_PEND)
		c->news = true;
	if (m->mid == SDP_SUSP_COMM)
		c->move_port = m->port;
	take_octets(c, rx, m);
	if (m->mid == SDP_DISCONN)
		sdp_conn_step(c, SDPE_RX_DISCONN);
	else if (m->mid == SDP_ABORT_CONN)
		sdp_conn_step(c, SDPE_RX_ABORT);
}

void sdp_rx_received(struct oti_conn *conn, struct oti_rx *rx)
{
	struct sdp_conn *c = conn->user;
	struct sdp_msg m;
	const char *why;

	sdp_conn_enter(c);
	if (conn == c->llp && !c->cut) {
		if (c->state == SDPS_REQ_RECV || c->state == SDPS_DIS_HOLD)
			sdp_conn_step(c, SDPE_UP);
		why = judge(c, rx, &m);
		if (why)
			sdp_conn_bad(c, why);
		else
			act_upon(c, rx, &m);
	}
	sdp_conn_leave(c);
}

/* ---- to the program ---- */

/* Copies from the first buffer on; returns the octets. Without `peek` they are gone then. */
struct reader {
	const struct iovec *iov;
	int n;
	size_t skip;
	size_t done;
};

static void copy_out(struct reader *r, const uint8_t *data, size_t len)
{
	while (len && r->n) {
		size_t part = min_size(r->iov->iov_len - r->skip, len);

		if (part)
			memcpy((char *)r->iov->iov_base + r->skip, data, part);
		r->skip += part;
		r->done += part;
		data += part;
		len -= part;
		if (r->skip == r->iov->iov_len) {
			r->iov++;
			r->n--;
			r->skip = 0;
		}
	}
}

/* Octets of a buffer that an ordinary read may have: not the urgent one. */
static uint32_t ordinary(const struct oti_rx *rx)
{
	return rx->to - rx->from - rx->mark;
}

/* Takes octets off the first buffer, which is dropped when it is empty. */
static void consume(struct sdp_conn *c, uint32_t n)
{
	c->first->from += n;
	c->unread -= n;
	if (c->first->from == c->first->to)
		drop_first(c);
}

/*
 * A read that begins at urgent octets goes past them, and they are lost; one that comes to them
 * stops. Returns where to begin.
 */
static struct oti_rx *skip_marks(struct sdp_conn *c, bool peek)
{
	struct oti_rx *rx = c->first;

	while (rx && rx->mark && !ordinary(rx)) {
		struct oti_rx *next = rx->next;

		if (!peek) {
			rx->mark = false;
			consume(c, 1);
		}
		rx = next;
	}
	return rx;
}

static size_t read_octets(struct sdp_conn *c, const struct iovec *iov, int n, bool peek)
{
	struct reader r = { .iov = iov, .n = n };
	struct oti_rx *rx, *next;

	for (rx = skip_marks(c, peek); rx; rx = next) {
		uint32_t len = ordinary(rx);
		size_t before = r.done;
		bool stop;

		next = rx->next;
		copy_out(&r, rx->data + rx->from, len);
		stop = rx->mark || r.done - before < len || !r.n;
		if (!peek && r.done != before)
			consume(c, (uint32_t)(r.done - before));
		if (stop)
			break;
	}
	return r.done;
}

static ssize_t read_urgent(struct sdp_conn *c, const struct iovec *iov, int n, bool peek)
{
	struct reader r = { .iov = iov, .n = n };
	struct oti_rx *rx = c->first;

	if (!rx || !rx->mark || ordinary(rx))
		return c->halves.in.oob_pending || (rx && rx->mark) ? -EAGAIN : -EINVAL;
	copy_out(&r, rx->data + rx->from, 1);
	if (!peek && r.done) {
		rx->mark = false;
		consume(c, 1);
	}
	return (ssize_t)r.done;
}

/* What a read returns when there are no octets. */
static ssize_t nothing(const struct sdp_conn *c)
{
	if (c->status & SDP_IS_RESET || c->status & SDP_IS_FAILED)
		return -(c->error ? c->error : ECONNRESET);
	if (c->status & SDP_IS_EOF || c->shut_read)
		return 0;
	return c->status & SDP_IS_OPEN ? -EAGAIN : -ENOTCONN;
}

static bool has_room(const struct iovec *iov, int n)
{
	while (n--)
		if (iov[n].iov_len)
			return true;
	return false;
}

ssize_t sdp_conn_recv(struct sdp_conn *c, const struct iovec *iov, int n, unsigned flags)
{
	ssize_t rc;

	sdp_conn_enter(c);
	if (flags & SDP_URGENT) {
		rc = read_urgent(c, iov, n, flags & SDP_PEEK);
	} else if (!has_room(iov, n)) {
		rc = 0;
	} else {
		rc = (ssize_t)read_octets(c, iov, n, flags & SDP_PEEK);
		if (!rc)
			rc = nothing(c);
	}
	sdp_conn_leave(c);
	return rc;
}
