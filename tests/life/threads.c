/* SPDX-License-Identifier: MIT */
/*
 * Many threads on the same objects: posting to the same queue pairs, polling and waiting on the
 * same CQs, registering memory, resizing, connecting and closing. Every request completes once
 * and every message is whole. Made for ThreadSanitizer, useful without.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "conf/pair.h"

#define N_QPS    4
#define POSTERS  3
#define POLLERS  2  /* for each CQ */
#define RECEIVES 16 /* for each queue pair */
#define SLOTS    8  /* messages of one poster under way */
#define MESSAGE  512
#define LIBRARY  (512 * 1024) /* read-only part of side b's memory */
#define SINK     (256 * 1024)
#define RUN_MS   2000

/* Never from a thread of the test, where cmocka could not catch it. */
static void must(bool ok, const char *what)
{
	if (ok)
		return;
	fprintf(stderr, "threads: %s: %s\n", what, strerror(errno));
	abort();
}

/* ---- one load on shared queues ---- */

static struct pair load;
static struct flue_qp *qa[N_QPS], *qb[N_QPS];
static atomic_bool enough, drained;
static atomic_ulong posted, completed, sent, received;
static atomic_int credits[N_QPS];
static atomic_bool slot_used[POSTERS][SLOTS];

static size_t message_at(uint32_t poster, uint32_t slot)
{
	return (size_t)(poster * SLOTS + slot) * MESSAGE;
}

static size_t receive_at(uint32_t q, uint32_t n)
{
	return (size_t)(q * RECEIVES + n) * MESSAGE;
}

static void post_receive(uint32_t q, uint32_t n)
{
	struct flue_sge sge = flue_mr_sge(load.b.mr, receive_at(q, n), MESSAGE);
	struct flue_recv_wr wr = { .id = q * RECEIVES + n, .sg = &sge, .n_sg = 1 };

	must(flue_post_recv(qb[q], &wr), "post_recv");
}

static bool take_credit(uint32_t q)
{
	if (atomic_fetch_sub(&credits[q], 1) > 0)
		return true;
	atomic_fetch_add(&credits[q], 1);
	return false;
}

/* A message if there is a receive for it, else a Read; either is one request. */
static bool post_one(uint32_t poster, uint32_t slot, uint32_t n)
{
	uint32_t q = (n + poster) % N_QPS;
	bool send = n % 3 && take_credit(q);
	struct flue_sge sge = flue_mr_sge(load.a.mr, message_at(poster, slot), MESSAGE);
	struct flue_send_wr wr = { .id = (uint64_t)poster * SLOTS + slot,
				   .op = FLUE_WR_SEND,
				   .flags = FLUE_SIGNALED,
				   .sg = &sge,
				   .n_sg = 1 };

	if (send) {
		memset(load.a.mem + message_at(poster, slot), (int)(n | 1), MESSAGE);
	} else {
		sge.addr += SINK;
		wr.op = FLUE_WR_READ;
		wr.rkey = load.b.mr->rkey;
		wr.remote_addr = load.b.mr->remote_start + LIBRARY;
	}
	if (flue_post_send(qa[q], &wr)) {
		atomic_fetch_add(&sent, send);
		return true;
	}
	must(errno == ENOMEM, "post_send"); /* the queue is full: somebody else's turn */
	if (send)
		atomic_fetch_add(&credits[q], 1);
	return false;
}

static void *poster(void *arg)
{
	uint32_t me = (uint32_t)(uintptr_t)arg;

	for (uint32_t n = 0; !atomic_load(&enough); n++) {
		uint32_t slot = n % SLOTS;

		if (atomic_exchange(&slot_used[me][slot], true)) {
			usleep(20);
			continue;
		}
		atomic_fetch_add(&posted, 1);
		if (!post_one(me, slot, n)) {
			atomic_fetch_sub(&posted, 1);
			atomic_store(&slot_used[me][slot], false);
		}
	}
	return NULL;
}

static void check_sent(const struct flue_wc *wc)
{
	must(wc->status == FLUE_WC_SUCCESS, flue_wc_status_name(wc->status));
	if (wc->op == FLUE_WC_READ)
		must(pair_check(load.a.mem + SINK +
					message_at((uint32_t)wc->id / SLOTS, wc->id % SLOTS),
				MESSAGE, 5) == MESSAGE,
		     "a Read brought something else");
	atomic_fetch_add(&completed, 1);
	must(atomic_exchange(&slot_used[wc->id / SLOTS][wc->id % SLOTS], false), "slot");
}

