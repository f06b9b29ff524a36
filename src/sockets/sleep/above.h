/* SPDX-License-Identifier: MIT */
/* What the rooms above do for a call that sends while there is no lane yet. Made in preload/rooms.c. */
#ifndef FLUE_SOCKETS_SLEEP_ABOVE_H
#define FLUE_SOCKETS_SLEEP_ABOVE_H

#include <stddef.h>

#include "sockets/record/home.h"

struct sleep_above {
	/* So much is about to be sent without a lane: is it time for one? */
	void (*grow)(struct rec *r, int fd, size_t size);
	/* So much was, by a call that may block: give the peer time to take our offer. */
	void (*pace)(struct rec *r, int fd, size_t sent);
};

extern const struct sleep_above sleep_above;

#endif
