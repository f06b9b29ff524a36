/* SPDX-License-Identifier: MIT */
/*
 * Sets that sleep: one socket in two of them, many sockets in one, what stands behind the events, a writer
 * whose reader is killed, and one whose lane ends.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "life.h"

enum {
	TWO_SETS, /* a reader in one, a writer without room in the other */
	TWO_SETS_EDGE,
	CROWD, /* a hundred in one */
	CROWD_EDGE,
	BEHIND, /* nobody writes behind the events that are returned */
	KILLED, /* the peer, while the writer waits for room */
	KILLED_EDGE,
	INHERITED,      /* a child goes on with a set in which its parent has slept */
	INHERITED_NEST, /* ... with sets of its own, one in another */
	SHOT_FULL,      /* news, while there is no room: one shot must not tell of any */
	LEFT_EDGE, /* the lane, by its peer, after the kernel has told of room that the ring had not */
	LEFT_SHOT,
	LEFT_EMPTY,  /* with nothing in it, and then asked for room */
	LEFT_ASLEEP, /* by ourselves, while another thread waits for room */
	LEFT_ASLEEP_EDGE,
	BORN_FULL, /* the lane, and filled, since the set was last looked at */
	KINDS
};

#define ROUNDS  6
#define LATE_MS 10000
#define NEWS    100 /* octets for the reader */
#define CHUNK   10000
#define CROWDED 100
#define TURNS   16
#define TURN    64

/* ---- one socket in two sets ---- */

static int make_set(int fd, uint32_t events)
{
	struct epoll_event ev = { .events = events, .data.fd = fd };
	int set = epoll_create1(EPOLL_CLOEXEC);

	epoll_ctl(set, EPOLL_CTL_ADD, fd, &ev);
	return set;
}

static ssize_t write_some(struct stage *st)
{
	static uint8_t buffer[CHUNK];
	ssize_t n;

	flow_fill(&st->out, buffer, CHUNK);
	n = send(st->fd, buffer, CHUNK, MSG_DONTWAIT | MSG_NOSIGNAL);
	if (n > 0)
		st->out.at += (size_t)n;
	return n;
}

/* Until there is no room, and none comes of itself. */
static void fill(struct stage *st)
{
	for (int quiet = 0; quiet < 3; quiet++) {
		while (write_some(st) > 0)
			quiet = 0;
		stage_nap(3000);
	}
}

struct writer {
	struct life *l;
	int set;
	bool level;
	uint32_t told; /* how often; read by the other thread */
	bool wrote;
};

static void *wait_for_room(void *arg)
{
	struct writer *w = arg;
	struct epoll_event ev;

	while (epoll_wait(w->set, &ev, 1, LATE_MS) == 1) {
		__atomic_add_fetch(&w->told, 1, __ATOMIC_SEQ_CST);
		w->wrote = write_some(&w->l->st) > 0;
		if (w->wrote)
			break;
		if (w->level) {
			stage_bad(&w->l->st, "told of room, and there is none");
			break;
		}
	}
	return NULL;
}

static void *wait_for_news(void *arg)
{
	struct writer *w = arg;
	struct epoll_event ev;

	w->told = epoll_wait(w->set, &ev, 1, LATE_MS) == 1 ? ev.events : 0;
	return NULL;
}

static void two_sets(struct life *l)
{
	uint32_t edge = l->kind == TWO_SETS_EDGE ? (uint32_t)EPOLLET : 0;
	struct writer in = { .l = l }, out = { .l = l, .level = !edge };
	uint64_t unread = l->st.out.at;

	in.set = make_set(l->st.fd, EPOLLIN | edge);
	out.set = make_set(l->st.fd, EPOLLOUT | edge);
	for (int i = 0; i < ROUNDS && stage_bads() == 0; i++) {
		pthread_t reader, writer;
		bool news_first = i % 2;
		uint64_t n;

		fill(&l->st);
		out.told = out.wrote = false;
		n = l->st.out.at - unread;
		pthread_create(&reader, NULL, wait_for_news, &in);
		pthread_create(&writer, NULL, wait_for_room, &out);
		stage_nap(i < 4 ? 30000 : 0);
		if (news_first) {
			life_ask(l, LIFE_SENDS, NEWS);
			life_answer(l);
			pthread_join(reader, NULL);
		}
		life_ask(l, LIFE_READS, n);
		pthread_join(writer, NULL);
		life_answer(l);
		unread += n;
		if (!news_first) {
			life_ask(l, LIFE_SENDS, NEWS);
			life_answer(l);
			pthread_join(reader, NULL);
		}
		stage_say(&l->st, "round %d: reader %s, writer %s", i,
			  in.told & EPOLLIN ? "woken" : "asleep", out.wrote ? "wrote" : "asleep");
		stage_recv(&l->st, NEWS);
	}
	life_ask(l, LIFE_READS, l->st.out.at - unread);
	life_answer(l);
	close(in.set);
	close(out.set);
}