static void check_received(const struct flue_wc *wc)
{
	uint32_t q = (uint32_t)wc->id / RECEIVES, n = wc->id % RECEIVES;
	uint8_t *at = load.b.mem + receive_at(q, n);

	must(wc->status == FLUE_WC_SUCCESS && wc->byte_len == MESSAGE, "a receive failed");
	must(at[0] && !memcmp(at, at + 1, MESSAGE - 1), "a message is torn");
	atomic_fetch_add(&received, 1);
	memset(at, 0, MESSAGE);
	post_receive(q, n);
	atomic_fetch_add(&credits[q], 1);
}

/* Some threads poll, some sleep; all of them take what they find. */
static void *poller(void *arg)
{
	uint32_t me = (uint32_t)(uintptr_t)arg;
	struct flue_cq *cq = me % 2 ? load.b.recv_cq : load.a.recv_cq;
	struct flue_wc wc[4];
	uint32_t got;

	while (!atomic_load(&drained)) {
		must(flue_poll(cq, wc, 4, &got), "poll");
		for (uint32_t i = 0; i < got; i++)
			(me % 2 ? check_received : check_sent)(&wc[i]);
		if (!got && me / 2 % 2 && !flue_wait(cq, 5))
			must(errno == ETIMEDOUT || errno == EINTR, "wait");
	}
	return NULL;
}

static void *registrar(void *arg)
{
	static uint8_t octets[4096];

	while (!atomic_load(&enough)) {
		struct flue_mr_attr attr = FLUE_ATTR(struct flue_mr_attr);
		struct flue_mr *mr = flue_register(load.a.pd, octets, 4096, FLUE_REMOTE_READ);

		must(mr, "register");
		attr.addr = octets;
		attr.length = 100;
		must(mr->ops->modify(mr, FLUE_MR_RANGE, &attr, NULL), "modify");
		must(flue_deregister(mr), "deregister");
		usleep(50);
	}
	return NULL;
}

static void *resizer(void *arg)
{
	for (uint32_t n = 0; !atomic_load(&enough); n++) {
		struct flue_cq *cq = n % 2 ? load.b.recv_cq : load.a.recv_cq;

		must(cq->ops->resize(cq, 256 + n % 7 * 100), "resize");
		must(cq->ops->notify(cq, FLUE_NOTIFY_NEXT, NULL, NULL), "notify");
		usleep(50);
	}
	return NULL;
}

static void make_load(void)
{
	struct pair_options o = PAIR_DEFAULTS;

	o.one_cq = true;
	o.rq_depth = RECEIVES;
	o.sq_depth = 8;
	assert_true(pair_make(&load, &o));
	pair_fill(load.b.mem + LIBRARY, MESSAGE, 5);
	for (uint32_t q = 0; q < N_QPS; q++) {
		qa[q] = pair_new_qp(&load, &load.a);
		qb[q] = pair_new_qp(&load, &load.b);
		assert_true(qa[q] && qb[q]);
		assert_true(pair_connect_qps(&load, qa[q], qb[q]));
		for (uint32_t n = 0; n < RECEIVES; n++)
			post_receive(q, n);
		atomic_store(&credits[q], RECEIVES);
	}
}

static void queues_can_be_shared_by_many_threads(void **state)
{
	pthread_t posters[POSTERS], pollers[2 * POLLERS], others[2];
	uint64_t until;

	make_load();
	for (uintptr_t i = 0; i < 2 * POLLERS; i++)
		assert_int_equal(pthread_create(&pollers[i], NULL, poller, (void *)i), 0);
	for (uintptr_t i = 0; i < POSTERS; i++)
		assert_int_equal(pthread_create(&posters[i], NULL, poster, (void *)i), 0);
	assert_int_equal(pthread_create(&others[0], NULL, registrar, NULL), 0);
	assert_int_equal(pthread_create(&others[1], NULL, resizer, NULL), 0);
	usleep(RUN_MS * 1000);
	atomic_store(&enough, true);
	for (int i = 0; i < POSTERS; i++)
		pthread_join(posters[i], NULL);
	pthread_join(others[0], NULL);
	pthread_join(others[1], NULL);
	until = pair_now_ms() + 30000;
	while ((atomic_load(&completed) < atomic_load(&posted) ||
		atomic_load(&received) < atomic_load(&sent)) &&
	       pair_now_ms() < until)
		usleep(1000);
	atomic_store(&drained, true);
	for (int i = 0; i < 2 * POLLERS; i++)
		pthread_join(pollers[i], NULL);
	print_message("# %lu requests, %lu messages\n", atomic_load(&posted), atomic_load(&sent));
	assert_true(atomic_load(&posted) > 100);
	assert_int_equal(atomic_load(&completed), atomic_load(&posted));
	assert_int_equal(atomic_load(&received), atomic_load(&sent));
	for (uint32_t q = 0; q < N_QPS; q++)
		assert_true(flue_destroy_qp(qa[q]) && flue_destroy_qp(qb[q]));
	assert_true(pair_close(&load));
}

