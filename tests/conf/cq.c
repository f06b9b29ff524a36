/* SPDX-License-Identifier: MIT */
/* Conformance: completion queues, notices, and completions on the right processor. */
#include "conf/conf.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/pollset.h"

static bool readable(int fd, int timeout_ms)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return poll(&p, 1, timeout_ms) == 1;
}

static void wait_times_out_when_nothing_completes(void **state)
{
	struct pair *p = *state;
	struct flue_wc wc;
	uint32_t got = 9;
	uint64_t start = pair_now_ms();

	assert_ok(flue_poll(p->a.send_cq, &wc, 1, &got));
	assert_int_equal(got, 0);
	assert_fails(flue_wait(p->a.send_cq, 50), ETIMEDOUT);
	assert_true(pair_now_ms() - start >= 49);
	assert_true(pair_now_ms() - start < 5000);
	assert_fails(flue_wait(p->a.send_cq, 0), ETIMEDOUT);
}

static void wait_does_not_take_the_completion(void **state)
{
	struct pair *p = *state;

	assert_ok(pair_write(&p->a, 0, 100, &p->b, 0, 1, FLUE_SIGNALED));
	assert_ok(flue_wait(p->a.send_cq, 5000));
	assert_ok(flue_wait(p->a.send_cq, -1));
	assert_ok(flue_wait(p->a.send_cq, 0));
	assert_true(pair_expect(p->a.send_cq, 1, FLUE_WC_SUCCESS));
}

static void on_alarm(int signal)
{
}

static void wait_ends_when_a_signal_handler_ran(void **state)
{
	struct pair *p = *state;
	struct sigaction action = { .sa_handler = on_alarm }, before;
	struct itimerval timer = { .it_value.tv_usec = 50000, .it_interval.tv_usec = 50000 };
	const struct itimerval off = { .it_value.tv_usec = 0 };

	assert_int_equal(sigaction(SIGALRM, &action, &before), 0);
	assert_int_equal(setitimer(ITIMER_REAL, &timer, NULL), 0);
	assert_fails(flue_wait(p->a.send_cq, 5000), EINTR);
	assert_int_equal(setitimer(ITIMER_REAL, &off, NULL), 0);
	assert_int_equal(sigaction(SIGALRM, &before, NULL), 0);
}

struct waiter {
	struct flue_cq *cq;
	bool ok;
};

static void *wait_main(void *arg)
{
	struct waiter *w = arg;

	w->ok = flue_wait(w->cq, 10000);
	return NULL;
}

static void waiting_thread_is_woken_by_anothers_request(void **state)
{
	struct pair *p = *state;
	struct waiter w = { .cq = p->b.recv_cq };
	pthread_t thread;

	assert_ok(pair_recv(&p->b, 0, 100, 1));
	assert_int_equal(pthread_create(&thread, NULL, wait_main, &w), 0);
	usleep(30000);
	assert_ok(pair_send(&p->a, 0, 100, 2, 0));
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_true(w.ok);
	assert_true(pair_expect(p->b.recv_cq, 1, FLUE_WC_SUCCESS));
}

/*
 * What a request completes while it is posted happens on no socket, so the sleeper must be told. It looks around
 * every few seconds anyway, which must not be what finds it: the best of a few tries, for the machine may be busy.
 */
static void waiting_thread_is_woken_by_what_another_completes(void **state)
{
	struct pair *p = *state;
	uint64_t best = UINT64_MAX;

	for (unsigned i = 1; i <= 3 && best > POLLSET_LOOK_MS / 2; i++) {
		struct waiter w = { .cq = p->a.send_cq };
		pthread_t thread;
		uint64_t start;

		assert_int_equal(pthread_create(&thread, NULL, wait_main, &w), 0);
		usleep(30000);
		start = pair_now_ms();
		assert_ok(pair_write(&p->a, 0, 100, &p->b, 0, i, FLUE_SIGNALED));
		assert_int_equal(pthread_join(thread, NULL), 0);
		assert_true(w.ok);
		if (pair_now_ms() - start < best)
			best = pair_now_ms() - start;
		assert_true(pair_expect(p->a.send_cq, i, FLUE_WC_SUCCESS));
	}
	assert_true(best <= POLLSET_LOOK_MS / 2);
}

/* ---- resize ---- */

