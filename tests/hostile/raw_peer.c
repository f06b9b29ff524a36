/* SPDX-License-Identifier: MIT */
/* See raw_peer.h. */
#include "hostile/raw_peer.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/bytes.h"
#include "base/util.h"

#define CORK_SIZE (1u << 20)
#define EDGE      100 /* octets of an FPDU's beginning and end that trickle */

/* ---- the stream ---- */

static void begin(struct raw_peer *p, int fd)
{
	struct timeval patience = { .tv_sec = RAW_PATIENCE_MS / 1000 };
	int one = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
	p->fd = fd;
	p->in_len = 0;
	p->tx.pos = p->rx.pos = 0;
	for (size_t i = 0; i < sizeof(p->msn) / sizeof(p->msn[0]); i++)
		p->msn[i] = 1;
}

bool raw_try_connect(struct raw_peer *p, const struct sockaddr *to, socklen_t len)
{
	int fd = socket(to->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	begin(p, fd);
	if (connect(fd, to, len) == 0)
		return true;
	close(fd);
	p->fd = -1;
	return false;
}

void raw_connect(struct raw_peer *p, const struct sockaddr *to, socklen_t len)
{
	if (!raw_try_connect(p, to, len))
		fail_msg("cannot connect: %s", strerror(errno));
}

int raw_listen(struct sockaddr_storage *at, socklen_t *len)
{
	struct sockaddr_in *in = (struct sockaddr_in *)at;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	memset(at, 0, sizeof(*at));
	in->sin_family = AF_INET;
	in->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	*len = sizeof(*in);
	assert_true(fd >= 0);
	assert_int_equal(bind(fd, (struct sockaddr *)at, *len), 0);
	assert_int_equal(listen(fd, 16), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)at, len), 0);
	return fd;
}

void raw_accept(struct raw_peer *p, int listener)
{
	struct pollfd ready = { .fd = listener, .events = POLLIN };
	int fd;

	assert_int_equal(poll(&ready, 1, RAW_PATIENCE_MS), 1);
	fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	assert_true(fd >= 0);
	begin(p, fd);
}

/* Headers and trailers go in single octets; of a long middle that would only take time. */
static size_t trickle_size(size_t done, size_t len)
{
	return done < EDGE || len - done <= EDGE ? 1 : min_size(777, len - done - EDGE);
}

void raw_cork(struct raw_peer *p)
{
	p->corked = malloc(CORK_SIZE);
	p->corked_len = 0;
	assert_non_null(p->corked);
}

void raw_uncork(struct raw_peer *p)
{
	uint8_t *held = p->corked;

	p->corked = NULL;
	raw_send(p, held, p->corked_len);
	free(held);
}

void raw_send(struct raw_peer *p, const void *data, size_t len)
{
	size_t n;

	if (p->corked) {
		assert_true(len <= CORK_SIZE - p->corked_len);
		memcpy(p->corked + p->corked_len, data, len);
		p->corked_len += len;
		return;
	}
	for (size_t done = 0; done < len; done += n) {
		ssize_t sent;

		n = p->trickle ? trickle_size(done, len) : len - done;
		if (p->split && p->split < n)
			n = p->split;
		sent = send(p->fd, (const uint8_t *)data + done, n, MSG_NOSIGNAL);

		/* The other side may have given up already: that is for the test to notice. */
		if (sent < 0 && (errno == EPIPE || errno == ECONNRESET))
			return;
		if (sent != (ssize_t)n)
			fail_msg("cannot send %zu octets: %s", n, strerror(errno));
		/* The other side must have time to read the first part by itself. */
		if (p->split)
			usleep(2000);
		p->split = 0;
	}
}

size_t raw_send_some(struct raw_peer *p, const void *data, size_t len)
{
	ssize_t n = send(p->fd, data, len, MSG_NOSIGNAL | MSG_DONTWAIT);

	return n < 0 ? 0 : (size_t)n;
}

void raw_fin(struct raw_peer *p)
{
	shutdown(p->fd, SHUT_WR);
}

void raw_close(struct raw_peer *p)
{
	if (p->fd >= 0)
		close(p->fd);
	p->fd = -1;
}

