/* SPDX-License-Identifier: MIT */
/* Scenarios with data and with endings. */
#include <errno.h>

#include "torture/torture.h"

#define SMALL  100
#define LARGE  300000 /* more than a socket takes at once, so that transfers are cut */
#define ROUNDS 3

static bool carry(const struct pair_options *o, uint32_t size)
{
	struct pair p;
	bool ok = true;

	if (!pair_open(&p, o))
		return false;
	for (int i = 0; ok && i < ROUNDS; i++)
		ok = torture_flow(&p, size);
	return torture_close(&p, ok);
}

static bool carry_with(uint32_t size, uint32_t flags, uint32_t srq_depth)
{
	struct pair_options o = torture_options(size);

	o.conn_flags[0] |= flags;
	o.conn_flags[1] |= flags;
	o.srq_depth = srq_depth;
	return carry(&o, size);
}

static bool small_with_crc(void)
{
	return carry_with(SMALL, 0, 0);
}

static bool small_without_crc(void)
{
	return carry_with(SMALL, FLUE_CONN_NO_CRC, 0);
}

static bool small_with_markers(void)
{
	return carry_with(SMALL, FLUE_CONN_MARKERS, 0);
}

static bool small_with_srq(void)
{
	return carry_with(SMALL, 0, 8);
}

static bool small_over_ipv6(void)
{
	struct pair_options o = torture_options(SMALL);

	o.ipv6 = true;
	return carry(&o, SMALL);
}

static bool small_by_descriptor(void)
{
	struct pair_options o = torture_options(SMALL);
	struct pair p;
	bool ok = true;

	if (!pair_open(&p, &o))
		return false;
	/* Beforehand, because a flow cannot do without them. */
	if (p.a.recv_cq->ops->fd(p.a.recv_cq) < 0 || p.b.recv_cq->ops->fd(p.b.recv_cq) < 0)
		return torture_close(&p, false);
	for (int i = 0; ok && i < ROUNDS; i++)
		ok = torture_flow_by_descriptor(&p, SMALL);
	return torture_close(&p, ok);
}

static bool small_in_one_adapter(void)
{
	struct pair_options o = torture_options(SMALL);
	struct flue_wc wc;
	struct pair p;
	bool ok;

	o.one_adapter = true;
	if (!pair_open(&p, &o))
		return false;
	/* The two ends share a queue of events, which a flow does not expect. */
	ok = pair_recv(&p.b, 0, SMALL, 1) && pair_send(&p.a, 0, SMALL, 2, FLUE_SIGNALED) &&
	     pair_take(p.b.recv_cq, &wc, 1, TORTURE_PATIENCE_MS) == 1 &&
	     wc.status == FLUE_WC_SUCCESS;
	errno = ECONNRESET;
	return torture_close(&p, ok);
}

static bool large_with_crc(void)
{
	return carry_with(LARGE, 0, 0);
}

static bool large_without_crc(void)
{
	return carry_with(LARGE, FLUE_CONN_NO_CRC, 0);
}

static bool large_with_markers(void)
{
	return carry_with(LARGE, FLUE_CONN_MARKERS, 0);
}

static bool large_with_srq_without_crc(void)
{
	return carry_with(LARGE, FLUE_CONN_NO_CRC, 8);
}

static bool large_to_a_stranger(void)
{
	enum { MIDDLE = LARGE / 5 };
	struct pair_options o = torture_options(MIDDLE);

	/* Small units, as towards a peer of which nothing is known. */
	o.conn_flags[0] |= FLUE_CONN_STRICT_PEER;
	o.fpdu_max = 1500;
	return carry(&o, MIDDLE);
}

/* ---- endings ---- */

static void reset_both(struct pair *p)
{
	torture_must(p->a.qp->ops->reset(p->a.qp));
	torture_must(p->b.qp->ops->reset(p->b.qp));
}

/* Reads the end of a graceful close, whatever became of it. */
static bool close_gracefully(struct pair *p, struct flue_qp *qp)
{
	bool ok = qp->ops->disconnect(qp, 1000);
	int error = errno;

	torture_ends(p);
	errno = error;
	return ok;
}

static bool graceful(void)
{
	struct pair_options o = torture_options(SMALL);
	struct pair p;
	bool ok;

	if (!pair_open(&p, &o))
		return false;
	ok = torture_flow(&p, SMALL) && close_gracefully(&p, p.a.qp);
	return torture_close(&p, ok);
}

