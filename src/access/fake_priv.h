/* SPDX-License-Identifier: MIT */
/*
 * A provider for the unit tests of this folder, not part of the library. It moves no data: the
 * test sets what each slot answers, looks at what the slot was given, and makes the up-calls.
 */
#ifndef FLUE_ACCESS_FAKE_PRIV_H
#define FLUE_ACCESS_FAKE_PRIV_H

#include "access/access_priv.h"

#define FAKE_RING 512
#define FAKE_LOG  256
#define FAKE_PORT 0x1234 /* as it stands in the address */
/* An rkey has this bit, an lkey has not: who takes one for the other is stopped at the next post. */
#define FAKE_RKEY     0x80000000u
#define FAKE_ADAPTERS 2
/* Octets of private data, all different. */
#define FAKE_REQUEST 100
#define FAKE_REPLY   90
#define FAKE_REJECT  80
#define FAKE_REV1    120
#define FAKE_MOST    130

/* A call that must fail, and its errno. The test includes cmocka.h. */
#define assert_fails(call, error)               \
	do {                                    \
		errno = 0;                      \
		assert_false(call);             \
		assert_int_equal(errno, error); \
	} while (0)

struct prov_adapter {
	char name[32];
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

/* A posted request, as far as tests look at it. */
struct fake_wr {
	uint64_t id;
	uint32_t op, flags, rkey,
		lkey; /* lkey: of the first element, or the new key's last octet */
	uint32_t n_sg;
	struct flue_sge sg[4]; /* as many as f_query() promises */
};

struct prov_qp {
	struct prov_qp_attr attr;
	struct flue_conn_attr conn; /* of the last connect, accept or adopt; pointers are stale */
	struct prov_stream stream;  /* of the last adopt; the same */
	struct prov_request *accepted;
	int disconnect_ms;
	struct flue_qp_values values; /* of the last modify_qp, and which */
	uint32_t mask;
	/* What was posted, in order; the ends of both count on. */
	struct fake_wr sends[FAKE_LOG], recvs[FAKE_LOG];
	atomic_uint n_sends, n_recvs;
	uint32_t done_sends, done_recvs;
	bool has_stream; /* adopted; closed with the QP */
};

struct prov_mr {
	struct prov_mr_attr attr;
};

struct fake {
	/* Answers; 0 after fake_reset(). */
	struct {
		int open, handler, pd, destroy_pd, mr, modify_mr, deregister_mr, mw, destroy_mw, cq,
			resize_cq, destroy_cq, poll, arm, wait, srq, destroy_srq, arm_srq, post_srq,
			modify_srq, query_srq, bind_mw, qp, destroy_qp, reset_qp, post_send,
			post_recv, connect, start, disconnect, abort, listen, destroy_listener,
			accept, reject, adopt, terminate, modify_qp, query_qp, gang, ah, destroy_ah,
			group;
	} rc;
	struct flue_qp_values info;         /* what query_qp says */
	struct flue_ah_attr paths[2];       /* and of these, if it is asked */
	struct flue_ah_attr path, alt_path; /* what modify_qp was given last */
	int qp_from;       /* not 0: create_qp fails from this call on (1: the first) */
	uint32_t qp_most;  /* not 0: create_qp fails for longer queues */
	bool no_adopt;     /* the provider cannot adopt streams */
	bool no_gang;      /* ... many at once */
	uint32_t features; /* the provider has these, too */
	uint32_t gang_bad; /* not 0: the how manieth of a gang is refused */
	bool later;        /* control slots answer from another thread */
	bool silent;       /* control slots do not answer before fake_speak() */
	struct prov_op *unanswered[FAKE_LOG];
	uint32_t n_unanswered;
	bool arm_is_late; /* arm() answers 1 once: completions wait */
	/* Called from inside the slot, with the last QP. */
	void (*on_connect)(struct prov_qp *qp);
	void (*on_abort)(struct prov_qp *qp);
	void (*on_adopt)(struct prov_qp *qp);
	void (*on_send)(struct prov_qp *qp);
	void (*on_new_qp)(void);
	void (*on_modify)(void);
	uint32_t mrs_left; /* not 0: so many regions may be made, less one */
	/* What the last call was given or made. */
	struct prov_adapter *adapter;
	struct prov_cq *cq;
	struct prov_qp *qp;
	struct prov_mr_attr mr;
	struct prov_listen_attr listen;
	struct flue_ah_attr ah;
	void *srq_owner;
	uint32_t srq_limit, key, made_handlers;
	struct flue_srq_values srq; /* of the last modify_srq, and what query_srq says */
	uint32_t srq_mask;
	struct flue_send_wr bind; /* of the last bind_mw */
	uint32_t mw_type, what;   /* of the last create_mw and modify_mr */
	unsigned opens, closes, aborts, starts, accepts, rejects, resets;
	/* What was made and what is left of it; adopt_stream may be called by any thread. */
	unsigned made_pds, made_cqs, made_qps, made_mrs, resizes, modifies;
	int pds, cqs, qps, mrs;
	atomic_uint adopts;
	uint32_t gangs[8], n_gangs; /* sizes of the last ones */
	char order[FAKE_LOG];       /* of these: q(p made), c(q made), r(esized), n(o qp), f(ull) */
	uint32_t n_order;
	size_t reject_len;
	struct {
		prov_completion_fn fn;
		void *arg;
		int cpu;
	} handlers[64];
};

extern struct fake fake;

void fake_reset(void);
/* The answers to all that is unanswered come, all the same. */
void fake_speak(int rc);
/* Opens an adapter on the fake; cpus NULL: processor 0 only. */
struct flue_adapter *fake_open(const int *cpus, uint32_t n);
/* A queue pair on new PD and CQ, and its end. */
struct flue_qp *fake_qp(struct flue_adapter *a, flue_event_fn fn, void *arg);
void fake_destroy_qp(struct flue_qp *qp);
/* Puts a completion into the CQ; calls its handler if it is armed for that. */
void fake_complete(struct flue_cq *cq, struct flue_qp *qp, uint64_t id, bool solicited);
/* The same with any status; `wc` has qp and id. */
void fake_complete_wc(struct flue_cq *cq, const struct flue_wc *wc);
/* The provider's up-call for a QP. */
void fake_news(struct flue_qp *qp, uint32_t type, uint32_t reason, uint32_t detail);
/* The same, with private data. */
void fake_news_with(struct flue_qp *qp, uint32_t type, uint32_t detail, const void *data,
		    size_t length);
int fake_request(struct flue_listener *l, const void *data, size_t length, uint32_t revision);
/* Completes the oldest request; for sends those before it, too, if they are signaled or failed. */
void fake_finish_recv(struct flue_qp *qp, uint32_t status, uint32_t length);
void fake_finish_send(struct flue_qp *qp, uint32_t status);
/* Flushes all that was posted. Fits on_abort. */
void fake_flush(struct prov_qp *qp);
/* Drives a new RDMA socket into a state of its connection, with defaults. */
bool fake_socket_to(struct flue_socket *s, uint32_t offload_state);
/* Two ends of a TCP connection over loopback. */
void fake_streams(int fd[2]);
/* An address to connect to or listen on. */
const struct sockaddr *fake_address(void);

#endif
