/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/log.h"
#include "base/own.h"
#include "base/space.h"
#include "base/sys.h"
#include "sockets/record/process.h"
#include "sockets/record/settings.h"
#include "sockets/record/real.h"
#include "sockets/preload/report.h"
#include "sockets/record/sock.h"
#include "sockets/record/tell.h"
#include "sockets/record/totals.h"
#include "sockets/record/why.h"

/* Beyond the program's limit for files a write would end it. */
static bool may_append(int fd, size_t n)
{
	struct stat st;

	return fstat(fd, &st) == 0 &&
	       (!S_ISREG(st.st_mode) || space_may_grow((size_t)st.st_size + n));
}

void report_line(const char *a, const char *b, const char *c)
{
	struct iovec iov[] = {
		{ (void *)a, strlen(a) },
		{ (void *)b, strlen(b) },
		{ (void *)c, strlen(c) },
		{ (void *)"\n", 1 },
	};

	if (!may_append(STDERR_FILENO, strlen(a) + strlen(b) + strlen(c) + 1) ||
	    real(writev)(STDERR_FILENO, iov, 4) < 0)
		return;
}

static void say_why(const struct rec *r)
{
	char line[WHY_LINE];

	why_line(line, r, settings.name, getpid(), settings.policy.file);
	if (!tell_closed(r, line))
		report_line("flue: ", line, "");
}

static void log_connection(struct rec *r, int fd, uint32_t state)
{
	char line[WHY_LINE];

	sock_identify(r, fd);
	if (state == REC_LANE) {
		log_info(sockets, "%s to %s was on a lane: %" PRIu64 " octets out, %" PRIu64 " in",
			 LOG_ADDR(&r->end.self), LOG_ADDR(&r->end.peer),
			 atomic_load(&r->sent.lane_bytes), atomic_load(&r->received.lane_bytes));
		return;
	}
	why_line(line, r, settings.name, getpid(), settings.policy.file);
	log_info(sockets, "%s", line);
}

void report_connected(struct rec *r, int fd)
{
	if (settings.why || log_wants(info, sockets))
		sock_identify(r, fd);
}

void report_connection(struct home *h, struct rec *r, int fd)
{
	uint32_t state = atomic_load(&r->state);

	/* Whether it ever was connected only the kernel knows, if it was made TCP's before. */
	if (state == REC_PLAIN && r->end.role == MEET_UNKNOWN && fd >= 0 && !settings.sealed)
		sock_identify(r, fd);
	if (!why_counts(r))
		return;
	atomic_fetch_add(&h->connections, 1);
	if (sock_flag(r, REC_ELIGIBLE)) {
		atomic_fetch_add(&h->lane_tx, atomic_load(&r->sent.lane_bytes));
		atomic_fetch_add(&h->lane_rx, atomic_load(&r->received.lane_bytes));
		atomic_fetch_add(&h->tcp_tx, atomic_load(&r->sent.tcp_bytes));
		atomic_fetch_add(&h->tcp_rx, atomic_load(&r->received.tcp_bytes));
	}
	if (settings.why && state != REC_LANE && !settings.sealed) {
		sock_identify(r, fd);
		say_why(r);
	}
	if (log_wants(info, sockets) && !settings.sealed)
		log_connection(r, fd, state);
}

static void add_open(int fd, struct rec *r, void *arg)
{
	/* Those of a parent's home are told by the parent, unless only we are left. */
	if (atomic_load(&r->procs) <= 1)
		report_connection(arg, r, fd);
}

void report_process(void)
{
	struct home *h = own_home;
	struct totals totals;
	char line[TOTALS_MAX];
	size_t n;
	int fd;

	if (!h || (!settings.why && !settings.stats[0] && !log_wants(info, sockets)))
		return;
	sock_each(add_open, h);
	atomic_store(&h->told, 1);
	if (!settings.stats[0])
		return;
	totals_of(&totals, h);
	n = totals_text(line, &totals, getpid(), settings.name);
	fd = own_new(sys_open(settings.stats, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
	if (fd < 0) {
		report_line("flue: totals could not be appended to ", settings.stats,
			    errno == EACCES ? ": permission denied" : "");
		return;
	}
	if (!may_append(fd, n) || sys_write(fd, line, n) != (ssize_t)n)
		report_line("flue: ", settings.stats, ": could not be written");
	own_close(fd);
}
