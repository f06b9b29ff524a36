/* SPDX-License-Identifier: MIT */
/* Facts about a connected TCP descriptor. */
#ifndef FLUE_ACCESS_STREAM_H
#define FLUE_ACCESS_STREAM_H

/* -EBADF, -ENOTSOCK, -EPROTOTYPE: not TCP, -ENOTCONN. */
int acc_stream_check(int fd);
/* Octets that the peer's TCP has not acknowledged yet, -ECONNRESET or another -errno when they
 * never will be. */
int acc_stream_unacked(int fd);

#endif
