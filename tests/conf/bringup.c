/* SPDX-License-Identifier: MIT */
/*
 * Conformance: queue pairs that have no connection manager (RD-2, OS-25). modify() brings them up; they find each other by
 * number; a peer that has gone costs its requests and nothing else.
 */
#include "conf/conf.h"

#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define ACCESS  (PAIR_ALL_ACCESS | FLUE_REMOTE_ATOMIC)
#define TIMEOUT 10 /* 4 ms */
#define RETRIES 3

static struct pair *make(void)
{
	struct pair_options o = PAIR_DEFAULTS;
	struct pair *p = calloc(1, sizeof(*p));

	o.qp_flags = FLUE_QP_BRINGUP;
	o.access = ACCESS;
	assert_non_null(p);
	assert_ok(pair_make(p, &o));
	return p;
}

static struct flue_ah_attr to_loopback(struct sockaddr_in *in)
{
	struct flue_ah_attr path = FLUE_ATTR(struct flue_ah_attr);

	*in = (struct sockaddr_in) { .sin_family = AF_INET };
	in->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	path.remote = (const struct sockaddr *)in;
	path.remote_len = sizeof(*in);
	return path;
}

static bool to_init(struct flue_qp *qp)
{
	struct flue_qp_values v = { sizeof(v), .state = FLUE_QP_INIT, .port = 1,
				    .access = FLUE_REMOTE_READ | FLUE_REMOTE_WRITE |
					      FLUE_REMOTE_ATOMIC };

	return qp->ops->modify(qp, &v,
			       FLUE_QPV_STATE | FLUE_QPV_PORT | FLUE_QPV_PKEY | FLUE_QPV_ACCESS);
}

static bool to_rtr(struct flue_qp *qp, uint32_t remote_qpn)
{
	struct sockaddr_in in;
	struct flue_ah_attr path = to_loopback(&in);
	struct flue_qp_values v = { sizeof(v),   .state = FLUE_QP_RTR,     .path = &path,
				    .mtu = 1024, .remote_qpn = remote_qpn, .rq_psn = 7,
				    .ird = 4,    .min_rnr_timer = 1 };

	return qp->ops->modify(qp, &v,
			       FLUE_QPV_STATE | FLUE_QPV_PATH | FLUE_QPV_MTU | FLUE_QPV_REMOTE_QPN |
				       FLUE_QPV_RQ_PSN | FLUE_QPV_READS | FLUE_QPV_MIN_RNR_TIMER);
}

static bool to_rts(struct flue_qp *qp)
{
	struct flue_qp_values v = { sizeof(v),          .state = FLUE_QP_RTS,
				    .sq_psn = 7,        .ird = 4,
				    .ord = 4,           .timeout = TIMEOUT,
				    .retries = RETRIES, .rnr_retries = 7 };

	return qp->ops->modify(qp, &v,
			       FLUE_QPV_STATE | FLUE_QPV_SQ_PSN | FLUE_QPV_READS |
				       FLUE_QPV_TIMEOUT | FLUE_QPV_RETRIES | FLUE_QPV_RNR_RETRIES);
}

static bool to_state(struct flue_qp *qp, uint32_t state)
{
	struct flue_qp_values v = { sizeof(v), .state = state };

	return qp->ops->modify(qp, &v, FLUE_QPV_STATE);
}

static void bring_up(struct flue_qp *qp, uint32_t remote_qpn)
{
	assert_ok(to_init(qp));
	assert_ok(to_rtr(qp, remote_qpn));
	assert_ok(to_rts(qp));
}

static struct pair *up(void)
{
	struct pair *p = make();

	bring_up(p->a.qp, p->b.qp->number);
	bring_up(p->b.qp, p->a.qp->number);
	return p;
}

static void end(struct pair *p)
{
	assert_ok(pair_close(p));
	free(p);
}

