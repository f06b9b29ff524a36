/* SPDX-License-Identifier: MIT */
/* Notices, the polling handler, and the choice of processors. */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>
#include <cmocka.h>

#include "access/fake_priv.h"

static struct flue_adapter *a;
static const int cpus[] = { 0, 1 };

static int open_adapter(void **state)
{
	fake_reset();
	a = fake_open(cpus, sysconf(_SC_NPROCESSORS_CONF) > 1 ? 2 : 1);
	return !a;
}

static int close_adapter(void **state)
{
	return !flue_close(a);
}

static bool readable(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return poll(&p, 1, 0) == 1;
}

static void cq_is_refused_when_an_argument_is_impossible(void **state)
{
	struct flue_cq_attr attr = FLUE_ATTR(struct flue_cq_attr);

	assert_fails(flue_create_cq(a, 0), EINVAL);
	assert_fails(flue_create_cq(a, 1025), EINVAL);
	attr.depth = 1;
	attr.cpu_plus_1 = 500;
	assert_fails(a->ops->create_cq(a, &attr), EINVAL);
	attr.cpu_plus_1 = -3;
	assert_fails(a->ops->create_cq(a, &attr), EINVAL);
}

static void poll_takes_what_the_provider_has(void **state)
{
	struct flue_cq *cq = flue_create_cq(a, 8);
	struct flue_wc wc[4];
	uint32_t got;

	fake_complete(cq, NULL, 1, false);
	fake_complete(cq, NULL, 2, false);
	assert_true(flue_poll(cq, wc, 4, &got));
	assert_int_equal(got, 2);
	assert_int_equal(wc[1].id, 2);
	assert_true(flue_poll(cq, wc, 4, &got));
	assert_int_equal(got, 0);
	fake.rc.poll = -EOVERFLOW;
	got = 1;
	assert_fails(flue_poll(cq, wc, 4, &got), EOVERFLOW);
	assert_int_equal(got, 0);
	fake.rc.wait = -ETIMEDOUT;
	assert_fails(flue_wait(cq, 0), ETIMEDOUT);
	assert_true(flue_destroy_cq(cq));
}

static void cq_keeps_its_depth_when_resizing_fails(void **state)
{
	struct flue_cq *cq = flue_create_cq(a, 8);

	assert_true(cq->ops->resize(cq, 16));
	assert_int_equal(cq->depth, 16);
	fake.rc.resize_cq = -EBUSY;
	assert_fails(cq->ops->resize(cq, 4), EBUSY);
	assert_fails(cq->ops->resize(cq, 0), EINVAL);
	assert_fails(cq->ops->resize(cq, 1025), EINVAL);
	assert_int_equal(cq->depth, 16);
	assert_true(flue_destroy_cq(cq));
}

struct notices {
	unsigned n;
	void *cq;
};

static void count(struct flue_cq *cq, void *arg)
{
	struct notices *notices = arg;

	notices->n++;
	notices->cq = cq;
	/* Not from its own callback. */
	assert_fails(flue_destroy_cq(cq), EDEADLK);
	assert_fails(flue_close(a), EDEADLK);
}

static void notify_calls_its_function_once(void **state)
{
	struct flue_cq *cq = flue_create_cq(a, 8);
	struct notices first = { 0 }, second = { 0 };

	fake_complete(cq, NULL, 1, false);
	assert_int_equal(first.n, 0);
	assert_true(cq->ops->notify(cq, FLUE_NOTIFY_NEXT, count, &first));
	assert_int_equal(first.n, 0);
	fake_complete(cq, NULL, 2, false);
	fake_complete(cq, NULL, 3, false);
	assert_int_equal(first.n, 1);
	assert_ptr_equal(first.cq, cq);

	/* A later request replaces one still pending. */
	assert_true(cq->ops->notify(cq, FLUE_NOTIFY_NEXT, count, &first));
	assert_true(cq->ops->notify(cq, FLUE_NOTIFY_NEXT, count, &second));
	fake_complete(cq, NULL, 4, false);
	assert_int_equal(first.n, 1);
	assert_int_equal(second.n, 1);
	/* Nobody has asked for what a provider says once too often. */
	acc_cq_fired(to_cq(cq));
	assert_int_equal(second.n, 1);
	assert_fails(cq->ops->notify(cq, 2, count, NULL), EINVAL);
	assert_true(flue_destroy_cq(cq));
}

