/* SPDX-License-Identifier: MIT */
#include "rows.h"

#include <ctype.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const sorts[ROWS_SORTS] = { "rate", "bytes", "program", "pid", "port" };

const char *rows_sort_word(enum rows_sort sort)
{
	return sorts[sort];
}

enum rows_sort rows_sort_of(const char *word)
{
	enum rows_sort sort = 0;

	while (sort < ROWS_SORTS && strcmp(sorts[sort], word) != 0)
		sort++;
	return sort;
}

/* ---- filters ---- */

static uint16_t port_of(const struct sockaddr_storage *address)
{
	/* In the same place in both families. */
	return ntohs(((const struct sockaddr_in *)address)->sin_port);
}

static const struct homes_process *peer_of(const struct homes *h, const struct homes_connection *c)
{
	return c->other == HOMES_NONE ? NULL : &h->processes[h->connections[c->other].process];
}

static bool name_fits(const char *name, const char *word)
{
	char pattern[130];

	if (strpbrk(word, "*?"))
		snprintf(pattern, sizeof(pattern), "%s", word);
	else
		snprintf(pattern, sizeof(pattern), "*%s*", word);
	return fnmatch(pattern, name, FNM_CASEFOLD) == 0;
}

static bool program_fits(const struct homes *h, const struct homes_connection *c, const char *word)
{
	const struct homes_process *peer = peer_of(h, c);

	return name_fits(h->processes[c->process].program, word) ||
	       (peer && name_fits(peer->program, word)) ||
	       (!peer && *c->detail && name_fits(c->detail, word));
}

static bool pid_fits(const struct homes *h, const struct homes_connection *c, long number)
{
	const struct homes_process *peer = peer_of(h, c);

	return h->processes[c->process].pid == number || (peer && peer->pid == number);
}

static bool port_fits(const struct homes_connection *c, long number)
{
	return port_of(&c->local) == number || port_of(&c->peer) == number;
}

static bool word_fits(const struct homes *h, const struct homes_connection *c, const char *word)
{
	long number;
	char *end;

	if (strncmp(word, "program=", 8) == 0)
		return program_fits(h, c, word + 8);
	if (strncmp(word, "pid=", 4) == 0)
		return pid_fits(h, c, strtol(word + 4, NULL, 10));
	if (strncmp(word, "port=", 5) == 0)
		return port_fits(c, strtol(word + 5, NULL, 10));
	number = strtol(word, &end, 10);
	if (end != word && !*end)
		return pid_fits(h, c, number) || port_fits(c, number);
	return program_fits(h, c, word);
}

bool rows_match(const struct homes *h, const struct homes_connection *c, const char *filter)
{
	char words[128], *save, *word;

	snprintf(words, sizeof(words), "%s", filter ? filter : "");
	for (word = strtok_r(words, " ", &save); word; word = strtok_r(NULL, " ", &save))
		if (!word_fits(h, c, word))
			return false;
	return true;
}

/* ---- rows ---- */

static uint64_t octets(const struct homes_connection *c, const struct homes_flow *flow)
{
	return flow->lane_bytes + (c->known ? flow->tcp_bytes : 0);
}

unsigned rows_share(const struct row *row)
{
	uint64_t lane = row->c->sent.lane_bytes + row->c->received.lane_bytes;
	uint64_t all = row->out + row->in;

	return all ? (unsigned)((double)lane * 100 / (double)all) : 100;
}

static double rate(uint64_t now, uint64_t before, double seconds)
{
	return now > before && seconds > 0 ? (double)(now - before) / seconds : 0;
}

static void fill(struct row *row, const struct homes *h, const struct homes_connection *c,
		 const struct rows_attr *attr)
{
	const struct homes_connection *old = attr->before ? homes_find(attr->before, c) : NULL;

	*row = (struct row) { .c = c,
			      .program = &h->processes[c->process],
			      .peer = peer_of(h, c),
			      .port = port_of(c->active || !port_of(&c->local) ? &c->peer
									       : &c->local),
			      .counted = c->known || c->lane,
			      .out = octets(c, &c->sent),
			      .in = octets(c, &c->received) };
	if (!old || old->cookie != c->cookie)
		return;
	row->rated = true;
	row->rate_out = rate(row->out, octets(old, &old->sent), attr->seconds);
	row->rate_in = rate(row->in, octets(old, &old->received), attr->seconds);
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

/* ---- order ---- */

static int more_first(double a, double b)
{
	return a > b ? -1 : a < b;
}

static int by_program(const struct row *a, const struct row *b)
{
	int order = strcmp(a->program->program, b->program->program);

	return order ? order : (int)a->program->pid - (int)b->program->pid;
}

static int compare(const void *first, const void *second, void *arg)
{
	const struct rows_attr *attr = arg;
	const struct row *a = first, *b = second;
	int order = 0;

	switch (attr->sort) {
	case ROWS_RATE:
		order = more_first(a->rate_out + a->rate_in, b->rate_out + b->rate_in);
		break;
	case ROWS_BYTES:
		order = more_first((double)a->out + (double)a->in, (double)b->out + (double)b->in);
		break;
	case ROWS_PID: order = (int)a->program->pid - (int)b->program->pid; break;
	case ROWS_PORT: order = (int)a->port - (int)b->port; break;
	default: break;
	}
	if (!order)
		order = by_program(a, b);
	if (!order)
		order = memcmp(a->c->key, b->c->key, sizeof(a->c->key));
	return attr->reverse ? -order : order;
}

bool rows_make(struct rows *rows, const struct homes *h, const struct rows_attr *attr)
{
	struct rows_attr copy = *attr;

	*rows = (struct rows) { .row = calloc(h->n_connections + 1, sizeof(*rows->row)) };
	if (!rows->row)
		return false;
	for (size_t i = 0; i < h->n_connections; i++) {
		const struct homes_connection *c = &h->connections[i];

		if (!is_shown(h, i))
			continue;
		if (!rows_match(h, c, attr->filter)) {
			rows->hidden++;
			continue;
		}
		rows->lanes += c->lane;
		fill(&rows->row[rows->n++], h, c, attr);
	}
	qsort_r(rows->row, rows->n, sizeof(*rows->row), compare, &copy);
	return true;
}

void rows_free(struct rows *rows)
{
	free(rows->row);
	memset(rows, 0, sizeof(*rows));
}
