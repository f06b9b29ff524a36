/* SPDX-License-Identifier: MIT */
/* Queue pairs: life, posting, completions, and the state machine's actions. */
#include "rnic/qp.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/util.h"
#include "rnic/cep.h"

_Static_assert((int)QPS_IDLE == (int)FLUE_QP_IDLE && (int)QPS_ERROR == (int)FLUE_QP_ERROR,
	       "the machine's states are the public ones");

/* ---- telling ---- */

static void run_down(struct engine_note *n)
{
	struct qp *q = container_of(n, struct qp, note_down);

	q->rnic->up->qp_event(q->rnic->up_ctx, q->owner, &q->ev_down, NULL);
}

static void run_last(struct engine_note *n)
{
	struct qp *q = container_of(n, struct qp, note_last);
	struct flue_event ev = { .type = FLUE_EVENT_LAST_RECEIVE };

	q->rnic->up->qp_event(q->rnic->up_ctx, q->owner, &ev, NULL);
}

static void run_accepted(struct engine_note *n)
{
	struct qp *q = container_of(n, struct qp, note_accepted);
	struct flue_event ev = { .type = FLUE_EVENT_ACCEPTED };

	q->rnic->up->qp_event(q->rnic->up_ctx, q->owner, &ev, &q->info);
}

static void run_up(struct engine_note *n)
{
	struct qp *q = container_of(n, struct qp, note_up);

	q->rnic->up->qp_event(q->rnic->up_ctx, q->owner, &q->ev_up, &q->info);
}

/* ---- life ---- */

/*
 * Two courtesies to peers that are not quite ready when they say so, both seen with Linux siw.
 *
 * Lenient responder: siw's initiator reports an error when octets follow its reply before it has
 * moved its queue pair, so what we send first waits a moment.
 *
 * Initiator: siw's responder installs its receive callback after it has sent the reply, and what
 * arrives in between lies unseen until more comes. A zero-length Write moves nothing and may be
 * sent at any time; a few of them, while the peer is silent, wake it.
 */
#define CLOSE_TIMEOUT_MS 2000 /* where no disconnect() gave another */
#define LENIENT_DELAY_MS 200
#define NUDGE_DELAY_MS   250
#define NUDGES           3

static void be_patient(struct qp *q)
{
	if (q->tx.held && q->tx.lenient) {
		q->tx.held = false;
	} else if (!q->rx.any && q->tx.nudges) {
		q->tx.nudges--;
		q->tx.cur.rtr_owed = true;
		engine_timer_arm(q->engine, &q->timer, NUDGE_DELAY_MS);
	}
	qp_tx_run(q);
}

static void fire_timer(struct engine_timer *t)
{
	struct qp *q = container_of(t, struct qp, timer);

	if (q->state == QPS_RTS)
		be_patient(q);
	else
		qp_apply(q, QPE_TIMEOUT, FLUE_CLOSE_LOST, ETIMEDOUT);
}

static void run_kick(struct engine_kick *k);

static int init_queues(struct qp *q, const struct qp_attr *a)
{
	int rc = wq_init(&q->sq, a->sq_depth, a->sq_sge, a->max_inline);

	if (rc)
		return rc;
	if (a->srq) {
		q->srq_wqe = calloc(1, sizeof(struct wqe) +
					       a->srq->wq.max_sge * sizeof(struct flue_sge));
		rc = q->srq_wqe ? 0 : -ENOMEM;
	} else {
		rc = wq_init(&q->rq, a->rq_depth, a->rq_sge, 0);
	}
	if (rc)
		wq_fini(&q->sq);
	return rc;
}

