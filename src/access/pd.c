/* SPDX-License-Identifier: MIT */
/* Protection domains. */
#include <stdlib.h>

#include "access/access_priv.h"

static bool pd_destroy(struct flue_pd *pub)
{
	CANCEL_HELD;
	struct acc_pd *pd = to_pd(pub);
	struct acc_adapter *a = to_adapter(pub->adapter);
	struct acc_op own, *op;
	int rc;

	if (atomic_load(&pd->children))
		return acc_ok(-EBUSY);
	op = acc_op_begin(&own);
	rc = acc_op_result(a, op, a->ops->destroy_pd(pd->prov, &op->base), pd);
	if (rc && rc != -ETIMEDOUT)
		return acc_ok(rc);
	atomic_fetch_sub(&a->children, 1);
	if (!rc)
		free(pd);
	return acc_ok(rc);
}

static const struct flue_pd_ops pd_ops = {
	.size = sizeof(pd_ops),
	.destroy = pd_destroy,
	.register_mr = acc_mr_register,
	.create_mw = acc_mw_create,
	.create_srq = acc_srq_create,
	.create_qp = acc_qp_create,
	.create_ah = acc_ah_create,
	.create_typed_mw = acc_mw_create_typed,
};

struct flue_pd *acc_pd_create(struct flue_adapter *adapter)
{
	CANCEL_HELD;
	struct acc_adapter *a = to_adapter(adapter);
	struct acc_pd *pd;
	struct acc_op *op;
	int rc = acc_usable(a);

	if (rc)
		return acc_null(rc);
	pd = calloc(1, sizeof(*pd));
	op = acc_op_new();
	if (!pd || !op) {
		free(pd);
		free(op);
		return acc_null(-ENOMEM);
	}
	pd->pub.ops = &pd_ops;
	pd->pub.adapter = adapter;
	rc = acc_op_result(a, op, a->ops->create_pd(a->prov, &pd->prov, &op->base), pd);
	if (rc && rc != -ETIMEDOUT)
		free(pd);
	if (rc)
		return acc_null(rc);
	atomic_fetch_add(&a->children, 1);
	return &pd->pub;
}