static void notify_next_is_not_weakened_by_solicited(void **state)
{
	struct flue_cq *cq = flue_create_cq(a, 8);
	struct notices notices = { 0 };

	assert_true(cq->ops->notify(cq, FLUE_NOTIFY_SOLICITED, count, &notices));
	fake_complete(cq, NULL, 1, false);
	assert_int_equal(notices.n, 0);
	fake_complete(cq, NULL, 2, true);
	assert_int_equal(notices.n, 1);
	assert_true(cq->ops->notify(cq, FLUE_NOTIFY_NEXT, NULL, NULL));
	assert_true(cq->ops->notify(cq, FLUE_NOTIFY_SOLICITED, count, &notices));
	fake_complete(cq, NULL, 3, false);
	assert_int_equal(notices.n, 2);
	assert_true(flue_destroy_cq(cq));
}

static void notify_forgets_the_request_when_arming_fails(void **state)
{
	struct flue_cq *cq = flue_create_cq(a, 8);
	struct notices notices = { 0 };

	fake.rc.arm = -EIO;
	assert_fails(cq->ops->notify(cq, FLUE_NOTIFY_NEXT, count, &notices), EIO);
	fake.rc.arm = 0;
	/* A stray call of the handler. */
	fake.handlers[fake.cq->attr.handler].fn(fake.cq->attr.owner, fake.handlers[0].arg);
	assert_int_equal(notices.n, 0);
	assert_true(flue_destroy_cq(cq));
}

static void fd_is_readable_after_a_notice_until_cleared(void **state)
{
	struct flue_cq *cq = flue_create_cq(a, 8);
	int fd = cq->ops->fd(cq);

	assert_true(fd >= 0);
	assert_int_equal(cq->ops->fd(cq), fd);
	fake_complete(cq, NULL, 1, false);
	assert_false(readable(fd));
	assert_false(cq->ops->clear_fd(cq));
	assert_true(cq->ops->notify(cq, FLUE_NOTIFY_NEXT, NULL, NULL));
	fake_complete(cq, NULL, 2, false);
	assert_true(readable(fd));
	/* A second notice before the first was cleared. */
	assert_true(cq->ops->notify(cq, FLUE_NOTIFY_NEXT, NULL, NULL));
	fake_complete(cq, NULL, 3, false);
	assert_true(cq->ops->clear_fd(cq));
	assert_false(readable(fd));
	assert_false(cq->ops->clear_fd(cq));
	assert_true(flue_destroy_cq(cq));
}

static void fd_made_after_the_notice_is_readable_at_once(void **state)
{
	struct flue_cq *cq = flue_create_cq(a, 8);

	assert_true(cq->ops->notify(cq, FLUE_NOTIFY_NEXT, NULL, NULL));
	fake_complete(cq, NULL, 1, false);
	assert_true(readable(cq->ops->fd(cq)));
	assert_true(cq->ops->clear_fd(cq));
	assert_false(readable(cq->ops->fd(cq)));
	assert_true(flue_destroy_cq(cq));
}

struct taken {
	uint64_t ids[FAKE_RING];
	unsigned n;
	struct flue_qp *destroy;
};

static void take(struct flue_cq *cq, const struct flue_wc *wc, void *arg)
{
	struct taken *taken = arg;

	taken->ids[taken->n++] = wc->id;
	/* Completions that come while the handler runs. */
	if (wc->id == 10)
		for (uint64_t id = 11; id < 20; id++)
			fake_complete(cq, NULL, id, false);
	if (taken->destroy)
		assert_fails(flue_destroy_qp(taken->destroy), EDEADLK);
}

