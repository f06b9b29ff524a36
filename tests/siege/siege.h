/* SPDX-License-Identifier: MIT */
/* What the programs of the siege agree on. */
#ifndef TESTS_SIEGE_SIEGE_H
#define TESTS_SIEGE_SIEGE_H

#include <stdatomic.h>
#include <stdint.h>

/* A request: these eight octets, and for an echo so many more. */
struct request {
	uint32_t what;
	uint32_t size;
};

#define REQUEST_ECHO 0x6f686365u /* answered with the same octets */
#define REQUEST_BULK 0x6b6c7562u /* answered with `size` octets of the flow below */
#define REQUEST_MOST (64u << 20)
#define BULK_KEY     0x6275626c6bull

/* Calls of the server that must not wait for anybody, and its sleep, which must not be longer than it asked for. */
enum timed {
	TIMED_ACCEPT,
	TIMED_RECEIVE,
	TIMED_SEND,
	TIMED_CONTROL,
	TIMED_CLOSE,
	TIMED_SLEEP,
	TIMED
};

/* A file that the server writes and the judge reads: nanoseconds of the longest of each. */
struct page {
	_Atomic uint64_t slowest[TIMED];
	_Atomic uint64_t rounds; /* of its loop */
};

#endif
