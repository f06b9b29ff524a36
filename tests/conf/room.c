/* SPDX-License-Identifier: MIT */
/*
 * Conformance: room in the queues. A slot is free when the completion of its request was taken, so
 * a CQ as deep as all queues that use it never overflows (RD-2, CH-5).
 */
#include "conf/conf.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

#define SQ 16u
#define RQ 8u

static struct pair *open_tight(uint32_t srq_depth)
{
	struct pair_options o = PAIR_DEFAULTS;

	o.one_cq = true;
	o.sq_depth = SQ;
	o.rq_depth = RQ;
	o.srq_depth = srq_depth;
	o.cq_depth = SQ + RQ;
	return conf_pair(&o);
}

/* All that was posted is done when this returns, and nothing of it was taken. */
static void let_finish(void)
{
	usleep(100000);
}

/* Writes until the queue is full; returns how many fitted. */
static uint32_t fill_with_writes(struct pair *p, uint32_t flags)
{
	uint32_t n = 0;

	while (n <= 2 * SQ && pair_write(&p->a, 0, 8, &p->b, 0, n, flags))
		n++;
	assert_int_equal(errno, ENOMEM);
	return n;
}

static uint32_t fill_with_receives(struct pair_side *s)
{
	uint32_t n = 0;

	while (n <= 2 * RQ && pair_recv(s, 0, 8, n))
		n++;
	assert_int_equal(errno, ENOMEM);
	return n;
}

static void take_all(struct flue_cq *cq, uint32_t n, uint32_t status)
{
	struct flue_wc wc[2 * SQ];
	uint32_t more;

	assert_int_equal(pair_take(cq, wc, n, 10000), n);
	for (uint32_t i = 0; i < n; i++)
		assert_int_equal(wc[i].status, status);
	assert_ok(flue_poll(cq, wc, 1, &more));
	assert_int_equal(more, 0);
}

static void send_queue_is_full_until_completions_are_taken(void **state)
{
	struct pair *p = open_tight(0);

	for (int round = 0; round < 4; round++) {
		assert_int_equal(fill_with_writes(p, FLUE_SIGNALED), SQ);
		let_finish();
		assert_fails(pair_write(&p->a, 0, 8, &p->b, 0, 99, FLUE_SIGNALED), ENOMEM);
		assert_true(pair_expect(p->a.send_cq, 0, FLUE_WC_SUCCESS));
		assert_ok(pair_write(&p->a, 0, 8, &p->b, 0, 100, FLUE_SIGNALED));
		assert_fails(pair_write(&p->a, 0, 8, &p->b, 0, 101, FLUE_SIGNALED), ENOMEM);
		take_all(p->a.send_cq, SQ, FLUE_WC_SUCCESS);
	}
	assert_int_equal(flue_qp_state(p->a.qp), FLUE_QP_RTS);
	conf_expect_quiet(p);
	conf_end(p);
}

static void unsignaled_slots_come_back_with_the_next_completion(void **state)
{
	struct pair *p = open_tight(0);

	for (uint32_t i = 0; i < SQ; i++)
		assert_ok(pair_write(&p->a, 0, 8, &p->b, 0, i, i == 10 ? FLUE_SIGNALED : 0));
	let_finish();
	assert_fails(pair_write(&p->a, 0, 8, &p->b, 0, 99, 0), ENOMEM);
	assert_true(pair_expect(p->a.send_cq, 10, FLUE_WC_SUCCESS));
	assert_int_equal(fill_with_writes(p, FLUE_SIGNALED), 11);
	take_all(p->a.send_cq, 11, FLUE_WC_SUCCESS);
	assert_int_equal(fill_with_writes(p, FLUE_SIGNALED), SQ);
	take_all(p->a.send_cq, SQ, FLUE_WC_SUCCESS);
	conf_end(p);
}

static void receive_queue_is_full_until_completions_are_taken(void **state)
{
	struct pair *p = open_tight(0);

	assert_int_equal(fill_with_receives(&p->b), RQ);
	for (uint32_t i = 0; i < RQ; i++)
		assert_ok(pair_send(&p->a, 0, 8, i, FLUE_SIGNALED));
	let_finish();
	assert_fails(pair_recv(&p->b, 0, 8, 99), ENOMEM);
	for (uint32_t i = 0; i < 3; i++)
		assert_true(pair_expect(p->b.recv_cq, i, FLUE_WC_SUCCESS));
	assert_int_equal(fill_with_receives(&p->b), 3);
	take_all(p->b.recv_cq, RQ - 3, FLUE_WC_SUCCESS);
	conf_end(p);
}

