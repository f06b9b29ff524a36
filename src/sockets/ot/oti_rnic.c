/* SPDX-License-Identifier: MIT */
/* The transport over queue pairs: opening, listeners, set-up, polling, its table. */
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/util.h"
#include "sockets/ot/oti_rnic_priv.h"

#define FIRST_DEPTH 1024
#define BATCH       16
#define PRIVATE_MAX 508 /* of MPA revision 2 */
#define CODE_LEN    4

static void oti_rnic_caps(const struct oti *o, struct oti_caps *caps)
{
	const struct oti_rnic *r = to_oti_rnic(o);
	const struct flue_caps *f = r->adapter->caps;

	*caps = (struct oti_caps) {
		.name = r->direct ? "rnic-direct" : "rnic",
		.flags = OTI_RDMA | (r->direct ? OTI_DIRECT : OTI_POLLED),
		.max_private = min_u32(f->max_private_data, PRIVATE_MAX) - CODE_LEN,
		.max_message = (uint32_t)min_u64(f->max_message, 1u << 20),
		.max_bufs = min_u32(f->max_rq_depth, 1024),
		.max_reads = min_u32(f->max_ird, f->max_ord),
	};
}

/* ---- connecting ---- */

/* A datagram socket asks the routing table without sending anything. */
static int oti_rnic_resolve(struct oti *o, const struct oti_addr *remote, struct oti_endpoint *to)
{
	int fd, rc = 0;

	(void)o;
	if (remote->sa.ss_family != AF_INET && remote->sa.ss_family != AF_INET6)
		return -EAFNOSUPPORT;
	if (remote->len < oti_rnic_addr_len(&remote->sa) ||
	    !((const struct sockaddr_in *)&remote->sa)->sin_port)
		return -EINVAL;
	fd = socket(remote->sa.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	memset(to, 0, sizeof(*to));
	to->remote = *remote;
	to->local.len = sizeof(to->local.sa);
	if (connect(fd, (const struct sockaddr *)&remote->sa, oti_rnic_addr_len(&remote->sa)) ||
	    getsockname(fd, (struct sockaddr *)&to->local.sa, &to->local.len))
		rc = -errno;
	close(fd);
	/* The datagram socket's port means nothing. */
	((struct sockaddr_in *)&to->local.sa)->sin_port = 0;
	return rc;
}

static void fill_attr(struct flue_conn_attr *to, const struct oti_conn_attr *from, uint32_t flags)
{
	*to = FLUE_ATTR(struct flue_conn_attr);
	to->private_data = from->private_data;
	to->private_len = from->private_len;
	to->ird = to->ord = from->reads;
	to->timeout_ms = (int)from->timeout_ms;
	to->flags = flags | FLUE_CONN_ASYNC;
}

static int check_attr(const struct oti_rnic *r, const struct oti_conn_attr *attr)
{
	struct oti_caps caps;

	oti_rnic_caps(&r->base, &caps);
	if (attr->private_len > caps.max_private || attr->reads > caps.max_reads)
		return -EINVAL;
	return attr->bufs > caps.max_bufs || attr->buf_size > caps.max_message ? -EINVAL : 0;
}

static int oti_rnic_connect(struct oti *o, const struct oti_endpoint *to,
			    const struct oti_conn_attr *attr, struct oti_conn **out)
{
	struct oti_rnic *r = to_oti_rnic(o);
	struct flue_conn_attr conn;
	struct oti_rnic_conn *c;
	int rc = check_attr(r, attr);

	if (!rc)
		rc = oti_rnic_conn_create(r, attr, &c);
	if (rc)
		return rc;
	c->connecting = true;
	c->local = to->local;
	c->peer = to->remote;
	fill_attr(&conn, attr, FLUE_CONN_DEFER);
	conn.remote = (const struct sockaddr *)&to->remote.sa;
	conn.remote_len = oti_rnic_addr_len(&to->remote.sa);
	if (to->local.len) {
		conn.local = (const struct sockaddr *)&to->local.sa;
		conn.local_len = oti_rnic_addr_len(&to->local.sa);
	}
	*out = &c->base;
	if (!c->qp->ops->connect(c->qp, &conn)) {
		rc = -errno;
		*out = NULL;
		oti_rnic_release(&c->base);
	}
	return rc;
}

/* ---- being asked ---- */

static void count(struct oti_rnic_listener *l, int open, int busy)
{
	pthread_mutex_lock(&l->r->lock);
	l->n_open += (unsigned)open;
	l->n_busy += (unsigned)busy;
	pthread_mutex_unlock(&l->r->lock);
}

static void use_up(struct oti_rnic_request *req)
{
	count(req->l, 0, -1);
	free(req);
}

static int oti_rnic_reject(struct oti_request *base, uint32_t code, const void *data, size_t len)
{
	struct oti_rnic_request *req = (struct oti_rnic_request *)base;
	uint8_t all[PRIVATE_MAX];
	bool fits = len <= sizeof(all) - CODE_LEN;
	int rc = fits ? 0 : -EINVAL;

	count(req->l, -1, 1);
	put_be32(all, code);
	if (fits && len)
		memcpy(all + CODE_LEN, data, len);
	if (!req->req->ops->reject(req->req, all, CODE_LEN + (fits ? len : 0)) && !rc)
		rc = -errno;
	use_up(req);
	return rc;
}

static int oti_rnic_accept(struct oti_request *base, const struct oti_conn_attr *attr,
			   struct oti_conn **out)
{
	struct oti_rnic_request *req = (struct oti_rnic_request *)base;
	struct flue_conn_attr conn;
	struct oti_rnic_conn *c;
	int rc = check_attr(req->r, attr);

	count(req->l, -1, 1);
	if (!rc)
		rc = oti_rnic_conn_create(req->r, attr, &c);
	if (rc) {
		req->req->ops->reject(req->req, NULL, 0);
		use_up(req);
		return rc;
	}
	c->local = base->local;
	c->peer = base->peer;
	fill_attr(&conn, attr, 0);
	*out = &c->base;
	if (!req->req->ops->accept(req->req, c->qp, &conn)) {
		rc = -errno;
		*out = NULL;
		oti_rnic_release(&c->base);
	}
	use_up(req);
	return rc;
}

static void take_request(struct oti_rnic_listener *l, struct flue_listener *listener)
{
	struct flue_conn_request *got = listener->ops->get_request(listener, 0);
	struct oti_rnic_request *req;

	if (!got)
		return;
	req = calloc(1, sizeof(*req));
	if (!req) {
		got->ops->reject(got, NULL, 0);
		return;
	}
	req->base.ops = l->base.ops;
	req->base.local.sa = got->local;
	req->base.peer.sa = got->peer;
	req->base.local.len = req->base.peer.len = oti_rnic_addr_len(&got->peer);
	req->base.private_data = got->private_data;
	req->base.private_len = got->private_len;
	req->r = l->r;
	req->l = l;
	req->req = got;
	count(l, 1, 1);
	oti_rnic_conn_tell_begin();
	l->base.on_request(&l->base, &req->base, l->base.user);
	oti_rnic_conn_tell_end();
	count(l, 0, -1);
}

static void on_request(const struct flue_event *ev, void *arg)
{
	if (ev->type == FLUE_EVENT_REQUEST)
		take_request(arg, ev->u.listener);
}

static int oti_rnic_listen(struct oti *o, const struct oti_addr *local, int backlog,
			   void (*fn)(struct oti_listener *, struct oti_request *, void *),
			   void *user, struct oti_listener **out)
{
	struct oti_rnic *r = to_oti_rnic(o);
	struct flue_listen_attr attr = FLUE_ATTR(struct flue_listen_attr);
	struct oti_rnic_listener *l;
	int rc;

	if (local->sa.ss_family != AF_INET && local->sa.ss_family != AF_INET6)
		return -EINVAL;
	l = calloc(1, sizeof(*l));
	if (!l)
		return -ENOMEM;
	l->base.ops = o->ops;
	l->base.on_request = fn;
	l->base.user = user;
	l->r = r;
	attr.local = (const struct sockaddr *)&local->sa;
	attr.local_len = oti_rnic_addr_len(&local->sa);
	attr.backlog = backlog > 0 ? backlog : 0;
	if (r->direct) {
		attr.on_event = on_request;
		attr.event_arg = l;
	}
	/* A thread that polls may see a request before listen() has returned here. */
	pthread_mutex_lock(&r->lock);
	l->listener = r->adapter->ops->listen(r->adapter, &attr);
	rc = l->listener ? 0 : -errno;
	if (!rc) {
		l->listener->user = l;
		l->base.local.sa = l->listener->local;
		l->base.local.len = oti_rnic_addr_len(&l->listener->local);
		r->n_listeners++;
	}
	pthread_mutex_unlock(&r->lock);
	if (rc)
		free(l);
	else
		*out = &l->base;
	return rc;
}

/* Who tells of a request or answers one on another thread is waited for; it will not be long. */
static int oti_rnic_unlisten(struct oti_listener *base)
{
	const struct timespec pause = { .tv_nsec = 20000 };
	struct oti_rnic_listener *l = (struct oti_rnic_listener *)base;
	struct oti_rnic *r = l->r;
	bool open, busy;

	for (;;) {
		pthread_mutex_lock(&r->lock);
		open = l->n_open && !l->n_busy;
		busy = l->n_busy;
		pthread_mutex_unlock(&r->lock);
		if (open)
			return -EBUSY;
		if (!busy && l->listener->ops->destroy(l->listener))
			break;
		if (!busy && errno != EBUSY)
			return -errno;
		nanosleep(&pause, NULL);
	}
	pthread_mutex_lock(&r->lock);
	r->n_listeners--;
	pthread_mutex_unlock(&r->lock);
	free(l);
	return 0;
}

/* ---- memory ---- */

static int oti_rnic_reg(struct oti *o, void *addr, size_t len, uint32_t access,
			struct oti_mem **out)
{
	struct oti_rnic *r = to_oti_rnic(o);
	uint32_t flags = 0;
	struct oti_rnic_mem *m = calloc(1, sizeof(*m));
	int rc;

	if (!m)
		return -ENOMEM;
	if (access & (OTI_LOCAL_WRITE | OTI_REMOTE_WRITE))
		flags |= FLUE_LOCAL_WRITE;
	if (access & OTI_REMOTE_WRITE)
		flags |= FLUE_REMOTE_WRITE;
	if (access & OTI_REMOTE_READ)
		flags |= FLUE_REMOTE_READ;
	m->mr = flue_register(r->pd, addr, len, flags);
	if (!m->mr) {
		rc = -errno;
		free(m);
		return rc;
	}
	m->base.key = m->mr->rkey;
	m->base.remote_addr = m->mr->remote_start;
	m->base.addr = addr;
	m->base.len = len;
	*out = &m->base;
	return 0;
}

static void oti_rnic_unreg(struct oti *o, struct oti_mem *mem)
{
	(void)o;
	flue_deregister(((struct oti_rnic_mem *)mem)->mr);
	free(mem);
}

/* ---- completions ---- */

static void on_completion(struct flue_cq *cq, const struct flue_wc *wc, void *arg)
{
	(void)cq;
	(void)arg;
	oti_rnic_conn_completion(wc->qp->user, wc);
}

static struct oti_rnic_listener *listener_of(struct oti_rnic *r, const struct flue_event *ev)
{
	struct oti_rnic_listener *l;

	pthread_mutex_lock(&r->lock);
	l = ev->u.listener->user;
	pthread_mutex_unlock(&r->lock);
	return l;
}

static unsigned poll_events(struct oti_rnic *r, unsigned budget)
{
	struct flue_event ev;
	unsigned n = 0;

	while (n < budget && flue_get_event(r->adapter, &ev, 0)) {
		n++;
		if (ev.type == FLUE_EVENT_REQUEST)
			take_request(listener_of(r, &ev), ev.u.listener);
		else if (ev.type != FLUE_EVENT_CQ_ERROR)
			oti_rnic_conn_event(ev.u.qp->user, &ev);
	}
	return n;
}

static unsigned poll_cq(struct flue_cq *cq, unsigned budget)
{
	struct flue_wc wc[BATCH];
	uint32_t got = 0;

	if (!budget || !flue_poll(cq, wc, min_u32(budget, BATCH), &got))
		return 0;
	/* Who is released meanwhile stays among the dead until the end of the poll. */
	for (uint32_t i = 0; i < got; i++)
		oti_rnic_conn_completion(wc[i].qp->user, &wc[i]);
	return got;
}

static int oti_rnic_poll(struct oti *o, unsigned budget)
{
	struct oti_rnic *r = to_oti_rnic(o);
	unsigned n = 0, got;

	oti_rnic_conn_reap(r);
	if (r->direct)
		return 0;
	n += poll_events(r, budget);
	do {
		got = poll_cq(r->recv_cq, budget - n);
		n += got;
		got += poll_cq(r->send_cq, budget - n);
	} while (got && n < budget);
	oti_rnic_conn_reap(r);
	return (int)n;
}

static int oti_rnic_poll_conn(struct oti_conn *conn, unsigned budget)
{
	return oti_rnic_poll(conn->oti, budget);
}

static int oti_rnic_wait(struct oti *o, int timeout_ms)
{
	struct oti_rnic *r = to_oti_rnic(o);
	struct flue_cq *cqs[2] = { r->recv_cq, r->send_cq };
	struct pollfd fds[3];
	int n;

	if (r->direct)
		return -EOPNOTSUPP;
	fds[2].fd = r->adapter->ops->event_fd(r->adapter);
	fds[2].events = POLLIN;
	for (int i = 0; i < 2; i++) {
		fds[i].fd = cqs[i]->ops->fd(cqs[i]);
		fds[i].events = POLLIN;
		if (!cqs[i]->ops->notify(cqs[i], FLUE_NOTIFY_NEXT, NULL, NULL))
			return -errno;
		/* One that came before the notice was asked for. */
		if (flue_wait(cqs[i], 0))
			return 0;
	}
	if (fds[0].fd < 0 || fds[1].fd < 0 || fds[2].fd < 0)
		return -errno;
	n = poll(fds, 3, timeout_ms);
	for (int i = 0; i < 2; i++)
		cqs[i]->ops->clear_fd(cqs[i]);
	if (n < 0)
		return -errno;
	return n ? 0 : -ETIMEDOUT;
}

/* ---- opening and closing ---- */

static void dismantle(struct oti_rnic *r)
{
	if (r->send_cq)
		flue_destroy_cq(r->send_cq);
	if (r->recv_cq)
		flue_destroy_cq(r->recv_cq);
	if (r->pd)
		flue_destroy_pd(r->pd);
	if (r->adapter)
		flue_close(r->adapter);
	pthread_mutex_destroy(&r->lock);
	free(r);
}

static int oti_rnic_close(struct oti *o)
{
	struct oti_rnic *r = to_oti_rnic(o);
	bool busy;

	if (oti_rnic_conn_is_telling())
		return -EDEADLK;
	oti_rnic_conn_reap(r);
	pthread_mutex_lock(&r->lock);
	busy = r->n_conns || r->n_listeners;
	pthread_mutex_unlock(&r->lock);
	if (busy)
		return -EBUSY;
	dismantle(r);
	return 0;
}

static const struct oti_ops oti_rnic_ops = {
	.caps = oti_rnic_caps,
	.close = oti_rnic_close,
	.resolve = oti_rnic_resolve,
	.listen = oti_rnic_listen,
	.unlisten = oti_rnic_unlisten,
	.connect = oti_rnic_connect,
	.accept = oti_rnic_accept,
	.reject = oti_rnic_reject,
	.confirm = oti_rnic_confirm,
	.names = oti_rnic_names,
	.buf_get = oti_rnic_buf_get,
	.buf_put = oti_rnic_buf_put,
	.send = oti_rnic_send,
	.repost = oti_rnic_repost,
	.reg = oti_rnic_reg,
	.unreg = oti_rnic_unreg,
	.rdma_read = oti_rnic_rdma_read,
	.rdma_write = oti_rnic_rdma_write,
	.poll = oti_rnic_poll,
	.poll_conn = oti_rnic_poll_conn,
	.wait = oti_rnic_wait,
	.disconnect = oti_rnic_disconnect,
	.abort = oti_rnic_abort,
	.release = oti_rnic_release,
};

static struct flue_cq *make_cq(struct oti_rnic *r)
{
	struct flue_cq_attr attr = FLUE_ATTR(struct flue_cq_attr);

	attr.depth = FIRST_DEPTH;
	if (r->direct)
		attr.on_completion = on_completion;
	return r->adapter->ops->create_cq(r->adapter, &attr);
}

int oti_rnic_open(const struct oti_rnic_attr *attr, struct oti **out)
{
	struct flue_open_attr open_attr = FLUE_ATTR(struct flue_open_attr);
	struct oti_rnic *r = calloc(1, sizeof(*r));
	int rc;

	if (!r)
		return -ENOMEM;
	r->base.ops = &oti_rnic_ops;
	r->direct = attr && attr->direct;
	pthread_mutex_init(&r->lock, NULL);
	open_attr.provider = attr ? attr->provider : NULL;
	r->adapter = flue_open(&open_attr);
	r->pd = r->adapter ? flue_create_pd(r->adapter) : NULL;
	r->recv_cq = r->pd ? make_cq(r) : NULL;
	r->send_cq = r->recv_cq ? make_cq(r) : NULL;
	if (!r->send_cq) {
		rc = -errno;
		dismantle(r);
		return rc;
	}
	*out = &r->base;
	return 0;
}
