/* SPDX-License-Identifier: MIT */
/*
 * The receiver: octets from the stream to DDP segments. What a segment means is rx_segment.c.
 *
 * Staged path. Octets are read into a buffer, whole FPDUs are verified there (markers, CRC) and
 * only then looked at. Used whenever CRC or markers are on, and for small FPDUs.
 *
 * Direct path. With CRC and markers off, a large segment whose header is in the buffer is checked
 * first and its payload is then read from the socket straight into the target memory; one call
 * brings the rest of the payload and the header of the next FPDU. The target is looked up again
 * before each read, so a region can be revoked while a slow peer is in the middle of a segment.
 */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/tsan.h"
#include "base/util.h"
#include "rnic/cep.h"
#include "rnic/qp.h"
#include "rnic/rx_segment.h"

#define DIRECT_MIN 4096 /* smaller payloads are cheaper to copy */
#define LARGE_FPDU 8192 /* read these one at a time, so that little has to be moved */
#define READ_AHEAD 64   /* octets behind an FPDU: the next header is in them */
#define ROUNDS     8    /* reads before other links get their turn */

bool qp_rx_at_boundary(const struct qp *q)
{
	return q->rx.head == q->rx.tail && !q->rx.direct && !q->rx.trailer;
}

void qp_rx_reset(struct qp *q)
{
	if (q->rx.buf)
		engine_buf_put(q->engine, q->rx.buf);
	q->rx.buf = NULL;
	q->rx.head = q->rx.tail = 0;
	q->rx.direct = false;
	q->rx.trailer = 0;
}

static bool listening(const struct qp *q)
{
	return q->io.fd >= 0 && (q->state == QPS_RTS || q->state == QPS_CLOSING);
}

/* The peer keeps its promises: anything valid ends the responder's silence. */
static void first_fpdu(struct qp *q)
{
	q->rx.any = true;
	q->tx.held = false;
	if (q->cep)
		cep_first_fpdu(q->cep);
}

/* Header checks of one ULPDU; `have` octets of it are at ulpdu. */
static bool accept_header(struct qp *q, const uint8_t *ulpdu, size_t have, size_t len,
			  struct ddp_segment *s)
{
	uint32_t fault = ddp_decode(&q->ddp, ulpdu, have, len, s);

	if (!fault && q->state == QPS_CLOSING && s->opcode != RDMAP_TERMINATE) {
		qp_apply(q, QPE_RX_DATA, FLUE_CLOSE_BAD, 0);
		return false;
	}
	if (!fault)
		fault = rx_segment_check(q, s, ulpdu + s->hdr_len);
	if (fault) {
		qp_fault(q, fault, ulpdu, have, len, s);
		return false;
	}
	/* A peer that sends larger units than we do takes them too. */
	if (len > q->tx.mulpdu)
		q->tx.mulpdu = min_size(len, q->tx.mulpdu_cap);
	/* A Terminate says that the peer is not ready to receive, and never will be. */
	if (!q->rx.any && s->opcode != RDMAP_TERMINATE)
		first_fpdu(q);
	return listening(q);
}

static void handle_ulpdu(struct qp *q, const uint8_t *ulpdu, size_t len)
{
	struct ddp_segment s;
	uint32_t fault;

	if (!accept_header(q, ulpdu, len, len, &s))
		return;
	fault = rx_segment_place(q, &s, ulpdu + s.hdr_len);
	if (!fault)
		fault = rx_segment_deliver(q, &s, ulpdu + s.hdr_len);
	if (fault)
		qp_fault(q, fault, ulpdu, len, len, &s);
}

