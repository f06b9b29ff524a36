/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "access/fake_priv.h"

static int reset(void **state)
{
	fake_reset();
	return 0;
}

static void open_shows_processors_and_capabilities(void **state)
{
	struct flue_adapter *a = flue_open(&(struct flue_open_attr) {
		.size = sizeof(struct flue_open_attr), .provider = "fake" });
	struct flue_provider_info info = FLUE_ATTR(struct flue_provider_info);
	uint32_t i = 0;

	assert_non_null(a);
	assert_true(a->n_cpus >= 1);
	assert_int_equal(fake.adapter->n_cpus, a->n_cpus);
	assert_int_equal(fake.made_handlers, a->n_cpus);
	assert_string_equal(a->caps->provider, "fake");
	assert_int_equal(a->caps->max_sge, 4);
	assert_true(flue_close(a));
	assert_int_equal(fake.closes, 1);

	while (flue_provider_info(i, &info) && strcmp(info.name, "fake"))
		i++;
	assert_string_equal(info.description, "answers as the test says");
	assert_int_equal(info.n_adapters, FAKE_ADAPTERS);
	assert_fails(flue_provider_info(100, &info), ENOENT);
	info.size = 1;
	assert_fails(flue_provider_info(0, &info), EINVAL);
	assert_fails(flue_provider_info(0, NULL), EINVAL);
}

static void adapters_are_listed_and_opened_by_name(void **state)
{
	struct sockaddr_storage at[2];
	struct flue_adapter_info info = FLUE_ATTR(struct flue_adapter_info);
	struct flue_open_attr attr = FLUE_ATTR(struct flue_open_attr);
	struct flue_caps caps = FLUE_ATTR(struct flue_caps);
	struct flue_adapter *a;
	uint32_t first = 0;

	while (flue_adapter_info(first, &info, NULL) && strcmp(info.provider, "fake"))
		first++;
	assert_true(first >= 1); /* the built-in provider comes before */
	for (uint32_t i = 0; i < FAKE_ADAPTERS; i++) {
		memset(at, 0x5a, sizeof(at));
		info.addresses = at;
		info.max_addresses = 1;
		assert_true(flue_adapter_info(first + i, &info, &caps));
		assert_string_equal(info.provider, "fake");
		assert_string_equal(info.name, i ? "fake1" : "fake0");
		assert_string_equal(info.interface, i ? "if1" : "if0");
		assert_int_equal(info.ports, i + 1);
		assert_int_equal(info.n_addresses, 2);
		assert_memory_equal(&at[0], fake_address(), sizeof(struct sockaddr_in));
		assert_int_equal(at[1].ss_family, 0x5a5a);
		assert_int_equal(caps.max_sq_depth, i ? 512 : 1024);
		assert_string_equal(caps.provider, "fake");
		assert_string_equal(caps.adapter, info.name);
		attr.provider = i ? "fake" : NULL;
		attr.name = info.name;
		a = flue_open(&attr);
		assert_non_null(a);
		assert_string_equal(fake.adapter->name, info.name);
		assert_int_equal(a->caps->max_sq_depth, caps.max_sq_depth);
		assert_true(flue_close(a));
	}
	info.addresses = NULL;
	assert_true(flue_adapter_info(first, &info, NULL));
	assert_int_equal(info.n_addresses, 0);
	assert_fails(flue_adapter_info(first + FAKE_ADAPTERS, &info, &caps), ENOENT);
	assert_fails(flue_adapter_info(0, NULL, &caps), EINVAL);
	caps.size = 8;
	assert_fails(flue_adapter_info(0, &info, &caps), EINVAL);
	info.size = 8;
	assert_fails(flue_adapter_info(0, &info, NULL), EINVAL);
	/* Without a name the provider's first. */
	a = fake_open(NULL, 0);
	assert_string_equal(a->caps->adapter, "fake0");
	assert_true(flue_close(a));
	attr.name = "fake2";
	assert_fails(flue_open(&attr), ENODEV);
	attr.provider = NULL;
	assert_fails(flue_open(&attr), ENODEV);
	attr.provider = "soft";
	attr.name = "fake0";
	assert_fails(flue_open(&attr), ENODEV);
}

