/* SPDX-License-Identifier: MIT */
/*
 * What a library in somebody else's process must not do. Both processes report, after enough traffic
 * for a lane: threads, signal dispositions, descriptors with low numbers, allocations in data calls,
 * errno after calls that succeed, how many files can be opened, and whether data calls may be made
 * where the C library's may: on a small stack, in a signal handler.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "processes.h"
#include "stage.h"

#define LOW       200
#define CALLS     100000
#define FEW_FILES 64
#define RECORD    64
#define RECORDS   20000
#define INSIDE    200

/* ---- allocations, counted in this process whoever makes them ---- */

static unsigned long allocations;

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t),
	*__libc_memalign(size_t, size_t);

void *malloc(size_t n)
{
	__atomic_fetch_add(&allocations, 1, __ATOMIC_RELAXED);
	return __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
	__atomic_fetch_add(&allocations, 1, __ATOMIC_RELAXED);
	return __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
	__atomic_fetch_add(&allocations, 1, __ATOMIC_RELAXED);
	return __libc_realloc(p, n);
}

void *aligned_alloc(size_t alignment, size_t n)
{
	__atomic_fetch_add(&allocations, 1, __ATOMIC_RELAXED);
	return __libc_memalign(alignment, n);
}

/* ---- data calls of all kinds: both sides ask and answer ---- */

static bool turn_out(struct stage *s, int kind, uint8_t *data, size_t n)
{
	struct iovec iov[2] = { { data, n / 2 }, { data + n / 2, n - n / 2 } };
	struct msghdr msg = { .msg_iov = iov, .msg_iovlen = 2 };

	flow_fill(&s->out, data, n);
	s->out.at += n;
	errno = 77;
	switch (kind % 4) {
	case 0: return send(s->fd, data, n, 0) == (ssize_t)n;
	case 1: return write(s->fd, data, n) == (ssize_t)n;
	case 2: return writev(s->fd, iov, 2) == (ssize_t)n;
	default: return sendmsg(s->fd, &msg, 0) == (ssize_t)n;
	}
}

static bool turn_in(struct stage *s, int kind, uint8_t *data, size_t n, int set)
{
	struct iovec iov[2] = { { data, n / 2 }, { data + n / 2, n - n / 2 } };
	struct msghdr msg = { .msg_iov = iov, .msg_iovlen = 2 };
	struct pollfd pfd = { .fd = s->fd, .events = POLLIN };
	struct epoll_event ev;
	ssize_t got;

	errno = 77;
	if (kind % 3 == 1 && poll(&pfd, 1, -1) != 1)
		return false;
	if (kind % 3 == 2 && epoll_wait(set, &ev, 1, -1) != 1)
		return false;
	if (kind % 4 == 0)
		got = recv(s->fd, data, n, MSG_WAITALL);
	else if (kind % 4 == 1)
		got = read(s->fd, data, n);
	else if (kind % 4 == 2)
		got = readv(s->fd, iov, 2);
	else
		got = recvmsg(s->fd, &msg, MSG_WAITALL);
	if (got > 0)
		stage_took(s, data, (size_t)got);
	/* A piece of it is legal; the rest is not what is looked at here. */
	return got > 0 && ((size_t)got == n || stage_recv(s, n - (size_t)got));
}

static void count_allocations(struct stage *s)
{
	struct epoll_event ev = { .events = EPOLLIN };
	int set = epoll_create1(EPOLL_CLOEXEC), changed = 0;
	unsigned long before;
	uint8_t data[1000];
	bool good = true;

	epoll_ctl(set, EPOLL_CTL_ADD, s->fd, &ev);
	stage_warm(s, 100);
	before = allocations;
	for (int i = 0; i < CALLS / 2 && good; i++) {
		if (s->side != i % 2)
			good = turn_out(s, i / 2, data, sizeof(data));
		else
			good = turn_in(s, i / 2, data, sizeof(data), set);
		changed += errno != 77;
	}
	stage_say(s, "%s, allocations %lu, errno changed %d times", good ? "good" : "failed",
		  allocations - before, changed);
	close(set);
}

/* ---- the process ---- */

static void list_low_descriptors(struct stage *s)
{
	char line[1000] = "", path[64], target[100];
	size_t at = 0;
	ssize_t n;

	for (int fd = 0; fd < LOW; fd++) {
		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		n = readlink(path, target, sizeof(target) - 1);
		if (n <= 0)
			continue;
		target[n] = 0;
		target[strcspn(target, ":[")] = 0;
		at += (size_t)snprintf(line + at, sizeof(line) - at, " %d=%s", fd, target);
	}
	stage_say(s, "descriptors below %d:%s", LOW, line);
}

