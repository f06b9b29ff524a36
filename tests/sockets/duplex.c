/* SPDX-License-Identifier: MIT */
/*
 *   duplex [--seconds N] [HOW]
 *
 * One thread reads and another writes, on the same socket and from its first moment on, so that
 * whatever happens to a connection in its youth happens while both are in their calls. Both ends do
 * so, in two processes or in one, or the other end is a thread that returns all it reads. All octets
 * come, in order, and then the end.
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "stage.h"
#include "watch.h"

#define LIMIT_S 40
#define CONNS   70 /* in each row, one after the other */
#define LITTLE  20000
#define ENOUGH  150000 /* for a lane, in the one way or the other */
#define MUCH    1500000
#define CHUNK   40000

enum how { RECV, POLL, SELECT, SPIN, LEVEL, EDGE, ONESHOT, HOWS };
enum place { TWO_PROCESSES, ONE_PROCESS, ECHO, PLACES };

static const char *const names[HOWS] = { "recv",  "poll", "select", "spin",
					 "level", "edge", "oneshot" };
static const char *const places[PLACES] = { "two processes", "one process", "echo" };

struct end {
	int fd, side;
	struct flow out, in;
	uint64_t total; /* in each direction */
	pthread_t reader, writer;
	struct random r;
	int set;
};

struct row {
	enum how how;
	enum place place;
	bool nonblocking;
};

static struct row row;
static uint64_t round_number;

/* ---- reading ---- */

static void wait_readable(struct end *e)
{
	struct pollfd p = { e->fd, POLLIN, 0 };
	struct epoll_event ev;
	fd_set in;
	int n = 1;

	watch_begin(names[row.how], e->fd);
	if (row.how == POLL || row.how == SPIN) {
		do
			n = poll(&p, 1, row.how == POLL ? -1 : 0);
		while (n == 0 && row.how == SPIN);
	} else if (row.how == SELECT) {
		FD_ZERO(&in);
		FD_SET(e->fd, &in);
		n = select(e->fd + 1, &in, NULL, NULL, NULL);
	} else {
		n = epoll_wait(e->set, &ev, 1, -1);
	}
	watch_end();
	if (n != 1)
		watch_die("%s: %d %s", names[row.how], n, stage_errno(errno));
}

static void rearm(struct end *e, int op)
{
	struct epoll_event ev = { .events = EPOLLIN };

	ev.events |= row.how == EDGE ? (uint32_t)EPOLLET : row.how == ONESHOT ? EPOLLONESHOT : 0;
	if (epoll_ctl(e->set, op, e->fd, &ev))
		watch_die("epoll_ctl: %s", stage_errno(errno));
}

/* 1: octets came, 0: would block, -1: the end. */
static int take(struct end *e, bool told)
{
	static __thread uint8_t data[CHUNK];
	ssize_t n;

	watch_begin("recv", e->fd);
	n = recv(e->fd, data, sizeof(data), row.how == RECV ? 0 : MSG_DONTWAIT);
	watch_end();
	if (n < 0 && errno == EAGAIN && !told)
		return 0;
	if (n < 0)
		watch_die("recv at %llu: %s", (unsigned long long)e->in.at, stage_errno(errno));
	if (flow_match(&e->in, data, (size_t)n) < (size_t)n)
		watch_die("foreign octets after %llu", (unsigned long long)e->in.at);
	e->in.at += (size_t)n;
	return n ? 1 : -1;
}

static void *reader(void *arg)
{
	struct end *e = arg;
	int rc = 1;

	watch_sit("reader %d", e->side);
	/* A blocking socket is the program's choice here, and so is one that does not block. */
	if (row.how >= LEVEL)
		rearm(e, EPOLL_CTL_ADD);
	while (rc >= 0) {
		if (row.how != RECV || row.nonblocking)
			wait_readable(e);
		/* Only this thread reads: what was told is there. */
		rc = take(e, true);
		while (rc > 0 && row.how == EDGE)
			rc = take(e, false);
		if (rc >= 0 && row.how == ONESHOT)
			rearm(e, EPOLL_CTL_MOD);
	}
	if (e->in.at != e->total)
		watch_bad("the end after %llu of %llu octets", (unsigned long long)e->in.at,
			  (unsigned long long)e->total);
	watch_rise();
	return NULL;
}

/* ---- writing ---- */

static ssize_t put(struct end *e, uint8_t *data, size_t n)
{
	struct iovec iov[2] = { { data, n / 2 }, { data + n / 2, n - n / 2 } };

	switch (random_below(&e->r, 3)) {
	case 0: return writev(e->fd, iov, 2);
	case 1: return write(e->fd, data, n);
	default: return send(e->fd, data, n, MSG_NOSIGNAL);
	}
}

static void *writer(void *arg)
{
	struct end *e = arg;
	static __thread uint8_t data[CHUNK];
	struct pollfd p = { e->fd, POLLOUT, 0 };
	size_t n;
	ssize_t sent;

	watch_sit("writer %d", e->side);
	while (e->out.at < e->total) {
		n = 1 + random_below(&e->r, random_below(&e->r, 4) ? 300 : CHUNK - 1);
		if (n > e->total - e->out.at)
			n = (size_t)(e->total - e->out.at);
		flow_fill(&e->out, data, n);
		watch_begin("send", e->fd);
		sent = put(e, data, n);
		if (sent < 0 && errno == EAGAIN && row.nonblocking) {
			watch_begin("poll for room", e->fd);
			poll(&p, 1, -1);
			sent = 0;
		}
		watch_end();
		if (sent < 0)
			watch_die("send at %llu: %s", (unsigned long long)e->out.at,
				  stage_errno(errno));
		e->out.at += (size_t)sent;
		if (random_below(&e->r, 8) == 0)
			stage_nap(random_below(&e->r, 300));
	}
	if (shutdown(e->fd, SHUT_WR))
		watch_bad("shutdown: %s", stage_errno(errno));
	watch_rise();
	return NULL;
}

