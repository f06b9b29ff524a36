/* SPDX-License-Identifier: MIT */
/*
 * Two engines, random operations, and a model that knows what must come out (OS-17, OS-20).
 *
 *   model KIND [--steps N] [--seed S]
 *
 * Several connections at a time, each with buffers of its own shape. Both ends send, receive, change
 * modes, shut, close and abort at random; the transports are polled with random budgets. Octets
 * must be right and in order; the end of a stream may come only behind all of them; a reset only if
 * somebody gave reason for it; no end may ever find a violation; and whenever both ends want
 * to come to an end, they must. The seed is printed; with the local transport it repeats the run.
 */
#include "sdp/bed.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/util.h"

#define CONNS    4
#define HISTORY  40
#define MOST     5000 /* octets of one call */
#define MARKS    64
#define STUCK_MS 120000
#define LIFE     800 /* steps of a connection, about */

static uint64_t seed, dice_state, step_number;

static uint32_t dice(uint32_t sides)
{
	uint64_t x = dice_state;

	x ^= x >> 12;
	x ^= x << 25;
	x ^= x >> 27;
	dice_state = x;
	return (uint32_t)((x * 0x2545f4914f6cdd1dull) >> 33) % sides;
}

/* ---- what the model knows ---- */

/* One direction. */
struct flow {
	uint64_t sent, got;
	uint64_t marks[MARKS]; /* places of urgent octets, oldest first */
	unsigned n_marks;
	bool eof;
};

struct pair {
	struct sdp_conn own;   /* connects, on side a */
	struct sdp_conn *c[2]; /* [0] is own, [1] was accepted */
	struct flow flow[2];   /* [i] is sent by c[i] */
	bool shut[2], closed[2], deaf[2];
	bool may_reset; /* somebody gave reason */
	uint32_t salt;
	uint64_t born;
};

static struct pair pairs[CONNS];
static struct bed_listener listener;
static uint64_t connections, octets, resets, graceful;

/* ---- history ---- */

static struct {
	uint64_t step;
	int pair, end;
	const char *what;
	long arg, result;
} history[HISTORY];
static unsigned n_history;

static void note(const struct pair *p, int end, const char *what, long arg, long result)
{
	unsigned i = n_history++ % HISTORY;

	history[i].step = step_number;
	history[i].pair = (int)(p - pairs);
	history[i].end = end;
	history[i].what = what;
	history[i].arg = arg;
	history[i].result = result;
}

static void show_end(const struct sdp_conn *c)
{
	fprintf(stderr,
		"  %s error %d why '%s' illegal %u status %x credits %u posted %u unread %" PRIu64
		" stash %u due %s\n",
		sdp_state_name(c->state), c->error, c->why ? c->why : "", c->illegal, c->status,
		sdp_credit_left(&c->credit), c->credit.posted, c->unread,
		c->stash_to - c->stash_from, sdp_mid_info(sdp_half_due(&c->halves))->name);
}

static _Noreturn void diverge(const struct pair *p, int end, const char *what)
{
	fprintf(stderr,
		"model: DIVERGENCE: %s; %s, seed %" PRIu64 ", step %" PRIu64
		", connection %d, end %d\n",
		what, bed.kind, seed, step_number, (int)(p - pairs), end);
	for (int i = 0; i < 2; i++) {
		fprintf(stderr, "  end %d sent %" PRIu64 ", the other got %" PRIu64 "\n", i,
			p->flow[i].sent, p->flow[i].got);
		if (p->c[i])
			show_end(p->c[i]);
	}
	for (unsigned i = n_history > HISTORY ? n_history - HISTORY : 0; i < n_history; i++) {
		unsigned k = i % HISTORY;

		if (history[k].pair == p - pairs)
			fprintf(stderr, "  step %8" PRIu64 " end %d %s(%ld) = %ld\n",
				history[k].step, history[k].end, history[k].what, history[k].arg,
				history[k].result);
	}
	exit(1);
}

/* ---- operations ---- */

static uint32_t pattern(const struct pair *p, int from)
{
	return p->salt * 2 + (uint32_t)from;
}

/* A send or receive failed for good. */
static void check_error(struct pair *p, int end, ssize_t rc)
{
	if (rc == -EAGAIN)
		return;
	if (AT(p->c[end], why))
		diverge(p, end, "a violation was found");
	if (AT(p->c[end], status) & SDP_IS_RESET) {
		if (!p->may_reset)
			diverge(p, end, "reset without reason");
		return;
	}
	if (rc == -EPIPE && (p->shut[end] || p->closed[end]))
		return;
	diverge(p, end, "unexpected error");
}