static void open_refuses_bad_arguments(void **state)
{
	struct flue_open_attr attr = FLUE_ATTR(struct flue_open_attr);
	const int twice[] = { 0, 0 }, negative[] = { -1 }, absent[] = { 1 << 20 };

	attr.provider = "nobody";
	assert_fails(flue_open(&attr), ENOENT);
	attr.provider = "fake";
	attr.balance = FLUE_BALANCE_NPOLICIES;
	assert_fails(flue_open(&attr), EINVAL);
	attr.balance = 0;
	attr.n_cpus = 1;
	assert_fails(flue_open(&attr), EINVAL);
	attr.size = 8;
	assert_fails(flue_open(&attr), EINVAL);
	assert_fails(fake_open(twice, 2), EINVAL);
	assert_fails(fake_open(twice, 0), EINVAL);
	assert_fails(fake_open(negative, 1), EINVAL);
	assert_fails(fake_open(absent, 1), EINVAL);
	assert_int_equal(fake.opens, 0);
}

static void open_passes_on_what_the_provider_says(void **state)
{
	fake.rc.open = -EMFILE;
	assert_fails(fake_open(NULL, 0), EMFILE);
	fake.rc.open = 0;
	fake.rc.handler = -ENOMEM;
	assert_fails(fake_open(NULL, 0), ENOMEM);
	assert_int_equal(fake.closes, 1);
}

/* One object of each kind below an adapter. */
struct tree {
	struct flue_adapter *a;
	struct flue_pd *pd;
	struct flue_mr *mr;
	struct flue_mw *mw;
	struct flue_cq *cq;
	struct flue_srq *srq;
	struct flue_qp *qp;
	struct flue_listener *l;
};

static uint8_t memory[4096];

static void grow(struct tree *t)
{
	struct flue_qp_attr qp = FLUE_ATTR(struct flue_qp_attr);
	struct flue_srq_attr srq = FLUE_ATTR(struct flue_srq_attr);
	struct flue_listen_attr listen = FLUE_ATTR(struct flue_listen_attr);

	t->a = fake_open(NULL, 0);
	t->pd = flue_create_pd(t->a);
	t->mr = flue_register(t->pd, memory, sizeof(memory), FLUE_LOCAL_WRITE);
	t->mw = t->pd->ops->create_mw(t->pd);
	t->cq = flue_create_cq(t->a, 10);
	srq.depth = 10;
	t->srq = t->pd->ops->create_srq(t->pd, &srq);
	qp.send_cq = qp.recv_cq = t->cq;
	qp.srq = t->srq;
	qp.sq_depth = 1;
	t->qp = t->pd->ops->create_qp(t->pd, &qp);
	listen.local = fake_address();
	listen.local_len = sizeof(struct sockaddr_in);
	t->l = t->a->ops->listen(t->a, &listen);
	assert_non_null(t->qp);
	assert_non_null(t->l);
}

static void fell(struct tree *t)
{
	assert_true(t->l->ops->destroy(t->l));
	assert_true(flue_destroy_qp(t->qp));
	assert_true(t->srq->ops->destroy(t->srq));
	assert_true(flue_destroy_cq(t->cq));
	assert_true(t->mw->ops->destroy(t->mw));
	assert_true(flue_deregister(t->mr));
	assert_true(flue_destroy_pd(t->pd));
	assert_true(flue_close(t->a));
}

static void parents_with_children_refuse_destruction(void **state)
{
	struct tree t;

	grow(&t);
	assert_fails(flue_close(t.a), EBUSY);
	assert_fails(flue_destroy_pd(t.pd), EBUSY);
	assert_fails(flue_destroy_cq(t.cq), EBUSY);
	assert_fails(t.srq->ops->destroy(t.srq), EBUSY);
	assert_int_equal(t.qp->number, 7);
	assert_int_equal(t.qp->sq_sge, 1);
	assert_int_equal(t.srq->max_sge, 1);
	fell(&t);
}

