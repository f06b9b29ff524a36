/* SPDX-License-Identifier: MIT */
/*
 * A server whose threads wait in one epoll set, as many servers do: level-triggered, edge-triggered, one-shot, and
 * with EPOLLEXCLUSIVE for the listener. Clients come, ask for echoes and go.
 */
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/util.h"
#include "hooked/scenes.h"

#define WORKERS_MOST 8
#define CLIENTS      3
#define LINES        4 /* connections of a client */
#define NUMBERS      1024
#define PIECE        8192
#define ROUND_US     (20 * 1000000ull) /* no answer for so long is no answer */

/* A connection of the server, under its number. */
struct seat {
	pthread_mutex_t lock;
	bool open;
	size_t held; /* octets of buffer[] that are to be sent back */
	uint8_t buffer[PIECE];
};

struct pool {
	int set, listener;
	uint32_t kind;            /* of the connections' events */
	_Atomic bool leave, stop; /* the clients; then the workers */
};

static struct seat seat[NUMBERS];

/* What a worker waits for next. Edges of both kinds are told of as they come. */
static struct epoll_event wish(const struct pool *p, const struct seat *s, int fd)
{
	uint32_t events = s->held > 0 ? EPOLLOUT : EPOLLIN;

	if (p->kind == EPOLLET)
		events = EPOLLIN | EPOLLOUT;
	return (struct epoll_event) { .events = events | p->kind, .data.fd = fd };
}

static void leave_seat(struct pool *p, struct seat *s, int fd)
{
	s->open = false;
	if (p->kind != EPOLLET)
		epoll_ctl(p->set, EPOLL_CTL_DEL, fd, NULL);
	close(fd);
}

static void take_seat(struct pool *p)
{
	int fd = accept4(p->listener, NULL, NULL, SOCK_NONBLOCK);
	struct epoll_event event;

	if (fd < 0)
		return;
	if (fd >= NUMBERS) {
		close(fd);
		return;
	}
	pthread_mutex_lock(&seat[fd].lock);
	seat[fd].open = true;
	seat[fd].held = 0;
	event = wish(p, &seat[fd], fd);
	if (epoll_ctl(p->set, EPOLL_CTL_ADD, fd, &event) != 0)
		crowd_bad("EPOLL_CTL_ADD: %s", stage_errno(errno));
	pthread_mutex_unlock(&seat[fd].lock);
}

/* Echoes until a call would block. False: the connection has ended. */
static bool echo(struct random *r, struct seat *s, int fd)
{
	for (;;) {
		ssize_t n;

		while (s->held > 0) {
			n = crowd_put(r, fd, s->buffer, s->held, MSG_DONTWAIT);
			if (n < 0)
				return errno == EAGAIN;
			memmove(s->buffer, s->buffer + n, s->held - (size_t)n);
			s->held -= (size_t)n;
		}
		n = crowd_take(r, fd, s->buffer, sizeof(s->buffer), MSG_DONTWAIT);
		if (n <= 0)
			return n < 0 && errno == EAGAIN;
		s->held = (size_t)n;
	}
}

static void serve(struct pool *p, struct random *r, int fd)
{
	struct seat *s = &seat[fd];
	struct epoll_event event;

	pthread_mutex_lock(&s->lock);
	/* Another thread may have had the same event, and even closed. */
	if (s->open) {
		if (!echo(r, s, fd)) {
			leave_seat(p, s, fd);
		} else if (p->kind != EPOLLET) {
			event = wish(p, s, fd);
			if (epoll_ctl(p->set, EPOLL_CTL_MOD, fd, &event) != 0)
				crowd_bad("EPOLL_CTL_MOD: %s", stage_errno(errno));
		}
	}
	pthread_mutex_unlock(&s->lock);
}

static void *work(void *arg)
{
	struct pool *p = arg;
	struct random r = crowd_random();
	struct epoll_event event[4];

	while (!atomic_load(&p->stop)) {
		int n = epoll_wait(p->set, event, 1 + (int)random_below(&r, 4), 50);

		for (int i = 0; i < n; i++) {
			if (event[i].data.fd == p->listener)
				take_seat(p);
			else
				serve(p, &r, event[i].data.fd);
		}
		if (n < 0 && errno != EINTR)
			crowd_bad("epoll_wait: %s", stage_errno(errno));
	}
	return NULL;
}

