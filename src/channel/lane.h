/* SPDX-License-Identifier: MIT */
/*
 * A lane: memory that the two ends of one connection share, with a ring of octets for each
 * direction. The stream of a direction runs partly in the ring and partly in the kernel's TCP
 * connection, the carrier; where it changes from one to the other is part of the shared state, as
 * positions in the stream (turns). So each direction can change at any octet, any number of times.
 *
 * The peer is not trusted. Everything it may write is read once, checked against our own copy
 * (lane_tx, lane_rx: memory out of its reach), and a lane that makes no sense is LANE_BROKEN.
 * Nothing here calls the system; the caller moves the octets of the carrier.
 *
 * One atomic word per direction decides every race:
 *
 *   bits 0-31   tail: octets ever put into the ring, modulo 2^32          (sender)
 *   bits 32-47  turns: odd while the stream runs in the lane, else even   (sender)
 *   bits 48-    flags, see below                                          (mostly receiver)
 *
 * The sender publishes with compare-and-swap, so it cannot miss that the receiver went to sleep; the
 * receiver goes to sleep with compare-and-swap, so it cannot miss that something was published.
 */
#ifndef FLUE_CHANNEL_LANE_H
#define FLUE_CHANNEL_LANE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#define LANE_RING   (256u << 10)
#define LANE_TURNS  64u /* turns that may be under way */
#define LANE_REWIND (16u << 10)
/* Long copies are told of in steps of this, so that the other end copies at the same time. */
#define LANE_STEP (32u << 10)

#define LANE_TURN_SHIFT 32
#define LANE_TURN_ONE   (1ull << LANE_TURN_SHIFT)

/* The receiver looks at this word: without it the stream stays on the carrier. */
#define LANE_ATTACHED (1ull << 48)
/* The receiver takes octets off the carrier and knows no turn ahead: none may be made now. */
#define LANE_INSIDE (1ull << 49)
/* The receiver sleeps where only the carrier wakes it. */
#define LANE_WAITING (1ull << 50)
/* The receiver takes nothing from the ring any more: leave the lane. */
#define LANE_GONE (1ull << 51)
/* ... and wants what it has not read again, on the carrier. */
#define LANE_RECALL (1ull << 52)
/* The receiver sends them again itself, on the sender's socket: the sender must keep still ... */
#define LANE_TAKING (1ull << 54)
/* ... and has done so: what the word says of tail and turns is right. */
#define LANE_TAKEN (1ull << 55)
/* The sender will send nothing more; the end of the stream is told by the carrier. */
#define LANE_FIN (1ull << 53)
/* The receiver sleeps for a moment on the upper half of the word (futex): wake it. */
#define LANE_NAPPING (1ull << 56)
/* How often the receiver has asked for octets back: so that a sender who looked at its head before sees that it may
 * have moved since. */
#define LANE_ASKED_SHIFT 58
#define LANE_ASKED       (0x3full << LANE_ASKED_SHIFT)
/* With LANE_WAITING: its process's bell wakes it as well. */
#define LANE_BELLED (1ull << 57)

struct lane_dir {
	/* written by the sender (and the receiver's flags) */
	_Alignas(128) _Atomic uint64_t word;
	_Atomic uint32_t base; /* this octet count stands at offset 0 of the ring */
	_Atomic uint32_t tx_cpu;
	_Atomic uint32_t tx_sleeps; /* the sender waits for room: enum lane_room */
	_Atomic uint32_t order;     /* the sender's logical clock, see order.h */
	_Atomic uint32_t limit;     /* the sender puts no more into the ring; 0: what fits */
	/* written by the receiver */
	_Alignas(128) _Atomic uint32_t head;
	_Atomic uint32_t seen; /* turns it has made */
	_Atomic uint32_t rx_cpu;
	_Atomic uint32_t rcvbuf; /* as the program has set it; 0: not */
	/* written by the sender, before it counts the turn in the word */
	_Alignas(128) _Atomic uint64_t turn[LANE_TURNS];
};

/* Own state is changed with a lock only; what others look at without one is written and read in one piece. */
#define LANE_LOAD(field)         __atomic_load_n(&(field), __ATOMIC_RELAXED)
#define LANE_STORE(field, value) __atomic_store_n(&(field), value, __ATOMIC_RELAXED)

/* The sender's own state. */
struct lane_tx {
	struct lane_dir *dir;
	uint8_t *ring;
	uint64_t pos; /* octets of the stream sent so far, on either way */
	uint32_t tail;
	uint32_t base;
	uint32_t head; /* the receiver's, when last looked at */
	uint32_t high; /* how far into the ring octets were ever written, for trimming */
	uint32_t less; /* of the ring is not to be used */
	uint16_t turns;
	bool wake;   /* what was just told of met a napping receiver: the caller must wake it */
	bool belled; /* ... a receiver that waits for its bell: the caller must see to that */
	bool can_ring;
};

