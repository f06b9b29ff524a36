/* SPDX-License-Identifier: MIT */
/*
 * Values of a queue pair: changing and asking. Which state can follow which is a table
 * (qp_states.def); what ends or resets a connection goes the same way as the calls of that name, so that
 * the program is told the same.
 */
#include "access/access_priv.h"

#define ALL_VALUES (2 * (uint32_t)FLUE_QPV_DATAGRAMS - 1)
#define ONLY_TOLD                                                                      \
	((uint32_t)(FLUE_QPV_WORK | FLUE_QPV_QUEUES | FLUE_QPV_DROPS | FLUE_QPV_LINK | \
		    FLUE_QPV_DATAGRAMS))
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

/* The caller's structures, which may be gone when a provider answers late. */
static int keep_values(struct acc_op *op, const struct flue_qp_values *v, uint32_t mask)
{
	struct flue_qp_values *to = &op->attr.values;
	int rc = 0;

	*to = *v;
	to->path = mask & FLUE_QPV_PATH ? &op->path.attr : NULL;
	to->alt_path = mask & FLUE_QPV_ALT_PATH ? &op->alt_path.attr : NULL;
	if (to->path)
		rc = acc_path_copy(&op->path, v->path);
	if (!rc && to->alt_path)
		rc = acc_path_copy(&op->alt_path, v->alt_path);
	return rc;
}

static int ask(struct acc_qp *qp, const struct flue_qp_values *v, uint32_t mask)
{
	struct acc_op own, *op = acc_op_begin(&own);
	int rc = keep_values(op, v, mask);

	if (!rc)
		rc = qp->ops->modify_qp(qp->prov, &op->attr.values, mask, &op->base);
	rc = acc_op_result(qp->source.adapter, op, rc, NULL);
	if (!rc && mask & FLUE_QPV_READS) {
		qp->pub.ird = v->ird;
		qp->pub.ord = v->ord;
	}
	return rc;
}

/* With room for the events that may follow. */
static int go_asking(struct acc_qp *qp, const struct flue_qp_values *v, uint32_t mask)
{
	int rc = acc_source_reserve(&qp->source, ACC_EVENTS_PER_CONN);

	if (!rc && v->state == FLUE_QP_INIT) {
		pthread_mutex_lock(&qp->lock);
		qp->last_due = qp->pub.srq;
		pthread_mutex_unlock(&qp->lock);
	}
	return rc ? rc : ask(qp, v, mask);
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
		return acc_ok(go_asking(qp, &v, mask));
	mask &= ~(uint32_t)FLUE_QPV_STATE;
	if (act == STAY)
		return acc_ok(mask ? ask(qp, &v, mask) : 0);
	/* Where everything ends nothing can be changed on the way. */
	return mask ? acc_ok(-EINVAL) : go(pub, act);
}

static struct flue_ah_attr *lend_path(struct acc_path *path, bool wanted)
{
	path->attr.size = sizeof(path->attr);
	return wanted ? &path->attr : NULL;
}

/* As far as the caller knows it. */
static void tell_path(struct flue_ah_attr *to, const struct flue_ah_attr *from)
{
	size_t size = to->size < sizeof(*from) ? to->size : sizeof(*from);

	memcpy(to, from, size);
	to->size = size;
}

int acc_qp_ask(struct acc_qp *qp, struct flue_qp_values *v, uint32_t mask)
{
	struct acc_op own, *op = acc_op_begin(&own);
	struct flue_ah_attr *path = mask & FLUE_QPV_PATH ? v->path : NULL;
	struct flue_ah_attr *alt_path = mask & FLUE_QPV_ALT_PATH ? v->alt_path : NULL;
	struct flue_qp_values *now = &op->attr.values;
	int rc;

	now->path = lend_path(&op->path, path);
	now->alt_path = lend_path(&op->alt_path, alt_path);
	rc = acc_op_wait(qp->source.adapter, op, qp->ops->query_qp(qp->prov, now, mask, &op->base),
			 NULL);
	if (!rc) {
		*v = *now;
		if (path)
			tell_path(path, &op->path.attr);
		if (alt_path)
			tell_path(alt_path, &op->alt_path.attr);
	}
	acc_op_end(op);
	return rc;
}

static bool is_path(const struct flue_ah_attr *path)
{
	return !path || path->size >= ACC_ATTR_SIZE(struct flue_ah_attr, sl);
}

static int check_query(const struct flue_qp_values *to, uint32_t mask)
{
	if (!to || to->size < ACC_ATTR_SIZE(struct flue_qp_values, max_inline))
		return -EINVAL;
	if (!mask || mask & ~ALL_VALUES)
		return -EINVAL;
	if (mask & FLUE_QPV_PATH && !is_path(to->path))
		return -EINVAL;
	return mask & FLUE_QPV_ALT_PATH && !is_path(to->alt_path) ? -EINVAL : 0;
}

bool acc_qp_query(struct flue_qp *pub, struct flue_qp_values *to, uint32_t mask)
{
	CANCEL_HELD;
	struct acc_qp *qp = to_qp(pub);
	struct flue_qp_values v = { 0 };
	int rc = acc_usable(qp->source.adapter);

	if (!rc)
		rc = check_query(to, mask);
	if (rc)
		return acc_ok(rc);
	v.path = to->path;
	v.alt_path = to->alt_path;
	if (mask & ~(uint32_t)FLUE_QPV_QUEUES)
		rc = acc_qp_ask(qp, &v, mask & ~(uint32_t)FLUE_QPV_QUEUES);
	if (rc)
		return acc_ok(rc);
	v.path = to->path; /* they are the caller's */
	v.alt_path = to->alt_path;
	v.size = to->size < sizeof(v) ? to->size : sizeof(v);
	v.sq_depth = pub->sq_depth;
	v.rq_depth = pub->rq_depth;
	v.sq_sge = pub->sq_sge;
	v.rq_sge = pub->rq_sge;
	v.max_inline = pub->max_inline;
	memcpy(to, &v, v.size);
	return true;
}