/* Receives of one queue come back through two queue pairs, one of which is destroyed. */
static void shared_receives_come_back_with_their_completions(void **state)
{
	struct pair *p = open_tight(RQ);
	struct flue_qp *a = p->a.qp, *a2, *b2;

	assert_ok(a2 = pair_new_qp(p, &p->a));
	assert_ok(b2 = pair_new_qp(p, &p->b));
	assert_ok(pair_connect_qps(p, a2, b2));
	assert_int_equal(fill_with_receives(&p->b), RQ);
	for (uint32_t i = 0; i < RQ; i++) {
		p->a.qp = i < 3 ? a2 : a;
		assert_ok(pair_send(&p->a, 0, 8, i, 0));
		let_finish();
	}
	assert_fails(pair_recv(&p->b, 0, 8, 99), ENOMEM);
	for (uint32_t i = 0; i < 2; i++)
		assert_true(pair_expect(p->b.recv_cq, i, FLUE_WC_SUCCESS));
	assert_int_equal(fill_with_receives(&p->b), 2);
	/* The third one's completion goes with its queue pair. */
	assert_ok(flue_destroy_qp(b2));
	assert_int_equal(fill_with_receives(&p->b), 1);
	take_all(p->b.recv_cq, RQ - 3, FLUE_WC_SUCCESS);
	assert_int_equal(fill_with_receives(&p->b), RQ - 3);
	assert_ok(flue_destroy_qp(a2));
	conf_end(p);
}

static void receive_cut_off_by_destroy_is_given_back(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;
	struct pair *p;

	o.srq_depth = 1;
	o.conn_flags[0] = o.conn_flags[1] = FLUE_CONN_NO_CRC;
	o.memory = 8 << 20;
	p = conf_pair(&o);
	/* Until destroy() met it in the middle: the message is long, the moments are many. */
	for (unsigned i = 0; i < 20; i++) {
		assert_ok(pair_recv(&p->b, 0, 8 << 20, 1));
		assert_ok(pair_send(&p->a, 0, 8 << 20, 2, 0));
		usleep(i * 150);
		assert_ok(flue_destroy_qp(p->b.qp));
		assert_ok(flue_destroy_qp(p->a.qp));
		assert_ok(p->a.qp = pair_new_qp(p, &p->a));
		assert_ok(p->b.qp = pair_new_qp(p, &p->b));
		/* Either it was not taken, or its slot is free. */
		if (!pair_recv(&p->b, 0, 8 << 20, 3))
			assert_int_equal(errno, ENOMEM);
		assert_ok(pair_connect(p));
		assert_ok(pair_send(&p->a, 0, 8, 4, 0));
		take_all(p->b.recv_cq, 1, FLUE_WC_SUCCESS);
	}
	conf_end(p);
}

static void failed_and_flushed_requests_hold_their_slots_alike(void **state)
{
	struct pair *p = open_tight(0);
	struct flue_sge bad = { .addr = 1, .length = 8, .lkey = 0xffffff00 };
	struct flue_send_wr wr = { .id = 50, .op = FLUE_WR_WRITE, .sg = &bad, .n_sg = 1 };

	for (uint32_t i = 0; i < SQ - 2; i++)
		assert_ok(pair_write(&p->a, 0, 8, &p->b, 0, i, 0));
	assert_ok(flue_post_send(p->a.qp, &wr));
	let_finish();
	assert_true(pair_wait_state(p->a.qp, FLUE_QP_ERROR, 10000));
	/* One slot is left, and is flushed. */
	assert_int_equal(fill_with_writes(p, 0), 1);
	assert_true(pair_expect(p->a.send_cq, 50, FLUE_WC_LOCAL_PROTECTION));
	assert_true(pair_expect(p->a.send_cq, 0, FLUE_WC_FLUSHED));
	assert_int_equal(fill_with_writes(p, 0), SQ);
	take_all(p->a.send_cq, SQ, FLUE_WC_FLUSHED);
	assert_int_equal(fill_with_receives(&p->a), RQ);
	take_all(p->a.recv_cq, RQ, FLUE_WC_FLUSHED);
	conf_end(p);
}

static void again(struct pair *p)
{
	assert_ok(flue_abort(p->a.qp));
	assert_true(pair_event(&p->a, FLUE_EVENT_DISCONNECTED, p->a.qp, NULL, 10000));
	assert_true(pair_event(&p->b, FLUE_EVENT_DISCONNECTED, p->b.qp, NULL, 10000));
	assert_ok(p->a.qp->ops->reset(p->a.qp));
	assert_ok(p->b.qp->ops->reset(p->b.qp));
	assert_ok(pair_connect(p));
}

/* What the last connection left in the CQ counts; what nobody will ever see does not. */
static void next_connection_finds_the_room_that_is_left(void **state)
{
	struct pair *p = open_tight(0);

	for (uint32_t i = 0; i < 10; i++)
		assert_ok(pair_write(&p->a, 0, 8, &p->b, 0, i, i < 6 ? FLUE_SIGNALED : 0));
	let_finish();
	again(p);
	assert_int_equal(fill_with_writes(p, 0), SQ - 10);
	let_finish();
	for (uint32_t i = 0; i < 6; i++)
		assert_true(pair_expect(p->a.send_cq, i, FLUE_WC_SUCCESS));
	assert_int_equal(fill_with_writes(p, 0), 10);
	let_finish();
	/* None of these has a completion. */
	again(p);
	assert_int_equal(fill_with_writes(p, FLUE_SIGNALED), SQ);
	take_all(p->a.send_cq, SQ, FLUE_WC_SUCCESS);
	conf_end(p);
}

