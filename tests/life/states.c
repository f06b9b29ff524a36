/* SPDX-License-Identifier: MIT */
/*
 * Objects are destroyed at the worst moment: a queue pair in every state of its own and of its
 * set-up, a listener with requests in every stage. It always works at once, the peer hears of the
 * end, and nothing of the object shows up afterwards: no completion, no event. Also: every slot of
 * every public table is filled.
 */
#include <errno.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "conf/pair.h"

#define LARGE (900 * 1024)

static void open_pair(struct pair *p, bool connected)
{
	struct pair_options o = PAIR_DEFAULTS;

	o.timeout_ms = 20000;
	assert_true(connected ? pair_open(p, &o) : pair_make(p, &o));
}

/* Destroys the queue pair of a side; afterwards it is as if it had never been. */
static void destroy(struct pair_side *s)
{
	struct flue_event ev;
	struct flue_wc wc;
	uint32_t got = 0;

	assert_true(flue_destroy_qp(s->qp));
	s->qp = NULL;
	assert_true(flue_poll(s->recv_cq, &wc, 1, &got));
	assert_int_equal(got, 0);
	assert_true(flue_poll(s->send_cq, &wc, 1, &got));
	assert_int_equal(got, 0);
	while (flue_get_event(s->adapter, &ev, 0))
		assert_int_equal(ev.type, FLUE_EVENT_REQUEST);
}

static void await_end(struct pair_side *s)
{
	assert_true(pair_event(s, FLUE_EVENT_DISCONNECTED, s->qp, NULL, 10000));
}

static void begin_connect(struct pair *p, uint32_t flags)
{
	struct flue_conn_attr attr = pair_conn_attr(p, FLUE_CONN_ASYNC | flags);

	attr.timeout_ms = 20000;
	assert_true(p->a.qp->ops->connect(p->a.qp, &attr));
}

static struct flue_conn_request *next_request(struct pair *p)
{
	struct flue_conn_request *req = p->listener->ops->get_request(p->listener, 10000);

	assert_non_null(req);
	return req;
}

static void answer(struct pair *p, uint32_t flags)
{
	struct flue_conn_attr attr = FLUE_ATTR(struct flue_conn_attr);
	struct flue_conn_request *req = next_request(p);

	attr.flags = FLUE_CONN_ASYNC | flags;
	assert_true(req->ops->accept(req, p->b.qp, &attr));
}

/* ---- queue pairs being set up ---- */

static void idle_qp_with_receives_can_be_destroyed(void **state)
{
	struct pair p;

	open_pair(&p, false);
	for (uint64_t i = 0; i < 10; i++)
		assert_true(pair_recv(&p.a, 0, 100, i));
	destroy(&p.a);
	assert_true(pair_close(&p));
}

static void dialing_qp_can_be_destroyed(void **state)
{
	struct pair p;

	for (int i = 0; i < 20; i++) {
		open_pair(&p, false);
		begin_connect(&p, 0);
		/* At once, or a moment later; wherever the request is by then. */
		usleep((useconds_t)i * 20);
		destroy(&p.a);
		assert_true(pair_close(&p));
	}
}

static void accepting_a_peer_that_is_gone_fails_in_order(void **state)
{
	struct flue_conn_request *req;
	struct flue_event ev;
	struct pair p;

	open_pair(&p, false);
	begin_connect(&p, 0);
	req = next_request(&p);
	destroy(&p.a);
	if (req->ops->accept(req, p.b.qp, NULL)) /* the news may be later than the reply */
		assert_true(pair_event(&p.b, FLUE_EVENT_DISCONNECTED, p.b.qp, &ev, 10000));
	assert_true(pair_close(&p));
}

static void qp_waiting_for_an_answer_can_be_destroyed(void **state)
{
	struct flue_conn_request *req;
	struct pair p;

	open_pair(&p, false);
	begin_connect(&p, 0);
	req = next_request(&p);
	destroy(&p.a);
	/* A request that was handed out keeps the listener. */
	assert_false(p.listener->ops->destroy(p.listener));
	assert_int_equal(errno, EBUSY);
	assert_true(req->ops->reject(req, "late", 4));
	assert_true(pair_close(&p));
}

