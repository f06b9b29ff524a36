/* SPDX-License-Identifier: MIT */
/* Options and requests that change what calls return: signals, control data, peeking, zero copies, counts. */
#include <errno.h>
#include <fcntl.h>
#include <linux/errqueue.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "answers.h"

#define TRIES 200

static int a, b; /* the ends of a connection */

static void begin(void)
{
	int ends[2];

	answer_warm_pair(ends);
	a = ends[0];
	b = ends[1];
}

static int set(int fd, int level, int name, int value)
{
	return setsockopt(fd, level, name, &value, sizeof(value));
}

/* ---- signals ---- */

static volatile sig_atomic_t told;

static void on_io(int signal)
{
	(void)signal;
	told++;
}

static bool is_told(const char *text)
{
	told = 0;
	send(a, text, strlen(text), 0);
	for (int i = 0; i < TRIES && !told; i++)
		usleep(5000);
	return told > 0;
}

static void signals(void)
{
	int on = 1, off = 0;

	signal(SIGIO, on_io);
	for (int way = 0; way < 2; way++) {
		begin();
		fcntl(b, F_SETOWN, getpid());
		send(a, "before", 6, 0);
		if (way == 0)
			answer("ioctl %s", answer_of(ioctl(b, FIOASYNC, &on)));
		else
			answer("fcntl %s", answer_of(fcntl(b, F_SETFL, O_ASYNC)));
		answer("flags %d", !!(fcntl(b, F_GETFL) & O_ASYNC));
		answer("told %d", is_told("one"));
		answer("told %d", is_told("two"));
		answer("came %s", answer_read(b, 12));
		answer("off %s", answer_of(ioctl(b, FIOASYNC, &off)));
		answer("flags %d", !!(fcntl(b, F_GETFL) & O_ASYNC));
		send(a, "quiet", 5, 0);
		answer("came %s", answer_read(b, 5));
		close(a);
		close(b);
	}
	begin();
	answer("off from the beginning %s", answer_of(ioctl(b, FIOASYNC, &off)));
}

/* ---- control data ---- */

/* The type of the first one with a message of `n` octets, or -1; its first number. */
static int control_of(size_t n, int *value)
{
	char octets[64], control[256];
	struct iovec iov = { octets, n };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control };
	struct cmsghdr *c;

	msg.msg_controllen = sizeof(control);
	if (recvmsg(b, &msg, 0) <= 0)
		return -2;
	c = CMSG_FIRSTHDR(&msg);
	if (c && value)
		memcpy(value, CMSG_DATA(c), sizeof(*value));
	return c ? c->cmsg_type : -1;
}

/* The same with room for so much control data: what it has become, and whether that was told to be cut. */
static void short_of_room(size_t room)
{
	char octet, control[64] = { 0 };
	struct iovec iov = { &octet, 1 };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_controllen = room };
	struct cmsghdr *c = (struct cmsghdr *)control;
	ssize_t n;

	msg.msg_control = room ? control : NULL;
	n = recvmsg(b, &msg, 0);
	answer("room for %zu: %zd, %zu of it, length %zu, %d, cut %d", room, n, msg.msg_controllen,
	       c->cmsg_len, *(int *)CMSG_DATA(c), !!(msg.msg_flags & MSG_CTRUNC));
}

/* In a stream that changes between ring and carrier, to its end. */
static void left_of_much(void)
{
	static char much[100000];
	int value, left = 0, type;

	begin();
	answer("set %s", answer_of(set(b, IPPROTO_TCP, TCP_INQ, 1)));
	for (size_t n = 1; n < sizeof(much); n = n * 3 + 1) {
		send(a, much, n, 0);
		usleep(20000);
		type = control_of(1, &value);
		answer("%zu: type %d, %d left", n, type, value);
		for (left = value; left > 0; left -= 64)
			type = control_of(64, &value);
		answer("%zu: type %d, %d left", n, type, value);
	}
	send(a, "end", 3, 0);
	usleep(20000);
	for (size_t room = 0; room < 3; room++)
		short_of_room(room * 12);
	send(a, "end", 3, 0);
	close(a);
	usleep(20000);
	short_of_room(CMSG_LEN(sizeof(int)));
	for (int i = 0; i < 3; i++)
		short_of_room(CMSG_SPACE(sizeof(int)));
}

