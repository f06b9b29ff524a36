/* SPDX-License-Identifier: MIT */
/* The receiving end, as stream_rx.c has it. */
#include <string.h>
#include <time.h>

#include "base/util.h"
#include "channel/nap.h"
#include "lane/course.h"

enum {
	IDLE, /* between two calls of the program */
	LOOK,
	COPY,
	TAKEN,
	CARRIER,
	ENTER,
	INSIDE,
	EXIT,
	ASK, /* the ring is empty: does the carrier say anything? */
	NAP,
	NAP_FALL,
	NAPPED,
	ARM,
	ARM_LOOK,
	ANSWER, /* from here on the bell may be rung */
	ANSWERED,
	ASLEEP,
	DISARM,
	DOWN, /* stepping down to the carrier */
	DOWN_QUIET,
	AWAIT,  /* ... until the sender has taken back what is unread */
	TAKING, /* ... or doing that for it */
	PLAIN,
};

/* Nobody sleeps so long in a test that goes on. */
#define LONG_S 60

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
	return (uint64_t)t.tv_sec;
}

bool receiver_is_done(const struct receiver *r)
{
	return r->rx.pos == r->end;
}

bool receiver_sleeps(const struct receiver *r)
{
	return r->state == ASLEEP && !(r->belled && atomic_load(&r->area->rings) != r->rings);
}

bool receiver_oversleeps(const struct receiver *r)
{
	return r->state == NAPPED && atomic_load(&r->area->wakes) == r->wakes &&
	       lane_rx_stirs(&r->rx);
}

void course_begin(struct area *area, struct sender *s, struct receiver *r, uint64_t pos,
		  uint32_t tail, uint16_t turns)
{
	struct lane_dir *d = area->dir;

	/* As arena.c cleans a lane: turns of the lane's last life stay where they are. */
	atomic_store(&d->word, tail | (uint64_t)turns << LANE_TURN_SHIFT);
	atomic_store(&d->base, tail);
	atomic_store(&d->head, tail);
	atomic_store(&d->seen, turns);
	atomic_store(&area->kept, 0);
	atomic_store(&area->done, 0);
	s->area = r->area = area;
	s->state = r->state = IDLE;
	s->sent = pos;
	s->left = r->left = 0;
	s->pinned = r->plain = r->stepped = r->edge = r->belled = false;
	s->rouse = s->wake = s->ring = false;
	atomic_store(&area->rung, 0);
	lane_tx_init(&s->tx, d, area->ring, pos);
	lane_rx_init(&r->rx, d, area->ring, pos);
	s->tx.tail = s->tx.base = s->tx.head = r->rx.head = tail;
	s->tx.turns = r->rx.turns = turns;
}

static void check(const struct receiver *r, size_t skip, size_t n)
{
	COURSE_CHECK(r->rx.pos + skip + n <= r->end);
	COURSE_CHECK(memcmp(r->buffer, stream_at(r->rx.pos + skip), n) == 0);
}

/* Octets off the carrier; checked, and taken unless this is a peek. */
static size_t get(struct receiver *r, size_t most)
{
	size_t n = r->carrier->get(r->carrier, r->buffer, most, r->peek);

	check(r, 0, n);
	if (!r->peek) {
		lane_rx_taken(&r->rx, n, false);
		r->left -= n;
	}
	r->took = n > 0;
	return n;
}

static bool idle(struct receiver *r)
{
	if (receiver_is_done(r))
		return false;
	if (!r->stepped && dice_roll(&r->dice, 1000) < r->manners.step_down) {
		r->state = DOWN;
		return true;
	}
	if (!(atomic_load(&r->area->dir->word) & LANE_ATTACHED) && dice_roll(&r->dice, 2))
		lane_rx_attach(&r->rx);
	r->left = dice_size(&r->dice, dice_roll(&r->dice, 1000) < r->manners.large);
	r->left = min_size(r->left, STREAM_PIECE);
	r->peek = dice_roll(&r->dice, 1000) < r->manners.peek;
	r->state = LOOK;
	return true;
}

static bool look(struct receiver *r)
{
	enum lane_from from;

	if (r->left == 0) {
		r->state = IDLE;
		return true;
	}
	r->limit = 0;
	from = lane_rx_look(&r->rx, &r->word, &r->limit);
	COURSE_CHECK(from != LANE_FROM_BROKEN);
	COURSE_CHECK(from != LANE_FROM_RING || (r->limit > 0 && r->limit <= LANE_RING));
	/* A program that waits for news leaves octets where they are. */
	r->edge = from == LANE_FROM_RING && dice_roll(&r->dice, 1000) < r->manners.edge;
	r->told = r->word & LANE_PLACE;
	r->state = r->edge                     ? ARM
		   : from == LANE_FROM_RING    ? COPY
		   : from == LANE_FROM_CARRIER ? CARRIER
		   : from == LANE_FROM_OPEN    ? ENTER
					       : ASK;
	return true;
}

