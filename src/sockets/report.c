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

static const char *const texts[] = {
#define WHY(name, word, text) text,
#include "sockets/why.def"
#undef WHY
};

const char *report_why(uint32_t why)
{
	return why < WHY_COUNT ? texts[why] : "?";
}

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

static void say_why(const struct rec *r)
{
	char from[INET6_ADDRSTRLEN] = "?", to[INET6_ADDRSTRLEN] = "?";
	char line[256];

	inet_ntop(AF_INET6, &r->self.sin6_addr, from, sizeof(from));
	inet_ntop(AF_INET6, &r->peer.sin6_addr, to, sizeof(to));
	snprintf(line, sizeof(line), "%s[%d]: %s port %u to %s port %u was on TCP: ", process_name,
		 getpid(), strncmp(from, "::ffff:", 7) ? from : from + 7, ntohs(r->self.sin6_port),
		 strncmp(to, "::ffff:", 7) ? to : to + 7, ntohs(r->peer.sin6_port));
	report_line("flue: ", line, report_why(atomic_load(&r->why)));
}

void report_connection(struct home *h, struct rec *r, int fd)
{
	uint32_t state = atomic_load(&r->state);

	if (state < REC_YOUNG || sock_flag(r, REC_LISTEN))
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
