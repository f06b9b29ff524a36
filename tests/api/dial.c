/* SPDX-License-Identifier: MIT */
/* How links get connected. See api.h. */
#include "api.h"

#include <netinet/in.h>

struct card { /* private data of a request */
	uint32_t magic, link, gen;
};

static atomic_int blocked; /* threads in connect() that need others to accept */

/* ---- the answering side ---- */

static uint32_t any_flags(void)
{
	static const uint32_t flags[] = { 0,
					  FLUE_CONN_NO_CRC,
					  FLUE_CONN_MARKERS,
					  FLUE_CONN_LENIENT,
					  FLUE_CONN_STRICT_PEER,
					  FLUE_CONN_NO_CRC };

	return flags[draw(sizeof(flags) / sizeof(flags[0]))];
}

/* The link that asks, which nobody else answers; or NULL. */
static struct link *whose(const struct flue_conn_request *req)
{
	struct card card;
	unsigned open = DIAL_OPEN;
	struct link *l;

	if (req->private_len < sizeof(card))
		return NULL;
	memcpy(&card, req->private_data, sizeof(card));
	if (card.magic != LABEL_MAGIC || card.link >= LINKS)
		return NULL;
	l = &links[card.link];
	if (!atomic_compare_exchange_strong(&l->dial, &open, DIAL_TAKEN))
		return NULL;
	if (l->gen == card.gen)
		return l;
	atomic_store(&l->dial, DIAL_OPEN); /* a request from its last life */
	return NULL;
}

static void refuse(struct flue_conn_request *req)
{
	static const uint8_t data[600];

	if (!CALL(req->ops->reject(req, data, draw(2) ? draw(508) : 600)))
		may_fail_with("reject", EINVAL, 0);
}

static void answer(struct flue_conn_request *req)
{
	struct flue_conn_attr attr = FLUE_ATTR(struct flue_conn_attr);
	struct link *l = whose(req);
	struct flue_qp *qp;

	if (!l || one_in(24)) {
		refuse(req);
	} else {
		/* Who has to start() may be waiting for somebody else. */
		attr.flags = any_flags();
		if (draw(2) || l->flags & FLUE_CONN_DEFER)
			attr.flags |= FLUE_CONN_ASYNC;
		/* Without an exchange both must mean the same. */
		attr.ird = req->revision > 1 && draw(2) ? 1 + draw(16) : 0;
		attr.ord = req->revision > 1 && draw(2) ? 1 + draw(16) : 0;
		attr.timeout_ms = 20000;
		attr.fpdu_max = draw(2) * (512 + draw(4000));
		qp = atomic_load(&l->ends[1].qp);
		l->accept_flags = attr.flags;
		l->accept_ok = CALL(req->ops->accept(req, qp, &attr));
		if (!l->accept_ok)
			may_fail_with("accept", ECONNRESET, ETIMEDOUT, EPIPE, ENOBUFS, EPROTO,
				      ECONNABORTED, 0);
	}
	if (l)
		atomic_store(&l->dial, DIAL_DONE);
}

static bool accept_from(struct listenerx *x, int timeout_ms)
{
	struct flue_conn_request *req;
	bool mortal = me->mortal;

	req = CALL(x->listener->ops->get_request(x->listener, timeout_ms));
	if (!req) {
		may_fail_with("get_request", EAGAIN, ETIMEDOUT, EINTR, 0);
		return false;
	}
	me->mortal = false;
	answer(req);
	me->mortal = mortal;
	return true;
}

void op_accept(void)
{
	struct house *h = house_hold();
	struct listenerx *x;

	if (!h)
		return;
	x = &h->listeners[draw(LISTENERS)];
	if (slot_hold(&x->slot)) {
		accept_from(x, me->for_ever && me->mortal && one_in(3) ? -1 : (int)draw(6));
		undo_run();
	}
	undo_run();
}

/* ---- the asking side ---- */

static struct flue_conn_attr call_attr(struct link *l, struct listenerx *x, struct card *card)
{
	static const uint32_t only_here[] = { 0,
					      0,
					      FLUE_CONN_TWO_WAY,
					      FLUE_CONN_REV1,
					      FLUE_CONN_RTR_WRITE | FLUE_CONN_RTR_READ,
					      FLUE_CONN_RTR_READ,
					      FLUE_CONN_NO_FALLBACK };
	struct flue_conn_attr attr = FLUE_ATTR(struct flue_conn_attr);

