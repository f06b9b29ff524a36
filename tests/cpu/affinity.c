/* SPDX-License-Identifier: MIT */
/*
 * Completions and processors (CH-1 to CH-4): a CQ's completions are handled on its processor, those
 * of different processors at the same time, those of one CQ one after the other; only
 * participating processors get a thread, which keeps to its own once a handler runs there; a new
 * CQ is placed by the balancing policy.
 */
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
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

#define MESSAGES 300

static int cpus[CPU_SETSIZE];
static uint32_t n_cpus;

static void find_cpus(void)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	sched_getaffinity(0, sizeof(set), &set);
	for (int i = 0; i < CPU_SETSIZE; i++)
		if (CPU_ISSET(i, &set))
			cpus[n_cpus++] = i;
}

static void need_two_processors(void)
{
	if (n_cpus >= 2)
		return;
	print_message("# only one processor may be used here\n");
	skip();
}

static void await(atomic_uint *counter, unsigned n)
{
	uint64_t until = pair_now_ms() + 20000;

	while (atomic_load(counter) < n && pair_now_ms() < until)
		usleep(200);
	assert_int_equal(atomic_load(counter), n);
}

/* ---- where ---- */

struct record {
	atomic_uint handled;
	atomic_uint inside, overlaps, disorders; /* of the handler */
	atomic_uint strange;                     /* handled on another processor */
	atomic_uint made_elsewhere;              /* wc.cpu was another one */
	uint64_t last[2];                        /* id, by queue pair */
	struct flue_qp *first;
};

static void on_completion(struct flue_cq *cq, const struct flue_wc *wc, void *arg)
{
	struct record *r = arg;
	int which = wc->qp != r->first;

	if (atomic_fetch_add(&r->inside, 1))
		atomic_fetch_add(&r->overlaps, 1);
	if (sched_getcpu() != cq->cpu)
		atomic_fetch_add(&r->strange, 1);
	if ((int)wc->cpu != cq->cpu)
		atomic_fetch_add(&r->made_elsewhere, 1);
	if (wc->id != r->last[which] + 1)
		atomic_fetch_add(&r->disorders, 1);
	r->last[which] = wc->id;
	atomic_fetch_sub(&r->inside, 1);
	atomic_fetch_add(&r->handled, 1);
}

/* Side b receives on the given processor by handler; its completions are made by the library's
 * thread, because the test does not poll there. */
static void receive_on(int cpu, struct pair *p, struct record *r)
{
	struct pair_options o = PAIR_DEFAULTS;

	memset(r, 0, sizeof(*r));
	o.rq_depth = MESSAGES;
	o.cq_depth = 2 * MESSAGES;
	o.on_completion[1] = on_completion;
	o.completion_arg[1] = r;
	o.cpu_plus_1[1] = cpu + 1;
	assert_true(pair_open(p, &o));
	r->first = p->b.qp;
	assert_int_equal(p->b.recv_cq->cpu, cpu);
	for (uint64_t i = 1; i <= MESSAGES; i++)
		assert_true(pair_recv(&p->b, 0, 16, i));
}

static void send_all(struct pair *p)
{
	struct flue_wc wc;

	for (uint64_t i = 1; i <= MESSAGES; i++) {
		assert_true(pair_send(&p->a, 0, 16, i, i % 16 ? 0 : FLUE_SIGNALED));
		if (i % 16 == 0)
			assert_int_equal(pair_take(p->a.send_cq, &wc, 1, 20000), 1);
	}
}

static void completions_are_handled_on_the_processor_of_their_cq(void **state)
{
	for (uint32_t c = 0; c < n_cpus && c < 8; c++) {
		struct record r;
		struct pair p;

		receive_on(cpus[c], &p, &r);
		send_all(&p);
		await(&r.handled, MESSAGES);
		print_message(
			"# CQ of processor %d: %u completions handled, %u of them on another, "
			"%u made on another\n",
			cpus[c], atomic_load(&r.handled), atomic_load(&r.strange),
			atomic_load(&r.made_elsewhere));
		assert_int_equal(atomic_load(&r.strange), 0);
		assert_int_equal(atomic_load(&r.made_elsewhere), 0);
		assert_int_equal(atomic_load(&r.overlaps), 0);
		assert_int_equal(atomic_load(&r.disorders), 0);
		assert_true(pair_close(&p));
	}
}