/* ---- peers of our own ---- */

struct peers {
	pid_t pid;
	int ctl, count;
	int fd[CROWDED];
};

static void turn(int fd, bool first)
{
	char octets[TURN] = { 0 };

	for (int i = 0; i < 2; i++)
		if (first == !i ? send(fd, octets, TURN, MSG_NOSIGNAL) != TURN
				: recv(fd, octets, TURN, MSG_WAITALL) != TURN)
			_exit(4);
}

/* Connects, takes turns, and then sends an octet to one or all, or reads one from all. */
static void be_peers(struct life *l, struct peers *p)
{
	struct {
		int32_t what, which;
	} c;
	char octet;

	for (int i = 0; i < p->count; i++) {
		p->fd[i] = stage_dial(l->listener);
		for (int n = 0; n < TURNS; n++)
			turn(p->fd[i], true);
	}
	while (read(p->ctl, &c, sizeof(c)) == sizeof(c))
		for (int i = 0; i < p->count; i++) {
			octet = (char)i;
			if (c.which >= 0 && c.which != i)
				continue;
			if (c.what == 's' && send(p->fd[i], &octet, 1, MSG_NOSIGNAL) != 1)
				_exit(5);
			if (c.what == 'r' &&
			    (recv(p->fd[i], &octet, 1, 0) != 1 || octet != (char)i))
				_exit(6);
		}
	_exit(0);
}

static void start_peers(struct life *l, struct peers *p, int count)
{
	int ctl[2];

	p->count = count;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ctl))
		stage_die(&l->st, "socketpair");
	p->pid = fork();
	p->ctl = ctl[p->pid != 0];
	close(ctl[p->pid == 0]);
	if (p->pid == 0)
		be_peers(l, p);
	for (int i = 0; i < count; i++) {
		p->fd[i] = accept(l->listener, NULL, NULL);
		for (int n = 0; n < TURNS; n++)
			turn(p->fd[i], false);
	}
}

static void ask_peers(const struct peers *p, char what, int which)
{
	const int32_t c[2] = { what, which };

	if (write(p->ctl, c, sizeof(c)) != sizeof(c))
		_exit(7);
}

static void end_peers(struct life *l, struct peers *p)
{
	close(p->ctl);
	life_wait(l, p->pid);
	for (int i = 0; i < p->count; i++)
		close(p->fd[i]);
}

/* ---- a crowd ---- */

/* Events until `want` connections have said something; all of it is answered. */
static int serve(struct life *l, struct peers *p, int set, int want)
{
	struct epoll_event ev[7];
	int served = 0;

	while (served < want) {
		int n = epoll_wait(set, ev, 7, LATE_MS);

		if (n <= 0)
			break;
		for (int i = 0; i < n; i++) {
			int which = ev[i].data.fd;
			char octet = 77;

			if (recv(p->fd[which], &octet, 1, MSG_DONTWAIT) != 1 ||
			    octet != (char)which || send(p->fd[which], &octet, 1, 0) != 1)
				stage_bad(&l->st, "connection %d says %d", which, octet);
			served++;
		}
	}
	return served;
}

