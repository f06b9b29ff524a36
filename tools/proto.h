/* SPDX-License-Identifier: MIT */
/*
 * What the two ends of `flue ping` and `flue perf` say to each other.
 *
 * A session is one connection. HELLO and WELCOME travel as private data of the connection request and its
 * reply, REFUSAL as that of a reject; everything else is a Send. All numbers are big-endian.
 *
 *   client                                server
 *   HELLO (memory it wants)        -->
 *                                  <--    WELCOME (address and key of that memory), or REFUSAL
 *   TEST (operation, size, ...)    -->                               for each test:
 *                                  <--    READY
 *     ... the test itself, see below ...
 *   empty message                  -->
 *                                  <--    REPORT (messages, bytes, faults found)
 *   closes
 *
 * While a test runs (data = any message that is not empty):
 *   send, latency      data --> <-- data of the same size
 *   send, bandwidth    data -->, at most `window` of them without credit; <-- CREDIT (total so far)
 *   write, latency     Write + 1 byte of data --> <-- Write into the client's memory + 1 byte
 *   write, bandwidth   Writes; with verification after each batch CHECK --> <-- REPORT
 *   read               Reads; the server's program does nothing
 * Message k of a one-sided test uses slot k modulo the test's `slots`. With verification message k holds
 * pattern(k), see pattern.h; the memory to be read holds pattern(slot).
 *
 * Every field from the peer is checked here for what it can mean at all, and by the receiver for what
 * it has agreed to.
 */
#ifndef FLUE_TOOLS_PROTO_H
#define FLUE_TOOLS_PROTO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PROTO_VERSION   1
#define PROTO_MAX       256 /* octets in any message of this protocol; a receive must hold it */
#define PROTO_TEXT_MAX  200
#define PROTO_SLOTS_MAX 4096
#define PROTO_SLOT_MAX  (UINT64_C(1) << 30)

/* Flags of HELLO */
#define PROTO_HELLO_NO_CRC 1u
#define PROTO_HELLO_MORE   2u /* another session of the same client follows */
#define PROTO_HELLO_FLAGS  3u

enum proto_kind {
	PROTO_HELLO = 1,
	PROTO_WELCOME,
	PROTO_REFUSAL,
	PROTO_TEST,
	PROTO_READY,
	PROTO_CHECK,
	PROTO_REPORT,
	PROTO_CREDIT,
	PROTO_NKINDS,
};

enum proto_op { PROTO_SEND, PROTO_WRITE, PROTO_READ, PROTO_NOPS };
enum proto_what { PROTO_LATENCY, PROTO_BANDWIDTH, PROTO_NWHATS };

/* A piece of memory of the one who says it. length 0: none. */
struct proto_memory {
	uint64_t addr, length;
	uint32_t rkey;
};

struct proto_msg {
	uint32_t kind; /* enum proto_kind; decides which member counts */
	union {
		struct {
			uint32_t flags; /* PROTO_HELLO_* */
			uint32_t slots; /* 1 to PROTO_SLOTS_MAX */
			uint64_t
				slot_size; /* one-sided memory: slots * slot_size; 1 to PROTO_SLOT_MAX */
			uint64_t send_size; /* longest data message, 0 to PROTO_SLOT_MAX */
		} hello;
		struct proto_memory welcome;
		char refusal[PROTO_TEXT_MAX + 1]; /* printable */
		struct {
			uint32_t op, what; /* enum proto_op, proto_what */
			bool verify;
			uint32_t window; /* 1 to PROTO_SLOTS_MAX */
			uint32_t slots;  /* 1 to PROTO_SLOTS_MAX; one-sided: places to use */
			uint64_t size;   /* 1 to PROTO_SLOT_MAX */
			struct proto_memory back; /* for the Writes back of write latency */
		} test;
		struct {
			uint64_t first;
			uint32_t count;
		} check;
		struct {
			uint64_t messages, bytes, bad;
		} report;
		uint64_t credit;
	} u;
};

/* Returns the length, at most PROTO_MAX. */
size_t proto_encode(const struct proto_msg *msg, uint8_t out[PROTO_MAX]);
/* False: not a message of this protocol and version, or a field is impossible. */
bool proto_decode(const void *data, size_t length, struct proto_msg *msg);

const char *proto_op_name(uint32_t op);
const char *proto_what_name(uint32_t what);

#endif
