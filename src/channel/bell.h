/* SPDX-License-Identifier: MIT */
/*
 * Bells: how the peers of this process wake it when it sleeps in epoll_wait(). Each process has one (a
 * pipe, in every set that has lanes) and gives its other end to the processes it shares lanes with. A peer rings
 * once per sleep, however many lanes have something: so a thousand connections cost one call, not a
 * thousand octets on their carriers. Where there is no bell the octet on the carrier does the same.
 *
 * Sets have it edge-triggered, and each ring is an edge; nobody need read it. poll() of a program with one thread
 * does.
 */
#ifndef FLUE_CHANNEL_BELL_H
#define FLUE_CHANNEL_BELL_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Bells of others that this process holds at most. */
#define BELL_PEERS 32

/* What a set of the kernel's knows ours by. */
extern const char bell_mark;
#define BELL_DATA ((uint64_t)(uintptr_t)&bell_mark)

/* Our own, made now if need be; -1: none to be had. */
int bell_own(void);
/* What rings it, for others. */
int bell_rope(void);
/* Keep what the process `pid` with this mailbox sent as its bell; takes `fd`, see base/own.h. A number for bell_ring(), or -1. */
int bell_take(uint64_t mailbox, pid_t pid, int fd);
/* One user of it less. */
void bell_give(int bell);
/* False: the program has closed it, past its C library. */
bool bell_ring(int bell);
/* It was heard by somebody who waits for its level, or for an edge. */
void bell_still(void);
void bell_heard(void);
/* Wake a thread of this process. */
bool bell_ring_own(void);
/* What stands for a bell that was taken, or -1. */
int bell_of(int bell);
/* Away with ours; there will be another when one is needed. */
void bell_drop(void);
/* Around a fork, in the parent; in the child, where ours was the parent's. */
void bell_fork_prepare(void);
void bell_fork_parent(void);
void bell_forked(void);

#endif
