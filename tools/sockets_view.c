/* SPDX-License-Identifier: MIT */
/*
 * A connection with both ends on this machine is one row, the end that connected on the left. In
 * JSON every end stands for itself.
 */
#include "sockets_view.h"

#include <stdlib.h>
#include <string.h>

#include "util.h"

enum column {
	LEFT,
	LEFT_ADDRESS,
	RIGHT,
	RIGHT_ADDRESS,
	WAY,
	BYTES_OUT,
	MESSAGES_OUT,
	RATE_OUT,
	BYTES_IN,
	MESSAGES_IN,
	RATE_IN,
	WHY,
	N_COLUMNS,
};

static const struct {
	const char *title;
	bool number, rate;
} columns[N_COLUMNS] = {
	[LEFT] = { "PROGRAM", false, false },      [LEFT_ADDRESS] = { "ADDRESS", false, false },
	[RIGHT] = { "PEER", false, false },        [RIGHT_ADDRESS] = { "ADDRESS", false, false },
	[WAY] = { "WAY", false, false },           [BYTES_OUT] = { "SENT", true, false },
	[MESSAGES_OUT] = { "CALLS", true, false }, [RATE_OUT] = { "PER SECOND", true, true },
	[BYTES_IN] = { "RECEIVED", true, false },  [MESSAGES_IN] = { "CALLS", true, false },
	[RATE_IN] = { "PER SECOND", true, true },  [WHY] = { "WHY TCP", false, false },
};

struct row {
	const struct homes_connection *left; /* for the order */
	const char *program;
	char cell[N_COLUMNS][UTIL_TEXT_MAX];
};

/* ---- rows ---- */

static uint64_t bytes(const struct homes_connection *c, const struct homes_flow *flow)
{
	return flow->lane_bytes + (c->known ? flow->tcp_bytes : 0);
}

/* How much of all that was moved went by the lane, in percent. */
static unsigned share(const struct homes_connection *c)
{
	uint64_t lane = c->sent.lane_bytes + c->received.lane_bytes;
	uint64_t all = bytes(c, &c->sent) + bytes(c, &c->received);

	return all ? (unsigned)((double)lane * 100 / (double)all) : 100;
}

static void set_rate(char text[UTIL_TEXT_MAX], const struct view *view, uint64_t now,
		     uint64_t before)
{
	double rate = now > before ? (double)(now - before) / view->seconds : 0;

	util_size_text(text, rate < 1e18 ? (uint64_t)rate : 0);
}

static void fill_rates(struct row *row, const struct view *view)
{
	const struct homes_connection *c = row->left, *old = homes_find(view->before, c);

	if (!old || old->cookie != c->cookie)
		return;
	set_rate(row->cell[RATE_OUT], view, bytes(c, &c->sent), bytes(old, &old->sent));
	set_rate(row->cell[RATE_IN], view, bytes(c, &c->received), bytes(old, &old->received));
}

static void fill(struct row *row, const struct view *view, const struct homes *h,
		 const struct homes_connection *c)
{
	const struct homes_connection *other = c->other == HOMES_NONE ? NULL
								      : &h->connections[c->other];
	const struct homes_process *p = &h->processes[c->process];

	row->left = c;
	row->program = p->program;
	snprintf(row->cell[LEFT], UTIL_TEXT_MAX, "%s[%d]", p->program, (int)p->pid);
	util_address_text(row->cell[LEFT_ADDRESS], &c->local);
	if (other) {
		p = &h->processes[other->process];
		snprintf(row->cell[RIGHT], UTIL_TEXT_MAX, "%s[%d]", p->program, (int)p->pid);
	} else {
		strcpy(row->cell[RIGHT], "-");
	}
	util_address_text(row->cell[RIGHT_ADDRESS], &c->peer);
	if (c->lane)
		snprintf(row->cell[WAY], UTIL_TEXT_MAX, "lane %u%%", share(c));
	else
		strcpy(row->cell[WAY], "tcp");
	if (c->known || c->lane) {
		util_size_text(row->cell[BYTES_OUT], bytes(c, &c->sent));
		util_size_text(row->cell[BYTES_IN], bytes(c, &c->received));
	}
	util_count_text(row->cell[MESSAGES_OUT], c->sent.messages);
	util_count_text(row->cell[MESSAGES_IN], c->received.messages);
	homes_reason(row->cell[WHY], UTIL_TEXT_MAX, c);
	if (view->before)
		fill_rates(row, view);
}

/* Of two ends that are both here, one: that which connected, else the first. */
static bool is_shown(const struct homes *h, size_t i)
{
	const struct homes_connection *c = &h->connections[i];

	if (c->other == HOMES_NONE || c->other == i)
		return true;
	if (c->active != h->connections[c->other].active)
		return c->active;
	return i < c->other;
}

static int by_program(const void *a, const void *b)
{
	const struct row *x = a, *y = b;
	int order = strcmp(x->program, y->program);

	if (!order)
		order = strcmp(x->cell[LEFT], y->cell[LEFT]);
	return order ? order : memcmp(x->left->key, y->left->key, sizeof(x->left->key));
}

/* ---- the table ---- */

static unsigned print_cell(const struct view *view, unsigned at, unsigned width, bool number,
			   const char *text)
{
	char cell[2 * UTIL_TEXT_MAX];

	snprintf(cell, sizeof(cell), number ? "%s%*s" : "%s%-*s", at ? "  " : "", (int)width, text);
	if (view->width && at >= view->width)
		return at;
	return at + (unsigned)fprintf(view->out, "%.*s",
				      view->width ? (int)(view->width - at) : (int)sizeof(cell),
				      cell);
}

