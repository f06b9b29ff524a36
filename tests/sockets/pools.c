/* SPDX-License-Identifier: MIT */
/*
 *   pools [--seconds N] [KIND [THREADS [STYLE]]]
 *
 * Thread pools: 2, 4 and 8 threads of a server wait in one epoll set for all its connections, in
 * every way in which that is done. The clients ask one thing after another, or many at once. Every
 * question is answered, once and in order; with EPOLLONESHOT no two threads are told of the same
 * connection; and a pool that nobody asks anything uses no processor.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "stage.h"
#include "watch.h"

#define LIMIT_S    40
#define MAX_POOL   8
#define MAX_CONNS  512
#define CLIENTS    3    /* threads that ask, with two connections each */
#define LIVES      4    /* connections one after the other */
#define QUESTIONS  40   /* on each of them */
#define BURST      16   /* of them at once, when pipelined */
#define BODY       3000 /* octets of a question at most */
#define ANSWER     40000
#define IDLE_US    60000
#define IDLE_TRIES 50
#define IDLE_SHARE 3 /* in so many parts of the time the pool may be busy for one */

enum kind {
	LEVEL,
	EDGE,
	ONESHOT,
	EXCLUSIVE, /* EPOLLEXCLUSIVE, on the listener as well */
	APART,     /* the same, and each thread has a set of its own with all connections in it */
	KINDS
};

enum style { TURNS, PIPELINED, STYLES };

static const char *const kind_names[] = { "level", "edge", "oneshot", "exclusive", "apart" };
static const char *const style_names[] = { "turns", "pipelined" };

struct question {
	uint32_t id, key, len, answer;
};

struct shared {
	atomic_int port;
	atomic_bool idle, done; /* the clients ask nothing any more; have closed */
	atomic_ulong asked, answered;
};

static struct shared *shared;
static enum kind kind;
static enum style style;
static int threads;

/* ---- the server ---- */

struct conn {
	int fd;
	pthread_mutex_t lock;
	atomic_int inside; /* threads */
	bool closed;
	size_t have;
	uint8_t in[sizeof(struct question) + BODY];
};

static struct conn conns[MAX_CONNS];
static atomic_int conn_count;
static int sets[MAX_POOL], listener, finish;
static atomic_bool finished;

#define IS_LISTENER MAX_CONNS
#define IS_FINISH   (MAX_CONNS + 1)

static int set_of(int thread)
{
	return sets[kind == APART ? thread : 0];
}

static uint32_t interest(void)
{
	static const uint32_t how[KINDS] = { 0, EPOLLET, EPOLLONESHOT, EPOLLEXCLUSIVE,
					     EPOLLEXCLUSIVE };

	return EPOLLIN | how[kind];
}

static void send_all(int fd, const uint8_t *data, size_t n)
{
	struct pollfd p = { fd, POLLOUT, 0 };
	ssize_t sent;

	while (n) {
		watch_begin("send", fd);
		sent = send(fd, data, n, MSG_NOSIGNAL);
		if (sent < 0 && errno == EAGAIN) {
			poll(&p, 1, -1);
			sent = 0;
		}
		watch_end();
		if (sent < 0)
			watch_die("send: %s", stage_errno(errno));
		data += sent;
		n -= (size_t)sent;
	}
}

static void answer(struct conn *c, const struct question *q, const uint8_t *body)
{
	static __thread uint8_t out[sizeof(*q) + ANSWER];
	struct flow f = { q->key, (uint64_t)q->id << 20 };

	if (flow_match(&f, body, q->len) < q->len)
		watch_bad("question %u has foreign octets", q->id);
	f.key++;
	memcpy(out, q, sizeof(*q));
	flow_fill(&f, out + sizeof(*q), q->answer);
	atomic_fetch_add(&shared->answered, 1);
	send_all(c->fd, out, sizeof(*q) + q->answer);
}

/* Answers all whole questions that are there. */
static void work_off(struct conn *c)
{
	struct question q;
	size_t at = 0;

	while (c->have - at >= sizeof(q)) {
		memcpy(&q, c->in + at, sizeof(q));
		if (q.len > BODY || q.answer > ANSWER)
			watch_die("a question of %u octets", q.len);
		if (c->have - at < sizeof(q) + q.len)
			break;
		answer(c, &q, c->in + at + sizeof(q));
		at += sizeof(q) + q.len;
	}
	c->have -= at;
	memmove(c->in, c->in + at, c->have);
}

