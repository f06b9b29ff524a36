/* SPDX-License-Identifier: MIT */
#include "access/task.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>

#include "base/cancel.h"
#include "base/clock.h"

#define BATCH   32
#define MEND_NS (100 * 1000 * 1000) /* before the next attempt to have a set */

void acc_tasks_init(struct acc_tasks *ts)
{
	memset(ts, 0, sizeof(*ts));
	ts->lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	ts->idle = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
	pollset_init(&ts->set, 0);
	TAILQ_INIT(&ts->all);
}

void acc_tasks_place(struct acc_tasks *ts, const int *cpus, uint32_t n)
{
	CPU_ZERO(&ts->may_run);
	for (uint32_t i = 0; i < n; i++)
		CPU_SET((unsigned)cpus[i], &ts->may_run);
	ts->placed = true;
}

static void wake(struct acc_tasks *ts)
{
	/* Fails only when the program has closed the set. The thread finds out by itself. */
	if (pollset_ring(&ts->set))
		atomic_store(&ts->lost, true);
}

/* The next task to run, taken out of its waiting; NULL: *timeout_ms tells how long. Lock held. */
static struct acc_task *pick(struct acc_tasks *ts, int *timeout_ms)
{
	uint64_t now = clock_now(), first = UINT64_MAX;
	struct acc_task *t;

	TAILQ_FOREACH(t, &ts->all, link) {
		if (t->soon || (t->due && t->due <= now)) {
			t->soon = false;
			if (t->due <= now)
				t->due = 0;
			/* To the end of the list, so that all get their turn. */
			TAILQ_REMOVE(&ts->all, t, link);
			TAILQ_INSERT_TAIL(&ts->all, t, link);
			return t;
		}
		if (t->due && t->due < first)
			first = t->due;
	}
	*timeout_ms = -1;
	if (first != UINT64_MAX) {
		uint64_t ms = (first - now + NSEC_PER_MSEC - 1) / NSEC_PER_MSEC;

		*timeout_ms = ms > INT_MAX ? INT_MAX : (int)ms;
	}
	return NULL;
}

static void note_ready(struct acc_tasks *ts, const struct epoll_event *evs, int n)
{
	struct acc_task *t;

	for (int i = 0; i < n; i++) {
		/* By name: a task that was stopped meanwhile is not found, nor is the bell. */
		TAILQ_FOREACH(t, &ts->all, link)
			if (t->name == evs[i].data.u32)
				t->soon = true;
	}
}

/* Lock held. Another set in the place of one that the program has closed; every task looks for itself whether
 * its descriptor still is one, and asks for it again. */
static int mend(struct acc_tasks *ts)
{
	struct pollset fresh;
	struct acc_task *t;
	int rc;

	atomic_store(&ts->lost, false);
	if (pollset_ring(&ts->set) == 0)
		return 0;
	pollset_init(&fresh, 0);
	rc = pollset_open(&fresh);
	if (rc) {
		atomic_store(&ts->lost, true);
		return rc;
	}
	pollset_replace(&ts->set, &fresh);
	TAILQ_FOREACH(t, &ts->all, link) {
		t->fd = -1;
		t->soon = true;
	}
	return 0;
}

static void *tasks_main(void *arg)
{
	const struct timespec patience = { .tv_nsec = MEND_NS };
	struct acc_tasks *ts = arg;
	struct epoll_event evs[BATCH];
	struct acc_task *t;
	int timeout_ms, n, rc = 0;

	cancel_never();
	pthread_setname_np(pthread_self(), "flue-access");
	pthread_mutex_lock(&ts->lock);
	while (!ts->stop) {
		t = pick(ts, &timeout_ms);
		if (t) {
			ts->running = t;
			pthread_mutex_unlock(&ts->lock);
			t->run(t);
			pthread_mutex_lock(&ts->lock);
			ts->running = NULL;
			pthread_cond_broadcast(&ts->idle);
			continue;
		}
		pthread_mutex_unlock(&ts->lock);
		if (rc)
			nanosleep(&patience, NULL);
		n = pollset_wait(&ts->set, evs, BATCH, timeout_ms);
		if (pollset_failed(n) || (n == 0 && timeout_ms < 0))
			atomic_store(&ts->lost, true);
		pthread_mutex_lock(&ts->lock);
		note_ready(ts, evs, n);
		rc = atomic_load(&ts->lost) ? mend(ts) : 0;
	}
	pthread_mutex_unlock(&ts->lock);
	return NULL;
}

/* Lock held. */
static int open_set(struct acc_tasks *ts)
{
	return pollset_is_open(&ts->set) ? 0 : pollset_open(&ts->set);
}

