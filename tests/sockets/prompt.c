/* SPDX-License-Identifier: MIT */
/*
 *   prompt [CASE]
 *
 * Calls that must not wait do not wait, whatever an honest peer does: it is stopped, or slow, or has
 * handed the connection, with octets unread, to a program that does not read, or has ended. One
 * process makes calls of all kinds with O_NONBLOCK, MSG_DONTWAIT or a time-out of 0 and looks at the
 * clock; it has a second connection to an echo, and the calls on that are as prompt.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "stage.h"
#include "watch.h"

#define LIMIT_S  40
#define TURNS    12
#define TURN     50
#define MUCH     (8 << 20) /* octets that the victim tries to send */
#define CALLS_US 700000    /* how long it makes calls */
#define LATE_US  100000    /* a call that takes longer is late */
#define VERY_US  1000000   /* no machine is so busy */
#define MANY     3         /* so many of them in a case are no accident */
#define TRIES    3

extern char **environ;

enum how { STOPPED, SLOW, SILENT, HANDS_OVER, SPAWNS, PASSES, CLOSES, DIES, HOWS };
enum room { NARROW, WIDE, ROOMS }; /* SO_SNDBUF of the victim */

static const char *const names[HOWS] = { "stopped", "slow",   "silent", "exec",
					 "spawn",   "rights", "closes", "dies" };

struct shared {
	atomic_bool ready, finish; /* the peer has done its worst; the victim is through */
	atomic_int late, very_late;
	atomic_ulong worst, calls;
	char worst_call[32];
};

static struct shared *shared;
static enum how how;
static enum room room;
static int listener;

/* ---- the clock ---- */

static void count(const char *what, uint64_t start)
{
	uint64_t took = stage_now() - start;

	atomic_fetch_add(&shared->calls, 1);
	if (took > LATE_US)
		atomic_fetch_add(&shared->late, 1);
	if (took > VERY_US)
		atomic_fetch_add(&shared->very_late, 1);
	if (took > atomic_load(&shared->worst)) {
		atomic_store(&shared->worst, took);
		snprintf(shared->worst_call, sizeof(shared->worst_call), "%s", what);
	}
}

#define TIMED(what, fd, call)                  \
	do {                                   \
		uint64_t start_ = stage_now(); \
		watch_begin(what, fd);         \
		call;                          \
		watch_end();                   \
		count(what, start_);           \
	} while (0)

/* ---- the peer ---- */

static void turns(int fd, bool first)
{
	uint8_t data[TURN] = { 0 };

	for (int i = 0; i < 2 * TURNS; i++) {
		if ((i % 2 == 0) == first) {
			if (send(fd, data, sizeof(data), MSG_NOSIGNAL) != sizeof(data))
				watch_die("send: %s", stage_errno(errno));
		} else if (recv(fd, data, sizeof(data), MSG_WAITALL) != sizeof(data)) {
			watch_die("recv: %s", stage_errno(errno));
		}
	}
}

static void read_slowly(int fd)
{
	uint8_t data[1000];

	while (!atomic_load(&shared->finish)) {
		if (recv(fd, data, sizeof(data), MSG_DONTWAIT) == 0)
			break;
		stage_nap(50000);
	}
}

/* The program holds the connection, reads nothing, and knows nothing of any library. */
static char sleeper[] = "sleep", seconds[] = "3";
static char *const sleeper_argv[] = { sleeper, seconds, NULL };

static void hand_over(bool exec)
{
	pid_t pid;

	unsetenv("LD_PRELOAD");
	atomic_store(&shared->ready, true);
	if (exec) {
		execvp(sleeper, sleeper_argv);
		watch_die("exec: %s", stage_errno(errno));
	}
	if (posix_spawnp(&pid, sleeper, NULL, NULL, sleeper_argv, environ))
		watch_die("no program");
	waitpid(pid, NULL, 0);
}

static void pass(int fd)
{
	union {
		char space[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control = { 0 };
	struct iovec iov = { control.space, 1 };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control };
	struct cmsghdr *head;
	int pair[2];

	msg.msg_controllen = sizeof(control);
	head = CMSG_FIRSTHDR(&msg);
	head->cmsg_level = SOL_SOCKET;
	head->cmsg_type = SCM_RIGHTS;
	head->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(head), &fd, sizeof(int));
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) || sendmsg(pair[0], &msg, 0) != 1)
		watch_die("SCM_RIGHTS: %s", stage_errno(errno));
	atomic_store(&shared->ready, true);
	while (!atomic_load(&shared->finish))
		stage_nap(1000);
}

