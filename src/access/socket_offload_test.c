/* SPDX-License-Identifier: MIT */
/* Query and end of an offload (CH-26, CH-27), and offloads that a device never answers (CH-25). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>
#include <cmocka.h>

#include "access/fake_priv.h"
#include "access/socket_priv.h"
#include "base/clock.h"

static struct flue_adapter *a;
static struct flue_socket *s;
static struct flue_qp *control;
static int fd[2];

static struct flue_socket *open_on(struct flue_qp *qp)
{
	struct flue_reserve_attr r = FLUE_ATTR(struct flue_reserve_attr);
	struct flue_socket *one;

	fake_streams(fd);
	one = flue_socket_open(a, fd[0], NULL);
	assert_non_null(one);
	r.qp = qp;
	assert_true(one->ops->reserve(one, &r));
	return one;
}

static int open_socket(void **state)
{
	fake_reset();
	a = fake_open(NULL, 0);
	control = fake_qp(a, NULL, NULL);
	s = open_on(control);
	return 0;
}

static void drop_socket(void)
{
	bool ours = s->state == FLUE_SOCKET_STREAMING;

	assert_true(s->ops->destroy(s));
	if (ours)
		close(fd[0]);
	close(fd[1]);
}

static int close_socket(void **state)
{
	drop_socket();
	if (control)
		fake_destroy_qp(control);
	return !flue_close(a) || fake.qps || fake.cqs || fake.mrs || fake.pds;
}

static void expect(uint32_t type, int error, struct flue_socket_event *out)
{
	struct flue_socket_event ev;

	if (!flue_socket_get_event(s, &ev, 20000))
		fail_msg("no event, want %u: %s", type, strerror(errno));
	assert_int_equal(ev.type, type);
	assert_int_equal(ev.error, error);
	if (out)
		*out = ev;
}

static void expect_end(uint32_t reason, uint32_t detail)
{
	struct flue_socket_event ev;

	expect(FLUE_SOCKET_ENDED, 0, &ev);
	assert_int_equal(ev.reason, reason);
	assert_int_equal(ev.detail, detail);
	assert_fails(flue_socket_get_event(s, &ev, 20), ETIMEDOUT);
}

/* The control client's first receive only begins the transfer. */
static void transfer(int timeout_ms)
{
	struct flue_switch_attr to = FLUE_ATTR(struct flue_switch_attr);

	to.timeout_ms = timeout_ms;
	assert_true(s->ops->switch_mode(s, &to, 1));
	assert_true(s->ops->rdma_recv(s, NULL, 0, 2));
	assert_int_equal(fake.adopts, 1);
}

static void go_on(void)
{
	transfer(0);
	fake_news(control, FLUE_EVENT_CONNECTED, 0, 0);
	expect(FLUE_SOCKET_SWITCHED, 0, NULL);
}

static struct flue_offload_info query(void)
{
	struct flue_offload_info info = FLUE_ATTR(struct flue_offload_info);

	assert_true(s->ops->query_offload(s, &info));
	assert_int_equal(info.size, sizeof(info));
	return info;
}

static void query_tells_what_the_provider_says(void **state)
{
	struct flue_offload_info info = query();

	/* Nobody has the stream yet but the program. */
	assert_true(info.open && !info.ended);
	fake.info = (struct flue_qp_values) { .state = FLUE_QP_RTS,
					      .llp_open = true,
					      .sends = 5,
					      .receives = 6,
					      .reads_out = 7,
					      .reads_in = 8 };
	go_on();
	info = query();
	assert_true(info.open && !info.ended);
	assert_int_equal(info.qp_state, FLUE_QP_RTS);
	assert_true(info.sends == 5 && info.receives == 6);
	assert_true(info.reads_out == 7 && info.reads_in == 8);
	/* TCP is closed, and the word of it still on the way. */
	fake.info.llp_open = false;
	info = query();
	assert_true(!info.open && !info.ended);
	fake.later = true;
	info = query();
	assert_int_equal(info.sends, 5);
	fake.later = false;
}

