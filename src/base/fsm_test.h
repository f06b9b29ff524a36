/* SPDX-License-Identifier: MIT */
/* What holds for every machine, for the tests of the machines. Include cmocka before. */
#ifndef FLUE_BASE_FSM_TEST_H
#define FLUE_BASE_FSM_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/fsm.h"

/* Bit set of the states that can be reached from `from`. */
static inline uint32_t fsm_reach(const struct fsm *m, unsigned from)
{
	uint32_t seen = 1u << from, before;

	do {
		before = seen;
		for (unsigned s = 0; s < m->n_states; s++)
			for (unsigned e = 0; seen & 1u << s && e < m->n_events; e++)
				if (fsm_look(m, s, e).next != FSM_ILLEGAL)
					seen |= 1u << fsm_look(m, s, e).next;
	} while (seen != before);
	return seen;
}

typedef void (*fsm_row_fn)(const struct fsm *m, unsigned s, unsigned e, struct fsm_edge edge);

static inline void fsm_for_rows(const struct fsm *m, fsm_row_fn fn)
{
	for (unsigned s = 0; s < m->n_states; s++)
		for (unsigned e = 0; e < m->n_events; e++)
			fn(m, s, e, fsm_look(m, s, e));
}

#define fsm_fail(m, s, e, what) \
	fail_msg("%s: %s, %s: %s", (m)->name, fsm_state_name(m, s), fsm_event_name(m, e), what)

static inline void fsm_row_is_sane(const struct fsm *m, unsigned s, unsigned e,
				   struct fsm_edge edge)
{
	if (edge.next >= m->n_states && edge.next != FSM_ILLEGAL)
		fsm_fail(m, s, e, "no such state");
	if (edge.actions >> m->n_actions)
		fsm_fail(m, s, e, "no such action");
	if (edge.next == FSM_ILLEGAL && edge.actions)
		fsm_fail(m, s, e, "an illegal pair has actions");
}

static inline void fsm_check_names(const struct fsm *m)
{
	for (unsigned s = 0; s < m->n_states; s++)
		for (unsigned o = 0; o < s; o++)
			assert_string_not_equal(fsm_state_name(m, s), fsm_state_name(m, o));
	for (unsigned e = 0; e < m->n_events; e++)
		for (unsigned o = 0; o < e; o++)
			assert_string_not_equal(fsm_event_name(m, e), fsm_event_name(m, o));
	assert_string_equal(fsm_state_name(m, m->n_states), "ILLEGAL");
	assert_string_equal(fsm_state_name(m, FSM_ILLEGAL), "ILLEGAL");
	assert_string_equal(fsm_event_name(m, m->n_events), "?");
}

/*
 * Rows are sane, illegal pairs do nothing, `start` leads to every state, every event is of use
 * somewhere, the rows together have exactly `actions`, and names are different.
 */
static inline void fsm_check(const struct fsm *m, unsigned start, uint32_t actions)
{
	uint32_t taken = 0;

	fsm_for_rows(m, fsm_row_is_sane);
	for (unsigned s = 0; s < m->n_states; s++)
		if (!(fsm_reach(m, start) & 1u << s))
			fail_msg("%s: nothing leads to %s", m->name, fsm_state_name(m, s));
	for (unsigned e = 0; e < m->n_events; e++) {
		unsigned legal = 0;

		for (unsigned s = 0; s < m->n_states; s++) {
			legal += fsm_look(m, s, e).next != FSM_ILLEGAL;
			taken |= fsm_look(m, s, e).actions;
		}
		if (!legal)
			fail_msg("%s: %s is legal nowhere", m->name, fsm_event_name(m, e));
	}
	assert_int_equal(taken, actions);
	fsm_check_names(m);
}

#endif