static void crowd(struct life *l)
{
	uint32_t edge = l->kind == CROWD_EDGE ? (uint32_t)EPOLLET : 0;
	int set = epoll_create1(EPOLL_CLOEXEC);
	struct peers p;

	start_peers(l, &p, CROWDED);
	for (int i = 0; i < CROWDED; i++) {
		struct epoll_event ev = { .events = EPOLLIN | edge, .data.fd = i };

		epoll_ctl(set, EPOLL_CTL_ADD, p.fd[i], &ev);
	}
	for (int i = 0; i < 2 * ROUNDS && stage_bads() == 0; i++) {
		int which = i % 3 == 2 ? (i * 37) % CROWDED : -1;
		struct epoll_event none;

		stage_say(&l->st, "nothing: %d", epoll_wait(set, &none, 1, 30));
		ask_peers(&p, 's', which);
		stage_say(&l->st, "round %d: %d", i, serve(l, &p, set, which < 0 ? CROWDED : 1));
		ask_peers(&p, 'r', which);
	}
	end_peers(l, &p);
	close(set);
}

/* ---- behind the events ---- */

#define ROOM 6
#define MARK 0x5a

/* How many were returned; what is behind them must be as it was. */
static int look(struct life *l, int set, int max, int timeout)
{
	struct epoll_event ev[ROOM];
	const uint8_t *octets = (const uint8_t *)ev;
	int n;

	memset(ev, MARK, sizeof(ev));
	n = epoll_wait(set, ev, max, timeout);
	for (size_t i = n > 0 ? (size_t)n * sizeof(ev[0]) : 0; i < sizeof(ev); i++)
		if (octets[i] != MARK) {
			stage_bad(&l->st, "%d of %d events, and octet %zu is written", n, max, i);
			break;
		}
	return n;
}

static void *send_late(void *arg)
{
	const struct peers *p = arg;

	stage_nap(40000);
	ask_peers(p, 's', 0);
	return NULL;
}

static void behind(struct life *l)
{
	int set = epoll_create1(EPOLL_CLOEXEC), other = epoll_create1(EPOLL_CLOEXEC), ends[2];
	struct peers p;
	char octet;

	start_peers(l, &p, 3);
	if (pipe(ends))
		stage_die(&l->st, "pipe");
	for (int i = 0; i < 4; i++) {
		struct epoll_event ev = { .events = EPOLLIN, .data.fd = i };

		/* The first is in another set as well, the third in that alone. */
		if (i != 2)
			epoll_ctl(set, EPOLL_CTL_ADD, i < 3 ? p.fd[i] : ends[0], &ev);
		if (i == 0 || i == 2)
			epoll_ctl(other, EPOLL_CTL_ADD, p.fd[i], &ev);
	}
	for (int i = 0; i < ROUNDS; i++) {
		pthread_t thread;

		stage_say(&l->st, "at once: %d", look(l, set, ROOM, 0));
		stage_say(&l->st, "a while: %d", look(l, set, ROOM, 30));
		pthread_create(&thread, NULL, send_late, &p);
		stage_say(&l->st, "one comes: %d", look(l, set, ROOM, LATE_MS));
		pthread_join(thread, NULL);
		stage_say(&l->st, "also there: %d", look(l, other, ROOM, LATE_MS));
		recv(p.fd[0], &octet, 1, 0);
		/* What wakes the other set is nothing for this one. */
		look(l, other, ROOM, 5);
		ask_peers(&p, 's', 2);
		stage_say(&l->st, "not ours: %d", look(l, set, ROOM, 60));
		recv(p.fd[2], &octet, 1, 0);
		ask_peers(&p, 's', 0);
		ask_peers(&p, 's', 1);
		stage_nap(20000);
		if (write(ends[1], "x", 1) != 1)
			stage_die(&l->st, "write");
		stage_say(&l->st, "room for one: %d", look(l, set, 1, LATE_MS));
		stage_say(&l->st, "three: %d", look(l, set, ROOM, LATE_MS));
		for (int n = 0; n < 2; n++)
			recv(p.fd[n], &octet, 1, 0);
		if (read(ends[0], &octet, 1) != 1)
			stage_die(&l->st, "read");
	}
	end_peers(l, &p);
	close(set);
	close(other);
}

/* ---- killed ---- */

static void *kill_late(void *arg)
{
	const struct peers *p = arg;

	stage_nap(60000);
	kill(p->pid, SIGKILL);
	return NULL;
}

