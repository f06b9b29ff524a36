/* SPDX-License-Identifier: MIT */
/* Endpoints: life, what is told, and the machine with its actions. */
#include "rnic/cep.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/probe.h"
#include "base/util.h"
#include "rnic/bringup.h"
#include "rnic/cep_priv.h"
#include "rnic/link_tcp.h"
#include "rnic/listener.h"
#include "rnic/local.h"
#include "rnic/qp.h"

#define REFUSED_MS  1000 /* how long a rejected peer may take to close */
#define REFUSED_MAX 64   /* ... and how many of them are waited for */

/* ---- life ---- */

static void fire_timer(struct engine_timer *t)
{
	struct cep *c = container_of(t, struct cep, timer);

	c->err = ETIMEDOUT;
	cep_apply(c, MPA_EV_TIMEOUT);
}

struct cep *cep_new(struct rnic *r, struct engine *e)
{
	struct cep *c = calloc(1, sizeof(*c));

	if (!c)
		return NULL;
	c->rnic = r;
	c->engine = e;
	c->io.fd = -1;
	c->io.ready = cep_ready;
	c->timer.fire = fire_timer;
	c->state = MPA_NEW;
	pthread_mutex_lock(&r->lists);
	LIST_INSERT_HEAD(&r->ceps, c, all);
	pthread_mutex_unlock(&r->lists);
	return c;
}

