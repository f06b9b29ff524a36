/* SPDX-License-Identifier: MIT */
/*
 * Copying into memory that another processor has just read, and out of memory that another has just
 * written. Two things make the C library's memcpy() the wrong choice for much at once:
 *
 * - An ordinary store must first fetch the line from the other processor's cache, which on some machines takes longer
 *   than memory itself. Stores that go past the cache need not. Which is faster depends on the machine and
 *   on where the two processes run, so it is measured as we go.
 * - It uses one long string instruction, which some processors do slowly unless both ends are aligned
 *   alike; and the first octet of a message that went by the carrier is enough to make them not so.
 */
#ifndef FLUE_CHANNEL_COPY_H
#define FLUE_CHANNEL_COPY_H

#include <stddef.h>

/* Smaller copies are memcpy(). */
#define COPY_LARGE 2048

/* Like memcpy(). The octets are visible to whoever sees a later release by this thread. */
void copy_to_peer(void *to, const void *from, size_t n);
void copy_from_peer(void *to, const void *from, size_t n);

#endif
