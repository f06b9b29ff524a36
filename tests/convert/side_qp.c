/* SPDX-License-Identifier: MIT */
/* A side with its own queue pair and flue_socket_convert(). */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "conf/pair.h"
#include "side.h"

enum { SEND_ID = 100, RECV_ID = 200, REACH_ID = 300 };

/* ---- streaming mode, with nothing but the descriptor ---- */

bool plain_send(struct side *s, const uint8_t *data, size_t length)
{
	while (length) {
		ssize_t n = send(s->fd, data, length, MSG_NOSIGNAL);

		if (n <= 0)
			return side_fail(s, "streaming send");
		data += n;
		length -= (size_t)n;
	}
	return true;
}

ssize_t plain_recv(struct side *s, uint8_t *data, size_t room)
{
	struct pollfd p = { .fd = s->fd, .events = POLLIN };
	ssize_t n = poll(&p, 1, WAIT_MS) == 1 ? recv(s->fd, data, room, 0) : -1;

	if (n <= 0) {
		side_fail(s, "streaming receive");
		return -1;
	}
	return n;
}

/* ---- the queue pair ---- */

/* A control client leaves that to its socket. */
static void ignore_event(const struct flue_event *ev, void *arg)
{
	(void)ev, (void)arg;
}

static void on_event(const struct flue_event *ev, void *arg)
{
	struct heard *h = arg;

	pthread_mutex_lock(&h->lock);
	if (ev->type == FLUE_EVENT_DISCONNECTED) {
		h->ended++;
		h->reason = ev->reason;
		h->detail = ev->detail;
	} else {
		h->ended += 1000; /* nothing else is to be told */
	}
	pthread_cond_broadcast(&h->changed);
	pthread_mutex_unlock(&h->lock);
}

bool qp_make(struct side *s)
{
	struct flue_qp_attr attr = FLUE_ATTR(struct flue_qp_attr);

	attr.send_cq = attr.recv_cq = s->cq;
	attr.sq_depth = attr.rq_depth = MESSAGES + 3;
	attr.on_event = s->me->control ? ignore_event : on_event;
	attr.event_arg = &s->heard;
	s->qp = s->pd->ops->create_qp(s->pd, &attr);
	return s->qp || side_fail(s, "create_qp");
}

bool qp_post_recvs(struct side *s)
{
	for (uint32_t i = 0; i <= s->peer->messages; i++) {
		struct flue_sge sge = { .addr = (uintptr_t)s->box->in[i],
					.length = MESSAGE_MAX,
					.lkey = s->mr->lkey };
		struct flue_recv_wr wr = { .id = RECV_ID + i, .sg = &sge, .n_sg = 1 };

		if (!flue_post_recv(s->qp, &wr))
			return side_fail(s, "post_recv");
	}
	return true;
}

static bool convert(struct side *s)
{
	struct flue_switch_attr attr = side_switch_attr(s);

	if (!qp_post_recvs(s))
		return false;
	if (!flue_socket_convert(s->qp, s->fd, &attr))
		return side_fail(s, "flue_socket_convert");
	s->fd = -1;
	return true;
}

static bool post(struct side *s, const struct flue_send_wr *wr)
{
	return flue_post_send(s->qp, wr) || side_fail(s, "post_send");
}

bool qp_send(struct side *s, uint32_t message, uint32_t length)
{
	struct flue_sge sge = { .addr = (uintptr_t)s->box->out[message],
				.length = length,
				.lkey = s->mr->lkey };
	struct flue_send_wr wr = { .id = SEND_ID + message,
				   .op = FLUE_WR_SEND,
				   .flags = FLUE_SIGNALED,
				   .sg = &sge,
				   .n_sg = length ? 1 : 0 };

	return post(s, &wr);
}

static bool take(struct side *s, const struct flue_wc *wc)
{
	bool receive = wc->id >= RECV_ID && wc->id < REACH_ID;

	if (wc->status != FLUE_WC_SUCCESS) {
		errno = (int)wc->status;
		return side_fail(s, receive ? "status of a receive (not an errno)"
					    : "status of a request (not an errno)");
	}
	if (receive) {
		if (wc->id != RECV_ID + s->received ||
		    wc->byte_len != plan_length(s->plan, !s->which, s->received))
			return side_fail(s, "a message of the wrong length");
		s->received++;
	} else if (wc->id >= REACH_ID) {
		s->done++;
	} else {
		s->sent++;
	}
	return true;
}

bool qp_await(struct side *s, uint32_t sent, uint32_t received, uint32_t done)
{
	struct flue_wc wc;
	uint32_t got;

	while (s->sent < sent || s->received < received || s->done < done) {
		if (!flue_poll(s->cq, &wc, 1, &got))
			return side_fail(s, "poll");
		if (got && !take(s, &wc))
			return false;
		if (!got && !flue_wait(s->cq, WAIT_MS) && errno != EINTR)
			return side_fail(s, "wait");
	}
	return true;
}

bool qp_reach(struct side *s, const struct hello *there)
{
	for (int i = 0; i < 2; i++) {
		struct flue_sge sge = { .addr = (uintptr_t)s->box->scratch[i],
					.length = there->length,
					.lkey = s->mr->lkey };
		struct flue_send_wr wr = { .id = REACH_ID + (uint64_t)i,
					   .op = i ? FLUE_WR_READ : FLUE_WR_WRITE,
					   .flags = FLUE_SIGNALED,
					   .sg = &sge,
					   .n_sg = 1,
					   .rkey = there->rkey,
					   .remote_addr = there->addr };

		if (!post(s, &wr))
			return false;
	}
	return qp_await(s, 0, 0, 2);
}

struct hello qp_window(struct side *s)
{
	return (struct hello) { .addr = (uintptr_t)s->box->window,
				.rkey = s->mr->rkey,
				.length = WINDOW };
}

static bool disconnect(struct side *s)
{
	return flue_disconnect(s->qp) || side_fail(s, "disconnect");
}

static bool await_end(struct side *s)
{
	struct timespec until;
	bool good;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += WAIT_MS / 1000;
	pthread_mutex_lock(&s->heard.lock);
	while (!s->heard.ended &&
	       pthread_cond_timedwait(&s->heard.changed, &s->heard.lock, &until) == 0)
		;
	good = s->heard.ended == 1 && s->heard.reason == FLUE_CLOSE_GRACEFUL;
	errno = (int)(s->heard.ended * 100 + s->heard.reason);
	pthread_mutex_unlock(&s->heard.lock);
	return good || side_fail(s, "the end (100 * events + reason)");
}

static void destroy(struct side *s)
{
	if (s->qp)
		flue_destroy_qp(s->qp);
	s->qp = NULL;
	/* A graceful end was told once, and nothing comes after it. */
	if (s->heard.ended > 1)
		side_fail(s, "more than one end");
}

const struct form side_qp_form = {
	.open = qp_make,
	.stream_send = plain_send,
	.stream_recv = plain_recv,
	.convert = convert,
	.send = qp_send,
	.await = qp_await,
	.reach = qp_reach,
	.disconnect = disconnect,
	.await_end = await_end,
	.destroy = destroy,
	.window = qp_window,
};
