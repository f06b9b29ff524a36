/* SPDX-License-Identifier: MIT */
/* Options of the carrier that mean something else while there is a lane. */
#include <netinet/tcp.h>

#include "sockets/record/real.h"
#include "sockets/record/sock.h"
#include "sockets/stream/stream.h"

#ifndef SO_BUF_LOCK
#define SO_BUF_LOCK 72
#endif

void stream_note_buffers(struct rec *r, int fd)
{
	int which = 0, size = 0;
	socklen_t n = sizeof(which);

	if (real(getsockopt)(fd, SOL_SOCKET, SO_BUF_LOCK, &which, &n) != 0)
		return;
	if ((which & 1) && real(getsockopt)(fd, SOL_SOCKET, SO_SNDBUF, &size, &n) == 0)
		LANE_STORE(r->sndbuf, (uint32_t)size);
	if ((which & 2) && real(getsockopt)(fd, SOL_SOCKET, SO_RCVBUF, &size, &n) == 0)
		atomic_store(&r->rx.dir->rcvbuf, (uint32_t)size);
}

void stream_prepare_carrier(struct rec *r, int fd)
{
	struct timeval limit = { 0 };
	int now = 0, one = 1, zero = 0;
	socklen_t size = sizeof(limit);

	if (real(getsockopt)(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, &size) == 0 &&
	    (limit.tv_sec || limit.tv_usec))
		atomic_fetch_or(&r->flags, REC_TIMED);
	size = sizeof(now);
	stream_note_buffers(r, fd);

	/* An octet that is a doorbell must not wait for an acknowledgement, nor for more of its kind. */
	if (real(getsockopt)(fd, IPPROTO_TCP, TCP_NODELAY, &now, &size) == 0 && now)
		atomic_fetch_or(&r->flags, REC_NODELAY);
	else
		real(setsockopt)(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	size = sizeof(now);
	if (real(getsockopt)(fd, IPPROTO_TCP, TCP_INQ, &now, &size) == 0 && now)
		atomic_fetch_or(&r->flags, REC_INQ);
	size = sizeof(now);
	if (real(getsockopt)(fd, IPPROTO_TCP, TCP_CORK, &now, &size) == 0 && now) {
		atomic_fetch_or(&r->flags, REC_CORK);
		real(setsockopt)(fd, IPPROTO_TCP, TCP_CORK, &zero, sizeof(zero));
	}
}

void stream_restore_options(struct rec *r, int fd)
{
	int zero = 0, one = 1;

	if (!sock_flag(r, REC_NODELAY))
		real(setsockopt)(fd, IPPROTO_TCP, TCP_NODELAY, &zero, sizeof(zero));
	if (sock_flag(r, REC_CORK))
		real(setsockopt)(fd, IPPROTO_TCP, TCP_CORK, &one, sizeof(one));
}
