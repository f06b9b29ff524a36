/* SPDX-License-Identifier: MIT */
/*
 * All times of waiting, in one place: how long a wait spins, naps, sleeps before it looks around, and how long a peer is
 * waited for. Nanoseconds unless they say otherwise. Measured figures are of docs/performance.md and its machine (two
 * processors): a waiter that spins finds what came within a quarter of a microsecond; a round trip of TCP in which both
 * ends sleep and are woken takes 40 us.
 *
 * What a user can choose is the profile (flue-run(1)).
 */
#ifndef FLUE_CHANNEL_TIMES_H
#define FLUE_CHANNEL_TIMES_H

#include "base/clock.h"

/* --- profiles: the longest spin, the most yields. 50 us is about what sleeping and waking costs: who spins so long in vain
 * has spent no more than it would have saved. */
#define TIMES_PROFILES(X)        \
	X("balanced", 50000, 8)  \
	X("latency", 200000, 32) \
	X("cpu", 0, 2)

/* --- the ladder: look, spin, yield */
#define SPIN_LEAST \
	1000 /* below this a spin is not tried: the looks at the clock would be a good part of it */
#define SPIN_ALONE  4000   /* so long before it is asked whether others want the processor; ... */
#define YIELD_ALONE 2000   /* ... if none does a yield takes no longer */
#define YIELD_SLOW  100000 /* a yield that took this long gave a slice to a third party ... */
#define YIELD_BAN \
	(10 * NSEC_PER_MSEC) /* ... and is not tried again for so long, then twice as long, ... */
#define YIELD_BAN_MOST NSEC_PER_SEC /* ... up to this */
/* A call that must not block may still look so long whether the receiver makes room, or lets us into the ring: it copies
 * in steps of LANE_STEP, and is likely to be at it. */
#define SPIN_ROOM 20000

/* --- naps: on the lane's own word, where only the peer's library wakes */
/* The longest: more than a tick of the kernel, or a timer would have to be set for each. Who was killed, or cancelled,
 * is noticed this late. */
#define NAP_NS (20 * (int64_t)NSEC_PER_MSEC)
/* Signal handlers of the program are looked at again after this. */
#define NAP_HANDLERS (10 * NSEC_PER_MSEC)

/* --- trunks: a thread sleeps NAP_NS on the memory's word, then on the trunk's socket */
/* So often the kernel is asked whether the other process is still there, while nothing comes: a child of its may have
 * inherited the socket, whose end then tells nothing. */
#define TRUNK_LOOK (20 * NSEC_PER_MSEC)
/* For the same reason a sleep on the socket is no longer, if the other process is known: it may be killed while we sleep. One
 * system call or two in a second are not felt, and who waits for a process that is dead has time. */
#define TRUNK_SLEEP NSEC_PER_SEC

/* --- sleeps in the kernel */
/* With octets of ours unread, no longer: the peer may ask for them again, and only we can send them. */
#define SLEEP_UNREAD (20 * (int64_t)NSEC_PER_MSEC)
/* With a writer that waits for its bell: the reader may never read. */
#define SLEEP_FULL (50 * (int64_t)NSEC_PER_MSEC)
/* While lanes keep a waiter busy the kernel is asked at least this often, for what nobody could tell us of. Each time it is
 * asked costs a system call, which a lane has not. */
#define LOOK_KERNEL 100000

/* --- room in the ring */
/* A sleep for room looks around this often. */
#define ROOM_SLICE (10 * NSEC_PER_MSEC)
/* A reader that takes nothing for so long may be waiting for the writer, who then gets the carrier: TCP has room for
 * more than a ring ... */
#define ROOM_PATIENCE (2 * NSEC_PER_SEC)
/* ... the more so if it has no room itself. */
#define ROOM_DEADLOCK (200 * NSEC_PER_MSEC)
/* A sleep in poll() that the reader's making room ends; it delays all else that the program polls for. */
#define ROOM_NAP NSEC_PER_MSEC
/* Behind that it looks around this often, the less often the longer it has waited. */
#define ROOM_GLANCE_LEAST (50 * 1000)
#define ROOM_GLANCE_MOST  (20 * NSEC_PER_MSEC)

/* --- the peer */
/* A sender that never receives asks the kernel this often whether it is still there. */
#define PEER_LOOK NSEC_PER_MSEC
/* How long a sender that may block waits, in naps, for a receiver because of whom it cannot turn into the ring. */
#define TURN_WAIT  (20 * NSEC_PER_MSEC)
#define TURN_PAUSE 20000
/* A receiver takes octets back in a few system calls. After this it has been killed over it, or means no good. */
#define TAKING_NS NSEC_PER_SEC
/* So long also a call that must not block looks whether it is done with that: the program may have been told a moment ago
 * that it can write, and a receiver that has lost its processor gets it back within a slice of others. */
#define TAKING_MOMENT (10 * NSEC_PER_MSEC)
/* How long a step down before another program goes on with the socket waits for the peer to send unread octets again: a
 * peer that sleeps in a call of ours looks every SLEEP_UNREAD. */
#define RECALL_NS    (200 * NSEC_PER_MSEC)
#define RECALL_PAUSE (500 * 1000)
/* How long our own leaving waits for a peer that takes octets back just now: a matter of microseconds. */
#define LEAVE_NS    (10 * NSEC_PER_MSEC)
#define LEAVE_PAUSE 20000
/* One that sends much at once waits so long in all for the peer to take the offer of a lane, and the process no more than
 * this for peers that do not come. Each that comes pays for two. */
#define PACE_NS    (500 * 1000)
#define PACE_VAIN  (8 * PACE_NS)
#define PACE_PAUSE 10000

/* --- memory: what comes back must be faulted in again, so not more often than this */
#define TRIM_NS NSEC_PER_SEC

#endif
