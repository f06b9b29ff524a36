/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "stage.h"
#include "watch.h"

#define SEATS   256
#define LINES   20 /* of broken promises: what follows is mostly noise */
#define LOOK_US 5000

struct seat {
	atomic_int tid; /* 0: free */
	atomic_uint step;
	_Atomic(const char *) what; /* NULL: between two calls */
	_Atomic uint64_t since;
	atomic_int number;
	atomic_bool idle;
	char process, name[15];
};

struct board {
	struct seat seat[SEATS];
	atomic_int bads;
	uint64_t limit; /* microseconds */
};

static struct board *board;
static char process = 'D';
static __thread struct seat *mine;

void *watch_share(size_t n)
{
	void *at = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE,
			-1, 0);

	if (at == MAP_FAILED) {
		perror("mmap");
		exit(2);
	}
	return at;
}

void watch_open(unsigned seconds)
{
	board = watch_share(sizeof(*board));
	board->limit = (uint64_t)seconds * 1000000;
}

void watch_process(char name)
{
	process = name;
}

/* ---- threads ---- */

void watch_sit(const char *format, ...)
{
	va_list args;
	int nobody;

	/* In a child of fork() it is still the parent's. */
	if (mine && atomic_load(&mine->tid) != gettid())
		mine = NULL;
	for (struct seat *s = board->seat; !mine && s < board->seat + SEATS; s++) {
		nobody = 0;
		if (atomic_compare_exchange_strong(&s->tid, &nobody, gettid()))
			mine = s;
	}
	if (!mine)
		return;
	atomic_store(&mine->what, NULL);
	mine->process = process;
	va_start(args, format);
	vsnprintf(mine->name, sizeof(mine->name), format, args);
	va_end(args);
}

void watch_rise(void)
{
	if (mine)
		atomic_store(&mine->tid, 0);
	mine = NULL;
}

void watch_step(unsigned n)
{
	if (mine)
		atomic_store(&mine->step, n);
}

static void enter(const char *what, int number, bool idle)
{
	if (!mine)
		return;
	atomic_store(&mine->number, number);
	atomic_store(&mine->idle, idle);
	atomic_store(&mine->since, stage_now());
	atomic_store(&mine->what, what);
}

void watch_begin(const char *what, int number)
{
	enter(what, number, false);
}

void watch_idle(const char *what, int number)
{
	enter(what, number, true);
}

void watch_end(void)
{
	if (mine)
		atomic_store(&mine->what, NULL);
}

/* ---- report ---- */

static void line(const char *mark, const char *format, va_list args)
{
	char text[600];
	int n = snprintf(text, sizeof(text), "%c %s", process, mark);

	n += vsnprintf(text + n, sizeof(text) - (size_t)n - 1, format, args);
	if (n > (int)sizeof(text) - 2)
		n = sizeof(text) - 2;
	text[n++] = '\n';
	if (write(1, text, (size_t)n) != n)
		_exit(3);
}

void watch_say(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	line("", format, args);
	va_end(args);
}

void watch_bad(const char *format, ...)
{
	va_list args;

	if (atomic_fetch_add(&board->bads, 1) >= LINES)
		return;
	va_start(args, format);
	line("BAD ", format, args);
	va_end(args);
}

void watch_die(const char *format, ...)
{
	va_list args;

	atomic_fetch_add(&board->bads, 1);
	va_start(args, format);
	line("BAD broken off: ", format, args);
	va_end(args);
	_exit(2);
}

int watch_bads(void)
{
	return atomic_load(&board->bads);
}

/* ---- the watch ---- */

/* A line of /proc about a thread: where it is in the kernel. */
static void ask_kernel(int tid, const char *file, char *to, size_t n)
{
	char path[64];
	ssize_t got = 0;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/%s", tid, file);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		got = read(fd, to, n - 1);
		close(fd);
	}
	to[got > 0 ? got : 0] = 0;
	to[strcspn(to, "\n")] = 0;
}

static void tell_seats(void)
{
	uint64_t now = stage_now();
	char sleeps[64], call[120];
	const char *what;

	for (struct seat *s = board->seat; s < board->seat + SEATS; s++) {
		int tid = atomic_load(&s->tid);

		if (!tid)
			continue;
		what = atomic_load(&s->what);
		ask_kernel(tid, "wchan", sleeps, sizeof(sleeps));
		ask_kernel(tid, "syscall", call, sizeof(call));
		watch_say("  %c %s, step %u: %s(%d) for %.3f s; thread %d in %s, system call %s",
			  s->process, s->name, atomic_load(&s->step), what ? what : "between calls",
			  atomic_load(&s->number),
			  what ? (double)(now - atomic_load(&s->since)) / 1e6 : 0.0, tid, sleeps,
			  call);
	}
}

/* Whether a call lasts too long. */
static bool stuck(void)
{
	uint64_t now = stage_now();
	const char *what;

	for (struct seat *s = board->seat; s < board->seat + SEATS; s++) {
		what = atomic_load(&s->what);
		if (!atomic_load(&s->tid) || !what || atomic_load(&s->idle))
			continue;
		if (now - atomic_load(&s->since) < board->limit || now < atomic_load(&s->since) ||
		    atomic_load(&s->what) != what)
			continue;
		watch_bad("%c %s sleeps in %s(%d)", s->process, s->name, what,
			  atomic_load(&s->number));
		return true;
	}
	return false;
}

/* A process has ended: nobody sits there any more. */
static void clear_seats(char name)
{
	for (struct seat *s = board->seat; s < board->seat + SEATS; s++)
		if (s->process == name)
			atomic_store(&s->tid, 0);
}

static void end_all(const pid_t *pid, const bool *ended, int n)
{
	for (int i = 0; i < n; i++)
		if (!ended[i] && pid[i] > 0)
			kill(pid[i], SIGKILL);
}

void watch_over(const pid_t *pid, const char *names, int n)
{
	bool ended[8] = { false }, ending = false;
	int left = n, status;

	while (left) {
		for (int i = 0; i < n; i++) {
			if (ended[i] || waitpid(pid[i], &status, WNOHANG) != pid[i])
				continue;
			ended[i] = true;
			left--;
			if (ending || (WIFEXITED(status) && WEXITSTATUS(status) == 0)) {
				clear_seats(names[i]);
				continue;
			}
			watch_bad("process %c ended with %s %d", names[i],
				  WIFSIGNALED(status) ? "signal" : "status",
				  WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
			tell_seats();
			clear_seats(names[i]);
			ending = true;
			end_all(pid, ended, n);
		}
		if (left && !ending && stuck()) {
			tell_seats();
			ending = true;
			end_all(pid, ended, n);
		}
		if (left)
			stage_nap(LOOK_US);
	}
}

int watch_verdict(const char *format, ...)
{
	char again[200];
	va_list args;

	if (!watch_bads())
		return 0;
	va_start(args, format);
	vsnprintf(again, sizeof(again), format, args);
	va_end(args);
	watch_say("%d bad; again: %s", watch_bads(), again);
	return 1;
}
