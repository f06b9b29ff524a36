/* SPDX-License-Identifier: MIT */
/* The exchanges of siwpeer, told in lab/guest/siwpeer.c. */
#include <stdio.h>
#include <string.h>

#include "access/access_priv.h"
#include "flue_peer.h"
#include "rnic/qp.h"

#define BAD_KEY_FLIP 0x5500u
#define TOO_LONG     4096u

static uint8_t pattern(uint64_t i, uint32_t j)
{
	return (uint8_t)(131 * i + j + 17 * (j >> 8) + 29 * (j >> 16));
}

static void fill(uint8_t *buf, uint64_t i, uint32_t len, uint8_t mask)
{
	for (uint32_t j = 0; j < len; j++)
		buf[j] = pattern(i, j) ^ mask;
}

static bool intact(const uint8_t *buf, uint64_t i, uint32_t len, uint8_t mask)
{
	for (uint32_t j = 0; j < len; j++) {
		if (buf[j] != (pattern(i, j) ^ mask)) {
			printf("MISMATCH message %lu byte %u: %02x\n", i, j, buf[j]);
			return false;
		}
	}
	return true;
}

static bool is(const struct peer *p, const char *mode)
{
	return !strcmp(p->opt.mode, mode);
}

uint32_t siw_initial_recvs(const struct peer *p)
{
	if (p->opt.active)
		return is(p, "send") ? p->opt.window : 2;
	if (is(p, "send-no-recv") || is(p, "passive"))
		return p->opt.server ? 1 : 0;
	if (is(p, "send-too-long"))
		return p->opt.server ? 2 : 1;
	return is(p, "send") ? p->opt.window : 2;
}

static bool send_message(struct peer *p, uint64_t i)
{
	uint32_t slot = (uint32_t)(i % p->slots);

	fill(p->send_buf + slot * p->slot_size, i, p->opt.size, p->opt.server ? 0xff : 0);
	return ops_send(p, slot, p->opt.size);
}

static bool check_message(struct peer *p, uint64_t i, const struct flue_wc *wc)
{
	uint32_t slot = ID_SLOT(wc->id);

	p->messages++;
	p->bytes += wc->byte_len;
	if (wc->byte_len != p->opt.size ||
	    !intact(p->recv_buf + slot * p->slot_size, i, p->opt.size, p->opt.server ? 0 : 0xff))
		p->bad++;
	return ops_recv(p, slot);
}

/* A slot's send buffer is free again when its last message has completed; they do so in order. */
static bool run_send(struct peer *p)
{
	uint64_t sent = 0, completed = 0, received = 0, count = p->opt.count;
	struct flue_wc wc;

	while (received < count || completed < count) {
		uint64_t limit = p->opt.server ? received : received + p->slots;

		if (sent < count && sent < limit && sent - completed < p->slots) {
			if (!send_message(p, sent++))
				return false;
			continue;
		}
		if (peer_wait(p, &wc) != GOT_WC || wc.status != FLUE_WC_SUCCESS)
			return false;
		if (ID_OP(wc.id) == FLUE_WC_SEND)
			completed++;
		else if (!check_message(p, received++, &wc))
			return false;
	}
	return true;
}

static bool tell_memory(struct peer *p, struct ctl *remote)
{
	bool keep = is(p, "write") || is(p, "read") || is(p, "closing") || p->opt.active;
	struct flue_wc wc;

	if (p->opt.active)
		return (p->opt.server || ops_send_ctl(p, 0, 0, p->opt.size)) &&
		       ops_recv_ctl(p, remote, keep);
	if (p->opt.server && !ops_recv_ctl(p, remote, keep))
		return false;
	return ops_send_ctl(p, p->data_mr->remote_start, p->data_mr->rkey, p->opt.size) &&
	       ops_collect(p, FLUE_WC_SEND, 1, &wc);
}

static bool rdma_round(struct peer *p, const struct ctl *remote, uint32_t len)
{
	bool read = is(p, "read");
	uint32_t step = (len + p->opt.wrs - 1) / p->opt.wrs, posted = 0;
	struct flue_wc wc;

	for (uint32_t off = 0; off < len; off += step, posted++) {
		uint32_t n = len - off < step ? len - off : step;

		if (!ops_rdma(p, read ? FLUE_WR_READ : FLUE_WR_WRITE, off, n, remote->a + off,
			      remote->b))
			return false;
	}
	return ops_collect(p, read ? FLUE_WC_READ : FLUE_WC_WRITE, posted, &wc);
}

