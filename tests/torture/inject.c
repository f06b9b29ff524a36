/* SPDX-License-Identifier: MIT */
/* See inject.h. */
#include "torture/inject.h"

#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/uio.h>

#define MAX_ERRORS 8

static const struct {
	const char *name;
	unsigned n;
	int errors[MAX_ERRORS]; /* the most likely first */
} calls[INJECT_NCALLS] = {
	[INJECT_ANY] = { "any call", 1, { 0 } },
	[INJECT_MEMORY] = { "memory", 1, { ENOMEM } },
	[INJECT_SOCKET] = { "socket", 3, { EMFILE, ENFILE, ENOBUFS } },
	[INJECT_BIND] = { "bind", 2, { EADDRINUSE, EACCES } },
	[INJECT_LISTEN] = { "listen", 1, { EADDRINUSE } },
	[INJECT_ACCEPT] = { "accept4", 6, { EMFILE, ECONNABORTED, EINTR, EAGAIN, ENFILE, ENOMEM } },
	[INJECT_CONNECT] = { "connect", 3, { ENETUNREACH, ECONNREFUSED, EADDRNOTAVAIL } },
	[INJECT_SETSOCKOPT] = { "setsockopt", 1, { ENOMEM } },
	[INJECT_GETSOCKOPT] = { "getsockopt", 1, { ENOBUFS } },
	[INJECT_GETSOCKNAME] = { "getsockname", 1, { ENOBUFS } },
	[INJECT_GETPEERNAME] = { "getpeername", 2, { ENOTCONN, ENOBUFS } },
	[INJECT_SEND] = { "send", 5, { ECONNRESET, ENOBUFS, EINTR, EPIPE, INJECT_SHORT } },
	[INJECT_SENDMSG] = { "sendmsg",
			     8,
			     { ECONNRESET, EAGAIN, INJECT_SHORT, EINTR, ENOBUFS, EPIPE, ETIMEDOUT,
			       EFAULT } },
	[INJECT_RECV] = { "recv",
			  6,
			  { ECONNRESET, EAGAIN, INJECT_SHORT, EINTR, ENOMEM, ETIMEDOUT } },
	[INJECT_RECVMSG] = { "recvmsg",
			     7,
			     { ECONNRESET, EAGAIN, INJECT_SHORT, EINTR, EFAULT, ENOMEM,
			       ETIMEDOUT } },
	[INJECT_SHUTDOWN] = { "shutdown", 1, { ENOTCONN } },
	[INJECT_READ] = { "read", 1, { EAGAIN } },
	[INJECT_EPOLL_CREATE] = { "epoll_create1", 2, { EMFILE, ENOMEM } },
	[INJECT_EPOLL_CTL] = { "epoll_ctl", 2, { ENOMEM, ENOSPC } },
	[INJECT_EPOLL_WAIT] = { "epoll_wait", 1, { EINTR } },
	[INJECT_EVENTFD] = { "eventfd", 3, { EMFILE, ENFILE, ENOMEM } },
	[INJECT_THREAD] = { "pthread_create", 1, { EAGAIN } },
	[INJECT_RANDOM] = { "getrandom", 1, { EAGAIN } },
	[INJECT_VM_READ] = { "process_vm_readv", 3, { EFAULT, INJECT_SHORT, ENOMEM } },
	[INJECT_VM_WRITE] = { "process_vm_writev", 3, { EFAULT, INJECT_SHORT, ENOMEM } },
};

static struct inject_plan plan; /* written while `armed` is false */
static atomic_bool armed, trickle;
static atomic_ulong matched, struck, seen[INJECT_NCALLS];
static atomic_int last_error;
static atomic_long allocations, threads;

const char *inject_name(enum inject_call call)
{
	return calls[call].name;
}

unsigned inject_errors(enum inject_call call)
{
	return calls[call].n;
}

bool inject_error(enum inject_call call, unsigned i, int *error)
{
	if (i >= calls[call].n)
		return false;
	*error = calls[call].errors[i];
	return true;
}

void inject_arm(const struct inject_plan *p)
{
	plan = *p;
	for (unsigned i = 0; i < INJECT_NCALLS; i++)
		atomic_store(&seen[i], 0);
	atomic_store(&matched, 0);
	atomic_store(&struck, 0);
	atomic_store(&armed, true);
}

