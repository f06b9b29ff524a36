/* SPDX-License-Identifier: MIT */
/* Numbers that are closed, and a process that ends. */
#include <errno.h>

#include "base/own.h"
#include "base/robust.h"
#include "base/sys.h"
#include "sockets/record/above.h"
#include "sockets/record/family.h"
#include "sockets/record/record.h"
#include "sockets/record/sock.h"
#include "sockets/record/sock_priv.h"

/* Both directions stand still; false: this very thread has one, and a signal handler came between. */
static bool take_both(struct rec *r)
{
	if (!robust_take(&r->tx_lock))
		return false;
	if (robust_take(&r->rx_lock))
		return true;
	robust_give(&r->tx_lock);
	return false;
}

static void give_both(struct rec *r)
{
	robust_give(&r->rx_lock);
	robust_give(&r->tx_lock);
}

/* Calls of other threads go on with the socket, and natively would: leave them a descriptor. */
static bool leave_heir(struct rec *r, struct keep *k, int fd)
{
	int32_t none = 0;
	int heir;

	/* This thread has kept it as well. */
	if (k == &family_stray || (atomic_load(&k->pins) <= 1 && atomic_load(&k->calls) == 0))
		return false;
	/* Without one they end, but the record is theirs until then. */
	heir = own_copy(fd);
	if (atomic_compare_exchange_strong(&k->heir, &none, heir < 0 ? KEEP_NO_HEIR : heir + 1)) {
		if (heir >= 0)
			record_above.moved(r, fd, heir);
		return true;
	}
	if (heir >= 0)
		sys_close(heir);
	return false;
}

/* `fd` is out of the table, and nobody makes a system call on it any more. */
static void close_number(struct rec *r, int fd)
{
	struct keep *k = sock_keeping(r);

	atomic_fetch_sub(&k->numbers, 1);
	if (!leave_heir(r, k, fd))
		sock_drop(r, fd);
}

void sock_closing(int fd)
{
	struct sock_entry *e = sock_entry_make(fd);
	struct rec *r = e ? atomic_load(&e->rec) : SOCK_OTHER;
	int saved = errno;
	uint32_t state;
	bool both;

	if (r == SOCK_OURS) {
		sock_outwait_closing(fd);
		r = atomic_load(&e->rec);
	}
	if (!sock_is_rec(r)) {
		if (!r)
			sock_enter_unknown(fd);
		return;
	}
	sock_change_begins();
	sock_keep_locked(r);
	state = atomic_load(&r->state);
	both = state >= REC_POSTED && state <= REC_LANE && take_both(r);
	if (atomic_compare_exchange_strong(&e->rec, &r, SOCK_CLOSING)) {
		/* Some call may be inside that came before it was taken out of the table. */
		if (!both && (robust_is_taken(&r->tx_lock) || robust_is_taken(&r->rx_lock))) {
			both = take_both(r);
			if (!both) /* interrupted for good: it keeps the record and the lane */
				sock_keep_locked(r);
		}
		close_number(r, fd);
	}
	if (both)
		give_both(r);
	sock_release(r);
	sock_change_ends();
	errno = saved;
}

void sock_closed(int fd)
{
	struct sock_entry *e = sock_entry(fd);
	struct rec *closing = SOCK_CLOSING;

	/* It may be another socket's number by now. */
	if (e)
		atomic_compare_exchange_strong(&e->rec, &closing, SOCK_OTHER);
}

/*
 * One that never had a lane, has this number only, and that relatives go on with: all there is to do is to count.
 * A child that has inherited thousands of them would else need much longer for its end than natively.
 */
static bool end_quickly(int fd, struct rec *r, struct keep *k)
{
	uint32_t state = atomic_load(&r->state);

	if ((state != REC_OPEN && state != REC_YOUNG) || atomic_load(&k->numbers) > 1 ||
	    atomic_load(&r->refs) <= 1)
		return false;
	if (!atomic_compare_exchange_strong(&sock_entry(fd)->rec, &(struct rec *) { r },
					    SOCK_CLOSING))
		return true;
	family_hold(r, -1);
	family_reap(r);
	if (atomic_load(&r->refs) > 1)
		atomic_fetch_sub(&r->procs, 1);
	if (atomic_fetch_sub(&r->refs, 1) == 1)
		sock_last_closed(r, fd);
	return true;
}

void sock_ending(int fd, struct rec *r)
{
	struct keep *k = sock_keeping(r);

	if (atomic_load(&k->pins) == 0 && atomic_load(&k->calls) == 0 && !atomic_load(&k->heir)) {
		if (!end_quickly(fd, r, k))
			sock_closing(fd);
		return;
	}
	/* Other threads are in calls until the very end: the record stays theirs, and relatives see to it. */
	if (atomic_load(&r->refs) > atomic_load(&k->numbers) || !take_both(r))
		return;
	record_above.ending(r, fd);
	give_both(r);
}
