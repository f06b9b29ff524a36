/* SPDX-License-Identifier: MIT */
/* Callers that wait for something that is told, and drive meanwhile (RD-8). */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/util.h"
#include "rnic/engine.h"
#include "rnic/engine_priv.h"
#include "rnic/rnic.h"

#define LONG_MS 20000
/* A wake-up that is lost is noticed when the sleeper looks at its set: sooner than that. */
#define SOON_MS (POLLSET_LOOK_MS - 500)

static struct rnic *r;
static struct engine *e;
static const struct rnic_upcalls up;

/* What is waited for, what tells it, and who has run it. */
static _Atomic uint32_t waiting;
static struct engine_note note, next;
static _Atomic pthread_t note_ran_on;
static atomic_int notes, order_wrong;
static atomic_int slow; /* the note takes its time */

static void run_note(struct engine_note *n)
{
	(void)n;
	note_ran_on = pthread_self();
	while (atomic_load(&slow))
		usleep(1000);
	atomic_fetch_add(&notes, 1);
	atomic_store(&waiting, 0);
}

static void run_next(struct engine_note *n)
{
	(void)n;
	if (atomic_load(&notes) == 0)
		atomic_store(&order_wrong, 1);
	atomic_fetch_add(&notes, 1);
}

static int make(void **state)
{
	int cpu = sched_getcpu(), rc;

	(void)state;
	if (rnic_open(&cpu, 1, &up, NULL, &r))
		return -1;
	e = &r->engines[0];
	note_ran_on = 0;
	note = (struct engine_note) { .run = run_note };
	next = (struct engine_note) { .run = run_next };
	atomic_store(&waiting, 1);
	atomic_store(&notes, 0);
	atomic_store(&order_wrong, 0);
	atomic_store(&slow, 0);
	engine_lock(e);
	rc = engine_start(e);
	engine_unlock(e);
	return rc;
}

static int drop(void **state)
{
	(void)state;
	engine_untell(e, &note);
	engine_untell(e, &next);
	rnic_close(r);
	return 0;
}

static int await(int timeout_ms)
{
	struct engine_await w = { .word = &waiting,
				  .value = 1,
				  .timeout_ms = timeout_ms,
				  .cancel_was = PTHREAD_CANCEL_ENABLE };

	return engine_await(e, &note, &w);
}

/* A socket that makes the engine tell. */
static struct engine_io io;
static int peer;

static void ready(struct engine_io *x, uint32_t events)
{
	(void)events;
	engine_forget(e, x);
	engine_tell(e, &note);
}

