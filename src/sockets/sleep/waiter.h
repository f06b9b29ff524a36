/* SPDX-License-Identifier: MIT */
/*
 * A waiter: whoever waits for lanes, in the same steps everywhere.
 *
 *   look     ready(), without a lock of a record: has something come?
 *   climb    the ladder: look, spin, yield (channel/ladder.h)
 *   nap      for a moment on the lanes' own words, where that has paid (channel/nap.h)
 *   arm      each lane's peer is told how to wake us; false: something has come meanwhile, look again
 *   sleep    in the kernel
 *   disarm   also when the thread is cancelled in its sleep
 *
 * It belongs to a call (recv, send, poll, select), whose thread's it is; or to an epoll set, for any number of threads:
 * then its members stay armed from one call to the next, whoever goes away with events arms what it leaves behind,
 * and the set's lock is held but while one sleeps. Nobody sleeps with any lock. In a child of fork() a set's waiter has
 * nobody asleep. All times are in channel/times.h.
 */
#ifndef FLUE_SOCKETS_SLEEP_WAITER_H
#define FLUE_SOCKETS_SLEEP_WAITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/robust.h"
#include "sockets/record/home.h"

struct waiter {
	bool (*ready)(void *arg);
	void (*woken)(void *arg); /* behind each sleep, also a cancelled one; NULL: nothing to do */
	void *arg;
	uint32_t *spin; /* what the next wait may spin, a socket's or a set's; NULL: nobody's */
	uint32_t *nap;  /* whether naps have paid; NULL: it takes none */
	struct robust_lock *lock;   /* a set's; NULL: a call's */
	_Atomic uint32_t *sleepers; /* threads asleep in the set */
};

/* What wakes a sleeper for a lane. */
enum waiter_by {
	WAITER_NOT,
	WAITER_CALL, /* an octet on the carrier, and nothing else: a call sleeps for it */
	WAITER_SET, /* the same, through the kernel's set: others of the process can wake it as well */
	WAITER_BELL, /* our bell */
};

/* True: ready() holds, or may. `peer_cpu`: where the peer ran last. */
bool waiter_climb(struct waiter *w, uint32_t peer_cpu);

/* Could a nap on it be ended by all that a receiver waits for? Not behind the peer's last octet: then only the carrier has
 * news. `ring`: by all that poll() would tell of; then not where the carrier is next either. */
bool waiter_can_nap(const struct rec *r, bool ring);
/* Have naps paid lately? Each time it says no brings the next yes nearer. */
bool waiter_nap_pays(struct waiter *w);
/* 1: look again; 0: nothing came within `most`: sleep; -1 and EINTR: a handler has run. */
int waiter_nap(struct waiter *w, struct lane_rx *const *lane, size_t count, int64_t most);

/* Have the peer of `r` wake us; *by is how, for waiter_disarm(). `told`, for edges: what lane_rx_seen() gave when it was
 * reported; only what came after it counts. False: it is readable now, and *by is WAITER_NOT. */
bool waiter_arm(struct rec *r, uint8_t *by, enum waiter_by how, const uint64_t *told);
void waiter_disarm(struct rec *r, uint8_t *by);
/* With the lock of receiving, after octets were taken: others sleep for `r`, and what was to wake them may be gone. True:
 * octets are left that they rely on somebody else to tell of. */
bool waiter_arms_again(struct rec *r);

static inline bool waiter_arm_again(struct rec *r)
{
	return atomic_load_explicit(&r->armed, memory_order_relaxed) && waiter_arms_again(r);
}

/* Sleep: call(arg) in the kernel, without a lock. Its result. */
int waiter_sleep(struct waiter *w, int (*call)(void *arg), void *arg);

/* How long one can sleep over this lane; INT64_MAX: for ever. `full`: a writer waits for room; `belled`: its reader rings. */
int64_t waiter_patience(struct rec *r, bool full, bool belled);
/* A sleep of at most `ns` that ends when the reader makes room, unless has(r). `as_read`: restarted by the kernel as
 * read() would be. 0, or -1 and EINTR: a handler has run. */
int waiter_room(struct rec *r, bool (*has)(void *rec), int64_t ns, bool as_read);

#endif
