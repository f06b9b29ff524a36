/* SPDX-License-Identifier: MIT */
/* Queue pairs: making, destroying and posting. How they are connected is in conn.c. */
#include <stdlib.h>

#include "access/access_priv.h"

static void count_users(struct acc_qp *qp, int delta)
{
	struct flue_qp *pub = &qp->pub;
	struct acc_adapter *a = to_adapter(pub->pd->adapter);

	atomic_fetch_add(&to_pd(pub->pd)->children, (unsigned)delta);
	atomic_fetch_add(&to_cq(pub->send_cq)->children, (unsigned)delta);
	atomic_fetch_add(&to_cq(pub->recv_cq)->children, (unsigned)delta);
	if (pub->srq)
		atomic_fetch_add(&to_srq(pub->srq)->children, (unsigned)delta);
	acc_completion_count_qp(a, to_cq(pub->recv_cq)->cpu, delta);
}

static bool acc_qp_destroy(struct flue_qp *pub)
{
	CANCEL_HELD;
	struct acc_qp *qp = to_qp(pub);
	struct acc_adapter *a = to_adapter(pub->pd->adapter);
	struct acc_op own, *op;
	int rc;

	/* Also from on_completion() of one of its own completions. */
	if (acc_in_callback(qp))
		return acc_ok(-EDEADLK);
	if (qp->hear && !acc_inherited(a))
		return acc_ok(-EBUSY);
	op = acc_op_begin(&own);
	rc = acc_op_result(a, op, qp->ops->destroy_qp(qp->prov, &op->base), qp);
	if (rc && rc != -ETIMEDOUT)
		return acc_ok(rc);
	if (rc)
		acc_source_mute(&qp->source);
	acc_conn_forget_private(qp);
	if (!acc_inherited(a)) {
		acc_cq_pass(to_cq(pub->send_cq));
		acc_cq_pass(to_cq(pub->recv_cq));
	}
	acc_source_fini(&qp->source);
	count_users(qp, -1);
	if (!rc)
		free(qp);
	return acc_ok(rc);
}

static bool acc_qp_post_send(struct flue_qp *pub, const struct flue_send_wr *wr,
			     const struct flue_send_wr **bad)
{
	CANCEL_HELD;
	struct acc_qp *qp = to_qp(pub);
	const struct flue_send_wr *unused;
	int rc = acc_usable(qp->source.adapter);

	if (!bad)
		bad = &unused;
	*bad = wr;
	return acc_ok(rc ? rc : qp->ops->post_send(qp->prov, wr, bad));
}

static bool acc_qp_post_recv(struct flue_qp *pub, const struct flue_recv_wr *wr,
			     const struct flue_recv_wr **bad)
{
	CANCEL_HELD;
	struct acc_qp *qp = to_qp(pub);
	const struct flue_recv_wr *unused;
	int rc = acc_usable(qp->source.adapter);

	if (!bad)
		bad = &unused;
	*bad = wr;
	return acc_ok(rc ? rc : qp->ops->post_recv(qp->prov, wr, bad));
}

/* Only datagrams have groups. */
static int check_group(const struct acc_qp *qp, struct flue_ah_attr *to,
		       const struct flue_ah_attr *from)
{
	int rc = acc_usable(qp->source.adapter);

	if (!rc)
		rc = acc_attr_copy(to, sizeof(*to), from, ACC_ATTR_SIZE(struct flue_ah_attr, sl));
	if (!rc)
		rc = acc_check_path(to);
	return !rc && qp->pub.type != FLUE_QP_UD ? -EINVAL : rc;
}

static bool acc_qp_join_group(struct flue_qp *pub, const struct flue_ah_attr *from)
{
	CANCEL_HELD;
	struct acc_qp *qp = to_qp(pub);
	struct flue_ah_attr group;
	int rc = check_group(qp, &group, from);

	return acc_ok(rc ? rc : qp->ops->join_group(qp->prov, &group));
}

static bool acc_qp_leave_group(struct flue_qp *pub, const struct flue_ah_attr *from)
{
	CANCEL_HELD;
	struct acc_qp *qp = to_qp(pub);
	struct flue_ah_attr group;
	int rc = check_group(qp, &group, from);

	return acc_ok(rc ? rc : qp->ops->leave_group(qp->prov, &group));
}

static const struct flue_qp_ops qp_ops = {
	.size = sizeof(qp_ops),
	.destroy = acc_qp_destroy,
	.post_send = acc_qp_post_send,
	.post_recv = acc_qp_post_recv,
	.connect = acc_conn_connect,
	.start = acc_conn_start,
	.disconnect = acc_conn_disconnect,
	.abort = acc_conn_abort,
	.reset = acc_conn_reset,
	.terminate = acc_conn_terminate,
	.modify = acc_qp_modify,
	.query = acc_qp_query,
	.join_group = acc_qp_join_group,
	.leave_group = acc_qp_leave_group,
};

