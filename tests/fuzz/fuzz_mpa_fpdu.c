/* SPDX-License-Identifier: MIT */
/*
 * FPDU framing: what is built must arrive, in whatever pieces; what was not built by us must do
 * no harm; one flipped bit must not pass the CRC.
 *
 * Input: flags, phase against the marker grid, then lengths and chunk sizes (round trip) or the
 * octets of a stream (hostile).
 */
#include "fuzz.h"

#include <errno.h>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "wire/mpa.h"

enum { CRC = 1, MARKERS = 2, HOSTILE = 4, REPAIR = 8, FLIP = 16, LARGE = 32 };

#define FPDUS 6

struct trip {
	struct mpa_stream tx, rx;
	size_t ulpdu_len[FPDUS];
	uint8_t *ulpdu[FPDUS];
	uint8_t *wire; /* all FPDUs, one behind the other */
	size_t wire_len;
};

static uint8_t *make_body(size_t ulpdu_len, uint32_t seed, size_t *body_len)
{
	size_t len = MPA_LEN_LEN + ulpdu_len + mpa_pad(ulpdu_len);
	uint8_t *body = calloc(1, len);

	CHECK(body && len % 4 == 0);
	put_be16(body, (uint16_t)ulpdu_len);
	for (size_t i = 0; i < ulpdu_len; i++) {
		seed = seed * 1664525 + 1013904223;
		body[MPA_LEN_LEN + i] = (uint8_t)(seed >> 24);
	}
	*body_len = len;
	return body;
}

/* Every marker stands on the grid and points at the length field of its FPDU. */
static void check_markers(uint64_t start, const uint8_t *fpdu, size_t size)
{
	size_t first = (size_t)((MPA_MARKER_SPACING - start % MPA_MARKER_SPACING) %
				MPA_MARKER_SPACING);
	size_t field = first == 0 ? MPA_MARKER_LEN : 0;

	for (size_t at = first; at < size; at += MPA_MARKER_SPACING)
		CHECK(get_be32(fpdu + at) == (at < field ? 0 : (at - field) & 0xffff));
}

static void build_one(struct trip *t, unsigned i, uint32_t seed)
{
	size_t body_len, size = mpa_fpdu_size(&t->tx, t->ulpdu_len[i]);
	uint8_t *body = make_body(t->ulpdu_len[i], seed, &body_len);
	uint8_t *fpdu = malloc(size);
	uint64_t start = t->tx.pos;
	size_t plain = body_len + MPA_CRC_LEN;

	CHECK(size <= MPA_FPDU_MAX && size % 4 == 0 && size >= plain);
	CHECK(t->tx.markers || size == plain);
	CHECK(mpa_fpdu_build(&t->tx, body, body_len, fpdu) == size);
	CHECK(t->tx.pos == start + size);
	if (t->tx.markers)
		check_markers(start, fpdu, size);
	CHECK(get_le32(fpdu + size - 4) == (t->tx.crc ? crc32c_table(0, fpdu, size - 4) : 0));
	t->wire = realloc(t->wire, t->wire_len + size);
	CHECK(t->wire);
	memcpy(t->wire + t->wire_len, fpdu, size);
	t->wire_len += size;
	t->ulpdu[i] = exact_copy(body + MPA_LEN_LEN, t->ulpdu_len[i]);
	free(fpdu);
	free(body);
}

/* Receive with `have` octets of the stream; returns how many FPDUs came out whole. */
static unsigned receive(struct trip *t, size_t *used, size_t have, unsigned next)
{
	while (next < FPDUS) {
		size_t avail = have - *used, size, ulpdu_len;
		uint8_t *copy = exact_copy(t->wire + *used, avail < 8 ? avail : 8), *ulpdu;
		int rc = mpa_fpdu_find(&t->rx, copy, avail, &size, &ulpdu_len);

		free(copy);
		CHECK(rc == 0 || (rc == -EAGAIN && avail < MPA_MARKER_LEN + MPA_LEN_LEN));
		if (rc || avail < size) {
			CHECK(rc || ulpdu_len == t->ulpdu_len[next]);
			break;
		}
		copy = exact_copy(t->wire + *used, size);
		CHECK(mpa_fpdu_open(&t->rx, copy, size, ulpdu_len, &ulpdu) == WIRE_OK);
		CHECK(ulpdu_len == t->ulpdu_len[next]);
		CHECK(ulpdu >= copy && ulpdu + ulpdu_len <= copy + size);
		CHECK(memcmp(ulpdu, t->ulpdu[next], ulpdu_len) == 0);
		*used += size;
		next++;
		free(copy);
	}
	return next;
}

