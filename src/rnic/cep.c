/* SPDX-License-Identifier: MIT */
#include "rnic/cep.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/tsan.h"
#include "base/util.h"
#include "rnic/listener.h"
#include "rnic/qp.h"

#define FRAME_MAX   (MPA_FRAME_LEN + MPA_PD_MAX)
#define REFUSED_MS  1000 /* how long a rejected peer may take to close */
#define REFUSED_MAX 64   /* ... and how many of them are waited for */

static void cep_apply(struct cep *c, enum mpa_event e);
static void ready(struct engine_io *io, uint32_t events);

/* ---- life ---- */

static void fire_timer(struct engine_timer *t)
{
	struct cep *c = container_of(t, struct cep, timer);

	c->err = ETIMEDOUT;
	cep_apply(c, MPA_EV_TIMEOUT);
}

static struct cep *cep_new(struct rnic *r, struct engine *e)
{
	struct cep *c = calloc(1, sizeof(*c));

	if (!c)
		return NULL;
	c->rnic = r;
	c->engine = e;
	c->io.fd = -1;
	c->io.ready = ready;
	c->timer.fire = fire_timer;
	c->state = MPA_NEW;
	pthread_mutex_lock(&r->lists);
	LIST_INSERT_HEAD(&r->ceps, c, all);
	pthread_mutex_unlock(&r->lists);
	return c;
}

static void close_stream(struct cep *c)
{
	struct sockaddr nobody = { .sa_family = AF_UNSPEC };

	if (c->io.fd < 0)
		return;
	engine_forget(c->engine, &c->io);
	/* An adopted descriptor may have copies, so closing it is not enough. Its end is a reset, which
	 * the peer cannot take for the orderly end of streaming data, unless we said a last word that
	 * it shall read. */
	if (!c->adopted || !engine_io_is_ours(&c->io))
		; /* closing is enough */
	else if (c->refused || c->last_word)
		shutdown(c->io.fd, SHUT_RDWR);
	else
		connect(c->io.fd, &nobody, sizeof(nobody));
	engine_io_close(&c->io);
}

/* Under the engine's lock, or owned by the caller alone. */
static void cep_free(struct cep *c)
{
	engine_timer_stop(c->engine, &c->timer);
	close_stream(c);
	if (c->qp)
		c->qp->cep = NULL;
	if (c->listener)
		listener_remove(c->listener, c);
	if (c->refused)
		atomic_fetch_sub(&c->rnic->n_refused, 1);
	pthread_mutex_lock(&c->rnic->lists);
	LIST_REMOVE(c, all);
	pthread_mutex_unlock(&c->rnic->lists);
	free(c->early);
	free(c);
}

/* ---- telling ---- */

static void fill_info(struct cep *c)
{
	struct qp *q = c->qp;
	const struct mpa_frame *peer = c->initiator ? &c->rep : &c->req;
	socklen_t len = sizeof(q->info.local);
	int fd = c->io.fd >= 0 ? c->io.fd : q->io.fd;

	memset(&q->info, 0, sizeof(q->info));
	if (fd >= 0) {
		getsockname(fd, (struct sockaddr *)&q->info.local, &len);
		len = sizeof(q->info.peer);
		getpeername(fd, (struct sockaddr *)&q->info.peer, &len);
	}
	q->info.ird = c->terms.ird;
	q->info.ord = c->terms.ord;
	q->info.private_len = peer->data_len;
	if (peer->data_len)
		memcpy(q->private_data, peer->data, peer->data_len);
	q->info.private_data = q->private_data;
}

static void tell_up(struct cep *c, uint32_t type, int err)
{
	struct qp *q = c->qp;

	if (!q || q->doomed)
		return;
	fill_info(c);
	if (type == FLUE_EVENT_ACCEPTED) {
		engine_tell(q->engine, &q->note_accepted);
		return;
	}
	q->ev_up = (struct flue_event) { .type = type, .detail = (uint32_t)err };
	q->connected = type == FLUE_EVENT_CONNECTED;
	engine_tell(q->engine, &q->note_up);
}

