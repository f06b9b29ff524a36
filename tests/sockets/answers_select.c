/* SPDX-License-Identifier: MIT */
/* select() and pselect() with sets of all sizes, and with numbers that are larger than the sets. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "answers.h"

#define MOST  4096 /* descriptors */
#define WORD  64
#define HIGH  3000
#define LATE  10 /* seconds: what is sent soon comes long before */
#define CROWD 400
#define PAGE  4096

typedef unsigned long big_set[MOST / WORD];

static int a, b; /* the ends of a connection */

static void begin(void)
{
	struct rlimit limit = { MOST, MOST };
	int ends[2];

	setrlimit(RLIMIT_NOFILE, &limit);
	answer_warm_pair(ends);
	a = ends[0];
	b = ends[1];
}

static void add(unsigned long *set, int fd)
{
	set[fd / WORD] |= 1ul << fd % WORD;
}

/* A pipe whose reading end has this number. */
static int pipe_at(int number)
{
	int ends[2];

	if (pipe(ends) || dup2(ends[0], number) != number)
		answer_broken("pipe");
	close(ends[0]);
	return ends[1];
}

static int sleep_by(int how, int n, void *reads, void *writes, void *excepts)
{
	struct timeval tv = { LATE, 0 };
	struct timespec ts = { LATE, 0 };
	struct {
		void *mask;
		size_t size;
	} masks = { 0 };

	switch (how) {
	case 0: return select(n, reads, writes, excepts, &tv);
	case 1: return pselect(n, reads, writes, excepts, &ts, NULL);
	case 2: return (int)syscall(SYS_select, n, reads, writes, excepts, &tv);
	case 3: return (int)syscall(SYS_pselect6, n, reads, writes, excepts, &ts, &masks);
	default: return select(n, reads, writes, excepts, NULL);
	}
}

#define HOWS 5

static void tell(const char *what, int n, const unsigned long *set)
{
	char text[200] = "";
	size_t used = 0;

	for (int fd = 0; set && fd < MOST && used < sizeof(text) - 10; fd++)
		if (set[fd / WORD] >> fd % WORD & 1)
			used += (size_t)snprintf(text + used, sizeof(text) - used, " %d", fd);
	answer("%s: %s,%s", what, answer_of(n), text);
}

/* The connection has a high number, or a low one; the program's number is high in both. */
static void large_sets(void)
{
	for (int how = 0; how < HOWS; how++) {
		for (int high = 0; high < 2; high++) {
			big_set reads = { 0 };
			int fd = 40, quiet;

			begin();
			if (high)
				fd = HIGH;
			dup2(b, fd);
			close(b);
			quiet = pipe_at(2000);
			add(reads, fd);
			add(reads, 2000);
			answer_soon(a, "hello");
			tell("woken", sleep_by(how, HIGH + 1, reads, NULL, NULL), reads);
			answer("came %s", answer_read(fd, 5));
			if (write(quiet, "x", 1) != 1)
				answer_broken("write");
			add(reads, fd);
			add(reads, 2000);
			tell("the pipe", sleep_by(how, HIGH + 500, reads, NULL, NULL), reads);
			close(fd);
			close(2000);
			close(a);
			close(quiet);
		}
	}
}

/* The set ends where memory ends, and the number goes beyond: as select(getdtablesize(), ...) does. */
static void large_number(void)
{
	char *memory = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			    0);
	unsigned long *set = (void *)(memory + PAGE - sizeof(fd_set));

	munmap(memory + PAGE, PAGE);
	begin();
	for (int how = 0; how < HOWS; how++) {
		int n;

		memset(set, 0, sizeof(fd_set));
		add(set, b);
		answer_soon(a, "hello");
		n = sleep_by(how, getdtablesize(), set, NULL, NULL);
		answer("%d: %s, set %d", how, answer_of(n), (int)(set[b / WORD] >> b % WORD & 1));
		answer("came %s", answer_read(b, 5));
	}
}

/* What stands behind the table of descriptors is neither read nor written. */
static void rubbish_behind(void)
{
	big_set reads;

	begin();
	memset(reads, 0xff, sizeof(reads));
	memset(reads, 0, sizeof(fd_set));
	add(reads, b);
	answer_soon(a, "hello");
	answer("%s", answer_of(select(MOST, (fd_set *)reads, NULL, NULL, NULL)));
	answer("behind %lx %lx", reads[sizeof(fd_set) / 8], reads[MOST / WORD - 1]);
	memset(reads, 0xff, sizeof(reads));
	answer("all %s", answer_of(select(MOST, (fd_set *)reads, NULL, NULL, NULL)));
}

static void not_open(void)
{
	big_set reads = { 0 };
	int other;

	begin();
	add(reads, b);
	add(reads, other = dup(b));
	close(other);
	tell("closed", select(b + 10, (fd_set *)reads, NULL, NULL, NULL), NULL);
	dup2(b, HIGH);
	memset(reads, 0, sizeof(reads));
	add(reads, b);
	add(reads, HIGH - 5);
	tell("closed", select(HIGH, (fd_set *)reads, NULL, NULL, NULL), NULL);
	tell("not asked for", select(b, (fd_set *)reads, NULL, NULL, &(struct timeval) { 0 }),
	     NULL);
}

