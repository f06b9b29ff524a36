/* SPDX-License-Identifier: MIT */
/* Datagram queue pairs: life, states, sending and receiving. Groups: ud_group.c. */
#include "rnic/ud.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/fd.h"
#include "base/util.h"
#include "rnic/address.h"
#include "rnic/cep.h"
#include "rnic/qp.h"
#include "rnic/qp_priv.h"
#include "rnic/qp_sched.h"
#include "rnic/rx_priv.h"
#include "rnic/ud_priv.h"
#include "rnic/umem.h"
#include "wire/datagram.h"

#define ROUNDS     32 /* datagrams before other sockets get their turn */
#define AGAIN_MS   1
#define QKEY_OWN   (1u << 31) /* in a request: that of the queue pair is meant */
#define PLACE_BITS 8
/* What the kernel is asked for; it gives what the system allows. */
#define BUFFER (4 * 1024 * 1024)

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

static void deliver(struct qp *q, const struct datagram *d, const uint8_t grh[DATAGRAM_GRH],
		    const uint8_t *payload, size_t len)
{
	struct flue_wc wc = { .op = FLUE_WC_RECV,
			      .byte_len = (uint32_t)(DATAGRAM_GRH + len),
			      .flags = FLUE_WC_GRH,
			      .src_qpn = d->from };
	struct wqe *w;

	if (!take_receive(q, &w)) {
		q->ud->drops[UD_DROP_NO_RECEIVE]++;
		return;
	}
	if (DATAGRAM_GRH + len > w->total) {
		q->ud->drops[UD_DROP_TOO_LONG]++; /* a stranger's message ends nothing of ours */
		return;
	}
	if (put(q, w, 0, grh, DATAGRAM_GRH) || put(q, w, DATAGRAM_GRH, payload, len)) {
		qp_fail_recv(q, w, FLUE_WC_LOCAL_PROTECTION);
		ud_fail(q);
		return;
	}
	if (d->imm) {
		wc.flags |= FLUE_WC_IMM;
		memcpy(&wc.imm, d->imm_data, sizeof(wc.imm));
	}
	if (d->solicited)
		wc.flags |= FLUE_WC_SOLICITED;
	qp_push_recv(q, w, &wc);
}

static bool is_receiving(const struct ud *u)
{
	return u->state == FLUE_QP_RTR || u->state == FLUE_QP_RTS || u->state == FLUE_QP_SQD ||
	       u->state == FLUE_QP_SQE;
}

void ud_take(struct qp *q, bool group, const uint8_t *buf, size_t len,
	     const struct sockaddr_storage *from, const struct sockaddr_storage *to)
{
	struct ud *u = q->ud;
	uint8_t grh[DATAGRAM_GRH];
	struct datagram d;

	if (!datagram_decode(&d, buf, len))
		u->drops[UD_DROP_FORM]++;
	else if (d.to != (group ? DATAGRAM_ALL : q->qpn))
		u->drops[UD_DROP_NUMBER]++;
	else if (!is_receiving(u))
		u->drops[UD_DROP_STATE]++;
	else if (d.qkey != u->qkey)
		u->drops[UD_DROP_QKEY]++;
	else {
		datagram_grh(grh, from->ss_family == AF_INET6, address_octets(from),
			     address_octets(to), len - DATAGRAM_HEAD);
		deliver(q, &d, grh, buf + DATAGRAM_HEAD, len - DATAGRAM_HEAD);
	}
}

/* Where it was sent to: the kernel tells, in one of two forms. */
static void read_destination(struct msghdr *msg, struct sockaddr_storage *to)
{
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)to;
	struct sockaddr_in *v4 = (struct sockaddr_in *)to;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
		if (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_PKTINFO) {
			struct in6_pktinfo info;

			memcpy(&info, CMSG_DATA(c), sizeof(info));
			*v6 = (struct sockaddr_in6) { .sin6_family = AF_INET6,
						      .sin6_addr = info.ipi6_addr };
		} else if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_PKTINFO) {
			struct in_pktinfo info;

			memcpy(&info, CMSG_DATA(c), sizeof(info));
			*v4 = (struct sockaddr_in) { .sin_family = AF_INET,
						     .sin_addr = info.ipi_addr };
		}
	}
	*to = address_plain(to);
}

