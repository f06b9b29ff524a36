/*
 * siwpeer's messages and RDMA operations; siwpeer.c describes the exchanges.
 */
#include "siwpeer.h"

#include <endian.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ctl {
	uint64_t a;
	uint32_t b;
	uint32_t c;
};

#define CTL_LEN      16
#define BAD_KEY_FLIP 0x5500u
#define TOO_LONG     4096u

static uint8_t pattern(uint64_t i, uint32_t j)
{
	return 131 * i + j + 17 * (j >> 8) + 29 * (j >> 16);
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

static int post_recv(struct peer *p, uint32_t slot)
{
	struct ibv_sge sge = { (uintptr_t)(p->recv_buf + slot * p->slot_size), p->slot_size,
			       p->recv_mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = WRID(IBV_WC_RECV, slot), .sg_list = &sge, .num_sge = 1 },
			   *bad;

	return ibv_post_recv(p->id->qp, &wr, &bad);
}

static int post_send(struct peer *p, uint32_t slot, uint32_t len)
{
	struct ibv_sge sge = { (uintptr_t)(p->send_buf + slot * p->slot_size), len,
			       p->send_mr->lkey };
	struct ibv_send_wr wr = { .wr_id = WRID(IBV_WC_SEND, slot),
				  .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED };
	struct ibv_send_wr *bad;

	return ibv_post_send(p->id->qp, &wr, &bad);
}

static int post_rdma(struct peer *p, enum ibv_wr_opcode op, uint32_t offset, uint32_t len,
		     uint64_t remote, uint32_t rkey)
{
	struct ibv_sge sge = { (uintptr_t)(p->data + offset), len, p->data_mr->lkey };
	enum ibv_wc_opcode wc_op = op == IBV_WR_RDMA_READ ? IBV_WC_RDMA_READ : IBV_WC_RDMA_WRITE;
	struct ibv_send_wr wr = { .wr_id = WRID(wc_op, 0),
				  .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = op,
				  .send_flags = IBV_SEND_SIGNALED,
				  .wr.rdma = { .remote_addr = remote, .rkey = rkey } };
	struct ibv_send_wr *bad;

	return ibv_post_send(p->id->qp, &wr, &bad);
}

/* Receives posted before the connection is there: none where the mode is about having none. */
static uint32_t initial_recvs(const struct peer *p)
{
	const struct options *o = &p->opt;

	if (o->active || o->mode == MODE_SEND)
		return p->slots;
	if (o->mode == MODE_SEND_NO_RECV || o->mode == MODE_PASSIVE)
		return o->server ? 1 : 0; /* the server must hear the client's first message */
	if (o->mode == MODE_SEND_TOO_LONG)
		return o->server ? 2 : 1;
	return p->slots;
}

static struct ibv_mr *make_buffer(struct peer *p, uint8_t **buf, size_t len, int access)
{
	*buf = aligned_alloc(4096, (len + 4095) & ~4095ul);
	if (!*buf)
		return NULL;
	memset(*buf, 0, len);
	return ibv_reg_mr(p->id->pd, *buf, len, access);
}

static int data_access(const struct options *o)
{
	int access = IBV_ACCESS_LOCAL_WRITE;

	if (o->active || o->mode != MODE_BAD_WRITE_ACCESS)
		access |= IBV_ACCESS_REMOTE_WRITE; /* an iWARP Read's sink needs it, too */
	if (o->active || o->mode != MODE_BAD_READ_ACCESS)
		access |= IBV_ACCESS_REMOTE_READ;
	return access;
}

int xfer_setup(struct peer *p)
{
	const struct options *o = &p->opt;
	uint32_t resets = o->act && strstr(o->act, "reset") ? ACT_RECVS : 0;
	uint32_t depth = 2 * o->window + o->wrs + 8 + resets;
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC, .cap = { depth, depth, 1, 1, 0 } };

	p->slots = o->mode == MODE_SEND ? o->window : 2;
	p->slot_size = o->mode == MODE_SEND && o->size > CTL_LEN ? o->size : CTL_LEN;
	p->channel = ibv_create_comp_channel(p->id->verbs);
	p->cq = ibv_create_cq(p->id->verbs, 2 * depth, NULL, p->channel, 0);
	attr.send_cq = attr.recv_cq = p->cq;
	if (!p->cq || rdma_create_qp(p->id, NULL, &attr))
		return -1;
	p->recv_mr = make_buffer(p, &p->recv_buf, (size_t)p->slots * p->slot_size,
				 IBV_ACCESS_LOCAL_WRITE);
	p->send_mr = make_buffer(p, &p->send_buf, (size_t)p->slots * p->slot_size + TOO_LONG,
				 IBV_ACCESS_LOCAL_WRITE);
	p->data_mr = make_buffer(p, &p->data, o->size, data_access(o));
	if (!p->recv_mr || !p->send_mr || !p->data_mr)
		return -1;
	for (uint32_t i = 0; i < initial_recvs(p); i++)
		if (post_recv(p, i))
			return -1;
	return 0;
}