static void talk(struct pair *p)
{
	assert_ok(pair_recv(&p->b, 0, 100, 1));
	assert_ok(pair_send(&p->a, 0, 100, 2, FLUE_SIGNALED));
	assert_true(pair_expect(p->b.recv_cq, 1, FLUE_WC_SUCCESS));
	assert_true(pair_expect(p->a.send_cq, 2, FLUE_WC_SUCCESS));
	assert_ok(pair_recv(&p->a, 0, 100, 3));
	assert_ok(pair_send(&p->b, 0, 100, 4, FLUE_SIGNALED));
	assert_true(pair_expect(p->a.recv_cq, 3, FLUE_WC_SUCCESS));
	assert_true(pair_expect(p->b.send_cq, 4, FLUE_WC_SUCCESS));
}

static bool nothing_comes(struct flue_cq *cq, int ms)
{
	struct flue_wc wc;

	return pair_take(cq, &wc, 1, ms) == 0;
}

/* ---- states ---- */

static void states_are_those_of_the_verbs(void **state)
{
	struct pair *p = make();
	struct flue_qp *qp = p->a.qp;

	assert_int_equal(flue_qp_state(qp), FLUE_QP_RESET);
	assert_fails(pair_recv(&p->a, 0, 8, 1), ENOTCONN);
	assert_fails(to_state(qp, FLUE_QP_RTS), EINVAL);
	assert_fails(to_rtr(qp, p->b.qp->number), EINVAL);
	assert_ok(to_init(qp));
	assert_int_equal(flue_qp_state(qp), FLUE_QP_INIT);
	assert_ok(to_init(qp));
	assert_ok(pair_recv(&p->a, 0, 8, 1));
	assert_fails(pair_send(&p->a, 0, 8, 1, 0), ENOTCONN);
	assert_fails(to_rts(qp), EINVAL);
	assert_ok(to_rtr(qp, p->b.qp->number));
	assert_int_equal(flue_qp_state(qp), FLUE_QP_RTR);
	assert_fails(pair_send(&p->a, 0, 8, 1, 0), ENOTCONN);
	assert_ok(to_rts(qp));
	assert_int_equal(flue_qp_state(qp), FLUE_QP_RTS);
	assert_ok(to_state(qp, FLUE_QP_ERROR));
	assert_int_equal(flue_qp_state(qp), FLUE_QP_ERROR);
	assert_true(pair_expect(p->a.recv_cq, 1, FLUE_WC_FLUSHED));
	assert_ok(to_state(qp, FLUE_QP_RESET));
	assert_int_equal(flue_qp_state(qp), FLUE_QP_RESET);
	end(p);
}

static void numbers_have_24_bits_and_rest(void **state)
{
	struct pair *p = make();
	uint32_t first = p->a.qp->number, seen[60];

	for (uint32_t i = 0; i < 60; i++) {
		struct flue_qp *qp = pair_new_qp(p, &p->a);

		assert_non_null(qp);
		assert_true(qp->number > 0xffff && qp->number < 0xffffff);
		seen[i] = qp->number;
		for (uint32_t k = 0; k < i; k++)
			assert_int_not_equal(seen[k], seen[i]);
		assert_int_not_equal(seen[i], first);
		assert_ok(flue_destroy_qp(qp));
	}
	end(p);
}

static void what_is_asked_for_is_told(void **state)
{
	struct pair *p = up();
	struct flue_ah_attr path = FLUE_ATTR(struct flue_ah_attr);
	struct flue_qp_values v = { sizeof(v), .path = &path };

	talk(p);
	assert_ok(p->a.qp->ops->query(p->a.qp, &v,
				      FLUE_QPV_STATE | FLUE_QPV_PATH | FLUE_QPV_REMOTE_QPN |
					      FLUE_QPV_MTU | FLUE_QPV_TIMEOUT | FLUE_QPV_RETRIES |
					      FLUE_QPV_RQ_PSN | FLUE_QPV_SQ_PSN | FLUE_QPV_READS |
					      FLUE_QPV_PORT));
	assert_int_equal(v.state, FLUE_QP_RTS);
	assert_int_equal(v.remote_qpn, p->b.qp->number);
	assert_int_equal(v.mtu, 1024);
	assert_int_equal(v.timeout, TIMEOUT);
	assert_int_equal(v.retries, RETRIES);
	assert_int_equal(v.rq_psn, 7);
	assert_int_equal(v.sq_psn, 7);
	assert_int_equal(v.ird, 4);
	assert_int_equal(v.ord, 4);
	assert_int_equal(v.port, 1);
	assert_int_equal(((const struct sockaddr_in *)path.remote)->sin_addr.s_addr,
			 htonl(INADDR_LOOPBACK));
	end(p);
}

