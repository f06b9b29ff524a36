/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "answers.h"
#include "stage.h"

#define LIMIT   60 /* seconds; a question takes less than one */
#define TURNS   16
#define SOON_US 30000
#define PAGES   8192

static struct stage stage = { .name = 'A' };
static const char *current = "?";

void answer(const char *format, ...)
{
	char text[400];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	stage_say(&stage, "%s: %s", current, text);
}

const char *answer_of(long n)
{
	static char text[8][24];
	static unsigned turn;
	char *to = text[turn++ % 8];

	if (n < 0)
		return stage_errno(errno);
	snprintf(to, sizeof(text[0]), "%ld", n);
	return to;
}

void answer_broken(const char *what)
{
	stage_die(&stage, "%s: %s: %s", current, what, strerror(errno));
}

void answer_pair(int ends[2])
{
	int listener = stage_listen(AF_INET, 1), one = 1;

	ends[0] = stage_dial(listener);
	ends[1] = accept(listener, NULL, NULL);
	close(listener);
	if (ends[0] < 0 || ends[1] < 0)
		answer_broken("no connection");
	/* What is sent arrives at once, also in the kernel. */
	for (int i = 0; i < 2; i++)
		setsockopt(ends[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

void answer_warm(int a, int b)
{
	char octets[50] = "";

	for (int i = 0; i < TURNS; i++) {
		if (send(a, octets, sizeof(octets), 0) != sizeof(octets) ||
		    recv(b, octets, sizeof(octets), MSG_WAITALL) != sizeof(octets) ||
		    send(b, octets, sizeof(octets), 0) != sizeof(octets) ||
		    recv(a, octets, sizeof(octets), MSG_WAITALL) != sizeof(octets))
			answer_broken("turns");
	}
}

void answer_warm_pair(int ends[2])
{
	answer_pair(ends);
	answer_warm(ends[0], ends[1]);
}

struct soon {
	int fd;
	const char *text;
};

static void *send_soon(void *arg)
{
	struct soon *s = arg;

	usleep(SOON_US);
	if (send(s->fd, s->text, strlen(s->text), 0) < 0)
		stage_bad(&stage, "%s: send: %s", current, strerror(errno));
	free(s);
	return NULL;
}

void answer_soon(int fd, const char *text)
{
	struct soon *s = malloc(sizeof(*s));
	pthread_t thread;

	*s = (struct soon) { fd, text };
	if (pthread_create(&thread, NULL, send_soon, s) != 0)
		answer_broken("thread");
	pthread_detach(thread);
}

const char *answer_read(int fd, size_t n)
{
	static char text[4096];
	size_t got = 0;
	ssize_t now = 1;

	while (got < n && now > 0) {
		now = recv(fd, text + got, n - got, 0);
		if (now > 0)
			got += (size_t)now;
	}
	text[got] = 0;
	return now < 0 ? stage_errno(errno) : text;
}

static void *pages(int protection)
{
	void *p = mmap(NULL, PAGES, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		answer_broken("mmap");
	return p;
}

void *answer_hole(void)
{
	return pages(PROT_NONE);
}

void *answer_constant(void)
{
	return pages(PROT_READ);
}

static void ask(const struct question *q)
{
	int status = -1;
	pid_t child;

	current = q->name;
	child = fork();
	if (child == 0) {
		alarm(LIMIT);
		q->ask();
		_exit(stage_bads() != 0);
	}
	while (waitpid(child, &status, 0) < 0 && errno == EINTR)
		;
	if (WIFSIGNALED(status))
		answer("ended by %s", sigabbrev_np(WTERMSIG(status)));
	else if (status)
		answer("exit %d", WEXITSTATUS(status));
}

static int is_named(const char *name, char **names)
{
	for (char **n = names; *n; n++)
		if (strcmp(*n, name) == 0)
			return 1;
	return names[0] == NULL;
}

int answers_main(const struct question *questions, size_t n, char **names)
{
	for (size_t i = 0; i < n; i++)
		if (is_named(questions[i].name, names))
			ask(&questions[i]);
	return stage_bads() != 0;
}