/* The FPDU at the head is not complete: can its payload go straight to its place? */
static bool try_direct(struct qp *q, size_t ulpdu_len)
{
	struct qp_rx *rx = &q->rx;
	const uint8_t *ulpdu = rx->buf->data + rx->head + MPA_LEN_LEN;
	size_t have = rx->tail - rx->head - MPA_LEN_LEN, part;
	struct rx_target target;
	uint32_t fault;

	if (rx->in.crc || rx->in.markers || ulpdu_len < DIRECT_MIN || have < DDP_HDR_MAX)
		return false;
	/* Only pad or CRC are missing: there is nothing left to read straight to its place. */
	if (have >= ulpdu_len)
		return false;
	if (!rx_segment_is_bulk(ulpdu))
		return false;
	if (!accept_header(q, ulpdu, have, ulpdu_len, &rx->seg))
		return true; /* it was dealt with: there is nothing left to read */
	/* The segment is judged as a whole before its first byte is placed. What is in the buffer
	 * already is then copied, the rest comes from the socket. */
	part = have - rx->seg.hdr_len;
	fault = rx_segment_target(q, &rx->seg, 0, rx->seg.payload_len, &target);
	if (!fault) {
		rx_target_put(&target);
		fault = rx_segment_place_part(q, &rx->seg, 0, ulpdu + rx->seg.hdr_len, part);
	}
	if (fault) {
		qp_fault(q, fault, ulpdu, have, ulpdu_len, &rx->seg);
		return true;
	}
	rx->placed = part;
	rx->direct = true;
	rx->trailer = mpa_pad(ulpdu_len) + MPA_CRC_LEN;
	rx->head = rx->tail = 0;
	return true;
}

static void finish_direct(struct qp *q)
{
	uint32_t fault;

	q->rx.direct = false;
	fault = rx_segment_deliver(q, &q->rx.seg, NULL);
	if (fault)
		qp_fault(q, fault, NULL, 0, 0, NULL);
}

static bool skip_trailer(struct qp_rx *rx)
{
	size_t n = min_size(rx->trailer, rx->tail - rx->head);

	rx->head += n;
	rx->trailer -= n;
	return rx->trailer == 0;
}

/* Takes every whole FPDU out of the buffer. */
static void parse(struct qp *q)
{
	struct qp_rx *rx = &q->rx;
	size_t size, ulpdu_len;

	if (!skip_trailer(rx))
		return;
	while (listening(q) && mpa_fpdu_find(&rx->in, rx->buf->data + rx->head, rx->tail - rx->head,
					     &size, &ulpdu_len) == 0) {
		uint8_t *ulpdu;
		uint32_t fault;

		if (size > rx->tail - rx->head) {
			rx->expect = size >= LARGE_FPDU ? size : 0;
			if (try_direct(q, ulpdu_len))
				return;
			break;
		}
		fault = mpa_fpdu_open(&rx->in, rx->buf->data + rx->head, size, ulpdu_len, &ulpdu);
		if (fault) {
			qp_fault(q, fault, NULL, 0, 0, NULL);
			return;
		}
		rx->head += size;
		handle_ulpdu(q, ulpdu, ulpdu_len);
	}
}

/* Moves what is left to the front, if the FPDU it begins would not fit behind it. */
static void make_room(struct qp_rx *rx)
{
	if (rx->head == rx->tail) {
		rx->head = rx->tail = 0;
	} else if (rx->head && ENGINE_BUF_SIZE - rx->head < MPA_FPDU_MAX) {
		memmove(rx->buf->data, rx->buf->data + rx->head, rx->tail - rx->head);
		rx->tail -= rx->head;
		rx->head = 0;
	}
}

static size_t read_size(const struct qp_rx *rx)
{
	size_t have = rx->tail - rx->head, room = ENGINE_BUF_SIZE - rx->tail;

	if (rx->expect > have)
		return min_size(room, rx->expect - have + READ_AHEAD);
	return room;
}

/* One read. Returns octets, 0 at the end of the stream, -errno. *drained: the socket is empty. */
static ssize_t read_staged(struct qp *q, bool *drained)
{
	struct qp_rx *rx = &q->rx;
	size_t want;
	ssize_t n;

	make_room(rx);
	want = read_size(rx);
	do {
		n = recv(q->io.fd, rx->buf->data + rx->tail, want, MSG_DONTWAIT);
	} while (n < 0 && errno == EINTR);
	tsan_received(q->io.fd);
	if (n <= 0)
		return n ? -errno : 0;
	rx->tail += (size_t)n;
	*drained = (size_t)n < want;
	return n;
}

