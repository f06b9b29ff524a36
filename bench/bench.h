/* SPDX-License-Identifier: MIT */
/* flue_bench: one measurement per run, between this process and a child. */
#ifndef FLUE_BENCH_BENCH_H
#define FLUE_BENCH_BENCH_H

#include <stdbool.h>
#include <stdint.h>

#include "ep.h"

struct bench_args {
	const char *mode;
	int pin[2]; /* processors of the client and the server; -1: not pinned */
	uint64_t size, count, window;
	double seconds;
	bool no_crc, full;
	enum ep_wait wait;
	bool spin;     /* TCP: receive without blocking, in a loop */
	bool waitall;  /* TCP: receive whole messages with MSG_WAITALL */
	bool epoll;    /* TCP: sleep in epoll_wait, then receive */
	bool patient;  /* TCP: spin for as long as Flue's wait does, then block */
	bool exchange; /* TCP connect, conversion: a request and a reply on each connection */
};

/* Figures of a run; printed as JSON. Those that are 0 are left out. */
struct bench_result {
	double mib_per_s;
	double p50_us, p99_us, mean_us, min_us;
	double per_second;
	double client_bytes, server_bytes;
	uint64_t messages;
};

/* The child runs first and writes the port it listens on to fd; then the parent runs. Both return
 * 0 or, after a message, 1. */
struct bench_mode {
	const char *name;
	int (*serve)(const struct bench_args *args, int port_fd);
	int (*run)(const struct bench_args *args, uint16_t port, struct bench_result *result);
};

/* modes_tcp.c, modes_flue.c, modes_convert.c; each ends with an entry without a name. */
extern const struct bench_mode bench_tcp_modes[], bench_flue_modes[], bench_convert_modes[];

/* "bench: ...: errno" on stderr; returns 1. */
int bench_fail(const char *what);
bool bench_tell_port(int fd, uint16_t port);
uint64_t bench_resident(void); /* octets of memory this process has in RAM */

#endif
