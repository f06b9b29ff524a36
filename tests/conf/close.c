/* SPDX-License-Identifier: MIT */
/* Conformance: how connections end, and that everyone is told exactly once (CH-18). */
#include "conf/conf.h"

#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

static void assert_talks(struct pair *p)
{
	assert_ok(pair_recv(&p->b, 0, 100, 1));
	assert_ok(pair_send(&p->a, 0, 100, 2, FLUE_SIGNALED));
	assert_true(pair_expect(p->b.recv_cq, 1, FLUE_WC_SUCCESS));
	assert_true(pair_expect(p->a.send_cq, 2, FLUE_WC_SUCCESS));
}

static void graceful_close_ends_idle_on_both_sides(void **state)
{
	struct pair *p = *state;

	assert_talks(p);
	assert_ok(flue_disconnect(p->a.qp));
	conf_expect_end(p, FLUE_CLOSE_GRACEFUL, FLUE_CLOSE_GRACEFUL);
	assert_true(pair_wait_state(p->a.qp, FLUE_QP_IDLE, 5000));
	assert_true(pair_wait_state(p->b.qp, FLUE_QP_IDLE, 5000));
	conf_expect_quiet(p);
	assert_ok(flue_disconnect(p->a.qp));
	assert_ok(flue_abort(p->b.qp));
	conf_expect_quiet(p);
}

static void responder_can_close_as_well(void **state)
{
	struct pair *p = *state;

	assert_talks(p);
	assert_ok(flue_disconnect(p->b.qp));
	conf_expect_end(p, FLUE_CLOSE_GRACEFUL, FLUE_CLOSE_GRACEFUL);
	conf_expect_quiet(p);
}

static void graceful_close_flushes_the_receives(void **state)
{
	struct pair *p = *state;

	assert_ok(pair_recv(&p->a, 0, 100, 1));
	assert_ok(pair_recv(&p->a, 0, 100, 2));
	assert_ok(pair_recv(&p->b, 0, 100, 3));
	assert_ok(flue_disconnect(p->a.qp));
	assert_true(pair_expect(p->a.recv_cq, 1, FLUE_WC_FLUSHED));
	assert_true(pair_expect(p->a.recv_cq, 2, FLUE_WC_FLUSHED));
	assert_true(pair_expect(p->b.recv_cq, 3, FLUE_WC_FLUSHED));
}

static void graceful_close_can_be_left_to_events(void **state)
{
	struct pair *p = *state;

	assert_ok(p->a.qp->ops->disconnect(p->a.qp, -1));
	conf_expect_end(p, FLUE_CLOSE_GRACEFUL, FLUE_CLOSE_GRACEFUL);
	conf_expect_quiet(p);
}

static void queue_pairs_can_be_connected_again(void **state)
{
	struct pair *p = *state;

	for (unsigned i = 0; i < 5; i++) {
		assert_talks(p);
		if (i % 2) {
			assert_ok(flue_abort(p->a.qp));
			conf_expect_end(p, FLUE_CLOSE_ABORTED, FLUE_CLOSE_RESET);
			assert_true(pair_wait_state(p->a.qp, FLUE_QP_ERROR, 5000));
			assert_true(pair_wait_state(p->b.qp, FLUE_QP_ERROR, 5000));
			assert_ok(p->a.qp->ops->reset(p->a.qp));
			assert_ok(p->b.qp->ops->reset(p->b.qp));
		} else {
			assert_ok(flue_disconnect(p->b.qp));
			conf_expect_end(p, FLUE_CLOSE_GRACEFUL, FLUE_CLOSE_GRACEFUL);
		}
		assert_ok(pair_connect(p));
	}
	conf_expect_quiet(p);
}

struct closer {
	struct flue_qp *qp;
	bool ok;
};

static void *close_main(void *arg)
{
	struct closer *c = arg;

	c->ok = flue_disconnect(c->qp);
	return NULL;
}

static void both_sides_can_close_at_the_same_time(void **state)
{
	for (unsigned i = 0; i < 20; i++) {
		struct pair_options o = PAIR_DEFAULTS;
		struct closer a, b;
		pthread_t thread;
		struct pair *p = conf_pair(&o);

		assert_talks(p);
		a.qp = p->a.qp;
		b.qp = p->b.qp;
		assert_int_equal(pthread_create(&thread, NULL, close_main, &a), 0);
		close_main(&b);
		assert_int_equal(pthread_join(thread, NULL), 0);
		assert_true(a.ok);
		assert_true(b.ok);
		conf_expect_end(p, FLUE_CLOSE_GRACEFUL, FLUE_CLOSE_GRACEFUL);
		conf_expect_quiet(p);
		conf_end(p);
	}
}

