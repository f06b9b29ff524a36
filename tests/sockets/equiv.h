/* SPDX-License-Identifier: MIT */
/*
 * A random program of socket calls for two processes. Both draw the moves from the same numbers and
 * keep the same model of the connection, so each knows what the other is about to do; what only
 * one of them has to know (which call moves the octets, in how many pieces) it draws by itself.
 * What is reported must be the same in every run on kernel TCP: where TCP may split or delay, the
 * octets are added up, or the receiver first waits until they have arrived.
 */
#ifndef TESTS_SOCKETS_EQUIV_H
#define TESTS_SOCKETS_EQUIV_H

#include "stage.h"

/* Octets that may lie unread in one direction: less than any window and any ring. */
#define EQUIV_QUEUE 24576

enum equiv_wait {
	EQUIV_POLL,
	EQUIV_PPOLL,
	EQUIV_SELECT,
	EQUIV_PSELECT,
	EQUIV_LEVEL,
	EQUIV_EDGE,
	EQUIV_ONESHOT,
	EQUIV_PWAIT,
	EQUIV_NESTED,
	EQUIV_WAITS
};

/* The two epoll sets of EQUIV_NESTED: the connection is in the inner, the inner in the outer. */
enum { EQUIV_SET_LEVEL, EQUIV_SET_EDGE, EQUIV_SET_ONESHOT, EQUIV_SET_OUTER, EQUIV_SETS };

struct party {
	struct stage st;
	struct random plan; /* drawn from in the same order on both sides */
	struct random own;  /* not so */
	uint64_t sent[2];   /* by side, what was sent and what was read: the model */
	uint64_t read[2];
	const char *only; /* move; NULL: any */
	bool pure;        /* only moves that leave the lane in use */
	bool child;       /* a forked process plays this side for some moves */
	int step;
	const char *move;
	int set[EQUIV_SETS]; /* epoll descriptors, -1: not yet */
	bool in_set[EQUIV_SETS];
	uint32_t level; /* what the level set was last asked for */
};

typedef void equiv_move(struct party *p, bool actor);

struct equiv_row {
	const char *name;
	equiv_move *run;
	unsigned weight;
	bool pure;
};

extern const struct equiv_row equiv_moves[], equiv_ends[];

/* ---- model ---- */
/* Unread octets in the direction to this process, or from it. */
size_t equiv_unread(const struct party *p, bool to_me);
/* The actor of the move has sent, or read, n octets. Called by both. */
void equiv_sent(struct party *p, bool actor, size_t n);
void equiv_read(struct party *p, bool actor, size_t n);
void equiv_fact(const struct party *p, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
void equiv_bad(const struct party *p, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
const char *equiv_result(ssize_t result, int err);
/* The moves of a forked child, in step with the other side. */
void equiv_play(struct party *p, int moves);

/* ---- equiv_calls.c ---- */
/* One call out of all that send or receive; result and errno are the call's. */
ssize_t calls_send(struct party *p, const uint8_t *data, size_t n, int flags);
ssize_t calls_recv(struct party *p, uint8_t *data, size_t n, int flags);
/* The same with a call that is known: 0 to 2 move all or nothing of little. */
ssize_t calls_send_by(struct party *p, unsigned call, const uint8_t *data, size_t n, int flags);
ssize_t calls_recv_by(struct party *p, unsigned call, uint8_t *data, size_t n, int flags);
/* Blocking: all n octets of the stream, in pieces, by any calls. */
void calls_put(struct party *p, size_t n);
void calls_take(struct party *p, size_t n);
bool calls_nonblocking(struct party *p, bool on);

/* ---- equiv_waits.c ---- */
/* Poll bits of the connection, 0 after ms milliseconds without any, -1 with errno. */
int waits_for(struct party *p, enum equiv_wait how, int want, int ms);
enum equiv_wait waits_any(struct party *p, struct random *r);
const char *waits_name(enum equiv_wait how);
/* "IN|OUT" */
const char *waits_bits(int bits);
void waits_forget(struct party *p);
/* Sends and reads so many octets at the same time, sleeping in one kind of wait. */
void waits_duplex(struct party *p, enum equiv_wait how, size_t out, size_t in);

#endif
