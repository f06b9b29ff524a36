/* SPDX-License-Identifier: MIT */
/* The local transport: opening, closing, its table. See oti_local_priv.h for how it works. */
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>

#include "sockets/ot/oti_local_priv.h"

static void local_caps(const struct oti *o, struct oti_caps *caps)
{
	const struct oti_local_geometry *g = &to_local(o)->geo;

	*caps = (struct oti_caps) {
		.name = "local",
		.flags = OTI_POLLED | OTI_SHARED,
		.max_private = LOCAL_PRIVATE_MAX,
		.max_message = g->buf_size,
		.max_bufs = g->bufs,
	};
}

static int local_resolve(struct oti *o, const struct oti_addr *remote, struct oti_endpoint *to)
{
	const struct sockaddr_in *in = (const void *)&remote->sa;
	bool v4 = remote->sa.ss_family == AF_INET, v6 = remote->sa.ss_family == AF_INET6;

	if (!v4 && !v6)
		return -EAFNOSUPPORT;
	if (remote->len < (v4 ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6)) ||
	    !in->sin_port)
		return -EINVAL;
	to->remote = *remote;
	/* The port has no owner but the consumer of the other side, who is told. */
	to->local = *remote;
	local_setup_port(to_local(o), &to->local);
	return 0;
}

static void local_names(const struct oti_conn *conn, struct oti_addr *local, struct oti_addr *peer)
{
	*local = to_conn(conn)->local;
	*peer = to_conn(conn)->remote;
}

static struct oti_buf *local_buf_get(struct oti_conn *conn)
{
	struct local_conn *c = to_conn(conn);
	struct oti_buf *buf = NULL;

	lock_take(&c->lock);
	if (local_is_open(c))
		buf = local_buf_take(c);
	lock_give(&c->lock);
	return buf;
}

static void local_buf_put(struct oti_conn *conn, struct oti_buf *buf)
{
	struct local_conn *c = to_conn(conn);

	lock_take(&c->lock);
	local_buf_give(c, buf);
	if (c->starved)
		local_note(to_local(conn->oti), c->slot);
	lock_give(&c->lock);
}

static int local_send(struct oti_conn *conn, struct oti_buf *buf, const struct iovec *iov, int n,
		      uint32_t flags)
{
	struct local_conn *c = to_conn(conn);
	int rc = -ENOTCONN;

	(void)flags;
	lock_take(&c->lock);
	if (local_is_open(c))
		rc = local_buf_send(c, buf, iov, n);
	else
		local_buf_give(c, buf);
	if (c->starved)
		local_note(to_local(conn->oti), c->slot);
	lock_give(&c->lock);
	return rc;
}

static void local_repost(struct oti_conn *conn, struct oti_rx *rx)
{
	struct local_conn *c = to_conn(conn);

	lock_take(&c->lock);
	local_buf_repost(c, rx);
	lock_give(&c->lock);
}

static int local_close(struct oti *o)
{
	struct local *l = to_local(o);
	bool busy;

	lock_take(&l->lock);
	busy = l->listeners;
	for (uint32_t i = 0; i < l->geo.slots; i++)
		busy |= l->conns[i].state != CONN_FREE;
	lock_give(&l->lock);
	if (busy)
		return -EBUSY;
	trunk_close(l->trunk);
	free(l->conns);
	free(l);
	return 0;
}

static const struct oti_ops local_ops = {
	.caps = local_caps,
	.close = local_close,
	.resolve = local_resolve,
	.listen = local_listen,
	.unlisten = local_unlisten,
	.connect = local_connect,
	.accept = local_accept,
	.reject = local_reject,
	.confirm = local_confirm,
	.names = local_names,
	.buf_get = local_buf_get,
	.buf_put = local_buf_put,
	.send = local_send,
	.repost = local_repost,
	.poll = local_poll,
	.poll_conn = local_poll_conn,
	.wait = local_wait,
	.disconnect = local_disconnect,
	.abort = local_abort,
	.release = local_release,
};

/* ---- memory ---- */

static bool is_sound(const struct oti_local_geometry *g)
{
	return g->slots >= 2 && g->slots <= OTI_LOCAL_SLOTS_MAX && g->slots % 2 == 0 &&
	       g->bufs >= 1 && g->bufs <= OTI_LOCAL_BUFS_MAX && g->buf_size >= 64 &&
	       g->buf_size <= OTI_LOCAL_BUF_SIZE_MAX && g->buf_size % 64 == 0;
}

/* Each connection has all its blocks for itself, so none ever waits for another. */
int oti_local_region(const struct oti_local_geometry *g)
{
	struct trunk_shape shape = { .blocks = 2, .circuits = g->slots };

	if (!is_sound(g))
		return -EINVAL;
	shape.guarantee = g->bufs + LOCAL_SETUP_BLOCKS;
	/* A greeting is one block. */
	shape.block_size = g->buf_size < sizeof(struct local_greeting)
				   ? (uint32_t)sizeof(struct local_greeting)
				   : g->buf_size;
	while (shape.blocks < shape.circuits * shape.guarantee)
		shape.blocks *= 2;
	return trunk_memory(&shape);
}

static bool take_geometry(struct local *l)
{
	struct trunk_shape shape;

	trunk_shape(l->trunk, &shape);
	l->geo.slots = shape.circuits;
	l->geo.bufs = shape.guarantee - LOCAL_SETUP_BLOCKS;
	l->geo.buf_size = shape.block_size;
	return shape.guarantee > LOCAL_SETUP_BLOCKS &&
	       shape.block_size >= sizeof(struct local_greeting) && is_sound(&l->geo);
}

int oti_local_open(int fd, unsigned side, struct oti **out)
{
	struct local *l;
	int rc;

	l = calloc(1, sizeof(*l));
	if (!l)
		return -ENOMEM;
	l->base.ops = &local_ops;
	rc = trunk_attach(fd, side, -1, 0, &l->trunk);
	if (rc)
		goto free_l;
	rc = take_geometry(l) ? 0 : -EINVAL;
	if (rc)
		goto close_trunk;
	rc = -ENOMEM;
	l->conns = calloc(l->geo.slots, sizeof(*l->conns));
	if (!l->conns)
		goto close_trunk;
	for (uint32_t slot = 0; slot < l->geo.slots; slot++) {
		struct local_conn *c = &l->conns[slot];

		c->base.ops = &local_ops;
		c->base.oti = &l->base;
		c->slot = slot;
		c->circuit = LOCAL_NOWHERE;
	}
	*out = &l->base;
	return 0;
close_trunk:
	trunk_close(l->trunk);
free_l:
	free(l);
	return rc;
}

void oti_local_peer_died(struct oti *o)
{
	struct local *l = to_local(o);

	for (uint32_t slot = 0; slot < l->geo.slots; slot++) {
		struct local_conn *c = &l->conns[slot];

		lock_take(&c->lock);
		c->broken |= c->state != CONN_FREE;
		lock_give(&c->lock);
		local_note(l, slot);
	}
}
