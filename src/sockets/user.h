/* SPDX-License-Identifier: MIT */
/*
 * Is memory of the program there? The kernel says EFAULT where a copy of ours would end the program. Pages that were
 * found good are remembered, so that buffers in use cost a look. They are forgotten when the program gives them back or
 * protects them by a call that is hooked; not so when the C library does it inside (free(), a thread's stack), when
 * something else is mapped over them, when protection keys change, or when another thread does it just now.
 */
#ifndef FLUE_SOCKETS_USER_H
#define FLUE_SOCKETS_USER_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/uio.h>

/* errno stays as it is. */
bool user_readable(const void *p, size_t n);
bool user_writable(const void *p, size_t n);
/* All buffers of a list. */
bool user_list_ok(const struct iovec *iov, size_t count, bool write);

/* These pages may not be there any more, or may not be written any more. */
void user_gone(const void *p, size_t n);
void user_constant(const void *p, size_t n);
/* Nobody knows which. */
void user_all_gone(void);

#endif
