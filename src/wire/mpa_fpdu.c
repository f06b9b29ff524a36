/* SPDX-License-Identifier: MIT */
/*
 * FPDU framing, RFC 5044 sections 4 and 5:
 *
 *   [marker] ULPDU_Length ULPDU pad [marker] CRC      markers also anywhere inside
 *
 * All lengths on the wire are multiples of four, and so are the stream positions at which
 * FPDUs begin. Hence a marker never splits the length field, the CRC or another marker.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "wire/mpa.h"

/* Octets of FPDU between the end of one marker and the beginning of the next. */
#define MARKER_GAP (MPA_MARKER_SPACING - MPA_MARKER_LEN)

size_t mpa_mulpdu(size_t emss, bool markers)
{
	size_t cost = 6 + emss % 4;

	if (markers)
		cost += MPA_MARKER_LEN * ((emss + MPA_MARKER_SPACING - 1) / MPA_MARKER_SPACING);
	if (emss < cost + MPA_MULPDU_MIN)
		return MPA_MULPDU_MIN;
	if (emss - cost > MPA_MULPDU_MAX)
		return MPA_MULPDU_MAX;
	return emss - cost;
}

/* Octets of FPDU before the next marker of the stream; 0 when the marker comes first. */
static size_t to_marker(const struct mpa_stream *s)
{
	return (size_t)(-s->pos % MPA_MARKER_SPACING);
}

/* Octets that a marker takes before the length field: the one that lies between FPDUs. */
static size_t lead_len(const struct mpa_stream *s)
{
	return s->markers && to_marker(s) == 0 ? MPA_MARKER_LEN : 0;
}

size_t mpa_fpdu_size(const struct mpa_stream *s, size_t ulpdu_len)
{
	size_t n = MPA_LEN_LEN + ulpdu_len + mpa_pad(ulpdu_len) + MPA_CRC_LEN;
	size_t first = to_marker(s);

	if (!s->markers || n <= first)
		return n;
	return n + MPA_MARKER_LEN * (1 + (n - first - 1) / MARKER_GAP);
}

/*
 * The pointer of a marker at octet `at` of the FPDU: the distance back to the length field. An
 * FPDU longer than a sender may make can hold a marker whose distance has 17 bits; both sides
 * then see the low 16.
 */
static uint16_t marker_pointer(size_t at, size_t lead)
{
	return (uint16_t)(at < lead ? 0 : at - lead);
}

size_t mpa_fpdu_build(struct mpa_stream *s, const uint8_t *body, size_t body_len, uint8_t *out)
{
	size_t lead = lead_len(s);
	size_t next = s->markers ? to_marker(s) : SIZE_MAX; /* octet of the next marker */
	size_t n = 0;

	assert(body_len % 4 == 0 && s->pos % 4 == 0);
	/* The marker before the CRC is inside this FPDU, so the loop ends behind it. */
	while (body_len || n == next) {
		size_t chunk = next - n < body_len ? next - n : body_len;

		memcpy(out + n, body, chunk);
		body += chunk;
		body_len -= chunk;
		n += chunk;
		if (n == next) {
			put_be16(out + n, 0);
			put_be16(out + n + 2, marker_pointer(n, lead));
			n += MPA_MARKER_LEN;
			next += MPA_MARKER_SPACING;
		}
	}
	put_le32(out + n, s->crc ? crc32c(0, out, n) : 0);
	n += MPA_CRC_LEN;
	s->pos += n;
	return n;
}

int mpa_fpdu_find(const struct mpa_stream *s, const uint8_t *buf, size_t avail, size_t *size,
		  size_t *ulpdu_len)
{
	size_t lead = lead_len(s);

	if (avail < lead + MPA_LEN_LEN)
		return -EAGAIN;
	*ulpdu_len = get_be16(buf + lead);
	*size = mpa_fpdu_size(s, *ulpdu_len);
	return 0;
}

static bool markers_agree(const struct mpa_stream *s, const uint8_t *buf, size_t size)
{
	size_t lead = lead_len(s);

	for (size_t at = to_marker(s); at < size; at += MPA_MARKER_SPACING) {
		/* The reserved half and the two low bits of the pointer are not to be looked at. */
		if ((get_be16(buf + at + 2) & ~3) != marker_pointer(at, lead))
			return false;
	}
	return true;
}

/* Close the gaps of the markers up to octet `size`; the octets before the first one stay. */
static void squeeze(const struct mpa_stream *s, uint8_t *buf, size_t size)
{
	size_t first = to_marker(s);
	size_t from = (first ? first : MPA_MARKER_SPACING) + MPA_MARKER_LEN;
	size_t to = from - MPA_MARKER_LEN;

	while (from < size) {
		size_t chunk = size - from < MARKER_GAP ? size - from : MARKER_GAP;

		memmove(buf + to, buf + from, chunk);
		to += chunk;
		from += chunk + MPA_MARKER_LEN;
	}
}

uint32_t mpa_fpdu_open(struct mpa_stream *s, uint8_t *buf, size_t size, size_t ulpdu_len,
		       uint8_t **ulpdu)
{
	size_t covered = size - MPA_CRC_LEN;

	assert(size == mpa_fpdu_size(s, ulpdu_len));
	if (s->markers && !markers_agree(s, buf, size))
		return FAULT_MPA_MARKER;
	if (s->crc && crc32c(0, buf, covered) != get_le32(buf + covered))
		return FAULT_MPA_CRC;
	*ulpdu = buf + lead_len(s) + MPA_LEN_LEN;
	if (s->markers)
		squeeze(s, buf, covered);
	s->pos += size;
	return WIRE_OK;
}