int qp_create(const struct qp_attr *a, struct qp **out)
{
	struct qp *q = calloc(1, sizeof(*q));
	int rc;

	if (!q)
		return -ENOMEM;
	rc = init_queues(q, a);
	if (rc) {
		free(q);
		return rc;
	}
	q->rnic = a->pd->rnic;
	q->engine = a->recv_cq->engine;
	q->pd = a->pd;
	q->send_cq = a->send_cq;
	q->recv_cq = a->recv_cq;
	q->srq = a->srq;
	q->owner = a->owner;
	q->state_word = a->state;
	q->signal_all = a->signal_all;
	q->qpn = atomic_fetch_add(&q->rnic->next_qpn, 1) + 1;
	q->kick.run = run_kick;
	q->timer.fire = fire_timer;
	q->note_accepted.run = run_accepted;
	q->note_up.run = run_up;
	q->note_down.run = run_down;
	q->note_last.run = run_last;
	q->io.fd = -1;
	cq_attach(q->send_cq, q->engine);
	cq_attach(q->recv_cq, q->engine);
	pthread_mutex_lock(&q->rnic->lists);
	LIST_INSERT_HEAD(&q->rnic->qps, q, all);
	pthread_mutex_unlock(&q->rnic->lists);
	*out = q;
	return 0;
}

/* Gives up the stream: reset = the peer gets an RST, else whatever close(2) does. */
static void drop_stream(struct qp *q, bool reset)
{
	struct sockaddr nobody = { .sa_family = AF_UNSPEC };

	engine_timer_stop(q->engine, &q->timer);
	if (q->io.fd < 0)
		return;
	engine_forget(q->engine, &q->io);
	/* Disconnecting resets at once, also when an adopted descriptor has copies elsewhere. */
	if (reset && engine_io_is_ours(&q->io))
		connect(q->io.fd, &nobody, sizeof(nobody));
	engine_io_close(&q->io);
	qp_tx_reset(q);
	qp_rx_reset(q);
}

void qp_destroy(struct qp *q)
{
	engine_lock(q->engine);
	q->doomed = true;
	if (q->cep)
		cep_abandon(q->cep);
	drop_stream(q, q->state != QPS_IDLE);
	engine_unkick(q->engine, &q->kick);
	engine_unlock(q->engine);
	engine_untell(q->engine, &q->note_accepted);
	engine_untell(q->engine, &q->note_up);
	engine_untell(q->engine, &q->note_down);
	engine_untell(q->engine, &q->note_last);
	cq_purge(q->send_cq, q->owner);
	cq_purge(q->recv_cq, q->owner);
	if (q->srq && q->rx.have_wqe)
		wq_free(&q->srq->wq, 0);
	pthread_mutex_lock(&q->rnic->lists);
	LIST_REMOVE(q, all);
	pthread_mutex_unlock(&q->rnic->lists);
	wq_fini(&q->sq);
	wq_fini(&q->rq);
	free(q->srq_wqe);
	free(q->irq);
	free(q->orq);
	free(q);
}

/* ---- posting ---- */

struct op_rule {
	uint32_t flags; /* allowed beside SIGNALED and the fences */
	uint32_t min_sge, max_sge;
	uint8_t wc_op;
};

static const struct op_rule rules[FLUE_WR_NOPS] = {
	[FLUE_WR_SEND] = { FLUE_SOLICITED | FLUE_INLINE, 0, RNIC_MAX_SGE, FLUE_WC_SEND },
	[FLUE_WR_SEND_INV] = { FLUE_SOLICITED | FLUE_INLINE, 0, RNIC_MAX_SGE, FLUE_WC_SEND },
	[FLUE_WR_WRITE] = { FLUE_INLINE, 0, RNIC_MAX_SGE, FLUE_WC_WRITE },
	[FLUE_WR_READ] = { 0, 0, RNIC_MAX_READ_SGE, FLUE_WC_READ },
	[FLUE_WR_READ_INV] = { 0, 1, RNIC_MAX_READ_SGE, FLUE_WC_READ },
	[FLUE_WR_LOCAL_INV] = { 0, 0, 0, FLUE_WC_LOCAL_INV },
	[FLUE_WR_FAST_REG] = { 0, 0, 0, FLUE_WC_FAST_REG },
	[FLUE_WR_BIND] = { 0, 0, 0, FLUE_WC_BIND_MW },
};

