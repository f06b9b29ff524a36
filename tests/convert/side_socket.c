/* SPDX-License-Identifier: MIT */
/* A side that is a flue_socket, simple or control client (CH-27). */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "conf/pair.h"
#include "side.h"

enum { STREAM_ID = 1, SWITCH_ID = 50, SEND_ID = 100, RECV_ID = 200, REACH_ID = 300 };

/* ---- events ---- */

static void on_event(const struct flue_socket_event *ev, void *arg)
{
	struct heard *h = arg;

	pthread_mutex_lock(&h->lock);
	h->queue[h->n++ % EVENTS] = *ev;
	pthread_cond_broadcast(&h->changed);
	pthread_mutex_unlock(&h->lock);
}

static bool next_told(struct heard *h, struct flue_socket_event *ev)
{
	struct timespec until;
	bool good;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += WAIT_MS / 1000;
	pthread_mutex_lock(&h->lock);
	while (h->n == h->taken && pthread_cond_timedwait(&h->changed, &h->lock, &until) == 0)
		;
	good = h->n != h->taken && h->n - h->taken <= EVENTS;
	if (good)
		*ev = h->queue[h->taken++ % EVENTS];
	pthread_mutex_unlock(&h->lock);
	errno = ETIMEDOUT;
	return good;
}

static bool count(struct side *s, const struct flue_socket_event *ev)
{
	switch (ev->type) {
	case FLUE_SOCKET_SENT: s->stream_sent++; return ev->id == STREAM_ID;
	case FLUE_SOCKET_SWITCHED: s->switched = true; return ev->id == SWITCH_ID;
	case FLUE_SOCKET_RDMA_SENT: return ev->id == SEND_ID + s->sent++;
	case FLUE_SOCKET_RDMA_RECEIVED:
		/* Nothing of RDMA mode is told before the switch is (CH-13). */
		return s->switched && ev->id == RECV_ID + s->received &&
		       ev->length == plan_length(s->plan, !s->which, s->received++);
	case FLUE_SOCKET_PUT:
	case FLUE_SOCKET_GOT: return ev->id == REACH_ID + s->done++;
	case FLUE_SOCKET_ENDED: s->heard.ended++; return ev->reason == FLUE_CLOSE_GRACEFUL;
	default: return false;
	}
}

/* Takes one event; those of streaming receives are given to the caller only. */
static bool pump(struct side *s, struct flue_socket_event *ev)
{
	if (s->me->callback ? !next_told(&s->heard, ev)
			    : !flue_socket_get_event(s->socket, ev, WAIT_MS))
		return side_fail(s, "no event");
	if (ev->error || s->heard.ended) {
		errno = ev->error;
		return side_fail(s, "event with an error, or after the end");
	}
	if (ev->type == FLUE_SOCKET_RECEIVED || count(s, ev))
		return true;
	errno = (int)(ev->type * 1000 + ev->id);
	return side_fail(s, "wrong event (1000 * type + id)");
}

/* ---- streaming mode ---- */

static bool open_socket(struct side *s)
{
	struct flue_socket_attr attr = FLUE_ATTR(struct flue_socket_attr);

	if (s->me->control && !qp_make(s))
		return false;
	attr.on_event = s->me->callback ? on_event : NULL;
	attr.event_arg = &s->heard;
	s->socket = flue_socket_open(s->adapter, s->fd, &attr);
	return s->socket || side_fail(s, "flue_socket_open");
}

static bool stream_send(struct side *s, const uint8_t *data, size_t length)
{
	uint32_t before = s->stream_sent;
	struct flue_socket_event ev;

	if (s->me->plain && !s->socket->state)
		return plain_send(s, data, length);
	if (!s->socket->ops->send(s->socket, data, length, STREAM_ID))
		return side_fail(s, "send");
	while (s->stream_sent == before)
		if (!pump(s, &ev))
			return false;
	return true;
}

static ssize_t stream_recv(struct side *s, uint8_t *data, size_t room)
{
	struct flue_socket_event ev = { 0 };

	if (s->me->plain)
		return plain_recv(s, data, room);
	if (!s->socket->ops->recv(s->socket, data, room, STREAM_ID)) {
		side_fail(s, "recv");
		return -1;
	}
	while (ev.type != FLUE_SOCKET_RECEIVED)
		if (!pump(s, &ev))
			return -1;
	if (!ev.length)
		side_fail(s, "the stream has ended");
	return ev.length ? (ssize_t)ev.length : -1;
}

/* ---- the switch ---- */

static bool reserve(struct side *s)
{
	struct flue_reserve_attr attr = FLUE_ATTR(struct flue_reserve_attr);

	attr.sq_depth = attr.rq_depth = s->me->control ? 0 : MESSAGES + 3;
	attr.qp = s->me->control ? s->qp : NULL;
	return s->socket->ops->reserve(s->socket, &attr) || side_fail(s, "reserve");
}

static bool map_window(struct side *s)
{
	uint32_t access = FLUE_LOCAL_WRITE | FLUE_REMOTE_WRITE | FLUE_REMOTE_READ;

	if (s->me->control)
		return true;
	s->stag = s->socket->ops->alloc_stag(s->socket);
	if (!s->stag)
		return side_fail(s, "alloc_stag");
	return s->socket->ops->map(s->socket, s->stag, s->box->window, WINDOW, access) ||
	       side_fail(s, "map");
}