static void killed(struct life *l)
{
	uint32_t edge = l->kind == KILLED_EDGE ? (uint32_t)EPOLLET : 0;

	for (int i = 0; i < ROUNDS && stage_bads() == 0; i++) {
		struct stage st = { .name = 'A' };
		struct epoll_event ev;
		struct peers p;
		pthread_t thread;
		int set, status = 0;
		ssize_t n;

		start_peers(l, &p, 1);
		st.fd = p.fd[0];
		fill(&st);
		set = make_set(st.fd, EPOLLOUT | edge);
		pthread_create(&thread, NULL, kill_late, &p);
		do {
			if (epoll_wait(set, &ev, 1, LATE_MS) != 1) {
				stage_bad(&l->st, "the writer sleeps, its reader is dead");
				break;
			}
			n = write_some(&st);
		} while (n > 0 || errno == EAGAIN);
		pthread_join(thread, NULL);
		waitpid(p.pid, &status, 0);
		stage_say(&l->st, "round %d: %s, then %s", i,
			  errno == ECONNRESET || errno == EPIPE ? "reset" : stage_errno(errno),
			  ev.events & (EPOLLERR | EPOLLHUP) ? "seen" : "not seen");
		close(set);
		close(p.ctl);
		close(st.fd);
	}
}

/* ---- inherited ---- */

static void inherited(struct life *l)
{
	struct epoll_event ev;
	int set = make_set(l->st.fd, EPOLLIN);
	pid_t child;

	stage_say(&l->st, "nothing: %d", epoll_wait(set, &ev, 1, 30));
	if (l->kind == INHERITED_NEST)
		close(set); /* others may be made there */
	child = fork();
	if (child == 0) {
		if (l->kind == INHERITED_NEST)
			set = make_set(make_set(l->st.fd, EPOLLIN), EPOLLIN);
		_exit(epoll_wait(set, &ev, 1, LATE_MS) == 1 ? 0 : 9);
	}
	stage_nap(30000);
	life_ask(l, LIFE_SENDS, NEWS);
	life_wait(l, child);
	life_answer(l);
	stage_recv(&l->st, NEWS);
	if (l->kind == INHERITED)
		close(set);
}

/* ---- news, and no room ---- */

static void shot_full(struct life *l)
{
	struct epoll_event ev = { .events = EPOLLIN | EPOLLOUT | EPOLLONESHOT };
	int set = make_set(l->st.fd, ev.events);
	uint64_t from = l->st.out.at;

	while (write_some(&l->st) > 0)
		;
	life_ask(l, LIFE_SENDS, NEWS);
	life_answer(l);
	for (int i = 0; i < ROUNDS; i++) {
		epoll_ctl(set, EPOLL_CTL_MOD, l->st.fd, &ev);
		if (epoll_wait(set, &ev, 1, LATE_MS) != 1 || !(ev.events & EPOLLIN))
			stage_bad(&l->st, "not told of the news");
		if ((ev.events & EPOLLOUT) && write_some(&l->st) <= 0)
			stage_bad(&l->st, "told of room, and there is none");
		ev.events = EPOLLIN | EPOLLOUT | EPOLLONESHOT;
	}
	stage_recv(&l->st, NEWS);
	life_ask(l, LIFE_READS, l->st.out.at - from);
	life_answer(l);
	close(set);
}

/* ---- the lane ends ---- */

#define MUCH 150000 /* more than half a ring, and less than a connection holds */

static void left(struct life *l)
{
	bool shot = l->kind == LEFT_SHOT;
	uint64_t from = l->st.out.at;
	struct epoll_event ev = { 0 };
	uint32_t told = 0;
	int set;

	while (l->st.out.at - from < MUCH && write_some(&l->st) > 0)
		;
	set = make_set(l->st.fd, shot ? EPOLLOUT | EPOLLONESHOT : EPOLLIN | EPOLLOUT | EPOLLET);
	if (!shot) {
		life_ask(l, LIFE_SENDS, NEWS);
		life_answer(l);
	}
	if (epoll_wait(set, &ev, 1, shot ? 0 : LATE_MS) == 1)
		told = ev.events;
	if (!shot)
		stage_recv(&l->st, NEWS);
	life_ask(l, LIFE_NESTS, 0); /* no lane can do that */
	life_answer(l);
	write_some(&l->st); /* nor what is sent from now on */
	life_ask(l, LIFE_READS, l->st.out.at - from);
	while (!(told & EPOLLOUT) && epoll_wait(set, &ev, 1, LATE_MS) == 1)
		told |= ev.events;
	stage_say(&l->st, "told of room: %d", !!(told & EPOLLOUT));
	life_answer(l);
	close(set);
}