static void graceful_end_leaves_no_slot_behind(void **state)
{
	struct pair *p = open_tight(0);

	assert_int_equal(fill_with_writes(p, 0), SQ);
	let_finish();
	assert_ok(p->a.qp->ops->disconnect(p->a.qp, 5000));
	assert_true(pair_wait_state(p->b.qp, FLUE_QP_IDLE, 10000));
	assert_ok(pair_connect(p));
	assert_int_equal(fill_with_writes(p, FLUE_SIGNALED), SQ);
	take_all(p->a.send_cq, SQ, FLUE_WC_SUCCESS);
	conf_end(p);
}

static void overflow_loses_completions_but_no_slots(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;
	struct flue_wc wc[8];
	struct pair *p;
	uint32_t got;

	o.cq_depth = 4;
	o.sq_depth = SQ;
	p = conf_pair(&o);
	for (uint32_t i = 0; i < SQ; i++)
		assert_ok(pair_write(&p->a, 0, 8, &p->b, 0, i, FLUE_SIGNALED));
	assert_true(pair_event(&p->b, FLUE_EVENT_DISCONNECTED, p->b.qp, NULL, 10000));
	assert_true(pair_wait_state(p->a.qp, FLUE_QP_ERROR, 10000));
	let_finish();
	assert_int_equal(pair_take(p->a.send_cq, wc, 4, 10000), 4);
	assert_fails(flue_poll(p->a.send_cq, wc, 1, &got), EOVERFLOW);
	assert_ok(p->a.qp->ops->reset(p->a.qp));
	assert_ok(p->b.qp->ops->reset(p->b.qp));
	assert_ok(pair_connect(p));
	for (uint32_t i = 0; i < 2 * SQ; i++) {
		assert_ok(pair_write(&p->a, 0, 8, &p->b, 0, i, FLUE_SIGNALED));
		assert_true(pair_expect(p->a.send_cq, i, FLUE_WC_SUCCESS));
	}
	conf_end(p);
}

/* ---- threads ---- */

/* Two of three requests of each poster are signaled. */
enum { POSTERS = 2, POLLERS = 2, EACH = 3000, SIGNALED = POSTERS * EACH / 3 * 2 };

struct crowd {
	struct pair *p;
	atomic_uint taken;
	atomic_bool failed;
};

static void *keep_posting(void *arg)
{
	struct crowd *c = arg;

	for (uint32_t n = 0; n < EACH && !atomic_load(&c->failed);) {
		if (pair_write(&c->p->a, 0, 8, &c->p->b, 0, n, n % 3 ? FLUE_SIGNALED : 0))
			n++;
		else if (errno == ENOMEM)
			sched_yield();
		else
			atomic_store(&c->failed, true);
	}
	return NULL;
}

static void *keep_polling(void *arg)
{
	uint64_t end = pair_now_ms() + 60000;
	struct crowd *c = arg;
	struct flue_wc wc[4];
	uint32_t got;

	while (atomic_load(&c->taken) < SIGNALED && !atomic_load(&c->failed)) {
		if (!flue_poll(c->p->a.send_cq, wc, 4, &got) || pair_now_ms() > end)
			atomic_store(&c->failed, true);
		for (uint32_t i = 0; i < got; i++)
			if (wc[i].status != FLUE_WC_SUCCESS)
				atomic_store(&c->failed, true);
		atomic_fetch_add(&c->taken, got);
	}
	return NULL;
}

/* Post while it fits, poll what is there: from several threads, and a CQ without reserve. */
static void threads_that_post_until_full_never_overflow_the_cq(void **state)
{
	struct crowd c = { .p = open_tight(0) };
	pthread_t thread[POSTERS + POLLERS];

	for (int i = 0; i < POSTERS + POLLERS; i++)
		assert_int_equal(pthread_create(&thread[i], NULL,
						i < POSTERS ? keep_posting : keep_polling, &c),
				 0);
	for (int i = 0; i < POSTERS + POLLERS; i++)
		pthread_join(thread[i], NULL);
	assert_false(atomic_load(&c.failed));
	assert_int_equal(atomic_load(&c.taken), SIGNALED);
	assert_int_equal(flue_qp_state(c.p->a.qp), FLUE_QP_RTS);
	conf_end(c.p);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(send_queue_is_full_until_completions_are_taken),
		cmocka_unit_test(unsignaled_slots_come_back_with_the_next_completion),
		cmocka_unit_test(receive_queue_is_full_until_completions_are_taken),
		cmocka_unit_test(shared_receives_come_back_with_their_completions),
		cmocka_unit_test(receive_cut_off_by_destroy_is_given_back),
		cmocka_unit_test(failed_and_flushed_requests_hold_their_slots_alike),
		cmocka_unit_test(next_connection_finds_the_room_that_is_left),
		cmocka_unit_test(graceful_end_leaves_no_slot_behind),
		cmocka_unit_test(overflow_loses_completions_but_no_slots),
		cmocka_unit_test(threads_that_post_until_full_never_overflow_the_cq),
	};

	conf_init(argc, argv);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
