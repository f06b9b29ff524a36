/* SPDX-License-Identifier: MIT */
/* Callers that poll or wait: they drive the engine of their completion queue meanwhile. */
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <sys/epoll.h>

#include "base/cancel.h"
#include "base/clock.h"
#include "base/probe.h"
#include "rnic/cq.h"
#include "rnic/engine.h"
#include "rnic/engine_priv.h"
#include "rnic/link.h"

/*
 * An empty poll looks at the hot link so often before it gives the processor back to the program.
 * Every so many empty polls epoll is asked about all links: rarely where there is only one.
 */
#define HOT_TRIES         4
#define SWEEP_EVERY_ALONE 64
#define SWEEP_EVERY       2
#define SWEEP_EVERY_QUIET \
	256 /* only links through memory are busy, and a poll of those costs next to nothing */
#define SWEEP_ANYWAY 64 /* polls, empty or not: one link may always have data */
/* So many polls must find data in the hot link before it leaves the epoll set. */
#define PARK_AFTER 32
/*
 * Before it sleeps, a wait polls for so long; sleeping and being woken costs about as much. When
 * that was in vain, more and more waits go without, up to 63 of 64.
 */
#define SPIN_NS       (50 * NSEC_PER_MSEC / 1000)
#define SPIN_MISS_MAX 6
#define SPIN_POLLS    4 /* between looks at the clock */

/* Extends the lease; tells the thread to let go if it has the sockets. */
static void take_lease(struct engine *e)
{
	uint32_t old = atomic_load_explicit(&e->lease, memory_order_relaxed);

	/* Two callers may store the same number: it only has to change while anybody polls. */
	if (old) {
		atomic_store_explicit(&e->lease, old + 1 ? old + 1 : 1, memory_order_relaxed);
		return;
	}
	atomic_store(&e->lease, 1);
	if (atomic_load(&e->driver) == DRIVER_THREAD)
		engine_wake(e);
}

void engine_end_lease(struct engine *e)
{
	if (atomic_exchange(&e->lease, 0))
		engine_wake(e);
}

/* Is it time to look at all links? */
static bool time_to_sweep(struct engine *e)
{
	bool asked = atomic_load_explicit(&e->n_links, memory_order_relaxed);
	uint32_t every = e->n_ios > 1 && !asked ? SWEEP_EVERY : SWEEP_EVERY_ALONE;
	bool anyway = e->n_ios > 1 && ++e->polls % SWEEP_ANYWAY == 0;

	return ++e->idle_polls % every == 0 || anyway;
}

/* Under lock: asks about all links. */
static void sweep(struct engine *e)
{
	struct epoll_event evs[BATCH];
	int n;

	if (!pollset_is_open(&e->set))
		return;
	/* The thread does that; but who keeps a processor busy may be what it waits for. */
	if (!TAILQ_EMPTY(&e->timers) && TAILQ_FIRST(&e->timers)->at <= clock_coarse())
		engine_run_timers(e);
	n = pollset_wait(&e->set, evs, BATCH, 0);
	if (pollset_failed(n))
		engine_mend(e);
	engine_dispatch(e, evs, n);
}

/* Under lock: the links that have no descriptor. true: one had data. */
static bool ask_links(struct engine *e)
{
	uint32_t before = e->idle_polls;
	struct link *l, *next;

	e->idle_polls = before | 1;
	LIST_FOREACH_SAFE(l, &e->links, of_engine, next)
		l->ops->poll(l);
	if (e->idle_polls == 0)
		return true;
	e->idle_polls = before;
	return false;
}

/* Under lock; needs no token. true: it is not yet time to look at other links; *all: at all of them, whatever the last one had. */
static bool poll_memory(struct engine *e, bool *all)
{
	bool had = ask_links(e);

	*all = ++e->polls >= SWEEP_ANYWAY && had;
	if (*all)
		e->polls = 0;
	if (had)
		return !*all;
	return !e->hot && ++e->idle_polls % SWEEP_EVERY_QUIET;
}

/* Under lock: the last link that had data, without asking epoll. */
static void poll_hot(struct engine *e, const struct engine_io *parked)
{
	struct engine_io *hot = e->hot;

	for (int i = 0; i < HOT_TRIES && e->hot == hot && e->idle_polls; i++)
		hot->ready(hot, EPOLLIN);
	if (e->hot != hot || e->idle_polls)
		return;
	if (++e->hot_hits >= PARK_AFTER && !parked && hot->events == EPOLLIN)
		engine_park(e, hot);
}

