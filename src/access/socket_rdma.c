/* SPDX-License-Identifier: MIT */
/*
 * An RDMA socket in RDMA mode (CH-16). The program gives plain memory; keys for it are Flue's own
 * (CH-28). For what is sent they are made by the queue pair itself, with requests in front of the
 * program's own that are not signaled: "invalidate the last use", "register this". How those went
 * is known from the one that follows, because a failure in front flushes what is behind (CH-6).
 * Receives cannot do that, since their memory must be ready before anything is sent: their keys
 * are modified by a control call.
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
	TAILQ_REMOVE(&s->posted, r, link);
	r->posted = false;
	s->gets -= r->ev.type == FLUE_SOCKET_GOT;
	if (r->key)
		SLIST_INSERT_HEAD(r->receive ? &s->recv_keys : &s->send_keys, r->key, link);
	r->key = NULL;
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

/* Lock held: a request and, if it needs one, a key. -ENOMEM: as many as reserved are under way. */
static int begin(struct acc_socket *s, bool receive, bool keyed, uint32_t type, void *data,
		 size_t length, uint64_t id, struct sock_req **out)
{
	struct sock_reqs *unused = receive ? &s->free_recvs : &s->free_sends;
	struct sock_keys *keys = receive ? &s->recv_keys : &s->send_keys;
	struct sock_req *r = TAILQ_FIRST(unused);

	if (!r || (keyed && SLIST_EMPTY(keys)))
		return -ENOMEM;
	TAILQ_REMOVE(unused, r, link);
	*r = (struct sock_req) { .ev = { .type = type, .id = id },
				 .data = data,
				 .length = length,
				 .receive = receive,
				 .posted = true };
	if (keyed) {
		r->key = SLIST_FIRST(keys);
		SLIST_REMOVE_HEAD(keys, link);
	}
	TAILQ_INSERT_TAIL(&s->posted, r, link);
	s->gets += type == FLUE_SOCKET_GOT;
	*out = r;
	return 0;
}

/* Lock held: it was not posted after all. */
static void take_back(struct acc_socket *s, struct sock_req *r)
{
	unpost(s, r);
	TAILQ_INSERT_HEAD(r->receive ? &s->free_recvs : &s->free_sends, r, link);
}

static int check_args(const struct acc_socket *s, const void *data, size_t length)
{
	int rc = acc_usable(s->a);

	if (!rc && (length > UINT32_MAX || (length && !data)))
		rc = -EINVAL;
	return rc;
}

/* Writes the requests in front of `main` that make its key valid; returns the first of the list. */
static struct flue_send_wr *put_in_front(struct sock_req *r, struct flue_send_wr *front,
					 struct flue_send_wr *main, uint32_t access)
{
	struct sock_key *k = r->key;
	struct flue_send_wr *first = &front[1];

	front[1] = (struct flue_send_wr) { .next = main,
					   .id = (uintptr_t)r | IN_FRONT,
					   .op = FLUE_WR_FAST_REG,
					   .rkey = k->key,
					   .reg = { .addr = (uintptr_t)r->data,
						    .length = r->length,
						    .access = access,
						    .key = (uint8_t)(k->key + 1) } };
	if (k->valid) {
		front[0] = (struct flue_send_wr) { .next = first,
						   .id = (uintptr_t)r | IN_FRONT,
						   .op = FLUE_WR_LOCAL_INV,
						   .rkey = k->key };
		first = &front[0];
	}
	k->key = (k->key & ~0xffu) | (uint8_t)(k->key + 1);
	k->valid = true;
	return first;
}

/* Lock held: posts `main` with its memory. The lock stays, so that keys are used in order. */
static int post(struct acc_socket *s, struct sock_req *r, struct flue_send_wr *main)
{
	struct flue_send_wr front[2], *first = main;
	struct flue_sge sge = { .addr = (uintptr_t)r->data, .length = (uint32_t)r->length };
	uint32_t access = main->op == FLUE_WR_READ ? FLUE_LOCAL_WRITE : 0;
	struct sock_key was = { 0 };

	main->id = (uintptr_t)r;
	main->flags |= FLUE_SIGNALED;
	if (r->length) {
		main->sg = &sge;
		main->n_sg = 1;
	}
	if (r->key) {
		was = *r->key;
		first = put_in_front(r, front, main, access);
		sge.lkey = r->key->key;
	} else if (r->length) {
		main->flags |= FLUE_INLINE;
	}
	if (s->pub.qp->ops->post_send(s->pub.qp, first, NULL))
		return 0;
	/* There is room for the whole list or for nothing, so nothing was posted. */
	if (r->key)
		*r->key = was;
	return -errno;
}

