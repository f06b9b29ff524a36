/* SPDX-License-Identifier: MIT */
/*
 * A server with one loop and many clients, like a thousand others; one of its clients will be hostile. It knows
 * nothing of the library. It notes how long the calls took that must not block.
 *
 *   server MODE PAGE    MODE: level, edge, shot, shot-edge (EPOLLONESHOT), poll, select: non-blocking sockets; small:
 *                       level, with small buffers; threads: one for each client, blocking. Prints its port.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/util.h"
#include "siege/siege.h"
#include "sockets/stage.h"

#define CLIENTS  512
#define PIECE    16384
#define SLEEP_MS 100
#define TURNS    16 /* pieces for one client before the others have their turn */
#define SMALL    8192

/* A client. */
struct guest {
	int fd; /* -1: none */
	struct request request;
	size_t have;   /* octets of the request */
	uint64_t left; /* octets of the answer that are still to be received or made */
	struct flow bulk;
	size_t held, sent; /* octets of piece[] */
	uint8_t piece[PIECE];
};

static enum { LEVEL, EDGE, SHOT, SHOT_EDGE, POLL, SELECT, THREADS } mode;
static bool small_buffers;
static struct page *page;
static int listener, set;
static struct guest guest[CLIENTS];

static void note(enum timed what, uint64_t since)
{
	uint64_t took = clock_now() - since;

	if (took > atomic_load_explicit(&page->slowest[what], memory_order_relaxed))
		atomic_store_explicit(&page->slowest[what], took, memory_order_relaxed);
}

#define TIMED_CALL(what, call)                     \
	({                                         \
		uint64_t since_ = clock_now();     \
		__typeof__(call) result_ = (call); \
		int saved_ = errno;                \
		note(what, since_);                \
		errno = saved_;                    \
		result_;                           \
	})

/* --- one client: 1: something was done, 0: it must wait, -1: it is done with */

static int take_request(struct guest *g)
{
	ssize_t n = TIMED_CALL(TIMED_RECEIVE, recv(g->fd, (char *)&g->request + g->have,
						   sizeof(g->request) - g->have, 0));

	if (n <= 0)
		return n < 0 && errno == EAGAIN ? 0 : -1;
	g->have += (size_t)n;
	if (g->have < sizeof(g->request))
		return 1;
	if ((g->request.what != REQUEST_ECHO && g->request.what != REQUEST_BULK) ||
	    g->request.size > REQUEST_MOST)
		return -1;
	g->left = g->request.size;
	g->bulk = (struct flow) { .key = BULK_KEY };
	return 1;
}

static int make_answer(struct guest *g)
{
	size_t most = min_u64(g->left, PIECE);
	ssize_t n;

	if (g->request.what == REQUEST_BULK) {
		flow_fill(&g->bulk, g->piece, most);
		g->bulk.at += most;
		n = (ssize_t)most;
	} else {
		n = TIMED_CALL(TIMED_RECEIVE, recv(g->fd, g->piece, most, 0));
		if (n <= 0)
			return n < 0 && errno == EAGAIN ? 0 : -1;
	}
	g->left -= (uint64_t)n;
	g->held = (size_t)n;
	g->sent = 0;
	return 1;
}

static int send_answer(struct guest *g)
{
	ssize_t n = TIMED_CALL(TIMED_SEND,
			       send(g->fd, g->piece + g->sent, g->held - g->sent, MSG_NOSIGNAL));

	if (n <= 0)
		return n < 0 && errno == EAGAIN ? 0 : -1;
	g->sent += (size_t)n;
	if (g->sent == g->held)
		g->held = g->sent = 0;
	return 1;
}

static int serve_once(struct guest *g)
{
	if (g->held > 0)
		return send_answer(g);
	if (g->have == sizeof(g->request) && g->left == 0)
		g->have = 0;
	return g->have < sizeof(g->request) ? take_request(g) : make_answer(g);
}

static bool wants_to_send(const struct guest *g)
{
	return g->held > 0 || (g->left > 0 && g->request.what == REQUEST_BULK);
}

/* --- coming and going */

static void wish(struct guest *g, int op)
{
	struct epoll_event event = { .events = wants_to_send(g) ? EPOLLOUT : EPOLLIN,
				     .data.ptr = g };

	if (mode == EDGE)
		event.events = EPOLLIN | EPOLLOUT | EPOLLET;
	if (mode == SHOT || mode == SHOT_EDGE)
		event.events |= EPOLLONESHOT | (mode == SHOT_EDGE ? EPOLLET : 0);
	TIMED_CALL(TIMED_CONTROL, epoll_ctl(set, op, g->fd, &event));
}

static void prepare(int fd)
{
	int one = 1, size = SMALL;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	if (small_buffers)
		setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
}

static void come(void)
{
	for (;;) {
		int fd = TIMED_CALL(TIMED_ACCEPT, accept4(listener, NULL, NULL, SOCK_NONBLOCK));
		struct guest *g = guest;

		if (fd < 0)
			return;
		while (g < guest + CLIENTS && g->fd >= 0)
			g++;
		if (g == guest + CLIENTS) {
			close(fd);
			continue;
		}
		prepare(fd);
		g->have = g->held = g->sent = 0;
		g->left = 0;
		g->fd = fd;
		if (mode <= SHOT_EDGE)
			wish(g, EPOLL_CTL_ADD);
	}
}

static void go(struct guest *g)
{
	TIMED_CALL(TIMED_CLOSE, close(g->fd));
	g->fd = -1;
}

