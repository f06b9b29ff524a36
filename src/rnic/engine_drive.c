/* SPDX-License-Identifier: MIT */
/*
 * Who waits for the sockets of an engine, and how the others are reached.
 *
 * Every sleeper first says where it sleeps, then looks once more for work; every waker first
 * leaves the work, then looks where the sleeper is. With sequentially consistent atomics one of
 * the two always sees the other.
 */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cancel.h"
#include "base/clock.h"
#include "base/util.h"
#include "rnic/cq.h"
#include "rnic/engine.h"
#include "rnic/engine_priv.h"
#include "rnic/umem.h"

/* How long after its last poll a caller is trusted to poll again. */
#define LEASE_MS 2
#define LEASE_NS (LEASE_MS * NSEC_PER_MSEC)
/* A wait with nothing happening for this long lets the thread sleep without a limit. */
#define DEEP_AFTER_NS (20 * NSEC_PER_MSEC)
/*
 * An empty poll looks at the hot link so often before it gives the processor back to the program.
 * Every so many empty polls epoll is asked about all links: rarely where there is only one.
 */
#define HOT_TRIES         4
#define SWEEP_EVERY_ALONE 64
#define SWEEP_EVERY       2
#define SWEEP_ANYWAY      64 /* polls, empty or not: one link may always have data */
#define BATCH             64
/* So many polls must find data in the hot link before it leaves the epoll set. */
#define PARK_AFTER 32
#define PARKED_MS  1 /* ... and is looked at so often if it cannot return */
/* The program has closed our epoll set, and there is no room for another: look again after this. */
#define MEND_MS 100
/*
 * Before it sleeps, a wait polls for so long; sleeping and being woken costs about as much. When
 * that was in vain, more and more waits go without, up to 63 of 64.
 */
#define SPIN_NS       (50 * NSEC_PER_MSEC / 1000)
#define SPIN_MISS_MAX 6
#define SPIN_POLLS    4 /* between looks at the clock */

static _Thread_local const struct engine *self THREAD_LOCAL_FAST;

bool engine_is_self(const struct engine *e)
{
	return self == e;
}

