/* SPDX-License-Identifier: MIT */
/* Signals, limits and descriptors that go away. See api.h. */
#include "api.h"

#include <signal.h>
#include <sys/resource.h>

static atomic_ulong caught;
static struct rlimit files;
static pthread_mutex_t limiting = PTHREAD_MUTEX_INITIALIZER;

static void on_signal(int number)
{
	(void)number;
	atomic_fetch_add(&caught, 1);
}

void disturb_init(void)
{
	struct sigaction action = { .sa_handler = on_signal };
	struct rlimit none = { 0, RLIM_INFINITY };

	sigaction(SIGUSR1, &action, NULL);
	action.sa_flags = SA_RESTART;
	sigaction(SIGUSR2, &action, NULL);
	signal(SIGPIPE, SIG_DFL); /* that nothing raises it is part of the judgement */
	getrlimit(RLIMIT_NOFILE, &files);
	if (!(kinds & KIND_LIMIT))
		return;
	getrlimit(RLIMIT_MEMLOCK, &none);
	none.rlim_cur = 0;
	setrlimit(RLIMIT_MEMLOCK, &none);
}

bool disturbed(void)
{
	return kinds & (KIND_LIMIT | KIND_CLOSE);
}

void disturb_child(void)
{
	setrlimit(RLIMIT_NOFILE, &files);
}

void op_signal(void)
{
	struct actor *a = &actors[draw(THREADS)];

	/* Threads of this kind are joined only after this one has ended or by the main thread. */
	pthread_mutex_lock(&limiting);
	if (atomic_load(&a->there))
		pthread_kill(a->thread, draw(2) ? SIGUSR1 : SIGUSR2);
	pthread_mutex_unlock(&limiting);
}

void signals_hold(void)
{
	pthread_mutex_lock(&limiting);
}

void signals_release(void)
{
	pthread_mutex_unlock(&limiting);
}

void op_limit(void)
{
	struct rlimit few = files;

	if (pthread_mutex_trylock(&limiting))
		return;
	few.rlim_cur = draw(2) ? 3 : 20 + draw(60);
	setrlimit(RLIMIT_NOFILE, &few);
	usleep(draw(4000));
	setrlimit(RLIMIT_NOFILE, &files);
	pthread_mutex_unlock(&limiting);
}

/* As a program does that is about to become a daemon. This one has no files of its own then: with this kind
 * there are neither pipes nor converted links. */
void op_close(void)
{
	if (one_in(10))
		closefrom(3);
}
