/* SPDX-License-Identifier: MIT */
/*
 * Two processes of one host with a connection through memory: the target, whose memory is touched, and the asker. Both are forked
 * before anybody opens an adapter; they talk over a socket pair, and have a page in common.
 */
#ifndef FLUE_TESTS_LIFE_TWO_H
#define FLUE_TESTS_LIFE_TWO_H

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/types.h>
#include <unistd.h>

#include "conf/pair.h"

/* In a child: it says what is wrong, and ends. */
#define MUST(x)                                                                                 \
	do {                                                                                    \
		if (!(x)) {                                                                     \
			fprintf(stderr, "# %s:%d: not so: %s (errno %d)\n", __FILE__, __LINE__, \
				#x, errno);                                                     \
			_exit(1);                                                               \
		}                                                                               \
	} while (0)

#define TWO_MEMORY (8u << 20)
#define TWO_SGE    8u
#define TWO_INLINE 64u

/* Where something can be reached. */
struct card {
	pid_t pid;
	uint32_t rkey;
	uint64_t addr;
	struct sockaddr_storage listens;
};

/* What both can see. */
struct common {
	struct card target, asker;
	_Atomic uint32_t step[8]; /* as the test likes */
	_Atomic uint64_t addr;
	_Atomic uint32_t key;
};

struct two {
	struct pair p; /* its side a is ours, and its listener */
	struct pair_side *s;
	struct common *common;
	struct card *own, *peer;
	int sock;
	bool is_target;
};

/* ---- for the test ---- */

/* After so long a child that has not ended hangs. */
extern int two_patience_s;

struct lives {
	pid_t target, asker;
	struct common *common;
	int peeks; /* a copy of the target's socket, to hear and say in place of the asker; -1: not wanted */
};

typedef void (*two_fn)(struct two *t);

/* Starts both; each ends well when its function returns. NULL: none of that kind. */
void two_start(struct lives *l, two_fn target, two_fn asker);
/* true: both ended well, and in time. */
bool two_await(struct lives *l);
bool two_run(two_fn target, two_fn asker);
/* Exit status, or 128 + signal; -1: it has not ended in time and was killed. */
int two_await_one(pid_t pid, int timeout_ms);

/* ---- for the children ---- */

/* Adapter, memory, listener, and the common page tells of them. */
void two_open(struct two *t);
/* The connection of s->qp; the asker's end calls. */
void two_connect(struct two *t);
bool two_connect_qp(struct two *t, struct flue_qp *qp);
void two_close(struct two *t);

/* One octet over the socket pair. */
void two_say(struct two *t, char what);
void two_hear(struct two *t, char what);

/* Stops the other process; all its threads stand when this returns. */
void two_stop(pid_t pid);
void two_go_on(pid_t pid);

/* One request: n octets at `off` of our memory in `pieces` pieces, and `at` of the peer's. */
bool two_post(struct two *t, struct flue_qp *qp, uint32_t op, size_t off, uint32_t n,
	      uint32_t pieces, uint64_t at, uint32_t rkey, uint32_t flags);
/* ... and its status; UINT32_MAX: none came in time. */
uint32_t two_status(struct two *t, int timeout_ms);
/* The same for the peer's memory at `at`, and it must end well. */
void two_move(struct two *t, uint32_t op, size_t off, uint32_t n, uint32_t pieces, size_t at);
/* Asker: is a stopped target's memory written? Waits until it is, for some seconds if it shall be. */
bool two_is_direct(struct two *t, bool expected);

unsigned two_count_fds(void);

#endif
