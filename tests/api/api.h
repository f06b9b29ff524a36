/* SPDX-License-Identifier: MIT */
/*
 * A random program against the public API, and its judge.
 *
 *   api [--seed N] [--seconds N] [--kinds LIST] [--without LIST] [--verbose]
 *
 * Eight threads pick one operation after the other, at random, on objects that all of them share:
 *
 *   house   an adapter with protection domains, completion queues, shared receive queues,
 *           listeners and regions                                         (house*.c, memory.c)
 *   link    two queue pairs, connected in one of several ways              (link*.c, dial.c)
 *   pipe    two RDMA sockets around a TCP connection                       (pipe*.c)
 *
 * They post, poll, wait, ask for notices, take events, register, bind, end connections in each
 * way, destroy and make anew, while the others go on: whatever flue(7) allows. What it forbids is
 * one thing, to destroy an object that another thread still uses; so each object has a count of
 * users (struct slot) and is destroyed by a thread that found it 0, never earlier or later.
 * In between come (kinds, all of them unless told otherwise; a sanitizer that cannot follow one is
 * said so and runs without):
 *
 *   fork     children try what they inherited (ENODEV), then open an adapter of their own
 *   signal   handlers run in the middle of calls, with and without SA_RESTART
 *   cancel   threads end by pthread_cancel() inside calls, and others take their places
 *   stack    threads with 16 to 24 KiB of stack do the same operations
 *   limit    for moments there are no descriptors, and memory must not be locked at all
 *   odd      arguments that make no sense
 *   close    only if asked for by name: the program closes descriptors of the library
 *
 * The judge. Every request has a record (struct rec) and is completed exactly once, and with
 * success unless somebody had said before that the connection may end ("spoilt"). What
 * arrives is a function of connection and place, and is compared. Every connection has one end.
 * Nothing sleeps longer than a minute. After each round (all destroyed, every few seconds) the
 * process has as many descriptors, threads and as much memory as before.
 *
 * The same seed gives every thread the same plan; what comes of it depends on the scheduler. At a
 * failure the seed and the last steps of every thread are told, and with FLUE_API_STOP in the
 * environment the process stops there, for a debugger. Exit status 0 or 1.
 */
#ifndef FLUE_TESTS_API_H
#define FLUE_TESTS_API_H

#include <errno.h>
#include <flue/flue.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#define UNDER_ASAN 1
#elif defined(__SANITIZE_THREAD__)
#define UNDER_TSAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define UNDER_ASAN 1
#elif __has_feature(thread_sanitizer)
#define UNDER_TSAN 1
#endif
#endif
#ifndef UNDER_ASAN
#define UNDER_ASAN 0
#endif
#ifndef UNDER_TSAN
#define UNDER_TSAN 0
#endif
#define SANITIZED (UNDER_ASAN || UNDER_TSAN)

enum kind {
	KIND_FORK = 1 << 0,
	KIND_SIGNAL = 1 << 1,
	KIND_CANCEL = 1 << 2,
	KIND_STACK = 1 << 3,
	KIND_LIMIT = 1 << 4,
	KIND_ODD = 1 << 5,
	KIND_CLOSE = 1 << 6,
};

#define THREADS     8
#define MAX_ACTORS  (THREADS * 2 + 1)
#define HOUSES      3
#define PDS         2
#define CQS         4
#define SRQS        2
#define LISTENERS   2
#define REGIONS     3
#define LINKS       10
#define PIPES       4
#define NSEND       16
#define NRECV       16
#define NTARGET     8
#define MESSAGE     (16 * 1024) /* longest */
#define LIBRARY     (32 * 1024) /* what the peer may read */
#define PATIENCE_MS 60000       /* longer than a child may take */

/* ---- actor.c: threads, their plans, and what they were doing ---- */

struct step {
	const char *what;
	int result;
};

struct undo {
	void (*fn)(void *arg);
	void *arg;
};

