/* SPDX-License-Identifier: MIT */
/* fork() before and after the first octets; the child, the parent, or both go on. */
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "life.h"

enum {
	AT_ONCE,    /* after accept(), as a server with a process per connection does */
	IN_A_SET,   /* the same, and it ends with the connection in a set */
	CHILD,      /* the parent has closed its descriptor */
	TAKE_TURNS, /* child, then parent, then another child */
	TWICE,      /* a grandchild goes on, both parents are gone */
	EXITS,      /* the child does not touch the connection and exits */
	KINDS
};

static pid_t go_on_in_child(struct life *l)
{
	pid_t child = fork();

	if (child == 0) {
		l->st.name = 'C';
		life_go_on(l);
		_exit(stage_bads() != 0);
	}
	return child;
}

static void at_once(struct life *l)
{
	pid_t child;

	life_connect(l);
	child = fork();
	if (child) {
		close(l->st.fd);
		life_wait(l, child);
		return;
	}
	l->st.name = 'C';
	if (l->kind == IN_A_SET && epoll_ctl(epoll_create1(EPOLL_CLOEXEC), EPOLL_CTL_ADD, l->st.fd,
					     &(struct epoll_event) { .events = EPOLLIN }))
		stage_die(&l->st, "epoll_ctl");
	life_warm(l);
	life_calm(l);
	life_go_on(l);
	_exit(stage_bads() != 0);
}

static void take_turns(struct life *l)
{
	for (int i = 0; i < 4; i++) {
		if (i % 2 == 0) {
			life_wait(l, go_on_in_child(l));
			life_skip(l);
		} else {
			life_go_on(l);
		}
		life_calm(l);
	}
}

static void twice(struct life *l)
{
	int hold[2];
	char octet;
	pid_t child;

	if (pipe(hold))
		return;
	child = fork();
	if (child == 0) {
		close(hold[0]);
		go_on_in_child(l);
		_exit(0);
	}
	close(l->st.fd);
	close(hold[1]);
	life_wait(l, child);
	/* The grandchild holds the other end until it is done. */
	if (read(hold[0], &octet, 1) != 0)
		stage_bad(&l->st, "the pipe is not at its end");
}

static void play(struct life *l)
{
	pid_t child;

	if (l->kind == AT_ONCE || l->kind == IN_A_SET) {
		at_once(l);
		return;
	}
	life_begin(l);
	if (l->kind == CHILD) {
		child = go_on_in_child(l);
		close(l->st.fd);
		life_wait(l, child);
	} else if (l->kind == TAKE_TURNS) {
		take_turns(l);
	} else if (l->kind == TWICE) {
		twice(l);
	} else {
		child = fork();
		if (child == 0)
			_exit(0);
		life_wait(l, child);
		life_go_on(l);
	}
	/* The last holder has closed: the partner sees the end, after every octet. */
	if (l->kind != CHILD && l->kind != TWICE)
		close(l->st.fd);
	life_end(l);
}

int main(void)
{
	return life_main(play, KINDS, NULL);
}
