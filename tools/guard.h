/* SPDX-License-Identifier: MIT */
/*
 * Stays in front of a program for as long as it runs, and is to its caller what the program would be: passes signals
 * on, stops when it stops, ends as it ends. A watcher beside it tells what there is to tell.
 */
#ifndef FLUE_TOOLS_GUARD_H
#define FLUE_TOOLS_GUARD_H

#include <stdbool.h>

struct guard_attr {
	const char *path; /* the program */
	char **argv;      /* its arguments, its name first */
	bool why;         /* see watcher.h */
	const char *stats;
};

/* The exit status; does not return if a signal has ended the program, but ends by the same one. -1: nothing was
 * started, and errno is set. */
int guard_run(const struct guard_attr *attr);

#endif
