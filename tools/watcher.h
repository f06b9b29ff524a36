/* SPDX-License-Identifier: MIT */
/*
 * A process beside a program under `flue run --why` or `--stats`. The processes of the program send it their homes
 * (sockets/tell.h), so that it can tell what they have done when a signal has ended them; and it looks up who
 * is at the other end of connections, which costs more than a program should pay.
 */
#ifndef FLUE_TOOLS_WATCHER_H
#define FLUE_TOOLS_WATCHER_H

#include <stdbool.h>
#include <stdint.h>

struct watcher_attr {
	int listener;      /* from watcher_listen() */
	int control;       /* a pair of sockets: the guard's questions */
	bool why;          /* say why connections were on TCP */
	const char *stats; /* append totals to this file; or NULL */
};

/* A question of the guard's, and the answer in the same form. */
struct watcher_question {
	uint32_t number;
	int32_t signal; /* did this signal come here too? 0: the program has ended */
	int32_t yes;
};

/* A socket that processes can send to, and the variable for their environment set. -1: none. */
int watcher_listen(void);
/* Until the program has ended and all of its processes that ended with it are told of. */
void watcher_run(const struct watcher_attr *attr);

#endif
