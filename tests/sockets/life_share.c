/* SPDX-License-Identifier: MIT */
/* Parent and child use one connection at the same time. */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "life.h"

#define RECORD  64
#define RECORDS 2000
#define OCTETS  (RECORD * RECORDS)

enum { BOTH_SEND, BOTH_READ, ALL, ONE_EACH, KINDS };

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
	use(&s, sends, l->kind == ALL || sends == (l->kind == BOTH_SEND), total);
	close(s.fd);
	if (s.side) {
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
