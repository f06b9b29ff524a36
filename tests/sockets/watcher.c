/* SPDX-License-Identifier: MIT */
/*
 * Threads that wait for one connection, each arrival of which concerns them all, while it is read in
 * small parts. EDGES: one reads; the others have been told of what is left, as in gRPC's event loop.
 * TAKERS: each has a set of its own, and takes a part when its set says so; nobody may sleep while
 * something is left. All of them look for themselves, so the connection keeps its lane: the driver
 * counts those that stepped down.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "stage.h"

#define CONNECTIONS 6 /* by turns of each kind */
#define THREADS     3
#define WARM        200   /* turns */
#define MESSAGES    10000 /* on each connection */
#define MESSAGE     600   /* octets */
#define PART        100   /* ... read at a time */
#define PAUSE_EACH  50    /* messages: then those who wait fall asleep */
#define LATE_MS     60000

enum kind { EDGES, TAKERS, KINDS };

struct watched {
	struct stage *st;
	enum kind kind;
	int over; /* a pipe's end that can be read when all has come */
	int set;  /* of those who are only told */
	pthread_mutex_t lock;
	size_t left;
};

static int make_set(const struct watched *w)
{
	struct epoll_event ev = { .events = EPOLLIN | (w->kind == EDGES ? EPOLLET : 0),
				  .data.fd = 0 };
	struct epoll_event over = { .events = EPOLLIN, .data.fd = 1 };
	int set = epoll_create1(EPOLL_CLOEXEC);

	if (set < 0 || epoll_ctl(set, EPOLL_CTL_ADD, w->st->fd, &ev) ||
	    epoll_ctl(set, EPOLL_CTL_ADD, w->over, &over))
		stage_die(w->st, "a set: %s", stage_errno(errno));
	return set;
}

/* With the lock, if others read too. */
static void take(struct watched *w, int flags)
{
	uint8_t part[PART];
	ssize_t n = recv(w->st->fd, part, sizeof(part), flags);

	if (n > 0) {
		stage_took(w->st, part, (size_t)n);
		w->left -= (size_t)n;
	} else if (n == 0 || errno != EAGAIN) {
		stage_bad(w->st, "recv: %zd %s", n, stage_errno(errno));
		w->left = 0;
	}
}

static void *watcher(void *arg)
{
	struct watched *w = arg;
	int set = w->kind == EDGES ? w->set : make_set(w);

	for (;;) {
		struct epoll_event ev;
		int n = epoll_wait(set, &ev, 1, LATE_MS);

		if (n != 1)
			stage_die(w->st, "epoll_wait: %d, %s", n, stage_errno(errno));
		if (ev.data.fd == 1)
			break;
		if (w->kind == EDGES)
			continue;
		pthread_mutex_lock(&w->lock);
		if (w->left > 0)
			take(w, MSG_DONTWAIT);
		pthread_mutex_unlock(&w->lock);
	}
	if (w->kind == TAKERS)
		close(set);
	return NULL;
}

static bool all_came(struct watched *w)
{
	bool all;

	pthread_mutex_lock(&w->lock);
	all = w->left == 0;
	pthread_mutex_unlock(&w->lock);
	return all;
}

static void watch_and_read(struct stage *st, enum kind kind)
{
	struct watched w = { .st = st,
			     .kind = kind,
			     .lock = PTHREAD_MUTEX_INITIALIZER,
			     .left = (size_t)MESSAGES * MESSAGE };
	pthread_t thread[THREADS];
	int over[2];

	if (pipe(over))
		stage_die(st, "pipe: %s", stage_errno(errno));
	w.over = over[0];
	w.set = make_set(&w);
	for (int i = 0; i < THREADS; i++)
		pthread_create(&thread[i], NULL, watcher, &w);
	while (kind == EDGES && w.left > 0)
		take(&w, 0);
	while (!all_came(&w))
		stage_nap(1000);
	if (write(over[1], "", 1) != 1)
		stage_bad(st, "write: %s", stage_errno(errno));
	for (int i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	close(w.set);
	close(over[0]);
	close(over[1]);
}

static void write_all(struct stage *st)
{
	for (int i = 0; i < MESSAGES; i++) {
		stage_send(st, MESSAGE);
		if (i % PAUSE_EACH == 0)
			stage_nap(200);
	}
}

int main(void)
{
	struct stage st = { 0 };
	int listener = stage_listen(AF_INET, CONNECTIONS);

	stage_split(&st);
	for (int i = 0; i < CONNECTIONS; i++) {
		stage_connect(&st, listener, 1 + (uint64_t)i);
		stage_warm(&st, WARM);
		if (st.side == 0)
			watch_and_read(&st, (enum kind)(i % KINDS));
		else
			write_all(&st);
		stage_meet(&st, 0);
		close(st.fd);
	}
	if (st.side == 0 && stage_join(&st) != 0)
		stage_bad(&st, "the other process ended badly");
	return stage_bads() > 0;
}