static void resize_keeps_the_completions(void **state)
{
	struct pair *p = *state;
	struct flue_cq *cq = p->a.send_cq;

	for (uint64_t id = 0; id < 20; id++)
		assert_ok(pair_write(&p->a, 0, 10, &p->b, 0, id, FLUE_SIGNALED));
	/* All of them are there when the last one of a second queue is. */
	assert_ok(pair_recv(&p->b, 0, 0, 100));
	assert_ok(pair_send(&p->a, 0, 0, 20, FLUE_SIGNALED));
	assert_true(pair_expect(p->b.recv_cq, 100, FLUE_WC_SUCCESS));
	usleep(20000);
	assert_true(pair_expect(cq, 0, FLUE_WC_SUCCESS));
	assert_ok(cq->ops->resize(cq, 5000));
	assert_int_equal(cq->depth, 5000);
	assert_true(pair_expect(cq, 1, FLUE_WC_SUCCESS));
	assert_fails(cq->ops->resize(cq, 3), EBUSY);
	assert_int_equal(cq->depth, 5000);
	assert_ok(cq->ops->resize(cq, 19));
	for (uint64_t id = 2; id <= 20; id++)
		assert_true(pair_expect(cq, id, FLUE_WC_SUCCESS));
	assert_fails(cq->ops->resize(cq, 0), EINVAL);
	assert_fails(cq->ops->resize(cq, p->a.adapter->caps->max_cq_depth + 1), EINVAL);
}

/* ---- overflow ---- */

static void overflow_is_told_once_and_after_the_rest_was_taken(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;
	struct flue_event ev;
	struct flue_wc wc[8];
	unsigned errors = 0, ends = 0;
	uint32_t got = 0;
	struct pair *p;

	NOT_SELF("both sides hear through one queue of events");
	o.cq_depth = 4;
	p = conf_pair(&o);
	for (uint64_t id = 0; id < 20; id++)
		assert_ok(pair_write(&p->a, 0, 10, &p->b, 0, id, FLUE_SIGNALED));
	while ((!errors || !ends) && flue_get_event(p->a.adapter, &ev, 5000)) {
		if (ev.type == FLUE_EVENT_CQ_ERROR) {
			assert_ptr_equal(ev.u.cq, p->a.send_cq);
			errors++;
		} else {
			assert_int_equal(ev.type, FLUE_EVENT_DISCONNECTED);
			assert_int_equal(ev.reason, FLUE_CLOSE_LOCAL);
			ends++;
		}
	}
	assert_int_equal(errors, 1);
	assert_int_equal(ends, 1);
	assert_fails(flue_get_event(p->a.adapter, &ev, 50), ETIMEDOUT);
	assert_ok(flue_poll(p->a.send_cq, wc, 8, &got));
	assert_int_equal(got, 4);
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(wc[i].id, i);
	assert_fails(flue_wait(p->a.send_cq, 100), EOVERFLOW);
	assert_fails(flue_poll(p->a.send_cq, wc, 8, &got), EOVERFLOW);
	/* Told, so the CQ can be used again. */
	assert_ok(flue_poll(p->a.send_cq, wc, 8, &got));
	assert_int_equal(got, 0);
	conf_end(p);
}

/* ---- notices ---- */

struct notices {
	atomic_uint n;
	atomic_int cpu;
	atomic_bool again; /* ask for the next notice from inside */
};

static void note(struct flue_cq *cq, void *arg)
{
	struct notices *notices = arg;

	atomic_store(&notices->cpu, sched_getcpu());
	if (atomic_load(&notices->again))
		cq->ops->notify(cq, FLUE_NOTIFY_NEXT, note, notices);
	atomic_fetch_add(&notices->n, 1);
}

static bool until(atomic_uint *n, unsigned want, int timeout_ms)
{
	uint64_t end = pair_now_ms() + (uint64_t)timeout_ms;

	while (atomic_load(n) < want && pair_now_ms() < end)
		usleep(200);
	return atomic_load(n) >= want;
}

/* One message to b; it lands in b's receive CQ. */
static void ping(struct pair *p, uint64_t id, uint32_t flags)
{
	assert_ok(pair_recv(&p->b, 0, 100, id));
	assert_ok(pair_send(&p->a, 0, 10, id, FLUE_SIGNALED | flags));
	assert_true(pair_expect(p->a.send_cq, id, FLUE_WC_SUCCESS));
}

