/* SPDX-License-Identifier: MIT */
/*
 * `flue run --why` and `--stats` stay beside the program, to tell what it cannot tell itself: what it did before a
 * signal ended it, and who is at the other end of a connection. Processes send them letters, by a unix
 * socket with an abstract name, one connection each: no descriptor is kept, and no call waits.
 */
#ifndef FLUE_SOCKETS_TELL_H
#define FLUE_SOCKETS_TELL_H

#include <stdbool.h>

#include "sockets/record/why.h"

/* NAME:TOKEN. Who does not know the token has nothing to say. */
#define TELL_VARIABLE "FLUE_WATCH"
#define TELL_NAME     24
#define TELL_TOKEN    32

enum tell_kind {
	TELL_HOME,   /* this process has a home; its descriptor comes along */
	TELL_ABSENT, /* nobody came for a lane: see who it is, while it is there */
	TELL_CLOSED, /* a connection on TCP has ended: say the line */
};

struct tell_letter {
	uint32_t version; /* HOME_VERSION */
	uint32_t kind;
	char token[TELL_TOKEN];
	uint32_t why;
	uint8_t ends[36];    /* addresses and ports, ours first; IPv4 as mapped */
	char line[WHY_LINE]; /* as the process would say it */
};

/* The value of the variable, or NULL. */
void tell_init(const char *text);
/* False: nobody is there to listen, or not now. */
bool tell_home(int fd);
void tell_absent(const struct rec *r);
bool tell_closed(const struct rec *r, const char *line);

#endif