static void wrong_values_change_nothing(void **state)
{
	struct pair *p = make();
	struct sockaddr_in in;
	struct flue_ah_attr path = to_loopback(&in);
	const uint32_t needed = FLUE_QPV_STATE | FLUE_QPV_PATH | FLUE_QPV_REMOTE_QPN;
	struct flue_qp_values good = { sizeof(good), .state = FLUE_QP_RTR, .path = &path,
				       .mtu = 1024, .remote_qpn = p->b.qp->number };
	struct flue_qp *qp = p->a.qp;
	struct flue_qp_values v;

	assert_ok(to_init(qp));
	assert_fails(qp->ops->modify(qp, &good, FLUE_QPV_STATE | FLUE_QPV_PATH), EINVAL);
	assert_fails(qp->ops->modify(qp, &good, FLUE_QPV_STATE | FLUE_QPV_REMOTE_QPN), EINVAL);
	v = good;
	v.remote_qpn = 1 << 24;
	assert_fails(qp->ops->modify(qp, &v, needed), EINVAL);
	v = good;
	v.mtu = 1000;
	assert_fails(qp->ops->modify(qp, &v, needed | FLUE_QPV_MTU), EINVAL);
	v = good;
	v.rq_psn = 1 << 24;
	assert_fails(qp->ops->modify(qp, &v, needed | FLUE_QPV_RQ_PSN), EINVAL);
	v = good;
	v.port = 2;
	assert_fails(qp->ops->modify(qp, &v, needed | FLUE_QPV_PORT), EINVAL);
	v = good;
	v.retries = 8;
	assert_fails(qp->ops->modify(qp, &v, needed | FLUE_QPV_RETRIES), EINVAL);
	in.sin_family = AF_UNIX;
	assert_fails(qp->ops->modify(qp, &good, needed), EINVAL);
	in.sin_family = AF_INET;
	assert_int_equal(flue_qp_state(qp), FLUE_QP_INIT);
	assert_ok(qp->ops->modify(qp, &good, needed));
	/* Too late for another one. */
	assert_fails(qp->ops->modify(qp, &good, FLUE_QPV_REMOTE_QPN), EINVAL);
	end(p);
}

static void a_connection_manager_is_not_for_these(void **state)
{
	struct pair *p = make();
	struct flue_conn_attr attr = pair_conn_attr(p, FLUE_CONN_FULL);

	assert_fails(p->a.qp->ops->connect(p->a.qp, &attr), EINVAL);
	end(p);
}

/* ---- finding each other ---- */

static void the_two_find_each_other(void **state)
{
	struct pair *p = up();

	talk(p);
	conf_expect_quiet(p);
	end(p);
}

/* Who comes first, and how far, is all the same. */
static void in_any_order(void **state)
{
	for (unsigned order = 0; order < 8; order++) {
		struct pair *p = make();
		struct flue_qp *x = order & 1 ? p->a.qp : p->b.qp,
			       *y = order & 1 ? p->b.qp : p->a.qp;

		assert_ok(to_init(x));
		if (order & 2) {
			assert_ok(to_init(y));
			assert_ok(to_rtr(y, x->number));
		}
		assert_ok(to_rtr(x, y->number));
		assert_ok(to_rts(x));
		if (order & 4)
			usleep(20000);
		if (!(order & 2)) {
			assert_ok(to_init(y));
			assert_ok(to_rtr(y, x->number));
		}
		assert_ok(to_rts(y));
		talk(p);
		end(p);
	}
}

