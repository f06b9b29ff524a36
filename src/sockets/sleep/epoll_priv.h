/* SPDX-License-Identifier: MIT */
/* Shared by the files of epoll sets. */
#ifndef FLUE_SOCKETS_EPOLL_PRIV_H
#define FLUE_SOCKETS_EPOLL_PRIV_H

#include "base/robust.h"
#include "sockets/sleep/epoll.h"
#include "sockets/sleep/waiter.h"
#include "sockets/record/home.h"

/* A descriptor in a set. */
struct member {
	struct rec *rec; /* kept, see sock_keep(); NULL: not a TCP socket of ours */
	struct epoll_event wish;
	struct epoll_event kernel; /* what the kernel was told */
	int fd;                    /* -1: the entry is free */
	uint32_t at;               /* place in the list of hot or of cold ones */
	uint32_t next_fd;          /* with the same remainder, + 1; or the next free one */
	uint32_t next_data;
	uint64_t call;         /* number of the wait that last reported it, ... */
	uint32_t event;        /* ... and where among its events */
	uint64_t told;         /* lane_rx_seen() when it was last reported */
	uint32_t told_refused; /* rec->tx_refused when writability was last reported */
	uint32_t told_unread;  /* octets on the carrier then */
	uint32_t stamp;        /* order_of() what was last reported */
	uint64_t changed;      /* which change the program's last one was */
	bool laned;
	bool hot;   /* in the list of lanes to look at */
	bool cold;  /* in the list of those that stir when their peer does something */
	uint8_t by; /* enum waiter_by: how its peer wakes us */
	bool full; /* the ring is full, so the kernel is not asked whether the carrier is writable */
	bool dirty;    /* the kernel does not have the wish */
	bool rearm;    /* ... and must be told of it, though nothing may have changed */
	bool gone;     /* deleted by the program, not yet in the kernel */
	bool disarmed; /* EPOLLONESHOT, until the next change */
	bool fresh;    /* added or changed: report what is there, edge or not */
	bool told_out; /* writability was reported since it was last missing */
};

/* A lane in one of the lists. What a look needs stands together, so that a thousand are soon looked at. */
struct watch {
	_Atomic uint32_t *stir;
	_Atomic uint32_t *rung;
	uint32_t member;
	uint32_t seen; /* *stir, before it was last looked at */
	bool always;   /* look, whether it stirs or not */
};

/*
 * Sets are used again, and never given back: whoever has found one can take its lock, and then sees whether it is
 * still the one that was looked for. Nobody sleeps with the lock.
 */
struct epoll_set {
	struct robust_lock lock;
	_Atomic uint32_t live; /* it has descriptors */
	struct epoll_set *next_free;
	struct member *member;
	uint32_t *by_fd, *by_data; /* first member with a remainder, + 1 */
	struct watch *hot, *cold;
	uint32_t capacity; /* of all of these */
	uint32_t used, free, hots, colds, fulls, dirty, tcp;
	uint32_t users;            /* threads that wait for it, ... */
	_Atomic uint32_t sleepers; /* ... in the kernel */
	int ep;                    /* one of its descriptors */
	uint32_t refs;             /* descriptors */
	uint64_t calls;
	uint64_t changes; /* by the program, of its members */
	uint32_t seen_lanes;
	uint32_t seen_refusals;
	uint32_t first; /* where the next look begins, for fairness */
	uint32_t spin;
	struct waiter waiter;
	uint64_t looked;  /* when the kernel's set was last asked, ... */
	uint32_t clock;   /* ... our clock (order.h) at that time, ... */
	bool kernel_had;  /* ... and whether it had something */
	bool kernel_last; /* lanes came first in the last call */
	uint32_t crowded; /* calls in a row in which the kernel left no room for lanes */
	int32_t bell_pid; /* the process whose bell hangs in the kernel's set; 0: none */
	bool rang;
	bool exact;
	bool guest;   /* the parent's: nothing is changed behind its back */
	bool no_room; /* waited for room in vain: the carrier has some */
};

/* --- epoll_set.c: the set itself. With its lock, but for the first four */

