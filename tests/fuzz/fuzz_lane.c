/* SPDX-License-Identifier: MIT */
/*
 * A lane whose other end writes what it likes. One end of ours sends through it and one receives,
 * each call followed by whatever the input wants in the shared memory.
 *
 * The same input stands first where the peer's Hello or HelloAck would: it is refused, or read as the one
 * thing that can be said of a lane, and answered so that the peer must accept it.
 *
 * Input: pairs of an octet that says what is done (see step()) and its argument: two octets for a
 * size, eight for a value.
 *
 * Invariants: pieces lie in the ring and add up to what was asked for; room and limit are never
 * more than the ring; the positions of our ends go forward by what was moved and by nothing else,
 * and back only by what a recall gives back; buffers are left alone beyond what was asked for (they
 * have their exact size). Whatever happens, each call returns.
 */
#include "fuzz.h"

#include <stdbool.h>

#include "channel/lane.h"
#include "sockets/stream/hello.h"
#include "wire/sdp.h"

static struct lane_dir dir[2];
static uint8_t *ring[2];
static struct lane_tx tx;
static struct lane_rx rx;
static uint64_t tx_word, rx_word;

static void check_pieces(const uint8_t *base, const struct iovec *piece, int n, size_t size)
{
	size_t sum = 0;

	CHECK(n >= 0 && n <= 2);
	for (int i = 0; i < n; i++) {
		const uint8_t *p = piece[i].iov_base;

		CHECK(p >= base && p + piece[i].iov_len <= base + LANE_RING);
		sum += piece[i].iov_len;
	}
	CHECK(sum == size);
}

static void send_some(size_t want)
{
	uint64_t before = tx.pos;
	size_t room = 0, n;
	enum lane_way way = lane_tx_look(&tx, want, &tx_word, &room);
	bool bell = way == LANE_OCTET;
	struct iovec piece[2], iov;
	struct lane_iov from = { .iov = &iov, .count = 1 };

	CHECK(tx.pos == before && room <= LANE_RING);
	if (way == LANE_CARRIER)
		tx.pos += want;
	if (way == LANE_LEAVE || way == LANE_FULL) {
		lane_tx_leave(&tx, tx_word);
		CHECK(tx.pos == before);
	}
	if ((way != LANE_RING_OK && !bell) || want == 0)
		return;
	n = room < want - bell ? room : want - bell;
	check_pieces(ring[0], piece, lane_tx_space(&tx, n, piece), n);
	iov = (struct iovec) { malloc(n + 1), n };
	memset(iov.iov_base, 1, n);
	iov.iov_base = realloc(iov.iov_base, n ? n : 1);
	CHECK(lane_tx_copy(&tx, &from, n) == n);
	free(iov.iov_base);
	CHECK(tx.pos == before);
	if (lane_tx_publish(&tx, tx_word, n, bell))
		CHECK(tx.pos == before + n + bell && (!tx.belled || tx.can_ring));
	else
		CHECK(tx.pos == before);
}

static void recall(void)
{
	struct iovec piece[2];
	uint64_t before = tx.pos;
	int n = lane_tx_recall(&tx, piece);

	CHECK(tx.pos <= before && before - tx.pos <= LANE_RING);
	if (n < 0)
		CHECK(tx.pos == before);
	else
		check_pieces(ring[0], piece, n, (size_t)(before - tx.pos));
	tx.pos = before; /* sent again */
}

static void copy_ring(size_t skip, size_t n, size_t want)
{
	uint8_t *out = malloc(want ? want : 1);
	struct iovec iov = { out, want };
	struct lane_iov to = { .iov = &iov, .count = 1 };

	CHECK(skip + n <= LANE_RING);
	CHECK(lane_rx_copy(&rx, &to, skip, n) == (n < want ? n : want));
	free(out);
}

static void receive_some(size_t want, bool peek)
{
	size_t limit = 0;
	uint64_t before = rx.pos;

	switch (lane_rx_look(&rx, &rx_word, &limit)) {
	case LANE_FROM_RING:
		CHECK(limit > 0 && limit <= LANE_RING);
		copy_ring(0, limit, want);
		if (!peek)
			lane_rx_taken(&rx, want < limit ? want : limit, true);
		break;
	case LANE_FROM_CARRIER:
		CHECK(limit > 0);
		copy_ring(0, lane_rx_behind(&rx, rx_word), want);
		if (!peek)
			lane_rx_taken(&rx, want < limit ? want : limit, false);
		break;
	case LANE_FROM_OPEN:
		if (lane_rx_enter(&rx, rx_word)) {
			lane_rx_taken(&rx, want, false);
			lane_rx_exit(&rx);
		}
		break;
	case LANE_FROM_NOTHING:
	case LANE_FROM_BROKEN: CHECK(rx.pos == before); break;
	default: CHECK(!"a place that exists");
	}
	CHECK(rx.pos >= before && rx.pos - before <= want);
}

static void take_back(bool ok)
{
	struct iovec piece[2];
	uint64_t before = rx.pos;
	int n = lane_rx_take_back(&rx, piece);

	if (n >= 0) {
		CHECK(n > 0);
		check_pieces(ring[1], piece, n, piece[0].iov_len + (n == 2 ? piece[1].iov_len : 0));
		lane_rx_taken_back(&rx, ok);
	}
	CHECK(rx.pos == before);
}

