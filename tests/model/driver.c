/* SPDX-License-Identifier: MIT */
/* Commands, replies, waiting, and the history for the case that something is wrong. */
#include "model/driver.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define HISTORY  4096
#define SHOWN    24
#define STUCK_NS 120000000000ull

struct driver driver;

/* ---- chance ---- */

uint32_t draw(uint32_t n)
{
	uint64_t x = driver.random;

	x ^= x >> 12;
	x ^= x << 25;
	x ^= x >> 27;
	driver.random = x;
	return n ? (uint32_t)((x * 0x2545f4914f6cdd1dull) >> 33) % n : 0;
}

bool chance(uint32_t percent)
{
	return draw(100) < percent;
}

/* ---- history ---- */

static struct {
	uint64_t step;
	uint32_t q;
	char text[120];
} history[HISTORY];
static uint32_t n_history;

void note(uint32_t q, const char *format, ...)
{
	va_list args;
	uint32_t i = n_history++ % HISTORY;

	history[i].step = driver.step;
	history[i].q = q;
	va_start(args, format);
	vsnprintf(history[i].text, sizeof(history[i].text), format, args);
	va_end(args);
}

static void show_history(uint32_t q)
{
	uint32_t i = n_history, shown = 0, oldest = n_history < HISTORY ? 0 : n_history - HISTORY;
	uint32_t lines[SHOWN];

	while (i > oldest && shown < SHOWN)
		if (history[--i % HISTORY].q == q)
			lines[shown++] = i % HISTORY;
	while (shown--)
		fprintf(stderr, "  step %8llu  %s\n",
			(unsigned long long)history[lines[shown]].step, history[lines[shown]].text);
}

static void show_flow(uint32_t q, int d)
{
	const struct flow *f = &driver.conn[q].flow[d];

	fprintf(stderr,
		"  flow %d: posted %u completed %u landed %u (soft %u/%u); sends %u delivered %u; "
		"receives %u acked %u done %u; slots in use: source %u sink %u target %u receive %u\n",
		d, f->posted, f->completed, f->landed, f->soft_completed, f->soft_landed, f->sends,
		f->delivered, f->rcv_posted, f->rcv_acked, f->rcv_done,
		f->source.last - f->source.first, f->sink.last - f->sink.first,
		f->target.last - f->target.first, f->receive.last - f->receive.first);
}

/* What comes in the next moment often explains it. */
static void tell_more(void *arg, const struct record *r)
{
	const struct record_event *e = &r->u.event;

	if (r->type == REC_EVENT)
		fprintf(stderr, "  then side %d, queue pair %u: %s, %s, detail %x (%s)\n",
			arg ? 1 : 0, e->q, flue_event_name(e->type),
			flue_close_reason_name(e->reason), e->detail, flue_fault_name(e->detail));
	if (r->type == REC_COMPLETION && r->u.completion.status)
		fprintf(stderr, "  then side %d completes %llx: %s\n", arg ? 1 : 0,
			(unsigned long long)r->u.completion.id,
			flue_wc_status_name(r->u.completion.status));
}

static void listen_on(void)
{
	struct record r;

	for (int i = 0; i < 10; i++) {
		side_arm(driver.own);
		side_progress(driver.own, tell_more, NULL);
		while (!driver.dead && channel_get(&driver.channel, &r, sizeof(r), false) > 0)
			tell_more(&driver, &r);
		side_sleep(driver.own, driver.dead ? -1 : driver.channel.fd, 50);
	}
}

void diverge(uint32_t q, const char *format, ...)
{
	va_list args;

	fprintf(stderr, "model: DIVERGENCE, --link %s --seed %llu, step %llu, queue pair %u: ",
		column_name(model_column), (unsigned long long)driver.seed,
		(unsigned long long)driver.step, q);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fprintf(stderr, "\n");
	if (q < N_QPS) {
		show_flow(q, 0);
		show_flow(q, 1);
		show_history(q);
	}
	if (driver.own)
		listen_on();
	exit(1);
}

/* ---- commands ---- */

