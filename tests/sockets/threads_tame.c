/* SPDX-License-Identifier: MIT */
/*
 * T: the other ends. Some connections are served by a pool of threads in one epoll set, some have a
 * thread that reads and one that writes. One more thread sends a little on all of them again and
 * again, so that W never has to wait for long, and ends some of them.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <unistd.h>

#include "threads.h"

#define POOL      4
#define LONES     5
#define CHUNK     65536
#define BEAT_US   4000
#define OFFERS    3
#define IS_LISTEN MAX_CONNS
#define IS_FINISH (MAX_CONNS + 1)

enum state { NOT_YET, OPEN, READ_ALL, CLOSED };
enum pool_kind { ONESHOT, EDGE, LEVEL, POOL_KINDS };

struct tame {
	atomic_int state;
	int fd;
	uint32_t conn;
	bool lone, stopped; /* stopped: sends nothing more */
	bool broken; /* an error was told to a call that sends, and so not to one that reads */
	bool deaf;   /* we have shut down the direction ourselves */
	bool whole;
	pthread_mutex_t read, write;
	struct random own;    /* under write */
	struct random in;     /* under read */
	uint64_t sent, quits; /* quits: ends after so many octets */
	pthread_t reader, writer;
	struct parser parser;
};

static struct tame tames[MAX_CONNS];
static int set = -1, finish = -1, listener = -1;
static enum pool_kind kind;
static atomic_int open_count, lones, threads_left;
static atomic_bool finished;

/* ---- sending ---- */

static bool broken_pipe(int err)
{
	return err == EPIPE || err == ECONNRESET;
}

/* Under write. False: no more can be sent. */
static bool send_some(struct tame *t, size_t n, int flags)
{
	uint8_t data[8192];
	struct conn *c = &world->conn[t->conn];
	ssize_t sent;

	if (n > sizeof(data))
		n = sizeof(data);
	if (t->broken || t->stopped || t->sent + n > SENT_LIMIT)
		return false;
	cells_fill(t->conn, t->sent, data, n);
	/* Before W can read them. */
	atomic_store(&c->sent, t->sent + n);
	if (flags & MSG_DONTWAIT)
		watch_begin("send, not waiting", t->fd);
	else
		watch_idle("send", t->fd);
	sent = send(t->fd, data, n, flags | MSG_NOSIGNAL);
	watch_end();
	if (sent > (ssize_t)n || sent == 0)
		watch_bad("T's send on connection %u: %zd of %zu", t->conn, sent, n);
	if (sent >= 0) {
		t->sent += (size_t)sent;
		return true;
	}
	if (errno == EAGAIN && flags & MSG_DONTWAIT)
		return true;
	if (!broken_pipe(errno))
		watch_bad("T's send on connection %u: %s", t->conn, stage_errno(errno));
	t->broken = true;
	return false;
}

static void note_ending(struct tame *t)
{
	uint64_t not_yet = 0;

	atomic_compare_exchange_strong(&world->conn[t->conn].ending, &not_yet, stamp());
}

/* Under both locks. */
static void close_tame(struct tame *t)
{
	struct conn *c = &world->conn[t->conn];
	uint64_t not_yet = 0;

	note_ending(t);
	atomic_compare_exchange_strong(&c->ended, &not_yet, stamp());
	atomic_store(&c->whole, t->whole);
	atomic_store(&t->state, CLOSED);
	watch_begin("close", t->fd);
	if (close(t->fd))
		watch_bad("T's close: %s", stage_errno(errno));
	watch_end();
	atomic_fetch_sub(&open_count, 1);
}

/* W has accepted it and knows which it is, or never will. */
static bool named(const struct tame *t)
{
	return atomic_load(&world->conn[t->conn].met) || atomic_load(&world->done);
}

/* ---- receiving ---- */

static ssize_t read_once(struct tame *t, uint8_t *data, size_t n, int flags)
{
	struct iovec iov[2] = { { data, n / 2 }, { data + n / 2, n - n / 2 } };
	struct msghdr msg = { .msg_iov = iov, .msg_iovlen = 2 };
	ssize_t got;

	if (flags & MSG_DONTWAIT)
		watch_begin("recv, not waiting", t->fd);
	else
		watch_idle("recv", t->fd);
	switch (random_below(&t->in, flags ? 2 : 3)) {
	case 0: got = recv(t->fd, data, n, flags); break;
	case 1: got = recvmsg(t->fd, &msg, flags); break;
	default: got = read(t->fd, data, n);
	}
	watch_end();
	return got;
}