static bool graceful_by_responder_then_again(void)
{
	struct pair_options o = torture_options(SMALL);
	struct pair p;
	int error;
	bool ok;

	if (!pair_open(&p, &o))
		return false;
	if (!torture_flow(&p, SMALL))
		return torture_close(&p, false);
	ok = close_gracefully(&p, p.b.qp);
	error = errno;
	reset_both(&p);
	if (!pair_connect(&p) || !torture_flow(&p, SMALL))
		return torture_close(&p, false);
	errno = error; /* of the close, if that is what failed */
	return torture_close(&p, ok);
}

static bool abortive_then_again(void)
{
	struct pair_options o = torture_options(SMALL);
	struct pair p;

	if (!pair_open(&p, &o))
		return false;
	if (!torture_flow(&p, SMALL))
		return torture_close(&p, false);
	torture_must(flue_abort(p.a.qp));
	torture_ends(&p);
	reset_both(&p);
	return torture_close(&p, pair_connect(&p) && torture_flow(&p, SMALL));
}

/* Data is under way in both directions when one side aborts: every request still completes. */
static bool abortive_under_load(void)
{
	struct pair_options o = torture_options(LARGE);
	struct flue_wc wc[2];
	struct pair p;

	if (!pair_open(&p, &o))
		return false;
	if (pair_write(&p.a, 0, LARGE, &p.b, LARGE, 1, FLUE_SIGNALED) &&
	    pair_read(&p.a, 2 * LARGE, LARGE, &p.b, 0, 2, FLUE_SIGNALED)) {
		torture_must(flue_abort(p.b.qp));
		torture_promise(pair_take(p.a.recv_cq, wc, 2, TORTURE_PATIENCE_MS) == 2,
				"requests of an aborted connection do not complete");
	}
	/* One of the two noticed a failure before the other one was there. */
	torture_must(flue_abort(p.b.qp));
	torture_ends(&p);
	return torture_close(&p, true);
}

static bool destroyed_under_load(void)
{
	struct pair_options o = torture_options(LARGE);
	struct pair p;

	if (!pair_open(&p, &o))
		return false;
	if (pair_write(&p.a, 0, LARGE, &p.b, LARGE, 1, FLUE_SIGNALED)) {
		torture_must(flue_destroy_qp(p.b.qp));
		p.b.qp = NULL;
		torture_promise(torture_end_told(&p.a), "the end by a destroyed peer is not told");
	}
	return torture_close(&p, true);
}

/* A fault is answered by a Terminate. */
static bool terminated(void)
{
	struct pair_options o = torture_options(SMALL);
	struct flue_wc wc;
	struct pair p;

	if (!pair_open(&p, &o))
		return false;
	/* Nothing was posted for it. */
	if (pair_send(&p.a, 0, SMALL, 1, FLUE_SIGNALED))
		torture_promise(pair_take(p.a.recv_cq, &wc, 1, TORTURE_PATIENCE_MS) == 1,
				"a Send without a receive does not complete");
	torture_ends(&p);
	return torture_close(&p, true);
}

const struct scenario small_scenarios[] = {
	{ "small data with CRC", small_with_crc, true },
	{ "small data without CRC", small_without_crc, true },
	{ "small data with markers", small_with_markers, true },
	{ "small data into a shared queue", small_with_srq, true },
	{ "small data over IPv6", small_over_ipv6, true },
	{ "small data with waiting by descriptor", small_by_descriptor, true },
	{ "small data inside one adapter", small_in_one_adapter, true },
	{ .name = NULL },
};

const struct scenario large_scenarios[] = {
	{ "large data with CRC", large_with_crc, false },
	{ "large data without CRC", large_without_crc, false },
	{ "large data with markers", large_with_markers, false },
	{ "large data into a shared queue", large_with_srq_without_crc, false },
	{ "large data to a stranger", large_to_a_stranger, false },
	{ .name = NULL },
};

const struct scenario close_scenarios[] = {
	{ "a graceful close", graceful, true },
	{ "a close by the responder and a new connection", graceful_by_responder_then_again, true },
	{ "an abort and a new connection", abortive_then_again, true },
	{ "an abort under load", abortive_under_load, false },
	{ "a queue pair destroyed under load", destroyed_under_load, false },
	{ "a Terminate", terminated, true },
	{ .name = NULL },
};
