/* SPDX-License-Identifier: MIT */
/* The process at the other end: how memory and bells are exchanged with it, by letters. */
#ifndef FLUE_CHANNEL_PEER_H
#define FLUE_CHANNEL_PEER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "channel/mailbox.h"

/* Our mailbox is open, and what comes there is understood. */
bool peer_reachable(void);
/* Who takes trunks (trunk.h) that come as letters of process `pid`; nobody at first. True: the descriptors are taken. */
typedef bool peer_trunk_fn(pid_t pid, const int *fds, size_t n);
void peer_set_trunks(peer_trunk_fn *fn);
/* The same for ducts (duct.h). */
typedef bool peer_duct_fn(uint64_t name, pid_t pid, const int *fds, size_t n);
void peer_set_ducts(peer_duct_fn *fn);
/* Send memory that we made (`fd` stays the caller's), and our bell. */
bool peer_send_lanes(const uint8_t mailbox[MAILBOX_NAME], pid_t pid, int fd);
/* Memory that the peer has made, by its name; letters are read if need be. */
struct arena *peer_arena(uint64_t id);
/* The bell of the process that an arena is shared with, or -1. `look`: its letter may have come since. */
int peer_bell(struct arena *a, bool look);

#endif
