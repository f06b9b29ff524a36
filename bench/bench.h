/* SPDX-License-Identifier: MIT */
/* flue_bench: one measurement per run, between this process and a child. */
#ifndef FLUE_BENCH_BENCH_H
#define FLUE_BENCH_BENCH_H

#include <stdalign.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "ep.h"

/* Memory that client and server both have mapped, made before the server starts. Behind it, from
 * bench_area() on, there are two areas of the message's size. */
struct bench_shared {
	alignas(128) uint64_t seen;   /* by the target of Writes: how many */
	alignas(128) uint64_t target; /* where its memory is */
	alignas(128) char end[1];
};

struct bench_args {
	const char *mode;
	int pin[2]; /* processors of the client and the server; -1: not pinned */
	uint64_t size, count, window, list;
	uint64_t batch; /* round trips between two looks at the clock */
	double seconds, idle;
	bool no_crc, full;
	uint32_t link;      /* enum flue_link: the one it must be; 0: whichever */
	bool no_process_vm; /* the kernel refuses process_vm_readv() and process_vm_writev() */
	bool self;          /* the server is a thread of the client */
	enum ep_wait wait;
	bool spin;     /* TCP: receive without blocking, in a loop */
	bool waitall;  /* TCP: receive whole messages with MSG_WAITALL */
	bool epoll;    /* TCP: sleep in epoll_wait, then receive */
	bool patient;  /* TCP: spin for as long as Flue's wait does, then block */
	bool exchange; /* TCP connect, conversion: a request and a reply on each connection */
	/* Filled by main(): */
	pid_t server;
	struct bench_shared *shared;
};

/* Figures of a run; printed as JSON. Those that are 0 are left out. */
struct bench_result {
	double mib_per_s;
	double p50_us, p99_us, mean_us, min_us;
	double per_second;
	double client_bytes, server_bytes;
	double idle_us; /* processor time of both in a second in which nothing is asked for */
	bool idle;      /* ... which was measured: it may be 0 */
	uint64_t messages, calls; /* calls that posted requests */
};

/* The child runs first and writes the port it listens on to fd; then the parent runs. Both return
 * 0 or, after a message, 1. */
struct bench_mode {
	const char *name;
	int (*serve)(const struct bench_args *args, int port_fd);
	int (*run)(const struct bench_args *args, uint16_t port, struct bench_result *result);
};

/* modes_*.c; each ends with an entry without a name. */
extern const struct bench_mode bench_tcp_modes[], bench_flue_modes[], bench_convert_modes[],
	bench_memory_modes[], bench_pair_modes[];

/* "bench: ...: errno" on stderr; returns 1. */
int bench_fail(const char *what);
bool bench_tell_port(int fd, uint16_t port);
uint8_t *bench_area(const struct bench_args *args, int which); /* 0 or 1 */
struct hist;
void bench_take_hist(struct bench_result *result, const struct hist *hist);
uint64_t bench_resident(void); /* octets of memory this process has in RAM */

#endif
