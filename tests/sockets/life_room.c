/* SPDX-License-Identifier: MIT */
/* More than fits: a writer that waits for an edge, and two that write before they read. And a cork. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "life.h"

#define MUCH    4000000
#define CHUNK   50000
#define CROSSED 600000 /* in each direction: what TCP surely has room for */
#define HANG_MS 20000
#define SLOW    500000 /* microseconds for five turns */

enum { EDGE, CROSS, CORK, KINDS };

/* Until it does not take all: a short write says as much as EAGAIN. Returns how many. */
static size_t write_on(struct life *l, size_t n)
{
	static uint8_t buffer[CHUNK];
	size_t done = 0;

	while (done < n) {
		size_t want = n - done < CHUNK ? n - done : CHUNK;
		ssize_t sent;

		flow_fill(&l->st.out, buffer, want);
		sent = write(l->st.fd, buffer, want);
		if (sent < 0 && errno == EAGAIN)
			break;
		if (sent < 0)
			stage_die(&l->st, "write: %s", stage_errno(errno));
		l->st.out.at += (uint64_t)sent;
		done += (size_t)sent;
		if ((size_t)sent < want)
			break;
	}
	return done;
}

static void wait_for_edges(struct life *l)
{
	struct epoll_event event = { .events = EPOLLIN | EPOLLOUT | EPOLLET };
	int set = epoll_create1(EPOLL_CLOEXEC);
	size_t done = 0;

	fcntl(l->st.fd, F_SETFL, O_NONBLOCK);
	if (set < 0 || epoll_ctl(set, EPOLL_CTL_ADD, l->st.fd, &event))
		stage_die(&l->st, "no set");
	for (bool first = true; done < MUCH; first = false) {
		if (epoll_wait(set, &event, 1, HANG_MS) != 1)
			stage_die(&l->st, "no edge after %zu octets", done);
		if (event.events & EPOLLOUT)
			done += write_on(l, MUCH - done);
		if (first)
			life_ask(l, LIFE_READS, MUCH);
	}
	stage_say(&l->st, "partner %lld", (long long)life_answer(l));
	fcntl(l->st.fd, F_SETFL, 0);
	close(set);
}

static void cross(struct life *l)
{
	life_ask(l, LIFE_SENDS, CROSSED);
	stage_send(&l->st, CROSSED);
	stage_recv(&l->st, CROSSED);
	stage_say(&l->st, "partner %lld", (long long)life_answer(l));
	life_ask(l, LIFE_READS, CROSSED);
	stage_say(&l->st, "partner %lld", (long long)life_answer(l));
}

static void set_cork(struct life *l, int on)
{
	if (setsockopt(l->st.fd, IPPROTO_TCP, TCP_CORK, &on, sizeof(on)))
		stage_die(&l->st, "TCP_CORK: %s", stage_errno(errno));
}

/* It was in when the lane came. Without it nothing may be held back. */
static void uncork(struct life *l)
{
	uint64_t start;

	life_connect(l);
	set_cork(l, 1);
	life_warm(l);
	set_cork(l, 0);
	start = stage_now();
	for (int i = 0; i < 5; i++) {
		stage_nap(3000);
		life_ask(l, LIFE_WARMS, 1);
		stage_warm(&l->st, 1);
		life_answer(l);
	}
	if (stage_now() - start > SLOW)
		stage_bad(&l->st, "turns without a cork take long");
}

static void play(struct life *l)
{
	if (l->kind == CORK && !l->pending && !l->asleep) { /* once: it takes long */
		uncork(l);
	} else {
		life_begin(l);
		stage_recv(&l->st, l->pending);
		if (l->asleep) {
			stage_send(&l->st, 500);
			stage_say(&l->st, "was asleep, read %lld", (long long)life_answer(l));
		}
	}
	life_calm(l);
	if (l->kind == EDGE)
		wait_for_edges(l);
	if (l->kind == CROSS)
		cross(l);
	life_go_on(l);
	close(l->st.fd);
	life_end(l);
}

int main(void)
{
	return life_main(play, KINDS, NULL);
}
