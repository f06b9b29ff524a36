/* SPDX-License-Identifier: MIT */
/*
 * Messages of the local transport. Whatever is read from the peer's half is loaded once into a
 * local variable and checked against what this side knows by itself. A peer that says something
 * impossible has broken the connection; nothing else follows from it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "sockets/ot/oti_local_priv.h"

enum { WITH_US = 0, WITH_CONSUMER = 1, WITH_PEER = 2 };

static struct local *local_of(const struct local_conn *c)
{
	return to_local(c->base.oti);
}

int local_ring_alloc(struct local_conn *c, uint32_t bufs, uint32_t size)
{
	uint32_t most = local_of(c)->geo.bufs;

	/* How many the peer has is not known yet; for sending there may be as many as fit. */
	c->bufs = calloc(most, sizeof(*c->bufs));
	c->free = calloc(most, sizeof(*c->free));
	c->is_out = calloc(most, 1);
	c->rx = calloc(bufs, sizeof(*c->rx));
	c->is_held = calloc(bufs, 1);
	if (!c->bufs || !c->free || !c->is_out || !c->rx || !c->is_held) {
		local_ring_fini(c);
		return -ENOMEM;
	}
	c->n_rx = bufs;
	c->rx_size = size;
	c->n_bufs = c->n_free = c->n_sent = c->n_back = c->n_got = c->n_given = 0;
	c->starved = false;
	return 0;
}

void local_ring_fini(struct local_conn *c)
{
	free(c->bufs);
	free(c->free);
	free(c->is_out);
	free(c->rx);
	free(c->is_held);
	c->bufs = NULL;
	c->free = NULL;
	c->is_out = NULL;
	c->rx = NULL;
	c->is_held = NULL;
	c->n_rx = c->n_bufs = c->n_free = 0;
}

/* The peer says how it receives; more than the region has room for is not believed. */
int local_ring_init(struct local_conn *c, uint32_t peer_bufs, uint32_t peer_size)
{
	struct local *l = local_of(c);

	if (peer_bufs == 0 || peer_bufs > l->geo.bufs || peer_size > l->geo.buf_size)
		return -EPROTO;
	c->out_base = local_region_buffers(l, c->slot, l->side);
	c->in_base = local_region_buffers(l, c->slot, !l->side);
	c->n_bufs = c->n_free = peer_bufs;
	for (uint32_t i = 0; i < peer_bufs; i++) {
		c->bufs[i].data = c->out_base + (size_t)i * l->geo.buf_size;
		c->bufs[i].cap = peer_size;
		c->bufs[i].index = i;
		c->free[i] = peer_bufs - 1 - i;
		c->is_out[i] = WITH_US;
	}
	for (uint32_t i = 0; i < c->n_rx; i++) {
		c->rx[i].conn = &c->base;
		c->rx[i].data = c->in_base + (size_t)i * l->geo.buf_size;
		c->rx[i].cap = c->rx_size;
		c->rx[i].index = i;
		c->is_held[i] = false;
	}
	return 0;
}

void local_ring_reclaim(struct local_conn *c)
{
	struct local *l = local_of(c);
	uint32_t given = atomic_load_explicit(&c->peer->given, memory_order_acquire);
	uint32_t n = given - c->n_back;

	if (n > c->n_bufs)
		c->broken = true;
	for (; n && !c->broken; n--) {
		uint32_t index = atomic_load_explicit(local_region_back(l, c->peer, c->n_back),
						      memory_order_relaxed);

		if (index >= c->n_bufs || c->is_out[index] != WITH_PEER) {
			c->broken = true;
		} else {
			c->is_out[index] = WITH_US;
			c->free[c->n_free++] = index;
			c->n_back++;
		}
	}
}

struct oti_buf *local_ring_get(struct local_conn *c)
{
	bool was_whole = !c->broken;
	uint32_t index;

	if (c->n_free == 0)
		local_ring_reclaim(c);
	if (c->broken && was_whole)
		local_region_note(local_of(c), c->slot);
	if (c->n_free == 0 || c->broken) {
		c->starved = true;
		return NULL;
	}
	index = c->free[--c->n_free];
	c->is_out[index] = WITH_CONSUMER;
	return &c->bufs[index];
}

void local_ring_put(struct local_conn *c, struct oti_buf *buf)
{
	c->is_out[buf->index] = WITH_US;
	c->free[c->n_free++] = buf->index;
}

static size_t gather(uint8_t *to, const struct iovec *iov, int n)
{
	size_t len = 0;

	for (int i = 0; i < n; i++) {
		if (iov[i].iov_len)
			memcpy(to + len, iov[i].iov_base, iov[i].iov_len);
		len += iov[i].iov_len;
	}
	return len;
}

static bool fits(const struct iovec *iov, int n, size_t cap)
{
	for (int i = 0; i < n; i++) {
		if (iov[i].iov_len > cap)
			return false;
		cap -= iov[i].iov_len;
	}
	return true;
}

int local_ring_send(struct local_conn *c, struct oti_buf *buf, const struct iovec *iov, int n)
{
	struct local *l = local_of(c);
	struct local_entry *e;
	size_t len;

	if (!fits(iov, n, buf->cap)) {
		local_ring_put(c, buf);
		return -EMSGSIZE;
	}
	len = gather(buf->data, iov, n);
	e = local_region_ring(l, c->own, c->n_sent);
	atomic_store_explicit(&e->index, buf->index, memory_order_relaxed);
	atomic_store_explicit(&e->len, (uint32_t)len, memory_order_relaxed);
	c->is_out[buf->index] = WITH_PEER;
	c->n_sent++;
	atomic_store_explicit(&c->own->sent, c->n_sent, memory_order_release);
	local_region_ring_bell(l, c->slot);
	return 0;
}

struct oti_rx *local_ring_next(struct local_conn *c)
{
	struct local *l = local_of(c);
	uint32_t n = atomic_load_explicit(&c->peer->sent, memory_order_acquire) - c->n_got;
	struct local_entry *e;
	struct oti_rx *rx;
	uint32_t index, len;

	if (n == 0 || c->broken)
		return NULL;
	e = local_region_ring(l, c->peer, c->n_got);
	index = atomic_load_explicit(&e->index, memory_order_relaxed);
	len = atomic_load_explicit(&e->len, memory_order_relaxed);
	if (n > c->n_rx || index >= c->n_rx || len > c->rx_size || c->is_held[index]) {
		c->broken = true;
		return NULL;
	}
	c->n_got++;
	c->is_held[index] = true;
	rx = &c->rx[index];
	rx->len = len;
	memcpy(rx->head, rx->data, min_u32(len, OTI_HEAD_LEN));
	return rx;
}

void local_ring_give(struct local_conn *c, struct oti_rx *rx)
{
	struct local *l = local_of(c);

	if (!c->is_held[rx->index])
		return;
	c->is_held[rx->index] = false;
	atomic_store_explicit(local_region_back(l, c->own, c->n_given), rx->index,
			      memory_order_relaxed);
	c->n_given++;
	atomic_store_explicit(&c->own->given, c->n_given, memory_order_release);
	local_region_ring_bell(l, c->slot);
}
