/* SPDX-License-Identifier: MIT */
/* flue perf: options, the list of tests, the server. */
#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd.h"
#include "perf.h"
#include "util.h"

#define SIZE_MAX_ARG (UINT64_C(64) << 20)

enum { KEY_SWEEP = 512, KEY_VERIFY, KEY_LIST };

static const struct argp_option options[] = {
	{ .doc = "What to measure:", .group = -1 },
	{ "op", 'o', "LIST", 0, "write, read, send or all; several with commas (write)", -1 },
	{ "test", 't', "TEST", 0, "latency, bandwidth or both (both)", -1 },
	{ "size", 'S', "SIZE", 0, "Bytes in a message, as 64, 4k, 1M (latency 64, bandwidth 1M)",
	  -1 },
	{ "sweep", KEY_SWEEP, "MIN:MAX", OPTION_ARG_OPTIONAL, "All powers of two (1:4M)", -1 },
	{ "all", 'a', NULL, 0, "The same as --sweep", -1 },
	{ "duration", 'd', "SECONDS", 0, "Time for each test (2, in a sweep 0.5)", -1 },
	{ "count", 'n', "N", 0, "End each test after N messages; with -d at whichever comes first",
	  -1 },
	{ "window", 'w', "N", 0, "Bandwidth: messages under way (64, at most 4 MiB, at least 2)",
	  -1 },
	{ "list", KEY_LIST, "N", 0, "Bandwidth: requests posted in one call, up to 64 (1)", -1 },
	{ "verify", KEY_VERIFY, NULL, 0, "Check the contents of every message; slower", -1 },
	{ 0 },
};

static void parse_ops(struct perf *p, const char *arg, struct argp_state *state)
{
	const char *rest = arg;

	while (*rest) {
		size_t length = strcspn(rest, ",");
		bool known = length == 3 && strncmp(rest, "all", 3) == 0;

		for (uint32_t op = 0; op < PROTO_NOPS; op++) {
			const char *name = proto_op_name(op);
			bool same = strlen(name) == length && strncmp(rest, name, length) == 0;

			p->ops[op] |= same || (length == 3 && strncmp(rest, "all", 3) == 0);
			known |= same;
		}
		if (!known)
			argp_error(state, "-o takes write, read, send or all, not '%s'", arg);
		rest += length + (rest[length] == ',');
	}
}

static void parse_test(struct perf *p, const char *arg, struct argp_state *state)
{
	bool both = strcmp(arg, "both") == 0;

	p->tests[PROTO_LATENCY] = both || strcmp(arg, "latency") == 0 || strcmp(arg, "lat") == 0;
	p->tests[PROTO_BANDWIDTH] = both || strcmp(arg, "bandwidth") == 0 || strcmp(arg, "bw") == 0;
	if (!p->tests[PROTO_LATENCY] && !p->tests[PROTO_BANDWIDTH])
		argp_error(state, "-t takes latency, bandwidth or both, not '%s'", arg);
}

