/* SPDX-License-Identifier: MIT */
/* What the kernel says about the socket at the other end of a TCP connection on this host (INET_DIAG). */
#ifndef FLUE_CHANNEL_DIAG_H
#define FLUE_CHANNEL_DIAG_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>

struct diag {
	uint64_t cookie;
	uint32_t uid;
	uint32_t inode;  /* 0: no program has it yet, or any more */
	uint32_t unread; /* octets in its queue */
	uint32_t unsent; /* octets that it holds back, as our end has no room for them */
};

/* Of the connection from `self` to `peer`, IPv4 as mapped addresses. False: nobody knows. */
bool diag_peer(const struct sockaddr_in6 *self, const struct sockaddr_in6 *peer, struct diag *out);
/* The network name space of this process; 0: not to be found out. */
uint64_t diag_netns(void);

#endif