void cep_describe(const struct cep *c, struct rnic_request_info *info)
{
	bool enhanced = c->req.flags & MPA_FLAG_ENHANCED;
	socklen_t len = sizeof(info->local);

	memset(info, 0, sizeof(*info));
	getsockname(c->io.fd, (struct sockaddr *)&info->local, &len);
	len = sizeof(info->peer);
	getpeername(c->io.fd, (struct sockaddr *)&info->peer, &len);
	info->private_data = c->req.data;
	info->private_len = c->req.data_len;
	info->peer_ird = enhanced ? c->req.ird : UINT32_MAX;
	info->peer_ord = enhanced ? c->req.ord : UINT32_MAX;
	info->revision = c->req.rev;
	info->peer_to_peer = c->req.p2p;
}

/* ---- frames ---- */

static int send_all(struct cep *c, const uint8_t *buf, int len)
{
	ssize_t n;

	if (len < 0)
		return len;
	tsan_sends(c->io.fd);
	do {
		n = send(c->io.fd, buf, (size_t)len, MSG_DONTWAIT | MSG_NOSIGNAL);
	} while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	/* The send buffer of a fresh connection holds many such frames. */
	return n == len ? 0 : -ENOBUFS;
}

static int send_request(struct cep *c)
{
	uint8_t buf[FRAME_MAX];
	int rc;

	mpa_make_request(&c->policy, c->own, c->own_len, &c->req);
	rc = send_all(c, buf, mpa_frame_encode(&c->req, buf, sizeof(buf)));
	if (rc)
		return rc;
	c->in_len = 0;
	return engine_watch(c->engine, &c->io, EPOLLIN);
}

static int send_reply(struct cep *c)
{
	uint8_t buf[FRAME_MAX];

	c->rep.data = c->own;
	c->rep.data_len = c->own_len;
	return send_all(c, buf, mpa_frame_encode(&c->rep, buf, sizeof(buf)));
}

/* RFC 6581: a reply that we cannot live with is answered by a Terminate in an FPDU. */
static void send_terminate(struct cep *c, uint32_t fault)
{
	struct mpa_stream out = { .crc = c->terms.crc, .markers = c->terms.tx_markers };
	struct ddp_params p = { .dv = 1, .rv = 1 };
	struct ddp_segment s = {
		.opcode = RDMAP_TERMINATE, .last = true, .qn = DDP_QN_TERMINATE, .msn = 1
	};
	struct rdmap_terminate t;
	uint8_t body[128] = { 0 }, fpdu[160];
	size_t n = MPA_LEN_LEN;

	rdmap_terminate_for(&t, fault, NULL, 0, 0, NULL);
	n += ddp_encode(&p, &s, body + n);
	n += rdmap_terminate_encode(&t, body + n);
	put_be16(body, (uint16_t)(n - MPA_LEN_LEN));
	n += mpa_pad(n - MPA_LEN_LEN);
	n = mpa_fpdu_build(&out, body, n, fpdu);
	send_all(c, fpdu, (int)n);
	c->last_word = true;
}

/* How many octets of the frame are still missing. Reading exactly these leaves what the peer put
 * behind its frame, which is RDMA data already, in the socket for the queue pair. */
static size_t frame_missing(const struct cep *c)
{
	if (c->in_len < MPA_FRAME_LEN)
		return MPA_FRAME_LEN - c->in_len;
	return MPA_FRAME_LEN + get_be16(c->in + 18) - c->in_len;
}

/* As recv(2), but what was read before comes first. */
static ssize_t take(struct cep *c, uint8_t *to, size_t len)
{
	size_t early = min_size(len, c->early_len - c->early_at);

	if (!early) {
		ssize_t n = recv(c->io.fd, to, len, MSG_DONTWAIT);

		tsan_received(c->io.fd);
		return n;
	}
	memcpy(to, c->early + c->early_at, early);
	c->early_at += early;
	return (ssize_t)early;
}

/* 0: complete, -EAGAIN, -EPROTO, -ECONNRESET at the end of the stream, other -errno. */
static int read_frame(struct cep *c, struct mpa_frame *f)
{
	int rc;

	for (;;) {
		ssize_t n;

		rc = mpa_frame_decode(f, c->in, c->in_len, c->initiator);
		if (rc != -EAGAIN)
			return rc > 0 ? 0 : rc;
		n = take(c, c->in + c->in_len, frame_missing(c));
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n ? -errno : -ECONNRESET;
		c->in_len = (uint16_t)(c->in_len + n);
	}
}

