/* SPDX-License-Identifier: MIT */
/* The driver's books: what was asked for, what is known to be over, what must still come. */
#ifndef FLUE_TESTS_MODEL_DRIVER_H
#define FLUE_TESTS_MODEL_DRIVER_H

#include "model/model.h"

#define OPS         128 /* requests of a flow that are not over in every respect */
#define SLOTS       256
#define MAX_PENDING 16384

/*
 * A ring of slots. [first, last) are in use; those before `soft` will become free by themselves,
 * so that a decision which looks at them depends on the operations alone and not on the time.
 */
struct area {
	uint32_t size;
	uint32_t first, soft, last;
	uint32_t posted; /* slots before this belong to requests that are posted */
	struct {
		uint32_t at, size;
	} slots[SLOTS];
};

struct op {
	uint32_t wr; /* enum flue_wr_op */
	uint32_t flags, length, seed;
	struct layout local; /* source, or sink of a Read */
	bool local_held;
	struct layout target; /* of a Write */
	bool target_held;
	bool read_back;
	uint32_t reader; /* number + 1 of the Read that does it; 0: not posted yet */
	uint64_t
		start; /* of the pattern, for a Read; of an atomic: what was there, or what it adds */
	bool common;   /* an atomic on the word of all */
	uint32_t status;  /* what it must end with */
	bool marker;      /* of the driver's own; how many depends on the time */
	uint32_t inv_key; /* or immediate data */
};

struct receive {
	struct layout layout;
};

/*
 * One direction of a queue pair: flow d has its requests on side d and their targets and
 * receives on the other one. Numbers count from the start and are never reset.
 */
struct flow {
	struct op ops[OPS];
	uint32_t window; /* most requests outstanding */
	uint32_t posted;
	uint32_t completed, soft_completed; /* ... known to be; ... will be without further posts */
	uint32_t landed, soft_landed;       /* the responder has gone through them */
	uint32_t compared;                  /* ... and the targets are compared */
	uint32_t unsignaled;                /* in a row, at the end */
	bool failing; /* a request ended badly: nothing may succeed any more */

	uint32_t sends, delivered;
	uint32_t send_numbers[OPS];

	struct receive receives[2 * RQ_DEPTH];
	uint32_t rcv_posted, rcv_acked, rcv_done, rcv_checked;
	bool rcv_failing;
	uint32_t rcv_status; /* of the receive that a fault hits; 0: none */
	bool rcv_taken;      /* ... one was taken for it and must come back */

	struct area source, sink;    /* on side d */
	struct area target, receive; /* on the other one */
};

/* When a request changes a region. */
enum dyn_change {
	IN_TURN = 0,    /* when everything before it is out */
	WHEN_LANDED,    /* when it arrives: a Send with invalidate */
	WHEN_COMPLETED, /* a Read with invalidate */
};

/* A region or window that comes and goes. */
struct dyn {
	bool valid;
	uint32_t key; /* the last one that was valid; or as made */
	enum area_kind area;
	uint64_t offset, to; /* place in the memory, and what it is called */
	uint32_t length, access;
	/* The request that changed it last, and those that used it last: number + 1 by flow. */
	int change_flow;
	enum dyn_change change;
	uint32_t changed, used[2], read[2];
};

struct conn {
	struct flow flow[2];
	struct dyn dyn[2][N_DYN]; /* by side */
	bool up, ending;
	uint32_t wanted[2][FLUE_EVENT_NTYPES]; /* events that must still come, by side */
	bool last_may_come[2];
	struct record_event end[2]; /* the last DISCONNECTED or CONNECT_FAILED */
	uint32_t state[2];
};

struct srq_book {
	uint32_t credits; /* receives that no Send was promised */
	uint32_t out;     /* in the queue, as far as known */
	bool used[SRQ_DEPTH];
	uint32_t limits_wanted;
};

