/* SPDX-License-Identifier: MIT */
/* Moves with signals, options, other descriptors, other processes and other calls. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "equiv_moves.h"

#define WAKE_MS     20000
#define TICK_US     15000
#define CHILD_MOVES 6

static uint8_t buffer[65536];
static volatile sig_atomic_t alarms, pipes, ios;

static void on_signal(int signal)
{
	if (signal == SIGALRM)
		alarms++;
	else if (signal == SIGPIPE)
		pipes++;
	else
		ios++;
}

int moves_pipes(void)
{
	int n = pipes;

	pipes = 0;
	return n;
}

static void handle(int signal, int flags)
{
	struct sigaction sa = { .sa_handler = on_signal, .sa_flags = flags };

	sigaction(signal, &sa, NULL);
}

__attribute__((constructor)) static void handle_pipe(void)
{
	handle(SIGPIPE, SA_RESTART);
}

/* A signal every TICK_US: one that comes before the call does no harm. */
static void ticks(bool on, int flags)
{
	struct itimerval every = { { 0, TICK_US }, { 0, TICK_US } }, never = { 0 };

	if (on)
		handle(SIGALRM, flags);
	setitimer(ITIMER_REAL, on ? &every : &never, NULL);
}

/* ---- signals ---- */

enum interrupted { IN_RECV, IN_RECV_AGAIN, IN_TIMED_RECV, IN_WAIT, IN_PART, INTERRUPTED };

/* The call that the signals hit; how many octets it has read. */
static size_t be_interrupted(struct party *p, enum interrupted kind, enum equiv_wait how,
			     bool restart, size_t last)
{
	bool all = kind == IN_PART || kind == IN_RECV_AGAIN;
	ssize_t n;

	if (kind == IN_TIMED_RECV)
		moves_timeout(p, SO_RCVTIMEO, WAKE_MS);
	ticks(true, restart ? SA_RESTART : 0);
	if (kind == IN_WAIT)
		n = waits_for(p, how, POLLIN, WAKE_MS);
	else
		n = recv(p->st.fd, buffer, kind == IN_PART ? 300 : last, all ? MSG_WAITALL : 0);
	equiv_fact(p, "%u%s%s %s", kind, restart ? " restart " : " ",
		   kind == IN_WAIT ? waits_name(how) : "recv", equiv_result(n, errno));
	ticks(false, 0);
	moves_timeout(p, SO_RCVTIMEO, 0);
	if (n <= 0)
		return 0;
	stage_took(&p->st, buffer, (size_t)n);
	return (size_t)n;
}

void move_signal(struct party *p, bool actor)
{
	enum interrupted kind = (enum interrupted)random_below(&p->plan, INTERRUPTED);
	bool restart = random_below(&p->plan, 2);
	size_t part = kind == IN_PART ? 100 : 0, last = 50, got;
	/* It is reported: drawn before the calls whose number depends on the moment. */
	enum equiv_wait how = waits_any(p, &p->own);

	if (kind == IN_RECV || kind == IN_RECV_AGAIN)
		restart = kind == IN_RECV_AGAIN;
	moves_drain(p, actor, true);
	if (!actor) {
		calls_put(p, part);
		if (kind == IN_RECV_AGAIN)
			stage_nap(4 * TICK_US);
		else
			stage_meet(&p->st, 0);
		/* In one piece: a signal between two would show. */
		stage_send(&p->st, last);
	} else {
		/* Only a nap keeps the last octets back there: on a busy machine they may have come. */
		if (kind != IN_RECV_AGAIN)
			stage_settle(&p->st, part);
		got = be_interrupted(p, kind, how, restart, last);
		if (kind != IN_RECV_AGAIN)
			stage_meet(&p->st, 0);
		calls_take(p, part + last - got);
	}
	equiv_sent(p, !actor, part + last);
	equiv_read(p, actor, part + last);
}

