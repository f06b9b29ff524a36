/* SPDX-License-Identifier: MIT */
/*
 * Connections as rows: one with both ends on this machine is one row, the end that connected on the left. Which of
 * them are shown, and in which order.
 */
#ifndef FLUE_TOOLS_ROWS_H
#define FLUE_TOOLS_ROWS_H

#include "homes.h"

enum rows_sort { ROWS_RATE, ROWS_BYTES, ROWS_PROGRAM, ROWS_PID, ROWS_PORT, ROWS_SORTS };

struct row {
	const struct homes_connection *c;
	const struct homes_process *program, *peer; /* peer NULL: not under Flue */
	uint16_t port;                              /* of the end that was connected to */
	bool counted;                               /* the octets are known */
	uint64_t out, in;                           /* octets since it began */
	bool rated;                                 /* there was an earlier look */
	double rate_out, rate_in;                   /* octets per second */
};

struct rows {
	struct row *row;
	size_t n, lanes;
	size_t hidden; /* by the filter */
};

struct rows_attr {
	enum rows_sort sort;
	bool reverse;
	const char *filter;         /* see rows_match(); NULL: all */
	const struct homes *before; /* an earlier look, for rates; or NULL */
	double seconds;             /* since then */
};

/* The word of an order; the order of a word, or ROWS_SORTS. */
const char *rows_sort_word(enum rows_sort sort);
enum rows_sort rows_sort_of(const char *word);

/*
 * Do all words of the filter fit? "pid=N", "port=N" and "program=PATTERN" look at that; a number at both, other words
 * at the names of both programs, where they may be a part or a pattern with * and ?.
 */
bool rows_match(const struct homes *homes, const struct homes_connection *c, const char *filter);

/* They point into `homes`. False: no memory. */
bool rows_make(struct rows *rows, const struct homes *homes, const struct rows_attr *attr);
void rows_free(struct rows *rows);

/* How much of all that was moved went by the lane, in percent. */
unsigned rows_share(const struct row *row);

#endif
