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
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/tsan.h"
#include "base/util.h"
#include "rnic/full.h"
#include "rnic/link_tcp.h"
#include "rnic/rx_segment.h"

#define DIRECT_MIN 4096 /* smaller payloads are cheaper to copy */
#define LARGE_FPDU 8192 /* read these one at a time, so that little has to be moved */
#define READ_AHEAD 64   /* octets behind an FPDU: the next header is in them */
#define ROUNDS     8    /* reads before other links get their turn */

static bool at_boundary(const struct tcp_rx *rx)
{
	return rx->head == rx->tail && !rx->direct && !rx->trailer;
}

void link_tcp_rx_reset(struct link_tcp *l)
{
	if (l->rx.buf)
		engine_buf_put(l->engine, l->rx.buf);
	l->rx.buf = NULL;
	l->rx.head = l->rx.tail = 0;
	l->rx.direct = false;
	l->rx.trailer = 0;
}

static bool listening(const struct link_tcp *l)
{
	return l->link.open && rx_segment_listens(l->link.qp);
}

/* Header checks of one ULPDU; `have` octets of it are at ulpdu. */
static bool accept_header(struct link_tcp *l, const uint8_t *ulpdu, size_t have, size_t len,
			  struct ddp_segment *s)
{
	struct qp *q = l->link.qp;
	uint32_t fault = ddp_decode(&l->ddp, ulpdu, have, len, s);

	if (!fault)
		fault = rx_segment_accept(q, s, ulpdu + s->hdr_len);
	if (fault == RX_DROPPED || fault == RX_SKIPPED)
		return false;
	if (fault) {
		qp_fault(q, fault, ulpdu, have, len, s);
		return false;
	}
	/* A peer that sends larger units than we do takes them too. */
	if (len > l->tx.mulpdu)
		l->tx.mulpdu = min_size(len, l->tx.mulpdu_cap);
	return listening(l);
}

static void handle_ulpdu(struct link_tcp *l, const uint8_t *ulpdu, size_t len)
{
	struct ddp_segment s;
	uint32_t fault;

	if (!accept_header(l, ulpdu, len, len, &s))
		return;
	fault = rx_segment_place(l->link.qp, &s, ulpdu + s.hdr_len);
	if (!fault)
		fault = rx_segment_deliver(l->link.qp, &s, ulpdu + s.hdr_len);
	if (fault)
		qp_fault(l->link.qp, fault, ulpdu, len, len, &s);
}

/* The FPDU at the head is not complete: can its payload go straight to its place? */
static bool try_direct(struct link_tcp *l, size_t ulpdu_len)
{
	struct tcp_rx *rx = &l->rx;
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
	if (!accept_header(l, ulpdu, have, ulpdu_len, &rx->seg))
		/* It was dealt with, and nothing is left to read; or it is dropped, as a whole. */
		return !(listening(l) && full_skips(l->link.qp, &rx->seg));
	/* The segment is judged as a whole before its first byte is placed. What is in the buffer
	 * already is then copied, the rest comes from the socket. */
	part = have - rx->seg.hdr_len;
	fault = rx_segment_target(l->link.qp, &rx->seg, 0, rx->seg.payload_len, &target);
	if (!fault) {
		rx_target_put(&target);
		fault = rx_segment_place_part(l->link.qp, &rx->seg, 0, ulpdu + rx->seg.hdr_len,
					      part);
	}
	if (fault) {
		qp_fault(l->link.qp, fault, ulpdu, have, ulpdu_len, &rx->seg);
		return true;
	}
	rx->placed = part;
	rx->direct = true;
	rx->trailer = mpa_pad(ulpdu_len) + MPA_CRC_LEN;
	rx->head = rx->tail = 0;
	return true;
}

static void finish_direct(struct link_tcp *l)
{
	uint32_t fault;

	l->rx.direct = false;
	fault = rx_segment_deliver(l->link.qp, &l->rx.seg, NULL);
	if (fault)
		qp_fault(l->link.qp, fault, NULL, 0, 0, &l->rx.seg);
}

static bool skip_trailer(struct tcp_rx *rx)
{
	size_t n = min_size(rx->trailer, rx->tail - rx->head);

	rx->head += n;
	rx->trailer -= n;
	return rx->trailer == 0;
}

/* Takes every whole FPDU out of the buffer. */
static void parse(struct link_tcp *l)
{
	struct tcp_rx *rx = &l->rx;
	size_t size, ulpdu_len;

	if (!skip_trailer(rx))
		return;
	while (listening(l) && mpa_fpdu_find(&rx->in, rx->buf->data + rx->head, rx->tail - rx->head,
					     &size, &ulpdu_len) == 0) {
		uint8_t *ulpdu;
		uint32_t fault;

		if (size > rx->tail - rx->head) {
			rx->expect = size >= LARGE_FPDU ? size : 0;
			if (try_direct(l, ulpdu_len))
				return;
			break;
		}
		fault = mpa_fpdu_open(&rx->in, rx->buf->data + rx->head, size, ulpdu_len, &ulpdu);
		if (fault) {
			qp_fault(l->link.qp, fault, NULL, 0, 0, NULL);
			return;
		}
		rx->head += size;
		handle_ulpdu(l, ulpdu, ulpdu_len);
	}
}

