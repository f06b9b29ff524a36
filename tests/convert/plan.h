/* SPDX-License-Identifier: MIT */
/*
 * The race test: what shall happen on each connection. Both processes and the relay draw the same
 * plan from seed and number of the connection; nothing of it goes over the wire.
 */
#ifndef FLUE_TESTS_CONVERT_PLAN_H
#define FLUE_TESTS_CONVERT_PLAN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WORKERS     20
#define MESSAGES    5 /* at most, and a last one that says good-bye */
#define MESSAGE_MAX 40000
#define WINDOW      5000 /* memory that the peer may reach */
#define STREAM_MAX  600000
#define BYE_LENGTH  5

enum pieces { WHOLE, OCTETS, RANDOM_PIECES };
enum order { A_FIRST, B_FIRST, AT_ONCE };
enum relay { DIRECT, RELAY_OCTETS, RELAY_GLUE };

/* Of one side. */
struct half {
	bool socket;    /* a flue_socket, else flue_socket_convert() */
	bool callback;  /* its events are told by calls */
	bool plain;     /* streams with the descriptor, not with the socket's send() and recv() */
	bool control;   /* the queue pair is the program's (CH-27) */
	bool over_read; /* what follows the stream is read with it and given as `early` */
	bool late_send; /* some streaming octets only after switch_mode() (CH-10) */
	bool waiting_recv;   /* a receive waits when the switch comes (CH-10) */
	bool lazy;           /* reads its stream only after a while (CH-11) */
	bool closes;         /* disconnects; else waits for the peer to do it */
	bool reaches;        /* put() and get() */
	enum pieces pieces;  /* of the stream */
	uint32_t stream;     /* octets to send in streaming mode */
	uint32_t messages;   /* to send in RDMA mode, before the good-bye */
	uint32_t conn_flags; /* enum flue_conn_flags */
};

struct plan {
	uint32_t index;
	bool raw;   /* without MPA request and reply */
	bool hurry; /* no pauses at all */
	int initiator;
	enum order order;
	enum relay relay;
	struct half half[2];
};

/* Shared by all processes. */
struct tally {
	struct {
		atomic_ullong stream_sent, stream_got, rdma_sent, rdma_got, early;
		atomic_uint done;
		struct {
			atomic_uint index, step;
		} at[WORKERS];
	} side[2];
	atomic_uint failures;
	char failure[512]; /* the first */
	uint16_t port[WORKERS], relay_port[WORKERS];
	uint64_t seed;
	uint32_t count;
};

uint64_t plan_random(uint64_t *state);
uint32_t plan_below(uint64_t *state, uint32_t n);
void plan_draw(struct plan *p, uint64_t seed, uint32_t index);
/* Length and seed of a message of a side. */
uint32_t plan_length(const struct plan *p, int side, uint32_t message);
uint32_t plan_pattern(const struct plan *p, int side, uint32_t message);
/* The stream's pattern. */
uint8_t plan_octet(const struct plan *p, int side, size_t at);
/* One line. */
void plan_print(const struct plan *p, char *text, size_t size);

/* relay.c: forwards the connections of one worker that go through a relay. */
struct relay_arg {
	struct tally *tally;
	uint32_t worker;
	int listener;
};
void *relay_main(void *arg);

#endif
