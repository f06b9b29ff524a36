/* SPDX-License-Identifier: MIT */
/* Conformance: providers, adapters and the tree of objects. */
#include "conf/conf.h"

#include <dirent.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const struct prov_ops *ops(void)
{
	return provider_find(pair_provider);
}

static void provider_fills_every_slot(void **state)
{
	const char *empty = provider_empty_slot(ops());

	assert_string_equal(empty ? empty : "none is empty", "none is empty");
	assert_int_equal(ops()->size, sizeof(struct prov_ops));
}

/* The first adapter of the provider under test. */
static void find_adapter(struct flue_adapter_info *adapter, struct flue_caps *caps)
{
	uint32_t i = 0;

	while (flue_adapter_info(i, adapter, caps) && strcmp(adapter->provider, pair_provider))
		i++;
	assert_string_equal(adapter->provider, pair_provider);
}

static void check_private_data(const struct flue_caps *caps)
{
	assert_true(caps->max_private_request && caps->max_private_reply);
	assert_true(caps->max_private_reject && caps->max_private_rev1);
	assert_true(caps->max_private_data >= caps->max_private_request);
	assert_true(caps->max_private_data >= caps->max_private_rev1);
}

static void provider_advertises_every_limit(void **state)
{
	struct flue_provider_info info = FLUE_ATTR(struct flue_provider_info);
	struct flue_adapter_info adapter = FLUE_ATTR(struct flue_adapter_info);
	struct flue_caps all = FLUE_ATTR(struct flue_caps);
	const struct flue_caps *caps = &all;
	uint32_t i = 0;

	while (flue_provider_info(i, &info) && strcmp(info.name, pair_provider))
		i++;
	assert_string_equal(info.name, pair_provider);
	assert_true(info.n_adapters >= 1);
	find_adapter(&adapter, &all);
	assert_string_equal(caps->provider, pair_provider);
	assert_true(strlen(info.description) > 0);
	assert_true(caps->max_qp && caps->max_cq && caps->max_mr && caps->max_pd);
	assert_true(caps->max_sq_depth && caps->max_rq_depth && caps->max_cq_depth);
	assert_true(caps->max_sge >= 4 && caps->max_read_sge >= 1);
	assert_true(caps->max_inline >= 64);
	assert_true(caps->max_ird >= 16 && caps->max_ord >= 16);
	assert_true(caps->max_mr_length && caps->max_message);
	check_private_data(caps);
	if (caps->features & FLUE_FEATURE_SRQ)
		assert_true(caps->max_srq && caps->max_srq_depth);
	if (caps->features & FLUE_FEATURE_WINDOWS)
		assert_true(caps->max_mw);
}

static int no_request(void *owner, struct prov_request *req, const struct prov_request_info *info)
{
	return -ENOBUFS;
}

static void no_event(void *owner, const struct flue_event *ev, const struct prov_conn_info *conn)
{
}

static void no_notice(void *owner)
{
}

static void no_completion(void *cq_owner, void *arg)
{
}

static void provider_returns_handler_ids_for_its_processors_only(void **state)
{
	static const struct prov_upcalls up = { no_event, no_notice, no_notice, no_request };
	const int cpus[] = { 0 };
	const struct prov_open_attr attr = { "flue0", cpus, 1, &up, FLUE_LINK_ALL };
	struct prov_adapter *a;
	int first, second;

	/* Not through the double: it expects the access layer's table of up-calls. */
	assert_int_equal(soft_provider.open(&attr, &a), 0);
	first = soft_provider.set_completion_handler(a, 0, no_completion, NULL);
	second = soft_provider.set_completion_handler(a, 0, no_completion, NULL);
	assert_true(first >= 0);
	assert_true(second >= 0);
	assert_int_not_equal(first, second);
	assert_int_equal(soft_provider.set_completion_handler(a, 1, no_completion, NULL), -EINVAL);
	assert_int_equal(soft_provider.set_completion_handler(a, -1, no_completion, NULL), -EINVAL);
	soft_provider.close(a);
}

