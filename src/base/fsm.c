/* SPDX-License-Identifier: MIT */
#include "base/fsm.h"

#include "base/log.h"
#include "base/probe.h"

#ifdef FLUE_FSM_CHECK
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#endif

static void note_illegal(const struct fsm *m, unsigned s, unsigned e)
{
	atomic_fetch_add_explicit(m->illegal, 1, memory_order_relaxed);
	PROBE(fsm_illegal, m->name, s, e);
	log_warn(fsm, "%s: event %s in state %s is illegal", m->name, fsm_event_name(m, e),
		 fsm_state_name(m, s));
#ifdef FLUE_FSM_CHECK
	if (m->strict) {
		dprintf(STDERR_FILENO, "flue: machine %s: event %s in state %s is illegal\n",
			m->name, fsm_event_name(m, e), fsm_state_name(m, s));
		abort();
	}
#endif
}

struct fsm_edge fsm_step(const struct fsm *m, unsigned s, unsigned e)
{
	struct fsm_edge edge = fsm_look(m, s, e);

	if (__builtin_expect(edge.next == FSM_ILLEGAL, 0))
		note_illegal(m, s, e);
	return edge;
}

unsigned long fsm_illegal(const struct fsm *m)
{
	return atomic_load_explicit(m->illegal, memory_order_relaxed);
}

const char *fsm_state_name(const struct fsm *m, unsigned s)
{
	return s < m->n_states ? m->states[s] : "ILLEGAL";
}

const char *fsm_event_name(const struct fsm *m, unsigned e)
{
	return e < m->n_events ? m->events[e] : "?";
}