static void notice_comes_once_for_a_request_on_the_bound_processor(void **state)
{
	struct pair *p = *state;
	struct notices notices = { 0 };

	assert_ok(p->b.recv_cq->ops->notify(p->b.recv_cq, FLUE_NOTIFY_NEXT, note, &notices));
	ping(p, 1, 0);
	assert_true(until(&notices.n, 1, 5000));
	assert_int_equal(atomic_load(&notices.cpu), p->b.recv_cq->cpu);
	ping(p, 2, 0);
	usleep(30000);
	assert_int_equal(atomic_load(&notices.n), 1);
	for (uint64_t id = 1; id <= 2; id++)
		assert_true(pair_expect(p->b.recv_cq, id, FLUE_WC_SUCCESS));
}

static void notice_can_be_asked_for_from_inside_the_notice(void **state)
{
	struct pair *p = *state;
	struct notices notices = { .again = true };

	assert_ok(p->b.recv_cq->ops->notify(p->b.recv_cq, FLUE_NOTIFY_NEXT, note, &notices));
	for (unsigned i = 1; i <= 20; i++) {
		ping(p, i, 0);
		assert_true(until(&notices.n, i, 5000));
	}
	atomic_store(&notices.again, false);
	ping(p, 21, 0);
	assert_true(until(&notices.n, 21, 5000));
}

static void solicited_notice_ignores_plain_messages(void **state)
{
	struct pair *p = *state;
	struct notices notices = { 0 };
	struct flue_wc wc[3];

	assert_ok(p->b.recv_cq->ops->notify(p->b.recv_cq, FLUE_NOTIFY_SOLICITED, note, &notices));
	ping(p, 1, 0);
	usleep(30000);
	assert_int_equal(atomic_load(&notices.n), 0);
	ping(p, 2, FLUE_SOLICITED);
	assert_true(until(&notices.n, 1, 5000));
	assert_int_equal(pair_take(p->b.recv_cq, wc, 2, 5000), 2);
	assert_int_equal(wc[0].flags, 0);
	assert_int_equal(wc[1].flags, FLUE_WC_SOLICITED);
}

static void solicited_notice_tells_of_failures_too(void **state)
{
	struct pair *p = *state;
	struct notices notices = { 0 };

	assert_ok(pair_recv(&p->b, 0, 100, 1));
	assert_ok(p->b.recv_cq->ops->notify(p->b.recv_cq, FLUE_NOTIFY_SOLICITED, note, &notices));
	assert_ok(flue_abort(p->b.qp));
	assert_true(until(&notices.n, 1, 5000));
	assert_true(pair_expect(p->b.recv_cq, 1, FLUE_WC_FLUSHED));
}

static void descriptor_tells_of_a_completion(void **state)
{
	struct pair *p = *state;
	struct flue_cq *cq = p->b.recv_cq;
	int fd = cq->ops->fd(cq);

	assert_true(fd >= 0);
	ping(p, 1, 0);
	assert_false(readable(fd, 30));
	for (uint64_t id = 2; id < 10; id++) {
		assert_ok(cq->ops->notify(cq, FLUE_NOTIFY_NEXT, NULL, NULL));
		ping(p, id, 0);
		assert_true(readable(fd, 5000));
		assert_true(cq->ops->clear_fd(cq));
		assert_false(readable(fd, 0));
	}
	for (uint64_t id = 1; id < 10; id++)
		assert_true(pair_expect(cq, id, FLUE_WC_SUCCESS));
	assert_false(cq->ops->clear_fd(cq));
}

struct sender {
	struct pair *p;
	unsigned n;
	bool ok;
};

/* Sends n messages, never more than the peer has receives for: paced by its replies. */
static void *send_main(void *arg)
{
	struct sender *s = arg;
	unsigned left = 0;

	s->ok = true;
	for (unsigned i = 0; s->ok && i < s->n; i++) {
		/* Every 32nd is signaled, which makes room in the queue. */
		s->ok = pair_send(&s->p->a, 0, 16, i, i % 32 == 31 ? FLUE_SIGNALED : 0);
		left += i % 32 == 31;
		if (left == 1) {
			s->ok = s->ok && pair_expect(s->p->a.send_cq, i, FLUE_WC_SUCCESS);
			left = 0;
		}
	}
	return NULL;
}

