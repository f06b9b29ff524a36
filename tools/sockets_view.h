/* SPDX-License-Identifier: MIT */
/* Connections as a table for people and as JSON for programs. */
#ifndef FLUE_TOOLS_SOCKETS_VIEW_H
#define FLUE_TOOLS_SOCKETS_VIEW_H

#include <jansson.h>
#include <stdio.h>

#include "homes.h"

struct view {
	FILE *out;
	unsigned width, height;     /* of the terminal; 0: no limit */
	const struct homes *before; /* an earlier look, for rates; NULL: none are shown */
	double seconds;             /* since then */
	const char *end;            /* of a line */
};

/* False: no memory. */
bool sockets_view_table(const struct view *view, const struct homes *homes);
/* Caller owns it; NULL: no memory. */
json_t *sockets_view_json(const struct homes *homes);

#endif
