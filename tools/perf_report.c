/* SPDX-License-Identifier: MIT */
/* flue perf: tables, the text histogram, JSON. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "perf.h"
#include "util.h"

#define DRAW_ROWS  16
#define DRAW_WIDTH 48

static const double percents[] = { 50, 90, 99, 99.9 };

#define N_PERCENTS (sizeof(percents) / sizeof(percents[0]))

double perf_mib_per_s(const struct perf_row *row)
{
	if (row->result.elapsed_ns == 0)
		return 0;
	return (double)row->result.bytes / (1 << 20) / ((double)row->result.elapsed_ns / 1e9);
}

/* A bar of `eighths` eighths of a character cell. */
static void print_bar(unsigned int eighths)
{
	static const char *const parts[] = { "", "▏", "▎", "▍", "▌", "▋", "▊", "▉" };
	bool utf8 = util_utf8();

	for (; eighths >= 8; eighths -= 8)
		fputs(utf8 ? "█" : "#", stdout);
	fputs(utf8 ? parts[eighths] : eighths >= 4 ? "#" : "", stdout);
}

void perf_draw(const struct hist *h, const char *indent)
{
	struct hist_bar bars[DRAW_ROWS];
	/* The slowest two percent would squeeze all others into one line. */
	uint64_t limit = hist_percentile(h, 98);
	size_t n = hist_bars(h, limit, bars, DRAW_ROWS);
	uint64_t most = 1;
	char text[UTIL_TEXT_MAX];

	for (size_t i = 0; i < n; i++)
		most = bars[i].count > most ? bars[i].count : most;
	for (size_t i = 0; i < n; i++) {
		unsigned int eighths = (unsigned int)(bars[i].count * DRAW_WIDTH * 8 / most);

		if (bars[i].count && !eighths)
			eighths = 1; /* seen at all */
		printf("%s%8.1f %s ", indent, (double)bars[i].low / 1e3, util_utf8() ? "│" : "|");
		print_bar(eighths);
		printf(" %s%s\n", util_count_text(text, bars[i].count),
		       i + 1 == n && bars[i].high >= h->max && h->max > limit ? " (this and slower)"
									      : "");
	}
}

static const char *link_name(uint32_t link)
{
	return link == FLUE_LINK_LOCAL ? "local" : link == FLUE_LINK_TCP ? "tcp" : "unknown";
}

static void print_latency(const struct perf_rows *rows)
{
	char text[UTIL_TEXT_MAX];
	bool any = false;

	for (size_t i = 0; i < rows->n; i++) {
		const struct perf_row *row = &rows->row[i];
		const struct hist *h = row->result.hist;

		if (row->what != PROTO_LATENCY)
			continue;
		if (!any)
			printf("\nround trip, %s   %9s %9s %9s %9s %9s %9s %10s\n",
			       util_utf8() ? "µs" : "us", "min", "median", "90 %", "99 %", "99.9 %",
			       "max", "messages");
		any = true;
		printf("%-5s %9s  %9.1f", proto_op_name(row->op), util_size_text(text, row->size),
		       h->count ? (double)h->min / 1e3 : 0.0);
		for (size_t k = 0; k < N_PERCENTS; k++)
			printf(" %9.1f", (double)hist_percentile(h, percents[k]) / 1e3);
		printf(" %9.1f %10s\n", (double)h->max / 1e3, util_count_text(text, h->count));
	}
}

static void print_bandwidth(const struct perf_rows *rows)
{
	char text[UTIL_TEXT_MAX];
	bool any = false;

	for (size_t i = 0; i < rows->n; i++) {
		const struct perf_row *row = &rows->row[i];
		double seconds = (double)row->result.elapsed_ns / 1e9;

		if (row->what != PROTO_BANDWIDTH)
			continue;
		if (!any)
			printf("\nbandwidth        %9s %9s %12s %7s %12s\n", "MiB/s", "Gbit/s",
			       "messages/s", "window", "messages");
		any = true;
		printf("%-5s %9s  %9.1f %9.2f", proto_op_name(row->op),
		       util_size_text(text, row->size), perf_mib_per_s(row),
		       (double)row->result.bytes * 8e-9 / seconds);
		printf(" %12s",
		       util_count_text(text, (uint64_t)((double)row->result.messages / seconds)));
		printf(" %7u %12s\n", row->window, util_count_text(text, row->result.messages));
	}
}