static void serve(struct guest *g)
{
	bool sends = wants_to_send(g);
	int n = 1;

	for (int i = 0; i < TURNS && n > 0; i++)
		n = serve_once(g);
	if (n < 0)
		go(g);
	/* An edge that was not used up must be asked for again. */
	else if ((mode == EDGE && n > 0) || (mode == LEVEL && sends != wants_to_send(g)) ||
		 mode == SHOT || mode == SHOT_EDGE)
		wish(g, EPOLL_CTL_MOD);
}

/* --- loops */

/* What a sleep took beyond what it was asked to. */
static void slept(uint64_t since)
{
	since += SLEEP_MS * NSEC_PER_MSEC;
	if (clock_now() > since)
		note(TIMED_SLEEP, since);
	atomic_fetch_add_explicit(&page->rounds, 1, memory_order_relaxed);
}

static void loop_epoll(void)
{
	struct epoll_event event[32] = { { .events = EPOLLIN } };

	set = epoll_create1(EPOLL_CLOEXEC);
	epoll_ctl(set, EPOLL_CTL_ADD, listener, event);
	for (;;) {
		uint64_t since = clock_now();
		int n = epoll_wait(set, event, ARRAY_SIZE(event), SLEEP_MS);

		slept(since);
		for (int i = 0; i < n; i++) {
			struct guest *g = event[i].data.ptr;

			if (!g)
				come();
			else if (g->fd >= 0)
				serve(g);
		}
	}
}

static void loop_poll(void)
{
	static struct pollfd p[CLIENTS + 1];
	static struct guest *who[CLIENTS + 1];

	for (;;) {
		uint64_t since = clock_now();
		nfds_t n = 1;

		p[0] = (struct pollfd) { .fd = listener, .events = POLLIN };
		for (struct guest *g = guest; g < guest + CLIENTS; g++) {
			if (g->fd < 0)
				continue;
			who[n] = g;
			p[n++] = (struct pollfd) { .fd = g->fd,
						   .events = wants_to_send(g) ? POLLOUT : POLLIN };
		}
		poll(p, n, SLEEP_MS);
		slept(since);
		for (nfds_t i = 1; i < n; i++)
			if (p[i].revents)
				serve(who[i]);
		if (p[0].revents)
			come();
	}
}

static void loop_select(void)
{
	for (;;) {
		uint64_t since = clock_now();
		struct timeval limit = { .tv_usec = SLEEP_MS * 1000 };
		fd_set in, out;
		int most = listener;

		FD_ZERO(&in);
		FD_ZERO(&out);
		FD_SET(listener, &in);
		for (struct guest *g = guest; g < guest + CLIENTS; g++) {
			if (g->fd < 0 || g->fd >= FD_SETSIZE)
				continue;
			FD_SET(g->fd, wants_to_send(g) ? &out : &in);
			most = g->fd > most ? g->fd : most;
		}
		if (select(most + 1, &in, &out, NULL, &limit) <= 0) {
			slept(since);
			continue;
		}
		slept(since);
		for (struct guest *g = guest; g < guest + CLIENTS; g++)
			if (g->fd >= 0 && g->fd < FD_SETSIZE &&
			    (FD_ISSET(g->fd, &in) || FD_ISSET(g->fd, &out)))
				serve(g);
		if (FD_ISSET(listener, &in))
			come();
	}
}

static void *serve_alone(void *arg)
{
	struct guest *g = arg;

	while (serve_once(g) > 0)
		;
	close(g->fd);
	free(g);
	return NULL;
}

/* Blocking calls wait for their client, but for no other. */
static void loop_threads(void)
{
	for (;;) {
		struct guest *g = calloc(1, sizeof(*g));
		pthread_t thread;

		if (!g)
			abort();
		g->fd = accept(listener, NULL, NULL);
		prepare(g->fd);
		if (g->fd < 0 || pthread_create(&thread, NULL, serve_alone, g) != 0)
			abort();
		pthread_detach(thread);
	}
}

static bool choose(const char *name)
{
	static const char *const names[] = { "level", "edge",   "shot",   "shot-edge",
					     "poll",  "select", "threads" };

	small_buffers = strcmp(name, "small") == 0;
	if (small_buffers)
		return true;
	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		if (strcmp(name, names[i]) == 0) {
			mode = i;
			return true;
		}
	}
	return false;
}

int main(int argc, char **argv)
{
	struct sockaddr_in at;
	socklen_t size = sizeof(at);
	int fd = argc == 3 ? open(argv[2], O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;

	if (fd < 0 || !choose(argv[1]) || ftruncate(fd, sizeof(*page)) != 0)
		return 2;
	page = mmap(NULL, sizeof(*page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (page == MAP_FAILED)
		return 2;
	close(fd);
	signal(SIGPIPE, SIG_IGN);
	for (int i = 0; i < CLIENTS; i++)
		guest[i].fd = -1;
	listener = stage_listen(AF_INET, 256);
	if (getsockname(listener, (struct sockaddr *)&at, &size) != 0)
		return 2;
	printf("%d\n", ntohs(at.sin_port));
	fflush(stdout);
	if (mode != THREADS)
		fcntl(listener, F_SETFL, O_NONBLOCK);
	switch (mode) {
	case LEVEL:
	case EDGE:
	case SHOT:
	case SHOT_EDGE: loop_epoll(); break;
	case POLL: loop_poll(); break;
	case SELECT: loop_select(); break;
	case THREADS: loop_threads(); break;
	}
	return 0;
}
