/* SPDX-License-Identifier: MIT */
/* The server of `flue ping` and `flue perf`: a thread per client; proto.h has the conversation. */
#ifndef FLUE_TOOLS_SERVE_H
#define FLUE_TOOLS_SERVE_H

#include <stdio.h>

#include "ep.h"

struct serve_attr {
	struct flue_adapter *adapter; /* borrowed */
	const struct sockaddr *local;
	socklen_t local_len;
	enum ep_wait wait;
	bool full;           /* service */
	bool crc_always;     /* also when a client asks for none */
	uint64_t clients;    /* return after so many; 0: never */
	uint32_t at_once;    /* clients served at the same time; others are refused */
	uint64_t memory_max; /* octets granted to one client */
	FILE *log;           /* a line per test; NULL: none */
	/* Called once the server can be reached; may be NULL. */
	void (*listening)(const struct sockaddr_storage *local, void *arg);
	void *arg;
};

#define SERVE_MEMORY_MAX (UINT64_C(1) << 30)
#define SERVE_AT_ONCE    64

/* False after a message. */
bool serve(const struct serve_attr *attr);

#endif
