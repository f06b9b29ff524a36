/* SPDX-License-Identifier: MIT */
/*
 * Sending on a trunk. Only the sender counts credit: it knows which circuit each block went to, and a block counts until it
 * comes back. A circuit has `guarantee` blocks that nobody else can take; beyond them it may have as many of the
 * common surplus as are still free there, so that one that stalls keeps half of it at most.
 *
 * Who was refused credit is *starved*, and told when there is enough for it again: at once when a block of its own comes
 * back, in turn with all others that are starved when surplus does.
 */
#include <errno.h>
#include <limits.h>
#include <string.h>

#include "base/util.h"
#include "channel/copy.h"
#include "channel/trunk_priv.h"

uint32_t trunk_credit(const struct trunk *t, const struct circuit *k)
{
	uint32_t g = t->shape.guarantee, spare = t->surplus - t->surplus_used;
	uint32_t own = k->out < g ? g - k->out : 0;
	uint32_t over = k->out > g ? k->out - g : 0;
	uint32_t more = spare > over ? (spare - over + 1) / 2 : 0;

	if (k->out >= k->limit)
		return 0;
	return min_u32(own + more, k->limit - k->out);
}

/* --- entries */

/* How far the peer has come in our ring. */
static void see_head(struct trunk *t)
{
	/* Acquire: the peer's trunk_leave() released it; a place in the ring is written again only behind that. */
	uint32_t head = atomic_load_explicit(&t->peer->head, memory_order_acquire);

	if (head - t->head_seen > t->tail - t->head_seen)
		trunk_fail(t, -EPROTO);
	else
		t->head_seen = head;
}

static void push(struct trunk *t, struct trunk_entry e)
{
	/* Blocks under way and entries without one are never more than the ring holds, if the peer tells the truth. */
	if (t->tail - t->head_seen >= ring_size(t))
		see_head(t);
	if (t->tail - t->head_seen >= ring_size(t))
		trunk_fail(t, -EPROTO);
	if (t->status)
		return;
	atomic_store_explicit(&t->out_ring[t->tail & (ring_size(t) - 1)], entry_word(e),
			      memory_order_relaxed);
	t->tail++;
}

/* A free block for a circuit that has credit. */
static uint32_t take_block(struct trunk *t, uint32_t c)
{
	struct circuit *k = &t->circuit[c];
	uint32_t block = t->free[--t->n_free];

	t->owner[block] = c;
	if (k->out++ >= t->shape.guarantee)
		t->surplus_used++;
	return block;
}

static uint8_t *block_at(const struct trunk *t, uint32_t block)
{
	return t->out_blocks + (size_t)block * t->shape.block_size;
}

bool trunk_put(struct trunk *t, uint32_t c, enum trunk_type type, uint8_t kind, const void *data,
	       size_t size)
{
	uint32_t block;

	if (trunk_credit(t, &t->circuit[c]) == 0)
		trunk_reclaim(t);
	if (t->status || trunk_credit(t, &t->circuit[c]) == 0)
		return false;
	block = take_block(t, c);
	if (size)
		memcpy(block_at(t, block), data, size);
	push(t, (struct trunk_entry) { c, block, (uint32_t)size, kind, type });
	return true;
}

/* --- blocks that come back */

bool trunk_has_back(const struct trunk *t)
{
	return atomic_load_explicit(&t->peer->given, memory_order_relaxed) != t->n_back;
}

void trunk_starve(struct trunk *t, struct circuit *k)
{
	uint32_t c = (uint32_t)(k - t->circuit);

	k->need += k->need == 0;
	/* When all is over nothing will come. */
	if (k->flags & CIRCUIT_STARVED || t->status)
		return;
	k->flags |= CIRCUIT_STARVED;
	t->n_starved++;
	k->next_starved = TRUNK_NONE;
	k->prev_starved = t->starved.last;
	if (t->starved.last == TRUNK_NONE)
		t->starved.first = c;
	else
		t->circuit[t->starved.last].next_starved = c;
	t->starved.last = c;
	trunk_arm_for_room(t);
}

static void starve(struct trunk *t, struct circuit *k, uint32_t need)
{
	k->need = need;
	trunk_starve(t, k);
}

