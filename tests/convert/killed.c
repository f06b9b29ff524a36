/* SPDX-License-Identifier: MIT */
#include "killed.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "conf/pair.h"

#define TEXT    "hello"
#define LENGTH  1000
#define WAIT_MS 15000

static void wrong(struct killed *k, const char *what)
{
	static char text[128];

	if (k->wrong)
		return;
	snprintf(text, sizeof(text), "%s (errno %d)", what, errno);
	k->wrong = text;
}

/* ---- what is told ---- */

static void note(struct killed *k, uint32_t type, uint32_t end, uint32_t reason)
{
	pthread_mutex_lock(&k->lock);
	k->after_end += k->told[end] > 0;
	k->told[type & 15]++;
	if (type == end)
		k->reason = reason;
	pthread_cond_broadcast(&k->changed);
	pthread_mutex_unlock(&k->lock);
}

static void on_qp_event(const struct flue_event *ev, void *arg)
{
	note(arg, ev->type, FLUE_EVENT_DISCONNECTED, ev->reason);
}

static void on_socket_event(const struct flue_socket_event *ev, void *arg)
{
	note(arg, ev->type, FLUE_SOCKET_ENDED, ev->reason);
}

static uint32_t told(struct killed *k, uint32_t type)
{
	uint32_t n;

	pthread_mutex_lock(&k->lock);
	n = k->told[type];
	pthread_mutex_unlock(&k->lock);
	return n;
}

static bool await_told(struct killed *k, uint32_t type)
{
	struct timespec until;
	bool good;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += WAIT_MS / 1000;
	pthread_mutex_lock(&k->lock);
	while (!k->told[type] && pthread_cond_timedwait(&k->changed, &k->lock, &until) == 0)
		;
	good = k->told[type] > 0;
	pthread_mutex_unlock(&k->lock);
	return good;
}

/* ---- common ---- */

bool killed_open(struct killed *k)
{
	k->adapter = flue_open(NULL);
	k->pd = k->adapter ? flue_create_pd(k->adapter) : NULL;
	k->cq = k->adapter ? flue_create_cq(k->adapter, 32) : NULL;
	k->mr = k->pd ? flue_register(k->pd, k->memory, sizeof(k->memory), PAIR_ALL_ACCESS) : NULL;
	return k->cq && k->mr;
}

bool killed_close(struct killed *k)
{
	return flue_deregister(k->mr) && flue_destroy_cq(k->cq) && flue_destroy_pd(k->pd) &&
	       flue_close(k->adapter);
}

static struct flue_switch_attr switch_attr(const struct killed *k)
{
	struct flue_switch_attr attr = FLUE_ATTR(struct flue_switch_attr);

	attr.flags = (k->which == k->plan->initiator ? 0 : (uint32_t)FLUE_SWITCH_RESPONDER) |
		     (k->plan->raw ? (uint32_t)FLUE_SWITCH_NO_REQ_REP : 0);
	attr.timeout_ms = WAIT_MS;
	return attr;
}

/* False: the peer is gone. */
static bool exchange_text(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	char got[sizeof(TEXT)];

	return send(fd, TEXT, sizeof(TEXT), MSG_NOSIGNAL) == sizeof(TEXT) &&
	       poll(&p, 1, WAIT_MS) == 1 && recv(fd, got, sizeof(got), MSG_WAITALL) == sizeof(got);
}

/* ---- with a queue pair ---- */

static struct flue_qp *make_qp(struct killed *k)
{
	struct flue_qp_attr attr = FLUE_ATTR(struct flue_qp_attr);
	struct flue_sge sge = { .addr = (uintptr_t)k->memory,
				.length = LENGTH,
				.lkey = k->mr->lkey };
	struct flue_recv_wr wr = { .id = 1, .sg = &sge, .n_sg = 1 };
	struct flue_qp *qp;

	attr.send_cq = attr.recv_cq = k->cq;
	attr.sq_depth = attr.rq_depth = 4;
	attr.on_event = on_qp_event;
	attr.event_arg = k;
	qp = k->pd->ops->create_qp(k->pd, &attr);
	if (qp && flue_post_recv(qp, &wr))
		return qp;
	wrong(k, "no queue pair");
	return NULL;
}

/* One message each way, until the connection ends. False: it has. */
static bool talk(struct killed *k, struct flue_qp *qp)
{
	struct flue_sge sge = { .addr = (uintptr_t)k->memory + 2000,
				.length = LENGTH,
				.lkey = k->mr->lkey };
	struct flue_send_wr wr = { .id = 2, .flags = FLUE_SIGNALED, .sg = &sge, .n_sg = 1 };
	struct flue_wc wc[2];

	/* In every state but Idle and Closing a request is taken, and answered. */
	if (!flue_post_send(qp, &wr))
		return false;
	if (pair_take(k->cq, wc, 2, WAIT_MS) != 2) {
		wrong(k, "requests without an answer");
		return false;
	}
	return wc[0].status == FLUE_WC_SUCCESS && wc[1].status == FLUE_WC_SUCCESS;
}

