/* SPDX-License-Identifier: MIT */
/* Connections without a lane: what a call does before and after the kernel has moved its octets. */
#ifndef FLUE_SOCKETS_ATTACH_YOUNG_H
#define FLUE_SOCKETS_ATTACH_YOUNG_H

#include <sys/types.h>

#include "sockets/record/home.h"
#include "sockets/record/raw.h"

/* Who moves the octets: we; the kernel alone; or look again, the number means something else by now. */
enum young_kind { YOUNG_OURS, YOUNG_PLAIN, YOUNG_OTHER };

/*
 * Before a call that moves octets, on a number that stands for `r`; NULL: for nothing of ours. PLAIN: make the real call, then
 * young_after_...(). OURS: a lane is there, call call_send() or call_receive() instead. sock_raw_ends() in any case,
 * also when the thread is cancelled.
 */
enum young_kind young_before_send(struct raw_call *c, struct rec *r, int fd, size_t size);
enum young_kind young_before_receive(struct raw_call *c, struct rec *r, int fd);
void young_after_send(struct raw_call *c, int fd, ssize_t n, int flags);
void young_after_receive(struct raw_call *c, int fd, ssize_t n, int flags);

/* For calls that send in steps, see sleep/above.h. */
void young_grow(struct rec *r, int fd, size_t size);
void young_pace(struct rec *r, int fd, size_t sent);

#endif