/* More members than a stack should hold. */
static void crowd(void)
{
	big_set reads = { 0 }, writes = { 0 }, excepts = { 0 };
	int ends[2], n, first = 0, last = 0;

	begin();
	for (int i = 0; i < CROWD; i++) {
		if (pipe(ends))
			answer_broken("pipe");
		add(reads, ends[0]);
		add(writes, ends[1]);
		add(excepts, ends[0]);
		first = first ? first : ends[0];
		last = ends[1];
	}
	add(reads, b);
	answer_soon(a, "hello");
	n = select(last + 1, (fd_set *)reads, NULL, (fd_set *)excepts, NULL);
	tell("reads", n, reads);
	tell("excepts", n, excepts);
	add(reads, b);
	n = select(last + 1, (fd_set *)reads, (fd_set *)writes, NULL, NULL);
	tell("reads", n, reads);
	answer("first %d", (int)(writes[first / WORD] != 0));
	answer("came %s", answer_read(b, 5));
	add(reads, b);
	n = select(last + 1, (fd_set *)reads, NULL, NULL, &(struct timeval) { 0, 1000 });
	tell("nothing", n, reads);
}

/* The end of another is nothing that was asked for. */
static void ends_of_others(void)
{
	big_set reads = { 0 }, excepts = { 0 };
	int ends[2], n;

	begin();
	if (pipe(ends))
		answer_broken("pipe");
	close(ends[1]);
	add(reads, b);
	add(excepts, ends[0]);
	answer_soon(a, "hello");
	n = select(64, (fd_set *)reads, NULL, (fd_set *)excepts, &(struct timeval) { LATE, 0 });
	answer("%s, set %d", answer_of(n), (int)(reads[0] >> b & 1));
	answer("excepts %lx", excepts[0]);
}

/* More numbers with a lane than fit anywhere, all readable, and all of the other end writable. */
static void many_numbers(void)
{
	struct pollfd p[CROWD];
	big_set reads = { 0 }, writes = { 0 };
	int high = 0, ready = 0;

	begin();
	send(a, "x", 1, 0);
	for (int i = 0; i < CROWD; i++) {
		int fd = dup(i % 2 ? a : b);

		p[i] = (struct pollfd) { .fd = fd, .events = i % 2 ? POLLOUT : POLLIN };
		add(i % 2 ? writes : reads, fd);
		high = fd > high ? fd : high;
	}
	answer("poll %s", answer_of(poll(p, CROWD, -1)));
	for (int i = 0; i < CROWD; i++)
		ready += p[i].revents == p[i].events;
	answer("ready %d", ready);
	answer("select %s",
	       answer_of(select(high + 1, (fd_set *)reads, (fd_set *)writes, NULL, NULL)));
	answer("read %s", answer_read(p[0].fd, 1));
	answer_soon(a, "y");
	for (int i = 0; i < CROWD; i++)
		p[i].events = POLLIN;
	answer("then %s", answer_of(poll(p, CROWD, -1)));
}

static void times(void)
{
	struct timeval odd = { 0, 1500000 }, left = { 100, 900000 }, none = { 0 };
	big_set reads = { 0 };

	begin();
	add(reads, b);
	tell("none", select(b + 1, (fd_set *)reads, NULL, NULL, &none), reads);
	add(reads, b);
	answer_soon(a, "x");
	tell("odd", select(b + 1, (fd_set *)reads, NULL, NULL, &odd), NULL);
	answer("left %d", odd.tv_sec == 1 || odd.tv_usec < 1500000);
	select(b + 1, (fd_set *)reads, NULL, NULL, &left);
	answer("left %ld", (long)left.tv_sec);
	left = (struct timeval) { -1, 0 };
	tell("before", select(b + 1, (fd_set *)reads, NULL, NULL, &left), NULL);
	/* Nobody sleeps when it comes. */
	answer("came %s", answer_read(b, 1));
	send(a, "x", 1, 0);
	left = (struct timeval) { (time_t)(~0ul >> 1) - 10, 0 };
	answer("for ever %s", answer_of(select(b + 1, (fd_set *)reads, NULL, NULL, &left)));
	left = (struct timeval) { (time_t)(~0ul >> 1), 5000000 };
	answer("and ever %s", answer_of(select(b + 1, (fd_set *)reads, NULL, NULL, &left)));
}

int main(int argc, char **argv)
{
	static const struct question questions[] = {
		{ "large sets", large_sets },
		{ "large number", large_number },
		{ "rubbish behind", rubbish_behind },
		{ "not open", not_open },
		{ "crowd", crowd },
		{ "ends of others", ends_of_others },
		{ "many numbers", many_numbers },
		{ "times", times },
	};

	(void)argc;
	return answers_main(questions, sizeof(questions) / sizeof(*questions), argv + 1);
}