void trunk_unstarve(struct trunk *t, struct circuit *k)
{
	if (!(k->flags & CIRCUIT_STARVED))
		return;
	k->flags &= (uint8_t)~CIRCUIT_STARVED;
	t->n_starved--;
	t->to_feed = min_u32(t->to_feed, t->n_starved);
	if (k->prev_starved == TRUNK_NONE)
		t->starved.first = k->next_starved;
	else
		t->circuit[k->prev_starved].next_starved = k->next_starved;
	if (k->next_starved == TRUNK_NONE)
		t->starved.last = k->prev_starved;
	else
		t->circuit[k->next_starved].prev_starved = k->prev_starved;
}

/* Its credit may have grown. */
static void feed(struct trunk *t, uint32_t c)
{
	struct circuit *k = &t->circuit[c];

	if (!(k->flags & CIRCUIT_STARVED) || trunk_credit(t, k) < k->need)
		return;
	trunk_unstarve(t, k);
	trunk_tell(t, c, TRUNK_WRITABLE);
}

/* Thousands may be starved, and what comes back feeds few of them: so many are looked at in a call. */
#define FEED_LOOKS 64

void trunk_feed(struct trunk *t)
{
	/* Those who were told first have taken it; the others are first when there is more. */
	if (t->surplus_used == t->surplus)
		t->to_feed = 0;
	for (int i = 0; i < FEED_LOOKS && t->to_feed; i++) {
		uint32_t c = t->starved.first;
		struct circuit *k = &t->circuit[c];

		t->to_feed--;
		feed(t, c);
		if (!(k->flags & CIRCUIT_STARVED))
			continue;
		/* Behind the others. */
		trunk_unstarve(t, k);
		trunk_starve(t, k);
	}
}

/* It is with `c` no more. */
static void free_block(struct trunk *t, uint32_t block, uint32_t c)
{
	struct circuit *k = &t->circuit[c];

	t->owner[block] = TRUNK_NONE;
	t->free[t->n_free++] = block;
	if (k->out-- > t->shape.guarantee) {
		t->surplus_used--;
		/* Any of them may have been waiting for it, those with nothing of their own under way as well. */
		t->to_feed = t->n_starved;
		t->is_news |= t->to_feed > 0;
	}
	feed(t, c);
}

static bool take_back(struct trunk *t, uint32_t block)
{
	/* One that is free, or still the client's, cannot come back. */
	if (block >= t->shape.blocks || t->owner[block] >= t->shape.circuits)
		return false;
	free_block(t, block, t->owner[block]);
	return true;
}

void trunk_reclaim(struct trunk *t)
{
	/* Acquire: the peer's trunk_leave() released it, behind the numbers in the ring. */
	uint32_t given = atomic_load_explicit(&t->peer->given, memory_order_acquire);
	uint32_t mask = t->shape.blocks - 1;

	if (t->status)
		return;
	if (given - t->n_back > t->shape.blocks) {
		trunk_fail(t, -EPROTO);
		return;
	}
	while (t->n_back != given) {
		uint32_t block = atomic_load_explicit(&t->back[t->n_back & mask],
						      memory_order_relaxed);

		if (!take_back(t, block)) {
			trunk_fail(t, -EPROTO);
			return;
		}
		t->n_back++;
	}
	see_head(t);
}

/* --- entries without a block */

static void pay_one(struct trunk *t, uint32_t c)
{
	struct circuit *k = &t->circuit[c];

	if (k->flags & CIRCUIT_OWES_FIN)
		push(t, (struct trunk_entry) { .circuit = c, .type = ENTRY_FIN });
	if (k->flags & CIRCUIT_OWES_CLOSE)
		push(t, (struct trunk_entry) {
				.circuit = c, .kind = k->own_code, .type = ENTRY_CLOSE });
	k->flags &= (uint8_t) ~(CIRCUIT_OWES | CIRCUIT_OWES_FIN | CIRCUIT_OWES_CLOSE);
	trunk_maybe_free(t, c);
}

/* So few entries are under way that blocks, too, find room whatever else comes (see push()). */
static bool has_place(const struct trunk *t)
{
	return t->tail - t->head_seen + 2 <= t->shape.blocks;
}

