/* SPDX-License-Identifier: MIT */
/* The last move of a connection: every way to end it, and what both sides find afterwards. */
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "equiv_moves.h"

#define WAKE_MS   20000
#define PACKET_US 20000 /* for a FIN or RST to arrive */

static uint8_t buffer[65536];

/*
 * The other side has ended the connection, or its sending: the packet that says so is here. Asked
 * past the C library, so that this question does not change what is looked at.
 */
static void await_packet(struct party *p)
{
	struct pollfd pfd = { .fd = p->st.fd, .events = POLLRDHUP };
	struct timespec limit = { WAKE_MS / 1000, 0 };

	syscall(SYS_ppoll, &pfd, 1, &limit, NULL, 0);
	stage_nap(PACKET_US);
}

/* What every call says now. */
static void aftermath(struct party *p, enum equiv_wait how)
{
	struct sockaddr_storage at;
	socklen_t len = sizeof(at);
	int bits, err = -1;
	ssize_t n;

	await_packet(p);
	bits = waits_for(p, how, POLLIN | POLLOUT | POLLRDHUP, 20);
	equiv_fact(p, "%s: %s", waits_name(how), waits_bits(bits));
	for (int i = 0; i < 3; i++) {
		n = calls_recv_by(p, (unsigned)p->step, buffer, sizeof(buffer), MSG_DONTWAIT);
		equiv_fact(p, "recv: %s", equiv_result(n, errno));
	}
	/* Twice: the first may be what provokes a reset. */
	for (int i = 0; i < 2; i++) {
		n = calls_send_by(p, (unsigned)p->step % 3, buffer, 10, i ? MSG_NOSIGNAL : 0);
		equiv_fact(p, "send: %s, signals %d", equiv_result(n, errno), moves_pipes());
		stage_nap(PACKET_US);
	}
	n = calls_recv_by(p, (unsigned)p->step, buffer, sizeof(buffer), MSG_DONTWAIT);
	equiv_fact(p, "recv: %s", equiv_result(n, errno));
	len = sizeof(err);
	getsockopt(p->st.fd, SOL_SOCKET, SO_ERROR, &err, &len);
	len = sizeof(at);
	n = getpeername(p->st.fd, (struct sockaddr *)&at, &len);
	equiv_fact(p, "SO_ERROR %s, getpeername %s", stage_errno(err), equiv_result(n, errno));
	bits = waits_for(p, how, POLLIN | POLLOUT | POLLRDHUP, 20);
	equiv_fact(p, "%s: %s", waits_name(how), waits_bits(bits));
}

/* Everything up to the end, by reads that may say 0 or an error only after the last octet. */
static void read_to_end(struct party *p)
{
	size_t left = equiv_unread(p, true);
	ssize_t n;

	/* One kind of call: recvmmsg() tells an error before the octets that came first. */
	while ((n = calls_recv_by(p, (unsigned)p->step, buffer, sizeof(buffer), 0)) > 0) {
		stage_took(&p->st, buffer, (size_t)n);
		left -= (size_t)n;
	}
	equiv_fact(p, "end: %s, %zu missing", equiv_result(n, errno), left);
	equiv_read(p, true, equiv_unread(p, true));
}

static void finish(struct party *p)
{
	stage_meet(&p->st, 0);
	waits_forget(p);
	if (p->st.fd >= 0 && close(p->st.fd))
		equiv_bad(p, "close: %s", stage_errno(errno));
	p->st.fd = -1;
	stage_meet(&p->st, 0);
}

static void hang_up(struct party *p)
{
	waits_forget(p);
	if (close(p->st.fd))
		equiv_bad(p, "close: %s", stage_errno(errno));
	p->st.fd = -1;
}

/* Both wait until all that was sent lies in the receivers. */
static void arrive(struct party *p)
{
	stage_settle(&p->st, equiv_unread(p, true));
	stage_meet(&p->st, 0);
}

