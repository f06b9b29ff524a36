/* SPDX-License-Identifier: MIT */
/* Hooks of the calls that wait for descriptors. */
#include "base/util.h"
#include "sockets/sleep/epoll.h"
#include "sockets/preload/hook.h"
#include "sockets/preload/hooks_ready_priv.h"
#include "sockets/record/user.h"

/* The C library's header calls the list of poll() write-only, which is not so. */
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

void __chk_fail(void) __attribute__((noreturn));

/* --- poll */

/* What the kernel would refuse it shall refuse: a list of this size is no list. */
static bool is_ours(struct pollfd *fds, nfds_t n)
{
	return n > 0 && n <= SOCK_FDS && user_writable(fds, n * sizeof(*fds)) &&
	       poll_concerns_us(fds, n);
}

HOOK int poll(struct pollfd *fds, nfds_t n, int timeout)
{
	struct poll_call c = { .timeout = timeout < 0 ? -1 : timeout * 1000000ll };

	return is_ours(fds, n) ? poll_any(fds, n, &c) : real(poll)(fds, n, timeout);
}

HOOK int ppoll(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask)
{
	struct poll_call c = { .mask = mask, .masked = true };

	if (!is_ours(fds, n) || !poll_good_limit(timeout) || !poll_good_mask(mask))
		return real(ppoll)(fds, n, timeout, mask);
	c.timeout = poll_limit(timeout);
	return poll_any(fds, n, &c);
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

/* Not all of it is there. Where no event can go one is waited for all the same: only then the kernel complains. */
static __attribute__((noinline)) bool wait_in_part(int ep, struct epoll_event *events, int max,
						   int64_t ns, const sigset_t *mask, int *result)
{
	struct epoll_event nowhere;

	while (max > 0 && !user_writable(events, (size_t)max * sizeof(*events)))
		max /= 2;
	if (max > 0)
		return epoll_wait_for(ep, events, max, ns, mask, result);
	if (!epoll_wait_for(ep, &nowhere, 1, ns, mask, result))
		return false;
	if (*result > 0) {
		errno = EFAULT;
		*result = -1;
	}
	return true;
}

/* False: the real call's. */
static inline bool wait_in(int ep, struct epoll_event *events, int max, int64_t ns,
			   const sigset_t *mask, int *result)
{
	if ((unsigned)max - 1 >= INT_MAX / sizeof(*events) || !epoll_of(ep) ||
	    !poll_good_mask(mask))
		return false;
	/* So much of the program's memory is looked at. */
	max = (int)min_u32((uint32_t)max, epoll_most(ep));
	if (!user_writable(events, (size_t)max * sizeof(*events)))
		return wait_in_part(ep, events, max, ns, mask, result);
	return epoll_wait_for(ep, events, max, ns, mask, result);
}

HOOK int epoll_wait(int ep, struct epoll_event *events, int max, int timeout)
{
	int n;

	if (wait_in(ep, events, max, timeout < 0 ? -1 : timeout * 1000000ll, NULL, &n))
		return n;
	return real(epoll_wait)(ep, events, max, timeout);
}

HOOK int epoll_pwait(int ep, struct epoll_event *events, int max, int timeout, const sigset_t *mask)
{
	int n;

	if (wait_in(ep, events, max, timeout < 0 ? -1 : timeout * 1000000ll, mask, &n))
		return n;
	return real(epoll_pwait)(ep, events, max, timeout, mask);
}

HOOK int epoll_pwait2(int ep, struct epoll_event *events, int max, const struct timespec *timeout,
		      const sigset_t *mask)
{
	int n;

	if (poll_good_limit(timeout) && wait_in(ep, events, max, poll_limit(timeout), mask, &n))
		return n;
	return real(epoll_pwait2)(ep, events, max, timeout, mask);
}

/* --- other names of the same functions */

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