/* Under lock, with the token. The link resets idle_polls when it had data. */
static void poll_links(struct engine *e, bool all)
{
	struct engine_io *parked = atomic_load_explicit(&e->parked, memory_order_relaxed);

	if (parked && (parked != e->hot || parked->events != EPOLLIN))
		engine_return_parked(e);
	if (all || time_to_sweep(e) || !e->hot)
		sweep(e);
	else
		poll_hot(e, parked);
}

static bool has_memory(struct engine *e)
{
	return atomic_load_explicit(&e->n_links, memory_order_relaxed);
}

static bool has_later(struct engine *e)
{
	return atomic_load_explicit(&e->n_later, memory_order_relaxed);
}

/* Timers that are due before the thread would look. */
static void run_near(struct engine *e)
{
	if (atomic_load_explicit(&e->near_at, memory_order_relaxed))
		engine_run_near(e);
}

/* Under lock, with the token. Who has data is busy, and what can wait may find company yet. */
static void poll_once(struct engine *e)
{
	bool all = false;

	if (!has_memory(e) || !poll_memory(e, &all))
		poll_links(e, all);
	run_near(e);
	if (e->idle_polls && has_later(e))
		engine_run_later(e);
}

/*
 * The token is for who may sleep, or parks: links through memory are asked without it. But then somebody else may have it, and
 * sleep already: what can wait would wait for that one. It took the token before it took the lock to look for such work.
 */
static void poll_with_memory(struct engine *e)
{
	bool token = false, all;

	if (pthread_mutex_trylock(&e->lock) != 0)
		return;
	if (!poll_memory(e, &all)) {
		token = engine_take_token(e, DRIVER_CALLER);
		if (token)
			poll_links(e, all);
	}
	run_near(e);
	if (has_later(e) && (e->idle_polls || (!token && atomic_load(&e->driver) != DRIVER_NONE)))
		engine_run_later(e);
	engine_unlock(e);
	if (token)
		engine_drop_token(e);
}

void engine_poll(struct engine *e)
{
	take_lease(e);
	if (has_memory(e)) {
		poll_with_memory(e);
		return;
	}
	if (!engine_take_token(e, DRIVER_CALLER))
		return;
	if (pthread_mutex_trylock(&e->lock) == 0) {
		poll_once(e);
		engine_unlock(e);
	}
	engine_drop_token(e);
}

static int ms_until(uint64_t deadline, uint64_t now)
{
	uint64_t ms;

	if (deadline == UINT64_MAX)
		return -1;
	ms = deadline > now ? (deadline - now + NSEC_PER_MSEC - 1) / NSEC_PER_MSEC : 0;
	return ms > INT_MAX ? INT_MAX : (int)ms;
}

/* Holds the token: poll for a moment, if that helped of late. true: the CQ has news. */
static bool spin(struct engine *e, struct cq *cq, int timeout_ms)
{
	uint64_t until;

	if (timeout_ms == 0)
		return false;
	if (e->spin_skip) {
		e->spin_skip--;
		return false;
	}
	until = clock_now() + SPIN_NS;
	do {
		for (int i = 0; i < SPIN_POLLS; i++) {
			if (pthread_mutex_trylock(&e->lock) == 0) {
				poll_once(e);
				engine_unlock(e);
			}
			if (cq_has_news(cq)) {
				e->spin_miss = 0;
				return true;
			}
		}
	} while (clock_now() < until);
	if (e->spin_miss < SPIN_MISS_MAX)
		e->spin_miss++;
	e->spin_skip = (1u << e->spin_miss) - 1;
	return false;
}

/* Cancelled while it slept: somebody else has to drive. */
static void give_up_driving(void *engine)
{
	struct engine *e = engine;

	atomic_store(&e->sleeping, 0);
	/* It may have been on its way back with events. */
	engine_lock(e);
	engine_renew(e);
	engine_unlock(e);
	engine_drop_token(e);
}

