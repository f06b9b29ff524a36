/* SPDX-License-Identifier: MIT */
/*
 * Random programs with threads, judged by what TCP promises and not by equal traces.
 *
 * Two processes have many connections between them. In one of them (W, wild) 2 to 8 threads share
 * all descriptor numbers and epoll sets and do to them whatever their plans say: a number may be
 * closed, or become another connection, while other threads use it. The other process (T, tame)
 * knows at any time which connection it has in hand; it reads all that comes and sends a little all
 * the time, so that no call of W has a reason to sleep for long.
 *
 * What W sends are records, one per call: a header with the number of the call in the log, and
 * octets that follow from that number. So T can tell which call an octet is of, whatever other
 * calls have been at the same time. What T sends are cells of 8 octets that name connection and
 * position. So W can tell what it has read, whichever connection the number was of. All calls, and
 * all that happens to numbers, are in a log with stamps; at the end a third process judges:
 *   - each octet has come once, in order, on one connection, and on one that the number had been of;
 *   - every result is one that TCP can give there;
 *   - nothing sleeps for ever (watch.h).
 */
#ifndef TESTS_SOCKETS_THREADS_H
#define TESTS_SOCKETS_THREADS_H

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#include "stage.h"
#include "watch.h"

#define MAX_THREADS 8
#define MAX_SLOTS   12
#define MAX_SETS    3
#define MAX_CALLS   32768
#define MAX_EVENTS  8192
#define MAX_CONNS   400
#define MAX_CRUMBS  4096
#define MAX_RUNS    512
#define SENT_LIMIT  (4u << 20) /* octets that T sends on one connection */
#define RECORD_HEAD 16
#define RECORD_MAX  (256 << 10)
#define FILE_SIZE   (4u << 20)

/* ---- what a seed may do; drawn once per seed ---- */
enum {
	MAY_SETS = 1 << 0,     /* epoll sets under shared numbers */
	MAY_RAW = 1 << 1,      /* calls through syscall(2) */
	MAY_BAD = 1 << 2,      /* bad pointers */
	MAY_FORK = 1 << 3,     /* children that use or close what they inherit */
	MAY_EXEC = 1 << 4,     /* other programs: exec, spawn, system() */
	MAY_CANCEL = 1 << 5,   /* threads are cancelled in a call */
	MAY_RESTART = 1 << 6,  /* signals whose handler has SA_RESTART */
	MAY_BREAK = 1 << 7,    /* signals whose handler has not */
	MAY_TIME = 1 << 8,     /* SO_RCVTIMEO, SO_SNDTIMEO */
	MAY_NONBLOCK = 1 << 9, /* O_NONBLOCK, on and off */
	MAY_ROOM = 1 << 10,    /* SO_SNDBUF, SO_RCVBUF */
	MAY_HIGH = 1 << 11,    /* huge numbers */
	MAY_RIGHTS = 1 << 12,  /* SCM_RIGHTS, to itself */
	MAY_SHUT = 1 << 13,    /* shutdown() */
	MAY_PIPES = 1 << 14,   /* sendfile, splice */
	MAY_FEWFILES = 1 << 15,
	MAY_FEWSPACE = 1 << 16, /* RLIMIT_AS */
	MAY_FEWSIZE = 1 << 17,  /* RLIMIT_FSIZE */
	MAY_BITS = 18,
};

/* ---- the log ---- */
enum call_kind { CALL_OUT, CALL_IN, CALL_WAIT };

#define RESULT_UNKNOWN -2 /* cancelled, or made by another program */

struct call {
	uint8_t kind;
	bool late;             /* had not arrived when its sender gave up waiting */
	const char *what;      /* the same address in all processes of the program */
	int number, others[3]; /* others: of waits */
	uint8_t more;
	uint32_t len;
	uint64_t begin;       /* stamp; the number was looked up after it */
	_Atomic uint64_t end; /* 0: has not returned */
	int64_t result;
	int err;
	/* Of CALL_OUT, by T: octets found, and where. */
	atomic_uint seen, conn; /* conn: index + 1 */
};

enum event_kind {
	NUMBER_IS,     /* a connection got this number */
	NUMBER_COPIES, /* the number got what the other number was */
	NUMBER_ENDS,   /* closed, or replaced */
	NUMBER_SHUTS,  /* shutdown() on whatever it was */
};

