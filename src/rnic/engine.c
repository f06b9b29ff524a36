/* SPDX-License-Identifier: MIT */
/* Locks, kicks, notes, timers and buffers of an engine. Sockets: engine_io.c; who sleeps where:
 * engine_drive.c and engine_poll.c. */
#include "rnic/engine.h"

#include <assert.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "rnic/engine_priv.h"
#include "rnic/link.h"

static void init_sync(struct engine *e)
{
	pthread_condattr_t attr;

	pthread_mutex_init(&e->lock, NULL);
	pthread_mutex_init(&e->work_lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&e->work_cond, &attr);
	pthread_condattr_destroy(&attr);
	TAILQ_INIT(&e->timers);
	TAILQ_INIT(&e->notes);
	TAILQ_INIT(&e->kicks);
	TAILQ_INIT(&e->later);
	pollset_init(&e->set, KICK_NAME);
}

static cpu_set_t engine_home(const struct engine *e)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET((unsigned)e->cpu, &set);
	return set;
}

static _Atomic uint32_t engines;

int engine_init(struct engine *e, int cpu, uint32_t index)
{
	memset(e, 0, sizeof(*e));
	e->cpu = cpu;
	e->index = index;
	e->serial = atomic_fetch_add(&engines, 1);
	e->may_run = engine_home(e);
	atomic_store(&e->back_at, UINT64_MAX);
	e->scratch = malloc(ENGINE_SCRATCH);
	if (!e->scratch)
		return -ENOMEM;
	SLIST_INIT(&e->bufs);
	LIST_INIT(&e->links);
	init_sync(e);
	return 0;
}

void engine_stop(struct engine *e)
{
	if (!e->has_thread)
		return;
	atomic_store(&e->stop, true);
	engine_wake(e);
	pthread_join(e->thread, NULL);
	e->has_thread = false;
}

void engine_fini(struct engine *e)
{
	struct engine_buf *b;

	engine_stop(e);
	pollset_close(&e->set);
	while ((b = SLIST_FIRST(&e->bufs))) {
		SLIST_REMOVE_HEAD(&e->bufs, next);
		free(b);
	}
	free(e->ios);
	free(e->scratch);
	pthread_cond_destroy(&e->work_cond);
	pthread_mutex_destroy(&e->work_lock);
	pthread_mutex_destroy(&e->lock);
}

/* ---- lock and kicks ---- */

void engine_lock(struct engine *e)
{
	pthread_mutex_lock(&e->lock);
}

void engine_assert_locked(const struct engine *e)
{
	/* A mutex that can be taken was not held. */
	int rc = pthread_mutex_trylock((pthread_mutex_t *)&e->lock);

	assert(rc == EBUSY);
	(void)rc;
}

static void run_kicks(struct engine *e)
{
	struct engine_kick *k;

	while (atomic_load(&e->n_kicks)) {
		pthread_mutex_lock(&e->work_lock);
		k = TAILQ_FIRST(&e->kicks);
		if (k) {
			TAILQ_REMOVE(&e->kicks, k, order);
			atomic_fetch_sub(&e->n_kicks, 1);
			/* Cleared before it runs: a kick that comes meanwhile is not lost. */
			atomic_store(&k->queued, false);
		}
		pthread_mutex_unlock(&e->work_lock);
		if (k)
			k->run(k);
	}
}

void engine_unlock(struct engine *e)
{
	/* A kick queued between the last look and the unlock is ours to run, unless somebody else
	 * got the lock meanwhile: then it is theirs. */
	do {
		run_kicks(e);
		pthread_mutex_unlock(&e->lock);
	} while (atomic_load(&e->n_kicks) && pthread_mutex_trylock(&e->lock) == 0);
}

