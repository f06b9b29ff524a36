/* SPDX-License-Identifier: MIT */
#include "access/task.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/cancel.h"
#include "base/clock.h"

#define BATCH 32

void acc_tasks_init(struct acc_tasks *ts)
{
	memset(ts, 0, sizeof(*ts));
	ts->lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	ts->idle = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
	ts->epfd = ts->evfd = -1;
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
	uint64_t one = 1;

	/* Fails only when the counter is full, and then the thread is awake anyway. */
	if (write(ts->evfd, &one, sizeof(one)) < 0)
		return;
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
	uint64_t drained;
	struct acc_task *t;

	for (int i = 0; i < n; i++) {
		if (evs[i].data.u32 == 0) {
			if (read(ts->evfd, &drained, sizeof(drained)) < 0)
				continue;
			continue;
		}
		/* By name: a task that was stopped meanwhile is not found. */
		TAILQ_FOREACH(t, &ts->all, link)
			if (t->name == evs[i].data.u32)
				t->soon = true;
	}
}

static void *tasks_main(void *arg)
{
	struct acc_tasks *ts = arg;
	struct epoll_event evs[BATCH];
	struct acc_task *t;
	int timeout_ms, n;

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
		n = epoll_wait(ts->epfd, evs, BATCH, timeout_ms);
		pthread_mutex_lock(&ts->lock);
		note_ready(ts, evs, n);
	}
	pthread_mutex_unlock(&ts->lock);
	return NULL;
}

static void close_fds(struct acc_tasks *ts)
{
	if (ts->epfd >= 0)
		close(ts->epfd);
	if (ts->evfd >= 0)
		close(ts->evfd);
	ts->epfd = ts->evfd = -1;
}

static int open_fds(struct acc_tasks *ts)
{
	struct epoll_event ev = { .events = EPOLLIN };

	ts->epfd = epoll_create1(EPOLL_CLOEXEC);
	ts->evfd = ts->epfd < 0 ? -1 : eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (ts->evfd >= 0 && epoll_ctl(ts->epfd, EPOLL_CTL_ADD, ts->evfd, &ev) == 0)
		return 0;
	return -errno;
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
	int rc = open_fds(ts);

	if (rc) {
		close_fds(ts);
		return rc;
	}
	rc = create_thread(ts);
	if (rc) {
		close_fds(ts);
		return -rc;
	}
	ts->started = true;
	return 0;
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
	close_fds(ts);
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
		epoll_ctl(t->home->epfd, EPOLL_CTL_DEL, t->fd, NULL);
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

int acc_task_watch(struct acc_task *t, int fd, uint32_t events)
{
	struct acc_tasks *ts = t->home;
	struct epoll_event ev = { .events = events | EPOLLONESHOT };
	int rc = 0;

	ev.data.u32 = t->name;
	pthread_mutex_lock(&ts->lock);
	if (epoll_ctl(ts->epfd, t->fd < 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, fd, &ev) < 0)
		rc = -errno;
	else
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
