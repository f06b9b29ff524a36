/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>

#include "sockets/user.h"

#define PAGE    4096ull
#define KNOWN   32768
#define NOWHERE 65536 /* never mapped, in any program */

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ  22
#define MADV_POPULATE_WRITE 23
#endif

/* Page numbers, by their lowest bits; one table for reading and one for writing. */
static _Atomic uint64_t known[2][KNOWN];

/* Kernels before 5.14 do not know the question, and answer like those that know it and say no. */
static bool kernel_can_tell(int advice)
{
	char here;

	return madvise((void *)((uintptr_t)&here & ~(PAGE - 1)), PAGE, advice) == 0;
}

static bool ask(uint64_t first, uint64_t last, bool write)
{
	int saved = errno;
	int advice = write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
	bool ok = true;

	/* Faults the pages in, as the copy will; changes nothing. */
	if (madvise((void *)(first * PAGE), (size_t)(last - first + 1) * PAGE, advice) != 0)
		ok = errno == EAGAIN || errno == EINTR || !kernel_can_tell(advice);
	for (uint64_t page = first; ok && page <= last; page++)
		atomic_store_explicit(&known[write][page % KNOWN], page, memory_order_relaxed);
	errno = saved;
	return ok;
}

static bool check(const void *p, size_t n, bool write)
{
	uint64_t first = (uintptr_t)p / PAGE;
	uint64_t last;

	if (n == 0)
		return true;
	if ((uintptr_t)p < NOWHERE || (uintptr_t)p + n < (uintptr_t)p)
		return false;
	last = ((uintptr_t)p + n - 1) / PAGE;
	for (uint64_t page = first; page <= last; page++)
		if (atomic_load_explicit(&known[write][page % KNOWN], memory_order_relaxed) != page)
			return ask(first, last, write);
	return true;
}

bool user_readable(const void *p, size_t n)
{
	return check(p, n, false);
}

bool user_writable(const void *p, size_t n)
{
	return check(p, n, true);
}

bool user_list_ok(const struct iovec *iov, size_t count, bool write)
{
	for (size_t i = 0; i < count; i++)
		if (!check(iov[i].iov_base, iov[i].iov_len, write))
			return false;
	return true;
}