static int check_send(const struct qp *q, const struct flue_send_wr *wr, uint32_t *total)
{
	const struct op_rule *r = &rules[wr->op < FLUE_WR_NOPS ? wr->op : 0];

	if (wr->op >= FLUE_WR_NOPS ||
	    wr->flags & ~(r->flags | FLUE_SIGNALED | FLUE_FENCE | FLUE_LOCAL_FENCE))
		return -EINVAL;
	if (wr->n_sg < r->min_sge || wr->n_sg > r->max_sge || (wr->n_sg && !wr->sg))
		return -EINVAL;
	if (!(wr->flags & FLUE_INLINE) && wr->n_sg > q->sq.max_sge)
		return -EINVAL;
	if (wq_total(wr->sg, wr->n_sg, total))
		return -EINVAL;
	if (wr->flags & FLUE_INLINE && *total > q->sq.max_inline)
		return -EINVAL;
	return 0;
}

static void copy_inline(struct wqe *w, const struct flue_send_wr *wr)
{
	char *to = (char *)w->sg;

	for (uint32_t i = 0; i < wr->n_sg; i++) {
		if (wr->sg[i].length)
			memcpy(to, (const void *)(uintptr_t)wr->sg[i].addr, wr->sg[i].length);
		to += wr->sg[i].length;
	}
	w->n_sg = 0;
}

static int enqueue(struct qp *q, const struct flue_send_wr *wr)
{
	uint32_t total = 0;
	struct wqe *w;
	int rc = check_send(q, wr, &total);

	if (rc)
		return rc;
	w = wq_next(&q->sq);
	if (!w)
		return -ENOMEM;
	w->id = wr->id;
	w->op = (uint8_t)wr->op;
	w->flags = (uint8_t)(wr->flags | (q->signal_all ? FLUE_SIGNALED : 0));
	w->n_sg = wr->n_sg;
	w->total = total;
	w->rkey = wr->rkey;
	w->remote_addr = wr->remote_addr;
	w->reg = wr->reg;
	if (wr->flags & FLUE_INLINE)
		copy_inline(w, wr);
	else if (wr->n_sg)
		memcpy(w->sg, wr->sg, wr->n_sg * sizeof(*wr->sg));
	wq_advance(&q->sq);
	return 0;
}

static bool takes_posts(struct qp *q, bool receive)
{
	switch (__atomic_load_n(q->state_word, __ATOMIC_ACQUIRE)) {
	case FLUE_QP_IDLE: return receive;
	case FLUE_QP_CLOSING:
		/* The close was to be graceful, and now there is work: it ends badly. A program that
		 * gives a receive back while the peer closes could not know, and loses nothing. */
		if (!receive || !atomic_load(&q->peer_closed)) {
			atomic_store(&q->late, true);
			engine_kick(q->engine, &q->kick);
		}
		return false;
	default: return true;
	}
}

int qp_post_send(struct qp *q, const struct flue_send_wr *wr, const struct flue_send_wr **bad)
{
	int rc = 0;

	*bad = wr;
	if (!takes_posts(q, false))
		return -ENOTCONN;
	lock_take(&q->sq.lock);
	for (; wr; wr = wr->next) {
		*bad = wr;
		rc = enqueue(q, wr);
		if (rc)
			break;
	}
	lock_give(&q->sq.lock);
	engine_kick(q->engine, &q->kick);
	return rc;
}

int qp_post_recv(struct qp *q, const struct flue_recv_wr *wr, const struct flue_recv_wr **bad)
{
	int rc = 0;

	*bad = wr;
	if (q->srq)
		return -EINVAL;
	if (!takes_posts(q, true))
		return -ENOTCONN;
	for (; wr && rc == 0; wr = wr->next) {
		*bad = wr;
		rc = wq_post_recv(&q->rq, wr);
	}
	/* Only a queue pair that ended has something to do for a receive: to flush it. */
	if (__atomic_load_n(q->state_word, __ATOMIC_ACQUIRE) == FLUE_QP_ERROR)
		engine_kick(q->engine, &q->kick);
	return rc;
}

