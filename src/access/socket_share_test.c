/* SPDX-License-Identifier: MIT */
/*
 * What RDMA sockets reserve and share (CH-5, CH-7, CH-8), their requests and keys (CH-6, CH-16,
 * CH-28), and control clients (CH-27).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#include "access/fake_priv.h"
#include "access/socket_priv.h"

#define MANY 40

static struct flue_adapter *a;
static struct flue_socket *s;
static struct {
	struct flue_socket *socket;
	int fd[2];
} all[MANY]; /* [0]: s */

static struct flue_socket *open_one(unsigned i)
{
	fake_streams(all[i].fd);
	all[i].socket = flue_socket_open(a, all[i].fd[0], NULL);
	assert_non_null(all[i].socket);
	return all[i].socket;
}

static void drop_one(unsigned i)
{
	struct flue_socket *one = all[i].socket;
	bool ours = one && one->state == FLUE_SOCKET_STREAMING;

	if (!one)
		return;
	assert_true(one->ops->destroy(one));
	if (ours)
		close(all[i].fd[0]);
	close(all[i].fd[1]);
	all[i].socket = NULL;
}

static int open_socket(void **state)
{
	fake_reset();
	a = fake_open(NULL, 0);
	s = open_one(0);
	return 0;
}

static int close_sockets(void **state)
{
	for (unsigned i = 0; i < MANY; i++)
		drop_one(i);
	return !flue_close(a) || fake.qps || fake.cqs || fake.mrs || fake.pds;
}

static struct prov_qp *prov(struct flue_socket *of)
{
	return to_qp(of->qp)->prov;
}

static void expect(uint32_t type, uint64_t id, int error, struct flue_socket_event *out)
{
	struct flue_socket_event ev;

	if (!flue_socket_get_event(s, &ev, 5000))
		fail_msg("no event, want %u: %s", type, strerror(errno));
	assert_int_equal(ev.type, type);
	assert_int_equal(ev.error, error);
	assert_int_equal(ev.id, id);
	if (out)
		*out = ev;
}

static void expect_none(void)
{
	struct flue_socket_event ev;

	assert_fails(flue_socket_get_event(s, &ev, 0), EAGAIN);
}

/* ---- reserving (CH-7) ---- */

static void reserve_grants_defaults_and_wishes(void **state)
{
	struct flue_reserve_attr r = FLUE_ATTR(struct flue_reserve_attr);

	assert_true(s->ops->reserve(s, &r));
	assert_int_equal(r.reason, FLUE_RESERVE_OK);
	assert_int_equal(s->offload_state, FLUE_OFFLOAD_READY);
	assert_true(s->ird == 16 && s->ord == 16 && s->sq_depth == 16 && s->rq_depth == 16);
	assert_true(r.ird == 16 && r.ord == 16 && r.sq_depth == 16 && r.rq_depth == 16);
	/* A request of the program may need two in front of it. */
	assert_int_equal(prov(s)->attr.sq_depth, 48);
	assert_int_equal(prov(s)->attr.rq_depth, 16);
	assert_ptr_equal(s->qp->pd, s->pd);
	/* Again, with other sizes. */
	r = FLUE_ATTR(struct flue_reserve_attr);
	r.ird = 3;
	r.ord = 4;
	r.sq_depth = 5;
	r.rq_depth = 6;
	assert_true(s->ops->reserve(s, &r));
	assert_true(s->ird == 3 && s->ord == 4 && s->sq_depth == 5 && s->rq_depth == 6);
	assert_int_equal(prov(s)->attr.rq_depth, 6);
	assert_int_equal(fake.qps, 1);
	assert_int_equal(fake.mrs, 11);
	assert_int_equal(fake.pds, 1);
}

static void check_refused(struct flue_reserve_attr *r, uint32_t reason, bool recoverable)
{
	assert_fails(s->ops->reserve(s, r), recoverable ? ENOBUFS : EIO);
	assert_string_equal(flue_reserve_reason_name(r->reason), flue_reserve_reason_name(reason));
	assert_int_equal(r->recoverable, recoverable);
	assert_int_equal(s->offload_state, FLUE_OFFLOAD_NOT_READY);
}

static void reserve_tells_why_it_failed_and_can_be_tried_again(void **state)
{
	struct flue_reserve_attr good = FLUE_ATTR(struct flue_reserve_attr), r;

#define REFUSED(field, value, reason, recoverable) \
	r = good;                                  \
	r.field = value;                           \
	check_refused(&r, reason, recoverable)
	REFUSED(sq_depth, 342, FLUE_RESERVE_QUEUE_TOO_LONG, true);
	REFUSED(rq_depth, 1025, FLUE_RESERVE_QUEUE_TOO_LONG, true);
	REFUSED(ird, 33, FLUE_RESERVE_READS_TOO_MANY, true);
	REFUSED(ord, 33, FLUE_RESERVE_READS_TOO_MANY, true);
	fake.rc.cq = -ENOMEM;
	REFUSED(ird, 1, FLUE_RESERVE_CQ_FULL, true);
	fake.rc.cq = 0;
	fake.rc.qp = -ENOMEM;
	REFUSED(ird, 1, FLUE_RESERVE_NO_QP, false);
	fake.rc.qp = 0;
	for (unsigned left = 1; left < 33; left += 8) {
		fake.mrs_left = left;
		REFUSED(ird, 1, FLUE_RESERVE_NO_QP, false);
		fake.mrs_left = 0;
		assert_int_equal(fake.mrs, 0);
		assert_int_equal(fake.qps, 0);
		assert_int_equal(fake.cqs, 0);
	}
#undef REFUSED
	r = good;
	r.size = 8;
	assert_fails(s->ops->reserve(s, &r), EINVAL);
	assert_fails(s->ops->reserve(s, NULL), EINVAL);
	r = good;
	assert_true(s->ops->reserve(s, &r));
	assert_int_equal(s->offload_state, FLUE_OFFLOAD_READY);
}