static size_t random_size(void)
{
	switch (dice(4)) {
	case 0: return 1 + dice(4);
	case 1: return 1 + dice(100);
	case 2: return 1 + dice(1200);
	default: return 1 + dice(MOST);
	}
}

/* Up to three pieces, some of them empty. */
static int split(uint8_t *at, size_t len, struct iovec *iov)
{
	size_t one = dice((uint32_t)len + 1), two = dice((uint32_t)(len - one) + 1);

	iov[0] = (struct iovec) { .iov_base = at, .iov_len = one };
	iov[1] = (struct iovec) { .iov_base = at + one, .iov_len = two };
	iov[2] = (struct iovec) { .iov_base = at + one + two, .iov_len = len - one - two };
	return 3;
}

static void do_send(struct pair *p, int end)
{
	uint8_t out[MOST];
	struct iovec iov[3];
	size_t len = random_size();
	ssize_t rc;

	bed_fill(out, len, p->flow[end].sent, pattern(p, end));
	rc = sdp_conn_send(p->c[end], iov, split(out, len, iov));
	note(p, end, "send", (long)len, rc);
	if (rc > 0) {
		if ((size_t)rc > len || p->shut[end])
			diverge(p, end, "too much was taken");
		p->flow[end].sent += (uint64_t)rc;
		octets += (uint64_t)rc;
	} else {
		check_error(p, end, rc);
	}
}

static void do_send_urgent(struct pair *p, int end)
{
	struct flow *f = &p->flow[end];
	ssize_t rc;

	if (f->n_marks == MARKS)
		return;
	rc = sdp_conn_send_urgent(p->c[end], bed_octet(f->sent, pattern(p, end)));
	note(p, end, "urgent", 1, rc);
	if (rc == 1)
		f->marks[f->n_marks++] = f->sent++;
	else
		check_error(p, end, rc);
}

static void forget_mark(struct flow *f)
{
	f->got = f->marks[0] + 1;
	f->n_marks--;
	memmove(f->marks, f->marks + 1, f->n_marks * sizeof(f->marks[0]));
}

/* How many urgent octets come next, and are here. */
static unsigned marks_ahead(struct sdp_conn *c)
{
	unsigned n = 0;

	lock_take(&c->lock);
	for (struct oti_rx *rx = c->first; rx && rx->mark && rx->to - rx->from == 1; rx = rx->next)
		n++;
	lock_give(&c->lock);
	return n;
}

static bool take_urgent(struct pair *p, int end, struct flow *f)
{
	uint8_t octet;
	struct iovec iov = { .iov_base = &octet, .iov_len = 1 };
	ssize_t rc = sdp_conn_recv(p->c[end], &iov, 1, SDP_URGENT);

	note(p, end, "recv urgent", 1, rc);
	if (rc == -EAGAIN || rc == -EINVAL)
		return false;
	if (rc != 1 || !f->n_marks || f->got != f->marks[0] ||
	    octet != bed_octet(f->got, pattern(p, !end)))
		diverge(p, end, "wrong urgent octet");
	forget_mark(f);
	return true;
}

/* What an ordinary read or peek returned, which began at `from`. */
static void check_recv(struct pair *p, int end, const uint8_t *in, ssize_t rc, uint64_t from,
		       bool peek)
{
	struct flow *f = &p->flow[!end];

	if (rc > 0) {
		if (!bed_check(in, (size_t)rc, from, pattern(p, !end)))
			diverge(p, end, "wrong octets");
		if (from + (uint64_t)rc > f->sent)
			diverge(p, end, "octets that nobody sent");
		f->got += peek ? 0 : (uint64_t)rc;
	} else if (rc == 0 && !p->deaf[end]) {
		if (from != f->sent || !p->shut[!end])
			diverge(p, end, "the end before all octets");
		f->eof |= !peek;
	} else if (rc < 0) {
		check_error(p, end, rc);
	}
}

/*
 * With up-calls at any time an urgent octet may come, and be passed, between two looks. There it is
 * always taken when it is next; true: that was tried.
 */
static bool take_urgent_first(struct pair *p, int end, struct flow *f)
{
	if (!bed.direct || !f->n_marks || f->got != f->marks[0] || f->eof || p->deaf[end] ||
	    AT(p->c[end], status) & SDP_IS_RESET)
		return false;
	take_urgent(p, end, f);
	return true;
}

