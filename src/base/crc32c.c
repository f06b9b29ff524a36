/* SPDX-License-Identifier: MIT */
#include "base/crc32c.h"

#include "base/bytes.h"

#ifdef HAVE_ISAL
#include <isa-l/crc.h>
#endif

/*
 * table[s][b] is the CRC register after octet b and s zero octets. CRC is linear, so an entry
 * is the sum (XOR) of what its single bits give: eight constants make a whole slice, and the
 * table is a true constant without 2048 numbers in the source or an initialisation that threads
 * could race for.
 */
#define BIT(b, n, k) ((b) >> (n)&1 ? (k) : 0)
#define ENTRY(b, k0, k1, k2, k3, k4, k5, k6, k7)                                         \
	(BIT(b, 0, k0) ^ BIT(b, 1, k1) ^ BIT(b, 2, k2) ^ BIT(b, 3, k3) ^ BIT(b, 4, k4) ^ \
	 BIT(b, 5, k5) ^ BIT(b, 6, k6) ^ BIT(b, 7, k7))
#define ROW4(b, ...)                                                                       \
	ENTRY((b), __VA_ARGS__), ENTRY((b) + 1, __VA_ARGS__), ENTRY((b) + 2, __VA_ARGS__), \
		ENTRY((b) + 3, __VA_ARGS__)
#define ROW16(b, ...)                                                                   \
	ROW4((b), __VA_ARGS__), ROW4((b) + 4, __VA_ARGS__), ROW4((b) + 8, __VA_ARGS__), \
		ROW4((b) + 12, __VA_ARGS__)
#define ROW64(b, ...)                                                                        \
	ROW16((b), __VA_ARGS__), ROW16((b) + 16, __VA_ARGS__), ROW16((b) + 32, __VA_ARGS__), \
		ROW16((b) + 48, __VA_ARGS__)
#define SLICE(...)                                                                      \
	{                                                                               \
		ROW64(0, __VA_ARGS__), ROW64(64, __VA_ARGS__), ROW64(128, __VA_ARGS__), \
			ROW64(192, __VA_ARGS__)                                         \
	}

/* clang-format off */
static const uint32_t table[8][256] = {
	SLICE(0xf26b8303, 0xe13b70f7, 0xc79a971f, 0x8ad958cf,
	      0x105ec76f, 0x20bd8ede, 0x417b1dbc, 0x82f63b78),
	SLICE(0x13a29877, 0x274530ee, 0x4e8a61dc, 0x9d14c3b8,
	      0x3fc5f181, 0x7f8be302, 0xff17c604, 0xfbc3faf9),
	SLICE(0xa541927e, 0x4f6f520d, 0x9edea41a, 0x38513ec5,
	      0x70a27d8a, 0xe144fb14, 0xc76580d9, 0x8b277743),
	SLICE(0xdd45aab8, 0xbf672381, 0x7b2231f3, 0xf64463e6,
	      0xe964b13d, 0xd725148b, 0xaba65fe7, 0x52a0c93f),
	SLICE(0x38116fac, 0x7022df58, 0xe045beb0, 0xc5670b91,
	      0x8f2261d3, 0x1ba8b557, 0x37516aae, 0x6ea2d55c),
	SLICE(0xef306b19, 0xdb8ca0c3, 0xb2f53777, 0x6006181f,
	      0xc00c303e, 0x85f4168d, 0x0e045beb, 0x1c08b7d6),
	SLICE(0x68032cc8, 0xd0065990, 0xa5e0c5d1, 0x4e2dfd53,
	      0x9c5bfaa6, 0x3d5b83bd, 0x7ab7077a, 0xf56e0ef4),
	SLICE(0x493c7d27, 0x9278fa4e, 0x211d826d, 0x423b04da,
	      0x847609b4, 0x0d006599, 0x1a00cb32, 0x34019664),
};
/* clang-format on */

uint32_t crc32c_table(uint32_t crc, const void *buf, size_t len)
{
	const uint8_t *p = buf;

	crc = ~crc;
	for (; len >= 8; p += 8, len -= 8) {
		uint32_t lo = crc ^ get_le32(p);

		crc = table[7][lo & 0xff] ^ table[6][lo >> 8 & 0xff] ^ table[5][lo >> 16 & 0xff] ^
		      table[4][lo >> 24] ^ table[3][p[4]] ^ table[2][p[5]] ^ table[1][p[6]] ^
		      table[0][p[7]];
	}
	while (len--)
		crc = crc >> 8 ^ table[0][(crc ^ *p++) & 0xff];
	return ~crc;
}

#ifdef HAVE_ISAL

/* libisal works on the bare register: no complement at either end, and lengths are int. */
uint32_t crc32c(uint32_t crc, const void *buf, size_t len)
{
	/* Its prototype lacks const; it only reads. */
	unsigned char *p = (unsigned char *)(uintptr_t)buf;
	const size_t step = 1u << 30;

	crc = ~crc;
	for (; len > step; p += step, len -= step)
		crc = crc32_iscsi(p, (int)step, crc);
	return ~crc32_iscsi(p, (int)len, crc);
}

#else

uint32_t crc32c(uint32_t crc, const void *buf, size_t len)
{
	return crc32c_table(crc, buf, len);
}

#endif
