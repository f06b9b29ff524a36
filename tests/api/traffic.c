/* SPDX-License-Identifier: MIT */
/* Posting. See api.h. */
#include "api.h"

#define MAX_LIST 3

/* What a thread is about to post; not on its stack, which is gone when it is cancelled. */
static __thread struct list {
	struct end *e;
	struct rec *recs[MAX_LIST];
	struct flue_send_wr send[MAX_LIST];
	struct flue_recv_wr recv[MAX_LIST];
	struct flue_sge sge[MAX_LIST][3];
	uint32_t n;
	int target;       /* of the peer; -1: none */
	uint32_t credits; /* taken */
	uint32_t messages;
} list;

/* ---- room at the peer ---- */

static bool take_credit(struct end *to)
{
	struct srqx *x = to->srqx;
	int left;
	bool ok;

	if (x) {
		pthread_mutex_lock(&x->lock);
		ok = !x->tainted && x->in_flight < x->posted;
		x->in_flight += ok;
		pthread_mutex_unlock(&x->lock);
		return ok;
	}
	left = atomic_load(&to->credits);
	while (left > 0)
		if (atomic_compare_exchange_weak(&to->credits, &left, left - 1))
			return true;
	return false;
}

static void give_credit(struct end *to)
{
	if (to->srqx)
		srq_forget(to->srqx, 1);
	else
		atomic_fetch_add(&to->credits, 1);
}

static int take_target(struct end *to)
{
	uint32_t from = draw(NTARGET);

	for (uint32_t i = 0; i < NTARGET; i++) {
		uint32_t t = (from + i) % NTARGET;
		unsigned is = 0;

		if (atomic_compare_exchange_strong(&to->target_used[t], &is, 1))
			return (int)t;
	}
	return -1;
}

/* ---- lists ---- */

static struct end *peer_of(struct end *e)
{
	return &e->link->ends[!e->side];
}

static void begin(struct end *e)
{
	memset(&list, 0, sizeof(list));
	list.e = e;
	list.target = -1;
}

/* Nothing of it was posted. */
static void cancel_list(void *unused)
{
	struct end *peer = peer_of(list.e);

	(void)unused;
	for (uint32_t i = 0; i < list.n; i++)
		if (atomic_load(&list.recs[i]->state) == REC_POSTED)
			book_refuse(list.recs[i]);
		else
			book_unreserve(list.recs[i]);
	for (; list.credits; list.credits--) {
		atomic_fetch_sub(&list.e->sent, 1);
		give_credit(peer);
	}
	if (list.target >= 0)
		atomic_store(&peer->target_used[list.target], 0);
	list.n = 0;
	list.target = -1;
}

static uint32_t any_length(uint32_t least)
{
	switch (draw(4)) {
	case 0: return least + draw(MESSAGE - least + 1);
	case 1: return least + draw(2000);
	default: return least + draw(100);
	}
}

/* Cuts the memory at `at` into up to e->sge pieces. */
static uint32_t cut(struct end *e, struct flue_sge *sge, const uint8_t *at, uint32_t length)
{
	size_t offset = (size_t)(at - e->memory);
	uint32_t n = 1 + draw(e->sge), i;

	for (i = 0; i + 1 < n && length > 1; i++) {
		uint32_t part = draw(length);

		sge[i] = flue_mr_sge(e->mr, offset, part);
		offset += part;
		length -= part;
	}
	sge[i] = flue_mr_sge(e->mr, offset, length);
	return i + 1;
}

static struct rec *add(enum rec_kind kind, uint32_t op)
{
	struct end *e = list.e;
	struct rec *r = list.n < MAX_LIST ? book_reserve(e->sends, NSEND) : NULL;
	uint32_t i = list.n;

	if (!r)
		return NULL;
	r->kind = kind;
	list.recs[i] = r;
	list.send[i] = (struct flue_send_wr) { .id = book_id(r), .op = op, .sg = list.sge[i] };
	if (i)
		list.send[i - 1].next = &list.send[i];
	list.n++;
	return r;
}

static bool add_read(void)
{
	struct end *peer = peer_of(list.e);
	uint32_t place = draw(LIBRARY / 8), i = list.n;
	struct rec *r = add(REC_READ, FLUE_WR_READ);

	if (!r)
		return false;
	r->length = any_length(0);
	if (r->length > LIBRARY - place * 8)
		r->length = LIBRARY - place * 8;
	r->seed = library_seed(peer) + place;
	list.sge[i][0] = flue_mr_sge(list.e->mr, (size_t)(r->at - list.e->memory), r->length);
	list.send[i].n_sg = 1;
	list.send[i].rkey = peer->mr->rkey;
	list.send[i].remote_addr = peer->mr->remote_start + END_MEMORY - LIBRARY + place * 8;
	return true;
}

