/* SPDX-License-Identifier: MIT */
/*
 * Random operations on 64 queue pairs between two processes, against a model.
 *
 * Two sides, 0 and 1, each a process with an adapter and its objects. Side 0 is also the driver:
 * it chooses what is done (ops.c, ends.c), keeps the books (book.c) and compares. Side 1 only
 * does what it is told over a socket pair, and reports replies, completions and events. Both
 * execute the same commands with the same code (side.c).
 *
 * The choice of operations depends on the seed alone, never on what has completed so far: where
 * an operation needs something to be over, the driver waits for it. So the same seed gives the
 * same operations; only their overlap differs.
 *
 * Memory. Each queue pair has four areas on each side (enum area_kind), used as rings of slots.
 * A free slot holds BACKGROUND. An operation gets slots for source and target; the source is
 * filled from its seed; when the operation is known to be over the target is compared, with the
 * gaps around its pieces, and becomes background again.
 */
#ifndef FLUE_TESTS_MODEL_H
#define FLUE_TESTS_MODEL_H

#include <flue/flue.h>

#include "conf/column.h"

#define N_QPS      64
#define N_CQS      5 /* of each side; the last one hands over by function */
#define N_SRQS     2 /* of each side */
#define N_DYN      3 /* of each queue pair and side: two regions, one window */
#define SQ_DEPTH   32
#define RQ_DEPTH   32
#define SRQ_DEPTH  48
#define SRQ_MSG    8192
#define MAX_PIECES 4
#define MAX_INLINE 200
#define GAP        16
#define CQ_DEPTH   (N_QPS * (SQ_DEPTH + RQ_DEPTH) + N_SRQS * SRQ_DEPTH)

#define BIG_AREA     (1280 * 1024)
#define BIG_MESSAGE  (1024 * 1024)
#define AREA         (160 * 1024)
#define MESSAGE      (96 * 1024)
#define LIBRARY      (1100 * 1024) /* read-only octets, for Reads */
#define LIBRARY_SEED 1
#define BACKGROUND   0x5a

/* What connections go over. In `self` both sides are in one process. */
extern enum column model_column;

enum area_kind { AREA_SOURCE = 0, AREA_RECEIVE, AREA_TARGET, AREA_SINK, N_AREAS };
enum dyn_kind { DYN_REGION = 0, DYN_WINDOW };

static inline bool qp_is_big(uint32_t q)
{
	return q % 8 == 0;
}

static inline uint32_t area_size(uint32_t q)
{
	return qp_is_big(q) ? BIG_AREA : AREA;
}

static inline uint32_t max_message(uint32_t q)
{
	return qp_is_big(q) ? BIG_MESSAGE : MESSAGE;
}

/* The shared queue of a queue pair on a side, or -1. */
static inline int srq_of(uint32_t q, int side)
{
	return q % 4 == 3 ? (int)(q / 4 + (uint32_t)side) % N_SRQS : -1;
}

static inline enum dyn_kind dyn_kind(uint32_t d)
{
	return d == N_DYN - 1 ? DYN_WINDOW : DYN_REGION;
}

/* Every second home region counts its addresses from zero. */
static inline bool home_is_zero_based(uint32_t q)
{
	return q % 2;
}

/* Places in a side's memory, from its start. */
uint64_t area_offset(uint32_t q, enum area_kind kind);
uint64_t library_offset(void);
#define SRQ_SLOT (SRQ_MSG + 2 * GAP)
uint64_t srq_offset(uint32_t srq, uint32_t slot);
/* For atomics: one word of each queue pair's own, and behind them one of all. */
#define COMMON_WORD N_QPS
uint64_t word_offset(uint32_t q);
uint64_t memory_size(void);

/* ---- patterns ---- */

/* Pieces of memory that make up a message, in order, with gaps before, between and after. */
struct layout {
	uint64_t offset; /* of the slot in the side's memory */
	uint32_t n;
	uint32_t length[MAX_PIECES];
};

uint64_t layout_size(const struct layout *l);   /* of the slot */
uint32_t layout_length(const struct layout *l); /* of the message */
uint64_t layout_piece(const struct layout *l, uint32_t i);

enum check_mode {
	CHECK_EXACT = 0, /* the first `length` octets of the message, background behind */
	CHECK_MAYBE,     /* each octet is the message's or background */
	CHECK_NOTHING,   /* it does not matter (a source) */
	CHECK_VALUE,     /* eight octets: the number `start` */
};

void pattern_init(void);
void pattern_fill(uint8_t *at, uint64_t start, uint32_t length, uint32_t seed);
void layout_fill(uint8_t *memory, const struct layout *l, uint32_t seed);
/* Compares, then makes it background. Offset in the slot of the first wrong octet, or -1. */
int64_t layout_check(uint8_t *memory, const struct layout *l, uint32_t length, uint32_t seed,
		     uint64_t start, enum check_mode mode);