static void what_was_posted_before_goes_out(void **state)
{
	struct pair *p = make();

	bring_up(p->a.qp, p->b.qp->number);
	assert_ok(pair_send(&p->a, 0, 10, 1, FLUE_SIGNALED));
	assert_ok(pair_read(&p->a, 100, 10, &p->b, 0, 2, FLUE_SIGNALED));
	/* The peer's process is there: it is waited for, longer than time-out times retries. */
	assert_true(nothing_comes(p->a.send_cq, 100));
	assert_ok(to_init(p->b.qp));
	assert_ok(pair_recv(&p->b, 0, 10, 3));
	assert_ok(to_rtr(p->b.qp, p->a.qp->number));
	assert_true(pair_expect(p->a.send_cq, 1, FLUE_WC_SUCCESS));
	assert_true(pair_expect(p->a.send_cq, 2, FLUE_WC_SUCCESS));
	assert_true(pair_expect(p->b.recv_cq, 3, FLUE_WC_SUCCESS));
	end(p);
}

static void first_message_in_rtr_is_told(void **state)
{
	struct pair *p = make();

	assert_ok(to_init(p->b.qp));
	assert_ok(pair_recv(&p->b, 0, 10, 3));
	assert_ok(to_rtr(p->b.qp, p->a.qp->number));
	bring_up(p->a.qp, p->b.qp->number);
	assert_ok(pair_write(&p->a, 0, 10, &p->b, 0, 1, FLUE_SIGNALED));
	assert_true(pair_expect(p->a.send_cq, 1, FLUE_WC_SUCCESS));
	assert_true(pair_event(&p->b, FLUE_EVENT_ESTABLISHED, p->b.qp, NULL, 2000));
	assert_ok(pair_send(&p->a, 0, 10, 2, FLUE_SIGNALED));
	assert_true(pair_expect(p->a.send_cq, 2, FLUE_WC_SUCCESS));
	assert_true(pair_expect(p->b.recv_cq, 3, FLUE_WC_SUCCESS));
	conf_expect_quiet(p);
	end(p);
}

static void many_of_them(void **state)
{
	enum { N = 300 }; /* more than one port has */
	struct pair *p = make();
	struct flue_qp *a[N], *b[N];

	for (int i = 0; i < N; i++) {
		a[i] = pair_new_qp(p, &p->a);
		b[i] = pair_new_qp(p, &p->b);
		assert_true(a[i] && b[i]);
	}
	for (int i = 0; i < N; i++)
		bring_up(a[i], b[i]->number);
	for (int i = 0; i < N; i++)
		bring_up(b[i], a[i]->number);
	for (int i = 0; i < N; i++) {
		struct pair_side x = p->a, y = p->b;

		x.qp = a[i];
		y.qp = b[i];
		assert_ok(pair_recv(&y, 0, 10, (uint64_t)i));
		assert_ok(pair_send(&x, 0, 10, (uint64_t)i, FLUE_SIGNALED));
		assert_true(pair_expect(y.recv_cq, (uint64_t)i, FLUE_WC_SUCCESS));
		assert_true(pair_expect(x.send_cq, (uint64_t)i, FLUE_WC_SUCCESS));
	}
	for (int i = 0; i < N; i++) {
		assert_ok(flue_destroy_qp(a[i]));
		assert_ok(flue_destroy_qp(b[i]));
	}
	end(p);
}

static void somebody_else_is_not_taken(void **state)
{
	struct pair *p = up();
	struct pair_side third = p->a;

	talk(p);
	/* b is a's: who else calls it finds nobody. */
	third.qp = pair_new_qp(p, &p->a);
	bring_up(third.qp, p->b.qp->number);
	assert_ok(pair_send(&third, 0, 10, 9, FLUE_SIGNALED));
	assert_true(pair_expect(p->a.send_cq, 9, FLUE_WC_RETRY_EXCEEDED));
	assert_int_equal(flue_qp_state(third.qp), FLUE_QP_ERROR);
	talk(p);
	assert_ok(flue_destroy_qp(third.qp));
	end(p);
}