/* A signal that waits is let in by the call's mask only. */
void move_masked(struct party *p, bool actor)
{
	static const enum equiv_wait masked[] = { EQUIV_PPOLL, EQUIV_PSELECT, EQUIV_PWAIT };
	enum equiv_wait how = masked[random_below(&p->plan, 3)];
	sigset_t set;
	int bits, before, err;

	moves_drain(p, actor, true);
	if (!actor)
		return;
	handle(SIGALRM, SA_RESTART);
	sigemptyset(&set);
	sigaddset(&set, SIGALRM);
	sigprocmask(SIG_BLOCK, &set, NULL);
	before = alarms;
	kill(getpid(), SIGALRM);
	bits = waits_for(p, how, POLLIN, WAKE_MS);
	err = errno;
	equiv_fact(p, "%s %s, handled %d", waits_name(how), equiv_result(bits, err),
		   alarms - before);
	sigprocmask(SIG_UNBLOCK, &set, NULL);
}

/* ---- descriptors and processes ---- */

void move_dup(struct party *p, bool actor)
{
	uint32_t kind = random_below(&p->plan, 4);
	int fd = p->st.fd, other;

	if (!actor)
		return;
	waits_forget(p);
	other = kind == 0   ? dup(fd)
		: kind == 1 ? fcntl(fd, F_DUPFD_CLOEXEC, 50)
			    : dup2(fd, fd == 60 ? 61 : 60);
	if (other < 0)
		stage_die(&p->st, "dup: %s", strerror(errno));
	if (close(fd))
		equiv_bad(p, "close: %s", stage_errno(errno));
	p->st.fd = other;
	if (kind == 3) {
		p->st.fd = dup3(other, fd, O_CLOEXEC);
		close(other);
	}
	equiv_fact(p, "%u", kind);
}

/* For some moves a child plays this side; the parent learns where the streams are and goes on. */
void move_fork(struct party *p, bool actor)
{
	int moves = 1 + (int)random_below(&p->plan, CHILD_MOVES), pipe_fd[2], status;
	bool was_child = p->child;
	pid_t child;

	p->child = true;
	if (!actor) {
		equiv_play(p, moves);
		p->child = was_child;
		return;
	}
	waits_forget(p);
	if (pipe(pipe_fd) || (child = fork()) < 0)
		stage_die(&p->st, "fork: %s", strerror(errno));
	if (child == 0) {
		close(pipe_fd[0]);
		p->st.name = (char)(p->st.name - 'A' + 'a');
		equiv_play(p, moves);
		waits_forget(p);
		p->st.name = (char)(p->st.name - 'a' + 'A');
		if (write(pipe_fd[1], p, sizeof(*p)) != sizeof(*p))
			_exit(2);
		_exit(0);
	}
	close(pipe_fd[1]);
	if (read(pipe_fd[0], p, sizeof(*p)) != sizeof(*p))
		stage_die(&p->st, "the child is gone");
	close(pipe_fd[0]);
	while (waitpid(child, &status, 0) < 0 && errno == EINTR)
		;
	p->child = was_child;
	p->move = "fork";
	equiv_fact(p, "%d moves, status %d", moves, status);
}

/* ---- options, and what is refused ---- */

static int option(struct party *p, int level, int name, int set)
{
	int value = set;
	socklen_t len = sizeof(value);

	if (set >= 0 && setsockopt(p->st.fd, level, name, &value, sizeof(value)))
		return -errno;
	value = 0;
	return getsockopt(p->st.fd, level, name, &value, &len) ? -errno : value;
}

