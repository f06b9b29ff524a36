/* SPDX-License-Identifier: MIT */
/* Datagram queue pairs: life, states, requests and receives. How datagrams come and go: ud_priv.h. */
#include "rnic/ud.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/util.h"
#include "channel/door.h"
#include "rnic/cep.h"
#include "rnic/qp.h"
#include "rnic/qp_priv.h"
#include "rnic/qp_sched.h"
#include "rnic/rx_priv.h"
#include "rnic/ud_priv.h"
#include "rnic/umem.h"
#include "wire/datagram.h"

#define AGAIN_MS 1
#define ASK_MS   5 /* so long those of this host have to ask for what goes to their group */
#define QKEY_OWN (1u << 31) /* in a request: that of the queue pair is meant */
#define PORTS    8          /* that are tried */

/* ---- receiving ---- */

static bool take_receive(struct qp *q, struct wqe **w)
{
	if (q->rx.have_wqe) { /* the last datagram did not fit it */
		*w = q->rx.wqe;
		return true;
	}
	if (!rx_take_receive(q))
		return false;
	*w = q->rx.wqe;
	return true;
}

/* Octets at `skip` of the receive. */
static int put(struct qp *q, const struct wqe *w, size_t skip, const uint8_t *from, size_t len)
{
	struct rx_target t = { .n = 0 };
	int rc = 0;

	if (!len)
		return 0;
	if (!rx_hold_list(q, wqe_places(w), skip, len, &t))
		return -EACCES;
	for (uint32_t i = 0; i < t.n && !rc; i++) {
		rc = umem_write(t.iov[i].iov_base, from, t.iov[i].iov_len);
		from += t.iov[i].iov_len;
	}
	rx_target_put(&t);
	return rc;
}

/* false: it is dropped. */
static bool deliver(struct qp *q, const struct datagram *d, const uint8_t grh[DATAGRAM_GRH],
		    const uint8_t *payload, size_t len)
{
	struct flue_wc wc = { .op = FLUE_WC_RECV,
			      .byte_len = (uint32_t)(DATAGRAM_GRH + len),
			      .flags = FLUE_WC_GRH,
			      .src_qpn = d->from };
	struct wqe *w;

	if (!take_receive(q, &w)) {
		q->ud->drops[UD_DROP_NO_RECEIVE]++;
		return false;
	}
	if (DATAGRAM_GRH + len > w->total) {
		q->ud->drops[UD_DROP_TOO_LONG]++; /* a stranger's message ends nothing of ours */
		return false;
	}
	if (put(q, w, 0, grh, DATAGRAM_GRH) || put(q, w, DATAGRAM_GRH, payload, len)) {
		qp_fail_recv(q, w, FLUE_WC_LOCAL_PROTECTION);
		ud_fail(q);
		return false;
	}
	if (d->imm) {
		wc.flags |= FLUE_WC_IMM;
		memcpy(&wc.imm, d->imm_data, sizeof(wc.imm));
	}
	if (d->solicited)
		wc.flags |= FLUE_WC_SOLICITED;
	qp_push_recv(q, w, &wc);
	return true;
}

static bool is_receiving(const struct ud *u)
{
	return u->state == FLUE_QP_RTR || u->state == FLUE_QP_RTS || u->state == FLUE_QP_SQD ||
	       u->state == FLUE_QP_SQE;
}

void ud_take(struct qp *q, bool group, const uint8_t *head, const uint8_t *payload, size_t len,
	     const struct datagram_way *way, bool local)
{
	struct ud *u = q->ud;
	uint8_t grh[DATAGRAM_GRH];
	struct datagram d;

	if (!datagram_decode(&d, head, len))
		u->drops[UD_DROP_FORM]++;
	else if (d.to != (group ? DATAGRAM_ALL : q->qpn))
		u->drops[UD_DROP_NUMBER]++;
	else if (!is_receiving(u))
		u->drops[UD_DROP_STATE]++;
	else if (d.qkey != u->qkey)
		u->drops[UD_DROP_QKEY]++;
	else {
		datagram_grh(grh, way, len - DATAGRAM_HEAD);
		if (deliver(q, &d, grh, payload, len - DATAGRAM_HEAD))
			++*(local ? &u->local_received : &u->udp_received);
	}
}

/* ---- sending ---- */

static void complete(struct qp *q, uint32_t status)
{
	qp_finish(q, q->tx.cur.next_wqe++, status);
}

