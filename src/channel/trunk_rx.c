/* SPDX-License-Identifier: MIT */
/*
 * Receiving on a trunk. Entries of all circuits come in one ring; they are taken in without waiting for anybody and put into
 * a queue for each circuit, whose links are in our own memory: so a hostile peer cannot bend them, and nothing is
 * allocated. A block is ours from its entry on until it is given back.
 */
#include <errno.h>
#include <string.h>

#include "base/util.h"
#include "channel/copy.h"
#include "channel/trunk_priv.h"

/* --- blocks */

void trunk_give_back(struct trunk *t, uint32_t block)
{
	t->rx[block].where = BLOCK_AWAY;
	if (t->status)
		return;
	/* Each block is given back once for each time it came, so the ring cannot overflow. */
	atomic_store_explicit(&t->give_ring[t->given & (t->shape.blocks - 1)], block,
			      memory_order_relaxed);
	t->given++;
}

static uint32_t unqueue(struct trunk *t, struct circuit *k)
{
	uint32_t block = k->first;

	k->first = t->rx[block].next;
	k->offset = 0;
	k->ends -= t->rx[block].end;
	return block;
}

void trunk_empty(struct trunk *t, struct circuit *k)
{
	while (k->first != TRUNK_NONE)
		trunk_give_back(t, unqueue(t, k));
	if (k->greeting != TRUNK_NONE)
		trunk_give_back(t, k->greeting);
	k->greeting = TRUNK_NONE;
}

static void queue(struct trunk *t, struct circuit *k, const struct trunk_entry *e)
{
	t->rx[e->block] = (struct trunk_rx) { .next = TRUNK_NONE,
					      .len = e->len,
					      .kind = e->kind,
					      .end = e->type == ENTRY_LAST,
					      .where = BLOCK_QUEUED };
	if (k->first == TRUNK_NONE)
		k->first = e->block;
	else
		t->rx[k->last].next = e->block;
	k->last = e->block;
	k->ends += e->type == ENTRY_LAST;
}

static void greet(struct trunk *t, struct circuit *k, const struct trunk_entry *e)
{
	t->rx[e->block] = (struct trunk_rx) { .len = e->len, .where = BLOCK_QUEUED };
	k->greeting = e->block;
}

/* --- entries; false: it cannot be */

static bool is_ours(const struct trunk *t, uint32_t c)
{
	return c % 2 == t->side;
}

static bool take_open(struct trunk *t, const struct trunk_entry *e)
{
	struct circuit *k = &t->circuit[e->circuit];

	if (is_ours(t, e->circuit) || k->state != CIRCUIT_FREE)
		return false;
	trunk_begin(t, e->circuit, CIRCUIT_OFFERED);
	greet(t, k, e);
	trunk_tell(t, e->circuit, TRUNK_OPENED);
	return true;
}

/* The answer to our opening. */
static bool take_answer(struct trunk *t, const struct trunk_entry *e)
{
	struct circuit *k = &t->circuit[e->circuit];
	bool refused = e->type == ENTRY_REFUSE;

	if (!is_ours(t, e->circuit) || k->flags & CIRCUIT_ENDED)
		return false;
	if (k->state != CIRCUIT_OPENING && k->state != CIRCUIT_LEFT)
		return false;
	if (refused)
		k->flags |= CIRCUIT_ENDED;
	if (k->state == CIRCUIT_LEFT) {
		trunk_give_back(t, e->block);
		trunk_maybe_free(t, e->circuit);
		return true;
	}
	greet(t, k, e);
	k->state = refused ? CIRCUIT_REFUSED : CIRCUIT_LIVE;
	k->code = e->kind;
	trunk_tell(t, e->circuit, refused ? TRUNK_REFUSED : TRUNK_ACCEPTED);
	return true;
}

static bool take_data(struct trunk *t, const struct trunk_entry *e)
{
	struct circuit *k = &t->circuit[e->circuit];

	if (k->flags & (CIRCUIT_FINISHED | CIRCUIT_ENDED))
		return false;
	if (k->state == CIRCUIT_LEFT) {
		trunk_give_back(t, e->block);
		return true;
	}
	if (k->state != CIRCUIT_LIVE)
		return false;
	queue(t, k, e);
	trunk_tell(t, e->circuit, TRUNK_READABLE);
	return true;
}

static bool take_fin(struct trunk *t, const struct trunk_entry *e)
{
	struct circuit *k = &t->circuit[e->circuit];

	if (k->flags & (CIRCUIT_FINISHED | CIRCUIT_ENDED) ||
	    (k->state != CIRCUIT_LIVE && k->state != CIRCUIT_LEFT))
		return false;
	k->flags |= CIRCUIT_FINISHED;
	trunk_tell(t, e->circuit, TRUNK_SHUT);
	return true;
}