/* Closed is closed, but how? */
static void query_tells_the_ends_apart(void **state)
{
	static const struct {
		uint32_t state, reason, detail;
	} ends[] = {
		{ FLUE_QP_IDLE, FLUE_CLOSE_GRACEFUL, 0 },
		{ FLUE_QP_CLOSING, FLUE_CLOSE_GRACEFUL, 0 }, /* receives are still flushed */
		{ FLUE_QP_ERROR, FLUE_CLOSE_RESET, ECONNRESET },
		{ FLUE_QP_ERROR, FLUE_CLOSE_BAD, EBUSY },
	};

	for (unsigned i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
		struct flue_offload_info info;

		if (i) {
			drop_socket();
			s = open_on(control);
			fake.adopts = 0;
		}
		go_on();
		fake.info = (struct flue_qp_values) { .state = ends[i].state };
		fake_news(control, FLUE_EVENT_DISCONNECTED, ends[i].reason, ends[i].detail);
		info = query();
		assert_true(!info.open && info.ended);
		assert_int_equal(info.qp_state, ends[i].state);
		assert_int_equal(info.reason, ends[i].reason);
		assert_int_equal(info.detail, ends[i].detail);
	}
}

static void query_refuses_what_it_cannot_answer(void **state)
{
	struct flue_offload_info info = FLUE_ATTR(struct flue_offload_info);

	assert_fails(s->ops->query_offload(s, NULL), EINVAL);
	info.size = 8;
	assert_fails(s->ops->query_offload(s, &info), EINVAL);
	info.size = sizeof(info);
	fake.rc.query_qp = -EIO;
	assert_fails(s->ops->query_offload(s, &info), EIO);
	fake.rc.query_qp = 0;
	acc_answer_ms = 20;
	fake.silent = true;
	assert_fails(s->ops->query_offload(s, &info), ETIMEDOUT);
	fake.silent = false;
	fake_speak(0);
	acc_answer_ms = ACC_ANSWER_MS;
	assert_true(s->ops->query_offload(s, &info));
}

static void end_is_refused_until_tcp_is_closed(void **state)
{
	struct flue_socket_event ev;

	assert_fails(s->ops->end_offload(s, true), EBADFD); /* nothing has begun */
	go_on();
	assert_fails(s->ops->end_offload(s, false), EBUSY);
	assert_true(fake.aborts == 0 && fake.resets == 0);
	assert_ptr_equal(s->qp, control);
	assert_fails(flue_socket_get_event(s, &ev, 0), EAGAIN);
	fake_news(control, FLUE_EVENT_DISCONNECTED, FLUE_CLOSE_GRACEFUL, 0);
	assert_true(s->ops->end_offload(s, false));
	assert_int_equal(fake.aborts, 0);
	expect_end(FLUE_CLOSE_GRACEFUL, 0);
}

/* The queue pair is the program's alone, for whatever comes next. */
static void ended_offload_gives_the_queue_pair_back(void **state)
{
	struct flue_offload_info info = FLUE_ATTR(struct flue_offload_info);
	struct flue_socket *first = s;
	int old = fd[1];

	go_on();
	fake_news(control, FLUE_EVENT_DISCONNECTED, FLUE_CLOSE_RESET, ECONNRESET);
	assert_true(s->ops->end_offload(s, false));
	assert_int_equal(fake.resets, 1); /* Error, so that it is Idle again */
	assert_null(s->qp);
	assert_fails(s->ops->end_offload(s, false), ENOTCONN);
	assert_fails(s->ops->end_offload(s, true), ENOTCONN);
	assert_fails(s->ops->query_offload(s, &info), ENOTCONN);
	expect_end(FLUE_CLOSE_RESET, ECONNRESET);
	/* Another socket has it; the first one does not hear of that, and its end does no harm. */
	s = open_on(control);
	fake.adopts = 0;
	go_on();
	assert_true(first->ops->destroy(first));
	close(old);
	assert_int_equal(fake.aborts, 0);
	fake_news(control, FLUE_EVENT_DISCONNECTED, FLUE_CLOSE_GRACEFUL, 0);
	expect_end(FLUE_CLOSE_GRACEFUL, 0);
	assert_fails(control->ops->destroy(control), EBUSY);
	assert_true(s->ops->end_offload(s, false));
	fake_destroy_qp(control); /* before the socket */
	control = NULL;
}

static void tell_of_abort(struct prov_qp *qp)
{
	struct flue_event ev = { .type = FLUE_EVENT_DISCONNECTED, .reason = FLUE_CLOSE_ABORTED };

	fake.adapter->up->qp_event(qp->attr.owner, &ev, NULL);
}