/* The receiver's own state. */
struct lane_rx {
	struct lane_dir *dir;
	uint8_t *ring;
	uint64_t pos;
	uint32_t head;
	uint16_t turns;
};

enum lane_way {
	LANE_BROKEN,  /* the shared memory makes no sense: end the connection */
	LANE_CARRIER, /* use the carrier */
	LANE_LEAVE,   /* lane_tx_leave(), then the carrier */
	LANE_RING_OK, /* the ring has room */
	LANE_OCTET,   /* one octet on the carrier, the rest into the ring */
	LANE_FULL,    /* no room: wait, or leave */
	LANE_HELD,    /* the receiver is taking octets back: wait until it is done */
};

/* A place in a list of buffers. */
struct lane_iov {
	const struct iovec *iov;
	size_t count;
	size_t skip; /* octets of the first that are done */
};

static inline uint16_t lane_word_turns(uint64_t word)
{
	return (uint16_t)(word >> LANE_TURN_SHIFT);
}

static inline bool lane_tx_in_ring(const struct lane_tx *tx)
{
	return LANE_LOAD(tx->turns) & 1;
}

static inline bool lane_rx_in_ring(const struct lane_rx *rx)
{
	return LANE_LOAD(rx->turns) & 1;
}

/* What the ring may hold. */
static inline uint32_t lane_tx_limit(const struct lane_tx *tx)
{
	return LANE_RING - LANE_LOAD(tx->less);
}

/* Use no more than `limit` octets of the ring. */
void lane_tx_set_limit(struct lane_tx *tx, uint64_t limit);
/* Both start on the carrier, at the octet `pos` of the stream. */
void lane_tx_init(struct lane_tx *tx, struct lane_dir *dir, uint8_t *ring, uint64_t pos);
void lane_rx_init(struct lane_rx *rx, struct lane_dir *dir, uint8_t *ring, uint64_t pos);
/* The receiver is ready to see turns. */
void lane_rx_attach(struct lane_rx *rx);

/* --- sender; one thread at a time */

/* How `want` octets can go now. `*word` is for lane_tx_publish(), `*room` what the ring takes. */
enum lane_way lane_tx_look(struct lane_tx *tx, size_t want, uint64_t *word, size_t *room);
/* Copy up to `room` octets to where the next ones belong; not visible before lane_tx_publish(). */
size_t lane_tx_copy(struct lane_tx *tx, struct lane_iov *from, size_t room);
/* Where the next octets belong, for calls that write there themselves. At most two pieces. */
int lane_tx_space(struct lane_tx *tx, size_t room, struct iovec out[2]);
/* Make `n` copied octets visible; `octet`: one before them goes by the carrier, and the caller
 * must send it now. False: the word changed, look again (nothing happened). */
bool lane_tx_publish(struct lane_tx *tx, uint64_t word, size_t n, bool octet);
/* The receiver sleeps, and only an octet on the carrier wakes it. */
static inline bool lane_tx_needs_octet(const struct lane_tx *tx, uint64_t word)
{
	return (word & LANE_WAITING) && !((word & LANE_BELLED) && LANE_LOAD(tx->can_ring));
}

/* The receiver has taken all that went by the carrier. */
static inline bool lane_tx_carrier_is_empty(const struct lane_tx *tx)
{
	return lane_tx_in_ring(tx) &&
	       (uint16_t)atomic_load_explicit(&tx->dir->seen, memory_order_acquire) == tx->turns;
}

/* The sender will send nothing more: a hint, the end itself comes on the carrier. */
void lane_tx_end(struct lane_tx *tx);
/* The receiver wants octets back that cannot be sent again: it must read them from the ring. */
void lane_tx_keep(struct lane_tx *tx);
/* Something else happened that a napping receiver should see. True: wake it. */
bool lane_tx_rouse(struct lane_tx *tx);
/* From here on the carrier. False: look again. */
bool lane_tx_leave(struct lane_tx *tx, uint64_t word);
/* After much traffic: the part of an empty ring whose memory can be given back; 0: nothing to give. */
#define LANE_TRIM (20u << 10)
size_t lane_tx_trim(struct lane_tx *tx, uint8_t **from);
/* Octets in the ring the receiver has not taken; UINT32_MAX: broken. */
uint32_t lane_tx_unread(const struct lane_tx *tx);
/* After LANE_RECALL: take back what the receiver left in the ring. The stream then stands on the carrier where
 * those octets begin; they are still in the pieces, and the caller sends them (and adds them to
 * pos). Returns the number of pieces; -1: broken; -2: octets that come later stand on the carrier
 * already, so that order could not be kept; -3: not asked for any more, look again. */
int lane_tx_recall(struct lane_tx *tx, struct iovec out[2]);

/* --- receiver; one thread at a time */