/* The actor stops sending, the other goes on for a while. */
void end_half(struct party *p, bool actor)
{
	enum equiv_wait how = waits_any(p, &p->plan);
	size_t n = random_size(&p->plan, 1, STAGE_BUFFER);
	bool close_first = random_below(&p->plan, 2);
	ssize_t sent;

	if (actor) {
		if (shutdown(p->st.fd, SHUT_WR))
			equiv_bad(p, "shutdown: %s", stage_errno(errno));
		sent = calls_send_by(p, (unsigned)p->step % 3, buffer, 10, 0);
		equiv_fact(p, "send: %s, signals %d", equiv_result(sent, errno), moves_pipes());
	} else {
		await_packet(p);
		equiv_fact(p, "%s: %s", waits_name(how),
			   waits_bits(waits_for(p, how, POLLIN | POLLOUT | POLLRDHUP, WAKE_MS)));
		read_to_end(p);
		calls_put(p, n);
	}
	equiv_sent(p, !actor, n);
	if (actor) {
		calls_take(p, equiv_unread(p, true));
		equiv_fact(p, "%s: %s", waits_name(how),
			   waits_bits(waits_for(p, how, POLLOUT | POLLRDHUP, 0)));
	}
	stage_meet(&p->st, 0);
	if (!actor && close_first)
		hang_up(p);
	else if (!actor)
		shutdown(p->st.fd, SHUT_WR);
	stage_meet(&p->st, 0);
	if (p->st.fd >= 0)
		aftermath(p, how);
	finish(p);
}

/* Nothing is left unread; the actor closes, the other does not know yet. */
void end_clean(struct party *p, bool actor)
{
	enum equiv_wait how = waits_any(p, &p->plan);

	moves_drain(p, actor, true);
	if (actor)
		hang_up(p);
	else
		read_to_end(p);
	stage_meet(&p->st, 0);
	if (!actor)
		aftermath(p, how);
	finish(p);
}

/* The actor closes with octets unread: a reset. */
void end_unread(struct party *p, bool actor)
{
	enum equiv_wait how = waits_any(p, &p->plan);
	bool ask_error = random_below(&p->plan, 2);
	size_t n = 1 + random_below(&p->plan, 1000);
	int err = -1;
	socklen_t len = sizeof(err);

	if (!actor)
		calls_put(p, n);
	equiv_sent(p, !actor, n);
	arrive(p);
	if (actor)
		hang_up(p);
	stage_meet(&p->st, 0);
	if (!actor) {
		await_packet(p);
		if (ask_error) {
			getsockopt(p->st.fd, SOL_SOCKET, SO_ERROR, &err, &len);
			equiv_fact(p, "SO_ERROR %s", stage_errno(err));
		}
		read_to_end(p);
		aftermath(p, how);
	}
	finish(p);
}

static void linger(struct party *p, int seconds)
{
	struct linger l = { 1, seconds };

	if (setsockopt(p->st.fd, SOL_SOCKET, SO_LINGER, &l, sizeof(l)))
		equiv_bad(p, "SO_LINGER: %s", stage_errno(errno));
}

void end_reset(struct party *p, bool actor)
{
	enum equiv_wait how = waits_any(p, &p->plan);
	bool look_first = random_below(&p->plan, 2);

	arrive(p);
	if (actor) {
		linger(p, 0);
		hang_up(p);
	}
	stage_meet(&p->st, 0);
	if (!actor) {
		await_packet(p);
		if (look_first)
			equiv_fact(p, "%s: %s", waits_name(how),
				   waits_bits(waits_for(p, how, POLLIN | POLLRDHUP, WAKE_MS)));
		read_to_end(p);
		aftermath(p, how);
	}
	finish(p);
}

/* close() lingers until the kernel of the other has all; nothing is lost. */
void end_linger(struct party *p, bool actor)
{
	size_t n = random_size(&p->plan, 1, EQUIV_QUEUE / 2);

	moves_drain(p, actor, true);
	moves_drain(p, actor, false);
	if (actor) {
		calls_put(p, n);
		linger(p, 20);
		hang_up(p);
	}
	equiv_sent(p, actor, n);
	if (!actor) {
		moves_dawdle(p);
		read_to_end(p);
	}
	finish(p);
}

