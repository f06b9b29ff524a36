/* SPDX-License-Identifier: MIT */
/*
 * A connection made in one of the ways in which a program can have a say in what carries it; `switch` (the
 * script beside this) looks at the library's counters afterwards.
 *
 *   sockets_switch FAMILY PROTOCOL TURNS [OPTION...]
 *
 * FAMILY inet, inet6, offload, offload6, direct, direct6; PROTOCOL 0, tcp, sdp. OPTION says what the accepting
 * process does besides: lowat (an option that only TCP has, on its end), listener (the same, on the
 * listener), later (the same, after the turns), off (such options, switched off), inq (one that lanes have too),
 * zerocopy (one that means nothing until it is used), zerosend (and used, after the turns), wrong (one that the kernel refuses), ring (io_uring, after a
 * first connection of the same kind), blind (the same, with a thread of the kernel that looks for requests).
 */
#include <errno.h>
#include <linux/io_uring.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <flue/offload.h>

#include "stage.h"

#ifndef TCP_ULP
#define TCP_ULP 31
#endif

static const struct {
	const char *name;
	int number;
} names[] = {
	{ "inet", AF_INET },
	{ "inet6", AF_INET6 },
	{ "offload", AF_INET_OFFLOAD },
	{ "offload6", AF_INET6_OFFLOAD },
	{ "direct", AF_INET_DIRECT },
	{ "direct6", AF_INET6_DIRECT },
	{ "0", 0 },
	{ "tcp", IPPROTO_TCP },
	{ "sdp", IPPROTO_SDP },
};

static char **options;
static struct stage stage;

static int number_of(const char *name)
{
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (!strcmp(names[i].name, name))
			return names[i].number;
	fprintf(stderr, "%s?\n", name);
	exit(2);
}

static bool is_asked(const char *option)
{
	for (char **o = options; *o; o++)
		if (!strcmp(*o, option))
			return true;
	return false;
}

static void need(bool ok, const char *what)
{
	if (!ok)
		stage_die(&stage, "%s: %s", what, strerror(errno));
}

/* An address that has the family which the program asked for. */
static socklen_t loopback(int family, struct sockaddr_storage *at)
{
	struct sockaddr_in *v4 = (struct sockaddr_in *)at;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)at;

	memset(at, 0, sizeof(*at));
	at->ss_family = (sa_family_t)family;
	if ((family & 0xff) == AF_INET6) {
		v6->sin6_addr = in6addr_loopback;
		return sizeof(*v6);
	}
	v4->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	return sizeof(*v4);
}

static void set_lowat(int fd)
{
	int two = 2;

	need(!setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &two, sizeof(two)), "SO_RCVLOWAT");
}

static void switch_off(int fd)
{
	static const struct {
		int level, name, value;
	} off[] = {
		{ SOL_SOCKET, SO_TIMESTAMP, 0 }, { SOL_SOCKET, SO_TIMESTAMPING, 0 },
		{ SOL_SOCKET, SO_OOBINLINE, 0 }, { SOL_SOCKET, SO_RCVLOWAT, 1 },
		{ IPPROTO_TCP, TCP_INQ, 0 },
	};

	for (size_t i = 0; i < sizeof(off) / sizeof(*off); i++)
		need(!setsockopt(fd, off[i].level, off[i].name, &off[i].value, sizeof(int)), "off");
}

static void switch_on(int fd, int level, int name)
{
	int one = 1;

	need(!setsockopt(fd, level, name, &one, sizeof(one)), "on");
}

/* One message that is not to be copied, the other way from the last one of the turns. */
static void send_zerocopy(void)
{
	static uint8_t octets[1000];

	if (stage.side) {
		stage_recv(&stage, sizeof(octets));
		return;
	}
	flow_fill(&stage.out, octets, sizeof(octets));
	need(send(stage.fd, octets, sizeof(octets), MSG_ZEROCOPY) == sizeof(octets), "send");
	stage.out.at += sizeof(octets);
}

static void open_ring(uint32_t flags)
{
	struct io_uring_params params = { .flags = flags };
	int fd = (int)syscall(SYS_io_uring_setup, 4, &params);

	if (fd < 0) {
		printf("A no io_uring here\n");
		exit(77);
	}
	close(fd);
}

static void meet_and_talk(int listener, int family, int protocol, int turns)
{
	struct sockaddr_storage at;
	socklen_t size = sizeof(at);

	stage.out = (struct flow) { .key = (uint64_t)stage.side };
	stage.in = (struct flow) { .key = (uint64_t)!stage.side };
	if (stage.side) {
		need(!getsockname(listener, (struct sockaddr *)&at, &size), "getsockname");
		at.ss_family = (sa_family_t)family;
		stage.fd = socket(family, SOCK_STREAM, protocol);
		need(stage.fd >= 0, "socket");
		need(!connect(stage.fd, (struct sockaddr *)&at, size), "connect");
	} else {
		stage.fd = accept(listener, NULL, NULL);
		need(stage.fd >= 0, "accept");
		if (is_asked("lowat"))
			set_lowat(stage.fd);
		if (is_asked("off"))
			switch_off(stage.fd);
		if (is_asked("zerocopy") || is_asked("zerosend"))
			switch_on(stage.fd, SOL_SOCKET, SO_ZEROCOPY);
		if (is_asked("inq"))
			switch_on(stage.fd, IPPROTO_TCP, TCP_INQ);
		if (is_asked("wrong") && !setsockopt(stage.fd, IPPROTO_TCP, TCP_ULP, "no such", 7))
			stage_bad(&stage, "an option that nobody knows was taken");
	}
	stage_warm(&stage, turns);
	if (is_asked("later")) {
		if (!stage.side)
			set_lowat(stage.fd);
		stage_warm(&stage, 2);
	}
	if (is_asked("zerosend")) {
		send_zerocopy();
		stage_warm(&stage, 2);
	}
	stage_meet(&stage, 0);
	close(stage.fd);
}

int main(int argc, char **argv)
{
	struct sockaddr_storage at;
	int family, protocol, listener;
	socklen_t size;

	if (argc < 4)
		return 2;
	options = argv + 4;
	family = number_of(argv[1]);
	protocol = number_of(argv[2]);
	listener = socket(family, SOCK_STREAM, protocol);
	need(listener >= 0, "socket");
	size = loopback(family, &at);
	need(!bind(listener, (struct sockaddr *)&at, size) && !listen(listener, 1), "listen");
	if (is_asked("listener"))
		set_lowat(listener);
	stage_split(&stage);
	meet_and_talk(listener, family, protocol, atoi(argv[3]));
	if (is_asked("ring") || is_asked("blind")) {
		if (!stage.side)
			open_ring(is_asked("blind") ? IORING_SETUP_SQPOLL : 0);
		stage_meet(&stage, 0);
		meet_and_talk(listener, family, protocol, atoi(argv[3]));
	}
	return stage.side ? 0 : stage_join(&stage);
}
