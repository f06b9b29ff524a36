/* SPDX-License-Identifier: MIT */
/*
 * Which descriptors are TCP sockets: a table from numbers to records. It is a cache; the kernel
 * is the truth. Numbers we have never seen (inherited ones) are asked about when first used;
 * after a close that we saw, a number is not a socket until we see it become one.
 *
 * Another thread may close a number at any moment, and it is somebody else's the moment after. So a call of ours makes
 * system calls on a number only with a lock of the record's, having seen that the table still says so (sock_lock());
 * who closes a number takes it out of the table first and then waits for those locks. A call that sleeps, or
 * looks without a lock, keeps the record meanwhile (sock_keep()): then close() leaves a copy of the
 * descriptor behind to go on with, as the kernel would.
 */
#ifndef FLUE_SOCKETS_SOCK_H
#define FLUE_SOCKETS_SOCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/robust.h"
#include "sockets/record/home.h"
#include "sockets/record/raw.h"

#define SOCK_FDS   (1 << 20)
#define SOCK_CHUNK 4096
#define SOCK_OTHER ((struct rec *)1) /* something else */
#define SOCK_CLOSING \
	((struct rec \
		  *)2) /* a thread is about to close it; until then it is the old socket, past us */
#define SOCK_OURS ((struct rec *)3) /* a descriptor of ours, see base/own.h */

struct epoll_set;

/* A descriptor number. */
struct sock_entry {
	_Atomic(struct rec *) rec; /* NULL: not known */
	_Atomic(struct epoll_set *) set;
};

extern _Atomic(struct sock_entry *) sock_chunks[SOCK_FDS / SOCK_CHUNK];

/* NULL: nothing is known of numbers like this one. */
static inline struct sock_entry *sock_entry(int fd)
{
	struct sock_entry *c;

	if ((unsigned)fd >= SOCK_FDS)
		return NULL;
	c = atomic_load_explicit(&sock_chunks[(unsigned)fd / SOCK_CHUNK], memory_order_acquire);
	return c ? &c[(unsigned)fd % SOCK_CHUNK] : NULL;
}

/* The same, made now if need be; NULL: not to be had. */
struct sock_entry *sock_entry_make(int fd);

static inline bool sock_is_rec(const struct rec *r)
{
	return (uintptr_t)r > (uintptr_t)SOCK_OURS;
}

/* What the table says: NULL, SOCK_OTHER, SOCK_CLOSING, SOCK_OURS or a record. */
static inline struct rec *sock_at(int fd)
{
	struct sock_entry *e = sock_entry(fd);

	return e ? atomic_load_explicit(&e->rec, memory_order_acquire) : NULL;
}

struct rec *sock_probe(int fd);
/* Copies under way: a number may be a socket's though the table does not say so yet. */
extern _Atomic uint32_t sock_copies;
struct rec *sock_outwait_copies(int fd);

/* The record of a TCP socket, or NULL. */
static inline struct rec *sock_of(int fd)
{
	struct rec *r = sock_at(fd);

	if (sock_is_rec(r))
		return r;
	if (atomic_load_explicit(&sock_copies, memory_order_relaxed))
		return sock_outwait_copies(fd);
	return r == SOCK_OTHER || (unsigned)fd >= SOCK_FDS ? NULL : sock_probe(fd);
}

/* The same, if it may have a lane and is not plain for good. */
static inline struct rec *sock_live(int fd)
{
	struct rec *r = sock_of(fd);

	if (!r || atomic_load_explicit(&r->state, memory_order_relaxed) == REC_PLAIN)
		return NULL;
	return r;
}

static inline bool sock_has_lane(const struct rec *r)
{
	return atomic_load_explicit(&r->state, memory_order_acquire) == REC_LANE;
}

static inline uint32_t sock_flag(const struct rec *r, uint32_t flag)
{
	return atomic_load_explicit(&r->flags, memory_order_relaxed) & flag;
}

