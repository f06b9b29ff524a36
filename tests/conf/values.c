/* SPDX-License-Identifier: MIT */
/* Conformance: values and states of queue pairs that are asked for and changed. */
#include "conf/conf.h"

static bool go_to(struct flue_qp *qp, uint32_t state)
{
	struct flue_qp_values v = FLUE_ATTR(struct flue_qp_values);

	v.state = state;
	return qp->ops->modify(qp, &v, FLUE_QPV_STATE);
}

static struct flue_qp_values ask(struct flue_qp *qp, uint32_t mask)
{
	struct flue_qp_values v = FLUE_ATTR(struct flue_qp_values);

	assert_ok(qp->ops->query(qp, &v, mask));
	assert_int_equal(v.size, sizeof(v));
	return v;
}

static void query_tells_state_reads_and_work(void **state)
{
	const uint32_t mask = FLUE_QPV_STATE | FLUE_QPV_READS | FLUE_QPV_WORK | FLUE_QPV_QUEUES;
	struct pair *p = *state;
	struct flue_qp_values v;

	assert_ok(pair_recv(&p->a, 0, 100, 1));
	assert_ok(pair_recv(&p->a, 0, 100, 2));
	v = ask(p->a.qp, mask);
	assert_int_equal(v.state, FLUE_QP_RTS);
	assert_true(v.llp_open);
	assert_true(v.ird == p->a.qp->ird && v.ord == p->a.qp->ord);
	assert_true(v.sends == 0 && v.receives == 2 && v.reads_out == 0 && v.reads_in == 0);
	assert_true(v.sq_depth == 64 && v.rq_depth == 64 && v.sq_sge == 4 && v.rq_sge == 4);
	assert_int_equal(v.max_inline, 64);
	assert_ok(flue_abort(p->a.qp));
	conf_expect_end(p, FLUE_CLOSE_ABORTED, FLUE_CLOSE_RESET);
	v = ask(p->a.qp, mask);
	assert_int_equal(v.state, FLUE_QP_ERROR);
	assert_true(!v.llp_open && v.receives == 0);
}

static void reads_can_be_changed(void **state)
{
	struct pair *p = *state;
	struct flue_qp_values v = FLUE_ATTR(struct flue_qp_values);

	v.ird = 3;
	v.ord = 2;
	assert_ok(p->a.qp->ops->modify(p->a.qp, &v, FLUE_QPV_READS));
	assert_true(p->a.qp->ird == 3 && p->a.qp->ord == 2);
	v = ask(p->a.qp, FLUE_QPV_READS);
	assert_true(v.ird == 3 && v.ord == 2);
	for (unsigned i = 0; i < 10; i++)
		assert_ok(pair_read(&p->a, 0, 100, &p->b, 0, i, FLUE_SIGNALED));
	for (unsigned i = 0; i < 10; i++)
		assert_true(pair_expect(p->a.send_cq, i, FLUE_WC_SUCCESS));
	v.ird = p->a.adapter->caps->max_ird + 1;
	assert_fails(p->a.qp->ops->modify(p->a.qp, &v, FLUE_QPV_READS), EINVAL);
	assert_int_equal(p->a.qp->ird, 3);
}

static void reads_of_nothing_cannot_be_changed(void **state)
{
	struct pair *p = *state;
	struct flue_qp_values v = FLUE_ATTR(struct flue_qp_values);

	assert_fails(p->a.qp->ops->modify(p->a.qp, &v, FLUE_QPV_READS), ENOTCONN);
}

