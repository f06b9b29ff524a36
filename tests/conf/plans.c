/* SPDX-License-Identifier: MIT */
/*
 * The access layer on a provider that goes wrong: every slot fails in turn, answers late; up-calls
 * come twice, late or never. Callers get the errno, nothing leaks, nothing hangs, and each event is
 * told once.
 */
#include "conf/conf.h"

#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

static struct pair p;

static int forget_plan(void **state)
{
	faulty_reset();
	return 0;
}

/* All slots that making and connecting a pair uses. */
static const enum faulty_slot building[] = {
	FAULTY_open,        FAULTY_set_completion_handler,
	FAULTY_create_pd,   FAULTY_create_cq,
	FAULTY_register_mr, FAULTY_create_srq,
	FAULTY_create_qp,   FAULTY_listen,
	FAULTY_connect,
};

static struct pair_options with_srq(void)
{
	struct pair_options o = PAIR_DEFAULTS;

	o.srq_depth = 8;
	return o;
}

/* Fails each call of each slot once; returns how many failures there were. */
static unsigned fail_each_in_turn(const enum faulty_slot *slots, size_t n_slots, int error)
{
	struct pair_options o = with_srq();
	unsigned failures = 0;

	for (size_t i = 0; i < n_slots; i++) {
		for (unsigned nth = 1;; nth++) {
			faulty_reset();
			faulty_fail(slots[i], nth, error);
			if (pair_open(&p, &o)) {
				assert_ok(pair_close(&p));
				assert_true(nth > 1);
				break;
			}
			if (errno != error)
				fail_msg("%s, call %u: %s", faulty_slot_name(slots[i]), nth,
					 strerror(errno));
			failures++;
		}
	}
	return failures;
}

static void every_failing_create_slot_is_survived(void **state)
{
	size_t n = sizeof(building) / sizeof(building[0]);

	assert_true(fail_each_in_turn(building, n, ENOSPC) >= n);
	assert_true(fail_each_in_turn(building, n, ENOMEM) >= n);
}

static void every_failing_create_slot_is_survived_when_it_answers_late(void **state)
{
	struct pair_options o = with_srq();

	for (enum faulty_slot slot = 0; slot < FAULTY_NCONTROL; slot++) {
		faulty_reset();
		faulty_delay_all(1);
		faulty_fail(slot, 1, ENOSPC);
		if (pair_open(&p, &o)) {
			/* It is a slot of destruction then, or one that is not used. */
			if (!pair_close(&p)) {
				assert_int_equal(errno, ENOSPC);
				assert_ok(pair_close(&p));
			}
		} else {
			assert_int_equal(errno, ENOSPC);
		}
	}
}

static void objects_stay_usable_when_destroying_them_fails(void **state)
{
	static const enum faulty_slot slots[] = {
		FAULTY_destroy_qp, FAULTY_destroy_srq, FAULTY_deregister_mr,
		FAULTY_destroy_cq, FAULTY_destroy_pd,  FAULTY_destroy_listener,
	};
	struct pair_options o = with_srq();

	for (size_t i = 0; i < sizeof(slots) / sizeof(slots[0]); i++) {
		faulty_reset();
		assert_ok(pair_open(&p, &o));
		faulty_fail(slots[i], 1, EIO);
		assert_fails(pair_close(&p), EIO);
		if (slots[i] == FAULTY_destroy_qp) {
			assert_int_equal(flue_qp_state(p.a.qp), FLUE_QP_RTS);
			assert_ok(pair_recv(&p.b, 0, 8, 1));
			assert_ok(pair_send(&p.a, 0, 8, 2, 0));
			assert_true(pair_expect(p.b.recv_cq, 1, FLUE_WC_SUCCESS));
		}
		assert_ok(pair_close(&p));
	}
}

