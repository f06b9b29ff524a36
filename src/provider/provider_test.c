/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

#include "provider/registry.h"

static void *anything(void)
{
	return NULL;
}

/* A table in which every slot is filled with something that must not be called. */
static struct prov_ops full_table(const char *name)
{
	struct prov_ops ops = { .size = sizeof(ops), .name = name, .description = "a test's" };
	void *(*fn)(void) = anything;
	uint8_t *slot = (uint8_t *)&ops + offsetof(struct prov_ops, adapter);

	for (; slot < (uint8_t *)(&ops + 1); slot += sizeof(fn))
		memcpy(slot, &fn, sizeof(fn));
	return ops;
}

static void provider_table_names_its_first_empty_slot(void **state)
{
	struct prov_ops ops = full_table("t");

	assert_null(provider_empty_slot(&ops));
	ops.adopt_stream = NULL;
	assert_string_equal(provider_empty_slot(&ops), "adopt_stream");
	ops.poll = NULL;
	assert_string_equal(provider_empty_slot(&ops), "poll");
	ops.adapter = NULL;
	assert_string_equal(provider_empty_slot(&ops), "adapter");
}

static void provider_built_in_tables_have_no_empty_slot(void **state)
{
	const struct prov_ops *ops;

	for (uint32_t i = 0; (ops = provider_at(i)); i++) {
		assert_int_equal(ops->size, sizeof(*ops));
		assert_string_equal(provider_empty_slot(ops) ? provider_empty_slot(ops) : "", "");
	}
}

static void provider_is_found_by_name_when_registered(void **state)
{
	static struct prov_ops one, twin;

	one = full_table("one");
	twin = full_table("one");
	assert_null(provider_find("one"));
	assert_int_equal(provider_register(&one), 0);
	assert_ptr_equal(provider_find("one"), &one);
	assert_int_equal(provider_register(&one), 0);
	assert_int_equal(provider_register(&twin), -EEXIST);
	assert_ptr_equal(provider_find("soft"), provider_at(0));
	assert_null(provider_find("none"));
}

static void provider_is_refused_when_its_table_is_not_whole(void **state)
{
	struct prov_ops ops = full_table("broken");

	ops.reject = NULL;
	assert_int_equal(provider_register(&ops), -EINVAL);
	ops = full_table("broken");
	ops.size--;
	assert_int_equal(provider_register(&ops), -EINVAL);
	assert_int_equal(provider_register(NULL), -EINVAL);
	assert_null(provider_find("broken"));
}

static void provider_is_refused_when_the_registry_is_full(void **state)
{
	static struct prov_ops many[20];
	static char names[20][8];
	int rc = 0;

	for (int i = 0; i < 20 && !rc; i++) {
		memcpy(names[i], "many", 4);
		names[i][4] = (char)('a' + i);
		many[i] = full_table(names[i]);
		rc = provider_register(&many[i]);
	}
	assert_int_equal(rc, -ENOSPC);
	assert_ptr_equal(provider_find("manya"), &many[0]);
}

static void provider_stubs_answer_that_it_cannot_be_done(void **state)
{
	struct flue_recv_wr wr = { 0 };
	const struct flue_recv_wr *bad = NULL;

	assert_int_equal(prov_no_modify_mr(NULL, 0, NULL, NULL, NULL), -EOPNOTSUPP);
	assert_int_equal(prov_no_create_mw(NULL, 0, NULL, NULL, NULL), -EOPNOTSUPP);
	assert_int_equal(prov_no_destroy_mw(NULL, NULL), -EOPNOTSUPP);
	assert_int_equal(prov_no_resize_cq(NULL, 1, NULL), -EOPNOTSUPP);
	assert_int_equal(prov_no_create_srq(NULL, 1, 1, NULL, NULL, NULL), -EOPNOTSUPP);
	assert_int_equal(prov_no_destroy_srq(NULL, NULL), -EOPNOTSUPP);
	assert_int_equal(prov_no_arm_srq(NULL, 1), -EOPNOTSUPP);
	assert_int_equal(prov_no_modify_srq(NULL, NULL, 0, NULL), -EOPNOTSUPP);
	assert_int_equal(prov_no_query_srq(NULL, NULL, NULL), -EOPNOTSUPP);
	assert_int_equal(prov_no_bind_mw(NULL, NULL, NULL, NULL), -EOPNOTSUPP);
	assert_int_equal(prov_no_post_srq(NULL, &wr, &bad), -EOPNOTSUPP);
	assert_ptr_equal(bad, &wr);
	assert_int_equal(prov_no_adopt_stream(NULL, NULL, NULL), -EOPNOTSUPP);
	assert_int_equal(prov_no_adopt_gang(NULL, 0), -EOPNOTSUPP);
	assert_int_equal(prov_no_modify_qp(NULL, NULL, 0, NULL), -EOPNOTSUPP);
	assert_int_equal(prov_no_create_ah(NULL, NULL, NULL, NULL), -EOPNOTSUPP);
	assert_int_equal(prov_no_destroy_ah(NULL, NULL), -EOPNOTSUPP);
	assert_int_equal(prov_no_group(NULL, NULL), -EOPNOTSUPP);
}