void perf_print_text(const struct perf *perf, const struct perf_rows *rows)
{
	char text[UTIL_TEXT_MAX];

	/* Of full service only: strict service knows no other. */
	if (rows->n && perf->common.full)
		printf("link: %s\n", rows->row[0].link == FLUE_LINK_LOCAL
					     ? "memory that both processes share"
					     : "TCP");
	print_latency(rows);
	for (size_t i = 0; i < rows->n && !perf->sweep; i++) {
		const struct perf_row *row = &rows->row[i];

		if (row->what != PROTO_LATENCY || row->result.hist->count == 0)
			continue;
		printf("\n%s of %s: round trips by %s\n", proto_op_name(row->op),
		       util_size_text(text, row->size), util_utf8() ? "µs" : "us");
		perf_draw(row->result.hist, "");
	}
	print_bandwidth(rows);
}

static json_t *latency_json(const struct hist *h)
{
	json_t *buckets = json_array(), *all;

	for (size_t i = 0; i < HIST_BUCKETS && h->count; i++) {
		if (h->bucket[i])
			json_array_append_new(buckets,
					      json_pack("[I, I, I]", (json_int_t)hist_bucket_low(i),
							(json_int_t)hist_bucket_high(i),
							(json_int_t)h->bucket[i]));
	}
	all = json_pack("{s:f, s:f, s:f, s:f, s:o}", "min", h->count ? (double)h->min / 1e3 : 0.0,
			"mean", hist_mean(h) / 1e3, "stddev", hist_stddev(h) / 1e3, "max",
			(double)h->max / 1e3, "histogram_ns", buckets);
	for (size_t k = 0; k < N_PERCENTS; k++) {
		char name[16];

		snprintf(name, sizeof(name), "p%g", percents[k]);
		json_object_set_new(all, name,
				    json_real((double)hist_percentile(h, percents[k]) / 1e3));
	}
	return all;
}

static json_t *row_json(const struct perf_row *row)
{
	double seconds = (double)row->result.elapsed_ns / 1e9;
	json_t *all = json_pack("{s:s, s:s, s:s, s:I, s:i, s:I, s:I, s:f, s:I}", "op",
				proto_op_name(row->op), "test", proto_what_name(row->what), "link",
				link_name(row->link), "size", (json_int_t)row->size, "window",
				row->what == PROTO_LATENCY ? 1 : (int)row->window, "messages",
				(json_int_t)row->result.messages, "bytes",
				(json_int_t)row->result.bytes, "seconds", seconds, "bad",
				(json_int_t)row->result.bad);

	if (row->what == PROTO_LATENCY) {
		json_object_set_new(all, "round_trip_us", latency_json(row->result.hist));
	} else {
		json_object_set_new(all, "mib_per_s", json_real(perf_mib_per_s(row)));
		json_object_set_new(all, "messages_per_s",
				    json_real((double)row->result.messages / seconds));
	}
	return all;
}

void perf_print_json(const struct perf *perf, const char *server, const struct perf_rows *rows)
{
	json_t *tests = json_array(), *all;

	for (size_t i = 0; i < rows->n; i++)
		json_array_append_new(tests, row_json(&rows->row[i]));
	all = json_pack("{s:s, s:s, s:s, s:s, s:b, s:b, s:s, s:I, s:o}", "schema", "flue.perf/1",
			"version", FLUE_VERSION, "server", server, "service",
			perf->common.full ? "full" : "strict", "crc", !perf->common.no_crc,
			"verify", perf->verify, "wait", ep_wait_name(perf->common.wait), "list",
			(json_int_t)perf->list, "tests", tests);
	json_dumpf(all, stdout, JSON_INDENT(2));
	putchar('\n');
	json_decref(all);
}
