/* SPDX-License-Identifier: MIT */
/* Connections as a table for people and as JSON for programs. */
#ifndef FLUE_TOOLS_SOCKETS_VIEW_H
#define FLUE_TOOLS_SOCKETS_VIEW_H

#include <jansson.h>
#include <stdio.h>

#include "rows.h"

struct view {
	FILE *out;
	struct rows_attr rows; /* rates are shown if there was an earlier look */
};

/* False: no memory. */
bool sockets_view_table(const struct view *view, const struct homes *homes);
/* How many there are, in a sentence. */
void sockets_view_summary(char *out, size_t size, const struct homes *homes,
			  const struct rows *rows);
/* Caller owns it; NULL: no memory. */
json_t *sockets_view_json(const struct homes *homes, const char *filter);

#endif