unsigned long inject_disarm(void)
{
	atomic_store(&armed, false);
	return atomic_load(&struck);
}

void inject_calm(void)
{
	atomic_store(&armed, false);
}

unsigned long inject_seen(enum inject_call call)
{
	return atomic_load(&seen[call]);
}

bool inject_struck(int *error)
{
	*error = atomic_load(&last_error);
	return atomic_load(&struck);
}

void inject_trickle(bool on)
{
	atomic_store(&trickle, on);
}

long inject_allocations(void)
{
	return atomic_load(&allocations);
}

long inject_threads(void)
{
	return atomic_load(&threads);
}

/* Does this call fail, and how? */
static bool strikes(enum inject_call call, int *error)
{
	unsigned long i;

	if (!atomic_load(&armed))
		return false;
	atomic_fetch_add(&seen[call], 1);
	if (plan.call != INJECT_ANY && plan.call != call)
		return false;
	i = atomic_fetch_add(&matched, 1) + 1;
	if (i < plan.nth || i - plan.nth >= plan.count)
		return false;
	*error = plan.call == INJECT_ANY ? calls[call].errors[0] : plan.error;
	atomic_store(&last_error, *error);
	atomic_fetch_add(&struck, 1);
	return true;
}

/* For calls that answer -1 and errno, and can not be short. */
static bool fails(enum inject_call call)
{
	int error;

	if (!strikes(call, &error))
		return false;
	errno = error;
	return true;
}

/* For transfers. -1: fails; else the number of octets it may move. */
static ssize_t allowed(enum inject_call call, size_t len)
{
	int error;

	if (strikes(call, &error)) {
		if (error == INJECT_SHORT)
			return len ? 1 : 0;
		errno = error;
		return -1;
	}
	return (ssize_t)(len && atomic_load(&trickle) ? 1 : len);
}

static void *born(void *p)
{
	if (p)
		atomic_fetch_add(&allocations, 1);
	return p;
}

/* Begins the definition of a wrapper; the linker makes __real_x what x was. */
#define WRAP(result, name, ...)            \
	result __real_##name(__VA_ARGS__); \
	result __wrap_##name(__VA_ARGS__); \
	result __wrap_##name(__VA_ARGS__)

/* ---- memory ---- */

WRAP(void *, malloc, size_t size)
{
	return fails(INJECT_MEMORY) ? NULL : born(__real_malloc(size));
}

WRAP(void *, calloc, size_t n, size_t size)
{
	return fails(INJECT_MEMORY) ? NULL : born(__real_calloc(n, size));
}

WRAP(void *, realloc, void *old, size_t size)
{
	void *p;

	if (fails(INJECT_MEMORY))
		return NULL;
	p = __real_realloc(old, size);
	return old ? p : born(p);
}

WRAP(void *, aligned_alloc, size_t alignment, size_t size)
{
	return fails(INJECT_MEMORY) ? NULL : born(__real_aligned_alloc(alignment, size));
}

WRAP(int, posix_memalign, void **out, size_t alignment, size_t size)
{
	int rc;

	if (fails(INJECT_MEMORY))
		return ENOMEM;
	rc = __real_posix_memalign(out, alignment, size);
	if (rc == 0)
		born(*out);
	return rc;
}

WRAP(char *, strdup, const char *text)
{
	return fails(INJECT_MEMORY) ? NULL : born(__real_strdup(text));
}

WRAP(void, free, void *p)
{
	if (p)
		atomic_fetch_sub(&allocations, 1);
	__real_free(p);
}

/* ---- threads ---- */

WRAP(int, pthread_create, pthread_t *thread, const pthread_attr_t *attr, void *(*main)(void *),
     void *arg)
{
	int rc;

	if (fails(INJECT_THREAD))
		return EAGAIN;
	rc = __real_pthread_create(thread, attr, main, arg);
	if (rc == 0)
		atomic_fetch_add(&threads, 1);
	return rc;
}

WRAP(int, pthread_join, pthread_t thread, void **result)
{
	int rc = __real_pthread_join(thread, result);

	if (rc == 0)
		atomic_fetch_sub(&threads, 1);
	return rc;
}

/* These two can not fail on Linux; they are wrapped so that no code depends on it unseen. */
WRAP(int, pthread_mutex_init, pthread_mutex_t *lock, const pthread_mutexattr_t *attr)
{
	return __real_pthread_mutex_init(lock, attr);
}