/* Our own request was wrong: it fails, those behind it are flushed, receives go on. */
static void stop_sending(struct qp *q, uint32_t status)
{
	complete(q, status);
	q->ud->state = FLUE_QP_SQE;
	qp_set_state(q, q->state);
	while (q->tx.cur.next_wqe != atomic_load_explicit(&q->sq.tail, memory_order_acquire))
		complete(q, FLUE_WC_FLUSHED);
}

/* Through memory, if it can be reached that way. -ENOENT: it cannot. */
static int send_local(struct qp *q, const struct ud_ah *ah, uint32_t qpn,
		      const struct tx_pieces *pieces)
{
	struct datagram_way way;
	struct road_head h;
	struct ud_road *r;
	int rc;

	r = ud_local_way(q, ah, &way) ? ud_local_road(q->engine, ud_port(qpn)) : NULL;
	if (!r)
		return -ENOENT;
	h = ud_local_head(ROAD_SINGLE, &way);
	rc = ud_local_put(r, q, &h, pieces);
	/* Those behind it may take the same road: the peer is woken once. */
	if (q->ud->unflushed && q->ud->unflushed != r)
		ud_local_flush(q->ud->unflushed);
	q->ud->unflushed = r;
	return rc;
}

/* Both ways for a group, else one. 0, or those of ud_local_put() and sendmsg(2). */
static int transmit(struct qp *q, const struct ud_ah *ah, uint32_t qpn, struct ud_cast *cast,
		    const struct tx_pieces *pieces)
{
	ssize_t n;
	int rc;

	if (!ah->group) {
		/* Nobody looks at *ah behind this: the peer may have it, and the program may know. */
		rc = send_local(q, ah, qpn, pieces);
		if (rc != -ENOENT)
			return rc;
	} else if (cast) {
		rc = ud_cast_put(cast, q, ah, pieces);
		if (rc)
			return rc;
	}
	n = ud_transmit(q, ah, qpn, pieces);
	return n < 0 ? (int)n : 0;
}

static void try_again(struct qp *q, uint64_t ms)
{
	q->ud->blocked = true;
	engine_timer_arm(q->engine, &q->ud->again, ms);
}

/* The request at the cursor. false: not now. */
static bool send_one(struct qp *q)
{
	struct wqe *w = wq_at(&q->sq, q->tx.cur.next_wqe);
	const struct ud_ah *ah = w->to.ah->handle;
	struct ud_cast *cast = ud_cast_of(q, ah);
	/* On the engine's scratch, as a caller's stack may be small. */
	struct tx_pieces *pieces = q->engine->scratch;
	uint32_t qkey = w->to.qkey & QKEY_OWN ? q->ud->qkey : w->to.qkey;
	struct datagram d = { .imm = w->op == FLUE_WR_SEND_IMM,
			      .solicited = w->flags & FLUE_SOLICITED,
			      .to = w->to.remote_qpn,
			      .from = q->qpn,
			      .qkey = qkey,
			      .number = cast ? ud_cast_number(cast) : 0 };
	uint8_t head[DATAGRAM_HEAD];
	enum tx_stop stop;
	int rc;

	if (d.imm)
		memcpy(d.imm_data, &w->imm, sizeof(d.imm_data));
	datagram_encode(&d, head);
	pieces->n = pieces->n_ref = 0;
	tx_pieces_add(pieces, head, sizeof(head), NULL);
	q->tx.cur.kind = TX_REQUEST;
	stop = qp_sched_gather(q, &q->tx.cur, 0, w->total, pieces);
	q->tx.cur.kind = TX_NONE;
	rc = stop == TX_BUILT ? transmit(q, ah, w->to.remote_qpn, cast, pieces) : -EFAULT;
	tx_pieces_put(pieces, 0);
	if (rc == -EBUSY)
		return false; /* ud_local.c comes back */
	if (rc == -EAGAIN || rc == -ENOBUFS) {
		try_again(q, AGAIN_MS);
		return false;
	}
	if (cast && ud_cast_step(cast))
		try_again(q, ASK_MS);
	if (rc == -EFAULT) {
		stop_sending(q, FLUE_WC_LOCAL_PROTECTION);
		return false;
	}
	complete(q, FLUE_WC_SUCCESS); /* whatever becomes of it: nobody promised more */
	return true;
}

_Static_assert(sizeof(struct tx_pieces) <= ENGINE_SCRATCH, "they stand in the scratch");

