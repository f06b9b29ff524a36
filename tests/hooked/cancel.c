/* SPDX-License-Identifier: MIT */
/* Threads that are cancelled in calls that sleep. Whoever uses the same sockets afterwards finds them in order. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/util.h"
#include "hooked/scenes.h"

#define PLACES  3
#define AFTER_S 20 /* an answer that takes longer does not come */

enum call { IN_RECV, IN_READ, IN_POLL, IN_SELECT, IN_EPOLL, IN_SEND, IN_ACCEPT, CALLS };

struct sleeper {
	enum call call;
	int fd, listener, set;
};

static void sleep_in(struct sleeper *s)
{
	struct pollfd p = { .fd = s->fd, .events = POLLIN };
	struct epoll_event event;
	uint8_t octets[65536] = { 0 };
	fd_set set;

	switch (s->call) {
	case IN_RECV: recv(s->fd, octets, sizeof(octets), 0); break;
	case IN_READ:
		if (read(s->fd, octets, sizeof(octets)) < 0)
			break; /* only its end matters */
		break;
	case IN_POLL: poll(&p, 1, -1); break;
	case IN_SELECT:
		FD_ZERO(&set);
		FD_SET(s->fd, &set);
		select(s->fd + 1, &set, NULL, NULL, NULL);
		break;
	case IN_EPOLL: epoll_wait(s->set, &event, 1, -1); break;
	case IN_SEND:
		while (send(s->fd, octets, sizeof(octets), MSG_NOSIGNAL) > 0)
			;
		break;
	case IN_ACCEPT: accept(s->listener, NULL, NULL); break;
	default: break;
	}
}

static void *fall_asleep(void *arg)
{
	sleep_in(arg);
	return NULL;
}

/* What the sleeper may have sent is read away, and a word of ours comes behind it. */
static void talk_again(struct random *r, int from, int to)
{
	const uint8_t word = 0xa5;
	uint8_t octets[65536];
	uint64_t limit = stage_now() + AFTER_S * 1000000ull;
	bool sent = false;
	ssize_t n = 0;

	do {
		if (!sent)
			sent = crowd_put(r, from, &word, 1, MSG_DONTWAIT) == 1;
		n = crowd_take(r, to, octets, sizeof(octets), MSG_DONTWAIT);
		if (n < 0)
			crowd_wait(r, to, POLLIN);
		if (stage_now() > limit) {
			crowd_bad("nothing comes through after a cancellation: %s",
				  sent ? "sent" : "not sent");
			return;
		}
	} while (n <= 0 || octets[n - 1] != word);
}

static void cancel_one(struct random *r, int listener)
{
	struct sleeper s = { .call = random_below(r, CALLS), .listener = listener };
	struct epoll_event event = { .events = EPOLLIN };
	int fd[2];
	pthread_t thread;

	crowd_pair(listener, fd);
	crowd_warm(fd, (int)random_below(r, 6));
	s.fd = fd[random_below(r, 2)];
	s.set = epoll_create1(EPOLL_CLOEXEC);
	epoll_ctl(s.set, EPOLL_CTL_ADD, s.fd, &event);
	thread = crowd_start(fall_asleep, &s);
	crowd_nap(r, 4000);
	pthread_cancel(thread);
	crowd_join(thread);
	talk_again(r, fd[0], fd[1]);
	talk_again(r, fd[1], fd[0]);
	close(fd[0]);
	close(s.set);
	close(fd[1]);
}

static void *cancel_on(void *arg)
{
	struct random r = crowd_random();
	int listener = stage_listen(AF_INET, 16);
	uint64_t n = 0;

	(void)arg;
	for (; !crowd_over(); n++)
		cancel_one(&r, listener);
	crowd_did("cancelled", n);
	close(listener);
	return NULL;
}

void scene_cancel(void)
{
	pthread_t thread[PLACES];

	for (int i = 0; i < PLACES; i++)
		thread[i] = crowd_start(cancel_on, NULL);
	for (int i = 0; i < PLACES; i++)
		crowd_join(thread[i]);
}
