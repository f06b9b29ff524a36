/* SPDX-License-Identifier: MIT */
/* flue sockets: what the connections of this user's programs are doing. */
#include <argp.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "cmd.h"
#include "homes.h"
#include "sockets_view.h"
#include "util.h"

#define SECONDS_MAX 86400

struct sockets {
	bool json, watch;
	double seconds;
};

static const struct argp_option options[] = {
	{ "json", 'j', NULL, 0, "Print JSON; with --watch one object on a line each time", 0 },
	{ "watch", 'w', "SECONDS", OPTION_ARG_OPTIONAL,
	  "Look again and again, every so often (1), and show rates; ends with Control-C", 0 },
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
		json_t *value = sockets_view_json(homes);

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

/* On a terminal each look is drawn over the last one. */
static void begin_screen(struct view *view)
{
	struct winsize size;

	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col && size.ws_row) {
		view->width = size.ws_col;
		view->height = size.ws_row;
	}
	view->end = "\033[K\n";
	fputs("\033[H", stdout);
}

static bool watch(const struct sockets *s)
{
	bool screen = !s->json && isatty(STDOUT_FILENO), good = true;
	struct view view = { .out = stdout, .end = "\n" };
	struct homes now, before = { 0 };
	uint64_t last = 0;

	if (screen)
		fputs("\033[2J", stdout);
	while (!cmd_interrupted && good) {
		uint64_t time = util_now_ns();

		good = look(&now);
		if (!good)
			break;
		view.before = &before; /* empty at first: the columns are there, without rates */
		view.seconds = (double)(time - last) / 1e9;
		if (screen)
			begin_screen(&view);
		good = print(s, &view, &now);
		if (screen) {
			fputs("\033[J", stdout);
			fflush(stdout);
		} else if (!s->json) {
			putchar('\n');
		}
		homes_free(&before);
		before = now;
		last = time;
		if (good && !cmd_interrupted)
			pause_for(s->seconds > 0 ? s->seconds : 1);
	}
	homes_free(&before);
	return good;
}

int cmd_sockets(int argc, char **argv)
{
	struct sockets s = { 0 };
	struct view view = { .out = stdout, .end = "\n" };
	struct homes homes;
	bool good;

	if (argp_parse(&argp, argc, argv, 0, NULL, &s))
		return 2;
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
