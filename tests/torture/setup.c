/* SPDX-License-Identifier: MIT */
/* Scenarios of connection set-up: both forms, deferred, refused, with events and blocking. */
#include <errno.h>
#include <string.h>

#include "torture/inject.h"
#include "torture/torture.h"

#define SMALL 100

static bool connect_with(uint32_t flags, uint32_t answer_flags)
{
	static const uint8_t data[508] = { 1, 2, 3 };
	struct pair_options o = torture_options(SMALL);
	struct pair p;

	o.conn_flags[0] |= flags;
	o.conn_flags[1] |= answer_flags;
	o.private_data[0] = o.private_data[1] = data;
	o.private_len[0] = o.private_len[1] = sizeof(data);
	if (!pair_open(&p, &o))
		return false;
	torture_promise(p.b.qp->private_len == sizeof(data), "private data has %zu octets",
			p.b.qp->private_len);
	return torture_close(&p, torture_flow(&p, SMALL));
}

static bool three_way(void)
{
	return connect_with(0, 0);
}

static bool three_way_by_send(void)
{
	return connect_with(FLUE_CONN_RTR_SEND, 0);
}

static bool three_way_by_read(void)
{
	return connect_with(FLUE_CONN_RTR_READ, 0);
}

static bool two_way(void)
{
	return connect_with(FLUE_CONN_TWO_WAY, 0);
}

static bool two_way_lenient(void)
{
	return connect_with(FLUE_CONN_TWO_WAY, FLUE_CONN_LENIENT);
}

static bool revision_1(void)
{
	return connect_with(FLUE_CONN_REV1, 0);
}

/* Requests of set-ups that were given up. */
static void reject_old_requests(struct pair *p)
{
	struct flue_conn_request *req;

	while ((req = p->listener->ops->get_request(p->listener, 0)))
		torture_must(req->ops->reject(req, NULL, 0));
}

/* What failed for want of something works with the same objects when it is there again. */
static bool once_more(void)
{
	struct pair_options o = torture_options(SMALL);
	uint64_t until = pair_now_ms() + TORTURE_PATIENCE_MS;
	struct pair p;
	int error;
	bool ok;

	if (!pair_make(&p, &o))
		return false;
	ok = pair_connect(&p) && torture_flow(&p, SMALL);
	error = errno;
	inject_calm();
	while (!ok && pair_now_ms() < until) {
		/* One side may still be ending, or an old request be on its way. */
		reject_old_requests(&p);
		flue_abort(p.a.qp);
		flue_abort(p.b.qp);
		if (p.a.qp->ops->reset(p.a.qp) && p.b.qp->ops->reset(p.b.qp) && pair_connect(&p))
			break;
	}
	if (!ok)
		torture_promise(torture_flow(&p, SMALL), "the second try does not work");
	errno = error;
	return torture_close(&p, ok);
}

/* ---- by events ---- */

struct end {
	struct pair_side *side;
	bool begun, over; /* a set-up was begun; its outcome is known */
	bool up, ended;   /* the outcome; the connection was up and is no more */
	int error;
};

/* What one side hears. False: nothing waits. */
static bool hear(struct end *e)
{
	struct flue_event ev;

	if (!flue_get_event(e->side->adapter, &ev, 1))
		return false;
	if (ev.u.qp != e->side->qp)
		return true;
	switch (ev.type) {
	case FLUE_EVENT_ACCEPTED: torture_must(e->side->qp->ops->start(e->side->qp)); break;
	case FLUE_EVENT_CONNECTED:
	case FLUE_EVENT_CONNECT_FAILED:
		torture_promise(!e->over, "the outcome of a set-up is told twice");
		e->over = true;
		e->up = ev.type == FLUE_EVENT_CONNECTED;
		e->error = (int)ev.detail;
		break;
	case FLUE_EVENT_DISCONNECTED:
		torture_promise(e->up && !e->ended, "an end without a connection is told");
		e->ended = true;
		break;
	default: break;
	}
	return true;
}