static struct flue_cq *handled_cq(struct taken *taken)
{
	struct flue_cq_attr attr = FLUE_ATTR(struct flue_cq_attr);

	attr.depth = 32;
	attr.on_completion = take;
	attr.arg = taken;
	return a->ops->create_cq(a, &attr);
}

static void handler_gets_all_completions_in_order(void **state)
{
	struct taken taken = { .n = 0 };
	struct flue_cq *cq = handled_cq(&taken);

	/* The arming after the first round finds completions that nobody announced. */
	fake.arm_is_late = true;
	fake_complete(cq, NULL, 10, false);
	assert_int_equal(taken.n, 10);
	for (unsigned i = 0; i < taken.n; i++)
		assert_int_equal(taken.ids[i], 10 + i);
	assert_true(fake.cq->armed);
	assert_true(fake.cq->arms >= 3);
	fake_complete(cq, NULL, 30, false);
	assert_int_equal(taken.n, 11);
	assert_true(flue_destroy_cq(cq));
}

static void handler_goes_on_after_an_overflow(void **state)
{
	struct taken taken = { .n = 0 };
	struct flue_cq *cq = handled_cq(&taken);
	unsigned arms = fake.cq->arms;

	fake.rc.poll = -EOVERFLOW;
	fake_complete(cq, NULL, 1, false);
	assert_int_equal(taken.n, 1);
	assert_int_equal(fake.cq->arms, arms + 1);
	fake.rc.poll = 0;
	fake_complete(cq, NULL, 2, false);
	assert_int_equal(taken.n, 2);
	/* But not when the provider is broken. */
	arms = fake.cq->arms;
	fake.rc.poll = -EIO;
	fake_complete(cq, NULL, 3, false);
	assert_int_equal(taken.n, 3);
	assert_int_equal(fake.cq->arms, arms);
	assert_true(flue_destroy_cq(cq));
}

static void cq_with_a_handler_is_not_for_polling(void **state)
{
	struct taken taken = { .n = 0 };
	struct flue_cq *cq = handled_cq(&taken);
	struct flue_wc wc;
	uint32_t got;

	assert_fails(flue_poll(cq, &wc, 1, &got), EBUSY);
	assert_fails(flue_wait(cq, 0), EBUSY);
	assert_fails(cq->ops->notify(cq, FLUE_NOTIFY_NEXT, NULL, NULL), EBUSY);
	errno = 0;
	assert_int_equal(cq->ops->fd(cq), -1);
	assert_int_equal(errno, EBUSY);
	assert_true(flue_destroy_cq(cq));
	fake.rc.arm = -EIO;
	assert_fails(handled_cq(&taken), EIO);
}

static void qp_refuses_destruction_from_its_own_completion(void **state)
{
	struct flue_qp_attr attr = FLUE_ATTR(struct flue_qp_attr);
	struct taken taken = { .n = 0 };
	struct flue_cq *cq = handled_cq(&taken);
	struct flue_pd *pd = flue_create_pd(a);

	attr.send_cq = attr.recv_cq = cq;
	attr.sq_depth = 1;
	taken.destroy = pd->ops->create_qp(pd, &attr);
	fake_complete(cq, taken.destroy, 1, false);
	assert_int_equal(taken.n, 1);
	assert_true(flue_destroy_qp(taken.destroy));
	assert_true(flue_destroy_pd(pd));
	assert_true(flue_destroy_cq(cq));
}

