/* SPDX-License-Identifier: MIT */
/*
 * Values of a queue pair: changing and asking. Which state can follow which is a table
 * (qp_states.def); what ends or resets a connection goes the same way as the calls of that name, so that
 * the program is told the same.
 */
#include "access/access_priv.h"

#define ALL_VALUES  (2 * (uint32_t)FLUE_QPV_QUEUES - 1)
#define ONLY_TOLD   ((uint32_t)(FLUE_QPV_WORK | FLUE_QPV_QUEUES))
#define ALL_REMOTES ((uint32_t)(FLUE_REMOTE_READ | FLUE_REMOTE_WRITE | FLUE_REMOTE_ATOMIC))

enum act { MISSING = 0, STAY, RESET, ERROR, CLOSE, TERM, ASK, BAD };

/* clang-format off */
static const uint8_t acts[FLUE_QP_NSTATES][FLUE_QP_NSTATES] = {
#define ROW(from, ...) [FLUE_QP_##from] = { __VA_ARGS__ },
#include "access/qp_states.def"
#undef ROW
};
enum {
	NROWS = 0
#define ROW(...) + 1
#include "access/qp_states.def"
#undef ROW
};
/* clang-format on */
_Static_assert((int)NROWS == (int)FLUE_QP_NSTATES, "list every state");
/* A row that is too long does not compile; one that is too short ends in MISSING. */

static int check_values(const struct acc_adapter *a, const struct flue_qp_values *v, uint32_t mask)
{
	if (!mask || mask & (~ALL_VALUES | ONLY_TOLD))
		return -EINVAL;
	if (mask & FLUE_QPV_STATE && v->state >= FLUE_QP_NSTATES)
		return -EINVAL;
	if (mask & FLUE_QPV_READS && (v->ird > a->caps.max_ird || v->ord > a->caps.max_ord))
		return -EINVAL;
	if (!(mask & FLUE_QPV_ACCESS))
		return 0;
	if (v->access & ~ALL_REMOTES)
		return -EINVAL;
	if (v->access & FLUE_REMOTE_ATOMIC && !(a->caps.features & FLUE_FEATURE_ATOMICS))
		return -EOPNOTSUPP;
	return 0;
}

static int ask(struct acc_qp *qp, const struct flue_qp_values *v, uint32_t mask)
{
	struct acc_op own, *op = acc_op_begin(&own);
	int rc;

	op->attr.values = *v;
	rc = acc_op_result(qp->source.adapter, op,
			   qp->ops->modify_qp(qp->prov, &op->attr.values, mask, &op->base), NULL);
	if (!rc && mask & FLUE_QPV_READS) {
		qp->pub.ird = v->ird;
		qp->pub.ord = v->ord;
	}
	return rc;
}

/* The calls that bring a queue pair to another state say by themselves how that went. */
static bool go(struct flue_qp *pub, enum act act)
{
	switch (act) {
	case RESET: return acc_conn_reset(pub);
	case ERROR: return acc_conn_abort(pub);
	case CLOSE: return acc_conn_disconnect(pub, -1);
	case TERM: return acc_conn_terminate(pub);
	default: return acc_ok(-EINVAL);
	}
}

bool acc_qp_modify(struct flue_qp *pub, const struct flue_qp_values *from, uint32_t mask)
{
	CANCEL_HELD;
	struct acc_qp *qp = to_qp(pub);
	struct flue_qp_values v;
	enum act act = STAY;
	int rc = acc_usable(qp->source.adapter);

	if (!rc)
		rc = acc_attr_copy(&v, sizeof(v), from,
				   ACC_ATTR_SIZE(struct flue_qp_values, max_inline));
	if (!rc)
		rc = check_values(qp->source.adapter, &v, mask);
	if (rc)
		return acc_ok(rc);
	if (mask & FLUE_QPV_STATE)
		act = acts[flue_qp_state(pub)][v.state];
	if (act == ASK)
		return acc_ok(ask(qp, &v, mask));
	mask &= ~(uint32_t)FLUE_QPV_STATE;
	if (act == STAY)
		return acc_ok(mask ? ask(qp, &v, mask) : 0);
	/* Where everything ends nothing can be changed on the way. */
	return mask ? acc_ok(-EINVAL) : go(pub, act);
}

int acc_qp_ask(struct acc_qp *qp, struct flue_qp_values *v, uint32_t mask)
{
	struct acc_op own, *op = acc_op_begin(&own);
	int rc = acc_op_wait(qp->source.adapter, op,
			     qp->ops->query_qp(qp->prov, &op->attr.values, mask, &op->base), NULL);

	if (!rc)
		*v = op->attr.values;
	acc_op_end(op);
	return rc;
}

bool acc_qp_query(struct flue_qp *pub, struct flue_qp_values *to, uint32_t mask)
{
	CANCEL_HELD;
	struct acc_qp *qp = to_qp(pub);
	struct flue_qp_values v = { 0 };
	int rc = acc_usable(qp->source.adapter);

	if (!rc && (!to || to->size < ACC_ATTR_SIZE(struct flue_qp_values, max_inline) || !mask ||
		    mask & ~ALL_VALUES))
		rc = -EINVAL;
	if (!rc && mask & ~(uint32_t)FLUE_QPV_QUEUES)
		rc = acc_qp_ask(qp, &v, mask & ~(uint32_t)FLUE_QPV_QUEUES);
	if (rc)
		return acc_ok(rc);
	v.size = to->size < sizeof(v) ? to->size : sizeof(v);
	v.sq_depth = pub->sq_depth;
	v.rq_depth = pub->rq_depth;
	v.sq_sge = pub->sq_sge;
	v.rq_sge = pub->rq_sge;
	v.max_inline = pub->max_inline;
	memcpy(to, &v, v.size);
	return true;
}