/* ---- completing ---- */

static bool push(struct qp *q, struct cq *cq, struct cqe *e, bool solicited)
{
	e->wc.qp = q->owner;
	if (cq_push(cq, e, solicited || e->wc.status != FLUE_WC_SUCCESS))
		return true;
	q->lost = true;
	qp_apply(q, QPE_LOCAL_FAIL, FLUE_CLOSE_LOCAL, EOVERFLOW);
	return false;
}

/* Everything is flushed: no slot waits for a completion that nobody will see. */
static void settle(struct qp *q)
{
	q->lost = false;
	cq_settle(q->send_cq, &q->sq);
	if (!q->srq)
		cq_settle(q->recv_cq, &q->rq);
}

void qp_complete_ready(struct qp *q)
{
	while (wq_fill(&q->sq)) {
		struct wqe *w = wq_at(&q->sq, atomic_load(&q->sq.head));
		struct cqe e = { .wc = { .id = w->id,
					 .status = w->status,
					 .op = rules[w->op].wc_op,
					 .byte_len = w->total },
				 .wq = &q->sq };
		bool say = w->flags & FLUE_SIGNALED || w->status != FLUE_WC_SUCCESS;

		if (w->state != WQE_DONE)
			break;
		/* Retired first: a program that polls this completion may close at once. */
		e.free_to = wq_retire(&q->sq);
		if (say)
			push(q, q->send_cq, &e, false);
	}
}

void qp_finish(struct qp *q, uint32_t n, uint32_t status)
{
	struct wqe *w = wq_at(&q->sq, n);

	w->state = WQE_DONE;
	if (w->status == FLUE_WC_SUCCESS)
		w->status = (uint8_t)status;
	qp_complete_ready(q);
}

bool qp_push_recv(struct qp *q, const struct wqe *w, uint32_t status, uint32_t len, uint32_t flags,
		  uint32_t inv_key)
{
	struct cqe e = { .wc = { .id = w->id,
				 .status = status,
				 .op = FLUE_WC_RECV,
				 .byte_len = len,
				 .flags = flags,
				 .inv_key = inv_key },
			 .wq = q->srq ? &q->srq->wq : &q->rq };

	if (!q->srq)
		e.free_to = wq_retire(&q->rq);
	q->rx.have_wqe = false;
	return push(q, q->recv_cq, &e, flags & FLUE_WC_SOLICITED);
}

static void flush_sq(struct qp *q)
{
	uint32_t tail = atomic_load_explicit(&q->sq.tail, memory_order_acquire);

	/* Later requests may be done already, behind a Read that never was: they are flushed too,
	 * because nothing may succeed after a failure. */
	for (uint32_t n = atomic_load(&q->sq.head); n != tail; n++) {
		struct wqe *w = wq_at(&q->sq, n);

		w->state = WQE_DONE;
		if (w->status == FLUE_WC_SUCCESS)
			w->status = FLUE_WC_FLUSHED;
	}
	q->tx.cur.next_wqe = tail;
	qp_complete_ready(q);
}

static void flush_rq(struct qp *q)
{
	if (q->srq) {
		if (q->rx.have_wqe)
			qp_push_recv(q, q->srq_wqe, FLUE_WC_FLUSHED, 0, 0, 0);
		return;
	}
	while (wq_fill(&q->rq)) {
		struct wqe *w = wq_at(&q->rq, atomic_load(&q->rq.head));

		qp_push_recv(q, w, FLUE_WC_FLUSHED, 0, 0, 0);
	}
}

/* In the new state. */
static void flush(struct qp *q, bool sends)
{
	if (sends)
		flush_sq(q);
	flush_rq(q);
	if (q->state != QPS_CLOSING)
		settle(q);
}

