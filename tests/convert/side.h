/* SPDX-License-Identifier: MIT */
/* The race test: one side of a connection, in one of its two forms. */
#ifndef FLUE_TESTS_CONVERT_SIDE_H
#define FLUE_TESTS_CONVERT_SIDE_H

#include <flue/flue.h>
#include <pthread.h>

#include "plan.h"

#define WAIT_MS 30000

/* Buffers of a worker, used again for each connection. */
struct box {
	uint8_t in[MESSAGES + 1][MESSAGE_MAX];
	uint8_t out[MESSAGES + 1][MESSAGE_MAX];
	uint8_t window[WINDOW];
	uint8_t scratch[2][WINDOW];
	uint8_t stream[STREAM_MAX];
	uint8_t excess[FLUE_SWITCH_EARLY_MAX];
};

/* What the peer said in its first message. */
struct hello {
	uint64_t addr;
	uint32_t rkey, length;
};

#define EVENTS 64

/* Counts and, for sockets that tell by calls, the queue. */
struct heard {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct flue_socket_event queue[EVENTS];
	uint32_t n, taken;
	uint32_t ended, reason, detail; /* queue pairs: DISCONNECTED */
};

struct side {
	const struct plan *plan;
	const struct half *me, *peer;
	int which;
	struct tally *tally;
	uint32_t worker;
	uint64_t random;
	struct box *box;
	const struct form *form;
	int fd; /* while it is the program's */

	/* of the worker */
	struct flue_adapter *adapter;
	struct flue_pd *pd;
	struct flue_cq *cq;
	struct flue_mr *mr;

	/* of the connection */
	struct flue_qp *qp;
	struct flue_socket *socket;
	struct flue_mr *stag;
	struct heard heard;
	size_t early_len;
	uint32_t sent, received; /* messages done in RDMA mode */
	uint32_t done;           /* put() and get() done */
	uint32_t stream_sent;    /* socket: answered requests */
	bool switched;
};

/* Each returns false after side_fail(). */
struct form {
	bool (*open)(struct side *s);
	/* Streaming mode: exactly this; receives up to `room`, but at least 1. */
	bool (*stream_send)(struct side *s, const uint8_t *data, size_t length);
	ssize_t (*stream_recv)(struct side *s, uint8_t *data, size_t room);
	/* All receives are posted and the connection is in RDMA mode. */
	bool (*convert)(struct side *s);
	bool (*send)(struct side *s, uint32_t message, uint32_t length);
	/* Until s->sent, s->received and s->done are at least that. */
	bool (*await)(struct side *s, uint32_t sent, uint32_t received, uint32_t done);
	/* scratch[0] to the peer, and back into scratch[1] */
	bool (*reach)(struct side *s, const struct hello *there);
	bool (*disconnect)(struct side *s);
	bool (*await_end)(struct side *s);
	void (*destroy)(struct side *s);
	struct hello (*window)(struct side *s);
};

extern const struct form side_qp_form, side_socket_form;

/* drive.c */
bool side_fail(struct side *s, const char *what);
void side_step(struct side *s, uint32_t step);
void side_pause(struct side *s);
struct flue_switch_attr side_switch_attr(struct side *s);
/* Runs a connection over s->fd. */
bool side_run(struct side *s);

/* side_qp.c, also for control clients */
bool qp_make(struct side *s);
bool qp_post_recvs(struct side *s);
bool qp_send(struct side *s, uint32_t message, uint32_t length);
bool qp_await(struct side *s, uint32_t sent, uint32_t received, uint32_t done);
bool qp_reach(struct side *s, const struct hello *there);
struct hello qp_window(struct side *s);
bool plain_send(struct side *s, const uint8_t *data, size_t length);
ssize_t plain_recv(struct side *s, uint8_t *data, size_t room);

#endif
