/* SPDX-License-Identifier: MIT */
/*
 * The framer: messages into FPDUs. Several FPDUs, of several messages, leave in one system call.
 *
 * Looking ahead. A batch of FPDUs is built from a copy of the scheduler's cursor; after the system
 * call the real one moves to where the last whole FPDU ended. The one FPDU that TCP took in part is
 * kept in tx.part and finished first.
 *
 * Where the bytes come from. Staged copies are used where the bytes may change under the CRC (the
 * source of a Read Response is anyone's to write), where markers are inserted, and for CRCs on the
 * library's own threads (see umem.h); everything else is gathered straight from memory.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/tsan.h"
#include "base/util.h"
#include "rnic/link_tcp.h"
#include "rnic/umem.h"

#define BATCH_FPDUS 32
#define BATCH_BYTES (1024 * 1024)

struct tx_batch {
	struct tx_fpdu fpdu[BATCH_FPDUS];
	uint32_t n;
	struct tx_pieces out;
	size_t bytes;
	struct engine_buf *stage; /* shared by the staged FPDUs of the batch */
	size_t stage_used;
};

_Static_assert(sizeof(struct tx_batch) <= ENGINE_SCRATCH, "a batch stands in the engine's scratch");

/* Copies a small payload, gathered in iov[from..], behind its header and seals the FPDU there. */
static enum tx_stop join_small(struct link_tcp *l, struct tx_batch *b, struct tx_fpdu *f,
			       uint32_t from)
{
	unsigned pad = f->tail_len - MPA_CRC_LEN;
	uint8_t *at = f->head + f->head_len;

	for (uint32_t i = from; i < b->out.n; at += b->out.iov[i++].iov_len) {
		if (umem_read(at, b->out.iov[i].iov_base, b->out.iov[i].iov_len))
			return f->at.kind == TX_RESPONSE ? TX_BAD_SOURCE : TX_BAD_REQUEST;
	}
	memset(at, 0, pad);
	at += pad;
	put_le32(at, l->tx.crc ? crc32c(0, f->head, (size_t)(at - f->head)) : 0);
	f->small = true;
	return TX_BUILT;
}

static bool must_stage(const struct link_tcp *l, const struct tx_fpdu *f)
{
	if (l->tx.marked)
		return true;
	return l->tx.crc && f->payload > TX_SMALL && (f->at.kind == TX_RESPONSE || umem_guarded);
}

/* Puts the FPDU whose payload is in iov[from..] into the staging buffer as one piece. */
static enum tx_stop stage(struct link_tcp *l, struct tx_batch *b, struct tx_fpdu *f, uint32_t from)
{
	size_t body = f->head_len + f->payload + (f->tail_len - MPA_CRC_LEN);
	struct mpa_stream out = { .crc = l->tx.crc, .markers = l->tx.marked, .pos = f->pos };
	size_t wire = mpa_fpdu_size(&out, f->head_len - MPA_LEN_LEN + f->payload);
	/* With markers the plain body is put together behind the room for the result. */
	size_t room = l->tx.marked ? wire + body : wire;
	uint8_t *to, *at;

	if (!b->stage)
		b->stage = engine_buf_get(l->engine);
	if (!b->stage)
		return TX_NO_MEMORY;
	if (b->stage_used + room > ENGINE_BUF_SIZE)
		return TX_FULL;
	to = b->stage->data + b->stage_used;
	at = l->tx.marked ? to + wire : to;
	memcpy(at, f->head, f->head_len);
	for (size_t i = from, off = f->head_len; i < b->out.n; off += b->out.iov[i++].iov_len) {
		if (umem_read(at + off, b->out.iov[i].iov_base, b->out.iov[i].iov_len))
			return f->at.kind == TX_RESPONSE ? TX_BAD_SOURCE : TX_BAD_REQUEST;
	}
	memset(at + f->head_len + f->payload, 0, f->tail_len - MPA_CRC_LEN);
	if (l->tx.marked)
		mpa_fpdu_build(&out, at, body, to);
	else
		put_le32(to + body, l->tx.crc ? crc32c(0, to, body) : 0);
	f->stage = b->stage;
	f->stage_off = b->stage_used;
	f->stage_len = wire;
	b->stage_used += wire;
	return TX_BUILT;
}

