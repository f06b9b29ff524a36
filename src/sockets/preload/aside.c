/* SPDX-License-Identifier: MIT */
/* Descriptors that go where no hook is, or come from there. */
#include <string.h>

#include "sockets/preload/hook.h"
#include "sockets/record/user.h"
#include "sockets/sleep/epoll.h"

/* More control data than this the kernel refuses, unless somebody has raised its limit far. */
#define CONTROL_MOST (1u << 20)

void hook_let_go(int fd)
{
	if ((sock_at(fd) != SOCK_OTHER || epoll_of(fd)) && process_is_self()) {
		epoll_closing(fd);
		sock_closing(fd);
	}
}

/* One after the other, as long as they stand within what was passed: the kernel is as strict. */
static void each_descriptor(const struct msghdr *msg, void (*call)(int fd))
{
	const char *control = msg->msg_control;
	size_t n = msg->msg_controllen;

	while (n >= CMSG_LEN(sizeof(int))) {
		struct cmsghdr c;

		memcpy(&c, control, sizeof(c));
		if (c.cmsg_len < sizeof(c) || c.cmsg_len > n)
			return;
		if (c.cmsg_level == SOL_SOCKET && c.cmsg_type == SCM_RIGHTS) {
			for (size_t at = CMSG_LEN(0); at + sizeof(int) <= c.cmsg_len;
			     at += sizeof(int)) {
				int fd;

				memcpy(&fd, control + at, sizeof(fd));
				call(fd);
			}
		}
		if (CMSG_ALIGN(c.cmsg_len) >= n)
			return;
		control += CMSG_ALIGN(c.cmsg_len);
		n -= CMSG_ALIGN(c.cmsg_len);
	}
}

void hook_step_aside(int fd, enum why why)
{
	struct rec *r = sock_live(fd);

	/* Listeners are the kernel's wherever they go. */
	if (r && !sock_flag(r, REC_LISTEN))
		sock_hand_over(r, fd, why);
	epoll_passing(fd);
}

static void passing(int fd)
{
	hook_step_aside(fd, WHY_PASSED);
}

void hook_passing_descriptors(const struct msghdr *msg)
{
	if (user_readable(msg, sizeof(*msg)) && msg->msg_controllen <= CONTROL_MOST &&
	    user_readable(msg->msg_control, msg->msg_controllen))
		each_descriptor(msg, passing);
}

static void received(int fd)
{
	struct rec *r;

	sock_unknown(fd);
	r = sock_of(fd);
	/* Its sender may still use it. */
	if (r && !sock_flag(r, REC_LISTEN))
		sock_hand_over(r, fd, WHY_PASSED);
}

void hook_received_descriptors(const struct msghdr *msg)
{
	each_descriptor(msg, received);
}
