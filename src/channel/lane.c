/* SPDX-License-Identifier: MIT */
#include <string.h>

#include "base/util.h"
#include "channel/copy.h"
#include "channel/lane.h"

#define MASK (LANE_RING - 1)

/* Acquire: with the release of lane_tx_publish() and lane_tx_leave(), so that octets, turns and `base` before it are seen; and
 * of the receiver's flags, lane_rx_*(). */
static uint64_t load_word(const struct lane_dir *dir)
{
	return atomic_load_explicit(&dir->word, memory_order_acquire);
}

void lane_tx_init(struct lane_tx *tx, struct lane_dir *dir, uint8_t *ring, uint64_t pos)
{
	tx->dir = dir;
	tx->ring = ring;
	tx->pos = pos;
	tx->base = tx->head = 0;
	tx->wake = tx->belled = false;
	/* What others may look at. */
	LANE_STORE(tx->tail, 0);
	LANE_STORE(tx->turns, 0);
	LANE_STORE(tx->high, 0);
	LANE_STORE(tx->less, 0);
	LANE_STORE(tx->can_ring, false);
}

void lane_rx_init(struct lane_rx *rx, struct lane_dir *dir, uint8_t *ring, uint64_t pos)
{
	*rx = (struct lane_rx) { .dir = dir, .ring = ring, .pos = pos };
}

void lane_tx_set_limit(struct lane_tx *tx, uint64_t limit)
{
	uint32_t most = (uint32_t)min_u64(limit, LANE_RING);

	if (most == lane_tx_limit(tx))
		return;
	LANE_STORE(tx->less, LANE_RING - most);
	atomic_store_explicit(&tx->dir->limit, most < LANE_RING ? most : 0, memory_order_relaxed);
}

/* What the ring takes now. */
static uint32_t tx_room(const struct lane_tx *tx)
{
	uint32_t limit = lane_tx_limit(tx), used = tx->tail - tx->head;

	return used < limit ? limit - used : 0;
}

void lane_rx_attach(struct lane_rx *rx)
{
	/* Release: who sees it, load_word() of the sender, sees private_data of this end as well. */
	atomic_fetch_or_explicit(&rx->dir->word, LANE_ATTACHED, memory_order_acq_rel);
}

/* --- sender */

static bool tx_refresh(struct lane_tx *tx)
{
	/* Acquire: with lane_rx_taken(); what is written over was read. */
	uint32_t head = atomic_load_explicit(&tx->dir->head, memory_order_acquire);

	if (tx->tail - head > LANE_RING || (int32_t)(head - tx->head) < 0)
		return false;
	tx->head = head;
	return true;
}

/* Small messages stay in the first pages: an empty ring starts over at offset 0. */
static void tx_rewind(struct lane_tx *tx)
{
	if (tx->tail - tx->base < LANE_REWIND || tx->head != tx->tail)
		return;
	tx->base = tx->tail;
	atomic_store_explicit(&tx->dir->base, tx->base, memory_order_relaxed);
}

/* Are there entries left for `n` more turns? One is kept for leaving. */
static bool tx_may_turn(const struct lane_tx *tx, uint16_t n)
{
	/* Acquire: with rx_turn(); an entry that is used again was read. */
	uint32_t seen = atomic_load_explicit(&tx->dir->seen, memory_order_acquire);

	return (uint16_t)(tx->turns - (uint16_t)seen) + n + 1u <= LANE_TURNS;
}

/* The receiver has put octets of the ring onto the carrier for us. Their number is all that it may change. */
static bool tx_adopt(struct lane_tx *tx, uint64_t w)
{
	uint32_t back = tx->tail - (uint32_t)w;

	if (!tx_refresh(tx) || back > tx->tail - tx->head || !lane_tx_in_ring(tx) ||
	    lane_word_turns(w) != (uint16_t)(tx->turns + 1))
		return false;
	LANE_STORE(tx->tail, (uint32_t)w);
	LANE_STORE(tx->turns, (uint16_t)(tx->turns + 1));
	atomic_fetch_and(&tx->dir->word, ~LANE_TAKEN);
	return true;
}

