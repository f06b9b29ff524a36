/* SPDX-License-Identifier: MIT */
/*
 * An RDMA socket in RDMA mode (CH-16). The program gives plain memory; keys for it are Flue's own
 * (CH-28), unless it names a region that it keeps itself. For what is sent they are made by the
 * queue pair itself, with requests in front of the program's own that are not signaled: "invalidate
 * the last use", "register this". How those went is known from the one that follows, because a
 * failure in front flushes what is behind (CH-6). Receives cannot do that, since their memory must
 * be ready before anything is sent: their keys are modified by a control call.
 */
#include "access/socket_priv.h"
#include "base/clock.h"

#define ALL_FLAGS (FLUE_SOCKET_FENCE | FLUE_SOCKET_SOLICITED | FLUE_SOCKET_INVALIDATE)
#define IN_FRONT  1u /* in wr.id: not the program's request but one in front of it */

/* ---- answers ---- */

static int error_of(uint32_t status)
{
	switch (status) {
	case FLUE_WC_SUCCESS: return 0;
	case FLUE_WC_FLUSHED: return ECANCELED;
	case FLUE_WC_LOCAL_PROTECTION:
	case FLUE_WC_BIND: return EFAULT;
	case FLUE_WC_LOCAL_LENGTH: return EMSGSIZE;
	case FLUE_WC_REMOTE_ACCESS: return EACCES;
	case FLUE_WC_REMOTE_OPERATION: return EREMOTEIO;
	default: return EIO;
	}
}

static void unpost(struct acc_socket *s, struct sock_req *r)
{
	if (r->posted) {
		TAILQ_REMOVE(&s->posted, r, link);
		s->gets -= r->ev.type == FLUE_SOCKET_GOT;
	}
	r->posted = false;
	for (uint32_t i = 0; i < r->n_sg; i++)
		if (r->keys[i])
			SLIST_INSERT_HEAD(r->receive ? &s->recv_keys : &s->send_keys, r->keys[i],
					  link);
	r->n_sg = 0;
}

void sock_cancel_posted(struct acc_socket *s)
{
	struct sock_req *r;

	while ((r = TAILQ_FIRST(&s->posted))) {
		unpost(s, r);
		r->ev.error = ECANCELED;
		r->ev.length = 0;
		sock_answer(s, r);
	}
}

void sock_completion(struct flue_cq *cq, const struct flue_wc *wc, void *arg)
{
	struct acc_socket *s = to_qp(wc->qp)->source.arg;
	struct sock_req *r = (struct sock_req *)(uintptr_t)(wc->id & ~(uint64_t)IN_FRONT);

	(void)cq, (void)arg;
	/* A device that did not answer when its queue pair was destroyed may still complete. */
	if (acc_source_is_mute(&to_qp(wc->qp)->source))
		return;
	pthread_mutex_lock(&s->lock);
	if (!r->posted) { /* it was answered in the device's place */
		pthread_mutex_unlock(&s->lock);
		return;
	}
	/* The first failure is the cause; what it flushes says nothing new. */
	if (!r->ev.error)
		r->ev.error = wc->id & IN_FRONT && wc->status == FLUE_WC_FLUSHED
				      ? 0
				      : error_of(wc->status);
	if (!(wc->id & IN_FRONT)) {
		unpost(s, r);
		r->ev.length = r->ev.error ? 0 : r->receive ? wc->byte_len : r->length;
		r->ev.inv_key = wc->flags & FLUE_WC_INVALIDATED ? wc->inv_key : 0;
		sock_answer(s, r);
		sock_tell_end(s);
	}
	pthread_mutex_unlock(&s->lock);
	sock_deliver(s, true);
}

/* ---- posting ---- */

/* What a call of the program asks for. */
struct wish {
	enum socket_call call;
	uint32_t type; /* of the event */
	const struct flue_piece *list;
	uint32_t n;
	uint64_t id;
	size_t length; /* of all pieces */
	bool keyed;    /* plain pieces need a key */
};

static bool is_receive(const struct wish *w)
{
	return w->type == FLUE_SOCKET_RDMA_RECEIVED;
}

/* What can be said without the socket's state; adds up the length. */
static int check_args(const struct acc_socket *s, struct wish *w)
{
	int rc = acc_usable(s->a);

	if (!rc && w->n && !w->list)
		rc = -EINVAL;
	for (uint32_t i = 0; !rc && i < w->n; i++) {
		const struct flue_piece *p = &w->list[i];

		if (p->length > UINT32_MAX - w->length || (p->length && !p->data))
			rc = -EINVAL;
		else
			w->length += p->length;
	}
	return rc;
}

