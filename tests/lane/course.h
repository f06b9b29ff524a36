/* SPDX-License-Identifier: MIT */
/*
 * One direction of a connection, driven as the stream files of the door drive it, but in steps: one
 * call of lane.h or one move on the carrier each. Whoever calls the steps decides how the two ends
 * interleave: a random scheduler (model.c), or the processors (parallel.c).
 *
 * The octet at each position of the stream is known, so whatever is taken can be checked: an octet
 * too many, one out of order or one lost shows at once.
 */
#ifndef FLUE_TESTS_LANE_COURSE_H
#define FLUE_TESTS_LANE_COURSE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "channel/lane.h"

/* What both ends see. */
struct area {
	struct lane_dir *dir;
	uint8_t *ring;
	_Atomic uint32_t kept; /* the sender could not take back what was recalled */
	_Atomic uint32_t done; /* the receiver has everything */
	/* How receivers are woken beside the carrier: futex calls, what a set counts, and a bell. */
	_Atomic uint32_t wakes, stir, rung, rings;
};

/* The carrier: octets in order, of which only so many fit. */
struct carrier {
	/* Neither sleeps; both return how many octets moved. */
	size_t (*put)(struct carrier *c, const uint8_t *from, size_t n);
	size_t (*get)(struct carrier *c, uint8_t *to, size_t n, bool peek);
	/* Sleep until there is something to get; false: not for a very long time. */
	bool (*await)(struct carrier *c);
	size_t fits; /* so many octets surely fit when it is empty */
	int fd[2];
	uint8_t *queue;
	size_t size, first, count;
};

void carrier_init_queue(struct carrier *c, uint8_t *memory, size_t size);
bool carrier_init_socket(struct carrier *c);
void carrier_fini_socket(struct carrier *c);

/* --- chance */

struct dice {
	uint64_t state;
};

uint32_t dice_roll(struct dice *d, uint32_t sides);
/* A size: mostly small, now and then more than the ring. */
size_t dice_size(struct dice *d, bool large);

/* --- the stream */

#define STREAM_PIECE (2 * LANE_RING)

void stream_fill(uint64_t seed);
/* The octets from a position on, STREAM_PIECE of them. */
const uint8_t *stream_at(uint64_t pos);

/* --- the ends */

/* How wild the ends are; out of 1000. */
struct manners {
	uint32_t large;     /* a message may be large */
	uint32_t pin;       /* the sender goes over to the carrier for good */
	uint32_t step_down; /* the receiver does */
	uint32_t peek;
	uint32_t edge;   /* a receiver waits for news with octets unread */
	uint32_t fright; /* a sleeper wakes for no reason */
	uint32_t nap;    /* a receiver naps first */
	uint32_t bell;   /* it sleeps with a bell; and the sender finds that bell */
};

struct sender {
	struct lane_tx tx;
	struct area *area;
	struct carrier *carrier;
	struct dice dice;
	struct manners manners;
	int state;
	uint64_t end; /* the stream ends here */
	uint64_t sent;
	size_t left; /* of the message */
	uint64_t word;
	size_t room, copied;
	bool bell, pinned;
	bool rouse, wake, ring; /* what is still to be told */
	uint8_t octet;
	struct iovec piece[2];
	int pieces, at;
	uint64_t count[9]; /* ways taken */
};

struct receiver {
	struct lane_rx rx;
	struct area *area;
	struct carrier *carrier;
	struct dice dice;
	struct manners manners;
	int state;
	uint64_t end;
	size_t left; /* of what was asked for */
	uint64_t word;
	size_t limit;
	bool peek, plain, stepped, took, armed;
	bool belled;    /* it sleeps with its bell ... */
	uint32_t rings; /* ... has heard so many of its rings, and seen so much stirring */
	uint32_t stir;
	uint32_t wakes, value; /* of a nap */
	uint64_t since;        /* when it fell asleep, where time passes */
	bool edge;             /* it sleeps until there is more than ... */
	uint64_t told;         /* ... the place it knows */
	uint8_t *buffer;       /* STREAM_PIECE */
	struct iovec piece[2];
	int pieces, at;
	uint32_t patience;
	uint64_t count[9];
};

enum {
	COUNT_RING,
	COUNT_CARRIER,
	COUNT_BELL,
	COUNT_FULL,
	COUNT_LEAVE,
	COUNT_RECALL,
	COUNT_WAKE,
	COUNT_RANG,
	COUNT_KEPT
};
enum {
	COUNT_TAKEN,
	COUNT_LIMITED,
	COUNT_OPEN,
	COUNT_SLEPT,
	COUNT_BEHIND,
	COUNT_DOWN,
	COUNT_BACK,
	COUNT_NAPPED,
	COUNT_HEARD
};

/* Both ends at `pos`, of a lane through which `tail` octets and `turns` turns have gone. */
void course_begin(struct area *area, struct sender *s, struct receiver *r, uint64_t pos,
		  uint32_t tail, uint16_t turns);
/* False: nothing could be done. */
bool sender_step(struct sender *s);
bool receiver_step(struct receiver *r);
bool sender_is_done(const struct sender *s);
bool receiver_is_done(const struct receiver *r);
/* Must the sender still put octets on the carrier that it has promised, or tell of others? */
bool sender_owes(const struct sender *s);
/* Does the receiver rely on the carrier to wake it, and on its bell if that was not rung yet? */
bool receiver_sleeps(const struct receiver *r);
/* It naps, nobody has woken it, and something was published. */
bool receiver_oversleeps(const struct receiver *r);
/* ... and was something published that it did not know of? */
bool receiver_misses(const struct receiver *r);

/* Says what is wrong and ends the program. */
_Noreturn void course_fail(const char *what);
/* What to do then: tell how to see it again. */
extern void (*course_on_fail)(void);
#define COURSE_CHECK(cond)                  \
	do {                                \
		if (!(cond))                \
			course_fail(#cond); \
	} while (0)

#endif