static void copy_ring(struct receiver *r, size_t skip, size_t n)
{
	struct iovec iov = { r->buffer, STREAM_PIECE };
	struct lane_iov to = { .iov = &iov, .count = 1 };

	COURSE_CHECK(lane_rx_copy(&r->rx, &to, 0, n) == n);
	check(r, skip, n);
}

static bool copy(struct receiver *r)
{
	r->limit = min_size(r->limit, r->left);
	copy_ring(r, 0, r->limit);
	r->state = r->peek ? IDLE : TAKEN;
	return true;
}

static bool taken(struct receiver *r)
{
	lane_rx_taken(&r->rx, r->limit, true);
	r->left -= r->limit;
	r->count[COUNT_TAKEN]++;
	r->state = LOOK;
	return true;
}

static bool carrier(struct receiver *r)
{
	size_t n = get(r, min_size(r->limit, r->left));

	r->count[COUNT_LIMITED]++;
	if (r->peek && n == r->limit) {
		size_t more = lane_rx_behind(&r->rx, r->word);

		r->count[COUNT_BEHIND] += more > 0;
		copy_ring(r, n, more);
	}
	r->state = r->peek ? IDLE : n > 0 ? LOOK : ARM;
	return true;
}

static bool enter(struct receiver *r)
{
	r->state = lane_rx_enter(&r->rx, r->word) ? INSIDE : LOOK;
	return true;
}

static bool inside(struct receiver *r)
{
	get(r, r->left);
	r->count[COUNT_OPEN]++;
	r->state = EXIT;
	return true;
}

static bool leave(struct receiver *r)
{
	lane_rx_exit(&r->rx);
	r->state = r->took ? IDLE : ARM;
	return true;
}

/* Octets on the carrier while the stream runs in the ring: they must have been announced. */
static bool ask(struct receiver *r)
{
	uint8_t octet;

	if (r->carrier->get(r->carrier, &octet, 1, true) > 0) {
		COURSE_CHECK(lane_rx_stirs(&r->rx));
		r->state = LOOK;
	} else {
		r->state = dice_roll(&r->dice, 4) == 0 ? IDLE : ARM;
		if (r->state == ARM && dice_roll(&r->dice, 1000) < r->manners.nap)
			r->state = NAP;
	}
	return true;
}

static bool nap(struct receiver *r)
{
	r->state = lane_rx_nap(&r->rx, &r->value) ? NAP_FALL : LOOK;
	return true;
}

/* As the kernel does it: nobody sleeps on a word that has changed. */
static bool nap_fall(struct receiver *r)
{
	r->wakes = atomic_load(&r->area->wakes);
	r->since = now();
	r->state = atomic_load(lane_nap_word(r->area->dir)) == r->value ? NAPPED : LOOK;
	return true;
}

/* Where time passes, nobody sleeps for ever. */
static void check_time(const struct receiver *r)
{
	if (r->carrier->fd[1] && now() - r->since > LONG_S)
		course_fail("the receiver is never woken");
}

static bool napped(struct receiver *r)
{
	if (atomic_load(&r->area->wakes) != r->wakes) {
		r->count[COUNT_NAPPED]++;
		r->state = LOOK;
		return true;
	}
	check_time(r);
	if (dice_roll(&r->dice, 1000) >= r->manners.fright)
		return false;
	r->state = ARM; /* its time is over */
	return true;
}

static bool arm(struct receiver *r)
{
	if (!r->edge)
		r->told = lane_rx_here(&r->rx);
	r->belled = dice_roll(&r->dice, 1000) < r->manners.bell;
	r->stir = atomic_load(&r->area->stir);
	r->armed = lane_rx_arm(&r->rx, r->told, r->belled);
	r->since = now();
	r->state = r->armed && r->belled ? ANSWER : r->armed ? ASLEEP : r->edge ? LOOK : ARM_LOOK;
	return true;
}

/* As epoll_answer(). */
static bool answer(struct receiver *r)
{
	atomic_store(&r->area->rung, 0);
	r->state = ANSWERED;
	return true;
}

static bool answered(struct receiver *r)
{
	r->state = atomic_load(&r->area->stir) != r->stir ? DISARM : ASLEEP;
	return true;
}

bool receiver_misses(const struct receiver *r)
{
	uint64_t word = atomic_load(&r->area->dir->word);

	return r->state == ASLEEP && r->armed && (uint32_t)word != (uint32_t)r->told;
}

static bool arm_look(struct receiver *r)
{
	enum lane_from from = lane_rx_look(&r->rx, &r->word, &r->limit);

	COURSE_CHECK(from != LANE_FROM_BROKEN);
	/* Octets are on their way by the carrier: they will wake us. */
	r->armed = r->belled = false;
	r->state = from == LANE_FROM_CARRIER ? ASLEEP : from == LANE_FROM_RING ? LOOK : ARM;
	return true;
}