int xfer_post_recv(struct peer *p, uint32_t slot)
{
	return post_recv(p, slot);
}

/* Waits until n completions of the kind have come; every completion must be a success. */
static int collect(struct peer *p, enum ibv_wc_opcode op, uint32_t n, struct ibv_wc *wc)
{
	while (n) {
		if (peer_wait(p, wc) != GOT_WC || wc->status != IBV_WC_SUCCESS)
			return -1;
		p->ctl_out -= WRID_OP(wc->wr_id) == IBV_WC_SEND && p->ctl_out > 0;
		if (WRID_OP(wc->wr_id) == op)
			n--;
	}
	return 0;
}

static int send_ctl(struct peer *p, uint64_t a, uint32_t b, uint32_t c)
{
	struct ctl msg = { htobe64(a), htobe32(b), htobe32(c) };

	memcpy(p->send_buf, &msg, CTL_LEN);
	if (post_send(p, 0, CTL_LEN))
		return -1;
	p->ctl_out++;
	return 0;
}

static int recv_ctl(struct peer *p, struct ctl *msg, bool repost)
{
	struct ibv_wc wc;
	uint32_t slot;

	if (collect(p, IBV_WC_RECV, 1, &wc) || wc.byte_len != CTL_LEN)
		return -1;
	slot = WRID_SLOT(wc.wr_id);
	memcpy(msg, p->recv_buf + slot * p->slot_size, CTL_LEN);
	*msg = (struct ctl) { be64toh(msg->a), be32toh(msg->b), be32toh(msg->c) };
	return repost ? post_recv(p, slot) : 0;
}

/* One slot's message; the sent copy must stay untouched until its completion, hence per slot. */
static int send_message(struct peer *p, uint64_t i)
{
	uint32_t slot = i % p->slots;

	fill(p->send_buf + slot * p->slot_size, i, p->opt.size, p->opt.server ? 0xff : 0);
	return post_send(p, slot, p->opt.size);
}

static int check_message(struct peer *p, uint64_t i, const struct ibv_wc *wc)
{
	uint32_t slot = WRID_SLOT(wc->wr_id);

	p->messages++;
	p->bytes += wc->byte_len;
	if (wc->byte_len != p->opt.size ||
	    !intact(p->recv_buf + slot * p->slot_size, i, p->opt.size, p->opt.server ? 0 : 0xff))
		p->bad++;
	return post_recv(p, slot);
}

/*
 * Both sides of mode send. A slot's send buffer is free again when the message window slots
 * earlier has completed; completions come in order, so counting them is enough.
 */
static int run_send(struct peer *p)
{
	uint64_t sent = 0, completed = 0, received = 0;
	struct ibv_wc wc;

	while (received < p->opt.count || completed < p->opt.count) {
		uint64_t may = p->opt.server ? received : received + p->slots;

		while (sent < may && sent < p->opt.count && sent - completed < p->slots)
			if (send_message(p, sent++))
				return -1;
		if (peer_wait(p, &wc) != GOT_WC || wc.status != IBV_WC_SUCCESS)
			return -1;
		if (WRID_OP(wc.wr_id) == IBV_WC_SEND)
			completed++;
		else if (check_message(p, received++, &wc))
			return -1;
	}
	return 0;
}

/* The opening of all other modes: afterwards the active side knows the passive one's memory. */
static int tell_memory(struct peer *p, struct ctl *remote)
{
	const struct options *o = &p->opt;
	bool keep = o->mode == MODE_WRITE || o->mode == MODE_READ || o->active;
	struct ibv_wc wc;

	if (o->active)
		return (!o->server && send_ctl(p, 0, 0, o->size)) || recv_ctl(p, remote, keep) ? -1
											       : 0;
	if (o->server && recv_ctl(p, remote, keep))
		return -1;
	return send_ctl(p, (uintptr_t)p->data, p->data_mr->rkey, o->size) ||
	       collect(p, IBV_WC_SEND, 1, &wc);
}

static int rdma_round(struct peer *p, const struct ctl *remote, uint32_t len)
{
	bool read = p->opt.mode == MODE_READ;
	uint32_t step = (len + p->opt.wrs - 1) / p->opt.wrs, posted = 0;
	struct ibv_wc wc;

	for (uint32_t off = 0; off < len; off += step, posted++) {
		uint32_t n = len - off < step ? len - off : step;

		if (post_rdma(p, read ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, off, n,
			      remote->a + off, remote->b))
			return -1;
	}
	return collect(p, read ? IBV_WC_RDMA_READ : IBV_WC_RDMA_WRITE, posted, &wc);
}

