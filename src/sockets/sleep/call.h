/* SPDX-License-Identifier: MIT */
/* Calls that move octets on a connection with a lane, and may wait. They behave like the kernel's, results and errno
 * included. */
#ifndef FLUE_SOCKETS_SLEEP_CALL_H
#define FLUE_SOCKETS_SLEEP_CALL_H

#include <stdbool.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "sockets/record/home.h"
#include "sockets/stream/stream.h"

/* STREAM_AGAIN: the lane went away meanwhile; begin again. */
ssize_t call_send(struct rec *r, int fd, const struct iovec *iov, size_t count, int flags);
/* Also without a lane: much at once, in steps between which one may come. */
ssize_t call_send_young(struct rec *r, int fd, const struct iovec *iov, size_t count, int flags);
ssize_t call_receive(struct rec *r, int fd, const struct iovec *iov, size_t count, int flags);

/*
 * The same for one of several parts of a call, which has kept the record (sock_keep()): whatever becomes of the lane and of
 * the number meanwhile. Never STREAM_AGAIN. After the first part any signal handler ends the call.
 */
ssize_t call_send_part(struct rec *r, int fd, const struct iovec *iov, size_t count, int flags,
		       bool first);
ssize_t call_receive_part(struct rec *r, int fd, const struct iovec *iov, size_t count, int flags);
/* Octets that are there go to `taker`, by way of a buffer, and it says how many it takes; nobody gets between. It must
 * not wait. -1 and its errno: it takes none. STREAM_AGAIN: the lane is gone, go on with *number. */
typedef ssize_t call_taker(void *arg, const void *octets, size_t n);
ssize_t call_take_by(struct rec *r, int *number, const struct iovec *buffer, int flags,
		     call_taker *taker, void *arg);

#endif