static void how_much_is_left(void)
{
	int value = -1, type;

	begin();
	answer("set %s", answer_of(set(b, IPPROTO_TCP, TCP_INQ, 1)));
	send(a, "hello", 5, 0);
	usleep(20000);
	type = control_of(2, &value);
	answer("type %d, %d left", type, value);
	type = control_of(2, &value);
	answer("type %d, %d left", type, value);
	answer("off %s", answer_of(set(b, IPPROTO_TCP, TCP_INQ, 0)));
	type = control_of(2, &value);
	answer("type %d", type);
	begin();
	answer("off from the beginning %s", answer_of(set(b, IPPROTO_TCP, TCP_INQ, 0)));
	send(a, "x", 1, 0);
	answer("type %d", control_of(2, NULL));
	left_of_much();
}

static void times_of_arrival(void)
{
	static const int names[] = { SO_TIMESTAMP_OLD,   SO_TIMESTAMP_NEW,    SO_TIMESTAMPNS_OLD,
				     SO_TIMESTAMPNS_NEW, SO_TIMESTAMPING_OLD, SO_TIMESTAMPING_NEW };

	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		int type = -1;

		begin();
		/* For time stamping: of what is received, in software, and tell. */
		answer("set %d %s", names[i],
		       answer_of(set(b, SOL_SOCKET, names[i], i < 4 ? 1 : 0x18)));
		/* The kernel begins with it some time later. */
		for (int try = 0; try < TRIES && type == -1; try++) {
			send(a, "x", 1, 0);
			type = control_of(1, NULL);
			usleep(type == -1 ? 2000 : 0);
		}
		answer("type %d", type);
		close(a);
		close(b);
	}
}

/* ---- peeking ---- */

static const char *peek(size_t n)
{
	static char octets[16];
	ssize_t got = recv(b, octets, n, MSG_PEEK | MSG_DONTWAIT);

	octets[got > 0 ? got : 0] = 0;
	return got < 0 ? "nothing" : octets;
}

static void peeks(void)
{
	begin();
	answer("set %s", answer_of(set(b, SOL_SOCKET, SO_PEEK_OFF, 0)));
	send(a, "hello world", 11, 0);
	usleep(20000);
	answer("peek '%s'", peek(2));
	answer("then '%s'", peek(3));
	answer("read %s", answer_read(b, 1));
	answer("then '%s'", peek(3));
	answer("off %s", answer_of(set(b, SOL_SOCKET, SO_PEEK_OFF, -1)));
	answer("then '%s'", peek(3));
	answer("rest %s", answer_read(b, 10));
}

/* ---- zero copies ---- */

struct zero_copy {
	uint64_t address;
	uint32_t length, skip, queued;
	int32_t error;
	uint64_t copy;
	int32_t copied;
	uint32_t flags;
};

static void receive_without_copies(void)
{
	static char octets[65536];
	struct zero_copy z = { .length = sizeof(octets) };
	socklen_t size = sizeof(z);
	size_t got = 0;
	void *at;
	int n;

	begin();
	memset(octets, 'z', sizeof(octets));
	send(a, octets, sizeof(octets), 0);
	usleep(50000);
	at = mmap(NULL, sizeof(octets), PROT_READ, MAP_SHARED, b, 0);
	if (at == MAP_FAILED) {
		answer("not here");
		return;
	}
	z.address = (uintptr_t)at;
	n = getsockopt(b, IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE, &z, &size);
	answer("get %s, something %d", answer_of(n), z.length + z.skip + z.queued > 0);
	for (got = z.length; got < sizeof(octets); got += (size_t)n) {
		n = (int)recv(b, octets, sizeof(octets) - got, 0);
		if (n <= 0)
			break;
	}
	answer("all %zu", got);
}

/* How many completions the error queue tells of. */
static unsigned completions(void)
{
	struct pollfd p = { .fd = a };
	char control[256];
	struct msghdr msg = { .msg_control = control };
	unsigned done = 0;

	for (int i = 0; i < TRIES && done < 2 && poll(&p, 1, 100) >= 0; i++) {
		struct sock_extended_err *e;
		struct cmsghdr *c;

		msg.msg_controllen = sizeof(control);
		if (recvmsg(a, &msg, MSG_ERRQUEUE) < 0) {
			usleep(2000);
			continue;
		}
		c = CMSG_FIRSTHDR(&msg);
		if (!c)
			continue;
		e = (struct sock_extended_err *)CMSG_DATA(c);
		if (e->ee_origin == SO_EE_ORIGIN_ZEROCOPY)
			done += e->ee_data - e->ee_info + 1;
	}
	return done;
}

