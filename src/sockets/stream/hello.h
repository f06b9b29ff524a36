/* SPDX-License-Identifier: MIT */
/*
 * SDP's set-up on a lane: Hello and HelloAck stand in the lane's header, as private data does in the
 * set-up of other transports. Whoever makes the lane is the connecting peer, whichever end called
 * connect(). Pure but for the shared memory, which is hostile: octets are copied out of it once, and
 * only the copy is looked at.
 */
#ifndef FLUE_SOCKETS_HELLO_H
#define FLUE_SOCKETS_HELLO_H

#include <stdbool.h>

#include "channel/arena.h"

/* The maker's Hello, before the other end can know of the lane. */
void hello_offer(struct lane_shared *lane);
/* The other end: reads the Hello and writes the HelloAck, before it attaches. False: not a Hello for a lane
 * that we could use; nothing is written. */
bool hello_answer(struct lane_shared *lane);
/* The maker, once the other end has attached. False: no good HelloAck, so nothing may go into the ring. */
bool hello_is_answered(struct lane_shared *lane);

#endif
