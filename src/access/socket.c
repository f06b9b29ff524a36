/* SPDX-License-Identifier: MIT */
/* RDMA sockets: life, states and the switch. The rest: socket_priv.h. */
#include <stdlib.h>
#include <unistd.h>

#include "access/socket_priv.h"
#include "access/stream.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/probe.h"
#include "base/util.h"

#define DEFAULT_DISCONNECT_MS 5000
#define FLUSH_MS              2000 /* for a device to answer everything */

/* ---- states ---- */

int sock_check(struct acc_socket *s, enum socket_call call)
{
	if (s->over || s->ended)
		return -ENOTCONN;
	return socket_call_allowed(call, s->pub.offload_state) ? 0 : -EBADFD;
}

static uint32_t step_socket(struct acc_socket *s, enum socket_event e)
{
	struct fsm_edge edge = fsm_step(&socket_fsm, s->pub.state, e);

	if (edge.next == FSM_ILLEGAL)
		return 0;
	__atomic_store_n(&s->pub.state, edge.next, __ATOMIC_RELEASE);
	return edge.actions;
}

uint32_t sock_step(struct acc_socket *s, enum offload_event e)
{
	struct fsm_edge edge = fsm_step(&offload_fsm, s->pub.offload_state, e);
	uint32_t actions;

	if (edge.next == FSM_ILLEGAL)
		return 0;
	PROBE(offload_state, s->pub.fd, s->pub.offload_state, (uint32_t)edge.next, (uint32_t)e);
	log_debug(chimney, "socket %d: %s in %s: now %s", s->pub.fd,
		  fsm_event_name(&offload_fsm, e),
		  fsm_state_name(&offload_fsm, s->pub.offload_state),
		  fsm_state_name(&offload_fsm, edge.next));
	__atomic_store_n(&s->pub.offload_state, edge.next, __ATOMIC_RELEASE);
	actions = edge.actions;
	if (e == OFFLOAD_EV_SWITCH)
		actions |= step_socket(s, SOCKET_EV_SWITCH);
	else if (e == OFFLOAD_EV_OFFLOADED)
		actions |= step_socket(s, SOCKET_EV_SWITCHED);
	else if (e == OFFLOAD_EV_FAILED)
		actions |= step_socket(s, SOCKET_EV_FAILED);
	return actions;
}

/* ---- the end ---- */

/* For people; 0: there is none. */
static uint32_t number_of(const struct acc_socket *s)
{
	return s->pub.qp ? s->pub.qp->number : 0;
}

/* Unless the program has closed it, and has something else there by now. */
static void end_stream(struct acc_socket *s)
{
	if (fd_socket(s->pub.fd) == s->which)
		acc_stream_reset(s->pub.fd);
}

void sock_drop_stream(struct acc_socket *s)
{
	if (!s->owns_fd)
		return;
	acc_task_unwatch(&s->task);
	end_stream(s);
	s->pub.fd = -1;
	s->owns_fd = false;
}

void sock_over(struct acc_socket *s, uint32_t reason, uint32_t detail)
{
	if (s->over)
		return;
	s->over = true;
	s->end.ev.reason = reason;
	s->end.ev.detail = detail;
	log_if(acc_end_level(reason), LOG_PART_chimney,
	       "socket %d, queue pair %u: ended: %s, detail %#x", s->pub.fd, number_of(s),
	       flue_close_reason_name(reason), detail);
	sock_drop_stream(s);
	sock_flush_recvs(s, &s->sends, ECANCELED);
	if (!TAILQ_EMPTY(&s->posted))
		sock_await(s, FLUSH_MS);
	sock_tell_end(s);
}

void sock_transfer_failed(struct acc_socket *s, int err)
{
	uint32_t actions = sock_step(s, OFFLOAD_EV_FAILED);

	if (!actions)
		return;
	log_error(chimney, "socket %d, queue pair %u: the transfer failed: %s; it is torn down",
		  s->pub.fd, number_of(s), log_errno(err));
	if (actions & SOCKET_TELL)
		sock_answer_switch(s, err);
	if (actions & SOCKET_TEAR_DOWN)
		sock_over(s, FLUE_CLOSE_LOST, (uint32_t)err);
	/* The queue pair may be Idle still, with receives that nobody else would answer. */
	sock_abort(s);
}

