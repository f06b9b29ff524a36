/* SPDX-License-Identifier: MIT */
/* Shared by the files of epoll sets. */
#ifndef FLUE_SOCKETS_EPOLL_PRIV_H
#define FLUE_SOCKETS_EPOLL_PRIV_H

#include "base/lock.h"
#include "sockets/epoll.h"
#include "sockets/home.h"

/* A TCP socket in a set. */
struct member {
	struct rec *rec; /* NULL: the entry is free */
	struct epoll_event wish;
	struct epoll_event kernel; /* what the kernel was told */
	int fd;
	uint32_t call; /* number of the wait that last reported it */
	uint32_t next_free;
	uint64_t told;         /* lane_rx_seen() when it was last reported */
	uint32_t told_refused; /* rec->tx_refused when writability was last reported */
	bool laned;
	bool hot;      /* in the list of lanes to look at */
	bool armed;    /* cold: its peer will ring */
	bool dirty;    /* the kernel does not have the wish */
	bool gone;     /* deleted by the program, not yet in the kernel */
	bool disarmed; /* EPOLLONESHOT, until the next change */
	bool fresh;    /* added or changed: report what is there, edge or not */
	bool told_out; /* writability was reported since it was last missing */
};

#define EPOLL_HINTS 4096

struct epoll_set {
	struct lock lock;
	struct member *member;
	uint32_t *index; /* by descriptor: number of the member + 1 */
	uint32_t *hot;
	uint32_t used, free, hots, dirty;
	_Atomic uint32_t sleepers;
	uint32_t refs; /* descriptors */
	uint32_t call; /* counts waits */
	uint32_t seen_lanes;
	uint32_t seen_refusals;
	uint32_t turn; /* where the next look begins, for fairness */
	uint32_t spin;
	uint64_t looked;               /* when the kernel's set was last asked */
	uint32_t by_data[EPOLL_HINTS]; /* number of a member + 1, perhaps out of date */
	bool exact;
	bool no_room; /* waited for room in vain: the carrier has some */
};

extern _Atomic uint32_t epoll_lanes;

void epoll_free(struct epoll_set *s);
void epoll_heat(struct epoll_set *s, struct member *m);
void epoll_reconcile(struct epoll_set *s, int ep);

#endif
