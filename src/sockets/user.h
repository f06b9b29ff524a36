/* SPDX-License-Identifier: MIT */
/*
 * Is memory of the program there? The kernel says EFAULT where a copy of ours would end the program. Pages that were
 * found good are remembered, so that buffers in use cost a look; a page that is unmapped afterwards and
 * passed again is not noticed.
 */
#ifndef FLUE_SOCKETS_USER_H
#define FLUE_SOCKETS_USER_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/uio.h>

bool user_readable(const void *p, size_t n);
bool user_writable(const void *p, size_t n);
/* All buffers of a list. */
bool user_list_ok(const struct iovec *iov, size_t count, bool write);

#endif