/* Words on a side that atomics of the other work on. */
struct words {
	uint64_t value[N_QPS];
	uint64_t done, posted; /* added to that of all: certainly, perhaps */
};

/* What to do with a reply. */
enum reply_action {
	ON_REPLY_OK = 0,   /* it must be a success */
	ON_REPLY_KEEP,     /* for driver_ask() */
	ON_REPLY_RECEIVED, /* a receive of `q` is posted */
	ON_REPLY_FREE,     /* compared: the oldest slot of the area, if there is one, is free */
};

struct pending {
	enum reply_action action;
	uint32_t command, q, value;
	struct area *area;
};

struct driver {
	uint64_t seed, random;
	uint64_t step, requests, connections, faults, octets, checks;
	uint64_t trace; /* a sum over all requests: the same for the same seed */
	struct side *own;
	struct channel channel;
	struct hello hello[2];
	struct conn conn[N_QPS];
	struct srq_book srq[2][N_SRQS];
	struct words words[2];
	struct pending pending[MAX_PENDING];
	uint32_t first_pending, last_pending;
	struct record_reply answer;
	bool answered, quits;
	bool dead; /* side 1 is: commands to it are done at once, without effect */
	uint64_t kills, stops;
	uint64_t
		silence; /* the longest time in ns in which nothing came, though something was waited for: */
	const char *silent_for;
	uint32_t next_seed;
};

extern struct driver driver;

/* ---- driver.c ---- */

uint32_t draw(uint32_t n); /* 0 .. n-1 */
bool chance(uint32_t percent);

