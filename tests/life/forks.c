/* SPDX-License-Identifier: MIT */
/*
 * fork() at bad moments: while threads post and poll on several engines, during a set-up, in a
 * child of a child. Parent and peer notice nothing; the child can destroy what it inherited, and
 * has an RDMA life of its own, also with its parent.
 */
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "conf/pair.h"

#define WATCHDOG_S 100

static void skip_under_tsan(void)
{
	const char *build = getenv("FLUE_TEST_BUILD");

	if (build && !strcmp(build, "tsan"))
		skip(); /* it cannot start threads in a forked child */
}

/* The child's exit status, or 128 + signal. */
static int await(pid_t pid)
{
	int status = 0;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void check_quiet(struct pair *p)
{
	struct flue_event ev;

	assert_false(flue_get_event(p->a.adapter, &ev, 0));
	assert_false(flue_get_event(p->b.adapter, &ev, 0));
	assert_int_equal(flue_qp_state(p->a.qp), FLUE_QP_RTS);
	assert_int_equal(flue_qp_state(p->b.qp), FLUE_QP_RTS);
}

/* ---- threads at work ---- */

#define PAIRS 3
#define MOST  100000

struct talk {
	struct pair p;
	pthread_t thread;
	atomic_bool stop;
	atomic_ulong rounds;
	atomic_bool ok;
};

/* What is read never changes: no completion tells its owner when that is over. */
#define LIBRARY      (600 * 1024)
#define LIBRARY_SEED 77

static bool open_talk(struct pair *p, const struct pair_options *o)
{
	if (!pair_make(p, o))
		return false;
	pair_fill(p->a.mem + LIBRARY, MOST, LIBRARY_SEED);
	return pair_connect(p);
}

/* Messages in both directions and a Read, checked. */
static bool talk_once(struct pair *p, uint32_t seed, uint32_t length)
{
	pair_fill(p->a.mem, length, seed);
	memset(p->b.mem + length, 0, 2 * length);
	return pair_recv(&p->b, length, length, 1) && pair_recv(&p->a, 3 * length, length, 2) &&
	       pair_send(&p->a, 0, length, 3, FLUE_SIGNALED) &&
	       pair_send(&p->b, 0, length, 4, FLUE_SIGNALED) &&
	       pair_read(&p->b, 2 * length, length, &p->a, LIBRARY, 5, FLUE_SIGNALED) &&
	       pair_expect(p->a.send_cq, 3, FLUE_WC_SUCCESS) &&
	       pair_expect(p->b.recv_cq, 1, FLUE_WC_SUCCESS) &&
	       pair_expect(p->b.send_cq, 4, FLUE_WC_SUCCESS) &&
	       pair_expect(p->b.send_cq, 5, FLUE_WC_SUCCESS) &&
	       pair_expect(p->a.recv_cq, 2, FLUE_WC_SUCCESS) &&
	       pair_check(p->b.mem + length, length, seed) == length &&
	       pair_check(p->b.mem + 2 * length, length, LIBRARY_SEED) == length;
}

static void *talk(void *arg)
{
	struct talk *t = arg;

	t->ok = true;
	while (t->ok && !atomic_load(&t->stop)) {
		uint32_t n = (uint32_t)atomic_fetch_add(&t->rounds, 1);

		t->ok = talk_once(&t->p, n, n % 7 ? 500 : MOST);
	}
	return NULL;
}

static void await_rounds(struct talk *t, unsigned long n)
{
	unsigned long until = atomic_load(&t->rounds) + n;

	while (atomic_load(&t->rounds) < until && t->ok)
		usleep(50);
}

/* Everything inherited goes, in the right order, without waiting for anybody. */
static int destroy_all(struct talk *t)
{
	alarm(WATCHDOG_S);
	for (int i = 0; i < PAIRS; i++) {
		if (flue_qp_state(t[i].p.a.qp) != FLUE_QP_ERROR ||
		    flue_qp_state(t[i].p.b.qp) != FLUE_QP_ERROR)
			return 1;
		if (!pair_close(&t[i].p))
			return 2;
	}
	return 0;
}

static void forks_between_busy_threads_do_not_deadlock(void **state)
{
	static struct talk t[PAIRS];

	alarm(WATCHDOG_S);
	for (int i = 0; i < PAIRS; i++) {
		struct pair_options o = PAIR_DEFAULTS;

		/* Two CQs for each side: they land on different processors, if there are any. */
		o.one_adapter = i == 0;
		o.conn_flags[0] = o.conn_flags[1] = i % 2 ? FLUE_CONN_NO_CRC : 0;
		memset(&t[i], 0, sizeof(t[i]));
		assert_true(open_talk(&t[i].p, &o));
		t[i].ok = true;
		assert_int_equal(pthread_create(&t[i].thread, NULL, talk, &t[i]), 0);
	}
	for (int n = 0; n < 150; n++) {
		pid_t pid;

		await_rounds(&t[n % PAIRS], 2);
		pid = fork();
		if (pid == 0)
			_exit(n % 4 ? 0 : destroy_all(t));
		assert_int_equal(await(pid), 0);
	}
	for (int i = 0; i < PAIRS; i++) {
		atomic_store(&t[i].stop, true);
		pthread_join(t[i].thread, NULL);
		assert_true(t[i].ok);
		check_quiet(&t[i].p);
		assert_true(pair_close(&t[i].p));
	}
	alarm(0);
}

static void programs_can_be_started_while_traffic_runs(void **state)
{
	static struct talk t;
	struct pair_options o = PAIR_DEFAULTS;

	memset(&t, 0, sizeof(t));
	assert_true(open_talk(&t.p, &o));
	t.ok = true;
	assert_int_equal(pthread_create(&t.thread, NULL, talk, &t), 0);
	for (int i = 0; i < 10; i++) {
		await_rounds(&t, 2);
		assert_int_equal(system("true"), 0);
	}
	atomic_store(&t.stop, true);
	pthread_join(t.thread, NULL);
	assert_true(t.ok);
	check_quiet(&t.p);
	assert_true(pair_close(&t.p));
}

/* ---- set-ups ---- */

#define SETUPS 8

static void fork_in_the_middle_of_set_ups_disturbs_none(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;
	struct flue_qp *a[SETUPS], *b[SETUPS];
	struct flue_conn_attr attr;
	struct flue_event ev;
	struct pair p;

	assert_true(pair_make(&p, &o));
	attr = pair_conn_attr(&p, FLUE_CONN_ASYNC);
	for (int i = 0; i < SETUPS; i++) {
		struct flue_conn_request *req;
		pid_t pid;

		a[i] = pair_new_qp(&p, &p.a);
		b[i] = pair_new_qp(&p, &p.b);
		assert_true(a[i] && b[i]);
		assert_true(a[i]->ops->connect(a[i], &attr));
		if (i % 2)
			req = p.listener->ops->get_request(p.listener, 10000);
		pid = fork();
		if (pid == 0)
			_exit(0);
		assert_int_equal(await(pid), 0);
		if (i % 2 == 0)
			req = p.listener->ops->get_request(p.listener, 10000);
		assert_non_null(req);
		assert_true(req->ops->accept(req, b[i], NULL));
		assert_true(pair_event(&p.a, FLUE_EVENT_CONNECTED, a[i], &ev, 10000));
	}
	for (int i = 0; i < SETUPS; i++) {
		assert_int_equal(flue_qp_state(a[i]), FLUE_QP_RTS);
		assert_true(flue_destroy_qp(a[i]) && flue_destroy_qp(b[i]));
	}
	assert_true(pair_close(&p));
}

/* ---- a life of its own ---- */

static int own_pair(void)
{
	struct pair_options o = PAIR_DEFAULTS;
	struct pair p;

	alarm(WATCHDOG_S);
	return open_talk(&p, &o) && talk_once(&p, 7, 1000) && pair_close(&p) ? 0 : 1;
}

static int own_pair_of_a_grandchild(void)
{
	pid_t pid = fork();
	int status = 0;

	alarm(WATCHDOG_S);
	if (pid == 0)
		_exit(own_pair());
	if (waitpid(pid, &status, 0) != pid || status)
		return 1;
	return own_pair();
}

static void children_and_grandchildren_have_adapters_of_their_own(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;
	struct pair p;
	pid_t pid;

	skip_under_tsan();
	assert_true(open_talk(&p, &o));
	pid = fork();
	if (pid == 0)
		_exit(own_pair_of_a_grandchild());
	assert_int_equal(await(pid), 0);
	assert_true(talk_once(&p, 3, 2000));
	check_quiet(&p);
	assert_true(pair_close(&p));
}

static int connect_to_parent(const struct pair *parent)
{
	struct pair_options o = PAIR_DEFAULTS;
	struct flue_conn_attr attr = pair_conn_attr(parent, 0);
	struct pair mine;

	alarm(WATCHDOG_S);
	/* Only the initiator of this pair is used. */
	if (!pair_make(&mine, &o) || !mine.a.qp->ops->connect(mine.a.qp, &attr))
		return 1;
	pair_fill(mine.a.mem, 1000, 11);
	if (!pair_send(&mine.a, 0, 1000, 1, FLUE_SIGNALED) ||
	    !pair_expect(mine.a.send_cq, 1, FLUE_WC_SUCCESS) || !flue_disconnect(mine.a.qp))
		return 2;
	return pair_close(&mine) ? 0 : 3;
}

static void child_connects_to_its_parent(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;
	struct flue_conn_request *req;
	struct pair p;
	pid_t pid;

	skip_under_tsan();
	assert_true(pair_make(&p, &o));
	assert_true(pair_recv(&p.b, 0, 1000, 5));
	pid = fork();
	if (pid == 0)
		_exit(connect_to_parent(&p));
	req = p.listener->ops->get_request(p.listener, 20000);
	assert_non_null(req);
	assert_true(req->ops->accept(req, p.b.qp, NULL));
	assert_true(pair_expect(p.b.recv_cq, 5, FLUE_WC_SUCCESS));
	assert_int_equal(pair_check(p.b.mem, 1000, 11), 1000);
	assert_true(pair_event(&p.b, FLUE_EVENT_DISCONNECTED, p.b.qp, NULL, 10000));
	assert_int_equal(await(pid), 0);
	assert_true(pair_close(&p));
}

/* ---- what the child cannot do ---- */

/* A call on something inherited must say ENODEV, and at once: nobody would wake a sleeper. */
#define REFUSED(call)                                                                    \
	do {                                                                             \
		errno = 0;                                                               \
		if ((call) || errno != ENODEV) {                                         \
			fprintf(stderr, "# in the child: %s: errno %d\n", #call, errno); \
			return false;                                                    \
		}                                                                        \
	} while (0)

static bool cq_is_dead(struct flue_cq *cq)
{
	struct flue_wc wc;
	uint32_t got;

	REFUSED(flue_poll(cq, &wc, 1, &got));
	REFUSED(flue_wait(cq, -1));
	REFUSED(flue_wait(cq, 0));
	REFUSED(cq->ops->notify(cq, FLUE_NOTIFY_NEXT, NULL, NULL));
	REFUSED(cq->ops->fd(cq) >= 0);
	REFUSED(cq->ops->clear_fd(cq));
	REFUSED(cq->ops->resize(cq, 1000));
	return true;
}

static bool qp_is_dead(struct pair *p, struct flue_qp *qp)
{
	struct flue_conn_attr attr = pair_conn_attr(p, 0);
	struct flue_send_wr send = { .op = FLUE_WR_SEND };
	struct flue_recv_wr recv = { .id = 1 };
	const struct flue_send_wr *bad_send = NULL;
	const struct flue_recv_wr *bad_recv = NULL;

	REFUSED(qp->ops->post_send(qp, &send, &bad_send));
	REFUSED(qp->ops->post_recv(qp, &recv, &bad_recv));
	if (bad_send != &send || bad_recv != &recv)
		return false;
	REFUSED(qp->ops->connect(qp, &attr));
	REFUSED(qp->ops->start(qp));
	REFUSED(flue_disconnect(qp));
	REFUSED(qp->ops->disconnect(qp, -1));
	REFUSED(flue_abort(qp));
	REFUSED(qp->ops->reset(qp));
	REFUSED(qp->ops->terminate(qp));
	return true;
}

static bool side_is_dead(struct pair *p, struct pair_side *s)
{
	struct flue_listen_attr listen = FLUE_ATTR(struct flue_listen_attr);
	struct flue_srq_attr srq = FLUE_ATTR(struct flue_srq_attr);
	struct flue_qp_attr qp = FLUE_ATTR(struct flue_qp_attr);
	struct flue_recv_wr recv = { .id = 1 };
	struct flue_event ev;

	listen.local = (struct sockaddr *)&p->listener->local;
	listen.local_len = sizeof(struct sockaddr_in);
	srq.depth = qp.sq_depth = 1;
	qp.send_cq = qp.recv_cq = s->send_cq;
	REFUSED(flue_create_pd(s->adapter));
	REFUSED(flue_create_cq(s->adapter, 4));
	REFUSED(s->adapter->ops->listen(s->adapter, &listen));
	REFUSED(flue_get_event(s->adapter, &ev, -1));
	REFUSED(s->adapter->ops->event_fd(s->adapter) >= 0);
	REFUSED(flue_register(s->pd, s->mem, 10, 0));
	REFUSED(s->pd->ops->create_mw(s->pd));
	REFUSED(s->pd->ops->create_srq(s->pd, &srq));
	REFUSED(s->pd->ops->create_qp(s->pd, &qp));
	REFUSED(s->mr->ops->modify(s->mr, FLUE_MR_PD, NULL, s->pd));
	if (s->srq) {
		REFUSED(s->srq->ops->post_recv(s->srq, &recv, NULL));
		REFUSED(s->srq->ops->arm_limit(s->srq, 1));
	}
	return cq_is_dead(s->send_cq) && cq_is_dead(s->recv_cq) && qp_is_dead(p, s->qp);
}

static bool all_is_dead(struct pair *p)
{
	alarm(WATCHDOG_S);
	REFUSED(p->listener->ops->get_request(p->listener, -1));
	return side_is_dead(p, &p->a) && side_is_dead(p, &p->b);
}

static void inherited_objects_refuse_work_and_can_be_destroyed(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;
	struct pair p;
	pid_t pid;

	assert_true(open_talk(&p, &o));
	pid = fork();
	if (pid == 0)
		_exit(all_is_dead(&p) && pair_close(&p) ? 0 : 1);
	assert_int_equal(await(pid), 0);
	assert_true(talk_once(&p, 9, 3000));
	check_quiet(&p);
	assert_true(pair_close(&p));
}

static void inherited_shared_queues_refuse_work_as_well(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;
	struct pair p;
	pid_t pid;

	o.srq_depth = 8;
	assert_true(pair_open(&p, &o));
	pid = fork();
	if (pid == 0)
		_exit(all_is_dead(&p) && pair_close(&p) ? 0 : 1);
	assert_int_equal(await(pid), 0);
	check_quiet(&p);
	assert_true(pair_close(&p));
}

/* The request belongs to the parent; the child's answer frees its copy and reaches nobody. */
static bool answers_in_vain(struct pair *p, struct flue_conn_request *req, bool accept)
{
	alarm(WATCHDOG_S);
	if (accept)
		REFUSED(req->ops->accept(req, p->b.qp, NULL));
	else
		REFUSED(req->ops->reject(req, "no", 2));
	return pair_close(p);
}

static void child_cannot_answer_a_request_of_its_parent(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;
	struct flue_conn_request *req;
	struct flue_conn_attr attr;
	struct pair p;

	assert_true(pair_make(&p, &o));
	attr = pair_conn_attr(&p, FLUE_CONN_ASYNC);
	assert_true(p.a.qp->ops->connect(p.a.qp, &attr));
	req = p.listener->ops->get_request(p.listener, 10000);
	assert_non_null(req);
	for (int accept = 0; accept < 2; accept++) {
		pid_t pid = fork();

		if (pid == 0)
			_exit(answers_in_vain(&p, req, accept) ? 0 : 1);
		assert_int_equal(await(pid), 0);
	}
	assert_true(req->ops->accept(req, p.b.qp, NULL));
	assert_true(pair_event(&p.a, FLUE_EVENT_CONNECTED, p.a.qp, NULL, 10000));
	assert_true(pair_close(&p));
}

static bool readable(int fd)
{
	struct pollfd q = { .fd = fd, .events = POLLIN };

	return poll(&q, 1, 0) == 1;
}

/* Whatever the child tries, and also its destroying everything. */
static int try_to_be_noticed(struct pair *p)
{
	struct flue_wc wc;
	uint32_t got;

	alarm(WATCHDOG_S);
	for (int i = 0; i < 3; i++) {
		p->a.send_cq->ops->notify(p->a.send_cq, FLUE_NOTIFY_NEXT, NULL, NULL);
		pair_send(&p->a, 0, 8, 1, FLUE_SIGNALED);
		flue_poll(p->a.send_cq, &wc, 1, &got);
		p->a.send_cq->ops->clear_fd(p->a.send_cq);
	}
	return pair_close(p) ? 0 : 1;
}

static void child_does_not_touch_its_parents_files(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;
	int fd, events;
	struct pair p;
	pid_t pid;

	assert_true(open_talk(&p, &o));
	fd = p.a.send_cq->ops->fd(p.a.send_cq);
	events = p.a.adapter->ops->event_fd(p.a.adapter);
	assert_true(fd >= 0 && events >= 0);
	for (int noticed = 0; noticed < 2; noticed++) {
		assert_int_equal(readable(fd), noticed);
		pid = fork();
		if (pid == 0)
			_exit(try_to_be_noticed(&p));
		assert_int_equal(await(pid), 0);
		assert_int_equal(readable(fd), noticed);
		assert_false(readable(events));
		/* The second time with a notice there, which must stay. */
		assert_true(p.a.send_cq->ops->notify(p.a.send_cq, FLUE_NOTIFY_NEXT, NULL, NULL));
		assert_true(pair_recv(&p.b, 0, 8, 5));
		assert_true(pair_send(&p.a, 0, 8, 6, FLUE_SIGNALED));
		assert_true(pair_expect(p.a.send_cq, 6, FLUE_WC_SUCCESS));
		assert_true(pair_expect(p.b.recv_cq, 5, FLUE_WC_SUCCESS));
		for (int i = 0; i < 1000 && !readable(fd); i++)
			usleep(10000);
	}
	assert_true(p.a.send_cq->ops->clear_fd(p.a.send_cq));
	assert_false(readable(fd));
	assert_true(pair_close(&p));
}

#define MOST_FILES 4096

static unsigned count_sockets(void)
{
	char name[40], what[8];
	unsigned n = 0;

	for (int fd = 0; fd < MOST_FILES; fd++) {
		snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
		n += readlink(name, what, sizeof(what)) == sizeof(what) &&
		     !memcmp(what, "socket:[", sizeof(what));
	}
	return n;
}

/* A connection lives as long as somebody has its socket, and a child may live long. */
static void child_keeps_no_connection_of_its_parents_alive(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;
	unsigned before = count_sockets();
	struct flue_conn_request *req;
	struct flue_conn_attr attr;
	struct flue_qp *half;
	struct pair p;
	pid_t pid;

	/* Two queue pairs, a listener, and both ends of a set-up. */
	assert_true(open_talk(&p, &o));
	half = pair_new_qp(&p, &p.a);
	attr = pair_conn_attr(&p, FLUE_CONN_ASYNC);
	assert_true(half && half->ops->connect(half, &attr));
	req = p.listener->ops->get_request(p.listener, 10000);
	assert_non_null(req);
	assert_int_equal(count_sockets(), before + 5);
	pid = fork();
	if (pid == 0)
		_exit(count_sockets() > before); /* fewer may be: a mailbox is not inherited */
	assert_int_equal(await(pid), 0);
	assert_int_equal(count_sockets(), before + 5);
	assert_true(req->ops->reject(req, NULL, 0));
	assert_true(flue_destroy_qp(half));
	assert_true(talk_once(&p, 5, 1000));
	assert_true(pair_close(&p));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(forks_between_busy_threads_do_not_deadlock),
		cmocka_unit_test(programs_can_be_started_while_traffic_runs),
		cmocka_unit_test(fork_in_the_middle_of_set_ups_disturbs_none),
		cmocka_unit_test(children_and_grandchildren_have_adapters_of_their_own),
		cmocka_unit_test(child_connects_to_its_parent),
		cmocka_unit_test(inherited_objects_refuse_work_and_can_be_destroyed),
		cmocka_unit_test(inherited_shared_queues_refuse_work_as_well),
		cmocka_unit_test(child_cannot_answer_a_request_of_its_parent),
		cmocka_unit_test(child_does_not_touch_its_parents_files),
		cmocka_unit_test(child_keeps_no_connection_of_its_parents_alive),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