void engine_kick(struct engine *e, struct engine_kick *k)
{
	if (pthread_mutex_trylock(&e->lock) == 0) {
		k->run(k);
		engine_unlock(e);
		return;
	}
	pthread_mutex_lock(&e->work_lock);
	if (!atomic_exchange(&k->queued, true)) {
		TAILQ_INSERT_TAIL(&e->kicks, k, order);
		atomic_fetch_add(&e->n_kicks, 1);
	}
	pthread_mutex_unlock(&e->work_lock);
	if (pthread_mutex_trylock(&e->lock) == 0)
		engine_unlock(e);
}

void engine_unkick(struct engine *e, struct engine_kick *k)
{
	pthread_mutex_lock(&e->work_lock);
	if (atomic_load(&k->queued)) {
		TAILQ_REMOVE(&e->kicks, k, order);
		atomic_fetch_sub(&e->n_kicks, 1);
		atomic_store(&k->queued, false);
	}
	pthread_mutex_unlock(&e->work_lock);
}

void engine_later(struct engine *e, struct engine_kick *k)
{
	uint32_t n = atomic_load_explicit(&e->n_later, memory_order_relaxed);

	/* Changed by the holder of the lock alone, unlike those of kicks. */
	if (atomic_load_explicit(&k->queued, memory_order_relaxed))
		return;
	atomic_store_explicit(&k->queued, true, memory_order_relaxed);
	TAILQ_INSERT_TAIL(&e->later, k, order);
	atomic_store_explicit(&e->n_later, n + 1, memory_order_relaxed);
}

void engine_not_later(struct engine *e, struct engine_kick *k)
{
	uint32_t n = atomic_load_explicit(&e->n_later, memory_order_relaxed);

	if (!atomic_load_explicit(&k->queued, memory_order_relaxed))
		return;
	atomic_store_explicit(&k->queued, false, memory_order_relaxed);
	TAILQ_REMOVE(&e->later, k, order);
	atomic_store_explicit(&e->n_later, n - 1, memory_order_relaxed);
}

void engine_run_later(struct engine *e)
{
	struct engine_kick *k;

	while ((k = TAILQ_FIRST(&e->later))) {
		engine_not_later(e, k);
		k->run(k);
	}
}

/* ---- start ---- */

/* Refused only where the processor was taken from us since the adapter was opened. */
void engine_bind(struct engine *e)
{
	cpu_set_t set = engine_home(e);

	if (e->bound)
		return;
	e->bound = true;
	if (e->has_thread)
		pthread_setaffinity_np(e->thread, sizeof(set), &set);
}

static int start_thread(struct engine *e)
{
	sigset_t all, old;
	pthread_attr_t attr;
	cpu_set_t set;
	int rc;

	rc = pthread_attr_init(&attr);
	if (rc)
		return -rc;
	set = e->bound ? engine_home(e) : e->may_run;
	pthread_attr_setaffinity_np(&attr, sizeof(set), &set);
	/* Signals are the program's; its threads handle them, not ours. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(&e->thread, &attr, engine_main, e);
	if (rc == EINVAL) /* the processor was taken from us since the adapter was opened */
		rc = pthread_create(&e->thread, NULL, engine_main, e);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attr);
	if (rc)
		return -rc;
	e->has_thread = true;
	return 0;
}

int engine_start(struct engine *e)
{
	if (e->has_thread)
		return 0;
	if (!pollset_is_open(&e->set)) {
		int rc = pollset_open(&e->set);

		if (rc)
			return rc;
	}
	return start_thread(e);
}

/* ---- links without a descriptor ---- */

void engine_add_link(struct engine *e, struct link *l)
{
	LIST_INSERT_HEAD(&e->links, l, of_engine);
	atomic_fetch_add(&e->n_links, 1);
	/* Whoever sleeps has not armed it. */
	if (pollset_is_open(&e->set))
		engine_kick_driver(e);
}

void engine_remove_link(struct engine *e, struct link *l)
{
	LIST_REMOVE(l, of_engine);
	atomic_fetch_sub(&e->n_links, 1);
}

void engine_ring(struct engine *e)
{
	engine_kick_driver(e);
}

/* ---- timers ---- */