static void run_kick(struct engine_kick *k)
{
	struct qp *q = container_of(k, struct qp, kick);

	if (q->state == QPS_CLOSING && atomic_exchange(&q->late, false))
		qp_apply(q, QPE_POSTED, FLUE_CLOSE_BAD, ENOTCONN);
	if (q->state == QPS_RTS) {
		qp_tx_run(q);
	} else if (q->state != QPS_TERMINATE) {
		/* Posted just before the state changed, or after an error. */
		flush_sq(q);
		if (q->state == QPS_ERROR)
			flush_rq(q);
		if (q->lost)
			settle(q);
	}
}

/* ---- the machine ---- */

bool qp_is_idle(const struct qp *q)
{
	const struct tx_cursor *c = &q->tx.cur;

	return wq_fill((struct wq *)&q->sq) == 0 && q->orq_head == c->orq_tail &&
	       q->irq_head == q->irq_tail && !q->tx.has_part && c->kind == TX_NONE && !c->rtr_owed;
}

static void tell_end(struct qp *q)
{
	if (q->doomed)
		return;
	if (q->srq && q->state == QPS_ERROR)
		engine_tell(q->engine, &q->note_last);
	if (q->connected) {
		q->connected = false;
		q->ev_down = (struct flue_event) { .type = FLUE_EVENT_DISCONNECTED,
						   .reason = q->reason,
						   .detail = q->detail };
		engine_tell(q->engine, &q->note_down);
	} else if (q->cep) {
		/* The responder's set-up was not finished: this is a failed connection. */
		cep_stream_lost(q->cep, q->reason == FLUE_CLOSE_LOST ? (int)q->detail : ECONNRESET);
	}
}

static void set_state(struct qp *q, uint8_t state)
{
	q->state = state;
	/* In total order with the queues' counters: either a receive posted just now is seen by the
	 * flush that follows, or its poster sees this and asks for another. */
	__atomic_store_n(q->state_word, state, __ATOMIC_SEQ_CST);
}

static void keep_reason(struct qp *q, uint32_t reason, uint32_t detail)
{
	bool answering = q->state == QPS_CLOSING && atomic_load(&q->peer_closed);

	/* What goes wrong while we answer the peer's close makes it a bad one. */
	if (answering && (reason == FLUE_CLOSE_RESET || reason == FLUE_CLOSE_LOST))
		reason = FLUE_CLOSE_BAD;
	q->reason = reason;
	q->detail = detail;
}

void qp_apply(struct qp *q, enum qp_fsm_event e, uint32_t reason, uint32_t detail)
{
	struct fsm_edge edge = qp_fsm_step(q->state, e);
	uint8_t before = q->state;

	if (edge.next == QPS_ILLEGAL)
		return;
	/* The first cause counts: what follows a Terminate is its consequence. */
	if (before != QPS_TERMINATE && edge.next != before)
		keep_reason(q, reason, detail);
	set_state(q, edge.next);
	if (edge.actions & QPA_STOP)
		engine_timer_stop(q->engine, &q->timer);
	if (edge.actions & QPA_TERM)
		q->tx.term_owed = true;
	if (edge.actions & QPA_FIN)
		q->tx.fin_wanted = true;
	if (edge.actions & QPA_TIMER)
		engine_timer_arm(q->engine, &q->timer, (uint64_t)q->close_timeout_ms);
	if (edge.actions & (QPA_RESET | QPA_CLOSE))
		drop_stream(q, edge.actions & QPA_RESET);
	else if (edge.actions & QPA_FIN)
		qp_tx_run(q);
	if (edge.actions & (QPA_FLUSH | QPA_FLUSH_RQ))
		flush(q, edge.actions & QPA_FLUSH);
	if (edge.actions & QPA_TELL)
		tell_end(q);
}

void qp_fault(struct qp *q, uint32_t fault, const uint8_t *ulpdu, size_t have, size_t ulpdu_len,
	      const struct ddp_segment *seg)
{
	if (q->state == QPS_RTS)
		rdmap_terminate_for(&q->tx.term, fault, ulpdu, have, ulpdu_len, seg);
	qp_apply(q, QPE_FAULT, FLUE_CLOSE_FAULT, fault & 0xffff);
}