static void seal(const struct link_tcp *l, struct tx_fpdu *f, const struct iovec *iov, uint32_t n)
{
	unsigned pad = f->tail_len - MPA_CRC_LEN;
	uint32_t crc = 0;

	memset(f->tail, 0, sizeof(f->tail));
	if (l->tx.crc) {
		crc = crc32c(0, f->head, f->head_len);
		for (uint32_t i = 0; i < n; i++)
			crc = crc32c(crc, iov[i].iov_base, iov[i].iov_len);
		crc = crc32c(crc, f->tail, pad);
	}
	put_le32(f->tail + pad, crc);
}

static size_t fpdu_size(const struct tx_fpdu *f)
{
	return f->stage ? f->stage_len : (size_t)f->head_len + f->payload + f->tail_len;
}

/* Fills head and sizes of *f for the message at the cursor, and moves the cursor. */
static void frame(struct link_tcp *l, struct tx_cursor *c, uint64_t *pos, struct tx_message *m,
		  struct tx_fpdu *f)
{
	size_t hdr = m->seg.tagged ? DDP_TAGGED_LEN : DDP_UNTAGGED_LEN;
	size_t room = l->tx.mulpdu - hdr, ulpdu;

	f->at = *c;
	f->pos = *pos;
	f->payload = (uint32_t)min_size(room, m->total - c->off);
	f->sent = 0;
	f->stage = NULL;
	f->small = false;
	m->seg.last = c->off + f->payload == m->total;
	ddp_encode(&l->ddp, &m->seg, f->head + MPA_LEN_LEN);
	if (m->fixed_len)
		memcpy(f->head + MPA_LEN_LEN + hdr, m->fixed, m->fixed_len);
	hdr += m->fixed_len;
	ulpdu = hdr + f->payload;
	put_be16(f->head, (uint16_t)ulpdu);
	f->head_len = (uint16_t)(MPA_LEN_LEN + hdr);
	f->tail_len = (uint16_t)(mpa_pad(ulpdu) + MPA_CRC_LEN);
	if (l->tx.marked) /* nobody else asks where it is */
		*pos += mpa_fpdu_size(&(struct mpa_stream) { .markers = true, .pos = *pos }, ulpdu);
	qp_sched_step(c, m, f->payload);
	f->after = *c;
	f->pos_after = *pos;
}

/* Turns the framed FPDU whose payload is in iov[first + 1..] into the pieces that go out. */
static enum tx_stop finish_fpdu(struct link_tcp *l, struct tx_batch *b, struct tx_fpdu *f,
				uint32_t first)
{
	enum tx_stop stop = TX_BUILT;

	if (must_stage(l, f)) {
		stop = stage(l, b, f, first + 1);
		b->out.n = first;
		if (stop == TX_BUILT)
			tx_pieces_add(&b->out, f->stage->data + f->stage_off, f->stage_len, NULL);
	} else if (f->payload <= TX_SMALL) {
		stop = join_small(l, b, f, first + 1);
		b->out.n = first;
		tx_pieces_add(&b->out, f->head, f->head_len + f->payload + f->tail_len, NULL);
	} else {
		seal(l, f, &b->out.iov[first + 1], b->out.n - first - 1);
		tx_pieces_add(&b->out, f->tail, f->tail_len, NULL);
	}
	return stop;
}

/* Adds the next FPDU to the batch; on failure batch and cursor are as before. */
static enum tx_stop build(struct link_tcp *l, struct tx_cursor *c, uint64_t *pos,
			  struct tx_batch *b, uint32_t *status)
{
	struct tx_fpdu *f = &b->fpdu[b->n];
	uint32_t n = b->out.n, n_ref = b->out.n_ref;
	struct tx_cursor was = *c;
	uint64_t pos_was = *pos;
	struct tx_message m;
	enum tx_stop stop = qp_sched_next(l->link.qp, c, &m, status);

	if (stop == TX_BUILT) {
		frame(l, c, pos, &m, f);
		*status = FLUE_WC_LOCAL_PROTECTION;
		stop = tx_pieces_add(&b->out, f->head, f->head_len, NULL) ? TX_BUILT : TX_FULL;
	}
	if (stop == TX_BUILT)
		stop = qp_sched_gather(l->link.qp, &f->at, f->at.off, f->payload, &b->out);
	if (stop == TX_BUILT)
		stop = b->out.n < TX_PIECES ? finish_fpdu(l, b, f, n) : TX_FULL;
	if (stop == TX_BUILT) {
		b->n++;
		b->bytes += fpdu_size(f);
		return TX_BUILT;
	}
	tx_pieces_put(&b->out, n_ref);
	b->out.n = n;
	*c = was;
	*pos = pos_was;
	return stop;
}