/* The word and our own state agree, and nothing keeps us off the ring. */
static enum lane_way tx_check(const struct lane_tx *tx, uint64_t w)
{
	if ((uint32_t)w != tx->tail || lane_word_turns(w) != tx->turns)
		return LANE_BROKEN;
	if (w & (LANE_GONE | LANE_RECALL))
		return lane_tx_in_ring(tx) ? LANE_LEAVE : LANE_CARRIER;
	if (!lane_tx_in_ring(tx) && (!(w & LANE_ATTACHED) || (w & LANE_INSIDE)))
		return LANE_CARRIER;
	return LANE_RING_OK;
}

enum lane_way lane_tx_look(struct lane_tx *tx, size_t want, uint64_t *word, size_t *room)
{
	uint64_t w = load_word(tx->dir);
	enum lane_way way;

	if (w & LANE_TAKING)
		return LANE_HELD;
	if ((w & LANE_TAKEN) && (uint32_t)w != tx->tail && !tx_adopt(tx, w))
		return LANE_BROKEN;
	way = tx_check(tx, w);
	*word = w;
	if (way != LANE_RING_OK)
		return way;
	if (tx_room(tx) < want || tx->tail - tx->base >= LANE_REWIND) {
		if (!tx_refresh(tx))
			return LANE_BROKEN;
		tx_rewind(tx);
	}
	*room = tx_room(tx);
	/* Back from overflow: not for a few octets of room. */
	if (!lane_tx_in_ring(tx) && (*room < lane_tx_limit(tx) / 2 || !tx_may_turn(tx, 2)))
		return LANE_CARRIER;
	if (lane_tx_needs_octet(tx, w))
		return tx_may_turn(tx, 2) ? LANE_OCTET : LANE_LEAVE;
	return *room == 0 ? LANE_FULL : LANE_RING_OK;
}

int lane_tx_space(struct lane_tx *tx, size_t room, struct iovec out[2])
{
	uint32_t at = (tx->tail - tx->base) & MASK;
	size_t first = min_size(room, LANE_RING - at);

	out[0] = (struct iovec) { tx->ring + at, first };
	out[1] = (struct iovec) { tx->ring, room - first };
	return room > first ? 2 : 1;
}

/* Copy between a piece of the ring and a list of buffers, and move the place in the list on. */
static size_t iov_copy(struct lane_iov *list, uint8_t *piece, size_t n, bool in)
{
	size_t done = 0;

	while (done < n && list->count > 0) {
		uint8_t *base = (uint8_t *)list->iov->iov_base + list->skip;
		size_t part = min_size(list->iov->iov_len - list->skip, n - done);

		if (part > 0 && in)
			copy_to_peer(piece + done, base, part);
		else if (part > 0)
			copy_from_peer(base, piece + done, part);
		done += part;
		list->skip += part;
		if (list->skip == list->iov->iov_len) {
			list->iov++;
			list->count--;
			list->skip = 0;
		}
	}
	return done;
}

size_t lane_tx_copy(struct lane_tx *tx, struct lane_iov *from, size_t room)
{
	struct iovec piece[2];
	int n = lane_tx_space(tx, room, piece);
	size_t done = iov_copy(from, piece[0].iov_base, piece[0].iov_len, true);

	if (n == 2 && done == piece[0].iov_len)
		done += iov_copy(from, piece[1].iov_base, piece[1].iov_len, true);
	return done;
}

