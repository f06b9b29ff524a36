/* SPDX-License-Identifier: MIT */
/*
 * System calls past the C library's functions: in a program's process those may be our own hooks, or somebody else's. None
 * of these waits or is a cancellation point, unless it says so: a thread must not end while it holds one of our
 * locks, nor with octets that it has taken and that nobody has read.
 */
#ifndef FLUE_BASE_SYS_H
#define FLUE_BASE_SYS_H

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

typedef long sys_function(long number, ...);

/* syscall(2) of the C library behind us, found at the first call. */
extern sys_function *sys_found;

/* May wait, if the call does. */
#define sys_call(...) (__atomic_load_n(&sys_found, __ATOMIC_RELAXED)(__VA_ARGS__))

static inline int sys_poll(struct pollfd *fds, nfds_t n)
{
	const struct timespec none = { 0 };

	return (int)sys_call(SYS_ppoll, fds, n, &none, NULL, 0);
}

static inline int sys_epoll(int ep, struct epoll_event *events, int max, const sigset_t *mask)
{
	return (int)sys_call(SYS_epoll_pwait, ep, events, max, 0, mask, _NSIG / 8);
}

static inline int sys_open(const char *path, int flags, mode_t mode)
{
	return (int)sys_call(SYS_openat, AT_FDCWD, path, flags, mode);
}

static inline int sys_close(int fd)
{
	return (int)sys_call(SYS_close, fd);
}

static inline int sys_fcntl(int fd, int command, unsigned long arg)
{
	return (int)sys_call(SYS_fcntl, fd, command, arg);
}

static inline ssize_t sys_read(int fd, void *data, size_t n)
{
	return sys_call(SYS_read, fd, data, n);
}

static inline ssize_t sys_write(int fd, const void *data, size_t n)
{
	return sys_call(SYS_write, fd, data, n);
}

static inline int sys_socket(int family, int type, int protocol)
{
	return (int)sys_call(SYS_socket, family, type, protocol);
}

static inline int sys_bind(int fd, const struct sockaddr *name, socklen_t size)
{
	return (int)sys_call(SYS_bind, fd, name, size);
}

static inline int sys_listen(int fd, int backlog)
{
	return (int)sys_call(SYS_listen, fd, backlog);
}

static inline int sys_getsockname(int fd, struct sockaddr *name, socklen_t *size)
{
	return (int)sys_call(SYS_getsockname, fd, name, size);
}

static inline int sys_getsockopt(int fd, int level, int name, void *value, socklen_t *size)
{
	return (int)sys_call(SYS_getsockopt, fd, level, name, value, size);
}

static inline int sys_connect(int fd, const struct sockaddr *to, socklen_t size)
{
	return (int)sys_call(SYS_connect, fd, to, size);
}

static inline int sys_accept(int fd, int flags)
{
	return (int)sys_call(SYS_accept4, fd, NULL, NULL, flags);
}

static inline ssize_t sys_send(int fd, const void *data, size_t n, int flags)
{
	return sys_call(SYS_sendto, fd, data, n, flags | MSG_DONTWAIT, NULL, 0);
}

static inline ssize_t sys_recv(int fd, void *data, size_t n, int flags)
{
	return sys_call(SYS_recvfrom, fd, data, n, flags | MSG_DONTWAIT, NULL, NULL);
}

static inline ssize_t sys_sendmsg(int fd, const struct msghdr *msg, int flags)
{
	return sys_call(SYS_sendmsg, fd, msg, flags | MSG_DONTWAIT);
}

static inline ssize_t sys_recvmsg(int fd, struct msghdr *msg, int flags)
{
	return sys_call(SYS_recvmsg, fd, msg, flags | MSG_DONTWAIT);
}

#endif
