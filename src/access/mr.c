/* SPDX-License-Identifier: MIT */
/*
 * Memory regions and windows (RD-3, WN-1). All that a program may want to know of a region is in
 * its public structure, so modify() has to rewrite it, and only once the provider has agreed. What
 * requests change, the provider rewrites itself.
 */
#include <stdlib.h>

#include "access/access_priv.h"

#define ALL_ACCESS (2 * (uint32_t)FLUE_REMOTE_ATOMIC - 1)
#define CHANGES    (FLUE_REMOTE_WRITE | FLUE_REMOTE_ATOMIC) /* these need FLUE_LOCAL_WRITE */
#define PARTS      (FLUE_MR_RANGE | FLUE_MR_ACCESS | FLUE_MR_PD)

/* What an adapter need not be able to do. */
static const struct {
	uint32_t access, feature;
} wanted[] = {
	{ FLUE_ZERO_BASED, FLUE_FEATURE_ZERO_BASED },
	{ FLUE_IOVA, FLUE_FEATURE_IOVA },
	{ FLUE_REMOTE_INVALIDATE, FLUE_FEATURE_REMOTE_INVALIDATE },
	{ FLUE_BIND_WINDOW, FLUE_FEATURE_WINDOWS },
	{ FLUE_REMOTE_ATOMIC, FLUE_FEATURE_ATOMICS },
};

struct acc_mr {
	struct flue_mr pub;
	struct prov_mr *prov;
};

struct acc_mw {
	struct flue_mw pub;
	struct prov_mw *prov;
};

static struct acc_adapter *adapter_of(struct flue_pd *pd)
{
	return to_adapter(pd->adapter);
}

static bool has(const struct acc_adapter *a, uint32_t feature)
{
	return a->caps.features & feature;
}

/* The last octet must have an address; the first one past it need not. */
static bool wraps(uint64_t start, uint64_t length)
{
	return start + (length - 1) < start;
}

static int check_access(const struct acc_adapter *a, uint32_t access)
{
	if (access & ~ALL_ACCESS)
		return -EINVAL;
	if (access & CHANGES && !(access & FLUE_LOCAL_WRITE))
		return -EINVAL;
	if (access & FLUE_IOVA && access & FLUE_ZERO_BASED)
		return -EINVAL;
	for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++)
		if (access & wanted[i].access && !has(a, wanted[i].feature))
			return -EOPNOTSUPP;
	return 0;
}

static int check_mr(const struct acc_adapter *a, const struct prov_mr_attr *attr)
{
	if (!attr->length || attr->length > a->caps.max_mr_length)
		return -EINVAL;
	if (wraps((uintptr_t)attr->addr, attr->length) || wraps(attr->start, attr->length))
		return -EINVAL;
	return check_access(a, attr->access);
}

static uint64_t start_of(const void *addr, uint32_t access, uint64_t iova)
{
	if (access & FLUE_IOVA)
		return iova;
	return access & FLUE_ZERO_BASED ? 0 : (uintptr_t)addr;
}

static void show(struct flue_mr *mr, const struct prov_mr_attr *attr, const struct prov_keys *keys)
{
	mr->addr = attr->addr;
	mr->length = attr->length;
	mr->access = attr->access;
	mr->remote_start = attr->start;
	mr->remote_end = attr->start + attr->length;
	mr->lkey = keys->lkey;
	mr->rkey = keys->rkey;
}

static bool mr_deregister(struct flue_mr *pub)
{
	CANCEL_HELD;
	struct acc_mr *mr = (struct acc_mr *)pub;
	struct acc_adapter *a = adapter_of(pub->pd);
	struct acc_op own, *op = acc_op_begin(&own);
	int rc = acc_op_result(a, op, a->ops->deregister_mr(mr->prov, &op->base), mr);

	if (rc && rc != -ETIMEDOUT)
		return acc_ok(rc);
	atomic_fetch_sub(&to_pd(pub->pd)->children, 1);
	if (!rc)
		free(mr);
	return acc_ok(rc);
}

/* The region as it will be: `what` says which parts are new. */
static int compose(const struct flue_mr *mr, uint32_t what, const struct flue_mr_attr *from,
		   struct flue_pd *pd, struct prov_mr_attr *to)
{
	struct flue_mr_attr attr;
	uint64_t iova = mr->remote_start;

