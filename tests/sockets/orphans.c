/* SPDX-License-Identifier: MIT */
/*
 *   orphans [N]        N times (400) a child that shares connections with its parent is killed
 *
 * The parent lives on, as a server with a process per connection does. What the dead held must not
 * add up in it: descriptors, mappings and shared memory are what they were after the first few.
 */
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "processes.h"
#include "stage.h"

enum kind {
	IDLE,   /* the child has the connection, and nothing comes */
	SERVES, /* the child has it, with a lane of its own, and sleeps in a read */
	KEPT,   /* the parent goes on with it, on its lane */
	LEFT,   /* the parent had a lane and leaves it to the child */
	KINDS
};

#define TURNS     12
#define PIECE     64
#define HANG_S    60
#define SETTLED   (KINDS * 40)
#define SLACK_KIB 64

static struct stage st = { .name = 'A' };
static volatile uint32_t *ready; /* shared with the children */

static void on_hang(int signal)
{
	(void)signal;
	stage_bad(&st, "hangs");
	_exit(1);
}

/* Gives back what it gets, one connection after the other. */
static void echo(int listener)
{
	char data[PIECE];
	ssize_t n;
	int fd;

	for (;;) {
		fd = stage_dial(listener);
		if (fd < 0)
			_exit(0);
		while ((n = recv(fd, data, sizeof(data), 0)) > 0)
			if (send(fd, data, (size_t)n, MSG_NOSIGNAL) != n)
				break;
		close(fd);
	}
}

static void turns(int fd)
{
	char data[PIECE] = { 0 };

	for (int i = 0; i < TURNS; i++)
		if (send(fd, data, sizeof(data), MSG_NOSIGNAL) != sizeof(data) ||
		    recv(fd, data, sizeof(data), MSG_WAITALL) != sizeof(data))
			stage_bad(&st, "no answer: %s", stage_errno(errno));
}

static void child(int fd, enum kind kind)
{
	char octet;

	if (kind == SERVES || kind == LEFT)
		turns(fd);
	*ready = 1;
	if (kind == SERVES || kind == LEFT)
		recv(fd, &octet, 1, 0);
	for (;;)
		pause();
}

static void play(int listener, enum kind kind)
{
	int fd = accept(listener, NULL, NULL);
	pid_t pid;
	int status;

	if (kind == KEPT || kind == LEFT)
		turns(fd);
	*ready = 0;
	pid = fork();
	if (pid == 0)
		child(fd, kind);
	if (kind != KEPT)
		close(fd);
	while (!*ready)
		stage_nap(100);
	stage_nap(500);
	kill(pid, SIGKILL);
	waitpid(pid, &status, 0);
	if (kind == KEPT) {
		turns(fd);
		close(fd);
	}
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 400;
	int listener = stage_listen(AF_INET, 4);
	struct footprint before = { 0 }, after;
	pid_t partner = fork();

	if (partner == 0)
		echo(listener);
	ready = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	signal(SIGALRM, on_hang);
	for (int i = 0; i < rounds; i++) {
		alarm(HANG_S);
		play(listener, (enum kind)(i % KINDS));
		if (i == SETTLED)
			before = processes_footprint(getpid());
	}
	after = processes_footprint(getpid());
	kill(partner, SIGKILL);
	waitpid(partner, NULL, 0);
	stage_say(&st, "descriptors %u then %u, mappings %u then %u, shared %u then %u KiB",
		  before.descriptors, after.descriptors, before.mappings, after.mappings,
		  before.shared_kib, after.shared_kib);
	if (after.descriptors > before.descriptors || after.mappings > before.mappings ||
	    after.shared_kib > before.shared_kib + SLACK_KIB)
		stage_bad(&st, "something of the dead remains");
	return stage_bads() != 0;
}