static void hints(void)
{
	uint32_t unread = lane_tx_unread(&tx);

	CHECK(unread <= LANE_RING || unread == UINT32_MAX);
	CHECK(lane_rx_ready(&rx) <= LANE_RING);
	CHECK(lane_rx_unread(&rx) <= LANE_RING);
	CHECK(lane_rx_behind(&rx, rx_word) <= LANE_RING);
	(void)lane_rx_stirs(&rx);
	(void)lane_rx_must_wake(&rx);
	(void)lane_tx_carrier_is_empty(&tx);
}

/* What the other end of direction `i` writes. */
static void scribble(struct lane_dir *d, unsigned where, struct source *in)
{
	uint64_t value = take(in, 8);

	switch (where % 8) {
	case 0: atomic_store(&d->word, value); break;
	case 1: atomic_fetch_xor(&d->word, value << 48); break;
	case 2: atomic_fetch_add(&d->word, value); break;
	case 3: atomic_store(&d->head, (uint32_t)value); break;
	case 4: atomic_store(&d->seen, (uint32_t)value); break;
	case 5: atomic_store(&d->base, (uint32_t)value); break;
	case 6: atomic_store(&d->turn[value >> 58], value); break;
	case 7:
		atomic_store(&d->turn[value % LANE_TURNS],
			     (d == &dir[0] ? tx.pos : rx.pos) + (value >> 8));
		break;
	}
}

static void fall_asleep(unsigned how)
{
	uint32_t value = 0;

	/* And the other direction: the peer naps, or we have found its bell. */
	if (how & 0x08)
		tx.can_ring = !tx.can_ring;
	if ((how & 0x08) && lane_tx_rouse(&tx))
		CHECK(!(atomic_load(&dir[0].word) & LANE_NAPPING));
	if ((how & 0x10) && lane_rx_nap(&rx, &value))
		CHECK(value == atomic_load(lane_nap_word(&dir[1])) &&
		      lane_rx_here(&rx) == lane_rx_seen(&rx));
	if (lane_rx_arm(&rx, how & 0x80 ? lane_rx_seen(&rx) : lane_rx_here(&rx), how & 0x20)) {
		CHECK(!(atomic_load(&dir[1].word) & LANE_BELLED) == !(how & 0x20));
		if (how & 0x40)
			lane_rx_disarm(&rx);
	}
}

static void step(struct source *in)
{
	unsigned what = (unsigned)take(in, 1);

	switch (what % 8) {
	case 0:
	case 1: send_some(take(in, 2) * (what & 0x80 ? 9 : 1)); break;
	case 2: receive_some(take(in, 2) * (what & 0x80 ? 9 : 1), what & 0x40); break;
	case 3: recall(); break;
	case 4: fall_asleep(what); break;
	case 5: take_back(what & 0x80); break;
	case 6:
	case 7: scribble(&dir[what >> 3 & 1], what >> 4, in); break;
	}
	hints();
}

/* A peer that plays along has `n` octets in the ring for us, so that a scribble meets something. */
static void offer(uint32_t n)
{
	atomic_store(&dir[1].turn[0], rx.pos);
	atomic_store(&dir[1].word, LANE_ATTACHED | LANE_TURN_ONE | n);
}

/* The other end of the set-up says what it likes: a Hello to us, or a HelloAck to our Hello. */
static void greet(const uint8_t *data, size_t size)
{
	static struct lane_shared lane;
	size_t n = size < ARENA_PRIVATE_DATA ? size : ARENA_PRIVATE_DATA;
	struct sdp_hello h;

	for (int side = 0; side < 2; side++) {
		memset((void *)&lane, 0, sizeof(lane));
		memcpy(lane.private_data[side], data, n);
		atomic_store(&lane.private_size[side], (uint32_t)size);
		if (side == 1) {
			hello_offer(&lane);
			CHECK(!hello_is_answered(&lane) || size == SDP_HELLO_ACK_IWARP_LEN);
		} else if (hello_answer(&lane)) {
			CHECK(size == SDP_HELLO_IWARP_LEN &&
			      atomic_load(&lane.private_size[1]) == SDP_HELLO_ACK_IWARP_LEN);
			CHECK(!sdp_hello_decode(&h, lane.private_data[1], SDP_HELLO_ACK_IWARP_LEN,
						SDP_IWARP, true));
			CHECK(h.major == data[16] >> 4 && h.rcv_size == LANE_RING);
		} else {
			CHECK(atomic_load(&lane.private_size[1]) == 0);
		}
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct source in = { data, size };
	unsigned how = (unsigned)take(&in, 1);

	greet(data, size);
	memset((void *)dir, 0, sizeof(dir));
	for (int i = 0; i < 2; i++)
		ring[i] = malloc(LANE_RING);
	memset(ring[1], 0xaa, LANE_RING);
	lane_tx_init(&tx, &dir[0], ring[0], how & 1 ? 1000 : 0);
	lane_rx_init(&rx, &dir[1], ring[1], how & 1 ? 1000 : 0);
	tx_word = rx_word = 0;
	lane_rx_attach(&rx);
	atomic_fetch_or(&dir[0].word, how & 2 ? LANE_ATTACHED : 0);
	if (how & 4)
		offer((how >> 3) * 8000u);
	for (int i = 0; i < 1000 && in.left; i++)
		step(&in);
	for (int i = 0; i < 2; i++)
		free(ring[i]);
	return 0;
}
