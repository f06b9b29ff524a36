/* SPDX-License-Identifier: MIT */
/* Places in lists of buffers. */
#ifndef FLUE_SOCKETS_STREAM_IOV_H
#define FLUE_SOCKETS_STREAM_IOV_H

#include <stddef.h>
#include <sys/uio.h>

#include "channel/lane.h"

/* Pieces that one system call of ours moves at most. */
#define IOV_PIECES 64

/* Buffers for the next `n` octets of the list; returns how many. */
size_t iov_cut(const struct lane_iov *list, size_t n, struct iovec out[IOV_PIECES]);
void iov_skip(struct lane_iov *list, size_t n);

static inline size_t iov_size(const struct iovec *iov, size_t count)
{
	size_t n = 0;

	for (size_t i = 0; i < count; i++)
		n += iov[i].iov_len;
	return n;
}

#endif