static void do_recv(struct pair *p, int end)
{
	struct flow *f = &p->flow[!end];
	uint8_t in[MOST];
	struct iovec iov[3];
	size_t len = random_size();
	bool peek = dice(10) == 0;
	unsigned ahead = marks_ahead(p->c[end]);
	uint64_t from;
	ssize_t rc;

	if (take_urgent_first(p, end, f))
		return;
	if (ahead && dice(2)) {
		if (!take_urgent(p, end, f))
			diverge(p, end, "the urgent octet was there");
		return;
	}
	rc = sdp_conn_recv(p->c[end], iov, split(in, len, iov), peek ? SDP_PEEK : 0);
	note(p, end, peek ? "peek" : "recv", (long)len, rc);
	/* An ordinary read goes past the marks where it stands. */
	from = f->got + ahead;
	while (ahead-- && !peek)
		forget_mark(f);
	check_recv(p, end, in, rc, from, peek);
}

static void do_shut(struct pair *p, int end)
{
	int rc = sdp_conn_shut(p->c[end]);

	note(p, end, "shut", 0, rc);
	p->shut[end] = true;
}

static void do_shut_read(struct pair *p, int end)
{
	note(p, end, "shut_read", 0, 0);
	sdp_conn_shut_read(p->c[end]);
	p->deaf[end] = true;
}

static void do_close(struct pair *p, int end)
{
	/* Octets that are lost by it are a reason for a reset. */
	if (!p->flow[!end].eof || AT(p->c[end], unread))
		p->may_reset = true;
	note(p, end, "close", 0, 0);
	sdp_conn_close(p->c[end]);
	p->shut[end] = p->closed[end] = true;
}

static void do_abort(struct pair *p, int end)
{
	note(p, end, "abort", 0, 0);
	p->may_reset = true;
	sdp_conn_abort(p->c[end]);
	p->shut[end] = true;
}

static void do_mode(struct pair *p, int end)
{
	uint32_t mode = dice(3);
	bool to_source = dice(4) == 0;
	int rc = sdp_conn_change_mode(p->c[end], mode, to_source);

	note(p, end, "mode", (long)mode, rc);
}

static void do_poll(void)
{
	struct oti *o = dice(2) ? bed.a : bed.b;

	o->ops->poll(o, 1 + dice(8));
}

static void tick(struct pair *p)
{
	for (int end = 0; end < 2; end++)
		if (p->c[end])
			sdp_conn_tick(p->c[end], clock_now());
}

static void operate(struct pair *p, int end)
{
	uint32_t roll = dice(1000);

	if (p->closed[end]) {
		do_poll();
	} else if (roll < 400) {
		do_send(p, end);
	} else if (roll < 800) {
		do_recv(p, end);
	} else if (roll < 980) {
		do_poll();
	} else if (roll < 988) {
		do_mode(p, end);
	} else if (roll < 994) {
		do_send_urgent(p, end);
	} else if (roll < 996) {
		tick(p);
	} else if (roll < 998) {
		if (dice(4) == 0)
			do_shut(p, end);
	} else if (roll < 999) {
		if (dice(4) == 0)
			do_close(p, end);
	} else if (dice(8) == 0) {
		if (dice(2))
			do_abort(p, end);
		else
			do_shut_read(p, end);
	}
}

/* ---- beginning and end ---- */

static struct sdp_attr random_attr(struct oti *o)
{
	static const uint32_t sizes[] = { 37, 40, 64, 200, 1024, 2048, 8192 };
	struct sdp_attr attr = { .oti = o, .layout = bed.layout };

	attr.bufs = (uint16_t)(3 + dice(dice(2) ? 3 : 30));
	attr.buf_size = sizes[dice(ARRAY_SIZE(sizes))];
	attr.max_adverts = (uint16_t)(1 + dice(16));
	attr.linger_ms = dice(2) ? 1 : 1000;
	return attr;
}

static uint64_t patience(void)
{
	return bed_now_ms() + STUCK_MS;
}

static void breathe(struct pair *p)
{
	const struct timespec pause = { .tv_nsec = 10000 };

	for (int i = 0; i < 4; i++)
		do_poll();
	if (bed.direct)
		nanosleep(&pause, NULL);
	tick(p);
}

