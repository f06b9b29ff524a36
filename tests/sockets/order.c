/* SPDX-License-Identifier: MIT */
/*
 *   order [--rounds N] [KIND [WAIT]]
 *
 * What a program sends first is not reported last. One process sends on one descriptor and then on
 * another; the other process waits for both. When it is told of the later, it is told of the
 * earlier, too (which of the two stands first in a list says nothing). One of the two is a connection that has a lane, the other anything at all; the lane
 * comes first or second; and all is quiet otherwise, or a third connection is busy all the time.
 *
 * And every descriptor has its turn: when some are ready all the time, a call with room for one
 * event reports them by turns, whatever they are.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "stage.h"
#include "watch.h"

#define LIMIT_S 40
#define TURNS   12
#define PLAIN   16000 /* octets that a connection may carry and still be new */
/*
 * On a busy machine the kernel itself may let a segment wait for the thread that works off what
 * interrupts leave behind, while a pipe needs no such thread.
 */
#define FEW    5 /* in a thousand rounds */
#define TRIES  3 /* and so often: what we do wrong goes wrong each time */
#define GAP_US 8 /* between two messages of the busy connection */

enum kind { LANE, TCP, PIPE, UNIX, CONNECT, EVENT, KINDS };
enum wait { LEVEL, EDGE, POLL, SELECT, WAITS };

static const char *const kind_names[] = { "lane", "tcp", "pipe", "unix", "connect", "event" };
static const char *const wait_names[] = { "level", "edge", "poll", "select" };

struct shared {
	atomic_int round; /* the receiver is ready for this one */
	atomic_int sent;  /* so many have been sent */
	atomic_bool finish;
	atomic_bool again; /* too many, but the kernel may have been late */
};

static struct shared *shared;
static enum kind kind;
static enum wait wait_by;
static bool lane_first, noisy;
static int rounds = 1000;
static int tries; /* left */

/* Both processes have all of these, and use their own side. */
static int lane[2], other[2], noise[2], listener, dialled = -1;

/* ---- connections ---- */

