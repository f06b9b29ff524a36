/* SPDX-License-Identifier: MIT */
/* Listeners are spread over the engines, and what they accept moves to the engine of its queue pair. */
#include "rnic/listener.h"

#include <netinet/in.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "rnic/link_tcp.h"
#include "rnic/qp.h"

#define ENGINES 3

static struct rnic *r;
static struct rnic_pd pd;
static struct cep *_Atomic request;
static atomic_int ups;

static void on_event(void *ctx, void *qp_owner, const struct flue_event *ev,
		     const struct rnic_conn_info *conn)
{
	if (ev->type == FLUE_EVENT_CONNECTED)
		atomic_fetch_add(&ups, 1);
}

static int on_request(void *ctx, void *owner, struct cep *req, const struct rnic_request_info *info)
{
	atomic_store(&request, req);
	return 0;
}

static void on_completion(void *cq_owner, void *arg)
{
}

static const struct rnic_upcalls up = { .qp_event = on_event, .request = on_request };

/* Engines are told apart by number: one processor is enough for them all. */
static int make(void **state)
{
	int cpus[ENGINES];

	for (int i = 0; i < ENGINES; i++)
		cpus[i] = sched_getcpu();
	atomic_store(&ups, 0);
	atomic_store(&request, NULL);
	if (rnic_open(cpus, ENGINES, &up, NULL, &r))
		return -1;
	pd.rnic = r;
	return 0;
}

static int drop(void **state)
{
	rnic_close(r);
	return 0;
}

static struct listener *listen_anywhere(struct sockaddr_storage *bound)
{
	struct sockaddr_in any = { .sin_family = AF_INET,
				   .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct listen_attr attr = { .local = (struct sockaddr *)&any,
				    .local_len = sizeof(any),
				    .max_half_open = 4,
				    .request_timeout_ms = 5000 };
	struct listener *l;

	assert_int_equal(listener_create(r, &attr, bound, &l), 0);
	return l;
}

static void listeners_go_where_few_are(void **state)
{
	struct listener *l[2 * ENGINES];
	struct sockaddr_storage bound;
	uint32_t gone;

	for (uint32_t i = 0; i < 2 * ENGINES; i++) {
		l[i] = listen_anywhere(&bound);
		assert_int_equal(l[i]->engine->index, i % ENGINES);
	}
	/* Both of one engine leave; the next two take their place. */
	gone = l[1]->engine->index;
	listener_destroy(l[1]);
	listener_destroy(l[1 + ENGINES]);
	l[1] = listen_anywhere(&bound);
	l[1 + ENGINES] = listen_anywhere(&bound);
	assert_int_equal(l[1]->engine->index, gone);
	assert_int_equal(l[1 + ENGINES]->engine->index, gone);
	for (uint32_t i = 0; i < 2 * ENGINES; i++)
		listener_destroy(l[i]);
}

static void await(atomic_int *what, int n)
{
	for (int i = 0; i < 30000 && atomic_load(what) < n; i++)
		usleep(1000);
	assert_int_equal(atomic_load(what), n);
}

static struct qp *make_qp(struct cq *cq, struct flue_qp *owner)
{
	struct qp_attr attr = { .pd = &pd,
				.send_cq = cq,
				.recv_cq = cq,
				.sq_depth = 2,
				.rq_depth = 2,
				.sq_sge = 1,
				.rq_sge = 1,
				.state = &owner->state,
				.owner = owner };
	struct qp *q;

	owner->state = FLUE_QP_IDLE;
	assert_int_equal(qp_create(&attr, &q), 0);
	return q;
}

static void receives_an_empty_send(struct qp *from, struct qp *to)
{
	struct flue_recv_wr recv = { .id = 7 };
	const struct flue_recv_wr *bad_recv;
	struct flue_send_wr send = { .op = FLUE_WR_SEND, .id = 8 };
	const struct flue_send_wr *bad_send;
	struct flue_wc wc;

	assert_int_equal(qp_post_recv(to, &recv, &bad_recv), 0);
	assert_int_equal(qp_post_send(from, &send, &bad_send), 0);
	assert_int_equal(cq_wait(to->recv_cq, 30000), 0);
	assert_int_equal(cq_poll(to->recv_cq, &wc, 1), 1);
	assert_int_equal(wc.id, 7);
	assert_int_equal(wc.status, FLUE_WC_SUCCESS);
}

static void connection_moves_to_the_engine_of_its_queue_pair(void **state)
{
	struct flue_conn_attr attr = { .size = sizeof(attr), .timeout_ms = 30000 };
	struct sockaddr_storage first_at, at;
	struct listener *first = listen_anywhere(&first_at), *l = listen_anywhere(&at);
	struct flue_qp owners[2];
	struct cq *cq[2];
	struct qp *q[2];

	assert_int_equal(l->engine->index, 1);
	for (int i = 0; i < 2; i++) {
		/* Neither is the listener's engine. */
		assert_int_equal(cq_create(r, &r->engines[i ? 2 : 0], 8, on_completion, NULL, NULL,
					   &cq[i]),
				 0);
		q[i] = make_qp(cq[i], &owners[i]);
	}
	attr.remote = (struct sockaddr *)&at;
	attr.remote_len = sizeof(struct sockaddr_in);
	assert_int_equal(cep_connect(q[0], &attr), 0);
	for (int i = 0; i < 30000 && !atomic_load(&request); i++)
		usleep(1000);
	assert_non_null(atomic_load(&request));
	assert_ptr_equal(atomic_load(&request)->engine, &r->engines[1]);
	assert_int_equal(cep_accept(atomic_load(&request), q[1], &attr), 0);
	await(&ups, 2);
	engine_lock(q[1]->engine);
	assert_ptr_equal(((struct link_tcp *)q[1]->link)->engine, &r->engines[2]);
	engine_unlock(q[1]->engine);
	receives_an_empty_send(q[0], q[1]);
	receives_an_empty_send(q[1], q[0]);
	for (int i = 0; i < 2; i++) {
		qp_destroy(q[i]);
		cq_destroy(cq[i]);
	}
	listener_destroy(first);
	listener_destroy(l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(listeners_go_where_few_are, make, drop),
		cmocka_unit_test_setup_teardown(connection_moves_to_the_engine_of_its_queue_pair,
						make, drop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
