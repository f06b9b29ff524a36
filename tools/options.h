/* SPDX-License-Identifier: MIT */
/* Options that ping and perf share: an argp child. */
#ifndef FLUE_TOOLS_OPTIONS_H
#define FLUE_TOOLS_OPTIONS_H

#include <argp.h>

#include "ep.h"

struct options {
	bool server;
	const char *host;   /* the one argument */
	const char *listen; /* -l */
	const char *port;
	enum ep_wait wait;
	bool crc_set, no_crc;
	bool full;     /* service */
	uint32_t link; /* enum flue_link: the one it must be; 0: whichever */
	bool json;
	/* server */
	uint64_t clients, memory_max;
	bool quiet;
};

#define OPTIONS_DEFAULTS                                                            \
	{                                                                           \
		.port = UTIL_PORT, .wait = EP_WAIT, .memory_max = UINT64_C(1) << 30 \
	}

/* Its input is a struct options. */
extern const struct argp options_argp;

/* What the adapter is to be opened for. */
uint32_t options_links(const struct options *options);

/* Run the server these options describe; returns the exit status. */
int options_serve(const struct options *options);

#endif
