/* SPDX-License-Identifier: MIT */
/* Conformance: shared receive queues. */
#include "conf/conf.h"

#include <unistd.h>

static struct pair *open_shared(uint32_t depth)
{
	struct pair_options o = PAIR_DEFAULTS;

	o.srq_depth = depth;
	return conf_pair(&o);
}

static void srq_serves_several_queue_pairs(void **state)
{
	struct pair *p = open_shared(64);
	struct flue_qp *a[4] = { p->a.qp }, *b[4] = { p->b.qp };
	struct flue_wc wc[40];
	unsigned from[4] = { 0 };

	for (unsigned i = 1; i < 4; i++) {
		assert_ok(a[i] = pair_new_qp(p, &p->a));
		assert_ok(b[i] = pair_new_qp(p, &p->b));
		assert_ok(pair_connect_qps(p, a[i], b[i]));
	}
	for (uint64_t id = 0; id < 40; id++)
		assert_ok(pair_recv(&p->b, id * 1000, 1000, id));
	for (uint32_t i = 0; i < 40; i++) {
		struct flue_sge sge = flue_mr_sge(p->a.mr, 0, 10 + i % 4);
		struct flue_send_wr wr = { .sg = &sge, .n_sg = 1 };

		assert_ok(flue_post_send(a[i % 4], &wr));
	}
	assert_int_equal(pair_take(p->b.recv_cq, wc, 40, 10000), 40);
	for (uint32_t i = 0; i < 40; i++) {
		assert_int_equal(wc[i].status, FLUE_WC_SUCCESS);
		for (uint32_t j = 0; j < 4; j++) {
			if (wc[i].qp == b[j]) {
				assert_int_equal(wc[i].byte_len, 10 + j);
				from[j]++;
			}
		}
	}
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(from[i], 10);
	for (unsigned i = 1; i < 4; i++)
		assert_ok(flue_destroy_qp(a[i]) && flue_destroy_qp(b[i]));
	conf_end(p);
}

static void srq_refuses_more_than_its_depth(void **state)
{
	struct pair *p = open_shared(8);
	struct flue_recv_wr wr[9];
	const struct flue_recv_wr *bad = NULL;
	struct flue_sge sge[5] = { { .addr = 0 } };

	memset(wr, 0, sizeof(wr));
	for (unsigned i = 0; i < 8; i++)
		wr[i].next = &wr[i + 1];
	assert_fails(p->b.srq->ops->post_recv(p->b.srq, wr, &bad), ENOMEM);
	assert_ptr_equal(bad, &wr[8]);
	wr[8].sg = sge;
	wr[8].n_sg = 5;
	assert_fails(p->a.srq->ops->post_recv(p->a.srq, &wr[8], &bad), EINVAL);
	assert_ptr_equal(bad, &wr[8]);
	/* The queue pair has no receive queue of its own. */
	assert_fails(flue_post_recv(p->b.qp, wr), EINVAL);
	conf_end(p);
}

static void limit_is_told_once_when_few_receives_remain(void **state)
{
	struct pair *p = open_shared(16);
	struct flue_srq *srq = p->b.srq;

	for (uint64_t id = 0; id < 8; id++)
		assert_ok(pair_recv(&p->b, 0, 100, id));
	assert_fails(srq->ops->arm_limit(srq, 17), EINVAL);
	assert_ok(srq->ops->arm_limit(srq, 5));
	for (uint64_t id = 0; id < 3; id++) {
		assert_ok(pair_send(&p->a, 0, 10, id, 0));
		assert_true(pair_expect(p->b.recv_cq, id, FLUE_WC_SUCCESS));
	}
	usleep(30000);
	conf_expect_quiet(p);
	assert_ok(pair_send(&p->a, 0, 10, 3, 0));
	assert_true(pair_event(&p->b, FLUE_EVENT_SRQ_LIMIT, srq, NULL, 5000));
	assert_ok(pair_send(&p->a, 0, 10, 4, 0));
	assert_true(pair_expect(p->b.recv_cq, 3, FLUE_WC_SUCCESS));
	assert_true(pair_expect(p->b.recv_cq, 4, FLUE_WC_SUCCESS));
	usleep(30000);
	conf_expect_quiet(p);
	/* At once, if it is so already; and not after it was disarmed. */
	assert_ok(srq->ops->arm_limit(srq, 4));
	assert_true(pair_event(&p->b, FLUE_EVENT_SRQ_LIMIT, srq, NULL, 5000));
	assert_ok(srq->ops->arm_limit(srq, 2));
	assert_ok(srq->ops->arm_limit(srq, 0));
	assert_ok(pair_send(&p->a, 0, 10, 5, 0));
	assert_ok(pair_send(&p->a, 0, 10, 6, 0));
	assert_true(pair_expect(p->b.recv_cq, 5, FLUE_WC_SUCCESS));
	assert_true(pair_expect(p->b.recv_cq, 6, FLUE_WC_SUCCESS));
	usleep(30000);
	conf_expect_quiet(p);
	conf_end(p);
}