/* Lock held: is the piece where its region is, and may it be used so? */
static int check_region(const struct acc_socket *s, const struct wish *w,
			const struct flue_piece *p)
{
	bool written = is_receive(w) || w->type == FLUE_SOCKET_GOT;
	const struct flue_mr *mr = p->mr;
	uintptr_t at = (uintptr_t)p->data, start = (uintptr_t)mr->addr;

	if (mr->pd != s->pub.pd || at < start || at - start > mr->length ||
	    p->length > mr->length - (at - start))
		return -EINVAL;
	return written && !(mr->access & FLUE_LOCAL_WRITE) ? -EACCES : 0;
}

/* Lock held: may this be asked of the socket? */
static int check_wish(struct acc_socket *s, const struct wish *w)
{
	uint32_t most = s->pub.pieces, n = 0;
	int rc = sock_check(s, w->call);

	if (rc)
		return rc;
	if (!s->own_qp)
		return -EOPNOTSUPP;
	if (w->type == FLUE_SOCKET_GOT && most > s->a->caps.max_read_sge)
		most = s->a->caps.max_read_sge;
	for (uint32_t i = 0; !rc && i < w->n; i++) {
		n += w->list[i].length > 0;
		if (w->list[i].length && w->list[i].mr)
			rc = check_region(s, w, &w->list[i]);
	}
	return rc ? rc : n > most ? -EINVAL : 0;
}

/* Lock held. Plain memory is named by its address, until it has a key. */
static void add_piece(struct acc_socket *s, struct sock_req *r, const struct flue_piece *p,
		      bool keyed)
{
	struct sock_keys *keys = r->receive ? &s->recv_keys : &s->send_keys;
	struct flue_sge *sge = &r->sg[r->n_sg];
	const struct flue_mr *mr = keyed ? p->mr : NULL;

	*sge = (struct flue_sge) { .addr = (uintptr_t)p->data, .length = (uint32_t)p->length };
	r->keys[r->n_sg] = NULL;
	if (mr) {
		sge->addr = mr->remote_start + ((uintptr_t)p->data - (uintptr_t)mr->addr);
		sge->lkey = mr->lkey;
	} else if (keyed) {
		r->keys[r->n_sg] = SLIST_FIRST(keys);
		SLIST_REMOVE_HEAD(keys, link);
	}
	r->n_sg++;
}

/* Lock held: a request, with what its pieces need. -ENOMEM: as many as reserved are under way. It is
 * in no list until it is posted or taken back. */
static int begin(struct acc_socket *s, const struct wish *w, struct sock_req **out)
{
	struct sock_reqs *unused = is_receive(w) ? &s->free_recvs : &s->free_sends;
	struct sock_req *r = TAILQ_FIRST(unused);

	if (!r)
		return -ENOMEM;
	TAILQ_REMOVE(unused, r, link);
	*r = (struct sock_req) { .ev = { .type = w->type, .id = w->id },
				 .length = w->length,
				 .sg = r->sg,
				 .keys = r->keys,
				 .receive = is_receive(w) };
	for (uint32_t i = 0; i < w->n; i++)
		if (w->list[i].length)
			add_piece(s, r, &w->list[i], w->keyed);
	*out = r;
	return 0;
}

/* Lock held, until the queue pair has it: its completion may come at once. */
static void mark_posted(struct acc_socket *s, struct sock_req *r)
{
	r->posted = true;
	s->gets += r->ev.type == FLUE_SOCKET_GOT;
	TAILQ_INSERT_TAIL(&s->posted, r, link);
}

/* Lock held: it was not posted after all. */
static void take_back(struct acc_socket *s, struct sock_req *r)
{
	unpost(s, r);
	TAILQ_INSERT_HEAD(r->receive ? &s->free_recvs : &s->free_sends, r, link);
}

/* Writes into `front` the requests that make a key valid for its piece; returns the first of them. */
static struct flue_send_wr *put_in_front(struct sock_req *r, uint32_t i, struct flue_send_wr *front,
					 const struct flue_send_wr *then, uint32_t access)
{
	struct sock_key *k = r->keys[i];
	struct flue_send_wr *first = &front[1];
	uint8_t key = (uint8_t)(k->keys.rkey + 1);

	front[1] = (struct flue_send_wr) { .next = then,
					   .id = (uintptr_t)r | IN_FRONT,
					   .op = FLUE_WR_FAST_REG,
					   .rkey = k->keys.rkey,
					   .reg = { .addr = r->sg[i].addr,
						    .length = r->sg[i].length,
						    .access = access,
						    .key = key } };
	if (k->valid) {
		front[0] = (struct flue_send_wr) { .next = first,
						   .id = (uintptr_t)r | IN_FRONT,
						   .op = FLUE_WR_LOCAL_INV,
						   .rkey = k->keys.rkey };
		first = &front[0];
	}
	k->keys_were = k->keys;
	k->valid_was = k->valid;
	k->keys.lkey = (k->keys.lkey & ~0xffu) | key;
	k->keys.rkey = (k->keys.rkey & ~0xffu) | key;
	k->valid = true;
	r->sg[i].lkey = k->keys.lkey;
	return first;
}

