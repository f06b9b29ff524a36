/* SPDX-License-Identifier: MIT */
/*
 * A provider for the unit tests of this folder, not part of the library. It moves no data: the
 * test sets what each slot answers, looks at what the slot was given, and makes the up-calls.
 */
#ifndef FLUE_ACCESS_FAKE_PRIV_H
#define FLUE_ACCESS_FAKE_PRIV_H

#include "access/access_priv.h"

#define FAKE_RING 64
#define FAKE_PORT 0x1234 /* as it stands in the address */

/* A call that must fail, and its errno. The test includes cmocka.h. */
#define assert_fails(call, error)               \
	do {                                    \
		errno = 0;                      \
		assert_false(call);             \
		assert_int_equal(errno, error); \
	} while (0)

struct prov_adapter {
	const struct prov_upcalls *up;
	int cpus[16];
	uint32_t n_cpus;
};

struct prov_cq {
	struct prov_cq_attr attr;
	struct flue_wc ring[FAKE_RING];
	atomic_uint head, tail;
	uint32_t depth;
	int armed; /* 0, or kind + 1 */
	unsigned arms, polls;
};

struct prov_qp {
	struct prov_qp_attr attr;
	struct flue_conn_attr conn; /* of the last connect or accept; pointers in it are stale */
	struct prov_request *accepted;
	int disconnect_ms;
};

struct prov_mr {
	struct prov_mr_attr attr;
};

struct fake {
	/* Answers; 0 after fake_reset(). */
	struct {
		int open, handler, pd, destroy_pd, mr, modify_mr, deregister_mr, mw, destroy_mw, cq,
			resize_cq, destroy_cq, poll, arm, wait, srq, destroy_srq, arm_srq, post_srq,
			qp, destroy_qp, reset_qp, post_send, post_recv, connect, start, disconnect,
			abort, listen, destroy_listener, accept, reject;
	} rc;
	bool later;       /* control slots answer from another thread */
	bool arm_is_late; /* arm() answers 1 once: completions wait */
	/* Called from inside the slot, with the last QP. */
	void (*on_connect)(struct prov_qp *qp);
	void (*on_abort)(struct prov_qp *qp);
	/* What the last call was given or made. */
	struct prov_adapter *adapter;
	struct prov_cq *cq;
	struct prov_qp *qp;
	struct prov_mr_attr mr;
	struct prov_listen_attr listen;
	void *srq_owner;
	uint32_t srq_limit, key, made_handlers;
	unsigned opens, closes, aborts, starts, accepts, rejects;
	size_t reject_len;
	struct {
		prov_completion_fn fn;
		void *arg;
		int cpu;
	} handlers[64];
};

extern struct fake fake;

void fake_reset(void);
/* Opens an adapter on the fake; cpus NULL: processor 0 only. */
struct flue_adapter *fake_open(const int *cpus, uint32_t n);
/* A queue pair on new PD and CQ, and its end. */
struct flue_qp *fake_qp(struct flue_adapter *a, flue_event_fn fn, void *arg);
void fake_destroy_qp(struct flue_qp *qp);
/* Puts a completion into the CQ; calls its handler if it is armed for that. */
void fake_complete(struct flue_cq *cq, struct flue_qp *qp, uint64_t id, bool solicited);
/* The provider's up-call for a QP. */
void fake_news(struct flue_qp *qp, uint32_t type, uint32_t reason, uint32_t detail);
/* The same, with private data. */
void fake_news_with(struct flue_qp *qp, uint32_t type, uint32_t detail, const void *data,
		    size_t length);
int fake_request(struct flue_listener *l, const void *data, size_t length, uint32_t revision);
/* An address to connect to or listen on. */
const struct sockaddr *fake_address(void);

#endif