static void a_number_that_nobody_has(void **state)
{
	struct pair *p = make();

	/* No such place at a port of ours, and no such port. */
	bring_up(p->a.qp, p->b.qp->number ^ 0x80);
	assert_ok(pair_send(&p->a, 0, 10, 1, FLUE_SIGNALED));
	assert_true(pair_expect(p->a.send_cq, 1, FLUE_WC_RETRY_EXCEEDED));
	bring_up(p->b.qp, 1024 << 8);
	assert_ok(pair_send(&p->b, 0, 10, 1, FLUE_SIGNALED));
	assert_true(pair_expect(p->b.send_cq, 1, FLUE_WC_RETRY_EXCEEDED));
	end(p);
}

static void itself_it_cannot_call(void **state)
{
	struct pair *p = make();

	bring_up(p->a.qp, p->a.qp->number);
	assert_ok(pair_send(&p->a, 0, 10, 1, FLUE_SIGNALED));
	assert_true(pair_expect(p->a.send_cq, 1, FLUE_WC_RETRY_EXCEEDED));
	end(p);
}

/* ---- the peer goes ---- */

static void survivor_stays_as_it_was(void (*go)(struct pair *p))
{
	struct pair *p = up();
	struct flue_qp_values v = FLUE_ATTR(struct flue_qp_values);

	talk(p);
	assert_ok(pair_recv(&p->a, 0, 10, 5));
	go(p);
	usleep(50000);
	assert_int_equal(flue_qp_state(p->a.qp), FLUE_QP_RTS);
	assert_true(nothing_comes(p->a.recv_cq, 0));
	assert_ok(p->a.qp->ops->query(p->a.qp, &v, FLUE_QPV_WORK));
	assert_int_equal(v.receives, 1);
	conf_expect_quiet(p);
	/* The next request learns of it. */
	assert_ok(pair_send(&p->a, 0, 10, 6, FLUE_SIGNALED));
	assert_ok(pair_send(&p->a, 0, 10, 7, FLUE_SIGNALED));
	assert_true(pair_expect(p->a.send_cq, 6, FLUE_WC_RETRY_EXCEEDED));
	assert_true(pair_expect(p->a.send_cq, 7, FLUE_WC_FLUSHED));
	assert_true(pair_expect(p->a.recv_cq, 5, FLUE_WC_FLUSHED));
	assert_int_equal(flue_qp_state(p->a.qp), FLUE_QP_ERROR);
	end(p);
}

static void destroy_b(struct pair *p)
{
	assert_ok(flue_destroy_qp(p->b.qp));
	p->b.qp = NULL;
}

static void reset_b(struct pair *p)
{
	assert_ok(to_state(p->b.qp, FLUE_QP_RESET));
}

static void fail_b(struct pair *p)
{
	assert_ok(to_state(p->b.qp, FLUE_QP_ERROR));
}

static void survivor_of_a_destroyed_peer(void **state)
{
	survivor_stays_as_it_was(destroy_b);
}

static void survivor_of_a_reset_peer(void **state)
{
	survivor_stays_as_it_was(reset_b);
}

static void survivor_of_a_peer_in_error(void **state)
{
	survivor_stays_as_it_was(fail_b);
}

static void requests_that_wait_end_with_the_peer(void **state)
{
	struct pair *p = up();

	talk(p);
	/* Not taken, as b has no receive. */
	assert_ok(pair_send(&p->a, 0, 10, 6, FLUE_SIGNALED));
	assert_true(nothing_comes(p->a.send_cq, 50));
	reset_b(p);
	assert_true(pair_expect(p->a.send_cq, 6, FLUE_WC_RETRY_EXCEEDED));
	end(p);
}

static void no_time_out_means_for_ever(void **state)
{
	struct pair *p = up();
	struct flue_qp_values v = FLUE_ATTR(struct flue_qp_values);

	talk(p);
	assert_ok(p->a.qp->ops->modify(p->a.qp, &v, FLUE_QPV_TIMEOUT));
	reset_b(p);
	assert_ok(pair_send(&p->a, 0, 10, 6, FLUE_SIGNALED));
	assert_true(nothing_comes(p->a.send_cq, 200));
	assert_int_equal(flue_qp_state(p->a.qp), FLUE_QP_RTS);
	end(p);
}

