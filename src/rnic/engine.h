/* SPDX-License-Identifier: MIT */
/*
 * The engine: one for each participating processor (CH-1). It owns the sockets of the queue
 * pairs, listeners and half-open connections that live on that processor.
 *
 * Who runs it. Three kinds of threads move bytes: the engine's own thread, made on first need
 * and bound to the processor; a caller that posts, which transmits at once if nobody else is
 * busy; and a caller that polls or waits, which takes over the whole engine for a while (a
 * lease) so that it pays for no hand-over between threads. All of them do it under `lock`.
 *
 * Driving. Whoever waits for sockets holds the driver token; there is one per engine. While a
 * caller's lease runs, the thread leaves the sockets alone and sleeps; it wakes when the lease
 * lapses, for timers, and for notes that must run on its processor. Asking a CQ for a notice
 * ends the lease, because the caller is about to look elsewhere.
 *
 * Up-calls never run under a lock and never on a caller's thread (which may hold locks of its
 * own). What is to be told is queued as a note and run by the engine's thread, in order: that is
 * what makes "on the CQ's processor" and "CONNECTED before DISCONNECTED" true.
 *
 * Locks: docs/design/locks.md. `lock` comes before every other lock of the RNIC.
 */
#ifndef FLUE_RNIC_ENGINE_H
#define FLUE_RNIC_ENGINE_H

#include <bsd/sys/queue.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/pollset.h"

struct engine;
struct cq;
struct link;
struct local;
struct mem_table;

struct ud_roads;

/* Something with a descriptor. ready() runs under the engine's lock. */
struct engine_io {
	int fd;
	uint64_t socket; /* which one that is: programs may close it behind our back */
	uint32_t events; /* what epoll watches now; 0: not in the set */
	uint32_t slot;   /* place in the engine's table + 1; 0: not watched yet */
	void (*ready)(struct engine_io *io, uint32_t events);
};

/* A timer; fire() runs under the engine's lock and may arm it again. */
struct engine_timer {
	uint64_t at; /* ns, as clock_now(); 0: not armed */
	void (*fire)(struct engine_timer *t);
	TAILQ_ENTRY(engine_timer) order;
};

/* Something to be told; run() is called on the engine's thread with no lock held. */
struct engine_note {
	void (*run)(struct engine_note *n);
	bool queued;
	bool helped;      /* by a caller that runs it now, see engine_await() */
	uint16_t awaited; /* by so many callers */
	TAILQ_ENTRY(engine_note) order;
};

/* Work another thread left for the holder of the lock; run() is called under the lock. */
struct engine_kick {
	void (*run)(struct engine_kick *k);
	atomic_bool queued;
	TAILQ_ENTRY(engine_kick) order;
};

/* Buffers of one size for staging; kept by the engine so that data paths do not allocate. */
#define ENGINE_BUF_SIZE  (128 * 1024)
#define ENGINE_BUFS_KEPT 8

struct engine_buf {
	SLIST_ENTRY(engine_buf) next;
	uint8_t data[ENGINE_BUF_SIZE];
};

/* Room for who sends, instead of the caller's stack: that may be a coroutine's, of 16 KiB. */
#define ENGINE_SCRATCH (24 * 1024)

struct engine_slot {
	struct engine_io *io; /* NULL: free */
	uint32_t generation;
};

TAILQ_HEAD(engine_timers, engine_timer);
TAILQ_HEAD(engine_notes, engine_note);
TAILQ_HEAD(engine_kicks, engine_kick);

struct engine {
	pthread_mutex_t lock;
	int cpu;
	uint32_t index;
	uint32_t serial;    /* no other engine of this process has it */
	cpu_set_t may_run;  /* where the thread may run until it is bound */
	bool bound;         /* to `cpu`; under lock */
	struct pollset set; /* not open until first use */
	atomic_bool lost;   /* the program has closed it: see engine_mend() */
	atomic_bool has_thread;
	pthread_t thread;
	atomic_bool stop;

