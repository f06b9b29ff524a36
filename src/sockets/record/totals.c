/* SPDX-License-Identifier: MIT */
#include "sockets/record/totals.h"

#include <stdio.h>

void totals_of(struct totals *t, const struct home *h)
{
	t->connections = h->connections;
	t->eligible = h->eligible;
	t->lanes = h->lanes;
	t->stepdowns = h->stepdowns;
	t->lane_tx = h->lane_tx;
	t->lane_rx = h->lane_rx;
	t->tcp_tx = h->tcp_tx;
	t->tcp_rx = h->tcp_rx;
}

void totals_add(struct totals *t, const struct rec *r)
{
	t->connections++;
	if (!(r->flags & REC_ELIGIBLE))
		return;
	t->lane_tx += r->sent.lane_bytes;
	t->lane_rx += r->received.lane_bytes;
	t->tcp_tx += r->sent.tcp_bytes;
	t->tcp_rx += r->received.tcp_bytes;
}

/* A program may have any name. */
static void quote(char *out, const char *text)
{
	for (; *text; text++) {
		unsigned char c = (unsigned char)*text;

		if (c == '"' || c == '\\')
			*out++ = '\\';
		*out++ = c < ' ' || c > '~' ? '?' : (char)c;
	}
	*out = '\0';
}

size_t totals_text(char out[TOTALS_MAX], const struct totals *t, int pid, const char *program)
{
	char name[2 * sizeof(((struct home *)0)->program) + 1];

	quote(name, program);
	return (size_t)snprintf(
		out, TOTALS_MAX,
		"{\"schema\":\"flue.stats/1\",\"version\":\"" FLUE_VERSION
		"\",\"pid\":%d,\"program\":\"%s\",\"connections\":%llu,\"eligible\":%llu,"
		"\"lanes\":%llu,\"stepdowns\":%llu,\"eligible_lane_tx\":%llu,"
		"\"eligible_lane_rx\":%llu,\"eligible_tcp_tx\":%llu,\"eligible_tcp_rx\":%llu}\n",
		pid, name, (unsigned long long)t->connections, (unsigned long long)t->eligible,
		(unsigned long long)t->lanes, (unsigned long long)t->stepdowns,
		(unsigned long long)t->lane_tx, (unsigned long long)t->lane_rx,
		(unsigned long long)t->tcp_tx, (unsigned long long)t->tcp_rx);
}
