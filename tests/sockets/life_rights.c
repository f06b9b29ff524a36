/* SPDX-License-Identifier: MIT */
/* The connection is sent to another process, which has the library or has not. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "life.h"

enum { WITH, WITHOUT, STATIC, KEPT, KINDS };

static bool send_rights(int to, int fd)
{
	char control[CMSG_SPACE(sizeof(int))] = { 0 };
	char octet = '.';
	struct iovec iov = { &octet, 1 };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control };
	struct cmsghdr *c;

	msg.msg_controllen = sizeof(control);
	c = CMSG_FIRSTHDR(&msg);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &fd, sizeof(fd));
	return sendmsg(to, &msg, 0) == 1;
}

static void play(struct life *l)
{
	char *const *args;
	int mail[2];
	pid_t child;

	life_begin(l);
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, mail))
		stage_die(&l->st, "socketpair");
	child = fork();
	if (child == 0) {
		/* This copy is not the one that is used. */
		close(l->st.fd);
		if (l->kind == WITHOUT)
			unsetenv("LD_PRELOAD");
		life_heir_args(l, l->kind == STATIC ? "life_heir_static" : "life_heir", mail[1],
			       true, &args);
		execv(args[0], args);
		_exit(9);
	}
	if (!send_rights(mail[0], l->st.fd))
		stage_bad(&l->st, "sendmsg");
	if (l->kind != KEPT)
		close(l->st.fd);
	life_wait(l, child);
	if (l->kind == KEPT) {
		life_skip(l);
		life_calm(l);
		life_go_on(l);
		close(l->st.fd);
	}
	life_end(l);
}

int main(void)
{
	return life_main(play, KINDS, NULL);
}
