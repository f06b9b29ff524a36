/* SPDX-License-Identifier: MIT */
/* The kernel's TCP connection below a lane: what it can take at once, without waiting for anybody. */
#ifndef FLUE_SOCKETS_CARRIER_H
#define FLUE_SOCKETS_CARRIER_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/uio.h>

/* Put all of it onto the connection, now. False and nothing was sent: it does not fit; *broken: some may be out. */
bool carrier_put_all(int fd, const struct iovec *piece, int n, bool *broken);
/* Would so many octets fit? Makes room if need be, to be undone with carrier_narrow(). */
struct carrier_room {
	int size; /* SO_SNDBUF as it was; 0: not changed */
	int locked;
};
bool carrier_widen(int fd, size_t octets, struct carrier_room *was);
void carrier_narrow(int fd, const struct carrier_room *was);
bool carrier_has_room(int fd);

#endif