/* The FPDU that TCP took in part goes first: add what is left of it. */
static enum tx_stop resume_part(struct link_tcp *l, struct tx_batch *b, uint32_t *status)
{
	struct tx_fpdu *f = &b->fpdu[0];
	size_t skip = l->tx.part->sent;
	enum tx_stop stop = TX_BUILT;
	uint32_t i = 0;

	*f = *l->tx.part;
	*status = FLUE_WC_LOCAL_PROTECTION;
	if (f->stage) {
		tx_pieces_add(&b->out, f->stage->data + f->stage_off, f->stage_len, NULL);
	} else if (f->small) {
		tx_pieces_add(&b->out, f->head, f->head_len + f->payload + f->tail_len, NULL);
	} else {
		tx_pieces_add(&b->out, f->head, f->head_len, NULL);
		stop = qp_sched_gather(l->link.qp, &f->at, f->at.off, f->payload, &b->out);
		if (stop != TX_BUILT)
			return stop;
		tx_pieces_add(&b->out, f->tail, f->tail_len, NULL);
	}
	for (; skip >= b->out.iov[i].iov_len; i++)
		skip -= b->out.iov[i].iov_len;
	b->out.iov[i].iov_base = (char *)b->out.iov[i].iov_base + skip;
	b->out.iov[i].iov_len -= skip;
	memmove(b->out.iov, b->out.iov + i, (b->out.n - i) * sizeof(b->out.iov[0]));
	b->out.n -= i;
	b->n = 1;
	b->bytes = fpdu_size(f) - f->sent;
	return TX_BUILT;
}

static void drop_part(struct link_tcp *l)
{
	free(l->tx.part);
	l->tx.part = NULL;
}

/* TCP took only the beginning. Idle connections have no room for that beforehand: it is half a KiB. */
static void keep_part(struct link_tcp *l, const struct tx_fpdu *f)
{
	l->tx.part = malloc(sizeof(*f));
	if (l->tx.part)
		*l->tx.part = *f;
	else
		qp_link_starved(l->link.qp, ENOMEM);
}

/* TCP took n octets of the batch. */
static void account(struct link_tcp *l, struct tx_batch *b, size_t n)
{
	drop_part(l);
	for (uint32_t i = 0; i < b->n && l->link.open; i++) {
		struct tx_fpdu *f = &b->fpdu[i];
		size_t left = fpdu_size(f) - f->sent;

		if (n < left) {
			if (n || f->sent) {
				f->sent += n;
				qp_sched_begun(l->link.qp, &f->at);
				keep_part(l, f);
			}
			return;
		}
		n -= left;
		l->tx.pos = f->pos_after;
		qp_sched_out(l->link.qp, &f->at, &f->after);
	}
}

