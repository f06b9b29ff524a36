/* SPDX-License-Identifier: MIT */
/*
 * Order between connections. A program that sends on one connection and then on another expects nobody to hear of the
 * second and not of the first, and with TCP nobody does. Of lanes a waiter hears by looking at memory, of everything
 * else only by asking the kernel; asking at each look would cost more than the lane saves.
 *
 * So each process has a logical clock (Lamport's): it moves whenever the process has done something through the kernel
 * that others may see, and when something came over a lane that is stamped with another value than before. The
 * value stands beside what is published in a lane. A waiter that finds the stamp it already knows can be sure that
 * nothing came through the kernel before these octets which it was not told of; else it asks.
 *
 * What a process has heard of from a peer it need not tell that peer: such moves are taken off the stamps for it
 * again. Otherwise two processes that talk to each other would move each other's clocks for ever.
 */
#ifndef FLUE_SOCKETS_ORDER_H
#define FLUE_SOCKETS_ORDER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "channel/lane.h"

extern _Atomic uint32_t order_clock;
extern _Atomic bool order_matters; /* this process has had a lane */

/* What a peer, a process, has told us. */
struct order_peer {
	_Atomic int32_t pid;
	_Atomic uint32_t echo;  /* moves of our clock that it is the cause of */
	_Atomic uint32_t stamp; /* the last one of it */
};

#define ORDER_PEERS 256
extern struct order_peer order_peers[ORDER_PEERS];

/* Which of them it is; 0: too many, nothing is taken off. */
uint32_t order_peer(int32_t pid);

/* This process did something through the kernel. */
static inline void order_tick(void)
{
	if (atomic_load_explicit(&order_matters, memory_order_relaxed))
		atomic_fetch_add_explicit(&order_clock, 1, memory_order_release);
}

static inline uint32_t order_now(void)
{
	return atomic_load_explicit(&order_clock, memory_order_acquire);
}

/* Octets with this stamp have come: what follows from them follows from what their sender did before. */
static inline void order_heard(uint32_t peer, uint32_t stamp)
{
	struct order_peer *p = &order_peers[peer];

	if (peer && atomic_load_explicit(&p->stamp, memory_order_relaxed) == stamp)
		return; /* on another lane */
	atomic_store_explicit(&p->stamp, stamp, memory_order_relaxed);
	if (peer)
		atomic_fetch_add_explicit(&p->echo, 1, memory_order_relaxed);
	order_tick();
}

/* Before octets are published. */
static inline void order_stamp(struct lane_dir *dir, uint32_t peer)
{
	uint32_t now = order_now() -
		       atomic_load_explicit(&order_peers[peer].echo, memory_order_relaxed);

	if (atomic_load_explicit(&dir->order, memory_order_relaxed) != now)
		atomic_store_explicit(&dir->order, now, memory_order_relaxed);
}

/* The stamp of what was published last; after the word was looked at. */
static inline uint32_t order_of(const struct lane_dir *dir)
{
	return atomic_load_explicit(&dir->order, memory_order_relaxed);
}

#endif
