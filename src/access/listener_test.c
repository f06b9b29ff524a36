/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>
#include <cmocka.h>

#include "access/fake_priv.h"
#include "base/clock.h"

static struct flue_adapter *a;
static struct flue_listener *l;
static struct flue_qp *qp;

static struct flue_listen_attr here(void)
{
	struct flue_listen_attr attr = FLUE_ATTR(struct flue_listen_attr);

	attr.local = fake_address();
	attr.local_len = sizeof(struct sockaddr_in);
	return attr;
}

static int open_listener(void **state)
{
	struct flue_listen_attr attr = here();

	fake_reset();
	a = fake_open(NULL, 0);
	attr.backlog = 3;
	l = a->ops->listen(a, &attr);
	qp = fake_qp(a, NULL, NULL);
	return !l || !qp;
}

static int close_listener(void **state)
{
	fake_destroy_qp(qp);
	return !l->ops->destroy(l) || !flue_close(a);
}

static void say_connected(struct prov_qp *prov)
{
	fake_news(prov->attr.owner, FLUE_EVENT_CONNECTED, 0, 0);
}

static void expect_request_event(bool want)
{
	struct flue_event ev;

	if (!want) {
		assert_fails(flue_get_event(a, &ev, 0), EAGAIN);
		return;
	}
	assert_true(flue_get_event(a, &ev, 0));
	assert_int_equal(ev.type, FLUE_EVENT_REQUEST);
	assert_ptr_equal(ev.u.listener, l);
}

static void listen_fills_in_defaults_and_shows_the_address(void **state)
{
	struct flue_listen_attr attr = here();
	struct flue_listener *other = a->ops->listen(a, &attr);

	assert_int_equal(fake.listen.backlog, 128);
	assert_int_equal(fake.listen.max_half_open, 1024);
	assert_int_equal(fake.listen.request_timeout_ms, 5000);
	assert_memory_equal(&other->local, fake_address(), sizeof(struct sockaddr_in));
	assert_ptr_equal(other->adapter, a);
	assert_true(other->ops->destroy(other));
}

static void listen_refuses_bad_arguments(void **state)
{
	struct sockaddr other = { .sa_family = AF_UNIX };
	struct flue_listen_attr attr = here();

	attr.local = NULL;
	assert_fails(a->ops->listen(a, &attr), EINVAL);
	attr.local = &other;
	assert_fails(a->ops->listen(a, &attr), EINVAL);
	attr = here();
	attr.local_len = 1;
	assert_fails(a->ops->listen(a, &attr), EINVAL);
	attr = here();
	attr.backlog = -1;
	assert_fails(a->ops->listen(a, &attr), EINVAL);
	attr = here();
	attr.request_timeout_ms = -1;
	assert_fails(a->ops->listen(a, &attr), EINVAL);
	attr = here();
	attr.size = 4;
	assert_fails(a->ops->listen(a, &attr), EINVAL);
}

static void request_shows_what_the_peer_said(void **state)
{
	struct flue_conn_request *req;

	assert_fails(l->ops->get_request(l, 0), EAGAIN);
	assert_fails(l->ops->get_request(l, 1), ETIMEDOUT);
	assert_int_equal(fake_request(l, "abc", 3, 2), 0);
	req = l->ops->get_request(l, -1);
	assert_non_null(req);
	assert_memory_equal(req->private_data, "abc", 3);
	assert_int_equal(req->private_len, 3);
	assert_int_equal(req->peer_ird, 1);
	assert_int_equal(req->peer_ord, 2);
	assert_int_equal(req->revision, 2);
	assert_true(req->peer_to_peer);
	assert_ptr_equal(req->listener, l);
	assert_fails(l->ops->destroy(l), EBUSY);
	assert_true(req->ops->reject(req, "no", 2));
	assert_int_equal(fake.reject_len, 2);
}

static void request_is_refused_when_the_backlog_is_full(void **state)
{
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(fake_request(l, NULL, 0, 2), 0);
	assert_int_equal(fake_request(l, NULL, 0, 2), -ENOBUFS);
	assert_int_equal(fake.rejects, 0);
	/* Those still queued are rejected when the listener goes (see the teardown). */
}

static void queued_requests_are_rejected_with_their_listener(void **state)
{
	struct flue_listen_attr attr = here();

	assert_int_equal(fake_request(l, NULL, 0, 2), 0);
	assert_int_equal(fake_request(l, NULL, 0, 2), 0);
	assert_true(l->ops->destroy(l));
	assert_int_equal(fake.rejects, 2);
	expect_request_event(false);
	l = a->ops->listen(a, &attr);
}

static void there_is_one_event_for_each_request(void **state)
{
	struct flue_conn_request *req;

	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(fake_request(l, NULL, 0, 2), 0);
	for (unsigned i = 0; i < 3; i++)
		expect_request_event(true);
	expect_request_event(false);
	for (unsigned i = 0; i < 3; i++) {
		req = l->ops->get_request(l, 0);
		assert_true(req->ops->reject(req, NULL, 0));
	}
}

