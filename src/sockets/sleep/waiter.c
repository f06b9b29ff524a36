/* SPDX-License-Identifier: MIT */
#include "sockets/sleep/waiter.h"

#include <errno.h>
#include <linux/futex.h>

#include "base/probe.h"
#include "base/sys.h"
#include "base/util.h"
#include "channel/ladder.h"
#include "channel/nap.h"
#include "channel/times.h"
#include "sockets/record/sock.h"
#include "sockets/stream/stream.h"

/* For probes: how one sleeps. */
enum waiter_how { WAITER_SLEEPS, WAITER_NAPS, WAITER_FOR_ROOM };

/* A peer that keeps changing the word cannot hold us longer than this. */
#define TRIES 10000

bool waiter_climb(struct waiter *w, uint32_t peer_cpu)
{
	return ladder_climb_locked(w->ready, w->arg, peer_cpu, w->spin, ladder_profile.spin_ns,
				   w->lock);
}

/* --- naps */

bool waiter_can_nap(const struct rec *r, bool ring)
{
	uint64_t word = atomic_load_explicit(&r->rx.dir->word, memory_order_relaxed);

	/* Else the nap would be refused at once, again and again. */
	if (!sock_has_lane(r) || !lane_word_may_nap(word))
		return false;
	/* What comes next comes in the ring, or its sender wakes nappers when it leaves that, as it does for an urgent
	 * octet. */
	return !ring ||
	       (lane_rx_in_ring(&r->rx) && lane_word_turns(word) == LANE_LOAD(r->rx.turns));
}

bool waiter_nap_pays(struct waiter *w)
{
	return w->nap && nap_pays(w->nap);
}

int waiter_nap(struct waiter *w, struct lane_rx *const *lane, size_t count, int64_t most)
{
	int n;

	ROBUST_NONE();
	PROBE(sleep, w->arg, (uint32_t)WAITER_NAPS);
	n = nap_on(lane, count, most < 0 || most > NAP_NS ? NAP_NS : most);
	PROBE(wake, w->arg, (uint32_t)WAITER_NAPS, n);
	nap_noted(w->nap, n != 0);
	return n;
}

/* --- arming */

/* Every sleeper of this socket is woken by our bell. */
static bool all_belled(const struct rec *r)
{
	return r->armed_bell == atomic_load_explicit(&r->armed, memory_order_relaxed);
}

/* Counting sleepers and telling the sender of them happen together: with the lock. */
static bool arm(struct rec *r, const uint64_t *told, bool belled)
{
	bool ok = true;
	uint64_t word;
	size_t limit;

	if (!robust_take(&r->rx_lock))
		return false;
	r->armed_bell += belled;
	atomic_fetch_add(&r->armed, 1);
	for (int tries = 0; ok && sock_has_lane(r); tries++) {
		enum lane_from from;

		if ((told && lane_rx_arm(&r->rx, *told, all_belled(r))) ||
		    lane_rx_arm(&r->rx, lane_rx_here(&r->rx), all_belled(r)))
			break;
		/* Turns that lead nowhere yet must be made, or the next octet finds us asleep. */
		from = lane_rx_look(&r->rx, &word, &limit);
		if (from == LANE_FROM_CARRIER)
			break; /* octets are on their way there */
		ok = from != LANE_FROM_RING && from != LANE_FROM_BROKEN && tries < TRIES;
	}
	if (!ok) {
		r->armed_bell -= belled;
		atomic_fetch_sub(&r->armed, 1);
	}
	robust_give(&r->rx_lock);
	return ok;
}

bool waiter_arm(struct rec *r, uint8_t *by, enum waiter_by how, const uint64_t *told)
{
	bool ok;

	/* Before: a reader that comes between must see it. */
	if (how == WAITER_CALL)
		atomic_fetch_add(&r->asleep, 1);
	/* Rung before it was armed is not rung now; who publishes after the arming must ring. */
	if (how == WAITER_BELL)
		atomic_store(r->rx_rung, 0);
	ok = arm(r, told, how == WAITER_BELL);
	if (!ok && how == WAITER_CALL)
		atomic_fetch_sub(&r->asleep, 1);
	*by = ok ? how : WAITER_NOT;
	return ok;
}

void waiter_disarm(struct rec *r, uint8_t *by)
{
	enum waiter_by how = *by;
	bool locked;

	if (how == WAITER_NOT)
		return;
	locked = robust_take(&r->rx_lock);
	r->armed_bell -= how == WAITER_BELL;
	if (atomic_fetch_sub(&r->armed, 1) == 1 && sock_has_lane(r))
		lane_rx_disarm(&r->rx);
	if (locked)
		robust_give(&r->rx_lock);
	if (how == WAITER_CALL)
		atomic_fetch_sub(&r->asleep, 1);
	*by = WAITER_NOT;
}

bool waiter_arms_again(struct rec *r)
{
	lane_rx_arm(&r->rx, lane_rx_here(&r->rx), all_belled(r));
	return lane_rx_ready(&r->rx) > 0;
}

/* --- sleeping */

/* Cancellation unwinds through here, and a set's lock must be had again. */
static void wake_up(struct waiter **asleep)
{
	struct waiter *w = *asleep;

	if (w->lock && robust_take_of(w->lock, "s->lock"))
		atomic_fetch_sub(w->sleepers, 1);
	if (w->woken)
		w->woken(w->arg);
}

int waiter_sleep(struct waiter *w, int (*call)(void *arg), void *arg)
{
	struct waiter *asleep __attribute__((cleanup(wake_up))) = w;
	uint64_t before, took;
	int n;

	if (w->lock) {
		atomic_fetch_add(w->sleepers, 1);
		robust_give(w->lock);
	}
	ROBUST_NONE();
	PROBE(sleep, w->arg, (uint32_t)WAITER_SLEEPS);
	before = clock_now();
	n = call(arg);
	took = clock_now() - before;
	PROBE(wake, w->arg, (uint32_t)WAITER_SLEEPS, n);
	if (w->spin)
		ladder_slept(w->spin, took);
	if (w->nap)
		nap_slept(w->nap, took);
	(void)asleep;
	return n;
}

int64_t waiter_patience(struct rec *r, bool full, bool belled)
{
	int64_t most = stream_unsent(r) > 0 ? SLEEP_UNREAD : INT64_MAX;

	if (!full)
		return most;
	return min_i64(most, belled && stream_can_be_rung(r) ? SLEEP_FULL : stream_glance(r));
}

int waiter_room(struct rec *r, bool (*has)(void *rec), int64_t ns, bool as_read)
{
	const struct timespec slice = { .tv_nsec = (long)ns };
	uint32_t head = atomic_load(&r->tx.dir->head);
	int rc = 0;

	/* Said and then looked; the reader makes room and then looks whether somebody sleeps (lane_rx_must_wake()). */
	atomic_fetch_or(&r->tx.dir->tx_sleeps, LANE_ROOM_FUTEX);
	if (has(r))
		return 0;
	ROBUST_NONE();
	PROBE(sleep, r, (uint32_t)WAITER_FOR_ROOM);
	if (as_read)
		rc = nap_as_read(&r->tx.dir->head, head, ns);
	else if (sys_call(SYS_futex, &r->tx.dir->head, FUTEX_WAIT, head, &slice, NULL, 0) != 0 &&
		 errno == EINTR)
		rc = -1;
	PROBE(wake, r, (uint32_t)WAITER_FOR_ROOM, rc);
	return rc < 0 ? -1 : 0;
}
