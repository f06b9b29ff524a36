/* SPDX-License-Identifier: MIT */
/*
 * The limits: what two processes can do with memory that both have mapped, and with one system call that
 * copies into the other. No library, no queue, no completion.
 *
 * The receiver looks at the last octet of a message, which is stored last and changes each time. That is what a target
 * of Writes does that never calls the library (ib_write_lat's), and it costs the least.
 */
#include "bench.h"

#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "hist.h"
#include "seen.h"
#include "util.h"

static void put(uint8_t *to, const uint8_t *from, size_t size, uint64_t n)
{
	memcpy(to, from, size - 1);
	__atomic_store_n(to + size - 1, (uint8_t)n, __ATOMIC_RELEASE);
}

static uint8_t *make_source(size_t size)
{
	uint8_t *source = malloc(size);

	if (source)
		memset(source, 0x5a, size);
	return source;
}

static int pingpong_serve(const struct bench_args *args, int port_fd)
{
	uint8_t *source = make_source(args->size), *in = bench_area(args, 0);

	if (!source || !bench_tell_port(port_fd, 1))
		return bench_fail("memory-pingpong server");
	for (uint64_t n = 1;; n++) {
		seen_spin(in + args->size - 1, n);
		put(bench_area(args, 1), source, args->size, n);
	}
}

static int pingpong_run(const struct bench_args *args, uint16_t port, struct bench_result *result)
{
	uint64_t begin, start, end, duration = (uint64_t)(args->seconds * 1e9);
	uint8_t *source = make_source(args->size), *in = bench_area(args, 1);
	static struct hist hist;

	(void)port;
	if (!source)
		return bench_fail("memory-pingpong");
	hist_init(&hist);
	begin = util_now_ns();
	for (uint64_t n = 1;;) {
		start = util_now_ns();
		for (uint64_t i = 0; i < args->batch; i++, n++) {
			put(bench_area(args, 0), source, args->size, n);
			seen_spin(in + args->size - 1, n);
		}
		end = util_now_ns();
		if (n > SEEN_WARM)
			hist_add(&hist, (end - start) / args->batch);
		if (end - begin > duration && hist.count > 0)
			break;
	}
	bench_take_hist(result, &hist);
	free(source);
	return 0;
}

/* ---- a write that the other side sees ---- */

static int seen_serve(const struct bench_args *args, int port_fd)
{
	/* Private memory, as that of most programs. */
	uint8_t *target = calloc(1, args->size);

	if (!target)
		return bench_fail("process-vm server");
	args->shared->target = (uintptr_t)target;
	if (!bench_tell_port(port_fd, 1))
		return bench_fail("process-vm server");
	seen_watch(args, target);
}

static int shared_serve(const struct bench_args *args, int port_fd)
{
	if (!bench_tell_port(port_fd, 1))
		return bench_fail("memory-seen server");
	seen_watch(args, bench_area(args, 0));
}

static bool write_shared(void *arg, uint8_t *source, uint64_t n)
{
	const struct bench_args *args = arg;

	put(bench_area(args, 0), source, args->size, n);
	return true;
}

static bool write_process(void *arg, uint8_t *source, uint64_t n)
{
	const struct bench_args *args = arg;
	struct iovec local = { .iov_base = source, .iov_len = args->size }, remote = local;

	(void)n;
	remote.iov_base = (void *)(uintptr_t)args->shared->target; // NOLINT: the other's address
	return process_vm_writev(args->server, &local, 1, &remote, 1, 0) == (ssize_t)args->size;
}

static int run_seen(const struct bench_args *args, seen_write_fn write, struct bench_result *result)
{
	uint8_t *source = make_source(args->size);
	int status = seen_measure(args, source, write, NULL, (void *)args, result);

	free(source);
	return status;
}

static int shared_run(const struct bench_args *args, uint16_t port, struct bench_result *result)
{
	(void)port;
	return run_seen(args, write_shared, result);
}

static int process_run(const struct bench_args *args, uint16_t port, struct bench_result *result)
{
	(void)port;
	return run_seen(args, write_process, result);
}

/* ---- one call, whoever sees it ---- */

static int call_serve(const struct bench_args *args, int port_fd)
{
	uint8_t *target = make_source(args->size);

	args->shared->target = (uintptr_t)target;
	if (!target || !bench_tell_port(port_fd, 1))
		return bench_fail("process-vm-call server");
	pause(); /* until the client is done and ends us */
	return 0;
}

static int call_run(const struct bench_args *args, uint16_t port, struct bench_result *result)
{
	uint64_t begin, start, end, duration = (uint64_t)(args->seconds * 1e9);
	uint8_t *source = make_source(args->size);
	static struct hist hist;

	(void)port;
	hist_init(&hist);
	begin = util_now_ns();
	for (uint64_t n = 1; source; n++) {
		start = util_now_ns();
		if (!write_process((void *)args, source, n))
			return bench_fail("process_vm_writev");
		end = util_now_ns();
		if (n > SEEN_WARM)
			hist_add(&hist, end - start);
		if (end - begin > duration && hist.count > 0)
			break;
	}
	if (!source)
		return bench_fail("process-vm-call");
	bench_take_hist(result, &hist);
	result->per_second = (double)hist.count / (hist.sum / 1e9);
	result->mib_per_s = result->per_second * (double)args->size / (1 << 20);
	free(source);
	return 0;
}

const struct bench_mode bench_memory_modes[] = {
	{ "memory-pingpong", pingpong_serve, pingpong_run },
	{ "memory-seen", shared_serve, shared_run },
	{ "process-vm-seen", seen_serve, process_run },
	{ "process-vm-call", call_serve, call_run },
	{ 0 },
};
