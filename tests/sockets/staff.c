/* SPDX-License-Identifier: MIT */
/*
 *   staff [--seconds N]
 *
 * A server as Apache's: one thread waits for all connections and takes each out of the set when it is told of it; workers
 * serve it, put it back, or close it. What describes a connection is used again for the next one, at the same address. Wanted:
 * nobody is told of a connection that is not in the set, and all questions are answered.
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "stage.h"

#define WORKERS   12
#define CLIENTS   10
#define ROOM      1024 /* in the queue */
#define EVENTS    84
#define QUESTIONS 40 /* on a connection, at most */
#define LARGE     700000
#define WAIT_MS   100

enum place { NOWHERE, IN_SET, QUEUED, SERVED };

struct conn {
	int fd;
	_Atomic int place; /* enum place */
	size_t left;       /* octets of the answer */
	struct conn *next;
};

struct question {
	uint32_t answer;
	uint32_t last; /* then the server closes */
};

static struct stage st = { .name = 'S' };
static int set, listener;
static atomic_bool over;
static struct conn *unused;
static struct conn *queue[ROOM];
static unsigned first, behind;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t filled = PTHREAD_COND_INITIALIZER;
static uint8_t octets[LARGE];

/* ---- connections ---- */

static struct conn *take_unused(void)
{
	struct conn *c;

	pthread_mutex_lock(&lock);
	c = unused;
	if (c)
		unused = c->next;
	pthread_mutex_unlock(&lock);
	return c ? c : calloc(1, sizeof(*c));
}

static void end_conn(struct conn *c)
{
	close(c->fd);
	atomic_store(&c->place, NOWHERE);
	pthread_mutex_lock(&lock);
	c->next = unused;
	unused = c;
	pthread_mutex_unlock(&lock);
}

static void push(struct conn *c)
{
	pthread_mutex_lock(&lock);
	queue[behind++ % ROOM] = c;
	pthread_cond_signal(&filled);
	pthread_mutex_unlock(&lock);
}

static struct conn *pop(void)
{
	struct conn *c = NULL;

	pthread_mutex_lock(&lock);
	while (first == behind && !atomic_load(&over))
		pthread_cond_wait(&filled, &lock);
	if (first != behind)
		c = queue[first++ % ROOM];
	pthread_mutex_unlock(&lock);
	return c;
}

static void put_back(struct conn *c, uint32_t events)
{
	struct epoll_event ev = { .events = events, .data.ptr = c };

	atomic_store(&c->place, IN_SET);
	if (epoll_ctl(set, EPOLL_CTL_ADD, c->fd, &ev) != 0)
		stage_bad(&st, "add: %s", stage_errno(errno));
}

/* ---- threads of the server ---- */

/* False: it is somebody else's now. */
static bool answer(struct conn *c)
{
	while (c->left > 0) {
		ssize_t n = send(c->fd, octets, c->left, MSG_NOSIGNAL);

		if (n > 0) {
			c->left -= (size_t)n;
			continue;
		}
		if (errno == EAGAIN)
			put_back(c, EPOLLOUT);
		else
			end_conn(c);
		return false;
	}
	return true;
}

static void serve(struct conn *c)
{
	struct question q;

	while (answer(c)) {
		ssize_t n = recv(c->fd, &q, sizeof(q), 0);

		if (n == sizeof(q) && q.last && q.answer == 0) {
			end_conn(c);
			return;
		}
		if (n == sizeof(q)) {
			c->left = q.answer;
			continue;
		}
		if (n < 0 && errno == EAGAIN)
			put_back(c, EPOLLIN);
		else
			end_conn(c);
		return;
	}
}

static void *work(void *arg)
{
	struct conn *c;

	while ((c = pop())) {
		if (atomic_exchange(&c->place, SERVED) != QUEUED)
			stage_bad(&st, "two workers have the same connection");
		serve(c);
	}
	return arg;
}

static void welcome(void)
{
	int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	struct conn *c;

	if (fd < 0)
		return;
	c = take_unused();
	c->fd = fd;
	c->left = 0;
	atomic_store(&c->place, QUEUED);
	push(c);
}

static void *wait_for_all(void *arg)
{
	struct epoll_event ev[EVENTS] = { { .events = EPOLLIN } };

	epoll_ctl(set, EPOLL_CTL_ADD, listener, ev);
	while (!atomic_load(&over)) {
		int n = epoll_wait(set, ev, EVENTS, WAIT_MS);

		for (int i = 0; i < n; i++) {
			struct conn *c = ev[i].data.ptr;
			int place = IN_SET;

			if (!c) {
				welcome();
			} else if (!atomic_compare_exchange_strong(&c->place, &place, QUEUED)) {
				stage_bad(&st, "told %#x of a connection that is %s", ev[i].events,
					  place == SERVED ? "served" : "not in the set");
			} else {
				epoll_ctl(set, EPOLL_CTL_DEL, c->fd, NULL);
				push(c);
			}
		}
	}
	return arg;
}

/* ---- clients ---- */

static bool ask(int fd, const struct question *q)
{
	size_t got = 0;

	if (send(fd, q, sizeof(*q), MSG_NOSIGNAL) != sizeof(*q))
		return false;
	while (got < q->answer) {
		ssize_t n = recv(fd, octets, q->answer - got, 0);

		if (n <= 0)
			return false;
		got += (size_t)n;
	}
	return true;
}

static void be_client(struct random dice, uint64_t until)
{
	static const uint32_t sizes[] = { 10, 100, 1000, 1000, 100000, LARGE };

	while (stage_now() < until) {
		int fd = stage_dial(listener);
		uint32_t n = 1 + random_below(&dice, QUESTIONS);
		struct question q = { 0 };

		for (uint32_t i = 0; i < n; i++) {
			q.answer = sizes[random_below(&dice, 6)];
			if (random_below(&dice, 8) == 0)
				stage_nap(random_below(&dice, 300));
			if (!ask(fd, &q))
				_exit(3);
		}
		q = (struct question) { .last = 1 };
		if (random_below(&dice, 2))
			ask(fd, &q); /* the server closes first, or we do */
		close(fd);
	}
	_exit(0);
}

int main(int argc, char **argv)
{
	int seconds = argc > 2 && strcmp(argv[1], "--seconds") == 0 ? atoi(argv[2]) : 8;
	uint64_t until = stage_now() + (uint64_t)seconds * 1000000;
	pthread_t thread[WORKERS + 1];
	pid_t client[CLIENTS];
	int status;

	listener = stage_listen(AF_INET, 128);
	for (int i = 0; i < CLIENTS; i++) {
		client[i] = fork();
		if (client[i] == 0)
			be_client((struct random) { 77 + (uint64_t)i }, until);
	}
	fcntl(listener, F_SETFL, O_NONBLOCK);
	set = epoll_create1(EPOLL_CLOEXEC);
	for (int i = 0; i < WORKERS; i++)
		pthread_create(&thread[i], NULL, work, NULL);
	pthread_create(&thread[WORKERS], NULL, wait_for_all, NULL);
	for (int i = 0; i < CLIENTS; i++)
		if (waitpid(client[i], &status, 0) != client[i] || status != 0)
			stage_bad(&st, "a client was not answered");
	atomic_store(&over, true);
	pthread_mutex_lock(&lock);
	pthread_cond_broadcast(&filled);
	pthread_mutex_unlock(&lock);
	for (int i = 0; i <= WORKERS; i++)
		pthread_join(thread[i], NULL);
	return stage_bads() > 0;
}