static void take_reply(const struct record_reply *r)
{
	struct pending *p = &driver.pending[driver.first_pending++ % MAX_PENDING];

	switch (p->action) {
	case ON_REPLY_KEEP:
		driver.answer = *r;
		driver.answered = true;
		return;
	case ON_REPLY_FREE:
		if (!r->ok)
			diverge(p->q, "octet %lld of slot %u (value %u) is wrong",
				(long long)r->value, p->area ? p->area->first : 0, p->value);
		driver.checks++;
		if (p->area)
			area_free_first(p->area);
		return;
	default:
		if (!r->ok)
			diverge(p->q, "command %u: '%s'", p->command, strerror(r->error));
	}
	if (p->action == ON_REPLY_RECEIVED)
		driver.conn[p->q].flow[p->value].rcv_acked++;
}

void driver_issue(int side, const struct cmd *cmd, const struct pending *p)
{
	struct record_reply reply = { .ok = true };
	struct pending *mine;

	if (side == 0 || driver.dead) {
		/* Its place in the queue of replies is the front. */
		driver.pending[--driver.first_pending % MAX_PENDING] = *p;
		driver.pending[driver.first_pending % MAX_PENDING].command = cmd->type;
		if (side == 0)
			side_execute(driver.own, cmd, &reply);
		take_reply(&reply);
		return;
	}
	if (driver.last_pending - driver.first_pending >= MAX_PENDING - 2)
		diverge(cmd->q, "too many commands wait for a reply");
	mine = &driver.pending[driver.last_pending++ % MAX_PENDING];
	*mine = *p;
	mine->command = cmd->type;
	if (!channel_put(&driver.channel, cmd, sizeof(*cmd)))
		diverge(cmd->q, "the other process is gone");
}

void driver_bury(void)
{
	const struct record_reply done = { .ok = true };

	driver.dead = true;
	while (driver.first_pending != driver.last_pending)
		take_reply(&done);
}

struct record_reply driver_ask(int side, const struct cmd *cmd)
{
	struct pending p = { .action = ON_REPLY_KEEP, .q = cmd->q };

	driver.answered = false;
	driver_issue(side, cmd, &p);
	driver_wait(cmd->q, driver.answered);
	return driver.answer;
}

/* ---- waiting ---- */

static void heard(int side, const struct record *r)
{
	switch (r->type) {
	case REC_REPLY: take_reply(&r->u.reply); break;
	case REC_COMPLETION: book_completion(side, &r->u.completion); break;
	case REC_EVENT: book_event(side, &r->u.event); break;
	default: diverge(0, "record %u", r->type);
	}
}

static void heard_own(void *arg, const struct record *r)
{
	(void)arg;
	heard(0, r);
}

bool driver_progress(void)
{
	unsigned n = side_progress(driver.own, heard_own, NULL);
	struct record r;
	int rc;

	if (driver.dead)
		return n;
	if (!channel_flush(&driver.channel))
		diverge(N_QPS, "the other process is gone");
	while ((rc = channel_get(&driver.channel, &r, sizeof(r), false)) > 0) {
		heard(1, &r);
		n++;
	}
	if (rc < 0 && !driver.quits)
		diverge(N_QPS, "the other process is gone");
	return n;
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void driver_wait_more(struct patience *p, uint32_t q, const char *what)
{
	if (driver_progress() || !p->last) {
		if (p->last && now_ns() - p->last > driver.silence) {
			driver.silence = now_ns() - p->last;
			driver.silent_for = what;
			note(q, "nothing came for %llu ms",
			     (unsigned long long)driver.silence / 1000000);
		}
		p->last = now_ns();
		p->idle = 0;
		return;
	}
	if (now_ns() - p->last > STUCK_NS)
		diverge(q, "stuck: waiting for (%s)", what);
	if (side_is_busy(driver.own) || ++p->idle < 20)
		return;
	side_arm(driver.own);
	if (!driver_progress())
		side_sleep(driver.own, driver.dead ? -1 : driver.channel.fd, 1000);
}