/* Beyond recovery is only what fails at the smallest size, too. */
static void reserve_tries_less_before_it_gives_up(void **state)
{
	struct flue_reserve_attr r = FLUE_ATTR(struct flue_reserve_attr);

	fake.qp_most = 10;
	check_refused(&r, FLUE_RESERVE_QUEUE_TOO_LONG, true);
	assert_true(fake.qps == 0 && fake.cqs == 0 && fake.mrs == 0);
	assert_true(s->sq_depth == 0 && s->rq_depth == 0);
	r = FLUE_ATTR(struct flue_reserve_attr);
	r.sq_depth = 2;
	r.rq_depth = 4;
	assert_true(s->ops->reserve(s, &r));
	assert_true(s->sq_depth == 2 && s->rq_depth == 4);
	fake.qp_most = 3; /* one send with two in front of it, and a receive, are four */
	r = FLUE_ATTR(struct flue_reserve_attr);
	check_refused(&r, FLUE_RESERVE_NO_QP, false);
	r = FLUE_ATTR(struct flue_reserve_attr);
	r.sq_depth = r.rq_depth = 1;
	check_refused(&r, FLUE_RESERVE_NO_QP, false);
	fake.qp_most = 0;
}

static void reserve_says_that_the_adapter_is_no_rnic(void **state)
{
	struct flue_reserve_attr r = FLUE_ATTR(struct flue_reserve_attr);
	struct flue_socket *one;
	struct flue_adapter *other;
	int fd[2];

	fake.no_adopt = true;
	other = fake_open(NULL, 0);
	fake_streams(fd);
	one = flue_socket_open(other, fd[0], NULL);
	assert_non_null(one);
	assert_fails(one->ops->reserve(one, &r), EIO);
	assert_int_equal(r.reason, FLUE_RESERVE_NO_ADOPT);
	assert_false(r.recoverable);
	assert_int_equal(one->offload_state, FLUE_OFFLOAD_NOT_READY);
	/* Streaming goes on. */
	assert_true(one->ops->send(one, "x", 1, 1));
	assert_true(one->ops->destroy(one));
	assert_true(flue_close(other));
	fake.no_adopt = false;
	close(fd[0]);
	close(fd[1]);
}

static void reserve_without_protection_domain_says_so(void **state)
{
	struct flue_reserve_attr r = FLUE_ATTR(struct flue_reserve_attr);

	fake.rc.pd = -ENOMEM;
	check_refused(&r, FLUE_RESERVE_NO_PD, false);
	fake.rc.pd = 0;
}

