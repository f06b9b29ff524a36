/* SPDX-License-Identifier: MIT */
#include "base/tsan.h"

#ifdef TSAN

#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>

void __tsan_acquire(void *at);
void __tsan_release(void *at);

static char wires[1 << 16];

static unsigned port_of(int fd, int (*name)(int, struct sockaddr *restrict, socklen_t *restrict))
{
	struct sockaddr_in6 at = { 0 }; /* the port stands where that of IPv4 does */
	socklen_t size = sizeof(at);

	return name(fd, (struct sockaddr *)&at, &size) ? 0 : ntohs(at.sin6_port);
}

/* The same one for both ends. */
static void *wire_of(int fd)
{
	return &wires[(port_of(fd, getsockname) + port_of(fd, getpeername)) & 0xffff];
}

void tsan_sends(int fd)
{
	int saved = errno;

	__tsan_release(wire_of(fd));
	errno = saved;
}

void tsan_received(int fd)
{
	int saved = errno;

	__tsan_acquire(wire_of(fd));
	errno = saved;
}

void tsan_puts(unsigned long key)
{
	__tsan_release(&wires[key & 0xffff]);
}

void tsan_finds(unsigned long key)
{
	__tsan_acquire(&wires[key & 0xffff]);
}

#endif
