/* SPDX-License-Identifier: MIT */
/* Arguments that make no sense, and requests that end a connection. See api.h. */
#include "api.h"

#include <netinet/in.h>

/* Refused, with this. */
#define REFUSED(error, expr)                                                    \
	do {                                                                    \
		errno = 0;                                                      \
		if (CALL(expr))                                                 \
			fail("%s:%d: %s succeeded", __FILE__, __LINE__, #expr); \
		if (errno != (error))                                           \
			may_fail_with(#expr " (wants " #error ")", 0);          \
	} while (0)

static void odd_post(struct link *l)
{
	struct end *e = &l->ends[draw(2)];
	struct flue_qp *qp = atomic_load(&e->qp);
	struct flue_sge sge[4] = { flue_mr_sge(e->mr, 0, 8) };
	struct flue_send_wr wr = { .op = FLUE_WR_SEND, .sg = sge, .n_sg = 1 };
	struct flue_recv_wr recv = { .sg = sge, .n_sg = 1000 };
	const struct flue_send_wr *bad = NULL;
	const struct flue_recv_wr *bad_recv = NULL;

	switch (draw(4)) {
	case 0: wr.op = FLUE_WR_NOPS + draw(1000); break;
	case 1: wr.n_sg = 4 + draw(1000000); break;
	case 2: wr.flags = 1u << (5 + draw(27)); break;
	case 3:
		wr.flags = FLUE_INLINE;
		sge[0].length = 257 + draw(1000000);
		break;
	}
	errno = 0;
	must(!CALL(qp->ops->post_send(qp, &wr, &bad)));
	if (errno != EINVAL && !(errno == ENOTCONN && atomic_load(&l->spoilt)))
		may_fail_with("odd post_send", ENOMEM, 0);
	must(bad == &wr);
	errno = 0;
	must(!CALL(qp->ops->post_recv(qp, &recv, &bad_recv)));
	if (errno != EINVAL && !(errno == ENOTCONN && atomic_load(&l->spoilt)))
		may_fail_with("odd post_recv", ENOMEM, 0);
	must(bad_recv == &recv);
}

static void odd_values(struct flue_qp *qp)
{
	struct flue_qp_values v = FLUE_ATTR(struct flue_qp_values);

	must(CALL(qp->ops->query(qp, &v, FLUE_QPV_STATE | FLUE_QPV_WORK | FLUE_QPV_ACCESS)));
	must(v.state < FLUE_QP_NSTATES && v.sends <= qp->sq_depth);
	/* It may do what it may: nothing changes. */
	must(CALL(qp->ops->modify(qp, &v, FLUE_QPV_ACCESS)));
	REFUSED(EINVAL, qp->ops->modify(qp, &v, 0));
	REFUSED(EINVAL, qp->ops->query(qp, &v, 1u << 31));
	REFUSED(EOPNOTSUPP, qp->ops->query(qp, &v, FLUE_QPV_QKEY));
	REFUSED(EOPNOTSUPP, qp->ops->modify(qp, &v, FLUE_QPV_MTU));
	v.state = FLUE_QP_SQE; /* nobody goes there by itself */
	REFUSED(EINVAL, qp->ops->modify(qp, &v, FLUE_QPV_STATE));
}

static void odd_qp(struct link *l)
{
	struct flue_qp *qp = atomic_load(&l->ends[draw(2)].qp);
	struct flue_conn_attr attr = FLUE_ATTR(struct flue_conn_attr);
	struct flue_switch_attr how = FLUE_ATTR(struct flue_switch_attr);

	odd_values(qp);
	REFUSED(EINVAL, qp->ops->start(qp));
	REFUSED(EINVAL, qp->ops->connect(qp, &attr));
	REFUSED(EINVAL, qp->ops->connect(qp, NULL));
	how.flags = 1u << 30;
	errno = 0;
	must(!CALL(flue_socket_convert(qp, -1, &how)));
	must(!CALL(flue_socket_convert(qp, -1, NULL)));
	if (CALL(qp->ops->reset(qp)))
		must(atomic_load(&l->spoilt));
	else if (errno != EBUSY)
		may_fail_with("reset", 0);
}

static void odd_cq(struct house *h)
{
	struct flue_adapter *a = h->adapter;
	struct flue_cq_attr attr = FLUE_ATTR(struct flue_cq_attr);
	struct cqx *x = &h->cqs[draw(CQS)];
	uint32_t got = 7;

	REFUSED(EINVAL, a->ops->create_cq(a, &attr));
	REFUSED(EINVAL, a->ops->create_cq(a, NULL));
	attr.depth = 1;
	attr.flags = 1u << 31;
	REFUSED(EINVAL, a->ops->create_cq(a, &attr));
	attr.depth = attr.flags = 0;
	attr.depth = UINT32_MAX;
	REFUSED(EINVAL, a->ops->create_cq(a, &attr));
	attr.depth = 4;
	attr.cpu_plus_1 = 100000;
	REFUSED(EINVAL, a->ops->create_cq(a, &attr));
	if (!slot_hold(&x->slot))
		return;
	REFUSED(EINVAL, x->cq->ops->resize(x->cq, 0));
	REFUSED(EINVAL, x->cq->ops->resize(x->cq, UINT32_MAX));
	if (CALL(flue_poll(x->cq, NULL, 0, &got)))
		must(got == 0);
	undo_run();
}

static void odd_memory(struct house *h)
{
	struct pdx *x = &h->pds[draw(PDS)];
	struct flue_qp_attr qp = FLUE_ATTR(struct flue_qp_attr);
	struct flue_srq_attr srq = FLUE_ATTR(struct flue_srq_attr);
	static uint8_t octets[16];

	if (!slot_hold(&x->slot))
		return;
	REFUSED(EINVAL, flue_register(x->pd, octets, 0, 0));
	REFUSED(EINVAL, flue_register(x->pd, octets, 16, FLUE_REMOTE_WRITE));
	REFUSED(EINVAL, flue_register(x->pd, octets, 16, 1u << 31));
	REFUSED(EINVAL, flue_register(x->pd, octets, SIZE_MAX - 8, 0));
	REFUSED(EINVAL, x->pd->ops->register_mr(x->pd, NULL));
	qp.sq_depth = 4;
	REFUSED(EINVAL, x->pd->ops->create_qp(x->pd, &qp));
	REFUSED(EINVAL, x->pd->ops->create_qp(x->pd, NULL));
	REFUSED(EINVAL, x->pd->ops->create_srq(x->pd, &srq));
	srq.depth = UINT32_MAX;
	REFUSED(EINVAL, x->pd->ops->create_srq(x->pd, &srq));
	undo_run();
}

/* Objects of two adapters do not go together. */
static void odd_mixture(struct link *l)
{
	struct end *a = &l->ends[0], *b = &l->ends[1];
	struct flue_qp_attr qp = FLUE_ATTR(struct flue_qp_attr);

	if (a->house == b->house)
		return;
	qp.sq_depth = qp.rq_depth = 4;
	qp.send_cq = a->scq->cq;
	qp.recv_cq = b->rcq->cq;
	REFUSED(EINVAL, a->pdx->pd->ops->create_qp(a->pdx->pd, &qp));
	qp.send_cq = b->scq->cq;
	REFUSED(EINVAL, a->pdx->pd->ops->create_qp(a->pdx->pd, &qp));
}

static void odd_open(void)
{
	struct flue_open_attr attr = FLUE_ATTR(struct flue_open_attr);
	const int cpus[] = { 0, -5 };

	attr.provider = "none of that name";
	REFUSED(ENOENT, flue_open(&attr));
	attr.provider = draw(2) ? NULL : "soft";
	attr.name = "flue77";
	REFUSED(ENODEV, flue_open(&attr));
	attr.provider = attr.name = NULL;
	attr.balance = 77;
	REFUSED(EINVAL, flue_open(&attr));
	attr.balance = 0;
	attr.cpus = cpus;
	attr.n_cpus = 2;
	REFUSED(EINVAL, flue_open(&attr));
	attr.size = 1;
	REFUSED(EINVAL, flue_open(&attr));
}

static void odd_house(struct house *h)
{
	struct flue_adapter *a = h->adapter;
	struct flue_listen_attr listen = FLUE_ATTR(struct flue_listen_attr);
	struct sockaddr_in in = { .sin_family = AF_INET };
	struct flue_listener *l;

	REFUSED(EINVAL, a->ops->listen(a, &listen));
	in.sin_addr.s_addr = htonl(0xc0000201); /* 192.0.2.1: an example in books */
	listen.local = (struct sockaddr *)&in;
	listen.local_len = 3;
	REFUSED(EINVAL, a->ops->listen(a, &listen));
	listen.local_len = sizeof(in);
	l = a->ops->listen(a, &listen);
	if (l)
		must(l->ops->destroy(l));
	REFUSED(EBADF, flue_socket_open(a, 1 << 20, NULL));
	REFUSED(ENOTSOCK, flue_socket_open(a, 0, NULL));
}

void op_odd(void)
{
	struct link *l = link_hold();
	struct house *h;

	if (l) {
		switch (draw(3)) {
		case 0: odd_post(l); break;
		case 1: odd_qp(l); break;
		case 2: odd_mixture(l); break;
		}
		undo_run();
	}
	h = house_hold();
	if (!h)
		return;
	switch (draw(4)) {
	case 0: odd_cq(h); break;
	case 1: odd_memory(h); break;
	case 2: odd_open(); break;
	case 3: odd_house(h); break;
	}
	undo_run();
}

/* An object with children stays, whoever uses them meanwhile. */
void op_busy(void)
{
	struct link *l = link_hold();
	struct end *e;

	if (!l)
		return;
	e = &l->ends[draw(2)];
	switch (draw(5)) {
	case 0: REFUSED(EBUSY, flue_destroy_cq(e->scq->cq)); break;
	case 1: REFUSED(EBUSY, flue_destroy_cq(e->rcq->cq)); break;
	case 2: REFUSED(EBUSY, flue_destroy_pd(e->pdx->pd)); break;
	case 3: REFUSED(EBUSY, flue_close(e->house->adapter)); break;
	case 4:
		if (e->srqx)
			REFUSED(EBUSY, e->srqx->srq->ops->destroy(e->srqx->srq));
		if (l->socket)
			REFUSED(EBUSY, flue_destroy_qp(l->ends[1].qp));
		break;
	}
	undo_run();
}

/* Requests that cannot be done: they fail, and the connection ends. */
void op_spoil(void)
{
	struct link *l = link_hold();
	struct flue_send_wr wr = { .op = FLUE_WR_READ, .n_sg = 1 };
	struct flue_sge sge;
	struct end *e, *peer;
	struct flue_mr *mr;

	if (!l)
		return;
	e = &l->ends[draw(2)];
	peer = &l->ends[!e->side];
	link_spoil(l);
	sge = flue_mr_sge(e->mr, 0, 16);
	wr.sg = &sge;
	wr.rkey = peer->mr->rkey;
	wr.remote_addr = peer->mr->remote_start + END_MEMORY - LIBRARY;
	switch (draw(6)) {
	case 0: wr.rkey ^= 1; break;
	case 1: wr.remote_addr = peer->mr->remote_end - 8; break;
	case 2: sge.lkey ^= 0x10; break;
	case 3: sge.addr = e->mr->remote_end - 8; break;
	case 4:
		wr.op = FLUE_WR_LOCAL_INV;
		wr.rkey = 0xdead;
		wr.n_sg = 0;
		break;
	case 5:
		/* Gone before it is used, or while. */
		mr = flue_register(e->pdx->pd, e->memory, 64, FLUE_LOCAL_WRITE);
		if (mr) {
			sge = flue_mr_sge(mr, 0, 16);
			must(flue_deregister(mr));
		} else {
			sge.lkey = 0;
		}
		break;
	}
	post_local(e, REC_BAD, &wr, NULL);
	undo_run();
}
