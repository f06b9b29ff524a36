/* SPDX-License-Identifier: MIT */
/* Kinds of queue pairs, their values, and address handles. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "access/fake_priv.h"

static struct flue_adapter *a;
static struct flue_qp *qp;

static int make(void **state)
{
	fake_reset();
	a = fake_open(NULL, 0);
	qp = a ? fake_qp(a, NULL, NULL) : NULL;
	return !qp;
}

static int drop(void **state)
{
	fake_destroy_qp(qp);
	return !flue_close(a);
}

static struct prov_qp *prov(void)
{
	return to_qp(qp)->prov;
}

static bool go_to(uint32_t state)
{
	struct flue_qp_values v = FLUE_ATTR(struct flue_qp_values);

	v.state = state;
	return qp->ops->modify(qp, &v, FLUE_QPV_STATE);
}

/* ---- kinds ---- */

static void qp_kinds_need_the_adapters_feature(void **state)
{
	static const struct {
		uint32_t type, flags, feature;
	} kinds[] = {
		{ FLUE_QP_UC, 0, FLUE_FEATURE_UC },
		{ FLUE_QP_UD, 0, FLUE_FEATURE_UD },
		{ FLUE_QP_RC, FLUE_QP_POST_EARLY, FLUE_FEATURE_POST_EARLY },
	};
	struct flue_qp_attr attr = FLUE_ATTR(struct flue_qp_attr);
	struct flue_qp *other;

	attr.send_cq = attr.recv_cq = qp->send_cq;
	attr.sq_depth = attr.rq_depth = 1;
	for (unsigned i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		attr.type = kinds[i].type;
		attr.flags = kinds[i].flags;
		to_adapter(a)->caps.features = ~kinds[i].feature;
		assert_fails(qp->pd->ops->create_qp(qp->pd, &attr), EOPNOTSUPP);
		to_adapter(a)->caps.features = kinds[i].feature;
		other = qp->pd->ops->create_qp(qp->pd, &attr);
		assert_non_null(other);
		assert_int_equal(other->type, kinds[i].type);
		assert_int_equal(fake.qp->attr.type, kinds[i].type);
		assert_int_equal(fake.qp->attr.post_early, kinds[i].flags != 0);
		assert_true(flue_destroy_qp(other));
	}
	to_adapter(a)->caps.features = UINT32_MAX;
	attr.type = FLUE_QP_NTYPES;
	assert_fails(qp->pd->ops->create_qp(qp->pd, &attr), EINVAL);
	attr.type = FLUE_QP_RC;
	attr.flags = 1u << 31;
	assert_fails(qp->pd->ops->create_qp(qp->pd, &attr), EINVAL);
	assert_string_equal(flue_qp_type_name(FLUE_QP_UD), "UD");
	assert_string_equal(flue_qp_type_name(FLUE_QP_NTYPES), "?");
}

/* ---- values ---- */

static void values_reach_the_provider(void **state)
{
	struct flue_qp_values v = FLUE_ATTR(struct flue_qp_values);

	v.ird = 5;
	v.ord = 6;
	v.access = FLUE_REMOTE_READ;
	for (unsigned later = 0; later < 2; later++) {
		fake.later = later;
		v.ird++;
		assert_true(qp->ops->modify(qp, &v, FLUE_QPV_READS | FLUE_QPV_ACCESS));
		assert_int_equal(prov()->mask, FLUE_QPV_READS | FLUE_QPV_ACCESS);
		assert_int_equal(prov()->values.access, FLUE_REMOTE_READ);
		assert_true(qp->ird == v.ird && qp->ord == 6);
	}
	fake.later = false;
	fake.rc.modify_qp = -EBUSY;
	v.ird = 1;
	assert_fails(qp->ops->modify(qp, &v, FLUE_QPV_READS), EBUSY);
	assert_int_equal(qp->ird, 7);
}

static void impossible_values_are_refused(void **state)
{
	struct flue_qp_values v = FLUE_ATTR(struct flue_qp_values);

	assert_fails(qp->ops->modify(qp, &v, 0), EINVAL);
	assert_fails(qp->ops->modify(qp, &v, 1u << 31), EINVAL);
	assert_fails(qp->ops->modify(qp, NULL, FLUE_QPV_READS), EINVAL);
	assert_fails(qp->ops->modify(qp, &v, FLUE_QPV_WORK), EINVAL);
	assert_fails(qp->ops->modify(qp, &v, FLUE_QPV_QUEUES), EINVAL);
	v.ird = a->caps->max_ird + 1;
	assert_fails(qp->ops->modify(qp, &v, FLUE_QPV_READS), EINVAL);
	v.ird = 0;
	v.ord = a->caps->max_ord + 1;
	assert_fails(qp->ops->modify(qp, &v, FLUE_QPV_READS), EINVAL);
	v.access = FLUE_LOCAL_WRITE;
	assert_fails(qp->ops->modify(qp, &v, FLUE_QPV_ACCESS), EINVAL);
	v.access = FLUE_REMOTE_ATOMIC;
	assert_fails(qp->ops->modify(qp, &v, FLUE_QPV_ACCESS), EOPNOTSUPP);
	assert_fails(go_to(FLUE_QP_NSTATES), EINVAL);
	v.size = offsetof(struct flue_qp_values, max_inline);
	assert_fails(qp->ops->modify(qp, &v, FLUE_QPV_ACCESS), EINVAL);
	assert_int_equal(prov()->mask, 0);
}

