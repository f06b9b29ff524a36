/* SPDX-License-Identifier: MIT */
/*
 * Arenas: sealed memory files with room for lanes, each shared by exactly two processes (and their children),
 * so that a hostile peer can spoil nobody else's connections. The process that makes an arena gives its
 * lanes out; they are used again when both ends have let go, with their pages warm. Rings are mapped in pieces, when
 * a lane is first used, to spare address space; so each end may have other pieces than the peer.
 */
#ifndef FLUE_CHANNEL_ARENA_H
#define FLUE_CHANNEL_ARENA_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "channel/lane.h"

#define ARENA_LANES        64u
#define ARENA_FIRST        2u /* lanes of the first piece */
#define ARENA_PIECES       6
#define ARENA_MAGIC        0x31414e454c465545ull
#define ARENA_PRIVATE_DATA 96

/* What both ends of a lane see. */
struct lane_shared {
	struct lane_dir dir[2];           /* [0]: from the maker */
	_Atomic uint64_t cookie[2];       /* of the two ends, see struct meet_end */
	_Atomic uint32_t done[2];         /* this end has let go */
	_Atomic uint32_t private_size[2]; /* what the two ends tell each other first */
	_Atomic int32_t pid[2];           /* who holds the two ends, and where: hints */
	_Atomic int32_t fd[2];
	uint8_t private_data[2][ARENA_PRIVATE_DATA];
	uint8_t pad[512 - 48 - 2 * ARENA_PRIVATE_DATA];
};

struct arena_shared {
	uint64_t magic;
	uint64_t id;
	_Atomic uint32_t dropped; /* one end has unmapped it: no new lanes */
	/* For each end: it has been rung since it last went to sleep. */
	_Alignas(128) _Atomic uint32_t rung[2];
	/* It holds the other's bell. */
	_Atomic uint32_t holds[2];
	/* For each end and lane: counts what it was told. Many lanes share a line, so that a look at all of them is
	 * short; nobody takes anything away, so that any number of sets can look. */
	struct {
		_Alignas(128) _Atomic uint32_t lane[ARENA_LANES];
	} stir[2];
	_Alignas(4096) struct lane_shared lane[ARENA_LANES];
	_Alignas(4096) uint8_t ring[ARENA_LANES][2][LANE_RING]; /* in the file; see arena_ring() */
};

struct arena;

/* How many lanes this process may have. */
void arena_set_most(uint32_t lanes);
/* A lane in an arena shared with process `peer` (mailbox `key` tells it from others with its number). If the
 * arena is new its descriptor is in *fd, for sending; else -1. NULL: none to be had. */
struct arena *arena_take(pid_t peer, uint64_t key, uint32_t *lane, int *fd);
/* The peer could not be reached after arena_take(). */
void arena_undo(struct arena *a, uint32_t lane);
/* Map what a peer sent; closes fd, see base/own.h. NULL: it is not what it should be, or there is no room. */
struct arena *arena_map(int fd, pid_t peer);
struct arena *arena_by_id(uint64_t id);
pid_t arena_peer(const struct arena *a);
/* All but the rings. */
struct arena_shared *arena_memory(struct arena *a);
/* The ring of a direction, [0]: from the maker, of a lane that was taken or attached. */
uint8_t *arena_ring(const struct arena *a, uint32_t lane, uint32_t dir);
uint64_t arena_id(const struct arena *a);
/* The peer's bell, or -1. set: takes `fd`; `mailbox` tells the process. */
int arena_bell(const struct arena *a);
void arena_set_bell(struct arena *a, uint64_t mailbox, int fd);
/* The arena that we made for process `peer`. */
struct arena *arena_made_for(uint64_t id, pid_t peer);
/* Take the lane that the maker named, if it is for these two connections: the maker's and ours. */
bool arena_attach(struct arena *a, uint32_t lane, const uint64_t cookie[2]);
/* We shall not come: its maker may use it for others. */
void arena_decline(struct arena *a, uint32_t lane, const uint64_t cookie[2]);
/* Is it the lane of this end? */
bool arena_has(const struct arena *a, uint32_t lane, uint32_t side, uint64_t cookie);
/* Let go of a lane. */
void arena_give(struct arena *a, uint32_t lane, uint32_t side);
/* Around a fork, in the parent. */
void arena_fork_prepare(void);
void arena_fork_parent(void);
void arena_forked(void);
/* Memory shared with processes that are gone is given back. */
void arena_sweep(void);

#endif
