/* SPDX-License-Identifier: MIT */
/* Processes that become two, or another program. */

#include "sockets/record/family.h"
#include "sockets/record/record.h"
#include "sockets/record/sock.h"
#include "sockets/record/sock_priv.h"
#include "sockets/switch/ops.h"

_Atomic uint32_t sock_spawns;

/* --- fork: the child holds everything once more. Counted before, or the parent could close first. */

/* Writes as little as can be into memory that parent and child will have to copy. */
static void count_child(int fd, struct rec *r, void *arg)
{
	struct keep *k = sock_keeping(r);
	uint32_t now = atomic_load_explicit(&sock_forks, memory_order_relaxed);
	bool first = true;

	(void)fd;
	(void)arg;
	atomic_fetch_add(&r->refs, 1);
	/* A record with several numbers counts one process. */
	if (atomic_load_explicit(&k->numbers, memory_order_relaxed) > 1 || k->late == now) {
		first = k->counted != now;
		k->counted = now;
	}
	if (first)
		atomic_fetch_add(&r->procs, 1);
	family_count_child(r);
}

void sock_fork_prepare(void)
{
	sock_fork_begins();
	sock_each(count_child, NULL);
}

void sock_fork_parent(void)
{
	atomic_store(&sock_forking, 0);
}

/* Not counted for this process: somebody else's. */
static void drop_uncounted(int fd, struct rec *r, void *arg)
{
	const struct keep *k = sock_keeping(r);

	(void)arg;
	if (k->late == atomic_load(&sock_forks) && k->counted != k->late)
		sock_unknown(fd);
}

void sock_forked(bool counted)
{
	sock_copies_forked();
	atomic_store(&sock_spawns, 0);
	sock_table_forked();
	if (counted && atomic_load(&sock_late))
		sock_each(drop_uncounted, NULL);
	family_forget_calls();
}

/* --- exec: another program goes on with the descriptors, and nobody with the records */

void sock_hand_off(int fd, struct rec *r)
{
	struct keep *k = sock_keeping(r);

	family_hold(r, -1);
	if (atomic_fetch_sub(&k->numbers, 1) == 1)
		atomic_fetch_sub(&r->procs, 1);
	if (atomic_fetch_sub(&r->refs, 1) != 1)
		return;
	/* If there will be no other program it is asked about again. */
	sock_unknown(fd);
	ops_close(&r->ops);
	record_abandon(r);
}

void sock_take_back(struct rec *r)
{
	atomic_fetch_add(&r->refs, 1);
	if (atomic_fetch_add(&sock_keeping(r)->numbers, 1) == 0)
		atomic_fetch_add(&r->procs, 1);
	family_hold(r, 1);
}
