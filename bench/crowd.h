/* SPDX-License-Identifier: MIT */
/* Many connections of which none carries data: what they cost to make and to keep. */
#ifndef FLUE_BENCH_CROWD_H
#define FLUE_BENCH_CROWD_H

#include <flue/flue.h>
#include <netinet/in.h>

#include "bench.h"

/* A few first, so that what is needed once (threads, tables, code pages) is not counted. */
#define CROWD_FIRST 16

struct crowd {
	struct flue_adapter *adapter;
	struct flue_pd *pd;
	struct flue_cq *cq;
	struct flue_qp **qp;
	uint64_t n;
};

bool crowd_open(struct crowd *c, const struct bench_args *args, uint64_t room);
/* Another queue pair, or NULL. */
struct flue_qp *crowd_add(struct crowd *c);
void crowd_close(struct crowd *c);

struct flue_adapter *bench_open_adapter(const struct bench_args *args);
/* The link of a connection is the one that was asked for; else false after a message. */
bool bench_check_link(const struct bench_args *args, struct flue_qp *qp);
struct sockaddr_in bench_loopback(uint16_t port);

#endif
