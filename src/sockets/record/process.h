/* SPDX-License-Identifier: MIT */
/* Is this still the process that was set up, and where are its records? Nothing is set up before a program makes its first
 * TCP socket. */
#ifndef FLUE_SOCKETS_RECORD_PROCESS_H
#define FLUE_SOCKETS_RECORD_PROCESS_H

#include <stdbool.h>

#include "sockets/record/home.h"

extern _Atomic(struct home *) own_home; /* NULL: none yet, or none to be had */

/* Read the environment, once. */
void process_init(void);
/* A home of this process, made now if need be; NULL: stay on TCP. */
struct home *process_home(void);
/* False in a child of vfork(), which shares our memory and must touch nothing. A child of an unseen fork
 * is made a process of its own here. */
bool process_is_self(void);
/* In the child of a fork of which handlers were told. */
void process_fork_child(void);
/* The child has no home so far. */
void process_forked(void);

#endif