/* Under read. 1: something came, 0: would block, -1: the end. */
static int read_some(struct tame *t, int flags)
{
	static __thread uint8_t data[CHUNK];
	struct conn *c = &world->conn[t->conn];
	size_t n = random_size(&t->in, 1, random_below(&t->in, 4) ? CHUNK : 100);
	ssize_t got = read_once(t, data, n, flags);

	if (got > 0) {
		parser_feed(&t->parser, data, (size_t)got);
		return 1;
	}
	if (got < 0 && errno == EAGAIN && flags & MSG_DONTWAIT)
		return 0;
	if (got < 0 && !broken_pipe(errno))
		watch_bad("T's recv on connection %u: %s", t->conn, stage_errno(errno));
	t->whole = got == 0 && !t->broken;
	parser_end(&t->parser);
	atomic_store(&c->ended, stamp());
	return -1;
}

static void answer(struct tame *t)
{
	/* At first always, so that W can go on at once. */
	if (random_below(&t->in, 2) && t->parser.at > 400)
		return;
	pthread_mutex_lock(&t->write);
	if (atomic_load(&t->state) == OPEN)
		send_some(t, 1 + random_below(&t->own, 200), MSG_DONTWAIT);
	pthread_mutex_unlock(&t->write);
}

/* Under read: the end has come. Closed now, or by the thread that sends, when it finds out. */
static void read_all(struct tame *t)
{
	if (epoll_ctl(set, EPOLL_CTL_DEL, t->fd, NULL))
		watch_bad("T's EPOLL_CTL_DEL: %s", stage_errno(errno));
	pthread_mutex_lock(&t->write);
	atomic_store(&t->state, READ_ALL);
	if (random_below(&t->own, 2))
		close_tame(t);
	pthread_mutex_unlock(&t->write);
}

/* ---- the pool ---- */

static uint32_t interest(void)
{
	static const uint32_t how[POOL_KINDS] = { EPOLLONESHOT, EPOLLET, 0 };

	return EPOLLIN | how[kind];
}

static void serve(struct tame *t, uint32_t events)
{
	struct epoll_event ev = { .events = interest(), .data.u32 = t->conn };
	int rc = 1, rounds = kind == EDGE ? 1 << 20 : 1 + (int)(t->conn % 3);

	pthread_mutex_lock(&t->read);
	for (int i = 0; i < rounds && rc > 0 && atomic_load(&t->state) == OPEN; i++) {
		rc = read_some(t, MSG_DONTWAIT);
		/* Nobody else reads here, so this can only be wrong. */
		if (rc == 0 && i == 0 && kind == ONESHOT && events & EPOLLIN)
			watch_bad("connection %u was readable, but had nothing", t->conn);
		if (rc > 0)
			answer(t);
	}
	if (rc < 0)
		read_all(t);
	else if (kind == ONESHOT && atomic_load(&t->state) == OPEN &&
		 epoll_ctl(set, EPOLL_CTL_MOD, t->fd, &ev))
		watch_bad("T's EPOLL_CTL_MOD: %s", stage_errno(errno));
	pthread_mutex_unlock(&t->read);
}

/* ---- connections with two threads ---- */

static void wait_by(struct tame *t)
{
	struct pollfd p = { t->fd, POLLIN, 0 };
	unsigned long bits[1024] = { 0 };
	int rc;

	if (t->conn % 3 == 0)
		return;
	watch_idle(t->conn % 3 == 1 ? "poll" : "select", t->fd);
	if (t->conn % 3 == 1) {
		rc = poll(&p, 1, -1);
	} else {
		bits[t->fd / 64] |= 1ul << t->fd % 64;
		rc = select(t->fd + 1, (fd_set *)bits, NULL, NULL, NULL);
	}
	watch_end();
	if (rc != 1)
		watch_bad("T's wait for connection %u: %d %s", t->conn, rc, stage_errno(errno));
}

