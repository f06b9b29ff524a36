/* SPDX-License-Identifier: MIT */
/* Links: two queue pairs of this process, from making to the end. See api.h. */
#include "api.h"

struct link links[LINKS];
atomic_ulong n_links, n_graceful, n_messages, n_requests, n_flushed, n_pipes, n_children;

void links_init(void)
{
	for (int i = 0; i < LINKS; i++) {
		struct link *l = &links[i];
		uint32_t gen = l->gen;

		memset(l, 0, sizeof(*l));
		l->index = i;
		l->gen = gen;
		slot_init(&l->slot);
		for (int side = 0; side < 2; side++) {
			struct end *e = &l->ends[side];

			e->link = l;
			e->side = side;
			pthread_mutex_init(&e->seen_lock, NULL);
			book_init(e->sends, NSEND, (uint32_t)(2 * i + side), e, NULL);
			book_init(e->recvs, NRECV, (uint32_t)(2 * i + side), e, NULL);
		}
	}
}

/* One that is connected; undo: put. */
struct link *link_hold(void)
{
	struct link *l = &links[draw(LINKS)];

	return slot_hold(&l->slot) ? l : NULL;
}

bool link_has_srq(struct link *l)
{
	return l->ends[0].srqx || l->ends[1].srqx;
}

void link_spoil(struct link *l)
{
	atomic_store(&l->spoilt, true);
}

/* ---- making ---- */

static void on_event(const struct flue_event *ev, void *arg)
{
	book_qp_event(arg, ev);
}

static void lay_out_memory(struct end *e)
{
	for (uint32_t i = 0; i < NSEND; i++)
		e->sends[i].at = e->memory + (size_t)(NTARGET + i) * MESSAGE;
	for (uint32_t i = 0; i < NRECV; i++)
		e->recvs[i].at = e->memory + (size_t)(NTARGET + NSEND + i) * MESSAGE;
}

/* Whoever has taken something of this end has booked it when this returns. */
static void pass(struct end *e)
{
	cq_pass(e->scq);
	cq_pass(e->rcq);
	pthread_rwlock_wrlock(&e->house->round);
	pthread_rwlock_unlock(&e->house->round);
}

static bool make_qp(struct end *e)
{
	struct flue_qp_attr attr = FLUE_ATTR(struct flue_qp_attr);
	struct flue_qp *qp;

	attr.send_cq = e->scq->cq;
	attr.recv_cq = e->rcq->cq;
	attr.srq = e->srqx ? e->srqx->srq : NULL;
	attr.sq_depth = e->sq_depth;
	attr.rq_depth = e->rq_depth;
	attr.sq_sge = attr.rq_sge = e->sge = 1 + draw(3);
	attr.max_inline = e->max_inline = draw(2) ? 256 : 0;
	e->by_function = draw(2);
	if (e->by_function) {
		attr.on_event = on_event;
		attr.event_arg = e;
	}
	e->memory = calloc(1, END_MEMORY);
	lay_out_memory(e);
	e->mr = flue_register(e->pdx->pd, e->memory, END_MEMORY,
			      FLUE_LOCAL_WRITE | FLUE_REMOTE_WRITE | FLUE_REMOTE_READ |
				      (draw(2) ? FLUE_ZERO_BASED : 0));
	if (!e->mr) {
		may_fail_with("register", 0);
		return false;
	}
	qp = e->pdx->pd->ops->create_qp(e->pdx->pd, &attr);
	if (!qp) {
		may_fail_with("create_qp", 0);
		return false;
	}
	/* What is still to be booked of one that was at the same address is not for this one. */
	pass(e);
	atomic_store(&e->dying, false);
	atomic_store(&e->qp, qp);
	return true;
}

