/* SPDX-License-Identifier: MIT */
/*
 * Events of an RDMA socket. Every request carries its own event, so telling never needs memory. The
 * order is that in which things happened, with two rules: nothing of RDMA mode comes before
 * SWITCHED, and ENDED is the last.
 */
#include <stdlib.h>

#include "access/socket_priv.h"

static void queue(struct acc_socket *s, struct sock_req *r)
{
	if (s->doomed) /* there are no streaming requests any more */
		return;
	if (TAILQ_EMPTY(&s->events))
		flag_show(&s->flag, true);
	r->ev.socket = &s->pub;
	TAILQ_INSERT_TAIL(&s->events, r, link);
	pthread_cond_broadcast(&s->changed);
}

void sock_answer(struct acc_socket *s, struct sock_req *r)
{
	bool rdma = !r->streaming;

	/* RDMA data can be faster than the word that the switch is done. */
	if (rdma && s->pub.offload_state == FLUE_OFFLOAD_IN_PROGRESS && !s->over)
		TAILQ_INSERT_TAIL(&s->held, r, link);
	else
		queue(s, r);
}

void sock_answer_switch(struct acc_socket *s, int error)
{
	struct sock_req *r;

	s->switched.ev.type = FLUE_SOCKET_SWITCHED;
	s->switched.ev.error = error;
	queue(s, &s->switched);
	while ((r = TAILQ_FIRST(&s->held))) {
		TAILQ_REMOVE(&s->held, r, link);
		queue(s, r);
	}
}

void sock_tell_end(struct acc_socket *s)
{
	if (!s->over || s->ended || !TAILQ_EMPTY(&s->posted) || !TAILQ_EMPTY(&s->sends))
		return;
	s->ended = true;
	s->end.ev.type = FLUE_SOCKET_ENDED;
	queue(s, &s->end);
}

/* Lock held: takes the first event and gives its request back. */
static bool take(struct acc_socket *s, struct flue_socket_event *ev)
{
	struct sock_req *r = TAILQ_FIRST(&s->events);

	if (!r)
		return false;
	*ev = r->ev;
	TAILQ_REMOVE(&s->events, r, link);
	if (TAILQ_EMPTY(&s->events))
		flag_show(&s->flag, false);
	if (r == &s->switched || r == &s->end)
		return true;
	if (r->streaming) {
		s->n_streaming--;
		free(r);
	} else {
		TAILQ_INSERT_TAIL(r->receive ? &s->free_recvs : &s->free_sends, r, link);
	}
	return true;
}

static void run_callbacks(struct acc_socket *s)
{
	struct flue_socket_event ev;
	struct acc_frame frame;

	pthread_mutex_lock(&s->lock);
	if (s->delivering) { /* whoever is at it sees the new ones, too */
		pthread_mutex_unlock(&s->lock);
		return;
	}
	s->delivering = true;
	while (!s->doomed && take(s, &ev)) {
		pthread_mutex_unlock(&s->lock);
		acc_frame_enter(&frame, s, NULL);
		s->fn(&ev, s->arg);
		acc_frame_leave(&frame);
		pthread_mutex_lock(&s->lock);
	}
	s->delivering = false;
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->lock);
}

void sock_deliver(struct acc_socket *s, bool here)
{
	if (!s->fn)
		return;
	/* Never inside a call of the program, which may hold locks of its own. */
	if (here)
		run_callbacks(s);
	else
		acc_task_soon(&s->task);
}

bool sock_get_event(struct flue_socket *pub, struct flue_socket_event *ev, size_t size,
		    int timeout_ms)
{
	CANCEL_HELD;
	struct acc_socket *s = to_socket(pub);
	struct timespec store;
	const struct timespec *at = acc_deadline(&store, timeout_ms);
	struct flue_socket_event mine;
	int rc = acc_usable(s->a);

	if (!rc && (s->fn || !ev || size < ACC_ATTR_SIZE(struct flue_socket_event, socket)))
		rc = -EINVAL;
	if (rc)
		return acc_ok(rc);
	pthread_mutex_lock(&s->lock);
	while (!rc && !take(s, &mine)) {
		if (!timeout_ms)
			rc = -EAGAIN;
		else if (!acc_sleep_until(&s->changed, &s->lock, at, cancel_was) &&
			 TAILQ_EMPTY(&s->events))
			rc = -ETIMEDOUT;
	}
	pthread_mutex_unlock(&s->lock);
	if (!rc)
		acc_copy_out(ev, size, &mine, sizeof(mine));
	return acc_ok(rc);
}

int sock_event_fd(struct flue_socket *pub)
{
	CANCEL_HELD;
	struct acc_socket *s = to_socket(pub);
	int rc = acc_usable(s->a), lamp;

	if (!rc && s->fn)
		rc = -EINVAL;
	if (!rc) {
		lamp = acc_tasks_lamp(&s->a->tasks);
		pthread_mutex_lock(&s->lock);
		if (s->flag.fd < 0)
			rc = lamp < 0 ? lamp : flag_open(&s->flag, lamp, !TAILQ_EMPTY(&s->events));
		if (!rc)
			rc = s->flag.fd;
		pthread_mutex_unlock(&s->lock);
	}
	return acc_ok(rc) ? rc : -1;
}

static void free_streaming(struct sock_reqs *list)
{
	struct sock_req *r;

	while ((r = TAILQ_FIRST(list))) {
		TAILQ_REMOVE(list, r, link);
		if (r->streaming)
			free(r);
	}
}

void sock_events_fini(struct acc_socket *s)
{
	free_streaming(&s->events);
	free_streaming(&s->sends);
	free_streaming(&s->recvs);
	flag_close(&s->flag, acc_inherited(s->a));
}