static void values_are_told_as_far_as_the_program_knows_them(void **state)
{
	struct {
		struct flue_qp_values v;
		uint64_t beyond;
	} wide = { .v.size = sizeof(wide), .beyond = 1 };
	struct flue_qp_values *v = &wide.v;

	fake.info = (struct flue_qp_values) { .state = FLUE_QP_RTS, .sends = 5, .llp_open = true };
	assert_true(qp->ops->query(qp, v, FLUE_QPV_STATE | FLUE_QPV_WORK | FLUE_QPV_QUEUES));
	assert_int_equal(prov()->mask, FLUE_QPV_STATE | FLUE_QPV_WORK);
	assert_int_equal(v->size, sizeof(*v));
	assert_int_equal(v->state, FLUE_QP_RTS);
	assert_true(v->sends == 5 && v->llp_open);
	assert_true(v->sq_depth == 4 && v->rq_depth == 4 && v->sq_sge == 1);
	assert_int_equal(wide.beyond, 1); /* says nothing of what we do not know */
	assert_true(FLUE_HAS(v, max_inline));
	/* What the library knows by itself it does not ask for. */
	fake.rc.query_qp = -EIO;
	assert_true(qp->ops->query(qp, v, FLUE_QPV_QUEUES));
	assert_fails(qp->ops->query(qp, v, FLUE_QPV_STATE), EIO);
	assert_fails(qp->ops->query(qp, v, 0), EINVAL);
	assert_fails(qp->ops->query(qp, v, 1u << 31), EINVAL);
	assert_fails(qp->ops->query(qp, NULL, FLUE_QPV_STATE), EINVAL);
	v->size = offsetof(struct flue_qp_values, max_inline);
	assert_fails(qp->ops->query(qp, v, FLUE_QPV_QUEUES), EINVAL);
}

/* The structures are the caller's, and as large as it says. */
static void paths_are_filled_where_the_program_has_them(void **state)
{
	const size_t small = ACC_ATTR_SIZE(struct flue_ah_attr, sl);
	struct flue_qp_values v = FLUE_ATTR(struct flue_qp_values);
	struct flue_ah_attr path = FLUE_ATTR(struct flue_ah_attr), alt = { .size = small };

	fake.info = (struct flue_qp_values) { .state = FLUE_QP_RTS };
	for (int i = 0; i < 2; i++)
		fake.paths[i] = (struct flue_ah_attr) { .size = sizeof(path),
							.remote = fake_address(),
							.remote_len = sizeof(struct sockaddr_in),
							.sl = (uint8_t)(i + 3) };
	v.path = &path;
	v.alt_path = &alt;
	assert_true(qp->ops->query(qp, &v, FLUE_QPV_STATE | FLUE_QPV_PATH | FLUE_QPV_ALT_PATH));
	assert_true(v.path == &path && v.alt_path == &alt);
	assert_true(path.size == sizeof(path) && alt.size == small);
	assert_true(path.sl == 3 && alt.sl == 4);
	assert_ptr_equal(path.remote, fake_address());
	/* What is not asked for stays. */
	path.sl = alt.sl = 0;
	assert_true(qp->ops->query(qp, &v, FLUE_QPV_STATE | FLUE_QPV_QUEUES));
	assert_true(v.path == &path && v.alt_path == &alt && !path.sl && !alt.sl);
	v.alt_path = NULL;
	assert_true(qp->ops->query(qp, &v, FLUE_QPV_PATH | FLUE_QPV_ALT_PATH));
	assert_true(v.path == &path && !v.alt_path && path.sl == 3);
	path.size = small - 1;
	assert_fails(qp->ops->query(qp, &v, FLUE_QPV_PATH), EINVAL);
	assert_true(qp->ops->query(qp, &v, FLUE_QPV_STATE));
}

