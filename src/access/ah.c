/* SPDX-License-Identifier: MIT */
/* Address handles: where datagram queue pairs send to. */
#include <stdlib.h>

#include "access/access_priv.h"

struct acc_ah {
	struct flue_ah pub;
	struct prov_ah *prov;
	struct flue_ah_attr attr;
	struct sockaddr_storage local;
};

static bool ah_destroy(struct flue_ah *pub)
{
	CANCEL_HELD;
	struct acc_ah *ah = (struct acc_ah *)pub;
	struct acc_adapter *a = to_adapter(pub->pd->adapter);
	struct acc_op own, *op = acc_op_begin(&own);
	int rc = acc_op_result(a, op, a->ops->destroy_ah(ah->prov, &op->base), ah);

	if (rc && rc != -ETIMEDOUT)
		return acc_ok(rc);
	atomic_fetch_sub(&to_pd(pub->pd)->children, 1);
	if (!rc)
		free(ah);
	return acc_ok(rc);
}

static const struct flue_ah_ops ah_ops = {
	.size = sizeof(ah_ops),
	.destroy = ah_destroy,
};

static int check_ah(const struct acc_adapter *a, const struct flue_ah_attr *attr)
{
	int rc = acc_check_path(attr);

	return !rc && !(a->caps.features & FLUE_FEATURE_UD) ? -EOPNOTSUPP : rc;
}

/* What it points to lives as long as the handle: a provider may answer late. */
static void keep(struct acc_ah *ah, const struct flue_ah_attr *attr)
{
	ah->attr = *attr;
	memcpy(&ah->pub.remote, attr->remote, attr->remote_len);
	ah->attr.remote = (struct sockaddr *)&ah->pub.remote;
	if (!attr->local)
		return;
	memcpy(&ah->local, attr->local, attr->local_len);
	ah->attr.local = (struct sockaddr *)&ah->local;
}

struct flue_ah *acc_ah_create(struct flue_pd *pd, const struct flue_ah_attr *from)
{
	CANCEL_HELD;
	struct acc_adapter *a = to_adapter(pd->adapter);
	struct flue_ah_attr attr;
	struct acc_ah *ah;
	struct acc_op *op;
	int rc = acc_usable(a);

	if (!rc)
		rc = acc_attr_copy(&attr, sizeof(attr), from,
				   ACC_ATTR_SIZE(struct flue_ah_attr, sl));
	if (!rc)
		rc = check_ah(a, &attr);
	if (rc)
		return acc_null(rc);
	ah = calloc(1, sizeof(*ah));
	op = acc_op_new();
	if (!ah || !op) {
		free(ah);
		free(op);
		return acc_null(-ENOMEM);
	}
	ah->pub.ops = &ah_ops;
	ah->pub.pd = pd;
	keep(ah, &attr);
	rc = acc_op_result(a, op,
			   a->ops->create_ah(to_pd(pd)->prov, &ah->attr, &ah->prov, &op->base), ah);
	if (rc && rc != -ETIMEDOUT)
		free(ah);
	if (rc)
		return acc_null(rc);
	ah->pub.handle = ah->prov;
	atomic_fetch_add(&to_pd(pd)->children, 1);
	return &ah->pub;
}
