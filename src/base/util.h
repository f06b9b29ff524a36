/* SPDX-License-Identifier: MIT */
/* Small things every layer needs. */
#ifndef FLUE_BASE_UTIL_H
#define FLUE_BASE_UTIL_H

#include <stddef.h>
#include <stdint.h>

#define ARRAY_SIZE(a)                   (sizeof(a) / sizeof((a)[0]))
#define container_of(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))

static inline size_t max_size(size_t a, size_t b)
{
	return a > b ? a : b;
}

static inline size_t min_size(size_t a, size_t b)
{
	return a < b ? a : b;
}

static inline uint64_t min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static inline int64_t min_i64(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static inline uint32_t min_u32(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

/* Thread-local variables found without a call, also in a shared library. They come out of a small
 * reserve that the C library keeps for libraries loaded later: a few words only. */
#define THREAD_LOCAL_FAST __attribute__((tls_model("initial-exec")))

#endif