static void close_with_work_outstanding_is_abortive(void **state)
{
	struct pair *p = *state;
	struct flue_event ev;
	struct flue_wc wc[60];
	unsigned flushed = 0;

	if (pair_local) {
		print_message("# Reads through memory are done when they are posted\n");
		skip();
	}
	for (uint64_t id = 0; id < 60; id++)
		assert_ok(pair_read(&p->a, 0, 1 << 20, &p->b, 0, id, FLUE_SIGNALED));
	assert_fails(flue_disconnect(p->a.qp), EBUSY);
	assert_int_equal(flue_qp_state(p->a.qp), FLUE_QP_ERROR);
	assert_true(pair_event(&p->a, FLUE_EVENT_DISCONNECTED, p->a.qp, &ev, 5000));
	assert_int_not_equal(ev.reason, FLUE_CLOSE_GRACEFUL);
	assert_true(pair_event(&p->b, FLUE_EVENT_DISCONNECTED, p->b.qp, &ev, 5000));
	assert_int_not_equal(ev.reason, FLUE_CLOSE_GRACEFUL);
	assert_int_equal(pair_take(p->a.send_cq, wc, 60, 5000), 60);
	for (unsigned i = 0; i < 60; i++) {
		assert_int_equal(wc[i].id, i);
		if (flushed)
			assert_int_equal(wc[i].status, FLUE_WC_FLUSHED);
		flushed += wc[i].status == FLUE_WC_FLUSHED;
	}
	assert_true(flushed > 0);
	conf_expect_quiet(p);
}

static void abort_resets_the_peer_and_flushes_everything(void **state)
{
	struct pair *p = *state;

	for (uint64_t id = 0; id < 10; id++) {
		assert_ok(pair_recv(&p->a, 0, 100, id));
		assert_ok(pair_recv(&p->b, 0, 100, id));
	}
	assert_ok(flue_abort(p->a.qp));
	assert_int_equal(flue_qp_state(p->a.qp), FLUE_QP_ERROR);
	conf_expect_end(p, FLUE_CLOSE_ABORTED, FLUE_CLOSE_RESET);
	assert_true(pair_wait_state(p->b.qp, FLUE_QP_ERROR, 5000));
	for (uint64_t id = 0; id < 10; id++) {
		assert_true(pair_expect(p->a.recv_cq, id, FLUE_WC_FLUSHED));
		assert_true(pair_expect(p->b.recv_cq, id, FLUE_WC_FLUSHED));
	}
	assert_ok(flue_abort(p->a.qp));
	assert_ok(flue_disconnect(p->b.qp));
	conf_expect_quiet(p);
}

static void requests_posted_after_an_error_are_flushed(void **state)
{
	struct pair *p = *state;

	assert_ok(flue_abort(p->a.qp));
	assert_true(pair_wait_state(p->a.qp, FLUE_QP_ERROR, 5000));
	for (uint64_t id = 0; id < 5; id++) {
		assert_ok(pair_send(&p->a, 0, 10, id, id % 2 ? FLUE_SIGNALED : 0));
		assert_ok(pair_recv(&p->a, 0, 10, id));
	}
	/* Unsignaled ones too: a failure is always told. */
	for (uint64_t id = 0; id < 5; id++) {
		assert_true(pair_expect(p->a.send_cq, id, FLUE_WC_FLUSHED));
		assert_true(pair_expect(p->a.recv_cq, id, FLUE_WC_FLUSHED));
	}
	assert_ok(p->a.qp->ops->reset(p->a.qp));
	assert_int_equal(flue_qp_state(p->a.qp), FLUE_QP_IDLE);
	assert_fails(pair_send(&p->a, 0, 10, 1, 0), ENOTCONN);
}

static void reset_is_refused_while_connected(void **state)
{
	struct pair *p = *state;

	assert_fails(p->a.qp->ops->reset(p->a.qp), EBUSY);
	assert_talks(p);
}

