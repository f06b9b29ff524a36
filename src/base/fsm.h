/* SPDX-License-Identifier: MIT */
/*
 * State machines as data. A machine is a const table made from its .def by fsm_table.def: one row
 * for every (state, event), pairs that cannot happen are ILLEGAL. A step is a look-up; whoever
 * owns the object writes its state and performs the actions.
 *
 * A header of a machine has three lists, and the enums that are made of them:
 *
 *	#define DOOR_STATES(X, p) X(p, SHUT) X(p, OPEN)
 *	#define DOOR_EVENTS(X, p) X(p, PUSH) X(p, PULL)
 *	#define DOOR_ACTIONS(X, p) X(p, CREAK)
 *	FSM_STATES(door_state, DOOR_STATES, DOOR_);         DOOR_SHUT, ... DOOR_NSTATES, DOOR_ILLEGAL
 *	FSM_EVENTS(door_event, DOOR_EVENTS, DOOR_EV_);      DOOR_EV_PUSH, ... DOOR_EV_NEVENTS
 *	FSM_ACTIONS(door_action, DOOR_ACTIONS, DOOR_ACT_);  DOOR_ACT_CREAK (a bit), DOOR_ACT_NONE,
 *	                                                    DOOR_ACT_BIT_CREAK, ... DOOR_ACT_NACTIONS
 *	extern const struct fsm door_fsm;
 */
#ifndef FLUE_BASE_FSM_H
#define FLUE_BASE_FSM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { FSM_ILLEGAL = 0xff };

struct fsm_edge {
	uint8_t next; /* a state, or FSM_ILLEGAL, then without actions */
	uint32_t actions;
};

struct fsm {
	const char *name;
	const struct fsm_edge *edges; /* n_states times n_events */
	const char *const *states, *const *events;
	uint8_t n_states, n_events, n_actions;
	bool strict; /* nobody asks for an illegal pair: debug builds end a program that does */
	atomic_ulong *illegal;
};

/* The edge of a pair, as a question: nothing is counted. */
static inline struct fsm_edge fsm_look(const struct fsm *m, unsigned s, unsigned e)
{
	return m->edges[s * m->n_events + e];
}

/*
 * The edge of a pair that happened. An illegal one is counted and logged; in a build with FLUE_FSM_CHECK
 * (option fsm_check) it ends the program if the machine is strict.
 */
struct fsm_edge fsm_step(const struct fsm *m, unsigned s, unsigned e);

/* How many illegal pairs were stepped in this process, over all objects. */
unsigned long fsm_illegal(const struct fsm *m);

/* Never NULL: "ILLEGAL" and "?" for what is none. */
const char *fsm_state_name(const struct fsm *m, unsigned s);
const char *fsm_event_name(const struct fsm *m, unsigned e);

/* clang-format off */
#define FSM_CONSTANT(prefix, name) prefix##name,
#define FSM_BIT(prefix, name) prefix##BIT_##name,
#define FSM_FLAG(prefix, name) prefix##name = 1 << prefix##BIT_##name,

#define FSM_STATES(tag, LIST, prefix)                                                             \
	enum tag { LIST(FSM_CONSTANT, prefix) prefix##NSTATES, prefix##ILLEGAL = FSM_ILLEGAL }
#define FSM_EVENTS(tag, LIST, prefix)                                                             \
	enum tag { LIST(FSM_CONSTANT, prefix) prefix##NEVENTS }
#define FSM_ACTIONS(tag, LIST, prefix)                                                            \
	enum tag##_bit { LIST(FSM_BIT, prefix) prefix##NACTIONS };                                \
	enum tag { prefix##NONE = 0, LIST(FSM_FLAG, prefix) }
/* clang-format on */

#endif
