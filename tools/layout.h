/* SPDX-License-Identifier: MIT */
/*
 * How rows are put onto a screen of some width. What matters most is there at 80 columns and is not cut; a wider
 * screen shows more; all of it stands in the details of one row.
 */
#ifndef FLUE_TOOLS_LAYOUT_H
#define FLUE_TOOLS_LAYOUT_H

#include "rows.h"

#define LAYOUT_MOST 512 /* columns of a screen that are used */

enum layout_column {
	LAYOUT_PROGRAM,
	LAYOUT_PID,
	LAYOUT_ADDRESS,
	LAYOUT_PEER,
	LAYOUT_PEER_PID,
	LAYOUT_PEER_ADDRESS,
	LAYOUT_PORT,
	LAYOUT_WAY,
	LAYOUT_RATE_OUT,
	LAYOUT_RATE_IN,
	LAYOUT_SENT,
	LAYOUT_RECEIVED,
	LAYOUT_WHY,
	LAYOUT_COLUMNS,
};

struct layout {
	unsigned width;
	unsigned widths[LAYOUT_COLUMNS]; /* 0: not shown */
};

void layout_make(struct layout *layout, const struct rows *rows, unsigned width);
/* A line of at most the width; the titles if `row` is NULL. */
void layout_line(char out[LAYOUT_MOST + 1], const struct layout *layout, const struct row *row);
/* All about one row, without line breaks but those between its parts; for layout_wrap(). */
void layout_details(char *out, size_t size, const struct row *row);
/* The length of the first line of a text of some width, without the break; *next is what comes after it. */
size_t layout_wrap(const char *text, unsigned width, const char **next);

#endif