static void print_row(const struct view *view, const unsigned widths[],
		      const char cells[N_COLUMNS][UTIL_TEXT_MAX])
{
	unsigned at = 0;

	for (int i = 0; i < N_COLUMNS; i++) {
		const char *text = cells ? cells[i] : columns[i].title;

		if (!widths[i])
			continue;
		/* The last one is not padded. */
		at = print_cell(view, at, i == WHY ? 0 : widths[i], columns[i].number, text);
	}
	fputs(view->end, view->out);
}

static void print_head(const struct view *view, const struct homes *h, size_t n_rows)
{
	size_t lanes = 0;

	for (size_t i = 0; i < h->n_connections; i++)
		lanes += h->connections[i].lane && is_shown(h, i);
	if (h->strange)
		fprintf(view->out,
			"%zu of your programs run%s with another version of the library%s",
			h->strange, h->strange == 1 ? "s" : "", view->end);
	if (!h->n_processes && !h->strange)
		fprintf(view->out,
			"no program of yours has TCP sockets under Flue; 'flue run PROGRAM' starts one%s",
			view->end);
	else
		fprintf(view->out, "%zu connection%s of %zu program%s, %zu in lanes%s", n_rows,
			n_rows == 1 ? "" : "s", h->n_processes, h->n_processes == 1 ? "" : "s",
			lanes, view->end);
}

/* Of the first `n` rows. 0: the column is left out. */
static void find_widths(const struct view *view, const struct row *rows, size_t n,
			unsigned widths[N_COLUMNS])
{
	/* What a narrow terminal can do without, first what is missed least. */
	static const enum column spare[] = { MESSAGES_IN, MESSAGES_OUT, RIGHT_ADDRESS,
					     LEFT_ADDRESS };
	unsigned all = 0;

	for (int i = 0; i < N_COLUMNS; i++) {
		if (columns[i].rate && !view->before)
			continue;
		widths[i] = (unsigned)strlen(columns[i].title);
		for (size_t k = 0; k < n; k++) {
			size_t length = strlen(rows[k].cell[i]);

			widths[i] = length > widths[i] ? (unsigned)length : widths[i];
		}
		if (i != WHY)
			all += widths[i] + 2;
	}
	for (size_t i = 0; i < sizeof(spare) / sizeof(spare[0]) && view->width && all > view->width;
	     i++) {
		all -= widths[spare[i]] + 2;
		widths[spare[i]] = 0;
	}
}

bool sockets_view_table(const struct view *view, const struct homes *h)
{
	struct row *rows = calloc(h->n_connections + 1, sizeof(*rows));
	unsigned widths[N_COLUMNS] = { 0 };
	size_t n = 0, most;

	if (!rows)
		return false;
	for (size_t i = 0; i < h->n_connections; i++) {
		if (is_shown(h, i))
			fill(&rows[n++], view, h, &h->connections[i]);
	}
	qsort(rows, n, sizeof(*rows), by_program);
	print_head(view, h, n);
	/* Two lines of heading, one for "more", one for the cursor. */
	most = view->height > 4 ? view->height - 4 : n;
	most = n < most ? n : most;
	find_widths(view, rows, most, widths);
	if (n)
		print_row(view, widths, NULL);
	for (size_t k = 0; k < most; k++)
		print_row(view, widths, rows[k].cell);
	if (most < n)
		fprintf(view->out, "... and %zu more%s", n - most, view->end);
	free(rows);
	return true;
}

/* ---- JSON ---- */

static json_t *number(uint64_t value)
{
	return json_integer((json_int_t)(value & INT64_MAX));
}

static json_t *address_json(const struct sockaddr_storage *address)
{
	char text[UTIL_TEXT_MAX];

	return json_string(util_address_text(text, address));
}

static json_t *flow_json(const struct homes_connection *c, const struct homes_flow *flow)
{
	return json_pack("{s:o, s:o, s:o}", "lane_bytes", number(flow->lane_bytes), "tcp_bytes",
			 c->known ? number(flow->tcp_bytes) : json_null(), "messages",
			 number(flow->messages));
}

static json_t *connection_json(const struct homes *h, const struct homes_connection *c)
{
	char reason[256];
	const struct homes_process *p = &h->processes[c->process], *peer = NULL;

	if (c->other != HOMES_NONE)
		peer = &h->processes[h->connections[c->other].process];
	return json_pack("{s:i, s:s, s:o, s:o, s:o, s:s?, s:s, s:s?, s:s?, s:s?, s:o, s:o}", "pid",
			 (int)p->pid, "program", p->program, "local", address_json(&c->local),
			 "peer", address_json(&c->peer), "peer_pid",
			 peer ? json_integer(peer->pid) : json_null(), "peer_program",
			 peer ? peer->program : NULL, "way", c->lane ? "lane" : "tcp", "why",
			 c->why, "explanation",
			 c->why ? homes_reason(reason, sizeof(reason), c) : NULL, "about",
			 *c->detail ? c->detail : NULL, "sent", flow_json(c, &c->sent), "received",
			 flow_json(c, &c->received));
}

json_t *sockets_view_json(const struct homes *h)
{
	json_t *connections = json_array(), *processes = json_array();

	for (size_t i = 0; i < h->n_processes; i++) {
		const struct homes_process *p = &h->processes[i];

		json_array_append_new(processes,
				      json_pack("{s:i, s:s, s:o, s:o, s:o}", "pid", (int)p->pid,
						"program", p->program, "connections_ended",
						number(p->connections), "lanes", number(p->lanes),
						"stepdowns", number(p->stepdowns)));
	}
	for (size_t i = 0; i < h->n_connections; i++)
		json_array_append_new(connections, connection_json(h, &h->connections[i]));
	return json_pack("{s:o, s:o, s:o}", "processes", processes, "connections", connections,
			 "other_versions", number(h->strange));
}