/* The house is held by the caller. */
static bool make_end(struct end *e, struct house *h)
{
	e->house = h;
	e->mr = NULL;
	e->memory = NULL;
	e->pdx = NULL;
	e->scq = e->rcq = NULL;
	e->srqx = NULL;
	e->key_mr = NULL;
	e->key_mw = NULL;
	e->key_memory = NULL;
	atomic_store(&e->key_stage, 0);
	slot_join(&h->slot);
	e->sq_depth = 4 + draw(NSEND - 4);
	e->rq_depth = 4 + draw(NRECV - 4);
	e->pdx = pd_get(h);
	if (!e->pdx)
		return false;
	if (one_in(4))
		e->srqx = srq_get(h, e->pdx);
	if (e->srqx)
		e->rq_depth = e->srqx->depth;
	e->scq = cq_get(h, e->sq_depth);
	if (!e->scq)
		return false;
	e->rcq = cq_get(h, e->rq_depth);
	/* Of a shared queue we must know what has been completed. */
	if (!e->rcq || (e->srqx && e->rcq->kind == CQ_HANDLER))
		return false;
	return make_qp(e);
}

static void end_keys(struct end *e)
{
	if (e->key_mw)
		must(e->key_mw->ops->destroy(e->key_mw));
	if (e->key_mr)
		must(flue_deregister(e->key_mr));
	free(e->key_memory);
}

/* After this no completion and no event of it may come. */
static void destroy_qp(struct end *e)
{
	struct flue_qp *qp = atomic_load(&e->qp);

	if (!qp)
		return;
	atomic_store(&e->dying, true);
	if (!CALL(flue_destroy_qp(qp)))
		may_fail_with("destroy_qp", 0);
	pass(e);
	atomic_store(&e->qp, NULL);
	book_forget(e->sends, NSEND);
	book_forget(e->recvs, NRECV);
	atomic_store(&e->out_sends, 0);
	atomic_store(&e->out_recvs, 0);
}

static void end_end(struct end *e)
{
	if (!e->house)
		return;
	destroy_qp(e);
	end_keys(e);
	if (e->mr)
		must(flue_deregister(e->mr));
	free(e->memory);
	if (e->scq)
		cq_put(e->scq, e->sq_depth);
	if (e->rcq)
		cq_put(e->rcq, e->rq_depth);
	if (e->srqx)
		slot_put(&e->srqx->slot);
	if (e->pdx)
		slot_put(&e->pdx->slot);
	slot_put(&e->house->slot);
	e->house = NULL;
}

static void end_link(struct link *l)
{
	if (l->socket)
		must(l->socket->ops->destroy(l->socket));
	l->socket = NULL;
	end_end(&l->ends[0]);
	end_end(&l->ends[1]);
}

/* For another connection; exclusively. */
static void fresh(struct link *l)
{
	l->gen++;
	atomic_store(&l->spoilt, false);
	atomic_store(&l->closing, false);
	atomic_store(&l->dial, DIAL_CLOSED);
	for (int side = 0; side < 2; side++) {
		struct end *e = &l->ends[side];

		atomic_store(&e->credits, 0);
		atomic_store(&e->orphans, 0);
		atomic_store(&e->sent, 0);
		atomic_store(&e->received, 0);
		memset(e->seen, 0, sizeof(e->seen));
		for (int i = 0; i < NTARGET; i++)
			atomic_store(&e->target_used[i], 0);
		atomic_store(&e->accepted, 0);
		atomic_store(&e->connected, 0);
		atomic_store(&e->failed, 0);
		atomic_store(&e->disconnected, 0);
		atomic_store(&e->last, 0);
		e->up = false;
		pattern_fill(e->memory + END_MEMORY - LIBRARY, LIBRARY, library_seed(e));
	}
}

static void make_link(struct link *l)
{
	struct house *a = house_hold(), *b;
	bool ok = false;

	if (!a)
		return;
	b = draw(3) ? house_hold() : NULL;
	if (slot_claim(&l->slot, SLOT_EMPTY)) {
		l->ends[0].house = l->ends[1].house = NULL;
		ok = make_end(&l->ends[0], a) && make_end(&l->ends[1], b ? b : a);
		if (ok) {
			fresh(l);
			ok = dial(l);
		}
		if (!ok)
			end_link(l);
		slot_release(&l->slot, ok ? SLOT_LIVE : SLOT_EMPTY);
		atomic_fetch_add(&n_links, ok);
	}
	if (b)
		undo_run();
	undo_run();
}

/* ---- ending ---- */