/* One question and its answer. */
static bool round_trip(struct random *r, int fd, struct flow *f, uint8_t *out, uint8_t *in)
{
	size_t size = random_size(r, 1, PIECE * 4);
	size_t sent = 0, got = 0;
	uint64_t limit = stage_now() + ROUND_US;
	ssize_t n;

	flow_fill(f, out, size);
	while (got < size) {
		if (sent < size) {
			n = crowd_put(r, fd, out + sent, size - sent, MSG_DONTWAIT);
			sent += n > 0 ? (size_t)n : 0;
		}
		n = crowd_take(r, fd, in + got, size - got, MSG_DONTWAIT);
		if (n == 0 || (n < 0 && errno != EAGAIN)) {
			crowd_bad("no answer: %s", n ? stage_errno(errno) : "end");
			return false;
		}
		got += n > 0 ? (size_t)n : 0;
		if (n < 0)
			crowd_wait(r, fd, sent < size ? POLLIN | POLLOUT : POLLIN);
		if (stage_now() > limit) {
			crowd_bad("no answer: %zu octets sent, %zu back", sent, got);
			return false;
		}
	}
	if (flow_match(f, in, size) != size)
		crowd_bad("the answer is not the question, at %zu of %zu", flow_match(f, in, size),
			  size);
	f->at += size;
	return true;
}

static void *ask(void *arg)
{
	struct pool *p = arg;
	struct random r = crowd_random();
	uint8_t *out = malloc(PIECE * 4), *in = malloc(PIECE * 4);
	struct flow flow[LINES] = { 0 };
	int fd[LINES];
	uint64_t rounds = 0;

	for (int i = 0; i < LINES; i++)
		fd[i] = -1;
	while (!atomic_load(&p->leave) && !crowd_over()) {
		int i = (int)random_below(&r, LINES);

		if (fd[i] < 0) {
			fd[i] = stage_dial(p->listener);
			flow[i] = (struct flow) { .key = random_next(&r) };
		}
		if (fd[i] < 0)
			crowd_bad("no connection: %s", stage_errno(errno));
		else if (!round_trip(&r, fd[i], &flow[i], out, in))
			break;
		rounds++;
		if (random_below(&r, 30) == 0) {
			close(fd[i]);
			fd[i] = -1;
		}
	}
	for (int i = 0; i < LINES; i++)
		if (fd[i] >= 0)
			close(fd[i]);
	crowd_did("rounds", rounds);
	free(out);
	free(in);
	return NULL;
}

static void play(int workers, uint32_t kind, bool exclusive, unsigned us)
{
	struct pool p = { .listener = stage_listen(AF_INET, 64), .kind = kind };
	struct epoll_event event = { .events = EPOLLIN | (exclusive ? EPOLLEXCLUSIVE : 0),
				     .data.fd = p.listener };
	pthread_t worker[WORKERS_MOST], client[CLIENTS];

	crowd_set_nonblocking(p.listener);
	p.set = epoll_create1(EPOLL_CLOEXEC);
	epoll_ctl(p.set, EPOLL_CTL_ADD, p.listener, &event);
	for (int i = 0; i < workers; i++)
		worker[i] = crowd_start(work, &p);
	for (int i = 0; i < CLIENTS; i++)
		client[i] = crowd_start(ask, &p);
	stage_nap(us);
	atomic_store(&p.leave, true);
	for (int i = 0; i < CLIENTS; i++)
		crowd_join(client[i]);
	atomic_store(&p.stop, true);
	for (int i = 0; i < workers; i++)
		crowd_join(worker[i]);
	for (int fd = 0; fd < NUMBERS; fd++)
		if (seat[fd].open)
			leave_seat(&p, &seat[fd], fd);
	close(p.set);
	close(p.listener);
}

void scene_pool(void)
{
	static const uint32_t kinds[] = { 0, EPOLLET, EPOLLONESHOT, EPOLLET | EPOLLONESHOT };
	struct random r = crowd_random();

	for (int fd = 0; fd < NUMBERS; fd++)
		pthread_mutex_init(&seat[fd].lock, NULL);
	for (unsigned i = 0; !crowd_over(); i++)
		play(2 << random_below(&r, 3), kinds[i % ARRAY_SIZE(kinds)], random_below(&r, 2),
		     500000);
}
