/* SPDX-License-Identifier: MIT */
/* Many messages in one call: how many, how long, how they end. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "life.h"

enum { TIMES, OVERSLEPT, ENDS, KINDS };

#define MESSAGES 4
#define SIZE     100

/* What recvmmsg() says and what has come; the octets are compared. */
static void take(struct life *l, const char *what, int flags, struct timespec *limit)
{
	struct mmsghdr v[MESSAGES] = { 0 };
	struct iovec iov[MESSAGES];
	uint8_t data[MESSAGES][SIZE];
	char sizes[100] = "";
	size_t at = 0;
	int n;

	for (int i = 0; i < MESSAGES; i++) {
		iov[i] = (struct iovec) { data[i], SIZE };
		v[i].msg_hdr.msg_iov = &iov[i];
		v[i].msg_hdr.msg_iovlen = 1;
	}
	n = recvmmsg(l->st.fd, v, MESSAGES, flags, limit);
	for (int i = 0; i < n; i++) {
		at += (size_t)snprintf(sizes + at, sizeof(sizes) - at, " %u", v[i].msg_len);
		stage_took(&l->st, data[i], v[i].msg_len);
	}
	stage_say(&l->st, "%s: %d %s%s", what, n, n < 0 ? stage_errno(errno) : "of", sizes);
}

static void send_to_me(struct life *l, size_t n)
{
	life_ask(l, LIFE_SENDS, n);
	life_answer(l);
	stage_settle(&l->st, n);
}

static void times(struct life *l)
{
	struct timespec limit = { 0 };

	send_to_me(l, 10 * SIZE);
	take(l, "no time", 0, &limit);
	stage_say(&l->st, "left %lld.%09ld", (long long)limit.tv_sec, limit.tv_nsec);
	limit = (struct timespec) { 3600, 0 };
	take(l, "an hour", 0, &limit);
	stage_say(&l->st, "left %s", limit.tv_sec == 3599 ? "less" : "not less");
	take(l, "for ever", 0, NULL);
	take(l, "one left", MSG_WAITFORONE, NULL);
	take(l, "none left", MSG_WAITFORONE | MSG_DONTWAIT, NULL);
	limit = (struct timespec) { 0, -1 };
	take(l, "before it began", 0, &limit);
	limit = (struct timespec) { -1, 0 };
	take(l, "long before it began", 0, &limit);
	take(l, "a limit that is not there", 0, (struct timespec *)16);
}

static void *send_late(void *arg)
{
	stage_nap(60000);
	life_ask(arg, LIFE_SENDS, 2 * SIZE);
	return NULL;
}

/* The time is over while the second message is waited for: the third stays, though it comes with it. */
static void overslept(struct life *l)
{
	struct timespec limit = { 0, 20 * 1000 * 1000 };
	pthread_t thread;

	send_to_me(l, SIZE);
	pthread_create(&thread, NULL, send_late, l);
	take(l, "overslept", 0, &limit);
	stage_say(&l->st, "left %lld.%09ld", (long long)limit.tv_sec, limit.tv_nsec);
	pthread_join(thread, NULL);
	life_answer(l);
	stage_recv(&l->st, SIZE);
}

static void end(struct life *l)
{
	send_to_me(l, SIZE + SIZE / 2);
	life_ask(l, LIFE_SHUTS, 0);
	life_answer(l);
	stage_nap(20000);
	take(l, "at the end", 0, NULL);
	take(l, "after the end", MSG_DONTWAIT, NULL);
}

static void play(struct life *l)
{
	if (l->asleep || l->pending)
		return;
	life_begin(l);
	if (l->kind == TIMES)
		times(l);
	else if (l->kind == OVERSLEPT)
		overslept(l);
	else
		end(l);
	close(l->st.fd);
	life_end(l);
}

int main(void)
{
	return life_main(play, KINDS, NULL);
}