/* A new TCP socket stands at `fd`. It is the native stack's until ops_create() or ops_accept(). */
struct rec *sock_add(int fd, uint32_t role, uint32_t flags);
/* `fd` is no socket, or none of ours. */
void sock_forget(int fd);
/* The table marks our own descriptors, see base/own.h. */
void sock_start(void);
/* Nobody knows what `fd` is: ask when it is used. */
void sock_unknown(int fd);
/* Before close(fd), or before something else takes its place. In this process, see process_is_self(). */
void sock_closing(int fd);
/* The number is closed, or has become something else. */
void sock_closed(int fd);
/* The same when the process ends. */
void sock_ending(int fd, struct rec *r);
/* `from` gets another number: before the kernel says which, or takes the place of one (`to`; -1: not known yet); and
 * when it has, or has not (-1). */
struct sock_copy {
	struct rec *r; /* of `from`, kept */
};
void sock_copy_begins(struct sock_copy *c, int from, int to);
void sock_copy_ends(struct sock_copy *c, int from, int to);
/* It connected, or was accepted. */
void sock_connected(struct rec *r);
/* Did it? A connect() may have been under way. */
void sock_look_connected(struct rec *r, int fd);
/* Who is at the other end, and what does the kernel call it? Not before somebody needs to know: most connections are
 * short. False: it cannot have a lane. */
bool sock_identify(struct rec *r, int fd);
/* Never a lane again; steps down first if it has one. */
void sock_pin(struct rec *r, int fd, enum why why);
/* The same, for octets that the kernel must have before another program goes on with it: wait for the peer a little. */
void sock_hand_over(struct rec *r, int fd, enum why why);
/* For every number of this process, and its record. */
void sock_each(void (*call)(int fd, struct rec *r, void *arg), void *arg);
/* Does the kernel say that it is this one? Of one that can have a lane. */
bool sock_is(struct rec *r, int fd);
/* Has this process ever had a TCP socket? */
bool sock_in_use(void);
/* The highest number that may be in the table. */
int sock_highest(void);
/* Before a fork that runs handlers; behind it, in the parent; in the child, `counted` by those or not. */
void sock_fork_prepare(void);
void sock_fork_parent(void);
void sock_forked(bool counted);
/* Before exec(), for each number; and if there was none after all. */
void sock_hand_off(int fd, struct rec *r);
void sock_take_back(struct rec *r);
/* Children under way of which is not known yet what they inherit: no lane may begin. */
extern _Atomic uint32_t sock_spawns;

/* --- what this process's calls have to do with a record */

struct keep {
	_Atomic uint32_t calls;   /* inside the kernel, moving octets without our positions */
	_Atomic uint32_t pins;    /* will touch the record again */
	_Atomic int32_t heir;     /* descriptor that close() left to those, + 1; or KEEP_NO_HEIR */
	_Atomic uint32_t numbers; /* descriptors of this process */
	_Atomic uint32_t sets;    /* epoll sets that it is in; */
	_Atomic(struct epoll_set *) set; /* the first of them, if that is known */
	_Atomic uint32_t late;    /* the fork during which a number of it came into the table */
	_Atomic uint32_t counted; /* ... for which it was last counted, if that was to be noted */
};

/* There was none to be had. */
#define KEEP_NO_HEIR (-1)

struct keep *sock_keeping(const struct rec *r);

/* Keep the record, its lane and a descriptor of it until sock_release(). False: `fd` is not (any more) its number. */
bool sock_keep(struct rec *r, int fd);
/* The same for who has a lock of the record, with which it is known to be the right one. */
void sock_keep_locked(struct rec *r);
void sock_release(struct rec *r);
/* A call that moves octets past our positions begins, and is over. */
static inline void sock_call_begins(struct rec *r)
{
	atomic_fetch_add(&sock_keeping(r)->calls, 1);
}
void sock_call_ends(struct rec *r);
/* A call by number is over, see raw.h; also when the thread is cancelled. */
static inline void sock_raw_ends(struct raw_call *c)
{
	raw_leave(c);
	if (c->r)
		sock_call_ends(c->r);
	c->r = NULL;
}

/* May the kernel move octets now? False: it has a lane, so we do. True: sock_call_ends() when it is over; until then
 * none begins. */
bool sock_enter(struct rec *r);

/* Take a lock for a call on `fd`, `kept` or not. The number to use now, or: */
#define SOCK_GONE (-1) /* not its number any more; nothing is locked */
#define SOCK_OWN  (-2) /* this very thread has the lock: a signal handler came between */
int sock_lock(struct rec *r, struct robust_lock *l, int fd, bool kept);

#endif