static int peer(void)
{
	int fd = stage_dial(listener);
	uint8_t data[4096];

	watch_sit("peer");
	turns(fd, true);
	/* The victim has filled what there is; a little of it is read. */
	stage_nap(100000);
	if (recv(fd, data, sizeof(data), MSG_DONTWAIT) < 0 && errno != EAGAIN)
		watch_die("recv: %s", stage_errno(errno));
	watch_rise();
	switch (how) {
	case STOPPED:
		atomic_store(&shared->ready, true);
		raise(SIGSTOP);
		break;
	case HANDS_OVER: hand_over(true); break;
	case SPAWNS: hand_over(false); break;
	case PASSES: pass(fd); break;
	case CLOSES: close(fd); break;
	case DIES:
		atomic_store(&shared->ready, true);
		kill(getpid(), SIGKILL);
		break;
	default: break;
	}
	atomic_store(&shared->ready, true);
	if (how == SLOW)
		read_slowly(fd);
	while (!atomic_load(&shared->finish))
		stage_nap(1000);
	return 0;
}

/* ---- the echo ---- */

static int echo(void)
{
	int fd = stage_dial(listener);
	uint8_t data[4096];
	ssize_t n;

	turns(fd, true);
	while ((n = recv(fd, data, sizeof(data), 0)) > 0)
		if (send(fd, data, (size_t)n, MSG_NOSIGNAL) != n)
			break;
	return 0;
}

/* ---- the victim ---- */

struct victim {
	int fd, echo, set;
	struct random r;
	bool broken;
	uint8_t data[200000];
};

static void send_some(struct victim *v)
{
	size_t n = random_size(&v->r, 1, sizeof(v->data));
	struct iovec iov[2] = { { v->data, n / 2 }, { v->data, n - n / 2 } };
	ssize_t sent = 0;

	switch (random_below(&v->r, 3)) {
	case 0:
		TIMED("send, MSG_DONTWAIT", v->fd,
		      sent = send(v->fd, v->data, n, MSG_DONTWAIT | MSG_NOSIGNAL));
		break;
	case 1: TIMED("write, O_NONBLOCK", v->fd, sent = write(v->fd, v->data, n)); break;
	default: TIMED("writev, O_NONBLOCK", v->fd, sent = writev(v->fd, iov, 2));
	}
	if (sent < 0 && errno != EAGAIN && errno != EPIPE && errno != ECONNRESET)
		watch_bad("send: %s", stage_errno(errno));
}

static void recv_some(struct victim *v)
{
	ssize_t n;

	if (random_below(&v->r, 2))
		TIMED("recv, MSG_DONTWAIT", v->fd,
		      n = recv(v->fd, v->data, sizeof(v->data), MSG_DONTWAIT));
	else
		TIMED("read, O_NONBLOCK", v->fd, n = read(v->fd, v->data, sizeof(v->data)));
	if (n < 0 && errno != EAGAIN && errno != ECONNRESET && errno != EPIPE)
		watch_bad("recv: %s", stage_errno(errno));
}

static void look(struct victim *v)
{
	struct pollfd p[2] = { { v->fd, POLLIN | POLLOUT, 0 }, { v->echo, POLLIN, 0 } };
	struct epoll_event ev[4];
	struct timeval now = { 0, 0 };
	fd_set in, out;
	int there;

	switch (random_below(&v->r, 4)) {
	case 0: TIMED("poll, 0", v->fd, poll(p, 2, 0)); break;
	case 1: TIMED("epoll_wait, 0", v->fd, epoll_wait(v->set, ev, 4, 0)); break;
	case 2:
		FD_ZERO(&in);
		FD_ZERO(&out);
		FD_SET(v->echo, &in);
		FD_SET(v->fd, &out);
		TIMED("select, 0", v->fd,
		      select((v->fd > v->echo ? v->fd : v->echo) + 1, &in, &out, NULL, &now));
		break;
	default: TIMED("FIONREAD", v->fd, ioctl(v->fd, FIONREAD, &there));
	}
}

