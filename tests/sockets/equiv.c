/* SPDX-License-Identifier: MIT */
/*
 *   equiv SEED [MOVE]        a random program of socket calls for two processes, see equiv.h
 *
 * Prints what happened, the same in every run on kernel TCP. An odd SEED has only moves that leave
 * a lane in use; an even one also those for which the connection steps down to TCP. With MOVE, only
 * this one is made again and again, to get hold of a failure that is rare.
 */
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "equiv_moves.h"

#define CONNECTIONS 3
#define TURNS       8

const struct equiv_row equiv_moves[] = {
	{ "put", move_put, 16, true },
	{ "take", move_take, 10, true },
	{ "stream", move_stream, 10, true },
	{ "turns", move_turns, 6, true },
	{ "peek", move_peek, 3, true },
	{ "count", move_count, 3, true },
	{ "empty", move_empty, 3, true },
	{ "nothing", move_nothing, 1, true },
	{ "ask", move_ask, 8, true },
	{ "wake", move_wake, 12, true },
	{ "edges", move_edges, 4, true },
	{ "interest", move_interest, 3, true },
	{ "timeout", move_timeout, 2, true },
	{ "full", move_full, 1, false },
	{ "long", move_long, 2, true },
	{ "lowat", move_lowat, 2, false },
	{ "signal", move_signal, 4, true },
	{ "masked", move_masked, 1, true },
	{ "dup", move_dup, 3, true },
	{ "fork", move_fork, 3, false },
	{ "options", move_options, 4, true },
	{ "refused", move_refused, 1, false },
	{ "sendfile", move_sendfile, 3, false },
	{ "splice", move_splice, 3, false },
	{ "urgent", move_urgent, 2, false },
	{ "async", move_async, 2, false },
	{ 0 },
};

#define ROWS (sizeof(equiv_moves) / sizeof(*equiv_moves))

const struct equiv_row equiv_ends[] = {
	{ "half", end_half, 4, true },
	{ "clean", end_clean, 3, true },
	{ "unread", end_unread, 3, true },
	{ "reset", end_reset, 2, true },
	{ "linger", end_linger, 2, true },
	{ "deaf", end_deaf, 2, true },
	{ "both ways", end_both_ways, 2, true },
	{ "together", end_together, 2, true },
	{ "dissolved", end_dissolved, 1, true },
	{ "asleep", end_asleep, 5, true },
	{ 0 },
};

size_t equiv_unread(const struct party *p, bool to_me)
{
	int from = to_me ? !p->st.side : p->st.side;

	return (size_t)(p->sent[from] - p->read[from]);
}

void equiv_sent(struct party *p, bool me, size_t n)
{
	p->sent[me ? p->st.side : !p->st.side] += n;
}

void equiv_read(struct party *p, bool me, size_t n)
{
	p->read[me ? !p->st.side : p->st.side] += n;
}

static void line(const struct party *p, bool bad, const char *format, va_list args)
{
	char text[400];

	vsnprintf(text, sizeof(text), format, args);
	(bad ? stage_bad : stage_say)(&p->st, "%d %s: %s", p->step, p->move, text);
}

void equiv_fact(const struct party *p, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	line(p, false, format, args);
	va_end(args);
}

void equiv_bad(const struct party *p, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	line(p, true, format, args);
	va_end(args);
}

const char *equiv_result(ssize_t result, int err)
{
	static char text[24];

	if (result < 0)
		return stage_errno(err);
	snprintf(text, sizeof(text), "%zd", result);
	return text;
}

static const struct equiv_row *draw(struct party *p, const struct equiv_row *rows)
{
	unsigned total = 0, ticket;
	const struct equiv_row *row;

	for (row = rows; row->name; row++)
		total += row->weight;
	ticket = random_below(&p->plan, total);
	for (row = rows; ticket >= row->weight; row++)
		ticket -= row->weight;
	return row;
}

static bool allowed(const struct party *p, const struct equiv_row *row)
{
	if (p->only && row >= equiv_moves && row < equiv_moves + ROWS && !p->child)
		return strcmp(row->name, p->only) == 0;
	/* A child would close descriptors that the parent goes on with, or fork in turn. */
	if (p->child && (row->run == move_fork || row->run == move_dup))
		return false;
	return row->pure || !p->pure;
}

/* Both have the same plan; a model that differs shows as foreign octets or a stop. */
static void play_one(struct party *p, const struct equiv_row *rows)
{
	const struct equiv_row *row;
	uint64_t mine, theirs;
	bool actor;

	do
		row = draw(p, rows);
	while (!allowed(p, row));
	actor = (int)random_below(&p->plan, 2) == p->st.side;
	p->step++;
	/* How often the last move had to try depends on the moment; this one starts alike. */
	p->own.state = p->plan.state + 1 + (uint64_t)p->st.side;
	p->move = row->name;
	mine = p->plan.state ^ p->sent[0] ^ p->read[0] << 20 ^ p->sent[1] << 40 ^ p->read[1] << 10;
	theirs = stage_meet(&p->st, mine);
	if (mine != theirs)
		stage_die(&p->st, "%d %s: the two sides are out of step", p->step, row->name);
	row->run(p, actor);
	if (p->st.fd >= 0 && p->st.in.at != p->read[!p->st.side])
		equiv_bad(p, "at %llu, not %llu", (unsigned long long)p->st.in.at,
			  (unsigned long long)p->read[!p->st.side]);
	/* What follows a broken promise is noise. */
	if (stage_bads() > 4)
		stage_die(&p->st, "%d %s: too much is wrong", p->step, row->name);
}

void equiv_play(struct party *p, int moves)
{
	while (moves--)
		play_one(p, equiv_moves);
}

static void play_connection(struct party *p, int listener, uint64_t seed)
{
	stage_connect(&p->st, listener, seed);
	memset(p->sent, 0, sizeof(p->sent));
	memset(p->read, 0, sizeof(p->read));
	p->move = "warm";
	stage_warm(&p->st, TURNS);
	p->sent[p->st.side] = p->read[p->st.side] = p->st.out.at;
	p->sent[!p->st.side] = p->read[!p->st.side] = p->st.in.at;
	equiv_play(p, 5 + (int)random_below(&p->plan, 30));
	play_one(p, equiv_ends);
}

int main(int argc, char **argv)
{
	uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
	struct party p = { .plan.state = seed, .pure = seed & 1 };
	int listener[2], connections;

	p.only = argc > 2 ? argv[2] : NULL;
	for (int i = 0; i < 2; i++)
		listener[i] = stage_listen(i ? AF_INET6 : AF_INET, 4);
	connections = 1 + (int)random_below(&p.plan, CONNECTIONS);
	memset(p.set, 0xff, sizeof(p.set));
	stage_split(&p.st);
	for (int i = 0; i < connections; i++)
		play_connection(&p, listener[random_below(&p.plan, 2)], seed * 16 + (uint64_t)i);
	stage_say(&p.st, "done, %d bad", stage_bads());
	if (p.st.side == 0 && stage_join(&p.st))
		stage_bad(&p.st, "the other process failed");
	return stage_bads() != 0;
}
