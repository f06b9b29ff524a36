/* SPDX-License-Identifier: MIT */
/* Traffic and endings that every scenario uses. */
#include <errno.h>
#include <poll.h>
#include <string.h>

#include "torture/torture.h"

/* A side's memory: what it sends, where it receives, what the peer writes, where it reads to. */
enum { SOURCE, RECEIVED, WRITTEN, READ_TO, NAREAS };
enum { ID_RECV = 1, ID_WRITE, ID_SEND, ID_READ };
#define MAX_POSTED 4

struct flow {
	struct pair_side *side, *peer;
	uint32_t size, seed;
	uint32_t posted;
	bool by_descriptor;
	bool failed;
};

struct pair_options torture_options(uint32_t size)
{
	struct pair_options o = PAIR_DEFAULTS;

	o.one_cq = true;
	o.cq_depth = 32;
	o.sq_depth = 8;
	o.rq_depth = 8;
	o.memory = (size_t)size * NAREAS;
	o.timeout_ms = torture_timeout_ms;
	/* A second try would find nobody: the pair accepts once. */
	o.conn_flags[0] = FLUE_CONN_NO_FALLBACK;
	return o;
}

static size_t area(const struct flow *f, int which)
{
	return (size_t)f->size * (size_t)which;
}

static void posted(struct flow *f, bool ok)
{
	if (ok) {
		f->posted++;
		return;
	}
	/* Posting needs no memory and no call; only the end of the connection stops it. */
	torture_promise(errno == ENOTCONN, "a post failed with errno %d", errno);
	f->failed = true;
}

static void post_receive(struct flow *f)
{
	memset(f->side->mem + area(f, RECEIVED), 0, (size_t)f->size * (NAREAS - RECEIVED));
	pair_fill(f->side->mem, f->size, f->seed);
	posted(f, pair_recv(f->side, area(f, RECEIVED), f->size, ID_RECV));
}

static void post_requests(struct flow *f)
{
	posted(f,
	       pair_write(f->side, 0, f->size, f->peer, area(f, WRITTEN), ID_WRITE, FLUE_SIGNALED));
	posted(f, pair_send(f->side, 0, f->size, ID_SEND, FLUE_SIGNALED | FLUE_SOLICITED));
	posted(f,
	       pair_read(f->side, area(f, READ_TO), f->size, f->peer, 0, ID_READ, FLUE_SIGNALED));
}

static void check_octets(const struct flow *f, int which, uint32_t seed, const char *what)
{
	size_t good = pair_check(f->side->mem + area(f, which), f->size, seed);

	torture_promise(good == f->size, "octet %zu of a %s is wrong", good, what);
}

static void check_completion(struct flow *f, const struct flue_wc *wc, uint32_t peer_seed)
{
	if (wc->status != FLUE_WC_SUCCESS) {
		f->failed = true;
		return;
	}
	if (wc->id == ID_RECV) {
		torture_promise(wc->byte_len == f->size, "a receive has %u octets", wc->byte_len);
		check_octets(f, RECEIVED, peer_seed, "receive");
		/* A Write posted before the Send is in place when the Send is received. */
		check_octets(f, WRITTEN, peer_seed, "Write");
	}
	if (wc->id == ID_READ)
		check_octets(f, READ_TO, peer_seed, "Read");
}

/* The connection is over and the receive stays where it is: in the shared queue, or in that of a
 * QP that was Idle again before it was posted. */
static bool receive_stays(const struct flow *f, const struct flue_wc *wc, uint32_t got)
{
	uint32_t state = flue_qp_state(f->side->qp);

	if (got + 1 != f->posted || state == FLUE_QP_RTS ||
	    (!f->side->srq && state != FLUE_QP_IDLE))
		return false;
	for (uint32_t i = 0; i < got; i++)
		if (wc[i].id == ID_RECV)
			return false;
	return true;
}

/* Up to n completions; notices are asked for first, so none is missed. */
static uint32_t take_by_descriptor(struct flue_cq *cq, struct flue_wc *wc, uint32_t n, int ms)
{
	struct pollfd pollfd = { .fd = cq->ops->fd(cq), .events = POLLIN };
	uint32_t got = 0;

	if (pollfd.fd < 0 || !cq->ops->notify(cq, FLUE_NOTIFY_NEXT, NULL, NULL))
		return 0;
	torture_must(flue_poll(cq, wc, n, &got));
	if (got || poll(&pollfd, 1, ms) <= 0)
		return got;
	cq->ops->clear_fd(cq);
	torture_must(flue_poll(cq, wc, n, &got));
	return got;
}

static void collect(struct flow *f, uint32_t peer_seed)
{
	uint64_t until = pair_now_ms() + TORTURE_PATIENCE_MS;
	struct flue_cq *cq = f->side->recv_cq;
	struct flue_wc wc[MAX_POSTED];
	uint32_t got = 0;
	bool stays = false;

	/* Looked at twice: a receive may be flushed just after the state changed. */
	while (got < f->posted && !stays && pair_now_ms() < until) {
		stays = receive_stays(f, wc, got);
		got += f->by_descriptor ? take_by_descriptor(cq, wc + got, f->posted - got, 50)
					: pair_take(cq, wc + got, f->posted - got, 50);
		stays = stays && receive_stays(f, wc, got);
	}
	torture_promise(got == f->posted || stays, "%u of %u requests completed; QP is %s", got,
			f->posted, flue_qp_state_name(flue_qp_state(f->side->qp)));
	f->failed = f->failed || stays;
	for (uint32_t i = 0; i < got; i++)
		check_completion(f, &wc[i], peer_seed);
}

bool torture_end_told(struct pair_side *s)
{
	struct flue_event ev;

	while (flue_get_event(s->adapter, &ev, TORTURE_PATIENCE_MS)) {
		if (ev.type == FLUE_EVENT_DISCONNECTED && ev.u.qp == s->qp)
			return true;
	}
	return false;
}

void torture_ends(struct pair *p)
{
	struct flue_event ev;

	torture_promise(torture_end_told(&p->a), "the initiator never hears of the end");
	torture_promise(torture_end_told(&p->b), "the responder never hears of the end");
	while (flue_get_event(p->a.adapter, &ev, 0) || flue_get_event(p->b.adapter, &ev, 0))
		torture_promise(ev.type != FLUE_EVENT_DISCONNECTED, "the end is told twice");
}

static bool flow(struct pair *p, uint32_t size, bool by_descriptor)
{
	struct flow a = { .side = &p->a, .peer = &p->b, .size = size, .seed = 1 };
	struct flow b = { .side = &p->b, .peer = &p->a, .size = size, .seed = 2 };

	a.by_descriptor = b.by_descriptor = by_descriptor;
	post_receive(&a);
	post_receive(&b);
	post_requests(&a);
	post_requests(&b);
	collect(&a, b.seed);
	collect(&b, a.seed);
	if (!a.failed && !b.failed)
		return true;
	torture_ends(p);
	errno = ECONNRESET;
	return false;
}

bool torture_flow(struct pair *p, uint32_t size)
{
	return flow(p, size, false);
}

bool torture_flow_by_descriptor(struct pair *p, uint32_t size)
{
	return flow(p, size, true);
}

bool torture_close(struct pair *p, bool result)
{
	int error = errno;

	torture_must(pair_close(p));
	errno = error;
	return result;
}
