/* SPDX-License-Identifier: MIT */
#include "seen.h"

#include "hist.h"
#include "util.h"

void seen_watch(const struct bench_args *args, const uint8_t *target)
{
	for (uint64_t n = 1;; n++) {
		seen_spin(target + args->size - 1, n);
		__atomic_store_n(&args->shared->seen, n, __ATOMIC_RELEASE);
	}
}

int seen_measure(const struct bench_args *args, uint8_t *source, seen_write_fn write,
		 seen_after_fn after, void *arg, struct bench_result *result)
{
	uint64_t begin = util_now_ns(), start, end, duration = (uint64_t)(args->seconds * 1e9);
	static struct hist hist;

	if (!source)
		return bench_fail(args->mode);
	hist_init(&hist);
	for (uint64_t n = 1;; n++) {
		source[args->size - 1] = (uint8_t)n;
		start = util_now_ns();
		if (!write(arg, source, n))
			return bench_fail(args->mode);
		while (__atomic_load_n(&args->shared->seen, __ATOMIC_ACQUIRE) != n)
			seen_pause();
		end = util_now_ns();
		if (n > SEEN_WARM || start - begin > duration)
			hist_add(&hist, end - start);
		/* Where a thread has to wait for the spinner's processor, each takes a time slice. */
		if (end - begin > duration && (hist.count >= 20 || end - begin > 20 * duration) &&
		    hist.count)
			break;
		if (after && !after(arg))
			return bench_fail(args->mode);
	}
	bench_take_hist(result, &hist);
	return 0;
}