static void there_is_no_event_for_a_request_already_taken(void **state)
{
	struct flue_conn_request *req;

	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(fake_request(l, NULL, 0, 2), 0);
	req = l->ops->get_request(l, 0);
	assert_true(req->ops->reject(req, NULL, 0));
	expect_request_event(true);
	expect_request_event(false);
	req = l->ops->get_request(l, 0);
	assert_true(req->ops->reject(req, NULL, 0));
	assert_int_equal(fake_request(l, NULL, 0, 2), 0);
	req = l->ops->get_request(l, 0);
	assert_true(req->ops->reject(req, NULL, 0));
	expect_request_event(false);
}

static void others_events_do_not_wait_behind_a_busy_listener(void **state)
{
	struct flue_conn_request *req;
	struct flue_event ev;

	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(fake_request(l, NULL, 0, 2), 0);
	fake.adapter->up->cq_error(qp->recv_cq);
	expect_request_event(true);
	assert_true(flue_get_event(a, &ev, 0));
	assert_int_equal(ev.type, FLUE_EVENT_CQ_ERROR);
	expect_request_event(true);
	for (unsigned i = 0; i < 2; i++) {
		req = l->ops->get_request(l, 0);
		assert_true(req->ops->reject(req, NULL, 0));
	}
}

static void accept_connects_and_keeps_private_data(void **state)
{
	struct flue_conn_request *req;
	struct flue_event ev;

	fake.on_connect = say_connected;
	assert_int_equal(fake_request(l, "request", 7, 2), 0);
	assert_true(flue_get_event(a, &ev, 0));
	req = l->ops->get_request(l, 0);
	assert_true(req->ops->accept(req, qp, NULL));
	assert_int_equal(fake.accepts, 1);
	assert_memory_equal(qp->private_data, "request", 7);
	expect_request_event(false);
}

static void accept_that_fails_uses_the_request_up(void **state)
{
	static uint8_t data[600];
	struct flue_conn_attr attr = FLUE_ATTR(struct flue_conn_attr);
	struct flue_adapter *b = fake_open(NULL, 0);
	struct flue_qp *foreign = fake_qp(b, NULL, NULL);
	struct flue_conn_request *req;

	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(fake_request(l, NULL, 0, 2), 0);
	attr.private_data = data;
	attr.private_len = FAKE_REPLY + 1;
	req = l->ops->get_request(l, 0);
	assert_fails(req->ops->accept(req, qp, &attr), EINVAL);
	assert_int_equal(fake.rejects, 1);
	req = l->ops->get_request(l, 0);
	assert_fails(req->ops->accept(req, foreign, NULL), EXDEV);
	assert_int_equal(fake.rejects, 2);
	req = l->ops->get_request(l, 0);
	fake.rc.accept = -ECONNRESET;
	assert_fails(req->ops->accept(req, qp, NULL), ECONNRESET);
	assert_int_equal(fake.rejects, 2);
	fake.rc.accept = 0;
	fake_destroy_qp(foreign);
	assert_true(flue_close(b));
}

static void accept_refuses_a_connected_qp(void **state)
{
	struct flue_conn_attr attr = FLUE_ATTR(struct flue_conn_attr);
	struct flue_conn_request *req;

	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(fake_request(l, NULL, 0, 2), 0);
	attr.flags = FLUE_CONN_ASYNC;
	req = l->ops->get_request(l, 0);
	assert_true(req->ops->accept(req, qp, &attr));
	req = l->ops->get_request(l, 0);
	assert_fails(req->ops->accept(req, qp, &attr), EISCONN);
	assert_int_equal(fake.rejects, 1);
}

static void reject_sends_no_data_when_it_is_too_long(void **state)
{
	static uint8_t data[600];
	struct flue_conn_request *req;

	assert_int_equal(fake_request(l, NULL, 0, 2), 0);
	assert_int_equal(fake_request(l, NULL, 0, 1), 0);
	req = l->ops->get_request(l, 0);
	assert_fails(req->ops->reject(req, data, FAKE_REJECT + 1), EINVAL);
	assert_int_equal(fake.reject_len, 0);
	req = l->ops->get_request(l, 0);
	assert_true(req->ops->reject(req, data, FAKE_REV1));
	assert_int_equal(fake.reject_len, FAKE_REV1);
}

static void accept_at_once(const struct flue_event *ev, void *arg)
{
	struct flue_listener *from = ev->u.listener;
	struct flue_conn_attr attr = FLUE_ATTR(struct flue_conn_attr);
	struct flue_conn_request *req = from->ops->get_request(from, 0);
	unsigned *calls = arg;

	assert_int_equal(ev->type, FLUE_EVENT_REQUEST);
	assert_fails(from->ops->destroy(from), EDEADLK);
	attr.flags = FLUE_CONN_ASYNC;
	assert_true(req->ops->accept(req, qp, &attr));
	++*calls;
}