void qp_fail_request(struct qp *q, uint32_t n, uint32_t status)
{
	qp_finish(q, n, status);
	qp_fault(q, FAULT_RDMAP_CATASTROPHIC, NULL, 0, 0, NULL);
}

void qp_llp_error(struct qp *q, int err)
{
	/* EPIPE is how Linux words a reset that came after the peer's FIN. */
	if (err == ECONNRESET || err == EPIPE)
		qp_apply(q, QPE_LLP_RESET, FLUE_CLOSE_RESET, ECONNRESET);
	else
		qp_apply(q, QPE_LLP_LOST, FLUE_CLOSE_LOST, (uint32_t)err);
}

/* Both halves are closed; ours is finished when the peer has acknowledged our FIN. */
static void look_for_the_end(struct qp *q)
{
	struct tcp_info info = { 0 };
	socklen_t len = sizeof(info);
	int err = 0;

	if (getsockopt(q->io.fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 &&
	    info.tcpi_state != TCP_CLOSE)
		return;
	len = sizeof(err);
	if (getsockopt(q->io.fd, SOL_SOCKET, SO_ERROR, &err, &len) < 0)
		err = errno;
	if (err)
		qp_llp_error(q, err);
	else
		qp_apply(q, QPE_LLP_CLOSED, FLUE_CLOSE_GRACEFUL, 0);
}

void qp_peer_closed(struct qp *q)
{
	int rc;

	if (q->state == QPS_RTS)
		atomic_store(&q->peer_closed, true);
	qp_apply(q, QPE_FIN_IDLE, FLUE_CLOSE_GRACEFUL, 0);
	if (q->state != QPS_CLOSING || q->io.fd < 0)
		return;
	/* The end of the stream stays readable for ever: only changes are of interest now. */
	rc = engine_watch(q->engine, &q->io, EPOLLIN | EPOLLET);
	if (rc)
		qp_apply(q, QPE_LOCAL_FAIL, FLUE_CLOSE_LOCAL, (uint32_t)-rc);
	else
		look_for_the_end(q);
}

static void ready(struct engine_io *io, uint32_t events)
{
	struct qp *q = container_of(io, struct qp, io);

	if (q->rx.fin) {
		look_for_the_end(q);
		return;
	}
	if (events & EPOLLOUT) {
		q->tx.blocked = false;
		engine_watch(q->engine, io, EPOLLIN);
		qp_tx_run(q);
	}
	if (q->io.fd >= 0 && events & ~EPOLLOUT)
		qp_rx_run(q);
}

static uint32_t ring_mask(uint32_t entries)
{
	uint32_t n = 1;

	while (n < entries)
		n *= 2;
	return n - 1;
}

/* Behind the last Read of ours, counting one whose request is half out. */
static uint32_t reads_out(const struct qp *q)
{
	return q->tx.has_part ? q->tx.part.after.orq_tail : q->tx.cur.orq_tail;
}

/* New rings; what is outstanding moves to its place in them. */
static int resize_rings(struct qp *q, uint32_t ird, uint32_t ord)
{
	uint32_t irq_mask = ring_mask(ird), orq_mask = ring_mask(ord);
	struct irq_entry *irq = calloc(irq_mask + 1, sizeof(*irq));
	struct orq_entry *orq = calloc(orq_mask + 1, sizeof(*orq));

	if (!irq || !orq) {
		free(irq);
		free(orq);
		return -ENOMEM;
	}
	for (uint32_t i = q->irq_head; i != q->irq_tail; i++)
		irq[i & irq_mask] = *qp_irq(q, i);
	for (uint32_t i = q->orq_head; i != reads_out(q); i++)
		orq[i & orq_mask] = *qp_orq(q, i);
	free(q->irq);
	free(q->orq);
	q->irq = irq;
	q->orq = orq;
	q->irq_mask = irq_mask;
	q->orq_mask = orq_mask;
	q->ird = ird;
	q->ord = ord;
	return 0;
}

static int make_rings(struct qp *q, const struct mpa_terms *t)
{
	q->tx.has_part = false;
	q->irq_head = q->irq_tail = q->orq_head = q->tx.cur.orq_tail = 0;
	return resize_rings(q, t->ird, t->ord);
}

/* FPDUs follow the path's segment size, unless the other end is one of us (RFC 5044 5.1). */
static size_t choose_mulpdu(int fd, const struct mpa_terms *t, uint32_t fpdu_max)
{
	int mss = 536;
	socklen_t len = sizeof(mss);
	size_t n;

	if (getsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &mss, &len) < 0 || mss < 536)
		mss = 536;
	n = t->own_peer ? MPA_MULPDU_MAX : mpa_mulpdu((size_t)mss, t->tx_markers);
	if (fpdu_max)
		n = min_size(n, mpa_mulpdu(fpdu_max, t->tx_markers));
	return n;
}