static void destroying_a_connected_queue_pair_tells_the_peer(void **state)
{
	struct pair *p = *state;
	struct flue_event ev;
	struct flue_wc wc;
	uint32_t got;

	assert_ok(pair_recv(&p->a, 0, 100, 1));
	assert_ok(flue_destroy_qp(p->a.qp));
	p->a.qp = NULL;
	assert_true(pair_event(&p->b, FLUE_EVENT_DISCONNECTED, p->b.qp, &ev, 5000));
	assert_string_equal(flue_close_reason_name(ev.reason),
			    flue_close_reason_name(FLUE_CLOSE_RESET));
	assert_ok(flue_poll(p->a.recv_cq, &wc, 1, &got));
	assert_int_equal(got, 0);
	conf_expect_quiet(p);
}

/* ---- faults of the peer ---- */

static void message_longer_than_its_receive_ends_the_connection(void **state)
{
	struct pair *p = *state;
	uint32_t fault;

	memset(p->b.mem, 0x44, 200);
	assert_ok(pair_recv(&p->b, 0, 100, 1));
	assert_ok(pair_recv(&p->b, 0, 100, 2));
	assert_ok(pair_send(&p->a, 0, 101, 3, FLUE_SIGNALED));
	assert_true(pair_expect(p->b.recv_cq, 1, FLUE_WC_LOCAL_LENGTH));
	assert_true(pair_expect(p->b.recv_cq, 2, FLUE_WC_FLUSHED));
	fault = conf_expect_end(p, FLUE_CLOSE_TERMINATED, FLUE_CLOSE_FAULT);
	assert_int_equal(fault, 0x1205); /* DDP, untagged buffer: message too long */
	assert_int_equal(p->b.mem[100], 0x44);
	conf_expect_quiet(p);
}

static void message_without_a_receive_ends_the_connection(void **state)
{
	struct pair *p = *state;
	uint32_t fault;

	STRICT_ONLY("full service waits for a receive: `full.c`");
	assert_ok(pair_send(&p->a, 0, 10, 3, FLUE_SIGNALED));
	fault = conf_expect_end(p, FLUE_CLOSE_TERMINATED, FLUE_CLOSE_FAULT);
	assert_int_equal(fault, 0x1202); /* DDP, untagged buffer: no buffer available */
	assert_true(pair_wait_state(p->a.qp, FLUE_QP_ERROR, 5000));
	assert_true(pair_wait_state(p->b.qp, FLUE_QP_ERROR, 5000));
	conf_expect_quiet(p);
}

/* ---- a peer that does MPA and then nothing: revision 1, by hand ---- */

/* Connects and returns the socket; b.qp is then in RTS. */
static int connect_by_hand(struct pair *p)
{
	static const uint8_t frame[] = "MPA ID Req Frame\x40\x01\x00\x00";
	struct flue_conn_request *req;
	uint8_t reply[20];
	int fd;

	STRICT_ONLY("the peer is made by hand, and speaks iWARP");
	fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_true(fd >= 0);
	assert_int_equal(
		connect(fd, (struct sockaddr *)&p->listener->local, sizeof(struct sockaddr_in)), 0);
	assert_int_equal(write(fd, frame, 20), 20);
	assert_ok(req = p->listener->ops->get_request(p->listener, 5000));
	assert_int_equal(req->revision, 1);
	assert_int_equal(req->peer_ird, UINT32_MAX);
	assert_ok(req->ops->accept(req, p->b.qp, NULL));
	assert_int_equal(recv(fd, reply, 20, MSG_WAITALL), 20);
	assert_memory_equal(reply, "MPA ID Rep Frame", 16);
	return fd;
}

static void close_times_out_when_the_peer_does_not_close(void **state)
{
	struct pair *p = *state;
	uint64_t start;
	int fd = connect_by_hand(p);
	unsigned aborts = faulty_calls(FAULTY_abort);
	char c;

	start = pair_now_ms();
	assert_fails(p->b.qp->ops->disconnect(p->b.qp, 200), ETIMEDOUT);
	assert_true(pair_now_ms() - start >= 190);
	assert_true(pair_now_ms() - start < 5000);
	/* By the provider's own timer, not by the access layer's patience. */
	assert_int_equal(faulty_calls(FAULTY_abort), aborts);
	assert_int_equal(flue_qp_state(p->b.qp), FLUE_QP_ERROR);
	assert_true(pair_event(&p->b, FLUE_EVENT_DISCONNECTED, p->b.qp, NULL, 5000));
	conf_expect_quiet(p);
	/* First our FIN, then the reset. */
	assert_int_equal(recv(fd, &c, 1, 0), 0);
	close(fd);
}