static bool bulk_round(struct peer *p, const struct ctl *remote, uint64_t r, uint32_t len)
{
	struct ctl answer;

	if (is(p, "write")) {
		fill(p->data, r, len, 0);
		if (!rdma_round(p, remote, len))
			return false;
	}
	if (!ops_send_ctl(p, r, 0, len) || !ops_recv_ctl(p, &answer, true))
		return false;
	p->bad += answer.a != r || answer.b != 1 || answer.c != len;
	if (is(p, "read")) {
		memset(p->data, 0, len);
		if (!rdma_round(p, remote, len))
			return false;
		p->bad += !intact(p->data, r, len, 0);
	}
	p->bytes += len;
	p->messages++;
	return true;
}

static bool bulk_active(struct peer *p, const struct ctl *remote)
{
	uint64_t left = p->opt.total, r = 0;
	uint32_t most = remote->c < p->opt.size ? remote->c : p->opt.size;
	struct ctl answer;

	for (; left; r++) {
		uint32_t len = left < most ? (uint32_t)left : most;

		if (!bulk_round(p, remote, r, len))
			return false;
		left -= len;
	}
	if (!ops_send_ctl(p, r, (uint32_t)p->bad, 0) || !ops_recv_ctl(p, &answer, true))
		return false;
	p->bad += answer.b;
	return true;
}

static bool bulk_passive(struct peer *p)
{
	struct flue_wc wc;
	struct ctl msg;

	while (ops_recv_ctl(p, &msg, true)) {
		bool ok = true;

		if (!msg.c)
			return ops_send_ctl(p, msg.a, (uint32_t)p->bad, 0) &&
			       ops_collect(p, FLUE_WC_SEND, p->ctl_out, &wc);
		if (msg.c > p->opt.size)
			return false;
		if (is(p, "write"))
			ok = intact(p->data, msg.a, msg.c, 0);
		else
			fill(p->data, msg.a, msg.c, 0);
		p->bad += !ok;
		p->bytes += msg.c;
		p->messages++;
		if (!ops_send_ctl(p, msg.a, ok, msg.c))
			return false;
	}
	return false;
}

/* No caller of Flue can make a wrong MSN: the transmitter's counter is turned by hand. */
static bool bad_msn(struct peer *p)
{
	struct qp *q = (struct qp *)to_qp(p->qp)->prov;

	engine_lock(q->engine);
	q->tx.cur.msn_send += 5;
	engine_unlock(q->engine);
	return ops_send_ctl(p, 0, 0, 0);
}

static bool misbehave(struct peer *p, const struct ctl *remote)
{
	uint32_t op = strstr(p->opt.mode, "-read-") ? FLUE_WR_READ : FLUE_WR_WRITE;

	if (strstr(p->opt.mode, "-key"))
		return ops_rdma(p, op, 0, 16, remote->a, remote->b ^ BAD_KEY_FLIP);
	if (strstr(p->opt.mode, "-bounds"))
		return ops_rdma(p, op, 0, 16, remote->a + remote->c - 8, remote->b);
	if (strstr(p->opt.mode, "-access"))
		return ops_rdma(p, op, 0, 16, remote->a, remote->b);
	if (is(p, "send-no-recv"))
		return ops_send_ctl(p, 0, 0, 0);
	if (is(p, "send-too-long"))
		return ops_send(p, 0, TOO_LONG);
	return true;
}

bool siw_run(struct peer *p)
{
	struct ctl remote = { 0 };

	if (is(p, "connect") || is(p, "reject"))
		return true;
	if (is(p, "send"))
		return run_send(p);
	if (is(p, "bad-msn")) {
		p->opt.closing = CLOSE_WAIT;
		return bad_msn(p);
	}
	if (!tell_memory(p, &remote))
		return false;
	if (is(p, "closing"))
		return close_run(p, &remote);
	if (is(p, "write") || is(p, "read"))
		return p->opt.active ? bulk_active(p, &remote) : bulk_passive(p);
	p->opt.closing = CLOSE_WAIT; /* the deed, or its detection, shall end it */
	return !p->opt.active || misbehave(p, &remote);
}
