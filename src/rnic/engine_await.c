/* SPDX-License-Identifier: MIT */
/*
 * Callers that wait for something that is told: they drive the engine meanwhile, and run the note they wait for
 * themselves, so that a connection is set up without a hand-over between threads.
 *
 * Only what the caller waits for is told on its thread, and nothing of the program's runs there: who waits takes the
 * outcome, and no function is called with it. The order of notes stays: the thread runs none while a caller does.
 */
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <sys/epoll.h>

#include "base/cancel.h"
#include "base/clock.h"
#include "base/probe.h"
#include "rnic/engine.h"
#include "rnic/engine_priv.h"

static bool is_over(const struct engine_await *w)
{
	return atomic_load(w->word) != w->value;
}

/* Under work_lock: can this thread run it? */
static bool may_run(const struct engine *e, const struct engine_note *n)
{
	return n->queued && !n->helped && !e->running;
}

static bool is_told(struct engine *e, const struct engine_note *n)
{
	bool told;

	pthread_mutex_lock(&e->work_lock);
	told = n->queued;
	pthread_mutex_unlock(&e->work_lock);
	return told;
}

/* true: it was told, and has been run. */
static bool run_here(struct engine *e, struct engine_note *n)
{
	bool mine;

	pthread_mutex_lock(&e->work_lock);
	mine = may_run(e, n);
	if (mine) {
		TAILQ_REMOVE(&e->notes, n, order);
		n->queued = false;
		n->helped = true;
		e->helpers++;
	}
	pthread_mutex_unlock(&e->work_lock);
	if (!mine)
		return false;
	n->run(n);
	pthread_mutex_lock(&e->work_lock);
	n->helped = false;
	e->helpers--;
	if (atomic_load(&e->waiters))
		pthread_cond_broadcast(&e->work_cond);
	pthread_mutex_unlock(&e->work_lock);
	return true;
}

static void begin(struct engine *e, struct engine_note *n)
{
	atomic_fetch_add(&e->awaiting, 1);
	pthread_mutex_lock(&e->work_lock);
	n->awaited++;
	pthread_mutex_unlock(&e->work_lock);
}

/* What was told and not run is the thread's. */
static void end(struct engine *e, struct engine_note *n)
{
	bool left;

	pthread_mutex_lock(&e->work_lock);
	n->awaited--;
	left = n->queued;
	pthread_mutex_unlock(&e->work_lock);
	atomic_fetch_sub(&e->awaiting, 1);
	if (left)
		engine_wake(e);
}

/* For clean-up handlers. */
struct awaiting {
	struct engine *e;
	struct engine_note *n;
};

/* Cancelled in the set: somebody else has to drive, and may have to tell. */
static void give_up_driving(void *arg)
{
	struct awaiting *a = arg;

	atomic_store(&a->e->sleeping, 0);
	engine_lock(a->e);
	engine_renew(a->e);
	engine_unlock(a->e);
	engine_drop_token(a->e);
	end(a->e, a->n);
}

/* Cancelled while another drove, with work_lock taken again. */
static void give_up_following(void *arg)
{
	struct awaiting *a = arg;

	atomic_fetch_sub(&a->e->waiters, 1);
	pthread_mutex_unlock(&a->e->work_lock);
	end(a->e, a->n);
}

/* Holds the token: sleep until a socket is ready or it was told. */
static void drive(struct engine *e, struct engine_note *n, const struct engine_await *w, int ms)
{
	struct awaiting a = { e, n };
	int64_t ns = ms < 0 ? -1 : ms * (int64_t)NSEC_PER_MSEC;
	struct epoll_event evs[BATCH];
	int got = 0;

	ns = engine_until_near(e, engine_prepare_sleep(e, ns));
	atomic_store(&e->sleeping, 1);
	if (!is_over(w) && !is_told(e, n) && !atomic_load(&e->n_kicks)) {
		pthread_cleanup_push(give_up_driving, &a);
		cancel_window_open(w->cancel_was);
		PROBE(engine_sleep, e->cpu, (uint32_t)SLEEPER_CALLER, engine_ms(ns));
		got = pollset_wait_ns(&e->set, evs, BATCH, ns);
		if (pollset_failed(got))
			atomic_store(&e->lost, true);
		PROBE(engine_wake, e->cpu, (uint32_t)SLEEPER_CALLER, got);
		cancel_window_shut();
		pthread_cleanup_pop(0);
	}
	atomic_store(&e->sleeping, 0);
	engine_lock(e);
	engine_dispatch(e, evs, got);
	engine_run_near(e);
	if (atomic_load(&e->lost))
		engine_mend(e);
	engine_unlock(e);
}

/* Another one drives, or tells: sleep until it is our turn. */
static void follow(struct engine *e, struct engine_note *n, const struct engine_await *w,
		   uint64_t deadline)
{
	struct timespec ts = { (time_t)(deadline / NSEC_PER_SEC), (long)(deadline % NSEC_PER_SEC) };
	struct awaiting a = { e, n };

	if (atomic_load(&e->driver) == DRIVER_THREAD)
		engine_wake(e);
	pthread_mutex_lock(&e->work_lock);
	atomic_fetch_add(&e->waiters, 1);
	pthread_cleanup_push(give_up_following, &a);
	if (!is_over(w) && !may_run(e, n) &&
	    (n->queued || atomic_load(&e->driver) != DRIVER_NONE)) {
		cancel_window_open(w->cancel_was);
		if (deadline == UINT64_MAX)
			pthread_cond_wait(&e->work_cond, &e->work_lock);
		else
			pthread_cond_timedwait(&e->work_cond, &e->work_lock, &ts);
		cancel_window_shut();
	}
	pthread_cleanup_pop(0);
	atomic_fetch_sub(&e->waiters, 1);
	pthread_mutex_unlock(&e->work_lock);
}

/* As a poll does: who sets up connections does it again soon, and the thread is not to come between. */
static void take_lease(struct engine *e)
{
	if (!atomic_fetch_add(&e->lease, 1) && atomic_load(&e->driver) == DRIVER_THREAD)
		engine_wake(e);
}

static int ms_until(uint64_t deadline)
{
	uint64_t now, ms;

	if (deadline == UINT64_MAX)
		return -1;
	now = clock_now();
	ms = deadline > now ? (deadline - now) / NSEC_PER_MSEC + 1 : 0;
	return ms > INT_MAX ? INT_MAX : (int)ms;
}

int engine_await(struct engine *e, struct engine_note *n, const struct engine_await *w)
{
	uint64_t deadline = w->timeout_ms < 0
				    ? UINT64_MAX
				    : clock_now() + (uint64_t)w->timeout_ms * NSEC_PER_MSEC;
	int ms = w->timeout_ms;

	/* On the engine's thread there is nobody else who could tell. */
	if (engine_is_self(e))
		return -EOPNOTSUPP;
	begin(e, n);
	for (;;) {
		if (run_here(e, n))
			continue;
		if (is_over(w) || ms == 0)
			break;
		take_lease(e);
		if (!is_told(e, n) && engine_take_token(e, DRIVER_CALLER)) {
			drive(e, n, w, ms);
			engine_drop_token(e);
		} else {
			follow(e, n, w, deadline);
		}
		ms = ms_until(deadline);
	}
	end(e, n);
	return is_over(w) ? 0 : -ETIMEDOUT;
}
