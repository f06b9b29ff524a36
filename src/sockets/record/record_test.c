/* SPDX-License-Identifier: MIT */
/* The states of a record (OS-2, OS-30): what holds for every row, and for threads that step at the same time. */
#include <pthread.h>

#include "base/fsm_test.h"
#include "sockets/record/record.h"

static void record_rows_are_sane_and_all_of_use(void **st)
{
	fsm_check(&record_fsm, REC_FREE, 0);
	assert_string_equal(fsm_state_name(&record_fsm, REC_ATTACH), "ATTACH");
}

/* Once it is TCP's for good no lane can come, whatever happens, until the socket is closed. */
static void record_stays_plain_until_it_is_closed(void **st)
{
	for (unsigned e = 0; e < REC_EV_NEVENTS; e++) {
		struct fsm_edge edge = fsm_look(&record_fsm, REC_PLAIN, e);

		if (edge.next != REC_ILLEGAL)
			assert_int_equal(edge.next, e == REC_EV_CLOSE ? REC_FREE : REC_PLAIN);
	}
}

/* A lane is left by leaving it, and by closing: nothing else may take it from under a call. */
static void record_leaves_its_lane_only_on_purpose(void **st)
{
	for (unsigned e = 0; e < REC_EV_NEVENTS; e++)
		if (e != REC_EV_LEAVE && e != REC_EV_CLOSE)
			assert_int_equal(fsm_look(&record_fsm, REC_LANE, e).next, REC_ILLEGAL);
}

static void record_can_be_closed_and_is_closed_once(void **st)
{
	for (unsigned s = 0; s < REC_NSTATES; s++)
		assert_int_equal(fsm_look(&record_fsm, s, REC_EV_CLOSE).next,
				 s == REC_FREE ? REC_ILLEGAL : REC_FREE);
}

static void record_says_what_it_was_when_it_steps(void **st)
{
	struct rec r = { .state = REC_FREE };

	assert_int_equal(record_step(&r, REC_EV_CONNECT), REC_ILLEGAL);
	assert_int_equal(r.state, REC_FREE);
	assert_int_equal(record_step(&r, REC_EV_ADD), REC_FREE);
	assert_int_equal(record_step(&r, REC_EV_CONNECT), REC_OPEN);
	assert_int_equal(record_step(&r, REC_EV_AGREE), REC_YOUNG);
	assert_int_equal(record_step(&r, REC_EV_TCP), REC_AGREED);
	assert_int_equal(record_step(&r, REC_EV_TCP), REC_PLAIN);
}

/* --- threads */

#define ROUNDS 20000

static struct rec shared;
static pthread_barrier_t together;

struct side {
	enum rec_event event;
	uint32_t won;
};

static void *step_each_round(void *arg)
{
	struct side *side = arg;

	for (int i = 0; i < ROUNDS; i++) {
		pthread_barrier_wait(&together);
		side->won += record_step(&shared, side->event) == REC_ATTACH;
		pthread_barrier_wait(&together);
	}
	return NULL;
}

/* One thread steps onto the lane, another pins the socket: one of them is told that it was too late. */
static void record_step_has_one_winner_when_two_threads_step(void **st)
{
	struct side sides[2] = { { .event = REC_EV_ATTACHED }, { .event = REC_EV_TCP } };
	pthread_t threads[2];

	pthread_barrier_init(&together, NULL, 3);
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, step_each_round, &sides[i]), 0);
	for (int i = 0; i < ROUNDS; i++) {
		atomic_store(&shared.state, REC_ATTACH);
		pthread_barrier_wait(&together);
		pthread_barrier_wait(&together);
		assert_int_equal(sides[0].won + sides[1].won, i + 1);
		assert_true(shared.state == REC_LANE || shared.state == REC_PLAIN);
	}
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	pthread_barrier_destroy(&together);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(record_rows_are_sane_and_all_of_use),
		cmocka_unit_test(record_stays_plain_until_it_is_closed),
		cmocka_unit_test(record_leaves_its_lane_only_on_purpose),
		cmocka_unit_test(record_can_be_closed_and_is_closed_once),
		cmocka_unit_test(record_says_what_it_was_when_it_steps),
		cmocka_unit_test(record_step_has_one_winner_when_two_threads_step),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
