/* SPDX-License-Identifier: MIT */
/* W: what happens beside the calls of other threads: children, programs, signals, cancellation, limits. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <linux/sockios.h>
#include <unistd.h>

#include "threads.h"

#define STACK      (256 << 10)
#define FEW_FILES  22
#define SPACE      (48ul << 20)
#define FILE_LIMIT (512 << 10)

extern char **environ;

/* ---- cancellation ---- */

static void leave_seat(void *arg)
{
	(void)arg;
	watch_rise();
}

struct victim {
	struct wild *w;
	struct act a;
};

static void *be_cancelled(void *arg)
{
	struct victim *v = arg;

	watch_sit("victim %d", v->w->index - MAX_THREADS);
	pthread_cleanup_push(leave_seat, NULL);
	wild_act(v->w, &v->a);
	pthread_cleanup_pop(1);
	return NULL;
}

/* A thread of its own does one thing, and is cancelled while it does. */
void odd_cancel(struct wild *w, const struct act *a)
{
	static const enum deed deeds[] = { DO_RECV, DO_POLL, DO_SEND, DO_EPOLL, DO_RECV };
	struct victim v = { &wilds[MAX_THREADS + w->index], *a };
	pthread_attr_t attr;
	pthread_t thread;
	struct call *c;
	void *end;

	v.a.deed = deeds[a->how % 5];
	v.a.raw = false;
	v.a.flags = a->flavour % 3 ? 0 : MSG_WAITALL * (v.a.deed == DO_RECV);
	v.a.pointer = PTR_GOOD;
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, STACK);
	if (pthread_create(&thread, &attr, be_cancelled, &v))
		return;
	stage_nap(a->flavour * 20u);
	watch_begin("pthread_cancel", atomic_load(&slots[a->slot]));
	pthread_cancel(thread);
	pthread_join(thread, &end);
	watch_end();
	data_empty_pipe(v.w);
	c = v.w->now;
	v.w->now = NULL;
	if (!c || atomic_load(&c->end))
		return;
	/* It may have moved octets before it ended: nobody knows. */
	if (c->kind == CALL_IN)
		atomic_fetch_add(&world->thrown, c->len);
	atomic_store(&c->end, stamp());
}

/* ---- children ---- */

static bool cramped(void)
{
	return world->may & (MAY_FEWSPACE | MAY_FEWFILES);
}

static void wait_for(pid_t pid, const char *what)
{
	int status = 0;

	watch_begin(what, pid);
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	watch_end();
	/* No program can be loaded without numbers and memory. */
	if (status && !cramped())
		watch_bad("%s ended with %x", what, (unsigned)status);
}

/* What a child does with what it has inherited; nothing of it waits. */
static void be_child(struct wild *w, const struct act *a, pid_t parent)
{
	static const enum deed deeds[] = { DO_SEND, DO_RECV, DO_POLL, DO_SEND };
	struct act mine = *a;
	int fd;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(0);
	watch_sit("child of %d", w->index);
	for (int i = 0; i < a->flavour % 4; i++) {
		mine.deed = deeds[(a->how + i) % 4];
		mine.slot = (uint8_t)((a->slot + i) % world->slots);
		mine.flags = MSG_DONTWAIT;
		mine.how = (uint8_t)(a->how % 2 ? 0 : 4);
		mine.size = RECORD_HEAD + a->size % 2000;
		mine.us = 0;
		wild_act(w, &mine);
	}
	for (int i = 0; i < world->slots && a->how % 3; i++) {
		fd = atomic_exchange(&slots[i], -1);
		if (fd >= 0)
			close(fd);
	}
	if (a->how % 5 == 0)
		stage_nap(a->flavour * 20u);
	watch_rise();
	_exit(0);
}

void odd_fork(struct wild *w, const struct act *a)
{
	uint64_t since = stamp();
	pid_t self = getpid(), pid;

	watch_begin("fork", 0);
	pid = fork();
	watch_end();
	if (pid == 0) {
		child_since = since;
		be_child(w, a, self);
	}
	if (pid > 0)
		wait_for(pid, "a child");
	else if (!cramped())
		watch_bad("fork: %s", stage_errno(errno));
}

/* ---- other programs ---- */