void ud_run(struct qp *q)
{
	struct ud *u = q->ud;

	if (u->state == FLUE_QP_ERROR || u->state == FLUE_QP_SQE) {
		while (q->tx.cur.next_wqe !=
		       atomic_load_explicit(&q->sq.tail, memory_order_acquire))
			complete(q, FLUE_WC_FLUSHED);
		if (u->state == FLUE_QP_ERROR)
			qp_flush(q, false);
		return;
	}
	while (u->state == FLUE_QP_RTS && !u->blocked && !u->waits &&
	       q->tx.cur.next_wqe != atomic_load_explicit(&q->sq.tail, memory_order_acquire) &&
	       send_one(q))
		;
	if (u->unflushed)
		ud_local_flush(u->unflushed);
	u->unflushed = NULL;
}

static void fire_again(struct engine_timer *t)
{
	struct ud *u = container_of(t, struct ud, again);

	u->blocked = false;
	ud_run(u->qp);
}

int ud_check_request(struct qp *q, const struct flue_send_wr *wr, uint32_t total)
{
	const struct ud_ah *ah = wr->to.ah ? wr->to.ah->handle : NULL;

	if (wr->op != FLUE_WR_SEND && wr->op != FLUE_WR_SEND_IMM)
		return -EINVAL;
	if (!ah || ah->pd != q->pd || total > DATAGRAM_MAX || wr->to.remote_qpn > DATAGRAM_ALL)
		return -EINVAL;
	return ah->group && wr->to.remote_qpn != DATAGRAM_ALL ? -EINVAL : 0;
}

/* ---- states ---- */

#define CHANGED                                                                     \
	(uint32_t)(FLUE_QPV_STATE | FLUE_QPV_PORT | FLUE_QPV_PKEY | FLUE_QPV_QKEY | \
		   FLUE_QPV_SQ_PSN | FLUE_QPV_TELL_DRAINED)
#define TOLD                                                                        \
	(uint32_t)(FLUE_QPV_STATE | FLUE_QPV_PORT | FLUE_QPV_PKEY | FLUE_QPV_QKEY | \
		   FLUE_QPV_SQ_PSN | FLUE_QPV_WORK | FLUE_QPV_DROPS | FLUE_QPV_DATAGRAMS)

static bool may_go(uint32_t from, uint32_t to)
{
	switch (to) {
	case FLUE_QP_INIT: return from == FLUE_QP_RESET || from == FLUE_QP_INIT;
	case FLUE_QP_RTR: return from == FLUE_QP_INIT;
	case FLUE_QP_RTS:
		return from == FLUE_QP_RTR || from == FLUE_QP_RTS || from == FLUE_QP_SQD ||
		       from == FLUE_QP_SQE;
	case FLUE_QP_SQD: return from == FLUE_QP_RTS || from == FLUE_QP_SQD;
	default: return false;
	}
}

static int check(const struct ud *u, const struct flue_qp_values *v, uint32_t mask)
{
	if (mask & ~CHANGED)
		return -EINVAL;
	if ((mask & FLUE_QPV_PORT && v->port > 1) || (mask & FLUE_QPV_PKEY && v->pkey_index) ||
	    (mask & FLUE_QPV_SQ_PSN && v->sq_psn > DATAGRAM_ALL))
		return -EINVAL;
	if (mask & FLUE_QPV_TELL_DRAINED && !(mask & FLUE_QPV_STATE && v->state == FLUE_QP_SQD))
		return -EINVAL;
	return mask & FLUE_QPV_STATE && !may_go(u->state, v->state) ? -EINVAL : 0;
}

int ud_modify(struct qp *q, const struct flue_qp_values *v, uint32_t mask)
{
	struct ud *u = q->ud;
	int rc = cep_start_engines(q);

	if (rc)
		return rc;
	engine_lock(q->engine);
	rc = check(u, v, mask);
	if (!rc) {
		if (mask & FLUE_QPV_QKEY)
			u->qkey = v->qkey;
		if (mask & FLUE_QPV_PORT)
			u->port = v->port;
		if (mask & FLUE_QPV_SQ_PSN)
			u->sq_psn = v->sq_psn;
		if (mask & FLUE_QPV_STATE)
			u->state = (uint8_t)v->state;
		qp_set_state(q, q->state);
		/* Nothing that had begun is left. */
		if (mask & FLUE_QPV_TELL_DRAINED && v->tell_drained)
			qp_tell(q, FLUE_EVENT_SQ_DRAINED);
		ud_run(q);
	}
	engine_unlock(q->engine);
	return rc;
}

