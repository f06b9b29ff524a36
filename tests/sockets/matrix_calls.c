/* SPDX-License-Identifier: MIT */
/* The calls to sleep in. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "matrix.h"

#define SOME 100

static void tell(struct cell *c, ssize_t result)
{
	matrix_result(c->result, sizeof(c->result), result);
}

static void tell_bits(struct cell *c, int n, unsigned bits)
{
	if (n < 0)
		tell(c, n);
	else
		snprintf(c->result, sizeof(c->result), "%d: %x", n, bits);
}

/* ---- before the sleep ---- */

static void nothing(struct cell *c)
{
	(void)c;
}

/* A part of what the call wants is there. */
static void leave_some(struct cell *c)
{
	matrix_ask(c, PARTNER_SENDS, SOME);
}

/* No room is left, not for an octet. */
static void fill(struct cell *c)
{
	struct pollfd p = { c->fd, POLLOUT, 0 };

	/* The peer's window opens again and again for a while. */
	do
		for (size_t n = 65536; n; n /= 16)
			while (send(c->fd, c->much, n, MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
				;
	while (poll(&p, 1, 60) == 1 || send(c->fd, c->much, 1, MSG_DONTWAIT | MSG_NOSIGNAL) > 0);
}

static void fill_and_pipe(struct cell *c)
{
	fill(c);
	if (write(c->pipe[1], c->much, SOME) != SOME)
		c->result[0] = '?';
}

static void watch(struct cell *c, uint32_t events)
{
	struct epoll_event ev = { .events = events, .data.u32 = 1 };

	epoll_ctl(c->set, EPOLL_CTL_ADD, c->fd, &ev);
}

static void watch_level(struct cell *c)
{
	watch(c, EPOLLIN);
}

static void watch_edge(struct cell *c)
{
	watch(c, EPOLLIN | EPOLLET);
}

static void watch_room(struct cell *c)
{
	fill(c);
	watch(c, EPOLLOUT);
}

/* ---- calls ---- */

static void in_recv(struct cell *c)
{
	tell(c, recv(c->fd, c->much, 1000, 0));
}

static void in_read(struct cell *c)
{
	tell(c, read(c->fd, c->much, 1000));
}

static void in_recv_all(struct cell *c)
{
	tell(c, recv(c->fd, c->much, SOME + 200, MSG_WAITALL));
}

static void in_recvmmsg(struct cell *c)
{
	struct iovec iov = { c->much, 1000 };
	struct mmsghdr msg = { .msg_hdr = { .msg_iov = &iov, .msg_iovlen = 1 } };
	int n = recvmmsg(c->fd, &msg, 1, 0, NULL);

	tell(c, n < 0 ? n : (ssize_t)msg.msg_len);
}

static void in_splice(struct cell *c)
{
	tell(c, splice(c->fd, NULL, c->pipe[1], NULL, 1000, 0));
}

static void in_send(struct cell *c)
{
	tell(c, send(c->fd, c->much, MATRIX_MUCH, MSG_NOSIGNAL));
}

/* There was no room when it began. */
static void in_send_full(struct cell *c)
{
	tell(c, send(c->fd, c->much, SOME, MSG_NOSIGNAL));
}

static void in_writev(struct cell *c)
{
	struct iovec iov[2] = { { c->much, MATRIX_MUCH / 2 }, { c->much, MATRIX_MUCH / 2 } };

	tell(c, writev(c->fd, iov, 2));
}

static void in_sendfile(struct cell *c)
{
	off_t at = 0;

	tell(c, sendfile(c->fd, c->file, &at, MATRIX_MUCH));
}

static void in_splice_full(struct cell *c)
{
	tell(c, splice(c->pipe[0], NULL, c->fd, NULL, SOME, 0));
}

static void in_poll(struct cell *c)
{
	struct pollfd p[2] = { { c->fd, POLLIN | POLLRDHUP, 0 }, { c->beside, POLLIN, 0 } };
	int n = poll(p, 2, -1);

	tell_bits(c, n, (unsigned)p[0].revents);
}

static void in_poll_room(struct cell *c)
{
	struct pollfd p = { c->fd, POLLOUT, 0 };
	int n = poll(&p, 1, -1);

	tell_bits(c, n, (unsigned)p.revents);
}

static void in_select(struct cell *c)
{
	fd_set in;
	int n;

	FD_ZERO(&in);
	FD_SET(c->fd, &in);
	n = select(c->fd + 1, &in, NULL, NULL, NULL);
	tell_bits(c, n, n > 0 && FD_ISSET(c->fd, &in));
}

static void in_epoll(struct cell *c)
{
	struct epoll_event ev = { 0 };
	int n = epoll_wait(c->set, &ev, 1, -1);

	tell_bits(c, n, ev.events);
}

static void in_accept(struct cell *c)
{
	int fd = accept(c->listener, NULL, NULL);

	tell(c, fd < 0 ? -1 : 0);
}

const struct matrix_call matrix_calls[] = {
	{ "recv", SLEEPS_FOR_OCTETS, nothing, in_recv },
	{ "read", SLEEPS_FOR_OCTETS, nothing, in_read },
	{ "recv-all", SLEEPS_FOR_OCTETS, leave_some, in_recv_all },
	{ "recvmmsg", SLEEPS_FOR_OCTETS, nothing, in_recvmmsg },
	{ "splice-in", SLEEPS_FOR_OCTETS, nothing, in_splice },
	{ "send", SLEEPS_FOR_ROOM, nothing, in_send },
	{ "send-full", SLEEPS_FOR_ROOM, fill, in_send_full },
	{ "writev", SLEEPS_FOR_ROOM, nothing, in_writev },
	{ "sendfile", SLEEPS_FOR_ROOM, nothing, in_sendfile },
	{ "splice-full", SLEEPS_FOR_ROOM, fill_and_pipe, in_splice_full },
	{ "poll", SLEEPS_FOR_OCTETS, nothing, in_poll },
	{ "poll-full", SLEEPS_FOR_ROOM, fill, in_poll_room },
	{ "select", SLEEPS_FOR_OCTETS, nothing, in_select },
	{ "epoll", SLEEPS_FOR_OCTETS, watch_level, in_epoll },
	{ "epoll-edge", SLEEPS_FOR_OCTETS, watch_edge, in_epoll },
	{ "epoll-full", SLEEPS_FOR_ROOM, watch_room, in_epoll },
	{ "accept", SLEEPS_FOR_CONNECTIONS, nothing, in_accept },
	{ 0 },
};
