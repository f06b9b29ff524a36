/* SPDX-License-Identifier: MIT */
/* Shared by engine.c (queues, timers), engine_io.c (sockets), engine_drive.c (the thread) and
 * engine_poll.c (callers). */
#ifndef FLUE_RNIC_ENGINE_PRIV_H
#define FLUE_RNIC_ENGINE_PRIV_H

#include <limits.h>

#include "rnic/engine.h"

struct epoll_event;

/* How epoll names the wake-up, which is no socket. */
#define KICK_NAME UINT64_MAX
/* Events taken from the set at a time. */
#define BATCH 64

enum engine_driver { DRIVER_NONE = 0, DRIVER_THREAD, DRIVER_CALLER };

enum thread_mode {
	THREAD_RUNNING = 0, /* will look at `wake` before it sleeps */
	THREAD_IN_EPOLL,    /* reached by ringing the set */
	THREAD_IN_FUTEX,    /* reached through the futex */
	THREAD_IN_DEEP,     /* the same, and nobody promised a time limit */
};

/* For probes: who sleeps, and where. */
enum engine_sleeper {
	SLEEPER_THREAD,   /* the engine's thread, for its sockets */
	SLEEPER_STANDBY,  /* the same, while a caller drives */
	SLEEPER_CALLER,   /* a thread of the program, for the sockets */
	SLEEPER_FOLLOWER, /* the same, while another one drives */
};

/* The right to wait for sockets; one thread has it. false: somebody else does. */
static inline bool engine_take_token(struct engine *e, int who)
{
	int none = DRIVER_NONE;

	return atomic_compare_exchange_strong(&e->driver, &none, who);
}
/* Under lock: hands out what epoll_wait brought. */
void engine_dispatch(struct engine *e, const struct epoll_event *evs, int n);
/*
 * Under lock, holding the token: the parked link returns to the epoll set. Where the kernel has no
 * memory for that, it is asked by hand. false: it could not return, and must be asked again soon.
 */
bool engine_return_parked(struct engine *e);
/* Holds the token and is about to sleep: every link must be in the epoll set, or armed. Returns how
 * long to sleep, in ns; < 0: no limit. */
int64_t engine_prepare_sleep(struct engine *e, int64_t timeout_ns);

/* The sooner of two times to sleep. */
static inline int64_t engine_sooner(int64_t a, int64_t b)
{
	if (a < 0)
		return b;
	if (b < 0)
		return a;
	return a < b ? a : b;
}

/* For probes. */
static inline int engine_ms(int64_t ns)
{
	int64_t ms = ns < 0 ? -1 : (ns + 999999) / 1000000;

	return ms > INT_MAX ? INT_MAX : (int)ms;
}

/* The thread's main function. */
void *engine_main(void *arg);
/* Makes the thread look around soon. Any lock may be held. */
void engine_wake(struct engine *e);
/* Wakes who waits for the token, or for news. */
void engine_wake_waiters(struct engine *e);
/* Wakes whoever sleeps in epoll_wait. */
void engine_kick_driver(struct engine *e);
static inline void engine_drop_token(struct engine *e)
{
	atomic_store(&e->driver, DRIVER_NONE);
	if (atomic_load(&e->waiters))
		engine_wake_waiters(e);
	/* While a caller held the token for long (asleep in a wait, or stopped by the scheduler in
	 * the middle of a poll), the thread went to sleep without a limit: it must look again. */
	if (atomic_load(&e->thread_mode) == THREAD_IN_DEEP)
		engine_wake(e);
}

/* Engine's thread, no lock held: runs all notes. */
void engine_run_notes(struct engine *e);
/* Under lock: fires what is due; returns ns until the next timer or -1. */
int64_t engine_run_timers(struct engine *e);
/* The same for a caller, if one that is near is due. */
void engine_run_near(struct engine *e);
/* For the caller that is about to sleep: no longer than until the next timer that is near. */
int64_t engine_until_near(struct engine *e, int64_t timeout_ns);
/* Under lock: the descriptor that an epoll event names, or NULL when it is gone. */
struct engine_io *engine_io_of(struct engine *e, uint64_t name);

/* Under lock: the set may be lost. 0: there is one that works. -errno: not yet; try again in a while. */
int engine_mend(struct engine *e);
/* Under lock: every event that somebody took from the set and did not handle comes again. */
void engine_renew(struct engine *e);
/* Under lock, by who holds the token: io leaves the epoll set. */
void engine_park(struct engine *e, struct engine_io *io);
/* Under lock: it returns. -errno: it could not, and stays parked. */
int engine_unpark(struct engine *e);

#endif
