/* SPDX-License-Identifier: MIT */
/* Start-up frames: out, in, and what one that came in means. */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/bytes.h"
#include "base/tsan.h"
#include "base/util.h"
#include "rnic/cep_priv.h"
#include "rnic/listener.h"
#include "rnic/local.h"
#include "rnic/qp.h"

#define FRAME_MAX (MPA_FRAME_LEN + MPA_PD_MAX)

/* ---- what we say ---- */

void cep_set_policy(struct cep *c, const struct flue_conn_attr *a)
{
	uint8_t rtr = (uint8_t)((a->flags & FLUE_CONN_RTR_SEND ? MPA_RTR_SEND : 0) |
				(a->flags & FLUE_CONN_RTR_WRITE ? MPA_RTR_WRITE : 0) |
				(a->flags & FLUE_CONN_RTR_READ ? MPA_RTR_READ : 0));

	/* A responder takes any kind; an initiator offers what others are known to take. */
	if (!rtr)
		rtr = MPA_RTR_WRITE | MPA_RTR_READ | (c->initiator ? 0 : MPA_RTR_SEND);
	c->policy = (struct mpa_policy) {
		.rev = a->flags & FLUE_CONN_REV1 ? 1 : 2,
		.crc = !(a->flags & FLUE_CONN_NO_CRC),
		.markers = a->flags & FLUE_CONN_MARKERS,
		.markers_ok = true,
		.p2p = !(a->flags & (FLUE_CONN_TWO_WAY | FLUE_CONN_REV1)),
		.rtr = rtr,
		.own_peer = !(a->flags & FLUE_CONN_STRICT_PEER),
		.ird = (uint16_t)a->ird,
		.ord = (uint16_t)a->ord,
		.ird_max = RNIC_MAX_ORD,
		/* The layer above has put its default where there was no wish. */
		.no_reads = a->ird == 0,
		.full = c->full,
		.identity = { .version = MPA_FULL_VERSION },
	};
	c->policy.own_peer = c->policy.own_peer || c->full;
	c->defer = a->flags & FLUE_CONN_DEFER;
	c->lenient = a->flags & FLUE_CONN_LENIENT;
	c->rfc7306 = a->flags & FLUE_CONN_RFC7306;
	c->fallback = !c->full && !(a->flags & (FLUE_CONN_REV1 | FLUE_CONN_NO_FALLBACK));
	c->timeout_ms = (uint32_t)a->timeout_ms;
	c->fpdu_max = a->fpdu_max;
}

int cep_take_private(struct cep *c, const void *data, size_t len, bool enhanced)
{
	size_t own = (enhanced ? MPA_ENHANCED_LEN : 0) + (c->full ? MPA_IDENTITY_LEN : 0);

	if (len > MPA_PD_MAX - own)
		return -EINVAL;
	if (len)
		memcpy(c->own, data, len);
	c->own_len = (uint16_t)len;
	return 0;
}

static int send_all(struct cep *c, const uint8_t *buf, int len)
{
	ssize_t n;

	if (len < 0)
		return len;
	tsan_sends(c->io.fd);
	do {
		n = send(c->io.fd, buf, (size_t)len, MSG_DONTWAIT | MSG_NOSIGNAL);
	} while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	/* The send buffer of a fresh connection holds many such frames. */
	return n == len ? 0 : -ENOBUFS;
}

int cep_send_request(struct cep *c)
{
	uint8_t buf[FRAME_MAX];
	int rc;

	/* Again behind a redial: the offer is the same. */
	if (c->full && c->rnic->local && !c->circuit)
		c->circuit = local_offer(c->engine, &c->policy.identity.local);
	mpa_make_request(&c->policy, c->own, c->own_len, &c->req);
	rc = send_all(c, buf, mpa_frame_encode(&c->req, buf, sizeof(buf)));
	if (rc)
		return rc;
	c->in_len = 0;
	return engine_watch(c->engine, &c->io, EPOLLIN);
}

