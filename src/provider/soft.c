/* SPDX-License-Identifier: MIT */
/* The provider "soft": the software RNIC behind the provider interface. Answers everything at once. */
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "provider/registry.h"
#include "rnic/cep.h"
#include "rnic/cq.h"
#include "rnic/listener.h"
#include "rnic/mem.h"
#include "rnic/qp.h"
#include "rnic/rnic.h"
#include "rnic/srq.h"
#include "rnic/ud.h"

struct handler {
	struct engine *engine;
	prov_completion_fn fn;
	void *arg;
};

/* struct prov_adapter is this. The other handles are the RNIC's own objects. */
struct soft {
	struct rnic *rnic;
	const struct prov_upcalls *up;
	pthread_mutex_t lock;
	struct handler *handlers;
	int n_handlers;
};

#define HANDLE(type, name, what)                             \
	static inline struct type *to_##what(struct name *p) \
	{                                                    \
		return (struct type *)p;                     \
	}
HANDLE(soft, prov_adapter, soft)
HANDLE(rnic_pd, prov_pd, pd)
HANDLE(mem, prov_mr, mr)
HANDLE(mem, prov_mw, mw)
HANDLE(cq, prov_cq, cq)
HANDLE(srq, prov_srq, srq)
HANDLE(qp, prov_qp, qp)
HANDLE(listener, prov_listener, listener)
HANDLE(cep, prov_request, cep)

/* ---- adapter ---- */

/* Connections go wherever the kernel's TCP goes. */
#define ADAPTER "flue0"

static bool is_ip(const struct ifaddrs *at)
{
	return at->ifa_addr && at->ifa_flags & IFF_UP &&
	       (at->ifa_addr->sa_family == AF_INET || at->ifa_addr->sa_family == AF_INET6);
}