static int bulk_active(struct peer *p, const struct ctl *remote)
{
	uint64_t left = p->opt.total, r = 0;
	struct ctl answer;

	for (; left; r++) {
		uint32_t len = left < remote->c ? left : remote->c;

		if (len > p->opt.size)
			len = p->opt.size;
		if (p->opt.mode == MODE_WRITE) {
			fill(p->data, r, len, 0);
			if (rdma_round(p, remote, len))
				return -1;
		}
		if (send_ctl(p, r, 0, len) || recv_ctl(p, &answer, true))
			return -1;
		if (answer.a != r || answer.b != 1 || answer.c != len)
			p->bad++;
		if (p->opt.mode == MODE_READ) {
			memset(p->data, 0, len);
			if (rdma_round(p, remote, len))
				return -1;
			p->bad += !intact(p->data, r, len, 0);
		}
		left -= len;
		p->bytes += len;
		p->messages++;
	}
	if (send_ctl(p, r, p->bad, 0) || recv_ctl(p, &answer, true))
		return -1;
	p->bad += answer.b;
	return 0;
}

static int bulk_passive(struct peer *p)
{
	struct ibv_wc wc;
	struct ctl msg;
	bool ok = true;

	for (;;) {
		if (recv_ctl(p, &msg, true))
			return -1;
		if (!msg.c)
			break;
		if (msg.c > p->opt.size)
			return -1;
		if (p->opt.mode == MODE_WRITE)
			ok = intact(p->data, msg.a, msg.c, 0);
		else
			fill(p->data, msg.a, msg.c, 0);
		p->bad += !ok;
		p->bytes += msg.c;
		p->messages++;
		if (send_ctl(p, msg.a, ok, msg.c))
			return -1;
	}
	/* Who disconnects with a Send in its queue takes that back. */
	return send_ctl(p, msg.a, p->bad, 0) || collect(p, IBV_WC_SEND, p->ctl_out, &wc);
}

/* The one bad deed. What comes of it shows in the lines printed by finish(). */
static int misbehave(struct peer *p, const struct ctl *remote)
{
	uint64_t past_end = remote->a + remote->c - 8;

	switch (p->opt.mode) {
	case MODE_BAD_WRITE_KEY:
		return post_rdma(p, IBV_WR_RDMA_WRITE, 0, 16, remote->a, remote->b ^ BAD_KEY_FLIP);
	case MODE_BAD_WRITE_BOUNDS:
		return post_rdma(p, IBV_WR_RDMA_WRITE, 0, 16, past_end, remote->b);
	case MODE_BAD_WRITE_ACCESS:
		return post_rdma(p, IBV_WR_RDMA_WRITE, 0, 16, remote->a, remote->b);
	case MODE_BAD_READ_KEY:
		return post_rdma(p, IBV_WR_RDMA_READ, 0, 16, remote->a, remote->b ^ BAD_KEY_FLIP);
	case MODE_BAD_READ_BOUNDS:
		return post_rdma(p, IBV_WR_RDMA_READ, 0, 16, past_end, remote->b);
	case MODE_BAD_READ_ACCESS:
		return post_rdma(p, IBV_WR_RDMA_READ, 0, 16, remote->a, remote->b);
	case MODE_SEND_NO_RECV: return send_ctl(p, 0, 0, 0);
	case MODE_SEND_TOO_LONG: return post_send(p, 0, TOO_LONG);
	default: return 0;
	}
}

int xfer_run(struct peer *p)
{
	struct ctl remote = { 0 };

	switch (p->opt.mode) {
	case MODE_CONNECT:
	case MODE_REJECT: return 0;
	case MODE_SEND: return run_send(p);
	default:
		if (tell_memory(p, &remote))
			return -1;
		p->remote = remote.a;
		p->remote_key = remote.b;
		break;
	}
	if (p->opt.mode == MODE_WRITE || p->opt.mode == MODE_READ)
		return p->opt.active ? bulk_active(p, &remote) : bulk_passive(p);
	if (!p->opt.active)
		return 0;
	p->opt.closing = CLOSE_WAIT; /* the peer shall end it */
	return misbehave(p, &remote);
}

int xfer_send_something(struct peer *p)
{
	return send_ctl(p, 0, 0, 0);
}

int xfer_bad_write(struct peer *p)
{
	return post_rdma(p, IBV_WR_RDMA_WRITE, 0, 16, p->remote, p->remote_key ^ BAD_KEY_FLIP);
}
