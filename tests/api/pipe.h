/* SPDX-License-Identifier: MIT */
/* Pipes: two RDMA sockets of this process. pipe.c makes and ends them, pipe_ops.c uses them. */
#ifndef FLUE_TESTS_API_PIPE_H
#define FLUE_TESTS_API_PIPE_H

#include "api.h"

#define PIPE_REQS       16
#define PIPE_MESSAGE    4096
#define PIPE_LIBRARY_AT (PIPE_REQS * PIPE_MESSAGE)
#define PIPE_TARGET_AT  (PIPE_LIBRARY_AT + PIPE_MESSAGE)
#define PIPE_MEMORY     (PIPE_TARGET_AT + PIPE_MESSAGE)
#define SWITCH_ID       ((uint64_t)1 << 60)

struct pipe_req {
	atomic_uint state, gen;
	uint32_t type; /* of its event */
	uint32_t length;
	uint64_t seed;
	uint8_t *at;
};

struct pipe_label {
	uint64_t library, seed;
	uint32_t length, unused;
};

struct pipe_side {
	struct pipe *pipe;
	int side;
	struct house *house;
	struct flue_socket *s;
	bool by_function, owns_fd, no_read, no_write;
	pthread_mutex_t taking;
	uint8_t *memory;
	struct flue_mr *library, *target;
	struct pipe_req reqs[PIPE_REQS];
	atomic_uint out, switched, ended;
	atomic_int error, credits;
	atomic_bool gone;
};

struct pipe {
	struct slot slot;
	uint32_t gen;
	atomic_bool spoilt;
	struct pipe_side sides[2];
};

extern struct pipe pipes[PIPES];

uint64_t pipe_library(const struct pipe_side *p);
void pipe_take(struct pipe_side *p, int timeout_ms);
struct pipe_req *pipe_reserve(struct pipe_side *p, uint32_t type);
uint64_t pipe_post(struct pipe_side *p, struct pipe_req *r);
void pipe_refuse(struct pipe_side *p, struct pipe_req *r);
void pipe_recv(struct pipe_side *p);

#endif
