/* SPDX-License-Identifier: MIT */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "life.h"

#define TURNS   16
#define PENDING 700
#define WAKE    500
#define BULK    300000

struct command {
	uint32_t what, how;
	uint64_t n;
};

void life_ask(struct life *l, char what, size_t n)
{
	struct command c = { (uint32_t)what, l->how, n };

	if (write(l->st.ctl, &c, sizeof(c)) != sizeof(c))
		stage_die(&l->st, "the partner is gone");
}

int64_t life_answer(struct life *l)
{
	int64_t answer = -1;

	if (read(l->st.ctl, &answer, sizeof(answer)) != sizeof(answer))
		stage_die(&l->st, "the partner is gone");
	return answer;
}

static void expect(struct life *l, const char *what, int64_t want)
{
	int64_t answer = life_answer(l);

	if (answer != want)
		stage_bad(&l->st, "%s: the partner says %lld and not %lld", what, (long long)answer,
			  (long long)want);
}

void life_connect(struct life *l)
{
	struct sockaddr_in at;
	socklen_t len = sizeof(at);

	getsockname(l->listener, (struct sockaddr *)&at, &len);
	life_ask(l, LIFE_OPENS, ntohs(at.sin_port));
	l->st.fd = accept(l->listener, NULL, NULL);
	expect(l, "connect", 0);
	if (l->st.fd < 0)
		stage_die(&l->st, "accept: %s", strerror(errno));
}

void life_warm(struct life *l)
{
	life_ask(l, LIFE_WARMS, TURNS);
	stage_warm(&l->st, TURNS);
	expect(l, "turns", 0);
}

void life_begin(struct life *l)
{
	life_connect(l);
	life_warm(l);
	if (l->pending) {
		life_ask(l, LIFE_SENDS, l->pending);
		expect(l, "sends", (int64_t)l->pending);
	}
	if (l->asleep) {
		life_ask(l, LIFE_READS, WAKE);
		stage_nap(3000);
	}
}

/* Little and much in both directions. */
void life_go_on(struct life *l)
{
	stage_recv(&l->st, l->pending);
	if (l->asleep) {
		stage_send(&l->st, WAKE);
		expect(l, "was asleep, reads", WAKE);
	}
	life_warm(l);
	life_ask(l, LIFE_SENDS, BULK);
	stage_recv(&l->st, BULK);
	expect(l, "sends much", BULK);
	life_ask(l, LIFE_READS, BULK);
	stage_send(&l->st, BULK);
	expect(l, "reads much", BULK);
	stage_say(&l->st, "went on");
}

void life_skip(struct life *l)
{
	l->st.in.at += l->pending + TURNS * 64 + BULK;
	l->st.out.at += (l->asleep ? WAKE : 0) + TURNS * 64 + BULK;
}

void life_calm(struct life *l)
{
	l->pending = 0;
	l->asleep = false;
}

void life_end(struct life *l)
{
	int64_t err, n;

	life_ask(l, LIFE_ENDS, 0);
	err = life_answer(l);
	n = life_answer(l);
	stage_say(&l->st, "end %s after %lld more", stage_errno((int)-err), (long long)n);
}

void life_wait(struct life *l, pid_t child)
{
	int status = -1;

	while (waitpid(child, &status, 0) < 0 && errno == EINTR)
		;
	if (status)
		stage_bad(&l->st, "a child ended with %x", (unsigned)status);
}

/* ---- other programs ---- */

const char *life_neighbour(const char *name)
{
	static char path[4200];
	ssize_t n = readlink("/proc/self/exe", path, 4000);
	char *slash;

	path[n > 0 ? n : 0] = 0;
	slash = strrchr(path, '/');
	strcpy(slash ? slash + 1 : path, name);
	return path;
}

#define HEIR_ARGS 12