static void other_slots_pass_on_their_errors(void **state)
{
	struct pair_options o = with_srq();
	struct flue_wc wc;
	uint32_t got;
	struct flue_cq *cq;
	struct flue_mr *mr;

	assert_ok(pair_open(&p, &o));
	cq = p.a.send_cq;
	mr = p.a.mr;
	faulty_fail(FAULTY_post_send, 1, ENOMEM);
	assert_fails(pair_send(&p.a, 0, 8, 1, 0), ENOMEM);
	faulty_fail(FAULTY_post_srq, 1, ENOMEM);
	assert_fails(pair_recv(&p.a, 0, 8, 1), ENOMEM);
	faulty_fail(FAULTY_poll, 1, EIO);
	assert_fails(flue_poll(cq, &wc, 1, &got), EIO);
	faulty_fail(FAULTY_wait, 1, EIO);
	assert_fails(flue_wait(cq, 0), EIO);
	faulty_fail(FAULTY_arm, 1, ENOMEM);
	assert_fails(cq->ops->notify(cq, FLUE_NOTIFY_NEXT, NULL, NULL), ENOMEM);
	faulty_fail(FAULTY_resize_cq, 1, ENOMEM);
	assert_fails(cq->ops->resize(cq, 1000), ENOMEM);
	assert_int_equal(cq->depth, 256);
	faulty_fail(FAULTY_modify_mr, 1, EBUSY);
	assert_fails(mr->ops->modify(mr, FLUE_MR_PD, NULL, p.a.pd), EBUSY);
	faulty_fail(FAULTY_arm_srq, 1, EIO);
	assert_fails(p.a.srq->ops->arm_limit(p.a.srq, 1), EIO);
	faulty_fail(FAULTY_create_mw, 1, ENOSPC);
	assert_fails(p.a.pd->ops->create_mw(p.a.pd), ENOSPC);
	faulty_fail(FAULTY_disconnect, 1, EIO);
	assert_fails(flue_disconnect(p.a.qp), EIO);
	faulty_fail(FAULTY_abort, 1, EIO);
	assert_fails(flue_abort(p.a.qp), EIO);
	faulty_fail(FAULTY_reset_qp, 1, EBUSY);
	assert_fails(p.a.qp->ops->reset(p.a.qp), EBUSY);
	assert_int_equal(flue_qp_state(p.a.qp), FLUE_QP_RTS);
	assert_ok(pair_close(&p));
}

static void failing_accept_and_reject_use_up_the_request(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;
	struct flue_conn_request *req;
	struct flue_conn_attr attr;

	assert_ok(pair_make(&p, &o));
	faulty_fail(FAULTY_accept, 1, ENOMEM);
	assert_fails(pair_connect(&p), ECONNREFUSED);
	attr = pair_conn_attr(&p, FLUE_CONN_ASYNC);
	assert_ok(p.a.qp->ops->connect(p.a.qp, &attr));
	assert_ok(req = p.listener->ops->get_request(p.listener, 5000));
	faulty_fail(FAULTY_reject, 1, EIO);
	assert_fails(req->ops->reject(req, NULL, 0), EIO);
	assert_true(pair_event(&p.a, FLUE_EVENT_CONNECT_FAILED, p.a.qp, NULL, 5000));
	assert_ok(pair_connect(&p));
	assert_ok(pair_close(&p));
}

static void failing_start_can_be_repeated(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;
	struct flue_conn_request *req;
	struct flue_conn_attr attr;

	assert_ok(pair_make(&p, &o));
	attr = pair_conn_attr(&p, FLUE_CONN_ASYNC | FLUE_CONN_DEFER);
	assert_ok(p.a.qp->ops->connect(p.a.qp, &attr));
	assert_ok(req = p.listener->ops->get_request(p.listener, 5000));
	attr = pair_conn_attr(&p, FLUE_CONN_ASYNC);
	assert_ok(req->ops->accept(req, p.b.qp, &attr));
	assert_true(pair_event(&p.a, FLUE_EVENT_ACCEPTED, p.a.qp, NULL, 5000));
	faulty_fail(FAULTY_start, 1, ENOMEM);
	assert_fails(p.a.qp->ops->start(p.a.qp), ENOMEM);
	assert_ok(p.a.qp->ops->start(p.a.qp));
	assert_true(pair_event(&p.a, FLUE_EVENT_CONNECTED, p.a.qp, NULL, 5000));
	assert_ok(pair_close(&p));
}