/* The classic loop: arm, poll, sleep on the descriptor. No completion may be missed. */
static void no_completion_is_missed_with_notify_poll_sleep(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;
	struct sender s = { .n = 3200 };
	struct flue_wc wc[16];
	pthread_t thread;
	struct flue_cq *cq;
	unsigned have = 0;
	uint32_t got;
	int fd;

	o.rq_depth = 4096;
	o.cq_depth = 8192;
	s.p = conf_pair(&o);
	cq = s.p->b.recv_cq;
	fd = cq->ops->fd(cq);
	for (unsigned i = 0; i < s.n; i++)
		assert_ok(pair_recv(&s.p->b, 0, 16, i));
	assert_int_equal(pthread_create(&thread, NULL, send_main, &s), 0);
	while (have < s.n) {
		assert_ok(cq->ops->notify(cq, FLUE_NOTIFY_NEXT, NULL, NULL));
		assert_ok(flue_poll(cq, wc, 16, &got));
		for (uint32_t i = 0; i < got; i++)
			assert_int_equal(wc[i].id, have++);
		if (!got)
			assert_true(readable(fd, 10000));
		cq->ops->clear_fd(cq);
	}
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_true(s.ok);
	conf_end(s.p);
}

/* ---- handlers ---- */

struct handled {
	atomic_uint n, wrong_order, wrong_cpu, errors;
	uint64_t next;
};

static void handle(struct flue_cq *cq, const struct flue_wc *wc, void *arg)
{
	struct handled *h = arg;

	if (wc->id != h->next++)
		atomic_fetch_add(&h->wrong_order, 1);
	if (sched_getcpu() != cq->cpu)
		atomic_fetch_add(&h->wrong_cpu, 1);
	if (wc->status != FLUE_WC_SUCCESS)
		atomic_fetch_add(&h->errors, 1);
	atomic_fetch_add(&h->n, 1);
}

/* On each processor of the adapter: the CPU number is recorded with each completion. */
static void handler_runs_on_the_processor_its_cq_is_bound_to(void **state)
{
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);

	NOT_SELF("there is one processor only");
	for (int cpu = 0; cpu < cpus; cpu++) {
		struct pair_options o = PAIR_DEFAULTS;
		struct handled h = { 0 };
		struct sender s = { .n = 1600 };

		o.rq_depth = 2048;
		o.cq_depth = 4096;
		o.on_completion[1] = handle;
		o.completion_arg[1] = &h;
		o.cpu_plus_1[1] = cpu + 1;
		s.p = conf_pair(&o);
		assert_int_equal(s.p->b.recv_cq->cpu, cpu);
		for (unsigned i = 0; i < s.n; i++)
			assert_ok(pair_recv(&s.p->b, 0, 16, i));
		send_main(&s);
		assert_true(s.ok);
		assert_true(until(&h.n, s.n, 10000));
		assert_int_equal(atomic_load(&h.n), s.n);
		assert_int_equal(atomic_load(&h.wrong_cpu), 0);
		assert_int_equal(atomic_load(&h.wrong_order), 0);
		assert_int_equal(atomic_load(&h.errors), 0);
		conf_end(s.p);
	}
}

static atomic_uint inside, met;

/* Waits inside for the other processor's handler: they meet only if both run at once. */
static void meet(struct flue_cq *cq, const struct flue_wc *wc, void *arg)
{
	uint64_t end = pair_now_ms() + 5000;

	atomic_fetch_add(&inside, 1);
	while (atomic_load(&inside) < 2 && pair_now_ms() < end)
		;
	if (atomic_load(&inside) >= 2)
		atomic_fetch_add(&met, 1);
}

static void handlers_of_different_processors_run_at_the_same_time(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;
	struct pair *p;

	NOT_SELF("there is one processor only");
	if (sysconf(_SC_NPROCESSORS_ONLN) < 2) {
		print_message("one processor only\n");
		skip();
	}
	atomic_store(&inside, 0);
	atomic_store(&met, 0);
	o.one_adapter = true;
	o.on_completion[0] = o.on_completion[1] = meet;
	o.cpu_plus_1[0] = 1;
	o.cpu_plus_1[1] = 2;
	p = conf_pair(&o);
	assert_ok(pair_recv(&p->b, 0, 16, 1));
	assert_ok(pair_recv(&p->a, 0, 16, 1));
	assert_ok(pair_send(&p->a, 0, 16, 2, 0));
	assert_ok(pair_send(&p->b, 0, 16, 2, 0));
	assert_true(until(&met, 2, 10000));
	conf_end(p);
}

