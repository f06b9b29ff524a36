/* SPDX-License-Identifier: MIT */
#include "sockets_walk.h"

#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define MESSAGE 64
#define MANY    50
#define WARM    5  /* turns that are looked at and not counted */
#define TRIPS   20 /* on each connection before: enough for a lane to come up */
#define BACKLOG 4096

/* What a walk says to its peer. */
struct order {
	enum { ECHO, SEND, TAKE } what;
	int connection, count;
};

struct place {
	int fds[MANY], count;
	int to, from; /* orders, and their confirmations */
	pid_t other;
	int set; /* epoll's */
	struct sockaddr_in peer;
	uint8_t message[MESSAGE];
};

static _Noreturn void fail(const char *what)
{
	fprintf(stderr, "sockets_steps: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void move(int fd, bool out, uint8_t *message)
{
	for (size_t at = 0; at < MESSAGE;) {
		ssize_t n = out ? send(fd, message + at, MESSAGE - at, MSG_NOSIGNAL)
				: recv(fd, message + at, MESSAGE - at, 0);

		if (n <= 0)
			fail(out ? "send" : "recv");
		at += (size_t)n;
	}
}

/* ---- the peer ---- */

static void obey(const struct order *order, int fd, uint8_t *message)
{
	for (int i = 0; i < order->count; i++) {
		if (order->what != SEND)
			move(fd, false, message);
		if (order->what != TAKE)
			move(fd, true, message);
	}
}

_Noreturn void walk_peer(void)
{
	struct sockaddr_in at = { .sin_family = AF_INET,
				  .sin_addr = { .s_addr = htonl(INADDR_LOOPBACK) } };
	socklen_t length = sizeof(at);
	int listener = socket(AF_INET, SOCK_STREAM, 0), fds[MANY], count = 0, on = 1;
	uint8_t message[MESSAGE] = { 0 };
	struct order order;

	alarm(WALK_HANG);
	if (listener < 0 || bind(listener, (struct sockaddr *)&at, length) ||
	    listen(listener, BACKLOG) || getsockname(listener, (struct sockaddr *)&at, &length) ||
	    write(STDOUT_FILENO, &at, sizeof(at)) != sizeof(at))
		fail("listen");
	while (read(STDIN_FILENO, &order, sizeof(order)) == sizeof(order)) {
		if (order.connection == count && count < MANY) {
			fds[count] = accept(listener, NULL, NULL);
			if (fds[count] < 0 ||
			    setsockopt(fds[count], IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)))
				fail("accept");
			count++;
		}
		obey(&order, fds[order.connection], message);
		if (write(STDOUT_FILENO, "", 1) != 1)
			fail("confirmation");
	}
	exit(0);
}

/* ---- between the two ---- */

static void start_peer(struct place *place, const char *program, bool plain)
{
	int to[2], from[2];
	pid_t pid;

	if (pipe(to) || pipe(from))
		fail("pipe");
	pid = fork();
	if (pid < 0)
		fail("fork");
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (plain)
			unsetenv("LD_PRELOAD");
		if (dup2(to[0], STDIN_FILENO) < 0 || dup2(from[1], STDOUT_FILENO) < 0)
			fail("dup2");
		close(to[1]);
		close(from[0]);
		execl(program, program, "--peer", (char *)NULL);
		fail(program);
	}
	close(to[0]);
	close(from[1]);
	place->to = to[1];
	place->from = from[0];
	place->other = pid;
	if (read(place->from, &place->peer, sizeof(place->peer)) != sizeof(place->peer))
		fail("the peer");
}

static void command(struct place *place, int what, int connection, int count)
{
	struct order order = { what, connection, count };
	char done;

	if (write(place->to, &order, sizeof(order)) != sizeof(order) ||
	    read(place->from, &done, 1) != 1)
		fail("the peer");
}

static int dial(const struct place *place)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	if (fd < 0 || connect(fd, (const struct sockaddr *)&place->peer, sizeof(place->peer)))
		fail("connect");
	return fd;
}

/* A connection, with some talk on it. Nobody has to wait for the other, so nobody goes to sleep. */
static void meet(struct place *place)
{
	int fd = dial(place), number = place->count++, on = 1;
	struct epoll_event event = { .events = EPOLLIN, .data.fd = fd };

	if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) ||
	    epoll_ctl(place->set, EPOLL_CTL_ADD, fd, &event))
		fail("a connection");
	place->fds[number] = fd;
	for (int i = 0; i < TRIPS; i++) {
		move(fd, true, place->message);
		command(place, ECHO, number, 1);
		move(fd, false, place->message);
	}
}

