/* SPDX-License-Identifier: MIT */
/*
 * What the fuzzers share: checks that no build option turns off, exact-size heap copies so that
 * a sanitizer sees the first octet read past the end, and a reader that turns the input into
 * numbers.
 */
#ifndef FLUE_TESTS_FUZZ_H
#define FLUE_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(cond)                                                                          \
	do {                                                                                 \
		if (!(cond)) {                                                               \
			fprintf(stderr, "%s:%d: violated: %s\n", __FILE__, __LINE__, #cond); \
			abort();                                                             \
		}                                                                            \
	} while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Caller frees. Never NULL, also for length 0. */
static inline uint8_t *exact_copy(const uint8_t *data, size_t len)
{
	uint8_t *copy = malloc(len);

	if (!copy)
		copy = malloc(1);
	CHECK(copy);
	if (len)
		memcpy(copy, data, len);
	return copy;
}

/* Read every octet, so that a sanitizer gets to see each access. */
static inline void touch(const uint8_t *data, size_t len)
{
	for (size_t i = 0; i < len; i++)
		(void)*(const volatile uint8_t *)(data + i);
}

/* The input as a source of numbers; zeros when it is used up. */
struct source {
	const uint8_t *data;
	size_t left;
};

static inline uint64_t take(struct source *s, unsigned octets)
{
	uint64_t v = 0;

	while (octets--) {
		v = v << 8 | (s->left ? *s->data : 0);
		s->data += s->left ? 1 : 0;
		s->left -= s->left ? 1 : 0;
	}
	return v;
}

#endif