void trunk_pay(struct trunk *t)
{
	if (t->owing.first == TRUNK_NONE)
		return;
	see_head(t);
	while (t->owing.first != TRUNK_NONE && !t->status && has_place(t)) {
		uint32_t c = t->owing.first;

		t->owing.first = t->circuit[c].next;
		pay_one(t, c);
	}
}

void trunk_owe(struct trunk *t, uint32_t c, unsigned what)
{
	struct circuit *k = &t->circuit[c];

	if (t->status)
		return;
	if (!(k->flags & CIRCUIT_OWES))
		trunk_append(t, &t->owing, c);
	k->flags |= (uint8_t)(CIRCUIT_OWES | what);
	trunk_pay(t);
	if (t->owing.first == TRUNK_NONE)
		return;
	trunk_arm_for_room(t);
	/* The peer may have made room before it saw that. */
	trunk_pay(t);
}

/* --- the calls */

/* Where the next octet of the caller's is. */
struct gather {
	const struct iovec *iov;
	size_t skip;
};

static void gather(struct gather *g, uint8_t *to, size_t size)
{
	while (size) {
		size_t n = min_size(g->iov->iov_len - g->skip, size);

		if (n)
			copy_to_peer(to, (const uint8_t *)g->iov->iov_base + g->skip, n);
		to += n;
		size -= n;
		g->skip += n;
		if (g->skip == g->iov->iov_len) {
			g->iov++;
			g->skip = 0;
		}
	}
}

static bool sum(const struct iovec *iov, int n, size_t *total)
{
	*total = 0;
	for (int i = 0; i < n; i++) {
		if (iov[i].iov_len > SSIZE_MAX - *total)
			return false;
		*total += iov[i].iov_len;
	}
	return true;
}

static int check_send(struct trunk *t, uint32_t c)
{
	struct circuit *k = circuit_at(t, c);

	if (!k)
		return -ENOTCONN;
	if (t->status || k->flags & (CIRCUIT_SHUT | CIRCUIT_ENDED))
		return -EPIPE;
	return k->state == CIRCUIT_LIVE ? 0 : -ENOTCONN;
}

/* How many blocks can go now; 0: not enough, `k` is starved. */
static uint32_t allow(struct trunk *t, struct circuit *k, uint64_t want, bool whole)
{
	uint32_t credit = trunk_credit(t, k);

	if (credit < want) {
		trunk_reclaim(t);
		credit = trunk_credit(t, k);
	}
	k->need = 0;
	trunk_unstarve(t, k);
	if (credit >= want)
		return (uint32_t)want;
	starve(t, k, whole ? (uint32_t)want : 1);
	return whole ? 0 : credit;
}

/* More than a circuit can ever have at once. */
static bool is_too_long(const struct trunk *t, const struct circuit *k, uint64_t blocks)
{
	return blocks > min_u32(t->shape.guarantee + (t->surplus + 1) / 2, k->limit);
}

static size_t send_blocks(struct trunk *t, uint32_t c, const struct iovec *iov, size_t size,
			  uint32_t blocks, uint8_t kind, bool end)
{
	struct gather g = { iov, 0 };
	size_t done = 0;

	for (uint32_t i = 0; i < blocks && !t->status; i++) {
		size_t n = min_size(size - done, t->shape.block_size);
		uint32_t block = take_block(t, c);

		gather(&g, block_at(t, block), n);
		done += n;
		push(t, (struct trunk_entry) { c, block, (uint32_t)n, kind,
					       end && done == size ? ENTRY_LAST : ENTRY_PART });
	}
	return done;
}

