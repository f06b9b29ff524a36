/* SPDX-License-Identifier: MIT */
/*
 * Background work of the access layer: one thread for an adapter, made on first need, that waits
 * for descriptors and times on behalf of objects which must not block anybody (sockets in
 * streaming mode). Providers have threads of their own; nothing here moves RDMA data.
 *
 * A task belongs to its object. It asks to be run: when its descriptor is ready, when a time has
 * come, or soon. Each asking is for one run; run() is called on the thread with no lock held and
 * one at a time, and asks again for what it still needs.
 */
#ifndef FLUE_ACCESS_TASK_H
#define FLUE_ACCESS_TASK_H

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "base/pollset.h"

struct acc_task;

struct acc_tasks {
	pthread_mutex_t lock; /* leaf */
	pthread_cond_t idle;  /* a run has ended */
	pthread_t thread;
	bool started, stop;
	struct pollset set; /* not open until first use */
	atomic_bool lost;   /* the program has closed it */
	cpu_set_t may_run;
	bool placed; /* `may_run` says where */
	TAILQ_HEAD(, acc_task) all;
	struct acc_task *running;
	uint32_t next_name;
};

struct acc_task {
	struct acc_tasks *home;
	void (*run)(struct acc_task *t);
	uint32_t name; /* what epoll knows; 0: not started */
	int fd;        /* in the epoll set, or -1 */
	bool soon;
	uint64_t due; /* 0: no time asked for */
	TAILQ_ENTRY(acc_task) link;
};

void acc_tasks_init(struct acc_tasks *ts);
/* Before the first task: the thread keeps to these processors. */
void acc_tasks_place(struct acc_tasks *ts, const int *cpus, uint32_t n);
/* No task is left. `inherited`: in a child of fork(), where there is no thread. */
void acc_tasks_fini(struct acc_tasks *ts, bool inherited);

/* The lamp for flags (base/pollset.h). -errno. */
int acc_tasks_lamp(struct acc_tasks *ts);

/* -ENOMEM, -EMFILE, -EAGAIN. */
int acc_task_start(struct acc_task *t, struct acc_tasks *ts, void (*run)(struct acc_task *t));
/* Returns when it does not run and never will again, unless called from its own run(). */
void acc_task_stop(struct acc_task *t, bool inherited);

void acc_task_soon(struct acc_task *t);
/* At a time of clock_now(), or 0: no time. Replaces the last one. */
void acc_task_at(struct acc_task *t, uint64_t due);
/* Watch fd once for `events` (EPOLL*). One descriptor at a time. -errno of epoll. */
int acc_task_watch(struct acc_task *t, int fd, uint32_t events);
/* The descriptor is about to be given away or closed. */
void acc_task_unwatch(struct acc_task *t);

#endif
