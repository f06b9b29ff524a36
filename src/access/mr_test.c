/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "access/fake_priv.h"

static uint8_t memory[8192];

struct domain {
	struct flue_adapter *a;
	struct flue_pd *pd, *other;
};

static struct domain d;

static int open_domain(void **state)
{
	fake_reset();
	d.a = fake_open(NULL, 0);
	d.pd = flue_create_pd(d.a);
	d.other = flue_create_pd(d.a);
	return !d.a || !d.pd || !d.other;
}

static int close_domain(void **state)
{
	return !flue_destroy_pd(d.pd) || !flue_destroy_pd(d.other) || !flue_close(d.a);
}

static void mr_shows_its_attributes(void **state)
{
	struct flue_mr *mr = flue_register(d.pd, memory, 100, FLUE_LOCAL_WRITE | FLUE_REMOTE_READ);
	struct flue_sge sge;

	assert_non_null(mr);
	assert_ptr_equal(mr->pd, d.pd);
	assert_ptr_equal(mr->addr, memory);
	assert_int_equal(mr->length, 100);
	assert_int_equal(mr->remote_start, (uintptr_t)memory);
	assert_int_equal(mr->remote_end, (uintptr_t)memory + 100);
	assert_int_equal(mr->access, FLUE_LOCAL_WRITE | FLUE_REMOTE_READ);
	assert_int_equal(mr->lkey, fake.key << 8);
	assert_int_equal(mr->rkey, fake.key << 8 | FAKE_RKEY);
	sge = flue_mr_sge(mr, 10, 20);
	assert_int_equal(sge.addr, (uintptr_t)memory + 10);
	assert_int_equal(sge.length, 20);
	assert_int_equal(sge.lkey, mr->lkey);
	assert_true(flue_deregister(mr));
}

static void mr_counts_from_zero_when_zero_based(void **state)
{
	struct flue_mr *mr = flue_register(d.pd, memory, 100, FLUE_ZERO_BASED);

	assert_int_equal(mr->remote_start, 0);
	assert_int_equal(mr->remote_end, 100);
	assert_ptr_equal(mr->addr, memory);
	assert_true(mr->ops->modify(mr, FLUE_MR_ACCESS, &FLUE_ATTR(struct flue_mr_attr), NULL));
	assert_int_equal(mr->remote_start, (uintptr_t)memory);
	assert_true(flue_deregister(mr));
}

static void mr_counts_from_any_number(void **state)
{
	struct flue_mr_attr attr = FLUE_ATTR(struct flue_mr_attr);
	struct flue_mr *mr;

	attr.addr = memory;
	attr.length = 100;
	attr.access = FLUE_IOVA;
	attr.iova = UINT64_MAX - 99;
	mr = d.pd->ops->register_mr(d.pd, &attr);
	assert_non_null(mr);
	assert_int_equal(fake.mr.start, attr.iova);
	assert_int_equal(mr->remote_start, attr.iova);
	assert_int_equal(mr->remote_end, 0);
	assert_int_equal(flue_mr_sge(mr, 10, 1).addr, attr.iova + 10);
	/* A change of the protection domain alone leaves it there. */
	assert_true(mr->ops->modify(mr, FLUE_MR_PD, NULL, d.other));
	assert_int_equal(mr->remote_start, attr.iova);
	attr.iova = 5;
	assert_true(mr->ops->modify(mr, FLUE_MR_RANGE, &attr, NULL));
	assert_int_equal(mr->remote_start, 5);
	attr.iova = UINT64_MAX - 98;
	assert_fails(mr->ops->modify(mr, FLUE_MR_RANGE, &attr, NULL), EINVAL);
	attr.access = FLUE_IOVA | FLUE_ZERO_BASED;
	assert_fails(d.pd->ops->register_mr(d.pd, &attr), EINVAL);
	assert_true(flue_deregister(mr));
}

static void mr_is_refused_when_the_adapter_has_not_the_feature(void **state)
{
	static const uint32_t access[] = { FLUE_ZERO_BASED, FLUE_IOVA, FLUE_REMOTE_INVALIDATE,
					   FLUE_BIND_WINDOW,
					   FLUE_REMOTE_ATOMIC | FLUE_LOCAL_WRITE };

	assert_fails(flue_register(d.pd, memory, 10, FLUE_REMOTE_ATOMIC), EINVAL);
	to_adapter(d.a)->caps.features = 0;
	for (unsigned i = 0; i < sizeof(access) / sizeof(access[0]); i++)
		assert_fails(flue_register(d.pd, memory, 10, access[i]), EOPNOTSUPP);
}

