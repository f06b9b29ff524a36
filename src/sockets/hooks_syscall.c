/* SPDX-License-Identifier: MIT */
/* System calls past the C library's names, by syscall(). */
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "sockets/hook.h"
#include "sockets/ops_lane.h"

static void no_more_lanes(int fd, struct rec *r, void *arg)
{
	(void)arg;
	sock_pin(r, fd, WHY_URING);
}

static long by_number(long number, const long a[6], bool *done)
{
	*done = true;
	switch (number) {
	case SYS_read: return read((int)a[0], (void *)a[1], (size_t)a[2]);
	case SYS_write: return write((int)a[0], (const void *)a[1], (size_t)a[2]);
	case SYS_close: return close((int)a[0]);
	case SYS_sendto:
		return sendto((int)a[0], (const void *)a[1], (size_t)a[2], (int)a[3],
			      (const struct sockaddr *)a[4], (socklen_t)a[5]);
	case SYS_recvfrom:
		return recvfrom((int)a[0], (void *)a[1], (size_t)a[2], (int)a[3],
				(struct sockaddr *)a[4], (socklen_t *)a[5]);
	case SYS_sendmsg: return sendmsg((int)a[0], (const struct msghdr *)a[1], (int)a[2]);
	case SYS_recvmsg: return recvmsg((int)a[0], (struct msghdr *)a[1], (int)a[2]);
	case SYS_readv: return readv((int)a[0], (const struct iovec *)a[1], (int)a[2]);
	case SYS_writev: return writev((int)a[0], (const struct iovec *)a[1], (int)a[2]);
	case SYS_close_range: return close_range((unsigned)a[0], (unsigned)a[1], (int)a[2]);
	case SYS_dup: return dup((int)a[0]);
	case SYS_dup2: return dup2((int)a[0], (int)a[1]);
	case SYS_dup3: return dup3((int)a[0], (int)a[1], (int)a[2]);
	case SYS_shutdown: return shutdown((int)a[0], (int)a[1]);
	case SYS_epoll_wait:
		return epoll_wait((int)a[0], (struct epoll_event *)a[1], (int)a[2], (int)a[3]);
	case SYS_epoll_ctl:
		return epoll_ctl((int)a[0], (int)a[1], (int)a[2], (struct epoll_event *)a[3]);
	case SYS_seccomp: hook_seal(); break;
	case SYS_prctl:
		if (a[0] == PR_SET_SECCOMP)
			hook_seal();
		break;
	case SYS_io_uring_setup:
		/* A ring reads and writes where no hook is. */
		settings.uring = true;
		ops_lane_stop();
		sock_each(no_more_lanes, NULL);
		break;
	}
	*done = false;
	return 0;
}

HOOK long syscall(long number, ...)
{
	long a[6];
	long result;
	bool done;
	va_list list;

	va_start(list, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(list, long);
	va_end(list);
	result = by_number(number, a, &done);
	return done ? result : real(syscall)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