/* A timer that is due within this is near: whoever drives looks at the clock for it. */
#define NEAR_NS (2 * NSEC_PER_MSEC)

/* `now`, or a time before. */
static void note_near(struct engine *e, uint64_t now)
{
	const struct engine_timer *t = TAILQ_FIRST(&e->timers);
	uint64_t at = t && t->at < now + NEAR_NS ? t->at : 0;

	atomic_store_explicit(&e->near_at, at, memory_order_relaxed);
}

void engine_timer_arm(struct engine *e, struct engine_timer *t, uint64_t delay_ms)
{
	engine_timer_arm_ns(e, t, delay_ms * NSEC_PER_MSEC);
}

void engine_timer_arm_ns(struct engine *e, struct engine_timer *t, uint64_t delay_ns)
{
	struct engine_timer *p;
	uint64_t now = clock_now();

	engine_timer_stop(e, t);
	t->at = now + delay_ns;
	/* Delays are few and alike, so the right place is nearly always the tail. */
	TAILQ_FOREACH_REVERSE(p, &e->timers, engine_timers, order) {
		if (p->at <= t->at)
			break;
	}
	if (p)
		TAILQ_INSERT_AFTER(&e->timers, p, t, order);
	else
		TAILQ_INSERT_HEAD(&e->timers, t, order);
	/* Also on the engine's own thread: a note or a kick may arm it after the thread looked. */
	if (TAILQ_FIRST(&e->timers) == t) {
		note_near(e, now);
		if (t->at < atomic_load(&e->back_at))
			engine_wake(e);
	}
}

void engine_timer_stop(struct engine *e, struct engine_timer *t)
{
	bool was_next = t->at && TAILQ_FIRST(&e->timers) == t;
	uint64_t at = t->at;

	if (at)
		TAILQ_REMOVE(&e->timers, t, order);
	t->at = 0;
	if (was_next && atomic_load_explicit(&e->near_at, memory_order_relaxed))
		note_near(e, at);
}

void engine_run_near(struct engine *e)
{
	uint64_t at = atomic_load_explicit(&e->near_at, memory_order_relaxed);

	if (at && at <= clock_now())
		engine_run_timers(e);
}

int64_t engine_until_near(struct engine *e, int64_t timeout_ns)
{
	uint64_t at = atomic_load_explicit(&e->near_at, memory_order_relaxed), now;

	if (!at)
		return timeout_ns;
	now = clock_now();
	return engine_sooner(timeout_ns, at > now ? (int64_t)(at - now) : 0);
}

int64_t engine_run_timers(struct engine *e)
{
	struct engine_timer *t;
	uint64_t now = clock_now();

	while ((t = TAILQ_FIRST(&e->timers)) && t->at <= now) {
		TAILQ_REMOVE(&e->timers, t, order);
		t->at = 0;
		t->fire(t);
	}
	note_near(e, now);
	return t ? (int64_t)(t->at - now) : -1;
}

/* ---- notes ---- */

void engine_tell(struct engine *e, struct engine_note *n)
{
	bool fresh, awaited;

	pthread_mutex_lock(&e->work_lock);
	fresh = !n->queued;
	if (fresh)
		TAILQ_INSERT_TAIL(&e->notes, n, order);
	n->queued = true;
	awaited = n->awaited;
	pthread_mutex_unlock(&e->work_lock);
	/* Also on the engine's own thread: it may be about to sleep, and run a kick before. */
	if (fresh && awaited)
		engine_news(e);
	else if (fresh)
		engine_wake(e);
}

void engine_untell(struct engine *e, struct engine_note *n)
{
	pthread_mutex_lock(&e->work_lock);
	if (n->queued)
		TAILQ_REMOVE(&e->notes, n, order);
	n->queued = false;
	while ((e->running == n || n->helped) && !engine_is_self(e)) {
		atomic_fetch_add(&e->waiters, 1);
		pthread_cond_wait(&e->work_cond, &e->work_lock);
		atomic_fetch_sub(&e->waiters, 1);
	}
	pthread_mutex_unlock(&e->work_lock);
}