/* The loop of a server with another client: sleeps in epoll_wait until that has answered. */
static void ask_echo(struct victim *v)
{
	struct epoll_event ev[4];
	uint64_t start = stage_now();
	bool answered = false;
	uint8_t data[64] = { 0 };
	ssize_t n;
	int k;

	TIMED("send to the echo", v->echo, send(v->echo, data, 1, MSG_DONTWAIT));
	watch_begin("epoll_wait for the echo", v->echo);
	while (!answered) {
		k = epoll_wait(v->set, ev, 4, 1000);
		for (int i = 0; i < k; i++)
			if (ev[i].data.fd == v->echo) {
				n = recv(v->echo, data, sizeof(data), MSG_DONTWAIT);
				answered |= n == 1;
			}
	}
	watch_end();
	count("an answer of the echo", start);
}

static void act(struct victim *v)
{
	switch (random_below(&v->r, 8)) {
	case 0:
	case 1: send_some(v); break;
	case 2: recv_some(v); break;
	case 3: ask_echo(v); break;
	default: look(v);
	}
}

static int take(void)
{
	int fd = accept(listener, NULL, NULL), small = 8192;

	if (fd < 0)
		watch_die("accept: %s", stage_errno(errno));
	if (room == NARROW)
		setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
	turns(fd, false);
	fcntl(fd, F_SETFL, O_NONBLOCK);
	return fd;
}

static void enter(int set, int fd, uint32_t events)
{
	struct epoll_event ev = { .events = events, .data.fd = fd };

	if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &ev))
		watch_die("epoll_ctl: %s", stage_errno(errno));
}

static pid_t helper(int (*run)(void))
{
	pid_t pid = fork();

	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		watch_process('P');
		exit(run());
	}
	return pid;
}

static int victim(void)
{
	static struct victim v;
	pid_t pid, other;
	uint64_t end;
	size_t filled = 0;
	ssize_t n;

	watch_sit("victim");
	signal(SIGPIPE, SIG_IGN);
	other = helper(echo);
	v.echo = take();
	pid = helper(peer);
	v.fd = take();
	v.r.state = (uint64_t)how * 2 + room;
	v.set = epoll_create1(EPOLL_CLOEXEC);
	enter(v.set, v.echo, EPOLLIN);
	/* Edges, so that a full connection, or its end, is not a busy loop. */
	enter(v.set, v.fd, EPOLLIN | EPOLLOUT | EPOLLET);
	while (filled < MUCH && (n = send(v.fd, v.data, 65536, MSG_DONTWAIT)) > 0)
		filled += (size_t)n;
	for (end = stage_now() + CALLS_US; stage_now() < end;)
		act(&v);
	if (random_below(&v.r, 2))
		TIMED("shutdown", v.fd, shutdown(v.fd, SHUT_RDWR));
	TIMED("close", v.fd, close(v.fd));
	close(v.echo);
	atomic_store(&shared->finish, true);
	/* Its child would be left behind. */
	if (how != SPAWNS)
		kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	waitpid(other, NULL, 0);
	watch_rise();
	return 0;
}

/* ---- all cases ---- */

static bool play_once(void)
{
	pid_t pid;

	memset(shared, 0, sizeof(*shared));
	listener = stage_listen(AF_INET, 8);
	pid = fork();
	if (pid < 0) {
		perror("fork");
		exit(2);
	}
	if (pid == 0) {
		watch_process('V');
		exit(victim());
	}
	close(listener);
	watch_over(&pid, "V", 1);
	return atomic_load(&shared->late) < MANY && !atomic_load(&shared->very_late);
}

static void play(void)
{
	/* A machine may be so busy once, or even twice. */
	for (int i = 0; i < TRIES; i++)
		if (play_once())
			return;
	watch_bad("%s, %s: %d of %lu calls took longer than %d ms, the longest %lu ms: %s",
		  names[how], room == NARROW ? "little room" : "much room",
		  atomic_load(&shared->late), atomic_load(&shared->calls), LATE_US / 1000,
		  atomic_load(&shared->worst) / 1000, shared->worst_call);
}

int main(int argc, char **argv)
{
	watch_open(LIMIT_S);
	shared = watch_share(sizeof(*shared));
	for (int h = 0; h < HOWS; h++)
		for (int r = 0; r < ROOMS; r++) {
			how = (enum how)h;
			room = (enum room)r;
			if (argc < 2 || strcmp(argv[1], names[h]) == 0)
				play();
		}
	return watch_verdict("%s", argv[0]);
}