/* Answers each message from inside the handler. */
struct echo {
	struct pair_side *side;
	atomic_uint n;
};

static void echo(struct flue_cq *cq, const struct flue_wc *wc, void *arg)
{
	struct echo *e = arg;

	if (wc->op == FLUE_WC_RECV && wc->status == FLUE_WC_SUCCESS && atomic_load(&e->n) < 500) {
		pair_recv(e->side, 0, 16, 1);
		pair_send(e->side, 0, 16, 2, FLUE_SIGNALED);
		atomic_fetch_add(&e->n, 1);
	}
}

static void handler_can_post(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;
	static struct echo a, b;
	struct pair *p;

	atomic_store(&a.n, 0);
	atomic_store(&b.n, 0);
	/* Room for all: the send CQ's processor may be late while the other two talk. */
	o.cq_depth = 1024;
	o.sq_depth = 512;
	o.on_completion[0] = o.on_completion[1] = echo;
	o.completion_arg[0] = &a;
	o.completion_arg[1] = &b;
	p = conf_pair(&o);
	a.side = &p->a;
	b.side = &p->b;
	assert_ok(pair_recv(&p->a, 0, 16, 1));
	assert_ok(pair_recv(&p->b, 0, 16, 1));
	assert_ok(pair_send(&p->a, 0, 16, 2, 0));
	assert_true(until(&a.n, 500, 10000));
	assert_true(until(&b.n, 499, 10000));
	conf_end(p);
}

/* Which QP's completion is in the program's hands now. */
static _Atomic(struct flue_qp *) in_hands;

static void hold(struct flue_cq *cq, const struct flue_wc *wc, void *arg)
{
	atomic_store(&in_hands, wc->qp);
	usleep(100);
	if (wc->qp->number == 0)
		abort();
	atomic_store(&in_hands, NULL);
}

static void destroying_a_qp_waits_for_the_handler_that_names_it(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;
	struct pair *p;

	o.on_completion[0] = hold;
	p = conf_pair(&o);
	for (unsigned i = 0; i < 30; i++) {
		struct flue_qp *qp = p->a.qp;

		for (uint64_t id = 0; id < 8; id++)
			assert_ok(pair_write(&p->a, 0, 8, &p->b, 0, id, FLUE_SIGNALED));
		usleep(i * 30);
		assert_ok(flue_destroy_qp(qp));
		assert_ptr_not_equal(atomic_load(&in_hands), qp);
		assert_ok(p->a.qp = pair_new_qp(p, &p->a));
		assert_true(pair_event(&p->b, FLUE_EVENT_DISCONNECTED, p->b.qp, NULL, 5000));
		assert_ok(p->b.qp->ops->reset(p->b.qp));
		assert_ok(pair_connect(p));
	}
	conf_end(p);
}

struct replacing {
	struct pair *p;
	struct flue_qp *victim;
	atomic_uint done;
};

static void destroy_other(struct flue_cq *cq, const struct flue_wc *wc, void *arg)
{
	struct replacing *r = arg;

	/* Not the QP whose completion this is, but another one of the same CQ. */
	if (!flue_destroy_qp(wc->qp) && errno == EDEADLK && flue_destroy_qp(r->victim))
		atomic_fetch_add(&r->done, 1);
}

static void handler_can_destroy_another_qp(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;
	static struct replacing r;
	struct flue_qp *peer;

	atomic_store(&r.done, 0);
	o.on_completion[0] = destroy_other;
	o.completion_arg[0] = &r;
	r.p = conf_pair(&o);
	assert_ok(r.victim = pair_new_qp(r.p, &r.p->a));
	assert_ok(peer = pair_new_qp(r.p, &r.p->b));
	assert_ok(pair_connect_qps(r.p, r.victim, peer));
	assert_ok(pair_write(&r.p->a, 0, 8, &r.p->b, 0, 1, FLUE_SIGNALED));
	assert_true(until(&r.done, 1, 5000));
	assert_true(pair_event(&r.p->b, FLUE_EVENT_DISCONNECTED, peer, NULL, 5000));
	assert_ok(flue_destroy_qp(peer));
	conf_end(r.p);
}

struct seen {
	_Atomic pid_t thread;
	atomic_uint count;
};