static void rights_of_a_queue_pair_bind_its_peer(void **state)
{
	struct pair *p = *state;
	struct flue_qp_values v = FLUE_ATTR(struct flue_qp_values);

	assert_int_equal(ask(p->b.qp, FLUE_QPV_ACCESS).access,
			 FLUE_REMOTE_READ | FLUE_REMOTE_WRITE |
				 (pair_full ? (uint32_t)FLUE_REMOTE_ATOMIC : 0));
	v.access = FLUE_REMOTE_WRITE;
	assert_ok(p->b.qp->ops->modify(p->b.qp, &v, FLUE_QPV_ACCESS));
	assert_int_equal(ask(p->b.qp, FLUE_QPV_ACCESS).access, FLUE_REMOTE_WRITE);
	assert_ok(pair_write(&p->a, 0, 8, &p->b, 0, 1, FLUE_SIGNALED));
	assert_true(pair_expect(p->a.send_cq, 1, FLUE_WC_SUCCESS));
	assert_ok(pair_read(&p->a, 0, 8, &p->b, 0, 2, FLUE_SIGNALED));
	conf_expect_end(p, FLUE_CLOSE_TERMINATED, FLUE_CLOSE_FAULT);
}

/* They were set before there was a connection, and are the queue pair's. */
static void rights_of_a_queue_pair_outlive_its_connection(void **state)
{
	struct pair *p = *state;
	struct flue_qp_values v = FLUE_ATTR(struct flue_qp_values);

	v.access = FLUE_REMOTE_READ;
	assert_ok(p->b.qp->ops->modify(p->b.qp, &v, FLUE_QPV_ACCESS));
	for (unsigned i = 0; i < 2; i++) {
		assert_ok(pair_connect(p));
		assert_ok(pair_read(&p->a, 0, 8, &p->b, 0, 1, FLUE_SIGNALED));
		assert_true(pair_expect(p->a.send_cq, 1, FLUE_WC_SUCCESS));
		assert_ok(pair_write(&p->a, 0, 8, &p->b, 0, 2, 0));
		if (pair_full) /* what fails is told of, signaled or not */
			assert_true(pair_expect(p->a.send_cq, 2, FLUE_WC_REMOTE_ACCESS));
		conf_expect_end(p, FLUE_CLOSE_TERMINATED, FLUE_CLOSE_FAULT);
		assert_true(pair_wait_state(p->a.qp, FLUE_QP_ERROR, 5000));
		assert_true(pair_wait_state(p->b.qp, FLUE_QP_ERROR, 5000));
		assert_ok(go_to(p->a.qp, FLUE_QP_RESET));
		assert_ok(go_to(p->b.qp, FLUE_QP_RESET));
	}
}

/* ---- posting before the connection is there ---- */

static struct pair *early_pair(void)
{
	struct pair_options o = PAIR_DEFAULTS;
	static struct pair p;

	o.qp_flags = FLUE_QP_POST_EARLY;
	assert_ok(pair_make(&p, &o));
	return &p;
}

static void requests_posted_early_go_out_in_order(void **state)
{
	struct pair *p = early_pair();

	for (unsigned round = 0; round < 3; round++) {
		pair_fill(p->a.mem, 3000, 1);
		pair_fill(p->b.mem + 8192, 100, 2);
		for (unsigned i = 0; i < 3; i++) {
			assert_ok(pair_recv(&p->b, 1000 * i, 1000, i));
			assert_ok(pair_send(&p->a, 1000 * i, 1000, 10 + i, FLUE_SIGNALED));
		}
		/* The responder's wait for the initiator's first word, as any. */
		assert_ok(pair_recv(&p->a, 4096, 100, 20));
		assert_ok(pair_send(&p->b, 8192, 100, 21, FLUE_SIGNALED));
		assert_int_equal(ask(p->a.qp, FLUE_QPV_WORK).sends, 3);
		assert_ok(pair_connect(p));
		for (unsigned i = 0; i < 3; i++) {
			assert_true(pair_expect(p->b.recv_cq, i, FLUE_WC_SUCCESS));
			assert_true(pair_expect(p->a.send_cq, 10 + i, FLUE_WC_SUCCESS));
		}
		assert_int_equal(pair_check(p->b.mem, 3000, 1), 3000);
		assert_true(pair_expect(p->a.recv_cq, 20, FLUE_WC_SUCCESS));
		assert_true(pair_expect(p->b.send_cq, 21, FLUE_WC_SUCCESS));
		assert_int_equal(pair_check(p->a.mem + 4096, 100, 2), 100);
		assert_ok(flue_disconnect(p->a.qp));
		conf_expect_end(p, FLUE_CLOSE_GRACEFUL, FLUE_CLOSE_GRACEFUL);
		assert_true(pair_wait_state(p->a.qp, FLUE_QP_IDLE, 5000));
		assert_true(pair_wait_state(p->b.qp, FLUE_QP_IDLE, 5000));
	}
	assert_ok(pair_close(p));
}