static void mr_is_refused_when_an_argument_is_impossible(void **state)
{
	assert_fails(flue_register(d.pd, memory, 0, 0), EINVAL);
	assert_fails(flue_register(d.pd, (void *)(UINTPTR_MAX - 5), 7, 0), EINVAL);
	assert_fails(flue_register(d.pd, memory, 10, FLUE_REMOTE_WRITE), EINVAL);
	assert_fails(flue_register(d.pd, memory, 10, 1u << 30), EINVAL);
	assert_fails(flue_register(d.pd, memory, SIZE_MAX, 0), EINVAL);
	assert_fails(d.pd->ops->register_mr(d.pd, NULL), EINVAL);
}

static void mr_can_be_modified_in_part(void **state)
{
	struct flue_mr_attr attr = FLUE_ATTR(struct flue_mr_attr);
	struct flue_mr *mr = flue_register(d.pd, memory, 100, FLUE_LOCAL_WRITE);
	uint32_t key = mr->rkey;

	attr.addr = memory + 50;
	attr.length = 10;
	attr.access = FLUE_REMOTE_READ;
	assert_true(mr->ops->modify(mr, FLUE_MR_RANGE, &attr, NULL));
	assert_ptr_equal(mr->addr, memory + 50);
	assert_int_equal(mr->length, 10);
	assert_int_equal(mr->access, FLUE_LOCAL_WRITE);
	assert_int_not_equal(mr->rkey, key);
	assert_true(mr->ops->modify(mr, FLUE_MR_ACCESS, &attr, NULL));
	assert_int_equal(mr->access, FLUE_REMOTE_READ);
	assert_true(mr->ops->modify(mr, FLUE_MR_PD, NULL, d.other));
	assert_ptr_equal(mr->pd, d.other);
	assert_ptr_equal(fake.mr.addr, memory + 50);
	assert_fails(flue_destroy_pd(d.other), EBUSY);
	assert_true(flue_deregister(mr));
}

static void mr_stays_as_it_was_when_modifying_fails(void **state)
{
	struct flue_mr_attr attr = FLUE_ATTR(struct flue_mr_attr);
	struct flue_mr *mr = flue_register(d.pd, memory, 100, FLUE_LOCAL_WRITE);
	struct flue_adapter *a = fake_open(NULL, 0);
	struct flue_pd *foreign = flue_create_pd(a);
	struct flue_mr before = *mr;

	attr.addr = memory;
	attr.length = 5;
	fake.rc.modify_mr = -EBUSY;
	assert_fails(mr->ops->modify(mr, FLUE_MR_RANGE, &attr, NULL), EBUSY);
	fake.rc.modify_mr = 0;
	assert_fails(mr->ops->modify(mr, FLUE_MR_PD, NULL, foreign), EXDEV);
	assert_fails(mr->ops->modify(mr, FLUE_MR_PD, NULL, NULL), EINVAL);
	assert_fails(mr->ops->modify(mr, FLUE_MR_RANGE, NULL, NULL), EINVAL);
	assert_fails(mr->ops->modify(mr, 0, &attr, NULL), EINVAL);
	assert_fails(mr->ops->modify(mr, 8, &attr, NULL), EINVAL);
	attr.length = 0;
	assert_fails(mr->ops->modify(mr, FLUE_MR_RANGE, &attr, NULL), EINVAL);
	assert_memory_equal(&before, mr, sizeof(before));
	assert_true(flue_deregister(mr));
	assert_true(flue_destroy_pd(foreign));
	assert_true(flue_close(a));
}