static bool run(struct flue_socket *pub, enum socket_call call, uint32_t type, void *data,
		size_t length, struct flue_send_wr *wr, uint64_t id)
{
	CANCEL_HELD;
	struct acc_socket *s = to_socket(pub);
	struct sock_req *r;
	bool keyed;
	int rc = check_args(s, data, length);

	if (rc)
		return acc_ok(rc);
	pthread_mutex_lock(&s->lock);
	rc = sock_check(s, call);
	if (!rc && !s->own_qp)
		rc = -EOPNOTSUPP;
	keyed = length && (type == FLUE_SOCKET_GOT || (pub->qp && length > pub->qp->max_inline));
	if (!rc)
		rc = begin(s, false, keyed, type, data, length, id, &r);
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

bool sock_rdma_send(struct flue_socket *pub, const void *data, size_t length, uint32_t flags,
		    uint32_t inv_key, uint64_t id)
{
	bool invalidate = flags & FLUE_SOCKET_INVALIDATE;
	struct flue_send_wr wr = { .op = invalidate ? FLUE_WR_SEND_INV : FLUE_WR_SEND,
				   .flags = wr_flags(flags),
				   .rkey = invalidate ? inv_key : 0 };

	if (flags & ~(uint32_t)ALL_FLAGS)
		return acc_ok(-EINVAL);
	return run(pub, SOCKET_CALL_RDMA_SEND, FLUE_SOCKET_RDMA_SENT, (void *)data, length, &wr,
		   id);
}

bool sock_put(struct flue_socket *pub, const void *data, size_t length, uint64_t remote_addr,
	      uint32_t rkey, uint32_t flags, uint64_t id)
{
	struct flue_send_wr wr = { .op = FLUE_WR_WRITE,
				   .flags = wr_flags(flags),
				   .remote_addr = remote_addr,
				   .rkey = rkey };

	if (flags & ~(uint32_t)FLUE_SOCKET_FENCE)
		return acc_ok(-EINVAL);
	return run(pub, SOCKET_CALL_PUT, FLUE_SOCKET_PUT, (void *)data, length, &wr, id);
}

bool sock_get(struct flue_socket *pub, void *data, size_t length, uint64_t remote_addr,
	      uint32_t rkey, uint32_t flags, uint64_t id)
{
	struct flue_send_wr wr = { .op = FLUE_WR_READ,
				   .flags = wr_flags(flags),
				   .remote_addr = remote_addr,
				   .rkey = rkey };

	if (flags & ~(uint32_t)FLUE_SOCKET_FENCE)
		return acc_ok(-EINVAL);
	return run(pub, SOCKET_CALL_GET, FLUE_SOCKET_GOT, data, length, &wr, id);
}

/* Lock held. A control call may be answered later, so the lock is dropped for it. */
static int map_receive(struct acc_socket *s, struct sock_req *r)
{
	struct flue_mr_attr attr = FLUE_ATTR(struct flue_mr_attr);
	int rc = 0;

	if (!r->key)
		return 0;
	attr.addr = r->data;
	attr.length = r->length;
	pthread_mutex_unlock(&s->lock);
	if (!r->key->mr->ops->modify(r->key->mr, FLUE_MR_RANGE, &attr, NULL))
		rc = -errno;
	pthread_mutex_lock(&s->lock);
	return rc ? rc : sock_check(s, SOCKET_CALL_RDMA_RECV);
}

/* Lock held. */
static int post_receive(struct acc_socket *s, struct sock_req *r)
{
	struct flue_sge sge = { .addr = (uintptr_t)r->data, .length = (uint32_t)r->length };
	struct flue_recv_wr wr = { .id = (uintptr_t)r, .sg = &sge, .n_sg = r->length ? 1 : 0 };
	int rc = map_receive(s, r);

	if (rc)
		return rc;
	if (r->key)
		sge.lkey = r->key->mr->lkey;
	return s->pub.qp->ops->post_recv(s->pub.qp, &wr, NULL) ? 0 : -errno;
}

bool sock_rdma_recv(struct flue_socket *pub, void *data, size_t length, uint64_t id)
{
	CANCEL_HELD;
	struct acc_socket *s = to_socket(pub);
	struct sock_req *r;
	int rc = check_args(s, data, length);
	bool first;

	if (rc)
		return acc_ok(rc);
	pthread_mutex_lock(&s->lock);
	rc = sock_check(s, SOCKET_CALL_RDMA_RECV);
	first = !rc && pub->offload_state == FLUE_OFFLOAD_WAIT_FIRST_RECV;
	/* A control client has posted its receives to its queue pair; this only starts the transfer. */
	if (!rc && !s->own_qp) {
		rc = first && !length ? 0 : -EOPNOTSUPP;
	} else if (!rc) {
		rc = begin(s, true, length > 0, FLUE_SOCKET_RDMA_RECEIVED, data, length, id, &r);
		if (!rc) {
			rc = post_receive(s, r);
			if (rc)
				take_back(s, r);
		}
	}
	/* Of two threads that come at once only one is the first. */
	if (!rc && first && sock_step(s, OFFLOAD_EV_FIRST_RECV) == SOCKET_TRANSFER) {
		s->deadline = clock_now() + (uint64_t)s->sw.attr.timeout_ms * NSEC_PER_MSEC;
		sock_try_transfer(s);
	}
	pthread_mutex_unlock(&s->lock);
	sock_deliver(s, false);
	return acc_ok(rc);
}