bool lane_tx_publish(struct lane_tx *tx, uint64_t word, size_t n, bool octet)
{
	bool in_ring = lane_tx_in_ring(tx);
	uint16_t turns = tx->turns;
	uint32_t tail = tx->tail + (uint32_t)n;
	uint32_t end = (tx->tail - tx->base) + (uint32_t)n;
	uint64_t new;

	if (in_ring && octet)
		atomic_store_explicit(&tx->dir->turn[turns++ % LANE_TURNS], tx->pos,
				      memory_order_relaxed);
	/* An octet with nothing behind it leaves the stream on the carrier. */
	if ((!in_ring || octet) && n > 0)
		atomic_store_explicit(&tx->dir->turn[turns++ % LANE_TURNS], tx->pos + octet,
				      memory_order_relaxed);
	new = (word & ~(LANE_PLACE | LANE_NAPPING | (octet ? LANE_WAITING | LANE_BELLED : 0))) |
	      (uint64_t)turns << LANE_TURN_SHIFT | tail;
	/* Publishes octets, turns and base: load_word() of the receiver. Before what the caller looks at next, `rung` and the
	 * like: epoll_answer()'s fence. */
	if (!atomic_compare_exchange_strong_explicit(&tx->dir->word, &word, new,
						     memory_order_seq_cst, memory_order_relaxed))
		return false;
	tx->wake = word & LANE_NAPPING;
	tx->belled = !octet && (word & LANE_WAITING);
	LANE_STORE(tx->tail, tail);
	LANE_STORE(tx->turns, turns);
	tx->pos += n + octet;
	if (end > tx->high)
		LANE_STORE(tx->high, end);
	return true;
}

void lane_tx_end(struct lane_tx *tx)
{
	atomic_fetch_or(&tx->dir->word, LANE_FIN);
}

void lane_tx_keep(struct lane_tx *tx)
{
	atomic_fetch_and(&tx->dir->word, ~LANE_RECALL);
}

bool lane_tx_rouse(struct lane_tx *tx)
{
	return (load_word(tx->dir) & LANE_NAPPING) &&
	       (atomic_fetch_and_explicit(&tx->dir->word, ~LANE_NAPPING, memory_order_acq_rel) &
		LANE_NAPPING);
}

bool lane_tx_leave(struct lane_tx *tx, uint64_t word)
{
	uint64_t new = (word & ~(0xffffull << LANE_TURN_SHIFT)) |
		       (uint64_t)(uint16_t)(tx->turns + 1) << LANE_TURN_SHIFT;

	/* The receiver may be taking octets back: that comes first. */
	if (word & (LANE_RECALL | LANE_TAKING))
		return false;
	atomic_store_explicit(&tx->dir->turn[tx->turns % LANE_TURNS], tx->pos,
			      memory_order_relaxed);
	if (!atomic_compare_exchange_strong_explicit(&tx->dir->word, &word, new,
						     memory_order_acq_rel, memory_order_relaxed))
		return false;
	LANE_STORE(tx->turns, (uint16_t)(tx->turns + 1));
	return true;
}

size_t lane_tx_trim(struct lane_tx *tx, uint8_t **from)
{
	if (tx->high <= LANE_TRIM || !tx_refresh(tx) || tx->head != tx->tail)
		return 0;
	/* Nothing is in the ring, so it can start over. */
	tx->base = tx->tail;
	atomic_store_explicit(&tx->dir->base, tx->base, memory_order_relaxed);
	LANE_STORE(tx->high, 0);
	*from = tx->ring + LANE_REWIND;
	return LANE_RING - LANE_REWIND;
}

uint32_t lane_tx_unread(const struct lane_tx *tx)
{
	uint32_t head = atomic_load_explicit(&tx->dir->head, memory_order_acquire);
	uint32_t unread = (uint32_t)load_word(tx->dir) - head;

	return unread <= LANE_RING ? unread : UINT32_MAX;
}