static void on_notice(struct flue_cq *cq, void *arg)
{
	struct record *r = arg;

	if (sched_getcpu() != cq->cpu)
		atomic_fetch_add(&r->strange, 1);
	atomic_fetch_add(&r->handled, 1);
}

static void notices_are_given_on_the_processor_of_their_cq(void **state)
{
	for (uint32_t c = 0; c < n_cpus && c < 8; c++) {
		struct pair_options o = PAIR_DEFAULTS;
		struct record r = { .first = NULL };
		struct flue_cq *cq;
		struct pair p;

		o.cpu_plus_1[1] = cpus[c] + 1;
		assert_true(pair_open(&p, &o));
		cq = p.b.recv_cq;
		for (unsigned i = 1; i <= 50; i++) {
			assert_true(pair_recv(&p.b, 0, 16, i));
			assert_true(cq->ops->notify(cq, FLUE_NOTIFY_NEXT, on_notice, &r));
			assert_true(pair_send(&p.a, 0, 16, i, 0));
			await(&r.handled, i);
			assert_true(pair_expect(cq, i, FLUE_WC_SUCCESS));
		}
		assert_int_equal(atomic_load(&r.strange), 0);
		assert_true(pair_close(&p));
	}
}

/* ---- at the same time, and one after the other ---- */

static atomic_uint present, met;

/* Each waits for the other; that only ends if both run at once. */
static void meet(struct flue_cq *cq, const struct flue_wc *wc, void *arg)
{
	uint64_t until = pair_now_ms() + 10000;

	atomic_fetch_add(&present, 1);
	while (atomic_load(&present) < 2 && pair_now_ms() < until)
		;
	if (atomic_load(&present) == 2)
		atomic_fetch_add(&met, 1);
	atomic_fetch_add((atomic_uint *)arg, 1);
}

static void cqs_of_different_processors_are_handled_at_the_same_time(void **state)
{
	atomic_uint done = 0;
	struct pair p[2];

	need_two_processors();
	for (int i = 0; i < 2; i++) {
		struct pair_options o = PAIR_DEFAULTS;

		o.on_completion[1] = meet;
		o.completion_arg[1] = &done;
		o.cpu_plus_1[1] = cpus[i] + 1;
		assert_true(pair_open(&p[i], &o));
		assert_true(pair_recv(&p[i].b, 0, 16, 1));
	}
	for (int i = 0; i < 2; i++)
		assert_true(pair_send(&p[i].a, 0, 16, 1, 0));
	await(&done, 2);
	assert_int_equal(atomic_load(&met), 2);
	assert_true(pair_close(&p[0]) && pair_close(&p[1]));
}

/* Receives of one queue pair, made by the library's thread, and Sends of another one that lives on
 * another processor, made by ours: each in its own order, and the handler never runs twice. */