static void begin(struct pair *p)
{
	uint64_t end = patience();
	struct sdp_attr attr = random_attr(bed.a);

	memset(p, 0, sizeof(*p));
	p->salt = dice(1 << 30);
	p->born = step_number;
	p->c[0] = &p->own;
	listener.l.attr = random_attr(bed.b);
	if (sdp_conn_init(p->c[0], &attr) || sdp_conn_connect(p->c[0], &listener.l.llp->local))
		diverge(p, 0, "cannot connect");
	while (!(p->c[1] = sdp_listener_accept(&listener.l)) ||
	       !(sdp_conn_status(p->c[0]) & SDP_IS_OPEN)) {
		if (bed_now_ms() > end)
			diverge(p, 0, "does not come up");
		breathe(p);
	}
	connections++;
}

/* Both read to the end and close. */
static void wind_up(struct pair *p, int end)
{
	struct flow *f = &p->flow[!end];

	if (p->closed[end])
		return;
	if (!p->shut[end])
		do_shut(p, end);
	do_recv(p, end);
	if (f->eof || p->deaf[end] || AT(p->c[end], status) & SDP_IS_RESET)
		do_close(p, end);
}

static void finish(struct pair *p)
{
	uint64_t end = patience();

	while (!sdp_conn_is_done(p->c[0]) || !sdp_conn_is_done(p->c[1])) {
		if (bed_now_ms() > end)
			diverge(p, 0, "does not come to an end");
		wind_up(p, 0);
		wind_up(p, 1);
		breathe(p);
	}
	for (int i = 0; i < 2; i++) {
		if (p->c[i]->illegal)
			diverge(p, i, "an event that no row allows");
		if (p->c[i]->why)
			diverge(p, i, "a violation was found");
		if (!p->may_reset && !(p->c[i]->status & SDP_IS_CLOSED))
			diverge(p, i, "not closed in order");
	}
	resets += p->c[0]->status & SDP_IS_RESET || p->c[1]->status & SDP_IS_RESET;
	graceful += p->c[0]->status & SDP_IS_CLOSED && p->c[1]->status & SDP_IS_CLOSED;
	sdp_conn_fini(p->c[0]);
	sdp_conn_fini(p->c[1]);
	bed_free(&listener, p->c[1]);
}

/* All octets that were taken must arrive, if somebody reads. */
static void settle(struct pair *p)
{
	uint64_t end = patience();

	while (!p->may_reset && !p->closed[0] && !p->closed[1] && !p->deaf[0] && !p->deaf[1] &&
	       (p->flow[0].got != p->flow[0].sent || p->flow[1].got != p->flow[1].sent)) {
		if (bed_now_ms() > end)
			diverge(p, 0, "octets do not arrive");
		do_recv(p, 0);
		do_recv(p, 1);
		breathe(p);
	}
}

static void play(uint64_t steps)
{
	for (int i = 0; i < CONNS; i++)
		begin(&pairs[i]);
	for (step_number = 0; step_number < steps; step_number++) {
		struct pair *p = &pairs[dice(CONNS)];
		uint32_t fate = dice(LIFE);

		if (fate == 0 || (p->closed[0] && p->closed[1])) {
			finish(p);
			begin(p);
		} else if (fate == 1) {
			settle(p);
		} else {
			operate(p, (int)dice(2));
		}
	}
	for (int i = 0; i < CONNS; i++)
		finish(&pairs[i]);
}

int main(int argc, char **argv)
{
	uint64_t steps = 20000;
	struct sdp_attr attr;
	void *state;

	bed_init(argc > 1 ? 2 : 1, argv);
	seed = (uint64_t)time(NULL);
	for (int i = 2; i + 1 < argc; i += 2) {
		if (!strcmp(argv[i], "--steps"))
			steps = strtoull(argv[i + 1], NULL, 10);
		else if (!strcmp(argv[i], "--seed"))
			seed = strtoull(argv[i + 1], NULL, 10);
	}
	dice_state = (seed + 1) * 0x9e3779b97f4a7c15ull;
	printf("model: %s, seed %" PRIu64 ", %" PRIu64 " steps\n", bed.kind, seed, steps);
	fflush(stdout);
	bed_open(&state);
	attr = random_attr(bed.b);
	bed_listen(&listener, &attr, CONNS);
	play(steps);
	bed_unlisten(&listener);
	bed_close(&state);
	printf("model: %" PRIu64 " connections, %" PRIu64 " octets; %" PRIu64
	       " closed in order, %" PRIu64 " reset\n",
	       connections, octets, graceful, resets);
	return graceful && octets ? 0 : 1;
}
