/* SPDX-License-Identifier: MIT */
/*
 * model [--link NAME] [--seed N] [--steps N] [--seconds N]
 *
 * NAME is a column of conf/column.h: what connections go over.
 *
 * Runs until so many requests were posted or so many seconds have passed. The seed is printed
 * first; with the same seed the same operations are done again.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "model/driver.h"

static uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* ---- the driver ---- */

static void init_books(void)
{
	for (uint32_t q = 0; q < N_QPS; q++) {
		for (int d = 0; d < 2; d++) {
			struct flow *f = &driver.conn[q].flow[d];

			f->window = 6 + (q * 7 + (uint32_t)d * 3) % (SQ_DEPTH - 6);
			f->source.size = f->sink.size = f->target.size = f->receive.size =
				area_size(q);
			for (uint32_t i = 0; i < N_DYN; i++)
				driver.conn[q].dyn[d][i].key = driver.hello[d].dyn_key[q][i];
		}
	}
	for (int side = 0; side < 2; side++)
		for (uint32_t i = 0; i < N_SRQS; i++)
			ops_fill_srq(side, i);
	for (uint32_t q = 0; q < N_QPS; q++)
		ends_connect(q);
}

static void run(uint64_t steps, uint64_t seconds)
{
	uint64_t until = now_ms() + seconds * 1000, said = now_ms();

	for (; (!steps || driver.requests < steps) && (!seconds || now_ms() < until);
	     driver.step++) {
		ops_step();
		driver_progress();
		if (now_ms() - said > 30000) {
			said = now_ms();
			printf("# %llu requests, %llu connections\n",
			       (unsigned long long)driver.requests,
			       (unsigned long long)driver.connections);
			fflush(stdout);
		}
	}
	ends_settle();
}

static int drive(uint64_t seed, uint64_t steps, uint64_t seconds)
{
	struct cmd quit = { .type = CMD_QUIT };
	uint64_t begin = now_ms();
	int status;

	printf("# model: --link %s --seed %llu\n", column_name(model_column),
	       (unsigned long long)seed);
	fflush(stdout);
	driver.seed = seed;
	driver.random = seed * 0x9e3779b97f4a7c15ull | 1;
	driver.next_seed = LIBRARY_SEED;
	if (!process_start())
		return 1;
	init_books();
	run(steps, seconds);
	driver.quits = true;
	if (!driver_ask(1, &quit).ok)
		diverge(N_QPS, "side 1 cannot be closed: %s", strerror(driver.answer.error));
	if (!side_close(driver.own))
		diverge(N_QPS, "side 0 cannot be closed: %s", strerror(errno));
	driver.own = NULL;
	status = process_join();
	if (status)
		diverge(N_QPS, "the other process ended with %x", status);
	printf("# %llu requests, %llu connections, %llu faults, %llu kills, %llu stops, %llu MiB, "
	       "%llu comparisons in %llu s, trace %016llx: no divergence\n",
	       (unsigned long long)driver.requests, (unsigned long long)driver.connections,
	       (unsigned long long)driver.faults, (unsigned long long)driver.kills,
	       (unsigned long long)driver.stops, (unsigned long long)driver.octets >> 20,
	       (unsigned long long)driver.checks, (unsigned long long)(now_ms() - begin) / 1000,
	       (unsigned long long)driver.trace);
	if (driver.silent_for)
		printf("# nothing came for at most %llu ms, waiting for (%s)\n",
		       (unsigned long long)driver.silence / 1000000, driver.silent_for);
	return 0;
}

/* Sanitizers slow it down; the time stays the same, so much less is done. */
static uint64_t scaled(uint64_t seconds)
{
	const char *build = getenv("FLUE_TEST_BUILD");

	return build && (!strcmp(build, "asan") || !strcmp(build, "tsan")) ? (seconds + 1) / 2
									   : seconds;
}

enum column model_column;

static bool choose_link(const char *name)
{
	if (!column_find(name, &model_column))
		return false;
	if (model_column == COLUMN_DENIED)
		column_deny_process_vm();
	return true;
}

int main(int argc, char **argv)
{
	uint64_t seed = now_ms() * 1000003 % 1000000007, steps = 0, seconds = 0;

	signal(SIGPIPE, SIG_IGN);
	pattern_init();
	for (int i = 1; i + 1 < argc; i += 2) {
		uint64_t value = strtoull(argv[i + 1], NULL, 0);

		if (!strcmp(argv[i], "--mirror"))
			return process_mirror((int)value);
		if (!strcmp(argv[i], "--link") && choose_link(argv[i + 1]))
			continue;
		if (!strcmp(argv[i], "--seed"))
			seed = value;
		else if (!strcmp(argv[i], "--steps"))
			steps = value;
		else if (!strcmp(argv[i], "--seconds"))
			seconds = scaled(value);
		else
			argc = 0;
	}
	if (argc % 2 == 0) {
		fprintf(stderr,
			"usage: model [--link NAME] [--seed N] [--steps N] [--seconds N]\n");
		return 2;
	}
	if (!steps && !seconds)
		steps = 20000;
	return drive(seed, steps, seconds);
}