/* A receive that waits is answered with no octets at the switch. */
static bool await_flushed(struct side *s)
{
	struct flue_socket_event ev = { 0 };

	while (ev.type != FLUE_SOCKET_RECEIVED)
		if (!pump(s, &ev))
			return false;
	return ev.length == 0 || side_fail(s, "octets after the end of the stream");
}

static bool begin_switch(struct side *s)
{
	struct flue_switch_attr attr = side_switch_attr(s);
	const struct flue_socket_ops *ops = s->socket->ops;
	uint8_t none;

	if (s->me->waiting_recv && !ops->recv(s->socket, &none, 1, STREAM_ID))
		return side_fail(s, "recv before the switch");
	if (!ops->switch_mode(s->socket, &attr, SWITCH_ID))
		return side_fail(s, "switch_mode");
	s->fd = -1;
	/* CH-10: no receives any more, nor anything of RDMA mode but receives. */
	if (ops->recv(s->socket, &none, 1, STREAM_ID) || errno != EBADFD ||
	    ops->rdma_send(s->socket, &none, 1, 0, 0, SEND_ID) || errno != EBADFD)
		return side_fail(s, "a call that is not allowed");
	return !s->me->waiting_recv || await_flushed(s);
}

static bool post_recvs(struct side *s)
{
	const struct flue_socket_ops *ops = s->socket->ops;

	if (s->me->control)
		return ops->rdma_recv(s->socket, NULL, 0, RECV_ID) ||
		       side_fail(s, "rdma_recv of a control client");
	for (uint32_t i = 0; i <= s->peer->messages; i++)
		if (!ops->rdma_recv(s->socket, s->box->in[i], MESSAGE_MAX, RECV_ID + i))
			return side_fail(s, "rdma_recv");
	return true;
}

static bool convert(struct side *s)
{
	struct flue_socket_event ev;
	size_t late = s->me->late_send ? 1 + s->me->stream / 7 : 0;

	if (!reserve(s) || !map_window(s) || (s->me->control && !qp_post_recvs(s)))
		return false;
	side_pause(s);
	if (!begin_switch(s))
		return false;
	side_pause(s);
	if (late && !stream_send(s, s->box->stream + s->me->stream - late, late))
		return false;
	side_pause(s);
	if (!post_recvs(s))
		return false;
	while (!s->switched)
		if (!pump(s, &ev))
			return false;
	return true;
}

/* ---- RDMA mode ---- */

static bool send_message(struct side *s, uint32_t message, uint32_t length)
{
	if (s->me->control)
		return qp_send(s, message, length);
	return s->socket->ops->rdma_send(s->socket, s->box->out[message], length, 0, 0,
					 SEND_ID + message) ||
	       side_fail(s, "rdma_send");
}

static bool await(struct side *s, uint32_t sent, uint32_t received, uint32_t done)
{
	struct flue_socket_event ev;

	if (s->me->control)
		return qp_await(s, sent, received, done);
	while (s->sent < sent || s->received < received || s->done < done)
		if (!pump(s, &ev))
			return false;
	return true;
}

static bool reach(struct side *s, const struct hello *there)
{
	const struct flue_socket_ops *ops = s->socket->ops;

	if (s->me->control)
		return qp_reach(s, there);
	if (!ops->put(s->socket, s->box->scratch[0], there->length, there->addr, there->rkey, 0,
		      REACH_ID))
		return side_fail(s, "put");
	if (!ops->get(s->socket, s->box->scratch[1], there->length, there->addr, there->rkey, 0,
		      REACH_ID + 1))
		return side_fail(s, "get");
	return await(s, 0, 0, 2);
}

static struct hello window(struct side *s)
{
	if (s->me->control)
		return qp_window(s);
	return (struct hello) { .addr = s->stag->remote_start,
				.rkey = s->stag->rkey,
				.length = WINDOW };
}

static bool disconnect(struct side *s)
{
	/* The peer may have been faster. */
	return s->socket->ops->disconnect(s->socket, 0) || errno == ENOTCONN ||
	       side_fail(s, "disconnect");
}

static bool await_end(struct side *s)
{
	struct flue_socket_event ev;

	while (!s->heard.ended)
		if (!pump(s, &ev))
			return false;
	/* It is the last one. */
	if (!s->me->callback && flue_socket_get_event(s->socket, &ev, 0))
		return side_fail(s, "an event after the end");
	return true;
}

static void destroy(struct side *s)
{
	if (s->socket && !s->socket->ops->destroy(s->socket))
		side_fail(s, "destroy");
	s->socket = NULL;
	if (s->heard.n != s->heard.taken)
		side_fail(s, "events nobody waited for");
	if (s->qp && !flue_destroy_qp(s->qp))
		side_fail(s, "destroying the control client's queue pair");
	s->qp = NULL;
}

const struct form side_socket_form = {
	.open = open_socket,
	.stream_send = stream_send,
	.stream_recv = stream_recv,
	.convert = convert,
	.send = send_message,
	.await = await,
	.reach = reach,
	.disconnect = disconnect,
	.await_end = await_end,
	.destroy = destroy,
	.window = window,
};