static void tell_of_failure(struct prov_qp *qp)
{
	struct flue_event ev = { .type = FLUE_EVENT_CONNECT_FAILED, .detail = ECONNABORTED };

	fake.adapter->up->qp_event(qp->attr.owner, &ev, NULL);
}

/* An offload that is ended before TCP is closed ends the connection, once and abortively. */
static void early_end_resets(void **state)
{
	go_on();
	fake.on_abort = tell_of_abort;
	assert_true(s->ops->end_offload(s, true));
	assert_true(fake.aborts == 1 && fake.resets == 1);
	assert_null(s->qp);
	expect_end(FLUE_CLOSE_ABORTED, ECONNABORTED);
}

static void early_end_answers_the_switch_request(void **state)
{
	struct flue_switch_attr to = FLUE_ATTR(struct flue_switch_attr);

	transfer(0);
	fake.on_abort = tell_of_failure;
	assert_true(s->ops->end_offload(s, true));
	expect(FLUE_SOCKET_SWITCHED, ECONNABORTED, NULL);
	expect_end(FLUE_CLOSE_ABORTED, ECONNABORTED);
	/* Before the first receive there is no connection of the queue pair. */
	drop_socket();
	s = open_on(control);
	fake.on_abort = NULL;
	assert_true(s->ops->switch_mode(s, &to, 1));
	assert_fails(s->ops->end_offload(s, false), EBUSY);
	assert_true(s->ops->end_offload(s, true));
	expect(FLUE_SOCKET_SWITCHED, ECONNABORTED, NULL);
	expect_end(FLUE_CLOSE_ABORTED, ECONNABORTED);
}

/* CH-25: the queue pair is given back all the same, to be destroyed. */
static void device_that_never_flushes_does_not_keep_the_offload(void **state)
{
	uint64_t begun = clock_now();

	go_on();
	fake_news(control, FLUE_EVENT_DISCONNECTED, FLUE_CLOSE_RESET, ECONNRESET);
	fake.rc.reset_qp = -EBUSY;
	assert_fails(s->ops->end_offload(s, false), ETIMEDOUT);
	assert_true(clock_now() - begun >= 2000 * NSEC_PER_MSEC);
	fake.rc.reset_qp = 0;
	assert_null(s->qp);
	fake_destroy_qp(control);
	control = NULL;
}

static void device_that_never_tells_does_not_keep_the_offload(void **state)
{
	go_on();
	assert_fails(s->ops->end_offload(s, true), ETIMEDOUT); /* abort() was all it heard */
	assert_int_equal(fake.aborts, 1);
	assert_null(s->qp);
	expect_end(FLUE_CLOSE_ABORTED, ECONNABORTED);
}

static int in_handler;

static void end_in_handler(const struct flue_event *ev, void *arg)
{
	if (ev->type == FLUE_EVENT_DISCONNECTED)
		in_handler = s->ops->end_offload(s, true) ? 0 : errno;
}

static void end_would_deadlock_in_a_handler(void **state)
{
	drop_socket();
	fake_destroy_qp(control);
	control = fake_qp(a, end_in_handler, NULL);
	s = open_on(control);
	go_on();
	in_handler = -1;
	fake_news(control, FLUE_EVENT_DISCONNECTED, FLUE_CLOSE_GRACEFUL, 0);
	assert_int_equal(in_handler, EDEADLK);
	assert_ptr_equal(s->qp, control);
}

static void renew_in_handler(const struct flue_event *ev, void *arg)
{
	if (ev->type != FLUE_EVENT_DISCONNECTED)
		return;
	drop_socket();
	s = open_on(control);
	fake.adopts = 0;
	transfer(0);
}

/* What a connection tells reaches the socket that had it, and not one that has the queue pair now. */
static void next_socket_does_not_hear_of_the_last_ones_end(void **state)
{
	struct flue_socket_event ev;

	drop_socket();
	fake_destroy_qp(control);
	control = fake_qp(a, renew_in_handler, NULL);
	s = open_on(control);
	go_on();
	fake_news(control, FLUE_EVENT_DISCONNECTED, FLUE_CLOSE_GRACEFUL, 0);
	assert_fails(flue_socket_get_event(s, &ev, 0), EAGAIN);
	assert_int_equal(s->offload_state, FLUE_OFFLOAD_IN_PROGRESS);
	fake_news(control, FLUE_EVENT_CONNECTED, 0, 0);
	expect(FLUE_SOCKET_SWITCHED, 0, NULL);
}