/* ---- commands and records ---- */

enum command {
	CMD_POST_SEND,
	CMD_POST_RECV,
	CMD_POST_SRQ,
	CMD_CHECK,
	CMD_CONNECT,
	CMD_DISCONNECT,
	CMD_ABORT,
	CMD_RESET,
	CMD_STATE,
	CMD_RENEW, /* of the queue pair: new regions and window; value: see side.c */
	CMD_RESIZE_CQ,
	CMD_ARM_SRQ,
	CMD_BUSY,   /* arg: poll without sleeping, or with */
	CMD_WORD,   /* value: what word q was; it becomes `start` */
	CMD_LINK,   /* value: what the connection goes over */
	CMD_REMAKE, /* the queue pair is destroyed, and there is another */
	CMD_QUIT,
	N_COMMANDS,
};

struct cmd {
	uint32_t type;
	uint32_t q;  /* queue pair, CQ or SRQ */
	uint64_t id; /* of the request */
	struct layout layout;
	uint32_t seed; /* sources are filled from it, targets compared with it */
	uint32_t length;
	uint64_t start; /* of the pattern, for CHECK of a Read from the library */
	uint32_t mode;  /* enum check_mode */
	bool unseen;    /* CHECK: that it may be looked at is known from the other process */
	/* requests */
	uint32_t op, flags, imm;
	struct flue_atomic atomic;
	uint32_t rkey, lkey; /* lkey 0: that of the home region */
	uint64_t local_addr; /* with lkey: what the first piece is called */
	uint64_t remote_addr;
	struct flue_reg reg; /* reg.addr from the start of the memory; see side.c */
	/* connections */
	uint32_t conn_flags, accept_flags, ird, ord, fpdu_max;
	bool reject;
	uint32_t arg;
};

enum record_type {
	REC_HELLO,
	REC_REPLY,
	REC_COMPLETION,
	REC_EVENT,
};

/* What a side tells about its objects when it is ready. */
struct hello {
	uint64_t base; /* address of its memory */
	uint16_t port;
	uint32_t library_key, words_key;
	uint32_t home_key[N_QPS];
	uint32_t dyn_key[N_QPS][N_DYN];
};

struct record_reply {
	bool ok;
	int error;
	int64_t value;
	uint32_t dyn_key[N_DYN];
};

struct record_completion {
	uint32_t q;
	uint64_t id;
	uint32_t status, op, length, flags, inv_key; /* inv_key: or the immediate data */
};

struct record_event {
	uint32_t type, reason, detail;
	uint32_t q; /* queue pair or SRQ */
};

struct record {
	uint32_t type;
	union {
		struct record_reply reply;
		struct record_completion completion;
		struct record_event event;
	} u;
};

/* Ids of requests: what queue they belong to, and a number in it. */
enum id_kind { ID_SEND = 1, ID_RECV, ID_SRQ };
#define ID(kind, q, n) ((uint64_t)(kind) << 60 | (uint64_t)(q) << 32 | (uint32_t)(n))
#define ID_KIND(id)    ((uint32_t)((id) >> 60))
#define ID_QP(id)      ((uint32_t)((id) >> 32) & 0xffffff)
#define ID_NUMBER(id)  ((uint32_t)(id))

/* ---- a side ---- */

struct side;

/* Makes all objects of side `number`; both sides listen. NULL and a message on stderr: it failed. */
struct side *side_open(int number, struct hello *hello);
/* Where the other side listens. */
void side_meet(struct side *s, uint16_t peer_port);
void side_execute(struct side *s, const struct cmd *cmd, struct record_reply *reply);
/* Calls `tell` for what is new. Returns how much that was. */
unsigned side_progress(struct side *s, void (*tell)(void *arg, const struct record *r), void *arg);
/* Before sleeping: asks to be woken. What came before is found by one more side_progress(). */
void side_arm(struct side *s);
/* Sleeps until there may be something new, also on `fd`. */
void side_sleep(struct side *s, int fd, int timeout_ms);
/* As CMD_BUSY said. */
bool side_is_busy(const struct side *s);
bool side_close(struct side *s);

/* ---- channel between the processes ---- */

struct channel {
	int fd;
	bool patient; /* flush() waits until everything is out; else it keeps the rest */
	size_t out_used, in_used, in_taken;
	uint8_t out[4 * 1024 * 1024], in[64 * 1024];
};

void channel_init(struct channel *c, int fd, bool patient);
/* Buffered; false: the other end is gone, or an impatient one has fallen far behind. */
bool channel_put(struct channel *c, const void *data, size_t length);
bool channel_flush(struct channel *c);
/* 1: *data was read as a whole. 0: not there yet (never with `wait`), -1: the end. */
int channel_get(struct channel *c, void *data, size_t length, bool wait);

#endif