/* The actor does not want to read any more. */
void end_deaf(struct party *p, bool actor)
{
	enum equiv_wait how = waits_any(p, &p->plan);
	size_t n = 1 + random_below(&p->plan, 3000);

	arrive(p);
	if (actor) {
		shutdown(p->st.fd, SHUT_RD);
		equiv_fact(p, "%s: %s", waits_name(how),
			   waits_bits(waits_for(p, how, POLLIN | POLLOUT | POLLRDHUP, 20)));
		read_to_end(p);
		equiv_fact(p, "%s: %s", waits_name(how),
			   waits_bits(waits_for(p, how, POLLIN | POLLOUT | POLLRDHUP, 20)));
	} else {
		equiv_read(p, false, equiv_unread(p, false));
	}
	stage_meet(&p->st, 0);
	if (!actor)
		calls_put(p, n);
	equiv_sent(p, !actor, n);
	arrive(p);
	if (actor)
		read_to_end(p);
	equiv_read(p, actor, equiv_unread(p, actor));
	stage_meet(&p->st, 0);
	if (actor)
		hang_up(p);
	else
		read_to_end(p);
	stage_meet(&p->st, 0);
	if (!actor)
		aftermath(p, how);
	finish(p);
}

void end_both_ways(struct party *p, bool actor)
{
	enum equiv_wait how = waits_any(p, &p->plan);

	arrive(p);
	if (actor) {
		shutdown(p->st.fd, SHUT_RDWR);
		equiv_fact(p, "%s: %s", waits_name(how),
			   waits_bits(waits_for(p, how, POLLIN | POLLOUT | POLLRDHUP, 20)));
		read_to_end(p);
	} else {
		read_to_end(p);
	}
	stage_meet(&p->st, 0);
	if (!actor)
		aftermath(p, how);
	stage_meet(&p->st, 0);
	if (actor)
		aftermath(p, how);
	finish(p);
}

/* Both stop sending at the same time. */
void end_together(struct party *p, bool actor)
{
	enum equiv_wait how = waits_any(p, &p->plan);

	(void)actor;
	stage_meet(&p->st, 0);
	shutdown(p->st.fd, SHUT_WR);
	read_to_end(p);
	stage_meet(&p->st, 0);
	aftermath(p, how);
	finish(p);
}

/* connect() to nowhere dissolves the association. */
void end_dissolved(struct party *p, bool actor)
{
	struct sockaddr nowhere = { .sa_family = AF_UNSPEC };
	enum equiv_wait how = waits_any(p, &p->plan);
	int rc;

	moves_drain(p, actor, true);
	moves_drain(p, actor, false);
	if (actor) {
		rc = connect(p->st.fd, &nowhere, sizeof(nowhere));
		equiv_fact(p, "connect %s", equiv_result(rc, errno));
	}
	stage_meet(&p->st, 0);
	aftermath(p, how);
	finish(p);
}

/* The other sleeps when the actor ends the connection in one of the ways above. */
void end_asleep(struct party *p, bool actor)
{
	enum equiv_wait how = waits_any(p, &p->plan);
	uint32_t way = random_below(&p->plan, 4);
	bool plain = random_below(&p->plan, 3) == 0;

	moves_drain(p, actor, true);
	moves_drain(p, actor, false);
	if (actor) {
		moves_dawdle(p);
		if (way == 0)
			shutdown(p->st.fd, SHUT_WR);
		else if (way == 1)
			shutdown(p->st.fd, SHUT_RDWR);
		else if (way == 2)
			linger(p, 0);
		if (way >= 2)
			hang_up(p);
	} else {
		if (!plain)
			equiv_fact(p, "%s: %s", waits_name(how),
				   waits_bits(waits_for(p, how, POLLIN | POLLRDHUP, WAKE_MS)));
		read_to_end(p);
	}
	stage_meet(&p->st, 0);
	if (!actor)
		aftermath(p, how);
	finish(p);
}