/* False: the end. *more: there may be more to read. */
static bool read_once(struct conn *c, bool *more)
{
	ssize_t n;

	watch_begin("recv, not waiting", c->fd);
	n = recv(c->fd, c->in + c->have, sizeof(c->in) - c->have, 0);
	watch_end();
	*more = n > 0;
	if (n > 0) {
		c->have += (size_t)n;
		work_off(c);
	}
	if (n < 0 && errno != EAGAIN)
		watch_bad("recv: %s", stage_errno(errno));
	return n > 0 || (n < 0 && errno == EAGAIN);
}

static void close_conn(struct conn *c)
{
	if (c->have)
		watch_bad("%zu octets of a question at the end", c->have);
	c->closed = true;
	watch_begin("close", c->fd);
	close(c->fd);
	watch_end();
}

static void serve(struct conn *c, int thread)
{
	struct epoll_event ev = { .events = interest(), .data.u32 = (uint32_t)(c - conns) };
	bool going = true, more = true;
	int rc;

	rc = atomic_fetch_add(&c->inside, 1);
	if (rc && kind == ONESHOT)
		watch_bad("%d threads were told of one connection", rc + 1);
	/* Whoever is there already will be told again; but an edge comes once. */
	if (kind == EDGE || kind == ONESHOT)
		pthread_mutex_lock(&c->lock);
	else if (pthread_mutex_trylock(&c->lock))
		goto out;
	if (!c->closed) {
		do
			going = read_once(c, &more);
		while (going && more && kind == EDGE);
		if (!going)
			close_conn(c);
		else if (kind == ONESHOT) {
			/* From here on another thread may have it. */
			atomic_fetch_sub(&c->inside, 1);
			pthread_mutex_unlock(&c->lock);
			if (epoll_ctl(set_of(thread), EPOLL_CTL_MOD, c->fd, &ev))
				watch_bad("EPOLL_CTL_MOD: %s", stage_errno(errno));
			return;
		}
	}
	pthread_mutex_unlock(&c->lock);
out:
	atomic_fetch_sub(&c->inside, 1);
}

static void take(void)
{
	int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	struct epoll_event ev = { .events = interest() };
	struct conn *c;
	int i;

	if (fd < 0) {
		if (errno != EAGAIN)
			watch_bad("accept: %s", stage_errno(errno));
		return;
	}
	i = atomic_fetch_add(&conn_count, 1);
	if (i >= MAX_CONNS)
		watch_die("too many connections");
	c = &conns[i];
	c->fd = fd;
	pthread_mutex_init(&c->lock, NULL);
	ev.data.u32 = (uint32_t)i;
	/* Known to one set it may else be closed before the next has it, and another connection get its number. */
	pthread_mutex_lock(&c->lock);
	for (int k = 0; k < (kind == APART ? threads : 1); k++)
		if (epoll_ctl(sets[k], EPOLL_CTL_ADD, fd, &ev))
			watch_bad("EPOLL_CTL_ADD: %s", stage_errno(errno));
	pthread_mutex_unlock(&c->lock);
}

static void *pool(void *arg)
{
	int thread = (int)(intptr_t)arg, n;
	struct epoll_event ev[4];

	watch_sit("pool %d", thread);
	while (!atomic_load(&finished)) {
		watch_idle("epoll_wait", set_of(thread));
		n = epoll_wait(set_of(thread), ev, 1 + thread % 4, -1);
		watch_end();
		if (n <= 0)
			watch_bad("epoll_wait: %d %s", n, stage_errno(errno));
		for (int i = 0; i < n; i++) {
			if (ev[i].data.u32 == IS_LISTENER)
				take();
			else if (ev[i].data.u32 < MAX_CONNS)
				serve(&conns[ev[i].data.u32], thread);
		}
	}
	watch_rise();
	return NULL;
}