static bool take_close(struct trunk *t, const struct trunk_entry *e)
{
	struct circuit *k = &t->circuit[e->circuit];

	if (k->state == CIRCUIT_FREE || k->flags & CIRCUIT_ENDED)
		return false;
	k->flags |= CIRCUIT_ENDED;
	k->code = e->kind;
	trunk_unstarve(t, k);
	trunk_tell(t, e->circuit, TRUNK_ENDED);
	trunk_maybe_free(t, e->circuit);
	return true;
}

static bool has_block(const struct trunk_entry *e)
{
	return e->type >= ENTRY_OPEN && e->type <= ENTRY_LAST;
}

static bool take_entry(struct trunk *t, const struct trunk_entry *e)
{
	if (e->circuit >= t->shape.circuits)
		return false;
	/* A block that we have cannot come again. */
	if (has_block(e) && (e->block >= t->shape.blocks || e->len > t->shape.block_size ||
			     t->rx[e->block].where != BLOCK_AWAY))
		return false;
	switch (e->type) {
	case ENTRY_OPEN: return take_open(t, e);
	case ENTRY_ACCEPT:
	case ENTRY_REFUSE: return take_answer(t, e);
	case ENTRY_PART:
	case ENTRY_LAST: return take_data(t, e);
	case ENTRY_FIN: return take_fin(t, e);
	case ENTRY_CLOSE: return take_close(t, e);
	default: return false;
	}
}

bool trunk_has_in(const struct trunk *t)
{
	return atomic_load_explicit(&t->peer->tail, memory_order_relaxed) != t->head;
}

void trunk_take_in(struct trunk *t)
{
	/* Acquire: the peer's trunk_leave() released it, behind entries and blocks. */
	uint32_t tail = atomic_load_explicit(&t->peer->tail, memory_order_acquire);

	if (t->status)
		return;
	if (tail - t->head > ring_size(t)) {
		trunk_fail(t, -EPROTO);
		return;
	}
	while (t->head != tail) {
		/* All of it at once: there is no second look at what the peer may change. */
		struct trunk_entry e = entry_of(atomic_load_explicit(
			&t->in_ring[t->head & (ring_size(t) - 1)], memory_order_relaxed));

		if (!take_entry(t, &e)) {
			trunk_fail(t, -EPROTO);
			return;
		}
		t->head++;
	}
}

/* --- the calls */

/* What is said when nothing is in the queue. */
static int nothing(const struct trunk *t, const struct circuit *k)
{
	bool reset = k->flags & CIRCUIT_ENDED && (k->code || !(k->flags & CIRCUIT_FINISHED));

	if (k->state != CIRCUIT_LIVE)
		return k->state == CIRCUIT_REFUSED ? -ECONNREFUSED : -ENOTCONN;
	if (reset)
		return -ECONNRESET;
	if (k->flags & CIRCUIT_FINISHED)
		return 0;
	return t->status ? -ECONNRESET : -EAGAIN;
}

/* The first message, as far as it is here. */
static void look_at(const struct trunk *t, const struct circuit *k, struct trunk_message *m)
{
	uint32_t block = k->first, skip = k->offset;

	*m = (struct trunk_message) { .kind = t->rx[block].kind };
	for (; block != TRUNK_NONE && !m->end; block = t->rx[block].next) {
		m->size += t->rx[block].len - skip;
		m->end = t->rx[block].end;
		skip = 0;
	}
}

static const uint8_t *block_at(const struct trunk *t, uint32_t block)
{
	return t->in_blocks + (size_t)block * t->shape.block_size;
}

/* Where the next octet of the caller's goes. */
struct scatter {
	const struct iovec *iov;
	int n;
	size_t skip;
};

/* As much as fits. */
static size_t scatter(struct scatter *s, const uint8_t *from, size_t size)
{
	size_t done = 0;

	while (done < size && s->n > 0) {
		size_t n = min_size(s->iov->iov_len - s->skip, size - done);

		if (n)
			copy_from_peer((uint8_t *)s->iov->iov_base + s->skip, from + done, n);
		done += n;
		s->skip += n;
		if (s->skip == s->iov->iov_len) {
			s->iov++;
			s->n--;
			s->skip = 0;
		}
	}
	return done;
}

/* Octets into the caller's memory, up to the end of the first message if `message`. */
static size_t read_blocks(struct trunk *t, struct circuit *k, struct scatter s, unsigned flags,
			  struct trunk_message *m)
{
	uint32_t block = k->first, skip = k->offset, left;
	size_t done = 0, n;

