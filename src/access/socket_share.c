/* SPDX-License-Identifier: MIT */
/*
 * What an RDMA socket reserves (CH-7): protection domain, queue pair, keys, and a share of a
 * completion queue. Completion queues are shared by a few sockets (CH-5): the queue pair is made
 * first, at the wanted size, then the queue is grown for it, and only if that fails a new one is
 * made. Growing doubles, because each resize disturbs all who use the queue.
 */
#include <stdlib.h>

#include "access/socket_priv.h"
#include "access/stream.h"
#include "base/util.h"

#define QPS_PER_CQ    16
#define DEFAULT_DEPTH 16
#define DEFAULT_READS 16
#define MAX_INLINE    256

/* A request of the program may need two in front of it for each piece: see socket_rdma.c. */
static uint32_t per_send(const struct flue_reserve_attr *r)
{
	return 1 + 2 * r->pieces;
}

/* ---- protection domains ---- */

static struct sock_pd *new_pd(struct acc_adapter *a)
{
	struct sock_pd *pd = calloc(1, sizeof(*pd));

	if (!pd)
		return NULL;
	pd->pd = a->pub.ops->create_pd(&a->pub);
	if (!pd->pd) {
		free(pd);
		return NULL;
	}
	return pd;
}

static void drop(struct sock_pd *pd)
{
	if (!pd || atomic_fetch_sub(&pd->users, 1) != 1)
		return;
	pd->pd->ops->destroy(pd->pd);
	free(pd);
}

/* What another socket has, held for us. */
static struct sock_pd *pd_of(struct acc_socket *related)
{
	struct sock_pd *pd;

	pthread_mutex_lock(&related->lock);
	pd = related->pd;
	if (pd)
		atomic_fetch_add(&pd->users, 1);
	pthread_mutex_unlock(&related->lock);
	return pd;
}

int sock_need_pd(struct acc_socket *s, struct acc_socket *related)
{
	struct sock_pd *pd = NULL;
	bool have;
	int rc = 0;

	pthread_mutex_lock(&s->lock);
	have = s->pub.pd; /* an own one, or the control client's */
	pthread_mutex_unlock(&s->lock);
	if (have && !related)
		return 0;
	if (related) {
		pd = pd_of(related);
		if (!pd)
			return -EINVAL;
	} else {
		pd = new_pd(s->a);
		if (!pd)
			return -errno;
		atomic_store(&pd->users, 1);
	}
	pthread_mutex_lock(&s->lock);
	if (!s->pd) {
		s->pd = pd;
		s->pub.pd = pd->pd;
		pd = NULL;
	} else if (related && s->pd != pd) {
		rc = -EINVAL;
	}
	pthread_mutex_unlock(&s->lock);
	drop(pd); /* somebody else was faster, or it is the same one */
	return rc;
}

void sock_drop_pd(struct acc_socket *s)
{
	struct sock_pd *pd = s->pd;

	s->pd = NULL;
	s->pub.pd = NULL;
	drop(pd);
}

/* ---- shared completion queues ---- */

static struct sock_cq *new_shared_cq(struct acc_adapter *a, uint32_t depth)
{
	struct flue_cq_attr attr = FLUE_ATTR(struct flue_cq_attr);
	struct sock_cq *q = calloc(1, sizeof(*q));

	if (!q)
		return NULL;
	attr.depth = depth;
	attr.on_completion = sock_completion;
	q->cq = a->pub.ops->create_cq(&a->pub, &attr);
	if (!q->cq) {
		free(q);
		return NULL;
	}
	TAILQ_INSERT_TAIL(&a->shared_cqs, q, link);
	return q;
}

/* share_lock held. */
static void drop_if_unused(struct acc_adapter *a, struct sock_cq *q)
{
	if (q->users)
		return;
	TAILQ_REMOVE(&a->shared_cqs, q, link);
	q->cq->ops->destroy(q->cq);
	free(q);
}

static struct sock_cq *find_cq(struct acc_adapter *a)
{
	struct sock_cq *q;

	TAILQ_FOREACH(q, &a->shared_cqs, link)
		if (q->users < QPS_PER_CQ)
			return q;
	return NULL;
}

static bool grow_cq(struct acc_adapter *a, struct sock_cq *q, uint32_t need)
{
	uint32_t depth = q->cq->depth;

	while (depth < q->promised + need && depth <= a->caps.max_cq_depth / 2)
		depth *= 2;
	if (depth < q->promised + need)
		depth = a->caps.max_cq_depth;
	if (depth < q->promised + need)
		return false;
	return depth == q->cq->depth || q->cq->ops->resize(q->cq, depth);
}