/* ---- connections ---- */

static void begin(struct end *e, int fd, int side, uint64_t key, uint64_t total)
{
	*e = (struct end) { .fd = fd, .side = side, .total = total, .set = -1 };
	e->out.key = key * 2 + (uint64_t)side;
	e->in.key = row.place == ECHO ? e->out.key : key * 2 + (uint64_t)!side;
	e->r.state = key * 4 + (uint64_t)side;
	if (fd < 0)
		watch_die("no connection: %s", stage_errno(errno));
	if (row.nonblocking)
		fcntl(fd, F_SETFL, O_NONBLOCK);
	/* Otherwise small messages wait for each other, and there are fewer turns. */
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int) { key % 2 }, sizeof(int));
	if (row.how >= LEVEL)
		e->set = epoll_create1(EPOLL_CLOEXEC);
	if (pthread_create(&e->reader, NULL, reader, e) ||
	    pthread_create(&e->writer, NULL, writer, e))
		watch_die("no thread");
}

static void end(struct end *e)
{
	pthread_join(e->writer, NULL);
	pthread_join(e->reader, NULL);
	if (e->set >= 0)
		close(e->set);
	close(e->fd);
}

/* Returns all it reads, and then the end. */
static void *echo(void *arg)
{
	struct end *e = arg;
	static __thread uint8_t data[CHUNK];
	ssize_t n, sent;

	watch_sit("echo");
	for (;;) {
		watch_begin("recv", e->fd);
		n = recv(e->fd, data, sizeof(data), 0);
		if (n <= 0)
			break;
		for (ssize_t at = 0; at < n; at += sent) {
			watch_begin("send", e->fd);
			sent = send(e->fd, data + at, (size_t)(n - at), MSG_NOSIGNAL);
			if (sent <= 0)
				watch_die("send of the echo: %s", stage_errno(errno));
		}
	}
	if (n)
		watch_bad("recv of the echo: %s", stage_errno(errno));
	shutdown(e->fd, SHUT_WR);
	watch_rise();
	return NULL;
}

static void begin_echo(struct end *e, int fd)
{
	*e = (struct end) { .fd = fd, .set = -1 };
	if (fd < 0)
		watch_die("no connection: %s", stage_errno(errno));
	echo(e);
	close(fd);
}

/* One connection. side 2: both ends are ours. */
static void play_one(int side, int listener, uint64_t key, uint64_t total)
{
	struct end e[2];
	int fd[2] = { -1, -1 };

	if (side != 0)
		fd[1] = stage_dial(listener);
	if (side != 1)
		fd[0] = accept(listener, NULL, NULL);
	if (row.place == ECHO && side == 0) {
		begin_echo(&e[0], fd[0]);
		return;
	}
	for (int k = 0; k < 2; k++)
		if (side == 2 || side == k)
			begin(&e[k], fd[k], k, key, total);
	for (int k = 0; k < 2; k++)
		if (side == 2 || side == k)
			end(&e[k]);
}

static void play_side(int side, int listener)
{
	static const uint32_t most[8] = { LITTLE, LITTLE, LITTLE, ENOUGH,
					  ENOUGH, ENOUGH, ENOUGH, MUCH };
	struct random plan = { round_number * HOWS + row.how };

	for (uint64_t i = 0; i < CONNS; i++) {
		watch_sit("main %d", side);
		watch_step((unsigned)i);
		play_one(side, listener, round_number * CONNS + i,
			 1 + random_below(&plan, most[random_below(&plan, 8)]));
	}
	watch_rise();
}

static void play(void)
{
	int listener = stage_listen(AF_INET, 4), n = row.place == ONE_PROCESS ? 1 : 2;
	int bads = watch_bads();
	pid_t pid[2];

	for (int i = 0; i < n; i++) {
		pid[i] = fork();
		if (pid[i] < 0) {
			perror("fork");
			exit(2);
		}
		if (pid[i] == 0) {
			watch_process("AB"[i]);
			play_side(row.place == ONE_PROCESS ? 2 : i, listener);
			exit(0);
		}
	}
	close(listener);
	watch_over(pid, "AB", n);
	if (watch_bads() > bads)
		watch_say("  that was: %s%s, %s", names[row.how],
			  row.nonblocking ? ", not blocking" : "", places[row.place]);
}

static void play_all(const char *only)
{
	for (int how = 0; how < HOWS; how++)
		for (int i = 0; i < 2 * PLACES; i++) {
			row = (struct row) { (enum how)how, (enum place)(i / 2), i % 2 };
			/* There would be nothing to wait in. */
			if ((only && strcmp(only, names[how]) != 0) || (how == RECV && i % 2))
				continue;
			play();
		}
}

int main(int argc, char **argv)
{
	uint64_t until = 0;
	int at = 1;

	if (argc > 2 && strcmp(argv[1], "--seconds") == 0) {
		until = stage_now() + strtoull(argv[2], NULL, 0) * 1000000;
		at = 3;
	}
	watch_open(LIMIT_S);
	do {
		play_all(argc > at ? argv[at] : NULL);
		round_number++;
	} while (stage_now() < until && !watch_bads());
	return watch_verdict("%s", argv[0]);
}