static struct flue_srq_values values_of(struct flue_srq *srq)
{
	struct flue_srq_values v = FLUE_ATTR(struct flue_srq_values);

	assert_ok(srq->ops->query(srq, &v, FLUE_SRQV_DEPTH | FLUE_SRQV_LIMIT | FLUE_SRQV_WORK));
	assert_int_equal(v.size, sizeof(v));
	return v;
}

static bool change(struct flue_srq *srq, uint32_t mask, uint32_t depth, uint32_t limit)
{
	struct flue_srq_values v = FLUE_ATTR(struct flue_srq_values);

	v.depth = depth;
	v.limit = limit;
	return srq->ops->modify(srq, &v, mask);
}

static void srq_tells_its_values(void **state)
{
	struct pair *p = open_shared(16);
	struct flue_srq *srq = p->b.srq;
	struct flue_srq_values v = values_of(srq);

	assert_true(v.depth == 16 && v.limit == 0 && v.receives == 0);
	for (uint64_t id = 0; id < 5; id++)
		assert_ok(pair_recv(&p->b, 0, 100, id));
	assert_ok(change(srq, FLUE_SRQV_LIMIT, 0, 5));
	v = values_of(srq);
	assert_true(v.depth == 16 && v.limit == 5 && v.receives == 5);
	assert_ok(pair_send(&p->a, 0, 10, 1, 0));
	assert_true(pair_event(&p->b, FLUE_EVENT_SRQ_LIMIT, srq, NULL, 5000));
	v = values_of(srq); /* one shot */
	assert_true(v.depth == 16 && v.limit == 0 && v.receives == 4);
	assert_true(pair_expect(p->b.recv_cq, 0, FLUE_WC_SUCCESS));
	conf_end(p);
}

/* Growing and shrinking, while messages come: each finds its receive. */
static void srq_is_resized_under_traffic(void **state)
{
	struct pair *p = open_shared(8);
	struct flue_srq *srq = p->b.srq;
	uint64_t posted = 0, taken = 0;

	for (uint32_t round = 0; round < 60; round++) {
		uint32_t depth = round % 3 == 0 ? 8 : round % 3 == 1 ? 40 : 13;

		assert_ok(change(srq, FLUE_SRQV_DEPTH, depth, 0));
		assert_int_equal(srq->depth, depth);
		for (; posted - taken < depth; posted++)
			assert_ok(pair_recv(&p->b, 100 * (posted % 64), 100, posted));
		assert_fails(pair_recv(&p->b, 0, 100, 0), ENOMEM);
		for (uint32_t i = 0; i < depth - 5; i++)
			assert_ok(pair_send(&p->a, 0, 100, i, i == depth - 6 ? FLUE_SIGNALED : 0));
		assert_true(pair_expect(p->a.send_cq, depth - 6, FLUE_WC_SUCCESS));
		for (uint32_t i = 0; i < depth - 5; i++)
			assert_true(pair_expect(p->b.recv_cq, taken++, FLUE_WC_SUCCESS));
	}
	conf_end(p);
}

static void srq_refuses_sizes_that_do_not_fit(void **state)
{
	struct pair *p = open_shared(8);
	const uint32_t both = FLUE_SRQV_DEPTH | FLUE_SRQV_LIMIT;
	struct flue_srq *srq = p->b.srq;
	struct flue_wc wc;

	for (uint64_t id = 0; id < 5; id++)
		assert_ok(pair_recv(&p->b, 0, 100, id));
	assert_fails(change(srq, FLUE_SRQV_DEPTH, 0, 0), EINVAL);
	assert_fails(change(srq, FLUE_SRQV_DEPTH, p->b.adapter->caps->max_srq_depth + 1, 0),
		     EINVAL);
	assert_fails(change(srq, 0, 8, 0), EINVAL);
	assert_fails(change(srq, FLUE_SRQV_WORK, 8, 0), EINVAL);
	assert_fails(change(srq, FLUE_SRQV_DEPTH, 4, 0), EBUSY);
	/* A completion that nobody has taken keeps its place. */
	assert_ok(pair_send(&p->a, 0, 10, 1, FLUE_SIGNALED));
	assert_true(pair_expect(p->a.send_cq, 1, FLUE_WC_SUCCESS));
	while (values_of(srq).receives != 4)
		usleep(1000);
	assert_fails(change(srq, FLUE_SRQV_DEPTH, 4, 0), EBUSY);
	/* All or nothing. */
	assert_fails(change(srq, both, 4, 1), EBUSY);
	assert_fails(change(srq, both, 6, 7), EINVAL);
	assert_true(values_of(srq).depth == 8 && values_of(srq).limit == 0 && srq->depth == 8);
	assert_int_equal(pair_take(p->b.recv_cq, &wc, 1, 10000), 1);
	assert_ok(change(srq, both, 4, 4));
	assert_fails(change(srq, FLUE_SRQV_DEPTH, 3, 0), EINVAL); /* the limit is above */
	assert_fails(pair_recv(&p->b, 0, 100, 9), ENOMEM);
	assert_ok(pair_send(&p->a, 0, 10, 2, 0));
	assert_true(pair_event(&p->b, FLUE_EVENT_SRQ_LIMIT, srq, NULL, 5000));
	assert_true(pair_expect(p->b.recv_cq, 1, FLUE_WC_SUCCESS));
	assert_ok(change(srq, FLUE_SRQV_DEPTH, 3, 0));
	conf_end(p);
}