static void soft_provider_has_one_adapter_with_the_addresses_of_all_interfaces(void **state)
{
	const struct prov_ops *soft = provider_find("soft");
	struct sockaddr_storage at[64], one;
	struct flue_adapter_info info = { .addresses = at, .max_addresses = 64 };
	struct prov_open_attr open = { .name = "flue1" };
	struct flue_caps caps = { 0 };
	struct prov_adapter *a;
	bool loopback = false;

	assert_int_equal(soft->adapter(0, &info, &caps), 0);
	assert_string_equal(info.name, "flue0");
	assert_true(caps.max_qp && info.ports == 1);
	for (uint32_t i = 0; i < info.n_addresses && i < 64; i++) {
		const struct sockaddr_in *in = (const struct sockaddr_in *)&at[i];

		assert_true(at[i].ss_family == AF_INET || at[i].ss_family == AF_INET6);
		loopback |= at[i].ss_family == AF_INET &&
			    in->sin_addr.s_addr == htonl(INADDR_LOOPBACK);
	}
	assert_true(loopback);
	/* No more than there is room for. */
	memset(&one, 0x5a, sizeof(one));
	at[0] = one;
	info.max_addresses = 0;
	assert_int_equal(soft->adapter(0, &info, &caps), 0);
	assert_true(info.n_addresses >= 1);
	assert_memory_equal(&at[0], &one, sizeof(one));
	assert_int_equal(soft->adapter(1, &info, &caps), -ENOENT);
	assert_int_equal(soft->open(&open, &a), -ENODEV);
}

static void nothing(void *cq_owner, void *arg)
{
}

static void soft_provider_refuses_a_handler_that_is_not_there(void **state)
{
	const struct prov_ops *soft = provider_find("soft");
	const struct prov_upcalls up = { 0 };
	struct prov_cq_attr attr = { .depth = 4 };
	struct prov_adapter *a;
	struct prov_cq *cq;
	int cpu = 0;
	struct prov_open_attr open = { "flue0", &cpu, 1, &up, FLUE_LINK_ALL };

	assert_int_equal(soft->open(&open, &a), 0);
	assert_int_equal(soft->set_completion_handler(a, 4711, nothing, NULL), -EINVAL);
	assert_int_equal(soft->create_cq(a, &attr, &cq, NULL), -EINVAL);
	attr.handler = soft->set_completion_handler(a, cpu, nothing, NULL);
	assert_int_equal(soft->create_cq(a, &attr, &cq, NULL), 0);
	assert_int_equal(soft->destroy_cq(cq, NULL), 0);
	for (int i = 0; i < 2; i++) {
		attr.handler = i ? attr.handler + 2 : -1;
		assert_int_equal(soft->create_cq(a, &attr, &cq, NULL), -EINVAL);
	}
	soft->close(a);
}

static void on_event(void *qp_owner, const struct flue_event *ev, const struct prov_conn_info *conn)
{
}

/* The layer above does not ask for it, but others may. */
static void soft_provider_refuses_a_second_connect(void **state)
{
	const struct prov_ops *soft = provider_find("soft");
	const struct prov_upcalls up = { .qp_event = on_event };
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	socklen_t len = sizeof(at);
	struct flue_conn_attr conn = FLUE_ATTR(struct flue_conn_attr);
	struct prov_cq_attr cq = { .depth = 4 };
	struct prov_qp_attr qp = { .sq_depth = 1, .rq_depth = 1, .sq_sge = 1, .rq_sge = 1 };
	uint32_t number, qp_state = FLUE_QP_IDLE;
	struct prov_adapter *a;
	struct prov_qp *q;
	int cpu = 0, silent = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct prov_open_attr open = { "flue0", &cpu, 1, &up, FLUE_LINK_ALL };

	assert_int_equal(bind(silent, (struct sockaddr *)&at, sizeof(at)), 0);
	assert_int_equal(listen(silent, 4), 0);
	assert_int_equal(getsockname(silent, (struct sockaddr *)&at, &len), 0);
	assert_int_equal(soft->open(&open, &a), 0);
	cq.handler = soft->set_completion_handler(a, cpu, nothing, NULL);
	assert_int_equal(soft->create_cq(a, &cq, &qp.send_cq, NULL), 0);
	assert_int_equal(soft->create_pd(a, &qp.pd, NULL), 0);
	qp.recv_cq = qp.send_cq;
	qp.state = &qp_state;
	assert_int_equal(soft->create_qp(&qp, &q, &number, NULL), 0);
	conn.remote = (struct sockaddr *)&at;
	conn.remote_len = sizeof(at);
	conn.timeout_ms = 60000;
	assert_int_equal(soft->connect(q, &conn), 0);
	assert_int_equal(soft->connect(q, &conn), -EISCONN);
	assert_int_equal(soft->destroy_qp(q, NULL), 0);
	assert_int_equal(soft->destroy_cq(qp.send_cq, NULL), 0);
	assert_int_equal(soft->destroy_pd(qp.pd, NULL), 0);
	soft->close(a);
	close(silent);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		/* RD-6 */
		cmocka_unit_test(provider_table_names_its_first_empty_slot),
		cmocka_unit_test(provider_built_in_tables_have_no_empty_slot),
		cmocka_unit_test(provider_is_found_by_name_when_registered),
		cmocka_unit_test(provider_is_refused_when_its_table_is_not_whole),
		cmocka_unit_test(provider_is_refused_when_the_registry_is_full),
		cmocka_unit_test(provider_stubs_answer_that_it_cannot_be_done),
		cmocka_unit_test(
			soft_provider_has_one_adapter_with_the_addresses_of_all_interfaces),
		cmocka_unit_test(soft_provider_refuses_a_handler_that_is_not_there),
		cmocka_unit_test(soft_provider_refuses_a_second_connect),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
