/* SPDX-License-Identifier: MIT */
/*
 * Threads that are cancelled while they are inside the library: asleep in each call that waits, in
 * the middle of posting and polling, before a call and during one that must be finished. Whatever
 * the moment, the thread ends when flue(7) says so and everybody else goes on.
 */
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

#include "conf/pair.h"

#define WATCHDOG_S     100
#define FALL_ASLEEP_US 100000
#define BUSY           1000 /* id of what is posted again and again */

struct sleeper {
	pthread_t thread;
	void (*sleep)(struct sleeper *s);
	struct pair *p;
	struct flue_cq *cq;
	struct flue_socket *socket;
	struct flue_interface_watch *watch;
	atomic_bool returned;
	atomic_ulong rounds;
};

/* AddressSanitizer does not see frames go when a thread is cancelled. */
static void frames_are_gone(void *unused)
{
#ifdef __SANITIZE_ADDRESS__
	pthread_attr_t attr;
	void *stack;
	size_t size;

	pthread_getattr_np(pthread_self(), &attr);
	pthread_attr_getstack(&attr, &stack, &size);
	pthread_attr_destroy(&attr);
	__asan_unpoison_memory_region(stack, size);
#endif
	(void)unused;
}

static void *sleeper_main(void *arg)
{
	struct sleeper *s = arg;

	pthread_cleanup_push(frames_are_gone, NULL);
	s->sleep(s);
	pthread_cleanup_pop(0);
	atomic_store(&s->returned, true);
	return s;
}

static void begin(struct sleeper *s)
{
	alarm(WATCHDOG_S);
	atomic_store(&s->returned, false);
	assert_int_equal(pthread_create(&s->thread, NULL, sleeper_main, s), 0);
}

static void assert_cancelled(struct sleeper *s)
{
	void *result = NULL;

	assert_int_equal(pthread_cancel(s->thread), 0);
	assert_int_equal(pthread_join(s->thread, &result), 0);
	assert_ptr_equal(result, PTHREAD_CANCELED);
}

/* Falls asleep, and never wakes up. */
static void put_to_death(struct sleeper *s)
{
	begin(s);
	usleep(FALL_ASLEEP_US);
	assert_false(atomic_load(&s->returned));
	assert_cancelled(s);
}

static bool talk(struct pair *p)
{
	return pair_recv(&p->b, 0, 64, 1) && pair_send(&p->a, 100, 64, 2, FLUE_SIGNALED) &&
	       pair_expect(p->b.recv_cq, 1, FLUE_WC_SUCCESS) &&
	       pair_expect(p->a.send_cq, 2, FLUE_WC_SUCCESS);
}

/* All on one engine, so that threads meet. */
static void open_on_one_processor(struct pair *p)
{
	static const int cpu[] = { 0 };
	struct pair_options o = PAIR_DEFAULTS;

	o.one_adapter = o.one_cq = true;
	o.cpus = cpu;
	o.n_cpus = 1;
	alarm(WATCHDOG_S);
	assert_true(pair_open(p, &o));
}

/* ---- waiting for completions ---- */

static void wait_for_cq(struct sleeper *s)
{
	flue_wait(s->cq, -1);
}

static void waiter_that_drives_gives_the_token_back(void **state)
{
	struct sleeper s = { .sleep = wait_for_cq };
	struct pair p;

	open_on_one_processor(&p);
	s.cq = p.b.recv_cq;
	for (int i = 0; i < 5; i++) {
		put_to_death(&s);
		assert_true(talk(&p));
	}
	assert_true(flue_disconnect(p.a.qp));
	assert_true(pair_close(&p));
}

/* Of several waiters one drives and the others follow; whoever dies, the last one is woken. */
static void waiters_that_are_left_take_over(void **state)
{
	for (int survivor = 0; survivor < 3; survivor++) {
		struct sleeper s[3];
		struct pair p;

		open_on_one_processor(&p);
		memset(s, 0, sizeof(s));
		for (int i = 0; i < 3; i++) {
			s[i].sleep = wait_for_cq;
			s[i].cq = p.b.recv_cq;
			begin(&s[i]);
			usleep(FALL_ASLEEP_US / 2);
		}
		for (int i = 0; i < 3; i++)
			if (i != survivor)
				assert_cancelled(&s[i]);
		assert_false(atomic_load(&s[survivor].returned));
		assert_true(pair_recv(&p.b, 0, 64, 1));
		assert_true(pair_send(&p.a, 100, 64, 2, FLUE_SIGNALED));
		pthread_join(s[survivor].thread, NULL);
		assert_true(atomic_load(&s[survivor].returned));
		assert_true(pair_expect(p.b.recv_cq, 1, FLUE_WC_SUCCESS));
		assert_true(pair_expect(p.a.send_cq, 2, FLUE_WC_SUCCESS));
		assert_true(talk(&p));
		assert_true(pair_close(&p));
	}
}

/* ---- waiting for other things ---- */

