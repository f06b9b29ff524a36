/* SPDX-License-Identifier: MIT */
#include "ep.h"
#include "util.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <unistd.h>

#define BATCH      16
#define MAX_INLINE 256

static void on_event(const struct flue_event *ev, void *arg)
{
	struct ep *ep = arg;

	if (ev->type != FLUE_EVENT_DISCONNECTED)
		return;
	ep->reason = ev->reason;
	ep->detail = ev->detail;
	__atomic_store_n(&ep->ended, 1, __ATOMIC_RELEASE);
}

static bool open_queues(struct ep *ep)
{
	struct flue_qp_attr attr = FLUE_ATTR(struct flue_qp_attr);
	const struct flue_caps *caps = ep->adapter->caps;

	ep->pd = flue_create_pd(ep->adapter);
	if (!ep->pd)
		return false;
	ep->cq = flue_create_cq(ep->adapter, ep->sq_depth + ep->rq_depth);
	if (!ep->cq)
		return false;
	attr.send_cq = attr.recv_cq = ep->cq;
	attr.sq_depth = ep->sq_depth;
	attr.rq_depth = ep->rq_depth;
	attr.max_inline = caps->max_inline < MAX_INLINE ? caps->max_inline : MAX_INLINE;
	attr.on_event = on_event;
	attr.event_arg = ep;
	ep->qp = ep->pd->ops->create_qp(ep->pd, &attr);
	return ep->qp != NULL;
}

