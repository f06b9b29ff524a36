/* SPDX-License-Identifier: MIT */
/* flue sockets: what the connections of this user's programs are doing. */
#include <argp.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cmd.h"
#include "homes.h"
#include "screen.h"
#include "sockets_view.h"
#include "util.h"

#define SECONDS_MAX 86400

struct sockets {
	bool json, watch, sorted;
	double seconds;
	enum rows_sort sort;
	const char *filter;
};

static const struct argp_option options[] = {
	{ "json", 'j', NULL, 0, "Print JSON; with --watch one object on a line each time", 0 },
	{ "watch", 'w', "SECONDS", OPTION_ARG_OPTIONAL,
	  "Look again and again, every so often (1), and show rates; ends with q or Control-C", 0 },
	{ "sort", 's', "KEY", 0,
	  "Order by rate (with --watch, the default there), bytes, program (default), pid or port",
	  0 },
	{ "filter", 'f', "WORDS", 0,
	  "Show only connections that fit all words: part of a program's name, a pid or a port; "
	  "or program=NAME, pid=N, port=N",
	  0 },
	{ 0 },
};

static void parse_seconds(struct sockets *s, const char *arg, struct argp_state *state)
{
	if (!util_parse_seconds(arg, 0.05, SECONDS_MAX, &s->seconds))
		argp_error(state, "--watch takes seconds from 0.05 on, not '%s'", arg);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct sockets *s = state->input;

	switch (key) {
	case 'j': s->json = true; break;
	case 'w':
		s->watch = true;
		if (arg)
			parse_seconds(s, arg, state);
		break;
	case 's':
		s->sort = rows_sort_of(arg);
		s->sorted = true;
		if (s->sort == ROWS_SORTS)
			argp_error(state, "--sort is rate, bytes, program, pid or port, not '%s'",
				   arg);
		break;
	case 'f': s->filter = arg; break;
	case ARGP_KEY_ARG:
		/* getopt wants "--watch=2"; people write "--watch 2". */
		if (!s->watch || s->seconds > 0)
			argp_error(state, "'%s' is too much", arg);
		parse_seconds(s, arg, state);
		break;
	default: return ARGP_ERR_UNKNOWN;
	}
	return 0;
}

static const struct argp argp = {
	.options = options,
	.parser = parse,
	.doc = "Show the TCP connections of your programs that run under Flue: who talks to whom, through "
	       "shared memory (lane) or TCP, how much, and what keeps a connection on TCP.\v"
	       "Examples:\n"
	       "  flue sockets\n"
	       "  flue sockets --watch 2\n"
	       "  flue sockets --filter port=6379 --sort bytes\n"
	       "  flue sockets --json | jq '.connections[] | select(.way == \"tcp\") | .why'\n",
};

static bool look(struct homes *homes)
{
	if (homes_read(homes, geteuid()))
		return true;
	util_error("cannot look at the processes in /proc: %s", strerror(errno));
	return false;
}

/* False: the output is gone, or no memory. */
static bool print(const struct sockets *s, const struct view *view, const struct homes *homes)
{
	bool good = true;

	if (s->json) {
		json_t *value = sockets_view_json(homes, s->filter);

		good = value &&
		       json_dumpf(value, stdout, s->watch ? JSON_COMPACT : JSON_INDENT(2)) == 0;
		putchar('\n');
		json_decref(value);
	} else {
		good = sockets_view_table(view, homes);
	}
	return fflush(stdout) == 0 && good;
}

static void pause_for(double seconds)
{
	struct timespec time = { .tv_sec = (time_t)seconds };

	time.tv_nsec = (long)((seconds - (double)time.tv_sec) * 1e9);
	nanosleep(&time, NULL); /* a signal ends it, which is meant */
}

/* For files and pipes, and terminals that cannot be drawn on. */
static bool watch_lines(const struct sockets *s)
{
	struct homes now, before = { 0 };
	struct view view = { .out = stdout,
			     .rows = { .sort = s->sort, .filter = s->filter, .before = &before } };
	uint64_t last = 0;
	bool good = true;

	while (!cmd_interrupted && good) {
		uint64_t time = util_now_ns();

		good = look(&now);
		if (!good)
			break;
		/* At first there is nothing before: the columns are there, without rates. */
		view.rows.seconds = (double)(time - last) / 1e9;
		good = print(s, &view, &now);
		if (!s->json)
			putchar('\n');
		homes_free(&before);
		before = now;
		last = time;
		if (good && !cmd_interrupted)
			pause_for(s->seconds);
	}
	homes_free(&before);
	return good;
}

static bool watch(const struct sockets *s)
{
	struct screen_attr attr = { .seconds = s->seconds, .sort = s->sort, .filter = s->filter };
	enum screen_end end = SCREEN_NONE;

	if (!s->json && isatty(STDOUT_FILENO))
		end = screen_run(&attr);
	if (end == SCREEN_NONE)
		return watch_lines(s);
	if (end == SCREEN_FAILED)
		util_error("cannot look at the processes in /proc: %s", strerror(errno));
	return end == SCREEN_GOOD;
}

int cmd_sockets(int argc, char **argv)
{
	struct sockets s = { 0 };
	struct view view = { .out = stdout };
	struct homes homes;
	bool good;

	if (argp_parse(&argp, argc, argv, 0, NULL, &s))
		return 2;
	if (!s.sorted)
		s.sort = s.watch ? ROWS_RATE : ROWS_PROGRAM;
	s.seconds = s.seconds > 0 ? s.seconds : 1;
	view.rows = (struct rows_attr) { .sort = s.sort, .filter = s.filter };
	if (s.watch) {
		cmd_catch_interrupt();
		return watch(&s) ? 0 : 1;
	}
	if (!look(&homes))
		return 1;
	good = print(&s, &view, &homes);
	homes_free(&homes);
	return good ? 0 : 1;
}