static void receive_in_pieces(struct trip *t, struct source *in)
{
	size_t used = 0, have = 0;
	unsigned next = 0;

	while (have < t->wire_len) {
		size_t chunk = in->left ? 1 + take(in, 1) * 5 : 3000;

		have = t->wire_len - have < chunk ? t->wire_len : have + chunk;
		next = receive(t, &used, have, next);
	}
	CHECK(next == FPDUS && used == t->wire_len && t->rx.pos == t->tx.pos);
}

/* CRC32C sees every single flipped bit; a flip in the length makes another FPDU. */
static void receive_flipped(struct trip *t, struct source *in)
{
	size_t bit = take(in, 3) % (t->wire_len * 8), size, ulpdu_len;
	uint8_t *copy = exact_copy(t->wire, t->wire_len), *ulpdu;
	struct mpa_stream before = t->rx;
	uint32_t fault;

	copy[bit / 8] ^= (uint8_t)(1 << bit % 8);
	CHECK(mpa_fpdu_find(&t->rx, copy, t->wire_len, &size, &ulpdu_len) == 0);
	if (size > t->wire_len || bit / 8 >= size) {
		free(copy);
		return;
	}
	fault = mpa_fpdu_open(&t->rx, copy, size, ulpdu_len, &ulpdu);
	CHECK(fault == FAULT_MPA_CRC || (t->rx.markers && fault == FAULT_MPA_MARKER));
	CHECK(memcmp(&before, &t->rx, sizeof(before)) == 0);
	free(copy);
}

static void round_trip(struct source *in, const struct mpa_stream *s, unsigned flags)
{
	struct trip t = { .tx = *s, .rx = *s };

	for (unsigned i = 0; i < FPDUS; i++) {
		t.ulpdu_len[i] = take(in, 2) % (flags & LARGE && i == 1 ? 65536 : 1600);
		build_one(&t, i, (uint32_t)t.ulpdu_len[i] + i);
	}
	if (flags & FLIP && s->crc)
		receive_flipped(&t, in);
	else
		receive_in_pieces(&t, in);
	for (unsigned i = 0; i < FPDUS; i++)
		free(t.ulpdu[i]);
	free(t.wire);
}

/* One FPDU out of a hostile stream; returns false when the stream is over. */
static bool open_hostile(struct source *in, struct mpa_stream *s, bool repair)
{
	struct mpa_stream before = *s;
	size_t size, ulpdu_len;
	uint8_t *copy = exact_copy(in->data, in->left < 8 ? in->left : 8), *ulpdu = NULL;
	int rc = mpa_fpdu_find(s, copy, in->left, &size, &ulpdu_len);
	uint32_t fault;

	free(copy);
	CHECK(rc == 0 || rc == -EAGAIN);
	if (rc || size > in->left)
		return false;
	CHECK(size == mpa_fpdu_size(s, ulpdu_len) && size <= MPA_FPDU_MAX);
	copy = exact_copy(in->data, size);
	if (repair)
		put_le32(copy + size - 4, crc32c(0, copy, size - 4));
	fault = mpa_fpdu_open(s, copy, size, ulpdu_len, &ulpdu);
	CHECK(fault == WIRE_OK || (s->crc && fault == FAULT_MPA_CRC) ||
	      (s->markers && fault == FAULT_MPA_MARKER));
	CHECK(s->pos == before.pos + (fault ? 0 : size));
	CHECK(!repair || fault != FAULT_MPA_CRC);
	if (!fault) {
		CHECK(ulpdu >= copy && ulpdu + ulpdu_len <= copy + size);
		touch(ulpdu, ulpdu_len);
	}
	free(copy);
	in->data += size;
	in->left -= size;
	return fault == WIRE_OK;
}

static void check_mulpdu(size_t emss)
{
	for (int markers = 0; markers < 2; markers++) {
		size_t n = mpa_mulpdu(emss, markers);

		CHECK(n >= MPA_MULPDU_MIN && n <= MPA_MULPDU_MAX);
		CHECK(n == MPA_MULPDU_MIN || n + 6 <= emss);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct source in = { data, size };
	unsigned flags = (unsigned)take(&in, 1);
	struct mpa_stream s = { .crc = flags & CRC, .markers = flags & MARKERS };

	s.pos = take(&in, 1) * 4;
	check_mulpdu(take(&in, 3));
	if (!(flags & HOSTILE)) {
		round_trip(&in, &s, flags);
		return 0;
	}
	while (open_hostile(&in, &s, flags & REPAIR))
		;
	return 0;
}