/* Reality and model differ. Prints seed, step and what happened lately; does not return. */
void diverge(uint32_t q, const char *format, ...) __attribute__((format(printf, 2, 3), noreturn));
/* A line of history of queue pair q. */
void note(uint32_t q, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Has a side execute a command. What becomes of the reply is up to `p`. */
void driver_issue(int side, const struct cmd *cmd, const struct pending *p);
/* ... and waits for the reply. */
struct record_reply driver_ask(int side, const struct cmd *cmd);
/* Side 1 is no more: nothing is waited for any more. */
void driver_bury(void);
/* Takes what has come in. False: nothing had. */
bool driver_progress(void);
/* Waits until `condition`; nothing at all for a long time is a divergence. */
#define driver_wait(q, condition)                                    \
	do {                                                         \
		struct patience patience_ = { .last = 0 };           \
		while (!(condition))                                 \
			driver_wait_more(&patience_, q, #condition); \
	} while (0)
struct patience {
	uint64_t last;
	unsigned idle;
};
void driver_wait_more(struct patience *p, uint32_t q, const char *what);

/* ---- process.c: the other side ---- */

/* Starts it, and waits until both know each other. False: it failed. */
bool process_start(void);
/* Kills it, and starts another. */
void process_kill(void);
/* It does nothing for so long. */
void process_stop(unsigned ms);
/* It has ended by itself; its status. */
int process_join(void);
/* The other side's own main(). */
int process_mirror(int fd);

/* ---- area.c: rings of slots ---- */

/* Where a slot of `size` goes, by what will be free; false: drain the queue pair first. */
bool area_place(const struct area *a, uint32_t size, uint32_t *at);
/* ... is really free now. */
bool area_is_free(const struct area *a, uint32_t at, uint32_t size);
void area_take(struct area *a, uint32_t at, uint32_t size);
void area_free_first(struct area *a);
void area_clear(struct area *a);

/* ---- book.c ---- */

void book_completion(int side, const struct record_completion *r);
void book_event(int side, const struct record_event *r);
/* Compares a slot and frees it when that is done. */
void book_check(int side, uint32_t q, struct area *area, const struct layout *l, uint32_t length,
		uint32_t seed, uint64_t start, enum check_mode mode);

/* ---- kinds.c: what full service has besides ---- */

bool op_is_read(const struct op *op);
bool op_is_atomic(const struct op *op);
/* Reads and atomics: what comes back goes into memory of the requester's. */
bool op_fetches(const struct op *op);
/* One that a receive of the peer's completes for. */
bool op_is_delivered(const struct op *op);
/* An atomic on a word of the peer's. */
void kinds_atomic(uint32_t q, int d);
/* Sends before the receives for them are there, in one direction or in both. */
void kinds_not_ready(uint32_t q);
/* After a connection: its word on each side has a known value again. */
void kinds_renew_words(uint32_t q);
/* At the end: the word of all has what was added, and nothing else. */
void kinds_check_common(int side);

/* ---- ops.c: single requests ---- */

/* One random request, or a few. */
void ops_step(void);
/* Everything of flow d is over, on both sides. */
void ops_drain(uint32_t q, int d);
void ops_quiesce(uint32_t q);
/* Posts `op` (with slots taken) on side d; `cmd` has what is special to it. Returns its number. */
uint32_t ops_post(uint32_t q, int d, struct op *op, struct cmd *cmd);
/* Up to n receives for flow d. */
void ops_receives(uint32_t q, int d, uint32_t n);
/* One for each Send of flow d that was posted before. */
void ops_late_receives(uint32_t q, int d);
/* A Send, with what is random about it, and a receive for it. */
void ops_send(uint32_t q, int d);
/* One of 16 octets, which may be flushed. */
void ops_small_receive(uint32_t q, int d);
void ops_fill_srq(int side, uint32_t srq);
/* With nothing under way: it has exactly as many receives as the books say. */
void ops_count_srq(int side, uint32_t srq);
/* Room of the receive that the next Send of flow d gets; it is there when this returns. */
uint32_t ops_promise_receive(uint32_t q, int d);
struct op ops_new(uint32_t wr, uint32_t flags);
/* A request without octets. */
uint32_t ops_post_empty(uint32_t q, int d, uint32_t wr, uint32_t flags);
/* A slot for a message of one piece; waits until it is free. */
struct layout ops_slot(uint32_t q, int d, struct area *a, enum area_kind kind, uint32_t length,
		       uint32_t pieces);

/* ---- dyn.c: regions and windows that come and go ---- */

/* Fast register, bind or invalidate of one of them, on flow d. */
void dyn_change(uint32_t q, int d);
/* A name for octets at `offset` of side's memory: the home region's or another valid one. */
void dyn_name(uint32_t q, int side, enum area_kind area, uint64_t offset, uint32_t need,
	      uint32_t *key, uint64_t *addr, int *which);
void dyn_name_of(uint32_t q, int side, int which, uint64_t offset, uint32_t *key, uint64_t *addr);
/* Request `number` of flow d uses region `which` (-1: the home region) of `side`. A Read uses it
 * until it is complete, even if the responder has meanwhile gone on. */
void dyn_used(uint32_t q, int side, int which, int d, uint32_t number, bool read);
/* One that the peer may invalidate now, or -1. Waits until nobody uses it. */
int dyn_for_send_inv(uint32_t q, int side);
int dyn_for_read_inv(uint32_t q, int side);
/* ... and request `number` of flow d does it. */
void dyn_invalidated(uint32_t q, int side, int which, int d, uint32_t number,
		     enum dyn_change change);
/* Local invalidate behind a fence: Reads that use it may still be under way. */
void dyn_invalidate_fenced(uint32_t q, int d, int which);
void dyn_renew(uint32_t q);
uint64_t home_address(uint32_t q, int side, uint64_t offset);

/* ---- ends.c: connections come and go ---- */

void ends_connect(uint32_t q);
void ends_graceful(uint32_t q);
void ends_abort(uint32_t q);
void ends_fault(uint32_t q);
/* One side's queue pair is destroyed in the midst of it. */
void ends_destroy(uint32_t q);
/* Side 1 is killed. All connections end, and begin anew with another process. */
void ends_kill(void);
/* At the end of the run: everything over, nothing missing. */
void ends_settle(void);

#endif