static void wait_for_event(struct sleeper *s)
{
	struct flue_event ev;

	flue_get_event(s->p->a.adapter, &ev, -1);
}

static void wait_for_request(struct sleeper *s)
{
	s->p->listener->ops->get_request(s->p->listener, -1);
}

static void wait_for_socket_event(struct sleeper *s)
{
	struct flue_socket_event ev;

	flue_socket_get_event(s->socket, &ev, -1);
}

static void wait_for_notice(struct sleeper *s)
{
	const struct flue_interface *iface;
	uint32_t notice;

	while (flue_next_interface(s->watch, &notice, &iface, -1))
		;
}

static void cancelled_wait_for_an_event_locks_nobody_out(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;
	struct sleeper s = { .sleep = wait_for_event };
	struct flue_event ev;
	struct pair p;

	assert_true(pair_open(&p, &o));
	s.p = &p;
	put_to_death(&s);
	assert_false(flue_get_event(p.a.adapter, &ev, 0));
	assert_int_equal(errno, EAGAIN);
	assert_true(flue_disconnect(p.a.qp));
	assert_true(pair_event(&p.a, FLUE_EVENT_DISCONNECTED, p.a.qp, NULL, 10000));
	assert_true(pair_close(&p));
}

static void cancelled_wait_for_a_request_locks_nobody_out(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;
	struct sleeper s = { .sleep = wait_for_request };
	struct pair p;

	assert_true(pair_make(&p, &o));
	s.p = &p;
	put_to_death(&s);
	assert_null(p.listener->ops->get_request(p.listener, 0));
	assert_int_equal(errno, EAGAIN);
	assert_true(pair_connect(&p));
	assert_true(talk(&p));
	assert_true(pair_close(&p));
}

/* A TCP connection over loopback. */
static void make_stream(int fd[2])
{
	struct sockaddr_in at = { .sin_family = AF_INET };
	socklen_t len = sizeof(at);
	int l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	fd[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(l, (struct sockaddr *)&at, len), 0);
	assert_int_equal(listen(l, 1), 0);
	assert_int_equal(getsockname(l, (struct sockaddr *)&at, &len), 0);
	assert_int_equal(connect(fd[0], (struct sockaddr *)&at, len), 0);
	fd[1] = accept(l, NULL, NULL);
	assert_true(fd[1] >= 0);
	close(l);
}

static void cancelled_wait_of_a_socket_locks_nobody_out(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;
	struct sleeper s = { .sleep = wait_for_socket_event };
	struct flue_socket_event ev;
	char octet;
	struct pair p;
	int fd[2];

	assert_true(pair_make(&p, &o));
	make_stream(fd);
	s.socket = flue_socket_open(p.a.adapter, fd[0], NULL);
	assert_non_null(s.socket);
	put_to_death(&s);
	assert_true(s.socket->ops->recv(s.socket, &octet, 1, 7));
	assert_int_equal(write(fd[1], "x", 1), 1);
	assert_true(flue_socket_get_event(s.socket, &ev, 10000));
	assert_int_equal(ev.type, FLUE_SOCKET_RECEIVED);
	assert_int_equal(ev.id, 7);
	assert_true(s.socket->ops->destroy(s.socket));
	close(fd[0]);
	close(fd[1]);
	assert_true(pair_close(&p));
}

static void cancelled_wait_of_a_watch_locks_nobody_out(void **state)
{
	struct sleeper s = { .sleep = wait_for_notice };
	const struct flue_interface *iface;
	uint32_t notice;

	s.watch = flue_watch_interfaces(NULL);
	if (!s.watch) {
		print_message("# interfaces cannot be watched here: %s\n", strerror(errno));
		skip();
	}
	put_to_death(&s);
	/* Not EBUSY: nobody is there any more. */
	assert_false(flue_next_interface(s.watch, &notice, &iface, 0));
	assert_int_equal(errno, EAGAIN);
	assert_true(flue_unwatch_interfaces(s.watch));
}

/* ---- never asleep ---- */

static void post_and_poll(struct sleeper *s)
{
	struct flue_sge sge = flue_mr_sge(s->p->a.mr, 0, 2000);
	struct flue_send_wr wr = { .id = BUSY, .op = FLUE_WR_WRITE, .flags = FLUE_SIGNALED };
	struct flue_wc wc[4];
	uint32_t got;

	wr.sg = &sge;
	wr.n_sg = 1;
	wr.rkey = s->p->b.mr->rkey;
	wr.remote_addr = s->p->b.mr->remote_start + 4096;
	for (;;) {
		flue_post_send(s->p->a.qp, &wr);
		if (atomic_fetch_add(&s->rounds, 1) % 3 == 0)
			flue_poll(s->cq, wc, 4, &got);
	}
}