	/* under lock */
	struct engine_slot *ios; /* by slot: epoll names slots, so a stale event hits nobody */
	uint32_t n_slots, n_ios, slot_hint;
	struct engine_io *hot; /* last link that had data: polled without asking epoll */
	uint32_t idle_polls;   /* polls since a link had data */
	uint32_t polls;        /* all polls while there are several links */
	/*
	 * A link that is polled again and again leaves the epoll set: the kernel then tells nobody
	 * about its data, which makes the peer's send cheaper. It returns before anybody sleeps.
	 */
	_Atomic(struct engine_io *) parked;
	uint32_t hot_hits; /* polls that found data in the hot link, since a link returned */
	/* A wait that is likely to be short spins first. Written by who holds the token. */
	uint32_t spin_skip;       /* waits left that do not */
	uint32_t spin_miss;       /* spins in a row that were in vain */
	LIST_HEAD(, link) links;  /* that have no descriptor: the engine asks them */
	_Atomic uint32_t n_links; /* ... how many */
	struct local *local;      /* links through memory (local.h); NULL: none yet */
	struct mem_table *mem;    /* what those show to their peers */

	struct ud_roads *roads; /* the same for datagrams (ud_priv.h) */
	struct engine_timers timers;
	/* When the next timer is due if that is soon, else 0: only then callers look at the clock. Written under lock. */
	_Atomic uint64_t near_at;
	SLIST_HEAD(, engine_buf) bufs;
	uint32_t n_bufs;
	struct engine_kicks later; /* run when a poll finds nothing, and before anybody sleeps */
	_Atomic uint32_t n_later;
	void *scratch; /* ENGINE_SCRATCH octets; never used across a call that may send */

	/* under work_lock (leaf) */
	pthread_mutex_t work_lock;
	pthread_cond_t work_cond; /* a note finished; the driver token is free; a CQ has news */
	struct engine_notes notes;
	struct engine_note *running; /* by the engine's thread, now */
	uint32_t helpers;            /* callers that run a note; the thread runs none then */
	struct engine_kicks kicks;
	_Atomic uint32_t n_kicks;

	/* waking and leases: atomics, see engine.c */
	atomic_int driver;      /* enum engine_driver */
	atomic_int sleeping;    /* the driver is, or is about to be, in epoll_wait */
	atomic_int waiters;     /* threads in work_cond for the token or for CQ news */
	atomic_int awaiting;    /* threads in engine_await() */
	_Atomic uint32_t lease; /* 0: none; else changed by every poll and wait */
	_Atomic uint32_t wake;  /* futex: the thread must look around */
	atomic_int thread_mode; /* enum thread_mode: how to reach the thread */
	_Atomic uint64_t
		back_at; /* when the sleeping thread looks for timers by itself; else never */
	_Atomic uint64_t events; /* ready events handled, for tests and balancing */
};

/* -ENOMEM: nothing to undo. */
int engine_init(struct engine *e, int cpu, uint32_t index);
/* Stops and joins the thread; the engine does nothing by itself any more. */
void engine_stop(struct engine *e);
/* All users are gone, and it was stopped. */
void engine_fini(struct engine *e);

void engine_lock(struct engine *e);
/* Runs what others left behind, then releases the lock. */
void engine_unlock(struct engine *e);
void engine_assert_locked(const struct engine *e);

/* Under lock. Starts the thread and the descriptors if need be. -ENOMEM, -EMFILE, -EAGAIN. */
int engine_start(struct engine *e);
/*
 * Under lock. From now on the thread runs on its own processor only, because a handler must. Before
 * that it may run on any of the adapter's: the scheduler knows better where it is cheap.
 */
