/* SPDX-License-Identifier: MIT */
/* Moves that leave the connection open: octets, readiness, timeouts. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <linux/sockios.h>
#include <unistd.h>

#include "equiv_moves.h"

#define WAKE_MS 20000

static uint8_t buffer[STAGE_BUFFER];

/* A moment that the other side may need to fall asleep, or not. */
void moves_dawdle(struct party *p)
{
	static const unsigned naps[] = { 0, 0, 50, 300, 1500, 5000 };

	stage_nap(naps[random_below(&p->own, 6)]);
}

/* Everything that is on its way to the actor (or to the other side) is read. */
void moves_drain(struct party *p, bool actor, bool to_actor)
{
	bool me = actor == to_actor;
	size_t n = equiv_unread(p, me);

	if (me)
		calls_take(p, n);
	equiv_read(p, me, n);
	stage_meet(&p->st, 0);
}

void moves_timeout(struct party *p, int option, int ms)
{
	struct timeval tv = { ms / 1000, ms % 1000 * 1000 };

	if (setsockopt(p->st.fd, SOL_SOCKET, option, &tv, sizeof(tv)))
		equiv_bad(p, "timeout: %s", stage_errno(errno));
}

/* ---- octets ---- */

void move_put(struct party *p, bool actor)
{
	size_t room = EQUIV_QUEUE - equiv_unread(p, !actor);
	size_t n = random_size(&p->plan, 0, (uint32_t)(room < 8192 ? room : 8192));

	if (actor)
		calls_put(p, n);
	equiv_sent(p, actor, n);
	if (actor)
		equiv_fact(p, "%zu", n);
}

void move_take(struct party *p, bool actor)
{
	size_t there = equiv_unread(p, actor);
	size_t n = random_below(&p->plan, 2) ? there : random_size(&p->plan, 0, (uint32_t)there);

	if (actor) {
		calls_take(p, n);
		equiv_fact(p, "%zu of %zu", n, there);
	}
	equiv_read(p, actor, n);
}

/* The actor sends at its leisure, the other reads at its own; now and then both send. */
void move_stream(struct party *p, bool actor)
{
	size_t out = random_size(&p->plan, 1, STAGE_BUFFER);
	size_t back = random_below(&p->plan, 2) ? random_size(&p->plan, 0, STAGE_BUFFER) : 0;
	size_t to_send = actor ? out : back;
	size_t to_read = equiv_unread(p, true) + (actor ? back : out);

	if (back == 0 && random_below(&p->own, 2)) {
		if (to_send)
			calls_put(p, to_send);
		if (to_read)
			calls_take(p, to_read);
	} else {
		waits_duplex(p, waits_any(p, &p->own), to_send, to_read);
	}
	equiv_fact(p, "%zu out, %zu in", to_send, to_read);
	equiv_sent(p, actor, out);
	equiv_sent(p, !actor, back);
	equiv_read(p, true, equiv_unread(p, true));
	equiv_read(p, false, equiv_unread(p, false));
}

/* Questions and answers of one size, as many programs live. */
void move_turns(struct party *p, bool actor)
{
	size_t n = random_size(&p->plan, 1, 16384);
	unsigned turns = 1 + random_below(&p->plan, 30);
	enum equiv_wait how = waits_any(p, &p->own);
	bool wait = random_below(&p->own, 2);
	int bits;

	moves_drain(p, actor, true);
	moves_drain(p, actor, false);
	for (unsigned i = 0; i < turns * 2; i++) {
		if (actor == (i % 2 == 0)) {
			calls_put(p, n);
			continue;
		}
		bits = wait ? waits_for(p, how, POLLIN, WAKE_MS) : POLLIN;
		if (!(bits & POLLIN))
			stage_die(&p->st, "%d turns: %s says %s", p->step, waits_name(how),
				  waits_bits(bits));
		calls_take(p, n);
	}
	for (int side = 0; side < 2; side++) {
		equiv_sent(p, side, n * turns);
		equiv_read(p, side, n * turns);
	}
	equiv_fact(p, "%u times %zu", turns, n);
}

void move_peek(struct party *p, bool actor)
{
	size_t there = equiv_unread(p, actor);
	size_t len = random_size(&p->plan, 1, EQUIV_QUEUE);
	size_t want = len < there ? len : there;
	ssize_t n;

	if (!actor)
		return;
	stage_settle(&p->st, there);
	n = calls_recv(p, buffer, len, MSG_PEEK | MSG_DONTWAIT);
	if (n > 0 && flow_match(&p->st.in, buffer, (size_t)n) < (size_t)n)
		equiv_bad(p, "a foreign octet");
	equiv_fact(p, "%zu of %zu: %s", len, there,
		   equiv_result(n == (ssize_t)want ? 1 : n, errno));
}