static void mr_keeps_its_keys_when_asked_to(void **state)
{
	struct flue_mr_attr attr = FLUE_ATTR(struct flue_mr_attr);
	struct flue_mr *mr = flue_register(d.pd, memory, 100, FLUE_LOCAL_WRITE);

	attr.access = FLUE_REMOTE_READ;
	assert_fails(mr->ops->modify(mr, FLUE_MR_ACCESS | FLUE_MR_KEEP_KEYS, &attr, NULL),
		     EOPNOTSUPP);
	to_adapter(d.a)->caps.features |= FLUE_FEATURE_KEEP_KEYS;
	assert_fails(mr->ops->modify(mr, FLUE_MR_KEEP_KEYS, &attr, NULL), EINVAL);
	assert_true(mr->ops->modify(mr, FLUE_MR_ACCESS | FLUE_MR_KEEP_KEYS, &attr, NULL));
	assert_int_equal(fake.what, FLUE_MR_ACCESS | FLUE_MR_KEEP_KEYS);
	assert_int_equal(mr->access, FLUE_REMOTE_READ);
	assert_ptr_equal(fake.mr.addr, memory);
	assert_int_equal(fake.mr.length, 100);
	assert_true(mr->ops->modify(mr, FLUE_MR_PD, NULL, d.other));
	assert_int_equal(fake.what, FLUE_MR_PD);
	assert_true(flue_deregister(mr));
}

static void window_has_a_type(void **state)
{
	struct flue_mw *mw = d.pd->ops->create_mw(d.pd);

	assert_int_equal(mw->type, FLUE_MW_2B);
	assert_int_equal(fake.mw_type, FLUE_MW_2B);
	assert_true(mw->ops->destroy(mw));
	assert_fails(d.pd->ops->create_typed_mw(d.pd, FLUE_MW_1), EOPNOTSUPP);
	assert_fails(d.pd->ops->create_typed_mw(d.pd, FLUE_MW_2A), EOPNOTSUPP);
	assert_fails(d.pd->ops->create_typed_mw(d.pd, FLUE_MW_NTYPES), EINVAL);
	to_adapter(d.a)->caps.features |= FLUE_FEATURE_WINDOWS_1 | FLUE_FEATURE_WINDOWS_2A;
	for (uint32_t type = 0; type < FLUE_MW_NTYPES; type++) {
		mw = d.pd->ops->create_typed_mw(d.pd, type);
		assert_non_null(mw);
		assert_int_equal(mw->type, type);
		assert_int_equal(fake.mw_type, type);
		assert_true(mw->ops->destroy(mw));
	}
}

/* Each fault alone makes the call fail, and nothing is posted. */
static void refuse_binds(struct flue_mw *mw, struct flue_qp *qp, const struct flue_bind_attr *good)
{
	const uint32_t key = mw->rkey;
	struct flue_bind_attr bad;

	fake.bind = (struct flue_send_wr) { 0 };
	assert_fails(mw->ops->bind(mw, NULL, good), EINVAL);
	assert_fails(mw->ops->bind(mw, qp, NULL), EINVAL);
	bad = *good, bad.size = 8;
	assert_fails(mw->ops->bind(mw, qp, &bad), EINVAL);
	bad = *good, bad.access |= FLUE_ZERO_BASED;
	assert_fails(mw->ops->bind(mw, qp, &bad), EINVAL);
	bad = *good, bad.access |= FLUE_LOCAL_WRITE;
	assert_fails(mw->ops->bind(mw, qp, &bad), EINVAL);
	bad = *good, bad.addr--;
	assert_fails(mw->ops->bind(mw, qp, &bad), EINVAL);
	bad = *good, bad.addr++;
	assert_fails(mw->ops->bind(mw, qp, &bad), EINVAL);
	bad = *good, bad.length++;
	assert_fails(mw->ops->bind(mw, qp, &bad), EINVAL);
	bad = *good, bad.mr = NULL;
	assert_fails(mw->ops->bind(mw, qp, &bad), EINVAL);
	assert_int_equal(fake.bind.reg.length, 0);
	assert_int_equal(mw->rkey, key);
}

