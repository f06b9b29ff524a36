/* SPDX-License-Identifier: MIT */
/*
 * Threads that open the first sockets of their process at the same moment, in several processes one
 * after the other. Each of the connections lasts long enough for a lane, and each gets one: the
 * driver counts them.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "stage.h"
#include "watch.h"

#define LIMIT_S   40
#define PROCESSES 8
#define THREADS   8
#define TURNS     300
#define TURN      64

static atomic_int *port; /* of the server; 0: not yet */
static pthread_barrier_t together;

static void turn(int fd, bool first)
{
	uint8_t data[TURN] = { 0 };

	watch_begin("a turn", fd);
	if (first && send(fd, data, TURN, MSG_NOSIGNAL) != TURN)
		watch_die("send: %s", stage_errno(errno));
	if (recv(fd, data, TURN, MSG_WAITALL) != TURN)
		watch_die("recv: %s", stage_errno(errno));
	if (!first && send(fd, data, TURN, MSG_NOSIGNAL) != TURN)
		watch_die("send: %s", stage_errno(errno));
	watch_end();
}

/* ---- who opens them ---- */

static void *client(void *arg)
{
	struct sockaddr_in at = { .sin_family = AF_INET };
	int fd, one = 1;

	watch_sit("client");
	at.sin_port = htons((uint16_t)atomic_load(port));
	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	pthread_barrier_wait(&together);
	fd = socket(AF_INET, SOCK_STREAM, 0);
	if (fd < 0 || connect(fd, (struct sockaddr *)&at, sizeof(at)))
		watch_die("connect: %s", stage_errno(errno));
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	for (int i = 0; i < TURNS; i++)
		turn(fd, true);
	/* Nobody goes before all have what they get. */
	pthread_barrier_wait(&together);
	close(fd);
	watch_rise();
	return arg;
}

static int clients(void)
{
	pthread_t thread[THREADS];

	pthread_barrier_init(&together, NULL, THREADS);
	for (int i = 0; i < THREADS; i++)
		if (pthread_create(&thread[i], NULL, client, NULL))
			watch_die("no thread");
	for (int i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	return 0;
}

/* ---- the other ends ---- */

static void *answer(void *arg)
{
	int fd = (int)(intptr_t)arg;

	watch_sit("answers");
	for (int i = 0; i < TURNS; i++)
		turn(fd, false);
	close(fd);
	watch_rise();
	return NULL;
}

static int server(void)
{
	int listener = stage_listen(AF_INET, 64), fd, one = 1;
	pthread_t thread[PROCESSES * THREADS];
	struct sockaddr_in at;
	socklen_t len = sizeof(at);

	getsockname(listener, (struct sockaddr *)&at, &len);
	atomic_store(port, ntohs(at.sin_port));
	for (int i = 0; i < PROCESSES * THREADS; i++) {
		fd = accept(listener, NULL, NULL);
		if (fd < 0)
			watch_die("accept: %s", stage_errno(errno));
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
		if (pthread_create(&thread[i], NULL, answer, (void *)(intptr_t)fd))
			watch_die("no thread");
	}
	for (int i = 0; i < PROCESSES * THREADS; i++)
		pthread_join(thread[i], NULL);
	return 0;
}

static pid_t start(char name, int (*run)(void))
{
	pid_t pid = fork();

	if (pid < 0) {
		perror("fork");
		exit(2);
	}
	if (pid == 0) {
		watch_process(name);
		exit(run());
	}
	return pid;
}

int main(int argc, char **argv)
{
	pid_t pid[2];

	(void)argc;
	watch_open(LIMIT_S);
	port = watch_share(sizeof(*port));
	pid[1] = start('S', server);
	while (!atomic_load(port))
		stage_nap(500);
	for (int i = 0; i < PROCESSES && !watch_bads(); i++) {
		pid[0] = start('C', clients);
		/* The last process is waited for together with the server. */
		watch_over(pid, "CS", i < PROCESSES - 1 ? 1 : 2);
	}
	return watch_verdict("%s", argv[0]);
}
