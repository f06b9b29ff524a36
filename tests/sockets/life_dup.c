/* SPDX-License-Identifier: MIT */
/* Other numbers for the connection, and other files for its number. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "life.h"

enum {
	DUP,
	DUP2,
	DUP3,
	FCNTL,
	ZERO,      /* becomes the standard input */
	ALTERNATE, /* both numbers are used in turn */
	REPLACED,  /* another file takes the number: the connection ends */
	CLOSE_ALL, /* a daemon closes whatever it does not know */
	THEIRS,    /* the partner has another number; then only TCP will do */
	KINDS
};

static void go_on_at(struct life *l, int fd, bool close_old)
{
	int old = l->st.fd;

	if (fd < 0)
		stage_die(&l->st, "dup: %s", stage_errno(errno));
	if (close_old && close(old))
		stage_bad(&l->st, "close: %s", stage_errno(errno));
	l->st.fd = fd;
	life_go_on(l);
	life_calm(l);
}

static void alternate(struct life *l)
{
	int fd[2] = { l->st.fd, dup(l->st.fd) };

	for (int i = 0; i < 5; i++)
		go_on_at(l, fd[(i + 1) % 2], false);
	close(fd[0]);
	go_on_at(l, fd[1], false);
}

/* The number of the connection gets another file, which is then used under it. */
static void replace(struct life *l)
{
	int ends[2];
	char octet = 0;

	if (pipe(ends) || dup2(ends[0], l->st.fd) != l->st.fd)
		stage_die(&l->st, "dup2: %s", stage_errno(errno));
	if (write(ends[1], "x", 1) != 1 || read(l->st.fd, &octet, 1) != 1 || octet != 'x')
		stage_bad(&l->st, "the pipe does not work under the old number");
	if (l->asleep)
		stage_say(&l->st, "was asleep, read %lld", (long long)life_answer(l));
	close(ends[0]);
	close(ends[1]);
}

static void close_all(struct life *l)
{
	if (dup2(l->st.ctl, 5) != 5 || dup2(l->st.fd, 6) != 6 || dup2(l->listener, 7) != 7)
		stage_die(&l->st, "dup2: %s", stage_errno(errno));
	l->st.ctl = 5;
	l->st.fd = 6;
	l->listener = 7;
	if (close_range(8, ~0U, 0))
		stage_bad(&l->st, "close_range: %s", stage_errno(errno));
	life_go_on(l);
	life_calm(l);
	/* And whatever else the process does with connections still works. */
	close(l->st.fd);
	life_end(l);
	life_ask(l, LIFE_CLOSES, 0);
	life_answer(l);
	life_connect(l);
	life_warm(l);
	life_go_on(l);
}

/* What was sent before must come where a stranger would look for it, though the sender does nothing. */
static void theirs(struct life *l)
{
	int one = 1, unread = -1;

	if (!l->asleep) {
		life_ask(l, LIFE_MOVES, 0);
		stage_say(&l->st, "the partner moves: %lld", (long long)life_answer(l));
	}
	if (setsockopt(l->st.fd, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof(one)))
		stage_bad(&l->st, "SO_RCVLOWAT: %s", stage_errno(errno));
	stage_settle(&l->st, l->pending);
	/* Past the C library. */
	syscall(SYS_ioctl, l->st.fd, FIONREAD, &unread);
	stage_say(&l->st, "the kernel has %d", unread);
	life_go_on(l);
}

static void play(struct life *l)
{
	int fd;

	/* 5 to 7 are wanted later, whatever the caller had open. */
	for (int i = 0; l->kind == CLOSE_ALL && i < 8; i++)
		if (dup(0) > 7)
			break;
	life_begin(l);
	fd = l->st.fd;
	switch (l->kind) {
	case DUP: go_on_at(l, dup(fd), true); break;
	case DUP2: go_on_at(l, dup2(fd, 90), true); break;
	case DUP3: go_on_at(l, dup3(fd, 91, O_CLOEXEC), true); break;
	case FCNTL: go_on_at(l, fcntl(fd, F_DUPFD, 100), true); break;
	case ZERO: go_on_at(l, dup2(fd, 0), true); break;
	case ALTERNATE: alternate(l); break;
	case REPLACED: replace(l); break;
	case THEIRS: theirs(l); break;
	default: close_all(l); break;
	}
	close(l->st.fd);
	life_end(l);
}

int main(void)
{
	return life_main(play, KINDS, NULL);
}
