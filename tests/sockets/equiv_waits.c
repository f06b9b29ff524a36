/* SPDX-License-Identifier: MIT */
/* Every call that waits for readiness, and a two-way transfer that sleeps in it. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "equiv.h"

#define DUPLEX_MS 20000
#define CHUNK     (1 << 17)

_Static_assert(POLLIN == EPOLLIN && POLLOUT == EPOLLOUT && POLLRDHUP == EPOLLRDHUP, "one word");

static uint8_t out_buffer[CHUNK], in_buffer[CHUNK];

const char *waits_name(enum equiv_wait how)
{
	static const char *const names[] = { "poll", "ppoll",   "select", "pselect", "level",
					     "edge", "oneshot", "pwait",  "nested" };

	return names[how];
}

enum equiv_wait waits_any(struct party *p, struct random *r)
{
	/* A set inside another is one of the things that only TCP has. */
	return (enum equiv_wait)random_below(r, p->pure ? EQUIV_NESTED : EQUIV_WAITS);
}

const char *waits_bits(int bits)
{
	static const struct {
		int bit;
		const char *name;
	} known[] = { { POLLIN, "IN" },    { POLLPRI, "PRI" }, { POLLOUT, "OUT" },
		      { POLLERR, "ERR" },  { POLLHUP, "HUP" }, { POLLRDHUP, "RDHUP" },
		      { POLLNVAL, "NVAL" } };
	static char text[80];
	size_t at = 0;

	if (bits < 0)
		return stage_errno(errno);
	text[0] = 0;
	for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++)
		if (bits & known[i].bit)
			at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%s", at ? "|" : "",
					       known[i].name);
	return at ? text : "none";
}

static int by_select(struct party *p, bool with_mask, int want, int ms)
{
	struct timeval tv = { ms / 1000, ms % 1000 * 1000 };
	struct timespec ts = { ms / 1000, ms % 1000 * 1000000L };
	fd_set in, out, except;
	sigset_t none;
	int n, fd = p->st.fd, bits = 0;

	FD_ZERO(&in);
	FD_ZERO(&out);
	FD_ZERO(&except);
	if (want & POLLIN)
		FD_SET(fd, &in);
	if (want & POLLOUT)
		FD_SET(fd, &out);
	if (want & POLLPRI)
		FD_SET(fd, &except);
	sigemptyset(&none);
	n = with_mask ? pselect(fd + 1, &in, &out, &except, ms < 0 ? NULL : &ts, &none)
		      : select(fd + 1, &in, &out, &except, ms < 0 ? NULL : &tv);
	if (n <= 0)
		return n;
	bits |= FD_ISSET(fd, &in) ? POLLIN : 0;
	bits |= FD_ISSET(fd, &out) ? POLLOUT : 0;
	bits |= FD_ISSET(fd, &except) ? POLLPRI : 0;
	if (n != __builtin_popcount((unsigned)bits))
		equiv_bad(p, "select counts %d for %s", n, waits_bits(bits));
	return bits;
}

static int by_poll(struct party *p, bool with_mask, int want, int ms)
{
	struct timespec ts = { ms / 1000, ms % 1000 * 1000000L };
	/* One that is to be skipped, and one that is never ready, are in the way. */
	struct pollfd fds[] = { { -1, POLLIN, 77 }, { p->st.fd, (short)want, 0 } };
	sigset_t none;
	int n;

	sigemptyset(&none);
	n = with_mask ? ppoll(fds, 2, ms < 0 ? NULL : &ts, &none) : poll(fds, 2, ms);
	if (n < 0)
		return n;
	if (n != !!fds[1].revents || fds[0].revents)
		equiv_bad(p, "poll counts %d for %s", n, waits_bits(fds[1].revents));
	return fds[1].revents;
}

static int set_of(struct party *p, int which)
{
	if (p->set[which] < 0)
		p->set[which] = epoll_create1(EPOLL_CLOEXEC);
	return p->set[which];
}

static void enlist(struct party *p, int which, uint32_t events)
{
	struct epoll_event ev = { .events = events, .data.u64 = 0xfeed0000u + (unsigned)which };

	/* Nothing changes: most programs say nothing then. What was read past the set meanwhile is the set's affair. */
	if (which == EQUIV_SET_LEVEL && p->in_set[which] && p->level == events &&
	    random_below(&p->own, 4))
		return;
	if (which == EQUIV_SET_LEVEL)
		p->level = events;
	if (epoll_ctl(set_of(p, which), p->in_set[which] ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, p->st.fd,
		      &ev))
		stage_die(&p->st, "%d %s: epoll_ctl: %s", p->step, p->move, strerror(errno));
	p->in_set[which] = true;
}

static int await_set(struct party *p, int which, bool with_mask, int ms)
{
	struct epoll_event ev[4];
	sigset_t none;
	int n;

	sigemptyset(&none);
	n = with_mask ? epoll_pwait(p->set[which], ev, 4, ms, &none)
		      : epoll_wait(p->set[which], ev, 4, ms);
	if (n <= 0)
		return n;
	if (n > 1 || ev[0].data.u64 != 0xfeed0000u + (unsigned)which)
		equiv_bad(p, "epoll_wait: %d events, the first for %llx", n,
			  (unsigned long long)ev[0].data.u64);
	return (int)ev[0].events;
}