static void order_within_a_cq_is_kept(void **state)
{
	struct flue_cq_attr cq_attr = FLUE_ATTR(struct flue_cq_attr);
	struct flue_qp_attr attr = FLUE_ATTR(struct flue_qp_attr);
	struct flue_qp *a, *b;
	struct record r;
	struct pair p;

	receive_on(cpus[0], &p, &r);
	cq_attr.depth = 16;
	cq_attr.cpu_plus_1 = cpus[n_cpus - 1] + 1;
	attr.send_cq = p.b.recv_cq;
	attr.recv_cq = p.b.adapter->ops->create_cq(p.b.adapter, &cq_attr);
	attr.sq_depth = 16;
	b = p.b.pd->ops->create_qp(p.b.pd, &attr);
	a = pair_new_qp(&p, &p.a);
	assert_true(a && b && pair_connect_qps(&p, a, b));
	for (uint64_t i = 1; i <= MESSAGES; i++) {
		struct flue_send_wr wr = { .id = i, .op = FLUE_WR_SEND, .flags = FLUE_SIGNALED };
		struct flue_recv_wr into = { .id = i };

		assert_true(flue_post_recv(a, &into));
		assert_true(pair_send(&p.a, 0, 16, i, FLUE_SIGNALED));
		/* The queue is emptied by others. */
		while (!flue_post_send(b, &wr))
			assert_int_equal(errno, ENOMEM);
		assert_true(pair_expect(p.a.send_cq, i, FLUE_WC_SUCCESS));
		assert_true(pair_expect(p.a.recv_cq, i, FLUE_WC_SUCCESS));
	}
	await(&r.handled, 2 * MESSAGES);
	assert_int_equal(atomic_load(&r.disorders), 0);
	assert_int_equal(atomic_load(&r.overlaps), 0);
	assert_int_equal(atomic_load(&r.strange), 0);
	assert_true(flue_destroy_qp(a) && flue_destroy_qp(b) && flue_destroy_cq(attr.recv_cq));
	assert_true(pair_close(&p));
}

/* ---- threads ---- */

/* The number of a thread of the library, by its name "flue-<processor>"; -1: another thread. */
static int library_thread(const char *tid)
{
	char path[300], name[32] = "";
	int cpu = -1;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/self/task/%s/comm", tid);
	f = fopen(path, "r");
	if (f && fgets(name, sizeof(name), f) && sscanf(name, "flue-%d", &cpu) != 1)
		cpu = -1;
	if (f)
		fclose(f);
	return cpu;
}

/* How many there are that have a name; one that was just made has none before it runs. */
static unsigned named_threads(int cpu)
{
	DIR *d = opendir("/proc/self/task");
	unsigned found = 0;
	struct dirent *e;

	assert_non_null(d);
	while ((e = readdir(d))) {
		int of = library_thread(e->d_name);

		found += of >= 0 && (cpu < 0 || of == cpu);
	}
	closedir(d);
	return found;
}

/* Counts the library's threads of a processor (< 0: of any); all of them may run exactly there. */
static unsigned check_threads(int cpu, const int *where, uint32_t n)
{
	DIR *d = opendir("/proc/self/task");
	unsigned found = 0;
	struct dirent *e;
	cpu_set_t want;

	CPU_ZERO(&want);
	for (uint32_t i = 0; i < n; i++)
		CPU_SET((unsigned)where[i], &want);
	assert_non_null(d);
	while ((e = readdir(d))) {
		int of = library_thread(e->d_name);
		cpu_set_t set;

		if (of < 0 || (cpu >= 0 && of != cpu))
			continue;
		CPU_ZERO(&set);
		assert_int_equal(sched_getaffinity(atoi(e->d_name), sizeof(set), &set), 0);
		assert_true(CPU_EQUAL(&set, &want));
		assert_true(CPU_ISSET((unsigned)of, &want));
		found++;
	}
	closedir(d);
	return found;
}

static void expect_threads(int cpu, const int *where, uint32_t n, unsigned count)
{
	for (int i = 0; i < 2000 && named_threads(cpu) < count; i++)
		usleep(1000);
	assert_int_equal(check_threads(cpu, where, n), count);
}

static void only_participating_processors_get_a_thread(void **state)
{
	for (uint32_t c = 0; c < n_cpus && c < 4; c++) {
		struct pair_options o = PAIR_DEFAULTS;
		struct pair p;

		o.cpus = &cpus[c];
		o.n_cpus = 1;
		assert_true(pair_open(&p, &o));
		assert_int_equal(p.a.recv_cq->cpu, cpus[c]);
		assert_int_equal(p.a.send_cq->cpu, cpus[c]);
		expect_threads(-1, &cpus[c], 1, 2); /* one for each adapter */
		o.cpu_plus_1[0] = cpus[(c + 1) % n_cpus] + 1;
		assert_true(pair_close(&p));
		if (n_cpus > 1) {
			assert_false(pair_make(&p, &o));
			assert_int_equal(errno, EINVAL);
		}
	}
}