void move_count(struct party *p, bool actor)
{
	size_t there = equiv_unread(p, actor);
	uint64_t end = stage_now() + 5000000;
	int queued = -1;

	if (!actor)
		return;
	stage_settle(&p->st, there);
	/* What the peer's kernel has taken is no longer queued here. */
	do {
		if (ioctl(p->st.fd, SIOCOUTQ, &queued))
			break;
	} while (queued && stage_now() < end && (stage_nap(500), true));
	equiv_fact(p, "FIONREAD %zu, SIOCOUTQ %d", there, queued);
}

/* Nothing is there: every call says so at once. */
void move_empty(struct party *p, bool actor)
{
	bool by_flag = random_below(&p->plan, 2);
	size_t len = random_size(&p->plan, 0, 8192);
	ssize_t n;
	int err;

	moves_drain(p, actor, true);
	if (!actor)
		return;
	if (by_flag)
		calls_nonblocking(p, true);
	n = calls_recv(p, buffer, len, by_flag ? 0 : MSG_DONTWAIT);
	err = errno;
	/* Whether readv() of nothing looks at the queue depends on the call. */
	if (len)
		equiv_fact(p, "%s", equiv_result(n, err));
	n = recv(p->st.fd, buffer, 100, MSG_DONTWAIT | MSG_PEEK | MSG_WAITALL);
	equiv_fact(p, "peek %s", equiv_result(n, errno));
	if (by_flag)
		calls_nonblocking(p, false);
}

void move_nothing(struct party *p, bool actor)
{
	size_t there = equiv_unread(p, actor);
	ssize_t sent, got, wrote;

	if (!actor)
		return;
	stage_settle(&p->st, there);
	sent = send(p->st.fd, buffer, 0, 0);
	wrote = write(p->st.fd, buffer, 0);
	got = recv(p->st.fd, buffer, 0, MSG_DONTWAIT);
	equiv_fact(p, "with %s there: send %zd, write %zd, recv %s", there ? "some" : "none", sent,
		   wrote, equiv_result(got, errno));
	equiv_fact(p, "read %zd", read(p->st.fd, buffer, 0));
}

/* ---- readiness ---- */

void move_ask(struct party *p, bool actor)
{
	size_t there = equiv_unread(p, actor);
	enum equiv_wait how = waits_any(p, &p->plan);
	int want = 1 << random_below(&p->plan, 3); /* IN, PRI, OUT */
	int bits;

	if (random_below(&p->plan, 2))
		want |= POLLIN | POLLOUT;
	if (how != EQUIV_SELECT && how != EQUIV_PSELECT && random_below(&p->plan, 2))
		want |= POLLRDHUP;
	if (!actor)
		return;
	stage_settle(&p->st, there);
	bits = waits_for(p, how, want, random_below(&p->own, 2) ? 0 : 20);
	equiv_fact(p, "%s with %s there: %s", waits_name(how), there ? "some" : "none",
		   waits_bits(bits));
}

/* The actor sleeps until the other has sent. */
void move_wake(struct party *p, bool actor)
{
	enum equiv_wait how = waits_any(p, &p->plan);
	bool plain = random_below(&p->plan, 3) == 0;
	size_t n = random_size(&p->plan, 1, EQUIV_QUEUE);
	int bits;
	ssize_t got;

	moves_drain(p, actor, true);
	if (!actor) {
		moves_dawdle(p);
		calls_put(p, n);
	} else if (plain) {
		calls_take(p, n);
		equiv_fact(p, "by recv, %zu", n);
	} else {
		bits = waits_for(p, how, POLLIN | POLLRDHUP, WAKE_MS);
		got = calls_recv(p, buffer, n, MSG_DONTWAIT);
		if (got <= 0)
			equiv_bad(p, "%s said %s, recv %s", waits_name(how), waits_bits(bits),
				  equiv_result(got, errno));
		else
			stage_took(&p->st, buffer, (size_t)got);
		calls_take(p, n - (size_t)(got > 0 ? got : 0));
		equiv_fact(p, "by %s, %s, %zu", waits_name(how), waits_bits(bits), n);
	}
	equiv_sent(p, !actor, n);
	equiv_read(p, actor, n);
}