static void futex_sleep(_Atomic uint32_t *word, int timeout_ms)
{
	struct timespec ts = { timeout_ms / 1000, (timeout_ms % 1000) * 1000000l };

	syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, 0, timeout_ms < 0 ? NULL : &ts, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

void engine_kick_driver(struct engine *e)
{
	/* Fails only when the program has closed the set. The sleeper finds out by itself. */
	if (pollset_ring(&e->set))
		atomic_store(&e->lost, true);
}

void engine_wake(struct engine *e)
{
	atomic_store(&e->wake, 1);
	switch (atomic_load(&e->thread_mode)) {
	case THREAD_IN_EPOLL: engine_kick_driver(e); break;
	case THREAD_IN_FUTEX:
	case THREAD_IN_DEEP: futex_wake(&e->wake); break;
	default: break;
	}
}

static bool take_token(struct engine *e, int who)
{
	int none = DRIVER_NONE;

	return atomic_compare_exchange_strong(&e->driver, &none, who);
}

static void wake_waiters(struct engine *e)
{
	if (!atomic_load(&e->waiters))
		return;
	pthread_mutex_lock(&e->work_lock);
	pthread_cond_broadcast(&e->work_cond);
	pthread_mutex_unlock(&e->work_lock);
}

static void drop_token(struct engine *e)
{
	atomic_store(&e->driver, DRIVER_NONE);
	wake_waiters(e);
	/* While a caller held the token for long (asleep in a wait, or stopped by the scheduler in
	 * the middle of a poll), the thread went to sleep without a limit: it must look again. */
	if (atomic_load(&e->thread_mode) == THREAD_IN_DEEP)
		engine_wake(e);
}

void engine_news(struct engine *e)
{
	if (atomic_load(&e->sleeping) && atomic_load(&e->driver) == DRIVER_CALLER)
		engine_kick_driver(e);
	wake_waiters(e);
}

static void dispatch(struct engine *e, const struct epoll_event *evs, int n)
{
	for (int i = 0; i < n; i++) {
		struct engine_io *io = engine_io_of(e, evs[i].data.u64);

		if (io)
			io->ready(io, evs[i].events);
	}
	if (n > 0)
		atomic_fetch_add_explicit(&e->events, (uint64_t)n, memory_order_relaxed);
}

/* ---- the engine's own thread ---- */

static int sooner(int a, int b)
{
	if (a < 0)
		return b;
	if (b < 0)
		return a;
	return a < b ? a : b;
}

static void thread_sleep(struct engine *e, int mode, int timeout_ms)
{
	/* A caller that stopped driving before it could see this wakes nobody: look for that, too. */
	bool deserted;

	atomic_store(&e->thread_mode, mode);
	deserted = mode == THREAD_IN_DEEP && atomic_load(&e->driver) == DRIVER_NONE;
	if (!deserted && !atomic_load(&e->wake))
		futex_sleep(&e->wake, timeout_ms);
	atomic_store(&e->thread_mode, THREAD_RUNNING);
}

/*
 * Under lock, holding the token: the parked link returns to the epoll set. Where the kernel has no
 * memory for that, it is asked by hand. false: it could not return, and must be asked again soon.
 */
static bool return_parked(struct engine *e)
{
	struct engine_io *io;

	if (engine_unpark(e) == 0)
		return true;
	io = atomic_load(&e->parked);
	io->ready(io, io->events & (EPOLLIN | EPOLLOUT));
	return !atomic_load(&e->parked);
}

/*
 * Holds the token and is about to sleep: every link must be in the epoll set. Returns how long to
 * sleep.
 */
static int leave_none_parked(struct engine *e, int timeout_ms)
{
	if (!atomic_load(&e->parked))
		return timeout_ms;
	engine_lock(e);
	if (!return_parked(e))
		timeout_ms = sooner(timeout_ms, PARKED_MS);
	engine_unlock(e);
	return timeout_ms;
}

/* After a sleep in the set that brought no event. 0, or why there is no set to sleep in. */
static int look_after_set(struct engine *e)
{
	int rc;

	engine_lock(e);
	rc = engine_mend(e);
	engine_unlock(e);
	return rc;
}

static void thread_drive(struct engine *e, int timeout_ms)
{
	struct epoll_event evs[BATCH];
	int n = 0, rc = 0;

	timeout_ms = leave_none_parked(e, timeout_ms);
	atomic_store(&e->thread_mode, THREAD_IN_EPOLL);
	atomic_store(&e->sleeping, 1);
	if (!atomic_load(&e->wake) && !atomic_load(&e->n_kicks)) {
		n = pollset_wait(&e->set, evs, BATCH, timeout_ms);
		if (pollset_failed(n) || (n == 0 && timeout_ms < 0))
			atomic_store(&e->lost, true);
	}
	atomic_store(&e->sleeping, 0);
	atomic_store(&e->thread_mode, THREAD_RUNNING);
	if (n > 0) {
		engine_lock(e);
		dispatch(e, evs, n);
		engine_unlock(e);
	}
	if (atomic_load(&e->lost))
		rc = look_after_set(e);
	drop_token(e);
	if (rc)
		thread_sleep(e, THREAD_IN_FUTEX, MEND_MS);
}

/* What the thread remembers while it stands by. */
struct stand_by {
	uint32_t lease;
	uint64_t lease_since;
	uint64_t events;
	uint64_t events_since;
};

/*
 * A caller drives. While it polls, its lease changes all the time; a lease that did not change for
 * a whole period has lapsed. While it sleeps in a wait, it holds the token: after some quiet we
 * sleep without a limit and it wakes us when it leaves. Callers never look at the clock for this.
 */
static void thread_stand_by(struct engine *e, int timer_ms, struct stand_by *s)
{
	uint32_t lease = atomic_load(&e->lease);
	uint64_t events = atomic_load_explicit(&e->events, memory_order_relaxed);
	uint64_t now = clock_now();

	if (lease != s->lease) {
		s->lease = lease;
		s->lease_since = now;
	}
	if (lease && now - s->lease_since >= LEASE_NS) {
		atomic_compare_exchange_strong(&e->lease, &lease, 0);
		return;
	}
	if (events != s->events || lease) {
		s->events = events;
		s->events_since = now;
	}
	if (now - s->events_since > DEEP_AFTER_NS)
		thread_sleep(e, THREAD_IN_DEEP, timer_ms);
	else
		thread_sleep(e, THREAD_IN_FUTEX, sooner(timer_ms, lease ? LEASE_MS : 5));
}

void *engine_main(void *arg)
{
	struct engine *e = arg;
	struct stand_by standing = { .events_since = clock_now() };
	char name[16];
	int timer_ms;

	self = e;
	umem_guarded = true;
	cancel_never();
	snprintf(name, sizeof(name), "flue-%d", e->cpu);
	pthread_setname_np(pthread_self(), name);
	for (;;) {
		/* First, so that whoever leaves something from here on is noticed below. */
		atomic_store(&e->wake, 0);
		if (atomic_load(&e->stop))
			return NULL;
		engine_lock(e);
		timer_ms = engine_run_timers(e);
		engine_unlock(e);
		engine_run_notes(e);
		if (atomic_load(&e->wake))
			continue;
		if (atomic_load(&e->lease) == 0 && take_token(e, DRIVER_THREAD))
			thread_drive(e, timer_ms);
		else
			thread_stand_by(e, timer_ms, &standing);
	}
}

/* ---- callers ---- */

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
	uint32_t every = e->n_ios > 1 ? SWEEP_EVERY : SWEEP_EVERY_ALONE;
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
	n = pollset_wait(&e->set, evs, BATCH, 0);
	if (pollset_failed(n))
		engine_mend(e);
	dispatch(e, evs, n);
}

