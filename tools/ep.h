/* SPDX-License-Identifier: MIT */
/*
 * One end of a connection as the tool uses it: a queue pair with one completion queue, and one of three
 * ways to wait for it. Not thread-safe; one thread owns an ep.
 *
 * Send requests are mostly unsignaled; `posted` and `completed` count them. Receive completions
 * wait in a queue until ep_recv() takes them, so a caller that waits for room in the send queue loses
 * none. Requests can be gathered and posted as one list; who waits posts what is gathered first.
 */
#ifndef FLUE_TOOLS_EP_H
#define FLUE_TOOLS_EP_H

#include <flue/flue.h>

#define EP_LIST_MAX 64

enum ep_wait {
	EP_WAIT, /* sleep in cq->ops->wait */
	EP_POLL, /* spin on cq->ops->poll */
	EP_FD,   /* epoll on the completion file */
	EP_NWAITS,
};

struct ep_attr {
	struct flue_adapter *adapter; /* borrowed */
	enum ep_wait wait;
	uint32_t sq_depth, rq_depth;
};

struct ep {
	struct flue_adapter *adapter;
	struct flue_pd *pd;
	struct flue_cq *cq;
	struct flue_qp *qp;
	enum ep_wait wait;
	int epoll;
	bool armed; /* EP_FD: a notice was asked for */
	uint32_t sq_depth, signal_every;
	uint64_t posted, completed; /* send requests, ever; those gathered count as posted */
	struct flue_send_wr wr[EP_LIST_MAX]; /* gathered */
	struct flue_sge sge[EP_LIST_MAX];
	uint32_t gathered;
	uint64_t calls;           /* that posted them */
	struct flue_wc *received; /* ring of rq_depth */
	uint32_t rq_depth;
	uint64_t received_head, received_tail;
	struct flue_wc failed; /* first completion that was no success */
	/* Written by the library's thread: */
	uint32_t ended; /* atomic: the connection is over; reason and detail are valid */
	uint32_t reason, detail;
};

/* Memory with its registration. */
struct ep_memory {
	uint8_t *data;
	size_t length;
	struct flue_mr *mr;
};

/* A remote place. */
struct ep_remote {
	uint64_t addr;
	uint32_t rkey;
};

/* All that return bool: false + errno, no message. */
bool ep_open(struct ep *ep, const struct ep_attr *attr);
void ep_close(struct ep *ep); /* also after a failed ep_open; aborts a live connection */

bool ep_memory_open(struct ep *ep, struct ep_memory *memory, size_t length, uint32_t access);
void ep_memory_close(struct ep_memory *memory);

bool ep_post_recv(struct ep *ep, const struct ep_memory *memory, size_t offset, uint32_t length,
		  uint64_t id);
/* op: enum flue_wr_op. Waits while the send queue is full. `signal`: must be signaled. Short Sends and
 * Writes go inline. */
bool ep_post(struct ep *ep, uint32_t op, const struct ep_memory *memory, size_t offset,
	     uint32_t length, const struct ep_remote *remote, bool signal);

/* The same, but posted only with the next ep_post() or ep_flush(), before the next wait, or when there are
 * EP_LIST_MAX: in one call. */
bool ep_gather(struct ep *ep, uint32_t op, const struct ep_memory *memory, size_t offset,
	       uint32_t length, const struct ep_remote *remote, bool signal);
bool ep_flush(struct ep *ep);

/* Which way the connection goes: enum flue_link; 0: it cannot be told. */
uint32_t ep_link(struct ep *ep);

/* Wait for at least one completion, of either kind, and take note of it. Signals do not
 * interrupt it. ETIMEDOUT, ECONNRESET: a request failed or was flushed, see ep_explain(). */
bool ep_pull(struct ep *ep, int timeout_ms);
/* Until send request number `count` (from 1) is complete; a signaled one must be at or behind it. */
bool ep_wait_sent(struct ep *ep, uint64_t count, int timeout_ms);
/* The next received message. */
bool ep_recv(struct ep *ep, struct flue_wc *wc, int timeout_ms);

/* Why the last call failed, in words; uses errno. Never NULL. */
const char *ep_explain(struct ep *ep, char *text, size_t size);

/* Both sides closed in order. */
bool ep_ended_well(struct ep *ep);

const char *ep_wait_name(enum ep_wait wait);

#endif