/* Under work_lock. What comes behind the note that a caller runs must not overtake it. */
static void await_helpers(struct engine *e)
{
	while (e->helpers) {
		atomic_fetch_add(&e->waiters, 1);
		pthread_cond_wait(&e->work_cond, &e->work_lock);
		atomic_fetch_sub(&e->waiters, 1);
	}
}

void engine_run_notes(struct engine *e)
{
	struct engine_note *n;

	pthread_mutex_lock(&e->work_lock);
	for (;;) {
		await_helpers(e);
		n = TAILQ_FIRST(&e->notes);
		if (!n)
			break;
		TAILQ_REMOVE(&e->notes, n, order);
		n->queued = false;
		e->running = n;
		pthread_mutex_unlock(&e->work_lock);
		n->run(n);
		if (atomic_load(&e->awaiting))
			engine_news(e);
		pthread_mutex_lock(&e->work_lock);
		e->running = NULL;
		if (atomic_load(&e->waiters))
			pthread_cond_broadcast(&e->work_cond);
	}
	pthread_mutex_unlock(&e->work_lock);
}

/* ---- buffers ---- */

struct engine_buf *engine_buf_get(struct engine *e)
{
	struct engine_buf *b = SLIST_FIRST(&e->bufs);

	if (!b)
		return malloc(sizeof(*b));
	SLIST_REMOVE_HEAD(&e->bufs, next);
	e->n_bufs--;
	return b;
}

void engine_buf_put(struct engine *e, struct engine_buf *b)
{
	if (e->n_bufs >= ENGINE_BUFS_KEPT) {
		free(b);
		return;
	}
	SLIST_INSERT_HEAD(&e->bufs, b, next);
	e->n_bufs++;
}

/* ---- fork ---- */

void engine_fork_prepare(struct engine *e)
{
	pthread_mutex_lock(&e->work_lock);
}

void engine_fork_parent(struct engine *e)
{
	pthread_mutex_unlock(&e->work_lock);
}

/*
 * The child has a copy of our memory but no engine thread, and shares the epoll set with the
 * parent: it must never touch that set. Closing its copies of the descriptors disturbs nobody.
 */
void engine_fork_child(struct engine *e)
{
	struct engine_kick *k;
	struct engine_note *n;
	struct engine_timer *t;

	TAILQ_FOREACH(k, &e->kicks, order)
		atomic_store(&k->queued, false);
	TAILQ_FOREACH(k, &e->later, order)
		atomic_store(&k->queued, false);
	TAILQ_FOREACH(n, &e->notes, order)
		n->queued = false;
	TAILQ_FOREACH(t, &e->timers, order)
		t->at = 0;
	for (uint32_t i = 0; i < e->n_slots; i++) {
		struct engine_io *io = e->ios[i].io;

		if (io) {
			io->events = 0;
			io->slot = 0;
			e->ios[i].io = NULL;
			e->ios[i].generation++;
		}
	}
	e->n_ios = 0;
	e->hot = NULL;
	LIST_INIT(&e->links);
	atomic_store(&e->n_links, 0);
	atomic_store(&e->parked, NULL);
	e->hot_hits = e->spin_skip = e->spin_miss = 0;
	atomic_store(&e->near_at, 0);
	pollset_abandon(&e->set);
	atomic_store(&e->lost, false);
	e->has_thread = false;
	e->running = NULL;
	e->helpers = 0;
	atomic_store(&e->awaiting, 0);
	atomic_store(&e->back_at, UINT64_MAX);
	atomic_store(&e->n_kicks, 0);
	atomic_store(&e->n_later, 0);
	atomic_store(&e->driver, DRIVER_NONE);
	atomic_store(&e->sleeping, 0);
	atomic_store(&e->waiters, 0);
	atomic_store(&e->lease, 0);
	atomic_store(&e->thread_mode, THREAD_RUNNING);
	init_sync(e);
}