int cep_send_reply(struct cep *c)
{
	uint8_t buf[FRAME_MAX];

	c->rep.data = c->own;
	c->rep.data_len = c->own_len;
	/* Who starts later has no place for what comes meanwhile; a stream has. */
	if (c->full && c->rnic->local && c->qp && !c->defer && !(c->rep.flags & MPA_FLAG_REJECT)) {
		c->circuit = local_answer(c->engine, &c->req.identity.local,
					  &c->rep.identity.local);
		c->in_memory = c->circuit;
	}
	return send_all(c, buf, mpa_frame_encode(&c->rep, buf, sizeof(buf)));
}

/* RFC 6581: a reply that we cannot live with is answered by a Terminate in an FPDU. */
static void send_terminate(struct cep *c, uint32_t fault)
{
	struct mpa_stream out = { .crc = c->terms.crc, .markers = c->terms.tx_markers };
	struct ddp_params p = { .dv = 1, .rv = 1 };
	struct ddp_segment s = {
		.opcode = RDMAP_TERMINATE, .last = true, .qn = DDP_QN_TERMINATE, .msn = 1
	};
	struct rdmap_terminate t;
	uint8_t body[128] = { 0 }, fpdu[160];
	size_t n = MPA_LEN_LEN;

	rdmap_terminate_for(&t, fault, NULL, 0, 0, NULL);
	n += ddp_encode(&p, &s, body + n);
	n += rdmap_terminate_encode(&t, body + n);
	put_be16(body, (uint16_t)(n - MPA_LEN_LEN));
	n += mpa_pad(n - MPA_LEN_LEN);
	n = mpa_fpdu_build(&out, body, n, fpdu);
	send_all(c, fpdu, (int)n);
	c->last_word = true;
}

/* ---- what the peer says ---- */

/* How many octets of the frame are still missing. Reading exactly these leaves what the peer put
 * behind its frame, which is RDMA data already, in the socket for the queue pair. */
static size_t frame_missing(const struct cep *c)
{
	if (c->in_len < MPA_FRAME_LEN)
		return MPA_FRAME_LEN - c->in_len;
	return MPA_FRAME_LEN + get_be16(c->in + 18) - c->in_len;
}

/* As recv(2), but what was read before comes first. */
static ssize_t take_octets(struct cep *c, uint8_t *to, size_t len)
{
	size_t early = min_size(len, c->early_len - c->early_at);

	if (!early) {
		ssize_t n = recv(c->io.fd, to, len, MSG_DONTWAIT);

		tsan_received(c->io.fd);
		return n;
	}
	memcpy(to, c->early + c->early_at, early);
	c->early_at += early;
	return (ssize_t)early;
}

/* 0: complete, -EAGAIN, -EPROTO, -ECONNRESET at the end of the stream, other -errno. */
static int read_frame(struct cep *c, struct mpa_frame *f)
{
	int rc;

	for (;;) {
		ssize_t n;

		rc = mpa_frame_decode(f, c->in, c->in_len, c->initiator);
		if (rc != -EAGAIN)
			return rc > 0 ? 0 : rc;
		n = take_octets(c, c->in + c->in_len, frame_missing(c));
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			/* Full service: who does not know it may close without a word. */
			return n ? -errno : c->full ? -EPROTO : -ECONNRESET;
		c->in_len = (uint16_t)(c->in_len + n);
	}
}

static void got_reply(struct cep *c)
{
	int rc = mpa_take_reply(&c->policy, &c->req, &c->rep, &c->terms);

	c->err = -rc;
	switch (rc) {
	case 0:
		if (c->qp->bringup && c->rep.identity.qpn != c->policy.identity.peer_qpn)
			break;
		c->in_memory = c->circuit && c->rep.identity.local.offered;
		cep_apply(c, c->defer ? MPA_EV_RX_REPLY_DEFER : MPA_EV_RX_REPLY);
		return;
	case -ECONNREFUSED: cep_apply(c, MPA_EV_RX_REJECT); return;
	case -ENOBUFS: send_terminate(c, FAULT_MPA_IRD); break;
	case -ENOMSG:
		send_terminate(c, FAULT_MPA_RTR);
		c->err = EPROTO;
		break;
	default: break;
	}
	cep_apply(c, MPA_EV_RX_BAD);
}