static void slots_of_missing_features_say_so(void **state)
{
	struct flue_adapter_info info = { 0 };
	struct flue_caps caps = { 0 };

	assert_int_equal(ops()->adapter(0, &info, &caps), 0);
	if (!(caps.features & FLUE_FEATURE_ADOPT_STREAM))
		assert_int_equal(ops()->adopt_stream(NULL, NULL, NULL), -EOPNOTSUPP);
	if (!(caps.features & FLUE_FEATURE_GANG))
		assert_int_equal(ops()->adopt_gang(NULL, 0), -EOPNOTSUPP);
}

static void adapter_shows_its_processors(void **state)
{
	struct flue_open_attr attr = FLUE_ATTR(struct flue_open_attr);
	const int cpus[] = { 0 };
	struct flue_adapter *a;

	attr.provider = pair_provider;
	assert_ok(a = flue_open(&attr));
	assert_true(a->n_cpus >= 1);
	assert_non_null(a->cpus);
	assert_string_equal(a->caps->provider, pair_provider);
	assert_true(strlen(a->caps->adapter) > 0);
	assert_ok(flue_close(a));
	attr.cpus = cpus;
	attr.n_cpus = 1;
	assert_ok(a = flue_open(&attr));
	assert_int_equal(a->n_cpus, 1);
	assert_int_equal(a->cpus[0], 0);
	assert_ok(flue_close(a));
}

static void parents_with_children_refuse_destruction(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;
	struct pair p;

	o.srq_depth = 8;
	assert_ok(pair_make(&p, &o));
	assert_fails(flue_close(p.a.adapter), EBUSY);
	assert_fails(flue_destroy_pd(p.a.pd), EBUSY);
	assert_fails(flue_destroy_cq(p.a.send_cq), EBUSY);
	assert_fails(flue_destroy_cq(p.a.recv_cq), EBUSY);
	assert_fails(p.a.srq->ops->destroy(p.a.srq), EBUSY);
	/* Still usable after the refusals. */
	assert_ok(pair_connect(&p));
	assert_ok(pair_recv(&p.b, 0, 10, 1));
	assert_ok(pair_send(&p.a, 0, 10, 2, FLUE_SIGNALED));
	assert_true(pair_expect(p.b.recv_cq, 1, FLUE_WC_SUCCESS));
	assert_ok(pair_close(&p));
}

static void every_kind_of_child_holds_its_parent(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;
	struct flue_listen_attr listen = FLUE_ATTR(struct flue_listen_attr);
	struct pair p;
	struct flue_mw *mw;
	struct flue_pd *pd;

	NOT_SELF("two adapters are needed");
	assert_ok(pair_make(&p, &o));
	assert_ok(pd = flue_create_pd(p.a.adapter));
	assert_ok(mw = pd->ops->create_mw(pd));
	assert_fails(flue_destroy_pd(pd), EBUSY);
	assert_ok(mw->ops->destroy(mw));
	assert_ok(flue_destroy_pd(pd));
	assert_ok(pair_side_close(&p.a));
	/* Only the listener is left of this side. */
	assert_ok(flue_destroy_qp(p.b.qp) && flue_deregister(p.b.mr));
	assert_ok(flue_destroy_cq(p.b.send_cq) && flue_destroy_cq(p.b.recv_cq));
	assert_ok(flue_destroy_pd(p.b.pd));
	p.b.qp = NULL;
	p.b.mr = NULL;
	p.b.send_cq = p.b.recv_cq = NULL;
	p.b.pd = NULL;
	assert_fails(flue_close(p.b.adapter), EBUSY);
	listen.local = (struct sockaddr *)&p.listener->local;
	listen.local_len = sizeof(struct sockaddr_in);
	assert_fails(p.b.adapter->ops->listen(p.b.adapter, &listen), EADDRINUSE);
	assert_ok(pair_close(&p));
}

static void qp_numbers_are_unique(void **state)
{
	struct pair *p = *state;
	struct flue_qp *qps[50];

	for (unsigned i = 0; i < 50; i++) {
		assert_ok(qps[i] = pair_new_qp(p, &p->a));
		assert_int_equal(flue_qp_state(qps[i]), FLUE_QP_IDLE);
		assert_int_not_equal(qps[i]->number, p->a.qp->number);
		for (unsigned j = 0; j < i; j++)
			assert_int_not_equal(qps[i]->number, qps[j]->number);
	}
	for (unsigned i = 0; i < 50; i++)
		assert_ok(flue_destroy_qp(qps[i]));
}