/* Takes a request if there is one and answers it. */
static void answer(struct pair *p, struct end *b, uint32_t flags, bool reject)
{
	struct flue_conn_request *req = p->listener->ops->get_request(p->listener, 0);
	struct flue_conn_attr attr = FLUE_ATTR(struct flue_conn_attr);

	if (!req)
		return;
	attr.flags = flags;
	attr.timeout_ms = p->options.timeout_ms;
	if (reject) {
		torture_must(req->ops->reject(req, "no", 2));
		return;
	}
	/* A second request is the first one again, by an initiator that fell back. */
	if (b->begun)
		torture_must(req->ops->reject(req, NULL, 0));
	else
		b->begun = req->ops->accept(req, b->side->qp, &attr);
}

/* From connect() to the outcome on both sides. */
static bool set_up(struct pair *p, struct end *a, struct end *b, uint32_t flags, bool reject)
{
	struct flue_conn_attr attr = pair_conn_attr(p, flags);
	uint64_t until = pair_now_ms() + TORTURE_PATIENCE_MS;

	attr.timeout_ms = p->options.timeout_ms;
	a->begun = p->a.qp->ops->connect(p->a.qp, &attr);
	if (!a->begun)
		return false;
	while (!a->over || (b->begun && !b->over)) {
		hear(a);
		hear(b);
		answer(p, b, flags, reject);
		torture_promise(pair_now_ms() < until, "a set-up is stuck; initiator %s",
				a->over ? "done" : "waits");
	}
	return true;
}

/* One side failed: the other one, if it was connected, hears of the end. */
static void await_ends(struct end *a, struct end *b)
{
	uint64_t until = pair_now_ms() + TORTURE_PATIENCE_MS;

	while ((a->up && !a->ended) || (b->up && !b->ended)) {
		hear(a);
		hear(b);
		torture_promise(pair_now_ms() < until, "the end of half a set-up is not told");
	}
}

static bool by_events(uint32_t flags)
{
	struct pair_options o = torture_options(SMALL);
	struct end a = { .side = NULL }, b = { .side = NULL };
	struct pair p;

	if (!pair_make(&p, &o))
		return false;
	a.side = &p.a;
	b.side = &p.b;
	if (!set_up(&p, &a, &b, flags, false))
		return torture_close(&p, false);
	if (a.up && b.up)
		return torture_close(&p, torture_flow(&p, SMALL));
	await_ends(&a, &b);
	errno = a.up ? b.error : a.error;
	return torture_close(&p, false);
}

static bool asynchronous(void)
{
	return by_events(FLUE_CONN_ASYNC);
}

static bool deferred(void)
{
	return by_events(FLUE_CONN_ASYNC | FLUE_CONN_DEFER);
}

static bool deferred_two_way(void)
{
	return by_events(FLUE_CONN_ASYNC | FLUE_CONN_DEFER | FLUE_CONN_TWO_WAY);
}

static bool rejected(void)
{
	struct pair_options o = torture_options(SMALL);
	struct end a = { .side = NULL }, b = { .side = NULL };
	struct pair p;
	bool ok;

	if (!pair_make(&p, &o))
		return false;
	a.side = &p.a;
	b.side = &p.b;
	if (!set_up(&p, &a, &b, FLUE_CONN_ASYNC, true))
		return torture_close(&p, false);
	torture_promise(!a.up, "a rejected connection came up");
	ok = a.error == ECONNREFUSED && p.a.qp->private_len == 2 &&
	     !memcmp(p.a.qp->private_data, "no", 2);
	errno = a.error;
	return torture_close(&p, ok);
}

const struct scenario setup_scenarios[] = {
	{ "a three-way set-up", three_way, true },
	{ "a three-way set-up by Send", three_way_by_send, true },
	{ "a three-way set-up by Read", three_way_by_read, true },
	{ "a two-way set-up", two_way, true },
	{ "a two-way set-up with a lenient responder", two_way_lenient, true },
	{ "a set-up in revision 1", revision_1, true },
	{ "a set-up and a second try", once_more, true },
	{ "an asynchronous set-up", asynchronous, true },
	{ "a deferred set-up", deferred, true },
	{ "a deferred two-way set-up", deferred_two_way, true },
	{ "a rejected set-up", rejected, true },
	{ .name = NULL },
};
