/* SPDX-License-Identifier: MIT */
/* The calls of sockets, descriptors and processes by their numbers, through syscall(), beside calls by their names. */
#include <aio.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "answers.h"

#define KERNEL_MASK ((size_t)8)
#define LATE        10 /* seconds: what is sent soon comes long before */

static int a, b; /* the ends of a connection */

static void begin(void)
{
	int ends[2];

	answer_warm_pair(ends);
	a = ends[0];
	b = ends[1];
}

/* ---- waits ---- */

static int set_of(int fd)
{
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = 77 };
	int set = epoll_create1(0);

	epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
	return set;
}

struct masks {
	const void *mask;
	size_t size;
};

/* One wait for b; *limit is left as the kernel leaves it. */
static long wait_by(int how, struct timespec *limit, const uint64_t *mask)
{
	struct pollfd p = { .fd = b, .events = POLLIN };
	struct masks masks = { mask, KERNEL_MASK };
	struct timeval tv = { limit->tv_sec, limit->tv_nsec / 1000 };
	int set = how >= 4 ? set_of(b) : -1, ms = (int)limit->tv_sec * 1000;
	struct epoll_event event;
	fd_set reads;
	long n;

	ms += (int)(limit->tv_nsec / 1000000);
	FD_ZERO(&reads);
	FD_SET(b, &reads);
	switch (how) {
	case 0: return syscall(SYS_poll, &p, 1, ms);
	case 1: return syscall(SYS_ppoll, &p, 1, limit, mask, KERNEL_MASK);
	case 2:
		n = syscall(SYS_select, b + 1, &reads, NULL, NULL, &tv);
		*limit = (struct timespec) { tv.tv_sec, tv.tv_usec * 1000 };
		return n;
	case 3: return syscall(SYS_pselect6, b + 1, &reads, NULL, NULL, limit, &masks);
	case 4: return syscall(SYS_epoll_wait, set, &event, 1, ms);
	case 5: return syscall(SYS_epoll_pwait, set, &event, 1, ms, mask, KERNEL_MASK);
	default: return syscall(SYS_epoll_pwait2, set, &event, 1, limit, mask, KERNEL_MASK);
	}
}

#define WAITS 7

static void waits(void)
{
	for (int how = 0; how < WAITS; how++) {
		struct timespec limit = { LATE, 0 };
		long n;

		begin();
		answer_soon(a, "hello");
		n = wait_by(how, &limit, NULL);
		answer("%d: %s, %s", how, answer_of(n), answer_read(b, 5));
		answer("%d: time %s", how, limit.tv_sec == LATE ? "as it was" : "that is left");
		limit = (struct timespec) { 0, 20000000 };
		n = wait_by(how, &limit, NULL);
		answer("%d: nothing, %s, time %ld", how, answer_of(n), limit.tv_nsec);
		close(a);
		close(b);
	}
}

static volatile sig_atomic_t handled;

static void on_signal(int signal)
{
	(void)signal;
	handled++;
}

/* A signal that waits is let in by the mask; none by a wait without. */
static void waits_with_masks(void)
{
	static const int masked[] = { 1, 3, 5, 6 };
	struct sigaction action = { .sa_handler = on_signal };
	uint64_t none = 0;
	sigset_t usr1;

	sigaction(SIGUSR1, &action, NULL);
	sigemptyset(&usr1);
	sigaddset(&usr1, SIGUSR1);
	sigprocmask(SIG_BLOCK, &usr1, NULL);
	begin();
	for (int i = 0; i < 4; i++) {
		struct timespec limit = { 0, 10000000 };
		long n;

		raise(SIGUSR1);
		n = wait_by(masked[i], &limit, NULL);
		answer("%d: %s, handled %d", masked[i], answer_of(n), (int)handled);
		limit.tv_sec = LATE;
		n = wait_by(masked[i], &limit, &none);
		answer("%d: %s, handled %d", masked[i], answer_of(n), (int)handled);
	}
}

/* ---- octets ---- */

