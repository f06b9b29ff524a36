/* SPDX-License-Identifier: MIT */
/*
 * A transport (oti.h) inside one host: two sides share a trunk (channel/trunk.h), and each connection is a circuit of it.
 * Each side is opened once, in one process or in two. A connection of one side goes to a listener of the other.
 *
 * The peer is not trusted. It can write anything anywhere in the memory at any time; by that it ends or garbles connections,
 * which all are its own, and nothing else.
 *
 * Needs the C library only.
 */
#ifndef FLUE_SOCKETS_OTI_LOCAL_H
#define FLUE_SOCKETS_OTI_LOCAL_H

#include "sockets/ot/oti.h"

#define OTI_LOCAL_SLOTS_MAX    1024
#define OTI_LOCAL_BUFS_MAX     256
#define OTI_LOCAL_BUF_SIZE_MAX ((1u << 20) - 64)

/* There are 65,536 buffers each way at most, some of which are for set-up. */
struct oti_local_geometry {
	uint32_t slots;    /* connections at a time, an even number; half for each side to begin */
	uint32_t bufs;     /* receive buffers of a connection at most */
	uint32_t buf_size; /* octets of each at most; a multiple of 64; 320 if it is less */
};

/* 64 connections with 64 buffers of 8 KiB; only pages in use take memory. */
#define OTI_LOCAL_GEOMETRY                                \
	{                                                 \
		.slots = 64, .bufs = 64, .buf_size = 8192 \
	}

/* New memory: a descriptor to be given to both sides, or -EINVAL, -ENOMEM, -EMFILE, ... */
int oti_local_region(const struct oti_local_geometry *g);

/*
 * Opens side 0 or 1; each must be opened once only. The descriptor can be closed afterwards. -EINVAL:
 * not such memory, or it could still be made shorter; -ENOMEM.
 */
int oti_local_open(int fd, unsigned side, struct oti **out);

/* The process at the other side is gone: all connections are lost. By the thread that polls. */
void oti_local_peer_died(struct oti *o);

#endif