/* ---- the walks ---- */

static inline void mark(int what, uintptr_t with)
{
#if defined(__x86_64__)
	__asm__ volatile("int3" : : "a"(what), "D"(with) : "memory");
#else
	(void)what, (void)with;
#endif
}

static void walk_send(struct place *place)
{
	send(place->fds[0], place->message, MESSAGE, MSG_NOSIGNAL);
}

static void walk_recv(struct place *place)
{
	recv(place->fds[0], place->message, MESSAGE, 0);
}

static struct epoll_event events[MANY];
static int ready;

static void walk_epoll(struct place *place)
{
	ready = epoll_wait(place->set, events, MANY, -1);
}

static void walk_poll(struct place *place)
{
	struct pollfd one = { .fd = place->fds[0], .events = POLLIN };

	ready = poll(&one, 1, -1);
	events[0].data.fd = one.fd;
}

/* One message of each that was told: the next wait finds the next one. */
static void take_ready(struct place *place)
{
	if (ready < 1)
		fail("nothing is ready");
	for (int i = 0; i < ready; i++)
		move(events[i].data.fd, false, place->message);
}

static void walk_connect(struct place *place)
{
	close(dial(place));
}

struct walk {
	const char *name;
	void (*turn)(struct place *place);
	void (*after)(struct place *place); /* each turn, not counted */
	int lanes;                          /* connections */
	int busy;                           /* of those, how many get messages before */
	int turns;
	bool plain; /* the peer has no library */
};

static const struct walk walks[] = {
	{ "send", walk_send, NULL, 1, 0, 100, false },
	{ "recv", walk_recv, NULL, 1, 1, 100, false },
	{ "epoll-1", walk_epoll, take_ready, 1, 1, 100, false },
	{ "epoll-50-1", walk_epoll, take_ready, MANY, 1, 50, false },
	{ "epoll-50-50", walk_epoll, take_ready, MANY, MANY, 10, false },
	{ "poll-1", walk_poll, take_ready, 1, 1, 100, false },
	{ "plain-send", walk_send, NULL, 1, 0, 100, true },
	{ "plain-recv", walk_recv, NULL, 1, 1, 100, true },
	{ "connect", walk_connect, NULL, 0, 0, 100, true },
};

static const struct walk *find(const char *name)
{
	for (size_t i = 0; i < sizeof(walks) / sizeof(walks[0]); i++)
		if (!strcmp(walks[i].name, name))
			return &walks[i];
	return NULL;
}

const char *walk_names(void)
{
	static char names[sizeof(walks) / sizeof(walks[0]) * 16];

	names[0] = '\0';
	for (size_t i = 0; i < sizeof(walks) / sizeof(walks[0]); i++) {
		strcat(names, walks[i].name);
		strcat(names, " ");
	}
	return names;
}

int walk_turns(const char *name)
{
	const struct walk *w = find(name);

	return w ? w->turns : 0;
}

/* The kernel's function that tells the time without a system call. */
static uintptr_t find_clock(void)
{
	void *kernel = dlopen("linux-vdso.so.1", RTLD_LAZY | RTLD_NOLOAD);

	return kernel ? (uintptr_t)dlsym(kernel, "__vdso_clock_gettime") : 0;
}

_Noreturn void walk(const char *name, const char *program)
{
	const struct walk *w = find(name);
	struct place place = { .set = epoll_create1(0) };
	uintptr_t clock = find_clock();

	alarm(WALK_HANG);
	if (place.set < 0)
		fail("epoll_create1");
	start_peer(&place, program, w->plain);
	for (int i = 0; i < w->lanes; i++)
		meet(&place);
	for (int i = 0; i < w->busy; i++)
		command(&place, SEND, i, WARM + w->turns);
	mark(MARK_BEGIN, clock);
	for (int i = 0; i < WARM + w->turns; i++) {
		if (i >= WARM)
			mark(MARK_COUNT, 0);
		w->turn(&place);
		if (i >= WARM)
			mark(MARK_PAUSE, 0);
		if (w->after)
			w->after(&place);
	}
	mark(MARK_END, 0);
	if (!w->busy && w->lanes)
		command(&place, TAKE, 0, WARM + w->turns);
	close(place.to);
	waitpid(place.other, NULL, 0);
	exit(0);
}
