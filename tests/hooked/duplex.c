/* SPDX-License-Identifier: MIT */
/*
 * Connections with a thread for each direction at each end, from the first octet on: that is when a lane comes up
 * under calls of other threads. They are short, so that this happens often.
 */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "hooked/scenes.h"

#define PLACES  3
#define LONGEST (600 << 10)

/* What other threads do to a connection in use. */
struct meddler {
	int fd[2];
	void (*act)(struct random *r, int fd);
};

static void *meddle(void *arg)
{
	struct meddler *m = arg;
	struct random r = crowd_random();

	crowd_nap(&r, 3000);
	m->act(&r, m->fd[random_below(&r, 2)]);
	return NULL;
}

/* One connection, from its beginning to its end. */
static void live(struct random *r, int listener, void (*act)(struct random *r, int fd))
{
	struct meddler m = { .act = act };
	struct way way[2];
	pthread_t thread[5];
	int n = 0;
	uint64_t total = random_size(r, 1, LONGEST);
	bool nonblocking = random_below(r, 3) == 0;

	crowd_pair(listener, m.fd);
	if (random_below(r, 2))
		crowd_warm(m.fd, (int)random_below(r, 6));
	for (int i = 0; i < 2; i++) {
		if (nonblocking)
			crowd_set_nonblocking(m.fd[i]);
		way[i] = (struct way) { .from = m.fd[i],
					.to = m.fd[!i],
					.key = random_next(r),
					.total = total,
					.polite = random_below(r, 3) == 0,
					.flags = random_below(r, 4) == 0 ? MSG_DONTWAIT : 0 };
		thread[n++] = crowd_start(crowd_sender, &way[i]);
		thread[n++] = crowd_start(crowd_receiver, &way[i]);
	}
	if (act)
		thread[n++] = crowd_start(meddle, &m);
	while (n > 0)
		crowd_join(thread[--n]);
	close(m.fd[0]);
	close(m.fd[1]);
	crowd_did("connections", 1);
}

static void *live_on(void *arg)
{
	struct random r = crowd_random();
	int listener = stage_listen(AF_INET, 16);

	while (!crowd_over())
		live(&r, listener, *(void (**)(struct random *, int))arg);
	close(listener);
	return NULL;
}

static void play(void (*act)(struct random *r, int fd))
{
	pthread_t thread[PLACES];

	for (int i = 0; i < PLACES; i++)
		thread[i] = crowd_start(live_on, &act);
	for (int i = 0; i < PLACES; i++)
		crowd_join(thread[i]);
}

void scene_duplex(void)
{
	play(NULL);
}

/* --- questions and options that change nothing, beside the traffic */

static void ask(struct random *r, int fd)
{
	int value = (int)random_below(r, 2);
	socklen_t size = sizeof(value);

	for (int i = 0; i < 20; i++) {
		switch (random_below(r, 6)) {
		case 0: ioctl(fd, FIONREAD, &value); break;
		case 1: getsockopt(fd, SOL_SOCKET, SO_ERROR, &value, &size); break;
		case 2: setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, sizeof(value)); break;
		case 3: getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, &size); break;
		case 4: close(dup(fd)); break;
		default: crowd_nap(r, 200);
		}
	}
}

void scene_questions(void)
{
	play(ask);
}

/* --- what only TCP can do: the lane is left under the calls of the others */

static void pass(int fd)
{
	char control[CMSG_SPACE(sizeof(int))] = { 0 };
	char octet = 0;
	struct iovec iov = { &octet, 1 };
	struct msghdr msg = { .msg_iov = &iov,
			      .msg_iovlen = 1,
			      .msg_control = control,
			      .msg_controllen = sizeof(control) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
	int both[2], got;

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, both) != 0)
		return;
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &fd, sizeof(fd));
	if (sendmsg(both[0], &msg, 0) == 1 && recvmsg(both[1], &msg, 0) == 1 &&
	    CMSG_FIRSTHDR(&msg)) {
		memcpy(&got, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof(got));
		close(got);
	}
	close(both[0]);
	close(both[1]);
}

static void step_down(struct random *r, int fd)
{
	int on = 1;
	FILE *file;

	switch (random_below(r, 6)) {
	case 0: setsockopt(fd, SOL_SOCKET, SO_TIMESTAMP, &on, sizeof(on)); break;
	case 1: setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &on, sizeof(on)); break;
	/* One in a connection: a second would leave the first in the stream. */
	case 2: send(fd, "!", 1, MSG_OOB | MSG_NOSIGNAL | MSG_DONTWAIT); break;
	case 3:
		file = fdopen(dup(fd), "r");
		if (file)
			fclose(file);
		break;
	case 4: pass(fd); break;
	default:
		if (system("true") != 0)
			crowd_bad("system()");
	}
	crowd_did("steps down", 1);
}

void scene_down(void)
{
	signal(SIGURG, SIG_IGN);
	play(step_down);
}