/* Lock held: posts `main` with its memory. The lock stays, so that keys are used in order. */
static int post(struct acc_socket *s, struct sock_req *r, struct flue_send_wr *main)
{
	const struct flue_send_wr *first = main;
	uint32_t access = main->op == FLUE_WR_READ ? FLUE_LOCAL_WRITE : 0;

	main->id = (uintptr_t)r;
	main->flags |= FLUE_SIGNALED;
	main->sg = r->sg;
	main->n_sg = r->n_sg;
	for (uint32_t i = r->n_sg; i-- > 0;)
		if (r->keys[i])
			first = put_in_front(r, i, &s->front[2 * i], first, access);
	mark_posted(s, r);
	if (s->pub.qp->ops->post_send(s->pub.qp, first, NULL))
		return 0;
	/* There is room for the whole list or for nothing, so nothing was posted. */
	for (uint32_t i = 0; i < r->n_sg; i++) {
		if (r->keys[i]) {
			r->keys[i]->keys = r->keys[i]->keys_were;
			r->keys[i]->valid = r->keys[i]->valid_was;
		}
	}
	return -errno;
}

static bool run(struct flue_socket *pub, struct wish *w, struct flue_send_wr *wr)
{
	CANCEL_HELD;
	struct acc_socket *s = to_socket(pub);
	struct sock_req *r;
	int rc = check_args(s, w);

	if (rc)
		return acc_ok(rc);
	pthread_mutex_lock(&s->lock);
	rc = check_wish(s, w);
	if (!rc) {
		w->keyed = w->type == FLUE_SOCKET_GOT || w->length > pub->qp->max_inline;
		if (!w->keyed && w->length)
			wr->flags |= FLUE_INLINE;
		rc = begin(s, w, &r);
	}
	if (!rc) {
		rc = post(s, r, wr);
		if (rc)
			take_back(s, r);
	}
	pthread_mutex_unlock(&s->lock);
	return acc_ok(rc);
}

static uint32_t wr_flags(uint32_t flags)
{
	return (flags & FLUE_SOCKET_FENCE ? (uint32_t)FLUE_FENCE : 0) |
	       (flags & FLUE_SOCKET_SOLICITED ? (uint32_t)FLUE_SOLICITED : 0);
}

bool sock_rdma_send_list(struct flue_socket *pub, const struct flue_piece *list, uint32_t n,
			 uint32_t flags, uint32_t inv_key, uint64_t id)
{
	bool invalidate = flags & FLUE_SOCKET_INVALIDATE;
	struct flue_send_wr wr = { .op = invalidate ? FLUE_WR_SEND_INV : FLUE_WR_SEND,
				   .flags = wr_flags(flags),
				   .rkey = invalidate ? inv_key : 0 };
	struct wish w = { SOCKET_CALL_RDMA_SEND, FLUE_SOCKET_RDMA_SENT, list, n, id, 0, false };

	if (flags & ~(uint32_t)ALL_FLAGS)
		return acc_ok(-EINVAL);
	return run(pub, &w, &wr);
}

bool sock_put_list(struct flue_socket *pub, const struct flue_piece *list, uint32_t n,
		   uint64_t remote_addr, uint32_t rkey, uint32_t flags, uint64_t id)
{
	struct flue_send_wr wr = { .op = FLUE_WR_WRITE,
				   .flags = wr_flags(flags),
				   .remote_addr = remote_addr,
				   .rkey = rkey };
	struct wish w = { SOCKET_CALL_PUT, FLUE_SOCKET_PUT, list, n, id, 0, false };

	if (flags & ~(uint32_t)FLUE_SOCKET_FENCE)
		return acc_ok(-EINVAL);
	return run(pub, &w, &wr);
}

bool sock_get_list(struct flue_socket *pub, const struct flue_piece *list, uint32_t n,
		   uint64_t remote_addr, uint32_t rkey, uint32_t flags, uint64_t id)
{
	struct flue_send_wr wr = { .op = FLUE_WR_READ,
				   .flags = wr_flags(flags),
				   .remote_addr = remote_addr,
				   .rkey = rkey };
	struct wish w = { SOCKET_CALL_GET, FLUE_SOCKET_GOT, list, n, id, 0, false };

	if (flags & ~(uint32_t)FLUE_SOCKET_FENCE)
		return acc_ok(-EINVAL);
	return run(pub, &w, &wr);
}

