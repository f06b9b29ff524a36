/* SPDX-License-Identifier: MIT */
/* Shared by engine.c (queues, sockets, timers) and engine_drive.c (who waits, when). */
#ifndef FLUE_RNIC_ENGINE_PRIV_H
#define FLUE_RNIC_ENGINE_PRIV_H

#include "rnic/engine.h"

enum engine_driver { DRIVER_NONE = 0, DRIVER_THREAD, DRIVER_CALLER };

enum thread_mode {
	THREAD_RUNNING = 0, /* will look at `wake` before it sleeps */
	THREAD_IN_EPOLL,    /* reached by ringing the set */
	THREAD_IN_FUTEX,    /* reached through the futex */
	THREAD_IN_DEEP,     /* the same, and nobody promised a time limit */
};

/* The thread's main function. */
void *engine_main(void *arg);
/* Makes the thread look around soon. Any lock may be held. */
void engine_wake(struct engine *e);
/* Wakes whoever sleeps in epoll_wait. */
void engine_kick_driver(struct engine *e);
/* Engine's thread, no lock held: runs all notes. */
void engine_run_notes(struct engine *e);
/* Under lock: fires what is due; returns ms until the next timer or -1. */
int engine_run_timers(struct engine *e);
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