static void describe(struct stage *s)
{
	stage_say(s, "threads %s", processes_status(getpid(), "Threads"));
	stage_say(s, "caught %s", processes_status(getpid(), "SigCgt"));
	stage_say(s, "ignored %s", processes_status(getpid(), "SigIgn"));
	stage_say(s, "blocked %s", processes_status(getpid(), "SigBlk"));
	list_low_descriptors(s);
}

/* With few descriptors allowed, the program gets all of them. */
static void open_all(struct stage *s)
{
	struct rlimit few = { .rlim_cur = FEW_FILES }, all;
	int n = 0, fd[FEW_FILES];

	getrlimit(RLIMIT_NOFILE, &all);
	few.rlim_max = all.rlim_max;
	setrlimit(RLIMIT_NOFILE, &few);
	while ((fd[n] = dup(0)) >= 0)
		n++;
	stage_say(s, "%d more files with a limit of %d, then %s", n, FEW_FILES, stage_errno(errno));
	stage_warm(s, 20);
	setrlimit(RLIMIT_NOFILE, &all);
	while (n)
		close(fd[--n]);
}

/* ---- where data calls may be made ---- */

static void *on_small_stack(void *arg)
{
	stage_warm(arg, 100);
	return NULL;
}

static void use_small_stack(struct stage *s)
{
	pthread_attr_t attr;
	pthread_t thread;

	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, (size_t)PTHREAD_STACK_MIN);
	if (pthread_create(&thread, &attr, on_small_stack, s) || pthread_join(thread, NULL))
		stage_bad(s, "no thread");
	stage_say(s, "small stack: at %llu", (unsigned long long)s->in.at);
}

static int handler_fd;
static volatile sig_atomic_t from_handler;

/* Between the calls of the main program or inside them. */
static void send_in_handler(int signal)
{
	uint8_t record[RECORD];
	int err = errno;

	(void)signal;
	memset(record, 5, sizeof(record));
	if (send(handler_fd, record, RECORD, MSG_DONTWAIT) == RECORD)
		from_handler++;
	errno = err;
}

static void use_in_handler(struct stage *s)
{
	struct itimerval fast = { { 0, 300 }, { 0, 300 } }, never = { 0 };
	struct sigaction sa = { .sa_handler = send_in_handler, .sa_flags = SA_RESTART };
	uint8_t data[RECORD * 16];
	uint64_t sum = 0, count = 0, sent = 0, inside;
	ssize_t n;

	if (s->side == 0) {
		handler_fd = s->fd;
		sigaction(SIGALRM, &sa, NULL);
		setitimer(ITIMER_REAL, &fast, NULL);
		memset(data, 3, sizeof(data));
		/* As many as it takes until the handler has run often. */
		for (; from_handler < INSIDE || sent < RECORDS; sent++)
			if (send(s->fd, data, RECORD, 0) != RECORD)
				stage_die(s, "send: %s", stage_errno(errno));
		setitimer(ITIMER_REAL, &never, NULL);
		shutdown(s->fd, SHUT_WR);
		stage_meet(s, sent);
		stage_meet(s, (uint64_t)from_handler);
		return;
	}
	while ((n = recv(s->fd, data, sizeof(data), 0)) > 0) {
		count += (uint64_t)n;
		for (ssize_t i = 0; i < n; i++)
			sum += data[i];
	}
	sent = stage_meet(s, 0);
	inside = stage_meet(s, 0);
	stage_say(s, "handler: end %zd, count %s, sum %s", n,
		  count == RECORD * (sent + inside) ? "good" : "wrong",
		  sum == RECORD * (3 * sent + 5 * inside) ? "good" : "wrong");
}

/* The default of SIGPIPE is left alone: it ends the process. */
static void die_of_pipe(struct stage *s)
{
	int status = 0;
	pid_t child = s->side ? 0 : fork();

	if (s->side)
		return;
	if (child == 0) {
		signal(SIGPIPE, SIG_DFL);
		for (int i = 0; i < 10; i++)
			if (write(s->fd, "x", 1) < 0)
				break;
		_exit(0);
	}
	waitpid(child, &status, 0);
	stage_say(s, "a write after the end: signal %d", WTERMSIG(status));
}

int main(void)
{
	int listener = stage_listen(AF_INET, 1);
	struct stage s;

	stage_split(&s);
	stage_connect(&s, listener, 1);
	close(listener);
	stage_warm(&s, 30);
	describe(&s);
	count_allocations(&s);
	describe(&s);
	use_small_stack(&s);
	open_all(&s);
	use_in_handler(&s);
	die_of_pipe(&s);
	stage_say(&s, "done");
	return s.side == 0 && stage_join(&s) ? 1 : stage_bads() != 0;
}
