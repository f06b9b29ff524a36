/* SPDX-License-Identifier: MIT */
/* Addresses that are not there: EFAULT and no octet lost, as from the kernel. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "life.h"

enum { SENDS, READS, KINDS };

static void tell(struct life *l, const char *what, ssize_t n)
{
	stage_say(&l->st, "%s: %s", what, n < 0 ? stage_errno(errno) : n ? "some" : "0");
}

static void sends(struct life *l, uint8_t *hole, const uint8_t *constant)
{
	struct iovec iov[2] = { { hole, 100 }, { hole, 100 } };
	struct msghdr msg = { .msg_iov = iov, .msg_iovlen = 2 };
	int fd = l->st.fd;

	(void)constant;
	tell(l, "send", send(fd, hole, 100, MSG_NOSIGNAL));
	tell(l, "write", write(fd, hole, 100));
	tell(l, "writev", writev(fd, iov, 2));
	tell(l, "sendmsg", sendmsg(fd, &msg, MSG_NOSIGNAL));
	tell(l, "sendmsg without a message", sendmsg(fd, (struct msghdr *)hole, 0));
	tell(l, "writev without a vector", writev(fd, (struct iovec *)hole, 2));
}

static void reads(struct life *l, uint8_t *hole, uint8_t *constant)
{
	struct iovec iov[2] = { { hole, 100 }, { constant, 100 } };
	struct msghdr msg = { .msg_iov = iov, .msg_iovlen = 2 };
	int fd = l->st.fd;

	if (!l->pending)
		return;
	stage_settle(&l->st, l->pending);
	tell(l, "recv", recv(fd, hole, 100, 0));
	tell(l, "recv of constants", recv(fd, constant, 100, 0));
	tell(l, "peek", recv(fd, hole, 100, MSG_PEEK));
	tell(l, "read", read(fd, hole, 100));
	tell(l, "readv", readv(fd, iov, 2));
	tell(l, "recvmsg", recvmsg(fd, &msg, 0));
}

static void play(struct life *l)
{
	uint8_t *hole = mmap(NULL, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint8_t *constant = mmap(NULL, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	life_begin(l);
	if (l->kind == SENDS)
		sends(l, hole, constant);
	else
		reads(l, hole, constant);
	life_go_on(l);
	close(l->st.fd);
	life_end(l);
}

int main(void)
{
	return life_main(play, KINDS, NULL);
}
