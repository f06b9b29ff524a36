/* SPDX-License-Identifier: MIT */
/* What the hooks share. Each hooked function stands in one of hooks_*.c under the C library's name. */
#ifndef FLUE_SOCKETS_HOOK_H
#define FLUE_SOCKETS_HOOK_H

#include <errno.h>
#include <limits.h>

#include "sockets/record/process.h"
#include "sockets/record/real.h"
#include "sockets/record/settings.h"
#include "sockets/record/sock.h"
#include "sockets/stream/stream.h"

#define HOOK __attribute__((visibility("default")))

/* A message carries descriptors away, if it can be sent at all; or the kernel has brought one with some. */
void hook_passing_descriptors(const struct msghdr *msg);
void hook_received_descriptors(const struct msghdr *msg);

/* The kernel is going to use it where no hook is: a socket goes back to TCP, a set is made exact. */
void hook_step_aside(int fd, enum why why);

/* It is about to be closed: a socket or a set of ours; or whatever it is. A child of vfork() closes only its own. */
void hook_let_go(int fd);
void hook_closing(int fd);

/* System calls are filtered from now on: none of ours any more. */
void hook_seal(void);

/* Aliases that old objects and fortified programs call. Names are macros where the hooks have others (tests/hooked), so
 * the text is made one step later. */
#define HOOK_TEXT(name) #name
#define HOOK_ALIAS(ret, other, name, params) \
	HOOK ret other params __attribute__((alias(HOOK_TEXT(name))))

#endif