static void requests_posted_early_are_discarded_by_a_reset(void **state)
{
	struct pair *p = early_pair();
	struct flue_wc wc;

	/* More in all than the queues hold: the slots come back. */
	for (unsigned round = 0; round < 5; round++) {
		for (unsigned i = 0; i < 64; i++) {
			assert_ok(pair_send(&p->a, 0, 8, i, i % 2 ? FLUE_SIGNALED : 0));
			assert_ok(pair_recv(&p->a, 0, 8, i));
		}
		assert_fails(pair_send(&p->a, 0, 8, 99, 0), ENOMEM);
		assert_ok(p->a.qp->ops->reset(p->a.qp));
		assert_int_equal(ask(p->a.qp, FLUE_QPV_WORK).sends, 0);
	}
	assert_int_equal(pair_take(p->a.send_cq, &wc, 1, 20), 0);
	assert_int_equal(pair_take(p->a.recv_cq, &wc, 1, 20), 0);
	assert_ok(pair_recv(&p->b, 0, 8, 1));
	assert_ok(pair_send(&p->a, 0, 8, 2, FLUE_SIGNALED));
	assert_ok(pair_connect(p));
	assert_true(pair_expect(p->b.recv_cq, 1, FLUE_WC_SUCCESS));
	assert_true(pair_expect(p->a.send_cq, 2, FLUE_WC_SUCCESS));
	assert_ok(pair_close(p));
}

static void requests_posted_early_stay_when_connecting_fails_and_are_flushed_by_an_abort(
	void **state)
{
	struct pair *p = early_pair();
	struct sockaddr_storage nobody = p->listener->local;
	struct flue_conn_attr attr = pair_conn_attr(p, 0);

	attr.remote = (struct sockaddr *)&nobody;
	assert_ok(pair_send(&p->a, 0, 8, 1, 0));
	assert_ok(p->listener->ops->destroy(p->listener));
	p->listener = NULL;
	assert_fails(p->a.qp->ops->connect(p->a.qp, &attr), ECONNREFUSED);
	assert_int_equal(ask(p->a.qp, FLUE_QPV_WORK).sends, 1);
	assert_ok(flue_abort(p->a.qp));
	assert_true(pair_expect(p->a.send_cq, 1, FLUE_WC_FLUSHED));
	assert_int_equal(flue_qp_state(p->a.qp), FLUE_QP_ERROR);
	assert_ok(pair_close(p));
}

static void requests_are_refused_in_idle_without_the_flag(void **state)
{
	struct pair *p = *state;

	assert_fails(pair_send(&p->a, 0, 8, 1, 0), ENOTCONN);
}