/* ---- up-calls ---- */

/* One connection from beginning to end, all by events; each must come exactly once. */
static void live_through_events(uint32_t flags)
{
	struct flue_conn_request *req;
	struct flue_conn_attr attr = pair_conn_attr(&p, FLUE_CONN_ASYNC | flags);

	assert_ok(p.a.qp->ops->connect(p.a.qp, &attr));
	assert_true(pair_event(&p.b, FLUE_EVENT_REQUEST, p.listener, NULL, 5000));
	assert_ok(req = p.listener->ops->get_request(p.listener, 5000));
	attr = pair_conn_attr(&p, FLUE_CONN_ASYNC);
	assert_ok(req->ops->accept(req, p.b.qp, &attr));
	if (flags & FLUE_CONN_DEFER) {
		assert_true(pair_event(&p.a, FLUE_EVENT_ACCEPTED, p.a.qp, NULL, 5000));
		assert_ok(p.a.qp->ops->start(p.a.qp));
	}
	assert_true(pair_event(&p.a, FLUE_EVENT_CONNECTED, p.a.qp, NULL, 5000));
	assert_true(pair_event(&p.b, FLUE_EVENT_CONNECTED, p.b.qp, NULL, 5000));
	assert_ok(p.a.qp->ops->disconnect(p.a.qp, -1));
	conf_expect_end(&p, FLUE_CLOSE_GRACEFUL, FLUE_CLOSE_GRACEFUL);
}

static void repeated_up_calls_are_told_once(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;

	for (uint32_t type = FLUE_EVENT_ACCEPTED; type < FLUE_EVENT_NTYPES; type++)
		faulty_upcall(type, FAULTY_TWICE, 0);
	assert_ok(pair_make(&p, &o));
	live_through_events(0);
	live_through_events(FLUE_CONN_DEFER);
	usleep(20000);
	conf_expect_quiet(&p);
	/* And for blocking callers. */
	assert_ok(pair_connect(&p));
	conf_expect_quiet(&p);
	assert_ok(flue_disconnect(p.b.qp));
	conf_expect_end(&p, FLUE_CLOSE_GRACEFUL, FLUE_CLOSE_GRACEFUL);
	conf_expect_quiet(&p);
	assert_ok(pair_close(&p));
}

static void repeated_failures_are_told_once(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;
	struct flue_conn_request *req;
	struct flue_conn_attr attr;

	faulty_upcall(FLUE_EVENT_CONNECT_FAILED, FAULTY_TWICE, 0);
	assert_ok(pair_make(&p, &o));
	attr = pair_conn_attr(&p, FLUE_CONN_ASYNC);
	assert_ok(p.a.qp->ops->connect(p.a.qp, &attr));
	assert_ok(req = p.listener->ops->get_request(p.listener, 5000));
	assert_ok(req->ops->reject(req, "no", 2));
	assert_true(pair_event(&p.a, FLUE_EVENT_CONNECT_FAILED, p.a.qp, NULL, 5000));
	usleep(20000);
	conf_expect_quiet(&p);
	assert_ok(pair_connect(&p));
	assert_ok(pair_close(&p));
}

static void late_up_calls_are_still_told_once(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;

	for (uint32_t type = FLUE_EVENT_REQUEST; type < FLUE_EVENT_NTYPES; type++)
		faulty_upcall(type, FAULTY_LATE, 30);
	assert_ok(pair_make(&p, &o));
	live_through_events(0);
	live_through_events(FLUE_CONN_DEFER);
	assert_ok(pair_connect(&p));
	assert_ok(flue_disconnect(p.a.qp));
	conf_expect_end(&p, FLUE_CLOSE_GRACEFUL, FLUE_CLOSE_GRACEFUL);
	conf_expect_quiet(&p);
	assert_ok(pair_close(&p));
}

