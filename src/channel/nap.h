/* SPDX-License-Identifier: MIT */
/*
 * Naps: short sleeps on the lanes' own words, between the ladder (ladder.h) and a sleep in the kernel's socket
 * calls. A peer wakes a napper with one futex call, which costs a fraction of an octet on the carrier. But
 * nothing else does: not the end of a peer that was killed, not other descriptors, not a cancellation. So
 * a nap is short, and taken only where naps have lately paid.
 */
#ifndef FLUE_CHANNEL_NAP_H
#define FLUE_CHANNEL_NAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "channel/lane.h"

/* So many lanes can be napped on at a time. */
#define NAP_LANES 32

/* What happens to a call when a handler has run. */
enum nap_signals { NAP_ENDS, NAP_RESTARTS, NAP_UNSURE };

/* Do the handlers of this process let calls go on (SA_RESTART)? Known for up to 10 ms; `now`: not from memory. */
enum nap_signals nap_signals(bool now);
/* A handler has run. Does the call go on? */
bool nap_goes_on(void);

/* Would a nap on `count` lanes hear of every handler? The kernel goes on by itself with one on several when the
 * handler lets it, and poll() must not. */
bool nap_hears(size_t count);
/* Whether it is worth it, and how the last one ended. `skip` is the waiter's own. */
bool nap_pays(uint32_t *skip);
void nap_noted(uint32_t *skip, bool paid);
/* A sleep in the kernel took `ns`. */
void nap_slept(uint32_t *skip, uint64_t ns);

/* A sleep on any word, for at most `ns`. Restarted by the kernel as read() would be: -1 and EINTR if a handler wants it. */
int nap_as_read(_Atomic uint32_t *word, uint32_t value, int64_t ns);

/* 1: look again; 0: nothing came in `ns`; -1 and EINTR: a handler has run. */
int nap_on(struct lane_rx *const *lane, size_t count, int64_t ns);
/* No naps: system calls are filtered, and we make none of our own. */
void nap_forbid(bool forbid);
/* The sender's side: the receiver naps. */
void nap_end(struct lane_dir *dir);

#endif