/* A connection of which each process keeps one end: 0 is the receiver's. */
static void connect_two(int side, int at[2])
{
	int one = 1;

	at[side] = side ? stage_dial(listener) : accept(listener, NULL, NULL);
	if (at[side] < 0)
		watch_die("no connection: %s", stage_errno(errno));
	setsockopt(at[side], IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

static void warm(int fd, int side)
{
	uint8_t data[50] = { 0 };

	for (int i = 0; i < 2 * TURNS; i++) {
		if (i % 2 == side) {
			if (recv(fd, data, sizeof(data), MSG_WAITALL) != sizeof(data))
				watch_die("recv: %s", stage_errno(errno));
		} else if (send(fd, data, sizeof(data), 0) != sizeof(data)) {
			watch_die("send: %s", stage_errno(errno));
		}
	}
}

/* A connection that sends one way only, and not much, gets no lane. */
static void renew_plain(int side, int i)
{
	if (kind != TCP || i % PLAIN)
		return;
	if (i)
		close(other[side]);
	connect_two(side, other);
}

static void begin(int side)
{
	connect_two(side, lane);
	warm(lane[side], side);
	if (kind == LANE) {
		connect_two(side, other);
		warm(other[side], side);
	}
	if (noisy) {
		connect_two(side, noise);
		warm(noise[side], side);
	}
}

/* ---- the sender ---- */

static void put(int fd)
{
	uint64_t one = 1;

	watch_begin("send", fd);
	/* Noise may go on for a moment when the receiver has ended. */
	if (write(fd, &one, sizeof(one)) != sizeof(one) && !atomic_load(&shared->finish))
		watch_die("write: %s", stage_errno(errno));
	watch_end();
}

static void put_other(void)
{
	if (kind != CONNECT) {
		put(other[1]);
		return;
	}
	if (dialled >= 0)
		close(dialled);
	watch_begin("connect", 0);
	dialled = stage_dial(listener);
	watch_end();
}

/* Whoever waits for this connection as well hardly ever sleeps. */
static void *make_noise(void *arg)
{
	uint64_t next = stage_now();

	watch_sit("noise");
	while (!atomic_load(&shared->finish)) {
		put(noise[1]);
		for (next += GAP_US; stage_now() < next;)
			sched_yield();
		next = stage_now();
	}
	watch_rise();
	return arg;
}

/* From the other process; or from a thread of the receiver's, with its own end of the lane. */
static void *send_rounds(void *arg)
{
	struct random r = { 1 };

	watch_sit("sender");
	for (int i = 0; i < rounds; i++) {
		renew_plain(1, i);
		watch_begin("the receiver", i);
		while (atomic_load(&shared->round) <= i)
			stage_nap(random_below(&r, 2) ? 0 : 20);
		watch_end();
		/* It is about to sleep, or asleep, or has just looked. */
		if (random_below(&r, 4))
			stage_nap(random_below(&r, 150));
		if (lane_first)
			put(lane[1]);
		put_other();
		if (!lane_first)
			put(lane[1]);
		atomic_store(&shared->sent, i + 1);
	}
	/* The end would be one more thing to report. */
	while (!atomic_load(&shared->finish))
		stage_nap(500);
	watch_rise();
	return arg;
}

/* ---- the receiver ---- */

enum { IS_LANE = 1, IS_OTHER = 2, IS_NOISE = 4 };

#define BOTH (IS_LANE | IS_OTHER)

static int other_fd(void)
{
	return kind == CONNECT ? listener : other[0];
}

static void hear_noise(void)
{
	uint8_t data[4096];

	if (recv(noise[0], data, sizeof(data), MSG_DONTWAIT) < 0 && errno != EAGAIN)
		watch_die("recv: %s", stage_errno(errno));
}

static int by_epoll(int set)
{
	struct epoll_event ev[4];
	int n = epoll_wait(set, ev, 4, -1), all = 0;

	for (int i = 0; i < n; i++)
		all |= (int)ev[i].data.u32;
	return all;
}

static int by_poll(void)
{
	struct pollfd p[3] = { { lane[0], POLLIN, 0 },
			       { other_fd(), POLLIN, 0 },
			       { noise[0], POLLIN, 0 } };
	int all = 0;

	if (poll(p, noisy ? 3 : 2, -1) > 0)
		for (int i = 0; i < 3; i++)
			all |= p[i].revents ? 1 << i : 0;
	return all;
}

static int by_select(void)
{
	int fd[3] = { lane[0], other_fd(), noise[0] }, top = 0, all = 0;
	fd_set in;

	FD_ZERO(&in);
	for (int i = 0; i < (noisy ? 3 : 2); i++) {
		FD_SET(fd[i], &in);
		top = fd[i] > top ? fd[i] : top;
	}
	if (select(top + 1, &in, NULL, NULL, NULL) > 0)
		for (int i = 0; i < (noisy ? 3 : 2); i++)
			all |= FD_ISSET(fd[i], &in) ? 1 << i : 0;
	return all;
}

/* What is reported beside the noise. */
static int wait_once(int set)
{
	int all = 0;

	while (!(all & BOTH)) {
		watch_begin(wait_names[wait_by], lane[0]);
		all = wait_by == POLL ? by_poll() : wait_by == SELECT ? by_select() : by_epoll(set);
		watch_end();
		if (!all)
			watch_die("%s: nothing, %s", wait_names[wait_by], stage_errno(errno));
		if (all & IS_NOISE)
			hear_noise();
	}
	return all & BOTH;
}

static void take(int which)
{
	uint64_t word;
	int fd;

	if (which == IS_OTHER && kind == CONNECT) {
		fd = accept(listener, NULL, NULL);
		if (fd < 0)
			watch_die("accept: %s", stage_errno(errno));
		close(fd);
		return;
	}
	fd = which == IS_LANE ? lane[0] : other[0];
	if (read(fd, &word, sizeof(word)) != sizeof(word))
		watch_die("read: %s", stage_errno(errno));
}

static void add(int set, int fd, uint32_t which)
{
	struct epoll_event ev = { .events = EPOLLIN, .data.u32 = which };

	if (wait_by == EDGE)
		ev.events |= EPOLLET;
	if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &ev))
		watch_die("epoll_ctl: %s", stage_errno(errno));
}

/* How often, in all rounds, the later came without the earlier. */
static int without;

static void receive_one(int set)
{
	int earlier = lane_first ? IS_LANE : IS_OTHER, later = BOTH - earlier;
	int all;

	for (int got = 0; got != BOTH; got |= all) {
		all = wait_once(set);
		without += all & later && !((all | got) & earlier);
		for (int w = IS_LANE; w <= IS_OTHER; w++)
			if (all & w)
				take(w);
	}
}