void cep_close_stream(struct cep *c)
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
void cep_free(struct cep *c)
{
	engine_timer_stop(c->engine, &c->timer);
	cep_close_stream(c);
	if (c->circuit && !c->joined)
		local_withdraw(c->engine, c->circuit);
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

/* Nobody dials again from here on: these are the connection's own. */
static void keep_addresses(struct cep *c)
{
	if (c->addressed)
		return;
	c->addressed = true;
	c->local_len = sizeof(c->local);
	memset(&c->local, 0, sizeof(c->local));
	getsockname(c->io.fd, (struct sockaddr *)&c->local, &c->local_len);
	if (c->remote_len && !c->initiator)
		return; /* who called is known since then */
	c->remote_len = sizeof(c->remote);
	memset(&c->remote, 0, sizeof(c->remote));
	getpeername(c->io.fd, (struct sockaddr *)&c->remote, &c->remote_len);
}

static void fill_info(struct cep *c)
{
	struct qp_news *news = c->qp->news;
	const struct mpa_frame *peer = c->initiator ? &c->rep : &c->req;

	if (c->io.fd >= 0)
		keep_addresses(c);
	memset(&news->info, 0, sizeof(news->info));
	if (c->io.fd >= 0 || link_is_open(c->qp->link)) {
		news->info.local = c->local;
		news->info.peer = c->remote;
	}
	news->info.ird = c->terms.ird;
	news->info.ord = c->terms.ord;
	news->info.private_len = peer->data_len;
	if (peer->data_len)
		memcpy(news->private_data, peer->data, peer->data_len);
	news->info.private_data = news->private_data;
}

void cep_tell_up(struct cep *c, uint32_t type, int err)
{
	struct qp *q = c->qp;

	if (!q || q->doomed || qp_expect_news(q))
		return;
	fill_info(c);
	if (q->bringup)
		return; /* see finish() */
	q->news->ev = (struct flue_event) { .type = type, .detail = (uint32_t)err };
	q->connected = type == FLUE_EVENT_CONNECTED;
	engine_tell(q->engine, &q->note_up);
}

void cep_describe(struct cep *c, struct rnic_request_info *info)
{
	bool enhanced = c->req.flags & MPA_FLAG_ENHANCED;

	keep_addresses(c);
	memset(info, 0, sizeof(*info));
	info->local = c->local;
	info->peer = c->remote;
	info->private_data = c->req.data;
	info->private_len = c->req.data_len;
	info->peer_ird = enhanced ? c->req.ird : UINT32_MAX;
	info->peer_ord = enhanced ? c->req.ord : UINT32_MAX;
	info->revision = c->req.rev;
	info->peer_to_peer = c->req.p2p;
	info->full = c->full;
}

/* ---- actions ---- */

/* The stream stays until both ends have the link. */
static int enter_local(struct cep *c, const struct qp_start *start)
{
	struct link *link;
	int rc = 0;

	if (c->initiator)
		rc = local_join(c->engine, c->circuit, &c->rep.identity.local);
	if (!rc)
		rc = link_local_create(c->qp, c->circuit, &link);
	if (rc)
		return rc;
	rc = qp_establish(c->qp, start, link);
	if (rc) {
		link_local_return(link);
		return rc;
	}
	c->joined = true;
	return c->initiator ? 0 : engine_watch(c->engine, &c->io, EPOLLIN);
}

static int enter_rdma(struct cep *c)
{
	struct link_tcp_attr attr = { .io = &c->io,
				      .terms = &c->terms,
				      .fpdu_max = c->fpdu_max,
				      .early = c->early ? c->early + c->early_at : NULL,
				      .early_len = c->early_len - c->early_at };
	struct qp_start start = { .terms = &c->terms,
				  .initiator = c->initiator,
				  .lenient = c->lenient,
				  .rfc7306 = c->rfc7306,
				  .deny = c->deny };
	struct link *link;
	int rc;

	keep_addresses(c);
	if (c->in_memory) {
		engine_forget(c->engine, &c->io);
		return enter_local(c, &start);
	}
	rc = link_tcp_create(c->qp, &attr, &link);
	if (rc)
		return rc;
	rc = qp_establish(c->qp, &start, link);
	if (rc)
		link_tcp_return(link, &c->io);
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
		rc = cep_send_request(c);
	if (rc == 0 && actions & (MPA_ACT_TX_REPLY | MPA_ACT_TX_REJECT))
		rc = cep_send_reply(c);
	if (rc == 0 && actions & MPA_ACT_REDIAL)
		rc = cep_redial(c);
	if (rc == 0 && actions & MPA_ACT_ENTER_RDMA)
		rc = enter_rdma(c);
	if (rc == 0 && actions & MPA_ACT_AWAIT_END)
		rc = await_end(c);
	return rc;
}

static void tell(struct cep *c, uint16_t actions)
{
	if (actions & MPA_ACT_TELL_REQUEST && !c->adopted)
		listener_requested(c->listener, c);
	if (actions & MPA_ACT_TELL_ACCEPTED)
		cep_tell_up(c, FLUE_EVENT_ACCEPTED, 0);
	if (actions & MPA_ACT_TELL_FAILED)
		cep_tell_up(c, FLUE_EVENT_CONNECT_FAILED, c->err ? c->err : ECONNRESET);
}

static void give_up_stream(struct cep *c)
{
	cep_close_stream(c);
	/* A responder's queue pair may hold the stream already, waiting for the first message. */
	if (c->qp && link_is_open(c->qp->link))
		qp_apply(c->qp, c->qp->bringup ? QPE_LINK_GONE : QPE_ABORT, FLUE_CLOSE_ABORTED,
			 (uint32_t)c->err);
}

/* Each step of an ordinary connection has the whole time; a conversion has it once. */
static uint64_t time_left(const struct cep *c)
{
	uint64_t now = clock_now();

	if (!c->adopted)
		return c->timeout_ms;
	return now < c->deadline ? (c->deadline - now) / NSEC_PER_MSEC + 1 : 1;
}

/* One step. CONNECTED is left to post(): it is told when nothing can take it back any more. */
static uint16_t step(struct cep *c, const struct inbox_event *ev)
{
	struct fsm_edge edge = mpa_fsm_step(c->state, ev->event);
	int rc;

	if (edge.next == MPA_ILLEGAL) {
		rnic_illegal(c->rnic);
		return MPA_ACT_NONE;
	}
	PROBE(setup_state, c, (uint32_t)c->state, (uint32_t)edge.next, (uint32_t)ev->event);
	log_debug(rnic, "set-up %p, queue pair %u: %s in %s: now %s", (void *)c,
		  c->qp ? qp_number(c->qp) : 0, fsm_event_name(&mpa_fsm, ev->event),
		  fsm_state_name(&mpa_fsm, c->state), fsm_state_name(&mpa_fsm, edge.next));
	if (ev->detail)
		c->err = (int)ev->detail;
	rc = perform(c, (uint16_t)edge.actions);
	if (rc < 0) {
		c->err = -rc;
		edge = mpa_fsm_step(c->state, MPA_EV_LOST);
	}
	c->state = edge.next;
	if (edge.actions & MPA_ACT_STOP_TIMER)
		engine_timer_stop(c->engine, &c->timer);
	if (edge.actions & MPA_ACT_ARM_TIMER)
		engine_timer_arm(c->engine, &c->timer, time_left(c));
	tell(c, (uint16_t)edge.actions);
	if (edge.actions & MPA_ACT_CLOSE)
		give_up_stream(c);
	return (uint16_t)edge.actions;
}

/* OPEN or CLOSED: it is done with. Who calls without a connection manager may call again at once. */
static void finish(struct cep *c)
{
	uint32_t type = c->state == MPA_OPEN ? FLUE_EVENT_CONNECTED : FLUE_EVENT_CONNECT_FAILED;
	int err = c->err ? c->err : ECONNRESET;
	bool reached = c->reached || !c->initiator;
	struct qp *q = c->qp;

	cep_free(c);
	if (q && q->bringup)
		bringup_outcome(q, type, err, reached);
}

/* err: 0, or why. */
static void post(struct cep *c, enum mpa_event e, int err)
{
	struct inbox_event ev = { .event = (uint8_t)e, .detail = (uint32_t)err };
	uint16_t actions = 0;

	if (!inbox_post(&c->inbox, &ev)) {
		rnic_lost_event(c->rnic, &c->inbox);
		return;
	}
	while (inbox_take(&c->inbox, &ev))
		actions |= step(c, &ev);
	/* The queue pair may have lost the stream in the very step that made it one. */
	if (actions & MPA_ACT_TELL_CONNECTED && c->state == MPA_CLOSED)
		cep_tell_up(c, FLUE_EVENT_CONNECT_FAILED, c->err ? c->err : ECONNRESET);
	else if (actions & MPA_ACT_TELL_CONNECTED)
		cep_tell_up(c, FLUE_EVENT_CONNECTED, 0);
	if (c->state == MPA_OPEN || c->state == MPA_CLOSED)
		finish(c);
}

void cep_apply(struct cep *c, enum mpa_event e)
{
	post(c, e, 0);
}

/* ---- from outside ---- */

/* CQs may live on other engines; their threads must exist before something completes there. */
int cep_start_engines(struct qp *q)
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
	post(c, MPA_EV_LOST, err);
}

void cep_first_fpdu(struct cep *c)
{
	cep_apply(c, MPA_EV_RX_FPDU);
}

void cep_fork_child(struct cep *c)
{
	c->circuit = NULL; /* its engine's are all gone */
	engine_io_close(&c->io);
	c->timer.at = 0;
}