static void held_initiator_can_be_destroyed(void **state)
{
	struct flue_event ev;
	struct pair p;

	open_pair(&p, false);
	begin_connect(&p, FLUE_CONN_DEFER);
	answer(&p, 0);
	assert_true(pair_event(&p.a, FLUE_EVENT_ACCEPTED, p.a.qp, NULL, 10000));
	destroy(&p.a);
	/* The responder waited for the first message. */
	do {
		assert_true(flue_get_event(p.b.adapter, &ev, 10000));
	} while (ev.type == FLUE_EVENT_REQUEST);
	assert_int_equal(ev.type, FLUE_EVENT_CONNECT_FAILED);
	assert_true(pair_close(&p));
}

static void responder_waiting_for_the_first_message_can_be_destroyed(void **state)
{
	struct pair p;

	open_pair(&p, false);
	begin_connect(&p, FLUE_CONN_DEFER);
	answer(&p, 0);
	assert_true(pair_event(&p.a, FLUE_EVENT_ACCEPTED, p.a.qp, NULL, 10000));
	destroy(&p.b);
	assert_true(pair_close(&p));
}

static void parked_responder_can_be_destroyed(void **state)
{
	struct flue_event ev;
	struct pair p;

	open_pair(&p, false);
	begin_connect(&p, 0);
	answer(&p, FLUE_CONN_DEFER);
	assert_true(pair_event(&p.a, FLUE_EVENT_CONNECTED, p.a.qp, &ev, 10000));
	destroy(&p.b);
	await_end(&p.a);
	assert_true(pair_close(&p));
}

/* ---- connected queue pairs ---- */

static void connected_qp_can_be_destroyed_from_either_side(void **state)
{
	struct pair p;

	for (int i = 0; i < 2; i++) {
		open_pair(&p, true);
		assert_true(pair_recv(&p.a, 0, 100, 1) && pair_recv(&p.b, 0, 100, 1));
		destroy(i ? &p.a : &p.b);
		await_end(i ? &p.b : &p.a);
		assert_true(pair_close(&p));
	}
}

/* Both as its own requests are under way and as the peer's are. */
static void busy_qp_can_be_destroyed(void **state)
{
	struct flue_wc wc[3];
	struct pair p;

	for (int i = 0; i < 10; i++) {
		open_pair(&p, true);
		assert_true(pair_recv(&p.b, 0, LARGE, 1));
		assert_true(pair_write(&p.a, 0, LARGE, &p.b, 0, 1, FLUE_SIGNALED));
		assert_true(pair_read(&p.a, 0, LARGE, &p.b, 0, 2, FLUE_SIGNALED));
		assert_true(pair_send(&p.a, 0, LARGE, 3, FLUE_SIGNALED));
		if (i % 2) {
			destroy(&p.a);
			await_end(&p.b);
		} else {
			destroy(&p.b);
			/* Every request of the other side completes, whatever became of it. */
			assert_int_equal(pair_take(p.a.send_cq, wc, 3, 10000), 3);
			await_end(&p.a);
		}
		assert_true(pair_close(&p));
	}
}

static void closing_qp_can_be_destroyed(void **state)
{
	struct pair p;

	for (int i = 0; i < 10; i++) {
		open_pair(&p, true);
		assert_true(p.a.qp->ops->disconnect(p.a.qp, -1));
		assert_true(flue_destroy_qp(p.a.qp));
		p.a.qp = NULL;
		await_end(&p.b);
		assert_true(pair_close(&p));
	}
}

/* In strict service a Send that nobody expects is answered by a Terminate; in full service it waits, and a bad key is an error. */
static void commit_fault(struct pair *p)
{
	struct flue_sge sge = flue_mr_sge(p->a.mr, 0, 10);
	struct flue_send_wr wr = { .id = 1, .op = FLUE_WR_SEND, .sg = &sge, .n_sg = 1 };

	if (pair_full) {
		wr.op = FLUE_WR_WRITE;
		wr.rkey = p->b.mr->rkey ^ 1;
	}
	assert_true(flue_post_send(p->a.qp, &wr));
}

static void terminating_qp_can_be_destroyed_from_either_side(void **state)
{
	struct pair p;

	for (int i = 0; i < 10; i++) {
		struct pair_side *first = i % 2 ? &p.a : &p.b, *second = i % 2 ? &p.b : &p.a;

		open_pair(&p, true);
		commit_fault(&p);
		if (i % 4 < 2)
			while (flue_qp_state(first->qp) == FLUE_QP_RTS)
				usleep(50);
		assert_true(flue_destroy_qp(first->qp));
		first->qp = NULL;
		await_end(second);
		assert_true(pair_close(&p));
	}
}