void move_options(struct party *p, bool actor)
{
	static const struct {
		int level, name, limit;
	} known[] = {
		{ IPPROTO_TCP, TCP_NODELAY, 2 },  { IPPROTO_TCP, TCP_NODELAY, 2 },
		{ SOL_SOCKET, SO_KEEPALIVE, 2 },  { SOL_SOCKET, SO_SNDBUF, 300000 },
		{ IPPROTO_TCP, TCP_KEEPCNT, 20 }, { SOL_SOCKET, SO_RCVBUF, 300000 },
		{ SOL_SOCKET, SO_PRIORITY, 6 },   { IPPROTO_TCP, TCP_USER_TIMEOUT, 9000 },
		{ SOL_SOCKET, SO_TYPE, 0 },       { SOL_SOCKET, SO_PROTOCOL, 0 },
		{ SOL_SOCKET, SO_ERROR, 0 },      { SOL_SOCKET, SO_ACCEPTCONN, 0 },
		{ SOL_SOCKET, SO_REUSEADDR, 2 },  { SOL_SOCKET, SO_DOMAIN, 0 },
	};
	uint32_t which = random_below(&p->plan, sizeof(known) / sizeof(*known));
	int value = -1;

	if (known[which].limit)
		value = (int)random_below(&p->plan, (uint32_t)known[which].limit);
	/* Buffers stay larger than what a move leaves unread. */
	if (known[which].limit > 100000)
		value |= 1 << 18;
	if (actor)
		equiv_fact(p, "%d %d set to %d: %d", known[which].level, known[which].name, value,
			   option(p, known[which].level, known[which].name, value));
}

void move_refused(struct party *p, bool actor)
{
	struct iovec iov[2] = { { buffer, 10 }, { buffer, 10 } };
	struct stat st;
	struct msghdr msg = { .msg_iov = iov, .msg_iovlen = 2000 };
	/* The compiler must not see what is wrong. */
	volatile int negative = -1, many = 2000;
	int fd = p->st.fd;
	ssize_t n;

	if (!actor)
		return;
	n = readv(fd, iov, negative);
	equiv_fact(p, "readv of -1: %s", equiv_result(n, errno));
	n = writev(fd, iov, many);
	equiv_fact(p, "writev of 2000: %s", equiv_result(n, errno));
	n = sendmsg(fd, &msg, 0);
	equiv_fact(p, "sendmsg of 2000: %s", equiv_result(n, errno));
	n = pread(fd, buffer, 10, 0);
	equiv_fact(p, "pread: %s", equiv_result(n, errno));
	n = lseek(fd, 0, SEEK_CUR);
	equiv_fact(p, "lseek: %s", equiv_result(n, errno));
	n = recv(fd, buffer, 10, MSG_ERRQUEUE | MSG_DONTWAIT);
	equiv_fact(p, "error queue: %s", equiv_result(n, errno));
	n = recv(fd, buffer, 10, MSG_OOB);
	equiv_fact(p, "urgent: %s", equiv_result(n, errno));
	n = listen(fd, 1);
	equiv_fact(p, "listen: %s", equiv_result(n, errno));
	n = fstat(fd, &st);
	equiv_fact(p, "fstat: %zd %d", n, S_ISSOCK(st.st_mode));
}

/* ---- calls that move octets inside the kernel ---- */

void move_sendfile(struct party *p, bool actor)
{
	size_t n = random_size(&p->plan, 1, sizeof(buffer));
	off_t at = 0;
	ssize_t sent;
	int file;

	if (actor) {
		file = memfd_create("octets", MFD_CLOEXEC);
		flow_fill(&p->st.out, buffer, n);
		if (write(file, buffer, n) != (ssize_t)n)
			stage_die(&p->st, "memfd");
		while ((size_t)at < n) {
			sent = sendfile(p->st.fd, file, &at, n - (size_t)at);
			if (sent <= 0)
				stage_die(&p->st, "sendfile: %s", stage_errno(errno));
		}
		close(file);
		p->st.out.at += n;
		equiv_fact(p, "%zu", n);
	} else {
		calls_take(p, equiv_unread(p, true) + n);
	}
	equiv_sent(p, actor, n);
	equiv_read(p, !actor, equiv_unread(p, !actor));
}

static void splice_out(struct party *p, size_t n)
{
	int ends[2];
	ssize_t moved;
	size_t left = n;

	if (pipe(ends))
		stage_die(&p->st, "pipe");
	flow_fill(&p->st.out, buffer, n);
	if (write(ends[1], buffer, n) != (ssize_t)n)
		stage_die(&p->st, "pipe");
	for (; left; left -= (size_t)moved) {
		moved = splice(ends[0], NULL, p->st.fd, NULL, left, 0);
		if (moved <= 0)
			stage_die(&p->st, "splice to the socket: %s", stage_errno(errno));
	}
	p->st.out.at += n;
	close(ends[0]);
	close(ends[1]);
}