int lane_tx_recall(struct lane_tx *tx, struct iovec out[2])
{
	uint64_t w = load_word(tx->dir);
	uint16_t turns = tx->turns;
	uint32_t unread, at;
	uint64_t new;
	size_t first;

	if (!tx_refresh(tx))
		return -1;
	unread = tx->tail - tx->head;
	at = (tx->head - tx->base) & MASK;
	if (unread > 0 &&
	    (!lane_tx_in_ring(tx) ||
	     tx->pos - unread <
		     atomic_load_explicit(&tx->dir->turn[(uint16_t)(turns - 1) % LANE_TURNS],
					  memory_order_relaxed)))
		return -2;
	if (lane_tx_in_ring(tx))
		atomic_store_explicit(&tx->dir->turn[turns++ % LANE_TURNS], tx->pos - unread,
				      memory_order_relaxed);
	if (!(w & LANE_RECALL) || (w & LANE_TAKING))
		return -3; /* the receiver has changed its mind, or does it itself */
	if ((uint32_t)w != tx->tail || lane_word_turns(w) != tx->turns)
		return -1;
	new = (w & ~(LANE_PLACE | LANE_RECALL)) | tx->head | (uint64_t)turns << LANE_TURN_SHIFT;
	/* If it still asks for the same, it has taken nothing since the head was looked at. */
	if (!atomic_compare_exchange_strong(&tx->dir->word, &w, new))
		return -3;
	LANE_STORE(tx->turns, turns);
	LANE_STORE(tx->tail, tx->head);
	tx->pos -= unread;
	first = min_size(unread, LANE_RING - at);
	out[0] = (struct iovec) { tx->ring + at, first };
	out[1] = (struct iovec) { tx->ring, unread - first };
	return unread == 0 ? 0 : out[1].iov_len ? 2 : 1;
}

/* --- receiver */

static void rx_turn(struct lane_rx *rx)
{
	LANE_STORE(rx->turns, (uint16_t)(rx->turns + 1));
	/* Release: the entry was read; tx_may_turn(). */
	atomic_store_explicit(&rx->dir->seen, rx->turns, memory_order_release);
}

enum lane_from lane_rx_look(struct lane_rx *rx, uint64_t *word, size_t *limit)
{
	uint64_t w = load_word(rx->dir);
	uint32_t avail = (uint32_t)w - rx->head;

	*word = w;
	if (avail > LANE_RING || (uint16_t)(lane_word_turns(w) - rx->turns) > LANE_TURNS)
		return LANE_FROM_BROKEN;
	while (rx->turns != lane_word_turns(w)) {
		uint64_t next = atomic_load_explicit(&rx->dir->turn[rx->turns % LANE_TURNS],
						     memory_order_relaxed);

		if (next < rx->pos)
			return LANE_FROM_BROKEN;
		*limit = (size_t)(next - rx->pos);
		if (*limit == 0) {
			rx_turn(rx);
			continue;
		}
		if (!lane_rx_in_ring(rx))
			return LANE_FROM_CARRIER;
		return *limit <= avail ? LANE_FROM_RING : LANE_FROM_BROKEN;
	}
	if (!lane_rx_in_ring(rx))
		return avail == 0 ? LANE_FROM_OPEN : LANE_FROM_BROKEN;
	*limit = avail;
	return avail > 0 ? LANE_FROM_RING : LANE_FROM_NOTHING;
}

size_t lane_rx_behind(const struct lane_rx *rx, uint64_t word)
{
	uint16_t ahead = (uint16_t)(lane_word_turns(word) - rx->turns);
	uint32_t avail = (uint32_t)word - rx->head;
	uint64_t from, to;

	if (ahead == 0 || avail > LANE_RING)
		return 0;
	if (ahead == 1)
		return avail;
	from = atomic_load_explicit(&rx->dir->turn[rx->turns % LANE_TURNS], memory_order_relaxed);
	to = atomic_load_explicit(&rx->dir->turn[(uint16_t)(rx->turns + 1) % LANE_TURNS],
				  memory_order_relaxed);
	return to > from ? (size_t)min_u64(to - from, avail) : 0;
}

