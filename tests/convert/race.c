/* SPDX-License-Identifier: MIT */
/*
 * Two processes convert TCP connections with pauses at every step (RD-9, RD-10, CH-7 to CH-13,
 * CH-16, CH-27, CH-28): both forms, both styles, both roles on each side, streams in octets, in
 * pieces and unread for a while, a relay that tears apart or glues together what both say. Every
 * octet of both modes is checked where it arrives, and counted here.
 *
 *	convert_race [connections [seed]]
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "conf/pair.h"
#include "sanitized.h"
#include "side.h"

#define PATIENCE_MS 60000 /* without any progress */

static struct tally *tally;
static int listeners[WORKERS], relays[WORKERS];

static int listen_at(uint16_t *port)
{
	struct sockaddr_in at = { .sin_family = AF_INET };
	socklen_t len = sizeof(at);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	assert_true(fd >= 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&at, len), 0);
	assert_int_equal(listen(fd, 16), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &len), 0);
	*port = at.sin_port;
	return fd;
}

/* ---- a worker of a side ---- */

static int reach_peer(const struct plan *p, int which, uint32_t worker)
{
	struct sockaddr_in to = { .sin_family = AF_INET };
	int fd;

	if (which == 1)
		return accept(listeners[worker], NULL, NULL);
	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	to.sin_port = p->relay ? tally->relay_port[worker] : tally->port[worker];
	fd = socket(AF_INET, SOCK_STREAM, 0);
	if (fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof(to)))
		return -1;
	return fd;
}

struct worker {
	pthread_t thread;
	struct side first; /* what all its connections have in common */
};

static void *work(void *arg)
{
	struct worker *w = arg;
	struct plan plan;

	for (uint32_t i = w->first.worker; i < tally->count; i += WORKERS) {
		struct side s = w->first;
		bool good;

		plan_draw(&plan, tally->seed, i);
		s.plan = &plan;
		s.heard.lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
		s.heard.changed = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
		atomic_store(&tally->side[s.which].at[s.worker].index, i);
		side_step(&s, 0);
		s.fd = reach_peer(&plan, s.which, s.worker);
		good = s.fd >= 0 ? side_run(&s) : side_fail(&s, "TCP connection");
		if (!good || atomic_load(&tally->failures))
			return NULL;
		atomic_fetch_add(&tally->side[s.which].done, 1);
	}
	return NULL;
}

static bool open_worker(struct worker *w, int which, uint32_t n, struct flue_adapter *adapter)
{
	struct side *s = &w->first;

	*s = (struct side) { .which = which, .worker = n, .tally = tally, .adapter = adapter };
	s->box = calloc(1, sizeof(*s->box));
	s->pd = flue_create_pd(adapter);
	s->cq = flue_create_cq(adapter, 64);
	if (!s->box || !s->pd || !s->cq)
		return false;
	s->mr = flue_register(s->pd, s->box, sizeof(*s->box), PAIR_ALL_ACCESS);
	return s->mr && pthread_create(&w->thread, NULL, work, w) == 0;
}

static bool close_worker(struct worker *w)
{
	struct side *s = &w->first;

	pthread_join(w->thread, NULL);
	if (!flue_deregister(s->mr) || !flue_destroy_cq(s->cq) || !flue_destroy_pd(s->pd))
		return false;
	free(s->box);
	return true;
}

/* A process: all workers of a side share one adapter. */
static int live(int which)
{
	static struct worker workers[WORKERS];
	struct flue_adapter *adapter;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	adapter = flue_open(NULL);
	if (!adapter)
		return 2;
	for (uint32_t i = 0; i < WORKERS; i++)
		if (!open_worker(&workers[i], which, i, adapter))
			return 3;
	for (uint32_t i = 0; i < WORKERS; i++)
		if (!close_worker(&workers[i]))
			return 4;
	if (atomic_load(&tally->failures))
		return 5;
	return flue_close(adapter) ? 0 : 6;
}

/* ---- the parent ---- */