/* One datagram. false: there is none. */
static bool receive(struct ud_socket *s)
{
	struct qp *q = s->qp;
	uint8_t *buf = q->engine->scratch;
	union {
		struct cmsghdr align;
		uint8_t room[CMSG_SPACE(sizeof(struct in6_pktinfo)) +
			     CMSG_SPACE(sizeof(struct in_pktinfo))];
	} control;
	struct sockaddr_storage from = { 0 }, to = { 0 };
	/* One octet more than is allowed, to see what is too long. */
	struct iovec iov = { buf, DATAGRAM_HEAD + DATAGRAM_MAX + 1 };
	struct msghdr msg = { .msg_name = &from,
			      .msg_namelen = sizeof(from),
			      .msg_iov = &iov,
			      .msg_iovlen = 1,
			      .msg_control = &control,
			      .msg_controllen = sizeof(control) };
	ssize_t n;

	do {
		n = recvmsg(s->io.fd, &msg, MSG_DONTWAIT);
	} while (n < 0 && errno == EINTR);
	if (n < 0)
		return false;
	from = address_plain(&from);
	read_destination(&msg, &to);
	if (to.ss_family != from.ss_family) /* the kernel did not say */
		to = s->group.ss_family ? s->group : from;
	ud_take(q, s->group.ss_family != 0, buf, (size_t)n, &from, &to);
	return true;
}

_Static_assert(ENGINE_SCRATCH > DATAGRAM_HEAD + DATAGRAM_MAX, "a datagram stands in the scratch");