int lane_rx_pieces(const struct lane_rx *rx, size_t n, struct iovec out[2])
{
	uint32_t base = atomic_load_explicit(&rx->dir->base, memory_order_relaxed);
	uint32_t at = (rx->head - base) & MASK;
	size_t first = min_size(n, LANE_RING - at);

	out[0] = (struct iovec) { rx->ring + at, first };
	out[1] = (struct iovec) { rx->ring, n - first };
	return n > first ? 2 : 1;
}

size_t lane_rx_copy(const struct lane_rx *rx, struct lane_iov *to, size_t skip, size_t n)
{
	struct lane_rx from = *rx;
	struct iovec piece[2];
	size_t done;

	from.head += (uint32_t)skip;
	lane_rx_pieces(&from, n, piece);
	done = iov_copy(to, piece[0].iov_base, piece[0].iov_len, false);
	if (piece[1].iov_len && done == piece[0].iov_len)
		done += iov_copy(to, piece[1].iov_base, piece[1].iov_len, false);
	return done;
}

void lane_rx_taken(struct lane_rx *rx, size_t n, bool ring)
{
	LANE_STORE(rx->pos, rx->pos + n);
	if (!ring)
		return;
	LANE_STORE(rx->head, rx->head + (uint32_t)n);
	/* Release: the octets were read; tx_refresh() and stream_has_room(). */
	atomic_store_explicit(&rx->dir->head, rx->head, memory_order_release);
}

uint32_t lane_rx_limit(const struct lane_rx *rx)
{
	uint32_t limit = atomic_load_explicit(&rx->dir->limit, memory_order_relaxed);

	return limit > 0 && limit < LANE_RING ? limit : LANE_RING;
}

uint32_t lane_rx_must_wake(struct lane_rx *rx)
{
	/* `head` stored, then `tx_sleeps` read; waiter_room() and stream_ask_room() store `tx_sleeps` and then read `head`. */
	atomic_thread_fence(memory_order_seq_cst);
	if (!atomic_load_explicit(&rx->dir->tx_sleeps, memory_order_relaxed) ||
	    (uint32_t)load_word(rx->dir) - rx->head > lane_rx_limit(rx) / 2)
		return 0;
	return atomic_exchange(&rx->dir->tx_sleeps, 0);
}

/* The ring holds the end of the stream, and nothing else is left but perhaps octets of the carrier before it. */
static bool rx_is_last(const struct lane_rx *rx, uint64_t w)
{
	return lane_word_turns(w) == (lane_rx_in_ring(rx) ? rx->turns : (uint16_t)(rx->turns + 1));
}

uint64_t lane_rx_forsake(struct lane_rx *rx)
{
	return atomic_fetch_or(&rx->dir->word, LANE_GONE);
}

void lane_rx_recall(struct lane_rx *rx)
{
	uint64_t w = load_word(rx->dir), new;

	do {
		new = w & ~(LANE_WAITING | LANE_BELLED);
		if (!(w & LANE_RECALL))
			new = (new & ~LANE_ASKED) | ((w + (1ull << LANE_ASKED_SHIFT)) & LANE_ASKED);
		new |= LANE_GONE | LANE_RECALL;
	} while (!atomic_compare_exchange_weak(&rx->dir->word, &w, new));
}

void lane_rx_recall_no_more(struct lane_rx *rx)
{
	if (load_word(rx->dir) & LANE_RECALL)
		atomic_fetch_and(&rx->dir->word, ~LANE_RECALL);
}

int lane_rx_take_back(struct lane_rx *rx, struct iovec out[2])
{
	uint64_t w = load_word(rx->dir);
	uint32_t held = (uint32_t)w - rx->head;

	if (!rx_is_last(rx, w) || held == 0 || held > LANE_RING || !(w & LANE_RECALL))
		return -1;
	if (!atomic_compare_exchange_strong(&rx->dir->word, &w, (w & ~LANE_RECALL) | LANE_TAKING))
		return -1;
	return lane_rx_pieces(rx, held, out);
}

