/* SPDX-License-Identifier: MIT */
/*
 * What ends a wait for octets beside octets: a time limit, a handler, a cancellation. In the middle of a short
 * sleep that the kernel knows nothing of, and later.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "life.h"

enum { LIMITS, HANDLERS, POLLERS, CANCELLED, KINDS };

#define ROUNDS 4
#define NEWS   10
/* Handlers are looked for again after a while: a wait that begins at once may not know of a new one. */
#define KNOWN_US 30000
#define LATE_US  5000000

static volatile sig_atomic_t handled;

static void on_signal(int number)
{
	(void)number;
	handled++;
}

static void handle(int number, int flags)
{
	struct sigaction a = { .sa_flags = flags };

	a.sa_handler = flags < 0 ? SIG_DFL : on_signal;
	a.sa_flags = flags < 0 ? 0 : flags;
	sigaction(number, &a, NULL);
}

static void set_limit(struct life *l, unsigned us)
{
	struct timeval limit = { us / 1000000, us % 1000000 };

	setsockopt(l->st.fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
}

/* Signals, and then octets, for the thread that waits. */
struct disturber {
	struct life *l;
	pthread_t whom, thread;
	int signal;
	unsigned delay; /* before it, microseconds */
	bool sends;
	_Atomic bool over;
};

/* The call is over: no more signals. */
static void calm(struct disturber *d)
{
	const struct timespec now = { 0 };
	sigset_t set;

	sigemptyset(&set);
	if (d->signal)
		sigaddset(&set, d->signal);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	d->over = true;
	pthread_join(d->thread, NULL);
	sigtimedwait(&set, NULL, &now);
	pthread_sigmask(SIG_UNBLOCK, &set, NULL);
}

static void *disturb(void *arg)
{
	struct disturber *d = arg;

	stage_nap(d->delay);
	/* Again and again: one that comes while the call still looks, or has not begun on a busy machine, ends nothing. */
	for (int i = 0; d->signal && i < 60 && !d->over; i++) {
		pthread_kill(d->whom, d->signal);
		stage_nap(1000);
	}
	if (d->sends) {
		stage_nap(60000);
		life_ask(d->l, LIFE_SENDS, NEWS);
	}
	return NULL;
}

/* One recv() that is disturbed; says how it ended. */
static void wait_once(struct life *l, const char *what, int signal, unsigned delay, bool sends)
{
	struct disturber d = { .l = l, .signal = signal, .delay = delay, .sends = sends };
	uint8_t octets[NEWS];
	uint64_t start;
	ssize_t n;
	int error;

	d.whom = pthread_self();
	handled = 0;
	pthread_create(&d.thread, NULL, disturb, &d);
	start = stage_now();
	n = recv(l->st.fd, octets, NEWS, 0);
	error = errno;
	if (stage_now() - start > LATE_US)
		stage_bad(&l->st, "%s: late", what);
	calm(&d);
	stage_say(&l->st, "%s: %zd %s, handled %d", what, n, n < 0 ? stage_errno(error) : "",
		  handled > 0);
	if (n > 0)
		stage_took(&l->st, octets, (size_t)n);
	if (sends)
		life_answer(l);
	if (sends && n < 0)
		stage_recv(&l->st, NEWS);
}

static void limits(struct life *l)
{
	static const unsigned times[] = { 2000, 15000, 100000 };

	for (int i = 0; i < ROUNDS * 3; i++) {
		uint64_t start = stage_now();
		unsigned us = times[i % 3];

		set_limit(l, us);
		wait_once(l, "a limit", 0, 0, false);
		if (stage_now() - start + stage_tick() < us)
			stage_bad(&l->st, "too soon");
		life_warm(l);
		/* Octets in time. */
		set_limit(l, LATE_US);
		wait_once(l, "in time", 0, 5000, true);
		set_limit(l, 0);
		wait_once(l, "no limit", 0, i * 3000u, true);
		life_warm(l);
	}
}

static void handlers(struct life *l)
{
	static const struct {
		int usr1, usr2; /* flags; below 0: no handler */
		const char *name;
	} kinds[] = {
		{ SA_RESTART, -1, "restart" },
		{ 0, -1, "no restart" },
		{ SA_RESTART, 0, "both, restart" },
		{ 0, SA_RESTART, "both, no restart" },
	};

	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		handle(SIGUSR1, kinds[i].usr1);
		handle(SIGUSR2, kinds[i].usr2);
		stage_nap(KNOWN_US);
		for (unsigned round = 0; round < 2 * ROUNDS; round++) {
			/* 6, 12, 24, ... ms: within the nap, and behind it; not when one turns into the other */
			unsigned delay = 6000u << round % 4;

			life_warm(l);
			wait_once(l, kinds[i].name, SIGUSR1, delay, true);
			set_limit(l, LATE_US);
			wait_once(l, "with a limit", SIGUSR1, delay, true);
			set_limit(l, 0);
		}
	}
}

