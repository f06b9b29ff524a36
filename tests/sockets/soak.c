/* SPDX-License-Identifier: MIT */
/*
 *   soak [MINUTES]        mixed load between a server and clients; nothing may grow
 *
 * The server is an event loop that echoes; clients come and go: short talks, long ones, floods,
 * clients that leave octets unread, and processes that are killed. The watcher samples what /proc
 * says about server and clients; after the first quarter nothing may grow.
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "processes.h"
#include "stage.h"

#define CLIENTS  3
#define EVENTS   64
#define PIECE    16384
#define GROW_KIB 1024
/* Rings that come into use one after the other fill up to their size; that is not for ever. */
#define GROW_SHARED_KIB 8192
#define GROW_FDS        8
#define SAMPLES         40

/* ---- server ---- */

struct guest {
	size_t held, at;
	uint8_t data[PIECE];
};

static struct guest *guests[1024];
static volatile int *stop; /* shared by all: the clients leave first */

enum { RUN, CLIENTS_LEAVE, ALL_LEAVE };

static void forget(int fd)
{
	free(guests[fd]);
	guests[fd] = NULL;
	close(fd);
}

/* Echoes what there is; false when the guest is gone. */
static bool serve(int set, int fd)
{
	struct guest *g = guests[fd];
	struct epoll_event ev = { .data.fd = fd };
	ssize_t n;

	for (;;) {
		if (g->held == g->at) {
			n = recv(fd, g->data, PIECE, MSG_DONTWAIT);
			if (n == 0 || (n < 0 && errno != EAGAIN))
				return false;
			if (n < 0)
				break;
			g->held = (size_t)n;
			g->at = 0;
		}
		n = send(fd, g->data + g->at, g->held - g->at, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (n < 0 && errno != EAGAIN)
			return false;
		if (n < 0)
			break;
		g->at += (size_t)n;
	}
	ev.events = g->held > g->at ? EPOLLOUT : EPOLLIN;
	epoll_ctl(set, EPOLL_CTL_MOD, fd, &ev);
	return true;
}

static void run_server(int listener)
{
	int set = epoll_create1(EPOLL_CLOEXEC), fd;
	struct epoll_event ev = { .events = EPOLLIN, .data.fd = listener }, events[EVENTS];

	epoll_ctl(set, EPOLL_CTL_ADD, listener, &ev);
	while (*stop < ALL_LEAVE) {
		int n = epoll_wait(set, events, EVENTS, 200);

		for (int i = 0; i < n; i++) {
			fd = events[i].data.fd;
			if (fd != listener) {
				if (!serve(set, fd))
					forget(fd);
				continue;
			}
			fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
			if (fd < 0 || fd >= 1024)
				continue;
			guests[fd] = calloc(1, sizeof(struct guest));
			ev = (struct epoll_event) { .events = EPOLLIN, .data.fd = fd };
			epoll_ctl(set, EPOLL_CTL_ADD, fd, &ev);
		}
	}
}

/* ---- clients ---- */

static bool echo(struct stage *s, size_t n)
{
	s->in.at = s->out.at;
	stage_send(s, n);
	return stage_recv(s, n) == n;
}

static void talk(int listener, struct random *r)
{
	struct stage s = { .name = 'C', .fd = stage_dial(listener) };
	uint32_t kind = random_below(r, 10), turns = random_size(r, 1, 2000);

	if (s.fd < 0)
		stage_die(&s, "connect: %s", stage_errno(errno));
	s.out.key = s.in.key = random_next(r);
	while (turns-- && echo(&s, random_size(r, 1, kind < 8 ? 2000 : PIECE)))
		;
	if (kind == 0)
		stage_send(&s, 500);
	close(s.fd);
}

/* A child of a client talks and is killed. */
static void be_killed(int listener, struct random *r)
{
	pid_t child = fork();
	struct random own = { random_next(r) };

	if (child == 0) {
		for (;;)
			talk(listener, &own);
	}
	stage_nap(random_size(r, 0, 20000));
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
}

static void run_client(int listener, uint64_t seed)
{
	struct random r = { seed };

	while (*stop == RUN) {
		talk(listener, &r);
		if (random_below(&r, 20) == 0)
			be_killed(listener, &r);
	}
}

/* ---- watcher ---- */

static void watch(struct stage *s, const pid_t *pids, unsigned seconds)
{
	struct footprint most[CLIENTS + 1] = { { 0 } }, now;
	unsigned shm = 0;

	for (int i = 0; i < SAMPLES; i++) {
		stage_nap(seconds * (1000000 / SAMPLES));
		for (int p = 0; p <= CLIENTS; p++) {
			now = processes_footprint(pids[p]);
			if (i <= SAMPLES / 4) {
				if (now.private_kib > most[p].private_kib)
					most[p].private_kib = now.private_kib;
				if (now.shared_kib > most[p].shared_kib)
					most[p].shared_kib = now.shared_kib;
				if (now.descriptors > most[p].descriptors)
					most[p].descriptors = now.descriptors;
			} else if (now.private_kib > most[p].private_kib + GROW_KIB ||
				   now.shared_kib > most[p].shared_kib + GROW_SHARED_KIB ||
				   now.descriptors > most[p].descriptors + GROW_FDS ||
				   now.threads != 1) {
				stage_bad(
					s,
					"sample %d, process %d: %u KiB private, %u shared, %u descriptors",
					i, p, now.private_kib, now.shared_kib, now.descriptors);
				most[p] = now;
			}
			if (i % 10 == 9)
				stage_say(s, "%d: %u KiB private, %u KiB shared, %u descriptors", p,
					  now.private_kib, now.shared_kib, now.descriptors);
		}
		if (i == SAMPLES / 4)
			shm = processes_shm_kib("flue");
	}
	stage_say(s, "in /dev/shm %u then %u KiB", shm, processes_shm_kib("flue"));
	if (processes_shm_kib("flue") > shm + GROW_KIB)
		stage_bad(s, "files in /dev/shm have grown");
}

int main(int argc, char **argv)
{
	double minutes = argc > 1 ? atof(argv[1]) : 1;
	int listener = stage_listen(AF_INET, 64), status;
	struct stage s = { .name = 'A' };
	pid_t pids[CLIENTS + 1];

	stop = mmap(NULL, sizeof(*stop), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	for (int i = 0; i <= CLIENTS; i++) {
		pids[i] = fork();
		if (pids[i])
			continue;
		if (i == 0)
			run_server(listener);
		else
			run_client(listener, (uint64_t)i);
		exit(stage_bads() != 0);
	}
	watch(&s, pids, (unsigned)(minutes * 60));
	*stop = CLIENTS_LEAVE;
	for (int i = CLIENTS; i >= 0; i--) {
		if (i == 0)
			*stop = ALL_LEAVE;
		waitpid(pids[i], &status, 0);
		if (status)
			stage_bad(&s, "process %d ended with %x", i, (unsigned)status);
	}
	return stage_bads() != 0;
}