	if (what & ~(uint32_t)(PARTS | FLUE_MR_KEEP_KEYS) || !(what & PARTS))
		return -EINVAL;
	if (what & FLUE_MR_KEEP_KEYS && !has(adapter_of(mr->pd), FLUE_FEATURE_KEEP_KEYS))
		return -EOPNOTSUPP;
	to->pd = to_pd(mr->pd)->prov;
	to->addr = mr->addr;
	to->length = mr->length;
	to->access = mr->access;
	if (what & (FLUE_MR_RANGE | FLUE_MR_ACCESS)) {
		if (acc_attr_copy(&attr, sizeof(attr), from,
				  ACC_ATTR_SIZE(struct flue_mr_attr, iova)))
			return -EINVAL;
		iova = attr.iova;
		if (what & FLUE_MR_RANGE) {
			to->addr = attr.addr;
			to->length = attr.length;
		}
		if (what & FLUE_MR_ACCESS)
			to->access = attr.access;
	}
	to->start = start_of(to->addr, to->access, iova);
	if (what & FLUE_MR_PD) {
		if (!pd)
			return -EINVAL;
		if (pd->adapter != mr->pd->adapter)
			return -EXDEV;
		to->pd = to_pd(pd)->prov;
	}
	return check_mr(adapter_of(mr->pd), to);
}

static bool mr_modify(struct flue_mr *pub, uint32_t what, const struct flue_mr_attr *from,
		      struct flue_pd *pd)
{
	CANCEL_HELD;
	struct acc_mr *mr = (struct acc_mr *)pub;
	struct acc_adapter *a = adapter_of(pub->pd);
	struct acc_op own, *op = acc_op_begin(&own);
	int rc = acc_usable(a);

	if (!rc)
		rc = compose(pub, what, from, pd, &op->attr.mr);
	if (!rc)
		rc = acc_op_wait(a, op,
				 a->ops->modify_mr(mr->prov, what, &op->attr.mr, &op->keys,
						   &op->base),
				 NULL);
	if (!rc)
		show(pub, &op->attr.mr, &op->keys);
	acc_op_end(op);
	if (rc)
		return acc_ok(rc);
	if (what & FLUE_MR_PD) {
		atomic_fetch_add(&to_pd(pd)->children, 1);
		atomic_fetch_sub(&to_pd(pub->pd)->children, 1);
		pub->pd = pd;
	}
	return true;
}

static const struct flue_mr_ops mr_ops = {
	.size = sizeof(mr_ops),
	.deregister = mr_deregister,
	.modify = mr_modify,
};

/* -ETIMEDOUT: the region is not ours any more. */
static int enter(struct acc_adapter *a, struct acc_mr *mr, const struct prov_mr_attr *attr)
{
	struct acc_op *op = acc_op_new();
	int rc;

	if (!op)
		return -ENOMEM;
	op->attr.mr = *attr;
	rc = acc_op_wait(a, op, a->ops->register_mr(&op->attr.mr, &mr->prov, &op->keys, &op->base),
			 mr);
	if (!rc)
		show(&mr->pub, attr, &op->keys);
	acc_op_end(op);
	return rc;
}

struct flue_mr *acc_mr_register(struct flue_pd *pd, const struct flue_mr_attr *from)
{
	CANCEL_HELD;
	struct acc_adapter *a = adapter_of(pd);
	struct prov_mr_attr attr = { .pd = to_pd(pd)->prov };
	struct flue_mr_attr copy;
	struct acc_mr *mr;
	int rc = acc_usable(a);

	if (!rc)
		rc = acc_attr_copy(&copy, sizeof(copy), from,
				   ACC_ATTR_SIZE(struct flue_mr_attr, iova));
	if (rc)
		return acc_null(rc);
	attr.addr = copy.addr;
	attr.length = copy.length;
	attr.access = copy.access;
	attr.revoked = copy.revoked;
	attr.start = start_of(copy.addr, copy.access, copy.iova);
	rc = check_mr(a, &attr);
	if (rc)
		return acc_null(rc);
	mr = calloc(1, sizeof(*mr));
	if (!mr)
		return acc_null(-ENOMEM);
	mr->pub.ops = &mr_ops;
	mr->pub.pd = pd;
	attr.owner = &mr->pub;
	rc = enter(a, mr, &attr);
	if (rc && rc != -ETIMEDOUT)
		free(mr);
	if (rc)
		return acc_null(rc);
	atomic_fetch_add(&to_pd(pd)->children, 1);
	return &mr->pub;
}