static void qp_in_error_can_be_destroyed(void **state)
{
	struct pair p;

	open_pair(&p, true);
	assert_true(pair_recv(&p.a, 0, 100, 1));
	assert_true(flue_abort(p.a.qp));
	assert_true(pair_wait_state(p.a.qp, FLUE_QP_ERROR, 10000));
	assert_true(pair_send(&p.a, 0, 10, 2, 0));
	/* Neither the flushed requests nor the end of the connection are left. */
	destroy(&p.a);
	await_end(&p.b);
	assert_true(pair_close(&p));
}

/* ---- listeners ---- */

static int raw_connect(struct pair *p, const void *octets, size_t n)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	assert_true(fd >= 0);
	assert_int_equal(
		connect(fd, (struct sockaddr *)&p->listener->local, sizeof(struct sockaddr_in)), 0);
	if (n)
		assert_int_equal(send(fd, octets, n, MSG_NOSIGNAL), n);
	return fd;
}

static void listener_can_be_destroyed_with_requests_in_every_stage(void **state)
{
	struct flue_event ev;
	struct pair p;
	int fds[3];
	char octet;

	open_pair(&p, false);
	fds[0] = raw_connect(&p, NULL, 0);
	fds[1] = raw_connect(&p, "MPA ID R", 8);
	fds[2] = raw_connect(&p, "MPA ID Req Frame\0\1\0\4abc", 23);
	begin_connect(&p, FLUE_CONN_NO_FALLBACK);
	/* It waits in the queue when its event is there. */
	assert_true(pair_event(&p.b, FLUE_EVENT_REQUEST, p.listener, NULL, 10000));
	assert_true(p.listener->ops->destroy(p.listener));
	p.listener = NULL;
	assert_true(pair_event(&p.a, FLUE_EVENT_CONNECT_FAILED, p.a.qp, &ev, 10000));
	for (int i = 0; i < 3; i++) {
		assert_true(recv(fds[i], &octet, 1, 0) <= 0);
		close(fds[i]);
	}
	assert_true(pair_close(&p));
}

/* ---- tables ---- */

/* A table begins with its size; all that follows are functions. */
static void check_table(const void *table, size_t size, const char *name)
{
	const unsigned char *at = table;
	void *slot;
	size_t stored;

	memcpy(&stored, at, sizeof(stored));
	if (stored != size)
		fail_msg("%s says it has %zu octets, not %zu", name, stored, size);
	for (size_t i = sizeof(stored); i < size; i += sizeof(slot)) {
		memcpy(&slot, at + i, sizeof(slot));
		if (!slot)
			fail_msg("the slot of %s at %zu is empty", name, i);
	}
}

#define CHECK(object) check_table((object)->ops, sizeof(*(object)->ops), #object)

static void every_slot_of_every_public_table_is_filled(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;
	struct flue_conn_request *req;
	struct flue_mw *mw;
	struct pair p;

	o.srq_depth = 4;
	assert_true(pair_make(&p, &o));
	mw = p.a.pd->ops->create_mw(p.a.pd);
	assert_non_null(mw);
	begin_connect(&p, 0);
	req = next_request(&p);
	CHECK(p.a.adapter);
	CHECK(p.a.pd);
	CHECK(p.a.recv_cq);
	CHECK(p.a.srq);
	CHECK(p.a.qp);
	CHECK(p.a.mr);
	CHECK(mw);
	CHECK(p.listener);
	CHECK(req);
	assert_true(req->ops->reject(req, NULL, 0));
	assert_true(mw->ops->destroy(mw));
	assert_true(pair_close(&p));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(idle_qp_with_receives_can_be_destroyed),
		cmocka_unit_test(dialing_qp_can_be_destroyed),
		cmocka_unit_test(accepting_a_peer_that_is_gone_fails_in_order),
		cmocka_unit_test(qp_waiting_for_an_answer_can_be_destroyed),
		cmocka_unit_test(held_initiator_can_be_destroyed),
		cmocka_unit_test(responder_waiting_for_the_first_message_can_be_destroyed),
		cmocka_unit_test(parked_responder_can_be_destroyed),
		cmocka_unit_test(connected_qp_can_be_destroyed_from_either_side),
		cmocka_unit_test(busy_qp_can_be_destroyed),
		cmocka_unit_test(closing_qp_can_be_destroyed),
		cmocka_unit_test(terminating_qp_can_be_destroyed_from_either_side),
		cmocka_unit_test(qp_in_error_can_be_destroyed),
		cmocka_unit_test(listener_can_be_destroyed_with_requests_in_every_stage),
		cmocka_unit_test(every_slot_of_every_public_table_is_filled),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