/* ---- actions ---- */

static int dial(struct cep *c)
{
	int one = 1, rc;
	int fd = fd_keep(
		socket(c->remote.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));

	if (fd < 0)
		return -errno;
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	engine_io_take(&c->io, fd);
	if (c->local_len && bind(fd, (struct sockaddr *)&c->local, c->local_len) < 0) {
		rc = -errno;
	} else if (connect(fd, (struct sockaddr *)&c->remote, c->remote_len) < 0 &&
		   errno != EINPROGRESS) {
		rc = -errno;
	} else {
		rc = engine_watch(c->engine, &c->io, EPOLLOUT);
	}
	if (rc)
		close_stream(c);
	return rc;
}

static int redial(struct cep *c)
{
	close_stream(c);
	c->policy.rev = 1;
	c->policy.p2p = false;
	c->fallback = false;
	return dial(c);
}

static int enter_rdma(struct cep *c)
{
	struct qp_start start = { .fd = c->io.fd,
				  .terms = &c->terms,
				  .initiator = c->initiator,
				  .lenient = c->lenient,
				  .fpdu_max = c->fpdu_max,
				  .deny = c->deny,
				  .early = c->early ? c->early + c->early_at : NULL,
				  .early_len = c->early_len - c->early_at };
	int rc;

	engine_forget(c->engine, &c->io);
	c->io.fd = -1;
	rc = qp_establish(c->qp, &start);
	if (rc)
		c->io.fd = start.fd;
	return rc;
}

/* Rejected: wait a moment for the peer to close first. Peers that do not are not worth much. */
static int await_end(struct cep *c)
{
	int rc;

	if (atomic_load(&c->rnic->n_refused) >= REFUSED_MAX)
		return -ENOBUFS;
	rc = engine_watch(c->engine, &c->io, EPOLLIN);
	if (rc)
		return rc;
	engine_timer_arm(c->engine, &c->timer, REFUSED_MS);
	c->refused = true;
	atomic_fetch_add(&c->rnic->n_refused, 1);
	return 0;
}

/* The actions that can fail. They come before the state changes. */
static int perform(struct cep *c, uint16_t actions)
{
	int rc = 0;

	if (actions & MPA_ACT_TX_REQUEST)
		rc = send_request(c);
	if (rc == 0 && actions & (MPA_ACT_TX_REPLY | MPA_ACT_TX_REJECT))
		rc = send_reply(c);
	if (rc == 0 && actions & MPA_ACT_REDIAL)
		rc = redial(c);
	if (rc == 0 && actions & MPA_ACT_ENTER_RDMA)
		rc = enter_rdma(c);
	if (rc == 0 && actions & MPA_ACT_AWAIT_END)
		rc = await_end(c);
	if (rc == 0 && c->lost)
		return -(c->err ? c->err : ECONNRESET);
	return rc;
}

static void tell(struct cep *c, uint16_t actions)
{
	if (actions & MPA_ACT_TELL_REQUEST && !c->adopted)
		listener_requested(c->listener, c);
	if (actions & MPA_ACT_TELL_ACCEPTED)
		tell_up(c, FLUE_EVENT_ACCEPTED, 0);
	if (actions & MPA_ACT_TELL_CONNECTED)
		tell_up(c, FLUE_EVENT_CONNECTED, 0);
	if (actions & MPA_ACT_TELL_FAILED)
		tell_up(c, FLUE_EVENT_CONNECT_FAILED, c->err ? c->err : ECONNRESET);
}

static void give_up_stream(struct cep *c)
{
	close_stream(c);
	/* A responder's queue pair may hold the stream already, waiting for the first message. */
	if (c->qp && c->qp->io.fd >= 0)
		qp_apply(c->qp, QPE_ABORT, FLUE_CLOSE_ABORTED, (uint32_t)c->err);
}