/* A thread of the program. */
struct actor {
	int index;
	uint64_t random;
	pthread_t thread;
	atomic_bool there;
	_Atomic(const char *) doing;
	atomic_ulong since; /* ms */
	atomic_ulong steps;
	bool mortal;   /* may be cancelled inside calls now */
	bool helper;   /* made by another one, which waits for it */
	bool for_ever; /* may wait without a limit: it will be cancelled */
	struct undo undo[12];
	int n_undo;
	struct step trace[24];
	unsigned n_trace;
};

extern __thread struct actor *me;
extern struct actor actors[MAX_ACTORS];
extern uint64_t seed;
extern uint32_t kinds;
extern bool verbose;
extern atomic_bool time_is_up;

uint64_t now_ms(void);
uint64_t mix(uint64_t x);
uint32_t draw(uint32_t n); /* 0 .. n - 1, of this thread's plan */
bool one_in(uint32_t n);

/* What is to be done if the thread is cancelled, and what ends it otherwise. */
void undo_push(void (*fn)(void *arg), void *arg);
void undo_pop(void); /* forget it */
void undo_run(void); /* do it now */

/* Around each call of the library: it has a name, and the thread may be cancelled there. */
void call_begin(const char *what);
void call_end(bool ok);
#define CALL(expr)                        \
	({                                \
		__typeof__(expr) result_; \
		call_begin(#expr);        \
		result_ = (expr);         \
		call_end((bool)result_);  \
		result_;                  \
	})

/* Ends the process; tells the seed and what everybody did. */
void fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
#define must(condition)                                                                      \
	do {                                                                                 \
		if (!(condition))                                                            \
			fail("%s:%d: %s (errno %d)", __FILE__, __LINE__, #condition, errno); \
	} while (0)
/* A failed call must have one of these errnos; 0 ends the list. More are allowed while limits
 * or closed descriptors disturb. */
void may_fail_with(const char *what, ...);

void actor_start(struct actor *a, size_t stack, void *(*body)(void *));
void actor_join(struct actor *a);
void actor_borrow(void); /* on a thread of the library */
void actor_errand(void); /* an operation: a thread with a small stack, or one to be cancelled */
void watch_actors(void); /* fails when one of them is stuck */

/* ---- slot.c: an object's place and its users ---- */

enum slot_state { SLOT_EMPTY, SLOT_LIVE, SLOT_CLAIMED };

struct slot {
	pthread_mutex_t lock;
	enum slot_state state;
	int users;
	bool retired; /* no new users */
};

void slot_init(struct slot *s);
bool slot_take(struct slot *s); /* LIVE: one user more */
void slot_join(struct slot *s); /* for who is one already: one more, even if retired */
void slot_put(void *slot);
bool slot_hold(struct slot *s); /* take, and put as undo */
/* For whoever makes or destroys it: from this state and without users. */
bool slot_claim(struct slot *s, enum slot_state from);
/* The same, waits until the users are gone. */
bool slot_claim_soon(struct slot *s, enum slot_state from);
void slot_release(struct slot *s, enum slot_state to);
bool slot_is(struct slot *s, enum slot_state state);

/* ---- records of requests ---- */

enum rec_state { REC_FREE, REC_RESERVED, REC_POSTED };
enum rec_kind { REC_SEND, REC_WRITE, REC_READ, REC_RECV, REC_REG, REC_INV, REC_BIND, REC_BAD };

struct end;
struct srqx;

struct rec {
	atomic_uint state;
	atomic_uint gen;
	uint32_t bank, index;
	struct end *end; /* or */
	struct srqx *srq;
	enum rec_kind kind;
	bool signaled;
	uint32_t length;
	uint64_t seed;     /* of what it carries; a Read: its place */
	struct rec *ahead; /* unsignaled one of the same list: done when this is */
	struct end *key_of;
	uint8_t *at;
};

#define BANKS (LINKS * 2 + HOUSES * SRQS)

/* ---- house.c ---- */

enum cq_kind { CQ_POLLED, CQ_FILE, CQ_HANDLER };

struct house;

struct pdx {
	struct slot slot;
	struct house *house;
	struct flue_pd *pd;
};

struct cqx {
	struct slot slot;
	struct house *house;
	struct flue_cq *cq;
	enum cq_kind kind;
	/* Read-held from poll until what it took is in the books. Who destroyed a queue pair
	 * takes it once for writing: after that no completion of it can come. */
	pthread_rwlock_t round;
	uint32_t room; /* slot.lock: taken of depth */
	atomic_uint asked, told;
};

struct srqx {
	struct slot slot;
	struct house *house;
	struct pdx *pdx;
	struct flue_srq *srq;
	struct flue_mr *mr;
	uint8_t *memory;
	uint32_t depth;
	pthread_mutex_t lock;
	uint32_t posted, in_flight; /* lock */
	bool tainted;               /* lock: completions were lost with a queue pair */
	struct rec recs[NRECV];
};

struct listenerx {
	struct slot slot;
	struct house *house;
	struct flue_listener *listener;
};

struct region {
	struct slot slot;
	struct pdx *pdx;
	struct flue_mr *mr;
	struct flue_mw *mw;
	uint8_t *memory;
};

struct house {
	struct slot slot;
	int index;
	struct flue_adapter *adapter;
	pthread_rwlock_t round; /* as in cqx, for events */
	struct pdx pds[PDS];
	struct cqx cqs[CQS];
	struct srqx srqs[SRQS];
	struct listenerx listeners[LISTENERS];
	struct region regions[REGIONS];
};

extern struct house houses[HOUSES];

void houses_init(void);
void houses_end(void);
struct house *house_hold(void); /* a random one that is there; undo: put */
void house_make(void);
void house_retire(void);
/* A child that is there or can be made; its user is the caller. NULL: not now. */
struct pdx *pd_get(struct house *h);
struct cqx *cq_get(struct house *h, uint32_t room);
void cq_put(struct cqx *x, uint32_t room);
struct srqx *srq_get(struct house *h, struct pdx *pdx);
void house_children(void); /* makes or destroys one */
void house_events(struct house *h, int timeout_ms);
void op_events(void);
void op_names(void);
void op_watch(void);
void cq_poll(struct cqx *x); /* polls and books */
void house_poll(struct house *h);
void cq_pass(struct cqx *x);
void op_poll(void);
void op_wait(void);
void op_notify(void);
void op_resize(void);
void srq_post(struct srqx *x);
void op_srq(void);
void srq_forget(struct srqx *x, uint32_t messages);
/* ---- memory.c ---- */
void op_region(void);
void region_end(struct region *r);

/* ---- link.c ---- */

struct end {
	struct link *link;
	int side;
	struct house *house;
	struct pdx *pdx;
	struct cqx *scq, *rcq;
	struct srqx *srqx;
	_Atomic(struct flue_qp *) qp;
	atomic_bool dying; /* being destroyed */
	struct flue_mr *mr;
	uint8_t *memory;
	uint32_t sq_depth, rq_depth, sge, max_inline;
	bool by_function; /* events */
	struct rec sends[NSEND], recvs[NRECV];
	atomic_uint out_sends, out_recvs; /* signaled; posted */
	atomic_uint orphans;              /* unsignaled, and nothing behind them tells */
	atomic_int credits;               /* receives without a message on its way */
	atomic_ulong sent, received;      /* messages of this connection */
	pthread_mutex_t seen_lock;
	struct seen {
		uint32_t top; /* latest use of the sender's record that arrived */
		uint64_t mask;
	} seen[NSEND];
	atomic_uint target_used[NTARGET]; /* of this end's memory, written by the peer */
	atomic_uint accepted, connected, failed, disconnected, last;
	atomic_uint reason, detail;
	bool up;
	/* A key that goes from stage to stage: see keys.c. */
	struct flue_mr *key_mr;
	struct flue_mw *key_mw;
	uint8_t *key_memory;
	atomic_uint key_stage;
	atomic_uint key; /* atomic for ThreadSanitizer, which cannot follow an order through TCP */
	atomic_ulong key_start;
};

enum dial { DIAL_CLOSED, DIAL_OPEN, DIAL_TAKEN, DIAL_DONE };

struct link {
	struct slot slot;
	int index;
	uint32_t gen;
	atomic_bool spoilt;  /* may end at any time */
	atomic_bool closing; /* receives will be flushed */
	atomic_uint dial;
	bool accept_ok;
	uint32_t flags, accept_flags; /* UINT32_MAX: converted */
	struct flue_socket *socket;   /* of side 1, if it was made so */
	struct end ends[2];
};

#define END_MEMORY ((size_t)(NTARGET + NSEND + NRECV) * MESSAGE + LIBRARY)

extern struct link links[LINKS];
extern atomic_ulong n_links, n_graceful, n_messages, n_requests, n_flushed, n_pipes, n_children;

void links_init(void);
void links_end(void);
struct link *link_hold(void);
void op_link(void);     /* makes or ends one */
void op_end_link(void); /* abort, disconnect, terminate while others use it */
void link_spoil(struct link *l);
void link_forget(struct end *e); /* its requests will not be completed */
void link_pump(struct link *l);
void link_tell(struct link *l); /* before failing: what is known of it */
bool link_has_srq(struct link *l);
/* ---- dial.c ---- */
bool dial(struct link *l);
void op_accept(void);
bool make_stream(int fd[2]);

/* ---- book.c ---- */
void book_init(struct rec *recs, uint32_t n, uint32_t bank, struct end *e, struct srqx *srq);
struct rec *book_reserve(struct rec *recs, uint32_t n);
void book_unreserve(void *rec);
uint64_t book_id(const struct rec *r);
void book_post(struct rec *r);   /* before the call */
void book_refuse(struct rec *r); /* the call failed */
bool book_is_empty(struct rec *recs, uint32_t n);
void book_forget(struct rec *recs, uint32_t n);
struct end *book_completion(struct cqx *x, const struct flue_wc *wc); /* whose it is */
void book_event(const struct flue_event *ev);
void book_qp_event(struct end *e, const struct flue_event *ev);

struct label {
	uint32_t magic, side;
	uint64_t link, seed;
	uint32_t rec, gen;       /* the sender's record */
	uint32_t length, target; /* target: + 1 */
	uint64_t target_seed;
	uint32_t target_length, key;
};

#define LABEL_MAGIC 0xf10e

void pattern_fill(uint8_t *at, size_t n, uint64_t from);
bool pattern_is(const uint8_t *at, size_t n, uint64_t from);
uint64_t link_name(const struct link *l);
uint64_t library_seed(const struct end *e);

/* ---- traffic.c, keys.c, odd.c, child.c, disturb.c, pipe.c ---- */
void op_send(void);
void op_recv(void);
bool send_one(struct end *e, uint32_t length); /* for the exclusive user */
bool recv_one(struct end *e);
#define KEY_LENGTH 1000
bool post_local(struct end *e, enum rec_kind kind, const struct flue_send_wr *wr,
		struct end *key_of);
bool read_key(struct end *e, struct end *key_of, uint64_t from);
bool send_key(struct end *e, uint32_t key);
void op_key(void);
void keys_completion(struct rec *r, bool ok);
void key_invalidated(struct end *e, uint32_t key);
void op_odd(void);
void op_busy(void);
void op_spoil(void);
void op_fork(void);
extern atomic_ulong n_not_judged;
void op_signal(void);
void op_limit(void);
void op_close(void);
void disturb_init(void);
void disturb_child(void);
bool disturbed(void);
void signals_hold(void); /* while threads are made and joined */
void signals_release(void);
void pipes_init(void);
void pipes_end(void);
void op_pipe(void);
void op_pipe_work(void);

void op_any(void);

#endif
