/* SPDX-License-Identifier: MIT */
/* Each outcome of a connection is told exactly once, to whom it concerns (CH-18). */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>

#include "access/fake_priv.h"

static struct flue_adapter *a;
static struct flue_qp *qp;

static int open_qp(void **state)
{
	fake_reset();
	a = fake_open(NULL, 0);
	qp = fake_qp(a, NULL, NULL);
	return !qp;
}

static int close_qp(void **state)
{
	fake_destroy_qp(qp);
	return !flue_close(a);
}

static struct flue_conn_attr to_peer(uint32_t flags)
{
	struct flue_conn_attr attr = FLUE_ATTR(struct flue_conn_attr);

	attr.remote = fake_address();
	attr.remote_len = sizeof(struct sockaddr_in);
	attr.flags = flags;
	return attr;
}

static bool connect_with(uint32_t flags)
{
	struct flue_conn_attr attr = to_peer(flags);

	return qp->ops->connect(qp, &attr);
}

/* The next event is of this type; NONE: there is none. */
static void expect_event(uint32_t type, uint32_t detail)
{
	struct flue_event ev;

	if (type == FLUE_EVENT_NONE) {
		assert_fails(flue_get_event(a, &ev, 0), EAGAIN);
		return;
	}
	assert_true(flue_get_event(a, &ev, 1000));
	assert_string_equal(flue_event_name(ev.type), flue_event_name(type));
	assert_int_equal(ev.detail, detail);
	assert_ptr_equal(ev.u.qp, qp);
}

static void connect_refuses_bad_arguments(void **state)
{
	static uint8_t data[600];
	struct sockaddr_in6 six = { .sin6_family = AF_INET6 };
	struct flue_conn_attr attr = to_peer(0);

	attr.remote = NULL;
	assert_fails(qp->ops->connect(qp, &attr), EINVAL);
	attr = to_peer(0);
	attr.remote_len = 8;
	assert_fails(qp->ops->connect(qp, &attr), EINVAL);
	attr = to_peer(0);
	attr.local = (struct sockaddr *)&six;
	attr.local_len = sizeof(six);
	assert_fails(qp->ops->connect(qp, &attr), EINVAL);
	attr = to_peer(0);
	attr.private_data = data;
	attr.private_len = FAKE_REQUEST + 1;
	assert_fails(qp->ops->connect(qp, &attr), EINVAL);
	attr = to_peer(0);
	attr.private_len = 1;
	assert_fails(qp->ops->connect(qp, &attr), EINVAL);
	attr = to_peer(FLUE_CONN_REV1);
	attr.private_data = data;
	attr.private_len = FAKE_REV1 + 1;
	assert_fails(qp->ops->connect(qp, &attr), EINVAL);
	attr = to_peer(1u << 31);
	assert_fails(qp->ops->connect(qp, &attr), EINVAL);
	attr = to_peer(0);
	attr.timeout_ms = -1;
	assert_fails(qp->ops->connect(qp, &attr), EINVAL);
	attr = to_peer(0);
	attr.ird = 33;
	assert_fails(qp->ops->connect(qp, &attr), EINVAL);
	assert_fails(qp->ops->connect(qp, NULL), EINVAL);
	attr = to_peer(FLUE_CONN_REV1 | FLUE_CONN_ASYNC);
	attr.private_data = data;
	attr.private_len = FAKE_REV1;
	assert_true(qp->ops->connect(qp, &attr));
	assert_int_equal(fake.qp->conn.timeout_ms, 10000);
	assert_int_equal(fake.qp->conn.ird, 16);
	assert_int_equal(fake.qp->conn.ord, 16);
}

/* A program says how much of the attributes it has; behind that nothing is its own. */
static void connect_reads_no_more_than_the_size_says(void **state)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), small = offsetof(struct flue_conn_attr, flags);
	char *edge = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			  0);
	struct flue_conn_attr *attr;

	assert_true(edge != MAP_FAILED);
	assert_return_code(mprotect(edge + page, page, PROT_NONE), 0);
	attr = (struct flue_conn_attr *)(edge + page - small);
	memcpy(attr, &small, sizeof(small));
	assert_fails(qp->ops->connect(qp, attr), EINVAL);
	assert_return_code(munmap(edge, 2 * page), 0);
}