	*card = (struct card) { LABEL_MAGIC, (uint32_t)l->index, l->gen };
	attr.remote = (const struct sockaddr *)&x->listener->local;
	attr.remote_len = x->listener->local.ss_family == AF_INET6 ? sizeof(struct sockaddr_in6)
								   : sizeof(struct sockaddr_in);
	attr.private_data = card;
	attr.private_len = sizeof(*card);
	attr.flags = any_flags() | only_here[draw(sizeof(only_here) / sizeof(only_here[0]))];
	attr.flags &= ~(uint32_t)FLUE_CONN_LENIENT;
	attr.ird = !(attr.flags & FLUE_CONN_REV1) && draw(2) ? 1 + draw(16) : 0;
	attr.ord = !(attr.flags & FLUE_CONN_REV1) && draw(2) ? 1 + draw(16) : 0;
	attr.fpdu_max = draw(2) * (512 + draw(4000));
	attr.timeout_ms = one_in(16) ? 1 + (int)draw(20) : 20000;
	return attr;
}

static void await_answerer(struct link *l)
{
	uint64_t end = now_ms() + PATIENCE_MS;
	unsigned open = DIAL_OPEN;

	if (atomic_compare_exchange_strong(&l->dial, &open, DIAL_CLOSED))
		return; /* nobody came */
	while (atomic_load(&l->dial) == DIAL_TAKEN) {
		must(now_ms() < end);
		link_pump(l);
	}
}

/* Until it is known how it went for both. */
static void await_outcome(struct link *l, struct listenerx *x)
{
	uint64_t end = now_ms() + PATIENCE_MS;
	struct end *a = &l->ends[0];
	bool started = false;

	while (!atomic_load(&a->connected) && !atomic_load(&a->failed)) {
		if (now_ms() > end)
			fail("a connection is neither made nor refused");
		accept_from(x, (int)draw(3));
		link_pump(l);
		if (atomic_load(&a->accepted) && !started) {
			started = true;
			if (!CALL(a->qp->ops->start(a->qp)))
				may_fail_with("start", EINVAL, 0);
		}
	}
}

static bool responder_is_up(struct link *l)
{
	struct end *b = &l->ends[1];
	uint64_t end = now_ms() + PATIENCE_MS;

	if (atomic_load(&l->dial) != DIAL_DONE || !l->accept_ok)
		return false;
	while (l->accept_flags & FLUE_CONN_ASYNC && !atomic_load(&b->connected) &&
	       !atomic_load(&b->failed)) {
		if (now_ms() > end)
			fail("a connection that was accepted is neither made nor lost");
		link_pump(l);
	}
	return !(l->accept_flags & FLUE_CONN_ASYNC) || atomic_load(&b->connected);
}

static bool call(struct link *l, struct listenerx *x)
{
	struct end *a = &l->ends[0];
	struct card card;
	struct flue_conn_attr attr = call_attr(l, x, &card);
	bool async = draw(4) || atomic_load(&blocked) > 1;

	l->accept_ok = false;
	l->accept_flags = 0;
	if (async)
		attr.flags |= FLUE_CONN_ASYNC | (one_in(4) ? FLUE_CONN_DEFER : 0);
	else if (attr.timeout_ms > 3000)
		attr.timeout_ms = 3000;
	l->flags = attr.flags;
	atomic_store(&l->dial, DIAL_OPEN);
	atomic_fetch_add(&blocked, !async);
	a->up = CALL(a->qp->ops->connect(a->qp, &attr));
	if (!a->up)
		may_fail_with("connect", ETIMEDOUT, ECONNREFUSED, ECONNRESET, ENOBUFS, EPROTO, 0);
	atomic_fetch_sub(&blocked, !async);
	if (async && a->up) {
		await_outcome(l, x);
		a->up = atomic_load(&a->connected);
	}
	await_answerer(l);
	l->ends[1].up = responder_is_up(l);
	return a->up && l->ends[1].up;
}

/* ---- over a stream that exists ---- */

