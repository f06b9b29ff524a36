/* SPDX-License-Identifier: MIT */
/*
 * Threads of one process that share sockets, sets and descriptor numbers. Both ends of every connection are here,
 * so one program under a sanitizer shows the library at work on both. The scenes know nothing of the library: they
 * are right on kernel TCP, whatever the threads' order, and say so if an octet is not where it belongs.
 */
#ifndef TESTS_HOOKED_CROWD_H
#define TESTS_HOOKED_CROWD_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "sockets/stage.h"

struct scene {
	const char *name;
	void (*play)(void);
};

extern const struct scene scenes[];

/* Different for each caller, the same for each seed. */
struct random crowd_random(void);
/* Is it time to end? */
bool crowd_over(void);
/* Counted and told of, the first few; the program ends with 1. */
void crowd_bad(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Told of at the end: the scene has done something. */
void crowd_did(const char *what, uint64_t n);
void crowd_nap(struct random *r, uint32_t most_us);

pthread_t crowd_start(void *(*run)(void *arg), void *arg);
void crowd_join(pthread_t thread);

/* A connection: [0] has connected, [1] was accepted. */
void crowd_pair(int listener, int fd[2]);
/* Some small turns, after which there may be a lane. Blocking sockets only. */
void crowd_warm(const int fd[2], int turns);
void crowd_set_nonblocking(int fd);
/* Waits until the kernel, or the library, says that a call would do something; not for ever. */
void crowd_wait(struct random *r, int fd, short events);

/* One call, by any of its names. */
ssize_t crowd_put(struct random *r, int fd, const void *from, size_t n, int flags);
ssize_t crowd_take(struct random *r, int fd, void *to, size_t n, int flags);

#define CROWD_BUFFER (256 << 10)

/* One direction of a connection, in the hands of two threads. */
struct way {
	int from, to;
	uint64_t key;
	uint64_t total;
	bool polite; /* waits in other calls before it moves octets */
	int flags;
};

/* Threads: `arg` is a struct way. */
void *crowd_sender(void *arg);
void *crowd_receiver(void *arg);

#endif