static void async_connection_is_told_from_start_to_end_exactly_once(void **state)
{
	assert_true(connect_with(FLUE_CONN_ASYNC));
	assert_fails(connect_with(FLUE_CONN_ASYNC), EISCONN);
	expect_event(FLUE_EVENT_NONE, 0);
	/* Out of place: dropped. */
	fake_news(qp, FLUE_EVENT_ACCEPTED, 0, 0);
	fake_news(qp, FLUE_EVENT_DISCONNECTED, 0, 0);
	fake_news(qp, FLUE_EVENT_LAST_RECEIVE, 0, 0);
	expect_event(FLUE_EVENT_NONE, 0);
	fake_news_with(qp, FLUE_EVENT_CONNECTED, 0, "hello", 5);
	fake_news_with(qp, FLUE_EVENT_CONNECTED, 0, "HELLO", 5);
	fake_news(qp, FLUE_EVENT_CONNECT_FAILED, 0, EIO);
	expect_event(FLUE_EVENT_CONNECTED, 0);
	assert_memory_equal(qp->private_data, "hello", 5);
	assert_int_equal(qp->private_len, 5);
	assert_int_equal(qp->ird, 3);
	assert_int_equal(qp->ord, 5);
	assert_int_equal(((struct sockaddr_in *)&qp->peer)->sin_port, FAKE_PORT);
	fake_news(qp, FLUE_EVENT_DISCONNECTED, FLUE_CLOSE_RESET, 9);
	fake_news(qp, FLUE_EVENT_DISCONNECTED, FLUE_CLOSE_RESET, 9);
	expect_event(FLUE_EVENT_DISCONNECTED, 9);
	expect_event(FLUE_EVENT_NONE, 0);
	fake_news(qp, FLUE_EVENT_DISCONNECTED, FLUE_CLOSE_RESET, 9);
	expect_event(FLUE_EVENT_NONE, 0);
}

static void unread_events_of_many_connections_are_kept_in_order(void **state)
{
	for (unsigned i = 0; i < 50; i++) {
		assert_true(connect_with(FLUE_CONN_ASYNC));
		fake_news(qp, FLUE_EVENT_CONNECTED, 0, i);
		fake_news(qp, FLUE_EVENT_DISCONNECTED, 0, i);
	}
	for (unsigned i = 0; i < 50; i++) {
		expect_event(FLUE_EVENT_CONNECTED, i);
		expect_event(FLUE_EVENT_DISCONNECTED, i);
	}
	expect_event(FLUE_EVENT_NONE, 0);
	/* Some stay unread when the QP goes. */
	assert_true(connect_with(FLUE_CONN_ASYNC));
	fake_news(qp, FLUE_EVENT_CONNECT_FAILED, 0, EIO);
}

static void say_connected(struct prov_qp *prov)
{
	fake_news_with(prov->attr.owner, FLUE_EVENT_CONNECTED, 0, "hi", 2);
}

static void *connect_later(void *arg)
{
	usleep(20000);
	say_connected(fake.qp);
	return NULL;
}

static void blocking_connect_takes_its_own_event(void **state)
{
	pthread_t thread;

	fake.on_connect = say_connected;
	assert_true(connect_with(0));
	assert_int_equal(qp->private_len, 2);
	expect_event(FLUE_EVENT_NONE, 0);
	fake_news(qp, FLUE_EVENT_DISCONNECTED, 0, 0);
	expect_event(FLUE_EVENT_DISCONNECTED, 0);

	fake.on_connect = NULL;
	assert_int_equal(pthread_create(&thread, NULL, connect_later, NULL), 0);
	assert_true(connect_with(0));
	assert_int_equal(pthread_join(thread, NULL), 0);
	expect_event(FLUE_EVENT_NONE, 0);
}

