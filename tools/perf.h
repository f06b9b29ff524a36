/* SPDX-License-Identifier: MIT */
/* flue perf: what is to be measured and what came out; perf.c measures, perf_report.c shows. */
#ifndef FLUE_TOOLS_PERF_H
#define FLUE_TOOLS_PERF_H

#include "hist.h"
#include "options.h"
#include "session.h"

struct perf {
	struct options common;
	bool ops[PROTO_NOPS], tests[PROTO_NWHATS];
	bool verify, sweep;
	uint64_t size; /* 0: 64 for latency, 1 MiB for bandwidth */
	uint64_t sweep_min, sweep_max;
	uint64_t count, window, list;
	double seconds; /* 0: only the count limits */
};

struct perf_row {
	uint32_t op, what;
	uint64_t size;
	uint32_t window;
	uint32_t link;                /* enum flue_link; 0: not known */
	struct session_result result; /* result.hist: own, freed by perf_free() */
};

struct perf_rows {
	struct perf_row *row;
	size_t n, room;
};

/* Measure all; false after a message, with the rows so far. */
bool perf_run(const struct perf *perf, struct flue_adapter *adapter,
	      const struct sockaddr_storage *to, socklen_t to_len, struct perf_rows *rows);
void perf_free(struct perf_rows *rows);

double perf_mib_per_s(const struct perf_row *row);

/* A text picture of a latency distribution, in lines that begin with `indent`. */
void perf_draw(const struct hist *h, const char *indent);
void perf_print_text(const struct perf *perf, const struct perf_rows *rows);
void perf_print_json(const struct perf *perf, const char *server, const struct perf_rows *rows);

#endif