static void objects_can_be_destroyed_while_an_up_call_is_late(void **state)
{
	struct pair_options o = with_srq();
	struct flue_conn_attr attr;

	for (uint32_t type = FLUE_EVENT_REQUEST; type < FLUE_EVENT_NTYPES; type++)
		faulty_upcall(type, FAULTY_LATE, 100);
	assert_ok(pair_open(&p, &o));
	assert_ok(flue_abort(p.a.qp));
	assert_ok(pair_close(&p));
	assert_ok(pair_make(&p, &o));
	attr = pair_conn_attr(&p, FLUE_CONN_ASYNC);
	assert_ok(p.a.qp->ops->connect(p.a.qp, &attr));
	usleep(30000);
	/* The request is late, and its listener goes. */
	assert_ok(pair_close(&p));
}

static void dropped_request_is_a_rejection(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;

	assert_ok(pair_make(&p, &o));
	faulty_upcall(FLUE_EVENT_REQUEST, FAULTY_DROP, 0);
	assert_fails(pair_connect(&p), ECONNREFUSED);
	faulty_upcall(FLUE_EVENT_REQUEST, FAULTY_PASS, 0);
	assert_ok(pair_connect(&p));
	assert_ok(pair_close(&p));
}

static void *accept_one(void *arg)
{
	struct flue_conn_request *req = p.listener->ops->get_request(p.listener, 5000);
	struct flue_conn_attr attr = FLUE_ATTR(struct flue_conn_attr);

	attr.flags = FLUE_CONN_ASYNC;
	if (!req || !req->ops->accept(req, p.b.qp, &attr))
		perror("accept");
	return NULL;
}

static void connect_returns_when_its_outcome_is_never_told(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;
	struct flue_conn_attr attr;
	pthread_t thread;
	uint64_t start;

	assert_ok(pair_make(&p, &o));
	faulty_upcall(FLUE_EVENT_CONNECTED, FAULTY_DROP, 0);
	faulty_upcall(FLUE_EVENT_CONNECT_FAILED, FAULTY_DROP, 0);
	faulty_upcall(FLUE_EVENT_DISCONNECTED, FAULTY_DROP, 0);
	assert_int_equal(pthread_create(&thread, NULL, accept_one, NULL), 0);
	attr = pair_conn_attr(&p, 0);
	attr.timeout_ms = 100;
	start = pair_now_ms();
	assert_fails(p.a.qp->ops->connect(p.a.qp, &attr), ETIMEDOUT);
	assert_true(pair_now_ms() - start >= 1000);
	assert_true(pair_now_ms() - start < 8000);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_fails(p.a.qp->ops->connect(p.a.qp, &attr), EISCONN);
	/* Resources are always destroyed. */
	assert_ok(pair_close(&p));
}

static void disconnect_returns_when_its_end_is_never_told(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;
	struct flue_event ev;

	assert_ok(pair_open(&p, &o));
	faulty_upcall(FLUE_EVENT_DISCONNECTED, FAULTY_DROP, 0);
	assert_fails(p.a.qp->ops->disconnect(p.a.qp, 100), ETIMEDOUT);
	assert_true(pair_event(&p.a, FLUE_EVENT_DISCONNECTED, p.a.qp, &ev, 0));
	assert_int_equal(ev.reason, FLUE_CLOSE_LOCAL);
	assert_int_equal(ev.detail, ETIMEDOUT);
	conf_expect_quiet(&p);
	assert_ok(pair_close(&p));
}

static void queue_pairs_that_never_flush_can_be_destroyed(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;
	struct flue_wc wc;

	faulty_never_flush(true);
	assert_ok(pair_open(&p, &o));
	for (uint64_t id = 0; id < 20; id++)
		assert_ok(pair_recv(&p.a, 0, 8, id));
	assert_ok(flue_abort(p.a.qp));
	assert_int_equal(pair_take(p.a.recv_cq, &wc, 1, 50), 0);
	assert_ok(pair_close(&p));
}

/* ---- completion handlers ---- */

struct counted {
	atomic_uint n, disorder;
};

static void count_completion(struct flue_cq *cq, const struct flue_wc *wc, void *arg)
{
	struct counted *c = arg;

	if (atomic_fetch_add(&c->n, 1) != wc->id)
		atomic_fetch_add(&c->disorder, 1);
}

static void count_notice(struct flue_cq *cq, void *arg)
{
	atomic_fetch_add((atomic_uint *)arg, 1);
}