static void cq_error_is_told_once(void **state)
{
	struct flue_cq *cq = flue_create_cq(a, 8);
	struct flue_event ev;
	struct flue_wc wc;
	uint32_t got;

	fake.adapter->up->cq_error(cq);
	fake.adapter->up->cq_error(cq);
	assert_true(flue_get_event(a, &ev, 0));
	assert_int_equal(ev.type, FLUE_EVENT_CQ_ERROR);
	assert_ptr_equal(ev.u.cq, cq);
	fake.adapter->up->cq_error(cq);
	assert_fails(flue_get_event(a, &ev, 0), EAGAIN);
	/* Polled to the end, it can overflow again. */
	fake.rc.poll = -EOVERFLOW;
	assert_fails(flue_poll(cq, &wc, 1, &got), EOVERFLOW);
	fake.adapter->up->cq_error(cq);
	fake.adapter->up->cq_error(cq);
	assert_true(flue_get_event(a, &ev, 0));
	assert_fails(flue_get_event(a, &ev, 0), EAGAIN);
	assert_true(flue_destroy_cq(cq));
}

/* ---- CH-3 ---- */

static struct flue_adapter *open_with(uint32_t balance,
				      uint32_t (*choose)(const struct flue_cpu_load *, uint32_t,
							 void *),
				      void *arg)
{
	struct flue_open_attr attr = FLUE_ATTR(struct flue_open_attr);

	attr.provider = "fake";
	attr.cpus = a->cpus;
	attr.n_cpus = a->n_cpus;
	attr.balance = balance;
	attr.choose_cpu = choose;
	attr.choose_arg = arg;
	return flue_open(&attr);
}

static struct flue_cq *cq_on(struct flue_adapter *on, int cpu)
{
	struct flue_cq_attr attr = FLUE_ATTR(struct flue_cq_attr);

	attr.depth = 4;
	attr.cpu_plus_1 = cpu + 1;
	return on->ops->create_cq(on, &attr);
}

static void cqs_take_turns_with_round_robin(void **state)
{
	struct flue_adapter *b = open_with(FLUE_BALANCE_ROUND_ROBIN, NULL, NULL);
	struct flue_cq *cq[4];

	for (unsigned i = 0; i < 4; i++) {
		cq[i] = flue_create_cq(b, 4);
		assert_int_equal(cq[i]->cpu, b->cpus[i % b->n_cpus]);
		assert_int_equal(fake.handlers[fake.cq->attr.handler].cpu, cq[i]->cpu);
	}
	for (unsigned i = 0; i < 4; i++)
		assert_true(flue_destroy_cq(cq[i]));
	assert_true(flue_close(b));
}

static void cq_goes_where_it_is_wanted(void **state)
{
	for (uint32_t i = 0; i < a->n_cpus; i++) {
		struct flue_cq *cq = cq_on(a, a->cpus[i]);

		assert_int_equal(cq->cpu, a->cpus[i]);
		assert_int_equal(fake.handlers[fake.cq->attr.handler].cpu, a->cpus[i]);
		assert_true(fake.cq->attr.affine);
		assert_true(flue_destroy_cq(cq));
	}
}

static void cq_goes_where_the_fewest_qps_are(void **state)
{
	struct flue_adapter *b = open_with(FLUE_BALANCE_FEWEST_QPS, NULL, NULL);
	struct flue_qp_attr attr = FLUE_ATTR(struct flue_qp_attr);
	struct flue_pd *pd = flue_create_pd(b);
	struct flue_cq *first = flue_create_cq(b, 4), *second = flue_create_cq(b, 4), *third;
	struct flue_qp *qp;

	if (b->n_cpus > 1)
		assert_int_not_equal(first->cpu, second->cpu);
	attr.send_cq = attr.recv_cq = first;
	attr.sq_depth = 1;
	qp = pd->ops->create_qp(pd, &attr);
	third = flue_create_cq(b, 4);
	assert_int_equal(third->cpu, second->cpu);
	assert_true(flue_destroy_qp(qp));
	assert_true(flue_destroy_cq(third));
	assert_true(flue_destroy_cq(first));
	third = flue_create_cq(b, 4);
	if (b->n_cpus > 1)
		assert_int_not_equal(third->cpu, second->cpu);
	assert_true(flue_destroy_cq(third));
	assert_true(flue_destroy_cq(second));
	assert_true(flue_destroy_pd(pd));
	assert_true(flue_close(b));
}