/* CH-21: work posted while Closing is refused and ends the close badly. */
static void work_posted_while_closing(struct pair *p, bool receive)
{
	struct flue_event ev;
	int fd = connect_by_hand(p);

	assert_ok(p->b.qp->ops->disconnect(p->b.qp, -1));
	assert_int_equal(flue_qp_state(p->b.qp), FLUE_QP_CLOSING);
	if (receive)
		assert_fails(pair_recv(&p->b, 0, 10, 1), ENOTCONN);
	else
		assert_fails(pair_send(&p->b, 0, 10, 1, 0), ENOTCONN);
	assert_true(pair_event(&p->b, FLUE_EVENT_DISCONNECTED, p->b.qp, &ev, 5000));
	assert_int_equal(ev.reason, FLUE_CLOSE_BAD);
	assert_int_equal(ev.detail, ENOTCONN);
	assert_int_equal(flue_qp_state(p->b.qp), FLUE_QP_ERROR);
	conf_expect_quiet(p);
	close(fd);
}

static void send_posted_while_closing_ends_badly(void **state)
{
	work_posted_while_closing(*state, false);
}

static void receive_posted_while_closing_ends_badly(void **state)
{
	work_posted_while_closing(*state, true);
}

/* CH-24: the program's own Terminate. */
static void program_may_end_with_a_terminate(void **state)
{
	struct pair *p = *state;
	struct flue_event ev;

	assert_ok(pair_connect(p));
	assert_ok(p->a.qp->ops->terminate(p->a.qp));
	assert_true(pair_event(&p->a, FLUE_EVENT_DISCONNECTED, p->a.qp, &ev, 5000));
	assert_int_equal(ev.reason, FLUE_CLOSE_FAULT);
	assert_int_equal(ev.detail, 0);
	assert_true(pair_event(&p->b, FLUE_EVENT_DISCONNECTED, p->b.qp, &ev, 5000));
	assert_int_equal(ev.reason, FLUE_CLOSE_TERMINATED);
	assert_int_equal(ev.detail, 0);
	assert_fails(p->a.qp->ops->terminate(p->a.qp), ENOTCONN);
	conf_expect_quiet(p);
}

static void peer_that_closes_is_answered(void **state)
{
	struct pair *p = *state;
	struct flue_event ev;
	int fd = connect_by_hand(p);
	char c;

	assert_int_equal(shutdown(fd, SHUT_WR), 0);
	assert_int_equal(recv(fd, &c, 1, 0), 0);
	assert_true(pair_event(&p->b, FLUE_EVENT_DISCONNECTED, p->b.qp, &ev, 5000));
	assert_int_equal(ev.reason, FLUE_CLOSE_GRACEFUL);
	assert_true(pair_wait_state(p->b.qp, FLUE_QP_IDLE, 5000));
	close(fd);
}

static void peer_that_resets_is_noticed(void **state)
{
	struct pair *p = *state;
	struct linger now = { .l_onoff = 1 };
	struct flue_event ev;
	int fd = connect_by_hand(p);

	setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
	close(fd);
	assert_true(pair_event(&p->b, FLUE_EVENT_DISCONNECTED, p->b.qp, &ev, 5000));
	assert_int_equal(ev.reason, FLUE_CLOSE_RESET);
	assert_true(pair_wait_state(p->b.qp, FLUE_QP_ERROR, 5000));
	conf_expect_quiet(p);
}

static void peer_that_sends_garbage_is_terminated(void **state)
{
	struct pair *p = *state;
	struct flue_event ev;
	int fd = connect_by_hand(p);
	uint8_t junk[64];

	memset(junk, 0xa5, sizeof(junk));
	junk[0] = 0;
	junk[1] = 40;
	assert_int_equal(write(fd, junk, sizeof(junk)), sizeof(junk));
	assert_true(pair_event(&p->b, FLUE_EVENT_DISCONNECTED, p->b.qp, &ev, 5000));
	assert_int_equal(ev.reason, FLUE_CLOSE_FAULT);
	assert_int_equal(ev.detail, 0x2002); /* MPA: CRC error */
	close(fd);
	conf_expect_quiet(p);
}