static void left_empty(struct life *l)
{
	struct pollfd p = { .fd = l->st.fd, .events = POLLOUT };
	struct epoll_event ev;
	struct timeval none = { 0 };
	fd_set out;
	int set;

	for (int how = 0; how < 3; how++) {
		int n;

		if (how > 0) {
			close(l->st.fd);
			life_end(l);
			life_begin(l);
			p.fd = l->st.fd;
		}
		life_ask(l, LIFE_NESTS, 0);
		life_answer(l);
		set = make_set(l->st.fd, EPOLLOUT);
		FD_ZERO(&out);
		FD_SET(l->st.fd, &out);
		n = how == 0   ? poll(&p, 1, 0)
		    : how == 1 ? select(l->st.fd + 1, NULL, &out, NULL, &none)
			       : epoll_wait(set, &ev, 1, 0);
		stage_say(&l->st, "asked in way %d: %d", how, n);
		close(set);
	}
}

static void left_asleep(struct life *l)
{
	uint32_t edge = l->kind == LEFT_ASLEEP_EDGE ? (uint32_t)EPOLLET : 0;
	struct writer out = { .l = l, .level = !edge };
	uint64_t from = l->st.out.at, n;
	int inner, outer;
	pthread_t writer;

	fill(&l->st);
	n = l->st.out.at - from;
	out.set = make_set(l->st.fd, EPOLLOUT | edge);
	pthread_create(&writer, NULL, wait_for_room, &out);
	stage_nap(30000);
	inner = make_set(l->st.fd, EPOLLIN);
	outer = make_set(inner, EPOLLIN);
	stage_nap(30000);
	life_ask(l, LIFE_READS, n);
	pthread_join(writer, NULL);
	life_answer(l);
	stage_say(&l->st, "writer %s", out.wrote ? "wrote" : "asleep");
	life_ask(l, LIFE_READS, l->st.out.at - from - n);
	life_answer(l);
	close(inner);
	close(outer);
	close(out.set);
}

/* ---- the lane begins ---- */

static void born_full(struct life *l)
{
	struct epoll_event ev = { 0 };
	uint64_t from;
	int set;

	life_connect(l);
	set = make_set(l->st.fd, EPOLLOUT | EPOLLET);
	stage_say(&l->st, "at first: %d", epoll_wait(set, &ev, 1, LATE_MS));
	life_warm(l);
	from = l->st.out.at;
	while (write_some(&l->st) > 0)
		;
	life_ask(l, LIFE_READS, l->st.out.at - from);
	life_answer(l);
	stage_say(&l->st, "told of room: %d", epoll_wait(set, &ev, 1, LATE_MS));
	close(set);
}

static void play(struct life *l)
{
	static void (*const with_partner[KINDS])(struct life *) = {
		[TWO_SETS] = two_sets,       [TWO_SETS_EDGE] = two_sets,
		[INHERITED] = inherited,     [INHERITED_NEST] = inherited,
		[SHOT_FULL] = shot_full,     [LEFT_EDGE] = left,
		[LEFT_SHOT] = left,          [LEFT_EMPTY] = left_empty,
		[LEFT_ASLEEP] = left_asleep, [LEFT_ASLEEP_EDGE] = left_asleep,
		[BORN_FULL] = born_full,
	};

	if (l->asleep || l->pending)
		return;
	if (with_partner[l->kind]) {
		if (l->kind != BORN_FULL)
			life_begin(l);
		with_partner[l->kind](l);
		life_go_on(l);
		close(l->st.fd);
		life_end(l);
	} else if (l->kind <= CROWD_EDGE) {
		crowd(l);
	} else if (l->kind == BEHIND) {
		behind(l);
	} else {
		killed(l);
	}
}

int main(void)
{
	return life_main(play, KINDS, NULL);
}