void sock_abort(struct acc_socket *s)
{
	struct flue_qp *qp = s->pub.qp;

	pthread_mutex_unlock(&s->lock);
	qp->ops->abort(qp);
	pthread_mutex_lock(&s->lock);
}

/* Lock held: without an operation to wait for the provider answers at once. */
static int modify_reads(struct acc_qp *qp, uint32_t ird, uint32_t ord)
{
	struct flue_qp_values v = { .size = sizeof(v), .ird = ird, .ord = ord };
	int rc = qp->ops->modify_qp(qp->prov, &v, FLUE_QPV_READS, NULL);

	if (rc)
		return rc;
	qp->pub.ird = ird;
	qp->pub.ord = ord;
	return 0;
}

/* Lock held. What was wished during the transfer: no more Reads of ours than the peer agreed to. */
static void change_late(struct acc_socket *s)
{
	struct acc_qp *qp = to_qp(s->pub.qp);
	uint32_t ird = s->want_ird, ord = min_u32(s->want_ord, qp->pub.ord);
	int rc = s->rewished ? modify_reads(qp, ird, ord) : 0;

	if (rc)
		log_warn(chimney, "queue pair %u: %u and %u Reads, as wished late, are refused: %s",
			 qp->pub.number, ird, ord, log_errno(rc));
}

/* What happens to the connection below. On a thread of the provider. */
void sock_heard(const struct flue_event *ev, void *arg)
{
	struct acc_socket *s = arg;

	pthread_mutex_lock(&s->lock);
	/* A control client's queue pair has a life before and after the socket's connection; and what
	 * a late provider says of one that was given up changes nothing. */
	switch (s->adopted && !s->over ? ev->type : FLUE_EVENT_NONE) {
	case FLUE_EVENT_CONNECTED:
		change_late(s);
		s->pub.ird = s->pub.qp->ird;
		s->pub.ord = s->pub.qp->ord;
		if (sock_step(s, OFFLOAD_EV_OFFLOADED) == SOCKET_TELL)
			sock_answer_switch(s, 0);
		break;
	case FLUE_EVENT_CONNECT_FAILED: sock_transfer_failed(s, (int)ev->detail); break;
	case FLUE_EVENT_DISCONNECTED: sock_over(s, ev->reason, ev->detail); break;
	default: break;
	}
	pthread_mutex_unlock(&s->lock);
	sock_deliver(s, true);
}

static bool sock_disconnect(struct flue_socket *pub, int timeout_ms)
{
	CANCEL_HELD;
	struct acc_socket *s = to_socket(pub);
	bool streaming;
	int rc = acc_usable(s->a);

	if (rc)
		return acc_ok(rc);
	pthread_mutex_lock(&s->lock);
	rc = sock_check(s, SOCKET_CALL_DISCONNECT);
	streaming = pub->state == FLUE_SOCKET_STREAMING;
	if (timeout_ms <= 0)
		timeout_ms = DEFAULT_DISCONNECT_MS;
	if (!rc && !streaming) {
		s->closing = true;
		sock_await(s, timeout_ms + ACC_MARGIN_MS);
	} else if (!rc) {
		if (!TAILQ_EMPTY(&s->sends))
			rc = -EBUSY;
		else if (shutdown(pub->fd, SHUT_WR) < 0)
			rc = -errno;
	}
	pthread_mutex_unlock(&s->lock);
	if (rc || streaming)
		return acc_ok(rc);
	rc = to_qp(pub->qp)->ops->disconnect(to_qp(pub->qp)->prov, timeout_ms);
	if (rc && rc != -ENOTCONN)
		log_error(chimney, "queue pair %u: disconnect is refused: %s", pub->qp->number,
			  log_errno(rc));
	return acc_ok(rc == -ENOTCONN ? 0 : rc);
}

/* ---- the switch ---- */

