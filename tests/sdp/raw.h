/* SPDX-License-Identifier: MIT */
/*
 * A raw peer: speaks bare messages through the transport interface, so that a test can say
 * anything, at any time, and see every message of the engine. It keeps numbers, because without
 * them nothing would get far; a test may change each of them before it sends.
 */
#ifndef FLUE_TESTS_SDP_RAW_H
#define FLUE_TESTS_SDP_RAW_H

#include <pthread.h>

#include "sdp/bed.h"

#define RAW_QUEUE 256
#define RAW_MAX   2048 /* octets that are kept of a message */

struct raw_message {
	uint8_t octets[RAW_MAX];
	uint32_t len;
};

struct raw {
	struct oti_conn *conn;
	struct oti_listener *listener;
	/* Guards what up-calls write. */
	pthread_mutex_t lock;
	struct oti_request *request; /* unanswered */
	struct raw_message queue[RAW_QUEUE];
	unsigned head, count;
	bool up, down, accepted, failed;
	unsigned rooms; /* how often room was told */
	enum oti_down how;
	int error;
	uint32_t code;
	uint8_t data[512]; /* private data of the engine's */
	size_t data_len;
	/* Our Hello or HelloAck, as it will be sent; and the engine's. */
	struct sdp_hello ours, theirs;
	uint32_t bufs, buf_size; /* what is really posted */
	bool keep;               /* receive buffers are not posted again */
	struct oti_rx *kept;     /* the last of them */
	/* Numbers of the next message. */
	uint32_t mseq, ack;
	uint16_t say_bufs;
	uint32_t rx_next; /* MSeq that the engine should use next */
};

/* A value that up-calls change. */
#define LOCKED(r, value)                          \
	({                                        \
		__typeof__(value) locked_;        \
		pthread_mutex_lock(&(r)->lock);   \
		locked_ = (value);                \
		pthread_mutex_unlock(&(r)->lock); \
		locked_;                          \
	})

void raw_init(struct raw *r);
/* Lets go of everything. */
void raw_fini(struct raw *r);

/* ---- set-up ---- */

struct oti_conn_attr raw_attr(struct raw *r, const void *data, size_t len);
void raw_listen(struct raw *r);
/* Waits for a request and reads its Hello. */
void raw_await_request(struct raw *r);
/* Accepts with `ours` as HelloAck, or with any octets. */
void raw_accept(struct raw *r);
void raw_accept_octets(struct raw *r, const void *data, size_t len);
/* Connects with `ours` as Hello, or with any octets; does not wait. */
void raw_connect(struct raw *r, const struct oti_addr *to);
void raw_connect_octets(struct raw *r, const struct oti_addr *to, const void *data, size_t len);
/* The engine's HelloAck has come: reads it and confirms. */
void raw_confirm(struct raw *r);

/* An engine that is connected to this peer, by either of them. */
enum raw_role { RAW_LISTENS, RAW_CONNECTS };
struct raw_pair {
	struct raw raw;
	struct sdp_conn own; /* when it connected */
	struct bed_listener listener;
	struct sdp_conn *c;
	enum raw_role role;
};
void raw_open(struct raw_pair *p, enum raw_role role);
void raw_open_with(struct raw_pair *p, enum raw_role role, const struct sdp_attr *attr);
void raw_close(struct raw_pair *p);

/* ---- messages ---- */

/* With the next numbers; returns MSeq. */
uint32_t raw_say(struct raw *r, uint8_t mid);
uint32_t raw_say_msg(struct raw *r, struct sdp_msg *m, const void *payload);
uint32_t raw_data(struct raw *r, const void *payload, uint32_t len);
/* Exactly these octets. */
void raw_octets(struct raw *r, const void *octets, size_t len);
/* Headers of a message as they would be sent now. */
size_t raw_encode(struct raw *r, struct sdp_msg *m, uint8_t *to);

/* The next message; its numbers are checked. Waits. */
struct sdp_msg raw_next(struct raw *r, uint8_t *payload);
/* It must be this one. */
struct sdp_msg raw_expect(struct raw *r, uint8_t mid);
/* Nothing comes in the next moment. */
void raw_expect_quiet(struct raw *r);
/* Nothing but credit updates does. */
void raw_expect_no_more_than_credits(struct raw *r);
unsigned raw_waiting(struct raw *r);

/* The transport's connection ended. */
void raw_expect_down(struct raw *r);
/* The engine reset the connection because of what we did: no message, error, the transport cut. */
void raw_expect_violation(struct raw_pair *p);

#endif