static bool asleep(struct receiver *r)
{
	uint8_t octet;

	if (dice_roll(&r->dice, 1000) < (r->edge ? 300 : r->manners.fright)) {
		r->state = DISARM;
		return true;
	}
	if (r->belled && atomic_load(&r->area->rings) != r->rings) {
		r->count[COUNT_HEARD]++;
		r->state = DISARM;
		return true;
	}
	/* Nothing new may come at all. */
	if (r->edge && r->carrier->get(r->carrier, &octet, 1, true) == 0)
		return false;
	check_time(r);
	if (r->carrier->fd[1] && !r->belled && !r->carrier->await(r->carrier))
		course_fail("the receiver is never woken");
	if (r->carrier->get(r->carrier, &octet, 1, true) == 0)
		return false;
	r->count[COUNT_SLEPT]++;
	r->state = DISARM;
	return true;
}

static bool disarm(struct receiver *r)
{
	lane_rx_disarm(&r->rx);
	r->rings = atomic_load(&r->area->rings);
	r->edge = r->belled = false;
	r->state = r->plain ? PLAIN : dice_roll(&r->dice, 2) ? IDLE : LOOK;
	return true;
}

static bool down(struct receiver *r)
{
	r->stepped = true;
	r->count[COUNT_DOWN]++;
	atomic_fetch_or(&r->area->dir->word, LANE_GONE | LANE_RECALL);
	r->state = DOWN_QUIET;
	return true;
}

static bool down_quiet(struct receiver *r)
{
	atomic_fetch_and(&r->area->dir->word, ~LANE_WAITING);
	r->plain = true;
	r->patience = 1 + dice_roll(&r->dice, 200);
	r->state = lane_rx_stirs(&r->rx) ? AWAIT : PLAIN;
	return true;
}

static bool await(struct receiver *r)
{
	uint64_t word = atomic_load(&r->area->dir->word);

	if (!(word & LANE_RECALL)) {
		r->state = PLAIN;
		return true;
	}
	/* Nobody empties the carrier meanwhile: only what fits, and only when it is empty. */
	if (dice_roll(&r->dice, 4) == 0 && lane_rx_in_ring(&r->rx) &&
	    lane_rx_unread(&r->rx) <= r->carrier->fits) {
		r->pieces = lane_rx_take_back(&r->rx, r->piece);
		r->at = 0;
		if (r->pieces >= 0) {
			r->count[COUNT_BACK]++;
			r->state = TAKING;
			return true;
		}
	}
	/* A sender that has left cannot keep the order, and one may be asleep on a full carrier. */
	if ((lane_word_turns(word) & 1) && !atomic_load(&r->area->kept) && r->patience-- > 0)
		return false;
	/* It must be read from the ring after all. */
	word = atomic_fetch_and(&r->area->dir->word, ~LANE_RECALL);
	r->plain = !(word & LANE_RECALL);
	r->state = r->plain ? PLAIN : IDLE;
	return true;
}

/* The sender's work, on its end of the carrier. */
static bool take_back(struct receiver *r)
{
	struct iovec *p = &r->piece[r->at];
	size_t n;

	if (r->at == r->pieces) {
		lane_rx_taken_back(&r->rx, true);
		r->state = PLAIN;
		return true;
	}
	n = r->carrier->put(r->carrier, p->iov_base, p->iov_len);
	p->iov_base = (uint8_t *)p->iov_base + n;
	p->iov_len -= n;
	if (p->iov_len == 0)
		r->at++;
	COURSE_CHECK(n > 0);
	return true;
}

/* On TCP for good: whatever is on the carrier is next. */
static bool plain(struct receiver *r)
{
	if (receiver_is_done(r))
		return false;
	r->left = STREAM_PIECE;
	r->peek = false;
	return get(r, r->left) > 0;
}

bool receiver_step(struct receiver *r)
{
	static bool (*const step[])(struct receiver *) = {
		[IDLE] = idle,         [LOOK] = look,
		[COPY] = copy,         [TAKEN] = taken,
		[CARRIER] = carrier,   [ENTER] = enter,
		[INSIDE] = inside,     [EXIT] = leave,
		[ASK] = ask,           [NAP] = nap,
		[NAP_FALL] = nap_fall, [NAPPED] = napped,
		[ANSWER] = answer,     [ANSWERED] = answered,
		[ARM] = arm,           [ARM_LOOK] = arm_look,
		[ASLEEP] = asleep,     [DISARM] = disarm,
		[DOWN] = down,         [DOWN_QUIET] = down_quiet,
		[AWAIT] = await,       [TAKING] = take_back,
		[PLAIN] = plain,
	};

	return step[r->state](r);
}
