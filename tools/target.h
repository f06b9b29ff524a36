/* SPDX-License-Identifier: MIT */
/* What `flue run` has to know about a program before it starts it. */
#ifndef FLUE_TOOLS_TARGET_H
#define FLUE_TOOLS_TARGET_H

#include <limits.h>
#include <stdbool.h>

/* What keeps the library out of a program; the worst first. */
enum target_bar {
	TARGET_GOOD,
	TARGET_PRIVILEGED, /* set-user-ID, set-group-ID or capabilities: the linker ignores preloads */
	TARGET_STATIC,     /* no dynamic linker at all */
	TARGET_FOREIGN,    /* of another word size or machine, or by another C library's linker */
};

struct target {
	char path[PATH_MAX];   /* the file that will be run */
	char reason[PATH_MAX]; /* the file that is in the way: `path` or its interpreter */
	enum target_bar bar;
};

/*
 * Find `program` as execvp() would. 0, or a negative errno: -ENOENT if there is none, -EACCES if it
 * may not be run. What cannot be read counts as good: the attempt tells.
 */
int target_find(const char *program, struct target *target);

/* One sentence on target->bar. */
const char *target_explain(enum target_bar bar);

/*
 * The value of LD_PRELOAD with `library` at its end and once only, other entries as they were. Caller
 * frees; NULL: no memory. Last, because libraries such as a sanitizer's insist on being first.
 */
char *target_preload(const char *before, const char *library);

#endif