static void another_connection_after_reset(void **state)
{
	struct pair *p = up();
	struct flue_qp *third = pair_new_qp(p, &p->b);

	for (int i = 0; i < 5; i++) {
		talk(p);
		assert_ok(pair_recv(&p->a, 0, 10, 5)); /* is gone without a word */
		assert_ok(pair_send(&p->b, 0, 10, 5, 0));
		usleep(5000);
		assert_ok(to_state(p->a.qp, FLUE_QP_RESET));
		assert_ok(to_state(p->b.qp, FLUE_QP_RESET));
		assert_true(nothing_comes(p->a.recv_cq, 0));
		bring_up(p->b.qp, p->a.qp->number);
		bring_up(p->a.qp, p->b.qp->number);
	}
	talk(p);
	/* With another peer. */
	assert_ok(to_state(p->a.qp, FLUE_QP_RESET));
	assert_ok(flue_destroy_qp(p->b.qp));
	p->b.qp = third;
	bring_up(p->a.qp, third->number);
	bring_up(third, p->a.qp->number);
	talk(p);
	end(p);
}

/* ---- errors ---- */

static void peer_is_told_what_was_wrong(void **state)
{
	struct pair *p = up();
	struct flue_sge sge = flue_mr_sge(p->a.mr, 0, 8);
	struct flue_send_wr wr = { .id = 6,
				   .op = FLUE_WR_WRITE,
				   .flags = FLUE_SIGNALED,
				   .sg = &sge,
				   .n_sg = 1,
				   .rkey = p->b.mr->rkey ^ 1,
				   .remote_addr = p->b.mr->remote_start };

	talk(p);
	assert_ok(pair_recv(&p->b, 0, 10, 5));
	assert_ok(flue_post_send(p->a.qp, &wr));
	assert_true(pair_expect(p->a.send_cq, 6, FLUE_WC_REMOTE_ACCESS));
	assert_true(pair_event(&p->b, FLUE_EVENT_QP_ACCESS, p->b.qp, NULL, 2000));
	assert_true(pair_expect(p->b.recv_cq, 5, FLUE_WC_FLUSHED));
	assert_int_equal(flue_qp_state(p->a.qp), FLUE_QP_ERROR);
	assert_int_equal(flue_qp_state(p->b.qp), FLUE_QP_ERROR);
	end(p);
}

static void too_long_a_message_is_told(void **state)
{
	struct pair *p = up();

	talk(p);
	assert_ok(pair_recv(&p->b, 0, 10, 5));
	assert_ok(pair_send(&p->a, 0, 11, 6, FLUE_SIGNALED));
	assert_true(pair_expect(p->a.send_cq, 6, FLUE_WC_REMOTE_REQUEST));
	assert_true(pair_expect(p->b.recv_cq, 5, FLUE_WC_LOCAL_LENGTH));
	assert_true(pair_event(&p->b, FLUE_EVENT_QP_REQUEST, p->b.qp, NULL, 2000));
	end(p);
}

static void last_receive_of_a_shared_queue_is_told(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;
	struct pair *p = calloc(1, sizeof(*p));

	o.qp_flags = FLUE_QP_BRINGUP;
	o.srq_depth = 16;
	assert_ok(pair_make(p, &o));
	bring_up(p->a.qp, p->b.qp->number);
	bring_up(p->b.qp, p->a.qp->number);
	talk(p);
	assert_ok(to_state(p->b.qp, FLUE_QP_ERROR));
	assert_true(pair_event(&p->b, FLUE_EVENT_LAST_RECEIVE, p->b.qp, NULL, 2000));
	end(p);
}

/* ---- draining ---- */

static void drain(struct flue_qp *qp)
{
	struct flue_qp_values v = { sizeof(v), .state = FLUE_QP_SQD, .tell_drained = true };

	assert_ok(qp->ops->modify(qp, &v, FLUE_QPV_STATE | FLUE_QPV_TELL_DRAINED));
}