void ud_ready(struct engine_io *io, uint32_t events)
{
	struct ud_socket *s = container_of(io, struct ud_socket, io);
	struct engine *e = s->qp->engine;

	(void)events;
	for (int i = 0; i < ROUNDS && receive(s); i++) {
		e->hot = io;
		e->idle_polls = 0;
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

/* As the socket wants it. */
static struct sockaddr_storage for_socket(const struct ud *u, const struct sockaddr_storage *a)
{
	return u->family == AF_INET6 ? address_mapped(a) : *a;
}

static void add_source(const struct ud *u, const struct ud_ah *ah, struct msghdr *msg, void *room,
		       size_t size)
{
	struct sockaddr_storage from = for_socket(u, &ah->local);
	struct cmsghdr *c = room;

	if (!ah->local.ss_family)
		return;
	memset(room, 0, size);
	msg->msg_control = room;
	if (u->family == AF_INET6) {
		struct in6_pktinfo info = {
			.ipi6_addr = ((struct sockaddr_in6 *)&from)->sin6_addr,
			.ipi6_ifindex = ((struct sockaddr_in6 *)&from)->sin6_scope_id
		};

		*c = (struct cmsghdr) { CMSG_LEN(sizeof(info)), IPPROTO_IPV6, IPV6_PKTINFO };
		memcpy(CMSG_DATA(c), &info, sizeof(info));
		msg->msg_controllen = CMSG_SPACE(sizeof(info));
	} else {
		struct in_pktinfo info = {
			.ipi_spec_dst = ((struct sockaddr_in *)&from)->sin_addr
		};

		*c = (struct cmsghdr) { CMSG_LEN(sizeof(info)), IPPROTO_IP, IP_PKTINFO };
		memcpy(CMSG_DATA(c), &info, sizeof(info));
		msg->msg_controllen = CMSG_SPACE(sizeof(info));
	}
}

static ssize_t transmit(struct qp *q, const struct wqe *w, struct tx_pieces *pieces)
{
	const struct ud_ah *ah = w->to.ah->handle;
	struct sockaddr_storage to = for_socket(q->ud, &ah->remote);
	uint16_t port = ah->group ? DATAGRAM_GROUP_PORT
				  : (uint16_t)(w->to.remote_qpn >> PLACE_BITS);
	union {
		struct cmsghdr align;
		uint8_t room[CMSG_SPACE(sizeof(struct in6_pktinfo))];
	} control;
	struct msghdr msg = { .msg_name = &to,
			      .msg_namelen = address_len(&to),
			      .msg_iov = pieces->iov,
			      .msg_iovlen = pieces->n };
	ssize_t n;

	address_set_port(&to, port);
	add_source(q->ud, ah, &msg, &control, sizeof(control));
	do {
		n = sendmsg(q->ud->own.io.fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
	} while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : n;
}

/* The request at the cursor. false: not now. */
static bool send_one(struct qp *q)
{
	struct wqe *w = wq_at(&q->sq, q->tx.cur.next_wqe);
	/* On the engine's scratch, as a caller's stack may be small. */
	struct tx_pieces *pieces = q->engine->scratch;
	uint32_t qkey = w->to.qkey & QKEY_OWN ? q->ud->qkey : w->to.qkey;
	struct datagram d = { .imm = w->op == FLUE_WR_SEND_IMM,
			      .solicited = w->flags & FLUE_SOLICITED,
			      .to = w->to.remote_qpn,
			      .from = q->qpn,
			      .qkey = qkey };
	uint8_t head[DATAGRAM_HEAD];
	enum tx_stop stop;
	ssize_t n;

	if (d.imm)
		memcpy(d.imm_data, &w->imm, sizeof(d.imm_data));
	datagram_encode(&d, head);
	pieces->n = pieces->n_ref = 0;
	tx_pieces_add(pieces, head, sizeof(head), NULL);
	q->tx.cur.kind = TX_REQUEST;
	stop = qp_sched_gather(q, &q->tx.cur, 0, w->total, pieces);
	q->tx.cur.kind = TX_NONE;
	n = stop == TX_BUILT ? transmit(q, w, pieces) : -EFAULT;
	tx_pieces_put(pieces, 0);
	if (n == -EAGAIN || n == -ENOBUFS) {
		q->ud->blocked = true;
		engine_timer_arm(q->engine, &q->ud->again, AGAIN_MS);
		return false;
	}
	if (n == -EFAULT) {
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
	while (u->state == FLUE_QP_RTS && !u->blocked &&
	       q->tx.cur.next_wqe != atomic_load_explicit(&q->sq.tail, memory_order_acquire) &&
	       send_one(q))
		;
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
		   FLUE_QPV_SQ_PSN | FLUE_QPV_WORK | FLUE_QPV_DROPS)

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
				       .receives = q->srq ? 0 : wq_fill(&q->rq) };
	memcpy(v->drops, u->drops, sizeof(v->drops));
	engine_unlock(q->engine);
	return 0;
}

_Static_assert((int)UD_NDROPS == (int)FLUE_NDROPS, "the reasons are the public ones");

void ud_fail(struct qp *q)
{
	q->ud->state = FLUE_QP_ERROR;
	qp_set_state(q, q->state);
	ud_run(q);
}

void ud_reset(struct qp *q)
{
	struct ud *u = q->ud;

	engine_timer_stop(q->engine, &u->again);
	u->blocked = false;
	u->state = FLUE_QP_RESET;
	qp_set_state(q, q->state);
	qp_forget(q);
	q->tx.cur.next_wqe = atomic_load(&q->sq.head);
}

/* ---- life ---- */

int ud_open_socket(int family)
{
	int fd = fd_keep(socket(family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
	int on = 1, off = 0, size = BUFFER;

	if (fd < 0)
		return -errno;
	setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
	setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
	if (family == AF_INET6) {
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
		setsockopt(fd, IPPROTO_IPV6, IPV6_RECVPKTINFO, &on, sizeof(on));
	} else {
		setsockopt(fd, IPPROTO_IP, IP_PKTINFO, &on, sizeof(on));
	}
	return fd;
}

static int bind_any(int family, uint16_t *port)
{
	struct sockaddr_storage any = { .ss_family = (sa_family_t)family };
	socklen_t len = address_len(&any);
	int fd = ud_open_socket(family), rc;

	if (fd < 0)
		return fd;
	if (bind(fd, (struct sockaddr *)&any, len) < 0 ||
	    getsockname(fd, (struct sockaddr *)&any, &len) < 0) {
		rc = -errno;
		close(fd);
		return rc;
	}
	*port = address_port(&any);
	return fd;
}

static int open_own(struct ud *u, uint16_t *port)
{
	int fd;

	u->family = AF_INET6;
	fd = bind_any(AF_INET6, port);
	if (fd != -EAFNOSUPPORT && fd != -EADDRNOTAVAIL)
		return fd;
	u->family = AF_INET;
	return bind_any(AF_INET, port);
}

int ud_create(struct qp *q)
{
	struct ud *u = calloc(1, sizeof(*u));
	uint16_t port = 0;
	int fd, rc;

	if (!u)
		return -ENOMEM;
	fd = open_own(u, &port);
	if (fd < 0) {
		free(u);
		return fd;
	}
	u->qp = u->own.qp = q;
	u->state = FLUE_QP_RESET;
	u->again.fire = fire_again;
	u->own.io.ready = ud_ready;
	LIST_INIT(&u->groups);
	engine_io_take(&u->own.io, fd);
	q->ud = u;
	q->qpn = (uint32_t)port << PLACE_BITS | UD_PLACE;
	atomic_store(&q->service, SERVICE_FULL);
	engine_lock(q->engine);
	rc = engine_watch(q->engine, &u->own.io, EPOLLIN);
	engine_unlock(q->engine);
	if (rc)
		ud_destroy(q);
	return rc;
}

void ud_destroy(struct qp *q)
{
	struct ud *u = q->ud;
	struct ud_socket *s;

	engine_lock(q->engine);
	engine_timer_stop(q->engine, &u->again);
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
	LIST_FOREACH(s, &u->groups, all)
		engine_io_close(&s->io);
	u->again.at = 0;
	u->state = FLUE_QP_ERROR;
}