static void srq_limit_is_told_once_and_only_when_armed(void **state)
{
	struct {
		struct flue_event ev;
		uint64_t later, beyond;
	} wide;
	struct flue_event ev;
	struct tree t;

	grow(&t);
	fake.adapter->up->srq_limit(to_srq(t.srq));
	assert_fails(flue_get_event(t.a, &ev, 0), EAGAIN);
	assert_true(t.srq->ops->arm_limit(t.srq, 5));
	fake.adapter->up->srq_limit(to_srq(t.srq));
	/* So much of it as the program's header has, and no more. */
	memset(&wide, 0x5a, sizeof(wide));
	assert_fails(t.a->ops->get_event(t.a, &wide.ev, sizeof(ev) - 1, 0), EINVAL);
	assert_true(t.a->ops->get_event(t.a, &wide.ev, sizeof(wide.ev) + sizeof(wide.later), 0));
	assert_int_equal(wide.ev.type, FLUE_EVENT_SRQ_LIMIT);
	assert_ptr_equal(wide.ev.u.srq, t.srq);
	assert_int_equal(wide.later, 0);
	assert_int_equal(wide.beyond, 0x5a5a5a5a5a5a5a5a);
	fake.adapter->up->srq_limit(to_srq(t.srq));
	assert_fails(flue_get_event(t.a, &ev, 0), EAGAIN);
	/* Taken back. */
	assert_true(t.srq->ops->arm_limit(t.srq, 5));
	assert_true(t.srq->ops->arm_limit(t.srq, 0));
	fake.adapter->up->srq_limit(to_srq(t.srq));
	assert_fails(flue_get_event(t.a, &ev, 0), EAGAIN);
	fell(&t);
}

static void srq_values_are_checked_and_changed_together(void **state)
{
	struct flue_srq_values v = FLUE_ATTR(struct flue_srq_values);
	struct flue_event ev;
	struct tree t;

	grow(&t);
	v.depth = 20;
	v.limit = 15;
	assert_fails(t.srq->ops->modify(t.srq, &v, FLUE_SRQV_DEPTH), EOPNOTSUPP);
	assert_fails(t.srq->ops->modify(t.srq, &v, FLUE_SRQV_LIMIT), EINVAL); /* it has 10 */
	to_adapter(t.a)->caps.features |= FLUE_FEATURE_SRQ_RESIZE;
	assert_fails(t.srq->ops->modify(t.srq, &v, 0), EINVAL);
	assert_fails(t.srq->ops->modify(t.srq, &v, FLUE_SRQV_WORK), EINVAL);
	assert_fails(t.srq->ops->modify(t.srq, NULL, FLUE_SRQV_LIMIT), EINVAL);
	fake.rc.modify_srq = -EBUSY;
	assert_fails(t.srq->ops->modify(t.srq, &v, FLUE_SRQV_DEPTH | FLUE_SRQV_LIMIT), EBUSY);
	assert_int_equal(t.srq->depth, 10);
	fake.adapter->up->srq_limit(to_srq(t.srq)); /* nothing was armed */
	assert_fails(flue_get_event(t.a, &ev, 0), EAGAIN);
	fake.rc.modify_srq = 0;
	assert_true(t.srq->ops->modify(t.srq, &v, FLUE_SRQV_DEPTH | FLUE_SRQV_LIMIT));
	assert_int_equal(fake.srq_mask, FLUE_SRQV_DEPTH | FLUE_SRQV_LIMIT);
	assert_int_equal(fake.srq.depth, 20);
	assert_int_equal(t.srq->depth, 20);
	fake.adapter->up->srq_limit(to_srq(t.srq));
	assert_true(flue_get_event(t.a, &ev, 0));
	v.depth = 0;
	assert_fails(t.srq->ops->modify(t.srq, &v, FLUE_SRQV_DEPTH), EINVAL);
	v.depth = t.a->caps->max_srq_depth + 1;
	assert_fails(t.srq->ops->modify(t.srq, &v, FLUE_SRQV_DEPTH), EINVAL);
	fake.srq = (struct flue_srq_values) { .depth = 20, .limit = 3, .receives = 7 };
	assert_fails(t.srq->ops->query(t.srq, &v, 8), EINVAL);
	v.size = 8;
	assert_fails(t.srq->ops->query(t.srq, &v, FLUE_SRQV_LIMIT), EINVAL);
	v.size = sizeof(v) + 8; /* of a newer program */
	assert_true(t.srq->ops->query(t.srq, &v, FLUE_SRQV_LIMIT | FLUE_SRQV_WORK));
	assert_int_equal(v.size, sizeof(v));
	assert_true(v.limit == 3 && v.receives == 7);
	fell(&t);
}

