/* SPDX-License-Identifier: MIT */
/* Parent and child use one connection at the same time. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "life.h"

#define RECORD  64
#define RECORDS 2000
#define OCTETS  (RECORD * RECORDS)

enum { BOTH_SEND, BOTH_READ, ALL, ONE_EACH, KILLED, KINDS };

/* The order of what two readers got is not known; number and sum of the octets are. */
struct sums {
	uint64_t count, sum;
};

static void read_until_end(int fd, struct sums *total)
{
	uint8_t buffer[1000];
	ssize_t n;

	while ((n = recv(fd, buffer, sizeof(buffer), 0)) > 0) {
		__atomic_fetch_add(&total->count, (uint64_t)n, __ATOMIC_SEQ_CST);
		for (ssize_t i = 0; i < n; i++)
			__atomic_fetch_add(&total->sum, buffer[i], __ATOMIC_SEQ_CST);
	}
	if (n < 0)
		_exit(4);
}

/* Every record in one call: records of two processes do not mix. */
static void send_records(int fd, uint8_t mark)
{
	uint8_t record[RECORD];

	memset(record, mark, sizeof(record));
	for (int i = 0; i < RECORDS; i++)
		if (send(fd, record, RECORD, MSG_NOSIGNAL) != RECORD)
			_exit(3);
}

static void use(struct stage *s, bool sends, bool with_child, struct sums *total)
{
	struct life l = { .st = *s };
	pid_t child = with_child ? fork() : 1;

	if (sends)
		send_records(s->fd, child ? 3 : 5);
	else
		read_until_end(s->fd, total);
	if (child == 0)
		_exit(0);
	if (with_child)
		life_wait(&l, child);
	if (sends)
		shutdown(s->fd, SHUT_WR);
}

static void nothing(int number)
{
	(void)number;
}

/* A child that sleeps in the kernel's send() is killed, and nobody asks for its status yet. */
static void use_after_kill(struct stage *s, struct sums *total)
{
	struct sigaction sa = { .sa_handler = nothing };
	static uint8_t some[4096];
	pid_t child;

	if (s->side) {
		stage_meet(s, 0);
		read_until_end(s->fd, total);
		return;
	}
	/* Handlers of both kinds: only the kernel knows which one ends a call. */
	sigaction(SIGUSR1, &sa, NULL);
	sa.sa_flags = SA_RESTART;
	sigaction(SIGUSR2, &sa, NULL);
	child = fork();
	while (child == 0)
		send(s->fd, some, sizeof(some), MSG_NOSIGNAL);
	stage_nap(3000000);
	kill(child, SIGKILL);
	stage_meet(s, 0);
	stage_say(s, "after that: %zd", send(s->fd, some, 1, MSG_NOSIGNAL));
	shutdown(s->fd, SHUT_WR);
	waitpid(child, NULL, 0);
}

static void share(struct life *l)
{
	struct sums *total = mmap(NULL, sizeof(*total), PROT_READ | PROT_WRITE,
				  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int listener = stage_listen(AF_INET, 1);
	bool sends;
	struct stage s;

	stage_split(&s);
	s.name = s.side ? 'D' : 'C';
	stage_connect(&s, listener, 9);
	stage_warm(&s, 16);
	stage_meet(&s, 0);
	sends = s.side == 0;
	if (l->kind == KILLED)
		use_after_kill(&s, total);
	else
		use(&s, sends, l->kind == ALL || sends == (l->kind == BOTH_SEND), total);
	close(s.fd);
	if (s.side) {
		/* How much a child had sent when it was killed nobody knows. */
		if (l->kind != KILLED)
			stage_say(&s, "read %llu, sum %llu", (unsigned long long)total->count,
				  (unsigned long long)total->sum);
		_exit(stage_bads() != 0);
	}
	if (stage_join(&s))
		stage_bad(&s, "the other failed");
}

/* The parent sends while the child reads. */
static void one_each(struct life *l)
{
	pid_t child;

	life_begin(l);
	life_go_on(l);
	life_calm(l);
	child = fork();
	if (child == 0) {
		l->st.name = 'C';
		stage_recv(&l->st, OCTETS);
		_exit(stage_bads() != 0);
	}
	life_ask(l, LIFE_SENDS, OCTETS);
	life_ask(l, LIFE_READS, OCTETS);
	stage_send(&l->st, OCTETS);
	for (int i = 0; i < 2; i++)
		stage_say(&l->st, "partner %lld", (long long)life_answer(l));
	life_wait(l, child);
	l->st.in.at += OCTETS;
	life_go_on(l);
	close(l->st.fd);
	life_end(l);
}

static void play(struct life *l)
{
	if (l->kind == ONE_EACH)
		one_each(l);
	else if (l->pending == 0 && !l->asleep)
		share(l);
}

int main(void)
{
	return life_main(play, KINDS, NULL);
}