static void sends(void)
{
	char file[] = "/tmp/answers-XXXXXX";
	struct iovec iov[2] = { { (void *)"m", 1 }, { (void *)"n", 1 } };
	struct mmsghdr v[2] = { { .msg_hdr = { .msg_iov = iov, .msg_iovlen = 1 } },
				{ .msg_hdr = { .msg_iov = iov + 1, .msg_iovlen = 1 } } };
	int fd = mkstemp(file), pipes[2];
	off_t at = 1;
	long n;

	unlink(file);
	begin();
	if (fd < 0 || write(fd, "file", 4) != 4 || pipe(pipes) || write(pipes[1], "p", 1) != 1)
		answer_broken("file");
	send(a, "A", 1, 0);
	n = syscall(SYS_sendmmsg, a, v, 2, 0);
	answer("sendmmsg %s, %u %u", answer_of(n), v[0].msg_len, v[1].msg_len);
	send(a, "B", 1, 0);
	answer("sendfile %s", answer_of(syscall(SYS_sendfile, a, fd, &at, (size_t)2)));
	answer("offset %ld", (long)at);
	send(a, "C", 1, 0);
	answer("pwritev2 %s", answer_of(syscall(SYS_pwritev2, a, iov, 2, -1L, -1L, 0)));
	send(a, "D", 1, 0);
	answer("sendmsg %s", answer_of(syscall(SYS_sendmsg, a, &v[1].msg_hdr, 0)));
	answer("sendto %s", answer_of(syscall(SYS_sendto, a, "t", 1L, 0, NULL, 0)));
	answer("writev %s", answer_of(syscall(SYS_writev, a, iov, 2)));
	answer("write %s", answer_of(syscall(SYS_write, a, "w", 1L)));
	send(a, "E", 1, 0);
	answer("splice %s", answer_of(syscall(SYS_splice, pipes[0], NULL, a, NULL, 1L, 0)));
	send(a, "F", 1, 0);
	answer("came %s", answer_read(b, 18));
}

static void takes(void)
{
	char octets[8] = "";
	struct iovec iov[2] = { { octets, 1 }, { octets + 1, 1 } };
	struct mmsghdr v = { .msg_hdr = { .msg_iov = iov, .msg_iovlen = 2 } };
	struct timespec limit = { LATE, 0 };
	int left = -1, pipes[2];

	begin();
	if (pipe(pipes))
		answer_broken("pipe");
	send(a, "0123456789abcdef", 16, 0);
	answer("peek %s", answer_read(b, 1));
	answer("ioctl %s", answer_of(syscall(SYS_ioctl, b, FIONREAD, &left)));
	answer("left %d", left);
	answer("recvmmsg %s", answer_of(syscall(SYS_recvmmsg, b, &v, 1, 0, &limit)));
	answer("%u %s, time %s", v.msg_len, octets, limit.tv_sec == LATE ? "as it was" : "less");
	answer("preadv2 %s", answer_of(syscall(SYS_preadv2, b, iov, 2, -1L, -1L, 0)));
	answer("%s", octets);
	answer("recvmsg %s %s", answer_of(syscall(SYS_recvmsg, b, &v.msg_hdr, 0)), octets);
	answer("recvfrom %s", answer_of(syscall(SYS_recvfrom, b, octets, 2L, 0, NULL, NULL)));
	answer("readv %s", answer_of(syscall(SYS_readv, b, iov, 2)));
	answer("read %s", answer_of(syscall(SYS_read, b, octets, 2L)));
	answer("%s", octets);
	answer("splice %s", answer_of(syscall(SYS_splice, b, NULL, pipes[1], NULL, 2L, 0)));
	answer("rest %s", answer_read(b, 1));
	answer("vectors %s", answer_of(syscall(SYS_readv, b, iov, 1025L)));
	answer("vectors %s", answer_of(syscall(SYS_writev, b, iov, -1L)));
}

/* ---- sockets and descriptors ---- */