static bool is_access_thread(const char *tid)
{
	char path[300], name[32] = "";
	FILE *f;

	snprintf(path, sizeof(path), "/proc/self/task/%s/comm", tid);
	f = fopen(path, "r");
	if (f && !fgets(name, sizeof(name), f))
		name[0] = 0;
	if (f)
		fclose(f);
	return !strcmp(name, "flue-access\n");
}

/* A connected TCP descriptor, whose other end is closed with the process. */
static int open_stream(void)
{
	struct sockaddr_in at = { .sin_family = AF_INET };
	socklen_t len = sizeof(at);
	int l = socket(AF_INET, SOCK_STREAM, 0), fd = socket(AF_INET, SOCK_STREAM, 0);

	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	assert_int_equal(bind(l, (struct sockaddr *)&at, len), 0);
	assert_int_equal(listen(l, 1), 0);
	assert_int_equal(getsockname(l, (struct sockaddr *)&at, &len), 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&at, len), 0);
	return fd;
}

/* The thread that serves RDMA sockets in streaming mode; its name comes a moment after itself. */
static bool access_thread_may_run(cpu_set_t *set)
{
	for (int i = 0; i < 1000; i++) {
		DIR *d = opendir("/proc/self/task");
		bool found = false;
		struct dirent *e;

		assert_non_null(d);
		while (!found && (e = readdir(d))) {
			found = is_access_thread(e->d_name);
			CPU_ZERO(set);
			if (found)
				sched_getaffinity(atoi(e->d_name), sizeof(*set), set);
		}
		closedir(d);
		if (found)
			return true;
		usleep(10000);
	}
	return false;
}

static void thread_for_sockets_keeps_to_participating_processors(void **state)
{
	need_two_processors();
	for (uint32_t c = 0; c < 2; c++) {
		struct flue_open_attr attr = FLUE_ATTR(struct flue_open_attr);
		struct flue_adapter *a;
		struct flue_socket *s;
		cpu_set_t set;
		int fd = open_stream();

		attr.cpus = &cpus[c];
		attr.n_cpus = 1;
		a = flue_open(&attr);
		assert_non_null(a);
		s = flue_socket_open(a, fd, NULL);
		assert_non_null(s);
		assert_true(access_thread_may_run(&set));
		assert_int_equal(CPU_COUNT(&set), 1);
		assert_true(CPU_ISSET((unsigned)cpus[c], &set));
		assert_true(s->ops->destroy(s));
		assert_true(flue_close(a));
		close(fd);
	}
}

/* Nothing depends on where a thread runs until a handler does: each is bound by its first notice. */
static void threads_keep_to_their_processor_from_the_first_notice_on(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;
	struct record r = { .first = NULL };
	struct flue_wc wc;
	struct pair p;

	need_two_processors();
	o.cpus = cpus;
	o.n_cpus = 2;
	o.one_adapter = true;
	o.cpu_plus_1[0] = cpus[0] + 1;
	o.cpu_plus_1[1] = cpus[1] + 1;
	assert_true(pair_open(&p, &o));
	/* Traffic alone changes nothing. */
	assert_true(pair_recv(&p.b, 0, 16, 1));
	assert_true(pair_send(&p.a, 0, 16, 1, FLUE_SIGNALED));
	assert_int_equal(pair_take(p.a.send_cq, &wc, 1, 20000), 1);
	assert_int_equal(pair_take(p.b.recv_cq, &wc, 1, 20000), 1);
	expect_threads(-1, cpus, 2, 2);
	for (uint32_t i = 2; i-- > 0;) {
		struct flue_cq *cq = i ? p.b.recv_cq : p.a.recv_cq;

		expect_threads(cpus[i], cpus, 2, 1);
		assert_true(cq->ops->notify(cq, FLUE_NOTIFY_NEXT, on_notice, &r));
		expect_threads(cpus[i], &cpus[i], 1, 1);
	}
	/* Once and for all: the notice may be over. */
	assert_true(pair_recv(&p.b, 0, 16, 2));
	assert_true(pair_send(&p.a, 0, 16, 2, 0));
	await(&r.handled, 1);
	assert_int_equal(atomic_load(&r.strange), 0);
	assert_true(pair_expect(p.b.recv_cq, 2, FLUE_WC_SUCCESS));
	expect_threads(cpus[0], &cpus[0], 1, 1);
	expect_threads(cpus[1], &cpus[1], 1, 1);
	assert_true(pair_close(&p));
}