/* Edges: one for what arrived, none for what is left, a new one for what arrives then. */
void move_edges(struct party *p, bool actor)
{
	size_t n = random_size(&p->plan, 2, 4096);
	bool oneshot = random_below(&p->plan, 2);
	struct epoll_event ev = { .events = EPOLLIN | EPOLLET };
	int set = -1, first, again, later, armed;

	moves_drain(p, actor, true);
	if (!actor) {
		calls_put(p, n);
		stage_meet(&p->st, 0);
		calls_put(p, n);
		stage_meet(&p->st, 0);
	} else {
		if (oneshot)
			ev.events |= EPOLLONESHOT;
		set = epoll_create1(EPOLL_CLOEXEC);
		epoll_ctl(set, EPOLL_CTL_ADD, p->st.fd, &ev);
		stage_settle(&p->st, n);
		first = epoll_wait(set, &ev, 1, WAKE_MS);
		again = epoll_wait(set, &ev, 1, 20);
		calls_take(p, n / 2);
		stage_meet(&p->st, 0);
		stage_settle(&p->st, n - n / 2 + n);
		later = epoll_wait(set, &ev, 1, oneshot ? 20 : WAKE_MS);
		calls_take(p, n - n / 2 + n - 1);
		ev.events = EPOLLIN | EPOLLET | (oneshot ? (uint32_t)EPOLLONESHOT : 0);
		epoll_ctl(set, EPOLL_CTL_MOD, p->st.fd, &ev);
		armed = epoll_wait(set, &ev, 1, WAKE_MS);
		calls_take(p, 1);
		equiv_fact(p, "%s: %d, %d, %d, %d", oneshot ? "oneshot" : "edge", first, again,
			   later, armed);
		close(set);
		stage_meet(&p->st, 0);
	}
	equiv_sent(p, !actor, 2 * n);
	equiv_read(p, actor, 2 * n);
}

/* The interest of one set changes while octets lie there. */
void move_interest(struct party *p, bool actor)
{
	size_t there = equiv_unread(p, actor);
	struct epoll_event ev = { 0 };
	char facts[100] = "";
	size_t at = 0;
	int set, n;

	if (!actor)
		return;
	stage_settle(&p->st, there);
	set = epoll_create1(EPOLL_CLOEXEC);
	epoll_ctl(set, EPOLL_CTL_ADD, p->st.fd, &ev);
	for (int i = 0; i < 4; i++) {
		ev.events = (const uint32_t[]) { EPOLLOUT, EPOLLIN, 0, EPOLLIN | EPOLLOUT }[i];
		epoll_ctl(set, EPOLL_CTL_MOD, p->st.fd, &ev);
		n = epoll_wait(set, &ev, 1, 5);
		at += (size_t)snprintf(facts + at, sizeof(facts) - at, " %s",
				       n > 0 ? waits_bits((int)ev.events) : "none");
	}
	n = epoll_ctl(set, EPOLL_CTL_ADD, p->st.fd, &ev) ? errno : 0;
	equiv_fact(p, "with %s there:%s; added again: %s", there ? "some" : "none", facts,
		   stage_errno(n));
	epoll_ctl(set, EPOLL_CTL_DEL, p->st.fd, NULL);
	equiv_fact(p, "out of the set: %d", epoll_wait(set, &ev, 1, 0));
	close(set);
}

/* ---- time ---- */

void move_timeout(struct party *p, bool actor)
{
	enum equiv_wait how = waits_any(p, &p->plan);
	int ms = 5 + (int)random_below(&p->plan, 40);
	bool some = random_below(&p->plan, 2);
	uint64_t start;
	ssize_t n;
	int bits, err;

	moves_drain(p, actor, true);
	if (!actor) {
		if (some)
			calls_put(p, 100);
	} else {
		moves_timeout(p, SO_RCVTIMEO, ms);
		stage_settle(&p->st, some ? 100 : 0);
		start = stage_now();
		n = recv(p->st.fd, buffer, 300, some ? MSG_WAITALL : 0);
		err = errno;
		equiv_fact(p, "recv %s", equiv_result(n, err));
		/* The kernel counts it in ticks, from one that a virtual processor may not have seen yet. */
		if (stage_now() - start + stage_tick() < (uint64_t)ms * 1000)
			equiv_bad(p, "%d ms were over after %u us", ms,
				  (unsigned)(stage_now() - start));
		if (n > 0)
			stage_took(&p->st, buffer, (size_t)n);
		if (some && n > 0 && n < 100)
			calls_take(p, (size_t)(100 - n));
		moves_timeout(p, SO_RCVTIMEO, 0);
		start = stage_now();
		bits = waits_for(p, how, POLLIN, ms);
		equiv_fact(p, "%s %s", waits_name(how), waits_bits(bits));
		if (stage_now() - start < (uint64_t)(ms - 1) * 1000)
			equiv_bad(p, "%s: %d ms were over early", waits_name(how), ms);
	}
	equiv_sent(p, !actor, some ? 100 : 0);
	equiv_read(p, actor, some ? 100 : 0);
}