static void say_rejected(struct prov_qp *prov)
{
	fake_news_with(prov->attr.owner, FLUE_EVENT_CONNECT_FAILED, ECONNREFUSED, "no", 2);
}

static void blocking_connect_fails_with_the_reason(void **state)
{
	fake.on_connect = say_rejected;
	assert_fails(connect_with(0), ECONNREFUSED);
	assert_memory_equal(qp->private_data, "no", 2);
	expect_event(FLUE_EVENT_NONE, 0);
	fake.rc.connect = -EMFILE;
	assert_fails(connect_with(0), EMFILE);
	assert_fails(connect_with(FLUE_CONN_ASYNC), EMFILE);
	assert_int_equal(qp->private_len, 0);
	fake.rc.connect = 0;
	assert_fails(connect_with(0), ECONNREFUSED);
}

static void say_failed(struct prov_qp *prov)
{
	fake_news(prov->attr.owner, FLUE_EVENT_CONNECT_FAILED, 0, ECONNABORTED);
}

static void connect_returns_when_the_provider_never_answers(void **state)
{
	struct flue_conn_attr attr = to_peer(0);

	attr.timeout_ms = 10;
	fake.on_abort = say_failed;
	assert_fails(qp->ops->connect(qp, &attr), ETIMEDOUT);
	assert_int_equal(fake.aborts, 1);
	expect_event(FLUE_EVENT_NONE, 0);

	/* Not even after the abort: what it says later is not heard. */
	fake.on_abort = NULL;
	assert_fails(qp->ops->connect(qp, &attr), ETIMEDOUT);
	assert_fails(qp->ops->connect(qp, &attr), EISCONN);
	fake_news(qp, FLUE_EVENT_CONNECTED, 0, 0);
	fake_news(qp, FLUE_EVENT_DISCONNECTED, 0, 0);
	expect_event(FLUE_EVENT_NONE, 0);
	fake.on_connect = say_connected;
	assert_true(qp->ops->connect(qp, &attr));
}

static void adrift_qp_can_be_reset(void **state)
{
	struct flue_conn_attr attr = to_peer(0);

	attr.timeout_ms = 1;
	assert_fails(qp->ops->connect(qp, &attr), ETIMEDOUT);
	fake.rc.reset_qp = -EBUSY;
	assert_fails(qp->ops->reset(qp), EBUSY);
	fake.rc.reset_qp = 0;
	assert_true(qp->ops->reset(qp));
	fake.on_connect = say_connected;
	assert_true(connect_with(0));
}

static void say_accepted(struct prov_qp *prov)
{
	fake_news_with(prov->attr.owner, FLUE_EVENT_ACCEPTED, 0, "data", 4);
}

static void deferred_connect_waits_for_start(void **state)
{
	fake.on_connect = say_accepted;
	assert_fails(qp->ops->start(qp), EINVAL);
	assert_true(connect_with(FLUE_CONN_DEFER));
	assert_int_equal(qp->private_len, 4);
	fake_news(qp, FLUE_EVENT_ACCEPTED, 0, 0);
	expect_event(FLUE_EVENT_NONE, 0);
	fake.rc.start = -EIO;
	assert_fails(qp->ops->start(qp), EIO);
	fake.rc.start = 0;
	fake.on_connect = say_connected;
	assert_true(qp->ops->start(qp));
	assert_fails(qp->ops->start(qp), EINVAL);
	expect_event(FLUE_EVENT_NONE, 0);
}

static void deferred_connect_tells_by_events_when_asynchronous(void **state)
{
	assert_true(connect_with(FLUE_CONN_DEFER | FLUE_CONN_ASYNC));
	fake_news(qp, FLUE_EVENT_ACCEPTED, 0, 0);
	fake_news(qp, FLUE_EVENT_ACCEPTED, 0, 0);
	expect_event(FLUE_EVENT_ACCEPTED, 0);
	expect_event(FLUE_EVENT_NONE, 0);
	assert_true(qp->ops->start(qp));
	fake_news(qp, FLUE_EVENT_ACCEPTED, 0, 0);
	expect_event(FLUE_EVENT_NONE, 0);
	fake_news(qp, FLUE_EVENT_CONNECTED, 0, 0);
	expect_event(FLUE_EVENT_CONNECTED, 0);
}

