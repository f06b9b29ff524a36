/* SPDX-License-Identifier: MIT */
/* epoll_wait() with more descriptors ready than a few, a connection among them. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "answers.h"

#define COUNT 700 /* below the usual limit of descriptors */
#define FEW   100
#define MOST  (4 * COUNT)
#define CALLS 400

static struct epoll_event events[MOST];
static int set, a, b; /* the ends of a connection; b is the last in the set */

static void fill(uint32_t kind)
{
	int ends[2];

	set = epoll_create1(0);
	for (int i = 0; i < COUNT; i++) {
		struct epoll_event ev = { .events = EPOLLIN | kind, .data.u64 = (uint64_t)i };
		int fd = eventfd(1, 0);

		if (fd < 0 || epoll_ctl(set, EPOLL_CTL_ADD, fd, &ev))
			answer_broken("eventfd");
	}
	answer_warm_pair(ends);
	a = ends[0];
	b = ends[1];
	epoll_ctl(set, EPOLL_CTL_ADD, b,
		  &(struct epoll_event) { .events = EPOLLIN | kind, .data.u64 = COUNT });
	send(a, "abc", 3, 0);
}

/* How many were told, and of how many descriptors. */
static void wait_for(int max, int times)
{
	static bool seen[COUNT + 1];
	int told = 0, known = 0;

	memset(seen, 0, sizeof(seen));
	for (int i = 0; i < times; i++) {
		int n = epoll_wait(set, events, max, 0);

		for (int k = 0; k < n; k++) {
			uint64_t which = events[k].data.u64;

			if (which > COUNT || events[k].events != EPOLLIN)
				answer("event %x of %d", events[k].events, (int)which);
			else if (!seen[which])
				known++;
			if (which <= COUNT)
				seen[which] = true;
		}
		told += n;
	}
	answer("%d times up to %d: %d of %d", times, max, told, known);
}

static void level(void)
{
	fill(0);
	wait_for(MOST, 1);
	wait_for(MOST, 1);
	wait_for(FEW, 1);
	wait_for(FEW, COUNT / FEW + 1);
	answer("came %s", answer_read(b, 3));
	wait_for(MOST, 1);
}

static void edges(void)
{
	fill(EPOLLET);
	wait_for(FEW, 1);
	wait_for(MOST, 1);
	wait_for(MOST, 1);
	send(a, "d", 1, 0);
	wait_for(MOST, 1);
}

static void shots(void)
{
	fill(EPOLLONESHOT);
	wait_for(MOST, 1);
	wait_for(MOST, 1);
}

/* More than a call has room for is ready all the time, and on the connection something new comes before each. */
static void crowd(void)
{
	int told = 0;

	fill(0);
	for (int i = 0; i < CALLS; i++) {
		int n = epoll_wait(set, events, FEW, 0);

		for (int k = 0; k < n; k++)
			told += events[k].data.u64 == COUNT;
		send(a, "x", 1, 0);
	}
	answer("told of the connection %s", told >= CALLS / 20 ? "often" : "seldom");
}

int main(int argc, char **argv)
{
	static const struct question questions[] = {
		{ "many", level },
		{ "many edges", edges },
		{ "many shots", shots },
		{ "crowd", crowd },
	};

	(void)argc;
	return answers_main(questions, sizeof(questions) / sizeof(*questions), argv + 1);
}