/* Each step of an ordinary connection has the whole time; a conversion has it once. */
static uint64_t time_left(const struct cep *c)
{
	uint64_t now = clock_now();

	if (!c->adopted)
		return c->timeout_ms;
	return now < c->deadline ? (c->deadline - now) / NSEC_PER_MSEC + 1 : 1;
}

static void cep_apply(struct cep *c, enum mpa_event e)
{
	struct fsm_edge edge = mpa_fsm_step(c->state, e);
	int rc;

	if (edge.next == MPA_ILLEGAL)
		return;
	c->busy = true;
	rc = perform(c, edge.actions);
	if (rc < 0) {
		c->err = -rc;
		edge = mpa_fsm_step(c->state, MPA_EV_LOST);
	}
	c->state = edge.next;
	if (edge.actions & MPA_ACT_STOP_TIMER)
		engine_timer_stop(c->engine, &c->timer);
	if (edge.actions & MPA_ACT_ARM_TIMER)
		engine_timer_arm(c->engine, &c->timer, time_left(c));
	tell(c, edge.actions);
	if (edge.actions & MPA_ACT_CLOSE)
		give_up_stream(c);
	c->busy = false;
	if (c->state == MPA_OPEN || c->state == MPA_CLOSED)
		cep_free(c);
	else if (c->state == MPA_WAIT_RTR && c->qp->rx.any)
		cep_apply(c, MPA_EV_RX_FPDU); /* it was among the octets that were read before */
}

/* ---- events from the socket ---- */

static void got_reply(struct cep *c)
{
	int rc = mpa_take_reply(&c->policy, &c->req, &c->rep, &c->terms);

	c->err = -rc;
	switch (rc) {
	case 0: cep_apply(c, c->defer ? MPA_EV_RX_REPLY_DEFER : MPA_EV_RX_REPLY); return;
	case -ECONNREFUSED: cep_apply(c, MPA_EV_RX_REJECT); return;
	case -ENOBUFS: send_terminate(c, FAULT_MPA_IRD); break;
	case -ENOMSG:
		send_terminate(c, FAULT_MPA_RTR);
		c->err = EPROTO;
		break;
	default: break;
	}
	cep_apply(c, MPA_EV_RX_BAD);
}

/* Refused: the queue pair is told and free again, the peer may read our answer and close. */
static void refuse_adopted(struct cep *c, int err)
{
	struct qp *q = c->qp;

	tell_up(c, FLUE_EVENT_CONNECT_FAILED, err);
	q->cep = NULL;
	c->qp = NULL;
	mpa_make_reject(&c->rep);
	c->own_len = 0;
	engine_timer_stop(c->engine, &c->timer);
	cep_apply(c, MPA_EV_REJECT);
}

static void accept_now(struct cep *c)
{
	if (c->defer)
		cep_apply(c, MPA_EV_ACCEPT_DEFER);
	else
		cep_apply(c, c->terms.p2p ? MPA_EV_ACCEPT_P2P : MPA_EV_ACCEPT);
}

/* The request on an adopted stream; what to answer was said when it was adopted. */
static void got_awaited_request(struct cep *c)
{
	int rc = mpa_answer_request(&c->policy, &c->req, &c->rep, &c->terms);

	if (rc == 0 && c->own_len > MPA_PD_MAX - MPA_ENHANCED_LEN &&
	    c->req.flags & MPA_FLAG_ENHANCED)
		rc = -EINVAL;
	if (rc) {
		refuse_adopted(c, -rc);
		return;
	}
	cep_apply(c, MPA_EV_RX_REQUEST);
	accept_now(c);
}

static void got_request(struct cep *c)
{
	/* What our users may later accept; only what nobody could accept is refused here. */
	struct mpa_policy any = { .rev = 2, .markers_ok = true, .ird_max = MPA_DEPTH_MAX };
	int rc = mpa_answer_request(&any, &c->req, &c->rep, &c->terms);

	if (rc) {
		c->own_len = 0;
		cep_apply(c, MPA_EV_REJECT);
		return;
	}
	cep_apply(c, MPA_EV_RX_REQUEST);
}

