/* SPDX-License-Identifier: MIT */
/* Facts about a connected TCP descriptor. */
#ifndef FLUE_ACCESS_STREAM_H
#define FLUE_ACCESS_STREAM_H

/* -EBADF, -ENOTSOCK, -EPROTOTYPE: not TCP, -ENOTCONN. */
int acc_stream_check(int fd);
/* Octets that the peer's TCP has not acknowledged yet, -ECONNRESET or another -errno when they
 * never will be. */
int acc_stream_unacked(int fd);
/* Acknowledges now what the program has read: the peer's own switch waits for that, and TCP would
 * put it off for 40 ms. */
void acc_stream_ack_now(int fd);
/* Ends the connection with a reset, which the peer cannot take for an orderly end of streaming data,
 * also when the descriptor has copies; and closes it. */
void acc_stream_reset(int fd);

#endif