struct event {
	uint8_t kind;
	int number, other; /* other: connection, or number */
	uint64_t from, to;
};

struct conn {
	bool by_tame;            /* T has connected, not W */
	atomic_int port;         /* of the end that has; 0: not yet */
	atomic_bool met;         /* the other end knows who it is */
	_Atomic uint64_t sent;   /* by T: at most so many octets */
	_Atomic uint64_t high;   /* by W: the end of what calls that have returned had read */
	_Atomic uint64_t ending; /* stamp before T does what ends a direction; 0: not yet */
	_Atomic uint64_t ended;  /* stamp when T read the end, or an error */
	atomic_bool whole;       /* T read an end, not an error: nothing can be missing */
	atomic_uint runs;
	uint32_t run[MAX_RUNS]; /* calls in the order in which octets of them came */
};

/*
 * Octets read by W that are too few to name their place: 15 in a row have a whole cell among them,
 * but another thread may have read at the same time, and have what was between them.
 */
#define CRUMB_MAX 32

struct crumb {
	uint32_t call;
	uint8_t n, octets[CRUMB_MAX];
};

struct world {
	uint64_t seed;
	uint32_t may;
	int threads, slots, sets, steps;
	atomic_int port[2]; /* of W's listener, of T's; 0: not yet */
	_Atomic uint64_t stamp;
	atomic_uint calls, events, conns, crumbs, twice;
	_Atomic uint64_t thrown;   /* octets that W has discarded, or lost in cancelled calls */
	atomic_int offered, taken; /* connections that T has made to W's listener */
	atomic_bool shutting;      /* W takes no more of them */
	atomic_bool done;          /* W has closed everything */
	struct call call[MAX_CALLS];
	struct event event[MAX_EVENTS];
	struct conn conn[MAX_CONNS];
	struct crumb crumb[MAX_CRUMBS];
	_Atomic uint64_t read[MAX_CONNS][SENT_LIMIT / 64]; /* a bit for each octet */
};

extern struct world *world;

static inline uint64_t stamp(void)
{
	return atomic_fetch_add(&world->stamp, 1) + 1;
}

/* NULL: the log is full. */
struct call *log_call(enum call_kind kind, const char *what, uint64_t begin, int number,
		      size_t len);
void log_result(struct call *c, int64_t result, int err);
/* It has happened, since the stamp. */
void log_event(enum event_kind kind, int number, int other, uint64_t from);
/* Index of a new connection; -1: there are too many. */
int log_conn(bool by_tame);
/* The connection whose end that connected has this port; -1: it has not said so yet. */
int log_find_port(int port, bool by_tame);
/* The same for the other end, which learns once which it has accepted. */
int log_meet(int port, bool by_tame);

/* Of this end, or of the peer's; -1: it has none. */
int conn_port(int fd, bool peer);

/* ---- threads_code.c ---- */
extern uint64_t code_key; /* of all octets of a seed */
/* Octets from..from + n of the record of a call. */
void record_fill(uint32_t call, uint32_t len, uint32_t from, uint8_t *to, size_t n);
/* How many octets are those of the record, from there on. */
size_t record_match(uint32_t call, uint32_t len, uint32_t from, const uint8_t *data, size_t n);
/* A header: the call it names; -1: none. */
int64_t record_head(const uint8_t *data, uint32_t *len);
/* Octets at..at + n of what T sends on a connection. */
void cells_fill(uint32_t conn, uint64_t at, uint8_t *to, size_t n);
size_t cells_match(uint32_t conn, uint64_t at, const uint8_t *data, size_t n);
/* The connection, and the position of data[before]; -1: the octets do not say. */
int64_t cells_find(const uint8_t *data, size_t n, uint64_t *at, size_t *before);

#define PARSER_OPEN 64
#define PARSER_BACK 7

struct part {
	uint32_t call, len, at;
};

/* What T has read of a connection. */
struct parser {
	uint32_t conn;
	bool lost; /* nothing fits any more; reported once */
	int current, parts;
	struct part part[PARSER_OPEN]; /* calls of which more may come */
	uint64_t at;                   /* in the stream, of rest[0] */
	size_t skip, rests;            /* rest[0..skip) were taken already, for a step back */
	uint8_t rest[RECORD_HEAD * 4 + STAGE_BUFFER / 16];
};

