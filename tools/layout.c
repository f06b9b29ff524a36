/* SPDX-License-Identifier: MIT */
#include "layout.h"

#include <stdio.h>
#include <string.h>

#include "util.h"

#define NAME_LEAST 6  /* of a program's name, before all else is given up */
#define WHY_LEAST  24 /* less is not worth a column */
#define CELL       256

static const struct {
	const char *title;
	unsigned least;
	bool number;
} columns[LAYOUT_COLUMNS] = {
	[LAYOUT_PROGRAM] = { "PROGRAM", 8, false },
	[LAYOUT_PID] = { "PID", 5, true },
	[LAYOUT_ADDRESS] = { "ADDRESS", 15, false },
	[LAYOUT_PEER] = { "PEER", 8, false },
	[LAYOUT_PEER_PID] = { "PID", 5, true },
	[LAYOUT_PEER_ADDRESS] = { "ADDRESS", 15, false },
	[LAYOUT_PORT] = { "PORT", 5, true },
	[LAYOUT_WAY] = { "WAY", 14, false },
	[LAYOUT_RATE_OUT] = { "OUT/s", 8, true },
	[LAYOUT_RATE_IN] = { "IN/s", 8, true },
	[LAYOUT_SENT] = { "SENT", 8, true },
	[LAYOUT_RECEIVED] = { "RECEIVED", 8, true },
	[LAYOUT_WHY] = { "WHY TCP", WHY_LEAST, false },
};

/* ---- cells ---- */

/* "name[1]" in `text`: the name, or the number. */
static void part(char *out, const char *text, bool number)
{
	const char *bracket = strchr(text, '[');

	if (!bracket)
		*out = '\0';
	else if (number)
		snprintf(out, CELL, "%.*s", (int)strcspn(bracket + 1, "]"), bracket + 1);
	else
		snprintf(out, CELL, "(%.*s)", (int)(bracket - text), text);
}

/* The peer, in brackets if it is not under Flue but known. */
static void peer_cell(char *out, const struct row *row, bool number)
{
	const char *known = strrchr(row->c->detail, ' ');

	if (row->peer) {
		if (number)
			snprintf(out, CELL, "%d", (int)row->peer->pid);
		else
			snprintf(out, CELL, "%s", row->peer->program);
		return;
	}
	part(out, known ? known + 1 : row->c->detail, number);
	if (!*out)
		strcpy(out, "-");
}

static void way_cell(char *out, const struct row *row)
{
	if (row->c->lane)
		snprintf(out, CELL, "lane %u%%", rows_share(row));
	else
		snprintf(out, CELL, "tcp %s", row->c->why ? row->c->why : "");
}

static void size_cell(char *out, bool known, double octets)
{
	if (known)
		util_size_text(out, octets < 1e18 ? (uint64_t)octets : 0);
}

static void fill(char out[CELL], enum layout_column column, const struct row *row)
{
	*out = '\0';
	switch (column) {
	case LAYOUT_PROGRAM: snprintf(out, CELL, "%s", row->program->program); break;
	case LAYOUT_PID: snprintf(out, CELL, "%d", (int)row->program->pid); break;
	case LAYOUT_ADDRESS: util_address_text(out, &row->c->local); break;
	case LAYOUT_PEER: peer_cell(out, row, false); break;
	case LAYOUT_PEER_PID: peer_cell(out, row, true); break;
	case LAYOUT_PEER_ADDRESS: util_address_text(out, &row->c->peer); break;
	case LAYOUT_PORT: snprintf(out, CELL, "%u", row->port); break;
	case LAYOUT_WAY: way_cell(out, row); break;
	case LAYOUT_RATE_OUT: size_cell(out, row->rated, row->rate_out); break;
	case LAYOUT_RATE_IN: size_cell(out, row->rated, row->rate_in); break;
	case LAYOUT_SENT: size_cell(out, row->counted, (double)row->out); break;
	case LAYOUT_RECEIVED: size_cell(out, row->counted, (double)row->in); break;
	case LAYOUT_WHY: homes_reason(out, CELL, row->c); break;
	case LAYOUT_COLUMNS: break;
	}
}

/* ---- widths ---- */

static unsigned natural(const struct rows *rows, enum layout_column column)
{
	size_t width = columns[column].least;
	char cell[CELL];

	for (size_t i = 0; i < rows->n; i++) {
		fill(cell, column, &rows->row[i]);
		width = strlen(cell) > width ? strlen(cell) : width;
	}
	return (unsigned)width;
}

/* With the blank before it. */
static unsigned sum(const struct layout *l)
{
	unsigned all = 0;

	for (int i = 0; i < LAYOUT_COLUMNS; i++)
		all += l->widths[i] ? l->widths[i] + 1 : 0;
	return all ? all - 1 : 0;
}