static ssize_t transmit(struct link_tcp *l, struct tx_batch *b)
{
	struct msghdr msg = { .msg_iov = b->out.iov, .msg_iovlen = b->out.n };
	ssize_t n;

	tsan_sends(l->io.fd);
	do {
		if (b->out.n == 1)
			n = send(l->io.fd, b->out.iov->iov_base, b->out.iov->iov_len,
				 MSG_DONTWAIT | MSG_NOSIGNAL);
		else
			n = sendmsg(l->io.fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
	} while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : n;
}

static void release(struct link_tcp *l, struct tx_batch *b, struct engine_buf *old)
{
	struct engine_buf *kept = l->tx.part ? l->tx.part->stage : NULL;

	tx_pieces_put(&b->out, 0);
	if (b->stage && b->stage != kept)
		engine_buf_put(l->engine, b->stage);
	if (old && old != kept)
		engine_buf_put(l->engine, old);
}

static void block(struct link_tcp *l)
{
	int rc;

	l->tx.blocked = true;
	rc = engine_watch(l->engine, &l->io, EPOLLIN | EPOLLOUT);
	if (rc)
		qp_link_starved(l->link.qp, -rc);
}

/* Fills a batch: first what is left of a torn FPDU, then as much as may go. */
static enum tx_stop fill(struct link_tcp *l, struct tx_batch *b, uint32_t *status)
{
	struct tx_cursor c = l->tx.part ? l->tx.part->after : l->link.qp->tx.cur;
	uint64_t pos = l->tx.part ? l->tx.part->pos_after : l->tx.pos;
	enum tx_stop stop = TX_BUILT;

	b->n = b->out.n = b->out.n_ref = 0;
	b->bytes = b->stage_used = 0;
	b->stage = NULL;
	if (l->tx.part)
		stop = resume_part(l, b, status);
	/* Who must go back sends nothing more before. */
	while (stop == TX_BUILT && !l->link.qp->tx.full.go_back && b->n < BATCH_FPDUS &&
	       b->bytes < BATCH_BYTES)
		stop = build(l, &c, &pos, b, status);
	return stop;
}

/* Nothing could be built: is that a failure? true: something changed, try again. */
static bool handle_empty(struct link_tcp *l, enum tx_stop stop, uint32_t status)
{
	switch (stop) {
	case TX_NO_MEMORY: qp_link_starved(l->link.qp, ENOMEM); return false;
	case TX_BAD_REQUEST:
	case TX_BAD_SOURCE: return qp_sched_refuse(l->link.qp, stop, status, l->tx.part != NULL);
	default: return false;
	}
}

/* Some memory of the batch is gone, which need not be the first one's: that goes alone. */
static ssize_t transmit_first(struct link_tcp *l, struct tx_batch *b)
{
	size_t left = fpdu_size(&b->fpdu[0]) - b->fpdu[0].sent;

	b->n = 1;
	b->bytes = left;
	for (b->out.n = 0; left; b->out.n++)
		left -= b->out.iov[b->out.n].iov_len;
	return transmit(l, b);
}

/* Sends one batch. false: nothing more can be done now. */
static bool send_batch(struct link_tcp *l)
{
	struct engine_buf *old = l->tx.part ? l->tx.part->stage : NULL;
	enum tx_stop stop;
	uint32_t status = 0;
	/* Nothing below sends for another queue pair of the engine before this is done with. */
	struct tx_batch *b = l->engine->scratch;
	ssize_t n;

	if (!l->tx.part)
		full_settle(l->link.qp);
	stop = fill(l, b, &status);
	if (b->n == 0) {
		release(l, b, NULL);
		return handle_empty(l, stop, status);
	}
	n = transmit(l, b);
	if (n == -EFAULT && b->n > 1)
		n = transmit_first(l, b);
	if (n > 0)
		account(l, b, (size_t)n);
	release(l, b, old);
	if (n >= 0 && (size_t)n == b->bytes)
		return true;
	if (n == -EFAULT) {
		stop = b->fpdu[0].at.kind == TX_RESPONSE ? TX_BAD_SOURCE : TX_BAD_REQUEST;
		return qp_sched_refuse(l->link.qp, stop, FLUE_WC_LOCAL_PROTECTION, l->tx.part);
	}
	if (n < 0 && n != -EAGAIN)
		qp_link_failed(l->link.qp, (int)-n);
	else if (l->link.open)
		block(l);
	return false;
}

/* Looked at before anything else: this is most often called when there is nothing to do. */
static bool may_send(const struct link_tcp *l)
{
	if (!l->link.open || l->tx.blocked)
		return false;
	return l->tx.part || qp_sched_has_work(l->link.qp);
}

static void send_fin(struct link_tcp *l)
{
	if (l->tx.fin_sent || l->tx.blocked || l->tx.part)
		return;
	l->tx.fin_sent = true;
	/* Without a FIN the peer would wait for us, and we for it. ENOTCONN: it was reset. */
	if (shutdown(l->io.fd, SHUT_WR) < 0)
		qp_link_failed(l->link.qp, errno == ENOTCONN ? ECONNRESET : errno);
}

void link_tcp_tx_run(struct link_tcp *l)
{
	if (l->tx.busy)
		return;
	l->tx.busy = true;
	while (may_send(l) && (qp_sched_run_local(l->link.qp) || send_batch(l)))
		;
	l->tx.busy = false;
	if (l->link.open && qp_sched_wants_fin(l->link.qp))
		send_fin(l);
}

void link_tcp_kick(struct link *link)
{
	link_tcp_tx_run(container_of(link, struct link_tcp, link));
}

void link_tcp_tx_reset(struct link_tcp *l)
{
	if (l->tx.part && l->tx.part->stage)
		engine_buf_put(l->engine, l->tx.part->stage);
	drop_part(l);
	l->tx.blocked = false;
}