/* Checks and keeps what the transfer will need. */
static int keep_switch(struct acc_socket *s, const struct flue_switch_attr *from)
{
	struct flue_conn_attr want = FLUE_ATTR(struct flue_conn_attr);
	struct sock_switch *sw = &s->sw;
	bool raw = from->flags & FLUE_SWITCH_NO_REQ_REP;
	char *octets = NULL;
	int rc = acc_switch_attr(s->a, from, &want);

	if (rc)
		return rc;
	if (from->early_len + want.private_len) {
		octets = malloc(from->early_len + want.private_len);
		if (!octets)
			return -ENOMEM;
		if (from->early_len)
			memcpy(octets, from->early, from->early_len);
		if (want.private_len)
			memcpy(octets + from->early_len, want.private_data, want.private_len);
		want.private_data = octets + from->early_len;
	}
	free(sw->octets);
	sw->octets = octets;
	sw->stream = (struct prov_stream) { .fd = -1,
					    .initiator = !(from->flags & FLUE_SWITCH_RESPONDER),
					    .raw = raw,
					    .early = octets,
					    .early_len = from->early_len };
	want.flags |= FLUE_CONN_ASYNC;
	sw->attr = want;
	return 0;
}

/* Lock held. */
static int begin_switch(struct acc_socket *s, const struct flue_switch_attr *attr, uint64_t id)
{
	int rc = sock_check(s, SOCKET_CALL_SWITCH_MODE);

	if (!rc)
		rc = keep_switch(s, attr);
	if (rc)
		return rc;
	s->switched.ev.id = id;
	s->owns_fd = true;
	acc_stream_ack_now(s->pub.fd);
	if (sock_step(s, OFFLOAD_EV_SWITCH) & SOCKET_FLUSH_RECVS)
		sock_flush_recvs(s, &s->recvs, 0);
	return 0;
}

static bool sock_switch_mode(struct flue_socket *pub, const struct flue_switch_attr *from,
			     uint64_t id)
{
	CANCEL_HELD;
	struct acc_socket *s = to_socket(pub);
	struct flue_switch_attr attr;
	int rc = acc_usable(s->a);

	if (!rc)
		rc = acc_attr_copy(&attr, sizeof(attr), from,
				   ACC_ATTR_SIZE(struct flue_switch_attr, fpdu_max));
	if (rc)
		return acc_ok(rc);
	pthread_mutex_lock(&s->lock);
	rc = begin_switch(s, &attr, id);
	if (rc)
		log_error(chimney, "socket %d: the switch to RDMA mode is refused: %s", pub->fd,
			  log_errno(rc));
	pthread_mutex_unlock(&s->lock);
	sock_deliver(s, false);
	return acc_ok(rc);
}

/* Lock held. *live: the connection itself has to change them. */
static int change_wish(struct acc_socket *s, uint32_t ird, uint32_t ord, bool *live)
{
	int rc = sock_check(s, SOCKET_CALL_READ_RESOURCES);

	*live = s->pub.state == FLUE_SOCKET_RDMA;
	if (rc)
		return rc;
	/* As the source has it: then nothing changes, not even what the get does not need. */
	if (*live)
		return s->gets ? -EBUSY : 0;
	/* With the provider already, which is agreeing on others: as soon as that is over. */
	s->rewished = s->adopted;
	s->wished = true;
	s->pub.ird = s->want_ird = ird;
	s->pub.ord = s->want_ord = ord;
	return 0;
}

/* Lock held, so that what is shown is what was agreed last; the provider answers at once. */
static int change_now(struct acc_socket *s, uint32_t ird, uint32_t ord)
{
	int rc = modify_reads(to_qp(s->pub.qp), ird, ord);

	if (rc)
		return rc;
	s->pub.ird = ird;
	s->pub.ord = ord;
	return 0;
}

static bool sock_read_resources(struct flue_socket *pub, uint32_t ird, uint32_t ord)
{
	CANCEL_HELD;
	struct acc_socket *s = to_socket(pub);
	int rc = acc_usable(s->a);
	bool live;

	if (!rc && (ird > s->a->caps.max_ird || ord > s->a->caps.max_ord))
		rc = -EINVAL;
	if (rc)
		return acc_ok(rc);
	pthread_mutex_lock(&s->lock);
	rc = change_wish(s, ird, ord, &live);
	if (!rc && live)
		rc = change_now(s, ird, ord);
	pthread_mutex_unlock(&s->lock);
	return acc_ok(rc);
}