static uint32_t done(int side)
{
	return atomic_load(&tally->side[side].done);
}

static void say_where(void)
{
	char text[400];
	struct plan p;

	for (int side = 0; side < 2; side++) {
		for (uint32_t i = 0; i < WORKERS; i++) {
			uint32_t step = atomic_load(&tally->side[side].at[i].step);

			plan_draw(&p, tally->seed, atomic_load(&tally->side[side].at[i].index));
			plan_print(&p, text, sizeof(text));
			if (step < 8)
				print_message("# %c is at step %u of %s\n", 'A' + side, step, text);
		}
	}
}

/* Until both have ended, or one has failed, or nothing moves any more. */
static bool watch(const pid_t *pid, int *status)
{
	uint64_t last = pair_now_ms();
	uint32_t seen = 0, ended = 0;

	while (ended < 2 && !atomic_load(&tally->failures)) {
		uint32_t now = done(0) + done(1);

		usleep(5000);
		for (int i = 0; i < 2; i++) {
			if (status[i] != -1 || waitpid(pid[i], &status[i], WNOHANG) != pid[i])
				continue;
			ended++;
			if (status[i])
				return false;
		}
		if (now != seen)
			last = pair_now_ms();
		seen = now;
		if (pair_now_ms() - last > PATIENCE_MS) {
			print_message("# it hangs\n");
			say_where();
			return false;
		}
	}
	return !atomic_load(&tally->failures);
}

static void end_children(const pid_t *pid, int *status)
{
	usleep(200000); /* for a failure that has not been written down yet */
	for (int i = 0; i < 2; i++) {
		if (status[i] != -1)
			continue;
		if (getenv("FLUE_RACE_STAY")) /* for a debugger */
			pause();
		kill(pid[i], SIGKILL);
		waitpid(pid[i], &status[i], 0);
	}
}

static void start_relays(void)
{
	static struct relay_arg args[WORKERS];
	pthread_t thread;

	for (uint32_t i = 0; i < WORKERS; i++) {
		args[i] = (struct relay_arg) { .tally = tally, .worker = i, .listener = relays[i] };
		assert_int_equal(pthread_create(&thread, NULL, relay_main, &args[i]), 0);
		pthread_detach(thread);
	}
}

static void streams_become_connections_and_no_octet_is_lost(void **state)
{
	int status[2] = { -1, -1 };
	pid_t pid[2];
	bool good;

	for (uint32_t i = 0; i < WORKERS; i++) {
		listeners[i] = listen_at(&tally->port[i]);
		relays[i] = listen_at(&tally->relay_port[i]);
	}
	for (int i = 0; i < 2; i++) {
		pid[i] = fork();
		if (pid[i] == 0)
			_exit(live(i));
	}
	start_relays();
	good = watch(pid, status);
	if (!good)
		end_children(pid, status);
	print_message("# %u and %u of %u done; early octets %llu and %llu\n", done(0), done(1),
		      tally->count, tally->side[0].early, tally->side[1].early);
	if (atomic_load(&tally->failures))
		print_message("# %u failures, the first: %s\n", tally->failures, tally->failure);
	assert_true(good);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(status[i], 0);
		assert_int_equal(done(i), tally->count);
		assert_true(tally->side[i].stream_sent == tally->side[!i].stream_got);
		assert_true(tally->side[i].rdma_sent == tally->side[!i].rdma_got);
		assert_true(tally->count < 500 || tally->side[i].early > 0);
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(streams_become_connections_and_no_octet_is_lost),
	};

	tally = mmap(NULL, sizeof(*tally), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		     0);
	if (tally == MAP_FAILED)
		return 1;
	tally->count = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 0) : 2000;
	if (SANITIZED)
		tally->count /= 7;
	tally->seed = argc > 2 ? strtoull(argv[2], NULL, 0)
			       : (uint64_t)time(NULL) * 1000 + (uint64_t)getpid();
	print_message("# %u connections, seed %llu\n", tally->count,
		      (unsigned long long)tally->seed);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
