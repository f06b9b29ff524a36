/* SPDX-License-Identifier: MIT */
/* posix_spawn(), system() and vfork(): with the connection for the new program, or beside it. */
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "life.h"

enum { AS_IT_IS, AS_INPUT, WITHOUT, STATIC_INPUT, BESIDE, VFORK, KINDS };

extern char **environ;

static void spawn(struct life *l)
{
	posix_spawn_file_actions_t actions;
	static char *const nothing[] = { NULL };
	char *const *args;
	bool input = l->kind == AS_INPUT || l->kind == STATIC_INPUT;
	pid_t child;

	life_heir_args(l, l->kind == STATIC_INPUT ? "life_heir_static" : "life_heir",
		       input ? 0 : l->st.fd, false, &args);
	posix_spawn_file_actions_init(&actions);
	if (input) {
		posix_spawn_file_actions_adddup2(&actions, l->st.fd, 0);
		posix_spawn_file_actions_addclose(&actions, l->st.fd);
	}
	if (posix_spawn(&child, args[0], &actions, NULL, args,
			l->kind == WITHOUT ? nothing : environ))
		stage_die(&l->st, "posix_spawn");
	posix_spawn_file_actions_destroy(&actions);
	life_wait(l, child);
	life_skip(l);
	life_calm(l);
}

static void play(struct life *l)
{
	pid_t child;

	life_begin(l);
	if (l->kind == BESIDE) {
		if (system("exit 0"))
			stage_bad(&l->st, "system");
	} else if (l->kind == VFORK) {
		child = vfork();
		if (child == 0) {
			execl("/bin/true", "true", NULL);
			_exit(9);
		}
		life_wait(l, child);
	} else {
		spawn(l);
	}
	life_go_on(l);
	close(l->st.fd);
	life_end(l);
}

int main(void)
{
	return life_main(play, KINDS, NULL);
}