static void frame_ready(struct cep *c)
{
	int rc = read_frame(c, c->initiator ? &c->rep : &c->req);

	if (rc == -EAGAIN)
		return;
	engine_forget(c->engine, &c->io);
	if (rc == 0) {
		if (c->initiator)
			got_reply(c);
		else if (c->adopted)
			got_awaited_request(c);
		else
			got_request(c);
		return;
	}
	c->err = -rc;
	/* A peer that only knows revision 1 closes without a word (RFC 6581 section 6). */
	if (c->fallback && c->in_len == 0 && rc != -EPROTO)
		cep_apply(c, MPA_EV_LOST_RETRY);
	else
		cep_apply(c, rc == -EPROTO ? MPA_EV_RX_BAD : MPA_EV_LOST);
}

static void dial_ready(struct cep *c)
{
	int err = 0;
	socklen_t len = sizeof(err);

	if (getsockopt(c->io.fd, SOL_SOCKET, SO_ERROR, &err, &len) < 0)
		err = errno;
	c->err = err;
	cep_apply(c, err ? MPA_EV_LOST : MPA_EV_TCP_UP);
}

/* A rejected peer has nothing to say that matters, but its end does. */
static void refused_ready(struct cep *c)
{
	ssize_t n = recv(c->io.fd, c->in, sizeof(c->in), MSG_DONTWAIT);

	if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
		cep_apply(c, MPA_EV_LOST);
}

static void ready(struct engine_io *io, uint32_t events)
{
	struct cep *c = container_of(io, struct cep, io);

	(void)events;
	if (c->state == MPA_DIALING)
		dial_ready(c);
	else if (c->state == MPA_REFUSED)
		refused_ready(c);
	else
		frame_ready(c);
}

/* ---- calls ---- */

static void set_policy(struct cep *c, const struct flue_conn_attr *a)
{
	uint8_t rtr = (uint8_t)((a->flags & FLUE_CONN_RTR_SEND ? MPA_RTR_SEND : 0) |
				(a->flags & FLUE_CONN_RTR_WRITE ? MPA_RTR_WRITE : 0) |
				(a->flags & FLUE_CONN_RTR_READ ? MPA_RTR_READ : 0));

	/* A responder takes any kind; an initiator offers what others are known to take. */
	if (!rtr)
		rtr = MPA_RTR_WRITE | MPA_RTR_READ | (c->initiator ? 0 : MPA_RTR_SEND);
	c->policy = (struct mpa_policy) {
		.rev = a->flags & FLUE_CONN_REV1 ? 1 : 2,
		.crc = !(a->flags & FLUE_CONN_NO_CRC),
		.markers = a->flags & FLUE_CONN_MARKERS,
		.markers_ok = true,
		.p2p = !(a->flags & (FLUE_CONN_TWO_WAY | FLUE_CONN_REV1)),
		.rtr = rtr,
		.own_peer = !(a->flags & FLUE_CONN_STRICT_PEER),
		.ird = (uint16_t)a->ird,
		.ord = (uint16_t)a->ord,
		.ird_max = RNIC_MAX_ORD,
		/* The layer above has put its default where there was no wish. */
		.no_reads = a->ird == 0,
	};
	c->defer = a->flags & FLUE_CONN_DEFER;
	c->lenient = a->flags & FLUE_CONN_LENIENT;
	c->fallback = !(a->flags & (FLUE_CONN_REV1 | FLUE_CONN_NO_FALLBACK));
	c->timeout_ms = (uint32_t)a->timeout_ms;
	c->fpdu_max = a->fpdu_max;
}

static int take_private(struct cep *c, const void *data, size_t len, bool enhanced)
{
	if (len > MPA_PD_MAX - (enhanced ? MPA_ENHANCED_LEN : 0))
		return -EINVAL;
	if (len)
		memcpy(c->own, data, len);
	c->own_len = (uint16_t)len;
	return 0;
}

/* CQs may live on other engines; their threads must exist before something completes there. */
static int start_engines(struct qp *q)
{
	struct engine *e[3] = { q->send_cq->engine, q->recv_cq->engine, q->engine };
	int rc = 0;

	for (unsigned i = 0; i < ARRAY_SIZE(e) && rc == 0; i++) {
		engine_lock(e[i]);
		rc = engine_start(e[i]);
		engine_unlock(e[i]);
	}
	return rc;
}