static bool was_converted(struct killed *k, struct flue_qp *qp, int fd)
{
	struct flue_switch_attr attr = switch_attr(k);

	if (flue_socket_convert(qp, fd, &attr))
		return true;
	switch (errno) {
	case ENOTCONN: close(fd); break; /* reset before anything had happened */
	case EINVAL:
	case EISCONN:
	case EBADF:
	case ENOTSOCK:
	case EPROTOTYPE:
	case EOPNOTSUPP:
	case EDEADLK: wrong(k, "flue_socket_convert says that nothing happened"); break;
	default: break;
	}
	return false;
}

/* Returns how far it came. */
static int run_qp(struct killed *k, int fd)
{
	struct flue_qp *qp = make_qp(k);
	int phase = KILLED_STREAMING;

	if (!qp || !exchange_text(fd)) {
		close(fd);
	} else {
		phase = KILLED_CONVERTING;
		if (was_converted(k, qp, fd)) {
			phase = talk(k, qp) ? KILLED_ENDED : KILLED_RDMA;
			if (k->plan->closes[k->which])
				flue_disconnect(qp);
			if (!await_told(k, FLUE_EVENT_DISCONNECTED))
				wrong(k, "no DISCONNECTED");
		}
	}
	if (qp && !flue_destroy_qp(qp))
		wrong(k, "destroy");
	if (told(k, FLUE_EVENT_DISCONNECTED) != (phase >= KILLED_RDMA) || k->after_end ||
	    told(k, FLUE_EVENT_CONNECTED) || told(k, FLUE_EVENT_CONNECT_FAILED))
		wrong(k, "not exactly one end");
	return phase;
}

/* ---- with a socket ---- */

/* Until an event of this type came. */
static bool await_event(struct killed *k, struct flue_socket *s, uint32_t type)
{
	struct flue_socket_event ev;

	if (k->plan->callback)
		return await_told(k, type);
	while (!told(k, type)) {
		if (!flue_socket_get_event(s, &ev, WAIT_MS))
			return false;
		note(k, ev.type, FLUE_SOCKET_ENDED, ev.reason);
	}
	return true;
}

static void drain(struct killed *k, struct flue_socket *s)
{
	struct flue_socket_event ev;

	while (!k->plan->callback && flue_socket_get_event(s, &ev, 20))
		note(k, ev.type, FLUE_SOCKET_ENDED, ev.reason);
}

/* From the switch to ENDED. */
static int switch_and_talk(struct killed *k, struct flue_socket *s)
{
	struct flue_switch_attr attr = switch_attr(k);
	int phase = KILLED_CONVERTING;

	if (!s->ops->switch_mode(s, &attr, 1)) {
		wrong(k, "switch_mode");
		return phase;
	}
	if (!s->ops->rdma_recv(s, k->memory, LENGTH, 2))
		wrong(k, "first rdma_recv");
	if (!await_event(k, s, FLUE_SOCKET_SWITCHED))
		wrong(k, "no SWITCHED");
	if (s->ops->rdma_send(s, k->memory + 2000, LENGTH, 0, 0, 3)) {
		phase = KILLED_RDMA;
		if (!await_event(k, s, FLUE_SOCKET_RDMA_SENT))
			wrong(k, "no RDMA_SENT");
	}
	if (!await_event(k, s, FLUE_SOCKET_RDMA_RECEIVED))
		wrong(k, "no RDMA_RECEIVED");
	else if (phase == KILLED_RDMA && !told(k, FLUE_SOCKET_ENDED))
		phase = KILLED_ENDED;
	if (k->plan->closes[k->which])
		s->ops->disconnect(s, 0);
	if (!await_event(k, s, FLUE_SOCKET_ENDED))
		wrong(k, "no ENDED");
	drain(k, s);
	if (told(k, FLUE_SOCKET_ENDED) != 1 || told(k, FLUE_SOCKET_SWITCHED) != 1 ||
	    told(k, FLUE_SOCKET_RDMA_RECEIVED) != 1 || k->after_end)
		wrong(k, "not exactly one answer to each, or not in order");
	return phase;
}

static int run_socket(struct killed *k, int fd)
{
	struct flue_socket_attr attr = FLUE_ATTR(struct flue_socket_attr);
	struct flue_reserve_attr want = FLUE_ATTR(struct flue_reserve_attr);
	struct flue_socket *s;
	int phase = KILLED_STREAMING;

	attr.on_event = k->plan->callback ? on_socket_event : NULL;
	attr.event_arg = k;
	s = flue_socket_open(k->adapter, fd, &attr);
	if (!s && errno != ENOTCONN)
		wrong(k, "flue_socket_open");
	if (s && s->ops->reserve(s, &want) && exchange_text(fd)) {
		phase = switch_and_talk(k, s);
	} else {
		if (s && want.reason != FLUE_RESERVE_OK && want.reason != FLUE_RESERVE_LOST)
			wrong(k, "reserve");
		close(fd);
	}
	if (s && !s->ops->destroy(s))
		wrong(k, "destroy");
	if (phase == KILLED_STREAMING && told(k, FLUE_SOCKET_ENDED))
		wrong(k, "ENDED in streaming mode");
	return phase;
}

void killed_run(struct killed *k, int fd)
{
	k->lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	k->changed = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
	memset(k->told, 0, sizeof(k->told));
	k->after_end = 0;
	k->wrong = NULL;
	k->phases[k->plan->socket[k->which] ? run_socket(k, fd) : run_qp(k, fd)]++;
}
