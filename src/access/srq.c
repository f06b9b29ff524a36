/* SPDX-License-Identifier: MIT */
/* Shared receive queues. */
#include <stdlib.h>
#include <string.h>

#include "access/access_priv.h"

static bool acc_srq_destroy(struct flue_srq *pub)
{
	CANCEL_HELD;
	struct acc_srq *srq = to_srq(pub);
	struct acc_op own, *op;
	int rc;

	if (atomic_load(&srq->children))
		return acc_ok(-EBUSY);
	op = acc_op_begin(&own);
	rc = acc_op_result(to_adapter(pub->pd->adapter), op,
			   srq->ops->destroy_srq(srq->prov, &op->base), srq);
	if (rc && rc != -ETIMEDOUT)
		return acc_ok(rc);
	if (rc)
		acc_source_mute(&srq->source);
	acc_source_fini(&srq->source);
	atomic_fetch_sub(&to_pd(pub->pd)->children, 1);
	if (!rc)
		free(srq);
	return acc_ok(rc);
}

static bool srq_post_recv(struct flue_srq *pub, const struct flue_recv_wr *wr,
			  const struct flue_recv_wr **bad)
{
	CANCEL_HELD;
	struct acc_srq *srq = to_srq(pub);
	const struct flue_recv_wr *unused;
	int rc = acc_usable(srq->source.adapter);

	if (!bad)
		bad = &unused;
	*bad = wr;
	return acc_ok(rc ? rc : srq->ops->post_srq(srq->prov, wr, bad));
}

static bool srq_arm_limit(struct flue_srq *pub, uint32_t limit)
{
	CANCEL_HELD;
	struct acc_srq *srq = to_srq(pub);
	bool before;
	int rc = acc_usable(srq->source.adapter);

	if (!rc && limit > pub->depth)
		rc = -EINVAL;
	if (rc)
		return acc_ok(rc);
	/* First, because the event may come before the slot returns. */
	before = atomic_exchange(&srq->armed, limit > 0);
	rc = srq->ops->arm_srq(srq->prov, limit);
	if (rc)
		atomic_store(&srq->armed, before);
	return acc_ok(rc);
}

static int check_values(const struct acc_adapter *a, const struct flue_srq *srq,
			const struct flue_srq_values *v, uint32_t mask)
{
	uint32_t depth = mask & FLUE_SRQV_DEPTH ? v->depth : srq->depth;

	if (!mask || mask & ~(uint32_t)(FLUE_SRQV_DEPTH | FLUE_SRQV_LIMIT))
		return -EINVAL;
	if (!depth || depth > a->caps.max_srq_depth)
		return -EINVAL;
	if (mask & FLUE_SRQV_LIMIT && v->limit > depth)
		return -EINVAL;
	if (mask & FLUE_SRQV_DEPTH && !(a->caps.features & FLUE_FEATURE_SRQ_RESIZE))
		return -EOPNOTSUPP;
	return 0;
}

static bool srq_modify(struct flue_srq *pub, const struct flue_srq_values *from, uint32_t mask)
{
	CANCEL_HELD;
	struct acc_srq *srq = to_srq(pub);
	struct acc_adapter *a = srq->source.adapter;
	struct acc_op own, *op = acc_op_begin(&own);
	bool before = false;
	int rc = acc_usable(a);

	if (!rc)
		rc = acc_attr_copy(&op->attr.srq, sizeof(op->attr.srq), from,
				   ACC_ATTR_SIZE(struct flue_srq_values, receives));
	if (!rc)
		rc = check_values(a, pub, &op->attr.srq, mask);
	if (rc) {
		acc_op_end(op);
		return acc_ok(rc);
	}
	/* First, because the event may come before the slot returns. */
	if (mask & FLUE_SRQV_LIMIT)
		before = atomic_exchange(&srq->armed, op->attr.srq.limit > 0);
	rc = acc_op_wait(a, op, srq->ops->modify_srq(srq->prov, &op->attr.srq, mask, &op->base),
			 NULL);
	if (rc && mask & FLUE_SRQV_LIMIT)
		atomic_store(&srq->armed, before);
	if (!rc && mask & FLUE_SRQV_DEPTH)
		pub->depth = op->attr.srq.depth;
	acc_op_end(op);
	return acc_ok(rc);
}

static bool srq_query(struct flue_srq *pub, struct flue_srq_values *values, uint32_t mask)
{
	CANCEL_HELD;
	const uint32_t all = FLUE_SRQV_DEPTH | FLUE_SRQV_LIMIT | FLUE_SRQV_WORK;
	struct acc_srq *srq = to_srq(pub);
	struct acc_adapter *a = srq->source.adapter;
	struct acc_op own, *op;
	int rc = acc_usable(a);

	if (!rc && (!values || values->size < ACC_ATTR_SIZE(struct flue_srq_values, receives) ||
		    !mask || mask & ~all))
		rc = -EINVAL;
	if (rc)
		return acc_ok(rc);
	op = acc_op_begin(&own);
	rc = acc_op_wait(a, op, srq->ops->query_srq(srq->prov, &op->attr.srq, &op->base), NULL);
	if (!rc) {
		op->attr.srq.size = values->size < sizeof(op->attr.srq) ? values->size
									: sizeof(op->attr.srq);
		memcpy(values, &op->attr.srq, op->attr.srq.size);
	}
	acc_op_end(op);
	return acc_ok(rc);
}

static const struct flue_srq_ops srq_ops = {
	.size = sizeof(srq_ops),
	.destroy = acc_srq_destroy,
	.post_recv = srq_post_recv,
	.arm_limit = srq_arm_limit,
	.modify = srq_modify,
	.query = srq_query,
};

void acc_srq_limit(void *srq_owner)
{
	struct acc_srq *srq = srq_owner;
	struct flue_event ev = { .type = FLUE_EVENT_SRQ_LIMIT };

	if (atomic_exchange(&srq->armed, false))
		acc_event_raise(&srq->source, &ev);
}

struct flue_srq *acc_srq_create(struct flue_pd *pd, const struct flue_srq_attr *from)
{
	CANCEL_HELD;
	struct acc_adapter *a = to_adapter(pd->adapter);
	struct flue_srq_attr attr;
	struct acc_srq *srq;
	struct acc_op *op;
	int rc = acc_usable(a);

	if (!rc)
		rc = acc_attr_copy(&attr, sizeof(attr), from,
				   ACC_ATTR_SIZE(struct flue_srq_attr, max_sge));
	if (rc)
		return acc_null(rc);
	if (!attr.max_sge)
		attr.max_sge = 1;
	if (!attr.depth || attr.depth > a->caps.max_srq_depth || attr.max_sge > a->caps.max_sge)
		return acc_null(-EINVAL);
	srq = calloc(1, sizeof(*srq));
	op = acc_op_new();
	if (!srq || !op) {
		free(srq);
		free(op);
		return acc_null(-ENOMEM);
	}
	srq->pub.ops = &srq_ops;
	srq->pub.pd = pd;
	srq->pub.depth = attr.depth;
	srq->pub.max_sge = attr.max_sge;
	srq->ops = a->ops;
	acc_source_init(&srq->source, a, &srq->pub, NULL, NULL);
	acc_source_add(&srq->source, &srq->slot);
	rc = acc_op_result(a, op,
			   a->ops->create_srq(to_pd(pd)->prov, attr.depth, attr.max_sge, srq,
					      &srq->prov, &op->base),
			   srq);
	if (rc && rc != -ETIMEDOUT)
		free(srq);
	if (rc)
		return acc_null(rc);
	atomic_fetch_add(&to_pd(pd)->children, 1);
	return &srq->pub;
}
