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
	uint32_t at;   /* place in the list of hot or of cold ones */
	uint32_t call; /* number of the wait that last reported it */
	uint32_t next_free;
	uint64_t told;         /* lane_rx_seen() when it was last reported */
	uint32_t told_refused; /* rec->tx_refused when writability was last reported */
	bool laned;
	bool hot;    /* in the list of lanes to look at */
	bool cold;   /* in the list of those that stir when their peer does something */
	bool armed;  /* its peer will ring ... */
	bool belled; /* ... our bell */
	bool held; /* the ring is full, so the kernel is not asked whether the carrier is writable */
	bool dirty;    /* the kernel does not have the wish */
	bool gone;     /* deleted by the program, not yet in the kernel */
	bool disarmed; /* EPOLLONESHOT, until the next change */
	bool fresh;    /* added or changed: report what is there, edge or not */
	bool told_out; /* writability was reported since it was last missing */
};

#define EPOLL_HINTS 4096

/* A lane in one of the lists. What a look needs stands together, so that a thousand are soon looked at. */
struct watch {
	_Atomic uint32_t *stir;
	_Atomic uint32_t *rung;
	uint32_t member;
	uint32_t seen; /* *stir, before it was last looked at */
	bool always;   /* look, whether it stirs or not */
};

struct epoll_set {
	struct lock lock;
	struct member *member;
	uint32_t *index; /* by descriptor: number of the member + 1 */
	struct watch *hot, *cold;
	uint32_t used, free, hots, colds, helds, dirty;
	_Atomic uint32_t sleepers;
	int ep;        /* one of its descriptors */
	uint32_t refs; /* descriptors */
	uint32_t call; /* counts waits */
	uint32_t seen_lanes;
	uint32_t seen_refusals;
	uint32_t turn; /* where the next look begins, for fairness */
	uint32_t spin;
	uint64_t looked;               /* when the kernel's set was last asked */
	uint32_t by_data[EPOLL_HINTS]; /* number of a member + 1, perhaps out of date */
	int32_t bell_pid; /* the process whose bell hangs in the kernel's set; 0: none */
	bool rang;
	bool exact;
	bool no_room; /* waited for room in vain: the carrier has some */
};

extern _Atomic uint32_t epoll_lanes;

void epoll_free(struct epoll_set *s);
void epoll_heat(struct epoll_set *s, struct member *m);
/* Hot no more, and not told of to the peer either. */
void epoll_cool(struct epoll_set *s, struct member *m);
/* Its peer rings when there is room. False: there is. */
bool epoll_hold(struct epoll_set *s, struct member *m);
/* Our bell hangs in the set, and the peer has it. */
static inline bool epoll_is_belled(const struct epoll_set *s, const struct member *m)
{
	return s->bell_pid && s->bell_pid == m->rec->bell_pid;
}
/* Its peer rings from now on, if there is anything beyond `told`. False: there is already. */
bool epoll_arm(struct epoll_set *s, struct member *m, const uint64_t *told);
/* Somebody rang: which of the cold ones was it? */
void epoll_answer(struct epoll_set *s);
/* There are lanes in the set: hang our bell into it. */
void epoll_hang_bell(struct epoll_set *s, int ep);
void epoll_reconcile(struct epoll_set *s, int ep);

#endif