static void qp_shows_what_it_was_made_with(void **state)
{
	struct pair *p = *state;
	const struct flue_qp *qp = p->a.qp;

	assert_ptr_equal(qp->pd, p->a.pd);
	assert_ptr_equal(qp->send_cq, p->a.send_cq);
	assert_ptr_equal(qp->recv_cq, p->a.recv_cq);
	assert_null(qp->srq);
	assert_true(qp->sq_depth >= 64 && qp->rq_depth >= 64);
	assert_true(qp->sq_sge >= 4 && qp->rq_sge >= 4);
	assert_true(qp->max_inline >= 64);
}

static void qp_refuses_objects_of_another_adapter(void **state)
{
	struct pair *p = *state;
	struct flue_qp_attr attr = FLUE_ATTR(struct flue_qp_attr);

	NOT_SELF("two adapters are needed");
	attr.send_cq = p->a.send_cq;
	attr.recv_cq = p->b.recv_cq;
	attr.sq_depth = 1;
	assert_fails(p->a.pd->ops->create_qp(p->a.pd, &attr), EINVAL);
	attr.recv_cq = p->a.recv_cq;
	attr.sq_depth = p->a.adapter->caps->max_sq_depth + 1;
	assert_fails(p->a.pd->ops->create_qp(p->a.pd, &attr), EINVAL);
	attr.sq_depth = 1;
	attr.max_inline = p->a.adapter->caps->max_inline + 1;
	assert_fails(p->a.pd->ops->create_qp(p->a.pd, &attr), EINVAL);
}

static void qp_of_the_largest_sizes_can_be_made(void **state)
{
	struct pair *p = *state;
	const struct flue_caps *caps = p->a.adapter->caps;
	struct flue_qp_attr attr = FLUE_ATTR(struct flue_qp_attr);
	struct flue_qp *qp;

	attr.send_cq = attr.recv_cq = p->a.recv_cq;
	attr.sq_depth = caps->max_sq_depth;
	attr.rq_depth = caps->max_rq_depth;
	attr.sq_sge = attr.rq_sge = 1;
	assert_ok(qp = p->a.pd->ops->create_qp(p->a.pd, &attr));
	assert_ok(flue_destroy_qp(qp));
	attr.sq_depth = attr.rq_depth = 1;
	attr.sq_sge = attr.rq_sge = caps->max_sge;
	attr.max_inline = caps->max_inline;
	assert_ok(qp = p->a.pd->ops->create_qp(p->a.pd, &attr));
	assert_ok(flue_destroy_qp(qp));
	attr.rq_depth = 0;
	assert_ok(qp = p->a.pd->ops->create_qp(p->a.pd, &attr));
	assert_ok(flue_destroy_qp(qp));
}

static void idle_qp_can_be_closed_and_reset(void **state)
{
	struct pair *p = *state;

	assert_ok(flue_disconnect(p->a.qp));
	assert_ok(flue_abort(p->a.qp));
	assert_ok(p->a.qp->ops->reset(p->a.qp));
	assert_fails(p->a.qp->ops->start(p->a.qp), EINVAL);
	assert_int_equal(flue_qp_state(p->a.qp), FLUE_QP_IDLE);
	conf_expect_quiet(p);
}

static void idle_qp_takes_receives_but_no_sends(void **state)
{
	struct pair *p = *state;
	struct flue_recv_wr wr[65] = { { .id = 0 } };
	const struct flue_recv_wr *bad = NULL;
	uint32_t depth = p->a.qp->rq_depth;
	struct flue_wc wc;
	uint32_t got;

	assert_int_equal(depth, 64);
	assert_fails(pair_send(&p->a, 0, 1, 1, 0), ENOTCONN);
	for (uint32_t i = 0; i < depth; i++)
		wr[i].next = &wr[i + 1];
	assert_fails(p->a.qp->ops->post_recv(p->a.qp, wr, &bad), ENOMEM);
	assert_ptr_equal(bad, &wr[depth]);
	/* They go without a trace. */
	assert_ok(flue_destroy_qp(p->a.qp));
	p->a.qp = NULL;
	assert_ok(flue_poll(p->a.recv_cq, &wc, 1, &got));
	assert_int_equal(got, 0);
}