static void deferred_connect_is_refused_by_disconnect(void **state)
{
	fake.on_connect = say_accepted;
	assert_true(connect_with(FLUE_CONN_DEFER));
	fake.on_abort = say_failed;
	assert_true(flue_disconnect(qp));
	expect_event(FLUE_EVENT_CONNECT_FAILED, ECONNABORTED);
	assert_true(connect_with(FLUE_CONN_DEFER));
}

static struct flue_event ending;

static void say_ended(struct prov_qp *prov)
{
	fake.adapter->up->qp_event(prov->attr.owner, &ending, NULL);
}

static void disconnect_result_tells_how_it_ended(void **state)
{
	static const struct {
		uint32_t reason, detail;
		int error;
	} ends[] = {
		{ FLUE_CLOSE_GRACEFUL, 0, 0 },
		{ FLUE_CLOSE_BAD, 0, ECONNABORTED },
		{ FLUE_CLOSE_BAD, ETIMEDOUT, ETIMEDOUT },
		{ FLUE_CLOSE_RESET, 0, ECONNRESET },
		{ FLUE_CLOSE_LOST, EHOSTUNREACH, EHOSTUNREACH },
		{ FLUE_CLOSE_LOST, 0, ECONNRESET },
		{ FLUE_CLOSE_ABORTED, ETIMEDOUT, ETIMEDOUT },
		{ FLUE_CLOSE_TERMINATED, 0x1200, EPROTO },
		{ FLUE_CLOSE_FAULT, 0x1200, EPROTO },
		{ FLUE_CLOSE_LOCAL, ENOMEM, ENOMEM },
	};

	fake.on_connect = say_connected;
	fake.on_abort = say_ended;
	ending.type = FLUE_EVENT_DISCONNECTED;
	for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
		assert_true(connect_with(0));
		ending.reason = ends[i].reason;
		ending.detail = ends[i].detail;
		errno = 0;
		assert_int_equal(flue_disconnect(qp), !ends[i].error);
		assert_int_equal(errno, ends[i].error);
		expect_event(FLUE_EVENT_DISCONNECTED, ends[i].detail);
		expect_event(FLUE_EVENT_NONE, 0);
	}
	assert_int_equal(fake.qp->disconnect_ms, 5000);
}

static void disconnect_says_busy_when_work_was_outstanding(void **state)
{
	fake.on_connect = say_connected;
	fake.on_abort = say_ended;
	ending = (struct flue_event) { .type = FLUE_EVENT_DISCONNECTED,
				       .reason = FLUE_CLOSE_ABORTED };
	assert_true(connect_with(0));
	fake.rc.disconnect = -EBUSY;
	assert_fails(flue_disconnect(qp), EBUSY);
	expect_event(FLUE_EVENT_DISCONNECTED, 0);
	fake.rc.disconnect = -ENOTCONN;
	assert_true(flue_disconnect(qp));
	fake.rc.abort = -ENOTCONN;
	assert_true(flue_abort(qp));
	expect_event(FLUE_EVENT_NONE, 0);
}

static void disconnect_does_not_wait_when_told_so(void **state)
{
	fake.on_connect = say_connected;
	assert_true(connect_with(0));
	assert_true(qp->ops->disconnect(qp, -1));
	expect_event(FLUE_EVENT_NONE, 0);
	fake_news(qp, FLUE_EVENT_DISCONNECTED, 0, 0);
	expect_event(FLUE_EVENT_DISCONNECTED, 0);
}