/* A talk after the dead one, whose requests may fill the queue, and their completions the CQ. */
static bool talk_among_the_rest(struct pair *p)
{
	struct flue_wc wc;

	if (!pair_recv(&p->b, 0, 64, 1))
		return false;
	while (!pair_send(&p->a, 100, 64, 2, FLUE_SIGNALED))
		if (errno != ENOMEM || pair_take(p->a.send_cq, &wc, 1, 20000) != 1)
			return false;
	do {
		if (pair_take(p->a.send_cq, &wc, 1, 20000) != 1 || wc.status != FLUE_WC_SUCCESS)
			return false;
	} while (wc.id == BUSY);
	return wc.id == 2 && pair_expect(p->b.recv_cq, 1, FLUE_WC_SUCCESS);
}

static void busy_threads_can_be_cancelled_anywhere(void **state)
{
	struct sleeper s = { .sleep = post_and_poll };
	struct pair p;

	open_on_one_processor(&p);
	s.p = &p;
	s.cq = p.a.send_cq;
	for (unsigned i = 0; i < 60; i++) {
		unsigned long before = atomic_load(&s.rounds);

		begin(&s);
		while (atomic_load(&s.rounds) < before + 1 + i % 7 * 13)
			usleep(i % 5 * 30);
		assert_cancelled(&s);
		assert_true(talk_among_the_rest(&p));
	}
	assert_true(flue_disconnect(p.a.qp));
	assert_true(pair_close(&p));
}

static void post_with_a_request_pending(struct sleeper *s)
{
	int old;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
	pthread_cancel(pthread_self());
	pthread_setcancelstate(old, NULL);
	pair_send(&s->p->a, 0, 64, 9, FLUE_SIGNALED);
}

static void request_before_a_call_is_acted_upon_and_nothing_is_done(void **state)
{
	struct sleeper s = { .sleep = post_with_a_request_pending };
	struct pair_options o = PAIR_DEFAULTS;
	void *result = NULL;
	struct pair p;

	assert_true(pair_open(&p, &o));
	s.p = &p;
	begin(&s);
	assert_int_equal(pthread_join(s.thread, &result), 0);
	assert_ptr_equal(result, PTHREAD_CANCELED);
	/* The first completions are those of this talk. */
	assert_true(talk(&p));
	assert_true(pair_close(&p));
}

/* ---- not now ---- */

static void wait_undisturbed(struct sleeper *s)
{
	int old;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	for (int i = 0; i < 20; i++)
		if (flue_wait(s->cq, 20) || errno != ETIMEDOUT)
			return;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
	atomic_store(&s->rounds, old == PTHREAD_CANCEL_DISABLE);
}

static void program_that_forbids_cancellation_is_obeyed(void **state)
{
	struct sleeper s = { .sleep = wait_undisturbed };
	struct pair_options o = PAIR_DEFAULTS;
	void *result = NULL;
	struct pair p;

	assert_true(pair_open(&p, &o));
	s.cq = p.b.recv_cq;
	begin(&s);
	usleep(FALL_ASLEEP_US);
	pthread_cancel(s.thread);
	assert_int_equal(pthread_join(s.thread, &result), 0);
	assert_ptr_equal(result, &s);
	assert_int_equal(atomic_load(&s.rounds), 1);
	assert_true(pair_close(&p));
}

static void connect_in_vain(struct sleeper *s)
{
	struct flue_conn_attr attr = pair_conn_attr(s->p, 0);

	attr.timeout_ms = 500;
	s->p->a.qp->ops->connect(s->p->a.qp, &attr);
	atomic_store(&s->rounds, errno);
	pthread_testcancel();
}

/* Nobody answers the request before the time is over. */
static void call_with_a_time_limit_is_finished_first(void **state)
{
	struct sleeper s = { .sleep = connect_in_vain };
	struct pair_options o = PAIR_DEFAULTS;
	struct pair p;

	assert_true(pair_make(&p, &o));
	s.p = &p;
	put_to_death(&s);
	assert_int_equal(atomic_load(&s.rounds), ETIMEDOUT);
	assert_true(flue_qp_state(p.a.qp) == FLUE_QP_IDLE || p.a.qp->ops->reset(p.a.qp));
	assert_true(pair_close(&p));
}

int main(void)
{
	const char *build = getenv("FLUE_TEST_BUILD");
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(waiter_that_drives_gives_the_token_back),
		cmocka_unit_test(waiters_that_are_left_take_over),
		cmocka_unit_test(cancelled_wait_for_an_event_locks_nobody_out),
		cmocka_unit_test(cancelled_wait_for_a_request_locks_nobody_out),
		cmocka_unit_test(cancelled_wait_of_a_socket_locks_nobody_out),
		cmocka_unit_test(cancelled_wait_of_a_watch_locks_nobody_out),
		cmocka_unit_test(busy_threads_can_be_cancelled_anywhere),
		cmocka_unit_test(request_before_a_call_is_acted_upon_and_nothing_is_done),
		cmocka_unit_test(program_that_forbids_cancellation_is_obeyed),
		cmocka_unit_test(call_with_a_time_limit_is_finished_first),
	};

	if (build && !strcmp(build, "tsan")) {
		puts("1..0 # SKIP ThreadSanitizer loses track of a thread that is cancelled in a system call");
		return 0;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
