/* SPDX-License-Identifier: MIT */
/* The other end of the connection, which does what it is told. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <unistd.h>

#include "life.h"

struct command {
	uint32_t what, how;
	uint64_t n;
};

struct partner {
	struct stage st;
	int set;
};

static int dial(uint64_t port)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (fd >= 0 && connect(fd, (struct sockaddr *)&at, sizeof(at))) {
		close(fd);
		return -1;
	}
	return fd;
}

/* Sleeps until the connection is readable. */
static void sleep_in(struct partner *p, uint32_t how)
{
	struct pollfd pfd = { .fd = p->st.fd, .events = POLLIN };
	struct epoll_event ev = { .events = EPOLLIN | (how == LIFE_EDGE ? (uint32_t)EPOLLET : 0) };
	fd_set in;

	if (how == LIFE_POLL) {
		poll(&pfd, 1, -1);
	} else if (how == LIFE_SELECT) {
		FD_ZERO(&in);
		FD_SET(p->st.fd, &in);
		select(p->st.fd + 1, &in, NULL, NULL, NULL);
	} else {
		if (p->set < 0) {
			p->set = epoll_create1(EPOLL_CLOEXEC);
			epoll_ctl(p->set, EPOLL_CTL_ADD, p->st.fd, &ev);
		}
		epoll_wait(p->set, &ev, 1, -1);
	}
}

/* Up to n octets; an edge is waited for only when a read has said EAGAIN, as event loops do. */
static ssize_t read_some(struct partner *p, size_t n, uint32_t how)
{
	static uint8_t buffer[1 << 16];
	size_t len = n < sizeof(buffer) ? n : sizeof(buffer);
	bool told = false;
	ssize_t got;

	if (how == LIFE_RECV) {
		got = recv(p->st.fd, buffer, len, 0);
	} else if (how == LIFE_EDGE) {
		while ((got = recv(p->st.fd, buffer, len, MSG_DONTWAIT)) < 0 && errno == EAGAIN)
			sleep_in(p, how);
	} else {
		sleep_in(p, how);
		told = true;
		got = recv(p->st.fd, buffer, len, MSG_DONTWAIT);
	}
	if (told && got < 0 && errno == EAGAIN)
		stage_bad(&p->st, "told readable by %u, but EAGAIN", how);
	if (got > 0)
		stage_took(&p->st, buffer, (size_t)got);
	return got;
}

static int64_t reads(struct partner *p, size_t n, uint32_t how)
{
	size_t got = 0;
	ssize_t len;

	while (got < n) {
		len = read_some(p, n - got, how);
		if (len < 0 && errno == EINTR)
			continue;
		if (len < 0)
			return -errno;
		if (len == 0)
			break;
		got += (size_t)len;
	}
	return (int64_t)got;
}

static int64_t to_the_end(struct partner *p, uint32_t how)
{
	uint64_t before = p->st.in.at;
	ssize_t n;
	int64_t err;

	while ((n = read_some(p, SIZE_MAX, how)) > 0)
		;
	err = n ? -errno : 0;
	n = (ssize_t)(p->st.in.at - before);
	if (write(p->st.ctl, &err, sizeof(err)) != sizeof(err))
		exit(2);
	return n;
}

static int64_t move(struct partner *p)
{
	int fd = dup(p->st.fd);

	if (fd < 0 || close(p->st.fd))
		return -errno;
	p->st.fd = fd;
	return 0;
}

static int64_t nest(const struct partner *p)
{
	struct epoll_event ev = { .events = EPOLLIN };
	int inner = epoll_create1(EPOLL_CLOEXEC), outer = epoll_create1(EPOLL_CLOEXEC);
	int64_t result;

	result = epoll_ctl(inner, EPOLL_CTL_ADD, p->st.fd, &ev) ||
				 epoll_ctl(outer, EPOLL_CTL_ADD, inner, &ev)
			 ? -errno
			 : 0;
	close(inner);
	close(outer);
	return result;
}

static int64_t obey(struct partner *p, const struct command *c)
{
	switch (c->what) {
	case LIFE_SENDS: stage_send(&p->st, c->n); return (int64_t)c->n;
	case LIFE_READS: return reads(p, c->n, c->how);
	case LIFE_WARMS: stage_warm(&p->st, (int)c->n); return 0;
	case LIFE_ENDS: return to_the_end(p, c->how);
	case LIFE_SHUTS: return shutdown(p->st.fd, SHUT_WR);
	case LIFE_OPENS: p->st.fd = dial(c->n); return p->st.fd < 0 ? -errno : 0;
	case LIFE_URGES: stage_nap((unsigned)c->n * 1000); return send(p->st.fd, "!", 1, MSG_OOB);
	case LIFE_NESTS: return nest(p);
	case LIFE_MOVES: return move(p);
	case LIFE_CLOSES:
		if (p->set >= 0)
			close(p->set);
		p->set = -1;
		return close(p->st.fd);
	default: return -ENOSYS;
	}
}

int partner_main(int ctl, uint64_t seed)
{
	struct partner p = { .st = { .name = 'B', .side = 1, .fd = -1, .ctl = ctl }, .set = -1 };
	struct command c;
	int64_t answer;

	p.st.out.key = seed * 2 + 1;
	p.st.in.key = seed * 2;
	while (read(ctl, &c, sizeof(c)) == sizeof(c) && c.what != LIFE_QUITS) {
		answer = obey(&p, &c);
		if (write(ctl, &answer, sizeof(answer)) != sizeof(answer))
			return 2;
	}
	return stage_bads() != 0;
}
