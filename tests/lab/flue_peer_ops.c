/* SPDX-License-Identifier: MIT */
/* Memory, queues and single requests of flue_peer. */
#include <stdlib.h>
#include <string.h>

#include "flue_peer.h"

#define TOO_LONG 4096

static struct flue_mr *make_buffer(struct peer *p, uint8_t **buf, size_t len, uint32_t access)
{
	*buf = calloc(1, len);
	return *buf ? flue_register(p->pd, *buf, len, access) : NULL;
}

static uint32_t data_access(const struct options *o)
{
	uint32_t access = FLUE_LOCAL_WRITE | FLUE_REMOTE_WRITE | FLUE_REMOTE_READ;

	if (!o->active && !strcmp(o->mode, "bad-write-access"))
		access &= ~(uint32_t)FLUE_REMOTE_WRITE;
	if (!o->active && !strcmp(o->mode, "bad-read-access"))
		access &= ~(uint32_t)FLUE_REMOTE_READ;
	return access;
}

static bool make_objects(struct peer *p)
{
	struct flue_open_attr oa = FLUE_ATTR(struct flue_open_attr);
	struct flue_qp_attr qa = FLUE_ATTR(struct flue_qp_attr);
	uint32_t depth = 2 * p->slots + p->opt.wrs + 8;

	p->adapter = flue_open(&oa);
	if (!p->adapter)
		return false;
	p->pd = flue_create_pd(p->adapter);
	p->cq = flue_create_cq(p->adapter, 2 * depth);
	if (!p->pd || !p->cq)
		return false;
	qa.send_cq = qa.recv_cq = p->cq;
	if (p->opt.recv_cq)
		qa.recv_cq = p->recv_cq = flue_create_cq(p->adapter, p->opt.recv_cq);
	if (!qa.recv_cq)
		return false;
	qa.sq_depth = qa.rq_depth = depth;
	qa.flags = FLUE_QP_SIGNAL_ALL;
	p->qp = p->pd->ops->create_qp(p->pd, &qa);
	return p->qp != NULL;
}

bool ops_setup(struct peer *p, uint32_t recvs)
{
	const struct options *o = &p->opt;
	const struct genuine *g = genuine_find(o->mode);
	bool long_messages = !strcmp(o->mode, "send") || (g && !g->recv_size);

	p->slots = long_messages ? (g ? o->count : o->window) : 2;
	p->slot_size = long_messages && o->size > CTL_LEN ? o->size : CTL_LEN;
	if (!make_objects(p))
		return peer_failed("objects");
	p->recv_mr = make_buffer(p, &p->recv_buf, (size_t)p->slots * p->slot_size,
				 FLUE_LOCAL_WRITE);
	p->send_mr = make_buffer(p, &p->send_buf, (size_t)p->slots * p->slot_size + TOO_LONG,
				 FLUE_LOCAL_WRITE);
	/* rping has source and sink there. */
	p->data_mr = make_buffer(p, &p->data, (g ? 2 : 1) * (size_t)o->size, data_access(o));
	if (!p->recv_mr || !p->send_mr || !p->data_mr)
		return peer_failed("memory");
	if (g)
		recvs = p->slots;
	for (uint32_t i = 0; i < recvs; i++) {
		if (!ops_recv(p, i))
			return false;
	}
	return true;
}

bool ops_recv(struct peer *p, uint32_t slot)
{
	struct flue_sge sge = flue_mr_sge(p->recv_mr, (size_t)slot * p->slot_size, p->slot_size);
	struct flue_recv_wr wr = { .id = ID(FLUE_WC_RECV, slot), .sg = &sge, .n_sg = 1 };

	return flue_post_recv(p->qp, &wr) || peer_failed("post_recv");
}

bool ops_send(struct peer *p, uint32_t slot, uint32_t len)
{
	struct flue_sge sge = flue_mr_sge(p->send_mr, (size_t)slot * p->slot_size, len);
	struct flue_send_wr wr = {
		.id = ID(FLUE_WC_SEND, slot), .op = FLUE_WR_SEND, .sg = &sge, .n_sg = 1
	};

	return flue_post_send(p->qp, &wr) || peer_failed("post_send");
}

bool ops_rdma(struct peer *p, uint32_t op, uint32_t offset, uint32_t len, uint64_t remote,
	      uint32_t rkey)
{
	struct flue_sge sge = flue_mr_sge(p->data_mr, offset, len);
	uint32_t wc_op = op == FLUE_WR_READ ? FLUE_WC_READ : FLUE_WC_WRITE;
	struct flue_send_wr wr = { .id = ID(wc_op, 0),
				   .op = op,
				   .sg = &sge,
				   .n_sg = 1,
				   .remote_addr = remote,
				   .rkey = rkey };

	return flue_post_send(p->qp, &wr) || peer_failed("post_send");
}

bool ops_collect(struct peer *p, uint32_t op, uint32_t n, struct flue_wc *wc)
{
	while (n) {
		if (peer_wait(p, wc) != GOT_WC || wc->status != FLUE_WC_SUCCESS)
			return false;
		p->ctl_out -= ID_OP(wc->id) == FLUE_WC_SEND && p->ctl_out > 0;
		if (ID_OP(wc->id) == op)
			n--;
	}
	return true;
}

static void put_be(uint8_t *p, uint64_t v, int n)
{
	while (n--) {
		p[n] = (uint8_t)v;
		v >>= 8;
	}
}

static uint64_t get_be(const uint8_t *p, int n)
{
	uint64_t v = 0;

	for (int i = 0; i < n; i++)
		v = v << 8 | p[i];
	return v;
}

bool ops_send_ctl(struct peer *p, uint64_t a, uint32_t b, uint32_t c)
{
	put_be(p->send_buf, a, 8);
	put_be(p->send_buf + 8, b, 4);
	put_be(p->send_buf + 12, c, 4);
	if (!ops_send(p, 0, CTL_LEN))
		return false;
	p->ctl_out++;
	return true;
}

bool ops_recv_ctl(struct peer *p, struct ctl *msg, bool repost)
{
	const uint8_t *b;
	struct flue_wc wc;
	uint32_t slot;

	if (!ops_collect(p, FLUE_WC_RECV, 1, &wc) || wc.byte_len != CTL_LEN)
		return false;
	slot = ID_SLOT(wc.id);
	b = p->recv_buf + slot * p->slot_size;
	*msg = (struct ctl) { get_be(b, 8), (uint32_t)get_be(b + 8, 4),
			      (uint32_t)get_be(b + 12, 4) };
	return !repost || ops_recv(p, slot);
}