/* n: at most STAGE_BUFFER / 16 */
void parser_feed(struct parser *p, const uint8_t *data, size_t n);
void parser_end(struct parser *p);

/* What W has read by one call. high: cells_snapshot() before it. */
void cells_snapshot(uint64_t *high);
void cells_took(struct call *c, const uint64_t *high, const uint8_t *data, size_t n, bool peek);

/* ---- threads_plan.c ---- */
enum deed {
	DO_OPEN,
	DO_SEND,
	DO_RECV,
	DO_POLL,
	DO_EPOLL,
	DO_INTEREST,
	DO_SET,
	DO_CLOSE,
	DO_DUP,
	DO_SHUT,
	DO_OPTION,
	DO_SIGNAL,
	DO_CANCEL,
	DO_FORK,
	DO_EXEC,
	DO_RIGHTS,
	DO_ARRIVE,
	DO_NAP,
	DEEDS
};

enum pointer { PTR_GOOD, PTR_NULL, PTR_ONE, PTR_GONE, PTR_READONLY, PTR_EDGE, POINTERS };

/* One step of a thread's plan: everything is drawn before anything is done. */
struct act {
	enum deed deed;
	enum pointer pointer;
	bool raw;
	uint8_t slot, other, set; /* which number */
	int number;               /* if not 0: this one, and not the slot's */
	uint8_t how, flavour;     /* which of the calls, and which of its variants */
	int flags;                /* MSG_* */
	uint32_t size;
	uint32_t us; /* pause before it */
};

void plan_seed(uint64_t seed, struct world *w);
/* "-raw", "+bad": false: no such thing. */
bool plan_change(const char *word);
void plan_act(struct random *r, struct act *a);
const char *plan_name(enum deed deed);
void plan_print(void);

/* ---- W ---- */
struct wild {
	int index;
	pthread_t thread;
	atomic_bool running;
	struct call *now; /* under way */
	struct random plan;
	int pipe[2], file, rights[2]; /* never in the range of shared numbers */
	uint8_t *mapped;              /* the file, FILE_SIZE */
	size_t filled;                /* so much of it has been used */
	uint8_t *page;                /* three pages: two for use, one of nothing */
	uint8_t *buffer;              /* RECORD_MAX */
};

extern struct wild wilds[MAX_THREADS + MAX_THREADS];  /* the second half: those to be cancelled */
extern atomic_int slots[MAX_SLOTS], sets[MAX_SETS];   /* -1: nothing there */
extern __thread volatile sig_atomic_t hits[2], pipes; /* handlers run: without SA_RESTART, with */
extern uint64_t child_since;                          /* in a child of W: stamp before the fork() */

int wild_main(void);
void wild_act(struct wild *w, const struct act *a);
/* stamp(), or in a child that before its fork: what the numbers are was fixed then. */
uint64_t wild_begin(void);
/* The number that the step is about; -1: the slot is empty. */
int wild_number(const struct act *a);
void wild_close(int number);
/* Puts a number into a slot, and ends what was there. */
void wild_put(atomic_int *slot, int number);
/* The same for a copy of a number that other threads may have changed. */
void wild_keep(atomic_int *slot, int number);
/* threads_data.c */
void data_send(struct wild *w, const struct act *a);
void data_recv(struct wild *w, const struct act *a);
void data_arrive(struct wild *w, const struct act *a);
/* What a call that was broken off has left there is not for the next. */
void data_empty_pipe(const struct wild *w);
/* threads_waits.c */
void waits_poll(struct wild *w, const struct act *a);
void waits_epoll(struct wild *w, const struct act *a);
void waits_interest(struct wild *w, const struct act *a);
void waits_set(struct wild *w, const struct act *a);
/* threads_odd.c */
void odd_cancel(struct wild *w, const struct act *a);
void odd_fork(struct wild *w, const struct act *a);
void odd_exec(struct wild *w, const struct act *a);
void odd_rights(struct wild *w, const struct act *a);
void odd_option(struct wild *w, const struct act *a);
void odd_signal(struct wild *w, const struct act *a);
void odd_limits(void);
int odd_heir(int argc, char **argv);

/* ---- T ---- */
int tame_main(void);

/* ---- threads_judge.c ---- */
void judge(void);

#endif
