/* SPDX-License-Identifier: MIT */
/*
 * Epoll sets that some threads make, duplicate, change and close while others wait in them, with sockets that come
 * and go as well. Nobody knows what a wait tells then; nobody may fall, and traffic beside it must go on.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hooked/scenes.h"

/* Numbers above what the threads are given, so that each hits only what is meant. */
#define SETS_AT  600
#define SETS     4
#define LINES_AT 620
#define LINES    6 /* connections, two numbers each */
#define STEADY   2

static bool forks;

static int any_set(struct random *r)
{
	return SETS_AT + (int)random_below(r, SETS);
}

static int any_socket(struct random *r)
{
	return LINES_AT + (int)random_below(r, 2 * LINES);
}

static void put_at(int fd, int number)
{
	if (dup2(fd, number) != number)
		crowd_bad("dup2: %s", stage_errno(errno));
	close(fd);
}

static void *make_sets(void *arg)
{
	static const uint32_t kinds[] = { 0, EPOLLET, EPOLLONESHOT };
	struct random r = crowd_random();
	uint64_t n = 0;

	(void)arg;
	for (; !crowd_over(); n++) {
		int set = epoll_create1(EPOLL_CLOEXEC);

		for (int i = 0; i < 4; i++) {
			struct epoll_event event = { .events = EPOLLIN |
							       kinds[random_below(&r, 3)] };

			epoll_ctl(set, EPOLL_CTL_ADD, any_socket(&r), &event);
		}
		if (random_below(&r, 3) == 0)
			close(any_set(&r));
		put_at(set, any_set(&r));
		crowd_nap(&r, 300);
	}
	crowd_did("sets", n);
	return NULL;
}

static void *wait_in_sets(void *arg)
{
	struct random r = crowd_random();
	struct epoll_event event[4];
	uint64_t told = 0;
	uint8_t octets[512];

	(void)arg;
	while (!crowd_over()) {
		int set = any_set(&r);
		int copy = random_below(&r, 4) == 0 ? dup(set) : -1;
		int n = epoll_wait(copy >= 0 ? copy : set, event, 4, (int)random_below(&r, 4));

		told += n > 0 ? (uint64_t)n : 0;
		if (copy >= 0)
			close(copy);
		if (n > 0)
			crowd_take(&r, any_socket(&r), octets, sizeof(octets), MSG_DONTWAIT);
		if (n < 0)
			crowd_nap(&r, 100);
	}
	crowd_did("told", told);
	return NULL;
}

static void *change_sets(void *arg)
{
	static const int ops[] = { EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLL_CTL_DEL };
	struct random r = crowd_random();

	(void)arg;
	while (!crowd_over()) {
		struct epoll_event event = { .events = random_below(&r, 2) ? EPOLLIN
									   : EPOLLIN | EPOLLOUT };

		epoll_ctl(any_set(&r), ops[random_below(&r, 3)], any_socket(&r), &event);
		crowd_nap(&r, 100);
	}
	return NULL;
}

static void *renew_sockets(void *arg)
{
	struct random r = crowd_random();
	int listener = stage_listen(AF_INET, 16);
	uint64_t n = 0;

	(void)arg;
	for (; !crowd_over(); n++) {
		int line = LINES_AT + 2 * (int)random_below(&r, LINES);
		int fd[2];

		crowd_pair(listener, fd);
		crowd_warm(fd, 4);
		for (int i = 0; i < 2; i++) {
			if (random_below(&r, 2))
				close(line + i);
			put_at(fd[i], line + i);
		}
		crowd_nap(&r, 3000);
	}
	crowd_did("sockets", 2 * n);
	close(listener);
	return NULL;
}

static void *talk(void *arg)
{
	struct random r = crowd_random();
	uint8_t octets[1024] = { 0 };

	(void)arg;
	while (!crowd_over()) {
		crowd_put(&r, any_socket(&r), octets, 1 + random_below(&r, sizeof(octets)),
			  MSG_DONTWAIT);
		if (random_below(&r, 4) == 0)
			crowd_nap(&r, 50);
	}
	return NULL;
}

/* A child closes some of what it has inherited, and ends. */
static void *fork_often(void *arg)
{
	struct random r = crowd_random();
	uint64_t n = 0;

	(void)arg;
	for (; !crowd_over(); n++) {
		pid_t pid = fork();

		if (pid == 0) {
			for (int i = 0; i < 4; i++) {
				close(any_set(&r));
				close(any_socket(&r));
			}
			_exit(0);
		}
		if (pid > 0 && waitpid(pid, NULL, 0) != pid)
			crowd_bad("waitpid: %s", stage_errno(errno));
		crowd_nap(&r, 20000);
	}
	crowd_did("children", n);
	return NULL;
}

/* Connections that none of this is meant for. */
static void *steady(void *arg)
{
	struct random r = crowd_random();
	int listener = stage_listen(AF_INET, 4);
	int fd[2];

	(void)arg;
	while (!crowd_over()) {
		struct way way;
		pthread_t thread[2];

		crowd_pair(listener, fd);
		way = (struct way) {
			.from = fd[0], .to = fd[1], .key = random_next(&r), .total = 300 << 10
		};
		thread[0] = crowd_start(crowd_sender, &way);
		thread[1] = crowd_start(crowd_receiver, &way);
		crowd_join(thread[0]);
		crowd_join(thread[1]);
		close(fd[0]);
		close(fd[1]);
	}
	close(listener);
	return NULL;
}

static void play(void)
{
	static void *(*const roles[])(void *) = { make_sets,     wait_in_sets, wait_in_sets,
						  change_sets,   talk,         steady,
						  renew_sockets, fork_often };
	pthread_t thread[sizeof(roles) / sizeof(roles[0])];
	int n = 0;

	for (size_t i = 0; i < sizeof(roles) / sizeof(roles[0]); i++)
		if (roles[i] != fork_often || forks)
			thread[n++] = crowd_start(roles[i], NULL);
	while (n > 0)
		crowd_join(thread[--n]);
	for (int fd = SETS_AT; fd < LINES_AT + 2 * LINES; fd++)
		close(fd);
}

void scene_sets(void)
{
	play();
}

void scene_set_forks(void)
{
	forks = true;
	play();
}
