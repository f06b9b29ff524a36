/* SPDX-License-Identifier: MIT */
/*
 * What sockets_steps counts. A *walk* is a program that makes one call again and again, with its peer in
 * another process, and shows by marks which instructions count. The peer does nothing meanwhile: what a walk
 * receives has been sent before, and what it sends has room.
 */
#ifndef BENCH_SOCKETS_WALK_H
#define BENCH_SOCKETS_WALK_H

#include <stdbool.h>

#define WALK_HANG 100 /* seconds until the kernel ends a process that does not come to its end */

/* A mark is a breakpoint with one of these in its first register. */
enum {
	MARK_BEGIN =
		1, /* from here on every instruction is looked at; the address of the clock beside it */
	MARK_COUNT, /* ... and counted */
	MARK_PAUSE,
	MARK_END,
};

/* Their names, each followed by a space. */
const char *walk_names(void);
/* How often it makes its call; 0 if there is none with this name. */
int walk_turns(const char *name);
/* Its own process, to be watched from outside; never returns. */
_Noreturn void walk(const char *name, const char *program);
/* Its peer's, told what to do on standard input. */
_Noreturn void walk_peer(void);

#endif