static void see_thread(struct flue_cq *cq, const struct flue_wc *wc, void *arg)
{
	struct seen *seen = arg;

	/* In order, whatever thread it is. */
	if (wc->status == FLUE_WC_SUCCESS && wc->id == atomic_load(&seen->count)) {
		atomic_store(&seen->thread, gettid());
		atomic_fetch_add(&seen->count, 1);
	}
}

/* The queue pair lives where its receives complete; its sends complete on another processor's queue. */
static void handler_runs_where_the_completion_was_made_when_it_may(void **state)
{
	struct pair *p = *state;
	struct flue_adapter *a = p->a.adapter;

	if (a->n_cpus < 2)
		skip();
	for (uint32_t any = 0; any < 2; any++) {
		struct flue_cq_attr cq = FLUE_ATTR(struct flue_cq_attr);
		struct flue_qp_attr attr = FLUE_ATTR(struct flue_qp_attr);
		struct seen sent = { 0 }, got = { 0 };
		struct flue_sge sge = flue_mr_sge(p->a.mr, 0, 8);
		struct flue_send_wr send = { .flags = FLUE_SIGNALED, .sg = &sge, .n_sg = 1 };
		struct flue_recv_wr recv = { .sg = &sge, .n_sg = 1 };
		struct flue_qp *qp;

		cq.depth = 64;
		cq.on_completion = see_thread;
		cq.arg = &sent;
		cq.cpu_plus_1 = a->cpus[0] + 1;
		cq.flags = any ? (uint32_t)FLUE_CQ_ANY_THREAD : 0;
		assert_ok(attr.send_cq = a->ops->create_cq(a, &cq));
		cq.arg = &got;
		cq.cpu_plus_1 = a->cpus[1] + 1;
		cq.flags = 0;
		assert_ok(attr.recv_cq = a->ops->create_cq(a, &cq));
		attr.sq_depth = attr.rq_depth = 32;
		assert_ok(qp = p->a.pd->ops->create_qp(p->a.pd, &attr));
		assert_ok(pair_connect_qps(p, qp, p->b.qp));
		for (uint64_t i = 0; i < 20; i++) {
			send.id = recv.id = i;
			assert_ok(flue_post_recv(qp, &recv));
			assert_ok(pair_recv(&p->b, 0, 8, i));
			assert_ok(flue_post_send(qp, &send));
			assert_ok(pair_send(&p->b, 64, 8, i, FLUE_SIGNALED));
			assert_true(pair_expect(p->b.recv_cq, i, FLUE_WC_SUCCESS));
			assert_true(pair_expect(p->b.send_cq, i, FLUE_WC_SUCCESS));
		}
		for (unsigned ms = 0; ms < 10000 && (sent.count < 20 || got.count < 20); ms++)
			usleep(1000);
		assert_true(sent.count == 20 && got.count == 20);
		assert_int_equal(sent.thread == got.thread, any);
		assert_ok(flue_destroy_qp(qp));
		assert_ok(flue_destroy_cq(attr.send_cq));
		assert_ok(flue_destroy_cq(attr.recv_cq));
		assert_true(pair_wait_state(p->b.qp, FLUE_QP_ERROR, 5000));
		assert_true(pair_event(&p->b, FLUE_EVENT_DISCONNECTED, p->b.qp, NULL, 5000));
		assert_ok(p->b.qp->ops->reset(p->b.qp));
	}
}

static void cq_with_a_handler_cannot_be_polled(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;
	struct handled h = { 0 };
	struct flue_wc wc;
	struct pair *p;
	uint32_t got;

	o.on_completion[0] = handle;
	o.completion_arg[0] = &h;
	p = conf_pair(&o);
	assert_fails(flue_poll(p->a.send_cq, &wc, 1, &got), EBUSY);
	assert_fails(flue_wait(p->a.send_cq, 0), EBUSY);
	assert_fails(p->a.send_cq->ops->notify(p->a.send_cq, 0, NULL, NULL), EBUSY);
	conf_end(p);
}

/* ---- several users ---- */