static uint64_t cpu_us(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return (uint64_t)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000 +
	       (uint64_t)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

/* The connections are open, and nobody sends anything. */
static void check_idle(void)
{
	uint64_t used, before = 0;

	/* Shortly after work a pool may still be about to sleep; on a busy machine not so shortly. */
	for (int i = 0; i < IDLE_TRIES; i++) {
		before = cpu_us();
		stage_nap(IDLE_US);
		used = cpu_us() - before;
		if (used * IDLE_SHARE < IDLE_US)
			return;
	}
	watch_bad("the idle pool used %llu us of the processor in %d us", (unsigned long long)used,
		  IDLE_US);
}

static void make_sets(void)
{
	struct epoll_event ev = { .events = EPOLLIN, .data.u32 = IS_LISTENER };

	listener = stage_listen(AF_INET, 256);
	fcntl(listener, F_SETFL, O_NONBLOCK);
	finish = eventfd(0, EFD_CLOEXEC);
	for (int i = 0; i < (kind == APART ? threads : 1); i++) {
		sets[i] = epoll_create1(EPOLL_CLOEXEC);
		ev = (struct epoll_event) { .events = EPOLLIN, .data.u32 = IS_LISTENER };
		if (kind == EXCLUSIVE || kind == APART)
			ev.events |= EPOLLEXCLUSIVE;
		epoll_ctl(sets[i], EPOLL_CTL_ADD, listener, &ev);
		ev = (struct epoll_event) { .events = EPOLLIN, .data.u32 = IS_FINISH };
		epoll_ctl(sets[i], EPOLL_CTL_ADD, finish, &ev);
	}
}

static int server(void)
{
	pthread_t thread[MAX_POOL];
	struct sockaddr_in at;
	socklen_t len = sizeof(at);
	uint64_t one = 1;

	watch_sit("main");
	make_sets();
	for (intptr_t i = 0; i < threads; i++)
		if (pthread_create(&thread[i], NULL, pool, (void *)i))
			watch_die("no thread");
	getsockname(listener, (struct sockaddr *)&at, &len);
	atomic_store(&shared->port, ntohs(at.sin_port));
	while (!atomic_load(&shared->idle))
		stage_nap(1000);
	check_idle();
	atomic_store(&shared->idle, false);
	while (!atomic_load(&shared->done))
		stage_nap(1000);
	watch_begin("all connections to end", 0);
	for (int i = 0; i < atomic_load(&conn_count); i++)
		for (bool closed = false; !closed; stage_nap(100)) {
			pthread_mutex_lock(&conns[i].lock);
			closed = conns[i].closed;
			pthread_mutex_unlock(&conns[i].lock);
		}
	watch_end();
	atomic_store(&finished, true);
	if (write(finish, &one, sizeof(one)) != sizeof(one))
		watch_die("no eventfd");
	for (int i = 0; i < threads; i++)
		pthread_join(thread[i], NULL);
	watch_rise();
	return 0;
}

/* ---- the clients ---- */

struct client {
	pthread_t thread;
	int index;
	struct random r;
	int fd[2];
	uint32_t key[2], asked[2], read[2]; /* ids */
};

static pthread_barrier_t all_asked;

static int dial(void)
{
	struct sockaddr_in at = { .sin_family = AF_INET };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	at.sin_port = htons((uint16_t)atomic_load(&shared->port));
	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	watch_begin("connect", fd);
	if (fd < 0 || connect(fd, (struct sockaddr *)&at, sizeof(at)))
		watch_die("connect: %s", stage_errno(errno));
	watch_end();
	return fd;
}

static void ask(struct client *c, int which)
{
	uint8_t data[sizeof(struct question) + BODY];
	struct question q = { c->asked[which]++, c->key[which], 0, 0 };
	struct flow f = { q.key, (uint64_t)q.id << 20 };

	q.len = random_size(&c->r, 0, BODY);
	/* Much of little, a little of much: sometimes the answers fill the buffers. */
	q.answer = random_size(&c->r, 0, random_below(&c->r, 8) ? 500 : ANSWER);
	memcpy(data, &q, sizeof(q));
	flow_fill(&f, data + sizeof(q), q.len);
	atomic_fetch_add(&shared->asked, 1);
	send_all(c->fd[which], data, sizeof(q) + q.len);
}

static void recv_all(int fd, uint8_t *to, size_t n)
{
	ssize_t got;

	while (n) {
		watch_begin("recv of an answer", fd);
		got = recv(fd, to, n, 0);
		watch_end();
		if (got <= 0)
			watch_die("recv of an answer: %zd %s", got, stage_errno(errno));
		to += got;
		n -= (size_t)got;
	}
}

static void listen_to(struct client *c, int which)
{
	static __thread uint8_t data[ANSWER];
	struct question q;
	struct flow f;

	recv_all(c->fd[which], (uint8_t *)&q, sizeof(q));
	if (q.id != c->read[which] || q.key != c->key[which] || q.answer > ANSWER)
		watch_die("answer %u of %x, not %u of %x", q.id, q.key, c->read[which],
			  c->key[which]);
	c->read[which]++;
	recv_all(c->fd[which], data, q.answer);
	f = (struct flow) { q.key + 1, (uint64_t)q.id << 20 };
	if (flow_match(&f, data, q.answer) < q.answer)
		watch_bad("answer %u has foreign octets", q.id);
}

static void talk(struct client *c)
{
	int burst = style == PIPELINED ? BURST : 1;

	for (int i = 0; i < QUESTIONS / burst + 1; i++) {
		for (int k = 0; k < burst; k++)
			for (int w = 0; w < 2; w++)
				ask(c, w);
		for (int k = 0; k < burst; k++)
			for (int w = 0; w < 2; w++)
				listen_to(c, w);
	}
}

static void *client(void *arg)
{
	struct client *c = arg;

	watch_sit("client %d", c->index);
	for (int life = 0; life < LIVES; life++) {
		watch_step((unsigned)life);
		for (int w = 0; w < 2; w++) {
			c->fd[w] = dial();
			c->key[w] = (uint32_t)((c->index * LIVES + life) * 2 + w + 1) << 8;
			c->asked[w] = c->read[w] = 0;
		}
		talk(c);
		if (life == LIVES - 1) {
			pthread_barrier_wait(&all_asked);
			pthread_barrier_wait(&all_asked);
		}
		for (int w = 0; w < 2; w++)
			close(c->fd[w]);
	}
	watch_rise();
	return NULL;
}

static int clients(void)
{
	struct client c[CLIENTS];

	watch_sit("main");
	while (!atomic_load(&shared->port))
		stage_nap(200);
	pthread_barrier_init(&all_asked, NULL, CLIENTS + 1);
	for (int i = 0; i < CLIENTS; i++) {
		c[i] = (struct client) { .index = i, .r.state = (uint64_t)i * 77 + 5 };
		if (pthread_create(&c[i].thread, NULL, client, &c[i]))
			watch_die("no thread");
	}
	pthread_barrier_wait(&all_asked);
	atomic_store(&shared->idle, true);
	while (atomic_load(&shared->idle))
		stage_nap(1000);
	pthread_barrier_wait(&all_asked);
	for (int i = 0; i < CLIENTS; i++)
		pthread_join(c[i].thread, NULL);
	atomic_store(&shared->done, true);
	watch_rise();
	return 0;
}

/* ---- all of them ---- */

static void play(void)
{
	int (*const mains[2])(void) = { server, clients };
	pid_t pid[2];

	memset(shared, 0, sizeof(*shared));
	for (int i = 0; i < 2; i++) {
		pid[i] = fork();
		if (pid[i] < 0) {
			perror("fork");
			exit(2);
		}
		if (pid[i] == 0) {
			watch_process("SC"[i]);
			exit(mains[i]());
		}
	}
	watch_over(pid, "SC", 2);
	if (atomic_load(&shared->asked) != atomic_load(&shared->answered))
		watch_bad("%lu questions, %lu answers", atomic_load(&shared->asked),
			  atomic_load(&shared->answered));
}

static void play_all(const char *only[3])
{
	char count[8];
	int bads;

	for (int k = 0; k < KINDS; k++)
		for (int t = 2; t <= MAX_POOL; t *= 2)
			for (int s = 0; s < STYLES; s++) {
				snprintf(count, sizeof(count), "%d", t);
				if ((only[0] && strcmp(only[0], kind_names[k]) != 0) ||
				    (only[1] && strcmp(only[1], count) != 0) ||
				    (only[2] && strcmp(only[2], style_names[s]) != 0))
					continue;
				kind = (enum kind)k;
				style = (enum style)s;
				threads = t;
				bads = watch_bads();
				play();
				if (watch_bads() > bads)
					watch_say("  that was: %s %d %s", kind_names[k], t,
						  style_names[s]);
			}
}

int main(int argc, char **argv)
{
	const char *only[3] = { NULL };
	uint64_t end = 0;
	int at = 1;

	if (argc > 2 && strcmp(argv[1], "--seconds") == 0) {
		end = stage_now() + strtoull(argv[2], NULL, 0) * 1000000;
		at = 3;
	}
	for (int i = 0; at + i < argc && i < 3; i++)
		only[i] = argv[at + i];
	watch_open(LIMIT_S);
	shared = watch_share(sizeof(*shared));
	do
		play_all(only);
	while (stage_now() < end && !watch_bads());
	return watch_verdict("%s", argv[0]);
}
