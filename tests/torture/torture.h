/* SPDX-License-Identifier: MIT */
/*
 * Torture: a scenario is run again and again, and in each run another call fails, until a run
 * meets no failure any more. Whatever fails, the scenario must end in time, with a sensible
 * errno, with every posted request completed and every connection's end told, and with no
 * allocation, descriptor or thread left over.
 */
#ifndef FLUE_TESTS_TORTURE_H
#define FLUE_TESTS_TORTURE_H

#include <stdbool.h>
#include <stddef.h>

#include "conf/pair.h"

struct scenario {
	const char *name;
	/* Everything, from opening adapters to closing them. False + errno: it failed in order. */
	bool (*run)(void);
	/* Worth running with one octet per call; those with much data would take for ever. */
	bool trickles;
};

extern const struct scenario object_scenarios[], setup_scenarios[], small_scenarios[],
	large_scenarios[], close_scenarios[], convert_scenarios[]; /* end with a NULL name */

/* A promise the library must keep whatever fails. */
void torture_promise(bool kept, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* `call` is a promise by itself: it never fails. */
#define torture_must(call) torture_promise((call), "%s: errno %d", #call, errno)

/* How long anything may take to be told; far beyond what a loaded machine needs. */
#define TORTURE_PATIENCE_MS 15000

/* For a set-up; short where it is going to be used up. */
extern int torture_timeout_ms;

/* ---- building blocks, flow.c ---- */

/* Options with short timeouts and `size` octets for each transfer of a flow. */
struct pair_options torture_options(uint32_t size);

/*
 * Both sides at once: a receive, a Write, a Send, a Read. All that was posted completes; what
 * succeeded moved the right octets. True: all did. False: the connection's end was told to both.
 */
bool torture_flow(struct pair *p, uint32_t size);
/* The same, waiting for completions through the CQs' descriptors. */
bool torture_flow_by_descriptor(struct pair *p, uint32_t size);
/* Both sides hear of the end of the connection, once. */
void torture_ends(struct pair *p);
/* The same for one side; false if that does not come in time. */
bool torture_end_told(struct pair_side *s);
/* Ends a pair; nothing can hinder that. Keeps errno; returns `result`. */
bool torture_close(struct pair *p, bool result);

#endif
