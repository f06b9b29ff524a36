/* SPDX-License-Identifier: MIT */
/*
 * Over what a test's connections go: a column of docs/design/columns.md.
 *   strict   TCP, iWARP
 *   full     TCP, full service
 *   local    full service through memory, between two adapters
 *   denied   the same, where the kernel refuses process_vm_readv() and process_vm_writev()
 *   self     the same as local, with both ends on one engine of one adapter
 */
#ifndef FLUE_TESTS_COLUMN_H
#define FLUE_TESTS_COLUMN_H

#include <stdbool.h>

enum column { COLUMN_STRICT, COLUMN_FULL, COLUMN_LOCAL, COLUMN_DENIED, COLUMN_SELF, N_COLUMNS };

/* false: there is none of that name. */
bool column_find(const char *name, enum column *out);
const char *column_name(enum column c);

static inline bool column_is_full(enum column c)
{
	return c != COLUMN_STRICT;
}

static inline bool column_is_local(enum column c)
{
	return c >= COLUMN_LOCAL;
}

/* For the column `denied`, before there are threads. Ends the program with 77 where no filter can be had. */
void column_deny_process_vm(void);

#endif