/* ---- life ---- */

static bool sock_destroy(struct flue_socket *pub)
{
	CANCEL_HELD;
	struct acc_socket *s = to_socket(pub);
	bool inherited = acc_inherited(s->a);

	if (acc_in_callback(s))
		return acc_ok(-EDEADLK);
	if (!inherited) {
		pthread_mutex_lock(&s->lock);
		s->doomed = true;
		while (s->delivering)
			pthread_cond_wait(&s->changed, &s->lock);
		/* Now, for sock_unreserve() frees requests that wait as events. */
		sock_events_fini(s);
		pthread_mutex_unlock(&s->lock);
	} else {
		s->doomed = true;
		sock_events_fini(s);
	}
	acc_task_stop(&s->task, inherited);
	if (s->owns_fd && inherited)
		fd_close_socket(pub->fd, s->which);
	else if (s->owns_fd)
		end_stream(s);
	sock_unreserve(s);
	sock_stags_fini(s);
	sock_drop_pd(s);
	free(s->sw.octets);
	atomic_fetch_sub(&s->a->children, 1);
	free(s);
	return true;
}

static const struct flue_socket_ops socket_ops = {
	.size = sizeof(socket_ops),
	.destroy = sock_destroy,
	.send = sock_send,
	.recv = sock_recv,
	.reserve = sock_reserve,
	.read_resources = sock_read_resources,
	.switch_mode = sock_switch_mode,
	.rdma_recv = sock_rdma_recv,
	.rdma_send = sock_rdma_send,
	.put = sock_put,
	.get = sock_get,
	.alloc_stag = sock_alloc_stag,
	.map = sock_map,
	.free_stag = sock_free_stag,
	.disconnect = sock_disconnect,
	.get_event = sock_get_event,
	.event_fd = sock_event_fd,
	.rdma_recv_list = sock_rdma_recv_list,
	.rdma_send_list = sock_rdma_send_list,
	.put_list = sock_put_list,
	.get_list = sock_get_list,
	.query_offload = sock_query_offload,
	.end_offload = sock_end_offload,
};

static void init(struct acc_socket *s, struct acc_adapter *a, int fd,
		 const struct flue_socket_attr *attr)
{
	s->pub.ops = &socket_ops;
	s->pub.adapter = &a->pub;
	s->pub.fd = fd;
	s->which = fd_socket(fd);
	s->a = a;
	s->fn = attr->on_event;
	s->arg = attr->event_arg;
	s->flag = (struct flag)FLAG_NONE;
	s->lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	s->changed = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
	TAILQ_INIT(&s->sends);
	TAILQ_INIT(&s->recvs);
	TAILQ_INIT(&s->posted);
	TAILQ_INIT(&s->free_sends);
	TAILQ_INIT(&s->free_recvs);
	TAILQ_INIT(&s->stags);
	TAILQ_INIT(&s->events);
	TAILQ_INIT(&s->held);
}

struct flue_socket *flue_socket_open(struct flue_adapter *adapter, int fd,
				     const struct flue_socket_attr *from)
{
	CANCEL_HELD;
	struct acc_adapter *a = to_adapter(adapter);
	struct flue_socket_attr attr = { .size = sizeof(attr) };
	struct acc_socket *s;
	int rc = acc_usable(a);

	if (!rc && from)
		rc = acc_attr_copy(&attr, sizeof(attr), from,
				   ACC_ATTR_SIZE(struct flue_socket_attr, event_arg));
	if (!rc)
		rc = acc_stream_check(fd);
	if (rc)
		return acc_null(rc);
	s = calloc(1, sizeof(*s));
	if (!s)
		return acc_null(-ENOMEM);
	init(s, a, fd, &attr);
	rc = acc_task_start(&s->task, &a->tasks, sock_progress);
	if (rc) {
		free(s);
		return acc_null(rc);
	}
	atomic_fetch_add(&a->children, 1);
	return &s->pub;
}
