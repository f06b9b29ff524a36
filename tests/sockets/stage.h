/* SPDX-License-Identifier: MIT */
/*
 * What the programs of this folder share: two processes with one TCP connection between them and a
 * second channel beside it that keeps them in step, a stream whose every octet is known from its
 * position, and a report of facts, one per line, that the driver compares between a run on kernel
 * TCP and a run with the library. The programs know nothing of the library.
 */
#ifndef TESTS_SOCKETS_STAGE_H
#define TESTS_SOCKETS_STAGE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define STAGE_BUFFER (1 << 20)

struct random {
	uint64_t state;
};

uint64_t random_next(struct random *r);
uint32_t random_below(struct random *r, uint32_t limit);
/* From min to max, small numbers as likely as large ones. */
uint32_t random_size(struct random *r, uint32_t min, uint32_t max);

/* One direction of a connection: the key of its octets and the next position. */
struct flow {
	uint64_t key, at;
};

void flow_fill(const struct flow *f, uint8_t *to, size_t n);
/* How many octets of from[] are those of the flow at its position. */
size_t flow_match(const struct flow *f, const uint8_t *from, size_t n);

struct stage {
	char name; /* of the process in the report: A or B */
	int side;  /* 0: A, accepts. 1: B, connects */
	int fd;    /* the connection */
	int ctl;   /* to the other process */
	pid_t other;
	struct flow out, in;
};

/* ---- report: every line is one write(), "A what" ---- */
void stage_say(const struct stage *s, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/* A promise was broken; the run goes on, so that the other process is not left hanging. */
void stage_bad(const struct stage *s, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/* The test itself cannot go on: reports and exits. */
void stage_die(const struct stage *s, const char *format, ...)
	__attribute__((format(printf, 2, 3), noreturn));
const char *stage_errno(int err);
/* Lines reported as bad by this process. */
int stage_bads(void);

/* ---- the two processes ---- */
int stage_listen(int family, int backlog);
/* A connected socket to the listener; -1 with errno. */
int stage_dial(int listener);
/* Forks; in the child (B) returns 1, in the parent 0. No connection yet. */
int stage_split(struct stage *s);
/* Both call it; the listener is made before stage_split(). */
void stage_connect(struct stage *s, int listener, uint64_t seed);
/* Returns when the other process has come to the same call; carries a word across. */
uint64_t stage_meet(struct stage *s, uint64_t word);
/* Small turns in both directions until a lane had every chance to come up. */
void stage_warm(struct stage *s, int turns);
/* A waits for B's end; returns its exit status. */
int stage_join(struct stage *s);

/* ---- the stream, simply: blocking, whole ---- */
void stage_send(struct stage *s, size_t n);
/* Reads n octets and compares them; fewer before the end or an error. Returns how many. */
size_t stage_recv(struct stage *s, size_t n);
/* Compares what was read by other means and moves on. */
void stage_took(struct stage *s, const uint8_t *data, size_t n);
/* Waits until FIONREAD says n, so that what follows does not depend on packets in flight. */
void stage_settle(struct stage *s, size_t n);
void stage_nap(unsigned microseconds);
uint64_t stage_now(void); /* microseconds */
/* The kernel counts its time limits in these, from one that a virtual processor may not have seen yet. */
uint64_t stage_tick(void);

#endif