/* Does what is needed to make progress; whoever else does it, too, is welcome. */
void link_pump(struct link *l)
{
	for (int side = 0; side < 2; side++) {
		struct end *e = &l->ends[side];

		if (!e->house)
			continue;
		if (e->scq->kind != CQ_HANDLER)
			cq_poll(e->scq);
		if (e->rcq->kind != CQ_HANDLER)
			cq_poll(e->rcq);
		house_events(e->house, 0);
	}
	usleep(50);
	atomic_store(&me->since, now_ms());
}

static bool drained(struct end *e)
{
	return !atomic_load(&e->out_sends) &&
	       atomic_load(&e->received) == atomic_load(&e->link->ends[!e->side].sent);
}

static bool over(struct end *e)
{
	if (!atomic_load(&e->qp))
		return true;
	if (atomic_load(&e->out_sends) || (e->up && !atomic_load(&e->disconnected)))
		return false;
	/* A receive that somebody posted after a graceful end waits for the next connection. */
	return !atomic_load(&e->out_recvs) ||
	       (atomic_load(&e->link->spoilt) && flue_qp_state(e->qp) == FLUE_QP_IDLE);
}

static void tell_end(struct end *e)
{
	struct flue_qp *qp = atomic_load(&e->qp);

	fprintf(stderr,
		"# link %d side %d: %s, %u sends %u receives out, sent %lu, received %lu, "
		"ends %u (%s, %x), orphans %u, key stage %u, credits %d, srq %d\n",
		e->link->index, e->side, qp ? flue_qp_state_name(flue_qp_state(qp)) : "gone",
		atomic_load(&e->out_sends), atomic_load(&e->out_recvs), atomic_load(&e->sent),
		atomic_load(&e->received), atomic_load(&e->disconnected),
		flue_close_reason_name(atomic_load(&e->reason)), atomic_load(&e->detail),
		atomic_load(&e->orphans), atomic_load(&e->key_stage), atomic_load(&e->credits),
		e->srqx != NULL);
}

void link_tell(struct link *l)
{
	struct flue_event ev;

	/* What comes now is a consequence. */
	link_spoil(l);
	usleep(300000);
	for (int side = 0; side < 2; side++)
		while (flue_get_event(l->ends[side].house->adapter, &ev, 0))
			if (ev.type != FLUE_EVENT_REQUEST)
				book_event(&ev);
	fprintf(stderr, "# link %d: flags 0x%x, 0x%x\n", l->index, l->flags, l->accept_flags);
	tell_end(&l->ends[0]);
	tell_end(&l->ends[1]);
}

static void pump_until(struct link *l, bool (*done)(struct end *))
{
	uint64_t end = now_ms() + PATIENCE_MS;

	while (!done(&l->ends[0]) || !done(&l->ends[1])) {
		if (now_ms() > end) {
			link_tell(l);
			fail("link %d does not come to an end", l->index);
		}
		link_pump(l);
	}
}

/* What the peer wrote has arrived when a message behind it has. False: not now. */
static bool farewell(struct end *e)
{
	struct end *peer = &e->link->ends[!e->side];
	uint64_t begun = now_ms();

	while (!send_one(e, 64)) {
		if (atomic_load(&e->link->spoilt))
			return false;
		/* Places of a shared queue may be in anybody's completions, or promised to messages of
		 * connections that have ended and that nobody has looked after yet. */
		if (peer->srqx && now_ms() > begun + 300)
			return false;
		if (now_ms() > begun + PATIENCE_MS) {
			link_tell(e->link);
			fail("no message can be sent");
		}
		recv_one(peer);
		house_poll(peer->house);
		link_pump(e->link);
	}
	return true;
}

static void close_gracefully(struct link *l)
{
	int who = (int)draw(2);
	struct end *e = &l->ends[who];

	/* Who answered in two-way mode may send when the other one has. */
	if (!farewell(&l->ends[0]))
		return;
	pump_until(l, drained);
	if (!farewell(&l->ends[1]))
		return;
	pump_until(l, drained);
	atomic_store(&l->closing, true);
	if (!CALL(e->qp->ops->disconnect(e->qp, 40000)))
		fail("disconnect of a quiet link: %s", strerrorname_np(errno));
	pump_until(l, over);
	for (int side = 0; side < 2; side++)
		if (atomic_load(&l->ends[side].reason) != FLUE_CLOSE_GRACEFUL) {
			link_tell(l);
			fail("a quiet link was closed, but not gracefully");
		}
	atomic_fetch_add(&n_graceful, 1);
}