int ud_query(struct qp *q, struct flue_qp_values *v, uint32_t mask)
{
	const struct ud *u = q->ud;

	if (mask & ~TOLD)
		return -EOPNOTSUPP;
	engine_lock(q->engine);
	*v = (struct flue_qp_values) { .state = u->state,
				       .port = u->port,
				       .qkey = u->qkey,
				       .sq_psn = u->sq_psn,
				       .sends = wq_fill(&q->sq),
				       .receives = q->srq ? 0 : wq_fill(&q->rq),
				       .udp_sent = u->udp_sent,
				       .udp_received = u->udp_received,
				       .local_sent = u->local_sent,
				       .local_received = u->local_received };
	memcpy(v->drops, u->drops, sizeof(v->drops));
	engine_unlock(q->engine);
	return 0;
}

_Static_assert((int)UD_NDROPS == (int)FLUE_NDROPS, "the reasons are the public ones");

void ud_fail(struct qp *q)
{
	q->ud->state = FLUE_QP_ERROR;
	qp_set_state(q, q->state);
	ud_local_unwait(q->ud);
	ud_cast_reset(q->ud);
	ud_run(q);
}

void ud_reset(struct qp *q)
{
	struct ud *u = q->ud;

	engine_timer_stop(q->engine, &u->again);
	ud_local_unwait(u);
	ud_cast_reset(u);
	u->blocked = false;
	u->state = FLUE_QP_RESET;
	qp_set_state(q, q->state);
	qp_forget(q);
	q->tx.cur.next_wqe = atomic_load(&q->sq.head);
}

/* ---- life ---- */

/* A port, and where datagrams may go through memory a door of the same number; *door -1: none to be had. */
static int open_port(struct qp *q, struct ud *u, uint16_t *port, int *door)
{
	int fd;

	for (int i = 1;; i++) {
		*door = -1;
		fd = ud_open_own(u, port);
		if (fd < 0)
			return fd;
		if (q->rnic->local)
			*door = door_open(*port);
		/* The port of groups must stay free for them. And if somebody has the number of the door another port is
		 * better; but nobody shall keep us from UDP. */
		if ((*port != DATAGRAM_GROUP_PORT && *door != -EADDRINUSE) || i == PORTS)
			return fd;
		if (*door >= 0)
			close(*door);
		close(fd);
	}
}

int ud_create(struct qp *q)
{
	struct ud *u = calloc(1, sizeof(*u));
	uint16_t port = 0;
	int fd, door, rc;

	if (!u)
		return -ENOMEM;
	fd = open_port(q, u, &port, &door);
	if (fd < 0) {
		free(u);
		return fd;
	}
	u->qp = u->own.qp = q;
	u->state = FLUE_QP_RESET;
	u->again.fire = fire_again;
	u->own.io.ready = ud_ready;
	u->door.fd = -1;
	LIST_INIT(&u->groups);
	LIST_INIT(&u->roads);
	LIST_INIT(&u->casts);
	TAILQ_INIT(&u->callers);
	engine_io_take(&u->own.io, fd);
	q->ud = u;
	q->qpn = (uint32_t)port << UD_PLACE_BITS | UD_PLACE;
	atomic_store(&q->service, SERVICE_FULL);
	engine_lock(q->engine);
	rc = engine_watch(q->engine, &u->own.io, EPOLLIN);
	if (!rc && q->rnic->local)
		ud_local_open(q, door);
	engine_unlock(q->engine);
	if (rc) {
		if (door >= 0)
			close(door);
		ud_destroy(q);
	}
	return rc;
}

void ud_destroy(struct qp *q)
{
	struct ud *u = q->ud;
	struct ud_socket *s;

	engine_lock(q->engine);
	engine_timer_stop(q->engine, &u->again);
	ud_local_close(q);
	while ((s = LIST_FIRST(&u->groups)))
		ud_drop_group(q, s);
	engine_forget(q->engine, &u->own.io);
	engine_io_close(&u->own.io);
	engine_unlock(q->engine);
	q->ud = NULL;
	free(u);
}

void ud_fork_child(struct qp *q)
{
	struct ud *u = q->ud;
	struct ud_socket *s;

	engine_io_close(&u->own.io);
	ud_local_abandon(u);
	LIST_FOREACH(s, &u->groups, all)
		engine_io_close(&s->io);
	u->again.at = 0;
	u->state = FLUE_QP_ERROR;
}