/* Holds the token: sleep until a socket is ready, the CQ has news or time is over. */
static int caller_drive(struct engine *e, struct cq *cq, int timeout_ms, int cancel_was)
{
	struct epoll_event evs[BATCH];
	int64_t timeout_ns = timeout_ms < 0 ? -1 : timeout_ms * (int64_t)NSEC_PER_MSEC;
	int n = 0, err = 0, rc;

	if (spin(e, cq, timeout_ms))
		return 0;
	timeout_ns = engine_until_near(e, engine_prepare_sleep(e, timeout_ns));
	atomic_store(&e->sleeping, 1);
	if (!cq_has_news(cq) && !atomic_load(&e->n_kicks)) {
		pthread_cleanup_push(give_up_driving, e);
		cancel_window_open(cancel_was);
		PROBE(engine_sleep, e->cpu, (uint32_t)SLEEPER_CALLER, engine_ms(timeout_ns));
		n = pollset_wait_ns(&e->set, evs, BATCH, timeout_ns);
		err = n < 0 ? -errno : 0;
		PROBE(engine_wake, e->cpu, (uint32_t)SLEEPER_CALLER, n);
		cancel_window_shut();
		pthread_cleanup_pop(0);
		if (err && err != -EINTR) {
			atomic_store(&e->lost, true);
			err = 0;
		}
	}
	atomic_store(&e->sleeping, 0);
	engine_lock(e);
	engine_dispatch(e, evs, n);
	engine_run_near(e);
	rc = atomic_load(&e->lost) ? engine_mend(e) : 0;
	engine_unlock(e);
	return rc ? rc : err;
}

/* Cancelled while it slept, with work_lock taken again. */
static void give_up_following(void *engine)
{
	struct engine *e = engine;

	atomic_fetch_sub(&e->waiters, 1);
	pthread_mutex_unlock(&e->work_lock);
}

/* Somebody else has the token: sleep until it is free or the CQ has news. */
static void caller_follow(struct engine *e, struct cq *cq, uint64_t deadline, int cancel_was)
{
	struct timespec ts = { (time_t)(deadline / NSEC_PER_SEC), (long)(deadline % NSEC_PER_SEC) };

	if (atomic_load(&e->driver) == DRIVER_THREAD)
		engine_wake(e);
	pthread_mutex_lock(&e->work_lock);
	atomic_fetch_add(&e->waiters, 1);
	pthread_cleanup_push(give_up_following, e);
	if (!cq_has_news(cq) && atomic_load(&e->driver) != DRIVER_NONE) {
		PROBE(engine_sleep, e->cpu, (uint32_t)SLEEPER_FOLLOWER, -1);
		cancel_window_open(cancel_was);
		if (deadline == UINT64_MAX)
			pthread_cond_wait(&e->work_cond, &e->work_lock);
		else
			pthread_cond_timedwait(&e->work_cond, &e->work_lock, &ts);
		cancel_window_shut();
		PROBE(engine_wake, e->cpu, (uint32_t)SLEEPER_FOLLOWER, 0);
	}
	pthread_cleanup_pop(1);
}

static int start_engine(struct engine *e)
{
	int rc;

	if (atomic_load_explicit(&e->has_thread, memory_order_acquire))
		return 0;
	engine_lock(e);
	rc = engine_start(e);
	engine_unlock(e);
	return rc;
}

/* Long times need no exact start, and the exact clock costs as much as several locks. */
static uint64_t deadline_of(int timeout_ms)
{
	uint64_t ns = (uint64_t)timeout_ms * NSEC_PER_MSEC;

	if (timeout_ms < 0)
		return UINT64_MAX;
	return timeout_ms < 100 ? clock_now() + ns : clock_coarse() + CLOCK_COARSE_LAG + ns;
}

int engine_wait(struct engine *e, struct cq *cq, int timeout_ms, int cancel_was)
{
	uint64_t deadline = deadline_of(timeout_ms), now;
	int rc = start_engine(e);

	while (rc == 0 && !cq_has_news(cq)) {
		take_lease(e);
		if (engine_take_token(e, DRIVER_CALLER)) {
			rc = caller_drive(e, cq, timeout_ms, cancel_was);
			take_lease(e);
			engine_drop_token(e);
		} else {
			caller_follow(e, cq, deadline, cancel_was);
		}
		if (rc || deadline == UINT64_MAX || cq_has_news(cq))
			continue;
		now = clock_now();
		if (now >= deadline)
			return -ETIMEDOUT;
		timeout_ms = ms_until(deadline, now);
	}
	return cq_has_news(cq) ? 0 : rc;
}
