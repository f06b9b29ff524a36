/* SPDX-License-Identifier: MIT */
#include "access/stream.h"

#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

int acc_stream_check(int fd)
{
	struct sockaddr_storage peer;
	socklen_t len = sizeof(peer);
	int protocol = 0;
	socklen_t size = sizeof(protocol);

	if (getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &size) < 0)
		return -errno;
	if (protocol != IPPROTO_TCP)
		return -EPROTOTYPE;
	return getpeername(fd, (struct sockaddr *)&peer, &len) < 0 ? -errno : 0;
}

static int stream_error(int fd)
{
	struct tcp_info info = { 0 };
	socklen_t len = sizeof(info);
	int err = 0;

	if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) < 0)
		return -errno;
	if (info.tcpi_state != TCP_CLOSE)
		return 0;
	len = sizeof(err);
	if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &len) < 0 || !err)
		err = ECONNRESET;
	return -err;
}

int acc_stream_unacked(int fd)
{
	int n = 0, err;

	if (ioctl(fd, SIOCOUTQ, &n) < 0)
		return -errno;
	if (n == 0)
		return 0;
	/* A connection that was reset keeps its count for ever. */
	err = stream_error(fd);
	return err ? err : n;
}

void acc_stream_ack_now(int fd)
{
	int one = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_QUICKACK, &one, sizeof(one));
}

void acc_stream_reset(int fd)
{
	struct sockaddr nobody = { .sa_family = AF_UNSPEC };

	connect(fd, &nobody, sizeof(nobody));
	close(fd);
}