WRAP(int, pthread_cond_init, pthread_cond_t *cond, const pthread_condattr_t *attr)
{
	return __real_pthread_cond_init(cond, attr);
}

/* ---- sockets ---- */

WRAP(int, socket, int domain, int type, int protocol)
{
	return fails(INJECT_SOCKET) ? -1 : __real_socket(domain, type, protocol);
}

WRAP(int, bind, int fd, const struct sockaddr *addr, socklen_t len)
{
	return fails(INJECT_BIND) ? -1 : __real_bind(fd, addr, len);
}

WRAP(int, listen, int fd, int backlog)
{
	return fails(INJECT_LISTEN) ? -1 : __real_listen(fd, backlog);
}

WRAP(int, accept4, int fd, struct sockaddr *addr, socklen_t *len, int flags)
{
	return fails(INJECT_ACCEPT) ? -1 : __real_accept4(fd, addr, len, flags);
}

WRAP(int, connect, int fd, const struct sockaddr *addr, socklen_t len)
{
	return fails(INJECT_CONNECT) ? -1 : __real_connect(fd, addr, len);
}

WRAP(int, setsockopt, int fd, int level, int name, const void *value, socklen_t len)
{
	return fails(INJECT_SETSOCKOPT) ? -1 : __real_setsockopt(fd, level, name, value, len);
}

WRAP(int, getsockopt, int fd, int level, int name, void *value, socklen_t *len)
{
	return fails(INJECT_GETSOCKOPT) ? -1 : __real_getsockopt(fd, level, name, value, len);
}

WRAP(int, getsockname, int fd, struct sockaddr *addr, socklen_t *len)
{
	return fails(INJECT_GETSOCKNAME) ? -1 : __real_getsockname(fd, addr, len);
}

WRAP(int, getpeername, int fd, struct sockaddr *addr, socklen_t *len)
{
	return fails(INJECT_GETPEERNAME) ? -1 : __real_getpeername(fd, addr, len);
}

WRAP(int, shutdown, int fd, int how)
{
	return fails(INJECT_SHUTDOWN) ? -1 : __real_shutdown(fd, how);
}

/* ---- transfers ---- */

WRAP(ssize_t, send, int fd, const void *buf, size_t len, int flags)
{
	ssize_t n = allowed(INJECT_SEND, len);

	/* Start-up frames are small and go out whole by design: no trickle for them. */
	if (n == 1 && atomic_load(&trickle))
		n = (ssize_t)len;
	return n < 0 ? -1 : __real_send(fd, buf, (size_t)n, flags);
}

WRAP(ssize_t, recv, int fd, void *buf, size_t len, int flags)
{
	ssize_t n = allowed(INJECT_RECV, len);

	return n < 0 ? -1 : __real_recv(fd, buf, (size_t)n, flags);
}

static size_t iov_length(const struct iovec *iov, size_t n)
{
	size_t sum = 0;

	for (size_t i = 0; i < n; i++)
		sum += iov[i].iov_len;
	return sum;
}

/* Cuts a vector of pieces to its first octet. */
static struct iovec first_octet(const struct iovec *iov)
{
	while (!iov->iov_len)
		iov++;
	return (struct iovec) { iov->iov_base, 1 };
}

WRAP(ssize_t, sendmsg, int fd, const struct msghdr *msg, int flags)
{
	size_t len = iov_length(msg->msg_iov, msg->msg_iovlen);
	ssize_t n = allowed(INJECT_SENDMSG, len);
	struct msghdr less = *msg;
	struct iovec one;

	if (n < 0)
		return -1;
	if ((size_t)n < len) {
		one = first_octet(msg->msg_iov);
		less.msg_iov = &one;
		less.msg_iovlen = 1;
	}
	return __real_sendmsg(fd, &less, flags);
}

WRAP(ssize_t, recvmsg, int fd, struct msghdr *msg, int flags)
{
	size_t len = iov_length(msg->msg_iov, msg->msg_iovlen);
	ssize_t n = allowed(INJECT_RECVMSG, len);
	struct msghdr less = *msg;
	struct iovec one;

	if (n < 0)
		return -1;
	if ((size_t)n == len)
		return __real_recvmsg(fd, msg, flags);
	one = first_octet(msg->msg_iov);
	less.msg_iov = &one;
	less.msg_iovlen = 1;
	return __real_recvmsg(fd, &less, flags);
}

