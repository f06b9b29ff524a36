/* SPDX-License-Identifier: MIT */
/*
 * Threads that poll() and select() the same sockets: any of them may find the octets, and each octet is found once.
 * No thread sleeps for ever over octets that are there.
 */
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/util.h"
#include "hooked/scenes.h"

#define LINES     6
#define WATCHERS  3
#define TALKERS   2
#define NOTHING_S 20 /* octets are under way and nobody is told: for so long that it is for ever */

static struct line {
	int fd[2];
	uint64_t key;
	pthread_mutex_t out, in;
	uint64_t sent, got;
} line[LINES];
static _Atomic uint64_t sent, got, moved_at;
static _Atomic bool finished;

static void take(struct random *r, struct line *l)
{
	uint8_t buffer[4096];
	struct flow flow;
	ssize_t n;

	pthread_mutex_lock(&l->in);
	n = crowd_take(r, l->fd[1], buffer, random_size(r, 1, sizeof(buffer)), MSG_DONTWAIT);
	if (n > 0) {
		flow = (struct flow) { .key = l->key, .at = l->got };
		if (flow_match(&flow, buffer, (size_t)n) != (size_t)n)
			crowd_bad("a foreign octet near %llu", (unsigned long long)l->got);
		l->got += (size_t)n;
		atomic_fetch_add(&got, (uint64_t)n);
		atomic_store(&moved_at, stage_now());
	} else if (n == 0 || errno != EAGAIN) {
		crowd_bad("receive: %s", n ? stage_errno(errno) : "end");
	}
	pthread_mutex_unlock(&l->in);
}

static void by_poll(struct random *r, int timeout)
{
	const struct timespec limit = { .tv_nsec = timeout * 1000000l };
	struct pollfd p[LINES];
	int n;

	for (int i = 0; i < LINES; i++)
		p[i] = (struct pollfd) { .fd = line[i].fd[1], .events = POLLIN };
	n = random_below(r, 2) ? poll(p, LINES, timeout) : ppoll(p, LINES, &limit, NULL);
	for (int i = 0; i < LINES && n > 0; i++)
		if (p[i].revents)
			take(r, &line[i]);
}

static void by_select(struct random *r, int timeout)
{
	const struct timespec limit = { .tv_nsec = timeout * 1000000l };
	struct timeval left = { .tv_usec = timeout * 1000l };
	int highest = 0, n;
	fd_set set;

	FD_ZERO(&set);
	for (int i = 0; i < LINES; i++) {
		FD_SET(line[i].fd[1], &set);
		highest = line[i].fd[1] > highest ? line[i].fd[1] : highest;
	}
	n = random_below(r, 2) ? select(highest + 1, &set, NULL, NULL, &left)
			       : pselect(highest + 1, &set, NULL, NULL, &limit, NULL);
	for (int i = 0; i < LINES && n > 0; i++)
		if (FD_ISSET(line[i].fd[1], &set))
			take(r, &line[i]);
}

static void *watch(void *arg)
{
	struct random r = crowd_random();

	(void)arg;
	while (!atomic_load(&finished)) {
		int timeout = (int)random_below(&r, 100);

		if (random_below(&r, 2))
			by_poll(&r, timeout);
		else
			by_select(&r, timeout);
	}
	return NULL;
}

static void *talk(void *arg)
{
	struct random r = crowd_random();
	uint8_t buffer[32768];

	(void)arg;
	while (!crowd_over()) {
		struct line *l = &line[random_below(&r, LINES)];
		struct flow flow;
		ssize_t n;

		pthread_mutex_lock(&l->out);
		flow = (struct flow) { .key = l->key, .at = l->sent };
		n = random_size(&r, 1, sizeof(buffer));
		flow_fill(&flow, buffer, (size_t)n);
		n = crowd_put(&r, l->fd[0], buffer, (size_t)n, MSG_DONTWAIT);
		if (n > 0) {
			l->sent += (size_t)n;
			atomic_fetch_add(&sent, (uint64_t)n);
		} else if (errno != EAGAIN) {
			crowd_bad("send: %s", stage_errno(errno));
		}
		pthread_mutex_unlock(&l->out);
		if (n < 0)
			crowd_wait(&r, l->fd[0], POLLOUT);
		else if (random_below(&r, 8) == 0)
			crowd_nap(&r, 2000);
	}
	return NULL;
}

void scene_ready(void)
{
	struct random r = crowd_random();
	int listener = stage_listen(AF_INET, 16);
	pthread_t watcher[WATCHERS], talker[TALKERS];

	for (int i = 0; i < LINES; i++) {
		crowd_pair(listener, line[i].fd);
		line[i].key = random_next(&r);
		pthread_mutex_init(&line[i].out, NULL);
		pthread_mutex_init(&line[i].in, NULL);
	}
	for (int i = 0; i < WATCHERS; i++)
		watcher[i] = crowd_start(watch, NULL);
	for (int i = 0; i < TALKERS; i++)
		talker[i] = crowd_start(talk, NULL);
	for (int i = 0; i < TALKERS; i++)
		crowd_join(talker[i]);
	atomic_store(&moved_at, stage_now());
	while (atomic_load(&got) < atomic_load(&sent) &&
	       atomic_load(&moved_at) + NOTHING_S * 1000000ull > stage_now())
		stage_nap(1000);
	atomic_store(&finished, true);
	for (int i = 0; i < WATCHERS; i++)
		crowd_join(watcher[i]);
	if (atomic_load(&got) != atomic_load(&sent))
		crowd_bad("%llu octets sent, %llu found", (unsigned long long)atomic_load(&sent),
			  (unsigned long long)atomic_load(&got));
	crowd_did("octets", atomic_load(&got));
	for (int i = 0; i < LINES; i++) {
		close(line[i].fd[0]);
		close(line[i].fd[1]);
	}
	close(listener);
}
