/* SPDX-License-Identifier: MIT */
/*
 * An urgent octet behind others: reads stop at the mark, wherever those before it lie. And one alone: it wakes
 * who waits for it and for others, and who then waits for more sleeps. And one that is sent while octets of a peer
 * that has left the lane are still to be read.
 */
#include <errno.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "life.h"

enum { AT_ONCE, IN_PARTS, BY_PEEKING, ALONE, SENT, KINDS };

#define AFTER   300
#define QUIET   500 /* milliseconds */
#define BUSY_US (QUIET * 1000 / 4)

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

static long used_us(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return (u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000 + u.ru_utime.tv_usec +
	       u.ru_stime.tv_usec;
}

static void await(struct life *l, short events, int ms)
{
	struct pollfd p = { .fd = l->st.fd, .events = events };
	long before = used_us();
	int n = poll(&p, 1, ms);

	stage_say(&l->st, "poll %d, %x%s", n, (unsigned)p.revents,
		  n == 0 && used_us() - before > BUSY_US ? ", and was busy" : "");
}

static void take_urgent(struct life *l)
{
	char octet = 0;
	ssize_t n = recv(l->st.fd, &octet, 1, MSG_OOB);

	stage_say(&l->st, "urgent: %zd %c", n, octet);
}

static void play_alone(struct life *l)
{
	life_begin(l);
	stage_settle(&l->st, l->pending);
	if (l->pending)
		take(l, 4096, 0);
	l->pending = 0;
	life_ask(l, LIFE_URGES, 50); /* when we are asleep */
	await(l, POLLIN | POLLPRI, 20000);
	life_answer(l);
	take_urgent(l);
	await(l, POLLIN | POLLPRI, QUIET);
	await(l, POLLIN, QUIET);
	life_go_on(l);
	close(l->st.fd);
	life_end(l);
}

static void play_sent(struct life *l)
{
	life_begin(l);
	stage_settle(&l->st, l->pending);
	life_ask(l, LIFE_NESTS, 0);
	life_answer(l);
	stage_say(&l->st, "sent: %zd", send(l->st.fd, "!", 1, MSG_OOB));
	if (l->pending)
		take(l, 4096, 0);
	l->pending = 0;
	life_go_on(l);
	close(l->st.fd);
	life_end(l);
}

static void play(struct life *l)
{
	if (l->asleep)
		return;
	if (l->kind == ALONE || l->kind == SENT) {
		(l->kind == ALONE ? play_alone : play_sent)(l);
		return;
	}
	life_begin(l);
	life_ask(l, LIFE_URGES, 0);
	life_answer(l);
	life_ask(l, LIFE_SENDS, AFTER);
	life_answer(l);
	stage_nap(20000);
	stage_settle(&l->st, l->pending); /* counts up to the mark */
	await(l, POLLPRI, 5000);
	if (l->kind == IN_PARTS && l->pending)
		take(l, l->pending - 100, 0);
	if (l->kind == BY_PEEKING && l->pending)
		take(l, 4096, MSG_PEEK);
	if (l->pending)
		take(l, 4096, 0);
	take_urgent(l);
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