static void paths_are_copied_before_the_provider_sees_them(void **state)
{
	struct flue_qp_values v = FLUE_ATTR(struct flue_qp_values);
	struct flue_ah_attr path = FLUE_ATTR(struct flue_ah_attr), alt;
	struct sockaddr_in remote;

	memcpy(&remote, fake_address(), sizeof(remote));
	path.remote = (struct sockaddr *)&remote;
	path.remote_len = sizeof(remote);
	path.sl = 5;
	alt = path;
	v.path = &path;
	v.alt_path = &alt;
	fake.path = fake.alt_path = (struct flue_ah_attr) { 0 };
	assert_true(qp->ops->modify(qp, &v, FLUE_QPV_PATH | FLUE_QPV_ALT_PATH));
	assert_true(prov()->values.path != &path && prov()->values.alt_path != &alt);
	assert_true(fake.path.sl == 5 && fake.alt_path.sl == 5);
	assert_true(fake.path.remote != path.remote && fake.alt_path.remote != path.remote);
	assert_true(fake.path.remote != fake.alt_path.remote);
	/* One that is not named is not looked at. */
	v.path = (struct flue_ah_attr *)8;
	assert_true(qp->ops->modify(qp, &v, FLUE_QPV_ALT_PATH));
	assert_null(prov()->values.path);
	v.path = NULL;
	assert_fails(qp->ops->modify(qp, &v, FLUE_QPV_PATH), EINVAL);
	v.path = &path;
	path.remote_len = 3;
	assert_fails(qp->ops->modify(qp, &v, FLUE_QPV_PATH), EINVAL);
	path.remote_len = sizeof(remote);
	path.size = 8;
	assert_fails(qp->ops->modify(qp, &v, FLUE_QPV_PATH), EINVAL);
}

/* ---- states ---- */

static void states_are_reached_by_the_calls_of_that_name(void **state)
{
	/* A step, and what must have been called for it. */
	static const struct {
		uint32_t from, to;
		int *rc; /* who answers */
	} steps[] = {
		{ FLUE_QP_IDLE, FLUE_QP_IDLE, &fake.rc.reset_qp },
		{ FLUE_QP_IDLE, FLUE_QP_RESET, &fake.rc.reset_qp },
		{ FLUE_QP_ERROR, FLUE_QP_RESET, &fake.rc.reset_qp },
		{ FLUE_QP_RTS, FLUE_QP_RESET, &fake.rc.reset_qp },
		{ FLUE_QP_RTS, FLUE_QP_ERROR, &fake.rc.abort },
		{ FLUE_QP_SQE, FLUE_QP_ERROR, &fake.rc.abort },
		{ FLUE_QP_RTS, FLUE_QP_CLOSING, &fake.rc.disconnect },
		{ FLUE_QP_RTS, FLUE_QP_TERMINATE, &fake.rc.terminate },
		{ FLUE_QP_IDLE, FLUE_QP_INIT, &fake.rc.modify_qp },
		{ FLUE_QP_RESET, FLUE_QP_INIT, &fake.rc.modify_qp },
		{ FLUE_QP_INIT, FLUE_QP_RTR, &fake.rc.modify_qp },
		{ FLUE_QP_RTR, FLUE_QP_RTS, &fake.rc.modify_qp },
		{ FLUE_QP_RTS, FLUE_QP_SQD, &fake.rc.modify_qp },
		{ FLUE_QP_SQD, FLUE_QP_RTS, &fake.rc.modify_qp },
		{ FLUE_QP_SQE, FLUE_QP_RTS, &fake.rc.modify_qp },
	};

	for (unsigned i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
		qp->state = steps[i].from;
		*steps[i].rc = -EIO;
		assert_fails(go_to(steps[i].to), EIO);
		*steps[i].rc = 0;
		assert_true(go_to(steps[i].to));
	}
}

/* Every pair has an answer; those that the verbs have not are refused without asking anybody. */
static void states_that_cannot_follow_are_refused(void **state)
{
	static const char *const follow[FLUE_QP_NSTATES] = {
		/* to IDLE RTS CLOSING TERMINATE ERROR RESET INIT RTR SQD SQE */
		[FLUE_QP_IDLE] = "yy--yyyy--",    [FLUE_QP_RTS] = "yyyyyy--y-",
		[FLUE_QP_CLOSING] = "y-y-yy----", [FLUE_QP_TERMINATE] = "y--yyy----",
		[FLUE_QP_ERROR] = "y---yy----",   [FLUE_QP_RESET] = "y---yyy---",
		[FLUE_QP_INIT] = "y---yyyy--",    [FLUE_QP_RTR] = "yy--yy----",
		[FLUE_QP_SQD] = "yy--yy--y-",     [FLUE_QP_SQE] = "yy--yy----",
	};

	for (uint32_t from = 0; from < FLUE_QP_NSTATES; from++) {
		for (uint32_t to = 0; to < FLUE_QP_NSTATES; to++) {
			qp->state = from;
			if (follow[from][to] == 'y')
				assert_true(go_to(to));
			else
				assert_fails(go_to(to), EINVAL);
		}
	}
	qp->state = FLUE_QP_IDLE;
}

