/* SPDX-License-Identifier: MIT */
/* An array in pieces: the first has `first` elements, each other one as many as all before it. */
#ifndef FLUE_BASE_PIECE_H
#define FLUE_BASE_PIECE_H

#include <stdint.h>

/* The piece in which element `n` stands. */
static inline uint32_t piece_of(uint32_t n, uint32_t first)
{
	return n < first ? 0 : 32 - (uint32_t)__builtin_clz(n / first);
}

/* Its first element. */
static inline uint32_t piece_start(uint32_t piece, uint32_t first)
{
	return piece ? first << (piece - 1) : 0;
}

/* How many elements it has. */
static inline uint32_t piece_size(uint32_t piece, uint32_t first)
{
	return piece ? first << (piece - 1) : first;
}

#endif