void engine_bind(struct engine *e);
/* Under lock: the descriptor of `from` is that of `to`, and watched as it was. */
void engine_io_move(struct engine *e, struct engine_io *from, struct engine_io *to);
/* `fd`, a socket, is ours from now on. */
void engine_io_take(struct engine_io *io, int fd);
/* Is it still the same one? */
bool engine_io_is_ours(const struct engine_io *io);
/* Closes it, unless the program did. Not watched any more. */
void engine_io_close(struct engine_io *io);
/* Under lock; watch io->fd for `events` (EPOLL*); 0 stops watching. -errno from epoll_ctl. */
int engine_watch(struct engine *e, struct engine_io *io, uint32_t events);
/* Under lock: no more watching; the caller still owns the descriptor. */
void engine_forget(struct engine *e, struct engine_io *io);

/* Under lock: the engine asks l whether something has come (link_ops.poll), and before somebody sleeps
 * (link_ops.arm). */
void engine_add_link(struct engine *e, struct link *l);
void engine_remove_link(struct engine *e, struct link *l);
/* Something has come to a link that was armed. Any thread; any lock may be held. */
void engine_ring(struct engine *e);

/* Under lock. Whoever runs the engine then fires it: its thread, and callers that poll or wait. */
void engine_timer_arm_ns(struct engine *e, struct engine_timer *t, uint64_t delay_ns);
void engine_timer_arm(struct engine *e, struct engine_timer *t, uint64_t delay_ms);
void engine_timer_stop(struct engine *e, struct engine_timer *t);

/* Any lock of the RNIC may be held. A note already queued is not queued again. The engine must
 * have been started, else the note waits until it is. */
void engine_tell(struct engine *e, struct engine_note *n);
/* No lock held. Takes the note out of the queue and waits until it does not run, unless it is
 * this very thread that runs it. */
void engine_untell(struct engine *e, struct engine_note *n);

/* No lock held: run k under the lock, now or by whoever holds it. */
void engine_kick(struct engine *e, struct engine_kick *k);
/* Under lock. */
void engine_unkick(struct engine *e, struct engine_kick *k);
/*
 * Under lock: run k under the lock when there is nothing else to do, and before anybody sleeps; k is for
 * nothing else. Something better may come along until then.
 */
void engine_later(struct engine *e, struct engine_kick *k);
void engine_not_later(struct engine *e, struct engine_kick *k);
void engine_run_later(struct engine *e);

/* Under lock. NULL: no memory. */
struct engine_buf *engine_buf_get(struct engine *e);
void engine_buf_put(struct engine *e, struct engine_buf *b);

/* A poll found nothing: drive the sockets for a moment and take a lease. No lock held. */
void engine_poll(struct engine *e);
/* Drive until `cq` has news or the time is over. 0, -ETIMEDOUT, -EINTR. No lock held. `cancel_was`: of the
 * caller, for the sleep; see base/cancel.h. */
int engine_wait(struct engine *e, struct cq *cq, int timeout_ms, int cancel_was);

/* As long as *word is `value`, which what the note tells changes. */
struct engine_await {
	const _Atomic uint32_t *word;
	uint32_t value;
	int timeout_ms; /* < 0: no limit */
	int cancel_was; /* of the caller, for the sleep; see base/cancel.h */
};

/*
 * Drive until `n` was told and run, by this thread or another, and *w->word has changed. Running it must not call the
 * program. 0, -ETIMEDOUT; -EOPNOTSUPP: it is the engine's own thread. No lock held; the engine was started.
 */
int engine_await(struct engine *e, struct engine_note *n, const struct engine_await *w);
void engine_end_lease(struct engine *e);
/* A CQ with waiting threads got a completion. Any lock may be held. */
void engine_news(struct engine *e);

/* The calling thread is this engine's own. */
bool engine_is_self(const struct engine *e);

/*
 * fork(): parent and child as described in docs/design/engine.md. The caller holds the locks of
 * all engines of the adapter before the first prepare and gives them back after the last parent,
 * with engine_unlock() (now or once more later) so that kicks which came meanwhile run: one
 * engine's holder may be telling another engine something. In the child the locks are made anew.
 */
void engine_fork_prepare(struct engine *e);
void engine_fork_parent(struct engine *e);
void engine_fork_child(struct engine *e);

#endif