static bool add_write(struct label *label)
{
	struct end *peer = peer_of(list.e);
	uint32_t i = list.n;
	struct rec *r;

	list.target = take_target(peer);
	if (list.target < 0)
		return false;
	r = add(REC_WRITE, FLUE_WR_WRITE);
	if (!r)
		return false;
	label->target = (uint32_t)list.target + 1;
	label->target_length = r->length = any_length(0);
	label->target_seed = r->seed = mix(book_id(r));
	pattern_fill(r->at, r->length, r->seed);
	list.send[i].n_sg = cut(list.e, list.sge[i], r->at, r->length);
	list.send[i].rkey = peer->mr->rkey;
	list.send[i].remote_addr = peer->mr->remote_start + (uint64_t)list.target * MESSAGE;
	return true;
}

static bool add_send(struct label *label, uint32_t length)
{
	struct end *e = list.e;
	uint32_t i = list.n;
	struct rec *r;

	if (!take_credit(peer_of(e)))
		return false;
	list.credits++;
	atomic_fetch_add(&e->sent, 1);
	r = add(REC_SEND, label->key ? FLUE_WR_SEND_INV : FLUE_WR_SEND);
	if (!r)
		return false;
	r->length = length;
	if (length) {
		must(length >= sizeof(*label));
		label->magic = LABEL_MAGIC;
		label->side = (uint32_t)e->side;
		label->link = link_name(e->link);
		label->rec = r->index;
		label->gen = atomic_load(&r->gen);
		label->length = length;
		label->seed = mix(book_id(r) + 1);
		memcpy(r->at, label, sizeof(*label));
		pattern_fill(r->at + sizeof(*label), length - sizeof(*label), label->seed);
	}
	list.send[i].n_sg = cut(e, list.sge[i], r->at, length);
	list.send[i].rkey = label->key;
	if (one_in(4))
		list.send[i].flags |= FLUE_SOLICITED;
	if (length && length <= e->max_inline && draw(2)) {
		list.send[i].flags |= FLUE_INLINE;
		list.sge[i][0] = (struct flue_sge) { .addr = (uintptr_t)r->at, .length = length };
		list.send[i].n_sg = 1;
	}
	return true;
}

/* The last one tells of those before it. */
static void sign(void)
{
	for (uint32_t i = 0; i < list.n; i++) {
		struct rec *r = list.recs[i];

		r->signaled = i + 1 == list.n || draw(2) ||
			      atomic_load(&list.e->orphans) >= list.e->sq_depth / 4;
		if (r->signaled)
			list.send[i].flags |= FLUE_SIGNALED;
		if (i && !list.recs[i - 1]->signaled)
			r->ahead = list.recs[i - 1];
		if (one_in(6))
			list.send[i].flags |= draw(2) ? FLUE_FENCE : FLUE_LOCAL_FENCE;
	}
}

static bool may_refuse(struct link *l)
{
	if (errno == ENOTCONN && (atomic_load(&l->spoilt) || atomic_load(&l->closing)))
		return true;
	return errno == ENOMEM;
}

/* Some were taken and the last was not. */
static void keep_first(uint32_t taken)
{
	struct end *peer = peer_of(list.e);

	for (uint32_t i = taken; i < list.n; i++) {
		bool message = list.recs[i]->kind == REC_SEND;

		book_refuse(list.recs[i]);
		if (!message)
			continue;
		list.credits--;
		atomic_fetch_sub(&list.e->sent, 1);
		give_credit(peer);
	}
	for (uint32_t i = taken; i && !list.recs[i - 1]->signaled; i--)
		atomic_fetch_add(&list.e->orphans, 1);
}

static bool post(void)
{
	struct end *e = list.e;
	struct flue_qp *qp = atomic_load(&e->qp);
	const struct flue_send_wr *bad = NULL;
	uint32_t taken;

	if (!list.n) {
		cancel_list(NULL);
		return false;
	}
	sign();
	undo_push(cancel_list, NULL);
	for (uint32_t i = 0; i < list.n; i++)
		book_post(list.recs[i]);
	if (CALL(qp->ops->post_send(qp, list.send, &bad))) {
		atomic_fetch_add(&n_requests, list.n);
		undo_pop();
		return true;
	}
	if (!may_refuse(e->link))
		may_fail_with("post_send", 0);
	must(bad >= list.send && bad < list.send + list.n);
	taken = (uint32_t)(bad - list.send);
	if (taken) {
		keep_first(taken);
		undo_pop();
	} else {
		undo_run();
	}
	return false;
}