/* CH-25: a provider that takes the stream and never says what became of it. */
static void transfer_that_is_never_answered_is_given_up(void **state)
{
	transfer(50);
	expect(FLUE_SOCKET_SWITCHED, ETIMEDOUT, NULL);
	expect_end(FLUE_CLOSE_LOST, ETIMEDOUT);
	assert_int_equal(fake.aborts, 1);
}

/* CH-26: the flush that was waited for is over, but its timer is not. */
static void end_is_not_told_again_by_a_timer_that_was_left(void **state)
{
	struct flue_socket_event ev;

	drop_socket();
	s = open_on(NULL);
	assert_true(fake_socket_to(s, FLUE_OFFLOAD_WAIT_FIRST_RECV));
	assert_true(s->ops->rdma_recv(s, NULL, 0, 2));
	fake_news(s->qp, FLUE_EVENT_CONNECTED, 0, 0);
	expect(FLUE_SOCKET_SWITCHED, 0, NULL);
	fake_news(s->qp, FLUE_EVENT_DISCONNECTED, FLUE_CLOSE_RESET, ECONNRESET);
	fake_finish_recv(s->qp, FLUE_WC_FLUSHED, 0);
	expect(FLUE_SOCKET_RDMA_RECEIVED, ECANCELED, NULL);
	expect(FLUE_SOCKET_ENDED, 0, NULL);
	assert_fails(flue_socket_get_event(s, &ev, 2500), ETIMEDOUT); /* the timer's time is 2 s */
}

/* The deadline passes while the provider is thinking. */
static void let_it_pass(struct prov_qp *qp)
{
	to_socket(s)->deadline = 1;
	sock_progress(&to_socket(s)->task);
}

static void transfer_that_is_refused_too_late_is_told_once(void **state)
{
	fake.on_adopt = let_it_pass;
	fake.rc.adopt = -ENOMEM;
	transfer(0);
	expect(FLUE_SOCKET_SWITCHED, ETIMEDOUT, NULL);
	expect_end(FLUE_CLOSE_LOST, ETIMEDOUT);
	assert_int_equal(s->fd, -1);
	assert_true(recv(fd[1], &(char) { 0 }, 1, 0) <= 0); /* the stream has ended */
}

static void transfer_that_succeeds_too_late_is_aborted(void **state)
{
	fake.on_adopt = let_it_pass;
	transfer(0);
	expect(FLUE_SOCKET_SWITCHED, ETIMEDOUT, NULL);
	expect_end(FLUE_CLOSE_LOST, ETIMEDOUT);
	assert_int_equal(fake.aborts,
			 2); /* when it was given up, and once more: it was early then */
}

#define WITH_SOCKET(test) cmocka_unit_test_setup_teardown(test, open_socket, close_socket)

int main(void)
{
	const struct CMUnitTest tests[] = {
		/* CH-26, CH-27 */
		WITH_SOCKET(query_tells_what_the_provider_says),
		WITH_SOCKET(query_tells_the_ends_apart),
		WITH_SOCKET(query_refuses_what_it_cannot_answer),
		WITH_SOCKET(end_is_refused_until_tcp_is_closed),
		WITH_SOCKET(ended_offload_gives_the_queue_pair_back),
		WITH_SOCKET(early_end_resets), /* CH-21 */
		WITH_SOCKET(early_end_answers_the_switch_request),
		WITH_SOCKET(end_would_deadlock_in_a_handler),
		WITH_SOCKET(next_socket_does_not_hear_of_the_last_ones_end),
		/* CH-25 */
		WITH_SOCKET(device_that_never_flushes_does_not_keep_the_offload),
		WITH_SOCKET(device_that_never_tells_does_not_keep_the_offload),
		WITH_SOCKET(end_is_not_told_again_by_a_timer_that_was_left), /* CH-26 */
		WITH_SOCKET(transfer_that_is_never_answered_is_given_up),
		WITH_SOCKET(transfer_that_is_refused_too_late_is_told_once), /* CH-14, CH-26 */
		WITH_SOCKET(transfer_that_succeeds_too_late_is_aborted),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
