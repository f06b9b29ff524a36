/* SPDX-License-Identifier: MIT */
/* The beginning of a process, and children beside threads at work. */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hooked/scenes.h"

#define FIRST  8
#define LINES  3
#define ROUNDS 20

/* --- threads that open the first sockets of their process together */

static pthread_barrier_t together;

static void *open_first(void *arg)
{
	int listener, fd[2];

	(void)arg;
	pthread_barrier_wait(&together);
	listener = stage_listen(AF_INET, 4);
	crowd_pair(listener, fd);
	crowd_warm(fd, ROUNDS);
	close(fd[0]);
	close(fd[1]);
	close(listener);
	return NULL;
}

/* Once in a process; who runs the scene does so again and again, and counts the lanes. */
void scene_first(void)
{
	pthread_t thread[FIRST];

	pthread_barrier_init(&together, NULL, FIRST);
	for (int i = 0; i < FIRST; i++)
		thread[i] = crowd_start(open_first, NULL);
	for (int i = 0; i < FIRST; i++)
		crowd_join(thread[i]);
	crowd_did("connections", FIRST);
}

/* --- fork() while other threads are in calls on the sockets that the child inherits */

static _Atomic bool done;

static void *busy(void *arg)
{
	struct random r = crowd_random();
	int listener = stage_listen(AF_INET, 4);

	(void)arg;
	while (!atomic_load(&done)) {
		struct way way[2];
		pthread_t thread[4];
		int fd[2];

		crowd_pair(listener, fd);
		for (int i = 0; i < 2; i++) {
			way[i] = (struct way) { .from = fd[i],
						.to = fd[!i],
						.key = random_next(&r),
						.total = random_size(&r, 1, 400 << 10) };
			thread[2 * i] = crowd_start(crowd_sender, &way[i]);
			thread[2 * i + 1] = crowd_start(crowd_receiver, &way[i]);
		}
		for (int i = 0; i < 4; i++)
			crowd_join(thread[i]);
		close(fd[0]);
		close(fd[1]);
	}
	close(listener);
	return NULL;
}

/* The child has one end of a connection to itself, and echoes. */
static void be_child(struct random *r, const int fd[2], int rounds)
{
	uint8_t octets[1024];

	close(fd[0]);
	/* What the others use it may close, or leave to the end. */
	for (int i = 3; i < 64; i++)
		if (i != fd[1] && random_below(r, 4) == 0)
			close(i);
	for (int i = 0; i < rounds; i++)
		if (recv(fd[1], octets, sizeof(octets), MSG_WAITALL) != sizeof(octets) ||
		    send(fd[1], octets, sizeof(octets), MSG_NOSIGNAL) != sizeof(octets))
			_exit(1);
	if (random_below(r, 3) == 0)
		execl("/bin/true", "true", NULL);
	_exit(0);
}

static void be_parent(struct random *r, const int fd[2], int rounds)
{
	uint8_t out[1024], in[1024];
	struct flow flow = { .key = random_next(r) };

	close(fd[1]);
	for (int i = 0; i < rounds; i++) {
		flow_fill(&flow, out, sizeof(out));
		if (send(fd[0], out, sizeof(out), MSG_NOSIGNAL) != sizeof(out) ||
		    recv(fd[0], in, sizeof(in), MSG_WAITALL) != sizeof(in)) {
			crowd_bad("the child does not answer: %s", stage_errno(errno));
			break;
		}
		if (memcmp(out, in, sizeof(in)) != 0)
			crowd_bad("the child answers something else");
		flow.at += sizeof(out);
	}
}

void scene_forks(void)
{
	struct random r = crowd_random();
	int listener = stage_listen(AF_INET, 4);
	pthread_t thread[LINES];
	uint64_t n = 0;

	for (int i = 0; i < LINES; i++)
		thread[i] = crowd_start(busy, NULL);
	for (; !crowd_over(); n++) {
		int rounds = (int)random_below(&r, ROUNDS);
		int fd[2], status = 0;
		pid_t pid;

		crowd_pair(listener, fd);
		crowd_warm(fd, (int)random_below(&r, 8));
		pid = fork();
		if (pid == 0)
			be_child(&r, fd, rounds);
		be_parent(&r, fd, rounds);
		if (waitpid(pid, &status, 0) != pid || status != 0)
			crowd_bad("the child ended with %x", (unsigned)status);
		close(fd[0]);
	}
	atomic_store(&done, true);
	for (int i = 0; i < LINES; i++)
		crowd_join(thread[i]);
	crowd_did("children", n);
	close(listener);
}
