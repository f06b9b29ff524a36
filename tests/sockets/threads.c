/* SPDX-License-Identifier: MIT */
/*
 *   threads SEED [-raw] [+bad]...     a random program with threads, see threads.h
 *   threads --plan SEED ...           what its threads will try
 *
 * A word takes something away that the seed may do, or adds it; the plan is another one then.
 * Prints broken promises, and at the end how to see them again.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "threads.h"

#define LIMIT_S 40 /* no call of these programs has a reason to last a second */

struct world *world;

/* ---- the log ---- */

struct call *log_call(enum call_kind kind, const char *what, uint64_t begin, int number, size_t len)
{
	unsigned i = atomic_fetch_add(&world->calls, 1);
	struct call *c = &world->call[i];

	if (i >= MAX_CALLS) {
		atomic_fetch_sub(&world->calls, 1);
		return NULL;
	}
	c->kind = kind;
	c->what = what;
	c->number = number;
	c->len = (uint32_t)len;
	c->begin = begin;
	c->result = RESULT_UNKNOWN;
	return c;
}

void log_result(struct call *c, int64_t result, int err)
{
	c->err = result < 0 ? err : 0;
	c->result = result;
	atomic_store(&c->end, stamp());
}

void log_event(enum event_kind kind, int number, int other, uint64_t from)
{
	unsigned i = atomic_fetch_add(&world->events, 1);
	struct event *e = &world->event[i];

	if (i >= MAX_EVENTS)
		watch_die("the log is full");
	*e = (struct event) { kind, number, other, from, stamp() };
}

int log_conn(bool by_tame)
{
	unsigned i = atomic_fetch_add(&world->conns, 1);

	if (i < MAX_CONNS) {
		world->conn[i].by_tame = by_tame;
		return (int)i;
	}
	atomic_fetch_sub(&world->conns, 1);
	return -1;
}

/* Both sides may have the same port: they connect to different ones. */
static bool has_port(const struct conn *c, int port, bool by_tame)
{
	return atomic_load(&c->port) == port && c->by_tame == by_tame;
}

int log_find_port(int port, bool by_tame)
{
	for (unsigned i = atomic_load(&world->conns); i-- > 0;)
		if (has_port(&world->conn[i], port, by_tame))
			return (int)i;
	return -1;
}

int log_meet(int port, bool by_tame)
{
	for (unsigned i = atomic_load(&world->conns); i-- > 0;)
		if (has_port(&world->conn[i], port, by_tame) &&
		    !atomic_exchange(&world->conn[i].met, true))
			return (int)i;
	return -1;
}

int conn_port(int fd, bool peer)
{
	struct sockaddr_in at;
	socklen_t len = sizeof(at);

	if (peer ? getpeername(fd, (struct sockaddr *)&at, &len)
		 : getsockname(fd, (struct sockaddr *)&at, &len))
		return -1;
	return ntohs(at.sin_port);
}

/* ---- the processes ---- */

static void play(void)
{
	int (*const mains[2])(void) = { wild_main, tame_main };
	pid_t pid[2];

	fflush(stdout);
	for (int i = 0; i < 2; i++) {
		pid[i] = fork();
		if (pid[i] < 0) {
			perror("fork");
			exit(2);
		}
		if (pid[i] == 0) {
			watch_process("WT"[i]);
			exit(mains[i]());
		}
	}
	watch_over(pid, "WT", 2);
}

int main(int argc, char **argv)
{
	bool plan = argc > 1 && strcmp(argv[1], "--plan") == 0;
	char words[100] = "";
	int at = plan ? 2 : 1, n = 0;

	if (argc > 1 && strcmp(argv[1], "heir") == 0)
		return odd_heir(argc - 2, argv + 2);
	watch_open(LIMIT_S);
	world = watch_share(sizeof(*world));
	plan_seed(argc > at ? strtoull(argv[at], NULL, 0) : 1, world);
	for (int i = at + 1; i < argc; i++)
		if (!plan_change(argv[i])) {
			fprintf(stderr, "threads: what is '%s'?\n", argv[i]);
			return 2;
		} else if (n < (int)sizeof(words) - 20) {
			n += snprintf(words + n, sizeof(words) - (size_t)n, " %s", argv[i]);
		}
	if (plan) {
		plan_print();
		return 0;
	}
	play();
	/* What a process that was broken off has logged says nothing. */
	if (atomic_load(&world->done))
		judge();
	watch_say("%u calls, %u connections", atomic_load(&world->calls),
		  atomic_load(&world->conns));
	return watch_verdict("%s %llu%s", argv[0], (unsigned long long)world->seed, words);
}
