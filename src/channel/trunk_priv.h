/* SPDX-License-Identifier: MIT */
/*
 * What the two sides of a trunk share, and what each knows by itself.
 *
 * Shared, for each direction: a pool of blocks, a ring of *entries* from the sender (one 64-bit word each, so that it is
 * read as a whole or not at all), and a ring of numbers of blocks that the receiver gives back. Every word has one
 * writer, except `armed` and `rung`, which are hints; and nobody relies on what it wrote there itself.
 */
#ifndef FLUE_CHANNEL_TRUNK_PRIV_H
#define FLUE_CHANNEL_TRUNK_PRIV_H

#include <stdatomic.h>
#include <sys/types.h>

#include "base/robust.h"
#include "channel/trunk.h"

#define TRUNK_MAGIC 0x666c7565746b3031ull
#define TRUNK_HEAD  4096
#define TRUNK_NONE  UINT32_MAX
#define CLAIMED     (1u << 31)

/* What an entry says. With a block: */
enum trunk_type {
	ENTRY_NONE = 0,
	ENTRY_OPEN,   /* the greeting is in the block; likewise the next two */
	ENTRY_ACCEPT, /* of what the other side has opened */
	ENTRY_REFUSE, /* likewise, and the sender is done with it: no CLOSE follows */
	ENTRY_PART,   /* of a message */
	ENTRY_LAST,   /* part of a message */
	/* Without: */
	ENTRY_FIN,   /* the sender sends nothing more on this circuit */
	ENTRY_CLOSE, /* the sender is done with it; the last of its entries until there is another circuit of its number */
};

struct trunk_entry {
	uint32_t circuit; /* 16 bits */
	uint32_t block;   /* 16 */
	uint32_t len;     /* 20 */
	uint8_t kind;     /* 8 */
	uint8_t type;     /* 4, enum trunk_type */
};

static inline uint64_t entry_word(struct trunk_entry e)
{
	return (uint64_t)e.circuit << 48 | (uint64_t)e.block << 32 | (uint64_t)e.len << 12 |
	       (uint64_t)e.kind << 4 | e.type;
}

static inline struct trunk_entry entry_of(uint64_t w)
{
	return (struct trunk_entry) { .circuit = (uint32_t)(w >> 48),
				      .block = w >> 32 & 0xffff,
				      .len = w >> 12 & 0xfffff,
				      .kind = w >> 4 & 0xff,
				      .type = w & 0xf };
}

/* What a side sleeps for, and how it is to be woken. */
enum trunk_armed {
	ARMED_DATA = 1 << 0,  /* entries */
	ARMED_ROOM = 1 << 1,  /* blocks given back */
	ARMED_FUTEX = 1 << 2, /* on `rung` */
	ARMED_SOCK = 1 << 3,  /* an octet on the socket */
};

/* Words that this side writes; by how often, and who reads them. */
struct trunk_side {
	_Alignas(64) _Atomic uint32_t
		tail; /* entries put into our ring, ever; the other's take_in() follows */
	_Alignas(64) _Atomic uint32_t
		head;           /* entries taken from the other's ring; its reclaim() follows */
	_Atomic uint32_t given; /* blocks given back, likewise */
	_Alignas(64) _Atomic uint32_t armed; /* cleared by the other, who then wakes us */
	_Atomic uint32_t rung;               /* by the other, and by our own threads */
	_Atomic uint32_t closed;
};

struct trunk_shared {
	uint64_t magic;
	uint32_t blocks, block_size, circuits, guarantee;
	struct trunk_side side[2];
};
_Static_assert(sizeof(struct trunk_shared) <= TRUNK_HEAD, "the head has room");

/* --- private */

enum circuit_state {
	CIRCUIT_FREE,
	CIRCUIT_OPENING, /* ours, not answered */
	CIRCUIT_OFFERED, /* the peer's, not answered */
	CIRCUIT_LIVE,
	CIRCUIT_REFUSED, /* ours, by the peer */
	CIRCUIT_LEFT,    /* we are done with it, the peer is not */
};