/* Where both directions begin. */
static void begin_streams(struct qp *q, const struct qp_start *start)
{
	const struct mpa_terms *t = start->terms;
	uint8_t version = t->rev ? 1 : 0;

	q->terms = *t;
	q->deny = start->deny;
	q->ddp = (struct ddp_params) { .dv = version, .rv = version };
	memset(&q->tx, 0, sizeof(q->tx));
	q->tx.cur.msn_send = q->tx.cur.msn_read = 1;
	q->tx.cur.next_wqe = atomic_load(&q->sq.head);
	q->tx.cur.rtr_owed = start->initiator && t->p2p;
	q->tx.held = !start->initiator;
	q->tx.lenient = start->lenient;
	q->tx.marked = t->tx_markers;
	q->tx.mulpdu = choose_mulpdu(start->fd, t, start->fpdu_max);
	q->tx.mulpdu_cap = start->fpdu_max ? q->tx.mulpdu : MPA_MULPDU_MAX;
	q->rx.in = (struct mpa_stream) { .crc = t->crc, .markers = t->rx_markers };
	q->rx.msn_send = q->rx.msn_read = q->rx.msn_term = 1;
	q->rx.rtr_send = !start->initiator && t->rtr == MPA_RTR_SEND;
	q->close_timeout_ms = CLOSE_TIMEOUT_MS;
	q->reason = q->detail = 0;
	atomic_store(&q->peer_closed, false);
	atomic_store(&q->late, false);
}

int qp_establish(struct qp *q, const struct qp_start *start)
{
	const struct mpa_terms *t = start->terms;
	int rc = make_rings(q, t);

	if (rc)
		return rc;
	memset(&q->rx, 0, sizeof(q->rx));
	rc = qp_rx_preload(q, start->early, start->early_len);
	if (rc)
		return rc;
	engine_io_take(&q->io, start->fd);
	q->io.ready = ready;
	rc = engine_watch(q->engine, &q->io, EPOLLIN);
	if (rc) {
		qp_rx_reset(q);
		q->io.fd = -1;
		return rc;
	}
	begin_streams(q, start);
	qp_apply(q, QPE_ESTABLISH, 0, 0);
	if (q->tx.held && start->lenient) {
		engine_timer_arm(q->engine, &q->timer, LENIENT_DELAY_MS);
	} else if (start->initiator && t->rtr == MPA_RTR_WRITE && !t->own_peer) {
		q->tx.nudges = NUDGES;
		engine_timer_arm(q->engine, &q->timer, NUDGE_DELAY_MS);
	}
	if (q->rx.fresh)
		qp_rx_run(q);
	else
		qp_tx_run(q);
	return 0;
}

/* Is one of our Reads on the wire, or posted? */
static bool is_reading(struct qp *q)
{
	uint32_t tail = atomic_load_explicit(&q->sq.tail, memory_order_acquire);

	for (uint32_t n = atomic_load(&q->sq.head); n != tail; n++) {
		uint8_t op = wq_at(&q->sq, n)->op;

		if (op == FLUE_WR_READ || op == FLUE_WR_READ_INV)
			return true;
	}
	return reads_out(q) != q->orq_head;
}

