/* SPDX-License-Identifier: MIT */
/* What a side hears: completions by poll and by function, events by queue and by function. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/side.h"

#define BATCH 16

typedef void (*tell_fn)(void *arg, const struct record *r);

static void give_up(const char *what)
{
	fprintf(stderr, "model: %s: %s\n", what, strerror(errno));
	exit(1);
}

static struct record completion_record(const struct flue_wc *wc)
{
	struct record r = { .type = REC_COMPLETION };

	r.u.completion = (struct record_completion) { .q = (uint32_t)(uintptr_t)wc->qp->user,
						      .id = wc->id,
						      .status = wc->status,
						      .op = wc->op,
						      .length = wc->byte_len,
						      .flags = wc->flags,
						      .inv_key = wc->inv_key };
	return r;
}

static struct record event_record(const struct flue_event *ev)
{
	struct record r = { .type = REC_EVENT };
	void *user = ev->type == FLUE_EVENT_SRQ_LIMIT ? ev->u.srq->user : ev->u.qp->user;

	r.u.event = (struct record_event) { .type = ev->type,
					    .reason = ev->reason,
					    .detail = ev->detail,
					    .q = (uint32_t)(uintptr_t)user };
	return r;
}

/* ---- functions that the library calls, on its threads ---- */

static void leave(struct side *s, const struct record *r)
{
	uint64_t one = 1;

	pthread_mutex_lock(&s->lock);
	if (s->last - s->first == HEARD)
		abort(); /* more than could ever be outstanding */
	s->heard[s->last++ % HEARD] = *r;
	pthread_mutex_unlock(&s->lock);
	if (write(s->bell, &one, sizeof(one)) < 0)
		abort();
}

void side_on_completion(struct flue_cq *cq, const struct flue_wc *wc, void *arg)
{
	struct record r = completion_record(wc);

	(void)cq;
	leave(arg, &r);
}

void side_on_event(const struct flue_event *ev, void *arg)
{
	struct record r = event_record(ev);

	/* From inside the function, since it is asynchronous. */
	if (ev->type == FLUE_EVENT_ACCEPTED && !ev->u.qp->ops->start(ev->u.qp))
		abort();
	leave(arg, &r);
}

/* ---- the side's own thread ---- */

static uint32_t qp_of(const struct record *r)
{
	bool srq = r->type == REC_EVENT && r->u.event.type == FLUE_EVENT_SRQ_LIMIT;

	return srq ? N_QPS : r->type == REC_EVENT ? r->u.event.q : r->u.completion.q;
}

void side_forget(struct side *s, uint32_t q)
{
	uint32_t to;

	pthread_mutex_lock(&s->lock);
	to = s->first;
	for (uint32_t i = s->first; i != s->last; i++)
		if (qp_of(&s->heard[i % HEARD]) != q)
			s->heard[to++ % HEARD] = s->heard[i % HEARD];
	s->last = to;
	pthread_mutex_unlock(&s->lock);
}

static unsigned take_heard(struct side *s, tell_fn tell, void *arg)
{
	struct record r;
	unsigned n = 0;

	for (;; n++) {
		pthread_mutex_lock(&s->lock);
		if (s->first == s->last) {
			pthread_mutex_unlock(&s->lock);
			return n;
		}
		r = s->heard[s->first++ % HEARD];
		pthread_mutex_unlock(&s->lock);
		tell(arg, &r);
	}
}

static unsigned take_completions(struct side *s, tell_fn tell, void *arg)
{
	struct flue_wc wc[BATCH];
	unsigned n = 0;
	uint32_t got;

	for (uint32_t i = 0; i < N_CQS - 1; i++) {
		do {
			if (!flue_poll(s->cqs[i], wc, BATCH, &got))
				give_up("poll");
			for (uint32_t k = 0; k < got; k++) {
				struct record r = completion_record(&wc[k]);

				tell(arg, &r);
			}
			n += got;
		} while (got == BATCH);
	}
	return n;
}

static void answer_request(struct side *s)
{
	struct flue_conn_request *req = s->listener->ops->get_request(s->listener, 0);
	struct flue_conn_attr attr = FLUE_ATTR(struct flue_conn_attr);
	struct invitation invitation;

	if (!req)
		return;
	if (req->private_len != sizeof(invitation))
		give_up("private data");
	memcpy(&invitation, req->private_data, sizeof(invitation));
	if (invitation.reject) {
		if (!req->ops->reject(req, &invitation, sizeof(invitation)))
			give_up("reject");
		return;
	}
	attr.flags = invitation.flags | FLUE_CONN_ASYNC;
	attr.ird = invitation.ird;
	attr.ord = invitation.ord;
	attr.fpdu_max = invitation.fpdu_max;
	attr.timeout_ms = 60000;
	if (!req->ops->accept(req, s->qps[invitation.q], &attr))
		give_up("accept");
}

static unsigned take_events(struct side *s, tell_fn tell, void *arg)
{
	struct flue_event ev;
	unsigned n = 0;

	for (; flue_get_event(s->adapter, &ev, 0); n++) {
		struct record r;

		if (ev.type == FLUE_EVENT_REQUEST) {
			answer_request(s);
			continue;
		}
		if (ev.type == FLUE_EVENT_CQ_ERROR)
			give_up("a CQ overflowed");
		if (ev.type == FLUE_EVENT_ACCEPTED && !ev.u.qp->ops->start(ev.u.qp))
			give_up("start");
		r = event_record(&ev);
		tell(arg, &r);
	}
	return n;
}

unsigned side_progress(struct side *s, tell_fn tell, void *arg)
{
	unsigned n = take_completions(s, tell, arg);

	n += take_heard(s, tell, arg);
	return n + take_events(s, tell, arg);
}

void side_arm(struct side *s)
{
	for (uint32_t i = 0; i < N_CQS - 1; i++)
		if (!s->cqs[i]->ops->notify(s->cqs[i], FLUE_NOTIFY_NEXT, NULL, NULL))
			give_up("notify");
}

void side_sleep(struct side *s, int fd, int timeout_ms)
{
	struct pollfd fds[N_CQS + 2];
	uint64_t count;
	int n = 0;

	for (uint32_t i = 0; i < N_CQS - 1; i++)
		fds[n++].fd = s->cqs[i]->ops->fd(s->cqs[i]);
	fds[n++].fd = s->adapter->ops->event_fd(s->adapter);
	fds[n++].fd = s->bell;
	if (fd >= 0)
		fds[n++].fd = fd;
	for (int i = 0; i < n; i++) {
		fds[i].events = POLLIN;
		if (fds[i].fd < 0)
			give_up("descriptor");
	}
	if (poll(fds, (nfds_t)n, timeout_ms) <= 0)
		return;
	for (uint32_t i = 0; i < N_CQS - 1; i++)
		if (fds[i].revents)
			s->cqs[i]->ops->clear_fd(s->cqs[i]);
	if (fds[N_CQS].revents && read(s->bell, &count, sizeof(count)) < 0)
		return;
}
