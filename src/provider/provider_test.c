/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
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
	uint8_t *slot = (uint8_t *)&ops + offsetof(struct prov_ops, query);

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
	ops.query = NULL;
	assert_string_equal(provider_empty_slot(&ops), "query");
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

	assert_int_equal(prov_no_modify_mr(NULL, NULL, NULL, NULL), -EOPNOTSUPP);
	assert_int_equal(prov_no_create_mw(NULL, NULL, NULL, NULL), -EOPNOTSUPP);
	assert_int_equal(prov_no_destroy_mw(NULL, NULL), -EOPNOTSUPP);
	assert_int_equal(prov_no_resize_cq(NULL, 1, NULL), -EOPNOTSUPP);
	assert_int_equal(prov_no_create_srq(NULL, 1, 1, NULL, NULL, NULL), -EOPNOTSUPP);
	assert_int_equal(prov_no_destroy_srq(NULL, NULL), -EOPNOTSUPP);
	assert_int_equal(prov_no_arm_srq(NULL, 1), -EOPNOTSUPP);
	assert_int_equal(prov_no_post_srq(NULL, &wr, &bad), -EOPNOTSUPP);
	assert_ptr_equal(bad, &wr);
	assert_int_equal(prov_no_adopt_stream(NULL, NULL, NULL), -EOPNOTSUPP);
	assert_int_equal(prov_no_adopt_gang(NULL, 0), -EOPNOTSUPP);
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

	assert_int_equal(soft->open(&cpu, 1, &up, &a), 0);
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
		cmocka_unit_test(soft_provider_refuses_a_handler_that_is_not_there),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
