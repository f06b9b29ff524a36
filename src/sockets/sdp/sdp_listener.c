/* SPDX-License-Identifier: MIT */
/*
 * Listeners. A Hello makes a child at once, and HelloAck goes out before the program accepts; the
 * child waits in the list until then, first in, first out. The list is guarded by the listener's
 * lock; who takes a child out of it owns the child.
 */
#include <errno.h>
#include <string.h>

#include "sockets/sdp/sdp_priv.h"

#define DEFAULT_BACKLOG 128

static void refuse(struct oti_request *req, uint32_t code)
{
	req->ops->reject(req, code, NULL, 0);
}

static void add(struct sdp_listener *l, struct sdp_conn *c)
{
	struct sdp_conn **end = &l->children;

	while (*end)
		end = &(*end)->sibling;
	c->sibling = NULL;
	*end = c;
	l->n_children++;
}

bool sdp_listener_remove(struct sdp_listener *l, struct sdp_conn *c)
{
	bool found = false;

	lock_take(&l->lock);
	for (struct sdp_conn **at = &l->children; *at && !found; at = &(*at)->sibling) {
		if (*at == c) {
			*at = c->sibling;
			l->n_children--;
			found = true;
			break;
		}
	}
	lock_give(&l->lock);
	return found;
}

void sdp_listener_queue(struct sdp_conn *c)
{
	lock_take(&c->listener->lock);
	c->queued = true;
	lock_give(&c->listener->lock);
}

/* Room for one more? The place is taken at once. */
static struct sdp_conn *make_child(struct sdp_listener *l)
{
	struct sdp_conn *c = NULL;
	bool full;

	lock_take(&l->lock);
	full = l->n_children >= l->backlog;
	lock_give(&l->lock);
	if (!full)
		c = l->spawn(l);
	if (!c)
		return NULL;
	if (sdp_conn_init(c, &l->attr)) {
		l->drop(l, c);
		return NULL;
	}
	c->listener = l;
	lock_take(&l->lock);
	add(l, c);
	lock_give(&l->lock);
	return c;
}

static void on_request(struct oti_listener *llp, struct oti_request *req, void *user)
{
	struct sdp_listener *l = user;
	struct sdp_hello hello;
	struct sdp_conn *c;

	(void)llp;
	if (sdp_hello_decode(&hello, req->private_data, req->private_len, l->attr.layout, false)) {
		/* LISTEN, RX_BAD: REFUSE */
		refuse(req, SDP_REJECT_HELLO);
		return;
	}
	/* LISTEN, RX_HELLO: SPAWN */
	c = make_child(l);
	if (!c) {
		refuse(req, SDP_REJECT_BUSY);
		return;
	}
	sdp_conn_enter(c);
	c->hello = hello;
	c->request = req;
	sdp_conn_step(c, SDPE_RX_HELLO);
	sdp_conn_leave(c);
}

int sdp_listener_open(struct sdp_listener *l, const struct oti_addr *local, unsigned backlog)
{
	struct sdp_conn probe;
	int rc = sdp_conn_init(&probe, &l->attr);

	if (rc)
		return rc;
	lock_init(&l->lock);
	l->children = NULL;
	l->n_children = 0;
	l->backlog = backlog ? backlog : DEFAULT_BACKLOG;
	l->state = sdp_fsm_step(SDPS_CLOSED, SDPE_LISTEN).next;
	rc = l->attr.oti->ops->listen(l->attr.oti, local, (int)l->backlog, on_request, l, &l->llp);
	if (rc)
		l->state = SDPS_CLOSED;
	return rc;
}

struct sdp_conn *sdp_listener_accept(struct sdp_listener *l)
{
	struct sdp_conn *c;

	lock_take(&l->lock);
	for (c = l->children; c && !c->queued; c = c->sibling)
		;
	lock_give(&l->lock);
	if (!c || !sdp_listener_remove(l, c))
		return NULL;
	lock_take(&c->lock);
	c->listener = NULL;
	c->queued = false;
	lock_give(&c->lock);
	return c;
}

void sdp_listener_close(struct sdp_listener *l)
{
	struct fsm_edge edge = sdp_fsm_step(l->state, SDPE_CLOSE);

	if (l->state != SDPS_LISTEN)
		return;
	l->state = edge.next;
	l->llp->ops->unlisten(l->llp);
	l->llp = NULL;
	while (edge.actions & SDPA_DROP_CHILDREN) {
		struct sdp_conn *c;

		lock_take(&l->lock);
		c = l->children;
		lock_give(&l->lock);
		if (!c)
			return;
		if (!sdp_listener_remove(l, c))
			continue;
		sdp_conn_fini(c);
		l->drop(l, c);
	}
}