static void handler_can_accept(void **state)
{
	struct flue_listen_attr attr = here();
	struct flue_listener *other;
	unsigned calls = 0;

	attr.on_event = accept_at_once;
	attr.event_arg = &calls;
	other = a->ops->listen(a, &attr);
	assert_int_equal(fake_request(other, NULL, 0, 2), 0);
	assert_int_equal(calls, 1);
	expect_request_event(false);
	assert_true(other->ops->destroy(other));
}

static void *request_later(void *arg)
{
	usleep(20000);
	fake_request(l, NULL, 0, 2);
	return NULL;
}

static void get_request_waits(void **state)
{
	struct flue_conn_request *req;
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, request_later, NULL), 0);
	req = l->ops->get_request(l, 5000);
	assert_non_null(req);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_true(req->ops->reject(req, NULL, 0));
}

#define WAITERS  4
#define PATIENCE 30000 /* only who was forgotten waits so long */

static struct waiter {
	pthread_t thread;
	struct flue_conn_request *req;
	bool served;
} waiters[WAITERS];
static atomic_uint waiting;
static bool for_events;

static void *await_one(void *arg)
{
	struct waiter *w = arg;
	uint64_t begun = clock_now();
	struct flue_event ev;
	bool got;

	atomic_fetch_add(&waiting, 1);
	if (for_events)
		got = flue_get_event(a, &ev, PATIENCE);
	else
		got = (w->req = l->ops->get_request(l, PATIENCE));
	/* Who was not woken finds its request when its time is over. */
	w->served = got && clock_now() - begun < PATIENCE * NSEC_PER_MSEC;
	return NULL;
}

/* As many requests as waiters, the later ones before the first was taken, if we are quick enough. */
static void serve_all(void)
{
	atomic_store(&waiting, 0);
	memset(waiters, 0, sizeof(waiters));
	for (unsigned i = 0; i < WAITERS; i++)
		assert_int_equal(pthread_create(&waiters[i].thread, NULL, await_one, &waiters[i]),
				 0);
	while (atomic_load(&waiting) < WAITERS)
		usleep(100);
	usleep(2000); /* most likely they sleep now */
	for (unsigned i = 0; i < WAITERS; i++)
		assert_int_equal(fake_request(l, NULL, 0, 2), 0);
	for (unsigned i = 0; i < WAITERS; i++)
		assert_int_equal(pthread_join(waiters[i].thread, NULL), 0);
	for (unsigned i = 0; i < WAITERS; i++)
		assert_true(waiters[i].served);
}

/* Both ways to learn of it: the request itself, and the one event that counts them. */
static void every_request_wakes_a_waiter_of_its_own(void **state)
{
	struct flue_listen_attr attr = here();

	assert_true(l->ops->destroy(l));
	attr.backlog = WAITERS;
	l = a->ops->listen(a, &attr);
	for (unsigned round = 0; round < 20; round++) {
		for_events = round % 2;
		serve_all();
		for (unsigned i = 0; i < WAITERS; i++) {
			struct flue_conn_request *req = waiters[i].req;

			if (for_events)
				req = l->ops->get_request(l, 0);
			assert_non_null(req);
			assert_true(req->ops->reject(req, NULL, 0));
		}
		expect_request_event(false);
	}
}

#define WITH_LISTENER(test) cmocka_unit_test_setup_teardown(test, open_listener, close_listener)

int main(void)
{
	const struct CMUnitTest tests[] = {
		/* RD-8 */
		WITH_LISTENER(listen_fills_in_defaults_and_shows_the_address),
		WITH_LISTENER(listen_refuses_bad_arguments),
		WITH_LISTENER(request_shows_what_the_peer_said),
		WITH_LISTENER(request_is_refused_when_the_backlog_is_full),
		WITH_LISTENER(queued_requests_are_rejected_with_their_listener),
		WITH_LISTENER(there_is_one_event_for_each_request),           /* CH-18 */
		WITH_LISTENER(there_is_no_event_for_a_request_already_taken), /* CH-18 */
		WITH_LISTENER(others_events_do_not_wait_behind_a_busy_listener),
		WITH_LISTENER(accept_connects_and_keeps_private_data),
		WITH_LISTENER(accept_that_fails_uses_the_request_up),
		WITH_LISTENER(accept_refuses_a_connected_qp),
		WITH_LISTENER(reject_sends_no_data_when_it_is_too_long),
		WITH_LISTENER(handler_can_accept),
		WITH_LISTENER(get_request_waits),
		WITH_LISTENER(every_request_wakes_a_waiter_of_its_own), /* CH-18 */
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
