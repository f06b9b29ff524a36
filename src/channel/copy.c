/* SPDX-License-Identifier: MIT */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "channel/copy.h"

#ifdef __x86_64__
#include <emmintrin.h>

#define LINE 64

/* Whole lines, `to` aligned. */
static inline void copy_lines(char *to, const char *from, size_t n, bool past)
{
	for (size_t i = 0; i < n; i += LINE) {
		const __m128i *s = (const __m128i *)(from + i);
		__m128i *d = (__m128i *)(to + i);
		__m128i v[4] = { _mm_loadu_si128(s), _mm_loadu_si128(s + 1), _mm_loadu_si128(s + 2),
				 _mm_loadu_si128(s + 3) };

		for (int k = 0; k < 4; k++) {
			if (past)
				_mm_stream_si128(d + k, v[k]);
			else
				_mm_store_si128(d + k, v[k]);
		}
	}
}

static inline void copy_large(char *to, const char *from, size_t n, bool past)
{
	size_t head = (size_t)(-(uintptr_t)to & (LINE - 1));
	size_t lines = (n - head) & ~(size_t)(LINE - 1);

	memcpy(to, from, head);
	copy_lines(to + head, from + head, lines, past);
	memcpy(to + head + lines, from + head + lines, n - head - lines);
}

void copy_from_peer(void *to, const void *from, size_t n)
{
	if (n < COPY_LARGE)
		memcpy(to, from, n);
	else
		copy_large(to, from, n, false);
}

/* So often the way that is not in use is tried again. */
#define TRY_EVERY 64
/* It must be this much better, in sixteenths: copies past the cache cost the reader more. */
#define MARGIN 20

/* Cycles for COPY_LARGE octets, averages; of this process. Races between threads cost a wrong guess at worst. */
static _Atomic uint32_t cost[2];
static _Atomic uint32_t count;

static void note(bool past, uint64_t cycles, size_t n)
{
	uint32_t before = atomic_load_explicit(&cost[past], memory_order_relaxed);
	uint64_t now = cycles * COPY_LARGE / n;

	/* Somebody else had the processor meanwhile. */
	if (before != 0 && now > 16ull * before)
		return;
	atomic_store_explicit(&cost[past],
			      before ? (uint32_t)((7ull * before + now) / 8) : (uint32_t)now,
			      memory_order_relaxed);
}

static bool choose(void)
{
	uint32_t in = atomic_load_explicit(&cost[0], memory_order_relaxed);
	uint32_t past = atomic_load_explicit(&cost[1], memory_order_relaxed);
	uint32_t n = atomic_load_explicit(&count, memory_order_relaxed);
	bool better = (uint64_t)past * MARGIN < (uint64_t)in * 16;

	atomic_store_explicit(&count, n + 1, memory_order_relaxed);
	return n % TRY_EVERY < 2 ? !better : better;
}

void copy_to_peer(void *to, const void *from, size_t n)
{
	bool past;
	uint64_t start;

	if (n < COPY_LARGE) {
		memcpy(to, from, n);
		return;
	}
	past = choose();
	start = __builtin_ia32_rdtsc();
	if (past) {
		copy_large(to, from, n, true);
		_mm_sfence(); /* these stores are in no order with others */
	} else {
		copy_large(to, from, n, false);
	}
	note(past, __builtin_ia32_rdtsc() - start, n);
}

#else

void copy_from_peer(void *to, const void *from, size_t n)
{
	memcpy(to, from, n);
}

void copy_to_peer(void *to, const void *from, size_t n)
{
	memcpy(to, from, n);
}

#endif