static void *read_alone(void *arg)
{
	struct tame *t = arg;

	watch_sit("reads %u", t->conn);
	do
		wait_by(t);
	while (read_some(t, t->conn % 3 ? MSG_DONTWAIT : 0) > 0);
	if (!atomic_load(&world->conn[t->conn].ended))
		watch_bad("connection %u was readable, but had nothing", t->conn);
	/* The other thread may be asleep in a call. */
	note_ending(t);
	shutdown(t->fd, SHUT_RDWR);
	pthread_join(t->writer, NULL);
	t->whole &= !t->broken && !t->deaf;
	close_tame(t);
	atomic_fetch_sub(&lones, 1);
	watch_rise();
	atomic_fetch_sub(&threads_left, 1);
	return NULL;
}

static void *write_alone(void *arg)
{
	struct tame *t = arg;
	bool going = true;

	watch_sit("writes %u", t->conn);
	while (!named(t))
		stage_nap(500);
	while (going && t->sent < t->quits) {
		going = send_some(t, random_size(&t->own, 1, 8000), 0);
		if (random_below(&t->own, 3) == 0)
			stage_nap(random_below(&t->own, 4000));
	}
	if (going) {
		note_ending(t);
		t->deaf = random_below(&t->own, 2);
		shutdown(t->fd, t->deaf ? SHUT_RDWR : SHUT_WR);
	}
	watch_rise();
	return NULL;
}

/* ---- connections come ---- */

static void begin(int fd, int conn)
{
	struct tame *t = &tames[conn];
	struct epoll_event ev = { .events = interest(), .data.u32 = (uint32_t)conn };

	t->fd = fd;
	t->conn = (uint32_t)conn;
	t->own.state = world->seed * 1000 + (uint64_t)conn;
	t->in.state = ~t->own.state;
	t->parser.conn = (uint32_t)conn;
	t->parser.current = -1;
	t->quits = random_below(&t->own, 3) ? SENT_LIMIT - (16 << 10)
					    : random_size(&t->own, 1, 300000);
	pthread_mutex_init(&t->read, NULL);
	pthread_mutex_init(&t->write, NULL);
	atomic_fetch_add(&open_count, 1);
	if (random_below(&t->own, 3) == 0 && atomic_fetch_add(&lones, 1) < LONES) {
		t->lone = true;
		atomic_store(&t->state, OPEN);
		atomic_fetch_add(&threads_left, 1);
		if (pthread_create(&t->writer, NULL, write_alone, t) ||
		    pthread_create(&t->reader, NULL, read_alone, t) || pthread_detach(t->reader))
			watch_die("no thread");
		return;
	}
	atomic_store(&t->state, OPEN);
	if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &ev))
		watch_bad("T's EPOLL_CTL_ADD: %s", stage_errno(errno));
}

static void take_one(void)
{
	struct sockaddr_in at;
	socklen_t len = sizeof(at);
	int fd = accept4(listener, (struct sockaddr *)&at, &len, SOCK_CLOEXEC), conn;

	if (fd < 0) {
		/* Another thread of the pool was faster. */
		if (errno != EAGAIN)
			watch_bad("T's accept: %s", stage_errno(errno));
		return;
	}
	watch_begin("the name of the connection", fd);
	while ((conn = log_meet(ntohs(at.sin_port), false)) < 0)
		stage_nap(20);
	watch_end();
	begin(fd, conn);
}

static void *pool_main(void *arg)
{
	struct epoll_event ev[POOL];
	int n, most = 1 + (int)(intptr_t)arg % POOL;

	watch_sit("pool %d", (int)(intptr_t)arg);
	while (!atomic_load(&finished)) {
		watch_idle("epoll_wait", set);
		n = epoll_wait(set, ev, most, -1);
		watch_end();
		if (n <= 0)
			watch_bad("T's epoll_wait: %d %s", n, stage_errno(errno));
		for (int i = 0; i < n; i++) {
			if (ev[i].data.u32 == IS_LISTEN)
				take_one();
			else if (ev[i].data.u32 < MAX_CONNS)
				serve(&tames[ev[i].data.u32], ev[i].events);
		}
	}
	watch_rise();
	return NULL;
}

/* Connections to W, for whoever calls accept() there. */
static void *offer(void *arg)
{
	struct sockaddr_in at = { .sin_family = AF_INET };
	int fd, conn;

	(void)arg;
	watch_sit("offers");
	at.sin_port = htons((uint16_t)atomic_load(&world->port[0]));
	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	while (!atomic_load(&world->shutting)) {
		if (atomic_load(&world->offered) - atomic_load(&world->taken) >= OFFERS) {
			stage_nap(500);
			continue;
		}
		fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		conn = log_conn(true);
		if (fd < 0 || conn < 0 || connect(fd, (struct sockaddr *)&at, sizeof(at))) {
			if (!atomic_load(&world->shutting))
				watch_bad("T's connect: %s", stage_errno(errno));
			close(fd);
			break;
		}
		atomic_fetch_add(&world->offered, 1);
		atomic_store(&world->conn[conn].port, conn_port(fd, false));
		begin(fd, conn);
	}
	watch_rise();
	return NULL;
}

