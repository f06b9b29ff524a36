/* SPDX-License-Identifier: MIT */
/*
 * A thread sleeps in a call; another makes a call on the same socket, or to the same process. What
 * does the sleeper see, and what does the other get, and how soon? A cell is one pair of calls, in a
 * process of its own with a partner at the other end of the connection.
 */
#ifndef TESTS_SOCKETS_MATRIX_H
#define TESTS_SOCKETS_MATRIX_H

#include <pthread.h>

#include "stage.h"

#define MATRIX_MUCH (24 << 20) /* octets that no buffers hold */

struct cell {
	int fd, listener, set, pipe[2], file;
	int beside; /* an eventfd, for calls that wait for several descriptors */
	int ctl;    /* to the partner */
	bool spent; /* what happened has ended the connection, or its number */
	pthread_t sleeper;
	uint8_t *much;
	char result[80]; /* of the sleeper's call */
};

enum { SLEEPS_FOR_OCTETS, SLEEPS_FOR_ROOM, SLEEPS_FOR_CONNECTIONS };

/* A call to sleep in. */
struct matrix_call {
	const char *name;
	int what_for;
	void (*prepare)(struct cell *c);
	void (*call)(struct cell *c);
};

/* A call that may wake it. Reports its own result. */
struct matrix_act {
	const char *name;
	void (*act)(struct cell *c, char *result, size_t n);
};

extern const struct matrix_call matrix_calls[];
extern const struct matrix_act matrix_acts[];

/* "12", or "EAGAIN"; large results of calls that send are "part" or "all". */
void matrix_result(char *to, size_t n, ssize_t result);
/* The partner does it and says how it went. */
int64_t matrix_ask(struct cell *c, char what, int64_t n);
#define PARTNER_OPENS  'o' /* connects to port n */
#define PARTNER_SENDS  's' /* so many octets */
#define PARTNER_ECHOES 'e' /* so many turns */
#define PARTNER_READS  'r' /* until nothing has come for n ms; how many octets */
#define PARTNER_CLOSES 'c'
#define PARTNER_RESETS 'z'
#define PARTNER_CALLS  'k' /* connects once more to port n, and closes */

#endif