/* ---- connections from many threads ---- */

#define CALLERS 4
#define CALLS   25

static struct pair hub;
static struct flue_qp *callers[CALLERS], *callees[CALLERS];
static atomic_bool no_more_calls;

static void *call(void *arg)
{
	uint32_t me = (uint32_t)(uintptr_t)arg;
	struct flue_qp *qp = callers[me];
	struct flue_conn_attr attr = pair_conn_attr(&hub, 0);

	attr.private_data = &me;
	attr.private_len = sizeof(me);
	attr.timeout_ms = 60000;
	for (uint32_t n = 0; n < CALLS; n++) {
		must(qp->ops->connect(qp, &attr), "connect");
		if (n % 3 == 0)
			must(flue_abort(qp), "abort");
		else
			must(qp->ops->disconnect(qp, 20000), "disconnect");
		must(qp->ops->reset(qp), "reset");
	}
	return NULL;
}

/* Takes requests; a queue pair that was left may still be ending. */
static void *take_calls(void *arg)
{
	while (!atomic_load(&no_more_calls)) {
		struct flue_conn_request *req = hub.listener->ops->get_request(hub.listener, 20);
		uint64_t until = pair_now_ms() + 20000;
		uint32_t who;

		if (!req)
			continue;
		must(req->private_len == sizeof(who), "private data");
		memcpy(&who, req->private_data, sizeof(who));
		while (!callees[who]->ops->reset(callees[who]) && pair_now_ms() < until)
			must(errno == EBUSY, "reset");
		/* The caller may have aborted by now: then there is nothing to accept. */
		if (!req->ops->accept(req, callees[who], NULL))
			must(errno == ECONNRESET || errno == ETIMEDOUT || errno == EPIPE, "accept");
	}
	return NULL;
}

static void *drain_events(void *arg)
{
	struct pair_side *side = arg;
	struct flue_event ev;

	while (!atomic_load(&no_more_calls))
		flue_get_event(side->adapter, &ev, 20);
	return NULL;
}

static void connections_come_and_go_from_many_threads(void **state)
{
	pthread_t calling[CALLERS], taking[2], draining[2];
	struct pair_options o = PAIR_DEFAULTS;

	assert_true(pair_make(&hub, &o));
	for (int i = 0; i < CALLERS; i++) {
		callers[i] = pair_new_qp(&hub, &hub.a);
		callees[i] = pair_new_qp(&hub, &hub.b);
		assert_true(callers[i] && callees[i]);
	}
	for (int i = 0; i < 2; i++) {
		assert_int_equal(pthread_create(&taking[i], NULL, take_calls, NULL), 0);
		assert_int_equal(
			pthread_create(&draining[i], NULL, drain_events, i ? &hub.a : &hub.b), 0);
	}
	for (uintptr_t i = 0; i < CALLERS; i++)
		assert_int_equal(pthread_create(&calling[i], NULL, call, (void *)i), 0);
	for (int i = 0; i < CALLERS; i++)
		pthread_join(calling[i], NULL);
	atomic_store(&no_more_calls, true);
	for (int i = 0; i < 2; i++) {
		pthread_join(taking[i], NULL);
		pthread_join(draining[i], NULL);
	}
	for (int i = 0; i < CALLERS; i++)
		assert_true(flue_destroy_qp(callers[i]) && flue_destroy_qp(callees[i]));
	assert_true(pair_close(&hub));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(queues_can_be_shared_by_many_threads),
		cmocka_unit_test(connections_come_and_go_from_many_threads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
