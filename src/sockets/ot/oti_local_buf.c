/* SPDX-License-Identifier: MIT */
/*
 * Messages of the local transport, in blocks of the trunk: a send buffer is a claimed block, a receive buffer one that was taken.
 * Which of them is where stands in the trunk's private memory; here is what the consumer knows them by.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "sockets/ot/oti_local_priv.h"

int local_buf_alloc(struct local_conn *c, uint32_t bufs, uint32_t size)
{
	uint32_t most = to_local(c->base.oti)->geo.bufs;

	/* How many the peer has is not known yet; for sending there may be as many as fit. */
	c->bufs = calloc(most, sizeof(*c->bufs));
	c->free = calloc(most, sizeof(*c->free));
	c->block = calloc(most, sizeof(*c->block));
	c->rx = calloc(bufs, sizeof(*c->rx));
	c->rx_free = calloc(bufs, sizeof(*c->rx_free));
	c->rx_block = calloc(bufs, sizeof(*c->rx_block));
	if (!c->bufs || !c->free || !c->block || !c->rx || !c->rx_free || !c->rx_block) {
		local_buf_fini(c);
		return -ENOMEM;
	}
	c->n_rx = c->n_rx_free = bufs;
	c->rx_size = size;
	for (uint32_t i = 0; i < bufs; i++) {
		c->rx[i].conn = &c->base;
		c->rx[i].cap = size;
		c->rx[i].index = i;
		c->rx_free[i] = bufs - 1 - i;
		c->rx_block[i] = LOCAL_NOWHERE;
	}
	c->n_bufs = c->n_free = 0;
	c->n_sent = 0;
	c->starved = c->settled = false;
	return 0;
}

void local_buf_fini(struct local_conn *c)
{
	for (uint32_t i = 0; i < c->n_rx; i++)
		if (c->rx_block[i] != LOCAL_NOWHERE)
			trunk_give(trunk_of(c), c->rx_block[i]);
	for (uint32_t i = 0; i < c->n_bufs; i++)
		if (c->block[i] != LOCAL_NOWHERE)
			trunk_unclaim(trunk_of(c), c->block[i]);
	free(c->bufs);
	free(c->free);
	free(c->block);
	free(c->rx);
	free(c->rx_free);
	free(c->rx_block);
	c->bufs = NULL;
	c->free = c->block = c->rx_free = c->rx_block = NULL;
	c->rx = NULL;
	c->n_rx = c->n_rx_free = c->n_bufs = c->n_free = 0;
}

/* More than the memory has room for is not believed. */
int local_buf_terms(struct local_conn *c)
{
	const struct oti_local_geometry *geo = &to_local(c->base.oti)->geo;
	uint32_t bufs = c->greeting.bufs, size = c->greeting.buf_size;

	if (bufs == 0 || bufs > geo->bufs || size > geo->buf_size)
		return -EPROTO;
	c->n_bufs = c->n_free = bufs;
	for (uint32_t i = 0; i < bufs; i++) {
		c->bufs[i].cap = size;
		c->bufs[i].index = i;
		c->free[i] = bufs - 1 - i;
		c->block[i] = LOCAL_NOWHERE;
	}
	return 0;
}

/* ---- sending ---- */

/* As many blocks as the peer has buffers, and those of set-up that are not back yet: they come before all others. */
static void set_limit(struct local_conn *c)
{
	uint64_t ours = c->n_sent + (c->n_bufs - c->n_free);
	uint32_t out;

	if (c->settled)
		return;
	out = trunk_out(trunk_of(c), c->circuit);
	c->settled = out <= ours;
	trunk_set_limit(trunk_of(c), c->circuit,
			c->n_bufs + (out > ours ? out - (uint32_t)ours : 0));
}

struct oti_buf *local_buf_take(struct local_conn *c)
{
	struct trunk_block b;
	struct oti_buf *buf;

	set_limit(c);
	/* Nothing overtakes what is owed. */
	if (c->owes || c->n_free == 0 || trunk_claim(trunk_of(c), c->circuit, &b) != 1) {
		c->starved = true;
		return NULL;
	}
	buf = &c->bufs[c->free[--c->n_free]];
	buf->data = b.data;
	c->block[buf->index] = b.index;
	return buf;
}

bool local_buf_room(struct local_conn *c)
{
	set_limit(c);
	return c->n_free > 0 && trunk_room(trunk_of(c), c->circuit) > 0;
}

static void forget(struct local_conn *c, struct oti_buf *buf)
{
	c->block[buf->index] = LOCAL_NOWHERE;
	c->free[c->n_free++] = buf->index;
}

void local_buf_give(struct local_conn *c, struct oti_buf *buf)
{
	trunk_unclaim(trunk_of(c), c->block[buf->index]);
	forget(c, buf);
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

int local_buf_send(struct local_conn *c, struct oti_buf *buf, const struct iovec *iov, int n)
{
	uint32_t block = c->block[buf->index];

	if (!fits(iov, n, buf->cap)) {
		local_buf_give(c, buf);
		return -EMSGSIZE;
	}
	/* If the peer has left meanwhile the message is lost, and `down` tells of it. */
	(void)trunk_post(trunk_of(c), c->circuit, block, (uint32_t)gather(buf->data, iov, n),
			 KIND_MESSAGE);
	c->n_sent++;
	forget(c, buf);
	return 0;
}

/* ---- receiving ---- */

struct oti_rx *local_buf_received(struct local_conn *c, const struct trunk_block *b)
{
	struct oti_rx *rx;

	if (c->n_rx_free == 0 || b->size > c->rx_size || !b->end || b->kind != KIND_MESSAGE)
		return NULL;
	rx = &c->rx[c->rx_free[--c->n_rx_free]];
	c->rx_block[rx->index] = b->index;
	rx->data = b->data;
	rx->len = b->size;
	memcpy(rx->head, rx->data, min_u32(rx->len, OTI_HEAD_LEN));
	return rx;
}

void local_buf_repost(struct local_conn *c, struct oti_rx *rx)
{
	uint32_t index = rx->index;

	if (!c->rx || c->rx_block[index] == LOCAL_NOWHERE)
		return;
	trunk_give(trunk_of(c), c->rx_block[index]);
	c->rx_block[index] = LOCAL_NOWHERE;
	c->rx_free[c->n_rx_free++] = index;
}
