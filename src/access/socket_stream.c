/* SPDX-License-Identifier: MIT */
/* An RDMA socket in streaming mode, and the wait until TCP has delivered what was sent there. */
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "access/socket_priv.h"
#include "access/stream.h"
#include "base/clock.h"
#include "base/util.h"

/* The kernel raises no event when its send queue drains: look again after this, then ever later. */
#define DRAIN_FIRST_NS (1 * NSEC_PER_MSEC)
#define DRAIN_MOST_NS  (16 * NSEC_PER_MSEC)

static void finish(struct acc_socket *s, struct sock_reqs *list, struct sock_req *r, int error)
{
	TAILQ_REMOVE(list, r, link);
	r->ev.error = error;
	sock_answer(s, r);
}

void sock_flush_recvs(struct acc_socket *s, struct sock_reqs *list, int error)
{
	struct sock_req *r;

	while ((r = TAILQ_FIRST(list)))
		finish(s, list, r, error);
}

static void move_sends(struct acc_socket *s)
{
	struct sock_req *r;
	ssize_t n;

	while ((r = TAILQ_FIRST(&s->sends))) {
		n = send(s->pub.fd, r->data + r->ev.length, r->length - r->ev.length,
			 MSG_DONTWAIT | MSG_NOSIGNAL);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			return;
		if (n < 0) {
			finish(s, &s->sends, r, errno);
			continue;
		}
		r->ev.length += (size_t)n;
		if (r->ev.length == r->length)
			finish(s, &s->sends, r, 0);
	}
}

static void move_recvs(struct acc_socket *s)
{
	struct sock_req *r;
	ssize_t n;

	while ((r = TAILQ_FIRST(&s->recvs))) {
		n = recv(s->pub.fd, r->data, r->length, MSG_DONTWAIT);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			return;
		r->ev.length = n > 0 ? (size_t)n : 0;
		finish(s, &s->recvs, r, n < 0 ? errno : 0);
	}
}

void sock_ask(struct acc_socket *s)
{
	uint32_t events = (TAILQ_EMPTY(&s->sends) ? 0 : (uint32_t)EPOLLOUT) |
			  (TAILQ_EMPTY(&s->recvs) ? 0 : (uint32_t)EPOLLIN);
	int rc;

	if (!events || s->adopted || s->pub.fd < 0)
		return;
	rc = acc_task_watch(&s->task, s->pub.fd, events);
	if (rc == 0)
		return;
	/* Without a watch they would wait for ever. */
	sock_flush_recvs(s, &s->sends, -rc);
	sock_flush_recvs(s, &s->recvs, -rc);
}

static bool post(struct flue_socket *pub, enum socket_call call, struct sock_reqs *list, char *data,
		 size_t length, uint64_t id)
{
	CANCEL_HELD;
	struct acc_socket *s = to_socket(pub);
	int rc = acc_usable(s->a);
	struct sock_req *r;

	if (!rc && (!data || !length))
		rc = -EINVAL;
	if (rc)
		return acc_ok(rc);
	r = calloc(1, sizeof(*r));
	if (!r)
		return acc_ok(-ENOMEM);
	r->streaming = true;
	r->data = data;
	r->length = length;
	r->ev.id = id;
	r->ev.type = call == SOCKET_CALL_SEND ? FLUE_SOCKET_SENT : FLUE_SOCKET_RECEIVED;
	pthread_mutex_lock(&s->lock);
	rc = sock_check(s, call);
	if (!rc && s->n_streaming == SOCKET_STREAM_MAX)
		rc = -ENOMEM;
	if (rc) {
		pthread_mutex_unlock(&s->lock);
		free(r);
		return acc_ok(rc);
	}
	s->n_streaming++;
	TAILQ_INSERT_TAIL(list, r, link);
	if (call == SOCKET_CALL_SEND)
		move_sends(s);
	else
		move_recvs(s);
	sock_ask(s);
	pthread_mutex_unlock(&s->lock);
	sock_deliver(s, false);
	return true;
}

bool sock_send(struct flue_socket *pub, const void *data, size_t length, uint64_t id)
{
	return post(pub, SOCKET_CALL_SEND, &to_socket(pub)->sends, (char *)data, length, id);
}

bool sock_recv(struct flue_socket *pub, void *data, size_t length, uint64_t id)
{
	return post(pub, SOCKET_CALL_RECV, &to_socket(pub)->recvs, data, length, id);
}