enum circuit_flag {
	CIRCUIT_SHUT = 1 << 0,     /* we send nothing more */
	CIRCUIT_FINISHED = 1 << 1, /* the peer sends nothing more */
	CIRCUIT_ENDED = 1 << 2,    /* the peer has left it */
	CIRCUIT_TOLD = 1 << 3,     /* is in the list of events */
	CIRCUIT_OWES = 1 << 4,     /* is in the list of entries to be sent: no room in the ring */
	CIRCUIT_OWES_FIN = 1 << 5,
	CIRCUIT_OWES_CLOSE = 1 << 6,
	CIRCUIT_STARVED = 1 << 7, /* somebody wants to know when there is credit */
};

struct circuit {
	uint8_t state; /* enum circuit_state */
	uint8_t flags; /* enum circuit_flag */
	uint8_t events;
	uint8_t code;         /* of the peer's: why it refused, or left */
	uint8_t own_code;     /* of the CLOSE that is owed */
	uint32_t out;         /* blocks with the peer */
	uint32_t limit;       /* of them */
	uint32_t need;        /* blocks that who is starved wants at once */
	uint32_t greeting;    /* block, or TRUNK_NONE */
	uint32_t first, last; /* blocks that came, in order; TRUNK_NONE */
	uint32_t offset;      /* octets of the first one that were read */
	uint32_t ends;        /* of messages in the queue */
	uint32_t next_told;
	uint32_t next; /* of those that owe something, or are idle */
	uint32_t next_starved, prev_starved;
	void *user;
};

/* A block of the peer's direction. */
struct trunk_rx {
	uint32_t next;
	uint32_t len;
	uint8_t kind;
	bool end;
	uint8_t where; /* enum trunk_where */
};

enum trunk_where { BLOCK_AWAY, BLOCK_QUEUED, BLOCK_TAKEN };

/* A list of circuits. */
struct circuit_list {
	uint32_t first, last;
};

struct trunk {
	_Atomic uint32_t *alive; /* in a page that forks wipe: 0 in a child */
	uint8_t *map;            /* not in a child */
	size_t map_size, own_size;
	struct trunk_shape shape;
	uint32_t surplus; /* blocks that are nobody's own */
	unsigned side;
	int sock; /* -1: none */
	ino_t sock_ino;
	int waker; /* -1: none yet */
	ino_t waker_ino;
	pid_t peer_pid;
	struct trunk_side *own, *peer;
	struct robust_lock lock; /* everything below; nobody sleeps with it */

	_Atomic int status; /* 0, or why it is over */
	struct circuit *circuit;
	uint32_t next_circuit; /* of ours: the first that was never used */
	uint32_t top;          /* circuits ever used are below */
	struct circuit_list told, owing;
	struct circuit_list starved; /* who waits longest is first */
	struct circuit_list idle;    /* of ours, used before */
	uint64_t looked;             /* when the peer was last asked after */
	_Atomic uint32_t sleepers;   /* threads of ours */
	_Atomic bool polls;          /* one of them, on the socket */
	bool is_news;                /* for them */
	unsigned alarm;              /* for the peer, beside what is published: enum trunk_armed */
	_Atomic uint64_t rings;

	/* Sending. */
	_Atomic uint64_t *out_ring;   /* entries, ours */
	const _Atomic uint32_t *back; /* blocks given back, the peer's */
	uint8_t *out_blocks;          /* ours */
	uint32_t *owner; /* of each of our blocks: circuit, CLAIMED by the client; or TRUNK_NONE */
	uint32_t *free;  /* a stack: what was used last is in the cache */
	uint32_t n_free;
	uint32_t tail, tail_told, head_seen, n_back;
	uint32_t surplus_used, n_starved;
	uint32_t
		to_feed; /* so many of the starved, from the first on, may have credit from the surplus by now */

	/* Receiving. */
	const _Atomic uint64_t *in_ring;
	_Atomic uint32_t *give_ring;
	uint8_t *in_blocks;
	struct trunk_rx *rx;
	uint32_t head, head_told, given, given_told;
};

static inline uint32_t ring_size(const struct trunk *t)
{
	return 2 * t->shape.blocks;
}

