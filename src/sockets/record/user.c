/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "sockets/record/process.h"
#include "sockets/record/settings.h"
#include "sockets/record/real.h"
#include "sockets/record/user.h"

#define PAGE    USER_PAGE
#define KNOWN   USER_KNOWN
#define NOWHERE 65536 /* never mapped, in any program */

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ  22
#define MADV_POPULATE_WRITE 23
#endif

_Atomic uint64_t user_known[2][KNOWN];

/* --- questions that the kernel answers by a copy of its own, for any kind of memory */

/* A change of the signal mask in a way that there is not: looks at the mask first. */
static bool can_read(uint64_t page)
{
	return real(syscall)(SYS_rt_sigprocmask, ~0l, page * PAGE, NULL, 8l) == 0 ||
	       errno != EFAULT;
}

/* Adds no bit to a word. Who sleeps there is not woken: the word would have to be -2048 as well. */
static bool can_write(uint64_t page)
{
	uint32_t here = 0;

	return real(syscall)(
		       SYS_futex, &here, FUTEX_WAKE_OP | FUTEX_PRIVATE_FLAG, 0l, 0l, page * PAGE,
		       (long)(uint32_t)FUTEX_OP(FUTEX_OP_OR, 0, FUTEX_OP_CMP_EQ, 2048)) >= 0 ||
	       errno != EFAULT;
}

/* The pages are faulted in, as the copy will; nothing changes. Kernels before 5.14 do not know the question,
 * and nobody may ask it about memory of devices. */
static bool are_there(uint64_t first, uint64_t last, bool write)
{
	int advice = write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;

	if (madvise((void *)(first * PAGE), (size_t)(last - first + 1) * PAGE, advice) == 0)
		return true;
	for (uint64_t page = first; page <= last; page++)
		if (!can_read(page) || (write && !can_write(page)))
			return false;
	return true;
}

/* --- what was answered */

static bool ask(uint64_t first, uint64_t last, bool write)
{
	int saved = errno;
	bool ok = settings.sealed || are_there(first, last, write);

	for (uint64_t page = first; ok && page <= last; page++)
		atomic_store_explicit(&user_known[write][page % KNOWN], ~page,
				      memory_order_relaxed);
	errno = saved;
	return ok;
}

bool user_check(const void *p, size_t n, bool write)
{
	uint64_t first = (uintptr_t)p / PAGE;
	uint64_t last;

	if (n == 0)
		return true;
	if ((uintptr_t)p < NOWHERE || (uintptr_t)p + n < (uintptr_t)p)
		return false;
	last = ((uintptr_t)p + n - 1) / PAGE;
	for (uint64_t page = first; page <= last; page++)
		if (!user_knows(page, write))
			return ask(first, last, write);
	return true;
}

static void forget(_Atomic uint64_t *table, uint64_t first, uint64_t last)
{
	uint64_t pages = last - first + 1;

	for (uint64_t i = 0; i < pages && i < KNOWN; i++) {
		_Atomic uint64_t *at = &table[(first + i) % KNOWN];
		uint64_t page = ~atomic_load_explicit(at, memory_order_relaxed);

		if (page >= first && page <= last)
			atomic_store_explicit(at, 0, memory_order_relaxed);
	}
}

void user_constant(const void *p, size_t n)
{
	if (n > 0)
		forget(user_known[1], (uintptr_t)p / PAGE, ((uintptr_t)p + n - 1) / PAGE);
}

void user_gone(const void *p, size_t n)
{
	user_constant(p, n);
	if (n > 0)
		forget(user_known[0], (uintptr_t)p / PAGE, ((uintptr_t)p + n - 1) / PAGE);
}

void user_all_gone(void)
{
	forget(user_known[0], 1, UINT64_MAX / PAGE);
	forget(user_known[1], 1, UINT64_MAX / PAGE);
}
