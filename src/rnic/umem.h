/* SPDX-License-Identifier: MIT */
/*
 * Copies between our buffers and registered user memory.
 *
 * A program may unmap memory that is still registered. With a real RNIC that is harmless, the
 * pages stay pinned; here a plain memcpy would fault. On the library's own threads, where a
 * SIGSEGV would be nobody's but ours, copies therefore go through the kernel
 * (process_vm_readv/writev on ourselves), which answers EFAULT instead; the connection then ends
 * with a local protection error. On a caller's thread (which polls, waits or posts) a plain copy
 * is used: it is several times cheaper for small messages, and a fault there names the thread
 * that drove the transfer. Socket transfers straight into user memory are safe on any thread.
 *
 * Where a sandbox forbids process_vm_* (seen as EPERM or ENOSYS) plain copies are used everywhere.
 */
#ifndef FLUE_RNIC_UMEM_H
#define FLUE_RNIC_UMEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/util.h"

/* Set by each engine thread for itself: its copies must not fault. */
extern _Thread_local bool umem_guarded THREAD_LOCAL_FAST;

/* 0 or -EFAULT. */
int umem_write_guarded(void *user, const void *src, size_t len);
int umem_read_guarded(void *dst, const void *user, size_t len);
/* Is it there? On the library's threads the kernel is asked, if it answers. 0 or -EFAULT. */
int umem_probe(const void *user, size_t len);

/* One octet is one that programs spin on. */
static inline void umem_store(void *user, const void *src, size_t len)
{
	if (len == 1)
		__atomic_store_n((uint8_t *)user, *(const uint8_t *)src, __ATOMIC_RELEASE);
	else
		memcpy(user, src, len);
}

static inline int umem_write(void *user, const void *src, size_t len)
{
	if (umem_guarded)
		return umem_write_guarded(user, src, len);
	umem_store(user, src, len);
	return 0;
}

static inline int umem_read(void *dst, const void *user, size_t len)
{
	if (umem_guarded)
		return umem_read_guarded(dst, user, len);
	memcpy(dst, user, len);
	return 0;
}

#endif
