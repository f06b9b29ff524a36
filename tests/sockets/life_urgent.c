/* SPDX-License-Identifier: MIT */
/* An urgent octet behind others: reads stop at the mark, wherever those before it lie. */
#include <errno.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "life.h"

enum { AT_ONCE, IN_PARTS, BY_PEEKING, KINDS };

#define AFTER 300

static void take(struct life *l, size_t n, int flags)
{
	uint8_t data[4096];
	ssize_t got = recv(l->st.fd, data, n, flags);
	int mark = -1;

	if (got > 0 && !(flags & MSG_PEEK))
		stage_took(&l->st, data, (size_t)got);
	ioctl(l->st.fd, SIOCATMARK, &mark);
	stage_say(&l->st, "%zu: %zd %s, mark %d", n, got, got < 0 ? stage_errno(errno) : "", mark);
}

static void play(struct life *l)
{
	struct pollfd p = { .events = POLLPRI };
	char octet = 0;
	ssize_t n;

	if (l->asleep)
		return;
	life_begin(l);
	life_ask(l, LIFE_URGES, 0);
	life_answer(l);
	life_ask(l, LIFE_SENDS, AFTER);
	life_answer(l);
	stage_nap(20000);
	stage_settle(&l->st, l->pending); /* counts up to the mark */
	p.fd = l->st.fd;
	n = poll(&p, 1, 5000);
	stage_say(&l->st, "poll %zd, %x", n, (unsigned)p.revents);
	if (l->kind == IN_PARTS && l->pending)
		take(l, l->pending - 100, 0);
	if (l->kind == BY_PEEKING && l->pending)
		take(l, 4096, MSG_PEEK);
	if (l->pending)
		take(l, 4096, 0);
	n = recv(l->st.fd, &octet, 1, MSG_OOB);
	stage_say(&l->st, "urgent: %zd %c", n, octet);
	take(l, 4096, 0);
	l->pending = 0;
	life_go_on(l);
	close(l->st.fd);
	life_end(l);
}

int main(void)
{
	return life_main(play, KINDS, NULL);
}