static void disconnect_returns_when_the_provider_never_answers(void **state)
{
	fake.on_connect = say_connected;
	assert_true(connect_with(0));
	assert_fails(qp->ops->disconnect(qp, 10), ETIMEDOUT);
	assert_int_equal(fake.aborts, 1);
	expect_event(FLUE_EVENT_DISCONNECTED, ETIMEDOUT);
	fake_news(qp, FLUE_EVENT_DISCONNECTED, 0, 0);
	expect_event(FLUE_EVENT_NONE, 0);
	/* The same for a deferred connection. */
	fake.on_connect = say_accepted;
	assert_true(connect_with(FLUE_CONN_DEFER));
	assert_fails(qp->ops->disconnect(qp, 10), ETIMEDOUT);
	expect_event(FLUE_EVENT_CONNECT_FAILED, ETIMEDOUT);
}

static void *end_later(void *arg)
{
	usleep(20000);
	fake_news(qp, FLUE_EVENT_DISCONNECTED, 0, 0);
	return NULL;
}

static void new_connection_waits_for_the_news_that_the_last_one_ended(void **state)
{
	pthread_t thread;

	fake.on_connect = say_connected;
	assert_true(connect_with(0));
	/* The provider says Idle by the state, its up-call is still on the way. */
	assert_int_equal(pthread_create(&thread, NULL, end_later, NULL), 0);
	assert_true(connect_with(0));
	assert_int_equal(pthread_join(thread, NULL), 0);
	expect_event(FLUE_EVENT_DISCONNECTED, 0);
	__atomic_store_n(&qp->state, FLUE_QP_RTS, __ATOMIC_RELEASE);
	assert_fails(connect_with(0), EISCONN);
}

struct heard {
	uint32_t types[8];
	unsigned n;
};

static void hear(const struct flue_event *ev, void *arg)
{
	struct heard *heard = arg;

	heard->types[heard->n++] = ev->type;
	assert_fails(flue_destroy_qp(ev->u.qp), EDEADLK);
	assert_fails(flue_disconnect(ev->u.qp), EDEADLK);
	if (ev->type == FLUE_EVENT_DISCONNECTED) {
		struct flue_conn_attr attr = to_peer(0);

		assert_fails(ev->u.qp->ops->connect(ev->u.qp, &attr), EDEADLK);
	}
}

static void handler_hears_events_instead_of_the_queue(void **state)
{
	struct heard heard = { .n = 0 };
	struct flue_qp *mine = qp;

	qp = fake_qp(a, hear, &heard);
	assert_true(connect_with(FLUE_CONN_ASYNC));
	fake_news(qp, FLUE_EVENT_CONNECTED, 0, 0);
	fake_news(qp, FLUE_EVENT_DISCONNECTED, 0, 0);
	fake_news(qp, FLUE_EVENT_DISCONNECTED, 0, 0);
	assert_int_equal(heard.n, 2);
	assert_int_equal(heard.types[0], FLUE_EVENT_CONNECTED);
	expect_event(FLUE_EVENT_NONE, 0);
	assert_true(connect_with(FLUE_CONN_ASYNC));
	fake_news(qp, FLUE_EVENT_CONNECTED, 0, 0);
	assert_fails(qp->ops->disconnect(qp, 1), ETIMEDOUT);
	assert_int_equal(heard.n, 4);
	fake_destroy_qp(qp);
	qp = mine;
}

static void last_receive_is_told_once_for_each_connection(void **state)
{
	struct flue_srq_attr srq_attr = FLUE_ATTR(struct flue_srq_attr);
	struct flue_qp_attr attr = FLUE_ATTR(struct flue_qp_attr);
	struct flue_qp *mine = qp;
	struct flue_srq *srq;

	srq_attr.depth = 4;
	srq = mine->pd->ops->create_srq(mine->pd, &srq_attr);
	attr.send_cq = attr.recv_cq = mine->send_cq;
	attr.sq_depth = 1;
	attr.srq = srq;
	qp = mine->pd->ops->create_qp(mine->pd, &attr);
	for (unsigned i = 0; i < 2; i++) {
		fake_news(qp, FLUE_EVENT_LAST_RECEIVE, 0, 0);
		assert_true(connect_with(FLUE_CONN_ASYNC));
		fake_news(qp, FLUE_EVENT_CONNECTED, 0, 0);
		fake_news(qp, FLUE_EVENT_DISCONNECTED, 0, 0);
		fake_news(qp, FLUE_EVENT_LAST_RECEIVE, 0, 0);
		fake_news(qp, FLUE_EVENT_LAST_RECEIVE, 0, 0);
		expect_event(FLUE_EVENT_CONNECTED, 0);
		expect_event(FLUE_EVENT_DISCONNECTED, 0);
		expect_event(FLUE_EVENT_LAST_RECEIVE, 0);
		expect_event(FLUE_EVENT_NONE, 0);
	}
	assert_true(flue_destroy_qp(qp));
	assert_true(srq->ops->destroy(srq));
	qp = mine;
}