WRAP(ssize_t, read, int fd, void *buf, size_t len)
{
	return fails(INJECT_READ) ? -1 : __real_read(fd, buf, len);
}

typedef const struct iovec *vector;

WRAP(ssize_t, process_vm_readv, pid_t pid, vector own, unsigned long n_own, vector user,
     unsigned long n_user, unsigned long flags)
{
	size_t len = iov_length(own, n_own);
	ssize_t n = allowed(INJECT_VM_READ, len);
	struct iovec one;

	if (n < 0)
		return -1;
	if ((size_t)n == len)
		return __real_process_vm_readv(pid, own, n_own, user, n_user, flags);
	one = first_octet(own);
	return __real_process_vm_readv(pid, &one, 1, user, n_user, flags);
}

WRAP(ssize_t, process_vm_writev, pid_t pid, vector own, unsigned long n_own, vector user,
     unsigned long n_user, unsigned long flags)
{
	size_t len = iov_length(own, n_own);
	ssize_t n = allowed(INJECT_VM_WRITE, len);
	struct iovec one;

	if (n < 0)
		return -1;
	if ((size_t)n == len)
		return __real_process_vm_writev(pid, own, n_own, user, n_user, flags);
	one = first_octet(own);
	return __real_process_vm_writev(pid, &one, 1, user, n_user, flags);
}

/* ---- waiting ---- */

WRAP(int, epoll_create1, int flags)
{
	return fails(INJECT_EPOLL_CREATE) ? -1 : __real_epoll_create1(flags);
}

/* Changing what a member is asked about, or removing it, needs nothing that could be short. */
WRAP(int, epoll_ctl, int set, int op, int fd, struct epoll_event *ev)
{
	if (op == EPOLL_CTL_ADD && fails(INJECT_EPOLL_CTL))
		return -1;
	return __real_epoll_ctl(set, op, fd, ev);
}

WRAP(int, epoll_wait, int set, struct epoll_event *evs, int n, int timeout)
{
	return fails(INJECT_EPOLL_WAIT) ? -1 : __real_epoll_wait(set, evs, n, timeout);
}

WRAP(int, eventfd, unsigned value, int flags)
{
	return fails(INJECT_EVENTFD) ? -1 : __real_eventfd(value, flags);
}

WRAP(ssize_t, getrandom, void *buf, size_t len, unsigned flags)
{
	return fails(INJECT_RANDOM) ? -1 : __real_getrandom(buf, len, flags);
}

/* ---- wrapped by the build, not used by the library so far ---- */

WRAP(ssize_t, write, int fd, const void *buf, size_t len)
{
	/* Only to eventfds, whose counter is never near its limit: it can not fail. */
	return __real_write(fd, buf, len);
}

WRAP(ssize_t, readv, int fd, const struct iovec *iov, int n)
{
	return fails(INJECT_RECVMSG) ? -1 : __real_readv(fd, iov, n);
}

WRAP(ssize_t, writev, int fd, const struct iovec *iov, int n)
{
	return fails(INJECT_SENDMSG) ? -1 : __real_writev(fd, iov, n);
}

WRAP(int, poll, struct pollfd *fds, nfds_t n, int timeout)
{
	return __real_poll(fds, n, timeout);
}

WRAP(int, timerfd_create, int clock, int flags)
{
	return fails(INJECT_EVENTFD) ? -1 : __real_timerfd_create(clock, flags);
}

WRAP(int, timerfd_settime, int fd, int flags, const struct itimerspec *new, struct itimerspec *old)
{
	return __real_timerfd_settime(fd, flags, new, old);
}

WRAP(void *, mmap, void *addr, size_t len, int prot, int flags, int fd, off_t offset)
{
	return fails(INJECT_MEMORY) ? MAP_FAILED : __real_mmap(addr, len, prot, flags, fd, offset);
}

int __real_fcntl(int fd, int command, ...);
int __wrap_fcntl(int fd, int command, ...);
int __wrap_fcntl(int fd, int command, ...)
{
	va_list args;
	void *arg;

	va_start(args, command);
	arg = va_arg(args, void *);
	va_end(args);
	return __real_fcntl(fd, command, arg);
}

WRAP(int, getifaddrs, struct ifaddrs **out)
{
	return fails(INJECT_MEMORY) ? -1 : __real_getifaddrs(out);
}
