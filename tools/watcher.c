/* SPDX-License-Identifier: MIT */
#include "watcher.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include <uthash.h>

#include "homes.h"
#include "sockets/record/tell.h"
#include "sockets/record/totals.h"
#include "util.h"

#define BACKLOG     4096
#define LAST_WAIT   150     /* ms for processes that end together with the program */
#define GROUP_NS    2000000 /* a signal to a whole group comes to its members one after the other */
#define LOOK_AGAIN  250     /* ms */
#define LOOKS       8       /* then a peer stays unknown */
#define ABSENT_MOST 10000

/* A process of the program. */
struct process {
	pid_t pid;
	int pidfd, home;
};

/* A connection for which nobody came. */
struct absent {
	uint8_t ends[36];
	uint32_t looks;
	char reason[256]; /* "": not found yet */
	UT_hash_handle hh;
};

struct watcher {
	const struct watcher_attr *attr;
	char token[TELL_TOKEN + 1];
	struct process *processes;
	size_t n, room;
	struct absent *absent; /* by their ends */
	unsigned unknown;      /* of them, worth another look */
	uid_t uid;             /* whose homes may have the other ends */
	bool ended;            /* the program has */
};

/* ---- set-up ---- */

static void random_text(char *out, size_t length)
{
	uint8_t octets[32];

	if (getrandom(octets, sizeof(octets), 0) != (ssize_t)sizeof(octets))
		memset(octets, (int)getpid(), sizeof(octets));
	for (size_t i = 0; i < length; i++)
		out[i] = "0123456789abcdef"[octets[i % 32] >> (i / 32 * 4) & 15];
	out[length] = '\0';
}

int watcher_listen(void)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	char name[TELL_NAME + 1] = "flue-", token[TELL_TOKEN + 1];
	char value[TELL_NAME + TELL_TOKEN + 2];
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	socklen_t size;

	random_text(name + 5, TELL_NAME - 5);
	random_text(token, TELL_TOKEN);
	memcpy(address.sun_path + 1, name, strlen(name));
	size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name));
	snprintf(value, sizeof(value), "%s:%s", name, token);
	if (fd < 0 || bind(fd, (struct sockaddr *)&address, size) || listen(fd, BACKLOG) ||
	    setenv(TELL_VARIABLE, value, 1)) {
		if (fd >= 0)
			close(fd);
		return -1;
	}
	return fd;
}

/* ---- what is said ---- */

static void say(const char *line)
{
	char text[WHY_LINE + 16];
	int length = snprintf(text, sizeof(text), "flue: %s\n", line);

	if (write(STDERR_FILENO, text, (size_t)length) < 0)
		return;
}

/* With the reason that was found for it, if the process could not know a better one. */
static void say_line(struct watcher *w, char line[WHY_LINE], uint32_t why, const uint8_t ends[36])
{
	char *reason = strstr(line, WHY_BEFORE);
	struct absent *found = NULL;

	if (why_number(why) == WHY_PEER || why_number(why) == WHY_USER)
		HASH_FIND(hh, w->absent, ends, sizeof(found->ends), found);
	if (found && *found->reason && reason) {
		reason += strlen(WHY_BEFORE);
		snprintf(reason, WHY_LINE - (size_t)(reason - line), "%s", found->reason);
	}
	for (char *at = line; *at; at++) /* the other process may be anybody's */
		*at = *at >= ' ' && *at != 127 ? *at : '?';
	say(line);
}

static void append_totals(const struct watcher *w, const struct totals *totals, pid_t pid,
			  const char *program)
{
	char line[TOTALS_MAX];
	size_t n = totals_text(line, totals, (int)pid, program);
	int fd = open(w->attr->stats, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);

	if (fd < 0 || write(fd, line, n) != (ssize_t)n)
		util_error("totals could not be appended to %s: %s", w->attr->stats,
			   strerror(errno));
	if (fd >= 0)
		close(fd);
}

/* ---- a process has ended ---- */

struct last_words {
	struct watcher *watcher;
	struct totals totals;
	const struct home *head;
	pid_t pid;
};