static struct flue_qp *make_qp(struct acc_socket *s, struct flue_cq *cq,
			       const struct flue_reserve_attr *r)
{
	struct flue_qp_attr attr = FLUE_ATTR(struct flue_qp_attr);
	uint32_t most = s->a->caps.max_inline;

	attr.send_cq = attr.recv_cq = cq;
	attr.sq_depth = r->sq_depth * per_send(r);
	attr.rq_depth = r->rq_depth;
	attr.sq_sge = attr.rq_sge = r->pieces;
	attr.max_inline = most < MAX_INLINE ? most : MAX_INLINE;
	attr.on_event = sock_heard;
	attr.event_arg = s;
	return s->pub.pd->ops->create_qp(s->pub.pd, &attr);
}

/* share_lock held. Sets s->cq and s->pub.qp. *unfit: a queue pair to destroy without the lock. */
static uint32_t join_cq(struct acc_socket *s, const struct flue_reserve_attr *r,
			struct flue_qp **unfit)
{
	struct acc_adapter *a = s->a;
	uint32_t need = r->sq_depth * per_send(r) + r->rq_depth;
	struct sock_cq *q = find_cq(a);
	struct flue_qp *qp = NULL;

	if (q) {
		qp = make_qp(s, q->cq, r);
		if (!qp)
			return FLUE_RESERVE_NO_QP;
		if (!grow_cq(a, q, need)) {
			*unfit = qp;
			q = NULL;
		}
	}
	if (!q) {
		q = new_shared_cq(a, need);
		if (!q)
			return FLUE_RESERVE_CQ_FULL;
		qp = make_qp(s, q->cq, r);
		if (!qp) {
			drop_if_unused(a, q);
			return FLUE_RESERVE_NO_QP;
		}
	}
	q->users++;
	q->promised += need;
	s->promised = need;
	s->cq = q;
	s->pub.qp = qp;
	return FLUE_RESERVE_OK;
}

static void leave_cq(struct acc_socket *s)
{
	struct acc_adapter *a = s->a;

	if (!s->cq)
		return;
	/* In a child the lock may be anybody's, and there is nobody else. */
	if (!acc_inherited(a))
		pthread_mutex_lock(&a->share_lock);
	s->cq->users--;
	s->cq->promised -= s->promised;
	drop_if_unused(a, s->cq);
	if (!acc_inherited(a))
		pthread_mutex_unlock(&a->share_lock);
	s->cq = NULL;
}

/* ---- requests and keys ---- */

static bool make_keys(struct acc_socket *s, struct sock_keys *list, uint32_t from, uint32_t n,
		      bool revoked)
{
	struct flue_mr_attr attr = FLUE_ATTR(struct flue_mr_attr);

	/* Each use names its own memory. A region made valid by requests cannot become longer than
	 * it was made, so it is made for the longest message. */
	attr.addr = revoked ? NULL : s;
	attr.length = revoked ? min_u64(UINT32_MAX, s->a->caps.max_mr_length) : 1;
	attr.access = FLUE_LOCAL_WRITE;
	attr.revoked = revoked;
	for (uint32_t i = from; i < from + n; i++) {
		struct sock_key *k = &s->key_store[i];

		k->mr = s->pub.pd->ops->register_mr(s->pub.pd, &attr);
		if (!k->mr)
			return false;
		k->keys = (struct prov_keys) { k->mr->lkey, k->mr->rkey };
		s->n_keys++;
		SLIST_INSERT_HEAD(list, k, link);
	}
	return true;
}

/* A key for each piece of each request, so that who has a request finds keys as well. */
static bool make_requests(struct acc_socket *s, const struct flue_reserve_attr *r)
{
	uint32_t sends = r->sq_depth, n = sends + r->rq_depth;
	size_t pieces = r->pieces;

	s->reqs = calloc(n, sizeof(*s->reqs));
	s->sg_store = calloc(n * pieces, sizeof(*s->sg_store));
	s->sg_keys = calloc(n * pieces, sizeof(*s->sg_keys));
	s->front = calloc(2 * pieces, sizeof(*s->front));
	s->key_store = calloc(n * pieces, sizeof(*s->key_store));
	if (!s->reqs || !s->sg_store || !s->sg_keys || !s->front || !s->key_store)
		return false;
	SLIST_INIT(&s->send_keys);
	SLIST_INIT(&s->recv_keys);
	for (uint32_t i = 0; i < n; i++) {
		s->reqs[i].sg = &s->sg_store[i * pieces];
		s->reqs[i].keys = &s->sg_keys[i * pieces];
		TAILQ_INSERT_TAIL(i < sends ? &s->free_sends : &s->free_recvs, &s->reqs[i], link);
	}
	return make_keys(s, &s->send_keys, 0, sends * r->pieces, true) &&
	       make_keys(s, &s->recv_keys, sends * r->pieces, r->rq_depth * r->pieces, false);
}