static void srq_limit_is_told_once_for_each_arming(void **state)
{
	struct flue_srq_attr attr = FLUE_ATTR(struct flue_srq_attr);
	struct flue_srq *srq;
	struct flue_event ev;

	assert_fails(qp->pd->ops->create_srq(qp->pd, &attr), EINVAL);
	attr.depth = 1025;
	assert_fails(qp->pd->ops->create_srq(qp->pd, &attr), EINVAL);
	attr.depth = 4;
	attr.max_sge = 5;
	assert_fails(qp->pd->ops->create_srq(qp->pd, &attr), EINVAL);
	attr.max_sge = 4;
	srq = qp->pd->ops->create_srq(qp->pd, &attr);
	fake.adapter->up->srq_limit(fake.srq_owner);
	assert_fails(flue_get_event(a, &ev, 0), EAGAIN);
	assert_fails(srq->ops->arm_limit(srq, 5), EINVAL);
	for (unsigned i = 0; i < 2; i++) {
		assert_true(srq->ops->arm_limit(srq, 3));
		assert_int_equal(fake.srq_limit, 3);
		fake.adapter->up->srq_limit(fake.srq_owner);
		fake.adapter->up->srq_limit(fake.srq_owner);
		assert_true(flue_get_event(a, &ev, 0));
		assert_int_equal(ev.type, FLUE_EVENT_SRQ_LIMIT);
		assert_ptr_equal(ev.u.srq, srq);
		assert_fails(flue_get_event(a, &ev, 0), EAGAIN);
	}
	assert_true(srq->ops->arm_limit(srq, 3));
	assert_true(srq->ops->arm_limit(srq, 0));
	fake.adapter->up->srq_limit(fake.srq_owner);
	assert_fails(flue_get_event(a, &ev, 0), EAGAIN);
	fake.rc.arm_srq = -EIO;
	assert_fails(srq->ops->arm_limit(srq, 3), EIO);
	fake.adapter->up->srq_limit(fake.srq_owner);
	assert_fails(flue_get_event(a, &ev, 0), EAGAIN);
	assert_true(srq->ops->destroy(srq));
}

static void event_file_is_readable_while_events_wait(void **state)
{
	struct pollfd p = { .events = POLLIN };
	struct flue_event ev;

	assert_true(connect_with(FLUE_CONN_ASYNC));
	fake_news(qp, FLUE_EVENT_CONNECTED, 0, 0);
	p.fd = a->ops->event_fd(a);
	assert_true(p.fd >= 0);
	assert_int_equal(a->ops->event_fd(a), p.fd);
	assert_int_equal(poll(&p, 1, 0), 1);
	fake_news(qp, FLUE_EVENT_DISCONNECTED, 0, 0);
	assert_true(flue_get_event(a, &ev, 0));
	assert_int_equal(poll(&p, 1, 0), 1);
	assert_true(flue_get_event(a, &ev, -1));
	assert_int_equal(poll(&p, 1, 0), 0);
	assert_fails(flue_get_event(a, &ev, 1), ETIMEDOUT);
	assert_fails(flue_get_event(a, NULL, 0), EINVAL);
	assert_true(connect_with(FLUE_CONN_ASYNC));
	fake_news(qp, FLUE_EVENT_CONNECTED, 0, 0);
	assert_int_equal(poll(&p, 1, 0), 1);
	/* Events die with their object. */
	fake_destroy_qp(qp);
	assert_int_equal(poll(&p, 1, 0), 0);
	assert_fails(flue_get_event(a, &ev, 0), EAGAIN);
	qp = fake_qp(a, NULL, NULL);
}