static void mr_shows_and_changes_its_attributes(void **state)
{
	struct pair *p = *state;
	struct flue_mr_attr attr = FLUE_ATTR(struct flue_mr_attr);
	static uint8_t memory[1000];
	struct flue_mr *mr, *zero;
	struct flue_pd *other;
	uint32_t old;

	NOT_SELF("two adapters are needed");
	assert_ok(mr = flue_register(p->a.pd, memory, 1000, FLUE_LOCAL_WRITE | FLUE_REMOTE_READ));
	assert_ok(zero = flue_register(p->a.pd, memory, 1000, FLUE_ZERO_BASED));
	assert_int_not_equal(mr->rkey, zero->rkey);
	assert_int_not_equal(mr->lkey, p->a.mr->lkey);
	assert_int_equal(mr->remote_start, (uintptr_t)memory);
	assert_int_equal(mr->remote_end, (uintptr_t)memory + 1000);
	assert_int_equal(zero->remote_start, 0);
	assert_int_equal(zero->remote_end, 1000);
	attr.addr = memory + 10;
	attr.length = 20;
	old = mr->rkey;
	assert_ok(mr->ops->modify(mr, FLUE_MR_RANGE, &attr, NULL));
	assert_int_equal(mr->remote_start, (uintptr_t)memory + 10);
	assert_int_not_equal(mr->rkey, old);
	old = mr->rkey;
	assert_ok(other = flue_create_pd(p->a.adapter));
	assert_ok(mr->ops->modify(mr, FLUE_MR_PD, NULL, other));
	assert_int_not_equal(mr->rkey, old);
	assert_ptr_equal(mr->pd, other);
	assert_fails(flue_destroy_pd(other), EBUSY);
	assert_fails(mr->ops->modify(mr, FLUE_MR_PD, NULL, p->b.pd), EXDEV);
	assert_ok(flue_deregister(mr));
	assert_ok(flue_destroy_pd(other));
	assert_ok(flue_deregister(zero));
}

static void many_regions_have_different_keys(void **state)
{
	struct pair *p = *state;
	static struct flue_mr *mr[2000];
	static uint8_t memory[8];

	for (unsigned i = 0; i < 2000; i++)
		assert_ok(mr[i] = flue_register(p->a.pd, memory, 8, 0));
	for (unsigned i = 1; i < 2000; i++)
		assert_int_not_equal(mr[i]->rkey >> 8, mr[i - 1]->rkey >> 8);
	for (unsigned i = 0; i < 2000; i++)
		assert_ok(flue_deregister(mr[i]));
}

