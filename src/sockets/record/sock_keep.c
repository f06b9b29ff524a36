/* SPDX-License-Identifier: MIT */
/* What calls of this process rely on, and what is left to them when a number is closed. */
#include <errno.h>

#include "base/robust.h"
#include "base/sys.h"
#include "channel/arena.h"
#include "sockets/record/above.h"
#include "sockets/record/family.h"
#include "sockets/record/record.h"
#include "sockets/record/sock.h"
#include "sockets/record/sock_priv.h"
#include "sockets/switch/ops.h"

struct keep *sock_keeping(const struct rec *r)
{
	struct keep *k = LANE_LOAD(r->keep);

	return k ? k : &family_stray;
}

bool sock_keep(struct rec *r, int fd)
{
	/* Counted and then looked; taken out of the table and then looked at the count: one sees the other's. */
	sock_keep_locked(r);
	if (sock_at(fd) == r)
		return true;
	sock_release(r);
	return false;
}

void sock_keep_locked(struct rec *r)
{
	atomic_fetch_add(&sock_keeping(r)->pins, 1);
}

int sock_lock(struct rec *r, struct robust_lock *l, int fd, bool kept)
{
	int heir;

	if (!robust_take_of(l, l == &r->tx_lock ? "r->tx_lock" : "r->rx_lock"))
		return SOCK_OWN;
	if (sock_at(fd) == r)
		return fd;
	heir = kept ? atomic_load(&sock_keeping(r)->heir) : 0;
	if (heir > 0)
		return heir - 1;
	robust_give(l);
	return SOCK_GONE;
}

/* Nobody has a descriptor of it any more, but for `fd`, which goes. */
void sock_last_closed(struct rec *r, int fd)
{
	ops_close(&r->ops);
	record_above.closed(r, fd);
	arena_sweep();
	record_free(r);
}

/* Another number of the same socket in this process, or -1. */
static int other_number(const struct rec *r, int fd)
{
	int high = sock_highest();

	for (int i = 0; i <= high; i++)
		if (i != fd && sock_at(i) == r)
			return i;
	return -1;
}

/* Others hold the socket, here or in relatives of this process. */
static void one_less(struct rec *r, int fd)
{
	struct keep *k = sock_keeping(r);

	if (atomic_load(&k->numbers) > 0 || atomic_load(&k->heir)) {
		if (record_above.is_known_as(r, fd))
			record_above.moved(r, fd, other_number(r, fd));
		return;
	}
	/* When they have closed it too, its record may serve a lane that is not in our memory. */
	record_above.forgotten(r);
	family_reap(r);
	if (atomic_load(&r->refs) <= 1)
		return;
	atomic_fetch_sub(&r->procs, 1);
}

/* This process has one descriptor less: `fd`, which is still open. */
void sock_drop(struct rec *r, int fd)
{
	family_hold(r, -1);
	if (atomic_load(&r->refs) > 1)
		one_less(r, fd);
	if (atomic_fetch_sub(&r->refs, 1) == 1)
		sock_last_closed(r, fd);
}

/* The last call that relied on a closed descriptor is over. */
static void settle(struct rec *r, struct keep *k)
{
	int saved = errno;
	int heir;

	if (atomic_load(&k->heir) == 0 || atomic_load(&k->pins) > 0 || atomic_load(&k->calls) > 0)
		return;
	heir = atomic_exchange(&k->heir, 0);
	if (heir == 0)
		return;
	sock_drop(r, heir > 0 ? heir - 1 : -1);
	if (heir > 0)
		sys_close(heir - 1);
	errno = saved;
}

void sock_release(struct rec *r)
{
	struct keep *k = sock_keeping(r);

	if (atomic_fetch_sub(&k->pins, 1) == 1)
		settle(r, k);
}

void sock_call_ends(struct rec *r)
{
	struct keep *k = sock_keeping(r);

	if (atomic_fetch_sub(&k->calls, 1) == 1)
		settle(r, k);
}

/* Another thread steps onto the lane. False: this very thread, in which a signal handler came between. */
static bool outwait_attach(struct rec *r)
{
	if (!robust_take(&r->tx_lock))
		return false;
	robust_give(&r->tx_lock);
	return true;
}

bool sock_enter(struct rec *r)
{
	for (;;) {
		uint32_t state = atomic_load(&r->state);

		if (state == REC_LANE)
			return false;
		sock_call_begins(r);
		state = atomic_load(&r->state);
		if (state != REC_LANE && state != REC_ATTACH)
			return true;
		if (state == REC_ATTACH && !outwait_attach(r)) {
			record_step(r, REC_EV_NOT_YET);
			return true;
		}
		sock_call_ends(r);
	}
}
