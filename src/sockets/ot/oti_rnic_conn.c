/* SPDX-License-Identifier: MIT */
/*
 * Connections over queue pairs: buffers, messages, RDMA and the end.
 *
 * The end. A queue pair that is closed with work outstanding resets (docs/design/closing.md), so
 * disconnect() waits until all sends are complete, and no receive is posted afterwards. `down` is
 * told when the event has come and every request is back, in whatever order that happens.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/bytes.h"
#include "base/util.h"
#include "sockets/ot/oti_rnic_priv.h"

/* What a completion is about: kind and number. */
#define ID_RX         (1ull << 32)
#define ID_TX         (2ull << 32)
#define ID_RDMA       (3ull << 32)
#define ID_KIND(id)   ((id) & ~0xffffffffull)
#define ID_NUMBER(id) ((uint32_t)(id))

#define CODE_LEN 4 /* of a rejection, before its private data */

/* ---- up-calls ---- */

static __thread unsigned telling THREAD_LOCAL_FAST;

bool oti_rnic_conn_is_telling(void)
{
	return telling;
}

void oti_rnic_conn_tell_begin(void)
{
	telling++;
}

void oti_rnic_conn_tell_end(void)
{
	telling--;
}

static bool is_mute(const struct oti_rnic_conn *c)
{
	return __atomic_load_n(&c->mute, __ATOMIC_ACQUIRE);
}

static void tell_begin(struct oti_rnic_conn *c)
{
	pthread_mutex_lock(&c->telling);
	oti_rnic_conn_tell_begin();
}

static void tell_end(struct oti_rnic_conn *c)
{
	oti_rnic_conn_tell_end();
	pthread_mutex_unlock(&c->telling);
}

/* ---- making ---- */

static int post_recv(struct oti_rnic_conn *c, uint32_t i)
{
	struct flue_sge sge = flue_mr_sge(c->mr, (size_t)i * c->buf_size, c->buf_size);
	struct flue_recv_wr wr = { .id = ID_RX | i, .sg = &sge, .n_sg = 1 };

	if (!flue_post_recv(c->qp, &wr))
		return -errno;
	c->rx_counted[i] = true;
	c->rx_out++;
	return 0;
}

