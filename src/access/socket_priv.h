/* SPDX-License-Identifier: MIT */
/*
 * RDMA sockets: streams that become RDMA connections (CH-5 to CH-16, CH-27, CH-28). A client of the
 * access layer's own objects; the one thing it needs besides is acc_conn_adopt().
 *
 *   socket.c         life, states, the switch
 *   socket_event.c   events: order, queue, callbacks
 *   socket_stream.c  streaming mode, and waiting until TCP has everything
 *   socket_rdma.c    RDMA mode: requests, local keys, completions
 *   socket_stag.c    keys of the program
 *   socket_gang.c    many switches in one call
 *   socket_offload.c what only control clients may ask
 *   socket_share.c   reserving: protection domains, shared completion queues
 *
 * Locks: acc_socket.lock is outside all locks of the objects it uses, and is not held while one of
 * them is destroyed or a user's function runs. Up-calls of the queue pair and completions take it.
 */
#ifndef FLUE_ACCESS_SOCKET_PRIV_H
#define FLUE_ACCESS_SOCKET_PRIV_H

#include "access/access_priv.h"
#include "access/socket_fsm.h"
#include "access/task.h"

#define SOCKET_STREAM_MAX 64 /* streaming requests under way */

/* A registration of Flue's own for plain buffers of the program (CH-28). */
struct sock_key {
	SLIST_ENTRY(sock_key) link;
	struct flue_mr *mr;
	struct prov_keys keys; /* as requests have made them */
	bool valid;
	struct prov_keys keys_were; /* before the last ones, should they not be posted */
	bool valid_was;
};
SLIST_HEAD(sock_keys, sock_key);

/* A request of the program, and then its event. */
struct sock_req {
	TAILQ_ENTRY(sock_req) link;
	struct flue_socket_event ev;
	char *data;    /* streaming only */
	size_t length; /* of all pieces */
	/* RDMA mode: pieces, and Flue's own key of each that needs one. In acc_socket's stores. */
	struct flue_sge *sg;
	struct sock_key **keys;
	uint32_t n_sg;
	bool streaming; /* on the heap; others are the socket's */
	bool receive;
	bool posted; /* in acc_socket.posted: the queue pair has it */
};
TAILQ_HEAD(sock_reqs, sock_req);

/* A protection domain that sockets may share. */
struct sock_pd {
	struct flue_pd *pd;
	atomic_uint users;
};

/* A completion queue that some sockets share (CH-5). */
struct sock_cq {
	TAILQ_ENTRY(sock_cq) link;
	struct flue_cq *cq;
	uint32_t users;
	uint32_t promised; /* completions that its users may have outstanding */
};

/* What was asked of switch_mode(), kept until the transfer. */
struct sock_switch {
	struct prov_stream stream;
	struct flue_conn_attr attr;
	void *octets; /* early ones and private data, which the two point to */
};

struct acc_socket {
	struct flue_socket pub;
	struct acc_adapter *a;
	flue_socket_event_fn fn;
	void *arg;
	struct acc_task task;

	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool doomed;    /* being destroyed: nothing is told any more */
	bool owns_fd;   /* from the switch on, until the provider does */
	uint64_t which; /* socket that pub.fd stands for */
	bool adopted;   /* the provider has the stream, or had it */
	bool given_up;  /* ... and what becomes of the transfer is of no interest any more */
	bool ending;    /* end_offload() was called */
	bool closing;   /* disconnect() was called */
	bool over;      /* the connection has ended; ENDED comes when everything is answered */
	bool ended;     /* ENDED was queued: no call is taken any more */

	/* streaming */
	struct sock_reqs sends, recvs;
	uint32_t n_streaming;
	uint64_t drain_wait_ns;
	/* When whatever is waited for is late: acknowledgements, the provider's word on the switch
	 * or on the close, the last completions. */
	uint64_t deadline;

	/* reservation */
	struct sock_pd *pd;
	struct sock_cq *cq;
	uint32_t promised; /* our share of it */
	bool own_qp;       /* else a control client's */
	bool no_read, no_write;
	uint32_t want_ird, want_ord;
	bool wished;           /* ... were said; 0 is none then */
	bool rewished;         /* ... too late for the agreement: to be changed after it */
	struct sock_req *reqs; /* for RDMA mode */
	struct flue_sge *sg_store;
	struct sock_key **sg_keys;
	struct flue_send_wr *front; /* scratch, for requests in front of the program's */
	struct sock_key *key_store;
	uint32_t n_keys;
	struct sock_keys send_keys, recv_keys;
	struct sock_reqs free_sends, free_recvs;
	TAILQ_HEAD(, sock_stag) stags;

	struct sock_switch sw;

	/* RDMA mode */
	struct sock_reqs posted;
	uint32_t gets; /* of these */

	/* events */
	struct sock_reqs events;
	struct sock_reqs held; /* completions that came before SWITCHED */
	struct sock_req switched, end;
	bool delivering;
	struct flag flag; /* shows that there are events, once somebody asked */
};

/* A key that the program tracks. */
struct sock_stag {
	TAILQ_ENTRY(sock_stag) link;
	struct flue_mr *mr;
};

static inline struct acc_socket *to_socket(struct flue_socket *s)
{
	return (struct acc_socket *)s;
}

/* ---- socket.c ---- */