static void make_events(struct flue_cq *cq, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		assert_true(cq->ops->notify(cq, FLUE_NOTIFY_NEXT, NULL, NULL));
		fake_complete(cq, NULL, i, false);
	}
}

static void cq_goes_where_the_least_events_were(void **state)
{
	struct flue_adapter *b = open_with(FLUE_BALANCE_LEAST_EVENTS, NULL, NULL);
	struct flue_cq *busy = cq_on(b, b->cpus[0]), *cq;

	make_events(busy, 10);
	cq = flue_create_cq(b, 4);
	assert_int_equal(cq->cpu, b->cpus[b->n_cpus - 1]);
	assert_true(flue_destroy_cq(cq));
	assert_true(flue_destroy_cq(busy));
	assert_true(flue_close(b));
}

/* Old load repels nobody for ever. */
static void events_of_long_ago_count_no_more(void **state)
{
	struct flue_cq *was_busy, *busy, *cq;
	struct flue_adapter *b;

	if (a->n_cpus == 1)
		skip();
	b = open_with(FLUE_BALANCE_LEAST_EVENTS, NULL, NULL);
	was_busy = cq_on(b, b->cpus[0]);
	busy = cq_on(b, b->cpus[1]);
	make_events(was_busy, 8);
	for (unsigned i = 0; i < 4; i++) {
		cq = flue_create_cq(b, 4);
		assert_int_equal(cq->cpu, busy->cpu);
		assert_true(flue_destroy_cq(cq));
	}
	make_events(busy, 3);
	cq = flue_create_cq(b, 4);
	assert_int_equal(cq->cpu, was_busy->cpu);
	assert_true(flue_destroy_cq(cq));
	assert_true(flue_destroy_cq(was_busy));
	assert_true(flue_destroy_cq(busy));
	assert_true(flue_close(b));
}

static void cqs_that_are_gone_do_not_count(void **state)
{
	struct flue_adapter *b = open_with(FLUE_BALANCE_FEWEST_QPS, NULL, NULL);
	struct flue_cq *gone[2], *last, *cq;

	for (unsigned i = 0; i < 2; i++)
		gone[i] = cq_on(b, b->cpus[0]);
	last = cq_on(b, b->cpus[b->n_cpus - 1]);
	for (unsigned i = 0; i < 2; i++)
		assert_true(flue_destroy_cq(gone[i]));
	cq = flue_create_cq(b, 4);
	assert_int_equal(cq->cpu, b->cpus[0]);
	assert_true(flue_destroy_cq(cq));
	assert_true(flue_destroy_cq(last));
	assert_true(flue_close(b));
}

static uint32_t choose_last(const struct flue_cpu_load *load, uint32_t n, void *arg)
{
	struct flue_cpu_load *seen = arg;

	*seen = load[n - 1];
	return n - 1;
}

static uint32_t choose_badly(const struct flue_cpu_load *load, uint32_t n, void *arg)
{
	return n;
}

static void program_can_choose_the_processor(void **state)
{
	struct flue_cpu_load seen;
	struct flue_adapter *b = open_with(0, choose_last, &seen);
	struct flue_cq *one = flue_create_cq(b, 4), *two = flue_create_cq(b, 4);

	assert_int_equal(one->cpu, b->cpus[b->n_cpus - 1]);
	assert_int_equal(seen.cpu, one->cpu);
	assert_int_equal(seen.cqs, 1);
	assert_true(flue_destroy_cq(one));
	assert_true(flue_destroy_cq(two));
	assert_true(flue_close(b));
	b = open_with(0, choose_badly, NULL);
	assert_fails(flue_create_cq(b, 4), EINVAL);
	assert_true(flue_close(b));
}

static uint32_t look_at_all(const struct flue_cpu_load *load, uint32_t n, void *arg)
{
	memcpy(arg, load, n * sizeof(*load));
	return 0;
}

