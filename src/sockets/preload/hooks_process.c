/* SPDX-License-Identifier: MIT */
/* Hooks of the calls by which a process becomes another one, or ends. */
#include <linux/seccomp.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "base/log.h"
#include "base/self.h"
#include "channel/meet.h"
#include "channel/nap.h"
#include "sockets/sleep/epoll.h"
#include "sockets/record/family.h"
#include "sockets/preload/hook.h"
#include "sockets/preload/report.h"
#include "sockets/preload/fork.h"
#include "sockets/record/record.h"
#include "sockets/record/why.h"

/* --- other programs */

static bool survives_exec(int fd)
{
	int flags = real(fcntl)(fd, F_GETFD);

	return flags >= 0 && !(flags & FD_CLOEXEC);
}

/* The new program has no lanes of ours, and may use what it inherits while relatives of this process hold it
 * too: back to TCP, for good. */
static void inherit(int fd, struct rec *r, void *arg)
{
	(void)arg;
	if (!survives_exec(fd) || sock_flag(r, REC_LISTEN))
		return;
	atomic_fetch_or(&r->flags, REC_EXECED);
	if (atomic_load(&r->state) == REC_LANE)
		sock_hand_over(r, fd, WHY_EXEC);
}

static void hand_over(int fd, struct rec *r, void *arg)
{
	inherit(fd, r, arg);
	sock_hand_off(fd, r);
}

static void take_back(int fd, struct rec *r, void *arg)
{
	(void)fd;
	(void)arg;
	sock_take_back(r);
}

/* The child of vfork() has our memory, and descriptors of its own: other threads may have changed ours since. */
static void inherit_borrowed(int fd, struct rec *r, void *arg)
{
	if (atomic_load(&r->state) != REC_LANE || sock_is(r, fd))
		inherit(fd, r, arg);
}

static bool before_exec(void)
{
	if (!sock_in_use() || settings.sealed)
		return false;
	if (!process_is_self()) {
		sock_each(inherit_borrowed, NULL);
		return false;
	}
	report_process();
	sock_each(hand_over, NULL);
	epoll_exec();
	family_leave();
	return true;
}

static void after_exec(bool was)
{
	int saved = errno;

	if (was) {
		family_return();
		sock_each(take_back, NULL);
		epoll_exec_failed();
	}
	errno = saved;
}

#define EXEC(call)                         \
	({                                 \
		bool was_ = before_exec(); \
		int r_ = call;             \
		after_exec(was_);          \
		r_;                        \
	})

HOOK int execve(const char *path, char *const argv[], char *const envp[])
{
	return EXEC(real(execve)(path, argv, envp));
}

HOOK int execv(const char *path, char *const argv[])
{
	return EXEC(real(execve)(path, argv, environ));
}

HOOK int execvpe(const char *file, char *const argv[], char *const envp[])
{
	return EXEC(real(execvpe)(file, argv, envp));
}

HOOK int execvp(const char *file, char *const argv[])
{
	return EXEC(real(execvpe)(file, argv, environ));
}

HOOK int execveat(int fd, const char *path, char *const argv[], char *const envp[], int flags)
{
	return EXEC(real(execveat)(fd, path, argv, envp, flags));
}

HOOK int fexecve(int fd, char *const argv[], char *const envp[])
{
	return EXEC(real(fexecve)(fd, argv, envp));
}

#define ARGUMENTS 1024

/* The list of execl(): up to a null pointer. */
static bool collect(const char *first, va_list list, char *argv[ARGUMENTS])
{
	size_t n = 0;

	argv[n++] = (char *)first;
	while (argv[n - 1] && n < ARGUMENTS)
		argv[n++] = va_arg(list, char *);
	return argv[n - 1] == NULL;
}

#define EXEC_LIST(run)                  \
	char *argv[ARGUMENTS];          \
	va_list list;                   \
	int result = -1;                \
	va_start(list, first);          \
	if (collect(first, list, argv)) \
		result = run;           \
	else                            \
		errno = E2BIG;          \
	va_end(list);                   \
	return result

HOOK int execl(const char *path, const char *first, ...)
{
	EXEC_LIST(execve(path, argv, environ));
}

HOOK int execlp(const char *file, const char *first, ...)
{
	EXEC_LIST(execvpe(file, argv, environ));
}

HOOK int execle(const char *path, const char *first, ...)
{
	EXEC_LIST(execve(path, argv, va_arg(list, char **)));
}

/* Children that are made inside the C library, where no hook sees them, and run another program. No lane begins until
 * it is known what they have inherited: other threads may open sockets between. */
static void before_spawn(void)
{
	int saved = errno;

	atomic_fetch_add(&sock_spawns, 1);
	if (sock_in_use() && process_is_self())
		sock_each(inherit, NULL);
	errno = saved;
}

