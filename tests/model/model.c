/* SPDX-License-Identifier: MIT */
/*
 * model [--seed N] [--steps N] [--seconds N]
 *
 * Runs until so many requests were posted or so many seconds have passed. The seed is printed
 * first; with the same seed the same operations are done again.
 */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "model/driver.h"

static uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* ---- the other process ---- */

static struct channel mirror_channel;

static void tell(void *arg, const struct record *r)
{
	(void)arg;
	if (!channel_put(&mirror_channel, r, sizeof(*r)))
		exit(1);
}

/* Executes what has come. -1: the end. */
static int obey(struct side *s)
{
	struct record r = { .type = REC_REPLY };
	struct cmd cmd;
	int n = 0, rc;

	while ((rc = channel_get(&mirror_channel, &cmd, sizeof(cmd), false)) > 0) {
		if (cmd.type == CMD_QUIT) {
			r.u.reply = (struct record_reply) { .ok = side_close(s), .error = errno };
			tell(NULL, &r);
			return -1;
		}
		side_execute(s, &cmd, &r.u.reply);
		tell(NULL, &r);
		n++;
	}
	return rc < 0 ? -1 : n;
}

static int mirror(int fd)
{
	struct hello hello;
	struct side *s = side_open(1, &hello);
	unsigned idle = 0;
	uint16_t port;
	int n = 0;

	if (!s)
		return 1;
	channel_init(&mirror_channel, fd, true);
	channel_put(&mirror_channel, &hello, sizeof(hello));
	if (!channel_flush(&mirror_channel) ||
	    channel_get(&mirror_channel, &port, sizeof(port), true) < 0)
		return 1;
	side_meet(s, port);
	while (n >= 0) {
		unsigned news = side_progress(s, tell, NULL);

		n = obey(s);
		if (!channel_flush(&mirror_channel))
			return 1;
		idle = news || n ? 0 : idle + 1;
		if (n < 0 || side_is_busy(s) || idle < 20)
			continue;
		side_arm(s);
		if (!side_progress(s, tell, NULL) && n == 0)
			side_sleep(s, fd, 1000);
	}
	return 0;
}

/* ---- the driver ---- */

static pid_t start_mirror(int *fd)
{
	char number[16];
	int fds[2];
	pid_t pid;

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds))
		return -1;
	snprintf(number, sizeof(number), "%d", fds[1]);
	pid = fork();
	if (pid == 0) {
		close(fds[0]);
		execl("/proc/self/exe", "model", "--mirror", number, NULL);
		_exit(1);
	}
	close(fds[1]);
	*fd = fds[0];
	return pid;
}

static bool meet(int fd)
{
	channel_init(&driver.channel, fd, false);
	driver.own = side_open(0, &driver.hello[0]);
	if (!driver.own ||
	    channel_get(&driver.channel, &driver.hello[1], sizeof(driver.hello[1]), true) < 0)
		return false;
	side_meet(driver.own, driver.hello[1].port);
	return channel_put(&driver.channel, &driver.hello[0].port, sizeof(driver.hello[0].port));
}

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
	int status, fd = -1;
	pid_t pid;

	printf("# model: --seed %llu\n", (unsigned long long)seed);
	fflush(stdout);
	driver.seed = seed;
	driver.random = seed * 0x9e3779b97f4a7c15ull | 1;
	driver.next_seed = LIBRARY_SEED;
	pid = start_mirror(&fd);
	if (pid < 0 || !meet(fd))
		return 1;
	init_books();
	run(steps, seconds);
	driver.quits = true;
	if (!driver_ask(1, &quit).ok)
		diverge(N_QPS, "side 1 cannot be closed: %s", strerror(driver.answer.error));
	if (!side_close(driver.own))
		diverge(N_QPS, "side 0 cannot be closed: %s", strerror(errno));
	if (waitpid(pid, &status, 0) != pid || status)
		diverge(N_QPS, "the other process ended with %x", status);
	printf("# %llu requests, %llu connections, %llu faults, %llu MiB, %llu comparisons in %llu s, "
	       "trace %016llx: no divergence\n",
	       (unsigned long long)driver.requests, (unsigned long long)driver.connections,
	       (unsigned long long)driver.faults, (unsigned long long)driver.octets >> 20,
	       (unsigned long long)driver.checks, (unsigned long long)(now_ms() - begin) / 1000,
	       (unsigned long long)driver.trace);
	return 0;
}

/* Sanitizers slow it down; the time stays the same, so much less is done. */
static uint64_t scaled(uint64_t seconds)
{
	const char *build = getenv("FLUE_TEST_BUILD");

	return build && (!strcmp(build, "asan") || !strcmp(build, "tsan")) ? (seconds + 1) / 2
									   : seconds;
}

int main(int argc, char **argv)
{
	uint64_t seed = now_ms() * 1000003 % 1000000007, steps = 0, seconds = 0;

	signal(SIGPIPE, SIG_IGN);
	pattern_init();
	for (int i = 1; i + 1 < argc; i += 2) {
		uint64_t value = strtoull(argv[i + 1], NULL, 0);

		if (!strcmp(argv[i], "--mirror"))
			return mirror((int)value);
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
		fprintf(stderr, "usage: model [--seed N] [--steps N] [--seconds N]\n");
		return 2;
	}
	if (!steps && !seconds)
		steps = 20000;
	return drive(seed, steps, seconds);
}
