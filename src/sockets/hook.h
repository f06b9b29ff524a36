/* SPDX-License-Identifier: MIT */
/* What the hooks share. Each hooked function stands in one of hooks_*.c under the C library's name. */
#ifndef FLUE_SOCKETS_HOOK_H
#define FLUE_SOCKETS_HOOK_H

#include <errno.h>
#include <limits.h>

#include "sockets/process.h"
#include "sockets/real.h"
#include "sockets/sock.h"
#include "sockets/stream.h"

#define HOOK __attribute__((visibility("default")))

/* Never a mapping, in any program: the kernel would say EFAULT, a copy would kill the program. */
static inline bool hook_bad_address(const void *p, size_t n)
{
	return n > 0 && (uintptr_t)p < 65536;
}

/* A message carries descriptors away, or has brought some. */
void hook_passing_descriptors(const struct msghdr *msg);
void hook_received_descriptors(const struct msghdr *msg);

/* System calls are filtered from now on: none of ours any more. */
void hook_seal(void);

/* Aliases that old objects and fortified programs call. */
#define HOOK_ALIAS(ret, other, name, params) HOOK ret other params __attribute__((alias(#name)))

#endif