static unsigned count_entries(const char *path)
{
	DIR *dir = opendir(path);
	unsigned n = 0;

	assert_non_null(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

static void closing_leaves_no_thread_and_no_descriptor(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;
	unsigned threads, descriptors;
	struct pair p;

	/* Once before, for what a process keeps after the first time. */
	assert_ok(pair_open(&p, &o));
	assert_ok(pair_close(&p));
	faulty_delay_all(-1);
	faulty_reset();
	usleep(20000);
	threads = count_entries("/proc/self/task");
	descriptors = count_entries("/proc/self/fd");
	for (unsigned i = 0; i < 3; i++) {
		assert_ok(pair_open(&p, &o));
		assert_true(p.a.adapter->ops->event_fd(p.a.adapter) >= 0);
		assert_true(p.a.recv_cq->ops->fd(p.a.recv_cq) >= 0);
		assert_ok(pair_close(&p));
	}
	/* A thread that was joined may still show for a moment. */
	for (unsigned i = 0; i < 100 && count_entries("/proc/self/task") > threads; i++)
		usleep(1000);
	assert_int_equal(count_entries("/proc/self/task"), threads);
	assert_int_equal(count_entries("/proc/self/fd"), descriptors);
}

static double cpu_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void idle_adapters_use_no_processor_time(void **state)
{
	struct pair *p = *state;
	double before;

	/* Connected, after traffic, and then nothing to do. */
	assert_ok(pair_recv(&p->b, 0, 8, 1));
	assert_ok(pair_send(&p->a, 0, 8, 2, FLUE_SIGNALED));
	assert_true(pair_expect(p->b.recv_cq, 1, FLUE_WC_SUCCESS));
	usleep(300000);
	before = cpu_ms();
	usleep(500000);
	assert_true(cpu_ms() - before < 5.0);
}

static void skip_under_tsan(void)
{
	if (CONF_TSAN) {
		print_message("# ThreadSanitizer does not allow threads after fork()\n");
		skip();
	}
}

static bool child_destroys_all(struct pair *p)
{
	alarm(20);
	if (flue_create_pd(p->a.adapter) || errno != ENODEV)
		return false;
	return pair_close(p);
}

static void child_of_fork_does_not_disturb_its_parent(void **state)
{
	struct pair *p = *state;
	int status;
	pid_t pid;

	skip_under_tsan();
	assert_ok(pair_recv(&p->b, 0, 100, 1));
	pid = fork();
	assert_true(pid >= 0);
	if (!pid)
		_exit(child_destroys_all(p) ? 0 : 1);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	pair_fill(p->a.mem, 100, 5);
	assert_ok(pair_send(&p->a, 0, 100, 2, FLUE_SIGNALED));
	assert_true(pair_expect(p->b.recv_cq, 1, FLUE_WC_SUCCESS));
	assert_true(pair_expect(p->a.send_cq, 2, FLUE_WC_SUCCESS));
	assert_int_equal(pair_check(p->b.mem, 100, 5), 100);
	conf_expect_quiet(p);
}

static bool child_opens_its_own(void)
{
	struct pair_options o = PAIR_DEFAULTS;
	struct pair p;

	alarm(20);
	return pair_open(&p, &o) && pair_recv(&p.b, 0, 8, 1) &&
	       pair_send(&p.a, 0, 8, 2, FLUE_SIGNALED) &&
	       pair_expect(p.b.recv_cq, 1, FLUE_WC_SUCCESS) && pair_close(&p);
}

static void child_of_fork_can_open_an_adapter_of_its_own(void **state)
{
	int status;
	pid_t pid;

	skip_under_tsan();
	pid = fork();
	assert_true(pid >= 0);
	if (!pid)
		_exit(child_opens_its_own() ? 0 : 1);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(provider_fills_every_slot),                            /* RD-6 */
		cmocka_unit_test(provider_advertises_every_limit),                      /* RD-6 */
		cmocka_unit_test(provider_returns_handler_ids_for_its_processors_only), /* CH-2 */
		cmocka_unit_test(slots_of_missing_features_say_so),                     /* RD-6 */
		cmocka_unit_test(adapter_shows_its_processors),                         /* CH-1 */
		cmocka_unit_test(parents_with_children_refuse_destruction),             /* RD-1 */
		cmocka_unit_test(every_kind_of_child_holds_its_parent),                 /* RD-1 */
		WITH_IDLE_PAIR(qp_numbers_are_unique),                                  /* RD-1 */
		WITH_IDLE_PAIR(qp_shows_what_it_was_made_with),                         /* WN-1 */
		WITH_IDLE_PAIR(qp_refuses_objects_of_another_adapter),                  /* RD-1 */
		WITH_IDLE_PAIR(qp_of_the_largest_sizes_can_be_made),                    /* RD-6 */
		WITH_IDLE_PAIR(idle_qp_can_be_closed_and_reset),                        /* CH-18 */
		WITH_IDLE_PAIR(idle_qp_takes_receives_but_no_sends),                    /* RD-2 */
		WITH_IDLE_PAIR(mr_shows_and_changes_its_attributes),                    /* WN-1 */
		WITH_IDLE_PAIR(many_regions_have_different_keys),                       /* RD-3 */
		WITH_PAIR(idle_adapters_use_no_processor_time),
		WITH_PAIR(child_of_fork_does_not_disturb_its_parent),
		WITH_PAIR(child_of_fork_can_open_an_adapter_of_its_own),
		cmocka_unit_test(closing_leaves_no_thread_and_no_descriptor),
	};

	conf_init(argc, argv);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
