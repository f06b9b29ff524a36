/* SPDX-License-Identifier: MIT */
/* Hooks of the calls that wait for descriptors. */
#include <string.h>
#include <sys/single_threaded.h>

#include "base/clock.h"
#include "base/util.h"
#include "sockets/epoll.h"
#include "sockets/hook.h"
#include "sockets/poll_lanes.h"
#include "sockets/user.h"

/* The C library's header calls the list of poll() write-only, which is not so. */
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

void __chk_fail(void) __attribute__((noreturn));

#define EVENTS_MOST 512 /* of an epoll set at a time */

/* --- poll and its relatives */

static int64_t to_ns(const struct timespec *t)
{
	if (!t)
		return -1;
	if (t->tv_sec > INT64_MAX / (int64_t)NSEC_PER_SEC - 1)
		return -1;
	return t->tv_sec * (int64_t)NSEC_PER_SEC + t->tv_nsec;
}

/* What the kernel would refuse: let it. */
static bool good_time(const struct timespec *t)
{
	return !t || (user_readable(t, sizeof(*t)) && t->tv_sec >= 0 && t->tv_nsec >= 0 &&
		      t->tv_nsec < (long)NSEC_PER_SEC);
}

static bool poll_is_ours(struct pollfd *fds, nfds_t n)
{
	return n > 0 && n <= INT_MAX / sizeof(*fds) && user_writable(fds, n * sizeof(*fds)) &&
	       poll_concerns_us(fds, n);
}

HOOK int poll(struct pollfd *fds, nfds_t n, int timeout)
{
	struct poll_call c = { .timeout = timeout < 0 ? -1 : timeout * 1000000ll };

	return poll_is_ours(fds, n) ? poll_any(fds, n, &c) : real(poll)(fds, n, timeout);
}

HOOK int ppoll(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask)
{
	struct poll_call c = { .mask = mask, .masked = true };

	if (!poll_is_ours(fds, n) || !good_time(timeout))
		return real(ppoll)(fds, n, timeout, mask);
	c.timeout = to_ns(timeout);
	return poll_any(fds, n, &c);
}

/* --- select, by way of poll */

static bool wanted(int fd, fd_set *set)
{
	return set && FD_ISSET(fd, set);
}

static bool select_ours(int n, fd_set *r, fd_set *w, fd_set *e)
{
	if (n > FD_SETSIZE || n < 0)
		return false;
	for (int fd = 0; fd < n; fd++) {
		struct rec *rec;

		if (!wanted(fd, r) && !wanted(fd, w) && !wanted(fd, e))
			continue;
		rec = sock_live(fd);
		if ((rec && (sock_has_lane(rec) || !__libc_single_threaded)) || epoll_of(fd))
			return true;
	}
	return false;
}

static nfds_t sets_to_poll(int n, fd_set *r, fd_set *w, fd_set *e, struct pollfd *out)
{
	nfds_t used = 0;

	for (int fd = 0; fd < n; fd++) {
		short events = 0;

		if (wanted(fd, r))
			events |= POLLRDNORM | POLLRDBAND | POLLIN;
		if (wanted(fd, w))
			events |= POLLWRBAND | POLLWRNORM | POLLOUT;
		if (wanted(fd, e))
			events |= POLLPRI;
		if (events)
			out[used++] = (struct pollfd) { .fd = fd, .events = events };
	}
	return used;
}

static int poll_to_set(const struct pollfd *p, nfds_t n, short mask, short want, fd_set *set)
{
	int ready = 0;

	for (nfds_t i = 0; set && i < n; i++) {
		if ((p[i].events & want) && (p[i].revents & mask))
			ready++;
		else if (p[i].events & want)
			FD_CLR(p[i].fd, set);
	}
	return ready;
}

static int select_for(int n, fd_set *r, fd_set *w, fd_set *e, const struct poll_call *k)
{
	struct pollfd fds[FD_SETSIZE];
	nfds_t used = sets_to_poll(n, r, w, e, fds);
	int result = poll_any(fds, used, k);

	if (result < 0)
		return result;
	for (nfds_t i = 0; i < used; i++) {
		if (fds[i].revents & POLLNVAL) {
			errno = EBADF;
			return -1;
		}
	}
	result = poll_to_set(fds, used, POLLIN | POLLRDNORM | POLLRDBAND | POLLHUP | POLLERR,
			     POLLIN, r);
	result += poll_to_set(fds, used, POLLOUT | POLLWRNORM | POLLWRBAND | POLLERR, POLLOUT, w);
	result += poll_to_set(fds, used, POLLPRI, POLLPRI, e);
	return result;
}