	*m = (struct trunk_message) { .kind = t->rx[block].kind };
	while (block != TRUNK_NONE) {
		uint32_t next = t->rx[block].next;
		bool end = t->rx[block].end;

		left = t->rx[block].len - skip;
		n = scatter(&s, block_at(t, block) + skip, left);
		done += n;
		m->end = end && n == left;
		if (n < left) {
			if (!(flags & TRUNK_PEEK))
				k->offset = skip + (uint32_t)n;
			break;
		}
		if (!(flags & TRUNK_PEEK))
			trunk_give_back(t, unqueue(t, k));
		if ((flags & TRUNK_MESSAGE) && end)
			break;
		/* Messages of no octets behind what was read are left for a caller who may want to know. */
		if (s.n == 0)
			break;
		block = next;
		skip = 0;
	}
	m->size = done;
	return done;
}

static size_t room_in(const struct iovec *iov, int n)
{
	size_t room = 0;

	for (int i = 0; i < n; i++)
		room = iov[i].iov_len > SIZE_MAX - room ? SIZE_MAX : room + iov[i].iov_len;
	return room;
}

static ssize_t receive(struct trunk *t, struct circuit *k, struct scatter s, unsigned flags,
		       struct trunk_message *m)
{
	bool message = flags & TRUNK_MESSAGE;
	size_t done = 0, room = room_in(s.iov, s.n);

	*m = (struct trunk_message) { 0 };
	if (message ? k->ends == 0 : k->first == TRUNK_NONE)
		trunk_take_in(t);
	if (message) {
		if (k->ends == 0)
			return nothing(t, k);
		look_at(t, k, m);
		if (m->size > room)
			return -EMSGSIZE;
		return (ssize_t)read_blocks(t, k, s, flags, m);
	}
	if (room == 0)
		return 0;
	if (k->first != TRUNK_NONE)
		done = read_blocks(t, k, s, flags, m);
	/* Messages of no octets are nothing in a stream. */
	return done ? (ssize_t)done : nothing(t, k);
}

ssize_t trunk_recv(struct trunk *t, uint32_t c, const struct iovec *iov, int n, unsigned flags,
		   struct trunk_message *msg)
{
	struct trunk_message own;
	struct circuit *k;
	ssize_t rc = -ENOTCONN;
	int no;

	if (!trunk_enter(t, &no))
		return no;
	k = circuit_at(t, c);
	if (k)
		rc = receive(t, k, (struct scatter) { iov, n, 0 }, flags, msg ? msg : &own);
	trunk_leave(t);
	return rc;
}

int trunk_next(struct trunk *t, uint32_t c, struct trunk_message *msg)
{
	struct circuit *k;
	int rc;

	if (!trunk_enter(t, &rc))
		return rc;
	rc = -ENOTCONN;
	*msg = (struct trunk_message) { 0 };
	k = circuit_at(t, c);
	if (k) {
		if (k->ends == 0)
			trunk_take_in(t);
		rc = k->first == TRUNK_NONE ? nothing(t, k) : 1;
		if (k->first != TRUNK_NONE)
			look_at(t, k, msg);
	}
	trunk_leave(t);
	return rc;
}

static void take(struct trunk *t, struct circuit *k, struct trunk_block *b)
{
	uint32_t skip = k->offset, block = unqueue(t, k);

	t->rx[block].where = BLOCK_TAKEN;
	*b = (struct trunk_block) { .data = (uint8_t *)block_at(t, block) + skip,
				    .size = t->rx[block].len - skip,
				    .index = block,
				    .kind = t->rx[block].kind,
				    .end = t->rx[block].end };
}

int trunk_take(struct trunk *t, uint32_t c, struct trunk_block *block)
{
	struct circuit *k;
	int rc;

	if (!trunk_enter(t, &rc))
		return rc;
	rc = -ENOTCONN;
	*block = (struct trunk_block) { 0 };
	k = circuit_at(t, c);
	if (k) {
		if (k->first == TRUNK_NONE)
			trunk_take_in(t);
		rc = k->first == TRUNK_NONE ? nothing(t, k) : 1;
		if (k->first != TRUNK_NONE)
			take(t, k, block);
	}
	trunk_leave(t);
	return rc;
}

void trunk_give(struct trunk *t, uint32_t index)
{
	int no;

	if (!trunk_enter(t, &no))
		return;
	if (index < t->shape.blocks && t->rx[index].where == BLOCK_TAKEN)
		trunk_give_back(t, index);
	trunk_leave(t);
}