static void control_calls_wait_when_the_provider_answers_later(void **state)
{
	struct tree t;

	fake.later = true;
	grow(&t);
	assert_true(t.cq->ops->resize(t.cq, 20));
	assert_true(t.qp->ops->reset(t.qp));
	assert_true(t.mr->ops->modify(t.mr, FLUE_MR_PD, NULL, t.pd));
	fell(&t);
}

static void fall_silent(void)
{
	acc_answer_ms = 20;
	fake.silent = true;
}

static void speak_again(void)
{
	acc_answer_ms = ACC_ANSWER_MS;
	fake.silent = false;
}

/* CH-25. Every object counts as gone, so that whoever has it can be destroyed, too. */
static void lose(struct tree *t)
{
	assert_fails(t->l->ops->destroy(t->l), ETIMEDOUT);
	assert_fails(flue_destroy_qp(t->qp), ETIMEDOUT);
	assert_fails(t->srq->ops->destroy(t->srq), ETIMEDOUT);
	assert_fails(flue_destroy_cq(t->cq), ETIMEDOUT);
	assert_fails(t->mw->ops->destroy(t->mw), ETIMEDOUT);
	assert_fails(flue_deregister(t->mr), ETIMEDOUT);
	assert_fails(flue_destroy_pd(t->pd), ETIMEDOUT);
}

static void provider_that_never_answers_hangs_nobody(void **state)
{
	struct flue_event ev;
	struct tree t;

	for (int speaks = 0; speaks < 2; speaks++) {
		grow(&t);
		assert_true(t.srq->ops->arm_limit(t.srq, 5));
		fall_silent();
		assert_fails(t.cq->ops->resize(t.cq, 20), ETIMEDOUT);
		assert_int_equal(t.cq->depth, 10);
		assert_fails(t.qp->ops->reset(t.qp), ETIMEDOUT);
		assert_fails(t.mr->ops->modify(t.mr, FLUE_MR_PD, NULL, t.pd), ETIMEDOUT);
		lose(&t);
		/* What it says of them now is of no interest, nor is its late answer. */
		fake.adapter->up->cq_error(to_cq(t.cq));
		fake.adapter->up->srq_limit(to_srq(t.srq));
		assert_int_equal(fake_request(t.l, NULL, 0, 2), -ENODEV);
		assert_fails(flue_get_event(t.a, &ev, 0), EAGAIN);
		if (speaks)
			fake_speak(0);
		fake.n_unanswered = 0;
		assert_true(flue_close(t.a));
		speak_again();
	}
}

static void creating_returns_when_the_provider_never_answers(void **state)
{
	struct flue_qp_attr qp = FLUE_ATTR(struct flue_qp_attr);
	struct flue_srq_attr srq = FLUE_ATTR(struct flue_srq_attr);
	struct flue_adapter *a = fake_open(NULL, 0);
	struct flue_pd *pd = flue_create_pd(a);
	struct flue_cq *cq = flue_create_cq(a, 4);

	srq.depth = qp.sq_depth = 1;
	qp.send_cq = qp.recv_cq = cq;
	fake.rc.pd = fake.rc.mr = fake.rc.mw = fake.rc.cq = fake.rc.srq = fake.rc.qp = -ENOSPC;
	fall_silent();
	assert_fails(flue_create_pd(a), ETIMEDOUT);
	assert_fails(flue_register(pd, memory, 1, 0), ETIMEDOUT);
	assert_fails(pd->ops->create_mw(pd), ETIMEDOUT);
	assert_fails(flue_create_cq(a, 1), ETIMEDOUT);
	assert_fails(pd->ops->create_srq(pd, &srq), ETIMEDOUT);
	assert_fails(pd->ops->create_qp(pd, &qp), ETIMEDOUT);
	fake_speak(-ENOSPC);
	speak_again();
	memset(&fake.rc, 0, sizeof(fake.rc));
	assert_true(flue_destroy_cq(cq));
	assert_true(flue_destroy_pd(pd));
	assert_true(flue_close(a));
}