static bool add_record(const struct rec *r, void *arg)
{
	struct last_words *l = arg;
	char line[WHY_LINE];
	uint8_t ends[36];

	/* What relatives hold is theirs to tell. */
	if (!why_counts(r) || r->procs > 1)
		return true;
	totals_add(&l->totals, r);
	if (!l->watcher->attr->why || r->state == REC_LANE)
		return true;
	memcpy(ends, &r->end.self.sin6_addr, 16);
	memcpy(ends + 16, &r->end.self.sin6_port, 2);
	memcpy(ends + 18, &r->end.peer.sin6_addr, 16);
	memcpy(ends + 34, &r->end.peer.sin6_port, 2);
	why_line(line, r, l->head->program, (int)l->pid, l->head->rules);
	say_line(l->watcher, line, r->why, ends);
	return true;
}

/* It was ended by a signal, or it has told all itself. */
static void tell_for(struct watcher *w, const struct process *p)
{
	struct home *head = homes_head(p->home);
	struct last_words l = { .watcher = w, .head = head, .pid = p->pid };

	if (head && !head->told) {
		totals_of(&l.totals, head);
		homes_each(p->home, head, add_record, &l);
		if (w->attr->stats)
			append_totals(w, &l.totals, p->pid, head->program);
	}
	free(head);
}

static void forget(struct watcher *w, size_t i)
{
	close(w->processes[i].home);
	if (w->processes[i].pidfd >= 0)
		close(w->processes[i].pidfd);
	w->processes[i] = w->processes[--w->n];
}

/* ---- letters ---- */

static bool take_home(struct watcher *w, int home, pid_t pid)
{
	struct process *more = w->processes;

	if (w->n == w->room) {
		w->room = w->room ? 2 * w->room : 16;
		more = realloc(more, w->room * sizeof(*more));
		if (!more) {
			w->room = w->n;
			return false;
		}
		w->processes = more;
	}
	/* Without a descriptor of it (it is gone already, or none is left) it counts as ended. */
	w->processes[w->n++] = (struct process) { pid, pidfd_open(pid, 0), home };
	return true;
}

static void take_absent(struct watcher *w, const struct tell_letter *letter, uid_t uid)
{
	struct absent *a;

	HASH_FIND(hh, w->absent, letter->ends, sizeof(a->ends), a);
	if (!a && HASH_COUNT(w->absent) < ABSENT_MOST) {
		a = calloc(1, sizeof(*a));
		if (!a)
			return;
		memcpy(a->ends, letter->ends, sizeof(a->ends));
		HASH_ADD(hh, w->absent, ends, sizeof(a->ends), a);
	} else if (!a || *a->reason) {
		return;
	}
	a->looks = 0;
	w->unknown++;
	w->uid = uid;
}

/* The descriptor that came along, or -1; none that is not wanted stays. */
static int enclosure(struct msghdr *msg)
{
	int fd = -1;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
		size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; i < n; i++) {
			int got;

			memcpy(&got, CMSG_DATA(c) + i * sizeof(int), sizeof(got));
			if (fd < 0)
				fd = got;
			else
				close(got);
		}
	}
	return fd;
}

static void read_letter(struct watcher *w, int from, const struct ucred *who)
{
	struct tell_letter letter = { 0 };
	struct iovec iov = { &letter, sizeof(letter) - 1 }; /* an end for its text */
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(4 * sizeof(int))];
	} control;
	struct msghdr msg = { .msg_iov = &iov,
			      .msg_iovlen = 1,
			      .msg_control = &control,
			      .msg_controllen = sizeof(control) };
	ssize_t n = recvmsg(from, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	int fd = n > 0 ? enclosure(&msg) : -1;

	if (n >= (ssize_t)offsetof(struct tell_letter, line) && letter.version == HOME_VERSION &&
	    memcmp(letter.token, w->token, TELL_TOKEN) == 0) {
		if (letter.kind == TELL_HOME && fd >= 0 && take_home(w, fd, who->pid))
			return;
		if (letter.kind == TELL_ABSENT)
			take_absent(w, &letter, who->uid);
		else if (letter.kind == TELL_CLOSED && w->attr->why)
			say_line(w, letter.line, letter.why, letter.ends);
	}
	if (fd >= 0)
		close(fd);
}