static int begin_dial(struct qp *q, const struct flue_conn_attr *a)
{
	struct cep *c;
	int rc;

	if (q->state != QPS_IDLE || q->cep || q->connected)
		return -EISCONN;
	c = cep_new(q->rnic, q->engine);
	if (!c)
		return -ENOMEM;
	c->initiator = true;
	set_policy(c, a);
	rc = take_private(c, a->private_data, a->private_len, c->policy.rev == 2);
	if (rc == 0) {
		memcpy(&c->remote, a->remote, a->remote_len);
		c->remote_len = a->remote_len;
		if (a->local)
			memcpy(&c->local, a->local, a->local_len);
		c->local_len = a->local ? a->local_len : 0;
		rc = dial(c);
	}
	if (rc) {
		cep_free(c);
		return rc;
	}
	c->qp = q;
	q->cep = c;
	cep_apply(c, MPA_EV_DIAL);
	return 0;
}

int cep_connect(struct qp *q, const struct flue_conn_attr *a)
{
	int rc;

	if (!a->remote || a->remote_len > sizeof(struct sockaddr_storage) ||
	    (a->local && a->local_len > sizeof(struct sockaddr_storage)))
		return -EINVAL;
	rc = start_engines(q);
	if (rc)
		return rc;
	engine_lock(q->engine);
	rc = begin_dial(q, a);
	engine_unlock(q->engine);
	return rc;
}

/* RDMAC style: what the exchange of frames would have settled. */
static void agreed_terms(struct cep *c)
{
	c->terms = (struct mpa_terms) { .rev = 0,
					.crc = c->policy.crc,
					.tx_markers = c->policy.markers,
					.rx_markers = c->policy.markers,
					.ird = c->policy.ird,
					.ord = c->policy.ord };
}

static int keep_early(struct cep *c, const struct cep_adopt *a)
{
	if (a->early_len > ENGINE_BUF_SIZE)
		return -EINVAL;
	if (!a->early_len)
		return 0;
	c->early = malloc(a->early_len);
	if (!c->early)
		return -ENOMEM;
	memcpy(c->early, a->early, a->early_len);
	c->early_len = a->early_len;
	return 0;
}

/* The descriptor is the program's until nothing can fail any more without being told. */
static int prepare_adopted(struct cep *c, const struct cep_adopt *a,
			   const struct flue_conn_attr *attr)
{
	int rc;

	c->adopted = true;
	c->initiator = a->initiator;
	c->deny = a->deny;
	set_policy(c, attr);
	c->fallback = false; /* there is no address to try again */
	c->deadline = clock_now() + c->timeout_ms * NSEC_PER_MSEC;
	rc = take_private(c, attr->private_data, attr->private_len,
			  a->initiator && c->policy.rev == 2);
	if (rc == 0)
		rc = keep_early(c, a);
	if (rc == 0 && a->raw)
		agreed_terms(c);
	return rc;
}

static void own_stream(int fd)
{
	struct linger no = { .l_onoff = 0 };
	int one = 1, off = 0;

	/* What a program may have set for its streaming data, and would stall us. */
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	setsockopt(fd, IPPROTO_TCP, TCP_CORK, &off, sizeof(off));
	setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof(one));
	setsockopt(fd, SOL_SOCKET, SO_LINGER, &no, sizeof(no));
	fcntl(fd, F_SETFD, FD_CLOEXEC);
}

static int begin_adopted(struct qp *q, const struct cep_adopt *a, const struct flue_conn_attr *attr)
{
	struct cep *c;
	int rc, fd;

	if (q->state != QPS_IDLE || q->cep || q->connected)
		return -EISCONN;
	c = cep_new(q->rnic, q->engine);
	if (!c)
		return -ENOMEM;
	fd = fd_copy(a->fd);
	rc = prepare_adopted(c, a, attr);
	if (rc == 0) {
		engine_io_take(&c->io, fd < 0 ? a->fd : fd);
		rc = engine_watch(c->engine, &c->io, EPOLLIN);
	}
	if (rc) {
		fd_release(c->io.fd);
		c->io.fd = -1;
		cep_free(c);
		if (fd >= 0)
			close(fd);
		return rc;
	}
	own_stream(c->io.fd);
	if (fd >= 0)
		close(a->fd);
	c->qp = q;
	q->cep = c;
	if (a->raw)
		cep_apply(c, MPA_EV_ADOPT_RAW);
	else
		cep_apply(c, a->initiator ? MPA_EV_ADOPT : MPA_EV_TCP_IN);
	/* What was read before raises no event any more. */
	if (!a->raw && q->cep == c && c->early_len)
		frame_ready(c);
	return 0;
}

