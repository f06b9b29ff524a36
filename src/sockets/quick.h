/* SPDX-License-Identifier: MIT */
/* Questions to the kernel that never wait. Unlike the C library's calls these are no cancellation points: a thread must
 * not end while it holds one of our locks. */
#ifndef FLUE_SOCKETS_QUICK_H
#define FLUE_SOCKETS_QUICK_H

#include <signal.h>
#include <sys/syscall.h>

#include "sockets/real.h"

static inline int quick_poll(struct pollfd *fds, nfds_t n)
{
	const struct timespec none = { 0 };

	return (int)real(syscall)(SYS_ppoll, fds, n, &none, NULL, 0);
}

static inline int quick_epoll(int ep, struct epoll_event *events, int max, const sigset_t *mask)
{
	return (int)real(syscall)(SYS_epoll_pwait, ep, events, max, 0, mask, _NSIG / 8);
}

#endif
