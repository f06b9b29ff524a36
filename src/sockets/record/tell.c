/* SPDX-License-Identifier: MIT */
#include "sockets/record/tell.h"

#include <errno.h>
#include <string.h>
#include <sys/un.h>
#include <time.h>

#include "base/own.h"
#include "base/sys.h"
#include "base/util.h"
#include "sockets/record/process.h"
#include "sockets/record/settings.h"
#include "sockets/record/real.h"
#include "sockets/record/sock.h"

#define TRIES 20 /* for what comes once in a process's life */

static struct {
	struct sockaddr_un address;
	socklen_t size; /* 0: nobody listens */
	char token[TELL_TOKEN];
} listener;

void tell_init(const char *text)
{
	const char *colon = text ? strchr(text, ':') : NULL;
	size_t length = colon ? (size_t)(colon - text) : 0;

	if (!colon || length > TELL_NAME || strlen(colon + 1) != TELL_TOKEN)
		return;
	listener.address.sun_family = AF_UNIX;
	memcpy(listener.address.sun_path + 1, text, length);
	memcpy(listener.token, colon + 1, TELL_TOKEN);
	listener.size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
}

/* The name may be another's by now. Whoever it is must be able to look into this process anyway. */
static bool is_trusted(int fd)
{
	struct ucred who;
	socklen_t size = sizeof(who);

	return real(getsockopt)(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0 &&
	       (who.uid == 0 || who.uid == geteuid());
}

static bool post(int fd, const struct tell_letter *letter, size_t size, int enclosure)
{
	struct iovec iov = { (void *)letter, size };
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof(int))];
	} control = { .head = { .cmsg_len = CMSG_LEN(sizeof(int)),
				.cmsg_level = SOL_SOCKET,
				.cmsg_type = SCM_RIGHTS } };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };

	if (enclosure >= 0) {
		memcpy(CMSG_DATA(&control.head), &enclosure, sizeof(enclosure));
		msg.msg_control = &control;
		msg.msg_controllen = sizeof(control);
	}
	return sys_sendmsg(fd, &msg, MSG_NOSIGNAL) == (ssize_t)size;
}

/* EAGAIN: there is a listener, with too much to do. */
static bool tell(struct tell_letter *letter, size_t size, int enclosure)
{
	int fd;
	bool done;

	errno = 0;
	if (settings.sealed || !listener.size)
		return false;
	fd = own_new(real(socket)(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
	if (fd < 0)
		return false;
	letter->version = HOME_VERSION;
	memcpy(letter->token, listener.token, TELL_TOKEN);
	done = sys_connect(fd, (struct sockaddr *)&listener.address, listener.size) == 0 &&
	       is_trusted(fd) && post(fd, letter, size, enclosure);
	own_close(fd);
	return done;
}

static void set_ends(struct tell_letter *letter, const struct rec *r)
{
	memcpy(letter->ends, &r->end.self.sin6_addr, 16);
	memcpy(letter->ends + 16, &r->end.self.sin6_port, 2);
	memcpy(letter->ends + 18, &r->end.peer.sin6_addr, 16);
	memcpy(letter->ends + 34, &r->end.peer.sin6_port, 2);
	letter->why = r->why;
}

bool tell_home(int fd)
{
	static const struct timespec moment = { .tv_nsec = 1000000 };
	struct tell_letter letter = { .kind = TELL_HOME };
	int saved = errno;
	bool done = false;

	for (int i = 0; i < TRIES && !done; i++) {
		done = tell(&letter, offsetof(struct tell_letter, line), fd);
		if (done || errno != EAGAIN)
			break;
		real(syscall)(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &moment, NULL);
	}
	errno = saved;
	return done;
}

void tell_absent(const struct rec *r)
{
	struct tell_letter letter = { .kind = TELL_ABSENT };
	int saved = errno;

	set_ends(&letter, r);
	tell(&letter, offsetof(struct tell_letter, line), -1);
	errno = saved;
}

bool tell_closed(const struct rec *r, const char *line)
{
	struct tell_letter letter = { .kind = TELL_CLOSED };
	size_t length = min_size(strlen(line), sizeof(letter.line) - 1);
	int saved = errno;
	bool done;

	set_ends(&letter, r);
	memcpy(letter.line, line, length);
	done = tell(&letter, offsetof(struct tell_letter, line) + length + 1, -1);
	errno = saved;
	return done;
}