bool sock_rdma_send(struct flue_socket *pub, const void *data, size_t length, uint32_t flags,
		    uint32_t inv_key, uint64_t id)
{
	struct flue_piece one = { (void *)data, length, NULL };

	return sock_rdma_send_list(pub, &one, 1, flags, inv_key, id);
}

bool sock_put(struct flue_socket *pub, const void *data, size_t length, uint64_t remote_addr,
	      uint32_t rkey, uint32_t flags, uint64_t id)
{
	struct flue_piece one = { (void *)data, length, NULL };

	return sock_put_list(pub, &one, 1, remote_addr, rkey, flags, id);
}

bool sock_get(struct flue_socket *pub, void *data, size_t length, uint64_t remote_addr,
	      uint32_t rkey, uint32_t flags, uint64_t id)
{
	struct flue_piece one = { data, length, NULL };

	return sock_get_list(pub, &one, 1, remote_addr, rkey, flags, id);
}

/* ---- receives ---- */

/* Lock held. A control call may be answered later, so the lock is dropped for it. */
static int map_piece(struct acc_socket *s, struct sock_req *r, uint32_t i)
{
	struct flue_mr_attr attr = FLUE_ATTR(struct flue_mr_attr);
	struct flue_mr *mr = r->keys[i]->mr;
	int rc = 0;

	attr.addr = (void *)(uintptr_t)r->sg[i].addr;
	attr.length = r->sg[i].length;
	pthread_mutex_unlock(&s->lock);
	if (!mr->ops->modify(mr, FLUE_MR_RANGE, &attr, NULL))
		rc = -errno;
	pthread_mutex_lock(&s->lock);
	r->sg[i].lkey = mr->lkey;
	return rc ? rc : sock_check(s, SOCKET_CALL_RDMA_RECV);
}

/* Lock held. */
static int post_receive(struct acc_socket *s, struct sock_req *r)
{
	struct flue_recv_wr wr = { .id = (uintptr_t)r, .sg = r->sg, .n_sg = r->n_sg };
	int rc = 0;

	for (uint32_t i = 0; !rc && i < r->n_sg; i++)
		if (r->keys[i])
			rc = map_piece(s, r, i);
	if (rc)
		return rc;
	mark_posted(s, r);
	return s->pub.qp->ops->post_recv(s->pub.qp, &wr, NULL) ? 0 : -errno;
}

/* Lock held. */
static int receive(struct acc_socket *s, struct wish *w, bool first)
{
	struct sock_req *r;
	int rc = check_wish(s, w);

	/* A control client has posted its receives to its queue pair; this only starts the transfer. */
	if (rc == -EOPNOTSUPP && first && !w->length)
		return 0;
	if (!rc)
		rc = begin(s, w, &r);
	if (rc)
		return rc;
	rc = post_receive(s, r);
	if (rc)
		take_back(s, r);
	return rc;
}

int sock_post_recv(struct acc_socket *s, const struct flue_piece *list, uint32_t n, uint64_t id,
		   bool *ready)
{
	struct wish w = { .call = SOCKET_CALL_RDMA_RECV,
			  .type = FLUE_SOCKET_RDMA_RECEIVED,
			  .list = list,
			  .n = n,
			  .id = id,
			  .keyed = true };
	int rc = check_args(s, &w);
	bool first;

	if (rc)
		return rc;
	pthread_mutex_lock(&s->lock);
	first = s->pub.offload_state == FLUE_OFFLOAD_WAIT_FIRST_RECV;
	rc = receive(s, &w, first);
	/* Of two threads that come at once only one is the first. */
	if (!rc && first && sock_step(s, OFFLOAD_EV_FIRST_RECV) == SOCKET_TRANSFER) {
		s->deadline = clock_now() + (uint64_t)s->sw.attr.timeout_ms * NSEC_PER_MSEC;
		if (ready)
			*ready = sock_ready_to_hand_over(s);
		else
			sock_try_transfer(s);
	}
	pthread_mutex_unlock(&s->lock);
	sock_deliver(s, false);
	return rc;
}

bool sock_rdma_recv_list(struct flue_socket *pub, const struct flue_piece *list, uint32_t n,
			 uint64_t id)
{
	CANCEL_HELD;

	return acc_ok(sock_post_recv(to_socket(pub), list, n, id, NULL));
}

bool sock_rdma_recv(struct flue_socket *pub, void *data, size_t length, uint64_t id)
{
	struct flue_piece one = { data, length, NULL };

	return sock_rdma_recv_list(pub, &one, 1, id);
}
