/* SPDX-License-Identifier: MIT */
#include "channel/door.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>

#include "base/own.h"
#include "base/sys.h"
#include "base/util.h"
#include "channel/duct.h"
#include "channel/mailbox.h"

#define MAGIC   0x666c7565646f6f72ull
#define BACKLOG 128
#define STRANGE 64 /* callers of other users that are turned away at a time */

static socklen_t name_of(uint16_t number, struct sockaddr_un *name)
{
	int n;

	*name = (struct sockaddr_un) { .sun_family = AF_UNIX };
	n = snprintf(name->sun_path + 1, sizeof(name->sun_path) - 1, "flue-door-%04x", number);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

static int new_socket(void)
{
	return own_new(sys_socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

static int keep(int fd)
{
	int kept = own_move(fd);

	return kept < 0 ? -EMFILE : kept;
}

int door_open(uint16_t number)
{
	struct sockaddr_un name;
	socklen_t size = name_of(number, &name);
	int fd = new_socket(), rc;

	if (fd < 0)
		return -errno;
	if (sys_bind(fd, (struct sockaddr *)&name, size) != 0 || sys_listen(fd, BACKLOG) != 0) {
		rc = -errno;
		own_close(fd);
		return rc;
	}
	return keep(fd);
}

/* ---- calling ---- */

static int find(uint16_t number, pid_t *pid)
{
	struct sockaddr_un name;
	socklen_t size = name_of(number, &name);
	int fd = new_socket(), rc = 0;

	if (fd < 0)
		return -errno;
	if (sys_connect(fd, (struct sockaddr *)&name, size) != 0)
		rc = -errno;
	else if (!mailbox_same_user(fd, pid))
		rc = -ECONNREFUSED;
	if (!rc)
		return keep(fd);
	own_close(fd);
	return rc;
}

static bool give(int sock, int memory)
{
	union {
		struct cmsghdr align;
		char room[CMSG_SPACE(sizeof(int))];
	} control = { 0 };
	uint64_t magic = MAGIC;
	struct iovec iov = { &magic, sizeof(magic) };
	struct msghdr msg = { .msg_iov = &iov,
			      .msg_iovlen = 1,
			      .msg_control = &control,
			      .msg_controllen = sizeof(control) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(memory));
	memcpy(CMSG_DATA(c), &memory, sizeof(memory));
	return sys_sendmsg(sock, &msg, MSG_NOSIGNAL) == (ssize_t)sizeof(magic);
}

int door_call(uint16_t number, pid_t *pid, struct duct **out)
{
	int sock = find(number, pid), memory, rc;

	if (sock < 0)
		return sock;
	rc = duct_make(sock, &memory, out);
	if (rc)
		return rc;
	if (!give(sock, memory)) {
		duct_close(*out);
		rc = -ECONNREFUSED;
	}
	own_close(memory);
	return rc;
}

/* ---- being called ---- */

int door_accept(int door)
{
	for (int i = 0; i < STRANGE; i++) {
		int fd = own_new(sys_accept(door, SOCK_CLOEXEC | SOCK_NONBLOCK));

		if (fd < 0)
			return -errno;
		if (mailbox_same_user(fd, NULL))
			return keep(fd);
		own_close(fd);
	}
	return -EAGAIN;
}

/* The one descriptor that belongs there; others are closed. */
static int read_memory(struct msghdr *msg)
{
	struct cmsghdr *c = CMSG_FIRSTHDR(msg);
	int fds[4], memory = -1;
	size_t n;

	if (!c || c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
		return -1;
	n = min_size((c->cmsg_len - CMSG_LEN(0)) / sizeof(int), ARRAY_SIZE(fds));
	memcpy(fds, CMSG_DATA(c), n * sizeof(int));
	for (size_t i = 0; i < n; i++) {
		own_new(fds[i]);
		if (n == 1)
			memory = fds[i];
		else
			own_close(fds[i]);
	}
	return memory;
}

int door_answer(int sock, struct duct **out)
{
	union {
		struct cmsghdr align;
		char room[CMSG_SPACE(4 * sizeof(int))];
	} control;
	uint64_t magic = 0;
	struct iovec iov = { &magic, sizeof(magic) };
	struct msghdr msg = { .msg_iov = &iov,
			      .msg_iovlen = 1,
			      .msg_control = &control,
			      .msg_controllen = sizeof(control) };
	ssize_t n = sys_recvmsg(sock, &msg, MSG_CMSG_CLOEXEC);
	int memory, rc;

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return -EAGAIN;
	memory = n >= 0 ? read_memory(&msg) : -1;
	if (memory < 0 || n != (ssize_t)sizeof(magic) || magic != MAGIC ||
	    msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) {
		if (memory >= 0)
			own_close(memory);
		sys_close(sock);
		return -EINVAL;
	}
	rc = duct_take(memory, sock, out);
	own_close(memory);
	return rc;
}

bool door_is_dead(pid_t pid)
{
	int saved = errno, fd = own_new((int)sys_call(SYS_pidfd_open, pid, 0));
	struct pollfd p = { .fd = fd, .events = POLLIN };
	bool dead = fd < 0 ? errno == ESRCH : sys_poll(&p, 1) == 1 && p.revents & POLLIN;

	if (fd >= 0)
		own_close(fd);
	errno = saved;
	return dead;
}
