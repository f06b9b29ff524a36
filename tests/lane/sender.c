/* SPDX-License-Identifier: MIT */
/* The sending end, as stream_tx.c has it. */
#include <string.h>

#include "base/util.h"
#include "lane/course.h"

enum {
	IDLE, /* between two calls of the program */
	LOOK,
	COPY,
	PUBLISH,
	BELL, /* promised, not yet on the carrier */
	TELL, /* whoever naps or waits for its bell */
	WAKE,
	RING,
	RANG,
	CARRIER,
	FULL,
	LEAVE,
	LEAVE_NOW,
	RESEND, /* what was taken back goes by the carrier */
};

bool sender_is_done(const struct sender *s)
{
	return s->state == IDLE && s->sent == s->end;
}

bool sender_owes(const struct sender *s)
{
	return (s->state >= BELL && s->state <= RANG) || s->state == RESEND;
}

static uint64_t load(const struct sender *s)
{
	return atomic_load(&s->area->dir->word);
}

/* A message begins, or the peer wants something back meanwhile. */
static bool idle(struct sender *s)
{
	uint64_t word = load(s);

	if ((word & LANE_RECALL) && !(word & LANE_TAKING) && !atomic_load(&s->area->kept)) {
		s->state = LEAVE;
		return true;
	}
	if (s->sent == s->end)
		return false;
	if (dice_roll(&s->dice, 1000) < s->manners.pin)
		s->pinned = true;
	s->left = dice_size(&s->dice, dice_roll(&s->dice, 1000) < s->manners.large);
	s->left = (size_t)min_u64(s->left, s->end - s->sent);
	s->state = LOOK;
	return true;
}

static bool look(struct sender *s)
{
	enum lane_way way;

	if (s->left == 0) {
		s->state = IDLE;
		return true;
	}
	if (s->pinned && lane_tx_in_ring(&s->tx)) {
		s->state = LEAVE;
		return true;
	}
	if ((load(s) & LANE_BELLED) && dice_roll(&s->dice, 1000) < s->manners.bell)
		s->tx.can_ring = true;
	s->room = 0;
	way = lane_tx_look(&s->tx, s->left, &s->word, &s->room);
	COURSE_CHECK(way != LANE_BROKEN);
	COURSE_CHECK(s->tx.pos == s->sent);
	if (way == LANE_HELD)
		return false;
	COURSE_CHECK(s->room <= LANE_RING);
	s->bell = way == LANE_OCTET;
	if (way == LANE_LEAVE)
		s->state = LEAVE;
	else if (way == LANE_CARRIER || (s->pinned && way != LANE_FULL))
		s->state = CARRIER;
	else
		s->state = way == LANE_FULL ? FULL : COPY;
	return true;
}

static bool copy(struct sender *s)
{
	size_t n = min_size(s->room, s->left - s->bell);
	struct iovec iov = { (void *)(uintptr_t)(stream_at(s->sent) + s->bell), n };
	struct lane_iov from = { .iov = &iov, .count = 1 };

	s->octet = *stream_at(s->sent);
	s->copied = lane_tx_copy(&s->tx, &from, n);
	COURSE_CHECK(s->copied == n);
	s->state = PUBLISH;
	return true;
}

static bool publish(struct sender *s)
{
	s->state = LOOK;
	if (!lane_tx_publish(&s->tx, s->word, s->copied, s->bell))
		return true;
	s->sent += s->copied + s->bell;
	s->left -= s->copied + s->bell;
	COURSE_CHECK(s->tx.pos == s->sent);
	s->count[s->bell ? COUNT_BELL : COUNT_RING]++;
	COURSE_CHECK(!s->tx.belled || s->tx.can_ring);
	s->wake = s->tx.wake;
	s->ring = s->tx.belled;
	s->state = s->bell ? BELL : TELL;
	return true;
}

static bool ring_bell(struct sender *s)
{
	if (s->carrier->put(s->carrier, &s->octet, 1) == 0)
		return false;
	s->state = TELL;
	return true;
}

/* As tell() of stream_tx.c, in its order. */
static bool tell(struct sender *s)
{
	if (s->rouse && lane_tx_rouse(&s->tx))
		s->wake = true;
	s->rouse = false;
	atomic_fetch_add(&s->area->stir, 1);
	s->state = s->wake ? WAKE : s->ring ? RING : LOOK;
	return true;
}