ssize_t trunk_send(struct trunk *t, uint32_t c, const struct iovec *iov, int n, uint8_t kind,
		   unsigned flags)
{
	bool end = !(flags & TRUNK_MORE), whole = flags & TRUNK_WHOLE;
	uint64_t want;
	uint32_t blocks;
	size_t size;
	ssize_t rc;
	int no;

	if (!sum(iov, n, &size))
		return -EINVAL;
	if (!trunk_enter(t, &no))
		return no;
	rc = check_send(t, c);
	want = size ? (size + t->shape.block_size - 1) / t->shape.block_size : end;
	if (rc == 0 && whole && is_too_long(t, &t->circuit[c], want))
		rc = -EMSGSIZE;
	if (rc == 0 && want) {
		blocks = allow(t, &t->circuit[c], want, whole);
		if (t->status)
			rc = -EPIPE;
		else if (blocks)
			rc = (ssize_t)send_blocks(t, c, iov, size, blocks, kind, end);
		else
			rc = -EAGAIN;
	}
	trunk_leave(t);
	return rc;
}

int trunk_claim(struct trunk *t, uint32_t c, struct trunk_block *block)
{
	uint32_t index;
	int rc;

	if (!trunk_enter(t, &rc))
		return rc;
	rc = check_send(t, c);
	if (rc == 0)
		rc = allow(t, &t->circuit[c], 1, true) ? 1 : -EAGAIN;
	if (t->status)
		rc = -EPIPE;
	if (rc == 1) {
		index = take_block(t, c);
		t->owner[index] |= CLAIMED;
		*block = (struct trunk_block) { .data = block_at(t, index),
						.size = t->shape.block_size,
						.index = index };
	}
	trunk_leave(t);
	return rc;
}

/* A block that the client has; its circuit, or TRUNK_NONE. */
static uint32_t claimed_by(const struct trunk *t, uint32_t index)
{
	if (index >= t->shape.blocks || t->owner[index] == TRUNK_NONE ||
	    !(t->owner[index] & CLAIMED))
		return TRUNK_NONE;
	return t->owner[index] & ~CLAIMED;
}

int trunk_post(struct trunk *t, uint32_t c, uint32_t index, uint32_t size, uint8_t kind)
{
	int rc;

	if (!trunk_enter(t, &rc))
		return rc;
	rc = claimed_by(t, index) != c ? -EINVAL : check_send(t, c);
	if (rc == 0 && size > t->shape.block_size)
		rc = -EMSGSIZE;
	if (rc == 0) {
		t->owner[index] = c;
		push(t, (struct trunk_entry) { c, index, size, kind, ENTRY_LAST });
		rc = t->status ? -EPIPE : 0;
	} else if (rc != -EINVAL) {
		free_block(t, index, c);
	}
	trunk_leave(t);
	return rc;
}

void trunk_unclaim(struct trunk *t, uint32_t index)
{
	uint32_t c;
	int no;

	if (!trunk_enter(t, &no))
		return;
	c = claimed_by(t, index);
	if (c != TRUNK_NONE)
		free_block(t, index, c);
	trunk_leave(t);
}

uint32_t trunk_out(struct trunk *t, uint32_t c)
{
	uint32_t out;
	int no;

	if (c >= t->shape.circuits || !trunk_enter(t, &no))
		return 0;
	if (trunk_has_back(t))
		trunk_reclaim(t);
	out = t->circuit[c].out;
	trunk_leave(t);
	return out;
}

uint32_t trunk_room(struct trunk *t, uint32_t c)
{
	uint32_t room = 0;
	int no;

	if (!trunk_enter(t, &no))
		return 0;
	if (check_send(t, c) == 0) {
		trunk_reclaim(t);
		room = trunk_credit(t, &t->circuit[c]);
		if (room == 0)
			starve(t, &t->circuit[c], 1);
	}
	trunk_leave(t);
	return t->status ? 0 : room;
}

void trunk_set_limit(struct trunk *t, uint32_t c, uint32_t blocks)
{
	int no;

	if (!trunk_enter(t, &no))
		return;
	if (circuit_at(t, c)) {
		t->circuit[c].limit = blocks;
		feed(t, c);
	}
	trunk_leave(t);
}

int trunk_shut(struct trunk *t, uint32_t c)
{
	int rc;

	if (!trunk_enter(t, &rc))
		return rc;
	rc = check_send(t, c);
	if (rc == 0) {
		t->circuit[c].flags |= CIRCUIT_SHUT;
		trunk_unstarve(t, &t->circuit[c]);
		trunk_owe(t, c, CIRCUIT_OWES_FIN);
	}
	trunk_leave(t);
	return rc;
}