HOOK int select(int n, fd_set *restrict r, fd_set *restrict w, fd_set *restrict e,
		struct timeval *restrict timeout)
{
	struct poll_call k = { .timeout = -1 };
	uint64_t start;
	int result;

	if (!select_ours(n, r, w, e) || (timeout && (timeout->tv_sec < 0 || timeout->tv_usec < 0)))
		return real(select)(n, r, w, e, timeout);
	if (timeout && timeout->tv_sec < INT64_MAX / 2000000000)
		k.timeout = timeout->tv_sec * (int64_t)NSEC_PER_SEC + timeout->tv_usec * 1000ll;
	start = clock_now();
	result = select_for(n, r, w, e, &k);
	if (timeout && k.timeout >= 0) {
		/* Linux says how much time was left. */
		int64_t left = k.timeout - (int64_t)(clock_now() - start);

		if (left < 0 || result == 0)
			left = 0;
		timeout->tv_sec = left / (int64_t)NSEC_PER_SEC;
		timeout->tv_usec = left % (int64_t)NSEC_PER_SEC / 1000;
	}
	return result;
}

HOOK int pselect(int n, fd_set *restrict r, fd_set *restrict w, fd_set *restrict e,
		 const struct timespec *restrict timeout, const sigset_t *restrict mask)
{
	struct poll_call k = { .timeout = to_ns(timeout), .mask = mask, .masked = true };

	if (!select_ours(n, r, w, e) || (timeout && (timeout->tv_sec < 0 || timeout->tv_nsec < 0)))
		return real(pselect)(n, r, w, e, timeout, mask);
	return select_for(n, r, w, e, &k);
}

/* --- epoll */

static int made(int ep)
{
	if (ep >= 0) {
		sock_forget(ep);
		epoll_created(ep);
	}
	return ep;
}

HOOK int epoll_create(int size)
{
	return made(real(epoll_create)(size));
}

HOOK int epoll_create1(int flags)
{
	return made(real(epoll_create1)(flags));
}

HOOK int epoll_ctl(int ep, int op, int fd, struct epoll_event *event)
{
	return epoll_control(ep, op, fd, event);
}

/* As many events as one can be sure to have memory for; more come with the next call. */
static int most_events(struct epoll_event *events, int max)
{
	max = (int)min_u32((uint32_t)max, EVENTS_MOST);
	return user_writable(events, (size_t)max * sizeof(*events)) ? max : 0;
}

static bool wait_ours(int ep, struct epoll_event *events, int max, int64_t ns, const sigset_t *mask,
		      int *result)
{
	max = max > 0 && epoll_of(ep) ? most_events(events, max) : 0;
	return max > 0 && epoll_wait_for(ep, events, max, ns, mask, result);
}

HOOK int epoll_wait(int ep, struct epoll_event *events, int max, int timeout)
{
	int n;

	if (wait_ours(ep, events, max, timeout < 0 ? -1 : timeout * 1000000ll, NULL, &n))
		return n;
	return real(epoll_wait)(ep, events, max, timeout);
}

HOOK int epoll_pwait(int ep, struct epoll_event *events, int max, int timeout, const sigset_t *mask)
{
	int n;

	if (wait_ours(ep, events, max, timeout < 0 ? -1 : timeout * 1000000ll, mask, &n))
		return n;
	return real(epoll_pwait)(ep, events, max, timeout, mask);
}

HOOK int epoll_pwait2(int ep, struct epoll_event *events, int max, const struct timespec *timeout,
		      const sigset_t *mask)
{
	int n;

	if (good_time(timeout) && wait_ours(ep, events, max, to_ns(timeout), mask, &n))
		return n;
	return real(epoll_pwait2)(ep, events, max, timeout, mask);
}

HOOK int __poll_chk(struct pollfd *fds, nfds_t n, int timeout, size_t size);
HOOK int __ppoll_chk(struct pollfd *fds, nfds_t n, const struct timespec *timeout,
		     const sigset_t *mask, size_t size);

int __poll_chk(struct pollfd *fds, nfds_t n, int timeout, size_t size)
{
	if (size / sizeof(*fds) < n)
		__chk_fail();
	return poll(fds, n, timeout);
}

int __ppoll_chk(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask,
		size_t size)
{
	if (size / sizeof(*fds) < n)
		__chk_fail();
	return ppoll(fds, n, timeout, mask);
}

HOOK_ALIAS(int, __poll, poll, (struct pollfd * fds, nfds_t n, int timeout));
HOOK_ALIAS(int, __select, select,
	   (int n, fd_set *restrict r, fd_set *restrict w, fd_set *restrict e,
	    struct timeval *restrict timeout));
