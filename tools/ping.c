/* SPDX-License-Identifier: MIT */
/* flue ping: Sends and their answers, one line each, like ping(8). */
#include <argp.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "cmd.h"
#include "options.h"
#include "session.h"
#include "util.h"

struct ping {
	struct options common;
	uint64_t count, size;
	double interval;
};

static const struct argp_option options[] = {
	{ "count", 'c', "N", 0, "Stop after N round trips", 0 },
	{ "interval", 'i', "SECONDS", 0, "Time between two (1); 0: as fast as possible", 0 },
	{ "size", 'S', "SIZE", 0, "Bytes in a message (56)", 0 },
	{ 0 },
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct ping *p = state->input;

	switch (key) {
	case ARGP_KEY_INIT: state->child_inputs[0] = &p->common; break;
	case 'c':
		if (!util_parse_number(arg, 1, UINT64_MAX, &p->count))
			argp_error(state, "-c takes a number from 1, not '%s'", arg);
		break;
	case 'i':
		if (!util_parse_seconds(arg, 0, 60, &p->interval))
			argp_error(state, "-i takes 0 to 60 seconds, not '%s'", arg);
		break;
	case 'S':
		if (!util_parse_size(arg, 1, 16 << 20, &p->size))
			argp_error(state, "-S takes a size from 1 to 16M, not '%s'", arg);
		break;
	default: return ARGP_ERR_UNKNOWN;
	}
	return 0;
}

static const struct argp_child children[] = { { &options_argp, 0, NULL, 0 }, { 0 } };

static const struct argp argp = {
	.options = options,
	.parser = parse,
	.children = children,
	.args_doc = "HOST\n--server",
	.doc = "Measure round trips of RDMA Sends to a flue server. The contents of every message are "
	       "checked on both sides.\v"
	       "Examples:\n"
	       "  flue ping --server              on one machine (or 'flue perf --server')\n"
	       "  flue ping otherhost             on another\n"
	       "  flue ping -c 1000 -i 0 localhost --poll\n",
};

static void sleep_until(uint64_t ns)
{
	struct timespec at = { .tv_sec = (time_t)(ns / 1000000000),
			       .tv_nsec = (long)(ns % 1000000000) };

	/* Interrupted only by the signal that ends us. */
	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
}

static bool ping_all(const struct ping *p, struct session *s, const char *name, struct hist *hist,
		     uint64_t *bad)
{
	struct session_test test = { .op = PROTO_SEND, .what = PROTO_LATENCY, .verify = true };
	uint64_t next = util_now_ns(), ns;
	char time_text[UTIL_TEXT_MAX];
	struct proto_msg report;
	bool good;

	test.size = p->size;
	test.window = 1;
	if (!session_begin(s, &test))
		return false;
	for (uint64_t k = 0; !cmd_interrupted && (p->count == 0 || k < p->count); k++) {
		if (k > 0 && p->interval > 0) {
			next += (uint64_t)(p->interval * 1e9);
			sleep_until(next);
			if (cmd_interrupted)
				break;
		}
		if (!session_round_trip(s, &test, k, &ns, &good))
			return false;
		hist_add(hist, ns);
		*bad += !good;
		if (!p->common.json)
			printf("%llu bytes from %s: seq=%llu time=%s%s\n",
			       (unsigned long long)p->size, name, (unsigned long long)k + 1,
			       util_time_text(time_text, (double)ns),
			       good ? "" : " WRONG CONTENTS");
	}
	if (!session_end(s, &report))
		return false;
	*bad += report.u.report.bad;
	return true;
}

static void print_summary(const char *host, const struct hist *h, uint64_t bad)
{
	char min[UTIL_TEXT_MAX], mean[UTIL_TEXT_MAX], p50[UTIL_TEXT_MAX], max[UTIL_TEXT_MAX];

	printf("\n--- %s: %llu round trips", host, (unsigned long long)h->count);
	if (bad)
		printf(", %llu with WRONG CONTENTS", (unsigned long long)bad);
	printf(" ---\n");
	if (h->count)
		printf("min/median/mean/max = %s / %s / %s / %s\n",
		       util_time_text(min, (double)h->min),
		       util_time_text(p50, (double)hist_percentile(h, 50)),
		       util_time_text(mean, hist_mean(h)), util_time_text(max, (double)h->max));
}

static void print_json(const char *host, const struct ping *p, const struct hist *h, uint64_t bad)
{
	json_t *all = json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:f, s:f, s:f, s:f}", "schema",
				"flue.ping/1", "version", FLUE_VERSION, "host", host, "size",
				(json_int_t)p->size, "round_trips", (json_int_t)h->count, "bad",
				(json_int_t)bad, "min_us", h->count ? (double)h->min / 1e3 : 0.0,
				"median_us", (double)hist_percentile(h, 50) / 1e3, "mean_us",
				hist_mean(h) / 1e3, "max_us", (double)h->max / 1e3);

	json_dumpf(all, stdout, JSON_INDENT(2));
	putchar('\n');
	json_decref(all);
}

static int run_client(const struct ping *p, struct flue_adapter *adapter)
{
	struct session_attr attr = { .adapter = adapter, .wait = p->common.wait, .slots = 1 };
	static struct hist hist;
	struct sockaddr_storage to;
	struct session s;
	char name[UTIL_TEXT_MAX];
	uint64_t bad = 0;
	bool good;

	if (!util_resolve(p->common.host, p->common.port, &to, &attr.remote_len))
		return 1;
	attr.remote = (const struct sockaddr *)&to;
	attr.no_crc = p->common.no_crc;
	attr.full = p->common.full;
	attr.link = p->common.link;
	attr.slot_size = attr.send_size = p->size;
	attr.timeout_ms = 10000;
	hist_init(&hist);
	util_address_text(name, &to);
	good = session_open(&s, &attr) && ping_all(p, &s, name, &hist, &bad);
	if (!good)
		util_error("%s", s.error);
	session_close(&s);
	if (p->common.json)
		print_json(p->common.host, p, &hist, bad);
	else if (good || hist.count)
		print_summary(p->common.host, &hist, bad);
	return good && !bad && hist.count ? 0 : 1;
}

int cmd_ping(int argc, char **argv)
{
	struct ping ping = { .common = OPTIONS_DEFAULTS, .size = 56, .interval = 1 };
	struct flue_adapter *adapter;
	int status;

	if (argp_parse(&argp, argc, argv, 0, NULL, &ping))
		return 2;
	if (ping.common.server)
		return options_serve(&ping.common);
	setvbuf(stdout, NULL, _IOLBF, 0);
	cmd_catch_interrupt();
	adapter = cmd_open_adapter(options_links(&ping.common));
	if (!adapter)
		return 1;
	status = run_client(&ping, adapter);
	flue_close(adapter);
	return status;
}