/*
 * Sends until nothing more goes, for good; returns how much went. TCP takes some more as long as
 * there is any room, and says that it is writable only with more room than that.
 */
static size_t fill(struct party *p)
{
	struct pollfd pfd = { .fd = p->st.fd, .events = POLLOUT };
	size_t total = 0;
	int refused = 0;
	ssize_t n;

	calls_nonblocking(p, true);
	while (refused < 3) {
		flow_fill(&p->st.out, buffer, 65536);
		n = calls_send(p, buffer, 65536, 0);
		if (n > 0) {
			p->st.out.at += (size_t)n;
			total += (size_t)n;
			refused = 0;
		} else if (errno != EAGAIN) {
			stage_die(&p->st, "%d fill: %s", p->step, stage_errno(errno));
		} else if (poll(&pfd, 1, 40) == 0) {
			refused++;
		}
	}
	calls_nonblocking(p, false);
	return total;
}

/* Full: not writable, EAGAIN, timeouts; after the other has read: writable, and awake again. */
void move_full(struct party *p, bool actor)
{
	enum equiv_wait how = waits_any(p, &p->plan);
	size_t went, extra = 0, more = 1 + random_below(&p->plan, 20000);
	ssize_t n;
	int bits;

	if (actor) {
		went = fill(p);
		stage_meet(&p->st, went);
		bits = waits_for(p, how, POLLOUT, 10);
		/* A set inside another takes the connection to TCP, which may have room for more: told so, it must be true. */
		if (how != EQUIV_NESTED)
			equiv_fact(p, "full: %s %s", waits_name(how), waits_bits(bits));
		moves_timeout(p, SO_SNDTIMEO, 20);
		/* A probe of the closed window may have made a little room. */
		do {
			flow_fill(&p->st.out, buffer, 100);
			n = send(p->st.fd, buffer, 100, 0);
			p->st.out.at += n > 0 ? (size_t)n : 0;
			extra += n > 0 ? (size_t)n : 0;
		} while (n > 0);
		equiv_fact(p, "full: send %s", equiv_result(n, errno));
		if ((bits & POLLOUT) && extra == 0)
			equiv_bad(p, "said to be writable, and is not");
		moves_timeout(p, SO_SNDTIMEO, 0);
		stage_meet(&p->st, extra);
		bits = waits_for(p, how, POLLOUT, WAKE_MS);
		equiv_fact(p, "read by the other: %s", waits_bits(bits));
		calls_put(p, more);
	} else {
		went = stage_meet(&p->st, 0);
		extra = stage_meet(&p->st, 0);
		moves_dawdle(p);
		calls_take(p, equiv_unread(p, true) + went + extra + more);
	}
	equiv_sent(p, actor, went + extra + more);
	equiv_read(p, !actor, equiv_unread(p, !actor));
}

/* Blocked in the middle of a long send until the other wakes up and reads. */
void move_long(struct party *p, bool actor)
{
	size_t n = STAGE_BUFFER * (2 + (size_t)random_below(&p->plan, 6));

	if (actor) {
		calls_put(p, n);
	} else {
		moves_dawdle(p);
		stage_nap(3000);
		calls_take(p, equiv_unread(p, true) + n);
	}
	equiv_sent(p, actor, n);
	equiv_read(p, !actor, equiv_unread(p, !actor));
	equiv_fact(p, "%zu", n);
}

/* Ready from so many octets on only. */
void move_lowat(struct party *p, bool actor)
{
	enum equiv_wait how = waits_any(p, &p->plan);
	int low = 2 + (int)random_below(&p->plan, 2000), one = 1, less, enough;
	size_t n = (size_t)low;

	moves_drain(p, actor, true);
	if (!actor) {
		calls_put(p, n - 1);
		stage_meet(&p->st, 0);
		calls_put(p, 1);
		stage_meet(&p->st, 0);
	} else {
		setsockopt(p->st.fd, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof(low));
		stage_settle(&p->st, n - 1);
		less = waits_for(p, how, POLLIN, 10);
		stage_meet(&p->st, 0);
		enough = waits_for(p, how, POLLIN, WAKE_MS);
		equiv_fact(p, "%s: less %d, enough %d", waits_name(how), less, enough);
		calls_take(p, n);
		setsockopt(p->st.fd, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof(one));
		stage_meet(&p->st, 0);
	}
	equiv_sent(p, !actor, n);
	equiv_read(p, actor, n);
}