static bool until(atomic_uint *n, unsigned want)
{
	for (unsigned i = 0; i < 5000 && atomic_load(n) < want; i++)
		usleep(1000);
	return atomic_load(n) >= want;
}

static void repeated_handler_calls_do_not_repeat_completions(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;
	static struct counted c;

	memset(&c, 0, sizeof(c));
	faulty_upcall(FAULTY_COMPLETION, FAULTY_TWICE, 0);
	o.on_completion[1] = count_completion;
	o.completion_arg[1] = &c;
	assert_ok(pair_open(&p, &o));
	for (uint64_t id = 0; id < 50; id++)
		assert_ok(pair_recv(&p.b, 0, 8, id));
	for (uint64_t id = 0; id < 50; id++)
		assert_ok(pair_send(&p.a, 0, 8, id, 0));
	assert_true(until(&c.n, 50));
	usleep(20000);
	assert_int_equal(atomic_load(&c.n), 50);
	assert_int_equal(atomic_load(&c.disorder), 0);
	assert_ok(pair_close(&p));
}

static void repeated_handler_calls_give_one_notice(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;
	static atomic_uint n;

	atomic_store(&n, 0);
	faulty_upcall(FAULTY_COMPLETION, FAULTY_TWICE, 0);
	assert_ok(pair_open(&p, &o));
	assert_ok(p.a.send_cq->ops->notify(p.a.send_cq, FLUE_NOTIFY_NEXT, count_notice, &n));
	assert_ok(pair_write(&p.a, 0, 8, &p.b, 0, 1, FLUE_SIGNALED));
	assert_true(until(&n, 1));
	usleep(20000);
	assert_int_equal(atomic_load(&n), 1);
	assert_ok(pair_close(&p));
}

static void waiting_needs_no_handler(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;

	faulty_upcall(FAULTY_COMPLETION, FAULTY_DROP, 0);
	assert_ok(pair_open(&p, &o));
	assert_ok(pair_recv(&p.b, 0, 8, 1));
	assert_ok(pair_send(&p.a, 0, 8, 2, FLUE_SIGNALED));
	assert_true(pair_expect(p.b.recv_cq, 1, FLUE_WC_SUCCESS));
	assert_true(pair_expect(p.a.send_cq, 2, FLUE_WC_SUCCESS));
	assert_ok(pair_close(&p));
}

#define PLAN(test) cmocka_unit_test_setup_teardown(test, forget_plan, forget_plan)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		PLAN(every_failing_create_slot_is_survived),                      /* RD-6 */
		PLAN(every_failing_create_slot_is_survived_when_it_answers_late), /* RD-6 */
		PLAN(objects_stay_usable_when_destroying_them_fails),             /* RD-1 */
		PLAN(other_slots_pass_on_their_errors),                           /* RD-6 */
		PLAN(failing_accept_and_reject_use_up_the_request),               /* RD-8 */
		PLAN(failing_start_can_be_repeated),                              /* RD-10 */
		PLAN(repeated_up_calls_are_told_once),                            /* CH-18 */
		PLAN(repeated_failures_are_told_once),                            /* CH-18 */
		PLAN(late_up_calls_are_still_told_once),                          /* CH-18 */
		PLAN(objects_can_be_destroyed_while_an_up_call_is_late),          /* RD-6 */
		PLAN(dropped_request_is_a_rejection),                             /* RD-8 */
		PLAN(connect_returns_when_its_outcome_is_never_told),             /* RD-8 */
		PLAN(disconnect_returns_when_its_end_is_never_told),              /* CH-18 */
		PLAN(queue_pairs_that_never_flush_can_be_destroyed),              /* RD-6 */
		PLAN(repeated_handler_calls_do_not_repeat_completions),           /* CH-4 */
		PLAN(repeated_handler_calls_give_one_notice),                     /* CH-4 */
		PLAN(waiting_needs_no_handler),                                   /* RD-2 */
	};

	(void)argc;
	(void)argv;
	faulty_wrap(&soft_provider);
	pair_provider = "faulty";
	return cmocka_run_group_tests(tests, NULL, NULL);
}
