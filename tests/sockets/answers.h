/* SPDX-License-Identifier: MIT */
/*
 * Small questions about calls: each is asked in a process of its own, and what it answers must be the same on
 * kernel TCP and with the library. A question that ends its process says so; the others are still asked.
 */
#ifndef TESTS_SOCKETS_ANSWERS_H
#define TESTS_SOCKETS_ANSWERS_H

#include <stddef.h>
#include <stdint.h>

struct question {
	const char *name;
	void (*ask)(void);
};

/* main(): all of them, or those named by the arguments. */
int answers_main(const struct question *questions, size_t n, char **names);

/* ---- for questions ---- */
void answer(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* What a call returned: a number, or the name of its error. */
const char *answer_of(long n);
/* The test itself cannot go on. */
void answer_broken(const char *what) __attribute__((noreturn));
/* The two ends of a connection within this process. Warm: it had every chance to get a lane. */
void answer_pair(int ends[2]);
void answer_warm(int a, int b);
void answer_warm_pair(int ends[2]);
/* Octets of a text into fd, a moment from now, by another thread. */
void answer_soon(int fd, const char *text);
/* All that has come, as a text; waits until it is so many octets. */
const char *answer_read(int fd, size_t n);
/* Memory that nobody may touch; that nobody may write. */
void *answer_hole(void);
void *answer_constant(void);

#endif
