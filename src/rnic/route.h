/* SPDX-License-Identifier: MIT */
/*
 * What the kernel's routes say of an address: is it one of this host, and from which one would we send there? Asked for by netlink, as
 * there is no other way to know for sure: a socket may be allowed to bind to addresses of others.
 */
#ifndef FLUE_RNIC_ROUTE_H
#define FLUE_RNIC_ROUTE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

struct route {
	bool local;                     /* it is this host, in this network namespace */
	struct sockaddr_storage source; /* ss_family 0: not known */
};

/* `to` is plain (address.h). false: nobody knows. */
bool route_look(const struct sockaddr_storage *to, struct route *out);

#endif
