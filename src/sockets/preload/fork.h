/* SPDX-License-Identifier: MIT */
/* What happens in which room, and in which order, when the process forks. */
#ifndef FLUE_SOCKETS_PRELOAD_FORK_H
#define FLUE_SOCKETS_PRELOAD_FORK_H

#include <stdbool.h>

/* Around a fork: by the C library's handlers, or by hand where it does not know of it. For the child see
 * process_fork_child(). */
void fork_prepare(void);
void fork_parent(void);
/* This is a child: of a fork whose handlers have counted it, or of one that nobody saw. */
void fork_become_child(bool counted);

#endif
