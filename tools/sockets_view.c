/* SPDX-License-Identifier: MIT */
/* As a table each connection is a row; in JSON each end of it stands for itself. */
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

struct cells {
	char cell[N_COLUMNS][UTIL_TEXT_MAX];
	char why[256];
};

/* ---- the table ---- */

static void fill(struct cells *cells, const struct row *row)
{
	char(*cell)[UTIL_TEXT_MAX] = cells->cell;
	const struct homes_connection *c = row->c;

	snprintf(cell[LEFT], UTIL_TEXT_MAX, "%s[%d]", row->program->program,
		 (int)row->program->pid);
	util_address_text(cell[LEFT_ADDRESS], &c->local);
	if (row->peer)
		snprintf(cell[RIGHT], UTIL_TEXT_MAX, "%s[%d]", row->peer->program,
			 (int)row->peer->pid);
	else
		strcpy(cell[RIGHT], "-");
	util_address_text(cell[RIGHT_ADDRESS], &c->peer);
	if (c->lane)
		snprintf(cell[WAY], UTIL_TEXT_MAX, "lane %u%%", rows_share(row));
	else
		strcpy(cell[WAY], "tcp");
	if (row->counted) {
		util_size_text(cell[BYTES_OUT], row->out);
		util_size_text(cell[BYTES_IN], row->in);
	}
	util_count_text(cell[MESSAGES_OUT], c->sent.messages);
	util_count_text(cell[MESSAGES_IN], c->received.messages);
	if (row->rated) {
		util_size_text(cell[RATE_OUT], (uint64_t)row->rate_out);
		util_size_text(cell[RATE_IN], (uint64_t)row->rate_in);
	}
	homes_reason(cells->why, sizeof(cells->why), c);
}

static void print_row(const struct view *view, const unsigned widths[], const struct cells *cells)
{
	const char *between = "";

	for (int i = 0; i < N_COLUMNS; i++) {
		const char *text = cells ? cells->cell[i] : columns[i].title;

		if (!widths[i])
			continue;
		if (i == WHY) /* the last one is not padded */
			fprintf(view->out, "%s%s", between, cells ? cells->why : text);
		else
			fprintf(view->out, columns[i].number ? "%s%*s" : "%s%-*s", between,
				(int)widths[i], text);
		between = "  ";
	}
	fputc('\n', view->out);
}

void sockets_view_summary(char *out, size_t size, const struct homes *h, const struct rows *rows)
{
	if (!h->n_processes && !h->strange)
		snprintf(
			out, size,
			"no program of yours has TCP sockets under Flue; 'flue run PROGRAM' starts one");
	else
		snprintf(out, size, "%zu connection%s of %zu program%s, %zu in lanes", rows->n,
			 rows->n == 1 ? "" : "s", h->n_processes, h->n_processes == 1 ? "" : "s",
			 rows->lanes);
}

static void print_head(const struct view *view, const struct homes *h, const struct rows *rows)
{
	char text[160];

	if (h->strange)
		fprintf(view->out,
			"%zu of your programs run%s with another version of the library\n",
			h->strange, h->strange == 1 ? "s" : "");
	sockets_view_summary(text, sizeof(text), h, rows);
	fprintf(view->out, "%s", text);
	if (rows->hidden)
		fprintf(view->out, "; %zu not shown", rows->hidden);
	fputc('\n', view->out);
}

/* 0: the column is left out. */
static void find_widths(const struct view *view, const struct cells *cells, size_t n,
			unsigned widths[N_COLUMNS])
{
	for (int i = 0; i < N_COLUMNS; i++) {
		if (columns[i].rate && !view->rows.before)
			continue;
		widths[i] = (unsigned)strlen(columns[i].title);
		for (size_t k = 0; k < n; k++) {
			size_t length = strlen(cells[k].cell[i]);

			widths[i] = length > widths[i] ? (unsigned)length : widths[i];
		}
	}
}

bool sockets_view_table(const struct view *view, const struct homes *h)
{
	unsigned widths[N_COLUMNS] = { 0 };
	struct cells *cells;
	struct rows rows;
	bool good;

	if (!rows_make(&rows, h, &view->rows))
		return false;
	cells = calloc(rows.n + 1, sizeof(*cells));
	for (size_t i = 0; cells && i < rows.n; i++)
		fill(&cells[i], &rows.row[i]);
	if (cells) {
		print_head(view, h, &rows);
		find_widths(view, cells, rows.n, widths);
		if (rows.n)
			print_row(view, widths, NULL);
		for (size_t i = 0; i < rows.n; i++)
			print_row(view, widths, &cells[i]);
	}
	good = cells != NULL;
	rows_free(&rows);
	free(cells);
	return good;
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

json_t *sockets_view_json(const struct homes *h, const char *filter)
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
		if (rows_match(h, &h->connections[i], filter))
			json_array_append_new(connections, connection_json(h, &h->connections[i]));
	return json_pack("{s:s, s:s, s:o, s:o, s:o}", "schema", "flue.sockets/1", "version",
			 FLUE_VERSION, "processes", processes, "connections", connections,
			 "other_versions", number(h->strange));
}
