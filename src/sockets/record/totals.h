/* SPDX-License-Identifier: MIT */
/* What a process has moved in all, as one line of JSON. Written by the library, or by who outlives it. */
#ifndef FLUE_SOCKETS_TOTALS_H
#define FLUE_SOCKETS_TOTALS_H

#include <stddef.h>

#include "sockets/record/home.h"

#define TOTALS_MAX 768

struct totals {
	uint64_t connections, eligible, lanes, stepdowns;
	uint64_t lane_tx, lane_rx, tcp_tx, tcp_rx;
};

/* Those of connections that are gone. */
void totals_of(struct totals *totals, const struct home *h);
/* One that is still there. */
void totals_add(struct totals *totals, const struct rec *r);
/* With a newline at its end. The length. */
size_t totals_text(char out[TOTALS_MAX], const struct totals *totals, int pid, const char *program);

#endif