int acc_tasks_lamp(struct acc_tasks *ts)
{
	int rc;

	pthread_mutex_lock(&ts->lock);
	rc = open_set(ts);
	if (rc == 0)
		rc = atomic_load(&ts->set.lamp);
	pthread_mutex_unlock(&ts->lock);
	return rc;
}

static int create_thread(struct acc_tasks *ts)
{
	sigset_t all, old;
	pthread_attr_t attr;
	int rc = pthread_attr_init(&attr);

	if (rc)
		return rc;
	if (ts->placed)
		pthread_attr_setaffinity_np(&attr, sizeof(ts->may_run), &ts->may_run);
	/* Signals are the program's; its threads handle them, not ours. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(&ts->thread, &attr, tasks_main, ts);
	if (rc == EINVAL) /* the processors were taken from us since the adapter was opened */
		rc = pthread_create(&ts->thread, NULL, tasks_main, ts);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attr);
	return rc;
}

/* Lock held. */
static int start_thread(struct acc_tasks *ts)
{
	int rc = open_set(ts);

	if (rc)
		return rc;
	rc = create_thread(ts);
	ts->started = rc == 0;
	return -rc;
}

void acc_tasks_fini(struct acc_tasks *ts, bool inherited)
{
	if (ts->started && !inherited) {
		pthread_mutex_lock(&ts->lock);
		ts->stop = true;
		pthread_mutex_unlock(&ts->lock);
		wake(ts);
		pthread_join(ts->thread, NULL);
	}
	if (inherited)
		pollset_abandon(&ts->set);
	else
		pollset_close(&ts->set);
}

int acc_task_start(struct acc_task *t, struct acc_tasks *ts, void (*run)(struct acc_task *t))
{
	int rc = 0;

	pthread_mutex_lock(&ts->lock);
	if (!ts->started)
		rc = start_thread(ts);
	if (rc == 0) {
		*t = (struct acc_task) { .home = ts, .run = run, .fd = -1 };
		if (!++ts->next_name)
			ts->next_name = 1;
		t->name = ts->next_name;
		TAILQ_INSERT_TAIL(&ts->all, t, link);
	}
	pthread_mutex_unlock(&ts->lock);
	return rc;
}

static void unwatch_locked(struct acc_task *t)
{
	if (t->fd >= 0)
		pollset_ctl(&t->home->set, EPOLL_CTL_DEL, t->fd, 0, 0);
	t->fd = -1;
}

void acc_task_stop(struct acc_task *t, bool inherited)
{
	struct acc_tasks *ts = t->home;

	/* In a child the lock may be anybody's and the epoll set is the parent's. */
	if (!t->name || inherited)
		return;
	pthread_mutex_lock(&ts->lock);
	unwatch_locked(t);
	TAILQ_REMOVE(&ts->all, t, link);
	t->name = 0;
	while (ts->running == t && !pthread_equal(pthread_self(), ts->thread))
		pthread_cond_wait(&ts->idle, &ts->lock);
	pthread_mutex_unlock(&ts->lock);
}

void acc_task_soon(struct acc_task *t)
{
	struct acc_tasks *ts = t->home;

	pthread_mutex_lock(&ts->lock);
	t->soon = true;
	pthread_mutex_unlock(&ts->lock);
	wake(ts);
}

void acc_task_at(struct acc_task *t, uint64_t due)
{
	struct acc_tasks *ts = t->home;
	bool sooner;

	pthread_mutex_lock(&ts->lock);
	sooner = due && (!t->due || due < t->due);
	t->due = due;
	pthread_mutex_unlock(&ts->lock);
	if (sooner && !pthread_equal(pthread_self(), ts->thread))
		wake(ts);
}

/* Lock held. */
static int watch_once(struct acc_task *t, int fd, uint32_t events)
{
	return pollset_ctl(&t->home->set, t->fd < 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, fd,
			   events | EPOLLONESHOT, t->name);
}

int acc_task_watch(struct acc_task *t, int fd, uint32_t events)
{
	struct acc_tasks *ts = t->home;
	int rc;

	pthread_mutex_lock(&ts->lock);
	rc = watch_once(t, fd, events);
	/* Is it the set that is gone? */
	if (rc && pollset_ring(&ts->set) && mend(ts) == 0)
		rc = watch_once(t, fd, events);
	if (rc == 0)
		t->fd = fd;
	pthread_mutex_unlock(&ts->lock);
	return rc;
}

void acc_task_unwatch(struct acc_task *t)
{
	pthread_mutex_lock(&t->home->lock);
	unwatch_locked(t);
	pthread_mutex_unlock(&t->home->lock);
}