/* Under lock. The link resets idle_polls when it had data. */
static void poll_links(struct engine *e)
{
	struct engine_io *parked = atomic_load_explicit(&e->parked, memory_order_relaxed);
	struct engine_io *hot;

	if (parked && (parked != e->hot || parked->events != EPOLLIN))
		return_parked(e);
	hot = e->hot;
	if (time_to_sweep(e) || !hot) {
		sweep(e);
		return;
	}
	for (int i = 0; i < HOT_TRIES && e->hot == hot && e->idle_polls; i++)
		hot->ready(hot, EPOLLIN);
	if (e->hot != hot || e->idle_polls)
		return;
	if (++e->hot_hits >= PARK_AFTER && !parked && hot->events == EPOLLIN)
		engine_park(e, hot);
}

void engine_poll(struct engine *e)
{
	take_lease(e);
	if (!take_token(e, DRIVER_CALLER))
		return;
	if (pthread_mutex_trylock(&e->lock) == 0) {
		poll_links(e);
		engine_unlock(e);
	}
	drop_token(e);
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
				poll_links(e);
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
	drop_token(e);
}

/* Holds the token: sleep until a socket is ready, the CQ has news or time is over. */
static int caller_drive(struct engine *e, struct cq *cq, int timeout_ms, int cancel_was)
{
	struct epoll_event evs[BATCH];
	int n = 0, err = 0, rc;

	if (spin(e, cq, timeout_ms))
		return 0;
	timeout_ms = leave_none_parked(e, timeout_ms);
	atomic_store(&e->sleeping, 1);
	if (!cq_has_news(cq) && !atomic_load(&e->n_kicks)) {
		pthread_cleanup_push(give_up_driving, e);
		cancel_window_open(cancel_was);
		n = pollset_wait(&e->set, evs, BATCH, timeout_ms);
		err = n < 0 ? -errno : 0;
		cancel_window_shut();
		pthread_cleanup_pop(0);
		if (err && err != -EINTR) {
			atomic_store(&e->lost, true);
			err = 0;
		}
	}
	atomic_store(&e->sleeping, 0);
	engine_lock(e);
	dispatch(e, evs, n);
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
		cancel_window_open(cancel_was);
		if (deadline == UINT64_MAX)
			pthread_cond_wait(&e->work_cond, &e->work_lock);
		else
			pthread_cond_timedwait(&e->work_cond, &e->work_lock, &ts);
		cancel_window_shut();
	}
	pthread_cleanup_pop(1);
}

static int start(struct engine *e)
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
	int rc = start(e);

	while (rc == 0 && !cq_has_news(cq)) {
		take_lease(e);
		if (take_token(e, DRIVER_CALLER)) {
			rc = caller_drive(e, cq, timeout_ms, cancel_was);
			take_lease(e);
			drop_token(e);
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
