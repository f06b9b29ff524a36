/* SPDX-License-Identifier: MIT */
/* What the log says when all is over: was every result one that TCP can give? */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "threads.h"

#define CHANCE 4 /* octets in a program that may look right though they are not */

typedef uint8_t conn_set[MAX_CONNS];

/* The events in order of their numbers, and the connections that each can have given its number. */
static struct event *by_number[MAX_EVENTS];
static conn_set given[MAX_EVENTS];
static unsigned events;

static int compare(const void *a, const void *b)
{
	const struct event *x = *(struct event *const *)a, *y = *(struct event *const *)b;

	if (x->number != y->number)
		return x->number < y->number ? -1 : 1;
	return x->from < y->from ? -1 : x->from > y->from;
}

static void sort_events(void)
{
	events = atomic_load(&world->events);
	for (unsigned i = 0; i < events; i++)
		by_number[i] = &world->event[i];
	qsort(by_number, events, sizeof(by_number[0]), compare);
}

static unsigned first_of(int number)
{
	unsigned low = 0, high = events, middle;

	while (low < high) {
		middle = (low + high) / 2;
		if (by_number[middle]->number < number)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

#define EACH_EVENT(i, n) \
	for (unsigned i = first_of(n); i < events && by_number[i]->number == (n); i++)

/* Whether what e gave the number had certainly been taken from it before the stamp. */
static bool gone(const struct event *e, uint64_t before)
{
	EACH_EVENT(i, e->number)
	{
		const struct event *x = by_number[i];

		if (x->kind == NUMBER_ENDS && x->from > e->to && x->to < before)
			return true;
	}
	return false;
}

/* All connections that the number can have been of at some time from begin to end; any new? */
static bool gather(int number, uint64_t begin, uint64_t end, conn_set set)
{
	bool more = false;

	EACH_EVENT(i, number)
	{
		const struct event *e = by_number[i];

		if (e->from > end || (e->kind != NUMBER_IS && e->kind != NUMBER_COPIES) ||
		    gone(e, begin))
			continue;
		for (unsigned c = 0; c < atomic_load(&world->conns); c++) {
			more |= given[i][c] && !set[c];
			set[c] |= given[i][c];
		}
	}
	return more;
}

/* Copies of copies: until nothing is new. */
static void find_given(void)
{
	bool more = true;

	for (unsigned i = 0; i < events; i++)
		if (by_number[i]->kind == NUMBER_IS && by_number[i]->other >= 0)
			given[i][by_number[i]->other] = 1;
	while (more) {
		more = false;
		for (unsigned i = 0; i < events; i++) {
			const struct event *e = by_number[i];

			if (e->kind == NUMBER_COPIES)
				more |= gather(e->other, e->from, e->to, given[i]);
		}
	}
}

static uint64_t end_of(struct call *c)
{
	uint64_t end = atomic_load(&c->end);

	return end ? end : UINT64_MAX;
}

static void gather_call(struct call *c, conn_set set)
{
	memset(set, 0, MAX_CONNS);
	gather(c->number, c->begin, end_of(c), set);
}

/* ---- trouble: when something can have ended a direction of a connection ---- */

static uint64_t trouble[MAX_CONNS]; /* seen by W; UINT64_MAX: never */
static uint64_t leaving[MAX_CONNS]; /* by W, seen by T; 0: W never had it */

static void find_trouble(void)
{
	unsigned conns = atomic_load(&world->conns);
	uint64_t ending;
	conn_set set;

	for (unsigned i = 0; i < conns; i++) {
		ending = atomic_load(&world->conn[i].ending);
		trouble[i] = ending ? ending : UINT64_MAX;
		leaving[i] = 0;
	}
	for (unsigned i = 0; i < events; i++) {
		const struct event *e = &world->event[i];

		if (e->kind == NUMBER_IS && e->other >= 0)
			leaving[e->other] = UINT64_MAX;
	}
	for (unsigned i = 0; i < events; i++) {
		const struct event *e = &world->event[i];

		if (e->kind != NUMBER_SHUTS && e->kind != NUMBER_ENDS)
			continue;
		memset(set, 0, sizeof(set));
		gather(e->number, e->from, e->to, set);
		for (unsigned c = 0; c < conns; c++) {
			if (!set[c])
				continue;
			if (e->from < leaving[c])
				leaving[c] = e->from;
			if (e->kind == NUMBER_SHUTS && e->from < trouble[c])
				trouble[c] = e->from;
		}
	}
}

/* Some connection that the call can have meant was in trouble before it returned. */
static bool troubled(struct call *c, const conn_set set)
{
	for (unsigned i = 0; i < atomic_load(&world->conns); i++)
		if (set[i] && trouble[i] < end_of(c))
			return true;
	/* Or it was about to be connected: a late call on a number that was used again. */
	EACH_EVENT(i, c->number)
	{
		const struct event *e = by_number[i];

		if (e->kind == NUMBER_IS && e->from < end_of(c) && e->to > c->begin)
			return true;
	}
	return false;
}

/* Closed; or opened: a child may have the number from our memory, but not the descriptor. */
static bool number_changed(int number, uint64_t begin, uint64_t end)
{
	EACH_EVENT(i, number)
	{
		const struct event *e = by_number[i];

		if (e->kind != NUMBER_SHUTS && e->from < end && e->to > begin)
			return true;
	}
	return false;
}

static bool stale(struct call *c)
{
	bool is = number_changed(c->number, c->begin, end_of(c));

	for (int i = 0; i < c->more; i++)
		is |= number_changed(c->others[i], c->begin, end_of(c));
	return is;
}

/* ---- calls ---- */

static void judge_error(struct call *c, const conn_set set)
{
	switch (c->err) {
	case EPIPE:
	case ECONNRESET:
	case ENOTCONN:
		if (!troubled(c, set))
			watch_bad("%s on %d: %s, but nobody has ended that connection", c->what,
				  c->number, stage_errno(c->err));
		break;
	case EBADF:
	case ENOTSOCK:
	case EINVAL:
	case ENOTTY:
	case EPERM:
	case EOPNOTSUPP:
		if (!stale(c))
			watch_bad("%s on %d: %s, but nobody has closed that number", c->what,
				  c->number, stage_errno(c->err));
		break;
	default: break;
	}
}

static void judge_place(struct call *c, const conn_set set)
{
	unsigned conn = atomic_load(&c->conn);

	if (conn && !set[conn - 1])
		watch_bad("%s on %d (%lld) was on connection %u, which the number was not of",
			  c->what, c->number, (long long)c->result, conn - 1);
}

/* May octets have been lost on the way, as the connection was broken? */
static bool may_lose(const conn_set set)
{
	for (unsigned i = 0; i < atomic_load(&world->conns); i++)
		if (set[i] && !atomic_load(&world->conn[i].whole))
			return true;
	return false;
}

/* For a message: what the number can have been of. */
static const char *names_of(const conn_set set)
{
	static char text[200];
	int n = 0;

	text[0] = 0;
	for (unsigned i = 0; i < atomic_load(&world->conns) && n < 180; i++)
		if (set[i])
			n += sprintf(text + n, " %u%s", i,
				     atomic_load(&world->conn[i].whole) ? "" : " (cut)");
	return text;
}

static void judge_out(struct call *c, const conn_set set)
{
	int64_t seen = atomic_load(&c->seen), most = c->result;

	if (most == RESULT_UNKNOWN)
		most = c->len;
	if (most < 0)
		most = 0;
	if (seen > most)
		watch_bad("%s on %d: %lld octets came, the result is %lld", c->what, c->number,
			  (long long)seen, (long long)c->result);
	/* Less than a header cannot be told whose it is. */
	if (c->result >= RECORD_HEAD && seen < c->result && !may_lose(set))
		watch_bad("%s on %d: result %lld, but only %lld octets came, on %d; may be on%s",
			  c->what, c->number, (long long)c->result, (long long)seen,
			  (int)atomic_load(&c->conn) - 1, names_of(set));
	if (c->late && !troubled(c, set) && !may_lose(set))
		watch_bad("%s on %d: %lld of %lld octets had come after a long time", c->what,
			  c->number, (long long)seen, (long long)c->result);
}

static void judge_calls(void)
{
	unsigned n = atomic_load(&world->calls);
	conn_set set;

	for (struct call *c = world->call; c < world->call + n; c++) {
		gather_call(c, set);
		if (c->result < 0)
			judge_error(c, set);
		if (c->kind == CALL_WAIT)
			continue;
		judge_place(c, set);
		if (c->kind == CALL_OUT)
			judge_out(c, set);
		else if (c->result == 0 && !troubled(c, set))
			watch_bad("%s on %d: 0, but nobody has ended that connection", c->what,
				  c->number);
	}
}

/* ---- connections ---- */

/* A call that returned before another began comes first. */
static void judge_order(unsigned index)
{
	struct conn *c = &world->conn[index];
	unsigned n = atomic_load(&c->runs);
	uint64_t begun = 0;
	struct call *x, *last = NULL;

	for (unsigned i = 0; i < n; i++) {
		x = &world->call[c->run[i]];
		if (x != last && end_of(x) < begun) {
			watch_bad("connection %u: %s on %d comes after a call that began later",
				  index, x->what, x->number);
			return;
		}
		if (x->begin > begun) {
			begun = x->begin;
			last = x;
		}
	}
}

static void judge_end(unsigned index)
{
	struct conn *c = &world->conn[index];
	uint64_t ended = atomic_load(&c->ended), ending = atomic_load(&c->ending);

	if (!ended || !leaving[index])
		return;
	if (leaving[index] > ended && (!ending || ending > ended))
		watch_bad("connection %u ended for T, but nobody has ended it", index);
}

static bool was_read(unsigned conn, uint64_t at)
{
	return atomic_load(&world->read[conn][at / 64]) >> at % 64 & 1;
}

/* Octets that nobody has read, though later ones were. */
static uint64_t holes(unsigned conn, uint64_t *where)
{
	uint64_t n = 0, high = atomic_load(&world->conn[conn].high);

	for (uint64_t at = 0; at < high; at++) {
		if (at % 64 == 0 && !~atomic_load(&world->read[conn][at / 64])) {
			at += 63;
			continue;
		}
		if (!was_read(conn, at)) {
			*where = at;
			n++;
		}
	}
	return n;
}

/* Fewer octets are found anywhere: these count as thrown away. */
#define CLEAR  3
#define BREAKS 4

static void mark(unsigned conn, uint64_t at, size_t n, bool read)
{
	for (uint64_t i = at; i < at + n; i++)
		if (read)
			atomic_fetch_or(&world->read[conn][i / 64], 1ull << i % 64);
		else
			atomic_fetch_and(&world->read[conn][i / 64], ~(1ull << i % 64));
}

/* Somewhere among what was sent and not otherwise read there is room for these few octets. */
static bool fits(const uint8_t *octets, size_t n, unsigned conn, uint64_t *where)
{
	uint64_t sent = atomic_load(&world->conn[conn].sent), middle;

	for (uint64_t at = 0; at + n <= sent; at++) {
		/* At the edges an octet may have been taken for one of the neighbours. */
		middle = at + n / 2;
		if (middle % 64 == 0 && !~atomic_load(&world->read[conn][middle / 64])) {
			at += 63;
			continue;
		}
		if (was_read(conn, middle) || cells_match(conn, at, octets, n) < n)
			continue;
		mark(conn, at, n, true);
		*where = at;
		return true;
	}
	return false;
}

/* The connection in which they have found their place; -1: none. */
static int find_place(const uint8_t *octets, size_t n, const conn_set set, uint64_t *at)
{
	for (unsigned i = 0; i < atomic_load(&world->conns); i++)
		if (set[i] && fits(octets, n, i, at))
			return (int)i;
	return -1;
}

/* breaks: another thread may so often have read what was between them. */
static bool fits_any(const uint8_t *octets, size_t n, const conn_set set, int breaks)
{
	uint64_t at = 0;
	int conn;

	if (n < CLEAR) {
		atomic_fetch_add(&world->thrown, n);
		return true;
	}
	if (find_place(octets, n, set, &at) >= 0)
		return true;
	for (size_t k = n - 1; k > 0 && breaks; k--) {
		conn = k < CLEAR ? -1 : find_place(octets, k, set, &at);
		if (conn < 0 && k >= CLEAR)
			continue;
		if (fits_any(octets + k, n - k, set, breaks - 1)) {
			atomic_fetch_add(&world->thrown, conn < 0 ? k : 0);
			return true;
		}
		if (conn >= 0)
			mark((unsigned)conn, at, k, false);
	}
	return false;
}

/* Whether the octets of the crumb are of a connection that the number was of. */
static bool judge_crumb(const struct crumb *b)
{
	conn_set set;

	gather_call(&world->call[b->call], set);
	return fits_any(b->octets, b->n, set, BREAKS);
}

/* The long ones first: they have fewer places. */
static void judge_crumbs(void)
{
	unsigned n = atomic_load(&world->crumbs), homeless = 0;
	struct call *last = NULL;

	for (int len = CRUMB_MAX; len > 0; len--)
		for (unsigned i = 0; i < n && i < MAX_CRUMBS; i++)
			if (world->crumb[i].n == len && !judge_crumb(&world->crumb[i])) {
				last = &world->call[world->crumb[i].call];
				homeless++;
			}
	/* By chance a wrong place may have been taken for one of them. */
	if (homeless > 1)
		watch_bad("%u times few octets were read that are of no connection the number was "
			  "of, at last by %s on %d",
			  homeless, last->what, last->number);
}

void judge(void)
{
	uint64_t missing = 0, where = 0;
	unsigned last = 0;

	sort_events();
	find_given();
	find_trouble();
	judge_calls();
	judge_crumbs();
	for (unsigned i = 0; i < atomic_load(&world->conns); i++) {
		uint64_t n = holes(i, &where);

		missing += n;
		last = n ? i : last;
		judge_order(i);
		judge_end(i);
	}
	/* MSG_TRUNC leaves holes, and so do cancelled calls. */
	if (atomic_load(&world->twice) > CHANCE)
		watch_bad("%u single octets were read twice", atomic_load(&world->twice));
	if (missing > atomic_load(&world->thrown) + CHANCE)
		watch_bad("%llu octets were read by nobody, though later ones were; the last at "
			  "%llu of connection %u",
			  (unsigned long long)missing, (unsigned long long)where, last);
}