/*
 * Has the peer's TCP everything (CH-11)? 0: yes, -EAGAIN: not yet and the task will look again,
 * another -errno: it never will. Lock held.
 */
static int drained(struct acc_socket *s)
{
	int n = TAILQ_EMPTY(&s->sends) ? acc_stream_unacked(s->pub.fd) : 1;
	uint64_t now;

	if (n <= 0)
		return n;
	now = clock_now();
	if (now >= s->deadline)
		return -ETIMEDOUT;
	s->drain_wait_ns = s->drain_wait_ns ? s->drain_wait_ns * 2 : DRAIN_FIRST_NS;
	if (s->drain_wait_ns > DRAIN_MOST_NS)
		s->drain_wait_ns = DRAIN_MOST_NS;
	acc_task_at(&s->task, now + s->drain_wait_ns);
	return -EAGAIN;
}

bool sock_ready_to_hand_over(struct acc_socket *s)
{
	uint64_t now = clock_now();
	int rc = s->adopted || s->over || s->doomed ? -EAGAIN : drained(s);

	if (rc && rc != -EAGAIN)
		sock_transfer_failed(s, -rc);
	if (rc)
		return false;
	/* From here on the descriptor is the provider's; its events come from anywhere. */
	acc_task_unwatch(&s->task);
	s->adopted = true;
	s->owns_fd = false;
	s->sw.stream.fd = s->pub.fd;
	s->sw.stream.deny = (s->no_read ? (uint32_t)FLUE_REMOTE_READ : 0) |
			    (s->no_write ? (uint32_t)FLUE_REMOTE_WRITE : 0);
	s->sw.attr.ird = s->want_ird;
	s->sw.attr.ord = s->want_ord;
	s->sw.attr.timeout_ms = (int)((s->deadline - min_u64(now, s->deadline)) / NSEC_PER_MSEC);
	if (s->sw.attr.timeout_ms < 1)
		s->sw.attr.timeout_ms = 1;
	return true;
}

void sock_handed_over(struct acc_socket *s, int rc)
{
	if (rc) {
		s->adopted = false;
		s->owns_fd = true;
		/* Told already, if the provider took too long to refuse. */
		if (s->over)
			sock_drop_stream(s);
		else
			sock_transfer_failed(s, -rc);
		return;
	}
	s->pub.fd = -1;
	if (s->given_up && s->pub.qp)
		sock_abort(s);
	else if (!s->over && s->pub.offload_state == FLUE_OFFLOAD_IN_PROGRESS)
		sock_await(s, s->sw.attr.timeout_ms + ACC_MARGIN_MS);
}

void sock_try_transfer(struct acc_socket *s)
{
	struct acc_qp *qp = to_qp(s->pub.qp);
	int rc;

	if (!sock_ready_to_hand_over(s))
		return;
	pthread_mutex_unlock(&s->lock);
	rc = acc_conn_adopt(qp, &s->sw.stream, &s->sw.attr);
	pthread_mutex_lock(&s->lock);
	sock_handed_over(s, rc);
}

void sock_await(struct acc_socket *s, int ms)
{
	s->deadline = clock_now() + (uint64_t)ms * NSEC_PER_MSEC;
	acc_task_at(&s->task, s->deadline);
}

/* CH-25: the device does not answer. Lock held. */
static void give_up_waiting(struct acc_socket *s)
{
	if (s->over) {
		sock_cancel_posted(s);
		sock_tell_end(s);
	} else if (s->pub.offload_state == FLUE_OFFLOAD_IN_PROGRESS) {
		s->given_up = true;
		sock_transfer_failed(s, ETIMEDOUT);
	} else if (s->closing) {
		sock_over(s, FLUE_CLOSE_LOCAL, ETIMEDOUT);
		sock_abort(s);
	}
}

void sock_progress(struct acc_task *t)
{
	struct acc_socket *s = container_of(t, struct acc_socket, task);

	pthread_mutex_lock(&s->lock);
	if (!s->adopted && s->pub.fd >= 0 && !s->over) {
		move_sends(s);
		if (s->pub.state == FLUE_SOCKET_STREAMING)
			move_recvs(s);
		sock_ask(s);
		if (s->pub.offload_state == FLUE_OFFLOAD_IN_PROGRESS)
			sock_try_transfer(s);
	} else if (s->deadline && clock_now() >= s->deadline) {
		give_up_waiting(s);
	}
	pthread_mutex_unlock(&s->lock);
	sock_deliver(s, true);
}
