/* SPDX-License-Identifier: MIT */
/*
 * Static probes for perf, bpftrace and gdb (provider "flue"). A probe is one nop and a note that
 * says where its arguments stand at that moment, so it may be anywhere, also where data moves:
 *
 *	PROBE(qp_state, q->number, before, after);
 *
 * Arguments are whole numbers and pointers that are at hand: what would have to be computed costs
 * even when nobody looks. Every probe is described in flue-trace(7), and a test compares. Without
 * <sys/sdt.h> there are none.
 */
#ifndef FLUE_BASE_PROBE_H
#define FLUE_BASE_PROBE_H

#ifdef FLUE_PROBES
#define SDT_USE_VARIADIC 1
#include <sys/sdt.h>
#define PROBE(name, ...) STAP_PROBEV(flue, name, ##__VA_ARGS__)
#else
static inline void probe_nothing(int unused, ...)
{
	(void)unused;
}
/* Never called, but its arguments count as used. */
#define PROBE(name, ...)                                 \
	do {                                             \
		if (0)                                   \
			probe_nothing(0, ##__VA_ARGS__); \
	} while (0)
#endif

#endif