void life_heir_args(const struct life *l, const char *program, int fd, bool by_rights,
		    char *const **argv)
{
	static char text[HEIR_ARGS][32], path[4200];
	static char *args[HEIR_ARGS + 2];
	const uint64_t numbers[HEIR_ARGS] = { (uint64_t)fd, by_rights,         (uint64_t)l->st.ctl,
					      l->st.in.key, l->st.in.at,       l->st.out.key,
					      l->st.out.at, l->pending,        l->asleep,
					      l->how,       (uint64_t)l->kind, 0 };

	snprintf(path, sizeof(path), "%s", life_neighbour(program));
	args[0] = path;
	for (int i = 0; i < HEIR_ARGS; i++) {
		snprintf(text[i], sizeof(text[i]), "%llu", (unsigned long long)numbers[i]);
		args[i + 1] = text[i];
	}
	args[HEIR_ARGS + 1] = NULL;
	*argv = args;
}

static int receive_rights(int from)
{
	char octet, control[CMSG_SPACE(sizeof(int))];
	struct iovec iov = { &octet, 1 };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control };
	struct cmsghdr *c;
	int fd;

	msg.msg_controllen = sizeof(control);
	if (recvmsg(from, &msg, 0) != 1 || !(c = CMSG_FIRSTHDR(&msg)) || c->cmsg_type != SCM_RIGHTS)
		return -1;
	memcpy(&fd, CMSG_DATA(c), sizeof(fd));
	return fd;
}

int life_heir_main(int argc, char **argv)
{
	struct life l = { .st.name = 'H' };
	uint64_t v[HEIR_ARGS] = { 0 };

	if (argc != HEIR_ARGS + 1)
		return 2;
	for (int i = 0; i < HEIR_ARGS; i++)
		v[i] = strtoull(argv[i + 1], NULL, 10);
	l.st.ctl = (int)v[2];
	l.st.in = (struct flow) { v[3], v[4] };
	l.st.out = (struct flow) { v[5], v[6] };
	l.pending = v[7];
	l.asleep = v[8];
	l.how = (enum life_how)v[9];
	l.kind = (int)v[10];
	l.st.fd = v[1] ? receive_rights((int)v[0]) : (int)v[0];
	if (l.st.fd < 0)
		stage_die(&l.st, "no descriptor came");
	life_go_on(&l);
	return stage_bads() != 0;
}

/* ---- all variants ---- */

static pid_t start_partner(struct life *l, int theirs, const char *program)
{
	char ctl[16], seed[16];
	pid_t pid = fork();

	if (pid)
		return pid;
	close(l->st.ctl);
	if (program) {
		snprintf(ctl, sizeof(ctl), "%d", theirs);
		snprintf(seed, sizeof(seed), "%d", l->kind);
		execl(life_neighbour(program), program, ctl, seed, NULL);
		_exit(2);
	}
	_exit(partner_main(theirs, (uint64_t)l->kind));
}

static void play_variant(struct life *l, life_play *play, const char *partner)
{
	int ctl[2];
	pid_t pid, actor;

	stage_say(&l->st, "kind %d, %zu pending, partner %s %d", l->kind, l->pending,
		  l->asleep ? "asleep in" : "awake", l->how);
	actor = fork();
	if (actor) {
		life_wait(l, actor);
		return;
	}
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, ctl))
		exit(2);
	l->st.ctl = ctl[0];
	pid = start_partner(l, ctl[1], partner);
	close(ctl[1]);
	l->st.in.key = (uint64_t)l->kind * 2 + 1;
	l->st.out.key = (uint64_t)l->kind * 2;
	play(l);
	life_ask(l, LIFE_QUITS, 0);
	life_wait(l, pid);
	_exit(stage_bads() != 0);
}

int life_main(life_play *play, int kinds, const char *partner)
{
	struct life l;
	int listener = stage_listen(AF_INET, 8);

	for (int kind = 0; kind < kinds; kind++)
		for (int pending = 0; pending < 2; pending++)
			for (int how = -1; how < LIFE_HOWS; how++) {
				l = (struct life) { .listener = listener, .kind = kind };
				l.st.name = 'A';
				l.pending = pending ? PENDING : 0;
				l.asleep = how >= 0;
				l.how = how >= 0 ? (enum life_how)how : LIFE_RECV;
				play_variant(&l, play, partner);
			}
	return stage_bads() != 0;
}