/* ---- balancing ---- */

#define CQS 6

static struct flue_adapter *open_with(uint32_t balance, uint32_t n,
				      uint32_t (*choose)(const struct flue_cpu_load *, uint32_t,
							 void *),
				      void *arg)
{
	struct flue_open_attr attr = FLUE_ATTR(struct flue_open_attr);
	struct flue_adapter *a;

	attr.cpus = cpus;
	attr.n_cpus = n;
	attr.balance = balance;
	attr.choose_cpu = choose;
	attr.choose_arg = arg;
	a = flue_open(&attr);
	assert_non_null(a);
	return a;
}

static struct flue_cq *new_cq(struct flue_adapter *a, int cpu)
{
	struct flue_cq *cq = flue_create_cq(a, 16);

	assert_non_null(cq);
	assert_int_equal(cq->cpu, cpu);
	return cq;
}

static struct flue_qp *new_qp(struct flue_pd *pd, struct flue_cq *cq)
{
	struct flue_qp_attr attr = FLUE_ATTR(struct flue_qp_attr);
	struct flue_qp *qp;

	attr.send_cq = attr.recv_cq = cq;
	attr.sq_depth = 1;
	qp = pd->ops->create_qp(pd, &attr);
	assert_non_null(qp);
	return qp;
}

static void round_robin_goes_round(void **state)
{
	struct flue_adapter *a;
	struct flue_cq *cqs[CQS];

	need_two_processors();
	a = open_with(FLUE_BALANCE_ROUND_ROBIN, 2, NULL, NULL);
	for (int i = 0; i < CQS; i++)
		cqs[i] = new_cq(a, cpus[i % 2]);
	for (int i = 0; i < CQS; i++)
		assert_true(flue_destroy_cq(cqs[i]));
	assert_true(flue_close(a));
}

static void fewest_qps_are_preferred(void **state)
{
	struct flue_cq *first, *second, *third;
	struct flue_qp *qps[3];
	struct flue_adapter *a;
	struct flue_pd *pd;

	need_two_processors();
	a = open_with(FLUE_BALANCE_FEWEST_QPS, 2, NULL, NULL);
	pd = flue_create_pd(a);
	assert_non_null(pd);
	first = new_cq(a, cpus[0]);
	qps[0] = new_qp(pd, first);
	qps[1] = new_qp(pd, first);
	second = new_cq(a, cpus[1]);
	qps[2] = new_qp(pd, second);
	/* One against two; then, when they are gone, none against one. */
	third = new_cq(a, cpus[1]);
	assert_true(flue_destroy_cq(third));
	assert_true(flue_destroy_qp(qps[0]) && flue_destroy_qp(qps[1]));
	third = new_cq(a, cpus[0]);
	assert_true(flue_destroy_qp(qps[2]));
	assert_true(flue_destroy_cq(first) && flue_destroy_cq(second) && flue_destroy_cq(third));
	assert_true(flue_destroy_pd(pd) && flue_close(a));
}

