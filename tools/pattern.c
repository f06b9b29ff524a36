/* SPDX-License-Identifier: MIT */
#include "pattern.h"

#include <endian.h>
#include <string.h>

/* Two odd multipliers: one walks along the message, one from message to message. */
static uint64_t word(uint64_t key, size_t index)
{
	uint64_t x = (index + 1) * UINT64_C(0x9e3779b97f4a7c15) +
		     key * UINT64_C(0xd1342543de82ef95);

	return htole64(x ^ x >> 32);
}

void pattern_fill(void *data, size_t length, uint64_t key)
{
	uint8_t *at = data;
	size_t i, words = length / 8;
	uint64_t last;

	for (i = 0; i < words; i++) {
		uint64_t w = word(key, i);

		memcpy(at + 8 * i, &w, 8);
	}
	last = word(key, i);
	memcpy(at + 8 * i, &last, length % 8);
}

bool pattern_check(const void *data, size_t length, uint64_t key)
{
	const uint8_t *at = data;
	size_t i, words = length / 8;
	uint64_t last, wrong = 0;

	for (i = 0; i < words; i++) {
		uint64_t w;

		memcpy(&w, at + 8 * i, 8);
		wrong |= w ^ word(key, i);
	}
	last = word(key, i);
	return wrong == 0 && memcmp(at + 8 * i, &last, length % 8) == 0;
}
