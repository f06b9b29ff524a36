/* SPDX-License-Identifier: MIT */
/* Records as memory: taken, made clean, given back. Who they belong to is family.h's, which number they have sock.h's. */
#ifndef FLUE_SOCKETS_RECORD_RECORD_H
#define FLUE_SOCKETS_RECORD_RECORD_H

#include "sockets/record/home.h"

/* All but the state, by which others know it, the locks, and what never changes. */
void record_wipe(struct home *h, struct rec *r, struct keep *keep);
/* Nobody has it any more. */
void record_free(struct rec *r);
/* The same for one whose last holder was killed, or has become another program. */
void record_abandon(struct rec *r);

#endif
