/* SPDX-License-Identifier: MIT */
/*
 * The common fixture: two sides, each with an adapter, PD, CQs, memory and a QP, connected over
 * loopback. For any test or program: it needs no test framework, and failures are returned as the
 * API does (false and errno), so that nth-failure loops can use it too.
 *
 *	struct pair_options o = PAIR_DEFAULTS;
 *	struct pair p;
 *
 *	if (!pair_open(&p, &o))
 *		...
 *	pair_recv(&p.b, 0, 100, 1);
 *	pair_send(&p.a, 0, 100, 2, FLUE_SIGNALED);
 *	pair_take(p.b.recv_cq, &wc, 1, 1000);
 *	pair_close(&p);
 */
#ifndef FLUE_TESTS_PAIR_H
#define FLUE_TESTS_PAIR_H

#include <flue/flue.h>

#include "conf/column.h"

#define PAIR_ALL_ACCESS \
	(FLUE_LOCAL_WRITE | FLUE_REMOTE_WRITE | FLUE_REMOTE_READ | FLUE_REMOTE_INVALIDATE)

struct pair_options {
	const char *provider; /* NULL: pair_provider */
	bool one_adapter;     /* both sides on the same adapter */
	bool ipv6;
	bool one_cq; /* a side's sends and receives complete in one CQ */
	const int *cpus;
	uint32_t n_cpus;
	uint32_t cq_depth, sq_depth, rq_depth, sge, max_inline, qp_flags;
	uint32_t srq_depth; /* not 0: receives come from an SRQ */
	size_t memory;      /* octets for each side */
	uint32_t access;    /* of the memory */
	/* CQ with a handler, for each side [0] = a, [1] = b; NULL: to be polled. */
	flue_completion_fn on_completion[2];
	void *completion_arg[2];
	int cpu_plus_1[2];
	flue_event_fn on_event; /* of both QPs */
	void *event_arg;
	/* Connection: flags and private data of connect() [0] and accept() [1]. */
	uint32_t conn_flags[2];
	const void *private_data[2];
	size_t private_len[2];
	uint32_t ird, ord;
	uint32_t fpdu_max;
	int timeout_ms;
};

#define PAIR_DEFAULTS                                                                        \
	{                                                                                    \
		.cq_depth = 256, .sq_depth = 64, .rq_depth = 64, .sge = 4, .max_inline = 64, \
		.memory = 1 << 20, .access = PAIR_ALL_ACCESS                                 \
	}

/* One side. `a` is the initiator, `b` the responder. */
struct pair_side {
	struct flue_adapter *adapter;
	struct flue_pd *pd;
	struct flue_cq *send_cq, *recv_cq; /* the same with one_cq */
	struct flue_srq *srq;
	struct flue_qp *qp;
	struct flue_mr *mr;
	uint8_t *mem;
};

struct pair {
	struct pair_options options;
	struct pair_side a, b;
	struct flue_listener *listener;
};

/* The provider for options that name none; "soft" unless a program changes it. */
extern const char *pair_provider;

/* Connections are of full service; false unless a program changes it. */
extern bool pair_full;
/* ... and may go through memory; false unless a program changes it. */
extern bool pair_local;
/* ... without process_vm_*(). */
extern bool pair_denied;
/* ... and both sides are on one engine of one adapter, whose event queue they share: pair_event() finds what is for whom. */
extern bool pair_self;
/* Sets these; before there are threads. */
void pair_use(enum column c);
/* Events of one side that came while the other was asked for. */
uint32_t pair_kept(void);

/* Everything, connected. On failure nothing is left behind. */
bool pair_open(struct pair *p, const struct pair_options *o);
/* Everything but the connection: two Idle QPs and a listener. */
bool pair_make(struct pair *p, const struct pair_options *o);
/* Connects a.qp to b.qp; for QPs that are Idle (again). False: errno of the initiator. */
bool pair_connect(struct pair *p);
/* The same for other QPs of the same sides. */
bool pair_connect_qps(struct pair *p, struct flue_qp *a, struct flue_qp *b);
/* Destroys whatever there is. False if something refused; the rest is then still there. */
bool pair_close(struct pair *p);

/* A second QP of a side, like the first one. */
struct flue_qp *pair_new_qp(struct pair *p, struct pair_side *side);
/* Attributes for a connect() to the pair's listener. */
struct flue_conn_attr pair_conn_attr(const struct pair *p, uint32_t flags);
/* Adapter, PD and CQs only, and their end; for tests that make their own objects. */
bool pair_side_open(struct pair_side *side, const struct pair_options *o, int which);
bool pair_side_close(struct pair_side *side);

/* Post one request on memory [offset, offset + length) of the side. */
bool pair_recv(struct pair_side *s, size_t offset, uint32_t length, uint64_t id);
bool pair_send(struct pair_side *s, size_t offset, uint32_t length, uint64_t id, uint32_t flags);
/* To or from the peer's memory at `remote`. */
bool pair_write(struct pair_side *s, size_t offset, uint32_t length, struct pair_side *peer,
		size_t remote, uint64_t id, uint32_t flags);
bool pair_read(struct pair_side *s, size_t offset, uint32_t length, struct pair_side *peer,
	       size_t remote, uint64_t id, uint32_t flags);

/* Takes n completions, waiting up to timeout_ms for all of them. Returns how many came. */
uint32_t pair_take(struct flue_cq *cq, struct flue_wc *wc, uint32_t n, int timeout_ms);
/* Takes one and checks its id and status; says what is wrong on stderr. */
bool pair_expect(struct flue_cq *cq, uint64_t id, uint32_t status);
/* The next event of the side's adapter is of this type and for `object` (NULL: any). With pair_full what only full service tells is
 * passed over, unless it is wanted. */
bool pair_event(struct pair_side *s, uint32_t type, const void *object, struct flue_event *ev,
		int timeout_ms);
/* Waits until the QP is in the state. */
bool pair_wait_state(const struct flue_qp *qp, uint32_t state, int timeout_ms);

/* Octets that depend on seed and place, and their check: index of the first wrong one, or n. */
void pair_fill(uint8_t *at, size_t n, uint32_t seed);
size_t pair_check(const uint8_t *at, size_t n, uint32_t seed);

uint64_t pair_now_ms(void);

#endif