static void destroyed_qp_takes_its_completions_along(void **state)
{
	struct pair *p = *state;
	struct flue_qp *a2, *b2, *first = p->a.qp;
	struct flue_wc wc[8];
	uint32_t got;

	assert_ok(a2 = pair_new_qp(p, &p->a));
	assert_ok(b2 = pair_new_qp(p, &p->b));
	assert_ok(pair_connect_qps(p, a2, b2));
	for (uint64_t id = 0; id < 4; id++) {
		assert_ok(pair_write(&p->a, 0, 8, &p->b, 0, id, FLUE_SIGNALED));
		p->a.qp = a2;
		assert_ok(pair_write(&p->a, 0, 8, &p->b, 0, 100 + id, FLUE_SIGNALED));
		p->a.qp = first;
	}
	usleep(30000);
	assert_ok(flue_destroy_qp(a2));
	assert_int_equal(pair_take(p->a.send_cq, wc, 4, 5000), 4);
	for (uint64_t id = 0; id < 4; id++)
		assert_int_equal(wc[id].id, id);
	assert_ok(flue_poll(p->a.send_cq, wc, 8, &got));
	assert_int_equal(got, 0);
	assert_ok(flue_destroy_qp(b2));
}

struct poller {
	struct flue_cq *cq;
	atomic_uint *seen, *total;
	unsigned want;
};

static void *poll_main(void *arg)
{
	struct poller *poller = arg;
	struct flue_wc wc[4];
	uint32_t got;
	uint64_t end = pair_now_ms() + 10000;

	while (atomic_load(poller->total) < poller->want && pair_now_ms() < end) {
		if (!flue_poll(poller->cq, wc, 4, &got))
			return NULL;
		for (uint32_t i = 0; i < got; i++)
			atomic_fetch_add(&poller->seen[wc[i].id], 1);
		atomic_fetch_add(poller->total, got);
	}
	return NULL;
}

static void threads_can_share_a_cq(void **state)
{
	static atomic_uint seen[1600], total;
	struct pair_options o = PAIR_DEFAULTS;
	struct sender s = { .n = 1600 };
	struct poller poller = { .seen = seen, .total = &total, .want = s.n };
	pthread_t threads[3];

	memset(seen, 0, sizeof(seen));
	atomic_store(&total, 0);
	o.rq_depth = 2048;
	o.cq_depth = 4096;
	s.p = conf_pair(&o);
	poller.cq = s.p->b.recv_cq;
	for (unsigned i = 0; i < s.n; i++)
		assert_ok(pair_recv(&s.p->b, 0, 16, i));
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, poll_main, &poller), 0);
	send_main(&s);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
	assert_int_equal(atomic_load(&total), s.n);
	for (unsigned i = 0; i < s.n; i++)
		assert_int_equal(atomic_load(&seen[i]), 1);
	conf_end(s.p);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		WITH_PAIR(wait_times_out_when_nothing_completes), /* RD-2 */
		WITH_PAIR(wait_does_not_take_the_completion),     /* RD-2 */
		WITH_PAIR(wait_ends_when_a_signal_handler_ran),
		WITH_PAIR(waiting_thread_is_woken_by_anothers_request),
		WITH_PAIR(waiting_thread_is_woken_by_what_another_completes),
		WITH_PAIR(resize_keeps_the_completions),                              /* RD-2 */
		cmocka_unit_test(overflow_is_told_once_and_after_the_rest_was_taken), /* CH-18 */
		WITH_PAIR(notice_comes_once_for_a_request_on_the_bound_processor),    /* CH-4 */
		WITH_PAIR(notice_can_be_asked_for_from_inside_the_notice),
		WITH_PAIR(solicited_notice_ignores_plain_messages),
		WITH_PAIR(solicited_notice_tells_of_failures_too),
		WITH_PAIR(descriptor_tells_of_a_completion),
		cmocka_unit_test(no_completion_is_missed_with_notify_poll_sleep),   /* RD-2 */
		cmocka_unit_test(handler_runs_on_the_processor_its_cq_is_bound_to), /* CH-1, CH-4 */
		cmocka_unit_test(handlers_of_different_processors_run_at_the_same_time), /* CH-4 */
		cmocka_unit_test(handler_can_post),
		cmocka_unit_test(destroying_a_qp_waits_for_the_handler_that_names_it),
		cmocka_unit_test(handler_can_destroy_another_qp),
		WITH_IDLE_PAIR(handler_runs_where_the_completion_was_made_when_it_may),
		cmocka_unit_test(cq_with_a_handler_cannot_be_polled),
		WITH_PAIR(destroyed_qp_takes_its_completions_along),
		cmocka_unit_test(threads_can_share_a_cq), /* RD-2 */
	};

	conf_init(argc, argv);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