static void drained_queue_waits(void **state)
{
	struct pair *p = up();

	talk(p);
	assert_ok(pair_send(&p->a, 0, 10, 5, FLUE_SIGNALED)); /* begins, and is not taken */
	usleep(20000);
	drain(p->a.qp);
	assert_int_equal(flue_qp_state(p->a.qp), FLUE_QP_SQD);
	assert_ok(pair_send(&p->a, 0, 10, 6, FLUE_SIGNALED));
	assert_ok(pair_recv(&p->a, 0, 10, 7));
	conf_expect_quiet(p);
	assert_ok(pair_recv(&p->b, 0, 10, 1));
	assert_ok(pair_recv(&p->b, 0, 10, 2));
	assert_true(pair_expect(p->a.send_cq, 5, FLUE_WC_SUCCESS));
	assert_true(pair_event(&p->a, FLUE_EVENT_SQ_DRAINED, p->a.qp, NULL, 2000));
	assert_true(nothing_comes(p->a.send_cq, 50));
	/* Receives go on. */
	assert_ok(pair_send(&p->b, 0, 10, 8, FLUE_SIGNALED));
	assert_true(pair_expect(p->a.recv_cq, 7, FLUE_WC_SUCCESS));
	assert_ok(to_state(p->a.qp, FLUE_QP_RTS));
	assert_true(pair_expect(p->a.send_cq, 6, FLUE_WC_SUCCESS));
	end(p);
}

static void idle_queue_is_drained_at_once(void **state)
{
	struct pair *p = up();

	talk(p);
	for (int i = 0; i < 3; i++) {
		drain(p->a.qp);
		assert_true(pair_event(&p->a, FLUE_EVENT_SQ_DRAINED, p->a.qp, NULL, 2000));
		assert_ok(to_state(p->a.qp, FLUE_QP_RTS));
	}
	/* Nobody wants to know. */
	assert_ok(to_state(p->a.qp, FLUE_QP_SQD));
	conf_expect_quiet(p);
	assert_ok(to_state(p->a.qp, FLUE_QP_RTS));
	talk(p);
	end(p);
}

/* ---- another process ---- */

/* The peer, in another process: tells its number, brings its queue pair up, and then waits. */
static void child(int in, int out)
{
	struct pair_options o = PAIR_DEFAULTS;
	struct pair p;
	uint32_t peer;
	char c;

	o.qp_flags = FLUE_QP_BRINGUP;
	if (!pair_make(&p, &o) || write(out, &p.a.qp->number, 4) != 4 || read(in, &peer, 4) != 4)
		_exit(1);
	if (!to_init(p.a.qp) || !pair_recv(&p.a, 0, 100, 1) || !to_rtr(p.a.qp, peer) ||
	    !to_rts(p.a.qp) || write(out, "r", 1) != 1)
		_exit(2);
	while (read(in, &c, 1) == 1) {
		if (c == 'r' && !pair_recv(&p.a, 0, 100, 1))
			_exit(3);
	}
	_exit(0);
}

struct other {
	pid_t pid;
	int in, out; /* from and to it */
	uint32_t number;
};

static void start_other(struct other *o)
{
	int to[2], from[2];

	assert_int_equal(pipe(to), 0);
	assert_int_equal(pipe(from), 0);
	o->pid = fork();
	if (o->pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL); /* also if a test fails */
		close(to[1]);
		close(from[0]);
		child(to[0], from[1]);
	}
	close(to[0]);
	close(from[1]);
	o->in = from[0];
	o->out = to[1];
	assert_int_equal(read(o->in, &o->number, 4), 4);
}

static void stop_other(struct other *o)
{
	int status;

	kill(o->pid, SIGKILL);
	waitpid(o->pid, &status, 0);
	close(o->in);
	close(o->out);
}

static struct pair *meet(struct other *o)
{
	struct pair *p;
	char c;