static bool open_epoll(struct ep *ep)
{
	struct epoll_event event = { .events = EPOLLIN };
	int fd;

	if (ep->wait != EP_FD)
		return true;
	fd = ep->cq->ops->fd(ep->cq);
	if (fd < 0)
		return false;
	ep->epoll = epoll_create1(EPOLL_CLOEXEC);
	return ep->epoll >= 0 && epoll_ctl(ep->epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

bool ep_open(struct ep *ep, const struct ep_attr *attr)
{
	int saved;

	memset(ep, 0, sizeof(*ep));
	ep->adapter = attr->adapter;
	ep->wait = attr->wait;
	ep->sq_depth = attr->sq_depth;
	ep->rq_depth = attr->rq_depth;
	ep->signal_every = attr->sq_depth >= 64 ? 16 : attr->sq_depth / 4 + 1;
	ep->epoll = -1;
	ep->received = calloc(ep->rq_depth, sizeof(*ep->received));
	if (ep->received && open_queues(ep) && open_epoll(ep))
		return true;
	saved = errno;
	ep_close(ep);
	errno = saved;
	return false;
}

void ep_close(struct ep *ep)
{
	if (ep->qp)
		flue_destroy_qp(ep->qp);
	if (ep->epoll >= 0)
		close(ep->epoll);
	if (ep->cq)
		flue_destroy_cq(ep->cq);
	if (ep->pd)
		flue_destroy_pd(ep->pd);
	free(ep->received);
	memset(ep, 0, sizeof(*ep));
	ep->epoll = -1;
}

bool ep_memory_open(struct ep *ep, struct ep_memory *memory, size_t length, uint32_t access)
{
	memset(memory, 0, sizeof(*memory));
	/* mmap: page aligned, zeroed, and pages that no test touches cost nothing. */
	memory->data = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			    0);
	if (memory->data == MAP_FAILED) {
		memory->data = NULL;
		return false;
	}
	memory->length = length;
	memory->mr = flue_register(ep->pd, memory->data, length, access);
	if (!memory->mr) {
		int saved = errno;

		ep_memory_close(memory);
		errno = saved;
		return false;
	}
	return true;
}

void ep_memory_close(struct ep_memory *memory)
{
	if (memory->mr)
		flue_deregister(memory->mr);
	if (memory->data)
		munmap(memory->data, memory->length);
	memset(memory, 0, sizeof(*memory));
}

bool ep_post_recv(struct ep *ep, const struct ep_memory *memory, size_t offset, uint32_t length,
		  uint64_t id)
{
	struct flue_sge sge = flue_mr_sge(memory->mr, offset, length);
	struct flue_recv_wr wr = { .id = id, .sg = &sge, .n_sg = 1 };

	return flue_post_recv(ep->qp, &wr);
}

bool ep_flush(struct ep *ep)
{
	uint32_t n = ep->gathered;

	if (n == 0)
		return true;
	ep->gathered = 0;
	ep->calls++;
	ep->wr[n - 1].next = NULL;
	return flue_post_send(ep->qp, ep->wr);
}

bool ep_gather(struct ep *ep, uint32_t op, const struct ep_memory *memory, size_t offset,
	       uint32_t length, const struct ep_remote *remote, bool signal)
{
	struct flue_send_wr *wr;
	struct flue_sge *sge;

	while (ep->posted - ep->completed >= ep->sq_depth) {
		if (!ep_pull(ep, 10000))
			return false;
	}
	if (ep->gathered == EP_LIST_MAX && !ep_flush(ep))
		return false;
	wr = &ep->wr[ep->gathered];
	sge = &ep->sge[ep->gathered];
	*sge = flue_mr_sge(memory->mr, offset, length);
	*wr = (struct flue_send_wr) { .next = wr + 1, .op = op, .sg = sge, .n_sg = length > 0 };
	wr->id = ++ep->posted;
	if (remote) {
		wr->remote_addr = remote->addr;
		wr->rkey = remote->rkey;
	}
	if (signal || wr->id % ep->signal_every == 0)
		wr->flags |= FLUE_SIGNALED;
	if (op != FLUE_WR_READ && length <= ep->qp->max_inline) {
		wr->flags |= FLUE_INLINE;
		sge->addr = (uintptr_t)(memory->data + offset);
	}
	ep->gathered++;
	return true;
}

bool ep_post(struct ep *ep, uint32_t op, const struct ep_memory *memory, size_t offset,
	     uint32_t length, const struct ep_remote *remote, bool signal)
{
	return ep_gather(ep, op, memory, offset, length, remote, signal) && ep_flush(ep);
}

uint32_t ep_link(struct ep *ep)
{
	struct flue_qp_values values = FLUE_ATTR(struct flue_qp_values);

	return ep->qp->ops->query(ep->qp, &values, FLUE_QPV_LINK) ? values.link : 0;
}

/* Take what is in the CQ. *any: there was something. */
static bool take(struct ep *ep, bool *any)
{
	struct flue_wc wc[BATCH];
	uint32_t got = 0;

	if (!flue_poll(ep->cq, wc, BATCH, &got))
		return false;
	*any = got > 0;
	for (uint32_t i = 0; i < got; i++) {
		if (wc[i].status != FLUE_WC_SUCCESS) {
			if (ep->failed.status == FLUE_WC_SUCCESS)
				ep->failed = wc[i];
		} else if (wc[i].op == FLUE_WC_RECV) {
			ep->received[ep->received_tail++ % ep->rq_depth] = wc[i];
		} else {
			/* Requests of one queue complete in order: this one vouches for those before. */
			ep->completed = wc[i].id;
		}
	}
	return true;
}

static bool spin(struct ep *ep, int timeout_ms)
{
	uint64_t deadline = 0;
	bool any = false;

	for (uint64_t i = 1;; i++) {
		if (!take(ep, &any) || any)
			return any;
		/* The clock is read rarely: it would be part of the latency. */
		if (timeout_ms >= 0 && i % 4096 == 0) {
			uint64_t now = util_now_ns();

			if (deadline == 0)
				deadline = now + (uint64_t)timeout_ms * 1000000u;
			if (now >= deadline)
				break;
		}
	}
	errno = ETIMEDOUT;
	return false;
}

/* wait() returns at once if there is something, so there is no need to look first. */
static bool sleep_in_wait(struct ep *ep, int timeout_ms)
{
	bool any = false;

	while (flue_wait(ep->cq, timeout_ms)) {
		if (!take(ep, &any) || any)
			return any;
	}
	return false;
}

static bool arm(struct ep *ep)
{
	ep->armed = ep->cq->ops->notify(ep->cq, FLUE_NOTIFY_NEXT, NULL, NULL);
	return ep->armed;
}

/*
 * Ask for a notice, look once more, sleep: the order that loses no completion. Asking again comes
 * before looking, so that an empty look is always one with a notice under way.
 */
static bool sleep_in_epoll(struct ep *ep, int timeout_ms)
{
	struct epoll_event event;
	bool any = false;
	int n;

	if (!ep->armed && !arm(ep))
		return false;
	for (;;) {
		if (!take(ep, &any) || any)
			return any;
		n = epoll_wait(ep->epoll, &event, 1, timeout_ms);
		if (n <= 0) {
			errno = n == 0 ? ETIMEDOUT : errno;
			return false;
		}
		ep->cq->ops->clear_fd(ep->cq);
		if (!arm(ep))
			return false;
	}
}

bool ep_pull(struct ep *ep, int timeout_ms)
{
	bool good;

	if (ep->failed.status != FLUE_WC_SUCCESS) {
		errno = ECONNRESET;
		return false;
	}
	if (!ep_flush(ep))
		return false;
	do { /* a signal handler only sets a flag; its owner looks between two messages */
		switch (ep->wait) {
		case EP_POLL: good = spin(ep, timeout_ms); break;
		case EP_FD: good = sleep_in_epoll(ep, timeout_ms); break;
		default: good = sleep_in_wait(ep, timeout_ms); break;
		}
	} while (!good && errno == EINTR);
	if (good && ep->failed.status != FLUE_WC_SUCCESS) {
		errno = ECONNRESET;
		return false;
	}
	return good;
}

bool ep_wait_sent(struct ep *ep, uint64_t count, int timeout_ms)
{
	while (ep->completed < count) {
		if (!ep_pull(ep, timeout_ms))
			return false;
	}
	return true;
}

bool ep_recv(struct ep *ep, struct flue_wc *wc, int timeout_ms)
{
	while (ep->received_head == ep->received_tail) {
		/* A message may have come with the news that there will be no other. */
		if (!ep_pull(ep, timeout_ms) && ep->received_head == ep->received_tail)
			return false;
	}
	*wc = ep->received[ep->received_head++ % ep->rq_depth];
	return true;
}

static bool has_ended(struct ep *ep)
{
	/* The event may follow the flushed requests by a moment. */
	for (int i = 0; i < 100; i++) {
		if (__atomic_load_n(&ep->ended, __ATOMIC_ACQUIRE))
			return true;
		poll(NULL, 0, 2);
	}
	return false;
}

const char *ep_explain(struct ep *ep, char *text, size_t size)
{
	int saved = errno;
	bool fault;

	if (saved == ETIMEDOUT) {
		snprintf(text, size, "the peer did not answer in time");
	} else if (ep->failed.status == FLUE_WC_SUCCESS) {
		snprintf(text, size, "%s", strerror(saved));
	} else if (!has_ended(ep)) {
		snprintf(text, size, "a request failed: %s",
			 flue_wc_status_name(ep->failed.status));
	} else {
		fault = ep->reason == FLUE_CLOSE_TERMINATED || ep->reason == FLUE_CLOSE_FAULT;
		snprintf(text, size, "the connection ended: %s%s%s%s",
			 flue_close_reason_name(ep->reason), fault || ep->detail ? ": " : "",
			 fault ? flue_fault_name(ep->detail) : "",
			 !fault && ep->detail ? strerror((int)ep->detail) : "");
	}
	return text;
}

bool ep_ended_well(struct ep *ep)
{
	return has_ended(ep) && ep->reason == FLUE_CLOSE_GRACEFUL;
}

const char *ep_wait_name(enum ep_wait wait)
{
	static const char *const names[EP_NWAITS] = { "wait", "poll", "fd" };

	return names[wait];
}