static void other_values_change_only_where_nothing_ends(void **state)
{
	struct flue_qp_values v = FLUE_ATTR(struct flue_qp_values);

	qp->state = v.state = FLUE_QP_RTS;
	assert_true(qp->ops->modify(qp, &v, FLUE_QPV_STATE | FLUE_QPV_READS));
	assert_int_equal(prov()->mask, FLUE_QPV_READS);
	v.state = FLUE_QP_SQD;
	assert_true(qp->ops->modify(qp, &v, FLUE_QPV_STATE | FLUE_QPV_TELL_DRAINED));
	assert_int_equal(prov()->mask, FLUE_QPV_STATE | FLUE_QPV_TELL_DRAINED);
	v.state = FLUE_QP_ERROR;
	assert_fails(qp->ops->modify(qp, &v, FLUE_QPV_STATE | FLUE_QPV_READS), EINVAL);
	assert_int_equal(fake.aborts, 0);
}

/* ---- address handles ---- */

/* Longer than any address: who keeps it has no room. */
static void ah_refuses_an_address_that_is_too_long(void **state)
{
	struct flue_ah_attr attr = FLUE_ATTR(struct flue_ah_attr);
	struct sockaddr_storage wide[2] = { 0 };
	struct flue_pd *pd = qp->pd;
	struct flue_ah *ah;

	to_adapter(a)->caps.features |= FLUE_FEATURE_UD;
	memcpy(wide, fake_address(), sizeof(struct sockaddr_in));
	attr.remote = fake_address();
	attr.remote_len = sizeof(struct sockaddr_in);
	attr.local = (struct sockaddr *)wide;
	attr.local_len = sizeof(wide[0]) + 1;
	assert_fails(pd->ops->create_ah(pd, &attr), EINVAL);
	attr.local_len = sizeof(wide[0]);
	attr.remote = (struct sockaddr *)wide;
	attr.remote_len = sizeof(wide[0]) + 1;
	assert_fails(pd->ops->create_ah(pd, &attr), EINVAL);
	attr.remote_len = UINT32_MAX;
	assert_fails(pd->ops->create_ah(pd, &attr), EINVAL);
	attr.remote_len = sizeof(wide[0]);
	ah = pd->ops->create_ah(pd, &attr);
	assert_non_null(ah);
	assert_true(ah->ops->destroy(ah));
}

static void ah_shows_where_it_leads(void **state)
{
	struct flue_ah_attr attr = FLUE_ATTR(struct flue_ah_attr);
	struct flue_pd *pd = qp->pd;
	struct flue_ah *ah;

	attr.remote = fake_address();
	attr.remote_len = sizeof(struct sockaddr_in);
	attr.hop_limit = 7;
	assert_fails(pd->ops->create_ah(pd, &attr), EOPNOTSUPP);
	to_adapter(a)->caps.features |= FLUE_FEATURE_UD;
	fake.later = true;
	ah = pd->ops->create_ah(pd, &attr);
	assert_non_null(ah);
	fake.later = false;
	assert_ptr_equal(ah->pd, pd);
	assert_non_null(ah->handle);
	assert_memory_equal(&ah->remote, fake_address(), sizeof(struct sockaddr_in));
	assert_int_equal(fake.ah.hop_limit, 7);
	assert_ptr_equal(fake.ah.remote, &ah->remote);
	assert_fails(flue_destroy_pd(pd), EBUSY);
	fake.rc.destroy_ah = -EIO;
	assert_fails(ah->ops->destroy(ah), EIO);
	fake.rc.destroy_ah = 0;
	assert_true(ah->ops->destroy(ah));
	fake.rc.ah = -EHOSTUNREACH;
	assert_fails(pd->ops->create_ah(pd, &attr), EHOSTUNREACH);
	attr.remote_len = 3;
	assert_fails(pd->ops->create_ah(pd, &attr), EINVAL);
	assert_fails(pd->ops->create_ah(pd, NULL), EINVAL);
}

#define WITH_QP(test) cmocka_unit_test_setup_teardown(test, make, drop)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH_QP(qp_kinds_need_the_adapters_feature),
		WITH_QP(values_reach_the_provider),
		WITH_QP(impossible_values_are_refused),
		WITH_QP(values_are_told_as_far_as_the_program_knows_them),
		WITH_QP(paths_are_filled_where_the_program_has_them),
		WITH_QP(paths_are_copied_before_the_provider_sees_them),
		WITH_QP(states_are_reached_by_the_calls_of_that_name),
		WITH_QP(states_that_cannot_follow_are_refused),
		WITH_QP(other_values_change_only_where_nothing_ends),
		WITH_QP(ah_shows_where_it_leads),
		WITH_QP(ah_refuses_an_address_that_is_too_long),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
