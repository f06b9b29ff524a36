/* SPDX-License-Identifier: MIT */
/* A machine made from its rows, with one pair that cannot happen. */
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fsm_test.h"

/* clang-format off */
#define DOOR_STATES(X, p) X(p, SHUT) X(p, OPEN)
#define DOOR_EVENTS(X, p) X(p, PUSH) X(p, PULL)
#define DOOR_ACTIONS(X, p) X(p, CREAK) X(p, KNOCK)

FSM_STATES(door_state, DOOR_STATES, DOOR_);
FSM_EVENTS(door_event, DOOR_EVENTS, DOOR_EV_);
FSM_ACTIONS(door_action, DOOR_ACTIONS, DOOR_ACT_);

extern const struct fsm door_fsm;
#define FSM door_fsm
#define FSM_NAME "door"
#define FSM_ROWS "base/fsm_test_door.def"
#define FSM_STRICT true
#define FSM_STATE_LIST DOOR_STATES
#define FSM_EVENT_LIST DOOR_EVENTS
#define FSM_ACTION_LIST DOOR_ACTIONS
#define FSM_STATE(n) DOOR_##n
#define FSM_EVENT(n) DOOR_EV_##n
#define FSM_ACTION(n) DOOR_ACT_##n
#include "base/fsm_table.def"
/* clang-format on */

static void machine_has_the_rows_of_its_table(void **state)
{
	fsm_check(&door_fsm, DOOR_SHUT, DOOR_ACT_CREAK | DOOR_ACT_KNOCK);
	assert_int_equal(fsm_look(&door_fsm, DOOR_SHUT, DOOR_EV_PUSH).next, DOOR_OPEN);
	assert_int_equal(fsm_look(&door_fsm, DOOR_SHUT, DOOR_EV_PUSH).actions, DOOR_ACT_CREAK);
	assert_int_equal(fsm_look(&door_fsm, DOOR_OPEN, DOOR_EV_PUSH).actions,
			 DOOR_ACT_CREAK | DOOR_ACT_KNOCK);
	assert_int_equal(fsm_look(&door_fsm, DOOR_OPEN, DOOR_EV_PULL).next, DOOR_SHUT);
	assert_int_equal(fsm_look(&door_fsm, DOOR_SHUT, DOOR_EV_PULL).next, DOOR_ILLEGAL);
	assert_int_equal(DOOR_ACT_KNOCK, 1 << DOOR_ACT_BIT_KNOCK);
}

static void names_are_the_words_of_the_table(void **state)
{
	assert_string_equal(fsm_state_name(&door_fsm, DOOR_OPEN), "OPEN");
	assert_string_equal(fsm_event_name(&door_fsm, DOOR_EV_PULL), "PULL");
}

static void step_is_the_row_and_counts_illegal_pairs_only(void **state)
{
	struct fsm lax = door_fsm;
	unsigned long before = fsm_illegal(&lax);

	lax.strict = false;
	assert_int_equal(fsm_step(&lax, DOOR_SHUT, DOOR_EV_PUSH).next, DOOR_OPEN);
	assert_int_equal(fsm_step(&lax, DOOR_OPEN, DOOR_EV_PULL).next, DOOR_SHUT);
	assert_int_equal(fsm_look(&lax, DOOR_SHUT, DOOR_EV_PULL).next, DOOR_ILLEGAL);
	assert_int_equal(fsm_illegal(&lax), before);
	assert_int_equal(fsm_step(&lax, DOOR_SHUT, DOOR_EV_PULL).next, DOOR_ILLEGAL);
	assert_int_equal(fsm_illegal(&lax), before + 1);
}

/* In a child, which may have to die: is it still there behind the step, and did it count? */
static void strict_machine_ends_a_debug_build_and_counts_in_a_release(void **state)
{
	int status;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (!pid) {
		unsigned long before = fsm_illegal(&door_fsm);
		struct rlimit no_core = { 0, 0 };

		setrlimit(RLIMIT_CORE, &no_core);
		signal(SIGABRT, SIG_DFL);
		close(STDERR_FILENO);
		fsm_step(&door_fsm, DOOR_SHUT, DOOR_EV_PULL);
		_exit(fsm_illegal(&door_fsm) == before + 1 ? 7 : 8);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
#ifdef FLUE_FSM_CHECK
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
#else
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 7);
#endif
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(machine_has_the_rows_of_its_table),
		cmocka_unit_test(names_are_the_words_of_the_table),
		cmocka_unit_test(step_is_the_row_and_counts_illegal_pairs_only),
		cmocka_unit_test(strict_machine_ends_a_debug_build_and_counts_in_a_release),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
