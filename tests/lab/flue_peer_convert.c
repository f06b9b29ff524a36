/* SPDX-License-Identifier: MIT */
/*
 * convert-connect, convert-accept: a plain TCP connection, words on it (--lines; lab/guest/relay.c
 * tells which), then flue_socket_convert().
 */
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "flue_peer.h"

/* What has been read; behind the last line it is RDMA's. */
struct heard {
	char data[4096];
	size_t len;
};

static bool say(int fd, const char *line)
{
	return send(fd, line, strlen(line), MSG_NOSIGNAL) == (ssize_t)strlen(line) ||
	       peer_failed("say");
}

/* Takes as much as TCP has, and that may be more than the line. */
static bool hear(int fd, struct heard *h, const char *start)
{
	char *end;
	ssize_t n;

	while (!(end = memchr(h->data, '\n', h->len))) {
		n = recv(fd, h->data + h->len, sizeof(h->data) - h->len, 0);
		if (n <= 0)
			return peer_failed("hear");
		h->len += (size_t)n;
	}
	printf("LINE %.*s\n", (int)(end - h->data), h->data);
	if (strncmp(h->data, start, strlen(start)) != 0)
		return false;
	h->len -= (size_t)(end + 1 - h->data);
	memmove(h->data, end + 1, h->len);
	return true;
}

static bool log_in(int fd, struct heard *h)
{
	return say(fd, "LOGIN flue\n") && hear(fd, h, "HELLO ") && say(fd, "RDMA\n") &&
	       hear(fd, h, "GO");
}

static bool be_logged_in(int fd, struct heard *h)
{
	return hear(fd, h, "LOGIN ") && say(fd, "HELLO flue\n") && hear(fd, h, "RDMA") &&
	       say(fd, "GO\n");
}

static int take_one(const struct peer *p, const struct addrinfo *ai)
{
	int listener = socket(ai->ai_family, SOCK_STREAM, 0), one = 1, fd = -1;

	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (!bind(listener, ai->ai_addr, ai->ai_addrlen) && !listen(listener, 1)) {
		printf("LISTENING %s\n", p->opt.port);
		fd = accept(listener, NULL, NULL);
	}
	close(listener);
	return fd;
}

static int reach(const struct addrinfo *ai)
{
	int fd = socket(ai->ai_family, SOCK_STREAM, 0);

	if (!connect(fd, ai->ai_addr, ai->ai_addrlen))
		return fd;
	close(fd);
	return -1;
}

bool convert_establish(struct peer *p, const struct addrinfo *ai)
{
	struct flue_switch_attr a = FLUE_ATTR(struct flue_switch_attr);
	struct heard h = { .len = 0 };
	int fd = p->opt.server ? take_one(p, ai) : reach(ai);

	if (fd < 0)
		return peer_failed("TCP");
	if (p->opt.lines && !(p->opt.server ? be_logged_in(fd, &h) : log_in(fd, &h)))
		return false;
	printf("EARLY %zu\n", h.len);
	a.flags = p->opt.server ? FLUE_SWITCH_RESPONDER : 0;
	a.conn_flags = p->opt.flags;
	a.timeout_ms = p->opt.timeout_ms;
	a.private_data = p->opt.pd;
	a.private_len = p->opt.pd_len;
	a.ird = p->opt.ird;
	a.ord = p->opt.ord;
	a.early = h.data;
	a.early_len = h.len;
	return flue_socket_convert(p->qp, fd, &a);
}