void qp_query(struct qp *q, struct qp_info *info)
{
	engine_lock(q->engine);
	*info = (struct qp_info) { .state = q->state,
				   .llp_open = q->io.fd >= 0 || q->cep,
				   .sends = wq_fill(&q->sq),
				   .receives = q->srq ? 0 : wq_fill(&q->rq),
				   .reads_out = reads_out(q) - q->orq_head,
				   .reads_in = q->irq_tail - q->irq_head };
	engine_unlock(q->engine);
}

int qp_modify_reads(struct qp *q, uint32_t ird, uint32_t ord)
{
	int rc = -ENOTCONN;

	if (ird > RNIC_MAX_ORD || ord > RNIC_MAX_ORD)
		return -EINVAL;
	engine_lock(q->engine);
	if (q->state == QPS_RTS) {
		rc = q->irq_tail - q->irq_head > ird || is_reading(q) ? -EBUSY
								      : resize_rings(q, ird, ord);
	}
	engine_unlock(q->engine);
	return rc;
}

/* ---- closing calls ---- */

int qp_disconnect(struct qp *q, int timeout_ms)
{
	int rc = 0;

	engine_lock(q->engine);
	if (q->cep) {
		cep_abort(q->cep, ECONNABORTED);
	} else if (q->state == QPS_RTS) {
		if (timeout_ms > 0)
			q->close_timeout_ms = timeout_ms;
		if (qp_is_idle(q)) {
			qp_apply(q, QPE_CLOSE_IDLE, FLUE_CLOSE_GRACEFUL, 0);
		} else {
			qp_apply(q, QPE_CLOSE_BUSY, FLUE_CLOSE_BAD, EBUSY);
			rc = -EBUSY;
		}
	} else if (!q->connected) {
		rc = -ENOTCONN;
	}
	engine_unlock(q->engine);
	return rc;
}

int qp_terminate(struct qp *q)
{
	int rc = 0;

	engine_lock(q->engine);
	if (q->cep || !q->connected) {
		rc = -ENOTCONN;
	} else {
		if (q->state == QPS_RTS)
			rdmap_terminate_for(&q->tx.term, FAULT_RDMAP_CATASTROPHIC, NULL, 0, 0,
					    NULL);
		qp_apply(q, QPE_TERM_ASK,
			 q->state == QPS_RTS ? FLUE_CLOSE_FAULT : FLUE_CLOSE_ABORTED,
			 q->state == QPS_RTS ? FAULT_RDMAP_CATASTROPHIC & 0xffff : ECONNABORTED);
	}
	engine_unlock(q->engine);
	return rc;
}

int qp_abort(struct qp *q)
{
	int rc = 0;

	engine_lock(q->engine);
	if (q->cep)
		cep_abort(q->cep, ECONNABORTED);
	else if (!q->connected)
		rc = -ENOTCONN;
	qp_apply(q, QPE_ABORT, FLUE_CLOSE_ABORTED, ECONNABORTED);
	engine_unlock(q->engine);
	return rc;
}

int qp_reset(struct qp *q)
{
	int rc = -EBUSY;

	engine_lock(q->engine);
	if (!q->cep && qp_fsm_step(q->state, QPE_REINIT).next == QPS_IDLE &&
	    (q->state == QPS_IDLE || (wq_fill(&q->sq) == 0 && (q->srq || wq_fill(&q->rq) == 0)))) {
		qp_apply(q, QPE_REINIT, 0, 0);
		rc = 0;
	}
	engine_unlock(q->engine);
	return rc;
}

void qp_fork_child(struct qp *q)
{
	engine_io_close(&q->io);
	q->tx.has_part = false;
	q->rx.buf = NULL; /* the parent's byte order of things is not ours to untangle */
	q->connected = false;
	q->timer.at = 0;
	lock_init(&q->sq.lock);
	lock_init(&q->rq.lock);
	set_state(q, QPS_ERROR);
}