/* The end of the socket is the end of its connection; what the queue pair did after that is not. */
void sock_leave_qp(struct acc_socket *s, struct flue_qp *pub)
{
	struct acc_qp *qp = to_qp(pub);

	if (acc_inherited(s->a)) {
		qp->hear = NULL;
		return;
	}
	pthread_mutex_lock(&qp->lock);
	qp->hear = NULL;
	while (qp->hearing)
		pthread_cond_wait(&qp->changed, &qp->lock);
	pthread_mutex_unlock(&qp->lock);
	pthread_mutex_lock(&s->lock);
	s->pub.pd = NULL; /* it was the queue pair's */
	pthread_mutex_unlock(&s->lock);
	if (s->pub.state != FLUE_SOCKET_STREAMING && !s->over)
		pub->ops->abort(pub);
}

void sock_unreserve(struct acc_socket *s)
{
	struct flue_qp *qp = s->pub.qp;

	if (qp && s->own_qp)
		qp->ops->destroy(qp);
	else if (qp)
		sock_leave_qp(s, qp);
	s->pub.qp = NULL;
	leave_cq(s);
	for (uint32_t i = 0; i < s->n_keys; i++)
		s->key_store[i].mr->ops->deregister(s->key_store[i].mr);
	s->n_keys = 0;
	free(s->key_store);
	free(s->front);
	free(s->sg_keys);
	free(s->sg_store);
	free(s->reqs);
	s->key_store = NULL;
	s->front = NULL;
	s->sg_keys = NULL;
	s->sg_store = NULL;
	s->reqs = NULL;
	TAILQ_INIT(&s->free_sends);
	TAILQ_INIT(&s->free_recvs);
}

/* ---- reserving ---- */

static uint32_t defaulted(uint32_t want, uint32_t usual, uint32_t most)
{
	return want ? want : usual < most ? usual : most;
}

/* Fills in defaults; a reason when it is more than the adapter has. */
static uint32_t check_wishes(const struct acc_socket *s, struct flue_reserve_attr *r)
{
	const struct flue_caps *caps = &s->a->caps;

	/* Both were said before, and 0 is a value there: no Reads at all. */
	if (s->wished && !r->ird)
		r->ird = s->want_ird;
	else
		r->ird = defaulted(r->ird, DEFAULT_READS, caps->max_ird);
	if (s->wished && !r->ord)
		r->ord = s->want_ord;
	else
		r->ord = defaulted(r->ord, DEFAULT_READS, caps->max_ord);
	r->pieces = defaulted(r->pieces, 1, 1);
	if (r->pieces > caps->max_sge)
		return FLUE_RESERVE_QUEUE_TOO_LONG;
	r->sq_depth = defaulted(r->sq_depth, DEFAULT_DEPTH, caps->max_sq_depth / per_send(r));
	r->rq_depth = defaulted(r->rq_depth, DEFAULT_DEPTH, caps->max_rq_depth);
	if (r->ird > caps->max_ird || r->ord > caps->max_ord)
		return FLUE_RESERVE_READS_TOO_MANY;
	if (r->sq_depth > caps->max_sq_depth / per_send(r) || r->rq_depth > caps->max_rq_depth)
		return FLUE_RESERVE_QUEUE_TOO_LONG;
	return FLUE_RESERVE_OK;
}

static uint32_t take_control_qp(struct acc_socket *s, struct flue_qp *qp)
{
	struct acc_qp *q = to_qp(qp);
	bool taken, other;

	/* Keys that exist already are of no use to a queue pair of another domain. */
	pthread_mutex_lock(&s->lock);
	other = s->pd;
	if (!other)
		s->pub.pd = qp->pd;
	pthread_mutex_unlock(&s->lock);
	if (other)
		return FLUE_RESERVE_NO_PD;
	pthread_mutex_lock(&q->lock);
	taken = q->hear; /* by another socket */
	if (!taken) {
		q->hear_turn++;
		q->hear = sock_heard;
		q->hear_arg = s;
	}
	pthread_mutex_unlock(&q->lock);
	if (taken) {
		pthread_mutex_lock(&s->lock);
		s->pub.pd = NULL;
		pthread_mutex_unlock(&s->lock);
		return FLUE_RESERVE_NO_QP;
	}
	s->own_qp = false;
	s->pub.qp = qp;
	return FLUE_RESERVE_OK;
}