static void posting_passes_through(void **state)
{
	struct flue_send_wr send = { .id = 1 };
	struct flue_recv_wr recv = { .id = 1 };
	const struct flue_send_wr *bad_send = NULL;
	const struct flue_recv_wr *bad_recv = NULL;

	assert_true(flue_post_send(qp, &send));
	assert_true(flue_post_recv(qp, &recv));
	fake.rc.post_send = fake.rc.post_recv = -ENOMEM;
	assert_fails(qp->ops->post_send(qp, &send, &bad_send), ENOMEM);
	assert_fails(qp->ops->post_recv(qp, &recv, &bad_recv), ENOMEM);
	assert_ptr_equal(bad_send, &send);
	assert_ptr_equal(bad_recv, &recv);
}

static void qp_is_refused_when_an_attribute_is_impossible(void **state)
{
	struct flue_qp_attr good = FLUE_ATTR(struct flue_qp_attr), attr;
	struct flue_adapter *b = fake_open(NULL, 0);
	struct flue_cq *foreign = flue_create_cq(b, 4);
	struct flue_pd *pd = qp->pd;

	good.send_cq = good.recv_cq = qp->send_cq;
	good.sq_depth = 1;
#define REFUSED(field, value) \
	attr = good;          \
	attr.field = value;   \
	assert_fails(pd->ops->create_qp(pd, &attr), EINVAL)
	REFUSED(send_cq, NULL);
	REFUSED(recv_cq, NULL);
	REFUSED(send_cq, foreign);
	REFUSED(recv_cq, foreign);
	REFUSED(sq_depth, 0);
	REFUSED(sq_depth, 1025);
	REFUSED(rq_depth, 1025);
	REFUSED(sq_sge, 5);
	REFUSED(rq_sge, 5);
	REFUSED(max_inline, 65);
	REFUSED(flags, 8);
	REFUSED(type, FLUE_QP_NTYPES);
	REFUSED(size, 16);
#undef REFUSED
	assert_true(flue_destroy_cq(foreign));
	assert_true(flue_close(b));
}

#define WITH_QP(test) cmocka_unit_test_setup_teardown(test, open_qp, close_qp)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH_QP(connect_refuses_bad_arguments), /* RD-8 */
		WITH_QP(connect_reads_no_more_than_the_size_says),
		WITH_QP(async_connection_is_told_from_start_to_end_exactly_once),
		WITH_QP(unread_events_of_many_connections_are_kept_in_order),
		WITH_QP(blocking_connect_takes_its_own_event),
		WITH_QP(blocking_connect_fails_with_the_reason), /* RD-8 */
		WITH_QP(connect_returns_when_the_provider_never_answers),
		WITH_QP(adrift_qp_can_be_reset),
		WITH_QP(deferred_connect_waits_for_start),                   /* RD-10 */
		WITH_QP(deferred_connect_tells_by_events_when_asynchronous), /* RD-10 */
		WITH_QP(deferred_connect_is_refused_by_disconnect),          /* RD-10 */
		WITH_QP(disconnect_result_tells_how_it_ended),
		WITH_QP(disconnect_says_busy_when_work_was_outstanding),
		WITH_QP(disconnect_does_not_wait_when_told_so),
		WITH_QP(disconnect_returns_when_the_provider_never_answers),
		WITH_QP(new_connection_waits_for_the_news_that_the_last_one_ended),
		WITH_QP(handler_hears_events_instead_of_the_queue),
		WITH_QP(last_receive_is_told_once_for_each_connection),
		WITH_QP(srq_limit_is_told_once_for_each_arming),
		WITH_QP(event_file_is_readable_while_events_wait),
		WITH_QP(posting_passes_through), /* RD-2 */
		WITH_QP(qp_is_refused_when_an_attribute_is_impossible),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