/* The word is ours; a provider that uses it has answered. */
static void time_out_of_the_provider_itself_is_another_failure(void **state)
{
	struct tree t;

	grow(&t);
	fake.rc.deregister_mr = fake.rc.reset_qp = -ETIMEDOUT;
	assert_fails(flue_deregister(t.mr), EIO);
	assert_fails(t.qp->ops->reset(t.qp), EIO);
	memset(&fake.rc, 0, sizeof(fake.rc));
	fell(&t);
}

static void objects_stay_usable_when_destroying_them_fails(void **state)
{
	struct tree t;

	grow(&t);
	fake.rc.destroy_pd = fake.rc.deregister_mr = fake.rc.destroy_mw = -EIO;
	fake.rc.destroy_cq = fake.rc.destroy_srq = fake.rc.destroy_qp = -EIO;
	fake.rc.destroy_listener = -EIO;
	assert_fails(t.l->ops->destroy(t.l), EIO);
	assert_fails(flue_destroy_qp(t.qp), EIO);
	assert_fails(flue_deregister(t.mr), EIO);
	assert_fails(t.mw->ops->destroy(t.mw), EIO);
	assert_fails(flue_destroy_pd(t.pd), EBUSY);
	fake.rc.destroy_qp = 0;
	assert_true(flue_destroy_qp(t.qp));
	assert_fails(flue_destroy_cq(t.cq), EIO);
	assert_fails(t.srq->ops->destroy(t.srq), EIO);
	memset(&fake.rc, 0, sizeof(fake.rc));
	t.qp = NULL;
	assert_true(t.srq->ops->destroy(t.srq));
	assert_true(t.l->ops->destroy(t.l));
	assert_true(flue_destroy_cq(t.cq));
	assert_true(t.mw->ops->destroy(t.mw));
	assert_true(flue_deregister(t.mr));
	fake.rc.destroy_pd = -EIO;
	assert_fails(flue_destroy_pd(t.pd), EIO);
	fake.rc.destroy_pd = 0;
	assert_true(flue_destroy_pd(t.pd));
	assert_true(flue_close(t.a));
}

static void creating_fails_as_the_provider_says_and_leaves_no_child(void **state)
{
	struct flue_qp_attr qp = FLUE_ATTR(struct flue_qp_attr);
	struct flue_srq_attr srq = FLUE_ATTR(struct flue_srq_attr);
	struct flue_listen_attr listen = FLUE_ATTR(struct flue_listen_attr);
	struct flue_adapter *a = fake_open(NULL, 0);
	struct flue_pd *pd = flue_create_pd(a);
	struct flue_cq *cq = flue_create_cq(a, 4);

	fake.rc.pd = fake.rc.mr = fake.rc.mw = fake.rc.cq = fake.rc.srq = fake.rc.qp = -ENOSPC;
	fake.rc.listen = -EADDRINUSE;
	assert_fails(flue_create_pd(a), ENOSPC);
	assert_fails(flue_register(pd, memory, 1, 0), ENOSPC);
	assert_fails(pd->ops->create_mw(pd), ENOSPC);
	assert_fails(flue_create_cq(a, 1), ENOSPC);
	srq.depth = 1;
	assert_fails(pd->ops->create_srq(pd, &srq), ENOSPC);
	qp.send_cq = qp.recv_cq = cq;
	qp.sq_depth = 1;
	assert_fails(pd->ops->create_qp(pd, &qp), ENOSPC);
	listen.local = fake_address();
	listen.local_len = sizeof(struct sockaddr_in);
	assert_fails(a->ops->listen(a, &listen), EADDRINUSE);
	assert_true(flue_destroy_cq(cq));
	assert_true(flue_destroy_pd(pd));
	assert_true(flue_close(a));
}

static bool refused(bool done)
{
	return !done && errno == ENODEV;
}