static ssize_t read_direct(struct qp *q, bool *drained)
{
	struct qp_rx *rx = &q->rx;
	struct iovec iov[RX_TARGET_MAX + 1];
	struct msghdr msg = { .msg_iov = iov };
	struct rx_target target;
	size_t left = rx->seg.payload_len - rx->placed, want = left + rx->trailer + READ_AHEAD;
	uint32_t fault;
	ssize_t n;

	fault = rx_segment_target(q, &rx->seg, rx->placed, left, &target);
	if (fault) {
		qp_fault(q, fault, NULL, 0, 0, NULL);
		return -EAGAIN;
	}
	memcpy(iov, target.iov, target.n * sizeof(iov[0]));
	iov[target.n] = (struct iovec) { rx->buf->data, want - left };
	msg.msg_iovlen = target.n + 1;
	tsan_received(q->io.fd);
	do {
		n = recvmsg(q->io.fd, &msg, MSG_DONTWAIT);
	} while (n < 0 && errno == EINTR);
	tsan_received(q->io.fd);
	rx_target_put(&target);
	if (n <= 0)
		return n ? -errno : 0;
	*drained = (size_t)n < want;
	if ((size_t)n < left) {
		rx->placed += (size_t)n;
		return n;
	}
	rx->placed += left;
	rx->head = 0;
	rx->tail = (size_t)n - left;
	finish_direct(q);
	return n;
}

int qp_rx_preload(struct qp *q, const uint8_t *data, size_t len)
{
	if (len == 0)
		return 0;
	q->rx.buf = engine_buf_get(q->engine);
	if (!q->rx.buf)
		return -ENOMEM;
	memcpy(q->rx.buf->data, data, len);
	q->rx.head = 0;
	q->rx.tail = len;
	q->rx.fresh = true;
	return 0;
}

static void end_of_stream(struct qp *q)
{
	q->rx.fin = true;
	/* Behind a fault everything was thrown away, so there the stream always is at one. */
	if (!qp_rx_at_boundary(q))
		qp_apply(q, QPE_LLP_LOST, FLUE_CLOSE_LOST, ECONNRESET);
	else if (qp_is_idle(q) && !q->rx.have_wqe && !q->rx.in_write) /* nor inside a message */
		qp_peer_closed(q);
	else
		qp_apply(q, QPE_FIN_BUSY, FLUE_CLOSE_BAD, 0);
}

/* Behind the first fault everything is thrown away until the peer closes. */
static void discard(struct qp *q)
{
	if (q->state != QPS_TERMINATE)
		return;
	q->rx.head = q->rx.tail = q->rx.trailer = q->rx.expect = 0;
	q->rx.direct = false;
}

/* One round. true: there may be more to read. */
static bool read_round(struct qp *q)
{
	bool drained = true;
	ssize_t n;

	discard(q);
	n = q->rx.direct ? read_direct(q, &drained) : read_staged(q, &drained);
	if (n == 0) {
		end_of_stream(q);
		return false;
	}
	if (n == -EAGAIN)
		return false;
	if (n == -EFAULT) {
		/* The target was unmapped under us. The stream cannot be resumed. */
		qp_apply(q, QPE_LOCAL_FAIL, FLUE_CLOSE_LOCAL, EFAULT);
		return false;
	}
	if (n < 0) {
		qp_llp_error(q, (int)-n);
		return false;
	}
	q->rx.progress = true;
	q->engine->hot = &q->io;
	q->engine->idle_polls = 0;
	if (q->io.fd >= 0 && q->rx.buf && !q->rx.direct)
		parse(q);
	discard(q);
	return !drained;
}

void qp_rx_run(struct qp *q)
{
	if (!q->rx.buf)
		q->rx.buf = engine_buf_get(q->engine);
	if (!q->rx.buf) {
		qp_apply(q, QPE_LOCAL_FAIL, FLUE_CLOSE_LOCAL, ENOMEM);
		return;
	}
	q->rx.progress = q->rx.fresh;
	if (q->rx.fresh) {
		q->rx.fresh = false;
		parse(q);
	}
	for (int i = 0; i < ROUNDS && q->io.fd >= 0 && read_round(q); i++)
		;
	if (q->rx.buf && q->rx.head == q->rx.tail && !q->rx.direct) {
		engine_buf_put(q->engine, q->rx.buf);
		q->rx.buf = NULL;
		q->rx.head = q->rx.tail = 0;
	}
	if (q->rx.progress)
		qp_tx_run(q);
}