static void splice_in(struct party *p, size_t n)
{
	int ends[2];
	ssize_t moved;

	if (pipe(ends))
		stage_die(&p->st, "pipe");
	for (; n; n -= (size_t)moved) {
		moved = splice(p->st.fd, NULL, ends[1], NULL, n, 0);
		if (moved <= 0 || read(ends[0], buffer, (size_t)moved) != moved)
			stage_die(&p->st, "splice from the socket: %zd %s", moved,
				  stage_errno(errno));
		stage_took(&p->st, buffer, (size_t)moved);
	}
	close(ends[0]);
	close(ends[1]);
}

void move_splice(struct party *p, bool actor)
{
	size_t n = random_size(&p->plan, 1, 30000);
	bool in = random_below(&p->plan, 2), out = !in || random_below(&p->plan, 2);

	if (actor) {
		if (out)
			splice_out(p, n);
		else
			calls_put(p, n);
		equiv_fact(p, "%zu", n);
	} else if (in) {
		splice_in(p, equiv_unread(p, true) + n);
	} else {
		calls_take(p, equiv_unread(p, true) + n);
	}
	equiv_sent(p, actor, n);
	equiv_read(p, !actor, equiv_unread(p, !actor));
}

/* An urgent octet between others. */
void move_urgent(struct party *p, bool actor)
{
	size_t n = 1 + random_below(&p->plan, 3000);
	struct pollfd pfd = { .fd = p->st.fd, .events = POLLPRI };
	int mark = -1, bits;
	char octet = 0;
	ssize_t got;

	moves_drain(p, actor, false);
	if (actor) {
		calls_put(p, n);
		if (send(p->st.fd, "!", 1, MSG_OOB) != 1)
			equiv_bad(p, "send: %s", stage_errno(errno));
		calls_put(p, n);
	} else {
		bits = poll(&pfd, 1, WAKE_MS) > 0 ? pfd.revents : 0;
		got = recv(p->st.fd, &octet, 1, MSG_OOB);
		equiv_fact(p, "%s, recv %s '%c'", waits_bits(bits), equiv_result(got, errno),
			   octet);
		/* A read stops at the mark. */
		while (mark != 1 && p->st.in.at - p->read[!p->st.side] < n) {
			got = recv(p->st.fd, buffer, n, 0);
			if (got <= 0)
				break;
			stage_took(&p->st, buffer, (size_t)got);
			ioctl(p->st.fd, SIOCATMARK, &mark);
		}
		equiv_fact(p, "mark %d after %d", mark,
			   (int)(p->st.in.at - p->read[!p->st.side]) - (int)n);
		calls_take(p, 2 * n - (size_t)(p->st.in.at - p->read[!p->st.side]));
	}
	equiv_sent(p, actor, 2 * n);
	equiv_read(p, !actor, 2 * n);
}

/* SIGIO tells of what has arrived. */
void move_async(struct party *p, bool actor)
{
	uint64_t end = stage_now() + 5000000;
	int flags;

	moves_drain(p, actor, true);
	if (actor) {
		handle(SIGIO, SA_RESTART);
		fcntl(p->st.fd, F_SETOWN, getpid());
		flags = fcntl(p->st.fd, F_GETFL);
		fcntl(p->st.fd, F_SETFL, flags | O_ASYNC);
		ios = 0;
		stage_meet(&p->st, 0);
		while (!ios && stage_now() < end)
			stage_nap(1000);
		equiv_fact(p, "%s", ios ? "told" : "not told");
		fcntl(p->st.fd, F_SETFL, flags);
		calls_take(p, 300);
		stage_meet(&p->st, 0);
	} else {
		stage_meet(&p->st, 0);
		calls_put(p, 300);
		stage_meet(&p->st, 0);
	}
	equiv_sent(p, !actor, 300);
	equiv_read(p, actor, 300);
}