/* Sends the record of a call of another process, on the number that it is given. */
int odd_heir(int argc, char **argv)
{
	static uint8_t data[RECORD_HEAD + 4096];
	uint32_t call, len, at = 0;
	ssize_t n;
	int fd;

	if (argc < 4)
		return 2;
	signal(SIGPIPE, SIG_IGN);
	fd = atoi(argv[0]);
	call = (uint32_t)strtoul(argv[1], NULL, 0);
	len = (uint32_t)strtoul(argv[2], NULL, 0);
	code_key = strtoull(argv[3], NULL, 0);
	record_fill(call, len, 0, data, len);
	while (at < len && (n = write(fd, data + at, len - at)) > 0)
		at += (uint32_t)n;
	return 0;
}

struct heir {
	char text[4][24];
	char *argv[7];
	char *env[64];
};

/* env: without the library, so that the heir knows only TCP. */
static void prepare_heir(struct heir *h, int fd, const struct call *c)
{
	static char name[] = "threads", word[] = "heir";
	int n = 0;

	snprintf(h->text[0], sizeof(h->text[0]), "%d", fd);
	snprintf(h->text[1], sizeof(h->text[1]), "%u", (unsigned)(c - world->call));
	snprintf(h->text[2], sizeof(h->text[2]), "%u", c->len);
	snprintf(h->text[3], sizeof(h->text[3]), "%llu", (unsigned long long)code_key);
	h->argv[0] = name;
	h->argv[1] = word;
	for (int i = 0; i < 4; i++)
		h->argv[2 + i] = h->text[i];
	h->argv[6] = NULL;
	for (char **e = environ; *e && n < 63; e++)
		if (strncmp(*e, "LD_PRELOAD=", 11) != 0)
			h->env[n++] = *e;
	h->env[n] = NULL;
}

static pid_t start_heir(struct heir *h, const struct act *a)
{
	char **env = a->flavour % 2 ? h->env : environ;
	pid_t pid = -1;

	if (a->how % 3 == 0)
		return posix_spawn(&pid, "/proc/self/exe", NULL, NULL, h->argv, env) ? -1 : pid;
	pid = a->how % 3 == 1 ? fork() : vfork();
	if (pid == 0) {
		execve("/proc/self/exe", h->argv, env);
		_exit(127);
	}
	return pid;
}

void odd_exec(struct wild *w, const struct act *a)
{
	uint64_t begin = wild_begin();
	int fd = atomic_load(&slots[a->slot]);
	struct heir h;
	struct call *c;
	pid_t pid;

	(void)w;
	if (a->flavour % 5 == 0) {
		watch_begin("system", fd);
		if (system("exit 0") && !cramped())
			watch_bad("system() failed");
		watch_end();
		return;
	}
	if (fd < 0)
		return;
	c = log_call(CALL_OUT, "another program's write", begin, fd, RECORD_HEAD + a->size % 4000);
	if (!c)
		return;
	prepare_heir(&h, fd, c);
	watch_begin("exec", fd);
	pid = start_heir(&h, a);
	watch_end();
	if (pid > 0)
		wait_for(pid, "another program");
	else if (!cramped())
		watch_bad("exec: %s", stage_errno(errno));
	atomic_store(&c->end, stamp());
}

/* ---- descriptors by message ---- */

void odd_rights(struct wild *w, const struct act *a)
{
	union {
		char space[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control = { 0 };
	char octet = 'x';
	struct iovec iov = { &octet, 1 };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control };
	uint64_t begin = wild_begin();
	int fd = atomic_load(&slots[a->slot]), got;
	struct cmsghdr *head;

	if (fd < 0)
		return;
	msg.msg_controllen = sizeof(control);
	head = CMSG_FIRSTHDR(&msg);
	head->cmsg_level = SOL_SOCKET;
	head->cmsg_type = SCM_RIGHTS;
	head->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(head), &fd, sizeof(fd));
	watch_begin("SCM_RIGHTS", fd);
	if (sendmsg(w->rights[0], &msg, 0) != 1) {
		watch_end();
		/* Or too many are under way: there is a limit. */
		if (errno != EBADF && errno != ETOOMANYREFS)
			watch_bad("SCM_RIGHTS of %d: %s", fd, stage_errno(errno));
		return;
	}
	while (recvmsg(w->rights[1], &msg, 0) < 0 && errno == EINTR)
		;
	watch_end();
	head = CMSG_FIRSTHDR(&msg);
	if (!head) {
		if (!(world->may & MAY_FEWFILES))
			watch_bad("no descriptor came");
		return;
	}
	memcpy(&got, CMSG_DATA(head), sizeof(got));
	log_event(NUMBER_COPIES, got, fd, begin);
	wild_keep(&slots[a->other], got);
}

