/* SPDX-License-Identifier: MIT */
/*
 * A middle box with bad manners: it forwards each octet of the start-up alone, or it collects what
 * comes for a while, so that the last streaming octets and the first of RDMA mode share a segment.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include "plan.h"

#define START_UP 500 /* octets of each direction that go alone */

struct way {
	int from, to;
	size_t passed;
	bool over;
};

/* False: that way is over. */
static bool forward(struct way *w, enum relay how)
{
	uint8_t data[16384];
	size_t room = how == RELAY_OCTETS && w->passed < START_UP ? 1 : sizeof(data);
	ssize_t n, at = 0, m;

	if (how == RELAY_GLUE && w->passed < 8 * START_UP)
		usleep(2000);
	n = recv(w->from, data, room, 0);
	if (n <= 0) {
		shutdown(w->to, SHUT_WR);
		return false;
	}
	for (; at < n; at += m) {
		m = send(w->to, data + at, (size_t)(n - at), MSG_NOSIGNAL);
		if (m <= 0)
			return false;
	}
	w->passed += (size_t)n;
	return true;
}

static void pass(int a, int b, enum relay how)
{
	struct way ways[2] = { { .from = a, .to = b }, { .from = b, .to = a } };

	while (!ways[0].over || !ways[1].over) {
		struct pollfd p[2];

		for (int i = 0; i < 2; i++)
			p[i] = (struct pollfd) { .fd = ways[i].over ? -1 : ways[i].from,
						 .events = POLLIN };
		if (poll(p, 2, -1) < 0)
			return;
		for (int i = 0; i < 2; i++)
			if (p[i].revents && !forward(&ways[i], how))
				ways[i].over = true;
	}
}

static int dial(uint16_t port)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = port };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0)
		return fd;
	return -1;
}

void *relay_main(void *arg)
{
	const struct relay_arg *r = arg;
	struct plan plan;
	int one = 1;

	for (uint32_t i = r->worker; i < r->tally->count; i += WORKERS) {
		int a, b;

		plan_draw(&plan, r->tally->seed, i);
		if (plan.relay == DIRECT)
			continue;
		a = accept(r->listener, NULL, NULL);
		b = a < 0 ? -1 : dial(r->tally->port[r->worker]);
		if (b < 0)
			return NULL;
		setsockopt(a, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
		setsockopt(b, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
		pass(a, b, plan.relay);
		close(a);
		close(b);
	}
	return NULL;
}
