/* SPDX-License-Identifier: MIT */
/* The calls that may wake the sleeper, or have to wait for nothing. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "matrix.h"

extern char **environ;

#define ACT(name) static void name(struct cell *c __attribute__((unused)), char *result, size_t n)
#define TELL(rc)  matrix_result(result, n, rc)

ACT(shutdown_rd)
{
	c->spent = true;
	TELL(shutdown(c->fd, SHUT_RD));
}

ACT(shutdown_wr)
{
	c->spent = true;
	TELL(shutdown(c->fd, SHUT_WR));
}

ACT(shutdown_rdwr)
{
	c->spent = true;
	TELL(shutdown(c->fd, SHUT_RDWR));
}

ACT(shutdown_listener)
{
	TELL(shutdown(c->listener, SHUT_RDWR));
}

ACT(close_it)
{
	c->spent = true;
	TELL(close(c->fd));
}

ACT(close_listener)
{
	TELL(close(c->listener));
}

ACT(close_set)
{
	TELL(close(c->set));
}

/* The number is another descriptor at once. */
ACT(replace)
{
	int rc = dup2(c->pipe[0], c->fd);

	c->spent = true;
	TELL(rc == c->fd ? 0 : -1);
}

/* A second number, and the first is closed. */
ACT(move)
{
	int fd = dup(c->fd);

	close(c->fd);
	c->fd = fd;
	TELL(fd < 0 ? -1 : 0);
}

ACT(send_now)
{
	uint8_t octet = 0;

	TELL(send(c->fd, &octet, 1, MSG_DONTWAIT | MSG_NOSIGNAL));
}

ACT(recv_now)
{
	uint8_t data[10];

	TELL(recv(c->fd, data, sizeof(data), MSG_DONTWAIT));
}

ACT(peek_now)
{
	uint8_t data[10];

	TELL(recv(c->fd, data, sizeof(data), MSG_DONTWAIT | MSG_PEEK));
}

ACT(urgent)
{
	TELL(send(c->fd, "!", 1, MSG_OOB | MSG_DONTWAIT | MSG_NOSIGNAL));
}

/* It is asleep in a blocking call already. */
ACT(nonblock)
{
	int rc = fcntl(c->fd, F_SETFL, O_NONBLOCK);

	TELL(rc);
	fcntl(c->fd, F_SETFL, 0);
}

ACT(options)
{
	int one = 1, there = 0, room = 100000;
	struct tcp_info info;
	socklen_t len = sizeof(info);

	if (setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) ||
	    setsockopt(c->fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one)) ||
	    setsockopt(c->fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof(room)) ||
	    getsockopt(c->fd, IPPROTO_TCP, TCP_INFO, &info, &len) || ioctl(c->fd, FIONREAD, &there))
		TELL(-1);
	else
		TELL(0);
}

static int reap(pid_t pid)
{
	int status = -1;

	if (pid < 0)
		return -1;
	waitpid(pid, &status, 0);
	return status;
}

ACT(by_system)
{
	TELL(system("exit 0"));
}

ACT(by_fork)
{
	pid_t pid = fork();

	if (pid == 0)
		_exit(0);
	TELL(reap(pid));
}

/* The program has the connection as well, for a moment. */
ACT(by_exec)
{
	pid_t pid = fork();

	if (pid == 0) {
		execl("/bin/true", "true", NULL);
		_exit(1);
	}
	TELL(reap(pid));
}

ACT(by_spawn)
{
	char name[] = "true", *argv[] = { name, NULL };
	pid_t pid = -1;

	if (posix_spawn(&pid, "/bin/true", NULL, NULL, argv, environ))
		pid = -1;
	TELL(reap(pid));
}

ACT(pass)
{
	union {
		char space[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control = { 0 };
	struct iovec iov = { control.space, 1 };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control };
	struct cmsghdr *head;
	int pair[2];

	msg.msg_controllen = sizeof(control);
	head = CMSG_FIRSTHDR(&msg);
	head->cmsg_level = SOL_SOCKET;
	head->cmsg_type = SCM_RIGHTS;
	head->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(head), &c->fd, sizeof(int));
	socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
	TELL(sendmsg(pair[0], &msg, 0));
	close(pair[0]);
	close(pair[1]);
}

ACT(forget)
{
	TELL(epoll_ctl(c->set, EPOLL_CTL_DEL, c->fd, NULL));
}

ACT(change)
{
	struct epoll_event ev = { .events = EPOLLIN | EPOLLOUT, .data.u32 = 2 };

	TELL(epoll_ctl(c->set, EPOLL_CTL_MOD, c->fd, &ev));
}

ACT(enter)
{
	struct epoll_event ev = { .events = EPOLLIN | EPOLLOUT, .data.u32 = 2 };
	int set = epoll_create1(EPOLL_CLOEXEC);

	TELL(epoll_ctl(set, EPOLL_CTL_ADD, c->fd, &ev));
	close(set);
}

ACT(signal_restart)
{
	TELL(pthread_kill(c->sleeper, SIGUSR1));
}

ACT(signal_break)
{
	TELL(pthread_kill(c->sleeper, SIGUSR2));
}

ACT(cancel)
{
	TELL(pthread_cancel(c->sleeper));
}

ACT(peer_closes)
{
	c->spent = true;
	TELL((ssize_t)matrix_ask(c, PARTNER_CLOSES, 0));
}

ACT(peer_resets)
{
	c->spent = true;
	TELL((ssize_t)matrix_ask(c, PARTNER_RESETS, 0));
}

const struct matrix_act matrix_acts[] = {
	{ "shutdown-rd", shutdown_rd },
	{ "shutdown-wr", shutdown_wr },
	{ "shutdown-rdwr", shutdown_rdwr },
	{ "shutdown-listener", shutdown_listener },
	{ "close", close_it },
	{ "close-listener", close_listener },
	{ "close-set", close_set },
	{ "dup2", replace },
	{ "move", move },
	{ "send", send_now },
	{ "recv", recv_now },
	{ "peek", peek_now },
	{ "urgent", urgent },
	{ "nonblock", nonblock },
	{ "options", options },
	{ "system", by_system },
	{ "fork", by_fork },
	{ "exec", by_exec },
	{ "spawn", by_spawn },
	{ "rights", pass },
	{ "epoll-del", forget },
	{ "epoll-mod", change },
	{ "epoll-add", enter },
	{ "restart", signal_restart },
	{ "break", signal_break },
	{ "cancel", cancel },
	{ "peer-closes", peer_closes },
	{ "peer-resets", peer_resets },
	{ 0 },
};