/* The connection is in a level set that is itself waited for. */
static int by_nested(struct party *p, int want, int ms)
{
	struct epoll_event ev = { .events = EPOLLIN };
	struct pollfd outer = { .events = POLLIN };
	int n;

	enlist(p, EQUIV_SET_LEVEL, (uint32_t)want);
	if (random_below(&p->own, 2)) {
		if (p->set[EQUIV_SET_OUTER] < 0)
			epoll_ctl(set_of(p, EQUIV_SET_OUTER), EPOLL_CTL_ADD,
				  p->set[EQUIV_SET_LEVEL], &ev);
		n = epoll_wait(p->set[EQUIV_SET_OUTER], &ev, 1, ms);
	} else {
		outer.fd = p->set[EQUIV_SET_LEVEL];
		n = poll(&outer, 1, ms);
	}
	if (n <= 0)
		return n;
	n = await_set(p, EQUIV_SET_LEVEL, false, 0);
	if (n == 0)
		equiv_bad(p, "a readable epoll set is empty");
	return n;
}

int waits_for(struct party *p, enum equiv_wait how, int want, int ms)
{
	switch (how) {
	case EQUIV_POLL:
	case EQUIV_PPOLL: return by_poll(p, how == EQUIV_PPOLL, want, ms);
	case EQUIV_SELECT:
	case EQUIV_PSELECT: return by_select(p, how == EQUIV_PSELECT, want, ms);
	case EQUIV_LEVEL:
	case EQUIV_PWAIT:
		enlist(p, EQUIV_SET_LEVEL, (uint32_t)want);
		return await_set(p, EQUIV_SET_LEVEL, how == EQUIV_PWAIT, ms);
	case EQUIV_EDGE:
		/* A change of interest arms the edge again, so this tells the level. */
		enlist(p, EQUIV_SET_EDGE, (uint32_t)want | EPOLLET);
		return await_set(p, EQUIV_SET_EDGE, false, ms);
	case EQUIV_ONESHOT:
		enlist(p, EQUIV_SET_ONESHOT, (uint32_t)want | EPOLLONESHOT);
		return await_set(p, EQUIV_SET_ONESHOT, false, ms);
	default: return by_nested(p, want, ms);
	}
}

void waits_forget(struct party *p)
{
	for (int i = 0; i < EQUIV_SETS; i++) {
		if (p->set[i] >= 0)
			close(p->set[i]);
		p->set[i] = -1;
		p->in_set[i] = false;
	}
}

/* ---- both directions at once ---- */

struct duplex {
	size_t out, in; /* left */
	bool can_send, can_recv;
};

/* Told ready: the first call must not find the contrary. */
static void push(struct party *p, struct duplex *d, bool promised)
{
	struct flow *out = &p->st.out;
	size_t len = 1 + random_size(&p->own, 0, CHUNK - 1);
	ssize_t n;

	if (len > d->out)
		len = d->out;
	flow_fill(out, out_buffer, len);
	n = calls_send(p, out_buffer, len, random_below(&p->own, 2) ? MSG_NOSIGNAL : 0);
	if (n < 0 && errno == EAGAIN) {
		if (promised)
			equiv_bad(p, "told writable, but EAGAIN for %zu", len);
		d->can_send = false;
		return;
	}
	if (n <= 0)
		stage_die(&p->st, "%d %s: send: %zd %s", p->step, p->move, n, stage_errno(errno));
	out->at += (size_t)n;
	d->out -= (size_t)n;
}

static void pull(struct party *p, struct duplex *d, bool promised)
{
	size_t len = 1 + random_size(&p->own, 0, CHUNK - 1);
	ssize_t n;

	/* Not more than is for this move: what follows is read by another one. */
	if (len > d->in)
		len = d->in;
	n = calls_recv(p, in_buffer, len, random_below(&p->own, 2) ? MSG_DONTWAIT : 0);
	if (n < 0 && errno == EAGAIN) {
		if (promised)
			equiv_bad(p, "told readable, but EAGAIN");
		d->can_recv = false;
		return;
	}
	if (n <= 0)
		stage_die(&p->st, "%d %s: recv: %zd %s", p->step, p->move, n, stage_errno(errno));
	stage_took(&p->st, in_buffer, (size_t)n);
	d->in -= (size_t)n;
}

static void duplex_by_edges(struct party *p, struct duplex *d)
{
	int bits;

	enlist(p, EQUIV_SET_EDGE, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
	while (d->out || d->in) {
		if (!(d->out && d->can_send) && !(d->in && d->can_recv)) {
			bits = await_set(p, EQUIV_SET_EDGE, false, DUPLEX_MS);
			if (bits <= 0)
				stage_die(&p->st, "%d %s: no edge with %zu to send, %zu to read",
					  p->step, p->move, d->out, d->in);
			d->can_send |= !!(bits & POLLOUT);
			d->can_recv |= !!(bits & POLLIN);
		}
		if (d->out && d->can_send)
			push(p, d, false);
		if (d->in && d->can_recv)
			pull(p, d, false);
	}
}

void waits_duplex(struct party *p, enum equiv_wait how, size_t out, size_t in)
{
	struct duplex d = { .out = out, .in = in };
	int bits, want;

	calls_nonblocking(p, true);
	if (how == EQUIV_EDGE)
		duplex_by_edges(p, &d);
	while (d.out || d.in) {
		want = (d.out ? POLLOUT : 0) | (d.in ? POLLIN : 0);
		bits = waits_for(p, how, want, DUPLEX_MS);
		if (bits <= 0)
			stage_die(&p->st, "%d %s: %s says %s with %zu to send, %zu to read",
				  p->step, p->move, waits_name(how), waits_bits(bits), d.out, d.in);
		if (d.out && bits & POLLOUT)
			push(p, &d, true);
		if (d.in && bits & POLLIN)
			pull(p, &d, true);
	}
	calls_nonblocking(p, false);
}