static bool queues_are_refused(struct tree *t)
{
	struct flue_recv_wr recv = { .id = 1 };
	struct flue_send_wr send = { .id = 2 };
	struct flue_wc wc;
	uint32_t got;

	return refused(flue_poll(t->cq, &wc, 1, &got)) && refused(flue_wait(t->cq, -1)) &&
	       refused(t->cq->ops->notify(t->cq, FLUE_NOTIFY_NEXT, NULL, NULL)) &&
	       refused(t->cq->ops->fd(t->cq) >= 0) && refused(t->cq->ops->clear_fd(t->cq)) &&
	       refused(flue_post_send(t->qp, &send)) && refused(flue_post_recv(t->qp, &recv)) &&
	       refused(t->srq->ops->post_recv(t->srq, &recv, NULL)) &&
	       refused(t->srq->ops->arm_limit(t->srq, 1)) && refused(flue_abort(t->qp)) &&
	       refused(flue_disconnect(t->qp)) && refused(t->qp->ops->terminate(t->qp));
}

static bool child_is_refused(struct tree *t)
{
	struct flue_event ev;

	return queues_are_refused(t) && refused(flue_create_pd(t->a)) &&
	       refused(flue_create_cq(t->a, 1)) && refused(flue_get_event(t->a, &ev, -1)) &&
	       refused(t->a->ops->event_fd(t->a) >= 0) &&
	       refused(t->l->ops->get_request(t->l, -1)) && refused(t->qp->ops->reset(t->qp));
}

static bool child_destroys(struct tree *t)
{
	return t->l->ops->destroy(t->l) && flue_destroy_qp(t->qp) && t->srq->ops->destroy(t->srq) &&
	       flue_destroy_cq(t->cq) && t->mw->ops->destroy(t->mw) && flue_deregister(t->mr) &&
	       flue_destroy_pd(t->pd) && flue_close(t->a);
}

static void child_of_fork_can_only_destroy_what_it_inherited(void **state)
{
	struct tree t;
	int status;
	pid_t pid;

	grow(&t);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		alarm(10);
		_exit(child_is_refused(&t) && child_destroys(&t) ? 0 : 1);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	fell(&t);
}

static void attributes_of_other_versions_are_understood(void **state)
{
	struct {
		struct flue_open_attr attr;
		uint64_t later;
	} wide = { .attr = { .size = sizeof(wide), .provider = "fake" } };
	struct flue_adapter *a = flue_open(&wide.attr);

	assert_non_null(a);
	assert_true(flue_close(a));
	wide.later = 1;
	assert_fails(flue_open(&wide.attr), EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(open_shows_processors_and_capabilities, reset), /* RD-6 */
		cmocka_unit_test_setup(adapters_are_listed_and_opened_by_name, reset),
		cmocka_unit_test_setup(open_refuses_bad_arguments, reset),
		cmocka_unit_test_setup(open_passes_on_what_the_provider_says, reset),
		cmocka_unit_test_setup(parents_with_children_refuse_destruction, reset), /* RD-1 */
		cmocka_unit_test_setup(srq_limit_is_told_once_and_only_when_armed, reset),
		cmocka_unit_test_setup(srq_values_are_checked_and_changed_together, reset),
		cmocka_unit_test_setup(control_calls_wait_when_the_provider_answers_later,
				       reset),                                           /* RD-6 */
		cmocka_unit_test_setup(provider_that_never_answers_hangs_nobody, reset), /* CH-25 */
		cmocka_unit_test_setup(creating_returns_when_the_provider_never_answers,
				       reset), /* CH-25 */
		cmocka_unit_test_setup(time_out_of_the_provider_itself_is_another_failure, reset),
		cmocka_unit_test_setup(objects_stay_usable_when_destroying_them_fails, reset),
		cmocka_unit_test_setup(creating_fails_as_the_provider_says_and_leaves_no_child,
				       reset), /* RD-1 */
		cmocka_unit_test_setup(child_of_fork_can_only_destroy_what_it_inherited, reset),
		cmocka_unit_test_setup(attributes_of_other_versions_are_understood, reset),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
