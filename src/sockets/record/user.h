/* SPDX-License-Identifier: MIT */
/*
 * Is memory of the program there? The kernel says EFAULT where a copy of ours would end the program. Pages that were
 * found good are remembered, so that buffers in use cost a look. They are forgotten when the program gives them back or
 * protects them by a call that is hooked; not so when the C library does it inside (free(), a thread's stack), when
 * something else is mapped over them, when protection keys change, or when another thread does it just now.
 */
#ifndef FLUE_SOCKETS_USER_H
#define FLUE_SOCKETS_USER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#define USER_PAGE  4096ull
#define USER_KNOWN 32768

/* The complement of page numbers, by their lowest bits; one table for reading and one for writing. */
extern _Atomic uint64_t user_known[2][USER_KNOWN];

/* All of it, page by page. */
bool user_check(const void *p, size_t n, bool write);

static inline bool user_knows(uint64_t page, bool write)
{
	return atomic_load_explicit(&user_known[write][page % USER_KNOWN], memory_order_relaxed) ==
	       ~page;
}

/* Most of what is asked about stands in one page or two. */
static inline bool user_is_there(const void *p, size_t n, bool write)
{
	uint64_t first = (uintptr_t)p / USER_PAGE;
	uint64_t last = ((uintptr_t)p + n - 1) / USER_PAGE;

	return (n - 1 < USER_PAGE && user_knows(first, write) && user_knows(last, write)) ||
	       user_check(p, n, write);
}

/* errno stays as it is. */
static inline bool user_readable(const void *p, size_t n)
{
	return user_is_there(p, n, false);
}

static inline bool user_writable(const void *p, size_t n)
{
	return user_is_there(p, n, true);
}

/* All buffers of a list. */
static inline bool user_list_ok(const struct iovec *iov, size_t count, bool write)
{
	for (size_t i = 0; i < count; i++)
		if (!user_is_there(iov[i].iov_base, iov[i].iov_len, write))
			return false;
	return true;
}

/* These pages may not be there any more, or may not be written any more. */
void user_gone(const void *p, size_t n);
void user_constant(const void *p, size_t n);
/* Nobody knows which. */
void user_all_gone(void);

#endif