enum lane_from {
	LANE_FROM_NOTHING, /* nothing here; sleep or give up */
	LANE_FROM_RING,
	LANE_FROM_CARRIER, /* up to `limit` octets, and not one more */
	LANE_FROM_OPEN,    /* the carrier, between lane_rx_enter() and lane_rx_leave() */
	LANE_FROM_BROKEN,
};

/* Where the next octets come from and how many are there (ring) or allowed (carrier). Makes turns. */
enum lane_from lane_rx_look(struct lane_rx *rx, uint64_t *word, size_t *limit);
/* After LANE_FROM_CARRIER: octets of the ring right behind those of the carrier. */
size_t lane_rx_behind(const struct lane_rx *rx, uint64_t word);
size_t lane_rx_copy(const struct lane_rx *rx, struct lane_iov *to, size_t skip, size_t n);
/* The next `n` octets of the ring as pieces. */
int lane_rx_pieces(const struct lane_rx *rx, size_t n, struct iovec out[2]);
/* `n` octets of the ring, or of the carrier, are taken. */
void lane_rx_taken(struct lane_rx *rx, size_t n, bool ring);
/* How a sender waits for room: asleep on `head` (futex), or for its bell. */
enum lane_room { LANE_ROOM_FUTEX = 1, LANE_ROOM_BELL = 2 };
/* Does the sender wait for room, and is there enough to wake it? Then how; once. */
uint32_t lane_rx_must_wake(struct lane_rx *rx);
/* What the sender puts into the ring at most: a hint. */
uint32_t lane_rx_limit(const struct lane_rx *rx);
/* Forbid turns while octets are taken off an open carrier; false: look again. */
bool lane_rx_enter(struct lane_rx *rx, uint64_t word);
void lane_rx_exit(struct lane_rx *rx);
/* Nothing more is wanted by way of the ring. The word as it was. */
uint64_t lane_rx_forsake(struct lane_rx *rx);
/* Take nothing from the ring any more, and want what is in it back; nothing may be taken from it while that is asked for.
 * lane_rx_recall_no_more(): what is there is read from there. */
void lane_rx_recall(struct lane_rx *rx);
void lane_rx_recall_no_more(struct lane_rx *rx);
/*
 * The receiver's own recall, when the sender does not react: begin() gives the octets that were left, as pieces, and
 * makes the sender keep still; then the caller puts them onto the sender's end of the carrier; end()
 * returns the stream to the carrier. begin(): number of pieces, or -1: not possible now.
 */
int lane_rx_take_back(struct lane_rx *rx, struct iovec out[2]);
void lane_rx_taken_back(struct lane_rx *rx, bool ok);
/* How far the sender has come, and where we are: tail and turns in one number. */
#define LANE_PLACE 0xffffffffffffull

static inline uint64_t lane_rx_seen(const struct lane_rx *rx)
{
	return atomic_load_explicit(&rx->dir->word, memory_order_acquire) & LANE_PLACE;
}

static inline uint64_t lane_rx_here(const struct lane_rx *rx)
{
	return LANE_LOAD(rx->head) | (uint64_t)LANE_LOAD(rx->turns) << LANE_TURN_SHIFT;
}

/* About to sleep until the sender gets beyond `place`; `belled`: the bell will do. False: it has; look again. */
bool lane_rx_arm(struct lane_rx *rx, uint64_t place, bool belled);
void lane_rx_disarm(struct lane_rx *rx);
/* Would the sender end a nap? Not once a receiver has left (or a hostile sender says so), nor after the last octet. */
static inline bool lane_word_may_nap(uint64_t word)
{
	return !(word & (LANE_GONE | LANE_FIN));
}

/* About to nap until the sender does anything. False: it has, or !lane_word_may_nap(). `*value` is what
 * lane_nap_word() must still hold. */
bool lane_rx_nap(struct lane_rx *rx, uint32_t *value);

/* Turns and flags: a napper sleeps while they stay as they are. */
static inline _Atomic uint32_t *lane_nap_word(struct lane_dir *dir)
{
	return (_Atomic uint32_t *)&dir->word + (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);
}

/* Cheap and without a lock: is there something to look at that the kernel does not know of? */
static inline bool lane_rx_stirs(const struct lane_rx *rx)
{
	uint64_t w = atomic_load_explicit(&rx->dir->word, memory_order_acquire);

	return (uint32_t)w != LANE_LOAD(rx->head) || lane_word_turns(w) != LANE_LOAD(rx->turns);
}

/* All octets in the ring. A hint. */
static inline size_t lane_rx_unread(const struct lane_rx *rx)
{
	uint32_t n = (uint32_t)atomic_load_explicit(&rx->dir->word, memory_order_acquire) -
		     LANE_LOAD(rx->head);

	return n <= LANE_RING ? n : 0;
}

/* Octets that can be taken from the ring now, before any turn. Without a lock: a hint. */
size_t lane_rx_ready(const struct lane_rx *rx);

#endif
