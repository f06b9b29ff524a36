/* SPDX-License-Identifier: MIT */
/*
 * The short way of what is sent most: a small Send of full service, in one piece, when nothing else is under way. Both halves do
 * what qp_sched.c and rx_segment.c would do with such a message, or nothing at all: then those are asked, and find out why.
 *
 * Under the engine's lock.
 */
#ifndef FLUE_RNIC_QUICK_H
#define FLUE_RNIC_QUICK_H

#include "rnic/qp.h"

#define QUICK_MAX 1024 /* octets of a message; copying costs more than all else beyond */

/* The request that is next, if it can go this way; *s: its header. NULL: it can not, or there is none. */
struct wqe *quick_next(struct qp *q, struct ddp_segment *s);
/* Its octets. false: they are not to be had. */
bool quick_copy(struct qp *q, const struct wqe *w, uint8_t *to);
/* It is out. */
void quick_out(struct qp *q, struct wqe *w);

/* A segment of full service has come. true: it was one, and its message has been delivered. */
bool quick_receive(struct qp *q, const struct ddp_segment *s, const uint8_t *payload);

#endif
