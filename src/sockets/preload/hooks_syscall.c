/* SPDX-License-Identifier: MIT */
/*
 * System calls past the C library's names, by syscall(). Each goes to the hook of its name, with the kernel's own form of
 * the arguments: signal masks of 8 octets, times that are written back. Arguments that a call does not have are whatever
 * stood there: they are not looked at.
 */
#include <linux/aio_abi.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stdarg.h>
#include <string.h>
#include <sys/shm.h>
#include <sys/single_threaded.h>
#include <sys/syscall.h>

#include "base/clock.h"
#include "base/util.h"
#include "sockets/sleep/epoll.h"
#include "sockets/preload/hook.h"
#include "sockets/preload/fork.h"
#include "sockets/preload/hooks_ready_priv.h"
#include "sockets/preload/hooks_uring.h"
#include "sockets/record/user.h"

#define MASK_SIZE ((size_t)_NSIG / 8)
/* More requests than this in one call are not looked through: no queue is so long. */
#define REQUESTS_MOST 65536

#define I(n) ((int)a[n])
#define U(n) ((unsigned)a[n])
#define Z(n) ((size_t)a[n])
#define P(n) ((void *)a[n])
#define V(n) (U(n) > IOV_MAX ? IOV_MAX + 1 : I(n))

static long kernel(long number, const long a[6])
{
	return real(syscall)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

/* --- waits */

/* What the kernel would refuse: let it. NULL is no mask. */
static bool bad_mask(const void *mask, size_t size)
{
	return mask && (size != MASK_SIZE || !user_readable(mask, MASK_SIZE));
}

/* The C library's is larger. */
static const sigset_t *wide(const void *mask, sigset_t *copy)
{
	if (!mask)
		return NULL;
	memset(copy, 0, sizeof(*copy));
	memcpy(copy, mask, MASK_SIZE);
	return copy;
}

/* Nobody minds if that cannot be written. */
static void write_left(struct timespec *limit, uint64_t start)
{
	uint64_t passed = clock_now() - start;

	if (!limit || !user_writable(limit, sizeof(*limit)))
		return;
	limit->tv_sec -= (time_t)(passed / NSEC_PER_SEC);
	limit->tv_nsec -= (long)(passed % NSEC_PER_SEC);
	if (limit->tv_nsec < 0) {
		limit->tv_sec--;
		limit->tv_nsec += (long)NSEC_PER_SEC;
	}
	if (limit->tv_sec < 0)
		*limit = (struct timespec) { 0 };
}

static long by_ppoll(const long a[6])
{
	struct timespec *limit = P(2);
	uint64_t start = clock_now();
	sigset_t mask;
	long n;

	if (!poll_good_limit(limit) || bad_mask(P(3), Z(4)))
		return kernel(SYS_ppoll, a);
	n = ppoll(P(0), U(1), limit, wide(P(3), &mask));
	write_left(limit, start);
	return n;
}

#ifdef SYS_select
static long by_select(const long a[6])
{
	struct timeval *limit = P(4);
	struct timeval copy = { 0 };
	long n;

	if (limit && !user_readable(limit, sizeof(*limit)))
		return kernel(SYS_select, a);
	if (limit)
		copy = *limit;
	n = select(I(0), P(1), P(2), P(3), limit ? &copy : NULL);
	if (limit && user_writable(limit, sizeof(*limit)))
		*limit = copy;
	return n;
}
#endif

static long by_pselect(const long a[6])
{
	struct timespec *limit = P(4);
	struct {
		const void *mask;
		size_t size;
	} signals = { 0 };
	uint64_t start = clock_now();
	sigset_t mask;
	long n;

	if (!poll_good_limit(limit) || (P(5) && !user_readable(P(5), sizeof(signals))))
		return kernel(SYS_pselect6, a);
	if (P(5))
		memcpy(&signals, P(5), sizeof(signals));
	if (bad_mask(signals.mask, signals.size))
		return kernel(SYS_pselect6, a);
	n = pselect(I(0), P(1), P(2), P(3), limit, wide(signals.mask, &mask));
	write_left(limit, start);
	return n;
}

static long by_epoll_pwait(const long a[6])
{
	sigset_t mask;

	if (bad_mask(P(4), Z(5)))
		return kernel(SYS_epoll_pwait, a);
	return epoll_pwait(I(0), P(1), I(2), I(3), wide(P(4), &mask));
}

static long by_epoll_pwait2(const long a[6])
{
	sigset_t mask;

	if (bad_mask(P(4), Z(5)))
		return kernel(SYS_epoll_pwait2, a);
	return epoll_pwait2(I(0), P(1), I(2), P(3), wide(P(4), &mask));
}

/* --- descriptors */

/* The C library's function has its own idea of an owner. */
static long by_fcntl(const long a[6])
{
	return I(1) == F_GETOWN ? kernel(SYS_fcntl, a) : fcntl(I(0), I(1), P(2));
}

/* Requests of the kernel's own asynchronous I/O: it reads, writes and polls where no hook is. */
static long by_io_submit(const long a[6])
{
	struct iocb **list = P(2);

	for (long i = 0; i < a[1] && i < REQUESTS_MOST; i++) {
		if (!user_readable(&list[i], sizeof(list[i])))
			break;
		if (user_readable(list[i], sizeof(*list[i])))
			hook_step_aside((int)list[i]->aio_fildes, WHY_STDIO);
	}
	return kernel(SYS_io_submit, a);
}

/* --- processes */

/* A child with memory and descriptors of its own; without the handlers that the program may have for fork(). */
static long by_fork(long number, uint64_t flags, const long a[6])
{
	long pid;

	if (flags & (CLONE_VM | CLONE_FILES))
		return kernel(number, a);
	fork_prepare();
	pid = kernel(number, a);
	if (pid == 0)
		process_fork_child();
	else
		fork_parent();
	return pid;
}

static long by_clone3(const long a[6])
{
	uint64_t flags = 0;

	if (Z(1) < sizeof(flags) || !user_readable(P(0), sizeof(flags)))
		return kernel(SYS_clone3, a);
	memcpy(&flags, P(0), sizeof(flags));
	return by_fork(SYS_clone3, flags, a);
}

static long by_seccomp(const long a[6])
{
	if (U(0) == SECCOMP_SET_MODE_STRICT || (U(0) == SECCOMP_SET_MODE_FILTER && P(2)))
		hook_seal();
	return kernel(SYS_seccomp, a);
}

/* --- io_uring */

static long by_uring_setup(const long a[6])
{
	long fd = kernel(SYS_io_uring_setup, a);

	if (fd >= 0)
		uring_made((int)fd, P(1));
	return fd;
}

static long by_uring_enter(const long a[6])
{
	uring_submits(I(0), U(1), U(3));
	return kernel(SYS_io_uring_enter, a);
}

static long by_uring_register(const long a[6])
{
	uring_registers(I(0), U(1), P(2), U(3));
	return kernel(SYS_io_uring_register, a);
}

/* --- all of them */

#define CALL(name, does)                         \
	static long call_##name(const long a[6]) \
	{                                        \
		return does;                     \
	}
#include "sockets/preload/hooks_syscall.def"
#undef CALL

static long (*const calls[])(const long a[6]) = {
#define CALL(name, does) [SYS_##name] = call_##name,
#include "sockets/preload/hooks_syscall.def"
#undef CALL
};

HOOK long syscall(long number, ...)
{
	long a[6];
	long result;
	va_list list;
	int state;

	va_start(list, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(list, long);
	va_end(list);
	if ((unsigned long)number >= ARRAY_SIZE(calls) || !calls[number])
		return kernel(number, a);
	if (__libc_single_threaded)
		return calls[number](a);
	/* The hooks may be cancelled where the C library's functions may; this one may not. */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
	result = calls[number](a);
	pthread_setcancelstate(state, NULL);
	return result;
}