/* Moves what is left to the front, if the FPDU it begins would not fit behind it. */
static void make_room(struct tcp_rx *rx)
{
	if (rx->head == rx->tail) {
		rx->head = rx->tail = 0;
	} else if (rx->head && ENGINE_BUF_SIZE - rx->head < MPA_FPDU_MAX) {
		memmove(rx->buf->data, rx->buf->data + rx->head, rx->tail - rx->head);
		rx->tail -= rx->head;
		rx->head = 0;
	}
}

static size_t read_size(const struct tcp_rx *rx)
{
	size_t have = rx->tail - rx->head, room = ENGINE_BUF_SIZE - rx->tail;

	if (rx->expect > have)
		return min_size(room, rx->expect - have + READ_AHEAD);
	return room;
}

/* One read. Returns octets, 0 at the end of the stream, -errno. *drained: the socket is empty. */
static ssize_t read_staged(struct link_tcp *l, bool *drained)
{
	struct tcp_rx *rx = &l->rx;
	size_t want;
	ssize_t n;

	make_room(rx);
	want = read_size(rx);
	do {
		n = recv(l->io.fd, rx->buf->data + rx->tail, want, MSG_DONTWAIT);
	} while (n < 0 && errno == EINTR);
	tsan_received(l->io.fd);
	if (n <= 0)
		return n ? -errno : 0;
	rx->tail += (size_t)n;
	*drained = (size_t)n < want;
	return n;
}

static ssize_t read_direct(struct link_tcp *l, bool *drained)
{
	struct tcp_rx *rx = &l->rx;
	struct iovec iov[RX_TARGET_MAX + 2];
	struct msghdr msg = { .msg_iov = iov };
	struct rx_target target;
	size_t left = rx->seg.payload_len - rx->placed, want = left + rx->trailer + READ_AHEAD;
	uint32_t fault;
	ssize_t n;

	fault = rx_segment_target(l->link.qp, &rx->seg, rx->placed, left, &target);
	if (fault) {
		qp_fault(l->link.qp, fault, NULL, 0, 0, &rx->seg);
		return -EAGAIN;
	}
	memcpy(iov, target.iov, target.n * sizeof(iov[0]));
	iov[target.n] = (struct iovec) { rx->buf->data, want - left };
	msg.msg_iovlen = target.n + 1;
	tsan_received(l->io.fd);
	do {
		n = recvmsg(l->io.fd, &msg, MSG_DONTWAIT);
	} while (n < 0 && errno == EINTR);
	tsan_received(l->io.fd);
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
	finish_direct(l);
	return n;
}

int link_tcp_rx_preload(struct link_tcp *l, const uint8_t *data, size_t len)
{
	if (len == 0)
		return 0;
	l->rx.buf = engine_buf_get(l->engine);
	if (!l->rx.buf)
		return -ENOMEM;
	memcpy(l->rx.buf->data, data, len);
	l->rx.head = 0;
	l->rx.tail = len;
	l->rx.fresh = true;
	return 0;
}

/* Behind the first fault everything is thrown away until the peer closes. */
static void discard(struct link_tcp *l)
{
	if (l->link.qp->state != QPS_TERMINATE)
		return;
	l->rx.head = l->rx.tail = l->rx.trailer = l->rx.expect = 0;
	l->rx.direct = false;
}

/* One round. true: there may be more to read. */
static bool read_round(struct link_tcp *l)
{
	bool drained = true;
	ssize_t n;

	discard(l);
	n = l->rx.direct ? read_direct(l, &drained) : read_staged(l, &drained);
	if (n == 0) {
		l->rx.fin = true;
		/* Behind a fault everything was thrown away, so there the stream always is at one. */
		qp_link_ended(l->link.qp, at_boundary(&l->rx));
		return false;
	}
	if (n == -EAGAIN)
		return false;
	if (n == -EFAULT) {
		/* The target was unmapped under us. The stream cannot be resumed. */
		qp_link_starved(l->link.qp, EFAULT);
		return false;
	}
	if (n < 0) {
		qp_link_failed(l->link.qp, (int)-n);
		return false;
	}
	l->rx.progress = true;
	l->engine->hot = &l->io;
	l->engine->idle_polls = 0;
	if (l->link.open && l->rx.buf && !l->rx.direct)
		parse(l);
	discard(l);
	return !drained;
}

void link_tcp_rx_run(struct link_tcp *l)
{
	if (!l->rx.buf)
		l->rx.buf = engine_buf_get(l->engine);
	if (!l->rx.buf) {
		qp_link_starved(l->link.qp, ENOMEM);
		return;
	}
	l->rx.progress = l->rx.fresh;
	if (l->rx.fresh) {
		l->rx.fresh = false;
		parse(l);
	}
	for (int i = 0; i < ROUNDS && l->link.open && read_round(l); i++)
		;
	if (l->rx.buf && l->rx.head == l->rx.tail && !l->rx.direct) {
		engine_buf_put(l->engine, l->rx.buf);
		l->rx.buf = NULL;
		l->rx.head = l->rx.tail = 0;
	}
	if (l->rx.progress)
		link_tcp_tx_run(l);
}

void link_tcp_ready(struct engine_io *io, uint32_t events)
{
	struct link_tcp *l = container_of(io, struct link_tcp, io);

	if (l->rx.fin) {
		link_tcp_look_for_end(l);
		return;
	}
	if (events & EPOLLOUT) {
		l->tx.blocked = false;
		engine_watch(l->engine, io, EPOLLIN);
		link_tcp_tx_run(l);
	}
	if (l->link.open && events & ~EPOLLOUT)
		link_tcp_rx_run(l);
}