int cep_adopt(struct qp *q, const struct cep_adopt *a, const struct flue_conn_attr *attr)
{
	int rc = start_engines(q);

	if (rc)
		return rc;
	engine_lock(q->engine);
	rc = begin_adopted(q, a, attr);
	engine_unlock(q->engine);
	return rc;
}

int cep_start(struct qp *q)
{
	struct cep *c;
	int rc = -EINVAL;

	engine_lock(q->engine);
	c = q->cep;
	if (c && (c->state == MPA_HELD || c->state == MPA_PARKED)) {
		cep_apply(c, !c->initiator && c->terms.p2p ? MPA_EV_START_P2P : MPA_EV_START);
		rc = 0;
	}
	engine_unlock(q->engine);
	return rc;
}

/* Under the lock of q's engine; the request is nobody else's. */
static int answer(struct cep *c, struct qp *q, const struct flue_conn_attr *a)
{
	int rc;

	if (q->state != QPS_IDLE || q->cep || q->connected)
		return -EISCONN;
	set_policy(c, a);
	rc = mpa_answer_request(&c->policy, &c->req, &c->rep, &c->terms);
	if (rc == 0)
		rc = take_private(c, a->private_data, a->private_len,
				  c->req.flags & MPA_FLAG_ENHANCED);
	if (rc)
		return rc;
	c->qp = q;
	q->cep = c;
	accept_now(c);
	return 0;
}

int cep_accept(struct cep *c, struct qp *q, const struct flue_conn_attr *a)
{
	int rc = start_engines(q);

	if (rc) {
		cep_reject(c, NULL, 0);
		return rc;
	}
	engine_lock(q->engine);
	c->engine = q->engine;
	rc = answer(c, q, a);
	engine_unlock(q->engine);
	if (rc)
		cep_reject(c, NULL, 0);
	return rc;
}

int cep_reject(struct cep *c, const void *data, size_t length)
{
	struct engine *e = c->engine;
	int rc;

	engine_lock(e);
	rc = take_private(c, data, length, c->req.flags & MPA_FLAG_ENHANCED);
	if (rc)
		c->own_len = 0;
	mpa_make_reject(&c->rep);
	cep_apply(c, MPA_EV_REJECT);
	engine_unlock(e);
	return rc;
}

int cep_incoming(struct listener *l, int fd, const struct sockaddr_storage *peer)
{
	struct cep *c = cep_new(l->rnic, l->engine);
	int one = 1, rc;

	if (!c) {
		close(fd);
		return -ENOMEM;
	}
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	engine_io_take(&c->io, fd);
	c->timeout_ms = (uint32_t)l->request_timeout_ms;
	listener_add(l, c, peer);
	rc = engine_watch(c->engine, &c->io, EPOLLIN);
	if (rc) {
		cep_free(c);
		return rc;
	}
	cep_apply(c, MPA_EV_TCP_IN);
	return 0;
}

void cep_abort(struct cep *c, int err)
{
	c->err = err;
	cep_apply(c, MPA_EV_ABORT);
}

void cep_abandon(struct cep *c)
{
	cep_free(c);
}

void cep_stream_lost(struct cep *c, int err)
{
	if (c->busy) {
		c->lost = true;
		if (!c->err)
			c->err = err;
		return;
	}
	c->err = err;
	cep_apply(c, MPA_EV_LOST);
}

void cep_first_fpdu(struct cep *c)
{
	cep_apply(c, MPA_EV_RX_FPDU);
}

void cep_fork_child(struct cep *c)
{
	engine_io_close(&c->io);
	c->timer.at = 0;
}