static void receive_rounds(void)
{
	int set = epoll_create1(EPOLL_CLOEXEC);

	add(set, lane[0], IS_LANE);
	if (noisy)
		add(set, noise[0], IS_NOISE);
	for (int i = 0; i < rounds; i++) {
		renew_plain(0, i);
		if (i == 0 || (kind == TCP && i % PLAIN == 0))
			add(set, other_fd(), IS_OTHER);
		atomic_store(&shared->round, i + 1);
		/* Sometimes it looks only when both are there. */
		while (i % 2 && atomic_load(&shared->sent) <= i)
			stage_nap(20);
		receive_one(set);
	}
	close(set);
	atomic_store(&shared->finish, true);
	if (without * 1000 <= FEW * rounds)
		return;
	if (tries > 0)
		atomic_store(&shared->again, true);
	else
		watch_bad("%s %s the lane, %s%s: in %d of %d rounds the later was reported "
			  "without the earlier",
			  kind_names[kind], lane_first ? "after" : "before", wait_names[wait_by],
			  noisy ? ", beside noise" : "", without, rounds);
}

/* ---- the processes ---- */

static void make_other(void)
{
	if (kind == PIPE && pipe(other))
		watch_die("pipe: %s", stage_errno(errno));
	if (kind == UNIX && socketpair(AF_UNIX, SOCK_STREAM, 0, other))
		watch_die("socketpair: %s", stage_errno(errno));
	if (kind == EVENT)
		other[0] = other[1] = eventfd(0, EFD_CLOEXEC);
}