/* Refused: the queue pair is told and free again, the peer may read our answer and close. */
static void refuse_adopted(struct cep *c, int err)
{
	struct qp *q = c->qp;

	cep_tell_up(c, FLUE_EVENT_CONNECT_FAILED, err);
	q->cep = NULL;
	c->qp = NULL;
	mpa_make_reject(&c->rep);
	c->own_len = 0;
	engine_timer_stop(c->engine, &c->timer);
	cep_apply(c, MPA_EV_REJECT);
}

/* The request on an adopted stream; what to answer was said when it was adopted. */
static void got_awaited_request(struct cep *c)
{
	int rc = mpa_answer_request(&c->policy, &c->req, &c->rep, &c->terms);

	if (rc == 0 && c->own_len > MPA_PD_MAX - MPA_ENHANCED_LEN &&
	    c->req.flags & MPA_FLAG_ENHANCED)
		rc = -EINVAL;
	if (rc) {
		refuse_adopted(c, -rc);
		return;
	}
	cep_apply(c, MPA_EV_RX_REQUEST);
	cep_accept_now(c);
}

static void got_request(struct cep *c)
{
	/* What our users may later accept; only what nobody could accept is refused here. */
	struct mpa_policy any = { .rev = 2,
				  .markers_ok = true,
				  .ird_max = MPA_DEPTH_MAX,
				  .full = c->full,
				  .identity = { .version = MPA_FULL_VERSION } };
	int rc = mpa_answer_request(&any, &c->req, &c->rep, &c->terms);

	/* Who calls a number is wrong at a listener, and the other way round. */
	if (!rc && c->full && c->listener->rendezvous != (cep_called(c) != 0)) {
		mpa_make_reject(&c->rep);
		rc = -ECONNREFUSED;
	}
	if (rc) {
		c->own_len = 0;
		cep_apply(c, MPA_EV_REJECT);
		return;
	}
	cep_apply(c, MPA_EV_RX_REQUEST);
}

static void got_frame(struct cep *c)
{
	if (c->initiator)
		got_reply(c);
	else if (c->adopted)
		got_awaited_request(c);
	else
		got_request(c);
}

void cep_frame_ready(struct cep *c)
{
	int rc = read_frame(c, c->initiator ? &c->rep : &c->req);

	if (rc == -EAGAIN)
		return;
	/* Who goes on at once goes on with the same descriptor. */
	if (rc || !c->initiator || c->defer)
		engine_forget(c->engine, &c->io);
	if (rc == 0) {
		got_frame(c);
		return;
	}
	c->err = c->full && c->initiator && rc == -EPROTO ? EPROTONOSUPPORT : -rc;
	/* A peer that only knows revision 1 closes without a word (RFC 6581 section 6). */
	if (c->fallback && c->in_len == 0 && rc != -EPROTO)
		cep_apply(c, MPA_EV_LOST_RETRY);
	else
		cep_apply(c, rc == -EPROTO ? MPA_EV_RX_BAD : MPA_EV_LOST);
}

/* A rejected peer has nothing to say that matters, but its end does. */
static void refused_ready(struct cep *c)
{
	ssize_t n = recv(c->io.fd, c->in, sizeof(c->in), MSG_DONTWAIT);

	if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
		cep_apply(c, MPA_EV_LOST);
}

/* The initiator of a link through memory closes the stream when it has joined it, or cannot. */
static void waiting_ready(struct cep *c)
{
	struct qp *q = c->qp;

	engine_forget(c->engine, &c->io);
	local_take_in(c->circuit->duct);
	if (q->cep == c) /* nothing has come */
		cep_apply(c, MPA_EV_LOST);
}

void cep_ready(struct engine_io *io, uint32_t events)
{
	struct cep *c = container_of(io, struct cep, io);

	(void)events;
	if (c->state == MPA_DIALING)
		cep_dial_ready(c);
	else if (c->state == MPA_REFUSED)
		refused_ready(c);
	else if (c->state == MPA_WAIT_RTR)
		waiting_ready(c);
	else
		cep_frame_ready(c);
}
