/* SPDX-License-Identifier: MIT */
/*
 * Lanes as a protocol of the switch: SDP on one host. It finds the way itself, and its ports are those of the
 * carrier. To connect() and accept() it says "not yet" until the two ends have met, and leaves the
 * socket when they never will; the reason is then in the record. `user` of its sockets is their record,
 * which relatives have at the same address.
 */
#ifndef FLUE_SOCKETS_OPS_LANE_H
#define FLUE_SOCKETS_OPS_LANE_H

#include <stdbool.h>
#include <sys/socket.h>

/* How often an offer is looked at before the peer counts as plain: at exchanges, or after so many octets. */
#define OPS_LANE_EXCHANGES 4
#define OPS_LANE_LOOKS     64

/* Register with the switch, once. */
void ops_lane_start(void);
/* No more lanes in this process; those that are there live on. */
void ops_lane_stop(void);
/* False: an option that means something only while the kernel moves the octets, and is switched on. */
bool ops_lane_can(int level, int name, const void *value, socklen_t length);

#endif