static int receiver(void)
{
	pthread_t thread;
	int one = 1;

	watch_sit("receiver");
	if (kind != EVENT) {
		begin(0);
		receive_rounds();
		return 0;
	}
	/* Both ends of the lane are here, and a thread that uses the other one. */
	lane[1] = stage_dial(listener);
	lane[0] = accept(listener, NULL, NULL);
	setsockopt(lane[1], IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	for (int i = 0; i < TURNS; i++) {
		put(lane[1]);
		take(IS_LANE);
		put(lane[0]);
		if (read(lane[1], &(uint64_t) { 0 }, sizeof(uint64_t)) != sizeof(uint64_t))
			watch_die("read: %s", stage_errno(errno));
	}
	if (pthread_create(&thread, NULL, send_rounds, NULL))
		watch_die("no thread");
	receive_rounds();
	pthread_join(thread, NULL);
	return 0;
}

static int sender(void)
{
	pthread_t thread;

	watch_sit("sender");
	if (kind == EVENT)
		return 0;
	begin(1);
	if (noisy && pthread_create(&thread, NULL, make_noise, NULL))
		watch_die("no thread");
	send_rounds(NULL);
	if (noisy)
		pthread_join(thread, NULL);
	return 0;
}

static void play(int (*const mains[2])(void))
{
	pid_t pid[2];

	memset(shared, 0, sizeof(*shared));
	listener = stage_listen(AF_INET, 16);
	make_other();
	for (int i = 0; i < 2; i++) {
		pid[i] = fork();
		if (pid[i] < 0) {
			perror("fork");
			exit(2);
		}
		if (pid[i] == 0) {
			watch_process("RS"[i]);
			exit(mains[i]());
		}
	}
	close(listener);
	if (kind == PIPE || kind == UNIX || kind == EVENT) {
		close(other[0]);
		close(other[1]);
	}
	watch_over(pid, "RS", 2);
}

static void play_again(int (*const mains[2])(void))
{
	for (tries = TRIES - 1; tries >= 0; tries--) {
		play(mains);
		if (!atomic_load(&shared->again))
			return;
	}
}

/* ---- turns ---- */

#define LANES   4
#define REPORTS 2000
#define FILL    60000 /* octets in each lane; one is read at a time */

static int busy[LANES][2];

/* The lanes are full of octets, and then the sender sleeps. */
static int fill_lanes(void)
{
	static uint8_t data[FILL];

	watch_sit("sender");
	for (int i = 0; i < LANES; i++) {
		connect_two(1, busy[i]);
		warm(busy[i][1], 1);
	}
	connect_two(1, other);
	for (int i = 0; i < LANES; i++)
		if (send(busy[i][1], data, FILL, 0) != FILL)
			watch_die("send: %s", stage_errno(errno));
	if (send(other[1], data, 100, 0) != 100)
		watch_die("send: %s", stage_errno(errno));
	atomic_store(&shared->round, 1);
	while (!atomic_load(&shared->finish))
		stage_nap(500);
	return 0;
}

/* Ready for good: nobody reads them. */
static void ready_for_good(int fd[3])
{
	struct itimerspec at = { .it_value.tv_nsec = 1 };
	int p[2];

	fd[0] = other[0];
	fd[1] = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
	if (pipe(p) || write(p[1], "x", 1) != 1 || fd[1] < 0 ||
	    timerfd_settime(fd[1], 0, &at, NULL))
		watch_die("no pipe, or no timer");
	fd[2] = p[0];
}

static void count_turns(int count[LANES + 3], int set, int most)
{
	struct epoll_event ev[LANES + 3];
	uint8_t octet;
	int n;

	for (int i = 0; i < REPORTS; i++) {
		watch_begin("epoll_wait", set);
		n = epoll_wait(set, ev, most, 5000);
		watch_end();
		if (n <= 0)
			watch_die("epoll_wait: %d", n);
		for (int k = 0; k < n; k++) {
			count[ev[k].data.u32]++;
			if (ev[k].data.u32 < LANES &&
			    recv(busy[ev[k].data.u32][0], &octet, 1, MSG_DONTWAIT) != 1)
				watch_die("recv: %s", stage_errno(errno));
		}
	}
}

static void judge_turns(const int count[LANES + 3], int most)
{
	static const char *const names[3] = { "a new connection", "a timer", "a pipe" };
	int all = 0;

	for (int i = 0; i < LANES + 3; i++)
		all += count[i];
	/* On kernel TCP all have the same share; a quarter of that will do. */
	for (int i = 0; i < LANES + 3; i++)
		if (count[i] * 4 * (LANES + 3) < all)
			watch_bad("with room for %d events, %s was reported in %d of %d", most,
				  i < LANES ? "a lane" : names[i - LANES], count[i], all);
}

static int take_turns(void)
{
	int fd[3], count[LANES + 3], set = epoll_create1(EPOLL_CLOEXEC);

	watch_sit("receiver");
	for (int i = 0; i < LANES; i++) {
		connect_two(0, busy[i]);
		warm(busy[i][0], 0);
	}
	connect_two(0, other);
	while (!atomic_load(&shared->round))
		stage_nap(500);
	ready_for_good(fd);
	for (int i = 0; i < LANES; i++)
		add(set, busy[i][0], (uint32_t)i);
	for (int i = 0; i < 3; i++)
		add(set, fd[i], (uint32_t)(LANES + i));
	for (int most = 1; most <= LANES; most += LANES - 1) {
		memset(count, 0, sizeof(count));
		count_turns(count, set, most);
		judge_turns(count, most);
	}
	atomic_store(&shared->finish, true);
	return 0;
}

/* ---- all of them ---- */

static bool wanted(const char *name, const char *only)
{
	return !only || strcmp(name, only) == 0;
}

int main(int argc, char **argv)
{
	static int (*const order[2])(void) = { receiver, sender };
	static int (*const turns[2])(void) = { take_turns, fill_lanes };
	const char *only[2] = { NULL, NULL };
	int at = 1;

	if (argc > 2 && strcmp(argv[1], "--rounds") == 0) {
		rounds = atoi(argv[2]);
		at = 3;
	}
	for (int i = 0; i < 2 && at + i < argc; i++)
		only[i] = argv[at + i];
	watch_open(LIMIT_S);
	shared = watch_share(sizeof(*shared));
	for (int k = 0; k < KINDS; k++)
		for (int w = 0; w < WAITS; w++)
			for (int i = 0; i < 4; i++) {
				kind = (enum kind)k;
				wait_by = (enum wait)w;
				lane_first = i % 2;
				noisy = i / 2 && kind != EVENT;
				if (wanted(kind_names[k], only[0]) &&
				    wanted(wait_names[w], only[1]) && (i < 2 || noisy))
					play_again(order);
			}
	kind = LANE;
	wait_by = LEVEL;
	noisy = false;
	if (wanted("turns", only[0]))
		play(turns);
	return watch_verdict("%s", argv[0]);
}