/* ---- handlers ---- */

struct heard {
	atomic_uint up, down, other, deadlocks;
};

static void hear(const struct flue_event *ev, void *arg)
{
	struct heard *heard = arg;

	switch (ev->type) {
	case FLUE_EVENT_CONNECTED: atomic_fetch_add(&heard->up, 1); break;
	case FLUE_EVENT_DISCONNECTED: atomic_fetch_add(&heard->down, 1); break;
	default: atomic_fetch_add(&heard->other, 1);
	}
	if (!flue_destroy_qp(ev->u.qp) && errno == EDEADLK && !flue_disconnect(ev->u.qp) &&
	    errno == EDEADLK && !flue_close(ev->u.qp->pd->adapter) && errno == EDEADLK)
		atomic_fetch_add(&heard->deadlocks, 1);
}

static void handler_hears_each_event_once_and_cannot_destroy(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;
	static struct heard heard;
	struct pair *p;

	memset(&heard, 0, sizeof(heard));
	o.on_event = hear;
	o.event_arg = &heard;
	p = conf_pair(&o);
	assert_int_equal(atomic_load(&heard.up), 0); /* connect() and accept() waited */
	assert_ok(flue_disconnect(p->a.qp));
	for (unsigned i = 0; i < 5000 && atomic_load(&heard.deadlocks) < 2; i++)
		usleep(1000);
	assert_int_equal(atomic_load(&heard.down), 2);
	assert_int_equal(atomic_load(&heard.deadlocks), 2);
	assert_int_equal(atomic_load(&heard.other), 0);
	conf_expect_quiet(p);
	conf_end(p);
}

static void event_file_tells_that_an_event_waits(void **state)
{
	struct pair *p = *state;
	struct flue_event ev;
	fd_set set;
	int fd = p->b.adapter->ops->event_fd(p->b.adapter);
	struct timeval limit = { .tv_sec = 5 };

	assert_true(fd >= 0);
	assert_ok(flue_abort(p->a.qp));
	FD_ZERO(&set);
	FD_SET(fd, &set);
	assert_int_equal(select(fd + 1, &set, NULL, NULL, &limit), 1);
	assert_ok(flue_get_event(p->b.adapter, &ev, 0));
	assert_int_equal(ev.type, FLUE_EVENT_DISCONNECTED);
	limit = (struct timeval) { .tv_sec = 0 };
	FD_SET(fd, &set);
	assert_int_equal(select(fd + 1, &set, NULL, NULL, &limit), 0);
}

int main(int argc, char **argv)
{
	/* CH-18 all of them. */
	const struct CMUnitTest tests[] = {
		WITH_PAIR(graceful_close_ends_idle_on_both_sides),
		WITH_PAIR(responder_can_close_as_well),
		WITH_PAIR(graceful_close_flushes_the_receives),
		WITH_PAIR(graceful_close_can_be_left_to_events),
		WITH_PAIR(queue_pairs_can_be_connected_again),
		cmocka_unit_test(both_sides_can_close_at_the_same_time),
		WITH_PAIR(close_with_work_outstanding_is_abortive),
		WITH_PAIR(abort_resets_the_peer_and_flushes_everything),
		WITH_PAIR(requests_posted_after_an_error_are_flushed),
		WITH_PAIR(reset_is_refused_while_connected),
		WITH_PAIR(destroying_a_connected_queue_pair_tells_the_peer),
		WITH_PAIR(message_longer_than_its_receive_ends_the_connection),
		WITH_PAIR(message_without_a_receive_ends_the_connection),
		WITH_IDLE_PAIR(close_times_out_when_the_peer_does_not_close),
		WITH_IDLE_PAIR(send_posted_while_closing_ends_badly),
		WITH_IDLE_PAIR(receive_posted_while_closing_ends_badly),
		WITH_IDLE_PAIR(program_may_end_with_a_terminate),
		WITH_IDLE_PAIR(peer_that_closes_is_answered),
		WITH_IDLE_PAIR(peer_that_resets_is_noticed),
		WITH_IDLE_PAIR(peer_that_sends_garbage_is_terminated),
		cmocka_unit_test(handler_hears_each_event_once_and_cannot_destroy),
		WITH_PAIR(event_file_tells_that_an_event_waits),
	};

	conf_init(argc, argv);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
