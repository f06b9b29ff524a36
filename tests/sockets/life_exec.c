/* SPDX-License-Identifier: MIT */
/* exec of a program that has the library or has not, in a child or in the process itself. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "life.h"

enum {
	CHILD_WITH,
	CHILD_WITHOUT,
	CHILD_STATIC,
	SELF_WITH, /* from here on: a child has connected, has no parent that holds the connection */
	SELF_WITHOUT,
	SELF_STATIC,
	SELF_CLOSES, /* the descriptor is closed by exec */
	KINDS
};

static void become(struct life *l)
{
	char *const *args;
	bool is_static = l->kind == CHILD_STATIC || l->kind == SELF_STATIC;

	if (l->kind == CHILD_WITHOUT || l->kind == SELF_WITHOUT)
		unsetenv("LD_PRELOAD");
	if (l->kind == SELF_CLOSES) {
		fcntl(l->st.fd, F_SETFD, FD_CLOEXEC);
		execl("/bin/true", "true", NULL);
	}
	life_heir_args(l, is_static ? "life_heir_static" : "life_heir", l->st.fd, false, &args);
	execv(args[0], args);
	_exit(9);
}

static void play(struct life *l)
{
	pid_t child;

	if (l->kind < SELF_WITH)
		life_begin(l);
	child = fork();
	if (child == 0) {
		if (l->kind >= SELF_WITH)
			life_begin(l);
		become(l);
	}
	life_wait(l, child);
	if (l->kind < SELF_WITH) {
		/* The parent still has the connection and finds it where the heir left it. */
		life_skip(l);
		life_calm(l);
		life_go_on(l);
		close(l->st.fd);
	} else if (l->kind == SELF_CLOSES && l->asleep) {
		stage_say(&l->st, "was asleep, read %lld", (long long)life_answer(l));
	}
	life_end(l);
}

int main(void)
{
	return life_main(play, KINDS, NULL);
}
