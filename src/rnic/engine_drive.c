/* SPDX-License-Identifier: MIT */
/*
 * The engine's own thread, and how sleepers are reached. Callers that poll and wait: engine_poll.c.
 *
 * Every sleeper first says where it sleeps, then looks once more for work; every waker first
 * leaves the work, then looks where the sleeper is. With sequentially consistent atomics one of
 * the two always sees the other.
 */
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cancel.h"
#include "base/clock.h"
#include "base/probe.h"
#include "base/util.h"
#include "rnic/engine.h"
#include "rnic/engine_priv.h"
#include "rnic/link.h"
#include "rnic/umem.h"

/* How long after its last poll a caller is trusted to poll again. */
#define LEASE_NS (2 * NSEC_PER_MSEC)
/* How long the thread stands by without a lease that it could watch. */
#define STAND_BY_NS (5 * NSEC_PER_MSEC)
/* A wait with nothing happening for this long lets the thread sleep without a limit. */
#define DEEP_AFTER_NS (20 * NSEC_PER_MSEC)
#define PARKED_NS     NSEC_PER_MSEC /* ... and is looked at so often if it cannot return */
/* The program has closed our epoll set, and there is no room for another: look again after this. */
#define MEND_NS (100 * NSEC_PER_MSEC)

static _Thread_local const struct engine *self THREAD_LOCAL_FAST;

bool engine_is_self(const struct engine *e)
{
	return self == e;
}

static void futex_sleep(_Atomic uint32_t *word, int64_t timeout_ns)
{
	const int64_t second = NSEC_PER_SEC;
	struct timespec ts = { timeout_ns / second, timeout_ns % second };

	syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, 0, timeout_ns < 0 ? NULL : &ts, NULL, 0);
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

void engine_wake_waiters(struct engine *e)
{
	pthread_mutex_lock(&e->work_lock);
	pthread_cond_broadcast(&e->work_cond);
	pthread_mutex_unlock(&e->work_lock);
}

void engine_news(struct engine *e)
{
	if (atomic_load(&e->sleeping) && atomic_load(&e->driver) == DRIVER_CALLER)
		engine_kick_driver(e);
	if (atomic_load(&e->waiters))
		engine_wake_waiters(e);
}

void engine_dispatch(struct engine *e, const struct epoll_event *evs, int n)
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

/* The thread is about to sleep, so long at most: timers that are due later need not wake it. */
static void expect_thread(struct engine *e, int64_t timeout_ns)
{
	uint64_t back = UINT64_MAX;

	if (timeout_ns >= 0)
		back = clock_now() + (uint64_t)timeout_ns;
	atomic_store(&e->back_at, back);
}

static void thread_sleep(struct engine *e, int mode, int64_t timeout_ns)
{
	/* A caller that stopped driving before it could see this wakes nobody: look for that, too. */
	bool deserted;

	expect_thread(e, timeout_ns);
	atomic_store(&e->thread_mode, mode);
	deserted = mode == THREAD_IN_DEEP && atomic_load(&e->driver) == DRIVER_NONE;
	if (!deserted && !atomic_load(&e->wake)) {
		PROBE(engine_sleep, e->cpu, (uint32_t)SLEEPER_STANDBY, engine_ms(timeout_ns));
		futex_sleep(&e->wake, timeout_ns);
		PROBE(engine_wake, e->cpu, (uint32_t)SLEEPER_STANDBY, 0);
	}
	atomic_store(&e->thread_mode, THREAD_RUNNING);
	atomic_store(&e->back_at, UINT64_MAX);
}

/*
 * Under lock, holding the token: the parked link returns to the epoll set. Where the kernel has no
 * memory for that, it is asked by hand. false: it could not return, and must be asked again soon.
 */
bool engine_return_parked(struct engine *e)
{
	struct engine_io *io;

	if (engine_unpark(e) == 0)
		return true;
	io = atomic_load(&e->parked);
	io->ready(io, io->events & (EPOLLIN | EPOLLOUT));
	return !atomic_load(&e->parked);
}

/* Under lock, holding the token. false: something has come, and was brought in. */
static bool arm_links(struct engine *e)
{
	struct link *l, *next;
	bool quiet = true;

	LIST_FOREACH_SAFE(l, &e->links, of_engine, next) {
		if (l->ops->arm(l))
			continue;
		quiet = false;
		l->ops->poll(l);
	}
	return quiet;
}

int64_t engine_prepare_sleep(struct engine *e, int64_t timeout_ns)
{
	if (!atomic_load(&e->parked) && !atomic_load(&e->n_links) && !atomic_load(&e->n_later))
		return timeout_ns;
	engine_lock(e);
	engine_run_later(e);
	if (atomic_load(&e->parked) && !engine_return_parked(e))
		timeout_ns = engine_sooner(timeout_ns, PARKED_NS);
	if (!arm_links(e))
		timeout_ns = 0;
	engine_unlock(e);
	return timeout_ns;
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

static void thread_drive(struct engine *e, int64_t timeout_ns)
{
	struct epoll_event evs[BATCH];
	int n = 0, rc = 0;

	timeout_ns = engine_prepare_sleep(e, timeout_ns);
	expect_thread(e, engine_sooner(timeout_ns, POLLSET_LOOK_MS * (int64_t)NSEC_PER_MSEC));
	atomic_store(&e->thread_mode, THREAD_IN_EPOLL);
	atomic_store(&e->sleeping, 1);
	if (!atomic_load(&e->wake) && !atomic_load(&e->n_kicks)) {
		PROBE(engine_sleep, e->cpu, (uint32_t)SLEEPER_THREAD, engine_ms(timeout_ns));
		n = pollset_wait_ns(&e->set, evs, BATCH, timeout_ns);
		PROBE(engine_wake, e->cpu, (uint32_t)SLEEPER_THREAD, n);
		if (pollset_failed(n) || (n == 0 && timeout_ns < 0))
			atomic_store(&e->lost, true);
	}
	atomic_store(&e->sleeping, 0);
	atomic_store(&e->thread_mode, THREAD_RUNNING);
	atomic_store(&e->back_at, UINT64_MAX);
	if (n > 0) {
		engine_lock(e);
		engine_dispatch(e, evs, n);
		engine_unlock(e);
	}
	if (atomic_load(&e->lost))
		rc = look_after_set(e);
	engine_drop_token(e);
	if (rc)
		thread_sleep(e, THREAD_IN_FUTEX, MEND_NS);
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
static void thread_stand_by(struct engine *e, int64_t timer_ns, struct stand_by *s)
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
		thread_sleep(e, THREAD_IN_DEEP, timer_ns);
	else
		thread_sleep(e, THREAD_IN_FUTEX,
			     engine_sooner(timer_ns, lease ? LEASE_NS : STAND_BY_NS));
}

void *engine_main(void *arg)
{
	struct engine *e = arg;
	struct stand_by standing = { .events_since = clock_now() };
	char name[16];
	int64_t timer_ns;

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
		timer_ns = engine_run_timers(e);
		engine_unlock(e);
		engine_run_notes(e);
		if (atomic_load(&e->wake))
			continue;
		if (atomic_load(&e->lease) == 0 && engine_take_token(e, DRIVER_THREAD))
			thread_drive(e, timer_ns);
		else
			thread_stand_by(e, timer_ns, &standing);
	}
}
