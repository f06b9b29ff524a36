/* SPDX-License-Identifier: MIT */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "sockets/process.h"
#include "sockets/real.h"
#include "sockets/report.h"
#include "sockets/sock.h"
#include "sockets/why.h"

void report_line(const char *a, const char *b, const char *c)
{
	struct iovec iov[] = {
		{ (void *)a, strlen(a) },
		{ (void *)b, strlen(b) },
		{ (void *)c, strlen(c) },
		{ (void *)"\n", 1 },
	};

	if (real(writev)(STDERR_FILENO, iov, 4) < 0)
		return;
}

static const char *address(char text[INET6_ADDRSTRLEN], const struct sockaddr_in6 *a)
{
	if (!inet_ntop(AF_INET6, &a->sin6_addr, text, INET6_ADDRSTRLEN))
		return "?";
	return strncmp(text, "::ffff:", 7) ? text : text + 7;
}

static void say_why(const struct rec *r)
{
	const struct why_place place = { .uid = r->peer_uid, .rules = settings.policy.file };
	char from[INET6_ADDRSTRLEN], to[INET6_ADDRSTRLEN], ends[160], text[512];

	if (sock_flag(r, REC_NAMED))
		snprintf(ends, sizeof(ends), "%s port %u to %s port %u", address(from, &r->self),
			 ntohs(r->self.sin6_port), address(to, &r->peer), ntohs(r->peer.sin6_port));
	else
		strcpy(ends, "a connection that ended early");
	snprintf(text, sizeof(text), "%s[%d]: %s was on TCP: ", process_name, getpid(), ends);
	why_text(text + strlen(text), sizeof(text) - strlen(text), atomic_load(&r->why), &place);
	report_line("flue: ", text, "");
}

void report_connected(struct rec *r, int fd)
{
	if (settings.why)
		sock_identify(r, fd);
}

/* A socket that went back to TCP before it was connected may never have been. */
static bool was_connected(struct rec *r, int fd)
{
	if (atomic_load(&r->state) != REC_PLAIN || r->role != ROLE_UNKNOWN)
		return true;
	return fd < 0 || sock_identify(r, fd);
}

void report_connection(struct home *h, struct rec *r, int fd)
{
	uint32_t state = atomic_load(&r->state);

	if (state < REC_YOUNG || sock_flag(r, REC_LISTEN) || !was_connected(r, fd))
		return;
	atomic_fetch_add(&h->connections, 1);
	if (sock_flag(r, REC_ELIGIBLE)) {
		atomic_fetch_add(&h->lane_tx, atomic_load(&r->sent.lane_bytes));
		atomic_fetch_add(&h->lane_rx, atomic_load(&r->received.lane_bytes));
		atomic_fetch_add(&h->tcp_tx, atomic_load(&r->sent.tcp_bytes));
		atomic_fetch_add(&h->tcp_rx, atomic_load(&r->received.tcp_bytes));
	}
	if (settings.why && state != REC_LANE) {
		sock_identify(r, fd);
		say_why(r);
	}
}

static void add_open(int fd, struct rec *r, void *arg)
{
	/* Those of a parent's home are told by the parent, unless only we are left. */
	if (atomic_load(&r->procs) <= 1)
		report_connection(arg, r, fd);
}

void report_process(void)
{
	char line[768];
	struct home *h = home;
	int fd, n;

	if (!h || (!settings.why && !settings.stats[0]))
		return;
	sock_each(add_open, h);
	if (!settings.stats[0])
		return;
	n = snprintf(
		line, sizeof(line),
		"{\"pid\":%d,\"program\":\"%s\",\"connections\":%llu,\"eligible\":%llu,"
		"\"lanes\":%llu,\"stepdowns\":%llu,\"eligible_lane_tx\":%llu,"
		"\"eligible_lane_rx\":%llu,\"eligible_tcp_tx\":%llu,\"eligible_tcp_rx\":%llu}\n",
		getpid(), process_name, (unsigned long long)h->connections,
		(unsigned long long)h->eligible, (unsigned long long)h->lanes,
		(unsigned long long)h->stepdowns, (unsigned long long)h->lane_tx,
		(unsigned long long)h->lane_rx, (unsigned long long)h->tcp_tx,
		(unsigned long long)h->tcp_rx);
	fd = open(settings.stats, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	if (fd < 0) {
		report_line("flue: totals could not be appended to ", settings.stats,
			    errno == EACCES ? ": permission denied" : "");
		return;
	}
	if (real(write)(fd, line, (size_t)n) != n)
		report_line("flue: ", settings.stats, ": could not be written");
	real(close)(fd);
}
