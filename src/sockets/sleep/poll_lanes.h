/* SPDX-License-Identifier: MIT */
/* poll() with lanes in the list; ppoll() and select() come down to it. */
#ifndef FLUE_SOCKETS_POLL_LANES_H
#define FLUE_SOCKETS_POLL_LANES_H

#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

/* How the program called. */
struct poll_call {
	int64_t timeout; /* nanoseconds; < 0: for ever */
	const sigset_t *mask;
	bool masked; /* signals as it said, with ppoll() */
};

/* Is there something in the list that the kernel alone cannot tell of, or could there be? */
bool poll_concerns_us(const struct pollfd *fds, nfds_t n);
/* The list can be read and written. */
int poll_any(struct pollfd *fds, nfds_t n, const struct poll_call *c);

#endif