/* ---- options ---- */

static int set_number(int fd, int level, int name, int value)
{
	return setsockopt(fd, level, name, &value, sizeof(value));
}

static int set_time(int fd, int name, unsigned us)
{
	struct timeval tv = { 0, us };

	return setsockopt(fd, SOL_SOCKET, name, &tv, sizeof(tv));
}

static int set_nonblock(int fd, const struct act *a)
{
	int on = a->flavour % 2;

	if (a->flavour % 3)
		return ioctl(fd, FIONBIO, &on);
	return fcntl(fd, F_SETFL, on ? O_NONBLOCK : 0);
}

/* Questions, whose answers are only asked to be sane. */
static int ask(int fd, const struct act *a)
{
	struct sockaddr_storage at;
	struct tcp_info info;
	socklen_t len = sizeof(at);
	int n = 0, rc;

	switch (a->flavour % 4) {
	case 0:
		rc = ioctl(fd, FIONREAD, &n);
		if (rc == 0 && n < 0)
			watch_bad("FIONREAD on %d: %d", fd, n);
		return rc;
	case 1:
		rc = ioctl(fd, SIOCOUTQ, &n);
		if (rc == 0 && n < 0)
			watch_bad("SIOCOUTQ on %d: %d", fd, n);
		return rc;
	case 2: return getpeername(fd, (struct sockaddr *)&at, &len);
	default: len = sizeof(info); return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len);
	}
}

static int change(int fd, const struct act *a)
{
	static const int rooms[] = { 1, 4096, 20000, 65536, 300000 };
	bool out = a->how % 7 == 2;

	switch (a->how % 7) {
	case 0:
	case 1:
		if (world->may & MAY_TIME)
			return set_time(fd, a->how % 7 ? SO_RCVTIMEO : SO_SNDTIMEO,
					1000 + a->flavour * 100u);
		break;
	case 2:
	case 3:
		/* A window that was larger before makes TCP drop segments, and wait long for others. */
		if (world->may & MAY_ROOM)
			return set_number(fd, SOL_SOCKET, out ? SO_SNDBUF : SO_RCVBUF,
					  rooms[out ? a->flavour % 5 : 3 + a->flavour % 2]);
		break;
	case 4:
		if (world->may & MAY_NONBLOCK)
			return set_nonblock(fd, a);
		break;
	case 5: return set_number(fd, IPPROTO_TCP, TCP_NODELAY, a->flavour % 2);
	}
	return ask(fd, a);
}

void odd_option(struct wild *w, const struct act *a)
{
	uint64_t begin = wild_begin();
	int fd = atomic_load(&slots[a->slot]), rc;
	struct call *c;

	(void)w;
	if (fd < 0)
		return;
	c = log_call(CALL_WAIT, "an option", begin, fd, 0);
	watch_begin("an option", fd);
	rc = change(fd, a);
	watch_end();
	if (c)
		log_result(c, rc, errno);
}

/* ---- signals ---- */

void odd_signal(struct wild *w, const struct act *a)
{
	struct wild *to = &wilds[a->how % world->threads];
	bool both = (world->may & (MAY_RESTART | MAY_BREAK)) == (MAY_RESTART | MAY_BREAK);
	bool restart = both ? a->flavour % 2 : world->may & MAY_RESTART;

	if (to == w || !atomic_load(&to->running))
		return;
	watch_begin("pthread_kill", to->index);
	pthread_kill(to->thread, restart ? SIGUSR1 : SIGUSR2);
	watch_end();
}

/* ---- limits ---- */

static unsigned long address_space(void)
{
	unsigned long pages = 0;
	FILE *file = fopen("/proc/self/statm", "r");

	if (!file || fscanf(file, "%lu", &pages) != 1)
		watch_die("no /proc/self/statm");
	fclose(file);
	return pages * 4096;
}

static void limit(int what, rlim_t n)
{
	struct rlimit l;

	getrlimit(what, &l);
	l.rlim_cur = n;
	if (setrlimit(what, &l))
		watch_die("setrlimit: %s", stage_errno(errno));
}

void odd_limits(void)
{
	if (world->may & MAY_FEWFILES)
		limit(RLIMIT_NOFILE, FEW_FILES);
	if (world->may & MAY_FEWSPACE)
		limit(RLIMIT_AS, address_space() + SPACE);
	if (world->may & MAY_FEWSIZE)
		limit(RLIMIT_FSIZE, FILE_LIMIT);
}