bool send_one(struct end *e, uint32_t length)
{
	struct label label = { .key = 0 };

	begin(e);
	if (!add_send(&label, length + (uint32_t)sizeof(label))) {
		cancel_list(NULL);
		return false;
	}
	return post();
}

/* A message, or a Write and a message that tells of it, or Reads. */
static void post_something(struct end *e)
{
	struct label label = { .key = 0 };

	begin(e);
	switch (draw(5)) {
	case 0:
		for (uint32_t n = 1 + draw(MAX_LIST); n; n--)
			if (!add_read())
				break;
		break;
	case 1:
		if (!add_write(&label) || !add_send(&label, any_length((uint32_t)sizeof(label))))
			cancel_list(NULL);
		break;
	case 2:
		if (add_read() && !add_send(&label, one_in(5) ? 0 : any_length(sizeof(label))))
			cancel_list(NULL);
		break;
	default:
		if (!add_send(&label, one_in(8) ? 0 : any_length(sizeof(label))))
			cancel_list(NULL);
	}
	if (list.n)
		post();
	else
		cancel_list(NULL);
}

void op_send(void)
{
	struct link *l = link_hold();
	struct end *e;

	if (!l)
		return;
	e = &l->ends[draw(2)];
	for (uint32_t n = 1 + draw(3); n; n--)
		post_something(e);
	if (one_in(3) && e->scq->kind != CQ_HANDLER)
		cq_poll(e->scq);
	undo_run();
}

/* ---- receives ---- */

static void cancel_recvs(void *unused)
{
	(void)unused;
	for (uint32_t i = 0; i < list.n; i++)
		book_refuse(list.recs[i]);
	list.n = 0;
}

bool recv_one(struct end *e)
{
	const struct flue_recv_wr *bad = NULL;
	struct flue_qp *qp = atomic_load(&e->qp);
	uint32_t want = 1 + draw(MAX_LIST), taken;
	bool ok;

	if (e->srqx) {
		srq_post(e->srqx);
		return true;
	}
	begin(e);
	for (uint32_t i = 0; i < want; i++) {
		struct rec *r = book_reserve(e->recvs, NRECV);

		if (!r)
			break;
		r->kind = REC_RECV;
		list.recs[i] = r;
		list.recv[i] = (struct flue_recv_wr) { .id = book_id(r), .sg = list.sge[i] };
		list.recv[i].n_sg = cut(e, list.sge[i], r->at, MESSAGE);
		if (i)
			list.recv[i - 1].next = &list.recv[i];
		book_post(r);
		list.n++;
	}
	if (!list.n)
		return false;
	undo_push(cancel_recvs, NULL);
	ok = CALL(qp->ops->post_recv(qp, list.recv, &bad));
	undo_pop();
	if (!ok && !may_refuse(e->link))
		may_fail_with("post_recv", 0);
	taken = ok ? list.n : (uint32_t)(bad - list.recv);
	must(taken <= list.n);
	for (uint32_t i = taken; i < list.n; i++)
		book_refuse(list.recs[i]);
	atomic_fetch_add(&e->credits, (int)taken);
	atomic_fetch_add(&n_requests, taken);
	return ok;
}

void op_recv(void)
{
	struct link *l = link_hold();

	if (!l)
		return;
	recv_one(&l->ends[draw(2)]);
	undo_run();
}

/* ---- for keys.c and odd.c ---- */

bool post_local(struct end *e, enum rec_kind kind, const struct flue_send_wr *wr,
		struct end *key_of)
{
	struct rec *r;

	begin(e);
	r = add(kind, wr->op);
	if (!r)
		return false;
	r->key_of = key_of;
	list.send[0].rkey = wr->rkey;
	list.send[0].reg = wr->reg;
	list.send[0].remote_addr = wr->remote_addr;
	list.send[0].n_sg = wr->n_sg;
	if (wr->n_sg)
		list.sge[0][0] = wr->sg[0];
	return post();
}

bool read_key(struct end *e, struct end *key_of, uint64_t from)
{
	struct rec *r;

	begin(e);
	r = add(REC_READ, FLUE_WR_READ);
	if (!r)
		return false;
	r->key_of = key_of;
	r->length = KEY_LENGTH;
	r->seed = from;
	list.sge[0][0] = flue_mr_sge(e->mr, (size_t)(r->at - e->memory), r->length);
	list.send[0].n_sg = 1;
	list.send[0].rkey = key_of->key;
	list.send[0].remote_addr = key_of->key_start;
	return post();
}

bool send_key(struct end *e, uint32_t key)
{
	struct label label = { .key = key };

	begin(e);
	if (!add_send(&label, sizeof(label))) {
		cancel_list(NULL);
		return false;
	}
	return post();
}