static void reserve_notices_that_the_connection_is_gone(void **state)
{
	struct flue_reserve_attr r = FLUE_ATTR(struct flue_reserve_attr);
	struct linger now = { .l_onoff = 1 };

	setsockopt(all[0].fd[1], SOL_SOCKET, SO_LINGER, &now, sizeof(now));
	close(all[0].fd[1]);
	all[0].fd[1] = -1;
	for (unsigned i = 0;
	     i < 2000 && recv(s->fd, &r, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN; i++)
		usleep(1000);
	check_refused(&r, FLUE_RESERVE_LOST, false);
}

/* ---- completion queues are shared (CH-5) ---- */

static void completion_queues_are_shared_by_sixteen(void **state)
{
	for (unsigned i = 0; i < MANY; i++) {
		struct flue_socket *one = i ? open_one(i) : s;

		assert_true(fake_socket_to(one, FLUE_OFFLOAD_READY));
		assert_int_equal(fake.made_cqs, i / 16 + 1);
		assert_ptr_equal(one->qp->recv_cq, all[i / 16 * 16].socket->qp->recv_cq);
		assert_ptr_equal(one->qp->send_cq, one->qp->recv_cq);
	}
	/* Room for all that its sockets may have outstanding. */
	assert_true(all[0].socket->qp->recv_cq->depth >= 16 * 64);
	/* The first full one was grown from 64 to 1024: few resizes, for each disturbs all. */
	assert_int_equal(fake.resizes, 4 + 4 + 3);
	/* Places that are given back are taken again. */
	drop_one(3);
	drop_one(MANY - 1);
	assert_true(fake_socket_to(open_one(3), FLUE_OFFLOAD_READY));
	assert_int_equal(fake.made_cqs, 3);
	assert_ptr_equal(all[3].socket->qp->recv_cq, all[0].socket->qp->recv_cq);
	assert_int_equal(fake.resizes, 11);
}

/* "The queue pair is made first at the wanted size; then the queue is resized to fit." */
static void queue_pair_is_made_before_its_queue_is_grown(void **state)
{
	assert_true(fake_socket_to(s, FLUE_OFFLOAD_READY));
	assert_memory_equal(fake.order, "cq", 2);
	assert_true(fake_socket_to(open_one(1), FLUE_OFFLOAD_READY));
	assert_memory_equal(fake.order, "cqqr", 4);
	assert_int_equal(fake.n_order, 4);
}

static void new_queue_is_made_when_growing_fails(void **state)
{
	assert_true(fake_socket_to(s, FLUE_OFFLOAD_READY));
	fake.rc.resize_cq = -ENOMEM;
	assert_true(fake_socket_to(open_one(1), FLUE_OFFLOAD_READY));
	assert_memory_equal(fake.order, "cqqfcq", 6);
	assert_int_equal(fake.qps, 2);
	assert_int_equal(fake.cqs, 2);
	assert_ptr_not_equal(s->qp->recv_cq, all[1].socket->qp->recv_cq);
	/* Neither can be grown, nor made. */
	fake.rc.cq = -ENOMEM;
	assert_false(fake_socket_to(open_one(2), FLUE_OFFLOAD_READY));
	assert_int_equal(fake.qps, 2);
	assert_int_equal(all[2].socket->offload_state, FLUE_OFFLOAD_NOT_READY);
	fake.rc.cq = fake.rc.resize_cq = 0;
}

/* Never beyond what the adapter has: then it is another queue's turn. */
static void queue_is_not_grown_beyond_the_adapters_limit(void **state)
{
	struct flue_reserve_attr r = FLUE_ATTR(struct flue_reserve_attr);

	r.sq_depth = 200;
	r.rq_depth = 400; /* 1000 of 1024 */
	assert_true(s->ops->reserve(s, &r));
	assert_true(fake_socket_to(open_one(1), FLUE_OFFLOAD_READY));
	assert_int_equal(fake.made_cqs, 2);
	assert_int_equal(fake.resizes, 0);
	r = FLUE_ATTR(struct flue_reserve_attr);
	r.sq_depth = 4;
	r.rq_depth = 4;
	assert_true(open_one(2)->ops->reserve(all[2].socket, &r));
	assert_int_equal(fake.made_cqs, 2);
	assert_ptr_equal(all[2].socket->qp->recv_cq, s->qp->recv_cq);
	assert_true(s->qp->recv_cq->depth <= 1024);
}

static void reserving_again_keeps_the_count_of_promises(void **state)
{
	struct flue_reserve_attr r;

	assert_true(fake_socket_to(s, FLUE_OFFLOAD_READY));
	assert_true(fake_socket_to(open_one(1), FLUE_OFFLOAD_READY));
	for (unsigned i = 0; i < 50; i++) {
		r = FLUE_ATTR(struct flue_reserve_attr);
		assert_true(s->ops->reserve(s, &r));
	}
	assert_int_equal(fake.made_cqs, 1);
	assert_int_equal(fake.resizes, 1);
	assert_int_equal(to_socket(s)->cq->promised, 128);
	assert_int_equal(to_socket(s)->cq->users, 2);
}

static void queue_pair_that_cannot_be_made_leaves_nothing(void **state)
{
	fake.qp_from = 1;
	assert_false(fake_socket_to(s, FLUE_OFFLOAD_READY));
	assert_int_equal(fake.cqs, 0);
	fake.qp_from = 3; /* the second for a queue of its own */
	fake.rc.resize_cq = -ENOMEM;
	fake.made_qps = 0;
	assert_true(fake_socket_to(s, FLUE_OFFLOAD_READY));
	assert_false(fake_socket_to(open_one(1), FLUE_OFFLOAD_READY));
	assert_int_equal(fake.cqs, 1);
	assert_int_equal(fake.qps, 1);
	fake.rc.resize_cq = fake.qp_from = 0;
}

/* ---- related sockets ---- */

static void related_sockets_share_a_protection_domain(void **state)
{
	struct flue_reserve_attr r = FLUE_ATTR(struct flue_reserve_attr);
	struct flue_socket *b = open_one(1), *c = open_one(2);

	r.related = s; /* it has none yet */
	assert_false(b->ops->reserve(b, &r));
	assert_int_equal(r.reason, FLUE_RESERVE_NO_PD);
	assert_true(fake_socket_to(s, FLUE_OFFLOAD_READY));
	r = FLUE_ATTR(struct flue_reserve_attr);
	r.related = s;
	assert_true(b->ops->reserve(b, &r));
	assert_ptr_equal(b->pd, s->pd);
	assert_int_equal(fake.made_pds, 1);
	assert_true(fake_socket_to(c, FLUE_OFFLOAD_READY));
	assert_ptr_not_equal(c->pd, s->pd);
	/* The domain lives as long as one of them. */
	drop_one(0);
	assert_int_equal(fake.pds, 2);
	drop_one(1);
	assert_int_equal(fake.pds, 1);
}

static void related_socket_of_another_adapter_is_refused(void **state)
{
	struct flue_reserve_attr r = FLUE_ATTR(struct flue_reserve_attr);
	struct flue_adapter *other = fake_open(NULL, 0);
	struct flue_socket *b;
	int fd[2];

	fake_streams(fd);
	b = flue_socket_open(other, fd[0], NULL);
	assert_true(fake_socket_to(b, FLUE_OFFLOAD_READY));
	r.related = b;
	assert_fails(s->ops->reserve(s, &r), EINVAL);
	assert_true(b->ops->destroy(b));
	assert_true(flue_close(other));
	close(fd[0]);
	close(fd[1]);
}

/* Keys that the socket has made already would be of no use to its queue pair. */
static void related_socket_of_another_domain_is_refused(void **state)
{
	struct flue_reserve_attr r = FLUE_ATTR(struct flue_reserve_attr);
	struct flue_socket *b = open_one(1);
	struct flue_pd *own;

	assert_non_null(s->ops->alloc_stag(s));
	own = s->pd;
	assert_true(fake_socket_to(b, FLUE_OFFLOAD_READY));
	r.related = b;
	check_refused(&r, FLUE_RESERVE_NO_PD, false);
	assert_ptr_equal(s->pd, own);
	assert_int_equal(fake.made_qps, 1); /* b's */
	assert_true(fake_socket_to(s, FLUE_OFFLOAD_READY));
	assert_ptr_equal(s->qp->pd, own);
	/* Its own is no other. */
	r = FLUE_ATTR(struct flue_reserve_attr);
	r.related = s;
	assert_true(s->ops->reserve(s, &r));
	assert_int_equal(fake.pds, 2);
	drop_one(1);
	assert_int_equal(fake.pds, 1); /* the refusal holds nothing */
}

/* ---- Reads (CH-8) ---- */

static void read_resources_are_kept_until_the_switch(void **state)
{
	assert_true(s->ops->read_resources(s, 3, 5));
	assert_true(s->ird == 3 && s->ord == 5);
	assert_true(fake_socket_to(s, FLUE_OFFLOAD_READY));
	assert_true(s->ird == 3 && s->ord == 5);
	assert_fails(s->ops->read_resources(s, 33, 1), EINVAL);
	assert_fails(s->ops->read_resources(s, 1, 33), EINVAL);
	assert_true(s->ops->read_resources(s, 4, 6));
	assert_true(s->ird == 4 && s->ord == 6);
	assert_int_equal(prov(s)->values.ird, 0);
}

/* 0 is a value: a program that forbids Reads is not given sixteen. */
static void no_reads_at_all_can_be_wished(void **state)
{
	struct flue_reserve_attr r = FLUE_ATTR(struct flue_reserve_attr);
	static char first[8];

	assert_true(s->ops->read_resources(s, 0, 0));
	assert_true(s->ops->reserve(s, &r));
	assert_true(s->ird == 0 && s->ord == 0 && r.ird == 0 && r.ord == 0);
	/* A wish of its own is heard, and the other one stays. */
	r = FLUE_ATTR(struct flue_reserve_attr);
	r.ord = 3;
	assert_true(s->ops->reserve(s, &r));
	assert_true(s->ird == 0 && s->ord == 3);
	assert_true(fake_socket_to(s, FLUE_OFFLOAD_WAIT_FIRST_RECV));
	assert_true(s->ops->rdma_recv(s, first, 8, 2));
	assert_int_equal(prov(s)->conn.ird, 0);
	assert_int_equal(prov(s)->conn.ord, 3);
}

/* Allowed in Transition, so it has to have an effect. */
static void read_resources_after_the_switch_request_still_count(void **state)
{
	static char first[8];

	assert_true(fake_socket_to(s, FLUE_OFFLOAD_WAIT_FIRST_RECV));
	assert_true(s->ops->read_resources(s, 7, 9));
	assert_true(s->ops->rdma_recv(s, first, 8, 2));
	assert_int_equal(fake.adopts, 1);
	assert_int_equal(prov(s)->conn.ird, 7);
	assert_int_equal(prov(s)->conn.ord, 9);
}

/* Allowed there, too. The others are agreed upon already: it is changed behind that. */
static void read_resources_during_the_transfer_count_after_it(void **state)
{
	assert_true(fake_socket_to(s, FLUE_OFFLOAD_IN_PROGRESS));
	assert_true(s->ops->read_resources(s, 1, 1));
	assert_true(s->ops->read_resources(s, 8, 2));
	assert_int_equal(prov(s)->values.ird, 0);
	fake_news_with(s->qp, FLUE_EVENT_CONNECTED, 0, NULL, 0); /* 3 and 5 */
	expect(FLUE_SOCKET_SWITCHED, 1, 0, NULL);
	assert_true(prov(s)->values.ird == 8 && prov(s)->values.ord == 2);
	assert_true(s->ird == 8 && s->ord == 2);
	assert_true(s->qp->ird == 8 && s->qp->ord == 2);
}

static void read_resources_during_the_transfer_do_not_exceed_the_agreement(void **state)
{
	assert_true(fake_socket_to(s, FLUE_OFFLOAD_IN_PROGRESS));
	assert_true(s->ops->read_resources(s, 4, 6));
	fake_news_with(s->qp, FLUE_EVENT_CONNECTED, 0, NULL, 0); /* 3 and 5 */
	assert_true(s->ird == 4 && s->ord == 5);
}

/* Nobody asked: what was agreed upon is left alone. */
static void agreement_is_not_touched_without_a_wish(void **state)
{
	assert_true(s->ops->read_resources(s, 7, 9));
	assert_true(fake_socket_to(s, FLUE_OFFLOAD_DONE));
	assert_int_equal(prov(s)->values.ird, 0);
	assert_true(s->ird == 3 && s->ord == 5);
}

static void read_resources_of_a_live_connection_are_the_providers(void **state)
{
	static char to[100];

	assert_true(fake_socket_to(s, FLUE_OFFLOAD_DONE));
	assert_true(s->ops->read_resources(s, 8, 2));
	assert_true(prov(s)->values.ird == 8 && prov(s)->values.ord == 2);
	assert_true(s->ird == 8 && s->ord == 2);
	assert_true(s->ops->get(s, to, 100, 0, 1, 0, 5));
	assert_fails(s->ops->read_resources(s, 8, 3), EBUSY);
	assert_fails(s->ops->read_resources(s, 9, 2), EBUSY); /* the whole change is refused */
	assert_true(prov(s)->values.ird == 8 && s->ird == 8);
	fake_finish_send(s->qp, FLUE_WC_SUCCESS);
	assert_true(s->ops->read_resources(s, 9, 3));
	fake.rc.modify_qp = -EBUSY;
	assert_fails(s->ops->read_resources(s, 1, 3), EBUSY);
	assert_true(s->ird == 9 && s->ord == 3);
}

/* ---- requests (CH-16) and unsignaled ones of our own (CH-6) ---- */

static char data[4096];

static const struct fake_wr *sent(uint32_t i)
{
	return &prov(s)->sends[i];
}

static void small_messages_need_no_key(void **state)
{
	assert_true(fake_socket_to(s, FLUE_OFFLOAD_DONE));
	assert_true(s->ops->rdma_send(s, data, 64, FLUE_SOCKET_SOLICITED, 0, 5));
	assert_true(s->ops->put(s, data, 1, 99, 77, FLUE_SOCKET_FENCE, 6));
	assert_true(s->ops->rdma_send(s, NULL, 0, FLUE_SOCKET_INVALIDATE, 0x4200, 7));
	assert_int_equal(prov(s)->n_sends, 3);
	assert_int_equal(sent(0)->op, FLUE_WR_SEND);
	assert_int_equal(sent(0)->flags, FLUE_SIGNALED | FLUE_INLINE | FLUE_SOLICITED);
	assert_int_equal(sent(1)->op, FLUE_WR_WRITE);
	assert_int_equal(sent(1)->flags, FLUE_SIGNALED | FLUE_INLINE | FLUE_FENCE);
	assert_int_equal(sent(1)->rkey, 77);
	assert_int_equal(sent(2)->op, FLUE_WR_SEND_INV);
	assert_int_equal(sent(2)->rkey, 0x4200);
	assert_int_equal(sent(2)->n_sg, 0);
	for (unsigned i = 0; i < 3; i++)
		fake_finish_send(s->qp, FLUE_WC_SUCCESS);
	expect(FLUE_SOCKET_SWITCHED, 1, 0, NULL);
	expect(FLUE_SOCKET_RDMA_SENT, 5, 0, NULL);
	expect(FLUE_SOCKET_PUT, 6, 0, NULL);
	expect(FLUE_SOCKET_RDMA_SENT, 7, 0, NULL);
}

/* What the program fences is its request, not ours in front of it. */
static void fence_is_passed_on_for_every_request(void **state)
{
	uint32_t n = 0;

	assert_true(fake_socket_to(s, FLUE_OFFLOAD_DONE));
	for (unsigned fenced = 0; fenced < 2; fenced++) {
		uint32_t flags = fenced ? FLUE_SOCKET_FENCE : 0;

		assert_true(s->ops->get(s, data, 1000, 5, 6, flags, 1));
		assert_true(s->ops->put(s, data, 1000, 5, 6, flags, 2));
		assert_true(s->ops->rdma_send(s, data, 1000, flags, 0, 3));
		for (unsigned i = 0; i < 3; i++, n += 2) {
			assert_int_equal(sent(n)->op, FLUE_WR_FAST_REG);
			assert_int_equal(sent(n)->flags & FLUE_FENCE, 0);
			assert_int_equal(sent(n + 1)->flags & FLUE_FENCE, fenced ? FLUE_FENCE : 0);
		}
	}
	assert_int_equal(prov(s)->n_sends, n);
}

/* CH-6, CH-28: one completion for each request of the program, none for ours. */
static void keys_are_made_by_unsignaled_requests_in_front(void **state)
{
	uint32_t key, n = 0;
	struct flue_socket_event ev;

	assert_true(fake_socket_to(s, FLUE_OFFLOAD_DONE));
	expect(FLUE_SOCKET_SWITCHED, 1, 0, NULL);
	for (unsigned turn = 0; turn < 60; turn++) {
		bool again = turn >= 1; /* the same key comes first again */

		assert_true(s->ops->get(s, data, 1000, 5, 6, 0, turn));
		if (again) {
			assert_int_equal(sent(n)->op, FLUE_WR_LOCAL_INV);
			assert_int_equal(sent(n)->flags & FLUE_SIGNALED, 0);
			assert_int_equal(sent(n)->rkey, key);
			n++;
		}
		assert_int_equal(sent(n)->op, FLUE_WR_FAST_REG);
		assert_int_equal(sent(n)->flags & FLUE_SIGNALED, 0);
		if (again)
			assert_int_equal(sent(n)->rkey & ~0xffu, key & ~0xffu);
		key = (sent(n)->rkey & ~0xffu) | sent(n)->lkey;
		/* A new key for each use, so that a late use of the old one is noticed. */
		assert_int_equal(sent(n)->lkey, (uint8_t)(sent(n)->rkey + 1));
		n++;
		assert_int_equal(sent(n)->op, FLUE_WR_READ);
		assert_int_equal(sent(n)->flags & FLUE_SIGNALED, FLUE_SIGNALED);
		assert_int_equal(sent(n)->lkey, key & ~FAKE_RKEY);
		n++;
		assert_int_equal(prov(s)->n_sends, n);
		fake_finish_send(s->qp, FLUE_WC_SUCCESS);
		expect(FLUE_SOCKET_GOT, turn, 0, &ev);
		assert_int_equal(ev.length, 1000);
		expect_none();
	}
	assert_int_equal(fake.made_mrs, 32);
}

static void failure_in_front_is_the_requests_error(void **state)
{
	assert_true(fake_socket_to(s, FLUE_OFFLOAD_DONE));
	expect(FLUE_SOCKET_SWITCHED, 1, 0, NULL);
	assert_true(s->ops->put(s, data, 1000, 5, 6, 0, 7));
	assert_true(s->ops->rdma_send(s, data, 1000, 0, 0, 8));
	fake_finish_send(s->qp, FLUE_WC_BIND); /* register */
	expect_none();
	fake_flush(prov(s));
	expect(FLUE_SOCKET_PUT, 7, EFAULT, NULL);
	expect(FLUE_SOCKET_RDMA_SENT, 8, ECANCELED, NULL);
	expect(FLUE_SOCKET_RDMA_RECEIVED, 2, ECANCELED, NULL);
	expect_none();
}

static void failures_have_an_errno_each(void **state)
{
	static const struct {
		uint32_t status;
		int error;
	} want[] = {
		{ FLUE_WC_FLUSHED, ECANCELED },          { FLUE_WC_LOCAL_PROTECTION, EFAULT },
		{ FLUE_WC_LOCAL_LENGTH, EMSGSIZE },      { FLUE_WC_REMOTE_ACCESS, EACCES },
		{ FLUE_WC_REMOTE_OPERATION, EREMOTEIO }, { FLUE_WC_LOCAL_OPERATION, EIO },
	};
	struct flue_socket_event ev;

	assert_true(fake_socket_to(s, FLUE_OFFLOAD_DONE));
	expect(FLUE_SOCKET_SWITCHED, 1, 0, NULL);
	for (unsigned i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
		assert_true(s->ops->rdma_send(s, data, 10, 0, 0, i));
		fake_finish_send(s->qp, want[i].status);
		expect(FLUE_SOCKET_RDMA_SENT, i, want[i].error, &ev);
		assert_int_equal(ev.length, 0);
	}
}

static void requests_are_limited_by_what_was_reserved(void **state)
{
	struct flue_reserve_attr r = FLUE_ATTR(struct flue_reserve_attr);
	struct flue_switch_attr to = FLUE_ATTR(struct flue_switch_attr);

	r.sq_depth = 2;
	r.rq_depth = 1;
	assert_true(s->ops->reserve(s, &r));
	assert_true(s->ops->switch_mode(s, &to, 1));
	assert_true(s->ops->rdma_recv(s, data, 100, 2));
	assert_fails(s->ops->rdma_recv(s, data, 100, 3), ENOMEM);
	fake_news(s->qp, FLUE_EVENT_CONNECTED, 0, 0);
	assert_true(s->ops->put(s, data, 1000, 0, 1, 0, 4));
	assert_true(s->ops->put(s, data, 1000, 0, 1, 0, 5));
	assert_fails(s->ops->put(s, data, 1000, 0, 1, 0, 6), ENOMEM);
	fake_finish_send(s->qp, FLUE_WC_SUCCESS);
	/* Its place is free when its event was taken. */
	assert_fails(s->ops->put(s, data, 1000, 0, 1, 0, 6), ENOMEM);
	expect(FLUE_SOCKET_SWITCHED, 1, 0, NULL);
	expect(FLUE_SOCKET_PUT, 4, 0, NULL);
	assert_true(s->ops->put(s, data, 1000, 0, 1, 0, 6));
}

static void requests_that_cannot_be_posted_change_nothing(void **state)
{
	uint32_t key;

	assert_true(fake_socket_to(s, FLUE_OFFLOAD_DONE));
	expect(FLUE_SOCKET_SWITCHED, 1, 0, NULL);
	fake.rc.post_send = -ENOTCONN;
	for (unsigned i = 0; i < 40; i++)
		assert_fails(s->ops->get(s, data, 1000, 0, 1, 0, 3), ENOTCONN);
	assert_int_equal(to_socket(s)->gets, 0);
	fake.rc.post_send = 0;
	assert_true(s->ops->get(s, data, 1000, 0, 1, 0, 3));
	assert_int_equal(prov(s)->n_sends, 2); /* no invalidation of what was never made */
	key = sent(0)->rkey;
	assert_int_equal(key & 0xff, 0); /* as the provider made it */
	assert_int_equal(sent(1)->lkey, (key & ~(FAKE_RKEY | 0xff)) | (uint8_t)(key + 1));
	fake.rc.post_recv = -ENOMEM;
	for (unsigned i = 0; i < 40; i++)
		assert_fails(s->ops->rdma_recv(s, data, 1000, 3), ENOMEM);
	fake.rc.post_recv = 0;
	fake.rc.modify_mr = -ENOMEM;
	for (unsigned i = 0; i < 40; i++)
		assert_fails(s->ops->rdma_recv(s, data, 1000, 3), ENOMEM);
	fake.rc.modify_mr = 0;
	assert_true(s->ops->rdma_recv(s, data, 1000, 3));
	assert_fails(s->ops->rdma_send(s, NULL, 5, 0, 0, 1), EINVAL);
	assert_fails(s->ops->rdma_send(s, data, 5, 8, 0, 1), EINVAL);
	assert_fails(s->ops->put(s, data, 5, 0, 0, FLUE_SOCKET_SOLICITED, 1), EINVAL);
	assert_fails(s->ops->get(s, data, 5, 0, 0, FLUE_SOCKET_INVALIDATE, 1), EINVAL);
	assert_fails(s->ops->rdma_recv(s, data, (size_t)UINT32_MAX + 1, 1), EINVAL);
}

/* A first receive that fails has not begun the transfer. */
static void first_receive_that_fails_does_not_start_the_transfer(void **state)
{
	assert_true(fake_socket_to(s, FLUE_OFFLOAD_WAIT_FIRST_RECV));
	fake.rc.post_recv = -ENOMEM;
	assert_fails(s->ops->rdma_recv(s, data, 100, 3), ENOMEM);
	fake.rc.post_recv = 0;
	assert_int_equal(s->offload_state, FLUE_OFFLOAD_WAIT_FIRST_RECV);
	assert_int_equal(fake.adopts, 0);
	assert_true(s->ops->rdma_recv(s, data, 100, 3));
	assert_int_equal(fake.adopts, 1);
}

static void receive_tells_length_and_the_key_that_the_peer_invalidated(void **state)
{
	struct flue_socket_event ev;
	struct flue_wc wc = { .byte_len = 33, .flags = FLUE_WC_INVALIDATED, .inv_key = 0x1234 };

	assert_true(fake_socket_to(s, FLUE_OFFLOAD_DONE));
	wc.qp = s->qp;
	wc.id = prov(s)->recvs[0].id;
	fake_complete_wc(s->qp->recv_cq, &wc);
	expect(FLUE_SOCKET_SWITCHED, 1, 0, NULL);
	expect(FLUE_SOCKET_RDMA_RECEIVED, 2, 0, &ev);
	assert_int_equal(ev.length, 33);
	assert_int_equal(ev.inv_key, 0x1234);
}

/* ---- keys of the program ---- */

static void keys_of_the_program_are_made_mapped_and_given_back(void **state)
{
	struct flue_mr *mr = s->ops->alloc_stag(s), foreign = { 0 };
	uint32_t key;

	assert_non_null(mr);
	assert_true(fake.mr.revoked); /* not valid yet */
	assert_true(s->ops->map(s, mr, data, 100, FLUE_REMOTE_READ));
	assert_false(fake.mr.revoked);
	assert_ptr_equal(fake.mr.addr, data);
	assert_int_equal(fake.mr.length, 100);
	key = mr->rkey;
	assert_true(s->ops->map(s, mr, data + 1, 50, FLUE_LOCAL_WRITE | FLUE_REMOTE_WRITE));
	assert_int_not_equal(mr->rkey, key);
	assert_fails(s->ops->map(s, &foreign, data, 1, 0), EINVAL);
	assert_fails(s->ops->free_stag(s, &foreign), EINVAL);
	assert_fails(s->ops->map(s, mr, data, 0, 0), EINVAL);
	fake.rc.deregister_mr = -EBUSY;
	assert_fails(s->ops->free_stag(s, mr), EBUSY);
	fake.rc.deregister_mr = 0;
	assert_true(s->ops->free_stag(s, mr));
	assert_fails(s->ops->free_stag(s, mr), EINVAL);
	/* What is not given back goes with the socket. */
	assert_non_null(s->ops->alloc_stag(s));
	fake.rc.mr = -ENOSPC;
	assert_fails(s->ops->alloc_stag(s), ENOSPC);
	fake.rc.mr = 0;
}

static void map_refuses_what_was_reserved_without(void **state)
{
	struct flue_reserve_attr r = FLUE_ATTR(struct flue_reserve_attr);
	uint32_t write = FLUE_LOCAL_WRITE | FLUE_REMOTE_WRITE;
	struct flue_mr *mr = s->ops->alloc_stag(s);

	r.no_read = true;
	assert_true(s->ops->reserve(s, &r));
	assert_fails(s->ops->map(s, mr, data, 10, FLUE_REMOTE_READ), EACCES);
	assert_fails(s->ops->map(s, mr, data, 10, write | FLUE_REMOTE_READ), EACCES);
	assert_true(s->ops->map(s, mr, data, 10, write));
	r = FLUE_ATTR(struct flue_reserve_attr);
	r.no_write = true;
	assert_true(s->ops->reserve(s, &r));
	assert_fails(s->ops->map(s, mr, data, 10, write), EACCES);
	assert_true(s->ops->map(s, mr, data, 10, FLUE_REMOTE_READ));
}

/* The right belongs to the connection: the provider must know, for keys of related sockets. */
static void rights_are_the_connections(void **state)
{
	static const uint32_t deny[] = { 0, FLUE_REMOTE_READ, FLUE_REMOTE_WRITE,
					 FLUE_REMOTE_READ | FLUE_REMOTE_WRITE };
	struct flue_switch_attr sw = FLUE_ATTR(struct flue_switch_attr);

	for (unsigned i = 0; i < 4; i++) {
		struct flue_reserve_attr r = FLUE_ATTR(struct flue_reserve_attr);
		struct flue_socket *one = open_one(1 + i);

		r.no_read = i & 1;
		r.no_write = i & 2;
		assert_true(one->ops->reserve(one, &r));
		assert_true(one->ops->switch_mode(one, &sw, 1));
		assert_true(one->ops->rdma_recv(one, data, 8, 2));
		assert_int_equal(prov(one)->stream.deny, deny[i]);
	}
}

/* ---- control clients (CH-27) ---- */

static struct flue_qp *control;
static unsigned control_heard;

static void on_control(const struct flue_event *ev, void *arg)
{
	control_heard++;
}

static struct flue_socket *open_control(void)
{
	struct flue_reserve_attr r = FLUE_ATTR(struct flue_reserve_attr);

	control_heard = 0;
	control = fake_qp(a, on_control, NULL);
	fake.made_pds = fake.made_cqs = fake.made_qps = fake.made_mrs = 0;
	r.qp = control;
	assert_true(s->ops->reserve(s, &r));
	assert_ptr_equal(s->qp, control);
	return s;
}

static void control_client_uses_its_own_queue_pair(void **state)
{
	struct flue_switch_attr to = FLUE_ATTR(struct flue_switch_attr);
	struct flue_socket_event ev;

	open_control();
	assert_int_equal(fake.made_pds + fake.made_cqs + fake.made_qps + fake.made_mrs, 0);
	assert_fails(flue_destroy_qp(control), EBUSY);
	assert_true(s->ops->switch_mode(s, &to, 1));
	assert_fails(s->ops->rdma_recv(s, data, 10, 2), EOPNOTSUPP);
	assert_int_equal(s->offload_state, FLUE_OFFLOAD_WAIT_FIRST_RECV);
	/* Its receives are posted by itself; this only begins the transfer. */
	assert_true(s->ops->rdma_recv(s, NULL, 0, 2));
	assert_int_equal(fake.adopts, 1);
	fake_news(control, FLUE_EVENT_CONNECTED, 0, 0);
	expect(FLUE_SOCKET_SWITCHED, 1, 0, NULL);
	assert_int_equal(control_heard, 1);
	assert_fails(s->ops->rdma_recv(s, data, 10, 2), EOPNOTSUPP);
	assert_fails(s->ops->rdma_send(s, data, 10, 0, 0, 2), EOPNOTSUPP);
	assert_fails(s->ops->put(s, data, 10, 0, 0, 0, 2), EOPNOTSUPP);
	assert_fails(s->ops->get(s, data, 10, 0, 0, 0, 2), EOPNOTSUPP);
	assert_true(s->ops->read_resources(s, 2, 3));
	fake_news(control, FLUE_EVENT_DISCONNECTED, FLUE_CLOSE_GRACEFUL, 0);
	assert_true(flue_socket_get_event(s, &ev, 1000));
	assert_int_equal(ev.type, FLUE_SOCKET_ENDED);
	assert_int_equal(control_heard, 2);
	drop_one(0);
	fake_destroy_qp(control);
}

/* Keys are of use only where the queue pair is. */
static void keys_of_a_control_client_are_in_its_queue_pairs_domain(void **state)
{
	struct flue_mr *mr;

	open_control();
	mr = s->ops->alloc_stag(s);
	assert_non_null(mr);
	assert_ptr_equal(mr->pd, control->pd);
	drop_one(0);
	fake_destroy_qp(control);
}

static void control_queue_pair_must_be_idle_and_of_the_same_adapter(void **state)
{
	struct flue_reserve_attr r = FLUE_ATTR(struct flue_reserve_attr);
	struct flue_adapter *other = fake_open(NULL, 0);
	struct flue_qp *foreign = fake_qp(other, NULL, NULL), *busy = fake_qp(a, NULL, NULL);

	r.qp = foreign;
	assert_fails(s->ops->reserve(s, &r), EINVAL);
	busy->state = FLUE_QP_RTS;
	r.qp = busy;
	assert_fails(s->ops->reserve(s, &r), EINVAL);
	busy->state = FLUE_QP_IDLE;
	r.related = s;
	assert_fails(s->ops->reserve(s, &r), EINVAL);
	fake_destroy_qp(foreign);
	fake_destroy_qp(busy);
	assert_true(flue_close(other));
}

/* A connection that is none of the socket's business. */
static void control_queue_pair_that_connects_by_itself_tells_the_socket_nothing(void **state)
{
	struct flue_conn_attr attr = FLUE_ATTR(struct flue_conn_attr);

	open_control();
	attr.remote = fake_address();
	attr.remote_len = sizeof(struct sockaddr_in);
	attr.flags = FLUE_CONN_ASYNC;
	for (unsigned i = 0; i < 2; i++) {
		assert_true(control->ops->connect(control, &attr));
		fake_news(control, FLUE_EVENT_CONNECTED, 0, 0);
		fake_news(control, FLUE_EVENT_DISCONNECTED, FLUE_CLOSE_GRACEFUL, 0);
		expect_none();
		assert_int_equal(s->offload_state, FLUE_OFFLOAD_READY);
	}
	assert_true(s->ops->send(s, "x", 1, 9));
	expect(FLUE_SOCKET_SENT, 9, 0, NULL);
	drop_one(0);
	fake_destroy_qp(control);
}

static void drop_in_handler(const struct flue_event *ev, void *arg)
{
	if (ev->type == FLUE_EVENT_DISCONNECTED)
		drop_one(0);
}

/* Its own handler is not the socket's, so the socket may end there. */
static void socket_may_be_destroyed_in_the_handler_of_a_control_queue_pair(void **state)
{
	struct flue_reserve_attr r = FLUE_ATTR(struct flue_reserve_attr);
	struct flue_switch_attr to = FLUE_ATTR(struct flue_switch_attr);

	control = fake_qp(a, drop_in_handler, NULL);
	r.qp = control;
	assert_true(s->ops->reserve(s, &r));
	assert_true(s->ops->switch_mode(s, &to, 1));
	assert_true(s->ops->rdma_recv(s, NULL, 0, 2));
	fake_news(control, FLUE_EVENT_CONNECTED, 0, 0);
	fake_news(control, FLUE_EVENT_DISCONNECTED, FLUE_CLOSE_GRACEFUL, 0);
	assert_null(all[0].socket);
	fake_destroy_qp(control);
}

#define WITH_SOCKET(test) cmocka_unit_test_setup_teardown(test, open_socket, close_sockets)

int main(void)
{
	const struct CMUnitTest tests[] = {
		/* CH-7 */
		WITH_SOCKET(reserve_grants_defaults_and_wishes),
		WITH_SOCKET(reserve_tells_why_it_failed_and_can_be_tried_again),
		WITH_SOCKET(reserve_tries_less_before_it_gives_up),    /* CH-7 */
		WITH_SOCKET(reserve_says_that_the_adapter_is_no_rnic), /* CH-7 */
		WITH_SOCKET(reserve_without_protection_domain_says_so),
		WITH_SOCKET(reserve_notices_that_the_connection_is_gone),
		/* CH-5 */
		WITH_SOCKET(completion_queues_are_shared_by_sixteen),
		WITH_SOCKET(queue_pair_is_made_before_its_queue_is_grown),
		WITH_SOCKET(new_queue_is_made_when_growing_fails),
		WITH_SOCKET(queue_is_not_grown_beyond_the_adapters_limit),
		WITH_SOCKET(reserving_again_keeps_the_count_of_promises),
		WITH_SOCKET(queue_pair_that_cannot_be_made_leaves_nothing),
		WITH_SOCKET(related_sockets_share_a_protection_domain), /* CH-7 */
		WITH_SOCKET(related_socket_of_another_adapter_is_refused),
		WITH_SOCKET(related_socket_of_another_domain_is_refused), /* CH-7 */
		/* CH-8 */
		WITH_SOCKET(read_resources_are_kept_until_the_switch),
		WITH_SOCKET(no_reads_at_all_can_be_wished), /* CH-8 */
		WITH_SOCKET(read_resources_after_the_switch_request_still_count),
		WITH_SOCKET(read_resources_during_the_transfer_count_after_it), /* CH-8, CH-9 */
		WITH_SOCKET(read_resources_during_the_transfer_do_not_exceed_the_agreement),
		WITH_SOCKET(agreement_is_not_touched_without_a_wish),
		WITH_SOCKET(read_resources_of_a_live_connection_are_the_providers),
		WITH_SOCKET(small_messages_need_no_key),                    /* CH-16 */
		WITH_SOCKET(fence_is_passed_on_for_every_request),          /* CH-16 */
		WITH_SOCKET(keys_are_made_by_unsignaled_requests_in_front), /* CH-6, CH-28 */
		WITH_SOCKET(failure_in_front_is_the_requests_error),        /* CH-6 */
		WITH_SOCKET(failures_have_an_errno_each),
		WITH_SOCKET(requests_are_limited_by_what_was_reserved), /* CH-7 */
		WITH_SOCKET(requests_that_cannot_be_posted_change_nothing),
		WITH_SOCKET(first_receive_that_fails_does_not_start_the_transfer), /* CH-10 */
		WITH_SOCKET(receive_tells_length_and_the_key_that_the_peer_invalidated),
		WITH_SOCKET(keys_of_the_program_are_made_mapped_and_given_back), /* CH-16 */
		WITH_SOCKET(map_refuses_what_was_reserved_without),              /* CH-7 */
		WITH_SOCKET(rights_are_the_connections),                         /* CH-7 */
		/* CH-27 */
		WITH_SOCKET(control_client_uses_its_own_queue_pair),
		WITH_SOCKET(keys_of_a_control_client_are_in_its_queue_pairs_domain),
		WITH_SOCKET(control_queue_pair_must_be_idle_and_of_the_same_adapter),
		WITH_SOCKET(control_queue_pair_that_connects_by_itself_tells_the_socket_nothing),
		WITH_SOCKET(socket_may_be_destroyed_in_the_handler_of_a_control_queue_pair),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
