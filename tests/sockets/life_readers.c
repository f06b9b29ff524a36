/* SPDX-License-Identifier: MIT */
/*
 * One reader sleeps, another one takes a part of what came and stops: the sleeper gets the rest. As
 * long as octets are left nobody may sleep for them.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "life.h"

enum {
	RECV,
	POLL,
	EPOLL,
	CHILD, /* the sleeper is another process, in recv() */
	CHILD_EPOLL,
	NOBODY, /* one thread: it looks into the set, reads past it, looks again */
	KINDS
};

/* A connection may be on TCP after the first time. */
#define CONNECTIONS 8
#define ROUNDS      10
#define LATE_MS     5000

/* Until an octet can be read; then reads it if `take`. */
static bool sleep_for_one(struct life *l, int set, bool take)
{
	struct pollfd p = { .fd = l->st.fd, .events = POLLIN };
	struct epoll_event ev;
	char octet;

	if (l->kind == POLL && poll(&p, 1, LATE_MS) != 1)
		return false;
	if (set >= 0 && epoll_wait(set, &ev, 1, LATE_MS) != 1)
		return false;
	return !take || recv(l->st.fd, &octet, 1, 0) == 1;
}

static int make_set(struct life *l)
{
	struct epoll_event ev = { .events = EPOLLIN };
	int set = epoll_create1(EPOLL_CLOEXEC);

	epoll_ctl(set, EPOLL_CTL_ADD, l->st.fd, &ev);
	return set;
}

static void *sleeper(void *arg)
{
	struct life *l = arg;
	int set = l->kind == EPOLL || l->kind == CHILD_EPOLL ? make_set(l) : -1;
	bool ok = sleep_for_one(l, set, true);

	if (!ok)
		stage_bad(&l->st, "slept though octets were left");
	if (set >= 0)
		close(set);
	return ok ? l : NULL;
}

/* One octet as soon as it comes, before the sleeper has opened its eyes. */
static void snatch(struct life *l)
{
	uint64_t end = stage_now() + LATE_MS * 1000;
	char octet;

	while (recv(l->st.fd, &octet, 1, MSG_DONTWAIT) != 1)
		if (stage_now() > end) {
			stage_bad(&l->st, "nothing came");
			return;
		}
}

/* Three octets: one is snatched, one is the sleeper's, one is left. */
static bool race(struct life *l)
{
	pthread_t thread;
	pid_t child = -1;
	void *ok = NULL;
	char octet;

	if (l->kind < CHILD) {
		pthread_create(&thread, NULL, sleeper, l);
	} else {
		child = fork();
		if (child == 0)
			_exit(sleeper(l) == NULL);
	}
	stage_nap(2000);
	life_ask(l, LIFE_SENDS, 3);
	snatch(l);
	life_answer(l);
	if (child < 0) {
		pthread_join(thread, &ok);
	} else {
		int status = 1;

		waitpid(child, &status, 0);
		ok = status ? NULL : l;
	}
	recv(l->st.fd, &octet, 1, 0);
	if (!ok)
		recv(l->st.fd, &octet, 1, 0);
	l->st.in.at += 3;
	return ok;
}

static void look_again(struct life *l)
{
	int set = make_set(l);
	struct epoll_event ev;
	uint8_t octet[3];

	stage_say(&l->st, "nothing: %d", epoll_wait(set, &ev, 1, 5));
	life_ask(l, LIFE_SENDS, 3);
	life_answer(l);
	stage_settle(&l->st, 3);
	stage_say(&l->st, "past the set: %zd", recv(l->st.fd, octet, 1, 0));
	stage_say(&l->st, "two left: %d", epoll_wait(set, &ev, 1, LATE_MS));
	stage_say(&l->st, "read: %zd", recv(l->st.fd, octet, 2, 0));
	stage_say(&l->st, "none left: %d", epoll_wait(set, &ev, 1, 5));
	l->st.in.at += 3;
	close(set);
}

static void play(struct life *l)
{
	struct timeval limit = { LATE_MS / 1000, 0 };

	if (l->asleep || l->pending)
		return;
	for (int i = 0; i < CONNECTIONS && stage_bads() == 0; i++) {
		life_begin(l);
		setsockopt(l->st.fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
		if (l->kind == NOBODY)
			look_again(l);
		for (int n = 0; l->kind != NOBODY && n < ROUNDS && race(l); n++)
			;
		life_go_on(l);
		close(l->st.fd);
		life_end(l);
		life_ask(l, LIFE_CLOSES, 0);
		life_answer(l);
	}
}

int main(void)
{
	return life_main(play, KINDS, NULL);
}
