/* SPDX-License-Identifier: MIT */
/* A call that waits for an epoll set: what its three files share. */
#ifndef FLUE_SOCKETS_SLEEP_EPOLL_WAIT_PRIV_H
#define FLUE_SOCKETS_SLEEP_EPOLL_WAIT_PRIV_H

#include <signal.h>

#include "sockets/sleep/epoll_priv.h"

#define IN  (EPOLLIN | EPOLLRDNORM)
#define OUT (EPOLLOUT | EPOLLWRNORM)

/* A call. */
struct epoll_call {
	struct epoll_set *s;
	int ep;
	struct epoll_event *events;
	int max;
	int n;            /* events found */
	uint64_t call;    /* which call this is */
	uint64_t changes; /* of the set, when the kernel was last asked */
	bool asked;       /* the kernel was asked in this call */
	bool ask; /* something was found that may have been sent behind what the kernel has */
	int64_t timeout;
	uint64_t start;
	const sigset_t *mask;
};

/* --- epoll_report.c */

/* A refusal makes room an edge again, also for members that are not looked at otherwise. */
void epoll_find_refused(struct epoll_set *s);
uint32_t epoll_lane_events(const struct epoll_set *s, struct member *m);
/* For edges: something is new since it was last told. Then all there is to tell is told. */
bool epoll_is_edge(const struct member *m, uint32_t ready, uint64_t seen);
/* It is going to be told of: so much the program knows then. */
void epoll_note_told(struct epoll_call *w, struct member *m, uint32_t ready, uint64_t seen);
/* Octets that may have been sent behind something that must be told of as well. */
void epoll_note_order(struct epoll_call *w, struct member *m);
/* Nothing has been told of this lane since it was looked at. */
bool epoll_is_quiet(const struct epoll_set *s, uint32_t i);
/* What the carrier has, of what the program wishes by now. */
uint32_t epoll_ask_carrier(struct member *m);
/* The carrier has these. Its room counts for nothing while the ring is full: that is the last resort. */
uint32_t epoll_judge_room(struct member *m, uint32_t events);
/* A one-shot that the kernel did not report itself is still armed there. */
void epoll_shoot(struct epoll_set *s, int ep, struct member *m, bool by_kernel);
/* The first `count` of them. Returns how many came before the last that had news. */
uint32_t epoll_look_at_lanes(struct epoll_call *w, uint32_t count);

/* --- epoll_kernel.c */

/* Ask the kernel; with the lock, which is given up while it sleeps. -1 and errno, or how many more events there are. */
int epoll_ask_kernel(struct epoll_call *w, int64_t ns);

#endif