static void expect_qps(struct flue_adapter *on, const struct flue_cpu_load *seen, uint32_t first,
		       uint32_t second)
{
	assert_true(flue_destroy_cq(flue_create_cq(on, 4)));
	assert_int_equal(seen[0].qps, first);
	assert_int_equal(seen[1].qps, second);
}

/* A queue pair works where its receives complete: that is where new ones should keep away. */
static void qp_is_counted_at_the_processor_of_its_receive_cq(void **state)
{
	struct flue_qp_attr attr = FLUE_ATTR(struct flue_qp_attr);
	struct flue_cpu_load seen[2];
	struct flue_adapter *b;
	struct flue_pd *pd;
	struct flue_qp *qp;

	if (a->n_cpus == 1)
		skip();
	b = open_with(0, look_at_all, seen);
	pd = flue_create_pd(b);
	attr.send_cq = cq_on(b, b->cpus[0]);
	attr.recv_cq = cq_on(b, b->cpus[1]);
	attr.sq_depth = 1;
	qp = pd->ops->create_qp(pd, &attr);
	assert_non_null(qp);
	expect_qps(b, seen, 0, 1);
	assert_true(flue_destroy_qp(qp));
	expect_qps(b, seen, 0, 0);
	assert_true(flue_destroy_cq(attr.send_cq));
	assert_true(flue_destroy_cq(attr.recv_cq));
	assert_true(flue_destroy_pd(pd));
	assert_true(flue_close(b));
}

static void deadline_is_a_time_when_seconds_carry(void **state)
{
	struct timespec at, now;

	for (int ms = 0; ms < 1000; ms += 37) {
		clock_gettime(CLOCK_MONOTONIC, &now);
		assert_ptr_equal(acc_deadline(&at, 2000 + ms), &at);
		assert_in_range(at.tv_nsec, 0, 999999999);
		assert_true(at.tv_sec >= now.tv_sec + 2);
	}
	assert_null(acc_deadline(&at, -1));
}

#define WITH_ADAPTER(test) cmocka_unit_test_setup_teardown(test, open_adapter, close_adapter)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH_ADAPTER(cq_is_refused_when_an_argument_is_impossible),
		WITH_ADAPTER(poll_takes_what_the_provider_has), /* RD-2 */
		WITH_ADAPTER(cq_keeps_its_depth_when_resizing_fails),
		WITH_ADAPTER(notify_calls_its_function_once),
		WITH_ADAPTER(notify_next_is_not_weakened_by_solicited),
		WITH_ADAPTER(notify_forgets_the_request_when_arming_fails),
		WITH_ADAPTER(fd_is_readable_after_a_notice_until_cleared),
		WITH_ADAPTER(fd_made_after_the_notice_is_readable_at_once),
		WITH_ADAPTER(handler_gets_all_completions_in_order), /* CH-4 */
		WITH_ADAPTER(handler_goes_on_after_an_overflow),
		WITH_ADAPTER(cq_with_a_handler_is_not_for_polling),
		WITH_ADAPTER(qp_refuses_destruction_from_its_own_completion),
		WITH_ADAPTER(cq_error_is_told_once),                            /* CH-18 */
		WITH_ADAPTER(cqs_take_turns_with_round_robin),                  /* CH-3 */
		WITH_ADAPTER(cq_goes_where_it_is_wanted),                       /* CH-2, CH-3 */
		WITH_ADAPTER(cq_goes_where_the_fewest_qps_are),                 /* CH-3 */
		WITH_ADAPTER(cq_goes_where_the_least_events_were),              /* CH-3 */
		WITH_ADAPTER(events_of_long_ago_count_no_more),                 /* CH-3 */
		WITH_ADAPTER(program_can_choose_the_processor),                 /* CH-3 */
		WITH_ADAPTER(qp_is_counted_at_the_processor_of_its_receive_cq), /* CH-3 */
		WITH_ADAPTER(cqs_that_are_gone_do_not_count),                   /* CH-3 */
		cmocka_unit_test(deadline_is_a_time_when_seconds_carry),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