/* Lock held: 0, -EBADFD: not in this state, -ENOTCONN: it has ended. */
int sock_check(struct acc_socket *s, enum socket_call call);
/* Lock held: steps both machines; returns the actions (SOCKET_*). */
uint32_t sock_step(struct acc_socket *s, enum offload_event e);
/* Lock held: hand the stream over as soon as everything is acknowledged. Drops the lock for that. */
void sock_try_transfer(struct acc_socket *s);
/* The queue pair's events (flue_event_fn). */
void sock_heard(const struct flue_event *ev, void *arg);
/* Lock held: a stream that nobody has taken over ends with a reset. */
void sock_drop_stream(struct acc_socket *s);
/* Lock held: the connection ended. */
void sock_over(struct acc_socket *s, uint32_t reason, uint32_t detail);
/* Lock held, dropped for a moment: the queue pair is reset and flushed. */
void sock_abort(struct acc_socket *s);
/* Lock held: the transfer failed with an errno. */
void sock_transfer_failed(struct acc_socket *s, int err);

/* ---- socket_event.c ---- */

/* Lock held: the request is answered. */
void sock_answer(struct acc_socket *s, struct sock_req *r);
/* Lock held: the switch request is answered, before anything that came in RDMA mode. */
void sock_answer_switch(struct acc_socket *s, int error);
/* Lock held: ENDED, if the connection is over and nothing is outstanding. */
void sock_tell_end(struct acc_socket *s);
/* No lock held. `here`: this thread may run the program's function. */
void sock_deliver(struct acc_socket *s, bool here);
bool sock_get_event(struct flue_socket *pub, struct flue_socket_event *ev, size_t size,
		    int timeout_ms);
int sock_event_fd(struct flue_socket *pub);
void sock_events_fini(struct acc_socket *s);

/* ---- socket_stream.c ---- */

bool sock_send(struct flue_socket *pub, const void *data, size_t length, uint64_t id);
bool sock_recv(struct flue_socket *pub, void *data, size_t length, uint64_t id);
/* The task: moves what waits. */
void sock_progress(struct acc_task *t);
/* Lock held: receives that wait are answered with 0 octets. */
void sock_flush_recvs(struct acc_socket *s, struct sock_reqs *list, int error);
/* Lock held: has the peer's TCP everything? Then the provider may adopt sw.stream with sw.attr, which
 * is done without the lock. Else it is tried again, or has failed. */
bool sock_ready_to_hand_over(struct acc_socket *s);
/* Lock held: what adopting it came to. */
void sock_handed_over(struct acc_socket *s, int rc);
/* Lock held: look again in so many ms, and give up if it is not over by then. */
void sock_await(struct acc_socket *s, int ms);
/* Lock held: ask for the next run of the task. */
void sock_ask(struct acc_socket *s);

/* ---- socket_rdma.c ---- */

bool sock_rdma_recv(struct flue_socket *pub, void *data, size_t length, uint64_t id);
bool sock_rdma_send(struct flue_socket *pub, const void *data, size_t length, uint32_t flags,
		    uint32_t inv_key, uint64_t id);
bool sock_put(struct flue_socket *pub, const void *data, size_t length, uint64_t remote_addr,
	      uint32_t rkey, uint32_t flags, uint64_t id);
bool sock_get(struct flue_socket *pub, void *data, size_t length, uint64_t remote_addr,
	      uint32_t rkey, uint32_t flags, uint64_t id);
/* No lock held. The first one begins the transfer; with `ready` the caller hands the stream over, if it
 * becomes true. */
int sock_post_recv(struct acc_socket *s, const struct flue_piece *list, uint32_t n, uint64_t id,
		   bool *ready);
bool sock_rdma_recv_list(struct flue_socket *pub, const struct flue_piece *list, uint32_t n,
			 uint64_t id);
bool sock_rdma_send_list(struct flue_socket *pub, const struct flue_piece *list, uint32_t n,
			 uint32_t flags, uint32_t inv_key, uint64_t id);
bool sock_put_list(struct flue_socket *pub, const struct flue_piece *list, uint32_t n,
		   uint64_t remote_addr, uint32_t rkey, uint32_t flags, uint64_t id);
bool sock_get_list(struct flue_socket *pub, const struct flue_piece *list, uint32_t n,
		   uint64_t remote_addr, uint32_t rkey, uint32_t flags, uint64_t id);
/* Lock held: answers what the queue pair still has, in its place. */
void sock_cancel_posted(struct acc_socket *s);
/* Of the shared completion queues. */
void sock_completion(struct flue_cq *cq, const struct flue_wc *wc, void *arg);

/* ---- socket_stag.c ---- */

struct flue_mr *sock_alloc_stag(struct flue_socket *pub);
bool sock_map(struct flue_socket *pub, struct flue_mr *mr, void *data, size_t length,
	      uint32_t access);
bool sock_free_stag(struct flue_socket *pub, struct flue_mr *mr);
void sock_stags_fini(struct acc_socket *s);

/* ---- socket_offload.c ---- */

bool sock_query_offload(struct flue_socket *pub, struct flue_offload_info *info);
bool sock_end_offload(struct flue_socket *pub, bool early);

/* ---- socket_share.c ---- */

bool sock_reserve(struct flue_socket *pub, struct flue_reserve_attr *attr);
/* Gives back queue pair, keys, completion queue; no lock held. */
void sock_unreserve(struct acc_socket *s);
/* No lock held: the control client's queue pair is the program's alone again. */
void sock_leave_qp(struct acc_socket *s, struct flue_qp *pub);
/* No lock held: the socket's protection domain, made on first need. -ENOMEM, -EINVAL. */
int sock_need_pd(struct acc_socket *s, struct acc_socket *related);
void sock_drop_pd(struct acc_socket *s);

#endif
