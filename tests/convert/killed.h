/* SPDX-License-Identifier: MIT */
/* The kill test: a side that goes on whatever happens to its peer, and counts what it is told. */
#ifndef FLUE_TESTS_CONVERT_KILLED_H
#define FLUE_TESTS_CONVERT_KILLED_H

#include <flue/flue.h>
#include <pthread.h>

struct kill_plan {
	uint32_t index, delay_us;
	bool raw, callback;
	int initiator;
	bool socket[2], closes[2]; /* [0]: the survivor, [1]: the victim */
};

/* How far the survivor came. */
enum { KILLED_STREAMING, KILLED_CONVERTING, KILLED_RDMA, KILLED_ENDED, KILLED_NPHASES };

struct killed {
	const struct kill_plan *plan;
	int which;
	struct flue_adapter *adapter;
	struct flue_pd *pd;
	struct flue_cq *cq;
	struct flue_mr *mr;
	uint8_t memory[4096];

	/* of the connection */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	uint32_t told[16]; /* how often, by type */
	uint32_t after_end, reason;
	const char *wrong;

	uint32_t phases[KILLED_NPHASES];
};

bool killed_open(struct killed *k);
/* Text, conversion, a message each way, the end. Sets k->wrong to what should not have happened. */
void killed_run(struct killed *k, int fd);
bool killed_close(struct killed *k);

#endif