static void window_of_type_1_is_bound_by_a_call(void **state)
{
	struct flue_bind_attr bind = FLUE_ATTR(struct flue_bind_attr);
	struct flue_qp *qp = fake_qp(d.a, NULL, NULL);
	struct flue_pd *pd = qp->pd;
	struct flue_mr *mr = flue_register(pd, memory, 100, FLUE_LOCAL_WRITE | FLUE_BIND_WINDOW);
	struct flue_mr *shut = flue_register(pd, memory, 100, FLUE_BIND_WINDOW);
	struct flue_mw *mw, *two = pd->ops->create_mw(pd);
	uint32_t key;

	to_adapter(d.a)->caps.features |= FLUE_FEATURE_WINDOWS_1;
	mw = pd->ops->create_typed_mw(pd, FLUE_MW_1);
	bind.id = 5;
	bind.flags = FLUE_SIGNALED;
	bind.access = FLUE_REMOTE_WRITE;
	bind.mr = mr;
	bind.addr = mr->remote_start;
	bind.length = 100;
	key = mw->rkey;
	refuse_binds(mw, qp, &bind);
	assert_fails(two->ops->bind(two, qp, &bind), EINVAL);
	bind.mr = shut; /* must not be written */
	assert_fails(mw->ops->bind(mw, qp, &bind), EINVAL);
	bind.mr = mr;
	fake.rc.bind_mw = -ENOMEM;
	assert_fails(mw->ops->bind(mw, qp, &bind), ENOMEM);
	assert_int_equal(mw->rkey, key);
	fake.rc.bind_mw = 0;
	assert_true(mw->ops->bind(mw, qp, &bind));
	assert_int_equal(mw->rkey, fake.key << 8 | FAKE_RKEY);
	assert_int_not_equal(mw->rkey, key);
	assert_int_equal(fake.bind.id, 5);
	assert_int_equal(fake.bind.flags, FLUE_SIGNALED);
	assert_int_equal(fake.bind.reg.lkey, mr->lkey);
	assert_int_equal(fake.bind.reg.addr, mr->remote_start);
	assert_int_equal(fake.bind.reg.length, 100);
	assert_int_equal(fake.bind.reg.access, FLUE_REMOTE_WRITE);
	bind.length = 0;
	assert_true(mw->ops->bind(mw, qp, &bind));
	assert_int_equal(fake.bind.reg.length, 0);
	assert_int_equal(fake.bind.reg.lkey, 0);
	assert_true(mw->ops->destroy(mw) && two->ops->destroy(two));
	/* Of another domain. */
	mw = d.pd->ops->create_typed_mw(d.pd, FLUE_MW_1);
	assert_fails(mw->ops->bind(mw, qp, &bind), EINVAL);
	assert_true(mw->ops->destroy(mw));
	assert_true(flue_deregister(mr) && flue_deregister(shut));
	fake_destroy_qp(qp);
}

static void window_shows_its_key(void **state)
{
	struct flue_mw *mw = d.pd->ops->create_mw(d.pd);

	assert_int_equal(mw->rkey, fake.key << 8 | FAKE_RKEY);
	assert_ptr_equal(mw->pd, d.pd);
	assert_fails(flue_destroy_pd(d.pd), EBUSY);
	assert_true(mw->ops->destroy(mw));
}

static void names_are_never_null(void **state)
{
	for (uint32_t i = 0; i < 20; i++) {
		assert_non_null(flue_wc_status_name(i));
		assert_non_null(flue_qp_state_name(i));
		assert_non_null(flue_event_name(i));
		assert_non_null(flue_close_reason_name(i));
		assert_non_null(flue_fault_name(i));
	}
	assert_string_equal(flue_qp_state_name(FLUE_QP_RTS), "RTS");
	assert_string_equal(flue_qp_state_name(99), "?");
	assert_string_equal(flue_version(), FLUE_VERSION);
}

#define WITH_DOMAIN(test) cmocka_unit_test_setup_teardown(test, open_domain, close_domain)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH_DOMAIN(mr_shows_its_attributes),             /* WN-1 */
		WITH_DOMAIN(mr_counts_from_zero_when_zero_based), /* WN-1 */
		WITH_DOMAIN(mr_counts_from_any_number),
		WITH_DOMAIN(mr_is_refused_when_the_adapter_has_not_the_feature),
		WITH_DOMAIN(mr_is_refused_when_an_argument_is_impossible),
		WITH_DOMAIN(mr_can_be_modified_in_part), /* WN-1 */
		WITH_DOMAIN(mr_stays_as_it_was_when_modifying_fails),
		WITH_DOMAIN(mr_keeps_its_keys_when_asked_to),
		WITH_DOMAIN(window_shows_its_key), /* RD-3 */
		WITH_DOMAIN(window_has_a_type),
		WITH_DOMAIN(window_of_type_1_is_bound_by_a_call),
		WITH_DOMAIN(names_are_never_null),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