bool make_stream(int fd[2])
{
	struct sockaddr_in at = { .sin_family = AF_INET };
	socklen_t len = sizeof(at);
	int l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	bool ok;

	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	fd[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	fd[1] = -1;
	ok = l >= 0 && fd[0] >= 0 && !bind(l, (struct sockaddr *)&at, len) && !listen(l, 1) &&
	     !getsockname(l, (struct sockaddr *)&at, &len) &&
	     !connect(fd[0], (struct sockaddr *)&at, len);
	if (ok)
		fd[1] = accept4(l, NULL, NULL, SOCK_CLOEXEC);
	if (l >= 0)
		close(l);
	if (fd[1] >= 0)
		return true;
	if (fd[0] >= 0)
		close(fd[0]);
	return false;
}

/* Side 1 with a socket, which does not block, side 0 with convert(), which does. */
static bool begin_switch(struct link *l, int fd)
{
	struct flue_reserve_attr want = FLUE_ATTR(struct flue_reserve_attr);
	struct flue_switch_attr how = FLUE_ATTR(struct flue_switch_attr);
	struct end *b = &l->ends[1];
	struct flue_socket *s = CALL(flue_socket_open(b->house->adapter, fd, NULL));

	if (!s) {
		may_fail_with("socket_open", 0);
		return false;
	}
	want.qp = b->qp;
	how.flags = FLUE_SWITCH_RESPONDER;
	how.conn_flags = any_flags();
	how.timeout_ms = 20000;
	if (!CALL(s->ops->reserve(s, &want)) || !CALL(s->ops->switch_mode(s, &how, 1))) {
		may_fail_with("reserve, switch_mode", disturbed() ? ENOBUFS : 0,
			      disturbed() ? EIO : 0, 0);
		must(s->ops->destroy(s));
		return false;
	}
	l->socket = s;
	if (!CALL(s->ops->rdma_recv(s, NULL, 0, 2)))
		may_fail_with("first rdma_recv", ENOTCONN, 0);
	return true;
}

static bool switched(struct link *l)
{
	struct flue_socket_event ev;
	uint64_t end = now_ms() + PATIENCE_MS;

	do {
		link_pump(l);
		must(now_ms() < end);
		if (!CALL(flue_socket_get_event(l->socket, &ev, 5))) {
			may_fail_with("socket get_event", ETIMEDOUT, EINTR, 0);
			continue;
		}
		if (ev.type == FLUE_SOCKET_SWITCHED || ev.type == FLUE_SOCKET_ENDED)
			return ev.type == FLUE_SOCKET_SWITCHED && !ev.error;
	} while (true);
}

static bool convert(struct link *l)
{
	struct flue_switch_attr how = FLUE_ATTR(struct flue_switch_attr);
	struct end *a = &l->ends[0];
	int fd[2];

	if (!make_stream(fd))
		return false;
	if (!begin_switch(l, fd[1])) {
		close(fd[0]);
		close(fd[1]);
		return false;
	}
	how.conn_flags = any_flags() & ~(uint32_t)FLUE_CONN_LENIENT;
	how.timeout_ms = 20000;
	a->up = CALL(flue_socket_convert(a->qp, fd[0], &how));
	if (!a->up) {
		/* The other side had no descriptors and closed before: then this one is ours. */
		bool ours = errno == ENOTCONN && disturbed();

		may_fail_with("convert", ETIMEDOUT, ECONNRESET, EPROTO, ECONNREFUSED,
			      ours ? ENOTCONN : EPROTO, 0);
		if (ours)
			close(fd[0]);
	}
	l->ends[1].up = switched(l);
	return a->up && l->ends[1].up;
}

/* Exclusively. */
bool dial(struct link *l)
{
	struct listenerx *x = &l->ends[1].house->listeners[draw(LISTENERS)];
	bool ok;

	/* Until it is connected anything may go wrong. */
	atomic_store(&l->spoilt, true);
	for (uint32_t n = 1 + draw(6); n; n--) {
		recv_one(&l->ends[0]);
		recv_one(&l->ends[1]);
	}
	if (draw(5) && slot_take(&x->slot)) {
		ok = call(l, x);
		slot_put(&x->slot);
	} else if (kinds & KIND_CLOSE) {
		return false;
	} else {
		l->flags = UINT32_MAX;
		ok = convert(l);
	}
	if (ok && !(kinds & KIND_CLOSE) &&
	    atomic_load(&l->ends[0].disconnected) + atomic_load(&l->ends[1].disconnected))
		fail("link %d ended as soon as it was made", l->index);
	if (ok && !(kinds & KIND_CLOSE))
		atomic_store(&l->spoilt, false);
	return ok;
}