static void sockets(void)
{
	struct sockaddr_in at = { .sin_family = AF_INET };
	struct timeval limit = { 0, 20000 };
	socklen_t size = sizeof(at);
	long listener = syscall(SYS_socket, AF_INET, SOCK_STREAM, 0);
	int value = -1, one = 1;

	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	answer("bind %s", answer_of(syscall(SYS_bind, listener, &at, sizeof(at))));
	answer("listen %s", answer_of(syscall(SYS_listen, listener, 5)));
	getsockname((int)listener, (struct sockaddr *)&at, &size);
	a = (int)syscall(SYS_socket, AF_INET, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP);
	answer("connect %s", answer_of(syscall(SYS_connect, a, &at, size)));
	b = (int)syscall(SYS_accept4, listener, &at, &size, SOCK_NONBLOCK);
	answer("accept4 %u", size);
	answer("nothing %s", answer_of(recv(b, &value, 1, 0)));
	fcntl(b, F_SETFL, 0);
	answer_warm(a, b);
	answer("set %s", answer_of(syscall(SYS_setsockopt, a, IPPROTO_TCP, TCP_NODELAY, &one, 4)));
	size = sizeof(value);
	answer("get %s",
	       answer_of(syscall(SYS_getsockopt, a, IPPROTO_TCP, TCP_NODELAY, &value, &size)));
	answer("value %d", value);
	syscall(SYS_setsockopt, b, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	answer("late %s", answer_of(recv(b, &value, 1, 0)));
	answer("shutdown %s", answer_of(syscall(SYS_shutdown, a, SHUT_WR)));
	answer("end %s", answer_of(recv(b, &value, 1, 0)));
	a = (int)syscall(SYS_socket, AF_INET, SOCK_STREAM, 0);
	size = sizeof(at);
	getsockname((int)listener, (struct sockaddr *)&at, &size);
	connect(a, (struct sockaddr *)&at, size);
	b = (int)syscall(SYS_accept, listener, NULL, NULL);
	answer_warm(a, b);
	send(a, "x", 1, 0);
	answer("again %s", answer_read(b, 1));
}

static void descriptors(void)
{
	int one = 1, zero = 0, other;
	char octet;

	begin();
	answer("fcntl %s", answer_of(syscall(SYS_fcntl, b, F_SETFL, O_NONBLOCK)));
	answer("recv %s", answer_of(recv(b, &octet, 1, 0)));
	answer("ioctl %s", answer_of(syscall(SYS_ioctl, b, FIONBIO, &zero)));
	answer("flags %d", fcntl(b, F_GETFL) & O_NONBLOCK);
	answer("ioctl %s", answer_of(syscall(SYS_ioctl, b, FIONBIO, &one)));
	answer("recv %s", answer_of(recv(b, &octet, 1, 0)));
	syscall(SYS_fcntl, b, F_SETFL, 0);
	other = (int)syscall(SYS_fcntl, b, F_DUPFD_CLOEXEC, 50);
	close(b);
	send(a, "one", 3, 0);
	answer("dup %d: %s", other, answer_read(other, 3));
	b = (int)syscall(SYS_dup, other);
	syscall(SYS_close, other);
	send(a, "two", 3, 0);
	answer("dup: %s", answer_read(b, 3));
	answer("dup2 %s", answer_of(syscall(SYS_dup2, b, 60)));
	answer("dup3 %s", answer_of(syscall(SYS_dup3, 60, 61, 0)));
	close(b);
	answer("close_range %s", answer_of(syscall(SYS_close_range, 55, 60, 0)));
	send(a, "three", 5, 0);
	answer("closed %s", answer_of(recv(60, &octet, 1, 0)));
	answer("last: %s", answer_read(61, 5));
	syscall(SYS_close, 61);
	answer("end %s", answer_of(recv(a, &octet, 1, 0)));
}

/* ---- processes ---- */

static void be_child(void)
{
	if (strcmp(answer_read(a, 6), "before") != 0)
		syscall(SYS_exit_group, 2);
	send(a, "child", 5, 0);
	close(a);
	close(b);
}

static int run_child(void *arg)
{
	(void)arg;
	be_child();
	return 0;
}

static long clone_by(int how)
{
	static char stack[65536] __attribute__((aligned(16)));
	struct clone_args args = { .exit_signal = SIGCHLD };

	switch (how) {
	case 0: return syscall(SYS_fork);
	case 1: return syscall(SYS_clone, (long)SIGCHLD, NULL, NULL, NULL, 0L);
	case 2: return syscall(SYS_clone3, &args, sizeof(args));
	default: return clone(run_child, stack + sizeof(stack), SIGCHLD, NULL);
	}
}

/* The child goes on with one end, and closes it; then the parent does. */
static void forks(void)
{
	for (int how = 0; how < 4; how++) {
		long pid;
		int status = -1;

		begin();
		send(b, "before", 6, 0);
		pid = clone_by(how);
		if (pid == 0) {
			be_child();
			syscall(SYS_exit_group, 0);
		}
		waitpid((pid_t)pid, &status, 0);
		answer("%d: %d, %s", how, status, answer_read(b, 5));
		send(b, "after", 5, 0);
		answer("%d: %s", how, answer_read(a, 5));
		answer_warm(a, b);
		answer("%d: went on", how);
		close(a);
		close(b);
	}
}

/* The child has the same descriptors, not a copy: what it closes is closed. */
static void shared_descriptors(void)
{
	char octet;
	long pid;

	begin();
	pid = syscall(SYS_clone, (long)(SIGCHLD | CLONE_FILES), NULL, NULL, NULL, 0L);
	if (pid == 0) {
		close(a);
		syscall(SYS_exit_group, 0);
	}
	waitpid((pid_t)pid, NULL, 0);
	answer("end %s", answer_of(recv(b, &octet, 1, 0)));
}

/* Another program gets what was not read yet. */
static void programs(void)
{
	char command[64];
	char *argv[] = { (char *)"sh", (char *)"-c", command, NULL };
	int status = -1;

	for (int how = 0; how < 2; how++) {
		begin();
		snprintf(command, sizeof(command), "head -c 6 <&%d >&%d", b, b);
		send(a, "unread", 6, 0);
		if (fork() == 0) {
			close(a);
			if (how == 0)
				syscall(SYS_execve, "/bin/sh", argv, environ);
			else
				syscall(SYS_execveat, AT_FDCWD, "/bin/sh", argv, environ, 0);
			syscall(SYS_exit_group, 9);
		}
		wait(&status);
		answer("%d: %d, %s", how, status, answer_read(a, 6));
		close(a);
		close(b);
	}
}

/* Octets that were sent and not read before the end come, whoever ends the process and however. */
static void ends(void)
{
	begin();
	if (fork() == 0) {
		close(b);
		send(a, "last words", 10, 0);
		syscall(SYS_exit_group, 0);
	}
	close(a);
	wait(NULL);
	answer("%s", answer_read(b, 20));
}

/* ---- the kernel's own asynchronous I/O ---- */

static void requests(void)
{
	aio_context_t queue = 0;
	char octets[8] = "";
	struct iocb read_it = { .aio_lio_opcode = IOCB_CMD_PREAD, .aio_nbytes = 5 };
	struct iocb write_it = { .aio_lio_opcode = IOCB_CMD_PWRITE, .aio_nbytes = 3 };
	struct iocb *list[1] = { &read_it };
	struct io_event event = { 0 };

	begin();
	if (syscall(SYS_io_setup, 4, &queue) != 0) {
		answer("none here");
		return;
	}
	send(a, "first", 5, 0);
	read_it.aio_fildes = (uint32_t)b;
	read_it.aio_buf = (uintptr_t)octets;
	answer("submit %s", answer_of(syscall(SYS_io_submit, queue, 1L, list)));
	answer("done %s", answer_of(syscall(SYS_io_getevents, queue, 1L, 1L, &event, NULL)));
	answer("read %lld, %s", (long long)event.res, octets);
	send(a, "A", 1, 0);
	list[0] = &write_it;
	write_it.aio_fildes = (uint32_t)a;
	write_it.aio_buf = (uintptr_t) "raw";
	answer("submit %s", answer_of(syscall(SYS_io_submit, queue, 1L, list)));
	syscall(SYS_io_getevents, queue, 1L, 1L, &event, NULL);
	answer("wrote %lld", (long long)event.res);
	send(a, "B", 1, 0);
	answer("came %s", answer_read(b, 5));
	answer("nothing %s", answer_of(syscall(SYS_io_submit, queue, 1L, answer_hole())));
}

/* Of the C library, which reads and writes on threads of its own. */
static void posix_requests(void)
{
	char octets[16] = "", later[] = "later";
	struct aiocb read_it = { .aio_buf = octets, .aio_nbytes = 10 };
	struct aiocb write_it = { .aio_buf = later, .aio_nbytes = 5 };
	const struct aiocb *both[] = { &read_it, &write_it };

	begin();
	read_it.aio_fildes = b;
	write_it.aio_fildes = a;
	send(a, "first", 5, 0);
	answer("read %s", answer_of(aio_read(&read_it)));
	answer("waited %s", answer_of(aio_suspend(both, 1, NULL)));
	answer("got %s, %s", answer_of(aio_return(&read_it)), octets);
	answer("write %s", answer_of(aio_write(&write_it)));
	answer("waited %s", answer_of(aio_suspend(both + 1, 1, NULL)));
	answer("wrote %s", answer_of(aio_return(&write_it)));
	send(a, "!", 1, 0);
	answer("came %s", answer_read(b, 6));
}

/* From here on any call but read, write and exit is death. */
static bool talk_in_a_sandbox(void)
{
	static char out[1000], in[1000];
	bool good = prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) == 0;

	for (int i = 0; i < 20 && good; i++) {
		int from = i % 2 ? a : b, to = i % 2 ? b : a;

		memset(out, i + 1, sizeof(out));
		good = write(from, out, sizeof(out)) == sizeof(out);
		for (size_t n = 0; n < sizeof(in) && good;) {
			ssize_t now = read(to, in + n, sizeof(in) - n);

			good = now > 0;
			n += (size_t)now;
		}
		good = good && memcmp(in, out, sizeof(in)) == 0;
	}
	return good;
}

static void sandbox(void)
{
	int status = -1;
	pid_t pid = fork();

	if (pid == 0) {
		begin();
		syscall(SYS_exit, talk_in_a_sandbox() ? 0L : 1L);
	}
	waitpid(pid, &status, 0);
	answer("ended %s %d", WIFEXITED(status) ? "with" : "by signal",
	       WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
}

int main(int argc, char **argv)
{
	static const struct question questions[] = {
		{ "waits", waits },       { "masks", waits_with_masks },
		{ "sends", sends },       { "takes", takes },
		{ "sockets", sockets },   { "descriptors", descriptors },
		{ "forks", forks },       { "shared descriptors", shared_descriptors },
		{ "programs", programs }, { "ends", ends },
		{ "requests", requests }, { "posix requests", posix_requests },
		{ "sandbox", sandbox },
	};

	(void)argc;
	return answers_main(questions, sizeof(questions) / sizeof(*questions), argv + 1);
}
