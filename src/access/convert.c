/* SPDX-License-Identifier: MIT */
/* flue_socket_convert(): a live stream becomes a connection of the program's own queue pair. */
#include "access/access_priv.h"
#include "base/probe.h"
#include "access/stream.h"
#include "base/clock.h"

#define NO_SWITCH_FLAGS (FLUE_CONN_ASYNC | FLUE_CONN_DEFER | FLUE_CONN_FULL)
#define LOOK_FIRST_NS   50000
#define LOOK_MOST_NS    (4 * NSEC_PER_MSEC)

int acc_switch_attr(const struct acc_adapter *a, const struct flue_switch_attr *from,
		    struct flue_conn_attr *to)
{
	struct flue_conn_attr want = FLUE_ATTR(struct flue_conn_attr);
	uint32_t most = from->flags & FLUE_SWITCH_RESPONDER ? a->caps.max_private_reply
							    : a->caps.max_private_request;

	if (from->flags & ~(uint32_t)(FLUE_SWITCH_RESPONDER | FLUE_SWITCH_NO_REQ_REP) ||
	    from->conn_flags & NO_SWITCH_FLAGS)
		return -EINVAL;
	if (from->early_len > FLUE_SWITCH_EARLY_MAX || (from->early_len && !from->early))
		return -EINVAL;
	if (from->flags & FLUE_SWITCH_NO_REQ_REP && from->private_len)
		return -EINVAL;
	want.flags = from->conn_flags;
	want.timeout_ms = from->timeout_ms;
	want.private_data = from->private_data;
	want.private_len = from->private_len;
	want.ird = from->ird;
	want.ord = from->ord;
	want.fpdu_max = from->fpdu_max;
	return acc_conn_attr(a, to, &want, acc_private_max(a, from->conn_flags, most));
}

int acc_conn_adopt(struct acc_qp *qp, const struct prov_stream *stream,
		   const struct flue_conn_attr *attr)
{
	int rc = acc_conn_begin(qp, attr, NULL, 0);

	if (rc)
		return rc;
	return acc_conn_finish(qp, attr, qp->ops->adopt_stream(qp->prov, stream, attr));
}

/* Sleeps until the peer's TCP has acknowledged everything. The kernel has no event for that. */
static int await_drained(int fd, uint64_t deadline)
{
	struct timespec pause = { .tv_nsec = LOOK_FIRST_NS };
	int n;

	while ((n = acc_stream_unacked(fd)) > 0) {
		if (clock_now() >= deadline)
			return -ETIMEDOUT;
		nanosleep(&pause, NULL);
		if ((uint64_t)pause.tv_nsec * 2 <= LOOK_MOST_NS)
			pause.tv_nsec *= 2;
	}
	return n;
}

static bool nothing_happened(int rc)
{
	return rc == -EINVAL || rc == -EISCONN || rc == -EOPNOTSUPP || rc == -EDEADLK;
}

static int convert(struct acc_qp *qp, int fd, const struct flue_switch_attr *sw,
		   struct flue_conn_attr *attr)
{
	struct prov_stream stream = { .fd = fd,
				      .initiator = !(sw->flags & FLUE_SWITCH_RESPONDER),
				      .raw = sw->flags & FLUE_SWITCH_NO_REQ_REP,
				      .early = sw->early,
				      .early_len = sw->early_len };
	uint64_t deadline = clock_now() + (uint64_t)attr->timeout_ms * NSEC_PER_MSEC, now;
	int rc;

	acc_stream_ack_now(fd);
	rc = await_drained(fd, deadline);
	if (rc == 0) {
		now = clock_now();
		attr->timeout_ms = now < deadline ? (int)((deadline - now) / NSEC_PER_MSEC) + 1 : 1;
		rc = acc_conn_begin(qp, attr, NULL, 0);
	}
	if (rc == 0) {
		rc = qp->ops->adopt_stream(qp->prov, &stream, attr);
		if (rc == 0) {
			rc = acc_conn_finish(qp, attr, 0);
			/* The descriptor is gone, and the program must be able to tell. */
			return nothing_happened(rc) ? -EPROTO : rc;
		}
		acc_conn_finish(qp, attr, rc);
	}
	if (!nothing_happened(rc))
		acc_stream_reset(fd);
	return rc;
}

bool flue_socket_convert(struct flue_qp *pub, int fd, const struct flue_switch_attr *from)
{
	CANCEL_HELD;
	struct acc_qp *qp = to_qp(pub);
	struct acc_adapter *a = to_adapter(pub->pd->adapter);
	struct flue_switch_attr sw;
	struct flue_conn_attr attr;
	int rc = acc_usable(a);

	if (!rc)
		rc = acc_attr_copy(&sw, sizeof(sw), from,
				   ACC_ATTR_SIZE(struct flue_switch_attr, fpdu_max));
	if (!rc)
		rc = acc_switch_attr(a, &sw, &attr);
	if (!rc && !(a->caps.features & FLUE_FEATURE_ADOPT_STREAM))
		rc = -EOPNOTSUPP;
	if (!rc && acc_in_callback(NULL))
		rc = -EDEADLK;
	if (!rc && flue_qp_state(pub) != FLUE_QP_IDLE)
		rc = -EISCONN;
	if (!rc)
		rc = acc_stream_check(fd);
	if (!rc)
		rc = convert(qp, fd, &sw, &attr);
	PROBE(conversion, fd, pub, rc);
	if (rc)
		log_error(chimney, "descriptor %d is not converted for queue pair %u: %s", fd,
			  pub->number, log_errno(rc));
	else
		log_info(chimney, "descriptor %d is converted: queue pair %u", fd, pub->number);
	return acc_ok(rc);
}