static void parse_sweep(struct perf *p, char *arg, struct argp_state *state)
{
	char *colon;
	bool good;

	p->sweep = true;
	if (!arg)
		return;
	colon = strchr(arg, ':');
	if (colon)
		*colon = '\0';
	good = colon && util_parse_size(arg, 1, SIZE_MAX_ARG, &p->sweep_min) &&
	       util_parse_size(colon + 1, p->sweep_min, SIZE_MAX_ARG, &p->sweep_max);
	if (!good)
		argp_error(state, "--sweep takes MIN:MAX with sizes up to 64M, as 64:1M");
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct perf *p = state->input;

	switch (key) {
	case ARGP_KEY_INIT: state->child_inputs[0] = &p->common; break;
	case 'o': parse_ops(p, arg, state); break;
	case 't': parse_test(p, arg, state); break;
	case 'S':
		if (!util_parse_size(arg, 1, SIZE_MAX_ARG, &p->size))
			argp_error(state, "-S takes a size from 1 to 64M, not '%s'", arg);
		break;
	case 'a':
	case KEY_SWEEP: parse_sweep(p, arg, state); break;
	case 'd':
		if (!util_parse_seconds(arg, 0.001, 3600, &p->seconds))
			argp_error(state, "-d takes 0.001 to 3600 seconds, not '%s'", arg);
		break;
	case 'n':
		if (!util_parse_number(arg, 1, UINT64_C(1) << 48, &p->count))
			argp_error(state, "-n takes a number from 1, not '%s'", arg);
		break;
	case 'w':
		if (!util_parse_number(arg, 1, 1024, &p->window))
			argp_error(state, "-w takes a number from 1 to 1024, not '%s'", arg);
		break;
	case KEY_LIST:
		if (!util_parse_number(arg, 1, EP_LIST_MAX, &p->list))
			argp_error(state, "--list takes a number from 1 to 64, not '%s'", arg);
		break;
	case KEY_VERIFY: p->verify = true; break;
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
	.doc = "Measure latency and bandwidth of RDMA Writes, Reads and Sends between two processes.\v"
	       "Latency is the time of a round trip: a Send and its answer; a Write with a one-byte "
	       "Send behind it and the same back; a Read. Bandwidth counts until the server has "
	       "confirmed the last message.\n\n"
	       "Examples:\n"
	       "  flue perf --server                     on one machine\n"
	       "  flue perf otherhost                    on another\n"
	       "  flue perf otherhost -o all --sweep --json >results.json\n"
	       "  flue perf localhost -t latency --poll -S 8 -d 5\n",
};

static void show_progress(const struct session_test *t, uint64_t messages, uint64_t elapsed_ns,
			  void *arg)
{
	char size[UTIL_TEXT_MAX], count[UTIL_TEXT_MAX];

	(void)arg;
	fprintf(stderr, "\r%-5s %-9s %8s  %4.1f s  %s messages\033[K", proto_op_name(t->op),
		proto_what_name(t->what), util_size_text(size, t->size), (double)elapsed_ns / 1e9,
		util_count_text(count, messages));
}

static struct perf_row *add_row(struct perf_rows *rows)
{
	if (rows->n == rows->room) {
		size_t room = rows->room ? 2 * rows->room : 16;
		struct perf_row *bigger = realloc(rows->row, room * sizeof(*bigger));

		if (!bigger)
			return NULL;
		rows->row = bigger;
		rows->room = room;
	}
	memset(&rows->row[rows->n], 0, sizeof(rows->row[0]));
	return &rows->row[rows->n++];
}

void perf_free(struct perf_rows *rows)
{
	for (size_t i = 0; i < rows->n; i++)
		free(rows->row[i].result.hist);
	free(rows->row);
	memset(rows, 0, sizeof(*rows));
}

/* One test in an open session, with a short one before it so that nothing is cold. */
static bool run_one(const struct perf *p, struct session *s, uint32_t op, uint32_t what,
		    uint64_t size, struct perf_rows *rows)
{
	struct session_test warm,
		test = { .op = op, .what = what, .size = size, .verify = p->verify };
	struct session_result ignored = { 0 };
	struct perf_row *row = add_row(rows);

	if (row && what == PROTO_LATENCY)
		row->result.hist = malloc(sizeof(*row->result.hist));
	if (!row || (what == PROTO_LATENCY && !row->result.hist)) {
		snprintf(s->error, sizeof(s->error), "out of memory");
		return false;
	}
	test.window = p->window ? (uint32_t)p->window : session_default_window(size);
	if (what == PROTO_LATENCY)
		hist_init(row->result.hist);
	row->op = op;
	row->what = what;
	row->size = size;
	row->window = test.window;
	row->link = s->link;
	test.list = (uint32_t)p->list;
	test.stop = &cmd_interrupted;
	warm = test;
	/* A hundred small round trips warm everything; of large ones a few do, and cost enough. */
	warm.count = what == PROTO_LATENCY && size <= 65536 ? 100 : test.window;
	test.count = p->count;
	test.duration_ns = (uint64_t)(p->seconds * 1e9);
	if (isatty(STDERR_FILENO))
		test.progress = show_progress;
	if (!session_run(s, &warm, &ignored) || !session_run(s, &test, &row->result)) {
		free(row->result.hist);
		rows->n--;
		return false;
	}
	row->result.bad += ignored.bad;
	return true;
}

/* All tests of one size share a session. */
static bool run_size(const struct perf *p, const struct session_attr *base, uint32_t what,
		     uint64_t size, bool last, struct perf_rows *rows)
{
	struct session_attr attr = *base;
	struct session s;
	bool good;

	attr.slots = p->window ? (uint32_t)p->window : session_default_window(size);
	attr.slot_size = size;
	attr.send_size = p->ops[PROTO_SEND] ? size : 0;
	attr.more = !last;
	good = session_open(&s, &attr);
	for (uint32_t op = 0; good && op < PROTO_NOPS && !cmd_interrupted; op++) {
		if (p->ops[op])
			good = run_one(p, &s, op, what, size, rows);
	}
	if (isatty(STDERR_FILENO))
		fprintf(stderr, "\r\033[K");
	if (!good)
		util_error("%s", s.error);
	session_close(&s);
	return good;
}

static bool run_what(const struct perf *p, const struct session_attr *attr, uint32_t what,
		     bool last, struct perf_rows *rows)
{
	uint64_t size = p->size;
	bool good = true;

	if (!p->sweep) {
		if (!size)
			size = what == PROTO_LATENCY ? 64 : 1 << 20;
		return run_size(p, attr, what, size, last, rows);
	}
	for (size = p->sweep_min; good && size <= p->sweep_max && !cmd_interrupted; size *= 2)
		good = run_size(p, attr, what, size, last && size * 2 > p->sweep_max, rows);
	return good;
}

bool perf_run(const struct perf *p, struct flue_adapter *adapter, const struct sockaddr_storage *to,
	      socklen_t to_len, struct perf_rows *rows)
{
	struct session_attr attr = { .adapter = adapter,
				     .wait = p->common.wait,
				     .timeout_ms = 10000 };
	bool good = true;

	attr.remote = (const struct sockaddr *)to;
	attr.remote_len = to_len;
	attr.no_crc = p->common.no_crc;
	attr.full = p->common.full;
	attr.link = p->common.link;
	if (p->tests[PROTO_LATENCY])
		good = run_what(p, &attr, PROTO_LATENCY, !p->tests[PROTO_BANDWIDTH], rows);
	if (good && p->tests[PROTO_BANDWIDTH] && !cmd_interrupted)
		good = run_what(p, &attr, PROTO_BANDWIDTH, true, rows);
	return good;
}

static int run_client(const struct perf *p, struct flue_adapter *adapter)
{
	struct perf_rows rows = { 0 };
	struct sockaddr_storage to;
	char name[UTIL_TEXT_MAX];
	uint64_t bad = 0;
	socklen_t to_len;
	bool good;

	if (!util_resolve(p->common.host, p->common.port, &to, &to_len))
		return 1;
	util_address_text(name, &to);
	if (!p->common.json)
		printf("%s, %s, client %s\n", name,
		       p->common.full     ? "full service"
		       : p->common.no_crc ? "CRC off"
					  : "CRC on",
		       p->common.wait == EP_POLL ? "polls"
		       : p->common.wait == EP_FD ? "waits through a descriptor"
						 : "waits");
	good = perf_run(p, adapter, &to, to_len, &rows);
	if (p->common.json)
		perf_print_json(p, name, &rows);
	else
		perf_print_text(p, &rows);
	for (size_t i = 0; i < rows.n; i++)
		bad += rows.row[i].result.bad;
	if (bad)
		util_error("%llu messages had wrong contents", (unsigned long long)bad);
	perf_free(&rows);
	return good && !bad ? 0 : 1;
}

static void fill_defaults(struct perf *p)
{
	bool any = false;

	for (uint32_t op = 0; op < PROTO_NOPS; op++)
		any |= p->ops[op];
	p->ops[PROTO_WRITE] |= !any;
	if (!p->tests[PROTO_LATENCY] && !p->tests[PROTO_BANDWIDTH])
		p->tests[PROTO_LATENCY] = p->tests[PROTO_BANDWIDTH] = true;
	if (p->seconds == 0 && p->count == 0)
		p->seconds = p->sweep ? 0.5 : 2;
}

int cmd_perf(int argc, char **argv)
{
	struct perf perf = {
		.common = OPTIONS_DEFAULTS, .sweep_min = 1, .sweep_max = 4 << 20, .list = 1
	};
	struct flue_adapter *adapter;
	int status;

	if (argp_parse(&argp, argc, argv, 0, NULL, &perf))
		return 2;
	if (perf.common.server)
		return options_serve(&perf.common);
	fill_defaults(&perf);
	cmd_catch_interrupt();
	adapter = cmd_open_adapter(options_links(&perf.common));
	if (!adapter)
		return 1;
	status = run_client(&perf, adapter);
	flue_close(adapter);
	return status;
}
