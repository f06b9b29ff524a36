/* SPDX-License-Identifier: MIT */
/* Shared by the files of the table. */
#ifndef FLUE_SOCKETS_RECORD_SOCK_PRIV_H
#define FLUE_SOCKETS_RECORD_SOCK_PRIV_H

#include "base/clock.h"
#include "sockets/record/sock.h"

/* Nobody waits longer for another thread's change of the table: that one may be in a signal handler, or stopped. */
#define GATE_NS (20 * NSEC_PER_MSEC)

/* --- sock_table.c */
extern _Atomic uint32_t sock_forking; /* the thread that forks */
extern _Atomic uint32_t sock_forks;   /* how many there were, with the one that is under way */
extern _Atomic bool sock_late;        /* the table was changed within it all the same */

/* A call that changes the table begins and ends: not while a thread forks. */
void sock_change_begins(void);
void sock_change_ends(void);
/* The number stands in the table in a moment. A fork may have looked for it already, or will yet. */
void sock_note_late(struct keep *k);
void sock_fork_begins(void);
void sock_table_forked(void);
void sock_enter_at(int fd, struct rec *r);
/* It is something else, if nobody knows better. */
void sock_enter_unknown(int fd);
/* Who uses the number just now would use the old socket past its lane. Not for ever: the thread may have been stopped. */
struct rec *sock_outwait_closing(int fd);

/* --- sock_keep.c */
/* This process has one descriptor less: `fd`, which is still open. */
void sock_drop(struct rec *r, int fd);
/* Nobody has a descriptor of it any more, but for `fd`, which goes. */
void sock_last_closed(struct rec *r, int fd);

/* --- sock.c */
void sock_copies_forked(void);

#endif