static void close_abruptly(struct link *l)
{
	struct end *e = &l->ends[draw(2)];

	link_spoil(l);
	switch (draw(4)) {
	case 0: must(CALL(flue_abort(e->qp))); break;
	case 1:
		if (!CALL(e->qp->ops->terminate(e->qp)))
			may_fail_with("terminate", ENOTCONN, 0);
		must(flue_abort(e->qp));
		break;
	case 2:
		CALL(e->qp->ops->disconnect(e->qp, (int)draw(2000) - 1000));
		must(flue_abort(e->qp));
		break;
	case 3:
		/* In the middle of completions. */
		for (int i = 0; i < 3; i++)
			send_one(e, 64);
		if (l->socket || link_has_srq(l))
			must(CALL(flue_abort(e->qp)));
		else
			destroy_qp(e);
		break;
	}
	pump_until(l, over);
}

/* Messages that will not arrive any more need no receives of a shared queue. */
static void settle_srqs(struct link *l)
{
	for (int side = 0; side < 2; side++) {
		struct end *e = &l->ends[side];

		if (!e->srqx)
			continue;
		/* What was completed before the end is in the CQ by now. */
		for (int i = 0; i < NRECV * LINKS; i++)
			cq_poll(e->rcq);
		cq_pass(e->rcq);
		srq_forget(e->srqx, (uint32_t)(atomic_load(&l->ends[!side].sent) -
					       atomic_load(&e->received)));
	}
}

static bool once_more(struct link *l)
{
	for (int side = 0; side < 2; side++) {
		struct end *e = &l->ends[side];

		/* Of an unsignaled request that failed a completion may still wait. */
		if (!atomic_load(&e->qp) || l->socket || e->key_memory ||
		    atomic_load(&e->out_recvs) || !book_is_empty(e->sends, NSEND))
			return false;
		if (!CALL(e->qp->ops->reset(e->qp)))
			fail("reset of a link that has ended: %s", strerrorname_np(errno));
		must(flue_qp_state(e->qp) == FLUE_QP_IDLE);
	}
	fresh(l);
	return dial(l);
}

static void finish_link(struct link *l, bool for_good)
{
	bool again = false;

	if (!slot_claim_soon(&l->slot, SLOT_LIVE))
		return;
	if (!atomic_load(&l->spoilt) && draw(2))
		close_gracefully(l);
	if (!atomic_load(&l->ends[0].disconnected) || !atomic_load(&l->ends[1].disconnected))
		close_abruptly(l);
	else
		pump_until(l, over);
	settle_srqs(l);
	if (!for_good && one_in(3))
		again = once_more(l);
	if (!again)
		end_link(l);
	slot_release(&l->slot, again ? SLOT_LIVE : SLOT_EMPTY);
}

void op_link(void)
{
	struct link *l = &links[draw(LINKS)];
	bool mortal = me->mortal;

	/* What takes many steps is not left half done. */
	me->mortal = false;
	if (slot_is(&l->slot, SLOT_EMPTY))
		make_link(l);
	else if (one_in(3))
		finish_link(l, false);
	me->mortal = mortal;
}

void links_end(void)
{
	for (int i = 0; i < LINKS; i++) {
		finish_link(&links[i], true);
		must(slot_is(&links[i].slot, SLOT_EMPTY));
	}
}

/* While others use it. */
void op_end_link(void)
{
	struct link *l = link_hold();
	struct flue_qp *qp;

	if (!l)
		return;
	qp = atomic_load(&l->ends[draw(2)].qp);
	link_spoil(l);
	switch (draw(4)) {
	case 0:
		if (!CALL(flue_abort(qp)))
			may_fail_with("abort", 0);
		break;
	case 1:
		if (!CALL(qp->ops->terminate(qp)))
			may_fail_with("terminate", ENOTCONN, 0);
		break;
	case 2: CALL(qp->ops->disconnect(qp, -1)); break;
	case 3: CALL(qp->ops->disconnect(qp, 1 + (int)draw(200))); break;
	}
	undo_run();
}