static bool wake(struct sender *s)
{
	atomic_fetch_add(&s->area->wakes, 1);
	s->count[COUNT_WAKE]++;
	s->wake = false;
	s->state = s->ring ? RING : LOOK;
	return true;
}

static bool ring(struct sender *s)
{
	s->state = atomic_exchange(&s->area->rung, 1) ? LOOK : RANG;
	s->ring = false;
	return true;
}

static bool rang(struct sender *s)
{
	atomic_fetch_add(&s->area->rings, 1);
	s->count[COUNT_RANG]++;
	s->state = LOOK;
	return true;
}

/* Something has changed that nobody publishes: nappers must see it. */
static void rouse(struct sender *s)
{
	s->rouse = true;
	s->state = TELL;
}

static bool put_carrier(struct sender *s)
{
	size_t n = s->carrier->put(s->carrier, stream_at(s->sent), s->left);

	s->tx.pos += n;
	s->sent += n;
	s->left -= n;
	if (n == 0)
		return false;
	s->count[COUNT_CARRIER]++;
	rouse(s);
	return true;
}

/* Wait for room, or over to the carrier. */
static bool full(struct sender *s)
{
	s->count[COUNT_FULL]++;
	s->state = dice_roll(&s->dice, 4) == 0 ? LEAVE : LOOK;
	return true;
}

static bool leave(struct sender *s)
{
	uint32_t unread;

	s->word = load(s);
	if (s->word & LANE_TAKING)
		return false;
	if (s->word & LANE_TAKEN) {
		/* Takes note of what the receiver did. */
		COURSE_CHECK(lane_tx_look(&s->tx, 1, &s->word, &s->room) != LANE_BROKEN);
		s->state = s->left ? LOOK : IDLE;
		return true;
	}
	s->state = LEAVE_NOW;
	if (!(s->word & LANE_RECALL))
		return true;
	s->pieces = lane_tx_recall(&s->tx, s->piece);
	if (s->pieces < -2) {
		s->state = LEAVE; /* the receiver changed its mind */
		return true;
	}
	COURSE_CHECK(s->pieces == -2 || (s->pieces >= 0 && s->pieces <= 2));
	if (s->pieces == -2) {
		s->count[COUNT_KEPT]++;
		atomic_store(&s->area->kept, 1);
		return true;
	}
	s->count[COUNT_RECALL]++;
	unread = (uint32_t)(s->sent - s->tx.pos);
	s->sent = s->tx.pos;
	for (int i = 0; i < s->pieces; i++)
		unread -= (uint32_t)s->piece[i].iov_len;
	COURSE_CHECK(unread == 0);
	COURSE_CHECK(!lane_tx_in_ring(&s->tx));
	s->at = 0;
	s->state = RESEND;
	return true;
}

static bool leave_now(struct sender *s)
{
	s->state = s->left ? LOOK : IDLE;
	if (!lane_tx_in_ring(&s->tx))
		return true;
	s->count[COUNT_LEAVE]++;
	if (lane_tx_leave(&s->tx, s->word))
		rouse(s);
	else
		s->state = LEAVE;
	return true;
}

static bool resend(struct sender *s)
{
	struct iovec *p = &s->piece[s->at];
	size_t n;

	if (s->at >= s->pieces) {
		rouse(s);
		return true;
	}
	n = s->carrier->put(s->carrier, p->iov_base, p->iov_len);
	p->iov_base = (uint8_t *)p->iov_base + n;
	p->iov_len -= n;
	s->tx.pos += n;
	s->sent += n;
	if (p->iov_len == 0)
		s->at++;
	return n > 0;
}

bool sender_step(struct sender *s)
{
	static bool (*const step[])(struct sender *) = {
		[IDLE] = idle,           [LOOK] = look,      [COPY] = copy,
		[PUBLISH] = publish,     [BELL] = ring_bell, [TELL] = tell,
		[WAKE] = wake,           [RING] = ring,      [RANG] = rang,
		[CARRIER] = put_carrier, [FULL] = full,      [LEAVE] = leave,
		[LEAVE_NOW] = leave_now, [RESEND] = resend,
	};

	return step[s->state](s);
}