static uint32_t build(struct acc_socket *s, const struct flue_reserve_attr *r)
{
	struct flue_qp *unfit = NULL;
	uint32_t reason;

	if (r->qp)
		return take_control_qp(s, r->qp);
	if (sock_need_pd(s, r->related ? to_socket(r->related) : NULL))
		return FLUE_RESERVE_NO_PD;
	s->own_qp = true;
	pthread_mutex_lock(&s->a->share_lock);
	reason = join_cq(s, r, &unfit);
	pthread_mutex_unlock(&s->a->share_lock);
	if (unfit)
		unfit->ops->destroy(unfit);
	if (reason)
		return reason;
	return make_requests(s, r) ? FLUE_RESERVE_OK : FLUE_RESERVE_NO_QP;
}

/* Was it too much, or does nothing work? Only the latter is beyond recovery (CH-7). */
static uint32_t judge_failure(struct acc_socket *s, const struct flue_reserve_attr *r)
{
	struct flue_reserve_attr least = *r;
	bool works;

	least.sq_depth = least.rq_depth = least.pieces = 1;
	if (r->qp || (r->sq_depth == 1 && r->rq_depth == 1 && r->pieces == 1))
		return FLUE_RESERVE_NO_QP;
	works = build(s, &least) == FLUE_RESERVE_OK;
	sock_unreserve(s);
	return works ? FLUE_RESERVE_QUEUE_TOO_LONG : FLUE_RESERVE_NO_QP;
}

static uint32_t reserve(struct acc_socket *s, struct flue_reserve_attr *r)
{
	uint32_t reason;

	if (!(s->a->caps.features & FLUE_FEATURE_ADOPT_STREAM))
		return FLUE_RESERVE_NO_ADOPT;
	reason = check_wishes(s, r);
	if (reason)
		return reason;
	if (acc_stream_check(s->pub.fd))
		return FLUE_RESERVE_LOST;
	sock_unreserve(s);
	reason = build(s, r);
	if (reason) {
		sock_unreserve(s);
		return reason == FLUE_RESERVE_NO_QP ? judge_failure(s, r) : reason;
	}
	if (s->own_qp) {
		s->pub.sq_depth = r->sq_depth;
		s->pub.rq_depth = r->rq_depth;
		s->pub.pieces = r->pieces;
	}
	s->no_read = r->no_read;
	s->no_write = r->no_write;
	s->wished = true;
	s->pub.ird = s->want_ird = r->ird;
	s->pub.ord = s->want_ord = r->ord;
	return FLUE_RESERVE_OK;
}

static int check_attr(const struct acc_socket *s, const struct flue_reserve_attr *r)
{
	if (r->qp && (r->related || r->qp->pd->adapter != s->pub.adapter ||
		      flue_qp_state(r->qp) != FLUE_QP_IDLE))
		return -EINVAL;
	if (r->related && r->related->adapter != s->pub.adapter)
		return -EINVAL;
	return 0;
}

bool sock_reserve(struct flue_socket *pub, struct flue_reserve_attr *attr)
{
	CANCEL_HELD;
	struct acc_socket *s = to_socket(pub);
	struct flue_reserve_attr r;
	int rc = acc_usable(s->a);
	size_t size;

	if (!rc)
		rc = acc_attr_copy(&r, sizeof(r), attr,
				   ACC_ATTR_SIZE(struct flue_reserve_attr, recoverable));
	if (!rc)
		rc = check_attr(s, &r);
	if (rc)
		return acc_ok(rc);
	pthread_mutex_lock(&s->lock);
	rc = sock_check(s, SOCKET_CALL_RESERVE);
	if (!rc)
		sock_step(s, OFFLOAD_EV_RESERVE);
	pthread_mutex_unlock(&s->lock);
	if (rc)
		return acc_ok(rc);
	r.reason = reserve(s, &r);
	r.recoverable = r.reason >= FLUE_RESERVE_QUEUE_TOO_LONG && r.reason <= FLUE_RESERVE_CQ_FULL;
	pthread_mutex_lock(&s->lock);
	sock_step(s, r.reason ? OFFLOAD_EV_RESERVE_FAILED : OFFLOAD_EV_RESERVED);
	pthread_mutex_unlock(&s->lock);
	/* As much as the program's structure has room for. */
	size = attr->size;
	memcpy(attr, &r, min_size(size, sizeof(r)));
	attr->size = size;
	if (!r.reason)
		return true;
	log_if(r.recoverable ? LOG_LEVEL_warn : LOG_LEVEL_error, LOG_PART_chimney,
	       "socket %d: nothing is reserved: %s", pub->fd, flue_reserve_reason_name(r.reason));
	return acc_ok(r.recoverable ? -ENOBUFS : -EIO);
}