/* Side b's CQ on the first processor has work; the next one goes to the second. */
static void least_events_are_preferred(void **state)
{
	struct flue_open_attr attr = FLUE_ATTR(struct flue_open_attr);
	struct pair_options o = PAIR_DEFAULTS;
	struct flue_send_wr wr = { .id = 1, .op = FLUE_WR_SEND };
	struct record r = { .first = NULL };
	struct flue_cq *next;
	struct pair_side b;
	struct pair p;

	need_two_processors();
	/* The pair's own adapters use another policy: this one is put in place of side b's. */
	attr.cpus = cpus;
	attr.n_cpus = 2;
	attr.balance = FLUE_BALANCE_LEAST_EVENTS;
	memset(&b, 0, sizeof(b));
	assert_true(pair_make(&p, &o));
	b.adapter = flue_open(&attr);
	assert_non_null(b.adapter);
	b.recv_cq = new_cq(b.adapter, cpus[0]);
	assert_true(b.recv_cq->ops->notify(b.recv_cq, FLUE_NOTIFY_NEXT, on_notice, &r));
	b.pd = flue_create_pd(b.adapter);
	assert_non_null(b.pd);
	b.qp = new_qp(b.pd, b.recv_cq);
	b.send_cq = b.recv_cq;
	/* A QP in Error flushes: that is an event too, and needs no peer. */
	assert_true(flue_abort(b.qp));
	assert_true(flue_post_send(b.qp, &wr));
	await(&r.handled, 1);
	assert_true(flue_destroy_qp(b.qp));
	b.qp = NULL;
	next = new_cq(b.adapter, cpus[1]);
	assert_true(flue_destroy_cq(next));
	assert_true(pair_side_close(&b));
	assert_true(pair_close(&p));
}

struct choice {
	uint32_t answer, calls, cqs, qps;
};

static uint32_t choose(const struct flue_cpu_load *load, uint32_t n, void *arg)
{
	struct choice *c = arg;

	c->calls++;
	c->cqs = c->qps = 0;
	for (uint32_t i = 0; i < n; i++) {
		c->cqs += load[i].cqs;
		c->qps += load[i].qps;
		if (load[i].cpu != cpus[i])
			c->calls += 1000;
	}
	return c->answer;
}

static void program_may_choose_the_processor(void **state)
{
	struct choice c = { .answer = 1 };
	struct flue_adapter *a;
	struct flue_cq *cqs[2];
	struct flue_pd *pd;
	struct flue_qp *qp;

	need_two_processors();
	a = open_with(0, 2, choose, &c);
	pd = flue_create_pd(a);
	cqs[0] = new_cq(a, cpus[1]);
	qp = new_qp(pd, cqs[0]);
	c.answer = 0;
	cqs[1] = new_cq(a, cpus[0]);
	assert_int_equal(c.calls, 2);
	assert_int_equal(c.cqs, 1);
	assert_int_equal(c.qps, 1);
	c.answer = 2;
	assert_null(flue_create_cq(a, 16));
	assert_int_equal(errno, EINVAL);
	assert_true(flue_destroy_qp(qp) && flue_destroy_cq(cqs[0]) && flue_destroy_cq(cqs[1]));
	assert_true(flue_destroy_pd(pd) && flue_close(a));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(completions_are_handled_on_the_processor_of_their_cq), /* CH-4 */
		cmocka_unit_test(notices_are_given_on_the_processor_of_their_cq),
		cmocka_unit_test(cqs_of_different_processors_are_handled_at_the_same_time),
		cmocka_unit_test(order_within_a_cq_is_kept),
		cmocka_unit_test(only_participating_processors_get_a_thread), /* CH-1, CH-2 */
		cmocka_unit_test(threads_keep_to_their_processor_from_the_first_notice_on),
		cmocka_unit_test(thread_for_sockets_keeps_to_participating_processors),
		cmocka_unit_test(round_robin_goes_round), /* CH-3 */
		cmocka_unit_test(fewest_qps_are_preferred),
		cmocka_unit_test(least_events_are_preferred),
		cmocka_unit_test(program_may_choose_the_processor),
	};

	find_cpus();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