static void open_socket(void)
{
	int fds[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
	peer = fds[1];
	io = (struct engine_io) { .ready = ready };
	engine_io_take(&io, fds[0]);
	engine_lock(e);
	assert_int_equal(engine_watch(e, &io, EPOLLIN), 0);
	engine_unlock(e);
}

static void close_socket(void)
{
	engine_lock(e);
	engine_forget(e, &io);
	engine_io_close(&io);
	engine_unlock(e);
	close(peer);
}

static bool eventually(const atomic_int *count, int n)
{
	for (int i = 0; i < 3000 && atomic_load(count) < n; i++)
		usleep(1000);
	return atomic_load(count) >= n;
}

static void *await_long(void *arg)
{
	(void)arg;
	return (void *)(intptr_t)await(LONG_MS);
}

static uint64_t since;

/* Returns when it is asleep in the engine's set. */
static pthread_t begin_waiting(void)
{
	pthread_t t;

	since = clock_now();
	assert_int_equal(pthread_create(&t, NULL, await_long, NULL), 0);
	while (!atomic_load(&e->sleeping) || atomic_load(&e->driver) != DRIVER_CALLER)
		usleep(100);
	return t;
}

static void expect_end(pthread_t t)
{
	void *rc;

	assert_int_equal(pthread_join(t, &rc), 0);
	assert_int_equal((intptr_t)rc, 0);
	assert_true(clock_now() - since < SOON_MS * NSEC_PER_MSEC);
	assert_int_equal(atomic_load(&waiting), 0);
}

/* No other thread has anything to do with it: that is what it is for. */
static void await_runs_the_note_on_its_own_thread(void **state)
{
	pthread_t t;

	open_socket();
	t = begin_waiting();
	assert_int_equal(write(peer, "x", 1), 1);
	expect_end(t);
	assert_true(pthread_equal(note_ran_on, t));
	assert_int_equal(atomic_load(&e->driver), DRIVER_NONE);
	close_socket();
}

static void await_ends_when_another_thread_tells(void **state)
{
	pthread_t t = begin_waiting();

	engine_tell(e, &note);
	expect_end(t);
	assert_int_equal(atomic_load(&notes), 1);
}

/* The engine's thread may have taken the note already. */
static void await_ends_when_the_thread_runs_the_note(void **state)
{
	pthread_t t;

	atomic_store(&slow, 1);
	engine_tell(e, &note);
	while (!pthread_equal(note_ran_on, e->thread))
		usleep(100);
	t = begin_waiting();
	atomic_store(&slow, 0);
	expect_end(t);
	assert_int_equal(atomic_load(&notes), 1);
}

/* One drives, the other follows; both hear. */
static void await_of_two_threads_ends_for_both(void **state)
{
	pthread_t one = begin_waiting(), two;

	assert_int_equal(pthread_create(&two, NULL, await_long, NULL), 0);
	while (!atomic_load(&e->waiters))
		usleep(100);
	engine_tell(e, &note);
	expect_end(one);
	expect_end(two);
	assert_int_equal(atomic_load(&notes), 1);
}

/* CONNECTED comes before DISCONNECTED. */
static void await_lets_no_other_note_overtake(void **state)
{
	pthread_t t = begin_waiting();

	atomic_store(&slow, 1);
	engine_tell(e, &note);
	while (!pthread_equal(note_ran_on, t))
		usleep(100);
	engine_tell(e, &next);
	usleep(20000);
	assert_int_equal(atomic_load(&notes), 0);
	atomic_store(&slow, 0);
	expect_end(t);
	assert_true(eventually(&notes, 2));
	assert_int_equal(atomic_load(&order_wrong), 0);
}

static void *untell(void *arg)
{
	engine_untell(e, &note);
	atomic_fetch_add((atomic_int *)arg, 1);
	return NULL;
}

/* Who destroys an object must know that nothing of it runs. */
static void untell_waits_for_a_caller_that_runs_the_note(void **state)
{
	pthread_t t = begin_waiting(), u;
	static atomic_int untold;

	atomic_store(&untold, 0);
	atomic_store(&slow, 1);
	engine_tell(e, &note);
	while (!pthread_equal(note_ran_on, t))
		usleep(100);
	assert_int_equal(pthread_create(&u, NULL, untell, &untold), 0);
	usleep(20000);
	assert_int_equal(atomic_load(&untold), 0);
	atomic_store(&slow, 0);
	expect_end(t);
	assert_int_equal(pthread_join(u, NULL), 0);
	assert_int_equal(atomic_load(&untold), 1);
}

/* What it did not take, the thread tells. */
static void await_that_timed_out_leaves_nothing_behind(void **state)
{
	uint64_t begun = clock_now();

	assert_int_equal(await(20), -ETIMEDOUT);
	assert_true(clock_now() - begun >= 20 * NSEC_PER_MSEC);
	assert_int_equal(note.awaited, 0);
	assert_int_equal(atomic_load(&e->driver), DRIVER_NONE);
	engine_tell(e, &note);
	assert_true(eventually(&notes, 1));
	assert_true(pthread_equal(note_ran_on, e->thread));
}

static void await_that_was_cancelled_leaves_nothing_behind(void **state)
{
	pthread_t t = begin_waiting();
	void *rc;

	pthread_cancel(t);
	assert_int_equal(pthread_join(t, &rc), 0);
	assert_ptr_equal(rc, PTHREAD_CANCELED);
	assert_int_equal(note.awaited, 0);
	assert_int_equal(atomic_load(&e->awaiting), 0);
	open_socket();
	assert_int_equal(write(peer, "x", 1), 1);
	assert_true(eventually(&notes, 1)); /* somebody drives */
	close_socket();
}

/* A timer that is due after the thread looks anyway wakes nobody; one before that does. */
static atomic_int n_fired;

static void fire(struct engine_timer *t)
{
	(void)t;
	atomic_fetch_add(&n_fired, 1);
}

static void timers_that_are_far_off_wake_nobody(void **state)
{
	struct engine_timer far = { .fire = fire }, near = { .fire = fire };

	atomic_store(&n_fired, 0);
	while (atomic_load(&e->thread_mode) != THREAD_IN_EPOLL)
		usleep(1000);
	engine_lock(e);
	engine_timer_arm(e, &far, 2 * POLLSET_LOOK_MS);
	assert_int_equal(atomic_load(&e->wake), 0);
	engine_timer_arm(e, &near, 20);
	assert_int_equal(atomic_load(&e->wake), 1);
	engine_unlock(e);
	assert_true(eventually(&n_fired, 1));
	engine_lock(e);
	assert_int_equal(near.at, 0);
	assert_int_not_equal(far.at, 0);
	engine_timer_stop(e, &far);
	engine_unlock(e);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make, drop)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(await_runs_the_note_on_its_own_thread),
		TEST(await_ends_when_another_thread_tells),
		TEST(await_ends_when_the_thread_runs_the_note),
		TEST(await_of_two_threads_ends_for_both),
		TEST(await_lets_no_other_note_overtake),
		TEST(untell_waits_for_a_caller_that_runs_the_note),
		TEST(await_that_timed_out_leaves_nothing_behind),
		TEST(await_that_was_cancelled_leaves_nothing_behind),
		TEST(timers_that_are_far_off_wake_nobody),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
