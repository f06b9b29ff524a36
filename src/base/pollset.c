/* SPDX-License-Identifier: MIT */
#include "base/pollset.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"

void pollset_init(struct pollset *s, uint64_t bell)
{
	atomic_init(&s->fd, -1);
	atomic_init(&s->lamp, -1);
	s->bell = bell;
}

/* The members ours and lamp's: 0, or the errno that says that they are not. */
static int ask_about(int set, int lamp, uint32_t events, uint64_t name)
{
	struct epoll_event ev = { .events = events, .data.u64 = name };

	return epoll_ctl(set, EPOLL_CTL_MOD, lamp, &ev) < 0 ? -errno : 0;
}

int pollset_open(struct pollset *s)
{
	struct epoll_event ev = { .data.u64 = s->bell };
	int set = fd_keep(epoll_create1(EPOLL_CLOEXEC));
	int lamp = set < 0 ? -1 : fd_keep(eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK));
	int rc;

	if (lamp >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, lamp, &ev) == 0) {
		fd_hold(set);
		fd_hold(lamp);
		atomic_store(&s->lamp, lamp);
		atomic_store(&s->fd, set);
		return 0;
	}
	rc = -errno;
	if (lamp >= 0)
		close(lamp);
	if (set >= 0)
		close(set);
	return rc;
}

int pollset_ring(struct pollset *s)
{
	return ask_about(atomic_load_explicit(&s->fd, memory_order_relaxed),
			 atomic_load_explicit(&s->lamp, memory_order_relaxed),
			 EPOLLIN | EPOLLONESHOT, s->bell);
}

int pollset_ctl(struct pollset *s, int op, int fd, uint32_t events, uint64_t name)
{
	struct epoll_event ev = { .events = events, .data.u64 = name };
	int set = atomic_load_explicit(&s->fd, memory_order_relaxed);

	return epoll_ctl(set, op, fd, &ev) < 0 ? -errno : 0;
}

int pollset_wait(struct pollset *s, struct epoll_event *evs, int n, int timeout_ms)
{
	if (timeout_ms < 0 || timeout_ms > POLLSET_LOOK_MS)
		timeout_ms = POLLSET_LOOK_MS;
	return epoll_wait(atomic_load_explicit(&s->fd, memory_order_relaxed), evs, n, timeout_ms);
}

/* Where a millisecond more or less is little. */
#define EXACT_BELOW (10 * (int64_t)NSEC_PER_MSEC)

/* 0: not tried, or it works; 1: the kernel (before 5.11) or a sandbox refused epoll_pwait2(). */
static _Atomic int refused;

static int64_t to_ms(int64_t ns)
{
	const int64_t ms = NSEC_PER_MSEC;

	if (ns < 0)
		return -1;
	return ns > POLLSET_LOOK_MS * ms ? POLLSET_LOOK_MS : (ns + ms - 1) / ms;
}

int pollset_wait_ns(struct pollset *s, struct epoll_event *evs, int n, int64_t timeout_ns)
{
	struct timespec ts = { .tv_nsec = (long)timeout_ns };
	int got;

	if (timeout_ns > 0 && timeout_ns < EXACT_BELOW &&
	    !atomic_load_explicit(&refused, memory_order_relaxed)) {
		got = epoll_pwait2(atomic_load_explicit(&s->fd, memory_order_relaxed), evs, n, &ts,
				   NULL);
		if (got >= 0 || (errno != ENOSYS && errno != EPERM))
			return got;
		atomic_store_explicit(&refused, 1, memory_order_relaxed);
	}
	return pollset_wait(s, evs, n, (int)to_ms(timeout_ns));
}

bool pollset_failed(int n)
{
	return n < 0 && errno != EINTR;
}

static void release(struct pollset *s)
{
	fd_release(atomic_load(&s->fd));
	fd_release(atomic_load(&s->lamp));
}

void pollset_replace(struct pollset *s, struct pollset *fresh)
{
	release(s);
	atomic_store(&s->lamp, atomic_load(&fresh->lamp));
	atomic_store(&s->fd, atomic_load(&fresh->fd));
}

static void forget(struct pollset *s)
{
	release(s);
	atomic_store(&s->fd, -1);
	atomic_store(&s->lamp, -1);
}

void pollset_close(struct pollset *s)
{
	if (pollset_is_open(s) && pollset_ring(s) == 0) {
		close(atomic_load(&s->fd));
		close(atomic_load(&s->lamp));
	}
	forget(s);
}

void pollset_abandon(struct pollset *s)
{
	fd_close_anonymous(atomic_load(&s->fd));
	fd_close_anonymous(atomic_load(&s->lamp));
	forget(s);
}

/* ---- flags ---- */

int flag_open(struct flag *f, int lamp, bool up)
{
	struct epoll_event ev = { .events = up ? EPOLLIN : 0 };
	int fd = epoll_create1(EPOLL_CLOEXEC), rc;

	if (fd < 0)
		return -errno;
	if (epoll_ctl(fd, EPOLL_CTL_ADD, lamp, &ev) < 0) {
		rc = -errno;
		close(fd);
		return rc;
	}
	f->fd = fd;
	f->lamp = lamp;
	return 0;
}

void flag_show(struct flag *f, bool up)
{
	/* If it fails, the program has closed it and does not wait for it. */
	if (f->fd >= 0)
		ask_about(f->fd, f->lamp, up ? EPOLLIN : 0, 0);
}

void flag_close(struct flag *f, bool inherited)
{
	if (f->fd >= 0 && inherited)
		fd_close_anonymous(f->fd);
	else if (f->fd >= 0 && ask_about(f->fd, f->lamp, 0, 0) == 0)
		close(f->fd);
	f->fd = -1;
}
