/* SPDX-License-Identifier: MIT */
/* Threads: one closes or shuts down under another that sleeps; two use both directions at once; one is cancelled. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "life.h"

enum {
	CLOSED_IN_RECV, /* the sleeper still gets what the partner sends then */
	SHUT_IN_RECV,
	SHUT_IN_POLL,
	SHUT_IN_EPOLL,
	NUMBER_TAKEN, /* after close() another connection has the number */
	BOTH_WAYS,
	TWO_READERS,
	CANCELLED_RECV, /* before the call, which takes nothing then */
	CANCELLED_SEND,
	KINDS
};

#define MANY 2000000

struct sleeper {
	struct life *l;
	int fd;
	ssize_t result;
	int err;
	uint8_t data[200];
};

static void *sleep_in_recv(void *arg)
{
	struct sleeper *s = arg;

	s->result = recv(s->fd, s->data, 100, 0);
	s->err = errno;
	return NULL;
}

static void *sleep_in_poll(void *arg)
{
	struct sleeper *s = arg;
	struct pollfd pfd = { .fd = s->fd, .events = POLLIN | POLLRDHUP };
	struct epoll_event ev = { .events = EPOLLIN | EPOLLRDHUP };
	int set;

	if (s->l->kind == SHUT_IN_POLL) {
		s->result = poll(&pfd, 1, -1) > 0 ? pfd.revents : -1;
		return NULL;
	}
	set = epoll_create1(EPOLL_CLOEXEC);
	epoll_ctl(set, EPOLL_CTL_ADD, s->fd, &ev);
	s->result = epoll_wait(set, &ev, 1, -1) > 0 ? (ssize_t)ev.events : -1;
	close(set);
	return NULL;
}

static void tell(struct sleeper *s)
{
	stage_say(&s->l->st, "the sleeper has %zd %s", s->result,
		  s->result < 0 ? stage_errno(s->err) : "");
	if (s->l->kind == CLOSED_IN_RECV && s->result > 0)
		stage_took(&s->l->st, s->data, (size_t)s->result);
}

/* close() does not wake: the sleeper holds the connection until the call returns. */
static void close_under(struct life *l)
{
	struct sleeper s = { .l = l, .fd = l->st.fd };
	struct stage second = l->st;
	pthread_t thread;
	int other;

	pthread_create(&thread, NULL, sleep_in_recv, &s);
	stage_nap(20000);
	close(l->st.fd);
	if (l->kind == NUMBER_TAKEN) {
		other = stage_dial(l->listener);
		stage_say(&l->st, "the number is %s", other == l->st.fd ? "taken" : "free");
		second.fd = accept(l->listener, NULL, NULL);
		second.in = second.out;
		stage_send(&l->st, 100);
		/* The new connection under the number, not the old one, has carried it. */
		second.in.at = second.out.at;
		stage_recv(&second, 100);
		close(second.fd);
		close(other);
		l->st.out.at -= 100;
	}
	life_ask(l, LIFE_SENDS, 100);
	stage_say(&l->st, "partner %lld", (long long)life_answer(l));
	pthread_join(thread, NULL);
	tell(&s);
	life_end(l);
}

static void shut_under(struct life *l)
{
	struct sleeper s = { .l = l, .fd = l->st.fd };
	pthread_t thread;

	pthread_create(&thread, NULL, l->kind == SHUT_IN_RECV ? sleep_in_recv : sleep_in_poll, &s);
	stage_nap(20000);
	shutdown(l->st.fd, SHUT_RDWR);
	pthread_join(thread, NULL);
	tell(&s);
	life_end(l);
	close(l->st.fd);
}

static void *send_many(void *arg)
{
	struct life *l = arg;

	stage_send(&l->st, MANY);
	return NULL;
}

static void both_ways(struct life *l)
{
	struct stage *st = &l->st;
	pthread_t thread;

	/* The partner sends all before it reads: neither thread may hold up the other. */
	pthread_create(&thread, NULL, send_many, l);
	life_ask(l, LIFE_SENDS, MANY);
	life_ask(l, LIFE_READS, MANY);
	stage_recv(st, MANY);
	pthread_join(thread, NULL);
	for (int i = 0; i < 2; i++)
		stage_say(st, "partner %lld", (long long)life_answer(l));
	life_go_on(l);
	close(st->fd);
	life_end(l);
}

struct counter {
	int fd;
	uint64_t count;
};

static void *count_octets(void *arg)
{
	struct counter *c = arg;
	uint8_t data[3000];
	ssize_t n;

	while ((n = recv(c->fd, data, sizeof(data), 0)) > 0)
		c->count += (uint64_t)n;
	return NULL;
}

static void two_readers(struct life *l)
{
	struct counter counters[2] = { { l->st.fd, 0 }, { l->st.fd, 0 } };
	pthread_t thread[2];

	for (int i = 0; i < 2; i++)
		pthread_create(&thread[i], NULL, count_octets, &counters[i]);
	life_ask(l, LIFE_SENDS, MANY);
	life_ask(l, LIFE_SHUTS, 0);
	for (int i = 0; i < 2; i++)
		pthread_join(thread[i], NULL);
	for (int i = 0; i < 2; i++)
		stage_say(&l->st, "partner %lld", (long long)life_answer(l));
	stage_say(&l->st, "read %llu", (unsigned long long)(counters[0].count + counters[1].count));
	close(l->st.fd);
	life_end(l);
}

static void *call_when_cancelled(void *arg)
{
	struct sleeper *s = arg;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	pthread_cancel(pthread_self());
	pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
	if (s->l->kind == CANCELLED_RECV)
		recv(s->fd, s->data, 100, 0);
	else
		send(s->fd, s->data, 100, 0);
	return NULL;
}

static void cancelled(struct life *l)
{
	struct sleeper s = { .l = l, .fd = l->st.fd };
	pthread_t thread;
	void *end;

	life_ask(l, LIFE_SENDS, 100);
	stage_say(&l->st, "partner %lld", (long long)life_answer(l));
	pthread_create(&thread, NULL, call_when_cancelled, &s);
	pthread_join(thread, &end);
	stage_say(&l->st, "the thread %s", end == PTHREAD_CANCELED ? "has ended" : "went on");
	stage_recv(&l->st, 100);
	stage_send(&l->st, 100);
	life_ask(l, LIFE_READS, 100);
	stage_say(&l->st, "partner %lld", (long long)life_answer(l));
	life_go_on(l);
	close(l->st.fd);
	life_end(l);
}

static void play(struct life *l)
{
	/* The variants of the partner's sleep are of no use when it is to act first. */
	if (l->kind != BOTH_WAYS && (l->asleep || l->pending))
		return;
	life_begin(l);
	if (l->kind == CLOSED_IN_RECV || l->kind == NUMBER_TAKEN)
		close_under(l);
	else if (l->kind == TWO_READERS)
		two_readers(l);
	else if (l->kind == CANCELLED_RECV || l->kind == CANCELLED_SEND)
		cancelled(l);
	else if (l->kind != BOTH_WAYS)
		shut_under(l);
	else {
		stage_recv(&l->st, l->pending);
		if (l->asleep) {
			stage_send(&l->st, 500);
			life_answer(l);
		}
		life_calm(l);
		both_ways(l);
	}
}

int main(void)
{
	return life_main(play, KINDS, NULL);
}
