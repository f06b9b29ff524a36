/* SPDX-License-Identifier: MIT */
#include <limits.h>
#include <linux/sock_diag.h>

#include "base/sys.h"
#include "sockets/stream/carrier.h"
#include "sockets/record/real.h"

#ifndef SO_BUF_LOCK
#define SO_BUF_LOCK 72
#endif
#define SNDBUF_LOCKED 1

static int option(int fd, int name)
{
	int value = 0;
	socklen_t size = sizeof(value);

	return real(getsockopt)(fd, SOL_SOCKET, name, &value, &size) == 0 ? value : -1;
}

/* The kernel takes octets as long as what is queued, with its overhead, stays below the buffer's size. */
static bool fits(int fd, size_t octets)
{
	uint32_t info[SK_MEMINFO_VARS] = { 0 };
	socklen_t size = sizeof(info);

	return real(getsockopt)(fd, SOL_SOCKET, SO_MEMINFO, info, &size) == 0 &&
	       info[SK_MEMINFO_WMEM_QUEUED] + octets + octets / 8 + 16384 < info[SK_MEMINFO_SNDBUF];
}

bool carrier_widen(int fd, size_t octets, struct carrier_room *was)
{
	int most = INT_MAX / 2;

	*was = (struct carrier_room) { 0 };
	if (octets == 0 || fits(fd, octets))
		return true;
	was->locked = option(fd, SO_BUF_LOCK);
	was->size = option(fd, SO_SNDBUF);
	if (was->size <= 0 || real(setsockopt)(fd, SOL_SOCKET, SO_SNDBUF, &most, sizeof(most)) != 0)
		was->size = 0;
	if (fits(fd, octets))
		return true;
	carrier_narrow(fd, was);
	return false;
}

void carrier_narrow(int fd, const struct carrier_room *was)
{
	int half = was->size / 2; /* the kernel doubles it */

	if (was->size == 0)
		return;
	real(setsockopt)(fd, SOL_SOCKET, SO_SNDBUF, &half, sizeof(half));
	/* Let the kernel go on choosing the size, if it did. */
	if (was->locked >= 0 && !(was->locked & SNDBUF_LOCKED))
		real(setsockopt)(fd, SOL_SOCKET, SO_BUF_LOCK, &was->locked, sizeof(was->locked));
}

bool carrier_put_all(int fd, const struct iovec *piece, int n, bool *broken)
{
	struct msghdr msg = { .msg_iov = (struct iovec *)piece, .msg_iovlen = (size_t)n };
	struct carrier_room was;
	size_t total = 0;
	ssize_t sent;

	*broken = false;
	for (int i = 0; i < n; i++)
		total += piece[i].iov_len;
	if (!carrier_widen(fd, total, &was))
		return false;
	/* In one call: nobody can shut it between two. */
	sent = sys_sendmsg(fd, &msg, MSG_NOSIGNAL);
	*broken = sent > 0 && (size_t)sent != total;
	carrier_narrow(fd, &was);
	return sent == (ssize_t)total;
}

bool carrier_has_room(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLOUT };

	return sys_poll(&p, 1) > 0;
}
