/* SPDX-License-Identifier: MIT */
#include "screen.h"

#include <ctype.h>
#include <curses.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd.h"
#include "layout.h"
#include "sockets_view.h"
#include "util.h"

#define HEAD        3 /* lines: summary, order and filter, titles */
#define FILTER_MOST 60
#define ESCAPE      27

struct screen {
	struct homes now, before;
	uint64_t looked; /* when */
	double seconds;  /* between the two looks */
	struct rows rows;
	struct rows_attr attr;
	char filter[FILTER_MOST + 1];
	bool typing; /* the filter is being written */
	bool paused;
	size_t selected, top; /* rows: under the cursor, and the first one on the screen */
	bool follows;         /* the cursor stays with a connection: */
	uint8_t key[36];
};

/* ---- what is shown ---- */

/* The selected connection may have another place now. */
static void place_cursor(struct screen *s)
{
	if (s->follows)
		for (size_t i = 0; i < s->rows.n; i++)
			if (memcmp(s->rows.row[i].c->key, s->key, sizeof(s->key)) == 0)
				s->selected = i;
	if (s->selected >= s->rows.n)
		s->selected = s->rows.n ? s->rows.n - 1 : 0;
}

/* Order or filter have changed, or the figures. */
static bool arrange(struct screen *s)
{
	rows_free(&s->rows);
	s->attr.filter = s->filter;
	s->attr.before = &s->before;
	s->attr.seconds = s->seconds;
	if (!rows_make(&s->rows, &s->now, &s->attr))
		return false;
	place_cursor(s);
	return true;
}

static bool look(struct screen *s)
{
	uint64_t time = util_now_ns();
	struct homes fresh;

	if (!homes_read(&fresh, geteuid()))
		return false;
	rows_free(&s->rows); /* they point into what goes now */
	homes_free(&s->before);
	s->before = s->now;
	s->now = fresh;
	s->seconds = (double)(time - s->looked) / 1e9;
	s->looked = time;
	return arrange(s);
}

/* ---- drawing ---- */

static void draw_text(int line, const char *text)
{
	mvaddnstr(line, 0, text, COLS);
	clrtoeol();
}

static void draw_head(const struct screen *s)
{
	char text[256], more[64] = "";

	sockets_view_summary(text, sizeof(text), &s->now, &s->rows);
	draw_text(0, text);
	if (s->rows.hidden)
		snprintf(more, sizeof(more), ", hides %zu", s->rows.hidden);
	snprintf(text, sizeof(text), "by %s%s; filter: %s%s%s", rows_sort_word(s->attr.sort),
		 s->attr.reverse ? ", reversed" : "", *s->filter ? s->filter : "none", more,
		 s->paused ? "; PAUSED" : "");
	if (s->now.strange)
		snprintf(text + strlen(text), sizeof(text) - strlen(text),
			 "; %zu with another version of the library", s->now.strange);
	draw_text(1, text);
}

static void draw_rows(struct screen *s, int height)
{
	char line[LAYOUT_MOST + 1];
	struct layout layout;

	layout_make(&layout, &s->rows, (unsigned)COLS);
	layout_line(line, &layout, NULL);
	attron(A_REVERSE);
	mvprintw(2, 0, "%-*.*s", COLS, COLS, line);
	attroff(A_REVERSE);
	if (s->selected < s->top)
		s->top = s->selected;
	if (s->selected >= s->top + (size_t)height)
		s->top = s->selected - (size_t)height + 1;
	for (int i = 0; i < height; i++) {
		size_t n = s->top + (size_t)i;

		*line = '\0';
		if (n < s->rows.n)
			layout_line(line, &layout, &s->rows.row[n]);
		if (n == s->selected && n < s->rows.n)
			attron(A_BOLD | A_UNDERLINE);
		draw_text(HEAD + i, line);
		attroff(A_BOLD | A_UNDERLINE);
	}
}

/* All about the row under the cursor, at the bottom; the number of lines. */
static int draw_details(const struct screen *s, int bottom, bool really)
{
	const char *at, *next;
	char text[1024] = "";
	int lines = 0;

	if (s->rows.n)
		layout_details(text, sizeof(text), &s->rows.row[s->selected]);
	for (at = text; *at; at = next) {
		size_t length = layout_wrap(at, (unsigned)COLS, &next);

		if (really) {
			mvaddnstr(bottom + lines, 0, at, (int)length);
			clrtoeol();
		}
		lines++;
	}
	return lines;
}

static void draw_keys(const struct screen *s)
{
	attron(A_REVERSE);
	if (s->typing)
		mvprintw(
			LINES - 1, 0, "%-*.*s", COLS, COLS,
			"program, pid or port (also pid=1 port=2 program=x*); Enter: done; Esc: none");
	else
		mvprintw(
			LINES - 1, 0, "%-*.*s", COLS, COLS,
			"arrows, PgUp, PgDn: move  s: sort  r: reverse  /: filter  p: pause  q: quit");
	attroff(A_REVERSE);
}