	start_other(o);
	p = make();
	assert_int_equal(write(o->out, &p->a.qp->number, 4), 4);
	bring_up(p->a.qp, o->number);
	assert_int_equal(read(o->in, &c, 1), 1);
	assert_ok(pair_send(&p->a, 0, 10, 1, FLUE_SIGNALED));
	assert_true(pair_expect(p->a.send_cq, 1, FLUE_WC_SUCCESS));
	return p;
}

/* It is slow, not gone: ten seconds are much more than time-out times retries. */
static void stopped_peer_is_waited_for(void **state)
{
	struct flue_qp_values v = { sizeof(v), .timeout = 14, .retries = 7 };
	struct other o;
	struct pair *p;
	int status;

	if (CONF_TSAN || strcmp(pair_provider, "soft")) /* which no double makes faster */
		skip();
	p = meet(&o);
	assert_ok(p->a.qp->ops->modify(p->a.qp, &v, FLUE_QPV_TIMEOUT | FLUE_QPV_RETRIES));
	assert_int_equal(write(o.out, "r", 1), 1);
	usleep(20000);
	assert_int_equal(kill(o.pid, SIGSTOP), 0);
	assert_int_equal(waitpid(o.pid, &status, WUNTRACED), o.pid);
	assert_ok(pair_send(&p->a, 0, 100, 2, FLUE_SIGNALED));
	assert_true(nothing_comes(p->a.send_cq, 10000));
	assert_int_equal(flue_qp_state(p->a.qp), FLUE_QP_RTS);
	assert_int_equal(kill(o.pid, SIGCONT), 0);
	assert_true(pair_expect(p->a.send_cq, 2, FLUE_WC_SUCCESS));
	stop_other(&o);
	end(p);
}

static void survivor_of_a_killed_peer(void **state)
{
	struct other o;
	struct pair *p;

	if (CONF_TSAN)
		skip();
	p = meet(&o);
	assert_ok(pair_recv(&p->a, 0, 10, 5));
	stop_other(&o);
	usleep(50000);
	assert_int_equal(flue_qp_state(p->a.qp), FLUE_QP_RTS);
	assert_true(nothing_comes(p->a.recv_cq, 0));
	assert_ok(pair_write(&p->a, 0, 10, &p->b, 0, 6, FLUE_SIGNALED));
	assert_true(pair_expect(p->a.send_cq, 6, FLUE_WC_RETRY_EXCEEDED));
	assert_true(pair_expect(p->a.recv_cq, 5, FLUE_WC_FLUSHED));
	end(p);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(states_are_those_of_the_verbs),
		cmocka_unit_test(numbers_have_24_bits_and_rest),
		cmocka_unit_test(what_is_asked_for_is_told),
		cmocka_unit_test(wrong_values_change_nothing),
		cmocka_unit_test(a_connection_manager_is_not_for_these),
		cmocka_unit_test(the_two_find_each_other),
		cmocka_unit_test(in_any_order),
		cmocka_unit_test(what_was_posted_before_goes_out),
		cmocka_unit_test(first_message_in_rtr_is_told),
		cmocka_unit_test(many_of_them),
		cmocka_unit_test(somebody_else_is_not_taken),
		cmocka_unit_test(a_number_that_nobody_has),
		cmocka_unit_test(itself_it_cannot_call),
		cmocka_unit_test(survivor_of_a_destroyed_peer),
		cmocka_unit_test(survivor_of_a_reset_peer),
		cmocka_unit_test(survivor_of_a_peer_in_error),
		cmocka_unit_test(requests_that_wait_end_with_the_peer),
		cmocka_unit_test(no_time_out_means_for_ever),
		cmocka_unit_test(another_connection_after_reset),
		cmocka_unit_test(peer_is_told_what_was_wrong),
		cmocka_unit_test(too_long_a_message_is_told),
		cmocka_unit_test(last_receive_of_a_shared_queue_is_told),
		cmocka_unit_test(drained_queue_waits),
		cmocka_unit_test(idle_queue_is_drained_at_once),
		cmocka_unit_test(stopped_peer_is_waited_for),
		cmocka_unit_test(survivor_of_a_killed_peer),
	};

	conf_init(argc, argv);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