/* Whatever its handler says, a signal ends these; on one connection and on two. */
static void pollers(struct life *l)
{
	struct life second = *l; /* the partner goes on with this one, where it is */
	struct pollfd p[2];

	life_connect(&second);
	life_warm(&second);
	p[0] = (struct pollfd) { .fd = l->st.fd, .events = POLLIN };
	p[1] = (struct pollfd) { .fd = second.st.fd, .events = POLLIN };
	for (int i = 0; i < 4 * ROUNDS; i++) {
		struct disturber d = { .l = l, .signal = SIGUSR1, .delay = 6000u << i / 4 % 4 };
		nfds_t count = 1 + (nfds_t)i % 2;
		int n, error;
		fd_set in;

		handle(SIGUSR1, i % 4 < 2 ? SA_RESTART : 0);
		stage_nap(KNOWN_US);
		life_warm(&second);
		d.whom = pthread_self();
		handled = 0;
		pthread_create(&d.thread, NULL, disturb, &d);
		if (i < 2 * ROUNDS) {
			n = poll(p, count, LATE_US / 1000);
		} else {
			FD_ZERO(&in);
			FD_SET(p[0].fd, &in);
			if (count == 2)
				FD_SET(p[1].fd, &in);
			n = select(p[1].fd + 1, &in, NULL, NULL,
				   &(struct timeval) { LATE_US / 1000000, 0 });
		}
		error = errno;
		calm(&d);
		stage_say(&l->st, "%d: %d %s, handled %d", i, n, n < 0 ? stage_errno(error) : "",
			  handled > 0);
	}
	close(second.st.fd);
	life_end(&second);
}

static void *read_for_ever(void *arg)
{
	struct life *l = arg;
	uint8_t octets[NEWS];

	recv(l->st.fd, octets, NEWS, 0);
	return NULL;
}

static void cancelled(struct life *l)
{
	static const unsigned delays[] = { 0, 200, 2000, 10000, 60000 };

	for (size_t i = 0; i < ROUNDS * sizeof(delays) / sizeof(delays[0]); i++) {
		void *result = NULL;
		pthread_t thread;
		uint64_t start;

		pthread_create(&thread, NULL, read_for_ever, l);
		stage_nap(delays[i % 5]);
		start = stage_now();
		pthread_cancel(thread);
		pthread_join(thread, &result);
		stage_say(&l->st, "%s", result == PTHREAD_CANCELED ? "cancelled" : "read");
		if (stage_now() - start > LATE_US)
			stage_bad(&l->st, "cancelled late");
		life_warm(l);
	}
}

static void play(struct life *l)
{
	if (l->asleep || l->pending)
		return;
	life_begin(l);
	switch (l->kind) {
	case LIMITS: limits(l); break;
	case HANDLERS: handlers(l); break;
	case POLLERS: pollers(l); return;
	default: cancelled(l); break;
	}
	life_go_on(l);
	close(l->st.fd);
	life_end(l);
}

int main(void)
{
	return life_main(play, KINDS, NULL);
}
