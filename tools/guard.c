/* SPDX-License-Identifier: MIT */
/*
 * Guard, program and watcher are in one process group, which is the caller's, so that the terminal treats them as
 * it would the program alone: who is in the foreground, who is stopped, who gets Control-C. What the
 * terminal sends all of them get. What somebody sends to the guard alone is passed on. What somebody sends to the
 * group, or to each of us, must not be: the program has it already. The watcher, which does nothing
 * on signals, is asked whether it has got it too.
 */
#include "guard.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "util.h"
#include "watcher.h"

#define ANSWER_MS 200 /* the watcher may be busy */

struct guard {
	const struct guard_attr *attr;
	sigset_t before;        /* the caller's mask, */
	struct sigaction child; /* and what it does about children */
	pid_t program, watcher;
	int control;
	uint32_t questions;
	int status; /* of the program, once `ended` */
	bool ended;
};

/* ---- signals ---- */

/* Not from one process to another, but by the terminal or a timer. */
static bool is_kernels(const siginfo_t *info)
{
	return info->si_code > 0;
}

/* Has the watcher got it as well? Then the program has. */
static bool came_to_all(struct guard *g, int signal)
{
	struct watcher_question q = { .number = ++g->questions, .signal = signal }, a;
	struct pollfd wait = { .fd = g->control, .events = POLLIN };

	if (send(g->control, &q, sizeof(q), MSG_NOSIGNAL) < 0)
		return false;
	while (poll(&wait, 1, ANSWER_MS) == 1) {
		if (recv(g->control, &a, sizeof(a), 0) != (ssize_t)sizeof(a))
			return false;
		if (a.number == q.number)
			return a.yes;
	}
	return false;
}

static void pass_on(struct guard *g, int signal, const siginfo_t *info)
{
	bool all = came_to_all(g, signal); /* also takes it off the watcher */

	/* A shell makes a group of its own, to which ours means nothing. */
	if (is_kernels(info) || (all && getpgid(g->program) == getpgrp()))
		return;
	if (info->si_pid == g->program) {
		/* To its parent, it thinks; which is ours. */
		kill(getppid(), signal);
	} else if (info->si_code == SI_QUEUE) {
		sigqueue(g->program, signal, info->si_value);
	} else {
		kill(g->program, signal);
	}
}

/* As the program has done, until somebody lets us go on; who may have done so already. */
static void stop(void)
{
	sigset_t pending;

	if (sigpending(&pending) == 0 && !sigismember(&pending, SIGCONT))
		raise(SIGSTOP);
}

/* Children; as the first process of a container we inherit others. */
static void reap(struct guard *g)
{
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG | WUNTRACED)) > 0) {
		if (pid != g->program)
			continue;
		if (WIFSTOPPED(status)) {
			stop();
			continue;
		}
		g->status = status;
		g->ended = true;
	}
}

static void attend(struct guard *g)
{
	siginfo_t info;
	sigset_t all;

	sigfillset(&all);
	while (!g->ended) {
		int signal = sigwaitinfo(&all, &info);

		if (signal == SIGCHLD)
			reap(g);
		else if (signal > 0)
			pass_on(g, signal, &info);
	}
}

/* ---- children ---- */

/* Pipes of the caller's shall end when the program closes them. */
static void let_go(int fd)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	if (null < 0)
		return;
	dup2(null, fd);
	close(null);
}

static pid_t start_watcher(struct guard *g, int listener)
{
	struct watcher_attr attr = { .why = g->attr->why, .stats = g->attr->stats };
	int pair[2];
	pid_t pid;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
		return -1;
	pid = fork();
	if (pid == 0) {
		close(pair[0]);
		let_go(STDIN_FILENO);
		let_go(STDOUT_FILENO);
		if (chdir("/"))
			_exit(1);
		attr.listener = listener;
		attr.control = pair[1];
		watcher_run(&attr);
		_exit(0);
	}
	close(pair[1]);
	g->control = pair[0];
	return pid;
}

static pid_t start_program(struct guard *g)
{
	pid_t guard = getpid(), pid = fork();
	int error;

	if (pid != 0)
		return pid;
	/* Who kills the guard means the program. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != guard)
		_exit(125);
	sigaction(SIGCHLD, &g->child, NULL);
	sigprocmask(SIG_SETMASK, &g->before, NULL);
	execvp(g->attr->path, g->attr->argv);
	error = errno;
	util_error("cannot run %s: %s", g->attr->path, strerror(error));
	_exit(error == ENOENT ? 127 : 126);
}

/* End as the program did. */
static int end_as(int status)
{
	struct rlimit none = { 0, 0 };
	sigset_t one;

	if (!WIFSIGNALED(status))
		return WEXITSTATUS(status);
	setrlimit(RLIMIT_CORE, &none); /* the program's core is the one that is wanted */
	prctl(PR_SET_DUMPABLE, 0);
	sigemptyset(&one);
	sigaddset(&one, WTERMSIG(status));
	signal(WTERMSIG(status), SIG_DFL);
	raise(WTERMSIG(status));
	sigprocmask(SIG_UNBLOCK, &one, NULL);
	return 128 + WTERMSIG(status); /* the first process of a container does not die so */
}

int guard_run(const struct guard_attr *attr)
{
	struct guard g = { .attr = attr };
	const struct watcher_question end = { .signal = 0 };
	const struct sigaction usual = { .sa_handler = SIG_DFL };
	int listener = watcher_listen();
	sigset_t all;

	if (listener < 0)
		return -1;
	sigfillset(&all);
	sigprocmask(SIG_BLOCK, &all, &g.before);
	sigaction(SIGCHLD, &usual, &g.child); /* were it ignored there would be no status */
	g.watcher = start_watcher(&g, listener);
	close(listener);
	if (g.watcher > 0)
		g.program = start_program(&g);
	if (g.watcher < 0 || g.program < 0) {
		sigprocmask(SIG_SETMASK, &g.before, NULL);
		return -1;
	}
	let_go(STDIN_FILENO);
	let_go(STDOUT_FILENO);
	attend(&g);
	send(g.control, &end, sizeof(end), MSG_NOSIGNAL);
	waitpid(g.watcher, NULL, 0);
	return end_as(g.status);
}
