/* SPDX-License-Identifier: MIT */
/* Hooks of select() and pselect(), by way of poll. */
#include <sys/single_threaded.h>

#include "base/clock.h"
#include "sockets/epoll.h"
#include "sockets/hook.h"
#include "sockets/hooks_ready_priv.h"

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
	struct poll_call k = { .timeout = poll_limit(timeout), .mask = mask, .masked = true };

	if (!select_ours(n, r, w, e) || (timeout && (timeout->tv_sec < 0 || timeout->tv_nsec < 0)))
		return real(pselect)(n, r, w, e, timeout, mask);
	return select_for(n, r, w, e, &k);
}

HOOK_ALIAS(int, __select, select,
	   (int n, fd_set *restrict r, fd_set *restrict w, fd_set *restrict e,
	    struct timeval *restrict timeout));