/* ---- a little on every connection, and the end of some ---- */

static void quit(struct tame *t)
{
	struct linger hard = { 1, 0 };

	note_ending(t);
	switch (random_below(&t->own, 3)) {
	case 0:
		/* All that W still sends is read, until W closes. */
		shutdown(t->fd, SHUT_WR);
		t->quits = UINT64_MAX;
		t->stopped = true;
		return;
	case 1: setsockopt(t->fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard)); break;
	default: break;
	}
	t->whole = false;
	close_tame(t);
}

static void beat_one(struct tame *t)
{
	int state = atomic_load(&t->state);

	/* W has to be able to ask who it is. */
	if (t->lone || (state != OPEN && state != READ_ALL) || !named(t) ||
	    pthread_mutex_trylock(&t->read))
		return;
	pthread_mutex_lock(&t->write);
	state = atomic_load(&t->state);
	if (state == OPEN && t->sent >= t->quits)
		quit(t);
	else if ((state == OPEN || state == READ_ALL) &&
		 !send_some(t, random_size(&t->own, 1, random_below(&t->own, 20) ? 300 : 8000),
			    MSG_DONTWAIT) &&
		 state == READ_ALL)
		close_tame(t);
	pthread_mutex_unlock(&t->write);
	pthread_mutex_unlock(&t->read);
}

static void *beat(void *arg)
{
	unsigned n;

	(void)arg;
	watch_sit("beats");
	while (!atomic_load(&finished)) {
		n = atomic_load(&world->conns);
		for (unsigned i = 0; i < n && i < MAX_CONNS; i++)
			beat_one(&tames[i]);
		stage_nap(BEAT_US);
	}
	watch_rise();
	return NULL;
}

static void prepare(void)
{
	struct epoll_event ev = { .events = EPOLLIN, .data.u32 = IS_LISTEN };
	struct random r = { world->seed + 99 };

	kind = (enum pool_kind)random_below(&r, POOL_KINDS);
	set = epoll_create1(EPOLL_CLOEXEC);
	finish = eventfd(0, EFD_CLOEXEC);
	listener = stage_listen(AF_INET, 64);
	if (set < 0 || finish < 0 || listener < 0)
		watch_die("no descriptors");
	fcntl(listener, F_SETFL, O_NONBLOCK);
	if (random_below(&r, 2))
		ev.events |= EPOLLEXCLUSIVE;
	epoll_ctl(set, EPOLL_CTL_ADD, listener, &ev);
	ev = (struct epoll_event) { .events = EPOLLIN, .data.u32 = IS_FINISH };
	epoll_ctl(set, EPOLL_CTL_ADD, finish, &ev);
	atomic_store(&world->port[1], conn_port(listener, false));
}

int tame_main(void)
{
	pthread_t pool[POOL], offers, beats;
	uint64_t one = 1;

	watch_sit("main");
	prepare();
	while (!atomic_load(&world->port[0]))
		stage_nap(100);
	for (intptr_t i = 0; i < POOL; i++)
		if (pthread_create(&pool[i], NULL, pool_main, (void *)i))
			watch_die("no thread");
	if (pthread_create(&offers, NULL, offer, NULL) || pthread_create(&beats, NULL, beat, NULL))
		watch_die("no thread");
	while (!atomic_load(&world->done))
		stage_nap(1000);
	pthread_join(offers, NULL);
	/* W has closed all: every connection has to end by itself. */
	watch_begin("the end of all connections", 0);
	while (atomic_load(&open_count) || atomic_load(&threads_left))
		stage_nap(500);
	watch_end();
	atomic_store(&finished, true);
	if (write(finish, &one, sizeof(one)) != sizeof(one))
		watch_die("no eventfd");
	for (int i = 0; i < POOL; i++)
		pthread_join(pool[i], NULL);
	pthread_join(beats, NULL);
	watch_rise();
	return 0;
}
