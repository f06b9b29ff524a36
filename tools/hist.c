/* SPDX-License-Identifier: MIT */
#include "hist.h"

#include <math.h>
#include <string.h>

static size_t bucket_of(uint64_t value)
{
	unsigned int shift;

	if (value < HIST_SUB)
		return (size_t)value;
	/* The top HIST_SUB_BITS + 1 bits decide; the first of them is always 1. */
	shift = 63 - (unsigned int)__builtin_clzll(value) - HIST_SUB_BITS;
	return (size_t)(shift + 1) * HIST_SUB + (size_t)((value >> shift) - HIST_SUB);
}

uint64_t hist_bucket_low(size_t bucket)
{
	size_t octave = bucket / HIST_SUB;

	if (octave == 0)
		return bucket;
	return (uint64_t)(bucket % HIST_SUB + HIST_SUB) << (octave - 1);
}

uint64_t hist_bucket_high(size_t bucket)
{
	size_t octave = bucket / HIST_SUB;

	return hist_bucket_low(bucket) + (octave ? (UINT64_C(1) << (octave - 1)) - 1 : 0);
}

void hist_init(struct hist *h)
{
	memset(h, 0, sizeof(*h));
	h->min = UINT64_MAX;
}

void hist_add(struct hist *h, uint64_t value)
{
	h->bucket[bucket_of(value)]++;
	h->count++;
	h->sum += (double)value;
	h->sum_squares += (double)value * (double)value;
	if (value < h->min)
		h->min = value;
	if (value > h->max)
		h->max = value;
}

uint64_t hist_percentile(const struct hist *h, double percent)
{
	uint64_t rank = (uint64_t)ceil((double)h->count * percent / 100);
	uint64_t seen = 0;

	if (h->count == 0)
		return 0;
	if (rank == 0)
		return h->min;
	for (size_t i = bucket_of(h->min); i < HIST_BUCKETS; i++) {
		seen += h->bucket[i];
		if (seen >= rank)
			return hist_bucket_high(i) < h->max ? hist_bucket_high(i) : h->max;
	}
	return h->max;
}

double hist_mean(const struct hist *h)
{
	return h->count ? h->sum / (double)h->count : 0;
}

double hist_stddev(const struct hist *h)
{
	double mean = hist_mean(h), variance;

	if (h->count < 2)
		return 0;
	variance = h->sum_squares / (double)h->count - mean * mean;
	return variance > 0 ? sqrt(variance) : 0;
}

/* A step as a person would choose it: one digit and zeros. */
static uint64_t round_step(uint64_t step)
{
	uint64_t power = 1;

	while (power <= step / 10)
		power *= 10;
	return (step + power - 1) / power * power;
}

size_t hist_bars(const struct hist *h, uint64_t limit, struct hist_bar *bars, size_t n)
{
	uint64_t start, step;
	size_t used = 0;

	if (h->count == 0 || n == 0)
		return 0;
	if (limit > h->max)
		limit = h->max;
	if (limit < h->min)
		limit = h->min;
	/* Rounding the start down to a multiple of the step may cost one bar more. */
	step = round_step((limit - h->min) / (n > 1 ? n - 1 : 1) + 1);
	start = h->min / step * step;
	for (size_t i = 0; i < n; i++)
		bars[i] = (struct hist_bar) { start + i * step, start + (i + 1) * step - 1, 0 };
	for (size_t i = bucket_of(h->min); i < HIST_BUCKETS; i++) {
		uint64_t low = hist_bucket_low(i);
		size_t at = low <= start ? 0 : (size_t)((low - start) / step);

		if (low > limit || at >= n)
			at = used ? used - 1 : 0;
		if (h->bucket[i] == 0)
			continue;
		bars[at].count += h->bucket[i];
		used = at + 1 > used ? at + 1 : used;
	}
	if (bars[used - 1].high < h->max)
		bars[used - 1].high = h->max;
	return used;
}
