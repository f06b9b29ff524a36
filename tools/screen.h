/* SPDX-License-Identifier: MIT */
/* `flue sockets --watch` on a terminal. */
#ifndef FLUE_TOOLS_SCREEN_H
#define FLUE_TOOLS_SCREEN_H

#include "rows.h"

struct screen_attr {
	double seconds;      /* between two looks */
	enum rows_sort sort; /* at the beginning */
	const char *filter;  /* ditto; or NULL */
};

enum screen_end { SCREEN_GOOD, SCREEN_FAILED, SCREEN_NONE };

/* Until the user has enough. FAILED: /proc cannot be read, or no memory; errno is set. NONE: this is no terminal that
 * can be drawn on; nothing was. */
enum screen_end screen_run(const struct screen_attr *attr);

#endif