static void send_without_copies(void)
{
	int value = -1;
	socklen_t size = sizeof(value);

	begin();
	answer("set %s", answer_of(set(a, SOL_SOCKET, SO_ZEROCOPY, 1)));
	getsockopt(a, SOL_SOCKET, SO_ZEROCOPY, &value, &size);
	answer("value %d", value);
	answer_warm(a, b);
	send(a, "A", 1, 0);
	answer("send %s", answer_of(send(a, "zero", 4, MSG_ZEROCOPY)));
	send(a, "B", 1, 0);
	answer("send %s", answer_of(send(a, "copy", 4, MSG_ZEROCOPY)));
	answer("came %s", answer_read(b, 10));
	answer("completed %u", completions());
}

/* Without the option the flag means nothing. */
static void flag_without_option(void)
{
	begin();
	send(a, "A", 1, 0);
	answer("send %s", answer_of(send(a, "zero", 4, MSG_ZEROCOPY)));
	answer("came %s", answer_read(b, 5));
}

/* ---- flags of vectors ---- */

static void vectors(void)
{
	static const int flags[] = { 0, RWF_HIPRI, RWF_NOWAIT, RWF_DSYNC, RWF_SYNC, 1 << 20 };
	char octets[8] = "";
	struct iovec out = { (void *)"vec", 3 }, in = { octets, 3 };

	for (size_t i = 0; i < sizeof(flags) / sizeof(*flags); i++) {
		ssize_t n;

		begin();
		send(a, "A", 1, 0);
		n = pwritev2(a, &out, 1, -1, flags[i]);
		answer("%zu: write %s", i, answer_of(n));
		send(a, "B", 1, 0);
		answer("came %s", answer_read(b, n > 0 ? 5 : 2));
		send(a, "abc", 3, 0);
		usleep(5000);
		n = preadv2(b, &in, 1, -1, flags[i]);
		answer("%zu: read %s", i, answer_of(n));
		if (n < 0)
			answer("came %s", answer_read(b, 3));
	}
}

/* ---- counts ---- */

static void not_yet_acknowledged(void)
{
	static char octets[9999];
	int queued = -1;

	begin();
	set(b, IPPROTO_TCP, TCP_QUICKACK, 0);
	send(a, octets, sizeof(octets), 0);
	answer("ask %s", answer_of(ioctl(a, SIOCOUTQ, &queued)));
	answer("sent %d", queued);
	/* The other end acknowledges what it has, read or not. */
	usleep(400000);
	ioctl(a, SIOCOUTQ, &queued);
	answer("later %d", queued);
	answer("unsent %s", answer_of(ioctl(a, SIOCOUTQNSD, &queued)));
	answer("unsent %d", queued);
}

/* A program counts what it has opened, and no more. */
static void descriptors(void)
{
	int n = 0, copies = 0;

	begin();
	for (int fd = 0; fd < 1024; fd++) {
		n += fcntl(fd, F_GETFD) >= 0;
		n += fcntl(fd, F_GETFL) >= 0;
	}
	answer("open %d", n);
	for (int fd = 900; fd < 1024; fd++) {
		copies += dup(fd) >= 0;
		copies += dup2(fd, 50) >= 0;
		copies += fcntl(fd, F_DUPFD, 50) >= 0;
	}
	answer("copies %d", copies);
	answer_warm(a, b);
}

int main(int argc, char **argv)
{
	static const struct question questions[] = {
		{ "signals", signals },
		{ "how much is left", how_much_is_left },
		{ "times of arrival", times_of_arrival },
		{ "peeks", peeks },
		{ "receive without copies", receive_without_copies },
		{ "send without copies", send_without_copies },
		{ "flag without option", flag_without_option },
		{ "vectors", vectors },
		{ "not yet acknowledged", not_yet_acknowledged },
		{ "descriptors", descriptors },
	};

	(void)argc;
	return answers_main(questions, sizeof(questions) / sizeof(*questions), argv + 1);
}