static void find_addresses(struct flue_adapter_info *info)
{
	struct ifaddrs *all, *at;

	if (getifaddrs(&all))
		return;
	for (at = all; at; at = at->ifa_next) {
		bool v4;

		if (!is_ip(at))
			continue;
		v4 = at->ifa_addr->sa_family == AF_INET;
		if (info->n_addresses < info->max_addresses)
			memcpy(&info->addresses[info->n_addresses], at->ifa_addr,
			       v4 ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
		info->n_addresses++;
	}
	freeifaddrs(all);
}

static void tell_caps(struct flue_caps *c)
{
	/* Objects without a table of their own are bounded by memory alone. */
	c->max_qp = RENDEZVOUS_PLAIN - 1;
	c->max_cq = c->max_pd = c->max_srq = 1u << 24;
	c->max_mr = c->max_mw = RNIC_MAX_MR;
	c->max_sq_depth = c->max_rq_depth = c->max_srq_depth = RNIC_MAX_DEPTH;
	c->max_cq_depth = RNIC_MAX_CQ_DEPTH;
	c->max_sge = RNIC_MAX_SGE;
	c->max_read_sge = RNIC_MAX_READ_SGE;
	c->max_read_sge_full = RNIC_MAX_SGE;
	c->max_inline = RNIC_MAX_INLINE;
	c->max_ird = c->max_ord = RNIC_MAX_ORD;
	c->max_mr_length = SIZE_MAX;
	c->max_message = RNIC_MAX_MESSAGE;
	c->max_private_data = c->max_private_rev1 = MPA_PD_MAX;
	c->max_private_request = c->max_private_reply = c->max_private_reject = MPA_PD_MAX -
										MPA_ENHANCED_LEN;
	c->features = FLUE_FEATURE_SRQ | FLUE_FEATURE_ZERO_BASED | FLUE_FEATURE_FAST_REG |
		      FLUE_FEATURE_WINDOWS | FLUE_FEATURE_REMOTE_INVALIDATE |
		      FLUE_FEATURE_CQ_RESIZE | FLUE_FEATURE_MARKERS | FLUE_FEATURE_ADOPT_STREAM |
		      FLUE_FEATURE_GANG | FLUE_FEATURE_IOVA | FLUE_FEATURE_POST_EARLY |
		      FLUE_FEATURE_ATOMICS | FLUE_FEATURE_IMM | FLUE_FEATURE_FULL |
		      FLUE_FEATURE_MODIFY | FLUE_FEATURE_UD | FLUE_FEATURE_LOCAL |
		      FLUE_FEATURE_WINDOWS_1 | FLUE_FEATURE_WINDOWS_2A | FLUE_FEATURE_KEEP_KEYS |
		      FLUE_FEATURE_SRQ_RESIZE;
	c->max_private_full = MPA_PD_MAX - MPA_ENHANCED_LEN - MPA_IDENTITY_LEN;
}

static int soft_adapter(uint32_t index, struct flue_adapter_info *info, struct flue_caps *caps)
{
	if (index)
		return -ENOENT;
	strcpy(info->name, ADAPTER);
	info->ports = 1;
	info->n_addresses = 0;
	if (info->addresses)
		find_addresses(info);
	tell_caps(caps);
	return 0;
}

static void up_qp_event(void *ctx, void *owner, const struct flue_event *ev,
			const struct rnic_conn_info *c)
{
	struct soft *s = ctx;
	struct prov_conn_info info;

	if (!c) {
		s->up->qp_event(owner, ev, NULL);
		return;
	}
	info = (struct prov_conn_info) { .local = c->local,
					 .peer = c->peer,
					 .private_data = c->private_data,
					 .private_len = c->private_len,
					 .ird = c->ird,
					 .ord = c->ord };
	s->up->qp_event(owner, ev, &info);
}

static void up_cq_error(void *ctx, void *owner)
{
	((struct soft *)ctx)->up->cq_error(owner);
}

static void up_srq_limit(void *ctx, void *owner)
{
	((struct soft *)ctx)->up->srq_limit(owner);
}

static int up_request(void *ctx, void *owner, struct cep *req, const struct rnic_request_info *r)
{
	uint32_t room = MPA_PD_MAX - (r->revision == 1 ? 0 : MPA_ENHANCED_LEN) -
			(r->full ? MPA_IDENTITY_LEN : 0);
	struct prov_request_info info = { .local = r->local,
					  .peer = r->peer,
					  .private_data = r->private_data,
					  .private_len = r->private_len,
					  .peer_ird = r->peer_ird,
					  .peer_ord = r->peer_ord,
					  .revision = r->revision,
					  .peer_to_peer = r->peer_to_peer,
					  .full = r->full,
					  .max_reply = room,
					  .max_reject = room };

	return ((struct soft *)ctx)->up->request(owner, (struct prov_request *)req, &info);
}

static const struct rnic_upcalls upcalls = {
	.qp_event = up_qp_event,
	.cq_error = up_cq_error,
	.srq_limit = up_srq_limit,
	.request = up_request,
};

static int soft_open(const struct prov_open_attr *attr, struct prov_adapter **out)
{
	struct soft *s;
	int rc;

	if (strcmp(attr->name, ADAPTER))
		return -ENODEV;
	s = calloc(1, sizeof(*s));
	if (!s)
		return -ENOMEM;
	rc = rnic_open(attr->cpus, attr->n_cpus, &upcalls, s, &s->rnic);
	if (rc) {
		free(s);
		return rc;
	}
	s->up = attr->up;
	s->rnic->local = attr->links & FLUE_LINK_LOCAL;
	pthread_mutex_init(&s->lock, NULL);
	*out = (struct prov_adapter *)s;
	return 0;
}

static void soft_close(struct prov_adapter *a)
{
	struct soft *s = to_soft(a);

	rnic_close(s->rnic);
	pthread_mutex_destroy(&s->lock);
	free(s->handlers);
	free(s);
}

static int soft_set_handler(struct prov_adapter *a, int cpu, prov_completion_fn fn, void *arg)
{
	struct soft *s = to_soft(a);
	struct engine *e = rnic_engine(s->rnic, cpu);
	struct handler *h;
	int id = -ENOMEM;

	if (!e)
		return -EINVAL;
	pthread_mutex_lock(&s->lock);
	h = realloc(s->handlers, (size_t)(s->n_handlers + 1) * sizeof(*h));
	if (h) {
		s->handlers = h;
		id = s->n_handlers++;
		h[id] = (struct handler) { e, fn, arg };
	}
	pthread_mutex_unlock(&s->lock);
	return id;
}

static int soft_create_pd(struct prov_adapter *a, struct prov_pd **out, struct prov_op *op)
{
	struct rnic_pd *pd = calloc(1, sizeof(*pd));

	(void)op;
	if (!pd)
		return -ENOMEM;
	pd->rnic = to_soft(a)->rnic;
	*out = (struct prov_pd *)pd;
	return 0;
}

static int soft_destroy_pd(struct prov_pd *pd, struct prov_op *op)
{
	(void)op;
	free(to_pd(pd));
	return 0;
}

/* ---- memory ---- */

/* One STag is both keys: the wire names the sink of a Read by it, which is an lkey, and what a peer may
 * do with it is a matter of the region's rights alone. */
static void give_keys(const struct mem *m, struct prov_keys *keys)
{
	*keys = (struct prov_keys) { .lkey = m->stag, .rkey = m->stag };
}

static int soft_register_mr(const struct prov_mr_attr *a, struct prov_mr **out,
			    struct prov_keys *keys, struct prov_op *op)
{
	struct rnic_pd *pd = to_pd(a->pd);
	struct mem_attr attr = { a->addr, a->start, a->length, a->access, a->revoked };
	struct mem *m;
	int rc = mem_register(&pd->rnic->mem, pd, &attr, &m);

	(void)op;
	if (rc)
		return rc;
	/* Nobody knows the key yet, so no request can change the region before this. */
	m->shown = a->owner;
	give_keys(m, keys);
	*out = (struct prov_mr *)m;
	return 0;
}

static int soft_modify_mr(struct prov_mr *mr, uint32_t what, const struct prov_mr_attr *a,
			  struct prov_keys *keys, struct prov_op *op)
{
	struct rnic_pd *pd = to_pd(a->pd);
	struct mem_attr attr = { a->addr, a->start, a->length, a->access, false };
	struct mem *m = to_mr(mr);
	int rc = mem_modify(&pd->rnic->mem, m, what, pd, &attr);

	(void)op;
	if (rc == 0)
		give_keys(m, keys);
	return rc;
}

static int soft_deregister_mr(struct prov_mr *mr, struct prov_op *op)
{
	struct mem *m = to_mr(mr);

	(void)op;
	return mem_destroy(&m->pd->rnic->mem, m);
}

static int soft_create_mw(struct prov_pd *p, uint32_t type, struct prov_mw **out, uint32_t *rkey,
			  struct prov_op *op)
{
	struct rnic_pd *pd = to_pd(p);
	struct mem *m;
	int rc = mem_window(&pd->rnic->mem, pd, type, &m);

	(void)op;
	if (rc)
		return rc;
	*rkey = m->stag;
	if (type != FLUE_MW_1) /* else the next key is known when a bind is posted */
		m->shown_key = rkey;
	*out = (struct prov_mw *)m;
	return 0;
}

static int soft_destroy_mw(struct prov_mw *mw, struct prov_op *op)
{
	struct mem *m = to_mw(mw);

	(void)op;
	return mem_destroy(&m->pd->rnic->mem, m);
}

static int soft_bind_mw(struct prov_mw *mw, struct prov_qp *qp, const struct flue_send_wr *wr,
			uint32_t *rkey)
{
	return qp_post_bind(to_qp(qp), to_mw(mw), wr, rkey);
}

/* ---- queues ---- */

static int soft_create_cq(struct prov_adapter *a, const struct prov_cq_attr *attr,
			  struct prov_cq **out, struct prov_op *op)
{
	struct soft *s = to_soft(a);
	struct handler h;
	struct cq *cq;
	int rc;

	(void)op;
	pthread_mutex_lock(&s->lock);
	rc = attr->handler >= 0 && attr->handler < s->n_handlers ? 0 : -EINVAL;
	if (rc == 0)
		h = s->handlers[attr->handler];
	pthread_mutex_unlock(&s->lock);
	if (rc == 0)
		rc = cq_create(s->rnic, h.engine, attr->depth, h.fn, h.arg, attr->owner, &cq);
	if (rc)
		return rc;
	if (!attr->affine)
		rc = cq_roam(cq);
	if (rc)
		cq_destroy(cq);
	else
		*out = (struct prov_cq *)cq;
	return rc;
}

static int soft_resize_cq(struct prov_cq *cq, uint32_t depth, struct prov_op *op)
{
	(void)op;
	return cq_resize(to_cq(cq), depth);
}

static int soft_destroy_cq(struct prov_cq *cq, struct prov_op *op)
{
	(void)op;
	cq_destroy(to_cq(cq));
	return 0;
}

static int soft_poll(struct prov_cq *cq, struct flue_wc *wc, size_t size, uint32_t n)
{
	return cq_poll_sized(to_cq(cq), wc, size, n);
}

static int soft_arm(struct prov_cq *cq, uint32_t kind)
{
	return cq_arm(to_cq(cq), kind);
}

static int soft_wait(struct prov_cq *cq, int timeout_ms)
{
	return cq_wait(to_cq(cq), timeout_ms);
}

static int soft_create_srq(struct prov_pd *pd, uint32_t depth, uint32_t max_sge, void *owner,
			   struct prov_srq **out, struct prov_op *op)
{
	struct srq *s;
	int rc = srq_create(to_pd(pd), depth, max_sge, owner, &s);

	(void)op;
	if (rc == 0)
		*out = (struct prov_srq *)s;
	return rc;
}

static int soft_destroy_srq(struct prov_srq *srq, struct prov_op *op)
{
	(void)op;
	srq_destroy(to_srq(srq));
	return 0;
}

static int soft_arm_srq(struct prov_srq *srq, uint32_t limit)
{
	return srq_arm(to_srq(srq), limit);
}

static int soft_modify_srq(struct prov_srq *srq, const struct flue_srq_values *v, uint32_t mask,
			   struct prov_op *op)
{
	(void)op;
	return srq_modify(to_srq(srq), v, mask);
}

static int soft_query_srq(struct prov_srq *srq, struct flue_srq_values *v, struct prov_op *op)
{
	(void)op;
	srq_query(to_srq(srq), v);
	return 0;
}

static int soft_post_srq(struct prov_srq *srq, const struct flue_recv_wr *wr,
			 const struct flue_recv_wr **bad)
{
	return srq_post(to_srq(srq), wr, bad);
}

/* ---- queue pairs ---- */

static int soft_create_qp(const struct prov_qp_attr *a, struct prov_qp **out, uint32_t *number,
			  struct prov_op *op)
{
	struct qp_attr attr = { .pd = to_pd(a->pd),
				.send_cq = to_cq(a->send_cq),
				.recv_cq = to_cq(a->recv_cq),
				.srq = to_srq(a->srq),
				.sq_depth = a->sq_depth,
				.rq_depth = a->rq_depth,
				.sq_sge = a->sq_sge,
				.rq_sge = a->rq_sge,
				.max_inline = a->max_inline,
				.signal_all = a->signal_all,
				.post_early = a->post_early,
				.bringup = a->bringup,
				.ud = a->type == FLUE_QP_UD,
				.state = a->state,
				.owner = a->owner };
	struct qp *q;
	int rc = qp_create(&attr, &q);

	(void)op;
	if (rc)
		return rc;
	*number = q->qpn;
	*out = (struct prov_qp *)q;
	return 0;
}

static int soft_destroy_qp(struct prov_qp *qp, struct prov_op *op)
{
	(void)op;
	qp_destroy(to_qp(qp));
	return 0;
}

static int soft_reset_qp(struct prov_qp *qp, struct prov_op *op)
{
	(void)op;
	return qp_reset(to_qp(qp));
}

static int soft_query_qp(struct prov_qp *qp, struct flue_qp_values *v, uint32_t mask,
			 struct prov_op *op)
{
	(void)op;
	return qp_query(to_qp(qp), v, mask);
}

static int soft_modify_qp(struct prov_qp *qp, const struct flue_qp_values *v, uint32_t mask,
			  struct prov_op *op)
{
	(void)op;
	return qp_modify(to_qp(qp), v, mask);
}

static int soft_post_send(struct prov_qp *qp, const struct flue_send_wr *wr,
			  const struct flue_send_wr **bad)
{
	return qp_post_send(to_qp(qp), wr, bad);
}

static int soft_post_recv(struct prov_qp *qp, const struct flue_recv_wr *wr,
			  const struct flue_recv_wr **bad)
{
	return qp_post_recv(to_qp(qp), wr, bad);
}

/* ---- connections ---- */

static int soft_connect(struct prov_qp *qp, const struct flue_conn_attr *attr)
{
	return cep_connect(to_qp(qp), attr);
}

static int soft_start(struct prov_qp *qp)
{
	return cep_start(to_qp(qp));
}

static int soft_disconnect(struct prov_qp *qp, int timeout_ms)
{
	return qp_disconnect(to_qp(qp), timeout_ms);
}

static int soft_abort(struct prov_qp *qp)
{
	return qp_abort(to_qp(qp));
}

static int soft_listen(struct prov_adapter *a, const struct prov_listen_attr *attr,
		       struct sockaddr_storage *bound, struct prov_listener **out)
{
	struct listen_attr la = { .local = attr->local,
				  .local_len = attr->local_len,
				  .max_half_open = attr->max_half_open,
				  .request_timeout_ms = attr->request_timeout_ms,
				  .full = attr->full,
				  .owner = attr->owner };
	struct listener *l;
	int rc = listener_create(to_soft(a)->rnic, &la, bound, &l);

	if (rc == 0)
		*out = (struct prov_listener *)l;
	return rc;
}

static int soft_destroy_listener(struct prov_listener *l, struct prov_op *op)
{
	(void)op;
	listener_destroy(to_listener(l));
	return 0;
}

static struct engine_await await_of(const struct prov_await *w)
{
	return (struct engine_await) { .word = w->word,
				       .value = w->value,
				       .timeout_ms = w->timeout_ms,
				       .cancel_was = w->cancel_was };
}

static int soft_await_qp(struct prov_qp *qp, const struct prov_await *w)
{
	struct engine_await to = await_of(w);

	return qp_await_news(to_qp(qp), &to);
}

static int soft_await_listener(struct prov_listener *l, const struct prov_await *w)
{
	struct engine_await to = await_of(w);

	return listener_await(to_listener(l), &to);
}

static int soft_accept(struct prov_request *req, struct prov_qp *qp,
		       const struct flue_conn_attr *attr)
{
	return cep_accept(to_cep(req), to_qp(qp), attr);
}

static int soft_reject(struct prov_request *req, const void *data, size_t length)
{
	return cep_reject(to_cep(req), data, length);
}

static int soft_adopt_stream(struct prov_qp *qp, const struct prov_stream *stream,
			     const struct flue_conn_attr *attr)
{
	struct cep_adopt a = { .fd = stream->fd,
			       .initiator = stream->initiator,
			       .raw = stream->raw,
			       .early = stream->early,
			       .early_len = stream->early_len,
			       .deny = stream->deny };

	return cep_adopt(to_qp(qp), &a, attr);
}

/* Each engine has its own lock, and frames are exchanged by each connection anyway: there is nothing
 * to gain but the call. */
static int soft_adopt_gang(struct prov_adoption *gang, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		gang[i].result = soft_adopt_stream(gang[i].qp, gang[i].stream, gang[i].attr);
	return 0;
}

static int soft_terminate(struct prov_qp *qp)
{
	return qp_terminate(to_qp(qp));
}

/* ---- datagrams ---- */

static int soft_create_ah(struct prov_pd *pd, const struct flue_ah_attr *attr, struct prov_ah **out,
			  struct prov_op *op)
{
	struct ud_ah *ah;
	int rc = ud_ah_create(to_pd(pd), attr, &ah);

	(void)op;
	if (rc == 0)
		*out = (struct prov_ah *)ah;
	return rc;
}

static int soft_destroy_ah(struct prov_ah *ah, struct prov_op *op)
{
	(void)op;
	free(ah);
	return 0;
}

static int soft_join_group(struct prov_qp *qp, const struct flue_ah_attr *group)
{
	return ud_join(to_qp(qp), group->remote, group->remote_len, group->local, group->local_len);
}

static int soft_leave_group(struct prov_qp *qp, const struct flue_ah_attr *group)
{
	return ud_leave(to_qp(qp), group->remote, group->remote_len);
}

const struct prov_ops soft_provider = {
	.size = sizeof(struct prov_ops),
	.name = "soft",
	.description = "software RNIC: iWARP (MPA, DDP, RDMAP) on kernel TCP",
	.adapter = soft_adapter,
	.open = soft_open,
	.close = soft_close,
	.set_completion_handler = soft_set_handler,
	.create_pd = soft_create_pd,
	.destroy_pd = soft_destroy_pd,
	.register_mr = soft_register_mr,
	.modify_mr = soft_modify_mr,
	.deregister_mr = soft_deregister_mr,
	.create_mw = soft_create_mw,
	.destroy_mw = soft_destroy_mw,
	.bind_mw = soft_bind_mw,
	.create_cq = soft_create_cq,
	.resize_cq = soft_resize_cq,
	.destroy_cq = soft_destroy_cq,
	.poll = soft_poll,
	.arm = soft_arm,
	.wait = soft_wait,
	.create_srq = soft_create_srq,
	.destroy_srq = soft_destroy_srq,
	.arm_srq = soft_arm_srq,
	.modify_srq = soft_modify_srq,
	.query_srq = soft_query_srq,
	.post_srq = soft_post_srq,
	.create_qp = soft_create_qp,
	.destroy_qp = soft_destroy_qp,
	.reset_qp = soft_reset_qp,
	.query_qp = soft_query_qp,
	.modify_qp = soft_modify_qp,
	.post_send = soft_post_send,
	.post_recv = soft_post_recv,
	.connect = soft_connect,
	.start = soft_start,
	.disconnect = soft_disconnect,
	.abort = soft_abort,
	.listen = soft_listen,
	.destroy_listener = soft_destroy_listener,
	.await_qp = soft_await_qp,
	.await_listener = soft_await_listener,
	.accept = soft_accept,
	.reject = soft_reject,
	.adopt_stream = soft_adopt_stream,
	.adopt_gang = soft_adopt_gang,
	.terminate = soft_terminate,
	.create_ah = soft_create_ah,
	.destroy_ah = soft_destroy_ah,
	.join_group = soft_join_group,
	.leave_group = soft_leave_group,
};
