/* SPDX-License-Identifier: MIT */
/* Shared by side.c (objects, commands) and side_poll.c (what it hears). */
#ifndef FLUE_TESTS_MODEL_SIDE_H
#define FLUE_TESTS_MODEL_SIDE_H

#include <pthread.h>

#include "model/model.h"

/* As many as functions of ours may have been called with between two looks. */
#define HEARD (2 * CQ_DEPTH)

struct side {
	uint8_t *memory;
	struct flue_adapter *adapter;
	struct flue_pd *pd;
	struct flue_cq *cqs[N_CQS];
	struct flue_srq *srqs[N_SRQS];
	struct flue_listener *listener;
	struct flue_mr *library, *srq_mr, *words;
	struct flue_qp *qps[N_QPS];
	struct flue_mr *home[N_QPS];
	struct flue_mr *regions[N_QPS][N_DYN - 1];
	struct flue_mw *windows[N_QPS];
	int number;
	uint16_t peer_port;
	bool busy;

	/* What functions called by the library leave here. */
	pthread_mutex_t lock;
	int bell; /* eventfd */
	uint32_t first, last;
	struct record heard[HEARD];
};

/* Travels as private data: what the responder has to do. */
struct invitation {
	uint32_t q, flags, ird, ord, fpdu_max;
	bool reject;
};

void side_on_completion(struct flue_cq *cq, const struct flue_wc *wc, void *arg);
/* What was heard of a queue pair that is no more is forgotten. */
void side_forget(struct side *s, uint32_t q);
void side_on_event(const struct flue_event *ev, void *arg);

#endif
