/* SPDX-License-Identifier: MIT */
/*
 * A histogram of 64-bit values with constant memory and bounded relative error: log-linear, as
 * HdrHistogram. Each power of two is cut into HIST_SUB equal parts, so a value is known to
 * 1/HIST_SUB of itself (0.8 %); values below 2 * HIST_SUB are exact.
 */
#ifndef FLUE_TOOLS_HIST_H
#define FLUE_TOOLS_HIST_H

#include <stddef.h>
#include <stdint.h>

#define HIST_SUB_BITS 7
#define HIST_SUB      (1u << HIST_SUB_BITS)
#define HIST_BUCKETS  ((64 - HIST_SUB_BITS + 1) * HIST_SUB)

struct hist {
	uint64_t count, min, max;
	double sum, sum_squares;
	uint64_t bucket[HIST_BUCKETS];
};

void hist_init(struct hist *h);
void hist_add(struct hist *h, uint64_t value);
/* The smallest value that at least `percent` of the values do not exceed, rounded up to the end of its
 * bucket but never above the maximum. 0 when empty. */
uint64_t hist_percentile(const struct hist *h, double percent);
double hist_mean(const struct hist *h);
double hist_stddev(const struct hist *h);
/* First and last value of a bucket, for those who draw. */
uint64_t hist_bucket_low(size_t bucket);
uint64_t hist_bucket_high(size_t bucket);

/* One bar: how many values lie in [low, high]. */
struct hist_bar {
	uint64_t low, high, count;
};

/* Cut [min, limit] into at most n bars of equal width and count; the values above limit go into the
 * last bar, whose high is then the maximum. Returns the number of bars. */
size_t hist_bars(const struct hist *h, uint64_t limit, struct hist_bar *bars, size_t n);

#endif