/* A letter is there when its sender is: it sends right after it has connected, or ends. */
static void take_letters(struct watcher *w)
{
	for (;;) {
		struct ucred who;
		socklen_t size = sizeof(who);
		int fd = accept4(w->attr->listener, NULL, NULL, SOCK_CLOEXEC);
		struct pollfd wait = { .fd = fd, .events = POLLIN };

		if (fd < 0)
			return;
		if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0 &&
		    poll(&wait, 1, 1000) == 1)
			read_letter(w, fd, &who);
		close(fd);
	}
}

/* ---- who is at the other end? ---- */

static const struct homes_connection *find(const struct homes *h, const uint8_t ends[36])
{
	struct homes_connection key = { .known = true };
	const struct homes_connection *c;

	memcpy(key.key, ends, sizeof(key.key));
	c = homes_find(h, &key);
	key.known = false;
	return c ? c : homes_find(h, &key);
}

/* All who are not known yet, at once: a look goes through all processes of the user. */
static void look_around(struct watcher *w)
{
	const struct homes_connection *c;
	struct absent *a, *next;
	struct homes homes;

	if (!w->unknown || !homes_read(&homes, w->uid))
		return;
	w->unknown = 0;
	HASH_ITER(hh, w->absent, a, next) {
		if (*a->reason || a->looks >= LOOKS)
			continue;
		c = find(&homes, a->ends);
		if (c && *c->detail)
			homes_reason(a->reason, sizeof(a->reason), c);
		else if (++a->looks < LOOKS)
			w->unknown++;
	}
	homes_free(&homes);
}

/* ---- the guard ---- */

static void answer(struct watcher *w)
{
	struct timespec wait = { .tv_nsec = GROUP_NS };
	struct watcher_question q;
	sigset_t set;

	if (recv(w->attr->control, &q, sizeof(q), 0) != (ssize_t)sizeof(q) || q.signal == 0) {
		w->ended = true; /* or the guard was killed, and the program with it */
		return;
	}
	sigemptyset(&set);
	sigaddset(&set, q.signal);
	q.yes = sigtimedwait(&set, NULL, &wait) == q.signal;
	send(w->attr->control, &q, sizeof(q), MSG_NOSIGNAL);
}

/* Wait for something, and tell of processes that have ended. */
static void turn(struct watcher *w, int timeout)
{
	struct pollfd *fds = calloc(w->n + 2, sizeof(*fds));
	size_t n = w->n;

	if (!fds)
		return;
	fds[0] = (struct pollfd) { .fd = w->attr->listener, .events = POLLIN };
	fds[1] = (struct pollfd) { .fd = w->ended ? -1 : w->attr->control, .events = POLLIN };
	for (size_t i = 0; i < n; i++) {
		fds[i + 2] = (struct pollfd) { .fd = w->processes[i].pidfd, .events = POLLIN };
		if (w->processes[i].pidfd < 0)
			timeout = 0;
	}
	poll(fds, n + 2, timeout);
	if (fds[1].revents)
		answer(w);
	take_letters(w); /* before their senders count as ended */
	look_around(w);
	for (size_t i = n; i-- > 0;) {
		if (!fds[i + 2].revents && w->processes[i].pidfd >= 0)
			continue;
		tell_for(w, &w->processes[i]);
		forget(w, i);
	}
	free(fds);
}

void watcher_run(const struct watcher_attr *attr)
{
	struct watcher w = { .attr = attr };
	const char *token = strchr(getenv(TELL_VARIABLE), ':');
	uint64_t end;
	sigset_t all;

	memcpy(w.token, token + 1, TELL_TOKEN);
	sigfillset(&all);
	sigprocmask(SIG_BLOCK, &all, NULL);
	while (!w.ended)
		turn(&w, w.unknown ? LOOK_AGAIN : -1);
	end = util_now_ns() + LAST_WAIT * UINT64_C(1000000);
	do {
		turn(&w, 10);
	} while (w.n && util_now_ns() < end);
	/* Those who live on tell it themselves. */
}