static void last_receive_is_told_when_a_queue_pair_failed(void **state)
{
	struct pair *p = open_shared(16);
	struct flue_event ev;
	unsigned last = 0, ends = 0;

	NOT_SELF("both sides hear through one queue of events");
	assert_ok(pair_recv(&p->b, 0, 100, 1));
	assert_ok(flue_abort(p->a.qp));
	while ((!last || !ends) && flue_get_event(p->b.adapter, &ev, 5000)) {
		assert_ptr_equal(ev.u.qp, p->b.qp);
		last += ev.type == FLUE_EVENT_LAST_RECEIVE;
		ends += ev.type == FLUE_EVENT_DISCONNECTED;
	}
	assert_int_equal(last, 1);
	assert_int_equal(ends, 1);
	assert_fails(flue_get_event(p->b.adapter, &ev, 30), ETIMEDOUT);
	conf_end(p);
}

static void receives_survive_the_queue_pair_that_failed(void **state)
{
	struct pair *p = open_shared(16);
	struct flue_wc wc;
	uint32_t got;

	assert_ok(pair_recv(&p->b, 0, 100, 1));
	assert_ok(flue_abort(p->a.qp));
	assert_true(pair_wait_state(p->b.qp, FLUE_QP_ERROR, 5000));
	assert_true(pair_wait_state(p->a.qp, FLUE_QP_ERROR, 5000));
	usleep(10000);
	assert_ok(flue_poll(p->b.recv_cq, &wc, 1, &got));
	assert_int_equal(got, 0);
	/* Another connection takes them. */
	assert_ok(p->a.qp->ops->reset(p->a.qp));
	assert_ok(p->b.qp->ops->reset(p->b.qp));
	assert_ok(pair_connect(p));
	assert_ok(pair_send(&p->a, 0, 10, 3, 0));
	assert_true(pair_expect(p->b.recv_cq, 1, FLUE_WC_SUCCESS));
	conf_end(p);
}

static void message_without_a_receive_ends_its_own_connection_only(void **state)
{
	struct flue_qp *a2, *b2;
	struct flue_event ev;
	struct pair *p;

	STRICT_ONLY("full service waits for a receive: `full.c`");
	p = open_shared(16);
	assert_ok(a2 = pair_new_qp(p, &p->a));
	assert_ok(b2 = pair_new_qp(p, &p->b));
	assert_ok(pair_connect_qps(p, a2, b2));
	assert_ok(pair_send(&p->a, 0, 10, 3, 0));
	do {
		assert_ok(flue_get_event(p->a.adapter, &ev, 5000));
		assert_ptr_equal(ev.u.qp, p->a.qp);
	} while (ev.type != FLUE_EVENT_DISCONNECTED);
	assert_int_equal(ev.reason, FLUE_CLOSE_TERMINATED);
	assert_int_equal(ev.detail, 0x1202); /* DDP, untagged buffer: no buffer available */
	assert_ok(pair_recv(&p->b, 0, 100, 7));
	p->a.qp = (flue_destroy_qp(p->a.qp), a2);
	assert_ok(pair_send(&p->a, 0, 10, 4, 0));
	assert_true(pair_expect(p->b.recv_cq, 7, FLUE_WC_SUCCESS));
	assert_ok(flue_destroy_qp(b2));
	conf_end(p);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(srq_serves_several_queue_pairs),              /* RD-1 */
		cmocka_unit_test(srq_refuses_more_than_its_depth),             /* RD-2 */
		cmocka_unit_test(limit_is_told_once_when_few_receives_remain), /* CH-18 */
		cmocka_unit_test(srq_tells_its_values),
		cmocka_unit_test(srq_is_resized_under_traffic),
		cmocka_unit_test(srq_refuses_sizes_that_do_not_fit),
		cmocka_unit_test(last_receive_is_told_when_a_queue_pair_failed), /* CH-18 */
		cmocka_unit_test(receives_survive_the_queue_pair_that_failed),
		cmocka_unit_test(message_without_a_receive_ends_its_own_connection_only),
	};

	conf_init(argc, argv);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