void lane_rx_taken_back(struct lane_rx *rx, bool ok)
{
	uint64_t w = load_word(rx->dir);
	uint16_t turns;
	uint64_t new;

	if (!ok) {
		atomic_fetch_and(&rx->dir->word, ~LANE_TAKING);
		return;
	}
	/* Back to the carrier where the stretch in the ring began, or where we are in it. */
	turns = lane_word_turns(w);
	atomic_store(&rx->dir->turn[turns % LANE_TURNS],
		     lane_rx_in_ring(rx)
			     ? rx->pos
			     : atomic_load(&rx->dir->turn[(uint16_t)(turns - 1) % LANE_TURNS]));
	do {
		new = (w & ~(LANE_PLACE | LANE_TAKING)) | LANE_TAKEN | rx->head |
		      (uint64_t)(uint16_t)(turns + 1) << LANE_TURN_SHIFT;
	} while (!atomic_compare_exchange_weak(&rx->dir->word, &w, new));
}

bool lane_rx_enter(struct lane_rx *rx, uint64_t word)
{
	return atomic_compare_exchange_strong_explicit(&rx->dir->word, &word, word | LANE_INSIDE,
						       memory_order_acq_rel, memory_order_relaxed);
}

void lane_rx_exit(struct lane_rx *rx)
{
	atomic_fetch_and_explicit(&rx->dir->word, ~LANE_INSIDE, memory_order_acq_rel);
}

bool lane_rx_arm(struct lane_rx *rx, uint64_t place, bool belled)
{
	const uint64_t flags = LANE_WAITING | (belled ? LANE_BELLED : 0);
	uint64_t w = load_word(rx->dir);

	do {
		if ((w & LANE_PLACE) != place)
			return false;
		if ((w & (LANE_WAITING | LANE_BELLED)) == flags)
			return true;
		/* Naps are over; another thread's ends by itself. */
	} while (!atomic_compare_exchange_weak_explicit(
		&rx->dir->word, &w, (w & ~(LANE_NAPPING | LANE_BELLED)) | flags,
		memory_order_acq_rel, memory_order_acquire));
	return true;
}

bool lane_rx_nap(struct lane_rx *rx, uint32_t *value)
{
	uint64_t w = load_word(rx->dir);

	do {
		if ((w & LANE_PLACE) != lane_rx_here(rx) || !lane_word_may_nap(w))
			return false;
	} while (!atomic_compare_exchange_weak_explicit(
		&rx->dir->word, &w, w | LANE_NAPPING, memory_order_acq_rel, memory_order_acquire));
	*value = (uint32_t)((w | LANE_NAPPING) >> 32);
	return true;
}

void lane_rx_disarm(struct lane_rx *rx)
{
	if (load_word(rx->dir) & LANE_WAITING)
		atomic_fetch_and_explicit(&rx->dir->word, ~(LANE_WAITING | LANE_BELLED),
					  memory_order_acq_rel);
}

size_t lane_rx_ready(const struct lane_rx *rx)
{
	uint64_t w = load_word(rx->dir);
	uint32_t avail = (uint32_t)w - LANE_LOAD(rx->head);
	uint16_t turns = LANE_LOAD(rx->turns);
	uint64_t pos = LANE_LOAD(rx->pos);

	/* What makes no sense is as ready as octets: the call says so, and the connection ends. */
	if (avail > LANE_RING || (uint16_t)(lane_word_turns(w) - turns) > LANE_TURNS)
		return 1;
	for (; turns != lane_word_turns(w); turns++) {
		uint64_t next = atomic_load_explicit(&rx->dir->turn[turns % LANE_TURNS],
						     memory_order_relaxed);

		if (next < pos)
			return 1;
		if (next > pos && (turns & 1))
			return next - pos <= avail ? (size_t)(next - pos) : 1;
		if (next > pos)
			return 0; /* the carrier's come first */
	}
	return turns & 1 ? avail : avail > 0;
}