static void draw(struct screen *s)
{
	int details = draw_details(s, 0, false);
	int height = LINES - HEAD - details - 2;

	/* On a very small screen the rows matter more. */
	if (height < 3) {
		details = 0;
		height = LINES - HEAD - 1;
	}
	erase();
	draw_head(s);
	draw_rows(s, height > 0 ? height : 0);
	if (details) {
		mvhline(LINES - details - 2, 0, '-', COLS);
		draw_details(s, LINES - details - 1, true);
	}
	draw_keys(s);
	if (s->typing)
		move(1, (int)(strlen("by ; filter: ") + strlen(rows_sort_word(s->attr.sort)) +
			      (s->attr.reverse ? strlen(", reversed") : 0) + strlen(s->filter)));
	curs_set(s->typing);
	refresh();
}

/* ---- keys ---- */

static void move_cursor(struct screen *s, long by)
{
	long to = (long)s->selected + by;

	if (to < 0 || s->rows.n == 0)
		to = 0;
	else if ((size_t)to >= s->rows.n)
		to = (long)s->rows.n - 1;
	s->selected = (size_t)to;
	s->follows = s->rows.n && to > 0; /* at the top it stays there */
	if (s->follows)
		memcpy(s->key, s->rows.row[to].c->key, sizeof(s->key));
}

static void type(struct screen *s, int key)
{
	size_t length = strlen(s->filter);

	if (key == '\n' || key == KEY_ENTER) {
		s->typing = false;
	} else if (key == ESCAPE) {
		s->typing = false;
		*s->filter = '\0';
	} else if (key == KEY_BACKSPACE || key == 127 || key == '\b') {
		if (length)
			s->filter[length - 1] = '\0';
	} else if (key < 256 && isprint(key) && length < FILTER_MOST) {
		s->filter[length] = (char)key;
		s->filter[length + 1] = '\0';
	}
}

/* False: enough. */
static bool press(struct screen *s, int key)
{
	int page = LINES > HEAD + 4 ? LINES - HEAD - 4 : 1;

	if (s->typing) {
		type(s, key);
		return true;
	}
	switch (key) {
	case 'q': return false;
	case KEY_UP:
	case 'k': move_cursor(s, -1); break;
	case KEY_DOWN:
	case 'j': move_cursor(s, 1); break;
	case KEY_PPAGE: move_cursor(s, -page); break;
	case KEY_NPAGE:
	case ' ': move_cursor(s, page); break;
	case KEY_HOME:
	case 'g': move_cursor(s, -(long)s->rows.n); break;
	case KEY_END:
	case 'G': move_cursor(s, (long)s->rows.n); break;
	case 's': s->attr.sort = (s->attr.sort + 1) % ROWS_SORTS; break;
	case 'r': s->attr.reverse = !s->attr.reverse; break;
	case '/': s->typing = true; break;
	case ESCAPE: *s->filter = '\0'; break;
	case 'p': s->paused = !s->paused; break;
	default: break;
	}
	return true;
}

/* Keys until it is time to look again; false: enough, or no memory, and `good` says which. */
static bool attend(struct screen *s, double seconds, bool *good)
{
	uint64_t end = s->looked + (uint64_t)(seconds * 1e9);

	while (!cmd_interrupted) {
		uint64_t now = util_now_ns();
		int key;

		if (now >= end && !s->paused)
			return true;
		timeout(s->paused ? 1000 : (int)((end - now) / 1000000) + 1);
		key = getch();
		if (key == ERR)
			continue;
		if (!press(s, key))
			return false;
		*good = arrange(s);
		if (!*good)
			return false;
		draw(s);
	}
	return false;
}

enum screen_end screen_run(const struct screen_attr *attr)
{
	struct screen s = { .attr = { .sort = attr->sort } };
	SCREEN *terminal = isatty(STDIN_FILENO) ? newterm(NULL, stdout, stdin) : NULL;
	bool good;
	int error;

	if (!terminal)
		return SCREEN_NONE;
	snprintf(s.filter, sizeof(s.filter), "%s", attr->filter ? attr->filter : "");
	cbreak();
	noecho();
	keypad(stdscr, TRUE);
	set_escdelay(50);
	do {
		good = look(&s);
		if (good)
			draw(&s);
	} while (good && attend(&s, attr->seconds, &good));
	error = errno;
	endwin();
	delscreen(terminal);
	rows_free(&s.rows);
	homes_free(&s.now);
	homes_free(&s.before);
	errno = error;
	return good ? SCREEN_GOOD : SCREEN_FAILED;
}