/* --- trunk_memory.c */

size_t trunk_memory_size(const struct trunk_shape *s);
/* Where things are; all places are computed from the private copy of the shape. */
void trunk_memory_places(struct trunk *t);
/* Our own memory, and the shared memory in it; all other fields are 0. */
int trunk_memory_map(int fd, struct trunk **out);
void trunk_memory_unmap(struct trunk *t, bool shared);

/* --- trunk.c: beginning */

/* trunk_attach() with a socket that own_move() returned: it is not marked as ours, and must not be moved again. */
int trunk_attach_moved(int memory, unsigned side, int sock, pid_t peer, struct trunk **out);

/* --- trunk.c: around every call */

/* False: a child, or our own thread is inside (*rc says which). */
bool trunk_enter(struct trunk *t, int *rc);
/* Publishes what was done, lets go, wakes whom it concerns. */
void trunk_leave(struct trunk *t);
/* The trunk is over: every circuit has ended. */
void trunk_fail(struct trunk *t, int error);
/* Has the peer closed it, or is it dead? Not asked again for a while unless `now`. */
void trunk_look_after_peer(struct trunk *t, bool now);
/* A circuit has something new. */
void trunk_tell(struct trunk *t, uint32_t c, unsigned bits);
/* A new circuit. */
void trunk_begin(struct trunk *t, uint32_t c, enum circuit_state state);
void trunk_append(struct trunk *t, struct circuit_list *list, uint32_t c);
/* Both sides may be done with it. */
void trunk_maybe_free(struct trunk *t, uint32_t c);
/* Wake threads of ours, but for an engine that watches trunk_fd(). No lock needed. */
void trunk_rouse(struct trunk *t);
/* NULL: there is no such circuit. */
static inline struct circuit *circuit_at(struct trunk *t, uint32_t c)
{
	return c < t->shape.circuits && t->circuit[c].state != CIRCUIT_FREE &&
			       t->circuit[c].state != CIRCUIT_LEFT
		       ? &t->circuit[c]
		       : NULL;
}

/* --- trunk_tx.c; the lock is held */

/* Takes back what the peer gave. */
void trunk_reclaim(struct trunk *t);
/* Is there anything to reclaim, or to take in? Needs no lock. */
bool trunk_has_back(const struct trunk *t);
bool trunk_has_in(const struct trunk *t);
/* An entry with a block that is filled here; false: no credit. */
bool trunk_put(struct trunk *t, uint32_t c, enum trunk_type type, uint8_t kind, const void *data,
	       size_t size);
/* FIN and CLOSE, now or when there is room in the ring. */
void trunk_owe(struct trunk *t, uint32_t c, unsigned what);
void trunk_pay(struct trunk *t);
/* Tells starved circuits of surplus that came back: a few at a time, while `to_feed` is not 0. */
void trunk_feed(struct trunk *t);
/* Somebody waits for the credit that was wanted last, or nobody does any more. */
void trunk_starve(struct trunk *t, struct circuit *k);
void trunk_unstarve(struct trunk *t, struct circuit *k);
/* Blocks that the circuit can have now. */
uint32_t trunk_credit(const struct trunk *t, const struct circuit *k);

/* --- trunk_rx.c; the lock is held */

/* Entries of the peer: at most as many as the ring holds. */
void trunk_take_in(struct trunk *t);
void trunk_give_back(struct trunk *t, uint32_t block);
/* All blocks that wait for the client. */
void trunk_empty(struct trunk *t, struct circuit *k);

/* --- trunk_wait.c */

/* Has the kernel seen the end of the other process? */
bool trunk_peer_is_dead(struct trunk *t);
/* The other side hears that it is over; the socket stays. */
void trunk_hang_up(struct trunk *t);
void trunk_close_sock(struct trunk *t);
/* Somebody is starved since, or owes something: threads of ours that sleep already, for entries only, are to be woken for blocks as well. The lock is
 * held. */
void trunk_arm_for_room(struct trunk *t);
/* The peer sleeps for one of `news` (enum trunk_armed): wake it. */
void trunk_ring(struct trunk *t, unsigned news);

#endif
