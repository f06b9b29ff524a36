/* SPDX-License-Identifier: MIT */
/* System calls that do not wait. Unlike the C library's functions these are no cancellation points: a thread must not
 * end while it holds one of our locks, nor with octets that it has taken and that nobody has read. */
#ifndef FLUE_SOCKETS_QUICK_H
#define FLUE_SOCKETS_QUICK_H

#include <fcntl.h>
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

static inline int quick_open(const char *path, int flags, mode_t mode)
{
	return (int)real(syscall)(SYS_openat, AT_FDCWD, path, flags, mode);
}

static inline int quick_close(int fd)
{
	return (int)real(syscall)(SYS_close, fd);
}

static inline ssize_t quick_read(int fd, void *data, size_t n)
{
	return real(syscall)(SYS_read, fd, data, n);
}

static inline ssize_t quick_write(int fd, const void *data, size_t n)
{
	return real(syscall)(SYS_write, fd, data, n);
}

static inline int quick_connect(int fd, const struct sockaddr *to, socklen_t size)
{
	return (int)real(syscall)(SYS_connect, fd, to, size);
}

static inline int quick_accept(int fd, int flags)
{
	return (int)real(syscall)(SYS_accept4, fd, NULL, NULL, flags);
}

static inline ssize_t quick_send(int fd, const void *data, size_t n, int flags)
{
	return real(syscall)(SYS_sendto, fd, data, n, flags | MSG_DONTWAIT, NULL, 0);
}

static inline ssize_t quick_recv(int fd, void *data, size_t n, int flags)
{
	return real(syscall)(SYS_recvfrom, fd, data, n, flags | MSG_DONTWAIT, NULL, NULL);
}

static inline ssize_t quick_sendmsg(int fd, const struct msghdr *msg, int flags)
{
	return real(syscall)(SYS_sendmsg, fd, msg, flags | MSG_DONTWAIT);
}

static inline ssize_t quick_recvmsg(int fd, struct msghdr *msg, int flags)
{
	return real(syscall)(SYS_recvmsg, fd, msg, flags | MSG_DONTWAIT);
}

#endif