void raw_reset(struct raw_peer *p)
{
	struct linger now = { .l_onoff = 1 };

	setsockopt(p->fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
	raw_close(p);
}

/* > 0 octets, 0: the end. A reset is an end as well. */
static size_t receive(struct raw_peer *p, void *at, size_t len)
{
	ssize_t n = recv(p->fd, at, len, 0);

	if (n < 0 && errno != ECONNRESET)
		fail_msg("waited too long: %s", strerror(errno));
	return n < 0 ? 0 : (size_t)n;
}

size_t raw_drain(struct raw_peer *p)
{
	size_t total = p->in_len, n;

	while ((n = receive(p, p->in, sizeof(p->in))))
		total += n;
	p->in_len = 0;
	return total;
}

void raw_expect_end(struct raw_peer *p)
{
	size_t n = raw_drain(p);

	if (n)
		fail_msg("%zu octets came where nothing should", n);
}

void raw_expect_silence(struct raw_peer *p, int ms)
{
	struct pollfd ready = { .fd = p->fd, .events = POLLIN };

	assert_int_equal(p->in_len, 0);
	assert_int_equal(poll(&ready, 1, ms), 0);
}

/* ---- start-up ---- */

struct mpa_frame raw_request(const struct raw_peer *p)
{
	struct mpa_frame f = { .rev = 2,
			       .flags = MPA_FLAG_ENHANCED,
			       .p2p = true,
			       .rtr = MPA_RTR_WRITE,
			       .ird = p->depth,
			       .ord = p->depth };

	/* What we want to receive is what we ask for. */
	f.flags |= (uint8_t)((p->tx.crc ? MPA_FLAG_CRC : 0) |
			     (p->rx.markers ? MPA_FLAG_MARKERS : 0));
	return f;
}

struct mpa_frame raw_reply(const struct raw_peer *p, const struct mpa_frame *to)
{
	struct mpa_frame f = { .reply = true, .rev = to->rev, .p2p = to->p2p };

	f.flags = to->flags & MPA_FLAG_ENHANCED;
	f.flags |= (uint8_t)((p->tx.crc ? MPA_FLAG_CRC : 0) |
			     (p->rx.markers ? MPA_FLAG_MARKERS : 0));
	f.rtr = to->rtr & MPA_RTR_WRITE;
	f.ird = to->ord;
	f.ord = to->ird;
	return f;
}

void raw_send_frame(struct raw_peer *p, const struct mpa_frame *f)
{
	uint8_t buf[MPA_FRAME_LEN + MPA_PD_MAX];
	int len = mpa_frame_encode(f, buf, sizeof(buf));

	assert_true(len > 0);
	raw_send(p, buf, (size_t)len);
}

/* Reads on until `want` octets are in the buffer. False: the stream ended. */
static bool fill(struct raw_peer *p, size_t want)
{
	assert_true(want <= sizeof(p->in));
	while (p->in_len < want) {
		size_t n = receive(p, p->in + p->in_len, sizeof(p->in) - p->in_len);

		if (n == 0)
			return false;
		p->in_len += n;
	}
	return true;
}

static void consume(struct raw_peer *p, size_t n)
{
	memmove(p->in, p->in + n, p->in_len - n);
	p->in_len -= n;
}

void raw_expect_frame(struct raw_peer *p, bool reply, struct mpa_frame *f)
{
	int used;

	while ((used = mpa_frame_decode(f, p->in, p->in_len, reply)) == -EAGAIN) {
		if (!fill(p, p->in_len + 1))
			fail_msg("closed instead of a %s frame", reply ? "reply" : "request");
	}
	assert_true(used > 0);
	memcpy(p->frame, p->in, (size_t)used);
	mpa_frame_decode(f, p->frame, (size_t)used, reply);
	consume(p, (size_t)used);
}

/* ---- FPDUs out ---- */

void raw_send_ulpdu(struct raw_peer *p, const uint8_t *ulpdu, size_t len, enum raw_damage damage)
{
	size_t body_len = MPA_LEN_LEN + len + mpa_pad(len);
	uint8_t *body = calloc(1, body_len), *fpdu = malloc(MPA_FPDU_MAX);
	size_t start = (size_t)(-p->tx.pos % MPA_MARKER_SPACING), size;

	assert_true(body && fpdu);
	put_be16(body, (uint16_t)len);
	if (len)
		memcpy(body + MPA_LEN_LEN, ulpdu, len);
	size = mpa_fpdu_build(&p->tx, body, body_len, fpdu);
	if (damage == RAW_BAD_CRC)
		fpdu[size - 1] ^= 0x10;
	if (damage == RAW_BAD_MARKER) {
		assert_true(p->tx.markers && start < size);
		fpdu[start + 3] ^= 0x10;
	}
	raw_send(p, fpdu, size);
	free(fpdu);
	free(body);
}

void raw_send_segment(struct raw_peer *p, const struct ddp_segment *s, const void *payload,
		      size_t len)
{
	struct ddp_params version = { .dv = 1, .rv = 1 };
	uint8_t *ulpdu = malloc(DDP_HDR_MAX + len);
	size_t hdr;

	assert_non_null(ulpdu);
	hdr = ddp_encode(&version, s, ulpdu);
	if (len)
		memcpy(ulpdu + hdr, payload, len);
	raw_send_ulpdu(p, ulpdu, hdr + len, RAW_NO_DAMAGE);
	free(ulpdu);
}

static void send_untagged(struct raw_peer *p, uint8_t opcode, uint32_t qn, const void *data,
			  size_t len)
{
	struct ddp_segment s = { .opcode = opcode, .last = true, .qn = qn, .msn = p->msn[qn]++ };

	raw_send_segment(p, &s, data, len);
}

void raw_send_message(struct raw_peer *p, const void *data, size_t len)
{
	send_untagged(p, RDMAP_SEND, DDP_QN_SEND, data, len);
}

void raw_write(struct raw_peer *p, uint32_t stag, uint64_t to, const void *data, size_t len)
{
	struct ddp_segment s = {
		.opcode = RDMAP_WRITE, .tagged = true, .last = true, .stag = stag, .to = to
	};

	raw_send_segment(p, &s, data, len);
}

void raw_read_request(struct raw_peer *p, const struct rdmap_read_request *r)
{
	uint8_t header[RDMAP_READ_REQUEST_LEN];

	rdmap_read_request_encode(r, header);
	send_untagged(p, RDMAP_READ_REQUEST, DDP_QN_READ, header, sizeof(header));
}

void raw_terminate(struct raw_peer *p, const void *payload, size_t len)
{
	send_untagged(p, RDMAP_TERMINATE, DDP_QN_TERMINATE, payload, len);
}

/* ---- FPDUs in ---- */

bool raw_next_fpdu(struct raw_peer *p, struct raw_fpdu *f)
{
	static uint8_t fpdu[MPA_FPDU_MAX];
	struct ddp_params version = { .dv = 1, .rv = 1 };
	size_t size, ulpdu_len;
	uint8_t *ulpdu;

	while (mpa_fpdu_find(&p->rx, p->in, p->in_len, &size, &ulpdu_len) != 0) {
		if (!fill(p, p->in_len + 1)) {
			assert_int_equal(p->in_len, 0);
			return false;
		}
	}
	if (!fill(p, size))
		fail_msg("an FPDU of %zu octets ends after %zu", size, p->in_len);
	memcpy(fpdu, p->in, size);
	consume(p, size);
	assert_int_equal(mpa_fpdu_open(&p->rx, fpdu, size, ulpdu_len, &ulpdu), WIRE_OK);
	assert_int_equal(ddp_decode(&version, ulpdu, ulpdu_len, ulpdu_len, &f->seg), WIRE_OK);
	f->payload = ulpdu + f->seg.hdr_len;
	return true;
}

void raw_expect_fpdu(struct raw_peer *p, uint8_t opcode, struct raw_fpdu *f)
{
	if (!raw_next_fpdu(p, f))
		fail_msg("closed instead of a %s", rdmap_ops[opcode].name);
	if (f->seg.opcode != opcode)
		fail_msg("a %s came, not a %s", rdmap_ops[f->seg.opcode].name,
			 rdmap_ops[opcode].name);
}

void raw_expect_read_request(struct raw_peer *p, struct rdmap_read_request *r)
{
	struct raw_fpdu f;

	raw_expect_fpdu(p, RDMAP_READ_REQUEST, &f);
	rdmap_read_request_decode(r, f.payload);
}

static void check_terminate(struct raw_peer *p, const struct raw_fpdu *f, uint32_t fault)
{
	struct rdmap_terminate t;

	assert_int_equal(rdmap_terminate_decode(&t, f->payload, f->seg.payload_len), 0);
	assert_false(t.swapped);
	if (t.fault != fault)
		fail_msg("Terminate says '%s', not '%s'", wire_fault_name(t.fault),
			 wire_fault_name(fault));
	assert_int_equal(f->seg.msn, 1);
	/* "At most one per stream", and nothing behind it. */
	raw_expect_end(p);
}

void raw_expect_terminate(struct raw_peer *p, uint32_t fault)
{
	struct raw_fpdu f;

	raw_expect_fpdu(p, RDMAP_TERMINATE, &f);
	check_terminate(p, &f, fault);
}

void raw_await_terminate(struct raw_peer *p, uint32_t fault)
{
	struct raw_fpdu f;

	do {
		if (!raw_next_fpdu(p, &f))
			fail_msg("closed without a Terminate");
	} while (f.seg.opcode != RDMAP_TERMINATE);
	check_terminate(p, &f, fault);
}