static int make_memory(struct oti_rnic_conn *c)
{
	c->mem_len = (size_t)(c->n_rx + c->n_bufs) * c->buf_size;
	c->mem = mmap(NULL, c->mem_len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (c->mem == MAP_FAILED) {
		c->mem = NULL;
		return -ENOMEM;
	}
	c->rx = calloc(c->n_rx, sizeof(*c->rx));
	c->rx_counted = calloc(c->n_rx, sizeof(*c->rx_counted));
	c->bufs = calloc(c->n_bufs, sizeof(*c->bufs));
	c->free = calloc(c->n_bufs, sizeof(*c->free));
	if (!c->rx || !c->rx_counted || !c->bufs || !c->free)
		return -ENOMEM;
	for (uint32_t i = 0; i < c->n_rx; i++) {
		c->rx[i].conn = &c->base;
		c->rx[i].data = c->mem + (size_t)i * c->buf_size;
		c->rx[i].cap = c->buf_size;
		c->rx[i].index = i;
	}
	for (uint32_t i = 0; i < c->n_bufs; i++) {
		c->bufs[i].data = c->mem + (size_t)(c->n_rx + i) * c->buf_size;
		c->bufs[i].cap = c->buf_size;
		c->bufs[i].index = i;
		c->free[c->n_free++] = i;
	}
	return 0;
}

/* All completions that can be outstanding must fit the CQs. */
static int need(struct flue_cq *cq, uint32_t *sum, uint32_t more)
{
	uint32_t depth = cq->depth;

	while (depth < *sum + more)
		depth *= 2;
	if (depth != cq->depth && !cq->ops->resize(cq, depth))
		return errno == EINVAL ? -ENOSPC : -errno;
	*sum += more;
	return 0;
}

static int reserve(struct oti_rnic *r, const struct oti_rnic_conn *c)
{
	uint32_t sends = c->n_bufs + OTI_RNIC_RDMA_DEPTH;
	int rc;

	pthread_mutex_lock(&r->lock);
	rc = need(r->recv_cq, &r->recv_need, c->n_rx);
	if (!rc) {
		rc = need(r->send_cq, &r->send_need, sends);
		if (rc)
			r->recv_need -= c->n_rx;
	}
	r->n_conns += !rc;
	pthread_mutex_unlock(&r->lock);
	return rc;
}

static void unreserve(struct oti_rnic *r, const struct oti_rnic_conn *c)
{
	pthread_mutex_lock(&r->lock);
	r->recv_need -= c->n_rx;
	r->send_need -= c->n_bufs + OTI_RNIC_RDMA_DEPTH;
	r->n_conns--;
	pthread_mutex_unlock(&r->lock);
}

static void on_event(const struct flue_event *ev, void *arg)
{
	oti_rnic_conn_event(arg, ev);
}

static int make_qp(struct oti_rnic *r, struct oti_rnic_conn *c)
{
	struct flue_qp_attr attr = FLUE_ATTR(struct flue_qp_attr);

	attr.send_cq = r->send_cq;
	attr.recv_cq = r->recv_cq;
	attr.sq_depth = c->n_bufs + OTI_RNIC_RDMA_DEPTH;
	attr.rq_depth = c->n_rx;
	attr.flags = FLUE_QP_SIGNAL_ALL;
	if (r->direct) {
		attr.on_event = on_event;
		attr.event_arg = c;
	}
	c->qp = r->pd->ops->create_qp(r->pd, &attr);
	if (!c->qp)
		return -errno;
	c->qp->user = c;
	for (uint32_t i = 0; i < c->n_rx; i++) {
		int rc = post_recv(c, i);

		if (rc)
			return rc;
	}
	return 0;
}

/* What was made, in the other order. */
static void take_apart(struct oti_rnic_conn *c)
{
	if (c->qp)
		flue_destroy_qp(c->qp);
	if (c->mr)
		flue_deregister(c->mr);
	free(c->rx);
	free(c->rx_counted);
	free(c->bufs);
	free(c->free);
	if (c->mem)
		munmap(c->mem, c->mem_len);
	pthread_mutex_destroy(&c->telling);
	free(c);
}

int oti_rnic_conn_create(struct oti_rnic *r, const struct oti_conn_attr *attr,
			 struct oti_rnic_conn **out)
{
	struct oti_rnic_conn *c;
	int rc;

	if (!attr->bufs || !attr->buf_size || attr->bufs > r->adapter->caps->max_rq_depth)
		return -EINVAL;
	oti_rnic_conn_reap(r);
	c = calloc(1, sizeof(*c));
	if (!c)
		return -ENOMEM;
	c->base.ops = r->base.ops;
	c->base.oti = &r->base;
	c->base.upcalls = attr->upcalls;
	c->base.user = attr->user;
	pthread_mutex_init(&c->telling, NULL);
	c->n_rx = c->n_bufs = attr->bufs;
	c->buf_size = attr->buf_size;
	rc = make_memory(c);
	if (!rc)
		rc = reserve(r, c);
	if (rc) {
		take_apart(c);
		return rc;
	}
	c->mr = flue_register(r->pd, c->mem, c->mem_len, FLUE_LOCAL_WRITE);
	rc = c->mr ? make_qp(r, c) : -errno;
	if (rc) {
		oti_rnic_conn_destroy(c);
		return rc;
	}
	*out = c;
	return 0;
}

void oti_rnic_conn_destroy(struct oti_rnic_conn *c)
{
	unreserve(to_oti_rnic(c->base.oti), c);
	take_apart(c);
}

void oti_rnic_conn_reap(struct oti_rnic *r)
{
	struct oti_rnic_conn *c;

	while (!oti_rnic_conn_is_telling()) {
		pthread_mutex_lock(&r->lock);
		c = r->dead;
		if (c)
			r->dead = c->next_dead;
		pthread_mutex_unlock(&r->lock);
		if (!c)
			return;
		oti_rnic_conn_destroy(c);
	}
}

/* ---- messages ---- */

struct oti_buf *oti_rnic_buf_get(struct oti_conn *conn)
{
	struct oti_rnic_conn *c = to_oti_rnic_conn(conn);
	struct oti_buf *buf = NULL;

	lock_take(&c->lock);
	if (c->up && c->n_free && !c->closing)
		buf = &c->bufs[c->free[--c->n_free]];
	else
		c->starved = true;
	lock_give(&c->lock);
	return buf;
}

void oti_rnic_buf_put(struct oti_conn *conn, struct oti_buf *buf)
{
	struct oti_rnic_conn *c = to_oti_rnic_conn(conn);

	lock_take(&c->lock);
	c->free[c->n_free++] = buf->index;
	lock_give(&c->lock);
}

/* -EMSGSIZE, or the octets that are now in the buffer. */
static ssize_t gather(struct oti_buf *buf, const struct iovec *iov, int n)
{
	size_t len = 0;

	for (int i = 0; i < n; i++) {
		if (iov[i].iov_len > buf->cap - len)
			return -EMSGSIZE;
		if (iov[i].iov_len)
			memcpy(buf->data + len, iov[i].iov_base, iov[i].iov_len);
		len += iov[i].iov_len;
	}
	return (ssize_t)len;
}

static int post_send(struct oti_rnic_conn *c, const struct flue_send_wr *wr)
{
	int rc = -ENOTCONN;

	if (c->up && !c->closing)
		rc = flue_post_send(c->qp, wr) ? 0 : -errno;
	c->tx_out += !rc;
	return rc;
}

int oti_rnic_send(struct oti_conn *conn, struct oti_buf *buf, const struct iovec *iov, int n,
		  uint32_t flags)
{
	struct oti_rnic_conn *c = to_oti_rnic_conn(conn);
	struct flue_sge sge;
	struct flue_send_wr wr = { .id = ID_TX | buf->index, .op = FLUE_WR_SEND, .sg = &sge };
	ssize_t len = gather(buf, iov, n);
	int rc = (int)len;

	if (len >= 0) {
		sge = flue_mr_sge(c->mr, (size_t)(buf->data - c->mem), (uint32_t)len);
		wr.n_sg = len != 0;
		wr.flags = flags & OTI_SOLICITED ? FLUE_SOLICITED : 0;
		lock_take(&c->lock);
		rc = post_send(c, &wr);
		lock_give(&c->lock);
	}
	if (rc)
		oti_rnic_buf_put(conn, buf);
	return rc;
}

void oti_rnic_repost(struct oti_conn *conn, struct oti_rx *rx)
{
	struct oti_rnic_conn *c = to_oti_rnic_conn(conn);

	lock_take(&c->lock);
	/*
	 * In our own close it would be a fault, in the peer's it is refused. After a graceful close
	 * the queue pair is Idle and would take it, but nobody would ever complete it.
	 */
	if (!c->disconnecting && flue_qp_state(c->qp) == FLUE_QP_RTS && !post_recv(c, rx->index) &&
	    flue_qp_state(c->qp) == FLUE_QP_IDLE) {
		c->rx_counted[rx->index] = false;
		c->rx_out--;
	}
	lock_give(&c->lock);
}

/* ---- RDMA ---- */

static int post_rdma(struct oti_rnic_conn *c, struct flue_send_wr *wr, uint64_t id)
{
	int rc = -EAGAIN;

	lock_take(&c->lock);
	for (uint32_t i = 0; i < OTI_RNIC_RDMA_DEPTH; i++) {
		if (!c->rdma[i].used) {
			wr->id = ID_RDMA | i;
			rc = post_send(c, wr);
			c->rdma[i].used = !rc;
			c->rdma[i].id = id;
			break;
		}
	}
	lock_give(&c->lock);
	return rc;
}

static int rdma(struct oti_conn *conn, uint32_t op, struct oti_mem *mem, size_t offset,
		uint32_t len, uint64_t remote_addr, uint32_t key, uint64_t id)
{
	struct oti_rnic_mem *m = (struct oti_rnic_mem *)mem;
	struct flue_sge sge = flue_mr_sge(m->mr, offset, len);
	struct flue_send_wr wr = {
		.op = op, .sg = &sge, .n_sg = 1, .rkey = key, .remote_addr = remote_addr
	};

	return post_rdma(to_oti_rnic_conn(conn), &wr, id);
}

int oti_rnic_rdma_read(struct oti_conn *conn, struct oti_mem *mem, size_t offset, uint32_t len,
		       uint64_t remote_addr, uint32_t key, uint64_t id)
{
	return rdma(conn, FLUE_WR_READ, mem, offset, len, remote_addr, key, id);
}

int oti_rnic_rdma_write(struct oti_conn *conn, struct oti_mem *mem, size_t offset, uint32_t len,
			uint64_t remote_addr, uint32_t key, uint64_t id)
{
	return rdma(conn, FLUE_WR_WRITE, mem, offset, len, remote_addr, key, id);
}

/* ---- the end ---- */

/* Lock held. */
static void disconnect_if_idle(struct oti_rnic_conn *c)
{
	if (c->closing && !c->tx_out && !c->disconnecting) {
		c->disconnecting = true;
		c->qp->ops->disconnect(c->qp, -1);
	}
}

int oti_rnic_disconnect(struct oti_conn *conn)
{
	struct oti_rnic_conn *c = to_oti_rnic_conn(conn);

	lock_take(&c->lock);
	c->closing = true;
	/* Before it is up it would be a refusal; the event UP comes back to it. */
	if (c->up)
		disconnect_if_idle(c);
	lock_give(&c->lock);
	return 0;
}

void oti_rnic_abort(struct oti_conn *conn)
{
	struct oti_rnic_conn *c = to_oti_rnic_conn(conn);

	__atomic_store_n(&c->mute, true, __ATOMIC_RELEASE);
	lock_take(&c->lock);
	c->closing = c->disconnecting = true;
	lock_give(&c->lock);
	flue_abort(c->qp);
}

void oti_rnic_release(struct oti_conn *conn)
{
	struct oti_rnic_conn *c = to_oti_rnic_conn(conn);
	struct oti_rnic *r = to_oti_rnic(conn->oti);

	oti_rnic_abort(conn);
	if (!oti_rnic_conn_is_telling()) {
		oti_rnic_conn_destroy(c);
		oti_rnic_conn_reap(r);
		return;
	}
	pthread_mutex_lock(&r->lock);
	c->next_dead = r->dead;
	r->dead = c;
	pthread_mutex_unlock(&r->lock);
}

/* `telling` held. */
static void tell_down(struct oti_rnic_conn *c)
{
	bool idle;

	lock_take(&c->lock);
	idle = !c->rx_out && !c->tx_out;
	lock_give(&c->lock);
	if (!c->ended || !idle || c->told || is_mute(c))
		return;
	c->told = true;
	c->base.upcalls->down(&c->base, c->how);
}

/* ---- completions ---- */

static void on_received(struct oti_rnic_conn *c, const struct flue_wc *wc)
{
	struct oti_rx *rx = &c->rx[ID_NUMBER(wc->id)];
	bool was_counted;

	/* The up-call may post it again. */
	lock_take(&c->lock);
	was_counted = c->rx_counted[rx->index];
	c->rx_counted[rx->index] = false;
	lock_give(&c->lock);
	if (wc->status == FLUE_WC_SUCCESS && !is_mute(c)) {
		rx->len = wc->byte_len;
		memcpy(rx->head, rx->data, min_u32(rx->len, OTI_HEAD_LEN));
		c->base.upcalls->received(&c->base, rx);
	}
	/* Behind the up-call, so that the end comes behind the message. */
	lock_take(&c->lock);
	c->rx_out -= was_counted;
	lock_give(&c->lock);
}

static void on_sent(struct oti_rnic_conn *c, const struct flue_wc *wc)
{
	uint32_t number = ID_NUMBER(wc->id);
	bool room = false, is_rdma = ID_KIND(wc->id) == ID_RDMA;
	uint64_t id = 0;

	lock_take(&c->lock);
	c->tx_out--;
	if (is_rdma) {
		id = c->rdma[number].id;
		c->rdma[number].used = false;
	} else {
		c->free[c->n_free++] = number;
		room = c->starved && wc->status == FLUE_WC_SUCCESS && !c->closing;
		c->starved = c->starved && !room;
	}
	disconnect_if_idle(c);
	lock_give(&c->lock);
	if (is_mute(c))
		return;
	if (is_rdma)
		c->base.upcalls->rdma_done(&c->base, id, wc->status == FLUE_WC_SUCCESS ? 0 : -EIO);
	else if (room)
		c->base.upcalls->room(&c->base);
}

void oti_rnic_conn_completion(struct oti_rnic_conn *c, const struct flue_wc *wc)
{
	tell_begin(c);
	if (ID_KIND(wc->id) == ID_RX)
		on_received(c, wc);
	else
		on_sent(c, wc);
	tell_down(c);
	tell_end(c);
}

/* ---- events ---- */

static void keep_names(struct oti_rnic_conn *c)
{
	if (!c->qp->peer.ss_family)
		return;
	c->local.sa = c->qp->local;
	c->peer.sa = c->qp->peer;
	c->local.len = c->peer.len = oti_rnic_addr_len(&c->qp->peer);
}

static void on_failed(struct oti_rnic_conn *c, const struct flue_event *ev)
{
	const uint8_t *data = c->qp->private_data;
	size_t len = c->qp->private_len;
	uint32_t code = 0;

	c->told = true;
	if (is_mute(c))
		return;
	if (!c->connecting || c->confirmed) {
		c->base.upcalls->down(&c->base, OTI_DOWN_LOST);
		return;
	}
	if (ev->detail == ECONNREFUSED && len >= CODE_LEN) {
		code = get_be32(data);
		c->base.upcalls->failed(&c->base, ECONNREFUSED, code, data + CODE_LEN,
					len - CODE_LEN);
	} else {
		c->base.upcalls->failed(&c->base, (int)ev->detail, 0, NULL, 0);
	}
}

static void on_connected(struct oti_rnic_conn *c)
{
	bool room;

	keep_names(c);
	lock_take(&c->lock);
	c->up = true;
	room = c->starved;
	c->starved = false;
	disconnect_if_idle(c);
	lock_give(&c->lock);
	if (!is_mute(c))
		c->base.upcalls->up(&c->base);
	if (room && !is_mute(c))
		c->base.upcalls->room(&c->base);
}

static void on_disconnected(struct oti_rnic_conn *c, const struct flue_event *ev)
{
	c->ended = true;
	c->how = OTI_DOWN_LOST;
	lock_take(&c->lock);
	if (ev->reason == FLUE_CLOSE_GRACEFUL)
		c->how = c->disconnecting ? OTI_DOWN_OWN : OTI_DOWN_PEER;
	/* Nothing is posted to a queue pair that may be Idle again. */
	c->closing = c->disconnecting = true;
	lock_give(&c->lock);
}

void oti_rnic_conn_event(struct oti_rnic_conn *c, const struct flue_event *ev)
{
	tell_begin(c);
	switch (ev->type) {
	case FLUE_EVENT_ACCEPTED:
		keep_names(c);
		if (!is_mute(c))
			c->base.upcalls->accepted(&c->base, c->qp->private_data,
						  c->qp->private_len);
		break;
	case FLUE_EVENT_CONNECTED: on_connected(c); break;
	case FLUE_EVENT_CONNECT_FAILED: on_failed(c, ev); break;
	case FLUE_EVENT_DISCONNECTED: on_disconnected(c, ev); break;
	default: break;
	}
	tell_down(c);
	tell_end(c);
}

int oti_rnic_confirm(struct oti_conn *conn)
{
	struct oti_rnic_conn *c = to_oti_rnic_conn(conn);

	c->confirmed = true;
	return c->qp->ops->start(c->qp) ? 0 : -errno;
}

void oti_rnic_names(const struct oti_conn *conn, struct oti_addr *local, struct oti_addr *peer)
{
	*local = to_oti_rnic_conn(conn)->local;
	*peer = to_oti_rnic_conn(conn)->peer;
}