static void states_of_the_end_are_told_as_by_their_calls(void **state)
{
	struct pair *p = *state;

	assert_fails(go_to(p->a.qp, FLUE_QP_RESET), EBUSY);
	assert_ok(go_to(p->a.qp, FLUE_QP_SQD));
	assert_int_equal(flue_qp_state(p->a.qp), FLUE_QP_SQD);
	assert_ok(go_to(p->a.qp, FLUE_QP_RTS));
	assert_int_equal(flue_qp_state(p->a.qp), FLUE_QP_RTS);
	assert_fails(go_to(p->a.qp, FLUE_QP_INIT), EINVAL);
	assert_ok(go_to(p->a.qp, FLUE_QP_RTS));
	assert_ok(go_to(p->a.qp, FLUE_QP_CLOSING));
	conf_expect_end(p, FLUE_CLOSE_GRACEFUL, FLUE_CLOSE_GRACEFUL);
	assert_true(pair_wait_state(p->a.qp, FLUE_QP_IDLE, 5000));
	assert_true(pair_wait_state(p->b.qp, FLUE_QP_IDLE, 5000));
	assert_ok(pair_connect(p));
	assert_ok(go_to(p->a.qp, FLUE_QP_ERROR));
	conf_expect_end(p, FLUE_CLOSE_ABORTED, FLUE_CLOSE_RESET);
	for (unsigned i = 0; i < 2; i++) {
		struct flue_qp *qp = i ? p->b.qp : p->a.qp;

		assert_true(pair_wait_state(qp, FLUE_QP_ERROR, 5000));
		assert_ok(go_to(qp, i ? FLUE_QP_RESET : FLUE_QP_IDLE));
		assert_int_equal(flue_qp_state(qp), FLUE_QP_IDLE);
	}
	assert_ok(pair_connect(p));
	assert_ok(go_to(p->a.qp, FLUE_QP_TERMINATE));
	conf_expect_end(p, FLUE_CLOSE_FAULT, FLUE_CLOSE_TERMINATED);
}

static void what_the_adapter_cannot_do_is_said(void **state)
{
	static const struct {
		uint32_t feature, type, flags;
	} kinds[] = { { FLUE_FEATURE_UC, FLUE_QP_UC, 0 },
		      { FLUE_FEATURE_UD, FLUE_QP_UD, 0 },
		      { FLUE_FEATURE_POST_EARLY, FLUE_QP_RC, FLUE_QP_POST_EARLY } };
	struct pair *p = *state;
	struct pair_side *a = &p->a;
	struct flue_qp_attr attr = FLUE_ATTR(struct flue_qp_attr);
	struct flue_ah_attr to = FLUE_ATTR(struct flue_ah_attr);
	struct flue_qp_values v = FLUE_ATTR(struct flue_qp_values);
	uint32_t features = a->adapter->caps->features;

	attr.send_cq = attr.recv_cq = a->send_cq;
	attr.sq_depth = 1;
	for (unsigned i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		attr.type = kinds[i].type;
		attr.flags = kinds[i].flags;
		if (!(features & kinds[i].feature))
			assert_fails(a->pd->ops->create_qp(a->pd, &attr), EOPNOTSUPP);
	}
	to.remote = (struct sockaddr *)&p->listener->local;
	to.remote_len = sizeof(p->listener->local);
	if (!(features & FLUE_FEATURE_UD))
		assert_fails(a->pd->ops->create_ah(a->pd, &to), EOPNOTSUPP);
	if (features & FLUE_FEATURE_MODIFY)
		return;
	assert_fails(go_to(a->qp, FLUE_QP_INIT), EOPNOTSUPP);
	assert_fails(a->qp->ops->modify(a->qp, &v, FLUE_QPV_QKEY), EOPNOTSUPP);
	assert_fails(a->qp->ops->query(a->qp, &v, FLUE_QPV_SQ_PSN), EOPNOTSUPP);
	assert_int_equal(flue_qp_state(a->qp), FLUE_QP_IDLE);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		WITH_PAIR(query_tells_state_reads_and_work),
		WITH_PAIR(reads_can_be_changed),
		WITH_IDLE_PAIR(reads_of_nothing_cannot_be_changed),
		WITH_PAIR(rights_of_a_queue_pair_bind_its_peer),
		WITH_IDLE_PAIR(rights_of_a_queue_pair_outlive_its_connection),
		cmocka_unit_test(requests_posted_early_go_out_in_order),
		cmocka_unit_test(requests_posted_early_are_discarded_by_a_reset),
		cmocka_unit_test(
			requests_posted_early_stay_when_connecting_fails_and_are_flushed_by_an_abort),
		WITH_IDLE_PAIR(requests_are_refused_in_idle_without_the_flag),
		WITH_PAIR(states_of_the_end_are_told_as_by_their_calls),
		WITH_IDLE_PAIR(what_the_adapter_cannot_do_is_said),
	};

	conf_init(argc, argv);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