static void after_spawn(void)
{
	int saved = errno;

	if (sock_in_use() && process_is_self())
		sock_each(inherit, NULL);
	atomic_fetch_sub(&sock_spawns, 1);
	errno = saved;
}

HOOK int posix_spawn(pid_t *restrict pid, const char *restrict path,
		     const posix_spawn_file_actions_t *restrict actions,
		     const posix_spawnattr_t *restrict attr, char *const argv[restrict],
		     char *const envp[restrict])
{
	int result;

	before_spawn();
	result = real(posix_spawn)(pid, path, actions, attr, argv, envp);
	after_spawn();
	return result;
}

HOOK int posix_spawnp(pid_t *restrict pid, const char *restrict file,
		      const posix_spawn_file_actions_t *restrict actions,
		      const posix_spawnattr_t *restrict attr, char *const argv[restrict],
		      char *const envp[restrict])
{
	int result;

	before_spawn();
	result = real(posix_spawnp)(pid, file, actions, attr, argv, envp);
	after_spawn();
	return result;
}

HOOK int system(const char *command)
{
	before_spawn();
	/* It runs for as long as it likes: what other threads open meanwhile may have lanes. */
	atomic_fetch_sub(&sock_spawns, 1);
	return real(system)(command);
}

HOOK FILE *popen(const char *command, const char *mode)
{
	FILE *result;

	before_spawn();
	result = real(popen)(command, mode);
	after_spawn();
	return result;
}

/* --- children that are no forks for the C library */

struct beginning {
	int (*run)(void *arg);
	void *arg;
};

/* In the child, which has a copy of the caller's memory. */
static int begin(void *arg)
{
	struct beginning b = *(struct beginning *)arg;

	process_fork_child();
	return b.run(b.arg);
}

HOOK int clone(int (*run)(void *), void *stack, int flags, void *arg, ...)
{
	struct beginning b = { run, arg };
	void *more[3];
	va_list list;
	int pid;

	va_start(list, arg);
	for (int i = 0; i < 3; i++)
		more[i] = va_arg(list, void *);
	va_end(list);
	/* With our memory, or our descriptors, it is none of its own. */
	if (!run || !stack || (flags & (CLONE_VM | CLONE_FILES)))
		return real(clone)(run, stack, flags, arg, more[0], more[1], more[2]);
	fork_prepare();
	pid = real(clone)(begin, stack, flags, &b, more[0], more[1], more[2]);
	fork_parent();
	return pid;
}

/* --- the end */

static void let_go(int fd, struct rec *r, void *arg)
{
	(void)arg;
	sock_ending(fd, r);
}

/* Nothing but memory may be touched any more. */
static void let_go_quietly(int fd, struct rec *r, void *arg)
{
	(void)fd;
	(void)arg;
	family_hold(r, -1);
	atomic_fetch_sub(&r->refs, 1);
	atomic_fetch_sub(&r->procs, 1);
}

static void leave(void)
{
	static _Atomic bool left;

	if (settings.sealed) {
		if (!atomic_exchange(&left, true))
			sock_each(let_go_quietly, NULL);
		return;
	}

	if (!sock_in_use() || !process_is_self() || atomic_exchange(&left, true))
		return;
	report_process();
	settings.why = false;
	epoll_ending();
	family_look_once(true);
	sock_each(let_go, NULL);
	family_leave();
}

__attribute__((destructor)) static void at_exit(void)
{
	leave();
}

HOOK void _exit(int status)
{
	leave();
	real(_exit)(status);
	__builtin_unreachable();
}

HOOK_ALIAS(void, _Exit, _exit, (int status)) __attribute__((noreturn));

/* --- sandboxes: a filter may kill the process for any call that the program itself does not make */

static void back_to_tcp(int fd, struct rec *r, void *arg)
{
	(void)arg;
	if (atomic_load(&r->state) == REC_POSTED) {
		meet_withdraw(&r->end);
		record_step(r, REC_EV_NO_PEER);
	} else if (atomic_load(&r->state) >= REC_AGREED) {
		sock_pin(r, fd, why_act(WHY_ACT_SECCOMP));
	}
}

void hook_seal(void)
{
	if (sock_in_use() && process_is_self())
		sock_each(back_to_tcp, NULL);
	self_tid();
	settings.sealed = true;
	log_stop();
	nap_forbid(true);
	robust_seal();
}

HOOK int prctl(int option, ...)
{
	unsigned long a[4];
	va_list list;

	va_start(list, option);
	for (int i = 0; i < 4; i++)
		a[i] = va_arg(list, unsigned long);
	va_end(list);
	/* Without a filter it is a question whether there could be one. */
	if (option == PR_SET_SECCOMP && (a[0] != SECCOMP_MODE_FILTER || a[1] != 0))
		hook_seal();
	return real(prctl)(option, a[0], a[1], a[2], a[3]);
}
