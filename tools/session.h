/* SPDX-License-Identifier: MIT */
/* The client of `flue ping`, `flue perf` and the benchmarks; proto.h has the conversation. */
#ifndef FLUE_TOOLS_SESSION_H
#define FLUE_TOOLS_SESSION_H

#include <signal.h>

#include "ep.h"
#include "hist.h"
#include "proto.h"

struct session_attr {
	struct flue_adapter *adapter; /* borrowed */
	const struct sockaddr *remote;
	socklen_t remote_len;
	enum ep_wait wait;
	bool no_crc;   /* the server must agree, and Flue's does unless told otherwise */
	bool full;     /* service */
	uint32_t link; /* enum flue_link: it must go this way; 0: whichever */
	bool more;     /* another session will follow; see --once of the server */
	uint32_t slots;
	uint64_t slot_size; /* largest one-sided message */
	uint64_t send_size; /* largest Send; 0: none */
	int timeout_ms;
};

struct session {
	struct ep ep;
	struct ep_memory data; /* source of what we send, sink of what we read: slots * slot_size */
	struct ep_memory back; /* target of the server's Writes */
	struct ep_memory rx;   /* receives */
	struct ep_memory tx;   /* our own messages */
	struct proto_memory remote;
	uint32_t slots;
	size_t slot_size, rx_size;
	uint32_t in_use; /* slots of the running test */
	uint32_t link;   /* enum flue_link: how it goes; 0: not known */
	uint64_t credit;
	struct flue_wc last; /* round trips of Sends: the answer whose receive is still owed */
	bool owed;
	int timeout_ms;
	char error[320]; /* after a failure: what happened, for people */
};

struct session_test {
	uint32_t op, what; /* enum proto_op, proto_what */
	uint64_t size;
	uint32_t window;
	uint32_t slots; /* one-sided: places in turn; 0: as many as the window */
	uint32_t list;  /* bandwidth: requests posted in one call, up to EP_LIST_MAX; 0: 1 */
	bool verify;
	/* The test ends at whichever limit comes first; 0: not limited by that. */
	uint64_t count, duration_ns;
	uint64_t warmup; /* latency: round trips not counted */
	/* Latency: round trips between two looks at the clock, whose cost would be part of short ones; what
	 * is counted is their mean. 0: 1. Not with verification, which would be counted too. */
	uint32_t batch;
	const volatile sig_atomic_t *stop; /* may be NULL; true: end the test early */
	/* Called about ten times a second; may be NULL. */
	void (*progress)(const struct session_test *test, uint64_t messages, uint64_t elapsed_ns,
			 void *arg);
	void *arg;
};

struct session_result {
	uint64_t messages, bytes, elapsed_ns;
	uint64_t calls;    /* that posted requests, the test's first and last word among them */
	uint64_t bad;      /* messages with wrong contents, found by either side */
	struct hist *hist; /* latency: round trips in ns. Caller's; NULL: not wanted */
};

/* All: false and s->error on failure. */
bool session_open(struct session *s, const struct session_attr *attr);
void session_close(struct session *s); /* orderly if possible; also after a failed open */
bool session_run(struct session *s, const struct session_test *t, struct session_result *result);

/* The parts of a run, for those who want to look in between. */
bool session_begin(struct session *s, const struct session_test *t);
bool session_round_trip(struct session *s, const struct session_test *t, uint64_t k, uint64_t *ns,
			bool *good);
bool session_end(struct session *s, struct proto_msg *report);

/* A window that keeps the pipe full without leaving the caches: 64, at most 4 MiB, at least 2. */
uint32_t session_default_window(uint64_t size);

/* measure.c */
bool session_fail(struct session *s, const char *when);
bool session_say(struct session *s, const struct proto_msg *msg);
bool session_hear(struct session *s, uint32_t kind, struct proto_msg *msg);
/* Wait for any message; its bytes stay valid until session_repost(). */
bool session_take(struct session *s, struct flue_wc *wc, const uint8_t **data);
bool session_repost(struct session *s, const struct flue_wc *wc);

#endif
