/* SPDX-License-Identifier: MIT */
/*
 * The notice board of a user: /dev/shm/flue.UID, a table of offers in buckets. Read and
 * written with system calls under a lock that dies with its holder; never mapped, so that nothing another
 * process does to the file can hurt us. Everything read from it is a hint.
 */
#ifndef FLUE_CHANNEL_BOARD_H
#define FLUE_CHANNEL_BOARD_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>

#include "channel/mailbox.h"

#define BOARD_BUCKETS 512
#define BOARD_BUCKET  16

enum board_state { BOARD_EMPTY, BOARD_POSTED, BOARD_CLAIMED };

struct board_slot {
	uint32_t state;
	uint32_t pid;
	uint64_t netns;
	uint64_t cookie;
	struct in6_addr self, peer;
	uint16_t self_port, peer_port;
	uint32_t role; /* of whoever wrote last */
	uint8_t mailbox[MAILBOX_NAME];
	/* when claimed */
	uint64_t arena;
	uint64_t claimer;
	uint32_t lane;
	uint8_t pad[36];
};

/* Close it; opened again when it is needed. */
void board_drop(void);
void board_forked(void);
/* The board's descriptor, opened now if need be, or -1. */
int board_fd(void);
/* Number of the first slot of the bucket in which this connection's offers stand. */
uint32_t board_bucket(const struct board_slot *slot);
bool board_lock(uint32_t first, struct board_slot bucket[BOARD_BUCKET]);
void board_unlock(uint32_t first);
bool board_read(uint32_t n, struct board_slot *slot);
bool board_write(uint32_t n, const struct board_slot *slot);
/* Is the slot free, or its owner dead? */
bool board_is_stale(const struct board_slot *slot);

#endif