/* What not every adapter can do. */
static int check_kind(const struct flue_caps *caps, const struct flue_qp_attr *attr)
{
	static const uint32_t types[FLUE_QP_NTYPES] = {
		[FLUE_QP_UC] = FLUE_FEATURE_UC, [FLUE_QP_UD] = FLUE_FEATURE_UD
	};
	uint32_t need;

	if (attr->type >= FLUE_QP_NTYPES || attr->flags & ~(2 * (uint32_t)FLUE_QP_BRINGUP - 1))
		return -EINVAL;
	need = types[attr->type];
	if (attr->flags & FLUE_QP_POST_EARLY)
		need |= FLUE_FEATURE_POST_EARLY;
	if (attr->flags & FLUE_QP_BRINGUP)
		need |= FLUE_FEATURE_MODIFY;
	return need & ~caps->features ? -EOPNOTSUPP : 0;
}

static int check_qp(const struct flue_pd *pd, const struct flue_qp_attr *attr)
{
	const struct flue_caps *caps = pd->adapter->caps;

	if (!attr->send_cq || !attr->recv_cq)
		return -EINVAL;
	if (attr->send_cq->adapter != pd->adapter || attr->recv_cq->adapter != pd->adapter)
		return -EINVAL;
	if (attr->srq && attr->srq->pd->adapter != pd->adapter)
		return -EINVAL;
	if (!attr->sq_depth || attr->sq_depth > caps->max_sq_depth)
		return -EINVAL;
	if (!attr->srq && attr->rq_depth > caps->max_rq_depth)
		return -EINVAL;
	if (attr->sq_sge > caps->max_sge || attr->rq_sge > caps->max_sge)
		return -EINVAL;
	if (attr->max_inline > caps->max_inline)
		return -EINVAL;
	return check_kind(caps, attr);
}

static struct acc_qp *new_qp(struct flue_pd *pd, const struct flue_qp_attr *attr)
{
	struct acc_adapter *a = to_adapter(pd->adapter);
	uint32_t events = attr->on_event ? 0 : acc_qp_events(attr->srq);
	struct acc_qp *qp = calloc(1, sizeof(*qp) + events * sizeof(struct acc_slot));

	if (!qp)
		return NULL;
	qp->pub.ops = &qp_ops;
	qp->pub.pd = pd;
	qp->pub.send_cq = attr->send_cq;
	qp->pub.recv_cq = attr->recv_cq;
	qp->pub.srq = attr->srq;
	qp->pub.state = FLUE_QP_IDLE;
	qp->pub.type = attr->type;
	qp->pub.sq_depth = attr->sq_depth;
	qp->pub.rq_depth = attr->srq ? 0 : attr->rq_depth;
	qp->pub.sq_sge = attr->sq_sge ? attr->sq_sge : 1;
	qp->pub.rq_sge = attr->rq_sge ? attr->rq_sge : 1;
	qp->pub.max_inline = attr->max_inline;
	qp->ops = a->ops;
	qp->lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	qp->changed = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
	acc_source_init(&qp->source, a, &qp->pub, attr->on_event, attr->event_arg);
	for (uint32_t i = 0; i < events; i++)
		acc_source_add(&qp->source, &qp->slots[i]);
	return qp;
}

struct flue_qp *acc_qp_create(struct flue_pd *pd, const struct flue_qp_attr *from)
{
	CANCEL_HELD;
	struct acc_adapter *a = to_adapter(pd->adapter);
	struct prov_qp_attr attr = { .pd = to_pd(pd)->prov };
	struct flue_qp_attr copy;
	struct acc_qp *qp;
	struct acc_op *op;
	int rc = acc_usable(a);

	if (!rc)
		rc = acc_attr_copy(&copy, sizeof(copy), from,
				   ACC_ATTR_SIZE(struct flue_qp_attr, type));
	if (!rc)
		rc = check_qp(pd, &copy);
	if (rc)
		return acc_null(rc);
	qp = new_qp(pd, &copy);
	op = acc_op_new();
	if (!qp || !op) {
		free(qp);
		free(op);
		return acc_null(-ENOMEM);
	}
	attr.send_cq = to_cq(copy.send_cq)->prov;
	attr.recv_cq = to_cq(copy.recv_cq)->prov;
	attr.srq = copy.srq ? to_srq(copy.srq)->prov : NULL;
	attr.sq_depth = qp->pub.sq_depth;
	attr.rq_depth = qp->pub.rq_depth;
	attr.sq_sge = qp->pub.sq_sge;
	attr.rq_sge = qp->pub.rq_sge;
	attr.max_inline = qp->pub.max_inline;
	attr.type = copy.type;
	attr.signal_all = copy.flags & FLUE_QP_SIGNAL_ALL;
	attr.post_early = copy.flags & FLUE_QP_POST_EARLY;
	attr.bringup = copy.flags & FLUE_QP_BRINGUP;
	attr.state = &qp->pub.state;
	attr.owner = &qp->pub;
	op->attr.qp = attr;
	rc = acc_op_result(
		a, op, a->ops->create_qp(&op->attr.qp, &qp->prov, &qp->pub.number, &op->base), qp);
	if (rc && rc != -ETIMEDOUT)
		free(qp);
	if (rc)
		return acc_null(rc);
	count_users(qp, 1);
	return &qp->pub;
}