void layout_make(struct layout *l, const struct rows *rows, unsigned width)
{
	static const enum layout_column needed[] = { LAYOUT_PROGRAM, LAYOUT_PID, LAYOUT_PEER,
						     LAYOUT_PORT,    LAYOUT_WAY, LAYOUT_RATE_OUT,
						     LAYOUT_RATE_IN };
	static const enum layout_column more[] = { LAYOUT_PEER_PID, LAYOUT_SENT, LAYOUT_RECEIVED,
						   LAYOUT_ADDRESS, LAYOUT_PEER_ADDRESS };

	*l = (struct layout) { .width = width < LAYOUT_MOST ? width : LAYOUT_MOST };
	for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++)
		l->widths[needed[i]] = natural(rows, needed[i]);
	/* Names may be cut before anything else; the details have them. */
	while (sum(l) > l->width) {
		enum layout_column longer = l->widths[LAYOUT_PEER] >= l->widths[LAYOUT_PROGRAM]
						    ? LAYOUT_PEER
						    : LAYOUT_PROGRAM;

		if (l->widths[longer] <= NAME_LEAST)
			return;
		l->widths[longer]--;
	}
	for (size_t i = 0; i < sizeof(more) / sizeof(more[0]); i++) {
		l->widths[more[i]] = natural(rows, more[i]);
		if (sum(l) > l->width) {
			l->widths[more[i]] = 0;
			return;
		}
	}
	if (sum(l) + 1 + WHY_LEAST <= l->width)
		l->widths[LAYOUT_WHY] = l->width - sum(l) - 1;
}

/* ---- lines ---- */

void layout_line(char out[LAYOUT_MOST + 1], const struct layout *l, const struct row *row)
{
	size_t at = 0;

	for (int i = 0; i < LAYOUT_COLUMNS && at < l->width; i++) {
		unsigned width = l->widths[i];
		char cell[CELL];

		if (!width)
			continue;
		if (row)
			fill(cell, (enum layout_column)i, row);
		else
			snprintf(cell, sizeof(cell), "%s", columns[i].title);
		if (strlen(cell) > width)
			strcpy(cell + width - 1, "~");
		at += (size_t)snprintf(out + at, LAYOUT_MOST + 1 - at,
				       columns[i].number ? "%s%*s" : "%s%-*s", at ? " " : "",
				       (int)width, cell);
	}
	out[at < l->width ? at : l->width] = '\0';
}

/* Adds to a text that ends in zero, as far as there is room. */
static void add(char *out, size_t size, const char *text)
{
	size_t at = strlen(out);

	snprintf(out + at, size - at, "%s", text);
}

static void add_flow(char *out, size_t size, const char *verb, uint64_t octets, bool counted,
		     uint64_t calls)
{
	char bytes[UTIL_TEXT_MAX] = "?", count[UTIL_TEXT_MAX];

	if (counted)
		util_size_text(bytes, octets);
	util_count_text(count, calls);
	add(out, size, verb);
	add(out, size, bytes);
	if (calls == 0) /* on TCP they are the kernel's */
		return;
	add(out, size, " in ");
	add(out, size, count);
	add(out, size, " calls");
}

void layout_details(char *out, size_t size, const struct row *row)
{
	char cell[CELL], text[CELL];

	snprintf(out, size, "%s[%d] %s", row->program->program, (int)row->program->pid,
		 util_address_text(text, &row->c->local));
	add(out, size, " to ");
	if (row->peer) {
		snprintf(cell, sizeof(cell), "%s[%d] ", row->peer->program, (int)row->peer->pid);
		add(out, size, cell);
	}
	add(out, size, util_address_text(text, &row->c->peer));
	way_cell(cell, row);
	add(out, size, "\n");
	add(out, size, row->c->lane ? cell : "tcp");
	add_flow(out, size, "; sent ", row->out, row->counted, row->c->sent.messages);
	add_flow(out, size, ", received ", row->in, row->counted, row->c->received.messages);
	if (!row->c->lane) {
		add(out, size, "\nwhy TCP: ");
		add(out, size, homes_reason(cell, sizeof(cell), row->c));
	}
}

size_t layout_wrap(const char *text, unsigned width, const char **next)
{
	size_t line = strcspn(text, "\n"), at = line;

	if (line > width) {
		/* At the last blank that fits, else in the middle of a word. */
		for (at = width; at > 0 && text[at] != ' '; at--)
			;
		at = at ? at : width;
	}
	*next = text + at + (text[at] == ' ' || text[at] == '\n');
	return at;
}