/* A new one, or NULL. */
struct epoll_set *epoll_set_new(void);
/* Nobody uses it any more. */
void epoll_set_free(struct epoll_set *s);
/* Its lock, if it has descriptors: it may lose them while we wait, and is nobody's then. False: not taken. */
bool epoll_set_take(struct epoll_set *s);
/* Every set there ever was. */
void epoll_set_each(void (*call)(struct epoll_set *s));
/* With their locks held from here to there: for fork(). */
void epoll_set_lock_all(void);
void epoll_set_unlock_all(bool child);
struct member *epoll_find(struct epoll_set *s, int fd);
/* The first member that the kernel knows by this datum, and the next. */
struct member *epoll_by_data(struct epoll_set *s, uint64_t data);
struct member *epoll_next_by_data(struct epoll_set *s, const struct member *m);
/* Does another one have the same datum? */
bool epoll_is_ambiguous(struct epoll_set *s, const struct member *m);
struct member *epoll_add(struct epoll_set *s, int fd, struct rec *r,
			 const struct epoll_event *event);
/* The kernel knows this of it. */
void epoll_told_kernel(struct epoll_set *s, struct member *m, const struct epoll_event *event);
void epoll_drop(struct epoll_set *s, struct member *m);
void epoll_set_dirty(struct epoll_set *s, struct member *m, bool dirty);
void epoll_heat(struct epoll_set *s, struct member *m);
/* The kernel must be told of it again: an edge or a shot of its own came to nothing. */
void epoll_rearm(struct epoll_set *s, struct member *m);
/* It is looked at no more, and no peer rings for it. */
void epoll_put_down(struct epoll_set *s, struct member *m);
/* Hot no more, and not told of to the peer either. */
void epoll_cool(struct epoll_set *s, struct member *m);
/* Its peer rings when there is room. False: there is. */
bool epoll_await_room(struct epoll_set *s, struct member *m);
/* Our bell hangs in the set, and the peer has it. */
static inline bool epoll_is_belled(const struct epoll_set *s, const struct member *m)
{
	return s->bell_pid && s->bell_pid == m->rec->bell_pid;
}
/* The program was refused for lack of room, and has not been told of any since. */
static inline bool epoll_was_refused(const struct member *m)
{
	return atomic_load_explicit(&m->rec->tx_refused, memory_order_relaxed) != m->told_refused;
}

/* The program is told of room: what was refused before is settled. */
static inline void epoll_note_room(struct member *m)
{
	m->told_out = true;
	m->told_refused = atomic_load_explicit(&m->rec->tx_refused, memory_order_relaxed);
}
/* Its peer rings from now on, if there is anything beyond `told`. False: there is already. */
bool epoll_arm(struct epoll_set *s, struct member *m, const uint64_t *told);
/* Somebody rang: which of the cold ones was it? */
void epoll_answer(struct epoll_set *s);

/* --- epoll_sync.c: what the kernel's set is told */

/* The set behind `ep`, locked; NULL: none of ours, or this thread has the lock (*own). */
struct epoll_set *epoll_take(int ep, bool *own);
/* Has this member a lane by now? Then it is looked at from now on. */
void epoll_find_lane(struct epoll_set *s, int ep, struct member *m);
/* Its lane is left? Then all it can have is in the kernel, which is to tell the program what that has not heard of. */
void epoll_lose_lane(struct epoll_set *s, struct member *m);
/* Lanes came or went since the last call: which of the members have one? */
void epoll_find_lanes(struct epoll_set *s, int ep);
/* A walk over all sets for one record: with the lock, which comes before any set's. */
extern struct rec *epoll_subject;
extern struct robust_lock epoll_walk;
/* What the kernel is to look for in a member, now. */
void epoll_tell_kernel(struct epoll_set *s, int ep, struct member *m);
/* The kernel's set is going to be used by others, who know nothing of bells. */
void epoll_take_bell_down(struct epoll_set *s);
/* There are lanes in the set: hang our bell into it. */
void epoll_hang_bell(struct epoll_set *s, int ep);
void epoll_reconcile(struct epoll_set *s, int ep);
/* Somebody sleeps in the kernel and could not see that a lane is readable: make it wake up. */
void epoll_wake_sleepers(struct epoll_set *s, int ep, struct member *m);

/* --- epoll_life.c */

/* A thread that waited is done with it; gives the lock back. */
void epoll_leave(struct epoll_set *s);

#endif