static bool mw_destroy(struct flue_mw *pub)
{
	CANCEL_HELD;
	struct acc_mw *mw = (struct acc_mw *)pub;
	struct acc_adapter *a = adapter_of(pub->pd);
	struct acc_op own, *op = acc_op_begin(&own);
	int rc = acc_op_result(a, op, a->ops->destroy_mw(mw->prov, &op->base), mw);

	if (rc && rc != -ETIMEDOUT)
		return acc_ok(rc);
	atomic_fetch_sub(&to_pd(pub->pd)->children, 1);
	if (!rc)
		free(mw);
	return acc_ok(rc);
}

/* Is the part of its region that a window shall open inside of it, and has it the rights? */
static bool fits(const struct flue_mr *mr, const struct flue_bind_attr *attr)
{
	uint32_t rights = FLUE_REMOTE_READ | CHANGES;
	uint32_t need = FLUE_BIND_WINDOW |
			(attr->access & CHANGES ? (uint32_t)FLUE_LOCAL_WRITE : 0);

	return !(attr->access & ~rights) && (mr->access & need) == need &&
	       attr->addr >= mr->remote_start && attr->length <= mr->length &&
	       attr->addr - mr->remote_start <= mr->length - attr->length;
}

static int check_bind(const struct flue_mw *mw, const struct flue_qp *qp,
		      const struct flue_bind_attr *attr)
{
	if (mw->type != FLUE_MW_1 || !qp || qp->pd != mw->pd || qp->type == FLUE_QP_UD)
		return -EINVAL;
	if (!attr->mr)
		return attr->addr || attr->length ? -EINVAL : 0;
	if (attr->mr->pd != mw->pd || (attr->length && !fits(attr->mr, attr)))
		return -EINVAL;
	return 0;
}

static bool mw_bind(struct flue_mw *pub, struct flue_qp *qp, const struct flue_bind_attr *from)
{
	CANCEL_HELD;
	struct acc_adapter *a = adapter_of(pub->pd);
	struct flue_send_wr wr = { .op = FLUE_WR_BIND };
	struct flue_bind_attr attr;
	uint32_t rkey;
	int rc = acc_usable(a);

	if (!rc)
		rc = acc_attr_copy(&attr, sizeof(attr), from,
				   ACC_ATTR_SIZE(struct flue_bind_attr, length));
	if (!rc)
		rc = check_bind(pub, qp, &attr);
	if (rc)
		return acc_ok(rc);
	wr.id = attr.id;
	wr.flags = attr.flags;
	if (attr.mr && attr.length)
		wr.reg = (struct flue_reg) { .addr = attr.addr,
					     .length = attr.length,
					     .access = attr.access,
					     .lkey = attr.mr->lkey };
	rc = a->ops->bind_mw(((struct acc_mw *)pub)->prov, to_qp(qp)->prov, &wr, &rkey);
	if (!rc)
		pub->rkey = rkey;
	return acc_ok(rc);
}

static const struct flue_mw_ops mw_ops = {
	.size = sizeof(mw_ops),
	.destroy = mw_destroy,
	.bind = mw_bind,
};

struct flue_mw *acc_mw_create(struct flue_pd *pd)
{
	return acc_mw_create_typed(pd, FLUE_MW_2B);
}

struct flue_mw *acc_mw_create_typed(struct flue_pd *pd, uint32_t type)
{
	static const uint32_t features[FLUE_MW_NTYPES] = {
		[FLUE_MW_1] = FLUE_FEATURE_WINDOWS_1, [FLUE_MW_2A] = FLUE_FEATURE_WINDOWS_2A
	};
	CANCEL_HELD;
	struct acc_adapter *a = adapter_of(pd);
	struct acc_mw *mw;
	struct acc_op *op;
	int rc = acc_usable(a);

	if (!rc && type >= FLUE_MW_NTYPES)
		rc = -EINVAL;
	if (!rc && features[type] & ~a->caps.features)
		rc = -EOPNOTSUPP;
	if (rc)
		return acc_null(rc);
	mw = calloc(1, sizeof(*mw));
	op = acc_op_new();
	if (!mw || !op) {
		free(mw);
		free(op);
		return acc_null(-ENOMEM);
	}
	mw->pub.ops = &mw_ops;
	mw->pub.pd = pd;
	mw->pub.type = type;
	rc = acc_op_result(
		a, op,
		a->ops->create_mw(to_pd(pd)->prov, type, &mw->prov, &mw->pub.rkey, &op->base), mw);
	if (rc && rc != -ETIMEDOUT)
		free(mw);
	if (rc)
		return acc_null(rc);
	atomic_fetch_add(&to_pd(pd)->children, 1);
	return &mw->pub;
}
